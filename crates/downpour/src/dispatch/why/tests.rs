//! What is said of files, with links and without them.

use super::{LinkNow, Links, Place, Recorded, Route, WhyList, say, trouble};
use crate::dispatch::book::Held;
use crate::dispatch::fixture::new_file;
use crate::dispatch::link::{Link, Wanted, seed};
use crate::dispatch::{Dispatch, lock};
use crate::site::{Daemon, Site};
use downpour_catalog::{
    Change, Digest, ErrorClass, File, FileId, Move, Next, Query, Reason, Receipt, Replica,
    ReplicaState, Revision, State, Time,
};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// In 2096, so that no clock is past it.
const NOW: Time = Time(4_000_000_000_000_000);

fn links(wanted: Wanted, probe_at: Option<Time>, files_per_s: f64) -> Links {
    let trouble = probe_at.map(|_| (ErrorClass::TimedOut, "timed-out: nobody answers".to_owned()));
    let link = LinkNow { wanted, probe_at, trouble, files_per_s };
    Links { of: HashMap::from([("b".to_owned(), link)]), present: None, standstill: None }
}

#[test]
fn what_finds_no_room_is_said_with_one_size() {
    let mut link = Link::new(seed(), Wanted::Open);
    link.has_no_room(NOW, 5000, "5000 bytes are needed");
    link.has_no_room(NOW, 9000, "9000 bytes are needed");
    let (_, text) = trouble("b", &link).unwrap();
    assert!(text.contains("no room for 5000 bytes") && !text.contains("9000"), "{text}");
    link.fail(NOW, ErrorClass::DestinationUnreachable, "nobody answers");
    let (_, text) = trouble("b", &link).unwrap();
    assert!(text.contains("nobody answers") && !text.contains("5000"), "{text}");
}

fn route_to_b() -> Route {
    let config: crate::site::Config = toml::from_str(
        "[site]\nname = 'a'\n[[remote]]\nname = 'b'\nkey = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'",
    )
    .unwrap();
    Route::of(&config, &crate::spool::Rules::new("a", &[]), "to:b").unwrap()
}

#[test]
fn what_waits_says_why_its_batch_failed_before_the_link_is_held_back() {
    let mut link = Link::new(seed(), Wanted::Open);
    link.fail(NOW, ErrorClass::DestinationRefused, "you show another key");
    let mut links = links(Wanted::Open, None, 0.0);
    links.of.get_mut("b").unwrap().trouble = trouble("b", &link);
    let mut file = Held::example("x").file;
    (file.state, file.reason) = (State::Waiting, Some(Reason::BackOff));
    let mut recorded = Recorded { file, route: Some(route_to_b()), ahead: 0, lack: None };
    for (error, is_told) in
        [(ErrorClass::DestinationRefused, true), (ErrorClass::DestinationFull, false)]
    {
        recorded.file.error = Some(error);
        let text = say(&recorded, false, &links, NOW).text;
        assert_eq!(text.contains("the last batch to b failed"), is_told, "{text}");
        assert_eq!(text.contains("you show another key"), is_told, "{text}");
    }
}

#[test]
fn what_a_spool_takes_up_again_by_itself_is_said() {
    let mut file = Held::example("x").file;
    (file.state, file.error) = (State::Quarantined, Some(ErrorClass::FileGone));
    let mut recorded = Recorded { file, route: None, ahead: 0, lack: None };
    let mut is_said = |route| {
        recorded.route = route;
        say(&recorded, false, &links(Wanted::Open, None, 0.0), NOW).text.contains("by itself")
    };
    assert!(is_said(None) && !is_said(Some(route_to_b())));
}

#[test]
fn what_is_queued_says_what_holds_it() {
    let route = route_to_b();
    let (state, reason) = (State::Queued, Some(Reason::Turn));
    let file = File { state, reason, ..Held::example("x").file };
    let mut recorded = Recorded { file, route: Some(route), ahead: 500, lack: None };
    let why = |recorded: &Recorded, links: &Links| {
        let why = say(recorded, false, links, NOW);
        (why.reason.unwrap_or_default(), why.class, why.eta_us.map(Time), why.text)
    };
    let (reason, class, eta, text) = why(&recorded, &links(Wanted::Open, None, 100.0));
    assert_eq!((&*reason, class, eta), ("turn", None, Some(NOW.plus_s(5))));
    assert!(text.contains("500"), "{text}");
    // A probe that is under way went out before now.
    let probed = links(Wanted::Open, Some(NOW.plus_s(-30)), 100.0);
    assert_eq!(why(&recorded, &probed).2, Some(NOW));
    let at = NOW.plus_s(30);
    let mut broken = links(Wanted::Open, Some(at), 100.0);
    let (reason, class, eta, text) = why(&recorded, &broken);
    assert_eq!((&*reason, class.as_deref(), eta), ("breaker", Some("timed-out"), Some(at)));
    assert!(text.contains("nobody answers"), "{text}");
    let full = (ErrorClass::DestinationFull, "b has no room".to_owned());
    broken.of.get_mut("b").unwrap().trouble = Some(full);
    let (reason, class, ..) = why(&recorded, &broken);
    assert_eq!((&*reason, class.as_deref()), ("no-space", Some("destination-full")));
    for (wanted, told) in [(Wanted::Banned, "banned"), (Wanted::Drained, "drained")] {
        let (reason, class, eta, text) = why(&recorded, &links(wanted, Some(at), 100.0));
        assert_eq!((&*reason, class, eta), ("paused", None, None));
        assert!(text.contains(told), "{text}");
    }
    let mut stopped = links(Wanted::Banned, Some(at), 100.0);
    stopped.standstill = Some("stopped".to_owned());
    recorded.lack = Some("they lack it".to_owned());
    for state in [State::Settled, State::Hashed, State::Queued, State::Waiting] {
        let file = &mut recorded.file;
        (file.state, file.next_try) = (state, Some(at));
        let is = ("paused".to_owned(), None, None, "stopped".to_owned());
        assert_eq!(why(&recorded, &stopped), is);
    }
    (recorded.file.state, recorded.route) = (State::Queued, None);
    assert_eq!(why(&recorded, &links(Wanted::Open, None, 0.0)).2, None);
}

