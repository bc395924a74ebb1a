//! Catalogs with planted differences, for tests that compare them: what both sites have, what one of them lacks, what is on its way.
//!
//! `DOWNPOUR_RECONCILE_FILES=1000000` makes them as large as a site's.

use downpour::object::Digest as Blake3;
use downpour::receipt::FileReceipt;
use downpour_catalog::{
    AdoptedFile, Applied, BeforeMigration, Catalog, CatalogUrl, Change, Claimed, Digest,
    ErrorClass, File, FileId, Move, NewFile, Next, Origin, OtherContent, Reader, Reason, Receipt,
    Replica, ReplicaState, RuleId, Same, SiteId, Time, Work,
};
use downpour_transport::identity::Identity;
use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

/// Files of one request.
const BATCH: usize = 4000;
/// How long those that are being sent stay so.
const LEASE_S: i64 = 86_400;

/// How many files both sites have.
pub(crate) fn files(default: usize) -> usize {
    let files = std::env::var("DOWNPOUR_RECONCILE_FILES");
    files.map_or(default, |text| text.parse().expect("a number of files"))
}

pub(crate) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}/{n}")).collect()
}

pub(crate) fn digest(content: &[u8]) -> Digest {
    Digest::blake3(Blake3::of(content).0)
}

/// What the site of origin says of a file that it took in itself.
pub(crate) fn origin(file: FileId) -> Option<Origin> {
    Some(Origin { version: 1, taken_in: file.time() })
}

/// A site's catalog.
pub(crate) struct Book {
    pub(crate) catalog: Catalog,
    /// Whose files are compared, and who has them.
    pub(crate) sender: SiteId,
    pub(crate) holder: SiteId,
    rule: RuleId,
    reader: RefCell<Reader>,
    /// Where the site's copies lie.
    folder: PathBuf,
}

impl Book {
    /// Of a site that gave its first numbers to `words`.
    pub(crate) fn open(
        url: &CatalogUrl,
        now: Time,
        words: &[&str],
        [sender, holder]: [&str; 2],
        folder: PathBuf,
    ) -> Self {
        let catalog = Catalog::open(url, "filler", now, &BeforeMigration::Refuse);
        let catalog = catalog.expect("a catalog");
        let site = |name: &str| catalog.site(name).expect("a site");
        // Numbers are given in order.
        let numbers: Vec<SiteId> =
            words.iter().chain(&[sender, holder]).map(|name| site(name)).collect();
        let [.., sender, holder] = numbers[..] else { unreachable!("two at least") };
        let rule = catalog.rule("raw").expect("a rule");
        let reader = RefCell::new(catalog.reader().expect("a reader"));
        Self { catalog, sender, holder, rule, reader, folder }
    }

    pub(crate) fn apply(&self, now: Time, changes: Vec<Change>) -> Vec<Applied> {
        let answers = changes.chunks(BATCH).map(|slice| self.catalog.apply(now, slice));
        let answers = answers.flat_map(|answers| answers.expect("the database works"));
        answers.map(|answer| answer.expect("allowed")).collect()
    }

    pub(crate) fn one(&self, now: Time, change: Change) -> Applied {
        self.apply(now, vec![change])[0]
    }

