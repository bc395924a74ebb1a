//! The papers' protocols: `bmtp` (Ishihara 2002), `afdp` (Cooperstock 1996), `fmtp` (Tan 2019).
//!
//! All three are of one kind: products cut into numbered segments, sent by multicast (or broadcast, or unicast to each),
//! and what a receiver says it lacks sent again. So there is one machine for each side, [`Sender`] and [`Receiver`],
//! and a profile is a named triple of policies with its wire format:
//!
//! | | `bmtp` | `afdp` | `fmtp` |
//! | --- | --- | --- | --- |
//! | rate ([`PacketRate`]) | [`Bmtp`](crate::rate::Bmtp) | [`Afdp`](crate::rate::Afdp) | [`Shaped`](crate::rate::Shaped) |
//! | feedback ([`Feedback`]) | status packets by chance | a request each Tw | a request for each gap |
//! | recovery ([`Recovery`]) | once for all | once for all; in unicast mode to the asker | to the asker, by its connection |
//! | wire ([`Wire`]) | 28-byte header | ours | FMTP's |
//!
//! What each file of this folder is for: `message` what can be said, [`Wire`] how; `product` what a receiver
//! has of a product; `recovery`, `feedback` the traits; `replies` what the sender answers; `sender`, `receiver` the machines, which know no
//! profile by name; `bmtp`, `afdp`, `fmtp` one profile each.
//!
//! As published: nothing is encrypted and nobody is known. What comes in is hostile until it is shown to fit:
//! every table has a limit, no parser panics.

pub mod afdp;
pub mod bmtp;
mod feedback;
pub mod fmtp;
mod group;
mod message;
mod product;
mod receiver;
mod recovery;
mod replies;
mod sender;

pub use feedback::{Context, Feedback};
pub use group::GroupEstimate;
pub use message::{
    Begin, Data, METADATA_MAX, Message, Mode, Parsed, REQUEST_RANGES_MAX, STREAM_MESSAGE_MAX,
    Status, Via, Welcome, Wire,
};
pub use product::{PRODUCTS_MAX, Product, Products, SEGMENTS_MAX};
pub use receiver::{
    Event as ReceiverEvent, Interval, Placement, Receiver, ReceiverConfig, ReceiverStats,
};
pub use recovery::{Each, Keep, Recovery, Repair, Shared};
pub use sender::{
    Body, Event as SenderEvent, MEMBERS_MAX, MemberReport, OFFERED_MAX, Offer, Sender,
    SenderConfig, SenderStats, To, Transmit,
};

use crate::rate::PacketRate;
use alloc::boxed::Box;

/// A profile as its sender needs it.
#[derive(Debug)]
pub struct SenderProfile {
    /// How fast.
    pub rate: Box<dyn PacketRate>,
    /// Who gets what again.
    pub recovery: Box<dyn Recovery>,
    /// How it is said.
    pub wire: Box<dyn Wire>,
}

/// A profile as its receivers need it.
#[derive(Debug)]
pub struct ReceiverProfile {
    /// What is said to the sender, and when.
    pub feedback: Box<dyn Feedback>,
    /// How it is said.
    pub wire: Box<dyn Wire>,
}
