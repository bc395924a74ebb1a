//! One fetch from its beginning to its end: a task that tries it, and again where what failed may pass, until the file is in its
//! place, signed for and recorded, or the fetch is given up. What is left of it goes then.
//!
//! The routes begin it, and the dispatcher's loop again after a restart (both in `mod`). Not here: who has the file (`holders`),
//! how its bytes come (`gather`). The inbox's disk may not answer: what asks it runs on no worker of the runtime.

use super::gather::{AT_ONCE_MIN, Gather, Holder};
use super::holders::Found;
use super::journal::Kept;
use super::part::{Part, is_others};
use super::{CANCELLED, Fetch, FetchWish, Phase, decisive, some_can_be_asked};
use crate::api::Problem;
use crate::dispatch::arriving::{Judge, Look, Taken, may_receive};
use crate::dispatch::incoming::{TICK, not_recorded, receipt};
use crate::dispatch::offer::OfferItem;
use crate::dispatch::pieces::Piece;
use crate::dispatch::record::record;
use crate::dispatch::room::Promise;
use crate::dispatch::turns::in_turn;
use crate::dispatch::{Dispatch, lock};
use crate::object::{Claim, Digest, copy_across, open_in, rename_new};
use crate::receipt::{digests_of, forget_beneath};
use crate::site::{self, Fault, Site, Wish};
use crate::spool::in_words;
use downpour_catalog::{ErrorClass, Scope};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What may pass is tried again after so long, then after twice as long, up to the last wait; from the first one again where
/// a piece came: what came of others is lost with the try.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LAST_WAIT: Duration = Duration::from_secs(256);

/// Where the file comes from, and where it goes.
pub(super) struct Ready {
    pub(super) holders: Vec<Holder>,
    folder: PathBuf,
    taken: Taken,
}

/// Fetches a file; `ready` is where it was found already.
pub(super) fn spawn(
    dispatch: &Arc<Dispatch>,
    site: &Arc<Site>,
    fetch: Arc<Fetch>,
    wish: FetchWish,
    ready: Option<Ready>,
) {
    let (dispatch, site) = (dispatch.clone(), site.clone());
    tokio::spawn(async move {
        let ended = patiently(&dispatch, &site, &fetch, &wish, ready).await;
        let mut ended = ended.map_err(|fault| fault.what);
        if ended.is_err() && fetch.is_cancelled() {
            ended = Err(CANCELLED.to_owned());
        }
        if ended.is_ok() || fetch.is_cancelled() {
            discard(&dispatch, &site, &fetch).await;
        }
        if let Err(error) = Kept::forget(&site.config().state(), fetch.id()) {
            fetch.tell(format!("it will begin again with the daemon: {error}"));
        }
        fetch.end(ended);
    });
}

/// Its sources may be started anew, too. While the service does not run it waits for that.
async fn patiently(
    dispatch: &Arc<Dispatch>,
    site: &Arc<Site>,
    fetch: &Arc<Fetch>,
    wish: &FetchWish,
    mut ready: Option<Ready>,
) -> Result<Option<String>, Fault> {
    let mut wait = FIRST_WAIT;
    loop {
        let Some(arriving) = dispatch.arrivals.begin() else {
            fetch.set(Phase::Held);
            tokio::select! {
                () = fetch.cancelled() => return Err(cancelled()),
                () = dispatch.arrivals.resumed() => continue,
            }
        };
        fetch.set(Phase::Runs);
        let before = fetch.pieces.load(Ordering::Relaxed);
        let tried = match ready.take() {
            Some(ready) => dispatch.bring(site, fetch, ready, wish.one).await,
            None => dispatch.go_on(site, fetch, wish).await,
        };
        fetch.set(Phase::Rests);
        drop(arriving);
        if fetch.pieces.load(Ordering::Relaxed) > before {
            wait = FIRST_WAIT;
        }
        let was_cut = dispatch.arrivals.wish() == Wish::Stop && !fetch.is_cancelled();
        let may_pass = |fault: &Fault| fault.class.is_retried() && !fetch.is_cancelled();
        let failure = match tried {
            Err(_) if was_cut => continue,
            Err(fault) if wait <= LAST_WAIT && may_pass(&fault) => fault.what,
            ended => return ended,
        };
        fetch.tell(format!("again in {} s: {failure}", wait.as_secs()));
        // A look ends at once when it was cancelled.
        let _ = tokio::time::timeout(wait, fetch.cancelled()).await;
        wait *= 2;
    }
}

