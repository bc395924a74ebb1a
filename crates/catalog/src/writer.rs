//! The one writer of a catalog handle: a thread, a connection, and group commit.
//!
//! 1. The thread sleeps until a request comes, then takes all that are waiting, up to [`BATCH_CHANGES_MAX`].
//! 2. It does them in one transaction, in the order in which they came.
//! 3. It answers each after the commit that made it durable.
//!
//! While a commit waits for the disk the next batch gathers, so the more is asked at once the fewer commits each change costs.
//!
//! A batch that met another daemon's (a unique key, a deadlock) is rolled back and done again from its start; one whose
//! connection broke, after one new connection. Everything in it can be repeated, so it does not matter whether the lost
//! commit was made.

use crate::change::{Answer, Change, Claimed, Work};
use crate::error::Error;
use crate::ledger::Ledger;
use crate::record::{LogId, Time};
use crate::sql::{DbError, Sql};
use crate::words::{self, WordKind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Changes in one commit, unless a single request holds more.
const BATCH_CHANGES_MAX: usize = 4096;
/// How often a batch that meets another daemon's is tried.
pub(crate) const CONFLICTS_MAX: u32 = 16;

/// What is asked of the writer.
pub(crate) enum Request {
    Apply(Time, Vec<Change>),
    Claim { now: Time, work: Work, limit: usize, until: Time },
    Wake { now: Time, due: Time, limit: usize },
    Rouse { now: Time, beyond: Time, limit: usize },
    Word(WordKind, String),
}

/// What it answers.
pub(crate) enum Reply {
    Apply(Vec<Answer>),
    Claim(Vec<Claimed>),
    Wake(usize),
    Word(i64),
}

impl Request {
    fn changes(&self) -> usize {
        match self {
            Self::Apply(_, changes) => changes.len(),
            Self::Claim { limit, .. } | Self::Wake { limit, .. } | Self::Rouse { limit, .. } => {
                *limit
            }
            Self::Word(..) => 1,
        }
    }
}

struct Waiting {
    request: Request,
    answer: oneshot::Sender<Result<Reply, Error>>,
}

/// The writer's door. The thread ends when it is dropped, after what was asked before.
pub(crate) struct Writer {
    requests: Option<Sender<Waiting>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(crate) fn start(sql: Box<dyn Sql>, ledger: Ledger, log: LogId, name: &str) -> Self {
        let (requests, inbox) = channel();
        let work = Thread { sql, ledger: Some(ledger), log, name: name.to_owned(), inbox };
        let thread = std::thread::Builder::new().name("catalog-writer".to_owned());
        let thread = thread.spawn(move || work.run()).expect("the system has room for a thread");
        Self { requests: Some(requests), thread: Some(thread) }
    }

    pub(crate) fn ask(&self, request: Request) -> oneshot::Receiver<Result<Reply, Error>> {
        let (answer, reply) = oneshot::channel();
        // A writer that has stopped drops the answer's sender, which the caller sees.
        if let Some(requests) = &self.requests {
            drop(requests.send(Waiting { request, answer }));
        }
        reply
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

struct Thread {
    sql: Box<dyn Sql>,
    /// None after a batch that was not committed: what it learnt may have been rolled back.
    ledger: Option<Ledger>,
    log: LogId,
    name: String,
    inbox: Receiver<Waiting>,
}

impl Thread {
    fn run(mut self) {
        let mut batch = Vec::new();
        while let Ok(first) = self.inbox.recv() {
            let mut changes = first.request.changes();
            batch.push(first);
            while changes < BATCH_CHANGES_MAX
                && let Ok(next) = self.inbox.try_recv()
            {
                changes += next.request.changes();
                batch.push(next);
            }
            let requests: Vec<&Request> = batch.iter().map(|waiting| &waiting.request).collect();
            match self.commit(&requests) {
                Ok(replies) => {
                    for (waiting, reply) in batch.drain(..).zip(replies) {
                        // One who no longer waits has no use for the answer.
                        drop(waiting.answer.send(Ok(reply)));
                    }
                }
                Err(error) => {
                    for waiting in batch.drain(..) {
                        drop(waiting.answer.send(Err(error.clone())));
                    }
                }
            }
        }
    }

    /// Does a batch in one transaction, again if need be.
    fn commit(&mut self, requests: &[&Request]) -> Result<Vec<Reply>, Error> {
        let (mut conflicts, mut reopened) = (0, false);
        loop {
            let error = match self.attempt(requests) {
                Ok(replies) => return Ok(replies),
                Err(error) => error,
            };
            self.sql.rollback();
            let before = self.ledger.take();
            match error {
                DbError::Conflict(_) if conflicts < CONFLICTS_MAX => conflicts += 1,
                DbError::Lost(text) if !reopened => {
                    reopened = true;
                    self.sql.reopen().map_err(|_| Error::Unreachable(text))?;
                }
                error => return Err(error.into()),
            }
            let now = Ledger::open(&mut *self.sql, self.log)?;
            let is_ahead = before.is_some_and(|before| before.event_next() != now.event_next());
            self.ledger = Some(now);
            // Nobody but we writes to our log; a commit whose answer was lost is the one exception.
            if is_ahead && !reopened {
                return Err(Error::NotAlone(self.name.clone()));
            }
        }
    }

    fn attempt(&mut self, requests: &[&Request]) -> Result<Vec<Reply>, DbError> {
        let sql = &mut *self.sql;
        let ledger = match &mut self.ledger {
            Some(ledger) => ledger,
            none => none.insert(Ledger::open(sql, self.log)?),
        };
        sql.begin()?;
        let mut batch = ledger.batch();
        let mut replies = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            replies.push(match request {
                Request::Apply(now, changes) => {
                    // What a row of such requests needs is read at once, by the first of them.
                    if index == 0 || !matches!(requests[index - 1], Request::Apply(..)) {
                        let group = requests[index..].iter().map_while(|request| match request {
                            Request::Apply(_, changes) => Some(changes),
                            _ => None,
                        });
                        batch.load(sql, group.flatten())?;
                    }
                    Reply::Apply(changes.iter().map(|change| batch.apply(*now, change)).collect())
                }
                Request::Claim { now, work, limit, until } => {
                    Reply::Claim(batch.claim(sql, *now, work, *limit, *until)?)
                }
                Request::Wake { now, due, limit } => {
                    Reply::Wake(batch.wake(sql, *now, *due, *limit)?)
                }
                Request::Rouse { now, beyond, limit } => {
                    Reply::Wake(batch.rouse(sql, *now, *beyond, *limit)?)
                }
                Request::Word(kind, name) => Reply::Word(words::learn(sql, *kind, name)?),
            });
        }
        batch.write(sql)?;
        sql.commit()?;
        batch.keep();
        Ok(replies)
    }
}

#[cfg(test)]
mod tests {
    use super::{Reply, Request, Thread};
    use crate::catalog::Catalog;
    use crate::change::{AdoptedFile, Change, Origin, OtherContent};
    use crate::digest_set::{SetDay, SetNode};
    use crate::key::FileKey;
    use crate::ledger::Ledger;
    use crate::migrate::BeforeMigration;
    use crate::place::CatalogUrl;
    use crate::reader::Reader;
    use crate::record::{Digest, DigestKind, Replica, ReplicaState, RuleId, SiteId, Time};
    use crate::sqlite::Access;
    use crate::words::WordKind;
    use std::sync::mpsc::channel;

    const NOW: Time = Time(1_790_000_000_000_000);

    /// A catalog in this folder, the number of a rule, and a writer that is asked by hand.
    fn begin(folder: &std::path::Path) -> (CatalogUrl, RuleId, Thread) {
        let url = CatalogUrl::Sqlite(folder.join("c.db"));
        let catalog = Catalog::open(&url, "a", NOW, &BeforeMigration::Refuse).unwrap();
        let (log, rule) = (catalog.log(), catalog.rule("all").unwrap());
        drop(catalog);
        let mut sql = url.connect(Access::Write).unwrap();
        let ledger = Some(Ledger::open(&mut *sql, log).unwrap());
        (url, rule, Thread { sql, ledger, log, name: "a".to_owned(), inbox: channel().1 })
    }

    fn adopted(site: SiteId, rule: RuleId, content: u8) -> AdoptedFile {
        AdoptedFile {
            site,
            name: "x".to_owned(),
            size: 1,
            rule,
            digest: Digest::blake3([content; 32]),
            others: Vec::new(),
            replicas: vec![(site, "/x".to_owned())],
            other_content: OtherContent::Refuse,
            origin: None,
            receipt: None,
        }
    }

    #[test]
    fn a_batch_that_fails_outright_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let (url, rule, mut writer) = begin(folder.path());
        let site = SiteId(1);
        let mut both = |name: &str| {
            let word = Request::Word(WordKind::Site, name.to_owned());
            let adopt = Request::Apply(NOW, vec![Change::Adopt(adopted(site, rule, 7))]);
            let replies = writer.commit(&[&word, &adopt])?;
            let is_site = |reply: &Reply| matches!(reply, Reply::Word(id) if *id == site.0);
            assert!(is_site(&replies[0]));
            Ok::<_, crate::error::Error>(())
        };
        let run = |text| url.connect(Access::Write).unwrap().run(text, &[]).unwrap();
        run("CREATE TRIGGER full BEFORE INSERT ON event BEGIN SELECT RAISE(ABORT, 'full'); END");
        assert!(both("first").unwrap_err().to_string().contains("full"));
        run("DROP TRIGGER full");
        both("second").unwrap();
        let mut reader = Reader::open(&url).unwrap();
        let day = SetDay { holder: site, origin: site, rule, day: SetDay::day_of(NOW) };
        let key = FileKey::of("second", "x", 1);
        let prefix = u16::from_be_bytes([key.0[0], key.0[1]]);
        let entries = reader.set_entries(&SetNode { day, depth: 4, prefix }).unwrap();
        assert_eq!(entries.iter().map(|entry| entry.key).collect::<Vec<_>>(), [key]);
    }

    #[test]
    fn what_a_commit_forgets_it_does_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (url, rule, mut writer) = begin(folder.path());
        let site = SiteId(1);
        let word = |name: &str| Request::Word(WordKind::Site, name.to_owned());
        let origin = Some(Origin { version: 1, taken_in: NOW });
        let adopt = |content| Change::Adopt(AdoptedFile { origin, ..adopted(site, rule, content) });
        writer.commit(&[&word("first"), &Request::Apply(NOW, vec![adopt(7)])]).unwrap();
        let file = Reader::open(&url).unwrap().versions(site, "x").unwrap()[0].id;
        let md5 = |of: u8| Digest::new(DigestKind::Md5, &[of; 16]).unwrap();
        let lost = Replica { file, site, path: String::new(), state: ReplicaState::Lost };
        let before = vec![Change::Digest(file, md5(1)), Change::Replica(lost)];
        writer.commit(&[&Request::Apply(NOW, before)]).unwrap();
        // Each loads what it needs, and between them nothing is written yet.
        let other = Request::Apply(NOW, vec![adopt(8)]);
        let digest = Request::Apply(NOW, vec![Change::Digest(file, md5(2))]);
        writer.commit(&[&other, &word("second"), &digest]).unwrap();
        let digests = Reader::open(&url).unwrap().digests(file).unwrap();
        assert_eq!(digests, [Digest::blake3([8; 32]), md5(2)]);
    }
}
