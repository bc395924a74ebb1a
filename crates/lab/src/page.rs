//! What a campaign leaves: `README.md` with tables and drawings, `runs.csv`, `runs.json`, an SVG for each plot.

use crate::emulator::serve::LATE_STEPS;
use crate::experiment::{Cell, Experiment, Plot};
use crate::meter;
use crate::plot::{Drawing, Point};
use crate::record::{Record, csv, median};
use crate::shell::run;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

const READING: &str = "\
*Wall*: from the start of the sender to the last delivery (the receiver's program ends, or, where it lingers, all of the file is in its place), median \
(least–greatest; *2 of 3*: so many of the runs came to it). *Mbit/s*: what was sent over that, or, where transfers were not waited for, what came to the receiver while it was measured, or what a foreign transfer had. *Others*: the last delivery at a receiver \
like most, where some are not. *× bound*: over size · (1514/1472) · 8 / (rate · (1 − loss)), which leaves out what a link \
saves up (below): 1 MiB at 100 Mbit/s can be 6 % below it. *Wire*: bytes of Ethernet frames that the sender sent, without those that the queue of its own link dropped, over bytes \
of the file; beside it those that all receivers together sent; with `offloads` a batch of up to 64 KiB counts as one frame, so that \
who sends batches seems to send fewer headers. *CPU s*: user and system, of the sender's programs and of all receivers' together, \
where on one machine a part of the network's work for receivers is done, and counted, in the sender's time; *a GB*: over 10⁹ bytes of what was sent, and of one receiver. *CPU*: \
share of all cores that these used, and that was in use at all, others' work of low priority aside; **bound** where the programs were at the limit of the machine (85 % of it, or \
95 % of one core by the sender, by the emulator or by the mean receiver), *full* where the machine was, by network work in the kernel or by other work, *late* where the emulator gave one frame in a hundred on more than \
a millisecond late: delays and short queues were not those asked for; by how much it was late to take frames in is not in that, so that one which stood still is seen only by what it held. A queue is longer than asked by what a link without delay saves up: 5 ms of its rate, at least 16 kB (with a feed 0.5 ms, at least three frames). *overrun* where one packet in a hundred of those that came, or more, found a full socket buffer at a receiver, which the program then has to send again. *Lost by the lab*: packets that the network lost without being asked, socket buffers aside: how many found them full stands in `runs.csv`. Programs run as root without CAP_NET_ADMIN, so that nobody's socket buffer is larger than the kernel's limit; those that are told TCP's congestion control (tcp-*, wan-*, downpour-tcp and others far away, table1-*, downpour-beside-*, iperf3) keep it, \
and with it Downpour's can have 16 MiB. Without it a sender of Downpour's cannot let its TCP connections begin with CUBIC where BBR is the default and `net.ipv4.tcp_allowed_congestion_control` has no `cubic`: they begin with BBR's pacing then. Files that programs keep were compared \
with the payload; where none is kept, it counts that the program says it has verified all, and where nothing is verified, that it ended. A run with a receiver that lacks it has no wall time, and its bytes and processor time count in no median (but where most are alike, and all of these have it); one that was not waited for has neither; one in which the lab itself failed counts in no figure. Where logs are kept the first repeat of Downpour's is traced, which costs processor time, and counts as the others do. Last, what held the connections back, as a program said that tells it, while it was measured or in the end; and what went wrong.

Of a feed's products: *Σ size / Σ latency* of the mean receiver, and of an *ideal* system that sends them one after another at the link's rate, what it saves up in a pause included, with no headers at all and half a round trip \
on the way. Latency is from the time a product was due until the receiver had verified it and given it on, in order. Its parts: in the sender's *buffer*; *transmission* from its first datagram to its last of source; \
until its last block had *arrived*, repair included; until it had its *turn* and was checked. *Clocks*: sender's less receiver's, as measured over the control connection, \
and how wrong that may be, of the receiver furthest off. The lab's machines have one clock, so that all of it is error: it is in no latency here, as it is where machines have clocks of their own.
";

/// One frame in a hundred so late: [`READING`] says what that means.
const LATE_US: f64 = 1000.0;

/// Share of what came that found a full socket buffer: the same.
const OVERRUN: f64 = 0.01;

