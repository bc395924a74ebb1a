//! What a receiver does with blocks, as its attempt sees it: a store for one manifest, or a shelf for products.
//!
//! Both hold locks while they wait for a disk or a pipe. The loop of a session waits for nobody's: what needs one is done
//! aside ([`Kept`]).

use super::attempt::Said;
use super::faults;
use super::receive::Taker;
use crate::cli::{Fault, ReceivePlan, Target};
use crate::object::limits::GROUP_LEN;
use crate::object::{
    Claim, Destination, EntryId, FolderOptions, ManifestId, OpenError, PipeOut, Placed, Store,
    StoreConfig, Summary, is_locked,
};
use crate::product::{Bookmark, Clerk, Desk, ProductLog, Shelf, ShelfConfig};
use downpour_catalog::ErrorClass;
use downpour_proto::BlockId;
use downpour_proto::receiver::PULLS_DEFAULT;
use downpour_proto::transfer::CONNECTIONS_FAR;
use downpour_transport::BlockSink;
use downpour_transport::control::{ClockOffset, Joined};
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

/// What is pulled at once for a pipe has room in it, however little memory there is: else it would come again and again.
fn pipe_window(memory: u64, connections: Option<u16>, block_len: u64) -> u64 {
    let connections = connections.unwrap_or(CONNECTIONS_FAR);
    let blocks = u64::from(connections).max(PULLS_DEFAULT as u64);
    // They need not begin and end where groups do.
    memory.max(blocks * block_len).saturating_add(2 * GROUP_LEN)
}

/// No more is heard of a sender of whose words so many wait for a disk.
const ASIDE_MAX: usize = 1000;

/// The receiver's end of the data.
pub(super) trait Keeper: BlockSink {
    /// The sender gives up a file.
    fn withdraw(&self, entry: EntryId, reason: &str);

    /// The sender gives up a file: [`withdraw`](Self::withdraw) follows, and nothing is finished before. Waits for nothing.
    fn withdrawal_follows(&self) {}

    /// Nothing comes at or after these data and manifest blocks.
    fn finished(&self, data: u32, manifest: u32);

    /// The sender cannot give a block any more: products are done without.
    fn lost(&self, block: BlockId) {
        let _ = block;
    }

    /// What has come so far.
    fn summary(&self) -> Summary;

    /// How far a receiver of products has got.
    fn mark(&self) -> Option<Bookmark> {
        None
    }

    /// Bytes of products so far; a manifest tells how much its blocks hold. Waits for no lock.
    fn product_bytes(&self) -> Option<u64> {
        None
    }

    /// Of products, no data block below is needed any more. Waits for no lock.
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

    fn withdrawal_follows(&self) {
        self.withdrawal_follows();
    }

