//! What the sender knows of each receiver, and whether the session is over.
//!
//! A receiver joins, says that it is ready, and ends: complete by its receipt, failed by its own word, or
//! gone when its event stream has closed. Who is gone may come back within [`GRACE`], who had left the stream
//! within that of the last one's end; the session does not wait longer (`docs/protocol.md#CTL-3`). A receiver that
//! comes back joins anew, and its old entry is taken out: the report has one line for each machine's target. If that was
//! live, there may be two of it: when the newcomer goes before it is ready, the other one may come back likewise. A
//! receiver that joins and does not listen for events has given no sign of life, and is gone after
//! [`LISTEN_TIME_MAX`].
//!
//! What was withdrawn is told in portions, as each receiver takes it: a disk that fails withdraws more at
//! once than any queue has room for.

use downpour_proto::ReceiverId;
use downpour_transport::control::{
    DataPath, Event, EventSender, InstanceId, Receipt, SignedReceipt,
};
use downpour_transport::identity::PublicKey;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a receiver that died may take to come back.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// How long a receiver that joined may take to listen for events.
pub(super) const LISTEN_TIME_MAX: Duration = Duration::from_secs(10);

/// Room in a receiver's queue of events that is left to what is more urgent than withdrawals.
const URGENT_EVENTS: usize = 1024;

/// Why a receiver has no stream that goes to another one's address.
const STREAM_TAKEN: &str = "the stream goes to one receiver";

/// Why one has none beside others that do not follow it either: they may have joined at once.
const STREAM_DOUBTFUL: &str = "another one greeted first, or UDP does not get through";

/// Where a receiver stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Has joined; the probe is under way.
    Joined,
    /// Takes part.
    Ready,
    /// Its last receipt is here, and nothing failed.
    Complete,
    /// It told us that it cannot complete, or that some objects failed.
    Failed(String),
    /// It gives no sign of life.
    Gone {
        /// Since when.
        at: Instant,
        /// What was seen of it last.
        why: &'static str,
    },
}

/// What a receiver of products was told for its pulls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// One past the last block whose length it knows.
    pub(super) blocks: u32,
    /// The ends.
    pub(super) ends: (u32, u32, bool),
}

/// One receiver.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) node: PublicKey,
    pub(super) instance: InstanceId,
    pub(super) addr: SocketAddr,
    pub(super) stage: Stage,
    /// The probe reached it.
    pub(super) multicast: bool,
    /// Why it left the stream last, if ever it did.
    pub(super) left_stream: Option<String>,
    /// It has not come back to the stream since.
    is_away: bool,
    /// It was told to leave, and has not been asked back since.
    is_told: bool,
    /// It may hold some of the data: sections wait for its answer.
    candidates: bool,
    /// It has looked at the sections below this one.
    examined: u32,
    /// A section went out without its answer, and it has not caught up since.
    is_late: bool,
    joined_at: Instant,
    /// Another one, which was live, had to make room for it, and it is not ready yet.
    ousts: bool,
    /// Since when its receipt counts.
    pub(super) begun_at: Instant,
    pub(super) ended_at: Option<Instant>,
    pub(super) receipt: Option<Receipt>,
    /// Of the last one, in a batch.
    pub(super) proof: Option<SignedReceipt>,
    events: Option<EventSender>,
    /// It has listened for events.
    listened: bool,
    /// Withdrawals that this subscription has been told.
    told_withdrawn: usize,
    pub(super) told: Told,
    /// Bytes of data that it has asked for and was given, since it left the stream last.
    pub(super) given: u64,
    /// The first data block that it gets, in a session of products.
    pub(super) products_from: u32,
    /// Its round trip, as the kernel had measured it when it joined.
    pub(super) rtt: Option<Duration>,
}

