//! A file to a place on another file system, where no rename reaches: a copy grows beside the place, and is renamed to it.
//!
//! 1. The copy has no name while it grows, so that nothing is left of it when this process is killed; where the file system
//!    has no such files it has one from the beginning.
//! 2. It gets its metadata, and is synced.
//! 3. It gets a name beside its place, and then its place.
//!
//! Others may do the same in that folder: sessions in other lanes, other daemons, other machines. So a name beside a place
//! is only ever made anew, and what has one already is not touched. Whether the place itself is on the disk is the
//! caller's to see to.

use super::beneath::open_in;
use super::claim::PRIVATE_FILE;
use super::rename;
use crate::object::disk::{read_full_at, write_all_at};
use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// A copy that grows: the file, and its name, if it has one.
type New = (OwnedFd, Option<Vec<u8>>);

/// Copies a file that has data in these ranges, as far as it reaches, to a place. `finish` makes the copy what it is to be,
/// before it has its place. Fails with EXIST when something is there that must not be replaced.
pub(crate) fn copy_across<T>(
    from: (BorrowedFd<'_>, impl Iterator<Item = Range<u64>>),
    to: (&OwnedFd, &[u8]),
    replaces: bool,
    finish: impl FnOnce(&OwnedFd) -> Result<T, Errno>,
) -> Result<T, Errno> {
    if !replaces && rustix::fs::statat(to.0, to.1, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Err(Errno::EXIST);
    }
    let new = unnamed(to.0).or_else(|_| named(to.0))?;
    copy_into(new, from, to, replaces, finish)
}

fn unnamed(folder: &OwnedFd) -> Result<New, Errno> {
    let flags = OFlags::RDWR | OFlags::TMPFILE;
    open_in(folder, b".", flags, PRIVATE_FILE).map(|file| (file, None))
}

fn named(folder: &OwnedFd) -> Result<New, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let (name, file) = make_beside(|name| open_in(folder, name, flags, PRIVATE_FILE))?;
    Ok((file, Some(name)))
}

fn copy_into<T>(
    (copy, mut beside): New,
    (from, data): (BorrowedFd<'_>, impl Iterator<Item = Range<u64>>),
    (folder, name): (&OwnedFd, &[u8]),
    replaces: bool,
    finish: impl FnOnce(&OwnedFd) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let place = || {
        let size = rustix::fs::fstat(from)?.st_size as u64;
        copy_data(from, &copy, data, size)?;
        rustix::fs::ftruncate(&copy, size)?;
        let made = finish(&copy)?;
        if beside.is_none() {
            beside = Some(make_beside(|name| link(&copy, folder, name))?.0);
        }
        let new = beside.as_deref().unwrap_or_default();
        rename((folder, new), (folder, name), replaces).map(|()| made)
    };
    let placed = place();
    if placed.is_err()
        && let Some(new) = beside
    {
        let _ = rustix::fs::unlinkat(folder, new, AtFlags::empty());
    }
    placed
}

/// Gives an open file without a name one, unless something has it.
fn link(file: &OwnedFd, folder: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, path, folder, name, AtFlags::SYMLINK_FOLLOW)
}

/// Makes something under a name that nothing else has. `make` fails with EXIST where something is.
pub(super) fn make_beside<T>(
    mut make: impl FnMut(&[u8]) -> Result<T, Errno>,
) -> Result<(Vec<u8>, T), Errno> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        // Another machine may have a process of this number: the file system tells.
        let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let name = format!(".downpour-{process}-{next}.tmp").into_bytes();
        match make(&name) {
            Err(Errno::EXIST) => {}
            made => return made.map(|made| (name, made)),
        }
    }
}

/// Copies the data of a file of `size` bytes and leaves its holes.
fn copy_data(
    from: BorrowedFd<'_>,
    to: &OwnedFd,
    data: impl Iterator<Item = Range<u64>>,
    size: u64,
) -> Result<(), Errno> {
    let mut buf = vec![0; 1 << 20];
    for range in data {
        let (mut at, end) = (range.start, range.end.min(size));
        while at < end {
            let len = (end - at).min(buf.len() as u64) as usize;
            if !read_full_at(from, &mut buf[..len], at)? {
                return Err(Errno::IO);
            }
            write_all_at(to, &buf[..len], at)?;
            at += len as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{copy_into, make_beside, named, unnamed};
    use rustix::io::Errno;
    use std::fs::{self, File};
    use std::os::fd::{AsFd as _, OwnedFd};

    #[test]
    fn copies_into_one_folder_keep_out_of_each_others_way() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = OwnedFd::from(File::open(there.path()).unwrap());
        let source = |name: &str| {
            fs::write(here.path().join(name), name).unwrap();
            File::open(here.path().join(name)).unwrap()
        };
        let (first, second) = (source("first"), source("second"));
        for create in [unnamed, named] {
            let copy = |from: &File, to: &str, finish: &dyn Fn() -> Result<(), Errno>| {
                let whole = (from.as_fd(), std::iter::once(0..u64::MAX));
                let to = (&folder, to.as_bytes());
                copy_into(create(&folder).unwrap(), whole, to, false, |_| finish())
            };
            copy(&first, "a", &|| copy(&second, "b", &|| Ok(()))).unwrap();
            for (name, content) in [("a", "first"), ("b", "second")] {
                assert_eq!(fs::read_to_string(there.path().join(name)).unwrap(), content);
            }
            assert_eq!(copy(&second, "a", &|| Ok(())), Err(Errno::EXIST));
            assert_eq!(copy(&second, "c", &|| Err(Errno::NOSPC)), Err(Errno::NOSPC));
            assert_eq!(fs::read_dir(there.path()).unwrap().count(), 2, "nothing else is left");
            assert_eq!(fs::read_to_string(there.path().join("a")).unwrap(), "first");
            ["a", "b"].iter().for_each(|name| fs::remove_file(there.path().join(name)).unwrap());
        }
    }

    #[test]
    fn a_name_beside_a_place_is_nobody_elses() {
        let mut taken = None;
        let (name, ()) = make_beside(|name| match &taken {
            None => {
                taken = Some(name.to_vec());
                Err(Errno::EXIST)
            }
            Some(_) => Ok(()),
        })
        .unwrap();
        assert_ne!(Some(name), taken);
        assert_eq!(make_beside(|_| Err::<(), _>(Errno::NOSPC)).unwrap_err(), Errno::NOSPC);
    }
}
