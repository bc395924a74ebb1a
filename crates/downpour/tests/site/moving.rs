//! Files from site to site, by the real program.

use crate::fetching::content;
use crate::harness::{SiteProcess, Two, drop_file, until};
use crate::skipped::skipped;
use crate::watching::happened;
use downpour::dispatch::{
    Done, KILL_POINTS, Submission, Submitted, TransferReport, Transfers, WhyList,
};
use downpour::receipt::SignedFileReceipt;
use downpour::site::{EventId, SiteEvent};
use downpour_catalog::{CatalogUrl, ErrorClass, FileId, Query, Reader, State};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Two sites that may submit what is in their folder `data`.
fn two() -> Two {
    Two::start(["[transfer]\nfolders = [\"data\"]\nports = \"31000-31199\""; 2])
}

/// Changes a line of a site's configuration.
fn edit(site: &SiteProcess, line: &str, to: &str) {
    let text = fs::read_to_string(site.config()).expect("a configuration");
    assert!(text.lines().any(|l| l == line), "{line}");
    let change = |l: &str| if l == line { to.to_owned() } else { l.to_owned() };
    let lines: Vec<_> = text.lines().map(change).collect();
    fs::write(site.config(), lines.join("\n") + "\n").expect("room");
}

/// Writes files into a site's folder; their names and contents.
fn files(site: &SiteProcess, folder: &str, count: usize, len: usize) -> Vec<(String, Vec<u8>)> {
    let file = |number: usize| {
        let name = format!("{folder}/{}/file {number}.dat", number % 3);
        let seed = format!("{name} of {}", site.card.name).into_bytes();
        (name, seed.into_iter().cycle().take(len + number).collect::<Vec<u8>>())
    };
    let files: Vec<_> = (0..count).map(file).collect();
    for (name, content) in &files {
        let path = site.path("data").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("room");
        fs::write(path, content).expect("room");
    }
    files
}

fn data(site: &SiteProcess, folder: &str) -> String {
    site.path("data").join(folder).to_str().expect("text").to_owned()
}

fn reader(site: &SiteProcess) -> Reader {
    Reader::open(&CatalogUrl::Sqlite(site.path("state/catalog.db"))).expect("a catalog")
}

/// Submits a folder; the transfer's number.
fn submit(site: &SiteProcess, folder: &str, to: &str) -> i64 {
    let text = site.done(&["transfer", "submit", &data(site, folder), to, "--json"]);
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    answer["submitted"][0]["transfer"].as_i64().expect("a number")
}

/// Waits until all files of a transfer are receipted.
fn arrived(site: &SiteProcess, transfer: i64, count: usize) {
    until(&format!("transfer {transfer} is there\n{}", site.log()), || {
        let now: TransferReport = site.get(&format!("/v1/transfers/{transfer}")).ok()?;
        let receipted = now.states.get("receipted").copied().unwrap_or(0);
        (receipted == count as u64 && now.states.len() == 1).then_some(())
    });
}

/// Everything is at the other site once, as it was written, and both catalogs say so.
fn check(from: &SiteProcess, to: &SiteProcess, files: &[(String, Vec<u8>)]) {
    let (mut here, mut there) = (reader(from), reader(to));
    let site = |reader: &mut Reader| {
        let sites = reader.sites().expect("sites").into_iter();
        sites.filter(|(_, name)| *name == from.card.name).map(|(id, _)| id).next().expect("known")
    };
    let (origin_here, origin_there) = (site(&mut here), site(&mut there));
    for (name, content) in files {
        let arrived = fs::read(to.path("inbox").join(name));
        assert!(arrived.is_ok_and(|arrived| arrived == *content), "{name}");
        let one = |reader: &mut Reader, site, state| {
            let versions = reader.versions(site, name).expect("versions");
            assert_eq!(versions.len(), 1, "{name}: {versions:?}");
            assert_eq!(versions[0].state, state, "{name}");
            let mut receipts = reader.receipts(versions[0].id).expect("receipts");
            receipts.retain(|receipt| receipt.receiver == to.card.key.as_bytes());
            assert_eq!(receipts.len(), 1, "{name}");
            (versions[0].digest.clone(), receipts[0].signed.clone(), versions[0].taken_in)
        };
        let known = one(&mut here, origin_here, State::Receipted);
        assert_eq!(known, one(&mut there, origin_there, State::Adopted), "{name}");
    }
}

