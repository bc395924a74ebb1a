//! The bodies of the control endpoints (`docs/protocol.md#CTL-6` to `#CTL-14`).
//!
//! JSON. Fields that are not known are ignored, so that either side may be newer. Times are seconds since
//! 1970 (UTC); lengths are bytes.
//!
//! | request | body | answer |
//! | --- | --- | --- |
//! | `POST /v1/join` | [`JoinRequest`] | [`JoinReply`] |
//! | `POST /v1/ready` | [`ReadyRequest`] | nothing |
//! | `GET /v1/events` | | [`Event`], one a line |
//! | `POST /v1/have` | [`HaveRequest`] | nothing |
//! | `POST /v1/receipt` | [`SignedReceipt`] | nothing |
//! | `POST /v1/leave` | [`LeaveRequest`] | nothing |
//! | `POST /v1/word` | [`Word`] | nothing |
//! | `POST /v1/turn` | [`TurnRequest`] | [`TurnReply`] |
//! | `GET /v1/data`, `GET /v1/manifest` | header `Range` | bytes |
//! | `GET /v1/repair/{block}?from=i&count=n` | | `n` repair symbols of block `d7` or `m7` |
//!
//! Which headers each needs: `docs/protocol.md#CTL-7`.

use super::text;
use crate::Secret;
use crate::identity::{Identity, PublicKey, Signature};
use downpour_proto::transfer::steer::Beside;
use downpour_proto::{BlockId, Code, Epoch, Geometry, ReceiverId, StreamId};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// Version of the endpoints and of the datagrams. Both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 3;
/// Names the session, as in [`JoinReply::session`].
pub const SESSION_HEADER: &str = "downpour-session";
/// Names the receiver, as in [`JoinReply::receiver`].
pub const RECEIVER_HEADER: &str = "downpour-receiver";
/// Label of the exported keying material that seals a receiver's feedback. The context is the session id.
pub const FEEDBACK_LABEL: &[u8] = b"downpour feedback";

/// Longest name of a machine or session, bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Longest reason in a message, bytes.
pub const REASON_LEN_MAX: usize = 512;
/// Ranges in one [`HaveRequest`], both kinds together.
pub const HAVE_RANGES_MAX: usize = 16_384;
/// Bytes of a receipt's text. Twice this, the worst that quoting makes of it, is within the body's limit.
pub const RECEIPT_LEN_MAX: usize = 500_000;
/// Bytes of a [`Word`]. Twice this, the worst that quoting makes of it, is within the body's limit.
pub const WORD_LEN_MAX: usize = 500_000;
/// Entries of one [`Event::Manifest`]: an event is one line of at most 8 KiB.
pub const MANIFEST_SYMBOLS_MAX: usize = 1_000;
/// Below what the least MTU leaves, 504: who counts the bytes of blocks counts few blocks.
const SYMBOL_LEN_MIN: u16 = 500;
const SYMBOL_LEN_MAX: u16 = 65_000;

text::bytes16! {
    /// One run of a sender. A sender that is started again has another.
    SessionId, "a session id", Self::to_text
}
text::bytes16! {
    /// One target folder of one receiver: the same after a restart into the same folder.
    InstanceId, "an instance id", Self::to_text
}
text::bytes16! {
    /// What a ticket admits with. Not shown by `Debug`.
    Token, "a token", |_| "..".to_owned()
}

/// A receiver asks to be taken in (`docs/protocol.md#CTL-8`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// [`PROTOCOL_VERSION`] of the receiver.
    pub protocol: u32,
    /// The receiver's program and version, for reports.
    pub software: String,
    /// What to call the machine in reports: usually its host name.
    pub name: String,
    /// Which of the receivers that this node runs, and whether it was here before.
    pub instance: InstanceId,
    /// Numbers of the erasure codes that it can decode (`docs/protocol.md#CODE-3`).
    #[serde(default = "first_code")]
    pub codes: Vec<u8>,
    /// In which session of products it was before, and how far it has got (`docs/protocol.md#PROD-14`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Follows>,
}

