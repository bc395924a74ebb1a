//! Plans: what they are told of this machine, and how they are shown.
//!
//! What decides is `proto::transfer::plan`. For operators: `docs/tuner.md`.
//!
//! | file | does |
//! | --- | --- |
//! | `host` | this machine's limits |
//! | `sheet` | a plan as it is printed, also for other movers |
//! | `settings` | what this machine's settings should be, and why |

mod host;
mod settings;
mod sheet;

pub use host::host;
pub use settings::{Link, Setting, limits, settings, sysctl, text};
pub use sheet::{Sheet, Values};
