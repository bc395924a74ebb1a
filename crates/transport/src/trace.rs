//! A trace: what a session's driver sent, received and believed, one line of JSON each, zstd-compressed.
//!
//! 1. The owner opens the file ([`Trace::create`]): a thread of its own writes it.
//! 2. A driver notes records by a [`Tap`]: into an array of its own, which goes to the writer as a whole when it is full
//!    or old.
//! 3. [`Trace::finish`] writes what is left and the last line.
//!
//! Invariants: noting never waits and costs no system call; where the writer is behind by 65,536 of them,
//! records are dropped, and the last line counts them. What was written a second ago can be read even
//! if the process is killed.
//!
//! The lines, told apart by `type`; times `t` are seconds since the trace was opened:
//!
//! - `trace`, the first: `version`, `role`, `unix_s` (the time of t = 0).
//! - `data`, `manifest`, `poll`, `advert`, `probe`, `feedback`, `presence`: a datagram. `way` (`out`, `in`), `packet` (its full
//!   number; from a receiver its counter), `len` (UDP payload, bytes); of symbols `block`, `symbol` (1024 and above:
//!   repair), `k`; of feedback, and of presence that a receiver passes on, `receiver`.
//! - `sample` (sender): one receiver's answer as the controller gets it, in `RateSample`'s words.
//! - `rate` (sender): what the controller believes after a sample or a poll, in `RateSummary`'s words.
//! - `end`, the last: `records` written, `lost` dropped.

use crate::Clock;
use downpour_proto::rate::{RateSample, RateSummary};
use downpour_proto::wire::Kind;
use downpour_proto::{BlockKind, Duration, PacketNumber, Timestamp};
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

/// Records that travel together.
const BATCH_RECORDS: usize = 256;
/// Batches that may wait for the writer: at 1 Gbit/s most of a second, and 10 MB.
const QUEUE_BATCHES: usize = 256;
/// A batch that is older goes on its way when the next record comes.
const BATCH_AGE: Duration = Duration::from_millis(200);
/// How often what was written is made readable in the file.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Fast: the writer shares the machine with the session.
const LEVEL: i32 = 1;

/// Which way a datagram went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Away from us.
    Out,
    /// Towards us.
    In,
}

#[derive(Clone, Copy, Debug)]
enum Record {
    Datagram { way: Way, kind: Kind, packet: PacketNumber, len: usize },
    Sample(RateSample),
    Rate(RateSummary),
}

type Batch = Vec<(Timestamp, Record)>;

/// What came of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEnd {
    /// Lines written.
    pub records: u64,
    /// Records that there was no time to write.
    pub lost: u64,
}

/// A trace that is being written. Clones are the same trace.
#[derive(Clone)]
pub struct Trace {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    lost: Arc<AtomicU64>,
    queue: SyncSender<Batch>,
    writer: Mutex<Option<JoinHandle<io::Result<TraceEnd>>>>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trace(..)")
    }
}

impl Trace {
    /// Makes the file, or empties it. `role` is `sender` or `receiver`.
    pub fn create(path: &Path, role: &str) -> io::Result<Self> {
        let mut out = zstd::Encoder::new(BufWriter::new(File::create(path)?), LEVEL)?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let clock = Clock::start();
        writeln!(
            out,
            r#"{{"type":"trace","version":1,"role":"{role}","unix_s":{}}}"#,
            Seconds(unix)
        )?;
        let (queue, batches) = sync_channel(QUEUE_BATCHES);
        let lost = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&lost);
        let thread = thread::Builder::new().name("downpour-trace".to_owned());
        let writer = thread.spawn(move || write(out, &batches, &counter))?;
        let writer = Mutex::new(Some(writer));
        Ok(Self { inner: Arc::new(Inner { clock, lost, queue, writer }) })
    }

    /// A tap for one thread, whose times are of `clock`.
    pub fn tap(&self, clock: &Clock) -> Tap {
        // One of the two was started first.
        let (ours, theirs) = (self.inner.clock.now(), clock.now());
        Tap {
            offset: (ours.since(theirs), theirs.since(ours)),
            batch: Vec::with_capacity(BATCH_RECORDS),
            queue: self.inner.queue.clone(),
            lost: Arc::clone(&self.inner.lost),
        }
    }

    /// Writes what is left and closes the file. The taps must be gone, or their last records are lost; a
    /// second call is an error.
    pub fn finish(&self) -> io::Result<TraceEnd> {
        let gone = || io::Error::other("the thread that writes the trace has failed");
        // An empty batch is the end. The queue may be full: this waits. It fails when the writer has, which says why.
        let _ = self.inner.queue.send(Batch::new());
        let writer = self.inner.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        writer.ok_or_else(gone)?.join().map_err(|_| gone())?
    }
}