/// Files below the inbox, ours and what should not be there.
fn count_below(folder: PathBuf) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let count = |entry: fs::DirEntry| match entry.path().is_dir() {
        true if entry.file_name() == ".downpour" => 0,
        true => count_below(entry.path()),
        false => 1,
    };
    entries.flatten().map(count).sum()
}

#[test]
fn what_is_submitted_is_at_the_other_site_and_in_both_catalogs() {
    let sites = two();
    let (a, b) = (&sites.a, &sites.b);
    let mut all = files(a, "run", 40, 10_000);
    let large = content(5_000_000);
    for (name, content) in [("run/large", large.as_slice()), ("run/empty", b"")] {
        fs::write(a.path("data").join(name), content).expect("room");
        all.push((name.to_owned(), content.to_vec()));
    }
    let text = a.done(&["transfer", "submit", &data(a, "run"), "b", "--wait"]);
    assert!(text.contains("42 receipted"), "{text}");
    check(a, b, &all);
    // Each attempt names the session that the receipt names.
    let mut kept = reader(a);
    for file in kept.search(&Query::default(), None, 100).expect("a search").files {
        let attempts = kept.attempts(file.id).expect("attempts");
        let receipts = kept.receipts(file.id).expect("receipts");
        let signed = SignedFileReceipt::from_bytes(&receipts[0].signed).expect("a receipt");
        assert_eq!(attempts.last().expect("one").session, Some(signed.receipt.session));
    }
    assert_eq!(count_below(b.path("inbox")), all.len());
    // A second time nothing is new; in another place it is a new file.
    let text = a.done(&["transfer", "submit", &data(a, "run"), "b", "--wait"]);
    assert!(text.contains("0 files") && text.contains("42 known"), "{text}");
    let elsewhere = ["transfer", "submit", &data(a, "run"), "b", "--into", "copy/{name}", "--wait"];
    let text = a.done(&elsewhere);
    assert!(text.contains("42 files") && text.contains("42 receipted"), "{text}");
    assert_eq!(count_below(b.path("inbox/copy")), all.len());
    assert!(a.done(&elsewhere).contains("42 known"));
    let passwd = a.run(&["transfer", "submit", "/etc/passwd", "b", "--wait"]);
    let told = String::from_utf8_lossy(&passwd.stdout);
    assert!(!passwd.status.success() && told.contains("source-refused"), "{told}");
    let unknown = a.run(&["transfer", "submit", &data(a, "run"), "nowhere"]);
    assert!(!unknown.status.success());
}

