//! Catalogs of real sites compared, followed and made again.

use super::harness::{HANG, One, SiteProcess, until};
use downpour::reconcile::{Kind, Report, ReportList};
use downpour_catalog::{
    AdoptedFile, BeforeMigration, Catalog, CatalogUrl, Change, Digest, Origin, OtherContent,
    Reader, Replica, ReplicaState, State, Time,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

const NOW: Time = Time(1_790_000_000_000_000);
const FILES: usize = 60;

fn at(site: &SiteProcess) -> PathBuf {
    site.path("state/catalog.db")
}

fn opened(site: &SiteProcess) -> Catalog {
    std::fs::create_dir_all(site.path("state")).unwrap();
    Catalog::open(&CatalogUrl::Sqlite(at(site)), "filler", NOW, &BeforeMigration::Refuse).unwrap()
}

/// Files of `a` that `b` has, as both have recorded them; `b` has lost the first `lost` of them.
fn fill(a: &SiteProcess, b: &SiteProcess, lost: usize) {
    let (near, far) = (opened(a), opened(b));
    for n in 0..FILES {
        let adopted = |catalog: &Catalog, at: &[&str], origin| {
            let name = format!("run/{n}");
            let replicas = at.iter().map(|site| (catalog.site(site).unwrap(), name.clone()));
            Change::Adopt(AdoptedFile {
                site: catalog.site("a").unwrap(),
                size: 7,
                rule: catalog.rule("raw").unwrap(),
                digest: Digest::blake3([n as u8; 32]),
                others: Vec::new(),
                replicas: replicas.collect(),
                other_content: OtherContent::Refuse,
                origin,
                receipt: None,
                name,
            })
        };
        let apply = |catalog: &Catalog, change| {
            catalog.apply(NOW, &[change]).unwrap()[0].clone().unwrap().file
        };
        let file = apply(&near, adopted(&near, &["a", "b"], None));
        let origin = Some(Origin { version: 1, taken_in: file.time() });
        let file = apply(&far, adopted(&far, &["b"], origin));
        if n < lost {
            let (site, path) = (far.site("b").unwrap(), format!("run/{n}"));
            let state = ReplicaState::Lost;
            apply(&far, Change::Replica(Replica { file, site, path, state }));
        }
    }
}

/// Takes posts; gives their bodies.
fn webhook() -> (String, Receiver<serde_json::Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (posts, posted) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut length = 0;
            for line in reader.by_ref().lines() {
                let line = line.unwrap().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
            stream.write_all(answer).unwrap();
            if posts.send(serde_json::from_slice(&body).unwrap()).is_err() {
                return;
            }
        }
    });
    (url, posted)
}

/// The rule of these files.
fn rule_to(site: &str) -> String {
    format!("[[rule]]\nname = \"raw\"\nmatch = \"*\"\nto = \"{site}\"\n")
}

fn states(site: &SiteProcess, wanted: State) -> usize {
    let mut reader = Reader::open(&CatalogUrl::Sqlite(at(site))).unwrap();
    let counts = reader.counts().unwrap();
    counts.iter().filter(|count| count.state == wanted).map(|count| count.files as usize).sum()
}

