//! The tree: every entry that a session carries, and where its bytes lie in the data space.
//!
//! Entries are in one canonical order: a folder comes before what is in it, and siblings are sorted by
//! the bytes of their names. An entry has its parent's number and one name, so that a path cannot say
//! `..` or start with `/`, and a file cannot lie below a link: [`TreeBuilder::push`] checks each rule,
//! for the scanner of our own disk and for the parser of a stranger's manifest alike.
//!
//! Deliberately absent: digests (they come section by section), names of owners.

use super::layout::Layout;
use super::limits::{
    DATA_LEN_MAX, ENTRIES_MAX, EXTENTS_MAX, FILE_EXTENTS_MAX, FILE_LEN_MAX, NAME_LEN_MAX,
    NAMES_LEN_MAX, NAMES_LEN_OF_ENTRY, PATH_LEN_MAX, SYMLINK_LEN_MAX, XATTR_SETS_LEN_MAX,
    XATTRS_LEN_MAX, XATTRS_MAX,
};
use super::xattr::is_trusted;
use downpour_transport::control::turns_text;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// The receiver's own folder below a target; no entry may have this name at the top.
pub const STAGING_NAME: &[u8] = b".downpour";

const NO_PARENT: u32 = u32::MAX;

/// Number of an entry within its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(pub u32);

/// Time of last modification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mtime {
    /// Seconds since 1970, negative before.
    pub secs: i64,
    /// Below 10^9.
    pub nanos: u32,
}

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Xattr {
    /// With its namespace, as in `user.comment`.
    pub name: Vec<u8>,
    /// Any bytes.
    pub value: Vec<u8>,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A folder.
    Folder,
    /// A regular file.
    File {
        /// Its size, holes counted.
        size: u64,
    },
    /// The bytes of a pipe, whose length nobody knows yet. A tree that has one has nothing else.
    Stream,
    /// A symbolic link.
    Symlink {
        /// What it says; it is never followed.
        text: &'a [u8],
    },
    /// Another name of an earlier regular file.
    HardLink {
        /// That file.
        to: EntryId,
    },
}

/// Mode, owner and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits with setuid, setgid and sticky: at most `0o7777`. Zero for links.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group of the owner.
    pub gid: u32,
    /// Last modification.
    pub mtime: Mtime,
}

/// A view of one entry.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// The folder that it is in, `None` at the top.
    pub parent: Option<EntryId>,
    /// Its own name.
    pub name: &'a [u8],
    /// What it is.
    pub kind: Kind<'a>,
    /// Mode, owner and time; those of a hard link are its target's, and are zero here.
    pub meta: Meta,
    /// Extended attributes, sorted by name.
    pub xattrs: &'a [Xattr],
}

/// What [`TreeBuilder::push`] is given.
#[derive(Clone, Debug)]
pub(crate) struct NewEntry<'a> {
    /// Folders above it: 0 at the top.
    pub(crate) depth: u32,
    pub(crate) name: &'a [u8],
    pub(crate) kind: NewKind<'a>,
    pub(crate) meta: Meta,
    pub(crate) xattrs: Vec<Xattr>,
}

