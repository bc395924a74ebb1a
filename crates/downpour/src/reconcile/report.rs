//! What a run found and did: kept in the state folder as JSON and as text, and known by its id.
//!
//! A report that asks is answered by a file beside it, `ID.approved`, which holds until a run that read it has kept its own report. It
//! is answered once, and for no more than it found: what comes later may be another mistake.

use super::repair::LEFT;
use crate::object::printable;
use crate::units::{show_bytes, show_time};
use crate::whole::{put, remove};
use downpour_catalog::Time;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folder of the reports, in the state folder.
pub const FOLDER: &str = "reconcile";
/// Findings that the text lists.
const LISTED_MAX: usize = 200;
/// Reports that are kept.
pub const REPORTS_MAX: usize = 1000;
/// Longest id.
const ID_LEN_MAX: usize = 64;
/// A clock that is set back by less has only been corrected.
const AHEAD_MAX_S: i64 = 300;

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// We sent it and have the receipt; the holder no longer has it.
    MissingThere,
    /// The sender has our receipt; we no longer have the file.
    MissingHere,
    /// The holder has it; the sender knows the file but has no record of that.
    Unrecorded,
    /// The holder has it; the sender knows no such file.
    Extra,
    /// Both have it, with other content.
    WrongDigest,
    /// It has not moved for too long.
    Stuck,
    /// In the catalog, not on the disk.
    Lost,
    /// On the disk, not in the catalog.
    Dark,
    /// On the disk, with other content than in the catalog.
    Corrupt,
}

impl Kind {
    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MissingThere => "missing there",
            Self::MissingHere => "missing here",
            Self::Unrecorded => "unrecorded",
            Self::Extra => "extra",
            Self::WrongDigest => "wrong digest",
            Self::Stuck => "stuck",
            Self::Lost => "lost",
            Self::Dark => "dark",
            Self::Corrupt => "corrupt",
        }
    }
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What is wrong.
    pub kind: Kind,
    /// At which site.
    pub holder: String,
    /// The site that the file comes from.
    pub origin: String,
    /// Its name there; for a dark one its path.
    pub name: String,
    /// Its version there; 0 where it is not known.
    pub version: i64,
    /// Its length.
    pub size: u64,
    /// What more is known: the reason, the error class.
    pub note: String,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing was found.
    Clean,
    /// All that can be repaired from here is on its way.
    Repaired,
    /// There is something that this site does not repair by itself, or not all was compared.
    Found,
    /// More than the threshold: nothing more was repaired, somebody must approve.
    Asks,
}

/// What a run found and did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Its id.
    pub id: String,
    /// The site that ran it.
    pub site: String,
    /// The site that it compared with; its own name for a scrub.
    pub far: String,
    /// When it began, microseconds since 1970.
    pub started_us: i64,
    /// When it ended.
    pub ended_us: i64,
    /// How it ended.
    pub verdict: Verdict,
    /// The reports whose repair was approved, if this run was that.
    #[serde(deserialize_with = "approved")]
    pub approved: Vec<String>,
    /// Files that holders have by the catalog here.
    pub files_near: i64,
    /// And by the other one.
    pub files_far: i64,
    /// Differences that were on their way, and left to the next run.
    pub in_flight: usize,
    /// Bytes asked and answered.
    pub bytes_exchanged: u64,
    /// Round trips to the other site.
    pub rounds: u32,
    /// Files sent again, recorded, or woken; of a scrub, recorded.
    pub repaired: usize,
    /// How many it would repair in one go.
    pub repair_max: usize,
    /// Whether there is more than is listed.
    pub is_cut: bool,
    /// What was found.
    pub findings: Vec<Finding>,
}

/// Those of a report; a program before this one wrote at most one, or `null`.
fn approved<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Approved {
        All(Vec<String>),
        One(Option<String>),
    }
    Ok(match Approved::deserialize(from)? {
        Approved::All(all) => all,
        Approved::One(one) => one.into_iter().collect(),
    })
}

impl Report {
    /// Whether the disk was compared with the catalog, not another site.
    pub fn is_of_disk(&self) -> bool {
        self.far == self.site
    }

