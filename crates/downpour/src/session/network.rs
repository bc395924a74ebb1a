//! Interface, group, ports and symbol size of a session, from the plan and from this machine.

use crate::cli::{Fault, NetworkPlan};
use crate::ports::{PortRange, everywhere};
use crate::units::HostPort;
use downpour_proto::{Code, Geometry, Rng};
use downpour_transport::control::DataPath;
use downpour_transport::session::StreamOut;
use downpour_transport::{Group, Interface, InterfaceError, OVERHEAD, SendOptions, UnicastSocket};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of IPv4 or IPv6 header and UDP header.
pub(super) const fn headers_len(is_v6: bool) -> usize {
    if is_v6 { 40 + 8 } else { 20 + 8 }
}

/// The MTU taken when the interface's is larger and the user says nothing: what nearly every path takes.
const MTU_USUAL: u32 = 1500;
/// And when it is smaller: what every host takes (RFC 791).
const MTU_LEAST: u32 = 576;

/// Bytes of buffer that feedback may fill while the sender is not scheduled.
const FEEDBACK_BUFFER_LEN: usize = 4 << 20;

/// Addresses that one ticket names at most.
const ADDRS_MAX: usize = 8;

/// Where the stream goes; `None` with the reason when all receivers must pull.
pub(super) fn stream_out(
    plan: &NetworkPlan,
    group: Option<SocketAddr>,
    seed: u64,
) -> Result<Result<StreamOut, String>, Fault> {
    let wanted = plan.interface.as_ref().map(ToString::to_string);
    let (chosen, interface) = match choose(wanted.as_deref(), group, plan.ports, seed) {
        Ok(chosen) => chosen,
        // The user named neither: there is still unicast.
        Err(error) if wanted.is_none() && group.is_none() => return Ok(Err(error.to_string())),
        Err(error) => {
            let todo = "name another --interface or --group; `ip address` lists what is there";
            return Err(Fault::start(error.to_string(), todo));
        }
    };
    check_mtu(plan.mtu, &interface)?;
    let source = plan.source_specific.then(|| interface.address_for(chosen.ip())).flatten();
    let group = Group::new(chosen, source).map_err(|error| {
        Fault::usage(error.to_string(), "give another --group, or --source-specific")
    })?;
    let options = SendOptions { hops: plan.ttl, ..SendOptions::default() };
    Ok(Ok(StreamOut { group, interface, options }))
}

/// The group, one of the session's own unless the user named one, and the interface that leads to it.
fn choose(
    wanted: Option<&str>,
    group: Option<SocketAddr>,
    ports: PortRange,
    seed: u64,
) -> Result<(SocketAddr, Interface), InterfaceError> {
    let first = group.unwrap_or_else(|| random_group(ports, seed));
    let error = match Interface::choose(wanted, first.ip()) {
        Ok(interface) => return Ok((first, interface)),
        Err(error) => error,
    };
    let second = random_group_v6(ports, seed);
    match Interface::choose(wanted, second.ip()) {
        Ok(interface) if group.is_none() && is_v6_only(&interface) => Ok((second, interface)),
        _ => Err(error),
    }
}

/// Nobody there can have a group of IPv4.
fn is_v6_only(interface: &Interface) -> bool {
    interface.addresses.iter().all(IpAddr::is_ipv6) && interface.addresses.iter().any(is_wide)
}

/// Who is sent to by unicast may come by IPv6.
fn has_v6() -> bool {
    let all = Interface::all().unwrap_or_default();
    all.iter()
        .filter(|i| i.is_up && !i.is_loopback)
        .any(|i| i.addresses.iter().any(|address| address.is_ipv6() && is_wide(address)))
}

