//! Sealing and opening of datagrams, without allocation.
//!
//! A datagram is a header in clear, a payload, and a 16-byte tag. The payload is encrypted and the 16-byte header
//! authenticated, also where eight bytes of it travel, from which the receiver makes the whole (`docs/protocol.md#WIRE-9`).
//! Key: HKDF-SHA256 of the epoch's secret with suite, purpose, stream id and the upper 40
//! bits of the packet number (a key lives for 2^24 datagrams); nonce: the 64-bit packet number
//! (`docs/protocol.md#KEY-1`). Feedback is sealed likewise under a secret of one receiver (`docs/protocol.md#KEY-3`).
//!
//! How a datagram is opened: length, epoch and stream are compared; the full packet number is rebuilt from
//! its low 32 (of symbols 24) bits and the highest one seen; the replay window is asked; then the tag is checked; only a
//! genuine datagram moves the window or displaces a key in the cache. So a forger costs at most
//! one key derivation and one tag check for each datagram, and no state.
//!
//! Invariants:
//! - [`SealKeys`] seals strictly rising packet numbers only: a nonce cannot repeat under a key. A new
//!   incarnation of a sender takes a new secret.
//! - [`OpenKeys`] lets each packet number through once.
//! - A session has one epoch, from its beginning to its end; a datagram of another one is dropped.
//!
//! Not here: where secrets come from (JOIN and the TLS exporter), what a message means.

use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk, Salt};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
pub use downpour_proto::wire::{HEADER_LEN, TAG_LEN};
use downpour_proto::wire::{Header, Near, ParseError, SHORT_LEN, Short, nearest};
use downpour_proto::{Epoch, PacketNumber, ReceiverId, StreamId};
use std::fmt;

/// Bytes that sealing and the header add to a symbol.
pub const OVERHEAD: usize = SHORT_LEN + TAG_LEN;

/// Longest datagram looked at: a jumbo frame's. Longer ones are dropped unread.
const DATAGRAM_LEN_MAX: usize = 9216;

const _: () = assert!(DATAGRAM_LEN_MAX > OVERHEAD);
const _: () = assert!(STREAM_WINDOW.is_multiple_of(64) && FEEDBACK_WINDOW.is_multiple_of(64));

/// Which cipher seals a session. The sender chooses; the number travels in the reply to JOIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// AES-256-GCM: for processors with AES instructions.
    Aes256Gcm,
    /// ChaCha20-Poly1305: 2.5 times slower than AES in hardware, much faster than AES in software.
    ChaCha20Poly1305,
}

impl Suite {
    /// The faster one on this machine.
    pub fn preferred() -> Self {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        let has_aes = std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let has_aes = std::arch::is_aarch64_feature_detected!("aes");
        #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
        let has_aes = false;
        if has_aes { Self::Aes256Gcm } else { Self::ChaCha20Poly1305 }
    }

    /// The number on the wire.
    pub const fn id(self) -> u8 {
        match self {
            Self::Aes256Gcm => 1,
            Self::ChaCha20Poly1305 => 2,
        }
    }