#[test]
fn a_site_that_is_away_is_waited_for_and_why_says_so() {
    let mut sites = two();
    let all = files(&sites.a, "run", 3, 1000);
    sites.b.kill();
    let transfer = submit(&sites.a, "run", "b");
    until("each file has its reason", || {
        let list: WhyList = sites.a.get("/v1/why").ok()?;
        let told = |why: &downpour::dispatch::Why| {
            why.class.as_deref() == Some("destination-unreachable") && why.eta_us.is_some()
        };
        (list.files.len() == 3 && list.files.iter().all(told)).then_some(())
    });
    let list: Transfers = sites.a.get("/v1/transfers?states=true").expect("a list");
    let [one] = &list.transfers[..] else { panic!("{list:?}") };
    let bytes = all.iter().map(|(_, content)| content.len() as u64).sum();
    assert_eq!((one.id, one.states.values().sum(), one.bytes), (transfer, 3, Some(bytes)));
    let list: Transfers = sites.a.get("/v1/transfers?states=true&most=0").expect("a list");
    assert!(list.transfers.is_empty(), "{list:?}");
    // What is given up before it was tried has not arrived; asked for again, it goes.
    files(&sites.a, "gone", 1, 1000);
    let wait = ["transfer", "submit", &data(&sites.a, "gone"), "b", "--wait"];
    let mut gone = sites.a.command(&wait);
    let mut gone = gone.stdout(Stdio::null()).spawn().expect("the program starts");
    until("it is given up", || {
        let list: Transfers = sites.a.get("/v1/transfers").ok()?;
        let newest = list.transfers.first().filter(|newest| newest.id != transfer)?.id;
        let all = serde_json::json!({ "transfer": newest });
        let done: Done = sites.a.post("/v1/files/cancel", &all).ok()?;
        (done.done == 1).then_some(())
    });
    assert_eq!(gone.wait().expect("our child").code(), Some(1));
    let once_more = submit(&sites.a, "gone", "b");
    // Again, and they are waited for, by what asks also while its own daemon is away.
    let mut again = sites.a.command(&["transfer", "submit", &data(&sites.a, "run"), "b", "--wait"]);
    let mut again = again.stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut told = BufReader::new(again.stdout.take().expect("a pipe")).lines();
    let first = told.next().expect("it is told at once").expect("text");
    assert!(first.contains("0 files") && first.contains("3 known"), "{first}");
    // A batch that is cut short would wait for the end of its lease.
    sites.a.done(&["transfer", "drain", "b"]);
    until("nothing is under way", || {
        let list: Transfers = sites.a.get("/v1/transfers").ok()?;
        list.batches.is_empty().then_some(())
    });
    sites.a.kill();
    sites.a.start();
    sites.b.start();
    sites.a.done(&["transfer", "open", "b"]);
    // Those that wait at this moment; others are in the queue again.
    for transfer in [transfer, once_more] {
        sites.a.run(&["transfer", "retry", "--transfer", &transfer.to_string()]);
    }
    arrived(&sites.a, transfer, 3);
    arrived(&sites.a, once_more, 1);
    assert!(again.wait().expect("our child").success());
    let rest: Vec<String> = told.map(|line| line.expect("text")).collect();
    assert!(rest.iter().any(|line| line.contains("3 receipted")), "{rest:?}");
    let list: Transfers = sites.a.get("/v1/transfers").expect("a list");
    assert!(list.transfers.is_empty(), "{list:?}");
    let none = sites.a.run(&["transfer", "cancel", "7"]);
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(none.status.code() == Some(1) && said.contains("there is no file 7"), "{said}");
    check(&sites.a, &sites.b, &all);
}

#[test]
fn a_daemon_that_dies_at_any_point_loses_and_doubles_nothing() {
    let mut sites = two();
    let at_b = ["arrived.before", "log.before", "adopt.before", "adopt.after", "answer.before"];
    let mut everything = Vec::new();
    for point in KILL_POINTS {
        let all = files(&sites.a, point, 4, 20_000);
        let dies = if at_b.contains(&point) { &mut sites.b } else { &mut sites.a };
        dies.kill();
        let mut command = dies.command(&["serve"]);
        command.env("DOWNPOUR_KILL_AT", point);
        dies.start_command(command);
        let transfer = submit(&sites.a, point, "b");
        let dies = if at_b.contains(&point) { &mut sites.b } else { &mut sites.a };
        assert_eq!(dies.ended(), None, "{point}: killed by a signal");
        dies.start();
        arrived(&sites.a, transfer, all.len());
        check(&sites.a, &sites.b, &all);
        everything.extend(all);
    }
    check(&sites.a, &sites.b, &everything);
    assert_eq!(count_below(sites.b.path("inbox")), everything.len(), "nothing is stored twice");
}

