//! What a run does about what it found: each difference is repaired by the side that sends, for it has the master copy.
//!
//! | finding | repair |
//! | --- | --- |
//! | missing there | queued and sent again, if its rule sends it there and we have it |
//! | unrecorded | recorded, by the holder's receipt |
//! | wrong digest | both sides read their copies: whose copy is what it recorded is right. If only ours is, it is sent again |
//! | extra | where the operator wants that, taken into the catalog by the holder's receipt |
//! | stuck | woken, if it waits |
//!
//! A copy that is not what was recorded of it is recorded as corrupt by the side that has it; when the right one comes, the damaged
//! one goes aside. What is not read in time is left, and the rest goes on. Where both copies are what their side recorded, nothing
//! is touched: somebody must say which one is meant. What could not be repaired has a note that begins with [`LEFT`].

use super::ask::{Answer, NAMES_MAX, Packed, Question, Stored, fit};
use super::compare::Holder;
use super::report::{Finding, Kind};
use super::run::{Far, FarError, Order, RunError, scope_of};
use super::scrub::read_back;
use crate::receipt::{FileKey, SignedFileReceipt};
use downpour_catalog::{
    Catalog, Change, Digest, File, FileId, Move, Next, Replica, ReplicaState, SiteId, State, Time,
};

/// How the note of a finding begins that was left for people.
pub(super) const LEFT: &str = "left: ";
/// Bytes of files that a site is asked to read at once; a larger file is asked for alone.
const READ_BACK_BYTES_MAX: u64 = 256 << 20;
/// The last version of a file of ours that is believed to be one: whoever says it need not have it from us, and the next one counts on
/// from it.
const OWN_VERSION_MAX: i64 = 1 << 32;

/// Whether this site repairs it.
pub(super) fn is_ours(finding: &Finding, order: &Order) -> bool {
    let is_theirs = finding.holder == order.far;
    match finding.kind {
        _ if finding.note.starts_with(LEFT) => false,
        Kind::MissingThere => true,
        Kind::Unrecorded | Kind::WrongDigest => is_theirs,
        Kind::Extra => is_theirs && order.adopt_extra,
        Kind::Stuck => finding.note.starts_with(State::Waiting.name()),
        _ => false,
    }
}

/// Leaves what differs so and cannot be sent there: no approval changes that, so it is none of what is asked about.
pub(super) fn leave_not_sendable(
    catalog: &Catalog,
    order: &Order,
    findings: &mut [Finding],
    kind: Kind,
) -> Result<(), RunError> {
    let is_of_kind = |finding: &&mut Finding| finding.kind == kind && is_ours(finding, order);
    let mut of_kind: Vec<&mut Finding> = findings.iter_mut().filter(is_of_kind).collect();
    let own = catalog.site(&order.near)?;
    for slice in of_kind.chunks_mut(NAMES_MAX) {
        let (known, replicas) = files(catalog, slice)?;
        for (finding, file) in slice.iter_mut().zip(known) {
            let why = file.and_then(|file| why_not(order, &file, &replicas, own));
            if let Some(why) = why {
                finding.note = format!("{LEFT}{why}");
            }
        }
    }
    Ok(())
}

/// Why a file is not sent there again, if it is not.
fn why_not(order: &Order, file: &File, replicas: &[Replica], own: SiteId) -> Option<&'static str> {
    if !matches!(file.state, State::Receipted | State::Adopted) {
        return Some("it is cancelled or in quarantine here");
    }
    // In the queue it would go to others or nowhere, and the replica that is lost would be no difference any more.
    if !order.sent.contains(&file.rule) {
        return Some("its rule does not send it there");
    }
    let is_whole = |replica: &Replica| replica.state == ReplicaState::Present;
    let here = at(replicas, file, own);
    (!here.is_some_and(is_whole)).then_some("we have no whole copy any more")
}

fn at<'a>(replicas: &'a [Replica], file: &File, site: SiteId) -> Option<&'a Replica> {
    replicas.iter().find(|replica| (replica.file, replica.site) == (file.id, site))
}

