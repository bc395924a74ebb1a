//! What a batch of changes does: the rules of the catalog, without a database's words.
//!
//! 1. `load` reads what the changes name (and holds those rows, where several daemons share the database).
//! 2. `apply` takes the changes in order, checks each against what is there *now*, the batch's earlier ones included, and
//!    notes what it does: rows, events, counts. A refused one leaves no trace.
//! 3. `write` puts all of it down: a few statements, whatever the number of changes.
//!
//! All databases share these rules, so they cannot differ in them. `moves` is the life cycle, `intake` are new
//! files, `records` the rest, `links` what fades, `of` which files a claim is for, `sets` the digests of what sites hold.
//!
//! Invariants: a state goes where the table of `life` allows; each change of a file raises its revision by one; each
//! accepted change is one event; numbers of events and counts become the ledger's only when the commit succeeded,
//! so a batch that is rolled back and tried again numbers the same.

mod intake;
mod links;
mod moves;
mod of;
mod records;
mod sets;
mod standing;

use crate::change::{Answer, Change, Claimed, Work};
use crate::class::ErrorClass;
use crate::life::State;
use crate::record::{DigestKind, EventKind, FileId, LogId, Mint, Revision, RuleId, SiteId, Time};
use crate::schema;
use crate::sql::{Columns, DbError, Hold, Put, Row, Sql, Table, one_int};
pub(crate) use links::fade;
use of::Of;
pub(crate) use sets::{Called, SetPlace, key_row, place_of};
use standing::{Place, Standing};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The states in which a file is held.
const LEASED: [State; 3] = [State::Sending, State::Sent, State::Verified];

/// Key of a counter.
type Place3 = (SiteId, RuleId, State);

/// What a writer knows between batches.
#[derive(Debug)]
pub(crate) struct Ledger {
    log: LogId,
    event_next: i64,
    mint: Mint,
    counts: BTreeMap<Place3, (i64, i64)>,
    sums: sets::Sums,
}

impl Ledger {
    /// Reads where this writer's log ends.
    pub(crate) fn open(sql: &mut dyn Sql, log: LogId) -> Result<Self, DbError> {
        let log_value = log.0.into();
        let last = "SELECT COALESCE(MAX(number), 0) FROM event WHERE log = ?";
        let event_next = one_int(sql, last, &[log_value])? + 1;
        let newest = one_int(sql, "SELECT COALESCE(MAX(id), 0) FROM file", &[])?;
        let select = "SELECT site, rule, state, files, bytes FROM counter WHERE log = ?";
        let mut counts = BTreeMap::new();
        for row in sql.query(select, &[log.0.into()])? {
            let mut row = Columns::of(row);
            let place = (SiteId(row.int()?), RuleId(row.int()?), row.code(State::from_code)?);
            counts.insert(place, (row.int()?, row.int()?));
        }
        let (mint, sums) = (Mint::new(log, FileId(newest)), sets::Sums::default());
        Ok(Self { log, event_next, mint, counts, sums })
    }

    /// Where this writer's log will go on.
    pub(crate) const fn event_next(&self) -> i64 {
        self.event_next
    }

    /// Begins a batch.
    pub(crate) fn batch(&mut self) -> Batch<'_> {
        let event_next = self.event_next;
        Batch {
            ledger: self,
            event_next,
            files: HashMap::new(),
            names: HashMap::new(),
            digests: HashMap::new(),
            looked_up: HashSet::new(),
            deltas: BTreeMap::new(),
            sets: sets::Sets::default(),
            faded: BTreeMap::new(),
            out: Vec::new(),
        }
    }
}

/// One content under a name.
#[derive(Clone, Debug)]
struct Known {
    version: i64,
    file: FileId,
    stamp: i64,
}

