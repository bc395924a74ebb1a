//! One session as a receiver lives it: from the JOIN's answer to the receipt, or to the loss of the sender.
//!
//! Four parties speak here: the sender's events, the driver (stream), the store (objects) and the puller. They
//! meet in one queue and one loop, which only passes on; what each does is its own affair.

use super::account::{ReceiverAccount, left_stream, receiver_snapshot};
use super::asking::{clock, listen, lost, next_event, outlast, send_receipt};
use super::ended::{Ended, Followed, Over, Unplaced, by_user};
use super::hearing::{buffer_notice, false_notice, stream_in, unreached};
use super::host::Host;
use super::keeper::{Keeper, Kept, may_hold, open_keeper};
use super::receive::{Taker, unless_stopped};
use super::saying::Saying;
use super::transfer::{Stall, Stored, limits, pad};
use super::words::Telling;
use super::{FALSE_SYMBOLS, NOT_HEARD, ONLY_SHORT, TOO_SLOW, faults, transfer};
use crate::cli::{Fault, ReceivePlan, Target};
use crate::object::{EntryId, Obstacle, PipeOut, StoreEvent, Summary};
use crate::product::ProductLog;
use downpour_catalog::ErrorClass;
use downpour_proto::receiver::Pull as Order;
use downpour_proto::transfer::Plan;
use downpour_proto::{
    BlockId, BlockKind, Duration, PacketNumber, RangeSet, ReceiverConfig, Rounds,
    receiver::PARTIAL_BLOCKS_MAX,
};
use downpour_transport::control::{
    ControlClient, DataPath, Event, EventStream, Joined, Pull, PullError, ReadyRequest, Receipt,
    RequestError,
};
use downpour_transport::pull::{Pulled, Puller};
use downpour_transport::session::{ReceiveEvent, ReceiveHandle, ReceiveSetup, ReceiveSnapshot};
use downpour_transport::trace::Trace;
use downpour_transport::{BlockSink, MulticastReceiver, Spare, Suite};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// How long to wait for a join probe before all is pulled (`docs/protocol.md#CTL-2`).
const PROBE_TIME: Duration = Duration::from_millis(1_500);

/// How often progress is shown.
const TICK: Duration = Duration::from_millis(200);

/// How long what a lost sender has sent is read and stored; and how long nothing of it comes before that ends.
const DRAIN_TIME: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));

/// How long a goodbye may take: its way to the sender may be broken.
const GOODBYE_TIME: Duration = Duration::from_secs(2);

/// After so many false blocks the stream is left (`docs/protocol.md#KEY-4`).
const FALSE_BLOCKS_MAX: u32 = 3;

/// What an attempt needs.
pub(super) struct Attempt<'a> {
    pub(super) plan: &'a ReceivePlan,
    pub(super) taker: &'a Taker,
    pub(super) client: Arc<ControlClient>,
    pub(super) joined: Joined,
    pub(super) account: ReceiverAccount,
    pub(super) host: &'a mut Host,
    pub(super) trace: Option<Trace>,
    /// Where to log products.
    pub(super) log: Option<Arc<ProductLog>>,
    /// Where a pipe's bytes go, and how far the attempts before have got there.
    pub(super) pipe: &'a PipeOut,
    /// It has taken part before.
    pub(super) has_been: bool,
    /// How far the attempt before has got in a session of products, and then this one, if its sender is lost.
    pub(super) followed: &'a mut Option<Followed>,
}

/// What the parties say. Nothing else bounds their queue: the machine has so many pulls out at most, and the store tells of each
/// object, section and block that comes again.
pub(super) enum Said {
    Driver(ReceiveEvent),
    Store(StoreEvent),
    /// The sender, of what it is told.
    Refused(RequestError),
}

/// Why the loop ends.
enum Verdict {
    Complete(Summary),
    Failed(ErrorClass, String),
    SenderLost(String),
    Interrupted,
}

