//! Time for the thread that owns a machine: a monotonic clock, and waiting for whichever comes first, a
//! socket or a deadline.
//!
//! What to send when is decided by `downpour_proto`; this module only sleeps, in `ppoll`. The kernel wakes a thread
//! about 25 µs late (p50) and 60 µs at p99; deadlines are absolute, so a late wake-up does not lower the mean rate. The
//! thread's timer slack must be 1 ns ([`take_short_turns`](crate::take_short_turns)), else 50 µs are added.
//!
//! Not here: pacing by the kernel; SO_MAX_PACING_RATE and SO_TXTIME need a qdisc that is rarely there.

use downpour_proto::Timestamp;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A wait as short as this is spent spinning: the kernel would be late by as much.
const SPIN_MAX: Duration = Duration::from_micros(30);

/// Descriptors that one wait may watch.
const INTERESTS_MAX: usize = 4;

/// Nanoseconds since it was started; the driver's time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts at [`Timestamp::ZERO`] now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// The time now. Never runs backwards.
    pub fn now(&self) -> Timestamp {
        let nanos = self.start.elapsed().as_nanos();
        Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// What to wait for at a descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Interest<'a> {
    /// Something can be read.
    Read(BorrowedFd<'a>),
    /// Something can be written.
    Write(BorrowedFd<'a>),
    /// Something can be written, or read.
    ReadWrite(BorrowedFd<'a>),
}

impl<'a> Interest<'a> {
    fn poll_fd(self) -> PollFd<'a> {
        match self {
            Self::Read(fd) => PollFd::new(fd, PollFlags::POLLIN),
            Self::Write(fd) => PollFd::new(fd, PollFlags::POLLOUT),
            Self::ReadWrite(fd) => PollFd::new(fd, PollFlags::POLLIN | PollFlags::POLLOUT),
        }
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A descriptor is ready; which one is found by trying.
    Ready,
    /// The deadline has come.
    Deadline,
}

/// Waits until one of `interests` is ready or `clock` reads `deadline`; [`Timestamp::MAX`] is no deadline.
/// A deadline that is very near is spun for, without looking at the descriptors.
pub fn wait(clock: &Clock, deadline: Timestamp, interests: &[Interest<'_>]) -> io::Result<Woken> {
    let ahead = deadline.since(clock.now());
    if ahead > SPIN_MAX {
        let timeout = (deadline != Timestamp::MAX).then_some(ahead);
        if poll(interests, timeout)? {
            return Ok(Woken::Ready);
        }
    }
    while clock.now() < deadline {
        std::hint::spin_loop();
    }
    Ok(Woken::Deadline)
}

/// Whether one of `interests` became ready within `timeout`; `None` waits for ever.
fn poll(interests: &[Interest<'_>], timeout: Option<Duration>) -> io::Result<bool> {
    debug_assert!(interests.len() <= INTERESTS_MAX, "more interests than one wait may watch");
    let Some(first) = interests.first() else {
        std::thread::sleep(timeout.unwrap_or(Duration::MAX));
        return Ok(false);
    };
    // Without allocation: unused places repeat the first and are cut off.
    let mut fds: [PollFd<'_>; INTERESTS_MAX] =
        std::array::from_fn(|i| interests.get(i).unwrap_or(first).poll_fd());
    let fds = &mut fds[..interests.len().min(INTERESTS_MAX)];
    match ppoll(fds, timeout.map(TimeSpec::from_duration), None) {
        Ok(ready) => Ok(ready > 0),
        // A signal: let the caller look at everything again.
        Err(nix::errno::Errno::EINTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Ends another thread's [`wait`]: that thread waits for [`Waker::as_fd`] to be readable and then calls
/// [`Waker::clear`].
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Wakeups>,
}

#[derive(Debug)]
struct Wakeups {
    event: EventFd,
    /// The event has been written, or is about to be: a thread that is busy need not ask the kernel.
    pending: AtomicBool,
}

impl Waker {
    /// A new one.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let event = EventFd::from_flags(flags)?;
        Ok(Self { shared: Arc::new(Wakeups { event, pending: AtomicBool::new(false) }) })
    }

    /// Wakes the waiting thread, or keeps its next wait from sleeping.
    pub fn wake(&self) {
        if !self.shared.pending.swap(true, Ordering::SeqCst) {
            // Fails only when the counter is full, and then the thread is woken anyway.
            let _ = self.shared.event.write(1);
        }
    }

    /// Forgets the wake-ups so far. To be called before looking at what they were about.
    pub fn clear(&self) {
        // Fails when it is yet to be written: then it stays pending, and ends the next wait.
        if self.shared.pending.load(Ordering::SeqCst) && self.shared.event.read().is_ok() {
            // Whoever finds it pending until here writes nothing: what it is about is looked at next.
            self.shared.pending.swap(false, Ordering::SeqCst);
        }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, Interest, Waker, Woken, wait};
    use crate::take_short_turns;
    use downpour_proto::Timestamp;
    use std::io::Write as _;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn a_wait_never_ends_before_its_deadline() {
        take_short_turns();
        let clock = Clock::start();
        for micros in [0, 1, 29, 30, 31, 500, 2_000] {
            let deadline = clock.now() + Duration::from_micros(micros);
            assert_eq!(wait(&clock, deadline, &[]).unwrap(), Woken::Deadline);
            assert!(clock.now() >= deadline);
        }
    }

    #[test]
    fn who_waits_to_write_does_not_hear_of_what_nobody_reads() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        while ours.write(&[0; 4096]).is_ok() {}
        theirs.write_all(b"stray").unwrap();
        let clock = Clock::start();
        let woken =
            |interest| wait(&clock, clock.now() + Duration::from_millis(1), &[interest]).unwrap();
        assert_eq!(woken(Interest::ReadWrite(ours.as_fd())), Woken::Ready);
        assert_eq!(woken(Interest::Write(ours.as_fd())), Woken::Deadline);
    }

    #[test]
    fn a_wake_up_ends_a_wait_and_is_not_lost() {
        let clock = Clock::start();
        let waker = Waker::new().unwrap();
        waker.wake();
        waker.wake();
        let interests = [Interest::Read(waker.as_fd())];
        assert_eq!(wait(&clock, Timestamp::MAX, &interests).unwrap(), Woken::Ready);
        waker.clear();
        let soon = clock.now() + Duration::from_millis(1);
        assert_eq!(wait(&clock, soon, &interests).unwrap(), Woken::Deadline);
        let other = waker.clone();
        let thread = std::thread::spawn(move || other.wake());
        assert_eq!(wait(&clock, Timestamp::MAX, &interests).unwrap(), Woken::Ready);
        thread.join().unwrap();
    }
}
