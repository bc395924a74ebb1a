//! What happens at the site, told live to whoever listens. Nothing of it is kept: what must be known later is in the
//! catalog and in the audit record.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::broadcast;
use utoipa::ToSchema;

/// Events that a slow listener may be behind; then it misses some, and is told how many.
const BEHIND_MAX: usize = 1024;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SiteEvent {
    /// Counted from the daemon's start; a number that a listener lacks was missed.
    pub number: u64,
    /// What kind: `service`, `transfer`, `audit`, …
    pub kind: String,
    /// What happened.
    #[schema(value_type = Object)]
    pub about: Value,
}

impl SiteEvent {
    /// Kind of the last event.
    pub const END: &str = "end";
    /// Kind of those that tell of the audit record.
    pub const AUDIT: &str = "audit";
}

/// Tells events.
#[derive(Debug)]
pub struct Events {
    listeners: broadcast::Sender<Arc<SiteEvent>>,
    count: AtomicU64,
}

impl Default for Events {
    fn default() -> Self {
        Self { listeners: broadcast::Sender::new(BEHIND_MAX), count: AtomicU64::new(0) }
    }
}

impl Events {
    /// Tells one. Costs little when nobody listens.
    pub fn tell(&self, kind: &str, about: &impl Serialize) {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if self.listeners.receiver_count() == 0 {
            return;
        }
        // What cannot be written as JSON is a fault of ours, and costs no more than its content.
        let about = serde_json::to_value(about).unwrap_or_default();
        let _ = self.listeners.send(Arc::new(SiteEvent { number, kind: kind.to_owned(), about }));
    }

    /// The last one: nobody listens any longer.
    pub(super) fn end(&self) {
        self.tell(SiteEvent::END, &"the daemon ends");
    }

    /// What happens from now on; listeners leave at [`SiteEvent::END`].
    pub fn listen(&self) -> broadcast::Receiver<Arc<SiteEvent>> {
        self.listeners.subscribe()
    }

    /// How many listen.
    pub fn listeners(&self) -> usize {
        self.listeners.receiver_count()
    }
}
