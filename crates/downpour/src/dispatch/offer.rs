//! What two sites say to each other to move a batch of files.
//!
//! ```text
//! source                                    destination
//!   POST /v1/site/offers  Offer        ──▶  looks what it has, reserves room
//!                                      ◀──  for each file: take, have, refuse
//!   opens a session for what is taken
//!   POST /v1/site/batches/ID  Begin    ──▶  joins it, places, reads back, records, signs
//!   GET  /v1/site/batches/ID           ◀──  for each file: its receipt, or what went wrong
//! ```
//!
//! Whatever is lost on the way is cured by the next offer of the same files: what is there is answered with its receipt.

use crate::object::Digest;
use crate::receipt::SignedFileReceipt;
use crate::spool::of_words;
use downpour_catalog::{ErrorClass, FileKey};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Files of one offer at most.
pub(super) const OFFER_FILES_MAX: usize = 1000;
/// Bytes of the files in an offer's JSON, so that it fits into a body.
pub(super) const OFFER_ITEMS_LEN_MAX: usize = 900_000;
/// Characters of a reason.
const WHAT_MAX: usize = 500;

/// Files that a site wants to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// Which batch: 32 hexadecimal digits, drawn by the source.
    pub batch: String,
    /// The files, `OFFER_FILES_MAX` at most.
    pub items: Vec<OfferItem>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OfferItem {
    /// The site that it comes from first.
    pub site: String,
    /// Its name there.
    pub name: String,
    /// Its version there, from 1.
    pub version: i64,
    /// When it was taken in there, microseconds since 1970.
    pub taken_in_us: i64,
    /// The rule that it came under, by the name of its site of origin.
    pub rule: String,
    /// Its length.
    pub size: u64,
    /// BLAKE3 of its content, in hex.
    pub blake3: String,
    /// Where the source would have it, below the destination's folder.
    pub into: String,
    /// Its other digests, as `md5:HEX`: compared when it is read back at the destination, and recorded there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<String>,
}

impl OfferItem {
    /// Its name across sites.
    pub fn key(&self) -> FileKey {
        FileKey::of(&self.site, &self.name, self.version)
    }

    /// Its other digests, read.
    pub(super) fn others(&self) -> Vec<downpour_catalog::Digest> {
        of_words(&self.digests)
    }

    /// Its bytes in an offer, with what parts it from the next.
    pub(super) fn json_len(&self) -> usize {
        serde_json::to_string(self).map_or(0, |json| json.len() + 1)
    }

    /// Its identity, if it is one.
    pub fn digest(&self) -> Option<Digest> {
        let digest: downpour_catalog::Digest = self.blake3.parse().ok()?;
        let value: [u8; 32] = digest.value().try_into().ok()?;
        Some(Digest(value))
    }
}

/// What the destination says to an offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OfferAnswer {
    /// For each file, in the offer's order.
    pub items: Vec<Said>,
}

/// What the destination says of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", tag = "say")]
pub enum Said {
    /// Send it.
    Take {
        /// Where it goes, below the destination's folder: its name in the session.
        path: String,
    },
    /// It is here.
    Have {
        /// The proof.
        #[schema(value_type = Object)]
        receipt: Box<SignedFileReceipt>,
    },
    /// Not now, or never: the class says which.
    Refuse(Trouble),
}

/// What is wrong with a file, or with moving it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trouble {
    /// Name of the error class.
    pub class: String,
    /// What happened, for people.
    pub what: String,
    /// When to ask again, seconds; without it the class decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_s: Option<u32>,
}

impl Trouble {
    /// Of this class.
    pub fn new(class: ErrorClass, what: impl Into<String>) -> Self {
        let what: String = what.into();
        let what = what.chars().take(WHAT_MAX).collect();
        Self { class: class.name().to_owned(), what, after_s: None }
    }

    /// Not before so many seconds.
    pub const fn after(mut self, seconds: u32) -> Self {
        self.after_s = Some(seconds);
        self
    }

    /// Its class; one that this program does not know is the other side's affair.
    pub fn class(&self) -> ErrorClass {
        self.class.parse().unwrap_or(ErrorClass::DestinationRefused)
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.class, self.what)
    }
}

/// The source is ready to send what was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// Ticket of the session.
    pub ticket: String,
}

/// How far a batch is, as its destination knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchState {
    /// All files have their results.
    pub done: bool,
    /// Bytes that have arrived, in whole blocks.
    pub bytes: u64,
    /// Bytes that its session was given so far, also of blocks that are not whole: while they grow something comes.
    #[serde(default)]
    pub came: u64,
    /// For each file that was taken, in the offer's order; empty before the end.
    pub items: Vec<Arrived>,
}

/// What became of a file that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", tag = "say")]
pub enum Arrived {
    /// It is in its place, and recorded.
    Placed {
        /// The proof.
        #[schema(value_type = Object)]
        receipt: Box<SignedFileReceipt>,
    },
    /// It is not.
    Failed(Trouble),
}