/// What fields and figures are called in drawings.
const WORDS: &[(&str, &str)] = &[
    ("complete", "receivers that have the file"),
    ("connections", "TCP connections"),
    ("cpu_busy", "share of all cores in use"),
    ("cpu_ours", "share of all cores that the programs used"),
    ("delay", "delay each way"),
    ("goodput_mbit", "throughput, Mbit/s"),
    ("late_mbit", "throughput while it was measured, Mbit/s"),
    ("latency_over_ideal", "latency over the ideal FIFO's"),
    ("loss", "loss at each receiver"),
    ("lost_asked", "packets lost on purpose"),
    ("lost_own", "packets lost by the lab"),
    ("lost_queue", "packets that found a full queue"),
    ("rate", "rate of the sender's link"),
    ("receivers_cpu_s", "processor time of all receivers together, s"),
    ("sender_cpu_s", "processor time of the sender, s"),
    ("size", "size of the file"),
    ("throughput_mbit", "throughput of products, Mbit/s"),
    ("transfers", "files at once"),
    ("wall_over_bound", "wall time beyond the bound, %"),
    ("wall_s", "wall time, s"),
    ("window", "socket buffer"),
    ("wire_over_size", "sent beyond the file's bytes, %"),
];

/// Ratios of which what is beyond 1 is drawn: that is what programs differ in.
const BEYOND_ONE: [&str; 2] = ["wall_over_bound", "wire_over_size"];

/// Where and with what it ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Surroundings {
    pub(crate) command: String,
    pub(crate) date: String,
    /// Of the sources in whose folder the lab's program lies, or else, which is said, of the folder that it runs in.
    pub(crate) revision: String,
    pub(crate) machine: String,
    pub(crate) load: String,
    /// Name, what is to be known, version.
    pub(crate) programs: Vec<(String, String, String)>,
    /// Name, and which tool is missing.
    pub(crate) skipped: Vec<(String, String)>,
}

impl Surroundings {
    /// This machine, now.
    pub(crate) fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let cpu = processor(&read("/proc/cpuinfo"));
        let said = |program: &str, arguments: &[&str]| {
            run(program, arguments).unwrap_or_default().trim().to_owned()
        };
        let machine = format!(
            "{} cores ({cpu}), Linux {}, TCP by default {}, socket buffers up to {} B",
            meter::cores(),
            read("/proc/sys/kernel/osrelease"),
            read("/proc/sys/net/ipv4/tcp_congestion_control"),
            read("/proc/sys/net/core/rmem_max"),
        );
        Self {
            command: std::env::args().collect::<Vec<_>>().join(" "),
            date: said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            revision: revision().unwrap_or_default(),
            machine,
            load: read("/proc/loadavg"),
            programs: Vec::new(),
            skipped: Vec::new(),
        }
    }
}

fn revision() -> io::Result<String> {
    let lab = std::env::current_exe()?;
    let beside = lab.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
    let describe = |folder: &str| run("git", &["-C", folder, "describe", "--always", "--dirty"]);
    let here =
        |_| describe(".").map(|told| told.trim().to_owned() + " of the folder that it ran in");
    describe(&beside).map(|told| told.trim().to_owned()).or_else(here)
}

/// Which processor this is. By its name alone one generation is like another.
fn processor(cpuinfo: &str) -> String {
    let field = |name: &str| {
        let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let mut values = lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
        values.next().unwrap_or("unknown")
    };
    let [name, family, model] = ["model name", "cpu family", "model"].map(field);
    format!("{name}, family {family}, model {model}")
}

/// Writes everything. Parts that were run by themselves have surroundings of their own.
pub(crate) fn write(
    experiment: &Experiment,
    surroundings: &[Surroundings],
    records: &[Record],
    out: &Path,
) -> io::Result<()> {
    let all = serde_json::json!({ "surroundings": surroundings, "runs": records });
    fs::write(out.join("runs.json"), serde_json::to_string_pretty(&all)?)?;
    fs::write(out.join("runs.csv"), csv(records))?;
    let mut text = String::new();
    let missing = missing(experiment, surroundings, records).map_err(io::Error::other)?;
    head(&mut text, experiment, surroundings, records, &missing).expect("a String takes all");
    for (number, plot) in (1..).zip(&experiment.plot) {
        let drawing = drawing(plot, records);
        let name = format!("plot-{number}.svg");
        fs::write(out.join(&name), drawing.svg())?;
        text += &format!("![{}]({name})\n\n", drawing.title);
    }
    let varies: Vec<&str> = experiment.varies().collect();
    for cell in experiment.cells().map_err(io::Error::other)? {
        table(&mut text, experiment.bound_s(&cell), &cell, &varies, records)
            .expect("a String takes all");
    }
    fs::write(out.join("README.md"), text)
}

