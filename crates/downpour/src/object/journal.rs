//! What survives a receiver that is killed: which groups of which partial files are verified.
//!
//! An append-only file of records, each with its own check, written without buffering or sync:
//!
//! ```text
//! length 1 | kind 1 | payload … | first 8 bytes of the record's BLAKE3
//! ```
//!
//! A killed process loses nothing that it wrote. A crashed machine may have lost file data that the
//! journal speaks of, so the journal also records on which boot and mount its records were made:
//! groups of another boot count only after they have been hashed again. A torn tail is cut off.
//!
//! What is said here of a group is true of its bytes at every moment: before they are replaced, its record
//! is made void, and before a partial file is made anew, all of them are.
//!
//! Records speak of content (path, size, digest), not of a session: a sender that was started again,
//! with a changed tree even, finds what still fits. When most of them are of partial files that are gone, the others are
//! written anew ([`Journal::live`]).

use super::digest::Digest;
use super::disk::write_all_at;
use super::wire::{Reader, put_varint};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{BufReader, Read};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

const KIND_BOOT: u8 = 1;
const KIND_PART: u8 = 2;
const KIND_GROUP: u8 = 3;
const KIND_VOID: u8 = 4;
const CHECK_LEN: usize = 8;

/// Names the content of a partial file: path and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PartKey([u8; 16]);

impl PartKey {
    /// `size` is `None` for a stream.
    pub(crate) fn new(path: &[u8], size: Option<u64>) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&size.unwrap_or(u64::MAX).to_be_bytes());
        hasher.update(path);
        let mut key = [0; 16];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(key)
    }

    /// The partial file's name.
    pub(crate) fn file_name(self) -> Vec<u8> {
        self.0.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
    }
}

/// The name of the partial file, in a lane, of a file with this path and size.
pub(crate) fn part_name(path: &[u8], size: u64) -> String {
    String::from_utf8_lossy(&PartKey::new(path, Some(size)).file_name()).into_owned()
}

/// What the journal knows of one partial file: digests of its groups by index, and whether each was
/// written on this boot.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PartRecord {
    number: u64,
    pub(crate) groups: BTreeMap<u64, (Digest, bool)>,
}

/// An open journal.
pub(crate) struct Journal {
    file: OwnedFd,
    /// Bytes of whole records.
    len: u64,
    boot: Boot,
    parts: HashMap<PartKey, PartRecord>,
    next_number: u64,
    buf: Vec<u8>,
}

/// Asks for a mount's number that no later mount of this boot has; the kernel gives the usual ones again
/// (statx(2), STATX_MNT_ID_UNIQUE, since Linux 6.8).
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Which boot and mount this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Boot([u8; 24]);

impl Boot {
    /// Of this machine, for the file system that `fd` is on.
    pub(crate) fn here(fd: impl AsFd) -> Self {
        let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mount = rustix::fs::statx(fd.as_fd(), "", AtFlags::EMPTY_PATH, MNT_ID_UNIQUE)
            .ok()
            .filter(|stat| stat.stx_mask & MNT_ID_UNIQUE.bits() != 0)
            .map(|stat| stat.stx_mnt_id);
        let mut boot = [0; 24];
        boot[..16].copy_from_slice(&blake3::hash(&id).as_bytes()[..16]);
        // Where the kernel cannot tell, each time is another mount.
        let mount = mount.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        boot[16..].copy_from_slice(&mount.to_be_bytes());
        Self(boot)
    }
}

impl Journal {
    /// Reads what is there, cuts off a torn tail, and appends from then on.
    pub(crate) fn open(file: OwnedFd, boot: Boot) -> Result<Self, std::io::Error> {
        let (parts, buf) = (HashMap::new(), Vec::new());
        let mut journal = Self { file, len: 0, boot, parts, next_number: 0, buf };
        let mut reader = BufReader::new(File::from(journal.file.try_clone()?));
        let mut this_boot = false;
        while let Some(record) = read_record(&mut reader)? {
            if journal.replay(&record, &mut this_boot).is_none() {
                break;
            }
            journal.len += record.len() as u64;
        }
        rustix::fs::ftruncate(&journal.file, journal.len)?;
        if !this_boot {
            put_record(&mut journal.buf, KIND_BOOT, &boot.0);
            journal.flush()?;
        }
        Ok(journal)
    }

