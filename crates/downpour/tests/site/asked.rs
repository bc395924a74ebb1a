//! What people ask of a site that has very many files, and what is found at a start that a wrong clock wrote.

use super::harness::{SiteProcess, folder, until};
use downpour::dispatch::{Done, Submitted, WhyList};
use downpour_catalog::{
    Applied, BeforeMigration, Catalog, Change, Digest, ErrorClass, Move, NewFile, Next,
    OtherContent, Reason, Replica, ReplicaState, Same, State, Time, Transfer, TransferId,
};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::time::SystemTime;

/// More than one request looks at.
const MANY: usize = 10_050;
const APART: usize = 205;
const TRANSFER: i64 = 5;

/// A rule that is not configured: its files stay as they are.
const GONE: &str = "gone";

/// Takes files in.
fn take_in(
    catalog: &Catalog,
    (rule, prefix): (&str, &str),
    count: usize,
    of: Option<TransferId>,
) -> Vec<Applied> {
    let (site, rule) = (catalog.site("a").expect("a site"), catalog.rule(rule).expect("a rule"));
    let new = |number: usize| {
        Change::TakeIn(NewFile {
            site,
            name: format!("{prefix}/{number}"),
            size: 1,
            stamp: 7,
            rule,
            rank: 100,
            transfer: of,
            other_content: OtherContent::Refuse,
            same: Same::Any,
        })
    };
    let answers = catalog.apply(Time(1), &(0..count).map(new).collect::<Vec<_>>());
    answers.expect("room").into_iter().map(|answer| answer.expect("a new name")).collect()
}

/// All of them take a step; where they stand then.
fn step(catalog: &Catalog, files: Vec<Applied>, next: &Next) -> Vec<Applied> {
    let step = |of: &Applied| {
        let (file, at, next) = (of.file, of.revision, next.clone());
        Change::Move(Move { file, at, fence: None, next })
    };
    let answers = catalog.apply(Time(1), &files.iter().map(step).collect::<Vec<_>>());
    answers.expect("room").into_iter().map(|answer| answer.expect("a step")).collect()
}

/// What does not move, by state and number: all pages of it.
fn all_told(site: &SiteProcess) -> Vec<(String, i64)> {
    let page = |after: &str| site.get::<WhyList>(&format!("/v1/why{after}")).expect("a page");
    let (mut told, mut list) = (Vec::new(), page(""));
    // Those that are set apart are there at once, behind more than one page looks at.
    assert!(list.files.len() == 200 && list.files.iter().all(|why| why.state == "quarantined"));
    assert!(list.next.as_ref().expect("more").starts_with("quarantined/"), "{list:?}");
    let top = site.done(&["top", "--once"]);
    assert!(top.contains("WAITING 200+") && top.contains("apart/"), "{top}");
    loop {
        told.extend(list.files.into_iter().map(|why| (why.state, why.file)));
        let Some(next) = list.next else { return told };
        list = page(&format!("?after={}", next.replace('/', "%2F")));
    }
}

#[test]
fn of_very_many_files_none_is_left_out() {
    let root = folder();
    let mut site = SiteProcess::new(root.path(), "a");
    let open = site.path("open");
    site.configure(&format!("[transfer]\nfolders = ['{}']", open.display()));
    for folder in [site.path("state"), open.join("grown")] {
        fs::create_dir_all(folder).expect("room");
    }
    {
        let before = BeforeMigration::Refuse;
        let catalog = Catalog::open(site.catalog(), "test", Time(1), &before).expect("a catalog");
        let mut queued = take_in(&catalog, (GONE, "queued"), 6, None);
        let digest = Digest::blake3([1; 32]);
        for next in [Next::Settled { size: 1 }, Next::Hashed(vec![digest]), Next::Queued] {
            queued = step(&catalog, queued, &next);
        }
        // As by a clock that was ahead by centuries.
        let next_try = Time(i64::MAX / 2);
        let (reason, error) = (Reason::BackOff, Some(ErrorClass::TimedOut));
        let far = Next::Waiting { reason, error, next_try, bytes: 0 };
        step(&catalog, queued.split_off(5), &far);
        // One that was submitted, and written on before anybody read it.
        let grown = take_in(&catalog, ("to:b", "grown"), 1, None);
        let (file, path) = (grown[0].file, open.join("grown/0"));
        fs::write(&path, b"content").expect("room");
        let written = File::options().write(true).open(&path).expect("a file");
        written.set_modified(SystemTime::UNIX_EPOCH).expect("a time");
        let (own, path) = (catalog.site("a").expect("a site"), path.to_str().expect("text"));
        let (path, state) = (path.to_owned(), ReplicaState::Present);
        let here = Change::Replica(Replica { file, site: own, path, state });
        let (id, submitted) = (TransferId(TRANSFER), Time(1));
        let transfer = Change::Transfer(Transfer { id, from: own, to: own, submitted });
        catalog.apply(Time(1), &[here, transfer]).expect("room");
        step(&catalog, grown, &Next::Settled { size: 1 });
        take_in(&catalog, (GONE, "many"), MANY, Some(TransferId(TRANSFER)));
        let apart = take_in(&catalog, (GONE, "apart"), APART, Some(TransferId(TRANSFER)));
        step(&catalog, apart, &Next::Quarantined(ErrorClass::FileGone));
    }
    site.start();
    let queued = || {
        let counts = site.reader().counts().ok()?;
        counts.iter().any(|c| c.state == State::Queued && c.files == 6).then_some(())
    };
    until("the one that waits for centuries is queued", queued);
    until(&format!("what was written on is queued\n{}", site.log()), || {
        let counts = site.reader().counts().ok()?;
        counts.iter().any(|c| c.state == State::Queued && c.bytes == 7).then_some(())
    });
    let told = all_told(&site);
    let of = |state: &str| told.iter().filter(|(of, _)| of == state).count();
    assert_eq!((of("quarantined"), of("queued"), told.len()), (APART, 7, APART + 7));
    assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), told.len(), "none twice");
    // The last of a transfer are set apart, behind very many that are not.
    let of_transfer = serde_json::json!({ "transfer": TRANSFER });
    let done: Done = site.post("/v1/files/release", &of_transfer).expect("an answer");
    assert_eq!((done.done, done.next), (APART as u64, None), "{done:?}");
    let all = site.done(&["transfer", "cancel", "--transfer", &TRANSFER.to_string()]);
    assert!(all.contains(&format!("cancel: {} files", MANY + APART)), "{all}");
    // What was written on and is submitted again is the same content.
    site.trust(&SiteProcess::new(root.path(), "b").card);
    site.signal("HUP");
    let again = serde_json::json!({ "paths": [open], "to": "b" });
    let again: Submitted = until("b is known", || site.post("/v1/transfers", &again).ok());
    assert_eq!((again.accepted.files, again.accepted.known), (0, 1), "{again:?}");
}