/// Others reach it without naming an interface of theirs.
fn is_wide(address: &IpAddr) -> bool {
    !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// The kernel refuses each longer packet, and then all receivers would pull everything.
fn check_mtu(wanted: Option<u16>, interface: &Interface) -> Result<(), Fault> {
    let (name, most) = (&interface.name, interface.mtu);
    match wanted {
        Some(wanted) if u32::from(wanted) > most => Err(Fault::usage(
            format!("{name} sends packets of {most} bytes at most, not the {wanted} of --mtu"),
            format!("give --mtu {most} or less, or raise it: ip link set {name} mtu {wanted}"),
        )),
        _ => Ok(()),
    }
}

/// A group of the organisation-local scope (RFC 2365), at random so that sessions rarely meet.
fn random_group(ports: PortRange, seed: u64) -> SocketAddr {
    let bits = Rng::new(seed).next_u64();
    let address = Ipv4Addr::new(239, 192, (bits >> 8) as u8, (bits as u8).clamp(1, 254));
    SocketAddr::new(address.into(), ports.multicast())
}

/// The same for IPv6: a transient group of the site's scope (RFC 4291). Ethernet tells groups apart by their last 32 bits.
fn random_group_v6(ports: PortRange, seed: u64) -> SocketAddr {
    let bits = Rng::new(seed).next_u64();
    let address = Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, (bits >> 16) as u16, bits as u16);
    SocketAddr::new(address.into(), ports.multicast())
}

/// Symbols of blocks that never travel as datagrams: 2 MiB are two whole groups of a file that begins the data.
const SYMBOL_LEN_PULLED: u16 = 2048;
/// A session that is cut loses the blocks that are half here, one for each connection: each is at most this part of
/// what is pulled, but for the request that each costs, which is a good part of a block below the least.
const PARTS_PULLED: u64 = 256;
const BLOCK_SYMBOLS_PULLED_MIN: u16 = 64;

/// Symbols as long as one datagram takes, where there are datagrams; blocks as large as the code takes, unless all of
/// little is pulled.
pub(super) fn geometry(
    plan: &NetworkPlan,
    path: DataPath,
    stream: Option<&StreamOut>,
    (code, data_len): (Code, Option<u64>),
) -> Geometry {
    if path == DataPath::Tcp {
        return pulled(code, data_len.unwrap_or(u64::MAX));
    }
    let is_v6 = stream.map_or(path.is_unicast() && has_v6(), |out| out.group.address().is_ipv6());
    let headers = headers_len(is_v6);
    let of_interface =
        stream.map_or(MTU_USUAL, |out| out.interface.mtu.clamp(MTU_LEAST, MTU_USUAL));
    let mtu = plan.mtu.map_or(of_interface, u32::from);
    // Even, because one of the codes works on 16-bit words.
    let symbol_len = (mtu - headers as u32 - OVERHEAD as u32) & !1;
    Geometry::full(symbol_len as u16, code)
}

fn pulled(code: Code, data_len: u64) -> Geometry {
    let full = Geometry::full(SYMBOL_LEN_PULLED, code);
    let part = data_len / PARTS_PULLED / u64::from(SYMBOL_LEN_PULLED);
    let most = full.block_symbols;
    let block_symbols = u16::try_from(part).unwrap_or(most);
    let block_symbols = block_symbols.clamp(BLOCK_SYMBOLS_PULLED_MIN.min(most), most);
    Geometry { block_symbols, ..full }
}

/// Bytes of a block, which is one range, of a session of so many bytes by this path.
pub(crate) fn range_len(path: DataPath, data_len: u64) -> u64 {
    let geometry = match path {
        DataPath::Tcp => pulled(Code::ReedSolomon, data_len),
        _ => Geometry::IPV4,
    };
    geometry.block_len()
}

/// The feedback socket: on the control port's number if that is free, else on any of the range. Receivers send to the
/// address by which they joined, of whichever family the group is.
pub(super) fn feedback_socket(
    control: SocketAddr,
    ports: PortRange,
) -> Result<UnicastSocket, Fault> {
    let mut last = None;
    for address in everywhere(std::iter::once(control.port()).chain(ports.ports())) {
        match UnicastSocket::bind(address, FEEDBACK_BUFFER_LEN) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = Some(error),
        }
    }
    let what = last.map_or_else(|| "no UDP port is free".to_owned(), |error| error.to_string());
    Err(Fault::start(what, format!("free one of the ports {ports}, or give other --ports")))
}

