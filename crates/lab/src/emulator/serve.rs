//! The emulator's loop: read what came, write what is due, sleep until the next.
//!
//! One thread for all links. At real-time priority a sleep ends some 20 us late; it does not spin, because
//! two cores have to carry the programs under test as well.

use super::pipe::{Carries, Nanos, Pipe};
use super::tap::Tap;
use super::{Account, HELD_MAX, Order};
use crate::say;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// Frames read from one device before the others, and what is due, have their turn.
const BATCH: usize = 64;
/// Longest frame: jumbo, with its header.
const FRAME_BYTES: usize = 9216;
/// Longest sleep, so that orders are seen.
const SLEEP_MAX: Nanos = 20_000_000;
/// Lateness is counted in steps of 1 us up to here, then as this.
pub(crate) const LATE_STEPS: usize = 20_000;

/// EIO.
const DEVICE_IS_DOWN: i32 = 5;

/// One end of a link: what comes in here goes through the pipe to the other.
struct End {
    tap: Tap,
    pipe: Pipe,
}

/// A frame under way.
struct Frame {
    to: usize,
    bytes: Vec<u8>,
}

struct Emulator {
    /// The two ends of link i are 2i (near) and 2i + 1 (far).
    ends: Vec<End>,
    /// When each frame is due; the count keeps frames of one instant in order.
    calendar: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    count: u64,
    held: Vec<Frame>,
    free: Vec<usize>,
    account: Account,
    lateness: Vec<u64>,
    late_sum_us: f64,
}

/// Serves until standard input closes.
pub(crate) fn serve() -> io::Result<()> {
    let mut first = String::new();
    io::stdin().read_line(&mut first)?;
    let Order::Build { wires, seed } = serde_json::from_str(&first)? else {
        return Err(io::Error::other("the first order must be to build"));
    };
    let mut ends = Vec::new();
    let ways = wires.into_iter().flat_map(|wire| [(wire.near, wire.up), (wire.far, wire.down)]);
    for ((name, shape), seed) in ways.zip(seeds(seed)) {
        ends.push(End { tap: Tap::new(&name)?, pipe: Pipe::new(shape, seed) });
    }
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str::<Order>(&line) else { break };
            if sender.send(order).is_err() {
                break;
            }
        }
    });
    // Who is told may have been killed: then there are no more orders.
    say("ready");
    let account = Emulator::new(ends).run(&orders)?;
    say(serde_json::to_string(&account)?);
    Ok(())
}

impl Emulator {
    fn new(ends: Vec<End>) -> Self {
        Self {
            ends,
            calendar: BinaryHeap::new(),
            count: 0,
            held: Vec::new(),
            free: Vec::new(),
            account: Account::default(),
            lateness: vec![0; LATE_STEPS + 1],
            late_sum_us: 0.0,
        }
    }

    fn run(mut self, orders: &Receiver<Order>) -> io::Result<Account> {
        let mut buffer = vec![0; FRAME_BYTES];
        loop {
            match orders.try_recv() {
                Ok(order) => self.obey(order),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(self.account()),
            }
            let ready = self.sleep()?;
            for end in ready {
                for _ in 0..BATCH {
                    let Some(len) = self.ends[end].tap.read(&mut buffer)? else { break };
                    self.take(end, &buffer[..len]);
                }
            }
            self.deliver();
        }
    }

    fn obey(&mut self, order: Order) {
        if let Order::Reshape { wire, up, down } = order
            && let Some([near, far]) = self.ends.get_mut(2 * wire..2 * wire + 2)
        {
            near.pipe.reshape(up);
            far.pipe.reshape(down);
        }
    }

