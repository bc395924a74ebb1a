//! Tests on demand: what a pScheduler that is told to test does, and what is made of it.

use super::archives::text;
use super::server::{Reply, Server};
use super::setup::{archive, config, known, told};
use downpour::units::Span;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How a pScheduler does what it is told.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// The run is not on the schedule at first, then runs, then has a result: these fixtures.
    Does(&'static str, &'static str),
    /// It takes no task.
    Refuses,
    /// Its runs stay where they are.
    NeverEnds,
    /// It tests round trips, and takes so long to take on another task.
    Hesitates(Duration),
    /// It does not say which task it made.
    Vague,
}

/// The tasks that it was told, what is known then, and all that it was asked.
fn play(manner: Manner) -> (Vec<Value>, String, Vec<String>) {
    let tasks = Arc::new(Mutex::new(Vec::new()));
    let (posted, looks) = (tasks.clone(), Mutex::new(0));
    let server = Server::plain(move |question| {
        let page = |status: u16| Reply::Page(status, String::new(), b"no".to_vec());
        let state = |state: &str| Reply::Json(json!({ "state": state }).to_string());
        match question.line.split(' ').next() {
            Some("POST") if manner == Manner::Refuses => page(403),
            Some("POST") => {
                posted.lock().unwrap().push(serde_json::from_str(&question.body).unwrap());
                let place = match manner {
                    Manner::Hesitates(long) if question.body.contains("throughput") => {
                        thread::sleep(long);
                        "https://elsewhere.example.org/pscheduler/tasks/0f5e-12"
                    }
                    Manner::Vague => "https://elsewhere.example.org/pscheduler/tasks/../../etc",
                    // It knows itself by another name; only the id counts.
                    _ => "https://elsewhere.example.org/pscheduler/tasks/0f5e-11",
                };
                Reply::Json(json!(place).to_string())
            }
            Some("DELETE") => Reply::Json("\"deleted\"".to_owned()),
            // What was tested before: nothing.
            _ if question.line.contains("/tasks?") => Reply::Json("[]".to_owned()),
            _ if manner == Manner::NeverEnds => state("pending"),
            _ if question.line.contains("/tasks/0f5e-12/") => state("pending"),
            _ if matches!(manner, Manner::Hesitates(_)) => Reply::Json(text("pscheduler/rtt.json")),
            _ => {
                let mut looks = looks.lock().unwrap();
                *looks += 1;
                let Manner::Does(rtt, throughput) = manner else { return page(404) };
                match *looks % 3 {
                    1 => page(404),
                    2 => state("running"),
                    _ if *looks == 3 => Reply::Json(text(&format!("pscheduler/{rtt}.json"))),
                    _ => Reply::Json(text(&format!("pscheduler/{throughput}.json"))),
                }
            }
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let more = "test = '7s'\ntimeout = '30s'";
    let mut config = config(&archive("pscheduler", "http", server.port, more), folder.path());
    if matches!(manner, Manner::NeverEnds | Manner::Hesitates(_)) {
        // Less than a person may write, so that the test ends soon.
        config.tuner_source[0].timeout = Span(Duration::from_secs(12));
    }
    let told = told(&known(&config));
    let tasks = tasks.lock().unwrap().clone();
    (tasks, told, server.asked())
}

#[test]
fn a_test_is_told_waited_for_and_read() {
    let (tasks, told, asked) = play(Manner::Does("rtt", "good"));
    let expected = "9.40 Gbit/s, 1.0 h old, push, by pscheduler in bit/s; RTT 34.50 ms, 1.0 h old; left out: nothing of this pair";
    assert_eq!(told, expected);
    // Round trips first: a load would be in them.
    let kinds: Vec<_> = tasks.iter().map(|task| &task["test"]["type"]).collect();
    assert_eq!(kinds, ["rtt", "throughput"]);
    for task in &tasks {
        let spec = &task["test"]["spec"];
        assert_eq!(spec["source"], "psa.example.org", "{task}");
        assert_eq!(spec["dest"], "psb.example.org", "{task}");
    }
    assert_eq!(tasks[1]["test"]["spec"]["duration"], "PT7S");
    assert!(asked.iter().all(|line| !line.starts_with("DELETE")), "{asked:?}");
    let runs = asked.iter().filter(|line| line.contains("/pscheduler/tasks/0f5e-11/runs/first?"));
    assert_eq!(runs.count(), 6, "{asked:?}");
}

#[test]
fn what_is_refused_or_told_vaguely_is_named() {
    let (_, told, asked) = play(Manner::Refuses);
    assert!(told.starts_with("no data; ") && told.contains("HTTP status 403"), "{told}");
    assert_eq!(asked.iter().filter(|line| line.starts_with("POST")).count(), 1, "once is enough");
    let (_, told, asked) = play(Manner::Vague);
    assert!(told.starts_with("no data; ") && told.contains("no task's URL"), "{told}");
    assert!(asked.iter().all(|line| !line.contains("etc")), "{asked:?}");
}

#[test]
fn a_test_that_never_ends_is_taken_away() {
    let (tasks, told, asked) = play(Manner::NeverEnds);
    assert!(told.contains("the rtt test had not ended in time and was taken away"), "{told}");
    assert_eq!(tasks.len(), 1);
    let away = |line: &&String| line.starts_with("DELETE /pscheduler/tasks/0f5e-11");
    assert_eq!(asked.iter().filter(away).count(), 1, "{asked:?}");
}

#[test]
fn a_test_that_is_taken_on_late_takes_nothing_from_the_one_before() {
    // All of it ends 13 s after it began, and a task is given up 2 s before its time of 12 s is over.
    let (_, told, _) = play(Manner::Hesitates(Duration::from_millis(11_500)));
    assert!(told.starts_with("RTT 34.50 ms, 1.0 h old; "), "{told}");
    assert!(told.contains("the throughput test was not taken on in time"), "{told}");
}

#[test]
fn a_lie_is_left_out_and_the_other_figure_stays() {
    let (_, told, _) = play(Manner::Does("rtt", "unit"));
    assert!(told.starts_with("RTT 34.50 ms, 1.0 h old; "), "{told}");
    assert!(told.contains("a throughput said to be 9400000000 bit/s"), "{told}");
    let (_, told, _) = play(Manner::Does("rtt", "failed"));
    assert!(told.starts_with("RTT 34.50 ms") && told.contains("did not succeed"), "{told}");
}
