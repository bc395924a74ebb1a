//! A session that records what it is told, a server in front of it, and clients, all on 127.0.0.1.

use downpour_proto::{BlockId, BlockKind, Code, Epoch, Geometry, Rate, ReceiverId, StreamId};
use downpour_transport::control::{
    Admitted, ApiError, ClientLimits, ClientSetup, Conn, ControlClient, ControlServer, DataPath,
    ErrorCode, Event, EventSender, Extent, HaveRequest, InstanceId, JoinReply, JoinRequest, Joined,
    LeaveRequest, Member, PIECE_LEN_MAX, PROTOCOL_VERSION, Pull, PullBudget, PullError,
    ReadyRequest, Receipt, ServerLimits, ServerSetup, SessionHandler, SessionId, SignedReceipt,
    Token, Uplink, Word,
};
use downpour_transport::identity::{ClientKeys, Identity, PublicKey, client_config};
use downpour_transport::pull::{PullLimits, Puller};
use downpour_transport::{FirstReads, Secret};
use rustls::pki_types::ServerName;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, RwLock, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long anything may take before a test fails instead of hanging. Not a measure of speed.
pub(crate) const HANG: Duration = Duration::from_secs(240);

/// What the session was told.
#[derive(Debug, PartialEq)]
pub(crate) enum Told {
    Join { node: PublicKey, feedback: Secret, name: String },
    Ready(u32, ReadyRequest),
    Have(u32, HaveRequest),
    Receipt(u32, Box<Receipt>),
    Leave(u32, LeaveRequest),
    Word(u32, String),
    Subscribed(u32),
    Unsubscribed(u32),
}

pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) data: Vec<u8>,
    pub(crate) manifest_len: AtomicU64,
    /// Reads at or beyond this fail.
    pub(crate) broken_from: AtomicU64,
    /// So many reads at or beyond half of the data are put off.
    pub(crate) busy: AtomicU32,
    /// Bytes that were read.
    pub(crate) read: AtomicU64,
    /// Bytes of data that the first receiver was given.
    pub(crate) given: AtomicU64,
    /// Milliseconds that each read takes.
    pub(crate) slow_ms: AtomicU64,
    /// Each read waits for it.
    pub(crate) disk: RwLock<()>,
    pub(crate) first_reads: Arc<FirstReads>,
    /// Each word waits for one.
    pub(crate) answers: Notify,
    pub(crate) events: Mutex<BTreeMap<u32, EventSender>>,
    publisher: PublicKey,
    receivers: AtomicU32,
    joined: Mutex<Vec<(PublicKey, InstanceId, ReceiverId)>>,
    plain: Option<Token>,
    told: mpsc::UnboundedSender<Told>,
}

impl Session {
    fn tell(&self, told: Told) -> Result<(), ApiError> {
        let _ = self.told.send(told);
        Ok(())
    }

    pub(crate) fn send(&self, receiver: u32, event: Event) {
        self.events.lock().unwrap()[&receiver].send(event).unwrap();
    }
}

impl SessionHandler for Session {
    fn code(&self) -> Code {
        Code::ReedSolomon
    }

    async fn join(&self, from: &Conn, request: JoinRequest) -> Result<Admitted, ApiError> {
        let (node, feedback) = (from.node, from.feedback.clone());
        let who = (node, request.instance);
        self.tell(Told::Join { node, feedback, name: request.name })?;
        let reply = JoinReply {
            session: self.id,
            name: "test".into(),
            publisher: self.publisher,
            receiver: ReceiverId(self.receivers.fetch_add(1, Ordering::Relaxed) + 1),
            stream: StreamId(4),
            epoch: Epoch(0),
            epoch_secret: Secret::new([9; 32]),
            suite: 1,
            group: None,
            source: None,
            feedback: "0.0.0.0:4001".parse().unwrap(),
            geometry: Geometry::IPV4,
            data_len: Some(self.data.len() as u64),
            packet: 0,
            products_from: None,
            path: DataPath::Multicast,
            limits: String::new(),
            plain_token: self.plain,
            started: false,
        };
        // A node that joins again takes the place of its former self.
        let mut joined = self.joined.lock().unwrap();
        let former = joined.iter().position(|(node, instance, _)| (*node, *instance) == who);
        let replaced = former.map(|at| joined.remove(at).2);
        joined.push((who.0, who.1, reply.receiver));
        Ok(Admitted { reply, replaced })
    }

