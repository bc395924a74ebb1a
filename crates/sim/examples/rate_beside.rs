//! `tfmcc` and `background` beside four CUBIC flows, beside one, and alone: one line for each link, and a
//! summary. Links without loss of their own: those of `rate_dynamics`, and 40 at random.
//! `rate_beside [tfmcc|background] [random COUNT [FIRST]]`: one of them only; links at random only.
//!
//! Where TCP alone leaves a part of the link idle, its share of all is not what the session takes from it; so what it gets
//! stands here also as a share of what it has alone, on the same link in the same minute.

use downpour_sim::stream::{Bed, Kind};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|a| a == word);
    let random = |from: u64, count: u64| {
        (from..from + count).map(Bed::random).map(|bed| Bed { loss_pct: 0.0, ..bed })
    };
    let mut beds: Vec<Bed> = Bed::all().into_iter().filter(|bed| bed.loss_pct <= 0.0).collect();
    match args.iter().position(|a| a == "random") {
        Some(at) => {
            let number = |i: usize| args.get(at + i).and_then(|a| a.parse::<u64>().ok());
            beds = random(number(2).unwrap_or(1), number(1).unwrap_or(40)).collect();
        }
        None => beds.extend(random(1, 40)),
    }
    for (name, controller) in [("tfmcc", Kind::Tfmcc), ("background", Kind::Background)] {
        if has(name) || !has("tfmcc") && !has("background") {
            judge(&beds, controller);
        }
    }
}

fn judge(beds: &[Bed], controller: Kind) {
    // By the share of all, and by what it has alone; beside four and beside one.
    let (mut of_all, mut of_alone, mut used) = ([0; 2], [0; 2], 0.0);
    for bed in beds {
        let bed = Bed { controller, ..*bed };
        let alone = bed.beside_tcp(0).used;
        used += alone;
        print!(
            "{controller:?}  {:>3} Mbit/s  rtt {:>5.2} ms  queue {:>2} ms  x{:<2}",
            bed.mbps,
            bed.rtt_us as f64 / 1e3,
            bed.queue_ms,
            bed.receivers,
        );
        for (index, (name, flows)) in [("four CUBIC get", 4), ("one", 1)].into_iter().enumerate() {
            let beside = bed.beside_tcp(flows);
            let kept = beside.tcp / bed.tcp_alone(flows);
            let holds = holds(controller, flows, beside.tcp_of_all);
            of_all[index] += u32::from(holds);
            of_alone[index] += u32::from(kept >= LEFT);
            let mark = if holds { ' ' } else { '!' };
            print!("  {name} {:.3}{mark} of all, {kept:.3} of alone", beside.tcp_of_all);
        }
        println!("  alone it uses {alone:.3}");
    }
    println!(
        "{controller:?}: of {}: holds beside four {}, beside one {}; TCP keeps {LEFT} of what it has alone: {}, {}; alone it uses {:.3}",
        beds.len(),
        of_all[0],
        of_all[1],
        of_alone[0],
        of_alone[1],
        used / beds.len() as f64
    );
}

/// What of all, or of what it has alone, `background` is to leave to TCP.
const LEFT: f64 = 0.95;

/// Whether this share of all that `flows` CUBIC flows get is what the controller is to leave them.
fn holds(controller: Kind, flows: usize, tcp: f64) -> bool {
    match controller {
        // Its share over that of one flow.
        Kind::Tfmcc => (0.5..=2.0).contains(&((1.0 - tcp) / (tcp / flows as f64))),
        _ => tcp >= LEFT,
    }
}
