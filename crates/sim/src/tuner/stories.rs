//! What is weak in FTS3's tuner, a story each; ours in the same place.
//!
//! Their side: files, minutes, one decision a minute. Ours: spans of half a second of the same fluid flows. The links:
//! *long*, 200 Mbit/s, 100 ms, 0.1 % random loss, which takes about fifty connections; *clean*, the same without loss.

use super::fts3::{Config, Fts3, Now, Row};
use super::movers::{Kind, Pair, run};
use super::{GroupConfig, Path, Steered, steered};
use downpour_proto::transfer::CONNECTIONS_MAX;
use downpour_proto::transfer::steer::{Limits, Memory, Setting};
use downpour_proto::{Duration, Rate};

const LINK: Rate = Rate::from_mbps(200);
const RTT: Duration = Duration::from_millis(100);
const QUEUE_BYTES: u64 = 625_000;
const LONG: GroupConfig = GroupConfig::of(RTT, 0.001);
const CLEAN: GroupConfig = GroupConfig::of(RTT, 0.0);
const LIMITS: Limits = Limits { first: 8, least: 1, most: CONNECTIONS_MAX, ceiling: None };
const GB: f64 = 1e9;
const FILES: Kind = Kind { bytes: GB / 10.0, fails_each: 0 };
const SEED: u64 = 1;

/// One weakness.
#[derive(Clone, Debug)]
pub struct Story {
    /// As listed.
    pub number: u32,
    /// What is weak.
    pub weakness: &'static str,
    /// What is measured; less of it is better.
    pub measure: &'static str,
    /// Theirs.
    pub theirs: f64,
    /// Ours.
    pub ours: f64,
}

impl Story {
    /// Ours has less of it.
    pub fn holds(&self) -> bool {
        self.ours < self.theirs
    }
}

/// All fourteen.
pub fn all() -> Vec<Story> {
    vec![
        small_steps(),
        equal_is_success(),
        decades(),
        slow_mean(),
        failures_of_storage(),
        pairs_apart(),
        files_not_bytes(),
        what_binds(),
        fixed_windows(),
        cap(),
        restart(),
        table(),
        activities(),
        replica(),
    ]
}

fn path(rate: Rate) -> Path {
    Path::new(rate, QUEUE_BYTES, SEED)
}

fn ours(link: GroupConfig, limits: Limits) -> (Path, Steered) {
    let mut path = path(LINK);
    let group = path.add(link);
    let loops = steered(&mut path, &[(group, limits)]);
    (path, loops)
}

fn theirs(link: GroupConfig, files: usize, value: u32) -> (Path, Pair) {
    let mut path = path(LINK);
    let pair = Pair::new(&mut path, link, Config::DEFAULT, &[FILES]).queue(files).at(value);
    (path, pair)
}

/// Bytes a second of so many connections that stay.
fn stays(link: GroupConfig, connections: u16) -> f64 {
    let mut path = path(LINK);
    let group = path.add(link);
    path.set(group, Setting { connections, pacing: None });
    path.run(Duration::from_secs(60));
    path.take_seen(group);
    path.run(Duration::from_secs(60));
    path.take_seen(group).rate()
}

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// Seconds until ninety percent of `rate` come; at most two hours.
fn time_of_theirs(path: &mut Path, pair: &mut Pair, rate: f64) -> f64 {
    for minute in 1..=120u32 {
        pair.seen = Default::default();
        run(path, &mut [pair], 1);
        if pair.seen.rate() >= 0.9 * rate {
            return f64::from(minute) * 60.0;
        }
    }
    7_200.0
}

fn time_of_ours(path: &mut Path, loops: &mut Steered, rate: f64) -> f64 {
    for second in (2..7_200u32).step_by(2) {
        let before = loops.bytes(0);
        loops.run(path, Duration::from_secs(2));
        if (loops.bytes(0) - before) as f64 / 2.0 >= 0.9 * rate {
            return f64::from(second);
        }
    }
    7_200.0
}

