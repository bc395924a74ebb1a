//! Odd answers to a receiver that asks for its turn, and odd requests for it (`docs/protocol.md#WAN-9`).

use crate::pulls::{SLOW_MS, data, decided_beside_others, pull_on, steered, until_decided};
use crate::world::{Setup, World, code, join_request, pull, until};
use downpour_transport::control::{BODY_LEN_MAX, ClientSetup, ControlClient, ErrorCode, Uplink};
use downpour_transport::identity::{Identity, client_config, server_config};
use downpour_transport::pull::Puller;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// What follows an answer.
#[derive(Clone, Copy)]
enum Then {
    /// The next one.
    Next,
    Closes,
    Waits,
    Drips,
    Floods,
}

/// What the `n`th who asks for the turn is told, from 0.
type Says = fn(u64) -> String;

fn http(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn told(others: &str, bytes: impl ToString, changes: impl ToString, turn: bool) -> String {
    let (bytes, changes) = (bytes.to_string(), changes.to_string());
    let numbers = format!(r#""others":{others},"bytes":{bytes},"changes":{changes}"#);
    http("200 OK", &format!(r#"{{{numbers},"turn":{turn},"later":[{{}}]}}"#))
}

const HTML: &str = "<!doctype html><title>Sign in to this network</title>";

/// Those that the receiver understands, then those that it does not.
const SAYS: [(&str, Says, Then); 30] = [
    ("with more fields", |_| told("0", 0, 0, true), Then::Next),
    ("the most", |_| told("4294967295", u64::MAX, u64::MAX, true), Then::Next),
    ("less each time", |n| told("1", u64::MAX - n, u64::MAX - n, true), Then::Next),
    ("now all, now nothing", |n| told("1", n % 2 * u64::MAX, n % 2 * u64::MAX, true), Then::Next),
    ("never its turn", |n| told("1", n << 20, 0, false), Then::Next),
    ("never its turn, and nobody beside", |_| told("0", 0, u64::MAX, false), Then::Next),
    ("closed after each", |_| told("1", 1, 1, true), Then::Closes),
    (
        "an older sender",
        |_| http("404 X", r#"{"code":"not_found","message":"no path"}"#),
        Then::Next,
    ),
    ("internal", |_| http("500 X", r#"{"code":"internal","message":"a bug"}"#), Then::Next),
    ("busy", |_| http("503 X", r#"{"code":"busy","message":"later"}"#), Then::Next),
    ("not a member", |_| http("403 X", r#"{"code":"not_member","message":"?"}"#), Then::Next),
    ("404 of a proxy", |_| http("404 Not Found", HTML), Then::Next),
    ("500 of a proxy", |_| http("500 X", HTML), Then::Closes),
    ("a page", |_| http("200 OK", HTML), Then::Next),
    ("nothing", |_| http("200 OK", ""), Then::Next),
    ("no content", |_| "HTTP/1.1 204 No Content\r\n\r\n".to_owned(), Then::Next),
    ("half of it", |_| http("200 OK", r#"{"others":1,"bytes":7,"cha"#), Then::Next),
    ("too great", |_| told("4294967296", 0, "18446744073709551616", true), Then::Next),
    ("negative", |_| told("1", -1, -1, true), Then::Next),
    ("no whole numbers", |_| told("1e400", 0.5, 0.5, true), Then::Next),
    ("deep", |_| http("200 OK", &"[".repeat(1 << 16)), Then::Next),
    ("ten megabytes", |_| http("200 OK", &" ".repeat(10 << 20)), Then::Next),
    (
        "less than was said",
        |_| "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{".to_owned(),
        Then::Closes,
    ),
    (
        "an odd piece",
        |_| "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz".to_owned(),
        Then::Next,
    ),
    ("no HTTP", |_| "SSH-2.0-OpenSSH_9.9\r\n".to_owned(), Then::Next),
    ("nothing, and closed", |_| String::new(), Then::Closes),
    ("nothing for ever", |_| String::new(), Then::Waits),
    (
        "a byte a second",
        |_| "HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n".to_owned(),
        Then::Drips,
    ),
    (
        "gigabytes",
        |_| "HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n".to_owned(),
        Then::Floods,
    ),
    ("an endless head", |_| "HTTP/1.1 200 OK\r\nx: ".to_owned(), Then::Floods),
];

/// A sender that answers as it is told when it is asked for the turn: stands before a world, with its key, and hands on all
/// else. Where it listens, and how often it was asked.
async fn stand_before(
    world: &World,
    receiver: &Identity,
    (says, then): (Says, Then),
) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let tls = TlsAcceptor::from(server_config(&world.sender));
    let config = client_config(receiver, world.sender.public_key());
    let (asked, target) = (Arc::<AtomicU64>::default(), world.server.local_addr());
    let counted = asked.clone();
    tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((tcp, _)) = listener.accept().await {
            let (tls, config, asked) = (tls.clone(), config.clone(), asked.clone());
            connections.spawn(async move {
                let mut near = tls.accept(tcp).await?;
                let mut first = Vec::new();
                while !first.windows(4).any(|four| four == b"\r\n\r\n") {
                    if near.read_buf(&mut first).await? == 0 {
                        return Ok(());
                    }
                }
                if first.starts_with(b"POST /v1/turn ") {
                    return answer(near, first, &asked, (says, then)).await;
                }
                let mut far = crate::world::tls(target, config).await;
                far.write_all(&first).await?;
                copy_bidirectional(&mut near, &mut far).await.map(drop)
            });
        }
    });
    (addr, counted)
}

async fn answer(
    mut near: tokio_rustls::server::TlsStream<TcpStream>,
    mut request: Vec<u8>,
    asked: &AtomicU64,
    (says, then): (Says, Then),
) -> io::Result<()> {
    loop {
        while !request.ends_with(b"}") {
            if near.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
        request.clear();
        let text = says(asked.fetch_add(1, Ordering::Relaxed));
        near.write_all(text.as_bytes()).await?;
        near.flush().await?;
        match then {
            Then::Next => {}
            Then::Closes => return near.shutdown().await,
            Then::Waits => std::future::pending().await,
            Then::Drips | Then::Floods => loop {
                let (len, pause) = match then {
                    Then::Drips => (1, 1000),
                    _ => (1 << 16, 0),
                };
                near.write_all(&b" ".repeat(len)).await?;
                near.flush().await?;
                tokio::time::sleep(Duration::from_millis(pause)).await;
            },
        }
    }
}

/// A transfer whose sender answers so, until something was decided and after that. How often it was asked until then.
async fn goes_on(says: Says, then: Then) -> u64 {
    let world = World::new(Setup::default()).await;
    world.session.slow_ms.store(SLOW_MS, Ordering::Relaxed);
    let setup = world.client_setup();
    let (addr, asked) = stand_before(&world, &setup.identity, (says, then)).await;
    let client = ControlClient::connect(ClientSetup { addrs: vec![addr.to_string()], ..setup });
    let client = client.await.unwrap();
    client.join(&join_request("anna")).await.unwrap();
    let (puller, mut results) = Puller::start(Arc::new(client), steered());
    until_decided(&puller, &mut results).await;
    puller.request(u64::MAX, data(7, 70_000)).unwrap();
    let last = loop {
        let pulled = results.recv().await.unwrap();
        if pulled.id == u64::MAX {
            break pulled;
        }
    };
    assert!(last.outcome.unwrap() == world.session.data[7..70_000]);
    asked.load(Ordering::Relaxed)
}

/// All of them, on a busy machine, would keep some from asking in time.
const STORIES_AT_ONCE: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn whatever_comes_of_asking_for_the_turn_a_transfer_goes_on() {
    let (mut stories, at_once) = (JoinSet::new(), Arc::new(Semaphore::new(STORIES_AT_ONCE)));
    for (name, says, then) in SAYS {
        let at_once = at_once.clone();
        stories.spawn(async move {
            let _permit = at_once.acquire_owned().await;
            (name, goes_on(says, then).await)
        });
    }
    for (name, asked) in stories.join_all().await {
        let once = ["an older sender", "internal"].contains(&name);
        assert!(if once { asked == 1 } else { asked > 0 }, "{name}: {asked}");
    }
}

/// A receiver that has joined, and the headers that name it.
async fn member(world: &World) -> (Arc<Identity>, ControlClient, String) {
    let setup = world.client_setup();
    let identity = setup.identity.clone();
    let client = ControlClient::connect(setup).await.unwrap();
    let reply = client.join(&join_request("anna")).await.unwrap().reply;
    let (session, receiver) = (reply.session.to_text(), reply.receiver);
    let names = format!("Downpour-Session: {session}\r\nDownpour-Receiver: {receiver}\r\n");
    (identity, client, names)
}

#[tokio::test]
async fn an_odd_request_for_the_turn_is_refused() {
    use ErrorCode::{BadRequest, NotMember, TooLarge, UnknownSession, WrongMethod, WrongToken};
    let world = World::new(Setup::default()).await;
    let (own, _client, names) = member(&world).await;
    let stranger = Arc::new(Identity::generate());
    let bearer = format!("Authorization: Bearer {}\r\n", world.token.to_text());
    let as_member = format!("{bearer}{names}");
    let long = format!("{as_member}Content-Length: {}\r\n", BODY_LEN_MAX * 10);
    let other = |name: &str, value: &str| {
        let mut lines: Vec<String> = as_member.split_inclusive("\r\n").map(str::to_owned).collect();
        lines.retain(|line| !line.starts_with(name));
        lines.concat() + &format!("{name}: {value}\r\n")
    };
    let (deep, wants) = ("[".repeat(100_000), r#"{"wants":true}"#);
    let mut requests = vec![
        (&own, "POST", as_member.clone(), wants, None),
        (&own, "POST", as_member.clone(), r#"{"later":[1],"wants":false}"#, None),
        (&own, "POST", names.clone(), wants, Some(WrongToken)),
        (&stranger, "POST", as_member.clone(), wants, Some(NotMember)),
        (&own, "POST", bearer, wants, Some(NotMember)),
        (&own, "POST", other("Downpour-Session", "AAAA"), wants, Some(UnknownSession)),
        (&own, "GET", as_member.clone(), "", Some(WrongMethod)),
        (&own, "DELETE", as_member.clone(), wants, Some(WrongMethod)),
        (&own, "POST", long, "", Some(TooLarge)),
    ];
    for number in ["2", "0", "-1", "18446744073709551617", "x", ""] {
        let names = other("Downpour-Receiver", number);
        requests.push((&own, "POST", names, wants, Some(NotMember)));
    }
    let twice = r#"{"wants":true,"wants":true}"#;
    for body in ["", "{}", "null", "1", r#"{"wants":1}"#, r#"{"wants":tr"#, twice, HTML, &deep] {
        requests.push((&own, "POST", as_member.clone(), body, Some(BadRequest)));
    }
    for (who, method, mut headers, body, refused) in requests {
        if !headers.contains("Content-Length") {
            headers += &format!("Content-Length: {}\r\n", body.len());
        }
        let head = format!("{method} /v1/turn HTTP/1.1\r\n{headers}");
        let (status, _, answer) = world.say(who, &head, body.as_bytes()).await;
        let expected = refused.map_or(200, |code| code.status().as_u16());
        assert_eq!(status, expected, "{head}{body:.99}");
        assert_eq!((status != 200).then(|| code(&answer)), refused, "{head}{body:.99}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_the_turn_all_the_time_harms_nobody() {
    let uplink: Arc<Uplink> = Arc::default();
    let setup = || Setup { uplink: uplink.clone(), ..Setup::default() };
    let (mut world, greedy) = (World::new(setup()).await, World::new(setup()).await);
    let (own, client, names) = member(&greedy).await;
    pull_on(&greedy, Arc::new(client));
    let bearer = greedy.token.to_text();
    let request = format!(
        "POST /v1/turn HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bearer}\r\n{names}\
         Content-Length: 14\r\n\r\n{{\"wants\":true}}"
    );
    let asked: Arc<AtomicU64> = Arc::default();
    let mut asking = JoinSet::new();
    for _ in 0..8 {
        let mut tls = greedy.tls(client_config(&own, greedy.sender.public_key())).await;
        let (asked, request) = (asked.clone(), request.clone());
        asking.spawn(async move {
            // A hundred at a time, and their answers come when they come.
            let requests = request.repeat(100);
            let mut answers = vec![0; 1 << 16];
            while tls.write_all(requests.as_bytes()).await.is_ok() {
                asked.fetch_add(100, Ordering::Relaxed);
                if tls.read(&mut answers).await.unwrap_or(0) == 0 {
                    break;
                }
            }
        });
    }
    until(|| asked.load(Ordering::Relaxed) > 2000).await;
    decided_beside_others(&mut world).await;
    asking.shutdown().await;
    assert!(pull(&greedy.client().await, data(0, 10)).await.is_ok());
}
