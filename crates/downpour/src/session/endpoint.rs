//! What receivers ask of a sender over HTTPS, answered from the session's shared state.
//!
//! Nothing here waits: the roster's lock is held for bookkeeping only, and reads run on the server's own
//! threads.

use super::carried::Carried;
use super::feeding::Feed;
use super::narrow::{self, Narrow};
use super::roster::{Newcomer, Roster, Told};
use super::standing::{Heard, Owner};
use super::unsent::Unsent;
use crate::cli::{Payload, SendPlan};
use crate::object::printable;
use downpour_proto::sender::Delivery;
use downpour_proto::{BlockId, BlockKind, Code, RangeSet, ReceiverId};
use downpour_transport::control::{
    Admitted, ApiError, Conn, DataPath, ErrorCode, Event, EventSender, Extent, HaveRequest,
    JoinReply, JoinRequest, LeaveRequest, MANIFEST_SYMBOLS_MAX, Member, ReadyRequest, Receipt,
    SessionHandler, SignedReceipt, Word,
};
use downpour_transport::session::{SendHandle, SendSnapshot};
use downpour_transport::{Codec, FirstReads, Part};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// How often those who follow a stream of products are told what they would need for a pull.
const FOLLOWERS_INTERVAL: Duration = Duration::from_secs(1);

/// How far the session is.
#[derive(Debug, Default)]
pub(super) struct Stand {
    pub(super) roster: Roster,
    pub(super) started: bool,
    /// Source symbols of the manifest's blocks so far.
    pub(super) manifest: Vec<u16>,
    /// One past the last data block offered.
    pub(super) data_end: u32,
    /// Everything was offered.
    pub(super) offered_all: bool,
    /// Files given up, for receivers that come later.
    pub(super) withdrawn: Vec<(u32, String)>,
    pub(super) notices: Vec<String>,
    narrow: Narrow,
    /// The first block that the stream could not have, and how many after it.
    unread: Option<(String, u64)>,
    /// For people, at once.
    pub(super) news: Vec<String>,
    /// Products that are not sent.
    pub(super) unsent: Unsent,
    /// Why the session cannot go on.
    pub(super) ended: Option<String>,
    /// Ends as told last.
    pub(super) told_ends: (u32, u32, bool),
    /// When those who follow a stream of products were told last what they need for pulls.
    followers_told: Option<Instant>,
    /// It is a batch, whose program asks for the receipts. Of others only what the report says of them is kept, as there may
    /// be any number of receivers.
    pub(super) is_batch: bool,
}

impl Stand {
    /// Of a session that is planned so.
    pub(super) fn new(plan: &SendPlan) -> Self {
        let is_batch = matches!(plan.payload, Payload::Files(_));
        Self { roster: Roster::new(plan.path), is_batch, ..Self::default() }
    }

    /// No more products have room: the session ends with what is there. A program to which it belongs opens the next one.
    pub(super) fn end_full(&mut self, name: String, is_owned: bool) {
        let next = match is_owned {
            true => "it goes with the next one",
            false => "start another `send --products` with the rest",
        };
        let why = format!("this session has no numbers left for more blocks: {next}");
        self.unsent.end_at(name, why);
    }

    /// The stream could not have a block. They make one notice, however long the session is.
    pub(super) fn add_unread(&mut self, why: String) {
        match &mut self.unread {
            Some((_, more)) => *more += 1,
            None => self.unread = Some((why, 0)),
        }
    }

    /// That notice, for the report.
    pub(super) fn unread_notice(&self) -> Option<String> {
        self.unread.as_ref().map(|(first, more)| match more {
            0 => first.clone(),
            more => format!("{first} (and {more} more)"),
        })
    }

    /// For people at once, and for the report.
    pub(super) fn notice(&mut self, text: String) {
        self.notices.push(text.clone());
        self.news.push(text);
    }

