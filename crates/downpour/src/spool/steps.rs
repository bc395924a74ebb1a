//! What a tick writes into the catalog of files on their way to the queue: taken in, settled, hashed, queued.
//!
//! [`Spool::tick`] takes these steps in this order, each for all files that are ready for it, in common commits. Not here: what is
//! on the disk (`engine` looks), whether a file is complete (`settle`), its digests (`read`), and what follows when
//! it has vanished or was received (`ends`).

use super::book::{Record, SpoolError};
use super::engine::{Rel, Spool, Stage};
use super::read::{Job, Outcome};
use super::root::{Now, Seen};
use super::settle::Settling;
use downpour_catalog::{
    Answer, Applied, Change, Digest, ErrorClass, File, FileId, Next, OtherContent, Reason, Refused,
    Replica, ReplicaState, Scope, State,
};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

/// Time until a file that could not be read is tried again; four times as long after each try.
const RETRY: Duration = Duration::from_secs(10);
/// Tries after which a file that fails for its own fault is set apart.
const TRIES_MAX: u32 = 5;
/// Time until a file is tried again that could not be read for a fault of the disk or the machine.
const RETRY_OTHERS: Duration = Duration::from_secs(60);
/// It is twice as long after each failure in a row, up to this.
const RETRY_OTHERS_MAX: Duration = Duration::from_secs(3600);
/// A file that changed while it was read is looked at again after this, at the earliest.
const CHANGED_PAUSE: Duration = Duration::from_secs(1);

impl Spool {
    /// Takes new files in.
    pub(super) fn take_in(&mut self, now: Now) -> Result<(), SpoolError> {
        self.note_replaced();
        let fresh = std::mem::take(&mut self.todo.fresh);
        let fresh: Vec<Rel> = fresh.into_iter().filter(|rel| self.is_at(rel, Stage::New)).collect();
        let changes = fresh.iter().map(|rel| self.as_new(rel, None)).collect();
        let answers = self.book.apply(now.wall, changes)?;
        self.count_taken_in(answers.iter().filter(|a| matches!(a, Ok(a) if !a.repeated)).count());
        for (rel, answer) in fresh.iter().zip(answers) {
            match answer {
                Ok(applied) => self.taken_in(now, rel, applied)?,
                Err(Refused::NameTaken { version }) => self.refuse_content(now, rel, version)?,
                Err(refused) => self.cannot_book(rel, &refused),
            }
        }
        self.note_places(now, &fresh)
    }

    /// Where these lie of which the catalog has a copy: the spool's folder may have had another path.
    fn note_places(&mut self, now: Now, rels: &[Rel]) -> Result<(), SpoolError> {
        let Some(root) = self.root.clone() else { return Ok(()) };
        let known = |rel: &Rel| {
            let file = self.files.get(rel).filter(|file| file.stage == Stage::Booked)?;
            Some((file.record?.file, rel.clone()))
        };
        let known: HashMap<FileId, Rel> = rels.iter().filter_map(known).collect();
        let files: Vec<_> = known.keys().copied().collect();
        let mut copies = self.book.copies(&files)?;
        copies.retain(|copy| {
            copy.state != ReplicaState::Corrupt
                && Path::new(&copy.path) != root.full(&known[&copy.file])
        });
        let lies = |copy: &Replica| self.present(copy.file, &known[&copy.file]);
        self.book.apply(now.wall, copies.iter().map(lies).collect())?;
        Ok(())
    }

    fn is_at(&self, rel: &Rel, stage: Stage) -> bool {
        self.files.get(rel).is_some_and(|file| file.stage == stage)
    }

    /// The change that takes a file in, by its rule or by what is said.
    fn as_new(&mut self, rel: &Rel, other_content: Option<OtherContent>) -> Change {
        let file = self.files.get_mut(rel).expect("asked for after it was found");
        file.known = file.seen;
        let by_rule = self.rules.at(file.rule).other_content();
        let content = (file.seen.size, file.seen.stamp(file.salt));
        let other_content = other_content.unwrap_or(by_rule);
        Change::TakeIn(self.book.new_file(rel, file.rule, content, other_content))
    }

