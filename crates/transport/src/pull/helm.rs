//! What changes the connections from a sender while they carry something.
//!
//! A [`Helm`] has the machine that decides ([`Steer`]) for all transfers of an endpoint, and the clock. Whatever is
//! [`Steered`], such as a puller with [`Steering`], has a [`Course`] of its own: every half second it gives the machine what
//! was seen, that is what came here and what the sender told of its end of each connection ([`Sight`]), and sets the
//! number of connections and their pacing.
//!
//! Before it the sender is asked for the turn, and what it sends to others meanwhile; one that is too old to know of it, or
//! does not answer in time, tells nothing.
//!
//! Connections that are too many are given up a few at a time: such a one is asked for nothing more, and closed when it has brought
//! what it was asked for. How a connection is paced goes with the next request on it.

use super::{REPORTS_MAX, Shared};
use crate::control::RequestError;
use crate::stream::Told;
use downpour_proto::transfer::steer::{
    Beside, Decision, Limits, LinkId, Memory, Seen, Setting, Steer,
};
use downpour_proto::{Duration, Rate, Timestamp};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often it is looked whether connections idle, and how many such looks make a span for the machine.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
const LOOKS: u32 = 5;

/// So long the sender's answer is waited for, and when there was none it is not asked for so long.
const ASK_TIME_MAX: Duration = Duration::from_secs(3);
const ASK_PAUSE: Duration = Duration::from_secs(10);

/// Decides for all transfers of an endpoint.
#[derive(Debug)]
pub struct Helm {
    steer: Mutex<Steer>,
    begun: Instant,
}

impl Default for Helm {
    fn default() -> Self {
        Self { steer: Mutex::default(), begun: Instant::now() }
    }
}

impl Helm {
    fn lock(&self) -> MutexGuard<'_, Steer> {
        // A look is one call, and does not panic.
        self.steer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is heard of a decision.
type OnDecision = Arc<dyn Fn(Decision, Option<Memory>) + Send + Sync>;

/// What is heard of what was seen.
type OnSeen = Arc<dyn Fn(&Seen) + Send + Sync>;

/// How a puller is steered.
#[derive(Clone)]
pub struct Steering {
    /// With which others together.
    pub helm: Arc<Helm>,
    /// What may be chosen.
    pub limits: Limits,
    /// What is remembered of the link.
    pub memory: Option<Memory>,
    /// Hears of each decision, and what is to be remembered by then.
    pub on_decision: OnDecision,
    /// Hears of each span in which something came or was on its way, the last one included.
    pub on_seen: OnSeen,
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limits, memory, .. } = self;
        f.debug_struct("Steering").field("limits", limits).field("memory", memory).finish()
    }
}

/// Connections from one sender, as they are steered.
pub trait Steered: Send + Sync {
    /// So many are to carry something from now on, none of them faster than this.
    fn set(&self, connections: u16, each: Option<Rate>);
    /// Of so much time: how long connections had nothing to do because what came waits to be stored, summed up.
    fn waited_for_sink(&self, time: Duration) -> Duration;
    /// Nothing more will be asked for: connections that end then say nothing of the path.
    fn ends(&self) -> bool;
    /// What was seen since the last time ([`Sight::take`]).
    fn take_seen(&self, span: Duration, sink_wait: Duration) -> Option<Seen>;
    /// Hears of a decision.
    fn decided(&self, decision: &Decision);
    /// Asks the sender for the turn, and what it sends to others; `None`: it cannot be asked.
    fn turn(&self, wants: bool) -> Option<Turn<'_>> {
        let _ = wants;
        None
    }
}

/// What a sender answers.
pub type Turn<'a> = Pin<Box<dyn Future<Output = Result<Beside, RequestError>> + Send + 'a>>;

/// What was seen of connections since it was last taken: what came, and what the sender told of each.
#[derive(Debug)]
pub struct Sight {
    told: Vec<Option<Told>>,
    seen: Seen,
}