    /// That of a run that ends now. Its id is the moment, with whom, and the moment's microseconds: of those about a site the newest is the
    /// last one, however long it took.
    pub fn ended(self, now: Time) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let far: String = self.far.chars().take(24).map(plain).collect();
        let id = format!("{}-{far}-{:06}", moment(now), now.0.rem_euclid(1_000_000));
        Self { id, ended_us: now.0, ..self }
    }

    /// How many of each kind.
    pub fn counts(&self) -> std::collections::BTreeMap<Kind, usize> {
        let mut counts = std::collections::BTreeMap::new();
        for finding in &self.findings {
            *counts.entry(finding.kind).or_default() += 1;
        }
        counts
    }

    /// One line: for the subject of a mail, and for logs.
    pub fn headline(&self) -> String {
        let more = if self.is_cut { " or more" } else { "" };
        let found = self.findings.len();
        let what = match self.verdict {
            Verdict::Clean => "no difference".to_owned(),
            Verdict::Repaired => format!("{found} differences{more}, {} repaired", self.repaired),
            Verdict::Found if found == 0 => "not all was compared".to_owned(),
            Verdict::Found if self.is_of_disk() => self.found_on_disk(more),
            Verdict::Found => {
                format!("{found} differences{more}, {} repaired, look at the rest", self.repaired)
            }
            Verdict::Asks => {
                format!("{found} differences{more}, {}, approve?", self.before_asking())
            }
        };
        match self.is_of_disk() {
            true => format!("{}, disk and catalog: {what}", self.site),
            false => format!("{} and {}: {what}", self.site, self.far),
        }
    }

    /// A scrub repairs nothing: it records, and comparisons have the files of other sites sent again.
    fn found_on_disk(&self, more: &str) -> String {
        let is_dark = |finding: &&Finding| finding.kind == Kind::Dark;
        let is_own = |finding: &&Finding| finding.origin == self.site;
        let dark = self.findings.iter().filter(is_dark).count();
        let own = self.findings.iter().filter(is_own).count();
        [
            (
                self.findings.len() - dark - own,
                "lost or corrupt, recorded; the next comparison has them sent again",
            ),
            (own, "of our own lost or corrupt, recorded: bring them back"),
            (dark, "dark, look at them"),
        ]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count}{more} {what}"))
        .collect::<Vec<_>>()
        .join("; ")
    }

    /// How many it would repair, if that is approved: those that it lists, and however many there are if it does not list all.
    fn covered(&self) -> usize {
        // The dark ones are not repaired, and come last.
        let listed = self.findings.iter().filter(|finding| finding.kind != Kind::Dark).count();
        if self.is_cut && listed == self.findings.len() { usize::MAX } else { listed }
    }

    /// What was done before it asked: a scrub records what it finds until that is too much.
    fn before_asking(&self) -> String {
        match self.repaired {
            0 => "nothing repaired".to_owned(),
            n => format!("{n} recorded before that, nothing more"),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n\n", self.headline());
        let took = (self.ended_us - self.started_us) as f64 / 1e6;
        let _ = writeln!(text, "report    {}", self.id);
        let _ = writeln!(text, "began     {}, took {took:.1} s", show_time(self.started_us));
        if self.is_of_disk() {
            let _ = writeln!(text, "files     {}", self.files_near);
        } else {
            let _ = writeln!(text, "files     {} here, {} there", self.files_near, self.files_far);
            let exchanged = show_bytes(self.bytes_exchanged);
            let _ = writeln!(text, "exchanged {exchanged} in {} round trips", self.rounds);
            let _ = writeln!(text, "in flight {}", self.in_flight);
        }
        for approved in &self.approved {
            let _ = writeln!(text, "approved  {approved}");
        }
        for (kind, count) in self.counts() {
            let _ = writeln!(text, "{:<13} {count}", kind.name());
        }
        if self.verdict == Verdict::Asks {
            let approved = if self.approved.is_empty() { "" } else { ", and than was approved" };
            let _ = writeln!(
                text,
                "\nThat is more than repair_max ({}){approved}: {}. If all of it shall be:\n\n    downpour catalog reconcile --approve {}",
                self.repair_max,
                self.before_asking(),
                self.id
            );
        }
        let is_left = |finding: &Finding| finding.note.starts_with(LEFT);
        if self.verdict == Verdict::Found
            && self.is_cut
            && self.repaired == 0
            && self.findings.iter().any(is_left)
        {
            text += "\nWhat is left fills the list: what else differs comes when that is less.\n";
        }
        if !self.findings.is_empty() {
            text.push('\n');
        }
        for finding in self.findings.iter().take(LISTED_MAX) {
            let Finding { kind, holder, name, note, .. } = finding;
            let [name, note] = [name, note].map(|text| printable(text.as_bytes()));
            // What nobody knows has none.
            let version = match finding.version {
                0 => String::new(),
                version => format!(" version {version}"),
            };
            let _ = writeln!(text, "{:<13} {holder}: {name}{version} {note}", kind.name());
        }
        if self.findings.len() > LISTED_MAX {
            let _ = writeln!(text, "… the rest is in {}.json", self.id);
        }
        text
    }

    /// Keeps it, as `ID.json` and `ID.txt`.
    pub fn keep(&self, state: &Path) -> io::Result<()> {
        let folder = state.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let json = serde_json::to_string_pretty(self).expect("a report has no odd keys") + "\n";
        put(&folder.join(format!("{}.json", self.id)), json.as_bytes())?;
        put(&folder.join(format!("{}.txt", self.id)), self.text().as_bytes())?;
        forget_old(&folder, Time(self.ended_us))
    }
}

