//! Other senders on this machine and on the stream's network: they hear what this one takes, and it hears them
//! (`docs/protocol.md#RATE-6`). The receivers of streams that come to one network pass on what their senders say.
//!
//! Everything here may fail, and the session goes on: it only divides a link with others less evenly.

use super::send::StreamOut;
use crate::{
    Group, Interface, MulticastReceiver, MulticastSender, RecvBatch, RecvOptions, SendOptions,
};
use downpour_proto::wire::Presence;
use downpour_proto::{Duration, Receiver, Sender, Timestamp};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where senders meet. Sessions' own groups never end in 0.
const SENDERS: Meeting =
    (Ipv4Addr::new(239, 192, 28, 0), Ipv6Addr::new(0xff18, 0, 0, 0, 0, 0, 0x1c, 0));
/// Where receivers do: what one sends another need not hear that only receives, for a link has two directions.
const RECEIVERS: Meeting =
    (Ipv4Addr::new(239, 192, 29, 0), Ipv6Addr::new(0xff18, 0, 0, 0, 0, 0, 0x1d, 0));
/// The UDP port on which all of a network meet, whatever their sessions' ports.
pub const MEETING_PORT: u16 = 28_819;
/// How often a sender that hears others says that it is there, and one that hears nobody.
const TELL_EVERY: Duration = Duration::from_millis(100);
const TELL_SELDOM: Duration = Duration::from_secs(1);
/// Who has heard others within this time tells often.
const HEARD_WITHIN: Duration = Duration::from_secs(3);
/// Bytes that may wait: one datagram from some hundred neighbours.
const BUFFER_LEN: usize = 64 << 10;

type Meeting = (Ipv4Addr, Ipv6Addr);

pub(super) struct Neighbours {
    places: Places,
    /// Where the stream goes, if not to a group.
    peer: Option<IpAddr>,
    heard: Option<Timestamp>,
    tell_at: Timestamp,
}

/// Receivers of other sessions on this machine and on the network by which the stream comes.
pub(super) struct Bystanders(Option<Places>);

impl Bystanders {
    /// Nothing is opened before there is something to tell.
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// What the sender says, who is there.
    pub(super) fn tell(&mut self, sender: IpAddr, presence: Presence) {
        let places = self.0.get_or_insert_with(|| {
            let mut places = Places::on_this_machine(RECEIVERS);
            places.and_towards(sender);
            places
        });
        places.tell(presence);
    }

    /// Hears what the senders of others say.
    pub(super) fn meet(&self, now: Timestamp, machine: &mut Receiver, batch: &mut RecvBatch) {
        if let Some(places) = &self.0 {
            places.hear(batch, |presence| machine.on_neighbour(now, presence));
        }
    }
}

/// A network on which they meet.
struct Place {
    inbound: MulticastReceiver,
    outbound: MulticastSender,
}

impl Place {
    /// `None` where the kernel does not let it.
    fn open(
        meeting: Meeting,
        interface: &Interface,
        is_ipv4: bool,
        options: &SendOptions,
    ) -> Option<Self> {
        let address: IpAddr = if is_ipv4 { meeting.0.into() } else { meeting.1.into() };
        let group = Group::new((address, MEETING_PORT).into(), None).ok()?;
        let buffer = RecvOptions { buffer_len: BUFFER_LEN };
        Some(Self {
            inbound: MulticastReceiver::join(&group, interface, &buffer).ok()?,
            outbound: MulticastSender::open(&group, interface, options).ok()?,
        })
    }
}

/// This machine, and a network.
struct Places {
    meeting: Meeting,
    open: Vec<Place>,
    message: Vec<u8>,
}

impl Places {
    fn on_this_machine(meeting: Meeting) -> Self {
        let mut open = Vec::new();
        let all = Interface::all().unwrap_or_default();
        if let Some(own) = all.into_iter().find(|i| i.is_loopback && i.is_up) {
            let is_ipv4 = own.address_for(meeting.0.into()).is_some();
            open.extend(Place::open(meeting, &own, is_ipv4, &SendOptions::default()));
        }
        Self { meeting, open, message: Vec::new() }
    }

    fn and_on(&mut self, interface: &Interface, is_ipv4: bool, options: SendOptions) {
        if !interface.is_loopback {
            // This machine's are told already, if they could be.
            let options = SendOptions { looped: self.open.is_empty(), ..options };
            self.open.extend(Place::open(self.meeting, interface, is_ipv4, &options));
        }
    }

    /// And on the network by which that one is reached, no further.
    fn and_towards(&mut self, peer: IpAddr) {
        if let Ok(interface) = Interface::towards(peer.to_canonical()) {
            self.and_on(&interface, peer.to_canonical().is_ipv4(), SendOptions::default());
        }
    }

    /// Gives what has come. A flood costs one receive call for each place.
    fn hear(&self, batch: &mut RecvBatch, mut on_presence: impl FnMut(Presence)) {
        for place in &self.open {
            if place.inbound.recv(batch).is_ok_and(|received| received > 0) {
                let told = batch.datagrams().filter_map(|d| Presence::parse(d.bytes).ok());
                told.for_each(&mut on_presence);
            }
        }
    }

