//! Who did what, and what came of it: `audit.ndjson` in the state folder, a line of JSON each.
//!
//! Lines are only added, synced before the answer goes out. Each names the digest of the line before, so that one that was
//! changed or taken out shows. A file that has reached its size goes aside under the number of its last line; nothing is
//! ever deleted here.

use downpour_catalog::Time;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Take, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use utoipa::ToSchema;

/// Name of the file in the state folder.
pub(super) const FILE: &str = "audit.ndjson";
/// Bytes after which a file goes aside.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Characters of what an entry says of what was asked, and of what came of it.
const TEXT_MAX: usize = 1000;

/// One thing that somebody did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Counted from 1 without gaps.
    pub number: u64,
    /// When, in microseconds since 1970.
    pub at: i64,
    /// Who: a token's name, a site's, or `signal`.
    pub who: String,
    /// From which address.
    pub from: String,
    /// What was asked: method and path.
    pub what: String,
    /// What came of it: the HTTP status, or `done` or `refused`.
    pub result: String,
    /// More about it; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// BLAKE3 digest of the line before, in hex; of nothing in the first.
    pub before: String,
}

/// Which entries are wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// After this number.
    pub after: u64,
    /// Not from before this time.
    pub since: Time,
    /// Only of this one.
    pub who: Option<String>,
}

/// What can be said of the whole record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Verified {
    /// The first entry that is there; 0 when there is none.
    pub first: u64,
    /// The last one up to which each follows the one before it.
    pub last: u64,
    /// Digest of its line: who keeps it elsewhere sees later whether the record up to here is still the same.
    pub digest: String,
    /// What does not follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// The record.
pub struct Audit {
    file: PathBuf,
    end: Mutex<End>,
}

struct End {
    file: File,
    number: u64,
    digest: String,
    bytes: u64,
}

/// What is to be recorded.
#[derive(Clone, Debug)]
pub(crate) struct Deed {
    pub(crate) who: String,
    pub(crate) from: String,
    pub(crate) what: String,
    pub(crate) result: String,
    pub(crate) detail: String,
}

