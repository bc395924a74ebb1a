//! Files that arrive, and files that are there already.

use crate::bench::{Bench, open_catalog};
use downpour::site::Wish;
use downpour::spool::{Adoption, Arrivals, Now, RuleSection, Rules, adopt, look_first, read_list};
use downpour_catalog::{
    AdoptedFile, BeforeMigration, Catalog, CatalogUrl, Change, Digest, DigestKind, FileId, Origin,
    OtherContent, Replica, ReplicaState, SiteId, State, Time, backup,
};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const NOW: Time = Time(1_790_000_000_000_000);

struct Receiver {
    folder: tempfile::TempDir,
    catalog: Arc<Catalog>,
    rules: Arc<Rules>,
}

impl Receiver {
    /// A site whose rule has this command.
    fn new(command: &str) -> Self {
        Self::within("60s", command)
    }

    /// A site whose rule has this command, which may take so long.
    fn within(time_max: &str, command: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open_catalog(folder.path());
        let out = folder.path().display().to_string();
        let text = format!(
            "name = 'in'\nmatch = '*'\nfrom = 'there'\ncommand = {}\ncommand_time_max = '{time_max}'",
            command.replace("OUT", &out)
        );
        let rule: RuleSection = toml::from_str(&text).unwrap();
        Self { folder, catalog, rules: Arc::new(Rules::new("here", &[rule])) }
    }

    fn open(&self) -> Arrivals {
        let place = self.folder.path().join("arrivals.json");
        Arrivals::open(self.catalog.clone(), self.rules.clone(), &place).unwrap()
    }

    fn arrives(&self, name: &str) -> FileId {
        self.arrives_at(name, NOW)
    }

    fn arrives_at(&self, name: &str, at: Time) -> FileId {
        let [here, there] = ["here", "there"].map(|site| self.catalog.site(site).unwrap());
        let path = self.folder.path().join(name).display().to_string();
        arrive((&self.catalog, at), there, name, vec![(here, path)])
    }

    fn out(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }
}

fn arrive(
    (catalog, at): (&Catalog, Time),
    site: SiteId,
    name: &str,
    replicas: Vec<(SiteId, String)>,
) -> FileId {
    let file = adopted(catalog, site, name, replicas);
    catalog.apply(at, &[Change::Adopt(file)]).unwrap()[0].clone().unwrap().file
}

fn adopted(
    catalog: &Catalog,
    site: SiteId,
    name: &str,
    replicas: Vec<(SiteId, String)>,
) -> AdoptedFile {
    AdoptedFile {
        site,
        name: name.to_owned(),
        size: 3,
        rule: catalog.rule("in").unwrap(),
        digest: Digest::blake3(*blake3::hash(b"abc").as_bytes()),
        others: Vec::new(),
        replicas,
        other_content: OtherContent::NewVersion,
        origin: None,
        receipt: None,
    }
}

fn at(seconds: i64) -> Now {
    Now { steady: Duration::from_secs(seconds as u64), wall: NOW.plus_s(seconds) }
}

/// Runs all that is due.
fn run(arrivals: &mut Arrivals, now: Now) {
    while arrivals.tick(now, &|| Wish::Run).unwrap() {}
}

#[test]
fn each_file_that_arrives_gets_its_command_once() {
    let receiver = Receiver::new(
        "['/bin/sh', '-c', 'echo \"$0 $DOWNPOUR_SIZE $DOWNPOUR_SITE $1\" >> OUT/log', '{stem}', '{path}']",
    );
    receiver.arrives("before the first start");
    let mut arrivals = receiver.open();
    receiver.arrives("run/a b.root");
    run(&mut arrivals, at(0));
    run(&mut arrivals, at(1));
    let path = receiver.folder.path().join("run/a b.root");
    assert_eq!(receiver.out("log"), format!("a b 3 there {}\n", path.display()));
    drop(arrivals);
    receiver.arrives("c");
    let mut arrivals = receiver.open();
    run(&mut arrivals, at(2));
    assert_eq!(receiver.out("log").lines().count(), 2);
    assert_eq!((arrivals.done(), arrivals.failing().len()), (1, 0));
}

