//! The folder that products are placed in.
//!
//! A product's bytes go to a file of its own in `.downpour` and get their name when they are verified. No link is followed
//! on the way. A plain product replaces an older one of its name; a file of a site replaces nothing.

use super::file::SiteFile;
use crate::object::{Digest, StoreFailure, explain, open_in};
use crate::receipt::content_beneath;
use downpour_catalog::ErrorClass;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, mkdirat, renameat_with};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Our folder in the target.
const STAGING: &str = ".downpour";
/// How the files there begin.
const STAGED: &str = "product-";

pub(super) struct Folder {
    path: PathBuf,
    root: OwnedFd,
    staging: OwnedFd,
    lane: Option<String>,
}

impl Folder {
    /// Opens it; made when it is missing. What an earlier run left half done is of no use. Others may use the folder beside
    /// it if each has a lane of its own.
    pub(super) fn open(path: &Path, lane: Option<&str>) -> Result<Self, String> {
        let told = |error: Errno| format!("{}: {}", path.display(), explain(error));
        std::fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(told)?;
        let made = |at: &OwnedFd, name: &str| match mkdirat(at, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => open_in(at, name.as_bytes(), flags, Mode::empty()),
            Err(error) => Err(error),
        };
        let mut staging = made(&root, STAGING).map_err(told)?;
        if let Some(lane) = lane {
            staging = made(&staging, lane).map_err(told)?;
        }
        for left in Dir::read_from(&staging).map_err(told)?.flatten() {
            if left.file_name().to_bytes().starts_with(STAGED.as_bytes()) {
                let _ = rustix::fs::unlinkat(&staging, left.file_name(), AtFlags::empty());
            }
        }
        Ok(Self { path: path.to_owned(), root, staging, lane: lane.map(str::to_owned) })
    }

    /// A new, empty file for a product.
    pub(super) fn stage(&self, number: u64) -> Result<File, StoreFailure> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mode = Mode::from_raw_mode(0o644);
        let opened = open_in(&self.staging, staged(number).as_bytes(), flags, mode);
        opened.map(File::from).map_err(|error| failed("making a file", &error.into()))
    }

    /// Gives what is staged its path, and makes the folders on the way; false if something is there. No link is followed.
    fn put(&self, number: u64, path: &str) -> Result<bool, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at: Option<OwnedFd> = None;
        let mut parts = path.split('/').peekable();
        while let Some(part) = parts.next() {
            let folder = at.as_ref().unwrap_or(&self.root);
            if parts.peek().is_none() {
                let flags = RenameFlags::NOREPLACE;
                let moved = renameat_with(&self.staging, staged(number), folder, part, flags);
                return match moved {
                    Ok(()) => Ok(true),
                    Err(Errno::EXIST) => Ok(false),
                    Err(error) => Err(error),
                };
            }
            match mkdirat(folder, part, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            at = Some(open_in(folder, part.as_bytes(), flags, Mode::empty())?);
        }
        Err(Errno::INVAL)
    }

    fn unstage(&self, number: u64) {
        let _ = rustix::fs::unlinkat(&self.staging, staged(number), AtFlags::empty());
    }

    /// Places a file of a site. What is there already is not replaced; with the same content it is the file.
    pub(super) fn place_file(
        &self,
        number: u64,
        (site_file, digest): (&SiteFile, [u8; 32]),
        file: Option<File>,
    ) -> Result<Digest, (ErrorClass, String)> {
        let refused = |class, why: &str| (class, why.to_owned());
        let agreed = site_file.digest().ok_or_else(|| {
            refused(ErrorClass::NameRefused, "its path or its digest cannot be one")
        })?;
        if agreed.0 != digest {
            self.unstage(number);
            return Err(refused(ErrorClass::FileChanged, "its content is not what was agreed on"));
        }
        if file.is_none() {
            self.stage(number).map_err(|_| {
                refused(ErrorClass::DestinationWriteFailed, "no file could be made")
            })?; // An empty one.
        }
        let put = self.put(number, &site_file.path).map_err(|error| {
            self.unstage(number);
            (class_of(error), explain(error))
        })?;
        if !put {
            self.unstage(number);
            let there = content_beneath(&self.path, Path::new(&site_file.path));
            let same = there.is_ok_and(|found| found == agreed);
            if !same {
                let why = "another file is in its place";
                return Err(refused(ErrorClass::VersionConflict, why));
            }
        }
        Ok(agreed)
    }

    pub(super) fn place(
        &self,
        number: u64,
        name: &str,
        file: Option<File>,
    ) -> Result<(), StoreFailure> {
        if file.is_none() {
            self.stage(number)?; // An empty one.
        }
        let (from, to) = (&self.staging, &self.root);
        rustix::fs::renameat(from, staged(number), to, name)
            .map_err(|error| failed("placing a product", &error.into()))
    }
}

/// What a failure to place a file is called.
fn class_of(error: Errno) -> ErrorClass {
    match error {
        Errno::NOSPC | Errno::DQUOT => ErrorClass::DestinationFull,
        Errno::ROFS => ErrorClass::DestinationReadOnly,
        Errno::LOOP | Errno::NOTDIR | Errno::NAMETOOLONG => ErrorClass::NameRefused,
        _ => ErrorClass::DestinationWriteFailed,
    }
}

fn staged(number: u64) -> String {
    format!("{STAGED}{number}")
}

/// What a failure is called.
pub(super) fn failed(doing: &str, error: &std::io::Error) -> StoreFailure {
    let doing = format!("{doing}: {error}");
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => {
            StoreFailure::DiskFull { needed: None, available: None, doing }
        }
        _ => StoreFailure::Target(doing),
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What was not delivered is of no use to a later session; a folder that holds something else stays.
        if let Some(lane) = &self.lane {
            let lane = Path::new(STAGING).join(lane);
            let _ = rustix::fs::unlinkat(&self.root, lane, AtFlags::REMOVEDIR);
        }
        let _ = rustix::fs::unlinkat(&self.root, STAGING, AtFlags::REMOVEDIR);
    }
}

#[cfg(test)]
mod tests {
    use super::Folder;
    use std::io::Write as _;

    #[test]
    fn sessions_in_lanes_of_one_folder_keep_out_of_each_others_way() {
        let root = tempfile::tempdir().unwrap();
        let open = |lane| Folder::open(root.path(), Some(lane)).unwrap();
        let (one, two) = (open("one"), open("two"));
        for (folder, content) in [(&one, "1"), (&two, "2")] {
            folder.stage(5).unwrap().write_all(content.as_bytes()).unwrap();
        }
        drop(open("two").stage(6).unwrap());
        assert!(one.put(5, "in/5").unwrap(), "another lane is swept without it");
        assert!(two.put(5, "in/5").is_err(), "its own was swept");
        assert_eq!(std::fs::read(root.path().join("in/5")).unwrap(), b"1");
        drop(one);
        assert!(root.path().join(".downpour/two").exists());
        assert!(!root.path().join(".downpour/one").exists());
    }
}
