//! The receivers of a session as the sender sees them.
//!
//! A member joins, streams, may be moved to pulling and back, and ends in one of the final states. What
//! it reports is digested here into loss, round trip and [`RateSample`]s.

use super::rounds::{RoundLog, SentRound};
use crate::ids::ReceiverId;
use crate::loss::Loss;
use crate::range_set::RangeSet;
use crate::rate::RateSample;
use crate::recovery::LossTable;
use crate::time::{Duration, Timestamp};
use crate::wire::Feedback;
use alloc::collections::BTreeMap;

/// Most members of a session.
pub const MEMBERS_MAX: usize = 200_000;

/// How a member gets its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// By the stream; what it misses it pulls.
    Stream,
    /// By pull only: multicast does not reach it, or it could not keep up.
    Pull,
    /// It has receipted everything, has left, failed, or died.
    Ended,
}

/// One receiver.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) delivery: Delivery,
    pub(super) loss: Loss,
    pub(super) rtt: Option<Duration>,
    pub(super) data_held: u32,
    /// Blocks that it had when it joined.
    pub(super) had_data: RangeSet,
    pub(super) had_manifest: RangeSet,
    last: Option<LastReport>,
    pub(super) heard_at: Timestamp,
    /// When it came to the stream: of blocks opened before, it has missed a part.
    pub(super) on_stream_since: Timestamp,
    /// (sent, received) datagrams since the straggler policy last looked.
    pub(super) span: (u64, u64),
    /// Feedback messages so far.
    pub(super) messages: u64,
    /// NACKs in them.
    pub(super) nacks: u64,
    pub(super) received: u64,
    pub(super) host_drops: u64,
}

#[derive(Debug)]
struct LastReport {
    sent: SentRound,
    received: u64,
    polled_at: Timestamp,
    host_drops: u64,
    ce_marks: u64,
}

impl Member {
    pub(super) fn new(now: Timestamp, delivery: Delivery) -> Self {
        Self {
            delivery,
            loss: Loss::default(),
            rtt: None,
            data_held: 0,
            had_data: RangeSet::new(),
            had_manifest: RangeSet::new(),
            last: None,
            heard_at: now,
            on_stream_since: now,
            span: (0, 0),
            messages: 0,
            nacks: 0,
            received: 0,
            host_drops: 0,
        }
    }

    /// Forgets what was reported: the next span starts at the next report.
    pub(super) fn restart_spans(&mut self) {
        self.last = None;
        self.span = (0, 0);
    }

    /// Takes a report; the sample is of the span since the one before, if there was one.
    pub(super) fn on_report(
        &mut self,
        now: Timestamp,
        me: ReceiverId,
        report: &Feedback,
        rounds: &RoundLog,
        bytes_now: u64,
    ) -> Option<RateSample> {
        self.heard_at = now;
        self.messages += 1;
        self.nacks += report.needs.len() as u64;
        self.data_held = report.data_held;
        let sent = *rounds.find(report.round)?;
        let rtt = now.since(sent.at).saturating_sub(report.hold);
        self.rtt = Some(rtt);
        let next = LastReport {
            sent,
            received: report.received,
            polled_at: report.polled_at,
            host_drops: report.host_drops,
            ce_marks: report.ce_marks,
        };
        let is_overtaken = self.last.as_ref().is_some_and(|last| sent.packet <= last.sent.packet);
        if is_overtaken {
            return None; // By a later answer, or this is a second NACK to the same poll.
        }
        // Counters that run backwards are a receiver's lie or its restart: start again. The first
        // report closes an empty span: its delays tell of a path that is still empty.
        let backwards = |last: &LastReport| {
            report.received < last.received || report.polled_at < last.polled_at
        };
        let last = self.last.take().filter(|last| !backwards(last));
        let last = last.as_ref().unwrap_or(&next);
        let sample = RateSample {
            receiver: me,
            sent_packets: sent.packet.0 - last.sent.packet.0,
            sent_bytes: sent.bytes - last.sent.bytes,
            send_interval: sent.at.since(last.sent.at),
            received_packets: report.received - last.received,
            receive_interval: report.polled_at.since(last.polled_at),
            poll_sent: sent.at,
            bytes_since: bytes_now - sent.bytes,
            rtt,
            transit_ns: report.polled_at.as_nanos() as i64 - sent.at.as_nanos() as i64,
            host_drops: report.host_drops.saturating_sub(last.host_drops),
            ce_marks: report.ce_marks.saturating_sub(last.ce_marks),
            app_limited: sent.limited != last.sent.limited,
        };
        self.loss.on_span(sample.sent_packets, sample.received_packets);
        self.span.0 += sample.sent_packets;
        self.span.1 += sample.received_packets.min(sample.sent_packets);
        self.received = report.received;
        self.host_drops = report.host_drops;
        self.last = Some(next);
        Some(sample)
    }
}

/// All of them, by id.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) by_id: BTreeMap<ReceiverId, Member>,
    streaming: u32,
    pulling: u32,
}

impl Members {
    pub(super) const fn streaming(&self) -> u32 {
        self.streaming
    }

    pub(super) const fn pulling(&self) -> u32 {
        self.pulling
    }

    const fn count_of(&mut self, delivery: Delivery) -> Option<&mut u32> {
        match delivery {
            Delivery::Stream => Some(&mut self.streaming),
            Delivery::Pull => Some(&mut self.pulling),
            Delivery::Ended => None,
        }
    }

    /// Adds a member; false when the session is full.
    pub(super) fn insert(&mut self, id: ReceiverId, member: Member) -> bool {
        if self.by_id.len() >= MEMBERS_MAX && !self.by_id.contains_key(&id) {
            return false;
        }
        if let Some(count) = self.count_of(member.delivery) {
            *count += 1;
        }
        if let Some(old) = self.by_id.insert(id, member)
            && let Some(count) = self.count_of(old.delivery)
        {
            *count -= 1;
        }
        true
    }

    /// Changes how `id` is served; the old way, or `None` when there is no such member.
    pub(super) fn set_delivery(&mut self, id: ReceiverId, new: Delivery) -> Option<Delivery> {
        let member = self.by_id.get_mut(&id)?;
        let old = core::mem::replace(&mut member.delivery, new);
        if let Some(count) = self.count_of(old) {
            *count -= 1;
        }
        if let Some(count) = self.count_of(new) {
            *count += 1;
        }
        Some(old)
    }

    pub(super) fn on_stream(&self) -> impl Iterator<Item = (ReceiverId, &Member)> {
        self.by_id.iter().filter(|(_, m)| m.delivery == Delivery::Stream).map(|(id, m)| (*id, m))
    }

    /// The losses of those on the stream; who has not reported counts with the mean of those who have.
    pub(super) fn losses(&self, except: Option<ReceiverId>) -> LossTable {
        let mut table = LossTable::default();
        let (mut known, mut sum) = (0.0, 0.0);
        for (id, member) in self.on_stream() {
            if let Some(share) = member.loss.share().filter(|_| Some(id) != except) {
                table.add(share, 1.0);
                known += 1.0;
                sum += share;
            }
        }
        if known > 0.0 {
            let rest = f64::from(self.streaming) - known;
            table.add(sum / known, rest.max(0.0));
        }
        table
    }
}
