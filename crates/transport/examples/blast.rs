//! How fast the data path is: one sender, N receivers in processes of their own, loopback multicast,
//! encryption on, no files and no control plane.
//!
//!     cargo run --release -p downpour-transport --example blast -- [--receivers 8] [--mib 4096]
//!         [--rate MBIT] [--loss SHARE] [--hash] [--no-offload] [--port PORT]
//!
//! The sender makes each block from a pattern and its number; a receiver's sink compares every byte and
//! discards. `--hash` adds BLAKE3 on both sides, as the product does. Pulls are served by the receiver
//! itself, from the pattern, and counted: a run with pulls has not measured the stream alone.
//!
//! How: the parent starts itself N times with `--as-receiver I`, waits until each says `ready`, sends, and
//! reads from each `done SECONDS CPU PULLED …`. Figures count bytes of data, not of the wire.

use downpour_proto::receiver::Pull;
use downpour_proto::sender::Delivery;
use downpour_proto::{
    BlockId, Epoch, Geometry, PULL_SHARE_DEFAULT, Parity, Rate, ReceiverConfig, ReceiverId, Rounds,
    SenderConfig, StreamId, Timestamp, rate,
};
use downpour_transport::session::{
    ReceiveEvent, ReceiveHandle, ReceiveSetup, SendEvent, SendHandle, SendSetup, StreamOut,
};
use downpour_transport::{
    Accepted, BlockSink, BlockSource, Codec, Group, Interface, MulticastReceiver, RecvOptions,
    Secret, SendOptions, SourceError, Spare, Suite, UnicastSocket,
};
use nix::sys::resource::{UsageWho, getrusage};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const GEOMETRY: Geometry = Geometry::IPV4;
const STREAM: StreamId = StreamId(0xb1a5_7000);
/// Both sides know it: what is measured is the cost of sealing, not its secrecy.
const SECRET: Secret = Secret::new([0x5a; 32]);
/// Blocks under way at each side: 94 MB.
const WINDOW_BLOCKS: usize = 64;

#[derive(Clone, Debug)]
struct Options {
    receivers: u32,
    mib: u64,
    rate_mbit: Option<u64>,
    loss: f64,
    hash: bool,
    offload: bool,
    port: u16,
    as_receiver: Option<u32>,
    feedback: Option<SocketAddr>,
}

impl Options {
    fn parse() -> Outcome<Self> {
        let mut options = Self {
            receivers: 8,
            mib: 4096,
            rate_mbit: None,
            loss: 0.0,
            hash: false,
            offload: true,
            port: 47_400,
            as_receiver: None,
            feedback: None,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
            match name.as_str() {
                "--receivers" => options.receivers = value()?.parse()?,
                "--mib" => options.mib = value()?.parse()?,
                "--rate" => options.rate_mbit = Some(value()?.parse()?),
                "--loss" => options.loss = value()?.parse()?,
                "--hash" => options.hash = true,
                "--no-offload" => options.offload = false,
                "--port" => options.port = value()?.parse()?,
                "--as-receiver" => options.as_receiver = Some(value()?.parse()?),
                "--feedback" => options.feedback = Some(value()?.parse()?),
                _ => return Err(format!("unknown option {name}").into()),
            }
        }
        Ok(options)
    }

    fn len(&self) -> u64 {
        self.mib << 20
    }

    fn blocks(&self) -> u32 {
        GEOMETRY.blocks(self.len()) as u32
    }

    fn group(&self) -> Outcome<Group> {
        Ok(Group::new(SocketAddr::from(([239, 255, 71, 90], self.port)), None)?)
    }
}

/// What block n is made of: the pattern, with n in the first word of each symbol.
struct Pattern {
    bytes: Vec<u8>,
    len: u64,
    hash: bool,
}

impl Pattern {
    fn new(options: &Options) -> Self {
        let mut state = 1u64;
        let mut bytes = vec![0; GEOMETRY.block_len() as usize];
        for word in bytes.chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.copy_from_slice(&state.to_le_bytes());
        }
        Self { bytes, len: options.len(), hash: options.hash }
    }

    fn fill(&self, block: BlockId, buf: &mut [u8]) {
        buf.copy_from_slice(&self.bytes[..buf.len()]);
        for symbol in buf.chunks_exact_mut(usize::from(GEOMETRY.symbol_len)) {
            symbol[..4].copy_from_slice(&block.number().to_le_bytes());
        }
    }

    fn matches(&self, block: BlockId, data: &[u8]) -> bool {
        let symbol_len = usize::from(GEOMETRY.symbol_len);
        let number = block.number().to_le_bytes();
        let pairs = data.chunks_exact(symbol_len).zip(self.bytes.chunks_exact(symbol_len));
        pairs.into_iter().all(|(got, want)| got[..4] == number && got[4..] == want[4..])
    }

    fn whole(&self, block: BlockId) -> Vec<u8> {
        let k = usize::from(GEOMETRY.symbols_of(block.number(), self.len));
        let mut bytes = vec![0; k * usize::from(GEOMETRY.symbol_len)];
        self.fill(block, &mut bytes);
        bytes
    }
}