fn small_steps() -> Story {
    let rate = stays(LONG, CONNECTIONS_MAX);
    let (mut path, mut pair) = theirs(LONG, 2_000, 10);
    let theirs = time_of_theirs(&mut path, &mut pair, rate);
    let (mut path, mut loops) = ours(LONG, LIMITS);
    Story {
        number: 1,
        weakness: "steps of one or two a minute",
        measure: "seconds until a link that takes fifty connections brings 90 %",
        theirs,
        ours: time_of_ours(&mut path, &mut loops, rate),
    }
}

fn equal_is_success() -> Story {
    let (mut path, mut pair) = theirs(CLEAN, 20_000, 10);
    run(&mut path, &mut [&mut pair], 120);
    let (mut path, mut loops) = ours(CLEAN, LIMITS);
    loops.run(&mut path, minutes(120));
    Story {
        number: 2,
        weakness: "equal counts as better",
        measure: "connections on a full link after two hours",
        theirs: f64::from(pair.connections()),
        ours: f64::from(loops.setting(0).connections),
    }
}

fn decades() -> Story {
    let (mut path, mut pair) = theirs(CLEAN, 20_000, 60);
    run(&mut path, &mut [&mut pair], 30);
    path.set_rate(LINK.scale(0.1));
    run(&mut path, &mut [&mut pair], 20);
    pair.seen = Default::default();
    run(&mut path, &mut [&mut pair], 5);
    let theirs = pair.seen.loss();
    let (mut path, mut loops) = ours(CLEAN, LIMITS);
    loops.run(&mut path, minutes(30));
    path.set_rate(LINK.scale(0.1));
    loops.run(&mut path, minutes(20));
    let before = loops.sent(0);
    loops.run(&mut path, minutes(5));
    let (sent, again) = loops.sent(0);
    Story {
        number: 3,
        weakness: "falls are judged by rounded decades",
        measure: "% sent again, 20 minutes after the link has lost 90 % of its rate",
        theirs: theirs * 100.0,
        ours: (again - before.1) as f64 / (sent - before.0).max(1) as f64 * 100.0,
    }
}

fn slow_mean() -> Story {
    let half = LINK.scale(0.5);
    let believes = |belief: f64| {
        let rate = half.bps() as f64 / 8.0 * 1448.0 / 1514.0;
        (belief - rate).abs() < 0.1 * rate
    };
    let (mut path, mut pair) = theirs(CLEAN, 20_000, 10);
    run(&mut path, &mut [&mut pair], 60);
    path.set_rate(half);
    let until = |mut step: Box<dyn FnMut() -> f64>, seconds: u32| {
        let times = (1..=7_200 / seconds).find(|_| believes(step()));
        f64::from(times.unwrap_or(7_200) * seconds)
    };
    let step = move || {
        run(&mut path, &mut [&mut pair], 1);
        pair.fts3.ema()
    };
    let theirs = until(Box::new(step), 60);
    let (mut path, mut loops) = ours(CLEAN, LIMITS);
    loops.run(&mut path, minutes(10));
    path.set_rate(half);
    let step = move || {
        loops.run(&mut path, Duration::from_secs(1));
        loops.memory(0).map_or(0.0, |memory| memory.rate.bps() as f64 / 8.0)
    };
    Story {
        number: 4,
        weakness: "a mean with a tenth of the newest minute",
        measure: "seconds until half the rate is believed, within 10 %",
        theirs,
        ours: until(Box::new(step), 1),
    }
}

fn failures_of_storage() -> Story {
    let (mut path, mut pair) = theirs(LONG, 2_000, 50);
    pair.fails(0, 5);
    run(&mut path, &mut [&mut pair], 120);
    // What fails is tried again: the bytes come all the same, and nobody tells the loop.
    let (mut path, mut loops) = ours(LONG, LIMITS);
    loops.run(&mut path, minutes(5));
    let before = f64::from(loops.setting(0).connections);
    loops.run(&mut path, minutes(115));
    Story {
        number: 5,
        weakness: "success comes first, whatever failed",
        measure: "% of connections taken away in two hours in which storage fails every fifth file",
        theirs: 100.0 - f64::from(pair.fts3.value) * 2.0,
        ours: (100.0 - 100.0 * f64::from(loops.setting(0).connections) / before).max(0.0),
    }
}

