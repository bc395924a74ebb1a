//! Who watches a site: `top`, events that go on after a broken connection, the audit record.

use super::harness::{One, SiteProcess, Two, until};
use downpour::api::{FilePage, FileRecord};
use downpour::dispatch::{Submitted, WhyList};
use downpour::reconcile::ReportList;
use downpour::site::{EventId, NewToken, SiteEvent};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// What happened since `place`, and where it ends.
pub(crate) fn happened(site: &SiteProcess, place: &mut Option<EventId>) -> Vec<SiteEvent> {
    let mut heard = Vec::new();
    let take = |text: &str| heard.push(serde_json::from_str(text).expect("an event"));
    site.block_on(site.access(None).listen(place, false, take)).expect("it tells");
    heard
}

#[test]
fn top_shows_services_links_what_waits_and_what_happened() {
    let folder = tempfile::tempdir().unwrap();
    let open = format!("[transfer]\nfolders = [{:?}]\n", folder.path());
    let mut sites = Two::start([&open, ""]);
    sites.a.done(&["transfer", "drain", "b"]);
    sites.a.done(&["service", "stop", "scrub"]);
    submit(&sites, folder.path(), "run17.root");
    until("it is queued", || {
        let why: WhyList = sites.a.get("/v1/why?state=queued").ok()?;
        (!why.files.is_empty()).then_some(())
    });
    let page = sites.a.done(&["top", "--once"]);
    let has = |words: &[&str]| {
        let found = page.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(found, "{words:?} not on a line of\n{page}");
    };
    has(&["downpour top", "a at 127.0.0.1:"]);
    has(&["dispatch", "running"]);
    has(&["- scrub", "stopped"]);
    has(&["~ b ", "drained", "0/"]);
    has(&["TRANSFERS 0"]);
    has(&["run17.root", "queued", "an operator drained the link to b"]);
    has(&["service", "scrub stopped"]);
    has(&["audit", "admin: POST /v1/links/b/drain -> 200"]);
    // The same from elsewhere, for one who may only look; what is for admins is not for them.
    let eye: NewToken =
        sites.a.post("/v1/tokens", &json!({ "name": "eye", "role": "viewer" })).unwrap();
    let card = sites.a.card.to_string();
    let page =
        sites.b.done(&["top", "--once", "--width", "80", "--at", &card, "--token", &eye.token]);
    assert!(page.contains("run17.root") && !page.contains("audit"), "{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    // No terminal, no page; no daemon, no page.
    assert_eq!(sites.a.run(&["top"]).status.code(), Some(2));
    sites.a.kill();
    assert_eq!(sites.a.run(&["top", "--once"]).status.code(), Some(3));
}

/// Submits a file of this name to the other site.
fn submit(sites: &Two, folder: &Path, name: &str) {
    fs::write(folder.join(name), "content").unwrap();
    let wish = json!({ "paths": [folder.join(name)], "to": "b" });
    let submitted: Submitted = sites.a.post("/v1/transfers", &wish).unwrap();
    assert_eq!(submitted.accepted.files, 1);
}

#[test]
fn files_are_found_from_elsewhere_each_with_what_became_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let open = format!("[transfer]\nfolders = [{:?}]\n", folder.path());
    let sites = Two::start([&open, ""]);
    submit(&sites, folder.path(), "run17.root");
    submit(&sites, folder.path(), "run18.root");
    let eye: NewToken =
        sites.a.post("/v1/tokens", &json!({ "name": "eye", "role": "viewer" })).unwrap();
    let card = sites.a.card.to_string();
    let search = |more: &[&str]| {
        let from = ["catalog", "search", "--at", &card, "--token", &eye.token, "--json"];
        let found = sites.b.done(&[&from[..], more].concat());
        serde_json::from_str::<FilePage>(&found).expect("a page")
    };
    until("they are there", || (search(&["--state", "receipted"]).files.len() == 2).then_some(()));
    let page = search(&["--glob", "run1?.root", "--since", "1h", "--limit", "1"]);
    let ([first], Some(next)) = (&page.files[..], &page.next) else { panic!("{page:?}") };
    let rest = search(&["--glob", "run1?.root", "--after", next]);
    assert_eq!((rest.files.len(), rest.next), (1, None));
    let record: FileRecord = sites.a.get(&format!("/v1/files/{}", first.id)).unwrap();
    assert_eq!(record.file, *first);
    assert_eq!((record.receipts.len(), record.is_cut), (1, false));
    // One that was cut before is an attempt, too.
    assert_eq!(record.attempts.last().expect("one").outcome, "verified");
    let places: Vec<_> = record.replicas.iter().map(|replica| replica.site.as_str()).collect();
    assert_eq!(places, ["a", "b"]);
    assert_eq!(record.digests, [format!("blake3:{}", first.blake3.as_ref().expect("read"))]);
    // The same for people, of the daemon on this machine.
    let shown = sites.a.done(&["catalog", "search", "--prefix", "run1"]);
    assert!(shown.lines().count() == 2 && shown.contains("run18.root"), "{shown}");
    let odd = sites.a.run(&["catalog", "search", "--site", "nowhere"]);
    assert_eq!(odd.status.code(), Some(1));
}