/// As an id begins: the later one is the greater one.
fn moment(at: Time) -> String {
    show_time(at.0).replace([':', '-'], "")
}

/// Ids of the reports that are kept, oldest first. Those whose moment is still to come are the oldest: they are of a clock that was
/// ahead, and would hide all that comes until then.
pub fn ids(state: &Path, now: Time) -> io::Result<Vec<String>> {
    let mut ids = kept(state)?;
    ids.sort_unstable();
    let last = moment(now.plus_s(AHEAD_MAX_S));
    let ahead = ids.partition_point(|id| *id <= last);
    ids.rotate_left(ahead);
    Ok(ids)
}

/// The same, in no order.
fn kept(state: &Path) -> io::Result<Vec<String>> {
    let mut ids = Vec::new();
    let entries = match fs::read_dir(state.join(FOLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ids),
        other => other?,
    };
    for entry in entries {
        let name = entry?.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(".json"));
        ids.extend(id.map(str::to_owned));
    }
    Ok(ids)
}

/// A report that is kept.
pub fn load(state: &Path, id: &str) -> io::Result<Report> {
    let text = fs::read_to_string(path_of(state, id, "json")?)?;
    serde_json::from_str(&text).map_err(io::Error::from)
}

/// Approves the repair that a report asks for. It is done by the next run with that site.
pub fn approve(state: &Path, id: &str) -> io::Result<Report> {
    let report = load(state, id)?;
    let refuse = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    if report.verdict != Verdict::Asks {
        return refuse(format!("report {id} does not ask for anything"));
    }
    if let Some(other) = done_by(state, id)? {
        return refuse(format!(
            "report {id} was approved, and its run is over: see report {other}"
        ));
    }
    put(&path_of(state, id, "approved")?, b"")?;
    Ok(report)
}

/// The report of the run that has done what this one asked for, if it is kept, whenever that was: the clock may have been set back.
fn done_by(state: &Path, id: &str) -> io::Result<Option<String>> {
    // Most are long, and do not name it.
    let names_it = |other: &str| {
        let text = path_of(state, other, "json").and_then(fs::read_to_string);
        text.is_ok_and(|text| text.contains(id))
    };
    let has_done = |other: &String| {
        far_in(other) == far_in(id)
            && names_it(other)
            && load(state, other).is_ok_and(|done| done.approved.iter().any(|done| done == id))
    };
    Ok(kept(state)?.into_iter().find(has_done))
}

/// What is approved, and not done yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Approvals {
    /// The reports, oldest first.
    pub ids: Vec<String>,
    /// How many may be repaired without asking again; `usize::MAX`: all.
    pub covered: usize,
}

/// What is approved of the reports about this site.
pub fn approvals(state: &Path, far: &str) -> io::Result<Approvals> {
    let mut approved = Approvals::default();
    let entries = match fs::read_dir(state.join(FOLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(approved),
        other => other?,
    };
    for entry in entries {
        let name = entry?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".approved")) else {
            continue;
        };
        let Some(report) = load(state, id).ok().filter(|report| report.far == far) else {
            continue;
        };
        if done_by(state, id)?.is_some() {
            // Whatever kept its report could not end it any more.
            end_approvals(state, &[id.to_owned()])?;
            continue;
        }
        // A later report has what an earlier one found: they do not add up.
        approved.covered = approved.covered.max(report.covered());
        approved.ids.push(id.to_owned());
    }
    approved.ids.sort_unstable();
    Ok(approved)
}

/// Ends these approvals: what they asked for is done, and its report is kept.
pub fn end_approvals(state: &Path, ids: &[String]) -> io::Result<()> {
    ids.iter().try_for_each(|id| remove(&path_of(state, id, "approved")?))
}

