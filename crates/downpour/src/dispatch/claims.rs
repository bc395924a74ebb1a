//! Files that a service claimed and has not let go: they go back when it ends before they have.
//!
//! What it claims is noted here, and let go once a batch, or the standing session, has brought it to a state without a lease. What is
//! left when the service ends, or begins again, waits as what a daemon that died had under way. Without that it would stand still
//! until its lease ends. Not here: how leases are kept (`book`).

use super::book::{Book, until};
use super::lock;
use super::policy::waits;
use crate::site::{Fault, Site};
use downpour_catalog::{
    Answer, Change, Claimed, ErrorClass, FileId, Move, Next, Reason, Refused, State, Work,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Files that are taken up at a time, and waiting ones that are woken.
pub(super) const TAKEN_UP_MAX: usize = 10_000;

/// Claims by file, as they were given.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<BTreeMap<FileId, Claimed>>);

impl Claims {
    pub(super) fn hold(&self, claimed: &[Claimed]) {
        lock(&self.0).extend(claimed.iter().map(|claimed| (claimed.file, *claimed)));
    }

    /// Those that were claimed again meanwhile stay.
    pub(super) fn let_go(&self, claimed: &[Claimed]) {
        let mut held = lock(&self.0);
        for claimed in claimed {
            if held.get(&claimed.file).is_some_and(|held| held.fence == claimed.fence) {
                held.remove(&claimed.file);
            }
        }
    }

    /// Those that this book has not any more are let go.
    pub(super) fn keep(&self, book: &Book) {
        lock(&self.0).retain(|file, claimed| book.has(*file, claimed.fence));
    }

    /// All that are held go back. Nobody works on them any more.
    pub(super) async fn give_back(&self, site: &Arc<Site>) -> Result<(), Fault> {
        let held: Vec<Claimed> = lock(&self.0).values().copied().collect();
        let answers = back(site, &held, interrupted()).await?;
        // Some have taken steps since they were claimed, and are still ours unless the fence says otherwise.
        let went_on = |(claimed, answer): (&Claimed, Answer)| match answer {
            Err(Refused::Stale { revision, state }) if state.is_leased() => {
                Some(Claimed { revision, state, ..*claimed })
            }
            _ => None,
        };
        let further: Vec<Claimed> = held.iter().zip(answers).filter_map(went_on).collect();
        back(site, &further, interrupted()).await?;
        self.let_go(&held);
        Ok(())
    }

    /// These go back into the queue after a time, without having been looked up.
    pub(super) async fn put_back(
        &self,
        site: &Arc<Site>,
        claimed: &[Claimed],
        why: (Reason, Option<ErrorClass>, Duration),
    ) -> Result<(), Fault> {
        back(site, claimed, why).await?;
        self.let_go(claimed);
        Ok(())
    }

    /// What a daemon left that died, or a run that failed, waits with the rest, and what has waited long enough comes back.
    pub(super) async fn take_up(&self, site: &Arc<Site>) -> Result<(), Fault> {
        let now = site.clock.now();
        let until = until(now, *site.config().transfer.lease);
        let lapsed = site.catalog.claim(now, Work::Lapsed, TAKEN_UP_MAX, until).done().await?;
        self.hold(&lapsed);
        let (sending, further): (Vec<Claimed>, Vec<Claimed>) =
            lapsed.into_iter().partition(|claimed| claimed.state == State::Sending);
        // Their attempt is written down as lapsed; this is no other one.
        let wait = waits(ErrorClass::Interrupted).first;
        self.put_back(site, &sending, (Reason::Turn, None, wait)).await?;
        self.put_back(site, &further, interrupted()).await?;
        wake(site).await
    }
}

/// What has waited long enough comes back.
pub(super) async fn wake(site: &Arc<Site>) -> Result<(), Fault> {
    let now = site.clock.now();
    site.catalog.wake(now, now, TAKEN_UP_MAX).done().await?;
    Ok(())
}

/// What a daemon that died had under way begins again soon.
fn interrupted() -> (Reason, Option<ErrorClass>, Duration) {
    let class = ErrorClass::Interrupted;
    (Reason::BackOff, Some(class), waits(class).first)
}

async fn back(
    site: &Arc<Site>,
    claimed: &[Claimed],
    (reason, error, wait): (Reason, Option<ErrorClass>, Duration),
) -> Result<Vec<Answer>, Fault> {
    if claimed.is_empty() {
        return Ok(Vec::new());
    }
    let now = site.clock.now();
    let step = |claimed: &Claimed| {
        let next = Next::Waiting { reason, error, next_try: until(now, wait), bytes: 0 };
        let (file, at, fence) = (claimed.file, claimed.revision, Some(claimed.fence));
        Change::Move(Move { file, at, fence, next })
    };
    let changes = claimed.iter().map(step).collect();
    Ok(site.catalog.submit(now, changes).done().await?)
}

#[cfg(test)]
mod tests {
    use super::super::book::{Book, Held, until};
    use super::super::fixture::{self, apply, file, step};
    use super::super::work::work;
    use super::super::{Dispatch, lock};
    use crate::site::{Daemon, Site, Stop, Wish};
    use downpour_catalog::{
        Change, ErrorClass, FileId, Move, Next, Reason, Replica, ReplicaState, RuleId, State, Work,
    };
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::net::TcpListener;

    /// A site with a link to one that is there and says nothing; the test has the only dispatcher.
    async fn begun(folder: &Path, silent: &TcpListener) -> (Arc<Site>, Arc<Dispatch>) {
        let (key, address) = ("A".repeat(43), silent.local_addr().unwrap());
        let other = format!(
            "[[remote]]\nname = 'b'\nkey = '{key}'\naddress = '{address}'\nconnect = '1h'\n"
        );
        let site = Daemon::ended(folder, "a", &format!("[transfer]\nlease = '1h'\n{other}")).await;
        let dispatch = Arc::new(Dispatch::new(&site, &Arc::default()));
        (site, dispatch)
    }

    /// A file for the other site, in the queue.
    async fn queued(site: &Arc<Site>, name: &str) -> (FileId, RuleId) {
        let (file, own, rule) = fixture::queued(site, "to:b", name).await;
        let (path, state) = (format!("/nowhere/{name}"), ReplicaState::Present);
        apply(site, Change::Replica(Replica { file, site: own, path, state })).await;
        (file, rule)
    }

    #[tokio::test]
    async fn what_is_under_way_when_the_service_ends_goes_back_whatever_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (site, dispatch) = begun(folder.path(), &silent).await;
        let (id, _) = queued(&site, "f").await;
        let stands = async || {
            let file = file(&site, id).await;
            (file.state, file.error)
        };
        let back = (State::Waiting, Some(ErrorClass::Interrupted));
        let (wish, stop) = Stop::new();
        let works = || tokio::spawn(work(dispatch.clone(), site.clone(), stop.clone()));
        let under_way = async || {
            while stands().await.0 != State::Sending {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // It is told to stop, while something arrives that takes long to end.
        let working = works();
        under_way().await;
        let arriving = dispatch.arrivals.begin().unwrap();
        wish.send_replace(Wish::Stop);
        let goes_back = async {
            while stands().await != back {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let goes_back = tokio::time::timeout(Duration::from_secs(60), goes_back).await;
        goes_back.expect("it waits for nothing that arrives");
        assert!(!working.is_finished());
        drop(arriving);
        working.await.unwrap().unwrap();
        // It loses the catalog, and has it again.
        wish.send_replace(Wish::Run);
        step(&site, id, Next::Resumed).await;
        let working = works();
        under_way().await;
        let [state, away] = [site.config().state(), folder.path().join("away")];
        std::fs::rename(&state, &away).unwrap();
        assert_eq!(working.await.unwrap().unwrap_err().class, ErrorClass::CatalogUnreachable);
        std::fs::rename(&away, &state).unwrap();
        assert_eq!(stands().await.0, State::Sending);
        wish.send_replace(Wish::Stop);
        works().await.unwrap().unwrap();
        assert_eq!(stands().await, back);
        assert!(lock(&dispatch.claims.0).is_empty());
    }

    #[tokio::test]
    async fn only_what_is_still_held_goes_back_also_after_further_steps() {
        let folder = tempfile::tempdir().unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (site, dispatch) = begun(folder.path(), &silent).await;
        let mut files = Vec::new();
        let mut rule = RuleId(0);
        for name in ["sent", "cancelled", "another's", "let go"] {
            let (file, of) = queued(&site, name).await;
            files.push(file);
            rule = of;
        }
        let now = site.clock.now();
        let [soon, later, late] = [1, 2, 60].map(|s| until(now, Duration::from_secs(s)));
        let claimed = site.catalog.claim(now, Work::QueuedOf(rule), 10, soon).done().await.unwrap();
        dispatch.claims.hold(&claimed);
        for claimed in &claimed {
            let (file, at, fence) = (claimed.file, claimed.revision, Some(claimed.fence));
            let step = |next| Change::Move(Move { file, at, fence, next });
            let renew = Change::Renew { file, fence: claimed.fence, until: late };
            match files.iter().position(|known| *known == file).unwrap() {
                0 => drop(apply(&site, step(Next::Sent { bytes: 1 })).await),
                1 => drop(apply(&site, step(Next::Cancelled)).await),
                2 => continue,
                _ => dispatch.claims.let_go(&[*claimed]),
            }
            site.catalog.submit(now, vec![renew]).done().await.unwrap();
        }
        // The lease of one has ended, and another one has it.
        let lapsed = site.catalog.claim(later, Work::Lapsed, 10, late).done().await.unwrap();
        assert_eq!(lapsed.iter().map(|claimed| claimed.file).collect::<Vec<_>>(), [files[2]]);
        dispatch.claims.give_back(&site).await.unwrap();
        let mut states = Vec::new();
        for id in files {
            states.push(file(&site, id).await.state);
        }
        assert_eq!(states, [State::Waiting, State::Cancelled, State::Sending, State::Sending]);
        dispatch.claims.hold(&claimed);
        let book = Book::new(&site, &Arc::default());
        book.hold(&[Held::new(file(&site, claimed[1].file).await, &claimed[1])]);
        dispatch.claims.keep(&book);
        assert!(lock(&dispatch.claims.0).keys().eq([&claimed[1].file]));
    }

    #[tokio::test]
    async fn what_waits_and_what_was_left_is_taken_up_though_nobody_sends() {
        let folder = tempfile::tempdir().unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (site, dispatch) = begun(folder.path(), &silent).await;
        let now = site.clock.now();
        let (left, rule) = queued(&site, "left").await;
        let claim = site.catalog.claim(now, Work::QueuedOf(rule), 10, now);
        assert_eq!(claim.done().await.unwrap().len(), 1);
        let mut files = vec![left];
        for (name, next_try) in [("waited", now), ("waits", until(now, Duration::from_secs(600)))] {
            let (file, _) = queued(&site, name).await;
            let (reason, error) = (Reason::NoSpace, Some(ErrorClass::DestinationFull));
            step(&site, file, Next::Waiting { reason, error, next_try, bytes: 0 }).await;
            files.push(file);
        }
        dispatch.claims.take_up(&site).await.unwrap();
        let mut stand = Vec::new();
        for id in files {
            let file = file(&site, id).await;
            stand.push((file.state, file.error.filter(|_| file.state == State::Waiting)));
        }
        let full = Some(ErrorClass::DestinationFull);
        assert_eq!(stand, [(State::Waiting, None), (State::Queued, None), (State::Waiting, full)]);
        assert_eq!(file(&site, left).await.tries, 1, "what lapsed was its attempt");
    }
}
