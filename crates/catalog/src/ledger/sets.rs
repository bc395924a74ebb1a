//! Set digests, kept up to date by the writer: what each site holds, as one sum per day and per leaf of its tree.
//!
//! A file is *held* by a site when its BLAKE3 is known and its replica there is present. Whenever that changes, the hash of (file key,
//! BLAKE3) is added to, or taken out of, the sums of the file's day and leaf, in the commit that changes it. The sum
//! is XOR: it does not depend on order, and taking out is adding again. Rows are each writer's own, as counters are, so no two
//! daemons write the same; the sums of all writers together are the set's.
//!
//! Nothing is ever summed anew: a batch reads the rows of its own sums that it does not remember, at most one for each file.

use super::{Batch, pick};
use crate::change::{Change, Next};
use crate::digest_set::{Leaf, SUM_BYTES, SetDay, SetDigest, entry_hash};
use crate::key::FileKey;
use crate::record::{DigestKind, FileId, LogId, Replica, ReplicaState, RuleId, SiteId, Time};
use crate::schema;
use crate::sql::{Columns, DbError, Hold, Put, Row, Sql, Value};
use crate::words::{self, WordKind};
use std::collections::{BTreeMap, HashMap};

/// Sums that are remembered between batches; beyond that they are read again.
const REMEMBERED_MAX: usize = 1 << 17;

/// A sum's place: a day, or one leaf of it.
pub(crate) type SetPlace = (SetDay, Option<Leaf>);

/// What a file is called across sites.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Called {
    pub(crate) site: SiteId,
    pub(crate) rule: RuleId,
    pub(crate) day: i64,
    pub(crate) key: FileKey,
}

impl Called {
    /// The row of one of its replicas.
    pub(crate) fn replica_row(&self, replica: &Replica, since: Time) -> Row {
        vec![
            replica.file.0.into(),
            replica.site.0.into(),
            replica.path.as_str().into(),
            i64::from(replica.state.code()).into(),
            since.0.into(),
            self.site.0.into(),
            self.rule.0.into(),
            self.day.into(),
            Value::Bytes(self.key.0.to_vec()),
        ]
    }
}

/// What a writer remembers of its own sums, as they are committed.
#[derive(Debug, Default)]
pub(super) struct Sums {
    of: HashMap<SetPlace, SetDigest>,
    sites: HashMap<SiteId, String>,
}

/// What a batch knows of replicas, and does to sums.
#[derive(Default)]
pub(super) struct Sets {
    called: HashMap<FileId, Called>,
    replicas: HashMap<FileId, BTreeMap<SiteId, ReplicaState>>,
    deltas: BTreeMap<SetPlace, SetDigest>,
    after: Vec<(SetPlace, SetDigest)>,
}

/// The file whose replicas or BLAKE3 a change touches.
pub(super) fn touches(change: &Change) -> Option<FileId> {
    match change {
        Change::Move(step) if matches!(step.next, Next::Hashed(_) | Next::Verified(..)) => {
            Some(step.file)
        }
        Change::Digest(file, digest) if digest.kind() == DigestKind::Blake3 => Some(*file),
        Change::Replica(replica) => Some(replica.file),
        _ => None,
    }
}

