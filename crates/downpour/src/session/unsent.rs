//! Products that are not sent, or not whole: each is named in the report, up to a limit, and told to people within a
//! second or so, a few at a time. The one at which a session ends is named and told whatever else there is.

use crate::report::Named;
use std::time::{Duration, Instant};

/// So many are named; what is above is counted.
const NAMED_MAX: usize = 1_000;

/// So many are told at a time, this long apart at least.
const TOLD_MAX: usize = 10;
const TELL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Unsent {
    named: Vec<Named>,
    /// Besides those that are named.
    more: u64,
    /// To be told, and how many besides.
    news: Vec<String>,
    more_news: u64,
    told: Option<Instant>,
    /// At which the session ends, and whether it was told.
    last: Option<Named>,
    last_told: bool,
}

impl Unsent {
    pub(super) fn add(&mut self, name: String, why: String) {
        if self.news.len() < TOLD_MAX {
            self.news.push(not_sent(&name, &why));
        } else {
            self.more_news += 1;
        }
        if self.named.len() < NAMED_MAX {
            self.named.push(Named { name, why });
        } else {
            self.more += 1;
        }
    }

    /// The session ends at it.
    pub(super) fn end_at(&mut self, name: String, why: String) {
        self.last = Some(Named { name, why });
    }

    /// Of that one, once: for all, also those who want no progress.
    pub(super) fn last_news(&mut self) -> Option<String> {
        let Named { name, why } = self.last.as_ref()?;
        (!std::mem::replace(&mut self.last_told, true)).then(|| not_sent(name, why))
    }

    /// What is to be told now.
    pub(super) fn news(&mut self, now: Instant) -> Vec<String> {
        let early = self.told.is_some_and(|told| now.duration_since(told) < TELL_INTERVAL);
        if early || self.news.is_empty() {
            return Vec::new();
        }
        self.told = Some(now);
        let more = std::mem::take(&mut self.more_news);
        let more = (more > 0).then(|| format!("and {more} more are not sent"));
        self.news.drain(..).chain(more).collect()
    }

    /// For the report.
    pub(super) fn take(&mut self) -> Vec<Named> {
        let mut named: Vec<Named> = self.last.take().into_iter().collect();
        named.append(&mut self.named);
        if self.more > 0 {
            let why = "not sent either: only so many are named".to_owned();
            named.push(Named { name: format!("{} more products", self.more), why });
        }
        named
    }
}

fn not_sent(name: &str, why: &str) -> String {
    format!("{name} is not sent: {why}")
}

#[cfg(test)]
mod tests {
    use super::{NAMED_MAX, TELL_INTERVAL, TOLD_MAX, Unsent};
    use std::time::Instant;

    #[test]
    fn what_is_not_sent_is_named_and_told_within_limits_and_the_rest_counted() {
        let (mut unsent, start) = (Unsent::default(), Instant::now());
        let add = |unsent: &mut Unsent, number: usize| {
            unsent.add(format!("p{number}"), "gone".to_owned());
        };
        add(&mut unsent, 0);
        assert_eq!(unsent.news(start), ["p0 is not sent: gone"]);
        (1..NAMED_MAX + 7).for_each(|number| add(&mut unsent, number));
        assert!(unsent.news(start).is_empty(), "not so soon");
        let news = unsent.news(start + TELL_INTERVAL);
        assert_eq!(news.len(), TOLD_MAX + 1);
        assert_eq!(news[TOLD_MAX], format!("and {} more are not sent", NAMED_MAX + 6 - TOLD_MAX));
        assert!(unsent.news(start + 3 * TELL_INTERVAL).is_empty(), "each once");
        unsent.end_at("last".to_owned(), "full".to_owned());
        assert_eq!(unsent.last_news().as_deref(), Some("last is not sent: full"));
        assert_eq!(unsent.last_news(), None);
        let named = unsent.take();
        assert_eq!((named.len(), named[0].name.as_str()), (NAMED_MAX + 2, "last"));
        assert_eq!(named[1].name, "p0");
        assert_eq!(named[NAMED_MAX + 1].name, "7 more products");
    }
}
