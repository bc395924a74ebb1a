//! The dispatcher's loop: what waited comes back, what was left by a daemon that died is taken up, what is queued goes out.
//!
//! It claims files of the rule whose turn it is, gives each claim a task that sends it as a batch, and tells the link how that went.
//! The service `dispatch` runs it until all is drained. Not here: where files go (`route`), whether a link may be used (`link`),
//! the batch itself and its steps in the catalog (`outgoing`, `book`), what arrives (`incoming`).

use super::book::{Book, Held, until};
use super::claims::{TAKEN_UP_MAX, wake};
use super::hooks::kill_point;
use super::link::{Link, Wanted, seed};
use super::load::{Loaded, Names, keys, load, queue_by_rule};
use super::offer::OFFER_ITEMS_LEN_MAX;
use super::outgoing::{Broken, Delivered, Outgoing, Progress, batch_name, item};
use super::people::BatchReport;
use super::policy::WAIT_MAX;
use super::route::Route;
use super::{Dispatch, lock, no_random};
use crate::site::{Fault, Remote, Site, SiteEvent, Stop, Wish};
use crate::spool::Rules;
use downpour_catalog::{Claimed, ErrorClass, Holder, Reason, RuleId, Takers, Time, Work};
use downpour_proto::Rng;
use downpour_transport::control::SessionId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Between two looks, when nobody says that there is something to do.
const TICK: Duration = Duration::from_millis(500);
/// How long a file waits that was taken up for a link that has it, and that another has to take.
const ELSEWHERE: Duration = Duration::from_secs(2);
/// A clock that is set back by less has only been corrected.
const CLOCK_SLACK: Duration = Duration::from_secs(5);
/// Between two looks for what waits longer than anything does.
const LOOK_AHEAD_EVERY: Duration = Duration::from_secs(60);

/// What the catalog and the configuration say now.
pub(super) struct Now {
    names: Names,
    pub(super) routes: HashMap<RuleId, Route>,
    /// Files and bytes in the queue.
    pub(super) queued: BTreeMap<RuleId, (i64, i64)>,
}

type Tasks = JoinSet<Result<(), Fault>>;

/// Works until it is asked to stop; at a drain, until what is under way, from here and to here, has ended. However that ends, what is
/// still claimed goes back. What arrives is waited for, or ended, also when the rest fails or has failed before.
pub(super) async fn work(
    dispatch: Arc<Dispatch>,
    site: Arc<Site>,
    stop: Stop,
) -> Result<(), Fault> {
    dispatch.arrivals.follow(&stop);
    let mut tasks = Tasks::new();
    let done = match stop.wish() {
        Wish::Run => serve(&dispatch, &site, &stop, &mut tasks).await,
        Wish::Drain | Wish::Stop => Ok(()),
    };
    tasks.shutdown().await;
    // Nobody works on it any more, and what arrives may take longer to end than the service is given.
    let given_back = dispatch.claims.give_back(&site).await;
    if stop.wish() != Wish::Run {
        tokio::select! {
            () = stop.now() => {}
            () = dispatch.arrivals.ended() => {}
        }
        dispatch.end_arriving().await;
    }
    done.and(given_back)
}

/// The loop itself. At a drain it ends when nothing goes out any more.
async fn serve(
    dispatch: &Arc<Dispatch>,
    site: &Arc<Site>,
    stop: &Stop,
    tasks: &mut Tasks,
) -> Result<(), Fault> {
    // What a run that failed for want of the catalog could not give back.
    dispatch.claims.give_back(site).await?;
    let mut draining = false;
    let hashing = tokio::spawn(super::hasher::hash_submitted(dispatch.clone(), site.clone()));
    let _hashing = Abort(hashing);
    super::fetch::resume(dispatch, site);
    let mut seen = Seen { at: site.clock.now(), looked: None };
    loop {
        look_at_clock(dispatch, site, &mut seen).await?;
        if !draining {
            begin(dispatch, site, tasks).await?;
        }
        tokio::select! {
            () = stop.now() => return Ok(()),
            () = stop.asked(), if !draining => draining = true,
            Some(done) = tasks.join_next() => {
                let died = |e: tokio::task::JoinError| Fault::new(ErrorClass::Internal, e.to_string());
                done.map_err(died)??;
            }
            () = dispatch.wake.notified() => {}
            () = tokio::time::sleep(TICK) => {}
        }
        dispatch.forget_old();
        if draining && tasks.is_empty() {
            return Ok(());
        }
    }
}