#[test]
fn a_batch_a_broken_link_and_what_is_found_amiss_are_events() {
    let folder = tempfile::tempdir().unwrap();
    let open = format!("[transfer]\nfolders = [{:?}]\n", folder.path());
    let mut sites = Two::start([&open, ""]);
    let told = |site: &SiteProcess, kind: &str, is: &dyn Fn(&Value) -> bool| {
        until(&format!("{kind} is told\n{}", site.log()), || {
            let all = happened(site, &mut Some(EventId::FIRST));
            all.into_iter().filter(|event| event.kind == kind).find(|event| is(&event.about))
        })
    };
    submit(&sites, folder.path(), "run17.root");
    let whole = |at: &SiteProcess, arrives: bool| {
        let is = |about: &Value| about["arrives"] == arrives && about["arrived"] == 7;
        told(at, SiteEvent::BATCH, &is).about
    };
    let (there, here) = (whole(&sites.b, true), whole(&sites.a, false));
    for (end, site) in [(&here, "b"), (&there, "a")] {
        assert_eq!(
            [&end["files"], &end["failed"], &end["site"]],
            [&json!(1), &json!(0), &json!(site)]
        );
        assert!(end.get("class").is_none(), "{end}");
    }
    assert_eq!(here["id"], there["id"]);
    // Other content under that name is the file's own fault.
    fs::write(sites.b.path("inbox").join("run18.root"), "other").unwrap();
    submit(&sites, folder.path(), "run18.root");
    let apart = told(&sites.a, SiteEvent::QUARANTINE, &|_| true).about;
    assert_eq!(
        [&apart["files"], &apart["name"], &apart["class"]],
        [&json!(1), &json!("run18.root"), &json!("version-conflict")]
    );
    // All that came with it failed, and why is told there.
    let failed = told(&sites.b, SiteEvent::BATCH, &|about| about["class"] == "version-conflict");
    assert_eq!([&failed.about["files"], &failed.about["failed"]], [1, 1]);
    sites.a.run(&["catalog", "reconcile"]);
    let report = told(&sites.a, SiteEvent::RECONCILE, &|about| about["remote"] == "b").about;
    let known: ReportList = sites.a.get("/v1/reconcile").unwrap();
    assert!(known.reports.iter().any(|id| report["report"] == **id), "{report}");
    sites.b.kill();
    submit(&sites, folder.path(), "run19.root");
    let broken = told(&sites.a, SiteEvent::LINK, &|about| about["is_broken"] == true).about;
    assert_eq!([&broken["site"], &broken["class"]], ["b", "destination-unreachable"]);
    told(&sites.a, SiteEvent::BATCH, &|about| about["class"] == "destination-unreachable");
    sites.b.start();
    told(&sites.a, SiteEvent::LINK, &|about| about["is_broken"] == false);
}

