//! `downpour catalog`: search, export, backup and restore of a catalog, beside the daemon that writes to it; `adopt` is a
//! module of its own.

use super::rebuild::RebuildArgs;
use super::reconcile::ReconcileArgs;
use super::{Exit, Fault};
use crate::site::Clock;
use crate::units::{parse_day, parse_duration, show_bytes};
use clap::{Args, Subcommand, ValueEnum};
use downpour_catalog::{
    CatalogUrl, CopyError, Cursor, Digest, Error, ErrorClass, ExportError, File, Format, Glob,
    Names, OpenError, Page, Query, Reader, Sheet, SiteId, State, Time, backup, export, restore,
};
use serde_json::{Map, Value, json};
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

/// Search, export, back up and restore a catalog; take in files that lie here already
#[derive(Debug, Args)]
pub(super) struct CatalogArgs {
    #[command(subcommand)]
    verb: CatalogVerb,
}

#[derive(Debug, Subcommand)]
enum CatalogVerb {
    Search(SearchArgs),
    Export(ExportArgs),
    /// Copy a whole catalog of SQLite to a file, also while a daemon writes to it
    Backup(CopyArgs),
    /// Make a new catalog of SQLite from a backup
    Restore(CopyArgs),
    Adopt(super::adopt::AdoptArgs),
    Rebuild(RebuildArgs),
    Reconcile(ReconcileArgs),
}

/// Which catalog.
#[derive(Debug, Args)]
struct PlaceArgs {
    /// The catalog: sqlite:PATH, postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE
    #[arg(long, value_name = "URL", env = "DOWNPOUR_CATALOG", hide_env_values = true)]
    catalog: CatalogUrl,
}

/// Which files; every condition that is given must hold.
#[derive(Debug, Args)]
struct FilterArgs {
    /// Beginning of the name
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Pattern of the name: * ? [a-z]; * passes over /
    #[arg(long, value_name = "GLOB")]
    glob: Option<Glob>,
    /// Where the file stands: found, settled, hashed, queued, sending, sent, verified, receipted, waiting,
    /// quarantined, cancelled, adopted
    #[arg(long, value_name = "STATE")]
    state: Option<State>,
    /// Site that the file comes from
    #[arg(long, value_name = "NAME")]
    site: Option<String>,
    /// Taken in since: a time ago (2h, 7d) or a day, in UTC (2026-11-22)
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    since: Option<Moment>,
    /// Taken in before: a time ago, or a day in UTC
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    until: Option<Moment>,
    /// One of its digests, as KIND:HEX: blake3, md5, sha256 or adler32 [KIND: blake3]
    #[arg(long, value_name = "DIGEST")]
    digest: Option<Digest>,
    /// Error class for which the file waits or is set apart, such as timed-out
    #[arg(long, value_name = "CLASS")]
    error: Option<ErrorClass>,
}

/// Find files
#[derive(Debug, Args)]
struct SearchArgs {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Files on a page
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Go on where an earlier page ended
    #[arg(long, value_name = "CURSOR")]
    after: Option<Cursor>,
    /// Print the page as JSON
    #[arg(long)]
    json: bool,
}

/// Write what the catalog holds, as CSV or lines of JSON
#[derive(Debug, Args)]
struct ExportArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// What to write
    #[arg(long, value_name = "SHEET", default_value = "files")]
    sheet: SheetArg,
    #[command(flatten)]
    filter: FilterArgs,
    /// How to write it [default: csv; with --json: ndjson]
    #[arg(long, value_name = "FORMAT")]
    format: Option<FormatArg>,
    /// Short for --format ndjson
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// File to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

