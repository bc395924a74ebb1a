//! Other senders on this machine and on the stream's network: they hear what this one takes, and it hears them
//! (`docs/protocol.md#RATE-6`).
//!
//! Everything here may fail, and the session goes on: it only divides a link with others less evenly.

use super::send::StreamOut;
use crate::{
    Group, Interface, MulticastReceiver, MulticastSender, RecvBatch, RecvOptions, SendOptions,
};
use downpour_proto::wire::Presence;
use downpour_proto::{Duration, Sender, Timestamp};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Sessions' own groups never end in 0.
const MEETING_V4: Ipv4Addr = Ipv4Addr::new(239, 192, 28, 0);
const MEETING_V6: Ipv6Addr = Ipv6Addr::new(0xff18, 0, 0, 0, 0, 0, 0x1c, 0);
/// The UDP port on which all senders of a network meet, whatever their sessions' ports.
pub const MEETING_PORT: u16 = 28_819;
/// How often a sender that hears others says that it is there, and one that hears nobody.
const TELL_EVERY: Duration = Duration::from_millis(100);
const TELL_SELDOM: Duration = Duration::from_secs(1);
/// Who has heard others within this time tells often.
const HEARD_WITHIN: Duration = Duration::from_secs(3);
/// Bytes that may wait: one datagram from some hundred neighbours.
const BUFFER_LEN: usize = 64 << 10;

pub(super) struct Neighbours {
    places: Vec<Place>,
    heard: Option<Timestamp>,
    tell_at: Timestamp,
    message: Vec<u8>,
}

/// Where senders meet.
struct Place {
    inbound: MulticastReceiver,
    outbound: MulticastSender,
}

impl Place {
    /// `None` where the kernel does not let it.
    fn open(interface: &Interface, is_ipv4: bool, options: &SendOptions) -> Option<Self> {
        let address: IpAddr = if is_ipv4 { MEETING_V4.into() } else { MEETING_V6.into() };
        let group = Group::new((address, MEETING_PORT).into(), None).ok()?;
        let buffer = RecvOptions { buffer_len: BUFFER_LEN };
        Some(Self {
            inbound: MulticastReceiver::join(&group, interface, &buffer).ok()?,
            outbound: MulticastSender::open(&group, interface, options).ok()?,
        })
    }
}

impl Neighbours {
    /// Among those of this machine and, if the stream goes to a group, on its interface and over as many routers.
    pub(super) fn open(out: Option<&StreamOut>) -> Self {
        let mut places = Vec::new();
        let all = Interface::all().unwrap_or_default();
        if let Some(own) = all.into_iter().find(|i| i.is_loopback && i.is_up) {
            let is_ipv4 = own.address_for(MEETING_V4.into()).is_some();
            places.extend(Place::open(&own, is_ipv4, &SendOptions::default()));
        }
        if let Some(out) = out.filter(|out| !out.interface.is_loopback) {
            // This machine's are told already, if they could be.
            let options = SendOptions { looped: places.is_empty(), ..out.options };
            let is_ipv4 = out.group.address().is_ipv4();
            places.extend(Place::open(&out.interface, is_ipv4, &options));
        }
        Self { places, heard: None, tell_at: Timestamp::ZERO, message: Vec::new() }
    }

    /// Tells and hears what is due. A flood costs one receive call for each place.
    pub(super) fn meet(&mut self, now: Timestamp, machine: &mut Sender, batch: &mut RecvBatch) {
        let (own, was_alone) = (machine.stream(), self.is_alone(now));
        for place in &self.places {
            if !place.inbound.recv(batch).is_ok_and(|received| received > 0) {
                continue;
            }
            let told = batch.datagrams().filter_map(|d| Presence::parse(d.bytes).ok());
            for presence in told.filter(|told| told.stream != own) {
                self.heard = Some(now);
                machine.on_neighbour(now, presence);
            }
        }
        // Who is new waits for an answer.
        let is_new = was_alone && !self.is_alone(now);
        if now < self.tell_at && !is_new {
            return;
        }
        self.tell_at = now + if self.is_alone(now) { TELL_SELDOM } else { TELL_EVERY };
        if let Some(presence) = machine.presence() {
            self.message.clear();
            presence.emit(&mut self.message);
            for place in &self.places {
                // Lost, as any datagram may be: there will be another.
                let _ = place.outbound.send(&self.message, self.message.len());
            }
        }
    }

