//! TCP connections that carry bulk: how their sockets are set, and what the kernel tells of them.
//!
//! The receiver plans ([`downpour_proto::transfer`]); what is to be set at the sender's end travels as one line of text
//! with the request (`docs/protocol.md#WAN-4`). What is not said is left to the kernel. A setting that the kernel refuses
//! is told, and the connection goes on without it.

use crate::udp::{set_pacing_max, tcp_info};
use downpour_proto::Rate;
use downpour_proto::transfer::steer::Seen;
use downpour_proto::transfer::{Plan, is_congestion};
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::TcpStream;

/// The header that carries [`Tuning`] with a request, and what could not be had with the answer.
pub(crate) const TUNING_HEADER: &str = "downpour-stream";

/// The header of an answer that carries [`Told`] (`docs/protocol.md#WAN-8`).
pub(crate) const TOLD_HEADER: &str = "downpour-seen";

/// Bytes that wait unsent in a connection: more only makes what is queued older.
const UNSENT_MAX: u32 = 1 << 20;

/// Where Linux lists its congestion controls, and which one it takes when none is asked for.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const DEFAULT: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const SEND_BUFFER_MAX: &str = "/proc/sys/net/core/wmem_max";

/// What is set on a connection. What is `None` the kernel decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Congestion control.
    pub congestion: Option<String>,
    /// Bytes of the send buffer, at the sender.
    pub send_buffer: Option<u64>,
    /// Bytes of the receive buffer, at the receiver.
    pub receive_buffer: Option<u64>,
    /// Never faster than this.
    pub pacing: Option<Rate>,
}

impl From<&Plan> for Tuning {
    fn from(plan: &Plan) -> Self {
        Self {
            congestion: plan.congestion.value.clone(),
            send_buffer: plan.send_buffer.value,
            receive_buffer: plan.receive_buffer.value,
            pacing: plan.pacing.value,
        }
    }
}

impl fmt::Display for Tuning {
    /// What is for the sender's end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        if let Some(name) = &self.congestion {
            write!(f, "congestion={name}")?;
            gap = " ";
        }
        if let Some(len) = self.send_buffer {
            write!(f, "{gap}buffer={len}")?;
            gap = " ";
        }
        if let Some(rate) = self.pacing {
            write!(f, "{gap}pacing={}", rate.bps())?;
        }
        Ok(())
    }
}

impl Tuning {
    /// From a line of text; words that are not known are passed over.
    pub(crate) fn parse(text: &str) -> Self {
        let mut tuning = Self::default();
        for (key, value) in text.split_whitespace().filter_map(|word| word.split_once('=')) {
            match key {
                "congestion" if is_congestion(value) => tuning.congestion = Some(value.to_owned()),
                "buffer" => tuning.send_buffer = value.parse().ok(),
                "pacing" => tuning.pacing = value.parse().ok().map(Rate::from_bps),
                _ => {}
            }
        }
        tuning
    }

    /// Sets what the receiver's end has, once hands are shaken: of a small buffer that is set before the kernel offers
    /// a window of whole segments as short as the handshake's, and the sender halves its own to fit it.
    pub(crate) fn set_receiving(&self, socket: &impl AsFd) {
        if let Some(len) = self.receive_buffer {
            // What the kernel grants less is told by `shortcomings`.
            let _ = SockRef::from(socket)
                .set_recv_buffer_size(usize::try_from(len).unwrap_or(usize::MAX));
        }
    }

    /// Sets what the sender's end has.
    pub(crate) fn set_sending(&self, tcp: &TcpStream) {
        let socket = SockRef::from(tcp);
        // Where the other side's window is the limit, bulk that does not wait for full segments fills it with small ones;
        // the end of an answer waits only while an earlier small segment is on its way (Minshall).
        let _ = tcp.set_nodelay(false);
        // What the kernel refuses is told by `shortcomings`; the connection goes on without it.
        let _ = socket.set_tcp_notsent_lowat(UNSENT_MAX);
        let asked = self.congestion.as_ref().map(|name| socket.set_tcp_congestion(name.as_bytes()));
        if !matches!(asked, Some(Ok(()))) {
            set_default_congestion(tcp);
        }
        if let Some(len) = self.send_buffer {
            // Who writes without waiting is woken when a third of the buffer is free: so that `len` is in use always.
            let len = usize::try_from(len.saturating_add(len / 2)).unwrap_or(usize::MAX);
            let _ = socket.set_send_buffer_size(len);
        }
        if let Some(rate) = self.pacing {
            let _ = set_pacing_max(tcp.as_fd(), rate.bps() / 8);
        }
    }

