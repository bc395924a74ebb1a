//! What a stranger and a traitor do, on a machine of the test network.
//!
//! The test program starts itself there ([`play`]); [`hostile_hands`] then does what it was told, until it is
//! killed. Otherwise it does nothing.
//!
//! - The *stranger* hears the stream, as anybody on the network can, and floods the group and the sender's
//!   ports with what it heard, changed in every way that it can be.
//! - The *traitor* has a ticket. It joins, and sends false symbols sealed with the session's own key.

use crate::network::Host;
use downpour::ticket::Ticket;
use downpour_proto::wire::{HEADER_LEN, Header, Kind, Short, TAG_LEN};
use downpour_proto::{BlockId, BlockKind, Epoch, PacketNumber, ReceiverId, StreamId, SymbolId};
use downpour_transport::control::{
    ClientLimits, ClientSetup, ControlClient, InstanceId, JoinRequest, PROTOCOL_VERSION,
    ReadyRequest,
};
use downpour_transport::identity::Identity;
use downpour_transport::{
    Group, Interface, MulticastReceiver, MulticastSender, OpenKeys, RecvBatch, RecvOptions,
    SealKeys, Secret, SendOptions, Suite,
};
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Role: group, sender's address.
pub(crate) const FLOOD: &str = "flood";
/// What the stranger prints when it hears the group.
pub(crate) const LISTENING: &str = "listening";
/// Role: file of the ticket.
pub(crate) const TRAITOR: &str = "traitor";

const VARIABLE: &str = "DOWNPOUR_TEST_ROLE";
/// The sender's ports in these tests.
const PORT: u16 = 28_800;
/// Datagrams each 10 ms, to the group and as many to the sender. One in eight is truncated, the others are as
/// long as genuine ones: 106 Mbit/s to each, more than the rate of the link.
const PORTION: usize = 102;
/// Datagrams of the stream that the stranger changes.
const GENUINE: usize = 64;
/// One false symbol for so many genuine ones: more would drown the stream instead of poisoning it.
const POISON_EVERY: u32 = 20;
/// How far ahead of the sender the traitor numbers its datagrams.
const AHEAD: u64 = 2_000;

/// This program, in a role, on `host`.
pub(crate) fn play(host: &Host, role: &[&str]) -> Command {
    let program = std::env::current_exe().expect("our own path");
    let mut command = host.command(program.to_str().expect("text"));
    command.args(["--exact", "hostile_hands::hostile_hands", "--nocapture"]);
    command.env(VARIABLE, role.join("\n"));
    command
}

#[test]
fn hostile_hands() {
    let Ok(role) = std::env::var(VARIABLE) else { return };
    match &role.lines().collect::<Vec<_>>()[..] {
        [FLOOD, group, sender] => flood(group.parse().unwrap(), format!("{sender}:{PORT}")),
        [TRAITOR, ticket] => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            runtime.block_on(betray(Path::new(ticket)));
        }
        role => panic!("{role:?}"),
    }
}

fn ears(group: &Group) -> MulticastReceiver {
    let interface = Interface::named("eth0").unwrap();
    MulticastReceiver::join(group, &interface, &RecvOptions::default()).unwrap()
}

fn mouth(group: &Group) -> MulticastSender {
    let interface = Interface::named("eth0").unwrap();
    MulticastSender::open(group, &interface, &SendOptions::default()).unwrap()
}

/// The next datagrams of the stream.
fn heard(ears: &MulticastReceiver, batch: &mut RecvBatch) -> Vec<Vec<u8>> {
    match ears.recv(batch) {
        Ok(1..) => batch.datagrams().map(|datagram| datagram.bytes.to_vec()).collect(),
        _ => Vec::new(),
    }
}

