//! What a receiver tells of the files of a site that come as products: a signed receipt for each that is on its disk, or
//! what went wrong.
//!
//! 1. The shelf gives each file that it has placed; whoever ships takes the next [`Word`].
//! 2. For a word the file system is synced once, each file is read back and compared, its receipt signed and kept in the
//!    folder's own log. Only then it is told.
//! 3. What was not told stays, also when the session is lost and another one comes.

use super::file::SiteFile;
use crate::object::Digest;
use crate::receipt::{ReceiptLog, SignedFileReceipt};
use downpour_catalog::ErrorClass;
use downpour_transport::identity::Identity;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Bytes of receipts in one word, about.
const WORD_BYTES: usize = 200_000;
/// Characters of what went wrong.
const WHAT_MAX: usize = 500;

/// What a receiver tells at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// Number of the last product that it is done with, placed or not: what it has not told of until there, it missed.
    pub through: Option<u64>,
    /// Of files.
    pub files: Vec<Told>,
}

/// What it tells of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "say")]
pub enum Told {
    /// It is in its place.
    Placed {
        /// The proof.
        receipt: Box<SignedFileReceipt>,
    },
    /// It is not.
    Failed {
        /// Its name across sites, in hex.
        key: String,
        /// Name of the error class.
        class: String,
        /// What happened.
        what: String,
    },
}

/// See the module's text.
pub struct Clerk {
    folder: PathBuf,
    identity: Arc<Identity>,
    state: Mutex<State>,
    /// Held while a word is made, so that they are made one after another.
    making: Mutex<()>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    session: String,
    /// Placed, and not synced yet.
    placed: Vec<(SiteFile, Digest)>,
    ready: VecDeque<Told>,
    through: Option<u64>,
    told_through: Option<u64>,
}

impl Clerk {
    /// Of one receiving folder.
    pub fn new(folder: PathBuf, identity: Arc<Identity>) -> Self {
        let (state, making, changed) = (Mutex::default(), Mutex::default(), Notify::new());
        Self { folder, identity, state, making, changed }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another session begins: its products have numbers of their own, and what failed in the last one comes again.
    pub fn begin(&self, session: String) {
        let mut state = self.lock();
        (state.session, state.through, state.told_through) = (session, None, None);
        state.ready.retain(|told| matches!(told, Told::Placed { .. }));
    }

    /// Waits until there is something new.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn placed(&self, file: SiteFile, digest: Digest) {
        self.lock().placed.push((file, digest));
    }

    pub(super) fn failed(&self, file: &SiteFile, class: ErrorClass, what: &str) {
        let what = what.chars().take(WHAT_MAX).collect();
        let (key, class) = (file.key().to_string(), class.name().to_owned());
        self.lock().ready.push_back(Told::Failed { key, class, what });
    }

    /// All products up to this one are done with.
    pub(super) fn passed(&self, number: u64) {
        self.lock().through = Some(number);
        self.changed.notify_one();
    }

