//! The sending machine of the papers' profiles.
//!
//! What is offered goes out product by product, in order: its begin, its segments, its end, as far as the wire says such
//! things. Before anything new goes what was asked for. One pacer holds all of it but the short answers on
//! connections. How fast, to whom again, and what bytes: the profile's policies.
//!
//! Deliberately absent: bytes of products. A [`Transmit`] names a body, the driver reads and appends it.

mod release;

use super::group::GroupEstimate;
use super::message::{Begin, Data, Message, Mode, Via, Welcome, segment_bytes, segments};
use super::recovery::Repair;
use super::replies::Replies;
use super::{SenderProfile, Wire};
use crate::ids::ReceiverId;
use crate::pacer::Pacer;
use crate::rate::RateLine;
use crate::time::{Duration, Timestamp};
use crate::units::Rate;
use crate::wire::ParseError;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::Range;
use release::Held;

/// Most receivers that are known by a connection. Of those who have gone the ones that did least make room for others.
pub const MEMBERS_MAX: usize = 4096;

/// Most products offered and not released.
pub const OFFERED_MAX: usize = 65_536;

/// A period ends after a packet, as in the papers' programs; by itself when none has left for this long.
const PERIOD_SLACK: Duration = Duration::from_millis(20);

/// Reports cover about a second. Those that cover a time in which there was nothing to send say nothing about
/// how fast it could go.
const REPORT_SPAN: Duration = Duration::from_millis(1500);

/// What a session needs to know from the start.
#[derive(Debug)]
pub struct SenderConfig {
    /// Rate, recovery, wire.
    pub profile: SenderProfile,
    /// How packets reach receivers.
    pub mode: Mode,
    /// Where to; `None` in unicast mode.
    pub group: Option<SocketAddr>,
}

/// A product to be sent.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Its number: ascending by one in a feed; the session's id where there is one product.
    pub product: u32,
    /// Its bytes.
    pub size: u64,
    /// When it appeared, nanoseconds since 1970.
    pub offered_unix_ns: u64,
    /// What it is.
    pub metadata: Vec<u8>,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The group, or everybody on the network.
    Group,
    /// Each member, a copy by datagram ([`Sender::members`]).
    Each,
    /// One, by datagram.
    Datagram(ReceiverId),
    /// One, by its connection.
    Stream(ReceiverId),
}

/// The segment that follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    /// Of which product.
    pub product: u32,
    /// Where in it.
    pub offset: u64,
    /// How many bytes.
    pub len: u16,
    /// Which segment that is.
    pub segment: u32,
    /// It was sent before.
    pub repair: bool,
}

/// A packet to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where it goes.
    pub to: To,
    /// What the driver appends to what [`Sender::poll_transmit`] wrote.
    pub body: Option<Body>,
}

/// What the driver should know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// The rate was looked at.
    Rate(RateLine),
    /// A receiver says that it has all of a product.
    Complete(ReceiverId, u32),
    /// The product is released: nothing of it will be read again.
    Released(u32),
    /// [`Sender::finish`] was called and everything is released.
    Done,
}

/// Counters for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderStats {
    /// Segments sent for the first time.
    pub segments: u64,
    /// Segments sent again.
    pub repairs: u64,
    /// Bytes of datagrams (UDP payload).
    pub datagram_bytes: u64,
    /// Bytes on connections.
    pub stream_bytes: u64,
    /// Requests that were served, at least in part.
    pub requests: u64,
    /// Requests of strangers, or of nothing that had been sent, or of what was on its way already, or beyond the limit.
    pub requests_idle: u64,
    /// Status packets.
    pub statuses: u64,
    /// What was not understood.
    pub malformed: u64,
}

/// A receiver with a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberReport {
    /// Where datagrams go in unicast mode, if it has said so.
    pub port: Option<u16>,
    /// When it last completed a product.
    pub completed: Option<Timestamp>,
    /// Products that it has completed.
    pub products: u64,
    /// Products that were released before it had all of them.
    pub given_up: u64,
    /// Segments that it asked for.
    pub asked: u64,
    /// Its connection is closed.
    pub gone: bool,
}

