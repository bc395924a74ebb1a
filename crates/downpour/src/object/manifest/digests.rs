//! Digest sections: the digests of a span of groups, in order (`docs/protocol.md#MAN-10`).
//!
//! Which groups and files these are follows from the tree, so that the parser knows every length
//! before it reads, and there is one way to write a section.

use super::{BODY_DIGESTS, BodyError};
use crate::object::digest::Digest;
use crate::object::limits::{GROUP_LEN, REASON_LEN_MAX, SECTION_GROUPS_MAX};
use crate::object::tree::{EntryId, Tree};
use crate::object::wire::{Reader, put_bytes, put_varint};
use std::ops::Range;

/// A file that the sender gave up before its digests were complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Withdrawal {
    pub(crate) entry: u32,
    pub(crate) reason: String,
}

/// The content of a digest section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DigestSection {
    pub(crate) groups: Range<u32>,
    /// Where the last group ends in the data space; the length of a stream, in the last section.
    pub(crate) data_end: u64,
    /// Withdrawn since the section before, sorted.
    pub(crate) withdrawn: Vec<Withdrawal>,
    /// One for each group; [`Digest::NONE`] for groups of withdrawn files.
    pub(crate) digests: Vec<Digest>,
}

/// Calls `f` with each file that has groups in `groups`, and with all groups of that file.
fn for_each_file(tree: &Tree, groups: Range<u32>, mut f: impl FnMut(u32, Range<u32>)) {
    let mut at = groups.start;
    while at < groups.end {
        let entry = tree.layout().group(at).entry;
        let of_entry = tree.groups_of(EntryId(entry));
        at = of_entry.end;
        f(entry, of_entry);
    }
}

/// What the parser knows from earlier sections.
pub(crate) struct Known<'a> {
    pub(crate) tree: &'a Tree,
    /// Groups covered so far.
    pub(crate) groups: u32,
    /// Whether this is the last section.
    pub(crate) last: bool,
    /// Whether a file was withdrawn earlier.
    pub(crate) withdrawn: &'a dyn Fn(u32) -> bool,
}

impl DigestSection {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = vec![BODY_DIGESTS];
        put_varint(&mut out, u64::from(self.groups.start));
        put_varint(&mut out, u64::from(self.groups.end - self.groups.start));
        put_varint(&mut out, self.data_end);
        put_varint(&mut out, self.withdrawn.len() as u64);
        for withdrawal in &self.withdrawn {
            put_varint(&mut out, u64::from(withdrawal.entry));
            put_bytes(&mut out, withdrawal.reason.as_bytes());
        }
        for digest in self.digests.iter().filter(|digest| **digest != Digest::NONE) {
            out.extend_from_slice(&digest.0);
        }
        out
    }

    pub(crate) fn parse(body: &[u8], known: &Known<'_>) -> Result<Self, BodyError> {
        let mut reader = Reader::new(body);
        if reader.byte()? != BODY_DIGESTS {
            return Err(BodyError::Text("unknown kind of section"));
        }
        let first: u32 = reader.number()?;
        let count: u32 = reader.number()?;
        let data_end = reader.varint()?;
        if first != known.groups || count > SECTION_GROUPS_MAX {
            return Err(BodyError::Text("its groups are not the next ones"));
        }
        let groups = first..first.checked_add(count).ok_or(BodyError::Text("too many groups"))?;
        check_end(known, &groups, data_end)?;
        let withdrawn = read_withdrawn(&mut reader, known, first)?;
        let given_up = |entry: u32| {
            (known.withdrawn)(entry) || withdrawn.binary_search_by_key(&entry, |w| w.entry).is_ok()
        };
        let mut digests = vec![Digest::NONE; count as usize];
        let mut result = Ok(());
        for_each_file(known.tree, groups.clone(), |entry, of_entry| {
            if given_up(entry) || result.is_err() {
                return;
            }
            let here = of_entry.start.max(groups.start)..of_entry.end.min(groups.end);
            for group in here {
                match reader.array().map(Digest) {
                    Ok(Digest::NONE) => result = Err(BodyError::Text("a digest is zero")),
                    Ok(digest) => digests[(group - first) as usize] = digest,
                    Err(error) => result = Err(error.into()),
                }
            }
        });
        result?;
        if !reader.is_empty() {
            return Err(BodyError::Text("bytes follow its end"));
        }
        Ok(Self { groups, data_end, withdrawn, digests })
    }
}

/// A section tells where it ends, and whether it is the last, as the tree has it (`docs/protocol.md#MAN-12`).
fn check_end(known: &Known<'_>, groups: &Range<u32>, data_end: u64) -> Result<(), BodyError> {
    let layout = known.tree.layout();
    if groups.end > layout.groups() {
        return Err(BodyError::Text("it has more groups than the tree"));
    }
    let ok = if known.tree.is_stream() {
        let whole = data_end.is_multiple_of(GROUP_LEN);
        // Without groups it ends where the section before did.
        data_end >= u64::from(groups.start) * GROUP_LEN
            && data_end.div_ceil(GROUP_LEN) == u64::from(groups.end)
            && (known.last || (whole && !groups.is_empty()))
    } else {
        let end = groups.end.checked_sub(1).map_or(0, |group| layout.group(group).data.end);
        data_end == end && !groups.is_empty() && known.last == (groups.end == layout.groups())
    };
    if ok { Ok(()) } else { Err(BodyError::Text("it does not end where its groups end")) }
}

fn read_withdrawn(
    reader: &mut Reader<'_>,
    known: &Known<'_>,
    first_group: u32,
) -> Result<Vec<Withdrawal>, BodyError> {
    let count: usize = reader.number()?;
    let mut out: Vec<Withdrawal> = Vec::new();
    for _ in 0..count {
        let entry: u32 = reader.number()?;
        let reason = std::str::from_utf8(reader.bytes(REASON_LEN_MAX)?)
            .map_err(|_| BodyError::Text("a reason is not text"))?;
        let in_order = out.last().is_none_or(|last| last.entry < entry);
        let open = entry < known.tree.len()
            && !known.tree.is_stream()
            && known.tree.groups_of(EntryId(entry)).end > first_group
            && !(known.withdrawn)(entry);
        if !in_order || !open {
            return Err(BodyError::Text("it withdraws what it cannot"));
        }
        out.push(Withdrawal { entry, reason: reason.to_owned() });
    }
    Ok(out)
}
