//! One multicast session of the bare stream: sender, polls, receivers, answers.

use crate::hiccups::{HiccupProcess, Hiccups};
use crate::link::{FRAME_LEN, HEADERS_LEN, Link, LinkConfig};
use crate::loss::{Loss, LossProcess};
use crate::rng::Rng;
use downpour_proto::rate::{Load, RateController, RatePhase, RateSample, RateSummary};
use downpour_proto::sender::round_interval;
use downpour_proto::{
    BaseDelay, Duration, Pacer, PathQueue, Rate, ReceiverId, StreamId, Timestamp,
};
use std::collections::VecDeque;

const PAYLOAD_LEN: u64 = FRAME_LEN - HEADERS_LEN;
const POLL_LEN: u64 = 120;
/// Queue and rate are looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Deliveries are counted in bins of this length.
const BIN: Duration = Duration::from_millis(100);

/// A session to be run.
#[derive(Debug)]
pub struct SessionSetup {
    /// When it begins.
    pub start: Duration,
    /// Decides its rate.
    pub controller: Box<dyn RateController>,
    /// Who listens.
    pub receivers: Vec<ReceiverSetup>,
    /// Done when every receiver has got this many datagrams.
    pub packets: u64,
    /// How the receivers answer.
    pub answers: Answers,
    /// How busy the sender's host is.
    pub hiccups: Hiccups,
    /// Until then there is hardly anything to send.
    pub fed_from: Duration,
    /// Prints a line for each answer.
    pub trace: bool,
}

/// One receiver.
#[derive(Clone, Debug)]
pub struct ReceiverSetup {
    /// Without any queue.
    pub rtt: Duration,
    /// A narrower link of its own.
    pub own: Option<LinkConfig>,
    /// What gets lost on its way.
    pub loss: Loss,
    /// How fast its clock runs against the sender's, in parts per million.
    pub drift_ppm: f64,
    /// When the sender's clock falls behind it, and by how much.
    pub step: Option<(Duration, Duration)>,
    /// How late its clock is read.
    pub noise: Noise,
    /// How busy its host is: answers wait, arrivals are the kernel's.
    pub hiccups: Hiccups,
}

/// Lateness of a host, at each reading of its clock.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    /// Mean of the usual, exponentially distributed lateness.
    pub usual: Duration,
    /// How often it is much later.
    pub hiccup_share: f64,
    /// Up to this much, evenly distributed.
    pub hiccup: Duration,
}

impl Noise {
    /// A host that is never late.
    pub const NONE: Self =
        Self { usual: Duration::ZERO, hiccup_share: 0.0, hiccup: Duration::ZERO };

    fn draw(&self, rng: &mut Rng) -> Duration {
        let mut late = rng.exponential(self.usual.as_secs_f64());
        if rng.chance(self.hiccup_share) {
            late += rng.unit() * self.hiccup.as_secs_f64();
        }
        Duration::from_secs_f64(late)
    }
}

/// How answers come back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answers {
    /// Share of answers that get lost.
    pub loss: f64,
}

/// What came of a session.
#[derive(Debug)]
pub struct Outcome {
    /// From its start to the last receiver's last datagram; `None` if the run ended before.
    pub wall: Option<Duration>,
    /// Datagrams that left, polls not counted.
    pub sent: u64,
    /// What each receiver got.
    pub received: Vec<u64>,
    /// Datagrams that came to the least receiver, in bins of 100 ms from the run's start.
    pub bins: Vec<u64>,
    /// Queue on the narrowest path, each millisecond, in microseconds, sorted.
    pub queue_us: Vec<u32>,
    /// Dropped at receivers' own links, all together.
    pub own_dropped: u64,
    /// The highest rate that was set.
    pub rate_most: Rate,
    /// The controller's last words.
    pub summary: RateSummary,
}

impl Outcome {
    /// The `share` quantile of the queue's delay.
    pub fn queue(&self, share: f64) -> Duration {
        let last = self.queue_us.len().saturating_sub(1);
        let at = (last as f64 * share) as usize;
        Duration::from_micros(u64::from(self.queue_us.get(at).copied().unwrap_or(0)))
    }

    /// When the rate that arrives first reached `share` of `full`.
    pub fn reached(&self, full: Rate, share: f64) -> Option<Duration> {
        let need = full.bytes_in(BIN) as f64 * share / FRAME_LEN as f64;
        let bin = self.bins.iter().position(|n| *n as f64 >= need)?;
        Some(BIN * (bin as u32 + 1))
    }

