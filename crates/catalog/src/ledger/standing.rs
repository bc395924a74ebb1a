//! Where a file stands, while a batch works on it.

use crate::class::ErrorClass;
use crate::life::{Reason, State};
use crate::record::{Fence, FileId, LogId, Revision, RuleId, SiteId, Time, TransferId};
use crate::sql::{Columns, DbError, Row, Value};

/// Where the database has the file.
#[derive(Debug)]
pub(super) enum Place {
    /// Nowhere yet.
    New(NewName),
    /// In the live queue; `file` has this size.
    Live { size_written: i64 },
    /// In the history alone.
    Ended,
}

/// What a file is called; written once and never changed.
#[derive(Debug)]
pub(super) struct NewName {
    pub name: String,
    pub version: i64,
    pub stamp: i64,
    /// When it was taken in at its site of origin.
    pub taken_in: Time,
}

#[derive(Debug)]
pub(super) struct Standing {
    pub file: FileId,
    pub site: SiteId,
    pub rule: RuleId,
    pub size: i64,
    pub rank: i64,
    pub transfer: TransferId,
    pub state: State,
    pub revision: Revision,
    /// When its turn is within its state: rank, next try or the lease's end.
    pub turn: i64,
    pub resume: State,
    pub reason: Option<Reason>,
    pub error: Option<ErrorClass>,
    pub tries: i64,
    pub holder: LogId,
    pub fence: Fence,
    /// When the open attempt began; zero when none is open.
    pub started: Time,
    /// Bytes that it says to have moved.
    pub bytes: i64,
    pub since: Time,
    /// The session that it goes by; empty when none was told.
    pub session: String,
    pub place: Place,
    pub is_changed: bool,
}

impl Standing {
    /// A new file.
    pub(super) fn new(file: FileId, state: State, now: Time, name: NewName) -> Self {
        Self {
            file,
            site: SiteId(0),
            rule: RuleId(0),
            size: 0,
            rank: 0,
            transfer: TransferId(0),
            state,
            revision: Revision(1),
            turn: 0,
            resume: state.resume(),
            reason: state.reason(),
            error: None,
            tries: 0,
            holder: LogId(0),
            fence: Fence(0),
            started: Time(0),
            bytes: 0,
            since: now,
            session: String::new(),
            place: Place::New(name),
            is_changed: true,
        }
    }

    /// From a row of `live`.
    pub(super) fn of_live(row: Row) -> Result<Self, DbError> {
        let mut row = Columns::of(row);
        let file = FileId(row.int()?);
        let (site, rule) = (SiteId(row.int()?), RuleId(row.int()?));
        let size = row.int()?;
        Ok(Self {
            file,
            site,
            rule,
            size,
            rank: row.int()?,
            transfer: TransferId(row.int()?),
            state: row.code(State::from_code)?,
            revision: Revision(row.int()?),
            turn: row.int()?,
            resume: row.code(State::from_code)?,
            reason: row.maybe(Reason::from_code)?,
            error: row.maybe(ErrorClass::from_code)?,
            tries: row.int()?,
            holder: LogId(row.int()?),
            fence: Fence(row.int()?),
            started: Time(row.int()?),
            bytes: row.int()?,
            since: Time(row.int()?),
            session: row.text()?,
            place: Place::Live { size_written: size },
            is_changed: false,
        })
    }

    /// From a row of `file` that is at its end.
    pub(super) fn of_ended(row: Row) -> Result<Self, DbError> {
        let mut row = Columns::of(row);
        let (file, site) = (FileId(row.int()?), SiteId(row.int()?));
        let (_name, _version, _stamp) = (row.text()?, row.int()?, row.int()?);
        let (size, rule, rank) = (row.int()?, RuleId(row.int()?), row.int()?);
        let Some(state) = row.maybe(State::from_code)? else {
            // Queued again by another writer since the live queue was read.
            return Err(DbError::Conflict(format!("file {file} moved meanwhile")));
        };
        let name = NewName { name: String::new(), version: 0, stamp: 0, taken_in: Time(0) };
        let new = Self::new(file, state, Time(0), name);
        Ok(Self {
            site,
            rule,
            size,
            rank,
            revision: Revision(row.int()?),
            tries: row.int()?,
            since: Time(row.int()?),
            place: Place::Ended,
            is_changed: false,
            ..new
        })
    }

    /// Its row of `file`, when it is new.
    pub(super) fn file_row(&self, new: &NewName) -> Row {
        vec![
            self.file.0.into(),
            self.site.0.into(),
            new.name.as_str().into(),
            new.version.into(),
            new.stamp.into(),
            self.size.into(),
            self.rule.0.into(),
            self.rank.into(),
            self.end_code().into(),
            self.revision.0.into(),
            self.tries.into(),
            self.since.0.into(),
            new.taken_in.0.into(),
        ]
    }

    /// What its row of `file` says of its end.
    pub(super) fn end_row(&self) -> Row {
        vec![
            self.file.0.into(),
            self.size.into(),
            self.end_code().into(),
            self.revision.0.into(),
            self.tries.into(),
            self.since.0.into(),
        ]
    }

    const fn end_code(&self) -> i64 {
        if self.state.is_end() { self.state.code() as i64 } else { 0 }
    }

    /// Its row of `live`.
    pub(super) fn live_row(&self) -> Row {
        let code = super::code;
        vec![
            self.file.0.into(),
            self.site.0.into(),
            self.rule.0.into(),
            self.size.into(),
            self.rank.into(),
            self.transfer.0.into(),
            i64::from(self.state.code()).into(),
            self.revision.0.into(),
            self.turn.into(),
            i64::from(self.resume.code()).into(),
            code(self.reason.map(Reason::code)),
            code(self.error.map(ErrorClass::code)),
            self.tries.into(),
            self.holder.0.into(),
            self.fence.0.into(),
            self.started.0.into(),
            self.bytes.into(),
            self.since.0.into(),
            Value::Text(self.session.clone()),
        ]
    }

    /// The database has it now as it stands here.
    pub(super) fn is_written(&mut self) {
        let ended = self.state.is_end();
        self.place = if ended { Place::Ended } else { Place::Live { size_written: self.size } };
        self.is_changed = false;
    }
}
