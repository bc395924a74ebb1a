//! One spool at work: each [`Spool::tick`] looks where something may have changed, and brings the catalog up to it.
//!
//! 1. *Look*: paths that the kernel named, files whose settle time is over, and from time to time everything.
//! 2. *Book* (`steps`): new files are taken in; complete ones become settled and go to the readers; digests make them
//!    hashed and queued. All of one tick share commits.
//! 3. *End* (`ends`): what vanished or was replaced is told to the catalog; what was receipted leaves; what the
//!    catalog set apart goes to quarantine.
//!
//! Invariants: a file is in the catalog before it is opened, moved or removed. Memory is a copy: what the catalog does not
//! say is found by looking, so a spool that is killed at any moment begins again where it was. A step that the catalog
//! refuses because somebody else was faster is looked at anew, never forced.

use super::aside::{self, SetApart};
use super::book::{Book, Record, SpoolError};
use super::leave;
use super::occupancy::{Bounds, Gauge, Level, Measured, Occupancy};
use super::read::Readers;
use super::root::{NoRoot, Now, Odd, Root, Seen, join};
use super::rule::Rules;
use super::section::SpoolSection;
use super::settle::{Policy, Role, Settling, Verdict};
use downpour_catalog::{Catalog, ErrorClass, FileId, Next, State, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use utoipa::ToSchema;

/// A path in the spool.
pub(super) type Rel = Arc<str>;

/// How long a file that is not there any more may come back before that is told: replacing may be removing and renaming.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// Messages that are kept to be shown.
const NOTICES_MAX: usize = 50;
/// What leaves, or goes to quarantine, does so by a rename first.
const MOUNTED: &str = "another file system is mounted there: files are sent from it, but cannot leave it or go to \
     quarantine; mount it outside, and give it a [[spool]] of its own";
/// File that tells producers that the spool is full.
const FULL_FILE: &str = ".spool-full";

/// What whoever moves files said last of one that has failed with this class, if that is known.
pub type Said = Box<dyn Fn(FileId, ErrorClass) -> Option<String> + Send>;

/// How far the spool is with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Seen, and not yet in the catalog.
    New,
    /// It may still be written.
    Settling,
    /// Complete; the catalog is to be told.
    Complete,
    /// Being read.
    Reading,
    /// Its digests are in the catalog, or it is no longer ours to send.
    Booked,
    /// The catalog cannot hold it.
    Refused,
}

/// A file that lies in the spool.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) seen: Seen,
    pub(super) rule: usize,
    pub(super) stage: Stage,
    pub(super) record: Option<Record>,
    /// What it was when the catalog was told of it.
    pub(super) known: Seen,
    /// Tells it from earlier content of this name that looked the same.
    pub(super) salt: u32,
    pub(super) settling: Settling,
    /// Not to be read before, nor to leave.
    pub(super) not_before: Duration,
    /// How long it was left alone after it last failed to leave.
    pub(super) stays: Duration,
    pub(super) tries: u32,
    /// How often in a row it could not be read by no fault of its own.
    pub(super) waits: u32,
    /// What it was when this process read it.
    pub(super) read: Option<Seen>,
    scan: u64,
}

/// What a spool says of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct SpoolStatus {
    /// The folder.
    pub folder: String,
    /// Why it is not watched now; empty when it is.
    pub trouble: String,
    /// Files that may still be written, or wait for a companion.
    pub settling: usize,
    /// Files that are being read, or wait for it.
    pub reading: usize,
    /// Files whose digests are known; what becomes of them the catalog says.
    pub booked: usize,
    /// Files in quarantine.
    pub quarantined: usize,
    /// Files that no rule takes.
    pub unmatched: usize,
    /// What cannot be taken, or not be watched, or has long been waiting for what is to lie beside it, and why.
    pub odd: Vec<String>,
    /// Bytes read for digests.
    pub bytes_read: u64,
    /// Files that were taken in since the start.
    pub taken_in: u64,
    /// How full it is.
    pub occupancy: Occupancy,
    /// Folders that the kernel watches for us.
    pub watched: usize,
    /// How often the kernel lost events, and everything was looked at again.
    pub overflows: u64,
    /// Milliseconds that the last look at everything took.
    pub scan_ms: u64,
    /// What happened lately, newest last. It may be over.
    pub notices: Vec<Notice>,
}