/// Whether a report may have this id, which comes from the command line or the network.
pub(crate) fn is_id(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !text.is_empty() && text.len() <= ID_LEN_MAX && text.chars().all(plain)
}

/// The file of an id.
fn path_of(state: &Path, id: &str, kind: &str) -> io::Result<PathBuf> {
    if !is_id(id) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "that is no id of a report"));
    }
    Ok(state.join(FOLDER).join(format!("{id}.{kind}")))
}

/// Those that are too many go, the oldest first, but for what is approved and still to be done, and the newest about each site: it may ask,
/// and the next one of a scrub, or of a site that is away, may come only after a thousand of others.
fn forget_old(folder: &Path, now: Time) -> io::Result<()> {
    let state = folder.parent().unwrap_or(folder);
    let ids = ids(state, now)?;
    for (n, id) in ids.iter().enumerate().take(ids.len().saturating_sub(REPORTS_MAX)) {
        let is_newest = !ids[n + 1..].iter().any(|newer| far_in(newer) == far_in(id));
        if is_newest || path_of(state, id, "approved")?.try_exists()? {
            continue;
        }
        for kind in ["json", "txt"] {
            remove(&path_of(state, id, kind)?)?;
        }
    }
    Ok(())
}

/// What an id says of the site.
fn far_in(id: &str) -> Option<&str> {
    let (_moment, rest) = id.split_once('-')?;
    rest.rsplit_once('-').map(|(far, _)| far)
}

#[cfg(test)]
mod tests {
    use super::{
        FOLDER, Finding, Kind, REPORTS_MAX, Report, Verdict, approvals, approve, end_approvals,
        ids, load,
    };
    use downpour_catalog::Time;

    const BEGUN: Time = Time(1_795_305_600_000_001);
    /// When all tests are over.
    const LAST: Time = BEGUN.plus_s(30 * 86_400);

    fn report(verdict: Verdict) -> Report {
        let finding = Finding {
            kind: Kind::MissingThere,
            holder: "geneva".into(),
            origin: "berlin".into(),
            name: "run/1\u{7}".into(),
            version: 1,
            size: 7,
            note: String::new(),
        };
        let report = Report {
            id: String::new(),
            site: "berlin".into(),
            far: "geneva/x".into(),
            started_us: BEGUN.0,
            ended_us: BEGUN.0,
            verdict,
            approved: Vec::new(),
            files_near: 2,
            files_far: 1,
            in_flight: 0,
            bytes_exchanged: 1234,
            rounds: 7,
            repaired: 0,
            repair_max: 0,
            is_cut: false,
            findings: vec![finding],
        };
        report.ended(BEGUN.plus_s(1))
    }

    #[test]
    fn a_report_is_kept_and_an_approval_holds_until_it_is_ended() {
        let state = tempfile::tempdir().unwrap();
        let asks = report(Verdict::Asks);
        assert_eq!(ids(state.path(), LAST).unwrap(), Vec::<String>::new());
        let approved = |far: &str| approvals(state.path(), far).unwrap().ids;
        assert!(approved("geneva/x").is_empty());
        asks.keep(state.path()).unwrap();
        assert_eq!(ids(state.path(), LAST).unwrap(), std::slice::from_ref(&asks.id));
        assert_eq!(load(state.path(), &asks.id).unwrap(), asks);
        assert!(approve(state.path(), "../../etc/passwd").is_err());
        assert!(approve(state.path(), "another").is_err());
        approve(state.path(), &asks.id).unwrap();
        // A second report about the same, approved as well.
        let second = Report { id: format!("{}-2", asks.id), ..asks.clone() };
        second.keep(state.path()).unwrap();
        approve(state.path(), &second.id).unwrap();
        assert!(approved("berlin").is_empty());
        let both = approved("geneva/x");
        assert_eq!(both, [asks.id.clone(), second.id]);
        assert_eq!(approved("geneva/x"), both);
        end_approvals(state.path(), &both).unwrap();
        end_approvals(state.path(), &both).unwrap();
        assert!(approved("geneva/x").is_empty());
        report(Verdict::Clean).keep(state.path()).unwrap();
        assert!(approve(state.path(), &asks.id).is_err());
    }