/// The clock, as it was seen last, and when what is too far ahead of it was looked for.
struct Seen {
    at: Time,
    looked: Option<Instant>,
}

/// After a clock was set back, what waits would wait for as much longer: it is woken, and links are tried again. That may have been
/// while nobody looked: what waits for longer than anything does is woken, too.
async fn look_at_clock(
    dispatch: &Dispatch,
    site: &Arc<Site>,
    seen: &mut Seen,
) -> Result<(), Fault> {
    let (now, before) = (site.clock.now(), seen.at);
    seen.at = now;
    let is_due = seen.looked.is_none_or(|looked| looked.elapsed() >= LOOK_AHEAD_EVERY);
    if is_due {
        seen.looked = Some(Instant::now());
        let longest = site.config().transfer.lease.max(WAIT_MAX) + CLOCK_SLACK;
        let beyond = until(now, longest);
        while site.catalog.rouse(now, beyond, TAKEN_UP_MAX).done().await? == TAKEN_UP_MAX {}
    }
    if until(now, CLOCK_SLACK) >= before {
        return Ok(());
    }
    tracing::warn!(seconds = (before.0 - now.0) / 1_000_000, "the clock was set back");
    let all = until(before, WAIT_MAX);
    while site.catalog.wake(now, all, TAKEN_UP_MAX).done().await? == TAKEN_UP_MAX {}
    for (name, link) in lock(&dispatch.links).iter_mut() {
        change_link(site, name, link, Link::begin_anew);
    }
    Ok(())
}

/// Ends a task with its owner.
struct Abort<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for Abort<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Begins what can be begun.
async fn begin(dispatch: &Arc<Dispatch>, site: &Arc<Site>, tasks: &mut Tasks) -> Result<(), Fault> {
    match tasks.len() < site.config().transfer.active {
        true => dispatch.claims.take_up(site).await?,
        // So would be what is under way here, where the catalog did not answer for as long as its leases last.
        false => wake(site).await?,
    }
    let mut state = look(site).await?;
    let mut remotes = site.remotes();
    // Of files for several sites the first one takes all: who took last comes last.
    let all = remotes.len().max(1);
    let first = dispatch.turn.load(Ordering::Relaxed) % all;
    remotes.rotate_left(first);
    for (place, remote) in remotes.into_iter().enumerate() {
        // Rules of which this link lacks nothing.
        let mut done = BTreeSet::new();
        while tasks.len() < site.config().transfer.active {
            let chosen = choose(dispatch, site, &remote, (&state, &done));
            let Some((rule, limit)) = chosen else { break };
            let claimed = claim(dispatch, site, &remote, (&state, rule), limit).await?;
            // The next link shall not spend its probe on what this one took.
            if let Some((files, bytes)) = state.queued.get_mut(&rule) {
                *files -= i64::try_from(claimed.len()).unwrap_or(i64::MAX);
                *bytes -= i64::try_from(size_of(&claimed)).unwrap_or(i64::MAX);
            }
            if claimed.is_empty() {
                done.insert(rule);
                continue;
            }
            dispatch.turn.store((first + place + 1) % all, Ordering::Relaxed);
            let (claimed, beyond) = within(claimed, site.config().transfer.batch_bytes.0);
            dispatch.claims.put_back(site, &beyond, (Reason::Turn, None, Duration::ZERO)).await?;
            let bytes = size_of(&claimed);
            let share = site.config().transfer.share(state.names.rule(rule));
            if let Some(link) = lock(&dispatch.links).get_mut(remote.name()) {
                link.serve(rule, bytes, share);
            }
            let route = state.routes[&rule].clone();
            spawn(dispatch, site, &remote, (claimed, route), tasks)?;
        }
    }
    Ok(())
}

