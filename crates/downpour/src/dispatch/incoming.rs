//! One batch at its destination: received, read back, signed, recorded.
//!
//! 1. The session places files and syncs once.
//! 2. Each file is read back from its place and compared with the digest that was agreed.
//! 3. Receipts are signed and kept in the folder itself, then files and receipts go into the catalog, in a commit.
//! 4. Only then the source is told. A crash before that costs no bytes: what is in its place is found there.

use super::arriving::{Taken, may_open, set_aside};
use super::hooks::{kill_point, lies_about};
use super::ledger::{Ledger, Link};
use super::lock;
use super::offer::{Arrived, BatchState, Trouble};
use super::record::record;
use super::room::{Lane, Reserved, Room};
use crate::cli::Fault as SessionFault;
use crate::object::{Agreed, FolderOptions, Obstacle};
use crate::receipt::{FileReceipt, SignedFileReceipt, WrongContent};
use crate::session::{ReceiveFiles, ReceivedFiles, receive_files};
use crate::site::{Fault, Remote, Site, blocking};
use crate::ticket::Ticket;
use downpour_catalog::{DigestKind, ErrorClass, Refused};
use downpour_proto::transfer::Wishes;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// An offer that is not begun by then is forgotten.
const OFFER_LIFE: Duration = Duration::from_secs(120);
/// How long the results of a batch can be asked for; and after they were told, should the answer have been lost. What is
/// asked for later is told to the next offer of the same files.
const RESULT_LIFE: Duration = Duration::from_secs(300);
const TOLD_LIFE: Duration = Duration::from_secs(10);
/// How long the source may take to open its door, and to come back.
const SOURCE_TIME: Duration = Duration::from_secs(30);
/// Memory for blocks under way, of one batch.
pub(super) const MEMORY: u64 = 64_000_000;
/// How long a session may take to end.
const END_TIME: Duration = Duration::from_secs(10);
/// How often progress is passed on.
pub(super) const TICK: Duration = Duration::from_millis(500);

/// A batch that was offered, and what became of it.
pub(super) struct Incoming {
    pub(super) from: String,
    pub(super) folder: PathBuf,
    pub(super) taken: Vec<Taken>,
    pub(super) made: Instant,
    pub(super) state: watch::Sender<BatchState>,
    /// Given up when the batch has ended.
    reserved: Mutex<Option<Reserved>>,
    /// A session was begun.
    pub(super) begun: AtomicBool,
    /// Its source offers the same files anew: its session is over there.
    given_up: Notify,
    /// When its results were there, and when the source was first told.
    pub(super) ended: OnceLock<Instant>,
    pub(super) told: OnceLock<Instant>,
    links: Arc<Ledger>,
}

impl Incoming {
    pub(super) fn new(
        from: &str,
        folder: PathBuf,
        taken: Vec<Taken>,
        reserved: Reserved,
        links: Arc<Ledger>,
    ) -> Self {
        Self {
            from: from.to_owned(),
            folder,
            taken,
            made: Instant::now(),
            state: watch::channel(BatchState::default()).0,
            reserved: Mutex::new(Some(reserved)),
            begun: AtomicBool::new(false),
            given_up: Notify::new(),
            ended: OnceLock::new(),
            told: OnceLock::new(),
            links,
        }
    }

    /// The lane in which it runs: its own, or one that is free by now.
    pub(super) async fn lane(&self, room: &Arc<Room>) -> Result<Option<Lane>, Fault> {
        let own = lock(&self.reserved).as_mut().and_then(|reserved| reserved.lane.take());
        if own.is_some() {
            return Ok(own);
        }
        let parts = self.taken.iter().map(Taken::part).collect();
        let (room, folder) = (room.clone(), self.folder.clone());
        blocking(move || Ok(room.lane(&folder, &parts))).await
    }

    /// Whether somebody may begin it still, or ask for its results. One that was given up before it was begun has none.
    pub(super) fn is_of_use(&self) -> bool {
        let is_within = |since: &Instant, life| since.elapsed() < life;
        match (self.begun.load(Ordering::SeqCst), self.ended.get(), self.told.get()) {
            (false, _, _) => is_within(&self.made, OFFER_LIFE),
            (true, Some(_), _) if self.state.borrow().items.is_empty() => false,
            (true, _, Some(told)) => is_within(told, TOLD_LIFE),
            (true, Some(ended), None) => is_within(ended, RESULT_LIFE),
            (true, None, None) => true,
        }
    }

    /// Whether it was begun and has not ended.
    pub(super) fn is_under_way(&self) -> bool {
        self.begun.load(Ordering::SeqCst) && !self.state.borrow().done
    }

