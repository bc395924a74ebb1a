//! TCP flows as fluids: many connections on one bottleneck, in small steps of virtual time.
//!
//! 1. Each flow may have its window on the way in a round trip, less what pacing, a socket's window, or a disk leaves.
//! 2. What all send goes into one queue, served at the link's rate; what overflows it is lost by each in proportion.
//! 3. A flow that loses something (by chance, or in the queue) reduces its window as CUBIC does (RFC 9438), at most once a
//!    round trip; else it grows, if the window is what holds it.
//!
//! Deliberately absent: time-outs, and datagrams one by one.

use crate::rng::Rng;
use downpour_proto::transfer::steer::{Seen, Setting};
use downpour_proto::{Duration, Rate, Timestamp};

/// Payload of a segment, and what it is on the wire.
const PAYLOAD: f64 = 1448.0;
const FRAME: f64 = 1514.0;

const BETA: f64 = 0.7;
const C: f64 = 0.4;
const WINDOW_FIRST: f64 = 10.0;
const WINDOW_MIN: f64 = 2.0;
/// Slow start ends when the queue adds an eighth of the round trip, within these bounds (HyStart).
const START_DELAY: (f64, f64) = (0.004, 0.016);

/// What a group's flows have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupConfig {
    /// Round trip without queue.
    pub rtt: Duration,
    /// Random loss.
    pub loss: f64,
    /// What the source's disk gives.
    pub source_disk: Option<Rate>,
    /// What the destination's disk takes.
    pub sink_disk: Option<Rate>,
    /// Bytes of each connection's receive window at most.
    pub window: Option<u64>,
}

impl GroupConfig {
    /// Of this round trip and loss, and no other limit.
    pub const fn of(rtt: Duration, loss: f64) -> Self {
        Self { rtt, loss, source_disk: None, sink_disk: None, window: None }
    }
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    window: f64,
    threshold: f64,
    window_max: f64,
    /// Time since the last reduction in which the window was what held it.
    age: f64,
    reno: f64,
    hold_until: f64,
}

impl Flow {
    const NEW: Self = Self {
        window: WINDOW_FIRST,
        threshold: f64::MAX,
        window_max: 0.0,
        age: 0.0,
        reno: WINDOW_FIRST,
        hold_until: 0.0,
    };

    fn reduce(&mut self, now: f64, rtt: f64) {
        if now < self.hold_until {
            return;
        }
        self.hold_until = now + rtt;
        let converges = if self.window < self.window_max { (1.0 + BETA) / 2.0 } else { 1.0 };
        self.window_max = self.window * converges;
        self.window = (self.window * BETA).max(WINDOW_MIN);
        (self.threshold, self.reno, self.age) = (self.window, self.window, 0.0);
    }

    /// `sent` segments of the `rate` a second that the window would allow.
    fn grow(&mut self, dt: f64, rtt: f64, delay: f64, sent: f64, rate: f64) {
        let used = sent / (rate * dt);
        if self.window < self.threshold {
            // Linux lets it grow to twice what was in use.
            if used > 0.5 {
                self.window += sent;
            }
            if delay > (rtt / 8.0).clamp(START_DELAY.0, START_DELAY.1) {
                self.threshold = self.window;
                (self.window_max, self.reno, self.age) = (self.window, self.window, 0.0);
            }
            return;
        }
        if used < 0.9 {
            return;
        }
        self.age += dt;
        self.reno += 3.0 * (1.0 - BETA) / (1.0 + BETA) * dt / rtt;
        let k = (self.window_max * (1.0 - BETA) / C).cbrt();
        let cubic = C * (self.age + rtt - k).powi(3) + self.window_max;
        // At most half as much again in a round trip.
        let most = self.window * (1.0 + 0.5 * dt / rtt);
        self.window = cubic.max(self.reno).clamp(self.window, most);
    }
}

#[derive(Debug)]
struct Group {
    config: GroupConfig,
    pacing: Option<Rate>,
    flows: Vec<Flow>,
    seen: Seen,
    rtt_min: Duration,
    fluid: Fluid,
}

