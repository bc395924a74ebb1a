//! Runs an experiment: each cell, each program, each repeat, on a fresh network.
//!
//! Every run is written to `runs.jsonl` when it is over, so that nothing is lost when the campaign is stopped. One is never begun
//! where it would replace anything.
//! Repeats go round and round over the programs, so that a slow minute of the machine hits all alike.

use crate::experiment::{Cell, Experiment};
use crate::feed::{self, Product};
use crate::figures::{self, Kept};
use crate::footprint::Footprint;
use crate::memory::{self, Memory};
use crate::network::{Counters, Host, Losses, Network};
use crate::page::{self, Surroundings};
use crate::programs::{self, Program, tool};
use crate::record::Record;
use crate::stage::{Outcome, PAYLOAD, Stage};
use crate::{at, say};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A campaign's runs, a line each.
const RUNS: &str = "runs.jsonl";
/// Where and with what a campaign ran, beside its runs.
const SURROUNDINGS: &str = "surroundings.json";

/// A program as an experiment calls it: its name, and arguments that are added to the sender's.
struct Call {
    name: String,
    program: &'static Program,
    more: Vec<String>,
}

impl Call {
    fn new(text: &str) -> io::Result<Self> {
        let mut words = text.split_whitespace().map(str::to_owned);
        let name = words.next().unwrap_or_default();
        let program = programs::all().find(|program| program.name == name);
        let program =
            program.ok_or_else(|| io::Error::other(format!("`{name}`: no such program")))?;
        Ok(Self { name: text.to_owned(), program, more: words.collect() })
    }
}

/// The files of programs, and when each was last changed.
struct Tools(Vec<(PathBuf, Option<SystemTime>)>);

impl Tools {
    fn of(paths: impl Iterator<Item = PathBuf>) -> Self {
        Self(paths.map(|path| (path.clone(), changed(&path))).collect())
    }

    /// One campaign measures one build.
    fn check(&self) -> io::Result<()> {
        match self.0.iter().find(|(path, then)| changed(path) != *then) {
            None => Ok(()),
            Some((path, _)) => Err(at(path)(
                "was replaced while the campaign ran, so it ends here: `lab join EXPERIMENT FOLDER --out NEW` makes the page \
                 of the runs before; build in another checkout, and run it again",
            )),
        }
    }
}

fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// Runs all of it, or the `k`th of `n` parts. The page is written after each cell.
pub(crate) fn run(experiment: &Experiment, (k, n): (usize, usize), out: &Path) -> io::Result<()> {
    let cells = experiment.cells().map_err(io::Error::other)?;
    let cells: Vec<Cell> = cells.into_iter().skip(k - 1).step_by(n).collect();
    let (present, surroundings) = present(experiment)?;
    check(experiment, &cells, &present)?;
    let names = present.iter().flat_map(|call| call.program.tools).copied();
    let tools = Tools::of(names.chain(["lab"]).filter_map(tool));
    let footprint = Footprint::new()?;
    memory::check_room(&cells, &footprint.scratch())?;
    let _memory = Memory::of(&cells, &footprint.scratch())?;
    let total = cells.len() * present.len() * experiment.repeats as usize;
    let runs = out.join(RUNS);
    let mut log = begin(out)?;
    let here = out.join(SURROUNDINGS);
    fs::write(&here, serde_json::to_string_pretty(&surroundings)?).map_err(at(&here))?;
    if experiment.keep_logs {
        figures::begin(out)?;
        if tool("zstd").is_none() {
            say("skipped: Downpour's traces among the logs: zstd is not installed");
        }
    }
    let (mut records, mut kept) = (Vec::new(), Vec::new());
    for cell in &cells {
        let payload = payload(&footprint, cell.size.0)?;
        for repeat in 1..=experiment.repeats {
            for call in &present {
                let logs = (experiment.keep_logs && repeat == 1).then(|| {
                    kept.push(Kept::of(experiment, cell, &call.name));
                    out.join(figures::FOLDER).join(&kept[kept.len() - 1].folder)
                });
                let setting = (experiment, cell, call);
                let record = run_one(&footprint, setting, repeat, &payload, logs);
                tools.check()?;
                // One network that could not be built does not end a campaign of hours.
                let record = record.unwrap_or_else(|e| Record {
                    program: call.name.clone(),
                    cell: cell.clone(),
                    repeat,
                    campaign: 1,
                    trouble: format!("the lab failed: {e}"),
                    lab_failed: true,
                    ..Record::default()
                });
                writeln!(log, "{}", serde_json::to_string(&record)?).map_err(at(&runs))?;
                say(format!("{}/{total} {}", records.len() + 1, line(&record)));
                records.push(record);
            }
        }
        page::write(experiment, std::slice::from_ref(&surroundings), &records, out)
            .map_err(at(out))?;
        figures::draw(out, &kept)?;
    }
    failures(&records, out)
}

