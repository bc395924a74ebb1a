//! The control endpoint with real sockets on 127.0.0.1: stories of receivers, of strangers, and of bytes.

mod bulk;
#[path = "../../../downpour/tests/site/ports.rs"]
mod ports;
mod pulls;
#[path = "../../../skipped.rs"]
mod skipped;
mod strangers;
mod turns;
mod vanished;
mod world;

use downpour_proto::ReceiverId;
use downpour_transport::Secret;
use downpour_transport::control::{
    BlockRange, ControlClient, ErrorCode, Event, EventStream, EventsEnd, HaveRequest, JoinError,
    JoinRequest, Joined, LeaveRequest, MANIFEST_SYMBOLS_MAX, ObjectFailure, PROTOCOL_VERSION,
    REASON_LEN_MAX, ReadyRequest, Receipt, RequestError, ServerLimits, SessionId, SignedReceipt,
};
use downpour_transport::identity::Identity;
use std::sync::Arc;
use std::time::Duration;
use world::{Setup, Told, World, join_request};

fn receipt(world: &World, receiver: ReceiverId) -> Receipt {
    Receipt {
        session: world.session.id,
        receiver,
        manifest_digest: [3; 32],
        made_unix_s: 1_800_000_000,
        finished: true,
        objects_complete: 8,
        objects_failed: 1,
        bytes_complete: 1000,
        bytes_by_stream: 900,
        bytes_by_pull: 60,
        bytes_held: 40,
        repair_symbols: 3,
        failures: vec![ObjectFailure { object: 5, reason: "disk full".into() }],
    }
}

#[tokio::test]
async fn who_joins_again_is_known_by_its_new_number_alone() {
    let world = World::new(Setup::default()).await;
    let setup = world.client_setup();
    let (before, after) = (ControlClient::connect(setup.clone()), ControlClient::connect(setup));
    let (before, after) = (before.await.unwrap(), after.await.unwrap());
    let request = join_request("anna");
    before.join(&request).await.unwrap();
    let mut events = before.events().await.unwrap();
    after.join(&request).await.unwrap();
    let ready = ReadyRequest { multicast: true, candidates: false };
    assert_eq!(before.ready(ready).await, Err(RequestError::Rejoin));
    assert!(events.next().await.is_err(), "its stream has ended");
    assert_eq!(after.ready(ready).await, Ok(()));
}

#[tokio::test]
async fn a_receiver_joins_works_and_leaves() {
    let mut world = World::new(Setup::default()).await;
    let setup = world.client_setup();
    let identity = setup.identity.clone();
    let client = ControlClient::connect(setup).await.unwrap();

    let joined = client.join(&join_request("anna")).await.unwrap();
    assert_eq!(joined.reply.session, world.session.id);
    assert_eq!(joined.sender, world.server.local_addr());
    let Told::Join { node, feedback, name } = world.told().await else { panic!("not a join") };
    assert_eq!((node, name.as_str()), (identity.public_key(), "anna"));
    // Both ends of the one connection export the same secret, and the session's id is in it.
    assert!(feedback == joined.feedback && feedback != Secret::new([0; 32]));

    let mut events = client.events().await.unwrap();
    assert_eq!(world.told().await, Told::Subscribed(1));

    let ready = ReadyRequest { multicast: true, candidates: false };
    client.ready(ready).await.unwrap();
    assert_eq!(world.told().await, Told::Ready(1, ready));

    let have = HaveRequest { data: vec![BlockRange(0, 7)], manifest: Vec::new(), examined: 2 };
    client.have(have.clone()).await.unwrap();
    assert_eq!(world.told().await, Told::Have(1, have));

    let told = [
        Event::Start,
        Event::LeaveGroup { reason: "too slow".into() },
        Event::ReturnToGroup,
        Event::Closing,
        Event::Shutdown { reason: "done\n\"really\"".into() },
    ];
    for event in &told {
        world.session.send(1, event.clone());
    }
    for event in &told {
        assert_eq!(events.next().await.as_ref(), Ok(event));
    }

    let receipt = receipt(&world, joined.reply.receiver);
    client.receipt(&receipt.clone().sign(&identity)).await.unwrap();
    assert_eq!(world.told().await, Told::Receipt(1, Box::new(receipt)));

    client.leave("all done", false).await.unwrap();
    let leave = LeaveRequest { reason: "all done".into(), error: false };
    assert_eq!(world.told().await, Told::Leave(1, leave));
    drop((events, client));
    assert_eq!(world.told().await, Told::Unsubscribed(1));
}

