//! Sections out of the hash-ahead, blocks into the driver.
//!
//! One thread: it takes each section as it is hashed and signed, offers its manifest blocks, and then its
//! data blocks; first waiting until the session has started and, if everybody may hold them already, until
//! they have looked. It stays only a little ahead of what has been sent, so that memory and page cache stay small.

use super::endpoint::Shared;
use crate::object::Section;
use downpour_proto::BlockId;
use downpour_transport::SourceError;
use downpour_transport::control::Event;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};
use std::time::{Duration, Instant};

/// Blocks offered ahead of what is being sent: about a section.
const BACKLOG_BLOCKS: usize = 64;

/// Longest wait for receivers to look at a section; then its data is sent to all.
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
    while let Ok(section) = sections.recv() {
        let section = section?;
        while !stopped() && !shared.driver.wait_backlog(BACKLOG_BLOCKS, LOOK_INTERVAL * 10) {}
        publish_manifest(shared, &section);
        offer(shared, section.manifest.clone().filter_map(BlockId::manifest));
        let wait_while = |waits: &dyn Fn() -> bool| {
            while !stopped() && waits() {
                std::thread::park_timeout(LOOK_INTERVAL);
            }
        };
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
            shared.stand().data_end = section.data.end;
        }
        offer(shared, section.data.clone().filter_map(BlockId::data));
        if section.last {
            shared.stand().offered_all = true;
            shared.driver.finish();
            shared.changed.notify_one();
            return Ok(());
        }
    }
    // The last section returns above: the thread that hashes has gone without it.
    Err(SourceError { reason: "internal error, the thread that hashes has failed".to_owned() })
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