    /// From the number on the wire; `None` for one we do not know.
    pub const fn from_id(id: u8) -> Option<Self> {
        match id {
            1 => Some(Self::Aes256Gcm),
            2 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }

    fn algorithm(self) -> &'static aws_lc_rs::aead::Algorithm {
        match self {
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

/// 32 secret bytes: of an epoch, or of one receiver's feedback. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// From the JOIN reply or the TLS exporter.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A fresh one; `None` when the system gives no randomness.
    pub fn random() -> Option<Self> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// The bytes, to be sent over TLS and nowhere else.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What keys are for; part of each key's derivation, so that none serves two purposes.
#[derive(Clone, Copy)]
enum Purpose {
    Stream,
    Feedback(ReceiverId),
}

/// Derives the key of each run of 2^24 packet numbers from one secret.
struct Schedule {
    suite: Suite,
    prk: Prk,
    info: [u8; INFO_LEN],
}

const INFO_LABEL: &[u8; 16] = b"downpour seal v1";
const INFO_LEN: usize = INFO_LABEL.len() + 2 + 4 + 4;
/// Datagrams under one key: 2^24, 24 GB, far below the bound of AES-GCM.
const KEY_RUN_BITS: u32 = 24;

impl Schedule {
    fn new(suite: Suite, secret: &Secret, stream: StreamId, purpose: Purpose) -> Self {
        let (purpose, receiver) = match purpose {
            Purpose::Stream => (0, 0),
            Purpose::Feedback(receiver) => (1, receiver.0),
        };
        let mut info = [0; INFO_LEN];
        info[..16].copy_from_slice(INFO_LABEL);
        info[16] = suite.id();
        info[17] = purpose;
        info[18..22].copy_from_slice(&stream.0.to_be_bytes());
        info[22..].copy_from_slice(&receiver.to_be_bytes());
        Self { suite, prk: Salt::new(HKDF_SHA256, b"").extract(&secret.0), info }
    }

    fn key(&self, run: u64) -> LessSafeKey {
        let run = run.to_be_bytes();
        let info = [self.info.as_slice(), run.as_slice()];
        // Cannot fail: 32 bytes are asked for, and HKDF-SHA256 gives up to 255 · 32.
        let okm = self.prk.expand(&info, self.suite.algorithm());
        let okm = okm.expect("a key is shorter than HKDF's limit");
        LessSafeKey::new(UnboundKey::from(okm))
    }
}

fn run_of(number: u64) -> u64 {
    number >> KEY_RUN_BITS
}

fn nonce_of(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Why a datagram was not sealed: a mistake of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealError {
    /// Its packet number is not above the last one.
    NumberNotRising,
    /// Its header names another stream, epoch or packet number.
    HeaderDiffers,
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NumberNotRising => "packet number not above the last one sealed",
            Self::HeaderDiffers => "header names another stream, epoch or packet number",
        })
    }
}

impl std::error::Error for SealError {}

/// Seals what one originator sends: a stream, or one receiver's feedback.
pub struct SealKeys {
    schedule: Schedule,
    stream: StreamId,
    epoch: Epoch,
    last: u64,
    run: u64,
    key: LessSafeKey,
}

impl SealKeys {
    /// For the datagrams of a stream.
    pub fn stream(suite: Suite, secret: &Secret, stream: StreamId, epoch: Epoch) -> Self {
        Self::new(suite, secret, stream, epoch, Purpose::Stream)
    }

    /// For one receiver's feedback about a stream. Its epoch is always 0: a receiver has one key.
    pub fn feedback(suite: Suite, secret: &Secret, stream: StreamId, from: ReceiverId) -> Self {
        Self::new(suite, secret, stream, Epoch(0), Purpose::Feedback(from))
    }

    fn new(
        suite: Suite,
        secret: &Secret,
        stream: StreamId,
        epoch: Epoch,
        purpose: Purpose,
    ) -> Self {
        let schedule = Schedule::new(suite, secret, stream, purpose);
        let key = schedule.key(0);
        Self { schedule, stream, epoch, last: 0, run: 0, key }
    }

    /// Appends the datagram of `header` and `payload` to `out`, sealed; nothing when that fails.
    pub fn append(
        &mut self,
        number: PacketNumber,
        header: &Header,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        self.take_number(number, header)?;
        header.append(out);
        let body = out.len();
        let (nonce, aad) = (nonce_of(number.0), Aad::from(header.emit()));
        let sealed = match self.schedule.suite {
            // From where the payload lies, without a copy of it.
            Suite::Aes256Gcm => {
                out.resize(body + payload.len() + TAG_LEN, 0);
                self.key.seal_in_place_scatter(nonce, aad, &mut [], payload, &mut out[body..])
            }
            // The library does that a byte at a time with this one.
            Suite::ChaCha20Poly1305 => {
                out.extend_from_slice(payload);
                let tag = self.key.seal_in_place_separate_tag(nonce, aad, &mut out[body..]);
                tag.map(|tag| out.extend_from_slice(tag.as_ref()))
            }
        };
        // Fails only above 64 GB of payload.
        sealed.expect("a datagram is shorter than the cipher's limit");
        Ok(())
    }

