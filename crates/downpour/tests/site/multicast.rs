//! Files of a rule with named receivers: one standing session, receivers that are away, and that are killed.

use super::harness::{One, SiteProcess, drop_file, until};
use downpour::receipt::SignedFileReceipt;
use downpour::site::SiteEvent;
use downpour_catalog::{CatalogUrl, DeliveryState, FileId, Reader, SessionId, State};
use downpour_transport::control;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A named receiver: `downpour receive --stay`, in a folder of its own.
struct Machine {
    name: &'static str,
    folder: PathBuf,
    key: String,
    child: Option<Child>,
}

impl Machine {
    fn new(root: &Path, name: &'static str) -> Self {
        let mut this = Self { name, folder: root.join(name), key: String::new(), child: None };
        fs::create_dir_all(&this.folder).unwrap();
        let output = this.command(&["ticket", "key"]).output().unwrap();
        this.key = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        assert_eq!(this.key.len(), 43, "{this:?}", this = this.key);
        this
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_downpour"));
        command.args(arguments).env("DOWNPOUR_HOME", self.folder.join("home"));
        command.stdin(Stdio::null());
        command
    }

    fn start(&mut self, ticket: &Path) {
        let ticket = format!("@{}", ticket.display());
        let out = self.folder.join("in");
        let out = out.to_str().unwrap();
        let mut command = self.command(&["receive", &ticket, "--out", out, "--name", self.name]);
        let log = File::options().create(true).append(true).open(self.folder.join("log")).unwrap();
        command.args(["--stay", "--interface", "lo"]).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn content(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.folder.join("in").join(name)).ok()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

struct World {
    one: One,
    machines: Vec<Machine>,
    spool: tempfile::TempDir,
    root: tempfile::TempDir,
}

/// A site whose only rule sends everything to three receivers, none of which is there yet.
fn world(required: &str) -> World {
    let (root, spool) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let machines: Vec<_> =
        ["m1", "m2", "m3"].into_iter().map(|name| Machine::new(root.path(), name)).collect();
    let port = crate::ports::port();
    let mut config = format!(
        "\n[multicast]\nport = {port}\nhost = \"127.0.0.1\"\ninterface = \"lo\"\nrate = \"200mbit\"\n\
         [[spool]]\nfolder = {:?}\ncomplete = \"settle:200ms\"\nrescan = \"1s\"\n\
         [[rule]]\nname = \"farm\"\nmatch = \"*\"\nreceivers = [\"m1\", \"m2\", \"m3\"]\n\
         required = {required}\ninto = \"new/{{name}}\"\n",
        spool.path()
    );
    for machine in &machines {
        config += &format!("[[receiver]]\nname = {:?}\nkey = {:?}\n", machine.name, machine.key);
    }
    World { one: One::start(&config), machines, spool, root }
}

impl World {
    fn site(&self) -> &SiteProcess {
        &self.one.site
    }

    fn ticket(&self) -> PathBuf {
        let ticket = self.site().path("state/multicast.ticket");
        until("there is a ticket", || ticket.exists().then_some(()));
        ticket
    }

    fn begin(&mut self, which: &[usize]) {
        let ticket = self.ticket();
        which.iter().for_each(|index| self.machines[*index].start(&ticket));
    }

    fn drop_in(&self, name: &str, content: &[u8]) {
        let path = self.spool.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        drop_file(&path, content);
    }

    fn catalog(&self) -> Reader {
        let url = CatalogUrl::Sqlite(self.site().path("state/catalog.db"));
        Reader::open(&url).expect("a catalog")
    }

    fn file(&self, name: &str) -> Option<downpour_catalog::File> {
        let mut reader = self.catalog();
        let sites = reader.sites().unwrap();
        let (a, _) = sites.iter().find(|(_, name)| name == "a")?;
        reader.versions(*a, name).unwrap().pop()
    }

    fn reaches(&self, name: &str, state: State) -> FileId {
        let logs = || self.machines.iter().map(Machine::log).collect::<String>();
        until(&format!("{name} is {state}: {}\n{}", self.site().log(), logs()), || {
            self.file(name).filter(|file| file.state == state).map(|file| file.id)
        })
    }

    /// Who has signed for a file, by name; each receipt must hold.
    fn signed(&self, file: FileId) -> Vec<&str> {
        let receipts = self.catalog().receipts(file).unwrap();
        let name = |receipt: &downpour_catalog::Receipt| {
            let signed = SignedFileReceipt::from_bytes(&receipt.signed).unwrap();
            signed.verify().unwrap();
            let key = signed.receipt.receiver.to_string();
            self.machines.iter().find(|machine| machine.key == key).unwrap().name
        };
        let mut names: Vec<_> = receipts.iter().map(name).collect();
        names.sort_unstable();
        names
    }

    /// The last word on each receiver's delivery of a file, over all sessions.
    fn deliveries(&self, file: FileId) -> BTreeMap<Vec<u8>, DeliveryState> {
        let mut reader = self.catalog();
        let receipts = reader.receipts(file).unwrap();
        let session = |receipt: &downpour_catalog::Receipt| {
            let signed = SignedFileReceipt::from_bytes(&receipt.signed).unwrap();
            let id = control::SessionId::from_text(&signed.receipt.session).unwrap();
            let (head, _) = id.as_bytes().split_first_chunk().unwrap();
            SessionId(i64::from_le_bytes(*head) & i64::MAX)
        };
        let sessions: BTreeSet<_> = receipts.iter().map(session).collect();
        let of = |session: &SessionId| reader.deliveries(*session).unwrap();
        let all = sessions.iter().flat_map(of).filter(|delivery| delivery.file == file);
        let complete = |state| state == DeliveryState::Complete;
        let mut last = BTreeMap::new();
        for delivery in all {
            let kept = last.entry(delivery.receiver).or_insert(delivery.state);
            *kept = if complete(*kept) { *kept } else { delivery.state };
        }
        last
    }
}

/// Bytes that do not compress, the same each time.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

#[test]
fn one_is_away_at_first_and_one_is_killed_and_all_have_all_in_the_end() {
    let mut world = world("\"all\"");
    world.begin(&[0, 1]);
    let mut contents: BTreeMap<String, Vec<u8>> =
        (0..20).map(|n| (format!("run/{n}"), bytes(n as usize * 10_000, n))).collect();
    for (name, content) in &contents {
        world.drop_in(name, content);
    }
    // Those who are there have them; the third is what each file waits for.
    let first = until("two have the first", || {
        let file = world.file("run/7")?;
        (world.signed(file.id) == ["m1", "m2"]).then_some(file)
    });
    assert_ne!(first.state, State::Receipted);
    let why = until("it waits", || {
        let text = world.site().done(&["transfer", "why", &first.id.0.to_string()]);
        text.contains("m3").then_some(text)
    });
    assert!(why.contains("away"), "{why}");
    // It is in nobody's way, and does not go before somebody is there who lacks it.
    let stays =
        until("it is queued", || world.file("run/7").filter(|file| file.state == State::Queued));
    contents.insert("later".to_owned(), bytes(10_000, 98));
    world.drop_in("later", &contents["later"]);
    until("two have the later one", || {
        let file = world.file("later")?;
        (world.signed(file.id) == ["m1", "m2"]).then_some(())
    });
    assert_eq!(world.file("run/7").map(|file| file.revision), Some(stays.revision));
    // A large one, in the middle of which the second is killed.
    contents.insert("large".to_owned(), bytes(60_000_000, 99));
    world.drop_in("large", &contents["large"]);
    let staged = world.machines[1].folder.join("in/.downpour");
    until("the large one arrives at the second, or is there already", || {
        let mut parts = fs::read_dir(&staged).ok()?.flatten();
        let long = |entry: fs::DirEntry| entry.metadata().is_ok_and(|meta| meta.len() > 1_000_000);
        let is_there = world.machines[1].folder.join("in/new/large").exists();
        (is_there || parts.any(long)).then_some(())
    });
    world.machines[1].kill();
    world.begin(&[1, 2]);
    for (name, content) in &contents {
        let file = world.reaches(name, State::Receipted);
        assert_eq!(world.signed(file), ["m1", "m2", "m3"], "{name}");
        let deliveries = world.deliveries(file);
        assert_eq!(deliveries.len(), 3, "{name}");
        assert!(deliveries.values().all(|state| *state == DeliveryState::Complete), "{name}");
        for machine in &world.machines {
            let placed = machine.content(&format!("new/{name}"));
            assert!(placed.as_ref() == Some(content), "{name} at {}", machine.name);
        }
    }
    until("all are there", || {
        let status = world.site().done(&["service", "status"]);
        status.contains("3 of 3 receivers are there").then_some(())
    });
}

#[test]
fn a_file_is_verified_when_as_many_have_it_as_its_rule_requires() {
    let mut world = world("2");
    // Nobody is there: it stays in the queue.
    world.drop_in("early", b"early");
    let file = world.reaches("early", State::Queued);
    let why = world.site().done(&["transfer", "why", &file.0.to_string()]);
    assert!(why.contains("no receiver"), "{why}");
    world.begin(&[0]);
    until("the first has it", || (world.signed(file) == ["m1"]).then_some(()));
    assert_ne!(world.file("early").unwrap().state, State::Receipted);
    world.begin(&[2]);
    world.reaches("early", State::Receipted);
    assert_eq!(world.signed(file), ["m1", "m3"]);
    // The site is killed and comes back: its receivers find it again, by the same ticket.
    world.one.site.kill();
    world.drop_in("late", b"late");
    world.one.site.start();
    let late = world.reaches("late", State::Receipted);
    assert!(world.signed(late).len() >= 2);
    // What lies at a file's place already is not replaced.
    for machine in [0, 2] {
        fs::write(world.machines[machine].folder.join("in/new/taken"), b"mine").unwrap();
    }
    world.drop_in("taken", b"theirs");
    world.reaches("taken", State::Quarantined);
    assert_eq!(world.machines[0].content("new/taken").unwrap(), b"mine");
    let past = world.site().done(&["events", "--past", "--json"]);
    let told = past.lines().map(|line| serde_json::from_str::<SiteEvent>(line).unwrap());
    let trouble = told.filter(|event| event.kind == SiteEvent::TROUBLE).map(|event| event.about);
    let at: BTreeSet<_> = trouble
        .filter(|about| about["name"] == "taken" && about["class"] == "version-conflict")
        .map(|about| about["site"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(at.into_iter().collect::<Vec<_>>(), ["m1", "m3"], "{past}");
}

#[test]
fn a_file_that_as_many_have_as_must_comes_to_its_end_while_nobody_is_there() {
    let mut world = world("2");
    world.begin(&[0]);
    world.drop_in("f", b"f");
    let file = until("the first has it", || {
        let file = world.file("f")?.id;
        (world.signed(file) == ["m1"]).then_some(file)
    });
    // The others are not expected back.
    world.reaches("f", State::Queued);
    world.machines[0].kill();
    world.one.site.kill();
    let config = fs::read_to_string(world.site().config()).unwrap();
    let fewer = config.replace("required = 2", "required = 1");
    fs::write(world.site().config(), fewer).unwrap();
    world.one.site.start();
    world.reaches("f", State::Receipted);
    assert_eq!(world.signed(file), ["m1"]);
}

#[test]
fn the_service_stops_drains_and_starts_and_nobody_else_gets_in() {
    let mut world = world("\"all\"");
    world.begin(&[0, 1, 2]);
    world.drop_in("one", b"1");
    world.reaches("one", State::Receipted);
    world.site().done(&["service", "stop", "multicast"]);
    world.drop_in("two", b"2");
    let two = world.reaches("two", State::Queued);
    let why = world.site().done(&["transfer", "why", &two.0.to_string()]);
    assert!(why.contains("not open"), "{why}");
    world.site().done(&["service", "start", "multicast"]);
    world.reaches("two", State::Receipted);
    world.site().done(&["service", "drain", "multicast"]);
    world.drop_in("three", b"3");
    let three = world.reaches("three", State::Queued);
    world.site().done(&["service", "start", "multicast"]);
    world.reaches("three", State::Receipted);
    assert_eq!(world.signed(three), ["m1", "m2", "m3"]);
    let stranger = Machine::new(world.root.path(), "stranger");
    let ticket = format!("@{}", world.ticket().display());
    let out = stranger.folder.join("in");
    let refused = stranger.command(&["receive", &ticket, "--out", out.to_str().unwrap()]).output();
    let refused = refused.unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("not on it"), "{said}");
}
