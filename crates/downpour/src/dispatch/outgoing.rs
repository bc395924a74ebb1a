//! One batch at its source: offered, sent, recorded.
//!
//! 1. Claimed files are looked up: where they lie, what they are called, what the destination has said before.
//! 2. When it has its turns to read them they are offered. What the destination has is recorded by its receipt; what it
//!    refuses waits or is set apart.
//! 3. What it takes is sent in one session; its results are asked for until all are there.
//! 4. Each step is one commit for all files that take it. Whatever fails in between is taken up by the next batch: the
//!    destination says what it has.

use super::book::{Book, Held};
use super::hooks::kill_point;
use super::ledger::Session;
use super::link::Link;
use super::offer::{Arrived, BatchState, Begin, Offer, OfferAnswer, OfferItem, Said, Trouble};
use super::people::BatchReport;
use super::policy::{blames_link, blames_site, source_class};
use super::route::Route;
use super::stand::{Stand, Verdict};
use super::turns::had;
use super::{Dispatch, lock, now};
use crate::cli::Fault as SessionFault;
use crate::object::{CHANGED, REMOVED};
use crate::object::{DigestBook, Item, Skipped};
use crate::receipt::SignedFileReceipt;
use crate::session::{ItemEnd, Running, SendFiles, SendTurns, SentFiles, send_files};
use crate::site::{Fault, Remote, RemoteError, Side, Site, blocking};
use crate::spool::in_words;
use crate::ticket::Ticket;
use crate::units::HostPort;
use downpour_catalog::{
    Change, ErrorClass, FileId, Next, Reason, Replica, ReplicaState, SiteId, State,
};
use downpour_proto::Rng;
use downpour_transport::control::SessionId;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the destination may take to join the session.
const JOIN_TIME: Duration = Duration::from_secs(60);
/// How long an answer about a batch is waited for at a time, at the destination; what has arrived is known as often.
const ASK_WAIT_S: u64 = 2;
/// How often a batch is asked about in vain before it is given up.
const ASK_TRIES: u32 = 5;
/// How long a session that is stopped may take to end.
const STOP_TIME: Duration = Duration::from_secs(30);
/// How long the disk of files that could not be read is asked why.
const LOOK_TIME: Duration = Duration::from_secs(10);
/// Between two of these.
const ASK_PAUSE: Duration = Duration::from_secs(2);

/// One batch under way.
pub(super) struct Outgoing {
    pub(super) site: Arc<Site>,
    pub(super) remote: Arc<Remote>,
    pub(super) dispatch: Arc<Dispatch>,
    /// Of its files.
    pub(super) book: Arc<Book>,
    pub(super) destination: SiteId,
    pub(super) route: Route,
    /// Of the batch, and of its session.
    pub(super) id: SessionId,
    pub(super) rng: Rng,
    pub(super) progress: Arc<Progress>,
}

/// How far it is.
#[derive(Debug)]
pub(super) struct Progress {
    report: Mutex<BatchReport>,
    pub(super) ids: Vec<FileId>,
    stand: Mutex<Stand>,
}

impl Progress {
    pub(super) fn new(
        id: SessionId,
        site: &Site,
        remote: &Remote,
        rule: &str,
        held: &[Held],
    ) -> Self {
        let report = BatchReport {
            id: batch_name(id),
            site: remote.name().to_owned(),
            arrives: false,
            rule: rule.to_owned(),
            files: held.len() as u64,
            bytes: held.iter().map(|held| held.file.size).sum(),
            arrived: 0,
            failed: 0,
            since_us: site.clock.now().0,
            stands_s: None,
        };
        let stand = Mutex::new(Stand::new(remote.section.rate_each()));
        let ids = held.iter().map(|held| held.file.id).collect();
        Self { report: Mutex::new(report), ids, stand }
    }

    pub(super) fn report(&self) -> BatchReport {
        let stands_s = lock(&self.stand).since(now()).map(|since| since.as_secs());
        BatchReport { stands_s, ..lock(&self.report).clone() }
    }

