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
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const PAGE_BYTES: u64 = 4096;
/// Of each so many bytes a page is kept: less than the least block that is reported.
const PIECE_BYTES: u64 = 1 << 20;

/// Where less is free somebody's write has failed.
const FULL_BYTES: u64 = 1 << 20;

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

/// What a run fills: the file, and a copy at each receiver; of a feed nothing is stored.
fn fills(cell: &Cell) -> u64 {
    let copies = if cell.feed.is_some() { 0 } else { cell.receivers as u64 };
    cell.bytes().saturating_mul(copies + 1)
}

/// Refuses runs that this machine has no room for: programs would be blamed for it, and whoever else is at work there would suffer.
pub(crate) fn check_room(cells: &[Cell], folder: &Path) -> io::Result<()> {
    let available = available(&fs::read_to_string("/proc/meminfo")?);
    let room = free(folder)?.min(available.unwrap_or(u64::MAX));
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

/// An error where a run that failed had no room: that is none of its program's doing. It may have removed since what it could not
/// finish, and then there is less than it needs all the same.
pub(crate) fn check_full(cell: &Cell, folder: &Path, trouble: &str) -> io::Result<()> {
    let free = free(folder)?;
    let is_full = || free < FULL_BYTES || free.saturating_add(holds(folder)) < fills(cell);
    match !trouble.is_empty() && is_full() {
        true => Err(at(folder)(format!("it was full: make room and run this again: {trouble}"))),
        false => Ok(()),
    }
}

/// Bytes that lie in it.
fn holds(folder: &Path) -> u64 {
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => holds(&entry.path()),
        about => about.map_or(0, |about| about.blocks() * 512),
    };
    fs::read_dir(folder).into_iter().flatten().flatten().map(bytes).sum()
}

/// Bytes that can be written to its file system.
fn free(folder: &Path) -> io::Result<u64> {
    let tmpfs = statvfs(folder).map_err(at(folder))?;
    Ok(tmpfs.f_bavail.saturating_mul(tmpfs.f_frsize))
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
    use super::{Memory, PAGE_BYTES, PIECE_BYTES, available, check_full, check_room, holds};
    use crate::experiment::Cell;
    use crate::units::Size;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

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
    fn a_run_without_room_is_no_programs_failure() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("run")).unwrap();
        fs::write(folder.path().join("run/copy"), vec![7; 9 * 4096]).unwrap();
        assert!((9 * 4096..99 * 4096).contains(&holds(folder.path())));
        let small = Cell { size: Size(4096), ..Cell::default() };
        let large = Cell { size: Size(99_999 << 30), ..Cell::default() };
        // Nothing can be written there.
        let full = Path::new("/proc");
        check_full(&small, folder.path(), "it failed").unwrap();
        check_full(&large, folder.path(), "").unwrap();
        check_full(&small, full, "").unwrap();
        for (cell, folder) in [(&small, full), (&large, folder.path())] {
            let told = check_full(cell, folder, "it failed").unwrap_err().to_string();
            assert!(told.contains("it was full") && told.contains("it failed"), "{told}");
        }
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
