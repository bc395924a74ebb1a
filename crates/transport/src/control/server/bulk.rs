//! Byte ranges of the data space and the manifest, and repair symbols (`docs/protocol.md#CTL-14`).
//!
//! Each piece asks the shared budget first, is read on a blocking thread, and goes to the connection
//! through a short queue. The first piece is read before the answer begins, so that a failing source is a
//! proper error; a failure further on breaks the connection off, and the client's next request learns why.

use super::body::{BrokenOff, Outgoing};
use super::handler::SessionHandler;
use super::limits::{KEPT_LEN_MAX, PIECE_QUEUE_MAX};
use super::stall::Use;
use super::{Answer, Core};
use crate::blocked;
use crate::control::budget::ActivePull;
use crate::control::error::{ApiError, ErrorCode};
use bytes::Bytes;
use downpour_proto::{BlockId, BlockKind, Rate};
use hyper::header::{ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// What a `Range` header asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// No header, or one in a unit or form that we need not understand (RFC 9110, 14.2).
    All,
    /// `bytes=first-last`, the last included.
    Between(u64, u64),
    /// `bytes=first-`.
    From(u64),
    /// `bytes=-len`.
    Last(u64),
}

impl Wanted {
    pub(super) fn parse(header: Option<&HeaderValue>) -> Self {
        let parse = |text: &str| {
            let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
            match (first.trim(), last.trim()) {
                ("", len) => Some(Self::Last(digits(len)?)),
                (first, "") => Some(Self::From(digits(first)?)),
                (first, last) => {
                    let (first, last) = (digits(first)?, digits(last)?);
                    (first <= last).then_some(Self::Between(first, last))
                }
            }
        };
        header.and_then(|header| header.to_str().ok()).and_then(parse).unwrap_or(Self::All)
    }

    /// The bytes of `0..len` that are meant; `None` when there are none.
    fn within(self, len: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::All => return Some(0..len),
            Self::Between(first, last) => first..len.min(last.saturating_add(1)),
            Self::From(first) => first..len,
            Self::Last(count) => len - count.min(len)..len,
        };
        (range.start < range.end).then_some(range)
    }
}

/// A number of digits only: `parse` would take a sign.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// `GET /v1/data` and `GET /v1/manifest`.
pub(super) async fn range<H: SessionHandler>(
    core: &Arc<Core<H>>,
    used: &Arc<Use>,
    kind: BlockKind,
    wanted: Wanted,
) -> Result<Answer, ApiError> {
    let extent = core.handler.extent(kind);
    let whole = if extent.complete { extent.len.to_string() } else { "*".to_owned() };
    let Some(range) = wanted.within(extent.len) else {
        let message = format!("{} bytes are there", extent.len);
        let mut answer = super::refusal(&ApiError::new(ErrorCode::RangeNotSatisfiable, message));
        set(&mut answer, CONTENT_RANGE, &format!("bytes */{whole}"));
        return Ok(answer);
    };
    let (status, content_range) = match wanted {
        Wanted::All => (StatusCode::OK, None),
        _ => {
            let text = format!("bytes {}-{}/{whole}", range.start, range.end - 1);
            (StatusCode::PARTIAL_CONTENT, Some(text))
        }
    };
    let mut answer = Response::new(pieces(core, used, kind, range).await?);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, OCTETS);
    set(&mut answer, ACCEPT_RANGES, "bytes");
    if let Some(text) = content_range {
        set(&mut answer, CONTENT_RANGE, &text);
    }
    Ok(answer)
}

fn set(answer: &mut Answer, name: hyper::header::HeaderName, text: &str) {
    // Made here of digits and constants: always a valid header.
    let value = HeaderValue::from_str(text).expect("digits and constants");
    answer.headers_mut().insert(name, value);
}

