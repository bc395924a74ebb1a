//! A rate that changes, two sessions on a link, TCP beside: one table.

use downpour_sim::stream::Bed;

fn main() {
    for rtt_us in [200, 10_000, 50_000] {
        for queue_ms in [5, 20, 50, 200] {
            for loss_pct in [0.0, 5.0] {
                let bed = Bed { mbps: 100, queue_ms, rtt_us, loss_pct, seed: 1, trace: false };
                let (down, up) = bed.change(20);
                let (larger, used) = bed.two();
                let (tcp, all) = bed.beside_tcp(4);
                println!(
                    "rtt {:>4.1} ms  queue {queue_ms:>3} ms  loss {loss_pct} %   100->20 used {down:.3} \
                     20->100 used {up:.3}   two: larger {larger:.3} used {used:.3}   four CUBIC get {tcp:.3}, \
                     used {all:.3}",
                    rtt_us as f64 / 1e3
                );
            }
        }
    }
}