    #[test]
    fn an_approval_is_done_once_and_covers_what_its_report_found() {
        let state = tempfile::tempdir().unwrap();
        let like = report(Verdict::Asks);
        let asks = |kinds: &[Kind], is_cut, s| {
            let finding = |kind: &Kind| Finding { kind: *kind, ..like.findings[0].clone() };
            let findings = kinds.iter().map(finding).collect();
            let asks = Report { findings, is_cut, ..like.clone() }.ended(BEGUN.plus_s(s));
            asks.keep(state.path()).unwrap();
            approve(state.path(), &asks.id).unwrap();
            let Report { id, .. } = asks;
            (id, approvals(state.path(), "geneva/x").unwrap().covered)
        };
        let (first, covered) = asks(&[Kind::Lost, Kind::Corrupt, Kind::Dark], true, 2);
        assert_eq!(covered, 2);
        let (second, covered) = asks(&[Kind::Lost; 3], false, 3);
        assert_eq!(covered, 3, "the later one has found the others, too");
        let approved = vec![first, second];
        let done = Report { approved: approved.clone(), ..report(Verdict::Found) };
        done.ended(BEGUN.plus_s(4)).keep(state.path()).unwrap();
        // The daemon ended before it could end them.
        let left = approvals(state.path(), "geneva/x").unwrap();
        assert_eq!((left.ids.len(), left.covered), (0, 0));
        for id in &approved {
            let refused = approve(state.path(), id).unwrap_err().to_string();
            assert!(refused.contains("its run is over: see report 20261122T000004Z-"), "{refused}");
        }
        assert_eq!(approvals(state.path(), "geneva/x").unwrap().covered, 0);
        // The clock was set back while it was done.
        let (ahead, _) = asks(&[Kind::Lost], false, 600);
        let done = Report { approved: vec![ahead.clone()], ..report(Verdict::Found) };
        done.ended(BEGUN).keep(state.path()).unwrap();
        assert_eq!(approvals(state.path(), "geneva/x").unwrap().covered, 0);
        let refused = approve(state.path(), &ahead).unwrap_err().to_string();
        assert!(refused.contains("its run is over: see report 20261122T000000Z-"), "{refused}");
        assert_eq!(
            asks(&[Kind::Lost], true, 5).1,
            usize::MAX,
            "it does not say how many there are"
        );
    }

    #[test]
    fn a_report_of_before_is_read() {
        let text = serde_json::to_string(&report(Verdict::Asks)).unwrap();
        let approved = |of: &str| {
            let text = text.replace("\"approved\":[]", &format!("\"approved\":{of}"));
            serde_json::from_str::<Report>(&text).unwrap().approved
        };
        let a = ["a".to_owned()];
        assert_eq!([approved("null"), approved("\"a\""), approved("[\"a\"]")], [&[][..], &a, &a]);
    }

    #[test]
    fn a_report_that_was_long_in_the_making_is_the_newest() {
        let state = tempfile::tempdir().unwrap();
        std::fs::create_dir(state.path().join(FOLDER)).unwrap();
        let long = report(Verdict::Asks).ended(BEGUN.plus_s(7 * 86_400));
        for n in 1..=REPORTS_MAX as i64 {
            // Others that began later.
            let Report { id, .. } = report(Verdict::Clean).ended(BEGUN.plus_s(n));
            std::fs::write(state.path().join(FOLDER).join(id + ".json"), "").unwrap();
        }
        long.keep(state.path()).unwrap();
        let kept = ids(state.path(), LAST).unwrap();
        assert_eq!((kept.len(), kept.last()), (REPORTS_MAX, Some(&long.id)));
        approve(state.path(), &long.id).unwrap();
        assert_eq!(approvals(state.path(), "geneva/x").unwrap().ids, [long.id]);
    }

    #[test]
    fn what_a_clock_that_was_ahead_dated_is_the_oldest() {
        let state = tempfile::tempdir().unwrap();
        std::fs::create_dir(state.path().join(FOLDER)).unwrap();
        let year = 365 * 86_400;
        let ended = |s| report(Verdict::Asks).ended(BEGUN.plus_s(s));
        for n in 0..REPORTS_MAX as i64 {
            std::fs::write(state.path().join(FOLDER).join(ended(year + n).id + ".json"), "")
                .unwrap();
        }
        // The clock is right again. It is set back a little more after the second of these.
        let [new, newer] = [1, 60].map(ended);
        for report in [&new, &newer] {
            report.keep(state.path()).unwrap();
        }
        let kept = ids(state.path(), BEGUN.plus_s(2)).unwrap();
        assert_eq!(kept[REPORTS_MAX - 2..], [new.id.clone(), newer.id]);
        assert_eq!(kept[0], ended(year + 2).id, "those are the first to go");
        approve(state.path(), &new.id).unwrap();
    }

