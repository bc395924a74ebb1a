//! Why a file does not move, and when it will: one reason and one time for each.
//!
//! Made of what the catalog says of the file, where its rule sends it, and how the links are now. The routes in `people` ask, for
//! a page of files or for one with its ways. It only reads: what becomes of a file is decided in `work` and `policy`, and how
//! long a way is expected to take in `ways`.

mod page;

use super::fetch::{FetchReport, FetchSource};
use super::link::{Link, Wanted};
use super::load::{Names, having, keys, queue_by_rule, receipts_that_hold};
use super::route::{Route, is_submitted};
use super::ways::Way;
use super::{Dispatch, ReceiverSection, SERVICE, lock};
use crate::site::{Config, Fault, Site};
use crate::spool::Rules;
use downpour_catalog::{Count, Error, ErrorClass, File, FileId, Query, Reason, State, Time};
use downpour_proto::Rate;
use downpour_transport::identity::PublicKey;
pub(super) use page::Place;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use utoipa::ToSchema;

/// Those in which files do not move, in the order in which they are shown: first what moves on by nobody but people.
const STATES: [State; 5] =
    [State::Quarantined, State::Waiting, State::Queued, State::Settled, State::Hashed];

/// One file that does not move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// Its number in this catalog.
    pub file: i64,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: i64,
    /// Where it stands.
    pub state: String,
    /// Its one reason; absent when it moves or has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The error class behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Attempts so far.
    pub tries: u32,
    /// Since when it stands there, microseconds since 1970.
    pub since_us: i64,
    /// When it is expected to move on, microseconds since 1970; absent when somebody has to do something first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_us: Option<i64>,
    /// In words, with what to do where something is to be done.
    pub text: String,
    /// Whether it lies in the quarantine of a spool, which releases it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_aside: bool,
    /// What is expected of the ways to where it goes; only when asked for one file that is to go there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<Way>,
    /// Other sites that have it, the best first; only when asked for one file that is not here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<FetchSource>,
    /// How far it is fetched, while it is; only when asked for one file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<FetchReport>,
}

/// A page of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhyList {
    /// The files.
    pub files: Vec<Why>,
    /// Files that are fetched from who has them; on the first page, unless a state or a class is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fetches: Vec<FetchReport>,
    /// Where the next page begins; absent on the last. A page may be empty and not the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What the links say, without their locks.
struct Links {
    of: HashMap<String, LinkNow>,
    /// Receivers that take part in the standing session, while it is open.
    present: Option<BTreeSet<String>>,
    /// Why the service `dispatch` begins nothing, and what starts it, while it does not work.
    standstill: Option<String>,
}

impl Links {
    /// Why nothing becomes of such a file: what would move it on does not work.
    fn stopped(&self, state: State, route: Option<&Route>) -> Option<&String> {
        let route = route?;
        let is_moved = match state {
            State::Settled | State::Hashed => is_submitted(&route.rule),
            State::Queued | State::Waiting => !route.to.is_empty(),
            _ => false,
        };
        self.standstill.as_ref().filter(|_| is_moved)
    }
}

#[derive(Clone)]
struct LinkNow {
    wanted: Wanted,
    probe_at: Option<Time>,
    /// What stands in the way, or failed the last time: its class, and in words.
    trouble: Option<(ErrorClass, String)>,
    files_per_s: f64,
}

impl Dispatch {
    fn links_now(&self, standstill: Option<String>) -> Links {
        let links = lock(&self.links);
        let now = links.iter().map(|(name, link)| {
            let trouble = trouble(name, link);
            let (wanted, probe_at, files_per_s) = (link.wanted, link.probe_at(), link.pace().0);
            (name.clone(), LinkNow { wanted, probe_at, trouble, files_per_s })
        });
        let present = lock(&self.multicast).present.clone();
        Links { of: now.collect(), present, standstill }
    }