    /// What arrived from `from` to `to`, as a rate of frames.
    pub fn rate_between(&self, from: Duration, to: Duration) -> Rate {
        let bin = |t: Duration| (t.as_nanos() / BIN.as_nanos()) as usize;
        let packets: u64 =
            self.bins.iter().skip(bin(from)).take(bin(to).saturating_sub(bin(from))).sum();
        Rate::of(packets * FRAME_LEN, to - from)
    }
}

/// An answer on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Answer {
    receiver: usize,
    round: u64,
    received: u64,
    arrived_ns: u64,
    queue: Duration,
    held: Duration,
    /// When it is at the sender's host.
    back: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Poll {
    round: u64,
    sent: Timestamp,
    packets: u64,
    bytes: u64,
    missed: u64,
}

#[derive(Debug)]
struct Receiver {
    setup: ReceiverSetup,
    own: Option<Link>,
    loss: LossProcess,
    rng: Rng,
    hiccups: HiccupProcess,
    received: u64,
    data: u64,
    /// The same by when they arrived, and when the last did.
    bins: Vec<u64>,
    last_at: Timestamp,
    /// The answer that closed the last sample, and its poll.
    last: Option<(Answer, Poll)>,
    rtt: Option<f64>,
    base: BaseDelay,
    /// The sender's check of what it tells.
    path_queue: PathQueue,
}

#[derive(Debug)]
pub(super) struct Session {
    controller: Box<dyn RateController>,
    pacer: Pacer,
    receivers: Vec<Receiver>,
    rng: Rng,
    start: Timestamp,
    fed_from: Timestamp,
    hiccups: HiccupProcess,
    answers: Answers,
    trace: bool,
    packets: u64,
    sent_packets: u64,
    sent_bytes: u64,
    missed: u64,
    round: u64,
    polls: VecDeque<Poll>,
    poll_due: Timestamp,
    /// Until then the rate was searched.
    found_at: Timestamp,
    look_due: Timestamp,
    queue_us: Vec<u32>,
    done_at: Option<Timestamp>,
    rate_most: Rate,
}

impl Session {
    pub(super) fn new(setup: SessionSetup, rng: &mut Rng) -> Self {
        let start = Timestamp::ZERO + setup.start;
        let pacer = Pacer::new(start, setup.controller.rate(), PAYLOAD_LEN as u32)
            .with_burst_min(setup.controller.burst_packets_min());
        let receivers = setup
            .receivers
            .into_iter()
            .map(|setup| Receiver {
                own: setup.own.map(Link::new),
                loss: LossProcess::new(setup.loss, rng.fork()),
                rng: rng.fork(),
                hiccups: HiccupProcess::new(setup.hiccups, rng),
                received: 0,
                data: 0,
                bins: Vec::new(),
                last_at: start,
                last: None,
                rtt: None,
                base: BaseDelay::new(),
                path_queue: PathQueue::new(),
                setup,
            })
            .collect();
        Self {
            controller: setup.controller,
            pacer,
            receivers,
            rng: rng.fork(),
            start,
            fed_from: start + setup.fed_from,
            hiccups: HiccupProcess::new(setup.hiccups, rng),
            answers: setup.answers,
            trace: setup.trace,
            packets: setup.packets,
            sent_packets: 0,
            sent_bytes: 0,
            missed: 0,
            round: 0,
            polls: VecDeque::new(),
            poll_due: start,
            found_at: start,
            look_due: start,
            queue_us: Vec::new(),
            done_at: None,
            rate_most: Rate::from_bps(0),
        }
    }

    pub(super) const fn is_done(&self) -> bool {
        self.done_at.is_some()
    }

    /// When the sender's process notices what happens now.
    pub(super) fn awake(&self, now: Timestamp) -> Timestamp {
        self.hiccups.awake(now)
    }

    /// Sends a poll if one is due, and a burst. Returns when to come again.
    pub(super) fn depart(
        &mut self,
        now: Timestamp,
        shared: &mut Link,
        mut answer: impl FnMut(Timestamp, Answer),
    ) -> Timestamp {
        if self.is_done() {
            return Timestamp::MAX;
        }
        self.look(now, shared);
        assert!(self.sent_packets < 20_000_000, "runaway rate {}", self.pacer.rate());
        let mut bytes = 0;
        let mut burst = self.pacer.burst_packets_at(now);
        if now < self.fed_from {
            // A datagram a round, as when the first file is still being read.
            burst = u32::from(now >= self.poll_due);
            self.missed += 1;
        }
        // Before the burst, as in the engine.
        if now >= self.poll_due {
            bytes += POLL_LEN;
            self.send_poll(now, shared, &mut answer);
        }
        for _ in 0..burst {
            bytes += PAYLOAD_LEN;
            self.sent_packets += 1;
            self.sent_bytes += PAYLOAD_LEN;
            let Some(at) = shared.send(now, FRAME_LEN) else { continue };
            for receiver in &mut self.receivers {
                receiver.take_data(at, self.packets);
            }
        }
        let missed = self.pacer.on_sent(now, bytes);
        self.missed += u64::from(missed > Duration::ZERO);
        let least = self.receivers.iter().map(|r| r.data).min().unwrap_or(0);
        if least >= self.packets {
            self.done_at = self.receivers.iter().map(|r| r.last_at).max();
        }
        if now < self.fed_from {
            return self.poll_due.min(self.fed_from);
        }
        self.pacer.next_send().max(now)
    }

