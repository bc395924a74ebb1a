//! The receipts that a receiving folder keeps of itself: `.downpour/receipts.ndjson`, a line of JSON each, only ever added to.
//!
//! One write and one sync for each batch. A crash in between may leave a last line that is torn: it is passed over and told of,
//! and the next batch begins on a line of its own. With the files beside it a lost catalog can be made again. Who may write to the
//! receiving folder may put a link there: none is followed to write.

use super::SignedFileReceipt;
use crate::object::{STAGING_NAME, make_folder, open_in};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Where the receipts are, below a receiving folder.
pub const RECEIPT_LOG: &str = ".downpour/receipts.ndjson";
/// The same in the folder `.downpour`.
const NAME: &[u8] = b"receipts.ndjson";
/// Longest line that is read. A receipt's longest, every byte escaped, stays below.
pub const READ_LINE_MAX: u64 = 64 << 10;

/// The receipts of a folder cannot be kept or read.
#[derive(Debug)]
pub struct LogError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    pub error: io::Error,
}

impl std::fmt::Display for LogError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for LogError {}

/// The receipts of one receiving folder, open to add to.
#[derive(Debug)]
pub struct ReceiptLog {
    path: PathBuf,
    file: File,
}

impl ReceiptLog {
    /// Opens the log of `folder`, which is there; makes it if there is none.
    pub fn open(folder: &Path) -> Result<Self, LogError> {
        let path = folder.join(RECEIPT_LOG);
        let open = || -> io::Result<File> {
            let folder = File::open(folder)?;
            make_folder(&folder, STAGING_NAME)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let parent = File::from(open_in(&folder, STAGING_NAME, flags, Mode::empty())?);
            let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
            let mut file = File::from(open_in(&parent, NAME, flags, Mode::RUSR | Mode::WUSR)?);
            if file.metadata()?.len() == 0 {
                // The name must outlive a crash as the lines do.
                parent.sync_all()?;
                folder.sync_all()?;
            } else {
                file.seek(SeekFrom::End(-1))?;
                let mut last = [0];
                file.read_exact(&mut last)?;
                if last != *b"\n" {
                    file.write_all(b"\n")?;
                }
            }
            Ok(file)
        };
        match open() {
            Ok(file) => Ok(Self { path, file }),
            Err(error) => Err(LogError { path, error }),
        }
    }

    /// Adds these; they are on the disk when it returns.
    pub fn append<'a>(
        &mut self,
        receipts: impl IntoIterator<Item = &'a SignedFileReceipt>,
    ) -> Result<(), LogError> {
        let mut text = String::new();
        for receipt in receipts {
            text.push_str(&receipt.to_json());
            text.push('\n');
        }
        let done = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        done.map_err(|error| LogError { path: self.path.clone(), error })
    }
}

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A receipt whose signature holds.
    Receipt(Box<SignedFileReceipt>),
    /// The last line, cut off by a crash.
    Torn {
        /// Its number, from 1.
        number: u64,
    },
    /// No receipt, or one whose signature does not hold.
    Bad {
        /// Its number, from 1.
        number: u64,
        /// What is wrong with it.
        why: String,
    },
}

/// The lines of a log, first one first.
#[derive(Debug)]
pub struct ReceiptLines {
    path: PathBuf,
    reader: BufReader<File>,
    number: u64,
}

/// Reads the log of `folder`; a folder without one is an error of kind `NotFound`.
pub fn read_log(folder: &Path) -> Result<ReceiptLines, LogError> {
    let path = folder.join(RECEIPT_LOG);
    match File::open(&path) {
        Ok(file) => Ok(ReceiptLines { path, reader: BufReader::new(file), number: 0 }),
        Err(error) => Err(LogError { path, error }),
    }
}

