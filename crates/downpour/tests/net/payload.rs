//! Trees and files to send, made from a seed, and the comparison with what arrived.

use downpour::demo::tree::differences;
use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// A small generator: what matters is that no two files are alike and that runs repeat.
pub(crate) struct Bytes(u64);

impl Bytes {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn vec(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // Fast also where this program is not optimised.
        blake3::Hasher::new().update(&self.next().to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }
}

/// One file of `len` random bytes.
pub(crate) fn file(path: &Path, len: u64) {
    let mut bytes = Bytes::new(len);
    let mut file = File::create(path).unwrap();
    let mut left = len;
    while left > 0 {
        let piece = left.min(1 << 20);
        file.write_all(&bytes.vec(piece as usize)).unwrap();
        left -= piece;
    }
}

/// A tree of `files` files with `bytes` in all, and one of everything that is hard to carry.
pub(crate) fn tree(root: &Path, files: u64, bytes: u64) {
    fs::create_dir_all(root).unwrap();
    let mut random = Bytes::new(files ^ bytes);
    let mean = bytes / files.max(1);
    for index in 0..files {
        let folder = root.join(format!("d{:02}/e{}", index / 100, index % 7));
        fs::create_dir_all(&folder).unwrap();
        // Half to one and a half of the mean, so that sizes differ and the sum is near.
        let len = mean / 2 + random.next() % (mean + 1);
        let path = folder.join(format!("file{index:06}"));
        fs::write(&path, random.vec(len as usize)).unwrap();
        let mode = [0o644, 0o600, 0o755, 0o444][index as usize % 4];
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    }
    oddities(&root.join("odd"));
    age(root);
}

fn oddities(folder: &Path) {
    fs::create_dir_all(folder.join("empty folder")).unwrap();
    fs::write(folder.join("empty file"), b"").unwrap();
    fs::write(folder.join(std::ffi::OsStr::from_bytes(b"not \xff UTF-8\n")), b"x").unwrap();
    symlink("../d00", folder.join("link")).unwrap();
    symlink("/nonexistent", folder.join("dangling")).unwrap();
    fs::write(folder.join("one"), b"shared by two names").unwrap();
    fs::hard_link(folder.join("one"), folder.join("two")).unwrap();
    let mut sparse = File::create(folder.join("sparse")).unwrap();
    sparse.write_all(b"head").unwrap();
    sparse.seek(SeekFrom::Start(64 << 20)).unwrap();
    sparse.write_all(b"tail").unwrap();
    drop(sparse);
    let private = folder.join("private folder");
    fs::create_dir_all(&private).unwrap();
    fs::set_permissions(&private, PermissionsExt::from_mode(0o750)).unwrap();
}

/// Gives every file and folder a time of its own, to the nanosecond.
fn age(path: &Path) {
    let meta = fs::symlink_metadata(path).unwrap();
    if meta.is_symlink() {
        return;
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            age(&entry.unwrap().path());
        }
    }
    let seconds = 1_000_000_000 + meta.ino() % 100_000_000;
    let nanos = (meta.ino() % 999_999_937) as u32;
    let time = UNIX_EPOCH + Duration::new(seconds, nanos);
    File::open(path).unwrap().set_modified(time).unwrap();
}

/// Panics with the differences unless `copy` is as `source`.
#[track_caller]
pub(crate) fn assert_same(source: &Path, copy: &Path) {
    let found = differences(source, copy).unwrap();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    let odd = copy.join("odd");
    if odd.is_dir() {
        let inode = |name| fs::metadata(odd.join(name)).unwrap().ino();
        assert_eq!(inode("one"), inode("two"), "hard links");
        let sparse = fs::metadata(odd.join("sparse")).unwrap();
        assert!(sparse.blocks() * 512 < sparse.len() / 8, "holes: {} blocks", sparse.blocks());
    }
}
