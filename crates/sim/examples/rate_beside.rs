//! `tfmcc` and `background` beside four CUBIC flows, beside one, and alone: one line for each link, and a
//! summary. Links without loss of their own: those of `rate_dynamics`, and 40 at random.

use downpour_sim::stream::{Bed, Kind};

fn main() {
    let mut beds: Vec<Bed> = Bed::all().into_iter().filter(|bed| bed.loss_pct <= 0.0).collect();
    beds.extend((1..=40).map(Bed::random).map(|bed| Bed { loss_pct: 0.0, ..bed }));
    for controller in [Kind::Tfmcc, Kind::Background] {
        let (mut hold_four, mut hold_one, mut used) = (0, 0, 0.0);
        for bed in &beds {
            let bed = Bed { controller, ..*bed };
            let (four, one, alone) =
                (bed.beside_tcp(4).0, bed.beside_tcp(1).0, bed.beside_tcp(0).1);
            let holds = |tcp: f64, flows: f64| match controller {
                // Its share over that of one flow.
                Kind::Tfmcc => (0.5..=2.0).contains(&((1.0 - tcp) / (tcp / flows))),
                _ => tcp >= 0.95,
            };
            hold_four += u32::from(holds(four, 4.0));
            hold_one += u32::from(holds(one, 1.0));
            used += alone;
            println!(
                "{controller:?}  {:>3} Mbit/s  rtt {:>5.2} ms  queue {:>2} ms  x{:<2}  four CUBIC get {four:.3}  one {one:.3}  \
                 alone it uses {alone:.3}",
                bed.mbps,
                bed.rtt_us as f64 / 1e3,
                bed.queue_ms,
                bed.receivers,
            );
        }
        println!(
            "{controller:?}: holds beside four {hold_four}, beside one {hold_one} of {}; alone it uses {:.3}",
            beds.len(),
            used / beds.len() as f64
        );
    }
}