/// Takes files of a rule that a link lacks; when there are none, what the link permitted is given back.
async fn claim(
    dispatch: &Dispatch,
    site: &Arc<Site>,
    remote: &Remote,
    (state, rule): (&Now, RuleId),
    limit: usize,
) -> Result<Vec<Claimed>, Fault> {
    let (now, begun) = (site.clock.now(), Instant::now());
    let route = &state.routes[&rule];
    let work = match route.to.len() {
        ..=1 => Work::QueuedOf(rule),
        _ => {
            let holder = |name: &String| holder(site, &state.names, name);
            let (asking, others): (Vec<_>, Vec<_>) =
                route.to.iter().partition(|to| *to == remote.name());
            let [asking, others] = [asking, others].map(|to| to.into_iter().map(holder).collect());
            Work::QueuedFor(rule, Takers { asking, others, required: route.to.len() })
        }
    };
    let searched = matches!(work, Work::QueuedFor(..));
    kill_point("claim.before");
    let until = until(now, *site.config().transfer.lease);
    let claimed = site.catalog.claim(now, work, limit, until).done().await;
    kill_point("claim.after");
    if let Ok(claimed) = &claimed {
        dispatch.claims.hold(claimed);
    }
    let found = claimed.as_ref().map_or(0, Vec::len);
    if let Some(link) = lock(&dispatch.links).get_mut(remote.name()) {
        if searched && claimed.is_ok() {
            link.searched(rule, now, begun.elapsed(), found >= limit);
        }
        if found == 0 {
            link.unprobe(now);
        }
    }
    Ok(claimed?)
}

/// By what it is known that a site has a file. One that is not known, here or in the catalog, has none.
fn holder(site: &Site, names: &Names, name: &str) -> Holder {
    let key = site.remote(name).map(|remote| remote.key().as_bytes().to_vec());
    let known = names.site(name).zip(key);
    known.map_or_else(Holder::default, |(site, receiver)| Holder { site, receiver })
}

/// What there is to do.
pub(super) async fn look(site: &Arc<Site>) -> Result<Now, Fault> {
    let config = site.config();
    let (names, counts) = site.read(|reader| Ok((Names::read(reader)?, reader.counts()?))).await?;
    let rules = Rules::new(&site.name, &config.rule);
    let route = |id: &RuleId| Some((*id, Route::of(&config, &rules, names.rule(*id))?));
    let routes = names.rules.keys().filter_map(route).collect();
    Ok(Now { names, routes, queued: queue_by_rule(&counts) })
}

/// The rule whose turn it is on a link, and how many of its files make a batch.
fn choose(
    dispatch: &Dispatch,
    site: &Site,
    remote: &Remote,
    (state, done): (&Now, &BTreeSet<RuleId>),
) -> Option<(RuleId, usize)> {
    let (config, now) = (site.config(), site.clock.now());
    let mut ready: BTreeMap<RuleId, (i64, f64)> = state
        .queued
        .iter()
        .filter(|(rule, (files, _))| *files > 0 && !done.contains(rule))
        .filter_map(|(rule, _)| {
            let route = state.routes.get(rule)?;
            let goes = route.to.iter().any(|to| to == remote.name());
            goes.then(|| (*rule, (route.priority, config.transfer.share(&route.rule))))
        })
        .collect();
    if ready.is_empty() {
        return None;
    }
    let mut links = lock(&dispatch.links);
    let link =
        links.entry(remote.name().to_owned()).or_insert_with(|| Link::new(seed(), Wanted::Open));
    ready.retain(|rule, _| link.may_search(*rule, now) && link.may_take(now, mean(state, *rule)));
    let rule = link.next_rule(&ready)?;
    let mean = mean(state, rule);
    let fit = usize::try_from(config.transfer.batch_bytes.0 / mean.max(1)).unwrap_or(usize::MAX);
    let wanted = fit.clamp(1, config.transfer.batch_files);
    let limit = link.permit_of(mean, now, remote.section.active, wanted);
    (limit > 0).then_some((rule, limit))
}

/// Bytes of a rule's file in the queue, on average.
fn mean(state: &Now, rule: RuleId) -> u64 {
    let (files, bytes) = state.queued[&rule];
    u64::try_from(bytes / files.max(1)).unwrap_or(0)
}

fn size_of(claimed: &[Claimed]) -> u64 {
    claimed.iter().map(|claimed| claimed.size).sum()
}

