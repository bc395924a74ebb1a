//! What is here of a file that is being fetched: `.downpour/fetch/DIGEST.part` below the receiving folder, and beside it
//! `DIGEST.done`, which pieces have come (`journal`), and `DIGEST.owner`, the site whose fetch wrote to it last.
//!
//! Who writes to a part holds its lock, so that two fetches of the same content, also by daemons that share the folder, do
//! not write into each other's. A site's parts that no fetch goes on with are removed when its daemon is started, those of
//! another site, which alone knows that of them, when nobody has touched them for long.

use super::journal::{Journal, Kept};
use crate::site::{Config, make_own};
use crate::whole::remove;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Where parts lie, below the receiving folder.
const FOLDER: [&str; 2] = [".downpour", "fetch"];
/// What another site has not touched for so long it does not go on with.
const LEFT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Bytes of a block, as `stat` counts.
const BLOCK_LEN: u64 = 512;

/// A part, for who has its lock.
#[derive(Debug)]
pub(super) struct Part {
    path: PathBuf,
    file: File,
    size: u64,
    journal: Journal,
}

impl Part {
    /// Of a content, below a receiving folder.
    pub(super) fn path_of(folder: &Path, blake3: &str) -> PathBuf {
        folder.join(FOLDER[0]).join(FOLDER[1]).join(format!("{blake3}.part"))
    }

    /// Opens it for a site, as long as the whole will be, and makes it if need be.
    pub(super) fn open(path: PathBuf, size: u64, site: &str) -> io::Result<Self> {
        path.parent().map_or(Ok(()), make_own)?;
        let file = loop {
            let file = options().create(true).open(&path)?;
            if lock(&file, &path)? {
                break file;
            }
        };
        let journal = Journal::of(&path);
        let part = Self { path, file, size, journal };
        // Locked and without an owner it is nobody else's either.
        fs::write(owner_of(&part.path), site)?;
        part.file.set_len(size)?;
        Ok(part)
    }

    /// Others may have it from now on, even if somebody still looks at it.
    pub(super) fn release(&self) {
        if let Err(error) = flock(&self.file, FlockOperation::Unlock) {
            tracing::warn!(path = %self.path.display(), %error, "a part stays locked");
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes for which the disk has no room set aside yet.
    pub(super) fn needed(&self) -> io::Result<u64> {
        let held = self.file.metadata()?.blocks().saturating_mul(BLOCK_LEN);
        Ok(self.size.saturating_sub(held))
    }

    /// The pieces that are here as they came; those seen until nobody wants to know any more.
    pub(super) fn here(&self, is_over: impl Fn() -> bool) -> BTreeSet<u64> {
        self.journal.read(&self.file, self.size, is_over)
    }

    pub(super) fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    /// This piece has come.
    pub(super) fn note(&self, piece: u64) -> io::Result<()> {
        self.journal.note(&self.file, piece, self.size)
    }

    /// Nothing of it counts.
    pub(super) fn forget(&self) -> io::Result<()> {
        self.journal.forget()
    }

    /// Removes a part, unless another fetch writes to it, and what was noted of it, also of one that has become the file.
    pub(super) fn discard(path: &Path) -> io::Result<()> {
        Self::discard_unless(path, || false).map(drop)
    }

    /// The same, unless it is wanted, when nobody can begin to write to it. Whether it was removed.
    fn discard_unless(path: &Path, is_wanted: impl FnOnce() -> bool) -> io::Result<bool> {
        // One that is gone is made again, for its lock: notes that are there may be another fetch's by now.
        let file = match options().create(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let removed = lock(&file, path).and_then(|is_part| {
            let is_unwanted = is_part && !is_wanted();
            if is_unwanted {
                remove(&owner_of(path))?;
                Journal::of(path).forget()?;
                fs::remove_file(path)?;
            }
            Ok(is_unwanted)
        });
        let _ = file.unlock();
        removed
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // By closing it alone a program that was started meanwhile would hold it until it runs.
        let _ = self.file.unlock();
    }
}

/// Who locks a part may write to it: NFS wants that.
fn options() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

/// Takes the lock of a part. `false`: meanwhile it is a part no more.
fn lock(file: &File, path: &Path) -> io::Result<bool> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => io::Error::other("another fetch brings the same content"),
        error => error.into(),
    })?;
    let ours = file.metadata()?;
    Ok(fs::symlink_metadata(path).is_ok_and(|there| there.ino() == ours.ino()))
}

