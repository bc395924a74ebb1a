//! Other senders on the stream's network: they hear what this one takes, and it hears them (`docs/protocol.md#RATE-6`).
//!
//! Everything here may fail, and the session goes on: it only divides a link with others less evenly.

use super::send::StreamOut;
use crate::{Group, MulticastReceiver, MulticastSender, RecvBatch, RecvOptions};
use downpour_proto::wire::Presence;
use downpour_proto::{Duration, Sender, Timestamp};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where all senders of a network meet, whatever their sessions' ports. Sessions' own groups never end in 0.
const MEETING_V4: Ipv4Addr = Ipv4Addr::new(239, 192, 28, 0);
const MEETING_V6: Ipv6Addr = Ipv6Addr::new(0xff18, 0, 0, 0, 0, 0, 0x1c, 0);
const PORT: u16 = 28_820;
/// How often a sender that hears others says that it is there, and one that hears nobody.
const TELL_EVERY: Duration = Duration::from_millis(100);
const TELL_SELDOM: Duration = Duration::from_secs(1);
/// Who has heard others within this time tells often.
const HEARD_WITHIN: Duration = Duration::from_secs(3);
/// Bytes that may wait: one datagram from some hundred neighbours.
const BUFFER_LEN: usize = 64 << 10;

pub(super) struct Neighbours {
    inbound: MulticastReceiver,
    outbound: MulticastSender,
    heard: Option<Timestamp>,
    tell_at: Timestamp,
    message: Vec<u8>,
}

impl Neighbours {
    /// On the stream's interface, over as many routers; `None` where the kernel does not let it.
    pub(super) fn open(out: &StreamOut) -> Option<Self> {
        let address: IpAddr =
            if out.group.address().is_ipv4() { MEETING_V4.into() } else { MEETING_V6.into() };
        let group = Group::new((address, PORT).into(), None).ok()?;
        let options = RecvOptions { buffer_len: BUFFER_LEN };
        Some(Self {
            inbound: MulticastReceiver::join(&group, &out.interface, &options).ok()?,
            outbound: MulticastSender::open(&group, &out.interface, &out.options).ok()?,
            heard: None,
            tell_at: Timestamp::ZERO,
            message: Vec::new(),
        })
    }

    /// Tells and hears what is due. A flood costs one receive call.
    pub(super) fn meet(&mut self, now: Timestamp, machine: &mut Sender, batch: &mut RecvBatch) {
        if self.inbound.recv(batch).is_ok_and(|received| received > 0) {
            let own = machine.stream();
            let told = batch.datagrams().filter_map(|d| Presence::parse(d.bytes).ok());
            for presence in told.filter(|told| told.stream != own) {
                self.heard = Some(now);
                machine.on_neighbour(now, presence);
            }
        }
        if now < self.tell_at {
            return;
        }
        let is_alone = self.heard.is_none_or(|heard| now.since(heard) > HEARD_WITHIN);
        self.tell_at = now + if is_alone { TELL_SELDOM } else { TELL_EVERY };
        if let Some(presence) = machine.presence() {
            self.message.clear();
            presence.emit(&mut self.message);
            // Lost, as any datagram may be: there will be another.
            let _ = self.outbound.send(&self.message, self.message.len());
        }
    }
}
