//! Many runs at once, on all cores of this machine; what came of them in their order.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What `run` says of each of `0..count`.
pub(crate) fn each<T: Send>(count: usize, run: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let outcome = run(index);
                    done.lock().unwrap().insert(index, outcome);
                }
            });
        }
    });
    done.into_inner().unwrap().into_values().collect()
}
