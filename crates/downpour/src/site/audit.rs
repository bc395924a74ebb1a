//! Who did what, and what came of it: `audit.ndjson` in the state folder, a line of JSON each.
//!
//! Lines are only added, synced before the answer goes out. Each names the digest of the line before, so that one that was
//! changed or taken out shows. A file that has reached its size goes aside under the number of its last line; nothing is
//! ever deleted here.

use downpour_catalog::Time;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use utoipa::ToSchema;

/// Name of the file in the state folder.
const FILE: &str = "audit.ndjson";
/// Bytes after which a file goes aside.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Characters of what an entry says of itself.
const DETAIL_MAX: usize = 1000;

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
        let mut lines = BufReader::new(File::open(&path)?);
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
            fs::rename(&self.file, self.file.with_file_name(aside(end.number)))?;
            let mut options = OpenOptions::new();
            end.file = options.create(true).append(true).mode(0o600).open(&self.file)?;
            end.bytes = 0;
        }
        let entry = AuditEntry {
            number: end.number + 1,
            at: now.0,
            who: deed.who,
            from: deed.from,
            what: deed.what,
            result: deed.result,
            detail: deed.detail.chars().take(DETAIL_MAX).collect(),
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

    /// Up to `limit` entries after number `after` of the present file, oldest first. Blocks.
    pub fn list(&self, after: u64, limit: usize) -> io::Result<Vec<AuditEntry>> {
        let mut found = Vec::new();
        for line in BufReader::new(File::open(&self.file)?).lines() {
            let Ok(entry) = serde_json::from_str::<AuditEntry>(&line?) else { break };
            if entry.number > after {
                found.push(entry);
            }
            if found.len() >= limit {
                break;
            }
        }
        Ok(found)
    }

    /// The number of the last entry.
    pub fn last(&self) -> u64 {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).number
    }
}

impl End {
    /// Goes on with the numbers of the last file that went aside.
    fn continue_after(&mut self, state: &Path) -> io::Result<()> {
        let mut last = 0;
        for entry in fs::read_dir(state)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| {
                name.strip_prefix("audit-")?.strip_suffix(".ndjson")?.parse::<u64>().ok()
            });
            last = last.max(number.unwrap_or(0));
        }
        if last > 0 {
            let text = fs::read(state.join(aside(last)))?;
            let line = text.strip_suffix(b"\n").unwrap_or(&text);
            let line = line.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
            (self.number, self.digest) = (last, digest_of(line));
        }
        Ok(())
    }
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
    use super::{Audit, Deed, FILE, aside, digest_of};
    use downpour_catalog::Time;
    use std::fs;

    fn deed(what: &str) -> Deed {
        Deed {
            who: "night-shift".to_owned(),
            from: "127.0.0.1:5".to_owned(),
            what: what.to_owned(),
            result: "200".to_owned(),
            detail: String::new(),
        }
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
        audit.record(deed("three"), Time(3)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let all = audit.list(0, 10).unwrap();
        assert_eq!(all.iter().map(|entry| entry.number).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(all[2].before, digest_of(lines[1].as_bytes()));
        assert_eq!(all[0].before, digest_of(b""));
        assert_eq!(audit.list(1, 1).unwrap()[0].what, "two");
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
    }
}
