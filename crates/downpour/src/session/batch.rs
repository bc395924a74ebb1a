//! A list of files to one node, both ends as a library call: no terminal, no signals, cancelled by its handle.
//!
//! The sender gives a ticket, which travels by other means; only the node that is named may join. The receiver takes only
//! the files that were agreed on, with the content that was agreed on. What came of each file is told at both ends.
//!
//! Each end runs on a thread of its own: looking at a thousand files takes its time, and a disk that does not answer holds
//! no thread up that others need. Its turns are given back when none of its threads reads.

use super::ended::Over;
use super::host::Host;
use super::open::Giver;
use super::receive::{BatchTarget, MayOpen, Taker};
use super::roster::Stage;
use super::send::Done;
use super::{faults, receive, send};
use crate::cli::{
    Controller, EncryptionArg, Fault, NetworkPlan, OutputArgs, Payload, ReceivePlan, SendPlan,
    StartRule, Target, TicketText,
};
use crate::object::limits::ENTRIES_DEFAULT;
use crate::object::{
    Agreed, DigestBook, FolderOptions, Item, Obstacle, Placed, Skipped, printable,
};
use crate::ports::PortRange;
use crate::progress::{Phase, Snapshot};
use crate::report::Report;
use crate::steering::LinkBook;
use crate::ticket::Ticket;
use crate::units::HostPort;
use downpour_catalog::ErrorClass;
use downpour_proto::transfer::{Measured, Wishes};
use downpour_proto::{Code, Rate};
use downpour_transport::control::{DataPath, SessionId, SignedReceipt, Uplink};
use downpour_transport::identity::{Identity, PublicKey};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// What to send, to whom and how.
#[derive(Clone, Debug)]
pub struct SendFiles {
    /// Signs.
    pub identity: Arc<Identity>,
    /// What was hashed before.
    pub book: Option<DigestBook>,
    /// What the session is called: never the same twice.
    pub session: SessionId,
    /// The only node that may join.
    pub receiver: PublicKey,
    /// The files.
    pub items: Vec<Item>,
    /// Which path the blocks take; not multicast.
    pub path: DataPath,
    /// What of that which goes by TCP is encrypted.
    pub encryption: EncryptionArg,
    /// Ceiling.
    pub rate: Option<Rate>,
    /// Who decides the rate of a stream.
    pub controller: Controller,
    /// Where the receiver reaches us; `None` is any address and the first free port.
    pub listen: Option<HostPort>,
    /// Where to look for free ports.
    pub ports: PortRange,
    /// How long to wait for the receiver.
    pub wait: Duration,
    /// With which other sessions it shares its way out.
    pub uplink: Arc<Uplink>,
    /// Kept until none of its threads may be at the files any more.
    pub turns: SendTurns,
}

/// The turns to read that a session has.
pub type SendTurns = Arc<Vec<OwnedSemaphorePermit>>;

/// What to receive, from whom and where to.
pub struct ReceiveFiles {
    /// Signs.
    pub identity: Arc<Identity>,
    /// From the sender.
    pub ticket: Ticket,
    /// Where files go; may be the same folder for several batches in different lanes.
    pub folder: FolderOptions,
    /// Asked before each attempt opens it.
    pub may_open: Option<MayOpen>,
    /// The files that are taken.
    pub agreed: Agreed,
    /// This node, as the sender's report names it.
    pub name: String,
    /// How connections shall be set.
    pub wishes: Wishes,
    /// What is known of the path.
    pub measured: Measured,
    /// Other transfers that run on it.
    pub beside: u16,
    /// Memory for blocks under way.
    pub memory_bytes: u64,
    /// How long to wait for the sender, at the beginning and when it is lost.
    pub wait: Duration,
    /// What is remembered of links, and the name of this one.
    pub links: Option<LinkBook>,
}

/// What became of one item, as the sender knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemEnd {
    /// The receiver says that it is in its place.
    Placed,
    /// It was not sent.
    Skipped(Skipped),
    /// It was given up while it was sent.
    Withdrawn(String),
    /// The receiver could not place it.
    Unplaced(String),
    /// The session ended before the receiver said anything.
    Unknown,
}

/// How a sender's session ended.
#[derive(Debug)]
pub struct SentFiles {
    /// In the order of the list.
    pub items: Vec<ItemEnd>,
    /// The receiver's last one.
    pub receipt: Option<SignedReceipt>,
    /// All of it.
    pub report: Report,
}