impl ReceiptLines {
    fn read(&mut self) -> io::Result<Option<Line>> {
        let mut line = Vec::new();
        self.reader.by_ref().take(READ_LINE_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let number = self.number;
        let is_whole = line.ends_with(b"\n");
        if !is_whole && line.len() as u64 == READ_LINE_MAX {
            self.reader.skip_until(b'\n')?;
        } else if !is_whole {
            return Ok(Some(Line::Torn { number }));
        }
        let parsed = SignedFileReceipt::parse(&line).map_err(|e| e.to_string());
        let verified = parsed.and_then(|signed| match signed.verify() {
            Ok(()) => Ok(signed),
            Err(error) => Err(error.to_string()),
        });
        Ok(Some(match verified {
            Ok(signed) => Line::Receipt(Box::new(signed)),
            Err(why) => Line::Bad { number, why },
        }))
    }
}

impl Iterator for ReceiptLines {
    type Item = Result<Line, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.read() {
            Ok(line) => line.map(Ok),
            Err(error) => Some(Err(LogError { path: self.path.clone(), error })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::receipt;
    use super::{Line, READ_LINE_MAX, RECEIPT_LOG, ReceiptLog, read_log};
    use downpour_transport::identity::Identity;
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::os::unix::fs::symlink;

    #[test]
    fn batches_are_added_and_a_torn_line_costs_itself_alone() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::generate();
        let sign = |n: u8| receipt(&format!("run/{n}"), &[n]).sign(&identity).unwrap();
        let read = || read_log(folder.path()).unwrap().map(Result::unwrap).collect::<Vec<_>>();
        let line = |n: u8| Line::Receipt(Box::new(sign(n)));
        ReceiptLog::open(folder.path()).unwrap().append(&[sign(1), sign(2)]).unwrap();
        ReceiptLog::open(folder.path()).unwrap().append(&[sign(3)]).unwrap();
        assert_eq!(read(), [line(1), line(2), line(3)]);
        // A crash in the midst of a write.
        let at = folder.path().join(RECEIPT_LOG);
        let whole = sign(4).to_json();
        let mut file = OpenOptions::new().append(true).open(&at).unwrap();
        file.write_all(&whole.as_bytes()[..100]).unwrap();
        assert_eq!(read(), [line(1), line(2), line(3), Line::Torn { number: 4 }]);
        ReceiptLog::open(folder.path()).unwrap().append(&[sign(5)]).unwrap();
        let lines = read();
        assert!(matches!(lines[3], Line::Bad { number: 4, .. }), "{lines:?}");
        assert_eq!(lines[4], line(5));
    }

    #[test]
    fn no_link_is_followed_to_add_to_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let [folder, own, other] = ["f", "f/.downpour", "other"].map(|name| dir.path().join(name));
        fs::create_dir_all(&own).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "precious").unwrap();
        symlink("../../other/file", own.join("receipts.ndjson")).unwrap();
        assert!(ReceiptLog::open(&folder).is_err());
        fs::remove_dir_all(&own).unwrap();
        symlink("../other", &own).unwrap();
        assert!(ReceiptLog::open(&folder).is_err());
        assert_eq!(fs::read(other.join("file")).unwrap(), b"precious");
        assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
    }

    #[test]
    fn lines_that_are_no_receipts_are_told_and_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let good = receipt("a", b"a").sign(&Identity::generate()).unwrap();
        ReceiptLog::open(folder.path()).unwrap().append(std::slice::from_ref(&good)).unwrap();
        let long = "x".repeat(READ_LINE_MAX as usize + 10);
        let text = format!(
            "{}\n{long}\nnonsense\n{}\n",
            good.to_json().replace("\"size\":1", "\"size\":2"),
            good.to_json()
        );
        let at = folder.path().join(RECEIPT_LOG);
        fs::write(&at, text).unwrap();
        let lines: Vec<Line> = read_log(folder.path()).unwrap().map(Result::unwrap).collect();
        for (at, number) in [(0, 1), (1, 2), (2, 3)] {
            let Line::Bad { number: found, .. } = &lines[at] else { panic!("{lines:?}") };
            assert_eq!(*found, number);
        }
        assert_eq!(lines[3], Line::Receipt(Box::new(good)));
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn the_longest_receipt_is_a_line_that_is_read() {
        let folder = tempfile::tempdir().unwrap();
        // A control character takes six bytes in JSON.
        let mut long = receipt(&"\u{1}".repeat(1024), b"");
        long.path = "\u{1}".repeat(4096);
        (long.site, long.rule) = ("\u{1}".repeat(255), "\u{1}".repeat(255));
        long.session = "\u{1}".repeat(255);
        let signed = long.sign(&Identity::generate()).unwrap();
        ReceiptLog::open(folder.path()).unwrap().append(std::slice::from_ref(&signed)).unwrap();
        let lines: Vec<Line> = read_log(folder.path()).unwrap().map(Result::unwrap).collect();
        assert_eq!(lines, [Line::Receipt(Box::new(signed))]);
    }
}
