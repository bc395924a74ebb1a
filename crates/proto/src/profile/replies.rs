//! Answers that wait for the driver, in order for each receiver; receivers take turns.
//!
//! Whose connection takes no more keeps its answers waiting, and nobody else's. Each may have so many of them that the
//! table has its limit, however many do; one who asks for more without taking any is answered no more.

use super::message::Message;
use crate::ids::ReceiverId;
use alloc::collections::VecDeque;

/// Answers that wait, divided among those who have some: so many at least are counted. One receiver's share of that is
/// more than it asks for at once.
const REPLIES_MAX: usize = 65_536;
const SHARES_MIN: usize = 16;

/// The table.
#[derive(Debug, Default)]
pub(super) struct Replies(VecDeque<(ReceiverId, VecDeque<Message>)>);

impl Replies {
    /// Dropped when too many wait for the same receiver, or the last of them says the same.
    pub(super) fn push(&mut self, to: ReceiverId, message: Message) {
        let most = REPLIES_MAX / self.0.len().max(SHARES_MIN);
        match self.0.iter_mut().find(|(id, _)| *id == to) {
            Some((_, waiting)) => {
                if waiting.len() < most && waiting.back() != Some(&message) {
                    waiting.push_back(message);
                }
            }
            None => self.0.push_back((to, VecDeque::from([message]))),
        }
    }

    /// The next, for a receiver that `ready` says can take it.
    pub(super) fn next(
        &mut self,
        ready: impl Fn(ReceiverId) -> bool,
    ) -> Option<(ReceiverId, Message)> {
        let at = self.0.iter().position(|(id, _)| ready(*id))?;
        let (id, mut waiting) = self.0.remove(at)?;
        let message = waiting.pop_front()?;
        if !waiting.is_empty() {
            self.0.push_back((id, waiting));
        }
        Some((id, message))
    }

    /// The receiver has gone.
    pub(super) fn forget(&mut self, receiver: ReceiverId) {
        self.0.retain(|(id, _)| *id != receiver);
    }
}

#[cfg(test)]
mod tests {
    use super::{REPLIES_MAX, Replies, SHARES_MIN};
    use crate::ids::ReceiverId;
    use crate::profile::Message;
    use alloc::vec::Vec;

    const A: ReceiverId = ReceiverId(1);
    const B: ReceiverId = ReceiverId(2);

    #[test]
    fn who_takes_nothing_keeps_few_and_holds_up_nobody() {
        let mut replies = Replies::default();
        let answer = |product| Message::Rejected { product };
        (0..REPLIES_MAX as u32).for_each(|product| replies.push(A, answer(product)));
        replies.push(B, answer(1));
        assert_eq!(replies.next(|id| id != A), Some((B, answer(1))));
        assert_eq!(replies.next(|id| id != A), None);
        for product in [2, 2, 3] {
            replies.push(B, answer(product));
        }
        let turns: Vec<_> = core::iter::from_fn(|| replies.next(|_| true)).take(4).collect();
        assert_eq!(turns, [(A, answer(0)), (B, answer(2)), (A, answer(1)), (B, answer(3))]);
        let left = core::iter::from_fn(|| replies.next(|_| true)).count();
        assert_eq!(left, REPLIES_MAX / SHARES_MIN - 2);
        replies.push(A, answer(9));
        replies.forget(A);
        assert_eq!(replies.next(|_| true), None);
    }
}
