//! The file that a profile's session carries, read and written.

use crate::object::{Obstacle, PlaceError, SingleFile, SingleTarget, Why};
use downpour_proto::profile::Product;
use downpour_transport::profile::{ProductSink, ProductSource};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;

/// What is sent.
pub(super) struct FileSource(pub(super) File);

impl ProductSource for FileSource {
    fn read(&mut self, _product: u32, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset)
    }
}

/// Where it goes.
pub(super) enum Place {
    /// Nothing has come.
    Waiting(SingleTarget),
    /// Some has.
    Writing(SingleFile),
    /// All has, or nothing is kept.
    Nothing,
}

/// The one file of a session, and when its segments came.
pub(super) struct FileSink {
    pub(super) place: Place,
    /// Instead of what the sender says.
    pub(super) name: Option<String>,
    /// Receive-time entries go there.
    pub(super) times: Option<File>,
}

/// In words; the kind tells what can be done about it.
fn failed(error: PlaceError) -> io::Error {
    let (kind, text) = match error {
        PlaceError::Object(Why { obstacle: Obstacle::Taken, text }) => {
            (io::ErrorKind::AlreadyExists, text)
        }
        PlaceError::Full(text) => (io::ErrorKind::StorageFull, text),
        PlaceError::Object(Why { text, .. }) | PlaceError::Target(text) => {
            (io::ErrorKind::Other, text)
        }
    };
    io::Error::new(kind, text)
}

impl ProductSink for FileSink {
    fn open(
        &mut self,
        number: u32,
        size: u64,
        metadata: &[u8],
        _offered_unix_ns: u64,
    ) -> io::Result<()> {
        let unnamed = format!("product-{number:08x}");
        let name = match (&self.name, metadata) {
            (Some(name), _) => name.as_bytes(),
            (None, []) => unnamed.as_bytes(),
            (None, metadata) => metadata,
        };
        self.place = match std::mem::replace(&mut self.place, Place::Nothing) {
            Place::Waiting(target) => Place::Writing(target.create(name, size).map_err(failed)?),
            other => other,
        };
        Ok(())
    }

    fn write(&mut self, _number: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match &self.place {
            Place::Writing(file) => file.write(offset, bytes).map_err(failed),
            Place::Waiting(_) | Place::Nothing => Ok(()),
        }
    }

    fn complete(&mut self, _number: u32, product: &Product) -> io::Result<bool> {
        if let Place::Writing(file) = std::mem::replace(&mut self.place, Place::Nothing) {
            file.finish().map_err(failed)?;
        }
        if let Some(times) = self.times.take() {
            let mut out = io::BufWriter::new(times);
            writeln!(out, "segment,ms")?;
            for (segment, ms) in product.times_ms().iter().enumerate() {
                writeln!(out, "{segment},{ms}")?;
            }
            out.flush()?;
        }
        Ok(true)
    }

    fn reject(&mut self, _number: u32) -> io::Result<bool> {
        Err(io::Error::other("the sender has given the file up"))
    }
}