impl Audit {
    /// The record of a state folder. A last line that was cut off by a crash is taken away: its answer never went out.
    pub fn open(state: &Path) -> io::Result<Self> {
        let path = state.join(FILE);
        let mut options = OpenOptions::new();
        options.create(true).append(true).read(true).mode(0o600);
        let file = options.open(&path)?;
        let mut end = End { file, number: 0, digest: digest_of(b""), bytes: 0 };
        let mut lines = BufReader::new(crate::whole::open(&path)?);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            let Some(whole) = line.strip_suffix(b"\n") else {
                end.file.set_len(end.bytes)?;
                break;
            };
            let entry: AuditEntry = serde_json::from_slice(whole)?;
            (end.number, end.digest) = (entry.number, digest_of(whole));
            end.bytes += line.len() as u64;
            line.clear();
        }
        if end.bytes == 0 {
            end.continue_after(state)?;
        }
        Ok(Self { file: path, end: Mutex::new(end) })
    }

    /// Adds an entry and gives it when it is on disk. Blocks for that long.
    pub(crate) fn record(&self, deed: Deed, now: Time) -> io::Result<AuditEntry> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if end.bytes >= FILE_BYTES_MAX {
            self.put_aside(&mut end)?;
        }
        let entry = AuditEntry {
            number: end.number + 1,
            at: now.0,
            who: deed.who,
            from: deed.from,
            what: deed.what.chars().take(TEXT_MAX).collect(),
            result: deed.result,
            detail: deed.detail.chars().take(TEXT_MAX).collect(),
            before: end.digest.clone(),
        };
        let mut line = serde_json::to_vec(&entry)?;
        let digest = digest_of(&line);
        line.push(b'\n');
        let bytes = end.bytes;
        let written = end.file.write_all(&line).and_then(|()| end.file.sync_data());
        if let Err(error) = written {
            // Half a line would spoil the next one.
            end.file.set_len(bytes)?;
            return Err(error);
        }
        (end.number, end.digest, end.bytes) = (entry.number, digest, bytes + line.len() as u64);
        Ok(entry)
    }

    /// As on a disk that is full.
    #[cfg(test)]
    pub(crate) fn fill_disk(&self) {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        self.end.lock().unwrap().file = full;
    }

    /// Begins a new file. If it could not be opened when the full one was aside already, the next deed tries again.
    fn put_aside(&self, end: &mut End) -> io::Result<()> {
        let full = self.file.with_file_name(aside(end.number));
        if !full.try_exists()? {
            fs::rename(&self.file, full)?;
        }
        let mut options = OpenOptions::new();
        end.file = options.create(true).append(true).mode(0o600).open(&self.file)?;
        end.bytes = 0;
        Ok(())
    }

    /// Up to `limit` entries that are wanted, oldest first, and the first line that was passed over, as it cannot be read. Blocks.
    pub fn list(
        &self,
        wanted: &Wanted,
        limit: usize,
    ) -> io::Result<(Vec<AuditEntry>, Option<String>)> {
        let (mut found, mut broken) = (Vec::new(), None);
        self.each(wanted.after, |_, entry| {
            match entry {
                Ok(entry) => {
                    let who = wanted.who.as_ref().is_none_or(|who| *who == entry.who);
                    if who && entry.number > wanted.after && entry.at >= wanted.since.0 {
                        found.push(entry);
                    }
                }
                Err(line) => {
                    broken.get_or_insert(line);
                }
            }
            found.len() < limit
        })?;
        Ok((found, broken))
    }

    /// Whether each line follows the one before it. Blocks.
    pub fn verify(&self) -> io::Result<Verified> {
        let mut seen = Verified { digest: digest_of(b""), ..Verified::default() };
        self.each(0, |line, entry| {
            let entry = match entry {
                Ok(entry) => entry,
                Err(line) => {
                    seen.broken = Some(line);
                    return false;
                }
            };
            let follows = entry.number == seen.last + 1 && entry.before == seen.digest;
            // Older files may have been moved to an archive.
            let begins = seen.first == 0 && entry.number > 1;
            if !(follows || begins) {
                let after = seen.last;
                seen.broken = Some(format!("line {} does not follow {after}", entry.number));
                return false;
            }
            if seen.first == 0 {
                seen.first = entry.number;
            }
            (seen.last, seen.digest) = (entry.number, digest_of(line));
            true
        })?;
        Ok(seen)
    }

    /// Shows each line of the files that may have some after number `after`, or that it cannot be read, until `goes_on` says no.
    fn each(
        &self,
        after: u64,
        mut goes_on: impl FnMut(&[u8], Result<AuditEntry, String>) -> bool,
    ) -> io::Result<()> {
        for file in self.files(after)? {
            for (at, line) in (1..).zip(BufReader::new(file).split(b'\n')) {
                let line = line?;
                let entry = serde_json::from_slice(&line);
                let entry = entry.map_err(|_| format!("line {at} of a file cannot be read"));
                if !goes_on(&line, entry) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Files with entries after number `after`, oldest first, opened so that none goes aside meanwhile. Of the last one what is
    /// written: whoever reads while an entry is added may see half of it.
    fn files(&self, after: u64) -> io::Result<Vec<Take<File>>> {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = self.file.parent().unwrap_or(Path::new("."));
        let old = numbers_aside(folder)?.into_iter().filter(|last| *last > after);
        let whole = |last| File::open(folder.join(aside(last))).map(|file| file.take(u64::MAX));
        let mut files = old.map(whole).collect::<io::Result<Vec<_>>>()?;
        match File::open(&self.file) {
            Ok(file) => files.push(file.take(end.bytes)),
            // The full one is aside, and there was no next one yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !files.is_empty() => {}
            Err(error) => return Err(error),
        }
        Ok(files)
    }

    /// The number of the last entry.
    pub fn last(&self) -> u64 {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).number
    }
}

impl End {
    /// Goes on with the numbers of the last file that went aside.
    fn continue_after(&mut self, state: &Path) -> io::Result<()> {
        let last = numbers_aside(state)?.pop().unwrap_or(0);
        if last > 0 {
            let text = fs::read(state.join(aside(last)))?;
            let line = text.strip_suffix(b"\n").unwrap_or(&text);
            let line = line.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
            (self.number, self.digest) = (last, digest_of(line));
        }
        Ok(())
    }
}

/// The last numbers of the files that went aside, in order.
fn numbers_aside(state: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(state)? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| {
            name.strip_prefix("audit-")?.strip_suffix(".ndjson")?.parse::<u64>().ok()
        }));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Name of a file that went aside.
fn aside(last: u64) -> String {
    format!("audit-{last:012}.ndjson")
}

