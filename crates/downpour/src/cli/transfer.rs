//! `downpour transfer`: files from site to site. Each verb is a question to the daemon.

mod waited;

use super::fetch::{show_sources, show_under_way};
use super::site::{AccessArgs, shown, with_daemon};
use super::{Exit, Fault, print_json};
use crate::dispatch::{
    Accepted, Done, Files, LinkReport, Links, Submission, Submitted, TransferReport, Transfers,
    Why, WhyList,
};
use crate::output::plain;
use crate::report::PlanLine;
use crate::site::{Access, Clock, RemoteError};
use crate::units::{escape, show_bytes, show_time};
use clap::{Args, Subcommand};
use serde_json::json;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use waited::{Standstill, until_ended};

/// Paths in one request, and bytes of them in its JSON: half of what a site takes that was not told otherwise.
const PATHS_AT_ONCE: usize = 4000;
const PATH_BYTES_AT_ONCE: usize = 512 << 10;
/// Files in one answer.
const FILES_AT_ONCE: u64 = 20_000;
/// A list of submissions that is longer is surely another file.
const LIST_BYTES_MAX: u64 = 1 << 30;

/// Move files between sites, and see why they do not move
#[derive(Debug, Args)]
pub(super) struct TransferArgs {
    #[command(subcommand)]
    verb: TransferVerb,
}

#[derive(Debug, Subcommand)]
enum TransferVerb {
    Submit(SubmitArgs),
    Fetch(super::fetch::FetchArgs),
    /// What is under way: batches, fetches, and transfers with a file that has not ended
    List(ListArgs),
    Show(ShowArgs),
    Why(WhyArgs),
    /// Try files that wait again now, by their numbers or all of a transfer
    Retry(DeedArgs),
    /// Give files up, by their numbers or all of a transfer
    Cancel(DeedArgs),
    /// Let files out of quarantine, by their numbers or all of a transfer; those of a spool by `spool release`
    Release(DeedArgs),
    /// How the links to other sites do
    Links(ListArgs),
    /// Let a link work again that was drained or banned
    Open(LinkArgs),
    /// Finish what is under way on a link, and begin nothing
    Drain(LinkArgs),
    /// As `drain`, and refuse what that site offers
    Ban(LinkArgs),
}

/// Send files to another site, or fetch them: FROM may be SITE:PATH
#[derive(Debug, Args)]
#[command(override_usage = "downpour transfer submit [OPTIONS] <FROM>… <TO>")]
struct SubmitArgs {
    /// Files and folders, then the site that shall have them
    #[arg(value_names = ["FROM", "TO"], required_unless_present = "json_list", num_args = 2..)]
    from_and_to: Vec<String>,
    /// Submissions as JSON, one or a list of them, from this file or standard input (-)
    #[arg(long, value_name = "FILE", conflicts_with = "from_and_to")]
    json_list: Option<PathBuf>,
    /// Where files go below the other site's folder, a template such as run/{file} [default: {name}]
    #[arg(long, value_name = "TEMPLATE", conflicts_with = "json_list")]
    into: Option<String>,
    /// Lower goes first [default: 100]
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with = "json_list")]
    priority: Option<i64>,
    /// Wait until every file has arrived or needs somebody's help
    #[arg(long)]
    wait: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessArgs,
}

