//! The receivers of a session as the sender sees them.
//!
//! A member joins, streams, may be moved to pulling and back, and ends in one of the final states. What
//! it reports is digested here into loss, round trip and [`RateSample`]s.

use super::rounds::{RoundLog, SentRound};
use crate::feedback::REPORTS_MAX;
use crate::ids::{PacketNumber, ReceiverId, Round};
use crate::loss::{Loss, lost_share};
use crate::path_queue::PathQueue;
use crate::range_set::RangeSet;
use crate::rate::RateSample;
use crate::recovery::LossTable;
use crate::time::{Duration, Timestamp};
use crate::wire::Feedback;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Most members of a session.
pub const MEMBERS_MAX: usize = 200_000;

/// Most ranges of blocks that are remembered as held from before: of one member, so that to take in some more keeps nobody
/// waiting, and of all, so that they have room.
const HAD_RANGES_MAX: (usize, usize) = (1 << 18, 1 << 22);

/// A round trip above the first, and above so many times the median of the group, is one receiver's, not the group's.
pub(super) const LATE: (Duration, u32) = (Duration::from_secs(1), 8);

/// A report holds for so many datagrams.
const REPORT_HOLDS: u64 = 4_000;

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
    /// Of what was sent since the rate was found: it tells of the losses to come.
    pub(super) loss: Loss,
    loss_from: Timestamp,
    /// The same with what was sent in the search.
    loss_with_search: Loss,
    /// (sent, received) of all spans that it has reported.
    spans: (u64, u64),
    pub(super) rtt: Option<Duration>,
    path_queue: PathQueue,
    pub(super) data_held: u32,
    /// Blocks that it had when it joined.
    pub(super) had_data: RangeSet,
    pub(super) had_manifest: RangeSet,
    last: Option<LastReport>,
    /// All were cut off since then: what was lost meanwhile is no chance, nor what it gets too little.
    was_cut_off: bool,
    /// When it joined, and when it came to the stream: of blocks opened before, it has missed a part.
    pub(super) joined_at: Timestamp,
    pub(super) on_stream_since: Timestamp,
    /// It left the stream by its own word, and may be back at any time.
    is_absent: bool,
    pub(super) asked: Asked,
    /// (sent, received) datagrams since the straggler policy last looked, and the times in which they left and arrived.
    span: (u64, u64),
    times: (Duration, Duration),
    /// Feedback messages so far.
    pub(super) messages: u64,
    /// NACKs in them.
    pub(super) nacks: u64,
    pub(super) received: u64,
    pub(super) host_drops: u64,
}

/// Who answers no poll for so long, or for so many round trips, and not the first so many of them, is not heard: it has not come to the
/// stream, or its answers do not come here. Of a larger group nobody is heard when none has answered the last so many.
const UNHEARD: (Duration, u32, u32, u32) = (Duration::from_secs(5), 20, 10, 50);

/// The same for who was heard before: longer than a network may be out, in which TCP would be lost too
/// (`docs/protocol.md#CTL-3`).
pub(super) const SILENCED: Duration = Duration::from_secs(20);

/// Since when polls have asked for an answer in vain, and how many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked(Option<Timestamp>, u32);

impl Asked {
    fn again(&mut self, now: Timestamp) {
        *self = Self(self.0.or(Some(now)), self.1.saturating_add(1));
    }

    /// For longer than `wait`, and so many times.
    fn is_in_vain(self, now: Timestamp, wait: Duration, times: u32) -> bool {
        self.1 >= times && self.0.is_some_and(|since| now.since(since) > wait)
    }
}

#[derive(Debug)]
struct LastReport {
    sent: SentRound,
    received: u64,
    polled_at: Timestamp,
    host_drops: u64,
}

impl Member {
    pub(super) fn new(now: Timestamp, delivery: Delivery) -> Self {
        Self {
            delivery,
            loss: Loss::default(),
            loss_from: Timestamp::ZERO,
            loss_with_search: Loss::default(),
            spans: (0, 0),
            rtt: None,
            path_queue: PathQueue::new(),
            data_held: 0,
            had_data: RangeSet::new(),
            had_manifest: RangeSet::new(),
            last: None,
            was_cut_off: false,
            joined_at: now,
            on_stream_since: now,
            is_absent: false,
            asked: Asked::default(),
            span: (0, 0),
            times: (Duration::ZERO, Duration::ZERO),
            messages: 0,
            nacks: 0,
            received: 0,
            host_drops: 0,
        }
    }

    const fn had_ranges(&self) -> usize {
        self.had_data.ranges() + self.had_manifest.ranges()
    }

