//! What was seen of a link's connections, and what follows from it: what holds them back.

use crate::time::Duration;
use core::fmt;

/// A disk binds when it is waited for in so much of the connections' time: one that does not is always ahead.
const DISK_SHARE: f64 = 0.05;
/// It alone binds when it is waited for in so much of their time; below, the path may have its part.
const DISK_SHARE_ALONE: f64 = 0.3;
/// A window or a buffer binds when it holds a connection for so much of its busy time.
const LIMITED_SHARE: f64 = 0.2;
/// The program binds when it left a connection without data in so much of the time.
const IDLE_SHARE: f64 = 0.5;
/// A standing queue is one that makes the round trip longer by so much, and by that part; this much is one on any path.
const QUEUE_LEAST: Duration = Duration::from_millis(2);
const QUEUE_SHARE: u32 = 10;
const QUEUE_MOST: Duration = Duration::from_millis(10);
/// Less than this is sent again on any path.
const LOSS_LEAST: f64 = 1e-5;

/// What happened in a span of time on all connections of a link. Times are sums over the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// How long.
    pub span: Duration,
    /// Bytes that came.
    pub bytes: u64,
    /// Connections that were open.
    pub connections: u16,
    /// Bytes that their senders sent, and sent again.
    pub sent: u64,
    /// Of `sent`.
    pub again: u64,
    /// Mean round trip, and the shortest ever seen.
    pub rtt: Duration,
    /// See `rtt`; zero: not known.
    pub rtt_min: Duration,
    /// Something was on its way.
    pub busy: Duration,
    /// Of `busy`: the receiver's window let no more go.
    pub window_limited: Duration,
    /// Of `busy`: the send buffer had no room for more.
    pub buffer_limited: Duration,
    /// The sender's program had given the kernel too little to fill the congestion window.
    pub idle: Duration,
    /// The source's disk was waited for, with nothing left to send.
    pub source_wait: Duration,
    /// The destination's disk was waited for, with nothing read meanwhile.
    pub sink_wait: Duration,
}

impl Seen {
    /// The span after this one, too. What is told may be any number.
    pub fn add(&mut self, next: &Self) {
        let whole = |seen: &Self| seen.rtt.as_nanos().saturating_mul(seen.span.as_nanos());
        let nanos = whole(self).saturating_add(whole(next));
        self.span = self.span.saturating_add(next.span);
        let mean = nanos.checked_div(self.span.as_nanos()).unwrap_or(0);
        self.rtt = Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX));
        self.connections = next.connections;
        if !next.rtt_min.is_zero() {
            self.rtt_min =
                if self.rtt_min.is_zero() { next.rtt_min } else { self.rtt_min.min(next.rtt_min) };
        }
        for (all, more) in [
            (&mut self.bytes, next.bytes),
            (&mut self.sent, next.sent),
            (&mut self.again, next.again),
        ] {
            *all = all.saturating_add(more);
        }
        for (all, more) in [
            (&mut self.busy, next.busy),
            (&mut self.window_limited, next.window_limited),
            (&mut self.buffer_limited, next.buffer_limited),
            (&mut self.idle, next.idle),
            (&mut self.source_wait, next.source_wait),
            (&mut self.sink_wait, next.sink_wait),
        ] {
            *all = all.saturating_add(more);
        }
    }

    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.span.as_secs_f64().max(1e-6)
    }

    /// Share that was sent again.
    pub fn loss(&self) -> f64 {
        (self.again as f64 / self.sent.max(1) as f64).min(1.0)
    }

    fn share(&self, time: Duration) -> f64 {
        let all = self.span.as_secs_f64() * f64::from(self.connections.max(1));
        time.as_secs_f64() / all.max(1e-6)
    }

    fn share_of_busy(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.busy.as_secs_f64().max(1e-6)
    }

    fn queue_stands(&self) -> bool {
        let least = (self.rtt_min / QUEUE_SHARE).clamp(QUEUE_LEAST, QUEUE_MOST);
        !self.rtt_min.is_zero() && self.rtt > self.rtt_min + least
    }

    /// A host alone holds the connections: nothing can be learnt of the path.
    pub fn is_starved(&self) -> bool {
        self.share(self.source_wait.max(self.sink_wait)) >= DISK_SHARE_ALONE
            || self.binding(false) == Binding::Application
    }

    /// What holds the connections; `flat`: more of them, or fewer, were seen to bring the same.
    pub fn binding(&self, flat: bool) -> Binding {
        if self.share(self.sink_wait) >= DISK_SHARE {
            return Binding::Receiver(Held::Disk);
        }
        if self.share(self.source_wait) >= DISK_SHARE {
            return Binding::SourceDisk;
        }
        if flat {
            return Binding::Saturation;
        }
        if self.share_of_busy(self.window_limited) >= LIMITED_SHARE {
            return Binding::Receiver(Held::Window);
        }
        if self.share_of_busy(self.buffer_limited) >= LIMITED_SHARE {
            return Binding::SendBuffer;
        }
        if self.share(self.idle) >= IDLE_SHARE {
            return Binding::Application;
        }
        if self.queue_stands() {
            return Binding::Saturation;
        }
        if self.loss() >= LOSS_LEAST {
            return Binding::Loss;
        }
        Binding::Opening
    }
}

