//! Stream or pulls: which of them brings more to one receiver far away (`docs/protocol.md#WAN-6`).
//!
//! 1. The stream begins. When its rate has settled, what it brings is measured.
//! 2. The pulls are tried when they may bring as much: what TCP makes of this round trip and this loss is known (RFC 9438,
//!    RFC 3649); where that is less, or what is left is soon there, the time is not spent.
//! 3. What brings more stays; the pulls when it is nearly the same, as they cost less work. A loss in many seconds halves
//!    a window of TCP after its trial: when the pulls fall below what the stream brought, it takes over again.
//! 4. When what stays falls far below what it brought for a while, the other is tried again, each time after a longer
//!    wait.
//!
//! What has come is never lost: a change only decides how the rest comes.

use super::plan::loss_bound;
use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use alloc::format;
use alloc::string::String;

/// How the blocks come now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// By the stream.
    Stream,
    /// By pulls.
    Pull,
}

/// What was seen so far.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Bytes that the stream has brought.
    pub stream_bytes: u64,
    /// Bytes that pulls have brought.
    pub pull_bytes: u64,
    /// Share of the stream's datagrams that is lost lately.
    pub loss: Option<f64>,
    /// Round trip.
    pub rtt: Duration,
    /// Bytes that have not come; `None`: nobody knows.
    pub left: Option<u64>,
}

/// A path settles, and is measured, for so long, or for so many round trips.
const SETTLE: Duration = Duration::from_millis(1_000);
const MEASURE: Duration = Duration::from_millis(1_000);
const ROUND_TRIPS: u32 = 10;

/// Pulls stay when they bring so much of what the stream does.
const PULLS_SUFFICE: f64 = 0.98;

/// They stay as long as they bring so much of what the stream did before them.
const PULLS_KEPT: f64 = 0.9;

/// They are tried when what is left takes the stream so many seconds: setting them up costs about one.
const WORTH_S: f64 = 30.0;

/// The other is tried again when the one chosen brings less than this part for so many measurements.
const FALLEN: f64 = 0.6;
const FALLEN_TIMES: u32 = 3;
const WAIT_FIRST: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Settle,
    Measure,
    Keep,
}

/// Decides by what is delivered.
#[derive(Debug)]
pub struct Choice {
    path: Path,
    phase: Phase,
    since: Timestamp,
    bytes: u64,
    /// Bytes a second of the stream and of the pulls, as measured last.
    stream: Option<f64>,
    pulls: Option<f64>,
    /// Loss while the stream was measured: sum, and how often it was looked at. What is lost lately is known of a tenth of
    /// a second only where much is sent.
    loss: (f64, u32),
    connections: u16,
    fallen: u32,
    again_at: Timestamp,
    wait: Duration,
    why: String,
}

impl Choice {
    /// At the start of the data; pulls would use so many connections.
    pub fn new(now: Timestamp, connections: u16) -> Self {
        Self {
            path: Path::Stream,
            phase: Phase::Settle,
            since: now,
            bytes: 0,
            stream: None,
            pulls: None,
            loss: (0.0, 0),
            connections,
            fallen: 0,
            again_at: now,
            wait: WAIT_FIRST,
            why: String::new(),
        }
    }

    /// Why the path is as it is, when something was decided since this was asked last.
    pub fn take_why(&mut self) -> Option<String> {
        (!self.why.is_empty()).then(|| core::mem::take(&mut self.why))
    }

    /// Looks at what came. The path to change to, if it is to be changed.
    pub fn look(&mut self, now: Timestamp, seen: &Seen) -> Option<Path> {
        let bytes = match self.path {
            Path::Stream => seen.stream_bytes,
            Path::Pull => seen.pull_bytes,
        };
        if let (Phase::Measure, Path::Stream, Some(loss)) = (self.phase, self.path, seen.loss) {
            self.loss = (self.loss.0 + loss, self.loss.1 + 1);
        }
        let least = if self.phase == Phase::Settle { SETTLE } else { MEASURE };
        let span = now.since(self.since);
        if span < least.max(seen.rtt * ROUND_TRIPS) {
            return None;
        }
        let rate = bytes.saturating_sub(self.bytes) as f64 / span.as_secs_f64();
        (self.since, self.bytes) = (now, bytes);
        match self.phase {
            Phase::Settle => {
                self.phase = Phase::Measure;
                self.loss = (0.0, 0);
                None
            }
            Phase::Measure => self.measured(now, rate, seen),
            Phase::Keep => self.watch(now, rate, seen),
        }
    }

