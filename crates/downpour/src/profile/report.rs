//! What is known of a profile's session, as JSON.

use serde::Serialize;

/// Version of the fields.
pub(super) const SCHEMA: u32 = 1;

/// The sender's side.
#[derive(Debug, Serialize)]
pub(super) struct SenderReport {
    pub(super) schema: u32,
    pub(super) downpour: &'static str,
    pub(super) role: &'static str,
    pub(super) profile: &'static str,
    /// Every receiver has all; not known where receivers do not say so.
    pub(super) complete: Option<bool>,
    /// Empty of a feed.
    pub(super) name: String,
    pub(super) bytes: u64,
    /// That were offered; 1 where there is one file.
    pub(super) products: u64,
    /// From the first packet to the last.
    pub(super) duration_s: f64,
    pub(super) segments: u64,
    pub(super) repair_segments: u64,
    /// UDP payload.
    pub(super) datagram_bytes: u64,
    /// On TCP connections.
    pub(super) stream_bytes: u64,
    pub(super) requests_served: u64,
    pub(super) requests_idle: u64,
    pub(super) status_packets: u64,
    pub(super) malformed: u64,
    /// Of the receivers' number, where they do not say who they are.
    pub(super) group_estimate: Option<f64>,
    pub(super) rate_at_end_bps: u64,
    pub(super) receivers: Vec<MemberRow>,
}

/// A receiver with a connection.
#[derive(Debug, Serialize)]
pub(super) struct MemberRow {
    pub(super) address: String,
    /// Since the first packet, of the last product; none when it lacks some.
    pub(super) complete_s: Option<f64>,
    /// That it has.
    pub(super) products: u64,
    /// That it lacked when they were kept no longer.
    pub(super) given_up: u64,
    pub(super) segments_asked: u64,
}

/// A receiver's side.
#[derive(Debug, Serialize)]
pub(super) struct ReceiverReport {
    pub(super) schema: u32,
    pub(super) downpour: &'static str,
    pub(super) role: &'static str,
    pub(super) profile: &'static str,
    pub(super) complete: bool,
    /// From the first packet to the last.
    pub(super) duration_s: f64,
    pub(super) packets: u64,
    pub(super) repairs: u64,
    pub(super) duplicates: u64,
    pub(super) segments_asked: u64,
    pub(super) messages: u64,
    pub(super) message_bytes: u64,
    pub(super) socket_drops: u32,
    pub(super) malformed: u64,
    pub(super) foreign: u64,
    pub(super) refused: u64,
    /// Products that will not be complete: the sender has given them up.
    pub(super) rejected: u64,
}
