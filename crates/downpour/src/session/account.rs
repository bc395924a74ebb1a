//! Progress and report of a session, from the roster, the driver's snapshot and the receipts.
//!
//! The sender's [`Ledger`] and [`report`] are for `send`; a receiver's [`ReceiverAccount`] is kept by `attempt`, which asks it for
//! the report at the end. Here figures are put together that others count (the machines, the pulls, the store), and none is
//! printed or written: that is `report`'s and `progress`'s, outside `session`.

use super::carried::Carried;
use super::roster::{Member, Stage, failures};
use crate::cli::ReceivePlan;
use crate::object::Summary;
use crate::progress::{Phase, Row, Snapshot};
use crate::report::{
    Named, ReceiverReport, ReceiverState, Rejected, Report, Role, SCHEMA, SentBytes, SessionReport,
    TransferReport,
};
use downpour_proto::sender::{Delivery, MemberStats};
use downpour_proto::{BlockId, BlockKind, Duration, Geometry, Rate, ReceiverId};
use downpour_transport::control::{Joined, Receipt};
use downpour_transport::session::{ReceiveSnapshot, SendSnapshot};
use downpour_transport::{OVERHEAD, RejectCounts};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Why who never left the stream pulled all.
const BROUGHT_NOTHING: &str =
    "it heard the stream, but no block that it lacked came whole that way";

/// What the sender's account is made of, besides the members.
pub(super) struct Ledger {
    pub(super) opened: Instant,
    pub(super) started: Option<Instant>,
    pub(super) source: Arc<dyn Carried>,
    pub(super) geometry: Geometry,
    pub(super) data_len: Option<u64>,
    /// Bytes and time of the last look, for present rates.
    pub(super) last: (Instant, u64),
    pub(super) rate: Rate,
}

impl Ledger {
    /// Notes how much has been sent; the present rate is over a second or so.
    pub(super) fn observe(&mut self, now: Instant, bytes: u64) {
        let since = now.duration_since(self.last.0);
        if since >= Duration::from_millis(500) {
            self.rate = Rate::of(bytes.saturating_sub(self.last.1), since);
            self.last = (now, bytes);
        }
    }

    pub(super) fn snapshot<'a>(
        &self,
        phase: Phase,
        sent: &SendSnapshot,
        members: impl Iterator<Item = (ReceiverId, &'a Member)>,
    ) -> Snapshot {
        let receivers = members.map(|(id, member)| {
            let stats = sent.members.get(&id);
            let told = self.source.bytes_of(stats.map_or(0, |s| s.data_held));
            let pulls = stats.is_some_and(|s| s.delivery != Delivery::Stream);
            let done = match (&member.stage, self.data_len) {
                (Stage::Complete, Some(len)) => len,
                (_, len) => done(told, if pulls { member.given } else { 0 }, len),
            };
            let since = self.started.map_or(Duration::ZERO, |at| at.elapsed());
            Row {
                name: member.name.clone(),
                state: state_word(member, stats),
                done_bytes: done,
                rate: if since.is_zero() { Rate::from_bps(0) } else { Rate::of(done, since) },
                loss: stats.and_then(|s| s.loss).unwrap_or(0.0),
            }
        });
        let source = sent.stats.source_symbols.max(1) as f64;
        Snapshot {
            elapsed: self.opened.elapsed(),
            phase,
            data_bytes: self.data_len,
            rate: self.rate,
            repair: sent.stats.repair_symbols as f64 / source,
            receivers: receivers.collect(),
        }
    }
}

/// What a receiver has taken from the stream by its own feedback, as far as that can be told without a receipt: no more
/// than the bytes of blocks that it says it holds, which may have come otherwise, nor than the datagrams that reached it.
fn by_stream(held: u64, datagrams: u64, symbol_len: u16) -> u64 {
    held.min(datagrams.saturating_mul(u64::from(symbol_len)))
}

/// What a receiver has: what it told of last, which only those do that follow the stream, and what it was given since.
fn done(told: u64, given: u64, data_len: Option<u64>) -> u64 {
    told.saturating_add(given).min(data_len.unwrap_or(u64::MAX))
}

fn state_word(member: &Member, stats: Option<&MemberStats>) -> &'static str {
    match (&member.stage, stats.map(|s| s.delivery)) {
        (Stage::Joined, _) => "joining",
        (Stage::Ready, Some(Delivery::Pull)) => "pull",
        (Stage::Ready, _) => "stream",
        (Stage::Complete, _) => "complete",
        (Stage::Failed(_), _) => "failed",
        (Stage::Gone { .. }, _) => "gone",
    }
}