/// As [`Kind`], with the data extents (offset, length) of a file.
#[derive(Clone, Debug)]
pub(crate) enum NewKind<'a> {
    Folder,
    File { size: u64, extents: Extents<'a> },
    Stream,
    Symlink { text: &'a [u8] },
    HardLink { to: u32 },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Extents<'a> {
    /// No holes.
    Dense,
    /// Offset and length of each.
    Sparse(&'a [(u64, u64)]),
}

/// A rule that a tree breaks, with the entry that breaks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeError {
    /// The entry's path, printable.
    pub path: String,
    /// The rule.
    pub problem: TreeProblem,
}

/// A rule that a tree must keep (`docs/protocol.md#MAN-9`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TreeProblem {
    /// The name is empty.
    NameEmpty,
    /// The name is longer than [`NAME_LEN_MAX`].
    NameTooLong,
    /// The name is `.` or `..`, or has `/` or NUL in it.
    NameForbidden,
    /// The name is [`STAGING_NAME`], at the top.
    NameReserved,
    /// The path is longer than [`PATH_LEN_MAX`].
    PathTooLong,
    /// What it claims to be in is no folder.
    NotInFolder,
    /// Its path has come before.
    Duplicate,
    /// It comes after an entry that sorts later.
    OutOfOrder,
    /// More entries than this, or too many names.
    TooManyEntries(u32),
    /// Too many data extents.
    TooManyExtents,
    /// The size is above [`FILE_LEN_MAX`].
    FileTooLong,
    /// All files together exceed [`DATA_LEN_MAX`].
    DataTooLong,
    /// Data extents overlap, are empty, or lie outside of the file.
    Extents,
    /// A symbolic link's text is empty, too long, or has NUL in it.
    Symlink,
    /// A hard link's target is not an earlier regular file.
    HardLink,
    /// Mode or time out of range.
    Meta,
    /// Extended attributes are too many, too long, unsorted or repeated.
    Xattrs,
    /// A stream is not alone.
    Stream,
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.problem {
            TreeProblem::TooManyEntries(max) => {
                let (who, todo) = match max {
                    ENTRIES_MAX => ("one session carries", "send the tree in parts"),
                    _ => {
                        ("this receiver takes", "give it a greater --max-entries if that is right")
                    }
                };
                let names = "or more than 512 bytes of names and links for each";
                let what = format!("there are more entries than the {max} that {who}, {names}");
                return write!(f, "{}: {what}: {todo}", self.path);
            }
            TreeProblem::NameEmpty => "the name is empty",
            TreeProblem::NameTooLong => "the name is longer than 255 bytes",
            TreeProblem::NameForbidden => "the name is '.' or '..', or has '/' or NUL in it",
            TreeProblem::NameReserved => "the name is kept for the receiver's own folder",
            TreeProblem::PathTooLong => "the path is longer than 4095 bytes",
            TreeProblem::NotInFolder => "it lies below something that is not a folder",
            TreeProblem::Duplicate => "the path comes twice",
            TreeProblem::OutOfOrder => "the entries are not sorted",
            TreeProblem::TooManyExtents => "there are too many holes",
            TreeProblem::FileTooLong => "the size is above the limit of 1 PiB",
            TreeProblem::DataTooLong => "all files together are above the limit of 64 TiB",
            TreeProblem::Extents => "its data overlap, or lie outside of it",
            TreeProblem::Symlink => "the link's text is empty, too long, or has NUL in it",
            TreeProblem::HardLink => "it is a hard link to something that is not an earlier file",
            TreeProblem::Meta => "mode or time is out of range",
            TreeProblem::Xattrs => "extended attributes are too many, too long or unsorted",
            TreeProblem::Stream => "a stream must be alone",
        };
        write!(f, "{}: {text}", self.path)
    }
}

impl std::error::Error for TreeError {}

/// Any bytes as printable text, for messages: escaped, and cut in the middle when very long.
pub fn printable(path: &[u8]) -> String {
    const SHOWN: usize = 300;
    let escape = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|c| c.is_control() || turns_text(c)) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    };
    if path.len() <= SHOWN {
        return escape(path);
    }
    let (head, tail) = (&path[..SHOWN / 2], &path[path.len() - SHOWN / 2..]);
    format!("{}…{}", escape(head), escape(tail))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Folder,
    File,
    Stream,
    Symlink,
    HardLink,
}

/// One entry, 56 bytes: a tree may have millions.
#[derive(Clone, Copy, Debug)]
struct Record {
    mtime: i64,
    /// Size of a file, target of a hard link, place and length of a link's text.
    aux: u64,
    nanos: u32,
    uid: u32,
    gid: u32,
    parent: u32,
    name: u32,
    /// First extent; the next record's tells where they end.
    extent: u32,
    mode: u16,
    name_len: u8,
    tag: Tag,
}

