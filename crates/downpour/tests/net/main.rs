//! The real program on a real kernel network, in namespaces. Needs root; without, each test says
//! `skipped: <name>: <why>`.

mod network;
mod network_itself;
