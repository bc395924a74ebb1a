//! What a sender's workers do: read blocks, and make repair symbols of them.

use super::loaded::{Coder, Load, Source, tail};
use crate::BlockSource;
use downpour_proto::BlockId;

/// What is done beside the driver.
pub(super) enum Job {
    Load { block: BlockId, bytes: Vec<u8> },
    Encode { block: BlockId, load: Load, source: Source, from: u16, until: u16 },
}

/// What came of it.
pub(super) enum Done {
    Loaded { block: BlockId, bytes: Vec<u8>, tail: u16 },
    LoadFailed { block: BlockId, reason: String },
    Encoded { block: BlockId, load: Load, from: u16, until: u16, symbols: Vec<u8> },
}

/// Does it, on a worker's thread.
pub(super) fn work(
    job: Job,
    source: &dyn BlockSource,
    coder: &mut Coder,
    symbol_len: usize,
) -> Done {
    match job {
        Job::Load { block, mut bytes } => match source.read(block, &mut bytes) {
            Ok(len) => {
                bytes[len..].fill(0);
                let tail = tail(&bytes, symbol_len);
                Done::Loaded { block, bytes, tail }
            }
            Err(error) => Done::LoadFailed { block, reason: error.reason },
        },
        Job::Encode { block, load, source, from, until } => {
            let symbols = coder.encode(&source, from..until);
            Done::Encoded { block, load, from, until, symbols }
        }
    }
}
