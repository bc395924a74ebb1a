//! What the closed loop decided on each link, and what is remembered of it.
//!
//! `links/NAME.link` of a state folder is one line ([`Memory`]), replaced as a whole. Decisions, and what was seen, go to a
//! [`Keeper`]: a site's catalog. Without one, for `downpour receive`, decisions stand in `links/history.ndjson`, a line each,
//! the newest last; when it is long it becomes `history.old.ndjson`, and the one before that goes. A line is one write.
//!
//! What cannot be written is lost, and costs the next transfer a search: no transfer fails by it, nor waits for it. A thread
//! writes, as a folder may not answer.

use downpour_proto::Rate;
use downpour_proto::transfer::steer::{Decision, Limits, Memory, Seen};
use downpour_transport::pull::{Helm, Steering};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// In the state folder.
pub(crate) const FOLDER: &str = "links";
/// Bytes of the history before it is set aside.
const HISTORY_BYTES_MAX: u64 = 4 << 20;
/// Longest name of a link as part of a file's name.
const NAME_LEN_MAX: usize = 100;
/// Decisions that wait to be written.
const WAITING_MAX: usize = 64;

/// One decision as it is kept and shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Steered {
    /// Microseconds since 1970.
    pub at_us: i64,
    /// The link: the other site's name, or its address.
    pub link: String,
    /// Connections from then on.
    pub connections: u16,
    /// Most of all of them together, if they are paced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacing_bps: Option<u64>,
    /// What held them back, in one word.
    pub binding: String,
    /// What they had brought until then.
    pub rate_bps: u64,
    /// The share of it that was sent again.
    pub sent_again: f64,
    /// Why, in one sentence.
    pub why: String,
}

/// Where it is written down what happens on a link. Called while a transfer runs: it does not wait.
pub trait Keeper: Debug + Send + Sync {
    /// Something was decided.
    fn decided(&self, decision: &Steered);
    /// This was seen of the connections, over IP 4 or 6 (0: not known).
    fn seen(&self, ip: u8, seen: &Seen);
}

/// All links of a state folder.
#[derive(Debug)]
pub struct Book {
    folder: PathBuf,
    helm: Arc<Helm>,
    /// To the thread that writes, from the first decision on.
    writer: OnceLock<SyncSender<Note>>,
}

/// What is written of a decision: its link, what is remembered of that by then, the line of the history.
type Note = (String, Option<Memory>, Option<Steered>);

/// The book, and the name of one link in it.
#[derive(Clone, Debug)]
pub struct LinkBook {
    book: Arc<Book>,
    name: Option<String>,
    keeper: Option<Arc<dyn Keeper>>,
}

impl Book {
    /// In this state folder.
    pub fn open(state: &Path) -> Arc<Self> {
        let (folder, writer) = (state.join(FOLDER), OnceLock::new());
        Arc::new(Self { folder, helm: Arc::default(), writer })
    }

    /// What was decided, the oldest first; on one link, or on all.
    pub fn history(&self, link: Option<&str>, most: usize) -> Vec<Steered> {
        let mut all = Vec::new();
        for name in ["history.old.ndjson", "history.ndjson"] {
            let text = fs::read_to_string(self.folder.join(name)).unwrap_or_default();
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Steered>(line).ok());
            all.extend(lines.filter(|line| link.is_none_or(|link| line.link == link)));
        }
        all.split_off(all.len().saturating_sub(most))
    }

    /// What is remembered of a link.
    pub fn memory(&self, link: &str) -> Option<Memory> {
        Memory::parse(&fs::read_to_string(memory_file(&self.folder, link)).ok()?)
    }

    /// Has it written, if no more wait than may.
    fn note(&self, note: Note) {
        let writer = self.writer.get_or_init(|| writer(self.folder.clone()));
        let _ = writer.try_send(note);
    }
}

/// Writes what it is given, as long as anybody may give it something.
fn writer(folder: PathBuf) -> SyncSender<Note> {
    let (writer, notes) = sync_channel::<Note>(WAITING_MAX);
    let write = move || {
        for (link, memory, line) in notes {
            // See the header: nothing depends on it.
            let _ = memory.map(|memory| remember(&folder, &link, &memory));
            let _ = line.map(|line| append(&folder, &line));
        }
    };
    // Without a thread, too, all of it is lost.
    let _ = thread::Builder::new().name("downpour-links".to_owned()).spawn(write);
    writer
}

fn memory_file(folder: &Path, link: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.:".contains(c) { c } else { '_' };
    let name: String = link.chars().take(NAME_LEN_MAX).map(plain).collect();
    folder.join(format!("{name}.link"))
}

fn remember(folder: &Path, link: &str, memory: &Memory) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let file = memory_file(folder, link);
    let new = file.with_extension(format!("new{}", std::process::id()));
    fs::write(&new, format!("{memory}\n"))?;
    fs::rename(new, file)
}

fn append(folder: &Path, line: &Steered) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let history = folder.join("history.ndjson");
    if fs::metadata(&history).is_ok_and(|meta| meta.len() > HISTORY_BYTES_MAX) {
        fs::rename(&history, folder.join("history.old.ndjson"))?;
    }
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    OpenOptions::new().create(true).append(true).open(&history)?.write_all(&text)
}

