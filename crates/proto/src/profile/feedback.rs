//! What a receiver says, and when: the policy of feedback of a profile.
//!
//! The machine takes what comes in, keeps the products, and tells the policy; the policy says what to
//! say. It has one deadline of its own.

use super::message::{Data, Message};
use super::product::Products;
use super::receiver::Interval;
use crate::rng::Rng;
use crate::time::{Duration, Timestamp};
use alloc::vec::Vec;
use core::fmt;

/// What a policy may look at and say.
#[derive(Debug)]
pub struct Context<'a> {
    /// The time.
    pub now: Timestamp,
    /// Since the receiver's start.
    pub age: Duration,
    /// What is here.
    pub products: &'a mut Products,
    /// The machine's randomness.
    pub rng: &'a mut Rng,
    /// What to say.
    pub out: &'a mut Vec<Message>,
    /// What to print.
    pub intervals: &'a mut Vec<Interval>,
}

/// Decides what a receiver says.
pub trait Feedback: Send + fmt::Debug {
    /// The sender's connection is there, and said which product comes.
    fn on_joined(&mut self, _cx: &mut Context<'_>) {}

    /// A segment has come. `expected` is one past the highest segment of its product heard of before.
    fn on_data(&mut self, cx: &mut Context<'_>, data: &Data, expected: u32);

    /// A segment has come of a product whose begin was missed.
    fn on_unknown(&mut self, _cx: &mut Context<'_>, _data: &Data) {}

    /// A product begins; `repair`: because it was asked for.
    fn on_begin(&mut self, _cx: &mut Context<'_>, _product: u32, _repair: bool) {}

    /// All of a product has been sent.
    fn on_end(&mut self, _cx: &mut Context<'_>, _product: u32) {}

    /// A product is complete, or given up: no more about it.
    fn on_over(&mut self, _cx: &mut Context<'_>, _product: u32) {}

    /// Products are known of whose begin was missed and has not come.
    fn waits_for_begin(&self) -> bool {
        false
    }

    /// The deadline has come.
    fn on_timeout(&mut self, cx: &mut Context<'_>);

    /// When to be called next by time alone.
    fn deadline(&self) -> Option<Timestamp>;
}
