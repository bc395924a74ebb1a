//! Every limit of the server, with its default.

use crate::control::api::{RECEIPT_LEN_MAX, WORD_LEN_MAX};
use std::time::Duration;

/// Bytes of a JSON body.
pub const BODY_LEN_MAX: usize = 1024 * 1024;
/// Bytes of a request's head. Hyper answers 431 to a longer one.
pub(super) const HEAD_LEN_MAX: usize = 16 * 1024;
/// Header lines in a request's head.
pub(super) const HEADERS_MAX: usize = 48;
/// Members of one session, those who left included.
pub(super) const MEMBERS_MAX: usize = 65_536;
/// Pieces of one pull between the reader and the socket.
pub(super) const PIECE_QUEUE_MAX: usize = 2;
/// Bytes of an answer that is given from memory as it is: it stays there until all of it is sent.
pub(super) const KEPT_LEN_MAX: u64 = 4 << 20;
/// Events that wait for one receiver. When more pile up its stream of events is ended: it listens anew, or is
/// dead.
pub(super) const EVENT_QUEUE_MAX: usize = 8192;

const _: () = assert!(2 * RECEIPT_LEN_MAX < BODY_LEN_MAX);
const _: () = assert!(2 * WORD_LEN_MAX < BODY_LEN_MAX);

/// What one server allows. Each field's default is what its comment says.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Connections at once: 1024. Each costs a file descriptor, and a receiver has up to six, a site's seven.
    pub connections_max: usize,
    /// Connections at once from one address: 512, because one machine may run many receivers.
    pub connections_per_peer_max: usize,
    /// From the TCP connection to the end of the TLS handshake: 5 s.
    pub handshake_time_max: Duration,
    /// From one answer to the end of the next request's head, thus also how long a connection may
    /// idle: 30 s.
    pub head_time_max: Duration,
    /// From a request's head to the end of its body: 30 s.
    pub body_time_max: Duration,
    /// How long a client may take nothing of what is sent to it: 20 s.
    pub stall_time_max: Duration,
    /// How long a receiver may be silent, on its connection of events, before it counts as dead: 15 s, for on a
    /// full link TCP may lose the same segment several times.
    pub silence_time_max: Duration,
    /// Reads and encodings of the handler at once: 4 of data, as many of the manifest, a thread each.
    pub reads_max: usize,
    /// Answers with repair symbols at once: 32 of data, as many of the manifest, up to 1.5 MB each.
    pub repairs_max: usize,
    /// Between two pings: 1 s.
    pub ping_every: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            connections_per_peer_max: 512,
            handshake_time_max: Duration::from_secs(5),
            head_time_max: Duration::from_secs(30),
            body_time_max: Duration::from_secs(30),
            stall_time_max: Duration::from_secs(20),
            silence_time_max: Duration::from_secs(15),
            reads_max: 4,
            repairs_max: 32,
            ping_every: Duration::from_secs(1),
        }
    }
}
