//! A list of files from node to node in one process, as the dispatcher moves them.

use downpour::cli::{Controller, EncryptionArg};
use downpour::object::{Agreed, Digest, FolderOptions, Item, Obstacle, Skipped};
use downpour::ports::PortRange;
use downpour::session::{
    ItemEnd, MayOpen, ReceiveFiles, ReceivedFiles, Running, SendFiles, SendTurns, SentFiles,
    receive_files, send_files,
};
use downpour::ticket::Ticket;
use downpour_catalog::ErrorClass;
use downpour_proto::Rate;
use downpour_proto::transfer::{Figure, Measured, Policy, Wishes};
use downpour_transport::control::{DataPath, SessionId};
use downpour_transport::identity::Identity;
use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// What has not ended by then hangs.
const HANG: Duration = Duration::from_secs(240);
/// Bytes that have come.
const MORE_THAN_A_MANIFEST: u64 = 100_000;

struct Pair {
    wishes: Wishes,
    measured: Measured,
    dir: tempfile::TempDir,
    sender: Arc<Identity>,
    receiver: Arc<Identity>,
    agreed: Agreed,
    items: Vec<Item>,
    lane: &'static str,
    wait: Duration,
    rate: Option<Rate>,
    turns: SendTurns,
}

impl Pair {
    fn new() -> Self {
        Self {
            wishes: Wishes::default(),
            measured: Measured::default(),
            dir: tempfile::tempdir().unwrap(),
            sender: Arc::new(Identity::generate()),
            receiver: Arc::new(Identity::generate()),
            agreed: Agreed::default(),
            items: Vec::new(),
            lane: "lane-0",
            wait: Duration::from_secs(3600),
            rate: None,
            turns: Arc::default(),
        }
    }

    fn from(&self) -> &Path {
        self.dir.path()
    }

    fn placed(&self, name: &str) -> Vec<u8> {
        fs::read(self.dir.path().join("to").join(name)).unwrap_or_default()
    }

    fn file(&mut self, source: &str, name: &str, content: &[u8]) {
        fs::write(self.from().join(source), content).unwrap();
        self.agree(source, name, content);
    }

    fn agree(&mut self, source: &str, name: &str, content: &[u8]) {
        self.agreed.insert(name.as_bytes(), content.len() as u64, Digest::of(content));
        let (path, name) = (self.from().join(source), name.to_owned());
        self.items.push(Item { path, name, size: Some(content.len() as u64) });
    }

    fn send(&self) -> (Running<SentFiles>, oneshot::Receiver<Ticket>) {
        send_files(SendFiles {
            book: None,
            identity: self.sender.clone(),
            session: SessionId::random().unwrap(),
            receiver: self.receiver.public_key(),
            items: self.items.clone(),
            path: DataPath::Tcp,
            encryption: EncryptionArg::All,
            rate: self.rate,
            controller: Controller::default(),
            listen: Some("127.0.0.1:0".parse().unwrap()),
            ports: PortRange::DEFAULT,
            wait: self.wait,
            uplink: Arc::default(),
            turns: self.turns.clone(),
        })
    }

    fn receive(&self, ticket: Ticket) -> Running<ReceivedFiles> {
        self.receive_if(ticket, None)
    }

    fn receive_if(&self, ticket: Ticket, may_open: Option<MayOpen>) -> Running<ReceivedFiles> {
        let mut folder = FolderOptions::new(self.dir.path().join("to"));
        (folder.folders, folder.lane) = (false, Some(self.lane.to_owned()));
        receive_files(ReceiveFiles {
            identity: self.receiver.clone(),
            ticket,
            folder,
            may_open,
            agreed: self.agreed.clone(),
            name: "b".to_owned(),
            wishes: self.wishes.clone(),
            measured: self.measured.clone(),
            beside: 0,
            memory_bytes: 64_000_000,
            wait: self.wait,
            links: None,
        })
    }