/// Where one thread notes its records. Dropping it passes on the last ones.
pub struct Tap {
    /// What to add to a time, and what to take away.
    offset: (Duration, Duration),
    batch: Batch,
    queue: SyncSender<Batch>,
    lost: Arc<AtomicU64>,
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap(..)")
    }
}

impl Tap {
    /// A datagram of `len` bytes has left, or has arrived.
    #[inline]
    pub fn datagram(&mut self, at: Timestamp, way: Way, kind: Kind, packet: u64, len: usize) {
        self.note(at, Record::Datagram { way, kind, packet: PacketNumber(packet), len });
    }

    /// The controller has been told of this answer.
    pub fn sample(&mut self, at: Timestamp, sample: &RateSample) {
        self.note(at, Record::Sample(*sample));
    }

    /// What the controller believes, after a sample or a poll.
    pub fn rate(&mut self, at: Timestamp, summary: RateSummary) {
        self.note(at, Record::Rate(summary));
    }

    fn note(&mut self, at: Timestamp, record: Record) {
        let at = at + self.offset.0 - self.offset.1;
        self.batch.push((at, record));
        let first = self.batch.first().map_or(at, |(at, _)| *at);
        if self.batch.len() >= BATCH_RECORDS || at.since(first) > BATCH_AGE {
            self.pass_on();
        }
    }

    fn pass_on(&mut self) {
        if self.batch.is_empty() {
            return; // An empty batch is the end.
        }
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH_RECORDS));
        if let Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) =
            self.queue.try_send(batch)
        {
            self.lost.fetch_add(batch.len() as u64, Ordering::Relaxed);
            self.batch = batch;
            self.batch.clear();
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.pass_on();
    }
}

