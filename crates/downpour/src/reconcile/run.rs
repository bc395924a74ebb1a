//! One run: compare, look for what is stuck, repair up to the threshold or ask.
//!
//! Each difference is repaired by the side that sends: it alone has the master copy. What is missing at the holder is queued again,
//! what is unrecorded is recorded from the holder's receipt, what waits is woken. Extra files and wrong digests are told, never
//! touched: removing or overwriting is for people.
//!
//! A run blocks its thread: it belongs on one for blocking work, never on one of an async runtime.

use super::ask::{Answer, NAMES_MAX, Packed, Question, Scope, Side};
use super::compare::{Compare, Compared, Holder, Nonsense};
use super::report::{Finding, Kind, Report, Verdict};
use crate::receipt::{FileKey, SignedFileReceipt};
use downpour_catalog::{
    Catalog, Change, Error, File, FileId, Move, Next, OpenError, Receipt, Replica, ReplicaState,
    SiteId, State, Time,
};
use downpour_transport::identity::PublicKey;

/// Stuck files that a run lists.
const STUCK_MAX: usize = 1000;
/// Passes of an approved run; each repairs as many as one comparison lists.
const PASSES_MAX: u32 = 1000;

/// The other catalog.
pub trait Far {
    /// Asks it; the answers are in the questions' order.
    fn ask(&mut self, questions: &[Question]) -> Result<Vec<Answer>, FarError>;
    /// Bytes asked and answered so far.
    fn bytes(&self) -> u64;
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
}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Near(text) => write!(f, "the catalog here: {text}"),
            Self::Far(text) => write!(f, "the other site: {text}"),
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
    /// The report whose repair was approved.
    pub approved: Option<String>,
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
    for pass in 0.. {
        let (mut findings, mut is_cut) = (Vec::new(), false);
        (report.files_near, report.files_far) = (0, 0);
        for holder in [Holder::Far, Holder::Near] {
            let compared = compare(catalog, far, order, holder, &mut report.rounds)?;
            report.files_near += compared.files_near;
            report.files_far += compared.files_far;
            report.in_flight += compared.in_flight;
            is_cut |= compared.is_cut;
            findings.extend(compared.findings);
        }
        findings.extend(stuck(catalog, order, now())?);
        let open = findings.iter().filter(|finding| is_ours(finding, order)).count();
        let asks = order.approved.is_none() && (open > order.repair_max || is_cut);
        let repaired = if asks { 0 } else { repair(catalog, far, order, &findings, &now)? };
        report.repaired += repaired;
        if pass == 0 {
            (report.findings, report.is_cut) = (findings, is_cut);
            report.verdict = match (report.findings.is_empty(), asks) {
                (true, _) => Verdict::Clean,
                (_, true) => Verdict::Asks,
                _ if open == report.findings.len() => Verdict::Repaired,
                _ => Verdict::Found,
            };
        }
        if !is_cut || repaired == 0 || pass + 1 == PASSES_MAX {
            break;
        }
    }
    report.bytes_exchanged = far.bytes();
    report.ended_us = now().0;
    Ok(report)
}

