//! How files end in the spool: vanished, renamed, replaced, set apart, or sent and received.
//!
//! | what happened | to a file that was not read yet | to one whose digests are known | to one that is being sent |
//! | --- | --- | --- | --- |
//! | removed | cancelled | quarantined, `file-gone`; resumed if it comes back as it was | left to the mover, then as before |
//! | renamed | cancelled; the new name is a new file | the same | the same |
//! | written on, replaced | the same file, settled again | cancelled, and a new version; with `versions = "refuse"` quarantined, `file-changed`, and the new one, `version-conflict` | left to the mover |
//!
//! After its receipt a file is the producer's again: it is looked after only as its rule says.

use super::aside::{self, SetApart};
use super::book::{Record, SpoolError};
use super::engine::{GRACE, Rel, Spool, Stage, Tracked};
use super::leave::{Beside, Leaver, Stays};
use super::read::Outcome;
use super::root::{CLOCK_SLACK_S, Now, Root, Seen};
use super::section::{After, Versions};
use super::settle::Settling;
use downpour_catalog::{
    Change, Digest, DigestKind, ErrorClass, Event, File, FileId, Next, Refused, State, Time,
};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time until a received file that could not leave is to leave again; twice as long after each try, at most until the next look
/// at everything.
const STAYS: Duration = Duration::from_secs(10);

/// So many files, or bytes, leave together at most, unless it is one: they share commits, and are not yet where the catalog says.
const PART_FILES: usize = 100;
const PART_BYTES: u64 = 64 << 20;

/// A file that leaves.
struct Leaving {
    rel: Rel,
    file: FileId,
    /// What was verified.
    seen: Seen,
    digest: Option<Digest>,
    after: After,
    /// Where it will lie, unless it is removed.
    place: Option<PathBuf>,
}

/// What becomes of a file that is no longer there.
pub(super) const fn gone(unread: bool) -> Next {
    if unread { Next::Cancelled } else { Next::Quarantined(ErrorClass::FileGone) }
}

/// What becomes of a file whose name has other content.
pub(super) const fn replaced(versions: Versions) -> Next {
    match versions {
        Versions::New => Next::Cancelled,
        Versions::Refuse => Next::Quarantined(ErrorClass::FileChanged),
    }
}

impl Spool {
    /// What others did with our files in the catalog.
    pub(super) fn follow(&mut self, now: Now) -> Result<(), SpoolError> {
        while let Some(events) = self.book.follow()? {
            events.iter().for_each(|event| self.stepped(now, event));
        }
        self.put_aside(now)
    }

    fn stepped(&mut self, now: Now, event: &Event) {
        let (id, Some(state)) = (FileId(event.subject), event.to) else { return };
        let record = Record { file: id, revision: event.revision, state };
        if let Some(next) = self.orphans.get(&id) {
            if matches!(state, State::Waiting | State::Queued | State::Quarantined) {
                self.retiring.push((record, next.clone()));
                self.orphans.remove(&id);
            } else if state.is_end() {
                self.removed.push(id);
                self.orphans.remove(&id);
            }
            return;
        }
        let Some(rel) = self.by_id.get(&id).cloned() else { return };
        let Some(file) = self.files.get_mut(&rel) else { return };
        let Some(known) = &mut file.record else { return };
        if known.revision >= event.revision {
            return;
        }
        *known = record;
        match state {
            State::Found | State::Settled if file.stage == Stage::Booked => {
                file.stage = Stage::Settling;
                file.settling = Settling::new(now.steady, file.seen);
                self.look_later(now.steady, &rel);
            }
            State::Hashed => self.todo.to_queue.push(rel),
            State::Receipted if !self.rules.at(file.rule).keeps() => {
                file.not_before = Duration::ZERO;
                self.todo.received.push(rel);
            }
            State::Quarantined => {
                self.todo.set_apart.push((rel, String::new()));
            }
            State::Cancelled => {
                file.stage = Stage::Booked;
                self.todo.set_apart.push((rel, "cancelled".to_owned()));
            }
            _ => {}
        }
    }

    /// The name has other content now.
    pub(super) fn replaced(&mut self, now: Now, rel: &Rel) {
        let Some(file) = self.files.get_mut(rel) else { return };
        let next = match file.stage {
            Stage::Booked => replaced(self.rules.at(file.rule).versions),
            _ => gone(true),
        };
        let old = file.record.take();
        (file.stage, file.read, file.salt) = (Stage::New, None, 0);
        (file.tries, file.waits) = (0, 0);
        (file.not_before, file.stays) = (Duration::ZERO, Duration::ZERO);
        file.settling = Settling::new(now.steady, file.seen);
        self.todo.fresh.push(rel.clone());
        let Some(old) = old else { return };
        self.by_id.remove(&old.file);
        if self.part_from(old, next) {
            self.say(format!("{rel}: it was replaced before it was sent"));
        }
    }

