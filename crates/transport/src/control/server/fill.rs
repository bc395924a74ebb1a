//! How much is encrypted before the kernel is given it.
//!
//! Each piece that the kernel gets wakes who waits for it, and at gigabytes a second a wake takes as long as the piece.
//! Where little is carried, what is encrypted early is only older when it leaves, and cannot be left out any more. So it
//! is what the connection carries in a millisecond (`docs/results/wan.md`).

use super::stall::StallGuard;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;

/// Bytes that are encrypted before a write: as TLS has it by itself, and at most.
const LEAST: u64 = 64 << 10;
const MOST: u64 = 1 << 20;

/// What that is of a second.
const PIECES_PER_S: u64 = 1000;

/// How often it is fitted to the rate.
const FIT_INTERVAL: Duration = Duration::from_millis(10);

/// A connection that is written in pieces which fit its rate.
pub(super) struct Fill {
    tls: TlsStream<StallGuard>,
    bytes: u64,
    since: Instant,
}

impl Fill {
    pub(super) fn new(tls: TlsStream<StallGuard>) -> Self {
        Self { tls, bytes: 0, since: Instant::now() }
    }

    fn note(&mut self, written: &Poll<io::Result<usize>>) {
        let Poll::Ready(Ok(len)) = written else { return };
        self.bytes += *len as u64;
        let time = self.since.elapsed();
        if time >= FIT_INTERVAL {
            self.tls.get_mut().1.set_buffer_limit(Some(piece(self.bytes, time)));
            (self.bytes, self.since) = (0, Instant::now());
        }
    }
}

/// Bytes of a piece, after so many were written in that time.
fn piece(bytes: u64, time: Duration) -> usize {
    let rate = bytes as f64 / time.as_secs_f64();
    (rate as u64 / PIECES_PER_S).clamp(LEAST, MOST) as usize
}

impl AsyncRead for Fill {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_read(cx, buf)
    }
}

impl AsyncWrite for Fill {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tls).poll_write(cx, buf);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tls).poll_write_vectored(cx, bufs);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.tls.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::{LEAST, MOST, piece};
    use std::time::Duration;

    #[test]
    fn a_piece_is_what_a_millisecond_carries_within_bounds() {
        let ten = Duration::from_millis(10);
        assert_eq!(piece(2_000_000, ten), 200_000);
        assert_eq!(piece(10_000, ten), LEAST as usize);
        assert_eq!(piece(100_000_000, ten), MOST as usize);
    }
}