/// What is left of a fetch goes, unless another one goes on with it.
async fn discard(dispatch: &Dispatch, site: &Site, fetch: &Fetch) {
    let digest = fetch.state.borrow().blake3.clone();
    if digest.is_empty() {
        // It was begun by a version that did not keep it; the next start finds its part.
        return;
    }
    if is_wanted(&lock(&dispatch.fetches), fetch.id(), &digest) {
        return;
    }
    let config = site.config();
    let path = Part::path_of(&config.path(&config.transfer.inbox), &digest);
    let own = site.name.clone();
    let discarded = blocking(move || match is_others(&path, &own) {
        true => Ok(()),
        false => Part::discard(&path),
    });
    if let Err(error) = discarded.await {
        fetch.tell(format!("what has come of it stays: {error}"));
    }
}

/// Whether another fetch than `id` goes on with a content. One that is cancelled does not; it discards what is left then.
fn is_wanted(known: &BTreeMap<i64, Arc<Fetch>>, id: i64, digest: &str) -> bool {
    known.iter().any(|(other, fetch)| {
        let report = fetch.state.borrow();
        *other != id && !report.done && report.blake3 == digest && !fetch.is_cancelled()
    })
}

/// Where the file goes here.
pub(super) async fn ready(
    dispatch: &Dispatch,
    site: &Arc<Site>,
    found: &Found,
    holders: Vec<Holder>,
) -> Result<Ready, Problem> {
    let config = site.config();
    let (of, inbox) = (site.clone(), config.path(&config.transfer.inbox));
    let (turns, at) = (dispatch.turns.looks(&config, &inbox), inbox.clone());
    let folder = in_turn(turns, &at, async move { may_receive(&of, inbox).await }).await?;
    let template = crate::spool::Template::default();
    let facts = crate::spool::Facts {
        name: &found.name,
        version: found.version,
        site: &found.origin,
        rule: &found.rule,
        taken_in: found.taken_in,
        path: "",
    };
    let item = OfferItem {
        site: found.origin.clone(),
        name: found.name.clone(),
        version: found.version,
        taken_in_us: found.taken_in.0,
        rule: found.rule.clone(),
        size: found.size,
        blake3: found.blake3.clone(),
        into: template.path(&facts),
        digests: in_words(&found.digests),
    };
    let (judged, inbox) = (site.clone(), folder.clone());
    let look = site.read(move |reader| Judge::new(&judged, reader, inbox)?.look(reader, &item));
    match look.await? {
        Ok(Look::Not(taken)) => Ok(Ready { holders, folder, taken }),
        Ok(Look::Here(_)) => Err(Problem::bad_request("it is here", "nothing is to be done")),
        Err(trouble) => {
            let class = trouble.class();
            Err(Problem::bad_request(trouble.to_string(), "see docs/transfer.md").of_class(class))
        }
    }
}

impl Dispatch {
    /// One try of a fetch that was begun before, maybe by a daemon that has ended.
    async fn go_on(
        self: &Arc<Self>,
        site: &Arc<Site>,
        fetch: &Arc<Fetch>,
        wish: &FetchWish,
    ) -> Result<Option<String>, Fault> {
        // Who has it is known when the copies of catalogs can be read, which may be made anew just now.
        let found = self.find(site, wish).await;
        let (found, mut holders) =
            found.map_err(|problem| Fault::new(ErrorClass::CatalogUnreachable, problem.what))?;
        for Holder { source, .. } in &mut holders {
            if lock(&fetch.wrong).contains(&source.name) {
                source.barred = Some("what it brought is not what the catalog says".to_owned());
            }
        }
        if found.here.is_some() {
            return Ok(found.here);
        }
        some_can_be_asked(&holders).map_err(unreachable)?;
        fetch.state.send_modify(|report| {
            report.rank(found.size, &holders);
            report.blake3.clone_from(&found.blake3);
        });
        let ready = ready(self, site, &found, holders).await.map_err(|problem| {
            Fault::new(problem.class().unwrap_or(ErrorClass::Internal), problem.what)
        })?;
        self.bring(site, fetch, ready, wish.one).await
    }