    /// Files that do not move, all of them or those that `query` finds. Its error class is the one that they are shown with.
    pub(super) async fn why(
        &self,
        site: &Arc<Site>,
        query: Query,
        from: Place,
    ) -> Result<WhyList, Fault> {
        let links = self.links_now(site.supervisor().standstill(SERVICE));
        self.list(site, links, query, from).await
    }

    /// One file.
    pub(super) async fn why_of(&self, site: &Arc<Site>, id: FileId) -> Result<Option<Why>, Fault> {
        let links = self.links_now(site.supervisor().standstill(SERVICE));
        let config = site.config();
        let (own, now, keys) = (site.name.clone(), site.clock.now(), keys(site));
        let configured = config.clone();
        let read = site.read(move |reader| {
            let Some(file) = reader.file(id)? else { return Ok(None) };
            let names = Names::read(reader)?;
            let rules = Rules::new(&own, &config.rule);
            let route = |file: &File| Route::of(&config, &rules, names.rule(file.rule));
            let mut found = still_to(reader, vec![file], route, (&names, &keys))?;
            let Some((file, route)) = found.pop() else { return Ok(None) };
            let queue = queue_by_rule(&reader.counts()?);
            let (ahead, waiting) = queue.get(&file.rule).copied().unwrap_or_default();
            let lack = lack(reader, &file, route.as_ref(), (&config, &names), &links)?;
            let origin = names.sites.get(&file.site).cloned().unwrap_or_default();
            let mut replicas = reader.replicas(file.id)?.into_iter();
            let here = replicas.find(|replica| Some(replica.site) == names.site(&own));
            let recorded = Recorded { file, route, ahead, lack };
            Ok(Some((recorded, links, origin, waiting, here)))
        });
        let Some((recorded, links, origin, waiting, here)) = read.await? else { return Ok(None) };
        let aside = self.aside(&configured, &quarantined([&recorded])).await?;
        let mut why = say(&recorded, !aside.is_empty(), &links, now);
        let Recorded { file, route, .. } = recorded;
        let standing = match (file.state, &route) {
            (State::Sending, Some(route)) if !route.receivers.is_empty() => {
                lock(&self.multicast).hangs.clone()
            }
            (State::Settled, Some(route)) if is_submitted(&route.rule) => {
                here.and_then(|here| self.hashing.standing_of(&configured, here.path.as_ref()))
            }
            _ => self.standing(|batch| batch.ids.contains(&id)),
        };
        let to = route.iter().flat_map(|route| &route.to).filter(|_| standing.is_none());
        why.text.extend(standing.iter().flat_map(|what| ["; ", what]));
        why.ways = to.filter_map(|to| self.way_of(site, (&file, to), &why, waiting)).collect();
        why.sources = self.sources_elsewhere(site, &origin, &file).await?;
        why.fetch = self.fetching(&origin, &file.name, file.version);
        Ok(Some(why))
    }

    /// What is expected of the way of a file that is still to go.
    fn way_of(
        &self,
        site: &Site,
        (file, to): (&File, &str),
        why: &Why,
        waiting: i64,
    ) -> Option<Way> {
        let now = site.clock.now();
        let is_stopped = site.supervisor().standstill(SERVICE).is_some();
        let (open, active, lately) = match lock(&self.links).get(to) {
            // A link that is broken, or that nobody opens again.
            Some(link) if is_stopped || link.wanted != Wanted::Open => (None, link.active, 0.0),
            Some(link) => {
                let open = link.probe_at().map_or(now, |at| at.max(now));
                (Some(open), link.active, link.pace().1 * 8.0)
            }
            None => (Some(now).filter(|_| !is_stopped), 0, 0.0),
        };
        let (since, before) = match file.state {
            // After all of its rule, at the latest.
            State::Queued => (open, u64::try_from(waiting).unwrap_or(0).saturating_sub(file.size)),
            State::Found | State::Settled | State::Hashed => (open, 0),
            State::Sending => (Some(now), 0),
            State::Waiting => (open.zip(why.eta_us).map(|(open, eta)| open.max(Time(eta))), 0),
            _ => return None,
        };
        let own = usize::from(file.state == State::Sending);
        let beside = u16::try_from(active.saturating_sub(own)).unwrap_or(u16::MAX);
        let lately = Some(Rate::from_bps(lately as u64)).filter(|rate| rate.bps() > 0);
        let ends = [site.name.as_str(), to];
        Some(self.way(site, ends, (beside, lately), (since, file.size, before)))
    }

