//! Which products are inserted, and when.
//!
//! A list is read line by line, so that it can be a pipe that is written as products appear:
//!
//! * a path: that file, now;
//! * a JSON object: `path` or `size` (bytes made from `seed`, for experiments), `name`, `meta`, and `at_s`: seconds
//!   after the session's start at which it is due.

use super::frame::{META_LEN_MAX, check_name};
use crate::object::{CHANGED, NO_SIZE, open_file, printable};
use downpour_proto::Rng;
use rustix::fs::{Access, Mode, OFlags};
use serde::Deserialize;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Take};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Longest line.
const LINE_LEN_MAX: u64 = 64 << 10;

/// A product to insert.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// Seconds after the start; `None`: as soon as it is read.
    pub at_s: Option<f64>,
    /// What receivers call it.
    pub name: String,
    /// Text that goes with it.
    pub meta: String,
    /// Its bytes.
    pub content: Content,
}

/// Where a product's bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file, which does not change while it is read.
    File(PathBuf),
    /// A file of a site: so many bytes, and no link, or nothing of it is sent.
    Exactly(PathBuf, u64),
    /// So many bytes, made from a seed.
    Made {
        /// How many.
        size: u64,
        /// From what.
        seed: u64,
    },
}

impl Content {
    /// How many bytes there are, and what gives them.
    pub fn open(&self) -> io::Result<(u64, Box<dyn Read>)> {
        match self {
            Self::File(path) => {
                // Products are told by their names: in another folder there may be one of the same.
                let named = |error: io::Error| {
                    let text = format!("{}: {error}", printable(path.as_os_str().as_bytes()));
                    io::Error::new(error.kind(), text)
                };
                // A pipe that nobody writes to would hold up all that follows.
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = rustix::fs::open(path, flags, Mode::empty());
                let file = File::from(file.map_err(|errno| named(errno.into()))?);
                let meta = file.metadata().map_err(named)?;
                if !meta.is_file() {
                    return Err(named(no_file()));
                }
                let len = meta.len();
                // Of one without any bytes one is asked for: some file systems tell no size.
                let mut at_rest = AtRest { file: file.take(len.max(1)), looks: looks(&meta) };
                if len == 0 && at_rest.read(&mut [0]).map_err(named)? > 0 {
                    return Err(named(io::Error::other(NO_SIZE)));
                }
                Ok((len, Box::new(at_rest)))
            }
            Self::Exactly(path, size) => {
                let file = open_file(path)?.ok_or_else(no_file)?;
                match file.metadata()?.len() {
                    len if len == *size => Ok((len, Box::new(file.take(len)))),
                    len => Err(io::Error::other(format!("it has {len} bytes by now"))),
                }
            }
            Self::Made { size, seed } => Ok((*size, Box::new(MadeBytes::new(*size, *seed)))),
        }
    }
}

fn no_file() -> io::Error {
    io::Error::other("not a regular file")
}

/// A file as it was when it was opened, or an error: what is read of one that changes is neither its old content nor its
/// new one (`docs/protocol.md#PROD-5`).
struct AtRest {
    file: Take<File>,
    looks: (u64, i64, i64),
}

impl Read for AtRest {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read(buf)?;
        match looks(&self.file.get_ref().metadata()?) == self.looks {
            true => Ok(len),
            false => Err(io::Error::other(CHANGED)),
        }
    }
}

/// Size and modification time. The change time also moves when a file gets another name, and that is no other content.
fn looks(meta: &Metadata) -> (u64, i64, i64) {
    (meta.len(), meta.mtime(), meta.mtime_nsec())
}

/// Bytes made from a seed.
#[derive(Debug)]
pub struct MadeBytes {
    rng: Rng,
    left: u64,
    made: Box<[u8; MADE_AT_ONCE]>,
    /// So many of these were given.
    given: usize,
}

/// Bytes made at once.
const MADE_AT_ONCE: usize = 4096;

impl MadeBytes {
    /// `size` of them.
    pub fn new(size: u64, seed: u64) -> Self {
        let made = Box::new([0; MADE_AT_ONCE]);
        Self { rng: Rng::new(seed), left: size, made, given: MADE_AT_ONCE }
    }
}

impl Read for MadeBytes {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut len = 0;
        while len < buf.len() && self.left > 0 {
            if self.given == MADE_AT_ONCE {
                // As the bytes of a seed have always been: its words from the last of so many on.
                for word in self.made.rchunks_exact_mut(8) {
                    word.copy_from_slice(&self.rng.next_u64().to_be_bytes());
                }
                self.given = 0;
            }
            let left = usize::try_from(self.left).unwrap_or(usize::MAX);
            let now = (buf.len() - len).min(MADE_AT_ONCE - self.given).min(left);
            buf[len..len + now].copy_from_slice(&self.made[self.given..self.given + now]);
            len += now;
            self.given += now;
            self.left -= now as u64;
        }
        Ok(len)
    }
}

