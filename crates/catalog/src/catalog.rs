//! A catalog that is open for writing.

use crate::change::{Answer, Change, Claimed, WORD_BYTES_MAX, Work};
use crate::error::{Error, OpenError};
use crate::ledger::Ledger;
use crate::migrate::{self, BeforeMigration};
use crate::place::CatalogUrl;
use crate::reader::Reader;
use crate::record::{FileId, LogId, RuleId, SiteId, Time};
use crate::sql::{DbError, Sql};
use crate::sqlite::{Access, Opened};
use crate::words::{self, WordKind};
use crate::writer::{CONFLICTS_MAX, Reply, Request, Writer};
use tokio::sync::oneshot;

/// A catalog, open for writing under one name. All its methods may be called from many threads at once: the more they ask
/// together, the fewer commits it takes.
///
/// The name is the daemon's own: two daemons that share a database have two names. A name's leases lapse when it opens
/// the catalog, for they belong to a process that has ended.
pub struct Catalog {
    url: CatalogUrl,
    log: LogId,
    writer: Writer,
    /// Of SQLite: its file.
    opened: Option<Opened>,
}

/// An answer that comes when what was asked is durable.
#[must_use]
pub struct Pending<T> {
    reply: oneshot::Receiver<Result<Reply, Error>>,
    unpack: fn(Reply) -> Option<T>,
}

impl<T> Pending<T> {
    /// Waits for it. Not to be called on a thread of an async runtime: await [`Pending::done`] there.
    pub fn wait(self) -> Result<T, Error> {
        Self::unpack(self.unpack, self.reply.blocking_recv())
    }

    /// Waits for it.
    pub async fn done(self) -> Result<T, Error> {
        Self::unpack(self.unpack, self.reply.await)
    }

    fn unpack(
        unpack: fn(Reply) -> Option<T>,
        reply: Result<Result<Reply, Error>, oneshot::error::RecvError>,
    ) -> Result<T, Error> {
        let reply = reply.map_err(|_| Error::Closed)??;
        Ok(unpack(reply).expect("the writer answers what it was asked"))
    }
}

impl Catalog {
    /// Opens a catalog, makes it if there is none, and migrates an older one after what `before` says.
    pub fn open(
        url: &CatalogUrl,
        name: &str,
        now: Time,
        before: &BeforeMigration,
    ) -> Result<Self, OpenError> {
        let mut sql = url.connect(Access::Write)?;
        migrate::migrate(&mut *sql, now, before)?;
        let log = register(&mut *sql, name)?;
        let ledger = Ledger::open(&mut *sql, log)?;
        let opened = match url {
            CatalogUrl::Sqlite(path) => Some(Opened::of(path)?),
            CatalogUrl::Postgres(_) | CatalogUrl::Mysql(_) => None,
        };
        Ok(Self { url: url.clone(), log, writer: Writer::start(sql, ledger, log, name), opened })
    }

    /// Whether a file of SQLite is still there under its name. One that was removed or replaced is written to no more, and what is read
    /// of it by who has it open is not what is there.
    pub fn check(&self) -> Result<(), Error> {
        Ok(self.opened.as_ref().map_or(Ok(()), Opened::check)?)
    }

    /// Brings a file of SQLite to where it is whole by itself, for the end of who writes: whoever copies it may leave its log out.
    pub fn checkpoint(&self) -> Result<(), Error> {
        Ok(self.opened.as_ref().map_or(Ok(()), Opened::checkpoint)?)
    }

    /// Makes these changes: each is atomic and answered in its place, all share a commit with whatever else waits.
    pub fn submit(&self, now: Time, changes: Vec<Change>) -> Pending<Vec<Answer>> {
        let unpack = |reply| if let Reply::Apply(answers) = reply { Some(answers) } else { None };
        self.ask(Request::Apply(now, changes), unpack)
    }

    /// Makes these changes and waits until they are durable.
    pub fn apply(&self, now: Time, changes: &[Change]) -> Result<Vec<Answer>, Error> {
        self.submit(now, changes.to_vec()).wait()
    }

    /// Takes up to `limit` files under a lease that ends at `until`. No other daemon is given them before.
    pub fn claim(&self, now: Time, work: Work, limit: usize, until: Time) -> Pending<Vec<Claimed>> {
        let unpack = |reply| if let Reply::Claim(claimed) = reply { Some(claimed) } else { None };
        self.ask(Request::Claim { now, work, limit, until }, unpack)
    }

    /// Sends up to `limit` waiting files whose time has come by `due` back to where they start again; says how many.
    pub fn wake(&self, now: Time, due: Time, limit: usize) -> Pending<usize> {
        let unpack = |reply| if let Reply::Wake(count) = reply { Some(count) } else { None };
        self.ask(Request::Wake { now, due, limit }, unpack)
    }

    /// Sends up to `limit` files that wait longer than until `beyond`, when nothing waits for so long, back to where they start again,
    /// and lets leases end then; says how many waited. A clock that was ahead wrote that.
    pub fn rouse(&self, now: Time, beyond: Time, limit: usize) -> Pending<usize> {
        let unpack = |reply| if let Reply::Wake(count) = reply { Some(count) } else { None };
        self.ask(Request::Rouse { now, beyond, limit }, unpack)
    }

    /// The number of a site, given now if it had none.
    pub fn site(&self, name: &str) -> Result<SiteId, Error> {
        self.word(WordKind::Site, name).map(SiteId)
    }