    /// Tells of a link that takes less than is sent at the least.
    pub(super) fn tell_narrow(&mut self, now: Instant, snapshot: &SendSnapshot) {
        let Some((id, rate)) = self.narrow.look(now, snapshot) else { return };
        let Some(member) = self.roster.find(id) else { return };
        let name = printable(member.name.as_bytes());
        self.notice(narrow::notice(&name, rate));
    }

    /// What people are to be told now.
    pub(super) fn take_news(&mut self, now: Instant) -> Vec<String> {
        let mut news = std::mem::take(&mut self.news);
        news.extend(self.unsent.news(now));
        news
    }

    /// Gives up those that joined and never listened, and says so; who they are.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<ReceiverId> {
        let gone = self.roster.expire(now);
        for id in &gone {
            let Some(member) = self.roster.find(*id) else { continue };
            let name = printable(member.name.as_bytes());
            let why =
                "joined, and was not heard of again: look whether its network and its disk answer";
            self.news.push(format!("{name} {why}"));
        }
        gone
    }

    /// Takes a receipt; whether its receiver has ended with it.
    fn receipt(&mut self, from: ReceiverId, mut receipt: Receipt, proof: SignedReceipt) -> bool {
        if !self.is_batch {
            // The report tells the first, and how many, which is a field of its own.
            receipt.failures.truncate(1);
            receipt.failures.shrink_to_fit();
        }
        self.roster.receipt(from, receipt, self.is_batch.then_some(proof))
    }

    /// Tells receivers of the files given up, as far as they take it.
    pub(super) fn tell_withdrawn(&mut self) {
        self.roster.tell_withdrawn(&self.withdrawn);
    }
}

/// The session's shared state.
pub(super) struct Shared {
    pub(super) stand: Mutex<Stand>,
    /// Something changed that the session's loop waits for.
    pub(super) changed: Notify,
    pub(super) driver: SendHandle,
    /// One past the last byte of the data space that was pulled, or need not be.
    pub(super) pulled_end: AtomicU64,
    /// Longest round trip to a receiver, in microseconds.
    pub(super) round_trip: AtomicU64,
    pub(super) source: Arc<dyn Carried>,
    /// In a session of products.
    pub(super) feed: Option<Feed>,
    /// The program to which it belongs.
    pub(super) owner: Option<Arc<Owner>>,
    /// The reply to JOIN but for the receiver's number and what is known only then.
    pub(super) reply: JoinReply,
}

impl Shared {
    pub(super) fn stand(&self) -> MutexGuard<'_, Stand> {
        // A thread that panicked while it held the lock has left whole entries.
        self.stand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where all of a list of files is pulled, what was offered can be asked for at once.
    fn offers_tell(&self) -> bool {
        self.reply.path == DataPath::Tcp && self.feed.is_none()
    }

    /// The ends of what was offered.
    pub(super) fn tell_offered(&self, ends: (u32, u32, bool)) {
        if self.offers_tell() {
            self.tell_ends(ends);
        }
    }

    /// The ends of what the stream has opened.
    pub(super) fn tell_opened(&self, ends: (u32, u32, bool)) {
        if !self.offers_tell() {
            self.tell_ends(ends);
        }
    }

    /// What pull-only receivers must know; told again when it has changed.
    fn tell_ends(&self, ends: (u32, u32, bool)) {
        let mut stand = self.stand();
        if stand.told_ends != ends {
            stand.told_ends = ends;
            stand.roster.tell_all(&self.ends_event(ends));
        }
    }

    /// What a pull needs to know of products: how long their blocks are, and where they end. Who pulls hears it at once.
    /// Who follows the stream hardly needs it, and hears it now and then: what each receiver is told takes the link's time
    /// from what is sent to all.
    pub(super) fn tell_products(&self, feed: &Feed, ends: (u32, u32, bool), now: Instant) {
        let mut stand = self.stand();
        stand.told_ends = ends;
        let (_, _, finished) = ends;
        let last = stand.followers_told;
        let late = last.is_none_or(|last| now.duration_since(last) >= FOLLOWERS_INTERVAL);
        if late {
            stand.followers_told = Some(now);
        }
        let event = self.ends_event(ends);
        let mut news = BTreeMap::new();
        for member in stand.roster.listeners().filter(|member| late || finished || member.pulls()) {
            let from = member.told.blocks;
            let (lists, until) = news.entry(from).or_insert_with(|| feed.news(from));
            lists.iter().for_each(|list| member.tell(list.clone()));
            if member.told.ends != ends {
                member.tell(event.clone());
            }
            member.told = Told { blocks: *until, ends };
        }
    }

