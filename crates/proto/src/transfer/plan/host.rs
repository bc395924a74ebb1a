//! What a machine's kernel allows a connection, as one line of text and as limits.
//!
//! Linux: SO_SNDBUF and SO_RCVBUF are capped at `net.core.wmem_max` and `rmem_max`, and twice what was asked for is booked,
//! half of it for book-keeping; autotuning goes up to the last figure of `tcp_wmem` and `tcp_rmem`, book-keeping included.
//! So a size that is set holds as many bytes as it says, and autotuning half of its limit.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// Names of congestion controls that are kept.
const NAMES_MAX: usize = 32;

/// Longest of them, as the kernel has it.
const NAME_LEN_MAX: usize = 15;

/// Limits of a kernel; what is `None`, or empty, is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Most that a receive buffer may be set to: `net.core.rmem_max`.
    pub rmem_max: Option<u64>,
    /// Most that a send buffer may be set to: `net.core.wmem_max`.
    pub wmem_max: Option<u64>,
    /// Receive buffer of TCP, least, first and most: `net.ipv4.tcp_rmem`.
    pub tcp_rmem: Option<[u64; 3]>,
    /// Send buffer of TCP, least, first and most: `net.ipv4.tcp_wmem`.
    pub tcp_wmem: Option<[u64; 3]>,
    /// Congestion controls that can be chosen, the default first.
    pub congestion: Vec<String>,
}

/// What one end's buffer can be, in bytes of payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Reached by autotuning.
    pub tuned: Option<u64>,
    /// Reached by setting a size.
    pub set: Option<u64>,
}

impl Room {
    /// The greater of the two; `None` when neither is known.
    pub fn most(self) -> Option<u64> {
        self.tuned.max(self.set)
    }
}

impl Host {
    /// Of a sender's buffer.
    pub fn sending(&self) -> Room {
        Room { tuned: self.tcp_wmem.map(|mem| mem[2] / 2), set: self.wmem_max }
    }

    /// Of a receiver's buffer.
    pub fn receiving(&self) -> Room {
        Room { tuned: self.tcp_rmem.map(|mem| mem[2] / 2), set: self.rmem_max }
    }

    /// The congestion control of connections of which nothing is said.
    pub fn congestion_default(&self) -> Option<&str> {
        self.congestion.first().map(String::as_str)
    }

    /// Whether it has this congestion control; `None` when that is not known.
    pub fn has(&self, congestion: &str) -> Option<bool> {
        (!self.congestion.is_empty()).then(|| self.congestion.iter().any(|c| c == congestion))
    }

    /// From a line of text, as it is displayed; words that are not known are passed over.
    pub fn parse(text: &str) -> Self {
        let mut host = Self::default();
        for word in text.split_whitespace() {
            host.take(word);
        }
        host
    }

    /// The same from what a person wrote: the first word that is not taken as a whole is the error.
    pub fn parse_said(text: &str) -> Result<Self, &str> {
        let mut host = Self::default();
        match text.split_whitespace().find(|word| !host.take(word)) {
            Some(word) => Err(word),
            None => Ok(host),
        }
    }

    /// Takes one word, `key=value`, as far as it can be: `true` when that is all of it.
    fn take(&mut self, word: &str) -> bool {
        let Some((key, value)) = word.split_once('=') else { return false };
        match key {
            "rmem_max" => whole(&mut self.rmem_max, value.parse().ok()),
            "wmem_max" => whole(&mut self.wmem_max, value.parse().ok()),
            "tcp_rmem" => whole(&mut self.tcp_rmem, three(value.split(','))),
            "tcp_wmem" => whole(&mut self.tcp_wmem, three(value.split(','))),
            "congestion" => {
                let names = value.split(',').filter(|name| is_congestion(name));
                self.congestion = names.take(NAMES_MAX).map(ToString::to_string).collect();
                self.congestion.len() == value.split(',').count()
            }
            _ => false,
        }
    }
}

/// Sets a limit to what was found for it; whether that is one.
fn whole<T>(limit: &mut Option<T>, found: Option<T>) -> bool {
    *limit = found;
    limit.is_some()
}

/// Whether a congestion control may have this name.
pub fn is_congestion(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(plain)
}

/// Three numbers; `None` when they are not three.
pub fn three<'a>(words: impl Iterator<Item = &'a str>) -> Option<[u64; 3]> {
    let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
    numbers?.try_into().ok()
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        for (key, value) in [("rmem_max", self.rmem_max), ("wmem_max", self.wmem_max)] {
            if let Some(value) = value {
                write!(f, "{gap}{key}={value}")?;
                gap = " ";
            }
        }
        for (key, value) in [("tcp_rmem", self.tcp_rmem), ("tcp_wmem", self.tcp_wmem)] {
            if let Some([least, first, most]) = value {
                write!(f, "{gap}{key}={least},{first},{most}")?;
                gap = " ";
            }
        }
        match self.congestion.is_empty() {
            true => Ok(()),
            false => write!(f, "{gap}congestion={}", self.congestion.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Host, Room};

    #[test]
    fn limits_are_read_as_they_were_written() {
        let text = "rmem_max=212992 wmem_max=212992 tcp_rmem=4096,131072,6291456 \
                    tcp_wmem=4096,16384,4194304 congestion=cubic,reno";
        let host = Host::parse(text);
        assert_eq!(alloc::string::ToString::to_string(&host), text);
        assert_eq!(host.receiving(), Room { tuned: Some(3_145_728), set: Some(212_992) });
        assert_eq!(host.sending().most(), Some(2_097_152));
        assert_eq!((host.congestion_default(), host.has("bbr")), (Some("cubic"), Some(false)));
    }

    #[test]
    fn what_is_not_said_is_not_known() {
        let long =
            alloc::format!("congestion=sixteen-letters-,bb\u{1b}[2J,{}", "x".repeat(1 << 20));
        let over = "rmem_max=18446744073709551616 wmem_max=1e9 tcp_wmem=1,2,-3";
        let few = "rmem_max=-1 tcp_rmem=1,2 later=4";
        for odd in ["", few, "tcp_rmem=1,2,3,4 congestion=,", over, &long] {
            let host = Host::parse(odd);
            assert_eq!(host, Host::default(), "{odd}");
            assert_eq!((host.receiving().most(), host.has("bbr")), (None, None));
        }
    }

    #[test]
    fn what_a_person_mistypes_is_named() {
        let good = "rmem_max=1 wmem_max=2 tcp_rmem=1,2,3 tcp_wmem=4,5,6 congestion=cubic,bbr";
        assert_eq!(Host::parse_said(good), Ok(Host::parse(good)));
        assert_eq!(Host::parse_said(""), Ok(Host::default()));
        for odd in ["her", "wmem_max=4MiB", "tcp_rmem=1,2", "later=4", "congestion=cubic,b\u{1b}r"]
        {
            assert_eq!(Host::parse_said(&alloc::format!("rmem_max=1 {odd} else")), Err(odd));
        }
    }
}
