//! Digests from before: a sender that is started again does not hash again what it has hashed.
//!
//! In a folder of our state each file of some length that was sent has a *page*, named by device and inode:
//!
//! ```text
//! magic 8 | device 8 | inode 8 | size 8 | mtime 8 + 4 | ctime 8 + 4 | check 8
//! index of a group 8 | its digest 32 | check 8        … and so on, appended as groups are hashed
//! ```
//!
//! A page counts only for a file that looks exactly as it says: whoever changes a file's content changes its ctime, even if
//! mtime is set back. Of a file that changed a moment ago nothing is noted, because two changes may bear the same time.
//! A record that is torn or damaged ends its page. Whatever cannot be read or written, the file is hashed.
//!
//! A page that is wrong all the same does no harm at the receiver: bytes that do not fit their digest are refused there.

use super::digest::Digest;
use super::limits::GROUP_LEN;
use super::scan::Fingerprint;
use super::tree::Mtime;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MAGIC: [u8; 8] = *b"dp-book1";
const CHECK_LEN: usize = 8;
const HEADER_LEN: usize = 64;
const RECORD_LEN: usize = 8 + 32 + CHECK_LEN;

/// Shorter files have no page: they are hashed in a moment.
pub(crate) const SIZE_LEAST: u64 = 16 << 20;

/// Of a file that changed less than this before it was read nothing is noted.
const SETTLED: Duration = Duration::from_secs(3);

/// Pages that were not used for so long are removed; of the others the oldest when there are more than so many, or
/// when they are longer than this together (a page has 48 bytes for each MiB).
const AGE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
const PAGES_MAX: usize = 4096;
const BYTES_MAX: u64 = 256 << 20;

/// A folder of pages.
#[derive(Clone, Debug)]
pub struct DigestBook {
    folder: PathBuf,
}

/// A file as it was when it was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looks {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) size: u64,
    pub(crate) mtime: Mtime,
}

/// What is known of one file.
pub(crate) struct Page {
    header: [u8; HEADER_LEN],
    changed: SystemTime,
    known: HashMap<u64, Digest>,
    file: File,
}

impl DigestBook {
    /// Its name in a folder of state.
    pub const FOLDER: &str = "digests";

    /// The pages in `folder`, which is made if need be; those that are too old or too many are removed.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let mut pages = Vec::new();
        for entry in fs::read_dir(&folder)?.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            let age = meta.modified()?.elapsed().unwrap_or_default();
            pages.push((age, meta.len(), entry.path()));
        }
        pages.sort();
        let (mut count, mut bytes) = (0, 0);
        for (age, len, path) in pages {
            count += 1;
            bytes += len;
            if age > AGE_MAX || count > PAGES_MAX || bytes > BYTES_MAX {
                // Another sender may have been first.
                let _ = fs::remove_file(path);
            }
        }
        Ok(Self { folder })
    }

    /// The page of a file that looks so; a new one if there is none. `None` for one that is too short, and when the
    /// page cannot be had.
    pub(crate) fn page(&self, looks: &Looks) -> Option<Page> {
        let Fingerprint { dev, ino, .. } = looks.fingerprint;
        let path = self.folder.join(format!("{dev:x}-{ino:x}"));
        (looks.size >= SIZE_LEAST).then(|| Page::open(&path, looks).ok()).flatten()
    }
}

impl Page {
    fn open(path: &Path, looks: &Looks) -> io::Result<Self> {
        let header = looks.header();
        let (seconds, nanos) = looks.fingerprint.ctime;
        let since = Duration::new(u64::try_from(seconds).unwrap_or(0), nanos);
        let changed = UNIX_EPOCH + since;
        let mut options = OpenOptions::new();
        options.read(true).append(true).mode(0o600);
        if let Ok(file) = options.open(path) {
            let mut bytes = Vec::new();
            // Each group once, and some of them twice where two senders were at work.
            let most = HEADER_LEN as u64 + 2 * RECORD_LEN as u64 * (looks.size / GROUP_LEN + 1);
            (&file).take(most).read_to_end(&mut bytes)?;
            if bytes.starts_with(&header) {
                let records = bytes[HEADER_LEN..].chunks_exact(RECORD_LEN);
                let known: Vec<_> = records.map_while(|record| read(&header, record)).collect();
                file.set_len((HEADER_LEN + known.len() * RECORD_LEN) as u64)?;
                return Ok(Self { header, changed, known: known.into_iter().collect(), file });
            }
        }
        // Not in its place before it is whole; who still writes to the old one does no harm.
        let new = path.with_extension(format!("{}", std::process::id()));
        let mut file = options.create(true).open(&new)?;
        file.set_len(0)?;
        file.write_all(&header)?;
        fs::rename(&new, path)?;
        Ok(Self { header, changed, known: HashMap::new(), file })
    }

    /// Digest of a group, if it was noted.
    pub(crate) fn get(&self, index: u64) -> Option<Digest> {
        self.known.get(&index).copied()
    }

    /// Notes what was hashed of bytes that were read no earlier than `read_at`.
    pub(crate) fn note(&mut self, digests: &[(u64, Digest)], read_at: SystemTime) {
        let settled = read_at.duration_since(self.changed).is_ok_and(|since| since >= SETTLED);
        if !settled || digests.is_empty() {
            return;
        }
        let mut bytes = Vec::with_capacity(digests.len() * RECORD_LEN);
        for (index, digest) in digests {
            let start = bytes.len();
            bytes.extend_from_slice(&index.to_be_bytes());
            bytes.extend_from_slice(&digest.0);
            let check = check(&self.header, &bytes[start..]);
            bytes.extend_from_slice(&check);
        }
        // What is not noted is hashed again.
        let _ = self.file.write_all(&bytes);
    }
}