impl BlockSource for Pattern {
    fn read(&self, block: BlockId, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.fill(block, buf);
        if self.hash {
            std::hint::black_box(blake3::hash(buf));
        }
        Ok(buf.len())
    }
}

struct Sink {
    pattern: Arc<Pattern>,
    left: AtomicU64,
    seen: Mutex<Vec<bool>>,
    done: Sender<Told>,
}

impl BlockSink for Sink {
    fn seed(&self, _: BlockId, _: &mut [u8]) -> Vec<Range<u16>> {
        Vec::new()
    }

    fn accept(&self, block: BlockId, data: &[u8]) -> Accepted {
        if self.pattern.hash {
            std::hint::black_box(blake3::hash(data));
        }
        assert!(self.pattern.matches(block, data), "{block} has wrong bytes");
        let mut seen = self.seen.lock().expect("no holder panics");
        assert!(!std::mem::replace(&mut seen[block.number() as usize], true), "{block} came twice");
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            let _ = self.done.send(Told::Complete);
        }
        Accepted::Kept
    }
}

/// What a receiver's main thread is told.
enum Told {
    Complete,
    Pull(Pull),
}

fn receive(options: &Options, id: u32) -> Outcome<()> {
    let pattern = Arc::new(Pattern::new(options));
    let (told, inbox) = channel();
    let orders = told.clone();
    let sink = Sink {
        pattern: Arc::clone(&pattern),
        left: AtomicU64::new(u64::from(options.blocks())),
        seen: Mutex::new(vec![false; options.blocks() as usize]),
        done: told,
    };
    let handle = ReceiveHandle::spawn(ReceiveSetup {
        machine: ReceiverConfig {
            geometry: GEOMETRY,
            stream: STREAM,
            me: ReceiverId(id),
            feedback: Box::new(Rounds),
            partial_blocks: WINDOW_BLOCKS,
            pulls: downpour_proto::receiver::PULLS_DEFAULT,
            resume: false,
            on_stream: true,
            greets: false,
            products: false,
        },
        seed: u64::from(id),
        stream: Some(MulticastReceiver::join(
            &options.group()?,
            &Interface::named("lo")?,
            &RecvOptions::default(),
        )?),
        unicast: false,
        feedback: options.feedback.ok_or("--feedback is missing")?,
        suite: Suite::preferred(),
        open: false,
        epoch: Epoch(0),
        secret: SECRET,
        packet: downpour_proto::PacketNumber(0),
        feedback_secret: Secret::new([id as u8; 32]),
        sink: Arc::new(sink),
        inject_loss: options.loss,
        spare: Spare::new(0),
        trace: None,
        on_event: Box::new(move |event| {
            if let ReceiveEvent::Pull(pull) = event {
                let _ = orders.send(Told::Pull(pull));
            }
        }),
    })?;
    println!("ready");
    let mut pulled = 0;
    while let Told::Pull(order) = inbox.recv()? {
        pulled += 1;
        serve(&handle, &pattern, order);
    }
    println!("complete");
    // The sender ends the session by closing our standard input; until then we answer its polls.
    std::io::stdin().read_line(&mut String::new())?;
    let snapshot = handle.stop();
    let (cpu, stats) = (cpu_seconds(UsageWho::RUSAGE_SELF)?, snapshot.stats);
    println!(
        "cpu {cpu:.2} s, pulled {pulled}, decoded {}, feedback {}, nacks {}, socket drops {}, no room {}, rejected {}",
        stats.decoded,
        stats.feedback,
        stats.nacks,
        snapshot.host_drops,
        stats.no_room,
        snapshot.rejects.total(),
    );
    Ok(())
}

fn serve(handle: &ReceiveHandle, pattern: &Pattern, order: Pull) {
    match order {
        Pull::Bytes { block } => handle.pulled_bytes(block, pattern.whole(block)),
        Pull::Repair { block, from, until } => {
            let symbol_len = usize::from(GEOMETRY.symbol_len);
            let mut symbols = vec![0; usize::from(until - from) * symbol_len];
            let made = Codec::new(GEOMETRY.code).encode(
                &pattern.whole(block),
                symbol_len,
                from..until,
                &mut symbols,
            );
            match made {
                Ok(()) => handle.pulled_repair(block, from..until, symbols),
                Err(_) => handle.pull_failed(block),
            }
        }
    }
}

