//! What of a fetch outlives the daemon: that it was asked for, and which pieces are here.
//!
//! `fetches/NUMBER.json` of the state folder is what was asked for and how it began, until it has ended. `DIGEST.done` beside
//! a part has a line for each piece that came, its number and its BLAKE3: who goes on compares them with what the disk has,
//! so nothing needs to be synced, and a line that was cut off says nothing.

use super::super::pieces::PIECE_LEN_MAX;
use super::{FetchReport, FetchWish};
use crate::whole::{put, remove};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Below the state folder.
pub(crate) const FOLDER: &str = "fetches";

/// A fetch that has not ended.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) wish: FetchWish,
    pub(super) report: FetchReport,
}

impl Kept {
    pub(super) fn write(&self, state: &Path) -> io::Result<()> {
        let file = file_of(state, self.report.id);
        fs::create_dir_all(state.join(FOLDER))?;
        put(&file, &serde_json::to_vec(self)?)
    }

    /// All that are kept; of one that cannot be read, why.
    pub(super) fn all(state: &Path) -> Vec<Result<Self, Unreadable>> {
        let folder = state.join(FOLDER);
        let files = match fs::read_dir(&folder) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => return vec![Err(Unreadable::new(&folder, error))],
        };
        let path = |entry: io::Result<fs::DirEntry>| match entry {
            Ok(entry) if entry.path().extension().is_none_or(|end| end != "json") => None,
            entry => Some(entry.map(|entry| entry.path())),
        };
        let read = |path: io::Result<PathBuf>| {
            let path = path.map_err(|error| Unreadable::new(&folder, error))?;
            Self::read(&path).map_err(|error| Unreadable::new(&path, error))
        };
        files.filter_map(path).map(read).collect()
    }

    fn read(path: &Path) -> io::Result<Self> {
        let kept: Self = serde_json::from_slice(&fs::read(path)?)?;
        let other = || io::Error::other(format!("it is of fetch {}", kept.report.id));
        (id_of(path) == Some(kept.report.id)).then_some(()).ok_or_else(other)?;
        Ok(kept)
    }

    /// It has ended. One that is not kept is forgotten already.
    pub(super) fn forget(state: &Path, id: i64) -> io::Result<()> {
        remove(&file_of(state, id))
    }
}

/// A fetch that has not ended, of which nobody knows any more what it was.
#[derive(Debug)]
pub(super) struct Unreadable {
    /// Its number, where the file is called by one.
    pub(super) id: Option<i64>,
    /// The file, what is wrong with it, and what to do.
    pub(super) what: String,
}

impl Unreadable {
    fn new(path: &Path, error: io::Error) -> Self {
        let id = id_of(path);
        let give_up = match id {
            Some(id) => format!("`downpour transfer cancel --transfer {id}`"),
            None => "remove it".to_owned(),
        };
        let path = path.display();
        let todo = format!("mend it and start the daemon again, or give it up: {give_up}");
        Self { id, what: format!("{path} cannot be read: {error}; {todo}") }
    }
}

fn file_of(state: &Path, id: i64) -> PathBuf {
    state.join(FOLDER).join(format!("{id}.json"))
}

fn id_of(path: &Path) -> Option<i64> {
    path.file_stem()?.to_str()?.parse().ok()
}

/// Which pieces of a part are here.
#[derive(Debug)]
pub(super) struct Journal(PathBuf);

impl Journal {
    pub(super) fn of(part: &Path) -> Self {
        Self(part.with_extension("done"))
    }

    /// The pieces that are in the part as they came; those seen until it is over.
    pub(super) fn read(&self, part: &File, size: u64, is_over: impl Fn() -> bool) -> BTreeSet<u64> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        let line = |line: &str| {
            let (piece, digest) = line.split_once(' ')?;
            Some((piece.parse::<u64>().ok()?, blake3::Hash::from_hex(digest).ok()?))
        };
        let noted: BTreeMap<_, _> = text.lines().filter_map(line).collect();
        let is_here = |(piece, digest): &(u64, blake3::Hash)| {
            digest_of(part, *piece, size).is_ok_and(|found| found == *digest)
        };
        let noted = noted.into_iter().take_while(|_| !is_over());
        noted.filter(is_here).map(|(piece, _)| piece).collect()
    }

    /// This one has come.
    pub(super) fn note(&self, part: &File, piece: u64, size: u64) -> io::Result<()> {
        let line = format!("\n{piece} {}", digest_of(part, piece, size)?);
        let mut options = OpenOptions::new();
        options.create(true).append(true).open(&self.0)?.write_all(line.as_bytes())
    }

    /// Nothing is known to be here.
    pub(super) fn forget(&self) -> io::Result<()> {
        remove(&self.0)
    }
}

