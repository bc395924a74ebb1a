//! How long a source's disk was waited for by who reads bytes before they can be asked for, to hash them.
//!
//! 1. Who reads them tells how long each read was [`blocked`]. What comes from memory, and a thread that waits for a
//!    processor, is not.
//! 2. [`FirstReads`] adds that up, and remembers how much it was when more could be asked for.
//! 3. A connection that ran empty has waited for the disk when what it is asked for next was not there by then
//!    (`control::server::stall`).

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Runs `work`. How long the calling thread slept in it: not while it ran, and not at all when it was only interrupted.
pub fn blocked<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let (begun, before) = (Instant::now(), Thread::now());
    let result = work();
    let (took, after) = (begun.elapsed(), Thread::now());
    let slept = match after.sleeps > before.sleeps {
        true => took.saturating_sub(after.ran.saturating_sub(before.ran)),
        false => Duration::ZERO,
    };
    (result, slept)
}

/// What the kernel tells of the calling thread.
#[derive(Default)]
struct Thread {
    ran: Duration,
    sleeps: i64,
}

impl Thread {
    fn now() -> Self {
        // On Linux neither fails; where one does nothing was waited for.
        let told = getrusage(UsageWho::RUSAGE_THREAD)
            .and_then(|usage| Ok((usage, clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?)));
        told.map_or_else(
            |_| Self::default(),
            |(usage, ran)| Self { ran: ran.into(), sleeps: usage.voluntary_context_switches() },
        )
    }
}

/// What was waited for the disk so far, and what could be asked for by then.
#[derive(Debug, Default)]
pub struct FirstReads(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waited: Duration,
    /// Ends of what could be asked for, and what had been waited when the first byte below could be; both ascend.
    offered: Vec<(u64, Duration)>,
}

impl FirstReads {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is whole, so what a panic left behind is good.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of `threads` that read at once was blocked for so long.
    pub fn waited(&self, time: Duration, threads: usize) {
        self.lock().waited += time / u32::try_from(threads.max(1)).unwrap_or(u32::MAX);
    }

    /// From now on all below `end` can be asked for.
    pub fn offer(&self, end: u64) {
        let mut state = self.lock();
        let waited = state.waited;
        match state.offered.last_mut() {
            // A disk that is not waited for needs no memory.
            Some(last) if last.1 == waited => last.0 = last.0.max(end),
            _ => state.offered.push((end, waited)),
        }
    }

    /// How long it was waited for so far.
    pub fn so_far(&self) -> Duration {
        self.lock().waited
    }

    /// How long it had been waited for when all below `end` could be asked for.
    pub fn until(&self, end: u64) -> Duration {
        let state = self.lock();
        let at = state.offered.partition_point(|(offered, _)| *offered < end);
        state.offered.get(at).map_or(state.waited, |(_, waited)| *waited)
    }
}

#[cfg(test)]
mod tests {
    use super::{FirstReads, blocked};
    use std::hint::black_box;
    use std::time::Duration;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_sleeps_is_blocked_and_who_computes_is_not() {
        let (result, slept) = blocked(|| {
            std::thread::sleep(20 * MS);
            7
        });
        assert!(result == 7 && slept >= 19 * MS, "{slept:?}");
        // Who computes waits for its memory, where that was taken from it.
        let computes = || {
            blocked(|| (0..20_000_000_u64).fold(0, |sum, next| sum ^ black_box(next))).1.is_zero()
        };
        assert!((0..10).any(|_| computes()));
    }

    #[test]
    fn what_was_waited_is_known_for_what_could_be_asked_for_then() {
        let reads = FirstReads::default();
        reads.offer(10);
        reads.offer(20);
        reads.waited(8 * MS, 2);
        assert_eq!((reads.so_far(), reads.until(20)), (4 * MS, Duration::ZERO));
        reads.offer(30);
        reads.waited(MS, 1);
        assert_eq!([5, 20, 21, 30].map(|end| reads.until(end)), [0, 0, 4, 4].map(|ms| ms * MS));
        assert_eq!((reads.until(31), reads.so_far()), (5 * MS, 5 * MS), "not offered yet");
    }
}
