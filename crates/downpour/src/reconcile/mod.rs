//! Reconciliation: two catalogs are compared until nothing is missing, and the disk is compared with the catalog.
//!
//! | module | does |
//! | --- | --- |
//! | `ask` | what one catalog asks another, and how it answers |
//! | `compare` | the comparison, a machine without I/O |
//! | `run` | one run: compare, look for what is stuck, repair or ask |
//! | `repair` | what is done about each difference |
//! | `scrub` | the disk compared with the catalog |
//! | `report` | what was found and done; approval |
//! | `service`, `scrubbing` | every so often and when asked; routes |
//!
//! A mass deletion is not answered by a mass repair: above a threshold a run only asks.

mod ask;
mod compare;
mod repair;
pub mod report;
mod run;
pub mod scrub;
mod scrubbing;
mod service;

pub use ask::{
    Answer, Level, NAMES_MAX, NODES_MAX, Named, Packed, QUESTIONS_MAX, Question, Scope, Side,
    Stand, Stored, Sum,
};
pub use compare::{CANDIDATES_MAX, Compare, Compared, Holder, Nonsense, Step};
pub use report::{Finding, Kind, Report, Verdict};
pub use run::{Far, FarError, Order, RunError, run};
pub use service::{OnExtra, Reconcile, ReconcileSection, ReconcileWish, ReportList, Runs, part};
