//! A file is given up while another thread is about to complete it.

use super::{FolderOptions, FolderTarget};
use crate::object::group::group_digest;
use crate::object::scan::{Scan, ScanOptions};
use crate::object::store::target::{Fault, GroupData, KnownGroup, Target};
use crate::object::tree::EntryId;
use std::fs;
use std::sync::Arc;

#[test]
fn what_was_given_up_is_not_placed() {
    for in_place in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let content = vec![7; 1_500_000];
        fs::write(&a, &content).unwrap();
        fs::create_dir(&b).unwrap();
        if in_place {
            fs::copy(&a, b.join("a")).unwrap();
        }
        let tree = Arc::new(Scan::new(&[a], &ScanOptions::default()).unwrap().into_parts().0);
        let (id, len, layout) = (EntryId(0), content.len() as u64, tree.layout());
        let known = |number| {
            let group = layout.group(number);
            let bytes = &content[group.data.start as usize..group.data.end as usize];
            let digest = group_digest(layout, &group, len, bytes);
            (KnownGroup { number, group, file_len: len, digest }, GroupData::whole(bytes))
        };
        let groups: Vec<_> = tree.groups_of(id).map(known).collect();
        assert_eq!(groups.len(), 2);

        let target = FolderTarget::open(FolderOptions::new(&b)).unwrap();
        target.start(&tree).unwrap();
        let all: Vec<_> = groups.iter().map(|(known, _)| known.clone()).collect();
        assert_eq!(target.held(&all).unwrap().groups.len(), if in_place { 2 } else { 0 });
        for (known, data) in groups.iter().filter(|_| !in_place) {
            target.write(known, *data).unwrap();
        }
        target.abandon(id);
        let (known, data) = &groups[0];
        assert!(matches!(target.complete(id, len), Err(Fault::Object(_))));
        assert!(matches!(target.write(known, *data), Err(Fault::Object(_))));
        assert_eq!(fs::read(b.join("a")).ok(), in_place.then_some(content));
        assert_eq!(fs::read_dir(b.join(".downpour/parts")).unwrap().count(), 0);
    }
}