impl Sight {
    /// Of at most so many.
    pub fn new(connections: usize) -> Self {
        Self { told: vec![None; connections], seen: Seen::default() }
    }

    /// So many bytes came.
    pub fn came(&mut self, len: u64) {
        self.seen.bytes += len;
    }

    /// The sender told of a connection; `None`: it ended.
    pub fn told(&mut self, connection: usize, told: Option<Told>) {
        let before = self.told[connection].take();
        if let (Some(before), Some(told)) = (before, told) {
            self.seen.add(&told.since(&before));
        }
        self.told[connection] = told;
    }

    /// All of it, when so many connections are to bring something, and so many more could; `None`: nothing came, and nothing
    /// was on its way.
    pub fn take(
        &mut self,
        (busy, idle): (usize, usize),
        span: Duration,
        sink_wait: Duration,
    ) -> Option<Seen> {
        let seen = std::mem::take(&mut self.seen);
        let round_trips = self.told.iter().flatten().map(|told| told.rtt);
        let count = round_trips.clone().filter(|rtt| *rtt > 0).count() as u64;
        let sum = round_trips.fold(0, u64::saturating_add);
        let mean = sum.checked_div(count).unwrap_or(0);
        let rtt_min = self.told.iter().flatten().map(|told| told.rtt_min).filter(|rtt| *rtt > 0);
        let rtt_min = Duration::from_micros(rtt_min.min().unwrap_or(0));
        let connections = u16::try_from(busy + idle).unwrap_or(u16::MAX);
        let idles = busy == 0 && seen.bytes == 0;
        let rtt = Duration::from_micros(mean);
        (!idles).then_some(Seen { span, connections, rtt, rtt_min, sink_wait, ..seen })
    }
}

/// One of them on its way.
pub struct Course {
    steering: Steering,
    link: LinkId,
    /// What was decided, and how far that is carried out.
    setting: Setting,
    set: Setting,
    /// When the sender may be asked again; `None`: never.
    ask_at: Option<Instant>,
    /// Whom it steers, and since when nothing was heard; from the first look on.
    watch: Option<(Arc<dyn Steered>, Instant)>,
}

impl Drop for Course {
    fn drop(&mut self) {
        if let Some((steered, last)) = self.watch.take()
            && let Some(seen) = steered.take_seen(last.elapsed(), Duration::ZERO)
        {
            (self.steering.on_seen)(&seen);
        }
        self.steering.helm.lock().end(self.link);
    }
}

impl Course {
    /// `None` when too many are steered already.
    pub fn begin(steering: &Steering) -> Option<Self> {
        let (link, setting) =
            steering.helm.lock().begin(steering.limits, steering.memory.as_ref())?;
        let ask_at = (!steering.limits.is_fixed()).then(Instant::now);
        Some(Self { steering: steering.clone(), link, setting, set: setting, ask_at, watch: None })
    }

    /// With how many it begins.
    pub fn connections(&self) -> usize {
        usize::from(self.setting.connections)
    }

    /// How many there may be.
    pub fn most(&self) -> usize {
        usize::from(self.steering.limits.most).max(self.connections())
    }

    /// Steers them until this is dropped.
    pub async fn hold(mut self, steered: Arc<dyn Steered>) {
        self.set(&*steered, self.setting);
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = 0;
        let mut last = Instant::now();
        self.watch = Some((steered.clone(), last));
        let mut waited = Duration::ZERO;
        loop {
            looks.tick().await;
            count += 1;
            waited += steered.waited_for_sink(LOOK_INTERVAL);
            if count < LOOKS {
                continue;
            }
            let span = last.elapsed();
            let seen = steered.take_seen(span, std::mem::take(&mut waited));
            (last, count) = (Instant::now(), 0);
            self.watch = Some((steered.clone(), last));
            // Before anything has come there is nothing to judge.
            if let Some(seen) = seen {
                (self.steering.on_seen)(&seen);
                if !steered.ends() {
                    let beside = self.ask(&*steered).await;
                    self.steering.helm.lock().told(self.link, beside);
                    self.look(&*steered, &seen);
                }
            }
            let next = self.set.step(self.setting);
            if next != self.set {
                self.set(&*steered, next);
            }
        }
    }

