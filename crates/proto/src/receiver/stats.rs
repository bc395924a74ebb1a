//! What a receiver counts, for progress and reports.

/// Counters for progress and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Authentic datagrams of the stream.
    pub received: u64,
    /// Symbols among them that were not wanted: duplicates, or repair that others needed.
    pub unneeded: u64,
    /// Repair symbols kept.
    pub repair_kept: u64,
    /// Symbols for which there was no room.
    pub no_room: u64,
    /// Feedback messages sent.
    pub feedback: u64,
    /// NACKs (block and count) in them.
    pub nacks: u64,
    /// Blocks stored.
    pub stored: u64,
    /// Blocks that took decoding.
    pub decoded: u64,
    /// Pulls begun.
    pub pulls: u64,
    /// Blocks whose bytes were false.
    pub false_blocks: u64,
    /// Datagrams marked Congestion Experienced.
    pub ce_marks: u64,
}
