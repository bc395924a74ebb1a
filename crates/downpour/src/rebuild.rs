//! A lost catalog made again from what the receiving folders keep of themselves: their receipts.
//!
//! Each receipt says of which site, name, version, rule and day its file is; that is all that the catalog knew of an arrived file. It can
//! be done again and onto a catalog that has part of it: nothing is there twice, and no other content takes a file's place. Of a copy
//! whose receipt the catalog has, it knows what came later (lost, removed, moved): that stands, unless the disk itself says otherwise.
//!
//! Not here: attempts and events of before, which a mirror has.

use crate::output::plain;
use crate::receipt::{FileReceipt, Line, LogError, SignedFileReceipt, WrongContent, read_log};
use crate::reconcile::scrub::state_by;
use downpour_catalog::{
    AdoptedFile, Catalog, Change, Error, File, FileId, Reader, Receipt, Replica, ReplicaState,
    RuleId, SiteId, Time,
};
use downpour_transport::identity::PublicKey;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Receipts that share a commit.
const BATCH: usize = 2000;
/// Problems that are told one by one.
const TOLD_MAX: usize = 100;

/// What was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Receipts that were read and are right.
    pub receipts: u64,
    /// Files that the catalog did not have.
    pub files: u64,
    /// Files that are not on the disk as the receipt says; with `verify` only.
    pub not_there: u64,
    /// Lines and receipts that were passed over.
    pub passed_over: u64,
    /// What was wrong with the first of them.
    pub told: Vec<String>,
}

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The site whose catalog it is.
    pub site: &'a str,
    /// The only keys whose receipts count; none: all.
    pub keys: &'a [PublicKey],
    /// Whether each file is read and compared.
    pub verify: bool,
}

/// Why it was not made.
#[derive(Debug)]
pub enum RebuildError {
    /// A folder's receipts cannot be read.
    Log(LogError),
    /// The catalog.
    Catalog(Error),
}

impl std::fmt::Display for RebuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Log(error) => write!(f, "{error}"),
            Self::Catalog(error) => write!(f, "the catalog: {error}"),
        }
    }
}

impl std::error::Error for RebuildError {}

impl From<LogError> for RebuildError {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

impl From<Error> for RebuildError {
    fn from(error: Error) -> Self {
        Self::Catalog(error)
    }
}

/// Takes the receipts of this folder in.
pub fn from_receipts(
    catalog: &Catalog,
    wish: Wish<'_>,
    folder: &Path,
    now: Time,
) -> Result<Rebuilt, RebuildError> {
    let mut work = Work {
        catalog,
        wish,
        folder,
        now,
        here: catalog.site(wish.site)?,
        words: HashMap::new(),
        not_there: BTreeMap::new(),
        done: Rebuilt::default(),
    };
    let mut batch = Vec::new();
    for line in read_log(folder)? {
        match line? {
            Line::Receipt(signed) => {
                let key = signed.receipt.receiver;
                if wish.keys.is_empty() || wish.keys.contains(&key) {
                    batch.push(*signed);
                } else {
                    work.pass_over(format!("{}: signed by {key}", signed.receipt.name));
                }
            }
            Line::Torn { number } => work.pass_over(format!("line {number} is torn")),
            Line::Bad { number, why } => work.pass_over(format!("line {number}: {why}")),
        }
        if batch.len() == BATCH {
            work.take(&std::mem::take(&mut batch))?;
        }
    }
    work.take(&batch)?;
    Ok(work.end())
}

/// What the disk says of copies, where that is not what the catalog says, or will say.
type News = BTreeMap<FileId, Replica>;

struct Work<'a> {
    catalog: &'a Catalog,
    wish: Wish<'a>,
    folder: &'a Path,
    now: Time,
    here: SiteId,
    words: HashMap<(String, String), (SiteId, RuleId)>,
    /// Files that are not as their latest receipt so far says, and what is wrong, while not too many are told of.
    not_there: BTreeMap<FileId, Option<String>>,
    done: Rebuilt,
}

