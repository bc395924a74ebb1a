//! Runs the real program, on a machine of the test network or on this one, and sees how it ends.
//!
//! Each machine has a home and an output folder of its own in one scratch folder on tmpfs, so that the disk
//! does not decide. A program that a test forgot is killed when its handle is dropped.

use crate::network::Host;
use downpour::report::Report;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take before a test fails instead of hanging. Not a measure of speed.
pub(crate) const HANG: Duration = Duration::from_secs(600);

/// Scratch folder of one test.
pub(crate) struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let place = ["/dev/shm", "/tmp"].into_iter().find(|place| Path::new(place).is_dir());
        let place = place.expect("a place for temporary files");
        let folder = tempfile::Builder::new().prefix("downpour-test-").tempdir_in(place);
        Self { folder: folder.expect("a folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program as the machine `name` runs it: in `host`'s namespace, or here.
    pub(crate) fn program(&self, host: Option<&Host>, name: &str, arguments: &[&str]) -> Command {
        self.program_under(&[], host, name, arguments)
    }

    /// The same, run by another program whose words come first.
    pub(crate) fn program_under(
        &self,
        under: &[&str],
        host: Option<&Host>,
        name: &str,
        arguments: &[&str],
    ) -> Command {
        let words = [under, &[env!("CARGO_BIN_EXE_downpour")], arguments].concat();
        let mut command = match host {
            Some(host) => host.command(words[0]),
            None => Command::new(words[0]),
        };
        command.args(&words[1..]).env("DOWNPOUR_HOME", self.path(&format!("{name}.home")));
        command.env_remove("DOWNPOUR_PORTS").stdin(Stdio::null());
        command
    }

    /// Starts it. What it prints goes to files.
    pub(crate) fn start(&self, host: Option<&Host>, name: &str, arguments: &[&str]) -> Running {
        self.start_command(name, self.program(host, name, arguments))
    }

    pub(crate) fn start_command(&self, name: &str, mut command: Command) -> Running {
        let (out, err) = (self.path(&format!("{name}.out")), self.path(&format!("{name}.err")));
        command.stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&err).unwrap());
        let child = command.spawn().expect("the program starts");
        Running { name: name.to_owned(), child, out, err }
    }

    /// Runs it to its end. Another one may run meanwhile that has the same name: what that prints is apart.
    pub(crate) fn run(&self, host: Option<&Host>, name: &str, arguments: &[&str]) -> Ended {
        self.start_command(&format!("{name}.run"), self.program(host, name, arguments)).wait()
    }

    /// Makes a ticket for a sender at `address`; gives the file.
    pub(crate) fn ticket(&self, address: &str) -> PathBuf {
        let path = self.path("ticket");
        let file = path.to_str().unwrap();
        self.run(None, "sender", &["ticket", "new", "--address", address, "--out", file]).expect(0);
        path
    }

    /// The report that the machine `name` wrote to its `--report` file.
    pub(crate) fn report(&self, name: &str) -> Report {
        let path = self.path(&format!("{name}.json"));
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str(&text).expect("a report")
    }
}

/// A program under way.
pub(crate) struct Running {
    name: String,
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit status; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    /// What it printed.
    pub(crate) out: String,
    /// What it said.
    pub(crate) err: String,
    /// Most memory that it had (VmHWM), as far as it was seen; bytes.
    pub(crate) memory: u64,
}

impl Running {
    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Ended {
        let end = Instant::now() + HANG;
        let mut memory = 0;
        loop {
            memory = self.memory().unwrap_or(memory);
            if let Some(status) = self.child.try_wait().expect("our child") {
                return Ended { code: status.code(), out: self.out(), err: self.err(), memory };
            }
            assert!(Instant::now() < end, "{} hangs:\n{}", self.name, self.err());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Most memory that it has had so far, bytes; `None` when it is over.
    fn memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib << 10)
    }

    /// Bytes that it has written so far, to files and sockets.
    pub(crate) fn written(&self) -> u64 {
        let io = fs::read_to_string(format!("/proc/{}/io", self.child.id())).unwrap_or_default();
        let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
        line.and_then(|bytes| bytes.parse().ok()).unwrap_or_default()
    }

    /// Waits until it has written so much: what came to it and is stored, or what it has sent by TCP.
    pub(crate) fn until_written(&mut self, enough: u64) {
        self.until(|running| (running.written() >= enough).then_some(()));
    }

    /// As a machine that loses power.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("our child");
        self.child.wait().expect("our child");
    }

    /// As Ctrl-C.
    pub(crate) fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// As `kill`, `timeout` and a system that goes down.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("our child");
    }

    /// Whether Ctrl-C and `kill` are something that it sees to itself.
    pub(crate) fn catches_signals(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        let wanted = [Signal::INT, Signal::TERM].map(|signal| 1_u64 << (signal.as_raw() - 1));
        caught.is_some_and(|mask| wanted.iter().all(|bit| mask & bit != 0))
    }

    /// Whether one of its threads waits for a file system of /dev/fuse, one that is called so.
    pub(crate) fn waits_for_fuse(&self, name: &str) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten();
        threads.flatten().any(|thread| {
            let says = |what: &str, word: &str| {
                let text = fs::read_to_string(thread.path().join(what)).unwrap_or_default();
                text.contains(word)
            };
            says("wchan", "fuse") && says("comm", name)
        })
    }

    /// As a terminal that is closed.
    pub(crate) fn hang_up(&self) {
        kill_process(Pid::from_child(&self.child), Signal::HUP).expect("our child");
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_some()
    }

    pub(crate) fn out(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    pub(crate) fn err(&self) -> String {
        fs::read_to_string(&self.err).unwrap_or_default()
    }

    /// Waits until `what` gives something.
    pub(crate) fn until<T>(&mut self, mut what: impl FnMut(&Self) -> Option<T>) -> T {
        let end = Instant::now() + HANG;
        loop {
            // First: it may do what is waited for as the last thing before its end.
            let is_over = self.is_over();
            if let Some(found) = what(self) {
                return found;
            }
            assert!(!is_over, "{} ended:\n{}{}", self.name, self.out(), self.err());
            assert!(Instant::now() < end, "{} hangs:\n{}", self.name, self.err());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// Panics, with all that was said, unless the exit status is `code`.
    #[track_caller]
    pub(crate) fn expect(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "\n{}\n{}", self.out, self.err);
        self
    }
}
