//! Set digests: what a site holds, in few numbers, so that two catalogs are compared without sending their files.
//!
//! For each holder, site of origin and rule there is one sum a day, and below it a 16-way tree by file key: [`DEPTH_MAX`] levels, of
//! which the third is kept by the writer ([`Leaf`]) and the others follow by adding up, the last one from the files themselves. A
//! sum is the XOR of a hash of (file key, BLAKE3) over the files that the holder has.
//!
//! The day is that on which the file was taken in at its site of origin. It is carried in the offer and in the receipt, because a
//! file's own id tells only when *this* catalog took it in; both ends must sort a file into the same day.
//!
//! Not here: the comparison, which speaks of two catalogs.

use crate::error::Error;
use crate::key::{FILE_KEY_BYTES, FileKey};
use crate::ledger::place_of;
use crate::reader::Reader;
use crate::record::{FileId, RuleId, SiteId, Time};
use crate::schema;
use crate::sql::{Columns, DbError, Row, Value};
use std::collections::BTreeMap;

/// Bytes of a sum.
pub const SUM_BYTES: usize = 16;
/// Levels of the tree below a day.
pub const DEPTH_MAX: u8 = 4;
/// Levels whose sums are kept.
const DEPTH_KEPT: u8 = 3;
/// Files of one node of the last level that are read: far more than there are, for keys are spread evenly.
pub const NODE_FILES_MAX: usize = 1 << 16;

const CONTEXT: &str = "downpour digest set v1";
const DAY_MICROS: i64 = 86_400_000_000;

/// A sum's day: what one site holds of the files that another took in under one rule on one day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetDay {
    /// Who holds the files.
    pub holder: SiteId,
    /// Where they come from.
    pub origin: SiteId,
    /// The rule that took them in.
    pub rule: RuleId,
    /// Days since 1970, UTC.
    pub day: i64,
}

impl SetDay {
    /// The day of a moment.
    pub const fn day_of(time: Time) -> i64 {
        time.0.div_euclid(DAY_MICROS)
    }
}

/// A leaf whose sum is kept: the first 12 bits of the file key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Leaf(pub(crate) u16);

impl Leaf {
    const END: u16 = 1 << (4 * DEPTH_KEPT);

    pub(crate) const fn of(key: &FileKey) -> Self {
        Self((key.0[0] as u16) << 4 | (key.0[1] >> 4) as u16)
    }

    pub(crate) fn from_code(code: i64) -> Option<Self> {
        u16::try_from(code).ok().filter(|leaf| *leaf < Self::END).map(Self)
    }
}

/// How many files, and the sum of their hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetDigest {
    /// Files.
    pub files: i64,
    /// XOR of their hashes.
    pub sum: [u8; SUM_BYTES],
}

impl SetDigest {
    /// Adds another set that shares no file with this one.
    pub fn add(&mut self, other: &Self) {
        self.files += other.files;
        for (mine, theirs) in self.sum.iter_mut().zip(other.sum) {
            *mine ^= theirs;
        }
    }
}

/// The hash by which a file enters a sum.
pub fn entry_hash(key: &FileKey, blake3: &[u8]) -> [u8; SUM_BYTES] {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(&key.0).update(blake3);
    let mut hash = [0; SUM_BYTES];
    hash.copy_from_slice(&hasher.finalize().as_bytes()[..SUM_BYTES]);
    hash
}

/// A node of a day's tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetNode {
    /// Its day.
    pub day: SetDay,
    /// Its level: 0 is the whole day.
    pub depth: u8,
    /// The first `4 * depth` bits of its file keys.
    pub prefix: u16,
}

/// A file in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetEntry {
    /// Its key.
    pub key: FileKey,
    /// Its id in this catalog.
    pub file: FileId,
    /// Its hash.
    pub hash: [u8; SUM_BYTES],
}

impl Reader {
    /// What `holder` has of the files of `origin`, by rule and day.
    pub fn set_days(
        &mut self,
        holder: SiteId,
        origin: SiteId,
    ) -> Result<Vec<(SetDay, SetDigest)>, Error> {
        let condition = "holder = ? AND origin = ?";
        let rows =
            self.set_rows(&schema::SET_DAY, condition, &[holder.0.into(), origin.0.into()])?;
        let mut days: BTreeMap<SetDay, SetDigest> = BTreeMap::new();
        for row in rows {
            let ((day, _), _, digest) = place_of(row, false)?;
            days.entry(day).or_default().add(&digest);
        }
        Ok(days.into_iter().filter(|(_, digest)| digest.files != 0).collect())
    }

