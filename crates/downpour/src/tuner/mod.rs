//! The tuner: what is known of paths, and the plans that follow from it. For operators: `docs/tuner.md`.

pub mod plan;