#[test]
fn other_content_in_the_place_of_what_is_gone_gets_its_command_too() {
    let receiver = Receiver::new("['/bin/sh', '-c', 'echo $DOWNPOUR_BLAKE3 >> OUT/log']");
    let mut arrivals = receiver.open();
    let catalog = &receiver.catalog;
    let [here, there] = ["here", "there"].map(|site| catalog.site(site).unwrap());
    let apply = |change| catalog.apply(NOW, &[change]).unwrap()[0].clone().unwrap().file;
    let digests = [b"one", b"two"].map(|content| blake3::hash(content));
    for digest in &digests {
        let path = "/in/a".to_owned();
        let file = apply(Change::Adopt(AdoptedFile {
            digest: Digest::blake3(*digest.as_bytes()),
            // Whoever lost its catalog counts versions from 1 again.
            origin: Some(Origin { version: 1, taken_in: NOW }),
            ..adopted(catalog, there, "a", vec![(here, path.clone())])
        }));
        run(&mut arrivals, at(0));
        // Its command has removed it, as a scrub sees.
        apply(Change::Replica(Replica { file, site: here, path, state: ReplicaState::Lost }));
    }
    let [one, two] = digests.map(|digest| digest.to_hex());
    assert_eq!(receiver.out("log"), format!("{one}\n{two}\n"));
}

#[test]
fn what_was_passed_over_is_not_for_a_command_that_comes_later() {
    // As many as are read at once, and more than that of which only these were read.
    for files in [100, 150] {
        let mut receiver = Receiver::new("['/bin/sh', '-c', 'echo $0 >> OUT/log', '{name}']");
        let with_command =
            std::mem::replace(&mut receiver.rules, Arc::new(Rules::new("here", &[])));
        let mut arrivals = receiver.open();
        for number in 0..files {
            receiver.arrives(&number.to_string());
        }
        let kept = || receiver.out("arrivals.json");
        let before = kept();
        match files {
            100 => {
                run(&mut arrivals, at(0));
                assert_ne!(kept(), before, "also if it is killed now");
            }
            _ => assert!(arrivals.tick(at(0), &|| Wish::Run).unwrap()),
        }
        drop(arrivals);
        receiver.rules = with_command;
        receiver.arrives("late");
        run(&mut receiver.open(), at(1));
        assert_eq!(receiver.out("log").lines().count(), files - 99);
    }
}

#[test]
fn what_is_open_is_not_forgotten_because_it_could_not_be_read_once() {
    let receiver = Receiver::new("['/bin/sh', '-c', 'echo $0 >> OUT/log', '{name}']");
    let mut arrivals = receiver.open();
    receiver.arrives("a");
    run(&mut arrivals, at(0));
    drop(arrivals);
    receiver.arrives("b");
    let [place, aside] = ["arrivals.json", "aside"].map(|n| receiver.folder.path().join(n));
    fs::rename(&place, &aside).unwrap();
    fs::create_dir(&place).unwrap();
    let opened = Arrivals::open(receiver.catalog.clone(), receiver.rules.clone(), &place);
    assert!(opened.is_err_and(|error| error.to_string().contains("arrivals.json")));
    fs::remove_dir(&place).unwrap();
    fs::rename(&aside, &place).unwrap();
    run(&mut receiver.open(), at(1));
    assert_eq!(receiver.out("log"), "a\nb\n");
    // Where it is damaged that is said, and it is kept.
    fs::write(&place, "{").unwrap();
    receiver.arrives("c");
    let mut arrivals = receiver.open();
    receiver.arrives("d");
    run(&mut arrivals, at(2));
    assert_eq!(receiver.out("log"), "a\nb\nd\n");
    assert_eq!(receiver.out("arrivals.damaged"), "{");
}

