//! A rate that changes (to a fifth at 10 s, back at 20 s), two sessions on a link, four CUBIC flows beside:
//! one line for each link that misses something, and a summary. `rate_dynamics [all] [random COUNT [FIRST]]`:
//! `all` prints every line, `random` takes links off the grid.

use downpour_sim::stream::Bed;

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
    let mut missed = [0; 3];
    for bed in &beds {
        let (down, up) = bed.change((bed.mbps / 5).max(1));
        let (larger, used) = bed.two();
        let (tcp, _) = bed.beside_tcp(4);
        let misses = [down.min(up) < 0.9, larger > 0.6, tcp < 0.25];
        misses.iter().zip(&mut missed).for_each(|(miss, count)| *count += u32::from(*miss));
        if all || misses.contains(&true) {
            let mark = |miss: bool| if miss { "!" } else { "" };
            println!(
                "{:>3} Mbit/s  rtt {:>5.2} ms  queue {:>2} ms  loss {:>4.2} %  x{:<2}  down {down:.3} up {up:.3}{}  \
                 two: larger {larger:.3}{} used {used:.3}  four CUBIC get {tcp:.3}{}",
                bed.mbps,
                bed.rtt_us as f64 / 1e3,
                bed.queue_ms,
                bed.loss_pct,
                bed.receivers,
                mark(misses[0]),
                mark(misses[1]),
                mark(misses[2]),
            );
        }
    }
    println!(
        "{} links; missed: change {}, two within 60:40 {}, CUBIC at least a quarter {}",
        beds.len(),
        missed[0],
        missed[1],
        missed[2]
    );
}
