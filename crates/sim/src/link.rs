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
    /// Datagrams that found the queue full.
    pub dropped: u64,
    /// Frame bytes that passed.
    pub carried_bytes: u64,
}

impl Link {
    /// An idle link.
    pub const fn new(config: LinkConfig) -> Self {
        Self { config, busy_until: Timestamp::ZERO, dropped: 0, carried_bytes: 0 }
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

    /// Changes the rate; what waits is served at the new one.
    pub fn set_rate(&mut self, now: Timestamp, rate: Rate) {
        let backlog = self.backlog_bytes(now);
        self.config.rate = rate;
        self.busy_until = now + rate.time_for(backlog);
    }

    fn backlog_bytes(&self, now: Timestamp) -> u64 {
        self.config.rate.bytes_in(self.busy_until.since(now))
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
}