fn pairs_apart() -> Story {
    let mut shared = path(LINK);
    let new =
        |path: &mut Path| Pair::new(path, CLEAN, Config::DEFAULT, &[FILES]).queue(20_000).at(10);
    let (mut one, mut two) = (new(&mut shared), new(&mut shared));
    run(&mut shared, &mut [&mut one, &mut two], 90);
    let mut path = path(LINK);
    let groups = [path.add(CLEAN), path.add(CLEAN)];
    let mut loops = steered(&mut path, &groups.map(|group| (group, LIMITS)));
    loops.run(&mut path, minutes(90));
    Story {
        number: 6,
        weakness: "pairs know nothing of each other",
        measure: "connections of two pairs on one link after 90 minutes",
        theirs: f64::from(one.connections() + two.connections()),
        ours: f64::from(loops.setting(0).connections + loops.setting(1).connections),
    }
}

fn files_not_bytes() -> Story {
    let rate = stays(LONG, CONNECTIONS_MAX);
    let (mut path, mut pair) = theirs(LONG, 15, 10);
    // Each as long as a thousand.
    pair.grow(0, 1_000.0);
    run(&mut path, &mut [&mut pair], 55);
    pair.seen = Default::default();
    run(&mut path, &mut [&mut pair], 5);
    let (mut path, mut loops) = ours(LONG, LIMITS);
    loops.run(&mut path, minutes(55));
    let before = loops.bytes(0);
    loops.run(&mut path, minutes(5));
    let own = (loops.bytes(0) - before) as f64 / 300.0;
    Story {
        number: 7,
        weakness: "files are counted, not bytes",
        measure: "% of the link not used after an hour, fifteen files of 100 GB to go",
        theirs: 100.0 - 100.0 * pair.seen.rate() / rate,
        ours: (100.0 - 100.0 * own / rate).max(0.0),
    }
}

fn what_binds() -> Story {
    let disk = GroupConfig { source_disk: Some(Rate::from_mbps(40)), ..CLEAN };
    let (mut path, mut pair) = theirs(disk, 20_000, 10);
    run(&mut path, &mut [&mut pair], 60);
    let (mut path, mut loops) = ours(disk, LIMITS);
    loops.run(&mut path, minutes(60));
    Story {
        number: 8,
        weakness: "it does not know what binds",
        measure: "connections after an hour where the source's disk gives a fifth of the link",
        theirs: f64::from(pair.connections()),
        ours: f64::from(loops.setting(0).connections),
    }
}

fn fixed_windows() -> Story {
    let link = GroupConfig { window: Some(64 << 10), ..CLEAN };
    let rate = stays(link, CONNECTIONS_MAX);
    let (mut path, mut pair) = theirs(link, 2_000, 10);
    let theirs = time_of_theirs(&mut path, &mut pair, rate);
    let (mut path, mut loops) = ours(link, LIMITS);
    Story {
        number: 9,
        weakness: "buffers are set by hand",
        measure: "seconds until windows that stay at 64 KB bring 90 %",
        theirs,
        ours: time_of_ours(&mut path, &mut loops, rate),
    }
}

fn cap() -> Story {
    let cap = Rate::from_mbps(80);
    let config = Config { source_cap: Some(cap.bps() as f64 / 8.0), ..Config::DEFAULT };
    let mut shared = path(LINK);
    let mut pair = Pair::new(&mut shared, CLEAN, config, &[FILES]).queue(50_000);
    let (mut over, mut all) = (0.0, 0.0);
    for _ in 0..240 {
        pair.seen = Default::default();
        run(&mut shared, &mut [&mut pair], 1);
        all += 1.0;
        over += f64::from(pair.seen.rate() * 8.0 > 1.05 * cap.bps() as f64);
    }
    let (mut path, mut loops) = ours(CLEAN, Limits { ceiling: Some(cap), ..LIMITS });
    let mut own = 0.0;
    for _ in 0..240 {
        let before = loops.bytes(0);
        loops.run(&mut path, minutes(1));
        own += f64::from((loops.bytes(0) - before) as f64 / 7.5 > 1.05 * cap.bps() as f64);
    }
    Story {
        number: 10,
        weakness: "a cap goes to zero, and zero begins in the middle",
        measure: "% of the minutes of four hours above the cap",
        theirs: 100.0 * over / all,
        ours: 100.0 * own / all,
    }
}