    /// Ends its session, and waits until what it brought has been seen to. False: that takes long.
    pub(super) async fn give_up(&self) -> bool {
        let mut state = self.state.subscribe();
        // Never begun, it has nothing to end, and is not begun any more.
        if !self.begun.swap(true, Ordering::SeqCst) {
            self.state.send_modify(|state| state.done = true);
            self.ended.get_or_init(Instant::now);
            lock(&self.reserved).take();
        }
        self.given_up.notify_one();
        let ended = tokio::time::timeout(END_TIME, state.wait_for(|state| state.done)).await;
        ended.is_ok()
    }

    /// Receives what was taken, and says what came of it.
    pub(super) async fn run(&self, site: &Arc<Site>, remote: &Remote, lane: &str, ticket: Ticket) {
        let items = match self.receive(site, remote, lane, ticket).await {
            Ok(items) => items,
            Err(fault) => {
                tracing::warn!(from = %self.from, %fault, "a batch was not recorded");
                let failed = || Arrived::Failed(Trouble::new(fault.class, fault.what.clone()));
                self.taken.iter().map(|_| failed()).collect()
            }
        };
        kill_point("answer.before");
        lock(&self.reserved).take();
        let placed = |(taken, item): (&Taken, &Arrived)| {
            matches!(item, Arrived::Placed { .. }).then_some(taken.item.size)
        };
        let bytes = self.taken.iter().zip(&items).filter_map(placed).sum();
        self.state.send_replace(BatchState { done: true, bytes, came: 0, items });
        self.ended.get_or_init(Instant::now);
    }

    async fn receive(
        &self,
        site: &Arc<Site>,
        remote: &Remote,
        lane: &str,
        ticket: Ticket,
    ) -> Result<Vec<Arrived>, Fault> {
        let received = self.session(site, remote, lane, ticket).await;
        kill_point("arrived.before");
        let received = match received {
            Ok(received) => received,
            Err(fault) => {
                let class = fault.class.unwrap_or(ErrorClass::Internal);
                return Ok(self.all_failed(class, &fault.what));
            }
        };
        let (mut ends, signed) = self.verify(site, received).await?;
        let in_place = |(index, signed): &(usize, SignedFileReceipt)| {
            self.taken[*index].in_place(signed.clone())
        };
        let files = signed.iter().map(in_place).collect();
        let answers = record(site, &self.folder, files).await?;
        for ((index, receipt), answer) in signed.into_iter().zip(answers) {
            ends[index] = Some(match answer {
                Ok(_) => Arrived::Placed { receipt: Box::new(receipt) },
                Err(refused) => Arrived::Failed(not_recorded(&refused)),
            });
        }
        let lost = || Arrived::Failed(Trouble::new(ErrorClass::Internal, "nothing is known of it"));
        Ok(ends.into_iter().map(|end| end.unwrap_or_else(lost)).collect())
    }

    fn all_failed(&self, class: ErrorClass, what: &str) -> Vec<Arrived> {
        let failed = |_| Arrived::Failed(Trouble::new(class, what));
        self.taken.iter().map(failed).collect()
    }

    async fn session(
        &self,
        site: &Arc<Site>,
        remote: &Remote,
        lane: &str,
        ticket: Ticket,
    ) -> Result<ReceivedFiles, SessionFault> {
        let mut agreed = Agreed::default();
        for taken in &self.taken {
            agreed.insert(taken.path.as_bytes(), taken.item.size, taken.digest);
        }
        let mut folder = FolderOptions::new(&self.folder);
        (folder.owner, folder.folders) = (false, false);
        folder.lane = Some(lane.to_owned());
        let reserved = folder.reserved.clone();
        let size: u64 = self.taken.iter().map(|taken| taken.item.size).sum();
        let link = self.links.link(&self.from, &site.name).await;
        let link =
            link.inspect_err(|fault| tracing::warn!(%fault, "a link is not written down")).ok();
        let session = link.as_ref().map(Link::begin);
        let mut running = receive_files(ReceiveFiles {
            identity: site.identity.clone(),
            ticket,
            folder,
            may_open: Some(may_open(site, &self.folder)),
            agreed,
            name: site.name.clone(),
            wishes: Wishes { connections: remote.section.connections, ..Wishes::default() },
            measured: link.as_ref().map(Link::measured).unwrap_or_default(),
            beside: session.as_ref().map_or(0, |(_, beside)| *beside),
            memory_bytes: MEMORY,
            wait: SOURCE_TIME,
            links: link.as_ref().map(Link::book),
        });
        loop {
            tokio::select! {
                done = running.done() => return done,
                () = self.given_up.notified() => running.stop(),
                () = tokio::time::sleep(TICK) => {
                    let seen = running.progress();
                    let bytes = seen.and_then(|s| s.receivers.first().map(|row| row.done_bytes));
                    let bytes = bytes.unwrap_or(0);
                    self.state.send_modify(|state| (state.bytes, state.came) = (bytes, running.came()));
                    // What is on the disk is not promised as well.
                    let lacks = match reserved.load(Ordering::Relaxed) {
                        true => 0,
                        false => size.saturating_sub(bytes),
                    };
                    lock(&self.reserved).iter().for_each(|of| of.promise.keep(lacks));
                }
            }
        }
    }

