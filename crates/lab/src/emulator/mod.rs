//! Links with delay, made of TAP devices: this kernel has no netem.
//!
//! ```text
//! kernel ─▶ tap A ─read─▶ pipe (rate, queue, loss, delay) ─▶ calendar ─write when due─▶ tap B ─▶ kernel
//! ```
//!
//! 1. The lab starts one emulator (`lab emulator serve`) for all emulated links of a network, in the bridge's
//!    namespace, at real-time priority, and tells it the links as one line of JSON. It makes the TAP devices
//!    and answers `ready`; the lab moves the far end of each link into its machine.
//! 2. Further lines change the shape of links while they carry frames.
//! 3. When its standard input closes it prints what it did and ends.
//!
//! What it drops without being asked is counted: frames that a full TAP queue refused (the kernel counts
//! them at the interface, see `network`), writes that failed, frames beyond [`HELD_MAX`].
//!
//! - `pipe`: what happens to a frame. No clock, no sockets.
//! - `tap`: the device.
//! - `serve`: the loop.
//! - `check`: how well it keeps to what was asked.

pub(crate) mod check;
pub(crate) mod pipe;
pub(crate) mod serve;
mod tap;

use pipe::{Fates, Shape};
use serde::{Deserialize, Serialize};

/// Frames under way in all links together: 500 Mbit/s for 200 ms are 8,300.
pub(crate) const HELD_MAX: usize = 400_000;
/// Frames that wait in a TAP device until they are read.
pub(crate) const TAP_QUEUE: u32 = 20_000;

/// One link to emulate: two TAP devices and what happens between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wire {
    /// Name of the device that a machine gets.
    pub(crate) near: String,
    /// Name of the device at the bridge.
    pub(crate) far: String,
    /// From the machine.
    pub(crate) up: Shape,
    /// To the machine.
    pub(crate) down: Shape,
}

/// What the emulator is told, a line of JSON each.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    /// The first line: all links.
    Build {
        /// They keep these numbers.
        wires: Vec<Wire>,
        /// Of all chance.
        seed: u64,
    },
    /// From now on this link is another.
    Reshape {
        /// Which.
        wire: usize,
        /// From the machine.
        up: Shape,
        /// To the machine.
        down: Shape,
    },
}

/// What the emulator did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Account {
    /// From and to the machine, for each link.
    pub(crate) wires: Vec<(Fates, Fates)>,
    /// Frames written.
    pub(crate) delivered: u64,
    /// Frames that it lost by itself: writes that failed, and too many under way.
    pub(crate) own_drops: u64,
    /// Time from when a frame was due until it was written, in the mean, us. It is due by when it was read: what it waited for that is
    /// not in this.
    pub(crate) late_mean_us: f64,
    /// The same, of the latest in a hundred.
    pub(crate) late_p99_us: f64,
}
