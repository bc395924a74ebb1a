//! The service `multicast`: one standing session for all rules that name receivers.
//!
//! 1. The session is open while there are such rules. Who may join is said by `[[receiver]]`; the ticket lies in the state
//!    folder and stays the same.
//! 2. Queued files are claimed when a receiver that lacks them is there, and go into the session as products, once for all.
//!    Those that as many have as must are claimed, too, and come to their end.
//! 3. Each receiver sends its receipts, or what went wrong. A receipt is recorded before the receiver hears that it was
//!    taken. A file is verified when as many have it as its rule requires.
//! 4. When everybody who is there has answered and that is not enough, the file waits, as after any failure, and goes again
//!    for those who lack it. Who joins wakes what waits for it. The service `dispatch` does that with what has waited long enough;
//!    while it does not work, this one does.
//! 5. One file is read after the other. Where a disk does not answer that is told, and then the session is begun anew:
//!    other rules go first.

use super::book::{Book, Held, until};
use super::link::{REST_MAX, rest, search_limit};
use super::load::{Loaded, load, receipts_that_hold};
use super::route::Route;
use super::stand::{self, Verdict};
use super::standing::{Given, Known, Presence, Present, Stand, Under, Unreadable};
use super::standing_session::Wanted;
use super::work::look;
use super::{Dispatch, SERVICE, lock, now};
use crate::product::{Listed, SiteFile, Told, Word};
use crate::receipt::SignedFileReceipt;
use crate::session::{Heard, OpenSession, Opened, Reads};
use crate::site::{Fault, Running, Service, Site, Status, Stop, Wish};
use crate::spool::in_words;
use downpour_catalog::{
    Change, Delivery, DeliveryState, ErrorClass, FileId, FileKey, Holder, Move, Next, Query,
    Reason, Receipt, Replica, ReplicaState, RuleId, Session, SessionId, SiteId, State, Takers,
    Time, Work,
};
use downpour_proto::Rng;
use downpour_transport::identity::PublicKey;
use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

/// Between two looks at the queue.
const TICK: Duration = Duration::from_millis(250);
/// Files in the session at once.
const FILES_MAX: usize = 2_000;
/// Files that are claimed at once.
const CLAIM_MAX: usize = 500;
/// Things heard that are answered together.
const HEARD_MAX: usize = 100;
/// Waiting files that one receiver wakes when it joins.
const WOKEN_MAX: usize = 10_000;
/// How long receivers may take, at the session's end, for what is left.
const END_TIME: Duration = Duration::from_secs(20);
/// How long other rules go without one that a session hung in: as long as it held them up.
const HUNG_REST: Duration = Duration::from_secs(600);

/// What the service shows of itself.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Receivers that take part, by name, while the session is open.
    pub(super) present: Option<BTreeSet<String>>,
    /// In which file's disk the session hangs, in words.
    pub(super) hangs: Option<String>,
    named: usize,
    under: usize,
    receipts: u64,
    again: u64,
}

impl Seen {
    fn close(&mut self) {
        (self.present, self.hangs) = (None, None);
    }
}

/// The service.
pub(super) struct Multicast(pub(super) Arc<Dispatch>);

impl Service for Multicast {
    fn name(&self) -> &'static str {
        "multicast"
    }

    fn run(self: Arc<Self>, site: Arc<Site>, stop: Stop) -> Running {
        Box::pin(async move {
            let done = work(&self.0, &site, &stop).await;
            lock(&self.0.multicast).close();
            // Nobody works on it any more.
            done.and(self.0.in_session.give_back(&site).await)
        })
    }

    fn status(&self) -> Status {
        let seen = lock(&self.0.multicast);
        let here = seen.present.as_ref().map_or(0, BTreeSet::len);
        let line = match seen.present {
            Some(_) => format!(
                "{here} of {} receivers are there, {} files under way{}",
                seen.named,
                seen.under,
                seen.hangs.iter().flat_map(|what| ["; ", what]).collect::<String>()
            ),
            None if seen.named == 0 => "no rule has receivers".to_owned(),
            None => "the session is not open".to_owned(),
        };
        Status::line(line)
            .with("receivers_present", here as f64)
            .with("receivers_named", seen.named as f64)
            .with("files_under_way", seen.under as f64)
            .with("receipts_total", seen.receipts as f64)
            .with("files_again_total", seen.again as f64)
    }
}

