//! A receiver under any sequence of authentic datagrams, commands, answers and waits.
//!
//! What must hold whatever a sender says: nothing panics, a block is completed only from k distinct
//! symbols, none is stored twice, no more blocks are kept than allowed, and each input causes a bounded
//! amount of work.

#![no_main]

use arbitrary::Arbitrary;
use downpour_proto::receiver::{Disposition, PULLS_DEFAULT, Pull, Work, WorkDone};
use downpour_proto::wire::{Advert, Header, Kind, OpenBlock, Poll};
use downpour_proto::{
    BlockId, BlockKind, Duration, Epoch, Geometry, PacketNumber, Receiver, ReceiverConfig,
    ReceiverId, Round, Rounds, StreamId, SymbolId, Timestamp,
};
use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, BTreeSet};

/// Few and small blocks, so that sequences meet in the same ones.
const GEOMETRY: Geometry = Geometry { symbol_len: 4, block_symbols: 8, ..Geometry::IPV4 };
const BLOCKS: u32 = 12;
const PARTIAL_BLOCKS: usize = 6;
/// Work, messages and events that one input may cause.
const OUTPUTS_MAX: usize = 4096;

#[derive(Arbitrary, Debug)]
enum Operation {
    Symbol {
        manifest: bool,
        number: u8,
        k: u8,
        symbol: u8,
        repair: bool,
        /// Stands in the seeds.
        _unused: bool,
    },
    Poll {
        round: u32,
        group: u32,
        grtt_us: u32,
        finished: bool,
        me: bool,
        share: u32,
        ends: (u8, u8),
        blocks: Vec<Listing>,
    },
    Advert {
        blocks: Vec<Listing>,
    },
    Raw {
        kind: u8,
        body: Vec<u8>,
    },
    Wait {
        micros: u32,
    },
    Timeout,
    OnStream {
        on: bool,
    },
    Ends {
        data: u8,
        manifest: u8,
        finished: bool,
    },
    Have {
        manifest: bool,
        first: u8,
        count: u8,
    },
    Drops {
        drops: u16,
    },
    Answer {
        which: u8,
        how: u8,
    },
}

#[derive(Arbitrary, Debug)]
struct Listing {
    manifest: bool,
    number: u8,
    k: u8,
    sent: u16,
    planned: u16,
}

impl Listing {
    fn open_block(&self) -> OpenBlock {
        let (block, k) = (block(self.manifest, self.number), k(self.k));
        let planned = k.max(self.planned % (SymbolId::END + 1));
        OpenBlock { block, k, sent: self.sent.min(planned), planned }
    }
}

fn block(manifest: bool, number: u8) -> BlockId {
    let number = u32::from(number) % BLOCKS;
    let id = if manifest { BlockId::manifest(number) } else { BlockId::data(number) };
    id.expect("a small number")
}

fn k(raw: u8) -> u16 {
    1 + u16::from(raw) % GEOMETRY.block_symbols
}

struct Driver {
    machine: Receiver,
    now: Timestamp,
    /// Symbols kept, by block.
    kept: BTreeMap<BlockId, BTreeSet<u16>>,
    stored: BTreeSet<BlockId>,
    waiting: Vec<Work>,
    resume: bool,
    /// Blocks for which an answer came when nothing was kept of them any more: the machine may count
    /// symbols that are not there, finds out at completion, and pulls the bytes.
    stale: BTreeSet<BlockId>,
}

impl Driver {
    fn new(resume: bool, seed: u64) -> Self {
        let config = ReceiverConfig {
            geometry: GEOMETRY,
            stream: StreamId(1),
            me: ReceiverId(1),
            feedback: Box::new(Rounds),
            partial_blocks: PARTIAL_BLOCKS,
            resume,
            on_stream: true,
            pulls: PULLS_DEFAULT,
            greets: false,
            // These are not resumed.
            products: !resume,
        };
        let now = Timestamp::ZERO;
        let machine = Receiver::new(config, seed, now);
        let (kept, stored) = (BTreeMap::new(), BTreeSet::new());
        Self { machine, now, kept, stored, waiting: Vec::new(), resume, stale: BTreeSet::new() }
    }