/// What only the session knows of itself.
pub(super) struct Heading {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) group: Option<String>,
    pub(super) interface: Option<String>,
    /// So many `--receivers` said.
    pub(super) wanted: u32,
    pub(super) profile: String,
    pub(super) rate_limit: Option<Rate>,
    pub(super) objects: u64,
    pub(super) pull_bytes: u64,
    pub(super) transfer: Option<TransferReport>,
    /// Connections that showed no token.
    pub(super) strangers: u64,
    pub(super) skipped: Vec<Named>,
    pub(super) failed: Vec<Named>,
    pub(super) notices: Vec<String>,
    /// Names that `--expect` gave and that never joined.
    pub(super) absent: Vec<String>,
}

/// The sender's report.
pub(super) fn report(
    heading: Heading,
    ledger: &Ledger,
    sent: &SendSnapshot,
    members: &BTreeMap<ReceiverId, &Member>,
) -> Report {
    let started = ledger.started.unwrap_or(ledger.opened);
    let ended = members.values().filter_map(|m| m.ended_at).max().unwrap_or_else(Instant::now);
    let duration = ended.saturating_duration_since(started);
    let data_bytes = ledger.data_len.unwrap_or(0);
    let bytes = sent_bytes(ledger.geometry, sent, heading.pull_bytes);
    let products = ledger.source.products();
    // Over a long way all is pulled where that is faster.
    let streams = heading.transfer.is_none();
    let mut receivers: Vec<ReceiverReport> = members
        .iter()
        .map(|(id, member)| {
            let stats = sent.members.get(id);
            let told = stats.map_or(0, |s| {
                let held = ledger.source.bytes_of(s.data_held);
                by_stream(held, s.received, ledger.geometry.symbol_len)
            });
            receiver_report((member, products), (stats, told), (started, streams))
        })
        .collect();
    receivers.extend(heading.absent.into_iter().map(absent));
    let symbols = sent.stats.source_symbols.saturating_sub(sent.stats.manifest_symbols);
    // What was refused is brought by repair, or by pull.
    let streamed = (symbols * u64::from(ledger.geometry.symbol_len)).min(sent.left_bytes());
    let needed = needed((streamed, bytes.pull_bytes), &receivers).min(data_bytes);
    let overhead = match needed {
        0 => 0.0,
        needed => bytes.total() as f64 / needed as f64 - 1.0,
    };
    Report {
        schema: SCHEMA,
        downpour: env!("CARGO_PKG_VERSION").to_owned(),
        role: Role::Sender,
        session: SessionReport {
            id: heading.id,
            name: heading.name,
            group: heading.group,
            interface: heading.interface,
            receivers_wanted: heading.wanted,
            profile: heading.profile,
            code: ledger.geometry.code.name().to_owned(),
            rate_limit_bps: heading.rate_limit.map(Rate::bps),
            started_unix_s: unix_s(started),
            duration_s: duration.as_secs_f64(),
            objects: heading.objects,
            data_bytes,
            sent: bytes,
            source_symbols: sent.stats.source_symbols,
            proactive_repair_symbols: sent.stats.proactive_symbols,
            repair_symbols: sent.stats.repair_symbols - sent.stats.proactive_symbols,
            rounds: u64::from(sent.rounds),
            feedback_messages: sent.stats.feedback,
            feedback_bytes: sent.stats.feedback_bytes,
            grtt_ms: sent.grtt.as_secs_f64() * 1e3,
            goodput_bps: rate_bps(needed, duration),
            overhead,
            rejected: Rejected { strangers: heading.strangers, ..rejected(&sent.rejects) },
        },
        transfer: heading.transfer,
        receivers,
        failed: heading.failed,
        skipped: heading.skipped,
        notices: heading.notices,
    }
}

/// Bytes of data that had to be brought once: what went by the stream, or what came to the receiver that got most, if that is
/// more. It is less than the data where receivers held some already.
fn needed((streamed, pulled): (u64, u64), receivers: &[ReceiverReport]) -> u64 {
    let came_to = |receiver: &ReceiverReport| {
        // Who joined late may have it from this session: it was started again.
        let kept = if receiver.joined_s > 0.0 { receiver.kept_bytes } else { 0 };
        receiver.stream_bytes.saturating_add(receiver.pull_bytes).saturating_add(kept)
    };
    let most = receivers.iter().map(came_to).max().unwrap_or(0);
    streamed.max(most.min(streamed + pulled))
}

fn rejected(counts: &RejectCounts) -> Rejected {
    Rejected {
        truncated: counts.truncated,
        oversized: counts.oversized,
        malformed: counts.malformed,
        wrong_stream: counts.wrong_stream,
        wrong_epoch: counts.wrong_epoch,
        replayed: counts.replayed,
        forged: counts.forged,
        strangers: 0,
    }
}