    pub(super) fn tell_owner(&self, heard: Heard) {
        if let Some(owner) = &self.owner {
            owner.tell(heard);
        }
    }

    /// Runs a read of a product; its owner knows while it lasts.
    pub(super) fn reads<T>(&self, product: &str, read: impl FnOnce() -> T) -> T {
        match &self.owner {
            Some(owner) => owner.reads.during(product, read),
            None => read(),
        }
    }

    fn pulled(&self, end: u64) {
        self.pulled_end.fetch_max(end, Ordering::Relaxed);
        // By TCP there is no stream that would pass anything by.
        if self.reply.path != DataPath::Tcp {
            let blocks = end.div_ceil(self.reply.geometry.block_len());
            self.driver.pulled(u32::try_from(blocks).unwrap_or(u32::MAX));
        }
    }

    fn ends_event(&self, (data, manifest, finished): (u32, u32, bool)) -> Event {
        Event::Ends { data, manifest, finished, data_len: self.source.data_len() }
    }
}

/// The handler: a name for `Arc<Shared>` on which the trait can stand.
pub(super) struct Endpoint(pub(super) Arc<Shared>);

/// The first data block of a receiver of products: what comes from now on (`docs/protocol.md#PROD-1`), and of what it has
/// not got of this session what is still kept (`docs/protocol.md#PROD-14`).
fn first_block(not_got: Option<u32>, kept: u32, data_end: u32) -> u32 {
    not_got.unwrap_or(data_end).max(kept).min(data_end)
}

fn gone() -> ApiError {
    ApiError::new(ErrorCode::NotMember, "this receiver is not in the session any more")
}

fn unreadable(reason: impl ToString) -> ApiError {
    ApiError::new(ErrorCode::SourceFailed, reason.to_string())
}

impl SessionHandler for Endpoint {
    fn code(&self) -> Code {
        self.0.reply.geometry.code
    }

    async fn join(&self, from: &Conn, request: JoinRequest) -> Result<Admitted, ApiError> {
        let shared = &self.0;
        let follows = request.follows.filter(|follows| follows.session == shared.reply.session);
        let who = Newcomer {
            name: request.name,
            node: from.node,
            instance: request.instance,
            addr: from.peer,
            goes_on: follows.is_some(),
        };
        let (receiver, replaced, started, first) = {
            let mut stand = shared.stand();
            let (receiver, replaced) = stand.roster.join(who);
            let kept = shared.feed.as_ref().map_or(u32::MAX, |feed| feed.queue.first());
            let first = first_block(follows.map(|follows| follows.block), kept, stand.data_end);
            if let Some(member) = stand.roster.find(receiver) {
                (member.products_from, member.rtt) = (first, from.rtt);
            }
            (receiver, replaced, stand.started, first)
        };
        replaced.inspect(|old| shared.driver.forget(*old));
        let round_trip = u64::try_from(from.handshake.as_micros()).unwrap_or(u64::MAX);
        shared.round_trip.fetch_max(round_trip, Ordering::Relaxed);
        shared.tell_owner(Heard::Joined { node: from.node, receiver, from: first });
        // It takes part once it is ready.
        shared.driver.join(receiver, Delivery::Ended, from.feedback.clone());
        shared.changed.notify_one();
        let data_len = shared.source.data_len();
        let packet = shared.driver.packet().map_or(0, |packet| packet.0);
        let products_from = shared.feed.as_ref().map(|_| first);
        let reply = shared.reply.clone();
        let reply = JoinReply { receiver, started, data_len, packet, products_from, ..reply };
        Ok(Admitted { reply, replaced })
    }

