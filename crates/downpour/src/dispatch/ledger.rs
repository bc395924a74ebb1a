//! What the catalog is told of links: what the kernel told of their connections, and what was decided on them.
//!
//! Of each link one [`Meter`] adds up what the sessions beside each other bring. It is written down when the last of them ends,
//! and at its destination every minute of a long one, as soon as it is enough to learn from; less than that waits for
//! more. Nobody waits for the catalog: what it does not take is lost.
//!
//! At its source a session is told of as a whole, when it has ended: where one always goes beside others it is written down
//! after ten minutes, and what still goes then counts for later.

use super::lock;
use super::paths::Paths;
use crate::report::TransferReport;
use crate::site::{Clock, Fault, Site, blocking};
use crate::steering::{Book, Keeper, LinkBook, Steered};
use crate::tuner::Seen as History;
use downpour_catalog::{Catalog, Change, Decision, LinkSeen, SiteId, Time};
use downpour_proto::transfer::Measured;
use downpour_proto::transfer::steer::Seen;
use downpour_transport::control::Uplink;
use downpour_transport::stream::ConnectionReport;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often what comes is written down while it comes.
const EVERY: Duration = Duration::from_secs(60);
/// What is not enough to learn a rate from is written down if nothing was for so long, for its round trip; and so much of what
/// has ended, though more goes beside it.
const RARELY: Duration = Duration::from_secs(600);

/// The links to a site, in its catalog.
pub(super) struct Ledger {
    book: Arc<Book>,
    pub(super) paths: Arc<Paths>,
    /// What batches that go from here share.
    pub(super) uplink: Arc<Uplink>,
    catalog: Arc<Catalog>,
    clock: Clock,
    meters: Mutex<HashMap<(SiteId, SiteId), Meter>>,
}

/// One link of it.
#[derive(Clone, Debug)]
pub(super) struct Link {
    ledger: Arc<Ledger>,
    /// Source and destination.
    names: [String; 2],
    from: SiteId,
    to: SiteId,
}

/// A session on a link.
#[derive(Debug)]
pub(super) struct Session {
    link: Link,
    begun: Instant,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.link.tell(|meter| meter.end(Instant::now()));
    }
}

/// What was seen of a link and is not written down yet.
#[derive(Debug, Default)]
struct Meter {
    sum: LinkSeen,
    took: Duration,
    /// Up to then its time is counted, whoever told of it.
    counted: Option<Instant>,
    /// When the first of the sessions in it began that were told of as a whole.
    begun: Option<Instant>,
    written: Option<Instant>,
    /// Sessions under way.
    sessions: u16,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl Meter {
    /// Something was seen on one session's connections, in a time that ends now.
    fn add(&mut self, now: Instant, ip: u8, seen: &Seen) {
        // Sessions beside each other share the time.
        let new = self.counted.map_or(seen.span, |counted| now.saturating_duration_since(counted));
        self.took += seen.span.min(new);
        self.counted = Some(now);
        self.sum_up(ip, seen);
    }

    /// Something was seen on a whole session, which ends now.
    fn add_whole(&mut self, begun: Instant, now: Instant, ip: u8, seen: &Seen) {
        let begun = self.begun.map_or(begun, |first| first.min(begun));
        self.begun = Some(begun);
        // Those beside each other share the time; it is never less than that of the longest, whichever ended first.
        self.took = (self.took + seen.span).min(now.saturating_duration_since(begun));
        self.sum_up(ip, seen);
    }

    fn sum_up(&mut self, ip: u8, seen: &Seen) {
        let sum = &mut self.sum;
        sum.bytes = sum.bytes.saturating_add(seen.bytes);
        sum.sent = sum.sent.saturating_add(seen.sent);
        sum.sent_again = sum.sent_again.saturating_add(seen.again);
        sum.connections = sum.connections.max(seen.connections.into());
        sum.ip = ip;
        let rtt = i64::try_from(seen.rtt_min.as_micros()).unwrap_or(i64::MAX);
        if rtt > 0 && (sum.rtt_us == 0 || rtt < sum.rtt_us) {
            sum.rtt_us = rtt;
        }
    }

    /// A session has ended. What is to be written down, if anything.
    fn end(&mut self, now: Instant) -> Option<LinkSeen> {
        self.sessions = self.sessions.saturating_sub(1);
        if self.sessions > 0 && self.took < RARELY { None } else { self.take(now, true) }
    }

    /// What is to be written down, if anything; then it begins anew.
    fn take(&mut self, now: Instant, ended: bool) -> Option<LinkSeen> {
        let since = self.written.map(|written| now.saturating_duration_since(written));
        let enough = History::is_enough(self.sum.bytes, self.took);
        let due = match enough {
            true => ended || self.took >= EVERY,
            false => {
                let rarely = since.is_none_or(|since| since >= RARELY);
                ended && rarely && self.sum.rtt_us > 0
            }
        };
        if !due {
            return None;
        }
        let mut seen = std::mem::take(&mut self.sum);
        seen.took_us = i64::try_from(std::mem::take(&mut self.took).as_micros()).ok()?;
        (self.written, self.begun) = (Some(now), None);
        Some(seen)
    }
}

impl Ledger {
    pub(super) fn new(site: &Site, paths: Arc<Paths>) -> Arc<Self> {
        let (catalog, clock) = (site.catalog.clone(), site.clock.clone());
        let book = Book::open(&site.config().state());
        let (uplink, meters) = (Arc::default(), Mutex::default());
        Arc::new(Self { book, paths, uplink, catalog, clock, meters })
    }

