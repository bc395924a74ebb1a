//! A swarm of random sessions: `swarm [COUNT [FIRST]]`; `SEED=n` runs one, `TRACE=1` shows its rate control.
//! Exit status 1 when a seed fails.

use downpour_sim::swarm;
use downpour_sim::world::World;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

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
    let next = AtomicU64::new(first);
    let failed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    let begun = std::time::Instant::now();
                    if let Err(why) = swarm::run(seed) {
                        println!("SEED={seed}: {why}");
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(seed);
                    }
                    if begun.elapsed().as_secs() > 10 {
                        println!("SEED={seed} took {:?}", begun.elapsed());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{count} seeds from {first}: {} failed", failed.len());
    std::process::exit(i32::from(!failed.is_empty()));
}