/// A checked tree. Cannot be changed.
#[derive(Debug)]
pub struct Tree {
    names: Vec<u8>,
    records: Vec<Record>,
    layout: Layout,
    xattr_sets: Vec<Vec<Xattr>>,
    xattr_of: HashMap<u32, u32>,
    has_xattrs: bool,
    /// Of the target folder itself, and its set of attributes.
    root: Option<(Meta, Option<u32>)>,
    size: u64,
    files: u32,
}

impl Tree {
    /// Number of entries.
    pub fn len(&self) -> u32 {
        self.records.len() as u32
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Number of regular files (hard links not counted).
    pub fn files(&self) -> u32 {
        self.files
    }

    /// Size of all files, holes counted; of a stream, 0.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What the target folder itself becomes, as an entry without a name: told when a folder's contents are
    /// sent.
    pub fn root(&self) -> Option<Entry<'_>> {
        let (meta, set) = self.root?;
        let xattrs = set.map_or(&[][..], |set| &self.xattr_sets[set as usize]);
        Some(Entry { parent: None, name: b"", kind: Kind::Folder, meta, xattrs })
    }

    /// Whether extended attributes are told: an entry without any has none then. If not, nothing is known of them.
    pub fn has_xattrs(&self) -> bool {
        self.has_xattrs
    }

    /// Whether any `trusted.*` is told. If not, the sender may be one that does not see them, which is not told.
    pub(crate) fn tells_trusted(&self) -> bool {
        self.xattr_sets.iter().flatten().any(|xattr| is_trusted(&xattr.name))
    }

    /// The set of extended attributes of the target folder.
    pub(crate) fn root_xattr_set(&self) -> Option<u32> {
        self.root.and_then(|(_, set)| set)
    }

    /// Length of the data space, `None` for a stream.
    pub fn data_len(&self) -> Option<u64> {
        if self.is_stream() { None } else { Some(self.layout.data_len()) }
    }

    /// Whether this is the one entry of a pipe.
    pub fn is_stream(&self) -> bool {
        matches!(self.records.first(), Some(record) if record.tag == Tag::Stream)
    }

