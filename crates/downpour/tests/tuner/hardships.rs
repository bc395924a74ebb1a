//! Archives that are dead, slow, wrong or not who they say: each is named, and the next source speaks.

use super::archives::answer;
use super::server::{Reply, Server};
use super::setup::{archive, config, known, told};
use downpour_transport::web::KeyPin;
use std::path::Path;

const KINDS: [&str; 5] = ["opensearch", "pscheduler", "esmond", "maddash", "dashboard"];
/// The source after the archive.
const WORD: &str = "[[tuner_source]]\nname = 'word'\nkind = 'static'\nfrom = 'here'\nto = 'there'\n\
                    throughput = '100mbit'\nrtt = '12ms'\n";
/// What it says.
const SAID: &str = "100.0 Mbit/s, 0.0 h old, by said in bit/s; RTT 12.00 ms, 0.0 h old";

/// What is known when the archive is this one, with these settings, and the word comes after it.
fn with(sources: &str, files: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    told(&known(&config(&format!("{sources}{WORD}"), folder.path())))
}

/// Each kind of archive, when all its answers are this one.
fn each(case: &str, more: &str, answer: fn() -> Reply, expected: &str) {
    for kind in KINDS {
        let server = Server::plain(move |_| answer());
        let told = with(&archive(kind, "http", server.port, more), &[]);
        println!("| {kind} | {case} | {told} |");
        assert!(told.starts_with(SAID), "{kind} {case}: {told}");
        assert!(told.contains(expected), "{kind} {case}: {told}");
    }
}

fn redirect(to: &str) -> Reply {
    Reply::Page(302, format!("location: {to}\r\n"), Vec::new())
}

#[test]
fn too_long() {
    let long = || Reply::Page(200, String::new(), vec![b'['; 10 << 20]);
    each("10 MB", "", long, "left out: the answer has more than 4194304 bytes");
}

#[test]
fn truncated() {
    each("connection breaks off", "", || Reply::BreaksOff, "left out: the connection broke");
    let half = || Reply::Json("{\"hits\":{\"hits\":[{\"_source\":".to_owned());
    each("JSON breaks off", "", half, "left out: its answer is JSON that breaks off");
}

#[test]
fn not_json() {
    let page = || {
        let html = b"<!DOCTYPE html><html><body>Please log in</body></html>".to_vec();
        Reply::Page(200, "content-type: text/html\r\n".to_owned(), html)
    };
    each("HTML with status 200", "", page, "left out: its answer is HTML, not JSON");
    let other = || Reply::Json("{\"greeting\":\"hello\"}".to_owned());
    each("JSON of another kind", "", other, "left out: its answer is ");
    // Deeper than any archive, to use up the stack.
    let deep = || Reply::Json("[".repeat(100_000));
    each("100,000 brackets", "", deep, "left out: its answer is no JSON");
}

#[test]
fn an_error() {
    let broken = || Reply::Page(503, String::new(), b"{}".to_vec());
    each("HTTP 503", "", broken, "left out: it answers with HTTP status 503");
}

#[test]
fn a_page_that_fails_takes_nothing_from_the_others() {
    let broken = |status| Reply::Page(status, String::new(), b"{}".to_vec());
    let grids = r#"{"grids":[{"name":"old"},{"name":"new"}]}"#;
    for (kind, fails, rate) in [
        ("opensearch", "pscheduler_rtt", "9.41 Gbit/s"),
        ("pscheduler", "%22rtt%22", "9.40 Gbit/s"),
        ("esmond", "histogram-rtt", "9.41 Gbit/s"),
        ("maddash", "/grids/old", "9.07 Gbit/s"),
    ] {
        for status in [404, 500] {
            let server = Server::plain(move |question| match &question.line {
                line if line.contains(fails) => broken(status),
                line if line.ends_with("/maddash/grids") => Reply::Json(grids.to_owned()),
                line => answer(kind, "good", line),
            });
            let known = known(&config(&archive(kind, "http", server.port, ""), Path::new("")));
            let told = told(&known);
            println!("| {kind} | one page with status {status} | {told} |");
            assert!(told.starts_with(rate), "{kind}: {told}");
            let what = format!("left out: it answers with HTTP status {status}");
            assert!(told.contains(&what), "{kind}: {told}");
            assert!(!known.left_out.iter().any(|left| left.silent), "{kind}: {told}");
        }
    }
}

#[test]
fn a_redirect_loop() {
    let round = || redirect("/opensearch/again");
    each("redirect loop", "", round, "left out: redirected more than 3 times");
}