/// Programs that are here, and where and with what they are to run.
fn present(experiment: &Experiment) -> io::Result<(Vec<Call>, Surroundings)> {
    let slows = experiment.happening.iter().any(|happening| happening.writes_take.is_some());
    let missing_too = (slows && tool("strace").is_none()).then_some("strace");
    let mut present = Vec::new();
    let mut surroundings = Surroundings::here();
    for call in &experiment.programs {
        let call = Call::new(call)?;
        let (name, program) = (call.name.clone(), call.program);
        match program.missing().or(missing_too) {
            Some(tool) => {
                say(format!("skipped: {name}: {tool} is not installed"));
                surroundings.skipped.push((name, tool.to_owned()));
            }
            None => {
                let but =
                    if call.more.is_empty() { "" } else { "; but for what its arguments say" };
                let about = format!("{}{but}", program.about);
                surroundings.programs.push((name, about, program.version()));
                present.push(call);
            }
        }
    }
    Ok((present, surroundings))
}

/// Refuses, before the first run, what would be found out by each of them.
fn check(experiment: &Experiment, cells: &[Cell], present: &[Call]) -> io::Result<()> {
    if cells.is_empty() {
        return Err(io::Error::other(
            "this part has no cells: the experiment has fewer than parts",
        ));
    }
    if present.is_empty() {
        return Err(io::Error::other("needs a program of the experiment: none of them is here"));
    }
    for cell in cells {
        feed::products(cell)?;
        let refused = |call: &Call| call.program.refuses(cell, &experiment.happening);
        if let Some(why) = present.iter().find_map(refused) {
            return Err(io::Error::other(why));
        }
    }
    Ok(())
}

/// Runs that the lab could not do are nobody's figures: whoever started them is to know.
fn failures(records: &[Record], out: &Path) -> io::Result<()> {
    match records.iter().filter(|record| record.lab_failed).count() {
        0 => Ok(()),
        failed => {
            let page = out.join("README.md");
            let why = format!("the lab failed in {failed} of {} runs", records.len());
            Err(io::Error::other(format!("{why}: {} says why", page.display())))
        }
    }
}

/// Nothing is in the folder: another campaign's runs are hours of work, or still being written, and what is called as its page and its
/// drawings are may be anybody's.
fn is_empty(out: &Path) -> io::Result<()> {
    match fs::read_dir(out) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        here => match here.map_err(at(out))?.next() {
            None => Ok(()),
            Some(_) => Err(at(out)(
                "something is here already, which could be replaced: give another folder with --out; if a campaign was \
                 stopped here, `lab join EXPERIMENT FOLDER --out NEW` makes its page",
            )),
        },
    }
}

/// Makes the file of a campaign's runs, before anything else is written.
fn begin(out: &Path) -> io::Result<File> {
    is_empty(out)?;
    fs::create_dir_all(out).map_err(at(out))?;
    let runs = out.join(RUNS);
    File::create_new(&runs).map_err(at(&runs))
}

/// Writes the page of parts that were run by themselves, or of whole campaigns, as if they had been run in turn. Says what is missing.
pub(crate) fn join(experiment: &Experiment, parts: &[PathBuf], out: &Path) -> io::Result<()> {
    is_empty(out)?;
    let cells = experiment.cells().map_err(io::Error::other)?;
    let (mut records, mut surroundings): (Vec<(usize, Record)>, Vec<Surroundings>) =
        Default::default();
    for part in parts {
        let here = part.join(SURROUNDINGS);
        let text = fs::read_to_string(&here).map_err(at(&here))?;
        let told = serde_json::from_str(&text).map_err(at(&here))?;
        if surroundings.contains(&told) {
            return Err(at(part)("another part has these runs too"));
        }
        surroundings.push(told);
        let runs = part.join(RUNS);
        for mut record in read(&runs)? {
            record.campaign = surroundings.len();
            let number = cells.iter().position(|cell| *cell == record.cell);
            let number = number.ok_or("a run of a cell that this experiment does not have");
            let number = number.map_err(at(&runs))?;
            records.push((number, record));
        }
    }
    records.sort_by_key(|(number, record)| (*number, record.repeat));
    let records: Vec<Record> = records.into_iter().map(|(_, record)| record).collect();
    for line in page::missing(experiment, &surroundings, &records).map_err(io::Error::other)? {
        say(format!("missing: {line}"));
    }
    if let Some(mixed) = page::mixed(&surroundings) {
        say(format!("mixed: {mixed}"));
    }
    fs::create_dir_all(out).map_err(at(out))?;
    page::write(experiment, &surroundings, &records, out).map_err(at(out))?;
    failures(&records, out)
}

