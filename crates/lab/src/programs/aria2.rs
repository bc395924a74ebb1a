//! aria2, as a BitTorrent swarm: the receivers give to one another what they have. All links have the rate in both
//! directions.
//!
//! The torrent is made here, from what coreutils say of its pieces; the tracker is `lab tracker` on the sending
//! machine, which tells everyone of all others at once.

use super::{Program, text};
use crate::shell::run as call;
use crate::stage::{PAYLOAD, Stage};
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const TRACKER_PORT: u16 = 6969;
const PIECE_BYTES: u64 = 256 << 10;
/// Hexadecimal digits of a SHA-1.
const DIGEST_DIGITS: usize = 40;

pub(super) const PROGRAMS: &[Program] = &[Program {
    name: "aria2-bittorrent",
    about: "a swarm with a tracker on the sender; pieces of 256 KiB; the machine's congestion control",
    tools: &["aria2c", "split", "sha1sum"],
    package: Some("aria2"),
    shares_uplinks: true,
    run,
    ..Program::PLAIN
}];

fn run(stage: &mut Stage<'_>) -> io::Result<()> {
    let tracker = format!("http://{}:{TRACKER_PORT}/announce", stage.network.sender.ipv4);
    let torrent = stage.file("payload.torrent");
    fs::write(&torrent, describe(stage.payload, stage.cell.size.0, &tracker)?)?;
    stage.beforehand("lab", &["tracker"])?;
    let torrent = text(torrent);
    // Called with an id, a count, and the path of the file.
    let hook = stage.file("complete.sh");
    fs::write(&hook, "#!/bin/sh\n: >\"$3\".complete\n")?;
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755))?;
    let hook = format!("--on-bt-download-complete={}", text(hook));
    #[rustfmt::skip]
    let fixed = [
        "--no-conf", "--seed-ratio=0", "--bt-tracker-interval=1", "--bt-max-peers=0",
        "--enable-dht=false", "--bt-enable-lpd=false", "--enable-dht6=false", "--disable-ipv6=true",
        "--file-allocation=none", "--summary-interval=0", "--show-console-readout=false",
        "--bt-request-peer-speed-limit=1000M", "--disk-cache=16M",
    ];
    for i in 0..stage.cell.receivers {
        let folder = format!("--dir={}", text(stage.folder(i)));
        stage.receiver(i, "aria2c", &[&fixed[..], &[&folder, &hook, &torrent]].concat())?;
    }
    stage.settle();
    let folder = stage.payload.parent().unwrap_or(Path::new("/"));
    let folder = format!("--dir={}", folder.display());
    let seed = ["--bt-seed-unverified=true", "--check-integrity=false", &folder, &torrent];
    stage.sender("aria2c", &[&fixed[..], &seed].concat())?;
    stage.wait_files(&format!("{PAYLOAD}.complete"))
}

/// The torrent file.
fn describe(payload: &Path, bytes: u64, tracker: &str) -> io::Result<Vec<u8>> {
    let size = format!("--bytes={PIECE_BYTES}");
    let digests = call("split", &[&size, "--filter=sha1sum", &payload.to_string_lossy()])?;
    let mut pieces = Vec::new();
    for line in digests.lines() {
        let digits = line.get(..DIGEST_DIGITS).ok_or_else(|| io::Error::other("no SHA-1"))?;
        for i in (0..DIGEST_DIGITS).step_by(2) {
            let byte = u8::from_str_radix(&digits[i..i + 2], 16);
            pieces.push(byte.map_err(io::Error::other)?);
        }
    }
    let mut torrent = format!(
        "d8:announce{}:{tracker}4:infod6:lengthi{bytes}e4:name{}:{PAYLOAD}\
         12:piece lengthi{PIECE_BYTES}e6:pieces{}:",
        tracker.len(),
        PAYLOAD.len(),
        pieces.len(),
    )
    .into_bytes();
    torrent.extend(pieces);
    torrent.extend(b"ee");
    Ok(torrent)
}

/// A tracker of one torrent, until it is killed.
pub(crate) fn track() -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", TRACKER_PORT))?;
    let mut peers: Vec<SocketAddrV4> = Vec::new();
    for stream in listener.incoming().flatten() {
        // One that hangs up is no loss: it asks again.
        let _ = answer(stream, &mut peers);
    }
    Ok(())
}

fn answer(mut stream: TcpStream, peers: &mut Vec<SocketAddrV4>) -> io::Result<()> {
    let mut line = String::new();
    let mut request = BufReader::new(stream.try_clone()?);
    request.read_line(&mut line)?;
    let IpAddr::V4(address) = stream.peer_addr()?.ip() else { return Ok(()) };
    if let Some(port) = asked_port(&line) {
        let peer = SocketAddrV4::new(address, port);
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }
    // What is left unread when a connection closes would reset it.
    while request.read_line(&mut line)? > 2 {}
    let others: Vec<u8> = peers
        .iter()
        .filter(|peer| *peer.ip() != address)
        .flat_map(|peer| [&peer.ip().octets()[..], &peer.port().to_be_bytes()].concat())
        .collect();
    let mut body = format!("d8:intervali1e12:min intervali1e5:peers{}:", others.len()).into_bytes();
    body.extend(others);
    body.push(b'e');
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
    stream.write_all(&body)
}

/// The port in `GET /announce?…&port=6881&… HTTP/1.1`.
fn asked_port(line: &str) -> Option<u16> {
    let (_, query) = line.split_whitespace().nth(1)?.split_once('?')?;
    query.split('&').find_map(|pair| pair.strip_prefix("port="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{asked_port, describe};

    #[test]
    fn the_torrent_holds_a_digest_for_each_piece() {
        let path =
            std::env::temp_dir().join(format!("downpour-lab-torrent-{}", std::process::id()));
        std::fs::write(&path, vec![0; 300_000]).unwrap();
        let torrent = describe(&path, 300_000, "http://a/announce").unwrap();
        std::fs::remove_file(path).unwrap();
        let text = String::from_utf8_lossy(&torrent);
        assert!(
            text.starts_with("d8:announce17:http://a/announce4:infod6:lengthi300000e4:name11:")
        );
        let start = text.find("6:pieces40:").unwrap();
        // SHA-1 of 256 KiB of zeros begins so.
        assert_eq!(torrent[torrent.len() - 42..][..2], [0x2e, 0x00]);
        assert!(start > 0 && torrent.ends_with(b"ee"));
    }

    #[test]
    fn an_announcement_tells_the_port() {
        let line = "GET /announce?info_hash=%12&peer_id=a&port=6881&left=1 HTTP/1.1\r\n";
        assert_eq!(asked_port(line), Some(6881));
        assert_eq!(asked_port("GET / HTTP/1.1\r\n"), None);
    }
}