    /// A page of files, as the links are.
    async fn list(
        &self,
        site: &Arc<Site>,
        links: Links,
        query: Query,
        from: Place,
    ) -> Result<WhyList, Fault> {
        let (links, config) = (Arc::new(links), site.config());
        let (own, now, keys) = (site.name.clone(), site.clock.now(), keys(site));
        let (links_now, configured) = (links.clone(), config.clone());
        let read = site.read(move |reader| {
            let names = Names::read(reader)?;
            let rules = Rules::new(&own, &config.rule);
            let counts = reader.counts()?;
            let (queue, asked) = (queue_by_rule(&counts), queries(&query, &from, &counts, &links));
            let (files, next) = page::find(reader, &asked, from, |reader, found| {
                let route = |file: &File| Route::of(&config, &rules, names.rule(file.rule));
                let mut files = still_to(reader, found, route, (&names, &keys))?;
                files.retain(|(file, route)| {
                    query.error.is_none() || class_of(file, route.as_ref(), &links) == query.error
                });
                let record = |(file, route): (File, Option<Route>)| {
                    let lack = lack(reader, &file, route.as_ref(), (&config, &names), &links)?;
                    let ahead = queue.get(&file.rule).map_or(0, |(files, _)| *files);
                    Ok(Recorded { file, route, ahead, lack })
                };
                files.into_iter().map(record).collect()
            })?;
            Ok((files, next.map(|place| place.to_string())))
        });
        let (files, next) = read.await?;
        let aside = self.aside(&configured, &quarantined(&files)).await?;
        let say = |of: &Recorded| say(of, aside.contains(&of.file.id), &links_now, now);
        Ok(WhyList { files: files.iter().map(say).collect(), fetches: Vec::new(), next })
    }
}

/// What is asked of the catalog: one state after the other, unless the question is of one.
fn queries(query: &Query, from: &Place, counts: &[Count], links: &Links) -> Vec<Query> {
    let is_named = query.prefix.is_some() || query.digest.is_some();
    let states = match query.state {
        Some(state) => vec![state],
        // What has ended has no error class.
        None if is_named && query.error.is_none() => Vec::new(),
        None => STATES.to_vec(),
    };
    // What is queued has none in the catalog: it is shown with that of its link.
    let is_known = |state, class| state != Some(State::Queued) || !shows(links, class);
    let error = |state| query.error.filter(|class| is_known(state, *class));
    let ask = |state| Query { state, error: error(state), ..query.clone() };
    // Of a state without files nothing need be asked.
    let is_held = |state: &&State| counts.iter().any(|count| count.state == **state);
    let is_asked = |state: &&State| is_held(state) || from.state() == Some(**state);
    match states.as_slice() {
        [] => vec![ask(None)],
        states => states.iter().filter(is_asked).map(|state| ask(Some(*state))).collect(),
    }
}

/// What stands in the way of a link.
fn trouble(name: &str, link: &Link) -> Option<(ErrorClass, String)> {
    let (class, what) = link.trouble()?;
    // What found no room before says nothing of another trouble since.
    let too_large = link.too_large().filter(|_| *class == ErrorClass::DestinationFull);
    let text = match (link.is_broken(), too_large) {
        _ if link.probe_at().is_none() => {
            format!("the last batch to {name} failed: {class}: {what}")
        }
        (true, _) => format!("the link to {name} is broken: {class}: {what}"),
        // The last refusal may have been of a larger one, and says how large.
        (false, Some(size)) => format!("{name} has no room for {size} bytes: {class}"),
        (false, None) => format!("nothing goes to {name} now: {class}: {what}"),
    };
    Some((*class, text))
}