/// A site whose services have ended, with a rule `r` to `b` and `c`, and a dispatcher that tells of its links.
async fn begun(folder: &Path) -> (Daemon, Dispatch) {
    let more = "[[remote]]\nname = 'b'\nkey = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n\
                [[remote]]\nname = 'c'\nkey = 'AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n\
                [[rule]]\nname = 'r'\nmatch = '*'\nto = ['b', 'c']\n";
    let daemon = Daemon::example(folder, "a", more).await;
    // What is queued stays there.
    daemon.end(Duration::ZERO).await;
    let dispatch = Dispatch::new(&daemon.site, &Arc::default());
    (daemon, dispatch)
}

async fn apply(site: &Site, change: Change) -> (FileId, Revision) {
    let answers = site.catalog.submit(NOW, vec![change]).done().await;
    let applied = answers.unwrap().remove(0).unwrap();
    (applied.file, applied.revision)
}

/// A file of that rule, in the queue.
async fn queue(site: &Arc<Site>, name: &str) -> FileId {
    queue_all(site, "r", &[name.to_owned()]).await[0]
}

/// Files of a rule, in the queue.
async fn queue_all(site: &Arc<Site>, rule: &'static str, names: &[String]) -> Vec<FileId> {
    let catalog = site.catalog.clone();
    let known = site.read(move |_| Ok((catalog.site("a")?, catalog.rule(rule)?)));
    let (own, rule) = known.await.unwrap();
    let new = |name: &String| Change::TakeIn(new_file(own, rule, name));
    let submit = async |changes| {
        let answers = site.catalog.submit(NOW, changes).done().await.unwrap();
        answers.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    let mut files = submit(names.iter().map(new).collect()).await;
    let digest = Digest::blake3(*blake3::hash(b"f").as_bytes());
    for next in [Next::Settled { size: 1 }, Next::Hashed(vec![digest]), Next::Queued] {
        let step = |(file, at)| Change::Move(Move { file, at, fence: None, next: next.clone() });
        let steps = files.iter().map(|one| step((one.file, one.revision)));
        files = submit(steps.collect()).await;
    }
    files.into_iter().map(|one| one.file).collect()
}

/// A link that is broken.
fn broken() -> Link {
    let mut link = Link::new(seed(), Wanted::Open);
    while link.probe_at().is_none() {
        link.fail(NOW, ErrorClass::TimedOut, "nobody answers");
    }
    link
}

/// The first page, as if the service worked.
async fn found(dispatch: &Dispatch, site: &Arc<Site>, query: Query) -> WhyList {
    dispatch.list(site, dispatch.links_now(None), query, Place::default()).await.unwrap()
}

#[tokio::test]
async fn what_several_sites_are_to_have_is_held_up_by_those_alone_that_lack_it() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, dispatch) = begun(folder.path()).await;
    let site = &daemon.site;
    let file = queue(site, "f").await;
    let why = async |[b, c]: [Link; 2]| {
        *lock(&dispatch.links) = [("b".to_owned(), b), ("c".to_owned(), c)].into();
        let list = found(&dispatch, site, Query::default()).await;
        let why = list.files.into_iter().next().unwrap();
        (why.reason.unwrap(), why.class, why.eta_us.map(Time), why.text)
    };
    let open = || Link::new(seed(), Wanted::Open);
    let banned = || Link::new(seed(), Wanted::Banned);
    // It goes to the one while the other is away.
    let (reason, class, _, text) = why([broken(), open()]).await;
    assert_eq!((&*reason, class), ("turn", None));
    assert!(text.contains("the link to b is broken"), "{text}");
    let (b, mut full) = (broken(), open());
    full.has_no_room(NOW, 1, "no room");
    let first = b.probe_at().min(full.probe_at());
    let (_, _, eta, text) = why([b, full]).await;
    assert_eq!(eta, first);
    assert!(text.contains("b is broken") && text.contains("c has no room"), "{text}");
    let b = broken();
    let probe = b.probe_at();
    let (reason, class, eta, _) = why([b, banned()]).await;
    assert_eq!((&*reason, class.as_deref(), eta), ("breaker", Some("timed-out"), probe));
    assert_eq!(why([banned(), banned()]).await.0, "paused");
    // One of them has it.
    let key = site.remote("b").unwrap().key().as_bytes().to_vec();
    let receipt = Receipt { file, receiver: key, at: NOW, signed: vec![1] };
    let catalog = site.catalog.clone();
    let b = site.read(move |_| catalog.site("b")).await.unwrap();
    let (path, state) = ("f".to_owned(), ReplicaState::Present);
    apply(site, Change::Replica(Replica { file, site: b, path, state })).await;
    apply(site, Change::Receipt(receipt)).await;
    for b in [broken(), banned()] {
        let (reason, class, _, text) = why([b, open()]).await;
        assert_eq!((&*reason, class), ("turn", None));
        assert!(!text.contains("link to b"), "{text}");
    }
    let (reason, _, eta, _) = why([broken(), banned()]).await;
    assert_eq!((&*reason, eta), ("paused", None));
    // Of each file on a page those count that lack this one.
    queue(site, "g").await;
    let list = found(&dispatch, site, Query::default()).await;
    let reasons = list.files.iter().map(|why| (&*why.name, why.reason.as_deref().unwrap()));
    assert_eq!(reasons.collect::<Vec<_>>(), [("f", "paused"), ("g", "breaker")]);
}

