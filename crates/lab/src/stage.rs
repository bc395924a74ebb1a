//! One run of one program on one network: what it may start, when its clock runs, what counts as delivered.
//!
//! 1. A program's adapter starts its receivers, lets them [settle](Stage::settle), and starts its senders.
//!    The first of those starts the clock.
//! 2. It waits for what ends a delivery: the receivers' programs, or, where those are daemons, the finished
//!    file in its place.
//! 3. Whatever still runs then is killed. Every receiver's file is compared with the payload, byte by byte.
//!
//! What programs say goes to files in the run's folder, on tmpfs like the payload.

use crate::experiment::{Cell, Happening};
use crate::feed::Product;
use crate::footprint::Footprint;
use crate::meter::{Meter, Usage};
use crate::network::{Host, Link, Network};
use crate::programs::tool;
use crate::record::{Figures, Latencies};
use crate::{shell, traced};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// What the file is called, at the sender and everywhere.
pub(crate) const PAYLOAD: &str = "payload.bin";
/// Traces of the sender and of the first receiver, in the run's folder.
pub(crate) const SENDER_TRACE: &str = "sender.trace.zst";
pub(crate) const RECEIVER_TRACE: &str = "receiver.trace.zst";
/// How often the stage looks whether something has ended: the clock's grain.
const LOOK: Duration = Duration::from_millis(2);
/// What our own receivers say when they listen.
pub(crate) const LISTENING: &str = "listening";
/// Time for others to listen.
const SETTLE: Duration = Duration::from_millis(1000);
const COMPARE_BYTES: usize = 1 << 20;
/// Of what a program said, when it failed.
const LAST_WORDS: usize = 200;
/// Starts a program of root's whose socket buffers are no larger than the kernel lets everybody's be.
const WITHOUT_NET_ADMIN: &[&str] =
    &["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"];

/// How it is known that a receiver has the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The lab compares the files.
    Compared,
    /// The program has verified what it discarded.
    Vouched,
    /// Nobody looked: a ceiling, not a delivery.
    Unproved,
}

/// A program under way.
struct Running {
    what: String,
    /// The receiver that it runs on; the sender otherwise.
    receiver: Option<usize>,
    child: Child,
    ended: Option<Instant>,
    failed: bool,
    /// Senders are waited for without it.
    aside: bool,
}

/// A program that a receiver starts when the sender is at work already.
struct Later {
    at: Duration,
    receiver: usize,
    program: String,
    args: Vec<String>,
}

/// A signal that a receiver's programs get.
struct Pause {
    at: Duration,
    receiver: usize,
    signal: Signal,
}

/// See the top of this file.
pub(crate) struct Stage<'a> {
    pub(crate) network: &'a Network,
    pub(crate) cell: &'a Cell,
    /// The file to send.
    pub(crate) payload: &'a Path,
    /// What to insert, and when, in a cell with a feed.
    pub(crate) products: &'a [Product],
    /// What came of that; set by the program's adapter.
    pub(crate) latencies: Latencies,
    /// Set by the program's adapter, if not compared.
    pub(crate) proof: Proof,
    /// Set by the program's adapter where what is started next needs `CAP_NET_ADMIN`: for nftables, or for a congestion
    /// control that the kernel does not allow to everybody.
    pub(crate) net_admin: bool,
    /// Whether programs that can trace what they send and receive shall: it is kept with the logs.
    pub(crate) traced: bool,
    /// Where logs are kept, if they are.
    pub(crate) logs: Option<PathBuf>,
    /// Arguments that the experiment adds to those of the sender's program.
    pub(crate) more: &'a [String],
    /// What befalls receivers.
    pub(crate) happenings: &'a [Happening],
    /// What becomes of the sender's link, and when; in order of time.
    pub(crate) changes: Vec<(Duration, Link)>,
    /// What else there is to say of the run.
    pub(crate) remark: String,
    /// What the program's adapter has measured.
    pub(crate) figures: Figures,
    /// Of the file, what came before the program ended: all but where its adapter says otherwise.
    share: f64,
    footprint: &'a Footprint,
    folder: PathBuf,
    limit: Duration,
    running: Vec<Running>,
    /// Programs of receivers that join later.
    later: Vec<Later>,
    /// Receivers that stand still, and until when.
    pauses: Vec<Pause>,
    started: Option<(Instant, Meter)>,
    /// When what was waited for last was over: what adapters do afterwards is no program's.
    over: Option<Meter>,
    delivered: Vec<Option<Instant>>,
    /// Of receivers' programs.
    troubles: Vec<String>,
}