/// As many as one batch has room for, the first in any case, and the others.
fn within(mut claimed: Vec<Claimed>, bytes_max: u64) -> (Vec<Claimed>, Vec<Claimed>) {
    let mut bytes = 0_u64;
    let fits = |claimed: &&Claimed| {
        bytes = bytes.saturating_add(claimed.size);
        bytes <= bytes_max
    };
    let fitting = claimed.iter().take_while(fits).count();
    let beyond = claimed.split_off(fitting.max(1).min(claimed.len()));
    (claimed, beyond)
}

/// Runs one batch beside the others.
fn spawn(
    dispatch: &Arc<Dispatch>,
    site: &Arc<Site>,
    remote: &Arc<Remote>,
    (claimed, route): (Vec<Claimed>, Route),
    tasks: &mut Tasks,
) -> Result<(), Fault> {
    let id = SessionId::random().ok_or_else(no_random)?;
    if let Some(link) = lock(&dispatch.links).get_mut(remote.name()) {
        link.active += 1;
    }
    let (dispatch, site, remote) = (dispatch.clone(), site.clone(), remote.clone());
    let active = Active { dispatch: dispatch.clone(), site, remote, id };
    tasks.spawn(async move {
        let done = batch(&active, claimed.clone(), route).await;
        if done.is_ok() {
            dispatch.claims.let_go(&claimed);
        }
        drop(active);
        dispatch.wake.notify_one();
        done
    });
    Ok(())
}

/// A batch. While this lives it counts on its link, and is shown. If it was a probe and nothing was told of it, it is given back.
struct Active {
    dispatch: Arc<Dispatch>,
    site: Arc<Site>,
    remote: Arc<Remote>,
    /// Of the batch, and of its session.
    id: SessionId,
}

impl Drop for Active {
    fn drop(&mut self) {
        lock(&self.dispatch.outgoing).remove(&batch_name(self.id));
        if let Some(link) = lock(&self.dispatch.links).get_mut(self.remote.name()) {
            link.active = link.active.saturating_sub(1);
            link.unprobe(self.site.clock.now());
        }
    }
}

async fn batch(active: &Active, claimed: Vec<Claimed>, mut route: Route) -> Result<(), Fault> {
    let Active { dispatch, site, remote, id } = active;
    let begun = Instant::now();
    let (to, config, keys) = (remote.name().to_owned(), site.config(), keys(site));
    let (loaded, route, destination) = {
        let catalog = site.catalog.clone();
        site.read(move |reader| {
            let destination = catalog.site(&to)?;
            let names = Names::read(reader)?;
            let loaded = load(reader, &claimed, &names, &config, (&to, &keys), &mut route)?;
            Ok((loaded, route, destination))
        })
        .await?
    };
    let Loaded { ready, failed, elsewhere } = loaded;
    let book = Arc::new(Book::new(site, &dispatch.look));
    let mut rng = Rng::new(seed());
    let failed = failed.into_iter().map(|(held, class)| (held, class, None)).collect();
    book.fail(failed, &mut rng).await?;
    book.put_back(elsewhere, Reason::Turn, None, ELSEWHERE).await?;
    let (ready, too_many) = fitting(ready, |held| item(held, &route).json_len());
    book.put_back(too_many, Reason::Turn, None, Duration::ZERO).await?;
    if ready.is_empty() {
        return Ok(());
    }
    book.hold(&ready);
    let progress = Arc::new(Progress::new(*id, site, remote, &route.rule, &ready));
    lock(&dispatch.outgoing).insert(batch_name(*id), progress.clone());
    let mut outgoing = Outgoing {
        site: site.clone(),
        remote: remote.clone(),
        dispatch: dispatch.clone(),
        book,
        destination,
        route,
        id: *id,
        rng,
        progress: progress.clone(),
    };
    let end = outgoing.run(ready).await;
    // Who hears of its end does not find it in the list.
    lock(&dispatch.outgoing).remove(&batch_name(*id));
    tell_end(site, progress.report(), &end);
    let (delivered, broken) = end?;
    let now = site.clock.now();
    let mut links = lock(&dispatch.links);
    let Some(link) = links.get_mut(remote.name()) else { return Ok(()) };
    change_link(site, remote.name(), link, |link| match &broken {
        Some(Broken { too_large: Some(smallest), what, .. }) => {
            link.has_no_room(now, *smallest, what);
        }
        Some(broken) => link.fail(now, broken.class, &broken.what),
        None if delivered.is_unasked => {}
        None => link.succeed(),
    });
    link.delivered(now, delivered.files, delivered.bytes, begun.elapsed().as_secs_f64());
    dispatch.totals.sent_files.fetch_add(delivered.files, Ordering::Relaxed);
    dispatch.totals.sent_bytes.fetch_add(delivered.bytes, Ordering::Relaxed);
    Ok(())
}

