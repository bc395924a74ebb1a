//! What the dispatcher writes into the catalog: steps of files that it holds, a whole batch in a commit.
//!
//! A step that is refused says that the file is not ours any more: an operator cancelled it, or the lease was lost and another
//! daemon moves it. It is let go, and nothing else of the batch suffers.

use super::hooks::kill_point;
use super::policy::{FILE_TRIES_MAX, Verdict, judge, own_failures, pause};
use super::route::is_submitted;
use crate::site::{Fault, Site, SiteEvent};
use downpour_catalog::{
    Change, Claimed, Digest, ErrorClass, Fence, File, FileId, Move, Next, Reader, Reason, Replica,
    Revision, Scope, State, Time,
};
use downpour_proto::Rng;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

/// A file that this daemon moves.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) file: File,
    pub(super) at: Revision,
    pub(super) fence: Fence,
    pub(super) state: State,
    /// Where it lies here.
    pub(super) path: PathBuf,
    /// The site that it comes from, and its rule, by name.
    pub(super) origin: String,
    pub(super) rule: String,
    /// All that are recorded.
    pub(super) digests: Vec<Digest>,
}

impl Held {
    pub(super) fn new(file: File, claimed: &Claimed) -> Self {
        Self {
            at: claimed.revision,
            fence: claimed.fence,
            state: claimed.state,
            file,
            path: PathBuf::new(),
            origin: String::new(),
            rule: String::new(),
            digests: Vec::new(),
        }
    }

    /// Its attempt will name this session.
    pub(super) fn goes_by(&self, session: String) -> Change {
        Change::InSession { file: self.file.id, fence: self.fence, session }
    }

    fn step(&self, next: Next) -> Change {
        let (file, at, fence) = (self.file.id, self.at, Some(self.fence));
        Change::Move(Move { file, at, fence, next })
    }
}

/// Writes for one batch.
pub(super) struct Book {
    site: Arc<Site>,
    leases: Mutex<HashMap<FileId, Fence>>,
    /// Leases are looked at now: an operator cancelled something.
    look: Arc<Notify>,
    /// Files that are not ours any more.
    lost: Mutex<Vec<(FileId, Fence)>>,
    lost_some: Notify,
}

impl Book {
    pub(super) fn new(site: &Arc<Site>, look: &Arc<Notify>) -> Self {
        let (leases, lost) = (Mutex::default(), Mutex::default());
        Self { site: site.clone(), leases, look: look.clone(), lost, lost_some: Notify::new() }
    }

    /// Files that an operator cancelled, or another daemon took, as soon as there are some, and with what they were held.
    pub(super) async fn lost(&self) -> Vec<(FileId, Fence)> {
        loop {
            let lost = std::mem::take(&mut *super::lock(&self.lost));
            if !lost.is_empty() {
                return lost;
            }
            self.lost_some.notified().await;
        }
    }

    /// Keeps the leases of these, while it renews.
    pub(super) fn hold(&self, held: &[Held]) {
        let held = held.iter().map(|held| (held.file.id, held.fence));
        super::lock(&self.leases).extend(held);
    }

    /// Whether a file is still held so: nobody has cancelled or taken it, as far as is known.
    pub(super) fn holds(&self, held: &Held) -> bool {
        self.has(held.file.id, held.fence)
    }

    pub(super) fn has(&self, file: FileId, fence: Fence) -> bool {
        super::lock(&self.leases).get(&file) == Some(&fence)
    }

    pub(super) fn now(&self) -> Time {
        self.site.clock.now()
    }

    /// Takes one step of each file, in one commit. Those that are not ours any more are gone from what comes back.
    pub(super) async fn step(
        &self,
        point: &str,
        held: Vec<Held>,
        next: impl Fn(&Held) -> Next,
    ) -> Result<Vec<Held>, Fault> {
        if held.is_empty() {
            return Ok(held);
        }
        if !point.is_empty() {
            kill_point(&format!("{point}.before"));
        }
        let changes = held.iter().map(|held| held.step(next(held))).collect();
        let answers = self.site.catalog.submit(self.now(), changes).done().await?;
        if !point.is_empty() {
            kill_point(&format!("{point}.after"));
        }
        let mut kept = Vec::with_capacity(held.len());
        for (mut held, answer) in held.into_iter().zip(answers) {
            match answer {
                Ok(applied) => {
                    held.at = applied.revision;
                    held.state = applied.state.unwrap_or(held.state);
                    if !held.state.is_leased() {
                        self.let_go(held.file.id, held.fence);
                    }
                    kept.push(held);
                }
                Err(refused) => {
                    tracing::info!(file = %held.file.name, %refused, "let go");
                    self.let_go(held.file.id, held.fence);
                }
            }
        }
        Ok(kept)
    }

