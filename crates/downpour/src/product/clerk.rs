//! What a receiver tells of the files of a site that come as products: a signed receipt for each that is on its disk, or
//! what went wrong.
//!
//! 1. The shelf asks what is to become of a file: it goes to its path, unless the receiver is a site, whose [`Desk`] says.
//! 2. The shelf gives each file that it has placed; whoever ships takes the next [`Word`].
//! 3. For a word each file system is synced once, each file is read back and compared, its receipt signed and kept in the
//!    folder's own log, or by the desk. Only then it is told. What could not be synced goes aside, and comes again; what
//!    was there before stays, and is read from the disk the next time. The error is told once, and was about all that had
//!    been written: what the shelf has placed or staged meanwhile counts no more, and its attempt ends. What reads wrong goes
//!    aside, too.
//! 4. What was not told stays, also when the session is lost and another one comes.
//! 5. Of what comes while it leaves it tells nothing: to its sender it was away, and gets that when it is back.

use super::file::SiteFile;
use crate::dispatch::set_aside;
use crate::object::{Digest, explain, open_in};
use crate::receipt::{
    InPlace, ReceiptLog, SignedFileReceipt, WrongContent, forget_beneath, sync_beneath,
};
use downpour_catalog::{ErrorClass, FileKey};
use downpour_transport::identity::Identity;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
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

/// Why a file is not taken.
pub type Failure = (ErrorClass, String);

/// What a site does about files of other sites that come as products. Its functions may block.
pub trait Desk: Send + Sync {
    /// A name for the place below `.downpour` where bytes are kept until they are verified.
    fn lane(&self) -> &str;

    /// What is to become of a file, before anything of it is kept.
    fn look(&self, file: &SiteFile) -> Verdict;

    /// Records what was signed for; for each that was not, why.
    fn keep(&self, files: &[InPlace]) -> Result<Vec<Option<Failure>>, Failure>;
}

/// What a site says to a file.
pub enum Verdict {
    /// It goes to this path below the folder; what is given with it is kept until it is there.
    Take(String, Box<dyn Send>),
    /// It is here: the proof.
    Have(Box<SignedFileReceipt>),
    /// No.
    Refuse(Failure),
    /// It leaves: of this one and all that come after it nothing is told, so they wait there until it is back.
    Leave,
}

/// What is to become of a product that a clerk sees to.
pub(super) enum Fate {
    /// It goes to its path.
    Taken(SiteFile, Option<Box<dyn Send>>),
    /// It is here.
    Here(Box<SignedFileReceipt>),
    Refused(SiteFile, Failure),
    /// It comes while the receiver leaves.
    Left,
    /// It is no file of a site, and nothing else is taken.
    Stray,
}

impl Fate {
    pub(super) const fn keeps_bytes(&self) -> bool {
        matches!(self, Self::Taken(..))
    }
}

/// See the module's text.
pub struct Clerk {
    folder: PathBuf,
    identity: Arc<Identity>,
    desk: Option<Arc<dyn Desk>>,
    state: Mutex<State>,
    /// Held while a word is made, so that they are made one after another.
    making: Mutex<()>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    session: String,
    /// The folder, opened before anything was written: a sync tells only of errors since then. None while nothing is: what
    /// it is on can be unmounted then.
    before: Option<Arc<OwnedFd>>,
    /// An attempt writes there.
    is_open: bool,
    /// A sync has failed in this attempt: what it was begun with may not be on the disk.
    unsynced: Option<String>,
    /// Placed, and not synced yet.
    placed: Vec<InItsPlace>,
    ready: VecDeque<Told>,
    leaves: bool,
    through: Option<u64>,
    told_through: Option<u64>,
}

/// A file, its digest, and whether it was put there now: else it was there before.
type InItsPlace = (SiteFile, (Digest, bool));

impl State {
    /// Where nothing is written, nor left to be synced, the folder need not be open.
    fn let_go(&mut self) {
        if !self.is_open && self.placed.is_empty() {
            self.before = None;
        }
    }
}

