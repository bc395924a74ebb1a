//! Those who should not be here, and those who behave badly.

use crate::pulls::data;
use crate::world::{HANG, Setup, World, code, join_request, pull};
use downpour_transport::control::{
    AttemptError, BODY_LEN_MAX, ControlClient, ErrorCode, JoinError, ServerLimits, Token,
};
use downpour_transport::identity::{ClientKeys, Identity, client_config};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_server_with_another_key_is_not_spoken_to() {
    let mut world = World::new(Setup::default()).await;
    let mut setup = world.client_setup();
    setup.server = Identity::generate().public_key();
    let expected = setup.server;
    let error = ControlClient::connect(setup).await.err().unwrap();
    let wrong = error.wrong_key().unwrap();
    assert_eq!((wrong.expected, wrong.seen), (expected, world.sender.public_key()));
    let text = error.to_string();
    assert!(text.contains(&expected.to_string()) && text.contains("127.0.0.1"), "{text}");
    world.told_nothing();
}

#[tokio::test]
async fn every_address_of_a_ticket_is_tried() {
    let world = World::new(Setup::default()).await;
    let impostor = World::new(Setup::default()).await;
    let mut setup = world.client_setup();
    let good = setup.addrs[0].clone();
    let bad = impostor.server.local_addr().to_string();
    setup.addrs = vec!["127.0.0.1:1".into(), "no port".into(), bad.clone(), good];
    let client = ControlClient::connect(setup.clone()).await.unwrap();
    client.join(&join_request("anna")).await.unwrap();

    setup.addrs.truncate(3);
    let error = ControlClient::connect(setup).await.err().unwrap();
    assert_eq!(error.tried.len(), 3, "{error}");
    let of = |addr: &str| &error.tried.iter().find(|tried| tried.0 == addr).unwrap().1;
    assert!(matches!(of("127.0.0.1:1"), AttemptError::Connect(_)), "{error}");
    assert!(matches!(of("no port"), AttemptError::Resolve(_)), "{error}");
    assert!(matches!(of(&bad), AttemptError::WrongKey(_)), "{error}");
    assert_eq!(error.wrong_key(), None, "the sender may yet come to the other addresses");
}

#[tokio::test]
async fn a_connection_that_breaks_in_the_handshake_accuses_nobody() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let closing = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let world = World::new(Setup::default()).await;
    let mut setup = world.client_setup();
    setup.addrs = vec![addr];
    let error = ControlClient::connect(setup).await.err().unwrap();
    assert!(matches!(error.tried[0].1, AttemptError::Broken(_)), "{error}");
    closing.abort();
}

#[tokio::test]
async fn a_wrong_token_opens_nothing() {
    let mut world = World::new(Setup::default()).await;
    let mut setup = world.client_setup();
    setup.token = Token::random().unwrap();
    let client = ControlClient::connect(setup).await.unwrap();
    let error = client.join(&join_request("mallory")).await.unwrap_err();
    assert_eq!(error, JoinError::WrongToken);
    assert!(pull(&Arc::new(client), data(0, 10)).await.is_err());

    world.token = Token::random().unwrap();
    let (status, head, body) = world.raw("GET /v1/data HTTP/1.1\r\n").await;
    assert_eq!((status, code(&body)), (401, ErrorCode::WrongToken));
    assert!(head.contains("www-authenticate: bearer"), "{head}");
    let (status, _, _) = world.raw("GET /nowhere HTTP/1.1\r\n").await;
    assert_eq!(status, 401, "a stranger does not learn what exists");
    for authorization in ["", "Authorization: Bearer\r\n", "Authorization: Basic AAAA\r\n"] {
        let head = format!("GET /v1/data HTTP/1.1\r\n{authorization}");
        let (status, _, _) = world.raw_without_token(&head).await;
        assert_eq!(status, 401, "{authorization:?}");
    }
    world.told_nothing();
}

// docs/protocol.md#TICK-3
#[tokio::test]
async fn a_ticket_ends_for_newcomers_only() {
    let world = World::new(Setup { expires_unix_s: 1_700_000_000, ..Setup::default() }).await;
    let error = world.client().await.join(&join_request("late")).await.unwrap_err();
    assert!(matches!(error, JoinError::Expired(_)) && !error.is_passing(), "{error}");
    assert!(error.to_string().contains("ask for a new one"), "{error}");
    let (status, _, body) = world.raw("GET /v1/data HTTP/1.1\r\n").await;
    assert_eq!((status, code(&body)), (403, ErrorCode::TicketExpired));
}

#[tokio::test]
async fn who_has_joined_comes_back_also_when_the_ticket_has_ended() {
    let mut life = Duration::from_secs(3);
    let (world, setup, end) = loop {
        let end = SystemTime::now() + life;
        let expires_unix_s = end.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let world = World::new(Setup { expires_unix_s, ..Setup::default() }).await;
        let setup = world.client_setup();
        let client = ControlClient::connect(setup.clone()).await.unwrap();
        match client.join(&join_request("anna")).await {
            // The machine is busy.
            Err(JoinError::Expired(_)) if life < HANG => life *= 2,
            joined => break joined.map(|_| (world, setup, end)).unwrap(),
        }
    };
    while let Ok(left) = end.duration_since(SystemTime::now()) {
        tokio::time::sleep(left).await;
    }
    let error = world.client().await.join(&join_request("late")).await.unwrap_err();
    assert!(matches!(error, JoinError::Expired(_)), "{error}");
    let client = ControlClient::connect(setup).await.unwrap();
    client.join(&join_request("anna")).await.unwrap();
}