    /// Makes changes beside the steps.
    pub(super) async fn record(&self, changes: Vec<Change>) -> Result<(), Fault> {
        if !changes.is_empty() {
            let answers = self.site.catalog.submit(self.now(), changes).done().await?;
            for refused in answers.into_iter().filter_map(Result::err) {
                tracing::warn!(%refused, "a record was not made");
            }
        }
        Ok(())
    }

    /// Tells who listens that a file failed at a site or a receiver, or at none: it could not be read here.
    pub(super) fn tell_trouble(
        &self,
        held: &Held,
        at: Option<&str>,
        (class, what): (ErrorClass, &str),
    ) {
        let (file, name, class) = (held.file.id.0, &held.file.name, class.name());
        let mut about =
            serde_json::json!({ "file": file, "name": name, "class": class, "what": what });
        at.into_iter().for_each(|at| about["site"] = at.into());
        self.site.events.tell(SiteEvent::TROUBLE, &about);
    }

    /// These files failed: each waits or is set apart, as its class says. Those that failed alike, and equally often, are tried again
    /// at the same time, after a probe where the link was given up: their partial files lie together.
    pub(super) async fn fail(
        &self,
        failed: Vec<(Held, ErrorClass, Option<Duration>)>,
        rng: &mut Rng,
    ) -> Result<(), Fault> {
        let (now, own) = (self.now(), self.own_failures(&failed).await?);
        let replaced = self.replaced(&failed).await?;
        let (mut alike, mut nexts) = (HashMap::new(), HashMap::new());
        let mut held = Vec::with_capacity(failed.len());
        for (file, class, after) in failed {
            let times = (file.file.tries, own.get(&file.file.id).copied().unwrap_or(1));
            let next = alike.entry((class, times, after));
            let next = next.or_insert_with(|| after_failure(now, class, times, after, rng));
            let is_over = replaced.contains(&file.file.id);
            nexts.insert(file.file.id, if is_over { Next::Cancelled } else { next.clone() });
            held.push(file);
        }
        let held = self.step("", held, |held| nexts[&held.file.id].clone()).await?;
        let is_apart = |held: &&Held| held.state == State::Quarantined;
        let apart: Vec<&Held> = held.iter().filter(is_apart).collect();
        if let Some(first) = apart.first()
            && let Next::Quarantined(class) = &nexts[&first.file.id]
        {
            let about = serde_json::json!({
                "files": apart.len(), "file": first.file.id.0, "name": first.file.name,
                "class": class.name(),
            });
            self.site.events.tell(SiteEvent::QUARANTINE, &about);
        }
        Ok(())
    }

    /// How often these have failed by a fault of their own, this time included; only of those to which it can matter.
    async fn own_failures(
        &self,
        failed: &[(Held, ErrorClass, Option<Duration>)],
    ) -> Result<HashMap<FileId, u32>, Fault> {
        let matters = |(held, class, _): &&(Held, ErrorClass, _)| {
            class.scope() == Scope::File && held.file.tries >= FILE_TRIES_MAX
        };
        let files: Vec<FileId> =
            failed.iter().filter(matters).map(|(held, ..)| held.file.id).collect();
        if files.is_empty() {
            return Ok(HashMap::new());
        }
        let count = move |reader: &mut Reader| {
            let mut counts = HashMap::new();
            for file in files {
                counts.insert(file, own_failures(&reader.attempts(file)?));
            }
            Ok(counts)
        };
        self.site.read(count).await
    }

    /// Which of these changed, and were submitted again since: their place has a later version's content, and they do not come again.
    async fn replaced(
        &self,
        failed: &[(Held, ErrorClass, Option<Duration>)],
    ) -> Result<HashSet<FileId>, Fault> {
        let changed = |(held, class, _): &&(Held, ErrorClass, _)| {
            *class == ErrorClass::FileChanged && is_submitted(&held.rule)
        };
        let changed: Vec<Held> = failed.iter().filter(changed).map(|f| f.0.clone()).collect();
        if changed.is_empty() {
            return Ok(HashSet::new());
        }
        let find = move |reader: &mut Reader| {
            let mut replaced = HashSet::new();
            for Held { file, path, .. } in changed {
                let mut later = reader.versions(file.site, &file.name)?;
                later.retain(|one| one.version > file.version && one.rule == file.rule);
                let later: Vec<_> = later.into_iter().map(|one| one.id).collect();
                let is_here = |r: &Replica| r.site == file.site && Path::new(&r.path) == path;
                if reader.replicas_of(&later)?.iter().any(is_here) {
                    replaced.insert(file.id);
                }
            }
            Ok(replaced)
        };
        self.site.read(find).await
    }