    /// Where it lies in the end.
    async fn bring(
        self: &Arc<Self>,
        site: &Arc<Site>,
        fetch: &Arc<Fetch>,
        Ready { holders, folder, taken }: Ready,
        one: bool,
    ) -> Result<Option<String>, Fault> {
        let (site, dispatch, fetch) = (site.clone(), self.clone(), fetch.clone());
        let task = Task { site, dispatch, fetch, folder, taken, one };
        task.run(holders).await.map(Some)
    }
}

/// One fetch, as it goes.
struct Task {
    site: Arc<Site>,
    dispatch: Arc<Dispatch>,
    fetch: Arc<Fetch>,
    folder: PathBuf,
    taken: Taken,
    one: bool,
}

impl Task {
    /// Where it lies in the end.
    async fn run(&self, holders: Vec<Holder>) -> Result<String, Fault> {
        let path = Part::path_of(&self.folder, &self.taken.item.blake3);
        if !self.is_placed().await? && !self.make_way().await? {
            self.bring(&path, holders).await?;
        } else if !self.fetch.is_here() {
            return Err(cancelled());
        }
        self.record().await
    }

    /// A daemon that ended may have come so far.
    async fn is_placed(&self) -> Result<bool, Fault> {
        let (taken, folder) = (self.taken.clone(), self.folder.clone());
        if !site::blocking(move || Ok(taken.is_there(&folder))).await? {
            return Ok(false);
        }
        let (taken, folder) = (self.taken.clone(), self.folder.clone());
        // Whose it is is not known: what is read of it next is what the disk has.
        let forget = move || forget_beneath(&folder, &taken.path);
        match self.is_right(&self.folder.join(&self.taken.path), forget).await {
            // What cannot be read is not it.
            Err(_) if !self.ended()() => Ok(false),
            seen => seen,
        }
    }

    /// Nothing is replaced: that its place is taken is found before anything is brought. Returns whether it lies there by now.
    async fn make_way(&self) -> Result<bool, Fault> {
        let (taken, site, folder) = (self.taken.clone(), self.site.clone(), self.folder.clone());
        let contents = self.dispatch.contents.clone();
        // Nobody waits for an answer.
        let mut left = u64::MAX;
        let made_way = move || taken.make_way(&site, &folder, &contents, &mut left);
        let made_way = site::blocking(made_way).await?;
        if let Some(recorded) = made_way {
            recorded.done().await?;
        }
        let there = self.folder.join(&self.taken.path);
        let place = there.clone();
        if site::blocking(move || Ok(std::fs::symlink_metadata(place).is_err())).await? {
            return Ok(false);
        }
        // A batch may have brought it meanwhile.
        if self.is_placed().await? {
            return Ok(true);
        }
        let there = there.display();
        let what = format!("{there} is something else: move it away and fetch again");
        Err(Fault::new(ErrorClass::VersionConflict, what))
    }

    /// Brings the whole and right file to its place.
    async fn bring(&self, path: &Path, holders: Vec<Holder>) -> Result<(), Fault> {
        let (of, size, owner) = (path.to_owned(), self.taken.item.size, self.site.name.clone());
        let opened = blocking(move || Part::open(of, size, &owner)).await;
        let part = opened.map_err(|error| unwritten(path.display(), &error))?;
        let part = Arc::new(part);
        let brought = self.bring_to(&part, holders).await;
        let released = blocking(move || {
            part.release();
            Ok(())
        });
        released.await.map_err(|error| unwritten(path.display(), &error))?;
        brought
    }