impl Clerk {
    /// Of one receiving folder; a site has a desk.
    pub fn new(folder: PathBuf, identity: Arc<Identity>, desk: Option<Arc<dyn Desk>>) -> Self {
        let (state, making, changed) = (Mutex::default(), Mutex::default(), Notify::new());
        Self { folder, identity, desk, state, making, changed }
    }

    /// A site's, if it is one.
    pub fn desk(&self) -> Option<&dyn Desk> {
        self.desk.as_deref()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session is joined. Of another one the products have numbers of their own, and what failed in the last one comes
    /// again; of the same one nothing does, and what it has not heard is still to be told.
    pub fn begin(&self, session: String) {
        let mut state = self.lock();
        state.told_through = None;
        if state.session != session {
            (state.session, state.through) = (session, None);
            state.ready.retain(|told| matches!(told, Told::Placed { .. }));
        }
    }

    /// The folder is open, and nothing of this attempt is written yet, nor left of the one before but what has its place.
    pub(super) fn opened(&self, folder: &OwnedFd) -> Result<(), Errno> {
        // Whoever shared the shelf's would be told of no error that the shelf was told of.
        let own = open_in(folder, b".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut state = self.lock();
        (state.unsynced, state.is_open) = (None, true);
        // What waits to be synced came before.
        if state.placed.is_empty() || state.before.is_none() {
            state.before = Some(Arc::new(own));
        }
        Ok(())
    }

    /// The attempt writes nothing more.
    pub(super) fn closed(&self) {
        let mut state = self.lock();
        state.is_open = false;
        state.let_go();
    }

    /// Whether all that is in its place was told.
    pub fn has_told_all(&self) -> bool {
        // What a word is made of is neither here nor there.
        let making = self.making.try_lock();
        let state = self.lock();
        making.is_ok() && state.placed.is_empty() && state.ready.is_empty()
    }

    /// Waits until there is something new.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What is to become of a product with these metadata and of this size; `None`: it is a product as any other.
    pub(super) fn fate(&self, meta: &str, size: u64) -> Option<Fate> {
        let file = SiteFile::of_meta(meta);
        if let Some(file) = file.as_ref().filter(|file| file.size != size) {
            let what = format!("{size} bytes come, and not {} as agreed on", file.size);
            return Some(Fate::Refused(file.clone(), (ErrorClass::FileChanged, what)));
        }
        let Some(desk) = &self.desk else { return file.map(|file| Fate::Taken(file, None)) };
        let Some(mut file) = file else { return Some(Fate::Stray) };
        Some(match desk.look(&file) {
            Verdict::Take(path, room) => {
                file.path = path;
                Fate::Taken(file, Some(room))
            }
            Verdict::Have(receipt) => Fate::Here(receipt),
            Verdict::Refuse(why) => Fate::Refused(file, why),
            Verdict::Leave => {
                self.lock().leaves = true;
                Fate::Left
            }
        })
    }

    /// A file is in its place. An error: it counts no more, as it was begun before a sync failed, and so it is with all that
    /// this attempt has staged.
    pub(crate) fn placed(&self, file: SiteFile, placed: (Digest, bool)) -> Result<(), String> {
        let mut state = self.lock();
        let Some(why) = state.unsynced.clone() else {
            state.placed.push((file, placed));
            return Ok(());
        };
        drop(state);
        self.take_back(&(file, placed));
        Err(why)
    }

    pub(super) fn here(&self, receipt: Box<SignedFileReceipt>) {
        self.lock().ready.push_back(Told::Placed { receipt });
    }

    pub(super) fn failed(&self, file: &SiteFile, why: &Failure) {
        self.lock().ready.push_back(failed(file.key(), why));
    }

    /// All products up to this one are done with.
    pub(super) fn passed(&self, number: u64) {
        let mut state = self.lock();
        if !state.leaves {
            state.through = Some(number);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// What is to be told next; `None`: nothing new. The same again until it was [`told`](Self::told). Blocks.
    pub fn next_word(&self) -> Option<Word> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let (placed, through, session, before) = {
            let mut state = self.lock();
            let placed = std::mem::take(&mut state.placed);
            (placed, state.through, state.session.clone(), state.before.clone())
        };
        let mut signed = self.sign(placed, (&session, before.as_deref()));
        let mut state = self.lock();
        state.let_go();
        if state.session != session {
            // It is over: what failed comes again in the one that has begun.
            signed.retain(|told| matches!(told, Told::Placed { .. }));
        }
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
    fn sign(
        &self,
        placed: Vec<InItsPlace>,
        (session, before): (&str, Option<&OwnedFd>),
    ) -> Vec<Told> {
        if placed.is_empty() {
            return Vec::new();
        }
        let all_failed =
            |why: Failure| placed.iter().map(|(file, _)| failed(file.key(), &why)).collect();
        let unwritten = |what: String| (ErrorClass::DestinationWriteFailed, what);
        let paths = placed.iter().map(|(file, _)| &*file.path);
        let unsynced = |error| self.unsynced(&placed, error);
        if let Err(error) = sync_beneath(&self.folder, before, paths, unsynced) {
            return all_failed(unwritten(error.to_string()));
        }
        let key = self.identity.public_key();
        let (mut told, mut in_place) = (Vec::with_capacity(placed.len()), Vec::new());
        for (file, (digest, put)) in &placed {
            let receipt = file.receipt(*digest, session, key);
            let others = file.others();
            let seen = receipt.check_digests(&self.folder, &others);
            match (seen, receipt.sign(&self.identity)) {
                (Ok(()), Ok(signed)) => in_place.push(InPlace { signed, others }),
                (Err(wrong), _) => told.push(self.not_read_back((file, *put), &wrong)),
                (_, Err(error)) => {
                    told.push(failed(file.key(), &(ErrorClass::NameRefused, error.to_string())));
                }
            }
        }
        let kept = match &self.desk {
            Some(desk) => desk.keep(&in_place),
            None => ReceiptLog::open(&self.folder)
                .and_then(|mut log| log.append(in_place.iter().map(|file| &file.signed)))
                .map(|()| vec![None; in_place.len()])
                .map_err(|error| unwritten(error.to_string())),
        };
        let kept = match kept {
            Ok(kept) => kept,
            Err(why) => return all_failed(why),
        };
        told.extend(in_place.into_iter().zip(kept).map(|(file, refused)| match refused {
            Some(why) => failed(file.signed.receipt.key(), &why),
            None => Told::Placed { receipt: Box::new(file.signed) },
        }));
        told
    }

    /// What lies there instead of a file goes aside, so that it finds its place free when it comes again. What has only another
    /// digest of another kind, and was there before, may be another file that is right.
    fn not_read_back(&self, (file, put): (&SiteFile, bool), wrong: &WrongContent) -> Told {
        let class = wrong.class();
        if class == ErrorClass::FalseSuccess || (class == ErrorClass::DigestDiffers && put) {
            set_aside(&self.folder, &file.path, &file.key().to_string());
        }
        failed(file.key(), &(class, format!("read back: {wrong}")))
    }

    /// The files of a word could not be synced.
    pub(super) fn unsynced(&self, files: &[InItsPlace], error: Errno) {
        let why = format!("what has come may not be on the disk: {}", explain(error));
        let mut state = self.lock();
        let since = std::mem::take(&mut state.placed);
        let failure = (ErrorClass::DestinationWriteFailed, why.clone());
        state.ready.extend(since.iter().map(|(file, _)| failed(file.key(), &failure)));
        state.unsynced = Some(why);
        drop(state);
        files.iter().chain(&since).for_each(|file| self.take_back(file));
    }

    /// Of what could not be synced.
    fn take_back(&self, (file, (_, put)): &InItsPlace) {
        match put {
            true => drop(set_aside(&self.folder, &file.path, &file.key().to_string())),
            false => forget_beneath(&self.folder, &file.path),
        }
    }
}

fn failed(key: FileKey, (class, what): &Failure) -> Told {
    let what = what.chars().take(WHAT_MAX).collect();
    Told::Failed { key: key.to_string(), class: class.name().to_owned(), what }
}

#[cfg(test)]
mod tests {
    use super::super::folder::Folder;
    use super::{Clerk, Desk, Failure, Fate, SiteFile, Told, Verdict};
    use crate::object::Digest;
    use crate::receipt::{InPlace, Line, read_log};
    use downpour_catalog::ErrorClass;
    use downpour_transport::identity::Identity;
    use rustix::fs::{Mode, OFlags};
    use rustix::io::Errno;
    use std::os::unix::fs::MetadataExt as _;
    use std::sync::{Arc, OnceLock, Weak};

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
            digests: Vec::new(),
            path: name.to_owned(),
        };
        (file, Digest(*hash.as_bytes()))
    }

    #[test]
    fn a_receipt_is_for_what_lies_there_and_is_told_until_it_was_heard() {
        let folder = tempfile::tempdir().unwrap();
        let clerk = Clerk::new(folder.path().to_owned(), Arc::new(Identity::generate()), None);
        clerk.begin("one".to_owned());
        assert_eq!(clerk.next_word(), None);
        let (good, good_digest) = file("good", b"content");
        let (bad, bad_digest) = file("bad", b"content");
        std::fs::write(folder.path().join("good"), b"content").unwrap();
        std::fs::write(folder.path().join("bad"), b"contort").unwrap();
        let (mut other, other_digest) = file("other", b"content");
        other.path = "good".to_owned();
        other.digests = vec!["md5:900150983cd24fb0d6963f7d28e17f72".to_owned()];
        clerk.placed(good, (good_digest, true)).unwrap();
        clerk.placed(bad.clone(), (bad_digest, true)).unwrap();
        clerk.placed(other.clone(), (other_digest, false)).unwrap();
        clerk.passed(1);
        let word = clerk.next_word().unwrap();
        let of = |told: &Told| match told {
            Told::Placed { receipt } => {
                assert!(receipt.verify().is_ok());
                receipt.receipt.name.clone()
            }
            Told::Failed { key, class, .. } => {
                assert!([&bad, &other].iter().any(|file| *key == file.key().to_string()));
                class.clone()
            }
        };
        let told: Vec<String> = word.files.iter().map(of).collect();
        let all = ["false-success", "digest-differs", "good"].map(str::to_owned).to_vec();
        assert_eq!((told, word.through), (all, Some(1)));
        assert_eq!(clerk.next_word(), Some(word.clone()), "nobody has heard it");
        // Another session: what failed comes again, the receipt is still to be told.
        clerk.begin("two".to_owned());
        let word = clerk.next_word().unwrap();
        assert_eq!((word.files.len(), word.through), (1, None));
        clerk.told(&word);
        assert_eq!(clerk.next_word(), None);
        clerk.failed(&bad, &(ErrorClass::VersionConflict, "taken".to_owned()));
        clerk.passed(4);
        let word = clerk.next_word().unwrap();
        assert_eq!((word.files.len(), word.through), (1, Some(4)));
        // The same again, by who had lost it: what failed does not come again.
        clerk.begin("two".to_owned());
        assert_eq!(clerk.next_word(), Some(word.clone()));
        clerk.told(&word);
        assert_eq!(clerk.next_word(), None);
        clerk.begin("two".to_owned());
        let again = clerk.next_word().unwrap();
        assert_eq!(
            (again.files.len(), again.through),
            (0, Some(4)),
            "to its sender it is a new receiver"
        );
        clerk.told(&again);
        assert_eq!(clerk.next_word(), None);
        let kept: Vec<_> = read_log(folder.path()).unwrap().collect();
        assert!(matches!(&kept[..], [Ok(Line::Receipt(_))]), "{kept:?}");
    }

    #[test]
    fn what_reads_wrong_goes_aside_and_finds_its_place_free_when_it_comes_again() {
        let folder = tempfile::tempdir().unwrap();
        let (at, opened) = (folder.path(), Folder::open(folder.path(), None, Arc::default()));
        let opened = opened.unwrap();
        let clerk = Clerk::new(at.to_owned(), Arc::new(Identity::generate()), None);
        clerk.begin("one".to_owned());
        let (good, digest) = file("good", b"good");
        let said = ["md5:900150983cd24fb0d6963f7d28e17f72".to_owned()];
        let differs = SiteFile { digests: said.to_vec(), ..good.clone() };
        let comes = |file: &SiteFile, damage: &[u8]| {
            let mut staged = None;
            opened.write(0, &mut staged, b"good").unwrap();
            let placed = opened.place_file(0, (file, digest.0), staged).unwrap();
            clerk.placed(file.clone(), placed).unwrap();
            if !damage.is_empty() {
                std::fs::write(at.join("good"), damage).unwrap();
            }
            let word = clerk.next_word().unwrap();
            clerk.told(&word);
            match word.files.into_iter().next() {
                Some(Told::Failed { class, .. }) => class,
                told => format!("{told:?}").split(' ').next().unwrap().to_owned(),
            }
        };
        assert_eq!(comes(&good, b"bad"), "false-success");
        assert_eq!(comes(&differs, b""), "digest-differs");
        assert_eq!(comes(&good, b""), "Some(Placed");
        // This one was there.
        assert_eq!(comes(&differs, b""), "digest-differs");
        assert_eq!(std::fs::read(at.join("good")).unwrap(), b"good");
    }

    #[test]
    fn what_lies_there_in_another_size_is_another_file_and_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let opened = Folder::open(folder.path(), None, Arc::default()).unwrap();
        // Who read it would be at it for long.
        let there = std::fs::File::create(folder.path().join("good")).unwrap();
        there.set_len(1 << 40).unwrap();
        let (good, digest) = file("good", b"good");
        let mut staged = None;
        opened.write(0, &mut staged, b"good").unwrap();
        let placed = opened.place_file(0, (&good, digest.0), staged);
        assert!(matches!(placed, Err((ErrorClass::VersionConflict, _))), "{placed:?}");
    }

    #[test]
    fn the_folder_is_open_while_something_is_written_or_to_be_synced_and_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let opened = Folder::open(folder.path(), None, Arc::default()).unwrap();
        let clerk = Clerk::new(folder.path().to_owned(), Arc::new(Identity::generate()), None);
        let is_open = || clerk.lock().before.is_some();
        clerk.opened(opened.out()).unwrap();
        clerk.passed(1);
        assert!(clerk.next_word().is_some() && is_open(), "more may come");
        std::fs::write(folder.path().join("good"), b"good").unwrap();
        let (good, digest) = file("good", b"good");
        clerk.placed(good, (digest, true)).unwrap();
        clerk.closed();
        assert!(is_open(), "it is to be synced");
        assert!(clerk.next_word().is_some() && !is_open());
        clerk.opened(opened.out()).unwrap();
        clerk.closed();
        assert!(!is_open());
    }