#[tokio::test]
async fn a_service_that_is_stopped_is_the_one_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, dispatch) = begun(folder.path()).await;
    let file = queue(&daemon.site, "f").await;
    *lock(&dispatch.links) = [("b".to_owned(), broken()), ("c".to_owned(), broken())].into();
    let is = "the service dispatch is stopped: downpour service start dispatch";
    let list = dispatch.why(&daemon.site, Query::default(), Place::default()).await.unwrap();
    let one = dispatch.why_of(&daemon.site, file).await.unwrap().unwrap();
    for why in list.files.iter().chain([&one]) {
        assert_eq!((&*why.text, why.eta_us, &why.class), (is, None, &None));
        assert_eq!(why.reason.as_deref(), Some("paused"));
    }
    assert!(one.ways.iter().all(|way| way.done_us.is_none()));
    let late = Query { error: Some(ErrorClass::TimedOut), ..Query::default() };
    let late = dispatch.why(&daemon.site, late, Place::default()).await.unwrap();
    assert!(late.files.is_empty());
    for link in dispatch.link_reports(&daemon.site).links {
        assert_eq!((link.standstill.as_deref(), link.probe_at_us), (Some(is), None));
        assert!(link.is_broken);
    }
}

#[tokio::test]
async fn what_is_asked_for_is_not_hidden_behind_a_page_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, dispatch) = begun(folder.path()).await;
    let others: Vec<_> = (0..450).map(|n| format!("f{n}")).collect();
    queue_all(&daemon.site, "r", &others).await;
    let held = queue_all(&daemon.site, "to:b", &["x".to_owned()]).await;
    lock(&dispatch.links).insert("b".to_owned(), broken());
    let query = Query { error: Some(ErrorClass::TimedOut), ..Query::default() };
    let list = found(&dispatch, &daemon.site, query).await;
    assert_eq!(list.files.iter().map(|why| FileId(why.file)).collect::<Vec<_>>(), held);
    assert_eq!(list.next, None);
    let all = found(&dispatch, &daemon.site, Query::default()).await;
    assert_eq!((all.files.len(), all.next.is_some()), (200, true));
}

#[tokio::test]
async fn files_are_found_by_the_class_that_they_are_shown_with() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, dispatch) = begun(folder.path()).await;
    let file = queue(&daemon.site, "f").await;
    let (full, late) = (Some(ErrorClass::DestinationFull), Some(ErrorClass::TimedOut));
    let found = async |query: Query| {
        let list = found(&dispatch, &daemon.site, query).await;
        list.files.into_iter().map(|why| (FileId(why.file), why.class)).collect::<Vec<_>>()
    };
    let of = |error| Query { error, ..Query::default() };
    let shown = [(file, Some("timed-out".to_owned()))];
    lock(&dispatch.links).insert("b".to_owned(), broken());
    assert!(found(of(late)).await.is_empty(), "it goes to the other");
    assert_eq!(found(of(None)).await, [(file, None)]);
    lock(&dispatch.links).insert("c".to_owned(), broken());
    assert_eq!(found(of(None)).await, shown);
    assert_eq!(found(of(late)).await, shown);
    assert!(found(of(full)).await.is_empty());
    for (state, prefix, is) in [
        (Some(State::Queued), None, &shown[..]),
        (Some(State::Waiting), None, &[]),
        (None, Some("f"), &shown[..]),
        (None, Some("g"), &[]),
    ] {
        let prefix = prefix.map(str::to_owned);
        assert_eq!(found(Query { state, prefix, ..of(late) }).await, is);
    }
}
