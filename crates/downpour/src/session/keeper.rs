//! What a receiver does with blocks, as its attempt sees it: a store for one manifest, or a shelf for products.

use crate::object::{EntryId, Store, Summary};
use crate::product::Shelf;
use downpour_proto::BlockId;
use downpour_transport::BlockSink;

/// The receiver's end of the data.
pub(super) trait Keeper: BlockSink {
    /// The sender gives up a file.
    fn withdraw(&self, entry: EntryId, reason: &str);

    /// Nothing comes at or after data block `end`.
    fn finished(&self, end: u32);

    /// The sender cannot give a block any more. True: it is done without.
    fn lost(&self, block: BlockId) -> bool;

    /// What has come so far.
    fn summary(&self) -> Summary;
}

impl Keeper for Store {
    fn withdraw(&self, entry: EntryId, reason: &str) {
        self.withdraw(entry, reason);
    }

    fn finished(&self, _end: u32) {} // Its manifest says where the end is.

    fn lost(&self, _block: BlockId) -> bool {
        false
    }

    fn summary(&self) -> Summary {
        self.summary()
    }
}

impl Keeper for Shelf {
    fn withdraw(&self, _entry: EntryId, _reason: &str) {} // Said in the product's own place.

    fn finished(&self, end: u32) {
        self.finished(end);
    }

    fn lost(&self, block: BlockId) -> bool {
        self.lost(block);
        true
    }

    fn summary(&self) -> Summary {
        self.summary()
    }
}
