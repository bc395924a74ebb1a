//! When the next burst may leave.
//!
//! Absolute deadlines: each burst moves the deadline forward by the time that its bytes take at the
//! rate, counted from the deadline and not from now, so that a late wake-up does not lower the mean
//! rate. What was missed is caught up at no more than twice the rate, and at most [`CATCH_UP`] of it: the
//! link has worked off its queue in a stall, and what is caught up fills that queue again. More than that would
//! overflow a short one. It leaves in bursts as long as what is missing: who shares a processor with many is late at
//! each wake-up, and would fall ever further behind by bursts of half a millisecond.
//!
//! The pacer decides; sleeping is the driver's. A burst is [`BURST_TIME`] of data, up to [`BURST_TIME_MAX`] by the queue
//! that it joins (`docs/protocol.md#RATE-5`), at least one datagram (or what the controller wishes) and at most
//! [`BURST_PACKETS_MAX`] (one segmented send).

use crate::time::{Duration, Timestamp};
use crate::units::Rate;

/// Longest stretch of data that leaves at once, where the narrowest link's queue is empty or not known; a session of
/// products that rested begins with more if it is known ([`Pacer::resume`]).
pub const BURST_TIME: Duration = Duration::from_micros(500);

/// The same where that queue has shown to hold enough. Each burst costs a wake-up: at half a millisecond these are half
/// of all that a sender at 100 Mbit/s does (`docs/results/limit.md`).
pub const BURST_TIME_MAX: Duration = Duration::from_millis(5);

/// Longest burst for what waits in a queue whose length nobody knows.
const BURST_TIME_UNPROVEN: Duration = Duration::from_millis(2);

/// Such a queue is not trusted with longer bursts before this waits in it; what waits above it is how much longer.
const QUEUE_SHORT: Duration = Duration::from_millis(5);

/// Per cent of the room left in a queue that has shown its length that a burst may fill.
const ROOM_PERCENT: u32 = 30;

/// Most datagrams that leave at once: as many full-size segments as one UDP send can carry (64 KiB).
pub const BURST_PACKETS_MAX: u32 = 44;

/// How much lost time is caught up after a late wake-up: about the queue that `auto` keeps.
const CATCH_UP: Duration = Duration::from_millis(8);

/// Token bucket with absolute deadlines.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    rate: Rate,
    packet_len: u32,
    burst_time: Duration,
    burst_min: u32,
    /// How much more the burst after a rest may have.
    room: Duration,
    due: Timestamp,
    /// Not twice as fast as the rate.
    not_before: Timestamp,
}

impl Pacer {
    /// A pacer whose first burst may leave at `now`. `packet_len` is the size of a full datagram.
    pub const fn new(now: Timestamp, rate: Rate, packet_len: u32) -> Self {
        let (due, not_before, room) = (now, now, Duration::ZERO);
        Self { rate, packet_len, burst_time: BURST_TIME, burst_min: 1, room, due, not_before }
    }

    /// No burst is shorter than this many datagrams, at least one.
    #[must_use]
    pub const fn with_burst_min(self, packets: u32) -> Self {
        Self { burst_min: packets, ..self }
    }

