//! Tree sections: entries in few bytes, and back (`docs/protocol.md#MAN-7`, `#MAN-8`).
//!
//! An entry is told relative to the one before: the depth says which open folder it is in, the name
//! shares a prefix with the previous name, mode and owner are left out when they did not change, the
//! time is a difference. 20,000 files of one release take about 20 bytes each. The state runs on from
//! one section to the next.
//!
//! Every choice is forced (`shared` is as long as it can be, a flag is set when it can be), so that
//! what the decoder accepts, the encoder emits the same.

use super::{BODY_TREE, BodyError};
use crate::object::limits::{
    FILE_EXTENTS_MAX, NAME_LEN_MAX, SECTION_TREE_LEN, SYMLINK_LEN_MAX, XATTRS_LEN_MAX, XATTRS_MAX,
};
use crate::object::tree::{
    Entry, EntryId, Extents, Kind, Meta, Mtime, NewEntry, NewKind, Tree, TreeBuilder, Xattr,
};
use crate::object::wire::{Reader, put_bytes, put_signed, put_varint};

const KIND_FOLDER: u8 = 0;
const KIND_DENSE: u8 = 1;
const KIND_SPARSE: u8 = 2;
const KIND_SYMLINK: u8 = 3;
const KIND_HARD_LINK: u8 = 4;
const KIND_STREAM: u8 = 5;
const KIND_MASK: u8 = 7;
const SAME_MODE: u8 = 8;
const SAME_OWNER: u8 = 16;
const HAS_XATTRS: u8 = 32;
const FLAGS_END: u8 = 64;

/// Flags of a body.
const BODY_MORE: u8 = 1;
const BODY_ROOT: u8 = 2;
const BODY_XATTRS: u8 = 4;
const BODY_FLAGS_END: u8 = 8;

/// What an entry is told relative to.
#[derive(Clone, Debug, Default)]
struct Previous {
    name: Vec<u8>,
    folder_mode: u16,
    file_mode: u16,
    uid: u32,
    gid: u32,
    secs: i64,
}

impl Previous {
    fn mode(&mut self, kind: u8) -> &mut u16 {
        if kind == KIND_FOLDER { &mut self.folder_mode } else { &mut self.file_mode }
    }

    fn shared(&self, name: &[u8]) -> usize {
        self.name.iter().zip(name).take_while(|(a, b)| a == b).count()
    }
}

fn has_mode(kind: u8) -> bool {
    !matches!(kind, KIND_SYMLINK | KIND_HARD_LINK)
}

/// Writes a tree, body by body.
pub(crate) struct TreeEncoder<'a> {
    tree: &'a Tree,
    next: u32,
    done: bool,
    /// Folders that the next entry may be in.
    open: Vec<EntryId>,
    previous: Previous,
    sets_written: u32,
}

impl<'a> TreeEncoder<'a> {
    pub(crate) fn new(tree: &'a Tree) -> Self {
        let (open, previous) = (Vec::new(), Previous::default());
        Self { tree, next: 0, done: false, open, previous, sets_written: 0 }
    }

    /// The next body; `None` after the one that holds the last entry.
    pub(crate) fn next_body(&mut self) -> Option<Vec<u8>> {
        self.next_body_of(u32::MAX)
    }

    /// As [`Self::next_body`], with at most `count` entries.
    pub(crate) fn next_body_of(&mut self, count: u32) -> Option<Vec<u8>> {
        if self.done {
            return None;
        }
        let (mut entries, first) = (Vec::new(), self.next);
        // Only the body that has the first entry, if there is any, starts here.
        let root = self.tree.root().filter(|_| first == 0);
        let has_xattrs = self.tree.has_xattrs() && first == 0;
        let mut head = Vec::new();
        if let Some(root) = &root {
            let flags = self.flags(KIND_FOLDER, root);
            head.push(flags);
            self.meta(flags, &root.meta, &mut head);
            self.xattrs(self.tree.root_xattr_set(), root.xattrs, &mut head);
        }
        while self.next < self.tree.len()
            && entries.len() < SECTION_TREE_LEN
            && self.next - first < count
        {
            self.entry(EntryId(self.next), &mut entries);
            self.next += 1;
        }
        self.done = self.next == self.tree.len();
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(!self.done, BODY_MORE)
            | flag(root.is_some(), BODY_ROOT)
            | flag(has_xattrs, BODY_XATTRS);
        let mut body = vec![BODY_TREE, flags];
        body.append(&mut head);
        put_varint(&mut body, u64::from(self.next - first));
        body.append(&mut entries);
        Some(body)
    }