    /// The sums of a node's 16 children. The node is above the last level.
    pub fn set_children(&mut self, node: &SetNode) -> Result<[SetDigest; 16], Error> {
        let mut children = [SetDigest::default(); 16];
        if node.depth >= DEPTH_KEPT {
            for entry in self.set_entries(node)? {
                let child = usize::from(entry.key.0[1] & 15);
                children[child].add(&SetDigest { files: 1, sum: entry.hash });
            }
            return Ok(children);
        }
        let shift = 4 * (DEPTH_KEPT - node.depth);
        let first = i64::from(node.prefix) << shift;
        let condition =
            "holder = ? AND origin = ? AND rule = ? AND day = ? AND leaf >= ? AND leaf < ?";
        let mut args = day_args(&node.day);
        args.extend([Value::Int(first), Value::Int(first + (1 << shift))]);
        for row in self.set_rows(&schema::SET_LEAF, condition, &args)? {
            let ((_, leaf), _, digest) = place_of(row, true)?;
            let leaf = leaf.map_or(0, |leaf| i64::from(leaf.0));
            children[((leaf - first) >> (shift - 4)) as usize & 15].add(&digest);
        }
        Ok(children)
    }

    /// The files of a node, by their keys; at most [`NODE_FILES_MAX`]. Only for nodes from the third level on.
    pub fn set_entries(&mut self, node: &SetNode) -> Result<Vec<SetEntry>, Error> {
        let (first, last) = node.keys();
        let text = "SELECT r.file_key, r.file, d.value FROM replica r \
             JOIN digest d ON d.file = r.file AND d.kind = 1 \
             WHERE r.site = ? AND r.origin = ? AND r.rule = ? AND r.day = ? \
             AND r.file_key >= ? AND r.file_key <= ? AND r.state = 1 ORDER BY r.file_key LIMIT ?";
        let mut args = day_args(&node.day);
        args.extend([Value::Bytes(first.to_vec()), Value::Bytes(last.to_vec())]);
        args.push((NODE_FILES_MAX as i64).into());
        let entry = |row| -> Result<SetEntry, DbError> {
            let mut row = Columns::of(row);
            let key: Result<[u8; FILE_KEY_BYTES], _> = row.bytes()?.try_into();
            let key = FileKey(key.map_err(|_| DbError::damaged("a file key of another length"))?);
            let file = FileId(row.int()?);
            Ok(SetEntry { key, file, hash: entry_hash(&key, &row.bytes()?) })
        };
        let rows = self.sql.query(text, &args)?;
        Ok(rows.into_iter().map(entry).collect::<Result<_, _>>()?)
    }

    fn set_rows(
        &mut self,
        table: &crate::sql::Table,
        condition: &str,
        args: &[Value],
    ) -> Result<Vec<Row>, Error> {
        let text = format!("SELECT {} FROM {} WHERE {condition}", table.list(), table.name);
        Ok(self.sql.query(&text, args)?)
    }
}

fn day_args(day: &SetDay) -> Vec<Value> {
    [day.holder.0, day.origin.0, day.rule.0, day.day].map(Value::Int).to_vec()
}

impl SetNode {
    /// Its least and its greatest possible key.
    fn keys(&self) -> ([u8; FILE_KEY_BYTES], [u8; FILE_KEY_BYTES]) {
        let shift = 16 - 4 * u32::from(self.depth.min(DEPTH_MAX));
        let first = u32::from(self.prefix) << shift;
        let last = first | ((1 << shift) - 1);
        let (mut low, mut high) = ([0; FILE_KEY_BYTES], [0xff; FILE_KEY_BYTES]);
        low[..2].copy_from_slice(&(first as u16).to_be_bytes());
        high[..2].copy_from_slice(&(last as u16).to_be_bytes());
        (low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::{Leaf, SetDay, SetDigest, SetNode, entry_hash};
    use crate::key::FileKey;
    use crate::record::{RuleId, SiteId};

    #[test]
    fn sums_forget_order_and_take_out_what_was_added() {
        let of = |n: u8| SetDigest { files: 1, sum: entry_hash(&FileKey([n; 16]), &[n; 32]) };
        let sum = |of: &[SetDigest]| {
            let mut sum = SetDigest::default();
            of.iter().for_each(|one| sum.add(one));
            sum
        };
        assert_eq!(sum(&[of(1), of(2), of(3)]), sum(&[of(3), of(1), of(2)]));
        let gone = SetDigest { files: -1, ..of(3) };
        assert_eq!(sum(&[of(1), of(2), of(3), gone]), sum(&[of(2), of(1)]));
        assert_ne!(
            entry_hash(&FileKey([1; 16]), &[2; 32]),
            entry_hash(&FileKey([1; 16]), &[3; 32])
        );
    }

    #[test]
    fn nodes_are_ranges_of_keys() {
        let id = 1;
        let day = SetDay { holder: SiteId(id), origin: SiteId(id), rule: RuleId(id), day: 0 };
        let keys = |depth, prefix| SetNode { day, depth, prefix }.keys();
        assert_eq!(keys(0, 0), ([0; 16], [0xff; 16]));
        let (first, last) = keys(3, 0xabc);
        assert_eq!(
            (first[..2].to_vec(), last[..3].to_vec()),
            (vec![0xab, 0xc0], vec![0xab, 0xcf, 0xff])
        );
        let (first, last) = keys(4, 0xffff);
        assert_eq!((first[..3].to_vec(), last), (vec![0xff, 0xff, 0], [0xff; 16]));
        let mut key = FileKey([0; 16]);
        key.0[..2].copy_from_slice(&[0xab, 0xcd]);
        assert_eq!(Leaf::of(&key), Leaf(0xabc));
    }
}