#[tokio::test]
async fn a_word_that_waits_for_its_answer_holds_up_nothing_else() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    let mut word = std::pin::pin!(client.word("placed".into()));
    let told = tokio::select! {
        told = world.told() => told,
        early = &mut word => panic!("{early:?}"),
    };
    assert_eq!(told, Told::Word(1, "placed".into()));
    let ready = ReadyRequest { multicast: true, candidates: false };
    tokio::select! {
        said = client.ready(ready) => said.unwrap(),
        early = &mut word => panic!("{early:?}"),
    }
    assert_eq!(world.told().await, Told::Ready(1, ready));
    world.session.answers.notify_one();
    word.await.unwrap();
}

#[tokio::test]
async fn a_receipt_of_another_is_refused() {
    let mut world = World::new(Setup::default()).await;
    let (client, joined) = world.member().await;
    let forged = receipt(&world, joined.reply.receiver).sign(&Identity::generate());
    let error = client.receipt(&forged).await.unwrap_err();
    assert!(matches!(error, RequestError::Refused(_)), "{error}");
    world.told_nothing();
}

/// A receiver whose key is known.
async fn with_a_signer() -> (World, ControlClient, Joined, Arc<Identity>) {
    let mut world = World::new(Setup::default()).await;
    let setup = world.client_setup();
    let identity = setup.identity.clone();
    let client = ControlClient::connect(setup).await.unwrap();
    let joined = client.join(&join_request("anna")).await.unwrap();
    assert!(matches!(world.told().await, Told::Join { .. }));
    (world, client, joined, identity)
}

#[tokio::test]
async fn a_receipt_of_another_session_is_refused() {
    let (mut world, client, joined, identity) = with_a_signer().await;
    let mine = receipt(&world, joined.reply.receiver);
    let session = SessionId::from_bytes([0; 16]);
    for old in [Receipt { session, ..mine.clone() }, Receipt { receiver: ReceiverId(9), ..mine }] {
        let error = client.receipt(&old.sign(&identity)).await.unwrap_err();
        let RequestError::Refused(error) = error else { panic!("{error}") };
        assert_eq!(error.code, ErrorCode::BadReceipt);
    }
    world.told_nothing();
}

#[tokio::test]
async fn a_receipt_with_an_endless_reason_is_refused() {
    let (mut world, client, joined, identity) = with_a_signer().await;
    let mut endless = receipt(&world, joined.reply.receiver);
    endless.failures[0].reason = "x".repeat(REASON_LEN_MAX + 1);
    // By a receiver of its own making: ours clips reasons.
    let receipt = serde_json::to_string(&endless).unwrap();
    let signature = identity.sign(SignedReceipt::DOMAIN, receipt.as_bytes());
    let error = client.receipt(&SignedReceipt { receipt, signature }).await.unwrap_err();
    let RequestError::Refused(error) = error else { panic!("{error}") };
    assert_eq!(error.code, ErrorCode::BadRequest);
    world.told_nothing();
}

#[tokio::test]
async fn receivers_on_one_machine_are_told_apart() {
    let mut world = World::new(Setup::default()).await;
    let setup = world.client_setup();
    let first = ControlClient::connect(setup.clone()).await.unwrap();
    let second = ControlClient::connect(setup).await.unwrap();
    first.join(&join_request("anna")).await.unwrap();
    second.join(&join_request("anna")).await.unwrap();
    let (one, two) = (world.told().await, world.told().await);
    let (Told::Join { feedback: a, .. }, Told::Join { feedback: b, .. }) = (one, two) else {
        panic!("not joins")
    };
    assert!(a != b, "each connection has a secret of its own");
    let ready = ReadyRequest { multicast: false, candidates: true };
    second.ready(ready).await.unwrap();
    assert_eq!(world.told().await, Told::Ready(2, ready));
}

