//! The demo's folder and the programs that it starts, all gone when it ends.
//!
//! Whatever way the demo ends (done, failed, by a signal), dropping the [`Stage`] ends the programs that still
//! run and removes the folder. A signal is only noted; the demo asks `is_stopped` where it waits. A demo that is killed can
//! do neither: its programs end with it ([`end_with_demo`]), and the next demo in the same place removes the folder, which
//! nobody has locked any more.
//!
//! The folder is closed to all other users: the copies in it need not have the modes of what is sent, and are in no folder that
//! keeps that closed.

use super::tree;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// How often a wait looks whether something has happened.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Programs that were asked to end get this long before they are killed.
const PATIENCE: Duration = Duration::from_secs(5);
/// So long after a signal that a terminal may have sent they are asked again: whom it has told is about to end, and one
/// signal more would end it at once.
const TOLD_BY_TERMINAL: Duration = Duration::from_secs(1);
/// The demo's folder, before its process id.
const FOLDER: &str = "downpour-demo-";
/// Tells a program that a demo has started it, and which.
const VARIABLE: &str = "DOWNPOUR_DEMO_PID";

/// A program that a demo has started ends with it. Others are not concerned.
pub(super) fn end_with_demo() {
    let Some(demo) = std::env::var(VARIABLE).ok().and_then(|pid| pid.parse().ok()) else { return };
    // Fails only for a signal that does not exist.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    if getppid() != Pid::from_raw(demo) {
        std::process::exit(128 + Signal::TERM.as_raw()); // It was gone before.
    }
}

/// A private folder and running programs.
pub(super) struct Stage {
    folder: PathBuf,
    /// Held as long as the folder is in use, where the file system has locks.
    _lock: Option<OwnedFd>,
    program: PathBuf,
    running: Vec<Program>,
    /// The signal that stops it; 0: none has come.
    stopped: Arc<AtomicI32>,
}

struct Program {
    name: String,
    child: Child,
    status: Option<ExitStatus>,
}

impl Stage {
    /// Makes the folder, below `place`, for running `program`.
    pub(super) fn set(place: &Path, program: PathBuf) -> io::Result<Self> {
        // Its programs would not take relative paths for their keys and state.
        let place = &std::path::absolute(place)?;
        remove_left(place);
        let folder = place.join(format!("{FOLDER}{}", std::process::id()));
        let stopped = Arc::default();
        listen_for_signals(Arc::clone(&stopped))?;
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let _lock = lock(&folder);
        Ok(Self { folder, _lock, program, running: Vec::new(), stopped })
    }

    /// A path in the folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether a signal has asked it to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) != 0
    }

    /// The program with these arguments, its keys and state in the folder.
    pub(super) fn command<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env(crate::home::VARIABLE, self.path("home")).stdin(Stdio::null());
        command.env(VARIABLE, std::process::id().to_string());
        command
    }

    /// Starts a program that runs beside the others. What it says goes to `name`.log in the folder.
    pub(super) fn start(&mut self, name: &str, mut command: Command) -> io::Result<()> {
        let log = fs::File::create(self.path(&format!("{name}.log")))?;
        let child = command.stdout(log.try_clone()?).stderr(log).spawn()?;
        self.running.push(Program { name: name.to_owned(), child, status: None });
        Ok(())
    }

    /// Runs a program to its end, with the terminal as its own.
    pub(super) fn run(
        &mut self,
        name: &str,
        mut command: Command,
    ) -> io::Result<Option<ExitStatus>> {
        let child = command.spawn()?;
        self.running.push(Program { name: name.to_owned(), child, status: None });
        loop {
            let last = self.running.last_mut().expect("pushed above");
            if let Some(status) = last.look()? {
                self.running.pop();
                return Ok(Some(status));
            }
            if self.is_stopped() {
                return Ok(None);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until all that was started has ended, at most `limit`. Gives the names of those that failed or
    /// still run, each with what it said last.
    pub(super) fn wait_for_all(&mut self, limit: Duration) -> io::Result<Vec<String>> {
        let end = Instant::now() + limit;
        loop {
            let mut all = true;
            for program in &mut self.running {
                all &= program.look()?.is_some();
            }
            if all || self.is_stopped() || Instant::now() > end {
                break;
            }
            thread::sleep(LOOK_EVERY);
        }
        let failed = self.running.iter().filter(|p| !p.status.is_some_and(|s| s.success()));
        let say =
            |program: &Program| format!("{}: {}", program.name, self.last_words(&program.name));
        Ok(failed.map(say).collect())
    }

    fn last_words(&self, name: &str) -> String {
        let text = fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default();
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(2)..].join(" ")
    }
}

impl Program {
    fn look(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    fn ask_to_end(&self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| self.status.is_none()) {
            // A child of ours that has not been waited for has its number still.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A terminal (Ctrl-C, or when it closes) has told the programs too; of another request only we know. They may say
        // goodbye to each other.
        let terminated = SignalKind::terminate().as_raw_value();
        let mut ask_after = match self.stopped.load(Ordering::Relaxed) == terminated {
            true => Duration::ZERO,
            false => TOLD_BY_TERMINAL,
        };
        let begun = Instant::now();
        let still_runs = |running: &mut Vec<Program>| {
            running.iter_mut().any(|program| matches!(program.look(), Ok(None)))
        };
        while self.is_stopped() && still_runs(&mut self.running) && begun.elapsed() < PATIENCE {
            if begun.elapsed() >= ask_after {
                self.running.iter().for_each(Program::ask_to_end);
                ask_after = Duration::MAX; // Once.
            }
            thread::sleep(LOOK_EVERY);
        }
        for program in self.running.iter_mut().filter(|program| program.status.is_none()) {
            // Neither can fail for a child of ours that has not been waited for.
            let _ = program.child.kill();
            let _ = program.child.wait();
        }
        let _ = remove(&self.folder);
    }
}

/// Removes a folder of ours with all in it. Folders arrive with the modes of the source, and from one that is read-only only
/// root removes anything.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    let removed = fs::remove_dir_all(folder);
    if !removed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        return removed;
    }
    tree::walk(folder, &mut |path, meta| match meta.is_dir() {
        true => fs::set_permissions(path, fs::Permissions::from_mode(0o700)),
        false => Ok(()),
    })?;
    fs::remove_dir_all(folder)
}