fn digest_of(part: &File, piece: u64, size: u64) -> io::Result<blake3::Hash> {
    let start = piece.checked_mul(PIECE_LEN_MAX).filter(|start| *start < size);
    let start = start.ok_or(io::ErrorKind::InvalidInput)?;
    let mut bytes = vec![0; PIECE_LEN_MAX.min(size - start) as usize];
    part.read_exact_at(&mut bytes, start)?;
    Ok(blake3::hash(&bytes))
}

#[cfg(test)]
mod tests {
    use super::super::{FetchReport, FetchWish};
    use super::{FOLDER, Journal, Kept, PIECE_LEN_MAX};
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn only_what_is_here_as_it_came_counts() {
        let folder = tempfile::tempdir().unwrap();
        let part = folder.path().join("x.part");
        let file = File::options().read(true).write(true).create_new(true).open(&part).unwrap();
        let journal = Journal::of(&part);
        let size = 2 * PIECE_LEN_MAX + 5;
        file.set_len(size).unwrap();
        assert!(journal.read(&file, size, || false).is_empty());
        (0..3).for_each(|piece| journal.note(&file, piece, size).unwrap());
        assert!(journal.note(&file, 3, size).is_err(), "there is no such piece");
        assert_eq!(journal.read(&file, size, || false).len(), 3);
        // One that came again counts as it came last; one that changed behind our back does not.
        file.write_all_at(b"new", 7).unwrap();
        file.write_all_at(b"new", 2 * PIECE_LEN_MAX).unwrap();
        journal.note(&file, 0, size).unwrap();
        assert_eq!(Vec::from_iter(journal.read(&file, size, || false)), [0, 1]);
        // A line that was cut off says nothing, and spoils none.
        let done = folder.path().join("x.done");
        let whole = fs::read(&done).unwrap();
        for cut in 0..whole.len() {
            fs::write(&done, &whole[..cut]).unwrap();
            journal.note(&file, 2, size).unwrap();
            assert!(journal.read(&file, size, || false).contains(&2), "cut at {cut}");
        }
        assert!(journal.read(&file, size, || true).is_empty());
        journal.forget().unwrap();
        assert!(journal.read(&file, size, || false).is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let state = tempfile::tempdir().unwrap();
        assert!(Kept::all(state.path()).is_empty());
        for id in [7, 8] {
            let report = FetchReport { id, ..FetchReport::default() };
            Kept { wish: FetchWish::default(), report }.write(state.path()).unwrap();
        }
        let folder = state.path().join(FOLDER);
        fs::copy(folder.join("7.json"), folder.join("9.json")).unwrap();
        let whole = fs::read(folder.join("8.json")).unwrap();
        fs::write(folder.join("8.json"), &whole[..whole.len() / 2]).unwrap();
        fs::write(folder.join("10.new"), "{").unwrap();
        let mut all = Kept::all(state.path());
        all.sort_by_key(|kept| kept.as_ref().map_or_else(|e| e.id, |kept| Some(kept.report.id)));
        let told = |kept: &Result<Kept, super::Unreadable>| match kept {
            Ok(kept) => format!("{}", kept.report.id),
            Err(unreadable) => unreadable.what.clone(),
        };
        let told: Vec<String> = all.iter().map(told).collect();
        assert_eq!((told.len(), told[0].as_str()), (3, "7"), "{told:?}");
        assert!(told[1].contains("fetches/8.json cannot be read: EOF"), "{told:?}");
        assert!(told[2].contains("fetches/9.json cannot be read: it is of fetch 7"), "{told:?}");
    }
}