    async fn ready(&self, member: &Member, request: ReadyRequest) -> Result<(), ApiError> {
        let shared = &self.0;
        let mut stand = shared.stand();
        if !stand.roster.ready(member.receiver, request.multicast, request.candidates) {
            return Err(gone());
        }
        let delivery = if request.multicast { Delivery::Stream } else { Delivery::Pull };
        // Nobody waits for who pulls.
        let rtt = stand.roster.find(member.receiver).and_then(|entry| entry.rtt);
        rtt.filter(|_| request.multicast).inspect(|rtt| shared.driver.expect_round_trip(*rtt));
        shared.driver.set_delivery(member.receiver, delivery);
        shared.changed.notify_one();
        Ok(())
    }

    async fn have(&self, member: &Member, request: HaveRequest) -> Result<(), ApiError> {
        let shared = &self.0;
        let set = |ranges: &[downpour_transport::control::BlockRange]| -> RangeSet {
            ranges.iter().map(|range| Range::from(*range)).collect()
        };
        let held_end = request.data.last().map_or(0, |range| u64::from(range.1));
        shared.pulled(held_end * shared.reply.geometry.block_len());
        shared.driver.have(member.receiver, set(&request.data), set(&request.manifest));
        shared.stand().roster.examined(member.receiver, request.examined);
        shared.changed.notify_one();
        Ok(())
    }

    async fn receipt(
        &self,
        member: &Member,
        receipt: Receipt,
        proof: SignedReceipt,
    ) -> Result<(), ApiError> {
        let shared = &self.0;
        if shared.stand().receipt(member.receiver, receipt, proof) {
            shared.driver.set_delivery(member.receiver, Delivery::Ended);
        }
        shared.changed.notify_one();
        Ok(())
    }

    async fn leave(&self, member: &Member, request: LeaveRequest) -> Result<(), ApiError> {
        let shared = &self.0;
        shared.stand().roster.leave(member.receiver, request.reason);
        shared.tell_owner(Heard::Away { receiver: member.receiver });
        shared.driver.set_delivery(member.receiver, Delivery::Ended);
        shared.changed.notify_one();
        Ok(())
    }

    async fn word(&self, member: &Member, word: Word) -> Result<(), ApiError> {
        let Some(owner) = &self.0.owner else {
            return Err(ApiError::new(ErrorCode::NotFound, "nobody here listens to words"));
        };
        let (done, answered) = oneshot::channel();
        owner.tell(Heard::Word { node: member.node, text: word.text, done });
        let busy = |_| ApiError::new(ErrorCode::Busy, "it was not taken: say it again later");
        answered.await.map_err(busy)
    }

    fn subscribed(&self, member: &Member, events: EventSender) {
        let shared = &self.0;
        let mut stand = shared.stand();
        stand.roster.subscribe(member.receiver, events);
        let manifest = stand.manifest.clone();
        let (started, ends) = (stand.started, stand.told_ends);
        let Some(entry) = stand.roster.find(member.receiver) else { return };
        for (index, symbols) in manifest.chunks(MANIFEST_SYMBOLS_MAX).enumerate() {
            let first = (index * MANIFEST_SYMBOLS_MAX) as u32;
            entry.tell(Event::Manifest { first, symbols: symbols.to_vec() });
        }
        if let Some(feed) = &shared.feed {
            let (lists, blocks) = feed.news(entry.products_from);
            lists.into_iter().for_each(|list| entry.tell(list));
            entry.told = Told { blocks, ends };
        }
        if started {
            entry.tell(Event::Start);
        }
        entry.tell(shared.ends_event(ends));
        stand.tell_withdrawn();
        // It listens to the group by now: a probe.
        shared.changed.notify_one();
    }

