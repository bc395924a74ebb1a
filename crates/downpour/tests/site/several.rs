//! A rule with several sites: what one of them lacks, because it is away, holds up none of the others.

use super::harness::{SiteProcess, drop_file, folder, until};
use downpour::dispatch::LinkReport;
use downpour_catalog::{Query, Reader, State};
use std::fs;
use std::path::Path;

/// Sites `a`, `b` and `c`, not started; what lies in the folder `spool` below `root` goes from the first to both others. `more` is for
/// the first one's configuration.
pub(crate) fn three(root: &Path, more: &str) -> [SiteProcess; 3] {
    let [a, mut b, mut c] = ["a", "b", "c"].map(|name| SiteProcess::new(root, name));
    for other in [&mut b, &mut c] {
        a.trust(&other.card);
        other.trust(&a.card);
    }
    let spool = root.join("spool");
    fs::create_dir(&spool).expect("room");
    a.configure(&format!(
        "{more}\n[[spool]]\nfolder = {spool:?}\ncomplete = \"settle:100ms\"\nrescan = \"1s\"\n\
         [[rule]]\nname = \"all\"\nmatch = \"*\"\nto = [\"b\", \"c\"]"
    ));
    [a, b, c]
}

const FILES: usize = 60;

fn count(site: &SiteProcess, state: State) -> usize {
    let counts = site.reader().counts().unwrap_or_default().into_iter();
    counts.filter(|count| count.state == state).map(|count| count.files as usize).sum()
}

/// Attempts that are written down and name no error; events.
fn written(reader: &mut Reader) -> (usize, i64) {
    let found = reader.search(&Query::default(), None, 2 * FILES).expect("a search").files;
    let attempts = found.iter().flat_map(|file| reader.attempts(file.id).expect("attempts"));
    let attempts = attempts.filter(|attempt| attempt.error.is_none()).count();
    let logs = reader.logs().expect("logs");
    (attempts, logs.into_iter().map(|(_, _, events)| events).sum())
}

#[test]
fn a_site_that_is_away_holds_up_no_other_and_gets_all_when_it_comes_back() {
    let root = folder();
    let [mut a, mut b, mut c] = three(root.path(), "[transfer]\nbatch_files = 10");
    a.start();
    b.start();
    a.done(&["transfer", "drain", "c"]);
    for number in 0..FILES {
        drop_file(&root.path().join(format!("spool/{number}")), b"content");
    }
    let is_there = || (count(&b, State::Adopted) == FILES).then_some(());
    until(&format!("the second has all\n{}", a.log()), is_there);
    until("all are queued again", || (count(&a, State::Queued) == FILES).then_some(()));
    let mut last = None;
    let is_written = until("the last of it is written", || {
        std::thread::sleep(std::time::Duration::from_secs(1));
        let now = written(&mut a.reader());
        (last.replace(now) == Some(now)).then_some(now)
    });
    assert_eq!(is_written.0, FILES, "each was sent once");
    // Several looks later nothing has been written.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(written(&mut a.reader()), is_written);
    // It is not there yet: its breaker opens, and what is probed with is a file that it lacks.
    a.done(&["transfer", "open", "c"]);
    let broken = || {
        let links = a.get::<serde_json::Value>("/v1/links").ok()?;
        let links: Vec<LinkReport> = serde_json::from_value(links["links"].clone()).ok()?;
        links.into_iter().find(|link| link.site == "c")?.probe_at_us
    };
    until("its link is broken", broken);
    // New ones go to the second all the same.
    for number in 0..FILES {
        drop_file(&root.path().join(format!("spool/new {number}")), b"content");
    }
    let is_there = || (count(&b, State::Adopted) == 2 * FILES).then_some(());
    until(&format!("the second has the new ones\n{}", a.log()), is_there);
    c.start();
    let received = || (count(&a, State::Receipted) == 2 * FILES).then_some(());
    until(&format!("all are received\n{}", a.log()), received);
    assert_eq!(count(&c, State::Adopted), 2 * FILES);
    // Once to each.
    assert_eq!(written(&mut a.reader()).0, 4 * FILES);
}
