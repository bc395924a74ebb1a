//! One run: compare, look for what is stuck, repair up to the threshold (`repair`) or ask.
//!
//! A run blocks its thread: it belongs on one for blocking work, never on one of an async runtime.

use super::ask::{Answer, Question, Scope, Side, Stored};
use super::compare::{Compare, Compared, Holder, Nonsense};
use super::repair::{LEFT, is_ours, leave_not_sendable, repair};
use super::report::{Approvals, Finding, Kind, Report, Verdict};
use super::scrub::Copies;
use downpour_catalog::{Catalog, Error, File, FileId, OpenError, RuleId, Time};
use downpour_transport::identity::PublicKey;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Stuck files that a run lists and wakes: the oldest.
const STUCK_MAX: usize = 1000;
/// Passes of an approved run; each repairs as many as one comparison lists.
const PASSES_MAX: u32 = 1000;

/// The other catalog.
pub trait Far {
    /// Asks it; the answers are in the questions' order.
    fn ask(&mut self, questions: &[Question]) -> Result<Vec<Answer>, FarError>;
    /// Lets it read its copies of these files of `origin` (name and version) and compare them with what it recorded; what is damaged it
    /// records as that.
    fn read_back(&mut self, origin: &str, names: &[(String, i64)])
    -> Result<Vec<Stored>, FarError>;
    /// Bytes asked and answered so far.
    fn bytes(&self) -> u64;
    /// An error if the run is to end; asked before each step.
    fn goes_on(&self) -> Result<(), FarError> {
        Ok(())
    }
}

/// The other site could not be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarError(pub String);

/// Why a run came to no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The catalog here.
    Near(String),
    /// The other site.
    Far(String),
    /// This machine, which does not read files now.
    Machine(String),
}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Near(text) => write!(f, "the catalog here: {text}"),
            Self::Far(text) => write!(f, "the other site: {text}"),
            Self::Machine(text) => {
                write!(f, "this machine does not read files now: {text}; it is tried again")
            }
        }
    }
}

impl std::error::Error for RunError {}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        Self::Near(error.to_string())
    }
}

impl From<OpenError> for RunError {
    fn from(error: OpenError) -> Self {
        Self::Near(error.to_string())
    }
}

impl From<FarError> for RunError {
    fn from(error: FarError) -> Self {
        Self::Far(error.0)
    }
}

impl From<Nonsense> for RunError {
    fn from(error: Nonsense) -> Self {
        Self::Far(error.to_string())
    }
}

/// What a run is to do.
#[derive(Clone, Debug)]
pub struct Order {
    /// This site.
    pub near: String,
    /// The other one.
    pub far: String,
    /// Its node key, which its receipts must be signed by; any, where it is not known.
    pub far_key: Option<PublicKey>,
    /// More than so many are not repaired without being asked.
    pub repair_max: usize,
    /// What has not moved for so long is stuck, seconds.
    pub stuck_s: i64,
    /// What was approved.
    pub approved: Approvals,
    /// Rules of this catalog whose files are sent there.
    pub sent: BTreeSet<RuleId>,
    /// Whether files that the other site has from us, and of which our catalog knows nothing, are taken into it by their receipts.
    pub adopt_extra: bool,
    /// What relative paths of our own copies are relative to.
    pub base: PathBuf,
    /// What is known of them.
    pub copies: Copies,
}

/// Runs once. `now` is asked again for each commit.
pub fn run(
    catalog: &Catalog,
    far: &mut impl Far,
    order: &Order,
    now: impl Fn() -> Time,
) -> Result<Report, RunError> {
    let started = now();
    let mut report = empty(order, started);
    let covers_all = order.approved.covered == usize::MAX;
    for pass in 0.. {
        let (mut findings, mut is_cut) = (Vec::new(), false);
        (report.files_near, report.files_far) = (0, 0);
        for holder in [Holder::Far, Holder::Near] {
            let compared = compare(catalog, far, order, holder, &mut report.rounds)?;
            report.files_near += compared.files_near;
            report.files_far = report.files_far.saturating_add(compared.files_far);
            report.in_flight += compared.in_flight;
            is_cut |= compared.is_cut;
            findings.extend(compared.findings);
        }
        leave_not_sendable(catalog, order, &mut findings, Kind::MissingThere)?;
        let (stuck, is_more_stuck) = stuck(catalog, order, now())?;
        findings.extend(stuck);
        let open = |findings: &[Finding]| findings.iter().filter(|f| is_ours(f, order)).count();
        let asks = |open| {
            let is_too_much = open > order.repair_max.max(order.approved.covered);
            !covers_all && (is_too_much || is_cut && open > 0)
        };
        if asks(open(&findings)) {
            // Of fewer the copies are read all the same: whoever has a damaged one is to know.
            leave_not_sendable(catalog, order, &mut findings, Kind::WrongDigest)?;
        }
        let open = open(&findings);
        let asks = asks(open);
        let mut repaired = 0;
        if !asks {
            repaired = repair(catalog, far, order, &mut findings, &now)?;
        }
        report.repaired += repaired;
        if pass == 0 {
            (report.findings, report.is_cut) = (findings, is_cut || is_more_stuck);
            report.verdict = match (report.findings.is_empty(), asks) {
                (true, _) if is_cut => Verdict::Found,
                (true, _) => Verdict::Clean,
                (_, true) => Verdict::Asks,
                _ if !is_more_stuck
                    && open == report.findings.len()
                    && report.findings.iter().all(is_done) =>
                {
                    Verdict::Repaired
                }
                _ => Verdict::Found,
            };
        }
        let is_more = is_cut || is_more_stuck && covers_all;
        if !is_more || repaired == 0 || pass + 1 == PASSES_MAX {
            break;
        }
    }
    report.bytes_exchanged = far.bytes();
    Ok(report.ended(now()))
}