/// Serves, session after session, until it is asked to stop.
async fn work(dispatch: &Arc<Dispatch>, site: &Arc<Site>, stop: &Stop) -> Result<(), Fault> {
    // What a run that failed for want of the catalog could not give back.
    dispatch.in_session.give_back(site).await?;
    let mut hung = HashMap::new();
    while stop.wish() == Wish::Run {
        let mut changes = site.config_changes();
        let Some(wanted) = Wanted::of(&site.config()) else {
            lock(&dispatch.multicast).named = 0;
            tokio::select! {
                () = stop.asked() => return Ok(()),
                _ = changes.changed() => continue,
            }
        };
        lock(&dispatch.multicast).named = wanted.receivers.len();
        let (session, opened) = wanted.open(site).await?;
        let mut standing = Standing::new(dispatch, site, wanted, opened).await?;
        standing.hung = hung;
        let goes_on = standing.serve(session, stop).await;
        standing.record_session(Some(site.clock.now())).await?;
        hung = standing.hung;
        lock(&dispatch.multicast).close();
        if !goes_on? {
            break;
        }
    }
    Ok(())
}

/// How long a rule's files are not looked through again, of which so many were found and no more were asked for. Without its receivers
/// hardly anything becomes of those that are left: whoever joins ends the rest.
fn rest_of(took: Duration, (found, limit): (usize, usize), some_are_there: bool) -> Duration {
    match some_are_there || found >= limit {
        true => rest(took, found >= CLAIM_MAX),
        false => REST_MAX.max(took * 9),
    }
}

/// Keeps the rules that are looked through now, the first one first. One that a session hung in is not, for a time, where there are
/// others, and is the last then, until something of it was read.
fn in_order(
    rules: &mut Vec<(RuleId, &Route)>,
    hung: &HashMap<RuleId, Instant>,
    (now, are_others): (Instant, bool),
) {
    let rests = |rule: &RuleId| are_others && hung.get(rule).is_some_and(|until| *until > now);
    rules.retain(|(rule, _)| !rests(rule));
    rules.sort_by_key(|(rule, route)| (hung.contains_key(rule), route.priority));
}

/// That a file's disk does not answer.
fn hung(held: Option<&Held>, since: Duration) -> String {
    let file = held.map_or("a file that has gone back".into(), |held| held.path.to_string_lossy());
    let since = since.as_secs();
    format!("the disk of {file} has not answered for {since} s and holds up all else; see to it")
}

/// One session and the files in it.
struct Standing {
    dispatch: Arc<Dispatch>,
    site: Arc<Site>,
    wanted: Wanted,
    opened: Opened,
    id: SessionId,
    started: Time,
    names: HashMap<PublicKey, (String, SiteId)>,
    present: Presence,
    files: HashMap<FileKey, Under>,
    book: Arc<Book>,
    rng: Rng,
    /// Said, and to be answered after the next commit.
    heard: Vec<(PublicKey, Word, oneshot::Sender<()>)>,
    joined: BTreeSet<PublicKey>,
    /// When each rule's files are looked through again for those that somebody there lacks.
    rested: HashMap<RuleId, Instant>,
    /// In which rules' files this session or those before hung, and until when they rest.
    hung: HashMap<RuleId, Instant>,
    given: Given,
    unreadable: Unreadable,
    /// How it goes with what the session reads.
    reads: stand::Stand,
    /// Blocks before this one have gone out.
    sent_end: u32,
}

impl Standing {
    async fn new(
        dispatch: &Arc<Dispatch>,
        site: &Arc<Site>,
        wanted: Wanted,
        opened: Opened,
    ) -> Result<Self, Fault> {
        let (catalog, named) = (site.catalog.clone(), wanted.receivers.clone());
        let name = move |(name, key): (String, PublicKey)| {
            let site = catalog.site(&name)?;
            Ok((key, (name, site)))
        };
        let names = site.read(move |_| named.into_iter().map(name).collect()).await?;
        let (head, _) = opened.session.as_bytes().split_first_chunk().unwrap_or((&[0; 8], &[]));
        let started = site.clock.now();
        lock(&dispatch.multicast).present = Some(BTreeSet::new());
        let this = Self {
            dispatch: dispatch.clone(),
            site: site.clone(),
            wanted,
            opened,
            id: SessionId(i64::from_le_bytes(*head) & i64::MAX),
            started,
            names,
            present: Presence::new(),
            files: HashMap::new(),
            book: Arc::new(Book::new(site, &dispatch.look)),
            rng: Rng::new(super::link::seed()),
            heard: Vec::new(),
            joined: BTreeSet::new(),
            rested: HashMap::new(),
            hung: HashMap::new(),
            given: Given::default(),
            unreadable: Unreadable::default(),
            reads: stand::Stand::new(None),
            sent_end: 0,
        };
        this.record_session(None).await?;
        Ok(this)
    }

