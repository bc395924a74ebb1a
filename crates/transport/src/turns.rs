//! Who runs first when the host has fewer cores than threads that could run.
//!
//! A driver runs for microseconds at a time and is worth nothing late: a poll answered 10 ms late looks
//! like a queue on the path, a datagram sent 10 ms late leaves the link idle. Coding and hashing run for
//! milliseconds and may wait. So drivers ask for short turns, which the kernel gives at once (Linux 6.12 and
//! later), and workers for long ones, at a lower priority. Eight receivers and a sender on two cores at 100 Mbit/s
//! and 5 % loss then need 1.06 times the bound instead of 1.18 (`docs/results/sessions.md`).
//!
//! Needs no privilege; and a kernel that does not know it changes nothing: refusals are not errors. Not here:
//! real-time priorities, with which a fault of ours could stop a host.

#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

/// The turn that a driver asks for.
const DRIVER_TURN: Duration = Duration::from_micros(100);
/// The turn that a worker asks for: the longest that the kernel takes.
const WORKER_TURN: Duration = Duration::from_millis(100);
/// How much less a worker's claim is than that of the thread that started it. On a host whose cores are all taken
/// by others a worker still gets a third of what each of them has: beside four loops a thirteenth of the core, enough
/// to verify and store about 60 MB/s. With 10 it got a tenth, and a file was long received before it was stored.
const WORKER_NICE: i32 = 5;
/// The same of one whose work others wait for: they get two thirds of a core, and it what they leave.
const FEEDER_NICE: i32 = 3;

/// Makes the calling thread a driver's: woken on time (timer slack 1 ns; without it waits end 50 µs late) and
/// running at once.
pub fn take_short_turns() {
    let _ = nix::sys::prctl::set_timerslack(1);
    let _ = change(|attr| attr.sched_runtime = nanos(DRIVER_TURN));
}

/// Makes the calling thread a worker's: it gives way to drivers.
pub fn take_long_turns() {
    give_way(WORKER_NICE);
}

/// Makes the calling thread one that works ahead of others: it gives way to them, but not for long.
pub fn take_turns_between() {
    give_way(FEEDER_NICE);
}

fn give_way(nice: i32) {
    let _ = change(|attr| {
        // A batch thread interrupts nobody when it wakes.
        attr.sched_policy = libc::SCHED_BATCH as u32;
        attr.sched_nice = (attr.sched_nice + nice).min(19);
        attr.sched_runtime = nanos(WORKER_TURN);
    });
}

fn nanos(turn: Duration) -> u64 {
    u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads how the calling thread is scheduled, changes it and writes it back. Threads that somebody has given a
/// policy of their own are left alone.
fn change(how: impl FnOnce(&mut libc::sched_attr)) -> io::Result<()> {
    const THIS_THREAD: libc::pid_t = 0;
    const NO_FLAGS: libc::c_uint = 0;
    let len = size_of::<libc::sched_attr>();
    // SAFETY: all of its fields are integers.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let room = std::ptr::from_mut(&mut attr);
    // SAFETY: the kernel writes at most `len` bytes, which `attr` has, and keeps nothing.
    check(unsafe {
        libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, room, len as libc::c_uint, NO_FLAGS)
    })?;
    if attr.sched_policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    how(&mut attr);
    attr.size = u32::try_from(len).map_err(io::Error::other)?;
    attr.sched_flags = 0;
    // SAFETY: the kernel reads `size` bytes, which `attr` has, and keeps nothing.
    check(unsafe {
        libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, std::ptr::from_ref(&attr), NO_FLAGS)
    })
}

fn check(status: libc::c_long) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::{FEEDER_NICE, WORKER_NICE, take_long_turns, take_short_turns, take_turns_between};

    fn niceness() -> i32 {
        // SAFETY: reads a number.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn a_worker_is_nicer_and_a_driver_is_not() {
        // Threads of their own: a thread cannot take its niceness back.
        let run = |turns: fn()| {
            let thread = std::thread::spawn(move || {
                let before = niceness();
                turns();
                (before, niceness())
            });
            thread.join().unwrap()
        };
        // SAFETY: reads a number.
        let is_usual = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
        let turns: [(fn(), i32); 3] = [
            (take_short_turns, 0),
            (take_long_turns, WORKER_NICE),
            (take_turns_between, FEEDER_NICE),
        ];
        for (turns, nicer) in turns {
            let (before, after) = run(turns);
            let wanted = if is_usual { (before + nicer).min(19) } else { before };
            assert_eq!(after, wanted, "who has a policy of his own keeps it");
        }
    }
}
