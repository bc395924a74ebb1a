//! When a receiver speaks: the policy of feedback, apart from what it says.
//!
//! `rounds` is ours: answers to polls, with suppression. The papers' are in `profile::feedback`.

pub(crate) mod backoff;
mod rounds;

pub use rounds::{GROUP_WITHOUT_BACKOFF, Rounds};
pub(crate) use rounds::{REPORTS_MAX, backoff_grtt};

use crate::ids::ReceiverId;
use crate::rng::Rng;
use crate::time::Duration;
use crate::wire::Poll;
use core::fmt;

/// Whether and when a receiver answers a poll.
pub trait FeedbackPolicy: fmt::Debug + Send {
    /// The receiver needs nothing: does it answer `poll` all the same?
    fn reports(&mut self, me: ReceiverId, poll: &Poll, rng: &mut Rng) -> bool;

    /// The receiver needs repair: how long it waits before it asks, so that others may ask first.
    fn backoff(&mut self, me: ReceiverId, poll: &Poll, rng: &mut Rng) -> Duration;
}