fn owner_of(part: &Path) -> PathBuf {
    part.with_extension("owner")
}

/// Whether another site may go on with a part.
pub(super) fn is_others(part: &Path, own: &str) -> bool {
    let owner = fs::read_to_string(owner_of(part));
    let is_ours = match owner {
        Ok(owner) => owner == own,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    let touched = |end: &str| fs::metadata(part.with_extension(end))?.modified();
    // Also what a clock ahead of ours has dated.
    let is_new = |at: SystemTime| at > SystemTime::now() - LEFT_FOR;
    !is_ours && ["part", "done", "owner"].iter().any(|end| touched(end).is_ok_and(is_new))
}

/// Removes the parts that no fetch goes on with.
pub(in crate::dispatch) fn sweep(config: &Config) {
    let inbox = config.path(&config.transfer.inbox);
    let left = match left_in(&inbox) {
        Ok(left) if left.is_empty() => return,
        Ok(left) => left,
        Err(error) => {
            tracing::warn!(folder = %inbox.display(), %error, "parts of fetches are not looked for");
            return;
        }
    };
    let Some(wanted) = wanted(config) else {
        tracing::warn!("parts of fetches stay: not each fetch that has not ended is known");
        return;
    };
    for digest in left.difference(&wanted) {
        let path = Part::path_of(&inbox, digest);
        if is_others(&path, &config.site.name) {
            continue;
        }
        // Fetches begin meanwhile.
        let is_wanted = || self::wanted(config).is_none_or(|wanted| wanted.contains(digest));
        match Part::discard_unless(&path, is_wanted) {
            Ok(true) => tracing::info!(path = %path.display(), "no fetch goes on with it: removed"),
            Ok(false) => {}
            Err(error) => tracing::warn!(path = %path.display(), %error, "a part stays"),
        }
    }
}

/// The contents of fetches that have not ended. None: one that nobody can read may be the one that a part is for.
fn wanted(config: &Config) -> Option<BTreeSet<String>> {
    let kept = Kept::all(&config.state()).into_iter();
    kept.map(|kept| kept.ok().map(|kept| kept.report.blake3).filter(|digest| !digest.is_empty()))
        .collect()
}

/// The contents of which there are parts, or notes of parts, below a receiving folder. No link is followed.
fn left_in(inbox: &Path) -> io::Result<BTreeSet<String>> {
    let mut folder = inbox.to_owned();
    for step in FOLDER {
        folder.push(step);
        match fs::symlink_metadata(&folder) {
            Ok(there) if there.is_dir() => {}
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(error),
        }
    }
    let mut left = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            left.extend(entry.file_name().to_str().and_then(digest_in).map(str::to_owned));
        }
    }
    Ok(left)
}

/// The digest by which a file is called, if it is called as ours are.
fn digest_in(name: &str) -> Option<&str> {
    let (digest, end) = name.rsplit_once('.')?;
    let is_end = matches!(end, "part" | "done" | "owner");
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (is_end && digest.len() == 64 && digest.bytes().all(is_digit)).then_some(digest)
}

#[cfg(test)]
mod tests {
    use super::super::{FetchReport, FetchWish};
    use super::{Kept, LEFT_FOR, Part, is_others, owner_of, sweep};
    use std::fs;
    use std::path::Path;
    use std::time::SystemTime;

    fn leave(path: &Path) {
        let file = fs::File::open(path).unwrap();
        file.set_modified(SystemTime::now() - LEFT_FOR).unwrap();
    }

