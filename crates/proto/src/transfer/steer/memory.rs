//! What is remembered of a link from one transfer to the next: one line of text.

use super::seen::Binding;
use crate::time::Duration;
use crate::units::Rate;
use core::fmt;

/// Where the search was, and what it was like there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Connections.
    pub connections: u16,
    /// Most of all of them together, if they were paced.
    pub pacing: Option<Rate>,
    /// What they brought.
    pub rate: Rate,
    /// The shortest round trip.
    pub rtt_min: Duration,
    /// What held them.
    pub binding: Binding,
    /// Nothing was left to try: it had not just been cut off.
    pub ended: bool,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, pacing, rate, rtt_min, binding, ended } = self;
        write!(f, "connections={connections} rate={} rtt_us={}", rate.bps(), rtt_min.as_micros())?;
        if let Some(pacing) = pacing {
            write!(f, " pacing={}", pacing.bps())?;
        }
        write!(f, " binding={binding} ended={}", u8::from(*ended))
    }
}

impl Memory {
    /// From its line; words that are not known are passed over. `None` when a number is missing.
    pub fn parse(line: &str) -> Option<Self> {
        let value = |key: &str| {
            let pairs = line.split_whitespace().filter_map(|word| word.split_once('='));
            pairs.filter(|(name, _)| *name == key).map(|(_, value)| value).next()
        };
        let number = |key: &str| value(key)?.parse::<u64>().ok();
        let named = value("binding")?;
        Some(Self {
            connections: u16::try_from(number("connections")?).ok()?,
            pacing: number("pacing").map(Rate::from_bps),
            rate: Rate::from_bps(number("rate")?),
            rtt_min: Duration::from_micros(number("rtt_us")?),
            binding: Binding::NAMES.iter().find(|(_, name)| *name == named)?.0,
            // Earlier versions did not tell.
            ended: number("ended") == Some(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Binding, Memory};
    use crate::time::Duration;
    use crate::units::Rate;
    use alloc::string::ToString;

    #[test]
    fn a_memory_is_read_as_it_was_written() {
        for (binding, _) in Binding::NAMES {
            let memory = Memory {
                connections: 16,
                pacing: None,
                rate: Rate::from_mbps(80),
                rtt_min: Duration::from_millis(50),
                binding,
                ended: true,
            };
            let paced = Memory { pacing: Some(Rate::from_mbps(81)), ..memory };
            let open = Memory { ended: false, ..memory };
            for memory in [memory, paced, open] {
                assert_eq!(Memory::parse(&memory.to_string()), Some(memory));
            }
        }
        assert_eq!(Memory::parse(""), None);
        assert_eq!(Memory::parse("connections=70000 rate=1 rtt_us=1 binding=loss"), None);
        assert_eq!(Memory::parse("connections=7 rate=1 rtt_us=1 binding=moon"), None);
    }
}
