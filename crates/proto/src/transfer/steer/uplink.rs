//! What a sender tells each of its receivers of the others, and whose turn it is to try.
//!
//! A receiver steers its own links, and does not see those that share a path with them at the sender. So it asks
//! ([`Uplink::ask`]) before each look, and is told what the others took ([`Beside`]). Who says that it wants to try another
//! setting has the turn, unless another receiver has it; it keeps it as long as it says so, and loses it when it is not
//! heard of for [`TURN_TIME`].
//!
//! `R` is how receivers are known: all sessions of one are decided together there ([`super::Steer`]).

use crate::time::{Duration, Timestamp};
use alloc::collections::BTreeMap;

/// A turn ends when its receiver has been silent for so long: it asks every half second.
pub const TURN_TIME: Duration = Duration::from_secs(5);

/// What a sender tells one receiver of the others that it sends to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// Sessions with others.
    pub others: u32,
    /// Bytes that these have taken since they began.
    pub bytes: u64,
    /// How often a session of the sender has begun or ended: while it stays the same, `bytes` are the same ones'.
    pub changes: u64,
    /// No other has the turn: who wants it has it.
    pub turn: bool,
}

#[derive(Debug)]
struct Session<R> {
    receiver: Option<R>,
    bytes: u64,
    /// When it last said that it wants the turn, and had it.
    turn: Option<Timestamp>,
}

/// The sessions of one sender.
#[derive(Debug)]
pub struct Uplink<R> {
    sessions: BTreeMap<u64, Session<R>>,
    changes: u64,
}

impl<R> Default for Uplink<R> {
    fn default() -> Self {
        Self { sessions: BTreeMap::new(), changes: 0 }
    }
}

impl<R: PartialEq> Uplink<R> {
    /// A session begins to send to this one, if that is known. Its number.
    pub fn begin(&mut self, receiver: Option<R>) -> u64 {
        self.changes += 1;
        self.sessions.insert(self.changes, Session { receiver, bytes: 0, turn: None });
        self.changes
    }

    /// It sends nothing more.
    pub fn end(&mut self, session: u64) {
        self.changes += 1;
        self.sessions.remove(&session);
    }

    /// So many more bytes of it have arrived.
    pub fn sent(&mut self, session: u64, bytes: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.bytes += bytes;
        }
    }

    /// A session's receiver asks, and says whether it tries another setting or wants to. `None`: nothing is sent by it now.
    pub fn ask(
        &mut self,
        now: Timestamp,
        session: Option<u64>,
        receiver: &R,
        wants: bool,
    ) -> Beside {
        let mut told = Beside { changes: self.changes, turn: true, ..Beside::default() };
        for other in self.sessions.values().filter(|o| o.receiver.as_ref() != Some(receiver)) {
            told.others += 1;
            told.bytes += other.bytes;
            told.turn &= other.turn.is_none_or(|at| now >= at + TURN_TIME);
        }
        if let Some(session) = session.and_then(|session| self.sessions.get_mut(&session)) {
            session.turn = (told.turn && wants).then_some(now);
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::{Beside, TURN_TIME, Uplink};
    use crate::time::{Duration, Timestamp};

    #[test]
    fn each_receiver_is_told_of_the_others_and_one_has_the_turn() {
        let mut uplink = Uplink::default();
        let [one, same, other] = ["b", "b", "c"].map(|receiver| uplink.begin(Some(receiver)));
        for (session, bytes) in [(one, 1), (same, 10), (other, 100)] {
            uplink.sent(session, bytes);
        }
        let ask = |uplink: &mut Uplink<_>, at, session, wants| {
            let receiver = if session == other { "c" } else { "b" };
            uplink.ask(Timestamp::ZERO + at, Some(session), &receiver, wants)
        };
        let ms = Duration::from_millis;
        let told = Beside { others: 1, bytes: 100, changes: 3, turn: true };
        assert_eq!(ask(&mut uplink, ms(1), one, true), told);
        // Its other session wants nothing, and takes nothing away.
        assert_eq!(ask(&mut uplink, ms(2), same, false), told);
        let told = Beside { others: 2, bytes: 11, changes: 3, turn: false };
        assert_eq!(ask(&mut uplink, ms(3), other, true), told);
        // In silence the turn is lost, and another one's then.
        let later = ms(1) + TURN_TIME;
        assert_eq!(ask(&mut uplink, later, other, true), Beside { turn: true, ..told });
        assert!(!ask(&mut uplink, later, one, true).turn);
        // It ends with the wish, and with the session.
        ask(&mut uplink, later, other, false);
        assert!(ask(&mut uplink, later, one, true).turn);
        uplink.end(one);
        let told = Beside { others: 1, bytes: 10, changes: 4, turn: true };
        assert_eq!(ask(&mut uplink, later, other, true), told);
    }
}