impl LinkBook {
    /// A link of this name; `None`: the sender's address is its name.
    pub fn new(book: Arc<Book>, name: Option<String>) -> Self {
        Self { book, name, keeper: None }
    }

    /// What happens on it is written down there, instead of in the state folder.
    #[must_use]
    pub fn kept_by(mut self, keeper: Arc<dyn Keeper>) -> Self {
        self.keeper = Some(keeper);
        self
    }

    /// How a puller is steered that fetches from `sender`.
    pub(crate) fn steering(&self, sender: &str, limits: Limits) -> Steering {
        let (book, name) = (self.book.clone(), self.name.clone());
        let (keeper, hears) = (self.keeper.clone(), self.keeper.clone());
        let ip = sender.parse().map_or(0, ip_of);
        let link = name.unwrap_or_else(|| sender.to_owned());
        Steering {
            helm: self.book.helm.clone(),
            limits,
            memory: self.book.memory(&link),
            on_decision: Arc::new(move |decision, memory| {
                let line = line(&link, decision);
                let history = keeper.is_none().then(|| line.clone());
                book.note((link.clone(), memory, history));
                if let Some(keeper) = &keeper {
                    keeper.decided(&line);
                }
            }),
            on_seen: Arc::new(move |seen| {
                if let Some(keeper) = &hears {
                    keeper.seen(ip, seen);
                }
            }),
        }
    }
}

/// The version of IP, as it is written down.
pub(crate) fn ip_of(addr: IpAddr) -> u8 {
    if addr.to_canonical().is_ipv4() { 4 } else { 6 }
}

fn line(link: &str, decision: Decision) -> Steered {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Steered {
        at_us: i64::try_from(now.as_micros()).unwrap_or(i64::MAX),
        link: link.to_owned(),
        connections: decision.setting.connections,
        pacing_bps: decision.setting.pacing.map(Rate::bps),
        binding: decision.binding.to_string(),
        rate_bps: decision.rate.bps(),
        sent_again: decision.loss,
        why: decision.why,
    }
}

#[cfg(test)]
mod tests {
    use super::{Book, FOLDER, LinkBook, WAITING_MAX};
    use downpour_proto::Rate;
    use downpour_proto::transfer::steer::{Binding, Decision, Limits, LinkId, Memory, Setting};
    use rustix::fs::{CWD, Mode, mkfifoat};
    use std::io::{BufRead as _, BufReader};
    use std::sync::mpsc;
    use std::time::Duration;
    use std::{fs, thread};

    /// Far more than anything takes.
    const PATIENCE: Duration = Duration::from_secs(60);
    const LIMITS: Limits = Limits { first: 8, least: 1, most: 64, ceiling: None };

    fn decision() -> Decision {
        Decision {
            link: LinkId(1),
            setting: Setting { connections: 16, pacing: None },
            binding: Binding::Loss,
            rate: Rate::from_mbps(80),
            loss: 0.01,
            why: "losses".to_owned(),
        }
    }

    #[test]
    fn what_was_decided_outlives_the_program_and_is_found_by_its_link() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory {
            connections: 16,
            pacing: None,
            rate: Rate::from_mbps(80),
            rtt_min: Duration::from_millis(50),
            binding: Binding::Loss,
            ended: true,
        };
        for (lines, name) in [(1, Some("west/1".to_owned())), (2, None)] {
            let book = Book::open(folder.path());
            let steering = LinkBook::new(book.clone(), name).steering("10.0.0.1", LIMITS);
            assert_eq!(steering.memory, None);
            (steering.on_decision)(decision(), Some(memory));
            let is_written = |_| {
                thread::sleep(Duration::from_millis(1));
                book.history(None, 10).len() == lines
            };
            assert!((0..PATIENCE.as_millis()).any(is_written));
        }
        let book = Book::open(folder.path());
        assert_eq!(book.memory("west/1"), Some(memory));
        let all = book.history(None, 10);
        assert_eq!(all.iter().map(|line| &line.link).collect::<Vec<_>>(), ["west/1", "10.0.0.1"]);
        let own = book.history(Some("10.0.0.1"), 10);
        assert_eq!((own.len(), own[0].connections, &*own[0].binding), (1, 16, "loss"));
        assert_eq!(book.history(None, 1), own);
        let again = LinkBook::new(book, None).steering("10.0.0.1", LIMITS);
        assert_eq!(again.memory, Some(memory));
    }

    /// A pipe that nobody reads keeps who writes to it waiting, as a share on a network may.
    #[test]
    fn who_decides_does_not_wait_for_the_folder_and_what_found_room_is_written_when_it_answers() {
        let folder = tempfile::tempdir().unwrap();
        let links = folder.path().join(FOLDER);
        fs::create_dir(&links).unwrap();
        let history = links.join("history.ndjson");
        mkfifoat(CWD, &history, Mode::RUSR | Mode::WUSR).unwrap();
        let book = Book::open(folder.path());
        let steering = LinkBook::new(book, None).steering("10.0.0.1", LIMITS);
        let (told, done) = mpsc::channel();
        thread::spawn(move || {
            for _ in 0..2 * WAITING_MAX {
                (steering.on_decision)(decision(), None);
            }
            told.send(()).unwrap();
        });
        done.recv_timeout(PATIENCE).expect("it waits for nobody");
        let mut line = String::new();
        BufReader::new(fs::File::open(history).unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("10.0.0.1"), "{line}");
    }
}