    /// What the sender tells of its others.
    async fn ask(&mut self, steered: &dyn Steered) -> Option<Beside> {
        let now = Instant::now();
        self.ask_at.filter(|at| now >= *at)?;
        let wants = self.steering.helm.lock().wants(self.link);
        match timeout(ASK_TIME_MAX, steered.turn(wants)?).await {
            Ok(Ok(beside)) => return Some(beside),
            Ok(Err(RequestError::Refused(no))) if !no.code.is_passing() => self.ask_at = None,
            _ => self.ask_at = Some(now + ASK_PAUSE),
        }
        None
    }

    fn look(&mut self, steered: &dyn Steered, seen: &Seen) {
        let helm = &self.steering.helm;
        let now = Timestamp::ZERO + helm.begun.elapsed();
        let mut steer = helm.lock();
        let Some(decision) = steer.look(now, self.link, seen) else { return };
        let memory = steer.memory(self.link);
        drop(steer);
        self.setting = decision.setting;
        steered.decided(&decision);
        (self.steering.on_decision)(decision, memory);
    }

    fn set(&mut self, steered: &dyn Steered, setting: Setting) {
        self.set = setting;
        let Setting { connections, pacing } = setting;
        let share = |rate: Rate| Rate::from_bps((rate.bps() / u64::from(connections)).max(1));
        steered.set(connections, pacing.map(share));
    }
}

impl Steered for Shared {
    fn set(&self, connections: u16, each: Option<Rate>) {
        let mut state = self.lock();
        state.ranges.set_active(usize::from(connections));
        state.tuning.pacing = each;
        drop(state);
        self.filled.notify_waiters();
    }

    fn waited_for_sink(&self, time: Duration) -> Duration {
        let state = self.lock();
        let (_, idle) = state.ranges.busy();
        let waits = state.sink_waits && !state.ranges.is_ending();
        if waits { time * u32::try_from(idle).unwrap_or(u32::MAX) } else { Duration::ZERO }
    }

    fn ends(&self) -> bool {
        let state = self.lock();
        state.ranges.is_ending() && state.ranges.waiting() == 0
    }

    fn take_seen(&self, span: Duration, sink_wait: Duration) -> Option<Seen> {
        let mut state = self.lock();
        let busy = state.ranges.busy();
        state.sight.take(busy, span, sink_wait)
    }

    fn decided(&self, decision: &Decision) {
        let mut state = self.lock();
        if state.totals.decisions.len() < REPORTS_MAX {
            state.totals.decisions.push((self.begun.elapsed(), decision.clone()));
        }
    }

    fn turn(&self, wants: bool) -> Option<Turn<'_>> {
        Some(Box::pin(self.client.turn(wants)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Sight};
    use crate::stream::Told;

    #[test]
    fn whatever_a_sender_tells_of_its_connections_adds_up() {
        let most = u64::MAX;
        let most = format!(
            "sent={most} again={most} rtt={most} min={most} busy={most} window={most} buffer={most} \
             idle={most} disk={most}"
        );
        let mut sight = Sight::new(2);
        // What cannot be read is zero.
        for text in [most.as_str(), "sent=-1 again=1e9 busy=0x7", &most] {
            for connection in [0, 1] {
                sight.told(connection, Some(Told::parse(text)));
            }
        }
        let second = Duration::from_secs(1);
        let seen = sight.take((2, 0), second, second).expect("two are busy");
        assert_eq!((seen.sent, seen.again, seen.loss()), (u64::MAX, u64::MAX, 1.0));
        assert_eq!(seen.busy, 2 * Duration::from_micros(u64::MAX));
        assert_eq!(seen.rtt_min, Duration::from_micros(u64::MAX));
    }
}