fn restart() -> Story {
    let (mut path, mut pair) = theirs(LONG, 5_000, 50);
    run(&mut path, &mut [&mut pair], 10);
    let before = f64::from(pair.fts3.value);
    pair.restart(Config::DEFAULT);
    run(&mut path, &mut [&mut pair], 1);
    let theirs = (f64::from(pair.fts3.value) - before).abs();
    let (mut path, mut loops) = ours(LONG, LIMITS);
    loops.run(&mut path, minutes(10));
    let line = loops.memory(0).map(|memory| memory.to_string()).unwrap_or_default();
    let settled = loops.setting(0).connections;
    let mut path = self::path(LINK);
    let group = path.add(LONG);
    let mut loops = steered(&mut path, &[]);
    loops.begin(&mut path, group, LIMITS, Memory::parse(&line).as_ref());
    loops.run(&mut path, minutes(1));
    Story {
        number: 11,
        weakness: "nothing is remembered over a restart",
        measure: "connections added or taken by a restart",
        theirs,
        ours: f64::from(loops.setting(0).connections.abs_diff(settled)),
    }
}

fn table() -> Story {
    let row = Row { begun: 0.0, ended: 50.0, bytes: GB, failed: false };
    let mut fts3 = Fts3::new(Config::DEFAULT);
    fts3.decide(&vec![row; 100_000], &Now { at: 60.0, queued: 100, active: 10, active_bytes: 0.0 });
    Story {
        number: 12,
        weakness: "every decision reads the table of files",
        measure: "rows read for a decision, of 100,000 files",
        theirs: fts3.rows_read as f64,
        // It has sums since the last decision, and reads nothing.
        ours: 0.0,
    }
}

fn activities() -> Story {
    let brings = |each: u64| {
        let kinds = [Kind { fails_each: each, ..FILES }, FILES];
        let mut path = path(LINK);
        let mut pair = Pair::new(&mut path, LONG, Config::DEFAULT, &kinds).queue(4_000).at(50);
        run(&mut path, &mut [&mut pair], 120);
        pair.came[1]
    };
    // Every fifth of a kind that is half of all.
    let theirs = 100.0 - 100.0 * brings(5) / brings(0);
    let healthy = || {
        let mut path = path(LINK);
        let groups = [path.add(LONG), path.add(LONG)];
        let mut loops = steered(&mut path, &groups.map(|group| (group, LIMITS)));
        loops.run(&mut path, minutes(30));
        loops.bytes(1) as f64
    };
    Story {
        number: 13,
        weakness: "activities of a pair share one number",
        measure: "% that a healthy activity loses when another one's files fail",
        theirs,
        ours: 100.0 - 100.0 * healthy() / healthy(),
    }
}

fn replica() -> Story {
    // Files of 1 GB that wait at each, and the link from it.
    let places = [(6, CLEAN, LINK), (2, LONG, Rate::from_mbps(20))];
    let known = places.map(|(queued, link, rate)| {
        let mut path = path(rate);
        let group = path.add(link);
        let mut loops = steered(&mut path, &[(group, LIMITS)]);
        loops.run(&mut path, minutes(2));
        let rate = loops.memory(0).map_or(1.0, |memory| memory.rate.bps() as f64 / 8.0);
        (queued, f64::from(queued + 1) * GB / rate)
    });
    let least_queued = known.iter().min_by_key(|(queued, _)| *queued).map_or(0.0, |known| known.1);
    let soonest = known.iter().map(|(_, time)| *time).fold(f64::MAX, f64::min);
    Story {
        number: 14,
        weakness: "the replica with the shortest queue is taken",
        measure: "seconds for a file of 1 GB: two wait at a slow source, six at a fast one",
        theirs: least_queued,
        ours: soonest,
    }
}
