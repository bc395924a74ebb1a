//! Real sites on this machine: the real program, started from folders that `downpour init` made.

mod campaign;
mod door;
mod harness;
mod life;
mod moving;
mod records;
mod siege;
mod spool;