    fn unsubscribed(&self, member: &Member) {
        let shared = &self.0;
        if shared.stand().roster.unsubscribe(member.receiver) {
            shared.driver.set_delivery(member.receiver, Delivery::Ended);
            shared.tell_owner(Heard::Away { receiver: member.receiver });
        }
        shared.changed.notify_one();
    }

    fn extent(&self, kind: BlockKind) -> Extent {
        let shared = &self.0;
        let stand = shared.stand();
        let block_len = shared.reply.geometry.block_len();
        let symbol_len = u64::from(shared.reply.geometry.symbol_len);
        let len = match kind {
            BlockKind::Data => {
                let offered = u64::from(stand.data_end) * block_len;
                shared.source.data_len().map_or(offered, |len| len.min(offered))
            }
            BlockKind::Manifest => match stand.manifest.split_last() {
                Some((last, before)) => {
                    before.len() as u64 * block_len + u64::from(*last) * symbol_len
                }
                None => 0,
            },
        };
        Extent { len, complete: stand.offered_all }
    }

    fn given(&self, receiver: ReceiverId, bytes: u64) {
        if let Some(member) = self.0.stand().roster.find(receiver) {
            member.given += bytes;
        }
    }

    fn first_reads(&self) -> Arc<FirstReads> {
        self.0.source.first_reads()
    }

    fn kept(&self, range: Range<u64>) -> Option<Vec<Part>> {
        let parts = self.0.source.kept(range.clone())?;
        self.0.pulled(range.end);
        Some(parts)
    }

    fn read(&self, kind: BlockKind, range: Range<u64>) -> Result<Vec<u8>, ApiError> {
        let source = &self.0.source;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        match kind {
            BlockKind::Data => {
                source.read_data(range.start, &mut bytes).map_err(unreadable)?;
                self.0.pulled(range.end);
            }
            BlockKind::Manifest => self.read_manifest(range, &mut bytes)?,
        }
        Ok(bytes)
    }

    fn repair(&self, block: BlockId, symbols: Range<u16>) -> Result<Vec<u8>, ApiError> {
        let source = &self.0.source;
        let geometry = self.0.reply.geometry;
        let symbol_len = usize::from(geometry.symbol_len);
        let k = source.symbols(block).ok_or_else(|| unreadable("there is no such block"))?;
        let mut bytes = vec![0; usize::from(k) * symbol_len];
        source.read(block, &mut bytes).map_err(unreadable)?;
        let mut repair = vec![0; symbols.len() * symbol_len];
        let encoded = Codec::new(geometry.code).encode(&bytes, symbol_len, symbols, &mut repair);
        encoded.map_err(unreadable)?;
        Ok(repair)
    }
}

