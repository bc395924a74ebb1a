//! From verified sections to what the store knows: the tree, digests, and what is held already.

use super::event::{SectionKnown, StoreEvent, StoreFailure, TreeKnown};
use super::sections::{Genuine, Next};
use super::target::{Fault, Held};
use super::{Store, lock};
use crate::object::digest::Digest;
use crate::object::group::KnownGroup;
use crate::object::manifest::{BodyError, DigestSection, Known, TreeDecoder, is_tree_body};
use crate::object::place::{Obstacle, Why};
use crate::object::tree::{EntryId, Tree};
use downpour_proto::BlockId;
use downpour_transport::Accepted;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

/// What only the reader of sections needs.
#[derive(Default)]
pub(super) struct Intake {
    decoder: Option<TreeDecoder>,
    withdrawn: HashSet<u32>,
}

impl Store {
    pub(super) fn accept_manifest(&self, block: u32, data: &[u8]) -> Accepted {
        {
            let mut sections = lock(&self.sections);
            if !sections.insert(block, data) {
                return Accepted::Refused;
            }
            if sections.working {
                return Accepted::Kept;
            }
            sections.working = true;
        }
        self.read_sections(Some(block))
    }

    /// The sender has no manifest block at or after `end`.
    pub fn finished(&self, end: u32) {
        {
            let mut sections = lock(&self.sections);
            sections.end = end;
            if sections.working {
                return; // That thread looks once more.
            }
            sections.working = true;
        }
        self.read_sections(None);
    }

    /// Takes what sections can be had; what became of `block` with that.
    fn read_sections(&self, block: Option<u32>) -> Accepted {
        let mut is_false = false;
        loop {
            let next = {
                let mut sections = lock(&self.sections);
                let next = sections.next();
                sections.working = matches!(next, Next::Section(_) | Next::Forged(_));
                next
            };
            let failure = match next {
                Next::Nothing => break,
                Next::Forged(blocks) => {
                    for other in blocks {
                        is_false |= Some(other) == block;
                        if Some(other) != block {
                            self.forgotten(BlockId::manifest(other), true);
                        }
                    }
                    continue;
                }
                Next::Malformed(error) => StoreFailure::Manifest(error),
                Next::Section(section) => match self.take_section(section) {
                    Ok(()) => continue,
                    Err(failure) => failure,
                },
            };
            self.fail(failure);
            return Accepted::Failed;
        }
        if self.failure.get().is_some() {
            return Accepted::Failed;
        }
        if is_false { Accepted::False } else { Accepted::Kept }
    }

    /// Whether a thread is at work on the manifest, which ends in finite time: after a failure nobody is, whatever is
    /// noted.
    pub(super) fn is_deciding(&self) -> bool {
        lock(&self.sections).working && self.failure.get().is_none()
    }

    fn take_section(&self, section: Genuine) -> Result<(), StoreFailure> {
        // Only one thread is here at a time (`Sections::working`).
        let mut intake = lock(&self.intake);
        let malformed = |error: BodyError| StoreFailure::Manifest(error.at(section.index));
        match self.tree.get() {
            None => {
                let max = self.config.entries_max;
                let decoder = intake.decoder.get_or_insert_with(|| TreeDecoder::new(max));
                if decoder.body(&section.body).map_err(malformed)? {
                    let more = BodyError::Text("it is the last, and the tree is not complete");
                    return if section.last { Err(malformed(more)) } else { Ok(()) };
                }
                let tree = intake.decoder.take().map(|decoder| Arc::new(decoder.finish()));
                match tree {
                    // protocol.md#MAN-12
                    Some(tree) if section.last == (tree.data_len() == Some(0)) => {
                        self.start(tree, &section)
                    }
                    _ => Err(malformed(BodyError::Text("digests are missing"))),
                }
            }
            Some(_) if is_tree_body(&section.body) => {
                Err(malformed(BodyError::Text("the tree comes twice")))
            }
            Some(tree) => {
                let tree = tree.clone();
                let known = Known {
                    tree: &tree,
                    groups: lock(&self.progress).covered.groups(),
                    last: section.last,
                    withdrawn: &|entry| intake.withdrawn.contains(&entry),
                };
                let digests = DigestSection::parse(&section.body, &known).map_err(malformed)?;
                intake.withdrawn.extend(digests.withdrawn.iter().map(|w| w.entry));
                self.cover(&tree, &digests, &section)
            }
        }
    }