/// Files, and where each is still to go: of several sites to those that lack it, for the others' links are nothing to it.
/// Asked at once for all of them: a database may be far away.
fn still_to(
    reader: &mut downpour_catalog::Reader,
    files: Vec<File>,
    route: impl Fn(&File) -> Option<Route>,
    known: (&Names, &HashMap<String, PublicKey>),
) -> Result<Vec<(File, Option<Route>)>, Error> {
    let with_route = |file: File| {
        let route = route(&file);
        (file, route)
    };
    let mut files: Vec<_> = files.into_iter().map(with_route).collect();
    let several = |route: &Route| route.to.len() > 1;
    let asked = files.iter().filter(|(_, route)| route.as_ref().is_some_and(several));
    let asked: Vec<FileId> = asked.map(|(file, _)| file.id).collect();
    let have = having(reader, &asked, known)?;
    for (file, route) in &mut files {
        let Some(route) = route else { continue };
        let lacks = |to: &&String| !have.contains(&(file.id, to.to_string()));
        let lacking: Vec<String> = route.to.iter().filter(lacks).cloned().collect();
        // Where none lacks it, any of them is to say so.
        if !lacking.is_empty() {
            route.to = lacking;
        }
    }
    Ok(files)
}

/// Of a file for named receivers that does not move: which of them lack it, and which of these are away.
fn lack(
    reader: &mut downpour_catalog::Reader,
    file: &File,
    route: Option<&Route>,
    (config, names): (&Config, &Names),
    links: &Links,
) -> Result<Option<String>, Error> {
    let stands = matches!(file.state, State::Waiting | State::Queued | State::Sending);
    let Some(route) = route.filter(|route| stands && !route.receivers.is_empty()) else {
        return Ok(None);
    };
    let Some(present) = &links.present else {
        let text = "the multicast session is not open (downpour service status)";
        return Ok(Some(text.to_owned()));
    };
    let of = |r: &ReceiverSection| Some((names.site(&r.name)?, r.key.as_bytes().to_vec()));
    let holders = config.receiver.iter().filter_map(of).collect();
    let receipts = receipts_that_hold(reader, &[file.id], &holders)?;
    let has = |key: &[u8]| receipts.iter().any(|receipt| receipt.receiver == key);
    let lacks = |name: &&String| {
        let known = config.receiver.iter().find(|receiver| receiver.name == **name);
        known.is_none_or(|receiver| !has(receiver.key.as_bytes()))
    };
    let lacking: Vec<&String> = route.receivers.iter().filter(lacks).collect();
    let told = |name: &&String| match present.contains(*name) {
        true => name.to_string(),
        false => format!("{name} (away)"),
    };
    let told = lacking.iter().map(told).collect::<Vec<_>>().join(", ");
    let none = lacking.iter().all(|name| !present.contains(*name));
    let is = if none { "no receiver that lacks it is there" } else { "they lack it" };
    let (have, of) = (route.receivers.len() - lacking.len(), route.required);
    Ok(Some(format!("{have} receivers have it, {of} must; {is}: {told}")))
}

/// A file, and what the catalog says of what its reason depends on.
struct Recorded {
    file: File,
    /// To where it still is to go.
    route: Option<Route>,
    /// Files of its rule in the queue.
    ahead: i64,
    /// Which of its receivers lack it.
    lack: Option<String>,
}

/// Those that may lie in the quarantine of a spool.
fn quarantined<'a>(files: impl IntoIterator<Item = &'a Recorded>) -> Vec<(FileId, String)> {
    let files = files.into_iter().map(|recorded| &recorded.file);
    let quarantined = files.filter(|file| file.state == State::Quarantined);
    quarantined.map(|file| (file.id, file.name.clone())).collect()
}

