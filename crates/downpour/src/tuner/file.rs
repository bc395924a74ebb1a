//! Files that a configuration names, read whole without holding up who asks: a share on a network may never answer.

use super::source::SourceError;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tokio::sync::Semaphore;

/// Files that are read at a time. A read that hangs keeps its thread; more of them wait, without one, until their time is over.
const READS_MAX: usize = 4;

static READS: Semaphore = Semaphore::const_new(READS_MAX);

/// What may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Files alone.
    Regular,
    /// Also a pipe: somebody waits for it.
    Any,
}

/// A file's bytes, at most `len_max`, and when it was written.
pub(super) async fn read(
    file: PathBuf,
    kind: Kind,
    len_max: u64,
) -> Result<(Vec<u8>, SystemTime), SourceError> {
    let turn = READS.acquire().await.expect("it is never closed");
    let read = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        whole(&file, kind, len_max).map_err(|error| (file, error))
    });
    let failed = |(file, error): (PathBuf, io::Error)| {
        SourceError::Silent(format!("{}: {error}", file.display()))
    };
    read.await.expect("reading does not panic").map_err(failed)
}

fn whole(file: &Path, kind: Kind, len_max: u64) -> io::Result<(Vec<u8>, SystemTime)> {
    let mut options = File::options();
    options.read(true);
    if kind == Kind::Regular {
        // Of a pipe without a writer the opening would not end.
        options.custom_flags(OFlags::NONBLOCK.bits() as i32);
    }
    let open = options.open(file)?;
    let data = open.metadata()?;
    if kind == Kind::Regular && !data.is_file() {
        return Err(io::Error::other("it is no regular file; name one that is"));
    }
    let mut body = Vec::new();
    open.take(len_max.saturating_add(1)).read_to_end(&mut body)?;
    match body.len() as u64 > len_max {
        true => Err(io::Error::other(format!("it has more than {len_max} bytes"))),
        false => Ok((body, data.modified()?)),
    }
}
