//! Bytes of open files: read and written at their places, zeros among them.

use super::limits::GROUP_LEN;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// Writes all of `bytes`.
pub(crate) fn write_all_at(fd: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(fd, bytes, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(len) => {
                bytes = &bytes[len..];
                at += len as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads all of `buf`; false when the file's end came first.
pub(crate) fn read_full_at(fd: impl AsFd, mut buf: &mut [u8], mut at: u64) -> Result<bool, Errno> {
    while !buf.is_empty() {
        match rustix::io::pread(&fd, &mut *buf, at) {
            Ok(0) => return Ok(false),
            Ok(len) => {
                buf = &mut buf[len..];
                at += len as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Makes the bytes from `start` up to `end` zeros.
pub(crate) fn zero_range(fd: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    if start >= end {
        return Ok(());
    }
    let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    if rustix::fs::fallocate(fd, flags, start, end - start).is_ok() {
        return Ok(());
    }
    let zeros = vec![0; GROUP_LEN as usize];
    let mut at = start;
    while at < end {
        let len = (end - at).min(GROUP_LEN);
        write_all_at(fd, &zeros[..len as usize], at)?;
        at += len;
    }
    Ok(())
}

/// Whether a range of a file holds nothing but zeros. Its holes are not read.
pub(crate) fn is_zero(fd: &OwnedFd, mut at: u64, end: u64) -> bool {
    let mut buf = Vec::new();
    while at < end {
        match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(data) => at = data,
            Err(Errno::NXIO) => return true,
            // This file system cannot tell: read all of it.
            Err(_) => {}
        }
        let len = end.saturating_sub(at).min(1 << 16);
        buf.resize(len as usize, 0);
        if read_full_at(fd, &mut buf, at) != Ok(true) || buf.iter().any(|byte| *byte != 0) {
            return len == 0;
        }
        at += len;
    }
    true
}

/// Whether two files of `size` bytes hold the same. Where both have a hole nothing is read.
pub(crate) fn same_content(a: &OwnedFd, b: &OwnedFd, size: u64) -> bool {
    let data = |fd, at| match rustix::fs::seek(fd, SeekFrom::Data(at)) {
        Ok(data) => data,
        Err(Errno::NXIO) => size,
        // This file system cannot tell.
        Err(_) => at,
    };
    let (mut of_a, mut of_b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    loop {
        at = data(a, at).min(data(b, at));
        if at >= size {
            return true;
        }
        let len = (size - at).min(1 << 20) as usize;
        let (of_a, of_b) = (&mut of_a[..len], &mut of_b[..len]);
        if read_full_at(a, of_a, at) != Ok(true)
            || read_full_at(b, of_b, at) != Ok(true)
            || of_a != of_b
        {
            return false;
        }
        at += len as u64;
    }
}