#[test]
fn a_mover_that_lies_is_found_out() {
    let mut sites = two();
    sites.b.kill();
    let mut command = sites.b.command(&["serve"]);
    // Of sixty files it lies about none in one run of ten thousand, and in as many about one seven times in a row, whose waits
    // are as long as this test may take.
    command.env("DOWNPOUR_LIE", "0.15");
    sites.b.start_command(command);
    let all = files(&sites.a, "run", 60, 5000);
    let transfer = submit(&sites.a, "run", "b");
    arrived(&sites.a, transfer, all.len());
    check(&sites.a, &sites.b, &all);
    let mut reader = reader(&sites.a);
    let ids: Vec<FileId> = {
        let page = reader.search(&downpour_catalog::Query::default(), None, 100).expect("a page");
        page.files.iter().map(|file| file.id).collect()
    };
    let lies = ids.into_iter().flat_map(|id| reader.attempts(id).expect("attempts"));
    let found = lies.filter(|attempt| attempt.error == Some(ErrorClass::FalseSuccess)).count();
    assert!(found > 0, "15 % of the files were damaged behind the session's back");
}

#[test]
fn a_site_asks_for_files_and_a_third_tells_it_to() {
    let mut sites = two();
    let root = sites.a.path("").parent().expect("a folder").to_owned();
    let mut c = SiteProcess::new(&root, "c");
    let all = files(&sites.a, "run", 5, 3000);
    let from = format!("a:{}", data(&sites.a, "run"));
    let refused = sites.b.run(&["transfer", "submit", &from, "b"]);
    assert!(!refused.status.success(), "a does not let b ask for paths");
    for site in [&mut sites.a, &mut sites.b] {
        site.kill();
        site.trust(&c.card);
        c.trust(&site.card);
    }
    edit(&sites.a, "name = \"b\"", "name = \"b\"\npull = true");
    edit(&sites.a, "name = \"c\"", "name = \"c\"\npull = true");
    edit(&c, "name = \"b\"", "name = \"b\"\norders = true");
    edit(&c, "[transfer]", "[transfer]\nports = \"31000-31199\"");
    for site in [&mut sites.a, &mut sites.b, &mut c] {
        site.start();
    }
    // It is waited for, though it was queued at the other site.
    let waited = sites.b.done(&["transfer", "submit", &from, "b", "--wait"]);
    assert!(waited.contains(&format!("a -> b: {} receipted", all.len())), "{waited}");
    assert_eq!(count_below(sites.b.path("inbox")), all.len());
    // The number is a's.
    let word = waited.split_whitespace().skip_while(|word| *word != "transfer").nth(1);
    let number = word.expect("its number").trim_end_matches(':').to_owned();
    let shown = sites.b.done(&["transfer", "show", &number, "--of", "a"]);
    assert!(shown.contains(&format!("a -> b: {} receipted", all.len())), "{shown}");
    let here = sites.b.run(&["transfer", "show", &number]);
    assert!(String::from_utf8_lossy(&here.stderr).contains("queued at b"), "{here:?}");
    // b tells c to fetch other files from a.
    let more = files(&sites.a, "more", 4, 3000);
    let from = format!("a:{}", data(&sites.a, "more"));
    let waited = sites.b.done(&["transfer", "submit", &from, "c", "--wait"]);
    assert!(waited.contains(&format!("a -> c: {} receipted", more.len())), "{waited}");
    check(&sites.a, &c, &more);
    // It is told how much is taken, and of all that is not.
    files(&sites.a, "last", 2, 3000);
    for number in 0..101 {
        let link = sites.a.path("data/last").join(format!("link {number}"));
        std::os::unix::fs::symlink("x", link).expect("room");
    }
    let wish = json!({ "paths": [data(&sites.a, "last")], "from": "a", "to": "c" });
    let Submitted { accepted, .. } = sites.b.post("/v1/transfers", &wish).expect("an answer");
    let told = (accepted.files, accepted.bytes, accepted.refused_count, accepted.refused.len());
    assert_eq!(told, (2, 6001, 101, 100), "{accepted:?}");
}

