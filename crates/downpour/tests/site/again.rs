//! What was lost at one of several destinations comes again; what the others have is left alone.

use super::harness::{SiteProcess, drop_file, folder, until};
use super::several::three;
use downpour::reconcile::Report;
use downpour_catalog::State;
use std::fs;

/// A site notices by a scrub what it has lost, which is one file; the one that sent it compares, and repairs that.
pub(crate) fn lost_at(holder: &SiteProcess, sender: &SiteProcess) {
    let scrub = holder.run(&["catalog", "reconcile", "--scrub", "--json"]);
    let report: Report = serde_json::from_slice(&scrub.stdout).expect("a report");
    assert_eq!((report.findings.len(), report.repaired), (1, 1), "{}", report.text());
    let repaired = sender.done(&["catalog", "reconcile"]);
    assert!(repaired.contains("1 repaired"), "{repaired}");
}

#[test]
fn a_file_that_one_of_several_sites_has_lost_is_sent_there_again() {
    let root = folder();
    let [mut a, mut b, mut c] = three(root.path(), "");
    let spool = root.path().join("spool");
    for site in [&mut a, &mut b, &mut c] {
        site.start();
    }
    let names = ["one", "two", "three"];
    for name in names {
        drop_file(&spool.join(name), name.as_bytes());
    }
    let received = || {
        until(&format!("all are received\n{}\n{}", a.log(), b.log()), || {
            let counts = a.reader().counts().ok()?.into_iter();
            let received = counts.filter(|count| count.state == State::Receipted);
            (received.map(|count| count.files).sum::<i64>() == 3).then_some(())
        });
        for inbox in [b.path("inbox"), c.path("inbox")] {
            let is_there =
                |name: &&str| fs::read(inbox.join(name)).is_ok_and(|c| c == name.as_bytes());
            assert!(names.iter().all(is_there), "{inbox:?}");
        }
    };
    received();
    for site in [&b, &c] {
        fs::remove_file(site.path("inbox/two")).expect("it is there");
        lost_at(site, &a);
        let at = site.path("inbox/two");
        until(&format!("it comes again\n{}", a.log()), || at.exists().then_some(()));
        received();
    }
}
