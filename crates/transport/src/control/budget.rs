//! The part of the sender's rate that pulls may use.
//!
//! A token bucket whose rate the session changes at run time (`docs/protocol.md#PULL-4`). Each piece of
//! each pull asks before it is read and sent; those who wait are served in the order in which they came, the manifest's
//! first, so that all pulls together keep the rate and none starves. A piece may take the bucket below zero: the next
//! one waits until that is paid back, so that a piece larger than the bucket is no special case.

use downpour_proto::{BlockKind, Rate};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Largest number of bytes that are asked for, read and sent at once.
pub const PIECE_LEN_MAX: usize = 256 * 1024;
/// Smallest such number: below it the cost of each piece shows.
const PIECE_LEN_MIN: usize = 16 * 1024;
/// A piece is as long as this takes at the budget's rate: pulls of many receivers interleave finely.
const PIECE_TIME: Duration = Duration::from_millis(50);
/// Unused permission is kept for this long.
const BURST_TIME: Duration = Duration::from_millis(20);

const _: () = assert!(PIECE_LEN_MIN <= PIECE_LEN_MAX);

/// Shared by all pulls of a session.
#[derive(Debug)]
pub struct PullBudget {
    bucket: Mutex<Bucket>,
    /// Held by the one who is next. A tokio mutex is fair.
    turn: tokio::sync::Mutex<()>,
    /// Held by the one of all data's that waits for `turn`.
    data: tokio::sync::Mutex<()>,
    rate_changed: Notify,
    active: AtomicUsize,
}

#[derive(Debug)]
struct Bucket {
    rate: Rate,
    /// Bytes that may go now; negative when a piece was larger than what was there.
    allowed: f64,
    counted_until: Instant,
    granted: u64,
}

impl PullBudget {
    /// A budget of `rate`, counted over the bytes of bodies; [`Rate::MAX`] is no limit, zero is a halt.
    pub fn new(rate: Rate) -> Arc<Self> {
        let bucket = Bucket { rate, allowed: 0.0, counted_until: Instant::now(), granted: 0 };
        Arc::new(Self {
            bucket: Mutex::new(bucket),
            turn: tokio::sync::Mutex::default(),
            data: tokio::sync::Mutex::default(),
            rate_changed: Notify::new(),
            active: AtomicUsize::new(0),
        })
    }

    /// Changes the rate, also for those who wait already. Callable from any thread.
    pub fn set_rate(&self, rate: Rate) {
        self.with_bucket(|bucket| bucket.rate = rate);
        self.rate_changed.notify_one();
    }

    /// The present rate.
    pub fn rate(&self) -> Rate {
        self.with_bucket(|bucket| bucket.rate)
    }

    /// Counts bytes that go without waiting, as there is no limit.
    pub(crate) fn note(&self, len: u64) {
        self.with_bucket(|bucket| bucket.granted += len);
    }

    /// Bytes permitted since the start.
    pub fn granted(&self) -> u64 {
        self.with_bucket(|bucket| bucket.granted)
    }

    /// Pulls under way, waiting ones too. While it is zero the stream may have the whole rate.
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Waits until `len` bytes may be sent: those of the manifest, which other pulls wait for, before those of data. Dropping
    /// the future gives up the place in the queue.
    pub async fn acquire(&self, kind: BlockKind, len: usize) {
        let _data = match kind {
            BlockKind::Data => Some(self.data.lock().await),
            BlockKind::Manifest => None,
        };
        let _turn = self.turn.lock().await;
        loop {
            let wait = self.with_bucket(|bucket| bucket.take(len));
            match wait {
                None => return,
                Some(Duration::MAX) => self.rate_changed.notified().await,
                Some(time) => tokio::select! {
                    () = tokio::time::sleep(time) => {}
                    () = self.rate_changed.notified() => {}
                },
            }
        }
    }

    /// Counts bytes that went without asking: what TCP sent again.
    pub fn charge(&self, bytes: u64) {
        self.with_bucket(|bucket| bucket.allowed -= bytes as f64);
    }

    /// How long the next piece should be: 50 ms of the rate, within fixed limits.
    pub fn piece_len(&self) -> usize {
        let bytes = self.rate().bytes_in(PIECE_TIME);
        usize::try_from(bytes).unwrap_or(usize::MAX).clamp(PIECE_LEN_MIN, PIECE_LEN_MAX)
    }

    /// Counts as active until dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> ActivePull {
        self.active.fetch_add(1, Ordering::Relaxed);
        ActivePull(self.clone())
    }

    /// The bucket brought up to now.
    fn with_bucket<T>(&self, body: impl FnOnce(&mut Bucket) -> T) -> T {
        // The bucket is plain numbers: nothing is left half-done by a panic elsewhere.
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.count();
        body(&mut bucket)
    }
}

