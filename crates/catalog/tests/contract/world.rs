//! A catalog and what a story needs to speak with it briefly.

use downpour_catalog::{
    Answer, Applied, BeforeMigration, Catalog, CatalogUrl, Change, Claimed, Digest, File, FileId,
    Move, NewFile, Next, OtherContent, Reader, Reason, Receipt, Revision, RuleId, Same, SiteId,
    State, Time, Work,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// When stories begin.
pub(crate) const NOW: Time = Time(1_790_000_000_000_000);
/// How long their leases last.
pub(crate) const LEASE_S: i64 = 60;

pub(crate) struct World {
    pub(crate) url: CatalogUrl,
}

impl World {
    pub(crate) const fn at(url: CatalogUrl) -> Self {
        Self { url }
    }

    /// Opens the catalog as a daemon of this name.
    pub(crate) fn daemon(&self, name: &str) -> Daemon {
        let before = BeforeMigration::Refuse;
        let catalog = Catalog::open(&self.url, name, NOW, &before).expect("the catalog opens");
        let site = catalog.site("here").expect("a site");
        let rule = catalog.rule("all").expect("a rule");
        Daemon { catalog, site, rule }
    }

    /// Runs a statement behind the catalog's back.
    pub(crate) fn run_sql(&self, text: &str) {
        match &self.url {
            CatalogUrl::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path).expect("a database");
                connection.execute_batch(text).expect("a statement");
            }
            CatalogUrl::Postgres(url) | CatalogUrl::Mysql(url) => {
                crate::engines::run_sql(url, text).expect("a statement");
            }
        }
    }

    /// Waits until nobody writes who was killed: a server may still commit what it was sent.
    pub(crate) fn until_alone(&self) {
        match &self.url {
            CatalogUrl::Sqlite(_) => {}
            CatalogUrl::Postgres(url) | CatalogUrl::Mysql(url) => crate::engines::until_alone(url),
        }
    }

    pub(crate) fn reader(&self) -> Reader {
        Reader::open(&self.url).expect("the catalog opens for reading")
    }
}

/// Sets a flag when it goes, also by a panic: who waits for that does not wait for ever.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A catalog, open, with a site and a rule.
pub(crate) struct Daemon {
    pub(crate) catalog: Catalog,
    pub(crate) site: SiteId,
    pub(crate) rule: RuleId,
}

impl Daemon {
    /// A file of this name, as the spool would find it.
    pub(crate) fn new_file(&self, name: &str) -> NewFile {
        NewFile {
            site: self.site,
            name: name.to_owned(),
            size: 1000,
            stamp: 7,
            rule: self.rule,
            rank: 100,
            transfer: None,
            other_content: OtherContent::Refuse,
            same: Same::Any,
        }
    }