    /// The same, while this fetch holds the part.
    async fn bring_to(&self, part: &Arc<Part>, holders: Vec<Holder>) -> Result<(), Fault> {
        let (of, folder, room) = (part.clone(), self.folder.clone(), self.dispatch.room.clone());
        let promise = site::blocking(move || {
            let needed = of.needed().map_err(|error| unwritten(of.path().display(), &error))?;
            room.take(&folder, needed).map_err(|full| Fault::new(full.class(), full.what))
        });
        let promise = promise.await?;
        while_it_grows(part, &promise, self.whole(part, holders)).await?;
        if !self.fetch.is_here() {
            return Err(cancelled());
        }
        let placed = self.place(part.path().to_owned()).await;
        placed.inspect_err(|_| self.fetch.is_not_here())
    }

    /// Brings the whole, as it shall be.
    async fn whole(&self, part: &Arc<Part>, holders: Vec<Holder>) -> Result<(), Fault> {
        self.gather(part, holders.clone(), !self.one).await?;
        if self.is_whole(part).await? {
            return Ok(());
        }
        self.tell("the whole is not what the catalog says: each source is tried alone");
        let what = "no site brings what the catalog says";
        let mut failure = Fault::new(ErrorClass::DigestDiffers, what);
        for holder in holders {
            let name = holder.source.name.clone();
            let brought = match &holder.source.barred {
                Some(why) => Err(unreachable(format!("{name}: {why}"))),
                None => {
                    // What one alone has brought so far does not go with another's.
                    begin_anew(part).await?;
                    self.gather(part, vec![holder], false).await
                }
            };
            match brought {
                Ok(()) if self.is_whole(part).await? => return Ok(()),
                Ok(()) => {
                    begin_anew(part).await?;
                    self.tell(&format!("{name} does not bring it right"));
                    lock(&self.fetch.wrong).insert(name);
                }
                Err(fault) if self.is_over(&fault) => return Err(fault),
                Err(fault) => {
                    self.tell(&fault.what);
                    failure = decisive(failure, fault);
                }
            }
        }
        Err(failure)
    }

    /// Whether another source cannot help.
    fn is_over(&self, fault: &Fault) -> bool {
        self.ended()() || fault.class.scope() == Scope::Destination
    }

