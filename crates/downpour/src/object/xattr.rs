//! Extended attributes, ACLs and file capabilities: read at the sender, made equal at the receiver.
//!
//! Taken are `user.*`, `trusted.*` (root sees them), `security.capability` and the POSIX ACLs, but not the second names
//! that XFS shows root of those. Labels of security modules (SELinux, IMA, …) belong to the machine and stay there.
//! Where an ACL does not arrive, the mode is closed to whom it does not let in.

use super::limits::{XATTRS_LEN_MAX, XATTRS_MAX};
use super::scan::explain;
use super::tree::Xattr;
use rustix::fs::{Mode, XattrFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::Path;

const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";
const TRUSTED: &[u8] = b"trusted.";
const ACL_OF_XFS: &[u8] = b"trusted.SGI_ACL_";

/// Kinds of entries in an ACL, as the kernel numbers them.
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;

/// Largest value and list of names that Linux gives.
const VALUE_LEN_MAX: usize = 64 << 10;

fn is_taken(name: &[u8]) -> bool {
    let is_ours = name.starts_with(b"user.")
        || is_privileged(name)
        || name == ACL_ACCESS
        || name == ACL_DEFAULT;
    is_ours && !name.starts_with(ACL_OF_XFS)
}

/// Whether only root may set it.
pub(crate) fn is_privileged(name: &[u8]) -> bool {
    is_trusted(name) || name == CAPABILITY
}

/// Whether only root sees it.
pub(crate) fn is_trusted(name: &[u8]) -> bool {
    name.starts_with(TRUSTED)
}

/// The attributes of `path` itself (a link is not followed), sorted by name.
pub(crate) fn read(path: &Path) -> Result<Vec<Xattr>, std::io::Error> {
    let mut out = Vec::new();
    let mut total = 0;
    let mut value = Vec::new();
    for name in names(|list| rustix::fs::llistxattr(path, list))? {
        value.resize(VALUE_LEN_MAX, 0);
        let len = match rustix::fs::lgetxattr(path, &name[..], &mut value[..]) {
            Ok(len) => len,
            Err(Errno::NODATA | Errno::NOTSUP) => continue,
            Err(error) => return Err(error.into()),
        };
        total += name.len() + len;
        if total > XATTRS_LEN_MAX || out.len() == XATTRS_MAX {
            return Err(std::io::Error::other("they are too many or too long"));
        }
        out.push(Xattr { name, value: value[..len].to_vec() });
    }
    out.sort_unstable();
    Ok(out)
}

/// What a mode becomes where the ACL of `path`, if it has one, is not told.
pub(crate) fn closed_mode_of(path: &Path, mode: u16) -> u16 {
    if mode & 0o077 == 0 {
        return mode;
    }
    let len = match rustix::fs::lgetxattr(path, ACL_ACCESS, &mut [0; 0][..]) {
        Err(Errno::NODATA | Errno::NOTSUP) => return mode,
        len => len.unwrap_or_default(),
    };
    let mut list = vec![0; len];
    // One that cannot be read is as one that nobody understands.
    let len = rustix::fs::lgetxattr(path, ACL_ACCESS, &mut list[..]).unwrap_or_default();
    closed_mode(mode, &list[..len])
}

/// What a mode becomes among these attributes while its ACL, if there is one, is not set.
pub(crate) fn closed_mode_among(xattrs: &[Xattr], mode: u16) -> u16 {
    let list = xattrs.iter().find(|xattr| xattr.name == ACL_ACCESS);
    list.map_or(mode, |list| closed_mode(mode, &list.value))
}

/// The mode for a file without its ACL: nobody may do what the ACL does not let them. Beside one the bits of the group are
/// only its mask; and who is named in it, for less than the group or others, is one of those without it.
fn closed_mode(mode: u16, list: &[u8]) -> u16 {
    let word = |at: &[u8], i: usize| u16::from_le_bytes([at[i], at[i + 1]]);
    let entries = match list.split_first_chunk() {
        Some((&[2, 0, 0, 0], entries)) if entries.len() % 8 == 0 => entries.chunks_exact(8),
        _ => return mode & !0o077,
    };
    let entries = || entries.clone().map(|entry| (word(entry, 0), word(entry, 2) & 7));
    let mask = entries().find(|(tag, _)| *tag == MASK).map_or(7, |(_, rights)| rights);
    let all_of = |tags: &[u16]| {
        let of_these = entries().filter(|(tag, _)| tags.contains(tag));
        of_these.fold(7, |all, (_, rights)| all & rights & mask)
    };
    let group = all_of(&[GROUP_OBJ, USER]) << 3;
    mode & (0o7700 | group | all_of(&[USER, GROUP]))
}

/// The names of those that are taken.
fn names(list_all: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut list = vec![0u8; VALUE_LEN_MAX];
    let len = match list_all(&mut list) {
        Err(Errno::NOTSUP) => 0,
        len => len?,
    };
    let taken = list[..len].split(|byte| *byte == 0).filter(|name| is_taken(name));
    Ok(taken.map(<[u8]>::to_vec).collect())
}

/// Gives a file, folder or link these attributes, and takes all others from it; of `trusted.*` only where those are
/// `trusted_told`. Who is not root leaves alone what only root may set. Returns what could not be done, as one notice.
pub(crate) fn make_equal(
    fd: BorrowedFd<'_>,
    xattrs: &[Xattr],
    root: bool,
    trusted_told: bool,
) -> Option<String> {
    // By path, as a link is open as a place only; this one leads to what is open and no further.
    let path = &format!("/proc/self/fd/{}", fd.as_raw_fd());
    let (mut first, mut more) = (None, 0);
    let mut note = |name: &[u8], what: &str, result: Result<(), Errno>| match result {
        Ok(()) => {}
        Err(_) if first.is_some() => more += 1,
        Err(error) => {
            let name = name.escape_ascii();
            first = Some(format!("attribute {name} not {what}: {}", explain(error)));
        }
    };
    let ours = |name: &[u8]| root || !is_privileged(name);
    match names(|list| rustix::fs::listxattr(path, list)) {
        Ok(there) => {
            let told = |name: &[u8]| xattrs.iter().any(|xattr| xattr.name == name);
            let goes = |name: &[u8]| !told(name) && (trusted_told || !is_trusted(name));
            for name in there.iter().filter(|name| ours(name) && goes(name)) {
                note(name, "removed", change(fd, || remove(path, name)));
            }
        }
        Err(error) => note(b"*", "removed", Err(error)),
    }
    for Xattr { name, value } in xattrs.iter().filter(|xattr| ours(&xattr.name)) {
        let set = match is_taken(name) {
            true => {
                change(fd, || rustix::fs::setxattr(path, &name[..], value, XattrFlags::empty()))
            }
            false => Err(Errno::NOTSUP),
        };
        note(name, "set", set);
    }
    match more {
        0 => first,
        _ => first.map(|first| format!("{first} (and {more} more attributes)")),
    }
}

/// Changes an attribute. The kernel lets the owner of a file change `user.*` only while its mode lets the owner write.
fn change(fd: BorrowedFd<'_>, once: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    let changed = once();
    if changed != Err(Errno::ACCESS) {
        return changed;
    }
    let mode = Mode::from_raw_mode(rustix::fs::fstat(fd)?.st_mode & 0o7777);
    if mode.contains(Mode::WUSR) || rustix::fs::fchmod(fd, mode | Mode::WUSR).is_err() {
        return changed;
    }
    let changed = once();
    rustix::fs::fchmod(fd, mode).and(changed)
}

/// Removes an attribute; another program may have been faster.
fn remove(path: &str, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::removexattr(path, name) {
        Err(Errno::NODATA) => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::{Xattr, closed_mode, is_taken, make_equal, remove};
    use crate::skipped::not_here;
    use rustix::fs::{Mode, OFlags, Uid, XattrFlags};
    use rustix::io::Errno;
    use std::os::fd::AsFd as _;
    use std::thread;

    #[test]
    fn what_is_gone_already_is_removed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let removed = remove(file.path().to_str().unwrap(), b"user.gone");
        assert!(matches!(removed, Ok(()) | Err(Errno::NOTSUP)), "{removed:?}");
    }

    #[test]
    fn who_owns_what_is_read_only_gives_it_attributes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "x").unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        for (name, mode) in [("file", 0o444), ("folder", 0o555)] {
            let path = dir.path().join(name);
            if rustix::fs::setxattr(&path, "user.old", b"1", XattrFlags::empty()).is_err() {
                let name = "who_owns_what_is_read_only_gives_it_attributes";
                return not_here(name, "no attributes here");
            }
            let fd = rustix::fs::open(&path, OFlags::RDONLY, Mode::empty()).unwrap();
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode)).unwrap();
            let user = Uid::from_raw(65_534);
            let root = rustix::process::geteuid().is_root();
            if root {
                rustix::fs::fchown(&fd, Some(user), None).unwrap();
            }
            let told = Xattr { name: b"user.new".to_vec(), value: b"2".to_vec() };
            // Another user for this thread alone.
            let notice = thread::scope(|scope| {
                let of_user = || {
                    if root {
                        rustix::thread::set_thread_uid(user).unwrap();
                    }
                    make_equal(fd.as_fd(), &[told], false, false)
                };
                scope.spawn(of_user).join().unwrap()
            });
            assert_eq!(notice, None, "{name}");
            let mut list = [0; 64];
            let len = rustix::fs::flistxattr(&fd, &mut list[..]).unwrap();
            assert_eq!(&list[..len], b"user.new\0", "{name}");
            assert_eq!(rustix::fs::fstat(&fd).unwrap().st_mode & 0o7777, mode, "{name}");
        }
    }

    #[test]
    fn what_is_an_acl_of_xfs_is_taken_as_an_acl_alone() {
        for name in ["trusted.SGI_ACL_FILE", "trusted.SGI_ACL_DEFAULT"] {
            assert!(!is_taken(name.as_bytes()), "{name}");
        }
        assert!(is_taken(b"trusted.other") && is_taken(b"system.posix_acl_default"));
    }

    #[test]
    fn without_an_acl_nobody_may_more_than_with_it() {
        let entry = |(tag, rights): &(u8, u8)| [*tag, 0, *rights, 0, 9, 0, 0, 0];
        for (mode, acl, closed) in [
            // Owner, a user or a group that is named, the group, the mask, others.
            (0o660, [(1, 6), (2, 6), (4, 0), (16, 6), (32, 0)], 0o600),
            (0o4674, [(1, 6), (8, 7), (4, 6), (16, 7), (32, 4)], 0o4664),
            (0o644, [(1, 6), (2, 7), (4, 6), (16, 4), (32, 4)], 0o644),
            // Who is named there may be in the group, and is one of the others.
            (0o664, [(1, 6), (2, 0), (4, 6), (16, 6), (32, 4)], 0o600),
            (0o664, [(1, 6), (8, 0), (4, 6), (16, 6), (32, 4)], 0o660),
        ] {
            let list = [vec![2, 0, 0, 0], acl.iter().flat_map(entry).collect()].concat();
            assert_eq!(closed_mode(mode, &list), closed, "{mode:o} {acl:?}");
            for unclear in [&list[..list.len() - 1], &list[1..], &[]] {
                assert_eq!(closed_mode(mode, unclear), mode & 0o7700);
            }
        }
    }
}
