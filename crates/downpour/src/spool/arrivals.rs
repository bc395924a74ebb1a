//! Commands on verified arrival: each file that comes from another site and whose rule has a `command` gets one, after the
//! catalog has it.
//!
//! The daemon that recorded an arrival runs its command, by reading its own event log on from where a small file says. So each file
//! gets its command at least once, and once unless the daemon is killed or told to stop within it: then the command is ended, too,
//! and begins again at the next start. If the log is not the one that the file
//! speaks of, because the catalog was made again, it is read from where that one had been read to, by the time. A command that
//! fails is listed with its error and tried again, less and less often; after the last try it stays listed (class `command-failed`)
//! until somebody asks for it again. The file stays where it is in any case.

use super::book::SpoolError;
use super::root::{CLOCK_SLACK_S, Now};
use super::rule::Rules;
use super::section::RuleSection;
use super::template::{Facts, Template};
use crate::site::Wish;
use crate::whole;
use downpour_catalog::{Catalog, EventKind, File, FileId, LogId, Reader, SiteId, State, Time};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{fs, thread};
use utoipa::ToSchema;

/// Tries of a command.
const TRIES_MAX: u32 = 5;
/// Time until the second try; four times as long after each.
const RETRY_S: i64 = 10;
/// The longest of these pauses.
const PAUSE_MAX_S: i64 = RETRY_S * 4i64.pow(TRIES_MAX - 2);
/// Events that one tick looks at.
const EVENTS_MAX: usize = 100;
/// How often a running command is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// What is kept of a command's complaints.
const STDERR_BYTES: u64 = 2_000;
/// What is open is written down in so many entries at most: of those that failed for good the oldest are forgotten, and while
/// all are to be tried again no new command begins.
const OPEN_MAX: usize = 10_000;

/// A command that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failing {
    /// The file's number in the catalog.
    pub file: i64,
    /// Its name.
    pub name: String,
    /// How often it was tried.
    pub tries: u32,
    /// When it is tried again, in microseconds since 1970; none when somebody has to ask.
    pub next_try: Option<i64>,
    /// What went wrong last.
    pub text: String,
}

/// What is written down.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Notes {
    /// Events of our log that were looked at.
    seen: i64,
    /// Our log's number, and when the last of these events was: that tells the log from another one. An older program wrote neither.
    #[serde(default)]
    log: Option<i64>,
    #[serde(default)]
    at: Option<i64>,
    failing: Vec<Failing>,
}

impl Notes {
    /// Whether they speak of this log.
    fn are_of(&self, reader: &mut Reader, log: LogId, last: i64) -> Result<bool, SpoolError> {
        if self.log.is_some_and(|known| known != log.0) || self.seen > last {
            return Ok(false);
        }
        let Some(at) = self.at.filter(|_| self.seen > 0) else { return Ok(true) };
        Ok(time_of(reader, log, self.seen)? == Some(at))
    }

    /// They speak of a log that is lost: what was looked at of this one?
    fn begin_in(&mut self, reader: &mut Reader, log: LogId, last: i64) -> Result<(), SpoolError> {
        let (before, failed) = (self.seen, self.failing.len());
        let is_unread = |(of, _, end): &(LogId, String, i64)| {
            *of != log && Some(of.0) == self.log && *end > before
        };
        let mut is_passed_over = reader.logs()?.iter().any(is_unread);
        self.seen = match self.at {
            Some(at) => last_until(reader, log, last, at)?,
            None => last,
        };
        let (mut known, failing) = (Vec::new(), std::mem::take(&mut self.failing));
        for failing in failing {
            let file = reader.file(FileId(failing.file))?;
            known.extend(file.filter(|file| file.name == failing.name).map(|_| failing));
        }
        self.failing = known;
        is_passed_over |= self.seen > 0 || self.failing.len() < failed;
        if is_passed_over {
            tracing::warn!(
                target: "spool",
                before,
                from = self.seen,
                of = last,
                "the catalog is another than at the last command on arrival: they go on from there"
            );
        }
        Ok(())
    }
}