fn say(recorded: &Recorded, is_aside: bool, links: &Links, now: Time) -> Why {
    let Recorded { file, ahead, lack, .. } = recorded;
    let route = recorded.route.as_ref();
    let is_submitted = route.is_some_and(|route| is_submitted(&route.rule));
    let stopped = links.stopped(file.state, route);
    let (held, trouble) = match (file.state, route) {
        (State::Waiting | State::Queued, Some(route)) if stopped.is_none() => held_up(route, links),
        _ => (None, String::new()),
    };
    // What is recorded of a file does not change with a link.
    let by_link = held.filter(|_| file.state == State::Queued);
    let by_people = stopped.map(|_| Reason::Paused);
    let reason = by_people.or(by_link.map(|held| held.reason)).or(file.reason);
    let class = class_of(file, route, links);
    let (eta, text) = match (file.state, by_link) {
        _ if stopped.is_some() => (None, stopped.cloned().unwrap_or_default()),
        (State::Waiting, _) => waiting(file, route, links, held),
        // A probe may be under way.
        (State::Queued, Some(held)) => (held.eta.map(|eta| eta.max(now)), String::new()),
        (State::Queued, None) => queued(route, links, *ahead, now),
        (State::Quarantined, _) => {
            let class = file.error.map_or("an error", |class| class.name());
            let of = if is_aside { "spool" } else { "transfer" };
            let todo = format!("when its cause is gone: downpour {of} release {}", file.id);
            let told = match file.error {
                Some(ErrorClass::VersionConflict) => " (the log says what is in its way)",
                Some(ErrorClass::NameRefused) => " (the log says what is wrong with it)",
                Some(ErrorClass::FileGone) if !is_submitted => {
                    " (in a spool it goes on by itself when it is put back as it was)"
                }
                Some(ErrorClass::FileChanged) if is_submitted => {
                    " (what is there now goes when it is submitted again; this one is over with `transfer cancel`)"
                }
                _ => "",
            };
            (None, format!("set apart for {class}, which is the file's own{told}; {todo}"))
        }
        (State::Found, _) => (None, "it may still be written".to_owned()),
        (State::Settled, _) => (Some(now), "its digest is to be computed".to_owned()),
        (State::Hashed, _) => (Some(now), "its rule queues it next".to_owned()),
        (State::Sending, _) => (None, "it is being sent".to_owned()),
        (State::Sent, _) => (Some(now), "the destination is to verify it".to_owned()),
        (State::Verified, _) => (Some(now), "its receipt is to be recorded".to_owned()),
        (State::Receipted, _) => (None, "it is at its destination, by its receipt".to_owned()),
        (State::Cancelled, _) => (None, "it was cancelled".to_owned()),
        (State::Adopted, _) => (None, "it lies where it should".to_owned()),
    };
    let lack = lack.as_ref().filter(|_| stopped.is_none());
    let texts = [Some(&text), Some(&trouble), lack].into_iter().flatten();
    let texts: Vec<&str> = texts.map(String::as_str).filter(|text| !text.is_empty()).collect();
    Why {
        fetch: None,
        file: file.id.0,
        name: file.name.clone(),
        version: file.version,
        state: file.state.name().to_owned(),
        reason: reason.map(|reason| reason.name().to_owned()),
        class: class.map(|class| class.name().to_owned()),
        tries: file.tries,
        since_us: file.since.0,
        eta_us: eta.map(|eta| eta.0),
        text: texts.join("; "),
        is_aside,
        ways: Vec::new(),
        sources: Vec::new(),
    }
}

