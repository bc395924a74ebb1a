//! A rate that changes (to a fifth at 10 s, back at 20 s), two sessions on a link, four CUBIC flows beside:
//! one line for each link that misses something, and a summary.
//!
//! `rate_dynamics [all] [deaf | passed] [two] [even] [join] [far RTT_MS] [random COUNT [FIRST]] [seeds COUNT]`
//! or `rate_dynamics short [seeds COUNT]`:
//!
//! - `all` prints every line; `random` takes links off the grid; `far` gives all this round trip;
//! - `seeds` runs each link so many times and takes medians (not with `even` and `join`);
//! - `deaf`: the sessions do not hear one another; `passed`: their receivers pass it on;
//! - `two`: two and three sessions only;
//! - `even`: when the shares of two are within 60:40, the summary only;
//! - `join`: what a second session that begins does to the first, the summary only;
//! - `short`: four CUBIC flows only, on 140 links with queues of 5 to 20 ms.

use downpour_sim::stream::{Bed, Words, median};

/// Between the seeds of a link's runs.
const SEED_STEP: u64 = 10_007;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let all = args.iter().any(|a| a == "all");
    let beds = match args.iter().position(|a| a == "random") {
        Some(at) => {
            let number = |i: usize| args.get(at + i).and_then(|a| a.parse::<u64>().ok());
            let first = number(2).unwrap_or(1);
            (first..first + number(1).unwrap_or(100)).map(Bed::random).collect()
        }
        None => Bed::all(),
    };
    let has = |word: &str| args.iter().any(|a| a == word);
    let seeds =
        args.iter().position(|a| a == "seeds").and_then(|at| args.get(at + 1)?.parse().ok());
    let seeds = seeds.unwrap_or(1).max(1);
    if has("short") {
        return short(seeds);
    }
    let words = match () {
        () if has("deaf") => Words::None,
        () if has("passed") => Words::PassedOn,
        () => Words::Heard,
    };
    let far =
        args.iter().position(|a| a == "far").and_then(|at| args.get(at + 1)?.parse::<u64>().ok());
    let beds = beds.into_iter().map(|bed| Bed {
        words,
        rtt_us: far.map_or(bed.rtt_us, |ms| ms * 1000),
        ..bed
    });
    let sums = match () {
        () if has("two") => sessions(beds, seeds, all),
        () if has("even") => evens(beds, all),
        () if has("join") => joins(beds, all),
        () => dynamics(beds, seeds, all),
    };
    println!("{sums}");
}

/// What four CUBIC flows get, where the queue is short.
fn short(seeds: u64) {
    for rtt_us in [20_000, 50_000, 100_000, 200_000] {
        let mut missed = 0;
        for mbps in [5, 10, 20, 30, 50, 100, 200] {
            for queue_ms in [5, 7, 10, 15, 20] {
                let bed = Bed { mbps, rtt_us, queue_ms, ..Bed::BASE };
                let tcp = median(&runs(&bed, seeds), |bed| bed.beside_tcp(4).tcp_of_all);
                missed += u32::from(tcp < 0.25);
                println!("{}  four CUBIC get {tcp:.3}{}", name(&bed), mark(tcp < 0.25));
            }
        }
        println!("rtt {} ms, 35 links: less than a quarter on {missed}", rtt_us / 1000);
    }
}

/// The same link with other seeds.
fn runs(bed: &Bed, seeds: u64) -> Vec<Bed> {
    (0..seeds).map(|run| Bed { seed: bed.seed + run * SEED_STEP, ..*bed }).collect()
}

const fn mark(miss: bool) -> &'static str {
    if miss { "!" } else { "" }
}

fn name(bed: &Bed) -> String {
    let (rtt, Bed { mbps, queue_ms, loss_pct, receivers, .. }) = (bed.rtt_us as f64 / 1e3, bed);
    format!(
        "{mbps:>3} Mbit/s  rtt {rtt:>5.2} ms  queue {queue_ms:>2} ms  loss {loss_pct:>4.2} %  x{receivers:<2}"
    )
}