#[derive(Debug)]
struct Member {
    report: MemberReport,
    joined: bool,
    /// It has been told of a product, or need not be.
    greeted: bool,
    /// Its connection takes more.
    ready: bool,
}

#[derive(Debug)]
struct Open {
    offer: Offer,
    segments: u32,
    begun: bool,
    /// The next segment that was never sent.
    next: u32,
    ended: Option<Timestamp>,
    /// When something of it was last sent or asked for.
    asked: Timestamp,
    /// It need not be looked at before, once all of it has been sent.
    due: Timestamp,
    /// Who is still to say that it has all.
    waiting: BTreeSet<ReceiverId>,
}

/// The sending machine.
///
/// Contract: call one input or command, then drain [`poll_transmit`](Self::poll_transmit) and
/// [`poll_event`](Self::poll_event) until each is `None`, then read [`poll_timeout`](Self::poll_timeout). `now` never
/// runs backwards; a spurious [`handle_timeout`](Self::handle_timeout) is harmless.
#[derive(Debug)]
pub struct Sender {
    config: SenderConfig,
    now: Timestamp,
    started: bool,
    finished: bool,
    done: bool,
    members: BTreeMap<ReceiverId, Member>,
    /// Not sent to the end; only the first has begun.
    queue: VecDeque<Open>,
    /// The newest that was offered, until its end is told once more.
    last: Option<u32>,
    /// Sent, and kept for those who lack some of it.
    held: Held,
    /// Before this there is nothing to release, and no end to be told once more.
    keep_until: Timestamp,
    pacer: Pacer,
    burst_left: u32,
    burst_bytes: u64,
    packet: u32,
    group: GroupEstimate,
    period_at: Timestamp,
    /// When there was last nothing to send.
    idle_at: Option<Timestamp>,
    replies: Replies,
    events: VecDeque<Event>,
    stats: SenderStats,
}

impl Sender {
    /// A machine that sends nothing before [`start`](Self::start).
    pub fn new(config: SenderConfig, now: Timestamp) -> Self {
        let packet_len = config.profile.wire.packet_len();
        let pacer = Pacer::new(now, config.profile.rate.rate(packet_len), packet_len);
        Self {
            config,
            now,
            started: false,
            finished: false,
            done: false,
            members: BTreeMap::new(),
            queue: VecDeque::new(),
            last: None,
            held: Held::default(),
            keep_until: Timestamp::MAX,
            pacer,
            burst_left: 0,
            burst_bytes: 0,
            packet: 0,
            group: GroupEstimate::default(),
            period_at: now,
            idle_at: None,
            replies: Replies::default(),
            events: VecDeque::new(),
            stats: SenderStats::default(),
        }
    }

    fn advance(&mut self, now: Timestamp) {
        debug_assert!(now >= self.now, "time ran backwards");
        self.now = now;
    }

    // Commands.

    /// Begins to send.
    pub fn start(&mut self, now: Timestamp) {
        self.advance(now);
        if !self.started {
            self.started = true;
            let packet_len = self.wire().packet_len();
            self.pacer = Pacer::new(now, self.config.profile.rate.rate(packet_len), packet_len);
            self.period_at = now + self.config.profile.rate.period();
        }
    }

    /// Offers a product. False when it is too long for the profile, or too many are offered.
    pub fn offer(&mut self, now: Timestamp, offer: Offer) -> bool {
        self.advance(now);
        let Some(segments) = segments(offer.size, self.wire().segment_len()) else { return false };
        let fits = u32::try_from(offer.size).is_ok()
            && self.queue.len() + self.held.open.len() < OFFERED_MAX;
        if fits {
            self.last = Some(offer.product);
            let (begun, next, waiting) = (false, 0, BTreeSet::new());
            let (ended, asked, due) = (None, now, now);
            let open = Open { offer, segments, begun, next, ended, asked, due, waiting };
            self.queue.push_back(open);
            self.greet();
        }
        fits
    }

