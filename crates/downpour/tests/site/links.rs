//! What transfers showed of their paths: written down, and used by the next.

use crate::harness::{SiteProcess, Two, folder, until};
use downpour::dispatch::{Steering, Way, Why};
use downpour_catalog::{
    BeforeMigration, Catalog, Change, Decision, LinkSeen, Query, SiteId, State, Time,
};
use downpour_proto::Rate;
use serde_json::Value;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const SIZE: usize = 10 << 20;
const SENDER: &str = "rate = \"40mbit\"\n[transfer]\nfolders = [\"data\"]\nports = \"31400-31499\"";

/// Brings a file of this name from one site to another.
fn send(from: &SiteProcess, to: &str, name: &str, size: usize) {
    fs::create_dir_all(from.path("data")).expect("room");
    let content: Vec<u8> = (0..size).map(|i| (i / 3 + i / 1000 + name.len()) as u8).collect();
    fs::write(from.path("data").join(name), content).expect("room");
    let path = from.path("data").join(name);
    from.done(&["transfer", "submit", path.to_str().expect("text"), to, "--wait"]);
}

/// What the catalog calls the two; `None`: it does not know them yet.
pub(crate) fn ends(at: &SiteProcess, from: &str, to: &str) -> Option<(SiteId, SiteId)> {
    let sites = at.reader().sites().expect("sites");
    let id = |name: &str| sites.iter().find(|(_, known)| known == name).map(|(id, _)| *id);
    id(from).zip(id(to))
}

/// What the catalog of `at` has of the path, once it has something.
pub(crate) fn seen(at: &SiteProcess, from: &str, to: &str) -> Vec<LinkSeen> {
    until("it is written down", || {
        let (from, to) = ends(at, from, to)?;
        let seen = at.reader().link_seen(from, to, 10).expect("rows");
        (!seen.is_empty()).then_some(seen)
    })
}

/// The same at the site that sent, once.
fn seen_at_source(a: &SiteProcess) -> LinkSeen {
    let seen = seen(a, "a", "b");
    let [only] = &seen[..] else { panic!("{seen:?}") };
    only.clone()
}

#[test]
fn what_a_transfer_showed_is_shown_of_its_path() {
    let sites = Two::start([SENDER, ""]);
    let none = sites.b.done(&["tune", "show", "a", "b"]);
    assert!(none.contains("nobody measured it") && !none.contains("history"), "{none}");
    send(&sites.a, "b", "first", SIZE);
    let seen = seen(&sites.b, "a", "b");
    let [only] = &seen[..] else { panic!("{seen:?}") };
    // All of the file and its manifest, as the sender's kernel told it. How much of the end came twice is up to the machine.
    let once = SIZE as u64..2 * SIZE as u64;
    assert!(once.contains(&only.bytes), "{only:?}");
    assert!(only.sent > only.sent_again && only.rtt_us > 0 && only.ip == 4, "{only:?}");
    // The sending side has it from its own kernel: the same bytes, in records and answers.
    let told = seen_at_source(&sites.a);
    assert!(once.contains(&told.bytes), "{told:?} {only:?}");
    assert!(told.took_us > 0 && told.rtt_us > 0 && told.connections >= 4, "{told:?}");
    let text = sites.a.done(&["tune", "show", "a", "b"]);
    assert!(text.contains("history: 1 sample by downpour over IPv"), "{text}");
    let text = sites.b.done(&["tune", "show", "a", "b"]);
    let line = |name: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(name));
        line.unwrap_or_else(|| panic!("{name}: {text}")).to_owned()
    };
    let rate = Rate::from_bps((only.bytes as f64 * 8e6 / only.took_us as f64).round() as u64);
    assert!(line("throughput").contains(&rate.to_string()), "{rate}: {text}");
    let ms = format!(" {} ms", only.rtt_us as f64 / 1e3);
    assert!(line("round_trip").contains(&ms), "{ms}: {text}");
    for name in ["throughput", "round_trip", "loss"] {
        let named = "history: 1 sample by downpour over IPv4, our own transfers";
        assert!(line(name).contains(named), "{name}: {text}");
    }
    // Nothing else is said of the way back but its round trip.
    let back = sites.b.done(&["tune", "show", "b", "a"]);
    assert!(back.matches("history: ").count() == 1 && back.contains(&ms), "{back}");
}