#[test]
fn what_is_missing_is_sent_again_and_much_at_once_is_asked_about() {
    let folder = tempfile::tempdir().unwrap();
    let mut a = SiteProcess::new(folder.path(), "a");
    let mut b = SiteProcess::new(folder.path(), "b");
    // It never starts.
    let c = SiteProcess::new(folder.path(), "c");
    a.trust(&c.card);
    a.trust(&b.card);
    b.trust(&a.card);
    fill(&a, &b, 10);
    let (url, posted) = webhook();
    a.configure(&format!(
        "\n[reconcile]\nrepair_max = 9\n[notify]\nwebhook = \"{url}\"\n{}",
        rule_to("b")
    ));
    a.start();
    b.start();
    let asks = a.run(&["catalog", "reconcile", "--json"]);
    assert_eq!(asks.status.code(), Some(1), "{}", a.log());
    assert!(String::from_utf8_lossy(&asks.stderr).contains("not compared: c: "), "{asks:?}");
    let report: serde_json::Value = serde_json::from_slice(&asks.stdout).unwrap();
    assert_eq!((&report["verdict"], &report["repaired"]), (&"asks".into(), &0.into()));
    assert_eq!(report["findings"].as_array().unwrap().len(), 10);
    assert_eq!(states(&a, State::Adopted), FILES);
    let post = posted.recv_timeout(HANG).expect("a post");
    assert_eq!((&post["about"], &post["detail"]), (&"reconcile".into(), &report));
    let id = report["id"].as_str().unwrap();
    // Another of the same, that somebody else approves.
    let again = a.run(&["catalog", "reconcile", "--json"]);
    let again: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    let other = again["id"].as_str().unwrap();
    std::fs::write(a.path(&format!("state/reconcile/{other}.approved")), "").unwrap();
    let done = a.done(&["catalog", "reconcile", "--approve", id]);
    assert!([id, other].iter().all(|id| done.contains(&format!("approved  {id}\n"))), "{done}");
    assert!(done.contains("10 repaired"), "{done}");
    assert_eq!(states(&a, State::Adopted), FILES - 10);
    assert!(a.done(&["catalog", "reconcile", "--list"]).lines().count() >= 2);
    assert!(a.done(&["service", "status", "reconcile"]).contains("10 repaired"));
    let two = a.run(&["catalog", "reconcile"]);
    assert_eq!(two.status.code(), Some(1), "one was not compared: {two:?}");
    // What is approved of one that cannot be compared waits, and it is said why.
    let of_c = Report { far: "c".to_owned(), ..serde_json::from_value(report.clone()).unwrap() };
    let of_c = of_c.ended(NOW);
    of_c.keep(&a.path("state")).unwrap();
    let waits = a.run(&["catalog", "reconcile", "--approve", &of_c.id]);
    let said = String::from_utf8_lossy(&waits.stderr);
    assert!(said.contains("not compared: c: ") && !said.contains("nothing was"), "{said}");
    assert_eq!((waits.status.code(), &*waits.stdout), (Some(1), &[][..]));
    // What holds for people does not for other sites, and the other way round.
    let digests = a.post::<serde_json::Value>("/v1/site/digests", &serde_json::json!([]));
    assert!(digests.is_err());
}

#[test]
fn what_its_rule_does_not_send_there_is_not_called_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let [mut a, mut b, c] = ["a", "b", "c"].map(|name| SiteProcess::new(folder.path(), name));
    for (one, other) in [(&a, &b), (&a, &c), (&b, &a)] {
        one.trust(&other.card);
    }
    fill(&a, &b, 1);
    a.configure(&format!("\n[reconcile]\nwith = [\"b\"]\n{}", rule_to("c")));
    a.start();
    b.start();
    for _ in 0..2 {
        let found = a.run(&["catalog", "reconcile", "--json"]);
        assert_eq!(found.status.code(), Some(1), "{}", a.log());
        let report: Report = serde_json::from_slice(&found.stdout).expect("one report");
        assert_eq!((report.findings.len(), report.repaired), (1, 0), "{}", report.text());
        assert_eq!(report.findings[0].note, "left: its rule does not send it there");
        assert_eq!(states(&a, State::Adopted), FILES);
    }
}