// What is shown of it is said at each verb.
#[derive(Debug, Args)]
struct CopyArgs {
    /// The backup
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SheetArg {
    Files,
    Attempts,
    Replicas,
    Receipts,
    Events,
    Links,
    Decisions,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatArg {
    Csv,
    Ndjson,
}

/// A moment, as people say it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moment {
    /// So many microseconds before now.
    Ago(i64),
    /// The beginning of a day, in UTC.
    Day(Time),
}

pub(super) fn parse_moment(text: &str) -> Result<Moment, String> {
    if let Some(days) = parse_day(text) {
        return Ok(Moment::Day(Time(0).plus_s(days * 86_400)));
    }
    let ago = parse_duration(text)
        .map_err(|_| format!("`{text}` is neither a time ago (2h, 7d) nor a day (2026-11-22)"))?;
    i64::try_from(ago.as_micros()).map(Moment::Ago).map_err(|_| "too long ago".to_owned())
}

impl Moment {
    pub(super) fn resolve(self, now: Time) -> Time {
        match self {
            Self::Ago(micros) => Time(now.0.saturating_sub(micros)),
            Self::Day(time) => time,
        }
    }
}

impl FilterArgs {
    fn resolve(self, reader: &mut Reader, at: &CatalogUrl) -> Result<Query, Fault> {
        let now = Clock::system().now();
        let site = self.site.map(|name| find_site(reader, at, &name)).transpose()?;
        Ok(Query {
            prefix: self.prefix,
            glob: self.glob,
            state: self.state,
            site,
            since: self.since.map(|moment| moment.resolve(now)),
            until: self.until.map(|moment| moment.resolve(now)),
            digest: self.digest,
            error: self.error,
        })
    }

    const fn is_given(&self) -> bool {
        self.prefix.is_some()
            || self.glob.is_some()
            || self.state.is_some()
            || self.site.is_some()
            || self.since.is_some()
            || self.until.is_some()
            || self.digest.is_some()
            || self.error.is_some()
    }
}

fn find_site(reader: &mut Reader, at: &CatalogUrl, name: &str) -> Result<SiteId, Fault> {
    let sites = reader.sites().map_err(|error| reading(at, &error))?;
    let found = sites.iter().find(|(_, known)| known == name);
    found.map(|(id, _)| *id).ok_or_else(|| {
        let known: Vec<_> = sites.iter().map(|(_, name)| name.as_str()).collect();
        let known = if known.is_empty() { "none yet".to_owned() } else { known.join(", ") };
        Fault::usage(format!("the catalog knows no site `{name}`"), format!("it knows: {known}"))
    })
}

impl CatalogArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        match self.verb {
            CatalogVerb::Search(args) => args.run(),
            CatalogVerb::Export(args) => args.run(),
            CatalogVerb::Adopt(args) => args.run(),
            CatalogVerb::Rebuild(args) => args.run(),
            CatalogVerb::Reconcile(args) => args.run(),
            CatalogVerb::Backup(args) => {
                let (file, at) = (args.file.clone(), args.place.catalog.clone());
                backup(&at, &file).map_err(|error| copying(&at, &error))?;
                args.show("backup", &format!("{}: a whole copy of {at:?}", file.display()))
            }
            CatalogVerb::Restore(args) => {
                let (file, at) = (args.file.clone(), args.place.catalog.clone());
                restore(&file, &at).map_err(|error| copying(&at, &error))?;
                args.show("restore", &format!("{at:?}: restored from {}", file.display()))
            }
        }
    }
}

impl SearchArgs {
    fn run(self) -> Result<Exit, Fault> {
        let at = self.place.catalog;
        let mut reader = open(&at)?;
        let query = self.filter.resolve(&mut reader, &at)?;
        let limit = usize::from(self.limit);
        let mut page = Page { files: Vec::new(), next: self.after };
        // A page of the catalog may hold less than was asked for and not be the last.
        loop {
            let room = limit - page.files.len();
            let next = reader.search(&query, page.next.as_ref(), room);
            let next = next.map_err(|error| reading(&at, &error))?;
            page.files.extend(next.files);
            page.next = next.next;
            if page.next.is_none() || page.files.len() == limit {
                break;
            }
        }
        let names = Names::of(&mut reader).map_err(|error| reading(&at, &error))?;
        let mut out = io::stdout().lock();
        let shown = if self.json {
            let files: Vec<Map<String, Value>> =
                page.files.iter().map(|f| object(&names, f)).collect();
            let next = page.next.as_ref().map(ToString::to_string);
            writeln!(out, "{:#}", json!({ "files": files, "next": next }))
        } else {
            page.files.iter().try_for_each(|file| writeln!(out, "{}", line(&names, file)))
        };
        written(shown)?;
        if let (Some(next), false) = (&page.next, self.json) {
            eprintln!("more: --after '{next}'");
        }
        Ok(Exit::Complete)
    }
}

