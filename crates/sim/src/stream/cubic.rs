//! A TCP flow with CUBIC (RFC 9438) as Linux has it, as far as a competitor for a queue needs: slow start, the cubic
//! window in whole datagrams with fast convergence and the Reno-friendly region, one reduction per round trip, one
//! acknowledgement for two datagrams, so that they leave in pairs. No time-outs (a loss is noticed when the
//! datagram's acknowledgement would have come).

use crate::link::{FRAME_LEN, Link};
use crate::rng::Rng;
use downpour_proto::{Duration, Timestamp};

const BETA: f64 = 0.7;
const C: f64 = 0.4;
const WINDOW_MIN: f64 = 2.0;
/// Hosts are late by up to so many microseconds: without it, whose datagrams leave the queue at the right moment
/// never finds it full.
const LATE_US: u64 = 200;

#[derive(Debug)]
pub(super) struct Cubic {
    rtt: Duration,
    rng: Rng,
    /// In datagrams; what is above a whole number is growth that is not yet used.
    window: f64,
    threshold: f64,
    window_max: f64,
    epoch: Option<Timestamp>,
    reduced_until: Timestamp,
    flight: u64,
    /// Arrived and not yet acknowledged.
    held: u64,
    srtt: f64,
    reno: f64,
    pub(super) delivered_bytes: u64,
}

impl Cubic {
    pub(super) fn new(rtt: Duration, rng: Rng) -> Self {
        Self {
            rtt,
            rng,
            window: 10.0,
            threshold: f64::MAX,
            window_max: 0.0,
            epoch: None,
            reduced_until: Timestamp::ZERO,
            flight: 0,
            held: 0,
            srtt: rtt.as_secs_f64(),
            reno: 0.0,
            delivered_bytes: 0,
        }
    }

    /// Sends one datagram if the window is open: when its fate is known, and which.
    pub(super) fn send(&mut self, now: Timestamp, link: &mut Link) -> Option<(Timestamp, bool)> {
        if self.flight >= self.window as u64 {
            return None;
        }
        self.flight += 1;
        let waits = link.queue_delay(now);
        let back = self.rtt + Duration::from_micros(self.rng.below(LATE_US));
        let fate = match link.send(now, FRAME_LEN) {
            Some(at) => (at + back, true),
            None => (now + waits + back, false),
        };
        self.srtt += 0.05 * (fate.0.since(now).as_secs_f64() - self.srtt);
        Some(fate)
    }

    pub(super) fn on_ack(&mut self, now: Timestamp, delivered: bool) {
        if !delivered {
            // The next one shows it, and what is held is acknowledged.
            self.flight -= 1 + core::mem::take(&mut self.held);
            if now >= self.reduced_until {
                self.reduced_until = now + Duration::from_secs_f64(self.srtt);
                let is_less = self.window < self.window_max;
                self.window_max = self.window * if is_less { (1.0 + BETA) / 2.0 } else { 1.0 };
                self.window = (self.window * BETA).floor().max(WINDOW_MIN);
                self.threshold = self.window;
                self.epoch = None;
            }
            return;
        }
        self.delivered_bytes += FRAME_LEN;
        self.held += 1;
        if self.held == 2 {
            self.held = 0;
            self.flight -= 2;
        }
        if self.window < self.threshold {
            self.window += 1.0;
        } else {
            self.grow(now);
        }
    }

    fn grow(&mut self, now: Timestamp) {
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.reno = self.window;
            self.window_max = self.window_max.max(self.window);
            now
        });
        let t = now.since(epoch).as_secs_f64();
        let k = (self.window_max * (1.0 - BETA) / C).cbrt();
        let target = C * (t + self.srtt - k).powi(3) + self.window_max;
        self.reno += 3.0 * (1.0 - BETA) / (1.0 + BETA) / self.window;
        let step = ((target - self.window) / self.window).clamp(0.0, 0.5);
        self.window = (self.window + step).max(self.reno);
    }
}