/// How far a receiver has got in a session of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Follows {
    /// Which one.
    pub session: SessionId,
    /// The first block of which it has not given everything on.
    pub block: u32,
}

/// What a receiver that says nothing of codes knows.
fn first_code() -> Vec<u8> {
    vec![Code::ReedSolomon.number()]
}

impl JoinRequest {
    /// Whether what it says can be meant.
    pub fn check(&self) -> Result<(), &'static str> {
        let is_line = |text: &str| text.len() <= NAME_LEN_MAX && !text.contains(char::is_control);
        if !is_line(&self.name) || !is_line(&self.software) {
            return Err("name and software have at most 255 bytes, and no control characters");
        }
        Ok(())
    }
}

/// The sender's clock (`docs/protocol.md#CTL-16`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClockReply {
    /// Nanoseconds since 1970.
    pub(super) unix_ns: u64,
}

/// A receiver asks for the turn to try another setting of its connections, and how others are sent to (`docs/protocol.md#WAN-9`).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct TurnRequest {
    /// It tries one, or wants to.
    pub(super) wants: bool,
}

/// The answer to it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct TurnReply(#[serde(with = "BesideText")] pub(super) Beside);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Beside")]
struct BesideText {
    others: u32,
    bytes: u64,
    changes: u64,
    turn: bool,
}

/// All that a receiver needs to hear the stream (`docs/protocol.md#CTL-9`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinReply {
    /// This run of the sender.
    pub session: SessionId,
    /// What the sender calls the session.
    pub name: String,
    /// Whose signature the manifest carries.
    pub publisher: PublicKey,
    /// The receiver's number in this session.
    #[serde(with = "ReceiverIdText")]
    pub receiver: ReceiverId,
    /// The stream's id in datagrams.
    #[serde(with = "StreamIdText")]
    pub stream: StreamId,
    /// Version of the stream's key.
    #[serde(with = "EpochText")]
    pub epoch: Epoch,
    /// From which the stream's keys are derived.
    #[serde(with = "text::secret")]
    pub epoch_secret: Secret,
    /// Number of the cipher, as in [`crate::Suite::id`].
    pub suite: u8,
    /// Where the stream is sent; absent when the session is unicast only.
    pub group: Option<SocketAddr>,
    /// The stream's source address, when the group is source-specific.
    pub source: Option<IpAddr>,
    /// Where feedback goes. An unspecified address means: the one that the ticket led to.
    pub feedback: SocketAddr,
    /// Sizes of symbols and blocks.
    #[serde(with = "GeometryText", flatten)]
    pub geometry: Geometry,
    /// Bytes of the data space; absent while that is not known (a pipe).
    pub data_len: Option<u64>,
    /// Whether the stream runs already.
    pub started: bool,
    /// The stream's packet number by now: from it the receiver rebuilds the upper bits of those that come.
    #[serde(default)]
    pub packet: u64,
    /// In a session of products: the first data block that this receiver gets. Absent in others.
    #[serde(default)]
    pub products_from: Option<u32>,
    /// Which path the blocks take (`docs/protocol.md#WAN-1`). Absent: by multicast.
    #[serde(default)]
    pub path: DataPath,
    /// What the sender's kernel allows its connections, for the receiver's plan (`docs/protocol.md#WAN-4`). Absent: not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub limits: String,
    /// What admits to bulk without encryption (`docs/protocol.md#WAN-7`). Absent: there is none.
    #[serde(default)]
    pub plain_token: Option<Token>,
}

/// Which path a session's blocks take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPath {
    /// One multicast stream; what it does not bring is pulled.
    #[default]
    Multicast,
    /// All is pulled.
    Tcp,
    /// The stream goes to the one receiver alone; what it does not bring is pulled.
    Udp,
    /// By TCP or UDP, whichever brings more.
    Auto,
}

