//! Round trips of trees and digest sections, and hostile trees that a publisher signed.

use super::digests::Known;
use super::{BodyError, DigestSection, TreeDecoder, TreeEncoder, Withdrawal, tree_bodies};
use crate::object::digest::Digest;
use crate::object::limits::{ENTRIES_MAX, FILE_LEN_MAX, GROUP_LEN, SECTION_TREE_LEN};
use crate::object::tree::{
    EntryId, Extents, Kind, Meta, Mtime, NewEntry, NewKind, Tree, TreeBuilder, TreeProblem, Xattr,
    is_plain_name,
};
use crate::object::wire::{put_bytes, put_signed, put_varint};
use proptest::prelude::{Just, Strategy, any, prop, prop_assert_eq, prop_oneof, proptest};

#[derive(Clone, Debug)]
enum Node {
    Folder(Vec<(Vec<u8>, Meta, bool, Node)>),
    Dense(u64),
    Sparse(u64, Vec<(u64, u64)>),
    Link(Vec<u8>),
    Hard,
}

fn meta() -> impl Strategy<Value = Meta> {
    let mode = prop_oneof![Just(0o644u16), Just(0o755), 0u16..0o10000];
    let owner = prop_oneof![Just(0u32), any::<u32>()];
    (mode, owner, any::<i64>(), 0u32..1_000_000_000).prop_map(|(mode, uid, secs, nanos)| Meta {
        mode,
        uid,
        gid: uid / 2,
        mtime: Mtime { secs, nanos },
    })
}

fn sparse() -> impl Strategy<Value = Node> {
    prop::collection::vec((1u64..3_000_000, 1u64..3_000_000), 0..5).prop_map(|pairs| {
        let mut end = 0;
        let mut extents = Vec::new();
        for (gap, len) in pairs {
            extents.push((end + gap, len));
            end += gap + len;
        }
        Node::Sparse(end + 5, extents)
    })
}

fn node() -> impl Strategy<Value = Node> {
    let leaf = prop_oneof![
        (0u64..5_000_000).prop_map(Node::Dense),
        sparse(),
        prop::collection::vec(1u8.., 1..20).prop_map(Node::Link),
        Just(Node::Hard),
    ];
    let name = prop::collection::vec(any::<u8>(), 1..8).prop_map(|name| {
        name.into_iter().map(|b| if b == b'/' || b == 0 || b == b'.' { b'x' } else { b }).collect()
    });
    leaf.prop_recursive(4, 60, 8, move |inner| {
        prop::collection::vec((name.clone(), meta(), any::<bool>(), inner), 0..8)
            .prop_map(Node::Folder)
    })
}

fn build(builder: &mut TreeBuilder, depth: u32, mut children: Vec<(Vec<u8>, Meta, bool, Node)>) {
    children.sort_by(|a, b| a.0.cmp(&b.0));
    children.dedup_by(|a, b| a.0 == b.0);
    for (name, mut meta, attributed, node) in children {
        let first_file = builder
            .tree()
            .ids()
            .find(|id| matches!(builder.tree().entry(*id).kind, Kind::File { .. }));
        let node = match (node, first_file) {
            (Node::Hard, None) => Node::Dense(3),
            (node, _) => node,
        };
        let mut xattrs = vec![];
        if attributed && !matches!(node, Node::Hard) {
            let value = vec![meta.mode as u8 % 3; 5];
            xattrs.push(Xattr { name: b"user.a".to_vec(), value });
        }
        let kind = match &node {
            Node::Folder(_) => NewKind::Folder,
            Node::Dense(size) => NewKind::File { size: *size, extents: Extents::Dense },
            Node::Sparse(size, list) => {
                NewKind::File { size: *size, extents: Extents::Sparse(list) }
            }
            Node::Link(text) => NewKind::Symlink { text },
            Node::Hard => NewKind::HardLink { to: first_file.map_or(0, |id| id.0) },
        };
        match kind {
            NewKind::Symlink { .. } => meta.mode = 0,
            NewKind::HardLink { .. } => meta = Meta::default(),
            _ => {}
        }
        builder.push(NewEntry { depth, name: &name, kind, meta, xattrs }).unwrap();
        if let Node::Folder(inner) = node {
            build(builder, depth + 1, inner);
        }
    }
}

