//! Where a stream leaves: to a group, or to the one receiver that has greeted (`docs/protocol.md#WAN-5`).
//!
//! What leaves towards a receiver goes by the feedback socket, from the address that was greeted, so that it comes back the
//! way on which the greeting went out, through whatever translates addresses there.
//!
//! When nothing can be sent to the group any more the outlet is opened anew, by its interface's name: one that was deleted
//! and made again is another one to the kernel.

use super::send::{SendSetup, StreamOut};
use crate::{Interest, Interface, MulticastSender, UdpError, UnicastSocket};
use downpour_proto::sender::Delivery;
use downpour_proto::{Duration, ReceiverId, Timestamp};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

pub(super) enum Outlet {
    /// All receivers pull.
    Nowhere,
    Group(MulticastSender, StreamOut),
    /// The receiver that greeted first.
    Greeter(Option<Greeter>),
}

/// Who has the stream's place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greeter {
    receiver: ReceiverId,
    /// Where it was heard last.
    at: SocketAddr,
    /// To which of our addresses that came.
    ours: Option<IpAddr>,
    /// And when.
    heard: Timestamp,
    /// It has said that the stream reaches it.
    follows: bool,
}

/// For so long after it was heard nobody takes a receiver's place: who has just greeted, and is about to say that it hears the
/// stream, needs nothing yet.
const HOLDS_FOR: Duration = Duration::from_millis(500);

impl Outlet {
    pub(super) fn open(setup: &SendSetup) -> Result<Self, UdpError> {
        Ok(match &setup.stream {
            Some(out) => {
                let socket = MulticastSender::open(&out.group, &out.interface, &out.options)?;
                Self::Group(socket, out.clone())
            }
            None if setup.unicast => Self::Greeter(None),
            None => Self::Nowhere,
        })
    }

    /// Opens the way to the group anew; where it leads from then on. As long as that cannot be, it stays as it is.
    pub(super) fn reopen(&mut self) -> Option<&StreamOut> {
        let Self::Group(socket, out) = self else { return None };
        let interface = Interface::named(&out.interface.name).ok()?;
        *socket = MulticastSender::open(&out.group, &interface, &out.options).ok()?;
        out.interface = interface;
        Some(out)
    }

    /// An authentic message came from there, to that address of ours. The place of one that needs nothing any more is taken, and
    /// that of one that pulls because the stream never reached it.
    pub(super) fn heard(
        &mut self,
        now: Timestamp,
        (receiver, at, ours): (ReceiverId, SocketAddr, Option<IpAddr>),
        delivery: impl FnOnce(ReceiverId) -> Delivery,
    ) {
        let Self::Greeter(greeter) = self else { return };
        let is_free = |other: &Greeter| {
            now.since(other.heard) >= HOLDS_FOR
                && match delivery(other.receiver) {
                    Delivery::Ended => true,
                    Delivery::Pull => !other.follows,
                    Delivery::Stream => false,
                }
        };
        let same = greeter.filter(|other| other.receiver == receiver);
        if same.is_some() || greeter.as_ref().is_none_or(is_free) {
            let follows = same.is_some_and(|same| same.follows);
            *greeter = Some(Greeter { receiver, at, ours, heard: now, follows });
        }
    }

    /// The receiver says that the stream reaches it.
    pub(super) fn follows(&mut self, receiver: ReceiverId) {
        let Self::Greeter(Some(greeter)) = self else { return };
        greeter.follows |= greeter.receiver == receiver;
    }

    /// Where it goes, if not to a group.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Greeter(greeter) => greeter.map(|greeter| greeter.at),
            Self::Nowhere | Self::Group(..) => None,
        }
    }

    /// How many of the bytes the kernel took. Without a place to go to they are dropped.
    pub(super) fn send(
        &self,
        feedback: &UnicastSocket,
        bytes: &[u8],
        segment_len: usize,
    ) -> io::Result<usize> {
        match self {
            Self::Group(socket, _) => socket.send(bytes, segment_len),
            Self::Greeter(Some(to)) => {
                match feedback.send_segments(bytes, segment_len, to.at, to.ours) {
                    // It may not be ours any more.
                    Err(_) if to.ours.is_some() => {
                        feedback.send_segments(bytes, segment_len, to.at, None)
                    }
                    sent => sent,
                }
            }
            Self::Greeter(None) | Self::Nowhere => Ok(bytes.len()),
        }
    }

    /// What to wait for when the kernel's buffer is full. Nobody reads what comes to a group's socket.
    pub(super) fn interest<'a>(&'a self, feedback: &'a UnicastSocket) -> Interest<'a> {
        match self {
            Self::Group(socket, _) => Interest::Write(socket.as_fd()),
            Self::Greeter(_) | Self::Nowhere => Interest::ReadWrite(feedback.as_fd()),
        }
    }
}