    fn given(&self, receiver: ReceiverId, bytes: u64) {
        if receiver == ReceiverId(1) {
            self.given.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    async fn ready(&self, member: &Member, request: ReadyRequest) -> Result<(), ApiError> {
        self.tell(Told::Ready(member.receiver.0, request))
    }

    async fn have(&self, member: &Member, request: HaveRequest) -> Result<(), ApiError> {
        self.tell(Told::Have(member.receiver.0, request))
    }

    async fn receipt(
        &self,
        member: &Member,
        receipt: Receipt,
        proof: SignedReceipt,
    ) -> Result<(), ApiError> {
        assert_eq!(proof.verify(&member.node).as_ref(), Ok(&receipt));
        self.tell(Told::Receipt(member.receiver.0, Box::new(receipt)))
    }

    async fn leave(&self, member: &Member, request: LeaveRequest) -> Result<(), ApiError> {
        self.tell(Told::Leave(member.receiver.0, request))
    }

    async fn word(&self, member: &Member, word: Word) -> Result<(), ApiError> {
        self.tell(Told::Word(member.receiver.0, word.text))?;
        self.answers.notified().await;
        Ok(())
    }

    fn subscribed(&self, member: &Member, events: EventSender) {
        self.events.lock().unwrap().insert(member.receiver.0, events);
        let _ = self.told.send(Told::Subscribed(member.receiver.0));
    }

    fn unsubscribed(&self, member: &Member) {
        let _ = self.told.send(Told::Unsubscribed(member.receiver.0));
    }

    fn extent(&self, kind: BlockKind) -> Extent {
        match kind {
            BlockKind::Data => Extent { len: self.data.len() as u64, complete: true },
            BlockKind::Manifest => {
                Extent { len: self.manifest_len.load(Ordering::Relaxed), complete: false }
            }
        }
    }

    fn first_reads(&self) -> Arc<FirstReads> {
        self.first_reads.clone()
    }

    fn read(&self, kind: BlockKind, range: Range<u64>) -> Result<Vec<u8>, ApiError> {
        assert!(range.end - range.start <= PIECE_LEN_MAX as u64);
        if range.end > self.broken_from.load(Ordering::Relaxed) {
            return Err(ApiError::new(ErrorCode::SourceFailed, "a.txt has changed"));
        }
        if range.end > self.data.len() as u64 / 2
            && self
                .busy
                .try_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok()
        {
            return Err(ApiError::new(ErrorCode::Busy, "later"));
        }
        self.read.fetch_add(range.end - range.start, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(self.slow_ms.load(Ordering::Relaxed)));
        let _disk = (kind == BlockKind::Data).then(|| self.disk.blocking_read());
        let bytes = self.data[range.start as usize..range.end as usize].to_vec();
        match kind {
            BlockKind::Data => Ok(bytes),
            BlockKind::Manifest => Ok(bytes.iter().map(|byte| byte ^ 0xff).collect()),
        }
    }

    fn repair(&self, block: BlockId, symbols: Range<u16>) -> Result<Vec<u8>, ApiError> {
        if block.number() > 5 {
            return Err(ApiError::new(ErrorCode::NotFound, "there is no such block"));
        }
        let _disk = (block.kind() == BlockKind::Data).then(|| self.disk.blocking_read());
        Ok(symbols.flat_map(|symbol| vec![symbol as u8; 1448]).collect())
    }
}

pub(crate) struct World {
    pub(crate) server: ControlServer,
    pub(crate) sender: Arc<Identity>,
    pub(crate) session: Arc<Session>,
    pub(crate) token: Token,
    pub(crate) budget: Arc<PullBudget>,
    told: mpsc::UnboundedReceiver<Told>,
}

/// How a world differs from the usual one.
pub(crate) struct Setup {
    pub(crate) sender: Arc<Identity>,
    pub(crate) token: Token,
    pub(crate) clients: ClientKeys,
    pub(crate) expires_unix_s: u64,
    pub(crate) limits: ServerLimits,
    pub(crate) port: u16,
    pub(crate) data_len: usize,
    pub(crate) plain: Option<Token>,
    pub(crate) uplink: Arc<Uplink>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            sender: Arc::new(Identity::generate()),
            token: Token::random().unwrap(),
            clients: ClientKeys::Any,
            expires_unix_s: u64::MAX,
            limits: ServerLimits::default(),
            port: 0,
            data_len: 3_000_000,
            plain: None,
            uplink: Arc::default(),
        }
    }
}