/// A campaign's runs; without the last, where that was cut off while it was written.
fn read(runs: &Path) -> io::Result<Vec<Record>> {
    let text = fs::read_to_string(runs).map_err(at(runs))?;
    let mut records = Vec::new();
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        match serde_json::from_str(line) {
            Ok(record) => records.push(record),
            Err(_) if !line.ends_with('\n') => {
                say(format!("{}: line {number} was cut off and is left out", runs.display()));
            }
            Err(e) => return Err(at(runs)(format!("line {number}: {e}"))),
        }
    }
    Ok(records)
}

/// What a program may not say: that all came, when less than the file left the machines.
fn untrue(wall_s: Option<f64>, wire_over_size: f64) -> Option<String> {
    let told = wall_s.is_some() && wire_over_size < 1.0;
    told.then(|| format!("all came, it says, but only {wire_over_size:.3} of the file was sent"))
}

fn run_one(
    footprint: &Footprint,
    (experiment, cell, call): (&Experiment, &Cell, &Call),
    repeat: u32,
    payload: &Path,
    logs: Option<PathBuf>,
) -> io::Result<Record> {
    let spec = experiment.network(cell, call.program.shares_uplinks, u64::from(repeat));
    let mut network = Network::build(footprint, &spec)?;
    let products = feed::products(cell)?;
    let size = products.as_deref().map_or(cell.bytes(), bytes);
    let bound_s = experiment.bound_s(cell);
    let limit = limit(experiment, cell, products.as_deref());
    let before = passed(&network)?;
    let mut stage = Stage::new(footprint, &network, cell, payload, limit)?;
    stage.changes = experiment.changes(cell, call.program.shares_uplinks);
    stage.products = products.as_deref().unwrap_or_default();
    stage.traced = logs.is_some() && tool("zstd").is_some();
    stage.logs = logs;
    stage.more = &call.more;
    stage.happenings = &experiment.happening;
    let ran = (call.program.run)(&mut stage);
    let after = passed(&network);
    let outcome = stage.judge(ran)?;
    memory::check_full(cell, &footprint.scratch(), &outcome.trouble)?;
    network.check()?;
    let after = after?;
    let lost_socket = network.receivers.iter().map(Host::buffer_errors).sum::<io::Result<u64>>()?;
    let Losses { asked, queue, own, unsent, emulator } = network.losses()?;
    let others_s = last_of_others(&experiment.odd_receivers(cell), &outcome.delivered_s);
    let wire = |bytes: u64| bytes as f64 / (size as f64 * outcome.share);
    let given = after.iter().zip(&before).map(|(now, then)| now.tx_bytes - then.tx_bytes);
    let given: Vec<u64> =
        given.zip(unsent).map(|(given, unsent)| given.saturating_sub(unsent)).collect();
    let (sent, answered) = (wire(given[0]), wire(given[1..].iter().sum()));
    let Outcome {
        complete, wall_s, delivered_s, usage, trouble, remark, figures, latencies, ..
    } = outcome;
    let untrue = untrue(wall_s, sent + answered);
    let (wall_s, trouble) = untrue.map_or((wall_s, trouble), |why| (None, why));
    Ok(Record {
        program: call.name.clone(),
        cell: cell.clone(),
        repeat,
        campaign: 1,
        complete,
        wall_s,
        delivered_s,
        others_s,
        bound_s,
        wall_over_bound: wall_s.zip(bound_s).map(|(wall, bound)| wall / bound),
        goodput_mbit: figures.late_mbit.or(wall_s.map(|wall| size as f64 * 8.0 / wall / 1e6)),
        wire_over_size: sent,
        receivers_wire_over_size: answered,
        usage,
        rx_packets: Some(received(&after) - received(&before)),
        lost_asked: asked,
        lost_queue: queue,
        lost_own: own,
        lost_socket,
        emulated: emulator.as_ref().map(|account| account.delivered),
        emulator_late_mean_us: emulator.as_ref().map(|account| account.late_mean_us),
        emulator_late_p99_us: emulator.as_ref().map(|account| account.late_p99_us),
        figures,
        trouble,
        lab_failed: false,
        remark,
        latencies,
    })
}