    /// Reads back what the session says is in its place, and signs for it.
    async fn verify(
        &self,
        site: &Arc<Site>,
        received: ReceivedFiles,
    ) -> Result<(Vec<Option<Arrived>>, Vec<(usize, SignedFileReceipt)>), Fault> {
        let (taken, folder, site) = (self.taken.clone(), self.folder.clone(), site.clone());
        let attempt = u64::from(std::process::id()) ^ site.clock.now().0.unsigned_abs();
        blocking(move || {
            let placed: HashMap<&[u8], _> =
                received.files.placed.iter().map(|p| (p.path.as_slice(), p)).collect();
            let read_back = site.config().transfer.read_back;
            let (mut ends, mut signed) = (Vec::new(), Vec::new());
            for (index, taken) in taken.iter().enumerate() {
                let Some(placed) = placed.get(taken.path.as_bytes()) else {
                    ends.push(Some(Arrived::Failed(why_not(&received, taken))));
                    continue;
                };
                if lies_about(&taken.item.key().0, attempt) {
                    damage(&folder.join(&taken.path));
                }
                let receipt = receipt(&site, taken, &received.report.session.id);
                let same = match read_back {
                    true => receipt.check_digests(&folder, &taken.item.others()),
                    false => Ok(()),
                };
                ends.push(match (same, receipt.sign(&site.identity)) {
                    (Ok(()), Ok(receipt)) => {
                        signed.push((index, receipt));
                        None
                    }
                    (Err(wrong), _) => {
                        let of = (taken, placed.brought);
                        Some(Arrived::Failed(not_read_back(&folder, of, &wrong)))
                    }
                    (_, Err(error)) => {
                        let class = ErrorClass::NameRefused;
                        Some(Arrived::Failed(Trouble::new(class, error.to_string())))
                    }
                });
            }
            Ok((ends, signed))
        })
        .await
    }
}

pub(super) fn receipt(site: &Site, taken: &Taken, session: &str) -> FileReceipt {
    let item = &taken.item;
    FileReceipt {
        site: item.site.clone(),
        name: item.name.clone(),
        version: item.version,
        taken_in: downpour_catalog::Time(item.taken_in_us),
        rule: item.rule.clone(),
        size: item.size,
        blake3: taken.digest,
        path: taken.path.clone(),
        session: session.to_owned(),
        at: site.clock.now(),
        receiver: site.identity.public_key(),
    }
}

/// Why the session did not place a file.
fn why_not(received: &ReceivedFiles, taken: &Taken) -> Trouble {
    if let Some((obstacle, text)) = received.why(&taken.path) {
        let class = match obstacle {
            Obstacle::Taken => ErrorClass::VersionConflict,
            Obstacle::Refused => ErrorClass::NameRefused,
            Obstacle::Withdrawn | Obstacle::NotAgreed => ErrorClass::FileChanged,
            Obstacle::Failed => ErrorClass::DestinationWriteFailed,
        };
        return Trouble::new(class, format!("{}: {text}", taken.path));
    }
    match &received.failure {
        Some((class, what)) => Trouble::new(*class, what.as_str()),
        None => Trouble::new(ErrorClass::FileChanged, "the source did not send it"),
    }
}

/// The session said that a file is there. If it is not, what lies there instead goes aside, so that the next attempt finds its
/// place free; if it cannot be told, it stays for the next offer to be looked at. What has only another digest of another kind is
/// what was agreed on: where the session did not bring it, it may be another file that is right.
fn not_read_back(folder: &Path, (taken, brought): (&Taken, bool), wrong: &WrongContent) -> Trouble {
    let class = wrong.class();
    if class == ErrorClass::FalseSuccess || (class == ErrorClass::DigestDiffers && brought) {
        set_aside(folder, &taken.path, &taken.item.key().to_string());
    }
    Trouble::new(class, format!("read back: {wrong}"))
}

pub(super) fn not_recorded(refused: &Refused) -> Trouble {
    let class = match refused {
        // The same content, and another digest of it: whose is wrong is not known.
        Refused::DigestDiffers(kind) if *kind != DigestKind::Blake3 => ErrorClass::DigestDiffers,
        Refused::NameTaken { .. } | Refused::DigestDiffers(_) => ErrorClass::VersionConflict,
        _ => ErrorClass::Internal,
    };
    Trouble::new(class, refused.to_string())
}

