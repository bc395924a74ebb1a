//! Options of a transfer over a long way: which path the blocks take, and how its TCP connections are set.

use super::Fault;
use crate::units::{parse_rate, parse_size};
use clap::{Args, ValueEnum};
use downpour_proto::Rate;
use downpour_proto::transfer::{CONNECTIONS_MAX, Policy, Wishes, is_congestion};
use downpour_transport::control::DataPath;
use serde::Deserialize;

/// Which path the blocks take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathArg {
    /// One multicast stream for all receivers
    #[default]
    #[serde(skip)]
    Multicast,
    /// Each receiver fetches everything by several HTTPS connections: for one receiver far away
    Tcp,
    /// The stream, its symbols and its repair, to one receiver by unicast UDP: for long ways that lose datagrams
    Udp,
    /// For one receiver: begins by UDP, tries TCP where it may be faster, and keeps to what brings more
    Auto,
}

impl PathArg {
    /// As the session knows it.
    pub const fn path(self) -> DataPath {
        match self {
            Self::Multicast => DataPath::Multicast,
            Self::Tcp => DataPath::Tcp,
            Self::Udp => DataPath::Udp,
            Self::Auto => DataPath::Auto,
        }
    }
}

/// What is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EncryptionArg {
    /// Everything
    #[default]
    All,
    /// All but what is pulled: anyone on the way can read it; changed on the way it is found, each group by the signed
    /// manifest, and fetched again, encrypted
    Control,
}

/// How a receiver's TCP connections are set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Connections")]
pub struct ConnectionArgs {
    /// TCP connections that fetch at once; each costs memory for two blocks and a descriptor at both sides [default: 4;
    /// without multicast 10 where the round trip is 5 ms or more]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(CONNECTIONS_MAX)))]
    pub connections: Option<u16>,
    /// Congestion control of the sender's kernel for them, such as cubic or bbr; what is not fair to others there is not
    /// here [default: that kernel's own]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Socket buffer of each of them at both sides, such as 16MiB; it turns the kernel's autotuning off [default: autotuned]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub socket_buffer: Option<u64>,
    /// Together they never fetch faster than this, such as 400mbit, evenly paced [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub pacing: Option<Rate>,
    /// Rule for socket buffers whose size is not given: auto, or bdp-1, bdp-2, bdp-3 for so many times what the path carries
    /// × its round trip, shared by the connections; in a session by multicast it does nothing
    #[arg(long, value_name = "POLICY", default_value = "auto")]
    pub policy: Policy,
}

impl ConnectionArgs {
    /// Checks what can be checked here.
    pub fn resolve(self) -> Result<Wishes, Fault> {
        if let Some(name) = self.congestion.as_ref().filter(|name| !is_congestion(name)) {
            return Err(Fault::usage(
                format!("`{name}` is no name of a congestion control"),
                "sysctl net.ipv4.tcp_available_congestion_control lists what the sender has",
            ));
        }
        Ok(Wishes {
            path: None,
            connections: self.connections,
            congestion: self.congestion,
            buffer: self.socket_buffer,
            pacing: self.pacing,
            policy: self.policy,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectionArgs;

    #[test]
    fn a_congestion_control_has_a_plain_name() {
        let named = |name: &str| {
            ConnectionArgs { congestion: Some(name.to_owned()), ..ConnectionArgs::default() }
                .resolve()
        };
        assert_eq!(named("bbr").unwrap().congestion.as_deref(), Some("bbr"));
        for bad in ["", "a b", "a\nb", "sixteen-letters-"] {
            assert!(named(bad).is_err(), "{bad}");
        }
    }
}
