//! Bytes: ranges, repair symbols, the budget, failing sources, readers that stop, and curl.

use crate::pulls::{data, quick};
use crate::skipped::skipped;
use crate::world::{Setup, World, code, join_request, pull, until};
use downpour_proto::{BlockId, BlockKind, Rate};
use downpour_transport::control::{ErrorCode, Pull, PullError, ServerLimits};
use downpour_transport::identity::{CERTIFICATE_FILE, Identity, KEY_FILE, client_config};
use downpour_transport::pull::{PullLimits, Puller};
use std::ops::Range;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

fn manifest(range: Range<u64>) -> Pull {
    Pull::Bytes(BlockKind::Manifest, range)
}

/// The first repair symbol of a data block.
fn repair(number: u32) -> Pull {
    Pull::Repair(BlockId::data(number).unwrap(), 0..1)
}

#[tokio::test]
async fn ranges_give_the_bytes_they_name() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    let all = &world.session.data;
    for (from, to) in [(0, 1), (0, all.len()), (1_000_000, 1_600_000), (all.len() - 1, all.len())] {
        let bytes = pull(&client, data(from as u64, to as u64)).await.unwrap();
        assert!(bytes == all[from..to], "{from}..{to}");
    }
    let bytes = pull(&client, manifest(10..20)).await.unwrap();
    assert_eq!(bytes, all[10..20].iter().map(|byte| byte ^ 0xff).collect::<Vec<_>>());
}

#[tokio::test]
async fn http_ranges_follow_the_standard() {
    let world = World::new(Setup { data_len: 5000, ..Setup::default() }).await;
    let data = &world.session.data;
    let (status, head, body) = world.raw("GET /v1/data HTTP/1.1\r\n").await;
    assert!(status == 200 && body == *data && head.contains("accept-ranges: bytes"), "{head}");
    assert!(head.contains("content-length: 5000"), "{head}");
    for (range, content_range, expected) in [
        ("0-9", "bytes 0-9/5000", 0..10),
        ("4990-", "bytes 4990-4999/5000", 4990..5000),
        ("-10", "bytes 4990-4999/5000", 4990..5000),
        ("4000-9999999", "bytes 4000-4999/5000", 4000..5000),
    ] {
        let request = format!("GET /v1/data HTTP/1.1\r\nRange: bytes={range}\r\n");
        let (status, head, body) = world.raw(&request).await;
        assert!(
            status == 206 && head.contains(&format!("content-range: {content_range}")),
            "{head}"
        );
        assert!(body == data[expected.clone()], "{range}");
    }
    let (status, head, body) = world.raw("GET /v1/data HTTP/1.1\r\nRange: bytes=5000-\r\n").await;
    assert_eq!((status, code(&body)), (416, ErrorCode::RangeNotSatisfiable));
    assert!(head.contains("content-range: bytes */5000"), "{head}");
    // How long the manifest will be is not known yet.
    let (status, head, _) = world.raw("GET /v1/manifest HTTP/1.1\r\nRange: bytes=0-9\r\n").await;
    assert!(status == 206 && head.contains("content-range: bytes 0-9/*"), "{head}");
}

#[tokio::test]
async fn a_manifest_grows_under_its_readers() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    let error = pull(&client, manifest(0..1500)).await.unwrap_err();
    assert!(error == PullError::NotYet && error.is_passing(), "{error}");
    world.session.manifest_len.store(1500, Ordering::Relaxed);
    assert_eq!(pull(&client, manifest(0..1500)).await.unwrap().len(), 1500);
}

#[tokio::test]
async fn repair_symbols_come_one_after_the_other() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    let block = BlockId::data(3).unwrap();
    let bytes = pull(&client, Pull::Repair(block, 7..300)).await.unwrap();
    let expected: Vec<u8> = (7u16..300).flat_map(|symbol| vec![symbol as u8; 1448]).collect();
    assert!(bytes == expected);

    assert_eq!(world.budget.granted(), 293 * 1448);
    let error = pull(&client, repair(9)).await.unwrap_err();
    assert!(matches!(error, PullError::Refused(_)) && !error.is_passing(), "{error}");
}