/// What a run came to.
pub(crate) struct Outcome {
    /// Receivers that have all, as far as that was looked at.
    pub(crate) complete: usize,
    /// From the start of the sender to the last delivery.
    pub(crate) wall_s: Option<f64>,
    /// The same for each receiver.
    pub(crate) delivered_s: Vec<Option<f64>>,
    /// From the start of the sender until everything was over.
    pub(crate) usage: Usage,
    /// What went wrong; empty otherwise.
    pub(crate) trouble: String,
    pub(crate) remark: String,
    pub(crate) figures: Figures,
    /// Of the file, what came: what was on the wire is for so much.
    pub(crate) share: f64,
    pub(crate) latencies: Latencies,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(
        footprint: &'a Footprint,
        network: &'a Network,
        cell: &'a Cell,
        payload: &'a Path,
        limit: Duration,
    ) -> io::Result<Self> {
        let folder = footprint.scratch().join("run");
        // Of the run before.
        let _ = fs::remove_dir_all(&folder);
        for i in 0..cell.receivers {
            fs::create_dir_all(folder.join(format!("r{i}")))?;
        }
        let delivered = vec![None; cell.receivers];
        let (running, started, troubles) = (Vec::new(), None, Vec::new());
        let (later, pauses, over) = (Vec::new(), Vec::new(), None);
        let (proof, changes, remark) = (Proof::Compared, Vec::new(), String::new());
        let figures = Figures::default();
        #[rustfmt::skip]
        let stage = Self {
            network, cell, payload, products: &[], latencies: Latencies::default(), proof, net_admin: false, traced: false, logs: None, more: &[], happenings: &[], changes, remark,
            figures, share: 1.0, footprint, folder,
            limit, running, later, pauses, started, over, delivered, troubles,
        };
        Ok(stage)
    }

    /// A file of this run that is no receiver's.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The folder of a receiver.
    pub(crate) fn folder(&self, receiver: usize) -> PathBuf {
        self.folder.join(format!("r{receiver}"))
    }

    /// The file that a receiver should end up with.
    pub(crate) fn copy(&self, receiver: usize) -> PathBuf {
        self.folder(receiver).join(PAYLOAD)
    }

    /// This share of the link's rate, in kbit/s, for a program that must be told; a rate beyond any when the link has none.
    pub(crate) fn told_kbit(&self, share: f64) -> u64 {
        self.cell.rate.map_or(10_000_000, |rate| rate.kbit(share))
    }

    /// Starts a program on a receiver.
    pub(crate) fn receiver(&mut self, i: usize, program: &str, args: &[&str]) -> io::Result<()> {
        let joins_at = self.happenings.iter().find(|h| h.receivers.contains(&i));
        let Some(at) = joins_at.and_then(|happening| happening.joins_at) else {
            return self.start(Some(i), program, args);
        };
        let (program, args) = (program.to_owned(), args.iter().copied().map(str::to_owned));
        self.later.push(Later { at: at.0, receiver: i, program, args: args.collect() });
        Ok(())
    }

    /// Receivers that are there when the sender starts.
    pub(crate) fn receivers_at_start(&self) -> usize {
        let late = self.happenings.iter().filter(|happening| happening.joins_at.is_some());
        let late = late.flat_map(|happening| &happening.receivers);
        self.cell.receivers - late.filter(|i| **i < self.cell.receivers).count()
    }

