//! Opens everything that a sender's session needs, in the order in which a user would want to hear of
//! errors: paths, keys, ticket, interface and group, ports.

use super::batch::SendTurns;
use super::carried::Carried;
use super::emit::emit;
use super::endpoint::{Endpoint, Shared, Stand};
use super::feeding::{Feed, Lines, feed, read_ahead};
use super::standing::Owner;
use super::{TOO_SLOW, UNHEARD, faults, network};
use crate::cli::{Controller, EncryptionArg, Fault, Payload, SendPlan, listen_addrs};
use crate::descriptors;
use crate::home::Home;
use crate::object::limits::ENTRIES_DEFAULT;
use crate::object::{
    ContentSource, DigestBook, EntryId, ManifestId, Scan, ScanOptions, Skipped, Withdrawn,
    name_at_top, printable,
};
use crate::product::{Inserter, ProductLog, Queue};
use crate::report::Named;
use crate::ticket::Ticket;
use crate::units::HostPort;
use downpour_proto::rate::{Auto, Background, Fixed, RateController, Tfmcc};
use downpour_proto::{
    BlockId, Epoch, Geometry, Parity, Rate, ReceiverId, SenderConfig, StreamId, Timestamp,
};
use downpour_transport::control::{
    ControlServer, DataPath, Event, JoinReply, PullBudget, ServerLimits, ServerSetup, SessionId,
    Token, Uplink,
};
use downpour_transport::identity::{ClientKeys, Identity, PublicKey};
use downpour_transport::session::{SendEvent, SendHandle, SendSetup, StreamOut};
use downpour_transport::trace::Trace;
use downpour_transport::{Secret, Suite, UnicastSocket};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// How long a ticket printed by `send` admits.
const TICKET_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Round trip that timers of small groups start from at most, until the stream has measured its own.
const INITIAL_RTT: Duration = Duration::from_millis(20);

/// Sections hashed ahead of the one that is being offered.
const SECTIONS_AHEAD: usize = 1;

/// Bytes that were hashed and wait in memory to be pulled, where all is pulled: what is offered ahead on short ways, and
/// the sections that are hashed meanwhile.
const KEPT_BYTES: u64 = 96 << 20;

/// Threads that hash at once.
const HASH_THREADS_MAX: usize = 4;

/// Everything that is open while a session runs.
pub(super) struct Open {
    pub(super) shared: Arc<Shared>,
    pub(super) server: ControlServer,
    pub(super) budget: Arc<PullBudget>,
    pub(super) ticket: Ticket,
    /// Group and interface, as text.
    pub(super) stream: Option<(String, String)>,
    pub(super) skipped: Vec<Named>,
    /// What each item of a list became.
    pub(super) items: Vec<Result<EntryId, Skipped>>,
    pub(super) trace: Option<Trace>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) emitting: JoinHandle<()>,
}

/// Who sends.
pub(super) struct Giver {
    /// Signs the manifest, and is what the ticket names.
    pub(super) identity: Arc<Identity>,
    /// Where a pipe's bytes are kept, in a session of one.
    pub(super) spool: Option<PathBuf>,
    /// What it has hashed before.
    pub(super) book: Option<DigestBook>,
    /// The only node that may join.
    pub(super) only: Option<PublicKey>,
    /// The program that owns a session of products.
    pub(super) owner: Option<Arc<Owner>>,
    /// What the session is called; at random unless said.
    pub(super) session: Option<SessionId>,
    /// A session of products ends after so many blocks.
    pub(super) blocks_max: u32,
    /// With which other sessions it shares its way out.
    pub(super) uplink: Arc<Uplink>,
    /// Turns to read what is sent.
    pub(super) turns: SendTurns,
}

impl Giver {
    /// A node that keeps nothing, and gives to whoever has the ticket.
    pub(super) fn new(identity: Arc<Identity>) -> Self {
        Self {
            identity,
            spool: None,
            book: None,
            only: None,
            owner: None,
            session: None,
            blocks_max: BlockId::NUMBER_END,
            uplink: Arc::default(),
            turns: Arc::default(),
        }
    }

