//! What a receiver does with blocks, as its attempt sees it: a store for one manifest, or a shelf for products.

use super::attempt::Said;
use super::faults;
use super::receive::Taker;
use crate::cli::{Fault, ReceivePlan, Target};
use crate::object::{
    Claim, Destination, EntryId, FolderOptions, ManifestId, OpenError, PipeOut, Placed, Store,
    StoreConfig, Summary, is_locked,
};
use crate::product::{Bookmark, Clerk, Desk, ProductLog, Shelf, ShelfConfig};
use downpour_catalog::ErrorClass;
use downpour_proto::BlockId;
use downpour_transport::BlockSink;
use downpour_transport::control::{ClockOffset, Joined};
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;

/// The receiver's end of the data.
pub(super) trait Keeper: BlockSink {
    /// The sender gives up a file.
    fn withdraw(&self, entry: EntryId, reason: &str);

    /// Nothing comes at or after these data and manifest blocks.
    fn finished(&self, data: u32, manifest: u32);

    /// The sender cannot give a block any more. True: it is done without.
    fn lost(&self, block: BlockId) -> bool;

    /// What has come so far.
    fn summary(&self) -> Summary;

    /// How far a receiver of products has got.
    fn mark(&self) -> Option<Bookmark> {
        None
    }

    /// Bytes of products so far; a manifest tells how much its blocks hold.
    fn product_bytes(&self) -> Option<u64> {
        None
    }

    /// Of products, no data block below is needed any more.
    fn needed_from(&self) -> u32 {
        0
    }

    /// The files of a batch that are in their places, once it is complete.
    fn placed(&self) -> Vec<Placed> {
        Vec::new()
    }
}

impl Keeper for Store {
    fn withdraw(&self, entry: EntryId, reason: &str) {
        self.withdraw(entry, reason);
    }

    fn finished(&self, _data: u32, manifest: u32) {
        self.finished(manifest); // Which says where the data end.
    }

    fn lost(&self, _block: BlockId) -> bool {
        false
    }

    fn placed(&self) -> Vec<Placed> {
        self.placed()
    }

    fn summary(&self) -> Summary {
        self.summary()
    }
}

impl Keeper for Shelf {
    fn withdraw(&self, _entry: EntryId, _reason: &str) {} // Said in the product's own place.

    fn finished(&self, data: u32, _manifest: u32) {
        self.finished(data);
    }

    fn lost(&self, block: BlockId) -> bool {
        self.lost(block);
        true
    }

    fn mark(&self) -> Option<Bookmark> {
        Some(self.mark())
    }

    fn product_bytes(&self) -> Option<u64> {
        Some(self.bytes())
    }

    fn needed_from(&self) -> u32 {
        self.needed_from()
    }

    fn summary(&self) -> Summary {
        self.summary()
    }
}

fn open_store(
    plan: &ReceivePlan,
    joined: &Joined,
    (taker, pipe, said): (&Taker, &PipeOut, UnboundedSender<Said>),
) -> Result<Store, Fault> {
    let reply = &joined.reply;
    let manifest = ManifestId(*reply.session.as_bytes());
    let config = StoreConfig {
        entries_max: plan.entries_max,
        agreed: taker.batch.as_ref().map(|batch| Arc::clone(&batch.agreed)),
        ..StoreConfig::new(reply.geometry, reply.publisher, manifest)
    };
    let destination = match &plan.target {
        Target::Tree(_) if let Some(batch) = &taker.batch => {
            Destination::Folder(batch.folder.clone())
        }
        Target::Tree(out) => Destination::Folder(FolderOptions {
            overwrite: plan.overwrite,
            setuid: plan.setuid,
            xattrs: plan.xattrs,
            ..FolderOptions::new(out)
        }),
        Target::Discard => Destination::Discard,
        Target::Pipe => Destination::Pipe { out: pipe.clone(), window: plan.memory_bytes },
        Target::Device(path) => Destination::Raw(path.clone()),
    };
    let opened = Store::open(config, destination, move |event| {
        // Fails only when the attempt is over.
        let _ = said.send(Said::Store(event));
    });
    opened.map_err(|error| unopened(plan, &error))
}

