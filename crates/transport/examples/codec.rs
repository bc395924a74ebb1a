//! How fast the erasure codes are here: `cargo run --release -p downpour-transport --example codec`.
//!
//! One thread; a loop each of blocks of k symbols of 1448 bytes, of which 5 % (at least one) are lost; the median of what one took, and
//! what the first took, tables and memory included.

use downpour_proto::Code;
use downpour_transport::{Codec, SymbolSet};
use std::time::{Duration, Instant};

const SYMBOL_LEN: usize = 1448;

fn main() {
    println!("code           k  lost   make: first    then   rebuild: first    then, us");
    for (code, k) in [
        (Code::ReedSolomon, 8),
        (Code::ReedSolomon, 64),
        (Code::ReedSolomon, 256),
        (Code::ReedSolomon, 1024),
        (Code::Cauchy, 64),
    ] {
        let lost = (k / 20).max(1);
        let block: Vec<u8> = (0..usize::from(k) * SYMBOL_LEN).map(|i| (i * 7 / 3) as u8).collect();
        let mut repair = vec![0; usize::from(lost) * SYMBOL_LEN];
        let mut encoder = Codec::new(code);
        let made = times(|| {
            encoder.encode(&block, SYMBOL_LEN, 0..lost, &mut repair).expect("a block");
        });
        let (mut decoder, mut present) = (Codec::new(code), SymbolSet::EMPTY);
        (0..k).filter(|i| i % 20 != 7 || i / 20 >= lost).for_each(|i| {
            present.insert(i);
        });
        let came: Vec<(u16, &[u8])> = (0..lost).zip(repair.chunks(SYMBOL_LEN)).collect();
        let mut holes = block.clone();
        let rebuilt = times(|| {
            decoder.decode(&mut holes, SYMBOL_LEN, &present, &came).expect("enough symbols");
        });
        assert!(holes == block);
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        println!(
            "{:<12} {k:>4} {lost:>5} {:>13.0} {:>7.1} {:>16.0} {:>7.1}",
            format!("{code:?}"),
            us(made.0),
            us(made.1),
            us(rebuilt.0),
            us(rebuilt.1)
        );
    }
}

/// The first time, and the median of two hundred more.
fn times(mut work: impl FnMut()) -> (Duration, Duration) {
    let mut once = || {
        let begun = Instant::now();
        work();
        begun.elapsed()
    };
    let first = once();
    let mut all: Vec<Duration> = (0..200).map(|_| once()).collect();
    all.sort();
    (first, all[all.len() / 2])
}