impl Endpoint {
    /// The manifest's bytes lie block by block, each K·T apart, the rest of a short block zeros.
    fn read_manifest(&self, range: Range<u64>, bytes: &mut [u8]) -> Result<(), ApiError> {
        let block_len = self.0.reply.geometry.block_len();
        let symbol_len = usize::from(self.0.reply.geometry.symbol_len);
        let mut at = range.start;
        while at < range.end {
            let number = u32::try_from(at / block_len).map_err(unreadable)?;
            let block = BlockId::manifest(number).ok_or_else(|| unreadable("no such block"))?;
            let k = self.0.source.symbols(block).ok_or_else(|| unreadable("no such block"))?;
            let mut whole = vec![0; usize::from(k) * symbol_len];
            self.0.source.read(block, &mut whole).map_err(unreadable)?;
            let end = range.end.min((u64::from(number) + 1) * block_len);
            let from = ((at % block_len) as usize).min(whole.len());
            let until = (from + (end - at) as usize).min(whole.len());
            let to = (at - range.start) as usize;
            bytes[to..to + until - from].copy_from_slice(&whole[from..until]);
            at = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::roster::tests::{last_receipt, newcomer};
    use super::super::roster::{LISTEN_TIME_MAX, Newcomer, Stage};
    use super::{Stand, first_block};
    use downpour_transport::control::{InstanceId, ObjectFailure, Receipt};
    use downpour_transport::identity::Identity;
    use std::time::Instant;

    #[test]
    fn who_joined_and_is_given_up_is_named_before_the_start() {
        let mut stand = Stand::default();
        stand.roster.join(newcomer("n1", 1));
        let now = Instant::now();
        assert!(stand.expire(now).is_empty());
        let late = now + LISTEN_TIME_MAX;
        assert_eq!((stand.expire(late).len(), stand.expire(late).len()), (1, 0));
        let told =
            "n1 joined, and was not heard of again: look whether its network and its disk answer";
        assert_eq!(stand.take_news(late), [told]);
    }

    #[test]
    fn a_notice_is_told_at_once_and_stands_in_the_report() {
        let mut stand = Stand::default();
        stand.notice("nobody hears the stream".to_owned());
        assert_eq!(stand.take_news(Instant::now()), ["nobody hears the stream"]);
        assert_eq!(stand.notices, ["nobody hears the stream"]);
    }

    // docs/protocol.md#PROD-1, #PROD-14
    #[test]
    fn who_comes_back_gets_what_is_kept_of_what_it_has_not_got() {
        assert_eq!(first_block(None, 0, 9), 9, "who is new");
        assert_eq!(first_block(Some(5), 2, 9), 5);
        assert_eq!(first_block(Some(1), 2, 9), 2, "one is not kept any more");
        assert_eq!(first_block(Some(12), 2, 9), 9, "it does not know");
    }

    #[test]
    fn blocks_that_are_not_kept_any_more_make_one_notice_in_a_session_without_end() {
        let mut stand = Stand::default();
        assert_eq!(stand.unread_notice(), None);
        stand.add_unread("block d7 is gone".to_owned());
        assert_eq!(stand.unread_notice().as_deref(), Some("block d7 is gone"));
        (8..10_000).for_each(|number| stand.add_unread(format!("block d{number} is gone")));
        assert_eq!(stand.unread_notice().as_deref(), Some("block d7 is gone (and 9992 more)"));
        assert!(stand.notices.is_empty());
    }

    #[test]
    fn of_who_has_come_back_no_receipt_is_kept() {
        let node = Identity::generate();
        let mut stand = Stand { is_batch: true, ..Stand::default() };
        let who = || Newcomer {
            name: "a".to_owned(),
            node: node.public_key(),
            instance: InstanceId::from_bytes([7; 16]),
            addr: "127.0.0.1:1".parse().unwrap(),
            goes_on: false,
        };
        let (first, _) = stand.roster.join(who());
        let receipt = last_receipt(first, 0);
        let proof = receipt.clone().sign(&node);
        assert!(stand.receipt(first, receipt.clone(), proof.clone()));
        let (second, _) = stand.roster.join(who());
        assert!(!stand.receipt(first, receipt, proof), "it is here under another number");
        assert_eq!(stand.roster.find(second).unwrap().proof, None);
    }

    #[test]
    fn of_receipts_that_nobody_asks_for_only_what_the_report_says_is_kept() {
        for is_batch in [false, true] {
            let mut stand = Stand { is_batch, ..Stand::default() };
            let (id, _) = stand.roster.join(newcomer("a", 1));
            let failure = |object| ObjectFailure { object, reason: "it differs".to_owned() };
            let failures = (0..4000).map(failure).collect();
            let receipt = Receipt { failures, ..last_receipt(id, 5000) };
            let proof = receipt.clone().sign(&Identity::generate());
            assert!(stand.receipt(id, receipt, proof));
            let member = stand.roster.find(id).unwrap();
            assert_eq!(member.proof.is_some(), is_batch);
            let why = "5000 failures, the first: it differs".to_owned();
            assert_eq!(member.stage, Stage::Failed(why));
            let kept = member.receipt.as_ref().unwrap();
            let failures = if is_batch { 4000 } else { 1 };
            assert_eq!((kept.objects_failed, kept.failures.capacity()), (5000, failures));
        }
    }
}
