//! `downpour catalog`: search of a running site's catalog; search, export, backup and restore of one by its URL, beside the daemon that
//! writes to it. `adopt`, `rebuild` and `reconcile` are modules of their own.

use super::rebuild::RebuildArgs;
use super::reconcile::ReconcileArgs;
use super::site::{AccessArgs, shown, with_daemon};
use super::{Exit, Fault, outputs, print_json};
use crate::api::{FilePage, FileReport};
use crate::site::{Clock, RemoteError};
use crate::units::{escape, parse_day, parse_duration, show_bytes};
use crate::whole;
use clap::{Args, Subcommand, ValueEnum};
use downpour_catalog::{
    CatalogUrl, CopyError, Cursor, Digest, Error, ErrorClass, ExportError, Format, Glob, Names,
    NoCatalogUrl, OpenError, Page, Query, Reader, Sheet, SiteId, State, Time, backup, export,
    restore,
};
use serde_json::json;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

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

/// Find files, in the catalog of a running site or of a URL
#[derive(Debug, Args)]
struct SearchArgs {
    /// The catalog, read without its daemon: sqlite:PATH, postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE
    /// [env: DOWNPOUR_CATALOG] [default: a daemon is asked]
    #[arg(long, value_name = "URL", conflicts_with_all = ["config", "at", "token"])]
    catalog: Option<CatalogUrl>,
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
    #[command(flatten)]
    access: AccessArgs,
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
    Digests,
    Transfers,
    Attempts,
    Replicas,
    Receipts,
    Sessions,
    Deliveries,
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

    /// As a daemon is asked.
    fn asked(&self) -> String {
        let now = Clock::system().now();
        let moment = |moment: Option<Moment>| moment.map(|at| at.resolve(now).0.to_string());
        let conditions = [
            ("prefix", self.prefix.clone()),
            ("glob", self.glob.as_ref().map(Glob::to_string)),
            ("state", self.state.map(|state| state.to_string())),
            ("site", self.site.clone()),
            ("since_us", moment(self.since)),
            ("until_us", moment(self.until)),
            ("digest", self.digest.as_ref().map(|digest| format!("{digest:?}"))),
            ("error", self.error.map(|error| error.to_string())),
        ];
        let given = conditions.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given.map(|(name, value)| format!("&{name}={}", escape(&value))).collect()
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
        let as_json = self.json;
        let page = match self.url()? {
            Some(at) => self.read(&at)?,
            None => self.ask()?,
        };
        if as_json {
            print_json(&page);
            return Ok(Exit::Complete);
        }
        page.files.iter().for_each(|file| println!("{}", line(file)));
        if let Some(next) = &page.next {
            eprintln!("more: --after '{next}'");
        }
        Ok(Exit::Complete)
    }

    /// The catalog to read; none: a daemon is asked. What the environment says counts only for what the command line leaves open.
    fn url(&self) -> Result<Option<CatalogUrl>, Fault> {
        if self.catalog.is_some() || self.access.is_given() {
            return Ok(self.catalog.clone());
        }
        let of_env = std::env::var("DOWNPOUR_CATALOG").ok().filter(|url| !url.is_empty());
        let wrong = |error: NoCatalogUrl| {
            Fault::usage(format!("DOWNPOUR_CATALOG: {error}"), "correct it, or leave it out")
        };
        of_env.map(|url| url.parse()).transpose().map_err(wrong)
    }

    fn read(self, at: &CatalogUrl) -> Result<FilePage, Fault> {
        let mut reader = open(at)?;
        let query = self.filter.resolve(&mut reader, at)?;
        let limit = usize::from(self.limit);
        let mut page = Page { files: Vec::new(), next: self.after };
        // A page of the catalog may hold less than was asked for and not be the last.
        loop {
            let room = limit - page.files.len();
            let next = reader.search(&query, page.next.as_ref(), room);
            let next = next.map_err(|error| reading(at, &error))?;
            page.files.extend(next.files);
            page.next = next.next;
            if page.next.is_none() || page.files.len() == limit {
                break;
            }
        }
        let names = Names::of(&mut reader).map_err(|error| reading(at, &error))?;
        Ok(FilePage::of(&names, &page))
    }

    fn ask(self) -> Result<FilePage, Fault> {
        let (conditions, limit) = (self.filter.asked(), usize::from(self.limit));
        let next = self.after.map(|after| after.to_string());
        with_daemon(self.access, async |site| {
            let mut page = FilePage { files: Vec::new(), next };
            loop {
                let room = limit - page.files.len();
                let after = page.next.iter().map(|after| format!("&after={}", escape(after)));
                let after: String = after.collect();
                let more: FilePage =
                    site.get(&format!("/v1/files?limit={room}{after}{conditions}")).await?;
                page.files.extend(more.files);
                page.next = cursor(more.next)?;
                if page.next.is_none() || page.files.len() >= limit {
                    return Ok(page);
                }
            }
        })
    }
}

