//! A day at a pair of sites under FTS3's tuner: files that wait, run over so many streams, finish or fail.

use super::fts3::{Config, Fts3, Now, Row};
use super::{GroupConfig, Path};
use downpour_proto::Duration;
use downpour_proto::transfer::steer::{Seen, Setting};
use std::collections::VecDeque;

const MINUTE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_secs(1);
/// Rows older than the longest window say nothing.
const ROWS_SECONDS: f64 = 1800.0;

/// A kind of files of a pair, an activity.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Bytes of each.
    pub bytes: f64,
    /// Every so manieth fails when it has come; 0: none.
    pub fails_each: u64,
}

#[derive(Clone, Copy, Debug)]
struct File {
    kind: usize,
    begun: f64,
    came: f64,
    number: u64,
}

/// A pair of storages.
#[derive(Debug)]
pub struct Pair {
    /// What decides.
    pub fts3: Fts3,
    group: usize,
    kinds: Vec<Kind>,
    /// Waiting, by kind.
    pub queue: VecDeque<usize>,
    active: Vec<File>,
    rows: Vec<Row>,
    streams: u32,
    numbers: u64,
    /// Bytes that came, of each kind, of files that did not fail.
    pub came: Vec<f64>,
    /// All that the flows saw, since it was taken last.
    pub seen: Seen,
    /// Values, by minute.
    pub values: Vec<u32>,
}

impl Pair {
    /// On this group of a path; nothing runs before the first decision.
    pub fn new(path: &mut Path, link: GroupConfig, config: Config, kinds: &[Kind]) -> Self {
        Self {
            fts3: Fts3::new(config),
            group: path.add(link),
            came: vec![0.0; kinds.len()],
            kinds: kinds.to_vec(),
            queue: VecDeque::new(),
            active: Vec::new(),
            rows: Vec::new(),
            streams: 1,
            numbers: 0,
            seen: Seen::default(),
            values: Vec::new(),
        }
    }

    /// The files of its kinds wait in turn, so many in all.
    pub fn queue(mut self, files: usize) -> Self {
        self.queue = (0..files).map(|index| index % self.kinds.len()).collect();
        self
    }

    /// It had come to this value before.
    pub fn at(mut self, value: u32) -> Self {
        self.fts3.value = value;
        self
    }

    /// Files of a kind fail so from now on.
    pub fn fails(&mut self, kind: usize, each: u64) {
        self.kinds[kind].fails_each = each;
    }

    /// Files of a kind are so many times as long.
    pub fn grow(&mut self, kind: usize, times: f64) {
        self.kinds[kind].bytes *= times;
    }

    /// It is started again, and has lost what it knew.
    pub fn restart(&mut self, config: Config) {
        self.fts3 = Fts3::new(config);
    }

    /// TCP connections.
    pub fn connections(&self) -> u16 {
        u16::try_from(self.active.len() * self.streams as usize).unwrap_or(u16::MAX)
    }

    fn start(&mut self, path: &mut Path, at: f64) {
        while self.active.len() < self.fts3.value as usize {
            let Some(kind) = self.queue.pop_front() else { break };
            self.numbers += 1;
            self.active.push(File { kind, begun: at, came: 0.0, number: self.numbers });
        }
        path.set(self.group, Setting { connections: self.connections(), pacing: None });
    }

    fn tick(&mut self, path: &mut Path, at: f64) {
        let seen = path.take_seen(self.group);
        self.seen.add(&seen);
        let share = seen.bytes as f64 / self.active.len().max(1) as f64;
        let mut running = Vec::new();
        for mut file in std::mem::take(&mut self.active) {
            let kind = self.kinds[file.kind];
            file.came += share;
            if file.came < kind.bytes {
                running.push(file);
                continue;
            }
            let failed = kind.fails_each > 0 && file.number.is_multiple_of(kind.fails_each);
            self.rows.push(Row { begun: file.begun, ended: at, bytes: kind.bytes, failed });
            match failed {
                true => self.queue.push_back(file.kind),
                false => self.came[file.kind] += kind.bytes,
            }
        }
        // Beyond a lower value files end by themselves; none begins.
        self.active = running;
        self.start(path, at);
    }

    fn decide(&mut self, path: &mut Path, at: f64) {
        self.rows.retain(|row| at - row.ended <= ROWS_SECONDS);
        let recent =
            |file: &File| file.came * (ROWS_SECONDS / 2.0 / (at - file.begun).max(1.0)).min(1.0);
        let active_bytes = self.active.iter().map(recent).sum();
        let queued = self.queue.len() as u32;
        let now = Now { at, queued, active: self.active.len() as u32, active_bytes };
        let decided = self.fts3.decide(&self.rows, &now);
        self.streams = decided.streams;
        self.values.push(decided.connections);
        self.start(path, at);
    }
}

/// Lets minutes pass for all pairs of a path.
pub fn run(path: &mut Path, pairs: &mut [&mut Pair], minutes: u64) {
    let seconds = |path: &Path| path.now().as_nanos() as f64 / 1e9;
    for _ in 0..minutes {
        for pair in pairs.iter_mut() {
            pair.decide(path, seconds(path));
        }
        for _ in 0..MINUTE.as_secs() {
            path.run(TICK);
            let at = seconds(path);
            for pair in pairs.iter_mut() {
                pair.tick(path, at);
            }
        }
    }
}