/// What the lab lost by itself, and as a share of what it carried, where that is known of all runs.
fn lost(records: &[Record]) -> String {
    let lost: u64 = records.iter().map(|record| record.lost_own).sum();
    let mut text = format!("The lab lost {lost} packets by itself in all runs together");
    let percent = |lost: u64, carried: u64| lost as f64 / carried.max(1) as f64 * 100.0;
    let ran = || records.iter().filter(|record| !record.lab_failed);
    let carried: Option<u64> = ran().map(Record::carried).sum();
    if let Some(carried) = carried.filter(|carried| *carried > 0) {
        let of_one = |record: &Record| Some(percent(record.lost_own, record.carried()?));
        let most = ran().filter_map(of_one).fold(0.0, f64::max);
        text += &format!(
            ", {:.4} % of the {carried} that came to its machines or would have; in one run at most {most:.4} %",
            percent(lost, carried)
        );
    }
    text
}

/// What these runs lack of the experiment: by cell and program, and cells that nothing ran in together.
pub(crate) fn missing(
    experiment: &Experiment,
    surroundings: &[Surroundings],
    records: &[Record],
) -> Result<Vec<String>, String> {
    let ran = |name: &&String| records.iter().any(|record| record.program == **name);
    let skipped = |name: &&String| {
        surroundings.iter().flat_map(|here| &here.skipped).any(|(skipped, _)| skipped == *name)
    };
    let programs = experiment.programs.iter().filter(|name| ran(name) || !skipped(name));
    let programs: Vec<&String> = programs.collect();
    let varies: Vec<&str> = experiment.varies().collect();
    let (mut missing, mut empty) = (Vec::new(), 0);
    let cells = experiment.cells()?;
    for cell in &cells {
        let here: Vec<&Record> = records.iter().filter(|record| record.cell == *cell).collect();
        if here.is_empty() {
            empty += 1;
            continue;
        }
        let done = |record: &&&Record| !record.lab_failed;
        let of = |name: &String| here.iter().filter(done).filter(|r| r.program == *name).count();
        // Where several campaigns ran, each program has as many as the others.
        let most = programs.iter().map(|name| of(name)).max().unwrap_or_default();
        let wanted = most.max(experiment.repeats as usize);
        let few = programs.iter().filter(|name| of(name) < wanted);
        let few = few.map(|name| format!("{} of {wanted} runs of {name}", wanted - of(name)));
        let few: Vec<String> = few.collect();
        if !few.is_empty() {
            missing.push(format!("{}: {}", heading(cell, varies.iter().copied()), few.join(", ")));
        }
    }
    if empty > 0 {
        missing.insert(0, format!("{empty} of {} cells have no runs", cells.len()));
    }
    Ok(missing)
}

/// What parts differ in that ran by themselves.
pub(crate) fn mixed(surroundings: &[Surroundings]) -> Option<String> {
    let differ = |in_this: fn(&Surroundings, &Surroundings) -> bool| {
        let from_before =
            |n: usize| surroundings[..n].iter().any(|one| in_this(one, &surroundings[n]));
        (1..surroundings.len()).any(from_before)
    };
    let versions = |one: &Surroundings, other: &Surroundings| {
        one.programs.iter().any(|(name, _, version)| {
            other.programs.iter().any(|(same, _, its)| same == name && its != version)
        })
    };
    let what = [
        ("revisions", differ(|one, other| one.revision != other.revision)),
        ("machines", differ(|one, other| one.machine != other.machine)),
        ("versions of programs", differ(versions)),
    ];
    let what: Vec<_> =
        what.into_iter().filter(|(_, differ)| *differ).map(|(what, _)| what).collect();
    (!what.is_empty()).then(|| format!("runs of different {} are joined here", what.join(", ")))
}