impl Work<'_> {
    fn pass_over(&mut self, what: String) {
        self.done.passed_over += 1;
        self.tell(what);
    }

    /// All receipts were taken.
    fn end(mut self) -> Rebuilt {
        self.done.not_there = self.not_there.len() as u64;
        for what in std::mem::take(&mut self.not_there).into_values().flatten() {
            self.tell(what);
        }
        self.done
    }

    fn tell(&mut self, what: String) {
        if self.done.told.len() < TOLD_MAX {
            // Whoever sent a file gave it its name.
            self.done.told.push(format!("{}: {}", self.folder.display(), plain(&what)));
        }
    }

    fn take(&mut self, receipts: &[SignedFileReceipt]) -> Result<(), Error> {
        let mut adopted = Vec::with_capacity(receipts.len());
        for signed in receipts {
            adopted.push(self.adopted(signed)?);
        }
        let known = self.known(receipts, &adopted)?;
        let (mut new, mut files) = (Vec::new(), Vec::new());
        let (mut records, mut refused) = (News::new(), Vec::new());
        for ((signed, adopted), known) in receipts.iter().zip(adopted).zip(known) {
            match known {
                Some((file, copy)) if file.digest.as_ref() == Some(&adopted.digest) => {
                    self.record(signed, file.id, Some(&copy), &mut records);
                }
                Some((file, _)) => {
                    let (name, version) = (file.name, file.version);
                    self.pass_over(format!("{name} version {version}: other content came later"));
                }
                None => {
                    new.push(signed);
                    files.push(Change::Adopt(adopted));
                }
            }
        }
        for (signed, answer) in new.into_iter().zip(self.catalog.apply(self.now, &files)?) {
            match answer {
                Ok(applied) => {
                    self.done.files += u64::from(!applied.repeated);
                    self.record(signed, applied.file, None, &mut records);
                }
                Err(why) => refused.push((signed, why)),
            }
        }
        self.note(records)?;
        for (signed, why) in refused {
            let said = &signed.receipt;
            let mut records = News::new();
            match self.replaced(signed)? {
                Some(file) => self.record(signed, file, None, &mut records),
                None => self.pass_over(format!("{} version {}: {why}", said.name, said.version)),
            }
            self.note(records)?;
        }
        Ok(())
    }

    fn note(&self, records: News) -> Result<(), Error> {
        let records: Vec<_> = records.into_values().map(Change::Replica).collect();
        self.catalog.apply(self.now, &records).map(drop)
    }

    /// For each receipt that the catalog has, or has a later one of: the file and its copy here.
    fn known(
        &self,
        receipts: &[SignedFileReceipt],
        adopted: &[AdoptedFile],
    ) -> Result<Vec<Option<(File, Replica)>>, Error> {
        let mut reader = self.reader()?;
        let called = receipts.iter().zip(adopted);
        let called = called.map(|(signed, file)| (file.site, &*file.name, signed.receipt.version));
        let files = reader.files_called(&called.collect::<Vec<_>>())?;
        let ids: Vec<FileId> = files.iter().flatten().map(|file| file.id).collect();
        let received = reader.receipts_of(&ids)?.into_iter();
        let received: HashMap<_, Time> =
            received.map(|receipt| ((receipt.file, receipt.receiver), receipt.at)).collect();
        let here = reader.replicas_of(&ids)?.into_iter().filter(|copy| copy.site == self.here);
        let here: HashMap<FileId, Replica> = here.map(|copy| (copy.file, copy)).collect();
        let known = receipts.iter().zip(files).map(|(signed, file)| {
            let (said, file) = (&signed.receipt, file?);
            let at = *received.get(&(file.id, said.receiver.as_bytes().to_vec()))?;
            let copy = here.get(&file.id).filter(|_| at >= said.at)?;
            Some((file, copy.clone()))
        });
        Ok(known.collect())
    }

    /// What a receipt says of a file that the catalog has, and the disk, if it is to be read.
    fn record(
        &mut self,
        signed: &SignedFileReceipt,
        file: FileId,
        known: Option<&Replica>,
        records: &mut News,
    ) {
        let said = &signed.receipt;
        self.done.receipts += 1;
        if !self.wish.verify {
            return;
        }
        let (site, path) = (self.here, self.path(&said.path));
        let Some(state) = self.on_disk(file, said) else { return };
        let present = ReplicaState::Present;
        let is_said = known.is_none_or(|copy| copy.state == present && copy.path == path);
        // What is not here is no news of a copy that the catalog has no longer, or elsewhere.
        if is_said != (state == present) {
            records.insert(file, Replica { file, site, path, state });
        } else if is_said {
            // The news of an earlier receipt would stand instead.
            records.remove(&file);
        }
    }

    /// A copy that was damaged was replaced, and signed for again: the later receipt counts.
    fn replaced(&mut self, signed: &SignedFileReceipt) -> Result<Option<FileId>, Error> {
        let (said, adopted) = (&signed.receipt, self.adopted(signed)?);
        let mut reader = self.reader()?;
        let known = reader.versions(adopted.site, &said.name)?;
        let Some(known) = known.into_iter().find(|file| file.version == said.version) else {
            return Ok(None);
        };
        let before = |receipt: &Receipt| {
            receipt.receiver == said.receiver.as_bytes() && receipt.at < said.at
        };
        if !reader.receipts(known.id)?.iter().any(before) {
            return Ok(None);
        }
        let (file, site, path) = (known.id, self.here, self.path(&said.path));
        let gone = Replica { file, site, path, state: ReplicaState::Lost };
        let changes = [Change::Replica(gone), Change::Adopt(adopted)];
        let taken = self.catalog.apply(self.now, &changes)?.iter().all(Result::is_ok);
        Ok(taken.then_some(file))
    }

    fn adopted(&mut self, signed: &SignedFileReceipt) -> Result<AdoptedFile, Error> {
        let said = &signed.receipt;
        let key = (said.site.clone(), said.rule.clone());
        let (site, rule) = match self.words.get(&key) {
            Some(known) => *known,
            None => {
                let ids = (self.catalog.site(&said.site)?, self.catalog.rule(&said.rule)?);
                *self.words.entry(key).or_insert(ids)
            }
        };
        let place = (self.here, self.path(&said.path));
        Ok(signed.adopted((site, rule), place, said.at))
    }

    /// As the receiver recorded it.
    fn path(&self, said: &str) -> String {
        self.folder.join(said).to_string_lossy().into_owned()
    }

    /// How it lies on the disk; `None` where this machine lacks something to read it: what is recorded stands.
    fn on_disk(&mut self, file: FileId, said: &FileReceipt) -> Option<ReplicaState> {
        let Err(wrong) = said.check_content(self.folder) else {
            // An earlier receipt may have been for what was there before.
            self.not_there.remove(&file);
            return Some(ReplicaState::Present);
        };
        let is_told = self.not_there.len() < TOLD_MAX;
        let what = is_told.then(|| format!("{}: {wrong}", said.path));
        self.not_there.insert(file, what);
        match wrong {
            WrongContent::Unreadable(error) => state_by(&error),
            WrongContent::Size { .. } | WrongContent::Digest { .. } | WrongContent::Other(_) => {
                Some(ReplicaState::Corrupt)
            }
        }
    }

    fn reader(&self) -> Result<Reader, Error> {
        self.catalog.reader().map_err(|error| Error::Unreachable(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Wish, from_receipts};
    use crate::receipt::tests::receipt;
    use crate::receipt::{RECEIPT_LOG, ReceiptLog, SignedFileReceipt};
    use downpour_catalog::{
        BeforeMigration, Catalog, CatalogUrl, Change, Digest, File, Query, Replica, ReplicaState,
        SetDigest, Time,
    };
    use downpour_transport::identity::Identity;
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    const NOW: Time = Time(1_795_400_000_000_000);

    fn catalog(folder: &Path, name: &str) -> Catalog {
        let url = CatalogUrl::Sqlite(folder.join(name));
        Catalog::open(&url, "daemon", NOW, &BeforeMigration::Refuse).unwrap()
    }

    /// As a receiving daemon records it.
    fn arrive(catalog: &Catalog, folder: &Path, signed: &SignedFileReceipt) {
        let said = &signed.receipt;
        let path = folder.join(&said.path).to_string_lossy().into_owned();
        let words = (catalog.site(&said.site).unwrap(), catalog.rule(&said.rule).unwrap());
        let place = (catalog.site("geneva").unwrap(), path);
        let adopted = Change::Adopt(signed.adopted(words, place, said.at));
        catalog.apply(NOW, &[adopted]).unwrap()[0].clone().unwrap();
    }

    type Row =
        (String, String, i64, u64, String, Option<Digest>, Time, Vec<(String, bool)>, Vec<Vec<u8>>);

    /// All that a catalog says of its files, in words rather than its own numbers.
    fn all(catalog: &Catalog) -> (Vec<Row>, Vec<(i64, SetDigest)>) {
        let mut reader = catalog.reader().unwrap();
        let (sites, rules) = (reader.sites().unwrap(), reader.rules().unwrap());
        let site = |id| sites.iter().find(|(site, _)| *site == id).unwrap().1.clone();
        let rule = |id| rules.iter().find(|(rule, _)| *rule == id).unwrap().1.clone();
        let files = reader.search(&Query::default(), None, 1000).unwrap().files;
        let mut rows: Vec<Row> = Vec::new();
        for File { id, site: origin, name, version, size, rule: of, digest, taken_in, .. } in files
        {
            let replicas = reader.replicas(id).unwrap().into_iter();
            let replicas = replicas.map(|r| (r.path, r.state == ReplicaState::Present)).collect();
            let receipts = reader.receipts(id).unwrap().into_iter().map(|r| r.signed).collect();
            let (origin, of) = (site(origin), rule(of));
            rows.push((origin, name, version, size, of, digest, taken_in, replicas, receipts));
        }
        rows.sort_by(|a, b| (&a.0, &a.1, a.2).cmp(&(&b.0, &b.1, b.2)));
        let [geneva, berlin] = ["geneva", "berlin"].map(|name| catalog.site(name).unwrap());
        let days = reader.set_days(geneva, berlin).unwrap();
        (rows, days.into_iter().map(|(day, digest)| (day.day, digest)).collect())
    }

    #[test]
    fn a_catalog_made_from_receipts_is_the_one_that_was_lost() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        let identity = Identity::generate();
        let (lost, mut log) = (catalog(folder.path(), "lost.db"), ReceiptLog::open(&data).unwrap());
        for n in 0..50_i64 {
            let (name, content) = (format!("run-{}", n / 2), n.to_string());
            let mut said = receipt(&name, content.as_bytes());
            (said.version, said.path) = (n % 2 + 1, format!("{name}.{}", n % 2 + 1));
            said.taken_in = Time(said.taken_in.0 + n * 20_000_000_000);
            fs::write(data.join(&said.path), content).unwrap();
            let signed = said.sign(&identity).unwrap();
            log.append(std::slice::from_ref(&signed)).unwrap();
            arrive(&lost, &data, &signed);
        }
        let made = catalog(folder.path(), "made.db");
        // Numbers of sites and rules are others.
        made.site("somewhere").unwrap();
        let wish = Wish { site: "geneva", keys: &[identity.public_key()], verify: true };
        let done = from_receipts(&made, wish, &data, NOW).unwrap();
        assert_eq!((done.receipts, done.files, done.not_there), (50, 50, 0), "{done:?}");
        assert_eq!(all(&made), all(&lost));
        // Again: nothing is there twice.
        let again = from_receipts(&made, wish, &data, NOW).unwrap();
        assert_eq!((again.receipts, again.files), (50, 0));
        assert_eq!(all(&made), all(&lost));
    }

    #[test]
    fn what_is_wrong_is_told_and_not_taken_for_present() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::generate();
        let sign = |name: &str| receipt(name, b"content").sign(&identity).unwrap();
        let stranger = receipt("\u{1b}stranger", b"content").sign(&Identity::generate()).unwrap();
        let mut log = ReceiptLog::open(folder.path()).unwrap();
        let own = ["whole", "absent", "changed", "folder"].map(sign);
        log.append(&[&own[..], &[stranger]].concat()).unwrap();
        let mut file =
            fs::OpenOptions::new().append(true).open(folder.path().join(RECEIPT_LOG)).unwrap();
        file.write_all(b"{\"receipt\":").unwrap();
        fs::write(folder.path().join("whole"), "content").unwrap();
        fs::write(folder.path().join("changed"), "contend").unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();
        let made = catalog(folder.path(), "made.db");
        let wish = Wish { site: "geneva", keys: &[identity.public_key()], verify: true };
        let done = from_receipts(&made, wish, folder.path(), NOW).unwrap();
        assert_eq!((done.files, done.not_there, done.passed_over), (4, 3, 2), "{done:?}");
        let stranger = done.told.iter().find(|what| what.contains("stranger")).unwrap();
        assert!(!stranger.contains('\u{1b}'), "{done:?}");
        let (rows, days) = all(&made);
        let present: Vec<bool> = rows.iter().map(|row| row.7[0].1).collect();
        assert_eq!(present, [false, false, false, true]);
        assert_eq!(days[0].1.files, 1);
        // As a scrub judges it: only what is not there is lost.
        let mut reader = made.reader().unwrap();
        let files = reader.search(&Query::default(), None, 9).unwrap().files;
        let state = |name: &str| {
            let file = files.iter().find(|file| file.name == name).unwrap();
            reader.replicas(file.id).unwrap()[0].state
        };
        let states = ["absent", "folder"].map(state);
        assert_eq!(states, [ReplicaState::Lost, ReplicaState::Corrupt]);
    }

    #[test]
    fn what_became_of_a_copy_after_its_receipt_stands() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::generate();
        let names = ["lost", "removed", "corrupt", "moved", "whole"];
        let sign = |name| receipt(name, b"content").sign(&identity).unwrap();
        ReceiptLog::open(folder.path()).unwrap().append(&names.map(sign)).unwrap();
        let made = catalog(folder.path(), "made.db");
        let take = |verify| {
            let wish = Wish { site: "geneva", keys: &[], verify };
            from_receipts(&made, wish, folder.path(), NOW).unwrap()
        };
        let copies = || -> Vec<(String, String, ReplicaState)> {
            let mut reader = made.reader().unwrap();
            let mut files = reader.search(&Query::default(), None, 10).unwrap().files;
            files.sort_by_key(|file| names.iter().position(|name| *name == file.name));
            let copy = |file: File| {
                let Replica { path, state, .. } = reader.replicas(file.id).unwrap().remove(0);
                (file.name, path, state)
            };
            files.into_iter().map(copy).collect()
        };
        assert_eq!(take(false).files, 5);
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let states = [
            (path("lost"), ReplicaState::Lost),
            (String::new(), ReplicaState::Removed),
            (path("corrupt"), ReplicaState::Corrupt),
            ("/elsewhere".to_owned(), ReplicaState::Present),
            (path("whole"), ReplicaState::Present),
        ];
        let mut expected = Vec::new();
        for (name, (path, state)) in names.into_iter().zip(states) {
            let origin = made.site(&receipt(name, b"content").site).unwrap();
            let file = made.reader().unwrap().versions(origin, name).unwrap()[0].id;
            let site = made.site("geneva").unwrap();
            let change = Change::Replica(Replica { file, site, path: path.clone(), state });
            made.apply(NOW, &[change]).unwrap()[0].clone().unwrap();
            expected.push((name.to_owned(), path, state));
        }
        assert_eq!((take(false).receipts, copies()), (5, expected.clone()));
        // The disk itself is later than both; what is not there was not looked for there.
        fs::write(folder.path().join("lost"), "content").unwrap();
        assert_eq!(take(true).not_there, 4);
        expected[0].2 = ReplicaState::Present;
        expected[4].2 = ReplicaState::Lost;
        assert_eq!(copies(), expected);
        // It came again after the catalog was saved.
        let mut again = receipt("corrupt", b"content");
        again.at = again.at.plus_s(60);
        let again = again.sign(&identity).unwrap();
        ReceiptLog::open(folder.path()).unwrap().append(&[again]).unwrap();
        assert_eq!(take(false).receipts, 6);
        expected[2].2 = ReplicaState::Present;
        assert_eq!(copies(), expected);
    }

    #[test]
    fn of_two_places_of_a_file_the_later_one_counts() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::generate();
        let [mut before, mut after] = [receipt("moved", b"content"), receipt("moved", b"content")];
        before.path = "old/moved".into();
        after.at = after.at.plus_s(60);
        let both = [before, after].map(|receipt| receipt.sign(&identity).unwrap());
        ReceiptLog::open(folder.path()).unwrap().append(&both).unwrap();
        let place = folder.path().join("moved");
        fs::write(&place, "content").unwrap();
        let [made, early] = ["made.db", "early.db"].map(|name| catalog(folder.path(), name));
        arrive(&early, folder.path(), &both[0]);
        let wish = Wish { site: "geneva", keys: &[], verify: true };
        // It has none of them, then both; the other has the earlier one.
        for (made, files) in [(&made, 1), (&made, 0), (&early, 0)] {
            let done = from_receipts(made, wish, folder.path(), NOW).unwrap();
            assert_eq!((done.files, done.not_there, done.told.len()), (files, 0, 0), "{done:?}");
            assert_eq!(all(made).0[0].7, [(place.to_string_lossy().into_owned(), true)]);
        }
    }

    #[test]
    fn of_two_receipts_for_a_file_the_later_one_counts() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::generate();
        let mut again = receipt("mended", b"as it is meant");
        again.at = again.at.plus_s(60);
        let [before, after] =
            [receipt("mended", b"damaged"), again].map(|receipt| receipt.sign(&identity).unwrap());
        let mut log = ReceiptLog::open(folder.path()).unwrap();
        log.append(&[before, after.clone()]).unwrap();
        fs::write(folder.path().join(&after.receipt.path), "as it is meant").unwrap();
        for verify in [false, true] {
            let made = catalog(folder.path(), &format!("made-{verify}.db"));
            let wish = Wish { site: "geneva", keys: &[], verify };
            for (files, passed_over) in [(1, 0), (0, 1)] {
                let done = from_receipts(&made, wish, folder.path(), NOW).unwrap();
                assert_eq!((done.files, done.passed_over), (files, passed_over), "{done:?}");
                assert_eq!((done.not_there, done.told.len() as u64), (0, passed_over), "{done:?}");
                let (rows, days) = all(&made);
                assert_eq!((rows.len(), days[0].1.files), (1, 1));
                assert_eq!(rows[0].5, Some(Digest::blake3(after.receipt.blake3.0)));
                assert_eq!(rows[0].8, [after.to_bytes()]);
            }
        }
    }
}
