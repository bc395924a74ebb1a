//! A session of products as a library call, both ends. The sender's stays open until its owner ends it, takes products one by
//! one, and tells its owner who is there and what they say. The receiver's takes part in one after another.

use super::batch::{Running, receive_plan, run, send_plan};
use super::open::Giver;
use super::receive::{MayOpen, Taker};
use super::{receive, send};
use crate::cli::{Controller, Interface, NetworkPlan, Payload, ReceivePlan, SendPlan, StartRule};
use crate::ports::PortRange;
use crate::product::{Clerk, Listed};
use crate::report::Report;
use crate::ticket::Ticket;
use downpour_proto::{BlockId, Code, Rate, ReceiverId, StreamId};
use downpour_transport::control::{DataPath, SessionId};
use downpour_transport::identity::{Identity, PublicKey};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// How to open it.
#[derive(Clone, Debug)]
pub struct SendProducts {
    /// Signs.
    pub identity: Arc<Identity>,
    /// File of the ticket, which says who may join and on which port.
    pub ticket: PathBuf,
    /// Of the stream; `None`: the one with the route to the group.
    pub interface: Option<Interface>,
    /// `None`: chosen.
    pub group: Option<SocketAddr>,
    /// Ceiling.
    pub rate: Option<Rate>,
    /// Who decides the rate of a stream.
    pub controller: Controller,
    /// Memory for products that were sent, for repair and for who comes late.
    pub keep_bytes: u64,
    /// Where to look for free ports.
    pub ports: PortRange,
}

/// How to take part in another node's.
pub struct TakeProducts {
    /// Joins.
    pub identity: Arc<Identity>,
    /// From the sender.
    pub ticket: Ticket,
    /// Where files go.
    pub folder: PathBuf,
    /// Asked before each attempt opens it.
    pub may_open: Option<MayOpen>,
    /// Sees to them.
    pub clerk: Arc<Clerk>,
    /// This node, as the sender's report names it.
    pub name: String,
    /// Of the stream; `None`: the one with the route to the group.
    pub interface: Option<Interface>,
    /// Memory for blocks under way.
    pub memory_bytes: u64,
}

/// What the session tells its owner.
#[derive(Debug)]
pub enum Heard {
    /// A receiver takes part from this block on.
    Joined {
        /// Its key.
        node: PublicKey,
        /// Its number in this session.
        receiver: ReceiverId,
        /// The first block that it gets.
        from: u32,
    },
    /// It does not any more.
    Away {
        /// Its number.
        receiver: ReceiverId,
    },
    /// A product stands in its blocks, or could not be inserted.
    Inserted {
        /// What it is called.
        name: String,
        /// Its number and its blocks; or why not.
        outcome: Result<(u64, Range<u32>), String>,
    },
    /// All blocks before this one have been opened for sending.
    Opened {
        /// It.
        end: u32,
    },
    /// A receiver says something.
    Word {
        /// Its key.
        node: PublicKey,
        /// What it says.
        text: String,
        /// It waits until this was answered, and says it again if it was not.
        done: oneshot::Sender<()>,
    },
}

/// A session that is open.
#[derive(Debug)]
pub struct OpenSession {
    /// Ends it when dropped.
    pub running: Running<Report>,
    /// Products go in here. When it is dropped the session ends as soon as all have all.
    pub insert: Option<mpsc::Sender<Listed>>,
    /// What it tells.
    pub heard: UnboundedReceiver<Heard>,
    /// Told when it is open.
    pub opened: oneshot::Receiver<Opened>,
    /// What it reads.
    pub reads: Arc<Reads>,
}

/// What a session reads of its products. A disk may not answer, and what comes after that waits.
#[derive(Debug, Default)]
pub struct Reads(Mutex<(u64, Option<String>)>);