    /// The link from one site to another: to this one, or from it.
    pub(super) async fn link(self: &Arc<Self>, from: &str, to: &str) -> Result<Link, Fault> {
        let names = [from.to_owned(), to.to_owned()];
        let (catalog, [from, to]) = (self.catalog.clone(), names.clone());
        let (from, to) = blocking(move || Ok((catalog.site(&from)?, catalog.site(&to)?))).await?;
        Ok(Link { ledger: self.clone(), names, from, to })
    }

    fn write(&self, change: Change) {
        // It is durable or lost by itself; nobody waits for it.
        drop(self.catalog.submit(self.clock.now(), vec![change]));
    }
}

impl Link {
    /// For a session on it.
    pub(super) fn book(&self) -> LinkBook {
        let book = LinkBook::new(self.ledger.book.clone(), Some(self.names[0].clone()));
        book.kept_by(Arc::new(self.clone()))
    }

    /// What is known of it by now, by all sources.
    pub(super) fn measured(&self) -> Measured {
        self.ledger.paths.measured(&self.names[0], &self.names[1])
    }

    /// A session on it begins; how many are there already.
    pub(super) fn begin(&self) -> (Session, u16) {
        let mut meters = lock(&self.ledger.meters);
        let meter = meters.entry((self.from, self.to)).or_default();
        let beside = meter.sessions;
        meter.sessions = beside.saturating_add(1);
        drop(meters);
        (Session { link: self.clone(), begun: Instant::now() }, beside)
    }