    /// Tells whether it is to go no further, now or for good.
    fn ended(&self) -> impl Fn() -> bool + Send + 'static + use<> {
        let (fetch, dispatch) = (self.fetch.clone(), self.dispatch.clone());
        move || fetch.is_cancelled() || dispatch.arrivals.wish() == Wish::Stop
    }

    fn tell(&self, what: &str) {
        self.fetch.tell(what.to_owned());
    }

    async fn gather(
        &self,
        part: &Arc<Part>,
        holders: Vec<Holder>,
        at_once: bool,
    ) -> Result<(), Fault> {
        let (item, of, ended) = (&self.taken.item, part.clone(), self.ended());
        let here = blocking(move || Ok(of.here(ended))).await;
        let here = here.map_err(|error| unwritten(part.path().display(), &error))?;
        if !here.is_empty() {
            self.tell(&format!("{} pieces of it are here already", here.len()));
        }
        let piece = Piece {
            site: item.site.clone(),
            name: item.name.clone(),
            version: item.version,
            blake3: item.blake3.clone(),
            start: 0,
            len: 0,
        };
        let usable = holders.iter().filter(|holder| holder.source.barred.is_none()).count();
        let at_once = at_once && usable > 1 && item.size >= AT_ONCE_MIN;
        let into = (part.clone(), at_once);
        let mut asked = Vec::new();
        for holder in holders {
            let begin = self.dispatch.asking(&self.site, &holder.source.name).await;
            asked.push((holder, begin));
        }
        let gather = Arc::new(Gather::new(piece, (item.size, &here), asked, into));
        *lock(&self.fetch.gather) = Some(gather.clone());
        let done = self.unless_ended(gather.run()).await;
        gather.close().await;
        let seen = gather.seen();
        for site in &seen.sites {
            if let Some(rate) = site.pace() {
                lock(&self.dispatch.paces).insert(site.name.clone(), (rate, Instant::now()));
            }
        }
        self.fetch.pieces.fetch_add(seen.pieces, Ordering::Relaxed);
        lock(&self.fetch.gather).take();
        self.fetch.state.send_modify(|report| report.add(&seen));
        done
    }

    async fn unless_ended<T>(
        &self,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        tokio::select! {
            biased;
            () = self.fetch.cancelled() => Err(cancelled()),
            () = self.dispatch.arrivals.cut() => {
                Err(Fault::new(ErrorClass::Interrupted, "the service `dispatch` was ended"))
            }
            done = work => done,
        }
    }

    async fn is_whole(&self, part: &Arc<Part>) -> Result<bool, Fault> {
        let of = part.clone();
        let anew = move || drop(of.forget());
        self.is_right(part.path(), anew).await
    }

    async fn is_right(
        &self,
        path: &Path,
        unsynced: impl FnOnce() + Send + 'static,
    ) -> Result<bool, Fault> {
        let (of, ended, digest) = (path.to_owned(), self.ended(), self.taken.digest);
        let others = self.taken.item.others();
        let found = blocking(move || {
            let file = UnlessEnded { file: File::open(of)?, ended };
            is_on_disk(file, (digest, &others), unsynced)
        });
        let found = async { found.await.map_err(|error| unwritten(path.display(), &error)) };
        self.unless_ended(found).await
    }

    /// Gives it its place.
    async fn place(&self, part: PathBuf) -> Result<(), Fault> {
        let (folder, path) = (self.folder.clone(), self.taken.path.clone());
        let placed = blocking(move || place(&folder, &part, &path)).await;
        let Err(error) = placed else { return Ok(()) };
        let class = match error.kind() {
            // A batch may have brought it meanwhile.
            io::ErrorKind::AlreadyExists if self.is_placed().await? => return Ok(()),
            io::ErrorKind::AlreadyExists => ErrorClass::VersionConflict,
            io::ErrorKind::InvalidFilename => ErrorClass::NameRefused,
            _ => ErrorClass::DestinationWriteFailed,
        };
        Err(Fault::new(class, format!("{}: {error}", self.taken.path)))
    }

    /// Signs for it and records it.
    async fn record(&self) -> Result<String, Fault> {
        let signed = receipt(&self.site, &self.taken, "fetch").sign(&self.site.identity);
        let signed = signed.map_err(|e| Fault::new(ErrorClass::NameRefused, e.to_string()))?;
        let answers = record(&self.site, &self.folder, vec![self.taken.in_place(signed)]).await?;
        match answers.into_iter().next() {
            Some(Err(refused)) => {
                let trouble = not_recorded(&refused);
                Err(Fault::new(trouble.class(), trouble.what))
            }
            _ => Ok(self.folder.join(&self.taken.path).to_string_lossy().into_owned()),
        }
    }
}

/// A file that cannot be read on when its fetch goes no further: the whole of it may take hours.
struct UnlessEnded<F> {
    file: File,
    ended: F,
}

impl<F: Fn() -> bool> Read for UnlessEnded<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match (self.ended)() {
            true => Err(io::Error::other("it has ended")),
            false => self.file.read(into),
        }
    }
}

/// Whether a file is as it shall be, on the disk for good. If it cannot be synced, what was read of it need not be there, and
/// another sync need not fail: `unsynced` has it count no more.
fn is_on_disk(
    mut read: UnlessEnded<impl Fn() -> bool>,
    (digest, others): (Digest, &[downpour_catalog::Digest]),
    unsynced: impl FnOnce(),
) -> io::Result<bool> {
    let (_, found, more) = digests_of(&mut read, others)?;
    if found != digest || !others.iter().all(|said| more.contains(said)) {
        return Ok(false);
    }
    read.file.sync_data().inspect_err(|_| unsynced())?;
    Ok(true)
}