fn cpu_seconds(who: UsageWho) -> Outcome<f64> {
    let usage = getrusage(who)?;
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// A receiver's process.
struct Remote {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Remote {
    fn start(options: &Options, id: u32, feedback: SocketAddr) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--as-receiver", &id.to_string(), "--feedback", &feedback.to_string()]);
        command.args(["--mib", &options.mib.to_string(), "--loss", &options.loss.to_string()]);
        command.args(["--port", &options.port.to_string()]);
        if options.hash {
            command.arg("--hash");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("a receiver without output")?;
        let mut remote = Self { child, lines: BufReader::new(stdout) };
        remote.expect("ready")?;
        Ok(remote)
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err("a receiver has died".into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn expect(&mut self, word: &str) -> Outcome<()> {
        let line = self.line()?;
        if line == word { Ok(()) } else { Err(format!("a receiver said {line:?}").into()) }
    }

    /// What it says at the end.
    fn finish(mut self) -> Outcome<String> {
        drop(self.child.stdin.take());
        let report = self.line()?;
        self.child.wait()?;
        Ok(report)
    }
}

fn sender(options: &Options, feedback: UnicastSocket) -> Outcome<SendHandle> {
    // Without --rate the controller finds the rate, as in the product.
    let controller: Box<dyn rate::RateController> = match options.rate_mbit {
        Some(mbit) => Box::new(rate::Fixed::new(Rate::from_mbps(mbit))),
        None => Box::new(rate::Auto::new(Timestamp::ZERO)),
    };
    Ok(SendHandle::spawn(SendSetup {
        machine: SenderConfig {
            geometry: GEOMETRY,
            stream: STREAM,
            epoch: Epoch(0),
            rate: controller,
            recovery: Box::new(Parity::default()),
            initial_rtt: Duration::from_millis(1),
            window_blocks: WINDOW_BLOCKS,
            pull_share: PULL_SHARE_DEFAULT,
        },
        stream: Some(StreamOut {
            group: options.group()?,
            interface: Interface::named("lo")?,
            options: SendOptions { offload: options.offload, ..SendOptions::default() },
        }),
        unicast: false,
        feedback,
        suite: Suite::preferred(),
        open: false,
        secret: SECRET,
        source: Arc::new(Pattern::new(options)),
        trace: None,
        on_event: Box::new(|event| {
            if !matches!(event, SendEvent::StreamDone) {
                eprintln!("{event:?}");
            }
        }),
    })?)
}

fn blast(options: &Options) -> Outcome<()> {
    let feedback = UnicastSocket::bind("127.0.0.1:0".parse()?, 1 << 20)?;
    let feedback_to = feedback.local_addr()?;
    let remotes: Outcome<Vec<Remote>> =
        (1..=options.receivers).map(|id| Remote::start(options, id, feedback_to)).collect();
    let mut remotes = remotes?;
    let sender = sender(options, feedback)?;
    for id in 1..=options.receivers {
        sender.join(ReceiverId(id), Delivery::Stream, Secret::new([id as u8; 32]));
    }
    let offer = |n| BlockId::data(n).map(|id| (id, GEOMETRY.symbols_of(n, options.len())));
    sender.offer((0..options.blocks()).filter_map(offer).collect());
    sender.finish();
    let cpu_before = cpu_seconds(UsageWho::RUSAGE_SELF)?;
    let begun = Instant::now();
    sender.start();
    let gbit = options.len() as f64 * 8.0 / 1e9;
    for (id, remote) in (1..).zip(&mut remotes) {
        remote.expect("complete")?;
        let seconds = begun.elapsed().as_secs_f64();
        println!("receiver {id}: complete by {seconds:.2} s, {:.2} Gbit/s", gbit / seconds);
    }
    let cpu = cpu_seconds(UsageWho::RUSAGE_SELF)? - cpu_before;
    let snapshot = sender.stop();
    for (id, remote) in (1..).zip(remotes) {
        println!("receiver {id}: {}", remote.finish()?);
    }
    let (gb, stats) = (options.len() as f64 / 1e9, snapshot.stats);
    let receivers_cpu = cpu_seconds(UsageWho::RUSAGE_CHILDREN)?;
    println!("sender: cpu {cpu:.2} s, {stats:?}, errors {}", snapshot.send_errors);
    println!(
        "CPU s/GB: sender {:.2}, each receiver {:.2}, all {:.2}",
        cpu / gb,
        receivers_cpu / gb / f64::from(options.receivers),
        (cpu + receivers_cpu) / gb,
    );
    let sent = stats.source_symbols + stats.repair_symbols;
    println!("symbols sent / source: {:.3}", sent as f64 / stats.source_symbols.max(1) as f64);
    Ok(())
}

fn main() -> Outcome<()> {
    let options = Options::parse()?;
    match options.as_receiver {
        Some(id) => receive(&options, id),
        None => {
            blast(&options)?;
            Ok(std::io::stdout().flush()?)
        }
    }
}
