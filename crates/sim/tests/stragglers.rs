//! One receiver in trouble costs the others little, and completes.

use downpour_proto::Duration;
use downpour_sim::stragglers::{Fates, Scene, TROUBLES, Trouble};

fn run(trouble: Trouble) -> Fates {
    let rtt = Duration::from_micros(200);
    Scene { receivers: 16, mbps: 20, rtt, mib: 64, loss: 0.0, trouble, seed: 4, trace: false }.run()
}

#[test]
fn one_in_trouble_costs_fifteen_little() {
    let alone = run(Trouble::None).others.as_secs_f64();
    for trouble in TROUBLES {
        let fates = run(trouble);
        let ratio = fates.others.as_secs_f64() / alone;
        assert!(ratio < 1.05, "{trouble:?}: {ratio:.3} times as long; {fates}");
        assert!(fates.troubled.is_some(), "{trouble:?}: {fates}");
        // What it alone lacks is pulled, not repaired for all.
        assert!(fates.outcome.overhead() < 1.02, "{trouble:?}: {fates}");
    }
}