    /// A symbol of any length: only the last source symbol may be short, and only in a session of products.
    fn symbol(&mut self, kind: Kind, len: usize) {
        let Kind::Symbol { block, k, symbol } = kind else { return };
        let full = usize::from(GEOMETRY.symbol_len);
        let held = |driver: &Self| driver.kept.get(&block).map_or(0, BTreeSet::len);
        let before = held(self);
        self.datagram(kind, &[0; 8][..len]);
        let cut = !self.resume && symbol.raw() + 1 == k && (1..full).contains(&len);
        assert!(len == full || cut || held(self) == before, "{len} bytes were kept");
    }

    fn datagram(&mut self, kind: Kind, body: &[u8]) {
        let header = Header { epoch: Epoch(0), stream: StreamId(1), packet_low: 1, kind };
        let Ok(disposition) = self.machine.handle_datagram(self.now, self.now, &header, body)
        else {
            return;
        };
        if let (Disposition::Keep, Kind::Symbol { block, symbol, .. }) = (disposition, kind) {
            let new = self.kept.entry(block).or_default().insert(symbol.raw());
            // What is held from before may come by the stream while the disk is read.
            assert!(new || self.resume, "{block}: symbol {} kept twice", symbol.raw());
            assert!(!self.stored.contains(&block), "{block} is stored already");
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Symbol { manifest, number, k: raw, symbol, repair, .. } => {
                let k = k(raw);
                let symbol = if repair {
                    SymbolId::repair(u16::from(symbol))
                } else {
                    SymbolId::source(u16::from(symbol) % k)
                };
                let kind = Kind::Symbol { block: block(manifest, number), k, symbol };
                // Most are as long as they must be.
                let len = match u32::from(number) / BLOCKS {
                    short @ 16.. => short as usize - 16,
                    _ => usize::from(GEOMETRY.symbol_len),
                };
                self.symbol(kind, len);
            }
            Operation::Poll { round, group, grtt_us, finished, me, share, ends, blocks } => {
                let poll = Poll {
                    round: Round(round),
                    packet: PacketNumber(u64::from(round)),
                    sent_at: self.now,
                    group_size: group,
                    grtt: Duration::from_micros(u64::from(grtt_us)),
                    finished,
                    clr: me.then_some(ReceiverId(1)),
                    leaves: (share == 7).then_some(ReceiverId(1)),
                    report_share: share,
                    data_end: u32::from(ends.0) % BLOCKS,
                    manifest_end: u32::from(ends.1) % BLOCKS,
                    blocks: blocks.iter().take(128).map(Listing::open_block).collect(),
                };
                let mut body = Vec::new();
                poll.emit(&mut body);
                self.datagram(Kind::Poll, &body);
            }
            Operation::Advert { blocks } => {
                let blocks = blocks.iter().take(128).map(Listing::open_block).collect();
                let mut body = Vec::new();
                Advert { blocks }.emit(&mut body);
                self.datagram(Kind::Advert, &body);
            }
            Operation::Raw { kind, body } => {
                let receiver = ReceiverId(1);
                let kinds = [Kind::Poll, Kind::Advert, Kind::Probe, Kind::Feedback { receiver }];
                self.datagram(kinds[usize::from(kind) % kinds.len()], &body);
            }
            Operation::Wait { micros } => {
                self.now = self.now + Duration::from_micros(u64::from(micros));
                self.machine.handle_timeout(self.now);
            }
            Operation::Timeout => {
                if let Some(deadline) = self.machine.poll_timeout() {
                    self.now = self.now.max(deadline.at);
                }
                self.machine.handle_timeout(self.now);
            }
            Operation::OnStream { on } => self.machine.set_on_stream(self.now, on),
            Operation::Ends { data, manifest, finished } => {
                let (data, manifest) = (u32::from(data) % BLOCKS, u32::from(manifest) % BLOCKS);
                self.machine.update_ends(self.now, data, manifest, finished);
            }
            Operation::Have { manifest, first, count } => self.have(manifest, first, count),
            Operation::Drops { drops } => self.machine.set_host_drops(u64::from(drops)),
            Operation::Answer { which, how } => self.answer(which, how),
        }
    }