impl Looks {
    fn header(&self) -> [u8; HEADER_LEN] {
        let (Fingerprint { dev, ino, ctime }, mtime) = (self.fingerprint, self.mtime);
        let mut header = [0; HEADER_LEN];
        let fields: [&[u8]; 8] = [
            &MAGIC,
            &dev.to_be_bytes(),
            &ino.to_be_bytes(),
            &self.size.to_be_bytes(),
            &mtime.secs.to_be_bytes(),
            &mtime.nanos.to_be_bytes(),
            &ctime.0.to_be_bytes(),
            &ctime.1.to_be_bytes(),
        ];
        let mut at = 0;
        for field in fields {
            header[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        let check = check(&[], &header[..at]);
        header[at..].copy_from_slice(&check);
        header
    }
}

fn check(header: &[u8], bytes: &[u8]) -> [u8; CHECK_LEN] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(bytes);
    let mut check = [0; CHECK_LEN];
    check.copy_from_slice(&hasher.finalize().as_bytes()[..CHECK_LEN]);
    check
}

fn read(header: &[u8], record: &[u8]) -> Option<(u64, Digest)> {
    let (body, seen) = record.split_at(RECORD_LEN - CHECK_LEN);
    if check(header, body) != seen {
        return None;
    }
    let (index, digest) = body.split_at(8);
    Some((u64::from_be_bytes(index.try_into().ok()?), Digest(digest.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::{Digest, DigestBook, HEADER_LEN, Looks, PAGES_MAX, RECORD_LEN, SIZE_LEAST};
    use crate::object::scan::Fingerprint;
    use crate::object::tree::Mtime;
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    fn looks() -> Looks {
        Looks {
            fingerprint: Fingerprint { dev: 1, ino: 2, ctime: (1000, 5) },
            size: SIZE_LEAST,
            mtime: Mtime { secs: 900, nanos: 7 },
        }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn what_was_noted_is_known_of_a_file_that_looks_the_same_only() {
        let dir = tempfile::tempdir().unwrap();
        let book = DigestBook::open(dir.path().to_owned()).unwrap();
        let digests = [(0, Digest([1; 32])), (7, Digest([2; 32]))];
        book.page(&looks()).unwrap().note(&digests, at(2000));
        let page = book.page(&looks()).unwrap();
        assert_eq!(
            (page.get(0), page.get(7), page.get(1)),
            (Some(digests[0].1), Some(digests[1].1), None)
        );
        let same = looks();
        for other in [
            Looks { size: same.size + 1, ..same },
            Looks { mtime: Mtime { nanos: 8, ..same.mtime }, ..same },
            Looks { fingerprint: Fingerprint { ctime: (1000, 6), ..same.fingerprint }, ..same },
        ] {
            assert_eq!(book.page(&other).unwrap().get(0), None, "{other:?}");
            assert_eq!(book.page(&same).unwrap().get(0), None, "its page was given up");
            book.page(&same).unwrap().note(&digests, at(2000));
        }
        assert!(book.page(&Looks { size: SIZE_LEAST - 1, ..same }).is_none());
    }

    #[test]
    fn of_a_file_that_has_just_changed_nothing_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let book = DigestBook::open(dir.path().to_owned()).unwrap();
        for seconds in [0, 999, 1002] {
            book.page(&looks()).unwrap().note(&[(0, Digest([1; 32]))], at(seconds));
            assert_eq!(book.page(&looks()).unwrap().get(0), None, "{seconds}");
        }
        book.page(&looks()).unwrap().note(&[(0, Digest([1; 32]))], at(1004));
        assert!(book.page(&looks()).unwrap().get(0).is_some());
    }

    #[test]
    fn a_page_ends_where_it_is_damaged_and_goes_on_from_there() {
        let dir = tempfile::tempdir().unwrap();
        let book = DigestBook::open(dir.path().to_owned()).unwrap();
        let digests: Vec<_> = (0..4).map(|i| (i, Digest([i as u8 + 1; 32]))).collect();
        book.page(&looks()).unwrap().note(&digests, at(2000));
        let path = dir.path().join("1-2");
        let whole = fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        damaged[HEADER_LEN + 2 * RECORD_LEN + 20] ^= 1;
        fs::write(&path, damaged).unwrap();
        let mut page = book.page(&looks()).unwrap();
        assert!(page.get(1).is_some() && page.get(2).is_none() && page.get(3).is_none());
        page.note(&digests[2..], at(2000));
        assert_eq!(fs::read(&path).unwrap(), whole);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&whole[..30]).unwrap();
        assert!(book.page(&looks()).unwrap().get(3).is_some(), "a torn tail is cut off");
        assert_eq!(fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn old_pages_make_room() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..PAGES_MAX + 10 {
            fs::write(dir.path().join(format!("{number:x}-0")), "").unwrap();
        }
        let old = fs::File::create(dir.path().join("old")).unwrap();
        old.set_modified(SystemTime::now() - Duration::from_secs(40 * 24 * 3600)).unwrap();
        DigestBook::open(dir.path().to_owned()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), PAGES_MAX);
        assert!(!dir.path().join("old").exists());
    }
}
