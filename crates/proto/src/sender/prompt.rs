//! A session that stays open: what is offered now and then shall be there soon.
//!
//! 1. Until the controller has found the rate, full-size probes go out as *padding* whenever there is nothing to send:
//!    the first product shall not have to find it, and a small one cannot. Where the ceiling is no more than the link takes
//!    there is nothing to find, and they end when that has shown.
//! 2. When a block's plan has been sent and anyone loses anything, a poll asks at once who lacks how much
//!    of it, not only when the round is over or nothing is left to send.
//! 3. A block gets as much repair unasked as is worth its time: a further round is waited for by who lacks it, a symbol
//!    in vain by all.
//! 4. Who asks gets what it lacks, and more only by the same account.
//! 5. A block's last source symbol goes without the zeros that it ends with.

use super::{Sender, Transmit};
use crate::rate::RatePhase;
use crate::recovery::LossTable;
use crate::time::{Duration, Timestamp};
use crate::wire::Kind;
use alloc::vec::Vec;

/// Most padding of a session, in datagrams: enough to double from 10 Mbit/s to 2 Gbit/s in rounds of 5 ms, and twice
/// that for what gets lost (`docs/protocol.md#PROD-9`).
const PADDING_MAX: u32 = 8_000;

/// When padding has gone out at the ceiling for so long, and so many round trips, was answered, and no limit has shown, there is
/// none below the ceiling for those who follow the stream (`docs/protocol.md#PROD-9`).
const CEILING_TIME: Duration = Duration::from_secs(1);
const CEILING_TRIPS: u32 = 4;

/// A block's end is asked for at once if so many symbols have gone out since the last poll: polls shall stay a
/// small part of what is sent (`docs/protocol.md#PROD-10`).
const ASK_SYMBOLS_MIN: u32 = 16;

/// A block's end is not asked for where nobody loses more than this.
const ASK_LOSS: f64 = 1e-4;

/// What a further round takes besides the round trip: the hosts' turns, and a poll that may be late.
const ROUND_EXTRA: Duration = Duration::from_micros(1_500);

/// A symbol in vain delays what may still come by so much of a symbol's time.
const COMING_COST: f64 = 0.6;

/// What an open session remembers.
#[derive(Debug)]
pub(super) struct Prompt {
    padding_left: u32,
    /// Since when padding goes out at the ceiling.
    at_ceiling: Option<Timestamp>,
}

impl Default for Prompt {
    fn default() -> Self {
        Self { padding_left: PADDING_MAX, at_ceiling: None }
    }
}

impl Sender {
    /// Nothing is there to be sent, and the rate is not known yet.
    pub(super) fn transmit_padding(&mut self, message: &mut Vec<u8>) -> Option<Transmit> {
        let wanted = !self.finished
            && self.members.streaming() > 0
            && self.config.rate.summary().phase == RatePhase::Startup;
        let wanted = wanted && !self.bears_ceiling();
        let prompt = self.prompt.as_mut().filter(|prompt| wanted && prompt.padding_left > 0)?;
        prompt.padding_left -= 1;
        message.clear();
        message.resize(self.config.geometry.probe_len(), 0);
        Some(self.transmit_of_burst(Kind::Probe, message.len()))
    }

    /// Padding at the ceiling has shown that all that may be sent arrives.
    fn bears_ceiling(&mut self) -> bool {
        let is_there = self.pacer.rate() >= self.stream_ceiling();
        let long = CEILING_TIME.max(self.grtt.value() * CEILING_TRIPS);
        let (_, answered_at) = self.answered;
        let Some(prompt) = &mut self.prompt else { return false };
        if !is_there {
            prompt.at_ceiling = None;
            return false;
        }
        answered_at.since(*prompt.at_ceiling.get_or_insert(self.now)) >= long
    }

    /// Who comes to the stream may take less than those who follow it.
    pub(super) fn pad_again(&mut self) {
        if let Some(prompt) = &mut self.prompt {
            prompt.at_ceiling = None;
        }
    }

    /// How many bytes are sent of a block's last source symbol, which is zeros from `tail` on: in an open session no more
    /// than that, but one at least (`docs/protocol.md#PROD-13`).
    pub(super) fn tail_sent(&self, tail: u16) -> u16 {
        let full = self.config.geometry.symbol_len;
        if self.prompt.is_some() { tail.clamp(1, full) } else { full }
    }

    /// Of an open session: how many symbols in vain a further round of a block's is worth.
    ///
    /// In the round the block waits, and those behind it from when they have been sent, because products are given on in
    /// order. For a symbol in vain all that are behind wait, and what may still come.
    pub(super) fn further_round(&self) -> Option<f64> {
        self.prompt.as_ref()?;
        let symbol = self.config.geometry.datagram_len() as u64;
        let symbol = self.pacer.rate().time_for(symbol).as_secs_f64();
        let round = (self.grtt.value() + ROUND_EXTRA).as_secs_f64() / symbol.max(1e-9);
        let (mut waits, mut sent, mut behind) = (round, 0.0, 0.0);
        for left in self.window.waiting() {
            sent += f64::from(left);
            waits += (round - sent).max(0.0);
            behind += 1.0;
        }
        Some(waits / (COMING_COST + behind))
    }

    /// Of an open session: what is planned in all when a receiver that loses `share` lacks `count` beyond `planned`.
    /// What of that will be lost again it has to ask for again, unless a round is long: the others wait for each symbol.
    pub(super) fn plan_for(&mut self, planned: u16, count: u16, share: f64) -> Option<u16> {
        let round = self.further_round()?;
        let mut asker = LossTable::default();
        asker.add(share, 1.0);
        asker.add(0.0, f64::from(self.members.streaming().saturating_sub(1)));
        let spare = self.config.recovery.prompt(count, &asker, round);
        Some(planned.saturating_add(count).saturating_add(spare))
    }

    /// A block's plan has been sent: whether a poll asks at once.
    pub(super) fn asks_at_block_end(&self) -> bool {
        self.prompt.is_some() && self.unpolled >= ASK_SYMBOLS_MIN && self.members.lossy(ASK_LOSS)
    }
}