/// The addresses at which receivers may reach a listener: `first` (the stream's interface) first.
pub(super) fn own_addrs(listen: SocketAddr, first: Option<IpAddr>) -> Vec<String> {
    if !listen.ip().is_unspecified() {
        return vec![listen.to_string()];
    }
    let all = Interface::all().unwrap_or_default();
    let others = all.iter().filter(|i| i.is_up && !i.is_loopback).flat_map(|i| i.addresses.clone());
    let mut addrs: Vec<IpAddr> = Vec::new();
    for address in first.into_iter().chain(others).filter(is_wide) {
        if !addrs.contains(&address) {
            addrs.push(address);
        }
    }
    if addrs.is_empty() {
        addrs.push(Ipv4Addr::LOCALHOST.into());
    }
    let with_port = |address| SocketAddr::new(address, listen.port()).to_string();
    addrs.into_iter().take(ADDRS_MAX).map(with_port).collect()
}

/// What to tell when `addrs` lead nowhere but to this machine, though the stream goes further.
pub(super) fn only_here(addrs: &[String], first: Option<IpAddr>) -> Option<String> {
    let is_here =
        |addr: &String| addr.parse().is_ok_and(|addr: SocketAddr| addr.ip().is_loopback());
    let is_so = !first.is_some_and(|first| first.is_loopback()) && addrs.iter().all(is_here);
    is_so.then(|| {
        "this machine has no address that others reach (link-local ones do not count), so only \
         receivers on it can join: give it one, or name one by --listen"
            .to_owned()
    })
}

/// What to tell when a ticket made ahead of time names `addrs`, and none of them has the port that is listened on. No error: it
/// may be forwarded.
pub(super) fn other_port(addrs: &[String], listen: SocketAddr) -> Option<String> {
    let port = listen.port();
    let is_ours = |addr: &String| addr.parse().is_ok_and(|addr: HostPort| addr.port == port);
    (!addrs.iter().any(is_ours)).then(|| {
        format!(
            "the ticket leads receivers to {}, and this sender listens on port {port}: unless that is \
             forwarded here nobody finds it; send without --listen, or with another ticket",
            addrs.join(" or ")
        )
    })
}

/// What to tell when nobody hears the stream that leaves by `interface`, and receivers come `by` another one.
pub(super) fn elsewhere(interface: &str, by: &Interface) -> Option<String> {
    let name = &by.name;
    (!by.is_loopback && name != interface).then(|| {
        format!(
            "nobody hears the stream on {interface}, and all pull; receivers come by {name}: end this, and \
             send with --interface {name}"
        )
    })
}

/// The same as `own_addrs` for a program that makes a ticket before its session is open.
pub(crate) fn own_addrs_of(port: u16) -> Vec<String> {
    own_addrs(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), None)
}

#[cfg(test)]
mod tests {
    use super::{
        check_mtu, elsewhere, geometry, is_v6_only, only_here, other_port, random_group,
        random_group_v6, range_len,
    };
    use crate::cli::NetworkPlan;
    use crate::ports::PortRange;
    use downpour_proto::{Code, Geometry};
    use downpour_transport::Interface;
    use downpour_transport::control::DataPath;

    #[test]
    fn symbols_fill_one_datagram() {
        let mut plan = NetworkPlan {
            interface: None,
            group: None,
            source_specific: false,
            ttl: 1,
            mtu: None,
            ports: PortRange::DEFAULT,
        };
        let geometry = |plan: &NetworkPlan| {
            geometry(plan, DataPath::Multicast, None, (Code::ReedSolomon, None))
        };
        assert_eq!(geometry(&plan), Geometry::IPV4);
        plan.mtu = Some(9000);
        assert_eq!(geometry(&plan).symbol_len, 8948);
        plan.mtu = Some(577);
        assert_eq!(geometry(&plan).symbol_len % 2, 0);
    }