// docs/protocol.md#TICK-3
#[tokio::test]
async fn a_node_that_is_not_on_the_list_is_told_its_key() {
    let friend = Arc::new(Identity::generate());
    let clients = ClientKeys::Only(BTreeSet::from([friend.public_key()]));
    let world = World::new(Setup { clients, ..Setup::default() }).await;
    let mut setup = world.client_setup();
    let stranger = setup.identity.public_key();
    let client = ControlClient::connect(setup.clone()).await.unwrap();
    let error = client.join(&join_request("mallory")).await.unwrap_err();
    assert!(matches!(error, JoinError::NotAllowed(_)), "{error}");
    assert!(error.to_string().contains(&stranger.to_string()), "{error}");

    setup.identity = friend;
    let client = ControlClient::connect(setup).await.unwrap();
    client.join(&join_request("anna")).await.unwrap();
}

#[tokio::test]
async fn a_client_without_certificate_gets_no_answer() {
    let world = World::new(Setup::default()).await;
    let mut config = (*client_config(&Identity::generate(), world.sender.public_key())).clone();
    config.client_auth_cert_resolver = Arc::new(NoCertificate);
    let mut tls = world.tls(Arc::new(config)).await;
    let head =
        format!("GET /v1/data HTTP/1.1\r\nAuthorization: Bearer {}\r\n\r\n", world.token.to_text());
    let _ = tls.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let error = tls.read_to_end(&mut answer).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::ConnectionReset), "{error}");
    assert!(answer.is_empty());
}

#[derive(Debug)]
struct NoCertificate;

impl rustls::client::ResolvesClientCert for NoCertificate {
    fn resolve(
        &self,
        _hints: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_member_cannot_speak_for_another() {
    let mut world = World::new(Setup::default()).await;
    let (_client, joined) = world.member().await;
    let session = joined.reply.session.to_text();
    // Another node, with the right token, and the first one's number.
    let head = format!(
        "POST /v1/leave HTTP/1.1\r\nContent-Length: 0\r\n\
         Downpour-Session: {session}\r\nDownpour-Receiver: 1\r\n"
    );
    let (status, _, body) = world.raw(&head).await;
    assert_eq!((status, code(&body)), (403, ErrorCode::NotMember));
    let (status, _, body) = world.raw("GET /v1/events HTTP/1.1\r\n").await;
    assert_eq!((status, code(&body)), (403, ErrorCode::NotMember));
    world.told_nothing();
}

#[tokio::test]
async fn nonsense_is_answered_with_its_code() {
    let mut world = World::new(Setup::default()).await;
    for (head, expected) in [
        ("GET /v2/data HTTP/1.1\r\n", ErrorCode::NotFound),
        ("GET /v1/join HTTP/1.1\r\n", ErrorCode::WrongMethod),
        ("DELETE /v1/data HTTP/1.1\r\n", ErrorCode::WrongMethod),
        ("POST /v1/join HTTP/1.1\r\nContent-Length: 0\r\n", ErrorCode::BadRequest),
        ("GET /v1/repair/d1 HTTP/1.1\r\n", ErrorCode::BadRequest),
        ("GET /v1/repair/d1?from=0&count=2000 HTTP/1.1\r\n", ErrorCode::BadRequest),
        ("GET /v1/repair/d9?from=0&count=1 HTTP/1.1\r\n", ErrorCode::NotFound),
        ("GET /v1/data HTTP/1.1\r\nDownpour-Session: x\r\n", ErrorCode::UnknownSession),
    ] {
        let (status, _, body) = world.raw(head).await;
        assert_eq!((status, code(&body)), (expected.status().as_u16(), expected), "{head}");
    }
    world.told_nothing();
}

#[tokio::test]
async fn bodies_and_heads_have_limits() {
    let mut world = World::new(Setup::default()).await;
    let announced = format!("POST /v1/join HTTP/1.1\r\nContent-Length: {}\r\n", BODY_LEN_MAX + 1);
    let (status, _, body) = world.raw(&announced).await;
    assert_eq!((status, code(&body)), (413, ErrorCode::TooLarge));

    // Not announced, but sent.
    let config = client_config(&Identity::generate(), world.sender.public_key());
    let mut tls = world.tls(config).await;
    let head = format!(
        "POST /v1/join HTTP/1.1\r\nAuthorization: Bearer {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        world.token.to_text()
    );
    tls.write_all(head.as_bytes()).await.unwrap();
    let mut piece = b"10000\r\n".to_vec();
    piece.extend([b' '; 0x10000]);
    piece.extend(b"\r\n");
    for _ in 0..BODY_LEN_MAX / 0x10000 + 1 {
        if tls.write_all(&piece).await.is_err() {
            break;
        }
    }
    let mut answer = vec![0; 12];
    // The refusal, or a reset because it refuses to read on.
    if tls.read_exact(&mut answer).await.is_ok() {
        assert_eq!(&answer, b"HTTP/1.1 413");
    }

    let long = format!("GET /v1/data HTTP/1.1\r\nX: {}\r\n", "x".repeat(100_000));
    let config = client_config(&Identity::generate(), world.sender.public_key());
    let mut tls = world.tls(config).await;
    let _ = tls.write_all(long.as_bytes()).await;
    let mut answer = vec![0; 12];
    if tls.read_exact(&mut answer).await.is_ok() {
        assert_eq!(&answer, b"HTTP/1.1 431");
    }
    world.told_nothing();
    world.client().await.join(&join_request("anna")).await.unwrap();
}

#[tokio::test]
async fn two_hundred_idle_connections_harm_nobody() {
    let limits = ServerLimits { connections_max: 64, ..Default::default() };
    let mut world = World::new(Setup { limits, ..Setup::default() }).await;
    let (client, _) = world.member().await;
    let mut events = client.events().await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(world.server.local_addr()).await.unwrap());
    }
    world.client().await.join(&join_request("anna")).await.unwrap();
    // Some that have shaken hands, too.
    let config = client_config(&Identity::generate(), world.sender.public_key());
    let mut shaken = Vec::new();
    for _ in 0..100 {
        shaken.push(world.tls(config.clone()).await);
    }
    world.client().await.join(&join_request("berta")).await.unwrap();
    // Who was there before them still is.
    world.session.send(1, downpour_transport::control::Event::Start);
    events.next().await.unwrap();
    let mut closed = 0;
    for mut tcp in idle {
        let mut byte = [0];
        let read = tcp.read(&mut byte);
        if let Ok(Ok(0) | Err(_)) = tokio::time::timeout(Duration::from_millis(1), read).await {
            closed += 1;
        }
    }
    assert!(closed >= 136, "{closed} of 200 idle connections had to make room");
}

