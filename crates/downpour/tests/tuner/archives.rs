//! Each kind of archive with each of its fixtures, asked over HTTP: exactly what is taken, in which unit, and what is not.

use super::server::{Reply, Server};
use super::setup::{archive, config, known, told};
use serde_json::json;
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tuner/fixtures")
}

pub(crate) fn text(name: &str) -> String {
    let path = fixtures().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(name: &str) -> Reply {
    Reply::Json(text(name))
}

fn nothing() -> Reply {
    Reply::Json("[]".to_owned())
}

/// Which document of a fixture answers which question.
pub(crate) fn answer(kind: &str, case: &str, line: &str) -> Reply {
    let has = |part: &str| line.contains(part);
    let document = format!("{kind}/{case}.json");
    match kind {
        "opensearch" => match case {
            "good" if has("pscheduler_rtt") => json("opensearch/rtt.json"),
            "good" if has("pscheduler_latency,") => json("opensearch/latency.json"),
            _ if has("pscheduler_throughput/_search") => json(&document),
            _ => json("opensearch/empty.json"),
        },
        "pscheduler" => match case {
            "empty" => nothing(),
            _ if has("/runs/") => json(&document),
            _ if has("/runs?start=2026-11-15") => json("pscheduler/runs.json"),
            // Only one of the kinds of task is there.
            "rtt" | "latency" => match has(&format!("%22{case}%22")) {
                true => json(&format!("pscheduler/tasks-{case}.json")),
                false => nothing(),
            },
            _ if !has("%22throughput%22") => nothing(),
            "ipv6" | "parallel8" => json(&format!("pscheduler/tasks-{case}.json")),
            _ => json("pscheduler/tasks.json"),
        },
        "esmond" => {
            let (forth, six) = (has("source=192.0.2.10&"), has("source=2001%3Adb8%3Aa%3A%3A10&"));
            match case {
                _ if has("/base") => match line {
                    _ if has("histogram-rtt") && case == "good" => json("esmond/rtt.json"),
                    _ if has("packet-loss-rate") && case == "good" => json("esmond/loss.json"),
                    _ if has("/throughput/") => json(&document),
                    _ => nothing(),
                },
                "ipv6" if six => json("esmond/metadata-ipv6.json"),
                "evil" if forth => json("esmond/metadata-evil.json"),
                // An archive resolves names, so that one series is found several times.
                _ if forth || has("source=psa.example.org&") => match case {
                    "empty" | "ipv6" => nothing(),
                    _ => json("esmond/metadata.json"),
                },
                _ => nothing(),
            }
        }
        "maddash" => match case {
            _ if has("/psa.example.org/psb.example.org/Throughput") => json(&document),
            "empty" => json("maddash/grids-empty.json"),
            _ if has("/grids/") => json("maddash/grid.json"),
            _ => json("maddash/grids.json"),
        },
        _ => json(&document),
    }
}

/// The documents of a kind that are not fixtures by themselves.
const PARTS: &[&str] = &["tasks", "runs", "metadata", "grid"];

/// Plays a fixture and says what is known then.
fn seen(kind: &'static str, case: &'static str) -> String {
    let server = Server::plain(move |question| answer(kind, case, &question.line));
    let folder = tempfile::tempdir().unwrap();
    let combined = known(&config(&archive(kind, "http", server.port, ""), folder.path()));
    for sample in &combined.samples {
        assert_eq!(sample.origin.source, "archive");
        let place = format!("http://127.0.0.1:{}/", server.port);
        assert!(sample.origin.place.starts_with(&place), "{}", sample.origin.place);
    }
    told(&combined)
}

fn check(kind: &'static str, table: &[(&'static str, &str)]) {
    let mut wrong = Vec::new();
    for (case, expected) in table {
        let seen = seen(kind, case);
        println!("| {kind} | {case} | {seen} |");
        if seen != *expected {
            wrong.push(format!("{kind} {case}:\n  seen     {seen}\n  expected {expected}"));
        }
    }
    // A fixture that nobody plays shows nothing.
    for entry in std::fs::read_dir(fixtures().join(kind)).unwrap() {
        let name = entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned();
        let played = table.iter().any(|(case, _)| *case == name)
            || PARTS.iter().any(|part| name.starts_with(part))
            || (kind != "pscheduler" && ["rtt", "latency", "loss"].contains(&name.as_str()))
            || ["paper", "captioned-pushing", "captioned-pulling"].contains(&name.as_str());
        if !played {
            wrong.push(format!("{kind}/{name} is not played"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn opensearch() {
    check(
        "opensearch",
        &[
            (
                "good",
                "9.41 Gbit/s, 4.4 h old, push, IPv4, by iperf3 in bit/s; \
                 RTT 34.50 ms, 0.1 h old; \
                 loss 0.250 %, 0.0 h old",
            ),
            ("empty", "no data; left out: nothing of this pair"),
            (
                "failed",
                "no data; \
                 left out: a throughput that did not succeed: iperf3: error - unable to connect to server; \
                 left out: a throughput without a figure; \
                 left out: throughput of -1 bit/s: no path has that; \
                 another unit?",
            ),
            (
                "ipv6",
                "8.80 Gbit/s, 1.0 h old, push, IPv6, by iperf3 in bit/s; \
                 RTT 35.50 ms, 1.0 h old",
            ),
            (
                "parallel8",
                "9.44 Gbit/s, 1.0 h old, push, IPv4, by iperf3, 8 streams in bit/s; \
                 RTT 35.37 ms under load, 1.0 h old",
            ),
            ("strings", "9.41 Gbit/s, 1.0 h old, push, IPv4, by iperf3 in bit/s"),
            ("duplicate", "9.41 Gbit/s, 1.0 h old, push, IPv4, by iperf3 in bit/s"),
            ("stale", "no data; left out: samples older than 7 d"),
            (
                "unit",
                "no data; \
                 left out: a UDP test's throughput: it is what the test was told to send; \
                 left out: round trip of 34.5 s: no path has that; \
                 another unit?; \
                 left out: throughput of 9.41 bit/s: no path has that; \
                 another unit?",
            ),
        ],
    );
}

#[test]
fn pscheduler() {
    check(
        "pscheduler",
        &[
            ("good", "9.40 Gbit/s, 1.0 h old, push, by iperf3 in bit/s"),
            ("rtt", "RTT 34.50 ms, 1.0 h old"),
            ("empty", "no data; left out: nothing of this pair"),
            (
                "failed",
                "no data; \
                 left out: a run that did not succeed: psb.example.org refused the test",
            ),
            ("missed", "no data; left out: a run without a result, missed"),
            ("ipv6", "9.40 Gbit/s, 1.0 h old, IPv6, by iperf3 in bit/s"),
            (
                "parallel8",
                "9.44 Gbit/s, 1.0 h old, push, by iperf3, 8 streams in bit/s; \
                 RTT 35.37 ms under load, 1.0 h old",
            ),
            ("strings", "9.40 Gbit/s, 1.0 h old, push, by iperf3 in bit/s"),
            ("duplicate", "9.40 Gbit/s, 1.0 h old, push, by iperf3 in bit/s"),
            ("stale", "no data; left out: samples older than 7 d"),
            (
                "unit",
                "no data; \
                 left out: a throughput said to be 9400000000 bit/s and 9400000000 bytes/s",
            ),
            (
                "lying",
                "no data; \
                 left out: throughput with a minimum of 9500000000 and an average of 9400000000",
            ),
            ("latency", "loss 1.000 %, 1.0 h old"),
        ],
    );
}

#[test]
fn esmond() {
    check(
        "esmond",
        &[
            (
                "good",
                "9.41 Gbit/s, 4.4 h old, push, IPv4, by iperf3 in bit/s; \
                 RTT 34.63 ms, 0.2 h old; \
                 loss 0.050 %, 0.2 h old",
            ),
            ("empty", "no data; left out: nothing of this pair"),
            (
                "failed",
                "no data; \
                 left out: a throughput without a figure; \
                 left out: a value that does not say when; \
                 left out: throughput of -1 bit/s: no path has that; \
                 another unit?",
            ),
            ("ipv6", "9.41 Gbit/s, 4.4 h old, push, IPv6, by iperf3 in bit/s"),
            ("strings", "9.41 Gbit/s, 1.0 h old, push, IPv4, by iperf3 in bit/s"),
            ("duplicate", "9.41 Gbit/s, 1.0 h old, push, IPv4, by iperf3 in bit/s"),
            ("stale", "no data; left out: samples older than 7 d"),
            (
                "unit",
                "no data; \
                 left out: throughput of 9.41 bit/s: no path has that; \
                 another unit?",
            ),
            (
                "evil",
                "9.41 Gbit/s, 4.4 h old, push, IPv4, by iperf3 in bit/s; \
                 left out: its answer is a link to another host: http://192.0.2.66/esmond/throughput/base?time-range=604800",
            ),
        ],
    );
}

#[test]
fn maddash() {
    check(
        "maddash",
        &[
            (
                "good",
                "9.07 Gbit/s, 1.0 h old, by maddash in Gbit/s; \
                 left out: a check from psa.example.org to psb.example.org with status 3",
            ),
            (
                "numbers",
                "9.07 Gbit/s, 1.0 h old, by maddash in Gbit/s; \
                 left out: a check from psa.example.org to psb.example.org with status 3",
            ),
            ("empty", "no data; left out: nothing of this pair"),
            (
                "failed",
                "no data; \
                 left out: a check from psa.example.org to psb.example.org with status 3; \
                 left out: a check whose newest result has the status 2",
            ),
            (
                "none",
                "no data; \
                 left out: a check from psa.example.org to psb.example.org with status 3; \
                 left out: a check whose newest result has the status 3",
            ),
            (
                "duplicate",
                "9.07 Gbit/s, 1.0 h old, by maddash in Gbit/s; \
                 left out: a check from psa.example.org to psb.example.org with status 3",
            ),
            (
                "stale",
                "no data; \
                 left out: a check from psa.example.org to psb.example.org with status 3; \
                 left out: samples older than 7 d",
            ),
            (
                "unit",
                "no data; \
                 left out: a check from psa.example.org to psb.example.org with status 3; \
                 left out: an average of 9.066 beside a text that says 90660000 bit/s",
            ),
        ],
    );
}

/// The pages that are read are those of throughput, wherever its grid stands.
#[test]
fn a_grid_of_throughput_after_others() {
    let grid = |kind: &str, count: usize| {
        let names: Vec<String> = (0..count).map(|number| format!("{kind}-{number}")).collect();
        let uri =
            |name: &String| format!("/maddash/grids/{kind}/psa.example.org/psb.example.org/{name}");
        let checks = names.iter().map(|name| json!({ "status": 0, "uri": uri(name) }));
        let checks: Vec<_> = checks.collect();
        json!({ "rows": [{ "name": "psa.example.org" }], "columnNames": ["psb.example.org"],
                "checkNames": names, "grid": [[checks]] })
    };
    let server = Server::plain(move |question| match &question.line {
        line if line.contains("/psb.example.org/Throughput") => json("maddash/good.json"),
        line if line.ends_with("/Loss") => Reply::Json(grid("Loss", 6).to_string()),
        line if line.ends_with("/Latency") => Reply::Json(grid("Latency", 6).to_string()),
        line if line.ends_with("/Throughput") => Reply::Json(grid("Throughput", 1).to_string()),
        line if line.ends_with("/grids") => {
            let grids = ["Loss", "Latency", "Throughput"].map(|name| json!({ "name": name }));
            Reply::Json(json!({ "grids": grids }).to_string())
        }
        line => panic!("{line}"),
    });
    let folder = tempfile::tempdir().unwrap();
    let told = told(&known(&config(&archive("maddash", "http", server.port, ""), folder.path())));
    assert_eq!(told, "9.07 Gbit/s, 1.0 h old, by maddash in Gbit/s");
}

#[test]
fn dashboard() {
    check(
        "dashboard",
        &[
            ("good", "308.6 Mbit/s, 0.8 h old, push, by check in Gbit/s (labelled Mb/s)"),
            ("empty", "no data; left out: nothing of this pair"),
            ("warning", "no data; left out: a check that says WARNING"),
            (
                "failed",
                "no data; \
                 left out: a check that says UNKNOWN; \
                 left out: a check without a rate in its text",
            ),
            ("ipv6", "308.6 Mbit/s, 0.8 h old, push, IPv6, by check in Gbit/s (labelled Mb/s)"),
            ("strings", "308.6 Mbit/s, 0.8 h old, push, by check in Gbit/s (labelled Mb/s)"),
            ("duplicate", "308.6 Mbit/s, 0.8 h old, push, by check in Gbit/s (labelled Mb/s)"),
            ("stale", "no data; left out: samples older than 7 d"),
            (
                "unit",
                "no data; \
                 left out: an average of 0.308642 beside a text that says 9000000000 bit/s",
            ),
            (
                "minmax",
                "no data; \
                 left out: throughput with a minimum of 738979000 and an average of 308642000",
            ),
        ],
    );
}

/// The search names the pair by all its names, and addresses only where addresses can stand.
#[test]
fn the_search_is_for_this_pair_and_this_time() {
    use std::sync::{Arc, Mutex};
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let seen = bodies.clone();
    let server = Server::plain(move |question| {
        seen.lock().unwrap().push(question.body.clone());
        json("opensearch/empty.json")
    });
    let folder = tempfile::tempdir().unwrap();
    known(&config(&archive("opensearch", "http", server.port, ""), folder.path()));
    let bodies = bodies.lock().unwrap();
    assert_eq!(bodies.len(), 3);
    let body: serde_json::Value = serde_json::from_str(&bodies[0]).unwrap();
    let filters = &body["query"]["bool"]["filter"];
    let since = &filters[0]["range"]["pscheduler.start_time"]["gte"];
    assert_eq!(since, "2026-11-15T12:00:00Z");
    let terms = &filters[1]["bool"]["should"];
    let names = &terms[0]["terms"]["meta.source.hostname.keyword"];
    assert!(names.as_array().unwrap().iter().any(|name| name == "psa.example.org"), "{terms}");
    let addrs = terms[1]["terms"]["meta.source.ip"].as_array().unwrap();
    assert_eq!(addrs.len(), 4, "{terms}");
}