    fn entry(&mut self, id: EntryId, out: &mut Vec<u8>) {
        let entry = self.tree.entry(id);
        let depth = match entry.parent {
            None => 0,
            Some(parent) => 1 + self.open.iter().rposition(|open| *open == parent).unwrap_or(0),
        };
        self.open.truncate(depth);
        if entry.kind == Kind::Folder {
            self.open.push(id);
        }
        let flags = self.flags(self.kind(&entry, id), &entry);
        out.push(flags);
        put_varint(out, depth as u64);
        let shared = self.previous.shared(entry.name);
        put_varint(out, shared as u64);
        put_bytes(out, &entry.name[shared..]);
        self.previous.name.clear();
        self.previous.name.extend_from_slice(entry.name);
        self.meta(flags, &entry.meta, out);
        self.content(&entry, id, out);
        self.xattrs(self.tree.xattr_set(id), entry.xattrs, out);
    }

    /// The first byte of an entry.
    fn flags(&mut self, kind: u8, entry: &Entry<'_>) -> u8 {
        let meta = entry.meta;
        let same_mode = has_mode(kind) && *self.previous.mode(kind) == meta.mode;
        let same_owner = kind != KIND_HARD_LINK
            && (self.previous.uid, self.previous.gid) == (meta.uid, meta.gid);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        kind | flag(same_mode, SAME_MODE)
            | flag(same_owner, SAME_OWNER)
            | flag(!entry.xattrs.is_empty(), HAS_XATTRS)
    }

    fn kind(&self, entry: &Entry<'_>, id: EntryId) -> u8 {
        match entry.kind {
            Kind::Folder => KIND_FOLDER,
            Kind::File { size } if self.is_dense(id, size) => KIND_DENSE,
            Kind::File { .. } => KIND_SPARSE,
            Kind::Stream => KIND_STREAM,
            Kind::Symlink { .. } => KIND_SYMLINK,
            Kind::HardLink { .. } => KIND_HARD_LINK,
        }
    }

    fn is_dense(&self, id: EntryId, size: u64) -> bool {
        match &self.tree.layout().extents()[self.tree.extents(id)] {
            [] => size == 0,
            [only] => only.len == size,
            _ => false,
        }
    }

    fn meta(&mut self, flags: u8, meta: &Meta, out: &mut Vec<u8>) {
        let kind = flags & KIND_MASK;
        if kind == KIND_HARD_LINK {
            return;
        }
        if has_mode(kind) && flags & SAME_MODE == 0 {
            put_varint(out, u64::from(meta.mode));
            *self.previous.mode(kind) = meta.mode;
        }
        if flags & SAME_OWNER == 0 {
            put_varint(out, u64::from(meta.uid));
            put_varint(out, u64::from(meta.gid));
            (self.previous.uid, self.previous.gid) = (meta.uid, meta.gid);
        }
        put_signed(out, meta.mtime.secs.wrapping_sub(self.previous.secs));
        put_varint(out, u64::from(meta.mtime.nanos));
        self.previous.secs = meta.mtime.secs;
    }

    fn content(&self, entry: &Entry<'_>, id: EntryId, out: &mut Vec<u8>) {
        match entry.kind {
            Kind::Folder | Kind::Stream => {}
            Kind::Symlink { text } => put_bytes(out, text),
            Kind::HardLink { to } => put_varint(out, u64::from(id.0 - to.0)),
            Kind::File { size } => {
                put_varint(out, size);
                if self.is_dense(id, size) {
                    return;
                }
                let extents = &self.tree.layout().extents()[self.tree.extents(id)];
                put_varint(out, extents.len() as u64);
                let mut end = 0;
                for extent in extents {
                    put_varint(out, extent.start - end);
                    put_varint(out, extent.len);
                    end = extent.start + extent.len;
                }
            }
        }
    }

