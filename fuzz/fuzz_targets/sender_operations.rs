//! A sender under any sequence of authentic feedback, commands, answers and waits.
//!
//! What must hold whatever receivers say: nothing panics, no symbol goes out twice, none before it was
//! loaded or encoded, packet numbers only rise, the window is bounded, and each input causes a bounded
//! amount of work.

#![no_main]

use arbitrary::Arbitrary;
use downpour_proto::rate::Fixed;
use downpour_proto::sender::{Delivery, WINDOW_BLOCKS_MAX, Work, WorkDone};
use downpour_proto::wire::{Feedback, Kind, Need};
use downpour_proto::{
    BlockId, Duration, Epoch, Geometry, PULL_SHARE_DEFAULT, Parity, RangeSet, Rate, ReceiverId,
    Round, Sender, SenderConfig, StreamId, Timestamp,
};
use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, BTreeSet};

const GEOMETRY: Geometry = Geometry { symbol_len: 256, block_symbols: 8, ..Geometry::IPV4 };
const BLOCKS: u32 = 40;
const MEMBERS: u32 = 20;
const WINDOW: usize = 4;
const _: () = assert!(WINDOW <= WINDOW_BLOCKS_MAX);
/// Work, datagrams and events that one input may cause; the pacer lets a burst go, no more.
const OUTPUTS_MAX: usize = 4096;

#[derive(Arbitrary, Debug)]
enum Operation {
    Offer {
        k: u8,
    },
    Start,
    Finish,
    Probe,
    Join {
        who: u8,
        pull: bool,
    },
    Have {
        who: u8,
        first: u8,
        count: u8,
    },
    Delivery {
        who: u8,
        how: u8,
    },
    Ceiling {
        mbps: u16,
    },
    Feedback {
        who: u8,
        round: u32,
        hold_us: u32,
        received: u64,
        drops: u16,
        held: u8,
        needs: Vec<Asked>,
    },
    Raw {
        who: u8,
        body: Vec<u8>,
    },
    Wait {
        micros: u32,
    },
    Timeout,
    Answer {
        which: u8,
        fail: bool,
    },
}

#[derive(Arbitrary, Debug)]
struct Asked {
    block: u8,
    planned: u16,
    count: u16,
}

#[derive(Default)]
struct Loaded {
    k: u16,
    encoded: u16,
    sent: BTreeSet<u16>,
}

struct Driver {
    machine: Sender,
    now: Timestamp,
    offered: u32,
    finished: bool,
    loaded: BTreeMap<BlockId, Loaded>,
    sent: BTreeMap<BlockId, BTreeSet<u16>>,
    waiting: Vec<Work>,
    packet: u64,
}

fn who(raw: u8) -> ReceiverId {
    ReceiverId(1 + u32::from(raw) % MEMBERS)
}

impl Driver {
    fn new() -> Self {
        let now = Timestamp::ZERO;
        let config = SenderConfig {
            geometry: GEOMETRY,
            stream: StreamId(1),
            epoch: Epoch(0),
            rate: Box::new(Fixed::new(Rate::from_mbps(10))),
            recovery: Box::new(Parity::default()),
            initial_rtt: Duration::from_millis(1),
            window_blocks: WINDOW,
            pull_share: PULL_SHARE_DEFAULT,
        };
        Self {
            machine: Sender::new(config, now),
            now,
            offered: 0,
            finished: false,
            loaded: BTreeMap::new(),
            sent: BTreeMap::new(),
            waiting: Vec::new(),
            packet: 0,
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Offer { k } => {
                if self.offered < BLOCKS && !self.finished && self.machine.offer_room() > 0 {
                    let block = BlockId::data(self.offered).expect("a small number");
                    self.offered += 1;
                    let k = 1 + u16::from(k) % GEOMETRY.block_symbols;
                    self.machine.offer(self.now, block, k);
                }
            }
            Operation::Start => self.machine.start(self.now),
            Operation::Finish => {
                self.finished = true;
                self.machine.finish(self.now);
            }
            Operation::Probe => self.machine.probe(self.now),
            Operation::Join { who: raw, pull } => {
                let delivery = if pull { Delivery::Pull } else { Delivery::Stream };
                self.machine.join(self.now, who(raw), delivery);
            }
            Operation::Have { who: raw, first, count } => {
                let first = u32::from(first) % BLOCKS;
                let held: RangeSet = std::iter::once(first..first + u32::from(count)).collect();
                self.machine.have(self.now, who(raw), held, RangeSet::new());
            }
            Operation::Delivery { who: raw, how } => {
                let all = [Delivery::Stream, Delivery::Pull, Delivery::Ended];
                self.machine.set_delivery(self.now, who(raw), all[usize::from(how) % 3]);
            }
            Operation::Ceiling { mbps } => {
                self.machine.set_ceiling(self.now, Rate::from_mbps(u64::from(mbps)));
            }
            Operation::Feedback { .. } => self.feedback(operation),
            Operation::Raw { who: raw, body } => {
                // A body that is no feedback is refused, which is all there is to it.
                let _ = self.machine.handle_feedback(self.now, self.now, who(raw), &body);
            }
            Operation::Wait { micros } => {
                self.now = self.now + Duration::from_micros(u64::from(micros % 1_000_000));
                self.machine.handle_timeout(self.now);
            }
            Operation::Timeout => {
                if let Some(deadline) = self.machine.poll_timeout() {
                    self.now = self.now.max(deadline.at);
                }
                self.machine.handle_timeout(self.now);
            }
            Operation::Answer { which, fail } => self.answer(which, fail),
        }
    }