/// After how long a run is stopped.
fn limit(experiment: &Experiment, cell: &Cell, products: Option<&[Product]>) -> Duration {
    // Without a rate the machine is the limit; a minute per GiB and receiver is far beyond it.
    let machine = || cell.bytes() as f64 / 2e7 * cell.receivers as f64;
    let file = || experiment.bound_s(cell).unwrap_or_else(machine);
    let fair = products.map_or_else(file, |products| feed_s(products, cell));
    let limit = Duration::try_from_secs_f64(fair * experiment.limit).unwrap_or(Duration::MAX);
    limit.saturating_add(Experiment::GRACE)
}

/// The last delivery at a receiver like most, where some are odd.
fn last_of_others(odd: &[usize], delivered_s: &[Option<f64>]) -> Option<f64> {
    let others = delivered_s.iter().enumerate().filter(|(i, _)| !odd.contains(i));
    let others: Vec<f64> = others.map(|(_, at)| *at).collect::<Option<_>>()?;
    others.into_iter().reduce(f64::max).filter(|_| !odd.is_empty())
}

fn bytes(products: &[Product]) -> u64 {
    products.iter().map(|product| product.size).sum()
}

/// How long a feed lasts: until its last product, and as long as all of it takes.
fn feed_s(products: &[Product], cell: &Cell) -> f64 {
    let last = products.last().map_or(0.0, |product| product.at_s);
    last + cell.rate.map_or(0.0, |rate| bytes(products) as f64 * 8.0 / rate.0 as f64)
}

/// What passed the sender's interface, then each receiver's.
fn passed(network: &Network) -> io::Result<Vec<Counters>> {
    network.hosts().map(|host| host.counters("eth0")).collect()
}

/// Packets that came in, at all machines.
fn received(passed: &[Counters]) -> u64 {
    passed.iter().map(|counters| counters.rx_packets).sum()
}

/// Random bytes, the same for all runs of one size.
fn payload(footprint: &Footprint, bytes: u64) -> io::Result<PathBuf> {
    let path = footprint.scratch().join(PAYLOAD);
    if fs::metadata(&path).is_ok_and(|file| file.len() == bytes) {
        return Ok(path);
    }
    let mut random = File::open("/dev/urandom")?.take(bytes);
    let mut file = File::create(&path).map_err(at(&path))?;
    io::copy(&mut random, &mut file).map_err(at(&path))?;
    Ok(path)
}

/// One run for people.
fn line(record: &Record) -> String {
    let Record { program, cell, repeat, complete, trouble, .. } = record;
    let Cell { size, receivers, loss, feed, .. } = cell;
    let what = feed.clone().unwrap_or_else(|| size.to_string());
    let seconds = |s: Option<f64>| s.map_or("-".to_owned(), |s| format!("{s:.2}"));
    let came = match record.figures.late_mbit {
        Some(mbit) => format!("{mbit:.1} Mbit/s while it was measured"),
        None => format!(
            "{complete}/{receivers} complete, {} s, {} x bound",
            seconds(record.wall_s),
            seconds(record.wall_over_bound),
        ),
    };
    format!(
        "{program} {repeat}: {what} to {receivers}, {:.3} % loss: {came}, wire {:.3}{}{trouble}",
        loss * 100.0,
        record.wire_over_size,
        if trouble.is_empty() { "" } else { "; " },
    )
}

#[cfg(test)]
mod tests {
    use super::{
        Call, RUNS, SURROUNDINGS, Tools, begin, check, failures, join, last_of_others, untrue,
    };
    use crate::experiment::{Cell, Experiment};
    use crate::page::Surroundings;
    use crate::record::Record;
    use crate::units::Span;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    /// One program, three cells, two repeats.
    fn experiment(folder: &Path) -> Experiment {
        let file = folder.join("sweep.toml");
        let text = "title = \"Join\"\nprograms = [\"downpour\"]\nrepeats = 2\n\
                    [cell]\nsize = \"1MiB\"\nrate = \"1mbit\"\n[sweep]\nloss = [0.0, 0.01, 0.02]\n";
        fs::write(&file, text).unwrap();
        Experiment::read(&file).unwrap()
    }