    /// The rate from now on. A deadline that is already set keeps the spacing of what has left.
    pub const fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
    }

    /// What waits at the narrowest link, as receivers see it, and what may wait there without being lost (zero: not known).
    /// A burst fills part of the room between them, and leaves before half of the queue has run empty.
    pub fn set_queue(&mut self, queue: Duration, borne: Duration) {
        let standing = queue.saturating_sub(QUEUE_SHORT).min(BURST_TIME_UNPROVEN);
        self.room =
            (borne.saturating_sub(queue).saturating_mul(ROOM_PERCENT) / 100).min(BURST_TIME_MAX);
        self.burst_time = standing.max(self.room.min(queue / 2)).clamp(BURST_TIME, BURST_TIME_MAX);
    }

    /// The rate in force.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// How many full datagrams a burst may have that leaves on time.
    pub fn burst_packets(&self) -> u32 {
        self.packets_in(self.burst_time)
    }

    /// How many full datagrams the burst may have that leaves at `now`: if that is late, as many as were missed.
    pub fn burst_packets_at(&self, now: Timestamp) -> u32 {
        self.packets_in(self.burst_time.max(now.since(self.due).min(CATCH_UP)))
    }

    fn packets_in(&self, time: Duration) -> u32 {
        let packets = self.rate.bytes_in(time) / u64::from(self.packet_len.max(1));
        let packets = u32::try_from(packets).unwrap_or(u32::MAX);
        packets.max(self.burst_min).clamp(1, BURST_PACKETS_MAX)
    }

    /// The time of such a burst at the rate.
    pub fn burst_time(&self) -> Duration {
        self.rate.time_for(u64::from(self.burst_packets()) * u64::from(self.packet_len))
    }

    /// There was nothing to send until now: the queue has run empty, and what it has room for may leave at once. The rest
    /// of that time is not caught up. How many full datagrams the burst that begins now may have.
    pub fn resume(&mut self, now: Timestamp) -> u32 {
        let ahead = now.since(self.due).min(self.room);
        self.due = self.due.max(now - ahead);
        self.packets_in(self.burst_time + ahead)
    }

    /// When the next burst may leave: at or before `now` means at once.
    pub fn next_send(&self) -> Timestamp {
        self.due.max(self.not_before)
    }

    /// `bytes` have just left (UDP payload). Returns by how much more than can be caught up the sender
    /// was late: not zero means that the rate was not kept.
    pub fn on_sent(&mut self, now: Timestamp, bytes: u64) -> Duration {
        let takes = self.rate.time_for(bytes);
        let earliest = now - CATCH_UP.max(takes);
        let missed = earliest.since(self.due);
        self.due = self.due.max(earliest) + takes;
        self.not_before = now + takes / 2;
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::{BURST_PACKETS_MAX, Pacer};
    use crate::time::{Duration, Timestamp};
    use crate::units::Rate;

    const LEN: u32 = 1472;

    #[test]
    fn bursts_are_short_in_time_and_in_packets() {
        let at = |mbps| Pacer::new(Timestamp::ZERO, Rate::from_mbps(mbps), LEN).burst_packets();
        assert_eq!(at(1), 1);
        assert_eq!(at(100), 4);
        assert_eq!(at(1_000), 42);
        assert_eq!(at(10_000), BURST_PACKETS_MAX);
    }

    #[test]
    fn no_burst_is_shorter_than_the_controller_wishes() {
        let at = |mbps| {
            let pacer = Pacer::new(Timestamp::ZERO, Rate::from_mbps(mbps), LEN).with_burst_min(3);
            (pacer.burst_packets(), pacer.burst_time())
        };
        assert_eq!(at(1), (3, Rate::from_mbps(1).time_for(3 * u64::from(LEN))));
        assert_eq!(at(100).0, 4);
    }

    #[test]
    fn bursts_are_longer_where_a_queue_has_shown_that_it_holds_them() {
        let mut pacer = Pacer::new(Timestamp::ZERO, Rate::from_mbps(100), LEN);
        let mut at = |micros| {
            pacer.set_queue(Duration::from_micros(micros), Duration::ZERO);
            pacer.burst_packets()
        };
        assert_eq!([0, 5_000, 6_000, 7_000, 20_000].map(&mut at), [4, 4, 8, 16, 16]);
        assert_eq!(at(0), 4, "the queue has gone");
    }

    #[test]
    fn bursts_fill_part_of_the_room_that_a_queue_has_shown() {
        let at = |mbps, queue, borne| {
            let mut pacer = Pacer::new(Timestamp::ZERO, Rate::from_mbps(mbps), LEN);
            pacer.set_queue(Duration::from_millis(queue), Duration::from_millis(borne));
            pacer.burst_packets()
        };
        assert_eq!([0, 4, 8, 14, 100].map(|borne| at(100, 4, borne)), [4, 4, 10, 16, 16]);
        assert_eq!([0, 2, 8, 19, 20].map(|queue| at(100, queue, 20)), [4, 8, 30, 16, 16]);
        assert_eq!(at(100, 50, 200), 42, "no longer than the longest");
        assert_eq!(at(300, 7, 14), BURST_PACKETS_MAX);
    }

    #[test]
    fn what_the_queue_has_room_for_leaves_at_once_after_a_rest() {
        let ms = Duration::from_millis;
        let rate = Rate::from_mbps(100);
        let after = |rest: Duration, borne| {
            let mut pacer = Pacer::new(Timestamp::ZERO, rate, LEN);
            pacer.set_queue(Duration::ZERO, borne);
            let now = Timestamp::ZERO + rest;
            let packets = pacer.resume(now);
            assert!(pacer.on_sent(now, u64::from(packets * LEN)).is_zero());
            (packets, pacer.next_send().since(now), pacer.burst_packets())
        };
        // 4 in the half millisecond that any burst may have, and 8 a millisecond more.
        let (packets, gap, next) = after(ms(100), ms(10));
        assert_eq!((packets, next), (29, 4));
        assert!(gap <= rate.time_for(u64::from(packets * LEN)) / 2, "{gap:?}");
        assert_eq!(after(ms(1), ms(10)).0, 12, "no more than could have been sent meanwhile");
        assert_eq!(after(ms(100), ms(0)).0, 4, "a queue that is not known has no room");
        assert_eq!(after(ms(100), ms(1000)).0, BURST_PACKETS_MAX);
    }

    #[test]
    fn late_wake_ups_do_not_lower_the_mean_rate() {
        let rate = Rate::from_mbps(100);
        let mut pacer = Pacer::new(Timestamp::ZERO, rate, LEN);
        let mut sent = 0;
        let mut now = Timestamp::ZERO;
        for turn in 0..10_000u64 {
            // Up to 0.4 ms late, never two bursts.
            now = now.max(pacer.next_send()) + Duration::from_micros(turn * 7 % 400);
            let bytes = u64::from(pacer.burst_packets()) * u64::from(LEN);
            assert_eq!(pacer.on_sent(now, bytes), Duration::ZERO);
            sent += bytes;
        }
        let mean = Rate::of(sent, now.since(Timestamp::ZERO));
        assert!(mean.bps() > 99_900_000 && mean.bps() < 100_200_000, "{mean}");
    }

    #[test]
    fn who_gets_the_processor_late_each_time_keeps_the_rate() {
        let rate = Rate::from_mbps(100);
        let mut pacer = Pacer::new(Timestamp::ZERO, rate, LEN);
        let (mut now, mut sent) = (Timestamp::ZERO, 0);
        for _ in 0..1000 {
            now = now.max(pacer.next_send()) + Duration::from_millis(2);
            let bytes = u64::from(pacer.burst_packets_at(now) * LEN);
            assert_eq!(pacer.on_sent(now, bytes), Duration::ZERO);
            sent += bytes;
        }
        let mean = Rate::of(sent, now.since(Timestamp::ZERO));
        assert!(mean.bps() > 99_000_000 && mean.bps() < 101_000_000, "{mean}");
    }

    #[test]
    fn a_stall_is_caught_up_in_part_and_not_by_a_flood() {
        let rate = Rate::from_mbps(100);
        let mut pacer = Pacer::new(Timestamp::ZERO, rate, LEN);
        let stall = Timestamp::from_nanos(1_000_000_000);
        let burst = |pacer: &Pacer, now| u64::from(pacer.burst_packets_at(now) * LEN);
        let first = burst(&pacer, stall);
        assert_eq!(first, u64::from(BURST_PACKETS_MAX * LEN));
        assert!(pacer.on_sent(stall, first) > Duration::from_millis(990));
        let (mut now, mut sent) = (stall, first);
        let until = stall + Duration::from_millis(50);
        while now < until {
            now = pacer.next_send();
            let most = Rate::from_mbps(200).bytes_in(now.since(stall)) + first;
            assert!(sent <= most, "{sent} bytes {:?} after the stall", now.since(stall));
            let next = burst(&pacer, now);
            assert_eq!(pacer.on_sent(now, next), Duration::ZERO);
            sent += next;
        }
        let extra = sent - rate.bytes_in(now.since(stall));
        let allowed = rate.bytes_in(super::CATCH_UP);
        let usual = u64::from(pacer.burst_packets() * LEN);
        assert!((allowed..=allowed + 2 * usual).contains(&extra), "{extra} of {allowed}");
    }
}
