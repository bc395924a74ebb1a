//! Many files at once, and a spool that fills.

use crate::bench::{Bench, LONG};
use crate::skipped::not_here;
use downpour::spool::Level;
use std::fs;
use std::path::PathBuf;

/// Each is two events at least, and the kernel keeps 16,384.
const MANY: usize = 9_000;

#[test]
fn events_that_were_lost_are_made_up_for() {
    let mut bench = Bench::new("rescan = '1h'", "after = 'delete'");
    bench.tick(0.0);
    fs::create_dir(bench.path("in")).unwrap();
    bench.tick(0.5);
    for number in 0..MANY {
        fs::write(bench.path(&format!("in/{number}")), number.to_string()).unwrap();
    }
    bench.tick(LONG);
    let status = bench.spool().status();
    assert_eq!((status.booked, status.taken_in), (MANY, MANY as u64));
    if status.overflows == 0 {
        not_here("events_that_were_lost_are_made_up_for", "the kernel lost none");
    }
    assert_eq!(bench.send_all(), MANY);
    bench.tick(LONG);
    assert_eq!(bench.spool().status().booked, 0, "{}", bench.said());
    assert_eq!(fs::read_dir(bench.path("in")).unwrap().count(), 0);
}

#[test]
fn producers_see_that_the_spool_is_full() {
    let mut bench = Bench::new("size_max = '10kB'\nfull = '90%'", "after = 'delete'");
    bench.tick(0.0);
    if bench.spool().status().occupancy.level != Level::Room {
        return not_here("producers_see_that_the_spool_is_full", "this disk is full itself");
    }
    bench.write("a", &"x".repeat(8_500));
    bench.tick(0.5);
    assert_eq!(bench.spool().status().occupancy.level, Level::Alarm, "{}", bench.said());
    bench.write("b", &"x".repeat(500));
    bench.tick(LONG);
    assert_eq!(bench.spool().status().occupancy.level, Level::Full);
    assert!(bench.path(".spool-full").exists());
    bench.send_all();
    bench.tick(LONG);
    assert_eq!(bench.spool().status().occupancy.bytes, 0, "{}", bench.said());
    assert!(!bench.path(".spool-full").exists());
}

#[test]
fn folders_that_cannot_be_watched_are_told_of_until_they_can() {
    // Below a spool of a long name the path is too long for the kernel.
    let mut bench = Bench::new("rescan = '10s'", "");
    bench.stop();
    let long = "x".repeat(200);
    let deep: PathBuf = std::iter::repeat_n(&*long, 20).collect();
    fs::create_dir_all(bench.path(&format!("a/{}", deep.display()))).unwrap();
    fs::rename(bench.path("a"), bench.path(&long)).unwrap();
    bench.begin();
    let told = |bench: &mut Bench| {
        let odd = bench.spool().status().odd;
        odd.iter().any(|text| text.contains("seen by rescans only"))
    };
    assert!(told(&mut bench), "{}", bench.said());
    fs::rename(bench.path(&long), bench.path("a")).unwrap();
    bench.tick(LONG);
    assert!(!told(&mut bench), "{}", bench.said());
}
