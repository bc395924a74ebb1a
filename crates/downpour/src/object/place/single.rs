//! One file by itself, without a tree: what the papers' profiles bring.
//!
//! The same rules as for a tree: the name is one plain name, the bytes go to `OUT/.downpour` and get their name when
//! all are there, no link is followed, nothing is replaced unless asked for.

use super::{Obstacle, OpenError, PlaceError, Staging, Why, rename};
use crate::object::disk::write_all_at;
use crate::object::tree::{is_plain_name, printable};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

const PART: &[u8] = b"single";

/// Such a session is not resumed: whatever becomes of it, nothing stays in `OUT/.downpour`.
struct Passing(Staging);

impl Drop for Passing {
    fn drop(&mut self) {
        // What cannot be removed is removed by the next receiver into this target.
        let _ = self.0.remove(|_| false);
    }
}

/// A file that is being written.
pub(crate) struct SingleFile {
    staging: Passing,
    part: OwnedFd,
    name: Vec<u8>,
    size: u64,
    replaces: bool,
}

/// A target folder that takes one file.
pub(crate) struct SingleTarget {
    staging: Passing,
    replaces: bool,
}

impl SingleTarget {
    /// Makes the folder if need be, and locks it.
    pub(crate) fn open(out: &Path, replaces: bool) -> Result<Self, OpenError> {
        Ok(Self { staging: Passing(Staging::open(out, None)?), replaces })
    }

    /// Starts a file of this name and size, which may come from a stranger.
    pub(crate) fn create(self, name: &[u8], size: u64) -> Result<SingleFile, PlaceError> {
        let Self { staging, replaces } = self;
        if !is_plain_name(name) {
            let text = "the sender gave the file no plain name; --as gives it one";
            return Err(PlaceError::Object(Why::new(Obstacle::Refused, text)));
        }
        let doing = &printable(name);
        if !replaces {
            match rustix::fs::statat(&**staging.0.out(), name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => {}
                Ok(_) => {
                    let text = format!("{doing}: there is one of that name");
                    return Err(PlaceError::Object(Why::new(Obstacle::Taken, text)));
                }
                Err(error) => return Err(PlaceError::of(error, doing)),
            }
        }
        let room = staging.0.available().map_err(|error| PlaceError::of(error, doing))?;
        if room < size {
            return Err(PlaceError::Full(format!("{doing}: {size} bytes, and room for {room}")));
        }
        let part = staging.0.create_part(PART).map_err(|error| PlaceError::of(error, doing))?;
        rustix::fs::ftruncate(&part, size).map_err(|error| PlaceError::of(error, doing))?;
        Ok(SingleFile { staging, part, name: name.to_vec(), size, replaces })
    }
}

impl SingleFile {
    /// Writes bytes, which must lie within the size.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), PlaceError> {
        let inside = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.size);
        debug_assert!(inside, "the machine checks each segment's place");
        if !inside {
            let why = Why::new(Obstacle::Failed, "bytes beyond the end of the file");
            return Err(PlaceError::Object(why));
        }
        write_all_at(&self.part, bytes, offset)
            .map_err(|error| PlaceError::of(error, "writing the file"))
    }

    /// Gives it its name, which is on the disk then, and leaves nothing else behind.
    pub(crate) fn finish(self) -> Result<(), PlaceError> {
        let fail = |error| PlaceError::of(error, "placing the file");
        rustix::fs::fchmod(&self.part, rustix::fs::Mode::from_raw_mode(0o644)).map_err(fail)?;
        rustix::fs::fdatasync(&self.part).map_err(fail)?;
        let staging = &self.staging.0;
        rename((staging.parts(), PART), (staging.out(), &self.name), self.replaces)
            .and_then(|()| rustix::fs::fsync(staging.out()))
            .map_err(fail)
    }
}

#[cfg(test)]
mod tests {
    use super::SingleTarget;
    use std::fs;

    #[test]
    fn a_file_gets_its_name_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let file = SingleTarget::open(&out, false).unwrap().create(b"a", 6).unwrap();
        file.write(3, b"def").unwrap();
        assert!(!out.join("a").exists());
        file.write(0, b"abc").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(out.join("a")).unwrap(), b"abcdef");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 1, "nothing else is left");
        assert!(SingleTarget::open(&out, false).unwrap().create(b"a", 1).is_err(), "it is there");
        let file = SingleTarget::open(&out, true).unwrap().create(b"a", 1).unwrap();
        file.write(0, b"x").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(out.join("a")).unwrap(), b"x");
        let given_up = SingleTarget::open(&out, true).unwrap().create(b"b", 1).unwrap();
        drop(given_up);
        assert_eq!(fs::read_dir(&out).unwrap().count(), 1, "nothing is left of what was given up");
        let huge = SingleTarget::open(&out, true).unwrap().create(b"b", u64::MAX);
        assert!(huge.is_err(), "more than the disk has");
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (out, other) = (dir.path().join("out"), dir.path().join("other"));
        fs::create_dir(&out).unwrap();
        fs::write(&other, b"precious").unwrap();
        std::os::unix::fs::symlink(&other, out.join("a")).unwrap();
        assert!(SingleTarget::open(&out, false).unwrap().create(b"a", 1).is_err());
        let file = SingleTarget::open(&out, true).unwrap().create(b"a", 1).unwrap();
        file.write(0, b"x").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"precious");
        assert_eq!(fs::read(out.join("a")).unwrap(), b"x");
    }
}
