//! The folder that products are placed in.
//!
//! A product's bytes go to a file of its own in `.downpour` and get their name when they are verified. No link is followed
//! on the way. A plain product replaces an older one of its name, and what else is there only if it may; never what another
//! product has placed, whose name the file system does not tell from its own. A file of a site
//! replaces nothing. To a place on another file system it is copied, and what lies at the place of a file of a site in its size is
//! read: the session waits meanwhile.

use super::file::SiteFile;
use super::ours::{Mark, Ours};
use crate::object::{
    Claim, Digest, Existing, Obstacle, OpenError, PlaceError, Why, copy_across, explain, open_in,
    rename,
};
use crate::receipt::{content_beneath, is_beneath};
use downpour_catalog::ErrorClass;
use rustix::fs::{AtFlags, Mode, OFlags, Stat, mkdirat, statat};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is there is compared up to this size: the session waits meanwhile.
const COMPARED_MAX: u64 = 64 << 20;
const NOT_COMPARED: &str =
    "exists in this size, and is too large to be compared: --overwrite replaces it";
const NOT_TOLD_APART: &str = "another product has placed what is there: where this file system does \
                              not tell their names apart, rename one of them at the sender";

pub(super) struct Folder {
    path: PathBuf,
    claim: Claim,
    ours: Arc<Ours>,
}

/// What has come of a product. Nothing is left of it once this goes, unless it has got its place.
pub(super) struct Staged {
    file: File,
    name: String,
    folder: Arc<OwnedFd>,
}

impl Staged {
    /// Gives it its name, on whatever file system that is.
    fn move_to(&self, to: (&OwnedFd, &str), replaces: bool) -> Result<Mark, Errno> {
        let (from, to) = ((&*self.folder, self.name.as_bytes()), (to.0, to.1.as_bytes()));
        let stat = rustix::fs::fstat(&self.file)?;
        match rename(from, to, replaces) {
            Err(Errno::XDEV) => self.copy_to(&stat, to, replaces),
            done => done.map(|()| Mark::of(&stat)),
        }
    }

    fn copy_to(&self, stat: &Stat, to: (&OwnedFd, &[u8]), replaces: bool) -> Result<Mark, Errno> {
        let whole = std::iter::once(0..stat.st_size as u64);
        copy_across((self.file.as_fd(), whole), to, replaces, |copy| {
            rustix::fs::fchmod(copy, Mode::from_raw_mode(stat.st_mode))?;
            rustix::fs::fdatasync(copy)?;
            rustix::fs::fstat(copy).map(|stat| Mark::of(&stat))
        })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What stays is removed with the session.
        let _ = rustix::fs::unlinkat(&self.folder, &*self.name, AtFlags::empty());
    }
}

impl Folder {
    /// Opens it; made when it is missing. What an earlier run left half done is of no use. It is for one receiver at a
    /// time, of products or of a tree; others may use the folder beside it if each has a lane of its own.
    pub(super) fn open(
        path: &Path,
        lane: Option<&str>,
        ours: Arc<Ours>,
    ) -> Result<Self, OpenError> {
        Ok(Self { path: path.to_owned(), claim: Claim::open(path, lane)?, ours })
    }

    /// Where products get their names.
    pub(super) fn out(&self) -> &Arc<OwnedFd> {
        self.claim.out()
    }

    /// A new, empty file for a product.
    pub(super) fn stage(&self, number: u64) -> Result<Staged, PlaceError> {
        let (name, folder) = (format!("{}{number}", Claim::STAGED), self.claim.folder().clone());
        // Read where it has to be copied.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        let opened = open_in(&folder, name.as_bytes(), flags, Mode::from_raw_mode(0o644));
        let file = opened.map_err(|error| PlaceError::of(error, "making a file"))?;
        Ok(Staged { file: file.into(), name, folder })
    }