    fn send_poll(
        &mut self,
        now: Timestamp,
        shared: &mut Link,
        answer: &mut impl FnMut(Timestamp, Answer),
    ) {
        self.sent_packets += 1;
        self.sent_bytes += POLL_LEN;
        self.round += 1;
        let poll = Poll {
            round: self.round,
            sent: now,
            packets: self.sent_packets,
            bytes: self.sent_bytes,
            missed: self.missed,
        };
        self.polls.push_back(poll);
        if self.polls.len() > 4096 {
            self.polls.pop_front();
        }
        if let Some(at) = shared.send(now, POLL_LEN + HEADERS_LEN) {
            for (index, receiver) in self.receivers.iter_mut().enumerate() {
                let Some(at) = receiver.take(at, POLL_LEN + HEADERS_LEN) else { continue };
                let noticed = at + receiver.setup.noise.draw(&mut receiver.rng);
                let answered = noticed + Duration::from_micros(receiver.rng.below(200));
                let held = receiver.hiccups.awake(answered).since(noticed);
                let back = noticed + held + receiver.setup.rtt / 2;
                let drift = 1.0 + receiver.setup.drift_ppm * 1e-6;
                let step = receiver.setup.step.filter(|step| noticed >= Timestamp::ZERO + step.0);
                let ahead = Duration::from_secs(77) + step.map_or(Duration::ZERO, |step| step.1);
                let arrived_ns =
                    (noticed.as_nanos() as f64 * drift) as u64 + ahead.as_nanos() as u64;
                let transit = arrived_ns as i64 - now.as_nanos() as i64;
                let report = Answer {
                    queue: receiver.base.excess(noticed, transit),
                    receiver: index,
                    round: self.round,
                    received: receiver.received,
                    arrived_ns,
                    held,
                    back,
                };
                if !self.rng.chance(self.answers.loss) {
                    answer(back, report);
                }
            }
        }
        self.controller.on_tick(now, self.sent_bytes);
        self.apply_rate();
        let phase = self.controller.summary().phase;
        if phase == RatePhase::Startup {
            self.found_at = now;
        }
        let (found, rate) = (now.since(self.found_at), self.pacer.rate());
        self.poll_due = now + round_interval(self.controller.as_ref(), found, rate, self.grtt());
    }

    pub(super) fn on_answer(&mut self, now: Timestamp, answer: Answer) {
        let Some(poll) = self.polls.iter().find(|p| p.round == answer.round).copied() else {
            return;
        };
        let receiver = &mut self.receivers[answer.receiver];
        let rtt = answer.back.since(poll.sent).saturating_sub(answer.held);
        let smooth = receiver.rtt.get_or_insert(rtt.as_secs_f64());
        *smooth += 0.25 * (rtt.as_secs_f64() - *smooth);
        // The first answer closes an empty sample.
        let (before, opened) = receiver.last.unwrap_or((answer, poll));
        let is_later = answer.round > before.round && answer.arrived_ns > before.arrived_ns;
        if receiver.last.is_some() && !is_later {
            return;
        }
        receiver.last = Some((answer, poll));
        let sample = RateSample {
            receiver: ReceiverId(answer.receiver as u32 + 1),
            sent_packets: poll.packets - opened.packets,
            sent_bytes: poll.bytes - opened.bytes,
            send_interval: poll.sent.since(opened.sent),
            received_packets: answer.received - before.received,
            receive_interval: Duration::from_nanos(answer.arrived_ns - before.arrived_ns),
            poll_sent: poll.sent,
            bytes_since: self.sent_bytes - poll.bytes,
            rtt,
            queue_delay: receiver.path_queue.believed(answer.queue, rtt),
            host_drops: 0,
            app_limited: poll.missed > opened.missed,
        };
        self.controller.on_sample(now, &sample);
        self.apply_rate();
        if self.trace {
            let s = self.controller.summary();
            println!(
                "{:.4} r{} sent {:>4} got {:>4} in {:.2}/{:.2}ms rtt {:.2} -> {} {:?} bn {:?} q {:.2}ms p {:.4} lim {:?}",
                now.as_nanos() as f64 / 1e9,
                answer.receiver,
                sample.sent_packets,
                sample.received_packets,
                sample.send_interval.as_secs_f64() * 1e3,
                sample.receive_interval.as_secs_f64() * 1e3,
                sample.rtt.as_secs_f64() * 1e3,
                s.rate,
                s.phase,
                s.bottleneck.map(|b| b.to_string()),
                s.queue_delay.as_secs_f64() * 1e3,
                s.random_loss,
                s.limiting.map(|l| l.0),
            );
        }
    }