/// Takes all attributes away.
fn bare(children: &mut [(Vec<u8>, Meta, bool, Node)]) {
    for (_, _, attributed, node) in children {
        *attributed = false;
        if let Node::Folder(inner) = node {
            bare(inner);
        }
    }
}

fn tree() -> impl Strategy<Value = Tree> {
    let top = prop::collection::vec((Just(b"top".to_vec()), meta(), any::<bool>(), node()), 0..6);
    let root = prop::option::of((meta(), any::<bool>()));
    (root, top, any::<bool>()).prop_map(|(mut root, mut top, has_xattrs)| {
        for (i, child) in top.iter_mut().enumerate() {
            child.0.push(i as u8 + 1);
        }
        let mut builder = TreeBuilder::new();
        match has_xattrs {
            true => builder.set_has_xattrs(),
            false => {
                root.iter_mut().for_each(|(_, attributed)| *attributed = false);
                bare(&mut top);
            }
        }
        if let Some((meta, attributed)) = root {
            let xattr = Xattr { name: b"user.a".to_vec(), value: vec![1; 5] };
            builder
                .set_root(meta, if attributed { std::slice::from_ref(&xattr) } else { &[] })
                .unwrap();
        }
        build(&mut builder, 0, top);
        builder.finish()
    })
}

fn decode(bodies: &[Vec<u8>]) -> Result<Tree, BodyError> {
    let mut decoder = TreeDecoder::new(ENTRIES_MAX);
    for body in bodies {
        decoder.body(body)?;
    }
    Ok(decoder.finish())
}

fn assert_same(a: &Tree, b: &Tree) {
    assert_eq!((a.len(), a.has_xattrs(), a.layout()), (b.len(), b.has_xattrs(), b.layout()));
    let root = |tree: &Tree| tree.root().map(|root| (root.meta, root.xattrs.to_vec()));
    assert_eq!(root(a), root(b));
    for id in a.ids() {
        let (x, y) = (a.entry(id), b.entry(id));
        assert_eq!((x.parent, x.name, x.kind, x.meta), (y.parent, y.name, y.kind, y.meta));
        assert_eq!(x.xattrs, y.xattrs);
    }
}