fn head(
    text: &mut String,
    experiment: &Experiment,
    surroundings: &[Surroundings],
    records: &[Record],
    missing: &[String],
) -> std::fmt::Result {
    writeln!(text, "# {}\n", experiment.title)?;
    if !experiment.text.is_empty() {
        writeln!(text, "{}\n", experiment.text.trim())?;
    }
    for Surroundings { command, date, revision, machine, load, .. } in surroundings {
        writeln!(
            text,
            "Command: `{command}`\n\n{date}; {}; {machine}; load at the start {load}.\n",
            if revision.is_empty() {
                "revision unknown".to_owned()
            } else {
                format!("revision {revision}")
            },
        )?;
    }
    writeln!(text, "{}\n\n{READING}", experiment.setting())?;
    let emulated: u64 = records.iter().filter_map(|record| record.emulated).sum();
    write!(text, "{}", lost(records))?;
    if emulated > 0 {
        let late = records.iter().filter_map(|record| record.emulator_late_p99_us);
        let late = late.fold(0.0, f64::max);
        // The emulator counts no further.
        let more = if late >= LATE_STEPS as f64 { "or more " } else { "" };
        write!(
            text,
            "; {emulated} frames went through the emulator, of which one in a hundred was given on up to {late:.0} us {more}late"
        )?;
    }
    writeln!(text, ".\n")?;
    let missing = missing.join("; ");
    if !missing.is_empty() {
        writeln!(text, "Missing: {missing}.\n")?;
    }
    if let Some(mixed) = mixed(surroundings) {
        writeln!(text, "Mixed: {mixed}.\n")?;
    }
    writeln!(text, "| program | version | |\n| --- | --- | --- |")?;
    let present = surroundings.iter().flat_map(|here| &here.programs);
    let present = present.map(|(name, about, version)| format!("| {name} | {version} | {about} |"));
    let skipped = surroundings.iter().flat_map(|here| &here.skipped);
    let skipped =
        skipped.map(|(name, tool)| format!("| {name} | **skipped** | {tool} is not installed |"));
    let mut lines: Vec<String> = Vec::new();
    for line in present.chain(skipped) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    writeln!(text, "{}\n", lines.join("\n"))
}

fn table(
    text: &mut String,
    bound_s: Option<f64>,
    cell: &Cell,
    varies: &[&str],
    records: &[Record],
) -> std::fmt::Result {
    let here: Vec<&Record> = records.iter().filter(|record| record.cell == *cell).collect();
    if here.is_empty() {
        return Ok(());
    }
    let heading = heading(cell, varies.iter().copied());
    let bound = bound_s.map_or(String::new(), |s| format!(" (bound {s:.2} s)"));
    writeln!(text, "## {heading}{bound}\n")?;
    writeln!(
        text,
        "| program | complete | wall s | Mbit/s | others s | × bound | wire | receivers' | CPU s sender / receivers | CPU s a GB, sender / each receiver | CPU ours / all | lost by the lab | |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )?;
    for name in programs(&here) {
        let runs: Vec<&Record> =
            here.iter().copied().filter(|record| record.program == name).collect();
        row(text, name, cell.receivers * runs.len(), &runs)?;
    }
    writeln!(text)?;
    if cell.feed.is_some() { latencies(text, &here) } else { Ok(()) }
}

/// Whose runs these are, each once, in their order.
fn programs<'a>(runs: &[&'a Record]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for record in runs {
        if !names.contains(&record.program.as_str()) {
            names.push(&record.program);
        }
    }
    names
}

/// What tells a cell from the others.
pub(crate) fn heading<'a>(cell: &Cell, varies: impl Iterator<Item = &'a str>) -> String {
    let values = varies.map(|name| format!("{name} {}", shown(cell, name)));
    let values: Vec<String> = values.collect();
    if values.is_empty() { "All runs".to_owned() } else { values.join(", ") }
}