/// For tests: what a mover that lies leaves behind.
fn damage(path: &Path) {
    let content = std::fs::read(path).unwrap_or_default();
    let kept = &content[..content.len() / 2];
    let _ = std::fs::write(path, kept);
}

#[cfg(test)]
mod tests {
    use super::{DigestKind, Incoming, Refused, not_read_back, not_recorded};
    use crate::dispatch::arriving::Taken;
    use crate::dispatch::ledger::Ledger;
    use crate::dispatch::room::Room;
    use crate::receipt::WrongContent;
    use crate::site::Daemon;
    use crate::ticket::Ticket;
    use downpour_catalog::ErrorClass;
    use downpour_transport::control::Token;
    use downpour_transport::identity::Identity;
    use std::collections::HashSet;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    #[tokio::test]
    async fn what_was_given_up_before_it_began_holds_no_room_and_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let (at, room) = (folder.path(), Arc::new(Room::default()));
        let ledger = Ledger::example(at);
        let incoming = || {
            let none = HashSet::new();
            let mut space = room.space(at, &none);
            space.take("x", 1000).unwrap();
            Incoming::new("a", at.to_owned(), Vec::new(), space.reserve(), ledger.clone())
        };
        let (given_up, begun) = (incoming(), incoming());
        assert!(given_up.is_of_use() && begun.is_of_use());
        begun.begun.store(true, Ordering::SeqCst);
        assert!(given_up.give_up().await);
        assert_eq!((given_up.is_of_use(), begun.is_of_use()), (false, true));
        assert_eq!(room.promised(), 1000, "that of the other one");
        let lanes = [room.lane(at, &HashSet::new()), begun.lane(&room).await.unwrap()];
        assert_eq!(lanes.map(|lane| lane.unwrap().name().to_owned()), ["lane-0", "lane-1"]);
    }

    #[test]
    fn what_is_wrong_goes_aside_and_what_cannot_be_read_back_for_want_of_descriptors_stays() {
        use rustix::io::Errno;
        let folder = tempfile::tempdir().unwrap();
        let (at, taken) = (folder.path(), Taken::example("x", 4));
        let unreadable = |errno: Errno| WrongContent::Unreadable(errno.into());
        let other = || WrongContent::Other("adler32:00000000".parse().unwrap());
        for (wrong, brought, class, stays) in [
            (unreadable(Errno::MFILE), true, ErrorClass::OutOfResources, true),
            (unreadable(Errno::IO), false, ErrorClass::FalseSuccess, false),
            (other(), true, ErrorClass::DigestDiffers, false),
            (other(), false, ErrorClass::DigestDiffers, true),
        ] {
            std::fs::write(at.join("x"), "good").unwrap();
            assert_eq!(not_read_back(at, (&taken, brought), &wrong).class(), class);
            assert_eq!(at.join("x").exists(), stays, "{wrong}");
        }
    }

    #[test]
    fn what_is_recorded_with_another_digest_of_its_content_is_no_other_version() {
        for (kind, class) in [
            (DigestKind::Md5, ErrorClass::DigestDiffers),
            (DigestKind::Blake3, ErrorClass::VersionConflict),
        ] {
            assert_eq!(not_recorded(&Refused::DigestDiffers(kind)).class(), class);
        }
    }

    #[tokio::test]
    async fn of_a_batch_that_failed_nothing_has_arrived() {
        let folder = tempfile::tempdir().unwrap();
        let (at, key) = (folder.path(), Identity::generate().public_key());
        let remote = format!("[[remote]]\nname = 'a'\nkey = '{key}'\n");
        let daemon = Daemon::example(at, "b", &remote).await;
        let remote = daemon.site.remote("a").unwrap();
        let room = Arc::new(Room::default());
        let reserved = room.space(at, &HashSet::new()).reserve();
        let ledger = Ledger::example(at);
        let taken = vec![Taken::example("x", 1000)];
        let incoming = Incoming::new("a", at.join("inbox"), taken, reserved, ledger);
        // Its time is over.
        let ticket = Ticket {
            addrs: vec!["127.0.0.1:9".to_owned()],
            key,
            token: Token::random().unwrap(),
            expires_unix_s: 1,
            group: None,
            allow: None,
        };
        incoming.run(&daemon.site, &remote, "lane-0", ticket).await;
        let state = incoming.state.borrow().clone();
        assert_eq!((state.done, state.items.len(), state.bytes), (true, 1, 0));
        daemon.end(Duration::ZERO).await;
    }
}
