//! A receiver's driver without bytes.
//!
//! The datagrams of its node are not delivered one by one: they wait in the node's log, and a receiver
//! *catches up* when something may come of it, that is when a poll or an advertisement has come, a timer
//! is due or the control plane speaks. So a run through 64 datagrams touches one receiver's memory and not
//! 64 times all receivers'.

use super::config::{ReceiverConfig, WorldConfig};
use super::ledger::Ledger;
use crate::hiccups::HiccupProcess;
use crate::link::Link;
use crate::loss::LossProcess;
use crate::network::is_cut;
use crate::rng::Rng;
use downpour_proto::receiver::{self, Disposition};
use downpour_proto::wire::{Header, Kind};
use downpour_proto::{BlockId, Duration, Receiver, ReceiverId, Rounds, StreamId, Timestamp};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;

/// Datagrams by number in which a duplicate is noticed.
const REPLAY_WINDOW: u64 = 1024;

/// Each receiver's clock is ahead of the one before by so much; no two machines have the same time.
const CLOCK_AHEAD: Duration = Duration::from_secs(77);

/// A datagram on its way.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub(super) number: u64,
    pub(super) header: Header,
    /// Of a message; a symbol's bytes are zeros.
    pub(super) body: Rc<[u8]>,
    pub(super) body_len: usize,
    pub(super) frame_len: u64,
}

/// What a node's receivers have been sent and not all of them have seen.
#[derive(Debug, Default)]
pub(super) struct Log {
    first: u64,
    entries: VecDeque<(Timestamp, Datagram)>,
}

impl Log {
    pub(super) fn push(&mut self, at: Timestamp, datagram: Datagram) {
        self.entries.push_back((at, datagram));
    }

    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Everybody has seen those below `seen`.
    pub(super) fn forget(&mut self, seen: u64) {
        while self.first < seen && self.entries.pop_front().is_some() {
            self.first += 1;
        }
    }

    fn entry(&self, number: u64) -> Option<&(Timestamp, Datagram)> {
        self.entries.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }
}

/// A datagram in a rough edge, by arrival.
#[derive(Debug)]
struct Coming {
    at: Timestamp,
    inserted: u64,
    datagram: Datagram,
}

impl PartialEq for Coming {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.inserted) == (other.at, other.inserted)
    }
}
impl Eq for Coming {}
impl PartialOrd for Coming {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Coming {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.inserted).cmp(&(other.at, other.inserted))
    }
}

/// One receiver: machine, last edge, what it has been sent.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) id: ReceiverId,
    pub(super) config: ReceiverConfig,
    pub(super) machine: Receiver,
    pub(super) joined: bool,
    pub(super) dead: bool,
    /// The sender knows that it takes part no more.
    pub(super) ended: bool,
    pub(super) completed_at: Option<Timestamp>,
    pub(super) on_stream: bool,
    /// When what it told last comes to the sender: one word after the other.
    pub(super) told: Timestamp,
    /// The earliest timer event that is queued.
    pub(super) timer: Timestamp,
    pub(super) ledger: Option<Ledger>,
    /// When each block's last symbol came, until it is stored; of sessions that stay open.
    pub(super) ready: BTreeMap<BlockId, Timestamp>,
    open: bool,
    /// When its store is free.
    free_at: Timestamp,
    pub(super) most_partial: usize,
    pub(super) link: Link,
    hiccups: HiccupProcess,
    loss: LossProcess,
    poll_loss: f64,
    rng: Rng,
    next: u64,
    rough: Option<Rough>,
    zeros: Rc<[u8]>,
    /// By how much its clock is ahead of the sender's.
    ahead: Duration,
}

/// State of an edge that delays each datagram on its own.
#[derive(Debug, Default)]
struct Rough {
    coming: BinaryHeap<Reverse<Coming>>,
    inserted: u64,
    seen: BTreeSet<u64>,
}

impl Host {
    pub(super) fn new(index: usize, world: &WorldConfig, zeros: &Rc<[u8]>, rng: &mut Rng) -> Self {
        let config = world.receivers[index].clone();
        let id = ReceiverId(index as u32 + 1);
        let machine = receiver_config(world, id, !config.pull_only);
        let ahead = CLOCK_AHEAD * id.0;
        let start = Timestamp::ZERO + config.joins + ahead;
        Self {
            id,
            ahead,
            machine: Receiver::new(machine, rng.next_u64(), start),
            joined: false,
            dead: false,
            ended: false,
            completed_at: None,
            on_stream: !config.pull_only,
            told: start,
            timer: Timestamp::MAX,
            ledger: world.check.then(Ledger::default),
            ready: BTreeMap::new(),
            open: !world.products.is_empty(),
            free_at: start,
            most_partial: 0,
            link: Link::new(config.link),
            hiccups: HiccupProcess::new(config.hiccups, rng),
            loss: LossProcess::new(config.loss, rng.fork()),
            poll_loss: world.poll_loss,
            rng: rng.fork(),
            next: 0,
            rough: config.is_rough().then(Rough::default),
            zeros: Rc::clone(zeros),
            config,
        }
    }

    /// Takes part from now on: what the log holds already is not for it.
    pub(super) fn join(&mut self, log_end: u64) {
        self.joined = true;
        self.next = log_end;
    }

    /// One past the last entry of its node's log that it has seen.
    pub(super) const fn seen(&self) -> u64 {
        self.next
    }

    pub(super) const fn is_rough(&self) -> bool {
        self.rough.is_some()
    }

    pub(super) const fn is_listening(&self) -> bool {
        self.joined && !self.dead
    }

