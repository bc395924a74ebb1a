//! By which rule the socket buffers are planned.

use core::fmt;
use core::str::FromStr;

/// Greatest multiple of the product of bandwidth and round trip that is a policy.
const TIMES_MAX: u8 = 3;

/// A rule. A size that the user gives comes before any of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The kernel's autotuning, unless its limits are too low for the path and a size that is set is allowed more.
    #[default]
    Auto,
    /// So many times bandwidth × round trip, shared by the connections (1: Rama 2013; 3: Boschini 2003).
    Bdp(u8),
}

impl Policy {
    /// All of them, by their names.
    pub const NAMES: [&'static str; 4] = ["auto", "bdp-1", "bdp-2", "bdp-3"];
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Bdp(times) => write!(f, "bdp-{times}"),
        }
    }
}

/// No policy has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPolicy;

impl fmt::Display for NoPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy is auto, bdp-1, bdp-2 or bdp-3")
    }
}

impl core::error::Error for NoPolicy {}

impl FromStr for Policy {
    type Err = NoPolicy;

    fn from_str(text: &str) -> Result<Self, NoPolicy> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let times = text.strip_prefix("bdp-").and_then(|times| times.parse().ok());
        times.filter(|times| (1..=TIMES_MAX).contains(times)).map(Self::Bdp).ok_or(NoPolicy)
    }
}

#[cfg(test)]
mod tests {
    use super::Policy;
    use alloc::string::ToString;

    #[test]
    fn names_are_read_as_they_are_shown() {
        for name in Policy::NAMES {
            assert_eq!(name.parse::<Policy>().unwrap().to_string(), name);
        }
        assert!(["bdp-0", "bdp-4", "bdp", "", "fast"].iter().all(|n| n.parse::<Policy>().is_err()));
    }
}
