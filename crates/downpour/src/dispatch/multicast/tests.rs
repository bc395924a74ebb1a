//! Files without receivers, a session that hangs, and what is left of one that failed.

use super::{
    CLAIM_MAX, HUNG_REST, Heard, Multicast, REST_MAX, Standing, Wanted, in_order, rest_of,
};
use crate::dispatch::fixture::{apply, file, queued, told};
use crate::dispatch::route::Route;
use crate::dispatch::standing::tests::under;
use crate::dispatch::{Dispatch, lock, now};
use crate::session::{Opened, Reads};
use crate::site::{Config, Daemon, Service as _, SiteEvent, Stop, Wish};
use crate::spool::Rules;
use downpour_catalog::{Change, ErrorClass, Replica, ReplicaState, RuleId, State};
use downpour_proto::{ReceiverId, StreamId};
use downpour_transport::control::SessionId;
use downpour_transport::identity::Identity;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

#[test]
fn while_none_of_a_rules_receivers_is_there_its_files_are_hardly_looked_through() {
    let (short, long) = (Duration::from_millis(10), Duration::from_secs(100));
    let (none, some, all) = ((0, CLAIM_MAX), (20, 20), (CLAIM_MAX, CLAIM_MAX));
    assert_eq!(rest_of(short, none, true), short * 9);
    assert_eq!([short, long].map(|took| rest_of(took, none, false)), [REST_MAX, long * 9]);
    // What has come to its end, and more that may have.
    assert_eq!(rest_of(short, some, false), short * 9);
    assert_eq!(rest_of(short, all, false), Duration::ZERO);
}

const FAR: RuleId = RuleId(1);
const NEAR: RuleId = RuleId(2);

/// A session with files of two rules, the one of the first of which is read now; a third has a receiver.
async fn standing(at: &Path) -> Standing {
    let daemon = Daemon::example(at, "a", "").await;
    daemon.end(Duration::ZERO).await;
    let key = Identity::generate().public_key();
    let named = format!(
        "[site]\nname = 'a'\n[api]\nlisten = '127.0.0.1:0'\n\
         [[receiver]]\nname = 'm'\nkey = '{key}'\n[[rule]]\nname = 'farm'\nmatch = '*'\nreceivers = ['m']\n"
    );
    std::fs::write(at.join("site.toml"), named).unwrap();
    assert!(daemon.reload().await);
    let wanted = Wanted::of(&daemon.site.config()).unwrap();
    let opened = Opened { session: SessionId::random().unwrap(), stream: StreamId(1) };
    let dispatch = Arc::new(Dispatch::new(&daemon.site, &Arc::default()));
    let mut standing = Standing::new(&dispatch, &daemon.site, wanted, opened).await.unwrap();
    for (name, rule) in [("hung", FAR), ("behind", FAR), ("other", NEAR)] {
        let mut under = under(&[key], 1);
        (under.file.name, under.held.file.rule) = (name.to_owned(), rule);
        under.held.path = name.into();
        standing.files.insert(under.key(), under);
    }
    standing
}

#[tokio::test]
async fn a_session_that_hangs_in_a_files_disk_is_told_of_and_given_up_for_others_to_go_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut standing = standing(folder.path()).await;
    let hung = standing.files.values().find(|under| under.file.name == "hung").unwrap();
    let (reads, name) = (Arc::<Reads>::default(), hung.key().to_string());
    let (disk, answer) = mpsc::channel::<()>();
    let reading = reads.clone();
    let reader = std::thread::spawn(move || reading.during(&name, || answer.recv().is_err()));
    while reads.now().1.is_none() {
        tokio::task::yield_now().await;
    }
    tokio::time::pause();
    for seconds in [0, 59, 1] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        assert!(!standing.hangs(&reads));
    }
    let status = Multicast(standing.dispatch.clone()).status().line;
    assert!(status.contains("the disk of hung has not answered for 60 s"), "{status}");
    assert_eq!(told(&standing.site, SiteEvent::TROUBLE).await["name"], "f");
    tokio::time::advance(Duration::from_secs(540)).await;
    assert!(standing.hangs(&reads));
    let ends: BTreeMap<_, _> = standing
        .files
        .values()
        .map(|under| (under.file.name.as_str(), under.unread.as_ref().map(|(class, _)| *class)))
        .collect();
    let failed = Some(ErrorClass::SourceReadFailed);
    assert_eq!(ends, [("behind", failed), ("hung", failed), ("other", None)].into());
    drop(disk);
    assert!(reader.join().unwrap());
    assert!(!standing.hangs(&reads) && lock(&standing.dispatch.multicast).hangs.is_none());
    others_go_first(&mut standing);
}

#[tokio::test]
async fn what_is_under_way_when_the_service_fails_goes_back_when_it_begins_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut standing = standing(folder.path()).await;
    let (site, dispatch) = (standing.site.clone(), standing.dispatch.clone());
    let (id, own, _) = queued(&site, "farm", "f").await;
    let (path, state) = ("/nowhere/f".to_owned(), ReplicaState::Present);
    apply(&site, Change::Replica(Replica { file: id, site: own, path, state })).await;
    let node = standing.wanted.receivers["m"];
    standing.hear(Heard::Joined { node, receiver: ReceiverId(1), from: 0 });
    let (into, _queue) = mpsc::channel();
    standing.claim(&into).await.unwrap();
    assert_eq!(file(&site, id).await.state, State::Sending);
    drop(standing);
    let (wish, stop) = Stop::new();
    wish.send_replace(Wish::Stop);
    Arc::new(Multicast(dispatch)).run(site.clone(), stop).await.unwrap();
    let file = file(&site, id).await;
    assert_eq!((file.state, file.error), (State::Waiting, Some(ErrorClass::Interrupted)));
}

/// However many files are queued of the rule that it hung in, and whoever joins.
fn others_go_first(standing: &mut Standing) {
    let key = Identity::generate().public_key();
    let config = format!("[site]\nname = 'a'\n[[remote]]\nname = 'b'\nkey = '{key}'\n");
    let config = Config::parse(&config).unwrap();
    let route = Route::of(&config, &Rules::new("a", &[]), "to:b/{name}").unwrap();
    let order = |standing: &Standing, after, are_others| {
        let mut rules = vec![(FAR, &route), (NEAR, &route)];
        in_order(&mut rules, &standing.hung, (now() + after, are_others));
        rules.into_iter().map(|(rule, _)| rule).collect::<Vec<_>>()
    };
    let soon = HUNG_REST - Duration::from_secs(1);
    assert_eq!(order(standing, soon, true), [NEAR]);
    assert_eq!(order(standing, soon, false), [NEAR, FAR], "for nobody it would rest");
    assert_eq!(order(standing, HUNG_REST, true), [NEAR, FAR]);
    let (into, _queue) = mpsc::channel();
    let hung = standing.files.values().find(|under| under.file.name == "hung").unwrap();
    standing.given.give(hung, String::new(), &into);
    let (name, outcome) = (hung.key().to_string(), Ok((1, 0..1)));
    standing.hear(Heard::Inserted { name, outcome });
    assert_eq!(order(standing, Duration::ZERO, true), [FAR, NEAR], "it answers again");
}
