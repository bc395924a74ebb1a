//! What a run costs in CPU time, of whom, and whether the machine was the limit.
//!
//! Programs run in control groups, one for the sender, one for all receivers, one for the emulator; the
//! kernel counts exactly what each used, and for how long somebody in it waited for a CPU. Where there are no
//! control groups, that is unknown.
//!
//! On one machine the kernel takes a frame in where it was sent: without a queue between them what it does for all receivers is in the
//! sender's time, behind a queue in that of whoever its timer interrupts. On machines of their own a sender of multicast would cost
//! less, and receivers more.
//!
//! Others' work of low priority is not in use: it gives way. The programs' own of low priority is; where the kernel does
//! not tell the two apart (before 6.13), both are.

use crate::footprint::Footprint;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// CPU was the limit when the programs used this share of the machine,
const OURS_BOUND: f64 = 0.85;
/// or the sender, or the emulator, which is one thread, or the mean receiver, this share of one core.
const CORE_BOUND: f64 = 0.95;
/// The machine was full when this share was in use, whoever used it.
const FULL: f64 = 0.90;
/// The kernel counts the machine's time in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Readings at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    at: Instant,
    sender_s: Option<f64>,
    receivers_s: Option<f64>,
    network_s: Option<f64>,
    waited_s: Option<f64>,
    /// All cores together, idle.
    idle_s: f64,
    /// All cores together, at work of low priority, and of that at the programs' and the emulator's.
    low_s: f64,
    low_ours_s: Option<f64>,
    /// Packets that the kernel dropped between two interfaces, on the whole machine.
    dropped: u64,
}

/// What was used between two moments.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// CPU seconds of the sender's programs.
    pub(crate) sender_cpu_s: Option<f64>,
    /// CPU seconds of all receivers' programs.
    pub(crate) receivers_cpu_s: Option<f64>,
    /// CPU seconds of the emulator.
    pub(crate) emulator_cpu_s: Option<f64>,
    /// Share of the time in which some program under test waited for a CPU.
    pub(crate) cpu_waited: Option<f64>,
    /// Share of all cores that the above used, as far as that is known.
    pub(crate) cpu_ours: Option<f64>,
    /// Share of all cores that was in use, others' work of low priority aside.
    pub(crate) cpu_busy: f64,
    /// CPU seconds in use that were nobody's of the above: the kernel's network, other work.
    pub(crate) other_cpu_s: Option<f64>,
    /// Whether CPU was the limit.
    pub(crate) cpu_bound: bool,
    /// Whether the machine was full: of network work in the kernel, or of others' work.
    pub(crate) cpu_full: bool,
    /// Packets dropped between two interfaces, on the whole machine.
    pub(crate) backlog_drops: u64,
}

impl Meter {
    /// Now.
    pub(crate) fn read(footprint: &Footprint) -> Self {
        let groups = ["sender", "receivers", "network"].map(|role| footprint.group(role));
        let [sender_s, receivers_s, network_s] =
            groups.each_ref().map(|group| cpu_s(group.as_deref()?, "usage_usec"));
        let low_ours_s = groups.iter().map(|group| cpu_s(group.as_deref()?, "nice_usec")).sum();
        let waited = groups.iter().flatten().filter_map(|group| waited_s(group));
        let waited_s = waited.reduce(f64::max);
        let (at, [idle_s, low_s], dropped) = (Instant::now(), machine_s(), backlog_drops());
        #[rustfmt::skip]
        let meter = Self {
            at, sender_s, receivers_s, network_s, waited_s, idle_s, low_s, low_ours_s, dropped,
        };
        meter
    }

    /// What was used since, by a sender and this many receivers.
    pub(crate) fn since(&self, earlier: &Self, receivers: usize) -> Usage {
        let span = (self.at - earlier.at).as_secs_f64().max(1e-3);
        let between = |now: Option<f64>, then: Option<f64>| Some(now? - then?);
        let sender = between(self.sender_s, earlier.sender_s);
        let all = between(self.receivers_s, earlier.receivers_s);
        let network = between(self.network_s, earlier.network_s);
        let ours = [sender, all, network].into_iter().flatten().reduce(|a, b| a + b);
        let low_others = between(self.low_ours_s, earlier.low_ours_s)
            .map_or(0.0, |low_ours| (self.low_s - earlier.low_s - low_ours).max(0.0));
        let spare = self.idle_s - earlier.idle_s + low_others;
        // Which priority was at work is sampled.
        let busy_s = (span * cores() - spare).max(ours.unwrap_or_default());
        let (cpu_ours, cpu_busy) = (ours.map(|s| s / span / cores()), busy_s / span / cores());
        let one_core = [sender, network, all.map(|all| all / receivers.max(1) as f64)];
        let on_one_core = one_core.into_iter().flatten().fold(0.0, f64::max) / span;
        Usage {
            sender_cpu_s: sender,
            receivers_cpu_s: all,
            emulator_cpu_s: network,
            cpu_waited: between(self.waited_s, earlier.waited_s).map(|s| s / span),
            cpu_ours,
            cpu_busy,
            other_cpu_s: ours.map(|ours| busy_s - ours),
            cpu_bound: cpu_ours.is_some_and(|share| share >= OURS_BOUND)
                || on_one_core >= CORE_BOUND,
            cpu_full: cpu_busy >= FULL,
            backlog_drops: self.dropped - earlier.dropped,
        }
    }
}