impl Batch<'_> {
    /// Reads replicas and names of these files.
    pub(super) fn load_sets(
        &mut self,
        sql: &mut dyn Sql,
        mut files: Vec<FileId>,
    ) -> Result<(), DbError> {
        files.sort_unstable();
        files.dedup();
        // A file that the batch itself took in has no other replicas than the batch's.
        files.retain(|file| !self.sets.called.contains_key(file));
        let keys: Vec<Row> = files.iter().map(|file| vec![file.0.into()]).collect();
        for row in pick(sql, &schema::FILE_CALLED, &["id"], &keys, Hold::Nothing)? {
            let mut row = Columns::of(row);
            let (file, site, name) = (FileId(row.int()?), SiteId(row.int()?), row.text()?);
            let (version, rule, origin) = (row.int()?, RuleId(row.int()?), row.int()?);
            self.learn_site(sql, site)?;
            let taken_in = crate::record::taken_in(file, origin);
            self.call(file, site, &name, version, rule, taken_in);
        }
        for row in pick(sql, &schema::REPLICA, &["file"], &keys, Hold::Nothing)? {
            let replica = crate::reader::replica_of(row)?;
            let known = self.sets.replicas.entry(replica.file).or_default();
            known.insert(replica.site, replica.state);
        }
        Ok(())
    }

    /// Learns what a site is called, once.
    pub(super) fn learn_site(&mut self, sql: &mut dyn Sql, site: SiteId) -> Result<(), DbError> {
        let sites = &mut self.ledger.sums.sites;
        if !sites.contains_key(&site) {
            let all = words::all(sql, WordKind::Site)?;
            *sites = all.into_iter().map(|(id, name)| (SiteId(id), name)).collect();
        }
        Ok(())
    }

    /// Notes what a file is called.
    pub(super) fn call(
        &mut self,
        file: FileId,
        site: SiteId,
        name: &str,
        version: i64,
        rule: RuleId,
        taken_in: Time,
    ) {
        let site_name = self.ledger.sums.sites.get(&site).map_or("", String::as_str);
        let key = FileKey::of(site_name, name, version);
        let day = SetDay::day_of(taken_in);
        self.sets.called.insert(file, Called { site, rule, day, key });
    }

    /// What a file is called; it was loaded, or taken in by this batch.
    pub(super) fn called(&self, file: FileId) -> Called {
        *self.sets.called.get(&file).expect("loaded with the change that needs it")
    }

    /// Whether the file had replicas, and none of them is there any more.
    pub(super) fn all_replicas_gone(&self, file: FileId) -> bool {
        let replicas = self.sets.replicas.get(&file);
        replicas.is_some_and(|of| of.values().all(|state| *state != ReplicaState::Present))
    }

    /// A replica is recorded as this.
    pub(super) fn replica_becomes(&mut self, file: FileId, site: SiteId, state: ReplicaState) {
        let known = self.sets.replicas.entry(file).or_default();
        let was = known.insert(site, state) == Some(ReplicaState::Present);
        if was != (state == ReplicaState::Present) {
            self.enter_set(file, site, if was { -1 } else { 1 });
        }
    }

    /// A BLAKE3 is recorded: replicas that are there are held from now on.
    pub(super) fn digest_becomes_known(&mut self, file: FileId) {
        let Some(replicas) = self.sets.replicas.get(&file) else { return };
        let present = replicas.iter().filter(|(_, state)| **state == ReplicaState::Present);
        let sites: Vec<SiteId> = present.map(|(site, _)| *site).collect();
        for site in sites {
            self.enter_set(file, site, 1);
        }
    }

    /// Adds the file to what a site holds (1), or takes it out (−1).
    fn enter_set(&mut self, file: FileId, holder: SiteId, files: i64) {
        let Some(digest) = self.digests.get(&(file, DigestKind::Blake3)) else { return };
        let called = self.called(file);
        let Called { site: origin, rule, day, key } = called;
        let day = SetDay { holder, origin, rule, day };
        let delta = SetDigest { files, sum: entry_hash(&key, digest) };
        for leaf in [None, Some(Leaf::of(&key))] {
            self.sets.deltas.entry((day, leaf)).or_default().add(&delta);
        }
    }

    /// Writes the sums that have changed.
    pub(super) fn write_sets(&mut self, sql: &mut dyn Sql) -> Result<(), DbError> {
        let log = self.ledger.log;
        let sums = &mut self.ledger.sums.of;
        if sums.len() > REMEMBERED_MAX {
            sums.clear();
        }
        for (table, is_leaf) in [(&schema::SET_DAY, false), (&schema::SET_LEAF, true)] {
            let ours =
                || self.sets.deltas.iter().filter(|((_, leaf), _)| leaf.is_some() == is_leaf);
            let unknown = ours().filter(|(place, _)| !sums.contains_key(place));
            let unknown: Vec<Row> = unknown.map(|(place, _)| key_row(place, log)).collect();
            let by: Vec<&str> = table.columns[..table.keys].iter().map(|(name, _)| *name).collect();
            for row in pick(sql, table, &by, &unknown, Hold::Nothing)? {
                let (place, _, digest) = place_of(row, is_leaf)?;
                sums.insert(place, digest);
            }
            let mut rows = Vec::new();
            for (place, delta) in ours() {
                let mut digest = sums.get(place).copied().unwrap_or_default();
                digest.add(delta);
                let mut row = key_row(place, log);
                row.extend([digest.files.into(), Value::Bytes(digest.sum.to_vec())]);
                rows.push(row);
                self.sets.after.push((*place, digest));
            }
            super::put(sql, table, Put::Upsert, &rows)?;
        }
        Ok(())
    }

    /// Remembers the sums, once they are durable.
    pub(super) fn keep_sets(&mut self) {
        self.ledger.sums.of.extend(self.sets.after.drain(..));
    }
}

/// The key of a sum's row.
pub(crate) fn key_row(place: &SetPlace, log: LogId) -> Row {
    let (SetDay { holder, origin, rule, day }, leaf) = place;
    let mut row = vec![holder.0.into(), origin.0.into(), rule.0.into(), Value::Int(*day)];
    row.extend(leaf.map(|leaf| Value::Int(leaf.0.into())));
    row.push(log.0.into());
    row
}

/// From a row of either table.
pub(crate) fn place_of(row: Row, is_leaf: bool) -> Result<(SetPlace, LogId, SetDigest), DbError> {
    let mut row = Columns::of(row);
    let (holder, origin) = (SiteId(row.int()?), SiteId(row.int()?));
    let day = SetDay { holder, origin, rule: RuleId(row.int()?), day: row.int()? };
    let leaf = if is_leaf { Some(row.code(Leaf::from_code)?) } else { None };
    let (log, files) = (LogId(row.int()?), row.int()?);
    let sum: Result<[u8; SUM_BYTES], _> = row.bytes()?.try_into();
    let sum = sum.map_err(|_| DbError::damaged("a sum of another length"))?;
    Ok(((day, leaf), log, SetDigest { files, sum }))
}