    pub(super) fn outcome(mut self) -> Outcome {
        self.queue_us.sort_unstable();
        Outcome {
            wall: self.done_at.map(|at| at.since(self.start)),
            sent: self.sent_packets,
            received: self.receivers.iter().map(|r| r.data).collect(),
            bins: of_least(&self.receivers),
            rate_most: self.rate_most,
            queue_us: self.queue_us,
            own_dropped: self
                .receivers
                .iter()
                .filter_map(|r| r.own.as_ref())
                .map(|l| l.dropped)
                .sum(),
            summary: self.controller.summary(),
        }
    }

    /// Between it and others on its network, as to its first receiver.
    pub(super) fn round_trip(&self) -> Duration {
        self.receivers[0].setup.rtt
    }

    /// What it tells the other sessions.
    pub(super) fn load(&self) -> Option<Load> {
        self.controller.load().filter(|_| !self.is_done())
    }

    pub(super) fn on_neighbour(&mut self, now: Timestamp, by: usize, load: Load) {
        self.controller.on_neighbour(now, StreamId(by as u32), load);
        self.apply_rate();
    }

    fn apply_rate(&mut self) {
        let rate = self.controller.rate();
        self.rate_most = self.rate_most.max(rate);
        self.pacer.set_rate(rate);
        let summary = self.controller.summary();
        self.pacer.set_queue(summary.queue_delay, summary.queue_borne);
    }

    fn look(&mut self, now: Timestamp, shared: &Link) {
        if now < self.look_due {
            return;
        }
        self.look_due = now + LOOK_EVERY;
        let own = self.receivers.iter().filter_map(|r| r.own.as_ref());
        let worst = own.map(|l| l.queue_delay(now)).max().unwrap_or(Duration::ZERO);
        let queue = shared.queue_delay(now) + worst;
        self.queue_us.push(u32::try_from(queue.as_micros()).unwrap_or(u32::MAX));
    }

    fn grtt(&self) -> Duration {
        let worst = self.receivers.iter().filter_map(|r| r.rtt).fold(0.0, f64::max);
        Duration::from_secs_f64(worst)
    }
}

/// What came to the receiver that had least until the end of each bin.
fn of_least(receivers: &[Receiver]) -> Vec<u64> {
    let len = receivers.iter().map(|r| r.bins.len()).max().unwrap_or(0);
    let (mut sums, mut before) = (vec![0; receivers.len()], 0);
    let bin = |at: usize| {
        let came = receivers.iter().map(|r| r.bins.get(at).copied().unwrap_or(0));
        sums.iter_mut().zip(came).for_each(|(sum, came)| *sum += came);
        let least = sums.iter().copied().min().unwrap_or(0);
        least - std::mem::replace(&mut before, least)
    };
    (0..len).map(bin).collect()
}

impl Receiver {
    /// A frame of data comes from the shared link at `at`; its arrival counts until there are `packets`.
    #[inline]
    fn take_data(&mut self, at: Timestamp, packets: u64) {
        let Some(at) = self.take(at, FRAME_LEN) else { return };
        self.data += 1;
        if self.data <= packets {
            self.last_at = at;
        }
        let bin = (at.as_nanos() / BIN.as_nanos() as u64) as usize;
        if bin >= self.bins.len() {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += 1;
    }

    /// A frame comes from the shared link at `at`; when it arrives, if it does.
    #[inline]
    fn take(&mut self, at: Timestamp, len: u64) -> Option<Timestamp> {
        let at = match &mut self.own {
            Some(own) => own.send(at, len)?,
            None => at,
        };
        if self.loss.is_lost() {
            return None;
        }
        self.received += 1;
        Some(at + self.setup.rtt / 2)
    }
}
