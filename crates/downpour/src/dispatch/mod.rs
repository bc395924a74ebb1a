//! Moving files between sites: what goes when, in which batch, and what is written down of it.
//!
//! A batch is one session with one receiver, of up to a thousand files that share destination and rule. The dispatcher claims
//! files from the catalog under leases, so that several daemons may share one, and keeps them alive while it works.
//!
//! | file | does |
//! | --- | --- |
//! | `section` | `[transfer]` of the configuration |
//! | `offer` | what two sites say to each other |
//! | `route`, `policy`, `link` | where files go; what follows from a failure; whether a link may be used |
//! | `work` | the loop: wakes, claims, begins batches |
//! | `claims` | what is claimed and goes back when the service ends |
//! | `load` | claimed files, looked up |
//! | `outgoing`, `book`, `stand` | a batch at its source, its steps in the catalog, and whether anything arrives of it |
//! | `arriving`, `room`, `incoming` | an offer at its destination, whether it has room, and a batch there |
//! | `arrivals` | what a service waits for that drains |
//! | `here`, `contents` | what of an offer is in its place already, or lies there instead |
//! | `ledger`, `paths` | what the catalog is told of links; what is known of them, for plans |
//! | `multicast`, `standing` | the standing session for rules with receivers, the files in it |
//! | `standing_session`, `standing_ticket` | how it is opened, its ticket |
//! | `listen` | other sites' standing sessions, with this site as a receiver |
//! | `fetch`, `pieces` | a file that several sites have, from where it comes soonest; its bytes at a source |
//! | `submit`, `wants` | files that an operator, or another site, asks for |
//! | `hasher` | digests of what was submitted |
//! | `ways` | what is expected of a way |
//! | `why` | one reason and a time for each file that does not move |
//! | `sites`, `people`, `links`, `bytes` | the routes |
//! | `folders`, `turns` | the folders that are open; turns for what may hang in their disks |
//! | `hooks` | for tests |
//!
//! Deliberately absent: how bytes move (`session`), what a file's life may be (the catalog), rules for what is found
//! (`spool`).

mod arrivals;
mod arriving;
mod book;
mod bytes;
mod claims;
mod contents;
mod fetch;
#[cfg(test)]
mod fixture;
mod folders;
mod hasher;
mod here;
mod hooks;
mod incoming;
mod ledger;
mod link;
mod links;
mod listen;
mod load;
mod multicast;
mod offer;
mod outgoing;
mod paths;
mod people;
mod pieces;
mod policy;
mod record;
mod room;
mod route;
mod section;
mod sites;
mod stand;
mod standing;
mod standing_session;
mod standing_ticket;
mod submit;
mod turns;
mod wants;
mod ways;
mod why;
mod work;

pub(crate) use arriving::set_aside;
pub(crate) use fetch::FOLDER as FETCHES;
pub use fetch::{FetchReport, FetchSource, FetchWish};
pub use hooks::KILL_POINTS;
pub use link::{LinkReport, Wanted as LinkWanted};
pub(crate) use links::check_links;
pub use links::{Links, Steering};
pub use listen::check_tickets;
pub use offer::{Arrived, BatchState, Begin, Offer, OfferAnswer, OfferItem, Said, Trouble};
pub use people::{BatchReport, Done, Files, Submitted, TransferReport, Transfers};
pub(crate) use policy::source_class;
pub(crate) use route::{is_sent_to, is_submitted};
pub use section::{
    MulticastSection, ReceiverSection, TransferSection, check_interface, check_receivers,
};
pub use submit::{Accepted, Refusal, Submission};
pub use ways::Way;
pub use why::{Why, WhyList};

use crate::site::{Fault, Inboxes, Part, Running, Service, Site, Status, Stop};
use arrivals::Arrivals;
use downpour_transport::control::PullBudget;
use incoming::Incoming;
use ledger::Ledger;
use link::Link;
use outgoing::Progress;
use room::Room;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use turns::Turns;

/// How often the folders are looked at that files are received into.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// What the service is called.
const SERVICE: &str = "dispatch";

/// What all of this part shares.
pub struct Dispatch {
    /// Links by the other site's name.
    links: Mutex<BTreeMap<String, Link>>,
    /// Who writes down what operators want of them.
    keeps_links: Mutex<()>,
    /// Batches under way from here.
    outgoing: Mutex<HashMap<String, Arc<Progress>>>,
    /// Batches offered to here.
    incoming: Mutex<HashMap<String, Arc<Incoming>>>,
    /// Those of them, and the fetches, that are under way.
    arrivals: Arc<Arrivals>,
    room: Arc<Room>,
    /// What batches from here have claimed.
    claims: claims::Claims,
    /// What the standing session has.
    in_session: claims::Claims,
    /// There may be something to do.
    wake: Notify,
    /// Leases are to be looked at.
    look: Arc<Notify>,
    /// Files that are fetched from who has them.
    fetches: Mutex<BTreeMap<i64, Arc<fetch::Fetch>>>,
    /// What fetches brought lately, by site.
    paces: Mutex<HashMap<String, (downpour_proto::Rate, Instant)>>,
    /// What the kernels of sites allow that files were fetched from, as they said lately.
    limits: Mutex<HashMap<String, (downpour_proto::transfer::Host, Instant)>>,
    /// What fetches from here may take of their links, by site.
    budgets: Mutex<HashMap<String, Arc<PullBudget>>>,
    /// For what may hang in a disk.
    turns: Turns,
    /// Folders of which files are read for their digests.
    hashing: Arc<hasher::Hashing>,
    /// The place of the site that is the first to take files.
    turn: AtomicUsize,
    totals: Totals,
    /// Of the service `multicast`.
    multicast: Mutex<multicast::Seen>,
    /// What is changed on links while something arrives by them.
    book: Arc<Ledger>,
    /// What lies where damaged copies were.
    contents: Arc<contents::Contents>,
    /// What is known of the folders that files are received into.
    inboxes: Arc<Inboxes>,
}