/// As it is to be pasted into a command: what is no cursor may mean something to a shell.
fn cursor(next: Option<String>) -> Result<Option<String>, RemoteError> {
    let no_cursor = |_| RemoteError::Lost("its `next` is no cursor of a search".to_owned());
    next.map(|next| next.parse().map(|next: Cursor| next.to_string()))
        .transpose()
        .map_err(no_cursor)
}

/// One line: where it stands, why, how long it is, what it is called.
fn line(file: &FileReport) -> String {
    let why = match (&file.reason, &file.error) {
        (Some(reason), Some(error)) => shown(&format!("{reason}: {error}")),
        (Some(reason), None) => shown(reason),
        _ => "-".to_owned(),
    };
    let version =
        if file.version > 1 { format!(" (version {})", file.version) } else { String::new() };
    // A name may hold anything; on a terminal it must not.
    let name: String = file.name.escape_debug().collect();
    let (state, size, site) = (shown(&file.state), show_bytes(file.size), shown(&file.site));
    format!("{state:<11}  {why:<28}  {size:>10}  {site}  {name}{version}")
}

impl ExportArgs {
    fn run(self) -> Result<Exit, Fault> {
        let (sheet, is_files) = match self.sheet {
            SheetArg::Files => (Sheet::Files, true),
            SheetArg::Digests => (Sheet::Digests, false),
            SheetArg::Transfers => (Sheet::Transfers, false),
            SheetArg::Attempts => (Sheet::Attempts, false),
            SheetArg::Replicas => (Sheet::Replicas, false),
            SheetArg::Receipts => (Sheet::Receipts, false),
            SheetArg::Sessions => (Sheet::Sessions, false),
            SheetArg::Deliveries => (Sheet::Deliveries, false),
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
        let mut to = |out: &mut dyn Write| {
            export(&mut reader, sheet, &query, format, &mut BufWriter::new(out))
        };
        let exported = match &self.out {
            None => to(&mut io::stdout().lock()),
            Some(path) => {
                check_out(path, &at)?;
                whole::write_by(path, 0o666, |file| to(file))
            }
        };
        match exported {
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

/// Refuses a file that is a part of the catalog, or that cannot be written.
fn check_out(path: &Path, at: &CatalogUrl) -> Result<(), Fault> {
    let of_catalog = match at {
        CatalogUrl::Sqlite(db) => ["", "-wal", "-shm", "-journal", ".lock"]
            .map(|end| {
                let mut part = db.clone().into_os_string();
                part.push(end);
                PathBuf::from(part)
            })
            .to_vec(),
        _ => Vec::new(),
    };
    let read: Vec<&Path> = of_catalog.iter().map(PathBuf::as_path).collect();
    outputs::check(&[("--out", Some(path))], &[], &read)?;
    whole::check(path).map_err(|error| {
        Fault::start(
            format!("cannot write {}: {error}", path.display()),
            "give --out a file in a folder that is there and that you may write to",
        )
    })
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
        Error::Full(_) => "nothing in the catalog was changed",
        Error::Damaged(_) => "keep the file as it is and restore the last backup beside it",
        Error::NotAlone(_) => "give each daemon a name of its own",
        Error::BadWord => "give another name",
        Error::Database(_) | Error::Closed => {
            "if it goes on, look into the server's log; nothing in the catalog was changed"
        }
    };
    Fault::start(format!("{at:?}: {error}"), todo)
}

/// Whether a file is the catalog itself, and not a copy of it.
fn is_of(at: &CatalogUrl, path: &Path) -> bool {
    matches!(at, CatalogUrl::Sqlite(own) if own == path)
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
        CopyError::Open(OpenError::NoFile(path)) if !is_of(at, path) => {
            "give a file that `downpour catalog backup` wrote"
        }
        CopyError::Open(OpenError::Empty) => "give a file that `downpour catalog backup` wrote",
        CopyError::Open(error) => return opening(at, error),
        CopyError::Database(error) => return reading(at, error),
    };
    Fault::start(error.to_string(), todo)
}

#[cfg(test)]
mod tests {
    use super::{CatalogArgs, Moment, cursor, line, opening, parse_moment};
    use crate::api::FileReport;
    use crate::cli::{Exit, Fault};
    use crate::receipt::ReceiptLog;
    use crate::receipt::tests::receipt;
    use clap::{Args as _, FromArgMatches as _};
    use downpour_catalog::{
        AdoptedFile, BeforeMigration, Catalog, CatalogUrl, Change, Digest, OpenError, OtherContent,
        Time,
    };
    use downpour_transport::identity::Identity;
    use std::fs;
    use std::os::unix::fs::symlink;
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
                others: Vec::new(),
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
    fn what_another_site_says_means_nothing_to_a_terminal_or_a_shell() {
        assert_eq!(cursor(Some("n2.1.a%27b".to_owned())).unwrap().unwrap(), "n2.1.a%27b");
        for odd in ["x'; reboot; '", "\x1b[2J"] {
            assert!(cursor(Some(odd.to_owned())).is_err(), "{odd:?}");
        }
        let odd = || "\x1b]0;x\x07\u{9b}2J".to_owned();
        let mut file = FileReport {
            id: 1,
            site: odd(),
            name: odd(),
            version: 2,
            size: 1,
            rule: odd(),
            state: odd(),
            since_us: 0,
            reason: Some(odd()),
            error: None,
            next_try_us: None,
            tries: 0,
            blake3: None,
        };
        for error in [None, Some(odd())] {
            file.error = error;
            assert!(!line(&file).contains(char::is_control), "{:?}", line(&file));
        }
    }

    #[test]
    fn no_export_is_written_over_its_catalog() {
        let folder = tempfile::tempdir().unwrap();
        let url = &made_in(folder.path());
        let at = |name: &str| folder.path().join(name);
        symlink("c.db", at("link")).unwrap();
        fs::hard_link(at("c.db"), at("second")).unwrap();
        // As one that is open has them.
        let open = Catalog::open(&url.parse().unwrap(), "a", Time(2), &BeforeMigration::Refuse);
        let open = open.unwrap();
        fs::write(at("c.db.lock"), "").unwrap();
        for out in ["c.db", "link", "second", "c.db-wal", "c.db-shm", "c.db.lock"] {
            let before = fs::read(at(out)).unwrap();
            let to = at(out).display().to_string();
            let fault = run(&["export", "--catalog", url, "--out", &to]).expect_err("a fault");
            assert!(fault.exit == Exit::Usage && fault.what.contains("is what is read"), "{fault}");
            assert_eq!(fs::read(at(out)).unwrap(), before, "{out}");
        }
        open.rule("works").unwrap();
    }

    #[test]
    fn options_that_are_seldom_given_do_what_they_say() {
        let folder = tempfile::tempdir().unwrap();
        let url = &made_in(folder.path());
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (out, old, new) = (file("out.csv"), file("old"), format!("sqlite:{}", file("new.db")));
        fs::create_dir(&old).unwrap();
        let written = |sheet: &str, url: &str, more: &[&str]| {
            let words = ["export", "--catalog", url, "--sheet", sheet, "--out", &out];
            assert_eq!(run(&[&words[..], more].concat()), Ok(Exit::Complete), "{more:?}");
            fs::read_to_string(&out).unwrap().lines().skip(1).map(str::to_owned).collect()
        };
        for (more, files) in [
            (["--until", "1970-01-01"], 0),
            (["--until", "1970-01-02"], 5),
            (["--error", "timed-out"], 0),
        ] {
            let lines: Vec<String> = written("files", url, &more);
            assert_eq!(lines.len(), files, "{more:?}");
            let search = ["search", "--catalog", url];
            assert_eq!(run(&[&search[..], &more].concat()), Ok(Exit::Complete), "{more:?}");
        }
        let adopt = ["adopt", &old, "--catalog", url, "--site", "far", "--here", "near"];
        let adopt = [&adopt[..], &["--also", "third=/there", "--rule", "kept"]].concat();
        for (content, more, exit, version) in [
            ("first", None, Exit::Complete, 1),
            ("other", None, Exit::Incomplete, 1),
            ("other", Some("--new-versions"), Exit::Complete, 2),
        ] {
            fs::write(Path::new(&old).join("x"), content).unwrap();
            let words: Vec<_> = adopt.iter().copied().chain(more).collect();
            assert_eq!(run(&words), Ok(exit), "{content} {more:?}");
            let files: Vec<String> = written("files", url, &["--site", "far"]);
            let last = format!(",far,x,{version},5,kept,adopted,");
            assert_eq!(files.len(), version);
            assert!(files.iter().any(|line| line.contains(&last)), "{files:?}");
        }
        let places: Vec<String> = written("replicas", url, &[]);
        for place in [format!(",near,{old}/x,"), ",third,/there/x,".to_owned()] {
            assert!(places.iter().any(|line| line.contains(&place)), "{places:?}");
        }
        let signed = receipt("x", b"other").sign(&Identity::generate()).unwrap();
        ReceiptLog::open(Path::new(&old)).unwrap().append([&signed]).unwrap();
        let rebuild = ["rebuild", "--from-receipts", &old, "--site", "near", "--catalog", &new];
        assert_eq!(run(&rebuild), Ok(Exit::Complete));
        let files: Vec<String> = written("files", &new, &[]);
        assert!(matches!(&files[..], [one] if one.contains(",x,")), "{files:?}");
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