fn rate_bps(bytes: u64, time: Duration) -> u64 {
    if time.is_zero() { 0 } else { Rate::of(bytes, time).bps() }
}

/// Seconds since 1970 of an instant of this process.
fn unix_s(at: Instant) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(at.elapsed()).as_secs_f64()
}

fn sent_bytes(geometry: Geometry, sent: &SendSnapshot, pull_bytes: u64) -> SentBytes {
    let datagram = u64::from(geometry.symbol_len) + OVERHEAD as u64;
    let stats = &sent.stats;
    let data_source = stats.source_symbols.saturating_sub(stats.manifest_symbols);
    SentBytes {
        source_bytes: (data_source * datagram).saturating_sub(stats.cut_bytes),
        proactive_repair_bytes: stats.proactive_symbols * datagram,
        repair_bytes: (stats.repair_symbols - stats.proactive_symbols) * datagram,
        manifest_bytes: stats.manifest_symbols.min(stats.source_symbols) * datagram,
        control_bytes: stats.message_bytes,
        pull_bytes,
        refused_bytes: sent.refused_bytes,
    }
}

/// What a receiver lacks of so many products by its receipt, although it has all that there were for it
/// (`docs/protocol.md#PROD-1`).
fn late(receipt: Option<&Receipt>, products: Option<u64>) -> Option<String> {
    let complete = receipt?.objects_complete;
    let before = products?.checked_sub(complete).filter(|before| *before > 0)?;
    Some(match complete {
        0 => "joined late, after the last product".to_owned(),
        _ => format!("joined late, and has only the products from number {before} on"),
    })
}

fn receiver_report(
    (member, products): (&Member, Option<u64>),
    (stats, told): (Option<&MemberStats>, u64),
    (started, streams): (Instant, bool),
) -> ReceiverReport {
    let receipt = member.receipt.as_ref();
    let (stream_bytes, pull_bytes, kept_bytes) =
        receipt.map_or((told, 0, 0), |r| (r.bytes_by_stream, r.bytes_by_pull, r.bytes_held));
    let state = match &member.stage {
        Stage::Complete => {
            let left = left_stream(member.left_stream.clone(), streams, (stream_bytes, pull_bytes));
            let arrived = ReceiverState::arrived(left, member.multicast, stream_bytes, pull_bytes);
            late(receipt, products).map_or(arrived, |why| ReceiverState::Failed { why })
        }
        Stage::Failed(why) => ReceiverState::Failed { why: why.clone() },
        Stage::Gone { why, .. } => ReceiverState::Gone { why: (*why).to_owned() },
        Stage::Joined | Stage::Ready => {
            ReceiverState::Gone { why: "the session ended before it was complete".to_owned() }
        }
    };
    let ended = member.ended_at.unwrap_or_else(Instant::now);
    let (joined_s, ended_s) = (
        member.begun_at.saturating_duration_since(started).as_secs_f64(),
        ended.saturating_duration_since(started).as_secs_f64(),
    );
    let active = Duration::from_secs_f64((ended_s - joined_s).max(0.0));
    ReceiverReport {
        name: member.name.clone(),
        address: member.addr.to_string(),
        key: member.node.to_string(),
        state,
        multicast: member.multicast,
        joined_s,
        ended_s,
        stream_bytes,
        pull_bytes,
        kept_bytes,
        rate_bps: rate_bps(stream_bytes + pull_bytes, active),
        loss: stats.map_or(0.0, |s| s.loss_ever),
        repair_symbols: receipt.map_or(0, |r| r.repair_symbols),
        nacks: stats.map_or(0, |s| s.nacks),
    }
}

/// Why a receiver pulled, if it did: it left the stream, or that was too slow for it or too late.
pub(super) fn left_stream(
    left: Option<String>,
    streams: bool,
    (stream_bytes, pull_bytes): (u64, u64),
) -> Option<String> {
    let brought_nothing = streams && stream_bytes == 0 && pull_bytes > 0;
    left.or_else(|| brought_nothing.then(|| BROUGHT_NOTHING.to_owned()))
}

fn absent(name: String) -> ReceiverReport {
    ReceiverReport {
        name,
        address: String::new(),
        key: String::new(),
        state: ReceiverState::Absent,
        multicast: false,
        joined_s: 0.0,
        ended_s: 0.0,
        stream_bytes: 0,
        pull_bytes: 0,
        kept_bytes: 0,
        rate_bps: 0,
        loss: 0.0,
        repair_symbols: 0,
        nacks: 0,
    }
}