impl DataPath {
    /// Whether the stream comes to the address from which a receiver greets.
    pub const fn is_unicast(self) -> bool {
        matches!(self, Self::Udp | Self::Auto)
    }

    /// What it is called, when it is not by multicast.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Multicast => None,
            Self::Tcp => Some("tcp"),
            Self::Udp => Some("udp"),
            Self::Auto => Some("auto"),
        }
    }
}

/// Of a [`JoinReply`] what can be read whatever codes there will be.
#[derive(Deserialize)]
pub(super) struct ToldCode {
    #[serde(default)]
    pub(super) code: Option<u64>,
}

impl ToldCode {
    /// The number of the session's code, where it is not one that is known here.
    pub(super) fn unknown(&self) -> Option<u64> {
        let known = |number: &u64| Code::ALL.iter().any(|code| u64::from(code.number()) == *number);
        self.code.filter(|number| !known(number))
    }
}

impl JoinReply {
    /// Whether what it says can be meant.
    pub fn check(&self) -> Result<(), &'static str> {
        let Geometry { symbol_len, block_symbols, code } = self.geometry;
        if symbol_len % 2 != 0 || !(SYMBOL_LEN_MIN..=SYMBOL_LEN_MAX).contains(&symbol_len) {
            return Err("a symbol length that is odd, too small or too large");
        }
        if block_symbols == 0 || block_symbols > code.block_symbols_max() {
            return Err("a number of symbols in a block that is zero or too large");
        }
        if self.receiver.0 == 0 {
            return Err("receiver number zero");
        }
        if crate::Suite::from_id(self.suite).is_none() {
            return Err("an unknown cipher");
        }
        Ok(())
    }
}

/// After the join probe was heard, or the wait for it has ended; again whenever `multicast` changes
/// (`docs/protocol.md#CTL-10`, `docs/protocol.md#STRAG-4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyRequest {
    /// The probe came by multicast, in full size. If not, the receiver pulls.
    pub multicast: bool,
    /// The target folder has files that may be identical already: wait for the receiver's
    /// [`HaveRequest`] before a section's blocks are sent.
    pub candidates: bool,
}

/// Blocks that need not be sent to this receiver (`docs/protocol.md#CTL-11`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaveRequest {
    /// Data blocks held, ascending, disjoint.
    pub data: Vec<BlockRange>,
    /// Manifest blocks held, ascending, disjoint.
    pub manifest: Vec<BlockRange>,
    /// The receiver has looked through its files for the manifest's sections below this one.
    pub examined: u32,
}

/// Numbers of blocks of one kind: the first, and the one after the last. `[3, 5]` is blocks 3 and 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRange(pub u32, pub u32);

impl From<Range<u32>> for BlockRange {
    fn from(range: Range<u32>) -> Self {
        Self(range.start, range.end)
    }
}

impl From<BlockRange> for Range<u32> {
    fn from(range: BlockRange) -> Self {
        range.0..range.1
    }
}

impl HaveRequest {
    /// Whether what it says can be meant.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.data.len() + self.manifest.len() > HAVE_RANGES_MAX {
            return Err("more ranges than fit into one request");
        }
        for list in [&self.data, &self.manifest] {
            let mut end = 0;
            for range in list {
                if range.0 < end || range.1 <= range.0 || range.1 > BlockId::NUMBER_END {
                    return Err("ranges of blocks must ascend, not overlap and not be empty");
                }
                end = range.1;
            }
        }
        Ok(())
    }

    /// In pieces that each fit into one request. Only the last carries `examined`: it is true when all of
    /// them have arrived.
    pub fn into_pieces(self) -> Vec<Self> {
        let mut pieces = Vec::new();
        for data in self.data.chunks(HAVE_RANGES_MAX) {
            pieces.push(Self { data: data.to_vec(), ..Self::default() });
        }
        for manifest in self.manifest.chunks(HAVE_RANGES_MAX) {
            pieces.push(Self { manifest: manifest.to_vec(), ..Self::default() });
        }
        if pieces.is_empty() {
            pieces.push(Self::default());
        }
        if let Some(last) = pieces.last_mut() {
            last.examined = self.examined;
        }
        pieces
    }
}