impl Reads {
    /// How many reads were begun, and the product of the last one, as long as it lasts.
    pub fn now(&self) -> (u64, Option<String>) {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, (u64, Option<String>)> {
        // Each change leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a read of this product.
    pub(crate) fn during<T>(&self, product: &str, read: impl FnOnce() -> T) -> T {
        {
            let mut now = self.lock();
            *now = (now.0 + 1, Some(product.to_owned()));
        }
        let done = read();
        self.lock().1 = None;
        done
    }
}

/// Which session it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its id.
    pub session: SessionId,
    /// Its stream.
    pub stream: StreamId,
}

/// Where the products of such a session come from, and who is told.
pub(super) struct Owner {
    pub(super) list: Mutex<Option<mpsc::Receiver<Listed>>>,
    pub(super) tell: UnboundedSender<Heard>,
    pub(super) opened: Mutex<Option<oneshot::Sender<Opened>>>,
    pub(super) reads: Arc<Reads>,
}

impl Owner {
    pub(super) fn tell(&self, heard: Heard) {
        // An owner that is gone ends the session.
        let _ = self.tell.send(heard);
    }

    pub(super) fn opened(&self, opened: Opened) {
        let waiting = self.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waiting) = waiting {
            let _ = waiting.send(opened);
        }
    }
}

/// Opens one.
pub fn send_products(setup: SendProducts) -> OpenSession {
    send_blocks(setup, BlockId::NUMBER_END)
}

/// The same, for so many blocks at most.
fn send_blocks(setup: SendProducts, blocks_max: u32) -> OpenSession {
    // Its owner counts what it has inserted, and takes what it hears at once: who says a word waits until it was taken.
    let (insert, list) = mpsc::channel();
    let (tell, heard) = unbounded_channel();
    let (say_opened, opened) = oneshot::channel();
    let reads = Arc::<Reads>::default();
    let owner = Owner {
        list: Mutex::new(Some(list)),
        tell,
        opened: Mutex::new(Some(say_opened)),
        reads: reads.clone(),
    };
    let giver = Giver { owner: Some(Arc::new(owner)), blocks_max, ..Giver::new(setup.identity) };
    let (list, keep_bytes) = (PathBuf::from("products"), setup.keep_bytes);
    let payload = Payload::Products { list, keep_bytes, log: None };
    let usual = send_plan(payload, (setup.rate, setup.controller), setup.ports);
    let plan = SendPlan {
        ticket: Some(setup.ticket),
        start: StartRule { after: Some(Duration::ZERO), ..StartRule::default() },
        code: Code::Mixed,
        path: DataPath::Multicast,
        network: NetworkPlan { interface: setup.interface, group: setup.group, ..usual.network },
        ..usual
    };
    let running = run(None, move |handle, mut host| {
        handle.block_on(send::run(&plan, &giver, &mut host)).map(|done| done.report)
    });
    OpenSession { running, insert: Some(insert), heard, opened, reads }
}

/// Takes part in session after session of one sender, and waits for it in between, until it is stopped or not let in.
pub fn take_products(setup: TakeProducts) -> Running<Report> {
    run(None, move |handle, mut host| {
        let named = (setup.name, setup.memory_bytes);
        let plan = ReceivePlan {
            stay: true,
            interface: setup.interface,
            ..receive_plan(&setup.ticket, setup.folder, named)?
        };
        let (identity, clerk) = (setup.identity, Some(setup.clerk));
        let (ours, may_open) = (Arc::default(), setup.may_open);
        let taker = Taker { identity, batch: None, clerk, ours, links: None, may_open };
        handle.block_on(receive::run(&plan, &taker, &mut host)).map(|over| over.report)
    })
}