/// What a receiver keeps account of.
#[derive(Clone)]
pub(super) struct ReceiverAccount {
    /// When its first attempt began: its times count from there.
    since: Instant,
    /// When this one did: what came, which is this one's, has come since.
    joined_at: Instant,
    session: String,
    name: String,
    address: String,
    pub(super) objects: u32,
    /// Bytes of data blocks that were pulled.
    pub(super) data_pulled: u64,
    pub(super) failure: Option<String>,
    pub(super) notices: Vec<String>,
    /// How the blocks came, over a long way.
    pub(super) transfer: Option<TransferReport>,
}

impl ReceiverAccount {
    /// Of an attempt that begins now.
    pub(super) fn new(joined: &Joined, since: Instant, notices: Vec<String>) -> Self {
        Self {
            since,
            joined_at: Instant::now(),
            session: joined.reply.session.to_text(),
            name: joined.reply.name.clone(),
            address: joined.sender.to_string(),
            objects: 0,
            data_pulled: 0,
            failure: None,
            notices,
            transfer: None,
        }
    }

    /// When it joined, and what it has pulled: where the next attempt in a session of products goes on.
    pub(super) const fn mark(&self) -> (Instant, u64) {
        (self.joined_at, self.data_pulled)
    }

    /// It is the next attempt of one that had come so far.
    pub(super) const fn go_on(&mut self, (joined_at, data_pulled): (Instant, u64)) {
        (self.joined_at, self.data_pulled) = (joined_at, data_pulled);
    }

    pub(super) fn pulled(&mut self, block: BlockId, bytes: u64) {
        if block.kind() == BlockKind::Data {
            self.data_pulled += bytes;
        }
    }

    /// The receiver's report of itself.
    pub(super) fn report(
        self,
        plan: &ReceivePlan,
        summary: &Summary,
        driver: &ReceiveSnapshot,
        data_len: Option<u64>,
        (left, reached): (Option<String>, bool),
    ) -> Report {
        let (time, active) = (self.since.elapsed(), self.joined_at.elapsed());
        let data_bytes = data_len.unwrap_or(summary.bytes_received + summary.bytes_held);
        let by_pull = self.data_pulled.min(summary.bytes_received);
        let by_stream = summary.bytes_received - by_pull;
        let state = match (self.failure, summary.failed.first()) {
            (Some(why), _) => ReceiverState::Failed { why },
            (None, None) => ReceiverState::arrived(left, reached, by_stream, by_pull),
            (None, Some((name, why))) => {
                let why = failures(summary.failed.len() as u64, &format!("{name}: {why}"));
                ReceiverState::Failed { why }
            }
        };
        let receiver = ReceiverReport {
            name: plan.name.clone(),
            address: self.address,
            key: String::new(),
            state,
            multicast: reached,
            joined_s: 0.0,
            ended_s: time.as_secs_f64(),
            stream_bytes: by_stream,
            pull_bytes: by_pull,
            kept_bytes: summary.bytes_held,
            rate_bps: rate_bps(summary.bytes_received, active),
            loss: driver.loss_ever,
            repair_symbols: driver.stats.repair_kept,
            nacks: driver.stats.nacks,
        };
        Report {
            schema: SCHEMA,
            downpour: env!("CARGO_PKG_VERSION").to_owned(),
            role: Role::Receiver,
            session: SessionReport {
                id: self.session,
                name: self.name,
                started_unix_s: unix_s(self.since),
                duration_s: time.as_secs_f64(),
                objects: u64::from(self.objects),
                data_bytes,
                feedback_messages: driver.stats.feedback,
                goodput_bps: rate_bps(summary.bytes_received, active),
                rejected: rejected(&driver.rejects),
                ..SessionReport::default()
            },
            transfer: self.transfer,
            receivers: vec![receiver],
            failed: summary.failed.iter().cloned().map(|(name, why)| Named { name, why }).collect(),
            skipped: Vec::new(),
            notices: self.notices,
        }
    }
}

