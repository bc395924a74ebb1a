//! The spool: folders whose files are taken in, sent by rules, and looked after until their receipt.
//!
//! | module | does |
//! | --- | --- |
//! | `section`, `template`, `rule` | what the configuration says; which rule takes a file, and where to |
//! | `engine` | one spool at work: looks, and keeps the catalog up to what is there; with `steps` (to the queue) and `ends` (after it) |
//! | `settle`, `occupancy` | pure: is a file complete; how full is the spool |
//! | `root`, `watch` | the folder; hints of the kernel where to look |
//! | `read`, `digests` | one reading pass for all digests, on threads of their own |
//! | `aside`, `leave` | quarantine; moving and removing after the receipt |
//! | `arrivals` | commands for files that arrived from other sites |
//! | `adopt` | files that lie here already |
//! | `service` | the service `spool`, and what can be asked of it |
//! | `book` | the catalog as the spool uses it |
//!
//! Not here: sending, retries of sending, receipts: whoever takes from the queue does that.

mod adopt;
mod arrivals;
mod aside;
mod book;
mod digests;
mod ends;
mod engine;
mod leave;
mod occupancy;
mod read;
mod root;
mod rule;
mod section;
mod service;
mod settle;
mod steps;
mod template;
mod watch;

pub use adopt::{Adopted, Adoption, SumList, adopt, look_first, read_list};
pub use arrivals::{Arrivals, Failing};
pub use aside::{SetApart, lies_aside};
pub use book::SpoolError;
pub use digests::{Digesting, read_sum};
pub(crate) use digests::{in_words, of_words};
pub use engine::{Notice, Said, Spool, SpoolStatus};
pub use occupancy::{Level, Occupancy};
pub use root::Now;
pub use rule::Rules;
pub use section::{After, Complete, Required, RuleSection, SpoolSection, Sums, Versions, check};
pub use service::{InQuarantine, Meant, Quarantine, SpoolService, Spools, part};
pub use template::{Facts, Template};
