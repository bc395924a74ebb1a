//! Whether a disk takes what is written: what is read may come from memory, and a disk that hangs behind that is not seen.
//!
//! A byte is written to a file of a folder and brought onto the disk, again and again, beside the runtime. While one such touch has not
//! ended there is no other, so that a disk that hangs has one thread.
//!
//! A disk without room answers: that is not told here.

use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;

/// A disk that has not answered for so long is told of.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// The file that is written to, which holds nothing.
const FILE: &str = "alive";

/// Writes to a folder's disk. Blocks.
pub(super) fn touch(folder: &Path) -> io::Result<()> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let touched = options.open(folder.join(FILE)).and_then(|mut file| {
        file.write_all(b"\n")?;
        file.sync_data()
    });
    touched.or_else(|error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Ok(()),
        _ => Err(error),
    })
}

/// The disk of the state folder.
#[derive(Default)]
pub(crate) struct Pulse(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The touch that has not ended.
    begun: Option<Instant>,
    amiss: bool,
}

impl Seen {
    /// What is amiss, which is told when it begins and when it ends.
    fn saw(&mut self, amiss: Option<String>) {
        match (std::mem::replace(&mut self.amiss, amiss.is_some()), amiss) {
            (false, Some(what)) => {
                tracing::error!("the disk of the state folder {what}: see to it");
            }
            (true, None) => tracing::info!("the disk of the state folder is well again"),
            _ => {}
        }
    }
}

impl Pulse {
    /// Begins a touch, unless the last one has not ended.
    pub(super) fn watch(
        self: &Arc<Self>,
        now: Instant,
        touch: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) {
        let mut seen = self.seen();
        if let Some(begun) = seen.begun {
            let since = now.saturating_duration_since(begun);
            if since >= PATIENCE {
                seen.saw(Some(format!("has not answered for {} s", since.as_secs())));
            }
            return;
        }
        seen.begun = Some(now);
        drop(seen);
        let own = self.clone();
        spawn_blocking(move || {
            let wrong = touch().err().map(|error| format!("cannot be written to: {error}"));
            let mut seen = own.seen();
            seen.begun = None;
            seen.saw(wrong);
        });
    }

    /// Whether it hangs, or refuses what is written.
    pub(crate) fn is_amiss(&self) -> bool {
        self.seen().amiss
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{FILE, PATIENCE, Pulse, touch};
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    #[tokio::test]
    async fn a_disk_that_takes_nothing_is_told_of_until_it_answers() {
        let (pulse, begun) = (Arc::new(Pulse::default()), Instant::now());
        let at = |second| begun + Duration::from_secs(second);
        let (answer, answered) = channel::<()>();
        pulse.watch(at(0), move || {
            let _ = answered.recv();
            Ok(())
        });
        pulse.watch(at(10), || panic!("one at a time"));
        assert!(!pulse.is_amiss());
        pulse.watch(begun + PATIENCE, || panic!("one at a time"));
        assert!(pulse.is_amiss());
        drop(answer);
        while pulse.seen().begun.is_some() {
            tokio::task::yield_now().await;
        }
        assert!(!pulse.is_amiss());
        pulse.watch(at(70), || Err(std::io::ErrorKind::ReadOnlyFilesystem.into()));
        while pulse.seen().begun.is_some() {
            tokio::task::yield_now().await;
        }
        assert!(pulse.is_amiss());
    }

    #[test]
    fn a_touch_writes_to_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            touch(folder.path()).unwrap();
        }
        assert_eq!(std::fs::read(folder.path().join(FILE)).unwrap(), b"\n");
        assert!(touch(&folder.path().join("away")).is_err());
    }
}
