//! A swarm of random sessions: `swarm [COUNT [FIRST]]`; `SEED=n` runs one, `TRACE=1` shows its rate control.
//! Exit status 1 when a seed fails.

mod each;

use downpour_sim::swarm;
use downpour_sim::world::World;

fn main() {
    if let Some(seed) = std::env::var("SEED").ok().and_then(|s| s.parse().ok()) {
        let mut config = swarm::world(seed);
        println!("{config:#?}");
        config.trace = std::env::var_os("TRACE").is_some();
        println!("{:#?}", World::run(config));
        println!("{:?}", swarm::run(seed).map(|_| "holds"));
        return;
    }
    let mut args = std::env::args().skip(1).filter_map(|a| a.parse::<u64>().ok());
    let count = args.next().unwrap_or(2_000);
    let first = args.next().unwrap_or(1);
    std::panic::set_hook(Box::new(|_| ()));
    let failed = each::each(count as usize, |index| {
        let (seed, begun) = (first + index as u64, std::time::Instant::now());
        let done = swarm::run(seed);
        if let Err(why) = &done {
            println!("SEED={seed}: {why}");
        }
        if begun.elapsed().as_secs() > 10 {
            println!("SEED={seed} took {:?}", begun.elapsed());
        }
        done.is_err()
    });
    let failed = failed.into_iter().filter(|failed| *failed).count();
    println!("{count} seeds from {first}: {failed} failed");
    std::process::exit(i32::from(failed > 0));
}
