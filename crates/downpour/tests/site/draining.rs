//! A site is told to end, or its service `dispatch` is, while files arrive.

use crate::fetching::content;
use crate::harness::{Two, until};
use downpour_catalog::State;
use std::fs;

/// Bytes of a file that is under way for ten seconds at [`RATE`].
const SIZE: usize = 20_000_000;
const RATE: &str = "16mbit";

/// a sends b a file no faster than this, of which bytes are there; the number of the transfer. `more` is b's configuration.
fn under_way(rate: &str, more: &str) -> (Two, i64) {
    let slow = format!(
        "active = 1\nrate = \"{rate}\"\n\
         [transfer]\nfolders = [\"data\"]\nports = \"31000-31199\""
    );
    let mut sites = Two::set_up([&slow, more]);
    let data = sites.a.path("data");
    fs::create_dir_all(&data).expect("room");
    fs::write(data.join("large"), content(SIZE)).expect("room");
    sites.a.start();
    sites.b.start();
    let data = data.to_str().expect("text");
    let text = sites.a.done(&["transfer", "submit", data, "b", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    until("bytes of it are there", || {
        let parts = fs::read_dir(sites.b.path("inbox/.downpour/lane-0/parts")).ok()?;
        (parts.count() > 0).then_some(())
    });
    (sites, answer["submitted"][0]["transfer"].as_i64().expect("a number"))
}

/// Waits until a has the receipt, and looks whether b has the file.
fn arrives(sites: &Two) {
    until(&format!("a has its receipt\n{}\n{}", sites.a.log(), sites.b.log()), || {
        let counts = sites.a.reader().counts().ok()?;
        counts.iter().any(|c| c.state == State::Receipted && c.files == 1).then_some(())
    });
    assert!(fs::read(sites.b.path("inbox/large")).is_ok_and(|found| found == content(SIZE)));
}

#[test]
fn what_arrives_is_under_way_when_its_site_is_told_to_end() {
    let (mut sites, _) = under_way(RATE, "[site]\ndrain = \"4min\"");
    sites.b.signal("TERM");
    assert_eq!(sites.b.ended(), Some(0), "{}", sites.b.log());
    arrives(&sites);
}

#[test]
fn a_site_that_is_told_twice_does_not_wait() {
    // Neither would be over before the test.
    let (mut sites, _) = under_way("1mbit", "[site]\ndrain = \"1h\"");
    sites.b.signal("TERM");
    until("it drains", || sites.b.log().contains("draining").then_some(()));
    sites.b.signal("TERM");
    assert_eq!(sites.b.ended(), Some(0), "{}", sites.b.log());
    assert!(!sites.b.path("inbox/large").exists(), "{}", sites.b.log());
}

#[test]
fn nothing_arrives_at_a_site_whose_dispatch_was_stopped() {
    let (sites, transfer) = under_way(RATE, "");
    sites.b.done(&["service", "stop", "dispatch"]);
    until(&format!("a is told\n{}", sites.a.log()), || {
        sites.a.log().contains("`dispatch` of b ends, or was ended").then_some(())
    });
    assert!(!sites.b.path("inbox/large").exists(), "{}", sites.b.log());
    sites.b.done(&["service", "start", "dispatch"]);
    sites.a.done(&["transfer", "open", "b"]);
    // It may not wait yet.
    sites.a.run(&["transfer", "retry", "--transfer", &transfer.to_string()]);
    arrives(&sites);
}