    #[test]
    fn of_two_reports_of_one_second_the_later_one_is_the_newest() {
        let ended = |us| report(Verdict::Clean).ended(Time(BEGUN.0 + us)).id;
        let ids = [0, 3_100, 4_100, 99_000, 100_000, 999_998].map(ended);
        assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    }

    #[test]
    fn what_is_asked_or_approved_outlives_the_reports_of_others() {
        let state = tempfile::tempdir().unwrap();
        let asks = |far: &str, s| {
            Report { far: far.into(), ..report(Verdict::Asks) }.ended(BEGUN.plus_s(s))
        };
        let [old, new] = [1, 2].map(|s| asks("a-b", s));
        let [done, last] = [3, 4].map(|s| asks("berlin", s));
        for report in [&old, &new, &done, &last] {
            report.keep(state.path()).unwrap();
        }
        approve(state.path(), &old.id).unwrap();
        for n in 1..=REPORTS_MAX as i64 {
            let Report { id, .. } = report(Verdict::Clean).ended(BEGUN.plus_s(100 + n));
            std::fs::write(state.path().join(FOLDER).join(id + ".json"), "").unwrap();
        }
        let kept = || {
            report(Verdict::Clean).ended(BEGUN.plus_s(9999)).keep(state.path()).unwrap();
            ids(state.path(), LAST).unwrap()
        };
        assert_eq!(kept()[..3], [old.id.clone(), new.id.clone(), last.id.clone()]);
        assert_eq!(kept().len(), REPORTS_MAX + 3);
        assert_eq!(approvals(state.path(), "a-b").unwrap().ids, std::slice::from_ref(&old.id));
        approve(state.path(), &last.id).unwrap();
        // What is done goes as others do.
        end_approvals(state.path(), &[old.id]).unwrap();
        assert_eq!(kept()[..2], [new.id, last.id]);
    }

    #[test]
    fn a_scrub_says_that_it_recorded_and_not_that_it_repaired() {
        let found = |found: &[(Kind, &str)]| {
            let like = report(Verdict::Found);
            let finding = |&(kind, origin): &(Kind, &str)| {
                let origin = origin.to_owned();
                Finding { kind, origin, ..like.findings[0].clone() }
            };
            let findings = found.iter().map(finding).collect();
            Report { far: "berlin".into(), repaired: 1, findings, ..like }.headline()
        };
        let (dark, own) = ((Kind::Dark, ""), (Kind::Lost, "berlin"));
        assert_eq!(
            found(&[(Kind::Lost, "geneva"), (Kind::Corrupt, "geneva"), own, dark]),
            "berlin, disk and catalog: 2 lost or corrupt, recorded; the next comparison has them \
             sent again; 1 of our own lost or corrupt, recorded: bring them back; 1 dark, look at \
             them"
        );
        assert_eq!(found(&[dark]), "berlin, disk and catalog: 1 dark, look at them");
        let own_only = "berlin, disk and catalog: 1 of our own lost or corrupt, recorded: bring \
                        them back";
        assert_eq!(found(&[own]), own_only);
        assert!(report(Verdict::Found).headline().contains("1 differences, 0 repaired"));
    }

    #[test]
    fn the_text_says_what_to_do_and_shows_no_control_characters() {
        let mut asks = report(Verdict::Asks);
        // Of a lost file it is where it lay.
        asks.findings[0].note = "/inbox/run/1\u{1b}[2J".into();
        let text = asks.text();
        assert!(text.contains("downpour catalog reconcile --approve 20261122T000001Z-geneva_x-"));
        assert!(
            text.lines().any(|line| line.starts_with("missing there") && line.contains("run/1"))
        );
        assert!(!text.contains(['\u{7}', '\u{1b}']));
        let said = |repaired| Report { repaired, ..report(Verdict::Asks) }.text();
        assert_eq!(said(0).matches("nothing repaired").count(), 2);
        let scrub = said(9);
        assert_eq!(scrub.matches("9 recorded before that, nothing more").count(), 2, "{scrub}");
        assert!(!scrub.contains("nothing repaired"));
        let again = Report { approved: vec!["a".to_owned()], ..report(Verdict::Asks) }.text();
        assert!(again.contains("more than repair_max (0), and than was approved: nothing"));
    }
}