    #[test]
    fn packets_longer_than_the_interface_sends_are_refused() {
        let mut lo = Interface::named("lo").unwrap();
        lo.mtu = 1500;
        assert!(check_mtu(None, &lo).is_ok() && check_mtu(Some(1500), &lo).is_ok());
        let fault = check_mtu(Some(1501), &lo).unwrap_err();
        let text = format!("{fault:?}");
        assert!(text.contains("lo sends packets of 1500 bytes") && text.contains("1501"), "{text}");
    }

    #[test]
    fn little_is_pulled_in_short_blocks() {
        let of = |data_len| range_len(DataPath::Tcp, data_len);
        assert_eq!((of(0), of(10 << 20), of(64 << 20)), (128 << 10, 128 << 10, 256 << 10));
        assert_eq!((of(1 << 30), of(u64::MAX)), (2 << 20, 2 << 20));
        assert_eq!(range_len(DataPath::Udp, 0), Geometry::IPV4.block_len());
    }

    #[test]
    fn groups_are_of_the_organisation_and_differ() {
        let (a, b) = (random_group(PortRange::DEFAULT, 1), random_group(PortRange::DEFAULT, 2));
        assert!(a.to_string().starts_with("239.192.") && a != b);
        let (a, b) =
            (random_group_v6(PortRange::DEFAULT, 1), random_group_v6(PortRange::DEFAULT, 2));
        assert!(a.to_string().starts_with("[ff15::") && a != b);
    }

    #[test]
    fn a_group_of_ipv6_is_taken_only_where_there_is_no_ipv4() {
        let mut eth = Interface::named("lo").unwrap();
        let mut is_so = |addresses: &[&str]| {
            eth.addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            is_v6_only(&eth)
        };
        assert!(is_so(&["fe80::1", "fd97::1"]));
        assert!(!is_so(&["10.0.0.1", "fe80::1", "fd97::1"]), "receivers may have IPv4 alone");
        assert!(!is_so(&["fe80::1"]) && !is_so(&[]), "a ticket could not name it");
    }

    #[test]
    fn the_interface_by_which_receivers_come_is_named_where_nobody_hears_another_one() {
        let mut by = Interface::named("lo").unwrap();
        assert_eq!(elsewhere("eth1", &by), None, "a receiver on this machine");
        by.is_loopback = false;
        assert_eq!(elsewhere("lo", &by), None, "the switch may lose it");
        by.name = "eth0".to_owned();
        assert!(elsewhere("eth1", &by).unwrap().ends_with("send with --interface eth0"));
    }

    #[test]
    fn a_ticket_whose_addresses_have_another_port_than_the_sender_is_told_of() {
        let addrs = ["10.77.0.1:28800", "[fd97::1]:28801"].map(str::to_owned);
        let told = |listen: &str| other_port(&addrs, listen.parse().unwrap());
        assert_eq!((told("0.0.0.0:28800"), told("[::]:28801")), (None, None));
        let why = told("10.77.0.1:28805").unwrap();
        assert!(why.contains("10.77.0.1:28800 or [fd97::1]:28801"), "{why}");
        assert!(why.contains("listens on port 28805"), "{why}");
    }

    #[test]
    fn who_has_only_addresses_that_nobody_reaches_is_told() {
        let (here, lan) = ("127.0.0.1:28800".to_owned(), "[fd97::1]:28800".to_owned());
        let eth = "fe80::1".parse().ok();
        assert!(only_here(std::slice::from_ref(&here), eth).is_some());
        assert!(only_here(std::slice::from_ref(&here), "127.0.0.1".parse().ok()).is_none());
        assert!(only_here(&[here, lan], eth).is_none());
    }
}