    /// The content of a file is no longer here. Returns whether that makes a difference to it.
    pub(super) fn part_from(&mut self, old: Record, next: Next) -> bool {
        match old.state {
            state if state.is_end() || state == State::Quarantined => {
                self.removed.push(old.file);
                false
            }
            state if state.is_leased() => {
                self.orphans.insert(old.file, next);
                true
            }
            _ => {
                self.retiring.push((old, next));
                true
            }
        }
    }

    /// Files that have not come back.
    pub(super) fn tell_missing(&mut self, now: Now) {
        let over: Vec<Rel> = self
            .missing
            .iter()
            .filter(|(_, since)| now.steady >= **since + GRACE)
            .map(|(rel, _)| rel.clone())
            .collect();
        if over.is_empty() {
            return;
        }
        let lost: HashSet<u64> =
            over.iter().filter_map(|rel| Some(self.files.get(rel)?.seen.ino)).collect();
        // Content that is still here has another name now; an inode alone may be another file's by now.
        let here: HashMap<u64, Seen> = self
            .files
            .iter()
            .filter(|(rel, file)| lost.contains(&file.seen.ino) && !self.missing.contains_key(*rel))
            .map(|(_, file)| (file.seen.ino, file.seen))
            .collect();
        for rel in over {
            self.missing.remove(&rel);
            let Some(file) = self.forget(&rel) else { continue };
            let Some(record) = file.record else { continue };
            let same = here.get(&file.seen.ino);
            let renamed = same.is_some_and(|seen| seen.is_content_of(&file.seen));
            let next = gone(renamed || file.stage != Stage::Booked);
            if self.part_from(record, next) {
                let what = if renamed { "it has another name now" } else { "it was removed" };
                self.say(format!("{rel}: {what}"));
            }
        }
    }

    /// Steps of files that are no longer here. That the copy is removed is in the same commit: what is cancelled and not removed was
    /// cancelled by an operator.
    pub(super) fn retire(&mut self, now: Now) -> Result<(), SpoolError> {
        let retiring = std::mem::take(&mut self.retiring);
        let removed = std::mem::take(&mut self.removed);
        let steps = retiring
            .iter()
            .flat_map(|(record, next)| [record.step(next.clone()), self.book.removed(record.file)]);
        let changes = steps.chain(removed.iter().map(|file| self.book.removed(*file))).collect();
        let answers = self.book.apply(now.wall, changes)?;
        for ((mut record, next), answer) in retiring.into_iter().zip(answers.into_iter().step_by(2))
        {
            if let Err(Refused::Stale { revision, state }) = answer {
                (record.revision, record.state) = (revision, state);
                self.part_from(record, next);
            }
        }
        Ok(())
    }

    /// Sets a file apart: in the catalog, then on the disk.
    pub(super) fn quarantine_as(
        &mut self,
        now: Now,
        rel: &Rel,
        class: ErrorClass,
        text: String,
    ) -> Result<(), SpoolError> {
        let Some(record) = self.files.get(rel).and_then(|file| file.record) else { return Ok(()) };
        let answer = self.book.apply(now.wall, vec![record.step(Next::Quarantined(class))])?;
        if self.note_answers(now, rel, &answer) {
            if let Some(file) = self.files.get_mut(rel) {
                // If it cannot be moved now, it is when it is next seen.
                file.stage = Stage::Booked;
            }
            self.todo.set_apart.push((rel.clone(), text));
            self.put_aside(now)?;
        }
        Ok(())
    }