    /// Uses up the number for the datagram with this header, and goes on to the number's key.
    fn take_number(&mut self, number: PacketNumber, header: &Header) -> Result<(), SealError> {
        let Header { epoch, stream, packet_low, .. } = *header;
        if (stream, epoch, packet_low) != (self.stream, self.epoch, number.0 as u32) {
            return Err(SealError::HeaderDiffers);
        }
        if number.0 <= self.last {
            return Err(SealError::NumberNotRising);
        }
        if run_of(number.0) != self.run {
            self.run = run_of(number.0);
            self.key = self.schedule.key(self.run);
        }
        self.last = number.0;
        Ok(())
    }
}

/// Why a datagram was dropped. The other side's doing, never an error of ours; counted, not logged one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// Shorter than header and tag.
    Truncated,
    /// A header or body that does not parse.
    Malformed,
    /// Longer than the session's datagrams are.
    Oversized,
    /// Another stream's: two sessions share a group, or somebody guesses.
    WrongStream,
    /// Another epoch than the session's.
    WrongEpoch,
    /// Seen before, or from where it cannot be told.
    Replayed,
    /// The tag is not right.
    Forged,
}

/// How many datagrams were dropped, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RejectCounts {
    /// See [`Reject::Truncated`].
    pub truncated: u64,
    /// See [`Reject::Malformed`].
    pub malformed: u64,
    /// See [`Reject::Oversized`].
    pub oversized: u64,
    /// See [`Reject::WrongStream`].
    pub wrong_stream: u64,
    /// See [`Reject::WrongEpoch`].
    pub wrong_epoch: u64,
    /// See [`Reject::Replayed`].
    pub replayed: u64,
    /// See [`Reject::Forged`].
    pub forged: u64,
}

impl RejectCounts {
    /// Counts one.
    pub fn count(&mut self, reject: Reject) {
        *match reject {
            Reject::Truncated => &mut self.truncated,
            Reject::Malformed => &mut self.malformed,
            Reject::Oversized => &mut self.oversized,
            Reject::WrongStream => &mut self.wrong_stream,
            Reject::WrongEpoch => &mut self.wrong_epoch,
            Reject::Replayed => &mut self.replayed,
            Reject::Forged => &mut self.forged,
        } += 1;
    }

    /// All together.
    pub const fn total(&self) -> u64 {
        self.truncated
            + self.malformed
            + self.oversized
            + self.wrong_stream
            + self.wrong_epoch
            + self.replayed
            + self.forged
    }
}

/// A genuine datagram.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// All 64 bits of its packet number.
    pub number: PacketNumber,
    /// The decrypted payload.
    pub payload: &'a [u8],
    /// Bytes of the datagram.
    pub datagram_len: usize,
}

/// Opens what one originator sent.
pub struct OpenKeys {
    stream: StreamId,
    epoch: Epoch,
    schedule: Schedule,
    len_max: usize,
    cache: KeyCache,
    window: ReplayWindow,
    /// Numbers of data and manifest blocks that are sent now, nearly, once that is known.
    blocks: Option<[u32; 2]>,
    rejects: RejectCounts,
    /// Symbols counted as forged since the last genuine datagram.
    doubted: u64,
}

/// Packet numbers remembered of a stream: 90 MB, a second at 750 Mbit/s.
const STREAM_WINDOW: usize = 65_536;
/// A symbol says the last 24 bits of its number: one that is further from the last is taken for another.
const SYMBOLS_REACH: u64 = 1 << 23;
/// Packet numbers remembered of a receiver's feedback.
const FEEDBACK_WINDOW: usize = 64;

