//! A site takes part in another one's standing multicast session: what comes is in its catalog, and it is a source for others.

use crate::again::lost_at;
use crate::fetching::{content, ended, fetch};
use crate::harness::{SiteProcess, drop_file, folder, until};
use downpour::receipt::{Line, SignedFileReceipt, read_log};
use downpour::ticket::Ticket;
use downpour_catalog::{ErrorClass, File, ReplicaState, State};
use serde_json::json;
use std::fs;
use std::path::Path;

/// Bytes of the files that are sent; several blocks.
const SIZE: usize = 6 << 20;

/// a's rule sends all that appears in its spool to b, which takes part in a's session when it has the ticket.
struct Sites {
    a: SiteProcess,
    b: SiteProcess,
    folder: tempfile::TempDir,
}

impl Sites {
    /// With `more` in b's configuration; neither runs.
    fn set_up(more: &str) -> Self {
        let folder = folder();
        let site = |name: &str| SiteProcess::new(folder.path(), name);
        let (a, b) = (site("a"), site("b"));
        a.trust(&b.card);
        b.trust(&a.card);
        b.configure("multicast = \"a.ticket\"");
        b.configure("[multicast]\ninterface = \"lo\"");
        b.configure(more);
        sends_to_b(&a, &b, &folder.path().join("spool"));
        Self { a, b, folder }
    }

    fn ticket(&self) -> Ticket {
        ticket_of(&self.a)
    }

    fn drop_in(&self, name: &str, content: &[u8]) {
        drop_file(&self.folder.path().join("spool").join(name), content);
    }

    /// Waits until a file is in this state at a.
    fn reaches(&self, name: &str, state: State) -> File {
        until(&format!("{name} is {state}: {}\n{}", self.a.log(), self.b.log()), || {
            known(&self.a, name).filter(|file| file.state == state)
        })
    }

    /// Waits until this stands in b's status.
    fn b_says(&self, what: &str) {
        until(&format!("b says: {what}\n{}", self.b.log()), || {
            self.b.done(&["service", "status"]).contains(what).then_some(())
        });
    }

    /// b has a file: in its place, in its catalog, signed for, and a knows that.
    fn is_at_b(&self, name: &str, path: &str, bytes: &[u8]) {
        let at = self.b.path("inbox").join(path);
        assert!(fs::read(&at).is_ok_and(|found| found == bytes), "{}", at.display());
        let file = known(&self.b, name).expect("b's catalog has it");
        let mut reader = self.b.reader();
        let receipts = reader.receipts(file.id).expect("rows");
        let signed = SignedFileReceipt::from_bytes(&receipts[0].signed).expect("a receipt");
        signed.verify().expect("it holds");
        assert_eq!((receipts.len(), signed.receipt.receiver), (1, self.b.card.key));
        let replicas = reader.replicas(file.id).expect("rows");
        assert_eq!((replicas.len(), replicas[0].state), (1, ReplicaState::Present));
        assert_eq!(Path::new(&replicas[0].path), at);
        assert_eq!(replicas_of(&self.a, name), ["a", "b"]);
    }
}

/// This site's rule sends all that appears in `spool` to b.
fn sends_to_b(site: &SiteProcess, b: &SiteProcess, spool: &Path) {
    let port = crate::ports::port();
    fs::create_dir_all(spool).expect("room");
    site.configure(&format!(
        "[multicast]\nport = {port}\nhost = \"127.0.0.1\"\ninterface = \"lo\""
    ));
    site.configure(&format!(
        "[[spool]]\nfolder = {spool:?}\ncomplete = \"settle:200ms\"\nrescan = \"1s\"\n\
         [[rule]]\nname = \"all\"\nmatch = \"*\"\nreceivers = [\"b\"]\ninto = \"new/{{name}}\"\n\
         [[receiver]]\nname = \"b\"\nkey = \"{}\"",
        b.card.key
    ));
}

fn ticket_of(site: &SiteProcess) -> Ticket {
    let path = site.path("state/multicast.ticket");
    until("it has a ticket", || Ticket::read_file(&path).ok())
}

/// A file of a, as this site's catalog has it.
fn known(site: &SiteProcess, name: &str) -> Option<File> {
    let mut reader = site.reader();
    let sites = reader.sites().expect("rows");
    let (a, _) = sites.iter().find(|(_, known)| known == "a")?;
    reader.versions(*a, name).expect("rows").pop()
}