proptest! {
    #[test]
    fn trees_come_back(tree in tree(), cut in 1u32..9) {
        let mut encoder = TreeEncoder::new(&tree);
        let bodies: Vec<_> = std::iter::from_fn(|| encoder.next_body_of(cut)).collect();
        let again = decode(&bodies).unwrap();
        assert_same(&tree, &again);
        prop_assert_eq!(tree_bodies(&tree), tree_bodies(&again));
    }

    #[test]
    fn what_is_accepted_is_emitted_the_same(
        tree in tree(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut body = tree_bodies(&tree).remove(0);
        let at = at.index(body.len());
        body[at] = byte;
        if cut {
            body.truncate(at + 1);
        }
        if let Ok(changed) = decode(std::slice::from_ref(&body)) {
            body[1] &= !1; // whether more follow is not the tree's
            prop_assert_eq!(tree_bodies(&changed), vec![body]);
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut body = vec![1, 0];
        body.extend(bytes);
        let _ = TreeDecoder::new(ENTRIES_MAX).body(&body);
    }

    #[test]
    fn digest_sections_come_back(tree in tree(), seed in any::<u64>(), flip in any::<(u16, u8)>()) {
        let groups = tree.layout().groups();
        if groups == 0 {
            return Ok(());
        }
        let first = (seed % u64::from(groups)) as u32;
        let entry = tree.layout().group(first).entry;
        let withdrawn = if seed % 3 == 0 {
            vec![Withdrawal { entry, reason: "changed".into() }]
        } else {
            vec![]
        };
        let gone = |e: u32| withdrawn.iter().any(|w| w.entry == e);
        let digests = (first..groups)
            .map(|g| match gone(tree.layout().group(g).entry) {
                true => Digest::NONE,
                false => Digest::of(&g.to_be_bytes()),
            })
            .collect();
        let section = DigestSection {
            groups: first..groups,
            data_end: tree.layout().data_len(),
            withdrawn: withdrawn.clone(),
            digests,
        };
        let body = section.emit();
        let known = Known { tree: &tree, groups: first, last: true, withdrawn: &|_| false };
        prop_assert_eq!(DigestSection::parse(&body, &known), Ok(section));
        let mut changed = body.clone();
        let at = usize::from(flip.0) % body.len();
        changed[at] ^= flip.1;
        if let Ok(other) = DigestSection::parse(&changed, &known) {
            prop_assert_eq!(other.emit(), changed);
        }
    }
}

// docs/protocol.md#MAN-12
#[test]
fn a_digest_section_is_the_last_exactly_when_it_ends_with_the_last_group() {
    let mut builder = TreeBuilder::new();
    let kind = NewKind::File { size: 3 * GROUP_LEN, extents: Extents::Dense };
    let meta = Meta::default();
    builder.push(NewEntry { depth: 0, name: b"f", kind, meta, xattrs: vec![] }).unwrap();
    let tree = builder.finish();
    for (end, last) in [(2, false), (2, true), (3, false), (3, true)] {
        let section = DigestSection {
            groups: 0..end,
            data_end: u64::from(end) * GROUP_LEN,
            withdrawn: vec![],
            digests: (0..end).map(|group| Digest::of(&group.to_be_bytes())).collect(),
        };
        let known = Known { tree: &tree, groups: 0, last, withdrawn: &|_| false };
        let parsed = DigestSection::parse(&section.emit(), &known);
        assert_eq!(parsed.is_ok(), last == (end == 3), "{end} of 3, last: {last}");
    }
}

// docs/protocol.md#MAN-12
#[test]
fn the_last_section_of_a_stream_ends_nothing_that_an_earlier_one_has_told() {
    let mut builder = TreeBuilder::new();
    let (kind, meta) = (NewKind::Stream, Meta::default());
    builder.push(NewEntry { depth: 0, name: b"s", kind, meta, xattrs: vec![] }).unwrap();
    let tree = builder.finish();
    for (data_end, holds) in [(2 * GROUP_LEN, true), (2 * GROUP_LEN - 1, false)] {
        let section = DigestSection { groups: 2..2, data_end, withdrawn: vec![], digests: vec![] };
        let known = Known { tree: &tree, groups: 2, last: true, withdrawn: &|_| false };
        let parsed = DigestSection::parse(&section.emit(), &known);
        assert_eq!(parsed.is_ok(), holds, "{data_end}: {parsed:?}");
    }
}

/// Writes one entry as a hostile publisher would, without any check.
fn raw(kind: u8, depth: u64, name: &[u8], content: &[u8]) -> Vec<u8> {
    let mut out = vec![kind | 16];
    put_varint(&mut out, depth);
    put_varint(&mut out, 0);
    put_bytes(&mut out, name);
    if kind != 4 {
        if kind != 3 {
            // Each test's entries alternate between modes, so that no value is told twice.
            put_varint(&mut out, 1 + u64::from(name.last().copied().unwrap_or(0)));
        }
        put_signed(&mut out, 0);
        put_varint(&mut out, 0);
    } else {
        out[0] = kind;
    }
    out.extend_from_slice(content);
    out
}

fn varints(values: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    values.iter().for_each(|value| put_varint(&mut out, *value));
    out
}

fn refused(entries: &[Vec<u8>]) -> (String, TreeProblem) {
    let mut body = vec![1, 0];
    put_varint(&mut body, entries.len() as u64);
    body.extend(entries.concat());
    match TreeDecoder::new(ENTRIES_MAX).body(&body) {
        Err(BodyError::Tree(error)) => (error.path, error.problem),
        other => panic!("not refused by a rule of the tree: {other:?}"),
    }
}

#[test]
fn hostile_names_are_refused_and_named() {
    let file = varints(&[0]);
    let cases: [(&[u8], TreeProblem); 8] = [
        (b"../x", TreeProblem::NameForbidden),
        (b"/etc/passwd", TreeProblem::NameForbidden),
        (b"a/b", TreeProblem::NameForbidden),
        (b"..", TreeProblem::NameForbidden),
        (b".", TreeProblem::NameForbidden),
        (b"", TreeProblem::NameEmpty),
        (b"nul\0", TreeProblem::NameForbidden),
        (b".downpour", TreeProblem::NameReserved),
    ];
    for (name, problem) in cases {
        let (path, found) = refused(&[raw(1, 0, name, &file)]);
        assert_eq!(found, problem, "{path}");
        assert_eq!(path, crate::object::printable(name));
    }
    assert_eq!(refused(&[raw(1, 0, &[b'n'; 256], &file)]).1, TreeProblem::NameTooLong);
    assert!(is_plain_name(b"..a") && !is_plain_name(b".."));
    let mut deep: Vec<_> = (0..40).map(|i| raw(0, i, &[b'a' + (i % 2) as u8; 120], &[])).collect();
    deep[0] = raw(0, 0, &[b'z'; 120], &[]);
    // Names share nothing with the one before, as their first letters differ.
    assert_eq!(refused(&deep).1, TreeProblem::PathTooLong);
}

#[test]
fn hostile_structure_is_refused_and_named() {
    let file = varints(&[0]);
    let mut link = Vec::new();
    put_bytes(&mut link, b"/tmp");
    let below_link = refused(&[raw(3, 0, b"link", &link), raw(1, 1, b"x", &file)]);
    assert_eq!(below_link.1, TreeProblem::NotInFolder);
    assert_eq!(refused(&[raw(1, 0, b"f", &file), raw(1, 1, b"x", &file)]).1, below_link.1);
    assert_eq!(refused(&[raw(1, 5, b"f", &file)]).1, below_link.1);
    // The second name shares all of the first: raw() cannot say it, the builder can.
    let mut builder = TreeBuilder::new();
    let same = || NewEntry {
        depth: 0,
        name: b"twice",
        kind: NewKind::Folder,
        meta: Meta::default(),
        xattrs: vec![],
    };
    builder.push(same()).unwrap();
    let error = builder.push(same()).unwrap_err();
    assert_eq!((error.path.as_str(), error.problem), ("twice", TreeProblem::Duplicate));
    let unsorted = [raw(1, 0, b"b", &file), raw(1, 0, b"a", &file)];
    assert_eq!(refused(&unsorted), ("a".into(), TreeProblem::OutOfOrder));
    for back in [0, 1, 2, 77] {
        let entries = [raw(0, 0, b"d", &[]), raw(4, 0, b"h", &varints(&[back]))];
        assert_eq!(refused(&entries), ("h".into(), TreeProblem::HardLink), "{back}");
    }
    let empty_link = refused(&[raw(3, 0, b"l", &[0])]);
    assert_eq!(empty_link, ("l".into(), TreeProblem::Symlink));
    let stream = refused(&[raw(1, 0, b"f", &file), raw(5, 0, b"s", &[])]);
    assert_eq!(stream.1, TreeProblem::Stream);
}

#[test]
fn hostile_sizes_are_refused_and_named() {
    let sized = |values: &[u64]| refused(&[raw(2, 0, b"big", &varints(values))]).1;
    assert_eq!(refused(&[raw(1, 0, b"big", &varints(&[1 << 60]))]).1, TreeProblem::FileTooLong);
    assert_eq!(sized(&[1 << 60, 1, 5, 5]), TreeProblem::FileTooLong);
    assert_eq!(sized(&[100, 1, 0, 101]), TreeProblem::Extents);
    assert_eq!(sized(&[100, 1, 101, 1]), TreeProblem::Extents);
    assert_eq!(sized(&[100, 1, 0, 0]), TreeProblem::Extents);
    assert_eq!(sized(&[100, 2, 0, 10, 0, 10]), TreeProblem::Extents, "touching");
    assert_eq!(sized(&[100, 1, 0, 100]), TreeProblem::Extents, "dense, said as sparse");
    assert_eq!(sized(&[FILE_LEN_MAX, 1, u64::MAX, u64::MAX]), TreeProblem::Extents, "overflow");
    let many: Vec<_> =
        (0..2u8).map(|i| raw(1, 0, &[b'a' + i], &varints(&[FILE_LEN_MAX >> (4 + i)]))).collect();
    assert_eq!(refused(&many), ("b".into(), TreeProblem::DataTooLong));
}

#[test]
fn the_target_folder_is_told_once_and_as_a_folder() {
    // Flags, mode, owner unchanged, time; then no entries.
    let told = |kind: u8, mode: u64| {
        let mut body = vec![1, 3, kind | 16];
        put_varint(&mut body, mode);
        body.extend([0, 0, 0]);
        body
    };
    let mut decoder = TreeDecoder::new(ENTRIES_MAX);
    assert_eq!(decoder.body(&told(0, 0o750)), Ok(true));
    assert!(matches!(decoder.body(&told(0, 0o755)), Err(BodyError::Text("unknown flags"))));
    assert_eq!(decoder.finish().root().unwrap().meta.mode, 0o750);
    assert!(matches!(TreeDecoder::new(ENTRIES_MAX).body(&told(1, 0o750)), Err(BodyError::Text(_))));
    let beyond = TreeDecoder::new(ENTRIES_MAX).body(&told(0, 0o10000));
    let Err(BodyError::Tree(error)) = beyond else { panic!("{beyond:?}") };
    assert_eq!(error.problem, TreeProblem::Meta);
}

#[test]
fn attributes_are_announced_in_the_first_section() {
    // A folder's entry with a new set of one attribute.
    let mut entry = raw(32, 0, b"d", &[]);
    entry.extend([0, 1, 6, b'u', b's', b'e', b'r', b'.', b'a', 0]);
    let body = |flags: u8| [&[1, flags, 1][..], &entry].concat();
    let mut decoder = TreeDecoder::new(ENTRIES_MAX);
    assert_eq!(decoder.body(&body(5)), Ok(true));
    assert!(matches!(decoder.body(&body(5)), Err(BodyError::Text("unknown flags"))));
    assert!(decoder.finish().has_xattrs());
    assert!(matches!(TreeDecoder::new(ENTRIES_MAX).body(&body(0)), Err(BodyError::Text(_))));
}

#[test]
fn a_million_entries_are_possible_and_split() {
    let mut builder = TreeBuilder::new();
    for i in 0..1_000_000u32 {
        let name = format!("file-{i:07}");
        let kind = NewKind::File { size: u64::from(i % 1000), extents: Extents::Dense };
        let meta = Meta { mode: 0o644, ..Meta::default() };
        builder
            .push(NewEntry { depth: 0, name: name.as_bytes(), kind, meta, xattrs: vec![] })
            .unwrap();
    }
    let tree = builder.finish();
    let bodies = tree_bodies(&tree);
    assert!(bodies.len() > 1 && bodies.iter().all(|body| body.len() < SECTION_TREE_LEN + 100));
    let again = decode(&bodies).unwrap();
    assert_eq!((again.len(), again.files()), (1_000_000, 1_000_000));
    assert_eq!(again.path(EntryId(999_999)), b"file-0999999");
    assert_eq!(again.layout(), tree.layout());
}

#[test]
fn a_declared_count_takes_no_memory() {
    let mut body = vec![1, 0];
    put_varint(&mut body, u64::from(u32::MAX));
    assert!(matches!(TreeDecoder::new(ENTRIES_MAX).body(&body), Err(BodyError::Text(_))));
}