fn object(names: &Names, file: &File) -> Map<String, Value> {
    names.file(file).into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// One line: where it stands, why, how long it is, what it is called.
fn line(names: &Names, file: &File) -> String {
    let why = match (file.reason, file.error) {
        (Some(reason), Some(error)) => format!("{reason}: {error}"),
        (Some(reason), None) => reason.to_string(),
        _ => "-".to_owned(),
    };
    let version =
        if file.version > 1 { format!(" (version {})", file.version) } else { String::new() };
    // A name may hold anything; on a terminal it must not.
    let name: String = file.name.escape_debug().collect();
    let site = names.site(file.site);
    format!("{:<11}  {why:<28}  {:>10}  {site}  {name}{version}", file.state, show_bytes(file.size))
}

impl ExportArgs {
    fn run(self) -> Result<Exit, Fault> {
        let (sheet, is_files) = match self.sheet {
            SheetArg::Files => (Sheet::Files, true),
            SheetArg::Attempts => (Sheet::Attempts, false),
            SheetArg::Replicas => (Sheet::Replicas, false),
            SheetArg::Receipts => (Sheet::Receipts, false),
            SheetArg::Events => (Sheet::Events, false),
            SheetArg::Links => (Sheet::Links, false),
            SheetArg::Decisions => (Sheet::Decisions, false),
        };
        if !is_files && self.filter.is_given() {
            return Err(Fault::usage(
                "conditions choose among files, and this sheet holds none",
                "leave the conditions out, or export --sheet files",
            ));
        }
        let format = match self.format {
            Some(FormatArg::Ndjson) => Format::Ndjson,
            None if self.json => Format::Ndjson,
            _ => Format::Csv,
        };
        let at = self.place.catalog;
        let mut reader = open(&at)?;
        let query = self.filter.resolve(&mut reader, &at)?;
        let mut out: Box<dyn Write> = match &self.out {
            None => Box::new(BufWriter::new(io::stdout().lock())),
            Some(path) => Box::new(BufWriter::new(fs::File::create(path).map_err(|error| {
                Fault::start(
                    format!("cannot write {}: {error}", path.display()),
                    "give --out a file in a folder that is there and that you may write to",
                )
            })?)),
        };
        match export(&mut reader, sheet, &query, format, &mut *out) {
            Ok(rows) => {
                if let Some(path) = &self.out {
                    println!("{}: {rows} rows", path.display());
                }
                Ok(Exit::Complete)
            }
            Err(ExportError::Write(error)) => written(Err(error)).map(|()| Exit::Complete),
            // Rows are out.
            Err(ExportError::Catalog(error)) => {
                let fault = reading(&at, &error);
                Err(Fault::incomplete(fault.what, fault.todo))
            }
        }
    }
}

impl CopyArgs {
    fn show(&self, verb: &str, text: &str) -> Result<Exit, Fault> {
        let mut out = io::stdout().lock();
        written(if self.json {
            let catalog = format!("{:?}", self.place.catalog);
            writeln!(out, "{}", json!({ "done": verb, "file": self.file, "catalog": catalog }))
        } else {
            writeln!(out, "{text}")
        })?;
        Ok(Exit::Complete)
    }
}

/// One who reads no further (`| head`) has seen enough.
fn written(done: io::Result<()>) -> Result<(), Fault> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Fault::incomplete(
            format!("cannot write: {error}"),
            "make room, or write elsewhere",
        )),
        _ => Ok(()),
    }
}

fn open(at: &CatalogUrl) -> Result<Reader, Fault> {
    Reader::open(at).map_err(|error| opening(at, &error))
}