/// Something that happened.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Notice {
    /// When, microseconds since 1970.
    pub at_us: i64,
    /// What.
    pub text: String,
}

impl SpoolStatus {
    /// Of a spool that does not run yet.
    pub fn of(section: &SpoolSection) -> Self {
        Self { folder: section.folder.display().to_string(), ..Self::default() }
    }
}

/// A spool.
pub struct Spool {
    pub(super) section: SpoolSection,
    pub(super) policy: Policy,
    pub(super) rules: Arc<Rules>,
    pub(super) book: Book,
    /// The state folder of the site, which no spool holds and nothing goes into.
    state: Option<PathBuf>,
    /// The service was stopped.
    pub(super) ending: Arc<AtomicBool>,
    pub(super) said: Said,
    pub(super) root: Option<Arc<Root>>,
    /// The folder was watched before: another one in its place is not it.
    is_known: bool,
    watch: Option<super::watch::Watch>,
    pub(super) readers: Option<Readers>,
    pub(super) files: BTreeMap<Rel, Tracked>,
    pub(super) by_id: HashMap<FileId, Rel>,
    /// Files of the catalog whose content is gone while somebody else held them, and what they become.
    pub(super) orphans: HashMap<FileId, Next>,
    /// Steps for files that are no longer here.
    pub(super) retiring: Vec<(Record, Next)>,
    /// Received files that are no longer here.
    pub(super) removed: Vec<FileId>,
    due: BTreeSet<(Duration, Rel)>,
    pub(super) todo: Todo,
    pub(super) missing: BTreeMap<Rel, Duration>,
    /// Files that the catalog awaits here, since the start or their release, and that are not found yet, and what they become if
    /// they are gone.
    pub(super) awaited: Vec<(String, FileId, Next)>,
    /// Folders and files that the last look at everything could not look at.
    hidden: HashSet<String>,
    unmatched: BTreeSet<String>,
    odd: Vec<Odd>,
    next_scan: Duration,
    scan: u64,
    gauge: Gauge,
    bytes: u64,
    bytes_in: u64,
    bytes_aside: u64,
    full_told: Option<bool>,
    status: SpoolStatus,
    /// When the last tick began.
    at: Time,
    steady: Duration,
    notices: VecDeque<Notice>,
    untold: Vec<String>,
}

/// What this tick has found to do.
#[derive(Debug, Default)]
pub(super) struct Todo {
    pub(super) fresh: Vec<Rel>,
    pub(super) complete: Vec<Rel>,
    pub(super) to_queue: Vec<Rel>,
    pub(super) received: Vec<Rel>,
    pub(super) set_apart: Vec<(Rel, String)>,
}

impl Spool {
    /// A spool by its section. The folder is opened by the first tick. A tick that copies breaks off when `ending` is set. Why a file
    /// was set apart while it was moved is what was `said` of it.
    pub fn open(
        section: SpoolSection,
        rules: Arc<Rules>,
        catalog: Arc<Catalog>,
        ending: Arc<AtomicBool>,
        said: Said,
    ) -> Result<Self, SpoolError> {
        let book = Book::open(catalog, &rules, &section.prefix)?;
        let policy = Policy { complete: section.complete, sums: section.sums };
        let bounds =
            Bounds { bytes_max: section.size_max, alarm: section.alarm, full: section.full };
        let status = SpoolStatus::of(&section);
        Ok(Self {
            section,
            policy,
            rules,
            book,
            state: None,
            ending,
            said,
            root: None,
            is_known: false,
            watch: None,
            readers: None,
            files: BTreeMap::new(),
            by_id: HashMap::new(),
            orphans: HashMap::new(),
            retiring: Vec::new(),
            removed: Vec::new(),
            due: BTreeSet::new(),
            todo: Todo::default(),
            missing: BTreeMap::new(),
            awaited: Vec::new(),
            hidden: HashSet::new(),
            unmatched: BTreeSet::new(),
            odd: Vec::new(),
            next_scan: Duration::ZERO,
            scan: 0,
            gauge: Gauge::new(bounds),
            bytes: 0,
            bytes_in: 0,
            bytes_aside: 0,
            full_told: None,
            status,
            at: Time(0),
            steady: Duration::ZERO,
            notices: VecDeque::new(),
            untold: Vec::new(),
        })
    }