    fn cannot_book(&mut self, rel: &Rel, refused: &Refused) {
        if let Some(file) = self.files.get_mut(rel) {
            file.stage = Stage::Refused;
        }
        self.say(format!("{rel}: the catalog cannot hold it: {refused}"));
    }

    fn taken_in(&mut self, now: Now, rel: &Rel, applied: Applied) -> Result<(), SpoolError> {
        let state = applied.state.unwrap_or(State::Found);
        let record = Record { file: applied.file, revision: applied.revision, state };
        // What an operator gave up is the newest of its name, and its copy stands there.
        let is_newest = |newest: Option<File>| newest.is_some_and(|file| file.id == applied.file);
        if state == State::Cancelled
            && (self.book.is_removed(applied.file)? || !is_newest(self.book.newest(rel)?))
        {
            // It went away and came back as it was: a file as any other.
            if let Some(file) = self.files.get_mut(rel) {
                file.salt += 1;
                self.todo.fresh.push(rel.clone());
            }
            return Ok(());
        }
        let is_read = match record.state {
            State::Found | State::Settled => false,
            State::Waiting | State::Quarantined => {
                self.book.file(record.file)?.is_some_and(|file| file.digest.is_some())
            }
            _ => true,
        };
        self.by_id.insert(record.file, rel.clone());
        self.orphans.remove(&record.file);
        let Some(file) = self.files.get_mut(rel) else { return Ok(()) };
        file.record = Some(record);
        if record.state == State::Quarantined {
            return self.met_quarantined(now, rel, record);
        }
        file.stage = if is_read { Stage::Booked } else { Stage::Settling };
        if is_read {
            let keeps = self.rules.at(file.rule).keeps();
            match record.state {
                State::Hashed => self.todo.to_queue.push(rel.clone()),
                State::Receipted if !keeps => self.todo.received.push(rel.clone()),
                State::Cancelled => self.todo.set_apart.push((rel.clone(), String::new())),
                _ => {}
            }
        } else {
            self.weigh(now, rel);
        }
        Ok(())
    }

    /// A file lies in the spool that the catalog has set apart: it came back, or its move to quarantine was cut short.
    pub(super) fn met_quarantined(
        &mut self,
        now: Now,
        rel: &Rel,
        record: Record,
    ) -> Result<(), SpoolError> {
        if let Some(file) = self.files.get_mut(rel) {
            file.stage = Stage::Booked;
        }
        let known = self.book.file(record.file)?;
        match known.filter(|file| file.error == Some(ErrorClass::FileGone)) {
            Some(gone) => self.is_back(now, rel, &gone),
            None => {
                self.todo.set_apart.push((rel.clone(), String::new()));
                Ok(())
            }
        }
    }

    /// A file that was gone lies in its place again.
    fn is_back(&mut self, now: Now, rel: &Rel, gone: &File) -> Result<(), SpoolError> {
        let changes = self.resumed(gone, rel);
        match self.book.apply(now.wall, changes)?.remove(0) {
            Ok(applied) => {
                self.say(format!("{rel}: it is back"));
                self.taken_in(now, rel, applied)?;
            }
            refused => {
                self.note_answers(now, rel, &[refused]);
            }
        }
        Ok(())
    }

    /// Other content under a name that the rule protects: taken in, so that it is accounted for, and set apart.
    fn refuse_content(&mut self, now: Now, rel: &Rel, version: i64) -> Result<(), SpoolError> {
        let change = self.as_new(rel, Some(OtherContent::NewVersion));
        match self.book.apply(now.wall, vec![change])?.remove(0) {
            Err(refused) => self.cannot_book(rel, &refused),
            Ok(applied) => {
                let state = applied.state.unwrap_or(State::Found);
                let record = Record { file: applied.file, revision: applied.revision, state };
                self.by_id.insert(applied.file, rel.clone());
                if let Some(file) = self.files.get_mut(rel) {
                    (file.record, file.stage) = (Some(record), Stage::Booked);
                }
                let text = format!("version {version} of this name has other content");
                self.quarantine_as(now, rel, ErrorClass::VersionConflict, text)?;
            }
        }
        Ok(())
    }