/// Repairs what is ours to repair; says how many files, and notes what is left.
pub(super) fn repair(
    catalog: &Catalog,
    far: &mut impl Far,
    order: &Order,
    findings: &mut [Finding],
    now: &impl Fn() -> Time,
) -> Result<usize, RunError> {
    let mut ours: Vec<&mut Finding> =
        findings.iter_mut().filter(|finding| is_ours(finding, order)).collect();
    let (mut repaired, mut rest) = (0, &mut ours[..]);
    while !rest.is_empty() {
        let fit = fit(rest.iter().map(|finding| &*finding.name));
        let (slice, after) = rest.split_at_mut(fit);
        rest = after;
        let receipts = receipts(far, order, slice)?;
        let stored = compare_copies(catalog, far, order, slice, now)?;
        let (own, far_site) = (catalog.site(&order.near)?, catalog.site(&order.far)?);
        let (mut changes, mut ends) = (Vec::new(), Vec::new());
        let (known, replicas) = files(catalog, slice)?;
        let send = |file: &File| send_again(order, file, &replicas, [own, far_site]);
        for (index, (finding, file)) in slice.iter().zip(known).enumerate() {
            let receipt = || proof(finding, &receipts[index], order);
            let what = match (finding.kind, file) {
                (Kind::MissingThere, Some(file)) => Ok(send(&file)),
                (Kind::Unrecorded, Some(file)) => Ok(record(&file, receipt(), far_site, now())),
                (Kind::WrongDigest, Some(file)) => {
                    Ok(verdict(stored[index]).and_then(|()| send(&file)))
                }
                (Kind::Extra, None) => adopt(catalog, receipt(), far_site, now()),
                (Kind::Stuck, Some(file)) => Ok(wake(&file)),
                // It came or went meanwhile: for the next run.
                _ => Ok(Ok(Vec::new())),
            };
            ends.push(what?.map(|more| {
                changes.extend(more);
                changes.len()
            }));
        }
        far.goes_on()?;
        let answers = catalog.submit(now(), changes).wait()?;
        let mut begin = 0;
        for (finding, end) in slice.iter_mut().zip(ends) {
            match end {
                Err(why) => finding.note = format!("{LEFT}{why}"),
                // What moved meanwhile is refused, and looked at again by the next run.
                Ok(end) => {
                    let of_file = &answers[begin..end];
                    repaired += usize::from(end > begin && of_file.iter().all(Result::is_ok));
                    begin = end;
                }
            }
        }
    }
    Ok(repaired)
}

/// What a repair asks of the catalog, or why there is none.
type Wanted = Result<Result<Vec<Change>, &'static str>, RunError>;

/// The file of each finding, if the catalog has it, and what copies there are of them.
fn files(
    catalog: &Catalog,
    findings: &[&mut Finding],
) -> Result<(Vec<Option<File>>, Vec<Replica>), RunError> {
    let mut reader = catalog.reader()?;
    let sites = reader.sites()?;
    let site = |name: &str| sites.iter().find(|(_, site)| site == name).map(|(id, _)| *id);
    let called: Vec<_> = findings
        .iter()
        .map(|f| (site(&f.origin).unwrap_or(SiteId(0)), f.name.as_str(), f.version))
        .collect();
    let files = reader.files_called(&called)?;
    let ids: Vec<FileId> = files.iter().flatten().map(|file| file.id).collect();
    Ok((files, reader.replicas_of(&ids)?))
}

/// The holder's receipts for what is proved by them; empty for everything else.
fn receipts(
    far: &mut impl Far,
    order: &Order,
    findings: &[&mut Finding],
) -> Result<Vec<Packed>, RunError> {
    let wanted = |finding: &Finding| matches!(finding.kind, Kind::Unrecorded | Kind::Extra);
    let names: Vec<_> = findings.iter().filter(|f| wanted(f)).map(|f| called(f)).collect();
    if names.is_empty() {
        return Ok(vec![Packed::default(); findings.len()]);
    }
    let question = Question::Receipts(scope_of(order, Holder::Far), names);
    let Ok([Answer::Receipts(found)]) = <[Answer; 1]>::try_from(far.ask(&[question])?) else {
        return Err(RunError::Far("receipts were asked".to_owned()));
    };
    let mut found = found.into_iter();
    let mut of = |finding: &Finding| {
        if wanted(finding) { found.next().unwrap_or_default() } else { Packed::default() }
    };
    Ok(findings.iter().map(|finding| of(finding)).collect())
}

fn called(finding: &Finding) -> (String, i64) {
    (finding.name.clone(), finding.version)
}

/// Where digests differ, both sides read what they have: here, there. `None` where one of them could not.
fn compare_copies(
    catalog: &Catalog,
    far: &mut impl Far,
    order: &Order,
    findings: &[&mut Finding],
    now: &impl Fn() -> Time,
) -> Result<Vec<Option<[Stored; 2]>>, RunError> {
    let mut stored = vec![None; findings.len()];
    let wrong = findings.iter().enumerate().filter(|(_, f)| f.kind == Kind::WrongDigest);
    let mut wrong = wrong.map(|(index, finding)| (index, finding.size, called(finding))).peekable();
    while let Some((first, size, name)) = wrong.next() {
        let (mut indexes, mut bytes, mut names) = (vec![first], size, vec![name]);
        while let Some((index, size, name)) =
            wrong.next_if(|(_, size, _)| bytes.saturating_add(*size) <= READ_BACK_BYTES_MAX)
        {
            indexes.push(index);
            names.push(name);
            bytes += size;
        }
        far.goes_on()?;
        let (here, of) = ((&*order.near, &*order.base), (&*order.near, &*names));
        let goes_on = || far.goes_on().is_ok();
        let near = match read_back(catalog, here, &order.copies, of, now, goes_on) {
            Err(RunError::Machine(why)) => Err(why),
            near => Ok(near?),
        };
        let both = near.and_then(|near| match far.read_back(&order.near, &names) {
            Ok(there) => Ok((near, there)),
            Err(FarError(why)) => Err(why),
        });
        let (near, there) = match both {
            Ok(both) => both,
            Err(why) => {
                tracing::warn!(remote = %order.far, files = names.len(), %why, "copies not read");
                continue;
            }
        };
        if there.len() != names.len() {
            return Err(RunError::Far("each copy was to be read".to_owned()));
        }
        for (index, pair) in indexes.into_iter().zip(near.into_iter().zip(there)) {
            stored[index] = Some(pair.into());
        }
    }
    Ok(stored)
}