/// A batch in hand.
pub(crate) struct Batch<'a> {
    ledger: &'a mut Ledger,
    event_next: i64,
    files: HashMap<FileId, Standing>,
    names: HashMap<(SiteId, String), Vec<Known>>,
    digests: HashMap<(FileId, DigestKind), Vec<u8>>,
    /// Files that were asked for, also those that are not there.
    looked_up: HashSet<FileId>,
    deltas: BTreeMap<Place3, (i64, i64)>,
    sets: sets::Sets,
    /// Table, source and destination of links that have new rows, and the time now.
    faded: BTreeMap<(&'static str, i64, i64), Time>,
    /// Rows to be written, by table, in the order in which the tables were first touched; keys of those that go are before them.
    out: Vec<(&'static Table, Put, Vec<Row>)>,
}

impl Batch<'_> {
    /// Reads what these changes need.
    pub(crate) fn load<'c>(
        &mut self,
        sql: &mut dyn Sql,
        changes: impl Iterator<Item = &'c Change> + Clone,
    ) -> Result<(), DbError> {
        let mut files: Vec<FileId> = changes.clone().filter_map(records::subject).collect();
        let mut known = self.load_names(sql, changes.clone())?;
        files.append(&mut known);
        self.load_files(sql, files)?;
        let of_digest = |change: &Change| records::needs_digests(change);
        let mut with_digest: Vec<FileId> = changes.clone().filter_map(of_digest).collect();
        with_digest.extend(self.names.values().flatten().map(|known| known.file));
        self.load_digests(sql, with_digest)?;
        let mut in_sets: Vec<FileId> = changes.clone().filter_map(sets::touches).collect();
        for change in changes {
            let Change::Adopt(new) = change else { continue };
            self.learn_site(sql, new.site)?;
            let known = self.names.get(&(new.site, new.name.clone()));
            in_sets.extend(known.into_iter().flatten().map(|known| known.file));
        }
        self.load_sets(sql, in_sets)
    }

    fn load_files(&mut self, sql: &mut dyn Sql, mut ids: Vec<FileId>) -> Result<(), DbError> {
        ids.retain(|id| self.looked_up.insert(*id));
        // In one order, so that two writers do not wait for each other's rows.
        ids.sort_unstable();
        let keys = |ids: &[FileId]| ids.iter().map(|id| vec![id.0.into()]).collect::<Vec<_>>();
        for row in pick(sql, &schema::LIVE, &["file"], &keys(&ids), Hold::Rows)? {
            let standing = Standing::of_live(row)?;
            self.files.insert(standing.file, standing);
        }
        ids.retain(|id| !self.files.contains_key(id));
        for row in pick(sql, &schema::FILE, &["id"], &keys(&ids), Hold::Rows)? {
            let standing = Standing::of_ended(row)?;
            self.files.insert(standing.file, standing);
        }
        Ok(())
    }

    fn load_digests(&mut self, sql: &mut dyn Sql, mut ids: Vec<FileId>) -> Result<(), DbError> {
        // Of whose BLAKE3 is known here all digests are, and what the batch did to them is newer than what would be read.
        ids.retain(|id| !self.digests.contains_key(&(*id, DigestKind::Blake3)));
        ids.sort_unstable();
        ids.dedup();
        let keys: Vec<Row> = ids.iter().map(|id| vec![id.0.into()]).collect();
        for row in pick(sql, &schema::DIGEST, &["file"], &keys, Hold::Nothing)? {
            let mut row = Columns::of(row);
            let key = (FileId(row.int()?), row.code(DigestKind::from_code)?);
            let value = row.bytes()?;
            // What the batch itself recorded is newer than what it reads.
            self.digests.entry(key).or_insert(value);
        }
        Ok(())
    }

    /// Makes one change, or refuses it.
    pub(crate) fn apply(&mut self, now: Time, change: &Change) -> Answer {
        match change {
            Change::TakeIn(file) => self.take_in(now, file),
            Change::Adopt(file) => self.adopt(now, file),
            Change::Move(step) => self.step(now, step),
            Change::Renew { file, fence, until } => self.renew(*file, *fence, *until),
            Change::InSession { file, fence, session } => self.in_session(*file, *fence, session),
            Change::Digest(file, digest) => self.record_digest(now, *file, digest),
            Change::Replica(replica) => self.record_replica(now, replica),
            Change::Receipt(receipt) => self.record_receipt(now, receipt),
            Change::Transfer(transfer) => self.record_transfer(now, transfer),
            Change::Session(session) => self.record_session(now, session),
            Change::Delivery(delivery) => self.record_delivery(now, delivery),
            Change::LinkSeen(seen) => self.record_seen(now, seen),
            Change::Decision(decision) => self.record_decision(now, decision),
        }
    }

    /// Takes work under a lease that ends at `until`.
    pub(crate) fn claim(
        &mut self,
        sql: &mut dyn Sql,
        now: Time,
        work: &Work,
        limit: usize,
        until: Time,
    ) -> Result<Vec<Claimed>, DbError> {
        self.flush(sql)?;
        let mut claimed = Vec::new();
        let (states, due, of): (&[State], _, _) = match work {
            Work::QueuedOf(rule) => (&[State::Queued], i64::MAX, Of::rule(*rule, None)),
            Work::QueuedFor(rule, to) => (&[State::Queued], i64::MAX, Of::rule(*rule, Some(to))),
            Work::Lapsed => (&LEASED, now.0, Of::default()),
        };
        for state in states {
            for file in self.due(sql, *state, due, &of, limit - claimed.len())? {
                claimed.push(self.lease(now, file, until));
            }
        }
        Ok(claimed)
    }

    /// Sends waiting files back to where they start again, if their time has come by `due`.
    pub(crate) fn wake(
        &mut self,
        sql: &mut dyn Sql,
        now: Time,
        due: Time,
        limit: usize,
    ) -> Result<usize, DbError> {
        self.flush(sql)?;
        let due = self.due(sql, State::Waiting, due.0, &Of::default(), limit)?;
        for file in &due {
            self.resume(now, *file);
        }
        Ok(due.len())
    }

    /// What waits, or is held, for longer than anything may was written by a clock that was ahead: files that wait longer than until
    /// `beyond` start again, leases end then. Says how many of those that waited it took.
    pub(crate) fn rouse(
        &mut self,
        sql: &mut dyn Sql,
        now: Time,
        beyond: Time,
        limit: usize,
    ) -> Result<usize, DbError> {
        self.flush(sql)?;
        for state in LEASED {
            for file in self.due(sql, state, i64::MAX, &Of::beyond(beyond), limit)? {
                let standing = self.files.get_mut(&file).expect("it was read just now");
                (standing.turn, standing.is_changed) = (beyond.0, true);
            }
        }
        let waiting = self.due(sql, State::Waiting, i64::MAX, &Of::beyond(beyond), limit)?;
        waiting.iter().for_each(|file| self.resume(now, *file));
        Ok(waiting.len())
    }

    /// Files of a state whose turn has come, in order; held, and passing over those that another writer holds.
    fn due(
        &mut self,
        sql: &mut dyn Sql,
        state: State,
        until: i64,
        of: &Of<'_>,
        limit: usize,
    ) -> Result<Vec<FileId>, DbError> {
        let (condition, given) = of.condition();
        let select = format!(
            "SELECT {} FROM live WHERE state = ?{condition} AND turn <= ? \
             ORDER BY turn, file LIMIT ?{}",
            schema::LIVE.list(),
            sql.dialect().skip_locked()
        );
        let mut args = vec![i64::from(state.code()).into()];
        args.extend(given);
        args.extend([until.into(), (limit as i64).into()]);
        let mut due = Vec::new();
        for row in sql.query(&select, &args)? {
            let standing = Standing::of_live(row)?;
            due.push(standing.file);
            self.looked_up.insert(standing.file);
            self.files.insert(standing.file, standing);
        }
        Ok(due)
    }

    /// Writes everything; after the commit that follows, [`Batch::keep`] makes it the ledger's.
    pub(crate) fn write(&mut self, sql: &mut dyn Sql) -> Result<(), DbError> {
        self.flush(sql)?;
        let mut rows = Vec::new();
        for (place, (files, bytes)) in &self.deltas {
            let before = self.ledger.counts.get(place).copied().unwrap_or_default();
            let (site, rule, state) = *place;
            rows.push(vec![
                self.ledger.log.0.into(),
                site.0.into(),
                rule.0.into(),
                i64::from(state.code()).into(),
                (before.0 + files).into(),
                (before.1 + bytes).into(),
            ]);
        }
        put(sql, &schema::COUNTER, Put::Upsert, &rows)?;
        self.write_sets(sql)
    }

    /// Takes over numbers and counts, once they are durable.
    pub(crate) fn keep(mut self) {
        self.keep_sets();
        self.ledger.event_next = self.event_next;
        for (place, (files, bytes)) in self.deltas {
            let count = self.ledger.counts.entry(place).or_default();
            *count = (count.0 + files, count.1 + bytes);
        }
    }

    /// Writes files and records, so that a query of the same transaction sees them.
    fn flush(&mut self, sql: &mut dyn Sql) -> Result<(), DbError> {
        let mut changed: Vec<&mut Standing> =
            self.files.values_mut().filter(|standing| standing.is_changed).collect();
        changed.sort_unstable_by_key(|standing| standing.file);
        let [mut files, mut ends, mut live, mut moved, mut gone] = [const { Vec::new() }; 5];
        for standing in changed {
            let ended = standing.state.is_end();
            match (&standing.place, ended) {
                (Place::New(new), _) => files.push(standing.file_row(new)),
                (Place::Live { size_written }, _) if ended || *size_written != standing.size => {
                    ends.push(standing.end_row());
                }
                (Place::Live { .. }, _) => {}
                (Place::Ended, _) => ends.push(standing.end_row()),
            }
            match (&standing.place, ended) {
                (Place::Live { .. }, true) => gone.push(vec![standing.file.0.into()]),
                (Place::Live { .. }, false) => moved.push(standing.live_row()),
                (_, false) => live.push(standing.live_row()),
                (_, true) => {}
            }
            standing.is_written();
        }
        put(sql, &schema::FILE, Put::Insert, &files)?;
        put(sql, &schema::FILE_END, Put::Update, &ends)?;
        put(sql, &schema::LIVE, Put::Insert, &live)?;
        put(sql, &schema::LIVE, Put::Update, &moved)?;
        put(sql, &schema::LIVE, Put::Delete, &gone)?;
        for (table, how, mut rows) in std::mem::take(&mut self.out) {
            if how != Put::Insert {
                keep_last(table, &mut rows);
            }
            put(sql, table, how, &rows)?;
        }
        for (link, now) in std::mem::take(&mut self.faded) {
            fade(sql, self.ledger.log, link, now)?;
        }
        Ok(())
    }

    /// Notes a row to be written. What goes, goes first: others may come under its key.
    fn note(&mut self, table: &'static Table, how: Put, row: Row) {
        let found = self.out.iter_mut().find(|(t, h, _)| t.name == table.name && *h == how);
        match found {
            Some((_, _, rows)) => rows.push(row),
            None if how == Put::Delete => self.out.insert(0, (table, how, vec![row])),
            None => self.out.push((table, how, vec![row])),
        }
    }

    /// Notes an event.
    fn tell(&mut self, at: Time, event: Told) {
        let row = vec![
            self.ledger.log.0.into(),
            self.event_next.into(),
            at.0.into(),
            i64::from(event.kind.code()).into(),
            event.subject.into(),
            event.revision.0.into(),
            code(event.from.map(State::code)),
            code(event.to.map(State::code)),
            code(event.error.map(ErrorClass::code)),
        ];
        self.event_next += 1;
        self.note(&schema::EVENT, Put::Insert, row);
    }

    /// Counts files into (1) or out of (−1) a state.
    fn count(&mut self, place: Place3, files: i64, size: i64) {
        let delta = self.deltas.entry(place).or_default();
        *delta = (delta.0 + files, delta.1 + files * size);
    }
}