/// What of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Its disk takes no more.
    Disk,
    /// Its window is too small for the path.
    Window,
}

/// What holds a link's connections back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The source's disk gives no more.
    SourceDisk,
    /// The receiver takes no more.
    Receiver(Held),
    /// The send buffers are too small for the path.
    SendBuffer,
    /// Losses halve the windows before they fill the path.
    Loss,
    /// The path is full.
    Saturation,
    /// The program gives no more, or was told not to.
    Application,
    /// Nothing yet: the windows still open.
    Opening,
}

impl Binding {
    /// Whether it is the hosts, of which more connections, or fewer, would change nothing.
    pub const fn is_host(self) -> bool {
        matches!(self, Self::SourceDisk | Self::Receiver(Held::Disk) | Self::Application)
    }

    /// All of them, with their names.
    pub const NAMES: [(Self, &'static str); 8] = [
        (Self::SourceDisk, "source-disk"),
        (Self::Receiver(Held::Disk), "receiver-disk"),
        (Self::Receiver(Held::Window), "receiver-window"),
        (Self::SendBuffer, "send-buffer"),
        (Self::Loss, "loss"),
        (Self::Saturation, "saturation"),
        (Self::Application, "application"),
        (Self::Opening, "opening"),
    ];

    /// In one word.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(binding, _)| *binding == self).map_or("", |(_, name)| name)
    }

    /// What it means, as part of a sentence.
    pub(super) const fn means(self) -> &'static str {
        match self {
            Self::SourceDisk => "the source's disk gives no more",
            Self::Receiver(Held::Disk) => "the destination's disk takes no more",
            Self::Receiver(Held::Window) => "the receiver's window is too small for the path",
            Self::SendBuffer => "the send buffer is too small for the path",
            Self::Loss => "losses keep the windows small",
            Self::Saturation => "the path is full",
            Self::Application => "the program offers no more",
            Self::Opening => "the windows still open",
        }
    }
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::{Binding, Held, Seen};
    use crate::time::Duration;

    /// Ten seconds of four connections on a path of 50 ms that is neither full nor lossy.
    fn seen() -> Seen {
        let ms = Duration::from_millis;
        Seen {
            span: ms(10_000),
            bytes: 10 << 20,
            connections: 4,
            sent: 10 << 20,
            rtt: ms(51),
            rtt_min: ms(50),
            busy: ms(40_000),
            ..Seen::default()
        }
    }

    #[test]
    fn each_sign_has_its_verdict() {
        let (some, much) = (Duration::from_secs(1), Duration::from_secs(30));
        let cases = [
            (Seen { ..seen() }, Binding::Opening),
            (Seen { again: 10_000, ..seen() }, Binding::Loss),
            (Seen { rtt: Duration::from_millis(70), again: 9_999, ..seen() }, Binding::Saturation),
            (Seen { window_limited: much, ..seen() }, Binding::Receiver(Held::Window)),
            (Seen { buffer_limited: much, ..seen() }, Binding::SendBuffer),
            (Seen { idle: much, ..seen() }, Binding::Application),
            (Seen { source_wait: much, idle: much, ..seen() }, Binding::SourceDisk),
            (
                Seen { sink_wait: much, window_limited: much, ..seen() },
                Binding::Receiver(Held::Disk),
            ),
            (Seen { source_wait: some, window_limited: some, ..seen() }, Binding::Opening),
        ];
        for (seen, binding) in cases {
            assert_eq!(seen.binding(false), binding, "{seen:?}");
        }
        assert_eq!(Seen { window_limited: much, ..seen() }.binding(true), Binding::Saturation);
        let ms = Duration::from_millis;
        let far = |rtt| Seen { rtt: ms(rtt), rtt_min: ms(200), again: 10_000, ..seen() };
        let verdicts = [far(209), far(211)].map(|seen| seen.binding(false));
        assert_eq!(verdicts, [Binding::Loss, Binding::Saturation]);
    }

    #[test]
    fn spans_add_up() {
        let mut sum = Seen::default();
        sum.add(&seen());
        sum.add(&Seen { rtt: Duration::from_millis(71), ..seen() });
        assert_eq!(sum.bytes, 20 << 20);
        assert_eq!(sum.rtt, Duration::from_millis(61));
        assert_eq!((sum.rtt_min, sum.connections), (Duration::from_millis(50), 4));
        // Whatever is told.
        let most = Duration::MAX;
        let all = Seen { span: most, bytes: u64::MAX, sent: u64::MAX, again: u64::MAX, ..seen() };
        let all = Seen { rtt: most, rtt_min: most, busy: most, window_limited: most, ..all };
        let all =
            Seen { buffer_limited: most, idle: most, source_wait: most, sink_wait: most, ..all };
        for _ in 0..2 {
            sum.add(&all);
        }
        assert_eq!((sum.bytes, sum.busy, sum.sink_wait), (u64::MAX, most, most));
        assert_eq!((sum.loss(), sum.binding(false)), (1.0, Binding::Receiver(Held::Disk)));
    }
}
