//! Our own transfers: what the kernel told of their connections.
//!
//! A transfer that was short says nothing of the path, only of its beginning, and is left out.

use super::sample::{Direction, Host, Key, Metric, Origin, Sample, Spread};
use super::source::{Ask, Asking, Found, Source};
use downpour_catalog::Time;
use downpour_transport::stream::ConnectionReport;
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
    /// Bytes that were sent again; `None` when only the sender knows and was not asked.
    pub sent_again: Option<u64>,
    /// The shortest round trip of any of them.
    pub rtt: Option<Duration>,
    /// How many connections.
    pub connections: usize,
}

impl Seen {
    /// From what the kernel of one side told of each connection.
    pub fn of(
        [source, destination]: [&str; 2],
        ended: Time,
        time: Duration,
        connections: &[ConnectionReport],
    ) -> Self {
        let acked: u64 = connections.iter().map(|one| one.bytes_acked).sum();
        let received: u64 = connections.iter().map(|one| one.bytes_received).sum();
        let again: u64 = connections.iter().map(|one| one.bytes_sent_again).sum();
        let rtts = connections.iter().map(|one| one.min_rtt_ms).filter(|ms| *ms > 0.0);
        Self {
            source: source.to_owned(),
            destination: destination.to_owned(),
            ended,
            time,
            bytes: acked.max(received),
            // The receiver's own requests are not what the path was loaded with.
            sent_again: (acked >= received).then_some(again),
            rtt: rtts.reduce(f64::min).map(|ms| Duration::from_secs_f64(ms / 1e3)),
            connections: connections.len(),
        }
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
    let tool = match seen.connections {
        0 | 1 => "downpour".to_owned(),
        many => format!("downpour, {many} streams"),
    };
    let (source, destination) = (Host::new(&seen.source), Host::new(&seen.destination));
    // Whoever receives opens the connections.
    let direction = Some(Direction::Pull);
    let key = Key { source, destination, direction, ip: None, tool };
    let origin = Origin { source: name.to_owned(), place: "our own transfers".to_owned() };
    let mut take = |metric, figure, unit: &str| {
        let spread = Spread::of(figure);
        found.take(Sample::checked(key.clone(), metric, spread, seen.ended, unit, &origin));
    };
    if let Some(rtt) = seen.rtt {
        take(Metric::Rtt, rtt.as_secs_f64(), "µs");
    }
    if seen.bytes < BYTES_MIN || seen.time < TIME_MIN {
        return;
    }
    take(Metric::Throughput, seen.bytes as f64 * 8.0 / seen.time.as_secs_f64(), "bytes and time");
    if let Some(again) = seen.sent_again {
        let sent = seen.bytes.saturating_add(again) as f64;
        take(Metric::Loss, again as f64 / sent, "bytes sent again");
    }
}

#[cfg(test)]
mod tests {
    use super::{History, Seen, Source as _};
    use crate::tuner::{Ask, End, Metric};
    use downpour_catalog::Time;
    use downpour_transport::stream::ConnectionReport;
    use std::time::Duration;

    fn report(acked: u64, again: u64, min_rtt_ms: f64) -> ConnectionReport {
        ConnectionReport {
            bytes_acked: acked,
            bytes_sent_again: again,
            min_rtt_ms,
            ..ConnectionReport::default()
        }
    }

    async fn learnt(seen: Seen) -> Vec<(Metric, f64)> {
        let history = History { name: "history".to_owned(), seen: vec![seen] };
        let ask = Ask {
            source: End::new("a"),
            destination: End::new("b"),
            ip: None,
            now: Time(0),
            age_max: Duration::from_secs(1),
        };
        let found = history.ask(&ask).await.unwrap();
        found.samples.into_iter().map(|sample| (sample.metric, sample.spread.avg)).collect()
    }

    #[tokio::test]
    async fn connections_add_up_and_the_shortest_round_trip_counts() {
        let connections = [report(50_000_000, 0, 14.0), report(49_000_000, 1_000_000, 12.0)];
        let seen = Seen::of(["a", "b"], Time(0), Duration::from_secs(8), &connections);
        let expected = [(Metric::Rtt, 0.012), (Metric::Throughput, 99e6), (Metric::Loss, 0.01)];
        assert_eq!(learnt(seen).await, expected);
    }

    #[tokio::test]
    async fn a_short_one_tells_its_round_trip_alone() {
        let seen = Seen::of(["a", "b"], Time(0), Duration::from_secs(8), &[report(1000, 0, 12.0)]);
        assert_eq!(learnt(seen).await, [(Metric::Rtt, 0.012)]);
        let none = Seen::of(["a", "b"], Time(0), Duration::from_secs(8), &[]);
        assert_eq!(learnt(none).await, []);
    }
}