/// A receiver's statement of what it has, placed and verified. Cumulative: the last one counts
/// (`docs/protocol.md#CTL-12`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Of which session.
    pub session: SessionId,
    /// Of which receiver.
    #[serde(with = "ReceiverIdText")]
    pub receiver: ReceiverId,
    /// What the manifest said: the hash of its last signed section so far.
    #[serde(with = "text::bytes32")]
    pub manifest_digest: [u8; 32],
    /// When it was made, seconds since 1970.
    pub made_unix_s: u64,
    /// Nothing more will come from this receiver: every object is in one of the next two counts.
    pub finished: bool,
    /// Objects in place and verified.
    pub objects_complete: u64,
    /// Objects that cannot be placed here.
    pub objects_failed: u64,
    /// Bytes of the complete objects.
    pub bytes_complete: u64,
    /// Of these, bytes that came by the stream.
    pub bytes_by_stream: u64,
    /// Of these, bytes that were pulled.
    pub bytes_by_pull: u64,
    /// Of these, bytes that were here before.
    pub bytes_held: u64,
    /// Repair symbols that it used, instead of source symbols that were lost.
    #[serde(default)]
    pub repair_symbols: u64,
    /// Why objects failed; the first ones when they do not all fit.
    pub failures: Vec<ObjectFailure>,
}

/// An object that a receiver could not place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectFailure {
    /// Its index in the manifest.
    pub object: u32,
    /// What happened.
    pub reason: String,
}

/// A receipt as it travels and as it is kept: the very text that was signed, so that nothing has to be
/// brought into a normal form before it is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedReceipt {
    /// A [`Receipt`] in JSON.
    pub receipt: String,
    /// By the receiver's node key over the bytes of `receipt`, domain [`SignedReceipt::DOMAIN`].
    pub signature: Signature,
}

impl SignedReceipt {
    /// What the signature is for.
    pub const DOMAIN: &str = "receipt-1";

    /// The receipt, once the signature has been found to be `by`'s.
    pub fn verify(&self, by: &PublicKey) -> Result<Receipt, BadReceipt> {
        by.verify(Self::DOMAIN, self.receipt.as_bytes(), &self.signature)
            .map_err(|bad| BadReceipt { reason: bad.to_string() })?;
        serde_json::from_str(&self.receipt).map_err(|bad| BadReceipt { reason: bad.to_string() })
    }
}

/// A receipt that proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad receipt: {reason}")]
pub struct BadReceipt {
    /// Why.
    pub reason: String,
}

impl Receipt {
    /// Whether what it says can be meant.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.failures.iter().any(|failure| failure.reason.len() > REASON_LEN_MAX) {
            return Err("a reason has at most 512 bytes");
        }
        Ok(())
    }

    /// Signs it. Failures that would make it longer than [`RECEIPT_LEN_MAX`] are left out; their
    /// number stays in `objects_failed`.
    pub fn sign(mut self, identity: &Identity) -> SignedReceipt {
        for failure in &mut self.failures {
            failure.reason = clip(&failure.reason).to_owned();
        }
        let receipt = loop {
            // Numbers, strings and lists: nothing in it that JSON could refuse.
            let text = serde_json::to_string(&self).expect("a receipt has a JSON form");
            if text.len() <= RECEIPT_LEN_MAX || self.failures.is_empty() {
                break text;
            }
            self.failures.truncate(self.failures.len() / 2);
        };
        let signature = identity.sign(SignedReceipt::DOMAIN, receipt.as_bytes());
        SignedReceipt { receipt, signature }
    }
}

/// A receiver goes, before it is complete or after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveRequest {
    /// Why, for the report.
    pub reason: String,
    /// Something went wrong.
    pub error: bool,
}