    fn measured(&mut self, now: Timestamp, rate: f64, seen: &Seen) -> Option<Path> {
        match self.path {
            Path::Stream => self.stream = Some(rate),
            Path::Pull => self.pulls = Some(rate),
        }
        let better = match (self.stream, self.pulls) {
            (Some(stream), Some(pulls)) if pulls >= PULLS_SUFFICE * stream => Path::Pull,
            (Some(_), Some(_)) => Path::Stream,
            (Some(stream), None) => {
                let Some(why) = self.why_not(stream, seen) else {
                    return self.change(now, Path::Pull, seen);
                };
                self.say(stream, &why);
                Path::Stream
            }
            (None, _) => return self.change(now, Path::Stream, seen),
        };
        if let (Some(stream), Some(pulls)) = (self.stream, self.pulls) {
            self.say(stream, &format!("TCP {}", show(pulls)));
        }
        self.fallen = 0;
        self.again_at = now + self.wait;
        let change = if better == self.path { None } else { self.change(now, better, seen) };
        self.phase = Phase::Keep;
        change
    }

    fn watch(&mut self, now: Timestamp, rate: f64, seen: &Seen) -> Option<Path> {
        let (own, other) = match self.path {
            Path::Stream => (&mut self.stream, &mut self.pulls),
            Path::Pull => (&mut self.pulls, &mut self.stream),
        };
        let low = own.is_some_and(|chosen| rate < FALLEN * chosen);
        let was_better = self.path == Path::Pull && other.is_some_and(|s| rate < PULLS_KEPT * s);
        self.fallen = if low || was_better { self.fallen + 1 } else { 0 };
        if self.fallen < FALLEN_TIMES || now < self.again_at && !was_better {
            return None;
        }
        *own = Some(rate);
        if !was_better {
            *other = None;
        }
        self.fallen = 0;
        self.wait *= 2;
        let to = if self.path == Path::Stream { Path::Pull } else { Path::Stream };
        if let Some(stream) = self.stream.filter(|_| was_better) {
            self.say(stream, &format!("TCP only {} for long", show(rate)));
        }
        self.change(now, to, seen)
    }

    fn change(&mut self, now: Timestamp, to: Path, seen: &Seen) -> Option<Path> {
        self.path = to;
        self.phase = Phase::Settle;
        self.since = now;
        self.bytes = match to {
            Path::Stream => seen.stream_bytes,
            Path::Pull => seen.pull_bytes,
        };
        Some(to)
    }

    fn say(&mut self, stream: f64, pulls: &str) {
        self.why = format!("the stream brings {}; {pulls}", show(stream));
    }

    /// Why the pulls are not tried beside a stream that brings so much.
    fn why_not(&self, stream: f64, seen: &Seen) -> Option<String> {
        // The greater of Reno's and CUBIC's mean windows; none when nothing is lost that would hold them.
        let (sum, times) = self.loss;
        let bound = loss_bound(seen.rtt, sum / f64::from(times.max(1)));
        let tcp = bound.map(|bound| f64::from(self.connections) * bound.bps() as f64 / 8.0);
        if let Some(tcp) = tcp.filter(|tcp| *tcp < stream) {
            return Some(format!("by its loss, TCP would bring about {}", show(tcp)));
        }
        let left_s = seen.left? as f64 / stream.max(1.0);
        (left_s < WORTH_S)
            .then(|| format!("what is left takes {left_s:.0} s, too little to try TCP"))
    }
}

fn show(bytes_per_s: f64) -> String {
    format!("{}", Rate::from_bps((bytes_per_s * 8.0) as u64))
}

#[cfg(test)]
mod tests {
    use super::{Choice, Path, Seen};
    use crate::time::{Duration, Timestamp};