fn digest_of(line: &[u8]) -> String {
    blake3::hash(line).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::{Audit, Deed, FILE, FILE_BYTES_MAX, TEXT_MAX, Wanted, aside, digest_of};
    use downpour_catalog::Time;
    use std::fs;
    use std::io::Write as _;

    fn deed(what: &str) -> Deed {
        Deed {
            who: "night-shift".to_owned(),
            from: "127.0.0.1:5".to_owned(),
            what: what.to_owned(),
            result: "200".to_owned(),
            detail: String::new(),
        }
    }

    fn after(after: u64) -> Wanted {
        Wanted { after, ..Wanted::default() }
    }

    #[test]
    fn lines_are_numbered_and_chained_over_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path()).unwrap();
        audit.record(deed("one"), Time(1)).unwrap();
        audit.record(deed("two"), Time(2)).unwrap();
        drop(audit);
        let path = folder.path().join(FILE);
        // A crash in the middle of a line.
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{whole}{{\"number\": 3, \"at")).unwrap();
        let audit = Audit::open(folder.path()).unwrap();
        // However long a path somebody asks for.
        let long = audit.record(deed(&format!("three{}", "x".repeat(100_000))), Time(3)).unwrap();
        assert_eq!(long.what.len(), TEXT_MAX);
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let all = audit.list(&Wanted::default(), 10).unwrap().0;
        assert_eq!(all.iter().map(|entry| entry.number).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(all[2].before, digest_of(lines[1].as_bytes()));
        assert_eq!(all[0].before, digest_of(b""));
        assert_eq!(audit.list(&after(1), 1).unwrap().0[0].what, "two");
    }

    #[test]
    fn a_file_that_went_aside_is_continued() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path()).unwrap();
        for what in ["one", "two"] {
            audit.record(deed(what), Time(1)).unwrap();
        }
        drop(audit);
        let path = folder.path().join(FILE);
        let last = fs::read_to_string(&path).unwrap().lines().last().unwrap().to_owned();
        fs::rename(&path, folder.path().join(aside(2))).unwrap();
        let audit = Audit::open(folder.path()).unwrap();
        let entry = audit.record(deed("three"), Time(2)).unwrap();
        assert_eq!((entry.number, entry.before), (3, digest_of(last.as_bytes())));
        // What went aside is still told, and still followed.
        let numbers = |wanted: &Wanted| -> Vec<u64> {
            audit.list(wanted, 10).unwrap().0.iter().map(|entry| entry.number).collect()
        };
        assert_eq!(numbers(&Wanted::default()), [1, 2, 3]);
        assert_eq!((numbers(&after(1)), numbers(&after(2))), (vec![2, 3], vec![3]));
        let since = Wanted { since: Time(2), ..Wanted::default() };
        assert_eq!(numbers(&since), [3]);
        let who = Wanted { who: Some("nobody".to_owned()), ..Wanted::default() };
        assert!(numbers(&who).is_empty());
        let whole = audit.verify().unwrap();
        assert_eq!((whole.first, whole.last, whole.broken), (1, 3, None));
    }

    #[test]
    fn a_new_file_that_could_not_be_opened_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path()).unwrap();
        let path = folder.path().join(FILE);
        let fill = || audit.end.lock().unwrap().bytes = FILE_BYTES_MAX;
        audit.record(deed("one"), Time(1)).unwrap();
        fill();
        audit.record(deed("two"), Time(2)).unwrap();
        // The full one went aside, and there it ended.
        fill();
        fs::rename(&path, folder.path().join(aside(2))).unwrap();
        assert_eq!(audit.list(&after(0), 10).unwrap().0.len(), 2);
        for what in ["three", "four"] {
            audit.record(deed(what), Time(3)).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
        let whole = audit.verify().unwrap();
        assert_eq!((whole.first, whole.last, whole.broken), (1, 4, None));
    }

    #[test]
    fn an_entry_that_is_being_written_is_none_yet() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path()).unwrap();
        audit.record(deed("one"), Time(1)).unwrap();
        audit.end.lock().unwrap().file.write_all(b"{\"number\": 2, \"at").unwrap();
        let whole = audit.verify().unwrap();
        assert_eq!((whole.last, whole.broken), (1, None));
        assert_eq!(audit.list(&after(0), 10).unwrap().0.len(), 1);
    }

    #[test]
    fn what_stands_behind_a_line_that_cannot_be_read_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path()).unwrap();
        for what in ["one", "two", "three"] {
            audit.record(deed(what), Time(1)).unwrap();
        }
        let path = folder.path().join(FILE);
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, whole.replace("\"what\":\"two\"", "\"what\"\u{1}\"two\"")).unwrap();
        let told = |limit| {
            let (entries, broken) = audit.list(&after(0), limit).unwrap();
            (entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), broken)
        };
        assert_eq!(told(1), (vec![1], None));
        assert_eq!(told(10), (vec![1, 3], Some("line 2 of a file cannot be read".to_owned())));
    }

    #[test]
    fn what_was_changed_or_taken_out_shows() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path()).unwrap();
        for what in ["one", "two", "three"] {
            audit.record(deed(what), Time(1)).unwrap();
        }
        let path = folder.path().join(FILE);
        let whole = fs::read_to_string(&path).unwrap();
        let changed = whole.replace("two", "owt");
        let taken_out: String = whole
            .lines()
            .enumerate()
            .filter(|(n, _)| *n != 1)
            .map(|(_, line)| format!("{line}\n"))
            .collect();
        for (text, last) in [(changed, 2), (taken_out, 1), (whole.replace("three\"", "three"), 2)] {
            fs::write(&path, text).unwrap();
            let seen = audit.verify().unwrap();
            assert_eq!((seen.last, seen.broken.is_some()), (last, true));
        }
        // The beginning may lie in an archive.
        let end = whole.lines().skip(1).map(|line| format!("{line}\n")).collect::<String>();
        fs::write(&path, end).unwrap();
        let seen = audit.verify().unwrap();
        assert_eq!((seen.first, seen.last, seen.broken), (2, 3, None));
    }
}
