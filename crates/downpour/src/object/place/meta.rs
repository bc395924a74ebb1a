//! Owner, mode, extended attributes and times, in the order in which none undoes another.
//!
//! Owner first (it clears setuid and capabilities), then mode, then attributes, then times. Where the sender tells an ACL
//! the mode lets in nobody whom that does not, until the ACL is set and opens it; if it cannot be, the mode stays so.
//! Attributes are made equal: what the sender has taken away, or a folder here hands down, goes. What the user who runs the
//! receiver may not do is skipped: ownership without root in silence, as everybody expects; anything else with a notice, of
//! which there is one for all attributes that need root.

use super::beneath::open_in;
use crate::object::scan::{explain, mtime};
use crate::object::tree::{Entry, Kind, Mtime};
use crate::object::xattr;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

const SETUID_SETGID: u16 = 0o6000;
const STICKY: u16 = 0o1000;

/// Which metadata are applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetaPolicy {
    /// Whether this process is root.
    pub(crate) root: bool,
    /// Owner and group; needs root.
    pub(crate) owner: bool,
    /// Setuid and setgid bits of files; needs root.
    pub(crate) setuid: bool,
    /// Extended attributes, which the tree must tell.
    pub(crate) xattrs: bool,
    /// Whether `trusted.*` that the tree does not tell of an entry go from it.
    pub(crate) trusted_told: bool,
}

impl MetaPolicy {
    /// The mode that an entry gets here, before its ACL.
    pub(crate) fn mode(&self, entry: &Entry<'_>) -> u16 {
        let mode = xattr::closed_mode_among(entry.xattrs, entry.meta.mode);
        match entry.kind {
            _ if self.root && self.setuid => mode,
            Kind::Folder => mode & !0o4000,
            _ => mode & !(SETUID_SETGID | STICKY),
        }
    }

    /// Applies everything to an open file or folder. Returns what could not be done.
    pub(crate) fn apply(&self, fd: BorrowedFd<'_>, entry: &Entry<'_>) -> Vec<String> {
        let mut notices = Vec::new();
        let mut note = |what: &str, result: Result<(), Errno>| {
            if let Err(error) = result {
                notices.push(format!("{what} not set: {}", explain(error)));
            }
        };
        let now = rustix::fs::fstat(fd).ok();
        let owner = (entry.meta.uid, entry.meta.gid);
        if self.root && self.owner && now.is_none_or(|now| (now.st_uid, now.st_gid) != owner) {
            let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
            note("owner", rustix::fs::fchown(fd, Some(uid), Some(gid)));
        }
        // Again after a change of owner, which may have cleared bits of the mode.
        let now = rustix::fs::fstat(fd).ok();
        let mode = self.mode(entry);
        if now.is_none_or(|now| (now.st_mode & 0o7777) as u16 != mode) {
            note("mode", rustix::fs::fchmod(fd, Mode::from_raw_mode(mode.into())));
        }
        let of_xattrs = match self.xattrs {
            true => xattr::make_equal(fd, entry.xattrs, self.root, self.trusted_told),
            false => None,
        };
        if now.is_none_or(|now| mtime(&now) != entry.meta.mtime) || !entry.xattrs.is_empty() {
            note("time", rustix::fs::futimens(fd, &times(entry.meta.mtime)));
        }
        notices.extend(of_xattrs);
        notices
    }

    /// Owner, attributes and time of a symbolic link, which cannot be opened.
    pub(crate) fn apply_to_link(
        &self,
        folder: impl AsFd,
        name: &[u8],
        entry: &Entry<'_>,
    ) -> Vec<String> {
        let mut notices = Vec::new();
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if self.root && self.owner {
            let (uid, gid) = (Uid::from_raw(entry.meta.uid), Gid::from_raw(entry.meta.gid));
            if let Err(error) =
                rustix::fs::chownat(folder.as_fd(), name, Some(uid), Some(gid), flags)
            {
                notices.push(format!("owner not set: {}", explain(error)));
            }
        }
        // A link has such attributes only as root may set.
        if self.xattrs && self.root {
            match open_in(folder.as_fd(), name, OFlags::PATH, Mode::empty()) {
                Ok(link) => {
                    let told = self.trusted_told;
                    notices.extend(xattr::make_equal(link.as_fd(), entry.xattrs, true, told));
                }
                Err(error) => notices.push(format!("attributes not set: {}", explain(error))),
            }
        }
        let times = times(entry.meta.mtime);
        if let Err(error) = rustix::fs::utimensat(folder.as_fd(), name, &times, flags) {
            notices.push(format!("time not set: {}", explain(error)));
        }
        notices
    }
}

fn times(mtime: Mtime) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
    }
}