    /// Nothing more will be offered.
    pub fn finish(&mut self, now: Timestamp) {
        self.advance(now);
        self.finished = true;
        self.release();
    }

    /// A receiver's connection is there. False: too many are.
    pub fn connect(&mut self, now: Timestamp, id: ReceiverId) -> bool {
        self.advance(now);
        if self.members.len() >= MEMBERS_MAX {
            let gone = self.members.iter().filter(|(_, member)| member.report.gone);
            let least = gone
                .min_by_key(|(id, Member { report, .. })| (report.products, report.asked, **id));
            let Some(least) = least.map(|(id, _)| *id) else { return false };
            self.members.remove(&least);
        }
        let report = MemberReport::default();
        self.members.insert(id, Member { report, joined: false, greeted: false, ready: true });
        self.greet();
        if !self.wire().greets() {
            self.join(id, false);
        }
        true
    }

    /// A receiver's connection is closed.
    pub fn disconnect(&mut self, now: Timestamp, id: ReceiverId) {
        self.advance(now);
        if let Some(member) = self.members.get_mut(&id) {
            member.report.gone = true;
            member.joined = false;
        }
        self.config.profile.recovery.forget_receiver(id);
        self.replies.forget(id);
        if let Some(open) = self.queue.front_mut() {
            open.waiting.remove(&id);
        }
        self.held.forget_receiver(id);
        self.release();
    }

    /// Whether a receiver's connection takes more now.
    pub fn set_ready(&mut self, now: Timestamp, id: ReceiverId, ready: bool) {
        self.advance(now);
        if let Some(member) = self.members.get_mut(&id) {
            member.ready = ready;
        }
    }

    // Inputs.

    /// A datagram of a receiver.
    pub fn handle_datagram(
        &mut self,
        now: Timestamp,
        from: ReceiverId,
        bytes: &[u8],
    ) -> Result<(), ParseError> {
        self.handle(now, from, Via::Datagram, bytes)
    }

    /// A whole message of a receiver's connection.
    pub fn handle_stream(
        &mut self,
        now: Timestamp,
        from: ReceiverId,
        bytes: &[u8],
    ) -> Result<(), ParseError> {
        self.handle(now, from, Via::Stream, bytes)
    }

    fn handle(
        &mut self,
        now: Timestamp,
        from: ReceiverId,
        via: Via,
        bytes: &[u8],
    ) -> Result<(), ParseError> {
        self.advance(now);
        let parsed = self.wire().parse(via, bytes);
        if parsed.is_err() {
            self.stats.malformed += 1;
        }
        match parsed?.0 {
            Message::Status(status) => {
                self.stats.statuses += 1;
                self.group.on_status();
                let busy = self.idle_at.is_none_or(|at| now.since(at) > REPORT_SPAN);
                if status.rate > 0.0 && busy {
                    self.config.profile.rate.on_report(from, status.rate);
                }
                let naks = status.naks.iter().map(|nak| *nak..nak.saturating_add(1));
                self.request(from, status.product, naks);
            }
            Message::Request { product, segments } => {
                // Only members may ask (Cooperstock 1996, footnote 3).
                if self.members.get(&from).is_some_and(|member| member.joined) {
                    self.request(from, product, segments.into_iter());
                } else {
                    self.stats.requests_idle += 1;
                }
            }
            Message::BeginRequest { product } => {
                let begin = self.find(product).map(|open| open.begin(true));
                self.reply(from, begin.map_or(Message::Rejected { product }, Message::Begin));
            }
            Message::EndRequest { product } => match self.find(product).map(|open| open.ended) {
                Some(None) => {}
                Some(Some(_)) => self.reply(from, Message::End { product, repair: true }),
                None => self.reply(from, Message::Rejected { product }),
            },
            Message::Complete { product } => self.complete(from, product),
            Message::Join { port } => {
                if let Some(member) = self.members.get_mut(&from) {
                    member.report.port = Some(port);
                    self.join(from, true);
                }
            }
            // What only a sender says.
            Message::Welcome(_)
            | Message::Begin(_)
            | Message::Data(_)
            | Message::End { .. }
            | Message::Rejected { .. } => self.stats.malformed += 1,
        }
        Ok(())
    }