    /// Complete files become settled and go to the readers.
    pub(super) fn settle(&mut self, now: Now) -> Result<(), SpoolError> {
        let complete = std::mem::take(&mut self.todo.complete);
        let (mut changes, mut parts) = (Vec::new(), Vec::new());
        for rel in complete {
            let Some(file) = self.files.get(&rel).filter(|file| file.stage == Stage::Complete)
            else {
                continue;
            };
            let Some(mut record) = file.record else { continue };
            let (size, first) = (file.seen.size, changes.len());
            if !file.seen.is_content_of(&file.known) {
                // It was written on since it was found.
                changes.push(self.as_new(&rel, None));
                record.revision.0 += 1;
            }
            if record.state != State::Settled {
                changes.push(record.step(Next::Settled { size }));
            }
            parts.push((rel, record.file, first..changes.len()));
        }
        let answers = self.book.apply(now.wall, changes)?;
        let mut jobs = Vec::new();
        for (rel, file, part) in parts {
            let answers = &answers[part];
            if matches!(answers.first(), Some(Ok(applied)) if applied.file != file) {
                // The catalog has this content as another file: it was put back, or the one that was found is given up.
                self.replaced(now, &rel);
            } else if self.note_answers(now, &rel, answers) {
                jobs.extend(self.job(&rel, false));
            }
        }
        if let Some(readers) = &mut self.readers {
            readers.add(jobs);
        }
        Ok(())
    }

    /// Notes where a file stands after these answers; a refused one is looked at again.
    pub(super) fn note_answers(&mut self, now: Now, rel: &Rel, answers: &[Answer]) -> bool {
        let Some(file) = self.files.get_mut(rel) else { return false };
        let mut all = true;
        for answer in answers {
            match answer {
                Ok(applied) if applied.state.is_some() => {
                    let state = applied.state.unwrap_or(State::Found);
                    file.record =
                        Some(Record { file: applied.file, revision: applied.revision, state });
                }
                Ok(_) => {}
                Err(Refused::Stale { revision, state }) => {
                    if let Some(record) = &mut file.record {
                        (record.revision, record.state) = (*revision, *state);
                    }
                    all = false;
                }
                Err(refused) => {
                    let text = format!("{rel}: {refused}");
                    all = false;
                    self.say(text);
                    break;
                }
            }
            if !all {
                break;
            }
        }
        if !all {
            self.look_anew(now, rel);
        }
        all
    }

    /// Somebody else took a step: what is to be done follows from where it stands now.
    fn look_anew(&mut self, now: Now, rel: &Rel) {
        let Some(file) = self.files.get_mut(rel) else { return };
        let unread = match file.record.map(|record| record.state) {
            Some(State::Found | State::Settled) => true,
            Some(State::Waiting) => file.stage != Stage::Booked,
            _ => false,
        };
        file.stage = if unread { Stage::Settling } else { Stage::Booked };
        file.not_before = now.steady + CHANGED_PAUSE;
        let at = file.not_before;
        self.look_later(at, rel);
    }

    /// Sends a file to the readers.
    pub(super) fn job(&mut self, rel: &Rel, again: bool) -> Option<Job> {
        let file = self.files.get_mut(rel)?;
        let id = file.record?.file;
        file.stage = Stage::Reading;
        let kinds = if again { Vec::new() } else { self.rules.at(file.rule).digests.clone() };
        Some(Job { rel: rel.clone(), file: id, seen: file.seen, kinds, again })
    }