fn row(text: &mut String, name: &str, wanted: usize, runs: &[&Record]) -> std::fmt::Result {
    let spread = |figure: &str, digits: usize| spread(runs, figure, digits);
    let only = |figure: &str, digits: usize| {
        let values = runs.iter().filter_map(|record| record.figure(figure));
        median(values).map_or("-".to_owned(), |[middle, ..]| format!("{middle:.digits$}"))
    };
    let complete = match runs.iter().all(|record| record.figures.late_mbit.is_some()) {
        true => "-".to_owned(),
        false => {
            let complete: usize = runs.iter().map(|record| record.complete).sum();
            format!("{complete}/{wanted}")
        }
    };
    let limits = limits(runs);
    let lost: u64 = runs.iter().map(|record| record.lost_own).sum();
    let mut troubles: Vec<String> = Vec::new();
    // A table's row is one line.
    let told = |record: &&Record| {
        let words: Vec<&str> = record.trouble.split_whitespace().collect();
        words.join(" ").replace('|', "/")
    };
    for trouble in runs.iter().map(told) {
        if !trouble.is_empty() && !troubles.contains(&trouble) {
            troubles.push(trouble);
        }
    }
    let mut last: Vec<&str> = Vec::new();
    let binds = runs.iter().filter_map(|record| record.figures.binds.as_deref());
    for words in binds.chain(troubles.iter().map(String::as_str)) {
        if !words.is_empty() && !last.contains(&words) {
            last.push(words);
        }
    }
    let percent = |share: fn(&Record) -> Option<f64>| {
        let ran = |r: &&&Record| r.has_delivered() || r.figures.late_mbit.is_some();
        let shares = runs.iter().filter(ran).filter_map(|record| Some(share(record)? * 100.0));
        median(shares).map_or("-".to_owned(), |[middle, ..]| format!("{middle:.0}"))
    };
    let a_gb = |figure: &str, each: bool| {
        let of = |record: &&Record| {
            let gb = record.latencies.product_bytes.unwrap_or(record.cell.bytes()) as f64 / 1e9;
            let those = if each { record.cell.receivers as f64 } else { 1.0 };
            record.figure(figure).filter(|_| record.wall_s.is_some()).map(|s| s / gb / those)
        };
        let values = runs.iter().filter_map(of);
        median(values).map_or("-".to_owned(), |[middle, ..]| format!("{middle:.2}"))
    };
    let (ours, busy) = (percent(|r| r.usage.cpu_ours), percent(|r| Some(r.usage.cpu_busy)));
    writeln!(
        text,
        "| {name} | {complete} | {} | {} | {} | {} | {} | {} | {} / {} | {} / {} | {ours} / {busy} %{limits} | {lost} | {} |",
        spread("wall_s", 2),
        spread("goodput_mbit", 2),
        only("others_s", 2),
        spread("wall_over_bound", 3),
        spread("wire_over_size", 3),
        only("receivers_wire_over_size", 3),
        only("sender_cpu_s", 2),
        only("receivers_cpu_s", 2),
        a_gb("sender_cpu_s", false),
        a_gb("receivers_cpu_s", true),
        last.join("; "),
    )
}

/// The median of a figure, with the least and the greatest, and of how many runs it is, where others came to none.
fn spread(runs: &[&Record], figure: &str, digits: usize) -> String {
    let values: Vec<f64> = runs.iter().filter_map(|record| record.figure(figure)).collect();
    let (came, all) = (values.len(), runs.len());
    let few = if came < all { format!(", {came} of {all}") } else { String::new() };
    match median(values) {
        None => "-".to_owned(),
        Some([middle, ..]) if all == 1 => format!("{middle:.digits$}"),
        Some([middle, ..]) if came == 1 => format!("{middle:.digits$} (1 of {all})"),
        Some([middle, least, greatest]) => {
            format!("{middle:.digits$} ({least:.digits$}–{greatest:.digits$}{few})")
        }
    }
}

/// What of the machine was not as it should have been in any of these runs.
fn limits(runs: &[&Record]) -> String {
    let any = |is_so: fn(&Record) -> bool| runs.iter().any(|record| is_so(record));
    let mut limits = String::new();
    if any(|record| record.usage.cpu_bound) {
        limits += " **bound**";
    } else if any(|record| record.usage.cpu_full) {
        limits += " *full*";
    }
    if any(|record| record.emulator_late_p99_us.is_some_and(|late| late > LATE_US)) {
        limits += " *late*";
    }
    let overrun = |record: &Record| {
        let came = record.rx_packets.unwrap_or(u64::MAX) as f64;
        record.lost_socket as f64 >= OVERRUN * came.max(1.0)
    };
    if any(overrun) {
        limits += " *overrun*";
    }
    limits
}