    fn start(&self, tree: Arc<Tree>, section: &Genuine) -> Result<(), StoreFailure> {
        if let Some(agreed) = &self.config.agreed {
            agreed.check(&tree).map_err(StoreFailure::NotAgreed)?;
        }
        let started = self.target.start(&tree)?;
        let known = TreeKnown {
            entries: tree.len(),
            data_len: tree.data_len(),
            candidates: started.candidates,
        };
        lock(&self.progress).start(tree.clone());
        // Set once, here, by the only thread that reads sections.
        let tree = self.tree.get_or_init(|| tree);
        self.event(StoreEvent::Tree(known));
        self.withdraw_early(tree);
        for (entry, reason) in started.failed {
            self.fail_object(EntryId(entry), reason);
        }
        self.check_empty(tree);
        if section.last {
            lock(&self.progress).covered.finish();
            self.known(section, 0..0, 0);
        }
        Ok(())
    }

    /// Takes a section's digests: first what is held of it is found, then blocks may come.
    fn cover(
        &self,
        tree: &Arc<Tree>,
        digests: &DigestSection,
        section: &Genuine,
    ) -> Result<(), StoreFailure> {
        for withdrawal in &digests.withdrawn {
            let reason = format!("withdrawn by the sender: {}", withdrawal.reason);
            self.fail_object(EntryId(withdrawal.entry), Why::new(Obstacle::Withdrawn, reason));
        }
        let held = self.find_held(tree, digests, section.last)?;
        for (entry, reason) in held.failed {
            self.fail_object(EntryId(entry), reason);
        }
        let (mut complete, mut early) = (Vec::new(), Vec::new());
        let decided = {
            let mut progress = lock(&self.progress);
            let decided = progress.cover(digests, section.last);
            for number in held.groups {
                let data = tree.layout().group(number).data;
                progress.bytes_held += data.end.min(digests.data_end) - data.start;
                complete.extend(progress.mark(number));
            }
            if tree.is_stream() {
                complete.extend(progress.stream_complete());
            }
            early.extend(progress.take_early());
            decided
        };
        for entry in complete {
            self.complete(entry);
        }
        self.known(section, decided, digests.data_end);
        for (block, data) in early {
            match self.accept_data(block, &data) {
                Accepted::False => self.forgotten(BlockId::data(block), true),
                Accepted::Refused => self.forgotten(BlockId::data(block), false),
                Accepted::Kept | Accepted::Failed => {}
            }
        }
        Ok(())
    }

    fn find_held(
        &self,
        tree: &Tree,
        digests: &DigestSection,
        last: bool,
    ) -> Result<Held, StoreFailure> {
        let known: Vec<KnownGroup> = {
            let progress = lock(&self.progress);
            let groups = digests.groups.clone().zip(&digests.digests);
            let wanted = groups.filter(|(number, _)| {
                !progress.is_failed(EntryId(tree.layout().group(*number).entry))
            });
            let known = |(number, digest): (u32, &Digest)| {
                KnownGroup::of(tree, number, *digest, digests.data_end, last)
            };
            wanted.map(known).collect()
        };
        match self.target.held(&known) {
            Ok(held) => Ok(held),
            Err(Fault::Fatal(failure)) => Err(failure),
            // A target names objects in `Held`.
            Err(Fault::Object(why)) => Err(StoreFailure::Target(why.text)),
            Err(Fault::NoRoom) => Ok(Held::default()),
        }
    }

    fn known(&self, section: &Genuine, decided: Range<u32>, data_end: u64) {
        let Some(tree) = self.tree.get() else { return };
        let (held, needed) = lock(&self.progress).split(tree, decided);
        let (index, last) = (section.index, section.last);
        self.event(StoreEvent::Section(SectionKnown { index, held, needed, last, data_end }));
        self.finish_if_done();
    }
}
