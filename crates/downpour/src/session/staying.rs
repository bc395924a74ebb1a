//! What a receiver that stays tells of the sessions that are over, and how it ends: as the last one that failed, or else as
//! the last one. One that it joins again counts once, as it ended at last.

use super::ended::Over;
use crate::object::printable;
use crate::report::{Named, Report};
use downpour_transport::control::SessionId;

/// What failed is named up to this many.
const NAMED_MAX: usize = 5;

#[derive(Default)]
pub(super) struct Stayed {
    /// Of the sessions before the last one.
    over: u32,
    failed: u32,
    report: Option<Report>,
    last: Option<(SessionId, Report)>,
}

impl Stayed {
    /// Taking part in one is over, and what follows: what people are told of it.
    pub(super) fn add(&mut self, session: SessionId, over: &Over, next: &str) -> Vec<String> {
        let report = &over.report;
        let shown = |text: &str| printable(text.as_bytes());
        let named =
            |Named { name, why }: &Named| format!("failed: {}: {}", shown(name), shown(why));
        let mut told: Vec<String> = report.failed.iter().take(NAMED_MAX).map(named).collect();
        let why = match (&over.failure, report.failed.len()) {
            (Some((_, why)), _) => format!(" ({})", shown(why)),
            (None, 0) => String::new(),
            (None, count) => format!(" ({count} failed)"),
        };
        let what = if over.goes_on { "this receiver failed" } else { "the session is over" };
        told.push(format!("{what}{why}; {next}"));
        if self.last.as_ref().is_some_and(|(last, _)| *last != session) {
            self.count();
        }
        self.last = Some((session, report.clone()));
        told
    }

    /// There was one.
    pub(super) const fn has_any(&self) -> bool {
        self.last.is_some()
    }

    /// The last one will not be joined again.
    fn count(&mut self) {
        let Some((_, report)) = self.last.take() else { return };
        self.over += 1;
        self.failed += u32::from(!report.is_complete());
        if !report.is_complete() || self.failed == 0 {
            self.report = Some(report);
        }
    }

    /// Its user has ended it; `None` if there was no session.
    pub(super) fn end(mut self) -> Option<Over> {
        self.count();
        let Self { over, failed, report, .. } = self;
        let mut report = report?;
        if over > 1 {
            let which = if failed > 0 { "the last one that failed" } else { "the last one" };
            let notice = format!("{over} sessions, of which {failed} failed: this is {which}");
            report.notices.push(notice);
        }
        let (placed, unplaced) = (Vec::new(), Vec::new());
        Some(Over { report, placed, unplaced, failure: None, interrupted: true, goes_on: false })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::Stayed;
    use crate::report::ReceiverState;
    use crate::report::tests::{receiver, report};
    use crate::session::ended::Over;
    use downpour_catalog::ErrorClass;
    use downpour_transport::control::SessionId;

    pub(in crate::session) fn over(why: Option<&str>, goes_on: bool) -> Over {
        let state = match why {
            Some(why) => ReceiverState::Failed { why: why.to_owned() },
            None => ReceiverState::Complete,
        };
        Over {
            report: report(vec![receiver("a", state)]),
            placed: Vec::new(),
            unplaced: Vec::new(),
            failure: why.map(|why| (ErrorClass::DestinationFull, why.to_owned())),
            interrupted: false,
            goes_on,
        }
    }

    #[test]
    fn a_session_that_is_joined_again_counts_once_and_as_it_ended() {
        let [first, second] = [1, 2].map(|id| SessionId::from_bytes([id; 16]));
        let mut stayed = Stayed::default();
        for _ in 0..3 {
            let told = stayed.add(first, &over(Some("disk full"), true), "joining again");
            assert_eq!(told, ["this receiver failed (disk full); joining again"]);
        }
        let told = stayed.add(first, &over(None, false), "waiting");
        assert_eq!(told, ["the session is over; waiting"]);
        stayed.add(second, &over(Some("no rights"), true), "joining again");
        stayed.add(second, &over(Some("disk full"), false), "waiting");
        let ended = stayed.end().unwrap().report;
        let why = ReceiverState::Failed { why: "disk full".to_owned() };
        assert_eq!(ended.receivers[0].state, why);
        assert!(ended.notices[0].starts_with("2 sessions, of which 1 failed"), "{ended:?}");
    }

    #[test]
    fn one_session_that_failed_at_first_and_is_complete_is_complete() {
        let session = SessionId::from_bytes([1; 16]);
        let mut stayed = Stayed::default();
        stayed.add(session, &over(Some("disk full"), true), "joining again");
        stayed.add(session, &over(None, false), "waiting");
        let ended = stayed.end().unwrap().report;
        assert!(ended.is_complete() && ended.notices.is_empty(), "{ended:?}");
    }
}
