//! What arrives here by a service. When the service drains it waits for that, and nothing more begins to arrive.

use crate::site::{Stop, Wish};
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

/// What arrives by one service.
pub(super) struct Arrivals {
    /// What is wanted of the service, from its first run on.
    stop: OnceLock<Stop>,
    under_way: watch::Sender<usize>,
}

/// Something arrives for as long as this lives.
pub(super) struct Arriving(Arc<Arrivals>);

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|count| *count -= 1);
    }
}

impl Arrivals {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { stop: OnceLock::new(), under_way: watch::channel(0).0 })
    }

    /// The service runs, maybe again.
    pub(super) fn follow(&self, stop: &Stop) {
        self.stop.get_or_init(|| stop.clone());
    }

    /// What is wanted of the service. One that did not run yet will.
    pub(super) fn wish(&self) -> Wish {
        self.stop.get().map_or(Wish::Run, Stop::wish)
    }

    /// Something begins to arrive; `None`: the service ends, or was ended.
    pub(super) fn begin(self: &Arc<Self>) -> Option<Arriving> {
        // First counted, then asked: who has seen that nothing arrives, after it was to end, is right.
        self.under_way.send_modify(|count| *count += 1);
        let arriving = Arriving(self.clone());
        (self.wish() == Wish::Run).then_some(arriving)
    }

    /// Whether nothing arrives.
    pub(super) fn is_empty(&self) -> bool {
        *self.under_way.borrow() == 0
    }

    /// Ready when nothing arrives.
    pub(super) async fn ended(&self) {
        // It fails when the sender is gone, which is here.
        let _ = self.under_way.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Ready when what arrives is to end at once.
    pub(super) async fn cut(&self) {
        match self.stop.get() {
            Some(stop) => stop.now().await,
            None => std::future::pending().await,
        }
    }

    /// Ready when the service is to run.
    pub(super) async fn resumed(&self) {
        if let Some(stop) = self.stop.get() {
            stop.lifted().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Arrivals;
    use crate::site::{Stop, Wish};

    #[tokio::test]
    async fn nothing_begins_to_arrive_when_it_is_to_end_and_what_does_is_waited_for() {
        let arrivals = Arrivals::new();
        drop(arrivals.begin().unwrap());
        assert!(arrivals.is_empty());
        let (wish, stop) = Stop::new();
        arrivals.follow(&stop);
        let arriving = arrivals.begin().unwrap();
        wish.send_replace(Wish::Drain);
        assert!(arrivals.begin().is_none() && !arrivals.is_empty());
        let waits = tokio::spawn({
            let arrivals = arrivals.clone();
            async move { arrivals.ended().await }
        });
        drop(arriving);
        waits.await.unwrap();
        wish.send_replace(Wish::Stop);
        arrivals.cut().await;
        let waits = tokio::spawn({
            let arrivals = arrivals.clone();
            async move { arrivals.resumed().await }
        });
        wish.send_replace(Wish::Run);
        waits.await.unwrap();
        assert!(arrivals.begin().is_some());
    }
}
