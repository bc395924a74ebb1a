//! What the catalog holds: ids, and one type for each kind of record.
//!
//! Ids are given by the catalog. A [`FileId`] holds the time at which the file was taken in, the writer that
//! took it in and a count, so that many daemons give ids beside each other without asking a shared row,
//! ids grow with time, and a search by time is a range of ids. They grow also where the clock goes back: then a later time is in them,
//! and when the file was taken in is what is stored beside it.

use crate::class::ErrorClass;
use crate::code::coded;
use crate::life::{Reason, State};
use downpour_proto::StreamId;
use std::fmt;

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )+};
}

id! {
    /// A site, by its number in this catalog.
    SiteId;
    /// A rule of the spool, by its number in this catalog.
    RuleId;
    /// A transfer: a job that an operator or a rule submitted.
    TransferId;
    /// A multicast session.
    SessionId;
    /// A writer: one daemon, and its event log.
    LogId;
    /// Counts the changes of one file, from 1. A change names the revision that it found.
    Revision;
    /// Proof of a lease: greater with each claim of the same file.
    Fence;
    /// A file: 42 bits of milliseconds, 10 of writer, 11 of count.
    FileId;
}

impl FileId {
    const COUNT_BITS: u32 = 11;
    const LOG_BITS: u32 = 10;
    /// Writers are numbered below this.
    pub const LOG_END: i64 = 1 << Self::LOG_BITS;

    /// The least id given at `time`; of times after the year 2109, for which there are none, one that no file has.
    pub const fn first_at(time: Time) -> Self {
        const BITS: u32 = FileId::LOG_BITS + FileId::COUNT_BITS;
        match time.0 / 1000 {
            ..0 => Self(0),
            millis if millis > i64::MAX >> BITS => Self(i64::MAX),
            millis => Self(millis << BITS),
        }
    }

    /// The writer that took the file in.
    pub const fn log(self) -> LogId {
        LogId(self.0 >> Self::COUNT_BITS & (Self::LOG_END - 1))
    }

    /// When the file was taken in, to the millisecond; later where the clock had been ahead.
    pub const fn time(self) -> Time {
        Time((self.0 >> (Self::LOG_BITS + Self::COUNT_BITS)) * 1000)
    }
}

/// When a file was taken in at its site of origin: what is stored, or what its id says.
pub(crate) const fn taken_in(file: FileId, stored: i64) -> Time {
    if stored == 0 { file.time() } else { Time(stored) }
}

/// Gives ids to the files of one writer: growing, also when the clock steps back.
#[derive(Debug)]
pub(crate) struct Mint {
    log: LogId,
    millis: i64,
    count: i64,
}

impl Mint {
    /// Gives ids later than `last`, whoever gave that one.
    pub(crate) const fn new(log: LogId, last: FileId) -> Self {
        let millis = last.0 >> (FileId::LOG_BITS + FileId::COUNT_BITS);
        Self { log, millis, count: (1 << FileId::COUNT_BITS) - 1 }
    }

    pub(crate) fn next(&mut self, now: Time) -> FileId {
        let clock = now.0.max(0) / 1000;
        if clock > self.millis {
            (self.millis, self.count) = (clock, 0);
        } else if self.count + 1 < 1 << FileId::COUNT_BITS {
            self.count += 1;
        } else {
            // All of that millisecond are given.
            (self.millis, self.count) = (self.millis + 1, 0);
        }
        FileId((self.millis << FileId::LOG_BITS | self.log.0) << FileId::COUNT_BITS | self.count)
    }
}

/// A clock that is set back by less has only been corrected, seconds.
pub(crate) const AHEAD_MAX_S: i64 = 300;

/// Microseconds since 1970, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Time {
    /// `seconds` later, or the last time there is.
    pub const fn plus_s(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds.saturating_mul(1_000_000)))
    }
}

coded! {
    /// Which digest. BLAKE3 defines identity; the others are recorded on demand.
    pub enum DigestKind: "digest" {
        /// 32 bytes.
        Blake3 = 1 "blake3",
        /// 16 bytes.
        Md5 = 2 "md5",
        /// 32 bytes.
        Sha256 = 3 "sha256",
        /// 4 bytes, big-endian.
        Adler32 = 4 "adler32",
    }
}

impl DigestKind {
    /// Bytes of such a digest.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Blake3 | Self::Sha256 => 32,
            Self::Md5 => 16,
            Self::Adler32 => 4,
        }
    }
}

