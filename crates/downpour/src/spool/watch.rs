//! What the kernel tells of changes (inotify), as hints where to look. Nothing is believed unseen: a hint only says that a
//! path, or a whole folder, is worth a look now instead of at the next rescan.
//!
//! Each folder has a watch of its own. The kernel has a limit of watches and of events that wait; beyond the first a folder is left
//! to rescans, and after the second everything is looked at again.

use super::root::{Root, join};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// Bytes of events read at a time.
const EVENT_BYTES: usize = 64 << 10;

/// Where to look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hints {
    /// These paths.
    pub(super) paths: BTreeSet<String>,
    /// Everything: events were lost.
    pub(super) all: bool,
}

/// The watches.
pub(super) struct Watch {
    /// None while the kernel gives none.
    fd: Option<OwnedFd>,
    folders: HashMap<i32, String>,
    /// Why some folders are not watched, as far as is known since the last look at everything began.
    pub(super) trouble: Option<String>,
    /// How often events were lost.
    pub(super) overflows: u64,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { fd: None, folders: HashMap::new(), trouble: None, overflows: 0 }
    }

    /// A look at everything begins, which tells again what cannot be watched.
    pub(super) fn begin(&mut self) {
        self.trouble = None;
        if self.fd.is_none() {
            match inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC) {
                Ok(fd) => self.fd = Some(fd),
                Err(error) => self.failed(error),
            }
        }
    }

    /// Watches a folder, also if it is watched already.
    pub(super) fn add(&mut self, root: &Root, rel: &str) {
        let flags = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW
            | WatchFlags::EXCL_UNLINK;
        let Some(fd) = &self.fd else { return };
        match inotify::add_watch(fd, root.full(rel), flags) {
            Ok(watch) => {
                self.folders.insert(watch, rel.to_owned());
            }
            // It went away again.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => self.failed(error),
        }
    }

    /// One reason is told: the one with a remedy, or else the first.
    fn failed(&mut self, error: Errno) {
        let (folders, remedy) = match error {
            Errno::NOSPC => {
                ("some folders", ": raise it with `sysctl fs.inotify.max_user_watches=1048576`")
            }
            Errno::MFILE => (
                "all folders",
                ": raise it with `sysctl fs.inotify.max_user_instances=1024`, or the daemon's \
                 limit of open files (LimitNOFILE)",
            ),
            _ => ("some folders", ""),
        };
        if !remedy.is_empty() || self.trouble.is_none() {
            self.trouble = Some(format!("{folders} are seen by rescans only: {error}{remedy}"));
        }
    }

    /// Folders that are watched.
    pub(super) fn len(&self) -> usize {
        self.folders.len()
    }

    /// All hints that wait.
    pub(super) fn take(&mut self) -> Hints {
        let mut hints = Hints::default();
        let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
        let Some(fd) = &self.fd else { return hints };
        let mut events = inotify::Reader::new(fd, &mut buffer);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => return hints,
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                hints.all = true;
                self.overflows += 1;
                continue;
            }
            if event.events().contains(ReadFlags::IGNORED) {
                self.folders.remove(&event.wd());
                continue;
            }
            let Some(folder) = self.folders.get(&event.wd()) else { continue };
            // A name that is not UTF-8 is met by the next rescan, which says so.
            if let Some(Ok(name)) = event.file_name().map(std::ffi::CStr::to_str) {
                hints.paths.insert(join(folder, name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::Root;
    use super::Watch;
    use rustix::io::Errno;

    #[test]
    fn what_the_kernel_did_not_give_is_asked_for_at_each_look_at_everything() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path(), true).unwrap();
        let mut watch = Watch::new();
        watch.failed(Errno::MFILE);
        watch.add(&root, "");
        assert_eq!((watch.len(), watch.take()), (0, super::Hints::default()));
        assert!(watch.trouble.as_ref().unwrap().contains("all folders"), "{:?}", watch.trouble);
        watch.begin();
        watch.add(&root, "");
        assert_eq!((watch.len(), watch.trouble), (1, None));
    }

    #[test]
    fn of_several_reasons_the_one_with_a_remedy_is_told() {
        let mut watch = Watch::new();
        for (error, told) in [
            (Errno::ACCESS, "denied"),
            (Errno::NAMETOOLONG, "denied"),
            (Errno::NOSPC, "max_user_watches"),
            (Errno::ACCESS, "max_user_watches"),
            (Errno::MFILE, "max_user_instances"),
        ] {
            watch.failed(error);
            let trouble = watch.trouble.as_ref().unwrap();
            assert!(trouble.contains(told), "{trouble}");
        }
    }
}