    async fn run(&self) -> (SentFiles, ReceivedFiles) {
        let (mut sending, ticket) = self.send();
        let received = self.receive(ticket.await.expect("it opens")).done().await.unwrap();
        (sending.done().await.unwrap(), received)
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let ends = async { timeout(HANG, future).await.expect("it ends") };
    tokio::runtime::Runtime::new().unwrap().block_on(ends)
}

#[test]
fn files_arrive_under_the_names_that_were_agreed_and_a_second_time_cost_no_bytes() {
    let mut pair = Pair::new();
    let large: Vec<u8> = (0..5_000_000u32).map(|i| (i / 7) as u8).collect();
    pair.file("one", "run/2026/a.dat", b"alpha");
    pair.file("two", "run/b.dat", &large);
    pair.file("three", "run/empty", b"");
    pair.file("four", "run.log", b"one");
    let folder = pair.dir.path().join("to/run");
    fs::create_dir_all(&folder).unwrap();
    let before = fs::metadata(&folder).unwrap();
    let (sent, received) = block_on(pair.run());
    assert_eq!(sent.items, vec![ItemEnd::Placed; 4]);
    assert!(sent.receipt.unwrap().verify(&pair.receiver.public_key()).unwrap().finished);
    assert_eq!(received.failure, None);
    let mut placed: Vec<_> = received.files.placed.iter().map(|p| p.path.as_slice()).collect();
    placed.sort_unstable();
    assert_eq!(placed, [&b"run.log"[..], b"run/2026/a.dat", b"run/b.dat", b"run/empty"]);
    let of_large = received.files.placed.iter().find(|p| p.path == b"run/b.dat").unwrap();
    assert_eq!((of_large.size, of_large.digest), (large.len() as u64, Digest::of(&large)));
    assert_eq!(pair.placed("run/b.dat"), large);
    assert_eq!(pair.placed("run/2026/a.dat"), b"alpha");
    use std::os::unix::fs::PermissionsExt as _;
    let after = fs::metadata(&folder).unwrap();
    assert_eq!(after.permissions().mode(), before.permissions().mode(), "left as it was");
    let (sent, received) = block_on(pair.run());
    assert_eq!(sent.items, vec![ItemEnd::Placed; 4]);
    assert_eq!(received.files.placed.len(), 4);
    assert_eq!(received.report.receivers[0].pull_bytes, 0, "all of it was there");
}

#[test]
fn a_file_that_was_empty_when_the_session_was_opened_and_is_not_any_more_does_not_arrive() {
    let mut pair = Pair::new();
    pair.file("empty", "empty", b"");
    pair.file("still", "still", b"");
    let (sent, received) = block_on(async {
        let (mut sending, ticket) = pair.send();
        let ticket = ticket.await.unwrap();
        fs::write(pair.from().join("empty"), b"content").unwrap();
        let received = pair.receive(ticket).done().await.unwrap();
        (sending.done().await.unwrap(), received)
    });
    assert!(matches!(&sent.items[0], ItemEnd::Withdrawn(why) if why.contains("changed")));
    assert_eq!(sent.items[1], ItemEnd::Placed);
    assert_eq!(received.why("empty").unwrap().0, Obstacle::Withdrawn);
    let to = pair.dir.path().join("to");
    assert!(!to.join("empty").exists() && to.join("still").exists());
}

#[test]
fn a_file_that_was_empty_when_it_was_offered_and_is_not_at_the_end_is_told_by_the_sender() {
    let mut pair = Pair::new();
    pair.file("empty", "empty", b"");
    pair.file("large", "large", &vec![7; 3_000_000]);
    // Twelve seconds, of which eleven are left when the first bytes are there.
    pair.rate = Some(Rate::from_mbps(2));
    let (sent, received) = block_on(async {
        let (mut sending, ticket) = pair.send();
        let mut receiving = pair.receive(ticket.await.unwrap());
        while receiving.came() < MORE_THAN_A_MANIFEST {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        fs::write(pair.from().join("empty"), b"content").unwrap();
        let received = receiving.done().await.unwrap();
        (sending.done().await.unwrap(), received)
    });
    assert!(matches!(&sent.items[0], ItemEnd::Withdrawn(why) if why.contains("changed")));
    assert_eq!((&sent.items[1], sent.report.is_complete()), (&ItemEnd::Placed, false));
    assert_eq!(received.files.placed.len(), 2, "it was empty when it was offered");
}

#[test]
fn what_comes_is_counted_before_a_block_is_whole() {
    let mut pair = Pair::new();
    pair.file("one", "one", &vec![7; 1_400_000]);
    pair.rate = Some(Rate::from_bps(1_000_000));
    block_on(async {
        let (mut sending, ticket) = pair.send();
        let mut receiving = pair.receive(ticket.await.unwrap());
        while receiving.came() < MORE_THAN_A_MANIFEST {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(receiving.progress().unwrap().receivers[0].done_bytes, 0);
        receiving.stop();
        receiving.done().await.unwrap();
        sending.stop();
        sending.done().await.unwrap();
    });
}

#[test]
fn a_session_has_begun_when_its_receiver_is_there() {
    let mut pair = Pair::new();
    pair.file("one", "one", b"alpha");
    block_on(async {
        let (mut alone, ticket) = pair.send();
        ticket.await.unwrap();
        while alone.progress().is_none() {
            tokio::task::yield_now().await;
        }
        assert!(!alone.has_begun());
        alone.stop();
        alone.done().await.unwrap();
        let (mut sending, ticket) = pair.send();
        pair.receive(ticket.await.unwrap()).done().await.unwrap();
        assert!(sending.has_begun());
        sending.done().await.unwrap();
    });
}

#[test]
fn the_kernel_has_what_the_plan_says() {
    let mut pair = Pair::new();
    let content: Vec<u8> = (0..9_000_000u32).map(|i| (i / 5) as u8).collect();
    pair.file("one", "one", &content);
    pair.wishes = Wishes {
        connections: Some(3),
        congestion: Some("reno".to_owned()),
        // All three get their part.
        pacing: Some(Rate::from_mbps(24)),
        policy: Policy::Bdp(1),
        ..Wishes::default()
    };
    pair.measured.throughput = Some(Figure::fresh(Rate::from_mbps(60), "a test"));
    pair.measured.rtt = Some(Figure::fresh(Duration::from_millis(40), "a test"));
    let (sent, received) = block_on(pair.run());
    assert_eq!(pair.placed("one"), content);
    let (sent, received) = (sent.report.transfer.unwrap(), received.report.transfer.unwrap());
    let said = |name: &str| received.plan.iter().find(|line| line.name == name).unwrap();
    // 60 Mbit/s × 40 ms / 3; the kernel books twice what is set, and half as much again is set to send.
    assert_eq!(
        (said("send_buffer").value.as_str(), said("connections").value.as_str()),
        ("100000 B", "3")
    );
    assert_eq!(said("receive_buffer").value, "100000 B");
    // One that broke was made anew.
    assert!(received.connections.len() >= 3, "{:?}", received.connections);
    assert!(received.connections.iter().all(|c| c.receive_buffer_bytes == 200_000));
    assert!(!sent.connections.is_empty());
    for connection in &sent.connections {
        assert_eq!(
            (connection.send_buffer_bytes, connection.congestion.as_str()),
            (300_000, "reno")
        );
        assert_eq!(connection.pacing_max_bps, Some(8_000_000));
    }
}

#[test]
fn one_bad_file_spoils_no_other() {
    let mut pair = Pair::new();
    pair.file("good", "good", b"good");
    pair.file("gone", "gone", b"gone");
    pair.file("short", "short", b"short");
    pair.file("up", "../escaped", b"up");
    pair.file("twice", "good/below", b"x");
    pair.file("other", "taken", b"theirs");
    pair.agree("said", "said", b"what was said");
    fs::write(pair.from().join("said"), b"what is there").unwrap();
    fs::remove_file(pair.from().join("gone")).unwrap();
    fs::write(pair.from().join("short"), b"longer now").unwrap();
    fs::create_dir_all(pair.dir.path().join("to")).unwrap();
    fs::write(pair.dir.path().join("to/taken"), b"our own").unwrap();
    let (sent, received) = block_on(pair.run());
    let ends = &sent.items;
    assert_eq!(ends[0], ItemEnd::Placed);
    assert_eq!(ends[1], ItemEnd::Skipped(Skipped::Gone));
    assert_eq!(ends[2], ItemEnd::Skipped(Skipped::Changed));
    assert_eq!(ends[3], ItemEnd::Skipped(Skipped::NameRefused));
    assert_eq!(ends[4], ItemEnd::Skipped(Skipped::NameTaken));
    assert!(matches!(ends[5], ItemEnd::Unplaced(_)), "{:?}", ends[5]);
    assert!(matches!(ends[6], ItemEnd::Unplaced(_)), "{:?}", ends[6]);
    let taken = (Obstacle::Taken, "exists and differs".to_owned());
    assert_eq!(received.why("taken"), Some(&taken), "no option is named: there is none");
    assert_eq!(received.why("said").unwrap().0, Obstacle::NotAgreed);
    assert_eq!(received.files.placed.len(), 1);
    assert_eq!((pair.placed("taken"), pair.placed("said")), (b"our own".to_vec(), Vec::new()));
    assert!(!pair.dir.path().join("escaped").exists());
}

#[test]
fn what_was_not_agreed_ends_the_session() {
    let mut pair = Pair::new();
    pair.file("good", "good", b"good");
    pair.agreed = Agreed::default();
    pair.agreed.insert(b"other", 4, Digest::of(b"good"));
    let (sent, received) = block_on(pair.run());
    assert_eq!(received.failure.unwrap().0, ErrorClass::Internal);
    assert_eq!(sent.items, [ItemEnd::Unknown]);
    assert!(!pair.dir.path().join("to/good").exists());
}

#[test]
fn a_stranger_does_not_get_in() {
    let mut pair = Pair::new();
    pair.file("good", "good", b"good");
    block_on(async {
        let (mut sending, ticket) = pair.send();
        pair.receiver = Arc::new(Identity::generate());
        pair.wait = Duration::ZERO;
        let fault = pair.receive(ticket.await.unwrap()).done().await.unwrap_err();
        assert!(fault.class.is_some(), "{fault}");
        assert!(!pair.dir.path().join("to/good").exists());
        sending.stop();
        sending.done().await.unwrap();
    });
}

#[test]
fn a_folder_that_may_not_be_opened_is_not_made_and_its_sender_waits_for_nobody() {
    let mut pair = Pair::new();
    pair.file("good", "good", b"good");
    let refusal = (ErrorClass::DestinationWriteFailed, "it is not mounted".to_owned());
    let refused = refusal.clone();
    let may_open: MayOpen = Arc::new(move || Err(refused.clone()));
    block_on(async {
        let (mut sending, ticket) = pair.send();
        let mut receiving = pair.receive_if(ticket.await.unwrap(), Some(may_open));
        let fault = receiving.done().await.unwrap_err();
        assert_eq!((fault.class.unwrap(), fault.what), refusal);
        assert_eq!(sending.done().await.unwrap().items, [ItemEnd::Unknown]);
    });
    assert!(!pair.dir.path().join("to").exists());
}

#[test]
fn lanes_run_beside_each_other_and_a_stopped_session_ends() {
    let (mut one, mut two) = (Pair::new(), Pair::new());
    one.file("a", "a", &[1; 100_000]);
    two.file("b", "b", &[2; 100_000]);
    two.lane = "lane-1";
    let target = one.dir.path().join("to");
    std::os::unix::fs::symlink(&target, two.dir.path().join("to")).unwrap();
    fs::create_dir_all(&target).unwrap();
    block_on(async {
        let ((a, _), (b, _)) = tokio::join!(one.run(), two.run());
        assert_eq!((a.items, b.items), (vec![ItemEnd::Placed], vec![ItemEnd::Placed]));
        let (mut sending, ticket) = one.send();
        ticket.await.unwrap();
        sending.stop();
        assert_eq!(sending.done().await.unwrap().items, [ItemEnd::Unknown]);
    });
    assert_eq!(one.placed("b"), [2; 100_000]);
}

#[test]
fn a_session_begins_though_a_disk_holds_up_all_threads_of_the_runtime() {
    let mut pair = Pair::new();
    pair.file("one", "one", b"alpha");
    let runtime = Builder::new_multi_thread().enable_all().max_blocking_threads(1).build().unwrap();
    let (_disk, answer) = mpsc::channel::<()>();
    runtime.block_on(async {
        tokio::task::spawn_blocking(move || answer.recv());
        let (mut sending, ticket) = pair.send();
        timeout(HANG, ticket).await.expect("it opens").unwrap();
        sending.stop();
        sending.done().await.unwrap();
    });
}

#[test]
fn a_session_keeps_its_turn_until_it_reads_no_more() {
    let turn = Arc::new(Semaphore::new(1));
    let mut pair = Pair::new();
    pair.file("one", "one", b"alpha");
    pair.turns = Arc::new(vec![turn.clone().try_acquire_owned().unwrap()]);
    block_on(async {
        let (mut session, ticket) = pair.send();
        pair.turns = Arc::default();
        ticket.await.unwrap();
        assert_eq!(turn.available_permits(), 0);
        session.stop();
        session.done().await.unwrap();
        // Until nothing reads any more.
        turn.acquire().await.unwrap().forget();
    });
}