    fn have(&mut self, manifest: bool, first: u8, count: u8) {
        let kind = if manifest { BlockKind::Manifest } else { BlockKind::Data };
        let first = u32::from(first) % BLOCKS;
        let end = (first + u32::from(count)).min(BLOCKS);
        // Completing blocks are at the driver; it does not report those as held before.
        let busy = |number| {
            let id = block(manifest, number as u8);
            self.waiting
                .iter()
                .any(|work| matches!(work, Work::Complete { block, .. } if *block == id))
        };
        if !(first..end).any(busy) {
            self.machine.have(self.now, kind, first..end);
        }
    }

    fn answer(&mut self, which: u8, how: u8) {
        if self.waiting.is_empty() {
            return;
        }
        let work = self.waiting.swap_remove(usize::from(which) % self.waiting.len());
        match work {
            Work::Seed { block, k } => {
                let held = 0..u16::from(how) % (k + 1);
                self.kept.entry(block).or_default().extend(held.clone());
                self.machine.seeded(self.now, block, &[held]);
            }
            Work::Complete { block, k, .. } => {
                let enough = self.kept.get(&block).is_some_and(|kept| kept.len() >= usize::from(k));
                self.complete(block, if enough { how } else { 0 });
            }
            Work::Pull(Pull::Repair { block, from, until }) if how % 4 != 0 => {
                match self.kept.get_mut(&block) {
                    Some(kept) => {
                        kept.extend((from..until).map(|index| SymbolId::repair(index).raw()));
                    }
                    None => drop(self.stale.insert(block)),
                }
                self.machine.pulled_repair(self.now, block, from..until);
            }
            Work::Pull(Pull::Bytes { block }) if how % 4 != 0 => {
                if self.machine.pulled_bytes(self.now, block, k(how)) {
                    self.complete(block, how / 4);
                }
            }
            Work::Pull(Pull::Repair { block, .. } | Pull::Bytes { block }) => {
                self.machine.handle_work(self.now, WorkDone::PullFailed(block));
            }
            Work::Forget { .. } => {}
        }
    }

    fn complete(&mut self, block: BlockId, how: u8) {
        let done = match how % 4 {
            0 => WorkDone::Refused(block),
            1 => WorkDone::False(block),
            _ => {
                assert!(self.stored.insert(block), "{block} stored twice");
                WorkDone::Stored(block)
            }
        };
        self.kept.remove(&block);
        self.machine.handle_work(self.now, done);
    }

    fn drain(&mut self) {
        let mut message = Vec::new();
        let mut outputs = 0;
        while self.machine.poll_transmit(self.now, &mut message).is_some() {
            outputs += 1;
            assert!(outputs < OUTPUTS_MAX);
        }
        while let Some(work) = self.machine.poll_work() {
            outputs += 1;
            assert!(outputs < OUTPUTS_MAX);
            match work {
                Work::Forget { block } => drop(self.kept.remove(&block)),
                Work::Complete { block, k, .. } => {
                    let kept = self.kept.get(&block).map_or(0, BTreeSet::len);
                    let excused = self.stale.remove(&block);
                    assert!(kept >= usize::from(k) || excused, "{block}: {kept} of {k} symbols");
                    self.waiting.push(work);
                }
                Work::Seed { .. } | Work::Pull(_) => self.waiting.push(work),
            }
        }
        while self.machine.poll_event().is_some() {
            outputs += 1;
            assert!(outputs < OUTPUTS_MAX);
        }
        assert!(
            self.machine.partial_blocks() <= PARTIAL_BLOCKS + downpour_proto::receiver::PULLS_MAX
        );
    }
}

fuzz_target!(|input: (bool, u64, Vec<Operation>)| {
    let (resume, seed, operations) = input;
    let mut driver = Driver::new(resume, seed);
    for operation in operations {
        driver.apply(operation);
        driver.drain();
    }
});