fn write(
    mut out: zstd::Encoder<'static, BufWriter<File>>,
    batches: &Receiver<Batch>,
    lost: &AtomicU64,
) -> io::Result<TraceEnd> {
    let mut records = 0;
    let clock = Clock::start();
    let mut flushed = clock.now();
    loop {
        match batches.recv_timeout(FLUSH_INTERVAL) {
            Ok(batch) if batch.is_empty() => break,
            Ok(batch) => {
                records += batch.len() as u64;
                batch.iter().try_for_each(|(at, record)| write_record(&mut out, *at, record))?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if clock.now().since(flushed) >= FLUSH_INTERVAL {
            flushed = clock.now();
            out.flush()?;
        }
    }
    let lost = lost.load(Ordering::Relaxed);
    writeln!(out, r#"{{"type":"end","records":{records},"lost":{lost}}}"#)?;
    out.finish()?.flush()?;
    Ok(TraceEnd { records, lost })
}

fn write_record(out: &mut impl Write, at: Timestamp, record: &Record) -> io::Result<()> {
    let at = Seconds(Duration::from_nanos(at.as_nanos()));
    match record {
        Record::Datagram { way, kind, packet, len } => {
            let (name, fields) = describe(kind);
            let way = if *way == Way::Out { "out" } else { "in" };
            let packet = packet.0;
            writeln!(
                out,
                r#"{{"type":"{name}","t":{at},"way":"{way}","packet":{packet},"len":{len}{fields}}}"#
            )
        }
        Record::Sample(s) => writeln!(
            out,
            r#"{{"type":"sample","t":{at},"receiver":{},"sent_packets":{},"received_packets":{},"sent_bytes":{},"send_s":{},"receive_s":{},"rtt_s":{},"queue_s":{},"host_drops":{},"app_limited":{}}}"#,
            s.receiver.0,
            s.sent_packets,
            s.received_packets,
            s.sent_bytes,
            Seconds(s.send_interval),
            Seconds(s.receive_interval),
            Seconds(s.rtt),
            Seconds(s.queue_delay),
            s.host_drops,
            s.app_limited,
        ),
        Record::Rate(r) => writeln!(
            out,
            r#"{{"type":"rate","t":{at},"phase":"{:?}","rate_bps":{},"bottleneck_bps":{},"random_loss":{:.6},"queue_s":{},"limiting":{}}}"#,
            r.phase,
            r.rate.bps(),
            OrNull(r.bottleneck.map(|b| b.bps())),
            r.random_loss,
            Seconds(r.queue_delay),
            OrNull(r.limiting.map(|id| u64::from(id.0))),
        ),
    }
}

/// The name of a kind, and the fields of its own.
fn describe(kind: &Kind) -> (&'static str, Fields) {
    match kind {
        Kind::Symbol { block, k, symbol } => {
            let name = match block.kind() {
                BlockKind::Data => "data",
                BlockKind::Manifest => "manifest",
            };
            (name, Fields::Symbol { block: block.number(), symbol: symbol.raw(), k: *k })
        }
        Kind::Poll => ("poll", Fields::None),
        Kind::Advert => ("advert", Fields::None),
        Kind::Probe => ("probe", Fields::None),
        Kind::Feedback { receiver } => ("feedback", Fields::Receiver(receiver.0)),
        Kind::Presence { receiver } => {
            ("presence", receiver.map_or(Fields::None, |receiver| Fields::Receiver(receiver.0)))
        }
    }
}

enum Fields {
    None,
    Receiver(u32),
    Symbol { block: u32, symbol: u16, k: u16 },
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Receiver(id) => write!(f, r#","receiver":{id}"#),
            Self::Symbol { block, symbol, k } => {
                write!(f, r#","block":{block},"symbol":{symbol},"k":{k}"#)
            }
        }
    }
}

/// Seconds to the microsecond, without a detour by floating point.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0.as_secs(), self.0.subsec_micros())
    }
}

struct OrNull(Option<u64>);

impl fmt::Display for OrNull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => write!(f, "{value}"),
            None => f.write_str("null"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BATCH_RECORDS, Batch, Record, Trace, Way, write};
    use crate::Clock;
    use downpour_proto::rate::{Fixed, RateController, RateSample};
    use downpour_proto::wire::Kind;
    use downpour_proto::{BlockId, Duration, Rate, ReceiverId, SymbolId, Timestamp};
    use serde_json::Value;
    use std::fs::File;
    use std::io::{BufWriter, Read as _};
    use std::path::Path;
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::sync_channel;

    fn lines(path: &Path) -> Vec<Value> {
        let mut text = String::new();
        zstd::Decoder::new(File::open(path).unwrap()).unwrap().read_to_string(&mut text).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn what_happened_is_in_the_file_in_its_own_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.zst");
        let trace = Trace::create(&path, "sender").unwrap();
        let clock = Clock::start();
        let mut tap = trace.tap(&clock);
        let kind =
            Kind::Symbol { block: BlockId::data(7).unwrap(), k: 9, symbol: SymbolId::repair(3) };
        let at = Timestamp::ZERO + Duration::from_millis(1250);
        tap.datagram(at, Way::Out, kind, 1 << 33, 1472);
        tap.datagram(at, Way::In, Kind::Feedback { receiver: ReceiverId(4) }, 2, 100);
        let sample = RateSample {
            receiver: ReceiverId(4),
            sent_packets: 10,
            sent_bytes: 14_720,
            send_interval: Duration::from_millis(5),
            received_packets: 9,
            receive_interval: Duration::from_millis(6),
            poll_sent: at,
            bytes_since: 0,
            rtt: Duration::from_micros(20_500),
            queue_delay: Duration::from_millis(3),
            host_drops: 0,
            app_limited: false,
        };
        tap.sample(at, &sample);
        tap.rate(at, Fixed::new(Rate::from_mbps(8)).summary());
        drop(tap);
        let end = trace.finish().unwrap();
        assert_eq!((end.records, end.lost), (4, 0));
        let lines = lines(&path);
        let types: Vec<_> = lines.iter().map(|l| l["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["trace", "data", "feedback", "sample", "rate", "end"]);
        assert_eq!(
            (lines[1]["block"].as_u64(), lines[1]["symbol"].as_u64()),
            (Some(7), Some(1027))
        );
        assert_eq!((lines[1]["packet"].as_u64(), &lines[1]["way"]), (Some(1 << 33), &"out".into()));
        // The driver's clock started a moment after the trace's.
        let t = lines[1]["t"].as_f64().unwrap();
        assert!(t >= 1.25, "{t}");
        assert_eq!(lines[3]["rtt_s"].as_f64(), Some(0.0205));
        assert_eq!(lines[4]["rate_bps"].as_u64(), Some(8_000_000));
    }

    #[test]
    fn records_that_the_writer_has_no_time_for_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.zst");
        let trace = Trace::create(&path, "receiver").unwrap();
        let mut tap = trace.tap(&Clock::start());
        // Nobody takes anything out of this queue until it is full.
        let (queue, batches) = sync_channel::<Batch>(2);
        tap.queue = queue.clone();
        for n in 0..5 * BATCH_RECORDS as u64 {
            tap.datagram(Timestamp::ZERO, Way::In, Kind::Poll, n, 60);
        }
        drop((tap, queue));
        let lost: &AtomicU64 = &trace.inner.lost;
        let out = zstd::Encoder::new(BufWriter::new(File::create(&path).unwrap()), 1).unwrap();
        let end = write(out, &batches, lost).unwrap();
        let batch = BATCH_RECORDS as u64;
        assert_eq!((end.records, end.lost), (2 * batch, 3 * batch));
        let lines = lines(&path);
        assert_eq!(lines.last().unwrap()["lost"].as_u64(), Some(3 * batch));
        assert_eq!(lines[0]["packet"].as_u64(), Some(0), "the first are kept, in order");
    }

    #[test]
    fn a_record_is_small_enough_for_the_queue_that_is_promised() {
        let size = size_of::<(Timestamp, Record)>() * BATCH_RECORDS * super::QUEUE_BATCHES;
        assert!(size <= 12 << 20, "{size}");
    }
}
