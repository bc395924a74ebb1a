//! A way between sender and receiver that is cut without a word: no connection is closed, nothing comes
//! back. Needs a network namespace of its own, thus root, and `ip` and `tc`.

use crate::skipped::skipped;
use crate::world::{Setup, Told, World};
use downpour_transport::control::{EventsEnd, ServerLimits};
use nix::sched::{CloneFlags, unshare};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

fn run(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn both_sides_notice_that_the_way_is_cut() {
    // The namespace goes with the thread.
    let story = thread::spawn(|| {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            return skipped("both_sides_notice_that_the_way_is_cut", "needs root");
        }
        let cut = "tc qdisc replace dev lo root blackhole";
        if !run("ip link set lo up") || !run(cut) || !run("tc qdisc del dev lo root") {
            return skipped("both_sides_notice_that_the_way_is_cut", "needs ip and tc");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let limits =
                ServerLimits { silence_time_max: Duration::from_secs(3), ..Default::default() };
            let mut world = World::new(Setup { limits, ..Setup::default() }).await;
            let (client, _) = world.member().await;
            let mut events = client.events().await.unwrap();
            assert_eq!(world.told().await, Told::Subscribed(1));
            assert!(run(cut));
            assert!(matches!(events.next().await, Err(EventsEnd::Silent(_))));
            // The receiver's end is still open: the sender has to find out by itself.
            assert_eq!(world.told().await, Told::Unsubscribed(1));
            drop(events);
        });
    });
    story.join().unwrap();
}