#[tokio::test]
async fn the_sender_learns_that_a_receiver_died() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    let events = client.events().await.unwrap();
    assert_eq!(world.told().await, Told::Subscribed(1));
    drop(events);
    assert_eq!(world.told().await, Told::Unsubscribed(1));
}

#[tokio::test]
async fn a_receiver_that_listens_anew_has_not_died() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    let mut before = client.events().await.unwrap();
    assert_eq!(world.told().await, Told::Subscribed(1));
    let mut events = client.events().await.unwrap();
    assert_eq!(world.told().await, Told::Subscribed(1));
    assert_eq!(before.next().await, Err(EventsEnd::Closed));
    drop(before);
    world.session.send(1, Event::Start);
    assert_eq!(events.next().await, Ok(Event::Start));
    world.told_nothing();
    drop(events);
    assert_eq!(world.told().await, Told::Unsubscribed(1));
}

#[tokio::test]
async fn a_receiver_learns_that_the_sender_died() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    let mut events = client.events().await.unwrap();
    drop(world);
    assert!(matches!(events.next().await, Err(EventsEnd::Lost(_))));
    let error = client.leave("bye", false).await.unwrap_err();
    assert!(matches!(error, RequestError::Unreachable(_)) && error.is_passing(), "{error}");
}

#[tokio::test]
async fn a_receiver_learns_that_the_sender_is_silent() {
    let limits = ServerLimits { ping_every: Duration::from_secs(3600), ..Default::default() };
    let world = World::new(Setup { limits, ..Setup::default() }).await;
    let mut setup = world.client_setup();
    setup.limits.silence_time_max = Duration::from_millis(300);
    let client = ControlClient::connect(setup).await.unwrap();
    client.join(&join_request("anna")).await.unwrap();
    let mut events = client.events().await.unwrap();
    let end = events.next().await;
    assert!(matches!(end, Err(EventsEnd::Silent(time)) if time.as_millis() >= 300), "{end:?}");
}

/// How long the sender had been silent when that ended a subscription of which `came` hears of more and more elsewhere, ms.
async fn silence_although(came: fn(&mut EventStream, u64)) -> u128 {
    let limits = ServerLimits { ping_every: Duration::from_secs(3600), ..Default::default() };
    let world = World::new(Setup { limits, ..Setup::default() }).await;
    let mut setup = world.client_setup();
    setup.limits.silence_time_max = Duration::from_millis(300);
    setup.limits.deafness_time_max = Duration::from_millis(900);
    let client = ControlClient::connect(setup).await.unwrap();
    client.join(&join_request("anna")).await.unwrap();
    let mut events = client.events().await.unwrap();
    // From here on time passes only where everybody waits for it.
    tokio::time::pause();
    let mut count = 0;
    let end = loop {
        count += 1;
        came(&mut events, count);
        if let Ok(end) = tokio::time::timeout(Duration::from_millis(50), events.next()).await {
            break end;
        }
        assert!(count < 1000, "it never ends");
    };
    let Err(EventsEnd::Silent(time)) = end else { panic!("{end:?}") };
    time.as_millis()
}

/// The sender may have given up the connection, and that is not told here.
#[tokio::test]
async fn a_connection_that_is_silent_for_long_ends_although_datagrams_come() {
    assert!((900..1800).contains(&silence_although(EventStream::heard_elsewhere).await));
}

/// Nor does who has been given up cease to be given what it asks for.
#[tokio::test]
async fn a_connection_that_is_silent_for_long_ends_although_bytes_are_pulled() {
    assert!((900..1800).contains(&silence_although(EventStream::pulled_elsewhere).await));
}

#[tokio::test]
async fn pings_keep_a_quiet_session_alive() {
    let limits = ServerLimits { ping_every: Duration::from_millis(50), ..Default::default() };
    let mut world = World::new(Setup { limits, ..Setup::default() }).await;
    let mut setup = world.client_setup();
    setup.limits.silence_time_max = Duration::from_secs(5);
    let client = ControlClient::connect(setup).await.unwrap();
    client.join(&join_request("anna")).await.unwrap();
    let mut events = client.events().await.unwrap();
    assert!(matches!(world.told().await, Told::Join { .. }));
    assert_eq!(world.told().await, Told::Subscribed(1));
    // Twice as long as the silence that is allowed; pings alone do not make an event.
    let waited = tokio::time::timeout(Duration::from_secs(11), events.next()).await;
    assert!(waited.is_err(), "{waited:?}");
    world.session.send(1, Event::Closing);
    assert_eq!(events.next().await, Ok(Event::Closing));
}

