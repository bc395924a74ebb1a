//! What happens at the site, told live to whoever listens. The last thousand are kept in memory, so that a listener whose
//! connection broke goes on where it was; what must be known later is in the catalog and in the audit record.
//!
//! A listener has a place: the number of the last event that it got. What it lacks is either kept or was missed, and it is
//! told how many; a slow listener and one that comes back are the same. Numbers count from the daemon's start, so an
//! [`EventId`] names that start, too.

use super::Clock;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use utoipa::ToSchema;

/// Events that are kept.
const KEPT_MAX: usize = 1024;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SiteEvent {
    /// Counted from the daemon's start, from 1 without gaps; 0 of what is told to one listener alone.
    pub number: u64,
    /// When, microseconds since 1970.
    #[serde(default)]
    pub at_us: i64,
    /// What kind: one of the names below.
    pub kind: String,
    /// What happened.
    #[schema(value_type = Object)]
    pub about: Value,
}

impl SiteEvent {
    /// Kind of those that tell how a service does.
    pub const SERVICE: &str = "service";
    /// Kind of those that tell that a file failed.
    pub const TROUBLE: &str = "trouble";
    /// Kind of those that tell that a batch has ended, whole or not.
    pub const BATCH: &str = "batch";
    /// Kind of those that tell that a link broke, healed, or is to be used otherwise.
    pub const LINK: &str = "link";
    /// Kind of those that tell that files were set apart while they were moved.
    pub const QUARANTINE: &str = "quarantine";
    /// Kind of what spools say.
    pub const SPOOL: &str = "spool";
    /// Kind of those that tell what a comparison found.
    pub const RECONCILE: &str = "reconcile";
    /// Kind of those that tell of a mirror's alarm, and of its end.
    pub const MIRROR: &str = "mirror";
    /// Kind of the last event.
    pub const END: &str = "end";
    /// Kind of those that tell of the audit record.
    pub const AUDIT: &str = "audit";
    /// Kind of what tells a listener that it lacks some.
    pub const MISSED: &str = "missed";
}

/// An event's name in the stream: `RUN-NUMBER`. As `Last-Event-ID` it says where a listener was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    /// When the daemon started, microseconds since 1970.
    pub run: i64,
    /// The event's number since then.
    pub number: u64,
}

impl EventId {
    /// Before all that are kept.
    pub const FIRST: Self = Self { run: 0, number: 0 };
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.run, self.number)
    }
}

impl FromStr for EventId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (run, number) = text.split_once('-').ok_or(())?;
        let (run, number) = (run.parse().map_err(drop)?, number.parse().map_err(drop)?);
        Ok(Self { run, number })
    }
}

/// Tells events.
pub struct Events {
    clock: Clock,
    run: i64,
    kept: Mutex<VecDeque<Arc<SiteEvent>>>,
    /// The number of the last one.
    last: watch::Sender<u64>,
}

impl Events {
    /// None yet.
    pub fn new(clock: Clock) -> Self {
        let run = clock.now().0;
        Self { clock, run, kept: Mutex::default(), last: watch::Sender::new(0) }
    }

    /// Tells one.
    pub fn tell(&self, kind: &str, about: &impl Serialize) {
        // What cannot be written as JSON is a fault of ours, and costs no more than its content.
        let about = serde_json::to_value(about).unwrap_or_default();
        let (kind, at_us) = (kind.to_owned(), self.clock.now().0);
        let mut kept = self.kept();
        let number = *self.last.borrow() + 1;
        kept.push_back(Arc::new(SiteEvent { number, at_us, kind, about }));
        if kept.len() > KEPT_MAX {
            kept.pop_front();
        }
        self.last.send_replace(number);
    }

    /// The last one: nobody listens any longer.
    pub(super) fn end(&self) {
        self.tell(SiteEvent::END, &"the daemon ends");
    }

    /// What happens from now on; or after `place`, where the listener was. Listeners leave at [`SiteEvent::END`].
    pub fn listen(&self, place: Option<EventId>) -> Listener {
        let last = self.last.subscribe();
        let (place, lost) = match place {
            None => (*last.borrow(), false),
            Some(place) if place.run == self.run => (place.number.min(*last.borrow()), false),
            // Of another run of the daemon: what came after it there is not known here.
            Some(place) => (0, place.run != EventId::FIRST.run),
        };
        Listener { run: self.run, last, place, lost }
    }

    /// What was told last of this kind and this file, with this error class, if it is still kept.
    pub fn last_of(&self, kind: &str, file: i64, class: &str) -> Option<String> {
        let is_it = |event: &&Arc<SiteEvent>| {
            event.kind == kind && event.about["file"] == file && event.about["class"] == class
        };
        let kept = self.kept();
        let event = kept.iter().rev().find(is_it)?;
        event.about["what"].as_str().map(str::to_owned)
    }

