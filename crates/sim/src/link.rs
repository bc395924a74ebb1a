//! One direction of a link: rate, tail-drop queue, delay.
//!
//! A FIFO served at a constant rate needs no events: a datagram's departure is known when it comes in.
//! Callers give datagrams in order of time.

use downpour_proto::{Duration, Rate, Timestamp};

/// A link's properties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bits per second of frames.
    pub rate: Rate,
    /// What the queue holds besides the datagram being sent.
    pub queue_bytes: u64,
    /// Propagation.
    pub delay: Duration,
}

impl LinkConfig {
    /// No queue, no limit: only delay.
    pub const fn wire(delay: Duration) -> Self {
        Self { rate: Rate::MAX, queue_bytes: u64::MAX, delay }
    }

    /// A queue of `queue` at `rate`, at least ten full frames.
    pub fn bottleneck(rate: Rate, queue: Duration, delay: Duration) -> Self {
        Self { rate, queue_bytes: rate.bytes_in(queue).max(10 * FRAME_LEN), delay }
    }
}

/// A full Ethernet frame, without preamble.
pub const FRAME_LEN: u64 = 1514;

/// Ethernet, IPv4 and UDP headers.
pub const HEADERS_LEN: u64 = 42;

/// A link at work.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    busy_until: Timestamp,
    /// The rate before the last change, at which what waited then is served until this time.
    before: (Rate, Timestamp),
    /// Datagrams that found the queue full.
    pub dropped: u64,
    /// Frame bytes that passed.
    pub carried_bytes: u64,
}

impl Link {
    /// An idle link.
    pub const fn new(config: LinkConfig) -> Self {
        let before = (config.rate, Timestamp::ZERO);
        Self { config, busy_until: Timestamp::ZERO, before, dropped: 0, carried_bytes: 0 }
    }

    /// Sends a frame of `len` bytes. Returns when its last bit is at the other end; `None` if the
    /// queue was full. A short frame finds no room where a long one finds none, as where frames are counted.
    #[inline]
    pub fn send(&mut self, now: Timestamp, len: u64) -> Option<Timestamp> {
        if self.config.rate == Rate::MAX {
            self.carried_bytes += len;
            return Some(now + self.config.delay);
        }
        if self.backlog_bytes(now) > self.config.queue_bytes {
            self.dropped += 1;
            return None;
        }
        self.carried_bytes += len;
        self.busy_until = self.busy_until.max(now) + self.config.rate.time_for(len);
        Some(self.busy_until + self.config.delay)
    }

    /// How long a datagram that came now would wait.
    pub fn queue_delay(&self, now: Timestamp) -> Duration {
        self.busy_until.since(now)
    }

    /// Changes the rate for what comes from now on: when what waits arrives has been told.
    pub const fn set_rate(&mut self, rate: Rate) {
        self.before = (self.config.rate, self.busy_until);
        self.config.rate = rate;
    }

    fn backlog_bytes(&self, now: Timestamp) -> u64 {
        let (rate, until) = self.before;
        let later = self.config.rate.bytes_in(self.busy_until.since(until.max(now)));
        rate.bytes_in(until.since(now)) + later
    }
}

#[cfg(test)]
mod tests {
    use super::{FRAME_LEN, Link, LinkConfig};
    use downpour_proto::{Duration, Rate, Timestamp};

    #[test]
    fn it_serves_in_order_and_drops_when_full() {
        let delay = Duration::from_millis(10);
        let rate = Rate::from_mbps(100);
        let mut link = Link::new(LinkConfig::bottleneck(rate, Duration::ZERO, delay));
        let one = rate.time_for(FRAME_LEN);
        let mut last = Timestamp::ZERO;
        for n in 1..=11u32 {
            last = link.send(Timestamp::ZERO, FRAME_LEN).unwrap();
            assert_eq!(last, Timestamp::ZERO + one * n + delay);
        }
        assert_eq!(link.send(Timestamp::ZERO, FRAME_LEN), None);
        assert_eq!(link.dropped, 1);
        assert_eq!(link.queue_delay(Timestamp::ZERO), one * 11);
        // After one service time there is room again.
        assert_eq!(link.send(Timestamp::ZERO + one, FRAME_LEN), Some(last + one));
    }

    #[test]
    fn at_another_rate_it_still_serves_in_order_and_holds_as_much() {
        let (fast, slow) = (Rate::from_mbps(100), Rate::from_mbps(10));
        for (first, second) in [(fast, slow), (slow, fast)] {
            let mut link = Link::new(LinkConfig::bottleneck(first, Duration::ZERO, Duration::ZERO));
            let before: Vec<_> = (0..6).map(|_| link.send(Timestamp::ZERO, FRAME_LEN)).collect();
            link.set_rate(second);
            // Ten wait, and one is being sent.
            let after: Vec<_> = (0..6).map(|_| link.send(Timestamp::ZERO, FRAME_LEN)).collect();
            assert!(after[5].is_none() && after[4].is_some(), "{after:?}");
            let served = Timestamp::ZERO + first.time_for(FRAME_LEN) * 6;
            assert_eq!(before[5], Some(served));
            let fifth = served + second.time_for(FRAME_LEN) * 5;
            assert_eq!(after[4], Some(fifth));
            assert_eq!(link.backlog_bytes(served), 5 * FRAME_LEN);
        }
    }
}
