//! Control and bulk over HTTPS: the sender serves, receivers ask.
//!
//! HTTP/1.1 over TLS 1.3 with both keys pinned or told (`identity::tls`), so that curl is a working client.
//! One [`ControlServer`] serves one session, which stands behind the [`SessionHandler`] trait. A receiver has
//! one connection for requests, one for the stream of events, whose life is the sign of both sides' life,
//! and a few for pulls.
//!
//! | file | what |
//! | --- | --- |
//! | `api` | the JSON bodies |
//! | `error` | the codes of refusals |
//! | `budget` | the rate that all pulls share |
//! | `server/` | listener, limits, routes, byte ranges, event streams |
//! | `client/` | connections, requests, events |
//!
//! Deliberately absent: HTTP/2, redirects, cookies, compression, names in certificates.

use socket2::SockRef;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::TcpStream;

mod api;
mod budget;
mod client;
mod error;
mod server;
mod text;

pub use api::{
    BadReceipt, BlockRange, DataPath, Event, FEEDBACK_LABEL, Follows, HAVE_RANGES_MAX, HaveRequest,
    InstanceId, JoinReply, JoinRequest, LeaveRequest, MANIFEST_SYMBOLS_MAX, NAME_LEN_MAX,
    ObjectFailure, PROTOCOL_VERSION, REASON_LEN_MAX, RECEIPT_LEN_MAX, RECEIVER_HEADER,
    ReadyRequest, Receipt, SESSION_HEADER, SessionId, SignedReceipt, Token, WORD_LEN_MAX, Word,
};
pub use budget::{PIECE_LEN_MAX, PullBudget};
pub use client::{
    Answer, AttemptError, Bulk, CallError, Caller, CallerSetup, ClientLimits, ClientSetup,
    ClockOffset, ConnectError, ControlClient, EventStream, EventsEnd, Head, JoinError, Joined,
    Pull, PullError, RequestError,
};
pub(crate) use client::{Line, silent};
pub use error::{ApiError, ErrorCode, turns_text};
pub use server::{
    Admitted, BODY_LEN_MAX, BindError, Conn, Connections, ControlServer, Endpoint, EventSender,
    Extent, Member, NotListening, ServerLimits, ServerSetup, SessionHandler, Uplink, Visitor,
    listener,
};
pub use text::{decode as decode_base64url, encode as encode_base64url};

/// How long acknowledgements are held back at most; and what a lost piece of an answer costs at least, besides the round
/// trip. Where the other side holds them back longer, pieces are sent twice now and then.
const ACK_HOLD_MAX: Duration = Duration::from_millis(8);
const LOSS_WAIT_MIN: Duration = Duration::from_millis(24);

/// What the kernel has measured: it knows when it had to send its SYN again, of which a second is no round trip.
fn measured_rtt(tcp: &TcpStream) -> Option<Duration> {
    let micros = crate::udp::tcp_info(tcp.as_fd()).ok()?.tcpi_rtt;
    (micros > 0).then(|| Duration::from_micros(micros.into()))
}

/// For small messages that somebody waits for. To be called before there is a connection: what accepted sockets inherit
/// from the listener; by its first round trip TCP already sets how long it waits before it sends again, and that shrinks
/// slowly. What the kernel refuses here costs comfort, not correctness.
fn hasten(socket: &impl AsFd) {
    let _ = SockRef::from(socket).set_tcp_nodelay(true);
    let _ = crate::udp::set_tcp_patience(socket.as_fd(), ACK_HOLD_MAX, LOSS_WAIT_MIN);
}

#[cfg(test)]
mod tests {
    use super::{LOSS_WAIT_MIN, hasten};
    use crate::udp::{set_tcp_patience, tcp_info};
    use std::os::fd::AsFd as _;
    use std::time::Duration;
    use tokio::net::{TcpListener, TcpSocket};

    #[tokio::test]
    async fn what_is_lost_first_is_sent_again_soon_on_both_sides() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        if set_tcp_patience(listener.as_fd(), LOSS_WAIT_MIN, LOSS_WAIT_MIN).is_err() {
            let name = "what_is_lost_first_is_sent_again_soon_on_both_sides";
            let why = "this kernel (before Linux 6.15) has no least time for TCP's repeats";
            return crate::skipped::not_here(name, why);
        }
        hasten(&listener);
        // The kernel's own is 200 ms; on loopback a round trip is nothing beside either, but for a machine that is busy just then.
        let mut waits = [Duration::MAX; 2];
        for _ in 0..10 {
            let client = TcpSocket::new_v4().unwrap();
            hasten(&client);
            let client = client.connect(listener.local_addr().unwrap()).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            for (least, socket) in waits.iter_mut().zip([client, server]) {
                let wait = Duration::from_micros(tcp_info(socket.as_fd()).unwrap().tcpi_rto.into());
                *least = wait.min(*least);
                assert!(socket.nodelay().unwrap());
            }
        }
        assert!(waits.iter().all(|wait| *wait < Duration::from_millis(100)), "{waits:?}");
    }
}
