//! A list of files, each under a name of its own: a batch between sites.
//!
//! Sources are opened as they are named and may not be links; names at the receiver may have folders, which carry no
//! metadata. One file that cannot be sent is left out with its reason, and spoils no other.

use super::{Found, Scan, ScanError, ScanOptions, Walk, explain};
use crate::object::tree::{EntryId, Meta, NewEntry, NewKind, TreeBuilder, TreeProblem};
use rustix::fs::{AtFlags, CWD, FileType};
use rustix::io::Errno;
use std::collections::HashSet;
use std::path::PathBuf;

/// Mode that a folder of a list is said to have. A receiver of files from a site ignores it.
const FOLDER_MODE: u16 = 0o755;

/// One file of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Where it lies.
    pub path: PathBuf,
    /// Its name below the receiver's folder; `/` divides folders.
    pub name: String,
    /// Its size, when only a file of that size is meant.
    pub size: Option<u64>,
}

/// Why a file of a list is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// It is not there.
    Gone,
    /// It is no regular file, or has another size.
    Changed,
    /// It may not be read.
    Unreadable,
    /// The storage fails.
    ReadFailed,
    /// Its name, or that of a folder of its, is another one's.
    NameTaken,
    /// It has no name that a receiver takes.
    NameRefused,
}

/// A tree made of a list.
#[derive(Debug)]
pub struct ItemScan {
    /// The tree.
    pub scan: Scan,
    /// What each item of the list became.
    pub entries: Vec<Result<EntryId, Skipped>>,
}

/// Whether `name` can be the name of an item: relative, without `.` and `..`, not the receiver's own folder.
pub fn check_item_name(name: &str) -> Result<(), TreeProblem> {
    let mut builder = TreeBuilder::new();
    let mut parts = name.split('/').enumerate().peekable();
    while let Some((depth, part)) = parts.next() {
        let kind = match parts.peek() {
            Some(_) => NewKind::Folder,
            None => NewKind::File { size: 0, extents: crate::object::tree::Extents::Dense },
        };
        push(&mut builder, depth, part, kind)?;
    }
    Ok(())
}

fn push(
    builder: &mut TreeBuilder,
    depth: usize,
    name: &str,
    kind: NewKind<'_>,
) -> Result<EntryId, TreeProblem> {
    let meta = Meta { mode: FOLDER_MODE, ..Meta::default() };
    let entry = NewEntry {
        depth: u32::try_from(depth).unwrap_or(u32::MAX),
        name: name.as_bytes(),
        kind,
        meta,
        xattrs: Vec::new(),
    };
    builder.push(entry).map_err(|error| error.problem)
}

impl Scan {
    /// Looks at the files of a list.
    pub fn items(items: &[Item]) -> Result<ItemScan, ScanError> {
        let options = ScanOptions { skip_unreadable: true, ..ScanOptions::default() };
        let mut walk = Walk::new(&options);
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by(|a, b| items[*a].name.split('/').cmp(items[*b].name.split('/')));
        let mut entries = vec![Err(Skipped::NameTaken); items.len()];
        let mut list = List { walk: &mut walk, open: Vec::new(), files: HashSet::new() };
        for index in order {
            entries[index] = list.add(&items[index])?;
        }
        Ok(ItemScan { scan: walk.finish()?, entries })
    }
}

struct List<'a, 'b> {
    walk: &'a mut Walk<'b>,
    /// The folders that were begun last, outermost first.
    open: Vec<String>,
    /// Names of files so far.
    files: HashSet<String>,
}

impl List<'_, '_> {
    fn add(&mut self, item: &Item) -> Result<Result<EntryId, Skipped>, ScanError> {
        if check_item_name(&item.name).is_err() {
            return Ok(Err(Skipped::NameRefused));
        }
        let above = item.name.match_indices('/').map(|(end, _)| &item.name[..end]);
        if self.files.contains(&item.name) || above.clone().any(|name| self.files.contains(name)) {
            return Ok(Err(Skipped::NameTaken));
        }
        let stat = match rustix::fs::statat(CWD, &item.path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(error) => return Ok(Err(self.skip(item, error))),
        };
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || item.size.is_some_and(|size| size != stat.st_size as u64) {
            return Ok(Err(Skipped::Changed));
        }
        if let Err(error) = super::readable(CWD, &item.path) {
            return Ok(Err(self.skip(item, error)));
        }
        self.folders(&item.name)?;
        let depth = u32::try_from(self.open.len()).unwrap_or(u32::MAX);
        let name = item.name.rsplit('/').next().unwrap_or_default();
        let id = EntryId(self.walk.builder.tree().len());
        let (name, at) = (name.as_bytes(), item.path.as_path());
        let found = Found { folder: CWD, at, name, depth, path: at, stat };
        self.walk.plain_file(&found)?;
        if self.walk.builder.tree().len() == id.0 {
            return Ok(Err(Skipped::Unreadable));
        }
        self.walk.origin.elsewhere.insert(id.0, item.path.clone());
        self.files.insert(item.name.clone());
        Ok(Ok(id))
    }

    fn skip(&mut self, item: &Item, error: Errno) -> Skipped {
        self.walk.problem(&item.path, explain(error));
        match error {
            Errno::NOENT | Errno::NOTDIR => Skipped::Gone,
            Errno::ACCESS | Errno::PERM => Skipped::Unreadable,
            Errno::LOOP => Skipped::Changed,
            _ => Skipped::ReadFailed,
        }
    }

    /// Begins the folders that a file is in, as far as they are not those of the one before.
    fn folders(&mut self, name: &str) -> Result<(), ScanError> {
        let folders: Vec<&str> = name.split('/').collect();
        let folders = &folders[..folders.len() - 1];
        let same = self.open.iter().zip(folders).take_while(|(a, b)| a == *b).count();
        self.open.truncate(same);
        for folder in &folders[same..] {
            let depth = self.open.len();
            push(&mut self.walk.builder, depth, folder, NewKind::Folder).map_err(|problem| {
                let path = name.to_owned();
                ScanError::Tree(crate::object::tree::TreeError { path, problem })
            })?;
            self.walk.origin.fingerprints.push(super::Fingerprint::default());
            self.open.push((*folder).to_owned());
        }
        Ok(())
    }
}