fn empty(order: &Order, started: Time) -> Report {
    Report {
        id: Report::id_of(&order.far, started),
        site: order.near.clone(),
        far: order.far.clone(),
        started_us: started.0,
        ended_us: started.0,
        verdict: Verdict::Clean,
        approved: order.approved.clone(),
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
fn scope_of(order: &Order, holder: Holder) -> Scope {
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

/// What has not moved for too long.
fn stuck(catalog: &Catalog, order: &Order, now: Time) -> Result<Vec<Finding>, RunError> {
    let mut reader = catalog.reader()?;
    let files = reader.stuck(now.plus_s(-order.stuck_s), FileId(0), STUCK_MAX)?;
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
    Ok(files.into_iter().map(finding).collect())
}

/// Whether this site repairs it.
fn is_ours(finding: &Finding, order: &Order) -> bool {
    match finding.kind {
        Kind::MissingThere => true,
        Kind::Unrecorded => finding.holder == order.far,
        Kind::Stuck => finding.note.starts_with(State::Waiting.name()),
        _ => false,
    }
}

fn repair(
    catalog: &Catalog,
    far: &mut impl Far,
    order: &Order,
    findings: &[Finding],
    now: &impl Fn() -> Time,
) -> Result<usize, RunError> {
    let ours: Vec<&Finding> = findings.iter().filter(|finding| is_ours(finding, order)).collect();
    let mut repaired = 0;
    for slice in ours.chunks(NAMES_MAX) {
        let receipts = receipts(far, order, slice)?;
        let far_site = catalog.site(&order.far)?;
        let mut changes = Vec::new();
        let mut ends = Vec::new();
        for ((finding, file), receipt) in slice.iter().zip(files(catalog, slice)?).zip(receipts) {
            let Some(file) = file else { continue };
            changes.extend(match finding.kind {
                Kind::MissingThere => send_again(&file, lost_at(catalog, &file, far_site)?),
                Kind::Unrecorded => record(&file, &receipt, order, far_site, now()),
                _ => wake(&file),
            });
            ends.push(changes.len());
        }
        let answers = catalog.submit(now(), changes).wait()?;
        let mut begin = 0;
        for end in ends {
            // What moved meanwhile is refused, and looked at again by the next run.
            let of_file = &answers[begin..end];
            repaired += usize::from(end > begin && of_file.iter().all(Result::is_ok));
            begin = end;
        }
    }
    Ok(repaired)
}

fn files(catalog: &Catalog, findings: &[&Finding]) -> Result<Vec<Option<File>>, RunError> {
    let mut reader = catalog.reader()?;
    let sites = reader.sites()?;
    let site = |name: &str| sites.iter().find(|(_, site)| site == name).map(|(id, _)| *id);
    let called: Vec<_> = findings
        .iter()
        .map(|f| (site(&f.origin).unwrap_or(SiteId(0)), f.name.as_str(), f.version))
        .collect();
    Ok(reader.files_called(&called)?)
}

/// The holder's receipts for what is unrecorded; empty for everything else.
fn receipts(
    far: &mut impl Far,
    order: &Order,
    findings: &[&Finding],
) -> Result<Vec<Packed>, RunError> {
    let wanted = |finding: &&&Finding| finding.kind == Kind::Unrecorded;
    let names: Vec<_> =
        findings.iter().filter(wanted).map(|f| (f.name.clone(), f.version)).collect();
    if names.is_empty() {
        return Ok(vec![Packed::default(); findings.len()]);
    }
    let question = Question::Receipts(scope_of(order, Holder::Far), names);
    let Ok([Answer::Receipts(found)]) = <[Answer; 1]>::try_from(far.ask(&[question])?) else {
        return Err(RunError::Far("receipts were asked".to_owned()));
    };
    let mut found = found.into_iter();
    let mut of = |finding: &&Finding| {
        if wanted(&finding) { found.next().unwrap_or_default() } else { Packed::default() }
    };
    Ok(findings.iter().map(&mut of).collect())
}

fn lost_at(catalog: &Catalog, file: &File, site: SiteId) -> Result<Option<Replica>, RunError> {
    let replicas = catalog.reader()?.replicas(file.id)?;
    let replica = replicas.into_iter().find(|replica| replica.site == site);
    Ok(replica.map(|replica| Replica { state: ReplicaState::Lost, ..replica }))
}

fn step(file: &File, next: Next) -> Change {
    Change::Move(Move { file: file.id, at: file.revision, fence: None, next })
}

/// The replica is lost, and the file goes back to the queue.
fn send_again(file: &File, lost: Option<Replica>) -> Vec<Change> {
    let again = matches!(file.state, State::Receipted | State::Adopted);
    if !again {
        return Vec::new();
    }
    // The move first: one that is refused leaves the replica for the next run.
    let mut changes = vec![step(file, Next::Queued)];
    changes.extend(lost.map(Change::Replica));
    changes
}

fn wake(file: &File) -> Vec<Change> {
    if file.state == State::Waiting { vec![step(file, Next::Resumed)] } else { Vec::new() }
}

/// What the holder's receipt proves, if it is one for this file.
fn record(file: &File, bytes: &Packed, order: &Order, holder: SiteId, at: Time) -> Vec<Change> {
    let Ok(signed) = SignedFileReceipt::from_bytes(&bytes.0) else { return Vec::new() };
    let said = &signed.receipt;
    let digest = file.digest.as_ref().map(downpour_catalog::Digest::value);
    let is_it = said.key() == FileKey::of(&order.near, &file.name, file.version)
        && said.size == file.size
        && digest == Some(&said.blake3.0[..])
        && order.far_key.is_none_or(|key| key == said.receiver)
        && signed.verify().is_ok();
    if !is_it {
        return Vec::new();
    }
    let (path, state) = (said.path.clone(), ReplicaState::Present);
    let receiver = said.receiver.as_bytes().to_vec();
    vec![
        Change::Replica(Replica { file: file.id, site: holder, path, state }),
        Change::Receipt(Receipt { file: file.id, receiver, at, signed: signed.to_bytes() }),
    ]
}
