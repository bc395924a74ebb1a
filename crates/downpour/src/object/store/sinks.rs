//! Targets that keep no file: the void, and a pipe.

use super::StoreFailure;
use super::lock;
use super::target::{Fault, Finished, Held, Started, Target};
use crate::object::digest::Digest;
use crate::object::group::{GroupData, KnownGroup};
use crate::object::limits::GROUP_LEN;
use crate::object::place::OnNotice;
use crate::object::tree::{EntryId, Kind, Tree};
use crate::units::show_bytes;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Everything is verified and nothing is kept.
pub(super) struct Discard;

impl Target for Discard {
    fn start(&self, _: &Arc<Tree>) -> Result<Started, StoreFailure> {
        Ok(Started::default())
    }

    fn write(&self, _: &KnownGroup, _: GroupData<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn complete(&self, _: EntryId, _: u64) -> Result<Vec<String>, Fault> {
        Ok(Vec::new())
    }

    fn finish(
        &self,
        _: &dyn Fn(EntryId) -> bool,
        _: OnNotice<'_>,
    ) -> Result<Finished, StoreFailure> {
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

/// Where one file or stream is written in order, and how far. Clones are the same output: an attempt that
/// follows a lost one goes on where that was.
#[derive(Clone)]
pub struct PipeOut(Arc<Out>);

struct Out {
    /// Locked while the output is waited for.
    state: Mutex<State>,
    /// The group that is written next, for who does not wait for the output.
    next: AtomicU32,
}

impl PipeOut {
    /// Nothing is written to `out` yet.
    pub fn new(out: Box<dyn Write + Send>) -> Self {
        let (digests, waiting) = (Vec::new(), BTreeMap::new());
        let state = State { out, digests, written: 0, waiting, spent: false };
        Self(Arc::new(Out { state: Mutex::new(state), next: AtomicU32::new(0) }))
    }

    /// The program's standard output.
    pub fn stdout() -> Self {
        Self::new(Box::new(Stdout))
    }

    /// All of one session is written: another one comes behind it.
    pub fn end(&self) {
        let mut state = lock(&self.0.state);
        state.digests.clear();
        state.written = 0;
        self.0.next.store(0, Ordering::Relaxed);
    }

    /// Nothing right can come out any more: a write has failed, or what a session sent does not go on from what is written.
    pub fn is_spent(&self) -> bool {
        lock(&self.0.state).spent
    }
}

/// Without the buffer of the process's own handle, which its end would wait for.
struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(rustix::io::write(std::io::stdout(), bytes)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One file or stream, in order.
pub(super) struct Pipe {
    window_groups: u32,
    tree: OnceLock<Arc<Tree>>,
    out: PipeOut,
}

struct State {
    out: Box<dyn Write + Send>,
    /// Of the groups that are written.
    digests: Vec<Digest>,
    /// Bytes written, holes counted.
    written: u64,
    /// Verified, and waiting for those before them.
    waiting: BTreeMap<u32, (KnownGroup, Vec<u8>)>,
    spent: bool,
}

impl Pipe {
    pub(super) fn new(out: PipeOut, window: u64) -> Self {
        let window_groups = u32::try_from(window / GROUP_LEN).unwrap_or(u32::MAX).max(2);
        Self { window_groups, tree: OnceLock::new(), out }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.out.0.state)
    }
}

impl State {
    /// The group that is written next.
    fn next(&self) -> u32 {
        self.digests.len() as u32
    }

    fn has_another(&mut self) -> StoreFailure {
        self.spent = true;
        let written = show_bytes(self.written);
        let text =
            format!("the output has {written} of something else: start again with an empty one");
        StoreFailure::Target(text)
    }

    /// What is after the last group of a file of `len` bytes.
    fn rest(&mut self, len: u64) -> Result<(), StoreFailure> {
        if self.written > len {
            return Err(self.has_another());
        }
        self.zeros_to(len).map_err(|error| self.broken(error))
    }

    fn broken(&mut self, error: std::io::Error) -> StoreFailure {
        self.spent = true;
        StoreFailure::Target(format!("writing to the output: {error}"))
    }

    /// The group that is next.
    fn take(
        &mut self,
        tree: &Tree,
        known: &KnownGroup,
        data: GroupData<'_>,
    ) -> Result<(), StoreFailure> {
        self.group(tree, known, data).map_err(|error| self.broken(error))
    }

    fn group(
        &mut self,
        tree: &Tree,
        known: &KnownGroup,
        data: GroupData<'_>,
    ) -> std::io::Result<()> {
        for (at, bytes) in known.parts(tree, data) {
            self.zeros_to(at)?;
            self.out.write_all(bytes)?;
            self.written += bytes.len() as u64;
        }
        self.zeros_to(known.group.start() + known.len())?;
        self.digests.push(known.digest);
        Ok(())
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

impl Target for Pipe {
    fn start(&self, tree: &Arc<Tree>) -> Result<Started, StoreFailure> {
        only_file(tree, "'--out -'")?;
        // Called once: nothing is there yet.
        let _ = self.tree.set(tree.clone());
        let mut state = self.state();
        // Of an attempt before, whose groups may have been others.
        state.waiting.clear();
        Ok(Started { candidates: state.next() > 0, ..Started::default() })
    }

    fn held(&self, groups: &[KnownGroup]) -> Result<Held, Fault> {
        let mut state = self.state();
        let mut held = Held::default();
        for known in groups {
            match state.digests.get(known.number as usize) {
                Some(digest) if *digest == known.digest => held.groups.push(known.number),
                Some(_) => return Err(Fault::Fatal(state.has_another())),
                None => break,
            }
        }
        Ok(held)
    }

    /// Without the blocks of the next group nothing would ever move, however many groups they have.
    fn admits(&self, first: u32, last: u32) -> bool {
        let next = self.out.0.next.load(Ordering::Relaxed);
        first <= next || last < next.saturating_add(self.window_groups)
    }

    fn bounds_pending(&self) -> bool {
        true
    }

    fn write(&self, known: &KnownGroup, data: GroupData<'_>) -> Result<(), Fault> {
        let mut state = self.state();
        let Some(tree) = self.tree.get() else { return Err(Fault::NoRoom) };
        if known.number != state.next() {
            state.waiting.insert(known.number, (known.clone(), data.to_vec()));
            return Ok(());
        }
        state.take(tree, known, data).map_err(Fault::Fatal)?;
        loop {
            let next = state.next();
            self.out.0.next.store(next, Ordering::Relaxed);
            let Some((known, data)) = state.waiting.remove(&next) else { return Ok(()) };
            state.take(tree, &known, GroupData::whole(&data)).map_err(Fault::Fatal)?;
        }
    }

    fn complete(&self, _: EntryId, len: u64) -> Result<Vec<String>, Fault> {
        self.state().rest(len).map_err(Fault::Fatal)?;
        Ok(Vec::new())
    }

    fn finish(
        &self,
        failed: &dyn Fn(EntryId) -> bool,
        _: OnNotice<'_>,
    ) -> Result<Finished, StoreFailure> {
        let mut state = self.state();
        let size = self.tree.get().and_then(|tree| tree.file_size(EntryId(0)));
        if let Some(size) = size.filter(|_| !failed(EntryId(0))) {
            state.rest(size)?;
        }
        state.out.flush().map_err(|error| state.broken(error))?;
        Ok(Finished::default())
    }
}

#[cfg(test)]
mod tests {
    use super::{Pipe, PipeOut, Target as _};
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn which_blocks_may_come_is_known_while_the_output_is_waited_for() {
        let pipe = Arc::new(Pipe::new(PipeOut::new(Box::new(std::io::sink())), 2 << 20));
        let (asked, (tell, told)) = (Arc::clone(&pipe), mpsc::channel());
        let writing = pipe.state();
        thread::spawn(move || tell.send((asked.admits(1, 1), asked.admits(2, 2))));
        let told = told.recv_timeout(Duration::from_secs(60));
        drop(writing);
        assert_eq!(told, Ok((true, false)));
    }
}