#[tokio::test]
async fn a_session_that_ends_in_order_delivers_its_last_events() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    let mut events = client.events().await.unwrap();
    assert_eq!(world.told().await, Told::Subscribed(1));
    let last = Event::Shutdown { reason: "all complete".into() };
    world.session.send(1, last.clone());
    world.server.stop(Duration::from_secs(30)).await;
    assert_eq!(events.next().await, Ok(last));
    assert_eq!(events.next().await, Err(EventsEnd::Closed));
    assert_eq!(world.session.events.lock().unwrap()[&1].send(Event::Start).ok(), None);
}

#[tokio::test]
async fn no_event_is_missed_without_notice() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    let mut events = client.events().await.unwrap();
    assert_eq!(world.told().await, Told::Subscribed(1));
    let sender = world.session.events.lock().unwrap()[&1].clone();
    // This thread is the runtime, too: nothing is sent meanwhile.
    let reason = "\u{1}".repeat(10_000);
    let queued = (0..1_000_000)
        .take_while(|_| sender.send(Event::LeaveGroup { reason: reason.clone() }).is_ok())
        .count();
    assert!((1000..1_000_000).contains(&queued), "{queued}");
    let mut came = 0;
    let end = loop {
        match events.next().await {
            Ok(_) => came += 1,
            Err(end) => break end,
        }
    };
    assert!(end == EventsEnd::Closed && came <= queued, "{end}, {came} of {queued}");
    assert_eq!(world.told().await, Told::Unsubscribed(1));

    // Long reasons are cut, and what is within the limits comes whole.
    let mut events = client.events().await.unwrap();
    assert_eq!(world.told().await, Told::Subscribed(1));
    world.session.send(1, Event::Shutdown { reason });
    let cut = "\u{1}".repeat(REASON_LEN_MAX);
    assert_eq!(events.next().await, Ok(Event::Shutdown { reason: cut }));
    let list = Event::Manifest { first: 7, symbols: vec![1024; MANIFEST_SYMBOLS_MAX] };
    world.session.send(1, list.clone());
    assert_eq!(events.next().await, Ok(list));
}

#[tokio::test]
async fn a_restarted_sender_asks_to_join_again() {
    let sender = Arc::new(Identity::generate());
    let (port, first) = (ports::port(), sender.clone());
    let mut world = World::new(Setup { sender: first, port, ..Setup::default() }).await;
    let token = world.token;
    let (client, first) = world.member().await;
    world.server.stop(Duration::from_secs(30)).await;

    let again = Setup { sender, token, port, ..Setup::default() };
    let world = World::new(again).await;
    let error = client.leave("bye", false).await.unwrap_err();
    assert_eq!(error, RequestError::Rejoin);
    let second = client.join(&join_request("anna")).await.unwrap();
    assert_eq!(second.reply.session, world.session.id);
    assert!(second.reply.session != first.reply.session && second.feedback != first.feedback);
    client.leave("bye", false).await.unwrap();
}

#[tokio::test]
async fn other_versions_are_told_so() {
    let world = World::new(Setup::default()).await;
    let client = world.client().await;
    let mut request = join_request("anna");
    request.protocol = PROTOCOL_VERSION + 1;
    let error = client.join(&request).await.unwrap_err();
    assert!(matches!(error, JoinError::WrongVersion(_)) && !error.is_passing(), "{error}");
}

// docs/protocol.md#CODE-3
#[tokio::test]
async fn who_does_not_know_the_code_is_told_what_to_do() {
    let world = World::new(Setup::default()).await;
    let client = world.client().await;
    let request = JoinRequest { codes: vec![2, 77], ..join_request("anna") };
    let error = client.join(&request).await.unwrap_err();
    let JoinError::WrongVersion(text) = error else { panic!("{error}") };
    assert!(text.contains("--code rs") && text.contains("without --code"), "{text}");
    // It was not taken in: it knows no session, and no repair symbols.
    assert!(client.leave("bye", false).await.is_err());
}
