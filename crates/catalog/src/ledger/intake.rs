//! New files in a batch: a name is never overwritten in silence.
//!
//! Other content under a name that the catalog has becomes the name's next version, or is refused, as the caller wants; so does the
//! same content that goes by another rule, if the caller asks for it. Which
//! content it is tells the digest where a file is adopted, else the stamp. A file that nobody has read yet has no content to keep:
//! with another stamp it is the same file, still being written, unless it goes by somebody's transfer and another rule.

use super::records::{check_receipt, check_size, is_text};
use super::standing::{NewName, Standing};
use super::{Batch, Known, Told, pick};
use crate::change::{
    AdoptedFile, Answer, Applied, Change, NAME_BYTES_MAX, NewFile, Origin, OtherContent,
    PATH_BYTES_MAX, Refused, Same,
};
use crate::life::State;
use crate::record::{
    Digest, DigestKind, EventKind, FileId, Receipt, Replica, ReplicaState, Revision, RuleId,
    SiteId, Time, TransferId,
};
use crate::schema;
use crate::sql::{Columns, DbError, Hold, Put, Row, Sql};
use std::collections::HashSet;

/// The last version that a site of origin may say. It leaves room to count on from there.
const VERSION_MAX: i64 = 1 << 53;

impl Batch<'_> {
    /// Reads what is known under the names of these changes; returns the files.
    pub(super) fn load_names<'c>(
        &mut self,
        sql: &mut dyn Sql,
        changes: impl Iterator<Item = &'c Change>,
    ) -> Result<Vec<FileId>, DbError> {
        let mut wanted = HashSet::new();
        for change in changes {
            let (site, name) = match change {
                Change::TakeIn(file) => (file.site, &file.name),
                Change::Adopt(file) => (file.site, &file.name),
                _ => continue,
            };
            if is_name(name) && !self.names.contains_key(&(site, name.clone())) {
                wanted.insert((site, name.clone()));
            }
        }
        let mut keys: Vec<Row> =
            wanted.iter().map(|(site, name)| vec![name.as_str().into(), site.0.into()]).collect();
        keys.sort_unstable();
        for key in wanted {
            self.names.insert(key, Vec::new());
        }
        let mut found = Vec::new();
        for row in pick(sql, &schema::FILE, &["name", "site"], &keys, Hold::Nothing)? {
            let mut row = Columns::of(row);
            let (file, site, name) = (FileId(row.int()?), SiteId(row.int()?), row.text()?);
            let (version, stamp) = (row.int()?, row.int()?);
            found.push(file);
            let known = self.names.entry((site, name)).or_default();
            known.push(Known { version, file, stamp });
        }
        Ok(found)
    }

    pub(super) fn take_in(&mut self, now: Time, new: &NewFile) -> Answer {
        let size = check_name_and_size(&new.name, new.size)?;
        let known = &self.names[&(new.site, new.name.clone())];
        // Where several rules have a name, the file of this one comes first.
        let rank = |known: &&Known| (self.goes_by(known.file, new.rule), known.version);
        let meant = || known.iter().filter(|known| new.same == Same::Any || rank(known).0);
        let is_same = |known: &&Known| known.stamp == new.stamp && known.stamp != 0;
        if let Some(same) = meant().filter(is_same).max_by_key(rank) {
            let file = same.file;
            self.joins(file, new.transfer);
            return Ok(self.stands(file, true));
        }
        let newest = meant().filter(|known| !self.is_of_others(known.file, new.rule));
        let newest = newest.max_by_key(rank);
        if let Some(unread) = newest.filter(|newest| self.is_unread(newest, new.stamp)) {
            let file = unread.file;
            match new.same {
                Same::Unread(meant) if meant != file => {}
                _ => return Ok(self.restamp(now, file, new, size)),
            }
        }
        if let Same::Unread(file) = new.same {
            let stands = self.files.get(&file);
            return Err(stands.map_or(Refused::NoSuchFile(file), |file| Refused::Stale {
                revision: file.revision,
                state: file.state,
            }));
        }
        let version = self.next_version(known, new.other_content)?;
        let file = self.ledger.mint.next(now);
        let (name, stamp, taken_in) = (new.name.clone(), new.stamp, taken_in(now));
        let name = NewName { name, version, stamp, taken_in };
        let mut standing = Standing::new(file, State::Found, now, name);
        (standing.site, standing.rule, standing.rank) = (new.site, new.rule, new.rank);
        (standing.size, standing.transfer) = (size, new.transfer.unwrap_or(TransferId(0)));
        Ok(self.enter(now, standing))
    }

    /// A file that goes by no transfer, as it was queued again after its end, goes by the one that asks for it. That is no step.
    fn joins(&mut self, file: FileId, transfer: Option<TransferId>) {
        let Some(standing) = self.files.get_mut(&file).filter(|file| !file.state.is_end()) else {
            return;
        };
        if let Some(transfer) = transfer.filter(|_| standing.transfer == TransferId(0)) {
            (standing.transfer, standing.is_changed) = (transfer, true);
        }
    }

    /// Whether a file goes by this rule, and was not given up.
    fn goes_by(&self, file: FileId, rule: RuleId) -> bool {
        let standing = self.files.get(&file);
        standing.is_some_and(|file| file.rule == rule) && !self.is_given_up(file)
    }

    /// Whether a file goes by a transfer, and by another rule: where that goes is not where this rule goes.
    fn is_of_others(&self, file: FileId, rule: RuleId) -> bool {
        let standing = self.files.get(&file);
        standing.is_some_and(|file| file.transfer != TransferId(0) && file.rule != rule)
    }

    fn is_given_up(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|file| file.state == State::Cancelled)
    }

    /// The version that other content becomes. What was given up keeps its number, but the name is free again.
    fn next_version(&self, known: &[Known], other_content: OtherContent) -> Result<i64, Refused> {
        let holders = known.iter().filter(|known| !self.is_given_up(known.file));
        match holders.map(|known| known.version).max() {
            Some(version) if other_content == OtherContent::Refuse => {
                Err(Refused::NameTaken { version })
            }
            _ => Ok(known.iter().map(|known| known.version).max().unwrap_or(0) + 1),
        }
    }

    /// Whether nobody has read the content yet: it is still being written, and no content to keep apart.
    fn is_unread(&self, newest: &Known, stamp: i64) -> bool {
        let Some(standing) = self.files.get(&newest.file) else { return false };
        let is_unread = match standing.state {
            State::Found | State::Settled => true,
            State::Waiting => matches!(standing.resume, State::Found | State::Settled),
            _ => false,
        };
        is_unread && stamp != 0 && newest.stamp != 0
    }

    /// A file that was written on before it was read: the same file, with another stamp and length.
    fn restamp(&mut self, now: Time, file: FileId, new: &NewFile, size: i64) -> Applied {
        let names = self.names.get_mut(&(new.site, new.name.clone()));
        if let Some(known) = names.into_iter().flatten().find(|known| known.file == file) {
            known.stamp = new.stamp;
        }
        let row = vec![file.0.into(), new.stamp.into()];
        self.note(&schema::FILE_STAMP, Put::Update, row);
        self.written_anew(now, file, size, EventKind::TakenIn)
    }

    /// The same file, with other content.
    fn written_anew(&mut self, now: Time, file: FileId, size: i64, kind: EventKind) -> Applied {
        let standing = self.files.get_mut(&file).expect("it was found just now");
        let size_before = std::mem::replace(&mut standing.size, size);
        standing.revision = Revision(standing.revision.0 + 1);
        standing.is_changed = true;
        let (revision, state) = (standing.revision, standing.state);
        let place = (standing.site, standing.rule, state);
        self.count(place, -1, size_before);
        self.count(place, 1, size);
        let (subject, from) = (file.0, Some(state));
        self.tell(now, Told { kind, subject, revision, from, to: from, error: None });
        self.stands(file, false)
    }

    pub(super) fn adopt(&mut self, now: Time, new: &AdoptedFile) -> Answer {
        let size = check_name_and_size(&new.name, new.size)?;
        let is_blake3 = |digest: &Digest| digest.kind() == DigestKind::Blake3;
        if !is_blake3(&new.digest) || new.others.iter().any(is_blake3) {
            return Err(Refused::Malformed("a file is adopted by its one BLAKE3 digest"));
        }
        if new.replicas.iter().any(|(_, path)| !is_text(path, PATH_BYTES_MAX)) {
            return Err(Refused::Malformed("a path is too long or holds a zero byte"));
        }
        new.receipt.as_ref().map_or(Ok(()), check_receipt)?;
        let (applied, is_new) = if let Some(same) = self.same_content(new)? {
            new.others.iter().try_for_each(|digest| self.check_digest(same, digest))?;
            (self.stands(same, true), false)
        } else if let Some(gone) = self.content_gone(new) {
            (self.content_becomes(now, gone, new, size), false)
        } else {
            let file = self.ledger.mint.next(now);
            let known = &self.names[&(new.site, new.name.clone())];
            let (version, taken_in) = match new.origin {
                Some(origin) => (origin.version, origin.taken_in),
                None => (self.next_version(known, new.other_content)?, taken_in(now)),
            };
            self.call(file, new.site, &new.name, version, new.rule, taken_in);
            let name = NewName { name: new.name.clone(), version, stamp: 0, taken_in };
            let mut standing = Standing::new(file, State::Adopted, now, name);
            (standing.site, standing.rule, standing.size) = (new.site, new.rule, size);
            let applied = self.enter(now, standing);
            self.note_digest(file, &new.digest);
            (applied, true)
        };
        for digest in &new.others {
            self.note_other(now, &applied, digest, is_new);
        }
        for (site, path) in &new.replicas {
            let (file, site, path) = (applied.file, *site, path.clone());
            let replica = Replica { file, site, path, state: ReplicaState::Present };
            self.note_replica(now, &replica);
            if !is_new {
                self.tell(now, Told::recorded(EventKind::Replica, file.0, applied.revision));
            }
        }
        if let Some(receipt) = &new.receipt {
            self.note_receipt(&Receipt { file: applied.file, ..receipt.clone() });
            if !is_new {
                let (file, revision) = (applied.file, applied.revision);
                self.tell(now, Told::recorded(EventKind::Receipt, file.0, revision));
            }
        }
        Ok(applied)
    }

    /// One more digest of a file that is adopted, if it is not recorded; what is was compared.
    fn note_other(&mut self, now: Time, applied: &Applied, digest: &Digest, is_new: bool) {
        let (file, revision) = (applied.file, applied.revision);
        if self.digests.contains_key(&(file, digest.kind())) {
            return;
        }
        self.note_digest(file, digest);
        if !is_new {
            self.tell(now, Told::recorded(EventKind::Digest, file.0, revision));
        }
    }

    /// The file that is there with this content: of the version that its site of origin says, or of any.
    fn same_content(&self, new: &AdoptedFile) -> Result<Option<FileId>, Refused> {
        let known = &self.names[&(new.site, new.name.clone())];
        let is_same = |known: &Known| {
            let digest = self.digests.get(&(known.file, DigestKind::Blake3));
            digest.is_some_and(|value| value == new.digest.value())
        };
        let Some(Origin { version, taken_in }) = new.origin else {
            return Ok(known.iter().find(|known| is_same(known)).map(|known| known.file));
        };
        if version < 1 || taken_in.0 < 1 {
            return Err(Refused::Malformed("versions and times are counted from 1"));
        }
        if version > VERSION_MAX {
            return Err(Refused::Malformed("no file has as many versions"));
        }
        match known.iter().find(|known| known.version == version) {
            Some(known) if is_same(known) => Ok(Some(known.file)),
            Some(_) if self.content_gone(new).is_none() => Err(Refused::NameTaken { version }),
            _ => Ok(None),
        }
    }

    /// The file of this name and version, if it is at its end and each of its replicas is lost, removed or corrupt: nobody has the
    /// content that was recorded any more, and what its site of origin says now holds.
    fn content_gone(&self, new: &AdoptedFile) -> Option<FileId> {
        let version = new.origin?.version;
        let mut known = self.names[&(new.site, new.name.clone())].iter();
        let file = known.find(|known| known.version == version)?.file;
        let is_ended = self.files.get(&file)?.state.is_end();
        (is_ended && self.all_replicas_gone(file)).then_some(file)
    }

    fn content_becomes(
        &mut self,
        now: Time,
        file: FileId,
        new: &AdoptedFile,
        size: i64,
    ) -> Applied {
        self.forget_digests(file);
        self.note_digest(file, &new.digest);
        self.written_anew(now, file, size, EventKind::Digest)
    }

    fn enter(&mut self, now: Time, standing: Standing) -> Applied {
        let (file, site, rule) = (standing.file, standing.site, standing.rule);
        let (state, size, revision) = (standing.state, standing.size, standing.revision);
        let super::standing::Place::New(new) = &standing.place else {
            unreachable!("only a new file enters");
        };
        let known = Known { version: new.version, file, stamp: new.stamp };
        self.names.entry((site, new.name.clone())).or_default().push(known);
        self.looked_up.insert(file);
        self.files.insert(file, standing);
        self.count((site, rule, state), 1, size);
        let (kind, subject, to) = (EventKind::TakenIn, file.0, Some(state));
        self.tell(now, Told { kind, subject, revision, from: None, to, error: None });
        self.stands(file, false)
    }
}

/// By the clock, to the millisecond: ids never go back, and one that a clock ahead gave would make the time of all later files its own.
fn taken_in(now: Time) -> Time {
    FileId::first_at(now).time()
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && is_text(name, NAME_BYTES_MAX)
}

fn check_name_and_size(name: &str, size: u64) -> Result<i64, Refused> {
    if !is_name(name) {
        return Err(Refused::Malformed("a name is empty, too long or holds a zero byte"));
    }
    check_size(size)
}