// What is shown of it, and of the next two, is said at each verb.
#[derive(Debug, Args)]
struct ListArgs {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// How a transfer stands
#[derive(Debug, Args)]
struct ShowArgs {
    /// Its number, as `submit` and `list` print it
    #[arg(value_name = "TRANSFER")]
    transfer: i64,
    /// The site at which it is queued, as `submit` prints it: what was asked of another site is queued there [default: the
    /// daemon's own]
    #[arg(long, value_name = "SITE")]
    of: Option<String>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// One reason, and when it moves on, for each file that does not move
#[derive(Debug, Args)]
struct WhyArgs {
    /// One file, by its number; without it all that do not move
    #[arg(value_name = "FILE", value_parser = number, conflicts_with_all = ["prefix", "state", "class"])]
    file: Option<i64>,
    /// Only files whose name begins so, with their numbers, also those that have ended
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Only files in this state, such as waiting or quarantined
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Only files with this error class, their own or that of the link that holds them up, such as destination-full
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Args)]
struct DeedArgs {
    #[command(flatten)]
    which: WhichArgs,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct WhichArgs {
    /// Numbers of files, as `why` prints them
    #[arg(value_name = "FILE", value_parser = number)]
    files: Vec<i64>,
    /// All files of a transfer that is queued at this daemon's site; to `cancel`, also a fetch
    #[arg(long, value_name = "TRANSFER")]
    transfer: Option<i64>,
}

#[derive(Debug, Args)]
struct LinkArgs {
    /// The other site
    #[arg(value_name = "SITE")]
    site: String,
    #[command(flatten)]
    access: AccessArgs,
}

impl TransferArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        match self.verb {
            TransferVerb::Submit(args) => args.run(),
            TransferVerb::Fetch(args) => args.run(),
            TransferVerb::List(args) => args.transfers(),
            TransferVerb::Show(args) => args.run(),
            TransferVerb::Why(args) => args.run(),
            TransferVerb::Retry(args) => args.run("retry"),
            TransferVerb::Cancel(args) => args.run("cancel"),
            TransferVerb::Release(args) => args.run("release"),
            TransferVerb::Links(args) => args.links(),
            TransferVerb::Open(args) => args.run("open"),
            TransferVerb::Drain(args) => args.run("drain"),
            TransferVerb::Ban(args) => args.run("ban"),
        }
    }
}

impl SubmitArgs {
    fn run(self) -> Result<Exit, Fault> {
        let submissions = self.submissions()?;
        let (wait, as_json) = (self.wait, self.json);
        let mut told = Told { as_json, ..Told::default() };
        let all = with_daemon(self.access, async |site| {
            for submission in submissions {
                let mut answer = Submitted { site: String::new(), accepted: Accepted::default() };
                let end = submit(site, submission, &mut answer).await;
                // Pages before one that failed are under way.
                if end.is_ok() || !answer.accepted.is_nothing() {
                    told.submitted(answer);
                }
                end?;
            }
            let mut all = true;
            let mut still = match wait {
                true => Standstill::begin(site, &told.submitted).await?,
                false => Standstill::default(),
            };
            for one in told.submitted.clone().iter().filter(|_| wait) {
                told.waits(&one.accepted);
                for (transfer, files) in transfers_of(&one.accepted) {
                    let which = (&*one.site, transfer);
                    let (report, arrived) = until_ended(site, which, files, &mut still).await?;
                    told.ended(report);
                    all &= arrived;
                }
            }
            Ok(all)
        });
        told.finish();
        let refused = told.submitted.iter().any(|one| one.accepted.refused_count > 0);
        Ok(if refused || !all? { Exit::Incomplete } else { Exit::Complete })
    }

    fn submissions(&self) -> Result<Vec<Submission>, Fault> {
        if let Some(list) = &self.json_list {
            return read_list(list);
        }
        let todo = "write it as: downpour transfer submit FROM… TO";
        let Some((to, from)) = self.from_and_to.split_last() else {
            return Err(Fault::usage("nothing is to be sent", todo));
        };
        let mut submission = Submission {
            to: to.clone(),
            into: self.into.clone(),
            priority: self.priority,
            ..Submission::default()
        };
        for from in from {
            let (site, path) = match from.split_once(':') {
                Some((site, path)) if !site.contains('/') => {
                    (Some(site.to_owned()), path.to_owned())
                }
                _ => (None, absolute(from)),
            };
            if !submission.paths.is_empty() && submission.from != site {
                let what = "the files lie at several sites";
                return Err(Fault::usage(what, "submit those of each site by themselves"));
            }
            submission.from = site;
            submission.paths.push(path);
        }
        Ok(vec![submission])
    }
}

/// What is told of submissions: at once, or all of it as one JSON.
#[derive(Debug, Default)]
struct Told {
    as_json: bool,
    submitted: Vec<Submitted>,
    ended: Vec<TransferReport>,
}

impl Told {
    fn submitted(&mut self, one: Submitted) {
        if !self.as_json {
            show_submitted(&one.accepted, &one.site);
        }
        self.submitted.push(one);
    }

