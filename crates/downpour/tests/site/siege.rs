//! What visitors do who mean no good, or are merely slow; and that others are served meanwhile.

use super::harness::{HANG, One, SiteProcess, until};
use downpour::site::NewToken;
use downpour_transport::identity::{Identity, client_config};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde_json::json;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

pub(crate) type Raw = StreamOwned<ClientConnection, TcpStream>;

/// A TCP connection on which nothing was said.
fn silent(site: &SiteProcess) -> TcpStream {
    let tcp = TcpStream::connect(site.card.address.to_string()).expect("the door listens");
    tcp.set_read_timeout(Some(HANG)).unwrap();
    tcp.set_write_timeout(Some(HANG)).unwrap();
    tcp
}

/// A TLS connection, to say on it what no decent client would.
fn raw(site: &SiteProcess) -> Raw {
    raw_as(site, &Identity::generate())
}

/// The same with this key.
pub(crate) fn raw_as(site: &SiteProcess, who: &Identity) -> Raw {
    let config = client_config(who, site.card.key);
    let name = ServerName::try_from("downpour").unwrap();
    let mut raw = StreamOwned::new(ClientConnection::new(config, name).unwrap(), silent(site));
    while raw.conn.is_handshaking() {
        raw.conn.complete_io(&mut raw.sock).expect("a handshake");
    }
    raw
}

pub(crate) fn head(site: &SiteProcess, method: &str, path: &str, more: &str) -> String {
    let token = std::fs::read_to_string(site.path("state/admin.token")).unwrap();
    let token = token.trim();
    format!("{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n{more}\r\n")
}

/// Whether the other end has closed the connection: that nothing came in time is no sign of it.
fn is_closed(read: io::Result<usize>) -> bool {
    match read {
        Ok(len) => len == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// What comes until the connection ends or nothing more is wanted.
pub(crate) fn read_until(raw: &mut Raw, text: &str) -> String {
    let (mut all, mut some) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&all).contains(text) {
        match raw.read(&mut some) {
            Ok(0) | Err(_) => break,
            Ok(len) => all.extend_from_slice(&some[..len]),
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

pub(crate) fn is_served(site: &SiteProcess) {
    assert_eq!(site.text("/healthz").unwrap().0, 200);
    assert_eq!(site.text("/v1/services").unwrap().0, 200);
}

#[test]
fn a_body_of_ten_gigabytes_is_refused_unread() {
    let one = One::start("");
    let mut told = raw(&one.site);
    let long = head(&one.site, "POST", "/v1/tokens", "content-length: 10000000000\r\n");
    told.write_all(long.as_bytes()).unwrap();
    let answer = read_until(&mut told, "\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    // One that does not say how long it is gets no further than the limit and what is in buffers.
    let mut untold = raw(&one.site);
    let endless = head(&one.site, "POST", "/v1/tokens", "transfer-encoding: chunked\r\n");
    untold.write_all(endless.as_bytes()).unwrap();
    let piece = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
    let mut sent = 0_usize;
    while untold.write_all(&piece).is_ok() {
        sent += piece.len();
        assert!(sent < 1 << 30, "it reads on for ever");
    }
    is_served(&one.site);
}

#[test]
fn idle_strangers_are_bounded_and_crowd_nobody_out() {
    // More than half of what one machine's tests may open: connections, not users, are what is counted.
    const STRANGERS: usize = 300;
    let one = One::start("[limits]\nconnections = 32\nconnections_per_address = 24\n");
    let mut idle: Vec<TcpStream> = Vec::new();
    for number in 0..STRANGERS {
        idle.push(silent(&one.site));
        if number % 50 == 0 {
            is_served(&one.site);
        }
    }
    is_served(&one.site);
    let status = one.site.get::<serde_json::Value>("/v1/services").unwrap();
    let endpoint = status["services"].as_array().unwrap().last().unwrap().clone();
    let connections = endpoint["status"]["figures"]["connections"].as_f64().unwrap();
    assert!(connections <= 32.0, "{endpoint}");
    // The first has long been shown out.
    assert!(is_closed(idle[0].read(&mut [0; 1])));
}

#[test]
fn who_says_nothing_or_takes_nothing_is_given_up() {
    // Whom a busy machine holds up for a moment is not meant; all three are waited for at once.
    let one = One::start("[limits]\nhandshake = \"5s\"\nidle = \"5s\"\nstall = \"5s\"\n");
    let mut mute = silent(&one.site);
    let mut idle = raw(&one.site);
    // Asks for ever and reads nothing: sooner or later neither side can send, and the site ends it.
    let mut greedy = raw(&one.site);
    let ask = head(&one.site, "GET", "/v1/openapi.json", "");
    let error = loop {
        if let Err(error) = greedy.write_all(ask.as_bytes()) {
            break error;
        }
    };
    assert!(is_closed(Err(error)), "no reading");
    assert!(is_closed(mute.read(&mut [0; 1])), "no handshake");
    assert!(is_closed(idle.read(&mut [0; 1])), "no request");
    is_served(&one.site);
}

#[test]
fn listeners_are_bounded_and_hear_what_happens() {
    let mut one = One::start("[limits]\nlisteners = 4\n");
    let watch: NewToken =
        one.site.post("/v1/tokens", &json!({ "name": "watch", "role": "viewer" })).unwrap();
    let mut viewer = one.site.command(&["events"]);
    let viewer = viewer.env("DOWNPOUR_TOKEN", &watch.token).stdout(Stdio::piped());
    let viewer = viewer.spawn().unwrap();
    let listen = {
        let ask = head(&one.site, "GET", "/v1/events", "");
        let site = &one.site;
        move || {
            let mut raw = raw(site);
            raw.write_all(ask.as_bytes()).unwrap();
            raw
        }
    };
    // The command hears what a raw connection hears, and leaves when the site ends.
    let command = one.site.command(&["events"]).stdout(Stdio::piped()).spawn().unwrap();
    until("the command listens", || {
        let text = one.site.text("/metrics").unwrap().1;
        text.contains("route=\"/v1/events\",status=\"200\"} 2").then_some(())
    });
    let mut first = listen();
    assert!(read_until(&mut first, ": listening").contains("200 OK"));
    let mut second = listen();
    read_until(&mut second, ": listening");
    let mut third = listen();
    assert!(read_until(&mut third, "\r\n\r\n").contains(" 503 "));
    let wish = json!({ "name": "new", "role": "viewer" });
    one.site.post::<NewToken>("/v1/tokens", &wish).unwrap();
    let heard = read_until(&mut first, "POST /v1/tokens");
    assert!(heard.contains("event: audit") && heard.contains("POST /v1/tokens"), "{heard}");
    drop(second);
    until("a place is free", || {
        let mut next = listen();
        read_until(&mut next, "\r\n\r\n").contains("200 OK").then_some(())
    });
    one.site.signal("TERM");
    assert_eq!(one.site.ended(), Some(0), "{}", one.site.log());
    let output = command.wait_with_output().unwrap();
    let heard = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && heard.contains("POST /v1/tokens"), "{heard}");
    // What is for admins is for admins live, too.
    let output = viewer.wait_with_output().unwrap();
    let heard = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !heard.contains("/v1/tokens"), "{heard}");
}