#[test]
fn a_large_submission_is_answered_in_pages_and_a_page_asked_for_twice_is_one() {
    let sites = two();
    let (a, b) = (&sites.a, &sites.b);
    let all = files(a, "run", 40, 100);
    let mut wish = Submission {
        paths: vec![data(a, "run")],
        to: "b".to_owned(),
        most: Some(9),
        ..Submission::default()
    };
    let mut taken = Vec::new();
    loop {
        let page: Submitted = a.post("/v1/transfers", &wish).expect("a page");
        let known = taken.iter().sum::<u64>();
        wish.transfer = Some(page.accepted.transfer);
        // As if the answer had been lost.
        let again: Submitted = a.post("/v1/transfers", &wish).expect("the page again");
        assert_eq!((again.accepted.files, again.accepted.known), (0, page.accepted.files));
        assert_eq!(again.accepted.next, page.accepted.next, "after {known} files");
        taken.push(page.accepted.files);
        wish.after = page.accepted.next;
        if wish.after.is_none() {
            break;
        }
    }
    assert!(taken.len() > 4 && taken.iter().all(|files| *files <= 9), "{taken:?}");
    arrived(a, wish.transfer.expect("a number"), all.len());
    check(a, b, &all);
    // The command needs no more than one answer here, and is told of all.
    let text = a.done(&["transfer", "submit", &data(a, "run"), "b"]);
    assert!(text.contains("0 files") && text.contains("40 known"), "{text}");
}

#[test]
fn curl_fetches_a_file_with_its_digest() {
    if std::process::Command::new("curl").arg("--version").output().is_err() {
        return skipped("curl_fetches_a_file_with_its_digest", "needs curl");
    }
    let sites = two();
    let all = files(&sites.a, "run", 1, 100_000);
    sites.a.done(&["transfer", "submit", &data(&sites.a, "run"), "b", "--wait"]);
    let page = reader(&sites.b).search(&downpour_catalog::Query::default(), None, 10);
    let file = page.expect("a page").files.remove(0);
    let token = fs::read_to_string(sites.b.path("state/admin.token")).expect("a token");
    let out = sites.b.path("fetched");
    let fetched = std::process::Command::new("curl")
        .args(["-sk", "-D", "-", "-H", "Want-Digest: sha-256, blake3", "-o"])
        .arg(&out)
        .args(["-H", &format!("Authorization: Bearer {}", token.trim())])
        .arg(format!("https://{}/v1/files/{}/content", sites.b.card.address, file.id))
        .output()
        .expect("curl runs");
    let head = String::from_utf8_lossy(&fetched.stdout).to_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let digest = file.digest.expect("a digest").hex();
    assert!(head.contains(&format!("digest: blake3={digest}")), "{head}");
    assert_eq!(fs::read(out).expect("a file"), all[0].1);
}

/// Gives a site a spool whose files go where `to` says; the folder.
fn with_spool(site: &mut SiteProcess, to: &str) -> PathBuf {
    let spool = site.path("spool");
    fs::create_dir_all(&spool).expect("room");
    site.kill();
    site.configure(&format!(
        "[[spool]]\nfolder = \"{}\"\ncomplete = \"rename\"\n\
         [[rule]]\nname = \"raw\"\nmatch = \"*.raw\"\nto = {to}\n",
        spool.display()
    ));
    site.start();
    spool
}

/// Drops files into a spool, each whole at once.
fn drop_into(spool: &Path, count: u8) -> Vec<(String, Vec<u8>)> {
    let all: Vec<_> =
        (0..count).map(|number| (format!("{number}.raw"), vec![number; 10_000])).collect();
    for (name, content) in &all {
        drop_file(&spool.join(name), content);
    }
    all
}

fn count_of(site: &SiteProcess, state: State) -> i64 {
    let counts = reader(site).counts().expect("counts");
    counts.iter().filter(|count| count.state == state).map(|count| count.files).sum()
}

#[test]
fn a_file_in_the_spool_goes_by_its_rule() {
    let mut sites = two();
    let spool = with_spool(&mut sites.a, "\"b\"");
    let all = drop_into(&spool, 5);
    until("all are receipted", || (count_of(&sites.a, State::Receipted) == 5).then_some(()));
    check(&sites.a, &sites.b, &all);
}