/// Why a list cannot be read on.
#[derive(Debug)]
pub enum ListError {
    /// The file or pipe.
    Read(io::Error),
    /// A line.
    Line {
        /// Which one, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "the list of products: {error}"),
            Self::Line { line, reason } => {
                write!(f, "line {line} of the list of products: {reason}")
            }
        }
    }
}

impl std::error::Error for ListError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    at_s: Option<f64>,
    name: Option<String>,
    #[serde(default)]
    meta: String,
    path: Option<PathBuf>,
    size: Option<u64>,
    #[serde(default)]
    seed: u64,
}

/// A list that is read as it comes.
pub struct List<R> {
    input: R,
    line: u64,
}

impl List<Box<dyn BufRead + Send>> {
    /// Of a file, or of a named pipe, which may have nobody who writes to it yet.
    pub fn open(path: &Path) -> io::Result<Self> {
        let is_pipe = path.metadata()?.file_type().is_fifo();
        if is_pipe {
            rustix::fs::access(path, Access::READ_OK)?;
        }
        Ok(Self::new(match is_pipe {
            true => Box::new(BufReader::new(Pipe { path: path.to_owned(), open: None })),
            false => Box::new(BufReader::new(File::open(path)?)),
        }))
    }
}

/// A named pipe. To open it is to wait for who writes to it: the first read does that.
struct Pipe {
    path: PathBuf,
    open: Option<File>,
}

impl Read for Pipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let file = match &mut self.open {
            Some(file) => file,
            none => none.insert(File::open(&self.path)?),
        };
        file.read(buf)
    }
}

impl<R: BufRead> List<R> {
    /// Of what `input` gives.
    pub const fn new(input: R) -> Self {
        Self { input, line: 0 }
    }

    fn read(&mut self) -> Result<Option<Listed>, ListError> {
        loop {
            let mut text = Vec::new();
            self.line += 1;
            let mut input = (&mut self.input).take(LINE_LEN_MAX);
            if input.read_until(b'\n', &mut text).map_err(ListError::Read)? == 0 {
                return Ok(None);
            }
            let wrong = |reason| ListError::Line { line: self.line, reason };
            let not_text = |_| {
                let shown = text.trim_ascii_end().escape_ascii();
                wrong(format!("`{shown}` is not UTF-8: rename it"))
            };
            let text = str::from_utf8(&text).map_err(not_text)?;
            let text = text.trim_end_matches(['\n', '\r']);
            if !text.trim().is_empty() {
                return parse(text).map(Some).map_err(wrong);
            }
        }
    }
}

impl<R: BufRead> Iterator for List<R> {
    type Item = Result<Listed, ListError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

fn parse(text: &str) -> Result<Listed, String> {
    let line = match text.starts_with('{') {
        true => serde_json::from_str(text).map_err(|error| error.to_string())?,
        false => Line {
            at_s: None,
            name: None,
            meta: String::new(),
            path: Some(PathBuf::from(text)),
            size: None,
            seed: 0,
        },
    };
    let of_path = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let content = match (line.path, line.size) {
        (Some(path), None) => Content::File(path),
        (None, Some(size)) => Content::Made { size, seed: line.seed },
        _ => return Err("give either a path or a size".to_owned()),
    };
    let name = match (line.name, &content) {
        (Some(name), _) => name,
        (None, Content::File(path)) => of_path(path).unwrap_or_default(),
        (None, _) => return Err("made bytes need a name".to_owned()),
    };
    check_name(&name).map_err(|why| format!("`{}` is {why}", name.escape_debug()))?;
    if line.meta.len() > META_LEN_MAX {
        return Err(format!("metadata has at most {META_LEN_MAX} bytes"));
    }
    if line.at_s.is_some_and(|at| !(0.0..1e9).contains(&at)) {
        return Err("at_s is no time".to_owned());
    }
    Ok(Listed { at_s: line.at_s, name, meta: line.meta, content })
}

#[cfg(test)]
mod tests {
    use super::{CHANGED, Content, List, Listed, MadeBytes, NO_SIZE};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::fs::{File, OpenOptions};
    use std::io::{Read, Write as _};
    use std::path::PathBuf;
    use std::time::UNIX_EPOCH;

    fn read(text: impl AsRef<[u8]>) -> Vec<Result<Listed, String>> {
        List::new(text.as_ref()).map(|line| line.map_err(|error| error.to_string())).collect()
    }

