//! The spool of a running site.

use super::harness::{SiteProcess, Two, until};
use downpour::dispatch::Done;
use downpour::spool::{Quarantine, Spools};
use downpour_catalog::{CatalogUrl, File, Reader, State};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Output;

/// Two sites; what is dropped into `folder` at the first goes to the second.
fn sites(folder: &Path, rule: &str, there: &str) -> Two {
    let spool = format!(
        "\n[[spool]]\nfolder = {folder:?}\ncomplete = \"settle:300ms\"\nrescan = \"1s\"\n\
         [[rule]]\nname = \"all\"\nmatch = \"*\"\nto = \"b\"\n{rule}\n"
    );
    Two::start([&spool, there])
}

fn versions(site: &SiteProcess, name: &str) -> Vec<File> {
    let url = CatalogUrl::Sqlite(site.path("state/catalog.db"));
    let mut reader = Reader::open(&url).expect("a catalog");
    let sites = reader.sites().expect("the database works");
    let Some((a, _)) = sites.iter().find(|(_, name)| name == "a") else { return Vec::new() };
    reader.versions(*a, name).expect("the database works")
}

/// Waits until the newest version of a name is on its way, or has arrived.
fn booked(site: &SiteProcess, name: &str) -> File {
    until(&format!("{name} is queued: {}", site.log()), || {
        let file = versions(site, name).pop()?;
        file.digest.is_some().then_some(file)
    })
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn files_in_a_spool_are_queued_whatever_happens_to_them_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let drop = |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
    let mut sites = sites(folder.path(), "", "");
    drop("plain", "content");
    drop("old name", "renamed");
    drop("removed", "gone");
    drop("written", "half");
    until("they are found", || (!versions(&sites.a, "written").is_empty()).then_some(()));
    fs::rename(folder.path().join("old name"), folder.path().join("new name")).unwrap();
    fs::remove_file(folder.path().join("removed")).unwrap();
    drop("written", "half and the other half");
    // As a machine that loses power.
    sites.a.kill();
    drop("while nobody looked", "1");
    sites.a.start();
    for (name, content) in [
        ("plain", "content"),
        ("new name", "renamed"),
        ("written", "half and the other half"),
        ("while nobody looked", "1"),
    ] {
        let of = blake3::hash(content.as_bytes());
        until(&format!("{name} is known as it is"), || {
            let digest = booked(&sites.a, name).digest?;
            (digest.value() == of.as_bytes()).then_some(())
        });
    }
    let ended = |file: &File| file.state.is_end() || file.state == State::Quarantined;
    for name in ["old name", "removed"] {
        until(&format!("{name} has ended"), || {
            versions(&sites.a, name).iter().all(ended).then_some(())
        });
    }
    let spools: Spools = sites.a.get("/v1/spools").unwrap();
    assert_eq!(spools.spools.len(), 1);
    assert_eq!(spools.spools[0].trouble, "");
    let status = sites.a.done(&["service", "status"]);
    assert!(status.contains("spool") && status.contains("1 spools"), "{status}");
}

#[test]
fn quarantine_is_listed_and_released_by_an_operator() {
    let folder = tempfile::tempdir().unwrap();
    let sites = sites(folder.path(), "", "");
    fs::write(folder.path().join("bad.md5"), "900150983cd24fb0d6963f7d28e17f72").unwrap();
    fs::write(folder.path().join("bad"), "abd").unwrap();
    let listed = until("it is in quarantine", || {
        let seen: Quarantine = sites.a.get("/v1/spools/quarantine").unwrap();
        (!seen.files.is_empty()).then_some(seen)
    });
    assert_eq!(listed.files[0].reason.class, "digest-differs");
    let shown = sites.a.done(&["spool", "quarantine"]);
    assert!(shown.contains("bad  digest-differs"), "{shown}");
    let number = listed.files[0].reason.file.to_string();
    let why = sites.a.done(&["transfer", "why", &number]);
    let todo = format!("spool release {number}");
    assert!(why.contains(&todo), "{why}");
    // In the catalog alone it would go on, and not be where it goes from.
    let refused = sites.a.run(&["transfer", "release", &number]);
    assert!(!refused.status.success() && said(&refused).contains(&todo), "{}", said(&refused));
    // Nor beside others, and that is said.
    let both = json!({ "files": [listed.files[0].reason.file, 1] });
    let done: Done = sites.a.post("/v1/files/release", &both).unwrap();
    assert_eq!((done.aside, done.unknown), (vec![listed.files[0].reason.file], vec![1]));
    // Nor among more files than are looked at.
    let file = listed.files[0].reason.file;
    let many = json!({ "files": (file..=file + 10_000).collect::<Vec<_>>() });
    let refused = sites.a.post::<Done>("/v1/files/release", &many).unwrap_err().to_string();
    assert!(refused.contains("10001 files at once"), "{refused}");
    let none = sites.a.run(&["spool", "release", "nothing"]);
    assert!(!none.status.success() && said(&none).contains("in quarantine"), "{}", said(&none));
    fs::write(folder.path().join(".quarantine/bad"), "abc").unwrap();
    sites.a.done(&["spool", "release", "bad"]);
    booked(&sites.a, "bad");
    // Who did it is on record; a viewer may look, and no more.
    assert!(sites.a.done(&["spool", "status"]).contains("0 in quarantine"));
    let wish = json!({"name": "eye", "role": "viewer"});
    let token: serde_json::Value = sites.a.post("/v1/tokens", &wish).unwrap();
    let eye = sites.a.access(token["token"].as_str());
    let looked = sites.a.block_on(eye.get::<Spools>("/v1/spools"));
    assert!(looked.is_ok(), "{looked:?}");
    let meant = json!({"file": "bad"});
    let refused = sites.a.block_on(eye.post::<Quarantine>("/v1/spools/release", &meant));
    assert!(refused.unwrap_err().to_string().contains("operator"));
}

