//! What `site.toml` says of moving files: `[transfer]`. What it says of one link stands in its `[[remote]]`.

use crate::section;
use crate::site::section::Complaint;
use crate::units::{Amount, Span};
use std::collections::BTreeMap;
use std::path::PathBuf;

section! {
    /// Moving files between sites.
    [transfer]
    pub struct TransferSection {
        /// Folders from which `transfer submit` and other sites' wants may take files, besides the spools.
        folders: Vec<PathBuf> = "[]",
        /// Where files from other sites go, unless their `[[remote]]` says otherwise.
        inbox: PathBuf = "\"inbox\"",
        /// Batches under way at once, over all links, in each direction.
        active: usize = "4",
        /// Files in one batch, 1000 at most.
        batch_files: usize = "1000",
        /// Bytes in one batch; a longer file goes by itself.
        batch_bytes: Amount = "\"4GB\"",
        /// How long work stays a daemon's own that does not say any more that it is alive.
        lease: Span = "\"60s\"",
        /// Host by which other sites reach this one's sessions, when that differs from its addresses.
        host: String | "\"site.example.org\"",
        /// First and last port for sessions, of TCP and UDP.
        ports: String = "\"28800-28819\"",
        /// Shares of a link among rules of one priority: a rule that is not named has 1.
        shares: BTreeMap<String, f64> = "{}",
        /// Whether each file that arrived is read back and compared before its receipt.
        read_back: bool = "true",
    }
}

impl TransferSection {
    /// What is wrong with the values.
    pub fn complaints(&self, found: &mut Vec<Complaint>) {
        if !(1..=super::offer::OFFER_FILES_MAX).contains(&self.batch_files) {
            let what = format!("a batch of {} files", self.batch_files);
            found.push(Complaint::new("transfer.batch_files", what, "give it 1 to 1000"));
        }
        if self.active == 0 {
            let todo = "give it 1 or more; `downpour service stop dispatch` moves nothing";
            found.push(Complaint::new("transfer.active", "nothing could move", todo));
        }
        if let Err(error) = self.ports.parse::<crate::ports::PortRange>() {
            let todo = "write FIRST-LAST, such as 28800-28819";
            found.push(Complaint::new("transfer.ports", error.to_string(), todo));
        }
        if let Some((rule, share)) = self.shares.iter().find(|(_, share)| **share <= 0.0) {
            let what = format!("the share of {rule} is {share}");
            found.push(Complaint::new("transfer.shares", what, "give it more than 0"));
        }
    }

    /// What a rule gets of a link, beside others of its priority.
    pub fn share(&self, rule: &str) -> f64 {
        self.shares.get(rule).copied().unwrap_or(1.0)
    }
}
