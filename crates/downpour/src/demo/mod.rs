//! `downpour demo`: shows what the program does, on one machine, without root.

pub mod tcp;
pub mod tree;