/// Since the daemon's start.
#[derive(Debug, Default)]
struct Totals {
    sent_files: AtomicU64,
    sent_bytes: AtomicU64,
    received_files: AtomicU64,
    received_bytes: AtomicU64,
    failed: AtomicU64,
}

/// A test may set its clock.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The state behind a mutex: each change is whole, so one that a panic left behind is good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no_random() -> Fault {
    let class = downpour_catalog::ErrorClass::OutOfResources;
    Fault::new(class, "the system gives no random numbers")
}

/// This part of the site.
pub fn part(site: &Arc<Site>) -> Part {
    let config = site.config();
    // A receiving folder may be on a file system that does not answer, which a daemon does not wait for.
    std::thread::spawn(move || fetch::sweep(&config));
    let paths = Arc::new(paths::Paths::default());
    let dispatch = Arc::new(Dispatch::new(site, &paths));
    let routes = sites::routes()
        .merge(people::routes())
        .merge(links::routes())
        .merge(bytes::routes())
        .merge(fetch::routes())
        .merge(pieces::routes())
        .share(dispatch.clone());
    let multicast = Arc::new(multicast::Multicast(dispatch.clone()));
    let listen = Arc::new(listen::Listen::new(&dispatch));
    Part { services: vec![dispatch, multicast, listen, paths], routes }
}

impl Dispatch {
    /// That nothing arrives of such a batch from here.
    fn standing(&self, is_it: impl Fn(&Progress) -> bool) -> Option<String> {
        lock(&self.outgoing).values().filter(|of| is_it(of)).find_map(|of| of.standing())
    }

    fn new(site: &Arc<Site>, paths: &Arc<paths::Paths>) -> Self {
        Self {
            // The start has seen that they can be read.
            links: Mutex::new(links::links_as_left(&site.config()).unwrap_or_default()),
            keeps_links: Mutex::default(),
            outgoing: Mutex::default(),
            incoming: Mutex::default(),
            arrivals: Arrivals::new(),
            room: Arc::default(),
            claims: claims::Claims::default(),
            in_session: claims::Claims::default(),
            wake: Notify::new(),
            look: Arc::default(),
            fetches: Mutex::default(),
            paces: Mutex::default(),
            limits: Mutex::default(),
            budgets: Mutex::default(),
            turns: Turns::default(),
            hashing: Arc::default(),
            turn: AtomicUsize::new(0),
            totals: Totals::default(),
            multicast: Mutex::default(),
            book: Ledger::new(site, paths.clone()),
            contents: Arc::default(),
            inboxes: site.inboxes.clone(),
        }
    }
}

/// Looks now and then whether what files are received into is what it was.
async fn watch_inboxes(site: &Arc<Site>) -> Result<(), Fault> {
    loop {
        site.inboxes.watch(&site.config(), now());
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Service for Dispatch {
    fn name(&self) -> &'static str {
        SERVICE
    }

    fn run(self: Arc<Self>, site: Arc<Site>, stop: Stop) -> Running {
        Box::pin(async move {
            tokio::select! {
                done = work::work(self, site.clone(), stop) => done,
                done = watch_inboxes(&site) => done,
            }
        })
    }

    fn status(&self) -> Status {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let out = lock(&self.outgoing).len();
        let into = lock(&self.incoming).values().filter(|batch| batch.is_under_way()).count();
        let open = lock(&self.links).values().filter(|link| link.is_broken()).count();
        let mut line = format!("{out} batches out, {into} in");
        let fetches = self.fetches_that_run();
        if fetches > 0 {
            line.push_str(&format!(", {fetches} fetches"));
        }
        if open > 0 {
            line.push_str(&format!(", {open} links broken"));
        }
        let strange = self.inboxes.strange().into_iter().map(|strange| strange.to_string());
        for trouble in strange.chain(self.hashing.standing()) {
            line.push_str(&format!("; {trouble}"));
        }
        Status::line(line)
            .with("batches_out", out as f64)
            .with("batches_in", into as f64)
            .with("links_broken", open as f64)
            .with("files_sent_total", get(&self.totals.sent_files))
            .with("bytes_sent_total", get(&self.totals.sent_bytes))
            .with("files_received_total", get(&self.totals.received_files))
            .with("bytes_received_total", get(&self.totals.received_bytes))
            .with("failures_total", get(&self.totals.failed))
    }
}