    /// It follows the stream from now on.
    pub(super) fn come_to_stream(&mut self, now: Timestamp) {
        (self.on_stream_since, self.asked) = (now, Asked::default());
    }

    /// Forgets what was reported: the next span starts at the next report.
    pub(super) fn restart_spans(&mut self) {
        (self.last, self.was_cut_off) = (None, false);
        self.take_span();
    }

    /// Nobody is heard; when it is again, the others' reports are over this time, too.
    pub(super) const fn cut_off(&mut self) {
        self.was_cut_off = true;
    }

    const fn count(&mut self, sent: u64, received: u64) {
        self.spans.0 += sent;
        self.spans.1 = self.spans.1.saturating_add(received);
    }

    /// Of all that was sent while it followed the stream, what has not come.
    pub(super) fn lost_share(&self) -> f64 {
        let (sent, received) = self.spans;
        lost_share(sent, received)
    }

    /// Whether it has reported anything since then.
    pub(super) const fn has_reported(&self) -> bool {
        self.last.is_some()
    }

    /// Forgets what was lost until `now`, and does not count what is reported of it later: until there is a report of
    /// what leaves from now on, `chance` is the share that is expected to be lost.
    pub(super) fn forget_loss(&mut self, now: Timestamp, chance: f64) {
        self.loss = Loss::expected(chance);
        self.loss_from = now;
    }

    /// Datagrams sent since this was asked last, and what it got of them in that time: what piles up before a narrow
    /// link, or a slow store, it has not got. Nothing, when it told of no later arrival than before: its store had stood
    /// still, and what it told then is ahead of what came.
    pub(super) fn take_span(&mut self) -> (u64, u64) {
        let (sent, received) = core::mem::take(&mut self.span);
        let (left, arrived) = core::mem::take(&mut self.times);
        if arrived.is_zero() {
            return (0, 0);
        }
        let share = left.as_secs_f64() / arrived.as_secs_f64();
        (sent, (received as f64 * share.min(1.0)) as u64)
    }

    /// Takes a report; the sample is of the span since the one before, if there was one.
    pub(super) fn on_report(
        &mut self,
        arrived: Timestamp,
        me: ReceiverId,
        report: &Feedback,
        rounds: &RoundLog,
        bytes_now: u64,
    ) -> Option<RateSample> {
        self.messages += 1;
        self.nacks += report.needs.len() as u64;
        let sent = *rounds.find(report.round)?;
        self.data_held = report.data_held;
        let rtt = arrived.since(sent.at).saturating_sub(report.hold);
        self.rtt = Some(rtt);
        let in_store = report.queue.saturating_sub(report.path_queue);
        let on_path = self.path_queue.believed(report.path_queue, rtt);
        let next = LastReport {
            sent,
            received: report.received,
            polled_at: report.polled_at,
            host_drops: report.host_drops,
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
        let mut last = self.last.take().filter(|last| !backwards(last));
        if core::mem::take(&mut self.was_cut_off)
            && let Some(last) = last.take()
        {
            self.count(sent.packet.0 - last.sent.packet.0, report.received - last.received);
        }
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
            queue_delay: in_store + on_path,
            host_drops: report.host_drops.saturating_sub(last.host_drops),
            app_limited: sent.limited != last.sent.limited,
        };
        self.loss_with_search.on_span(sample.sent_packets, sample.received_packets);
        if last.sent.at >= self.loss_from {
            self.loss.on_span(sample.sent_packets, sample.received_packets);
        }
        self.count(sample.sent_packets, sample.received_packets);
        self.span.0 += sample.sent_packets;
        self.span.1 += sample.received_packets.min(sample.sent_packets);
        self.times.0 += sample.send_interval;
        self.times.1 += sample.receive_interval;
        self.received = report.received;
        self.host_drops = report.host_drops;
        self.last = Some(next);
        self.asked = Asked::default();
        Some(sample)
    }
}

/// All of them, by id.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) by_id: BTreeMap<ReceiverId, Member>,
    streaming: u32,
    pulling: u32,
    absent: u32,
    had_ranges: usize,
    /// Anybody of a group in which few are asked each time, since somebody came to the stream.
    pub(super) asked: Asked,
}

