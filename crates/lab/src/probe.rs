//! Numbered datagrams with the time at which they left, to see what a link does to them.
//!
//! All namespaces share one monotonic clock, so the time on the way is known to the microsecond.

use crate::emulator::pipe::Nanos;
use crate::emulator::serve::now;
use serde::{Deserialize, Serialize};
use std::io::{self, Write as _};
use std::net::UdpSocket;
use std::time::Duration;

/// Where probes go.
pub(crate) const PORT: u16 = 7777;
/// The number of the datagram that ends a probe, sent many times because some are lost.
const END: u64 = u64::MAX;
const ENDS: usize = 50;
/// Goes ahead of all others, so that the machines know each other's Ethernet addresses.
const GREETING: u64 = END - 1;
const GREETING_TIME: Duration = Duration::from_secs(1);
/// How long a probe waits for the next datagram.
const SILENCE: Duration = Duration::from_secs(10);
const BUFFER_BYTES: usize = 64 << 20;

/// What arrived.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Arrivals {
    pub(crate) received: u64,
    /// Datagrams that came after one with a higher number.
    pub(crate) overtaken: u64,
    /// Gaps in the numbers: losses in a row count once.
    pub(crate) gaps: u64,
    /// Time on the way: shortest, median, of the longest in a hundred, longest; us.
    pub(crate) delay_us: [f64; 4],
    /// Payload bytes after the first, over the time that they took.
    pub(crate) rate_bps: f64,
}

/// Sends `count` datagrams of `bytes`, one each `interval`.
pub(crate) fn send(to: &str, count: u64, bytes: usize, interval: Duration) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((to, PORT))?;
    let mut datagram = vec![0; bytes.max(16)];
    let mut send = |number: u64, at: Nanos| {
        if let Some(early) = at.checked_sub(now()) {
            std::thread::sleep(Duration::from_nanos(early));
        }
        datagram[..8].copy_from_slice(&number.to_le_bytes());
        datagram[8..16].copy_from_slice(&now().to_le_bytes());
        // Full queues are among what is probed.
        let _ = socket.send(&datagram);
    };
    send(GREETING, 0);
    std::thread::sleep(GREETING_TIME);
    let (start, interval) = (now(), interval.as_nanos() as Nanos);
    (0..count).for_each(|number| send(number, start + number * interval));
    let end = start + count * interval + 100_000_000;
    (0..ENDS as u64).for_each(|i| send(END, end + i * 10_000_000));
    Ok(())
}

/// Listens until the end, or silence; prints what arrived.
pub(crate) fn receive() -> io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", PORT))?;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES)?;
    socket.set_read_timeout(Some(SILENCE))?;
    println!("ready");
    io::stdout().flush()?;
    let mut seen = Seen::default();
    let mut buffer = [0; 65536];
    while let Ok(len) = socket.recv(&mut buffer) {
        let (number, left) = (word(&buffer[..8]), word(&buffer[8..16]));
        if number == END {
            break;
        }
        if number != GREETING {
            seen.add(number, left, now(), len);
        }
    }
    println!("{}", serde_json::to_string(&seen.arrivals())?);
    Ok(())
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

#[derive(Default)]
struct Seen {
    delays: Vec<Nanos>,
    numbers: Vec<u64>,
    first: Nanos,
    last: Nanos,
    bytes: usize,
}

impl Seen {
    fn add(&mut self, number: u64, left: Nanos, arrived: Nanos, bytes: usize) {
        if self.numbers.is_empty() {
            self.first = arrived;
        } else {
            self.bytes += bytes;
        }
        self.last = arrived;
        self.numbers.push(number);
        self.delays.push(arrived.saturating_sub(left));
    }

    fn arrivals(mut self) -> Arrivals {
        let mut highest = 0;
        let mut overtaken = 0;
        for number in &self.numbers {
            overtaken += u64::from(*number < highest);
            highest = highest.max(*number);
        }
        self.numbers.sort_unstable();
        let gaps = self.numbers.windows(2).filter(|pair| pair[1] > pair[0] + 1).count();
        self.delays.sort_unstable();
        let quantile = |share: f64| {
            let last = self.delays.len().saturating_sub(1);
            let index = (last as f64 * share).round() as usize;
            self.delays.get(index).map_or(0.0, |ns| *ns as f64 / 1e3)
        };
        let seconds = (self.last - self.first) as f64 / 1e9;
        Arrivals {
            received: self.numbers.len() as u64,
            overtaken,
            gaps: gaps as u64,
            delay_us: [0.0, 0.5, 0.99, 1.0].map(quantile),
            rate_bps: if seconds > 0.0 { self.bytes as f64 * 8.0 / seconds } else { 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Seen;

    #[test]
    fn gaps_overtakers_delays_and_rate_are_counted() {
        let mut seen = Seen::default();
        for (number, left, arrived) in
            [(0, 0, 1_000), (1, 1_000, 3_000), (5, 2_000, 5_000), (4, 2_000, 6_000), (9, 0, 9_000)]
        {
            seen.add(number, left, arrived, 1000);
        }
        let arrivals = seen.arrivals();
        assert_eq!((arrivals.received, arrivals.overtaken, arrivals.gaps), (5, 1, 2));
        assert_eq!(arrivals.delay_us, [1.0, 3.0, 9.0, 9.0]);
        assert_eq!(arrivals.rate_bps, 4000.0 * 8.0 / 8e-6);
    }
}
