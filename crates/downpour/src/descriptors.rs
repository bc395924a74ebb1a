//! How many files and connections the system lets this process have open at once, how large files may become, and whether a
//! standard stream is one that can be used.
//!
//! The usual soft limit of 1024 is a relic of `select`, which nothing here uses: it is raised to the hard
//! limit at the start. What is left of it after the caches of open files is for receivers.

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::os::fd::AsFd;
use tokio::signal::unix::{SignalKind, signal};

/// Files that a session has open besides connections: caches, sockets, what the runtime needs.
const FILES_OF_OURS: usize = 448;
/// Connections that a receiver has at most, but for words: requests, events, pulls.
const CONNECTIONS_OF_ONE: usize = 6;
/// More connections than this cost more memory than a sender should take.
const CONNECTIONS_MAX: usize = 8192;
/// As many as fit under any limit; below it files take turns.
const CONNECTIONS_MIN: usize = 64;
/// With fewer files connections are taken in turns, and none gets on.
const FILES_MIN: usize = 64;
/// Fewer connections than this are worth a word.
const CONNECTIONS_FEW: usize = 1024;

const _: () = assert!(
    crate::object::limits::OPEN_FILES_MAX * 2 + crate::object::limits::OPEN_FOLDERS_MAX + 64
        <= FILES_OF_OURS
);

/// How many connections a sender may take, and what to tell the operator when that is few.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Connections at once.
    pub connections: usize,
    /// What to tell.
    pub notice: Option<String>,
}

/// Raises the limit on open files as far as the system allows; what it is then.
pub fn raise() -> usize {
    let now = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: now.maximum, maximum: now.maximum };
    // Refused at worst: then what there is has to do.
    let granted = if setrlimit(Resource::Nofile, wanted).is_ok() { wanted } else { now };
    // No limit at all is said by none.
    granted.current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// A file that would outgrow the limit on sizes (`ulimit -f`) is an error from now on, as a full disk is: by itself the
/// signal ends the process without a word. Called on a runtime.
pub fn outlive_large_files() {
    // Its handler stays when this is dropped. Where it is refused, all is as it was.
    let _ = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()));
}

/// Of /dev/null.
const NULL_DEVICE: (u32, u32) = (1, 3);

/// What keeps a standard stream from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It was closed when the program was started; or it is /dev/null for both ways, which cannot be told from that.
    Closed,
    /// It is a folder.
    Folder,
}

/// Looks at a standard stream that data come from or go to.
pub fn unusable(stream: impl AsFd) -> Option<Unusable> {
    let (Ok(stat), Ok(flags)) = (fstat(&stream), fcntl_getfl(&stream)) else {
        return Some(Unusable::Closed);
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Some(Unusable::Folder),
        // Put in its place by the runtime, before anything of ours has run: open for both ways, as by no shell, but by
        // daemon(3) and some programs that start others.
        FileType::CharacterDevice
            if (major(stat.st_rdev), minor(stat.st_rdev)) == NULL_DEVICE
                && flags & OFlags::RWMODE == OFlags::RDWR =>
        {
            Some(Unusable::Closed)
        }
        _ => None,
    }
}

/// What `files` open files suffice for; `Err` when they are too few to begin with.
pub fn room(files: usize) -> Result<Room, usize> {
    if files < FILES_MIN {
        return Err(files);
    }
    let left = files.saturating_sub(FILES_OF_OURS);
    let connections = left.clamp(CONNECTIONS_MIN, CONNECTIONS_MAX);
    let notice = (connections < CONNECTIONS_FEW).then(|| {
        format!(
            "this system lets the program open only {files} files, which suffice for about {} \
             receivers at once: raise the limit before the start (ulimit -n 65536)",
            connections / CONNECTIONS_OF_ONE
        )
    });
    Ok(Room { connections, notice })
}

#[cfg(test)]
mod tests {
    use super::{CONNECTIONS_MAX, CONNECTIONS_MIN, Unusable, raise, room, unusable};
    use rustix::process::{Resource, getrlimit};
    use std::fs::File;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let files = raise();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(limit.current.map_or(usize::MAX, |limit| limit as usize), files);
    }

    #[test]
    fn a_stream_that_was_closed_is_told_from_one_to_nowhere() {
        let null = |read, write| File::options().read(read).write(write).open("/dev/null").unwrap();
        assert_eq!(unusable(null(true, true)), Some(Unusable::Closed));
        assert_eq!(unusable(null(true, false)), None);
        assert_eq!(unusable(null(false, true)), None);
        assert_eq!(unusable(File::open("/").unwrap()), Some(Unusable::Folder));
        assert_eq!(unusable(std::io::pipe().unwrap().0), None);
    }

    #[test]
    fn a_small_limit_is_told_with_what_it_suffices_for() {
        let small = room(1024).expect("enough");
        let text = small.notice.expect("a notice");
        assert!(text.contains("1024 files") && text.contains("about 96 receivers"), "{text}");
        assert!(text.contains("ulimit -n"), "{text}");
        assert_eq!(small.connections, 576);
        assert_eq!(room(63), Err(63));
        assert_eq!(room(64).map(|room| room.connections), Ok(CONNECTIONS_MIN));
        let large = room(1 << 20).expect("enough");
        assert_eq!((large.connections, large.notice), (CONNECTIONS_MAX, None));
    }
}