/// What became of a feed's products.
fn latencies(text: &mut String, here: &[&Record]) -> std::fmt::Result {
    writeln!(
        text,
        "| program | products | Σ size / Σ latency, Mbit/s | ideal | Σ latency × ideal | worst receiver × | buffer | transmission | arrival, repair | turn, check | clocks µs |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )?;
    for name in programs(here) {
        let runs: Vec<&Record> =
            here.iter().copied().filter(|record| record.program == name).collect();
        let spread = |figure: &str, digits: usize| spread(&runs, figure, digits);
        let middle =
            |figure: &str| Some(median(runs.iter().filter_map(|run| run.figure(figure)))?[0]);
        let shown = |value: Option<f64>, digits: usize, unit: &str| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}{unit}"))
        };
        let parts = ["buffer_s", "transmission_s", "arrival_s", "delivery_s"].map(middle);
        let whole = parts.iter().flatten().sum::<f64>().max(1e-9);
        let parts = parts.map(|part| shown(part.map(|part| 100.0 * part / whole), 1, " %"));
        let clock = middle("clock_error_us")
            .map(|error| format!("{} ± {error:.0}", shown(middle("clock_us"), 0, "")));
        writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} | {} | {} |",
            shown(middle("products"), 0, ""),
            spread("throughput_mbit", 1),
            shown(middle("ideal_mbit"), 1, ""),
            spread("latency_over_ideal", 3),
            spread("worst_over_ideal", 3),
            parts.join(" | "),
            clock.unwrap_or_else(|| "-".to_owned()),
        )?;
    }
    writeln!(text)
}

/// A field of a cell, for people.
pub(crate) fn shown(cell: &Cell, name: &str) -> String {
    cell.field(name).map_or("none".to_owned(), |value| value_shown(name, &value))
}

fn value_shown(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(share) if name == "loss" || name == "reorder" => {
            // So that no two shares that differ look alike; further digits are of the multiplication.
            let percent = format!("{:.10}", share.as_f64().unwrap_or(0.0) * 100.0);
            format!("{} %", percent.trim_end_matches('0').trim_end_matches('.'))
        }
        value => value.to_string(),
    }
}

fn in_words(name: &str) -> String {
    let known = WORDS.iter().find(|(known, _)| *known == name);
    known.map_or_else(|| name.replace('_', " "), |(_, words)| (*words).to_owned())
}

fn drawing(plot: &Plot, records: &[Record]) -> Drawing {
    let records: Vec<&Record> = records.iter().filter(|record| plot.shows(&record.cell)).collect();
    let (mut columns, mut names): (Vec<String>, Vec<String>) = Default::default();
    for record in &records {
        let column = shown(&record.cell, &plot.x);
        if !columns.contains(&column) {
            columns.push(column);
        }
        if !names.contains(&record.program) {
            names.push(record.program.clone());
        }
    }
    let values = |figure: &str, program: Option<&str>| {
        let point = |column: &String| {
            let here = records.iter().filter(|r| program.is_none_or(|name| r.program == name));
            let here = here.filter(|r| !r.lab_failed && shown(&r.cell, &plot.x) == *column);
            let here: Vec<_> = here.collect();
            let spread = median(here.iter().filter_map(|record| record.figure(figure)));
            let beyond = |spread: [f64; 3]| match BEYOND_ONE.contains(&figure) {
                true => spread.map(|ratio| (ratio - 1.0) * 100.0),
                false => spread,
            };
            let failed =
                here.iter().filter(|r| r.figure(figure).is_none() && !r.trouble.is_empty());
            Point { spread: spread.map(beyond), failed: failed.count(), runs: here.len() }
        };
        columns.iter().map(point).collect::<Vec<_>>()
    };
    let mut lines: Vec<_> =
        names.iter().map(|name| (name.clone(), values(&plot.y, Some(name)))).collect();
    if plot.y == "throughput_mbit" {
        let ideal =
            values("ideal_mbit", None).into_iter().map(|point| Point { failed: 0, ..point });
        lines.push(("ideal FIFO".to_owned(), ideal.collect()));
    }
    let (x, y) = (in_words(&plot.x), in_words(&plot.y));
    let title = plot.title.clone().unwrap_or_else(|| {
        let what = y.rsplit_once(", ").map_or(y.as_str(), |(what, _)| what);
        let told = |(name, value): (&String, &Value)| match name.as_str() {
            "size" => format!("file of {}", value_shown(name, value)),
            _ => format!("{} {}", in_words(name), value_shown(name, value)),
        };
        let only: Vec<String> = plot.only.iter().map(told).collect();
        let only = if only.is_empty() { String::new() } else { format!("; {}", only.join(", ")) };
        format!("{what} against {x}{only}")
    });
    Drawing { title, x, y, columns, lines, bars: plot.bars }
}

#[cfg(test)]
mod tests {
    use super::{Drawing, Point, drawing, heading, latencies, limits, lost, processor, row};
    use crate::experiment::{Cell, Plot};
    use crate::meter::Usage;
    use crate::record::{Figures, Latencies, Record};
    use crate::units::Size;

