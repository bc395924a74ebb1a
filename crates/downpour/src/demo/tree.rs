//! Which tree the demo sends, and whether what arrived is the same.
//!
//! The comparison reads both sides in full and knows nothing of manifests and digests: it is a check of the
//! program by other means.

use crate::object::closed_mode_of;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Differences that are worth naming; after that many something is wrong altogether.
const DIFFERENCES_MAX: usize = 20;
const READ_BYTES: usize = 256 * 1024;

/// How much there is below some paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Regular files.
    pub files: u64,
    /// Their lengths together.
    pub bytes: u64,
}

/// What to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picked {
    /// Files and folders, no two with the same name.
    pub paths: Vec<PathBuf>,
    /// What is in them.
    pub amount: Amount,
}

/// Takes folders from `candidates`, in order, until there is at least `least`; or all of them. A folder
/// of more than `part` bytes is looked into, so that one large folder does not make the sum much larger
/// than it must be.
pub fn pick(candidates: impl IntoIterator<Item = PathBuf>, least: Amount, part: u64) -> Picked {
    let mut picked = Picked::default();
    let mut names = BTreeSet::new();
    let mut waiting: Vec<_> = candidates.into_iter().collect();
    waiting.reverse();
    while let Some(path) = waiting.pop() {
        if picked.amount.files >= least.files && picked.amount.bytes >= least.bytes {
            break;
        }
        // What cannot be read is not a candidate; the sender would say so of each file.
        let Ok(amount) = measure(&path) else { continue };
        let inside: Vec<_> = children(&path).into_iter().filter(|path| path.is_dir()).collect();
        if amount.bytes > part && !inside.is_empty() {
            waiting.extend(inside.into_iter().rev());
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_owned();
        if amount.files > 0 && names.insert(name) {
            picked.amount.files += amount.files;
            picked.amount.bytes += amount.bytes;
            picked.paths.push(path);
        }
    }
    picked
}

/// The folders with Rust's own libraries, documentation and sources on this machine, and those of
/// packages: a few large files first, then many small ones.
pub fn rust_folders(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
    let root =
        |name, default: &str| variable(name).map_or_else(|| home.join(default), PathBuf::from);
    let toolchains = children(&root("RUSTUP_HOME", ".rustup").join("toolchains"));
    let registries = children(&root("CARGO_HOME", ".cargo").join("registry/src"));
    let below = |name: &str| toolchains.iter().map(|t| t.join(name)).collect::<Vec<_>>();
    let mut found = [below("lib/rustlib"), below("share/doc"), registries].concat();
    found.retain(|path| path.is_dir());
    found
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Counts what is at `path` and below.
pub fn measure(path: &Path) -> io::Result<Amount> {
    let mut amount = Amount::default();
    walk(path, &mut |_, meta| {
        if meta.is_file() {
            amount.files += 1;
            amount.bytes += meta.len();
        }
        Ok(())
    })?;
    Ok(amount)
}

/// Calls `visit` for `path` and all below it, folders before what is in them, in a stable order.
pub fn walk(
    path: &Path,
    visit: &mut impl FnMut(&Path, &Metadata) -> io::Result<()>,
) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    visit(path, &meta)?;
    if meta.is_dir() {
        let mut entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            walk(&entry.path(), visit)?;
        }
    }
    Ok(())
}

/// How `copy` differs from `source`, each with all below it: kind, contents, mode, time of change, link
/// targets, and what is there on one side alone. Empty when they are the same. Pipes, sockets and devices are not sent.
pub fn differences(source: &Path, copy: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut expected = BTreeSet::new();
    walk(source, &mut |path, meta| {
        if !(meta.is_dir() || meta.is_file() || meta.is_symlink()) {
            return Ok(());
        }
        let below = path.strip_prefix(source).expect("below where the walk began");
        let other = if below.as_os_str().is_empty() { copy.to_owned() } else { copy.join(below) };
        if found.len() < DIFFERENCES_MAX
            && let Some(what) = difference(path, meta, &other)?
        {
            found.push(format!("{}: {what}", other.display()));
        }
        expected.insert(other);
        Ok(())
    })?;
    if copy.symlink_metadata().is_ok() {
        walk(copy, &mut |path, _| {
            if found.len() < DIFFERENCES_MAX && !expected.contains(path) {
                found.push(format!("{}: not in the source", path.display()));
            }
            Ok(())
        })?;
    }
    Ok(found)
}

