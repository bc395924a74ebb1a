//! How an attempt ends, what came of it, and what of that the next one is told.

use super::account::ReceiverAccount;
use crate::cli::{Fault, ReceivePlan, Target};
use crate::object::{EntryId, Obstacle, PipeOut, Placed, Summary};
use crate::product::Bookmark;
use crate::report::{ReceiverState, Report};
use downpour_catalog::ErrorClass;
use downpour_transport::control::{Follows, ObjectFailure, SessionId};
use downpour_transport::session::ReceiveSnapshot;
use std::time::Instant;

/// How far a receiver has got in a session of products.
pub(super) struct Followed {
    pub(super) session: SessionId,
    pub(super) mark: Bookmark,
    /// When it joined, and how many bytes of that it has pulled.
    pub(super) account: (Instant, u64),
    /// There may have been something to miss.
    pub(super) started: bool,
}

impl Followed {
    /// As a JOIN tells it.
    pub(super) fn told(&self) -> Follows {
        Follows { session: self.session, block: self.mark.block }
    }
}

/// How an attempt ends.
pub(super) enum Ended {
    /// For good: complete, failed or interrupted.
    Over(Box<Over>),
    /// The sender is gone, and why: try again. What came until then, if the attempt had begun.
    SenderLost(String, Option<Box<Over>>),
}

/// An object that could not be placed; of products, which have no entries, its number is 0.
pub(super) struct Unplaced {
    pub(super) entry: EntryId,
    pub(super) path: String,
    pub(super) obstacle: Obstacle,
    pub(super) reason: String,
}

impl Unplaced {
    /// As a receipt tells it.
    pub(super) fn told(&self) -> ObjectFailure {
        let Self { entry, path, reason, .. } = self;
        ObjectFailure { object: entry.0, reason: format!("{path}: {reason}") }
    }
}

/// What came of it.
pub(super) struct Over {
    pub(super) report: Report,
    /// Files of a batch that are in their places, once it is complete.
    pub(super) placed: Vec<Placed>,
    /// Objects that could not be placed.
    pub(super) unplaced: Vec<Unplaced>,
    /// Why the whole was not completed.
    pub(super) failure: Option<(ErrorClass, String)>,
    /// By this side's own user.
    pub(super) interrupted: bool,
    /// The session goes on without this side: the sender has its receipt or its goodbye.
    pub(super) goes_on: bool,
}

/// Why a receiver goes whose user ends it.
pub(super) fn by_user(target: &Target) -> (ErrorClass, String) {
    let why = match target {
        Target::Tree(_) | Target::Device(_) => {
            "interrupted; what has arrived is kept for the next attempt"
        }
        Target::Pipe | Target::Discard => "interrupted",
    };
    (ErrorClass::Interrupted, why.to_owned())
}

impl Over {
    /// Who stays waits for the end of the session: to join again before is to take part in the same one again, and to keep
    /// it from its end (`docs/protocol.md#CTL-5`). Who failed comes back all the same among products, for those that
    /// follow, and before the start, which waits for it; who writes to an output that is spent ends.
    pub(super) fn outlasts(&self, products: bool, started: bool, pipe: &PipeOut) -> bool {
        let waits = self.failure.is_none() || (!products && started && !pipe.is_spent());
        self.goes_on && !self.interrupted && waits
    }

    /// Who stays could not open its target, which it could before. What it had of a session of products is told with it.
    pub(super) fn unopened(
        (plan, mut account): (&ReceivePlan, ReceiverAccount),
        before: Option<&Followed>,
        (class, why): (ErrorClass, String),
    ) -> Self {
        let mut summary = Summary::default();
        if let Some(Followed { mark, account: begun, .. }) = before {
            account.go_on(*begun);
            account.objects = mark.complete;
            summary.failed.clone_from(&mark.failed);
            summary.bytes_received = mark.bytes;
        }
        account.failure = Some(why.clone());
        let driver = ReceiveSnapshot::default();
        let report = account.report(plan, &summary, &driver, None, (None, false));
        let (placed, unplaced) = (Vec::new(), Vec::new());
        let failure = Some((class, why));
        Self { report, placed, unplaced, failure, interrupted: false, goes_on: true }
    }

    /// The sender was lost, and nothing could follow: this is why.
    pub(super) fn without_sender(mut self, fault: Fault) -> Self {
        let class = fault.class.unwrap_or(ErrorClass::Internal);
        let why = match self.failure.take() {
            Some((_, lost)) => format!("{lost}; {}", fault.what),
            None => fault.what,
        };
        self.interrupted = class == ErrorClass::Interrupted;
        for receiver in &mut self.report.receivers {
            receiver.state = ReceiverState::Failed { why: why.clone() };
        }
        self.report.notices.push(fault.todo);
        self.failure = Some((class, why));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::Over;
    use crate::object::PipeOut;
    use crate::report::ReceiverState;
    use crate::report::tests::{receiver, report};
    use downpour_catalog::ErrorClass;

    #[test]
    fn who_stays_waits_for_the_end_of_a_session_only_if_that_does_not_wait_for_it() {
        let outlasts = |why: Option<&str>, products, started| {
            let over = Over {
                report: report(vec![receiver("a", ReceiverState::Complete)]),
                placed: Vec::new(),
                unplaced: Vec::new(),
                failure: why.map(|why| (ErrorClass::DestinationFull, why.to_owned())),
                interrupted: false,
                goes_on: true,
            };
            over.outlasts(products, started, &PipeOut::stdout())
        };
        let failed = Some("disk full");
        assert!(outlasts(failed, false, true));
        assert!(!outlasts(failed, false, false), "the start waits for it");
        assert!(!outlasts(failed, true, true), "more products may come");
        assert!(outlasts(None, false, false) && outlasts(None, true, true), "its receipt is there");
    }
}
