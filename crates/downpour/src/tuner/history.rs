//! Our own transfers: what the kernel told of their connections, from a site's catalog.
//!
//! A transfer that was short says nothing of the path, only of its beginning, and is left out.

use super::sample::{Direction, Host, IpVersion, Key, Metric, Origin, Sample, Spread};
use super::source::{Ask, Asking, Found, Source};
use downpour_catalog::{LinkSeen, Reader, SiteId, Time};
use std::time::Duration;

/// Less than this was no transfer to learn from.
const BYTES_MIN: u64 = 4 << 20;
const TIME_MIN: Duration = Duration::from_millis(500);

/// One transfer of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The site that sent.
    pub source: String,
    /// The site that received.
    pub destination: String,
    /// When it ended.
    pub ended: Time,
    /// How long it took.
    pub time: Duration,
    /// Bytes of TCP payload over all its connections.
    pub bytes: u64,
    /// Bytes that the sender's kernel sent.
    pub sent: u64,
    /// Of these, what it sent again; `None` when it did not tell.
    pub sent_again: Option<u64>,
    /// The shortest round trip of any of them.
    pub rtt: Option<Duration>,
    /// How many connections.
    pub connections: u32,
    /// Over which IP.
    pub ip: Option<IpVersion>,
}

/// Records of a link that are looked at.
const SEEN_MAX: usize = 256;

impl Seen {
    /// What a catalog has of the paths between two sites, both ways.
    pub fn read(
        reader: &mut Reader,
        one: &str,
        other: &str,
    ) -> Result<Vec<Self>, downpour_catalog::Error> {
        let ends = reader.site_called(one)?.zip(reader.site_called(other)?);
        let Some((from, to)) = ends else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        let ways: [(SiteId, SiteId, [&str; 2]); 2] =
            [(from, to, [one, other]), (to, from, [other, one])];
        for (from, to, names) in ways {
            let seen = reader.link_seen(from, to, SEEN_MAX)?;
            all.extend(seen.iter().map(|seen| Self::of(names, seen)));
        }
        Ok(all)
    }

    /// As the catalog has it.
    pub fn of([source, destination]: [&str; 2], seen: &LinkSeen) -> Self {
        let micros = |us: i64| Duration::from_micros(u64::try_from(us).unwrap_or(0));
        Self {
            source: source.to_owned(),
            destination: destination.to_owned(),
            ended: seen.at,
            time: micros(seen.took_us),
            bytes: seen.bytes,
            sent_again: (seen.sent > 0).then_some(seen.sent_again),
            sent: seen.sent,
            rtt: (seen.rtt_us > 0).then(|| micros(seen.rtt_us)),
            connections: seen.connections,
            ip: IpVersion::numbered(f64::from(seen.ip)),
        }
    }

    /// Whether it is enough to learn a rate from.
    pub(crate) fn is_enough(bytes: u64, time: Duration) -> bool {
        bytes >= BYTES_MIN && time >= TIME_MIN
    }
}

/// What was learnt of all of them.
pub(super) struct History {
    pub(super) name: String,
    pub(super) seen: Vec<Seen>,
}

impl Source for History {
    fn name(&self) -> &str {
        &self.name
    }

    fn ask<'a>(&'a self, _: &'a Ask) -> Asking<'a> {
        Box::pin(async move {
            let mut found = Found::default();
            for seen in &self.seen {
                read(seen, &self.name, &mut found);
            }
            Ok(found)
        })
    }
}

fn read(seen: &Seen, name: &str, found: &mut Found) {
    // How many connections there were is no mark of its own: they are changed while it runs.
    let tool = "downpour".to_owned();
    let (source, destination) = (Host::new(&seen.source), Host::new(&seen.destination));
    // Whoever receives opens the connections.
    let direction = Some(Direction::Pull);
    let key = Key { source, destination, direction, ip: seen.ip, tool };
    let origin = Origin { source: name.to_owned(), place: "our own transfers".to_owned() };
    let mut take = |metric, figure, unit: &str| {
        let spread = Spread::of(figure);
        found.take(Sample::checked(key.clone(), metric, spread, seen.ended, unit, &origin));
    };
    if let Some(rtt) = seen.rtt {
        take(Metric::Rtt, rtt.as_secs_f64(), "µs");
    }
    if !Seen::is_enough(seen.bytes, seen.time) {
        return;
    }
    take(Metric::Throughput, seen.bytes as f64 * 8.0 / seen.time.as_secs_f64(), "bytes and time");
    if let Some(again) = seen.sent_again {
        take(Metric::Loss, again as f64 / seen.sent.max(1) as f64, "bytes sent again");
    }
}

#[cfg(test)]
mod tests {
    use super::{History, LinkSeen, Seen, Source as _};
    use crate::tuner::{Ask, End, IpVersion, Metric};
    use downpour_catalog::Time;
    use std::time::Duration;

    async fn learnt(seen: &LinkSeen) -> Vec<(Metric, f64)> {
        let seen = vec![Seen::of(["a", "b"], seen)];
        let history = History { name: "history".to_owned(), seen };
        let ask = Ask {
            source: End::new("a"),
            destination: End::new("b"),
            ip: None,
            now: Time(0),
            age_max: Duration::from_secs(1),
        };
        let found = history.ask(&ask).await.unwrap();
        assert!(found.samples.iter().all(|sample| sample.key.ip == Some(IpVersion::V6)));
        found.samples.into_iter().map(|sample| (sample.metric, sample.spread.avg)).collect()
    }

    #[tokio::test]
    async fn figures_are_those_of_the_transfer_and_short_ones_tell_their_round_trip_alone() {
        let seen = LinkSeen {
            took_us: 8_000_000,
            bytes: 99_000_000,
            sent: 100_000_000,
            sent_again: 1_000_000,
            rtt_us: 12_000,
            connections: 4,
            ip: 6,
            ..LinkSeen::default()
        };
        let expected = [(Metric::Rtt, 0.012), (Metric::Throughput, 99e6), (Metric::Loss, 0.01)];
        assert_eq!(learnt(&seen).await, expected);
        let untold = LinkSeen { sent: 0, sent_again: 0, ..seen.clone() };
        assert_eq!(learnt(&untold).await, expected[..2], "who does not tell of loss had not none");
        let short = LinkSeen { bytes: 1000, ..seen };
        assert_eq!(learnt(&short).await, expected[..1]);
        let nothing = LinkSeen { rtt_us: 0, ..short };
        assert_eq!(learnt(&nothing).await, []);
    }
}