    /// That nothing has arrived for long.
    pub(super) fn standing(&self) -> Option<String> {
        let BatchReport { site: to, stands_s, .. } = self.report();
        let since = stands_s?;
        Some(format!(
            "nothing has arrived at {to} for {since} s; see to the disk there, and to the one here that is read"
        ))
    }

    fn arrived(&self, bytes: u64) {
        lock(&self.report).arrived = bytes;
    }

    fn failed(&self, files: usize) {
        lock(&self.report).failed += files as u64;
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivered {
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// The destination was asked nothing, which says nothing of the link.
    pub(super) is_unasked: bool,
}

/// The link failed, and with it all files that were still under way.
pub(super) struct Broken {
    pub(super) class: ErrorClass,
    pub(super) what: String,
    /// All were refused for want of room: the size of the smallest.
    pub(super) too_large: Option<u64>,
}

impl From<RemoteError> for Broken {
    fn from(error: RemoteError) -> Self {
        Self { class: error.class(Side::Destination), what: error.to_string(), too_large: None }
    }
}

impl Outgoing {
    /// Moves these files. `Err` is our own fault; that of the link is told beside what was delivered.
    pub(super) async fn run(
        &mut self,
        held: Vec<Held>,
    ) -> Result<(Delivered, Option<Broken>), Fault> {
        let book = self.book.clone();
        tokio::select! {
            done = self.deliver(held) => done,
            fault = book.renew() => Err(fault),
        }
    }

    async fn deliver(&mut self, held: Vec<Held>) -> Result<(Delivered, Option<Broken>), Fault> {
        let mut delivered = Delivered::default();
        // Had before the offer: the destination does not keep that for as long as a turn may take.
        let paths = held.iter().map(|held| held.path.as_path());
        let turns = self.dispatch.turns.sends(&self.site.config(), paths);
        let turns = match had(turns).await {
            Ok(turns) => turns,
            Err(trouble) => {
                let failed = held.into_iter().map(|held| (held, trouble.clone())).collect();
                delivered.is_unasked = true;
                return self.fail(failed).await.map(|()| (delivered, None));
            }
        };
        let offer = Offer {
            batch: batch_name(self.id),
            items: held.iter().map(|held| item(held, &self.route)).collect(),
        };
        let answer: OfferAnswer = match self.remote.post("/v1/site/offers", &offer).await {
            Ok(answer) => answer,
            Err(error) => {
                let broken = self.broken(held, error.into()).await?;
                return Ok((delivered, Some(broken)));
            }
        };
        kill_point("offer.after");
        if answer.items.len() != held.len() {
            let what = "the destination answered for another number of files".to_owned();
            let broken = Broken { class: ErrorClass::DestinationRefused, what, too_large: None };
            return Ok((delivered, Some(self.broken(held, broken).await?)));
        }
        let (mut take, mut have, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for (held, said) in held.into_iter().zip(answer.items) {
            match said {
                Said::Take { path } => take.push((held, path)),
                Said::Have { receipt } => match self.check(&held, &receipt) {
                    Ok(()) => have.push((held, *receipt)),
                    Err(what) => {
                        failed.push((held, Trouble::new(ErrorClass::DestinationRefused, what)))
                    }
                },
                Said::Refuse(trouble) => failed.push((held, trouble)),
            }
        }
        let takes_none = take.is_empty() && have.is_empty();
        let broken = if takes_none { takes_nothing(&failed) } else { None };
        self.fail(failed).await?;
        self.record(have, &mut delivered).await?;
        let broken = match take.is_empty() {
            true => broken,
            false => self.send(take, turns, &mut delivered).await?,
        };
        Ok((delivered, broken))
    }

    /// Whether a receipt is the destination's word for this very file.
    fn check(&self, held: &Held, signed: &SignedFileReceipt) -> Result<(), String> {
        let (said, file) = (&signed.receipt, &held.file);
        if said.receiver != self.remote.key() {
            return Err("the receipt is another node's".to_owned());
        }
        signed.verify().map_err(|error| error.to_string())?;
        let same = said.site == held.origin
            && (said.name.as_str(), said.version) == (file.name.as_str(), file.version)
            && said.size == file.size
            && file.digest.as_ref().is_some_and(|digest| digest.value() == said.blake3.0);
        if same { Ok(()) } else { Err("the receipt is of another file".to_owned()) }
    }

    async fn send(
        &mut self,
        take: Vec<(Held, String)>,
        turns: SendTurns,
        delivered: &mut Delivered,
    ) -> Result<Option<Broken>, Fault> {
        let (held, paths): (Vec<Held>, Vec<String>) = take.into_iter().unzip();
        let session = self.id.to_text();
        let goes = |held: &Held| held.goes_by(session.clone());
        self.book.record(held.iter().map(goes).collect()).await?;
        let (mut running, ticket) = self.open(&held, paths, turns);
        let on_link = self.on_link().await;
        let ticket = match self.ticket(ticket, &held, |item| running.give_up(item)).await {
            Ok(ticket) => ticket,
            Err(Some(what)) => {
                let hung = |held| (held, Trouble::new(ErrorClass::SourceReadFailed, what.as_str()));
                return self.fail(held.into_iter().map(hung).collect()).await.map(|()| None);
            }
            Err(None) => return self.not_opened(held, &mut running).await.map(Some),
        };
        lock(&self.dispatch.links).get_mut(self.remote.name()).into_iter().for_each(Link::taken);
        let begin = Begin { ticket: self.reachable(ticket).to_string() };
        let path = format!("/v1/site/batches/{}", batch_name(self.id));
        if let Err(error) = self.remote.post::<serde_json::Value>(&path, &begin).await {
            running.stop();
            return self.broken(held, error.into()).await.map(Some);
        }
        let (ends, results) = self.wait(&mut running, &path, &held, on_link).await;
        let names: HashMap<FileId, usize> =
            held.iter().enumerate().map(|(index, held)| (held.file.id, index)).collect();
        let sent = |held: &Held| matches!(ends.get(names[&held.file.id]), Some(ItemEnd::Placed));
        let (done, open): (Vec<Held>, Vec<Held>) = held.into_iter().partition(|h| sent(h));
        let of = |held: &Held| Next::Sent { bytes: held.file.size };
        let mut all = self.book.step("sent", done, of).await?;
        all.extend(open);
        match results {
            Ok(state) => {
                let all = all.into_iter().map(|held| {
                    let index = names[&held.file.id];
                    (held, ends.get(index).cloned(), state.items.get(index).cloned())
                });
                self.settle(all.collect(), delivered).await
            }
            Err(broken) => self.broken(all, broken).await.map(Some),
        }
    }

    fn open(
        &self,
        held: &[Held],
        paths: Vec<String>,
        turns: SendTurns,
    ) -> (Running<SentFiles>, oneshot::Receiver<Ticket>) {
        let item = |(held, name): (&Held, String)| Item {
            path: held.path.clone(),
            name,
            size: Some(held.file.size),
        };
        let config = self.site.config();
        let link = &self.remote.section;
        send_files(SendFiles {
            identity: self.site.identity.clone(),
            // Without it all is hashed, as at the first time.
            book: DigestBook::open(config.state().join(DigestBook::FOLDER)).ok(),
            session: self.id,
            receiver: self.remote.key(),
            items: held.iter().zip(paths).map(item).collect(),
            path: link.path.path(),
            encryption: link.encryption,
            rate: link.rate_each(),
            controller: config.controller,
            listen: None,
            ports: config.transfer.ports.parse().unwrap_or(crate::ports::PortRange::DEFAULT),
            wait: JOIN_TIME,
            uplink: self.dispatch.book.uplink.clone(),
            turns,
        })
    }

    /// The ticket, when the session is open. That hangs where the disk of the files does: then what it is that nothing
    /// arrives. Nothing, where no session can be opened.
    async fn ticket(
        &self,
        mut ticket: oneshot::Receiver<Ticket>,
        held: &[Held],
        give_up: impl Fn(usize),
    ) -> Result<Ticket, Option<String>> {
        loop {
            tokio::select! {
                ticket = &mut ticket => return ticket.map_err(|_| None),
                () = self.lost(held, &give_up) => {}
                () = tokio::time::sleep(ASK_PAUSE) => {}
            }
            let (verdict, what) = self.stand(ErrorClass::SourceReadFailed, (0, true), held);
            if matches!(verdict, Verdict::GiveUp | Verdict::Unwanted) {
                return Err(Some(what));
            }
        }
    }

    /// Gives up what is lost, as soon as something is.
    async fn lost(&self, held: &[Held], give_up: impl Fn(usize)) {
        for (file, _) in self.book.lost().await {
            held.iter().position(|held| held.file.id == file).into_iter().for_each(&give_up);
        }
    }

    /// What follows from so many bytes that have arrived of a batch, and whether more is to; that nothing does is told.
    fn stand(
        &self,
        class: ErrorClass,
        (bytes, lacks): (u64, bool),
        held: &[Held],
    ) -> (Verdict, String) {
        let is = (lacks, held.iter().any(|held| self.book.holds(held)));
        let verdict = lock(&self.progress.stand).answered(now(), bytes, is);
        let what = self.progress.standing().unwrap_or_default();
        if verdict == Verdict::Tell {
            tracing::warn!(files = held.len(), "{what}");
            self.book.tell_trouble(&held[0], Some(self.remote.name()), (class, &what));
        }
        (verdict, what)
    }

    /// Others of the queue would fare no better: the link rests, as where the other side takes nothing.
    async fn not_opened(
        &mut self,
        held: Vec<Held>,
        running: &mut Running<SentFiles>,
    ) -> Result<Broken, Fault> {
        let fault = running.done().await.err();
        let why = fault.map_or_else(|| "the session did not open".to_owned(), |f| f.what);
        let what = format!("this site opens no session (see `ports` of [transfer]): {why}");
        let broken = Broken { class: ErrorClass::OutOfResources, what, too_large: None };
        self.broken(held, broken).await
    }

    /// A session on the link to the destination begins, whose end is written down.
    async fn on_link(&self) -> Option<Session> {
        let link = self.dispatch.book.link(&self.site.name, self.remote.name()).await;
        let link = link.inspect_err(|fault| tracing::warn!(%fault, "a link is not written down"));
        Some(link.ok()?.begin().0)
    }

    /// With the host by which others reach us first, when the configuration names one.
    fn reachable(&self, mut ticket: Ticket) -> Ticket {
        if let Some(host) = &self.site.config().transfer.host {
            let port = ticket.addrs.first().and_then(|addr| addr.rsplit(':').next()?.parse().ok());
            let named = port.map(|port| HostPort { host: host.clone(), port }.to_string());
            ticket.addrs.splice(0..0, named);
        }
        ticket
    }

    /// Waits until both sides have said what became of the files.
    async fn wait(
        &self,
        running: &mut Running<SentFiles>,
        path: &str,
        held: &[Held],
        on_link: Option<Session>,
    ) -> (Vec<ItemEnd>, Result<BatchState, Broken>) {
        let mut ended = None;
        let results = self.results(running, &mut ended, path, held).await;
        let is_over = !results.as_ref().is_ok_and(|state| state.done) || !running.has_begun();
        // Where the destination could not begin, nobody comes to the session any more. One that has begun ends by itself.
        if is_over {
            running.stop();
        }
        let time = if is_over { STOP_TIME } else { Duration::MAX };
        let ended = match ended {
            Some(ended) => Ok(ended),
            None => tokio::time::timeout(time, running.done()).await,
        };
        let ends = match ended {
            // It hangs in a disk, and ends with that.
            Err(_) => Vec::new(),
            Ok(Ok(sent)) => {
                // What a session by TCP showed of the link.
                let shown = sent.report.transfer.as_ref().filter(|transfer| transfer.path == "tcp");
                if let Some((session, transfer)) = on_link.zip(shown) {
                    session.sent(transfer);
                }
                sent.items
            }
            Ok(Err(fault)) => {
                tracing::warn!(what = %fault.what, "a session failed");
                Vec::new()
            }
        };
        (ends, results)
    }

    /// What the destination says became of the files; not done, if all were cancelled and the batch does not end. How our session
    /// ended is taken note of when it has.
    async fn results(
        &self,
        running: &mut Running<SentFiles>,
        ended: &mut Option<Result<SentFiles, SessionFault>>,
        path: &str,
        held: &[Held],
    ) -> Result<BatchState, Broken> {
        let ask = format!("{path}?wait={ASK_WAIT_S}");
        let mut tries = 0;
        loop {
            let answer = tokio::select! {
                answer = self.remote.get::<BatchState>(&ask) => answer,
                () = self.lost(held, |item| running.give_up(item)) => continue,
            };
            match answer {
                Ok(state) if state.done => return Ok(state),
                Ok(state) => {
                    tries = 0;
                    self.progress.arrived(state.bytes);
                    let bytes = state.bytes.saturating_add(state.came);
                    let class = ErrorClass::TimedOut;
                    if ended.is_none() && running.is_over() {
                        *ended = Some(running.done().await);
                    }
                    let lacks = ended.as_ref().map_or_else(|| running.has_begun(), lacks);
                    let (verdict, what) = self.stand(class, (bytes, lacks), held);
                    match verdict {
                        Verdict::GoesOn | Verdict::Tell => {}
                        Verdict::GiveUp => return Err(Broken { class, what, too_large: None }),
                        Verdict::Unwanted => return Ok(state),
                    }
                }
                // It has started again and knows nothing of this batch: what it has it will say to the next offer.
                Err(RemoteError::Refused(problem)) => {
                    let what = format!("it forgot the batch: {}", problem.what);
                    let class = ErrorClass::ConnectionLost;
                    return Err(Broken { class, what, too_large: None });
                }
                Err(error) => {
                    tries += 1;
                    if tries >= ASK_TRIES {
                        return Err(error.into());
                    }
                    tokio::time::sleep(ASK_PAUSE).await;
                }
            }
        }
    }

    /// What the destination says counts; where it failed for a reason of ours, ours does. What the link is to blame for, if
    /// nothing came by it.
    async fn settle(
        &mut self,
        mut all: Vec<(Held, Option<ItemEnd>, Option<Arrived>)>,
        delivered: &mut Delivered,
    ) -> Result<Option<Broken>, Fault> {
        // What an operator cancelled meanwhile is no trouble, and nothing is asked of its disk.
        all.retain(|(held, _, arrived)| {
            matches!(arrived, Some(Arrived::Placed { .. })) || self.book.holds(held)
        });
        let (mut placed, mut failed, mut unread) = (Vec::new(), Vec::new(), Vec::new());
        for (held, end, arrived) in all {
            match (end, arrived) {
                (_, Some(Arrived::Placed { receipt })) => match self.check(&held, &receipt) {
                    Ok(()) => placed.push((held, *receipt)),
                    Err(what) => {
                        failed.push((held, Trouble::new(ErrorClass::DestinationRefused, what)))
                    }
                },
                (Some(ItemEnd::Skipped(skipped)), _) => {
                    failed.push((held, Trouble::new(class_of(skipped), "not sent")));
                }
                (Some(ItemEnd::Withdrawn(why)), _) => unread.push((held, why)),
                (_, Some(Arrived::Failed(trouble))) => failed.push((held, trouble)),
                (_, None) => {
                    let what = "the destination says nothing of it";
                    failed.push((held, Trouble::new(ErrorClass::ConnectionLost, what)));
                }
            }
        }
        let of = |(held, why): &(Held, String)| Unread {
            path: held.path.clone(),
            size: held.file.size,
            is_changed: [CHANGED, REMOVED].contains(&why.as_str()),
        };
        let classes = why_unread(unread.iter().map(of).collect()).await;
        let unread = unread.into_iter().zip(classes);
        failed.extend(unread.map(|((held, why), class)| (held, Trouble::new(class, why))));
        let broken = if placed.is_empty() { brought_nothing(&failed) } else { None };
        self.record(placed, delivered).await?;
        self.fail(failed).await?;
        Ok(broken)
    }

    /// These are at the destination: verified, then receipted; or, if others are still to have them, back into the queue.
    async fn record(
        &mut self,
        placed: Vec<(Held, SignedFileReceipt)>,
        delivered: &mut Delivered,
    ) -> Result<(), Fault> {
        let mut receipts: HashMap<FileId, SignedFileReceipt> = HashMap::new();
        let mut fresh = Vec::new();
        let mut sent = Vec::new();
        let mut others = Vec::new();
        for (held, receipt) in placed {
            delivered.files += 1;
            delivered.bytes += held.file.size;
            receipts.insert(held.file.id, receipt);
            match self.route.is_last(held.file.id, &self.remote.section.name) {
                true if held.state == State::Sending => fresh.push(held),
                true => sent.push(held),
                false => others.push(held),
            }
        }
        let now = self.book.now();
        let kept = |file: FileId| receipts[&file].kept(file, now);
        let site = self.destination;
        let path = |file: FileId| receipts[&file].receipt.path.clone();
        sent.extend(self.book.step("sent", fresh, |_| Next::Sent { bytes: 0 }).await?);
        let next = |held: &Held| Next::Verified(site, path(held.file.id));
        let verified = self.book.step("verified", sent, next).await?;
        let next = |held: &Held| Next::Receipted(kept(held.file.id));
        self.book.step("receipted", verified, next).await?;
        let replica = |file| Replica { file, site, path: path(file), state: ReplicaState::Present };
        let changes = others
            .iter()
            .map(|held| held.file.id)
            .flat_map(|file| [Change::Replica(replica(file)), Change::Receipt(kept(file))]);
        self.book.record(changes.collect()).await?;
        self.book.put_back(others, Reason::Turn, None, Duration::ZERO).await
    }

    async fn fail(&mut self, mut failed: Vec<(Held, Trouble)>) -> Result<(), Fault> {
        // What an operator cancelled meanwhile is no trouble, whatever it looks like from here.
        failed.retain(|(held, _)| self.book.holds(held));
        for (held, trouble) in &failed {
            tracing::info!(file = %held.file.name, %trouble, "failed");
            let why = (trouble.class(), trouble.what.as_str());
            self.book.tell_trouble(held, Some(self.remote.name()), why);
        }
        self.progress.failed(failed.len());
        let after = |trouble: &Trouble| trouble.after_s.map(|s| Duration::from_secs(s.into()));
        let failed = failed.into_iter().map(|(held, t)| (held, t.class(), after(&t)));
        self.book.fail(failed.collect(), &mut self.rng).await
    }

    /// The link failed: all these wait for it.
    async fn broken(&mut self, held: Vec<Held>, broken: Broken) -> Result<Broken, Fault> {
        tracing::warn!(site = %self.remote.section.name, class = %broken.class, what = %broken.what, files = held.len(), "a batch failed");
        self.fail_all(held, broken.class).await?;
        Ok(broken)
    }

    /// All these failed for a reason that is none of theirs.
    async fn fail_all(&mut self, mut held: Vec<Held>, class: ErrorClass) -> Result<(), Fault> {
        held.retain(|held| self.book.holds(held));
        self.progress.failed(held.len());
        let failed = held.into_iter().map(|held| (held, class, None));
        self.book.fail(failed.collect(), &mut self.rng).await
    }
}

/// A file as it is offered.
pub(super) fn item(held: &Held, route: &Route) -> OfferItem {
    let file = &held.file;
    let digest = file.digest.as_ref().map(downpour_catalog::Digest::hex).unwrap_or_default();
    OfferItem {
        site: held.origin.clone(),
        name: file.name.clone(),
        version: file.version,
        taken_in_us: file.taken_in.0,
        rule: held.rule.clone(),
        size: file.size,
        blake3: digest,
        into: route.path_of(held),
        digests: in_words(&held.digests),
    }
}

/// What the other site says of itself when it refuses all files of an offer for its own sake.
fn takes_nothing(failed: &[(Held, Trouble)]) -> Option<Broken> {
    let all = failed.iter().all(|(_, trouble)| blames_site(trouble.class()));
    // The smallest, which found no room either.
    let (held, trouble) = failed.iter().min_by_key(|(held, _)| held.file.size).filter(|_| all)?;
    let is_full = |(_, trouble): &(Held, Trouble)| trouble.class() == ErrorClass::DestinationFull;
    let too_large = failed.iter().all(is_full).then_some(held.file.size);
    Some(Broken { class: trouble.class(), what: trouble.what.clone(), too_large })
}

/// What all files of a session failed by, where the link is to blame for each.
fn brought_nothing(failed: &[(Held, Trouble)]) -> Option<Broken> {
    let all = failed.iter().all(|(_, trouble)| blames_link(trouble.class()));
    let (_, trouble) = failed.first().filter(|_| all)?;
    Some(Broken { class: trouble.class(), what: trouble.what.clone(), too_large: None })
}

/// Whether a session ended before its receiver had said what became of all: that hangs, or goes before long.
fn lacks(ended: &Result<SentFiles, SessionFault>) -> bool {
    ended.as_ref().map_or(true, |sent| sent.items.contains(&ItemEnd::Unknown))
}

/// A batch is called as its session is, in hexadecimal digits.
pub(super) fn batch_name(id: SessionId) -> String {
    downpour_catalog::hex(id.as_bytes())
}

/// Why the session did not send a file.
const fn class_of(skipped: Skipped) -> ErrorClass {
    match skipped {
        Skipped::Gone => ErrorClass::FileGone,
        Skipped::Changed => ErrorClass::FileChanged,
        Skipped::Unreadable => ErrorClass::FileUnreadable,
        Skipped::ReadFailed => ErrorClass::SourceReadFailed,
        // The destination chose a path that cannot be one.
        Skipped::NameTaken | Skipped::NameRefused => ErrorClass::DestinationRefused,
    }
}

/// A file that was there, with this size, and could not be read to its end.
pub(super) struct Unread {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// That is said of it.
    pub(super) is_changed: bool,
}

/// Why each of these could not be read.
pub(super) async fn why_unread(files: Vec<Unread>) -> Vec<ErrorClass> {
    let count = files.len();
    let why = |of: &Unread| why_not_read(&of.path, of.size, of.is_changed);
    in_time(count, move || files.iter().map(why).collect()).await
}

/// What is found out about so many files, if their disk answers. It may not, and nobody waits for that.
async fn in_time(
    count: usize,
    look: impl FnOnce() -> Vec<ErrorClass> + Send + 'static,
) -> Vec<ErrorClass> {
    let look = blocking(move || Ok(look()));
    match tokio::time::timeout(LOOK_TIME, look).await {
        Ok(Ok(classes)) => classes,
        Ok(Err(_)) | Err(_) => vec![ErrorClass::SourceReadFailed; count],
    }
}

fn why_not_read(path: &Path, size: u64, is_changed: bool) -> ErrorClass {
    match path.symlink_metadata() {
        Err(error) => source_class(&error),
        Ok(meta) if is_changed || !meta.is_file() || meta.len() != size => ErrorClass::FileChanged,
        Ok(_) => match std::fs::File::open(path) {
            Err(error) => source_class(&error),
            Ok(_) => ErrorClass::SourceReadFailed,
        },
    }
}

#[cfg(test)]
mod tests;
