//! The parsers of the manifest, as the fuzz targets call them. Only in builds for fuzzing.
//!
//! What is accepted must be emitted as it stood, and must keep the rules of the tree whatever it says.

use super::digests::Known;
use super::{DigestSection, TreeDecoder, tree_bodies};
use crate::object::limits::{DATA_LEN_MAX, ENTRIES_MAX, FILE_LEN_MAX, NAME_LEN_MAX, PATH_LEN_MAX};
use crate::object::tree::{Kind, STAGING_NAME, Tree};

/// Reads the body of a tree section; `None` when it is refused.
pub fn tree(body: &[u8]) -> Option<Tree> {
    let mut decoder = TreeDecoder::new(ENTRIES_MAX);
    let more = decoder.body(body).ok()?;
    let tree = decoder.finish();
    let mut alone = body.to_vec();
    // Whether more follow is not the tree's.
    alone[1] &= !1;
    assert!(more || alone == body);
    assert_eq!(tree_bodies(&tree), [alone]);
    check(&tree);
    Some(tree)
}

/// Reads the body of a digest section of `tree`, after `groups` groups; false when it is refused.
pub fn digests(tree: &Tree, groups: u32, last: bool, gone: u32, body: &[u8]) -> bool {
    let known = Known { tree, groups, last, withdrawn: &|entry| entry == gone };
    let Ok(section) = DigestSection::parse(body, &known) else { return false };
    assert_eq!(section.emit(), body);
    true
}

fn check(tree: &Tree) {
    let mut extents = 0;
    for id in tree.ids() {
        let entry = tree.entry(id);
        assert!(!entry.name.is_empty() && entry.name.len() <= NAME_LEN_MAX);
        assert!(!entry.name.contains(&b'/') && !entry.name.contains(&0));
        assert!(entry.name != b"." && entry.name != b"..");
        assert!(tree.path(id).len() <= PATH_LEN_MAX);
        match entry.parent {
            Some(parent) => assert!(parent < id && tree.entry(parent).kind == Kind::Folder),
            None => assert_ne!(entry.name, STAGING_NAME),
        }
        if let Kind::File { size } = entry.kind {
            assert!(size <= FILE_LEN_MAX);
        }
        if let Kind::HardLink { to } = entry.kind {
            assert!(to < id && matches!(tree.entry(to).kind, Kind::File { .. }));
        }
        let of_entry = tree.data_of(id);
        assert!(of_entry.start == extents || of_entry.is_empty() || tree.is_stream());
        extents = extents.max(of_entry.end);
    }
    assert!(tree.data_len().is_none_or(|len| len <= DATA_LEN_MAX && len == extents));
}
