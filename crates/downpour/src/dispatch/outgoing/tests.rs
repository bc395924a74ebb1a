//! A batch at its source where disks hang, and where no session opens.

use super::{
    BatchState, Book, Held, LOOK_TIME, OfferAnswer, Outgoing, Progress, Rng, Route, Said,
    SessionId, SiteId, Stand, Trouble, in_time, now, oneshot, takes_nothing, why_not_read,
};
use crate::dispatch::fixture::{self, apply, told};
use crate::dispatch::work::work;
use crate::dispatch::{Dispatch, lock};
use crate::site::{Daemon, Site, SiteEvent, Stop, Wish};
use crate::spool::Rules;
use axum::body::Body;
use axum::http::{Request, Response};
use downpour_catalog::{Change, ErrorClass, Replica, ReplicaState};
use downpour_transport::control::{Endpoint, ServerLimits};
use downpour_transport::identity::Identity;
use serde::Serialize;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A site that answers all like this.
async fn answering(answer: &impl Serialize) -> (SocketAddr, Identity) {
    let answer = serde_json::to_vec(answer).unwrap();
    let (identity, any) = (Identity::generate(), "127.0.0.1:0".parse().unwrap());
    let endpoint = Endpoint::bind(any, &identity, ServerLimits::default()).await.unwrap();
    let address = endpoint.local_addr();
    let answer = move |_: Request<_>| {
        let answer = Response::new(Body::from(answer.clone()));
        async move { answer }
    };
    tokio::spawn(endpoint.serve(answer, std::future::pending(), Duration::ZERO));
    (address, identity)
}

#[tokio::test]
async fn where_no_session_can_be_opened_the_link_rests() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let listen =
        |port| TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
    // Neither port of the range is free.
    let (port, _held) = loop {
        let first = listen(0).unwrap();
        let port = first.local_addr().unwrap().port();
        if let Some(Ok(second)) = port.checked_add(1).map(listen) {
            break (port, [first, second]);
        }
    };
    // It takes a file of each offer.
    let items = vec![Said::Take { path: "f".to_owned() }];
    let (address, other) = answering(&OfferAnswer { items }).await;
    let more = format!(
        "[transfer]\nports = '{port}-{}'\n\
         [[remote]]\nname = 'b'\nkey = '{}'\naddress = '{address}'\n",
        port + 1,
        other.public_key()
    );
    let site = Daemon::ended(at, "a", &more).await;
    let (file, own, _) = fixture::queued(&site, "to:b", "f").await;
    let path = at.join("f");
    std::fs::write(&path, "f").unwrap();
    let (path, state) = (path.to_str().unwrap().to_owned(), ReplicaState::Present);
    apply(&site, Change::Replica(Replica { file, site: own, path, state })).await;
    let dispatch = Arc::new(Dispatch::new(&site, &Arc::default()));
    let (wish, stop) = Stop::new();
    let working = tokio::spawn(work(dispatch.clone(), site.clone(), stop));
    let rests = async {
        loop {
            let links = lock(&dispatch.links)
                .get("b")
                .map(|link| (link.probe_at().is_some(), link.trouble().map(|(class, _)| *class)));
            if let Some((true, class)) = links {
                break class;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let rests = tokio::time::timeout(Duration::from_secs(60), rests).await;
    wish.send_replace(Wish::Stop);
    working.await.unwrap().unwrap();
    assert_eq!(rests.expect("it rests"), Some(ErrorClass::OutOfResources));
}

/// A site with a remote that nobody has an address of.
async fn to_nowhere(folder: &Path) -> Arc<Site> {
    let key = Identity::generate().public_key();
    Daemon::ended(folder, "a", &format!("[[remote]]\nname = 'b'\nkey = '{key}'\n")).await
}

fn outgoing(site: &Arc<Site>, held: &[Held]) -> Outgoing {
    let remote = site.remote("b").unwrap();
    let route = Route::of(&site.config(), &Rules::new("a", &[]), "to:b/{name}").unwrap();
    let dispatch = Arc::new(Dispatch::new(site, &Arc::default()));
    let book = Arc::new(Book::new(site, &dispatch.look));
    book.hold(held);
    let id = SessionId::random().unwrap();
    let progress = Arc::new(Progress::new(id, site, &remote, &route.rule, held));
    Outgoing {
        site: site.clone(),
        remote,
        dispatch,
        book,
        destination: SiteId(1),
        route,
        id,
        rng: Rng::new(1),
        progress,
    }
}

#[tokio::test]
async fn a_session_that_a_disk_does_not_let_open_is_told_of_and_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let (site, held) = (to_nowhere(folder.path()).await, vec![Held::example("f")]);
    tokio::time::pause();
    let hangs = async |held_still: &[Held]| {
        let begun = now();
        let (_opens, ticket) = oneshot::channel();
        let ended = outgoing(&site, held_still).ticket(ticket, &held, |_| {}).await;
        (ended.unwrap_err().unwrap(), (now() - begun).as_secs())
    };
    let (what, after_s) = hangs(&held).await;
    assert!(what.starts_with("nothing has arrived at b for 600 s"), "{what}");
    let told = told(&site, SiteEvent::TROUBLE).await["what"].to_string();
    assert!(told.contains("for 60 s"), "{told}");
    // All of it was cancelled.
    assert_eq!((after_s, hangs(&[]).await.1), (602, 12));
}

#[tokio::test]
async fn a_destination_that_hangs_when_its_session_has_ended_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    // It says for ever that it is not done.
    let (address, other) = answering(&BatchState::default()).await;
    let remote =
        format!("[[remote]]\nname = 'b'\nkey = '{}'\naddress = '{address}'\n", other.public_key());
    let site = Daemon::ended(at, "a", &remote).await;
    let mut held = Held::example("f");
    held.path = at.join("f");
    std::fs::write(&held.path, "abc").unwrap();
    let held = vec![held];
    let outgoing = outgoing(&site, &held);
    *lock(&outgoing.progress.stand) = Stand::within(Duration::from_millis(50));
    let (mut running, _ticket) = outgoing.open(&held, vec!["f".to_owned()], Arc::default());
    // As where its sender gave the receiver up.
    running.stop();
    let wait = outgoing.wait(&mut running, "/v1/site/batches/1", &held, None);
    let ended = tokio::time::timeout(Duration::from_secs(60), wait).await;
    let broken = ended.expect("it is given up").1.expect_err("nothing came");
    assert_eq!(broken.class, ErrorClass::TimedOut);
    assert!(broken.what.starts_with("nothing has arrived at b"), "{}", broken.what);
}