    fn tell(&mut self, presence: Presence) {
        self.message.clear();
        presence.emit(&mut self.message);
        for place in &self.open {
            // Lost, as any datagram may be: there will be another.
            let _ = place.outbound.send(&self.message, self.message.len());
        }
    }
}

impl Neighbours {
    /// Among those of this machine and, if the stream goes to a group, on its interface and over as many routers.
    pub(super) fn open(out: Option<&StreamOut>) -> Self {
        let mut places = Places::on_this_machine(SENDERS);
        if let Some(out) = out {
            places.and_on(&out.interface, out.group.address().is_ipv4(), out.options);
        }
        Self { places, peer: None, heard: None, tell_at: Timestamp::ZERO }
    }

    /// The stream goes there: also among those on the network by which it leaves.
    pub(super) fn towards(&mut self, peer: IpAddr) {
        if self.peer.is_none() {
            self.peer = Some(peer);
            self.places.and_towards(peer);
        }
    }

    /// A receiver has passed on what another sender says.
    pub(super) fn on_passed(&mut self, now: Timestamp) {
        if self.is_alone(now) {
            // Who is new waits for an answer.
            self.tell_at = now;
        }
        self.heard = Some(now);
    }

    /// Tells and hears what is due.
    pub(super) fn meet(&mut self, now: Timestamp, machine: &mut Sender, batch: &mut RecvBatch) {
        let (own, was_alone) = (machine.stream(), self.is_alone(now));
        let heard = &mut self.heard;
        self.places.hear(batch, |presence| {
            if presence.stream != own {
                *heard = Some(now);
                machine.on_neighbour(now, presence);
            }
        });
        // Who is new waits for an answer.
        let is_new = was_alone && !self.is_alone(now);
        if now < self.tell_at && !is_new {
            return;
        }
        self.tell_at = now + if self.is_alone(now) { TELL_SELDOM } else { TELL_EVERY };
        if let Some(presence) = machine.tell() {
            self.places.tell(presence);
        }
    }

