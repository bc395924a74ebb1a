//! What lies where a damaged copy was. Whoever waits for an answer waits for a bounded reading only: what is larger is read
//! afterwards, one file at a time, and remembered by its looks until it is asked for again.

use super::lock;
use super::policy::source_class;
use crate::object::{Digest, Fingerprint};
use crate::receipt::content_beneath;
use crate::site::Fault;
use crate::units::show_bytes;
use downpour_catalog::ErrorClass;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Places that wait to be read, and contents that are remembered.
const PLACES_MAX: usize = super::offer::OFFER_FILES_MAX;

/// What is known of places.
#[derive(Debug, Default)]
pub(super) struct Contents(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// None: it cannot be read.
    known: HashMap<Fingerprint, Option<Digest>>,
    /// Folder and path; the first one is being read.
    queue: VecDeque<(PathBuf, String)>,
}

impl Contents {
    /// The digest of what lies in a place and looks like this; none, if it cannot be read: that is no good copy of anything. What is
    /// longer than `left` is an error until it has been read.
    pub(super) fn of(
        self: &Arc<Self>,
        (folder, path): (&Path, &str),
        looks: Fingerprint,
        left: &mut u64,
    ) -> Result<Option<Digest>, Fault> {
        if let Some(known) = lock(&self.0).known.get(&looks) {
            return Ok(*known);
        }
        let there = std::fs::symlink_metadata(folder.join(path));
        let size = there.map_or(0, |there| if there.is_file() { there.len() } else { 0 });
        if size > *left {
            self.read_later(folder, path);
            let size = show_bytes(size);
            let what = format!("{path}: what lies there, {size}, is read before it makes way");
            return Err(Fault::new(ErrorClass::DestinationWriteFailed, what));
        }
        *left -= size;
        read(folder, path)
            .map_err(|error| Fault::new(ErrorClass::OutOfResources, error.to_string()))
    }

    fn read_later(self: &Arc<Self>, folder: &Path, path: &str) {
        let wanted = (folder.to_owned(), path.to_owned());
        let mut state = lock(&self.0);
        if state.queue.len() >= PLACES_MAX || state.queue.contains(&wanted) {
            return;
        }
        state.queue.push_back(wanted);
        if state.queue.len() == 1 {
            let (reader, thread) = (self.clone(), std::thread::Builder::new());
            let started = thread.name("downpour-look".into()).spawn(move || reader.read_all());
            if let Err(error) = started {
                tracing::warn!(%error, "what lies where damaged copies were is not read");
                state.queue.clear();
            }
        }
    }

    fn read_all(&self) {
        let mut next = lock(&self.0).queue.front().cloned();
        while let Some((folder, path)) = next {
            let place = folder.join(&path);
            let looks = Fingerprint::at(&place);
            let found = read(&folder, &path);
            let is_same = Fingerprint::at(&place) == looks;
            let mut state = lock(&self.0);
            if let (Some(looks), Ok(found), true) = (looks, found, is_same) {
                if state.known.len() >= PLACES_MAX {
                    state.known.clear();
                }
                state.known.insert(looks, found);
            }
            // In one step: who finds the queue empty starts another thread.
            state.queue.pop_front();
            next = state.queue.front().cloned();
        }
    }
}

/// An error is this machine's lack of something.
fn read(folder: &Path, path: &str) -> io::Result<Option<Digest>> {
    match content_beneath(folder, Path::new(path)) {
        Ok(digest) => Ok(Some(digest)),
        Err(error) if source_class(&error) == ErrorClass::OutOfResources => Err(error),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::Contents;
    use crate::object::{Digest, Fingerprint};
    use std::sync::Arc;

    #[test]
    fn what_is_too_large_to_be_waited_for_is_read_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let (at, contents) = (folder.path(), Arc::new(Contents::default()));
        let digests = ["a", "b", "c"].map(|name| {
            std::fs::write(at.join(name), [name, "..."].concat()).unwrap();
            Digest::of([name, "..."].concat().as_bytes())
        });
        let looks = |name: &str| Fingerprint::at(&at.join(name)).unwrap();
        let of = |name: &str, left: &mut u64| contents.of((at, name), looks(name), left);
        let mut left = 7;
        assert_eq!(of("a", &mut left).unwrap(), Some(digests[0]));
        assert!(of("b", &mut left).is_err() && of("c", &mut left).is_err() && left == 3);
        for (name, digest) in [("b", digests[1]), ("c", digests[2])] {
            let known = std::iter::repeat_with(|| of(name, &mut left).ok());
            let known = known.inspect(|_| std::thread::yield_now()).flatten().next();
            assert_eq!(known, Some(Some(digest)), "{name}");
        }
        // What looks otherwise is something else.
        std::fs::write(at.join("next"), "b...").unwrap();
        std::fs::rename(at.join("next"), at.join("b")).unwrap();
        assert!(of("b", &mut left).is_err());
        // A folder, a link: no copy of anything.
        std::fs::create_dir(at.join("folder")).unwrap();
        assert_eq!(of("folder", &mut left).unwrap(), None);
    }
}