    /// Adds to what is staged for a product; the first bytes make its file. After an error nothing is staged.
    pub(super) fn write(
        &self,
        number: u64,
        staged: &mut Option<Staged>,
        bytes: &[u8],
    ) -> Result<(), PlaceError> {
        let mut to = match staged.take() {
            Some(to) => to,
            None => self.stage(number)?,
        };
        to.file.write_all(bytes).map_err(|error| {
            let error = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            PlaceError::of(error, "writing a product")
        })?;
        *staged = Some(to);
        Ok(())
    }

    /// Gives what is staged its path, and makes the folders on the way; false if something is there. No link is followed.
    fn put(&self, staged: &Staged, path: &str) -> Result<bool, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at: Option<OwnedFd> = None;
        let mut parts = path.split('/').peekable();
        while let Some(part) = parts.next() {
            let folder = at.as_ref().unwrap_or(self.claim.out());
            if parts.peek().is_none() {
                return match staged.move_to((folder, part), false) {
                    Ok(_) => Ok(true),
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

    /// Places a file of a site. What is there already is not replaced; with the same content it is the file. Tells its digest,
    /// and whether it was put there now.
    pub(super) fn place_file(
        &self,
        number: u64,
        (site_file, digest): (&SiteFile, [u8; 32]),
        staged: Option<Staged>,
    ) -> Result<(Digest, bool), (ErrorClass, String)> {
        let refused = |class, why: &str| (class, why.to_owned());
        let agreed = site_file.digest().ok_or_else(|| {
            refused(ErrorClass::NameRefused, "its path or its digest cannot be one")
        })?;
        if agreed.0 != digest {
            return Err(refused(ErrorClass::FileChanged, "its content is not what was agreed on"));
        }
        let first = site_file.path.split('/').next().unwrap_or_default();
        if Claim::is_own(self.out(), first.as_bytes()) {
            let why = "its path leads to .downpour, which is the receiver's own";
            return Err(refused(ErrorClass::NameRefused, why));
        }
        let staged = match staged {
            Some(staged) => staged,
            // An empty one.
            None => self.stage(number).map_err(|_| {
                refused(ErrorClass::DestinationWriteFailed, "no file could be made")
            })?,
        };
        let put = self.put(&staged, &site_file.path);
        let put = put.map_err(|error| (class_of(error), explain(error)))?;
        if !put {
            let path = Path::new(&site_file.path);
            if !is_beneath(&self.path, path, (site_file.size, agreed)) {
                let why = "another file is in its place";
                return Err(refused(ErrorClass::VersionConflict, why));
            }
        }
        Ok((agreed, put))
    }

    /// Gives what is staged its name. What is there is replaced if it may be; with the same content, and not too large to be
    /// compared, it is the product. After an error nothing is staged.
    pub(super) fn place(
        &self,
        number: u64,
        (name, digest): (&str, [u8; 32]),
        staged: Option<Staged>,
    ) -> Result<(), PlaceError> {
        let staged = match staged {
            Some(staged) => staged,
            None => self.stage(number)?, // An empty one.
        };
        let fail = |error| PlaceError::of(error, "placing it");
        let to: &OwnedFd = self.claim.out();
        let placed = match staged.move_to((to, name), false) {
            Err(Errno::EXIST) => {
                let (existing, mark) = match statat(to, name, AtFlags::SYMLINK_NOFOLLOW) {
                    // Hard links are two places.
                    Ok(there)
                        if there.st_nlink == 1 && self.ours.is_anothers(name, Mark::of(&there)) =>
                    {
                        let why = Why::new(Obstacle::Taken, NOT_TOLD_APART);
                        return Err(PlaceError::Object(why));
                    }
                    Ok(there) => (Existing::of(&there), Mark::of(&there)),
                    Err(Errno::NOENT) => (Existing::Nothing, Mark::default()), // Gone meanwhile.
                    Err(error) => return Err(fail(error)),
                };
                let may = self.ours.may_replace(name, mark);
                if let Err(why) = existing.may_be_replaced(may) {
                    let size = rustix::fs::fstat(&staged.file).map_err(fail)?.st_size as u64;
                    if existing != Existing::File(size) {
                        return Err(PlaceError::Object(why));
                    }
                    if size > COMPARED_MAX {
                        return Err(PlaceError::Object(Why::new(why.obstacle, NOT_COMPARED)));
                    }
                    let there = content_beneath(&self.path, Path::new(name));
                    if !there.is_ok_and(|there| there.0 == digest) {
                        return Err(PlaceError::Object(why));
                    }
                    self.ours.add(name, mark);
                    return Ok(());
                }
                staged.move_to((to, name), true)
            }
            done => done,
        };
        self.ours.add(name, placed.map_err(fail)?);
        Ok(())
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

impl Drop for Folder {
    fn drop(&mut self) {
        // Of no use to a later session, which removes it if it cannot be removed now.
        let _ = self.claim.sweep();
        let _ = self.claim.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::{COMPARED_MAX, Folder, Mark, Ours, Staged};
    use crate::object::{Claim, Digest, OpenError, PlaceError, SingleTarget};
    use crate::product::file::tests::file;
    use crate::receipt::tests::Mounted;
    use downpour_catalog::ErrorClass;
    use rustix::io::Errno;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;
    use std::sync::Arc;

    impl Staged {
        /// What is still to come of it finds no room.
        pub(in super::super) fn fill(&mut self) {
            self.file = std::fs::File::options().write(true).open("/dev/full").unwrap();
        }
    }

    #[test]
    fn a_folder_is_for_one_receiver_at_a_time_of_products_or_of_a_tree() {
        let root = tempfile::tempdir().unwrap();
        let open = |lane| Folder::open(root.path(), lane, Arc::default());
        let is_taken = || Claim::is_taken(root.path(), None);
        assert!(!is_taken() && !root.path().join(".downpour").exists());
        let first = open(None).unwrap();
        assert!(is_taken() && !Claim::is_taken(root.path(), Some("lane")));
        let mut file = None;
        first.write(5, &mut file, b"1").unwrap();
        let second = open(None).err().unwrap();
        let told = format!("another receiver is running into {}", root.path().display());
        assert!(second.to_string().contains(&told), "{second}");
        assert!(matches!(SingleTarget::open(root.path(), false), Err(OpenError::Locked(_))));
        first.place(5, ("five", [0; 32]), file).unwrap();
        assert_eq!(std::fs::read(root.path().join("five")).unwrap(), b"1");
        drop(first);
        assert!(!root.path().join(".downpour").exists(), "nothing is left");
        let tree = SingleTarget::open(root.path(), false).unwrap();
        assert!(matches!(open(None), Err(OpenError::Locked(_))));
        // As a receiver of products leaves it that is killed.
        let left = root.path().join(".downpour/product-7");
        std::fs::write(&left, "half").unwrap();
        drop(tree);
        assert!(left.exists());
        let tree = SingleTarget::open(root.path(), false).unwrap();
        assert!(!left.exists(), "a tree is no heir of products");
        drop(tree);
        assert!(!is_taken() && open(None).is_ok());
    }

    #[test]
    fn what_is_too_large_to_be_compared_stays_and_that_is_said() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), None, Arc::default()).unwrap();
        let size = COMPARED_MAX + 1;
        std::fs::File::create(root.path().join("a")).unwrap().set_len(size).unwrap();
        let staged = folder.stage(1).unwrap();
        staged.file.set_len(size).unwrap();
        let digest = Digest::of(&vec![0; size as usize]).0;
        let placed = folder.place(1, ("a", digest), Some(staged));
        let Err(PlaceError::Object(why)) = placed else { panic!("{placed:?}") };
        assert!(why.text.contains("too large to be compared"), "{}", why.text);
    }

    #[test]
    fn two_names_of_one_file_do_not_replace_each_other_also_where_all_may_be_replaced() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), None, Arc::new(Ours::new(true))).unwrap();
        let place = |name, content: &str| {
            let mut staged = None;
            folder.write(1, &mut staged, content.as_bytes()).unwrap();
            folder.place(1, (name, Digest::of(content.as_bytes()).0), staged)
        };
        let (upper, lower) = (root.path().join("README"), root.path().join("readme"));
        std::fs::write(&upper, "somebody else's").unwrap();
        place("README", "one").unwrap();
        place("README", "newer").unwrap();
        // As where case is not told apart: the file answers to the other name.
        std::fs::rename(&upper, &lower).unwrap();
        for content in ["two", "other", "newer"] {
            let placed = place("readme", content);
            let Err(PlaceError::Object(why)) = placed else { panic!("{placed:?}") };
            assert!(why.text.contains("rename one of them at the sender"), "{}", why.text);
        }
        assert_eq!(std::fs::read_to_string(&lower).unwrap(), "newer");
        std::fs::hard_link(&lower, &upper).unwrap();
        place("readme", "two").expect("hard links are two places");
        assert_eq!(std::fs::read_to_string(&upper).unwrap(), "newer");
    }