    /// Moves what the catalog has set apart to quarantine.
    fn put_aside(&mut self, now: Now) -> Result<(), SpoolError> {
        let Some(root) = self.root.clone() else { return Ok(()) };
        if self.todo.set_apart.is_empty() {
            return Ok(());
        }
        let mut moved = Vec::new();
        for (rel, text) in std::mem::take(&mut self.todo.set_apart) {
            let Some(record) = self.files.get(&rel).and_then(|file| file.record) else { continue };
            let Some(known) = self.book.file(record.file)? else { continue };
            let (class, text) = match (known.state, known.error) {
                (State::Cancelled, _) => ("cancelled".to_owned(), text),
                (State::Quarantined, Some(class)) if class != ErrorClass::FileGone => {
                    let said = || (self.said)(record.file, class).unwrap_or_default();
                    (class.to_string(), if text.is_empty() { said() } else { text })
                }
                // Who was to send it looked for it while it was away, or where the folder was before.
                (State::Quarantined, Some(_))
                    if root.is_there() && self.is_as_known(&root, &rel) =>
                {
                    self.met_quarantined(now, &rel, record)?;
                    continue;
                }
                _ => continue,
            };
            // What has its name by now is not what was set apart. One that nobody has read may have grown.
            if known.digest.is_some() && !self.is_as_known(&root, &rel) {
                self.look_at(now, &rel);
                continue;
            }
            let text = if text.is_empty() { class.clone() } else { text };
            let reason = SetApart {
                path: rel.to_string(),
                file: record.file.0,
                class,
                text,
                since: now.wall.0,
            };
            match aside::put(&root, &reason) {
                Ok(place) => {
                    self.say(format!("{rel}: in quarantine as {place}: {}", reason.words()));
                    moved.extend(known.digest.map(|_| self.present(known.id, &place)));
                    let size = self.forget(&rel).map_or(0, |file| file.seen.size);
                    self.went_aside(size);
                }
                Err(rustix::io::Errno::NOENT) => {
                    self.missing.entry(rel).or_insert(now.steady);
                }
                Err(error) => self.say(format!("{rel}: cannot be moved to quarantine: {error}")),
            }
        }
        self.book.apply(now.wall, moved)?;
        Ok(())
    }

    /// Whether a file lies in the folder as the catalog was told of it.
    fn is_as_known(&self, root: &Root, rel: &Rel) -> bool {
        let is_it = |seen: Seen| self.files.get(rel).is_some_and(|f| seen.is_content_of(&f.known));
        root.look(rel).is_ok_and(|seen| seen.is_some_and(is_it))
    }

    /// Releases a file from quarantine, by its path in the spool: it goes back to its place and starts again.
    pub fn release(&mut self, now: Now, path: &str) -> Result<Result<(), String>, SpoolError> {
        let Some(root) = self.root.clone() else {
            return Ok(Err("the spool's folder is not there".to_owned()));
        };
        match aside::find(&root, path) {
            Some((place, reason)) => self.release_one(now, &place, &reason),
            None => Ok(Err(format!("no file `{path}` is in quarantine"))),
        }
    }