    /// What is due by time alone.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.advance(now);
        if self.started && now >= self.period_at + PERIOD_SLACK {
            self.end_period();
        }
        self.release();
    }

    // Outputs.

    /// The next packet to leave now; its header is in `out`.
    pub fn poll_transmit(&mut self, now: Timestamp, out: &mut Vec<u8>) -> Option<Transmit> {
        self.advance(now);
        out.clear();
        if let Some(transmit) = self.next_reply(out) {
            return Some(transmit);
        }
        if !self.started {
            return None;
        }
        if self.burst_left == 0 {
            if self.pacer.next_send() > now {
                return None;
            }
            self.burst_left = self.pacer.burst_packets();
        }
        let transmit = self.next_repair(out).or_else(|| self.next_new(out));
        let Some(transmit) = transmit else {
            if self.queue.is_empty() {
                self.idle_at = Some(now);
            }
            self.end_burst();
            self.release();
            return None;
        };
        let len = out.len() as u64 + transmit.body.map_or(0, |body| u64::from(body.len));
        self.count(transmit.to, len);
        self.burst_bytes += len;
        self.burst_left -= 1;
        if self.burst_left == 0 {
            self.end_burst();
        }
        if now > self.period_at {
            self.end_period();
        }
        Some(transmit)
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to be called by time alone.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        if !self.started || self.done {
            return None;
        }
        let busy =
            !self.queue.is_empty() || self.config.profile.recovery.has_next(&ready(&self.members));
        let pace = if busy { self.pacer.next_send() } else { Timestamp::MAX };
        Some(pace.min(self.period_at + PERIOD_SLACK).min(self.keep_until))
    }

    /// The receivers with a connection, that have joined or had.
    pub fn members(&self) -> impl Iterator<Item = (ReceiverId, &MemberReport)> {
        self.members.iter().map(|(id, member)| (*id, &member.report))
    }

    /// One of them.
    pub fn member(&self, id: ReceiverId) -> Option<&MemberReport> {
        self.members.get(&id).map(|member| &member.report)
    }

    /// How many have joined and not gone.
    pub fn joined(&self) -> usize {
        self.members.values().filter(|member| member.joined).count()
    }

    /// Those who get a copy each.
    pub fn joined_ids(&self) -> impl Iterator<Item = ReceiverId> {
        self.members.iter().filter(|(_, member)| member.joined).map(|(id, _)| *id)
    }

    /// How to cut what comes on a connection.
    pub fn wire(&self) -> &dyn Wire {
        &*self.config.profile.wire
    }

    /// The rate now, of datagrams' payload.
    pub fn rate(&self) -> Rate {
        self.pacer.rate()
    }

    /// How many receivers there seem to be, where they do not say.
    pub const fn group(&self) -> &GroupEstimate {
        &self.group
    }

    /// Counters.
    pub const fn stats(&self) -> &SenderStats {
        &self.stats
    }

    // What is inside.

    /// What a newcomer is told: the product that is being sent.
    fn greeting(&self) -> Option<Message> {
        let begin = self.held.open.values().chain(self.queue.front()).next()?.begin(false);
        let SenderConfig { mode, group, .. } = self.config;
        Some(Message::Welcome(Welcome { begin, mode, group }))
    }

    /// Tells those who have come of the product that is being sent, once there is one.
    fn greet(&mut self) {
        let Some(welcome) = self.greeting().filter(|_| self.wire().greets()) else { return };
        for (id, member) in self.members.iter_mut().filter(|(_, member)| !member.greeted) {
            member.greeted = true;
            self.replies.push(*id, welcome.clone());
        }
    }

    /// Takes part from now on; `told`: it knows of the product that is being sent.
    fn join(&mut self, id: ReceiverId, told: bool) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.joined = !member.report.gone;
        let held = self.held.open.values_mut().filter(|_| told);
        for open in self.queue.front_mut().filter(|open| open.begun).into_iter().chain(held) {
            open.waiting.insert(id);
        }
    }

    /// A product of which something was sent, and which is not released.
    fn find(&mut self, product: u32) -> Option<&mut Open> {
        let current = self.queue.front_mut().filter(|o| o.begun && o.offer.product == product);
        current.or_else(|| self.held.open.get_mut(&product))
    }

    fn reply(&mut self, to: ReceiverId, message: Message) {
        if self.members.contains_key(&to) {
            self.replies.push(to, message);
        }
    }

    /// Serves what has been sent before, of what is asked for.
    fn request(
        &mut self,
        from: ReceiverId,
        product: u32,
        wanted: impl Iterator<Item = Range<u32>>,
    ) {
        let Some(next) = self.find(product).map(|open| open.next) else {
            self.reply(from, Message::Rejected { product });
            return;
        };
        // Each wire has a limit on ranges; their lengths are held by what has been sent.
        let sent = wanted.map(|range| range.start..range.end.min(next)).filter(|r| !r.is_empty());
        let sent: Vec<Range<u32>> = sent.collect();
        if sent.is_empty() {
            return;
        }
        let recovery = &mut self.config.profile.recovery;
        let (mut new, mut refused) = (0, false);
        for range in sent {
            match recovery.on_request(from, product, range) {
                Some(more) => new += more,
                None => refused = true,
            }
        }
        if refused {
            // It may not ask again. Where the wire has no such answer, it does.
            self.reply(from, Message::Rejected { product });
        }
        let member = self.members.get_mut(&from);
        let is_member = member.is_some();
        if let Some(member) = member {
            member.report.asked += u64::from(new);
        }
        let now = self.now;
        if let Some(open) = self.find(product) {
            open.asked = now;
            if is_member {
                open.waiting.insert(from);
            }
        }
        if new == 0 {
            self.stats.requests_idle += 1;
            return;
        }
        self.stats.requests += 1;
        self.config.profile.rate.on_request(self.now);
        self.apply_rate();
    }

    fn complete(&mut self, from: ReceiverId, product: u32) {
        let now = self.now;
        let Some(open) = self.find(product) else { return };
        open.waiting.remove(&from);
        if open.waiting.is_empty() {
            self.held.unneeded.insert(product);
        }
        let Some(member) = self.members.get_mut(&from) else { return };
        member.report.completed = Some(now);
        member.report.products += 1;
        self.events.push_back(Event::Complete(from, product));
        self.release();
    }

    /// What a full packet takes at the present rate.
    fn packet_time(&self) -> Duration {
        self.pacer.rate().time_for(u64::from(self.wire().packet_len()))
    }

    fn apply_rate(&mut self) {
        let rate = self.config.profile.rate.rate(self.wire().packet_len());
        if rate > self.pacer.rate() {
            self.held.look_at_all(self.now);
        }
        self.pacer.set_rate(rate.max(Rate::from_bps(1)));
    }

    fn end_period(&mut self) {
        self.period_at = self.now + self.config.profile.rate.period();
        self.group.on_period();
        if let Some(line) = self.config.profile.rate.on_period(self.now) {
            self.events.push_back(Event::Rate(line));
        }
        self.apply_rate();
    }

    fn end_burst(&mut self) {
        if self.burst_bytes > 0 {
            self.pacer.on_sent(self.now, self.burst_bytes);
        }
        (self.burst_bytes, self.burst_left) = (0, 0);
    }

    fn count(&mut self, to: To, len: u64) {
        match to {
            To::Stream(_) => self.stats.stream_bytes += len,
            To::Group | To::Datagram(_) => self.stats.datagram_bytes += len,
            To::Each => self.stats.datagram_bytes += len * self.joined() as u64,
        }
    }

    fn next_reply(&mut self, out: &mut Vec<u8>) -> Option<Transmit> {
        while let Some((id, message)) = self.replies.next(ready(&self.members)) {
            if self.wire().emit(&message, 0, out) {
                self.count(To::Stream(id), out.len() as u64);
                return Some(Transmit { to: To::Stream(id), body: None });
            }
        }
        None
    }

    fn next_repair(&mut self, out: &mut Vec<u8>) -> Option<Transmit> {
        let recovery = &mut self.config.profile.recovery;
        let Repair { to, product, segment } = recovery.next(&ready(&self.members))?;
        let now = self.now;
        let open = self.find(product)?;
        open.asked = now;
        let size = open.offer.size;
        let to = match to {
            None => self.everybody(),
            Some((id, Via::Datagram)) => To::Datagram(id),
            Some((id, Via::Stream)) => To::Stream(id),
        };
        self.stats.repairs += 1;
        Some(self.segment(product, size, segment, true, to, out))
    }

    const fn everybody(&self) -> To {
        match self.config.mode {
            Mode::Unicast => To::Each,
            Mode::Multicast | Mode::Broadcast => To::Group,
        }
    }

    fn next_new(&mut self, out: &mut Vec<u8>) -> Option<Transmit> {
        loop {
            let (now, to, packet) = (self.now, self.everybody(), self.packet_time());
            let nobody = self.config.profile.recovery.knows_receivers() && self.joined() == 0;
            let joined: BTreeSet<ReceiverId> = match self.queue.front() {
                Some(open) if !open.begun => self.joined_ids().collect(),
                _ => BTreeSet::new(),
            };
            let open = self.queue.front_mut()?;
            let (product, size) = (open.offer.product, open.offer.size);
            let message = if !open.begun {
                (open.begun, open.waiting) = (true, joined);
                if nobody {
                    // There is nobody to send to.
                    open.next = open.segments;
                }
                Message::Begin(open.begin(false))
            } else if open.next < open.segments {
                let segment = open.next;
                open.next += 1;
                self.stats.segments += 1;
                return Some(self.segment(product, size, segment, false, to, out));
            } else {
                (open.ended, open.asked) = (Some(now), now);
                let keep = self.config.profile.recovery.keep_until(now, now, packet);
                self.keep_until = self.keep_until.min(keep);
                let open = self.queue.pop_front()?;
                self.held.insert(product, open, keep);
                Message::End { product, repair: false }
            };
            if !nobody && self.wire().emit(&message, 0, out) {
                return Some(Transmit { to, body: None });
            }
        }
    }

    fn segment(
        &mut self,
        product: u32,
        size: u64,
        segment: u32,
        repair: bool,
        to: To,
        out: &mut Vec<u8>,
    ) -> Transmit {
        let segment_len = self.wire().segment_len();
        let len = segment_bytes(size, segment_len, segment);
        let (packet, clients) = (self.packet, self.group.clients());
        let data = Data { product, segment, packet, repair, size: Some(size), clients };
        self.wire().emit(&Message::Data(data), len, out);
        self.packet = self.packet.wrapping_add(1);
        self.group.on_packet();
        let offset = u64::from(segment) * u64::from(segment_len);
        Transmit { to, body: Some(Body { product, offset, len, segment, repair }) }
    }
}

impl Open {
    fn begin(&self, repair: bool) -> Begin {
        let Offer { product, size, offered_unix_ns, ref metadata } = self.offer;
        Begin { product, size, offered_unix_ns, metadata: metadata.clone(), repair }
    }
}

/// Whose connection takes more.
fn ready(members: &BTreeMap<ReceiverId, Member>) -> impl Fn(ReceiverId) -> bool {
    |id| members.get(&id).is_some_and(|member| member.ready)
}