/// Dropped at one site, verified at the other and in both catalogs; then it leaves the spool. A command on arrival that
/// does not end holds up nothing meanwhile.
#[test]
fn files_in_a_spool_arrive_at_the_other_site_and_leave() {
    let folder = tempfile::tempdir().unwrap();
    let process = folder.path().join(".process");
    let there = format!(
        "[[rule]]\nname = \"in\"\nmatch = \"*\"\nfrom = \"a\"\n\
         command = [\"/bin/sh\", \"-c\", \"echo $$ > {}; exec sleep 300\"]",
        process.display()
    );
    // The rule there says nothing of where files go.
    let here = "into = \"of-{site}/{name}\"\nafter = \"delete\"\ndigests = [\"md5\"]";
    let sites = sites(folder.path(), here, &there);
    let write = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    let names: Vec<_> = (0..40).map(|n| format!("run/{n}.root")).collect();
    for name in &names {
        write(name, name);
    }
    write("replaced", "first");
    write("renamed before", "2");
    until("they are found", || (!versions(&sites.a, "replaced").is_empty()).then_some(()));
    write("replaced", "second");
    fs::rename(folder.path().join("renamed before"), folder.path().join("renamed")).unwrap();
    let contents = names.iter().map(|name| (name.as_str(), name.as_str()));
    for (name, content) in contents.chain([("replaced", "second"), ("renamed", "2")]) {
        let digest = blake3::hash(content.as_bytes());
        let is_it =
            |file: &File| file.digest.as_ref().is_some_and(|d| d.value() == digest.as_bytes());
        until(&format!("{name} is received: {}", sites.a.log()), || {
            let file = versions(&sites.a, name).pop()?;
            (file.state == State::Receipted && is_it(&file)).then_some(())
        });
        let there = versions(&sites.b, name).pop().expect("in the other catalog");
        assert!(there.state == State::Adopted && is_it(&there), "{there:?}");
        let url = CatalogUrl::Sqlite(sites.b.path("state/catalog.db"));
        let mut reader = Reader::open(&url).unwrap();
        let replicas = reader.replicas(there.id).unwrap();
        // What its rule asks for is compared and recorded at both ends.
        let of = CatalogUrl::Sqlite(sites.a.path("state/catalog.db"));
        let here = versions(&sites.a, name).pop().unwrap().id;
        let digests = Reader::open(&of).unwrap().digests(here).unwrap();
        assert_eq!(digests.len(), 2);
        assert_eq!(reader.digests(there.id).unwrap(), digests);
        let read: Vec<_> = replicas.iter().map(|r| fs::read(&r.path).ok()).collect();
        assert!(read.contains(&Some(content.as_bytes().to_vec())), "{replicas:?}");
        assert!(replicas.iter().any(|r| r.path.contains("/of-a/")), "{replicas:?}");
        until(&format!("{name} leaves"), || (!folder.path().join(name).exists()).then_some(()));
    }
    let process = until("a command runs", || {
        let text = fs::read_to_string(&process).ok()?;
        text.ends_with('\n').then(|| Path::new("/proc").join(text.trim()))
    });
    sites.b.get::<Quarantine>("/v1/spools/quarantine").expect("an answer while it runs");
    assert!(process.exists());
    sites.b.done(&["service", "stop", "spool"]);
    until("the command is ended", || (!process.exists()).then_some(()));
}