impl LeaveRequest {
    /// Whether what it says can be meant.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.reason.len() > REASON_LEN_MAX {
            return Err("a reason has at most 512 bytes");
        }
        Ok(())
    }
}

/// What a receiver tells the owner of its session; the session passes it on unread (`docs/protocol.md#CTL-17`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// At most [`WORD_LEN_MAX`] bytes.
    pub text: String,
}

impl Word {
    /// Whether what it says can be meant.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.text.len() > WORD_LEN_MAX {
            return Err("a word has at most 500,000 bytes");
        }
        Ok(())
    }
}

/// What the sender tells a receiver outside the stream (`docs/protocol.md#CTL-13`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The sender lives; each second.
    Ping,
    /// The stream begins.
    Start,
    /// How far the sender is: blocks below these ends may be had. The stream's polls say the same.
    Ends {
        /// One past the highest data block.
        data: u32,
        /// One past the highest manifest block.
        manifest: u32,
        /// Nothing more will come.
        finished: bool,
        /// Bytes of the data space, once known.
        data_len: Option<u64>,
    },
    /// Source symbols of manifest blocks, which a pull must know.
    Manifest {
        /// Number of the first block of the list.
        first: u32,
        /// One entry a block; at most [`MANIFEST_SYMBOLS_MAX`].
        symbols: Vec<u16>,
    },
    /// The same of data blocks, in a session of products.
    Blocks {
        /// Number of the first block of the list.
        first: u32,
        /// One entry a block; at most [`MANIFEST_SYMBOLS_MAX`].
        symbols: Vec<u16>,
    },
    /// The sender gives up a file: it has changed, or cannot be read any more.
    Withdrawn {
        /// Its index in the manifest.
        object: u32,
        /// For the report.
        reason: String,
    },
    /// Leave the multicast group and pull: this receiver is too slow for the stream.
    LeaveGroup {
        /// For the report.
        reason: String,
    },
    /// Join the multicast group again.
    ReturnToGroup,
    /// All has been sent: pull what is missing, send the last receipt.
    Closing,
    /// The session is over, whatever is missing.
    Shutdown {
        /// For the report.
        reason: String,
    },
    /// An event that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Event {
    /// With reasons within their limit, so that each event is a line of bounded length.
    pub fn clipped(mut self) -> Self {
        match &mut self {
            Self::LeaveGroup { reason }
            | Self::Shutdown { reason }
            | Self::Withdrawn { reason, .. } => reason.truncate(clip(reason).len()),
            Self::Ping
            | Self::Start
            | Self::Ends { .. }
            | Self::Manifest { .. }
            | Self::Blocks { .. }
            | Self::ReturnToGroup
            | Self::Closing
            | Self::Unknown => {}
        }
        self
    }
}