/// Tells who listens that a batch has ended, also by a fault of ours.
fn tell_end(site: &Site, mut batch: BatchReport, end: &Result<(Delivered, Option<Broken>), Fault>) {
    let trouble = match end {
        Ok((delivered, broken)) => {
            batch.arrived = delivered.bytes;
            broken.as_ref().map(|broken| (broken.class, broken.what.as_str()))
        }
        Err(fault) => Some((fault.class, fault.what.as_str())),
    };
    batch.tell(site, trouble);
}

/// Does something to a link, and tells who listens if it breaks or heals by that, or is to be used otherwise.
pub(super) fn change_link(
    site: &Site,
    name: &str,
    link: &mut Link,
    change: impl FnOnce(&mut Link),
) {
    let before = (link.is_broken(), link.wanted);
    change(link);
    let now = (link.is_broken(), link.wanted);
    if now != before {
        let mut about = serde_json::json!({ "site": name, "is_broken": now.0, "wanted": now.1 });
        if let Some((class, what)) = link.trouble().filter(|_| now.0) {
            (about["class"], about["what"]) = (class.name().into(), what.as_str().into());
        }
        site.events.tell(SiteEvent::LINK, &about);
    }
}

/// As many files as one offer has room for, and the others.
fn fitting(ready: Vec<Held>, len: impl Fn(&Held) -> usize) -> (Vec<Held>, Vec<Held>) {
    let mut bytes = 0;
    ready.into_iter().partition(|held| {
        bytes += len(held);
        bytes <= OFFER_ITEMS_LEN_MAX
    })
}

#[cfg(test)]
mod tests {
    use super::{BatchReport, Link, Tasks, Wanted, Work};
    use super::{begin, change_link, fitting, tell_end, within, work};
    use crate::dispatch::book::Held;
    use crate::dispatch::fixture::told;
    use crate::dispatch::offer::{OFFER_FILES_MAX, Offer};
    use crate::dispatch::outgoing::item;
    use crate::dispatch::route::Route;
    use crate::dispatch::{Dispatch, fixture};
    use crate::site::{Daemon, EventId, Fault, SiteEvent, Stop, Wish};
    use downpour_catalog::{Claimed, ErrorClass, Fence, FileId, Revision, State};
    use std::sync::Arc;
    use std::time::Duration;

    fn claimed(size: u64) -> Claimed {
        let (file, revision, fence) = (FileId(1), Revision(5), Fence(1));
        Claimed { file, revision, fence, state: State::Sending, size }
    }

    #[test]
    fn a_batch_ends_before_it_is_too_large_and_has_one_file_at_least() {
        let split = |sizes: &[u64]| {
            let (fit, beyond) = within(sizes.iter().copied().map(claimed).collect(), 1000);
            (fit.len(), beyond.len())
        };
        assert_eq!(split(&[400, 600, 1, 1]), (2, 2));
        assert_eq!(split(&[5000, 1, 1]), (1, 2));
        assert_eq!(split(&[1, 5000, 1]), (1, 2));
        assert_eq!(split(&[0, u64::MAX, u64::MAX]), (1, 2));
        assert_eq!(split(&[1; 9]), (9, 0));
        assert_eq!(split(&[]), (0, 0));
    }