    /// All numbers of entries.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = EntryId> + use<> {
        (0..self.len()).map(EntryId)
    }

    /// One entry.
    ///
    /// # Panics
    /// If `id` is of another tree: the caller's bug.
    pub fn entry(&self, id: EntryId) -> Entry<'_> {
        let record = &self.records[id.0 as usize];
        let kind = match record.tag {
            Tag::Folder => Kind::Folder,
            Tag::File => Kind::File { size: record.aux },
            Tag::Stream => Kind::Stream,
            Tag::Symlink => {
                let (at, len) = ((record.aux >> 32) as usize, record.aux as u32 as usize);
                Kind::Symlink { text: &self.names[at..at + len] }
            }
            Tag::HardLink => Kind::HardLink { to: EntryId(record.aux as u32) },
        };
        let xattrs =
            self.xattr_of.get(&id.0).map_or(&[][..], |set| &self.xattr_sets[*set as usize]);
        Entry {
            parent: (record.parent != NO_PARENT).then_some(EntryId(record.parent)),
            name: self.name(record),
            kind,
            meta: Meta {
                mode: record.mode,
                uid: record.uid,
                gid: record.gid,
                mtime: Mtime { secs: record.mtime, nanos: record.nanos },
            },
            xattrs,
        }
    }

    fn name(&self, record: &Record) -> &[u8] {
        &self.names[record.name as usize..][..usize::from(record.name_len)]
    }

    /// Path below the target.
    pub fn path(&self, id: EntryId) -> Vec<u8> {
        let mut chain = vec![];
        let mut at = id.0;
        while at != NO_PARENT {
            let record = &self.records[at as usize];
            chain.push(self.name(record));
            at = record.parent;
        }
        chain.reverse();
        chain.join(&b'/')
    }

    /// Path below the target, for messages.
    pub fn path_text(&self, id: EntryId) -> String {
        printable(&self.path(id))
    }

    /// Size of a regular file; `None` of anything else (and of a stream).
    pub fn file_size(&self, id: EntryId) -> Option<u64> {
        let record = &self.records[id.0 as usize];
        (record.tag == Tag::File).then_some(record.aux)
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The extents of an entry, as an index range into the layout's.
    pub(crate) fn extents(&self, id: EntryId) -> Range<usize> {
        let next = id.0 as usize + 1;
        let end = self.records.get(next).map_or(self.layout.extents().len(), |r| r.extent as usize);
        self.records[id.0 as usize].extent as usize..end
    }

    /// The groups of an entry; empty when it has no data.
    pub(crate) fn groups_of(&self, id: EntryId) -> Range<u32> {
        self.layout.groups_of(self.extents(id))
    }

    /// Files that hold no data: empty ones, and those that are one hole.
    pub(crate) fn empty_files(&self) -> impl Iterator<Item = EntryId> {
        self.ids().filter(|id| self.file_size(*id).is_some() && self.extents(*id).is_empty())
    }

    /// The bytes of an entry in the data space.
    pub(crate) fn data_of(&self, id: EntryId) -> Range<u64> {
        match &self.layout.extents()[self.extents(id)] {
            [] => 0..0,
            [first, ..] => {
                let end = self.layout.extents().get(self.extents(id).end);
                first.data..end.map_or(self.layout.data_len(), |next| next.data)
            }
        }
    }

    /// Number of distinct sets of extended attributes.
    pub(crate) fn xattr_sets(&self) -> u32 {
        self.xattr_sets.len() as u32
    }

    /// The set of extended attributes that the entry shares with others.
    pub(crate) fn xattr_set(&self, id: EntryId) -> Option<u32> {
        self.xattr_of.get(&id.0).copied()
    }
}

/// Builds a tree, entry by entry, and checks every rule.
#[derive(Debug)]
pub(crate) struct TreeBuilder {
    tree: Tree,
    /// The folders that the next entry may be in, outermost first.
    open: Vec<Open>,
    last_at_top: Option<u32>,
    set_ids: HashMap<Vec<Xattr>, u32>,
    sets_len: usize,
    entries_max: u32,
    names_max: usize,
}

#[derive(Debug)]
struct Open {
    folder: u32,
    path_len: usize,
    last_child: Option<u32>,
}

impl TreeBuilder {
    pub(crate) fn new() -> Self {
        Self::with_entries_max(ENTRIES_MAX)
    }

    /// Takes no more entries than this.
    pub(crate) fn with_entries_max(entries_max: u32) -> Self {
        Self {
            tree: Tree {
                names: Vec::new(),
                records: Vec::new(),
                layout: Layout::default(),
                xattr_sets: Vec::new(),
                xattr_of: HashMap::new(),
                has_xattrs: false,
                root: None,
                size: 0,
                files: 0,
            },
            open: Vec::new(),
            last_at_top: None,
            set_ids: HashMap::new(),
            sets_len: 0,
            entries_max: entries_max.min(ENTRIES_MAX),
            names_max: NAMES_LEN_MAX.min(entries_max as usize * NAMES_LEN_OF_ENTRY),
        }
    }

    /// What has been pushed so far.
    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Number of folders that the next entry may be in.
    pub(crate) fn depth_max(&self) -> u32 {
        self.open.len() as u32
    }

    pub(crate) fn finish(self) -> Tree {
        self.tree
    }

    /// Says that extended attributes are told.
    pub(crate) fn set_has_xattrs(&mut self) {
        self.tree.has_xattrs = true;
    }

    /// Says what the target folder itself becomes: before all entries.
    pub(crate) fn set_root(&mut self, meta: Meta, xattrs: &[Xattr]) -> Result<(), TreeError> {
        debug_assert!(self.tree.is_empty() && self.tree.root.is_none());
        let error = |problem| TreeError { path: "the top folder".to_owned(), problem };
        check_folder(&meta).map_err(error)?;
        self.tree.root = Some((meta, self.intern(xattrs).map_err(error)?));
        Ok(())
    }

