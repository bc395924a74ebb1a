//! Sections out of the hash-ahead, blocks into the driver.
//!
//! One thread: it takes each section as it is hashed and signed, offers its manifest blocks, and then its
//! data blocks; first waiting until the session has started and, if everybody may hold them already, until
//! they have looked. Before the last section, with which receivers place files without data, it looks whether those are
//! still without. It stays only a little ahead of what has been sent, so that memory and page cache stay small.

use super::endpoint::Shared;
use crate::object::Section;
use downpour_proto::BlockId;
use downpour_proto::sender::Delivery;
use downpour_transport::SourceError;
use downpour_transport::control::{DataPath, Event};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};
use std::time::{Duration, Instant};

/// Blocks offered ahead of what is being sent: about a section.
const BACKLOG_BLOCKS: usize = 64;

/// Bytes offered ahead of what is pulled: what was hashed is then still in the page cache, and those who pull are not
/// held up by the time that it takes until they hear of more.
const PULLED_AHEAD: u64 = 512 << 20;

/// The same where all is pulled over a short way: what was hashed is then still in memory.
const PULLED_AHEAD_SHORT: u64 = 32 << 20;

/// With each microsecond of the way so much more: 10 GB/s.
const AHEAD_PER_MICRO: u64 = 10_000;

/// The same where the rest may go back to the stream: what was offered to pulls has to be pulled.
const PULLED_AHEAD_AUTO: u64 = 32 << 20;

/// Data blocks offered before that is looked at.
const OFFERED_AT_ONCE: usize = 16;

/// Longest wait for receivers to look at a section; then its data is sent to all, and who has not looked is not waited
/// for again until it has caught up.
const EXAMINE_TIME_MAX: Duration = Duration::from_secs(30);

/// How often the thread looks whether it shall go on, unless it is woken.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Runs until the last section was offered, the source failed, or `stop` is set.
pub(super) fn emit(
    shared: &Arc<Shared>,
    sections: &Receiver<Result<Section, SourceError>>,
    stop: &AtomicBool,
) -> Result<(), SourceError> {
    let stopped = || stop.load(Ordering::Relaxed);
    let mut data_end = 0;
    loop {
        let section = match sections.recv_timeout(LOOK_INTERVAL * 10) {
            Ok(section) => section?,
            // What is read may be a pipe that gives nothing.
            Err(RecvTimeoutError::Timeout) if stopped() => return Ok(()),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        while !stopped() && !shared.driver.wait_backlog(BACKLOG_BLOCKS, LOOK_INTERVAL * 10) {}
        let wait_while = |waits: &dyn Fn() -> bool| {
            while !stopped() && waits() {
                std::thread::park_timeout(LOOK_INTERVAL);
            }
        };
        if section.last && shared.source.has_empty() {
            wait_while(&|| !shared.stand().started);
            if stopped() {
                return Ok(());
            }
            shared.source.look_at_empty(false);
        }
        publish_manifest(shared, &section);
        offer(shared, section.manifest.clone().filter_map(BlockId::manifest));
        shared.tell_offered((data_end, section.manifest.end, false));
        if !section.data.is_empty() {
            wait_while(&|| !shared.stand().started);
            let until = Instant::now() + EXAMINE_TIME_MAX;
            wait_while(&|| {
                Instant::now() < until && shared.stand().roster.waits_for(section.index)
            });
        }
        if stopped() {
            return Ok(());
        }
        if !section.data.is_empty() {
            let mut stand = shared.stand();
            stand.roster.passes(section.index);
            stand.data_end = section.data.end;
        }
        for first in section.data.clone().step_by(OFFERED_AT_ONCE) {
            let end = section.data.end.min(first + OFFERED_AT_ONCE as u32);
            offer(shared, (first..end).filter_map(BlockId::data));
            data_end = end;
            shared.tell_offered((data_end, section.manifest.end, false));
            wait_while(&|| is_ahead_of_pulls(shared, end));
        }
        if section.last {
            shared.stand().offered_all = true;
            shared.driver.finish();
            shared.tell_offered((data_end, section.manifest.end, true));
            shared.changed.notify_one();
            return Ok(());
        }
    }
    // The last section returns above: the thread that hashes has gone without it.
    Err(SourceError { reason: "internal error, the thread that hashes has failed".to_owned() })
}

/// Nobody is on the stream, so that nothing else holds the offers back, and those who pull are far behind.
fn is_ahead_of_pulls(shared: &Shared, end: u32) -> bool {
    let ahead = match shared.reply.path {
        DataPath::Auto => PULLED_AHEAD_AUTO,
        DataPath::Tcp => {
            let way = shared.round_trip.load(Ordering::Relaxed).saturating_mul(AHEAD_PER_MICRO);
            PULLED_AHEAD_SHORT.saturating_add(way).min(PULLED_AHEAD)
        }
        DataPath::Multicast | DataPath::Udp => PULLED_AHEAD,
    };
    let pulled = shared.pulled_end.load(Ordering::Relaxed);
    let is_ahead = u64::from(end) * shared.reply.geometry.block_len() > pulled + ahead;
    let on_stream = |delivery| delivery == Delivery::Stream;
    is_ahead && !shared.driver.snapshot().members.values().any(|m| on_stream(m.delivery))
}

fn offer(shared: &Shared, blocks: impl Iterator<Item = BlockId>) {
    let known = |block| shared.source.symbols(block).map(|k| (block, k));
    let offers: Vec<_> = blocks.filter_map(known).collect();
    if !offers.is_empty() {
        shared.driver.offer(offers);
    }
}

fn publish_manifest(shared: &Shared, section: &Section) {
    let blocks = section.manifest.clone().filter_map(BlockId::manifest);
    let symbols: Vec<u16> = blocks.filter_map(|block| shared.source.symbols(block)).collect();
    let mut stand = shared.stand();
    stand.manifest.extend_from_slice(&symbols);
    stand.roster.tell_all(&Event::Manifest { first: section.manifest.start, symbols });
}
