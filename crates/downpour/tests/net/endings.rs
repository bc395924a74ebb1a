//! How the program ends when it is held up: on loopback, no root needed.

use crate::program::HANG;
use crate::sessions::OneFile;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a shell calls an end by Ctrl-C.
const BY_INTERRUPT: Option<i32> = Some(130);

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// The receiver's thread is in a write to a pipe that nobody reads, and stays there.
#[test]
fn a_receiver_that_its_output_holds_up_lets_the_others_go_on_and_is_ended_by_signals() {
    let session = OneFile::new(3_000_000);
    let out = session.scratch.path("r0.out");
    fifo(&out);
    // Holds both ends, so that neither waits to be opened.
    let mut pipe = File::options().read(true).write(true).open(&out).unwrap();
    let mut held = session.receiver(0, &["--out", "-"]);
    fs::remove_file(&out).unwrap();
    let other = session.receiver(1, &[]);
    let sender = session.sender(&["--receivers", "2", "--rate", "200mbit"]);
    // What comes at once is more than a pipe takes.
    pipe.read_exact(&mut [0]).unwrap();
    held.interrupt();
    let sent = sender.wait();
    sent.expect(1);
    assert!(sent.err.contains("interrupted; what has arrived is kept"), "{}", sent.err);
    other.wait().expect(0);
    assert!(session.arrived(1));
    let end = Instant::now() + HANG;
    while !held.is_over() {
        assert!(Instant::now() < end, "it hangs:\n{}", held.err());
        held.interrupt();
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = held.wait();
    assert_eq!(ended.code, BY_INTERRUPT, "{ended:?}");
}

/// As while a large tree is walked: the trace waits for one who reads it.
#[test]
fn a_sender_that_is_not_open_yet_is_ended_by_one_signal() {
    let session = OneFile::new(1_000);
    let trace = session.scratch.path("trace");
    fifo(&trace);
    let trace = trace.to_str().unwrap();
    let mut sender = session.sender(&["--receivers", "1", "--trace", trace]);
    sender.until(|sender| sender.catches_interrupts().then_some(()));
    sender.interrupt();
    let ended = sender.wait();
    assert_eq!(ended.code, BY_INTERRUPT, "{ended:?}");
}