impl Member {
    fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Joined | Stage::Ready)
    }

    /// The start does not wait for it. Who needs no data is through before, where all is pulled: the manifest is there
    /// to be had, and what failed has failed.
    fn has_begun(&self) -> bool {
        self.stage == Stage::Ready || self.receipt.as_ref().is_some_and(|receipt| receipt.finished)
    }

    fn end(&mut self, stage: Stage) {
        self.stage = stage;
        self.ended_at = Some(Instant::now());
    }

    /// It may not follow the stream, or not all the time.
    pub(super) fn pulls(&self) -> bool {
        !self.multicast || self.left_stream.is_some()
    }

    fn leaves_stream(&mut self, why: &str) -> Option<String> {
        (self.is_away, self.given) = (true, 0);
        self.left_stream.replace(why.to_owned())
    }

    /// It is told to leave the stream; the reason that was before, if any.
    pub(super) fn told_to_leave(&mut self, why: &str) -> Option<String> {
        self.is_told = true;
        self.leaves_stream(why)
    }

    /// It has been asked back to the stream.
    pub(super) const fn returns_to_stream(&mut self) {
        (self.is_away, self.is_told) = (false, false);
    }

    pub(super) fn tell(&self, event: Event) {
        if let Some(events) = &self.events {
            // Who does not listen any more is told nothing; `unsubscribed` follows.
            let _ = events.send(event);
        }
    }
}

/// All receivers of a session.
#[derive(Debug, Default)]
pub(super) struct Roster {
    members: BTreeMap<ReceiverId, Member>,
    last_id: u32,
    /// Which way the blocks go.
    path: DataPath,
}

/// Who joins.
pub(super) struct Newcomer {
    pub(super) name: String,
    pub(super) node: PublicKey,
    pub(super) instance: InstanceId,
    pub(super) addr: SocketAddr,
    /// It counts what its former self has got as its own.
    pub(super) goes_on: bool,
}

impl Roster {
    /// Of a session whose blocks take this path.
    pub(super) fn new(path: DataPath) -> Self {
        Self { path, ..Self::default() }
    }

    /// Takes a receiver in; also the entry that it replaces, if it was here before.
    pub(super) fn join(&mut self, who: Newcomer) -> (ReceiverId, Option<ReceiverId>) {
        let same = |member: &Member| member.node == who.node && member.instance == who.instance;
        let old = self.members.iter().find(|(_, member)| same(member)).map(|(id, _)| *id);
        let former = old.and_then(|old| self.members.remove(&old));
        let ousts = former.as_ref().is_some_and(Member::is_live);
        let former = former.filter(|_| who.goes_on);
        let now = Instant::now();
        self.last_id += 1;
        let id = ReceiverId(self.last_id);
        let member = Member {
            name: who.name,
            node: who.node,
            instance: who.instance,
            addr: who.addr,
            stage: Stage::Joined,
            multicast: false,
            left_stream: None,
            is_away: false,
            is_told: false,
            candidates: false,
            examined: 0,
            is_late: false,
            joined_at: now,
            ousts,
            begun_at: former.map_or(now, |former| former.begun_at),
            ended_at: None,
            receipt: None,
            proof: None,
            events: None,
            listened: false,
            told_withdrawn: 0,
            told: Told::default(),
            given: 0,
            products_from: 0,
            rtt: None,
        };
        self.members.insert(id, member);
        (id, old)
    }

    pub(super) fn find(&mut self, id: ReceiverId) -> Option<&mut Member> {
        self.members.get_mut(&id)
    }

    /// All of them, at the end.
    pub(super) fn take(&mut self) -> Vec<Member> {
        std::mem::take(&mut self.members).into_values().collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ReceiverId, &Member)> {
        self.members.iter().map(|(id, member)| (*id, member))
    }