/// An event without its number.
struct Told {
    kind: EventKind,
    subject: i64,
    revision: Revision,
    from: Option<State>,
    to: Option<State>,
    error: Option<ErrorClass>,
}

impl Told {
    /// Something was recorded, and no state changed.
    const fn recorded(kind: EventKind, subject: i64, revision: Revision) -> Self {
        Self { kind, subject, revision, from: None, to: None, error: None }
    }
}

fn code(code: Option<u16>) -> crate::sql::Value {
    i64::from(code.unwrap_or(0)).into()
}

/// Of rows with the same key the last one: a statement may name each key once.
fn keep_last(table: &Table, rows: &mut Vec<Row>) {
    let mut keys = HashSet::new();
    let mut last: Vec<bool> =
        rows.iter().rev().map(|row| keys.insert(row[..table.keys].to_vec())).collect();
    rows.retain(|_| last.pop() == Some(true));
}

fn put(sql: &mut dyn Sql, table: &Table, how: Put, rows: &[Row]) -> Result<(), DbError> {
    if rows.is_empty() { Ok(()) } else { sql.put(table, how, rows) }
}

fn pick(
    sql: &mut dyn Sql,
    table: &Table,
    by: &[&str],
    keys: &[Row],
    hold: Hold,
) -> Result<Vec<Row>, DbError> {
    if keys.is_empty() { Ok(Vec::new()) } else { sql.pick(table, by, keys, hold) }
}
