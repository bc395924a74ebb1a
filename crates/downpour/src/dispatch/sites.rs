//! What other sites may ask: `/v1/site/offers`, `/v1/site/batches`, `/v1/site/wants`. Each is answered from what it finds; none
//! waits for bytes.

use super::arriving::{Judged, check, judge, may_receive};
use super::incoming::Incoming;
use super::link::Wanted;
use super::offer::{Arrived, BatchState, Begin, Offer, OfferAnswer, OfferItem, Trouble};
use super::people::{BatchReport, TransferReport, transfer_here};
use super::room::LANES_MAX;
use super::submit::{Accepted, Submission};
use super::turns::in_turn;
use super::{Dispatch, here, lock, wants};
use crate::api::{Allow, Asked, Given, Named, Problem, Routes, Who};
use crate::site::{Fault, Remote, Site, Wish};
use crate::ticket::Ticket;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use downpour_catalog::ErrorClass;
use futures_util::future::join_all;
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use utoipa::{IntoParams, OpenApi};

/// Batches that are known at once, ended ones included, whose receipts take memory: a megabyte at most each. What was told makes
/// way for what is offered.
const KNOWN_MAX: usize = 256;
/// Longest wait for a batch's end in one answer.
const WAIT_MAX_S: u64 = 20;

#[derive(OpenApi)]
#[openapi(paths(offer, begin, batch, want, transfer))]
struct Description;

pub(super) fn routes() -> Routes {
    Routes::described(Description::openapi())
        .post("/v1/site/offers", Allow::Site, offer)
        .post("/v1/site/batches/{id}", Allow::Site, begin)
        .get("/v1/site/batches/{id}", Allow::Site, batch)
        .post("/v1/site/wants", Allow::Site, want)
        .get("/v1/site/transfers/{id}", Allow::Site, transfer)
}

/// How a transfer stands that another site let be queued here
#[utoipa::path(get, path = "/v1/site/transfers/{id}", params(("id" = i64, Path)),
    responses((status = 200, body = TransferReport), (status = 404, body = Problem)))]
async fn transfer(
    State(site): State<Arc<Site>>,
    Named(id): Named<i64>,
) -> Result<Json<TransferReport>, Problem> {
    transfer_here(&site, id).await
}

/// The site that asks.
pub(super) fn asker(site: &Site, who: &Who) -> Result<Arc<Remote>, Problem> {
    site.remote(who.name()).ok_or_else(|| Problem::not_found("this site does not know you"))
}

/// Offer files
#[utoipa::path(post, path = "/v1/site/offers", request_body = Offer,
    responses((status = 200, body = OfferAnswer), (status = 400, body = Problem)))]
async fn offer(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Extension(who): Extension<Who>,
    Given(offer): Given<Offer>,
) -> Result<Json<OfferAnswer>, Problem> {
    let remote = asker(&site, &who)?;
    check(&offer).map_err(|what| Problem::bad_request(what, "send a smaller or a sound offer"))?;
    if dispatch.is_banned(remote.name()) {
        let what = "an operator of this site banned the link";
        let banned = Problem::new(StatusCode::FORBIDDEN, "banned", what, "ask that operator");
        return Err(banned.of_class(ErrorClass::DestinationRefused));
    }
    if dispatch.arrivals.wish() != Wish::Run {
        return Err(ending(&site));
    }
    dispatch.end_earlier(remote.name(), &offer).await?;
    dispatch.forget_old();
    if !make_room(&mut lock(&dispatch.incoming)) {
        let what = format!("{KNOWN_MAX} batches are known already");
        return Err(Problem::busy(what, "offer it later"));
    }
    let (folder, id) = (site.config().inbox_of(&remote.section), offer.batch.clone());
    let judged = look(&site, &dispatch, folder.clone(), offer).await?;
    if !judged.taken.is_empty() {
        let bytes = judged.taken.iter().map(|taken| taken.needed).sum();
        judged.reserved.promise.keep(bytes);
        let (taken, reserved, book) = (judged.taken, judged.reserved, dispatch.book.clone());
        let incoming = Incoming::new(remote.name(), folder, taken, reserved, book);
        lock(&dispatch.incoming).insert(id, Arc::new(incoming));
    }
    Ok(Json(OfferAnswer { items: judged.said }))
}