    async fn record_session(&self, ended: Option<Time>) -> Result<(), Fault> {
        let (id, stream, started) = (self.id, self.opened.stream, self.started);
        // One session serves many rules.
        let session = Session { id, stream, rule: RuleId(0), started, ended };
        self.book.record(vec![Change::Session(session)]).await
    }

    /// Until it is asked to stop (`false`), or the configuration needs another session (`true`).
    async fn serve(&mut self, mut session: OpenSession, stop: &Stop) -> Result<bool, Fault> {
        let (mut draining, mut goes_on) = (false, false);
        let book = self.book.clone();
        let mut renewing = pin!(book.renew());
        let mut changes = self.site.config_changes();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.now() => return self.cut(session).await.map(|()| false),
                () = stop.asked(), if !draining => draining = true,
                _ = changes.changed(), if !draining => {
                    if Wanted::of(&self.site.config()).as_ref() != Some(&self.wanted) {
                        (draining, goes_on) = (true, true);
                    }
                    // Fewer may have to have a file by now, or others who are here.
                    self.rested.clear();
                    self.joined.extend(self.present.keys());
                }
                fault = &mut renewing => return Err(fault),
                lost = book.lost() => {
                    let is_lost = |held: &Held| lost.contains(&(held.file.id, held.fence));
                    self.files.retain(|_, under| !is_lost(&under.held));
                }
                ended = session.running.done() => {
                    self.put_back().await?;
                    let what = ended.map_or_else(|f| f.what, |_| "the session is over".to_owned());
                    return Err(Fault::new(ErrorClass::ConnectionLost, what));
                }
                Some(heard) = session.heard.recv() => {
                    self.hear(heard);
                    while self.heard.len() < HEARD_MAX
                        && let Ok(heard) = session.heard.try_recv()
                    {
                        self.hear(heard);
                    }
                }
                known = self.unreadable.known() => self.note_unread(known),
                _ = tick.tick() => {
                    if self.site.supervisor().standstill(SERVICE).is_some() {
                        self.dispatch.claims.take_up(&self.site).await?;
                    }
                    if let Some(insert) = session.insert.as_ref().filter(|_| !draining) {
                        self.claim(insert).await?;
                    }
                    if self.hangs(&session.reads) {
                        return self.cut(session).await.map(|()| goes_on || !draining);
                    }
                }
            }
            self.answer().await?;
            self.settle().await?;
            self.wake().await?;
            if draining && self.files.is_empty() {
                break;
            }
        }
        self.end(session).await?;
        Ok(goes_on)
    }

    /// It ends now, whatever is under way.
    async fn cut(&mut self, mut session: OpenSession) -> Result<(), Fault> {
        self.put_back().await?;
        // Its port is free for the next one then.
        session.running.stop();
        let _ = tokio::time::timeout(END_TIME, session.running.done()).await;
        Ok(())
    }

    /// Whether the session is given up, as it hangs in a read: nothing comes after that. It is told before. Of the rule whose file
    /// it is all that have not been read fail, and it rests, so that others go first.
    fn hangs(&mut self, reads: &Reads) -> bool {
        let (begun, product) = reads.now();
        let verdict = self.reads.answered(now(), begun, (product.is_some(), true));
        let key = product.and_then(|name| name.parse::<FileKey>().ok());
        let held = key.and_then(|key| self.files.get(&key)).map(|under| &under.held);
        let what = self.reads.since(now()).map(|since| hung(held, since));
        lock(&self.dispatch.multicast).hangs.clone_from(&what);
        let (Some(what), Verdict::Tell | Verdict::GiveUp) = (what, verdict) else { return false };
        tracing::warn!("{what}");
        let why = (ErrorClass::SourceReadFailed, what);
        if verdict == Verdict::Tell {
            held.iter().for_each(|held| self.book.tell_trouble(held, None, (why.0, &why.1)));
            return false;
        }
        let rule = held.map(|held| held.file.rule);
        self.hung.extend(rule.map(|rule| (rule, now() + HUNG_REST)));
        let waits = |u: &&mut Under| u.placed.is_none() && rule == Some(u.held.file.rule);
        self.files.values_mut().filter(waits).for_each(|under| under.unread = Some(why.clone()));
        true
    }

    /// Nothing more comes: receivers take what is left, and say their last.
    async fn end(&mut self, mut session: OpenSession) -> Result<(), Fault> {
        session.insert = None;
        let mut late = pin!(tokio::time::sleep(END_TIME));
        loop {
            tokio::select! {
                _ = session.running.done() => return Ok(()),
                () = &mut late => {
                    session.running.stop();
                    let _ = session.running.done().await;
                    return Ok(());
                }
                Some(heard) = session.heard.recv() => {
                    self.hear(heard);
                    self.answer().await?;
                }
            }
        }
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Joined { node, receiver, from } => {
                if self.names.contains_key(&node) {
                    self.present.insert(node, Present { receiver, from, through: None });
                    self.joined.insert(node);
                }
            }
            Heard::Away { receiver } => self.present.retain(|_, there| there.receiver != receiver),
            Heard::Inserted { name, outcome } => {
                let under = self.given.told(&name).and_then(|key| self.files.get_mut(&key));
                let Some(under) = under else { return };
                match outcome {
                    Ok(placed) => {
                        under.placed = Some(placed);
                        self.hung.remove(&under.held.file.rule);
                    }
                    Err(why) => self.unreadable.add(under, why),
                }
            }
            Heard::Opened { end } => self.sent_end = end,
            Heard::Word { node, text, done } => match serde_json::from_str(&text) {
                Ok(word) => self.heard.push((node, word, done)),
                // It is not said again: nothing better would come.
                Err(error) => {
                    tracing::warn!(%node, %error, "a receiver says what nobody understands");
                    let _ = done.send(());
                }
            },
        }
        let present = self.present.keys().map(|node| self.names[node].0.clone()).collect();
        lock(&self.dispatch.multicast).present = Some(present);
    }

    /// Of these files it is known why they could not be read. What goes by another claim by now is not meant.
    fn note_unread(&mut self, known: Vec<Known>) {
        for (key, fence, why) in known {
            if let Some(under) = self.files.get_mut(&key).filter(|u| u.held.fence == fence) {
                under.unread = Some(why);
            }
        }
    }

    /// Takes what is queued into the session.
    async fn claim(&mut self, insert: &std::sync::mpsc::Sender<Listed>) -> Result<(), Fault> {
        let free = |under: usize| FILES_MAX.saturating_sub(under);
        if search_limit(free(self.files.len()), CLAIM_MAX, true) == 0 {
            return Ok(());
        }
        // What has come to its end.
        self.dispatch.in_session.keep(&self.book);
        let state = look(&self.site).await?;
        let mut rules: Vec<_> = state
            .queued
            .iter()
            .filter(|(_, (files, _))| *files > 0)
            .filter_map(|(rule, _)| Some((*rule, state.routes.get(rule)?)))
            // Also while none of them is there: as many as must may have a file already.
            .filter(|(_, route)| !route.receivers.is_empty())
            .filter(|(rule, _)| self.rested.get(rule).is_none_or(|at| *at <= Instant::now()))
            .collect();
        let with_receivers = state.routes.values().filter(|route| !route.receivers.is_empty());
        in_order(&mut rules, &self.hung, (now(), with_receivers.count() > 1));
        for (rule, route) in rules {
            let now = self.site.clock.now();
            let limit = search_limit(free(self.files.len()), CLAIM_MAX, false);
            if limit == 0 {
                break;
            }
            let until = until(now, *self.site.config().transfer.lease);
            let (takers, begun) = (self.takers(route), Instant::now());
            let some_are_there = !takers.asking.is_empty();
            let work = Work::QueuedFor(rule, takers);
            let claimed = self.site.catalog.claim(now, work, limit, until).done().await?;
            self.dispatch.in_session.hold(&claimed);
            let rest = rest_of(begun.elapsed(), (claimed.len(), limit), some_are_there);
            self.rested.insert(rule, Instant::now() + rest);
            if claimed.is_empty() {
                continue;
            }
            let (config, mut route) = (self.site.config(), route.clone());
            let holders =
                self.names.iter().map(|(key, (_, site))| (*site, key.as_bytes().to_vec()));
            let holders: HashMap<_, _> = holders.collect();
            let loaded = self.site.read(move |reader| {
                let names = super::load::Names::read(reader)?;
                let to = ("", &HashMap::new());
                let loaded = load(reader, &claimed, &names, &config, to, &mut route)?;
                let receipts = |held: &Held| receipts_that_hold(reader, &[held.file.id], &holders);
                let receipts = loaded.ready.iter().map(receipts).collect::<Result<Vec<_>, _>>()?;
                Ok((loaded, receipts, route))
            });
            let (Loaded { ready, failed, .. }, receipts, route) = loaded.await?;
            let failed = failed.into_iter().map(|(held, class)| (held, class, None)).collect();
            self.book.fail(failed, &mut self.rng).await?;
            self.book.hold(&ready);
            let session = self.opened.session.to_text();
            let mut changes: Vec<_> = ready.iter().map(|h| h.goes_by(session.clone())).collect();
            for (held, receipts) in ready.into_iter().zip(receipts) {
                let under = self.under(held, &receipts, &route);
                changes.extend(self.insert(under, insert));
            }
            self.book.record(changes).await?;
        }
        Ok(())
    }

    fn is_present(&self, name: &str) -> bool {
        self.wanted.receivers.get(name).is_some_and(|key| self.present.contains_key(key))
    }

    /// Who is to have the files of a rule, and who of them is there.
    fn takers(&self, route: &Route) -> Takers {
        let known = |name: &&String| self.wanted.receivers.contains_key(*name);
        let (here, away): (Vec<_>, Vec<_>) =
            route.receivers.iter().filter(known).partition(|name| self.is_present(name));
        let holder = |name: &String| {
            let key = &self.wanted.receivers[name];
            Holder { site: self.names[key].1, receiver: key.as_bytes().to_vec() }
        };
        let [asking, others] = [here, away].map(|names| names.into_iter().map(holder).collect());
        Takers { asking, others, required: route.required }
    }

    /// A claimed file, with those who are to have it.
    fn under(&self, held: Held, receipts: &[Receipt], route: &Route) -> Under {
        let file = SiteFile {
            site: held.origin.clone(),
            name: held.file.name.clone(),
            version: held.file.version,
            taken_in_us: held.file.taken_in.0,
            rule: held.rule.clone(),
            size: held.file.size,
            blake3: held
                .file
                .digest
                .as_ref()
                .map(downpour_catalog::Digest::hex)
                .unwrap_or_default(),
            digests: in_words(&held.digests),
            path: route.path_of(&held),
        };
        let keys = route.receivers.iter().filter_map(|name| self.wanted.receivers.get(name));
        let mut under = Under::new((held, file), route.required, keys.copied().collect());
        for receipt in receipts {
            if let Ok(signed) = SignedFileReceipt::from_bytes(&receipt.signed) {
                under.receipted(signed.receipt.receiver, signed);
            }
        }
        under
    }

    /// Puts a file into the session, if somebody there lacks it. Who is to have it now, for the catalog.
    fn insert(&mut self, mut under: Under, into: &std::sync::mpsc::Sender<Listed>) -> Vec<Change> {
        let mut expected = Vec::new();
        if under.is_wanted(&self.present) {
            match under.file.to_meta() {
                Some(meta) => {
                    self.given.give(&under, meta, into);
                    let there = under.lacking.iter().filter(|node| self.present.contains_key(node));
                    let file = under.held.file.id;
                    expected.extend(
                        there.map(|node| self.delivery(file, node, DeliveryState::Expected, None)),
                    );
                }
                None => {
                    let what = "name and path are too long for a session".to_owned();
                    under.unread = Some((ErrorClass::NameRefused, what));
                }
            }
        }
        self.files.insert(under.key(), under);
        expected
    }

    fn delivery(
        &self,
        file: FileId,
        node: &PublicKey,
        state: DeliveryState,
        error: Option<ErrorClass>,
    ) -> Change {
        let receiver = node.as_bytes().to_vec();
        Change::Delivery(Delivery { session: self.id, file, receiver, state, error })
    }

    /// Records what receivers said, then answers them.
    async fn answer(&mut self) -> Result<(), Fault> {
        let said = std::mem::take(&mut self.heard);
        if said.is_empty() {
            return Ok(());
        }
        let mut changes = Vec::new();
        let mut done = Vec::with_capacity(said.len());
        for (node, word, answer) in said {
            for told in word.files {
                match told {
                    Told::Placed { receipt } => changes.extend(self.receipt(node, *receipt).await?),
                    Told::Failed { key, class, what } => {
                        changes.extend(self.failure(node, &key, &class, what));
                    }
                }
            }
            if let Some(there) = self.present.get_mut(&node) {
                there.through = word.through.max(there.through);
            }
            done.push(answer);
        }
        self.book.record(changes).await?;
        // One that does not wait any more says it again.
        for answer in done {
            let _ = answer.send(());
        }
        Ok(())
    }

    /// What is recorded of a receipt, if it is one for a file that is known as it says.
    async fn receipt(
        &mut self,
        node: PublicKey,
        signed: SignedFileReceipt,
    ) -> Result<Vec<Change>, Fault> {
        let said = &signed.receipt;
        if said.receiver != node || signed.verify().is_err() {
            tracing::warn!(%node, file = %said.name, "a receipt is not of the receiver that sends it");
            return Ok(Vec::new());
        }
        let key = said.key();
        let known = match self.files.get(&key) {
            Some(under) => Some(under.held.file.clone()),
            // Its attempt has ended meanwhile.
            None => self.find(said.site.clone(), said.name.clone(), said.version).await?,
        };
        let same = |file: &downpour_catalog::File| {
            file.size == said.size
                && file.digest.as_ref().is_some_and(|digest| digest.value() == said.blake3.0)
        };
        let Some(file) = known.filter(same).map(|file| file.id) else {
            tracing::warn!(%node, file = %said.name, "a receipt is of another file");
            return Ok(Vec::new());
        };
        let Some((_, site)) = self.names.get(&node) else { return Ok(Vec::new()) };
        let (path, state) = (said.path.clone(), ReplicaState::Present);
        let replica = Replica { file, site: *site, path, state };
        let kept = signed.kept(file, self.book.now());
        let delivery = self.delivery(file, &node, DeliveryState::Complete, None);
        if let Some(under) = self.files.get_mut(&key) {
            under.receipted(node, signed);
        }
        lock(&self.dispatch.multicast).receipts += 1;
        Ok(vec![Change::Replica(replica), Change::Receipt(kept), delivery])
    }

    async fn find(
        &self,
        site: String,
        name: String,
        version: i64,
    ) -> Result<Option<downpour_catalog::File>, Fault> {
        let found = self.site.read(move |reader| match reader.site_called(&site)? {
            Some(site) => reader.file_called((site, &name, version)),
            None => Ok(None),
        });
        found.await
    }

    fn failure(&mut self, node: PublicKey, key: &str, class: &str, what: String) -> Option<Change> {
        let class = class.parse().unwrap_or(ErrorClass::DestinationRefused);
        let under = self.files.get_mut(&key.parse().ok()?)?;
        if !under.lacking.contains(&node) {
            return None;
        }
        let name = self.names.get(&node).map_or("", |(name, _)| name);
        tracing::info!(file = %under.file.name, receiver = name, %class, what, "failed");
        self.book.tell_trouble(&under.held, Some(name), (class, &what));
        under.failed.insert(node, (class, format!("{name}: {what}")));
        let file = under.held.file.id;
        Some(self.delivery(file, &node, DeliveryState::Failed, Some(class)))
    }

    /// Ends the attempts of files that have enough receipts, or will get no more.
    async fn settle(&mut self) -> Result<(), Fault> {
        let now = Instant::now();
        for under in self.files.values_mut() {
            under.note_sent(self.sent_end, now);
        }
        let (mut done, mut failed, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        let ended: Vec<FileKey> = self
            .files
            .iter()
            .filter(|(_, under)| under.stand(&self.present, now) != Stand::Waits)
            .map(|(key, _)| *key)
            .collect();
        for key in ended {
            let Some(under) = self.files.remove(&key) else { continue };
            match under.stand(&self.present, now) {
                Stand::Enough => done.push(under),
                Stand::Over(class, what) => {
                    tracing::info!(file = %under.file.name, %class, what, "it goes again");
                    if under.unread.is_some() {
                        self.book.tell_trouble(&under.held, None, (class, &what));
                    }
                    let gone = under.lacking.iter().filter(|node| !under.failed.contains_key(node));
                    let file = under.held.file.id;
                    changes.extend(
                        gone.map(|node| {
                            self.delivery(file, node, DeliveryState::Gone, Some(class))
                        }),
                    );
                    let away = class == ErrorClass::DestinationUnreachable;
                    let after = away.then(|| under.pause(&mut self.rng)).flatten();
                    failed.push((under.held, class, after));
                }
                Stand::Waits => drop(self.files.insert(key, under)),
            }
        }
        {
            let mut seen = lock(&self.dispatch.multicast);
            (seen.under, seen.again) = (self.files.len(), seen.again + failed.len() as u64);
        }
        self.book.record(changes).await?;
        self.book.fail(failed, &mut self.rng).await?;
        self.finish(done).await
    }

    /// These are where they must be.
    async fn finish(&mut self, done: Vec<Under>) -> Result<(), Fault> {
        if done.is_empty() {
            return Ok(());
        }
        let mut last: HashMap<FileId, (SiteId, SignedFileReceipt)> = HashMap::new();
        let mut held = Vec::with_capacity(done.len());
        for mut under in done {
            let Some((node, receipt)) = under.have.pop_last() else { continue };
            let Some((_, site)) = self.names.get(&node) else { continue };
            last.insert(under.held.file.id, (*site, receipt));
            held.push(under.held);
        }
        let of = |held: &Held| &last[&held.file.id];
        let held = self.book.step("sent", held, |h| Next::Sent { bytes: h.file.size }).await?;
        let verified = |h: &Held| Next::Verified(of(h).0, of(h).1.receipt.path.clone());
        let held = self.book.step("verified", held, verified).await?;
        let now = self.book.now();
        let receipt = |h: &Held| Next::Receipted(of(h).1.kept(h.file.id, now));
        let held = self.book.step("receipted", held, receipt).await?;
        let totals = &self.dispatch.totals;
        totals.sent_files.fetch_add(held.len() as u64, Ordering::Relaxed);
        let bytes = held.iter().map(|held| held.file.size).sum();
        totals.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// What waits for a receiver that has just joined need not wait any longer.
    async fn wake(&mut self) -> Result<(), Fault> {
        let joined = std::mem::take(&mut self.joined);
        if joined.is_empty() {
            return Ok(());
        }
        self.rested.clear();
        let state = look(&self.site).await?;
        let names: Vec<String> = joined.iter().map(|node| self.names[node].0.clone()).collect();
        let goes = |route: &&Route| route.receivers.iter().any(|r| names.contains(r));
        let rules: BTreeSet<RuleId> =
            state.routes.iter().filter(|(_, route)| goes(route)).map(|(rule, _)| *rule).collect();
        let waiting = self.site.read(move |reader| {
            let class = Some(ErrorClass::DestinationUnreachable);
            let query = Query { state: Some(State::Waiting), error: class, ..Query::default() };
            let mut waiting = Vec::new();
            reader.search_all(&query, CLAIM_MAX, |_, files| {
                waiting.extend(files.into_iter().filter(|file| rules.contains(&file.rule)));
                Ok(waiting.len() < WOKEN_MAX)
            })?;
            Ok(waiting)
        });
        let resume = |file: downpour_catalog::File| {
            let (file, at) = (file.id, file.revision);
            Change::Move(Move { file, at, fence: None, next: Next::Resumed })
        };
        let changes: Vec<Change> = waiting.await?.into_iter().map(resume).collect();
        // One that moved meanwhile needs no waking.
        self.site.catalog.submit(self.site.clock.now(), changes).done().await?;
        Ok(())
    }

    /// The session ends: what is under way goes into the next one.
    async fn put_back(&mut self) -> Result<(), Fault> {
        self.answer().await?;
        self.settle().await?;
        let held = self.files.drain().map(|(_, under)| under.held).collect();
        let (reason, class) = (Reason::BackOff, Some(ErrorClass::Interrupted));
        self.book.put_back(held, reason, class, Duration::from_secs(1)).await
    }
}

#[cfg(test)]
mod tests;
