//! One connection of a gathering: what it is asked for ahead, the bytes that come by it, and what is done when it breaks.

use super::{Gather, LOOK_EVERY, PIECE_LEN_MAX, Piece, State, WRITE_LEN, Way};
use crate::site::{BytesLine, Fault, RemoteError, Side};
use downpour_catalog::ErrorClass;
use downpour_proto::transfer::Ask;
use downpour_transport::control::Head;
use downpour_transport::stream::Tuning;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Failures in a row of one source.
const TRIES_MAX: u32 = 3;
/// After a failure.
const PAUSE: Duration = Duration::from_millis(200);
/// A source that brings nothing for so long is silent. Its connections may hear of it in turn, where it has a low rate: one of them is
/// silent after as many times that as are busy.
const SILENCE: Duration = Duration::from_secs(20);
/// A source that brings so much that cannot be kept, and nothing else, has failed.
const LOST_MAX: u64 = 8 * WRITE_LEN;

/// One connection: what it was asked for and has not brought.
struct Line {
    source: usize,
    index: usize,
    open: Option<BytesLine>,
    out: VecDeque<Ask>,
    /// When it was asked ([`Way::turn`]).
    turn: u64,
    /// What its source had failed by when this one began anew ([`Way::failures`]).
    failures: u32,
}

/// Why a connection is not used on.
enum Broken {
    /// Others brought it, or this source is not asked any more.
    InVain,
    Failed(Fault),
}

impl From<RemoteError> for Broken {
    fn from(error: RemoteError) -> Self {
        Self::Failed(Fault::new(error.class(Side::Source), error.to_string()))
    }
}

impl Way {
    /// Bytes of it came.
    fn came(&mut self, len: u64) {
        self.sight.came(len);
        self.came_at = Some(Instant::now());
    }

    /// Bytes of it were stored.
    fn stored(&mut self, len: u64) {
        self.brought += len;
        (self.failures, self.lost) = (0, 0);
    }

    fn is_silent(&self) -> bool {
        self.came_at.is_none_or(|at| at.elapsed() >= SILENCE)
    }

    /// One of its connections failed, begun after so many failures: those that break together are one. Whether the source
    /// has failed.
    fn failed(&mut self, before: u32) -> bool {
        self.failures += u32::from(before == self.failures);
        self.failures >= TRIES_MAX && (self.is_silent() || self.lost >= LOST_MAX)
    }
}

impl Gather {
    pub(super) async fn work(self: Arc<Self>, source: usize, index: usize) {
        let out = VecDeque::new();
        let mut line = Line { source, index, open: None, out, turn: 0, failures: 0 };
        loop {
            let Err(broken) = self.step(&mut line).await else { continue };
            self.close_line(&mut line);
            if let Broken::Failed(fault) = broken {
                let has_failed = {
                    let way = &mut self.lock().ways[source];
                    let has_failed = way.failed(line.failures);
                    line.failures = way.failures;
                    has_failed
                };
                if has_failed {
                    self.fail(source, &fault);
                }
                tokio::time::sleep(PAUSE * line.failures.clamp(1, TRIES_MAX)).await;
            }
        }
    }

    /// What it has not brought is for others.
    fn close_line(&self, line: &mut Line) {
        line.open = None;
        line.out.clear();
        let state = &mut *self.lock();
        state.ranges.broke(line.index);
        let way = &mut state.ways[line.source];
        way.sight.told(line.index - self.places[line.source].lines.start, None);
        line.turn = way.turn;
    }

    /// Asks for more where there is room for it, and takes an answer, or waits until there may be something to be asked for.
    async fn step(&self, line: &mut Line) -> Result<(), Broken> {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let (asks, tuning, is_active) = {
            let State { ranges, ways, .. } = &mut *self.lock();
            let way = &ways[line.source];
            if way.turn != line.turn {
                return Err(Broken::InVain);
            }
            let now = self.now();
            let asks: Vec<Ask> = std::iter::from_fn(|| ranges.next(now, line.index)).collect();
            (asks, way.tuning.clone(), ranges.is_active(line.index))
        };
        for ask in asks {
            let wish = Piece {
                start: ask.id * PIECE_LEN_MAX + ask.span.start,
                len: ask.span.end - ask.span.start,
                ..self.piece.clone()
            };
            let open = match &mut line.open {
                Some(open) => open,
                none => none.insert(self.open(line.source, &tuning).await?),
            };
            self.soon(line.source, open.ask("/v1/site/pieces", &wish, &tuning)).await?;
            line.out.push_back(ask);
        }
        if !line.out.is_empty() {
            self.take(line).await?;
            line.out.pop_front();
            return Ok(());
        }
        match is_active {
            true => drop(tokio::time::timeout(LOOK_EVERY, changed).await),
            false => {
                self.close_line(line);
                changed.await;
            }
        }
        Ok(())
    }