    /// The receiver is ready; false when it is not one of ours any more.
    pub(super) fn ready(&mut self, id: ReceiverId, multicast: bool, candidates: bool) -> bool {
        let has_stream = |member: &Member| member.multicast && member.is_live();
        let is_taken = self.path.is_unicast() && self.members.values().any(has_stream);
        let is_beside = self.members.iter().any(|(other, member)| *other != id && member.is_live());
        let Some(member) = self.members.get_mut(&id).filter(|member| member.is_live()) else {
            return false;
        };
        // Where all is pulled there is no stream that it could miss.
        if !multicast && self.path != DataPath::Tcp {
            let why = match member.multicast {
                true => {
                    "it heard nothing of the stream for a while, or no packets of full length (MTU)"
                }
                false if is_taken => STREAM_TAKEN,
                false if self.path.is_unicast() && is_beside => STREAM_DOUBTFUL,
                // Its greeting or the answer: which of them is lost nobody knows.
                false if self.path.is_unicast() => "UDP to it or from it does not get through",
                false => "multicast does not reach it, or not in packets of full length (MTU)",
            };
            // One that was told to leave says so as well: why it was told counts.
            if !member.is_away {
                member.leaves_stream(why);
            }
            if [STREAM_TAKEN, STREAM_DOUBTFUL].contains(&why) {
                // It has heard nothing, and would blame the network.
                member.tell(Event::LeaveGroup { reason: why.to_owned() });
            }
        }
        if member.stage == Stage::Joined {
            member.candidates = candidates;
        }
        member.multicast |= multicast;
        // That it hears the stream has crossed the order to leave, if there was one (protocol.md#STRAG-5).
        member.is_away &= !multicast || member.is_told;
        member.ousts = false;
        member.stage = Stage::Ready;
        true
    }

    pub(super) fn examined(&mut self, id: ReceiverId, sections: u32) {
        if let Some(member) = self.members.get_mut(&id) {
            member.examined = member.examined.max(sections);
        }
    }

    /// Whether to hold a section's data back until those who may hold it have looked: only when all may,
    /// for what one lacks is sent anyway. Who is late is not waited for.
    pub(super) fn waits_for(&self, section: u32) -> bool {
        let mut ready =
            self.members.values().filter(|member| member.stage == Stage::Ready).peekable();
        ready.peek().is_some()
            && self.members.values().filter(|m| m.stage == Stage::Ready).all(|m| m.candidates)
            && ready.any(|member| !member.is_late && member.examined <= section)
    }

    /// A section's data goes out. Who was waited for in vain is late until it has looked at all that went out.
    pub(super) fn passes(&mut self, section: u32) {
        let in_vain = self.waits_for(section);
        for member in self.members.values_mut().filter(|member| member.stage == Stage::Ready) {
            member.is_late = member.examined <= section && (in_vain || member.is_late);
        }
    }

    /// Takes a receipt; whether its receiver has ended with it.
    pub(super) fn receipt(
        &mut self,
        id: ReceiverId,
        receipt: Receipt,
        proof: Option<SignedReceipt>,
    ) -> bool {
        let Some(member) = self.members.get_mut(&id) else { return false };
        let finished = receipt.finished;
        if finished {
            member.proof = proof;
            member.end(match receipt.objects_failed {
                0 => Stage::Complete,
                n => {
                    let first = receipt.failures.first().map_or("", |f| f.reason.as_str());
                    Stage::Failed(failures(n, first))
                }
            });
        }
        member.receipt = Some(receipt);
        finished
    }

    /// The receiver goes by its own word, before it is complete.
    pub(super) fn leave(&mut self, id: ReceiverId, reason: String) {
        if let Some(member) = self.members.get_mut(&id)
            && member.is_live()
        {
            member.end(Stage::Failed(reason));
        }
    }

    pub(super) fn subscribe(&mut self, id: ReceiverId, events: EventSender) {
        if let Some(member) = self.members.get_mut(&id) {
            member.events = Some(events);
            member.listened = true;
            member.told_withdrawn = 0;
        }
    }

