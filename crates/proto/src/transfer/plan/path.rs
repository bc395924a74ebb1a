//! Which path the blocks take: TCP, or the stream over UDP.

use super::{Facts, Planned, per_cent, planned};
use crate::units::Rate;
use alloc::format;

/// A path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// HTTPS over several TCP connections.
    Tcp,
    /// The stream, with its own repair.
    Udp,
    /// Both are tried at the start, and what brings more stays.
    Try,
}

impl Carrier {
    /// As the command line and the configuration have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Try => "auto",
        }
    }
}

/// TCP stays the path when it is expected to bring so much of what the path carries.
const TCP_SUFFICES: f64 = 0.9;

/// The path; `connections` of TCP reach `bound` each.
pub(super) fn path(facts: &Facts<'_>, connections: u16, bound: Option<Rate>) -> Planned<Carrier> {
    if let Some(path) = facts.known.wishes.path {
        return planned(path, "as asked for");
    }
    let Some(loss) = facts.loss else {
        return planned(
            Carrier::Try,
            "how much is lost is not known: both are tried, and what brings more stays",
        );
    };
    let lost = per_cent(loss);
    let Some(bound) = bound else {
        return planned(
            Carrier::Tcp,
            format!("at {lost} lost TCP is not held back, and costs less work"),
        );
    };
    let tcp = bound.scale(f64::from(connections));
    match facts.share {
        None => planned(
            Carrier::Try,
            format!(
                "at {lost} lost {connections} connections reach {tcp}; what the path carries is not known"
            ),
        ),
        Some(rate) if tcp >= rate.scale(TCP_SUFFICES) => planned(
            Carrier::Tcp,
            format!("at {lost} lost {connections} connections reach {tcp} of {rate}"),
        ),
        Some(rate) => planned(
            Carrier::Udp,
            format!(
                "at {lost} lost {connections} connections reach {tcp} of {rate}; the stream repairs what is lost"
            ),
        ),
    }
}