/// When an event of a log was.
fn time_of(reader: &mut Reader, log: LogId, number: i64) -> Result<Option<i64>, SpoolError> {
    Ok(reader.events(log, number - 1, 1)?.first().map(|event| event.at.0))
}

/// The last event of a log that is no later than this.
fn last_until(reader: &mut Reader, log: LogId, last: i64, at: i64) -> Result<i64, SpoolError> {
    let (mut low, mut high) = (0, last);
    while low < high {
        let middle = low + (high - low + 1) / 2;
        match time_of(reader, log, middle)? {
            Some(then) if then > at => high = middle - 1,
            _ => low = middle,
        }
    }
    Ok(low)
}

/// What came of a file's command.
enum Ran {
    /// No rule has one for it.
    Nothing,
    /// It ended, and how is noted.
    Ended,
    /// It was cut off, as if it had not begun.
    CutOff,
}

/// Runs commands.
pub struct Arrivals {
    catalog: Arc<Catalog>,
    reader: Reader,
    rules: Arc<Rules>,
    own: SiteId,
    place: PathBuf,
    notes: Notes,
    /// They are not written down as they are.
    unwritten: bool,
    /// Commands that went well since the start.
    done: u64,
}

impl Arrivals {
    /// What is open is kept in the file `place`. Without one, and if it is damaged, only what arrives from now on gets a command.
    /// One that cannot be read is looked at before the catalog is: whoever waits for it asks often.
    pub fn open(
        catalog: Arc<Catalog>,
        rules: Arc<Rules>,
        place: &Path,
    ) -> Result<Self, SpoolError> {
        let kept = read(place).map_err(|error| SpoolError::Notes(place.to_owned(), error))?;
        let mut reader = catalog.reader().map_err(SpoolError::Open)?;
        let own = catalog.site(rules.own())?;
        let own_log = catalog.log();
        let mut logs = reader.logs()?.into_iter();
        let last = logs.find(|(log, _, _)| *log == own_log).map_or(0, |(_, _, last)| last);
        let mut notes = kept.unwrap_or_else(|| Notes { seen: last, ..Notes::default() });
        if !notes.are_of(&mut reader, own_log, last)? {
            notes.begin_in(&mut reader, own_log, last)?;
        }
        notes.log = Some(own_log.0);
        if notes.seen > 0 {
            notes.at = time_of(&mut reader, own_log, notes.seen)?.or(notes.at);
        }
        let place = place.to_owned();
        let mut arrivals =
            Self { catalog, reader, rules, own, place, notes, unwritten: true, done: 0 };
        arrivals.write_down();
        Ok(arrivals)
    }

    /// Commands that failed and are open.
    pub fn failing(&self) -> &[Failing] {
        &self.notes.failing
    }

    /// Whether so many are to be tried again that no new one begins.
    pub fn is_full(&self) -> bool {
        let failing = &self.notes.failing;
        failing.len() >= OPEN_MAX && failing.iter().all(|failing| failing.next_try.is_some())
    }

    /// Commands that went well since the start.
    pub const fn done(&self) -> u64 {
        self.done
    }

    /// Runs a failed command that is due, and one of what has arrived since. Begins none unless `wish` is to run, and
    /// cuts off the one that runs when it is to stop. Returns whether there is more.
    pub fn tick(&mut self, now: Now, wish: &dyn Fn() -> Wish) -> Result<bool, SpoolError> {
        let again = self.try_again(now.wall, wish)?;
        Ok(self.read_on(now.wall, wish)? || again)
    }

    fn try_again(&mut self, now: Time, wish: &dyn Fn() -> Wish) -> Result<bool, SpoolError> {
        // What is later than any pause was written while the clock was ahead.
        let is_due = |at: i64| at <= now.0 || at > now.plus_s(PAUSE_MAX_S + CLOCK_SLACK_S).0;
        let due = |failing: &Failing| failing.next_try.is_some_and(is_due);
        let mut any = false;
        while wish() == Wish::Run
            && let Some(at) = self.notes.failing.iter().position(due)
        {
            any = true;
            match self.run(now, FileId(self.notes.failing[at].file), wish)? {
                Ran::Nothing => drop(self.notes.failing.remove(at)),
                Ran::Ended | Ran::CutOff => break,
            }
        }
        if any {
            self.write_down();
        }
        Ok(any)
    }