/// Whether nothing was left for people.
fn is_done(finding: &Finding) -> bool {
    !finding.note.starts_with(LEFT)
}

fn empty(order: &Order, started: Time) -> Report {
    Report {
        id: String::new(),
        site: order.near.clone(),
        far: order.far.clone(),
        started_us: started.0,
        ended_us: started.0,
        verdict: Verdict::Clean,
        approved: order.approved.ids.clone(),
        files_near: 0,
        files_far: 0,
        in_flight: 0,
        bytes_exchanged: 0,
        rounds: 0,
        repaired: 0,
        repair_max: order.repair_max,
        is_cut: false,
        findings: Vec::new(),
    }
}

/// What was sent from the one to the other.
pub(super) fn scope_of(order: &Order, holder: Holder) -> Scope {
    let (near, far) = (order.near.clone(), order.far.clone());
    match holder {
        Holder::Far => Scope { holder: far, origin: near },
        Holder::Near => Scope { holder: near, origin: far },
    }
}

fn compare(
    catalog: &Catalog,
    far: &mut impl Far,
    order: &Order,
    holder: Holder,
    rounds: &mut u32,
) -> Result<Compared, RunError> {
    let mut machine = Compare::new(scope_of(order, holder), holder);
    while let Some(step) = machine.step() {
        far.goes_on()?;
        // One after the other: the machine's judgement rests on the order.
        let near = ask_near(catalog, step.near)?;
        let answers = if step.far.is_empty() {
            Vec::new()
        } else {
            *rounds += 1;
            far.ask(&step.far)?
        };
        machine.answer(near, answers)?;
    }
    Ok(machine.finish())
}

/// Reads on the thread that calls: each question is bounded, and reading does not wait for the writer.
fn ask_near(catalog: &Catalog, questions: Vec<Question>) -> Result<Vec<Answer>, RunError> {
    if questions.is_empty() {
        return Ok(Vec::new());
    }
    let mut reader = catalog.reader()?;
    Ok(Side::of(&mut reader)?.answer_all(&questions)?)
}

/// What has not moved for too long, and whether there is more of it.
fn stuck(catalog: &Catalog, order: &Order, now: Time) -> Result<(Vec<Finding>, bool), RunError> {
    let mut reader = catalog.reader()?;
    let mut files = reader.stuck(now, order.stuck_s, FileId(0), STUCK_MAX + 1)?;
    let is_more = files.len() > STUCK_MAX;
    files.truncate(STUCK_MAX);
    let sites = reader.sites()?;
    let finding = |file: File| {
        let origin = sites.iter().find(|(id, _)| *id == file.site).map(|(_, name)| name.clone());
        let reason = file.reason.map_or("", |reason| reason.name());
        let error = file.error.map_or("", |error| error.name());
        Finding {
            kind: Kind::Stuck,
            holder: order.near.clone(),
            origin: origin.unwrap_or_default(),
            name: file.name,
            version: file.version,
            size: file.size,
            note: format!("{} {reason} {error}", file.state).trim_end().to_owned(),
        }
    };
    Ok((files.into_iter().map(finding).collect(), is_more))
}

#[cfg(test)]
mod tests {
    use super::super::compare::tests::Held;
    use super::super::{CANDIDATES_MAX, Stand};
    use super::{Answer, Approvals, Copies, Far, FarError, Order, Question, Stored, Verdict, run};
    use downpour_catalog::{BeforeMigration, Catalog, CatalogUrl, Time};

    impl Far for Held {
        fn ask(&mut self, questions: &[Question]) -> Result<Vec<Answer>, FarError> {
            Ok(self.answer_all(questions))
        }

        fn read_back(&mut self, _: &str, _: &[(String, i64)]) -> Result<Vec<Stored>, FarError> {
            unreachable!("no digest is wrong")
        }

        fn bytes(&self) -> u64 {
            0
        }
    }

    #[test]
    fn what_was_not_compared_to_its_end_is_not_called_clean() {
        let folder = tempfile::tempdir().unwrap();
        let url = CatalogUrl::Sqlite(folder.path().join("c.db"));
        let catalog = Catalog::open(&url, "daemon", Time(0), &BeforeMigration::Refuse).unwrap();
        // Each that is looked at has gone meanwhile.
        let mut far = Held::new(7, 0..2 * CANDIDATES_MAX, Stand::default());
        let order = Order {
            near: "berlin".into(),
            far: "geneva".into(),
            far_key: None,
            repair_max: 100,
            stuck_s: 1,
            approved: Approvals::default(),
            sent: [].into(),
            adopt_extra: false,
            base: "/".into(),
            copies: Copies::default(),
        };
        let report = run(&catalog, &mut far, &order, || Time(0)).unwrap();
        assert_eq!((report.findings.len(), report.is_cut), (0, true));
        assert_eq!(report.verdict, Verdict::Found);
        assert!(report.text().starts_with("berlin and geneva: not all was compared\n"));
    }
}
