//! The life cycle in a batch: steps, leases, what waits and starts again.

use super::records::{check_size, is_text};
use super::{Batch, Told, code};
use crate::change::{
    Answer, Applied, Claimed, Move, Next, PATH_BYTES_MAX, Refused, WORD_BYTES_MAX,
};
use crate::class::{ErrorClass, Scope};
use crate::life::{Reason, State};
use crate::record::{
    DigestKind, EventKind, Fence, FileId, LogId, Outcome, Replica, ReplicaState, Revision, Time,
    TransferId,
};
use crate::schema;
use crate::sql::{Put, Value};

impl Batch<'_> {
    pub(super) fn step(&mut self, now: Time, step: &Move) -> Answer {
        let standing = self.files.get(&step.file).ok_or(Refused::NoSuchFile(step.file))?;
        let from = standing.state;
        let to = target(&step.next, standing.resume);
        if standing.revision.0 == step.at.0 + 1 && from == to {
            return Ok(self.stands(step.file, true));
        }
        if standing.revision != step.at {
            return Err(Refused::Stale { revision: standing.revision, state: from });
        }
        let starts_again = matches!(from, State::Waiting | State::Quarantined);
        let elsewhere = !matches!(to, State::Waiting | State::Quarantined | State::Cancelled);
        let wrong_start = starts_again && elsewhere && to != standing.resume;
        let nothing_to_resume = step.next == Next::Resumed && !starts_again;
        if !from.allows(to) || wrong_start || nothing_to_resume {
            return Err(Refused::NotAllowed { from, to });
        }
        let held = standing.holder != LogId(0);
        match step.fence {
            Some(fence) if !held || fence != standing.fence => return Err(Refused::NoLease),
            None if held && to != State::Cancelled => return Err(Refused::NoLease),
            _ => {}
        }
        self.check_payload(step)?;
        self.record_payload(now, step);
        self.go(now, step.file, to, &step.next);
        Ok(self.stands(step.file, false))
    }

    /// What comes with a step must be complete and fit; asked before anything is noted.
    fn check_payload(&self, step: &Move) -> Result<(), Refused> {
        match &step.next {
            Next::Settled { size } => check_size(*size).map(|_| ()),
            Next::Hashed(digests) => {
                if !digests.iter().any(|digest| digest.kind() == DigestKind::Blake3) {
                    return Err(Refused::Malformed("a hashed file needs its BLAKE3 digest"));
                }
                for digest in digests {
                    self.check_digest(step.file, digest)?;
                }
                Ok(())
            }
            Next::Verified(_, path) if path.len() > PATH_BYTES_MAX || path.contains('\0') => {
                Err(Refused::Malformed("a path is too long or holds a zero byte"))
            }
            Next::Receipted(receipt) if receipt.file != step.file => {
                Err(Refused::Malformed("the receipt is of another file"))
            }
            Next::Receipted(receipt) => super::records::check_receipt(receipt),
            Next::Quarantined(class) if class.scope() != Scope::File => {
                Err(Refused::NotTheFilesFault(*class))
            }
            _ => Ok(()),
        }
    }

    fn record_payload(&mut self, now: Time, step: &Move) {
        match &step.next {
            Next::Hashed(digests) => {
                for digest in digests {
                    self.note_digest(step.file, digest);
                }
            }
            Next::Verified(site, path) => {
                let (file, site, path) = (step.file, *site, path.clone());
                self.note_replica(now, &Replica { file, site, path, state: ReplicaState::Present });
            }
            Next::Receipted(receipt) => self.note_receipt(receipt),
            _ => {}
        }
    }

    /// Takes the step.
    fn go(&mut self, now: Time, file: FileId, to: State, next: &Next) {
        let Some(standing) = self.files.get_mut(&file) else { return };
        let from = standing.state;
        let before = (standing.site, standing.rule, from);
        let size_before = standing.size;
        let starts_again = matches!(from, State::Waiting | State::Quarantined);
        let resume = if starts_again { standing.resume } else { from.resume() };
        let stops = matches!(to, State::Waiting | State::Quarantined);
        standing.resume = if stops { resume } else { to.resume() };
        standing.error = None;
        standing.reason = to.reason();
        standing.turn = if to.is_leased() { standing.turn } else { 0 };
        match next {
            Next::Settled { size } => standing.size = *size as i64,
            Next::Sent { bytes } => standing.bytes = *bytes as i64,
            Next::Waiting { reason, error, next_try, bytes } => {
                standing.reason = Some(*reason);
                standing.error = *error;
                standing.turn = next_try.0;
                standing.bytes = standing.bytes.max(*bytes as i64);
            }
            Next::Quarantined(class) => standing.error = Some(*class),
            _ => {}
        }
        if to == State::Queued {
            standing.turn = standing.rank;
        }
        let returned = matches!(next, Next::Waiting { reason: Reason::Turn, error: None, .. });
        if from == State::Sending && returned && standing.session.is_empty() {
            // It went nowhere: that was no attempt.
            (standing.started, standing.bytes) = (Time(0), 0);
            standing.tries -= 1;
        }
        let outcome = match to {
            State::Verified => Some(Outcome::Verified),
            State::Waiting | State::Quarantined => Some(Outcome::Failed),
            State::Cancelled => Some(Outcome::Cancelled),
            _ => None,
        };
        if !to.is_leased() {
            standing.holder = LogId(0);
        }
        standing.state = to;
        standing.revision = Revision(standing.revision.0 + 1);
        standing.since = now;
        standing.is_changed = true;
        let (error, revision, size) = (standing.error, standing.revision, standing.size);
        if let Some(outcome) = outcome {
            self.end_attempt(now, file, outcome, error);
        }
        self.count(before, -1, size_before);
        self.count((before.0, before.1, to), 1, size);
        let (from, to) = (Some(from), Some(to));
        self.tell(now, Told { kind: EventKind::Moved, subject: file.0, revision, from, to, error });
    }

    /// Writes the open attempt down, if there is one.
    fn end_attempt(
        &mut self,
        now: Time,
        file: FileId,
        outcome: Outcome,
        error: Option<ErrorClass>,
    ) {
        let Some(standing) = self.files.get_mut(&file) else { return };
        if standing.started == Time(0) {
            return;
        }
        let row = vec![
            file.0.into(),
            standing.tries.into(),
            standing.transfer.0.into(),
            self.ledger.log.0.into(),
            standing.started.0.into(),
            now.0.into(),
            standing.bytes.into(),
            i64::from(outcome.code()).into(),
            code(error.map(ErrorClass::code)),
            Value::Text(std::mem::take(&mut standing.session)),
        ];
        (standing.started, standing.bytes) = (Time(0), 0);
        self.note(&schema::ATTEMPT, Put::Insert, row);
    }

    /// Gives the lease of a file that [`Batch::due`] has just read.
    pub(super) fn lease(&mut self, now: Time, file: FileId, until: Time) -> Claimed {
        let from = self.files.get(&file).map_or(State::Queued, |standing| standing.state);
        let lapsed = (from != State::Queued).then_some(ErrorClass::Interrupted);
        if from == State::Sending {
            self.end_attempt(now, file, Outcome::Lapsed, lapsed);
        }
        let log = self.ledger.log;
        let standing = self.files.get_mut(&file).expect("it was read just now");
        standing.revision = Revision(standing.revision.0 + 1);
        (standing.holder, standing.fence) = (log, Fence(standing.revision.0));
        standing.turn = until.0;
        standing.is_changed = true;
        if matches!(from, State::Queued | State::Sending) {
            standing.state = State::Sending;
            standing.tries += 1;
            (standing.started, standing.bytes, standing.since) = (now, 0, now);
            (standing.reason, standing.error) = (None, None);
            standing.resume = State::Queued;
        }
        let claimed = Claimed {
            file,
            fence: standing.fence,
            revision: standing.revision,
            state: standing.state,
            size: standing.size as u64,
        };
        let (site, rule, size) = (standing.site, standing.rule, standing.size);
        if from == State::Queued {
            self.count((site, rule, from), -1, size);
            self.count((site, rule, State::Sending), 1, size);
        }
        let (kind, revision) = (EventKind::Moved, claimed.revision);
        let (from, to) = (Some(from), Some(claimed.state));
        self.tell(now, Told { kind, subject: file.0, revision, from, to, error: lapsed });
        claimed
    }

    /// Sends a file that [`Batch::due`] has just read back to where it starts again.
    pub(super) fn resume(&mut self, now: Time, file: FileId) {
        let resume = self.files.get(&file).expect("it was read just now").resume;
        self.go(now, file, resume, &Next::Resumed);
    }

    /// A longer lease is no step: it changes neither state nor revision, and is not told.
    pub(super) fn renew(&mut self, file: FileId, fence: Fence, until: Time) -> Answer {
        let standing = self.files.get_mut(&file).ok_or(Refused::NoSuchFile(file))?;
        if standing.holder == LogId(0) || standing.fence != fence {
            return Err(Refused::NoLease);
        }
        standing.turn = until.0;
        standing.is_changed = true;
        Ok(self.stands(file, false))
    }

    /// Neither is the session by which a held file goes: its attempt will say so.
    pub(super) fn in_session(&mut self, file: FileId, fence: Fence, session: &str) -> Answer {
        if !is_text(session, WORD_BYTES_MAX) {
            return Err(Refused::Malformed("a session's name is too long or holds a zero byte"));
        }
        let standing = self.files.get_mut(&file).ok_or(Refused::NoSuchFile(file))?;
        if standing.holder == LogId(0) || standing.fence != fence {
            return Err(Refused::NoLease);
        }
        session.clone_into(&mut standing.session);
        standing.is_changed = true;
        Ok(self.stands(file, false))
    }

    /// The answer that tells where the file stands.
    pub(super) fn stands(&self, file: FileId, repeated: bool) -> Applied {
        let standing = self.files.get(&file).expect("asked for after it was found");
        let (revision, state) = (standing.revision, Some(standing.state));
        let goes = !standing.state.is_end() && standing.transfer != TransferId(0);
        Applied { file, revision, state, repeated, transfer: goes.then_some(standing.transfer) }
    }
}

/// Which state a step leads to.
fn target(next: &Next, resume: State) -> State {
    match next {
        Next::Settled { .. } => State::Settled,
        Next::Hashed(_) => State::Hashed,
        Next::Queued => State::Queued,
        Next::Sent { .. } => State::Sent,
        Next::Verified(..) => State::Verified,
        Next::Receipted(_) => State::Receipted,
        Next::Waiting { .. } => State::Waiting,
        Next::Resumed => resume,
        Next::Quarantined(_) => State::Quarantined,
        Next::Cancelled => State::Cancelled,
    }
}