impl Members {
    /// One who is not heard on the stream, at this round trip. Of a large group few are asked each time, and that one of them is
    /// silent says nothing: only that all are does.
    pub(super) fn unheard(&self, now: Timestamp, round_trip: Duration) -> Option<ReceiverId> {
        let (least, round_trips, polls, polls_of_many) = UNHEARD;
        let wait = |was_heard| {
            let least = if was_heard { SILENCED } else { least };
            least.max(round_trip.saturating_mul(round_trips))
        };
        let mut on_stream = self.on_stream();
        let unheard = if self.streaming <= REPORTS_MAX {
            on_stream.find(|(_, m)| m.asked.is_in_vain(now, wait(m.has_reported()), polls))
        } else if self.asked.is_in_vain(now, wait(self.is_heard()), polls_of_many) {
            on_stream.next()
        } else {
            None
        };
        unheard.map(|(id, _)| id)
    }

    /// Anybody on the stream.
    pub(super) fn is_heard(&self) -> bool {
        self.on_stream().any(|(_, member)| member.has_reported())
    }

    /// Whether all on the stream have answered this round's poll or a later one.
    pub(super) fn have_answered(&self, round: Round) -> bool {
        self.on_stream().all(|(_, m)| m.last.as_ref().is_some_and(|last| last.sent.round >= round))
    }

    pub(super) const fn streaming(&self) -> u32 {
        self.streaming
    }

    pub(super) const fn pulling(&self) -> u32 {
        self.pulling
    }

    /// Who left the stream by their own word.
    pub(super) const fn absent(&self) -> u32 {
        self.absent
    }

    /// It has left the stream by its own word.
    pub(super) fn set_absent(&mut self, id: ReceiverId) {
        if let Some(member) = self.by_id.get_mut(&id) {
            self.absent += u32::from(!core::mem::replace(&mut member.is_absent, true));
        }
    }

    /// A poll asks for answers: those of `all` on the stream, or of few.
    pub(super) fn ask(&mut self, now: Timestamp, all: bool) {
        if all {
            self.asked = Asked::default();
            self.on_stream_mut().for_each(|(_, member)| member.asked.again(now));
        } else {
            self.asked.again(now);
        }
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
        if member.delivery == Delivery::Stream {
            self.asked = Asked::default();
        }
        if let Some(count) = self.count_of(member.delivery) {
            *count += 1;
        }
        if let Some(old) = self.by_id.insert(id, member) {
            self.had_ranges -= old.had_ranges();
            self.absent -= u32::from(old.is_absent);
            if let Some(count) = self.count_of(old.delivery) {
                *count -= 1;
            }
        }
        true
    }

    /// Nothing is kept of `id`, which has ended.
    pub(super) fn remove(&mut self, id: ReceiverId) {
        let Some(old) = self.by_id.remove(&id) else { return };
        self.had_ranges -= old.had_ranges();
        self.absent -= u32::from(old.is_absent);
    }

    /// `id` holds these blocks. If there are too many ranges they are not noted: the blocks are merely sent.
    pub(super) fn have(&mut self, id: ReceiverId, data: &RangeSet, manifest: &RangeSet) {
        let Some(member) = self.by_id.get_mut(&id) else { return };
        let (before, more) = (member.had_ranges(), data.ranges() + manifest.ranges());
        if before + more > HAD_RANGES_MAX.0 || self.had_ranges + more > HAD_RANGES_MAX.1 {
            return;
        }
        member.had_data.extend(data);
        member.had_manifest.extend(manifest);
        self.had_ranges = self.had_ranges - before + member.had_ranges();
    }

