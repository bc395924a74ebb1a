//! FTS3's tuner, as a rival: written from a description of what it decides, once a minute for each pair of storages.
//!
//! 1. A window of 5, 15 or 30 minutes, by the mean duration of files. Throughput is the bytes of the window over it, and
//!    goes into a mean with α = 0.1 when it is not zero. Success is what finished of that and what failed recoverably.
//! 2. The first decision is the configured maximum, or the middle of the range. Then, in this order: above a cap, one
//!    less; success below 97 %, one less (held while it improves); no throughput, or a short queue, held; a mean that
//!    fell by a decade, one less, or more when files got smaller by a decade; a mean that fell by less, held; else more.
//! 3. Streams for each file: connections over active and queued files, 1 to 16.
//!
//! Its habits are kept: a cap's −1 is not clamped, and 0 is read as "no value yet"; equal counts as better; decades are
//! rounded logarithms; every decision reads the table of files.

/// How eager it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Steps of one.
    Conservative,
    /// Steps of two.
    Normal,
}

/// What it is configured with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The link's maximum, if one is configured.
    pub link_max: Option<u32>,
    /// Bytes a second that the source may send in all.
    pub source_cap: Option<f64>,
    /// How eager.
    pub mode: Mode,
}

impl Config {
    /// As delivered.
    pub const DEFAULT: Self = Self { link_max: None, source_cap: None, mode: Mode::Normal };
}

const RANGE_MIN: u32 = 2;
const STORAGE_MAX: u32 = 200;
const ALPHA: f64 = 0.1;
const SUCCESS_MIN: f64 = 97.0;
const SUCCESS_NEARLY: f64 = 96.0;
const STREAMS_MAX: u32 = 16;

/// A file of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// When it began and ended, in seconds.
    pub begun: f64,
    /// See `begun`.
    pub ended: f64,
    /// Its bytes; none of them count when it failed.
    pub bytes: f64,
    /// Failed, in a way that is tried again.
    pub failed: bool,
}

/// A pair as it is now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Seconds.
    pub at: f64,
    /// Files that wait, and that are under way.
    pub queued: u32,
    /// See `queued`.
    pub active: u32,
    /// Bytes that came of files under way, within the window.
    pub active_bytes: f64,
}

/// What it decided.
#[derive(Clone, Debug)]
pub struct Decided {
    /// Files at once.
    pub connections: u32,
    /// TCP streams of each.
    pub streams: u32,
    /// Why.
    pub why: &'static str,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    ema: f64,
    success: f64,
    failures: usize,
    mean_size: f64,
}

/// One pair's tuner.
#[derive(Debug)]
pub struct Fts3 {
    config: Config,
    /// The stored value; 0: none yet.
    pub value: u32,
    ema: f64,
    last: Option<Last>,
    /// Rows that it has read in its life.
    pub rows_read: u64,
}

/// By rounded logarithms: 31 and 3.2 are of unlike decades, and so are 3.2 and 3.1.
fn decade(value: f64) -> i32 {
    value.max(1e-9).log10().round() as i32
}

impl Fts3 {
    /// With nothing stored.
    pub const fn new(config: Config) -> Self {
        Self { config, value: 0, ema: 0.0, last: None, rows_read: 0 }
    }

    /// The mean that it believes, bytes a second.
    pub const fn ema(&self) -> f64 {
        self.ema
    }

    /// Once a minute.
    pub fn decide(&mut self, rows: &[Row], now: &Now) -> Decided {
        self.rows_read += rows.len() as u64;
        let recent = |row: &&Row| now.at - row.ended <= 1800.0;
        let durations: Vec<f64> =
            rows.iter().filter(recent).map(|row| row.ended - row.begun).collect();
        let duration = durations.iter().sum::<f64>() / durations.len().max(1) as f64;
        let window = match duration {
            d if d < 30.0 => 300.0,
            d if d > 30.0 && d < 900.0 => 900.0,
            _ => 1800.0,
        };
        let from = now.at - window;
        let ended: Vec<&Row> = rows.iter().filter(|row| row.ended > from).collect();
        // Of a file only the part that falls into the window.
        let part = |row: &&&Row| {
            let inside = row.ended - row.begun.max(from);
            row.bytes * (inside / (row.ended - row.begun).max(1e-3)).min(1.0)
        };
        let came: f64 = ended.iter().filter(|row| !row.failed).map(|row| part(&row)).sum();
        let throughput = (came + now.active_bytes) / window.min(now.at.max(60.0));
        if throughput > 0.0 {
            self.ema = match self.ema {
                0.0 => throughput,
                ema => ALPHA * throughput + (1.0 - ALPHA) * ema,
            };
        }
        let failures = ended.iter().filter(|row| row.failed).count();
        let success = match ended.len() {
            0 => 100.0,
            all => (100.0 * (all - failures) as f64 / all as f64).ceil(),
        };
        let sizes = ended.iter().filter(|row| !row.failed).map(|row| row.bytes);
        let mean_size = sizes.sum::<f64>() / (ended.len() - failures).max(1) as f64;
        let new = Last { ema: self.ema, success, failures, mean_size };
        let (value, why) = self.rule(&new, throughput, now);
        self.last = Some(new);
        self.value = value;
        let files = (now.active + now.queued).max(1);
        let streams = (value / files).clamp(1, STREAMS_MAX);
        let streams = if self.config.mode == Mode::Conservative { 1 } else { streams };
        Decided { connections: value, streams, why }
    }