    /// A part whose runs have these wires; none where the lab failed.
    fn part(folder: &Path, experiment: &Experiment, runs: &[(usize, u32, Option<f64>)]) -> PathBuf {
        let cells = experiment.cells().unwrap();
        let line = |(cell, repeat, wire): &(usize, u32, Option<f64>)| {
            let record = Record {
                program: "downpour".to_owned(),
                cell: cells[*cell].clone(),
                repeat: *repeat,
                wall_s: wire.and(Some(1.0)),
                wire_over_size: wire.unwrap_or_default(),
                lab_failed: wire.is_none(),
                ..Record::default()
            };
            serde_json::to_string(&record).unwrap() + "\n"
        };
        let here = Surroundings { load: folder.display().to_string(), ..Surroundings::here() };
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(SURROUNDINGS), serde_json::to_string(&here).unwrap()).unwrap();
        fs::write(folder.join(RUNS), runs.iter().map(line).collect::<String>()).unwrap();
        folder.to_owned()
    }

    #[test]
    fn parts_are_joined_in_the_experiments_order() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let experiment = experiment(folder);
        let odd = part(&folder.join("a"), &experiment, &[(2, 1, Some(1.5)), (0, 1, Some(1.25))]);
        let even = part(&folder.join("b"), &experiment, &[(1, 2, Some(1.75)), (1, 1, None)]);
        let out = folder.join("out");
        let told = join(&experiment, &[odd.clone(), even.clone()], &out).unwrap_err().to_string();
        assert!(told.starts_with("the lab failed in 1 of 4 runs: "), "{told}");
        let page = fs::read_to_string(out.join("README.md")).unwrap();
        let at = |words: &str| page.find(words).unwrap_or_else(|| panic!("{words} in {page}"));
        assert!(at("## loss 0 %") < at("| 1.250 |"), "{page}");
        assert!(at("| 1.250 |") < at("## loss 1 %"), "{page}");
        assert!(at("## loss 1 %") < at("## loss 2 %"), "{page}");
        // One run of two has a figure, and it stands alone.
        at("| 1.750 (1 of 2) |");
        at("Missing: loss 0 %: 1 of 2 runs of downpour; loss 1 %: 1 of 2 runs of downpour; \
             loss 2 %: 1 of 2 runs of downpour.");
        assert!(!page.contains("Mixed"), "{page}");
        // Each part's surroundings.
        at(&format!("load at the start {}", odd.display()));
        at(&format!("load at the start {}", even.display()));

        let twice =
            join(&experiment, &[odd.clone(), odd.clone()], &folder.join("new")).unwrap_err();
        let twice = twice.to_string();
        assert!(twice.contains("another part has these runs too"), "{twice}");

        let here = even.join(SURROUNDINGS);
        let elsewhere = Surroundings { machine: "another".to_owned(), ..Surroundings::here() };
        fs::write(here, serde_json::to_string(&elsewhere).unwrap()).unwrap();
        let out = folder.join("mixed");
        join(&experiment, &[odd, even], &out).unwrap_err();
        let page = fs::read_to_string(out.join("README.md")).unwrap();
        assert!(page.contains("Mixed: runs of different machines are joined here.\n"), "{page}");
    }

    #[test]
    fn what_each_run_would_find_out_is_said_before_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let experiment = experiment(folder.path());
        let call = [Call::new("downpour").unwrap()];
        let cell = Cell::default();
        check(&experiment, std::slice::from_ref(&cell), &call).unwrap();
        let told = |cell: Cell| check(&experiment, &[cell], &call).unwrap_err().to_string();
        assert!(told(Cell { transfers: 2, ..cell.clone() }).contains("`transfers` is for wan-*"));
        let feed = |name: &str| Some(name.to_owned());
        assert!(told(Cell { feed: feed("foo"), ..cell.clone() }).contains("no feed `foo`"));
        let late = Span(Duration::from_secs(1 << 20));
        let brief = Span(Duration::from_nanos(1));
        let none = Cell { feed_from: late, feed_for: brief, feed: feed("synthetic-model"), ..cell };
        assert!(told(none).contains("no product"));
        assert!(check(&experiment, &[], &call).is_err());
        let nobody = check(&experiment, &[Cell::default()], &[]).unwrap_err().to_string();
        assert!(nobody.starts_with("needs a program"), "{nobody}");
    }

    #[test]
    fn a_program_that_is_built_anew_ends_the_campaign() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["downpour", "lab"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| fs::write(path, "").unwrap());
        let tools = Tools::of(paths.clone().into_iter());
        tools.check().unwrap();
        let old = fs::metadata(&paths[0]).unwrap().modified().unwrap();
        let new = fs::File::open(&paths[0]).unwrap();
        new.set_modified(old + Duration::from_secs(1)).unwrap();
        assert!(tools.check().unwrap_err().to_string().contains("downpour: was replaced"));
        new.set_modified(old).unwrap();
        tools.check().unwrap();
        fs::remove_file(&paths[1]).unwrap();
        assert!(tools.check().unwrap_err().to_string().contains("lab: was replaced"));
    }

    #[test]
    fn a_campaign_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("new");
        begin(&new).unwrap();
        let experiment = experiment(folder.path());
        for error in [begin(&new).unwrap_err(), join(&experiment, &[], &new).unwrap_err()] {
            assert!(error.to_string().contains("give another folder"), "{error}");
        }
    }

    #[test]
    fn runs_that_the_lab_could_not_do_are_an_error() {
        let run = |lab_failed| Record { lab_failed, ..Record::default() };
        failures(&[run(false)], Path::new("out")).unwrap();
        let told = failures(&[run(false), run(true)], Path::new("out")).unwrap_err().to_string();
        assert_eq!(told, "the lab failed in 1 of 2 runs: out/README.md says why");
    }

    #[test]
    fn others_are_there_only_where_some_are_odd() {
        let delivered_s = [Some(1.0), Some(9.0), Some(2.0)];
        assert_eq!(last_of_others(&[1], &delivered_s), Some(2.0));
        assert_eq!(last_of_others(&[], &delivered_s), None);
        assert_eq!(last_of_others(&[1], &[Some(1.0), Some(9.0), None]), None);
    }

    #[test]
    fn less_than_the_file_is_no_delivery() {
        assert!(untrue(Some(0.24), 0.565).unwrap().contains("only 0.565 of the file"));
        assert_eq!(untrue(Some(0.24), 1.029), None);
        assert_eq!(untrue(None, 0.01), None);
    }

    #[test]
    fn a_run_that_was_cut_off_costs_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let experiment = experiment(folder);
        let runs = [(0, 1, Some(1.25)), (0, 2, Some(1.5)), (1, 1, Some(1.75))];
        let torn = part(&folder.join("a"), &experiment, &runs);
        let (file, out) = (torn.join(RUNS), folder.join("out"));
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, &text[..text.len() - 9]).unwrap();
        join(&experiment, std::slice::from_ref(&torn), &out).unwrap();
        assert_eq!(fs::read_to_string(out.join("runs.csv")).unwrap().lines().count(), 3);
        // One in the midst of others is something else.
        fs::write(&file, text.replacen("\n", "!\n", 1)).unwrap();
        let out = folder.join("new");
        let told = join(&experiment, std::slice::from_ref(&torn), &out).unwrap_err().to_string();
        assert!(told.contains("runs.jsonl: line 1: "), "{told}");
        // A part's own page stays.
        fs::write(&file, &text).unwrap();
        let told = join(&experiment, std::slice::from_ref(&torn), &torn).unwrap_err().to_string();
        assert!(told.contains("give another folder"), "{told}");
        assert!(!torn.join("README.md").exists());
    }

    #[test]
    fn runs_of_two_campaigns_are_all_counted() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let experiment = experiment(folder);
        let runs = |wire| [(0, 1, Some(wire)), (0, 2, Some(wire))];
        let first = part(&folder.join("a"), &experiment, &runs(1.25));
        // It was stopped after one of two.
        let second = part(&folder.join("b"), &experiment, &runs(1.75)[..1]);
        let out = folder.join("out");
        join(&experiment, &[first, second], &out).unwrap();
        let page = fs::read_to_string(out.join("README.md")).unwrap();
        assert!(page.contains("| downpour | 0/3 |"), "{page}");
        assert!(page.contains("| 1.250 (1.250–1.750) |"), "{page}");
        assert!(page.contains("Missing: 2 of 3 cells have no runs."), "{page}");
        let table = fs::read_to_string(out.join("runs.csv")).unwrap();
        let mut rows = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let names = rows.next().unwrap();
        let column = |name: &str| names.iter().position(|here| *here == name).unwrap();
        let told = ["campaign", "repeat"].map(column);
        let told: Vec<_> = rows.map(|row| told.map(|at| row[at].to_owned())).collect();
        assert_eq!(told, [["1", "1"], ["2", "1"], ["1", "2"]]);
    }
}
