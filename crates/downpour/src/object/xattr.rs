//! Extended attributes, ACLs and file capabilities: read at the sender, applied at the receiver.
//!
//! Taken are `user.*`, `trusted.*` (root sees them), `security.capability` and the POSIX ACLs. Labels
//! of security modules (SELinux, IMA, …) belong to the machine and stay there.

use super::limits::{XATTRS_LEN_MAX, XATTRS_MAX};
use super::tree::Xattr;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::path::Path;

const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";

/// Largest value and list of names that Linux gives.
const VALUE_LEN_MAX: usize = 64 << 10;

fn is_taken(name: &[u8]) -> bool {
    name.starts_with(b"user.") || is_privileged(name) || name == ACL_ACCESS || name == ACL_DEFAULT
}

/// Whether only root may set it.
pub(crate) fn is_privileged(name: &[u8]) -> bool {
    name.starts_with(b"trusted.") || name == CAPABILITY
}

/// The attributes of `path` itself (a link is not followed), sorted by name.
pub(crate) fn read(path: &Path) -> Result<Vec<Xattr>, std::io::Error> {
    let mut list = vec![0u8; VALUE_LEN_MAX];
    let len = match rustix::fs::llistxattr(path, &mut list[..]) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut out = Vec::new();
    let mut total = 0;
    let mut value = Vec::new();
    for name in list[..len].split(|byte| *byte == 0).filter(|name| is_taken(name)) {
        value.resize(VALUE_LEN_MAX, 0);
        let len = match rustix::fs::lgetxattr(path, name, &mut value[..]) {
            Ok(len) => len,
            Err(Errno::NODATA | Errno::NOTSUP) => continue,
            Err(error) => return Err(error.into()),
        };
        total += name.len() + len;
        if total > XATTRS_LEN_MAX || out.len() == XATTRS_MAX {
            return Err(std::io::Error::other("they are too many or too long"));
        }
        out.push(Xattr { name: name.to_vec(), value: value[..len].to_vec() });
    }
    out.sort_unstable();
    Ok(out)
}

/// Sets one attribute.
pub(crate) fn apply(fd: BorrowedFd<'_>, xattr: &Xattr) -> Result<(), Errno> {
    if !is_taken(&xattr.name) {
        return Err(Errno::NOTSUP);
    }
    rustix::fs::fsetxattr(fd, &xattr.name[..], &xattr.value, XattrFlags::empty())
}