    fn feedback(&mut self, operation: Operation) {
        let Operation::Feedback { who: raw, round, hold_us, received, drops, held, needs } =
            operation
        else {
            return;
        };
        let need = |asked: &Asked| Need {
            block: BlockId::data(u32::from(asked.block) % BLOCKS).expect("a small number"),
            planned: asked.planned % 2049,
            count: 1 + asked.count % 1024,
        };
        let feedback = Feedback {
            round: Round(round),
            hold: Duration::from_micros(u64::from(hold_us)),
            queue: Duration::ZERO,
            path_queue: Duration::ZERO,
            polled_at: self.now,
            received,
            host_drops: u64::from(drops),
            data_held: u32::from(held),
            needs: needs.iter().take(64).map(need).collect(),
        };
        let mut body = Vec::new();
        feedback.emit(&mut body);
        self.machine
            .handle_feedback(self.now, self.now, who(raw), &body)
            .expect("what was emitted parses");
    }

    fn answer(&mut self, which: u8, fail: bool) {
        if self.waiting.is_empty() {
            return;
        }
        let done = match self.waiting.swap_remove(usize::from(which) % self.waiting.len()) {
            Work::Load { block, .. } if fail => WorkDone::LoadFailed(block),
            Work::Load { block, k } => {
                self.loaded.insert(block, Loaded { k, ..Loaded::default() });
                WorkDone::Loaded { block, tail: u16::from(which) }
            }
            Work::Encode { block, from, count } => {
                if let Some(loaded) = self.loaded.get_mut(&block) {
                    loaded.encoded = loaded.encoded.max(from + count);
                }
                WorkDone::Encoded { block, until: from + count }
            }
            Work::Release { .. } => return,
        };
        self.machine.handle_work(self.now, done);
    }

    fn drain(&mut self) {
        let mut message = Vec::new();
        let mut outputs = 0;
        let mut count = move || {
            outputs += 1;
            assert!(outputs < OUTPUTS_MAX);
        };
        loop {
            while let Some(work) = self.machine.poll_work() {
                count();
                if let Work::Release { block } = work {
                    self.loaded.remove(&block);
                    self.waiting
                        .retain(|w| !matches!(w, Work::Encode { block: b, .. } if *b == block));
                } else {
                    self.waiting.push(work);
                }
            }
            while self.machine.poll_event().is_some() {
                count();
            }
            let Some(transmit) = self.machine.poll_transmit(self.now, &mut message) else { break };
            count();
            assert!(transmit.packet.0 > self.packet, "packet numbers rise");
            self.packet = transmit.packet.0;
            if let Kind::Symbol { block, k, symbol } = transmit.header.kind {
                let loaded = self.loaded.get_mut(&block).expect("sent when loaded");
                assert_eq!(k, loaded.k);
                assert_eq!(transmit.body_len, usize::from(GEOMETRY.symbol_len));
                assert!(symbol.repair_index().is_none_or(|index| index < loaded.encoded));
                assert!(loaded.sent.insert(symbol.raw()));
                let sent = self.sent.entry(block).or_default();
                assert!(sent.insert(symbol.raw()), "{block}: symbol {} twice", symbol.raw());
            }
        }
        // Late NACKs may open closed blocks beyond the window, up to what a poll can list.
        assert!(self.machine.open_blocks() <= WINDOW_BLOCKS_MAX);
    }
}

fuzz_target!(|operations: Vec<Operation>| {
    let mut driver = Driver::new();
    for operation in operations {
        driver.apply(operation);
        driver.drain();
    }
});