    fn tell(&self, change: impl FnOnce(&mut Meter) -> Option<LinkSeen>) {
        let (from, to) = (self.from, self.to);
        let mut meters = lock(&self.ledger.meters);
        let due = change(meters.entry((from, to)).or_default());
        drop(meters);
        if let Some(seen) = due {
            let at = self.ledger.clock.now();
            self.ledger.write(Change::LinkSeen(LinkSeen { from, to, at, ..seen }));
            self.ledger.paths.used(&self.names[0], &self.names[1]);
        }
    }
}

impl Session {
    /// It has ended; what the sender's kernel tells of its connections.
    pub(super) fn sent(self, transfer: &TransferReport) {
        let all = &transfer.connections;
        let sum = |part: fn(&ConnectionReport) -> u64| all.iter().map(part).sum::<u64>();
        let (acked, again) = (sum(|c| c.bytes_acked), sum(|c| c.bytes_sent_again));
        let rtt_ms = all.iter().map(|c| c.min_rtt_ms).filter(|ms| *ms > 0.0);
        let seconds = |s| Duration::try_from_secs_f64(s).unwrap_or_default();
        let seen = Seen {
            span: seconds(transfer.sent_for_s),
            bytes: acked,
            connections: u16::try_from(transfer.at_once).unwrap_or(u16::MAX),
            sent: acked + again,
            again,
            rtt_min: seconds(rtt_ms.fold(f64::MAX, f64::min) / 1e3),
            ..Seen::default()
        };
        let peer = all.first().and_then(|c| c.peer.parse::<SocketAddr>().ok());
        let ip = peer.map_or(0, |peer| crate::steering::ip_of(peer.ip()));
        self.link.tell(|meter| {
            meter.add_whole(self.begun, Instant::now(), ip, &seen);
            None
        });
    }
}

impl Keeper for Link {
    fn decided(&self, decision: &Steered) {
        self.ledger.write(Change::Decision(Decision {
            from: self.from,
            to: self.to,
            at: Time(decision.at_us),
            connections: decision.connections.into(),
            pacing_bps: decision.pacing_bps.unwrap_or(0),
            rate_bps: decision.rate_bps,
            lost_ppb: (decision.sent_again * 1e9) as u32,
            binding: decision.binding.clone(),
            why: decision.why.clone(),
        }));
    }