    /// What one run came to.
    fn one(value: f64) -> Point {
        Point { spread: Some([value; 3]), failed: 0, runs: 1 }
    }

    #[test]
    fn a_run_that_failed_is_seen_where_the_others_stand() {
        let run = |wall_s: Option<f64>| {
            let trouble = wall_s.map_or("timed out".to_owned(), |_| String::new());
            Record { program: "uftp".to_owned(), wall_s, trouble, ..Record::default() }
        };
        let runs = [run(Some(5.0)), run(None), run(Some(7.0)), run(None)];
        let mut text = String::new();
        row(&mut text, "uftp", 4, &runs.iter().collect::<Vec<_>>()).unwrap();
        row(&mut text, "uftp", 2, &[&runs[0], &runs[1]]).unwrap();
        assert!(text.contains("| 6.00 (5.00–7.00, 2 of 4) |"), "{text}");
        assert!(text.contains("| 5.00 (1 of 2) |"), "{text}");
        let (x, y) = ("loss".to_owned(), "wall_s".to_owned());
        let plot = Plot { x, y, only: Default::default(), title: None, bars: false };
        let point = Point { spread: Some([6.0, 5.0, 7.0]), failed: 2, runs: 4 };
        assert_eq!(drawing(&plot, &runs).lines, [("uftp".to_owned(), vec![point])]);
    }

    #[test]
    fn what_was_measured_and_not_delivered_stands_in_its_row() {
        let measured = |mbit: f64| {
            let figures = Figures { late_mbit: Some(mbit), ..Figures::default() };
            Record { goodput_mbit: Some(mbit), figures, ..Record::default() }
        };
        let runs = [measured(1.104), measured(1.096), measured(1.12)];
        let mut text = String::new();
        row(&mut text, "table1-tcp", 12, &runs.iter().collect::<Vec<_>>()).unwrap();
        assert!(text.starts_with("| table1-tcp | - | - | 1.10 (1.10–1.12) | - |"), "{text}");
    }

    #[test]
    fn what_a_gigabyte_costs_is_a_receivers_own() {
        let usage =
            Usage { sender_cpu_s: Some(1.0), receivers_cpu_s: Some(8.0), ..Usage::default() };
        let cell = Cell { size: Size(500_000_000), receivers: 4, ..Cell::default() };
        let run = Record { wall_s: Some(40.0), usage, cell, ..Record::default() };
        let mut text = String::new();
        row(&mut text, "downpour", 4, &[&run]).unwrap();
        assert!(text.contains("| 1.00 / 8.00 | 2.00 / 4.00 |"), "{text}");
    }

    #[test]
    fn a_single_run_has_no_spread() {
        let run = |ratio| {
            let latencies = Latencies { latency_over_ideal: Some(ratio), ..Latencies::default() };
            Record { wall_s: Some(64.14), latencies, ..Record::default() }
        };
        let (first, second) = (run(1.155), run(1.165));
        let mut text = String::new();
        latencies(&mut text, &[&first]).unwrap();
        assert!(text.contains("| 1.155 |") && !text.contains("(1.155"), "{text}");
        latencies(&mut text, &[&first, &second]).unwrap();
        assert!(text.contains("| 1.160 (1.155–1.165) |"), "{text}");
        row(&mut text, "downpour", 1, &[&first]).unwrap();
        assert!(text.contains("| 64.14 |"), "{text}");
    }

    #[test]
    fn what_no_run_came_to_is_no_zero() {
        let failed = Record { lab_failed: true, program: "b".to_owned(), ..Record::default() };
        let latencies_of = Latencies { products: Some(7), ..Latencies::default() };
        let untimed =
            Record { latencies: latencies_of, program: "a".to_owned(), ..Record::default() };
        let mut text = String::new();
        latencies(&mut text, &[&failed, &untimed]).unwrap();
        let rows: Vec<&str> = text.lines().skip(2).collect();
        // In the order of the runs.
        assert_eq!(rows[0], format!("| b |{}", " - |".repeat(10)));
        assert_eq!(rows[1], format!("| a | 7 |{}", " - |".repeat(9)));
    }