/// Whether our copy is to replace theirs.
fn verdict(stored: Option<[Stored; 2]>) -> Result<(), &'static str> {
    let Some([near, far]) = stored else {
        return Err("the copies were not read in time; a later comparison knows what they are");
    };
    match (near, far) {
        (Stored::AsRecorded, Stored::Damaged | Stored::Nothing) => Ok(()),
        (Stored::AsRecorded, Stored::AsRecorded) => {
            Err("both copies are what their side recorded; say which one is meant")
        }
        (Stored::Damaged, Stored::AsRecorded) => {
            Err("our copy is damaged, theirs is what they recorded")
        }
        (Stored::Nothing, Stored::AsRecorded) => {
            Err("we have no copy any more, theirs is what they recorded")
        }
        (Stored::Damaged | Stored::Nothing, _) => Err("neither copy is what was recorded"),
    }
}

fn step(file: &File, next: Next) -> Change {
    Change::Move(Move { file: file.id, at: file.revision, fence: None, next })
}

/// The replica there is lost, and the file goes back to the queue.
fn send_again(
    order: &Order,
    file: &File,
    replicas: &[Replica],
    [own, holder]: [SiteId; 2],
) -> Result<Vec<Change>, &'static str> {
    if let Some(why) = why_not(order, file, replicas, own) {
        return Err(why);
    }
    let lost = at(replicas, file, holder).cloned();
    // Each is judged by itself: of a file that somebody else has queued meanwhile the replica is lost all the same. If its copy came
    // before that, the next run records it again by its receipt.
    let mut changes = vec![step(file, Next::Queued)];
    changes.extend(lost.map(|lost| Change::Replica(Replica { state: ReplicaState::Lost, ..lost })));
    Ok(changes)
}

fn wake(file: &File) -> Result<Vec<Change>, &'static str> {
    Ok(if file.state == State::Waiting { vec![step(file, Next::Resumed)] } else { Vec::new() })
}

/// The holder's receipt for a file of ours, if it is one.
fn proof(
    finding: &Finding,
    bytes: &Packed,
    order: &Order,
) -> Result<SignedFileReceipt, &'static str> {
    let Ok(signed) = SignedFileReceipt::from_bytes(&bytes.0) else {
        return Err("the holder has no receipt for it");
    };
    let said = &signed.receipt;
    let is_it = said.key() == FileKey::of(&order.near, &finding.name, finding.version)
        && order.far_key.is_none_or(|key| key == said.receiver)
        && signed.verify().is_ok();
    if is_it { Ok(signed) } else { Err("the holder's receipt is not right") }
}

/// What the holder's receipt proves of a file that we know.
fn record(
    file: &File,
    proof: Result<SignedFileReceipt, &'static str>,
    holder: SiteId,
    at: Time,
) -> Result<Vec<Change>, &'static str> {
    let signed = proof?;
    let said = &signed.receipt;
    let digest = file.digest.as_ref().map(Digest::value);
    if said.size != file.size || digest != Some(&said.blake3.0[..]) {
        return Err("the holder's receipt is for other content");
    }
    let (path, state) = (said.path.clone(), ReplicaState::Present);
    let replica = Replica { file: file.id, site: holder, path, state };
    Ok(vec![Change::Replica(replica), Change::Receipt(signed.kept(file.id, at))])
}

/// A file of ours that our catalog does not know, as the holder's receipt has it.
fn adopt(
    catalog: &Catalog,
    proof: Result<SignedFileReceipt, &'static str>,
    holder: SiteId,
    at: Time,
) -> Wanted {
    let signed = match proof {
        Ok(signed) => signed,
        Err(why) => return Ok(Err(why)),
    };
    let said = &signed.receipt;
    if said.version > OWN_VERSION_MAX {
        return Ok(Err("no file has as many versions"));
    }
    let of = (catalog.site(&said.site)?, catalog.rule(&said.rule)?);
    Ok(Ok(vec![Change::Adopt(signed.adopted(of, (holder, said.path.clone()), at))]))
}