    /// These go back for no fault of theirs, to be taken again after `wait`.
    pub(super) async fn put_back(
        &self,
        held: Vec<Held>,
        reason: Reason,
        error: Option<ErrorClass>,
        wait: Duration,
    ) -> Result<(), Fault> {
        let now = self.now();
        self.step("", held, |_| waiting(now, reason, error, wait)).await.map(drop)
    }

    /// Whether it was still held so. One that was claimed again meanwhile is held by another fence, and stays.
    fn let_go(&self, file: FileId, fence: Fence) -> bool {
        let mut leases = super::lock(&self.leases);
        let is_held = leases.get(&file) == Some(&fence);
        if is_held {
            leases.remove(&file);
        }
        is_held
    }

    fn lease(&self) -> Duration {
        *self.site.config().transfer.lease
    }

    /// Keeps the leases, until it is dropped, for as long as the configuration says at each time.
    pub(super) async fn renew(&self) -> Fault {
        let mut look = pin!(self.look.notified());
        let mut reloads = self.site.config_changes();
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.lease() / 3) => {}
                () = look.as_mut() => {}
                _ = reloads.changed() => {}
            }
            // Before the look, so that what is cancelled meanwhile is looked at again.
            look.set(self.look.notified());
            let now = self.now();
            let until = until(now, self.lease());
            let (held, changes): (Vec<(FileId, Fence)>, Vec<Change>) = {
                let renew = |(file, fence): (&FileId, &Fence)| {
                    ((*file, *fence), Change::Renew { file: *file, fence: *fence, until })
                };
                super::lock(&self.leases).iter().map(renew).unzip()
            };
            if changes.is_empty() {
                continue;
            }
            let answers = match self.site.catalog.submit(now, changes).done().await {
                Ok(answers) => answers,
                Err(error) => return error.into(),
            };
            let refused = held.into_iter().zip(answers).filter(|(_, answer)| answer.is_err());
            self.lose(refused.map(|(held, _)| held));
        }
    }

    /// The leases of these were not renewed.
    fn lose(&self, refused: impl Iterator<Item = (FileId, Fence)>) {
        // One that took its last step meanwhile is not held any more, nor missed.
        let lost: Vec<_> = refused.filter(|(file, fence)| self.let_go(*file, *fence)).collect();
        if !lost.is_empty() {
            super::lock(&self.lost).extend(lost);
            self.lost_some.notify_one();
        }
    }
}

/// What becomes of a file that failed in this try, as often by a fault of its own. `after`: when it is to be tried again, where
/// that was said.
pub(super) fn after_failure(
    now: Time,
    class: ErrorClass,
    (tries, own): (u32, u32),
    after: Option<Duration>,
    rng: &mut Rng,
) -> Next {
    match judge(class, own) {
        Verdict::SetApart => Next::Quarantined(class),
        Verdict::Again(reason) => {
            waiting(now, reason, Some(class), pause(class, tries, after, rng))
        }
    }
}

/// When a lease that begins now ends.
pub(super) fn until(now: Time, lease: Duration) -> Time {
    Time(now.0 + i64::try_from(lease.as_micros()).unwrap_or(i64::MAX / 2))
}

fn waiting(now: Time, reason: Reason, error: Option<ErrorClass>, wait: Duration) -> Next {
    Next::Waiting { reason, error, next_try: until(now, wait), bytes: 0 }
}