    /// Sets what may change while a connection is in use, at the sender's end: how it is paced.
    pub(crate) fn set_pacing(&self, tcp: &TcpStream) {
        let most = self.pacing.map_or(u64::MAX, |rate| rate.bps() / 8);
        let _ = set_pacing_max(tcp.as_fd(), most);
    }

    /// What this machine, the sender, cannot give of it, a sentence each.
    pub fn shortcomings(&self) -> Vec<String> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let mut told = Vec::new();
        let available = read(AVAILABLE);
        told.extend(self.congestion.as_ref().and_then(|name| lacks(name, &available)));
        if let (Some(len), Ok(max)) =
            (self.send_buffer, read(SEND_BUFFER_MAX).trim().parse::<u64>())
            && len > max
        {
            told.push(format!(
                "the sender grants socket buffers of {max} bytes at most, not {len}: set sysctl net.core.wmem_max={len}"
            ));
        }
        told
    }
}

/// The kernel's default, if that is BBR: a connection that begins with it is paced by a timer of its own ever after, whatever
/// it is set to.
fn bbr_by_default() -> Option<String> {
    let name = std::fs::read_to_string(DEFAULT).ok()?.trim().to_owned();
    name.starts_with("bbr").then_some(name)
}

/// Lets what a listener accepts begin without BBR's pacing. Each connection gets what it asks for, or else the kernel's default
/// by [`set_default_congestion`]. Where CUBIC may not be chosen all stays as it is.
pub(crate) fn begin_unpaced(listener: &impl AsFd) {
    if bbr_by_default().is_some() {
        let _ = SockRef::from(listener).set_tcp_congestion(b"cubic");
    }
}

/// Gives a connection for which nothing is asked what the kernel would have chosen.
pub(crate) fn set_default_congestion(tcp: &TcpStream) {
    if let Some(name) = bbr_by_default() {
        let _ = SockRef::from(tcp).set_tcp_congestion(name.as_bytes());
    }
}

/// The congestion control that is in force on a socket.
fn congestion(socket: &impl AsFd) -> String {
    let name = SockRef::from(socket).tcp_congestion().unwrap_or_default();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// A sentence when `name` is not among those that the kernel lists.
fn lacks(name: &str, available: &str) -> Option<String> {
    let has: Vec<&str> = available.split_whitespace().collect();
    (!has.is_empty() && !has.contains(&name)).then(|| {
        let has = has.join(", ");
        format!("the kernel of the sender has no congestion control {name}, only {has}: its default is used")
    })
}

/// What a connection did, as the kernel of one side tells it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// The other side.
    pub peer: String,
    /// Congestion control that was in force on this side.
    pub congestion: String,
    /// Bytes of TCP payload that were sent and acknowledged, and that came.
    pub bytes_acked: u64,
    /// Bytes of TCP payload that came.
    pub bytes_received: u64,
    /// Bytes that were sent again.
    pub bytes_sent_again: u64,
    /// Smoothed round trip, and the shortest.
    pub rtt_ms: f64,
    /// The shortest round trip.
    pub min_rtt_ms: f64,
    /// Rate of what was delivered lately.
    pub delivery_rate_bps: u64,
    /// Time in which it waited for the other side's window, and for room in its own buffer.
    pub window_limited_s: f64,
    /// Time in which its own send buffer was too small.
    pub buffer_limited_s: f64,
    /// What the kernel books for its send buffer: twice the size that was set, or where autotuning is.
    #[serde(default)]
    pub send_buffer_bytes: u64,
    /// The same of its receive buffer.
    #[serde(default)]
    pub receive_buffer_bytes: u64,
    /// Its ceiling; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacing_max_bps: Option<u64>,
}