    #[test]
    fn what_went_wrong_stays_in_its_row() {
        let trouble = "the lab failed: tc: Error: a\n   | b\n".to_owned();
        let run = Record { trouble, lab_failed: true, ..Record::default() };
        let mut text = String::new();
        row(&mut text, "uftp", 1, &[&run]).unwrap();
        assert!(text.ends_with("| the lab failed: tc: Error: a / b |\n"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn what_the_lab_lost_is_a_share_of_what_should_have_come() {
        let run = |rx_packets, lost_own| Record { rx_packets, lost_own, ..Record::default() };
        let known = [run(Some(985), 15), run(Some(9000), 0)];
        let told = "The lab lost 15 packets by itself in all runs together";
        assert_eq!(
            lost(&known),
            format!(
                "{told}, 0.1500 % of the 10000 that came to its machines or would have; in one run at most 1.5000 %"
            )
        );
        let [first, _] = known;
        assert_eq!(lost(&[first, run(None, 0)]), told);
    }

    #[test]
    fn cells_that_differ_by_little_are_not_one() {
        let run = |loss, wall_s| {
            let cell = Cell { loss, ..Cell::default() };
            Record { program: "a".to_owned(), cell, wall_s: Some(wall_s), ..Record::default() }
        };
        let runs = [run(0.0, 1.0), run(0.000_001, 2.0), run(0.000_004, 3.0), run(0.07, 4.0)];
        let (x, y) = ("loss".to_owned(), "wall_s".to_owned());
        let plot = Plot { x, y, only: Default::default(), title: None, bars: false };
        let Drawing { columns, lines, .. } = drawing(&plot, &runs);
        assert_eq!(columns, ["0 %", "0.0001 %", "0.0004 %", "7 %"]);
        assert_eq!(lines[0].1, [1.0, 2.0, 3.0, 4.0].map(one));
        assert_eq!(heading(&runs[1].cell, ["loss"].into_iter()), "loss 0.0001 %");
    }

    #[test]
    fn a_drawing_speaks_in_words() {
        let plot = |y: &str| Plot {
            x: "loss".to_owned(),
            y: y.to_owned(),
            only: [("size".to_owned(), "64MiB".into())].into_iter().collect(),
            title: None,
            bars: false,
        };
        let latencies = Latencies {
            throughput_mbit: Some(20.0),
            ideal_mbit: Some(25.0),
            ..Latencies::default()
        };
        let run = Record {
            program: "downpour".to_owned(),
            wall_over_bound: Some(1.25),
            latencies,
            ..Record::default()
        };
        let bound = drawing(&plot("wall_over_bound"), std::slice::from_ref(&run));
        assert_eq!(
            bound.title,
            "wall time beyond the bound against loss at each receiver; file of 64MiB"
        );
        assert_eq!(bound.y, "wall time beyond the bound, %");
        assert_eq!(bound.lines, [("downpour".to_owned(), vec![one(25.0)])]);
        let products = drawing(&plot("throughput_mbit"), &[run]);
        assert_eq!(products.lines[1], ("ideal FIFO".to_owned(), vec![one(25.0)]));
        let sizes = Plot { x: "size".to_owned(), only: Default::default(), ..plot("wall_s") };
        assert_eq!(drawing(&sizes, &[]).title, "wall time against size of the file");
    }

    #[test]
    fn what_found_a_full_socket_buffer_is_told_where_it_is_much() {
        let run = |rx_packets, lost_socket| Record { rx_packets, lost_socket, ..Record::default() };
        let (none, few, many) = (run(Some(0), 0), run(Some(10_000), 99), run(Some(10_000), 100));
        assert_eq!(limits(&[&none, &few, &run(None, 100)]), "");
        assert_eq!(limits(&[&few, &many]), " *overrun*");
    }

    #[test]
    fn a_processor_is_more_than_its_name() {
        let told =
            |model| format!("cpu family\t: 25\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n");
        let two = told(17) + &told(18);
        assert_eq!(processor(&two), "AMD EPYC, family 25, model 17");
        assert_eq!(processor(""), "unknown, family unknown, model unknown");
    }

    #[test]
    fn one_run_of_a_machine_that_was_elsewhere_is_told() {
        let late_by = |us| Record { emulator_late_p99_us: us, ..Record::default() };
        let (none, little, much) = (late_by(None), late_by(Some(900.0)), late_by(Some(4255.0)));
        assert_eq!(limits(&[&none, &little]), "");
        assert_eq!(limits(&[&little, &much, &none]), " *late*");
        let mut full = much.clone();
        full.usage.cpu_full = true;
        assert_eq!(limits(&[&full]), " *full* *late*");
        full.usage.cpu_bound = true;
        assert_eq!(limits(&[&little, &full]), " **bound** *late*");
    }
}