#[test]
fn after_a_catalog_is_made_again_commands_run_for_what_arrives_from_then_on() {
    let command = "['/bin/sh', '-c', 'echo $0 >> OUT/log; test $0 != bad', '{name}']";
    let mut receiver = Receiver::new(command);
    let mut arrivals = receiver.open();
    let old = ["one", "two", "three", "bad"];
    for name in old {
        receiver.arrives(name);
    }
    run(&mut arrivals, at(1));
    assert_eq!((receiver.out("log").lines().count(), arrivals.failing().len()), (4, 1));
    drop(arrivals);
    // As `catalog rebuild` does it, under a name of its own.
    let again = receiver.folder.path().join("again");
    fs::create_dir(&again).unwrap();
    let url = CatalogUrl::Sqlite(again.join("catalog.db"));
    receiver.catalog =
        Arc::new(Catalog::open(&url, "rebuild", NOW, &BeforeMigration::Refuse).unwrap());
    for name in old {
        receiver.arrives_at(name, NOW.plus_s(100));
    }
    receiver.catalog = open_catalog(&again);
    receiver.arrives_at("early", NOW.plus_s(101));
    let mut arrivals = receiver.open();
    receiver.arrives_at("late", NOW.plus_s(102));
    run(&mut arrivals, at(103));
    let log = receiver.out("log");
    assert_eq!(log.lines().skip(4).collect::<Vec<_>>(), ["early", "late"]);
    assert!(arrivals.failing().is_empty(), "{:?}", arrivals.failing());
    // Once.
    drop(arrivals);
    run(&mut receiver.open(), at(104));
    assert_eq!(receiver.out("log"), log);
}

#[test]
fn after_a_catalog_is_set_back_numbers_come_again_and_commands_run() {
    let mut receiver = Receiver::new("['/bin/sh', '-c', 'echo $0 >> OUT/log', '{name}']");
    let mut arrivals = receiver.open();
    receiver.arrives("one");
    let [from, to] = ["catalog.db", "earlier/catalog.db"].map(|n| receiver.folder.path().join(n));
    fs::create_dir(to.parent().unwrap()).unwrap();
    backup(&CatalogUrl::Sqlite(from), &to).unwrap();
    receiver.arrives_at("forgotten", NOW.plus_s(1));
    run(&mut arrivals, at(2));
    drop(arrivals);
    receiver.catalog = open_catalog(to.parent().unwrap());
    // Before the commands are looked at, there are as many events again.
    receiver.arrives_at("two", NOW.plus_s(3));
    receiver.arrives_at("three", NOW.plus_s(4));
    run(&mut receiver.open(), at(5));
    assert_eq!(receiver.out("log"), "one\nforgotten\ntwo\nthree\n");
}

#[test]
fn a_command_that_fails_is_tried_again_and_then_listed() {
    let receiver = Receiver::new(
        "['/bin/sh', '-c', 'echo x >> OUT/log; echo no room >&2; test -e OUT/mended']",
    );
    let mut arrivals = receiver.open();
    let file = receiver.arrives("a");
    for seconds in 0..2000 {
        run(&mut arrivals, at(seconds));
    }
    assert_eq!(receiver.out("log").lines().count(), 5);
    drop(arrivals);
    let mut arrivals = receiver.open();
    let [failing] = arrivals.failing() else { panic!("{:?}", arrivals.failing()) };
    assert_eq!((failing.file, failing.tries, failing.next_try), (file.0, 5, None));
    assert_eq!(failing.text, "/bin/sh: exit status: 1: no room");
    fs::write(receiver.folder.path().join("mended"), "").unwrap();
    assert!(arrivals.retry(at(2000), file.0));
    run(&mut arrivals, at(2001));
    assert_eq!((arrivals.done(), arrivals.failing().len()), (1, 0));
    assert!(!arrivals.retry(at(2002), file.0));
}