impl OpenKeys {
    /// For the datagrams of a stream, of which `next` is about to come. `next` may be off by up to 2^31, ahead by
    /// nearly 2^32, and by 2^23 for the symbols before the first other datagram; a receiver learns it at JOIN.
    pub fn stream(
        suite: Suite,
        secret: &Secret,
        stream: StreamId,
        epoch: Epoch,
        next: PacketNumber,
    ) -> Self {
        let window = ReplayWindow::new(STREAM_WINDOW, next.0.saturating_sub(1));
        Self::new(suite, (epoch, secret), stream, Purpose::Stream, window)
    }

    /// For one receiver's feedback about a stream.
    pub fn feedback(suite: Suite, secret: &Secret, stream: StreamId, from: ReceiverId) -> Self {
        let window = ReplayWindow::new(FEEDBACK_WINDOW, 0);
        Self::new(suite, (Epoch(0), secret), stream, Purpose::Feedback(from), window)
    }

    fn new(
        suite: Suite,
        (epoch, secret): (Epoch, &Secret),
        stream: StreamId,
        purpose: Purpose,
        window: ReplayWindow,
    ) -> Self {
        Self {
            stream,
            epoch,
            schedule: Schedule::new(suite, secret, stream, purpose),
            len_max: DATAGRAM_LEN_MAX,
            cache: KeyCache::default(),
            window,
            blocks: None,
            rejects: RejectCounts::default(),
            doubted: 0,
        }
    }

    /// Drops datagrams longer than `len`, tag included, unread.
    pub fn limit_len(&mut self, len: usize) {
        self.len_max = len.min(DATAGRAM_LEN_MAX);
    }

    /// The highest packet number of a genuine datagram.
    pub fn highest(&self) -> PacketNumber {
        PacketNumber(self.window.highest)
    }

    /// Data and manifest blocks of about these numbers are sent now; may be off by up to 2^15.
    pub fn expect_blocks(&mut self, data: u32, manifest: u32) {
        if self.blocks.replace([data, manifest]).is_none() {
            self.settle_doubts(true);
        }
    }

    /// The whole header of `datagram`, as it says: only when it opens, this is what the sender wrote.
    pub fn header(&self, datagram: &[u8]) -> Result<Header, ParseError> {
        if !Short::begins(datagram) {
            return Header::parse(datagram);
        }
        let short = Short::parse(datagram)?;
        short.lengthen(&Near {
            stream: self.stream,
            epoch: self.epoch,
            packet: self.window.highest.saturating_add(1),
            blocks: self.blocks.unwrap_or_default(),
        })
    }

    /// What was dropped so far.
    pub fn rejects(&self) -> RejectCounts {
        self.rejects
    }