    /// Gives up those that joined and never listened; who they are.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<ReceiverId> {
        let silent = |member: &Member| {
            let late = now.saturating_duration_since(member.joined_at) >= LISTEN_TIME_MAX;
            member.is_live() && !member.listened && late
        };
        let mut expired = Vec::new();
        for (id, member) in self.members.iter_mut().filter(|(_, member)| silent(member)) {
            member.end(Stage::Gone { at: now, why: "it joined, and was not heard of again" });
            expired.push(*id);
        }
        expired
    }

    /// Tells of the withdrawals that are new to each receiver, as far as its queue has room; the rest when
    /// this is called again.
    pub(super) fn tell_withdrawn(&mut self, withdrawn: &[(u32, String)]) {
        for member in self.members.values_mut() {
            let Some(events) = &member.events else { continue };
            let room = events.room().saturating_sub(URGENT_EVENTS);
            for (object, reason) in withdrawn.iter().skip(member.told_withdrawn).take(room) {
                member.tell(Event::Withdrawn { object: *object, reason: reason.clone() });
                member.told_withdrawn += 1;
            }
        }
    }

    /// The event stream has closed; true when that is a death.
    pub(super) fn unsubscribe(&mut self, id: ReceiverId) -> bool {
        let Some(member) = self.members.get_mut(&id) else { return false };
        member.events = None;
        if member.is_live() {
            let why = "its connection closed, and it did not come back";
            member.end(Stage::Gone { at: Instant::now(), why });
            return true;
        }
        false
    }

    /// Those who listen for events.
    pub(super) fn listeners(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.values_mut().filter(|member| member.events.is_some())
    }

    /// The session ends before those who take part have everything.
    pub(super) fn cut(&mut self, reason: &str) {
        for member in self.members.values_mut().filter(|member| member.is_live()) {
            member.end(Stage::Failed(reason.to_owned()));
        }
    }

    /// Tells everybody who listens.
    pub(super) fn tell_all(&self, event: &Event) {
        self.members.values().for_each(|member| member.tell(event.clone()));
    }

    /// How many the start does not wait for any more.
    pub(super) fn ready_count(&self) -> usize {
        self.members.values().filter(|member| member.has_begun()).count()
    }

    /// Which of `expected` the start waits for.
    pub(super) fn missing<'a>(&self, expected: &'a BTreeSet<String>) -> Vec<&'a str> {
        let here: BTreeSet<&str> =
            self.members.values().filter(|m| m.has_begun()).map(|m| m.name.as_str()).collect();
        expected.iter().map(String::as_str).filter(|name| !here.contains(name)).collect()
    }

    /// Nobody is left to wait for. Who has left the stream may be flooded by it for as long as others need it, where
    /// switches do not prune multicast: its time to come back begins when the last of them has ended.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let last = self.members.values().filter_map(|member| member.ended_at).max();
        self.members.values().all(|member| match &member.stage {
            Stage::Joined | Stage::Ready => false,
            // It was started into a target that another one has, which looks for the sender again.
            Stage::Failed(_) if member.ousts => {
                member.ended_at.is_none_or(|at| now.saturating_duration_since(at) >= GRACE)
            }
            Stage::Complete | Stage::Failed(_) => true,
            Stage::Gone { at, .. } => {
                let since = last.filter(|_| member.is_away).unwrap_or(*at);
                now.saturating_duration_since(since) >= GRACE
            }
        })
    }

    /// Somebody was here, and all have gone by their own word.
    pub(super) fn has_failed(&self, now: Instant) -> bool {
        let failed = |member: &Member| matches!(member.stage, Stage::Failed(_));
        !self.members.is_empty() && self.members.values().all(failed) && self.is_over(now)
    }
}