    /// Changes how `id` is served; the old way, or `None` when there is no such member.
    pub(super) fn set_delivery(&mut self, id: ReceiverId, new: Delivery) -> Option<Delivery> {
        let member = self.by_id.get_mut(&id)?;
        let old = core::mem::replace(&mut member.delivery, new);
        self.absent -= u32::from(core::mem::take(&mut member.is_absent));
        if new == Delivery::Stream {
            self.asked = Asked::default();
        }
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

    pub(super) fn on_stream_mut(&mut self) -> impl Iterator<Item = (ReceiverId, &mut Member)> {
        let members = self.by_id.iter_mut().filter(|(_, m)| m.delivery == Delivery::Stream);
        members.map(|(id, m)| (*id, m))
    }

    /// The longest round trip that counts as the group's (`docs/protocol.md#FB-6`).
    pub(super) fn round_trip_max(&self) -> Duration {
        let mut known: Vec<Duration> = self.on_stream().filter_map(|(_, m)| m.rtt).collect();
        // The lower median: with two receivers the nearer one is the yardstick.
        let Some(middle) = known.len().checked_sub(1).map(|last| last / 2) else {
            return Duration::MAX;
        };
        let (_, median, _) = known.select_nth_unstable(middle);
        LATE.0.max(median.saturating_mul(LATE.1))
    }

    /// The median of what those on the stream lose (`docs/protocol.md#STRAG-2`); all, while nobody has told.
    pub(super) fn loss_median(&self) -> f64 {
        let mut known: Vec<f64> = self.on_stream().filter_map(|(_, m)| m.loss.told()).collect();
        // The lower median: with two receivers the better one is the yardstick.
        let Some(middle) = known.len().checked_sub(1).map(|last| last / 2) else { return 1.0 };
        *known.select_nth_unstable_by(middle, f64::total_cmp).1
    }

    /// Anyone on the stream loses more than this share.
    pub(super) fn lossy(&self, least: f64) -> bool {
        self.on_stream().any(|(_, m)| m.loss.share().is_some_and(|share| share > least))
    }

    /// The losses of those on the stream when `packet` goes out. Who has not reported lately counts with the mean of
    /// those who have: in a large group a receiver reports seldom, and a report on the session's first
    /// second, in which the rate was still being found, says nothing about now.
    pub(super) fn losses(
        &self,
        packet: PacketNumber,
        searched: bool,
        except: impl Fn(ReceiverId) -> bool,
    ) -> LossTable {
        let mut lately: Vec<&Loss> = Vec::new();
        let mut any: Vec<&Loss> = Vec::new();
        let streaming = self.on_stream().filter(|(id, _)| !except(*id));
        for (_, member) in streaming {
            let loss = if searched { &member.loss_with_search } else { &member.loss };
            if loss.share().is_none() {
                continue;
            }
            any.push(loss);
            let last = member.last.as_ref().map_or(0, |last| last.sent.packet.0);
            if last + REPORT_HOLDS >= packet.0 {
                lately.push(loss);
            }
        }
        let known = if lately.is_empty() { any } else { lately };
        let (lost, sent) = known.iter().fold((0.0, 0.0), |(lost, sent), loss| {
            (lost + loss.counts().0, sent + loss.counts().1)
        });
        let mut table = LossTable::default();
        if sent <= 0.0 {
            return table;
        }
        let mean = (lost / sent).clamp(0.0, 1.0);
        known.iter().for_each(|loss| table.add(loss.share_among(mean), 1.0));
        table.add(mean, (f64::from(self.streaming) - known.len() as f64).max(0.0));
        table
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Delivery, Feedback, HAD_RANGES_MAX, LastReport, Member, Members, REPORT_HOLDS, RangeSet,
        RoundLog, SentRound,
    };
    use crate::ids::{PacketNumber, ReceiverId, Round};
    use crate::time::{Duration, Timestamp};
    use alloc::vec::Vec;

    /// A group in which everybody has reported once, at `packet`, with these (sent, received).
    fn group(size: u32, packet: u64, span: impl Fn(u32) -> (u64, u64)) -> Members {
        let mut members = Members::default();
        for id in 0..size {
            let mut member = Member::new(Timestamp::ZERO, Delivery::Stream);
            let (sent, received) = span(id);
            member.loss.on_span(sent, received);
            member.last = Some(LastReport {
                sent: SentRound {
                    round: Round(1),
                    packet: PacketNumber(packet),
                    at: Timestamp::ZERO,
                    bytes: 0,
                    limited: 0,
                },
                received,
                polled_at: Timestamp::ZERO,
                host_drops: 0,
            });
            members.insert(ReceiverId(id + 1), member);
        }
        members
    }

    /// `docs/protocol.md#FB-7`
    #[test]
    fn of_a_queue_the_paths_part_is_checked_by_the_round_trip_and_the_stores_is_not() {
        let (mut rounds, ms) = (RoundLog::default(), Duration::from_millis);
        let mut member = Member::new(Timestamp::ZERO, Delivery::Stream);
        let mut believed = |number: u32, queue, path_queue| {
            let (round, at) = (Round(number), Timestamp::ZERO + ms(100) * number);
            let packet = PacketNumber(number.into());
            rounds.push(SentRound { round, packet, at, bytes: 0, limited: 0 });
            let report = Feedback {
                round,
                hold: Duration::ZERO,
                queue,
                path_queue,
                polled_at: at,
                received: number.into(),
                host_drops: 0,
                data_held: 0,
                needs: Vec::new(),
            };
            let sample = member.on_report(at + ms(20), ReceiverId(1), &report, &rounds, 0);
            sample.unwrap().queue_delay
        };
        assert_eq!(believed(1, ms(0), ms(0)), ms(0));
        assert_eq!(believed(2, ms(500), ms(100)), ms(401));
        assert_eq!(believed(3, ms(500), ms(0)), ms(500));
    }

    #[test]
    fn what_members_hold_from_before_has_a_bound_for_each_and_for_all() {
        let mut members = group(20, 100, |_| (40, 40));
        // Two of three lists lie in the gaps that the first has left, and no two ranges touch.
        let list = |part: u32, size: u32| -> RangeSet {
            (0..size).map(|n| n * 6 + part * 2).map(|at| at..at + 1).collect()
        };
        let (half, none) = (HAD_RANGES_MAX.0 as u32 / 2, RangeSet::new());
        for id in 1..=20 {
            for part in 0..3 {
                members.have(ReceiverId(id), &list(part, half), &none);
            }
            let member = &members.by_id[&ReceiverId(id)];
            let full = id <= 16;
            assert_eq!(member.had_data.contains(2), full, "{id}");
            assert!(!member.had_data.contains(4), "{id}");
        }
        assert_eq!(members.had_ranges, HAD_RANGES_MAX.1);
        members.remove(ReceiverId(1));
        members.have(ReceiverId(20), &list(0, half), &none);
        assert!(members.by_id[&ReceiverId(20)].had_data.contains(0), "there is room again");
        members.insert(ReceiverId(2), Member::new(Timestamp::ZERO, Delivery::Stream));
        assert_eq!(members.had_ranges, HAD_RANGES_MAX.1 - HAD_RANGES_MAX.0 - half as usize);
    }

    #[test]
    fn short_reports_of_many_receivers_do_not_inflate_the_plan() {
        // 5 % each; over 40 datagrams one sees nothing lost and another 15 %.
        let members = group(1_000, 100, |id| (40, 40 - u64::from(id % 5)));
        let table = members.losses(PacketNumber(200), false, |_| false);
        // DESIGN 3.1: 79 symbols for 1,000 receivers at 5 %.
        let repair = table.repair_for(1024, 1.0, 1024);
        assert!((76..=86).contains(&repair), "{repair}");
    }

    #[test]
    fn one_that_tells_of_more_than_was_sent_does_not_hide_the_losses_of_all() {
        let lost = |id| 40 - u64::from(id % 5);
        let members = group(1_000, 100, |id| (40, if id == 0 { u64::MAX } else { lost(id) }));
        let repair =
            members.losses(PacketNumber(200), false, |_| false).repair_for(1024, 1.0, 1024);
        assert!((74..=86).contains(&repair), "{repair}");
    }

    #[test]
    fn what_was_lost_while_the_rate_was_being_found_is_forgotten() {
        let mut members = group(1_000, 100, |_| (200, 100));
        let now = PacketNumber(100 + REPORT_HOLDS + 1);
        for id in 1..=50 {
            let member = members.by_id.get_mut(&ReceiverId(id)).unwrap();
            member.loss = crate::loss::Loss::default();
            member.loss.on_span(4_000, 3_800);
            member.last.as_mut().unwrap().sent.packet = now;
        }
        let repair = members.losses(now, false, |_| false).repair_for(1024, 1.0, 1024);
        assert!((76..=86).contains(&repair), "{repair}");
    }

    #[test]
    fn after_the_search_chance_is_expected_until_there_are_reports() {
        let mut members = group(8, 100, |_| (400, 200));
        members.on_stream_mut().for_each(|(_, member)| member.forget_loss(Timestamp::ZERO, 0.05));
        let repair = |members: &Members| {
            members.losses(PacketNumber(200), false, |_| false).repair_for(1024, 1.0, 1024)
        };
        // DESIGN 3.1: 63 symbols for 8 receivers at 5 %.
        assert!(repair(&members).abs_diff(63) <= 2, "{}", repair(&members));
        members.on_stream_mut().for_each(|(_, member)| member.loss.on_span(400, 400));
        assert!(repair(&members) <= 1, "{}", repair(&members));
    }

    /// `docs/protocol.md#STRAG-2`
    #[test]
    fn the_loss_median_is_of_those_who_have_told_and_all_while_nobody_has() {
        let mut members = group(4, 100, |id| (400, 400 - 40 * u64::from(id)));
        assert!((members.loss_median() - 0.1).abs() < 1e-9, "{}", members.loss_median());
        members.on_stream_mut().for_each(|(_, member)| member.forget_loss(Timestamp::ZERO, 0.05));
        assert!((members.loss_median() - 1.0).abs() < 1e-9, "{}", members.loss_median());
        let last = members.by_id.get_mut(&ReceiverId(4)).unwrap();
        last.loss.on_span(400, 200);
        assert!((members.loss_median() - 0.5).abs() < 1e-2, "{}", members.loss_median());
    }
}