#[cfg(test)]
mod tests {
    use super::{
        Heard, MayOpen, Report, Running, SendProducts, TakeProducts, send_blocks, send_products,
        take_products,
    };
    use crate::cli::{Controller, Interface};
    use crate::ports::PortRange;
    use crate::product::{Clerk, Content, Listed};
    use crate::ticket::Ticket;
    use downpour_catalog::ErrorClass;
    use downpour_proto::Rate;
    use downpour_transport::control::Token;
    use downpour_transport::identity::Identity;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    fn setup(folder: &Path) -> SendProducts {
        let identity = Arc::new(Identity::generate());
        let port = crate::test_ports::port();
        let hour = SystemTime::now() + Duration::from_secs(3_600);
        let ticket = Ticket {
            addrs: vec![format!("127.0.0.1:{port}")],
            key: identity.public_key(),
            token: Token::random().unwrap(),
            expires_unix_s: hour.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs(),
            group: None,
            allow: None,
        };
        let file = folder.join("ticket");
        ticket.write_file(&file).unwrap();
        SendProducts {
            identity,
            ticket: file,
            interface: Some(Interface::find("lo").unwrap()),
            group: None,
            rate: Some(Rate::from_mbps(100)),
            controller: Controller::Background,
            keep_bytes: 64 << 20,
            ports: PortRange::DEFAULT,
        }
    }

    fn take(ticket: Ticket, out: &Path, may_open: Option<MayOpen>) -> Running<Report> {
        let node = Arc::new(Identity::generate());
        take_products(TakeProducts {
            identity: Arc::clone(&node),
            ticket,
            folder: out.to_owned(),
            may_open,
            clerk: Arc::new(Clerk::new(out.to_owned(), node, None)),
            name: "r".to_owned(),
            interface: Some(Interface::find("lo").unwrap()),
            memory_bytes: 64 << 20,
        })
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_folder_that_may_not_be_opened_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let (setup, out) = (setup(folder.path()), folder.path().join("out"));
        let ticket = Ticket::read_file(&setup.ticket).unwrap();
        let _session = send_products(setup);
        let refusal = (ErrorClass::DestinationWriteFailed, "it is not mounted".to_owned());
        let refused = refusal.clone();
        let may_open: MayOpen = Arc::new(move || Err(refused.clone()));
        let fault = take(ticket, &out, Some(may_open)).done().await.unwrap_err();
        assert_eq!((fault.class.unwrap(), fault.what), refusal);
        assert!(!out.exists());
    }

    /// What is inserted in vain is no business of those who have joined: they stay for the next session.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_session_without_numbers_for_more_blocks_ends_in_order_and_names_what_had_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let setup = setup(folder.path());
        let ticket = Ticket::read_file(&setup.ticket).unwrap();
        let mut session = send_blocks(setup, 8);
        let out = folder.path().join("out");
        let mut receiver = take(ticket, &out, None);
        while !matches!(session.heard.recv().await.unwrap(), Heard::Joined { .. }) {}
        let insert = session.insert.take().unwrap();
        for number in 0..20 {
            let content = Content::Made { size: 100_000, seed: number };
            let (name, meta) = (format!("p{number}"), String::new());
            // It may be at its end already.
            let _ = insert.send(Listed { at_s: None, name, meta, content });
        }
        let report = session.running.done().await.unwrap();
        let [failed] = &report.failed[..] else { panic!("{report:?}") };
        let sent = report.session.objects;
        assert_eq!(failed.name, format!("p{sent}"));
        assert!(!report.is_complete() && (3..8).contains(&sent), "{report:?}");
        assert!(report.receivers.iter().all(|r| r.state.is_complete()), "{report:?}");
        assert!((0..sent).all(|number| out.join(format!("p{number}")).exists()));
        let (mut ends, mut sent_end) = (Vec::new(), 0);
        while let Ok(heard) = session.heard.try_recv() {
            match heard {
                Heard::Inserted { outcome, .. } => ends.push(outcome.unwrap().1.end),
                Heard::Opened { end } => sent_end = end,
                _ => {}
            }
        }
        assert!(ends.len() as u64 == sent && ends[0] <= sent_end, "{ends:?} {sent_end}");
        // Each is opened and read.
        let (reads, product) = session.reads.now();
        assert!(reads >= 2 * sent && product.is_none(), "{reads} {product:?}");
        receiver.stop();
        receiver.done().await.unwrap();
    }
}