#[test]
fn events_go_on_where_a_listener_was_without_gap_or_repeat() {
    let mut one = One::start("");
    let mut place = Some(EventId::FIRST);
    let begin = happened(&one.site, &mut place);
    let numbers = |events: &[SiteEvent]| events.iter().map(|e| e.number).collect::<Vec<_>>();
    let last = begin.last().expect("services have started").number;
    assert_eq!(numbers(&begin), (1..=last).collect::<Vec<_>>());
    for name in ["x", "y"] {
        let wish = json!({ "name": name, "role": "viewer" });
        one.site.post::<NewToken>("/v1/tokens", &wish).unwrap();
    }
    let next = happened(&one.site, &mut place);
    let end = place.expect("a place").number;
    assert_eq!(numbers(&next), (last + 1..=end).collect::<Vec<_>>());
    assert_eq!(next.iter().filter(|event| event.kind == SiteEvent::AUDIT).count(), 2);
    assert!(happened(&one.site, &mut place).iter().all(|event| event.number > end));
    let past = one.site.done(&["events", "--past", "--json"]);
    assert!(past.lines().count() as u64 >= end, "{past}");
    // Live, for one who reads no further.
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let unread = one.site.command(&["events", "--kept"]).stdout(closed).output().unwrap();
    assert!(unread.status.success() && unread.stderr.is_empty(), "{unread:?}");
    // Started anew, the daemon does not know what was missed, says so, and tells all that it has.
    one.site.kill();
    one.site.start();
    let anew = happened(&one.site, &mut place);
    assert_eq!((anew[0].kind.as_str(), anew[0].number, anew[1].number), ("missed", 0, 1));
    assert!(happened(&one.site, &mut place).iter().all(|event| event.number > 1));
    let odd = one.site.block_on(async {
        let mut place = Some(EventId { run: -1, number: 1 });
        one.site.access(None).listen(&mut place, false, |_| {}).await
    });
    assert!(odd.unwrap_err().to_string().contains("Last-Event-ID"));
}

#[test]
fn the_audit_record_says_who_did_what_and_whether_it_is_whole() {
    let one = One::start("");
    let shift: NewToken =
        one.site.post("/v1/tokens", &json!({ "name": "shift", "role": "operator" })).unwrap();
    one.site.done(&["service", "drain", "scrub", "--token", &shift.token]);
    one.site.done(&["service", "start", "scrub"]);
    let all = one.site.done(&["audit", "--since", "1h"]);
    assert_eq!(all.lines().count(), 3, "{all}");
    let of_shift = one.site.done(&["audit", "--who", "shift", "--json"]);
    let entry: Value = serde_json::from_str(&of_shift).expect("one line");
    assert_eq!(
        (&entry["number"], &entry["what"]),
        (&json!(2), &json!("POST /v1/services/scrub/drain"))
    );
    let refused = one.site.run(&["audit", "--token", &shift.token]);
    assert!(!refused.status.success());
    let whole = one.site.done(&["audit", "--verify"]);
    assert!(whole.contains("1 to 4 follow each other"), "{whole}");
    let path = one.site.path("state/audit.ndjson");
    let changed =
        fs::read_to_string(&path).unwrap().replace("\"who\":\"shift\"", "\"who\":\"admin\"");
    fs::write(&path, changed).unwrap();
    let broken = one.site.run(&["audit", "--verify"]);
    assert_eq!(broken.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&broken.stdout).contains("line 3 does not follow 2"));
    let spoilt = fs::read_to_string(&path).unwrap().replacen('{', "[", 1);
    fs::write(&path, spoilt).unwrap();
    let broken = one.site.run(&["audit"]);
    let [told, why] = [&broken.stdout, &broken.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!((broken.status.code(), told.lines().count()), (Some(1), 3), "{told}");
    assert!(why.contains("BROKEN: line 1 of a file cannot be read"), "{why}");
}