#[test]
fn what_is_to_be_tried_again_is_not_forgotten_for_what_arrives() {
    const MANY: i64 = 10_000;
    for has_one_failed_for_good in [false, true] {
        let receiver = Receiver::new("['/bin/sh', '-c', 'echo $0 >> OUT/log; false', '{name}']");
        let failing = |file| {
            let at = NOW.plus_s(600).0.to_string();
            let next = if has_one_failed_for_good && file == 7 { "null" } else { at.as_str() };
            format!(r#"{{"file":{file},"name":"x","tries":1,"next_try":{next},"text":""}}"#)
        };
        let open = (0..MANY).map(failing).collect::<Vec<_>>().join(",");
        let notes = format!(r#"{{"seen":0,"failing":[{open}]}}"#);
        fs::write(receiver.folder.path().join("arrivals.json"), notes).unwrap();
        receiver.arrives("late");
        let mut arrivals = receiver.open();
        run(&mut arrivals, at(0));
        assert!(arrivals.is_full());
        let is_open = |file| arrivals.failing().iter().any(|failing| failing.file == file);
        assert_eq!((is_open(0), is_open(7)), (true, !has_one_failed_for_good));
        assert_eq!(receiver.out("log").is_empty(), !has_one_failed_for_good);
        assert_eq!(arrivals.failing().len() as i64, MANY);
    }
}

#[test]
fn a_command_that_failed_while_the_clock_was_ahead_is_tried_again() {
    let receiver = Receiver::new("['/bin/sh', '-c', 'echo >> OUT/log; test -e OUT/mended']");
    let mut arrivals = receiver.open();
    receiver.arrives("a");
    run(&mut arrivals, at(10 * 365 * 86_400));
    assert_eq!(arrivals.failing().len(), 1);
    fs::write(receiver.folder.path().join("mended"), "").unwrap();
    run(&mut arrivals, at(0));
    assert_eq!((arrivals.done(), arrivals.failing().len()), (1, 0));
}

#[test]
fn a_command_that_does_not_end_is_ended() {
    let receiver = Receiver::within("1s", "['/bin/sh', '-c', 'sleep 1000 & sleep 1000']");
    let mut arrivals = receiver.open();
    receiver.arrives("a");
    run(&mut arrivals, at(0));
    assert!(arrivals.failing()[0].text.contains("ended after 1s"), "{:?}", arrivals.failing());
}

#[test]
fn a_command_that_is_cut_off_begins_again_and_a_drain_lets_it_end() {
    let receiver = Receiver::new(
        "['/bin/sh', '-c', 'echo $$ >> OUT/log; test -e OUT/mended || exec sleep 1000']",
    );
    let mut arrivals = receiver.open();
    receiver.arrives("a");
    let begun = || receiver.out("log").ends_with('\n');
    let stop_within = || if begun() { Wish::Stop } else { Wish::Run };
    arrivals.tick(at(0), &stop_within).unwrap();
    let process = format!("/proc/{}", receiver.out("log").trim());
    assert!(!Path::new(&process).exists(), "{process}");
    assert_eq!((arrivals.done(), arrivals.failing().len()), (0, 0));
    drop(arrivals);
    fs::write(receiver.folder.path().join("mended"), "").unwrap();
    let mut arrivals = receiver.open();
    receiver.arrives("b");
    let began = receiver.out("log");
    let drain_within = || if receiver.out("log") == began { Wish::Run } else { Wish::Drain };
    arrivals.tick(at(1), &drain_within).unwrap();
    assert!(!arrivals.tick(at(1), &drain_within).unwrap());
    assert_eq!((arrivals.done(), receiver.out("log").lines().count()), (1, 2));
    run(&mut arrivals, at(2));
    assert_eq!((arrivals.done(), receiver.out("log").lines().count()), (2, 3));
}

#[test]
fn a_failed_command_goes_when_no_rule_has_it_any_more() {
    let mut receiver = Receiver::new("['/bin/false']");
    let mut arrivals = receiver.open();
    let files = ["a", "b"].map(|name| receiver.arrives(name));
    run(&mut arrivals, at(0));
    assert_eq!(arrivals.failing().len(), 2);
    drop(arrivals);
    receiver.rules = Arc::new(Rules::new("here", &[]));
    let mut arrivals = receiver.open();
    run(&mut arrivals, at(20));
    assert!(arrivals.failing().is_empty(), "{:?}", arrivals.failing());
    assert!(!arrivals.retry(at(21), files[0].0));
    drop(arrivals);
    assert!(receiver.open().failing().is_empty());
}

fn adoption(catalog: &Catalog, folder: &Path) -> Adoption {
    let site = catalog.site("here").unwrap();
    Adoption {
        folder: folder.to_owned(),
        site,
        here: site,
        also: vec![(catalog.site("there").unwrap(), "/far".to_owned())],
        prefix: "old/".to_owned(),
        rule: catalog.rule("adopted").unwrap(),
        kinds: vec![DigestKind::Md5],
        other_content: OtherContent::Refuse,
        sums: None,
    }
}

#[test]
fn files_that_are_there_are_adopted_as_they_lie() {
    let mut bench = Bench::new("", "");
    bench.stop();
    bench.write("run/a", "abc");
    bench.write("b", "other");
    let mut what = adoption(&bench.catalog, &bench.path(""));
    let done = adopt(&bench.catalog, NOW, &what).unwrap();
    assert_eq!((done.new, done.known, done.bytes), (2, 0, 8), "{done:?}");
    let file = bench.newest("old/run/a");
    assert_eq!(file.state, State::Adopted);
    let paths: Vec<_> = bench.replicas(&file).into_iter().map(|replica| replica.path).collect();
    assert_eq!(paths, [bench.path("run/a").display().to_string(), "/far/run/a".to_owned()]);
    let mut reader = bench.catalog.reader().unwrap();
    let md5 = reader.digests(file.id).unwrap().pop().unwrap();
    assert_eq!(md5.hex(), "900150983cd24fb0d6963f7d28e17f72");
    // Again, with other content in one of them.
    bench.write("b", "newer");
    let done = adopt(&bench.catalog, NOW, &what).unwrap();
    assert_eq!((done.new, done.known, done.left_out.len()), (0, 1, 1), "{done:?}");
    what.other_content = OtherContent::NewVersion;
    assert_eq!(adopt(&bench.catalog, NOW, &what).unwrap().new, 1);
    assert_eq!(bench.newest("old/b").version, 2);
    assert_eq!(fs::read(bench.path("b")).unwrap(), b"newer");
    // A name may be made to paint a terminal.
    bench.write("\u{1b}[2J", "abc");
    assert_eq!(adopt(&bench.catalog, NOW, &what).unwrap().left_out, Vec::<String>::new());
    bench.write("\u{1b}[2J", "other");
    what.other_content = OtherContent::Refuse;
    let done = adopt(&bench.catalog, NOW, &what).unwrap();
    assert_eq!(done.left_out.len(), 1, "{done:?}");
    assert!(!done.left_out[0].contains('\u{1b}'), "{done:?}");
}

#[test]
fn a_list_is_believed_or_compared() {
    let mut bench = Bench::new("", "");
    bench.stop();
    bench.write("a", "abc");
    bench.write("b", "abd");
    let mut what = adoption(&bench.catalog, &bench.path(""));
    let md5 = "900150983cd24fb0d6963f7d28e17f72";
    let list = read_list(&format!("{md5}  ./a\n{md5}  b\n"), DigestKind::Md5).unwrap();
    what.sums = Some(list);
    let done = adopt(&bench.catalog, NOW, &what).unwrap();
    assert_eq!((done.new, done.left_out.len()), (1, 1), "{done:?}");
    assert!(done.left_out[0].contains("another md5"), "{done:?}");
    // BLAKE3 is taken on the list's word: the file is not read.
    let word = blake3::hash(b"what it was");
    let list = read_list(&format!("{word}  b\n{word}  a"), DigestKind::Blake3).unwrap();
    what.sums = Some(list);
    (what.kinds, what.prefix) = (Vec::new(), "word/".to_owned());
    assert_eq!(adopt(&bench.catalog, NOW, &what).unwrap().new, 2);
    assert_eq!(bench.newest("word/b").digest.unwrap().hex(), word.to_hex().as_str());
    assert!(read_list("nonsense", DigestKind::Md5).is_err());
}

#[test]
fn a_list_of_another_kind_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "abc").unwrap();
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let looked = |kind, digest: &str| {
        let list = read_list(&format!("{sha256}  gone\n{digest}  a"), kind).unwrap();
        look_first(folder.path(), Some(&list))
    };
    let text = looked(DigestKind::Blake3, sha256).unwrap_err();
    assert!(text.contains("--sums-kind sha256"), "{text}");
    let blake3 = blake3::hash(b"abc").to_hex();
    let text = looked(DigestKind::Sha256, &blake3).unwrap_err();
    assert!(text.contains("--sums-kind blake3"), "{text}");
    looked(DigestKind::Sha256, sha256).unwrap();
    // Of a file that has changed.
    looked(DigestKind::Blake3, blake3::hash(b"what it was").to_hex().as_str()).unwrap();
    assert!(look_first(&folder.path().join("nope"), None).is_err());
    // What is hidden is not taken, and a long one is not read first.
    fs::rename(folder.path().join("a"), folder.path().join(".a")).unwrap();
    fs::File::create(folder.path().join("long")).unwrap().set_len(1 << 40).unwrap();
    let list = format!("{sha256}  .a\n{sha256}  long");
    look_first(folder.path(), Some(&read_list(&list, DigestKind::Blake3).unwrap())).unwrap();
}