struct Run<'a> {
    plan: &'a ReceivePlan,
    /// How its connections are set; `None` beside a multicast stream.
    planned: Option<Plan>,
    client: Arc<ControlClient>,
    saying: Saying,
    joined: Joined,
    store: Kept,
    driver: ReceiveHandle,
    puller: Puller,
    /// Orders by the number of their pull.
    orders: HashMap<u64, Order>,
    last_order: u64,
    /// Orders that wait until the sender has said how long their block is, or the store what it holds of it.
    unknown: Vec<Order>,
    /// Data blocks that came before the store has looked: their section of the manifest is on its way.
    early: Vec<(BlockId, Vec<u8>)>,
    /// The store may hold something from before.
    candidates: bool,
    /// One past the last data block of which the store has said whether it is held.
    looked_end: u32,
    held: RangeSet,
    manifest_symbols: Vec<u16>,
    /// Of data blocks that are still needed, in a session of products.
    block_symbols: BTreeMap<u32, u16>,
    data_len: Option<u64>,
    account: ReceiverAccount,
    unplaced: Vec<Unplaced>,
    /// There was nothing to be heard for so long, because the session has not started, that the stream counted as lost.
    lost_early: bool,
    /// Why the stream was left, if ever it was, and whether it ever reached this machine.
    left_stream: Option<String>,
    reached: bool,
    sections_examined: u32,
    /// Blocks whose bytes contradicted the manifest.
    false_blocks: u32,
    stored: Stored,
}

/// Takes part in the session. If that cannot be, the sender is told why, and does not wait.
pub(super) async fn attempt(run: Attempt<'_>) -> Result<Ended, Fault> {
    let client = Arc::clone(&run.client);
    let ended = take_part(run).await;
    if let Err(fault) = &ended {
        // The session may be over already: then there is nobody to tell.
        let _ = tokio::time::timeout(GOODBYE_TIME, client.leave(&fault.what, true)).await;
    }
    ended
}

async fn take_part(run: Attempt<'_>) -> Result<Ended, Fault> {
    let Attempt { plan, taker, client, joined, mut account, host, pipe, followed, .. } = run;
    let (said, mut heard) = mpsc::unbounded_channel();
    let (candidates, planned) = (may_hold(&plan.target), transfer::planned(plan, &joined));
    // Its connections are opened while the rest is set up: each takes two round trips.
    let limits = limits((plan, planned.as_ref()), &joined, taker);
    let (spare, pulls) = (limits.spare.clone(), transfer::pulls(planned.as_ref(), &joined));
    let (puller, mut pulled) = Puller::start(client.clone(), limits);
    let clock = match unless_stopped(host, clock(&client, &joined)).await? {
        Ok(clock) => clock,
        Err(error) => return lost(error).map(|why| Ended::SenderLost(why, None)),
    };
    let before = followed.as_ref().filter(|before| before.session == joined.reply.session);
    let shelf = clock.map(|clock| (clock, before.map(|before| before.mark.clone()), run.log));
    let store = open_keeper(plan, &joined, (taker, pipe, said.clone()), shelf)?;
    // Before the events: when the sender hears of us it sends a probe.
    let (stream, notices) = stream_in(plan, &joined, run.has_been)?;
    let has_stream = stream.is_some() || joined.reply.path.is_unicast();
    let saying = Saying::begin(&client, said.clone());
    let driver = spawn_driver((plan, pulls), &joined, (stream, spare), &store, (said, run.trace))?;
    // Without a stream no probe is awaited.
    let ready = (!has_stream).then_some(ReadyRequest { multicast: false, candidates });
    let mut events = match unless_stopped(host, listen(&client, ready)).await? {
        Ok(events) => events,
        Err(error) => return lost(error).map(|why| Ended::SenderLost(why, None)),
    };
    let small = buffer_notice(driver.snapshot().buffer_len).filter(|_| has_stream);
    account.notices.extend(notices.into_iter().chain(small));
    let mut run = Run {
        plan,
        stored: Stored::new(planned.as_ref(), &joined, driver.snapshot().data_held),
        planned,
        data_len: joined.reply.data_len,
        account,
        client: Arc::clone(&client),
        saying,
        lost_early: false,
        joined,
        store: Kept::new(store),
        driver,
        puller,
        orders: HashMap::new(),
        last_order: 0,
        unknown: Vec::new(),
        early: Vec::new(),
        candidates,
        looked_end: 0,
        held: RangeSet::new(),
        manifest_symbols: Vec::new(),
        block_symbols: BTreeMap::new(),
        unplaced: Vec::new(),
        left_stream: None,
        reached: true,
        sections_examined: 0,
        false_blocks: 0,
    };
    run.begin_products(before);
    let telling = Telling::begin(&run.joined, &client, taker);
    let verdict = run.attend(&mut events, (&mut heard, &mut pulled), (host, has_stream)).await;
    telling.end(matches!(verdict, Verdict::Complete(_))).await;
    let (products, started) = (run.joined.reply.products_from.is_some(), run.joined.reply.started);
    let mut ended = run.finish(verdict, taker, followed).await?;
    if let Ended::Over(over) = &mut ended
        && plan.stay
        && over.outlasts(products, started, pipe)
    {
        outlast(over, (&client, &mut events), host).await;
    }
    Ok(ended)
}