    /// Appends an entry; its number is the number of entries before.
    pub(crate) fn push(&mut self, entry: NewEntry<'_>) -> Result<EntryId, TreeError> {
        self.push_of_set(entry, None)
    }

    /// The same of an entry whose attributes are those of `set`, if it is given, which must be one of the tree.
    pub(crate) fn push_of_set(
        &mut self,
        entry: NewEntry<'_>,
        set: Option<u32>,
    ) -> Result<EntryId, TreeError> {
        self.try_push(&entry, set).map_err(|problem| {
            let mut path = match entry.depth.min(self.depth_max()) {
                0 => Vec::new(),
                depth => self.tree.path(EntryId(self.open[depth as usize - 1].folder)),
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(entry.name);
            TreeError { path: printable(&path), problem }
        })
    }

    fn try_push(&mut self, entry: &NewEntry<'_>, set: Option<u32>) -> Result<EntryId, TreeProblem> {
        check_name(entry.name, entry.depth)?;
        let path_len = self.check_place(entry)?;
        check_meta(entry)?;
        self.check_kind(&entry.kind)?;
        let set = match set {
            Some(set) => Some(set),
            None => self.intern(&entry.xattrs)?,
        };
        // Everything is checked: only now the tree changes.
        let id = self.tree.records.len() as u32;
        self.tree.records.push(self.record(entry));
        self.tree.names.extend_from_slice(entry.name);
        if let NewKind::Symlink { text } = entry.kind {
            self.tree.names.extend_from_slice(text);
        }
        self.push_extents(id, &entry.kind);
        if let Some(set) = set {
            self.tree.xattr_of.insert(id, set);
        }
        self.open.truncate(entry.depth as usize);
        match self.open.last_mut() {
            Some(parent) => parent.last_child = Some(id),
            None => self.last_at_top = Some(id),
        }
        if matches!(entry.kind, NewKind::Folder) {
            self.open.push(Open { folder: id, path_len, last_child: None });
        }
        Ok(EntryId(id))
    }

    /// Order, duplicates, depth and path length. Returns the length of the path.
    fn check_place(&self, entry: &NewEntry<'_>) -> Result<usize, TreeProblem> {
        if self.tree.is_stream() {
            return Err(TreeProblem::Stream);
        }
        let full = self.tree.records.len() >= self.entries_max as usize;
        if full || self.tree.names.len() > self.names_max {
            return Err(TreeProblem::TooManyEntries(self.entries_max));
        }
        let depth = entry.depth as usize;
        if depth > self.open.len() {
            return Err(TreeProblem::NotInFolder);
        }
        let (above, last) = match depth.checked_sub(1).map(|i| &self.open[i]) {
            Some(parent) => (parent.path_len + 1, parent.last_child),
            None => (0, self.last_at_top),
        };
        if let Some(last) = last {
            match entry.name.cmp(self.tree.name(&self.tree.records[last as usize])) {
                std::cmp::Ordering::Greater => {}
                std::cmp::Ordering::Equal => return Err(TreeProblem::Duplicate),
                std::cmp::Ordering::Less => return Err(TreeProblem::OutOfOrder),
            }
        }
        let path_len = above + entry.name.len();
        if path_len > PATH_LEN_MAX { Err(TreeProblem::PathTooLong) } else { Ok(path_len) }
    }

    fn check_kind(&self, kind: &NewKind<'_>) -> Result<(), TreeProblem> {
        match kind {
            NewKind::Folder => Ok(()),
            NewKind::Stream if self.tree.is_empty() && self.tree.root.is_none() => Ok(()),
            NewKind::Stream => Err(TreeProblem::Stream),
            NewKind::Symlink { text } => {
                let ok = (1..=SYMLINK_LEN_MAX).contains(&text.len()) && !text.contains(&0);
                if ok { Ok(()) } else { Err(TreeProblem::Symlink) }
            }
            NewKind::HardLink { to } => match self.tree.records.get(*to as usize) {
                Some(record) if record.tag == Tag::File => Ok(()),
                _ => Err(TreeProblem::HardLink),
            },
            NewKind::File { size, extents } => self.check_extents(*size, extents),
        }
    }

    fn check_extents(&self, size: u64, extents: &Extents<'_>) -> Result<(), TreeProblem> {
        if size > FILE_LEN_MAX {
            return Err(TreeProblem::FileTooLong);
        }
        let (count, data) = match extents {
            Extents::Dense => (usize::from(size > 0), size),
            Extents::Sparse(list) => (list.len(), check_sparse(size, list)?),
        };
        if self.tree.layout.extents().len() + count > EXTENTS_MAX as usize {
            return Err(TreeProblem::TooManyExtents);
        }
        if self.tree.layout.data_len() + data > DATA_LEN_MAX {
            return Err(TreeProblem::DataTooLong);
        }
        Ok(())
    }

    fn record(&self, entry: &NewEntry<'_>) -> Record {
        let name = self.tree.names.len();
        let (tag, aux) = match entry.kind {
            NewKind::Folder => (Tag::Folder, 0),
            NewKind::File { size, .. } => (Tag::File, size),
            NewKind::Stream => (Tag::Stream, 0),
            NewKind::Symlink { text } => {
                let at = name + entry.name.len();
                (Tag::Symlink, (at as u64) << 32 | text.len() as u64)
            }
            NewKind::HardLink { to } => (Tag::HardLink, u64::from(to)),
        };
        let depth = entry.depth as usize;
        Record {
            mtime: entry.meta.mtime.secs,
            aux,
            nanos: entry.meta.mtime.nanos,
            uid: entry.meta.uid,
            gid: entry.meta.gid,
            parent: depth.checked_sub(1).map_or(NO_PARENT, |i| self.open[i].folder),
            name: name as u32,
            extent: self.tree.layout.extents().len() as u32,
            mode: entry.meta.mode,
            name_len: entry.name.len() as u8,
            tag,
        }
    }

    fn push_extents(&mut self, id: u32, kind: &NewKind<'_>) {
        match kind {
            NewKind::Stream => self.tree.layout.push(id, 0, DATA_LEN_MAX),
            NewKind::File { size, extents } => {
                self.tree.files += 1;
                self.tree.size = self.tree.size.saturating_add(*size);
                match extents {
                    Extents::Dense if *size == 0 => {}
                    Extents::Dense => self.tree.layout.push(id, 0, *size),
                    Extents::Sparse(list) => {
                        list.iter()
                            .for_each(|(start, len)| self.tree.layout.push(id, *start, *len));
                    }
                }
            }
            _ => {}
        }
    }

    /// The number of this set of attributes; equal sets (ACLs mostly are) share one.
    fn intern(&mut self, xattrs: &[Xattr]) -> Result<Option<u32>, TreeProblem> {
        if xattrs.is_empty() {
            return Ok(None);
        }
        let len: usize = xattrs.iter().map(|x| x.name.len() + x.value.len()).sum();
        let sorted = xattrs.windows(2).all(|pair| pair[0].name < pair[1].name);
        let named = xattrs
            .iter()
            .all(|x| (1..=NAME_LEN_MAX).contains(&x.name.len()) && !x.name.contains(&0));
        if xattrs.len() > XATTRS_MAX || len > XATTRS_LEN_MAX || !sorted || !named {
            return Err(TreeProblem::Xattrs);
        }
        if let Some(id) = self.set_ids.get(xattrs) {
            return Ok(Some(*id));
        }
        if self.sets_len + len > XATTR_SETS_LEN_MAX {
            return Err(TreeProblem::Xattrs);
        }
        self.sets_len += len;
        let id = self.tree.xattr_sets.len() as u32;
        self.set_ids.insert(xattrs.to_vec(), id);
        self.tree.xattr_sets.push(xattrs.to_vec());
        Ok(Some(id))
    }
}

/// Whether something at the top of a target may be called so (`docs/protocol.md#MAN-9`).
pub(crate) fn is_plain_name(name: &[u8]) -> bool {
    check_name(name, 0).is_ok()
}

fn check_name(name: &[u8], depth: u32) -> Result<(), TreeProblem> {
    match name {
        b"" => Err(TreeProblem::NameEmpty),
        b"." | b".." => Err(TreeProblem::NameForbidden),
        _ if name.contains(&b'/') || name.contains(&0) => Err(TreeProblem::NameForbidden),
        _ if name.len() > NAME_LEN_MAX => Err(TreeProblem::NameTooLong),
        _ if depth == 0 && name == STAGING_NAME => Err(TreeProblem::NameReserved),
        _ => Ok(()),
    }
}

fn check_folder(meta: &Meta) -> Result<(), TreeProblem> {
    let ok = meta.mode <= 0o7777 && meta.mtime.nanos < 1_000_000_000;
    if ok { Ok(()) } else { Err(TreeProblem::Meta) }
}

fn check_meta(entry: &NewEntry<'_>) -> Result<(), TreeProblem> {
    check_folder(&entry.meta)?;
    let link = matches!(entry.kind, NewKind::Symlink { .. } | NewKind::HardLink { .. });
    let hard = matches!(entry.kind, NewKind::HardLink { .. });
    let ok = (!link || entry.meta.mode == 0)
        && (!hard || (entry.meta == Meta::default() && entry.xattrs.is_empty()));
    if ok { Ok(()) } else { Err(TreeProblem::Meta) }
}

/// Returns the bytes of data.
fn check_sparse(size: u64, extents: &[(u64, u64)]) -> Result<u64, TreeProblem> {
    if extents.len() > FILE_EXTENTS_MAX {
        return Err(TreeProblem::TooManyExtents);
    }
    // One extent over everything is a dense file: there is one way to say each thing.
    if extents == [(0, size)] || size == 0 {
        return Err(TreeProblem::Extents);
    }
    let (mut end, mut data) = (None, 0u64);
    for (start, len) in extents {
        let after = start.checked_add(*len).ok_or(TreeProblem::Extents)?;
        if *len == 0 || after > size || end.is_some_and(|end| *start <= end) {
            return Err(TreeProblem::Extents);
        }
        end = Some(after);
        data += len;
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::{Meta, NewEntry, NewKind, SYMLINK_LEN_MAX, TreeBuilder, TreeProblem, printable};

    #[test]
    fn who_takes_few_entries_takes_few_bytes_of_names_and_links() {
        let (mut builder, text) = (TreeBuilder::with_entries_max(20), [b'x'; SYMLINK_LEN_MAX]);
        let mut push = |name: u8| {
            let (kind, meta) = (NewKind::Symlink { text: &text }, Meta::default());
            builder.push(NewEntry { depth: 0, name: &[name], kind, meta, xattrs: Vec::new() })
        };
        for name in *b"abc" {
            push(name).unwrap();
        }
        assert_eq!(push(b'd').unwrap_err().problem, TreeProblem::TooManyEntries(20));
    }

    #[test]
    fn what_speaks_to_a_terminal_or_turns_its_text_is_escaped() {
        assert_eq!(printable("run/漢🙂".as_bytes()), "run/漢🙂");
        assert_eq!(printable(b"a\x1b[2J"), r"a\x1b[2J");
        assert_eq!(printable("odd/\u{202e}gpj.exe".as_bytes()), r"odd/\xe2\x80\xaegpj.exe");
        for turns in ['\u{61c}', '\u{200f}', '\u{202a}', '\u{2066}', '\u{2069}'] {
            assert!(printable(turns.to_string().as_bytes()).is_ascii(), "{turns:?}");
        }
    }
}