fn difference(path: &Path, meta: &Metadata, other: &Path) -> io::Result<Option<&'static str>> {
    let Ok(copy) = fs::symlink_metadata(other) else { return Ok(Some("missing")) };
    if meta.file_type() != copy.file_type() {
        return Ok(Some("of another kind"));
    }
    if meta.is_symlink() {
        let same = fs::read_link(path)? == fs::read_link(other)?;
        return Ok((!same).then_some("leads elsewhere"));
    }
    // ACLs are not asked for.
    let bits = |meta: &Metadata| (meta.mode() & 0o7777) as u16;
    if closed_mode_of(path, bits(meta)) != bits(&copy) {
        return Ok(Some("has another mode"));
    }
    if (meta.mtime(), meta.mtime_nsec()) != (copy.mtime(), copy.mtime_nsec()) {
        return Ok(Some("has another time of change"));
    }
    if meta.is_file() && (meta.len() != copy.len() || !same_contents(path, other)?) {
        return Ok(Some("has other contents"));
    }
    Ok(None)
}

fn same_contents(a: &Path, b: &Path) -> io::Result<bool> {
    let (mut a, mut b) = (File::open(a)?, File::open(b)?);
    let (mut left, mut right) = (vec![0; READ_BYTES], vec![0; READ_BYTES]);
    loop {
        let read = a.read(&mut left)?;
        if read == 0 {
            return Ok(b.read(&mut right)? == 0);
        }
        match b.read_exact(&mut right[..read]) {
            Ok(()) if left[..read] == right[..read] => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Amount, differences, measure, pick};
    use std::fs::{self, File};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;
    use std::time::{Duration, UNIX_EPOCH};

    fn tree(root: &Path) {
        fs::create_dir_all(root.join("a/empty")).unwrap();
        fs::write(root.join("a/one"), b"contents").unwrap();
        symlink("one", root.join("a/link")).unwrap();
        for path in ["a/one", "a/empty", "a", "."] {
            let file = File::open(root.join(path)).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::new(1_000_000, 7)).unwrap();
        }
    }

    #[test]
    fn the_same_trees_are_the_same_and_each_change_is_seen() {
        let scratch = tempfile::tempdir().unwrap();
        let source = scratch.path().join("source");
        tree(&source);
        let _socket = std::os::unix::net::UnixListener::bind(source.join("a/socket")).unwrap();
        let folder = File::open(source.join("a")).unwrap();
        folder.set_modified(UNIX_EPOCH + Duration::new(1_000_000, 7)).unwrap();
        type Change = fn(&Path);
        let changes: [(&str, Change); 7] = [
            ("", |_| ()),
            ("missing", |copy| fs::remove_file(copy.join("a/one")).unwrap()),
            ("other contents", |copy| {
                let file = fs::OpenOptions::new().write(true).open(copy.join("a/one")).unwrap();
                let mtime = file.metadata().unwrap().modified().unwrap();
                std::io::Write::write_all(&mut &file, b"Contents").unwrap();
                file.set_modified(mtime).unwrap();
            }),
            ("another mode", |copy| {
                fs::set_permissions(copy.join("a/one"), PermissionsExt::from_mode(0o600)).unwrap();
            }),
            ("another time", |copy| {
                let file = File::open(copy.join("a/empty")).unwrap();
                file.set_modified(UNIX_EPOCH).unwrap();
            }),
            ("leads elsewhere", |copy| {
                fs::remove_file(copy.join("a/link")).unwrap();
                symlink("empty", copy.join("a/link")).unwrap();
                File::open(copy.join("a"))
                    .unwrap()
                    .set_modified(UNIX_EPOCH + Duration::new(1_000_000, 7))
                    .unwrap();
            }),
            ("not in the source", |copy| fs::write(copy.join("a/more"), b"").unwrap()),
        ];
        for (index, (expected, change)) in changes.into_iter().enumerate() {
            let copy = scratch.path().join(format!("copy{index}"));
            tree(&copy);
            change(&copy);
            let found = differences(&source, &copy).unwrap();
            assert_eq!(found.is_empty(), expected.is_empty(), "{expected}: {found:?}");
            assert!(found.iter().any(|f| f.contains(expected)) || expected.is_empty(), "{found:?}");
        }
        assert_eq!(measure(&source).unwrap(), Amount { files: 1, bytes: 8 });
    }

    #[test]
    fn folders_are_taken_until_there_is_enough_and_never_two_of_a_name() {
        let scratch = tempfile::tempdir().unwrap();
        let paths: Vec<_> = ["x/a", "y/a", "x/b", "x/c"].map(|p| scratch.path().join(p)).to_vec();
        for path in &paths {
            fs::create_dir_all(path).unwrap();
            fs::write(path.join("f"), [0; 10]).unwrap();
        }
        let picked = pick(paths.clone(), Amount { files: 1, bytes: 20 }, 10);
        assert_eq!(picked.paths, [paths[0].clone(), paths[2].clone()]);
        let all = pick(paths, Amount { files: 100, bytes: 0 }, 10);
        assert_eq!(all.amount, Amount { files: 3, bytes: 30 });
        let inside = pick([scratch.path().to_owned()], Amount { files: 2, bytes: 0 }, 10);
        assert_eq!(inside.paths, [scratch.path().join("x/a"), scratch.path().join("x/b")]);
    }
}
