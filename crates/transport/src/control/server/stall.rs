//! A TCP stream that fails when the other side takes nothing for too long.
//!
//! Under TLS, so that it covers the handshake too. A slow reader is no stalled one: each byte that the kernel
//! takes starts the time anew. For a connection of events the kernel's own timer is shortened
//! (TCP_USER_TIMEOUT), because its few bytes would fit into the send buffer for hours.
//!
//! What TCP sends again on a lossy path is charged to the budget of pulls here, as it comes off the sender's rate.

use super::limits::ServerLimits;
use crate::FirstReads;
use crate::control::budget::PullBudget;
use crate::identity::PublicKey;
use crate::stream::{self, BulkReport, ConnectionReport, Told, Tuning};
use downpour_proto::Timestamp;
use downpour_proto::transfer::steer::{self, Beside};
use socket2::SockRef;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// What a connection has become, by what was asked on it.
#[derive(Debug, Default)]
pub(super) struct Use {
    /// One of events: see above.
    pub(super) events: AtomicBool,
    /// One of bulk, set so at first, and how it is to be set now.
    bulk: OnceLock<Tuning>,
    now: Mutex<Option<Tuning>>,
    /// What this machine cannot give of it.
    lacks: Mutex<String>,
    /// What is told of it with each answer.
    told: Mutex<Told>,
    /// Microseconds that the disk was waited for and that are not in `told`.
    disk: AtomicU64,
    /// Something was answered on it.
    answered: AtomicBool,
    /// It is to be looked at before the next write.
    changed: AtomicBool,
    /// What is read before it can be asked for, and the microseconds that the disk was waited for by the last write.
    first_reads: Arc<FirstReads>,
    waited_at_write: AtomicU64,
}

impl Use {
    /// Bulk is sent, with the socket set so. What comes first holds, but pacing may change. What cannot be had of it.
    pub(super) fn carry_bulk(&self, tuning: &str) -> String {
        let tuning = Tuning::parse(tuning);
        let (mut now, mut lacks) = (lock(&self.now), lock(&self.lacks));
        if self.bulk.set(tuning.clone()).is_ok() || now.as_ref() != Some(&tuning) {
            *lacks = tuning.shortcomings().join("; ");
            *now = Some(tuning);
            self.changed.store(true, Ordering::Relaxed);
        }
        lacks.clone()
    }

    /// An answer is ready. Unless it is bulk, the kernel decides how its connection is controlled.
    pub(super) fn answered(&self) {
        if !self.answered.swap(true, Ordering::Relaxed) {
            self.changed.store(true, Ordering::Relaxed);
        }
    }

    /// A piece of an answer was read from the disk, and nothing else was there to be sent meanwhile.
    pub(super) fn waited_for_disk(&self, time: Duration) {
        self.disk.fetch_add(micros(time), Ordering::Relaxed);
    }

    /// It is asked for what ends there. Had it been there before, nothing was waited for.
    pub(super) fn asked_up_to(&self, end: u64) {
        let until = micros(self.first_reads.until(end));
        let waited = until.saturating_sub(self.waited_at_write.load(Ordering::Relaxed));
        self.disk.fetch_add(waited, Ordering::Relaxed);
    }

    fn on_written(&self) {
        self.waited_at_write.store(micros(self.first_reads.so_far()), Ordering::Relaxed);
    }

    /// What is told with an answer.
    pub(super) fn told(&self) -> Told {
        *lock(&self.told)
    }

    /// Events are sent.
    pub(super) fn carry_events(&self) {
        self.events.store(true, Ordering::Relaxed);
        self.changed.store(true, Ordering::Relaxed);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Each change is whole, so what a panic left behind is good.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the sessions of a sender share, so that the receivers of each are told of the others (`docs/protocol.md#WAN-9`).
#[derive(Debug)]
pub struct Uplink {
    begun: Instant,
    sessions: Mutex<steer::Uplink<PublicKey>>,
}

impl Default for Uplink {
    fn default() -> Self {
        Self { begun: Instant::now(), sessions: Mutex::default() }
    }
}

/// What connections of bulk did.
pub(super) type Accounts = Arc<Mutex<Account>>;

#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) ended: BulkReport,
    open: usize,
    /// Since when some are open, and the last write of those of them that have ended.
    since: Option<Instant>,
    last: Option<Instant>,
    uplink: Arc<Uplink>,
    /// Who joined last.
    pub(super) receiver: Option<PublicKey>,
    /// Its number there, while some are open.
    session: Option<u64>,
}

impl Account {
    pub(super) fn beside(uplink: Arc<Uplink>) -> Accounts {
        Arc::new(Mutex::new(Self { uplink, ..Self::default() }))
    }