    /// Reads our log on, as far as a command.
    fn read_on(&mut self, now: Time, wish: &dyn Fn() -> Wish) -> Result<bool, SpoolError> {
        if self.is_full() {
            return Ok(false);
        }
        let events = self.reader.events(self.catalog.log(), self.notes.seen, EVENTS_MAX)?;
        let more = events.len() == EVENTS_MAX;
        let mut ended = false;
        for event in events {
            if wish() != Wish::Run {
                break;
            }
            // Other content in the place of what was gone is told as its digest.
            let is_told = matches!(event.kind, EventKind::TakenIn | EventKind::Digest);
            let arrived = is_told && event.to == Some(State::Adopted);
            let ran = match arrived {
                true => self.run(now, FileId(event.subject), wish)?,
                false => Ran::Nothing,
            };
            if matches!(ran, Ran::CutOff) {
                break;
            }
            (self.notes.seen, self.notes.at) = (event.number, Some(event.at.0));
            self.unwritten = true;
            if matches!(ran, Ran::Ended) {
                ended = true;
                break;
            }
        }
        // To read on from earlier, where there was no command, costs less than to write at each step.
        if self.unwritten && (ended || !more) {
            self.write_down();
        }
        Ok(more || ended)
    }

    /// Asks for a command that failed for good.
    pub fn retry(&mut self, now: Now, file: i64) -> bool {
        let found = self.notes.failing.iter_mut().find(|failing| failing.file == file);
        let Some(failing) = found else { return false };
        (failing.tries, failing.next_try) = (0, Some(now.wall.0));
        self.write_down();
        true
    }

    fn run(&mut self, now: Time, id: FileId, wish: &dyn Fn() -> Wish) -> Result<Ran, SpoolError> {
        let Some(file) = self.reader.file(id)? else { return Ok(Ran::Nothing) };
        let sites = self.reader.sites()?;
        let site = sites.iter().find(|(site, _)| *site == file.site);
        let Some((_, site)) = site.filter(|(site, _)| *site != self.own) else {
            return Ok(Ran::Nothing);
        };
        let rules = self.rules.clone();
        let Some(rule) = rules.for_arrival(site, &file.name).filter(|r| !r.command.is_empty())
        else {
            return Ok(Ran::Nothing);
        };
        let replicas = self.reader.replicas(id)?;
        let Some(replica) = replicas.into_iter().find(|replica| replica.site == self.own) else {
            return Ok(Ran::Nothing);
        };
        let result = match run_command(rule, (site, &file, &replica.path), wish) {
            Ok(true) => Ok(()),
            Ok(false) => {
                tracing::info!(target: "spool", file = %file.name, "its command was cut off, and begins again");
                return Ok(Ran::CutOff);
            }
            Err(text) => Err(text),
        };
        self.note(now, &file, result);
        Ok(Ran::Ended)
    }

    fn note(&mut self, now: Time, file: &File, result: Result<(), String>) {
        let at = self.notes.failing.iter().position(|failing| failing.file == file.id.0);
        let tries = at.map_or(0, |at| self.notes.failing.remove(at).tries) + 1;
        match result {
            Ok(()) => self.done += 1,
            Err(text) => {
                let pause = RETRY_S * 4i64.pow(tries - 1);
                let next_try = (tries < TRIES_MAX).then(|| now.plus_s(pause).0);
                let (file, name) = (file.id.0, file.name.clone());
                let failing = &mut self.notes.failing;
                failing.push(Failing { file, name, tries, next_try, text });
                let oldest = failing.iter().position(|failing| failing.next_try.is_none());
                if let Some(oldest) = oldest.filter(|_| failing.len() > OPEN_MAX) {
                    let Failing { file, name, text, .. } = failing.remove(oldest);
                    tracing::warn!(
                        target: "spool",
                        file,
                        %name,
                        %text,
                        "a command that failed for good is forgotten: too many are open"
                    );
                }
            }
        }
    }