    /// How many listen.
    pub fn listeners(&self) -> usize {
        self.last.receiver_count()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Arc<SiteEvent>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn missed(&self, about: Value) -> Arc<SiteEvent> {
        let (kind, at_us) = (SiteEvent::MISSED.to_owned(), self.clock.now().0);
        Arc::new(SiteEvent { number: 0, at_us, kind, about })
    }
}

/// One who listens, and where.
pub struct Listener {
    run: i64,
    last: watch::Receiver<u64>,
    place: u64,
    /// It was at another run of the daemon.
    lost: bool,
}

impl Listener {
    /// The next one of `events`, when there is one. May be dropped and asked again: nothing gets lost.
    pub async fn next(&mut self, events: &Events) -> Arc<SiteEvent> {
        loop {
            self.last.borrow_and_update();
            if let Some(event) = self.at_hand(events) {
                return event;
            }
            // The other end is in `events`.
            let _ = self.last.changed().await;
        }
    }

    /// Whether there is one already.
    pub fn is_behind(&self) -> bool {
        self.lost || self.place < *self.last.borrow()
    }

    /// The name under which an event goes to this listener, which then is where it is.
    pub fn id(&self) -> EventId {
        EventId { run: self.run, number: self.place }
    }

    fn at_hand(&mut self, events: &Events) -> Option<Arc<SiteEvent>> {
        if std::mem::take(&mut self.lost) {
            let why = "the daemon was started anew; nobody knows how many";
            return Some(events.missed(json!({ "why": why })));
        }
        let kept = events.kept();
        let first = kept.front()?.number;
        if self.place + 1 < first {
            let count = first - 1 - self.place;
            self.place = first - 1;
            return Some(events.missed(json!({ "events": count })));
        }
        let next = usize::try_from(self.place + 1 - first).ok()?;
        let event = kept.get(next)?.clone();
        self.place = event.number;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::{EventId, Events, KEPT_MAX, SiteEvent};
    use crate::site::Clock;
    use downpour_catalog::Time;
    use serde_json::json;

    fn events() -> Events {
        Events::new(Clock::of(|| Time(77)))
    }

    async fn numbers(events: &Events, place: Option<EventId>, count: usize) -> Vec<u64> {
        let mut listener = events.listen(place);
        let mut heard = Vec::new();
        for _ in 0..count {
            heard.push(listener.next(events).await.number);
        }
        heard
    }

    #[tokio::test]
    async fn who_comes_back_hears_on_without_gap_or_repeat() {
        let events = events();
        let mut first = events.listen(None);
        (0..3).for_each(|n| events.tell("test", &n));
        assert_eq!((first.next(&events).await.number, first.next(&events).await.number), (1, 2));
        let place: EventId = first.id().to_string().parse().unwrap();
        drop(first);
        events.tell("test", &3);
        assert_eq!(events.listeners(), 0);
        assert_eq!(numbers(&events, Some(place), 2).await, [3, 4]);
        // From the start of what is kept; and from a place that is still to come.
        assert_eq!(numbers(&events, Some(EventId::FIRST), 4).await, [1, 2, 3, 4]);
        let mut late = events.listen(Some(EventId { run: 77, number: 1000 }));
        events.tell("test", &4);
        assert_eq!(late.next(&events).await.number, 5);
    }

    #[test]
    fn of_a_file_what_was_said_last_by_its_class_is_found() {
        let events = events();
        let said = |file, class| events.last_of(SiteEvent::TROUBLE, file, class);
        for (kind, file, class, what) in [
            (SiteEvent::TROUBLE, 7, "name-refused", "an earlier try"),
            (SiteEvent::TROUBLE, 7, "name-refused", "`.downpour` is kept"),
            (SiteEvent::TROUBLE, 7, "timed-out", "nothing came"),
            (SiteEvent::TROUBLE, 8, "name-refused", "another"),
            (SiteEvent::QUARANTINE, 7, "name-refused", "set apart"),
        ] {
            events.tell(kind, &json!({ "file": file, "class": class, "what": what }));
        }
        assert_eq!(said(7, "name-refused").as_deref(), Some("`.downpour` is kept"));
        assert_eq!(said(7, "version-conflict"), None);
    }

    #[tokio::test]
    async fn what_is_missed_is_told() {
        let events = events();
        (0..KEPT_MAX + 10).for_each(|n| events.tell("test", &n));
        let mut slow = events.listen(Some(EventId { run: 77, number: 4 }));
        let told = slow.next(&events).await;
        assert_eq!((told.kind.as_str(), &told.about["events"]), (SiteEvent::MISSED, &6.into()));
        assert_eq!(slow.next(&events).await.number, 11);
        // Of another run: all that this one has, after a word.
        let mut lost = events.listen(Some(EventId { run: 76, number: 4 }));
        assert!(lost.next(&events).await.about["why"].as_str().unwrap().contains("anew"));
        assert_eq!(lost.next(&events).await.kind, SiteEvent::MISSED);
        assert_eq!(lost.next(&events).await.number, 11);
    }
}