/// Parts of bytes, until they are whole.
#[derive(Debug, Default)]
struct Fluid {
    came: f64,
    sent: f64,
    again: f64,
}

/// A bottleneck with its groups.
#[derive(Debug)]
pub struct Path {
    rate: Rate,
    queue_max: f64,
    queue: f64,
    now: f64,
    step: f64,
    groups: Vec<Group>,
    rng: Rng,
}

/// What holds a group in a step: what the wishes of its flows shrink to.
struct Held {
    scale: f64,
    source: f64,
    sink: f64,
}

impl Path {
    /// A link of this rate on the wire, with a queue of this many bytes.
    pub fn new(rate: Rate, queue_bytes: u64, seed: u64) -> Self {
        Self {
            rate,
            queue_max: queue_bytes as f64 / FRAME,
            queue: 0.0,
            now: 0.0,
            step: 0.025,
            groups: Vec::new(),
            rng: Rng::new(seed),
        }
    }

    /// Another group, with no connection yet. Its number.
    pub fn add(&mut self, config: GroupConfig) -> usize {
        self.step = self.step.min((config.rtt.as_secs_f64() / 4.0).max(0.0005));
        self.groups.push(Group {
            config,
            pacing: None,
            flows: Vec::new(),
            seen: Seen::default(),
            rtt_min: Duration::ZERO,
            fluid: Fluid::default(),
        });
        self.groups.len() - 1
    }

    /// So many connections, paced so.
    pub fn set(&mut self, group: usize, setting: Setting) {
        let group = &mut self.groups[group];
        group.flows.resize(usize::from(setting.connections), Flow::NEW);
        group.pacing = setting.pacing;
    }

    /// Another rate from now on.
    pub fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
    }

    /// Virtual time.
    pub fn now(&self) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs_f64(self.now)
    }

    /// What a group saw since this was asked last.
    pub fn take_seen(&mut self, group: usize) -> Seen {
        let group = &mut self.groups[group];
        let mut seen = std::mem::take(&mut group.seen);
        seen.connections = group.flows.len() as u16;
        seen.rtt_min = group.rtt_min;
        for (whole, part) in [
            (&mut seen.bytes, &mut group.fluid.came),
            (&mut seen.sent, &mut group.fluid.sent),
            (&mut seen.again, &mut group.fluid.again),
        ] {
            *whole = *part as u64;
            *part -= *whole as f64;
        }
        seen
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let until = self.now + time.as_secs_f64();
        while self.now + self.step / 2.0 < until {
            self.step();
        }
    }

    fn step(&mut self) {
        let dt = self.step;
        let served = self.rate.bps() as f64 / 8.0 / FRAME;
        let delay = self.queue / served;
        let held: Vec<Held> = self.groups.iter().map(|group| group.held(delay)).collect();
        let arrivals: f64 = self
            .groups
            .iter()
            .zip(&held)
            .map(|(group, held)| group.wish(delay) * held.scale)
            .sum::<f64>()
            * dt;
        let over = (self.queue + arrivals - served * dt - self.queue_max).max(0.0);
        let dropped = if arrivals > 0.0 { over / arrivals } else { 0.0 };
        self.queue = (self.queue + arrivals - over - served * dt).max(0.0);
        for (group, held) in self.groups.iter_mut().zip(held) {
            group.step(self.now, dt, delay, dropped, &held, &mut self.rng);
        }
        self.now += dt;
    }
}

impl Group {
    /// Segments a second that a flow would send, by its window alone and by all that is its own; and whether the
    /// receiver's window is less than its own.
    fn flow_wish(&self, flow: &Flow, delay: f64) -> (f64, f64, bool) {
        let rtt = self.config.rtt.as_secs_f64() + delay;
        let offered = self.config.window.map_or(f64::MAX, |bytes| bytes as f64 / PAYLOAD);
        let pace = self.pacing.map_or(f64::MAX, |rate| {
            rate.bps() as f64 / 8.0 / FRAME / self.flows.len().max(1) as f64
        });
        let own = flow.window / rtt;
        (own, own.min(offered / rtt).min(pace), offered < flow.window)
    }