pub(super) fn opening(at: &CatalogUrl, error: &OpenError) -> Fault {
    let todo = match error {
        OpenError::NoFile(_) => "check the path; a site's catalog is named in its configuration",
        OpenError::Empty => "check the URL: a catalog is made by the daemon that writes to it",
        OpenError::Newer { .. } => {
            "use the newer downpour that wrote it, or restore a backup from before it was migrated"
        }
        OpenError::Older { .. } => {
            "start the site's daemon with this version once: it backs the catalog up and migrates it"
        }
        OpenError::Database(error) => return reading(at, error),
    };
    Fault::start(format!("{at:?}: {error}"), todo)
}

pub(super) fn reading(at: &CatalogUrl, error: &Error) -> Fault {
    let todo = match error {
        Error::Unreachable(_) => {
            "check that the server runs and that host, database, user and password in the URL are right"
        }
        Error::Damaged(_) => "keep the file as it is and restore the last backup beside it",
        Error::NotAlone(_) => "give each daemon a name of its own",
        Error::Database(_) | Error::Closed => {
            "if it goes on, look into the server's log; nothing in the catalog was changed"
        }
    };
    Fault::start(format!("{at:?}: {error}"), todo)
}

fn copying(at: &CatalogUrl, error: &CopyError) -> Fault {
    let todo = match error {
        CopyError::Server(_) => "dump with the server's own tool, and restore with it",
        CopyError::Exists(_) => {
            "nothing is written over: choose another file, or move that one away (-wal, -shm and -journal are part of the catalog \
             that was there: keep them with it)"
        }
        CopyError::Damaged(..) => "take an earlier backup",
        CopyError::File(..) => {
            "choose a folder that is there, that you may write to, and that has room"
        }
        CopyError::Open(OpenError::Empty) => "give a file that `downpour catalog backup` wrote",
        CopyError::Open(error) => return opening(at, error),
        CopyError::Database(error) => return reading(at, error),
    };
    Fault::start(error.to_string(), todo)
}

#[cfg(test)]
mod tests {
    use super::{CatalogArgs, Moment, opening, parse_moment};
    use crate::cli::{Exit, Fault};
    use clap::{Args as _, FromArgMatches as _};
    use downpour_catalog::{
        AdoptedFile, BeforeMigration, Catalog, CatalogUrl, Change, Digest, OpenError, OtherContent,
        Time,
    };
    use std::fs;
    use std::path::Path;

    #[test]
    fn moments_are_days_or_times_ago() {
        let Ok(Moment::Day(day)) = parse_moment("2026-11-22") else { panic!("it is a day") };
        assert_eq!(day, Time(1_795_305_600_000_000));
        let Ok(Moment::Ago(ago)) = parse_moment("2h") else { panic!("2h is a time ago") };
        assert_eq!(ago, 7_200_000_000);
        for wrong in ["", "2026-13-01", "2026-02-31", "2026-11", "yesterday"] {
            assert!(parse_moment(wrong).is_err(), "{wrong}");
        }
    }

    fn run(words: &[&str]) -> Result<Exit, Fault> {
        let command = CatalogArgs::augment_args(clap::Command::new("catalog"));
        let words = ["catalog"].iter().chain(words);
        let matches = command.try_get_matches_from(words).expect("a command line");
        CatalogArgs::from_arg_matches(&matches).expect("a command line").run()
    }

    fn made_in(folder: &Path) -> String {
        let url = format!("sqlite:{}", folder.join("c.db").display());
        let at: CatalogUrl = url.parse().unwrap();
        let catalog = Catalog::open(&at, "test", Time(1), &BeforeMigration::Refuse).unwrap();
        let site = catalog.site("here").unwrap();
        let rule = catalog.rule("all").unwrap();
        let adopt = |n: u8| {
            Change::Adopt(AdoptedFile {
                site,
                name: format!("run/{n}"),
                size: 1000,
                rule,
                digest: Digest::blake3([n; 32]),
                replicas: vec![(site, format!("/data/{n}"))],
                other_content: OtherContent::Refuse,
                origin: None,
                receipt: None,
            })
        };
        let answers = catalog.apply(Time(1), &(0..5).map(adopt).collect::<Vec<_>>()).unwrap();
        assert!(answers.iter().all(Result::is_ok));
        url
    }

