//! What one sample says about a path.

use crate::time::Timestamp;

/// One sample, as the estimates need it. Times in seconds, sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) poll_sent: Timestamp,
    pub(super) sent: f64,
    pub(super) arrived: f64,
    pub(super) send: f64,
    pub(super) receive: f64,
    /// As it was told, with the lateness of hosts.
    pub(super) receive_raw: f64,
    pub(super) queue_raw: f64,
    pub(super) busy: bool,
    /// A queue that stood before has run empty: the link may have been idle for a part of the span.
    pub(super) ran_empty: bool,
    pub(super) excess: bool,
}

impl Span {
    /// The rate at the sender that the link takes by this sample, when so large a share is lost by `chance`.
    pub(super) fn shows(&self, chance: f64) -> f64 {
        let bytes =
            if self.excess { (self.arrived / (1.0 - chance)).min(self.sent) } else { self.sent };
        bytes / self.receive.max(1e-9)
    }
}