/// A digest of a file's content.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Digest {
    kind: DigestKind,
    value: Vec<u8>,
}

impl Digest {
    /// A digest of this kind; `None` when it has not the kind's length.
    pub fn new(kind: DigestKind, value: &[u8]) -> Option<Self> {
        (value.len() == kind.bytes()).then(|| Self { kind, value: value.to_vec() })
    }

    /// A BLAKE3 digest.
    pub fn blake3(value: [u8; 32]) -> Self {
        Self { kind: DigestKind::Blake3, value: value.to_vec() }
    }

    /// Which digest it is.
    pub const fn kind(&self) -> DigestKind {
        self.kind
    }

    /// Its bytes.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Its bytes in hexadecimal.
    pub fn hex(&self) -> String {
        hex(&self.value)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.hex())
    }
}

/// `kind:hex`, as the command line takes it; the kind may be left out for BLAKE3.
impl std::str::FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, hex) = text.split_once(':').unwrap_or(("blake3", text));
        let kind: DigestKind = kind.parse().map_err(|e: crate::code::UnknownName| e.to_string())?;
        unhex(hex)
            .and_then(|value| Self::new(kind, &value))
            .ok_or_else(|| format!("`{hex}` is not {} hexadecimal digits", 2 * kind.bytes()))
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

/// A file as the catalog knows it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its id.
    pub id: FileId,
    /// Where it comes from.
    pub site: SiteId,
    /// Its name within the site.
    pub name: String,
    /// 1 for the first content of this name, and so on.
    pub version: i64,
    /// When it was taken in at the site that it comes from; the same in all catalogs.
    pub taken_in: Time,
    /// Its length.
    pub size: u64,
    /// The rule that took it in.
    pub rule: RuleId,
    /// Where it stands.
    pub state: State,
    /// How often it was changed.
    pub revision: Revision,
    /// Since when it stands there.
    pub since: Time,
    /// Why it does not move; `None` when it moves or has ended.
    pub reason: Option<Reason>,
    /// When it is looked at again by itself; `None` when something else must happen first.
    pub next_try: Option<Time>,
    /// The error behind the reason.
    pub error: Option<ErrorClass>,
    /// Attempts begun.
    pub tries: u32,
    /// Its identity, once hashed.
    pub digest: Option<Digest>,
}

coded! {
    /// What is known of a replica.
    pub enum ReplicaState: "replica state" {
        /// Verified when it was written or adopted.
        Present = 1 "present",
        /// Did not match at the last look.
        Corrupt = 2 "corrupt",
        /// Was not there at the last look.
        Lost = 3 "lost",
        /// Removed by rule or by hand.
        Removed = 4 "removed",
    }
}

/// One copy of a file at a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    /// Of which file.
    pub file: FileId,
    /// Where.
    pub site: SiteId,
    /// Path at that site.
    pub path: String,
    /// What is known of it.
    pub state: ReplicaState,
}

coded! {
    /// How an attempt ended.
    pub enum Outcome: "outcome" {
        /// The destination verified the file.
        Verified = 1 "verified",
        /// It failed; the error class says how.
        Failed = 2 "failed",
        /// The file was cancelled meanwhile.
        Cancelled = 3 "cancelled",
        /// The daemon's lease ended first.
        Lapsed = 4 "lapsed",
    }
}

/// One attempt to move a file, ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Of which file.
    pub file: FileId,
    /// 1 for the file's first.
    pub number: u32,
    /// For which transfer; `None` when a rule alone wanted it.
    pub transfer: Option<TransferId>,
    /// By which daemon.
    pub writer: LogId,
    /// When it began.
    pub started: Time,
    /// When it ended.
    pub ended: Time,
    /// Bytes moved.
    pub bytes: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What went wrong.
    pub error: Option<ErrorClass>,
    /// The session that it was part of, as receipts name it; `None` when it failed before there was one.
    pub session: Option<String>,
}

/// A receiver's signed statement that a file is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Of which file.
    pub file: FileId,
    /// The node key of the one who signed.
    pub receiver: Vec<u8>,
    /// When it came.
    pub at: Time,
    /// The statement as it was signed, with its signature.
    pub signed: Vec<u8>,
}

/// A job: files from one site to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Its id, chosen by who submits it, so that submitting it twice is one transfer.
    pub id: TransferId,
    /// Where from.
    pub from: SiteId,
    /// Where to.
    pub to: SiteId,
    /// When it was submitted.
    pub submitted: Time,
}