/// Another receiver runs into the target now. To the sender both may be one: to join would be to
/// take its place in the session.
pub(super) fn taken(plan: &ReceivePlan, taker: &Taker) -> Option<Fault> {
    let lane = taker.clerk.as_deref().and_then(Clerk::desk).map(Desk::lane);
    let path = match &plan.target {
        // Each batch is a session of its own, whose sender waits to be told.
        _ if taker.batch.is_some() => None,
        Target::Tree(out) => Some(out).filter(|out| Claim::is_taken(out, lane)),
        Target::Device(path) => Some(path).filter(|path| is_locked(path)),
        Target::Pipe | Target::Discard => None,
    };
    path.map(|path| unopened(plan, &OpenError::Locked(path.clone())))
}

/// The target cannot be used.
fn unopened(plan: &ReceivePlan, error: &OpenError) -> Fault {
    let class = match (error, &plan.target) {
        (OpenError::Locked(_), _) => ErrorClass::OutOfResources,
        (_, Target::Tree(out)) => faults::class_of_target(out),
        _ => ErrorClass::DestinationWriteFailed,
    };
    let todo = match error {
        OpenError::Locked(_) => "wait for it, or choose another --out",
        OpenError::Target { .. } => "check --out and your rights there, or give another folder",
    };
    Fault::start(error.to_string(), todo).of(class)
}

/// What a shelf needs to know besides: the sender's clock, how far an attempt before has got, and where to log.
pub(super) type ShelfStart = (ClockOffset, Option<Bookmark>, Option<Arc<ProductLog>>);

/// A shelf for products, from this block on.
fn open_shelf(
    plan: &ReceivePlan,
    joined: &Joined,
    (first, (clock, mark, log)): (u32, ShelfStart),
    (taker, said): (&Taker, UnboundedSender<Said>),
) -> Result<Shelf, Fault> {
    let folder = match &plan.target {
        Target::Tree(out) => Some(out.clone()),
        Target::Discard => None,
        Target::Pipe | Target::Device(_) => {
            let what = "this session carries products, each a file of its own";
            return Err(Fault::start(what, "give --out a folder, or --discard"));
        }
    };
    let config = ShelfConfig {
        session: *joined.reply.session.as_bytes(),
        publisher: joined.reply.publisher,
        first,
        mark,
        folder,
        ours: Arc::clone(&taker.ours),
        memory: plan.memory_bytes,
        clock,
        log,
        clerk: taker.clerk.clone(),
    };
    let opened = Shelf::open(config, move |event| {
        // Fails only when the attempt is over.
        let _ = said.send(Said::Store(event));
    });
    opened.map_err(|error| unopened(plan, &error))
}

/// `shelf` is for a session of products.
pub(super) fn open_keeper(
    plan: &ReceivePlan,
    joined: &Joined,
    (taker, pipe, said): (&Taker, &PipeOut, UnboundedSender<Said>),
    shelf: Option<ShelfStart>,
) -> Result<Arc<dyn Keeper>, Fault> {
    Ok(match joined.reply.products_from.zip(shelf) {
        Some(begun) => {
            let clerk = taker.clerk.iter();
            clerk.for_each(|clerk| clerk.begin(joined.reply.session.to_text()));
            Arc::new(open_shelf(plan, joined, begun, (taker, said))?)
        }
        None if taker.clerk.as_ref().is_some_and(|clerk| clerk.desk().is_some()) => {
            let what = "its sender sends a tree, and a site takes only files of sites";
            return Err(Fault::start(what, "give the ticket of a site's multicast session"));
        }
        None => Arc::new(open_store(plan, joined, (taker, pipe, said))?),
    })
}