#[tokio::test]
async fn no_byte_goes_without_the_budgets_leave() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    world.budget.set_rate(Rate::from_bps(0));
    let pulling = tokio::spawn(async move { pull(&client, data(0, 2_000_000)).await });
    until(|| world.budget.active() == 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!pulling.is_finished() && world.budget.granted() == 0);

    world.budget.set_rate(Rate::MAX);
    let bytes = pulling.await.unwrap().unwrap();
    assert!(bytes == world.session.data[..2_000_000]);
    assert_eq!(world.budget.granted(), 2_000_000);
    until(|| world.budget.active() == 0).await;
}

#[tokio::test]
async fn a_pull_counts_as_active_until_its_last_byte() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    // The first piece goes at once, the next would in hours.
    world.budget.set_rate(Rate::from_bps(8));
    let pulling = tokio::spawn(async move { pull(&client, data(0, 2_000_000)).await });
    until(|| world.budget.granted() > 0).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(world.budget.active() == 1 && world.budget.granted() < 100_000);
    world.budget.set_rate(Rate::MAX);
    assert!(pulling.await.unwrap().unwrap() == world.session.data[..2_000_000]);
    until(|| world.budget.active() == 0).await;
}

#[tokio::test]
async fn who_gives_up_frees_the_budget() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    world.budget.set_rate(Rate::from_bps(0));
    tokio::select! {
        _ = pull(&client, data(0, 100)) => panic!("at no rate"),
        () = until(|| world.budget.active() == 1) => {}
    }
    until(|| world.budget.active() == 0).await;

    // The same in the middle, where the first piece has gone and the next would in hours.
    world.budget.set_rate(Rate::from_bps(8));
    tokio::select! {
        _ = pull(&client, data(0, 2_000_000)) => panic!("at one byte a second"),
        () = until(|| world.budget.granted() > 0) => {}
    }
    until(|| world.budget.active() == 0).await;
    let before = world.budget.granted();
    world.budget.set_rate(Rate::MAX);
    assert_eq!(pull(&client, data(0, 100)).await.unwrap().len(), 100);
    assert_eq!(world.budget.granted() - before, 100);
}

#[tokio::test]
async fn who_gives_up_leaves_no_second_thread_with_a_disk_that_does_not_answer() {
    let limits = ServerLimits { reads_max: 1, ..ServerLimits::default() };
    let world = World::new(Setup { limits, ..Setup::default() }).await;
    let halted = world.session.disk.write().await;
    for _ in 0..5 {
        let client = world.client().await;
        let read = || world.session.read.load(Ordering::Relaxed);
        tokio::select! {
            _ = pull(&client, data(0, 100)) => panic!("the disk does not answer"),
            () = until(|| world.budget.active() == 1 && read() > 0) => {}
        }
        until(|| world.budget.active() == 0).await;
    }
    assert_eq!(world.session.read.load(Ordering::Relaxed), 100, "one was begun");
    drop(halted);
    let bytes = pull(&world.client().await, data(0, 100)).await.unwrap();
    assert_eq!(bytes, world.session.data[..100]);
}

#[tokio::test]
async fn a_disk_that_does_not_answer_keeps_nobody_from_the_manifest() {
    let limits = ServerLimits { reads_max: 1, repairs_max: 1, ..ServerLimits::default() };
    let mut world = World::new(Setup { limits, ..Setup::default() }).await;
    let ((first, _), (second, _)) = (world.member().await, world.member().await);
    let halted = world.session.disk.write().await;
    let client = world.client().await;
    let waits = tokio::spawn(async move { pull(&client, data(0, 100)).await });
    until(|| world.session.read.load(Ordering::Relaxed) == 100).await;

    let repairing = tokio::spawn(async move { pull(&first, repair(0)).await });
    assert_eq!(pull(&second, manifest(0..1000)).await.unwrap().len(), 1000);
    let of_manifest = Pull::Repair(BlockId::manifest(0).unwrap(), 0..1);
    let made = pull(&second, of_manifest).await.unwrap();
    assert!(!made.is_empty());
    drop(halted);
    assert_eq!(waits.await.unwrap().unwrap(), world.session.data[..100]);
    assert_eq!(repairing.await.unwrap().unwrap(), made);
}