    /// What is known already may be still to arrive, by transfers that end after this one.
    fn waits(&self, one: &Accepted) {
        if !self.as_json && !one.others.is_empty() {
            println!("waits for files of {} earlier transfers, too", one.others.len());
        }
    }

    fn ended(&mut self, one: TransferReport) {
        if !self.as_json {
            show_transfer(&one);
        }
        self.ended.push(one);
    }

    /// Also where it was cut short: what was submitted is under way.
    fn finish(&self) {
        if self.as_json {
            print_json(&json!({ "submitted": self.submitted, "ended": self.ended }));
        }
    }
}

/// A file by its number.
fn number(text: &str) -> Result<i64, String> {
    let todo = "a file is named by its number, which `downpour transfer why --prefix NAME` prints";
    text.parse().map_err(|_| todo.to_owned())
}

/// The daemon does not stand where we do.
fn absolute(path: &str) -> String {
    let absolute = std::path::absolute(path);
    absolute.map_or_else(|_| path.to_owned(), |path| path.to_string_lossy().into_owned())
}

fn read_list(path: &Path) -> Result<Vec<Submission>, Fault> {
    let mut text = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().take(LIST_BYTES_MAX).read_to_end(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(LIST_BYTES_MAX).read_to_end(&mut text))
    };
    let todo = "give it JSON: {\"paths\": […], \"to\": \"SITE\"}, or a list of these";
    read.map_err(|error| Fault::usage(format!("{}: {error}", path.display()), todo))?;
    let all: Result<Vec<Submission>, _> = match text.trim_ascii_start().starts_with(b"[") {
        true => serde_json::from_slice(&text),
        false => serde_json::from_slice(&text).map(|one| vec![one]),
    };
    let all = all.map_err(|error| Fault::usage(format!("{}: {error}", path.display()), todo))?;
    if all.is_empty() || all.iter().any(|submission| submission.paths.is_empty()) {
        let what = "the list, or a submission in it, names no file";
        return Err(Fault::usage(format!("{}: {what}", path.display()), todo));
    }
    Ok(all)
}