    /// Sleeps until something is due or comes in; gives the ends at which something did.
    fn sleep(&self) -> io::Result<Vec<usize>> {
        let due = self.calendar.peek().map(|Reverse((due, ..))| *due);
        let wait = due.map_or(SLEEP_MAX, |due| due.saturating_sub(now()).min(SLEEP_MAX));
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait as i64 };
        let mut fds: Vec<_> =
            self.ends.iter().map(|end| PollFd::new(&end.tap, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ready = fds.iter().enumerate().filter(|(_, fd)| fd.revents().contains(PollFlags::IN));
        Ok(ready.map(|(end, _)| end).collect())
    }

    /// A frame came in at `end`.
    fn take(&mut self, end: usize, bytes: &[u8]) {
        let pipe = &mut self.ends[end].pipe;
        let Some(due) = pipe.admit(now(), bytes.len(), carries(bytes)) else { return };
        if self.calendar.len() >= HELD_MAX {
            self.account.own_drops += 1;
            return;
        }
        let to = end ^ 1;
        let slot = match self.free.pop() {
            Some(slot) => {
                let frame = &mut self.held[slot];
                frame.to = to;
                frame.bytes.clear();
                frame.bytes.extend_from_slice(bytes);
                slot
            }
            None => {
                self.held.push(Frame { to, bytes: bytes.to_vec() });
                self.held.len() - 1
            }
        };
        self.calendar.push(Reverse((due, self.count, slot)));
        self.count += 1;
    }

    /// Writes what is due.
    fn deliver(&mut self) {
        while let Some(Reverse((due, _, slot))) = self.calendar.peek().copied() {
            let late = match now().checked_sub(due) {
                Some(late) => late,
                None => break,
            };
            self.calendar.pop();
            let frame = &self.held[slot];
            match self.ends[frame.to].tap.write(&frame.bytes) {
                Ok(()) => self.account.delivered += 1,
                // The device is down: no machine is there yet, so no frame is missed.
                Err(e) if e.raw_os_error() == Some(DEVICE_IS_DOWN) => {}
                Err(_) => self.account.own_drops += 1,
            }
            self.free.push(slot);
            self.late_sum_us += late as f64 / 1e3;
            self.lateness[(late as usize / 1000).min(LATE_STEPS)] += 1;
        }
    }

    fn account(mut self) -> Account {
        let total: u64 = self.lateness.iter().sum();
        self.account.late_mean_us = self.late_sum_us / total.max(1) as f64;
        let mut rest = total / 100;
        let latest = self.lateness.iter().enumerate().rev().find(|(_, count)| {
            let found = rest < **count;
            rest = rest.saturating_sub(**count);
            found
        });
        self.account.late_p99_us = latest.map_or(0.0, |(us, _)| us as f64);
        let fates: Vec<_> = self.ends.iter().map(|end| end.pipe.fates()).collect();
        self.account.wires = fates.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        self.account
    }
}

/// The seeds of all ways. They are drawn: generators whose seeds are near each other draw alike, for as long as each has drawn as often
/// as the other, and receivers would lose the same of what goes to all.
fn seeds(seed: u64) -> impl Iterator<Item = u64> {
    let mut rng = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(move || rng.u64(..))
}

/// What an Ethernet frame carries.
fn carries(frame: &[u8]) -> Carries {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    let protocol = match frame.get(12..14) {
        Some([0x08, 0x00]) => frame.get(23),
        Some([0x86, 0xdd]) => frame.get(20),
        _ => None,
    };
    match protocol {
        Some(&TCP | &UDP) => Carries::Data,
        _ => Carries::Upkeep,
    }
}

/// The monotonic clock, which all namespaces share.
pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as Nanos * 1_000_000_000 + time.tv_nsec as Nanos
}

#[cfg(test)]
mod tests {
    use super::{Carries, Pipe, seeds};
    use crate::emulator::pipe::Shape;
    use std::collections::HashSet;

    #[test]
    fn repeats_wires_and_ways_have_seeds_of_their_own() {
        let ways = (1..=3).flat_map(|repeat| seeds(repeat).take(17 * 2));
        assert_eq!(ways.collect::<HashSet<_>>().len(), 3 * 17 * 2);
    }

    #[test]
    fn receivers_lose_independently_of_each_other() {
        for repeat in 1..=3 {
            let lossy = |seed| Pipe::new(Shape { loss: 0.05, ..Shape::default() }, seed);
            let mut ways: Vec<Pipe> = seeds(repeat).take(6).map(lossy).collect();
            let mut lost = |way: usize| ways[way].admit(0, 1514, Carries::Data).is_none();
            // Each has its turn with every frame.
            let both = (0..400_000).filter(|_| lost(3) & lost(5)).count();
            assert!((900..1100).contains(&both), "{repeat}: {both} of 1000");
        }
    }
}