    fn rule(&self, new: &Last, throughput: f64, now: &Now) -> (u32, &'static str) {
        let most = self.config.link_max.unwrap_or(STORAGE_MAX);
        if self.value == 0 {
            let middle = RANGE_MIN + (most - RANGE_MIN) / 2;
            return (self.config.link_max.unwrap_or(middle), "no value yet");
        }
        // After a restart it compares with what it sees itself.
        let last = self.last.unwrap_or(*new);
        if self.config.source_cap.is_some_and(|cap| throughput > cap) {
            return (self.value - 1, "above the source's cap");
        }
        let clamp = |value: u32| value.clamp(RANGE_MIN, most);
        let step = if self.config.mode == Mode::Conservative { 1 } else { 2 };
        if new.success < SUCCESS_MIN {
            let improves = new.success > last.success
                && new.success >= SUCCESS_NEARLY
                && new.failures <= last.failures;
            return match improves {
                true => (self.value, "success is low, and improves"),
                false => (clamp(self.value - 1), "success is low"),
            };
        }
        if new.ema == 0.0 {
            return (self.value, "no throughput");
        }
        if now.queued < self.value {
            return (self.value, "the queue is short");
        }
        if new.ema < last.ema {
            let smaller = decade(new.mean_size) < decade(last.mean_size);
            return match decade(new.ema / 1e6) < decade(last.ema / 1e6) {
                _ if smaller => (clamp(self.value + step), "slower, of smaller files"),
                true => (clamp(self.value - 1), "slower by a decade"),
                false => (self.value, "slower"),
            };
        }
        (clamp(self.value + step), "no slower")
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, Fts3, Mode, Now, Row};

    fn rows(count: usize, failed: usize, bytes: f64, at: f64) -> Vec<Row> {
        let row = |index| Row { begun: at - 40.0, ended: at - 1.0, bytes, failed: index < failed };
        (0..count).map(row).collect()
    }

    fn now(at: f64) -> Now {
        Now { at, queued: 1000, active: 10, active_bytes: 0.0 }
    }

    #[test]
    fn it_begins_in_the_middle_and_climbs_while_it_is_no_slower() {
        let mut fts3 = Fts3::new(Config::DEFAULT);
        assert_eq!(fts3.decide(&[], &now(60.0)).connections, 101);
        for minute in 2..5 {
            let at = f64::from(minute) * 60.0;
            // What ended since the beginning: more each minute.
            fts3.decide(&rows(5 * (minute * minute) as usize, 0, 1e9, at), &now(at));
        }
        assert_eq!(fts3.value, 107);
        let mut modest = Fts3::new(Config { mode: Mode::Conservative, ..Config::DEFAULT });
        modest.value = 10;
        assert_eq!(modest.decide(&rows(10, 0, 1e9, 60.0), &now(60.0)).connections, 11);
        assert_eq!(modest.decide(&rows(10, 0, 1e9, 120.0), &now(120.0)).streams, 1);
    }

    #[test]
    fn failures_take_one_away_each_minute() {
        let mut fts3 = Fts3::new(Config::DEFAULT);
        fts3.value = 4;
        for minute in 1..6 {
            let at = f64::from(minute) * 60.0;
            fts3.decide(&rows(10, 1, 1e9, at), &now(at));
        }
        assert_eq!(fts3.value, 2);
    }

    #[test]
    fn a_cap_goes_down_to_no_value_and_begins_anew() {
        let mut fts3 = Fts3::new(Config { source_cap: Some(1.0), ..Config::DEFAULT });
        fts3.value = 2;
        let mut values = Vec::new();
        for minute in 1..4 {
            let at = f64::from(minute) * 60.0;
            values.push(fts3.decide(&rows(10, 0, 1e9, at), &now(at)).connections);
        }
        assert_eq!(values, [1, 0, 101]);
    }

    #[test]
    fn a_short_queue_holds_and_few_files_share_the_connections() {
        let mut fts3 = Fts3::new(Config::DEFAULT);
        fts3.value = 40;
        let few = Now { queued: 0, active: 4, ..now(60.0) };
        let decided = fts3.decide(&rows(4, 0, 1e9, 60.0), &few);
        assert_eq!((decided.connections, decided.streams), (40, 10));
    }
}