/// What became of the files, as the receiver knows it.
#[derive(Clone, Debug, Default)]
pub struct FilesEnd {
    /// In their places, verified, on the disk.
    pub placed: Vec<Placed>,
    /// What could not be placed: name, kind, reason.
    pub unplaced: HashMap<String, (Obstacle, String)>,
}

/// How a receiver's session ended.
#[derive(Debug)]
pub struct ReceivedFiles {
    /// Of each file.
    pub files: FilesEnd,
    /// Why the whole was not completed.
    pub failure: Option<(ErrorClass, String)>,
    /// All of it.
    pub report: Report,
}

impl ReceivedFiles {
    /// Why a file that is not in its place is not there.
    pub fn why(&self, name: &str) -> Option<&(Obstacle, String)> {
        self.files.unplaced.get(&printable(name.as_bytes()))
    }
}

/// A session that runs. Dropped, it is told to end, and nobody waits for it.
#[derive(Debug)]
pub struct Running<T> {
    seen: watch::Receiver<Option<Snapshot>>,
    came: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
    give_up: mpsc::UnboundedSender<usize>,
    task: JoinHandle<Result<T, Fault>>,
}

impl<T> Running<T> {
    /// How it goes; `None` before it has begun.
    pub fn progress(&self) -> Option<Snapshot> {
        self.seen.borrow().clone()
    }

    /// How many bytes a receiver was given that it pulls, by the sender that it has now: also of blocks that are not whole.
    pub fn came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }

    /// Whether it waits for the other node no longer: that was there, or did not come in time.
    pub fn has_begun(&self) -> bool {
        self.seen.borrow().as_ref().is_some_and(|seen| !matches!(seen.phase, Phase::Waiting { .. }))
    }

    /// Whether it has ended: how, is known at once.
    pub(crate) fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends it. What has arrived is kept.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Gives up one item of the list; the others are sent all the same.
    pub fn give_up(&self, item: usize) {
        // A session that is over sends nothing more.
        let _ = self.give_up.send(item);
    }

    /// How it ended.
    pub async fn done(&mut self) -> Result<T, Fault> {
        (&mut self.task).await.unwrap_or_else(|error| {
            let fault = Fault::start(format!("a session failed: {error}"), "report this as a bug");
            Err(fault.of(ErrorClass::Internal))
        })
    }
}

/// Begins to send. The ticket comes when the session is open; not at all if it cannot be opened.
pub fn send_files(setup: SendFiles) -> (Running<SentFiles>, oneshot::Receiver<Ticket>) {
    let (tell, ticket) = oneshot::channel();
    let giver = Giver {
        book: setup.book,
        only: Some(setup.receiver),
        session: Some(setup.session),
        uplink: setup.uplink,
        turns: setup.turns,
        ..Giver::new(setup.identity)
    };
    let plan = SendPlan {
        listen: setup.listen,
        start: StartRule { receivers: Some(1), after: Some(setup.wait), ..StartRule::default() },
        path: setup.path,
        encryption: setup.encryption,
        ..send_plan(Payload::Files(setup.items), (setup.rate, setup.controller), setup.ports)
    };
    let running = run(Some(tell), move |handle, mut host| {
        handle.block_on(send::run(&plan, &giver, &mut host)).map(sent)
    });
    (running, ticket)
}

/// Begins to receive.
pub fn receive_files(setup: ReceiveFiles) -> Running<ReceivedFiles> {
    run(None, move |handle, mut host| {
        let batch = BatchTarget { folder: setup.folder.clone(), agreed: Arc::new(setup.agreed) };
        let taker = Taker {
            identity: setup.identity,
            batch: Some(batch),
            clerk: None,
            ours: Arc::default(),
            links: setup.links,
            may_open: setup.may_open,
        };
        let plan = ReceivePlan {
            join_timeout: setup.wait,
            wishes: setup.wishes,
            measured: setup.measured,
            beside: setup.beside,
            ..receive_plan(&setup.ticket, setup.folder.out, (setup.name, setup.memory_bytes))?
        };
        handle.block_on(receive::run(&plan, &taker, &mut host)).map(received)
    })
}

