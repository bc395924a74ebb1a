//! A probe between two running sites, both ways, and what the configuration must not say.

use super::setup::NOW;
use downpour::site::{Clock, Config, Daemon, Setup, init, introduce};
use downpour::tuner::{Combined, Means, Sample, Seen, measurements};
use downpour_transport::identity::Identity;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const PROBE: &str =
    "\n[[tuner_source]]\nname = 'probe'\nkind = 'probe'\nprobe_bytes = '2MiB'\ntimeout = '60s'\n";

fn set_up(root: &Path, name: &str) -> (PathBuf, downpour::site::Card) {
    let folder = root.join(name);
    let setup = Setup {
        name: name.to_owned(),
        folder: folder.clone(),
        state: None,
        listen: Some((Ipv4Addr::LOCALHOST, crate::ports::port()).into()),
        address: None,
    };
    let card = init(&setup).unwrap();
    (folder, card)
}

async fn known(folder: &Path, source: &str, destination: &str, probed: Vec<Sample>) -> Combined {
    let config = Config::read(&folder.join("site.toml")).unwrap();
    let identity = Identity::load_or_create(&config.state()).unwrap();
    let identity = Some(Arc::new(identity));
    let means = Means { now: Clock::system().now(), identity, seen: Vec::new(), probed };
    measurements(source, destination, &config, means).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sites_probe_their_path_both_ways() {
    let root = tempfile::tempdir().unwrap();
    let ((east, card), (west, other)) = (set_up(root.path(), "east"), set_up(root.path(), "west"));
    introduce(&east, &other).unwrap();
    introduce(&west, &card).unwrap();
    let file = east.join("site.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + PROBE).unwrap();
    let there = Daemon::start(&west.join("site.toml"), Clock::system()).await.unwrap();
    let here = Daemon::start(&file, Clock::system()).await.unwrap();

    let mut probed = Vec::new();
    for (source, destination, by) in
        [("west", "east", "download from west"), ("east", "west", "download by west")]
    {
        // A site serves one probe at a time, and the daemon asks for its own.
        let busy = |c: &Combined| c.left_out.iter().any(|l| l.what == "a probe is under way here");
        let mut combined = known(&east, source, destination, vec![]).await;
        for _ in 0..600 {
            if !busy(&combined) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            combined = known(&east, source, destination, vec![]).await;
        }
        assert_eq!(combined.left_out, [], "{source}");
        let throughput = combined.measured.throughput.expect("a rate");
        assert!(throughput.origin.contains(by), "{}", throughput.origin);
        let rtt = combined.measured.rtt.expect("a round trip").value;
        assert!(rtt < Duration::from_secs(60), "{rtt:?}");
        assert!(combined.measured.loss.is_none(), "a receiver does not know it");
        probed = combined.probed;
    }
    let strange = known(&east, "north", "south", vec![]).await;
    assert!(strange.left_out[0].what.contains("between this site and"), "{strange:?}");

    // A dead site is named, where it is asked.
    there.end(Duration::ZERO).await;
    let again = known(&east, "east", "west", probed.clone()).await;
    assert_eq!((again.left_out, again.probed), (vec![], probed));
    let dead = known(&east, "west", "east", vec![]).await;
    assert!(dead.measured.throughput.is_none());
    assert!(dead.left_out[0].what.contains("cannot connect"), "{:?}", dead.left_out);
    here.end(Duration::ZERO).await;
}

#[tokio::test]
async fn our_own_transfers_are_a_source() {
    let text = "[site]\nname = 'east'\n[[tuner_source]]\nname = 'own'\nkind = 'history'\n";
    let config = Config::parse(text).unwrap();
    let seen = Seen {
        source: "east".to_owned(),
        destination: "west".to_owned(),
        ended: NOW,
        time: Duration::from_secs(10),
        bytes: 125_000_000,
        sent: 125_000_000,
        sent_again: Some(12_500),
        rtt: Some(Duration::from_millis(12)),
        connections: 8,
        ip: None,
    };
    let means = Means { now: NOW, identity: None, seen: vec![seen], probed: Vec::new() };
    let combined = measurements("east", "west", &config, means).await;
    let measured = combined.measured;
    let throughput = measured.throughput.unwrap();
    assert_eq!(throughput.value.bps(), 100_000_000);
    assert_eq!(throughput.origin, "own: 1 sample by downpour, our own transfers");
    assert_eq!(measured.rtt.unwrap().value, Duration::from_millis(12));
    assert!((measured.loss.unwrap().value - 0.0001).abs() < 1e-6);
}

/// Line, what is wrong, what to do.
#[test]
fn a_wrong_configuration_is_answered_with_line_and_remedy() {
    let source = |more: &str| format!("[[tuner_source]]\nname = 'ps'\n{more}\n");
    let pin = "pin = 'sha256//AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA='";
    for (text, line, what, todo) in [
        (source("kind = 'perfsonar'"), 5, "`kind`", "opensearch, pscheduler"),
        (source("kind = 'opensearch'"), 5, "it needs a `url`", "write url"),
        (source("kind = 'esmond'\nurl = 'ps.example.org'"), 6, "no URL of the web", "https://"),
        (
            source(&format!("kind = 'esmond'\nurl = 'http://a/'\n{pin}")),
            6,
            "means nothing without TLS",
            "https://",
        ),
        (
            source(&format!("kind = 'esmond'\nurl = 'https://a/'\nca = 'x'\n{pin}")),
            8,
            "only one can decide",
            "keep one",
        ),
        (source("kind = 'history'\npin = 'abc'"), 6, "sha256//BASE64", "copy what the error"),
        (
            source("kind = 'pscheduler'\nurl = 'https://a/'\ntest = '5s'"),
            3,
            "does not end in this time",
            "20s",
        ),
        (source("kind = 'file'"), 5, "it needs a `file`", "write file"),
        (source("kind = 'file'\nfile = 'f'\nto = 'y'"), 5, "one end of the path", "both from and"),
        (source("kind = 'static'\nrtt = '1ms'"), 5, "between whom", "from ="),
        (source("kind = 'static'\nfrom = 'x'\nto = 'y'"), 5, "nothing of the path", "throughput"),
        (
            source("kind = 'static'\nfrom = 'x'\nto = 'z'\nrtt = '1ms'"),
            7,
            "called `z`",
            "[[remote]]",
        ),
        (source("kind = 'history'\nloss = 2.0"), 6, "between 0 and 1", "0.001"),
        (source("kind = 'probe'\nprobe_bytes = '1GB'"), 6, "a probe of", "64MiB"),
        (source("kind = 'history'\nurll = 'x'"), 6, "no key `urll`", "`url`"),
        ("[tuner]\nhalf_life = '0'\n".to_owned(), 4, "nothing would count", "6h"),
        ("[tuner]\nip = 5\n".to_owned(), 4, "IP 4 and IP 6", "4 or 6"),
        ("[tuner]\nhosts.q = ['a']\n".to_owned(), 4, "called `q`", "[[remote]]"),
    ] {
        // `y` stands for a remote that is known.
        let text = format!("[site]\nname = 'x'\n{text}").replace("'y'", "'x'");
        let flaws = Config::parse(&text).unwrap_err();
        let flaw = flaws.iter().find(|flaw| flaw.what.contains(what));
        let flaw = flaw.unwrap_or_else(|| panic!("{text}\n{flaws:?}"));
        assert_eq!(flaw.line, Some(line), "{text}\n{flaw:?}");
        assert!(flaw.todo.contains(todo), "{text}\n{flaw:?}");
    }
}