    fn is_alone(&self, now: Timestamp) -> bool {
        self.heard.is_none_or(|heard| now.since(heard) > HEARD_WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use super::{Bystanders, MEETING_PORT, Neighbours, SENDERS, TELL_SELDOM};
    use crate::session::StreamOut;
    use crate::{Clock, Group, Interest, Interface, RecvBatch, SendOptions, wait};
    use downpour_proto::rate::{Fixed, Load, RateController, RateSample, RateSummary};
    use downpour_proto::receiver::Event;
    use downpour_proto::wire::Kind;
    use downpour_proto::{
        Duration, Epoch, Geometry, PULL_SHARE_DEFAULT, Parity, Rate, Receiver, ReceiverConfig,
        ReceiverId, Rounds, Sender, SenderConfig, StreamId, Timestamp,
    };
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    /// How long datagrams may take before a test fails instead of going on, by a clock that is not the machines'.
    const HANG: Duration = Duration::from_secs(60);

    /// Tells a load, and notes whom it hears.
    #[derive(Debug)]
    struct Talker(Fixed, Load, Arc<Mutex<Vec<(StreamId, Load)>>>);

    impl RateController for Talker {
        fn on_sample(&mut self, _: Timestamp, _: &RateSample) {}
        fn on_tick(&mut self, _: Timestamp, _: u64) {}
        fn on_receiver_gone(&mut self, _: ReceiverId) {}
        fn on_neighbour(&mut self, _: Timestamp, who: StreamId, load: Load) {
            self.2.lock().unwrap().push((who, load));
        }
        fn load(&self) -> Option<Load> {
            Some(self.1)
        }
        fn rate(&self) -> Rate {
            self.0.rate()
        }
        fn set_ceiling(&mut self, _: Rate) {}
        fn limiting(&self) -> Option<ReceiverId> {
            Some(ReceiverId(1))
        }
        fn summary(&self) -> RateSummary {
            self.0.summary()
        }
    }

    type Heard = Arc<Mutex<Vec<(StreamId, Load)>>>;

    fn load(mbps: u64) -> Load {
        Load { rate: Rate::from_mbps(mbps), queue: Duration::from_millis(3) }
    }

    fn sender(id: u32, mbps: u64, heard: &Heard) -> Sender {
        let fixed = Fixed::new(Rate::from_mbps(mbps));
        let config = SenderConfig {
            geometry: Geometry::IPV4,
            stream: StreamId(id),
            epoch: Epoch(0),
            rate: Box::new(Talker(fixed, load(mbps), Arc::clone(heard))),
            recovery: Box::new(Parity::default()),
            initial_rtt: Duration::from_millis(1),
            window_blocks: 64,
            pull_share: PULL_SHARE_DEFAULT,
        };
        Sender::new(config, Timestamp::ZERO)
    }

    /// The receiver that limits the session of stream `id`.
    fn receiver(id: u32) -> Receiver {
        let config = ReceiverConfig {
            geometry: Geometry::IPV4,
            stream: StreamId(id),
            me: ReceiverId(1),
            feedback: Box::new(Rounds),
            partial_blocks: 8,
            pulls: 1,
            resume: false,
            on_stream: true,
            greets: false,
            products: false,
        };
        Receiver::new(config, 1, Timestamp::ZERO)
    }

    /// What the sender's machine sends now, to the receiver's.
    fn carry(now: Timestamp, from: &mut Sender, to: &mut Receiver) -> Vec<Kind> {
        let (mut message, mut kinds) = (Vec::new(), Vec::new());
        while let Some(transmit) = from.poll_transmit(now, &mut message) {
            to.handle_datagram(now, now, &transmit.header, &message).unwrap();
            kinds.push(transmit.header.kind);
        }
        kinds
    }

    #[test]
    fn senders_that_do_not_hear_one_another_are_told_by_their_receivers() {
        let heard = Heard::default();
        let (mut one, mut two) = (sender(0xc1, 80, &heard), sender(0xd2, 20, &heard));
        let (mut ones, mut twos) = (receiver(0xc1), receiver(0xd2));
        let (mut by_one, mut by_two) = (Bystanders::none(), Bystanders::none());
        let (mut batch, mut message) = (RecvBatch::new(), Vec::new());
        let (begun, mut now) = (Instant::now(), Timestamp::ZERO);
        one.start(now);
        two.start(now);
        let from = "127.0.0.1".parse().unwrap();
        while !heard.lock().unwrap().iter().any(|(who, _)| *who == StreamId(0xc1)) {
            assert!(begun.elapsed() < HANG, "{heard:?}");
            now = now + Duration::from_millis(500);
            one.handle_timeout(now);
            two.handle_timeout(now);
            let told = carry(now, &mut one, &mut ones);
            assert!(!told.contains(&Kind::Presence { receiver: None }), "nobody asked for it");
            one.tell();
            two.tell();
            now = now + Duration::from_millis(500);
            one.handle_timeout(now);
            two.handle_timeout(now);
            for (kinds, machine, bystanders) in [
                (carry(now, &mut one, &mut ones), &mut ones, &mut by_one),
                (carry(now, &mut two, &mut twos), &mut twos, &mut by_two),
            ] {
                assert_eq!(kinds[..2], [Kind::Presence { receiver: None }, Kind::Poll]);
                while let Some(event) = machine.poll_event() {
                    if let Event::Neighbour(presence) = event {
                        bystanders.tell(from, presence);
                    }
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            by_two.meet(now, &mut twos, &mut batch);
            while let Some((header, _)) = twos.poll_transmit(now, &mut message) {
                if header.kind == (Kind::Presence { receiver: Some(ReceiverId(1)) }) {
                    let other = ReceiverId(2);
                    assert_eq!(two.handle_presence(now, other, &message), Ok(false));
                    assert_eq!(two.handle_presence(now, ReceiverId(1), &message), Ok(true));
                    assert!(two.handle_presence(now, ReceiverId(1), &message[1..]).is_err());
                }
            }
        }
        // Others of this machine are heard, too.
        assert!(heard.lock().unwrap().contains(&(StreamId(0xc1), load(80))), "{heard:?}");
    }

    #[test]
    fn senders_on_one_machine_hear_one_another_and_no_nonsense() {
        let lo = Interface::named("lo").unwrap();
        let group = Group::new("239.255.72.1:17072".parse().unwrap(), None).unwrap();
        let out = StreamOut { group, interface: lo, options: SendOptions::default() };
        let heard = Heard::default();
        let (mut one, mut two) = (sender(0xa1, 80, &heard), sender(0xb2, 20, &heard));
        let (mut ones, mut twos) = (Neighbours::open(Some(&out)), Neighbours::open(None));
        let mut batch = RecvBatch::new();
        let clock = Clock::start();
        // A stranger on the network talks nonsense.
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        for nonsense in
            [&b""[..], b"downpour", &[0xff; 1400], b"downpour\0\0\0\x02aaaaaaaaaaaaaaaa"]
        {
            stranger.send_to(nonsense, (SENDERS.0, MEETING_PORT)).unwrap();
        }
        let has_heard = |id| heard.lock().unwrap().iter().any(|(who, _)| *who == StreamId(id));
        let (begun, mut now) = (Instant::now(), Timestamp::ZERO);
        while !(has_heard(0xa1) && has_heard(0xb2)) {
            assert!(begun.elapsed() < HANG, "{heard:?}");
            now = now + TELL_SELDOM;
            ones.meet(now, &mut one, &mut batch);
            twos.meet(now, &mut two, &mut batch);
            let deadline = clock.now() + Duration::from_millis(500);
            wait(&clock, deadline, &[Interest::Read(ones.places.open[0].inbound.as_fd())]).unwrap();
        }
        let heard = heard.lock().unwrap();
        let told = |id| heard.iter().find(|(who, _)| *who == StreamId(id)).unwrap().1;
        assert_eq!((told(0xa1), told(0xb2)), (load(80), load(20)));
    }
}