    /// The receiver `node` asks for the turn.
    pub(super) fn turn(&self, node: &PublicKey, wants: bool) -> Beside {
        let now = Timestamp::ZERO + self.uplink.begun.elapsed();
        lock(&self.uplink.sessions).ask(now, self.session, node, wants)
    }

    fn sent(&self, bytes: u64) {
        if let Some(session) = self.session {
            lock(&self.uplink.sessions).sent(session, bytes);
        }
    }

    fn open(&mut self, now: Instant) {
        self.open += 1;
        self.ended.at_once = self.ended.at_once.max(self.open);
        self.since.get_or_insert(now);
        self.session.get_or_insert_with(|| lock(&self.uplink.sessions).begin(self.receiver));
    }

    /// One ends that wrote last at that time.
    fn close(&mut self, wrote: Instant) {
        self.open -= 1;
        self.last = self.last.max(Some(wrote));
        if self.open == 0
            && let (Some(since), Some(last)) = (self.since.take(), self.last.take())
        {
            self.ended.time += last.saturating_duration_since(since);
            self.session.take().iter().for_each(|own| lock(&self.uplink.sessions).end(*own));
        }
    }
}

/// Connections of which an account is kept.
const ACCOUNTS_MAX: usize = 1024;

/// After so many bytes written it is looked how many TCP has sent again.
const LOOK_BYTES: usize = 64 << 10;

/// When nothing was written for so long it is looked whether the socket had anything left to send.
const GAP_LEAST: Duration = Duration::from_millis(1);

/// What a connection sent again, and who pays for it.
#[derive(Debug)]
pub(super) struct SentAgain {
    budget: Arc<PullBudget>,
    charged: u64,
    written: usize,
}

impl SentAgain {
    pub(super) fn new(budget: Arc<PullBudget>) -> Self {
        Self { budget, charged: 0, written: 0 }
    }

    fn on_written(&mut self, tcp: &TcpStream, len: usize) {
        self.written += len;
        if self.written < LOOK_BYTES {
            return;
        }
        self.written = 0;
        // Where the kernel does not tell, nothing is charged.
        let again = stream::sent_again(tcp).unwrap_or(self.charged).max(self.charged);
        self.budget.charge(again - self.charged);
        self.charged = again;
    }
}

#[derive(Debug)]
pub(super) struct StallGuard {
    inner: TcpStream,
    stall_time_max: Duration,
    silence_time_max: Duration,
    used: Arc<Use>,
    timer: Pin<Box<Sleep>>,
    stalled: bool,
    again: SentAgain,
    accounts: Accounts,
    peer: Option<SocketAddr>,
    written_at: Instant,
    looked_bytes: usize,
    /// The socket has been set for what it carries.
    is_set: bool,
}

impl Drop for StallGuard {
    fn drop(&mut self) {
        if !self.is_set {
            return;
        }
        let mut account = lock(&self.accounts);
        account.close(self.written_at);
        // A socket that the other side has closed does not tell its address any more.
        if let Some(peer) = self.peer
            && account.ended.connections.len() < ACCOUNTS_MAX
        {
            account.ended.connections.push(ConnectionReport::of(&self.inner, peer));
        }
    }
}

impl StallGuard {
    pub(super) fn new(
        inner: TcpStream,
        limits: &ServerLimits,
        again: SentAgain,
        accounts: Accounts,
        first_reads: Arc<FirstReads>,
    ) -> (Self, Arc<Use>) {
        let (stall_time_max, silence_time_max) = (limits.stall_time_max, limits.silence_time_max);
        // What the kernel refuses here costs comfort, not correctness.
        let _ = SockRef::from(&inner).set_tcp_user_timeout(Some(stall_time_max));
        let used = Arc::new(Use { first_reads, ..Use::default() });
        let guard = Self {
            peer: inner.peer_addr().ok(),
            inner,
            stall_time_max,
            silence_time_max,
            used: used.clone(),
            timer: Box::pin(sleep(stall_time_max)),
            stalled: false,
            again,
            accounts,
            written_at: Instant::now(),
            looked_bytes: 0,
            is_set: false,
        };
        (guard, used)
    }