    #[test]
    fn a_catalog_is_searched_exported_copied_and_restored() {
        let folder = tempfile::tempdir().unwrap();
        let url = &made_in(folder.path());
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (copy, out) = (file("copy.db"), file("out.csv"));
        assert_eq!(
            run(&["search", "--catalog", url, "--glob", "run/*", "--limit", "2"]),
            Ok(Exit::Complete)
        );
        assert_eq!(
            run(&["search", "--catalog", url, "--site", "here", "--json"]),
            Ok(Exit::Complete)
        );
        let digest = "03".repeat(32);
        let export = ["export", "--catalog", url, "--digest", &digest, "--out", &out];
        assert_eq!(run(&export), Ok(Exit::Complete));
        let text = fs::read_to_string(&out).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains(",here,run/3,1,1000,all,adopted,"), "{text}");
        assert_eq!(run(&["backup", &copy, "--catalog", url]), Ok(Exit::Complete));
        let new = format!("sqlite:{}", file("new.db"));
        assert_eq!(run(&["restore", &copy, "--catalog", &new]), Ok(Exit::Complete));
        assert_eq!(run(&["export", "--catalog", &new, "--out", &out]), Ok(Exit::Complete));
        assert_eq!(fs::read_to_string(&out).unwrap().lines().count(), 6);
    }

    #[test]
    fn each_fault_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let url = &made_in(folder.path());
        let file = |name: &str| folder.path().join(name).display().to_string();
        fs::write(file("text.db"), "no database at all").unwrap();
        fs::write(file("killed.db-wal"), "of a catalog that was moved away").unwrap();
        let sqlite = |name: &str| format!("sqlite:{}", file(name));
        let (absent, text) = (sqlite("absent.db"), sqlite("text.db"));
        let killed = sqlite("killed.db");
        let dead = "postgres://nobody@127.0.0.1:1/x";
        for (words, what, todo, exit) in [
            (
                vec!["search", "--catalog", &absent],
                "there is no file",
                "check the path",
                Exit::CouldNotStart,
            ),
            (vec!["search", "--catalog", &text], "is damaged", "last backup", Exit::CouldNotStart),
            (
                vec!["search", "--catalog", dead],
                "cannot be reached",
                "check that the server runs",
                Exit::CouldNotStart,
            ),
            (
                vec!["search", "--catalog", url, "--site", "x"],
                "no site `x`",
                "it knows: here",
                Exit::Usage,
            ),
            (
                vec!["export", "--catalog", url, "--sheet", "events", "--site", "here"],
                "conditions",
                "leave",
                Exit::Usage,
            ),
            (
                vec!["backup", &file("text.db"), "--catalog", url],
                "is there already",
                "written over",
                Exit::CouldNotStart,
            ),
            (
                vec!["restore", &file("c.db"), "--catalog", &killed],
                "killed.db-wal is there already",
                "keep them with it",
                Exit::CouldNotStart,
            ),
            (
                vec!["restore", &file("text.db"), "--catalog", &absent],
                "is damaged",
                "backup",
                Exit::CouldNotStart,
            ),
            (vec!["backup", "/x", "--catalog", dead], "own tools", "dump", Exit::CouldNotStart),
        ] {
            let fault = run(&words).expect_err("a fault");
            assert!(fault.what.contains(what), "{words:?}: {fault}");
            assert!(fault.todo.contains(todo), "{words:?}: {fault}");
            assert_eq!(fault.exit, exit, "{words:?}: {fault}");
        }
        let newer = OpenError::Newer { found: 9, known: 1 };
        let fault = opening(&url.parse().unwrap(), &newer);
        assert!(fault.what.contains("schema version 9, this program knows 1"), "{fault}");
        assert!(fault.todo.contains("newer downpour"), "{fault}");
    }
}