    fn release_one(
        &mut self,
        now: Now,
        place: &str,
        reason: &SetApart,
    ) -> Result<Result<(), String>, SpoolError> {
        let Some(root) = self.root.clone() else { return Ok(Ok(())) };
        let rel = &reason.path;
        match aside::put_back(&root, place, reason) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => {
                let text = format!("another file is called {rel} by now: move it away first");
                return Ok(Err(text));
            }
            Err(error) => return Ok(Err(format!("{rel} cannot be moved back: {error}"))),
        }
        self.came_back(root.look(rel).ok().flatten().map_or(0, |seen| seen.size));
        let known = match reason.file {
            0 => self.book.newest(rel)?,
            number => self.book.file(FileId(number))?,
        };
        let changes = match &known {
            Some(file) if file.state == State::Quarantined => self.resumed(file, rel),
            // It becomes a file as any other.
            Some(file) if file.state == State::Cancelled => vec![self.book.removed(file.id)],
            _ => Vec::new(),
        };
        if let Some(Err(refused)) = self.book.apply(now.wall, changes)?.first() {
            return Ok(Err(refused.to_string()));
        }
        if let Some(file) = known.filter(|file| file.state == State::Quarantined) {
            // Mended it may be another one, which has replaced it.
            self.awaited.push((rel.clone(), file.id, gone(file.digest.is_none())));
        }
        self.say(format!("{rel}: released from quarantine"));
        self.look_at(now, rel);
        Ok(Ok(()))
    }

    /// What was set apart lies in its place again, and starts again.
    pub(super) fn resumed(&self, file: &File, rel: &str) -> Vec<Change> {
        let record = Record { file: file.id, revision: file.revision, state: file.state };
        let replica = file.digest.as_ref().map(|_| self.present(file.id, rel));
        std::iter::once(record.step(Next::Resumed)).chain(replica).collect()
    }

    /// Releases what has been in quarantine as long as its rule says.
    pub(super) fn release_by_rule(&mut self, now: Now) -> Result<(), SpoolError> {
        if self.rules.iter().all(|(_, rule)| rule.release.is_none()) {
            return Ok(());
        }
        // Of one without a reason nobody knows since when it is there.
        for (place, reason) in self.quarantine().into_iter().filter(|(_, r)| r.file != 0) {
            let name = self.book.name(&reason.path);
            let rule = self.rules.for_spool(&name).map(|index| self.rules.at(index));
            let Some(after) = rule.and_then(|rule| rule.release) else { continue };
            let since = Time(reason.since);
            let is_real = since <= now.wall.plus_s(CLOCK_SLACK_S);
            if is_real && now.wall < since.plus_s(after.as_secs() as i64) {
                continue;
            }
            let known = self.book.file(FileId(reason.file))?;
            // An operator's word stands until an operator takes it back.
            if known.is_some_and(|file| file.state == State::Cancelled) {
                continue;
            }
            if let Err(text) = self.release_one(now, &place, &reason)? {
                self.say(text);
            }
        }
        Ok(())
    }

    /// Files whose receipt is there leave as their rule says.
    pub(super) fn depart(&mut self, now: Now) -> Result<(), SpoolError> {
        let Some(root) = self.root.clone() else { return Ok(()) };
        let (mut sure, mut jobs) = (Vec::new(), Vec::new());
        // Told of by the catalog and found by a look.
        let received = BTreeSet::from_iter(std::mem::take(&mut self.todo.received));
        for rel in received {
            let Some(file) = self.files.get(&rel) else { continue };
            let is_received = file.record.is_some_and(|record| record.state == State::Receipted);
            if file.stage != Stage::Booked || !is_received {
                continue;
            }
            if now.steady < file.not_before {
                let at = file.not_before;
                self.look_later(at, &rel);
                continue;
            }
            if let Some(version) = self.book.submitted_from(&rel, &root.full(&rel))? {
                let text =
                    format!("version {version} of it was submitted, and is still to go from here");
                self.stays(now, &rel, &text);
                continue;
            }
            if let Some(text) = self.lacks(&rel)? {
                // Until it is received anew.
                if let Some(file) = self.files.get_mut(&rel) {
                    file.not_before = Duration::MAX;
                }
                self.say(text);
                continue;
            }
            let Some(file) = self.files.get(&rel) else { continue };
            match root.look(&rel) {
                Ok(Some(seen)) if Some(seen) == file.read => sure.push(rel),
                Ok(Some(seen)) if seen.is_content_of(&file.known) => {
                    // Read by an earlier process, or touched since: the digest decides.
                    if let Some(file) = self.files.get_mut(&rel) {
                        file.seen = seen;
                    }
                    jobs.extend(self.job(&rel, true));
                }
                _ => self.look_later(now.steady, &rel),
            }
        }
        if let Some(readers) = &mut self.readers {
            readers.add(jobs);
        }
        self.leave(now, sure)
    }

    /// Why a received file stays: by its rule somebody is to have it who has not. Another rule sent it, or this one said otherwise.
    fn lacks(&mut self, rel: &Rel) -> Result<Option<String>, SpoolError> {
        let Some(Tracked { record: Some(record), rule, .. }) = self.files.get(rel) else {
            return Ok(None);
        };
        let has = self.book.holders(record.file)?;
        let rule = self.rules.at(*rule);
        let lacking = rule.lacking(|name| has.contains(name)).join(", ");
        let name = &rule.name;
        Ok((!lacking.is_empty()).then(|| {
            format!(
                "{rel}: it is received, but stays: not by {lacking}, to whom rule `{name}` sends: \
                 have it sent there (to a site by downpour transfer submit), and remove it"
            )
        }))
    }

    /// A file that may leave was read again. What was read may leave, and not what has its name by now.
    pub(super) fn read_again(
        &mut self,
        now: Now,
        (rel, seen): (&Rel, Seen),
        outcome: &Outcome,
    ) -> Result<(), SpoolError> {
        let Some(file) = self.files.get_mut(rel) else { return Ok(()) };
        file.stage = Stage::Booked;
        let Some(record) = file.record else { return Ok(()) };
        let known = self.book.file(record.file)?.and_then(|file| file.digest);
        match outcome {
            Outcome::Digests(digests) if known.is_some() && digests.first() == known.as_ref() => {
                if let Some(file) = self.files.get_mut(rel) {
                    file.read = Some(seen);
                }
                self.todo.received.push(rel.clone());
            }
            Outcome::Digests(_) => {
                let salt = file.salt + 1;
                self.replaced(now, rel);
                if let Some(file) = self.files.get_mut(rel) {
                    file.salt = salt;
                }
            }
            Outcome::Unreadable(_, text) => {
                self.say(format!("{rel}: it is received, but cannot be read again: {text}"));
            }
            Outcome::Changed | Outcome::Gone | Outcome::Differs(_) => {
                self.look_later(now.steady, rel);
            }
        }
        Ok(())
    }

    /// A few leave at a time: of all others the catalog says where they lie.
    fn leave(&mut self, now: Now, rels: Vec<Rel>) -> Result<(), SpoolError> {
        let Some(root) = self.root.clone() else { return Ok(()) };
        let (mut part, mut bytes) = (Vec::new(), 0);
        for rel in rels {
            if self.ending.load(Ordering::Relaxed) {
                break;
            }
            let Some(file) = self.files.get(&rel) else { continue };
            let (Some(record), Some(seen)) = (file.record, file.read) else { continue };
            let (file, after) = (record.file, self.rules.at(file.rule).after.clone());
            if part.len() == PART_FILES || bytes + seen.size > PART_BYTES {
                self.leave_together(now, &root, std::mem::take(&mut part))?;
                bytes = 0;
            }
            let ending = &*self.ending;
            let leaver = Leaver { root: &root, rel: &rel, file, seen, digest: None, ending };
            let place = match leaver.check(&after) {
                Ok(place) => place,
                Err(text) => {
                    self.stays(now, &rel, &text);
                    continue;
                }
            };
            let digest = match place {
                Some(_) => self.book.file(file)?.and_then(|file| file.digest),
                None => None,
            };
            debug_assert!(digest.as_ref().is_none_or(|d| d.kind() == DigestKind::Blake3));
            if place.is_some() {
                bytes += seen.size;
            }
            part.push(Leaving { rel, file, seen, digest, after, place });
        }
        self.leave_together(now, &root, part)
    }

    /// The catalog is told where they go, then they go, and it is told where they lie: that may be another place, and who looked
    /// for one while it was copied has recorded that it is lost.
    fn leave_together(
        &mut self,
        now: Now,
        root: &Root,
        part: Vec<Leaving>,
    ) -> Result<(), SpoolError> {
        let goes = |one: &Leaving| match &one.place {
            Some(place) => self.book.present(one.file, place.display().to_string()),
            None => self.book.removed(one.file),
        };
        self.book.apply(now.wall, part.iter().map(goes).collect())?;
        let mut lie = Vec::new();
        for Leaving { rel, file, seen, digest, after, .. } in part {
            let leaver = Leaver { root, rel: &rel, file, seen, digest, ending: &self.ending };
            let beside = Beside::of(root, self.policy.companions(&rel));
            match leaver.leave(&after) {
                Ok(place) => {
                    beside.remove(root);
                    self.forget(&rel);
                    let lies = |at: PathBuf| self.book.present(file, at.display().to_string());
                    lie.extend(place.map(lies));
                }
                Err(stays) => {
                    lie.push(self.present(file, &rel));
                    self.has_stayed(now, (&rel, seen), stays);
                }
            }
        }
        self.book.apply(now.wall, lie)?;
        Ok(())
    }

    fn has_stayed(&mut self, now: Now, (rel, seen): (&Rel, Seen), stays: Stays) {
        match stays {
            Stays::Changed => self.look_later(now.steady, rel),
            Stays::Failed(text) => {
                // To have had another name for a while is no reason to be read again.
                let back = self.root.as_ref().and_then(|root| root.look(rel).ok().flatten());
                if let (Some(file), Some(back)) = (self.files.get_mut(rel), back)
                    && back.is_content_of(&seen)
                {
                    file.read = Some(back);
                }
                self.stays(now, rel, &text);
            }
        }
    }

    /// It could not leave: that is tried again, less and less often.
    fn stays(&mut self, now: Now, rel: &Rel, text: &str) {
        let longest = self.section.rescan.max(STAYS);
        let Some(file) = self.files.get_mut(rel) else { return };
        file.stays = (2 * file.stays).clamp(STAYS, longest);
        file.not_before = now.steady + file.stays;
        let (at, pause) = (file.not_before, file.stays.as_secs());
        self.look_later(at, rel);
        self.say(format!("{rel}: it is received, but stays: {text}; again in {pause} s"));
    }
}