    /// This user's node.
    pub(super) fn at_home() -> Result<Self, Fault> {
        let home = Home::locate().map_err(|error| faults::home(&error))?;
        let spool = home.state().map_err(|error| faults::home(&error))?.to_owned();
        Ok(Self {
            // Without it all is hashed, as at the first time.
            book: DigestBook::open(spool.join(DigestBook::FOLDER)).ok(),
            spool: Some(spool),
            ..Self::new(faults::identity(&home)?)
        })
    }
}

/// Opens it all; receivers can join from then on.
pub(super) async fn open(plan: &SendPlan, giver: &Giver) -> Result<Open, Fault> {
    let room = descriptors::room(descriptors::raise()).map_err(|few| {
        let what =
            format!("this system lets the program open only {few} files, too few for a session");
        Fault::start(what, "raise the limit before the start (ulimit -n 65536)")
    })?;
    let trace = faults::trace(plan.output.trace.as_deref(), "sender")?;
    let (scan, items) = scan(plan)?;
    let skipped = scan.as_ref().map(skipped).unwrap_or_default();
    let many = scan.as_ref().and_then(many_entries);
    let identity = Arc::clone(&giver.identity);
    let given = given_ticket(plan, &identity)?;
    let group = plan.network.group.or(given.as_ref().and_then(|ticket| ticket.group));
    let session = giver.session.or_else(SessionId::random).ok_or_else(faults::randomness)?;
    let (stream, no_stream) = stream(plan, group, &session)?;
    let coded = (plan.code, scan.as_ref().and_then(|scan| scan.tree().data_len()));
    let geometry = network::geometry(&plan.network, plan.path, stream.as_ref(), coded);
    let later = Later::default();
    let load = load(plan, giver, scan, geometry, session, &later)?;
    let listen = plan.listen.clone().or_else(|| given.as_ref().and_then(listen_hint));
    let candidates = listen_addrs(listen.as_ref(), plan.network.ports)?;
    let first = stream.as_ref().and_then(|out| out.interface.address_for(out.group.address()));
    let names = stream.as_ref().map(|out| (out.group.to_string(), out.interface.name.clone()));
    let wanted = candidates.first().copied().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    let feedback = network::feedback_socket(wanted, plan.network.ports)?;
    let reply = reply(plan, session, &identity, stream.as_ref(), &feedback, (geometry, &load))?;
    let shared = spawn_driver(plan, stream, feedback, reply, (&load, trace.clone(), later))?;
    shared.stand().notices.extend(room.notice.into_iter().chain(many).chain(for_one(plan)));
    shared.stand().notices.extend(link_among(plan));
    if let Some(why) = no_stream {
        shared.stand().notices.push(format!("no multicast, all receivers pull: {why}"));
    }
    let budget = PullBudget::new(plan.rate.unwrap_or(Rate::MAX));
    let (token, expires_unix_s) = admission(given.as_ref())?;
    let setup = || ServerSetup {
        identity: Arc::clone(&identity),
        clients: clients(giver, given.as_ref()),
        session,
        token,
        plain: shared.reply.plain_token,
        expires_unix_s,
        budget: Arc::clone(&budget),
        uplink: Arc::clone(&giver.uplink),
        limits: ServerLimits { connections_max: room.connections, ..ServerLimits::default() },
    };
    let server = bind(&candidates, setup, &shared, given.is_some()).await?;
    let told = given.as_ref().and_then(|t| network::other_port(&t.addrs, server.local_addr()));
    shared.stand().notices.extend(told);
    let ticket = given.unwrap_or_else(|| {
        let (addrs, key) = (network::own_addrs(server.local_addr(), first), identity.public_key());
        shared.stand().notices.extend(network::only_here(&addrs, first));
        Ticket { addrs, key, token, expires_unix_s, group: None, allow: None }
    });
    let stop = Arc::new(AtomicBool::new(false));
    let emitting = spawn_emit(&shared, load, (session, identity, giver), &stop)?;
    Ok(Open {
        shared,
        server,
        budget,
        ticket,
        stream: names,
        skipped,
        items,
        trace,
        stop,
        emitting,
    })
}