/// The sites that have a file of a, as this one knows.
fn replicas_of(site: &SiteProcess, name: &str) -> Vec<String> {
    let mut reader = site.reader();
    let sites = reader.sites().expect("rows");
    let file = known(site, name).expect("it is known");
    let replicas = reader.replicas(file.id).expect("rows").into_iter();
    let of = |id| sites.iter().find(|(site, _)| *site == id).expect("a site").1.clone();
    let mut names: Vec<_> = replicas.map(|replica| of(replica.site)).collect();
    names.sort();
    names
}

#[test]
fn what_a_site_takes_from_a_session_is_in_its_catalog_and_others_fetch_it_there() {
    let done = "echo \"$1\" >> \"$0\"";
    let root = folder();
    let arrived = root.path().join("arrived");
    let mut sites = Sites::set_up(&format!(
        "[[rule]]\nname = \"in\"\nmatch = \"*\"\nfrom = \"a\"\ninto = \"of-{{site}}/{{name}}\"\n\
         command = [\"/bin/sh\", \"-c\", {done:?}, {arrived:?}, \"{{name}}\"]"
    ));
    sites.a.start();
    sites.b.start();
    // No ticket yet: that is said, and is no reason not to run.
    sites.b_says("cannot take part");
    let check = sites.b.run(&["check", sites.b.config().to_str().expect("text")]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_eq!(check.status.code(), Some(1), "{said}");
    assert!(
        said.contains("remote.0.multicast") && said.contains("copy `multicast.ticket`"),
        "{said}"
    );
    sites.ticket().write_file(&sites.b.path("a.ticket")).expect("room");
    sites.b_says("a: takes part");
    sites.b.done(&["check", sites.b.config().to_str().expect("text")]);
    let (first, second, third) = (content(SIZE), content(SIZE + 1), content(10));
    sites.drop_in("first", &first);
    sites.reaches("first", State::Receipted);
    // By its own rule for what arrives, not the sender's.
    sites.is_at_b("first", "of-a/first", &first);
    sites.b_says("1 files received");
    // Killed within a command it would run that again.
    until("its command has ended", || {
        let shown = sites.b.done(&["service", "status", "--json"]);
        shown.contains("\"commands_total\": 1.0").then_some(())
    });
    // It dies; what comes meanwhile waits for it.
    sites.b.kill();
    sites.drop_in("second", &second);
    until("a knows of it", || known(&sites.a, "second"));
    sites.b.start();
    sites.reaches("second", State::Receipted);
    sites.is_at_b("second", "of-a/second", &second);
    // The sender dies; it is waited for.
    sites.a.kill();
    sites.b_says("a: waits for the sender");
    sites.a.start();
    sites.drop_in("third", &third);
    sites.reaches("third", State::Receipted);
    sites.is_at_b("third", "of-a/third", &third);
    let log = read_log(&sites.b.path("inbox")).expect("a log").map(Result::unwrap);
    let names = |line| match line {
        Line::Receipt(signed) => signed.receipt.name,
        other => panic!("{other:?}"),
    };
    assert_eq!(log.map(names).collect::<Vec<_>>(), ["first", "second", "third"]);
    until("each got its command, once", || {
        let text = fs::read_to_string(&arrived).unwrap_or_default();
        (text == "first\nsecond\nthird\n").then_some(())
    });
    c_fetches(sites, &first, &second);
}

/// A third site finds the copy, and takes it when the first place is away.
fn c_fetches(mut sites: Sites, first: &[u8], second: &[u8]) {
    let mut c = SiteProcess::new(sites.folder.path(), "c");
    for one in [&mut sites.a, &mut sites.b] {
        one.trust(&c.card);
        one.configure("pull = true");
        c.trust(&one.card);
        one.signal("HUP");
    }
    c.configure("[mirror]\nof = [\"a\"]\nevery = \"200ms\"");
    c.start();
    let ask = json!({ "site": "a", "name": "first", "ask": true });
    until("c knows of both", || fetch(&c, &ask).filter(|report| report.sources.len() == 2));
    let shown = c.done(&["transfer", "fetch", "a", "first", "--ask"]);
    let of = |site: &str| shown.lines().any(|line| line.trim_start().starts_with(site));
    assert!(of("a ") && of("b "), "{shown}");
    let from = json!({ "site": "a", "name": "second", "from": ["b"] });
    let report = ended(&c, fetch(&c, &from).expect("an answer"));
    assert_eq!(report.failure, None, "{report:?}\n{}", c.log());
    sites.a.kill();
    let report = ended(&c, fetch(&c, &json!({ "site": "a", "name": "first" })).expect("an answer"));
    assert_eq!(report.failure, None, "{report:?}\n{}", c.log());
    let brought = |site: &str| report.sources.iter().find(|s| s.site == site).expect(site).brought;
    assert!(brought("a") == 0 && brought("b") >= SIZE as u64, "{report:?}");
    for (name, bytes) in [("first", first), ("second", second)] {
        assert!(fs::read(c.path("inbox").join(name)).is_ok_and(|found| found == bytes), "{name}");
    }
}

#[test]
fn where_the_disk_of_its_inbox_has_gone_nothing_is_received_until_it_is_back() {
    let mut sites = Sites::set_up("");
    sites.a.start();
    sites.ticket().write_file(&sites.b.path("a.ticket")).expect("room");
    sites.b.start();
    sites.drop_in("first", b"first");
    sites.reaches("first", State::Receipted);
    // It is unmounted while b waits for a.
    sites.a.kill();
    sites.b_says("a: waits for the sender");
    let (inbox, away) = (sites.b.path("inbox"), sites.b.path("away"));
    fs::rename(&inbox, &away).expect("a folder");
    fs::create_dir(&inbox).expect("room");
    sites.a.start();
    sites.drop_in("second", b"second");
    sites.b_says("a: cannot take part");
    assert_eq!(fs::read_dir(&inbox).expect("a folder").count(), 0);
    fs::remove_dir(&inbox).expect("it is empty");
    fs::rename(&away, &inbox).expect("a folder");
    sites.reaches("second", State::Receipted);
    sites.is_at_b("second", "new/second", b"second");
}

#[test]
fn what_is_under_way_arrives_before_it_ends() {
    let mut sites = Sites::set_up("[site]\ndrain = \"4min\"");
    // It is under way for twelve seconds, in which a claims what is late.
    sites.a.configure("[multicast]\nrate = \"4mbit\"");
    sites.a.start();
    sites.ticket().write_file(&sites.b.path("a.ticket")).expect("room");
    sites.b.start();
    sites.b_says("a: takes part");
    let bytes = content(SIZE);
    sites.drop_in("slow", &bytes);
    is_under_way(&sites.b, "a");
    sites.b.signal("TERM");
    sites.drop_in("late", b"late");
    assert_eq!(sites.b.ended(), Some(0), "{}", sites.b.log());
    sites.reaches("slow", State::Receipted);
    sites.is_at_b("slow", "new/slow", &bytes);
    // Refused, it would wait though b is back.
    until(&format!("b is away for it\n{}", sites.b.log()), || {
        let attempts = sites.a.reader().attempts(known(&sites.a, "late")?.id).expect("rows");
        let away = Some(ErrorClass::DestinationUnreachable);
        attempts.iter().any(|attempt| attempt.error == away).then_some(())
    });
    sites.b.start();
    sites.reaches("late", State::Receipted);
    sites.is_at_b("late", "new/late", b"late");
}

/// Waits until b has some of a file of this site.
fn is_under_way(b: &SiteProcess, from: &str) {
    let lane = b.path(&format!("inbox/.downpour/multicast-{from}"));
    until(&format!("some of it is there\n{}", b.log()), || {
        let mut staged = fs::read_dir(&lane).ok()?.flatten();
        staged
            .any(|part| part.file_name().as_encoded_bytes().starts_with(b"product-"))
            .then_some(())
    });
}

#[test]
fn as_it_drains_no_session_waits_for_what_comes_in_another() {
    let mut sites = Sites::set_up("");
    let mut c = SiteProcess::new(sites.folder.path(), "c");
    c.trust(&sites.b.card);
    sites.b.trust(&c.card);
    sites.b.configure("multicast = \"c.ticket\"");
    let spool = sites.folder.path().join("spool-of-c");
    sends_to_b(&c, &sites.b, &spool);
    // Its file takes longer than anything is waited for.
    c.configure("[multicast]\nrate = \"1mbit\"");
    sites.a.start();
    c.start();
    sites.ticket().write_file(&sites.b.path("a.ticket")).expect("room");
    ticket_of(&c).write_file(&sites.b.path("c.ticket")).expect("room");
    sites.b.start();
    sites.b_says("a: takes part");
    sites.b_says("c: takes part");
    drop_file(&spool.join("slow"), &content(4 * SIZE));
    is_under_way(&sites.b, "c");
    // It waits for the end.
    let mut drains = sites.b.command(&["service", "drain", "listen"]).spawn().expect("it runs");
    sites.b_says("a: takes no part");
    sites.b_says("c: takes part");
    drains.kill().expect("it waits");
    drains.wait().expect("it has ended");
}

#[test]
fn killed_at_any_step_of_the_record_it_has_the_file_in_the_end() {
    let mut sites = Sites::set_up("");
    sites.a.start();
    sites.ticket().write_file(&sites.b.path("a.ticket")).expect("room");
    for point in ["log.before", "adopt.before", "adopt.after"] {
        let mut command = sites.b.command(&["serve"]);
        command.env("DOWNPOUR_KILL_AT", point);
        sites.b.start_command(command);
        sites.drop_in(point, point.as_bytes());
        until("it dies", || (!sites.b.runs()).then_some(()));
        sites.b.kill();
        sites.b.start();
        sites.reaches(point, State::Receipted);
        sites.is_at_b(point, &format!("new/{point}"), point.as_bytes());
        sites.b.kill();
    }
}

#[test]
fn what_it_has_lost_comes_again_by_the_session() {
    let mut sites = Sites::set_up("");
    sites.a.start();
    sites.ticket().write_file(&sites.b.path("a.ticket")).expect("room");
    sites.b.start();
    for name in ["one", "two", "three"] {
        sites.drop_in(name, name.as_bytes());
        sites.reaches(name, State::Receipted);
    }
    let at = sites.b.path("inbox/new/two");
    fs::remove_file(&at).expect("it is there");
    lost_at(&sites.b, &sites.a);
    until(&format!("it comes again\n{}", sites.a.log()), || at.exists().then_some(()));
    sites.reaches("two", State::Receipted);
    sites.is_at_b("two", "new/two", b"two");
}

#[test]
fn a_wrong_ticket_a_strange_key_and_a_taken_place_are_told_and_nothing_is_replaced() {
    let mut sites = Sites::set_up("");
    sites.a.start();
    let good = sites.ticket();
    let at = sites.b.path("a.ticket");
    // Of a sender that b does not know.
    let mut other = good.clone();
    other.key = sites.b.card.key;
    other.write_file(&at).expect("room");
    sites.b.start();
    sites.b_says("which is not the key of a");
    let check = sites.b.run(&["check", sites.b.config().to_str().expect("text")]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.status.code() == Some(1) && said.contains("not the key of a"), "{said}");
    fs::write(&at, "downpour1:abc").expect("room");
    sites.b_says("a.ticket: the end of the ticket is missing");
    // A ticket with which nobody is let in.
    let mut strange = good.clone();
    strange.token = downpour_transport::control::Token::random().expect("random");
    strange.write_file(&at).expect("room");
    until("it is refused", || {
        let text = sites.b.done(&["service", "status"]);
        (text.contains("a: cannot take part: ") && !text.contains("a.ticket")).then_some(())
    });
    good.write_file(&at).expect("room");
    sites.b_says("a: takes part");
    // What lies there already stays.
    fs::create_dir_all(sites.b.path("inbox/new")).expect("room");
    fs::write(sites.b.path("inbox/new/taken"), "mine").expect("room");
    sites.drop_in("taken", b"theirs");
    sites.reaches("taken", State::Quarantined);
    assert_eq!(fs::read(sites.b.path("inbox/new/taken")).expect("it is there"), b"mine");
    assert!(known(&sites.b, "taken").is_none(), "b has no replica");
    // The operator stops and starts it.
    sites.b.done(&["service", "stop", "listen"]);
    sites.drop_in("later", b"later");
    until("a knows of it", || known(&sites.a, "later"));
    sites.b.done(&["service", "start", "listen"]);
    sites.reaches("later", State::Receipted);
    sites.is_at_b("later", "new/later", b"later");
    // A name without its key is no site.
    let text = fs::read_to_string(sites.a.config()).expect("a configuration");
    let (before, receiver) = text.rsplit_once("[[receiver]]").expect("its section");
    let (of_b, of_a) = (sites.b.card.key.to_string(), sites.a.card.key.to_string());
    let wrong = format!("{before}[[receiver]]{}", receiver.replace(&of_b, &of_a));
    fs::write(sites.a.config(), wrong).expect("room");
    let check = sites.a.run(&["check", sites.a.config().to_str().expect("text")]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(said.contains("[[remote]] b has this name or this key, not both"), "{said}");
}