/// Starts the stream of `range`, with its first piece read.
async fn pieces<H: SessionHandler>(
    core: &Arc<Core<H>>,
    used: &Arc<Use>,
    kind: BlockKind,
    range: Range<u64>,
) -> Result<Outgoing, ApiError> {
    let left = range.end - range.start;
    if left == 0 {
        return Ok(Outgoing::empty());
    }
    used.asked_up_to(match kind {
        BlockKind::Data => range.end,
        // Its newest part comes with the newest data.
        BlockKind::Manifest => core.handler.extent(BlockKind::Data).len,
    });
    if kind == BlockKind::Data
        && left <= KEPT_LEN_MAX
        && core.budget.rate() == Rate::MAX
        && let Some(parts) = core.handler.kept(range.clone())
    {
        core.budget.note(left);
        return Ok(Outgoing::Kept { parts: parts.into(), left });
    }
    let active = core.budget.enter();
    let (queue, body) = mpsc::channel(PIECE_QUEUE_MAX);
    let (first, waited) = next_piece(core, kind, &range).await?;
    used.waited_for_disk(waited);
    let mut rest = range.start + first.len() as u64..range.end;
    // The queue is new and has room.
    let _ = queue.try_send(Ok(first));
    let (core, used) = (core.clone(), used.clone());
    tokio::spawn(async move {
        let _active = active;
        while rest.start < rest.end {
            let next = tokio::select! {
                next = next_piece(&core, kind, &rest) => next,
                // The client is gone: do not ask the budget for it any more.
                () = queue.closed() => return,
            };
            let Ok((piece, waited)) = next else {
                let _ = queue.send(Err(BrokenOff)).await;
                return;
            };
            rest.start += piece.len() as u64;
            // What waits in the queue is sent meanwhile.
            if queue.capacity() == queue.max_capacity() {
                used.waited_for_disk(waited);
            }
            if queue.send(Ok(piece)).await.is_err() {
                return;
            }
        }
    });
    Ok(Outgoing::Pieces { queue: body, left })
}

/// Reads the beginning of `range`, once the budget permits. How long the disk took.
async fn next_piece<H: SessionHandler>(
    core: &Arc<Core<H>>,
    kind: BlockKind,
    range: &Range<u64>,
) -> Result<(Bytes, Duration), ApiError> {
    let len = (range.end - range.start).min(core.budget.piece_len() as u64);
    core.budget.acquire(kind, len as usize).await;
    let piece = range.start..range.start + len;
    let asked = Instant::now();
    let read = core.blocking(kind, move |handler| {
        let begun = Instant::now();
        let (bytes, slept) = blocked(|| handler.read(kind, piece));
        Ok((bytes?, slept.as_secs_f64() / begun.elapsed().as_secs_f64().max(1e-9)))
    });
    let (bytes, share) = read.await?;
    // Who waits until others have read waits for the disk as they do.
    let waited = asked.elapsed().mul_f64(share.min(1.0));
    if bytes.len() as u64 != len {
        let message = format!("{} bytes were read where {len} were promised", bytes.len());
        return Err(ApiError::new(ErrorCode::Internal, message));
    }
    Ok((bytes.into(), waited))
}

/// `GET /v1/repair/{block}?from=i&count=n`.
pub(super) async fn repair<H: SessionHandler>(
    core: &Arc<Core<H>>,
    block: BlockId,
    symbols: Range<u16>,
) -> Result<Answer, ApiError> {
    let active = core.budget.enter();
    // Held until the answer is out, or made though nobody waits for it: it bounds the memory that such answers take.
    let permit = core.places(block.kind()).repairs.clone().acquire_owned().await;
    let permit =
        permit.map_err(|_| ApiError::new(ErrorCode::SessionOver, "the session has ended"))?;
    let made = move |handler: &H| Ok((handler.repair(block, symbols)?, permit));
    let (bytes, permit) = core.blocking(block.kind(), made).await?;
    let left = bytes.len() as u64;
    let (queue, body) = mpsc::channel(PIECE_QUEUE_MAX);
    let core = core.clone();
    let kind = block.kind();
    tokio::spawn(async move { send_repair(core, kind, bytes.into(), queue, active, permit).await });
    let mut answer = Response::new(Outgoing::Pieces { queue: body, left });
    answer.headers_mut().insert(CONTENT_TYPE, OCTETS);
    Ok(answer)
}

