//! What a lab leaves on the machine while it runs, and how it is taken away again.
//!
//! Everything carries one name, `downpour-lab` and the process id: network namespaces (`downpour-lab123-w`), a folder on
//! tmpfs (`/dev/shm/downpour-lab123`), a control group (the same, where the machine has cgroup v2) in which all programs run.
//!
//! 1. A guard process, in a session of its own, holds the other end of a pipe. When the lab ends, in whatever
//!    way, the pipe closes and the guard removes what is there.
//! 2. `lab clean` removes what neither did, of labs that are no more: one that is at work holds a lock on its folder, whatever its
//!    program is called.

use crate::{at, say, shell};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Tmpfs, so that no disk decides.
const SCRATCH: &str = "/dev/shm";
/// What all names begin with: nobody else's do.
const PREFIX: &str = "downpour-lab";
/// What the kernel calls a lab's process.
const COMM: &str = "lab";
/// Tries to remove a control group whose last process is on its way out.
const REMOVE_TRIES: u32 = 100;

/// A running lab's name, with its guard.
#[derive(Debug)]
pub(crate) struct Footprint {
    name: String,
    guard: Child,
    /// Its folder, locked for as long as this process lives.
    _lock: Option<File>,
}

impl Footprint {
    /// Of this process. Anything made under the name is removed when this is dropped or the process ends.
    pub(crate) fn new() -> io::Result<Self> {
        let name = format!("{PREFIX}{}", std::process::id());
        let this = std::env::current_exe()?;
        // The guard outlives what ends the lab, also where all processes of that name are told to end.
        let ignore = "trap '' HUP INT TERM; exec \"$0\" guard \"$1\"";
        let mut guard = Command::new("setsid")
            .args(["sh", "-c", ignore])
            .arg(this)
            .arg(&name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut ready = String::new();
        BufReader::new(guard.stdout.take().expect("piped")).read_line(&mut ready)?;
        let folder = scratch(&name);
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        let lock = File::open(&folder).map_err(at(&folder))?;
        lock.try_lock().map_err(at(&folder))?;
        if let Some(group) = group(&name) {
            for role in ["sender", "receivers", "network"] {
                // Where groups cannot be made, CPU time stays unknown.
                let _ = fs::create_dir_all(group.join(role));
            }
        }
        Ok(Self { name, guard, _lock: Some(lock) })
    }

    /// One under which nothing is there: what a test puts into its folder it removes.
    #[cfg(test)]
    pub(crate) fn of_a_test() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let guard = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { name: format!("{PREFIX}-test-{}-{number}", std::process::id()), guard, _lock: None }
    }

    /// What the names of its namespaces begin with.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its folder on tmpfs.
    pub(crate) fn scratch(&self) -> PathBuf {
        scratch(&self.name)
    }

    /// Kills all programs under test that still run, also those that nobody waits for.
    pub(crate) fn kill_programs(&self) {
        for group in ["sender", "receivers"].iter().filter_map(|role| self.group(role)) {
            // Not there on kernels before 5.14; then only what was started directly is killed.
            let _ = fs::write(group.join("cgroup.kill"), "1");
        }
    }

    /// The control group of one role, where there are control groups.
    pub(crate) fn group(&self, role: &str) -> Option<PathBuf> {
        group(&self.name).map(|group| group.join(role)).filter(|group| group.is_dir())
    }
}

impl Drop for Footprint {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        // The guard cannot be waited for only if it is gone, and then `lab clean` does its work.
        let _ = self.guard.wait();
    }
}

/// What the guard process does: says that it is there, waits for the end of the lab, removes.
pub(crate) fn guard(name: &str) -> io::Result<()> {
    println!("ready");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    remove(name);
    Ok(())
}

/// Removes what labs left that are no more, and says which; an error where some of it is still there.
pub(crate) fn clean() -> io::Result<()> {
    let names = left();
    names.iter().for_each(|name| remove(name));
    let still_there = left();
    let (stayed, gone): (Vec<String>, _) =
        names.into_iter().partition(|name| still_there.contains(name));
    gone.iter().for_each(|name| say(format!("removed {name}")));
    match &stayed[..] {
        [] => Ok(()),
        _ => Err(io::Error::other(format!(
            "{} could not be removed: run `lab clean` as root, with nothing mounted there",
            stayed.join(", ")
        ))),
    }
}

/// What labs left that are no more.
fn left() -> Vec<String> {
    let mut names: Vec<String> = namespaces().iter().filter_map(|name| owner(name)).collect();
    let folders = [Some(PathBuf::from(SCRATCH)), group_root()];
    for folder in folders.into_iter().flatten() {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        names.extend(entries.filter_map(|entry| owner(&entry.file_name().to_string_lossy())));
    }
    names.sort();
    names.dedup();
    names.retain(|name| !is_running(name));
    names
}

/// The lab that made this, by its name; `None` when no lab did.
fn owner(name: &str) -> Option<String> {
    let digits = name.strip_prefix(PREFIX)?.split('-').next()?;
    let is_pid = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_pid.then(|| format!("{PREFIX}{digits}"))
}

fn is_running(name: &str) -> bool {
    let pid = name.trim_start_matches(PREFIX);
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let is_held = File::open(scratch(name)).is_ok_and(|folder| folder.try_lock().is_err());
    is_held || comm.trim_end() == COMM
}

/// Whatever is not there, or cannot be removed, is passed over: of a guard there is nobody to tell.
fn remove(name: &str) {
    if let Some(group) = group(name) {
        remove_group(&group);
    }
    let ours = |namespace: &String| owner(namespace).as_deref() == Some(name);
    for namespace in namespaces().into_iter().filter(ours) {
        let pids = shell::run("ip", &["netns", "pids", &namespace]).unwrap_or_default();
        for pid in pids.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = shell::run("ip", &["netns", "del", &namespace]);
    }
    let _ = fs::remove_dir_all(scratch(name));
}

/// Kills all that runs in a group, and removes it.
fn remove_group(group: &Path) {
    let _ = fs::write(group.join("cgroup.kill"), "1");
    for _ in 0..REMOVE_TRIES {
        for entry in fs::read_dir(group).into_iter().flatten().flatten() {
            let _ = fs::remove_dir(entry.path());
        }
        if fs::remove_dir(group).is_ok() || !group.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn namespaces() -> Vec<String> {
    let list = shell::run("ip", &["netns", "list"]).unwrap_or_default();
    list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn scratch(name: &str) -> PathBuf {
    Path::new(SCRATCH).join(name)
}

fn group(name: &str) -> Option<PathBuf> {
    group_root().map(|root| root.join(name))
}

/// Where cgroup v2 is mounted.
fn group_root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mut mounts = mounts.lines().map(|line| line.split_whitespace());
    mounts.find_map(|mut words| {
        let place = words.nth(1)?;
        (words.next() == Some("cgroup2")).then(|| PathBuf::from(place))
    })
}

#[cfg(test)]
mod tests {
    use super::owner;

    #[test]
    fn only_names_of_labs_are_ours_to_remove() {
        assert_eq!(owner("downpour-lab123-w").as_deref(), Some("downpour-lab123"));
        assert_eq!(owner("downpour-lab123").as_deref(), Some("downpour-lab123"));
        for name in [
            "lab1",
            "lab1-router",
            "downpour-lab",
            "downpour-lab-1",
            "downpour-label5",
            "downpour-lab12x",
        ] {
            assert_eq!(owner(name), None, "{name}");
        }
    }
}