/// A multicast session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its id, chosen by the daemon that opens it.
    pub id: SessionId,
    /// The sender's stream.
    pub stream: StreamId,
    /// For which rule; number 0 where it serves several.
    pub rule: RuleId,
    /// When it began.
    pub started: Time,
    /// When it ended; `None` while it runs.
    pub ended: Option<Time>,
}

coded! {
    /// How far a receiver of a multicast session is with a file.
    pub enum DeliveryState: "delivery" {
        /// It is to have the file.
        Expected = 1 "expected",
        /// It has all of it, by the stream.
        Complete = 2 "complete",
        /// It has all of it, in part or whole by pull.
        Pulled = 3 "pulled",
        /// It could not take it; the error class says why.
        Failed = 4 "failed",
        /// It left or fell silent.
        Gone = 5 "gone",
    }
}

/// One file of a multicast session at one receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The session.
    pub session: SessionId,
    /// The file.
    pub file: FileId,
    /// The receiver's node key.
    pub receiver: Vec<u8>,
    /// How far it is.
    pub state: DeliveryState,
    /// What went wrong.
    pub error: Option<ErrorClass>,
}

coded! {
    /// What an event tells.
    pub enum EventKind: "event" {
        /// A file was taken in.
        TakenIn = 1 "taken-in",
        /// A file went from one state to another.
        Moved = 2 "moved",
        /// A digest was recorded.
        Digest = 3 "digest",
        /// A replica was recorded.
        Replica = 4 "replica",
        /// A receipt was recorded.
        Receipt = 5 "receipt",
        /// A transfer was submitted.
        Transfer = 6 "transfer",
        /// A session was opened or closed.
        Session = 7 "session",
        /// A delivery was recorded.
        Delivery = 8 "delivery",
        /// It was written down what was seen on a link.
        LinkSeen = 9 "link-seen",
        /// Something was decided on a link.
        Decision = 10 "decision",
    }
}

/// One line of a writer's log. It says that something changed, and of what; the record itself says what it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whose log.
    pub log: LogId,
    /// From 1, without gaps.
    pub number: i64,
    /// When.
    pub at: Time,
    /// What happened.
    pub kind: EventKind,
    /// The file, transfer or session that it is about; of a link, the time of the record.
    pub subject: i64,
    /// The file's revision after it; 0 for what is no file.
    pub revision: Revision,
    /// The file's state before.
    pub from: Option<State>,
    /// The file's state after.
    pub to: Option<State>,
    /// The error class behind it.
    pub error: Option<ErrorClass>,
}

/// How many files of a site and rule stand in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The site they come from.
    pub site: SiteId,
    /// The rule that took them in.
    pub rule: RuleId,
    /// Where they stand.
    pub state: State,
    /// How many.
    pub files: i64,
    /// Their bytes together.
    pub bytes: i64,
}

#[cfg(test)]
mod tests {
    use super::{Digest, FileId, LogId, Mint, Time};

    #[test]
    fn ids_grow_with_time_and_never_repeat() {
        let now = Time(1_800_000_000_123_456);
        let mut mint = Mint::new(LogId(5), FileId(0));
        let mut last = FileId(0);
        for _ in 0..10_000 {
            let next = mint.next(now);
            assert!(next > last);
            assert_eq!(next.log(), LogId(5));
            last = next;
        }
        // The clock stepped back: ids do not. Nor do those of another writer who begins after this one.
        assert!(mint.next(Time(0)) > last);
        assert!(Mint::new(LogId(1), last).next(Time(0)) > last);
        let next = mint.next(now.plus_s(60));
        assert_eq!(next.time().0, now.plus_s(60).0 / 1000 * 1000);
        assert!(next >= FileId::first_at(now.plus_s(60)));
    }

    #[test]
    fn the_first_id_of_a_time_grows_with_it() {
        let year = |year: i64| FileId::first_at(Time(0).plus_s((year - 1970) * 31_556_952));
        assert!(year(1969) == FileId(0) && year(2026) < year(2109));
        assert!([2110, 2500, 9999].iter().all(|after| year(*after) == FileId(i64::MAX)));
    }

    #[test]
    fn digests_parse_as_they_are_shown() {
        let digest = Digest::blake3([0xa5; 32]);
        assert_eq!(digest.hex().parse(), Ok(digest.clone()));
        assert_eq!(format!("{digest:?}").parse(), Ok(digest));
        for wrong in ["", "abc", "md5:00", "crc:00", &"zz".repeat(32)] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }
}