    #[test]
    fn paths_and_objects_are_told_apart() {
        let lines = read(
            "/spool/a.grib\n\n{\"at_s\":1.5,\"size\":133,\"name\":\"p1\",\"seed\":4,\"meta\":\"NGRID\"}\n",
        );
        let [Ok(file), Ok(made)] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((file.name.as_str(), file.at_s), ("a.grib", None));
        assert_eq!(file.content, Content::File(PathBuf::from("/spool/a.grib")));
        assert_eq!((made.at_s, made.meta.as_str()), (Some(1.5), "NGRID"));
        assert_eq!(made.content, Content::Made { size: 133, seed: 4 });
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said_with_its_number() {
        for bad in ["{\"size\":1}", "{\"name\":\"x\"}", "{\"size\":1,\"name\":\"a/b\"}", "/", "{"] {
            let lines = read(format!("a\n{bad}\n"));
            let Err(error) = &lines[1] else { panic!("{bad}") };
            assert!(error.starts_with("line 2 "), "{bad}: {error}");
        }
    }

    #[test]
    fn a_line_that_is_not_utf8_is_one_bad_line() {
        let lines = read(b"a\n\xe9\nb\n");
        let [Ok(_), Err(error), Ok(last)] = &lines[..] else { panic!("{lines:?}") };
        assert!(error.starts_with("line 2 ") && error.contains("`\\xe9`"), "{error}");
        assert_eq!(last.name, "b");
    }

    #[test]
    fn a_pipe_is_no_product_and_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let error = Content::File(pipe.clone()).open().err().unwrap();
        assert_eq!(error.to_string(), format!("{}: not a regular file", pipe.display()));
    }

    #[test]
    fn a_file_whose_file_system_tells_no_size_is_refused_and_an_empty_one_is_empty() {
        let path = PathBuf::from("/proc/self/status");
        let error = Content::File(path).open().err().unwrap();
        assert_eq!(error.to_string(), format!("/proc/self/status: {NO_SIZE}"));
        let empty = tempfile::NamedTempFile::new().unwrap();
        let (len, bytes) = Content::File(empty.path().to_owned()).open().unwrap();
        assert_eq!((len, std::io::read_to_string(bytes).unwrap()), (0, String::new()));
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_not_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let half_read = || {
            std::fs::write(&path, "content").unwrap();
            // Long ago: what is written within a tick of the clock has one time.
            File::options().write(true).open(&path).unwrap().set_modified(UNIX_EPOCH).unwrap();
            let mut bytes = Content::File(path.clone()).open().unwrap().1;
            bytes.read_exact(&mut [0; 3]).unwrap();
            bytes
        };
        let open = |options: &mut OpenOptions| options.open(&path).unwrap();
        let changes: [&dyn Fn(); 3] = [
            &|| open(File::options().write(true)).write_all(b"CONTENT").unwrap(),
            &|| open(File::options().append(true)).write_all(b", and more").unwrap(),
            &|| open(File::options().write(true)).set_len(3).unwrap(),
        ];
        for change in changes {
            let mut bytes = half_read();
            change();
            let error = bytes.read_to_end(&mut Vec::new()).err().unwrap();
            assert_eq!(error.to_string(), CHANGED);
        }
        let mut bytes = half_read();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(std::io::read_to_string(&mut bytes).unwrap(), "tent", "only its name is gone");
    }

    #[test]
    fn a_file_of_a_site_is_what_it_was_or_nothing_of_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        std::fs::write(&file, "content").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let exactly = |path: &PathBuf, size| Content::Exactly(path.clone(), size).open();
        let (size, mut bytes) = exactly(&file, 7).unwrap();
        // What is written on from now on is not read.
        std::fs::write(&file, "content, and more").unwrap();
        let mut read = String::new();
        bytes.read_to_string(&mut read).unwrap();
        assert_eq!((size, read.as_str()), (7, "content"));
        for (path, size, why) in [
            (&file, 7, "it has 17 bytes by now"),
            (&file, 18, "it has 17 bytes by now"),
            (&link, 17, "not a regular file"),
        ] {
            let error = exactly(path, size).err().unwrap();
            assert_eq!(error.to_string(), why);
        }
    }

    #[test]
    fn made_bytes_do_not_depend_on_how_they_are_read() {
        let mut whole = Vec::new();
        MadeBytes::new(1001, 9).read_to_end(&mut whole).unwrap();
        assert_eq!(whole.len(), 1001);
        let (mut pieces, mut made, mut buf) = (Vec::new(), MadeBytes::new(1001, 9), [0; 24]);
        while let Ok(len @ 1..) = made.read(&mut buf) {
            pieces.extend_from_slice(&buf[..len]);
        }
        assert_eq!(pieces, whole);
    }
}