    fn xattrs(&mut self, set: Option<u32>, xattrs: &[Xattr], out: &mut Vec<u8>) {
        let Some(set) = set else { return };
        if set < self.sets_written {
            return put_varint(out, u64::from(set) + 1);
        }
        self.sets_written += 1;
        put_varint(out, 0);
        put_varint(out, xattrs.len() as u64);
        for xattr in xattrs {
            put_bytes(out, &xattr.name);
            put_bytes(out, &xattr.value);
        }
    }
}

/// Reads a tree, body by body.
pub(crate) struct TreeDecoder {
    builder: TreeBuilder,
    previous: Previous,
    extents: Vec<(u64, u64)>,
    /// No body has come yet.
    first: bool,
}

impl TreeDecoder {
    /// Refuses trees of more than `entries_max` entries.
    pub(crate) fn new(entries_max: u32) -> Self {
        let (builder, previous) = (TreeBuilder::with_entries_max(entries_max), Previous::default());
        Self { builder, previous, extents: Vec::new(), first: true }
    }

    /// Reads one body. Returns whether more follow.
    pub(crate) fn body(&mut self, body: &[u8]) -> Result<bool, BodyError> {
        let mut reader = Reader::new(body);
        if reader.byte()? != BODY_TREE {
            return Err(BodyError::Text("a part of the tree is missing"));
        }
        let flags = reader.byte()?;
        let of_all = flags & (BODY_ROOT | BODY_XATTRS);
        if flags >= BODY_FLAGS_END || of_all != 0 && !self.first {
            return Err(BodyError::Text("unknown flags"));
        }
        self.first = false;
        if flags & BODY_XATTRS != 0 {
            self.builder.set_has_xattrs();
        }
        if flags & BODY_ROOT != 0 {
            self.root(&mut reader)?;
        }
        let count: u32 = reader.number()?;
        for _ in 0..count {
            self.entry(&mut reader)?;
        }
        if !reader.is_empty() {
            return Err(BodyError::Text("bytes follow its last entry"));
        }
        // Memory is bounded by the bytes that came: each entry takes at least six of them.
        Ok(flags & BODY_MORE != 0)
    }

    pub(crate) fn finish(self) -> Tree {
        self.builder.finish()
    }

    /// What the target folder itself becomes: a folder's entry without depth and name.
    fn root(&mut self, reader: &mut Reader<'_>) -> Result<(), BodyError> {
        let flags = reader.byte()?;
        if flags >= FLAGS_END || flags & KIND_MASK != KIND_FOLDER {
            return Err(BodyError::Text("the top is not a folder"));
        }
        let meta = self.meta(flags, KIND_FOLDER, reader)?;
        // The first set of all, if there is one.
        let xattrs = match flags & HAS_XATTRS {
            0 => Vec::new(),
            _ => self.xattrs(reader)?.0,
        };
        self.builder.set_root(meta, &xattrs)?;
        Ok(())
    }

    fn entry(&mut self, reader: &mut Reader<'_>) -> Result<(), BodyError> {
        let flags = reader.byte()?;
        let kind = flags & KIND_MASK;
        if flags >= FLAGS_END || kind > KIND_STREAM {
            return Err(BodyError::Text("unknown kind of entry"));
        }
        let depth = reader.number()?;
        let name = self.name(reader)?;
        let meta = self.meta(flags, kind, reader)?;
        self.extents.clear();
        let mut text: &[u8] = &[];
        let (mut size, mut back) = (0, 0);
        match kind {
            KIND_SYMLINK => text = reader.bytes(SYMLINK_LEN_MAX)?,
            KIND_HARD_LINK => back = reader.number()?,
            KIND_DENSE => size = reader.varint()?,
            KIND_SPARSE => {
                size = reader.varint()?;
                read_extents(reader, &mut self.extents)?;
            }
            _ => {}
        }
        let (xattrs, known) = match flags & HAS_XATTRS {
            0 => (Vec::new(), None),
            _ => self.xattrs(reader)?,
        };
        let is_new = !xattrs.is_empty();
        let (here, sets) = (self.builder.tree().len(), self.builder.tree().xattr_sets());
        let kind = match kind {
            KIND_FOLDER => NewKind::Folder,
            KIND_DENSE => NewKind::File { size, extents: Extents::Dense },
            KIND_SPARSE => NewKind::File { size, extents: Extents::Sparse(&self.extents) },
            KIND_SYMLINK => NewKind::Symlink { text },
            // A distance of zero, or past the start, is no entry at all: `push` refuses it.
            KIND_HARD_LINK => NewKind::HardLink { to: here.checked_sub(back).unwrap_or(u32::MAX) },
            _ => NewKind::Stream,
        };
        let entry = NewEntry { depth, name: &name, kind, meta, xattrs };
        let id = self.builder.push_of_set(entry, known)?;
        if is_new && self.builder.tree().xattr_set(id) != Some(sets) {
            return Err(BodyError::Text("attributes come twice"));
        }
        self.previous.name = name;
        Ok(())
    }