#[test]
fn a_lost_catalog_is_made_of_the_mirrors_copy() {
    let folder = tempfile::tempdir().unwrap();
    let [mut a, mut b, mut m] = ["a", "b", "m"].map(|name| SiteProcess::new(folder.path(), name));
    for (one, other) in [(&a, &b), (&b, &a), (&a, &m), (&b, &m), (&m, &a), (&m, &b)] {
        one.trust(&other.card);
    }
    fill(&a, &b, 0);
    let (url, posted) = webhook();
    let mirror = "\n[mirror]\nof = [\"a\", \"b\"]\nevery = \"100ms\"\nsilent = \"1s\"\n";
    m.configure(&format!("{mirror}[notify]\nwebhook = \"{url}\"\n"));
    a.start();
    b.start();
    m.start();
    let copy = m.path("state/mirror/a.db");
    // None while the copy is only being set up.
    let found = |at: &str| {
        let search = m.run(&["catalog", "search", "--catalog", at, "--prefix", "run/"]);
        String::from_utf8_lossy(&search.stdout).lines().count()
    };
    let in_copy = format!("sqlite:{}", copy.display());
    until("the copy is whole", || (copy.exists() && found(&in_copy) == FILES).then_some(()));
    a.kill();
    // A busy machine may have an alarm of b, too.
    let told = |what: &str| loop {
        let post = posted.recv_timeout(HANG).expect(what);
        if post["subject"].as_str().unwrap().starts_with(what) {
            break;
        }
    };
    told("a: silent since ");
    for entry in std::fs::read_dir(a.path("state")).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("catalog.db") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let catalog = format!("sqlite:{}", at(&a).display());
    let from = copy.display().to_string();
    m.done(&["catalog", "rebuild", "--from-mirror", &from, "--catalog", &catalog]);
    assert_eq!(found(&catalog), FILES);
    let reports = |site: &SiteProcess| -> Vec<String> {
        let list = site.done(&["catalog", "reconcile", "--list"]);
        list.lines().filter(|id| id.contains("-b-")).map(str::to_owned).collect()
    };
    a.start();
    let before = reports(&a);
    // Equal in all that the other site compares.
    a.done(&["catalog", "reconcile"]);
    let with_b =
        until("it is compared with b", || reports(&a).into_iter().find(|id| !before.contains(id)));
    let report = a.done(&["catalog", "reconcile", "--show", &with_b]);
    assert!(report.contains("no difference"), "{report}");
    assert!(report.contains(&format!("{FILES} here, {FILES} there")), "{report}");
    told("a: it answers again, the alarm is over");
}

/// Files that the scrub of this site has begun to look at.
fn looked_at(site: &SiteProcess) -> f64 {
    let services: downpour::api::Services = site.get("/v1/services").unwrap();
    let scrub = services.services.into_iter().find(|service| service.name == "scrub").unwrap();
    scrub.status.figures["files_total"]
}

#[test]
fn a_scrub_that_is_under_way_is_not_the_one_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = SiteProcess::new(folder.path(), "a");
    site.configure("\n[reconcile]\nscrub_files = 5\n");
    let own = |catalog: &Catalog, n: usize| {
        let name = format!("run/{n}");
        std::fs::write(site.path(&name), &name).unwrap();
        Change::Adopt(AdoptedFile {
            site: catalog.site("a").unwrap(),
            size: name.len() as u64,
            rule: catalog.rule("raw").unwrap(),
            digest: Digest::blake3(*blake3::hash(name.as_bytes()).as_bytes()),
            others: Vec::new(),
            replicas: vec![(catalog.site("a").unwrap(), name.clone())],
            other_content: OtherContent::Refuse,
            origin: None,
            receipt: None,
            name,
        })
    };
    std::fs::create_dir(site.path("run")).unwrap();
    let catalog = opened(&site);
    let files: Vec<Change> = (0..15).map(|n| own(&catalog, n)).collect();
    assert!(catalog.apply(NOW, &files).unwrap().iter().all(Result::is_ok));
    site.start();
    let _: ReportList = site.post("/v1/reconcile", &serde_json::json!({ "scrub": true })).unwrap();
    until("it is past the first file", || (looked_at(&site) >= 2.0).then_some(()));
    std::fs::remove_file(site.path("run/0")).unwrap();
    let asked = site.run(&["catalog", "reconcile", "--scrub", "--json"]);
    let report: Report = serde_json::from_slice(&asked.stdout).expect("one report");
    assert_eq!(report.counts(), [(Kind::Lost, 1)].into(), "{}", report.text());
    assert_eq!(asked.status.code(), Some(1));
}

#[test]
fn a_site_that_cannot_be_connected_to_is_said_to_be_left_out() {
    let key = downpour_transport::identity::Identity::generate().public_key();
    let one = One::start(&format!("[[remote]]\nname = \"b\"\nkey = \"{key}\"\n"));
    let asked = one.site.run(&["catalog", "reconcile"]);
    let text = String::from_utf8_lossy(&asked.stderr);
    assert!(text.contains("left out: b ") && text.contains("nothing was compared"), "{text}");
    assert_eq!(asked.status.code(), Some(1));
}