async fn send_repair<H: SessionHandler>(
    core: Arc<Core<H>>,
    kind: BlockKind,
    mut bytes: Bytes,
    queue: mpsc::Sender<Result<Bytes, BrokenOff>>,
    _active: ActivePull,
    _permit: OwnedSemaphorePermit,
) {
    while !bytes.is_empty() {
        let piece = bytes.split_to(bytes.len().min(core.budget.piece_len()));
        tokio::select! {
            () = core.budget.acquire(kind, piece.len()) => {}
            () = queue.closed() => return,
        }
        if queue.send(Ok(piece)).await.is_err() {
            return;
        }
    }
}

/// The block and symbols that path and query name; `None` when they name none, or one that is not below `symbols_end`.
pub(super) fn parse_repair(
    block: &str,
    query: &str,
    symbols_end: u16,
) -> Option<(BlockId, Range<u16>)> {
    let block = match block.split_at_checked(1)? {
        ("d", number) => BlockId::data(digits(number)?.try_into().ok()?)?,
        ("m", number) => BlockId::manifest(digits(number)?.try_into().ok()?)?,
        _ => return None,
    };
    let (mut from, mut count) = (None, None);
    for pair in query.split('&') {
        match pair.split_once('=')? {
            ("from", value) => from = Some(digits(value)?),
            ("count", value) => count = Some(digits(value)?),
            _ => return None,
        }
    }
    let (from, count) = (from?, count?);
    let end = from.checked_add(count)?;
    if count == 0 || end > u64::from(symbols_end) {
        return None;
    }
    // Both are at most `symbols_end`, a u16.
    Some((block, from as u16..end as u16))
}

#[cfg(test)]
mod tests {
    use super::{Wanted, parse_repair};
    use downpour_proto::BlockId;
    use hyper::header::HeaderValue;

    fn wanted(text: &'static str) -> Wanted {
        Wanted::parse(Some(&HeaderValue::from_static(text)))
    }

    #[test]
    fn ranges_are_read_as_rfc_9110_says() {
        assert_eq!(wanted("bytes=0-99"), Wanted::Between(0, 99));
        assert_eq!(wanted("bytes=100-"), Wanted::From(100));
        assert_eq!(wanted("bytes=-5"), Wanted::Last(5));
        for all in
            ["", "bytes=", "bytes=-", "bytes=5-4", "lines=1-2", "bytes=0-1,5-6", "bytes=+1-2"]
        {
            assert_eq!(wanted(all), Wanted::All, "{all}");
        }
        assert_eq!(wanted("bytes=0-99999999999999999999999"), Wanted::All);
    }

    #[test]
    fn ranges_end_where_the_bytes_do() {
        assert_eq!(Wanted::All.within(10), Some(0..10));
        assert_eq!(Wanted::All.within(0), Some(0..0));
        assert_eq!(Wanted::Between(2, 3).within(10), Some(2..4));
        assert_eq!(Wanted::Between(2, u64::MAX).within(10), Some(2..10));
        assert_eq!(Wanted::From(9).within(10), Some(9..10));
        assert_eq!(Wanted::Last(99).within(10), Some(0..10));
        for none in [Wanted::From(10), Wanted::Between(10, 11), Wanted::Last(0)] {
            assert_eq!(none.within(10), None, "{none:?}");
        }
    }

    #[test]
    fn repair_requests_name_what_exists() {
        let block = BlockId::manifest(7).unwrap();
        assert_eq!(parse_repair("m7", "from=3&count=4", 7), Some((block, 3..7)));
        assert_eq!(parse_repair("m7", "count=1&from=1023", 1024), Some((block, 1023..1024)));
        for (path, query) in [
            ("m7", "from=3&count=0"),
            ("m7", "from=1024&count=1"),
            ("m7", "from=18446744073709551615&count=1"),
            ("m7", "from=3"),
            ("m7", ""),
            ("m7", "from=-1&count=1"),
            ("x7", "from=3&count=4"),
            ("d67108864", "from=3&count=4"),
            ("d", "from=3&count=4"),
            ("é", "from=3&count=4"),
            ("", "from=3&count=4"),
        ] {
            assert_eq!(parse_repair(path, query, 1024), None, "{path}?{query}");
        }
        assert_eq!(parse_repair("m7", "from=127&count=2", 128), None);
    }
}