/// Removes what demos have left that were killed: the folders of this user that are locked by nobody, of processes that
/// are not here. What cannot be removed stays.
fn remove_left(place: &Path) {
    let is_left = |folder: &Path| {
        let name = folder.file_name().and_then(OsStr::to_str);
        let pid = name.and_then(|name| name.strip_prefix(FOLDER)?.parse::<u32>().ok());
        let own = rustix::process::geteuid().as_raw();
        let is_own = fs::symlink_metadata(folder).is_ok_and(|at| at.is_dir() && at.uid() == own);
        is_own && pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
    };
    let all = fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
    for folder in all.filter(|folder| is_left(folder)) {
        if let Some(_lock) = lock(&folder) {
            let _ = remove(&folder);
        }
    }
}

/// `None` when another has it, or the file system has no locks.
fn lock(folder: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(CWD, folder, flags, Mode::empty()).ok()?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(folder)
}

/// From now on none of these ends the process by itself.
fn listen_for_signals(stopped: Arc<AtomicI32>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let inside = runtime.enter();
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    drop(inside);
    thread::spawn(move || {
        let first = runtime.block_on(async {
            tokio::select! {
                _ = interrupted.recv() => SignalKind::interrupt(),
                _ = terminated.recv() => SignalKind::terminate(),
                _ = hung_up.recv() => SignalKind::hangup(),
            }
        });
        stopped.store(first.as_raw_value(), Ordering::Relaxed);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{FOLDER, Program, Stage, lock, remove, remove_left};
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::{Path, PathBuf};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn programs_and_folder_are_gone_afterwards() {
        let mut stage = Stage::set(&std::env::temp_dir(), PathBuf::from("sh")).unwrap();
        let folder = stage.path("");
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        let good = stage.command(["-c", "exit 0"]);
        stage.start("good", good).unwrap();
        let bad = stage.command(["-c", "echo no such luck; exit 3"]);
        stage.start("bad", bad).unwrap();
        let slow = stage.command(["-c", "echo $$ >\"$DOWNPOUR_HOME.pid\"; exec sleep 600"]);
        stage.start("slow", slow).unwrap();
        let is_told = |pid: &Path| fs::read_to_string(pid).is_ok_and(|pid| pid.ends_with('\n'));
        let have_ended =
            |quick: &mut [Program]| quick.iter_mut().all(|one| one.look().unwrap().is_some());
        while !(is_told(&stage.path("home.pid")) && have_ended(&mut stage.running[..2])) {
            thread::sleep(Duration::from_millis(5));
        }
        let failed = stage.wait_for_all(Duration::from_millis(300)).unwrap();
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert!(failed[0].contains("no such luck"), "{failed:?}");
        let pid = std::fs::read_to_string(stage.path("home.pid")).unwrap();
        drop(stage);
        assert!(!folder.exists());
        assert!(!PathBuf::from(format!("/proc/{}", pid.trim())).exists());
    }

    #[test]
    fn where_a_relative_place_is_the_programs_know() {
        let place = tempfile::tempdir().unwrap();
        let here = std::env::current_dir().unwrap();
        let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let relative = up.join(place.path().canonicalize().unwrap().strip_prefix("/").unwrap());
        let stage = Stage::set(&relative, PathBuf::from("sh")).unwrap();
        let command = stage.command([""; 0]);
        let home = command.get_envs().find(|(name, _)| *name == crate::home::VARIABLE);
        assert!(Path::new(home.unwrap().1.unwrap()).is_absolute(), "{command:?}");
    }

    #[test]
    fn what_arrived_read_only_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        set(place.path(), 0o777).unwrap();
        let folder = place.path().join("demo");
        let removed = || {
            if rustix::process::geteuid().is_root() {
                // Root removes anything: another user for this thread alone.
                rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65_534)).unwrap();
            }
            fs::create_dir_all(folder.join("closed/empty")).unwrap();
            fs::write(folder.join("closed/file"), "x").unwrap();
            set(&folder.join("closed/empty"), 0).unwrap();
            set(&folder.join("closed"), 0o555).unwrap();
            remove(&folder)
        };
        thread::scope(|scope| scope.spawn(removed).join().unwrap()).unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn what_a_killed_demo_has_left_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        // Above any process id.
        let killed = (1 << 22) + 1;
        let here = std::process::id();
        let names =
            [killed.to_string(), (killed + 1).to_string(), here.to_string(), "x".to_owned()];
        let [left, locked, running, other] = names.map(|name| {
            let folder = place.path().join(format!("{FOLDER}{name}"));
            fs::create_dir_all(folder.join("receiver-1")).unwrap();
            folder
        });
        let _lock = lock(&locked).expect("a lock");
        remove_left(place.path());
        assert!(!left.exists());
        assert!(locked.exists() && running.exists() && other.exists());
    }
}