/// When the owner is told that nothing leaves.
const TELL_AFTER: Duration = Duration::from_secs(3);

/// How often the outlet is opened anew meanwhile.
const REOPEN_EVERY: Duration = Duration::from_secs(1);

/// A time in which the kernel has refused everything, or everything of full length: that needs more of an interface's MTU.
#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Timestamp>,
    reopened_at: Timestamp,
    told: bool,
    /// Something shorter was refused, too.
    short_fails: bool,
}

/// What is to be done when another send has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remedy {
    pub(super) tell: bool,
    pub(super) reopen: bool,
}

impl Outage {
    pub(super) fn on_failed(&mut self, now: Timestamp, full_length: bool) -> Remedy {
        self.short_fails |= !full_length;
        if self.since.is_none() {
            (self.since, self.reopened_at) = (Some(now), now);
        }
        let lasts = now.since(self.since.unwrap_or(now));
        let tell = lasts >= TELL_AFTER && !std::mem::replace(&mut self.told, lasts >= TELL_AFTER);
        let reopen = now.since(self.reopened_at) >= REOPEN_EVERY;
        if reopen {
            self.reopened_at = now;
        }
        Remedy { tell, reopen }
    }

    /// Something has left: whether the owner was told of the contrary.
    pub(super) fn on_sent(&mut self, full_length: bool) -> bool {
        (full_length || self.short_fails) && std::mem::take(self).told
    }
}

#[cfg(test)]
mod tests {
    use super::{HOLDS_FOR, Outage, Outlet, REOPEN_EVERY, Remedy, StreamOut, TELL_AFTER};
    use crate::{
        Clock, Datagram, Group, Interest, Interface, MulticastSender, RecvBatch, SendOptions,
        UnicastSocket, Woken, wait,
    };
    use downpour_proto::sender::Delivery;
    use downpour_proto::{Duration, ReceiverId, Timestamp};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
    use std::os::fd::AsFd as _;

    #[test]
    fn a_stream_follows_its_receiver_and_no_other_while_that_one_lives() {
        let at = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let mut outlet = Outlet::Greeter(None);
        let [one, two] = [1, 2].map(ReceiverId);
        let (now, later) = (Timestamp::ZERO, Timestamp::ZERO + HOLDS_FOR);
        outlet.heard(now, (one, at(1), None), |_| Delivery::Stream);
        outlet.heard(now, (two, at(2), None), |_| Delivery::Ended);
        assert_eq!(outlet.peer(), Some(at(1)), "it is about to say that it hears it");
        outlet.heard(later, (two, at(2), None), |_| Delivery::Stream);
        assert_eq!(outlet.peer(), Some(at(1)));
        outlet.heard(now, (one, at(3), None), |_| Delivery::Stream);
        assert_eq!(outlet.peer(), Some(at(3)), "it has moved");
        outlet.heard(later, (two, at(2), None), |_| Delivery::Ended);
        assert_eq!(outlet.peer(), Some(at(2)));
    }

    #[test]
    fn a_place_is_kept_by_who_was_moved_to_pulls_and_not_by_whom_the_stream_never_reached() {
        let at = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let mut outlet = Outlet::Greeter(None);
        let [one, two] = [1, 2].map(ReceiverId);
        let (now, later) = (Timestamp::ZERO, Timestamp::ZERO + HOLDS_FOR);
        outlet.heard(now, (one, at(1), None), |_| Delivery::Ended);
        outlet.follows(two);
        outlet.heard(later, (two, at(2), None), |_| Delivery::Pull);
        assert_eq!(outlet.peer(), Some(at(2)));
        outlet.follows(two);
        outlet.heard(later, (two, at(3), None), |_| Delivery::Stream);
        outlet.heard(later + HOLDS_FOR, (one, at(1), None), |_| Delivery::Pull);
        assert_eq!(outlet.peer(), Some(at(3)));
    }