    /// The number of a rule, given now if it had none.
    pub fn rule(&self, name: &str) -> Result<RuleId, Error> {
        self.word(WordKind::Rule, name).map(RuleId)
    }

    /// This writer's event log.
    pub const fn log(&self) -> LogId {
        self.log
    }

    /// A reader beside the writer, on a connection of its own.
    pub fn reader(&self) -> Result<Reader, OpenError> {
        Reader::open(&self.url)
    }

    fn word(&self, kind: WordKind, name: &str) -> Result<i64, Error> {
        // What one database would not store would spoil the commit of all others.
        if name.is_empty() || name.len() > WORD_BYTES_MAX || name.contains('\0') {
            return Err(Error::BadWord);
        }
        let unpack = |reply| if let Reply::Word(id) = reply { Some(id) } else { None };
        self.ask(Request::Word(kind, name.to_owned()), unpack).wait()
    }

    fn ask<T>(&self, request: Request, unpack: fn(Reply) -> Option<T>) -> Pending<T> {
        Pending { reply: self.writer.ask(request), unpack }
    }
}

/// The writer's number. What its last process held is free. A mirror's copy becomes a catalog by this.
fn register(sql: &mut dyn Sql, name: &str) -> Result<LogId, OpenError> {
    let mut conflicts = 0;
    let log = loop {
        sql.begin()?;
        let learnt =
            migrate::fill_copy(sql).and_then(|()| words::learn(sql, WordKind::Writer, name));
        let done = learnt.and_then(|log| {
            let free = "UPDATE live SET turn = 0 WHERE holder = ?";
            sql.run(free, &[log.into()])?;
            sql.commit()?;
            Ok(LogId(log))
        });
        match done {
            Ok(log) => break log,
            Err(error) => {
                sql.rollback();
                // Another daemon was given the same number just now, or holds what the last process of this name held.
                conflicts += 1;
                if !matches!(error, DbError::Conflict(_)) || conflicts > CONFLICTS_MAX {
                    return Err(error.into());
                }
            }
        }
    };
    if log.0 >= FileId::LOG_END {
        let text = format!("{} daemons have written to it, no more have room", FileId::LOG_END);
        return Err(Error::Database(text).into());
    }
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::Catalog;
    use crate::error::Error;
    use crate::migrate::BeforeMigration;
    use crate::place::CatalogUrl;
    use crate::record::Time;
    use crate::sqlite::Access;
    use std::fs;

    #[test]
    fn a_file_that_was_taken_away_is_not_written_to_and_no_other_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let [file, aside] = ["c.db", "aside"].map(|name| folder.path().join(name));
        let url = CatalogUrl::Sqlite(file.clone());
        let catalog = Catalog::open(&url, "a", Time(1), &BeforeMigration::Refuse).unwrap();
        let works = || catalog.rule("all").and(catalog.check()).is_ok();
        let is_told = || {
            let lost = |error| matches!(error, Error::Unreachable(text) if text.contains("c.db"));
            catalog.check().is_err_and(lost)
                && catalog.rule("other").is_err_and(lost)
                && catalog.apply(Time(1), &[]).is_err_and(lost)
        };
        assert!(works());
        fs::rename(&file, &aside).unwrap();
        assert!(is_told() && !file.exists(), "moved");
        fs::copy(&aside, &file).unwrap();
        assert!(is_told(), "replaced");
        fs::rename(&aside, &file).unwrap();
        assert!(works(), "it is back");
    }

    #[test]
    fn after_a_checkpoint_the_file_alone_has_all_though_it_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let [file, copy] = ["c.db", "copy.db"].map(|name| folder.path().join(name));
        let url = CatalogUrl::Sqlite(file.clone());
        let catalog = Catalog::open(&url, "a", Time(1), &BeforeMigration::Refuse).unwrap();
        let _reader = catalog.reader().unwrap();
        catalog.site("last").unwrap();
        catalog.checkpoint().unwrap();
        fs::copy(&file, &copy).unwrap();
        let sites = crate::Reader::open(&CatalogUrl::Sqlite(copy)).unwrap().sites().unwrap();
        assert!(sites.iter().any(|(_, name)| name == "last"), "{sites:?}");
        catalog.site("it goes on").unwrap();
    }

    #[test]
    fn a_database_without_room_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let url = CatalogUrl::Sqlite(folder.path().join("c.db"));
        drop(Catalog::open(&url, "a", Time(1), &BeforeMigration::Refuse).unwrap());
        let mut sql = url.connect(Access::Write).unwrap();
        // No more pages than there are.
        sql.query("PRAGMA max_page_count = 1", &[]).unwrap();
        let error = sql.run("CREATE TABLE more AS SELECT zeroblob(1000000)", &[]).unwrap_err();
        let error = Error::from(error);
        assert!(matches!(&error, Error::Full(text) if text.contains("full")), "{error:?}");
    }

    #[test]
    fn a_writer_that_gets_no_number_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let url = CatalogUrl::Sqlite(folder.path().join("c.db"));
        let open = |name| Catalog::open(&url, name, Time(1), &BeforeMigration::Refuse).map(drop);
        open("a").unwrap();
        let never =
            "CREATE TRIGGER never BEFORE INSERT ON word BEGIN SELECT RAISE(ABORT, 'taken'); END";
        url.connect(Access::Write).unwrap().run(never, &[]).unwrap();
        open("a").unwrap();
        assert!(open("b").unwrap_err().to_string().contains("taken"));
    }
}
