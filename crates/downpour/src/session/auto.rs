//! `--path auto` at the sender: what its receiver gets is looked at, and the receiver moved between stream and pulls.
//!
//! It is moved as a straggler is (`docs/protocol.md#STRAG`); the receiver need not know why.

use super::endpoint::Shared;
use super::roster::{Roster, Stage};
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
        let Some((id, choice)) = self.choose(now, &mut stand.roster, on_stream) else { return };
        let Some(stats) = snapshot.members.get(id) else { return };
        let symbol_len = u64::from(shared.reply.geometry.symbol_len);
        let (_, len) = shared.source.objects();
        let seen = Seen {
            stream_bytes: stats.received * symbol_len,
            pull_bytes: pulled,
            loss: stats.loss,
            rtt: stats.rtt.unwrap_or(snapshot.grtt),
            left: len.map(|len| len.saturating_sub(shared.source.bytes_of(stats.data_held))),
        };
        let change = choice.look(now, &seen);
        if let Some(why) = choice.take_why() {
            let at = now.since(Timestamp::ZERO).as_secs_f64();
            stand.notices.push(format!("auto, after {at:.1} s: {why}"));
        }
        let Some(member) = stand.roster.find(*id) else { return };
        match change {
            None => return,
            Some(Path::Pull) => {
                member.tell(Event::LeaveGroup { reason: "TCP is tried".to_owned() })
            }
            Some(Path::Stream) => member.tell(Event::ReturnToGroup),
        }
        match change {
            Some(Path::Pull) => shared.driver.move_to_pull(*id),
            _ => shared.driver.set_delivery(*id, Delivery::Stream),
        }
    }

    /// The receiver that is looked at, until it ends. One that has come back has another number, and is measured anew.
    fn choose(
        &mut self,
        now: Timestamp,
        roster: &mut Roster,
        on_stream: impl Fn(ReceiverId) -> bool,
    ) -> Option<&mut (ReceiverId, Choice)> {
        self.choice.take_if(|(id, _)| roster.find(*id).is_none_or(|m| m.stage != Stage::Ready));
        if self.choice.is_none() {
            let first = roster.iter().find(|(id, m)| m.stage == Stage::Ready && on_stream(*id));
            self.choice = first.map(|(id, _)| (id, Choice::new(now, CONNECTIONS_FAR)));
        }
        self.choice.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::super::roster::{Newcomer, Roster};
    use super::Auto;
    use downpour_proto::{ReceiverId, Timestamp};
    use downpour_transport::control::{DataPath, InstanceId};
    use downpour_transport::identity::{Identity, PublicKey};

    fn join(roster: &mut Roster, node: PublicKey, instance: u8) -> ReceiverId {
        let instance = InstanceId::from_bytes([instance; 16]);
        let addr = "127.0.0.1:1".parse().unwrap();
        let name = "a".to_owned();
        let (id, _) = roster.join(Newcomer { name, node, instance, addr, goes_on: false });
        roster.ready(id, true, false);
        id
    }

    fn chosen(auto: &mut Auto, roster: &mut Roster) -> Option<ReceiverId> {
        auto.choose(Timestamp::ZERO, roster, |_| true).map(|(id, _)| *id)
    }

    #[test]
    fn who_has_come_back_is_chosen_under_its_new_number() {
        let (mut auto, mut roster) = (Auto::default(), Roster::new(DataPath::Auto));
        let node = Identity::generate().public_key();
        assert_eq!(chosen(&mut auto, &mut roster), None);
        for _ in 0..2 {
            let id = join(&mut roster, node, 1);
            assert_eq!(chosen(&mut auto, &mut roster), Some(id));
            assert_eq!(chosen(&mut auto, &mut roster), Some(id));
        }
    }

    #[test]
    fn who_has_ended_is_looked_at_no_more_and_the_next_one_is() {
        let (mut auto, mut roster) = (Auto::default(), Roster::new(DataPath::Auto));
        let node = Identity::generate().public_key();
        let dead = join(&mut roster, node, 1);
        assert_eq!(chosen(&mut auto, &mut roster), Some(dead));
        assert!(roster.unsubscribe(dead), "a death");
        assert_eq!(chosen(&mut auto, &mut roster), None);
        // As a pipe's receiver comes back: by another name.
        let next = join(&mut roster, node, 2);
        assert_eq!(chosen(&mut auto, &mut roster), Some(next));
        roster.leave(next, "no space".to_owned());
        assert_eq!(chosen(&mut auto, &mut roster), None);
    }
}