    /// The same, which neither sends what a daemon keeps in its state folder nor moves files there.
    pub fn apart_from(self, state: PathBuf) -> Self {
        Self { state: Some(state), ..self }
    }

    /// Looks, and brings the catalog up to what is there. Between two ticks nothing happens but reading.
    pub fn tick(&mut self, now: Now) -> Result<(), SpoolError> {
        (self.at, self.steady) = (now.wall, now.steady);
        if !self.has_root(now)? {
            return Ok(());
        }
        self.follow(now)?;
        self.look(now)?;
        self.take_in(now)?;
        self.give_up_awaited()?;
        self.settle(now)?;
        self.book_digests(now)?;
        self.queue(now)?;
        self.tell_missing(now);
        self.retire(now)?;
        self.depart(now)?;
        self.measure(now);
        Ok(())
    }

    /// What it says of itself.
    pub fn status(&self) -> SpoolStatus {
        let (mut settling, mut reading, mut booked) = (0, 0, 0);
        for file in self.files.values() {
            match file.stage {
                Stage::New | Stage::Settling | Stage::Complete => settling += 1,
                Stage::Reading => reading += 1,
                Stage::Booked => booked += 1,
                Stage::Refused => {}
            }
        }
        let watch = self.watch.as_ref();
        let odd = |odd: &Odd| format!("{}: {}", odd.path, odd.why);
        let odd = self.odd.iter().take(NOTICES_MAX).map(odd);
        let since = self.steady.checked_sub(self.section.rescan);
        let waits = |(rel, file): (&Rel, &Tracked)| {
            let lack = file.settling.lacks_since(since?)?;
            (file.stage == Stage::Settling).then(|| lack.words(rel))
        };
        let waiting = self.files.iter().filter_map(waits).take(NOTICES_MAX);
        let unwatched = watch.and_then(|watch| watch.trouble.clone());
        SpoolStatus {
            settling,
            reading,
            booked,
            unmatched: self.unmatched.len(),
            odd: unwatched.into_iter().chain(odd).chain(waiting).collect(),
            bytes_read: self.readers.as_ref().map_or(0, Readers::bytes),
            occupancy: self.gauge.now().clone(),
            watched: watch.map_or(0, super::watch::Watch::len),
            overflows: watch.map_or(0, |watch| watch.overflows),
            notices: self.notices.iter().cloned().collect(),
            ..self.status.clone()
        }
    }

    /// Files that are being read, or wait for it.
    pub fn reading(&self) -> usize {
        self.readers.as_ref().map_or(0, Readers::open)
    }

    /// What is in quarantine: where each file lies in the spool's folder, and why.
    pub fn quarantine(&self) -> Vec<(String, SetApart)> {
        self.root.as_ref().map_or_else(Vec::new, |root| aside::list(root))
    }

    pub(super) fn say(&mut self, text: String) {
        if self.notices.len() == NOTICES_MAX {
            self.notices.pop_front();
        }
        self.untold.push(text.clone());
        self.notices.push_back(Notice { at_us: self.at.0, text });
    }