    pub(crate) fn change(&self, now: Time, change: Change) -> Answer {
        let mut answers = self.catalog.apply(now, &[change]).expect("the database works");
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    pub(crate) fn take_in(&self, name: &str) -> Applied {
        self.change(NOW, Change::TakeIn(self.new_file(name))).expect("a new name")
    }

    /// A step of a file that nobody holds.
    pub(crate) fn step(&self, file: FileId, at: Revision, next: Next) -> Answer {
        self.change(NOW, Change::Move(Move { file, at, fence: None, next }))
    }

    /// A step under a lease.
    pub(crate) fn step_held(&self, claimed: Claimed, at: Revision, next: Next) -> Answer {
        let (file, fence) = (claimed.file, Some(claimed.fence));
        self.change(NOW, Change::Move(Move { file, at, fence, next }))
    }

    /// A file that is in the queue.
    pub(crate) fn queued(&self, name: &str) -> Applied {
        let file = self.take_in(name);
        let mut at = file.revision;
        for next in [Next::Settled { size: 1000 }, Next::Hashed(vec![digest(name)]), Next::Queued] {
            at = self.step(file.file, at, next).expect("the way to the queue").revision;
        }
        Applied { revision: at, state: Some(State::Queued), ..file }
    }

    /// Many files in the queue, by few commits.
    pub(crate) fn queue_many(&self, count: usize) -> Vec<FileId> {
        let names: Vec<_> = (0..count).map(|n| format!("many/{n}")).collect();
        let new = names.iter().map(|name| Change::TakeIn(self.new_file(name))).collect();
        let answers = self.catalog.submit(NOW, new).wait().expect("the database works");
        let files: Vec<FileId> = answers.into_iter().map(|a| a.expect("a new name").file).collect();
        for at in 1..=3 {
            let step = |(file, name): (&FileId, &String)| {
                let next = match at {
                    1 => Next::Settled { size: 1000 },
                    2 => Next::Hashed(vec![digest(name)]),
                    _ => Next::Queued,
                };
                Change::Move(Move { file: *file, at: Revision(at), fence: None, next })
            };
            let steps = files.iter().zip(&names).map(step).collect();
            let answers = self.catalog.submit(NOW, steps).wait().expect("the database works");
            assert!(answers.iter().all(Result::is_ok));
        }
        files
    }

    pub(crate) fn claim(&self, now: Time, work: Work, limit: usize) -> Vec<Claimed> {
        let until = now.plus_s(LEASE_S);
        self.catalog.claim(now, work, limit, until).wait().expect("the database works")
    }

    /// Puts a file into any state, by the shortest way; says at which revision it is and who holds it.
    pub(crate) fn in_state(&self, name: &str, state: State) -> (FileId, Revision, Option<Claimed>) {
        if state == State::Adopted {
            let adopted = self.change(NOW, Change::Adopt(self.adopted_file(name)));
            let adopted = adopted.expect("a new name");
            return (adopted.file, adopted.revision, None);
        }
        let before = match state {
            State::Waiting | State::Quarantined | State::Cancelled => State::Queued,
            _ => state,
        };
        let file = self.take_in(name);
        let (id, mut at, mut held) = (file.file, file.revision, None);
        let way = [
            (State::Settled, Next::Settled { size: 1000 }),
            (State::Hashed, Next::Hashed(vec![digest(name)])),
            (State::Queued, Next::Queued),
        ];
        for (to, next) in way.into_iter().filter(|(to, _)| *to <= before) {
            at = self.step(id, at, next).unwrap_or_else(|e| panic!("{to}: {e}")).revision;
        }
        if before >= State::Sending {
            let claimed = self.claim(NOW, Work::QueuedOf(self.rule), 1)[0];
            assert_eq!(claimed.file, id);
            (at, held) = (claimed.revision, Some(claimed));
            let way = [
                (State::Sent, Next::Sent { bytes: 1000 }),
                (State::Verified, Next::Verified(self.site, "/data/x".to_owned())),
                (State::Receipted, Next::Receipted(receipt(id))),
            ];
            for (to, next) in way.into_iter().filter(|(to, _)| *to <= before) {
                let done = self.step_held(claimed, at, next);
                at = done.unwrap_or_else(|e| panic!("{to}: {e}")).revision;
            }
        }
        let last = match state {
            State::Waiting => waiting(NOW.plus_s(30)),
            State::Quarantined => Next::Quarantined(downpour_catalog::ErrorClass::FileChanged),
            State::Cancelled => Next::Cancelled,
            _ => return (id, at, held.filter(|_| state != State::Receipted)),
        };
        at = self.step(id, at, last).expect("from the queue").revision;
        (id, at, None)
    }

    pub(crate) fn adopted_file(&self, name: &str) -> downpour_catalog::AdoptedFile {
        downpour_catalog::AdoptedFile {
            site: self.site,
            name: name.to_owned(),
            size: 1000,
            rule: self.rule,
            digest: digest(name),
            others: Vec::new(),
            replicas: vec![(self.site, format!("/data/{name}"))],
            other_content: OtherContent::Refuse,
            origin: None,
            receipt: None,
        }
    }

    pub(crate) fn file(&self, id: FileId) -> File {
        let mut reader = self.catalog.reader().expect("a reader");
        reader.file(id).expect("the database works").expect("the file is there")
    }
}

/// Some digest that belongs to the name.
pub(crate) fn digest(name: &str) -> Digest {
    let mut value = [0; 32];
    for (index, byte) in name.bytes().enumerate() {
        value[index % 32] ^= byte.rotate_left(index as u32 / 32);
    }
    Digest::blake3(value)
}

pub(crate) fn receipt(file: FileId) -> Receipt {
    Receipt { file, receiver: vec![3; 32], at: NOW, signed: vec![0, 1, 254, 255] }
}

pub(crate) const fn waiting(next_try: Time) -> Next {
    let error = Some(downpour_catalog::ErrorClass::TimedOut);
    Next::Waiting { reason: Reason::BackOff, error, next_try, bytes: 10 }
}
