//! Where a stream leaves: to a group, or to the one receiver that has greeted (`docs/protocol.md#WAN-5`).
//!
//! What leaves towards a receiver goes by the feedback socket, so that it comes back the way on which the greeting
//! went out, through whatever translates addresses there.

use super::send::SendSetup;
use crate::{Interest, MulticastSender, UdpError, UnicastSocket};
use downpour_proto::ReceiverId;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

pub(super) enum Outlet {
    /// All receivers pull.
    Nowhere,
    Group(MulticastSender),
    /// The receiver that greeted first, and where it was heard last.
    Greeter(Option<(ReceiverId, SocketAddr)>),
}

impl Outlet {
    pub(super) fn open(setup: &SendSetup) -> Result<Self, UdpError> {
        Ok(match &setup.stream {
            Some(out) => {
                Self::Group(MulticastSender::open(&out.group, &out.interface, &out.options)?)
            }
            None if setup.unicast => Self::Greeter(None),
            None => Self::Nowhere,
        })
    }

    /// An authentic message came from there. `has_ended` tells of a receiver whether it needs nothing any more.
    pub(super) fn heard(
        &mut self,
        receiver: ReceiverId,
        from: SocketAddr,
        has_ended: impl FnOnce(ReceiverId) -> bool,
    ) {
        let Self::Greeter(greeter) = self else { return };
        if greeter.is_none_or(|(other, _)| other == receiver || has_ended(other)) {
            *greeter = Some((receiver, from));
        }
    }

    /// Where it goes, if not to a group.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Greeter(greeter) => greeter.map(|(_, to)| to),
            Self::Nowhere | Self::Group(_) => None,
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
            Self::Group(socket) => socket.send(bytes, segment_len),
            Self::Greeter(Some((_, to))) => feedback.send_segments(bytes, segment_len, *to),
            Self::Greeter(None) | Self::Nowhere => Ok(bytes.len()),
        }
    }

    /// What to wait for when the kernel's buffer is full.
    pub(super) fn interest<'a>(&'a self, feedback: &'a UnicastSocket) -> Interest<'a> {
        match self {
            Self::Group(socket) => Interest::ReadWrite(socket.as_fd()),
            Self::Greeter(_) | Self::Nowhere => Interest::ReadWrite(feedback.as_fd()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Outlet;
    use downpour_proto::ReceiverId;
    use std::net::SocketAddr;

    #[test]
    fn a_stream_follows_its_receiver_and_no_other_while_that_one_lives() {
        let at = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let mut outlet = Outlet::Greeter(None);
        let to = |outlet: &Outlet| match outlet {
            Outlet::Greeter(to) => *to,
            _ => None,
        };
        outlet.heard(ReceiverId(1), at(1), |_| false);
        outlet.heard(ReceiverId(2), at(2), |_| false);
        assert_eq!(to(&outlet), Some((ReceiverId(1), at(1))));
        outlet.heard(ReceiverId(1), at(3), |_| false);
        assert_eq!(to(&outlet), Some((ReceiverId(1), at(3))), "it has moved");
        outlet.heard(ReceiverId(2), at(2), |_| true);
        assert_eq!(to(&outlet), Some((ReceiverId(2), at(2))));
    }
}