/// The walk over what is sent, and what each item of a list became.
type Scanned = (Option<Scan>, Vec<Result<EntryId, Skipped>>);

/// Where the stream goes, or why there is none.
fn stream(
    plan: &SendPlan,
    group: Option<SocketAddr>,
    session: &SessionId,
) -> Result<(Option<StreamOut>, Option<String>), Fault> {
    match plan.path {
        DataPath::Tcp | DataPath::Udp | DataPath::Auto => Ok((None, None)),
        DataPath::Multicast => {
            Ok(match network::stream_out(&plan.network, group, number(session))? {
                Ok(stream) => (Some(stream), None),
                Err(why) => (None, Some(why)),
            })
        }
    }
}

/// What admits to the session, and until when.
fn admission(given: Option<&Ticket>) -> Result<(Token, u64), Fault> {
    match given {
        Some(ticket) => Ok((ticket.token, ticket.expires_unix_s)),
        None => {
            let token = Token::random().ok_or_else(faults::randomness)?;
            Ok((token, unix_now() + TICKET_LIFE.as_secs()))
        }
    }
}

fn scan(plan: &SendPlan) -> Result<Scanned, Fault> {
    let scanned = match &plan.payload {
        Payload::Paths(paths) => {
            let options =
                ScanOptions { xattrs: plan.xattrs, skip_unreadable: plan.skip_unreadable };
            Scan::new(paths, &options).map(|scan| (Some(scan), Vec::new()))
        }
        Payload::Files(items) => Scan::items(items).map(|all| (Some(all.scan), all.entries)),
        Payload::Pipe { .. } | Payload::Products { .. } => Ok((None, Vec::new())),
    };
    scanned.map_err(|error| faults::scan(&error))
}

/// More receivers are awaited than the stream can reach.
fn for_one(plan: &SendPlan) -> Option<String> {
    let awaited = (plan.start.receivers.unwrap_or(0) as usize).max(plan.start.expect.len());
    let path = plan.path.name().filter(|_| plan.path.is_unicast() && awaited > 1)?;
    Some(format!("--path {path} is for one receiver: the stream goes to one, the others pull"))
}

/// A link that was named is sent as one. Its contents may have been meant.
fn link_among(plan: &SendPlan) -> Option<String> {
    let Payload::Paths(paths) = &plan.payload else { return None };
    paths.iter().find_map(|path| link_notice(path))
}

fn link_notice(path: &Path) -> Option<String> {
    // By a name that ends in a slash it is the folder itself.
    let leads = path.is_symlink().then(|| path.metadata().ok())??;
    let path = path.display();
    Some(match leads.is_dir() {
        true => format!("{path} is a link, and sent as one: {path}/ sends what is in the folder"),
        false => format!("{path} is a link, and sent as one: name the file that it leads to"),
    })
}

/// Receivers refuse so many entries unless they are told to take them.
fn many_entries(scan: &Scan) -> Option<String> {
    let entries = scan.tree().len();
    (entries > ENTRIES_DEFAULT).then(|| {
        format!(
            "the tree has {entries} entries: receivers take more than {ENTRIES_DEFAULT} only when \
             started with --max-entries {entries}"
        )
    })
}

fn skipped(scan: &Scan) -> Vec<Named> {
    let named = |notice: &crate::object::Notice| Named {
        name: notice.path.display().to_string(),
        why: notice.reason.clone(),
    };
    scan.notices().iter().map(named).collect()
}