/// Judges an offer of files that go to this folder.
async fn look(
    site: &Arc<Site>,
    dispatch: &Arc<Dispatch>,
    folder: PathBuf,
    offer: Offer,
) -> Result<Judged, Problem> {
    let (turns, at) = (dispatch.turns.looks(&site.config(), &folder), folder.clone());
    let (site, dispatch) = (site.clone(), dispatch.clone());
    let judged = async move {
        let (folder, id) = (may_receive(&site, folder).await?, offer.batch.clone());
        let mut judged = judge(&site, &dispatch.room, &folder, offer).await?;
        here::find(&site, &dispatch.contents, &folder, &id, &mut judged).await?;
        Ok::<_, Fault>(judged)
    };
    in_turn(turns, &at, judged).await
}

/// Whether one more batch may be known. Those that were told make room for it, the oldest first: whose source has lost the
/// answer finds it in that to its next offer.
fn make_room(incoming: &mut HashMap<String, Arc<Incoming>>) -> bool {
    while incoming.len() >= KNOWN_MAX {
        let told = incoming.iter().filter_map(|(id, batch)| Some((batch.told.get()?, id)));
        let Some((_, oldest)) = told.min() else { return false };
        let oldest = oldest.clone();
        incoming.remove(&oldest);
    }
    true
}

/// Begin a batch that was offered
#[utoipa::path(post, path = "/v1/site/batches/{id}", request_body = Begin,
    params(("id" = String, Path)),
    responses((status = 200, body = BatchState), (status = 404, body = Problem)))]
async fn begin(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Extension(who): Extension<Who>,
    Named(id): Named<String>,
    Given(begin): Given<Begin>,
) -> Result<Json<BatchState>, Problem> {
    let remote = asker(&site, &who)?;
    let incoming = dispatch.known(&who, &id)?;
    let ticket: Ticket = begin.ticket.parse().map_err(|error: crate::ticket::TicketError| {
        Problem::bad_request(error.to_string(), "send the session's ticket")
    })?;
    if ticket.key != remote.key() {
        let what = "the ticket is another node's";
        return Err(Problem::bad_request(what, "send a ticket of your own session"));
    }
    if !incoming.begun.load(Ordering::SeqCst) {
        let arriving = dispatch.arrivals.begin().ok_or_else(|| ending(&site))?;
        let full = || Problem::busy(format!("{LANES_MAX} batches arrive already"), "try later");
        let lane = incoming.lane(&dispatch.room).await?.ok_or_else(full)?;
        // A repeated question begins nothing twice; one that was broken off while it waited for a lane begins nothing.
        if !incoming.begun.swap(true, Ordering::SeqCst) {
            let (site, incoming) = (site.clone(), incoming.clone());
            tokio::spawn(async move {
                incoming.run(&site, &remote, lane.name(), ticket).await;
                dispatch.count(&incoming.state.borrow());
                let trouble = broken(&incoming.state.borrow().items).cloned();
                let trouble = trouble.as_ref().map(|of| (of.class(), of.what.as_str()));
                BatchReport::incoming(&id, &incoming, site.clock.now()).tell(&site, trouble);
                drop(arriving);
            });
        }
    }
    Ok(Json(incoming.state.borrow().clone()))
}

/// Why a batch broke as a whole, the first of its files before others: all failed, and by one class.
fn broken(items: &[Arrived]) -> Option<&Trouble> {
    let troubles = items.iter().map(|item| match item {
        Arrived::Failed(trouble) => Some(trouble),
        Arrived::Placed { .. } => None,
    });
    let troubles: Vec<&Trouble> = troubles.collect::<Option<_>>()?;
    let (first, others) = troubles.split_first()?;
    others.iter().all(|trouble| trouble.class == first.class).then_some(*first)
}