    fn is_alone(&self, now: Timestamp) -> bool {
        self.heard.is_none_or(|heard| now.since(heard) > HEARD_WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use super::{MEETING_PORT, MEETING_V4, Neighbours, TELL_SELDOM};
    use crate::session::StreamOut;
    use crate::{Clock, Group, Interest, Interface, RecvBatch, SendOptions, wait};
    use downpour_proto::rate::{Fixed, Load, RateController, RateSample, RateSummary};
    use downpour_proto::{
        Duration, Epoch, Geometry, PULL_SHARE_DEFAULT, Parity, Rate, ReceiverId, Sender,
        SenderConfig, StreamId, Timestamp,
    };
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::sync::{Arc, Mutex};

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
        fn sustainable(&self, _: ReceiverId) -> Option<Rate> {
            None
        }
        fn limiting(&self) -> Option<ReceiverId> {
            None
        }
        fn summary(&self) -> RateSummary {
            self.0.summary()
        }
    }

    #[test]
    fn senders_on_one_machine_hear_one_another_and_no_nonsense() {
        let lo = Interface::named("lo").unwrap();
        let group = Group::new("239.255.72.1:17072".parse().unwrap(), None).unwrap();
        let out = StreamOut { group, interface: lo, options: SendOptions::default() };
        let load = |mbps| Load { rate: Rate::from_mbps(mbps), queue: Duration::from_millis(3) };
        let heard = Arc::new(Mutex::new(Vec::new()));
        let sender = |id: u32, mbps, out| {
            let fixed = Fixed::new(Rate::from_mbps(mbps));
            let config = SenderConfig {
                geometry: Geometry::IPV4,
                stream: StreamId(id),
                epoch: Epoch(0),
                rate: Box::new(Talker(fixed, load(mbps), Arc::clone(&heard))),
                recovery: Box::new(Parity::default()),
                initial_rtt: Duration::from_millis(1),
                window_blocks: 64,
                pull_share: PULL_SHARE_DEFAULT,
            };
            (Sender::new(config, Timestamp::ZERO), Neighbours::open(out))
        };
        let ((mut one, mut ones), (mut two, mut twos)) =
            (sender(0xa1, 80, Some(&out)), sender(0xb2, 20, None));
        let mut batch = RecvBatch::new();
        let clock = Clock::start();
        // A stranger on the network talks nonsense.
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        for nonsense in
            [&b""[..], b"downpour", &[0xff; 1400], b"downpour\0\0\0\x02aaaaaaaaaaaaaaaa"]
        {
            stranger.send_to(nonsense, (MEETING_V4, MEETING_PORT)).unwrap();
        }
        let has_heard = |id| heard.lock().unwrap().iter().any(|(who, _)| *who == StreamId(id));
        let mut now = Timestamp::ZERO;
        while !(has_heard(0xa1) && has_heard(0xb2)) {
            assert!(now < Timestamp::ZERO + TELL_SELDOM * 20, "{heard:?}");
            now = now + TELL_SELDOM;
            ones.meet(now, &mut one, &mut batch);
            twos.meet(now, &mut two, &mut batch);
            let deadline = clock.now() + Duration::from_millis(500);
            wait(&clock, deadline, &[Interest::Read(ones.places[0].inbound.as_fd())]).unwrap();
        }
        let heard = heard.lock().unwrap();
        let told = |id| heard.iter().find(|(who, _)| *who == StreamId(id)).unwrap().1;
        assert_eq!((told(0xa1), told(0xb2)), (load(80), load(20)));
    }
}
