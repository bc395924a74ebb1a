//! What a receiver that stays tells of the sessions that are over, and how it ends: as the last one that failed, or else as
//! the last one.

use super::ended::Over;
use crate::object::printable;
use crate::report::{Named, Report};

/// What failed is named up to this many.
const NAMED_MAX: usize = 5;

#[derive(Default)]
pub(super) struct Stayed {
    over: u32,
    failed: u32,
    report: Option<Report>,
}

impl Stayed {
    /// One is over, and what follows: what people are told of it.
    pub(super) fn add(&mut self, over: &Over, next: &str) -> Vec<String> {
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
        told.push(format!("the session is over{why}; {next}"));
        self.over += 1;
        self.failed += u32::from(!report.is_complete());
        if !report.is_complete() || self.failed == 0 {
            self.report = Some(report.clone());
        }
        told
    }

    /// Its user has ended it; `None` if there was no session.
    pub(super) fn end(self) -> Option<Over> {
        let Self { over, failed, report } = self;
        let mut report = report?;
        if over > 1 {
            let which = if failed > 0 { "the last one that failed" } else { "the last one" };
            let notice = format!("{over} sessions, of which {failed} failed: this is {which}");
            report.notices.push(notice);
        }
        let (placed, unplaced) = (Vec::new(), Vec::new());
        Some(Over { report, placed, unplaced, failure: None, interrupted: true })
    }
}