/// The ticket made ahead of time, which must be one of ours.
fn given_ticket(plan: &SendPlan, identity: &Identity) -> Result<Option<Ticket>, Fault> {
    let Some(path) = &plan.ticket else { return Ok(None) };
    let advice = "make one with `downpour ticket new --address HOST:PORT --out FILE`";
    let ticket = Ticket::read_file(path).map_err(|e| Fault::start(e.to_string(), advice))?;
    let in_time = ticket.check_time(SystemTime::now());
    in_time.map_err(|e| Fault::start(format!("{}: {}", path.display(), e.since()), advice))?;
    if ticket.key != identity.public_key() {
        let what = format!("the ticket {} was made by another node", path.display());
        let todo = "send from the node (and $DOWNPOUR_HOME) where `ticket new` was run";
        return Err(Fault::start(what, todo));
    }
    Ok(Some(ticket))
}

/// The port that a ticket made ahead of time promises, on all addresses of this machine.
fn listen_hint(ticket: &Ticket) -> Option<HostPort> {
    let addr: HostPort = ticket.addrs.first()?.parse().ok()?;
    Some(HostPort { host: "::".to_owned(), port: addr.port })
}

fn clients(giver: &Giver, ticket: Option<&Ticket>) -> ClientKeys {
    if let Some(only) = giver.only {
        return ClientKeys::Only([only].into());
    }
    match ticket.and_then(|ticket| ticket.allow.as_ref()) {
        Some(allow) => ClientKeys::Only(allow.iter().copied().collect()),
        None => ClientKeys::Any,
    }
}

/// The session, for what is made before it and speaks to it: its source and its driver.
type Later = Arc<OnceLock<Weak<Shared>>>;

fn tell_withdrawn(shared: &Shared, withdrawn: &Withdrawn) {
    if withdrawn.in_manifest {
        return; // The manifest tells it.
    }
    let (object, reason) = (withdrawn.entry.0, withdrawn.reason.clone());
    let mut stand = shared.stand();
    stand.withdrawn.push((object, reason));
    stand.tell_withdrawn();
}

/// What is sent.
enum Load {
    Content(Arc<ContentSource>),
    Products { queue: Arc<Queue>, list: Products, log: Option<Arc<ProductLog>> },
}

/// Where products come from.
enum Products {
    /// A list, in a file or a pipe.
    List(PathBuf),
    /// The program that owns the session.
    Owner(Arc<Owner>),
}

impl Products {
    fn read(self) -> Result<Lines, Fault> {
        let lines = match self {
            Self::List(path) => read_ahead(faults::list(&path)?),
            Self::Owner(owner) => {
                let list = owner.list.lock().unwrap_or_else(PoisonError::into_inner).take();
                read_ahead(list.into_iter().flatten().map(Ok))
            }
        };
        lines.map_err(faults::threads)
    }
}

impl Load {
    fn carried(&self) -> Arc<dyn Carried> {
        match self {
            Self::Content(source) => Arc::clone(source) as Arc<dyn Carried>,
            Self::Products { queue, .. } => Arc::clone(queue) as Arc<dyn Carried>,
        }
    }
}

fn load(
    plan: &SendPlan,
    giver: &Giver,
    scan: Option<Scan>,
    geometry: Geometry,
    session: SessionId,
    later: &Later,
) -> Result<Load, Fault> {
    let Payload::Products { list, keep_bytes, log } = &plan.payload else {
        return content(plan, giver, scan, geometry, later).map(Load::Content);
    };
    let queue = Queue::new(geometry, *session.as_bytes(), *keep_bytes);
    let log = log.as_deref().map(faults::product_log).transpose()?;
    let list = match &giver.owner {
        Some(owner) => Products::Owner(Arc::clone(owner)),
        None => Products::List(list.clone()),
    };
    Ok(Load::Products { queue, list, log })
}