#[tokio::test]
async fn who_says_nothing_is_sent_away() {
    // Each of these ends only because the server ends it.
    let limits =
        ServerLimits { handshake_time_max: Duration::from_millis(200), ..Default::default() };
    let world = World::new(Setup { limits, ..Setup::default() }).await;
    let mut tcp = TcpStream::connect(world.server.local_addr()).await.unwrap();
    let mut answer = Vec::new();
    let _ = tcp.read_to_end(&mut answer).await;

    // Long enough for a handshake and what follows it on a busy machine.
    let limits = ServerLimits { head_time_max: Duration::from_secs(3), ..Default::default() };
    let world = World::new(Setup { limits, ..Setup::default() }).await;
    let client = world.client().await;
    client.join(&join_request("anna")).await.unwrap();
    let config = client_config(&Identity::generate(), world.sender.public_key());
    let mut half = world.tls(config.clone()).await;
    let _ = half.write_all(b"GET /v1/data HTTP/1.1\r\nHos").await;
    let mut tls = world.tls(config).await;
    let _ = half.read_to_end(&mut answer).await;
    let _ = tls.read_to_end(&mut answer).await;
    // A client whose idle connection was ended, as it is by now, notices nothing.
    client.leave("bye", false).await.unwrap();
}

/// What a request without encryption is answered.
async fn plainly(world: &World, method: &str, path: &str, token: &Token) -> String {
    let mut tcp = TcpStream::connect(world.server.local_addr()).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: downpour\r\nauthorization: Bearer {}\r\n\
         range: bytes=0-9\r\nconnection: close\r\n\r\n",
        token.to_text()
    );
    tcp.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A reset is an answer too.
    let _ = tcp.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn without_encryption_there_is_bulk_for_its_own_token_only() {
    let plain = Token::random().unwrap();
    let mut world = World::new(Setup { plain: Some(plain), ..Setup::default() }).await;
    let answer = plainly(&world, "GET", "/v1/data", &plain).await;
    assert!(answer.starts_with("HTTP/1.1 206"), "{answer}");
    for (method, path, token, status) in [
        ("GET", "/v1/data", world.token, "401"),
        ("POST", "/v1/join", plain, "404"),
        ("GET", "/v1/events", plain, "404"),
        ("GET", "/v1/clock", plain, "404"),
    ] {
        let answer = plainly(&world, method, path, &token).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
    world.told_nothing();

    // A receiver that has joined uses it, until it has seen something false.
    let (client, _) = world.member().await;
    let bytes = &world.session.data;
    assert!(pull(&client, data(0, 2_000_000)).await.unwrap() == bytes[..2_000_000]);
    client.encrypt_all();
    assert!(pull(&client, data(5, 1_000_000)).await.unwrap() == bytes[5..1_000_000]);

    let closed = World::new(Setup::default()).await;
    let answer = plainly(&closed, "GET", "/v1/data", &closed.token).await;
    assert!(!answer.contains("HTTP"), "at most an alert: {answer}");
}