fn flood(group: SocketAddr, sender: String) {
    let group = Group::new(group, None).unwrap();
    let (ears, mouth, mut batch) = (ears(&group), mouth(&group), RecvBatch::new());
    println!("{LISTENING}");
    let feedback = UdpSocket::bind("0.0.0.0:0").unwrap();
    let (mut genuine, mut stream) = (Vec::new(), None);
    // Our own would come back as well: first only listen. Polls tell whose stream it is.
    while genuine.len() < GENUINE || stream.is_none() {
        for datagram in heard(&ears, &mut batch) {
            stream = stream.or(Header::parse(&datagram).ok().map(|header| header.stream));
            if Short::begins(&datagram) {
                genuine.push(datagram);
            }
        }
        sleep(Duration::from_millis(1));
    }
    let Some(stream) = stream else { return };
    drop(ears);
    let mut connections = Vec::new();
    let mut turn = 0usize;
    let mut next = Instant::now();
    loop {
        // What was missed while others ran is made up for.
        next += Duration::from_millis(10);
        for _ in 0..PORTION {
            turn += 1;
            let false_one = changed(genuine[turn / 8 % GENUINE].clone(), turn);
            // A full socket buffer only makes the flood a little thinner.
            let _ = mouth.send(&false_one, false_one.len());
            let _ = feedback.send_to(&as_feedback(false_one, stream, turn), &sender);
        }
        if turn.is_multiple_of(PORTION * 10) {
            connections.extend(knock(&sender, turn));
            connections.truncate(300);
        }
        sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// One of the ways to be false.
fn changed(mut datagram: Vec<u8>, turn: usize) -> Vec<u8> {
    let last = datagram.len() - 1;
    match turn % 8 {
        0 => {} // Replayed.
        1 => datagram[last] ^= 0x55,
        2 => {
            // A number that has not been.
            datagram[5..8].copy_from_slice(&(1_000_000 + turn as u32).to_be_bytes()[1..]);
        }
        3 => datagram.truncate(turn / 8 % HEADER_LEN),
        4 => {
            // A poll of another session.
            let (epoch, stream, kind) = (Epoch(0), StreamId(0xdead_beef), Kind::Poll);
            let header = Header { epoch, stream, packet_low: turn as u32, kind };
            datagram[..HEADER_LEN].copy_from_slice(&header.emit());
        }
        5 => datagram[0] ^= 0x40, // Under another version of the key.
        6 => datagram[0] = 99,
        _ => return sealed_by_a_stranger(&datagram, turn as u64),
    }
    datagram
}

/// Well formed and sealed, with another key.
fn sealed_by_a_stranger(datagram: &[u8], number: u64) -> Vec<u8> {
    let (suite, secret, stream) = (Suite::preferred(), Secret::new([9; 32]), StreamId(1));
    let open = OpenKeys::stream(suite, &secret, stream, Epoch(0), PacketNumber(1));
    let Ok(mut header) = open.header(datagram) else { return datagram.to_vec() };
    header.packet_low = 2_000_000 + number as u32;
    let mut keys = SealKeys::stream(suite, &secret, stream, header.epoch);
    let body = vec![7; datagram.len() - header.len_sent() - TAG_LEN];
    let (number, mut out) = (PacketNumber(u64::from(header.packet_low)), Vec::new());
    keys.append(number, &header, &body, &mut out).unwrap();
    out
}

/// The same, as if it were feedback of receiver 1, of one that is not there, or as it is.
fn as_feedback(mut datagram: Vec<u8>, stream: StreamId, turn: usize) -> Vec<u8> {
    if datagram.len() > HEADER_LEN + TAG_LEN && Short::begins(&datagram) {
        let receiver = ReceiverId(if (turn / 8).is_multiple_of(2) { 1 } else { 77 });
        let (epoch, kind) = (Epoch(0), Kind::Feedback { receiver });
        let header = Header { epoch, stream, packet_low: turn as u32, kind };
        datagram[..HEADER_LEN].copy_from_slice(&header.emit());
    }
    datagram
}

/// Connections to the control port: one that says nothing, one that says nonsense.
fn knock(sender: &str, turn: usize) -> Vec<TcpStream> {
    let Ok(address) = sender.parse::<SocketAddr>() else { return Vec::new() };
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(50)).ok();
    let mut both: Vec<TcpStream> = [connect(), connect()].into_iter().flatten().collect();
    if let Some(talker) = both.last_mut() {
        let _ = talker.write_all(&vec![turn as u8; 300]);
    }
    both
}

async fn betray(ticket: &Path) {
    let ticket = Ticket::read_file(ticket).unwrap();
    let setup = ClientSetup {
        addrs: ticket.addrs,
        server: ticket.key,
        token: ticket.token,
        identity: Arc::new(Identity::generate()),
        limits: ClientLimits::default(),
    };
    let client = loop {
        match ControlClient::connect(setup.clone()).await {
            Ok(client) => break client,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    };
    let request = JoinRequest {
        protocol: PROTOCOL_VERSION,
        software: "another".to_owned(),
        name: "traitor".to_owned(),
        instance: InstanceId::from_bytes([1; 16]),
        codes: vec![1],
        follows: None,
    };
    let reply = client.join(&request).await.unwrap().reply;
    let mut events = client.events().await.unwrap();
    let stream = (reply.stream, reply.epoch);
    let group = Group::new(reply.group.unwrap(), reply.source).unwrap();
    // Listens before it says that it is ready, so that the first symbols are heard.
    let ears = ears(&group);
    client.ready(ReadyRequest { multicast: true, candidates: false }).await.unwrap();
    let suite = Suite::from_id(reply.suite).unwrap();
    std::thread::spawn(move || poison(&group, &ears, suite, &reply.epoch_secret, stream));
    while events.next().await.is_ok() {}
    std::future::pending::<()>().await;
}

/// False symbols for the blocks that come next.
fn poison(
    group: &Group,
    ears: &MulticastReceiver,
    suite: Suite,
    secret: &Secret,
    (stream, epoch): (StreamId, Epoch),
) {
    let (mouth, mut batch) = (mouth(group), RecvBatch::new());
    let mut open = OpenKeys::stream(suite, secret, stream, epoch, PacketNumber(1));
    let mut seal = SealKeys::stream(suite, secret, stream, epoch);
    let (mut count, mut last) = (0u32, 0u64);
    loop {
        let datagrams = heard(ears, &mut batch);
        if datagrams.is_empty() {
            sleep(Duration::from_millis(1));
        }
        for mut datagram in datagrams {
            let Ok(header) = open.header(&datagram) else { continue };
            let Kind::Symbol { block, k, .. } = header.kind else { continue };
            let Ok(opened) = open.open(&header, &mut datagram) else { continue };
            let (number, body_len) = (opened.number.0, opened.payload.len());
            let next = BlockId::data(block.number() + 1);
            let Some(next) = next.filter(|_| block.kind() == BlockKind::Data) else { continue };
            count += 1;
            let packet = number + AHEAD;
            if !count.is_multiple_of(POISON_EVERY) || packet <= last {
                continue;
            }
            last = packet;
            let symbol = SymbolId::source((count / POISON_EVERY % u32::from(k)) as u16);
            let kind = Kind::Symbol { block: next, k, symbol };
            let header = Header { kind, packet_low: packet as u32, ..header };
            let (body, mut out) = (vec![0xEE; body_len], Vec::new());
            seal.append(PacketNumber(packet), &header, &body, &mut out).unwrap();
            let _ = mouth.send(&out, out.len());
        }
    }
}