impl World {
    pub(crate) async fn new(setup: Setup) -> Self {
        let (tell, told) = mpsc::unbounded_channel();
        let session = Arc::new(Session {
            id: SessionId::random().unwrap(),
            data: (0..setup.data_len)
                .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
                .collect(),
            manifest_len: AtomicU64::new(1000),
            broken_from: AtomicU64::new(u64::MAX),
            busy: AtomicU32::new(0),
            read: AtomicU64::new(0),
            given: AtomicU64::new(0),
            slow_ms: AtomicU64::new(0),
            disk: RwLock::default(),
            first_reads: Arc::default(),
            answers: Notify::new(),
            events: Mutex::default(),
            publisher: setup.sender.public_key(),
            receivers: AtomicU32::new(0),
            joined: Mutex::default(),
            plain: setup.plain,
            told: tell,
        });
        let budget = PullBudget::new(Rate::MAX);
        let server_setup = ServerSetup {
            identity: setup.sender.clone(),
            clients: setup.clients,
            session: session.id,
            token: setup.token,
            plain: setup.plain,
            expires_unix_s: setup.expires_unix_s,
            budget: budget.clone(),
            uplink: setup.uplink,
            limits: setup.limits,
        };
        let addr = ([127, 0, 0, 1], setup.port).into();
        let server = ControlServer::bind(addr, server_setup, session.clone()).await.unwrap();
        Self { server, sender: setup.sender, session, token: setup.token, budget, told }
    }

    /// What the session was told next.
    pub(crate) async fn told(&mut self) -> Told {
        timeout(HANG, self.told.recv()).await.expect("it is told nothing more").unwrap()
    }

    pub(crate) fn told_nothing(&mut self) {
        assert_eq!(self.told.try_recv().ok(), None);
    }

    pub(crate) fn client_setup(&self) -> ClientSetup {
        ClientSetup {
            addrs: vec![self.server.local_addr().to_string()],
            server: self.sender.public_key(),
            token: self.token,
            identity: Arc::new(Identity::generate()),
            limits: ClientLimits::default(),
        }
    }

    pub(crate) async fn client(&self) -> Arc<ControlClient> {
        Arc::new(ControlClient::connect(self.client_setup()).await.unwrap())
    }

    /// A client that has joined; the session has been told so.
    pub(crate) async fn member(&mut self) -> (Arc<ControlClient>, Joined) {
        let client = self.client().await;
        let joined = client.join(&join_request("anna")).await.unwrap();
        assert!(matches!(self.told().await, Told::Join { .. }));
        (client, joined)
    }

    /// A bare TLS connection.
    pub(crate) async fn tls(&self, config: Arc<rustls::ClientConfig>) -> TlsStream<TcpStream> {
        tls(self.server.local_addr(), config).await
    }

    /// Sends `head` and an empty line as they are, with the token, and reads one answer to its end.
    pub(crate) async fn raw(&self, head: &str) -> (u16, String, Vec<u8>) {
        let bearer = self.token.to_text();
        self.raw_without_token(&format!("{head}Authorization: Bearer {bearer}\r\n")).await
    }

    pub(crate) async fn raw_without_token(&self, head: &str) -> (u16, String, Vec<u8>) {
        self.say(&Identity::generate(), head, &[]).await
    }

    /// The same as this node, and with a body.
    pub(crate) async fn say(
        &self,
        who: &Identity,
        head: &str,
        body: &[u8],
    ) -> (u16, String, Vec<u8>) {
        let mut tls = self.tls(client_config(who, self.sender.public_key())).await;
        let text = format!("{head}Host: x\r\nConnection: close\r\n\r\n");
        tls.write_all(&[text.as_bytes(), body].concat()).await.unwrap();
        let mut answer = Vec::new();
        let _ = tls.read_to_end(&mut answer).await;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        let body = answer.split_off(end);
        let head = String::from_utf8(answer).unwrap().to_lowercase();
        (head[9..12].parse().unwrap(), head, body)
    }
}

/// Pulls on a connection of its own; also what passes is told at once.
pub(crate) async fn pull(client: &Arc<ControlClient>, pull: Pull) -> Result<Vec<u8>, PullError> {
    let limits = PullLimits { parallel: 1, tries_max: 1, ..PullLimits::default() };
    let (puller, mut results) = Puller::start(client.clone(), limits);
    puller.request(0, pull).unwrap();
    results.recv().await.unwrap().outcome
}

/// A bare TLS connection to whoever is there.
pub(crate) async fn tls(
    addr: SocketAddr,
    config: Arc<rustls::ClientConfig>,
) -> TlsStream<TcpStream> {
    let tcp = TcpStream::connect(addr).await.unwrap();
    let name = ServerName::try_from("downpour").unwrap();
    TlsConnector::from(config).connect(name, tcp).await.unwrap()
}

pub(crate) fn join_request(name: &str) -> JoinRequest {
    JoinRequest {
        protocol: PROTOCOL_VERSION,
        software: "test 1".into(),
        name: name.into(),
        instance: InstanceId::random().unwrap(),
        codes: vec![1],
        follows: None,
    }
}

pub(crate) fn code(body: &[u8]) -> ErrorCode {
    serde_json::from_slice::<ApiError>(body).unwrap().code
}

/// Waits until `what` holds.
pub(crate) async fn until(what: impl Fn() -> bool) {
    let holds = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HANG, holds).await.expect("it comes true");
}