    /// Decrypts `datagram` in place, whose whole header is `header`, or counts why not; what is then in `datagram` must not be used.
    pub fn open<'a>(
        &mut self,
        header: &Header,
        datagram: &'a mut [u8],
    ) -> Result<Opened<'a>, Reject> {
        let before = self.window.highest;
        let opened = self.try_open(header, datagram);
        match &opened {
            Ok(opened) => {
                let ahead = opened.number.0.saturating_sub(before);
                self.settle_doubts(ahead >= SYMBOLS_REACH || self.blocks.is_none());
            }
            Err(reject) => {
                self.rejects.count(*reject);
                let is_symbol = header.len_sent() < HEADER_LEN;
                self.doubted += u64::from(is_symbol && *reject == Reject::Forged);
            }
        }
        opened
    }

    /// Symbols were taken for others before this, and were too early, not forged: a genuine datagram is far ahead of all
    /// before, as after a long absence, or nobody had told which blocks are sent.
    fn settle_doubts(&mut self, were_early: bool) {
        let doubted = std::mem::take(&mut self.doubted);
        if were_early {
            self.rejects.forged -= doubted;
            self.rejects.replayed += doubted;
        }
    }

    fn try_open<'a>(
        &mut self,
        header: &Header,
        datagram: &'a mut [u8],
    ) -> Result<Opened<'a>, Reject> {
        let (datagram_len, len_sent) = (datagram.len(), header.len_sent());
        if datagram_len > self.len_max {
            return Err(Reject::Oversized);
        }
        let rest = datagram.get_mut(len_sent..).ok_or(Reject::Truncated)?;
        let (payload, tag) = rest.split_last_chunk_mut::<TAG_LEN>().ok_or(Reject::Truncated)?;
        if header.stream != self.stream {
            return Err(Reject::WrongStream);
        }
        if header.epoch != self.epoch {
            return Err(Reject::WrongEpoch);
        }
        let next = self.window.highest.saturating_add(1);
        let mut number = nearest(next, u64::from(header.packet_low), 32);
        // What seems too old to tell may be new to who has missed half of all 32 bits. Of a symbol fewer bits are known.
        let seems_old = len_sent == HEADER_LEN && self.window.is_past(number);
        if seems_old {
            number = number.saturating_add(1 << 32);
        }
        if !self.window.is_new(number) {
            return Err(Reject::Replayed);
        }
        let run = run_of(number);
        let known = self.cache.find(run);
        let fresh = if known.is_none() { Some(self.schedule.key(run)) } else { None };
        // One of the two is there.
        let key = known.or(fresh.as_ref()).ok_or(Reject::Forged)?;
        key.open_in_place_separate_tag(nonce_of(number), Aad::from(header.emit()), tag, payload)
            .map_err(|_| if seems_old { Reject::Replayed } else { Reject::Forged })?;
        if let Some(fresh) = fresh {
            self.cache.keep(run, fresh);
        }
        self.window.mark(number);
        Ok(Opened { number: PacketNumber(number), payload, datagram_len })
    }
}

/// Keys that opened something lately. Small: runs change every 2^24 datagrams.
#[derive(Default)]
struct KeyCache {
    keys: Vec<(u64, LessSafeKey)>,
    next: usize,
}

const KEYS_CACHED: usize = 4;

impl KeyCache {
    fn find(&self, run: u64) -> Option<&LessSafeKey> {
        self.keys.iter().find(|(known, _)| *known == run).map(|(_, key)| key)
    }

    fn keep(&mut self, run: u64, key: LessSafeKey) {
        if self.keys.len() < KEYS_CACHED {
            self.keys.push((run, key));
        } else {
            self.keys[self.next] = (run, key);
            self.next = (self.next + 1) % KEYS_CACHED;
        }
    }
}

/// Which of the last packet numbers were seen; a ring of bits below the highest.
struct ReplayWindow {
    highest: u64,
    bits: Box<[u64]>,
}

impl ReplayWindow {
    fn new(width: usize, highest: u64) -> Self {
        Self { highest, bits: vec![0; width / 64].into_boxed_slice() }
    }

    fn width(&self) -> u64 {
        self.bits.len() as u64 * 64
    }

    fn place(&self, number: u64) -> (usize, u64) {
        let at = number % self.width();
        ((at / 64) as usize, 1 << (at % 64))
    }

    fn is_new(&self, number: u64) -> bool {
        if number > self.highest {
            return true;
        }
        let (word, bit) = self.place(number);
        // Number 0 is never sent.
        number != 0 && !self.is_past(number) && self.bits[word] & bit == 0
    }

    /// It is so far below the highest that nobody knows whether it was seen.
    fn is_past(&self, number: u64) -> bool {
        self.highest.saturating_sub(number) >= self.width()
    }

    fn mark(&mut self, number: u64) {
        if number > self.highest {
            if number - self.highest >= self.width() {
                self.bits.fill(0);
            } else {
                for skipped in self.highest + 1..=number {
                    let (word, bit) = self.place(skipped);
                    self.bits[word] &= !bit;
                }
            }
            self.highest = number;
        }
        let (word, bit) = self.place(number);
        self.bits[word] |= bit;
    }
}

#[cfg(test)]
mod tests;