/// What all connections of bulk did that a server had.
#[derive(Clone, Debug, Default)]
pub struct BulkReport {
    /// Each one, up to a limit.
    pub connections: Vec<ConnectionReport>,
    /// Time from the first write on one of them to the last; time in which none was open does not count.
    pub time: Duration,
    /// Most that were open at once.
    pub at_once: usize,
}

impl ConnectionReport {
    /// Of a connection as it stands.
    pub(crate) fn of(tcp: &TcpStream, peer: SocketAddr) -> Self {
        let Ok(info) = tcp_info(tcp.as_fd()) else { return Self::default() };
        let ms = |micros: u32| f64::from(micros) / 1e3;
        let socket = SockRef::from(tcp);
        let booked = |len: std::io::Result<usize>| len.map_or(0, |len| len as u64);
        let ceiling =
            Some(info.tcpi_max_pacing_rate).filter(|rate| *rate < u64::from(u32::MAX) * 1000);
        Self {
            peer: peer.to_string(),
            congestion: congestion(tcp),
            bytes_acked: info.tcpi_bytes_acked,
            bytes_received: info.tcpi_bytes_received,
            bytes_sent_again: info.tcpi_bytes_retrans,
            rtt_ms: ms(info.tcpi_rtt),
            min_rtt_ms: ms(info.tcpi_min_rtt),
            delivery_rate_bps: info.tcpi_delivery_rate.saturating_mul(8),
            window_limited_s: info.tcpi_rwnd_limited as f64 / 1e6,
            buffer_limited_s: info.tcpi_sndbuf_limited as f64 / 1e6,
            send_buffer_bytes: booked(socket.send_buffer_size()),
            receive_buffer_bytes: booked(socket.recv_buffer_size()),
            pacing_max_bps: ceiling.map(|rate| rate.saturating_mul(8)),
        }
    }
}

/// What a sender tells of a connection with each answer on it: all since it was opened. Times in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub(crate) sent: u64,
    pub(crate) again: u64,
    pub(crate) rtt: u64,
    pub(crate) rtt_min: u64,
    pub(crate) busy: u64,
    pub(crate) window_limited: u64,
    pub(crate) buffer_limited: u64,
    /// The socket had nothing left to send; and of that, the source's disk was waited for.
    pub(crate) idle: u64,
    pub(crate) disk: u64,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, again, rtt, rtt_min, busy, .. } = self;
        let Self { window_limited, buffer_limited, idle, disk, .. } = self;
        write!(f, "sent={sent} again={again} rtt={rtt} min={rtt_min} busy={busy} ")?;
        write!(f, "window={window_limited} buffer={buffer_limited} idle={idle} disk={disk}")
    }
}

impl Told {
    /// From its line; words that are not known are passed over, numbers that are missing are zero.
    pub(crate) fn parse(text: &str) -> Self {
        let mut told = Self::default();
        for (key, value) in text.split_whitespace().filter_map(|word| word.split_once('=')) {
            let place = match key {
                "sent" => &mut told.sent,
                "again" => &mut told.again,
                "rtt" => &mut told.rtt,
                "min" => &mut told.rtt_min,
                "busy" => &mut told.busy,
                "window" => &mut told.window_limited,
                "buffer" => &mut told.buffer_limited,
                "idle" => &mut told.idle,
                "disk" => &mut told.disk,
                _ => continue,
            };
            *place = value.parse().unwrap_or(0);
        }
        told
    }

    /// Takes what the kernel tells. True when the socket has nothing left to send, and may send.
    pub(crate) fn update(&mut self, tcp: &TcpStream) -> bool {
        let Ok(info) = tcp_info(tcp.as_fd()) else { return false };
        self.sent = info.tcpi_bytes_sent;
        self.again = info.tcpi_bytes_retrans;
        (self.rtt, self.rtt_min) = (info.tcpi_rtt.into(), info.tcpi_min_rtt.into());
        self.busy = info.tcpi_busy_time;
        self.window_limited = info.tcpi_rwnd_limited;
        self.buffer_limited = info.tcpi_sndbuf_limited;
        info.tcpi_notsent_bytes == 0 && info.tcpi_unacked < info.tcpi_snd_cwnd
    }