    /// Starts a program on the sender, and with the first of them the clock.
    pub(crate) fn sender(&mut self, program: &str, args: &[&str]) -> io::Result<()> {
        self.start_clock();
        let more = self.more.iter().map(String::as_str);
        self.start(None, program, &args.iter().copied().chain(more).collect::<Vec<_>>())
    }

    /// Starts a program on the sender that must be there before the clock runs.
    pub(crate) fn beforehand(&mut self, program: &str, args: &[&str]) -> io::Result<()> {
        self.start(None, program, args)
    }

    /// Starts a program on the sender that no delivery waits for; what it is told is its own.
    pub(crate) fn aside(&mut self, program: &str, args: &[&str]) -> io::Result<()> {
        self.start(None, program, args)?;
        if let Some(running) = self.running.last_mut() {
            running.aside = true;
        }
        Ok(())
    }

    /// Gives the receivers time to listen.
    pub(crate) fn settle(&self) {
        std::thread::sleep(SETTLE);
    }

    /// Waits until our own programs on these receivers listen, which say so.
    pub(crate) fn wait_listening(&mut self, receivers: Range<usize>) -> io::Result<()> {
        self.wait("receivers to listen", |stage| {
            receivers.clone().all(|i| stage.said(i, LISTENING) || stage.has_failed(i))
        })
    }

    /// Starts the clock, for who sends from elsewhere than from the sender.
    pub(crate) fn start_clock(&mut self) {
        if self.started.is_none() {
            let meter = Meter::read(self.footprint);
            self.started = Some((Instant::now(), meter));
            for happening in self.happenings {
                let Some(at) = happening.pauses_at else { continue };
                let until = at.0 + happening.pauses_for.0;
                for &receiver in &happening.receivers {
                    self.pauses.push(Pause { at: at.0, receiver, signal: Signal::STOP });
                    self.pauses.push(Pause { at: until, receiver, signal: Signal::CONT });
                }
            }
        }
    }

    /// When that was, if it was.
    pub(crate) fn clock_began(&self) -> Option<Instant> {
        self.started.as_ref().map(|(at, _)| *at)
    }

    fn start(&mut self, receiver: Option<usize>, program: &str, args: &[&str]) -> io::Result<()> {
        let path =
            tool(program).ok_or_else(|| io::Error::other(format!("{program}: not found")))?;
        let host: &Host = receiver.map_or(&self.network.sender, |i| &self.network.receivers[i]);
        let place = receiver.map_or("s".to_owned(), |i| format!("r{i}"));
        let what = format!("{program} on {place} ({})", self.running.len());
        let group = self.footprint.group(if receiver.is_some() { "receivers" } else { "sender" });
        let path = path.to_str().ok_or_else(|| io::Error::other("an odd path"))?;
        let slow = receiver.and_then(|i| self.slow_disk(i)).unwrap_or_default();
        let rights: &[&str] = if self.net_admin { &[] } else { WITHOUT_NET_ADMIN };
        let slow = slow.iter().map(String::as_str);
        let line: Vec<&str> = rights.iter().copied().chain(slow).chain([path]).collect();
        let mut command = host.command(group.as_deref(), line[0]);
        command.args(&line[1..]).args(args).current_dir(&self.folder).stdin(Stdio::null());
        command.env("DOWNPOUR_HOME", self.file(&format!("{place}.home")));
        command.env_remove("DOWNPOUR_PORTS");
        let log = File::create(self.log(self.running.len()))?;
        command.stdout(log.try_clone()?).stderr(log);
        let child = command.spawn()?;
        self.running.push(Running {
            what,
            receiver,
            child,
            ended: None,
            failed: false,
            aside: false,
        });
        Ok(())
    }