    /// What happened since this was last asked.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.untold)
    }

    /// Whether the folder is there; opens it when it is there for the first time, or again.
    fn has_root(&mut self, now: Now) -> Result<bool, SpoolError> {
        if now.steady < self.next_scan {
            return Ok(self.root.is_some());
        }
        if self.root.as_ref().is_some_and(|root| root.is_there()) {
            return Ok(true);
        }
        let live = if self.root.is_none() { self.book.live()? } else { Vec::new() };
        self.is_known |= self.root.is_some();
        let open = |new| Root::open_apart(&self.section.folder, new, self.state.as_deref());
        let opened = match open(false) {
            Err(NoRoot::Another) if !self.is_known && !self.book.is_used()? => open(true),
            opened => opened,
        };
        let root = match opened {
            Ok(root) => Arc::new(root),
            Err(error) => {
                self.status.trouble = match error {
                    NoRoot::Unreadable(error) => format!("the folder cannot be opened: {error}"),
                    NoRoot::Another => format!(
                        "the folder is not the one that was watched before (is it mounted?); \
                         if it is meant to be empty, make {} in it",
                        super::root::OWN
                    ),
                    NoRoot::OfState => "it holds the state folder, or is the daemon's own in it: \
                                        name another folder in [[spool]]"
                        .to_owned(),
                };
                (self.root, self.watch, self.readers) = (None, None, None);
                self.next_scan = now.steady + self.section.rescan;
                return Ok(false);
            }
        };
        self.status.trouble.clear();
        self.begin(&root, now, live)?;
        Ok(true)
    }

    /// The folder is open: what was leaving gets its name back, what the catalog awaits here is looked for.
    fn begin(
        &mut self,
        root: &Arc<Root>,
        now: Now,
        live: Vec<(String, downpour_catalog::File)>,
    ) -> Result<(), SpoolError> {
        let book = &mut self.book;
        let left = leave::put_back_all(root, |id| {
            let file = book.file(id).ok().flatten()?;
            Some(book.rel(&file.name)?.to_owned())
        });
        left.into_iter().for_each(|text| self.say(text));
        self.watch = (!self.section.network).then(super::watch::Watch::new);
        self.readers = Some(Readers::start(root, self.policy));
        self.root = Some(root.clone());
        self.begin_reading_again(now);
        self.look(now)?;
        let awaited = |(rel, file): (String, downpour_catalog::File)| {
            (rel, file.id, super::ends::gone(file.digest.is_none()))
        };
        self.awaited = live.into_iter().map(awaited).collect();
        while !self.todo.fresh.is_empty() {
            self.take_in(now)?;
        }
        Ok(())
    }

    /// Names of what is awaited that have a file: unless it is that file, it has replaced it.
    pub(super) fn note_replaced(&mut self) {
        for (rel, _, next) in &mut self.awaited {
            if let Some(file) = self.files.get(rel.as_str()) {
                *next = super::ends::replaced(self.rules.at(file.rule).versions);
            }
        }
    }

    /// What the catalog awaits here and was not found is gone, unless it could not be looked at, or left and is sent again from
    /// where it lies.
    fn give_up_awaited(&mut self) -> Result<(), SpoolError> {
        let Some(root) = self.root.clone().filter(|_| self.todo.fresh.is_empty()) else {
            return Ok(());
        };
        for (rel, id, next) in std::mem::take(&mut self.awaited) {
            if self.by_id.contains_key(&id) {
                continue;
            }
            if self.is_hidden(&rel) {
                self.awaited.push((rel, id, next));
                continue;
            }
            // As it stands now: what has happened to it since is told later.
            let Some(file) = self.book.file(id)? else { continue };
            if !self.book.has_left(id, &root.full(&rel))? {
                let record = Record { file: id, revision: file.revision, state: file.state };
                self.part_from(record, next);
            }
        }
        Ok(())
    }

    /// Whether the last look at everything could not look at this path, or at a folder above it.
    fn is_hidden(&self, rel: &str) -> bool {
        let above = rel.match_indices('/').map(|(at, _)| &rel[..at]);
        ["", rel].into_iter().chain(above).any(|path| self.hidden.contains(path))
    }

    /// What earlier readers were given is lost with them.
    fn begin_reading_again(&mut self, now: Now) {
        for (rel, file) in self.files.iter_mut().filter(|(_, file)| file.stage == Stage::Reading) {
            let received = file.record.is_some_and(|record| record.state == State::Receipted);
            file.stage = if received { Stage::Booked } else { Stage::Settling };
            self.due.insert((now.steady, rel.clone()));
        }
    }

    fn look(&mut self, now: Now) -> Result<(), SpoolError> {
        let hints = self.watch.as_mut().map(super::watch::Watch::take).unwrap_or_default();
        if hints.all || now.steady >= self.next_scan {
            self.next_scan = now.steady + self.section.rescan;
            self.look_at_all(now);
            self.release_by_rule(now)?;
        }
        for path in hints.paths {
            self.look_at(now, &path);
        }
        let later = self.due.split_off(&(now.steady + Duration::from_nanos(1), Rel::from("")));
        for (_, rel) in std::mem::replace(&mut self.due, later) {
            self.look_at(now, &rel);
        }
        Ok(())
    }

    fn look_at_all(&mut self, now: Now) {
        let began = std::time::Instant::now();
        self.scan += 1;
        self.odd.clear();
        self.unmatched.clear();
        if let Some(watch) = &mut self.watch {
            watch.begin();
        }
        self.hidden = self.look_below(now, String::new()).into_iter().collect();
        let is_gone =
            |(rel, file): &(&Rel, &Tracked)| file.scan != self.scan && !self.is_hidden(rel);
        let gone: Vec<Rel> =
            self.files.iter().filter(is_gone).map(|(rel, _)| rel.clone()).collect();
        for rel in gone {
            self.missing.entry(rel).or_insert(now.steady);
        }
        // In between, each that goes there or comes back is counted.
        if let Some(root) = &self.root {
            (self.status.quarantined, self.bytes_aside) = aside::count(root);
        }
        self.status.scan_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    }

    /// Looks at a folder and all below it; returns what cannot be looked at.
    fn look_below(&mut self, now: Now, folder: String) -> Vec<String> {
        let Some(root) = self.root.clone() else { return Vec::new() };
        let (mut folders, mut hidden) = (vec![folder], Vec::new());
        while let Some(folder) = folders.pop() {
            // Watched before it is listed, so that nothing comes in between.
            if let Some(watch) = &mut self.watch {
                watch.add(&root, &folder);
            }
            let listing = match root.list(&folder) {
                Ok(listing) => listing,
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => continue,
                Err(error) => {
                    let why = format!("the folder cannot be read: {error}");
                    self.odd.push(Odd { path: folder.clone(), why });
                    hidden.push(folder);
                    continue;
                }
            };
            self.odd.extend(listing.odd);
            hidden.extend(listing.unseen.iter().map(|name| join(&folder, name)));
            for name in listing.folders.iter().filter(|name| !name.starts_with('.')) {
                let path = join(&folder, name);
                if listing.mounts.contains(name) {
                    self.odd.push(Odd { path: path.clone(), why: MOUNTED.to_owned() });
                }
                folders.push(path);
            }
            for (name, seen) in listing.files {
                let rel = join(&folder, &name);
                if self.policy.role(&rel) == Role::File {
                    self.observe(now, &rel, seen);
                }
            }
        }
        hidden
    }

    /// Looks at one path.
    pub(super) fn look_at(&mut self, now: Now, path: &str) {
        let rel = match self.policy.role(path) {
            Role::File => path,
            Role::Companion(of) if self.files.contains_key(of) => of,
            _ => return,
        };
        let Some(root) = self.root.clone() else { return };
        match root.look(rel) {
            Ok(Some(seen)) => self.observe(now, rel, seen),
            Ok(None) if root.is_folder(rel) => {
                self.look_below(now, rel.to_owned());
            }
            Ok(None) => {
                let below = format!("{rel}/");
                let inside =
                    self.files.range::<str, _>((Bound::Included(below.as_str()), Bound::Unbounded));
                let inside = inside.take_while(|(other, _)| other.starts_with(&below));
                let own = self.files.get_key_value(rel);
                for (rel, _) in own.into_iter().chain(inside) {
                    self.missing.entry(rel.clone()).or_insert(now.steady);
                }
            }
            // The next rescan says why.
            Err(_) => {}
        }
    }

    /// A file lies there and looks like this.
    fn observe(&mut self, now: Now, rel: &str, seen: Seen) {
        self.missing.remove(rel);
        let Some((key, file)) = self
            .files
            .get_key_value(rel)
            .map(|(key, _)| key.clone())
            .and_then(|key| self.files.get_mut(&key).map(|file| (key, file)))
        else {
            self.first_seen(now, rel, seen);
            return;
        };
        file.scan = self.scan;
        self.bytes = self.bytes + seen.size - file.seen.size;
        self.bytes_in += seen.size.saturating_sub(file.seen.size);
        file.seen = seen;
        match file.stage {
            Stage::Settling => self.weigh(now, &key),
            Stage::Booked if !seen.is_content_of(&file.known) => self.replaced(now, &key),
            Stage::Booked => self.booked_again(&key),
            Stage::New | Stage::Complete | Stage::Reading | Stage::Refused => {}
        }
    }

    fn first_seen(&mut self, now: Now, rel: &str, seen: Seen) {
        let Some(rule) = self.rules.for_spool(&self.book.name(rel)) else {
            self.unmatched.insert(rel.to_owned());
            return;
        };
        let rel = Rel::from(rel);
        let file = Tracked {
            seen,
            rule,
            stage: Stage::New,
            record: None,
            known: seen,
            salt: 0,
            settling: Settling::new(now.steady, seen),
            not_before: Duration::ZERO,
            stays: Duration::ZERO,
            tries: 0,
            waits: 0,
            read: None,
            scan: self.scan,
        };
        self.bytes += seen.size;
        self.bytes_in += seen.size;
        self.files.insert(rel.clone(), file);
        self.todo.fresh.push(rel);
    }

    /// Whether a file that may still be written is complete.
    pub(super) fn weigh(&mut self, now: Now, rel: &Rel) {
        let (policy, Some(root)) = (self.policy, self.root.as_ref()) else { return };
        let Some(file) = self.files.get_mut(rel) else { return };
        let beside = |ending: &str| root.look(&format!("{rel}{ending}")).ok().flatten();
        let look = policy.look(file.seen, beside);
        match file.settling.look(policy, now.steady, look) {
            _ if now.steady < file.not_before => {
                self.due.insert((file.not_before, rel.clone()));
            }
            Verdict::Complete => {
                file.stage = Stage::Complete;
                self.todo.complete.push(rel.clone());
            }
            Verdict::LookAt(at) => {
                self.due.insert((at, rel.clone()));
            }
            Verdict::Companion => {}
        }
    }

    /// To be looked at again at this time.
    pub(super) fn look_later(&mut self, at: Duration, rel: &Rel) {
        self.due.insert((at, rel.clone()));
    }

    /// A file whose digests are known lies there unchanged: what the catalog wants of it may not have been done yet.
    fn booked_again(&mut self, rel: &Rel) {
        let Some(Tracked { record: Some(record), rule, .. }) = self.files.get(rel) else { return };
        match record.state {
            State::Receipted if !self.rules.at(*rule).keeps() => {
                self.todo.received.push(rel.clone());
            }
            State::Quarantined | State::Cancelled => {
                self.todo.set_apart.push((rel.clone(), String::new()));
            }
            State::Hashed => self.todo.to_queue.push(rel.clone()),
            _ => {}
        }
    }

    /// It does not lie here any more.
    pub(super) fn forget(&mut self, rel: &Rel) -> Option<Tracked> {
        let file = self.files.remove(rel)?;
        self.bytes -= file.seen.size;
        if let Some(record) = file.record {
            self.by_id.remove(&record.file);
        }
        Some(file)
    }

    pub(super) fn count_taken_in(&mut self, files: usize) {
        self.status.taken_in += files as u64;
    }

    /// A file went to quarantine, where it takes room, too.
    pub(super) fn went_aside(&mut self, size: u64) {
        self.status.quarantined += 1;
        self.bytes_aside += size;
    }

    /// A file came back from there.
    pub(super) fn came_back(&mut self, size: u64) {
        self.status.quarantined = self.status.quarantined.saturating_sub(1);
        self.bytes_aside = self.bytes_aside.saturating_sub(size);
    }

    fn measure(&mut self, now: Now) {
        let Some(root) = self.root.clone() else { return };
        let Ok(disk) = root.room() else { return };
        let bytes = self.bytes + self.bytes_aside;
        self.gauge.measure(now.steady, Measured { bytes, bytes_in: self.bytes_in, disk });
        let full = self.gauge.now().level == Level::Full;
        if self.full_told == Some(full) {
            return;
        }
        let told = if full {
            root.write(FULL_FILE, b"the spool is full: wait until this file is gone\n")
        } else {
            match root.remove(FULL_FILE) {
                Err(rustix::io::Errno::NOENT) => Ok(()),
                removed => removed,
            }
        };
        match told {
            Ok(()) => self.full_told = Some(full),
            // On a full disk even that may fail: the next tick tries again, the status says it all the same.
            Err(_) => self.full_told = None,
        }
    }
}