#[test]
fn a_stall() {
    each("stall", "timeout = '300ms'", || Reply::Silence, "left out: not answered within 300ms");
}

#[test]
fn nobody_there() {
    // A port where nobody listens, and where no other test will.
    let port = crate::ports::port();
    for kind in KINDS {
        let told = with(&archive(kind, "http", port, ""), &[]);
        println!("| {kind} | nobody listens | {told} |");
        assert!(told.starts_with(SAID) && told.contains("left out: cannot connect"), "{told}");
    }
}

#[test]
fn a_redirect_is_followed_but_not_out_of_tls() {
    let plain = Server::plain(|question| match question.line.contains("/moved/") {
        true => Reply::Json("[]".to_owned()),
        false => redirect("/moved/results"),
    });
    let told = with(&archive("dashboard", "http", plain.port, ""), &[]);
    assert_eq!(told, format!("{SAID}; left out: nothing of this pair"), "it was answered");
    assert_eq!(plain.asked().len(), 2);

    let (there, before) = (plain.port, plain.asked().len());
    let secure = Server::tls("127.0.0.1", move |_| {
        redirect(&format!("http://127.0.0.1:{there}/moved/results"))
    });
    let source = archive("dashboard", "https", secure.port, "ca = 'own.pem'");
    let told = with(&source, &[("own.pem", &secure.pem)]);
    println!("| dashboard | redirect from https to http | {told} |");
    assert!(told.contains("left out: redirected from https to http://127.0.0.1"), "{told}");
    assert_eq!(plain.asked().len(), before, "it was not even asked");
}

#[test]
fn certificates() {
    let empty = |_: &super::server::Question| Reply::Json("[]".to_owned());
    let (server, other) = (Server::tls("127.0.0.1", empty), Server::tls("other.example", empty));
    let good = format!("{SAID}; left out: nothing of this pair");
    let told = |server: &Server, more: &str, file: &str| {
        with(&archive("dashboard", "https", server.port, more), &[("ca.pem", file)])
    };
    let show = |case: &str, told: &str| println!("| dashboard | {case} | {told} |");

    let own = told(&server, "ca = 'ca.pem'", &server.pem);
    show("certificate of its CA file", &own);
    assert_eq!(own, good);
    let stranger = told(&server, "ca = 'ca.pem'", &other.pem);
    show("certificate of somebody else", &stranger);
    assert!(stranger.starts_with(SAID) && stranger.contains("left out: TLS failed"), "{stranger}");
    let misnamed = told(&other, "ca = 'ca.pem'", &other.pem);
    show("certificate with another name", &misnamed);
    assert!(misnamed.starts_with(SAID) && misnamed.contains("left out: TLS failed"), "{misnamed}");
    let none = told(&server, "ca = 'ca.pem'", "no certificate\n");
    show("a CA file without one", &none);
    assert!(none.starts_with(SAID) && none.contains("no authority can be read"), "{none}");
    let machine = told(&server, "", "");
    show("certificate that the machine does not know", &machine);
    assert!(machine.starts_with(SAID) && machine.contains("left out: "), "{machine}");

    // A wrong pin shows the right one, whatever the certificate's name; with that it works.
    let wrong = KeyPin::of_key(b"another").unwrap();
    let pinned = told(&other, &format!("pin = '{wrong}'"), "");
    show("wrong pin", &pinned);
    assert!(pinned.starts_with(SAID), "{pinned}");
    let seen = pinned.split("the server's key is ").nth(1).expect("the key is told");
    let seen: KeyPin = seen.split(',').next().unwrap().parse().unwrap();
    assert_ne!(seen, wrong);
    let right = told(&other, &format!("pin = '{seen}'"), "");
    show("right pin, another name", &right);
    assert_eq!(right, good);
}

#[test]
fn what_an_archive_says_cannot_speak_to_a_terminal() {
    let hits = r#"{"hits":{"hits":[
        {"_source":{"test":{"type":"throughput\u001b[2J"},"result":{"succeeded":false}}},
        {"_source":{"meta":{"source":{"hostname":"psa.example.org"},
            "destination":{"hostname":"psc\u009b2J.example.org"}},"pscheduler":{"end_time":
            "2026-11-22T11:59:00Z"},"test":{"type":"throughput"},"result":{"succeeded":true,
            "throughput":300000000}}},
        {"_source":{"meta":{"source":{"hostname":"psa.example.org"},
            "destination":{"hostname":"psb.example.org"}},"pscheduler":{"tool":"iperf3\u001b[2J",
            "end_time":"2026-11-22T11:59:00Z"},"test":{"type":"throughput"},"result":
            {"succeeded":true,"throughput":300000000}}}]}}"#;
    let server = Server::plain(|_| Reply::Json(hits.to_owned()));
    let source = archive("opensearch", "http", server.port, "");
    let told = told(&known(&config(&source, Path::new(""))));
    for word in ["by iperf3 [2J in", "a throughput [2J that did not", "to psc 2J.example.org"] {
        assert!(told.contains(word), "{word}: {told}");
    }
    assert!(!told.contains(char::is_control), "{told:?}");
}