#[cfg(test)]
impl Held {
    /// For tests.
    pub(super) fn example(name: &str) -> Self {
        use downpour_catalog::{RuleId, SiteId};
        let (id, revision, fence) = (FileId(1), Revision(5), Fence(1));
        let file = File {
            id,
            site: SiteId(1),
            name: name.to_owned(),
            version: 1,
            size: 3,
            rule: RuleId(1),
            state: State::Sending,
            since: Time(0),
            taken_in: Time(0),
            reason: None,
            error: None,
            next_try: None,
            tries: 1,
            revision,
            digest: None,
        };
        let claimed = Claimed { file: id, revision, fence, state: State::Sending, size: 3 };
        Self::new(file, &claimed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{apply, file, new_file, queued, step};
    use super::{Book, Held, until};
    use crate::site::{Daemon, Site};
    use downpour_catalog::{
        Change, ErrorClass, Fence, File, NewFile, Next, OtherContent, Replica, ReplicaState, Same,
        State, Work,
    };
    use downpour_proto::Rng;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    /// A site without parts that would take a file, and a book of it.
    async fn begun(folder: &Path, lease: &str) -> (Daemon, Book) {
        let more = format!("[transfer]\nlease = '{lease}'\n");
        let daemon = Daemon::example(folder, "a", &more).await;
        let book = Book::new(&daemon.site, &Arc::default());
        (daemon, book)
    }

    /// Files with these names, claimed.
    async fn claimed(site: &Arc<Site>, names: &[&str]) -> Vec<Held> {
        let mut of = None;
        for name in names {
            let (_, _, rule) = queued(site, "r", name).await;
            of = Some(rule);
        }
        claim(site, Work::QueuedOf(of.unwrap())).await
    }

    async fn claim(site: &Arc<Site>, work: Work) -> Vec<Held> {
        let now = site.clock.now();
        let until = until(now, *site.config().transfer.lease);
        let mut held = Vec::new();
        for claimed in site.catalog.claim(now, work, 10, until).done().await.unwrap() {
            held.push(Held::new(file(site, claimed.file).await, &claimed));
        }
        held
    }

    #[tokio::test]
    async fn a_lease_that_was_lost_is_let_go_and_no_later_one_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, book) = begun(folder.path(), "10m").await;
        let held = claimed(&daemon.site, &["f", "g"]).await;
        book.hold(&held);
        let (cancelled, fence) = (held[0].file.id, held[0].fence);
        step(&daemon.site, cancelled, Next::Cancelled).await;
        book.look.notify_one();
        tokio::select! {
            fault = book.renew() => panic!("{fault}"),
            lost = book.lost() => assert_eq!(lost, [(cancelled, fence)]),
        }
        let leases = || super::super::lock(&book.leases).clone();
        assert_eq!(leases(), [(held[1].file.id, held[1].fence)].into());
        // Its refusal comes when it is held anew.
        let again = Held { fence: Fence(fence.0 + 1), ..held[0].clone() };
        book.hold(std::slice::from_ref(&again));
        book.lose([(cancelled, fence)].into_iter());
        assert_eq!(leases().get(&cancelled), Some(&again.fence));
        assert!(super::super::lock(&book.lost).is_empty());
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn files_that_failed_together_come_back_together() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, book) = begun(folder.path(), "10m").await;
        let held = claimed(&daemon.site, &["f", "g", "h"]).await;
        let failed = held.iter().cloned().map(|held| (held, ErrorClass::ConnectionLost, None));
        book.fail(failed.collect(), &mut Rng::new(1)).await.unwrap();
        let mut tries = Vec::new();
        for held in held {
            tries.push(file(&daemon.site, held.file.id).await.next_try.unwrap());
        }
        tries.dedup();
        assert_eq!(tries.len(), 1, "{tries:?}");
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn what_changed_is_given_up_once_what_is_in_its_place_was_submitted() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, book) = begun(folder.path(), "10m").await;
        let mut held = claimed(&daemon.site, &["f", "g", "h"]).await;
        for held in &mut held {
            (held.rule, held.path) =
                ("to:b".to_owned(), format!("/data/{}", held.file.name).into());
        }
        // The place of `g` is as it was: a file of that name lies in another folder.
        for (held, path) in held.iter().zip(["/data/f", "/more/g"]) {
            let File { site, ref name, rule, .. } = held.file;
            let (other_content, same) = (OtherContent::NewVersion, Same::OfRule);
            let new = NewFile { stamp: 2, other_content, same, ..new_file(site, rule, name) };
            let file = apply(&daemon.site, Change::TakeIn(new)).await;
            let (path, state) = (path.to_owned(), ReplicaState::Present);
            apply(&daemon.site, Change::Replica(Replica { file, site, path, state })).await;
        }
        let failed = held.iter().cloned().map(|held| (held, ErrorClass::FileChanged, None));
        book.fail(failed.collect(), &mut Rng::new(1)).await.unwrap();
        let mut states = Vec::new();
        for held in held {
            states.push(file(&daemon.site, held.file.id).await.state);
        }
        assert_eq!(states, [State::Cancelled, State::Waiting, State::Waiting]);
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn leases_follow_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, book) = begun(folder.path(), "10m").await;
        let held = claimed(&daemon.site, &["f"]).await;
        book.hold(&held);
        let shorter = async {
            let file = folder.path().join("site.toml");
            let text = std::fs::read_to_string(&file).unwrap().replace("10m", "1m");
            std::fs::write(file, text).unwrap();
            assert!(daemon.reload().await);
            // That it would end in a minute and a half shows that it was renewed since.
            let later = until(daemon.site.clock.now(), Duration::from_secs(90));
            let lapsed = || daemon.site.catalog.claim(later, Work::Lapsed, 10, later).done();
            while lapsed().await.unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            // It heeds reloads before there is one.
            biased;
            fault = book.renew() => panic!("{fault}"),
            done = tokio::time::timeout(Duration::from_secs(60), shorter) => done.unwrap(),
        }
        daemon.end(Duration::ZERO).await;
    }
}