    /// What to start a receiver's program by, so that its writes take longer.
    fn slow_disk(&self, receiver: usize) -> Option<Vec<String>> {
        let slow = self.happenings.iter().filter(|h| h.receivers.contains(&receiver));
        let takes = slow.filter_map(|happening| happening.writes_take).next()?;
        let inject = format!("inject=pwrite64:delay_enter={}", takes.0.as_micros());
        let strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e"];
        let words = strace.into_iter().chain(["trace=pwrite64", "-e", &inject]);
        Some(words.map(str::to_owned).collect())
    }

    /// Copies what the first receiver and the last program on the sender said, one that ran aside only where there is no other, and
    /// when segments came.
    fn keep_logs(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let first = self.running.iter().position(|running| running.receiver.is_some());
        let senders = self.running.iter().enumerate().filter(|(_, r)| r.receiver.is_none());
        let sender =
            senders.max_by_key(|(number, r)| (!r.aside, *number)).map(|(number, _)| number);
        let logs = [("receiver.log", first), ("sender.log", sender)];
        for (name, number) in logs.into_iter().filter_map(|(name, n)| Some((name, n?))) {
            fs::copy(self.log(number), folder.join(name))?;
        }
        let times = self.file("times0.csv");
        if times.exists() {
            fs::copy(times, folder.join("times.csv"))?;
        }
        if self.traced && self.file(RECEIVER_TRACE).exists() {
            fs::write(folder.join("rates.csv"), traced::sent(&self.trace(SENDER_TRACE)?))?;
            fs::write(folder.join("times.csv"), traced::received(&self.trace(RECEIVER_TRACE)?))?;
        }
        Ok(())
    }

    /// The lines of a trace that a program has written into the run's folder.
    pub(crate) fn trace(&self, name: &str) -> io::Result<String> {
        shell::run("zstd", &["-dc", &self.file(name).to_string_lossy()])
    }

    fn log(&self, number: usize) -> PathBuf {
        self.file(&format!("log{number}"))
    }

    /// Waits until the programs on all receivers have ended; one has delivered when all of its own ended well.
    pub(crate) fn wait_receivers(&mut self) -> io::Result<()> {
        self.wait("receivers to end", |stage| {
            for i in 0..stage.delivered.len() {
                stage.delivered[i] = stage.ended_well(i);
            }
            stage.have_ended()
        })
    }

    /// Whether the programs of all receivers, also of those that join late, have ended.
    fn have_ended(&self) -> bool {
        let ended = |r: &Running| r.receiver.is_none() || r.ended.is_some();
        self.later.is_empty() && self.running.iter().all(ended)
    }

    /// As [`wait_receivers`](Self::wait_receivers), for programs that linger: one has delivered when its copy had the payload's
    /// length, or, where none is kept, when these words were said, if it ended well afterwards.
    pub(crate) fn wait_whole(&mut self, words: &str) -> io::Result<()> {
        let whole_bytes = self.payload.metadata()?.len();
        let mut whole = vec![None; self.delivered.len()];
        let waited = self.wait("receivers to end", |stage| {
            for (i, at) in whole.iter_mut().enumerate().filter(|(_, at)| at.is_none()) {
                let here = match stage.proof {
                    Proof::Compared => {
                        stage.copy(i).metadata().is_ok_and(|c| c.len() >= whole_bytes)
                    }
                    Proof::Vouched | Proof::Unproved => stage.said(i, words),
                };
                *at = here.then(Instant::now);
            }
            stage.have_ended()
        });
        // Also where it was waited for in vain: the others have theirs.
        for (i, at) in whole.into_iter().enumerate() {
            self.delivered[i] = self.ended_well(i).and(at);
        }
        waited
    }