    #[test]
    fn sessions_in_lanes_of_one_folder_keep_out_of_each_others_way() {
        let root = tempfile::tempdir().unwrap();
        let open = |lane| Folder::open(root.path(), Some(lane), Arc::default()).unwrap();
        let (one, two) = (open("one"), open("two"));
        let mut file = None;
        one.write(5, &mut file, b"1").unwrap();
        let left = root.path().join(".downpour/two/product-5");
        std::fs::write(&left, "2").unwrap();
        drop(two);
        let two = open("two");
        assert!(!left.exists(), "its own was swept");
        let staged = file.unwrap();
        assert!(one.put(&staged, "in/5").unwrap(), "another lane is swept without it");
        drop((two, staged));
        assert_eq!(std::fs::read(root.path().join("in/5")).unwrap(), b"1");
        drop(one);
        assert!(!root.path().join(".downpour/one").exists());
    }

    #[test]
    fn the_receivers_own_folder_takes_no_file_of_a_site_whatever_its_name() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), None, Arc::default()).unwrap();
        let (own, other) = (root.path().join(".downpour"), root.path().join("other"));
        std::fs::create_dir(&other).unwrap();
        let Some(_mounted) = Mounted::bind(&own, &other) else {
            let name = "the_receivers_own_folder_takes_no_file_of_a_site_whatever_its_name";
            return crate::skipped::skipped(name, "needs root to mount");
        };
        let mut staged = None;
        folder.write(1, &mut staged, b"abc").unwrap();
        let digest = Digest::of(b"abc").0;
        let placed = folder.place_file(1, (&file("other/mode"), digest), staged);
        assert_eq!(placed.unwrap_err().0, ErrorClass::NameRefused);
        assert!(!own.join("mode").exists());
    }

    #[test]
    fn what_has_its_place_on_another_file_system_gets_there() {
        let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm"));
        let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
        let Some(other) = other.ok().filter(|at| device(at.path()) != device(root.path())) else {
            let name = "what_has_its_place_on_another_file_system_gets_there";
            return crate::skipped::not_here(name, "/dev/shm is no other file system");
        };
        let folder = Folder::open(root.path(), None, Arc::default()).unwrap();
        let to = OwnedFd::from(std::fs::File::open(other.path()).unwrap());
        for (content, replaces) in [("1", false), ("2", true)] {
            let mut staged = None;
            folder.write(5, &mut staged, content.as_bytes()).unwrap();
            let staged = staged.unwrap();
            if replaces {
                assert_eq!(staged.move_to((&to, "x"), false), Err(Errno::EXIST));
            }
            let mark = staged.move_to((&to, "x"), replaces).unwrap();
            drop(staged);
            let place = other.path().join("x");
            assert_eq!(std::fs::read_to_string(&place).unwrap(), content);
            assert_eq!(std::fs::metadata(&place).unwrap().mode() & 0o700, 0o600);
            assert_eq!(mark, Mark::of(&rustix::fs::stat(&place).unwrap()));
            assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 1);
            assert!(!root.path().join(".downpour/product-5").exists());
        }
    }
}