/// Decisions on a link are asked of the site that receives by it, and stand in its catalog.
#[test]
fn what_was_changed_on_a_link_is_shown_with_its_reason() {
    let mut sites = Two::start(["", ""]);
    let (from, to) = (sites.a.card.name.clone(), sites.b.card.name.clone());
    sites.b.kill();
    let before = BeforeMigration::Refuse;
    let catalog = Catalog::open(sites.b.catalog(), "test", Time(1), &before).expect("a catalog");
    let decision = |name: &str| {
        Change::Decision(Decision {
            from: catalog.site(name).expect("a site"),
            to: catalog.site(&to).expect("a site"),
            at: Time(1),
            connections: 16,
            rate_bps: 80_000_000,
            lost_ppb: 10_000_000,
            binding: "loss".to_owned(),
            why: "because".to_owned(),
            ..Decision::default()
        })
    };
    let answers = catalog.apply(Time(2), &[decision(&from), decision("elsewhere")]).expect("room");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    drop(catalog);
    sites.b.start();
    let text = sites.b.done(&["tune", "history", &from, &to]);
    assert!(
        text.contains("16 connections, loss: because") && !text.contains("elsewhere"),
        "{text}"
    );
    let all: Value =
        serde_json::from_str(&sites.b.done(&["tune", "history", "--json"])).expect("JSON");
    assert_eq!(all["decisions"].as_array().map(Vec::len), Some(2), "{all}");
    assert_eq!(all["decisions"][0]["sent_again"], 0.01, "{all}");
    assert!(!sites.b.run(&["tune", "history", &to, &from]).status.success());
    let url = format!("sqlite:{}", sites.b.path("state/catalog.db").display());
    let sheet = ["catalog", "export", "--catalog", &url, "--sheet", "decisions", "--json"];
    let sheet = sites.b.done(&sheet);
    assert_eq!(sheet.matches("because").count(), 2, "{sheet}");
}

/// What is remembered of a link that was full: it has a verdict as soon as it is measured, full still or held by a host.
const WAS_FULL: &str = "connections=4 rate=8000000 rtt_us=100 binding=saturation ended=1\n";

/// The closed loop decides, the catalog has it, and people and programs are told the same.
#[test]
fn what_the_loop_decides_is_kept_and_shown() {
    let slow = SENDER.replace("40mbit", "8mbit");
    let mut sites = Two::set_up([&slow, ""]);
    fs::create_dir_all(sites.b.path("state/links")).expect("room");
    fs::write(sites.b.path("state/links/a.link"), WAS_FULL).expect("room");
    sites.a.start();
    sites.b.start();
    send(&sites.a, "b", "first", SIZE + SIZE / 2);
    // What was decided last may be about to be written.
    let (told, decided) = until("it is told, and in the catalog", || {
        let told: Steering = sites.b.get("/v1/links/history?link=a").ok()?;
        let ends = ends(&sites.b, "a", "b")?;
        let found = sites.b.reader().decisions(Some(ends), 100).expect("rows");
        (!found.is_empty() && told.decisions.len() == found.len()).then_some((told, found))
    });
    // The catalog has the newest first.
    for (told, decided) in told.decisions.iter().rev().zip(&decided) {
        assert_eq!((told.at_us, &*told.link), (decided.at.0, "a"));
        assert_eq!((&told.binding, &told.why), (&decided.binding, &decided.why));
        assert!(told.binding != "opening" && told.why.contains("connection"), "{told:?}");
        assert!(told.rate_bps > 0 && told.connections > 0, "{told:?}");
    }
    let text = sites.b.done(&["tune", "history", "a"]);
    let first = &decided[decided.len() - 1];
    assert!(text.contains(&format!("{}: {}", first.binding, first.why)), "{first:?}: {text}");
    assert!(!sites.b.path("state/links/history.ndjson").exists());
}

/// Who sends to two at once tells each of the other: the receiver decides with it, and says so.
#[test]
fn what_a_site_sends_to_others_is_in_what_its_receivers_decide() {
    let folder = folder();
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| SiteProcess::new(folder.path(), name));
    for other in [&b, &c] {
        other.trust(&a.card);
        a.trust(&other.card);
        a.configure("rate = \"8mbit\"");
        fs::create_dir_all(other.path("state/links")).expect("room");
        fs::write(other.path("state/links/a.link"), WAS_FULL).expect("room");
    }
    a.configure("[transfer]\nfolders = [\"data\"]\nports = \"31500-31599\"");
    [&mut a, &mut b, &mut c].into_iter().for_each(SiteProcess::start);
    fs::create_dir_all(a.path("data")).expect("room");
    for to in ["b", "c"] {
        let file = a.path("data").join(to);
        // Long enough for both to be under way at once.
        fs::write(&file, vec![7; 4 * SIZE]).expect("room");
        a.done(&["transfer", "submit", file.to_str().expect("text"), to]);
    }
    // The one that comes second sees the other all the time.
    until("one of them is told", || {
        let history = |site: &SiteProcess| site.get::<Steering>("/v1/links/history?link=a").ok();
        let mut decided = [&b, &c].into_iter().filter_map(history).flat_map(|told| told.decisions);
        decided.find(|decided| decided.why.contains(" of others"))
    });
}

