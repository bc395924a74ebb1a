//! What a sender tells each of its receivers of the others, and whose turn it is to try.
//!
//! A receiver steers its own links, and does not see those that share a path with them at the sender. So it asks
//! ([`Uplink::ask`]) before each look, and is told what the others took ([`Beside`]). Who says that it wants to try another
//! setting has the turn, unless another receiver has it; it keeps it as long as it says so, and loses it when it is not
//! heard of for [`TURN_TIME`]. Nobody keeps it from the others: after [`TURN_MAX`] they have it for the asking for a while,
//! however often and quickly the first one asks.
//!
//! `R` is how receivers are known: all sessions of one are decided together there ([`super::Steer`]).

use crate::time::{Duration, Timestamp};
use alloc::collections::BTreeMap;

/// A turn ends when its receiver has been silent for so long: it asks every half second.
pub const TURN_TIME: Duration = Duration::from_secs(5);

/// So long a receiver has the turn, breaks shorter than [`TURN_TIME`] included; then not before so long a break. A trial over
/// 0.6 s of round trip takes two thirds of it.
pub const TURN_MAX: Duration = Duration::from_secs(60);

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
}

/// Who had the turn last.
#[derive(Debug)]
struct Turn<R> {
    receiver: R,
    /// In which session it said so; `None`: it let it go.
    session: Option<u64>,
    since: Timestamp,
    /// When it last said so.
    last: Timestamp,
}

impl<R> Turn<R> {
    fn is_kept(&self, now: Timestamp) -> bool {
        self.session.is_some() && now < (self.last + TURN_TIME).min(self.since + TURN_MAX)
    }
}

/// The sessions of one sender.
#[derive(Debug)]
pub struct Uplink<R> {
    sessions: BTreeMap<u64, Session<R>>,
    changes: u64,
    turn: Option<Turn<R>>,
}

impl<R> Default for Uplink<R> {
    fn default() -> Self {
        Self { sessions: BTreeMap::new(), changes: 0, turn: None }
    }
}

impl<R: PartialEq + Clone> Uplink<R> {
    /// A session begins to send to this one, if that is known. Its number.
    pub fn begin(&mut self, receiver: Option<R>) -> u64 {
        self.changes += 1;
        self.sessions.insert(self.changes, Session { receiver, bytes: 0 });
        self.changes
    }

    /// It sends nothing more.
    pub fn end(&mut self, session: u64) {
        self.changes += 1;
        self.sessions.remove(&session);
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.session == Some(session)) {
            turn.session = None;
        }
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
        }
        let mut since = now;
        match &mut self.turn {
            Some(turn) if turn.receiver != *receiver => told.turn = !turn.is_kept(now),
            Some(turn) if now < turn.last + TURN_TIME => {
                since = turn.since;
                told.turn = now < since + TURN_MAX;
                if !wants && turn.session == session {
                    turn.session = None;
                }
            }
            _ => {}
        }
        if told.turn && wants && session.is_some() {
            self.turn = Some(Turn { receiver: receiver.clone(), session, since, last: now });
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::{Beside, TURN_MAX, TURN_TIME, Uplink};
    use crate::time::{Duration, Timestamp};
    use alloc::vec::Vec;

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

    // docs/protocol.md#WAN-9
    #[test]
    fn who_never_lets_the_turn_go_has_it_for_a_while_only() {
        let (step, start) = (Duration::from_millis(1), Timestamp::ZERO);
        // Without a break, in two sessions by turns, with breaks that hardly anybody sees, in sessions that end and begin.
        const NEVER: u64 = u64::MAX;
        let ways = [(1, NEVER, NEVER), (2, NEVER, NEVER), (1, 10, NEVER), (1, NEVER, 10)];
        for (sessions, rests, ends) in ways {
            let mut uplink = Uplink::default();
            let other = uplink.begin(Some("c"));
            let mut own: Vec<u64> = (0..sessions).map(|_| uplink.begin(Some("b"))).collect();
            let (mut now, mut begun) = (start, None);
            for ask in 1..70_000 {
                now = now + step;
                let session = own[ask as usize % own.len()];
                uplink.ask(now, Some(session), &"b", ask % rests != 0);
                if ask % ends == 0 {
                    uplink.end(own.remove(0));
                    own.push(uplink.begin(Some("b")));
                }
                // Not where it sees such a break.
                if ask % 500 == 1 && begun.is_none() {
                    let has = uplink.ask(now, Some(other), &"c", true).turn;
                    begun = has.then_some(now);
                }
            }
            let begun = begun.expect("the other one has its turn");
            assert!(begun <= start + TURN_MAX + Duration::from_secs(1), "{begun:?}");
            // The first has it again when the other one has let it go.
            let later = begun + TURN_TIME;
            assert!(uplink.ask(later, Some(own[0]), &"b", true).turn);
            assert!(!uplink.ask(later, Some(other), &"c", true).turn);
        }
        // With nobody beside it, it has it again after a break.
        let mut uplink = Uplink::default();
        let one = uplink.begin(Some("b"));
        let at = |half| start + Duration::from_millis(500) * half;
        let had = (0..140).filter(|half| uplink.ask(at(*half), Some(one), &"b", true).turn);
        assert_eq!(had.count(), 140 - 9);
    }
}