/// Of this, by a program: what it does not say is as usual.
pub(super) fn send_plan(
    payload: Payload,
    (rate, controller): (Option<Rate>, Controller),
    ports: PortRange,
) -> SendPlan {
    SendPlan {
        payload,
        ticket: None,
        listen: None,
        xattrs: false,
        skip_unreadable: true,
        start: StartRule::default(),
        code: Code::default(),
        rate,
        rate_line: String::new(),
        controller,
        pull_share: downpour_proto::PULL_SHARE_DEFAULT,
        path: DataPath::default(),
        encryption: EncryptionArg::All,
        network: NetworkPlan {
            interface: None,
            group: None,
            source_specific: false,
            ttl: 1,
            mtu: None,
            ports,
        },
        output: OutputArgs { quiet: true, ..OutputArgs::default() },
    }
}

/// Into a folder, by a program: what it does not say is as usual.
pub(super) fn receive_plan(
    ticket: &Ticket,
    folder: PathBuf,
    (name, memory_bytes): (String, u64),
) -> Result<ReceivePlan, Fault> {
    Ok(ReceivePlan {
        ticket: TicketText::read(&ticket.to_string())?,
        target: Target::Tree(folder),
        overwrite: false,
        setuid: false,
        xattrs: false,
        join_timeout: Duration::ZERO,
        stay: false,
        name,
        memory_bytes,
        entries_max: ENTRIES_DEFAULT,
        product_log: None,
        interface: None,
        inject_loss: 0.0,
        wishes: Wishes::default(),
        measured: Measured::default(),
        beside: 0,
        output: OutputArgs { quiet: true, ..OutputArgs::default() },
    })
}

pub(super) fn run<T: Send + 'static>(
    ticket: Option<oneshot::Sender<Ticket>>,
    session: impl FnOnce(&Handle, Host) -> Result<T, Fault> + Send + 'static,
) -> Running<T> {
    let (tell, seen) = watch::channel(None);
    let came = Arc::<AtomicU64>::default();
    let (stop, stopped) = watch::channel(false);
    // The items of one list, as they are given up.
    let (give_up, given_up) = mpsc::unbounded_channel();
    let host = Host::Program { seen: tell, came: came.clone(), stop: stopped, ticket, given_up };
    let handle = Handle::current();
    let task = tokio::spawn(aside(move || session(&handle, host)));
    Running { seen, came, stop, give_up, task }
}

/// Does something on a thread of its own.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let (tell, done) = oneshot::channel();
    let thread = thread::Builder::new().name("downpour-session".to_owned());
    // Nobody may wait for it any more.
    let work = move || drop(tell.send(catch_unwind(AssertUnwindSafe(work))));
    let spawned = thread.spawn(work);
    spawned.map_err(|error| faults::threads(error).of(ErrorClass::OutOfResources))?;
    let done = done.await.expect("it is told, whatever comes of it");
    done.unwrap_or_else(|panic| resume_unwind(panic))
}

fn sent(done: Done) -> SentFiles {
    let member = done.members.last();
    let receipt =
        member.and_then(|member| member.receipt.as_ref()).filter(|receipt| receipt.finished);
    let unplaced: HashMap<u32, &str> = receipt.map_or_else(HashMap::new, |receipt| {
        receipt.failures.iter().map(|f| (f.object, f.reason.as_str())).collect()
    });
    let all_told = receipt.is_some_and(|r| r.objects_failed == r.failures.len() as u64);
    let complete = member.is_some_and(|member| member.stage == Stage::Complete);
    let end = |entry: &Result<_, _>| {
        let entry: crate::object::EntryId = match entry {
            Ok(entry) => *entry,
            Err(skipped) => return ItemEnd::Skipped(*skipped),
        };
        if let Some(withdrawn) = done.withdrawn.iter().find(|w| w.entry == entry) {
            return ItemEnd::Withdrawn(withdrawn.reason.clone());
        }
        match unplaced.get(&entry.0) {
            Some(reason) => ItemEnd::Unplaced((*reason).to_owned()),
            None if complete || all_told => ItemEnd::Placed,
            None => ItemEnd::Unknown,
        }
    };
    let items = done.items.iter().map(end).collect();
    let proof = member.and_then(|member| member.proof.clone());
    SentFiles { items, receipt: proof, report: done.report }
}

fn received(over: Over) -> ReceivedFiles {
    let unplaced = over.unplaced.into_iter().map(|u| (u.path, (u.obstacle, u.reason)));
    let files = FilesEnd { placed: over.placed, unplaced: unplaced.collect() };
    ReceivedFiles { files, failure: over.failure, report: over.report }
}