    #[tokio::test]
    async fn what_arrives_is_waited_for_though_the_rest_has_failed() {
        let folder = tempfile::tempdir().unwrap();
        let site = Daemon::ended(folder.path(), "a", "").await;
        let (wish, stop) = Stop::new();
        let dispatch = Arc::new(Dispatch::new(&site, &Arc::default()));
        let works = || tokio::spawn(work(dispatch.clone(), site.clone(), stop.clone()));
        std::fs::rename(site.config().state(), folder.path().join("away")).unwrap();
        let failed = works().await.unwrap().unwrap_err();
        assert_eq!(failed.class, ErrorClass::CatalogUnreachable);
        let arriving = dispatch.arrivals.begin().unwrap();
        wish.send_replace(Wish::Drain);
        let mut ending = works();
        let soon = tokio::time::timeout(Duration::from_millis(100), &mut ending).await;
        assert!(soon.is_err(), "it waits");
        drop(arriving);
        ending.await.unwrap().unwrap();
        // A batch that ends by a fault of its own site is told, too.
        let batch = BatchReport {
            id: "1".to_owned(),
            site: "b".to_owned(),
            arrives: false,
            rule: "r".to_owned(),
            files: 1,
            bytes: 7,
            arrived: 0,
            failed: 0,
            since_us: 1,
            stands_s: None,
        };
        let fault = Fault::new(ErrorClass::CatalogUnreachable, "it is away");
        tell_end(&site, batch, &Err(fault));
        let told = told(&site, SiteEvent::BATCH).await;
        assert_eq!([&told["class"], &told["what"]], ["catalog-unreachable", "it is away"]);
    }

    #[tokio::test]
    async fn what_a_daemon_left_that_died_waits_with_the_rest_once_more_may_go_out() {
        let folder = tempfile::tempdir().unwrap();
        let site = Daemon::ended(folder.path(), "a", "[transfer]\nactive = 1\n").await;
        let dispatch = Arc::new(Dispatch::new(&site, &Arc::default()));
        let (id, _, rule) = fixture::queued(&site, "to:b", "f").await;
        let now = site.clock.now();
        let left = site.catalog.claim(now, Work::QueuedOf(rule), 1, now).done().await.unwrap();
        assert_eq!(left.len(), 1);
        let mut tasks = Tasks::new();
        tasks.spawn(std::future::pending());
        for stands in [(State::Sending, 1), (State::Waiting, 1)] {
            begin(&dispatch, &site, &mut tasks).await.unwrap();
            let file = fixture::file(&site, id).await;
            assert_eq!((file.state, file.tries), stands);
            tasks.shutdown().await;
        }
    }

    #[tokio::test]
    async fn what_holds_a_link_up_is_told_while_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::example(folder.path(), "a", "").await;
        let (site, mut link) = (&daemon.site, Link::new(1, Wanted::Open));
        let fail = |link: &mut Link| {
            (0..3).for_each(|_| link.fail(site.clock.now(), ErrorClass::TimedOut, "no answer"));
        };
        change_link(site, "b", &mut link, fail);
        change_link(site, "b", &mut link, Link::begin_anew);
        let mut listener = site.events.listen(Some(EventId::FIRST));
        let mut told = Vec::new();
        while told.len() < 2 {
            let event = listener.next(&site.events).await;
            told.extend((event.kind == SiteEvent::LINK).then(|| event.about.clone()));
        }
        let mut link = serde_json::json!({ "site": "b", "is_broken": false, "wanted": "open" });
        assert_eq!(told[1], link);
        link["is_broken"] = true.into();
        (link["class"], link["what"]) = ("timed-out".into(), "no answer".into());
        assert_eq!(told[0], link);
        daemon.end(Duration::ZERO).await;
    }

    #[test]
    fn an_offer_fits_into_a_body_whatever_its_files_are_called() {
        let config: crate::site::Config = toml::from_str(
            "[site]\nname = 'a'\n[[remote]]\nname = 'b'\nkey = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'",
        )
        .unwrap();
        let rules = crate::spool::Rules::new("a", &[]);
        let route = Route::of(&config, &rules, &format!("to:b/{}/{{name}}", "x".repeat(200)));
        let route = route.unwrap();
        for name in ["n".repeat(1000), "\u{1}".repeat(500)] {
            let mut held = Held::example(&name);
            held.rule = route.rule.clone();
            let all = vec![held; OFFER_FILES_MAX];
            let (fit, beyond) = fitting(all, |held| item(held, &route).json_len());
            assert_eq!(fit.len() + beyond.len(), OFFER_FILES_MAX);
            let items = fit.iter().map(|held| item(held, &route)).collect();
            let len = serde_json::to_vec(&Offer { batch: "0".repeat(32), items }).unwrap().len();
            assert!((800_000..config.limits.body.0 as usize).contains(&len), "{len}");
        }
    }
}