    /// A file of `site` with copies at these sites.
    pub(crate) fn adopt(
        &self,
        site: SiteId,
        name: &str,
        content: &[u8],
        at: &[SiteId],
        origin: Option<Origin>,
    ) -> Change {
        Change::Adopt(AdoptedFile {
            site,
            name: name.to_owned(),
            size: content.len() as u64,
            rule: self.rule,
            digest: digest(content),
            others: Vec::new(),
            replicas: at.iter().map(|site| (*site, self.path(name))).collect(),
            other_content: OtherContent::Refuse,
            origin,
            receipt: None,
        })
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    /// A copy on this site's disk.
    pub(crate) fn put(&self, name: &str, content: &[u8]) {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("room");
        fs::write(path, content).expect("room");
    }

    pub(crate) fn replica(&self, now: Time, files: &[File], at: SiteId, state: ReplicaState) {
        let change = |file: &File| {
            let path = self.path(&file.name);
            Change::Replica(Replica { file: file.id, site: at, path, state })
        };
        self.apply(now, files.iter().map(change).collect());
    }

    pub(crate) fn known(&self, site: SiteId, name: &str) -> File {
        let mut reader = self.reader.borrow_mut();
        reader.versions(site, name).expect("the database works").remove(0)
    }

    /// Files that are being sent, by a daemon that is still at it.
    pub(crate) fn sending(&self, now: Time, names: &[String]) -> Vec<Claimed> {
        let new = |name: &String| {
            Change::TakeIn(NewFile {
                site: self.sender,
                name: name.clone(),
                size: 7,
                stamp: 1,
                rule: self.rule,
                rank: 0,
                transfer: None,
                other_content: OtherContent::Refuse,
                same: Same::Any,
            })
        };
        let mut files = self.apply(now, names.iter().map(new).collect());
        for step in 0..3 {
            let moves = files.iter().zip(names).map(|(file, name)| {
                let next = match step {
                    0 => Next::Settled { size: 7 },
                    1 => Next::Hashed(vec![digest(name.as_bytes())]),
                    _ => Next::Queued,
                };
                Change::Move(Move { file: file.file, at: file.revision, fence: None, next })
            });
            files = self.apply(now, moves.collect());
        }
        let (work, until) = (Work::QueuedOf(self.rule), now.plus_s(LEASE_S));
        let claim = self.catalog.claim(now, work, names.len(), until);
        let claimed = claim.wait().expect("the database works");
        assert_eq!(claimed.len(), names.len());
        claimed
    }

    /// The holder's receipt for a file.
    pub(crate) fn sign(
        &self,
        now: Time,
        file: FileId,
        sender: &str,
        name: &str,
        content: &[u8],
        identity: &Identity,
    ) {
        let known = self.known(self.sender, name);
        let receipt = FileReceipt {
            site: sender.to_owned(),
            name: name.to_owned(),
            version: known.version,
            taken_in: known.taken_in,
            rule: "raw".into(),
            size: content.len() as u64,
            blake3: Blake3::of(content),
            path: name.to_owned(),
            session: "s".into(),
            at: now,
            receiver: identity.public_key(),
        };
        let (signed, at) = (receipt.sign(identity).expect("it can be signed").to_bytes(), now);
        let receiver = identity.public_key().as_bytes().to_vec();
        self.one(now, Change::Receipt(Receipt { file, receiver, at, signed }));
    }
}

/// Files that both have alike, the sender's at the holder, so many taken in at each of these times.
pub(crate) fn fill(near: &Book, far: &Book, names: &[String], times: &[Time]) {
    let slices = names.len().div_ceil(BATCH);
    let mut before = None;
    for (slice, names) in names.chunks(BATCH).enumerate() {
        let now = times[((slice + 1) * times.len() / slices).max(1) - 1];
        let at = [near.sender, near.holder];
        let adopt = |name: &String| near.adopt(near.sender, name, name.as_bytes(), &at, None);
        let here = near.catalog.submit(now, names.iter().map(adopt).collect());
        // The far one writes what the near one wrote before.
        let here = here.wait().expect("the database works");
        finish(before.take());
        let adopt = |(applied, name): (downpour_catalog::Answer, &String)| {
            let origin = origin(applied.expect("allowed").file);
            far.adopt(far.sender, name, name.as_bytes(), &[far.holder], origin)
        };
        let there = here.into_iter().zip(names).map(adopt).collect();
        before = Some(far.catalog.submit(now, there));
    }
    finish(before);
}

fn finish(answers: Option<downpour_catalog::Pending<Vec<downpour_catalog::Answer>>>) {
    let answers = answers.map(|answers| answers.wait().expect("the database works"));
    assert!(answers.into_iter().flatten().all(|answer| answer.is_ok()));
}

/// The sender has these on their way; the holder has every other one already.
pub(crate) fn plant_moving(near: &Book, far: &Book, now: Time, names: &[String]) {
    let arrived = near.sending(now, names).into_iter().zip(names).step_by(2);
    let adopt = |(claimed, name): (Claimed, &String)| {
        far.adopt(far.sender, name, name.as_bytes(), &[far.holder], origin(claimed.file))
    };
    far.apply(now, arrived.map(adopt).collect());
}

/// Files that wait since `then`, and for long.
pub(crate) fn plant_stuck(near: &Book, then: Time, next_try: Time, names: &[String]) {
    for claimed in near.sending(then, names) {
        let (reason, error) = (Reason::BackOff, Some(ErrorClass::DestinationFull));
        let next = Next::Waiting { reason, error, next_try, bytes: 0 };
        let (file, at, fence) = (claimed.file, claimed.revision, Some(claimed.fence));
        near.one(then, Change::Move(Move { file, at, fence, next }));
    }
}

/// A file of which the two have recorded other content, and what lies on their disks.
pub(crate) fn plant_other(near: &Book, far: &Book, now: Time, name: &str, lies: [&str; 2]) {
    let at = [near.sender, near.holder];
    let here = near.one(now, near.adopt(near.sender, name, b"near", &at, None));
    near.put(name, lies[0].as_bytes());
    let there = far.adopt(far.sender, name, b"far", &[far.holder], origin(here.file));
    far.one(now, there);
    far.put(name, lies[1].as_bytes());
}
