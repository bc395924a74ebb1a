//! Saved replies: the kind of document is found by itself, and the paper's own examples mean what they say.

use super::archives::text;
use super::setup::{NOW, told};
use downpour::tuner::{Combined, Direction, from_file};
use std::path::Path;

fn read(name: &str, source: &str, destination: &str) -> Combined {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tuner/fixtures");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(from_file(&folder.join(name), source, destination, None, NOW))
}

/// The sample of the paper's section 3, as printed: figures labelled Mb/s that are Gbit/s.
#[test]
fn the_papers_sample_document() {
    let combined = read("dashboard/paper.json", "lhcmn.bnl.gov", "psmsu02.aglt2.org");
    let sample = &combined.samples[0];
    assert_eq!(combined.measured.throughput.unwrap().value.bps(), 308_642_000);
    let spread = sample.spread;
    let near = |figure: Option<f64>, bps: f64| (figure.unwrap() - bps).abs() < 1.0;
    assert!(near(spread.max, 738_979_000.0) && near(spread.min, 84_049_700.0), "{spread:?}");
    assert_eq!(sample.unit_found, "Gbit/s (labelled Mb/s)");
    assert_eq!(sample.key.direction, Some(Direction::Push));
    assert_eq!(sample.at.0, 1_373_973_137_000_000, "2013-07-16 11:12:17");
    assert!(combined.measured.rtt.is_none(), "it says nothing of the round trip");
    assert_eq!(combined.left_out, []);
}

/// Its two captioned examples are swapped: by its own rule the one "pushing" pulls, and the other way round.
#[test]
fn the_papers_captioned_examples() {
    for (name, direction) in [
        ("dashboard/captioned-pushing.json", Direction::Pull),
        ("dashboard/captioned-pulling.json", Direction::Push),
    ] {
        let combined = read(name, "lhcomon.bnl.gov", "psmsu02.aglt2.org");
        assert_eq!(combined.samples[0].key.direction, Some(direction), "{name}");
        assert_eq!(combined.measured.throughput.unwrap().value.bps(), 308_642_000);
    }
}

#[test]
fn a_document_of_another_pair_is_not_taken_for_this_one() {
    let combined = read("dashboard/paper.json", "psmsu02.aglt2.org", "lhcmn.bnl.gov");
    assert!(combined.measured.throughput.is_none());
    assert!(combined.left_out[0].what.contains("of the way back"), "{:?}", combined.left_out);
    let combined = read("dashboard/paper.json", "a.example", "b.example");
    let what = &combined.left_out[0].what;
    assert!(what.contains("from lhcmn.bnl.gov to psmsu02.aglt2.org"), "{what}");
}

#[test]
fn each_kind_of_document_is_known() {
    let (a, b) = ("psa.example.org", "psb.example.org");
    for (name, source, destination, expected) in [
        ("opensearch/good.json", a, b, "9.41 Gbit/s"),
        ("opensearch/rtt.json", b, a, "RTT 34.50 ms"),
        ("pscheduler/good.json", a, b, "9.40 Gbit/s"),
        ("pscheduler/rtt.json", a, b, "RTT 34.50 ms"),
        ("pscheduler/latency.json", a, b, "loss 1.000 %"),
        ("maddash/good.json", a, b, "9.07 Gbit/s"),
        ("dashboard/good.json", a, b, "308.6 Mbit/s"),
        // These do not say of whom they speak.
        ("esmond/good.json", "x", "y", "9.41 Gbit/s"),
        ("esmond/rtt.json", "x", "y", "RTT 34.63 ms"),
        ("check/good.txt", "x", "y", "9.07 Gbit/s"),
        // These hold no figures.
        ("esmond/metadata.json", a, b, "save what one of its `base-uri` answers"),
        ("maddash/grid.json", a, b, "save the page of one check"),
        ("check/critical.txt", a, b, "a check that says CRITICAL"),
        ("esmond/empty.json", a, b, "nothing of this pair"),
        ("no-such-file.json", a, b, "No such file"),
    ] {
        let told = told(&read(name, source, destination));
        println!("| {name} | {told} |");
        assert!(told.contains(expected), "{name}: {told}");
    }
}

/// As `…/runs?expanded=true` gives them: one that ended, one that was missed, and what is none.
#[test]
fn a_list_of_runs_is_each_of_them() {
    let [good, missed] = ["good", "missed"].map(|name| text(&format!("pscheduler/{name}.json")));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, format!("[{good}, {missed}, 7]")).unwrap();
    let told = told(&read(file.path().to_str().unwrap(), "psa.example.org", "psb.example.org"));
    assert!(told.starts_with("9.40 Gbit/s, 1.0 h old, "), "{told}");
    assert!(told.contains("left out: a run without a result, missed"), "{told}");
}