#[test]
fn a_rule_with_two_sites_has_ended_when_both_have_the_file() {
    let mut sites = two();
    let root = tempfile::tempdir().expect("a folder");
    let mut third = SiteProcess::new(root.path(), "c");
    third.trust(&sites.a.card);
    sites.a.trust(&third.card);
    let spool = with_spool(&mut sites.a, "[\"b\", \"c\"]");
    let all = drop_into(&spool, 5);
    // The third is not there yet.
    until("the second has all", || (count_of(&sites.b, State::Adopted) == 5).then_some(()));
    let in_a_moment = || {
        let receipts = reader(&sites.a).receipts(FileId(first(&sites.a))).expect("receipts");
        (receipts.len() == 1).then_some(())
    };
    until("its receipts are at the first", in_a_moment);
    assert_eq!(count_of(&sites.a, State::Receipted), 0);
    third.start();
    until("all are receipted", || (count_of(&sites.a, State::Receipted) == 5).then_some(()));
    check(&sites.a, &sites.b, &all);
    check(&sites.a, &third, &all);
    let receipts = reader(&sites.a).receipts(FileId(first(&sites.a))).expect("receipts");
    assert_eq!(receipts.len(), 2);
}

/// The number of some file of a site.
fn first(site: &SiteProcess) -> i64 {
    let found = reader(site).search(&Query::default(), None, 1).expect("a search");
    found.files.first().map_or(0, |file| file.id.0)
}

#[test]
fn a_file_that_is_cancelled_is_given_up_and_the_others_of_its_batch_arrive() {
    let mut sites = two();
    sites.a.kill();
    // So slow that it is still under way when it is cancelled.
    edit(&sites.a, "name = \"b\"", "name = \"b\"\nrate = \"40mbit\"\nactive = 1");
    sites.a.start();
    let mut all = files(&sites.a, "run", 6, 10_000);
    fs::write(sites.a.path("data/run/large"), content(60_000_000)).expect("room");
    all.sort();
    let transfer = submit(&sites.a, "run", "b");
    let file = until("the large one is being sent", || {
        let mut reader = reader(&sites.a);
        let query = Query { state: Some(State::Sending), ..Query::default() };
        let found = reader.search(&query, None, 100).expect("a search").files;
        found.into_iter().find(|file| file.name == "run/large").map(|file| file.id.0)
    });
    until("bytes of it are there", || {
        let parts = fs::read_dir(sites.b.path("inbox/.downpour/lane-0/parts")).ok()?;
        (parts.count() > 0).then_some(())
    });
    let done = sites.a.run(&["transfer", "cancel", &file.to_string(), "7777"]);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.code() == Some(1) && said.contains("cancel: 1 files"), "{said}");
    until("the others are there", || {
        let now: TransferReport = sites.a.get(&format!("/v1/transfers/{transfer}")).ok()?;
        let of = |state: &str| now.states.get(state).copied().unwrap_or(0);
        (of("receipted") == 6 && of("cancelled") == 1).then_some(())
    });
    check(&sites.a, &sites.b, &all);
    until("the batch has ended", || {
        let status = sites.b.done(&["service", "status"]);
        status.contains("0 batches out, 0 in").then_some(())
    });
    until("that is told, and what was cancelled is no failure", || {
        let mut all = happened(&sites.a, &mut Some(EventId::FIRST));
        all.retain(|event| event.kind == SiteEvent::BATCH);
        let files = all.iter().filter_map(|event| event.about["files"].as_u64()).sum::<u64>();
        // Of a batch that was cut the rest came by another one.
        all.pop().filter(|last| files >= 7 && last.about["failed"] == 0)
    });
    assert!(!sites.b.path("inbox/run/large").exists(), "it was sent to its end");
    assert!(!sites.a.log().contains("source-read-failed"), "{}", sites.a.log());
    assert_eq!(count_of(&sites.b, State::Adopted), 6);
}