fn spawn_driver(
    (plan, pulls): (&ReceivePlan, usize),
    joined: &Joined,
    (stream, spare): (Option<MulticastReceiver>, Spare),
    store: &Arc<dyn Keeper>,
    (said, trace): (UnboundedSender<Said>, Option<Trace>),
) -> Result<ReceiveHandle, Fault> {
    let reply = &joined.reply;
    let mut feedback = reply.feedback;
    if feedback.ip().is_unspecified() {
        // With its scope, where it has one.
        feedback = joined.sender;
        feedback.set_port(reply.feedback.port());
    }
    let blocks = plan.memory_bytes / reply.geometry.block_len();
    let session = reply.session.as_bytes();
    let seed =
        session.iter().fold(u64::from(reply.receiver.0), |s, b| s.rotate_left(8) ^ u64::from(*b));
    let setup = ReceiveSetup {
        machine: ReceiverConfig {
            geometry: reply.geometry,
            stream: reply.stream,
            me: reply.receiver,
            feedback: Box::new(Rounds),
            partial_blocks: (blocks as usize).clamp(8, PARTIAL_BLOCKS_MAX),
            pulls,
            resume: matches!(plan.target, Target::Tree(_) | Target::Device(_))
                && reply.products_from.is_none(),
            on_stream: stream.is_some() || reply.path.is_unicast(),
            greets: reply.path.is_unicast(),
            products: reply.products_from.is_some(),
        },
        seed,
        stream,
        unicast: reply.path.is_unicast(),
        feedback,
        // Without a stream there is no driver that must be in time.
        open: reply.products_from.is_some() || reply.path == DataPath::Tcp,
        // Checked when the reply came.
        suite: Suite::from_id(reply.suite).unwrap_or_else(Suite::preferred),
        epoch: reply.epoch,
        secret: reply.epoch_secret.clone(),
        packet: PacketNumber(reply.packet),
        feedback_secret: joined.feedback.clone(),
        sink: Arc::clone(store) as Arc<dyn BlockSink>,
        inject_loss: plan.inject_loss,
        spare,
        trace,
        on_event: Box::new(move |event| {
            // Fails only when the attempt is over.
            let _ = said.send(Said::Driver(event));
        }),
    };
    ReceiveHandle::spawn(setup).map_err(faults::session)
}