    /// What is to be told next; `None`: nothing new. The same again until it was [`told`](Self::told). Blocks.
    pub fn next_word(&self) -> Option<Word> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let (placed, through, session) = {
            let mut state = self.lock();
            (std::mem::take(&mut state.placed), state.through, state.session.clone())
        };
        let signed = self.sign(placed, &session);
        let mut state = self.lock();
        state.ready.extend(signed);
        let mut word = Word::default();
        let mut bytes = 0;
        for told in &state.ready {
            bytes += serde_json::to_string(told).map_or(0, |text| text.len());
            if bytes > WORD_BYTES && !word.files.is_empty() {
                break;
            }
            word.files.push(told.clone());
        }
        // Of what waits for the next word nothing may be taken for missed.
        let all = word.files.len() == state.ready.len();
        word.through = through.filter(|_| all);
        let is_new = !word.files.is_empty() || (all && word.through != state.told_through);
        is_new.then_some(word)
    }

    /// The last word was heard.
    pub fn told(&self, word: &Word) {
        let mut state = self.lock();
        for heard in &word.files {
            if state.ready.front() != Some(heard) {
                return; // Of a session that is over.
            }
            state.ready.pop_front();
        }
        state.told_through = word.through.or(state.told_through);
    }

    /// Brings files onto the disk for good, looks at them there, and signs.
    fn sign(&self, placed: Vec<(SiteFile, Digest)>, session: &str) -> Vec<Told> {
        if placed.is_empty() {
            return Vec::new();
        }
        let fail = |file: &SiteFile, class: ErrorClass, what: String| Told::Failed {
            key: file.key().to_string(),
            class: class.name().to_owned(),
            what: what.chars().take(WHAT_MAX).collect(),
        };
        let all_failed = |what: String| {
            let failed = |(file, _): &(SiteFile, Digest)| {
                fail(file, ErrorClass::DestinationWriteFailed, what.clone())
            };
            placed.iter().map(failed).collect()
        };
        let synced = File::open(&self.folder).and_then(|folder| Ok(rustix::fs::syncfs(&folder)?));
        if let Err(error) = synced {
            return all_failed(error.to_string());
        }
        let key = self.identity.public_key();
        let (mut told, mut receipts) = (Vec::with_capacity(placed.len()), Vec::new());
        for (file, digest) in &placed {
            let receipt = file.receipt(*digest, session, key);
            match (receipt.check_content(&self.folder), receipt.sign(&self.identity)) {
                (Ok(()), Ok(receipt)) => receipts.push(receipt),
                (Err(wrong), _) => {
                    told.push(fail(file, ErrorClass::FalseSuccess, format!("read back: {wrong}")));
                }
                (_, Err(error)) => {
                    told.push(fail(file, ErrorClass::NameRefused, error.to_string()));
                }
            }
        }
        if let Err(error) = ReceiptLog::open(&self.folder).and_then(|mut log| log.append(&receipts))
        {
            return all_failed(error.to_string());
        }
        let placed = |receipt| Told::Placed { receipt: Box::new(receipt) };
        told.extend(receipts.into_iter().map(placed));
        told
    }
}

#[cfg(test)]
mod tests {
    use super::{Clerk, SiteFile, Told};
    use crate::object::Digest;
    use crate::receipt::{Line, read_log};
    use downpour_catalog::ErrorClass;
    use downpour_transport::identity::Identity;
    use std::sync::Arc;

    fn file(name: &str, content: &[u8]) -> (SiteFile, Digest) {
        let hash = blake3::hash(content);
        let file = SiteFile {
            site: "a".to_owned(),
            name: name.to_owned(),
            version: 1,
            taken_in_us: 7,
            rule: "all".to_owned(),
            size: content.len() as u64,
            blake3: hash.to_hex().to_string(),
            path: name.to_owned(),
        };
        (file, Digest(*hash.as_bytes()))
    }

    #[test]
    fn a_receipt_is_for_what_lies_there_and_is_told_until_it_was_heard() {
        let folder = tempfile::tempdir().unwrap();
        let clerk = Clerk::new(folder.path().to_owned(), Arc::new(Identity::generate()));
        clerk.begin("one".to_owned());
        assert_eq!(clerk.next_word(), None);
        let (good, good_digest) = file("good", b"content");
        let (bad, bad_digest) = file("bad", b"content");
        std::fs::write(folder.path().join("good"), b"content").unwrap();
        std::fs::write(folder.path().join("bad"), b"contort").unwrap();
        clerk.placed(good, good_digest);
        clerk.placed(bad.clone(), bad_digest);
        clerk.passed(1);
        let word = clerk.next_word().unwrap();
        let of = |told: &Told| match told {
            Told::Placed { receipt } => {
                assert!(receipt.verify().is_ok());
                receipt.receipt.name.clone()
            }
            Told::Failed { key, class, .. } => {
                assert_eq!(*key, bad.key().to_string());
                class.clone()
            }
        };
        let told: Vec<String> = word.files.iter().map(of).collect();
        assert_eq!((told, word.through), (vec!["false-success".into(), "good".into()], Some(1)));
        assert_eq!(clerk.next_word(), Some(word.clone()), "nobody has heard it");
        // Another session: what failed comes again, the receipt is still to be told.
        clerk.begin("two".to_owned());
        let word = clerk.next_word().unwrap();
        assert_eq!((word.files.len(), word.through), (1, None));
        clerk.told(&word);
        assert_eq!(clerk.next_word(), None);
        clerk.failed(&bad, ErrorClass::VersionConflict, "taken");
        clerk.passed(4);
        let word = clerk.next_word().unwrap();
        assert_eq!((word.files.len(), word.through), (1, Some(4)));
        clerk.told(&word);
        assert_eq!(clerk.next_word(), None);
        let kept: Vec<_> = read_log(folder.path()).unwrap().collect();
        assert!(matches!(&kept[..], [Ok(Line::Receipt(_))]), "{kept:?}");
    }
}