    /// What cannot be written down now is written with the next step; until then a command may be run twice.
    fn write_down(&mut self) {
        let text = serde_json::to_vec(&self.notes).unwrap_or_default();
        self.unwritten = whole::put(&self.place, &text).is_err();
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        // What was passed over by these rules is not for those that come next.
        if self.unwritten {
            self.write_down();
        }
    }
}

/// What was written down; none where nothing was yet, or where it is damaged, which is kept aside.
fn read(place: &Path) -> io::Result<Option<Notes>> {
    let bytes = match fs::read(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    serde_json::from_slice(&bytes).map(Some).or_else(|error| {
        let aside = place.with_extension("damaged");
        fs::rename(place, &aside)?;
        tracing::error!(
            target: "spool",
            %error,
            kept = %aside.display(),
            "what commands on arrival are open is damaged: what has arrived before now gets none any more"
        );
        Ok(None)
    })
}

/// Runs a rule's command on a file; an error is what it said. Returns false when it was cut off.
fn run_command(
    rule: &RuleSection,
    (site, file, path): (&str, &File, &str),
    wish: &dyn Fn() -> Wish,
) -> Result<bool, String> {
    let facts = Facts {
        name: &file.name,
        version: file.version,
        site,
        rule: &rule.name,
        taken_in: file.taken_in,
        path,
    };
    let fill = |text: &String| Ok(Template::of_text(text)?.fill(&facts));
    let words = rule.command.iter().map(fill).collect::<Result<Vec<_>, String>>()?;
    let digest = file.digest.as_ref().map(|digest| digest.hex()).unwrap_or_default();
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .env("DOWNPOUR_PATH", path)
        .env("DOWNPOUR_NAME", &file.name)
        .env("DOWNPOUR_VERSION", file.version.to_string())
        .env("DOWNPOUR_SITE", site)
        .env("DOWNPOUR_RULE", &rule.name)
        .env("DOWNPOUR_SIZE", file.size.to_string())
        .env("DOWNPOUR_BLAKE3", digest)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", words[0]))?;
    let said = listen(&mut child);
    let ended = wait(&mut child, rule.command_time_max, wish);
    if let Ok(End::CutOff) = ended {
        return Ok(false);
    }
    let said = said.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    let said = match said.trim() {
        "" => String::new(),
        said => format!(": {said}"),
    };
    match ended {
        Ok(End::Own(status)) if status.success() => Ok(true),
        Ok(End::Own(status)) => Err(format!("{}: {status}{said}", words[0])),
        Ok(End::TooLong | End::CutOff) => {
            Err(format!("{}: ended after {:?}{said}", words[0], rule.command_time_max))
        }
        Err(error) => Err(format!("{}: {error}", words[0])),
    }
}

/// The first of what the command complains of; the rest is read, too, so that it is not held up.
fn listen(child: &mut Child) -> mpsc::Receiver<String> {
    let (say, said) = mpsc::channel();
    if let Some(mut stderr) = child.stderr.take() {
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.by_ref().take(STDERR_BYTES).read_to_end(&mut text);
            let _ = io::copy(&mut stderr, &mut io::sink());
            let _ = say.send(String::from_utf8_lossy(&text).into_owned());
        });
    }
    said
}

/// How a command came to its end.
enum End {
    Own(ExitStatus),
    TooLong,
    CutOff,
}

/// Waits for its end; ends it and all that it began when it takes too long, or all is to stop.
fn wait(child: &mut Child, time_max: Duration, wish: &dyn Fn() -> Wish) -> io::Result<End> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(End::Own(status));
        }
        let end = match wish() {
            Wish::Stop => Some(End::CutOff),
            Wish::Run | Wish::Drain => (began.elapsed() >= time_max).then_some(End::TooLong),
        };
        if let Some(end) = end {
            if let Some(group) = Pid::from_raw(child.id() as i32) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            child.wait()?;
            return Ok(end);
        }
        thread::sleep(LOOK);
    }
}
