//! A connection that carries bulk: requests go out before the answers to those before are in.
//!
//! HTTP/1.1 as hyper would write it, but for that: hyper waits for each answer. And the bytes go from TLS straight to
//! where they belong.
//!
//! Each answer must tell its length. After an error nothing of the connection is used any more.

use super::connection::{REPLY_LEN_MAX, Reached, Tls};
use super::error::Fault;
use super::{Pull, PullError};
use crate::control::error::ApiError;
use crate::stream::{ConnectionReport, TOLD_HEADER, TUNING_HEADER, Told};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

/// Bytes and lines of an answer's head.
const HEAD_LEN_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 48;

/// Bytes read at once while a head is awaited: what of them is body is copied once more.
const HEAD_READ: usize = 1024;

/// What carries the bytes.
enum Wire {
    Tls(Box<Tls>),
    Plain(TcpStream),
}

/// One connection.
pub(crate) struct Line {
    wire: Wire,
    peer: SocketAddr,
    /// Read, and not yet used.
    unread: Vec<u8>,
}

/// The beginning of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// HTTP status.
    pub status: u16,
    /// Bytes that follow.
    pub len: u64,
    /// Which byte is the first, when the answer is a part.
    pub first: Option<u64>,
    /// What the sender could not set.
    pub lacks: Option<String>,
    /// What the sender's kernel tells of the connection.
    pub told: Option<Told>,
}

impl Line {
    pub(super) fn new(reached: Reached) -> Self {
        let wire = Wire::Tls(Box::new(reached.tls));
        Self { wire, peer: reached.peer, unread: Vec::new() }
    }

    pub(super) fn plain((tcp, peer): (TcpStream, SocketAddr)) -> Self {
        Self { wire: Wire::Plain(tcp), peer, unread: Vec::new() }
    }

    /// Whether it is not encrypted.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.wire, Wire::Plain(_))
    }

    /// Sends requests.
    pub(crate) async fn send(&mut self, requests: &[u8]) -> Result<(), Fault> {
        match &mut self.wire {
            Wire::Plain(tcp) => tcp.write_all(requests).await.map_err(lost),
            Wire::Tls(tls) => {
                tls.write_all(requests).await.map_err(lost)?;
                tls.flush().await.map_err(lost)
            }
        }
    }

    /// The head of the next answer. May be dropped and called again.
    pub(crate) async fn head(&mut self) -> Result<Head, Fault> {
        loop {
            if let Some((head, used)) = parse_head(&self.unread)? {
                self.unread.drain(..used);
                return Ok(head);
            }
            if self.unread.len() > HEAD_LEN_MAX {
                return Err(Fault::BadReply("a head that does not end".to_owned()));
            }
            let mut some = [0; HEAD_READ];
            let len = poll_fn(|cx| self.wire.poll(cx, &mut some)).await.map_err(lost)?;
            if len == 0 {
                return Err(Fault::Lost("closed".to_owned()));
            }
            self.unread.extend_from_slice(&some[..len]);
        }
    }

    /// Some bytes of a body. May be dropped and called again.
    pub(crate) async fn body(&mut self, room: &mut [u8]) -> Result<usize, Fault> {
        let len = poll_fn(|cx| self.poll_body(cx, room)).await.map_err(lost)?;
        if len == 0 {
            return Err(Fault::Lost("closed".to_owned()));
        }
        Ok(len)
    }

    /// The same, for a place that is not held while nothing comes. 0: the connection has been closed.
    pub(crate) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        if !self.unread.is_empty() {
            let len = self.unread.len().min(room.len());
            room[..len].copy_from_slice(&self.unread[..len]);
            self.unread.drain(..len);
            return Poll::Ready(Ok(len));
        }
        self.wire.poll(cx, room)
    }

    /// Finds an answer that says no, or that answers another question than `span` of `pull`.
    pub(crate) async fn check(
        &mut self,
        head: &Head,
        pull: &Pull,
        span: &Range<u64>,
    ) -> Result<(), PullError> {
        if head.status >= 300 {
            return Err(self.refusal(head).await.into());
        }
        let right = match pull {
            Pull::Bytes(_, range) => {
                head.status == 206 && head.first == Some(range.start + span.start)
            }
            Pull::Repair(..) => head.status == 200,
        };
        if right && (1..=span.end - span.start).contains(&head.len) {
            return Ok(());
        }
        Err(PullError::BadReply("another range than was asked for".to_owned()))
    }

    /// Why an answer says no.
    async fn refusal(&mut self, head: &Head) -> Fault {
        if head.len > REPLY_LEN_MAX as u64 {
            return Fault::BadReply(format!("HTTP status {} without a reason", head.status));
        }
        let mut text = vec![0; head.len as usize];
        let mut have = 0;
        while have < text.len() {
            match self.body(&mut text[have..]).await {
                Ok(len) => have += len,
                Err(fault) => return fault,
            }
        }
        match serde_json::from_slice::<ApiError>(&text) {
            Ok(error) => Fault::Refused(error),
            Err(_) => Fault::BadReply(format!("HTTP status {} without a reason", head.status)),
        }
    }

    /// What the kernel tells of it.
    pub(crate) fn report(&self) -> ConnectionReport {
        let tcp = match &self.wire {
            Wire::Tls(tls) => tls.get_ref().0.get_ref(),
            Wire::Plain(tcp) => tcp,
        };
        ConnectionReport::of(tcp, self.peer)
    }
}

impl Wire {
    fn poll(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<std::io::Result<usize>> {
        let mut buf = ReadBuf::new(room);
        let read = match self {
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, &mut buf),
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, &mut buf),
        };
        read.map_ok(|()| buf.filled().len())
    }
}

fn lost(error: std::io::Error) -> Fault {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Fault::Lost("closed".to_owned()),
        _ => Fault::Lost(error.to_string()),
    }
}

/// The head at the beginning of `bytes` and its length; `None` while it is not all there.
fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, Fault> {
    let bad = |what: &str| Fault::BadReply(what.to_owned());
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut headers);
    let used = match answer.parse(bytes) {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(bad(&error.to_string())),
    };
    let value = |name: &str| {
        let header = answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        header.and_then(|header| std::str::from_utf8(header.value).ok())
    };
    let len = value("content-length").and_then(|text| text.parse().ok());
    let first = value("content-range")
        .and_then(|text| text.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok());
    let head = Head {
        status: answer.code.unwrap_or_default(),
        len: len.ok_or_else(|| bad("an answer without a length"))?,
        first,
        lacks: value(TUNING_HEADER).map(str::to_owned),
        told: value(TOLD_HEADER).map(Told::parse),
    };
    Ok(Some((head, used)))
}

#[cfg(test)]
mod tests {
    use super::{Head, parse_head};

    #[test]
    fn a_head_tells_length_and_place() {
        let text = b"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 100-199/*\r\n\
                     Content-Length: 100\r\n\r\nbody";
        for len in 0..text.len() - 4 {
            assert!(parse_head(&text[..len]).unwrap().is_none(), "{len}");
        }
        let (head, used) = parse_head(text).unwrap().unwrap();
        assert_eq!(head, Head { status: 206, len: 100, first: Some(100), lacks: None, told: None });
        assert_eq!(&text[used..], b"body");
    }

    #[test]
    fn what_cannot_be_read_on_is_refused() {
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err(), "no length");
        assert!(parse_head(b"GET / HTTP/1.1\r\n\r\n").is_err());
    }
}