    fn wish(&self, delay: f64) -> f64 {
        self.flows.iter().map(|flow| self.flow_wish(flow, delay).1).sum()
    }

    fn held(&self, delay: f64) -> Held {
        let wish = self.wish(delay);
        let share = |disk: Option<Rate>| {
            disk.map_or(1.0, |rate| (rate.bps() as f64 / 8.0 / PAYLOAD / wish.max(1e-9)).min(1.0))
        };
        let (source, sink) = (share(self.config.source_disk), share(self.config.sink_disk));
        Held { scale: source.min(sink), source, sink }
    }

    fn step(&mut self, now: f64, dt: f64, delay: f64, dropped: f64, held: &Held, rng: &mut Rng) {
        let time = Duration::from_secs_f64(dt);
        let rtt = self.config.rtt.as_secs_f64() + delay;
        let round = Duration::from_secs_f64(rtt);
        self.rtt_min = if self.rtt_min.is_zero() { round } else { self.rtt_min.min(round) };
        let span = Seen { span: time, rtt: round, ..Seen::default() };
        let waits = |share: f64| time.mul_f64(1.0 - share);
        self.seen.add(&span);
        for index in 0..self.flows.len() {
            let (own, wish, limited) = self.flow_wish(&self.flows[index], delay);
            let sent = wish * held.scale * dt;
            let share = (self.config.loss + dropped).min(1.0);
            self.fluid.sent += sent * PAYLOAD;
            self.fluid.again += sent * share * PAYLOAD;
            self.fluid.came += sent * (1.0 - share) * PAYLOAD;
            self.seen.busy += time;
            let closed = if limited { time } else { waits(held.sink) };
            self.seen.window_limited += closed;
            if held.source < held.sink {
                self.seen.source_wait += waits(held.source);
                self.seen.idle += waits(held.source);
            } else if held.sink < 1.0 {
                self.seen.sink_wait += waits(held.sink);
            }
            let flow = &mut self.flows[index];
            if rng.chance(1.0 - (-sent * share).exp()) {
                flow.reduce(now, rtt);
            } else {
                flow.grow(dt, rtt, delay, sent, own);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{GroupConfig, Path};
    use downpour_proto::transfer::steer::Setting;
    use downpour_proto::{Duration, Rate};

    /// Mbit/s that so many connections bring in the second half of two minutes.
    fn rate(mbps: u64, ms: u64, loss: f64, connections: u16) -> f64 {
        let rate = Rate::from_mbps(mbps);
        let mut path = Path::new(rate, rate.bytes_in(Duration::from_millis(50)), 1);
        let group = path.add(GroupConfig::of(Duration::from_millis(ms), loss));
        path.set(group, Setting { connections, pacing: None });
        path.run(Duration::from_secs(60));
        path.take_seen(group);
        path.run(Duration::from_secs(60));
        path.take_seen(group).rate() * 8.0 / 1e6
    }

    #[test]
    fn one_connection_brings_what_cubic_does_at_random_loss() {
        // RFC 9438, 5: windows of 1.054 (RTT / p)^0.75 segments, or Reno's (1.5 / p)^0.5.
        for (ms, loss) in [(50, 0.001), (100, 0.001), (100, 0.0001), (10, 0.01)] {
            let rtt = ms as f64 / 1e3;
            let window = (1.054 * (rtt / loss).powf(0.75)).max((1.5 / loss).sqrt());
            let model = window * 1448.0 * 8.0 / rtt / 1e6;
            let ours = rate(1000, ms, loss, 1);
            assert!((0.7..1.4).contains(&(ours / model)), "{ms} ms, {loss}: {ours:.1} {model:.1}");
        }
    }

    #[test]
    fn many_share_a_link_and_fill_it() {
        for connections in [1, 4, 16] {
            let ours = rate(100, 20, 0.0, connections);
            assert!((85.0..96.0).contains(&ours), "{connections}: {ours:.1}");
        }
    }
}
