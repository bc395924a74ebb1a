//! Targets that keep no file: the void, and a pipe.

use super::StoreFailure;
use super::lock;
use super::target::{Fault, Finished, KnownGroup, Started, Target};
use crate::object::limits::GROUP_LEN;
use crate::object::tree::{EntryId, Kind, Tree};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};

/// Everything is verified and nothing is kept.
pub(super) struct Discard;

impl Target for Discard {
    fn start(&self, _: &Arc<Tree>) -> Result<Started, StoreFailure> {
        Ok(Started::default())
    }

    fn write(&self, _: &KnownGroup, _: &[u8]) -> Result<(), Fault> {
        Ok(())
    }

    fn complete(&self, _: EntryId, _: u64) -> Result<Vec<String>, Fault> {
        Ok(Vec::new())
    }

    fn finish(&self, _: &dyn Fn(EntryId) -> bool) -> Result<Finished, StoreFailure> {
        Ok(Finished::default())
    }
}

/// The one file or stream of a tree, for targets that take nothing else.
pub(super) fn only_file(tree: &Tree, what: &str) -> Result<EntryId, StoreFailure> {
    let id = EntryId(0);
    if tree.len() == 1 && matches!(tree.entry(id).kind, Kind::File { .. } | Kind::Stream) {
        return Ok(id);
    }
    let entries = tree.len();
    Err(StoreFailure::Target(format!(
        "{what} takes one file, and this session sends {entries} entries: name a folder instead"
    )))
}

/// One file or stream, in order.
pub(super) struct Pipe {
    window_groups: u32,
    tree: OnceLock<Arc<Tree>>,
    state: Mutex<State>,
}

struct State {
    out: Box<dyn Write + Send>,
    /// The group that is written next.
    next: u32,
    /// Bytes written, holes counted.
    written: u64,
    /// Verified, and waiting for those before them.
    waiting: BTreeMap<u32, (KnownGroup, Vec<u8>)>,
}

impl Pipe {
    pub(super) fn new(out: Box<dyn Write + Send>, window: u64) -> Self {
        let state = State { out, next: 0, written: 0, waiting: BTreeMap::new() };
        let window_groups = u32::try_from(window / GROUP_LEN).unwrap_or(u32::MAX).max(2);
        Self { window_groups, tree: OnceLock::new(), state: Mutex::new(state) }
    }
}

impl State {
    fn group(&mut self, tree: &Tree, known: &KnownGroup, data: &[u8]) -> std::io::Result<()> {
        for (at, bytes) in known.parts(tree, data) {
            self.zeros_to(at)?;
            self.out.write_all(bytes)?;
            self.written += bytes.len() as u64;
        }
        self.zeros_to(known.group.start() + known.len())
    }

    fn zeros_to(&mut self, end: u64) -> std::io::Result<()> {
        const ZEROS: [u8; 1 << 14] = [0; 1 << 14];
        while self.written < end {
            let len = (end - self.written).min(ZEROS.len() as u64);
            self.out.write_all(&ZEROS[..len as usize])?;
            self.written += len;
        }
        Ok(())
    }
}

fn broken(error: std::io::Error) -> StoreFailure {
    StoreFailure::Target(format!("writing to the output: {error}"))
}

impl Target for Pipe {
    fn start(&self, tree: &Arc<Tree>) -> Result<Started, StoreFailure> {
        only_file(tree, "'--out -'")?;
        // Called once: nothing is there yet.
        let _ = self.tree.set(tree.clone());
        Ok(Started::default())
    }

    fn admits(&self, group: u32) -> bool {
        group < lock(&self.state).next.saturating_add(self.window_groups)
    }

    fn bounds_pending(&self) -> bool {
        true
    }

    fn write(&self, known: &KnownGroup, data: &[u8]) -> Result<(), Fault> {
        let mut state = lock(&self.state);
        let Some(tree) = self.tree.get() else { return Err(Fault::NoRoom) };
        let fatal = |error| Fault::Fatal(broken(error));
        if known.number != state.next {
            state.waiting.insert(known.number, (known.clone(), data.to_vec()));
            return Ok(());
        }
        state.group(tree, known, data).map_err(fatal)?;
        state.next += 1;
        loop {
            let next = state.next;
            let Some((known, data)) = state.waiting.remove(&next) else { return Ok(()) };
            state.group(tree, &known, &data).map_err(fatal)?;
            state.next += 1;
        }
    }

    fn complete(&self, _: EntryId, len: u64) -> Result<Vec<String>, Fault> {
        lock(&self.state).zeros_to(len).map_err(|error| Fault::Fatal(broken(error)))?;
        Ok(Vec::new())
    }

    fn finish(&self, failed: &dyn Fn(EntryId) -> bool) -> Result<Finished, StoreFailure> {
        let mut state = lock(&self.state);
        let size = self.tree.get().and_then(|tree| tree.file_size(EntryId(0)));
        if let Some(size) = size.filter(|_| !failed(EntryId(0))) {
            state.zeros_to(size).map_err(broken)?;
        }
        state.out.flush().map_err(broken)?;
        Ok(Finished::default())
    }
}