/// A pipe that nobody writes to, as a file and as authorities: none is waited for.
#[test]
fn what_is_no_file_is_not_opened_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    let file = "[[tuner_source]]\nname = 'file'\nkind = 'file'\nfile = 'pipe'\n";
    for source in [file, &archive("dashboard", "https", 9, "ca = 'pipe'")] {
        let told = told(&known(&config(&format!("{source}{WORD}"), folder.path())));
        assert!(told.starts_with(SAID) && told.contains("pipe: it is no regular file"), "{told}");
    }
}

/// A site has many paths.
#[test]
fn what_does_not_say_between_whom_is_of_no_path_unless_the_configuration_says_it() {
    let line = "PS_CHECK_THROUGHPUT OK - Average throughput is 200Mbps";
    let series = super::archives::text("esmond/good.json");
    let run = r#"{"state":"finished","end-time":"2026-11-22T11:00:00Z","result":{"succeeded":true,
        "summary":{"summary":{"throughput-bits":300000000}}}}"#;
    for (text, what) in [
        (line, "write `from` and `to` of this source"),
        (series.as_str(), "write `from` and `to` of this source"),
        (run, "a run that does not name its pair"),
    ] {
        let file = "[[tuner_source]]\nname = 'file'\nkind = 'file'\nfile = 'reply'\n";
        let told = |more| with(&format!("{file}{more}\n"), &[("reply", text)]);
        let unsaid = told("");
        assert!(unsaid.starts_with(SAID) && unsaid.contains(what), "{unsaid}");
        let said = told("from = 'here'\nto = 'there'");
        assert!(!said.contains("100.0 Mbit/s") && said.contains("bit/s"), "{said}");
        let other = told("from = 'there'\nto = 'here'");
        assert!(other.starts_with(SAID) && other.contains("of the way back"), "{other}");
    }
}

/// The order of sources, one after the other switched off.
#[test]
fn archives_are_switched_off_one_by_one() {
    let line = "PS_CHECK_THROUGHPUT OK - Average throughput is 200Mbps";
    let file = "[[tuner_source]]\nname = 'line'\nkind = 'file'\nfile = 'line.txt'\nfrom = 'here'\n\
                to = 'there'\n";
    let files = [("line.txt", line)];
    let hits = r#"{"hits":{"hits":[{"_source":{"meta":{"source":{"hostname":"psa.example.org"},
        "destination":{"hostname":"psb.example.org"}},"pscheduler":{"end_time":
        "2026-11-22T11:59:00Z"},"test":{"type":"throughput"},"result":{"succeeded":true,
        "throughput":300000000}}}]}}"#;
    let server = Server::plain(|_| Reply::Json(hits.to_owned()));
    let dead = Server::plain(|_| Reply::BreaksOff);
    let rate = |told: String| told.split(',').next().unwrap_or_default().to_owned();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(files[0].0), files[0].1).unwrap();
    // The line is as old as its file.
    let at = super::setup::NOW.0 as u64 - 60_000_000;
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_micros(at);
    let written = std::fs::File::options().append(true).open(folder.path().join("line.txt"));
    written.unwrap().set_modified(at).unwrap();
    let all = [archive("opensearch", "http", server.port, ""), file.to_owned(), WORD.to_owned()];
    let ask = |sources: &[String]| rate(told(&known(&config(&sources.concat(), folder.path()))));
    assert_eq!(ask(&all), "300.0 Mbit/s");
    let dead = archive("opensearch", "http", dead.port, "");
    assert_eq!(ask(&[dead.clone(), all[1].clone(), all[2].clone()]), "200.0 Mbit/s");
    assert_eq!(ask(&[dead.clone(), all[2].clone()]), "100.0 Mbit/s");
    assert!(ask(&[dead]).starts_with("no data"));
    assert!(ask(&[]).starts_with("no data"));
}