#[tokio::test]
async fn who_stops_reading_frees_the_budget() {
    let limits = ServerLimits { stall_time_max: Duration::from_millis(200), ..Default::default() };
    let world = World::new(Setup { limits, data_len: 30_000_000, ..Setup::default() }).await;
    let config = client_config(&Identity::generate(), world.sender.public_key());
    let mut tls = world.tls(config).await;
    let bearer = world.token.to_text();
    let head = format!("GET /v1/data HTTP/1.1\r\nAuthorization: Bearer {bearer}\r\n\r\n");
    tls.write_all(head.as_bytes()).await.unwrap();
    until(|| world.budget.granted() > 0).await;
    until(|| world.budget.active() == 0).await;
    assert!(world.budget.granted() < 30_000_000);
    drop(tls);
}

#[tokio::test]
async fn a_failing_source_is_named() {
    let mut world = World::new(Setup::default()).await;
    let (client, _) = world.member().await;
    world.session.broken_from.store(1_500_000, Ordering::Relaxed);
    let failed = Err(PullError::SourceFailed("a.txt has changed".into()));
    assert_eq!(pull(&client, data(1_500_000, 1_500_001)).await, failed);
    // In the middle the answer breaks off, and the next try says why.
    let (puller, mut results) = Puller::start(client, PullLimits { parallel: 1, ..quick() });
    puller.request(0, data(0, 2_000_000)).unwrap();
    assert_eq!(results.recv().await.unwrap().outcome, failed);
}

#[tokio::test]
async fn pulls_use_their_connections_again() {
    let limits = ServerLimits { connections_max: 3, ..Default::default() };
    let mut world = World::new(Setup { limits, ..Setup::default() }).await;
    let (client, _) = world.member().await;
    let _events = client.events().await.unwrap();
    // One connection is left: if each pull took a new one, some would be turned away.
    let limits = PullLimits { parallel: 1, tries_max: 1, ..quick() };
    let (mut puller, mut results) = Puller::start(client, limits);
    for at in 0..50 {
        puller.request(at, data(at, at + 1000)).unwrap();
        assert_eq!(results.recv().await.unwrap().outcome.unwrap().len(), 1000);
    }
    assert_eq!(puller.stop().await.connections.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_is_a_client() {
    if Command::new("curl").arg("--version").output().is_err() {
        return skipped("curl_is_a_client", "needs curl");
    }
    let world = World::new(Setup::default()).await;
    let home = tempfile::tempdir().unwrap();
    Identity::load_or_create(home.path()).unwrap();
    let curl = |range: &str| {
        let out = Command::new("curl")
            .args(["--silent", "--show-error", "--insecure", "--dump-header", "-"])
            .arg("--cert")
            .arg(home.path().join(CERTIFICATE_FILE))
            .arg("--key")
            .arg(home.path().join(KEY_FILE))
            .args(["--header", &format!("Authorization: Bearer {}", world.token.to_text())])
            .args(["--range", range])
            .arg(format!("https://{}/v1/data", world.server.local_addr()))
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    };
    let answer = curl("1000000-1499999");
    assert!(answer.starts_with(b"HTTP/1.1 206"));
    assert!(answer.ends_with(&world.session.data[1_000_000..1_500_000]));
    assert!(curl("9000000-").starts_with(b"HTTP/1.1 416"));
}

#[tokio::test]
async fn a_pull_needs_no_membership_but_its_repair_does() {
    let world = World::new(Setup::default()).await;
    let client = world.client().await;
    assert_eq!(pull(&client, data(0, 10)).await.unwrap().len(), 10);
    assert_eq!(pull(&client, repair(0)).await, Err(PullError::Rejoin));
    client.join(&join_request("anna")).await.unwrap();
    assert_eq!(pull(&client, repair(0)).await.unwrap().len(), 1448);
}