#[test]
fn a_site_without_room_says_how_small_a_file_found_none() {
    let refused = |size, class| {
        let mut held = Held::example("a");
        held.file.size = size;
        (held, Trouble::new(class, format!("{size}")))
    };
    let (full, busy) = (ErrorClass::DestinationFull, ErrorClass::OutOfResources);
    let two = takes_nothing(&[refused(9, full), refused(5, full)]).unwrap();
    assert_eq!((two.class, two.what.as_str(), two.too_large), (full, "5", Some(5)));
    let both = takes_nothing(&[refused(9, full), refused(5, busy)]).unwrap();
    assert_eq!((both.class, both.too_large), (busy, None));
    let own = takes_nothing(&[refused(9, full), refused(5, ErrorClass::NameRefused)]);
    assert!(own.is_none());
}

#[tokio::test]
async fn a_disk_that_does_not_answer_is_not_waited_for() {
    tokio::time::pause();
    let (answer, answered) = std::sync::mpsc::channel::<()>();
    let looks = in_time(2, move || {
        let _ = answered.recv();
        Vec::new()
    });
    let looks = tokio::spawn(looks);
    tokio::task::yield_now().await;
    tokio::time::advance(2 * LOOK_TIME).await;
    assert_eq!(looks.await.unwrap(), [ErrorClass::SourceReadFailed; 2]);
    drop(answer);
    assert_eq!(in_time(1, || vec![ErrorClass::FileGone]).await, [ErrorClass::FileGone]);
}

#[test]
fn a_file_that_is_as_it_was_has_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    assert_eq!(why_not_read(&path, 7, true), ErrorClass::FileGone);
    std::fs::write(&path, b"content").unwrap();
    assert_eq!(why_not_read(&path, 7, false), ErrorClass::SourceReadFailed);
    assert_eq!(why_not_read(&path, 7, true), ErrorClass::FileChanged);
    assert_eq!(why_not_read(&path, 8, false), ErrorClass::FileChanged);
}

#[tokio::test]
async fn what_has_no_turn_is_not_offered_and_nobody_is_blamed() {
    let folder = tempfile::tempdir().unwrap();
    let (site, held) = (to_nowhere(folder.path()).await, vec![Held::example("f")]);
    let mut outgoing = outgoing(&site, &held);
    tokio::time::pause();
    let turns = outgoing.dispatch.turns.sends(&site.config(), [Path::new("f")].into_iter());
    let all = turns[0].available_permits() as u32;
    let all = turns[0].clone().acquire_many_owned(all).await.unwrap();
    let (delivered, broken) = outgoing.run(held.clone()).await.unwrap();
    assert!(delivered.is_unasked && broken.is_none());
    drop(all);
    let broken = outgoing.run(held).await.unwrap().1.unwrap();
    assert_eq!(broken.class, ErrorClass::DestinationUnreachable);
}