/// An archive that takes connections and never answers; who connected.
fn stalls() -> (String, Arc<Mutex<Vec<TcpStream>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/opensearch", listener.local_addr().expect("its address"));
    let hold = Arc::new(Mutex::new(Vec::new()));
    let held = hold.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            held.lock().expect("no panic").push(stream);
        }
    });
    (url, hold)
}

/// What the tuner of a site says of itself.
fn tuner(site: &SiteProcess) -> String {
    let services: Value = site.get("/v1/services").expect("services");
    let services = services["services"].as_array().expect("a list").iter();
    let tuner = services.clone().find(|service| service["name"] == "tuner").expect("a tuner");
    tuner.to_string()
}

fn archive(url: &str, timeout: &str) -> String {
    format!(
        "[[tuner_source]]\nname = \"dead\"\nkind = \"opensearch\"\nurl = \"{url}\"\ntimeout = \"{timeout}\"\n"
    )
}

#[test]
fn an_archive_that_stalls_delays_no_transfer() {
    let (url, held) = stalls();
    // Longer than the test may take.
    let sites = Two::start([SENDER, &archive(&url, "1h")]);
    until("the archive is asked", || (!held.lock().expect("no panic").is_empty()).then_some(()));
    send(&sites.a, "b", "first", SIZE);
    let told = tuner(&sites.b);
    assert!(told.contains("asking for") && told.contains("0 of 0 paths"), "{told}");
    // `held` is held until here: nothing was answered.
    assert!(!held.lock().expect("no panic").is_empty());
}

/// What a source says of a path.
const SAID: &str = "[tuner]\nevery = \"200ms\"\n[[tuner_source]]\nname = \"said\"\nkind = \"static\"\nfrom = \"a\"\nto = \"b\"\n\
                    throughput = \"100gbit\"\nrtt = \"500ms\"\n";

#[test]
fn what_sources_say_is_planned_with() {
    let (url, _held) = stalls();
    let slow = SENDER.replace("40mbit", "8mbit");
    let sites =
        Two::start([&format!("{slow}\n{SAID}"), &(SAID.to_owned() + &archive(&url, "300ms"))]);
    for (site, silent) in [(&sites.a, false), (&sites.b, true)] {
        // A round trip is that of the way back, too.
        until("the paths are known", || {
            let told = tuner(site);
            let named = told.contains("dead: not answered within 300ms");
            (told.contains("2 of 2 paths known") && named == silent).then_some(())
        });
    }
    fs::create_dir_all(sites.a.path("data")).expect("room");
    let path = sites.a.path("data/long");
    fs::write(&path, vec![7; SIZE]).expect("room");
    sites.a.done(&["transfer", "submit", path.to_str().expect("text"), "b"]);
    let file = until("it is sent", || {
        let query = Query { state: Some(State::Sending), ..Query::default() };
        let page = sites.a.reader().search(&query, None, 1).expect("a page");
        page.files.first().map(|file| file.id.0)
    });
    let why: Why = sites.a.get(&format!("/v1/why/{file}")).expect("an answer");
    let [Way { to, measured, plan, done_us, .. }] = &why.ways[..] else { panic!("{why:?}") };
    let line = |lines: &[downpour::report::PlanLine], name: &str| {
        let line = lines.iter().find(|line| line.name == name).expect("a line");
        format!("{} {}", line.value, line.why)
    };
    assert_eq!(to, "b");
    assert!(line(measured, "throughput").starts_with("100.00 Gbit/s said: "), "{why:?}");
    assert!(line(plan, "connections").starts_with("32 "), "{why:?}");
    // By the figures alone it would be both.
    assert_eq!(line(plan, "path"), "tcp `path` of [[remote]] b", "{why:?}");
    let blocks = "ranges of 131072 bytes in ";
    assert!(plan.iter().any(|line| line.why.starts_with(blocks)), "{why:?}");
    assert!(line(plan, "expected").starts_with("8.0 Mbit/s the ceiling"), "{why:?}");
    // At 8 Mbit/s, and four round trips.
    let expected = SIZE as i64 + 2_000_000;
    assert!(done_us.expect("a time") - why.since_us >= expected, "{why:?}");
    let text = sites.a.done(&["transfer", "why", &file.to_string()]);
    assert!(text.contains("to b: there ") && text.contains("the ceiling"), "{text}");
    // The receiver planned with what its own source says: without, four connections suffice on this machine. A path that
    // is full as planned leaves nothing to decide, but where the machine holds it up, more may have been tried.
    let seen = seen(&sites.b, "a", "b");
    let history: Steering = sites.b.get("/v1/links/history").expect("decisions");
    match history.decisions.last() {
        None => assert_eq!(seen[0].connections, 32, "{seen:?}"),
        Some(first) => assert!(first.why.starts_with("32 connections"), "{history:?}"),
    }
    // A site's decisions are in its catalog.
    assert!(!sites.b.path("state/links/history.ndjson").exists());
}
