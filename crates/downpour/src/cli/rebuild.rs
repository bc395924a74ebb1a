//! `downpour catalog rebuild`: a lost catalog made again, from receiving folders or from a mirror's copy.

use super::{Exit, Fault};
use crate::rebuild::{RebuildError, Wish, from_receipts};
use clap::Args;
use downpour_catalog::{BeforeMigration, Catalog, CatalogUrl, Follower, Time, backup};
use downpour_transport::identity::PublicKey;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The name under which it writes: no daemon has it.
const WRITER: &str = "rebuild";

/// Make a lost catalog again: of a mirror's copy, or from the receipts in receiving folders
#[derive(Debug, Args)]
pub(super) struct RebuildArgs {
    /// Copy of the lost catalog, from the state folder of the site that mirrors it: mirror/NAME.db
    #[arg(long, value_name = "FILE", required_unless_present = "from_receipts")]
    #[arg(conflicts_with_all = ["from_receipts", "site", "key", "verify"])]
    from_mirror: Option<PathBuf>,
    /// Receiving folder with its receipts; may be given several times
    #[arg(long, value_name = "DIR", requires = "site")]
    from_receipts: Vec<PathBuf>,
    /// The site whose catalog it is
    #[arg(long, value_name = "NAME")]
    site: Option<String>,
    /// The site's node key; only its receipts count; may be given several times [default: any]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    key: Vec<PublicKey>,
    /// Read each file and compare it with its receipt
    #[arg(long)]
    verify: bool,
    /// The catalog: sqlite:PATH, postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE; made if there is none
    #[arg(long, value_name = "URL", env = "DOWNPOUR_CATALOG", hide_env_values = true)]
    catalog: CatalogUrl,
}

impl RebuildArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Time(i64::try_from(now.as_micros()).unwrap_or(i64::MAX));
        match (&self.from_mirror, &self.site) {
            (Some(copy), _) => self.of_copy(copy, now),
            (None, site) => self.of_receipts(site.as_deref().unwrap_or_default(), now),
        }
    }

    fn of_copy(&self, copy: &Path, now: Time) -> Result<Exit, Fault> {
        let failed = |what: String| {
            let todo =
                "give the file of a mirror, and --catalog sqlite: of a file that is not there";
            Fault::start(format!("{}: {what}", copy.display()), todo)
        };
        let CatalogUrl::Sqlite(path) = &self.catalog else {
            return Err(failed("a mirror's copy becomes a catalog on SQLite only".to_owned()));
        };
        // A whole copy, also while the mirror writes to it.
        let source = CatalogUrl::Sqlite(copy.to_owned());
        backup(&source, path).map_err(|error| failed(error.to_string()))?;
        let mut made = Follower::open(path, now).map_err(|error| failed(error.to_string()))?;
        made.settle().map_err(|error| failed(error.to_string()))?;
        println!("{}: made of {}", path.display(), copy.display());
        Ok(Exit::Complete)
    }

    fn of_receipts(&self, site: &str, now: Time) -> Result<Exit, Fault> {
        let opened = Catalog::open(&self.catalog, WRITER, now, &BeforeMigration::Refuse);
        let catalog = opened.map_err(|error| {
            let what = format!("the catalog {:?} cannot be opened: {error}", self.catalog);
            Fault::start(what, "give --catalog a place where a new catalog can be made")
        })?;
        let mut is_whole = true;
        for folder in &self.from_receipts {
            // As the daemon that wrote the receipts knew it.
            let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
            let wish = Wish { site, keys: &self.key, verify: self.verify };
            let done = from_receipts(&catalog, wish, &folder, now).map_err(fault)?;
            println!(
                "{}: {} receipts, {} files new in the catalog, {} not there, {} lines passed over",
                folder.display(),
                done.receipts,
                done.files,
                done.not_there,
                done.passed_over
            );
            for what in &done.told {
                eprintln!("{what}");
            }
            is_whole &= done.not_there == 0 && done.passed_over == 0;
        }
        Ok(if is_whole { Exit::Complete } else { Exit::Incomplete })
    }
}

fn fault(error: RebuildError) -> Fault {
    let what = error.to_string();
    match error {
        RebuildError::Log(_) => Fault::start(what, "give the folder that the files lie in"),
        RebuildError::Catalog(_) => Fault::incomplete(what, "see to the database; then again"),
    }
}