    /// A datagram enters the rough edge at `at`. Returns when to look at the receiver: at once for
    /// messages, never for symbols.
    pub(super) fn enter(&mut self, at: Timestamp, datagram: &Datagram) -> [Option<Timestamp>; 2] {
        let mut look = [None; 2];
        let Some(rough) = &mut self.rough else { return look };
        let copies = 1 + usize::from(self.rng.chance(self.config.duplicates));
        for slot in look.iter_mut().take(copies) {
            let Some(out) = self.link.send(at, datagram.frame_len) else { continue };
            let late = self.config.jitter.mul_f64(self.rng.unit());
            rough.inserted += 1;
            rough.coming.push(Reverse(Coming {
                at: out + late,
                inserted: rough.inserted,
                datagram: datagram.clone(),
            }));
            *slot = is_message(datagram).then_some(out + late);
        }
        look
    }

    /// A frame for it alone enters its edge at `at`; when it is through, if it is not lost.
    pub(super) fn pass(&mut self, at: Timestamp, frame_len: u64) -> Option<Timestamp> {
        let at = self.link.send(at, frame_len)?;
        (!self.loss.is_lost()).then_some(at)
    }

    /// Shows the machine all that has arrived by `now`.
    pub(super) fn catch_up(&mut self, now: Timestamp, log: &Log) {
        if !self.is_listening() {
            return;
        }
        if self.rough.is_some() {
            while let Some(coming) = self.next_coming(now) {
                if self.is_fresh(coming.datagram.number) {
                    self.deliver(coming.at, &coming.datagram);
                }
            }
            return;
        }
        let delay = self.config.link.delay;
        while let Some((at, datagram)) = log.entry(self.next) {
            let at = *at + delay;
            if at > now {
                break;
            }
            self.next += 1;
            self.deliver(at, datagram);
        }
    }

    fn next_coming(&mut self, now: Timestamp) -> Option<Coming> {
        let coming = &mut self.rough.as_mut()?.coming;
        if coming.peek().is_none_or(|c| c.0.at > now) {
            return None;
        }
        coming.pop().map(|c| c.0)
    }

    /// The seal's window refuses what came before.
    fn is_fresh(&mut self, number: u64) -> bool {
        let Some(rough) = &mut self.rough else { return true };
        let newest = rough.seen.last().copied().unwrap_or(0);
        if number + REPLAY_WINDOW <= newest || !rough.seen.insert(number) {
            return false;
        }
        while rough.seen.first().is_some_and(|n| *n + REPLAY_WINDOW <= newest.max(number)) {
            rough.seen.pop_first();
        }
        true
    }

    fn deliver(&mut self, at: Timestamp, datagram: &Datagram) {
        if self.loss.is_lost() || !self.on_stream && self.config.pull_only {
            return;
        }
        if is_cut(&self.config.cuts, at) || is_message(datagram) && self.rng.chance(self.poll_loss)
        {
            return;
        }
        let body: &[u8] = match datagram.header.kind {
            Kind::Symbol { .. } => &self.zeros[..datagram.body_len],
            _ => &datagram.body,
        };
        let seen = self.awake(at);
        let (now, arrived) = (self.clock(seen), self.clock(at));
        let done = self.machine.handle_datagram(now, arrived, &datagram.header, body);
        let disposition = done.expect("the sender's datagrams are well formed");
        if let Kind::Symbol { block, symbol, .. } = datagram.header.kind
            && disposition == Disposition::Keep
            && let Some(ledger) = &mut self.ledger
        {
            ledger.keep(self.id, block, symbol);
        }
        if let Kind::Symbol { block, .. } = datagram.header.kind
            && self.open
            && disposition == Disposition::Keep
            && !self.machine.is_collecting(block)
        {
            self.ready.insert(block, seen);
        }
    }

    /// When a block is stored that is rebuilt at `at`.
    pub(super) fn store(&mut self, at: Timestamp) -> Timestamp {
        if self.config.store_time.is_zero() {
            return at;
        }
        let begin = at.max(self.free_at);
        let stall = self.config.stalls.iter().find(|stall| stall.contains(&begin));
        self.free_at = stall.map_or(begin, |stall| stall.end) + self.config.store_time;
        self.free_at
    }

    /// When its process notices what happens at `at`.
    pub(super) fn awake(&self, at: Timestamp) -> Timestamp {
        let awake = self.hiccups.awake(at);
        match &self.config.stops {
            Some(stop) if stop.contains(&awake) => stop.end,
            _ => awake,
        }
    }

    /// What its own clock shows at `at`.
    pub(super) fn clock(&self, at: Timestamp) -> Timestamp {
        at + self.ahead
    }

    /// When its machine is to be called next.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.machine.poll_timeout().map(|deadline| deadline.at - self.ahead)
    }

    /// Propagation from its node to it.
    pub(super) const fn delay(&self) -> Duration {
        self.config.link.delay
    }
}

pub(super) const fn is_message(datagram: &Datagram) -> bool {
    !matches!(datagram.header.kind, Kind::Symbol { .. })
}

fn receiver_config(
    world: &WorldConfig,
    me: ReceiverId,
    on_stream: bool,
) -> downpour_proto::ReceiverConfig {
    downpour_proto::ReceiverConfig {
        geometry: world.geometry,
        stream: StreamId(1),
        me,
        feedback: Box::new(Rounds),
        partial_blocks: world.partial_blocks.min(receiver::PARTIAL_BLOCKS_MAX),
        pulls: receiver::PULLS_DEFAULT,
        resume: false,
        on_stream,
        greets: false,
        products: !world.products.is_empty(),
    }
}