    /// What the readers found.
    pub(super) fn book_digests(&mut self, now: Now) -> Result<(), SpoolError> {
        let Some(readers) = &mut self.readers else { return Ok(()) };
        let done = readers.take();
        let (mut changes, mut parts) = (Vec::new(), Vec::new());
        for (job, outcome) in done {
            let rel = job.rel;
            let Some(record) = self.files.get(&rel).and_then(|file| file.record) else { continue };
            // It may be of a file that had this name before.
            if record.file != job.file || !self.is_at(&rel, Stage::Reading) {
                continue;
            }
            let first = changes.len();
            match outcome {
                _ if job.again => {
                    self.read_again(now, (&rel, job.seen), &outcome)?;
                    continue;
                }
                Outcome::Digests(digests) => {
                    changes.extend(self.hashed(&rel, record, digests));
                    parts.push((rel, first..changes.len(), Some(job.seen)));
                    continue;
                }
                Outcome::Changed => changes.push(self.changed(now, &rel, record)),
                Outcome::Gone => {
                    self.gone_unread(now, rel);
                    continue;
                }
                Outcome::Unreadable(class, text) => {
                    let Some(next) = self.unreadable(now, &rel, class, &text) else {
                        self.quarantine_as(now, &rel, ErrorClass::FileUnreadable, text)?;
                        continue;
                    };
                    changes.push(record.step(next));
                }
                Outcome::Differs(text) => {
                    self.quarantine_as(now, &rel, ErrorClass::DigestDiffers, text)?;
                    continue;
                }
            }
            parts.push((rel, first..changes.len(), None));
        }
        let answers = self.book.apply(now.wall, changes)?;
        for (rel, part, read) in parts {
            let other = Err(Refused::DigestDiffers(downpour_catalog::DigestKind::Blake3));
            if answers[part.clone()].contains(&other) {
                let text = "the catalog has another digest of it".to_owned();
                self.quarantine_as(now, &rel, ErrorClass::DigestDiffers, text)?;
            } else if self.note_answers(now, &rel, &answers[part]) {
                self.digested(now, &rel, read);
            }
        }
        Ok(())
    }

    fn digested(&mut self, now: Now, rel: &Rel, read: Option<Seen>) {
        let (Some(file), Some(read)) = (self.files.get_mut(rel), read) else { return };
        (file.read, file.known, file.stage) = (Some(read), read, Stage::Booked);
        (file.tries, file.waits) = (0, 0);
        if !file.seen.is_content_of(&read) {
            // It was replaced between reading and booking.
            self.look_later(now.steady, rel);
        }
    }

    /// Its digests, where it lies, and its place in the queue: one commit.
    fn hashed(&self, rel: &Rel, record: Record, digests: Vec<Digest>) -> Vec<Change> {
        let mut next = record;
        next.revision.0 += 1;
        vec![
            self.present(record.file, rel),
            record.step(Next::Hashed(digests)),
            next.step(Next::Queued),
        ]
    }

    /// Its copy lies in the spool.
    pub(super) fn present(&self, file: FileId, rel: &str) -> Change {
        let path = self.root.as_ref().map(|root| root.full(rel).display().to_string());
        self.book.present(file, path.unwrap_or_default())
    }

    /// It was gone when its turn came to be read: cancelled, unless it comes back in time. Then it is to settle again.
    fn gone_unread(&mut self, now: Now, rel: Rel) {
        self.settle_again(now, &rel);
        self.missing.entry(rel).or_insert(now.steady);
    }

    fn settle_again(&mut self, now: Now, rel: &Rel) {
        let at = now.steady + CHANGED_PAUSE;
        if let Some(file) = self.files.get_mut(rel) {
            file.stage = Stage::Settling;
            file.settling = Settling::new(now.steady, file.seen);
            file.not_before = at;
        }
        self.look_later(at, rel);
    }

    /// It changed under the reader: it is to settle again.
    fn changed(&mut self, now: Now, rel: &Rel, record: Record) -> Change {
        self.settle_again(now, rel);
        let next_try = now.wall.plus_s(CHANGED_PAUSE.as_secs() as i64);
        let error = Some(ErrorClass::FileChanged);
        record.step(Next::Waiting { reason: Reason::Settling, error, next_try, bytes: 0 })
    }

    /// It cannot be read: it waits, or is to be set apart (`None`).
    fn unreadable(&mut self, now: Now, rel: &Rel, class: ErrorClass, text: &str) -> Option<Next> {
        let file = self.files.get_mut(rel)?;
        let is_own = class.scope() == Scope::File;
        file.tries += u32::from(is_own);
        file.waits = if is_own { 0 } else { file.waits + 1 };
        let pause = pause(class, if is_own { file.tries } else { file.waits })?;
        file.stage = Stage::Settling;
        file.not_before = now.steady + pause;
        let at = file.not_before;
        self.look_later(at, rel);
        let pause_s = pause.as_secs();
        self.say(format!("{rel}: cannot be read ({text}), again in {pause_s} s"));
        let next_try = now.wall.plus_s(pause_s as i64);
        Some(Next::Waiting { reason: Reason::BackOff, error: Some(class), next_try, bytes: 0 })
    }