    fn replay(&mut self, record: &[u8], this_boot: &mut bool) -> Option<()> {
        let mut reader = Reader::new(&record[2..record.len() - CHECK_LEN]);
        match record[1] {
            KIND_BOOT => *this_boot = reader.array().ok()? == self.boot.0,
            KIND_PART => {
                let number = reader.varint().ok()?;
                let key = PartKey(reader.array().ok()?);
                self.next_number = self.next_number.max(number.checked_add(1)?);
                self.parts.insert(key, PartRecord { number, groups: BTreeMap::new() });
            }
            KIND_GROUP => {
                let key = PartKey(reader.array().ok()?);
                let (number, index) = (reader.varint().ok()?, reader.varint().ok()?);
                let digest = Digest(reader.array().ok()?);
                // A part that was begun anew has another number: what was known before is void.
                if let Some(part) = self.parts.get_mut(&key).filter(|part| part.number == number) {
                    part.groups.insert(index, (digest, *this_boot));
                }
            }
            KIND_VOID => {
                let key = PartKey(reader.array().ok()?);
                let index = reader.varint().ok()?;
                if let Some(part) = self.parts.get_mut(&key) {
                    part.groups.remove(&index);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// What is known of a partial file.
    pub(crate) fn part(&self, key: PartKey) -> Option<&PartRecord> {
        self.parts.get(&key)
    }

    /// The names of the partial files of which any group is known.
    pub(crate) fn names(&self) -> HashSet<Vec<u8>> {
        let known = self.parts.iter().filter(|(_, part)| !part.groups.is_empty());
        known.map(|(key, _)| key.file_name()).collect()
    }

    /// What was read about the partial files of these names, as a journal of its own, if this one is at least twice as long.
    pub(crate) fn live(&self, names: &HashSet<Vec<u8>>) -> Option<Vec<u8>> {
        let mut buf = Vec::new();
        let live = || self.parts.iter().filter(|(key, _)| names.contains(&key.file_name()));
        live().for_each(|(key, part)| put_part(&mut buf, *key, part.number));
        // Of no boot that is named first, then of this one.
        for here in [false, true] {
            if here {
                put_record(&mut buf, KIND_BOOT, &self.boot.0);
            }
            for (key, part) in live() {
                for (index, (digest, _)) in part.groups.iter().filter(|(_, (_, of))| *of == here) {
                    put_group(&mut buf, *key, part.number, *index, *digest);
                }
            }
        }
        (2 * buf.len() as u64 <= self.len).then_some(buf)
    }

    /// A partial file will be begun, or begun anew: nothing of it is verified.
    pub(crate) fn begin(&mut self, key: PartKey) -> Result<(), Errno> {
        let number = self.next_number;
        self.next_number += 1;
        put_part(&mut self.buf, key, number);
        self.flush()?;
        self.parts.insert(key, PartRecord { number, groups: BTreeMap::new() });
        Ok(())
    }

    /// Nothing of any partial file is verified.
    pub(crate) fn forget(&mut self) -> Result<(), Errno> {
        self.parts.clear();
        rustix::fs::ftruncate(&self.file, 0)?;
        self.len = 0;
        put_record(&mut self.buf, KIND_BOOT, &self.boot.0);
        self.flush()
    }

    /// The bytes of groups will be replaced: what is said of them counts no more.
    pub(crate) fn void(&mut self, key: PartKey, groups: Range<u64>) -> Result<(), Errno> {
        let known = self.parts.get(&key).map(|part| part.groups.range(groups));
        let known: Vec<u64> = known.into_iter().flatten().map(|(index, _)| *index).collect();
        for index in &known {
            let mut payload = key.0.to_vec();
            put_varint(&mut payload, *index);
            put_record(&mut self.buf, KIND_VOID, &payload);
        }
        self.flush()?;
        if let Some(part) = self.parts.get_mut(&key) {
            for index in known {
                part.groups.remove(&index);
            }
        }
        Ok(())
    }

    /// A group is verified and written.
    pub(crate) fn verified(
        &mut self,
        key: PartKey,
        index: u64,
        digest: Digest,
    ) -> Result<(), Errno> {
        let Some(part) = self.parts.get(&key) else {
            return Ok(());
        };
        put_group(&mut self.buf, key, part.number, index, digest);
        self.flush()
    }

    /// Writes what is in the buffer behind the last whole record: what a full disk took of others is
    /// overwritten, so that nothing follows a torn record.
    fn flush(&mut self) -> Result<(), Errno> {
        let written = write_all_at(&self.file, &self.buf, self.len);
        if written.is_ok() {
            self.len += self.buf.len() as u64;
        }
        self.buf.clear();
        written
    }
}

fn put_part(buf: &mut Vec<u8>, key: PartKey, number: u64) {
    let mut payload = Vec::new();
    put_varint(&mut payload, number);
    payload.extend_from_slice(&key.0);
    put_record(buf, KIND_PART, &payload);
}

fn put_group(buf: &mut Vec<u8>, key: PartKey, number: u64, index: u64, digest: Digest) {
    let mut payload = key.0.to_vec();
    put_varint(&mut payload, number);
    put_varint(&mut payload, index);
    payload.extend_from_slice(&digest.0);
    put_record(buf, KIND_GROUP, &payload);
}

fn put_record(buf: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    let start = buf.len();
    let len = 2 + payload.len() + CHECK_LEN;
    buf.push(u8::try_from(len).expect("payloads are at most 68 bytes"));
    buf.push(kind);
    buf.extend_from_slice(payload);
    let check = Digest::of(&buf[start..]);
    buf.extend_from_slice(&check.0[..CHECK_LEN]);
}

/// The next whole record; `None` at the end and at the first that is torn or damaged.
fn read_record(reader: &mut impl Read) -> Result<Option<Vec<u8>>, std::io::Error> {
    let mut record = vec![0];
    if !read_full(reader, &mut record)? {
        return Ok(None);
    }
    let len = usize::from(record[0]);
    if len < 2 + CHECK_LEN {
        return Ok(None);
    }
    record.resize(len, 0);
    if !read_full(reader, &mut record[1..])? {
        return Ok(None);
    }
    let (signed, check) = record.split_at(len - CHECK_LEN);
    Ok((Digest::of(signed).0[..CHECK_LEN] == *check).then_some(record))
}

fn read_full(reader: &mut impl Read, buf: &mut [u8]) -> Result<bool, std::io::Error> {
    match reader.read_exact(buf) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{Boot, Journal, PartKey};
    use crate::object::digest::Digest;
    use std::fs::OpenOptions;
    use std::path::Path;

    const BOOT: Boot = Boot([1; 24]);

    fn open(path: &Path, boot: Boot) -> Journal {
        let file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        Journal::open(file.unwrap().into(), boot).unwrap()
    }

    fn write(path: &Path) -> PartKey {
        let key = PartKey::new(b"a/b", Some(77));
        let mut journal = open(path, BOOT);
        journal.begin(key).unwrap();
        for index in 0..3 {
            journal.verified(key, index, Digest::of(&[index as u8])).unwrap();
        }
        key
    }

    #[test]
    fn groups_come_back_and_count_for_their_boot_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let key = write(&path);
        let journal = open(&path, BOOT);
        assert_eq!(journal.part(key).unwrap().groups[&2], (Digest::of(&[2]), true));
        assert!(journal.part(PartKey::new(b"a/b", Some(78))).is_none());
        let mut other = open(&path, Boot([2; 24]));
        assert_eq!(other.part(key).unwrap().groups[&2], (Digest::of(&[2]), false));
        other.verified(key, 2, Digest::of(&[9])).unwrap();
        let again = open(&path, Boot([2; 24]));
        let groups = &again.part(key).unwrap().groups;
        assert_eq!((groups[&1].1, groups[&2]), (false, (Digest::of(&[9]), true)));
    }

    #[test]
    fn a_part_begun_anew_has_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let key = write(&path);
        open(&path, BOOT).begin(key).unwrap();
        assert!(open(&path, BOOT).part(key).unwrap().groups.is_empty());
    }

    #[test]
    fn what_lives_is_a_journal_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (path, short) = (dir.path().join("journal"), dir.path().join("short"));
        let key = write(&path);
        let mut other = open(&path, Boot([2; 24]));
        other.verified(key, 7, Digest::of(&[7])).unwrap();
        let names = open(&path, Boot([2; 24])).names();
        for i in 0..9 {
            let gone = PartKey::new(b"gone", Some(i));
            other.begin(gone).unwrap();
            other.verified(gone, 0, Digest::of(b"")).unwrap();
            assert_eq!(open(&path, Boot([2; 24])).live(&names).is_some(), i > 2, "{i}");
        }
        let long = open(&path, Boot([2; 24]));
        std::fs::write(&short, long.live(&names).unwrap()).unwrap();
        for boot in [Boot([2; 24]), Boot([3; 24])] {
            let (long, short) = (open(&path, boot), open(&short, boot));
            assert_eq!((short.part(key), short.parts.len()), (long.part(key), 1));
        }
    }

    #[test]
    fn groups_are_void_by_ranges() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let key = write(&path);
        open(&path, BOOT).void(key, 1..77).unwrap();
        assert!(open(&path, BOOT).part(key).unwrap().groups.keys().eq(&[0]));
    }

    #[test]
    fn torn_anywhere_the_rest_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let key = write(&path);
        let whole = std::fs::read(&path).unwrap();
        let mut seen = std::collections::HashSet::new();
        for len in (0..whole.len()).rev() {
            std::fs::write(&path, &whole[..len]).unwrap();
            let mut journal = open(&path, BOOT);
            let count = journal.part(key).map(|part| part.groups.len());
            seen.insert(count);
            assert!(count.is_none_or(|count| count < 3));
            // What is appended after a cut must be found again.
            journal.begin(key).unwrap();
            journal.verified(key, 7, Digest::of(b"7")).unwrap();
            drop(journal);
            assert!(open(&path, BOOT).part(key).unwrap().groups.contains_key(&7), "{len}");
        }
        assert_eq!(seen.len(), 4, "no part, and 0, 1, 2 groups");
    }

    #[test]
    fn damage_ends_what_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let key = write(&path);
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0x40;
            std::fs::write(&path, bad).unwrap();
            let journal = open(&path, BOOT);
            let groups = journal.part(key).map(|part| part.groups.clone()).unwrap_or_default();
            for (index, (digest, _)) in groups {
                assert_eq!(digest, Digest::of(&[index as u8]), "{at}");
            }
        }
    }
}