    /// When the last of a receiver's programs ended, if all have ended well.
    fn ended_well(&self, receiver: usize) -> Option<Instant> {
        let theirs = self.running.iter().filter(|running| running.receiver == Some(receiver));
        let ended = theirs.map(|running| running.ended.filter(|_| !running.failed));
        ended.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Measures what comes to the first receiver between two times of the clock, while all receivers are at work:
    /// bits a second.
    pub(crate) fn measure(&mut self, from: Duration, time: Duration) -> io::Result<f64> {
        let network = self.network;
        let mut seen = Vec::new();
        for at in [from, from + time] {
            let Some((begun, _)) = self.started else { break };
            self.wait("the time to measure", |_| begun.elapsed() >= at)?;
            seen.push((network.receivers[0].arrived_bytes("eth0")?, Instant::now()));
        }
        if self.running.iter().any(|r| r.receiver.is_some() && r.ended.is_some()) {
            return Err(io::Error::other("a receiver ended before it had been measured"));
        }
        let [(before, begun), (after, ended)] = seen[..] else { return Ok(0.0) };
        Ok((after - before) as f64 * 8.0 / (ended - begun).as_secs_f64())
    }

    /// Waits until the programs on the sender that the clock saw start have ended.
    pub(crate) fn wait_senders(&mut self) -> io::Result<()> {
        self.wait("the sender to end", |stage| {
            stage.running.iter().all(|r| r.receiver.is_some() || r.aside || r.ended.is_some())
        })
    }

    /// Waits until what runs aside has ended; whether programs on the sender that do not were still at work then.
    pub(crate) fn wait_aside(&mut self) -> io::Result<bool> {
        self.wait("what runs aside to end", |stage| {
            stage.running.iter().all(|r| !r.aside || r.ended.is_some())
        })?;
        Ok(self.running.iter().any(|r| r.receiver.is_none() && !r.aside && r.ended.is_none()))
    }

    /// Lets so much time pass.
    pub(crate) fn pass(&mut self, time: Duration) -> io::Result<()> {
        let until = Instant::now() + time;
        self.wait("the time to pass", |_| Instant::now() >= until)
    }

    /// Waits until every receiver's folder has a file of this name: the payload, where programs put it there
    /// when it is finished, or another that says so.
    pub(crate) fn wait_files(&mut self, name: &str) -> io::Result<()> {
        self.wait(name, |stage| {
            for i in 0..stage.delivered.len() {
                if stage.delivered[i].is_none() && stage.folder(i).join(name).exists() {
                    stage.delivered[i] = Some(Instant::now());
                }
            }
            stage.is_settled()
        })
    }

    /// Waits until the program on each receiver has said this.
    pub(crate) fn wait_words(&mut self, words: &str) -> io::Result<()> {
        self.wait(words, |stage| {
            for number in 0..stage.running.len() {
                let Some(i) = stage.running[number].receiver else { continue };
                if stage.delivered[i].is_none() && stage.has_said(number, words) {
                    stage.delivered[i] = Some(Instant::now());
                }
            }
            stage.is_settled()
        })
    }

    /// Whether a program on this receiver has said this.
    fn said(&self, receiver: usize, words: &str) -> bool {
        let mut theirs =
            (0..self.running.len()).filter(|n| self.running[*n].receiver == Some(receiver));
        theirs.any(|number| self.has_said(number, words))
    }

    fn has_said(&self, number: usize, words: &str) -> bool {
        let log = self.log(number);
        // Not there yet is not said yet. It is looked at often: what it weighs costs less than what it says.
        if log.metadata().map_or(0, |log| log.len()) < words.len() as u64 {
            return false;
        }
        let log = fs::read(log).unwrap_or_default();
        log.windows(words.len()).any(|window| window == words.as_bytes())
    }

    /// The senders have ended, and by that all is delivered.
    pub(crate) fn all_delivered(&mut self) {
        let now = Instant::now();
        self.delivered.iter_mut().for_each(|at| *at = Some(now));
    }

    /// Waits until the programs on the receivers have ended, after who sent to them: what counts as delivered is known.
    pub(crate) fn wait_ends(&mut self) -> io::Result<()> {
        self.wait("receivers to end", |stage| stage.have_ended())
    }

    /// All has come so much later, for programs that end before; by now this share of it had.
    pub(crate) fn all_later(&mut self, later: Duration, share: f64) {
        self.delivered.iter_mut().flatten().for_each(|at| *at += later);
        self.share = share;
    }

    fn wait(&mut self, what: &str, mut over: impl FnMut(&mut Self) -> bool) -> io::Result<()> {
        let begun = self.started.as_ref().map_or_else(Instant::now, |(at, _)| *at);
        self.over = None;
        loop {
            if let Err(e) = self.look() {
                // What else has ended by now has its time.
                over(self);
                return Err(e);
            }
            self.let_happen(begun.elapsed())?;
            if over(self) {
                self.over = self.started.as_ref().map(|_| Meter::read(self.footprint));
                return Ok(());
            }
            if begun.elapsed() > self.limit {
                let limit = self.limit.as_secs();
                return Err(io::Error::other(format!("waited {limit} s for {what}")));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What the experiment has foreseen for this moment.
    fn let_happen(&mut self, now: Duration) -> io::Result<()> {
        if self.started.is_none() {
            return Ok(());
        }
        if self.changes.first().is_some_and(|(at, _)| now >= *at) {
            self.network.reshape_sender(&self.changes.remove(0).1)?;
        }
        for pause in self.pauses.extract_if(.., |pause| now >= pause.at) {
            let theirs = self.running.iter().filter(|r| r.receiver == Some(pause.receiver));
            for running in theirs.filter(|running| running.ended.is_none()) {
                if let Some(pid) = Pid::from_raw(running.child.id() as i32) {
                    // Fails only when it has ended already.
                    let _ = kill_process(pid, pause.signal);
                }
            }
        }
        let due: Vec<Later> = self.later.extract_if(.., |later| now >= later.at).collect();
        for Later { receiver, program, args, .. } in due {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            self.start(Some(receiver), &program, &args)?;
        }
        Ok(())
    }

    /// Whether each receiver has delivered, or will not.
    fn is_settled(&self) -> bool {
        self.delivered.iter().enumerate().all(|(i, at)| at.is_some() || self.has_failed(i))
    }

    fn has_failed(&self, receiver: usize) -> bool {
        self.running.iter().any(|r| r.failed && r.receiver == Some(receiver))
    }

    /// Sees which programs have ended, and how.
    fn look(&mut self) -> io::Result<()> {
        for number in 0..self.running.len() {
            let running = &mut self.running[number];
            if running.ended.is_some() {
                continue;
            }
            let Some(status) = running.child.try_wait()? else { continue };
            running.ended = Some(Instant::now());
            if status.success() {
                continue;
            }
            running.failed = true;
            let (what, of_receiver) = (running.what.clone(), running.receiver.is_some());
            let text = format!("{what}: {status}: {}", self.last_words(number));
            if !of_receiver {
                return Err(io::Error::other(text));
            }
            // The others may go on.
            self.troubles.push(text);
        }
        Ok(())
    }

    fn last_words(&self, number: usize) -> String {
        let text = fs::read(self.log(number)).unwrap_or_default();
        last_words(&String::from_utf8_lossy(&text))
    }

    /// Ends what still runs, and judges. `ran` is what the program's adapter came to.
    pub(crate) fn judge(mut self, ran: io::Result<()>) -> io::Result<Outcome> {
        let after = self.over.take().unwrap_or_else(|| Meter::read(self.footprint));
        self.stop();
        let receivers = self.cell.receivers;
        let usage = self.started.as_ref().map(|(_, before)| after.since(before, receivers));
        if let Some(Err(e)) = self.logs.as_deref().map(|folder| self.keep_logs(folder)) {
            self.remark += &format!("its logs could not be kept: {e}");
        }
        let complete = match self.proof {
            Proof::Compared => self.compare()?,
            Proof::Vouched | Proof::Unproved => {
                self.delivered.iter().filter(|at| at.is_some()).count()
            }
        };
        let since = |at: &Instant| Some((*at - self.started.as_ref()?.0).as_secs_f64());
        let delivered_s: Vec<_> =
            self.delivered.iter().map(|at| at.as_ref().and_then(since)).collect();
        let last = delivered_s.iter().copied().flatten().reduce(f64::max);
        let all = complete == receivers && delivered_s.iter().all(Option::is_some);
        let mut troubles = std::mem::take(&mut self.troubles);
        troubles.extend(ran.err().map(|e| e.to_string()));
        Ok(Outcome {
            complete,
            wall_s: last.filter(|_| all && troubles.is_empty()),
            delivered_s,
            usage: usage.unwrap_or_default(),
            trouble: troubles.join("; "),
            remark: std::mem::take(&mut self.remark),
            figures: std::mem::take(&mut self.figures),
            share: self.share,
            latencies: std::mem::take(&mut self.latencies),
        })
    }

    /// How many receivers have the payload. What is not it was not delivered, whatever the receiver said.
    fn compare(&mut self) -> io::Result<usize> {
        let mut identical = 0;
        for i in 0..self.cell.receivers {
            let copy = self.copy(i);
            if copy.exists() && same(self.payload, &copy)? {
                identical += 1;
            } else if self.delivered[i].take().is_some() {
                self.troubles.push(format!("r{i}: its file is not the payload"));
            }
        }
        Ok(identical)
    }

    fn stop(&mut self) {
        for running in &mut self.running {
            if running.ended.is_none() {
                // Fails only when it has ended already.
                let _ = running.child.kill();
                let _ = running.child.wait();
            }
        }
        self.footprint.kill_programs();
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The last words of a text, whole ones, that are not longer in all than [`LAST_WORDS`].
fn last_words(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut bytes = 0;
    let fit = words.iter().rev().take_while(|word| {
        bytes += word.len() + 1;
        bytes <= LAST_WORDS
    });
    let skipped = words.len() - fit.count();
    let more = if skipped > 0 { "… " } else { "" };
    format!("{more}{}", words[skipped..].join(" "))
}

/// Whether two files have the same bytes.
fn same(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let mut left = one.metadata()?.len();
    if left != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut a, mut b) = (vec![0; COMPARE_BYTES], vec![0; COMPARE_BYTES]);
    while left > 0 {
        let len = left.min(COMPARE_BYTES as u64) as usize;
        one.read_exact(&mut a[..len])?;
        other.read_exact(&mut b[..len])?;
        if a[..len] != b[..len] {
            return Ok(false);
        }
        left -= len as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::{PAYLOAD, Proof, Running, Stage, last_words, same};
    use crate::experiment::Cell;
    use crate::footprint::Footprint;
    use crate::network::{Link, Network, Spec, missing};
    use std::fs;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn who_has_all_has_delivered_though_another_receiver_never_ends() {
        let (footprint, network) = (Footprint::of_a_test(), Network::of_a_test());
        fs::create_dir_all(footprint.scratch()).unwrap();
        let payload = footprint.scratch().join(PAYLOAD);
        fs::write(&payload, "all").unwrap();
        let cell = Cell { receivers: 2, ..Cell::default() };
        let mut stage = Stage::new(&footprint, &network, &cell, &payload, Duration::ZERO).unwrap();
        stage.proof = Proof::Vouched;
        stage.start_clock();
        let mut ends = Command::new("true").spawn().unwrap();
        ends.wait().unwrap();
        let never_ends = Command::new("sleep").arg("600").spawn().unwrap();
        for (i, child) in [ends, never_ends].into_iter().enumerate() {
            fs::write(stage.log(i), "it is whole").unwrap();
            let (what, receiver) = (format!("r{i}"), Some(i));
            let running =
                Running { what, receiver, child, ended: None, failed: false, aside: false };
            stage.running.push(running);
        }
        let waited = stage.wait_whole("whole");
        assert!(stage.over.is_none());
        let outcome = stage.judge(waited).unwrap();
        fs::remove_dir_all(footprint.scratch()).unwrap();
        assert!(outcome.trouble.starts_with("waited"), "{}", outcome.trouble);
        assert_eq!(outcome.complete, 1);
        assert!(matches!(outcome.delivered_s[..], [Some(_), None]));
        assert_eq!(outcome.wall_s, None);
    }

    #[test]
    fn what_is_not_the_payload_was_not_delivered() {
        let (footprint, network) = (Footprint::of_a_test(), Network::of_a_test());
        fs::create_dir_all(footprint.scratch()).unwrap();
        let payload = footprint.scratch().join(PAYLOAD);
        fs::write(&payload, "all").unwrap();
        let cell = Cell { receivers: 2, ..Cell::default() };
        let limit = Duration::from_secs(600);
        let mut stage = Stage::new(&footprint, &network, &cell, &payload, limit).unwrap();
        stage.wait_senders().unwrap();
        assert!(stage.over.is_none(), "nothing has begun");
        stage.start_clock();
        for (i, copy) in ["all", "alk"].into_iter().enumerate() {
            fs::write(stage.copy(i), copy).unwrap();
            let child = Command::new("true").spawn().unwrap();
            let (what, receiver) = (format!("r{i}"), Some(i));
            let running =
                Running { what, receiver, child, ended: None, failed: false, aside: false };
            stage.running.push(running);
        }
        stage.wait_receivers().unwrap();
        // Whatever an adapter reads afterwards.
        assert!(stage.over.is_some());
        let outcome = stage.judge(Ok(())).unwrap();
        fs::remove_dir_all(footprint.scratch()).unwrap();
        assert_eq!(outcome.trouble, "r1: its file is not the payload");
        assert_eq!(outcome.complete, 1);
        assert!(matches!(outcome.delivered_s[..], [Some(_), None]));
    }

    #[test]
    fn roots_programs_have_no_right_to_larger_buffers_but_where_they_need_it() {
        if let Some(why) = missing() {
            let name = "roots_programs_have_no_right_to_larger_buffers_but_where_they_need_it";
            return crate::skipped::skipped(name, &why);
        }
        let footprint = Footprint::of_a_test();
        fs::create_dir_all(footprint.scratch()).unwrap();
        let spec = Spec { receivers: vec![Link::default()], ..Spec::default() };
        let network = Network::build(&footprint, &spec).unwrap();
        let payload = footprint.scratch().join(PAYLOAD);
        let (cell, limit) = (Cell::default(), Duration::from_secs(600));
        let mut stage = Stage::new(&footprint, &network, &cell, &payload, limit).unwrap();
        for net_admin in [false, true] {
            stage.net_admin = net_admin;
            stage.receiver(0, "grep", &["CapEff", "/proc/self/status"]).unwrap();
        }
        stage.wait_receivers().unwrap();
        let told = [0, 1].map(|number| fs::read_to_string(stage.log(number)).unwrap());
        drop(stage);
        fs::remove_dir_all(footprint.scratch()).unwrap();
        // CAP_NET_ADMIN is the twelfth.
        let has = told.map(|told| {
            let all = told.split_whitespace().last().unwrap();
            u64::from_str_radix(all, 16).unwrap() >> 12 & 1
        });
        assert_eq!(has, [0, 1]);
    }

    #[test]
    fn last_words_are_whole_ones() {
        assert_eq!(last_words(" it\n ended \n"), "it ended");
        let told = last_words(&format!("first {}", "finishing group\n".repeat(20)));
        assert!(told.starts_with("… group finishing group"), "{told}");
        assert!(told.ends_with("finishing group") && told.len() <= 205, "{told}");
    }

    #[test]
    fn only_the_same_bytes_are_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        let long = vec![7; 2_500_000];
        let mut other = long.clone();
        other[2_400_000] = 8;
        let file = write("file", &long);
        assert!(same(&file, &write("copy", &long)).unwrap());
        assert!(!same(&file, &write("other", &other)).unwrap());
        assert!(!same(&file, &write("short", &long[1..])).unwrap());
    }
}