    /// Files that are hashed and not queued, after a start in between.
    pub(super) fn queue(&mut self, now: Now) -> Result<(), SpoolError> {
        let rels = std::mem::take(&mut self.todo.to_queue);
        let records: Vec<_> = rels
            .into_iter()
            .filter_map(|rel| Some((self.files.get(&rel)?.record?, rel)))
            .filter(|(record, _)| record.state == State::Hashed)
            .collect();
        let changes = records.iter().map(|(record, _)| record.step(Next::Queued)).collect();
        let answers = self.book.apply(now.wall, changes)?;
        for ((_, rel), answer) in records.into_iter().zip(answers) {
            self.note_answers(now, &rel, &[answer]);
        }
        Ok(())
    }
}

/// Time until a file that could not be read is tried again, after so many failures of its own, or of others in a row; `None` when
/// its own are enough.
fn pause(class: ErrorClass, failures: u32) -> Option<Duration> {
    let before = failures.saturating_sub(1);
    if class.scope() != Scope::File {
        return Some((RETRY_OTHERS * 2u32.pow(before.min(6))).min(RETRY_OTHERS_MAX));
    }
    (failures < TRIES_MAX).then(|| RETRY * 4u32.pow(before))
}

#[cfg(test)]
mod tests {
    use super::{
        Next, Now, RETRY, RETRY_OTHERS, RETRY_OTHERS_MAX, Rel, Spool, Stage, State, TRIES_MAX,
        pause,
    };
    use crate::spool::Rules;
    use downpour_catalog::{BeforeMigration, Catalog, CatalogUrl, ErrorClass, Scope, Time};
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn only_a_files_own_fault_sets_it_apart() {
        for class in ErrorClass::ALL {
            let is_own = class.scope() == Scope::File;
            assert_eq!(pause(*class, TRIES_MAX).is_none(), is_own, "{class}");
            assert!(pause(*class, TRIES_MAX - 1).is_some(), "{class}");
        }
        assert_eq!(pause(ErrorClass::FileUnreadable, 2), Some(4 * RETRY));
        let of_others = |failures| pause(ErrorClass::SourceReadFailed, failures).unwrap();
        assert_eq!([1, 2].map(of_others), [RETRY_OTHERS, 2 * RETRY_OTHERS]);
        assert_eq!([7, 1000].map(of_others), [RETRY_OTHERS_MAX; 2]);
    }

    #[test]
    fn what_is_back_and_took_another_step_meanwhile_is_looked_at_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("spool");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("a"), "abc").unwrap();
        let now = Now { steady: Duration::ZERO, wall: Time(1_790_000_000_000_000) };
        let url = CatalogUrl::Sqlite(folder.path().join("catalog.db"));
        let catalog = Catalog::open(&url, "daemon", now.wall, &BeforeMigration::Refuse).unwrap();
        let section = toml::from_str(&format!("folder = {path:?}")).unwrap();
        let rule = toml::from_str("name = 'all'\nmatch = '*'\nto = 'there'").unwrap();
        let (rules, said) = (Arc::new(Rules::new("here", &[rule])), Box::new(|_, _| None));
        let catalog = Arc::new(catalog);
        let mut spool = Spool::open(section, rules, catalog, Arc::default(), said).unwrap();
        spool.tick(now).unwrap();
        let rel = Rel::from("a");
        let record = spool.files[&rel].record.unwrap();
        let before = spool.book.file(record.file).unwrap().unwrap();
        let step = record.step(Next::Quarantined(ErrorClass::FileUnreadable));
        spool.book.apply(now.wall, vec![step]).unwrap().remove(0).unwrap();
        spool.files.get_mut(&rel).unwrap().stage = Stage::New;
        spool.is_back(now, &rel, &before).unwrap();
        let file = &spool.files[&rel];
        let state = file.record.map(|record| record.state);
        assert_eq!((file.stage, state), (Stage::Booked, Some(State::Quarantined)));
    }
}