impl Bucket {
    fn count(&mut self) {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.counted_until);
        self.counted_until = now;
        if self.rate == Rate::MAX {
            self.allowed = 0.0;
            return;
        }
        let rate = self.rate.bps() as f64 / 8.0;
        let most = rate * BURST_TIME.as_secs_f64();
        self.allowed = (self.allowed + rate * passed.as_secs_f64()).min(most);
    }

    /// `None` when `len` bytes are granted, else how long to wait.
    fn take(&mut self, len: usize) -> Option<Duration> {
        if self.rate == Rate::MAX {
            self.granted += len as u64;
            return None;
        }
        if self.rate == Rate::from_bps(0) {
            return Some(Duration::MAX);
        }
        if self.allowed >= 0.0 {
            self.allowed -= len as f64;
            self.granted += len as u64;
            return None;
        }
        let seconds = -self.allowed * 8.0 / self.rate.bps() as f64;
        // Never zero, so that rounding cannot make this a busy loop; never MAX, which means a halt.
        Some(Duration::try_from_secs_f64(seconds).map_or(Duration::from_secs(60), |time| {
            time.clamp(Duration::from_micros(10), Duration::from_secs(60))
        }))
    }
}

/// One pull under way.
#[derive(Debug)]
pub(crate) struct ActivePull(Arc<PullBudget>);

impl Drop for ActivePull {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{PIECE_LEN_MAX, PIECE_LEN_MIN, PullBudget};
    use downpour_proto::{BlockKind, Rate};
    use std::time::Duration;
    use tokio::time::{Instant, timeout};

    const PIECE: usize = 100_000;

    /// Time is virtual in these tests: it moves only when everybody waits.
    #[tokio::test(start_paused = true)]
    async fn many_together_get_the_rate_and_each_its_turn() {
        let budget = PullBudget::new(Rate::from_bps(8_000_000));
        let start = Instant::now();
        let pulls: Vec<_> = (0..4)
            .map(|_| {
                let budget = budget.clone();
                tokio::spawn(async move {
                    for _ in 0..25 {
                        budget.acquire(BlockKind::Data, PIECE).await;
                    }
                    Instant::now()
                })
            })
            .collect();
        let mut ends = Vec::new();
        for pull in pulls {
            ends.push(pull.await.unwrap().duration_since(start).as_secs_f64());
        }
        // 10 MB at 1 MB/s; the first piece goes at once, and fairness means that all end together.
        assert!(ends.iter().all(|end| (9.0..10.0).contains(end)), "{ends:?}");
        assert_eq!(budget.granted(), 100 * PIECE as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn the_manifest_goes_before_all_data_that_waits() {
        let budget = PullBudget::new(Rate::from_bps(8_000_000));
        let start = Instant::now();
        let pulls: Vec<_> = (0..50)
            .map(|_| {
                let budget = budget.clone();
                tokio::spawn(async move { budget.acquire(BlockKind::Data, PIECE).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(10)).await;
        budget.acquire(BlockKind::Manifest, PIECE).await;
        // One piece goes at once, one is next already; each is paid for in 0.1 s.
        assert!(start.elapsed() < Duration::from_millis(250), "{:?}", start.elapsed());
        for pull in pulls {
            pull.await.unwrap();
        }
        assert!(start.elapsed() > Duration::from_millis(4_900), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_rate_reaches_those_who_wait() {
        let budget = PullBudget::new(Rate::from_bps(0));
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.acquire(BlockKind::Data, PIECE).await }
        });
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!waiting.is_finished() && budget.granted() == 0);
        budget.set_rate(Rate::from_bps(8));
        waiting.await.unwrap();

        // Now 100 kB in debt at one byte a second.
        let start = Instant::now();
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.acquire(BlockKind::Data, 1).await }
        });
        tokio::time::sleep(Duration::from_secs(10)).await;
        budget.set_rate(Rate::from_mbps(8));
        waiting.await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(11), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_does_not_hold_the_queue() {
        let budget = PullBudget::new(Rate::from_bps(8));
        budget.acquire(BlockKind::Data, PIECE).await;
        assert!(
            timeout(Duration::from_secs(5), budget.acquire(BlockKind::Data, PIECE)).await.is_err()
        );
        budget.set_rate(Rate::MAX);
        budget.acquire(BlockKind::Data, PIECE).await;
        assert_eq!(budget.granted(), 2 * PIECE as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_is_not_saved_up() {
        let budget = PullBudget::new(Rate::from_bps(8_000_000));
        tokio::time::sleep(Duration::from_secs(1000)).await;
        let start = Instant::now();
        for _ in 0..11 {
            budget.acquire(BlockKind::Data, PIECE).await;
        }
        assert!(start.elapsed() > Duration::from_millis(950), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_follow_the_rate() {
        let budget = PullBudget::new(Rate::MAX);
        assert_eq!(budget.piece_len(), PIECE_LEN_MAX);
        budget.set_rate(Rate::from_mbps(8));
        assert_eq!(budget.piece_len(), 50_000);
        budget.set_rate(Rate::from_bps(0));
        assert_eq!(budget.piece_len(), PIECE_LEN_MIN);
    }
}