    fn seen(&self, ip: u8, seen: &Seen) {
        self.tell(|meter| {
            let now = Instant::now();
            meter.add(now, ip, seen);
            meter.take(now, false)
        });
    }
}

/// Decisions on the links of a site, the oldest first; on the link from one site, or on all.
pub(super) async fn history(
    site: &Arc<Site>,
    link: Option<String>,
    most: usize,
) -> Result<Vec<Steered>, Fault> {
    let own = site.name.clone();
    let read = site.read(move |reader| {
        let sites: BTreeMap<SiteId, String> = reader.sites()?.into_iter().collect();
        let id = |name: &str| sites.iter().find(|(_, known)| *known == name).map(|(id, _)| *id);
        let ends = link.as_ref().map(|from| id(from).zip(id(&own)));
        let found = match ends {
            Some(None) => Vec::new(),
            ends => reader.decisions(ends.flatten(), most)?,
        };
        let named = |decision: Decision| Steered {
            at_us: decision.at.0,
            link: sites.get(&decision.from).cloned().unwrap_or_default(),
            connections: u16::try_from(decision.connections).unwrap_or(u16::MAX),
            pacing_bps: Some(decision.pacing_bps).filter(|bps| *bps > 0),
            binding: decision.binding,
            rate_bps: decision.rate_bps,
            sent_again: f64::from(decision.lost_ppb) / 1e9,
            why: decision.why,
        };
        Ok(found.into_iter().rev().map(named).collect())
    });
    read.await
}

#[cfg(test)]
impl Ledger {
    /// For tests, with a catalog of its own in this folder.
    pub(super) fn example(folder: &std::path::Path) -> Arc<Self> {
        use downpour_catalog::{BeforeMigration, CatalogUrl};
        let url = CatalogUrl::Sqlite(folder.join("catalog.db"));
        let catalog = Catalog::open(&url, "test", Time(1), &BeforeMigration::Refuse);
        Arc::new(Self {
            book: Book::open(folder),
            paths: Arc::default(),
            uplink: Arc::default(),
            catalog: Arc::new(catalog.unwrap()),
            clock: Clock::of(|| Time(1)),
            meters: Mutex::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{EVERY, Meter, RARELY};
    use downpour_proto::transfer::steer::Seen;
    use std::time::{Duration, Instant};

    fn seen(bytes: u64, ms: u64) -> Seen {
        Seen {
            span: Duration::from_millis(ms),
            bytes,
            sent: bytes + bytes / 100,
            again: bytes / 100,
            connections: 4,
            rtt_min: Duration::from_millis(12),
            ..Seen::default()
        }
    }

    #[test]
    fn sessions_beside_each_other_share_the_time() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        for tick in 1..=10 {
            // Two of them, a quarter of a second apart.
            for late in [0, 250] {
                let now = start + Duration::from_millis(tick * 500 + late);
                meter.add(now, 4, &seen(5_000_000, 500));
            }
        }
        let all = meter.take(start + Duration::from_secs(6), true).unwrap();
        assert_eq!((all.bytes, all.took_us, all.rtt_us), (100_000_000, 5_250_000, 12_000));
        assert_eq!(
            (all.sent, all.sent_again, all.connections, all.ip),
            (101_000_000, 1_000_000, 4, 4)
        );
    }

    #[test]
    fn whole_sessions_beside_each_other_share_the_time_of_the_longest() {
        let (mut meter, start) = (Meter { sessions: 2, ..Meter::default() }, Instant::now());
        let at = |s| start + Duration::from_secs(s);
        // One beside a long one ends shortly before it.
        meter.add_whole(at(590), at(592), 4, &seen(1000, 2000));
        assert!(meter.end(at(592)).is_none(), "the other still goes");
        meter.add_whole(start, at(600), 4, &seen(6_000_000_000, 590_000));
        let both = meter.end(at(600)).unwrap();
        assert_eq!((both.bytes, both.took_us), (6_000_001_000, 592_000_000));
        // Two at once, and one after the first of them.
        meter.sessions = 3;
        let written = [(600, 700), (600, 705), (700, 805)].map(|(begun, ended)| {
            meter.add_whole(at(begun), at(ended), 4, &seen(5_000_000, 100_000));
            meter.end(at(ended)).map(|all| (all.bytes, all.took_us))
        });
        assert_eq!(written, [None, None, Some((15_000_000, 205_000_000))]);
        // There is always one beside them.
        let written = (0..20).filter_map(|round| {
            meter.sessions = 2;
            let begun = at(1000 + 60 * round);
            meter.add_whole(begun, begun + EVERY, 4, &seen(5_000_000, 60_000));
            meter.end(begun + EVERY)
        });
        let written: Vec<_> = written.map(|seen| (seen.bytes, seen.took_us)).collect();
        assert_eq!(written, [(50_000_000, 600_000_000); 2]);
    }

    #[test]
    fn little_waits_for_more() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        meter.add(start, 6, &seen(1000, 500));
        assert!(meter.take(start, false).is_none());
        let first = meter.take(start, true).expect("the first of a link, for its round trip");
        assert_eq!((first.bytes, first.rtt_us), (1000, 12_000));
        meter.add(start + Duration::from_secs(1), 6, &seen(1_000_000, 500));
        assert!(meter.take(start + Duration::from_secs(1), true).is_none());
        meter.add(start + Duration::from_secs(2), 6, &seen(9_000_000, 500));
        let both = meter.take(start + Duration::from_secs(2), true).unwrap();
        assert_eq!((both.bytes, both.took_us), (10_000_000, 1_000_000));
        meter.add(start + RARELY, 6, &seen(1000, 500));
        assert!(meter.take(start + RARELY, true).is_none(), "not so long ago");
        assert!(meter.take(start + RARELY + EVERY, true).is_some());
    }

    #[test]
    fn a_long_session_is_written_down_every_minute() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        let written = (1..=300).filter_map(|tick| {
            let now = start + Duration::from_millis(tick * 500);
            meter.add(now, 4, &seen(5_000_000, 500));
            meter.take(now, false)
        });
        let written: Vec<_> = written.collect();
        assert_eq!((written.len(), written[0].took_us), (2, 60_000_000));
    }
}