fn content(
    plan: &SendPlan,
    giver: &Giver,
    scan: Option<Scan>,
    geometry: Geometry,
    later: &Later,
) -> Result<Arc<ContentSource>, Fault> {
    let source = match (scan, &plan.payload) {
        (Some(scan), _) => {
            let later = Arc::clone(later);
            // Nothing is hashed, read or given up before there is a session.
            ContentSource::files(scan, geometry, move |withdrawn| {
                if let Some(shared) = later.get().and_then(Weak::upgrade) {
                    tell_withdrawn(&shared, withdrawn);
                }
            })
        }
        (None, Payload::Pipe { name }) => {
            let input = std::io::stdin().as_fd().try_clone_to_owned().map_err(faults::source)?;
            let spool = giver.spool.as_deref().unwrap_or(Path::new("."));
            ContentSource::stream(input, name.as_bytes(), spool, geometry)
        }
        (None, Payload::Paths(_) | Payload::Files(_) | Payload::Products { .. }) => {
            unreachable!("paths have been scanned, products are no content")
        }
    }
    .map_err(faults::source)?;
    source.hold(giver.turns.clone());
    Ok(source)
}

/// What the session is called: the last part of its only path, or a count.
fn name(plan: &SendPlan) -> String {
    match &plan.payload {
        Payload::Pipe { name } => name.clone(),
        Payload::Products { list, .. } => match list.as_os_str().as_bytes() {
            b"-" => "products".to_owned(),
            _ => list.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        },
        Payload::Files(items) => format!("{} files", items.len()),
        Payload::Paths(paths) => match paths.as_slice() {
            [path] => name_of(path),
            paths => format!("{} paths", paths.len()),
        },
    }
    .chars()
    .take(100)
    .collect()
}

/// Under which name a path arrives; of a folder's contents that of the folder.
fn name_of(path: &Path) -> String {
    let lossy = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let folder = || Some(lossy(path.canonicalize().ok()?.file_name()?.as_bytes()));
    let name = name_at_top(path).map(lossy).or_else(folder);
    name.unwrap_or_else(|| path.display().to_string())
}

fn reply(
    plan: &SendPlan,
    session: SessionId,
    identity: &Identity,
    stream: Option<&StreamOut>,
    feedback: &UnicastSocket,
    (geometry, load): (Geometry, &Load),
) -> Result<JoinReply, Fault> {
    let bits = number(&session);
    Ok(JoinReply {
        session,
        name: name(plan),
        publisher: identity.public_key(),
        receiver: ReceiverId(0),
        stream: StreamId((bits ^ (bits >> 32)) as u32),
        epoch: Epoch(0),
        epoch_secret: Secret::random().ok_or_else(faults::randomness)?,
        suite: Suite::preferred().id(),
        group: stream.map(|out| SocketAddr::new(out.group.address(), out.group.port())),
        source: stream.and_then(|out| out.group.source()),
        feedback: feedback.local_addr().map_err(faults::session)?,
        geometry,
        data_len: load.carried().data_len(),
        started: false,
        packet: 0,
        products_from: None,
        path: plan.path,
        limits: crate::tuner::plan::host().to_string(),
        plain_token: match plan.encryption {
            EncryptionArg::All => None,
            EncryptionArg::Control => Some(Token::random().ok_or_else(faults::randomness)?),
        },
    })
}

