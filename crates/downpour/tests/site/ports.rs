//! Ports for what a test starts a while later, or starts again after it was killed.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Below those that the kernel gives to outgoing connections (32768 and up, `ip_local_port_range`), so that no connection of another
/// test sits on the port meanwhile; no fixed port of a test is here.
const FIRST: usize = 20_000;
const COUNT: usize = 8_000;
/// How far the first ports of two processes that test at the same time are from each other.
const STRIDE: usize = 251;

/// A TCP port where nobody listens; no other call in this process gives the same one.
pub(crate) fn port() -> u16 {
    static GIVEN: AtomicUsize = AtomicUsize::new(0);
    let begin = std::process::id() as usize * STRIDE;
    for _ in 0..COUNT {
        let turn = begin + GIVEN.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(FIRST + turn % COUNT).expect("below 28,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free from {FIRST} up");
}