    /// What happened since `before`, on one connection.
    pub(crate) fn since(&self, before: &Self) -> Seen {
        let time = |now: u64, before: u64| Duration::from_micros(now.saturating_sub(before));
        Seen {
            sent: self.sent.saturating_sub(before.sent),
            again: self.again.saturating_sub(before.again),
            rtt: Duration::from_micros(self.rtt),
            rtt_min: Duration::from_micros(self.rtt_min),
            busy: time(self.busy, before.busy),
            window_limited: time(self.window_limited, before.window_limited),
            buffer_limited: time(self.buffer_limited, before.buffer_limited),
            idle: time(self.idle, before.idle),
            source_wait: time(self.disk, before.disk),
            ..Seen::default()
        }
    }
}

/// Bytes that a TCP connection has sent again, each segment counted as a full one.
pub(crate) fn sent_again(tcp: &TcpStream) -> Option<u64> {
    let info = tcp_info(tcp.as_fd()).ok()?;
    Some(u64::from(info.tcpi_total_retrans) * u64::from(info.tcpi_snd_mss))
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT, Told, Tuning, begin_unpaced, congestion, lacks};
    use downpour_proto::Rate;
    use socket2::SockRef;
    use tokio::net::{TcpListener, TcpStream};

    #[tokio::test]
    async fn a_connection_begins_without_bbr_and_gets_what_is_asked_or_the_default() {
        let default = std::fs::read_to_string(DEFAULT).unwrap().trim().to_owned();
        for asked in [None, Some("cubic"), Some("bbr"), Some("none-such")] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let is_there =
                |name: &str| SockRef::from(&listener).set_tcp_congestion(name.as_bytes());
            let granted = asked.filter(|name| is_there(name).is_ok());
            let has_cubic = is_there("cubic").is_ok();
            is_there(&default).unwrap();
            begin_unpaced(&listener);
            let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            let begins = if default == "bbr" && has_cubic { "cubic" } else { &default };
            assert_eq!(congestion(&server), begins);
            let asked = asked.map(str::to_owned);
            Tuning { congestion: asked, ..Tuning::default() }.set_sending(&server);
            assert_eq!(congestion(&server), granted.unwrap_or(&default));
        }
    }

    #[test]
    fn a_tuning_is_read_as_it_was_written() {
        let all = Tuning {
            congestion: Some("bbr".to_owned()),
            send_buffer: Some(1 << 20),
            receive_buffer: None,
            pacing: Some(Rate::from_mbps(10)),
        };
        assert_eq!(all.to_string(), "congestion=bbr buffer=1048576 pacing=10000000");
        assert_eq!(Tuning::parse(&all.to_string()), all);
        assert_eq!(Tuning::parse(""), Tuning::default());
        let odd = Tuning::parse("congestion=../etc later=1 buffer=x");
        assert_eq!(odd, Tuning::default());
    }

    #[test]
    fn what_a_sender_tells_is_read_as_it_was_written() {
        let before = Told { sent: 10, again: 1, rtt: 5, rtt_min: 4, ..Told::default() };
        let told = Told { sent: 110, again: 3, busy: 7, window_limited: 8, ..before };
        let told = Told { buffer_limited: 9, idle: 11, disk: 12, ..told };
        assert_eq!(Told::parse(&told.to_string()), told);
        assert_eq!(Told::parse("sent=x later=1"), Told::default());
        let seen = told.since(&before);
        assert_eq!((seen.sent, seen.again, seen.source_wait.as_micros()), (100, 2, 12));
    }

    #[test]
    fn what_the_kernel_lacks_is_told_with_what_it_has() {
        let told = lacks("bbr", "reno cubic\n").unwrap();
        assert!(told.contains("sender has no congestion control bbr, only reno, cubic"), "{told}");
        assert_eq!(lacks("cubic", "reno cubic\n"), None);
        assert_eq!(lacks("bbr", ""), None, "nothing is known");
    }
}
