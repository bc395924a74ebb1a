//! `--path auto` at the sender: what its receiver gets is looked at, and the receiver moved between stream and pulls.
//!
//! It is moved as a straggler is (`docs/protocol.md#STRAG`); the receiver need not know why.

use super::endpoint::Shared;
use super::roster::Stage;
use downpour_proto::sender::Delivery;
use downpour_proto::transfer::{CONNECTIONS_FAR, Choice, Path, Seen};
use downpour_proto::{ReceiverId, Timestamp};
use downpour_transport::control::{DataPath, Event};
use downpour_transport::session::SendSnapshot;
use std::time::Instant;

/// The choice for the first receiver that takes the stream.
#[derive(Default)]
pub(super) struct Auto {
    choice: Option<(ReceiverId, Choice)>,
}

impl Auto {
    /// Looks at what came since `started`; `pulled` bytes in all were pulled.
    pub(super) fn look(
        &mut self,
        shared: &Shared,
        started: Instant,
        snapshot: &SendSnapshot,
        pulled: u64,
    ) {
        if shared.reply.path != DataPath::Auto {
            return;
        }
        let now = Timestamp::ZERO + started.elapsed();
        let on_stream =
            |id| snapshot.members.get(&id).is_some_and(|m| m.delivery == Delivery::Stream);
        let mut stand = shared.stand();
        if self.choice.is_none() {
            let ready = |(id, peer): &(ReceiverId, &super::roster::Peer)| {
                peer.stage == Stage::Ready && on_stream(*id)
            };
            let first = stand.roster.iter().find(ready);
            self.choice = first.map(|(id, _)| (id, Choice::new(now, CONNECTIONS_FAR)));
        }
        let Some((id, choice)) = &mut self.choice else { return };
        let Some(member) = snapshot.members.get(id) else { return };
        let symbol_len = u64::from(shared.reply.geometry.symbol_len);
        let (_, len) = shared.source.objects();
        let seen = Seen {
            stream_bytes: member.received * symbol_len,
            pull_bytes: pulled,
            loss: member.loss,
            rtt: member.rtt.unwrap_or(snapshot.grtt),
            left: len.map(|len| len.saturating_sub(shared.source.bytes_of(member.data_held))),
        };
        let change = choice.look(now, &seen);
        if let Some(why) = choice.take_why() {
            let at = now.since(Timestamp::ZERO).as_secs_f64();
            stand.notices.push(format!("auto, after {at:.1} s: {why}"));
        }
        let Some(peer) = stand.roster.find(*id) else { return };
        match change {
            None => return,
            Some(Path::Pull) => peer.tell(Event::LeaveGroup { reason: "TCP is tried".to_owned() }),
            Some(Path::Stream) => peer.tell(Event::ReturnToGroup),
        }
        let delivery = match change {
            Some(Path::Pull) => Delivery::Pull,
            _ => Delivery::Stream,
        };
        shared.driver.set_delivery(*id, delivery);
    }
}