/// The first bytes of `text`, at most [`REASON_LEN_MAX`], without cutting a character.
pub(super) fn clip(text: &str) -> &str {
    let mut end = text.len().min(REASON_LEN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ReceiverId")]
struct ReceiverIdText(u32);

#[derive(Serialize, Deserialize)]
#[serde(remote = "StreamId")]
struct StreamIdText(u32);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Epoch")]
struct EpochText(u8);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Geometry")]
struct GeometryText {
    symbol_len: u16,
    block_symbols: u16,
    #[serde(default, with = "code_text")]
    code: Code,
}

/// A code by its number.
mod code_text {
    use downpour_proto::Code;
    use serde::de::{Deserializer, Error};
    use serde::{Deserialize, Serializer};

    pub(super) fn serialize<S: Serializer>(code: &Code, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(code.number())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Code, D::Error> {
        Code::from_number(u8::deserialize(from)?).ok_or_else(|| Error::custom("an unknown code"))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BlockRange, DataPath, Event, HAVE_RANGES_MAX, HaveRequest, InstanceId, JoinReply,
        JoinRequest, ObjectFailure, PROTOCOL_VERSION, RECEIPT_LEN_MAX, Receipt, SessionId, Token,
        ToldCode, first_code,
    };
    use crate::Secret;
    use crate::identity::Identity;
    use downpour_proto::{Code, Epoch, Geometry, ReceiverId, StreamId};

    fn reply() -> JoinReply {
        JoinReply {
            session: SessionId::from_bytes([1; 16]),
            name: "nightly".into(),
            publisher: Identity::generate().public_key(),
            receiver: ReceiverId(7),
            stream: StreamId(9),
            epoch: Epoch(1),
            epoch_secret: Secret::new([5; 32]),
            suite: 1,
            group: Some("239.1.2.3:4000".parse().unwrap()),
            source: None,
            feedback: "0.0.0.0:4001".parse().unwrap(),
            geometry: Geometry::IPV4,
            data_len: None,
            started: false,
            packet: 1 << 40,
            products_from: None,
            path: DataPath::Multicast,
            limits: String::new(),
            plain_token: None,
        }
    }

    #[test]
    fn a_reply_survives_json_and_hides_its_secret_elsewhere() {
        let reply = reply();
        let text = serde_json::to_string(&reply).unwrap();
        assert!(
            text.contains(r#""receiver":7,"#) && text.contains(r#""symbol_len":1448"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<JoinReply>(&text).unwrap(), reply);
        assert_eq!(reply.check(), Ok(()));
        assert!(!format!("{reply:?}").contains("BQUF"), "{reply:?}");
        let token = Token::from_bytes([5; 16]);
        assert!(!format!("{token:?}").contains("BQUF"), "{token:?}");
    }

    // docs/protocol.md#CTL-8
    #[test]
    fn a_machine_has_a_printable_name() {
        let check = |name: &str, software: &str| {
            let (name, software) = (name.to_owned(), software.to_owned());
            let (protocol, instance) = (PROTOCOL_VERSION, InstanceId::from_bytes([1; 16]));
            JoinRequest { protocol, software, name, instance, codes: first_code(), follows: None }
                .check()
        };
        assert_eq!(check("node ä", "downpour 0.1"), Ok(()));
        for odd in ["\u{1b}[2J", "a\nb", "\u{9b}0m", &"x".repeat(256)] {
            assert!(check(odd, "").is_err() && check("", odd).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn impossible_sizes_in_a_reply_are_found() {
        let (rs, cauchy) = (Code::ReedSolomon, Code::Cauchy);
        let check = |symbol_len, block_symbols, code| {
            let geometry = Geometry { symbol_len, block_symbols, code };
            JoinReply { geometry, ..reply() }.check()
        };
        for symbol_len in [0, 2, 498, 1441, 65_002] {
            assert!(check(symbol_len, 1024, rs).is_err(), "{symbol_len}");
        }
        for (block_symbols, code) in [(0, rs), (1025, rs), (129, cauchy)] {
            assert!(check(1440, block_symbols, code).is_err(), "{block_symbols}");
        }
        // IPv6 at the least MTU.
        assert_eq!(check(504, 1, rs), Ok(()));
        assert!(JoinReply { suite: 77, ..reply() }.check().is_err());
    }

    // docs/protocol.md#CODE-3
    #[test]
    fn codes_have_numbers_and_silence_means_the_first() {
        let geometry = Geometry::full(1440, Code::Cauchy);
        let text = serde_json::to_string(&JoinReply { geometry, ..reply() }).unwrap();
        assert!(text.contains(r#""code":2"#), "{text}");
        let read = |text: &str| serde_json::from_str::<JoinReply>(text).map(|r| r.geometry.code);
        assert_eq!(read(&text).ok(), Some(Code::Cauchy));
        let silent = text.replace(r#""code":2,"#, "").replace("128", "1024");
        assert_eq!(read(&silent).ok(), Some(Code::ReedSolomon), "{silent}");
        let newer = text.replace(r#""code":2"#, r#""code":3000"#);
        assert!(read(&newer).is_err());
        assert_eq!(serde_json::from_str::<ToldCode>(&newer).unwrap().unknown(), Some(3000));
        assert_eq!(serde_json::from_str::<ToldCode>(&text).unwrap().unknown(), None);
        let old = r#"{"protocol":1,"software":"","name":"","instance":"AAAAAAAAAAAAAAAAAAAAAA"}"#;
        assert_eq!(serde_json::from_str::<JoinRequest>(old).unwrap().codes, [1]);
    }

    #[test]
    fn disordered_block_ranges_are_refused() {
        let have = |data: &[(u32, u32)]| HaveRequest {
            data: data.iter().map(|range| BlockRange(range.0, range.1)).collect(),
            ..HaveRequest::default()
        };
        assert_eq!(have(&[(0, 1), (1, 4), (9, 10)]).check(), Ok(()));
        for bad in [&[(3, 3)][..], &[(4, 3)], &[(0, 2), (1, 3)], &[(0, u32::MAX)]] {
            assert!(have(bad).check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_long_have_list_goes_in_pieces() {
        let many = HAVE_RANGES_MAX as u32 + 5;
        let data = (0..many).map(|n| BlockRange(2 * n, 2 * n + 1)).collect();
        let have = HaveRequest { data, manifest: vec![BlockRange(0, 1)], examined: 3 };
        let pieces = have.clone().into_pieces();
        assert!(pieces.iter().all(|piece| piece.check().is_ok()));
        assert_eq!(pieces.iter().map(|piece| piece.examined).collect::<Vec<_>>(), [0, 0, 3]);
        let data: Vec<_> = pieces.iter().flat_map(|piece| piece.data.clone()).collect();
        assert_eq!(data, have.data);
        assert_eq!(HaveRequest { examined: 2, ..Default::default() }.into_pieces().len(), 1);
    }

    #[test]
    fn events_are_short_lines_and_new_ones_are_passed_over() {
        assert_eq!(serde_json::to_string(&Event::Ping).unwrap(), r#"{"event":"ping"}"#);
        let newer = serde_json::from_str::<Event>(r#"{"event":"dance","to":"what"}"#).unwrap();
        assert_eq!(newer, Event::Unknown);
    }

    fn receipt(failures: Vec<ObjectFailure>) -> Receipt {
        Receipt {
            session: SessionId::from_bytes([1; 16]),
            receiver: ReceiverId(7),
            manifest_digest: [2; 32],
            made_unix_s: 1_800_000_000,
            finished: true,
            objects_complete: 10,
            objects_failed: failures.len() as u64,
            bytes_complete: 1000,
            bytes_by_stream: 900,
            bytes_by_pull: 100,
            bytes_held: 0,
            repair_symbols: 3,
            failures,
        }
    }

    #[test]
    fn a_receipt_proves_who_said_what() {
        let identity = Identity::generate();
        let signed = receipt(Vec::new()).sign(&identity);
        let receipt = signed.verify(&identity.public_key()).unwrap();
        assert_eq!(receipt.objects_complete, 10);
        assert!(signed.verify(&Identity::generate().public_key()).is_err());
        let mut changed = signed;
        changed.receipt = changed.receipt.replace(":10,", ":11,");
        assert!(changed.verify(&identity.public_key()).is_err());
    }

    #[test]
    fn a_receipt_with_endless_failures_stays_within_its_limit() {
        let nasty = "\u{1}\"é".repeat(1000);
        let failures =
            (0..20_000).map(|object| ObjectFailure { object, reason: nasty.clone() }).collect();
        let identity = Identity::generate();
        let signed = receipt(failures).sign(&identity);
        assert!(signed.receipt.len() <= RECEIPT_LEN_MAX);
        let receipt = signed.verify(&identity.public_key()).unwrap();
        assert_eq!(receipt.objects_failed, 20_000);
        assert!(!receipt.failures.is_empty());
    }
}
