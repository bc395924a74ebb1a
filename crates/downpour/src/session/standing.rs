//! A session of products as a library call, both ends. The sender's stays open until its owner ends it, takes products one by
//! one, and tells its owner who is there and what they say. The receiver's takes part in one after another.

use super::batch::{Running, receive_plan, run};
use super::open::Giver;
use super::receive::Taker;
use super::{receive, send};
use crate::cli::{
    EncryptionArg, Interface, NetworkPlan, OutputArgs, Payload, Profile, ReceivePlan, SendPlan,
    StartRule,
};
use crate::object::PipeOut;
use crate::ports::PortRange;
use crate::product::{Clerk, Listed};
use crate::report::Report;
use crate::ticket::Ticket;
use downpour_proto::{Code, Rate, ReceiverId, StreamId};
use downpour_transport::control::{DataPath, SessionId};
use downpour_transport::identity::{Identity, PublicKey};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
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
        /// Its number, its first block, its bytes; or why not.
        outcome: Result<(u64, u32, u64), String>,
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
    let (insert, list) = mpsc::channel();
    let (tell, heard) = unbounded_channel();
    let (say_opened, opened) = oneshot::channel();
    let owner = Owner { list: Mutex::new(Some(list)), tell, opened: Mutex::new(Some(say_opened)) };
    let giver = Giver {
        identity: setup.identity.clone(),
        spool: None,
        book: None,
        only: None,
        owner: Some(Arc::new(owner)),
        session: None,
        uplink: Arc::default(),
    };
    let plan = plan(setup);
    let running = run(None, move |handle, mut host| {
        handle.block_on(send::run(&plan, &giver, &mut host)).map(|done| done.report)
    });
    OpenSession { running, insert: Some(insert), heard, opened }
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
        let taker = Taker { identity, batch: None, clerk, links: None, pipe: PipeOut::stdout() };
        handle.block_on(receive::run(&plan, &taker, &mut host)).map(|over| over.report)
    })
}

fn plan(setup: SendProducts) -> SendPlan {
    SendPlan {
        payload: Payload::Products {
            list: PathBuf::from("products"),
            keep_bytes: setup.keep_bytes,
            log: None,
        },
        ticket: Some(setup.ticket),
        listen: None,
        xattrs: false,
        skip_unreadable: true,
        start: StartRule {
            receivers: None,
            expect: BTreeSet::new(),
            after: Some(Duration::ZERO),
            enter: false,
        },
        code: Code::Mixed,
        rate: setup.rate,
        rate_line: String::new(),
        profile: Profile::Auto,
        pull_share: downpour_proto::PULL_SHARE_DEFAULT,
        path: DataPath::Multicast,
        encryption: EncryptionArg::All,
        network: NetworkPlan {
            interface: setup.interface,
            group: setup.group,
            source_specific: false,
            ttl: 1,
            mtu: None,
            ports: setup.ports,
        },
        output: OutputArgs { quiet: true, ..OutputArgs::default() },
    }
}