/// 64 of the session's random bits.
fn number(session: &SessionId) -> u64 {
    session.as_bytes().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn spawn_driver(
    plan: &SendPlan,
    stream: Option<StreamOut>,
    feedback: UnicastSocket,
    reply: JoinReply,
    (load, trace, later): (&Load, Option<Trace>, Later),
) -> Result<Arc<Shared>, Fault> {
    let source = load.carried();
    let rate: Box<dyn RateController> = match (plan.controller, plan.rate) {
        (Controller::Fixed, Some(rate)) => Box::new(Fixed::new(rate)),
        (Controller::Tfmcc, _) => Box::new(Tfmcc::new(Timestamp::ZERO)),
        (Controller::Background, _) => Box::new(Background::new(Timestamp::ZERO)),
        _ => Box::new(Auto::new(Timestamp::ZERO)),
    };
    let session = Arc::clone(&later);
    let setup = SendSetup {
        machine: SenderConfig {
            geometry: reply.geometry,
            stream: reply.stream,
            epoch: reply.epoch,
            rate,
            recovery: Box::new(Parity::default()),
            initial_rtt: INITIAL_RTT,
            window_blocks: reply.geometry.code.window_blocks(),
            pull_share: plan.pull_share,
        },
        stream,
        unicast: plan.path.is_unicast(),
        feedback,
        suite: Suite::preferred(),
        open: matches!(load, Load::Products { .. }),
        secret: reply.epoch_secret.clone(),
        source: Arc::clone(&source) as Arc<dyn downpour_transport::BlockSource>,
        trace,
        on_event: Box::new(move |event| {
            // That it has failed may be said before there is a session, which is but a moment later.
            if let Some(shared) = session.wait().upgrade() {
                on_driver(&shared, event);
            }
        }),
    };
    let driver = SendHandle::spawn(setup).map_err(faults::session)?;
    if let Some(ceiling) = plan.rate {
        // The machine's, not only the controller's: it holds the pulls as well.
        driver.set_ceiling(ceiling);
    }
    let feed = match load {
        Load::Content(_) => None,
        Load::Products { queue, log, .. } => Some(Feed::new(Arc::clone(queue), log.clone())),
    };
    let owner = match load {
        Load::Products { list: Products::Owner(owner), .. } => Some(Arc::clone(owner)),
        Load::Products { .. } | Load::Content(_) => None,
    };
    let shared = Arc::new(Shared {
        stand: Mutex::new(Stand::new(plan)),
        pulled_end: AtomicU64::new(0),
        round_trip: AtomicU64::new(0),
        changed: Notify::new(),
        driver,
        source,
        feed,
        owner,
        reply,
    });
    // Set once: this is the only place.
    let _ = later.set(Arc::downgrade(&shared));
    Ok(shared)
}

fn on_driver(shared: &Shared, event: SendEvent) {
    // These come often, and nobody waits for them.
    let past = match event {
        SendEvent::SourceSent { block, took } => Some((block, Some(took))),
        SendEvent::SourcePassed { block } => Some((block, None)),
        _ => None,
    };
    if let Some((block, took)) = past {
        return shared.feed.iter().for_each(|feed| feed.past(block, took));
    }
    if event == SendEvent::Passed {
        return shared.changed.notify_one();
    }
    let mut stand = shared.stand();
    match event {
        SendEvent::LeaveStream(id) => {
            if let Some(member) = stand.roster.find(id) {
                member.told_to_leave(TOO_SLOW);
                member.tell(Event::LeaveGroup { reason: TOO_SLOW.to_owned() });
            }
        }
        SendEvent::Unheard(id) => {
            if let Some(member) = stand.roster.find(id) {
                let was = member.told_to_leave(UNHEARD);
                member.tell(Event::LeaveGroup { reason: UNHEARD.to_owned() });
                let name = printable(member.name.as_bytes());
                if was.as_deref() != Some(UNHEARD) {
                    stand.news.push(format!("{name} pulls: {UNHEARD}"));
                }
            }
        }
        SendEvent::ReturnToStream(id) => {
            if let Some(member) = stand.roster.find(id) {
                member.returns_to_stream();
                member.tell(Event::ReturnToGroup);
            }
        }
        // Above.
        SendEvent::SourceSent { .. } | SendEvent::SourcePassed { .. } | SendEvent::Passed => {}
        SendEvent::StreamDone => stand.roster.tell_all(&Event::Closing),
        SendEvent::SourceFailed { block, reason } => {
            // Who pulls such a product in vain says what it missed.
            let what = match shared.feed {
                Some(_) => "was asked for again too late",
                None => "could not be read",
            };
            stand.add_unread(format!("block {block} {what}: {reason}"));
        }
        SendEvent::Broken(broken) => stand.ended = Some(broken.to_string()),
        SendEvent::NothingLeaves { reason } => {
            stand.news.push(format!(
                "no data leave any more, the network refuses them: {reason} (see the interface and \
                 its MTU: `ip link`)"
            ));
        }
        SendEvent::LeavesAgain => stand.news.push("the stream leaves again".to_owned()),
        SendEvent::SendFailed { reason } => {
            stand.notices.push(format!("the network refuses the stream: {reason}"));
        }
    }
    shared.changed.notify_one();
}

async fn bind(
    candidates: &[SocketAddr],
    setup: impl Fn() -> ServerSetup,
    shared: &Arc<Shared>,
    has_ticket: bool,
) -> Result<ControlServer, Fault> {
    let mut last = None;
    for addr in candidates {
        match ControlServer::bind(*addr, setup(), Arc::new(Endpoint(Arc::clone(shared)))).await {
            Ok(server) => return Ok(server),
            Err(error) => last = Some(error),
        }
    }
    let what = last.map_or_else(|| "no port to listen on".to_owned(), |error| error.to_string());
    let todo = match has_ticket {
        // Receivers come by its port.
        true => {
            "end the program that has the port, or make another ticket: `downpour ticket new --address \
             HOST:PORT`"
        }
        false => "end the program that has the port, or give --listen or other --ports",
    };
    Err(Fault::start(what, todo))
}

/// Starts the thread that offers blocks.
fn spawn_emit(
    shared: &Arc<Shared>,
    load: Load,
    (session, publisher, giver): (SessionId, Arc<Identity>, &Giver),
    stop: &Arc<AtomicBool>,
) -> Result<JoinHandle<()>, Fault> {
    let (session_of, stop) = (Arc::clone(shared), Arc::clone(stop));
    let emit: Box<dyn FnOnce() -> Result<(), String> + Send> = match load {
        Load::Content(source) => {
            if shared.reply.path == DataPath::Tcp {
                source.keep(KEPT_BYTES);
            }
            let threads =
                thread::available_parallelism().map_or(1, usize::from).min(HASH_THREADS_MAX);
            let manifest = ManifestId(*session.as_bytes());
            let ahead = source.ahead(manifest, publisher, threads).with_book(giver.book.clone());
            let sections = ahead.spawn(SECTIONS_AHEAD);
            Box::new(move || emit(&session_of, &sections, &stop).map_err(|error| error.reason))
        }
        Load::Products { queue, list, .. } => {
            let lines = list.read()?;
            let inserter = Inserter::for_blocks(queue, publisher, giver.blocks_max);
            let inserter = inserter.map_err(faults::threads)?;
            Box::new(move || {
                feed(&session_of, inserter, &lines, &stop).map_err(|error| error.to_string())
            })
        }
    };
    let shared = Arc::clone(shared);
    let spawned = thread::Builder::new().name("downpour-emit".to_owned()).spawn(move || {
        // Nothing that the loop holds is used again.
        let failed = match catch_unwind(AssertUnwindSafe(emit)) {
            Ok(Ok(())) => return,
            Ok(Err(reason)) => format!("the data cannot be read on: {reason}"),
            Err(_) => "internal error, thread downpour-emit has failed".to_owned(),
        };
        shared.stand().ended = Some(failed);
        shared.changed.notify_one();
    });
    spawned.map_err(faults::threads)
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::{link_notice, name_of};
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_is_called_by_its_own_name_and_said_to_be_one() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("run42")).unwrap();
        fs::write(at("file"), b"x").unwrap();
        for (link, to) in [("cur", "run42"), ("one", "file"), ("nowhere", "gone")] {
            symlink(to, at(link)).unwrap();
        }
        let names = ["run42", "cur", "cur/", "run42/.", "one", "nowhere"].map(|n| name_of(&at(n)));
        assert_eq!(names, ["run42", "cur", "run42", "run42", "one", "nowhere"]);
        let said = |name: &str| link_notice(&at(name)).unwrap_or_default();
        assert!(said("cur").ends_with("cur/ sends what is in the folder"), "{}", said("cur"));
        assert!(said("one").contains("name the file"), "{}", said("one"));
        for other in ["cur/", "run42", "file", "nowhere"] {
            assert_eq!(said(other), "", "{other}");
        }
    }
}