/// A receiver's progress, which holds so many `bytes`.
pub(super) fn receiver_snapshot(
    account: &ReceiverAccount,
    plan: &ReceivePlan,
    driver: &ReceiveSnapshot,
    (started, data_len): (bool, Option<u64>),
    bytes: u64,
) -> Snapshot {
    let elapsed = account.since.elapsed();
    let done = data_len.map_or(bytes, |len| bytes.min(len));
    let rate = if elapsed.is_zero() { Rate::from_bps(0) } else { Rate::of(done, elapsed) };
    let row = Row {
        name: plan.name.clone(),
        state: if driver.has_all { "storing" } else { "stream" },
        done_bytes: done,
        rate,
        loss: driver.loss,
    };
    // The stream can be faster than the word of its start; probes come before it.
    let waiting = !started && driver.data_held == 0;
    Snapshot {
        elapsed,
        phase: match waiting {
            true => Phase::Waiting { what: "for the sender to start".to_owned() },
            false => Phase::Streaming,
        },
        data_bytes: data_len,
        rate,
        repair: 0.0,
        receivers: vec![row],
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BROUGHT_NOTHING, Receipt, ReceiverReport, SendSnapshot, by_stream, done, late, left_stream,
        needed, sent_bytes,
    };
    use crate::report::ReceiverState;
    use crate::report::tests::receiver;
    use crate::session::roster::tests::last_receipt;
    use downpour_proto::{Geometry, ReceiverId};

    #[test]
    fn what_the_network_refused_was_not_sent() {
        let mut snapshot = SendSnapshot::default();
        (snapshot.stats.source_symbols, snapshot.stats.message_bytes) = (10, 500);
        let all = sent_bytes(Geometry::IPV4, &snapshot, 70).total();
        snapshot.refused_bytes = 2 * 1472;
        let sent = sent_bytes(Geometry::IPV4, &snapshot, 70);
        assert_eq!((sent.total(), sent.refused_bytes), (all - 2 * 1472, 2 * 1472));
    }

    #[test]
    fn who_pulls_has_what_it_was_given_and_no_more_than_there_is() {
        assert_eq!((done(0, 7, None), done(3, 7, Some(20))), (7, 10));
        assert_eq!(done(3, 7, Some(9)), 9, "what was asked for twice");
    }

    #[test]
    fn without_a_receipt_what_came_by_stream_is_no_more_than_is_held_nor_than_came() {
        assert_eq!(by_stream(0, 9, 1448), 0, "no block is whole yet");
        assert_eq!(by_stream(1 << 20, 9, 1448), 9 * 1448, "the rest came otherwise");
        assert_eq!(by_stream(1_000, 9, 1448), 1_000, "repair is not data");
    }

    #[test]
    fn who_got_nothing_by_the_stream_is_told_why() {
        let why = |left: Option<&str>, streams, bytes| {
            left_stream(left.map(str::to_owned), streams, bytes)
        };
        assert_eq!(why(None, true, (0, 9)).as_deref(), Some(BROUGHT_NOTHING));
        assert_eq!(why(Some("too slow"), true, (0, 9)).as_deref(), Some("too slow"));
        let nothing_to_say = [(true, (1, 9)), (true, (0, 0)), (false, (0, 9))];
        assert!(
            nothing_to_say.iter().all(|(streams, bytes)| why(None, *streams, *bytes).is_none())
        );
    }

    // docs/protocol.md#PROD-1
    #[test]
    fn who_joined_late_lacks_the_products_before() {
        let receipt = last_receipt(ReceiverId(1), 0);
        let told = |products| late(Some(&receipt), products);
        assert_eq!(told(Some(1)), None, "it has the only one");
        assert!(told(Some(5)).is_some_and(|why| why.ends_with("from number 4 on")));
        assert_eq!(told(None), None, "a tree has what it has");
        let nothing = Receipt { objects_complete: 0, ..receipt.clone() };
        let told = |products| late(Some(&nothing), Some(products));
        assert!(told(5).is_some_and(|why| why.ends_with("after the last product")));
        assert_eq!(told(0), None, "there was none");
        assert_eq!(late(None, Some(5)), None);
    }

    #[test]
    fn what_was_pulled_by_all_had_to_be_brought_once() {
        let got = |stream_bytes, pull_bytes, kept_bytes, joined_s| {
            let receiver = receiver("a", ReceiverState::Complete);
            ReceiverReport { stream_bytes, pull_bytes, kept_bytes, joined_s, ..receiver }
        };
        // All by pull, to two.
        assert_eq!(needed((0, 92), &[got(0, 45, 0, 0.0), got(0, 45, 0, 0.0)]), 45);
        // One had it already, the other needed a part.
        assert_eq!(needed((0, 11), &[got(0, 0, 45, 0.0), got(0, 10, 35, 0.0)]), 10);
        assert_eq!(needed((0, 0), &[got(0, 0, 45, 0.0)]), 0);
        assert_eq!(needed((0, 0), &[got(0, 0, 45, 2.0)]), 0, "nothing was sent");
        // What it kept it had pulled before it was killed.
        assert_eq!(needed((0, 47), &[got(0, 5, 40, 2.0)]), 45);
        // The stream carried more than any receipt tells of.
        assert_eq!(needed((45, 0), &[]), 45);
    }
}