/// Submits in as many requests as it takes; all are one transfer.
async fn submit(
    site: &Access,
    mut submission: Submission,
    all: &mut Submitted,
) -> Result<(), RemoteError> {
    let (most, mut transfer) = (Some(FILES_AT_ONCE), submission.transfer);
    let all_paths = std::mem::take(&mut submission.paths);
    for paths in pieces(&all_paths) {
        let paths = paths.to_vec();
        let mut part = Submission { paths, transfer, most, after: None, ..submission.clone() };
        loop {
            let answer: Submitted = site.post("/v1/transfers", &part).await?;
            transfer = Some(answer.accepted.transfer);
            (all.site, all.accepted.transfer) = (answer.site, answer.accepted.transfer);
            all.accepted.add(answer.accepted);
            (part.transfer, part.after) = (transfer, all.accepted.next.take());
            if part.after.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// What goes into one request each.
fn pieces(mut paths: &[String]) -> Vec<&[String]> {
    let mut pieces = Vec::new();
    while !paths.is_empty() {
        let mut bytes = 0;
        let fits = |path: &&String| {
            bytes += json!(path).to_string().len() + 1;
            bytes <= PATH_BYTES_AT_ONCE
        };
        let count = paths.iter().take(PATHS_AT_ONCE).take_while(fits).count();
        // Of one that is too long for all the site says so.
        let (piece, rest) = paths.split_at(count.max(1));
        pieces.push(piece);
        paths = rest;
    }
    pieces
}

/// Transfers by which what was submitted goes, and how many files at least. Of what was refused altogether there is none.
fn transfers_of(accepted: &Accepted) -> Vec<(i64, u64)> {
    let own = (!accepted.is_nothing()).then_some((accepted.transfer, accepted.files));
    own.into_iter().chain(accepted.others.iter().map(|other| (*other, 1))).collect()
}

/// Nothing happens to files in this state until somebody does something.
fn is_still(state: &str) -> bool {
    matches!(state, "receipted" | "cancelled" | "quarantined" | "adopted")
}

impl ListArgs {
    fn transfers(self) -> Result<Exit, Fault> {
        let ask = async |site: &Access| site.get("/v1/transfers?states=true").await;
        let list: Transfers = with_daemon(self.access, ask)?;
        if self.json {
            print_json(&list);
            return Ok(Exit::Complete);
        }
        for batch in &list.batches {
            let way = if batch.arrives { "from" } else { "to" };
            println!(
                "batch {} {way} {:<12} {:>6} files {:>12}, {:>12} arrived, {} failed",
                shown(&batch.id),
                shown(&batch.site),
                batch.files,
                show_bytes(batch.bytes),
                show_bytes(batch.arrived),
                batch.failed
            );
        }
        list.fetches.iter().for_each(show_under_way);
        list.transfers.iter().for_each(|one| println!("{}", listed(one)));
        Ok(Exit::Complete)
    }

    fn links(self) -> Result<Exit, Fault> {
        let list: Links = with_daemon(self.access, async |site| site.get("/v1/links").await)?;
        if self.json {
            print_json(&list);
        } else {
            list.links.iter().for_each(show_link);
        }
        Ok(Exit::Complete)
    }
}

impl ShowArgs {
    fn run(self) -> Result<Exit, Fault> {
        let mut path = format!("/v1/transfers/{}", self.transfer);
        if let Some(of) = &self.of {
            path.push_str(&format!("?at={}", escape(of)));
        }
        let report: TransferReport = with_daemon(self.access, async |site| site.get(&path).await)?;
        if self.json {
            print_json(&report);
        } else {
            show_transfer(&report);
        }
        Ok(Exit::Complete)
    }
}

impl WhyArgs {
    fn run(self) -> Result<Exit, Fault> {
        let mut query = Vec::new();
        let asked = [("prefix", &self.prefix), ("state", &self.state), ("class", &self.class)];
        for (key, value) in asked {
            if let Some(value) = value {
                query.push(format!("{key}={}", escape(value)));
            }
        }
        let (file, as_json) = (self.file, self.json);
        with_daemon(self.access, async |site| {
            if let Some(file) = file {
                let why: Why = site.get(&format!("/v1/why/{file}")).await?;
                if as_json {
                    print_json(&why)
                } else {
                    show_why(&why)
                }
                return Ok(());
            }
            let mut after: Option<String> = None;
            loop {
                let mut query = query.clone();
                query.extend(after.map(|after| format!("after={}", escape(&after))));
                let page: WhyList = site.get(&format!("/v1/why?{}", query.join("&"))).await?;
                for fetch in &page.fetches {
                    if as_json { println!("{}", json!(fetch)) } else { show_under_way(fetch) }
                }
                for why in &page.files {
                    if as_json { println!("{}", json!(why)) } else { show_why(why) }
                }
                after = page.next;
                if after.is_none() {
                    return Ok(());
                }
            }
        })?;
        Ok(Exit::Complete)
    }
}

impl DeedArgs {
    fn run(self, deed: &str) -> Result<Exit, Fault> {
        let path = format!("/v1/files/{deed}");
        let WhichArgs { files, transfer } = self.which;
        let mut files = Files { files, transfer, after: None };
        let (done, stands) = with_daemon(self.access, async |site| {
            let mut all = Done::default();
            loop {
                let some: Done = site.post(&path, &files).await?;
                (all.done, all.passed) = (all.done + some.done, all.passed + some.passed);
                all.unknown.extend(some.unknown);
                all.aside.extend(some.aside);
                if some.next.is_none() {
                    break;
                }
                (files.files, files.after) = (Vec::new(), some.next);
            }
            // A fetch has none.
            let stands = match transfer.filter(|_| all.done + all.passed == 0) {
                Some(id) => site.get::<TransferReport>(&format!("/v1/transfers/{id}")).await.ok(),
                None => None,
            };
            Ok((all, stands))
        })?;
        let exit = show_done(deed, &done);
        stands.iter().for_each(|report| println!("{}", undone(report)));
        Ok(exit)
    }
}

/// How a transfer stands of which no file is in a state for a deed.
fn undone(report: &TransferReport) -> String {
    let ended = |state: &str| is_still(state) && state != "quarantined";
    let files: u64 = report.states.values().sum();
    match report.states.iter().all(|(state, files)| *files == 0 || ended(state)) {
        true if files > 0 => format!("all {files} files of it have ended: {}", line_of(report)),
        _ => line_of(report),
    }
}

fn show_done(deed: &str, done: &Done) -> Exit {
    let passed = done.passed.saturating_sub(done.aside.len() as u64);
    println!("{deed}: {} files, nothing to do for {passed}", done.done);
    if deed == "retry" && passed > 0 {
        println!(
            "what does not wait has nothing to be tried again; `downpour transfer why FILE` says what holds it up"
        );
        println!(
            "what is queued for a link that is held back goes at once after `downpour transfer open SITE`"
        );
    }
    for file in &done.aside {
        eprintln!("file {file} lies in its spool's quarantine: downpour spool release {file}");
    }
    for file in &done.unknown {
        eprintln!("there is no file {file}");
    }
    let is_done = done.done > 0 && done.aside.is_empty() && done.unknown.is_empty();
    if is_done { Exit::Complete } else { Exit::Incomplete }
}

impl LinkArgs {
    fn run(self, verb: &str) -> Result<Exit, Fault> {
        let path = format!("/v1/links/{}/{verb}", escape(&self.site));
        let links: Links =
            with_daemon(self.access, async |site| site.post(&path, &json!({})).await)?;
        links.links.iter().filter(|link| link.site == self.site).for_each(show_link);
        Ok(Exit::Complete)
    }
}

fn show_submitted(accepted: &Accepted, site: &str) {
    if accepted.is_nothing() {
        println!("nothing to move at {site}: {} refused", accepted.refused_count);
    } else {
        println!(
            "transfer {} at {site}: {} files, {}; {} known already, {} refused",
            accepted.transfer,
            accepted.files,
            show_bytes(accepted.bytes),
            accepted.known,
            accepted.refused_count
        );
    }
    for refusal in &accepted.refused {
        let (what, trouble) = (shown(&refusal.what), shown(&refusal.trouble.to_string()));
        println!("refused   {what}: {trouble}");
    }
}

/// A transfer on a list, where one without states was not counted.
fn listed(report: &TransferReport) -> String {
    if !report.states.is_empty() {
        return line_of(report);
    }
    let (id, from, to) = (report.id, shown(&report.from), shown(&report.to));
    format!("transfer {id} {from} -> {to}: submitted {}", show_time(report.submitted_us))
}

fn show_transfer(report: &TransferReport) {
    println!("{}", line_of(report));
}

fn line_of(report: &TransferReport) -> String {
    let states = report.states.iter();
    let states: Vec<_> = states.map(|(state, files)| format!("{files} {}", shown(state))).collect();
    // What was known already goes by the transfer that took it in.
    let none = "no files of its own";
    let states = if states.is_empty() { none.to_owned() } else { states.join(", ") };
    let (id, from, to) = (report.id, shown(&report.from), shown(&report.to));
    let (bytes, at) = (show_bytes(report.bytes.unwrap_or(0)), show_time(report.submitted_us));
    format!("transfer {id} {from} -> {to}: {states}; {bytes}; submitted {at}")
}

fn show_link(link: &LinkReport) {
    let wanted = format!("{:?}", link.wanted).to_lowercase();
    println!(
        "{:<12} {wanted:<8} {} of {} batches, {} files, {}, {:.0} files/s",
        shown(&link.site),
        link.active,
        link.active_max,
        link.files,
        show_bytes(link.bytes),
        link.files_per_s
    );
    if let Some(standstill) = &link.standstill {
        println!("{:<12} {}", "", shown(standstill));
    } else if let Some(at) = link.probe_at_us {
        let trouble = link.trouble.as_deref().unwrap_or("it failed");
        let probe = probe_words(at, link.active, Clock::system().now().0);
        println!("{:<12} held back: {}; {probe}", "", shown(trouble));
    } else if let Some(trouble) = &link.trouble {
        println!("{:<12} {}", "", shown(trouble));
    }
}

/// When its time has come a probe needs a file that may go, and is then under way.
fn probe_words(at_us: i64, active: usize, now_us: i64) -> String {
    match active {
        _ if at_us > now_us => format!("probe at {}", show_time(at_us)),
        0 => "the next file that may go is the probe".to_owned(),
        _ => "a probe is under way".to_owned(),
    }
}

fn show_why(why: &Why) {
    let has_ended = matches!(why.state.as_str(), "receipted" | "cancelled" | "adopted");
    let when = if has_ended { "-" } else { "nobody knows when" };
    let eta = why.eta_us.map_or_else(|| when.to_owned(), show_time);
    let reason = shown(why.reason.as_deref().unwrap_or("-"));
    println!("{} {} {} {reason} {eta}", why.file, shown(&why.name), shown(&why.state));
    println!("    {}", shown(&why.text));
    for way in &why.ways {
        let done = way.done_us.map_or_else(|| "nobody knows when".to_owned(), show_time);
        println!("    to {}: there {done}; {}", shown(&way.to), shown(&way.why));
        let lines = way.measured.iter().chain(&way.plan);
        lines.for_each(|PlanLine { name, value, why }| {
            println!("        {:<15} {:<16} {}", plain(name), plain(value), plain(why));
        });
    }
    show_sources(&why.sources);
    why.fetch.iter().for_each(show_under_way);
}

#[cfg(test)]
mod tests {
    use super::{DeedArgs, SubmitArgs, TransferReport, WhyArgs};
    use super::{line_of, listed, number, pieces, probe_words, read_list, show_done, undone};
    use crate::cli::Exit;
    use crate::dispatch::Done;
    use clap::{Args as _, Command, FromArgMatches as _};

    #[test]
    fn a_list_says_all_of_its_submissions_and_what_is_wrong_with_one() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("list");
        for (text, is_wrong) in [
            (r#"{"paths": ["a"], "tu": "b"}"#, "unknown field `tu`"),
            (r#" [{"paths": ["a"], "to": 7}]"#, "invalid type: integer `7`"),
            ("[]", "names no file"),
            (r#"[{"paths": ["a"], "to": "b"}, {"paths": [], "to": "b"}]"#, "names no file"),
        ] {
            std::fs::write(&list, text).unwrap();
            let fault = read_list(&list).unwrap_err().to_string();
            assert!(fault.contains(is_wrong), "{fault}");
        }
        let parse = |more: &[&str]| {
            let words = ["submit", "--json-list", "list"].iter().chain(more);
            let matches =
                SubmitArgs::augment_args(Command::new("submit")).try_get_matches_from(words)?;
            SubmitArgs::from_arg_matches(&matches)
        };
        assert!(parse(&[]).is_ok());
        assert!(parse(&["--into", "x"]).is_err() && parse(&["--priority", "1"]).is_err());
    }

    #[test]
    fn a_list_goes_in_pieces_that_a_site_takes_however_long_its_paths_are() {
        for (path, count) in [("x".to_owned(), 9_000), ("\u{1}".repeat(300), 9_000)] {
            let all = [vec![path; count], vec!["y".repeat(2 << 20), "z".to_owned()]].concat();
            let pieces = pieces(&all);
            assert_eq!(pieces.concat(), all);
            for piece in pieces {
                let bytes = serde_json::to_vec(piece).unwrap().len();
                assert!(piece.len() == 1 || piece.len() <= 4000 && bytes < 600_000, "{bytes}");
            }
        }
        assert!(pieces(&[]).is_empty());
    }

    #[test]
    fn a_priority_may_be_below_zero_and_a_file_is_a_number() {
        let words = ["submit", "a", "b", "--priority", "-5"];
        let matches = SubmitArgs::augment_args(Command::new("submit")).get_matches_from(words);
        assert_eq!(SubmitArgs::from_arg_matches(&matches).unwrap().priority, Some(-5));
        assert_eq!(number("17"), Ok(17));
        assert!(number("run/x").unwrap_err().contains("--prefix"));
    }

    #[test]
    fn a_deed_is_for_files_or_a_transfer_and_who_names_neither_is_told_both() {
        let parse = |words: &[&str]| {
            let words = ["retry"].iter().chain(words);
            DeedArgs::augment_args(Command::new("retry")).try_get_matches_from(words)
        };
        assert!(parse(&["1", "2"]).is_ok() && parse(&["--transfer", "1"]).is_ok());
        assert!(parse(&["1", "--transfer", "1"]).is_err());
        let told = parse(&[]).unwrap_err().to_string();
        assert!(told.contains("<FILE") && told.contains("--transfer <TRANSFER>"), "{told}");
    }

    #[test]
    fn one_file_is_asked_about_without_conditions() {
        let parse = |words: &[&str]| {
            let words = ["why"].iter().chain(words);
            WhyArgs::augment_args(Command::new("why")).try_get_matches_from(words)
        };
        assert!(parse(&["7"]).is_ok() && parse(&["--prefix", "x", "--state", "queued"]).is_ok());
        for condition in ["--prefix", "--state", "--class"] {
            assert!(parse(&["7", condition, "x"]).is_err(), "{condition}");
        }
    }

    #[test]
    fn a_file_that_is_not_done_because_it_lies_aside_makes_a_deed_incomplete() {
        let mut done = Done { done: 2, passed: 1, ..Done::default() };
        assert!(show_done("release", &done) == Exit::Complete);
        done.aside.push(7);
        assert!(show_done("release", &done) == Exit::Incomplete);
    }

    #[test]
    fn a_transfer_of_which_all_has_ended_is_said_to_have() {
        let told = |states: &str| {
            let text = r#"{"id": 7, "from": "a", "to": "b", "submitted_us": 0, "bytes": 0"#;
            let text = format!(r#"{text}, "states": {{{states}}}}}"#);
            undone(&serde_json::from_str::<TransferReport>(&text).unwrap())
        };
        assert!(told(r#""receipted": 3, "cancelled": 1"#).starts_with("all 4 files of it have"));
        for other in ["", r#""receipted": 3, "quarantined": 1"#] {
            assert!(told(other).starts_with("transfer 7"), "{other}");
        }
    }

    #[test]
    fn a_probe_whose_time_has_come_is_not_said_to_be_at_that_time() {
        assert_eq!(probe_words(1_000_000, 0, 0), "probe at 1970-01-01T00:00:01Z");
        assert!(probe_words(1, 0, 1).contains("next file"));
        assert_eq!(probe_words(1, 1, 2), "a probe is under way");
    }

    #[test]
    fn a_transfer_of_what_was_known_already_does_not_say_that_all_is_over() {
        let text = r#"{"id": 7, "from": "a", "to": "b", "submitted_us": 0, "bytes": 0}"#;
        let line = line_of(&serde_json::from_str::<TransferReport>(text).unwrap());
        assert!(line.starts_with("transfer 7 a -> b: no files of its own; 0 B"), "{line}");
    }

    #[test]
    fn a_listed_transfer_that_was_not_counted_is_not_said_to_be_empty() {
        let line = |more: &str| {
            let text = format!(r#"{{"id": 7, "from": "a", "to": "b", "submitted_us": 0{more}}}"#);
            listed(&serde_json::from_str::<TransferReport>(&text).unwrap())
        };
        let bare = line("");
        assert_eq!(bare, "transfer 7 a -> b: submitted 1970-01-01T00:00:00Z");
        // An earlier version says that it has 0 bytes.
        assert_eq!(line(r#", "bytes": 0"#), bare);
        let counted = line(r#", "states": {"queued": 2}, "bytes": 9"#);
        assert!(counted.contains("b: 2 queued; 9 B; submitted"), "{counted}");
    }

    #[test]
    fn names_that_another_site_tells_cannot_speak_to_the_terminal() {
        let odd = "\u{1b}[2J";
        let (from, to) = (format!("a{odd}"), format!("b{odd}"));
        let (states, bytes, stuck) = Default::default();
        let report = TransferReport { id: 7, from, to, submitted_us: 0, states, bytes, stuck };
        let mut counted = report.clone();
        counted.states = [(format!("queued{odd}"), 2)].into();
        for line in [listed(&report), listed(&counted)] {
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
    }
}