fn unreachable(what: String) -> Fault {
    Fault::new(ErrorClass::SourceUnreachable, what)
}

fn unwritten(what: impl Display, error: &io::Error) -> Fault {
    Fault::new(ErrorClass::DestinationWriteFailed, format!("{what}: {error}"))
}

fn cancelled() -> Fault {
    Fault::new(ErrorClass::Interrupted, CANCELLED)
}

/// Does something that writes to a part. What is on the disk is not promised as well.
async fn while_it_grows<T>(
    part: &Arc<Part>,
    promise: &Promise,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    loop {
        let lacks = async {
            tokio::time::sleep(TICK).await;
            let of = part.clone();
            blocking(move || of.needed()).await
        };
        tokio::select! {
            done = &mut work => return done,
            lacks = lacks => lacks.into_iter().for_each(|lacks| promise.keep(lacks)),
        }
    }
}

/// Nothing of a part counts.
async fn begin_anew(part: &Arc<Part>) -> Result<(), Fault> {
    let of = part.clone();
    let begun = blocking(move || of.forget()).await;
    begun.map_err(|error| unwritten("what is noted of a part", &error))
}

/// Puts a part into its place below the folder. No link is followed, nothing is replaced, and nothing gets into `.downpour`.
fn place(folder: &Path, part: &Path, path: &str) -> io::Result<()> {
    let folders = OFlags::RDONLY | OFlags::DIRECTORY;
    let parts = OwnedFd::from(File::open(part.parent().unwrap_or(folder))?);
    let mut at = OwnedFd::from(File::open(folder)?);
    if Claim::is_own(&at, path.split('/').next().unwrap_or_default().as_bytes()) {
        let why = "its path leads to .downpour, which is the receiver's own: submit it under another \
                   name at its site";
        return Err(io::Error::new(io::ErrorKind::InvalidFilename, why));
    }
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    for step in above.split('/').filter(|step| !step.is_empty()) {
        match rustix::fs::mkdirat(&at, step, Mode::from_raw_mode(0o755)) {
            Ok(()) => rustix::fs::fsync(&at)?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        at = open_in(&at, step.as_bytes(), folders, Mode::empty())?;
    }
    let from = part.file_name().unwrap_or_default();
    match rename_new((&parts, from), (&at, name)) {
        Err(Errno::XDEV) => copy(part, (&at, name))?,
        done => done?,
    }
    rustix::fs::fsync(&at)?;
    Ok(())
}

/// Its place is on another file system.
fn copy(part: &Path, (to, name): (&OwnedFd, &str)) -> io::Result<()> {
    let file = File::open(part)?;
    let stat = rustix::fs::fstat(&file)?;
    let whole = std::iter::once(0..stat.st_size as u64);
    copy_across((file.as_fd(), whole), (to, name.as_bytes()), false, |copy| {
        rustix::fs::fchmod(copy, Mode::from_raw_mode(stat.st_mode))?;
        rustix::fs::fdatasync(copy)
    })?;
    std::fs::remove_file(part)
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::super::part::Part;
    use super::super::{Fate, FetchReport, keep};
    use super::{UnlessEnded, copy, is_on_disk, is_wanted, place, while_it_grows};
    use crate::dispatch::room::Room;
    use crate::object::Digest;
    use crate::receipt::digest_of;
    use crate::receipt::tests::Mounted;
    use std::collections::BTreeMap;
    use std::fs::{self, File};
    use std::io::ErrorKind;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn what_has_its_place_on_another_file_system_is_copied_and_replaces_nothing() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (part, place) = (here.path().join("part"), there.path().join("x"));
        let folder = OwnedFd::from(File::open(there.path()).unwrap());
        fs::write(&part, "new").unwrap();
        copy(&part, (&folder, "x")).unwrap();
        assert_eq!((fs::read_to_string(&place).unwrap().as_str(), part.exists()), ("new", false));
        fs::write(&part, "other").unwrap();
        let taken = copy(&part, (&folder, "x")).unwrap_err();
        assert_eq!((taken.kind(), part.exists()), (ErrorKind::AlreadyExists, true));
        assert_eq!(fs::read_to_string(&place).unwrap(), "new");
    }

    #[test]
    fn nothing_gets_into_the_receivers_own_folder_whatever_its_name() {
        let root = tempfile::tempdir().unwrap();
        let part = Part::path_of(root.path(), "0a");
        Part::open(part.clone(), 3, "a").unwrap();
        let other = root.path().join("other");
        fs::create_dir(&other).unwrap();
        let Some(mounted) = Mounted::bind(&root.path().join(".downpour"), &other) else {
            let name = "nothing_gets_into_the_receivers_own_folder_whatever_its_name";
            return crate::skipped::skipped(name, "needs root to mount");
        };
        let refused = place(root.path(), &part, "other/mode").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidFilename, "{refused}");
        assert!(part.exists() && !other.join("mode").exists());
        drop(mounted);
        place(root.path(), &part, "other/mode").unwrap();
        assert!(!part.exists() && other.join("mode").exists());
    }

    #[tokio::test]
    async fn what_has_come_is_not_promised_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let size = 1 << 20;
        let part = Part::open(Part::path_of(folder.path(), "0a"), size, "a").unwrap();
        let part = Arc::new(part);
        let room = Arc::new(Room::default());
        let promise = room.promise(folder.path(), part.needed().unwrap());
        let half = async {
            part.write(&[1; 1 << 19], 0).unwrap();
            while room.promised() > size / 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let half = tokio::time::timeout(Duration::from_secs(60), half);
        while_it_grows(&part, &promise, half).await.expect("less is promised");
        assert!(room.promised() > 0);
        drop(promise);
        assert_eq!(room.promised(), 0);
    }

    #[test]
    fn what_another_fetch_goes_on_with_is_not_discarded() {
        let mut known = BTreeMap::new();
        let mut begin = |id, blake3: &str| {
            let blake3 = blake3.to_owned();
            keep(&mut known, FetchReport { id, blake3, ..FetchReport::default() })
        };
        let (first, second, _other) = (begin(1, "0a"), begin(2, "0a"), begin(3, "0b"));
        assert!(is_wanted(&known, 2, "0a"), "the first one tries again");
        first.fate.send_replace(Fate::Cancelled);
        assert!(!is_wanted(&known, 2, "0a"));
        assert!(is_wanted(&known, 1, "0a"));
        second.end(Ok(None));
        assert!(!is_wanted(&known, 1, "0a"));
    }

    #[test]
    fn what_is_given_up_is_not_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        fs::write(&path, [7; 3]).unwrap();
        let fetch = keep(&mut BTreeMap::new(), FetchReport::default());
        let ended = || fetch.is_cancelled();
        let read = || digest_of(UnlessEnded { file: File::open(&path)?, ended });
        assert_eq!(read().unwrap().0, 3);
        fetch.fate.send_replace(Fate::Cancelled);
        assert_eq!(read().unwrap_err().to_string(), "it has ended");
    }

    #[test]
    fn what_cannot_be_synced_is_not_here_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let part = Part::open(Part::path_of(folder.path(), "0a"), 3, "a").unwrap();
        part.write(b"new", 0).unwrap();
        part.note(0).unwrap();
        let is_on_disk = |file, content| {
            let digest = Digest::of(content);
            let read = UnlessEnded { file, ended: || false };
            is_on_disk(read, (digest, &[]), || part.forget().unwrap())
        };
        let file = || File::open(part.path()).unwrap();
        assert!(!is_on_disk(file(), b"old").unwrap());
        assert!(is_on_disk(file(), b"new").unwrap());
        assert_eq!(part.here(|| false).len(), 1);
        // The system reads such a one, as it would what it has in memory, and syncs none.
        let (unsynced, mut end) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut end, b"new").unwrap();
        drop(end);
        let unsynced = File::from(OwnedFd::from(unsynced));
        assert!(is_on_disk(unsynced, b"new").is_err());
        assert!(part.here(|| false).is_empty());
    }
}