    fn check(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(len)) = &result {
            self.again.on_written(&self.inner, *len);
            self.written_at = Instant::now();
            self.used.on_written();
            self.looked_bytes += len;
        }
        if result.is_ready() {
            self.stalled = false;
            return result;
        }
        if !self.stalled {
            self.stalled = true;
            self.timer.as_mut().reset(Instant::now() + self.stall_time_max);
        }
        ready!(self.timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Sets the socket for what it is used for.
    fn adapt(&mut self) {
        if !self.used.changed.swap(false, Ordering::Relaxed) {
            return;
        }
        if self.used.events.load(Ordering::Relaxed) {
            let _ = SockRef::from(&self.inner).set_tcp_user_timeout(Some(self.silence_time_max));
        }
        if let Some(tuning) = self.used.bulk.get() {
            if !self.is_set {
                tuning.set_sending(&self.inner);
                lock(&self.accounts).open(Instant::now());
            } else if let Some(now) = &*lock(&self.used.now) {
                now.set_pacing(&self.inner);
            }
            self.is_set = true;
        } else if self.used.answered.load(Ordering::Relaxed) {
            stream::set_default_congestion(&self.inner);
        }
    }

    /// Before a write: what the kernel tells now and then, and whether it had run out of bytes.
    fn look(&mut self) {
        let gap = self.written_at.elapsed();
        if self.used.bulk.get().is_none() || gap < GAP_LEAST && self.looked_bytes < LOOK_BYTES {
            return;
        }
        self.looked_bytes = 0;
        let mut told = lock(&self.used.told);
        let before = *told;
        let ran_out = told.update(&self.inner) && gap >= GAP_LEAST && !self.stalled;
        let waited = self.used.disk.swap(0, Ordering::Relaxed);
        if ran_out {
            let gap = micros(gap);
            told.idle += gap;
            told.disk += gap.min(waited);
        }
        let seen = told.since(&before);
        lock(&self.accounts).sent(seen.sent.saturating_sub(seen.again));
    }
}

impl AsyncRead for StallGuard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for StallGuard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.adapt();
        self.look();
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.check(cx, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.adapt();
        self.look();
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.check(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, Accounts, ConnectionReport, SentAgain, SockRef, StallGuard, Use};
    use crate::FirstReads;
    use crate::control::ServerLimits;
    use crate::control::budget::PullBudget;
    use downpour_proto::Rate;
    use std::io::ErrorKind;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::Instant;

    async fn pair(stall: Duration) -> (StallGuard, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let again = SentAgain::new(PullBudget::new(Rate::MAX));
        let limits = ServerLimits { stall_time_max: stall, ..ServerLimits::default() };
        (StallGuard::new(server, &limits, again, Accounts::default(), Arc::default()).0, client)
    }

    #[test]
    fn time_counts_while_some_are_open_and_once() {
        let (mut account, start) = (Account::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        account.open(at(0));
        account.open(at(50));
        account.close(at(100));
        account.close(at(80));
        account.open(at(1000));
        account.close(at(1200));
        assert_eq!((account.ended.time, account.ended.at_once), (Duration::from_millis(300), 2));
    }

    #[test]
    fn the_disk_was_waited_for_when_what_is_asked_for_was_not_there_before() {
        let reads = Arc::new(FirstReads::default());
        let used = Use { first_reads: reads.clone(), ..Use::default() };
        let waited = |end| {
            used.asked_up_to(end);
            used.disk.swap(0, Ordering::Relaxed)
        };
        reads.waited(Duration::from_millis(9), 1);
        reads.offer(100);
        assert_eq!(waited(100), 9000, "nothing was sent before");
        used.on_written();
        reads.waited(Duration::from_millis(5), 1);
        assert_eq!(waited(100), 0, "it was there, and something else is read");
        reads.offer(200);
        assert_eq!((waited(100), waited(101)), (0, 5000));
    }

    #[tokio::test]
    async fn what_is_no_bulk_is_controlled_as_the_kernel_decides() {
        let name = |tcp: &TcpStream| ConnectionReport::of(tcp, tcp.peer_addr().unwrap()).congestion;
        let (server, client) = pair(Duration::from_secs(60)).await;
        let default = name(&client);
        let _ = SockRef::from(&server.inner).set_tcp_congestion(b"reno");
        let before = name(&server.inner);
        let mut server = server;
        server.used.answered();
        server.write_all(b"answer").await.unwrap();
        // Only where the kernel decides for BBR was another one taken before.
        let expected = if default.starts_with("bbr") { default } else { before };
        assert_eq!(name(&server.inner), expected);
    }

    #[tokio::test]
    async fn who_takes_nothing_is_given_up() {
        let (mut server, _client) = pair(Duration::from_millis(100)).await;
        let error = loop {
            if let Err(error) = server.write_all(&[0; 1 << 20]).await {
                break error;
            }
        };
        assert!(matches!(error.kind(), ErrorKind::TimedOut), "{error}");
    }

    #[tokio::test]
    async fn who_takes_a_little_is_served() {
        const LEN: usize = 16 << 20;
        let (mut server, mut client) = pair(Duration::from_secs(60)).await;
        let reader = tokio::spawn(async move {
            let mut total = 0;
            let mut buf = vec![0; 1 << 16];
            while total < LEN {
                total += client.read(&mut buf).await.unwrap();
                tokio::task::yield_now().await;
            }
            total
        });
        server.write_all(&vec![7; LEN]).await.unwrap();
        assert_eq!(reader.await.unwrap(), LEN);
    }
}