    #[test]
    fn only_parts_that_nobody_wants_go() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[site]\nname = 'a'\nstate = '{0}/state'\n[transfer]\ninbox = '{0}/inbox'",
            folder.path().display()
        );
        let config: crate::site::Config = toml::from_str(&text).unwrap();
        let inbox = folder.path().join("inbox");
        // Nothing is there yet.
        sweep(&config);
        let part = |digit: &str| Part::path_of(&inbox, &digit.repeat(64));
        let parts = part("0").parent().unwrap().to_owned();
        fs::create_dir_all(&parts).unwrap();
        let keep = |id: i64, blake3: String| {
            let report = FetchReport { id, blake3, ..FetchReport::default() };
            Kept { wish: FetchWish::default(), report }.write(&config.state()).unwrap();
        };
        // Of 1 a fetch goes on, to 2 somebody writes, of 3 only notes are left, nobody wants 4, another site wants 8.
        keep(7, "1".repeat(64));
        let held = Part::open(part("2"), 5, "a").unwrap();
        drop(Part::open(part("8"), 5, "b").unwrap());
        let names = |digit: &str, end: &str| format!("{}.{end}", digit.repeat(64));
        let ours = [names("1", "part"), names("1", "done"), names("3", "done"), names("4", "part")];
        let others = ["x.part".to_owned(), names("A", "part"), names("5", "new"), "4".repeat(64)];
        for name in ours.iter().chain(&others) {
            fs::write(parts.join(name), "x").unwrap();
        }
        std::os::unix::fs::symlink(parts.join(&others[0]), parts.join(names("6", "part"))).unwrap();
        fs::create_dir(parts.join(names("7", "part"))).unwrap();
        let there = || {
            let names = fs::read_dir(&parts).unwrap();
            let mut names: Vec<_> =
                names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        let before = there();
        // One that cannot be read may want any.
        let broken = config.state().join("fetches/8.json");
        fs::write(&broken, "{").unwrap();
        sweep(&config);
        assert_eq!(there(), before);
        // So may one of which the content is not known.
        keep(8, String::new());
        sweep(&config);
        assert_eq!(there(), before);
        fs::remove_file(broken).unwrap();
        sweep(&config);
        let gone = [names("3", "done"), names("4", "part")];
        let mut left = before.clone();
        left.retain(|name| !gone.contains(name));
        assert_eq!((there(), before.len() - left.len()), (left.clone(), 2));
        assert!(Part::open(part("2"), 5, "a").is_err(), "somebody writes to it");
        drop(held);
        sweep(&config);
        left.retain(|name| !name.starts_with('2'));
        assert_eq!(there(), left);
        // Unless it has forgotten it.
        ["part", "owner"].iter().for_each(|end| leave(&part("8").with_extension(end)));
        sweep(&config);
        left.retain(|name| !name.starts_with('8'));
        assert_eq!(there(), left);
        // No link is followed to them.
        fs::rename(&parts, folder.path().join("away")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("away"), &parts).unwrap();
        fs::write(part("4"), "x").unwrap();
        sweep(&config);
        assert!(part("4").exists());
    }

    #[test]
    fn a_part_is_free_at_once_though_a_program_that_was_just_started_has_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let part = Part::open(folder.path().join("x.part"), 5, "a").unwrap();
        let _of_child = part.file.try_clone().unwrap();
        drop(part);
        assert!(Part::open(folder.path().join("x.part"), 5, "a").is_ok());
    }

    #[test]
    fn what_a_clock_ahead_of_ours_has_dated_is_another_sites() {
        let folder = tempfile::tempdir().unwrap();
        let part = folder.path().join("x.part");
        drop(Part::open(part.clone(), 5, "b").unwrap());
        for path in [&part, &owner_of(&part)] {
            let file = fs::File::open(path).unwrap();
            file.set_modified(SystemTime::now() + LEFT_FOR).unwrap();
        }
        assert!(is_others(&part, "a") && !is_others(&part, "b"));
    }

    #[test]
    fn what_a_fetch_begins_to_want_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let part = folder.path().join("x.part");
        fs::write(&part, "x").unwrap();
        assert!(!Part::discard_unless(&part, || true).unwrap());
        assert!(part.exists());
        assert!(Part::discard_unless(&part, || false).unwrap());
        assert!(!part.exists());
    }
}