    /// What a source does on a connection, unless that falls silent.
    async fn soon<T>(
        &self,
        source: usize,
        what: impl Future<Output = Result<T, RemoteError>>,
    ) -> Result<T, Broken> {
        let mut what = pin!(what);
        for waited in 1.. {
            if let Ok(done) = tokio::time::timeout(SILENCE, &mut what).await {
                return Ok(done?);
            }
            let State { ranges, ways, .. } = &*self.lock();
            let (busy, _) = ranges.busy_of(self.places[source].lines.clone());
            if waited >= busy || ways[source].is_silent() {
                break;
            }
        }
        Err(Broken::Failed(Fault::new(ErrorClass::TimedOut, "it fell silent")))
    }

    async fn open(&self, source: usize, tuning: &Tuning) -> Result<BytesLine, Broken> {
        let open = self.places[source].remote.bulk(tuning).await?;
        self.lock().ways[source].receive_buffer_bytes = open.report().receive_buffer_bytes;
        Ok(open)
    }

    /// Takes the answer to what it was asked for first.
    async fn take(&self, line: &mut Line) -> Result<(), Broken> {
        let (Some(open), Some(ask)) = (&mut line.open, line.out.front()) else { return Ok(()) };
        let (source, id, turn) = (line.source, ask.id, line.turn);
        let mut at = id * PIECE_LEN_MAX + ask.span.start;
        let end = id * PIECE_LEN_MAX + ask.span.end;
        let head = self.soon(source, open.head()).await?;
        self.hear(line.index, source, &head);
        if head.len != end - at {
            let what = "its answer has another length";
            return Err(Broken::Failed(Fault::new(ErrorClass::SourceReadFailed, what)));
        }
        while at < end {
            let mut bytes = vec![0; (end - at).min(WRITE_LEN) as usize];
            let mut have = 0;
            while have < bytes.len() {
                let some = self.soon(source, open.some(&mut bytes[have..])).await;
                let way = &mut self.lock().ways[source];
                let some = some.inspect_err(|_| way.lost += have as u64)?;
                way.came(some as u64);
                have += some;
            }
            self.lock().ways[source].storing += 1;
            let stored = self.write(at, bytes, (source, line.index, id), turn).await;
            self.lock().ways[source].storing -= 1;
            stored?;
            at += have as u64;
        }
        Ok(())
    }

    /// What a source tells of a connection.
    fn hear(&self, line: usize, source: usize, head: &Head) {
        let (place, state) = (&self.places[source], &mut *self.lock());
        let way = &mut state.ways[source];
        way.sight.told(line - place.lines.start, head.told);
        // Once: it is told with each answer.
        if let (false, Some(lacks)) = (way.lacks, &head.lacks) {
            way.lacks = true;
            state.tell(format!("{}: {lacks}", place.remote.name()));
        }
    }

    /// Writes bytes to their place, and counts them.
    async fn write(
        &self,
        at: u64,
        bytes: Vec<u8>,
        (source, line, id): (usize, usize, u64),
        turn: u64,
    ) -> Result<(), Broken> {
        let len = bytes.len() as u64;
        let written = self.into.with(move |part| part.write(&bytes, at)).await;
        let complete = {
            let state = &mut *self.lock();
            if let Err(error) = written {
                let what = format!("writing: {error}");
                state.error = Some(Fault::new(ErrorClass::DestinationWriteFailed, what));
                return Err(Broken::InVain);
            }
            if state.ways[source].turn != turn || !state.ranges.is_wanted(id) {
                return Err(Broken::InVain);
            }
            state.ways[source].stored(len);
            state.ranges.came(self.now(), line, len)
        };
        if let Some(piece) = complete {
            self.complete(piece).await;
        }
        Ok(())
    }

    /// A piece is here.
    async fn complete(&self, piece: u64) {
        if let Err(error) = self.into.with(move |part| part.note(piece)).await {
            // Who goes on after a crash asks for it again.
            tracing::warn!(file = %self.piece.name, %error, "it is not written down what is here");
        }
        let state = &mut *self.lock();
        state.pieces -= 1;
        if state.pieces == 0 {
            self.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LOST_MAX, Way};

    #[test]
    fn a_source_of_which_something_comes_has_not_failed_unless_all_of_it_is_lost() {
        let mut silent = Way::new();
        assert_eq!([0, 1, 2].map(|before| silent.failed(before)), [false, false, true]);
        let mut slow = Way::new();
        slow.came(1);
        assert_eq!([0, 1, 2].map(|before| slow.failed(before)), [false; 3]);
        slow.lost = LOST_MAX;
        assert!(slow.failed(3));
        slow.stored(1);
        assert!(!slow.failed(4));
    }
}