    /// What has come by a socket.
    fn heard<'a>(socket: &UnicastSocket, batch: &'a mut RecvBatch) -> Datagram<'a> {
        let clock = Clock::start();
        let patience = clock.now() + Duration::from_secs(30);
        assert_eq!(
            wait(&clock, patience, &[Interest::Read(socket.as_fd())]).unwrap(),
            Woken::Ready
        );
        socket.recv(batch).unwrap();
        batch.datagrams().next().expect("a datagram")
    }

    /// The rules of a firewall there, and what translates addresses, let nothing else in.
    #[test]
    fn a_stream_leaves_from_the_address_that_was_greeted_while_that_is_ours() {
        let second = IpAddr::from([127, 0, 0, 2]);
        let (mut batch, now) = (RecvBatch::new(), Timestamp::ZERO);
        for any in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
            let Ok(feedback) = UnicastSocket::bind((any, 0).into(), 1 << 16) else {
                let name = "a_stream_leaves_from_the_address_that_was_greeted_while_that_is_ours";
                return crate::skipped::not_here(name, "no IPv6 here");
            };
            let to = SocketAddr::new(second, feedback.local_addr().unwrap().port());
            let receiver = UnicastSocket::towards(to, 1 << 16).unwrap();
            receiver.send(b"greeting", to).unwrap();
            let greeting = heard(&feedback, &mut batch);
            let (at, ours) = (*greeting.from, greeting.to);
            let mut outlet = Outlet::Greeter(None);
            let mut source = |ours| {
                outlet.heard(now, (ReceiverId(1), at, ours), |_| Delivery::Stream);
                assert_eq!(outlet.send(&feedback, b"stream", 6).unwrap(), 6);
                heard(&receiver, &mut batch).from.ip()
            };
            assert_eq!(source(ours), second, "{any}");
            let gone = IpAddr::from([198, 51, 100, 1]);
            assert_eq!(source(Some(gone)), IpAddr::from([127, 0, 0, 1]), "{any}");
        }
    }

    #[test]
    fn what_strays_to_a_groups_socket_wakes_nobody() {
        let group = Group::new(SocketAddr::from(([239, 255, 71, 20], 17_071)), None).unwrap();
        let (interface, options) = (Interface::named("lo").unwrap(), SendOptions::default());
        let socket = MulticastSender::open(&group, &interface, &options).unwrap();
        let outlet = Outlet::Group(socket, StreamOut { group, interface, options });
        let home = SocketAddr::from(([127, 0, 0, 1], 0));
        let feedback = UnicastSocket::bind(home, 1 << 16).unwrap();
        assert!(matches!(outlet.interest(&feedback), Interest::Write(_)));
    }

    #[test]
    fn an_outage_is_told_once_and_its_end_too() {
        let (mut outage, ms) = (Outage::default(), Duration::from_millis(1));
        let at = |after: Duration| Timestamp::ZERO + Duration::from_secs(7) + after;
        let nothing = Remedy { tell: false, reopen: false };
        assert_eq!(outage.on_failed(at(Duration::ZERO), true), nothing);
        assert_eq!(outage.on_failed(at(REOPEN_EVERY - ms), false), nothing);
        let reopen = Remedy { tell: false, reopen: true };
        assert_eq!(outage.on_failed(at(REOPEN_EVERY), true), reopen);
        assert_eq!(outage.on_failed(at(REOPEN_EVERY + ms), true), nothing);
        assert!(outage.on_failed(at(TELL_AFTER), true).tell);
        assert!(!outage.on_failed(at(TELL_AFTER * 2), true).tell);
        assert!(outage.on_sent(false) && !outage.on_sent(true));
        assert_eq!(outage.on_failed(at(TELL_AFTER * 3), true), nothing, "another one");
        assert!(!outage.on_sent(true), "it was short");
    }

    #[test]
    fn where_only_what_is_short_leaves_nothing_of_the_data_does() {
        let (mut outage, at) = (Outage::default(), |s| Timestamp::ZERO + Duration::from_secs(s));
        let told = (0..5).map(|s| {
            let remedy = outage.on_failed(at(s), true);
            assert!(!outage.on_sent(false), "a poll is not the stream");
            remedy.tell
        });
        assert_eq!(told.collect::<Vec<_>>(), [false, false, false, true, false]);
        assert!(outage.on_sent(true) && !outage.on_failed(at(9), true).tell);
    }
}