    fn name(&self, reader: &mut Reader<'_>) -> Result<Vec<u8>, BodyError> {
        let shared: usize = reader.number()?;
        // The longest legal name and then some, so that a name that is too long can still be named.
        let rest = reader.bytes(16 * NAME_LEN_MAX)?;
        let prefix = self.previous.name.get(..shared).ok_or(BodyError::Text("a name is cut"))?;
        let name = [prefix, rest].concat();
        if self.previous.shared(&name) != shared {
            return Err(BodyError::Text("a name is not in its shortest form"));
        }
        Ok(name)
    }

    fn meta(&mut self, flags: u8, kind: u8, reader: &mut Reader<'_>) -> Result<Meta, BodyError> {
        const TWICE: BodyError = BodyError::Text("an unchanged value is told again");
        let mut meta = Meta::default();
        if !has_mode(kind) && flags & SAME_MODE != 0
            || kind == KIND_HARD_LINK && flags & (SAME_OWNER | HAS_XATTRS) != 0
        {
            return Err(BodyError::Text("a link has no such value"));
        }
        if kind == KIND_HARD_LINK {
            return Ok(meta);
        }
        if has_mode(kind) {
            let previous = self.previous.mode(kind);
            if flags & SAME_MODE == 0 {
                let mode = reader.number()?;
                if mode == *previous {
                    return Err(TWICE);
                }
                *previous = mode;
            }
            meta.mode = *previous;
        }
        if flags & SAME_OWNER == 0 {
            let owner = (reader.number()?, reader.number()?);
            if owner == (self.previous.uid, self.previous.gid) {
                return Err(TWICE);
            }
            (self.previous.uid, self.previous.gid) = owner;
        }
        (meta.uid, meta.gid) = (self.previous.uid, self.previous.gid);
        let secs = self.previous.secs.wrapping_add(reader.signed()?);
        self.previous.secs = secs;
        meta.mtime = Mtime { secs, nanos: reader.number()? };
        Ok(meta)
    }

    /// A set of attributes that comes for the first time, or none and the number of one that has come.
    fn xattrs(&self, reader: &mut Reader<'_>) -> Result<(Vec<Xattr>, Option<u32>), BodyError> {
        if !self.builder.tree().has_xattrs() {
            return Err(BodyError::Text("attributes that it has not announced"));
        }
        if let Some(known) = reader.number::<u32>()?.checked_sub(1) {
            if known >= self.builder.tree().xattr_sets() {
                return Err(BodyError::Text("unknown attributes"));
            }
            return Ok((Vec::new(), Some(known)));
        }
        let count: usize = reader.number()?;
        if count == 0 || count > XATTRS_MAX {
            return Err(BodyError::Text("too many attributes, or none"));
        }
        let mut xattrs = Vec::new();
        for _ in 0..count {
            let name = reader.bytes(NAME_LEN_MAX)?.to_vec();
            xattrs.push(Xattr { name, value: reader.bytes(XATTRS_LEN_MAX)?.to_vec() });
        }
        Ok((xattrs, None))
    }
}

fn read_extents(reader: &mut Reader<'_>, out: &mut Vec<(u64, u64)>) -> Result<(), BodyError> {
    let count: usize = reader.number()?;
    if count > FILE_EXTENTS_MAX {
        return Err(BodyError::Text("a file has too many holes"));
    }
    let mut end = 0u64;
    for _ in 0..count {
        // Overflow is kept at the top: `push` refuses what lies outside of the file.
        let start = end.saturating_add(reader.varint()?);
        let len = reader.varint()?;
        out.push((start, len));
        end = start.saturating_add(len);
    }
    Ok(())
}