/// How many failures, and the first of them. One may be of many products that were missed: they are not counted here.
pub(super) fn failures(count: u64, first: &str) -> String {
    match count {
        1 if !first.is_empty() => first.to_owned(),
        1 => "1 failure".to_owned(),
        _ if first.is_empty() => format!("{count} failures"),
        _ => format!("{count} failures, the first: {first}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        GRACE, LISTEN_TIME_MAX, Newcomer, Roster, STREAM_DOUBTFUL, STREAM_TAKEN, Stage, failures,
    };
    use downpour_proto::ReceiverId;
    use downpour_transport::control::{DataPath, InstanceId, Receipt, SessionId};
    use downpour_transport::identity::Identity;
    use std::collections::BTreeSet;
    use std::time::Instant;

    pub(in crate::session) fn newcomer(name: &str, instance: u8) -> Newcomer {
        Newcomer {
            name: name.to_owned(),
            node: Identity::generate().public_key(),
            instance: InstanceId::from_bytes([instance; 16]),
            addr: "127.0.0.1:1".parse().unwrap(),
            goes_on: false,
        }
    }

    /// Of who is through, and got no bytes.
    pub(in crate::session) fn last_receipt(receiver: ReceiverId, objects_failed: u64) -> Receipt {
        Receipt {
            session: SessionId::from_bytes([1; 16]),
            receiver,
            manifest_digest: [0; 32],
            made_unix_s: 0,
            finished: true,
            objects_complete: 1,
            objects_failed,
            bytes_complete: 0,
            bytes_by_stream: 0,
            bytes_by_pull: 0,
            bytes_held: 0,
            repair_symbols: 0,
            failures: Vec::new(),
        }
    }

    #[test]
    fn a_range_of_products_that_was_missed_is_not_told_as_one_of_them() {
        let missed = "products 1 to 2: missed";
        assert_eq!(failures(1, missed), missed);
        assert_eq!(failures(3, missed), "3 failures, the first: products 1 to 2: missed");
        assert_eq!((failures(1, ""), failures(3, "")), ("1 failure".into(), "3 failures".into()));
    }

    #[test]
    fn who_goes_when_the_session_is_cut_did_not_leave_of_itself() {
        let mut roster = Roster::default();
        let (done, cut) = (roster.join(newcomer("a", 1)).0, roster.join(newcomer("b", 2)).0);
        roster.leave(done, "no space".to_owned());
        roster.cut("the sender was interrupted");
        for id in [done, cut] {
            assert!(!roster.unsubscribe(id), "no death");
        }
        let stage =
            |id| roster.iter().find(|(other, _)| *other == id).map(|(_, m)| m.stage.clone());
        assert_eq!(stage(done), Some(Stage::Failed("no space".to_owned())));
        assert_eq!(stage(cut), Some(Stage::Failed("the sender was interrupted".to_owned())));
    }

    #[test]
    fn a_dead_receiver_is_waited_for_a_while_and_replaces_itself_when_it_returns() {
        let mut roster = Roster::default();
        let who = newcomer("a", 1);
        let (node, instance, addr) = (who.node, who.instance, who.addr);
        let (first, _) = roster.join(who);
        assert!(roster.ready(first, true, false));
        assert!(!roster.is_over(Instant::now()));
        assert!(roster.unsubscribe(first), "a death");
        assert!(!roster.is_over(Instant::now()), "it may come back");
        assert!(roster.is_over(Instant::now() + GRACE));
        let begun_at = Instant::now() - GRACE;
        roster.find(first).unwrap().begun_at = begun_at;
        let again = |goes_on| Newcomer { name: "a".to_owned(), node, instance, addr, goes_on };
        let (second, old) = roster.join(again(true));
        assert_eq!(old, Some(first));
        assert_eq!(roster.find(second).unwrap().begun_at, begun_at, "it goes on");
        let (second, _) = roster.join(again(false));
        assert!(roster.find(second).unwrap().begun_at > begun_at, "it begins anew");
        assert!(roster.ready(second, true, false));
        assert_eq!(roster.iter().count(), 1);
        assert!(!roster.is_over(Instant::now() + GRACE), "it is here");
        roster.leave(second, "disk full".to_owned());
        assert!(roster.is_over(Instant::now()));
        assert_eq!(roster.find(second).unwrap().stage, Stage::Failed("disk full".to_owned()));
        assert!(!roster.unsubscribe(second), "no death after goodbye");
    }

    #[test]
    fn nobody_has_failed_who_may_come_back() {
        let (mut roster, late) = (Roster::default(), Instant::now() + GRACE);
        assert!(!roster.has_failed(late), "nobody was here");
        let [gone, failed] = [1, 2].map(|instance| roster.join(newcomer("a", instance)).0);
        roster.leave(failed, "disk full".to_owned());
        assert!(roster.unsubscribe(gone) && !roster.has_failed(late));
        roster.members.remove(&gone);
        assert!(roster.has_failed(Instant::now()));
    }

    #[test]
    fn who_had_to_make_room_for_one_that_could_not_begin_is_waited_for() {
        let (mut roster, who) = (Roster::default(), newcomer("a", 1));
        let (node, instance, addr) = (who.node, who.instance, who.addr);
        let again = || Newcomer { name: "a".to_owned(), node, instance, addr, goes_on: false };
        let (first, _) = roster.join(who);
        assert!(roster.ready(first, true, false));
        let (second, old) = roster.join(again());
        assert_eq!(old, Some(first));
        roster.leave(second, "another receiver is running".to_owned());
        let now = Instant::now();
        assert!(!roster.is_over(now) && roster.is_over(now + GRACE));
        let (back, _) = roster.join(again());
        roster.leave(back, "disk full".to_owned());
        assert!(roster.is_over(Instant::now()), "the one before had left");
    }

    #[test]
    fn who_was_too_slow_and_is_gone_is_waited_for_when_the_stream_floods_it_no_more() {
        let mut roster = Roster::default();
        let (slow, _) = roster.join(newcomer("slow", 1));
        let (fast, _) = roster.join(newcomer("fast", 2));
        let (dead, _) = roster.join(newcomer("dead", 3));
        for id in [slow, fast, dead] {
            roster.ready(id, true, false);
        }
        roster.find(slow).unwrap().told_to_leave("too slow");
        // What it said of the stream before it had that order (protocol.md#STRAG-5).
        roster.ready(slow, false, false);
        roster.ready(slow, true, false);
        let long_ago = Instant::now() - 5 * GRACE;
        for id in [slow, dead] {
            roster.unsubscribe(id);
            roster.find(id).unwrap().stage = Stage::Gone { at: long_ago, why: "" };
        }
        assert!(!roster.is_over(Instant::now()), "the fast one is still here");
        roster.leave(fast, "disk full".to_owned());
        assert!(!roster.is_over(Instant::now()), "now the slow one can be heard");
        assert!(roster.is_over(Instant::now() + GRACE));
        roster.find(slow).unwrap().returns_to_stream();
        assert!(roster.is_over(Instant::now()), "nothing kept these two from coming back");
    }

    #[test]
    fn why_a_receiver_left_is_why_it_left_last() {
        let mut roster = Roster::new(DataPath::Multicast);
        let (id, _) = roster.join(newcomer("a", 1));
        roster.ready(id, true, false);
        let loses = |roster: &mut Roster, is_told: bool| {
            if is_told {
                roster.find(id).unwrap().told_to_leave("too slow");
            }
            roster.ready(id, false, false);
            roster.find(id).unwrap().left_stream.clone().unwrap()
        };
        let unheard =
            "it heard nothing of the stream for a while, or no packets of full length (MTU)";
        assert_eq!(loses(&mut roster, false), unheard);
        assert_eq!(loses(&mut roster, true), "too slow");
        assert_eq!(loses(&mut roster, false), "too slow", "it is still away");
        roster.ready(id, true, false);
        assert_eq!(loses(&mut roster, false), "too slow", "it has not been asked back");
        roster.find(id).unwrap().returns_to_stream();
        assert_eq!(loses(&mut roster, false), unheard);
        roster.find(id).unwrap().given = 9;
        roster.ready(id, true, false);
        assert_eq!(loses(&mut roster, false), unheard);
        assert_eq!(roster.find(id).unwrap().given, 0, "it told of these when it followed");
        let (other, _) = roster.join(newcomer("b", 2));
        let words = [
            (false, "multicast does not reach it, or not in packets of full length (MTU)"),
            (true, ""),
            (false, unheard),
        ];
        for (hears, why) in words {
            roster.ready(other, hears, false);
            let left = roster.find(other).unwrap().left_stream.clone().unwrap();
            assert!(hears || left == why, "who was not told comes back by itself: {left}");
        }
    }

    #[test]
    fn sections_wait_only_while_all_may_hold_them() {
        let mut roster = Roster::default();
        assert!(!roster.waits_for(0));
        let (a, _) = roster.join(newcomer("a", 1));
        roster.ready(a, true, true);
        assert!(roster.waits_for(0));
        roster.examined(a, 1);
        assert!(!roster.waits_for(0) && roster.waits_for(1));
        let (b, _) = roster.join(newcomer("b", 2));
        roster.ready(b, true, false);
        assert!(!roster.waits_for(1), "b needs everything");
    }

    #[test]
    fn who_was_waited_for_in_vain_is_not_waited_for_until_it_has_caught_up() {
        let mut roster = Roster::default();
        let [a, b] = ["a", "b"].map(|name| roster.join(newcomer(name, 1)).0);
        for id in [a, b] {
            roster.ready(id, true, true);
        }
        roster.examined(a, 1);
        roster.passes(0);
        assert!(roster.waits_for(1), "a has not looked at it");
        roster.examined(a, 2);
        assert!(!roster.waits_for(1), "b was waited for in vain");
        roster.passes(1);
        roster.examined(a, 3);
        roster.examined(b, 2);
        assert!(!roster.waits_for(2), "b is still behind");
        roster.examined(b, 3);
        roster.passes(2);
        assert!(roster.waits_for(3));
        roster.examined(a, 4);
        assert!(roster.waits_for(3), "b has caught up");
        roster.examined(b, 4);
        assert!(!roster.waits_for(3));
    }

    #[test]
    fn who_joins_and_never_listens_is_not_waited_for() {
        let mut roster = Roster::default();
        let (a, _) = roster.join(newcomer("a", 1));
        let joined = Instant::now();
        assert!(roster.expire(joined).is_empty() && !roster.is_over(joined));
        let late = joined + LISTEN_TIME_MAX;
        assert_eq!(roster.expire(late), [a]);
        assert!(roster.expire(late).is_empty(), "once");
        assert!(!roster.is_over(late) && roster.is_over(late + GRACE));
        assert!(!roster.ready(a, true, false), "it has to join again");
    }

    #[test]
    fn who_pulls_beside_the_one_that_has_the_stream_is_told_so() {
        let why = |roster: &mut Roster, multicast| {
            let (id, _) = roster.join(newcomer("a", 1));
            roster.ready(id, multicast, false);
            roster.find(id).unwrap().left_stream.clone().unwrap_or_default()
        };
        let mut roster = Roster::new(DataPath::Udp);
        let nothing = "UDP to it or from it does not get through";
        assert_eq!(why(&mut roster, false), nothing);
        assert_eq!(why(&mut roster, true), "");
        assert_eq!(why(&mut roster, false), STREAM_TAKEN);
        let with_stream = roster.iter().find(|(_, member)| member.multicast).unwrap().0;
        roster.leave(with_stream, String::new());
        assert_eq!(why(&mut roster, false), STREAM_DOUBTFUL, "the first one may have greeted");
        let mut roster = Roster::new(DataPath::Multicast);
        assert_eq!(why(&mut roster, true), "");
        assert_eq!(
            why(&mut roster, false),
            "multicast does not reach it, or not in packets of full length (MTU)"
        );
        assert_eq!(why(&mut Roster::new(DataPath::Tcp), false), "");
    }

    #[test]
    fn missing_machines_are_named() {
        let mut roster = Roster::default();
        let (a, _) = roster.join(newcomer("a", 1));
        let expected: BTreeSet<String> = ["a".to_owned(), "b".to_owned()].into();
        assert_eq!(roster.missing(&expected), ["a", "b"], "joined is not ready");
        roster.ready(a, false, false);
        assert_eq!(roster.missing(&expected), ["b"]);
        assert_eq!(roster.ready_count(), 1);
    }

    #[test]
    fn the_start_does_not_wait_for_who_is_through_before_it() {
        let expected: BTreeSet<String> = ["a".to_owned(), "b".to_owned()].into();
        for failed in [0, 1] {
            let mut roster = Roster::new(DataPath::Tcp);
            let [a, b] = ["a", "b"].map(|name| roster.join(newcomer(name, 1)).0);
            roster.ready(a, false, true);
            assert!(roster.receipt(a, last_receipt(a, failed), None));
            assert!(!roster.unsubscribe(a), "no death");
            assert_eq!((roster.ready_count(), roster.missing(&expected)), (1, vec!["b"]));
            roster.ready(b, false, false);
            assert_eq!((roster.ready_count(), roster.missing(&expected)), (2, vec![]));
            assert!(!roster.is_over(Instant::now()));
            roster.leave(b, "disk full".to_owned());
            assert_eq!(
                roster.missing(&expected),
                ["b"],
                "who could not begin may be started again"
            );
        }
    }
}