/// Nothing begins to arrive.
fn ending(site: &Site) -> Problem {
    let what = format!("the service `dispatch` of {} ends, or was ended", site.name);
    Problem::busy(what, "offer it later")
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Wait {
    /// Seconds to wait for its end.
    wait: Option<u64>,
}

/// How far a batch is
#[utoipa::path(get, path = "/v1/site/batches/{id}", params(("id" = String, Path), Wait),
    responses((status = 200, body = BatchState), (status = 404, body = Problem)))]
async fn batch(
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Extension(who): Extension<Who>,
    Named(id): Named<String>,
    Asked(Wait { wait }): Asked<Wait>,
) -> Result<Json<BatchState>, Problem> {
    let incoming = dispatch.known(&who, &id)?;
    let mut state = incoming.state.subscribe();
    let wait = Duration::from_secs(wait.unwrap_or(0).min(WAIT_MAX_S));
    // Not ended by then: it is said how far it is.
    let _ = tokio::time::timeout(wait, state.wait_for(|state| state.done)).await;
    let state = state.borrow().clone();
    if state.done {
        incoming.told.get_or_init(Instant::now);
    }
    Ok(Json(state))
}

/// Ask for files
#[utoipa::path(post, path = "/v1/site/wants", request_body = Submission,
    responses((status = 200, body = Accepted), (status = 400, body = Problem)))]
async fn want(
    State(site): State<Arc<Site>>,
    Extension(dispatch): Extension<Arc<Dispatch>>,
    Extension(who): Extension<Who>,
    Given(wish): Given<Submission>,
) -> Result<Json<Accepted>, Problem> {
    let remote = asker(&site, &who)?;
    Ok(Json(wants::want(&dispatch, &site, &remote, wish).await?))
}

impl Dispatch {
    pub(super) fn is_banned(&self, site: &str) -> bool {
        lock(&self.links).get(site).is_some_and(|link| link.wanted == Wanted::Banned)
    }

    /// A batch that this site offered.
    fn known(&self, who: &Who, id: &str) -> Result<Arc<Incoming>, Problem> {
        let incoming = lock(&self.incoming).get(id).cloned();
        let own = incoming.filter(|incoming| incoming.from == who.name());
        own.ok_or_else(|| Problem::not_found("this batch is not known here, or not any more"))
    }

    /// Forgets offers that nobody began and results that nobody will ask for any more.
    pub(super) fn forget_old(&self) {
        lock(&self.incoming).retain(|_, incoming| incoming.is_of_use());
    }

    /// Ends the sessions in which files still came that are offered anew: at their source they are over, and what they
    /// left is for this batch.
    async fn end_earlier(&self, from: &str, offer: &Offer) -> Result<(), Problem> {
        fn key(item: &OfferItem) -> (&str, &str, i64) {
            (&item.site, &item.name, item.version)
        }
        let offered: HashSet<_> = offer.items.iter().map(key).collect();
        let is_earlier = |incoming: &&Arc<Incoming>| {
            let is_open = incoming.from == from && incoming.ended.get().is_none();
            is_open && incoming.taken.iter().any(|taken| offered.contains(&key(&taken.item)))
        };
        let earlier: Vec<_> = lock(&self.incoming).values().filter(is_earlier).cloned().collect();
        for incoming in earlier {
            if !incoming.give_up().await {
                let what = "an earlier batch with some of these files has not ended yet";
                return Err(Problem::busy(what, "offer them later"));
            }
        }
        Ok(())
    }

    /// Ends all that arrives: the sessions keep what has come. A fetch goes on from there when the service runs again.
    pub(super) async fn end_arriving(&self) {
        let is_open = |incoming: &&Arc<Incoming>| incoming.ended.get().is_none();
        let open: Vec<_> = lock(&self.incoming).values().filter(is_open).cloned().collect();
        join_all(open.iter().map(|incoming| incoming.give_up())).await;
        self.arrivals.ended().await;
    }

