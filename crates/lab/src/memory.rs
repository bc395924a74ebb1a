//! Memory that stays this machine's for a whole campaign.
//!
//! A virtual machine gives memory that is not in use back to its host, and gets it again page by page, at a third of the
//! speed of writing it. Files that programs write without a limit of rate would measure that. So:
//!
//! 1. As much as the largest run fills is written once.
//! 2. All of it is given up again but one page of each MiB. What lies between such pages is free, and in pieces
//!    too short for the kernel to report to the host (free page reporting takes whole blocks of 2 MiB or more).
//! 3. Programs get no huge pages: whole blocks of 2 MiB are left only where the host has to be asked. It is the
//!    lab that refuses them, and what it starts inherits that.
//! 4. The pages are given up when the campaign ends.

use crate::at;
use crate::experiment::Cell;
use crate::units::Size;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::thread::disable_transparent_huge_pages;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

const PAGE_BYTES: u64 = 4096;
/// Of each so many bytes a page is kept: less than the least block that is reported.
const PIECE_BYTES: u64 = 1 << 20;

/// See the top of this file.
pub(crate) struct Memory {
    path: PathBuf,
}

impl Memory {
    /// What these cells' runs fill, where they have no limit of rate; none otherwise.
    pub(crate) fn of(cells: &[Cell], folder: &Path) -> io::Result<Option<Self>> {
        let unlimited = cells.iter().filter(|cell| cell.rate.is_none());
        let most = unlimited.map(fills).max();
        most.map(|bytes| Self::take(folder.join("memory"), bytes)).transpose()
    }

    fn take(path: PathBuf, bytes: u64) -> io::Result<Self> {
        let memory = Self { path };
        let mut file = File::create(&memory.path).map_err(at(&memory.path))?;
        io::copy(&mut io::repeat(0).take(bytes), &mut file).map_err(at(&memory.path))?;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for start in (0..bytes).step_by(PIECE_BYTES as usize) {
            fallocate(&file, hole, start + PAGE_BYTES, PIECE_BYTES - PAGE_BYTES)?;
        }
        disable_transparent_huge_pages(true)?;
        Ok(memory)
    }
}

/// What a run fills: the file, and a copy at each receiver.
fn fills(cell: &Cell) -> u64 {
    cell.bytes().saturating_mul(cell.receivers as u64 + 1)
}

/// Refuses runs that this machine has no room for: programs would be blamed for it, and whoever else is at work there would suffer.
pub(crate) fn check_room(cells: &[Cell], folder: &Path) -> io::Result<()> {
    let tmpfs = statvfs(folder).map_err(at(folder))?;
    let free = tmpfs.f_bavail.saturating_mul(tmpfs.f_frsize);
    let room = free.min(available(&fs::read_to_string("/proc/meminfo")?).unwrap_or(u64::MAX));
    match cells.iter().find(|cell| fills(cell) > room) {
        None => Ok(()),
        Some(cell) => Err(at(folder)(format!(
            "{} to {} receivers fill {} of memory here, and {} are free: give a smaller size or fewer receivers",
            Size(cell.bytes()),
            cell.receivers,
            Size(fills(cell)),
            Size(room >> 20 << 20),
        ))),
    }
}

/// Bytes of memory that can be had, as the kernel tells it.
fn available(told: &str) -> Option<u64> {
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The folder that it lies in is removed too.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::{Memory, PAGE_BYTES, PIECE_BYTES, available, check_room};
    use crate::experiment::Cell;
    use crate::units::Size;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_size_for_which_there_is_no_room_is_refused() {
        let folder = std::path::Path::new("/dev/shm");
        let small = Cell { size: Size(4096), ..Cell::default() };
        check_room(std::slice::from_ref(&small), folder).unwrap();
        let large = Cell { size: Size(99_999 << 30), receivers: 8, ..Cell::default() };
        let told = check_room(&[small, large], folder).unwrap_err().to_string();
        assert!(told.contains("/dev/shm: 99999GiB to 8 receivers fill 899991GiB"), "{told}");
        let told = "MemTotal:       24000000 kB\nMemAvailable:   17000000 kB\n";
        assert_eq!(available(told), Some(17_000_000 << 10));
    }

    #[test]
    fn a_page_of_each_piece_is_kept() {
        let path = std::path::Path::new("/dev/shm")
            .join(format!("downpour-lab-memory-{}", std::process::id()));
        let memory = Memory::take(path.clone(), 3 * PIECE_BYTES).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().blocks() * 512, 3 * PAGE_BYTES);
        drop(memory);
        assert!(!path.exists());
    }
}