    #[test]
    fn of_a_file_that_is_longer_than_agreed_on_nothing_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (path, identity) = (folder.path().to_owned(), Arc::new(Identity::generate()));
        for desk in [None, Some(Arc::new(Site) as Arc<dyn Desk>)] {
            let clerk = Clerk::new(path.clone(), Arc::clone(&identity), desk);
            let meta = file("good", b"good").0.to_meta().unwrap();
            assert!(matches!(clerk.fate(&meta, 4), Some(Fate::Taken(..))));
            let longer = clerk.fate(&meta, 5).unwrap();
            assert!(!longer.keeps_bytes());
            assert!(matches!(longer, Fate::Refused(_, (ErrorClass::FileChanged, _))));
        }
    }

    #[test]
    fn what_could_not_be_synced_is_not_taken_for_what_comes_again_and_what_was_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (at, opened) = (folder.path(), Folder::open(folder.path(), None, Arc::default()));
        let opened = opened.unwrap();
        let clerk = Clerk::new(at.to_owned(), Arc::new(Identity::generate()), None);
        clerk.begin("one".to_owned());
        let inode = |path: &str| std::fs::metadata(at.join(path)).ok().map(|there| there.ino());
        std::fs::write(at.join("old"), "good").unwrap();
        let old = inode("old");
        // The system syncs nothing by such a one.
        let unsynced = rustix::fs::open(at, OFlags::PATH, Mode::empty()).unwrap();
        for (unsynced, is_synced) in [(Some(Arc::new(unsynced)), false), (None, true)] {
            clerk.opened(opened.out()).unwrap();
            if unsynced.is_some() {
                clerk.lock().before = unsynced;
            }
            let come = ["old", "good"].map(|name| {
                let (file, digest) = file(name, b"good");
                let mut staged = None;
                opened.write(0, &mut staged, b"good").unwrap();
                let come = inode(".downpour/product-0");
                let placed = opened.place_file(0, (&file, digest.0), staged).unwrap();
                clerk.placed(file, placed).unwrap();
                come
            });
            let word = clerk.next_word().unwrap();
            clerk.told(&word);
            assert_eq!((inode("old"), inode("good")), (old, come[1].filter(|_| is_synced)));
            match &word.files[..] {
                [Told::Failed { class, .. }, Told::Failed { .. }] if !is_synced => {
                    assert_eq!(*class, ErrorClass::DestinationWriteFailed.name());
                }
                [Told::Placed { .. }, Told::Placed { .. }] if is_synced => {}
                told => panic!("{told:?}"),
            }
        }
    }

    #[test]
    fn a_sync_that_fails_is_told_once_and_was_about_all_that_had_come() {
        let folder = tempfile::tempdir().unwrap();
        let (at, opened) = (folder.path(), Folder::open(folder.path(), None, Arc::default()));
        let opened = opened.unwrap();
        let clerk = Clerk::new(at.to_owned(), Arc::new(Identity::generate()), None);
        clerk.begin("one".to_owned());
        let stage = |number, name: &str| {
            let mut staged = None;
            opened.write(number, &mut staged, name.as_bytes()).unwrap();
            staged
        };
        let place = |number, name: &str, staged| {
            let (file, digest) = file(name, name.as_bytes());
            let placed = opened.place_file(number, (&file, digest.0), staged).unwrap();
            clerk.placed(file, placed)
        };
        let told = || {
            let word = clerk.next_word().unwrap();
            clerk.told(&word);
            word.files.iter().filter(|told| matches!(told, Told::Placed { .. })).count()
        };
        clerk.opened(opened.out()).unwrap();
        let staged = stage(2, "staged");
        place(1, "placed", stage(1, "placed")).unwrap();
        clerk.unsynced(&[], Errno::IO);
        // By now another sync would not fail.
        assert!(place(2, "staged", staged).is_err());
        assert_eq!((told(), clerk.next_word()), (0, None));
        let names = ["placed", "staged"];
        assert_eq!(names.map(|name| at.join(name).exists()), [false; 2]);
        // In the next attempt they come again.
        clerk.opened(opened.out()).unwrap();
        names.iter().for_each(|name| place(1, name, stage(1, name)).unwrap());
        assert_eq!(told(), 2);
    }

    #[test]
    fn an_error_that_the_shelf_is_told_of_is_told_to_the_clerk_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let opened = Folder::open(folder.path(), None, Arc::default()).unwrap();
        let clerk = Clerk::new(folder.path().to_owned(), Arc::new(Identity::generate()), None);
        clerk.opened(opened.out()).unwrap();
        // What is set of one is not set of the other: the system knows two.
        rustix::fs::fcntl_setfl(opened.out(), OFlags::NONBLOCK).unwrap();
        let before = clerk.lock().before.clone().unwrap();
        assert!(!rustix::fs::fcntl_getfl(before).unwrap().contains(OFlags::NONBLOCK));
    }

    #[test]
    fn of_what_comes_while_it_leaves_nothing_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let (identity, desk) = (Arc::new(Identity::generate()), Arc::new(Site));
        let clerk = Clerk::new(folder.path().to_owned(), identity, Some(desk));
        clerk.begin("one".to_owned());
        std::fs::write(folder.path().join("good"), b"good").unwrap();
        let (good, digest) = file("good", b"good");
        clerk.placed(good, (digest, true)).unwrap();
        clerk.passed(1);
        let meta = file("over", b"over").0.to_meta().unwrap();
        let comes = |number| {
            assert!(matches!(clerk.fate(&meta, 4), Some(Fate::Left)));
            clerk.passed(number);
        };
        comes(2);
        let word = clerk.next_word().unwrap();
        assert_eq!((word.files.len(), word.through), (1, Some(1)));
        comes(3);
        assert!(!clerk.has_told_all());
        clerk.told(&word);
        comes(4);
        assert!(clerk.has_told_all());
        assert_eq!(clerk.next_word(), None);
    }

    /// Takes all but what is called `no` or `over`, and records all but what is called `late`.
    struct Site;

    impl Desk for Site {
        fn lane(&self) -> &str {
            "lane"
        }

        fn look(&self, file: &SiteFile) -> Verdict {
            match file.name.as_str() {
                "no" => Verdict::Refuse((ErrorClass::DestinationFull, "full".to_owned())),
                "over" => Verdict::Leave,
                name => Verdict::Take(format!("in/{name}"), Box::new(())),
            }
        }

        fn keep(&self, files: &[InPlace]) -> Result<Vec<Option<Failure>>, Failure> {
            let late = (ErrorClass::VersionConflict, "late".to_owned());
            let answer = |f: &InPlace| (f.signed.receipt.name == "late").then(|| late.clone());
            Ok(files.iter().map(answer).collect())
        }
    }

    /// The same, and another session begins while it records.
    #[derive(Default)]
    struct Slow(OnceLock<Weak<Clerk>>);

    impl Desk for Slow {
        fn lane(&self) -> &str {
            Site.lane()
        }

        fn look(&self, file: &SiteFile) -> Verdict {
            Site.look(file)
        }

        fn keep(&self, files: &[InPlace]) -> Result<Vec<Option<Failure>>, Failure> {
            self.0.get().unwrap().upgrade().unwrap().begin("two".to_owned());
            Site.keep(files)
        }
    }

    #[test]
    fn what_fails_while_its_session_ends_is_not_told_in_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let (identity, desk) = (Arc::new(Identity::generate()), Arc::new(Slow::default()));
        let own = Some(Arc::clone(&desk) as Arc<dyn Desk>);
        let clerk = Arc::new(Clerk::new(folder.path().to_owned(), identity, own));
        desk.0.set(Arc::downgrade(&clerk)).unwrap();
        clerk.begin("one".to_owned());
        for name in ["good", "late"] {
            std::fs::write(folder.path().join(name), name).unwrap();
            let (file, digest) = file(name, name.as_bytes());
            clerk.placed(file, (digest, true)).unwrap();
        }
        clerk.next_word();
        let word = clerk.next_word().unwrap();
        assert!(matches!(&word.files[..], [Told::Placed { .. }]), "{word:?}");
    }

    #[test]
    fn a_site_says_where_a_file_goes_and_keeps_its_receipt_itself() {
        let folder = tempfile::tempdir().unwrap();
        let (identity, desk) = (Arc::new(Identity::generate()), Arc::new(Site));
        let clerk = Clerk::new(folder.path().to_owned(), identity, Some(desk));
        clerk.begin("one".to_owned());
        assert!(matches!(clerk.fate("NGRID", 2), Some(Fate::Stray)));
        let (no, _) = file("no", b"no");
        let refused = clerk.fate(&no.to_meta().unwrap(), 2);
        assert!(matches!(refused, Some(Fate::Refused(_, (ErrorClass::DestinationFull, _)))));
        std::fs::create_dir(folder.path().join("in")).unwrap();
        for name in ["good", "late"] {
            let (file, digest) = file(name, name.as_bytes());
            let Some(Fate::Taken(file, Some(_))) = clerk.fate(&file.to_meta().unwrap(), 4) else {
                panic!("{name} is not taken");
            };
            std::fs::write(folder.path().join(&file.path), name).unwrap();
            clerk.placed(file, (digest, true)).unwrap();
        }
        clerk.passed(1);
        let word = clerk.next_word().unwrap();
        let [Told::Placed { receipt }, Told::Failed { class, .. }] = &word.files[..] else {
            panic!("{word:?}");
        };
        assert_eq!(
            (receipt.receipt.path.as_str(), class.as_str()),
            ("in/good", "version-conflict")
        );
        assert!(read_log(folder.path()).is_err(), "the site has its own");
    }
}