    fn count(&self, state: &BatchState) {
        let placed = |item: &&Arrived| matches!(item, Arrived::Placed { .. });
        let files = state.items.iter().filter(placed).count() as u64;
        self.totals.received_files.fetch_add(files, Ordering::Relaxed);
        let failed = state.items.len() as u64 - files;
        self.totals.failed.fetch_add(failed, Ordering::Relaxed);
        self.totals.received_bytes.fetch_add(state.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrived, Incoming, KNOWN_MAX, Offer, Trouble, broken, look, make_room};
    use crate::dispatch::Dispatch;
    use crate::dispatch::arriving::Taken;
    use crate::dispatch::ledger::Ledger;
    use crate::dispatch::room::Room;
    use crate::site::{Daemon, Service as _};
    use downpour_catalog::ErrorClass;
    use std::collections::{HashMap, HashSet};
    use std::sync::Arc;
    use std::time::Instant;
    use tokio::sync::Semaphore;

    #[tokio::test]
    async fn an_offer_is_answered_though_the_disk_of_its_folder_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let site = Daemon::ended(folder.path(), "b", "").await;
        let inbox = folder.path().join("inbox");
        let dispatch = Arc::new(Dispatch::new(&site, &Arc::default()));
        let all = |turns: Arc<Semaphore>| {
            let all = u32::try_from(turns.available_permits()).unwrap();
            turns.try_acquire_many_owned(all).unwrap()
        };
        let looked = async || {
            let items = vec![Taken::example("x", 1).item];
            let offer = Offer { batch: "0".repeat(32), items };
            look(&site, &dispatch, inbox.clone(), offer).await.map(|judged| judged.said.len())
        };
        // Who reads there has no turn that an offer needs.
        let _reads = all(dispatch.turns.reads(&site.config(), &inbox));
        assert_eq!(looked().await.unwrap(), 1);
        // Earlier ones have all that there are.
        let held = all(dispatch.turns.looks(&site.config(), &inbox));
        tokio::time::pause();
        let busy = looked().await.unwrap_err();
        assert_eq!(busy.class(), Some(ErrorClass::OutOfResources));
        assert!(busy.what.contains("busy with other requests"), "{}", busy.what);
        tokio::time::resume();
        drop(held);
        assert_eq!(looked().await.unwrap(), 1);
        // Its disk is not mounted any more.
        std::fs::rename(&inbox, folder.path().join("away")).unwrap();
        let away = looked().await.unwrap_err();
        assert_eq!(away.class(), Some(ErrorClass::DestinationWriteFailed), "{}", away.what);
        assert!(dispatch.status().line.contains("is it mounted?"));
        assert!(!inbox.exists());
    }

    #[test]
    fn what_was_told_makes_room_for_what_is_offered_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let (at, room) = (folder.path(), Arc::new(Room::default()));
        let ledger = Ledger::example(at);
        let batch = |id: usize| {
            let reserved = room.space(at, &HashSet::new()).reserve();
            let batch = Incoming::new("a", at.to_owned(), Vec::new(), reserved, ledger.clone());
            (id.to_string(), Arc::new(batch))
        };
        let mut known: HashMap<_, _> = (1..KNOWN_MAX).map(batch).collect();
        assert!(make_room(&mut known) && known.len() == KNOWN_MAX - 1);
        known.extend([batch(KNOWN_MAX)]);
        assert!(!make_room(&mut known) && known.len() == KNOWN_MAX);
        for id in ["7", "3"] {
            known[id].told.set(Instant::now()).unwrap();
        }
        assert!(make_room(&mut known) && known.len() == KNOWN_MAX - 1);
        assert!(!known.contains_key("7") && known.contains_key("3"), "the oldest first");
    }

    #[test]
    fn a_batch_broke_as_a_whole_where_all_of_it_failed_by_one_class() {
        let failed = |class, what: &str| Arrived::Failed(Trouble::new(class, what));
        let lost = |what| failed(ErrorClass::ConnectionLost, what);
        let told = |items: &[Arrived]| broken(items).map(|trouble| trouble.what.clone());
        assert_eq!(told(&[lost("x"), lost("y")]).as_deref(), Some("x"));
        assert_eq!(told(&[lost("x"), failed(ErrorClass::FileChanged, "y")]), None);
        assert_eq!(told(&[]), None);
    }
}