pub(crate) fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

/// A time that the kernel counts for the group.
fn cpu_s(group: &Path, name: &str) -> Option<f64> {
    let text = fs::read_to_string(group.join("cpu.stat")).ok()?;
    let words = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(words.trim().parse::<f64>().ok()? / 1e6)
}

/// How long somebody in the group has waited for a CPU.
fn waited_s(group: &Path) -> Option<f64> {
    let text = fs::read_to_string(group.join("cpu.pressure")).ok()?;
    let total = text.lines().find(|line| line.starts_with("some "))?.split("total=").nth(1)?;
    Some(total.trim().parse::<f64>().ok()? / 1e6)
}

/// For how long the cores were idle, and at work of low priority. The kernel samples who is at work, but counts exactly
/// how long nobody is.
fn machine_s() -> [f64; 2] {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait
    let sum = |of: &[usize]| of.iter().filter_map(|i| ticks.get(*i)).sum::<f64>();
    [sum(&[3, 4]), sum(&[1])].map(|ticks| ticks / TICKS_PER_SECOND)
}

fn backlog_drops() -> u64 {
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let second = text.lines().filter_map(|line| line.split_whitespace().nth(1));
    second.filter_map(|word| u64::from_str_radix(word, 16).ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::{Meter, cores};
    use std::time::{Duration, Instant};

    /// Ten seconds, all of which one core was at work of low priority, seven of them ours.
    fn ten_seconds(low_ours_s: Option<f64>) -> [Meter; 2] {
        let (idle_s, low_s, sender_s) = (10.0 * (cores() - 1.0), 10.0, Some(7.0));
        let (at, none) = (Instant::now(), low_ours_s.map(|_| 0.0));
        #[rustfmt::skip]
        let before = Meter {
            at, sender_s: Some(0.0), receivers_s: None, network_s: None, waited_s: None, idle_s: 0.0,
            low_s: 0.0, low_ours_s: none, dropped: 0,
        };
        let at = at + Duration::from_secs(10);
        [before.clone(), Meter { at, sender_s, idle_s, low_s, low_ours_s, ..before }]
    }

    #[test]
    fn what_the_programs_use_at_low_priority_is_in_use_and_what_others_do_is_not() {
        for (low_ours_s, busy_s) in [
            (Some(7.0), 7.0),
            // Where it is not known whose it is.
            (None, 10.0),
            // Samples that missed ours.
            (Some(1.0), 7.0),
        ] {
            let [before, after] = ten_seconds(low_ours_s);
            let usage = after.since(&before, 1);
            assert!((usage.cpu_busy * 10.0 * cores() - busy_s).abs() < 1e-6, "{usage:?}");
            assert!((usage.other_cpu_s.unwrap() - (busy_s - 7.0)).abs() < 1e-6, "{usage:?}");
            assert!(usage.cpu_busy >= usage.cpu_ours.unwrap(), "{usage:?}");
        }
    }

    #[test]
    fn an_emulator_that_has_no_time_left_is_the_limit() {
        for (busy_s, is_bound) in [(9.6, true), (8.0, false)] {
            let emulating = |meter, s| Meter { sender_s: None, network_s: Some(s), ..meter };
            let [before, after] = ten_seconds(None);
            let usage = emulating(after, busy_s).since(&emulating(before, 0.0), 1);
            assert_eq!(usage.cpu_bound, is_bound, "{usage:?}");
        }
    }

    #[test]
    fn without_control_groups_what_the_programs_used_is_unknown_and_no_zero() {
        let unknown = |meter: Meter| Meter { sender_s: None, ..meter };
        let [before, after] = ten_seconds(None).map(unknown);
        let usage = after.since(&before, 1);
        assert_eq!((usage.cpu_ours, usage.other_cpu_s), (None, None));
        assert!((usage.cpu_busy * 10.0 * cores() - 10.0).abs() < 1e-6, "{usage:?}");
    }
}
