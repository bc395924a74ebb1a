//! The matrix that the closed loop is judged by: beside the best number of connections that stays, found by search.

use super::{GroupConfig, Path, Steered, steered};
use downpour_proto::transfer::CONNECTIONS_MAX;
use downpour_proto::transfer::steer::{Binding, Decision, Held, Limits, Setting};
use downpour_proto::{Duration, Rate};

/// What a disk leaves of the link.
const DISK_SHARE: f64 = 0.4;
/// The loop has so long to find its setting; then it is measured for as long.
const SETTLE: Duration = Duration::from_secs(30);
const MEASURE: Duration = Duration::from_secs(30);
/// At least this part of the best that stays.
const GOOD: f64 = 0.9;
/// What was named is right when removing it helps about as much as removing anything else: within so much of what comes.
const TIE: f64 = 0.1;
/// Numbers of connections among which the best is searched.
const SEARCH: [u16; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, CONNECTIONS_MAX];

/// Which disk is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// None.
    None,
    /// The source's.
    Source,
    /// The destination's.
    Sink,
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Rate of the link, Mbit/s.
    pub mbps: u64,
    /// Round trip.
    pub rtt_ms: u64,
    /// Random loss, percent.
    pub loss_pct: f64,
    /// Which disk is slow.
    pub disk: Disk,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The cell.
    pub cell: Cell,
    /// Connections of the best setting that stays, and what it brings: bytes a second.
    pub best: (u16, f64),
    /// The loop's at the end, and what it brought.
    pub found: (Setting, f64),
    /// What it says that binds.
    pub binding: Binding,
    /// What removing the disk's, the link's or the loss's limit would bring, over what came.
    pub removed: [f64; 3],
}

impl Cell {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for disk in [Disk::None, Disk::Source, Disk::Sink] {
            for rtt_ms in [1, 10, 50, 200] {
                for loss_pct in [0.0, 0.01, 0.1, 1.0] {
                    for mbps in [20, 100, 500] {
                        cells.push(Self { mbps, rtt_ms, loss_pct, disk });
                    }
                }
            }
        }
        cells
    }

    fn config(&self) -> GroupConfig {
        let disk = Some(Rate::from_mbps(self.mbps).scale(DISK_SHARE));
        GroupConfig {
            source_disk: disk.filter(|_| self.disk == Disk::Source),
            sink_disk: disk.filter(|_| self.disk == Disk::Sink),
            ..GroupConfig::of(Duration::from_millis(self.rtt_ms), self.loss_pct / 100.0)
        }
    }

    /// A link with a queue of 20 ms, at least 50 frames.
    fn path(&self, rate: Rate, seed: u64) -> Path {
        Path::new(rate, rate.bytes_in(Duration::from_millis(20)).max(50 * 1514), seed)
    }

    /// Bytes a second of a setting that stays.
    fn stays(&self, config: GroupConfig, rate: Rate, setting: Setting, seed: u64) -> f64 {
        let mut path = self.path(rate, seed);
        let group = path.add(config);
        path.set(group, setting);
        path.run(SETTLE);
        path.take_seen(group);
        path.run(MEASURE);
        path.take_seen(group).rate()
    }

    /// Runs it.
    pub fn run(&self, seed: u64) -> Outcome {
        let rate = Rate::from_mbps(self.mbps);
        let config = self.config();
        let brings = |connections| {
            let setting = Setting { connections, pacing: None };
            (connections, self.stays(config, rate, setting, seed))
        };
        let best = SEARCH.map(brings).into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let (loops, found) = self.steer(seed);
        let setting = loops.setting(0);
        let free = Setting { pacing: None, ..setting };
        let usual = self.stays(config, rate, free, seed).max(1.0);
        let other = |config, rate| self.stays(config, rate, free, seed) / usual;
        let no_disk = GroupConfig { source_disk: None, sink_disk: None, ..config };
        Outcome {
            cell: *self,
            best: best.unwrap_or((0, 0.0)),
            found: (setting, found),
            binding: loops.binding(0),
            removed: [
                other(no_disk, rate),
                other(config, rate.scale(4.0)),
                other(GroupConfig { loss: 0.0, ..config }, rate),
            ],
        }
    }

    /// The loop, and what it brought a second at the end.
    fn steer(&self, seed: u64) -> (Steered, f64) {
        let mut path = self.path(Rate::from_mbps(self.mbps), seed);
        let group = path.add(self.config());
        // As the plan begins.
        let first = if self.rtt_ms < 5 { 4 } else { 10 };
        let limits = Limits { first, least: 1, most: CONNECTIONS_MAX, ceiling: None };
        let mut loops = steered(&mut path, &[(group, limits)]);
        loops.run(&mut path, SETTLE);
        let before = loops.bytes(0);
        loops.run(&mut path, MEASURE);
        let found = (loops.bytes(0) - before) as f64 / MEASURE.as_secs_f64();
        (loops, found)
    }

    /// What the loop decides, with the seconds.
    pub fn decisions(&self, seed: u64) -> Vec<(f64, Decision)> {
        self.steer(seed).0.decisions
    }
}

impl Outcome {
    /// What the loop brought of the best that stays.
    pub fn ratio(&self) -> f64 {
        self.found.1 / self.best.1.max(1.0)
    }

    /// Whether removing what was named helps as much as removing anything else.
    pub fn is_right(&self) -> bool {
        let [disk, link, loss] = self.removed;
        let most = disk.max(link).max(loss);
        let named = match self.binding {
            Binding::SourceDisk if self.cell.disk == Disk::Source => disk,
            Binding::Receiver(Held::Disk) if self.cell.disk == Disk::Sink => disk,
            Binding::Saturation => link,
            Binding::Loss => loss,
            _ => 0.0,
        };
        named >= most - TIE
    }

    /// What is missed, if anything.
    pub fn misses(&self) -> Option<&'static str> {
        match (self.ratio() >= GOOD, self.is_right()) {
            (true, true) => None,
            (false, _) => Some("rate"),
            (true, false) => Some("verdict"),
        }
    }

    /// A line of the table.
    pub fn line(&self) -> String {
        let Cell { mbps, rtt_ms, loss_pct, disk } = self.cell;
        let disk = format!("{disk:?}").to_lowercase();
        let mbit = |bytes: f64| bytes * 8.0 / 1e6;
        let (setting, found) = self.found;
        let paced = if setting.pacing.is_some() { " paced" } else { "" };
        format!(
            "{rtt_ms:>3} ms {loss_pct:>4} % {mbps:>3} Mbit/s disk {disk:<6}  best {:>2}: {:>6.1}  loop {:>2}{paced}: {:>6.1} ({:.2})  {} {}",
            self.best.0,
            mbit(self.best.1),
            setting.connections,
            mbit(found),
            self.ratio(),
            self.binding,
            self.misses()
                .map_or(String::new(), |what| format!("MISSES {what} {:.2?}", self.removed)),
        )
    }
}