fn sessions(beds: impl Iterator<Item = Bed>, seeds: u64, all: bool) -> String {
    let (mut count, mut missed, mut use_of_two, mut use_of_three) = (0, [0; 2], 0.0, 0.0);
    for bed in beds {
        let runs: Vec<_> = runs(&bed, seeds).iter().map(|bed| (bed.two(), bed.three())).collect();
        let (larger, two) = (median(&runs, |(two, _)| two.0), median(&runs, |(two, _)| two.1));
        let (unlike, three) =
            (median(&runs, |(_, three)| three.0), median(&runs, |(_, three)| three.1));
        let misses = [larger > 0.6, unlike > 1.5];
        misses.iter().zip(&mut missed).for_each(|(miss, count)| *count += u32::from(*miss));
        (count, use_of_two, use_of_three) = (count + 1, use_of_two + two, use_of_three + three);
        if all || misses.contains(&true) {
            println!(
                "{}  two: larger {larger:.3}{} used {two:.3}  three: largest over least {unlike:.2}{} used {three:.3}",
                name(&bed),
                mark(misses[0]),
                mark(misses[1]),
            );
        }
    }
    let mean = |sum: f64| sum / f64::from(count);
    format!(
        "{count} links; missed: two within 60:40 {} (used {:.4}), three within 3:2 {} (used {:.4})",
        missed[0],
        mean(use_of_two),
        missed[1],
        mean(use_of_three)
    )
}

fn evens(beds: impl Iterator<Item = Bed>, all: bool) -> String {
    let mut after = Vec::new();
    for bed in beds {
        after.push(bed.even_after());
        if all {
            println!("{}  even after {} s", name(&bed), after[after.len() - 1]);
        }
    }
    let longer = |s: u64| after.iter().filter(|after| **after > s).count();
    format!(
        "{} links; within 60:40 after {:.1} s (mean), more than 10 s {}, 20 s {}",
        after.len(),
        after.iter().sum::<u64>() as f64 / after.len() as f64,
        longer(10),
        longer(20)
    )
}

fn joins(beds: impl Iterator<Item = Bed>, all: bool) -> String {
    let (mut least, mut back, mut second, mut used, mut dropped) =
        (vec![], vec![], vec![], 0.0, 0.0);
    for bed in beds {
        let joined = bed.joined();
        least.push(joined.least);
        back.push(joined.back.as_secs_f64());
        second.push(joined.second.as_secs_f64());
        (used, dropped) = (used + joined.used, dropped + joined.dropped);
        if all {
            println!(
                "{}  join: least {:.3} back {:.1} s  second {:.1} s  used {:.3} dropped {:.4}",
                name(&bed),
                joined.least,
                joined.back.as_secs_f64(),
                joined.second.as_secs_f64(),
                joined.used,
                joined.dropped
            );
        }
    }
    let count = least.len();
    let below = |share: f64| least.iter().filter(|least| **least < share).count();
    let longer = |s: f64| back.iter().filter(|back| **back > s).count();
    let mean = |of: &[f64]| of.iter().sum::<f64>() / count as f64;
    format!(
        "{count} links; least share of the first: mean {:.3}, below 0.1 {}, 0.2 {}, 0.3 {}; back after: mean {:.2} s, more than 3 s {}, 6 s {}; second has 40 % after {:.2} s; used {:.4}, dropped {:.4}",
        mean(&least),
        below(0.1),
        below(0.2),
        below(0.3),
        mean(&back),
        longer(3.0),
        longer(6.0),
        mean(&second),
        used / count as f64,
        dropped / count as f64
    )
}

fn dynamics(beds: impl Iterator<Item = Bed>, seeds: u64, all: bool) -> String {
    let (mut count, mut missed) = (0, [0; 3]);
    for bed in beds {
        let beds = runs(&bed, seeds);
        let changes: Vec<_> = beds.iter().map(|bed| bed.change((bed.mbps / 5).max(1))).collect();
        let (down, up) = (median(&changes, |change| change.0), median(&changes, |change| change.1));
        let pairs: Vec<_> = beds.iter().map(Bed::two).collect();
        let (larger, used) = (median(&pairs, |pair| pair.0), median(&pairs, |pair| pair.1));
        let tcp = median(&beds, |bed| bed.beside_tcp(4).tcp_of_all);
        let misses = [down.min(up) < 0.9, larger > 0.6, tcp < 0.25];
        misses.iter().zip(&mut missed).for_each(|(miss, count)| *count += u32::from(*miss));
        count += 1;
        if all || misses.contains(&true) {
            println!(
                "{}  down {down:.3} up {up:.3}{}  two: larger {larger:.3}{} used {used:.3}  four CUBIC get {tcp:.3}{}",
                name(&bed),
                mark(misses[0]),
                mark(misses[1]),
                mark(misses[2]),
            );
        }
    }
    format!(
        "{count} links; missed: change {}, two within 60:40 {}, CUBIC at least a quarter {}",
        missed[0], missed[1], missed[2]
    )
}