    fn finished(&self, _data: u32, manifest: u32) {
        self.finished(manifest); // Which says where the data end.
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

    fn lost(&self, block: BlockId) {
        self.lost(block);
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

/// The keeper in the hands of a session's loop, which goes on meanwhile.
pub(super) struct Kept {
    keeper: Arc<dyn Keeper>,
    aside: JoinSet<()>,
    /// One at a time, as each may hold a thread for long.
    turn: Arc<Mutex<()>>,
}

impl Kept {
    pub(super) fn new(keeper: Arc<dyn Keeper>) -> Self {
        Self { keeper, aside: JoinSet::new(), turn: Arc::default() }
    }

    pub(super) fn withdraw(&mut self, entry: EntryId, reason: String) {
        self.keeper.withdrawal_follows();
        self.aside(move |keeper| keeper.withdraw(entry, &reason));
    }

    pub(super) fn finished(&mut self, data: u32, manifest: u32) {
        self.aside(move |keeper| keeper.finished(data, manifest));
    }

    pub(super) fn lost(&mut self, block: BlockId) {
        self.aside(move |keeper| keeper.lost(block));
    }

    fn aside(&mut self, work: impl FnOnce(&dyn Keeper) + Send + 'static) {
        let (keeper, turn) = (Arc::clone(&self.keeper), Arc::clone(&self.turn));
        self.aside.spawn(async move {
            let _turn = turn.lock().await;
            let done = tokio::task::spawn_blocking(move || work(&*keeper)).await;
            done.expect("no keeper panics");
        });
    }

    /// Whether so much is aside that no more should come to it.
    pub(super) fn is_behind(&mut self) -> bool {
        while let Some(done) = self.aside.try_join_next() {
            done.expect("no keeper panics");
        }
        self.aside.len() >= ASIDE_MAX
    }

    /// Waits for all that is done aside.
    pub(super) async fn settle(&mut self) {
        while let Some(done) = self.aside.join_next().await {
            done.expect("no keeper panics");
        }
    }
}

impl Deref for Kept {
    type Target = dyn Keeper;

    fn deref(&self) -> &Self::Target {
        &*self.keeper
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
        Target::Pipe => {
            let block_len = reply.geometry.block_len();
            let window = pipe_window(plan.memory_bytes, plan.wishes.connections, block_len);
            Destination::Pipe { out: pipe.clone(), window }
        }
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
        (OpenError::Full { .. }, _) => ErrorClass::DestinationFull,
        (_, Target::Tree(out)) => faults::class_of_target(out),
        _ => ErrorClass::DestinationWriteFailed,
    };
    let todo = match error {
        OpenError::Locked(_) => "wait for it, or choose another --out",
        OpenError::Full { .. } => {
            "make room there (df, and df -i for inodes; quota), or give another folder"
        }
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

/// Something is there that may prove to be what is sent, or a part of it.
pub(super) fn may_hold(target: &Target) -> bool {
    match target {
        Target::Tree(out) => std::fs::read_dir(out).is_ok_and(|mut dir| dir.next().is_some()),
        Target::Device(_) => true,
        Target::Pipe | Target::Discard => false,
    }
}

/// `shelf` is for a session of products. Nothing is opened, nor made, that may not be.
pub(super) fn open_keeper(
    plan: &ReceivePlan,
    joined: &Joined,
    (taker, pipe, said): (&Taker, &PipeOut, UnboundedSender<Said>),
    shelf: Option<ShelfStart>,
) -> Result<Arc<dyn Keeper>, Fault> {
    if let Some(may_open) = &taker.may_open {
        let refused = |(class, what)| Fault::start(what, "see to its disk").of(class);
        may_open().map_err(refused)?;
    }
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

#[cfg(test)]
mod tests {
    use super::{ASIDE_MAX, GROUP_LEN, Keeper, Kept, pipe_window};
    use crate::object::{EntryId, Summary};
    use downpour_proto::BlockId;
    use downpour_transport::{Accepted, BlockSink};
    use std::ops::Range;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::Duration;

    /// Does each thing when it may.
    struct Slow {
        may: Mutex<mpsc::Receiver<()>>,
        done: AtomicU32,
    }

    impl Slow {
        fn work(&self) {
            let long = Duration::from_secs(60);
            self.may.lock().unwrap().recv_timeout(long).expect("the loop is held up");
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl BlockSink for Slow {
        fn seed(&self, _: BlockId, _: &mut [u8]) -> Vec<Range<u16>> {
            Vec::new()
        }

        fn accept(&self, _: BlockId, _: &[u8]) -> Accepted {
            Accepted::Kept
        }
    }

    impl Keeper for Slow {
        fn withdraw(&self, _: EntryId, _: &str) {
            self.work();
        }

        fn finished(&self, _: u32, _: u32) {
            self.work();
        }

        fn lost(&self, _: BlockId) {
            self.work();
        }

        fn summary(&self) -> Summary {
            Summary::default()
        }
    }

    #[test]
    fn what_is_pulled_at_once_has_room_before_a_slow_pipe() {
        let block_len = 1_440_000;
        for (memory, connections, blocks) in
            [(4_000_000, None, 10), (4_000_000, Some(1), 8), (1, Some(64), 64)]
        {
            let window = pipe_window(memory, connections, block_len);
            assert_eq!(window, blocks * block_len + 2 * GROUP_LEN, "{connections:?}");
        }
        assert_eq!(pipe_window(256_000_000, None, block_len), 256_000_000 + 2 * GROUP_LEN);
        assert_eq!(pipe_window(u64::MAX, None, block_len), u64::MAX);
    }

    #[tokio::test]
    async fn the_loop_of_a_session_goes_on_while_its_keeper_waits_for_a_disk() {
        let (go_on, may) = mpsc::channel();
        let keeper = Arc::new(Slow { may: Mutex::new(may), done: AtomicU32::new(0) });
        let mut kept = Kept::new(Arc::clone(&keeper) as Arc<dyn Keeper>);
        kept.withdraw(EntryId(1), "changed".to_owned());
        kept.lost(BlockId::data(1).unwrap());
        kept.finished(2, 1);
        assert!(!kept.is_behind());
        (3..ASIDE_MAX).for_each(|_| kept.finished(2, 1));
        assert!(kept.is_behind());
        (0..ASIDE_MAX).for_each(|_| go_on.send(()).unwrap());
        kept.settle().await;
        assert!(!kept.is_behind());
        assert_eq!(keeper.done.load(Ordering::Relaxed), ASIDE_MAX as u32);
    }
}