fn waiting(
    file: &File,
    route: Option<&Route>,
    links: &Links,
    held: Option<HeldUp>,
) -> (Option<Time>, String) {
    let class = file.error.map_or(String::new(), |class| format!(" after {class}"));
    let mut what = match file.reason {
        Some(Reason::NoSpace) => "the destination has no room beside what it keeps free".to_owned(),
        Some(Reason::Turn) => "others of its sites have their turn".to_owned(),
        _ => format!("it is tried again{class}, attempt {}", file.tries + 1),
    };
    // One without a digest is taken as it is.
    let is_other = file.error == Some(ErrorClass::FileChanged)
        && file.digest.is_some()
        && route.is_some_and(|route| is_submitted(&route.rule));
    if is_other {
        what += "; what is there now goes when it is submitted again";
    }
    // What is held back says so itself.
    let of = |to: &String| links.of.get(to).filter(|link| held_by_link(to, link).is_none());
    let troubles =
        route.iter().flat_map(|route| &route.to).filter_map(|to| of(to)?.trouble.as_ref());
    for (_, text) in troubles.filter(|(class, _)| file.error == Some(*class)) {
        what = format!("{what}; {text}");
    }
    (file.next_try.max(held.and_then(|held| held.eta)), what)
}

/// What holds up a file whose links all are closed by an operator, or left alone for now.
#[derive(Clone, Copy, Debug, PartialEq)]
struct HeldUp {
    reason: Reason,
    class: Option<ErrorClass>,
    eta: Option<Time>,
}

/// What holds up a file, where it has no other link; and, in words, what is wrong with each of its links.
fn held_up(route: &Route, links: &Links) -> (Option<HeldUp>, String) {
    let held = |to: &String| held_by_link(to, links.of.get(to)?);
    let (held, texts): (Vec<HeldUp>, Vec<String>) = route.to.iter().filter_map(held).unzip();
    let is_held = held.len() == route.to.len();
    // It moves on when the first of them is tried again.
    let first = held.into_iter().min_by_key(|held| (held.eta.is_none(), held.eta));
    (first.filter(|_| is_held), texts.join("; "))
}

/// The error class that a file is shown with: its own, or that of the link that holds it up in the queue.
fn class_of(file: &File, route: Option<&Route>, links: &Links) -> Option<ErrorClass> {
    match (file.state, route) {
        (State::Queued, Some(_)) if links.stopped(file.state, route).is_some() => None,
        (State::Queued, Some(route)) => held_up(route, links).0?.class,
        _ => file.error,
    }
}

/// Whether what is queued may be shown with this error class.
fn shows(links: &Links, class: ErrorClass) -> bool {
    let mut held = links.of.iter().filter_map(|(to, link)| held_by_link(to, link));
    links.standstill.is_none() && held.any(|(held, _)| held.class == Some(class))
}

/// What a link that is closed, or left alone, does to what goes by it.
fn held_by_link(to: &str, link: &LinkNow) -> Option<(HeldUp, String)> {
    let paused = |what| {
        let held = HeldUp { reason: Reason::Paused, class: None, eta: None };
        Some((held, format!("an operator {what} the link to {to}")))
    };
    match link.wanted {
        Wanted::Banned => return paused("banned"),
        Wanted::Drained => return paused("drained"),
        Wanted::Open => {}
    }
    let eta = Some(link.probe_at?);
    let (class, text) = link.trouble.clone().unzip();
    let reason = match class {
        Some(ErrorClass::DestinationFull) => Reason::NoSpace,
        _ => Reason::Breaker,
    };
    Some((HeldUp { reason, class, eta }, text.unwrap_or_default()))
}

fn queued(route: Option<&Route>, links: &Links, ahead: i64, now: Time) -> (Option<Time>, String) {
    let Some(route) = route else {
        return (None, "its rule is not configured any more, or sends nothing".to_owned());
    };
    let open = |to: &String| links.of.get(to).filter(|link| held_by_link(to, link).is_none());
    let mut paces = route.to.iter().filter_map(open).map(|link| link.files_per_s);
    let eta = paces.rfind(|pace| *pace > 0.0).map(|pace| {
        let seconds = (ahead as f64 / pace).min(1e9);
        Time(now.0 + (seconds * 1e6) as i64)
    });
    (eta, format!("{ahead} files of its rule are in the queue"))
}

#[cfg(test)]
mod tests;