    /// For so many seconds: the path in the end, and the seconds that it was the stream. Rates in MB/s by second.
    fn run(seconds: u64, loss: f64, stream: fn(u64) -> u64, pulls: fn(u64) -> u64) -> (Path, u64) {
        run_of(None, seconds, |_| loss, stream, pulls)
    }

    /// The same of so many bytes; loss by tick of a tenth of a second.
    fn run_of(
        len: Option<u64>,
        seconds: u64,
        loss: impl Fn(u64) -> f64,
        stream: fn(u64) -> u64,
        pulls: fn(u64) -> u64,
    ) -> (Path, u64) {
        let mut choice = Choice::new(Timestamp::ZERO, 8);
        let (mut path, mut streamed) = (Path::Stream, 0);
        let rtt = Duration::from_millis(50);
        let mut seen = Seen { stream_bytes: 0, pull_bytes: 0, loss: None, rtt, left: len };
        for tick in 0..seconds * 10 {
            let now = Timestamp::ZERO + Duration::from_millis(tick * 100);
            match path {
                Path::Stream => seen.stream_bytes += stream(tick / 10) * 100_000,
                Path::Pull => seen.pull_bytes += pulls(tick / 10) * 100_000,
            }
            seen.loss = Some(loss(tick));
            seen.left = len.map(|len| len.saturating_sub(seen.stream_bytes + seen.pull_bytes));
            streamed += u64::from(path == Path::Stream);
            path = choice.look(now, &seen).unwrap_or(path);
        }
        (path, streamed / 10)
    }

    #[test]
    fn where_much_is_lost_tcp_is_not_tried() {
        assert_eq!(run(20, 0.01, |_| 60, |_| 3), (Path::Stream, 20));
        assert_eq!(run(20, 0.001, |_| 60, |_| 10), (Path::Stream, 20));
    }

    #[test]
    fn one_loss_a_second_is_seen_though_most_looks_see_none() {
        let loss = |tick| if tick % 10 == 5 { 1e-3 } else { 0.0 };
        assert_eq!(run_of(None, 20, loss, |_| 60, |_| 60), (Path::Stream, 20));
    }

    #[test]
    fn where_little_is_left_tcp_is_not_tried() {
        assert_eq!(run_of(Some(1_000_000_000), 15, |_| 0.0, |_| 60, |_| 61), (Path::Stream, 15));
        let (path, streamed) = run_of(Some(10_000_000_000), 100, |_| 0.0, |_| 60, |_| 61);
        assert_eq!(path, Path::Pull);
        assert!(streamed <= 3, "{streamed}");
        // A stream that is held back has much left.
        let (path, _) = run_of(Some(1_000_000_000), 15, |_| 0.0, |_| 6, |_| 61);
        assert_eq!(path, Path::Pull);
    }

    #[test]
    fn where_nothing_is_lost_what_brings_more_stays() {
        let (path, streamed) = run(20, 0.0, |_| 60, |_| 61);
        assert_eq!(path, Path::Pull);
        assert!(streamed <= 3, "{streamed}");
        let (path, streamed) = run(20, 0.0, |_| 60, |_| 20);
        assert_eq!(path, Path::Stream);
        assert!(streamed >= 17, "{streamed}");
    }

    #[test]
    fn pulls_that_fall_below_what_the_stream_brought_give_way() {
        // As CUBIC does where a window meets a loss in many seconds: after the trial.
        let (path, streamed) = run(60, 0.0, |_| 60, |s| if s < 6 { 61 } else { 40 });
        assert_eq!(path, Path::Stream);
        assert!(streamed >= 50, "{streamed}");
    }

    #[test]
    fn what_falls_far_below_gives_way() {
        // The stream is not let through any more after ten seconds.
        let (path, _) = run(60, 0.0, |s| if s < 10 { 60 } else { 1 }, |_| 30);
        assert_eq!(path, Path::Pull);
        // All is slower: the trial of the other changes nothing.
        let (path, _) = run(60, 0.001, |s| if s < 10 { 60 } else { 12 }, |_| 5);
        assert_eq!(path, Path::Stream);
    }
}