impl Run<'_> {
    /// In a session of products what was sent before is not for us, and nothing is held; but what came in an attempt
    /// before has come, and what failed has failed.
    fn begin_products(&mut self, before: Option<&Followed>) {
        let Some(first) = self.joined.reply.products_from else { return };
        self.looked_end = u32::MAX;
        self.driver.have(BlockKind::Data, 0..first);
        if let Some(before) = before {
            for (path, reason) in before.mark.failed.iter().cloned() {
                let (entry, obstacle) = (EntryId(0), Obstacle::Failed);
                self.unplaced.push(Unplaced { entry, path, obstacle, reason });
            }
            self.account.go_on(before.account);
        } else if first > 0 {
            let text = "joined while the session ran: products that begin from then on";
            self.account.notices.push(text.to_owned());
        }
    }

    /// Passes on what the parties say, until it is over.
    async fn attend(
        &mut self,
        events: &mut EventStream,
        (heard, pulled): (&mut UnboundedReceiver<Said>, &mut mpsc::Receiver<Pulled>),
        (host, has_stream): (&mut Host, bool),
    ) -> Verdict {
        if let Some(verdict) = self.become_ready(heard, has_stream).await {
            return verdict;
        }
        let (plan, geometry) = (self.plan, self.joined.reply.geometry);
        let (mut tick, mut stall) = (tokio::time::interval(TICK), Stall::default());
        loop {
            let verdict = tokio::select! {
                event = next_event(events), if !self.store.is_behind() => match event {
                    Ok(event) => self.on_sender(event),
                    Err(why) => {
                        let ended = self.drain(heard, pulled, host).await;
                        Some(ended.unwrap_or(Verdict::SenderLost(why)))
                    }
                },
                Some(said) = heard.recv() => self.on_said(said),
                Some(pulled) = pulled.recv() => { self.on_pulled(pulled); None }
                _ = tick.tick() => {
                    let (snapshot, came) = (self.look(), self.puller.came());
                    events.heard_elsewhere(snapshot.stats.received);
                    events.pulled_elsewhere(came);
                    let in_blocks = snapshot.data_held * geometry.block_len();
                    let bytes = self.store.product_bytes().unwrap_or(in_blocks);
                    let known = (self.joined.reply.started, self.data_len);
                    let shown = receiver_snapshot(&self.account, plan, &snapshot, known, bytes);
                    host.show(&shown);
                    host.came(came);
                    let waits = !self.orders.is_empty() && events.answers();
                    let stalled = stall.look(Instant::now(), waits, came);
                    stalled.inspect(|news| host.say(news));
                    None
                }
                () = host.stopped() => Some(Verdict::Interrupted),
            };
            if let Some(verdict) = verdict {
                return verdict;
            }
        }
    }

    /// The sender is gone. What is in this machine's sockets already need not come again.
    async fn drain(
        &mut self,
        heard: &mut UnboundedReceiver<Said>,
        pulled: &mut mpsc::Receiver<Pulled>,
        host: &mut Host,
    ) -> Option<Verdict> {
        self.puller.drain();
        let (mut look, mut before) = (tokio::time::interval(DRAIN_TIME.1), None);
        let all = async {
            loop {
                let verdict = tokio::select! {
                    pulled = pulled.recv() => { self.on_pulled(pulled?); None }
                    Some(said) = heard.recv() => self.on_said(said),
                    _ = look.tick() => {
                        let came = Some(self.puller.came());
                        if std::mem::replace(&mut before, came) == came {
                            return None;
                        }
                        None
                    }
                    () = host.stopped() => Some(Verdict::Interrupted),
                };
                if verdict.is_some() {
                    return verdict;
                }
            }
        };
        tokio::time::timeout(DRAIN_TIME.0, all).await.ok().flatten()
    }

    /// Waits for the probe and says how it went; what was said meanwhile comes after that. A verdict when it is over already.
    async fn become_ready(
        &mut self,
        heard: &mut UnboundedReceiver<Said>,
        has_stream: bool,
    ) -> Option<Verdict> {
        if !has_stream {
            self.go_without_stream();
            return None; // It was said with the subscription.
        }
        let mut early = Vec::new();
        let probe = async {
            while let Some(said) = heard.recv().await {
                match said {
                    Said::Driver(ReceiveEvent::Heard) => return Ok(true),
                    Said::Driver(ReceiveEvent::Broken(broken)) => return Err(broken),
                    // READY tells how the stream is.
                    Said::Driver(ReceiveEvent::StreamLost | ReceiveEvent::StreamHeard) => {}
                    said => early.push(said),
                }
            }
            Ok(false)
        };
        let multicast = match tokio::time::timeout(PROBE_TIME, probe).await.unwrap_or(Ok(false)) {
            Ok(multicast) => multicast,
            Err(broken) => return Some(Verdict::Failed(ErrorClass::Internal, broken.to_string())),
        };
        if !multicast {
            self.go_without_stream();
        }
        self.saying.ready(multicast, self.candidates);
        early.into_iter().find_map(|said| self.on_said(said))
    }

    /// How the driver is; the puller is told whether it waits for the disk, the driver how many pulls may run.
    fn look(&mut self) -> ReceiveSnapshot {
        let snapshot = self.driver.snapshot();
        self.puller.set_sink_waits(self.stored.waits(snapshot.data_held));
        if let Some(most) = self.stored.look(self.puller.bytes()) {
            self.driver.set_pulls(most);
        }
        snapshot
    }

    fn go_without_stream(&mut self) {
        self.reached = false;
        self.driver.set_on_stream(false);
        self.left_stream = unreached(self.plan, &self.joined);
    }

    fn on_sender(&mut self, event: Event) -> Option<Verdict> {
        match event {
            Event::Ends { data, manifest, finished, data_len } => {
                self.data_len = data_len.or(self.data_len);
                self.driver.update_ends(data, manifest, finished);
                if finished {
                    self.store.finished(data, manifest);
                    self.puller.set_ending();
                }
                self.retry_unknown();
            }
            Event::Manifest { first, symbols } => {
                // A new subscription tells the list from its start again.
                self.manifest_symbols.truncate(first as usize);
                if self.manifest_symbols.len() == first as usize {
                    self.manifest_symbols.extend_from_slice(&symbols);
                }
                self.retry_unknown();
            }
            Event::Blocks { first, symbols } => {
                self.block_symbols.extend((first..).zip(symbols));
                self.block_symbols = self.block_symbols.split_off(&self.store.needed_from());
                self.retry_unknown();
            }
            Event::Withdrawn { object, reason } => self.store.withdraw(EntryId(object), reason),
            Event::LeaveGroup { reason } => {
                self.lost_early = false;
                self.driver.set_on_stream(false);
                self.left_stream = Some(reason);
            }
            // Until that is said, the sender counts on it.
            Event::ReturnToGroup if self.false_blocks >= FALSE_BLOCKS_MAX => {
                self.say_pulling(FALSE_SYMBOLS);
            }
            Event::ReturnToGroup => self.driver.set_on_stream(true),
            Event::Shutdown { reason } => {
                return Some(Verdict::Failed(ErrorClass::Interrupted, reason));
            }
            Event::Start => {
                self.joined.reply.started = true;
                if std::mem::take(&mut self.lost_early) {
                    self.driver.set_on_stream(true);
                }
            }
            Event::Ping | Event::Closing | Event::Unknown => {}
        }
        None
    }

    fn on_said(&mut self, said: Said) -> Option<Verdict> {
        match said {
            Said::Driver(ReceiveEvent::Broken(broken)) => {
                return Some(Verdict::Failed(ErrorClass::Internal, broken.to_string()));
            }
            Said::Driver(event) => self.on_driver(event),
            Said::Store(event) => return self.on_store(event),
            // Whether it takes this receiver in again, it says at the next JOIN.
            Said::Refused(error) => return Some(Verdict::SenderLost(error.to_string())),
        }
        None
    }

    fn on_driver(&mut self, event: ReceiveEvent) {
        match event {
            ReceiveEvent::Pull(order) => self.pull(order),
            // There is none yet: the sender still counts on it, and its silence counts from the start on.
            ReceiveEvent::StreamLost if !self.joined.reply.started => self.lost_early = true,
            // Its group is not left: when the stream is heard again, it is followed again.
            ReceiveEvent::StreamLost => self.say_pulling(NOT_HEARD),
            ReceiveEvent::SymbolsLost => self.say_pulling(ONLY_SHORT),
            ReceiveEvent::StreamHeard => {
                (self.lost_early, self.reached) = (false, true);
                self.saying.ready(true, false);
            }
            ReceiveEvent::LeaveStream => {
                // The sender's word by TCP, with its reason, may have been here first.
                let why = self.left_stream.take().unwrap_or_else(|| TOO_SLOW.to_owned());
                self.leave_stream(&why);
            }
            ReceiveEvent::FalseBlock => self.on_false_block(),
            ReceiveEvent::Heard | ReceiveEvent::Broken(_) => {}
        }
    }

    /// Goes on by pulling.
    fn leave_stream(&mut self, why: &str) {
        self.lost_early = false;
        self.driver.set_on_stream(false);
        self.say_pulling(why);
    }

    fn say_pulling(&mut self, why: &str) {
        self.left_stream = Some(why.to_owned());
        self.saying.ready(false, false);
    }

    /// Somebody who has the group's key sends false symbols: what they spoil is pulled, and soon all is.
    fn on_false_block(&mut self) {
        self.false_blocks += 1;
        self.client.encrypt_all();
        if self.false_blocks == FALSE_BLOCKS_MAX {
            self.leave_stream(FALSE_SYMBOLS);
        }
    }

    fn on_store(&mut self, event: StoreEvent) -> Option<Verdict> {
        // The stream may be faster than the word of its start. By TCP the manifest of a tree is there before that.
        let reply = &mut self.joined.reply;
        reply.started |= reply.path != DataPath::Tcp || reply.products_from.is_some();
        match event {
            StoreEvent::Tree(tree) => {
                self.account.objects = tree.entries;
                self.data_len = tree.data_len.or(self.data_len);
                if !tree.candidates && self.candidates {
                    self.say_have(Vec::new(), u32::MAX);
                }
            }
            StoreEvent::Section(section) => {
                if section.last {
                    self.data_len = Some(section.data_end);
                }
                let block_len = self.joined.reply.geometry.block_len();
                let looked = match section.last {
                    true => section.data_end.div_ceil(block_len),
                    false => section.data_end / block_len,
                };
                self.looked_end = u32::try_from(looked).unwrap_or(u32::MAX);
                self.hold(&section.held);
                self.take_early();
                self.retry_unknown();
                // Who was said to hold nothing is not waited for.
                if self.candidates || !section.held.is_empty() {
                    self.say_have(section.held, section.index + 1);
                }
            }
            StoreEvent::NotNeeded(ranges) => {
                self.hold(&ranges);
                self.say_have(ranges, self.sections_examined);
            }
            StoreEvent::Forgotten { block, poisoned } => {
                self.driver.forgotten(block);
                if poisoned {
                    self.on_false_block();
                }
            }
            StoreEvent::Notice { path, text } => {
                self.account.notices.push(format!("{path}: {text}"));
            }
            StoreEvent::ObjectFailed { entry, path, obstacle, reason } => {
                self.unplaced.push(Unplaced { entry, path, obstacle, reason });
            }
            StoreEvent::Failed(failure) => {
                let class = faults::class_of_store(&failure, &self.plan.target);
                return Some(Verdict::Failed(class, failure.to_string()));
            }
            StoreEvent::Complete(summary) => return Some(Verdict::Complete(summary)),
        }
        None
    }

    fn hold(&mut self, ranges: &[Range<u32>]) {
        for range in ranges {
            self.held.insert_range(range.clone());
            self.driver.have(BlockKind::Data, range.clone());
        }
    }

    fn say_have(&mut self, data: Vec<Range<u32>>, examined: u32) {
        self.sections_examined = self.sections_examined.max(examined);
        self.saying.have(data, self.sections_examined);
    }

    fn pull(&mut self, order: Order) {
        let block = block_of(order);
        let is_data = block.kind() == BlockKind::Data;
        if is_data && self.held.contains(block.number()) {
            // The driver has been told, and has called the pull off; unless a block of a file that is given up was forgotten
            // after that: then it would wait for this one for good.
            return self.driver.have(block.kind(), block.number()..block.number() + 1);
        }
        // What is held from before is known with the section that covers it: not earlier.
        let looked = !is_data || !self.candidates || block.number() < self.looked_end;
        let Some(pull) = self.pull_of(order).filter(|_| looked) else {
            self.unknown.push(order);
            return;
        };
        self.last_order += 1;
        self.orders.insert(self.last_order, order);
        if self.puller.request(self.last_order, pull).is_err() {
            self.orders.remove(&self.last_order);
            self.driver.pull_failed(block);
        }
    }

    fn retry_unknown(&mut self) {
        for order in std::mem::take(&mut self.unknown) {
            self.pull(order);
        }
    }

    /// Hands on what came before the section that covers it.
    fn take_early(&mut self) {
        for (block, bytes) in std::mem::take(&mut self.early) {
            if block.number() >= self.looked_end {
                self.early.push((block, bytes));
            } else if !self.held.contains(block.number()) {
                self.driver.pulled_bytes(block, bytes);
            }
        }
    }

    /// What to ask the sender for; `None` while the block's length is not known.
    fn pull_of(&self, order: Order) -> Option<Pull> {
        let geometry = self.joined.reply.geometry;
        match order {
            Order::Repair { block, from, until } => Some(Pull::Repair(block, from..until)),
            Order::Bytes { block } => {
                let start = u64::from(block.number()) * geometry.block_len();
                match block.kind() {
                    BlockKind::Data if self.joined.reply.products_from.is_some() => {
                        let k = *self.block_symbols.get(&block.number())?;
                        let len = u64::from(k) * u64::from(geometry.symbol_len);
                        Some(Pull::Bytes(BlockKind::Data, start..start + len))
                    }
                    BlockKind::Data => {
                        let end = self.data_len.map_or(start + geometry.block_len(), |len| {
                            len.min(start + geometry.block_len())
                        });
                        (start < end).then_some(Pull::Bytes(BlockKind::Data, start..end))
                    }
                    BlockKind::Manifest => {
                        let k = *self.manifest_symbols.get(block.number() as usize)?;
                        let len = u64::from(k) * u64::from(geometry.symbol_len);
                        Some(Pull::Bytes(BlockKind::Manifest, start..start + len))
                    }
                }
            }
        }
    }

    fn on_pulled(&mut self, pulled: Pulled) {
        let Some(order) = self.orders.remove(&pulled.id) else { return };
        let block = block_of(order);
        match (pulled.outcome, order) {
            (Ok(mut bytes), Order::Bytes { block }) => {
                self.account.pulled(block, bytes.len() as u64);
                self.stored.pulled += u64::from(block.kind() == BlockKind::Data);
                pad(&mut bytes, self.joined.reply.geometry);
                match block.kind() {
                    BlockKind::Data if block.number() >= self.looked_end => {
                        self.early.push((block, bytes));
                    }
                    _ => self.driver.pulled_bytes(block, bytes),
                }
            }
            (Ok(bytes), Order::Repair { block, from, until }) => {
                self.account.pulled(block, bytes.len() as u64);
                self.driver.pulled_repair(block, from..until, bytes);
            }
            (Err(PullError::SourceFailed(_)), _) if self.joined.reply.products_from.is_some() => {
                self.store.lost(block);
                self.driver.have(block.kind(), block.number()..block.number() + 1);
            }
            (Err(_), _) => self.driver.pull_failed(block),
        }
    }

    /// The goodbye or the receipt, and the report.
    async fn finish(
        mut self,
        verdict: Verdict,
        taker: &Taker,
        followed: &mut Option<Followed>,
    ) -> Result<Ended, Fault> {
        let totals = self.puller.stop().await;
        let interrupted = matches!(verdict, Verdict::Interrupted);
        // A failure of this class is the sender's end.
        let mut goes_on = !matches!(verdict, Verdict::Failed(ErrorClass::Interrupted, _));
        let mut failure = match &verdict {
            Verdict::Failed(class, reason) => Some((*class, reason.clone())),
            Verdict::Interrupted => Some(by_user(&self.plan.target)),
            Verdict::Complete(_) | Verdict::SenderLost(_) => None,
        };
        if let Some((_, reason)) = &failure {
            // Before the driver's threads are waited for: one may be held by a disk or a pipe, and nobody else need be.
            // The session may be over already: then there is nobody to tell.
            self.saying.end().await;
            let goodbye = tokio::time::timeout(GOODBYE_TIME, self.client.leave(reason, true));
            goes_on &= goodbye.await.is_ok_and(|told| told.is_ok());
            self.account.failure = Some(reason.clone());
        }
        let snapshot = self.driver.stop();
        self.store.settle().await;
        let (session, started) = (self.joined.reply.session, self.joined.reply.started);
        let account = self.account.mark();
        *followed = self.store.mark().map(|mark| Followed { session, mark, account, started });
        self.account.notices.extend(totals.lacks.clone());
        self.account.transfer = transfer::report(self.planned.as_ref(), &self.joined, totals);
        let (summary, mut lost) = match verdict {
            Verdict::Complete(summary) => (summary, None),
            Verdict::SenderLost(why) => (self.store.summary(), Some(why)),
            Verdict::Failed(..) | Verdict::Interrupted => (self.store.summary(), None),
        };
        let why = self.account.failure.as_deref();
        self.account.notices.extend(false_notice(self.false_blocks, &self.unplaced, why));
        if failure.is_none() && lost.is_none() {
            let receipt = self.receipt(&summary, snapshot.stats.repair_kept);
            if let Err(error) = send_receipt(&self.client, receipt, &taker.identity).await {
                self.account.notices.push(format!("the receipt could not be delivered: {error}"));
                lost = Some(error.to_string());
            }
        }
        if let Some(why) = &lost {
            let why = format!("the sender is lost ({why})");
            self.account.failure = Some(why.clone());
            failure = Some((ErrorClass::SourceUnreachable, why));
            goes_on = false;
        }
        if self.joined.reply.products_from.is_some() {
            self.account.objects = summary.complete;
        }
        let left = (self.left(&summary), self.reached);
        // Before the end some of them may still be without a name, and none is synced.
        let placed = if failure.is_none() { self.store.placed() } else { Vec::new() };
        let unplaced = self.unplaced;
        let report = self.account.report(self.plan, &summary, &snapshot, self.data_len, left);
        let over = Box::new(Over { report, placed, unplaced, failure, interrupted, goes_on });
        Ok(match lost {
            Some(why) => Ended::SenderLost(why, Some(over)),
            None => Ended::Over(over),
        })
    }

    /// Why it pulled, if it did.
    fn left(&mut self, summary: &Summary) -> Option<String> {
        let path = self.joined.reply.path;
        // There the sender moves a receiver to and fro that the stream reaches.
        let chosen = path == DataPath::Auto && self.reached;
        let by_pull = self.account.data_pulled.min(summary.bytes_received);
        let bytes = (summary.bytes_received - by_pull, by_pull);
        let left = self.left_stream.take().filter(|_| !chosen);
        left_stream(left, path == DataPath::Multicast, bytes)
    }

    fn receipt(&self, summary: &Summary, repair_symbols: u64) -> Receipt {
        let by_pull = self.account.data_pulled.min(summary.bytes_received);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Receipt {
            session: self.joined.reply.session,
            receiver: self.joined.reply.receiver,
            manifest_digest: summary.manifest.map_or([0; 32], |digest| digest.0),
            made_unix_s: now.as_secs(),
            finished: true,
            objects_complete: u64::from(summary.complete),
            objects_failed: summary.failed.len() as u64,
            bytes_complete: summary.bytes_received + summary.bytes_held,
            bytes_by_stream: summary.bytes_received - by_pull,
            bytes_by_pull: by_pull,
            bytes_held: summary.bytes_held,
            repair_symbols,
            failures: self.unplaced.iter().map(Unplaced::told).collect(),
        }
    }
}

const fn block_of(order: Order) -> BlockId {
    match order {
        Order::Repair { block, .. } | Order::Bytes { block } => block,
    }
}
