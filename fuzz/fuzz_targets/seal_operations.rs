//! What one side seals the other opens, whatever is lost, held up, sent twice, changed or made up on the way.
//!
//! What must hold: nothing panics; each datagram is opened at most once, and as it was sealed; one that is new and near
//! enough for its short header to be made whole is opened; what was changed or made up never is, and moves nothing.

#![no_main]

use arbitrary::Arbitrary;
use downpour_proto::wire::{Header, Kind};
use downpour_proto::{BlockId, Epoch, PacketNumber, StreamId, SymbolId};
use downpour_transport::{OpenKeys, SealKeys, Secret, Suite};
use libfuzzer_sys::fuzz_target;

const STREAM: StreamId = StreamId(7);
const K_MAX: u16 = 1024;
/// Packet numbers that the receiver remembers.
const WINDOW: u64 = 65_536;
/// How far off the receiver may be: of the packet number of a symbol and of others, and of a block's number.
const NEAR: [u64; 2] = [1 << 23, 1 << 31];
const NEAR_BLOCK: u32 = 1 << 15;

#[derive(Arbitrary, Debug)]
enum Operation {
    Symbol { manifest: bool, back: u8, k: u16, symbol: u16, len: u8 },
    Other { kind: u8, len: u8 },
    Skip { packets: u32 },
    Advance { data: u32, manifest: u16 },
    Tell,
    Deliver { which: u16 },
    Changed { which: u16, bit: u16 },
    MadeUp { bytes: Vec<u8> },
}

struct Sent {
    number: u64,
    header: Header,
    payload: Vec<u8>,
    datagram: Vec<u8>,
    opened: bool,
}

struct Driver {
    seal: SealKeys,
    open: OpenKeys,
    next: u64,
    highest: u64,
    epoch: u8,
    /// Where the sender is, of data and of the manifest, and where the receiver takes it to be.
    blocks: [u32; 2],
    told: [u32; 2],
    sent: Vec<Sent>,
}

const SECRET: Secret = Secret::new([7; 32]);

impl Driver {
    fn new(first: u64, epoch: u8) -> Self {
        let (suite, next) = (Suite::preferred(), first.max(1));
        let number = Epoch(epoch);
        Self {
            seal: SealKeys::stream(suite, &SECRET, STREAM, number),
            open: OpenKeys::stream(suite, &SECRET, STREAM, number, PacketNumber(next)),
            next,
            highest: next - 1,
            epoch,
            blocks: [0; 2],
            told: [0; 2],
            sent: Vec::new(),
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Symbol { manifest, back, k, symbol, len } => {
                let number = self.blocks[usize::from(manifest)].saturating_sub(u32::from(back));
                let block =
                    if manifest { BlockId::manifest(number) } else { BlockId::data(number) };
                let (block, k) = (block.expect("below the end"), 1 + k % K_MAX);
                let symbol = match symbol.checked_sub(K_MAX) {
                    Some(repair) => SymbolId::repair(repair % K_MAX),
                    None => SymbolId::source(symbol % k),
                };
                self.seal(Kind::Symbol { block, k, symbol }, len);
            }
            Operation::Other { kind, len } => {
                let kinds = [Kind::Poll, Kind::Advert, Kind::Probe];
                self.seal(kinds[usize::from(kind) % kinds.len()], len);
            }
            Operation::Skip { packets } => self.next = self.next.saturating_add(packets.into()),
            Operation::Advance { data, manifest } => {
                for (block, by) in self.blocks.iter_mut().zip([data, manifest.into()]) {
                    *block = block.saturating_add(by).min(BlockId::NUMBER_END - 1);
                }
            }
            Operation::Tell => {
                self.told = self.blocks;
                self.open.expect_blocks(self.told[0], self.told[1]);
            }
            Operation::Deliver { which } => self.deliver(which),
            Operation::Changed { which, bit } => {
                let len = self.sent.len().max(1);
                let Some(sent) = self.sent.get(usize::from(which) % len) else { return };
                let mut datagram = sent.datagram.clone();
                let bit = usize::from(bit) % (datagram.len() * 8);
                datagram[bit / 8] ^= 1 << (bit % 8);
                self.refuse(datagram);
            }
            Operation::MadeUp { bytes } => self.refuse(bytes),
        }
    }

    fn seal(&mut self, kind: Kind, len: u8) {
        let number = self.next;
        let Some(next) = number.checked_add(1) else { return };
        self.next = next;
        let header =
            Header { epoch: Epoch(self.epoch), stream: STREAM, packet_low: number as u32, kind };
        let payload = vec![len; len.into()];
        let mut datagram = Vec::new();
        self.seal
            .append(PacketNumber(number), &header, &payload, &mut datagram)
            .expect("numbers rise, and the header is this stream's");
        self.sent.push(Sent { number, header, payload, datagram, opened: false });
    }

    fn deliver(&mut self, which: u16) {
        let len = self.sent.len().max(1);
        let Some(sent) = self.sent.get_mut(usize::from(which) % len) else { return };
        let off = sent.number.abs_diff(self.highest.saturating_add(1));
        let is_near = match sent.header.kind {
            Kind::Symbol { block, .. } => {
                let told = self.told[usize::from(block.raw() >= BlockId::NUMBER_END)];
                off < NEAR[0] && block.number().abs_diff(told) < NEAR_BLOCK
            }
            _ => off < NEAR[1],
        };
        let is_late = sent.number <= self.highest && self.highest - sent.number >= WINDOW;
        let mut datagram = sent.datagram.clone();
        let header = self.open.header(&datagram);
        let opened = header.ok().and_then(|header| {
            let opened = self.open.open(&header, &mut datagram).ok()?;
            Some((header, opened))
        });
        let Some((header, opened)) = opened else {
            assert!(!(is_near && !is_late && !sent.opened), "{}", sent.number);
            return;
        };
        assert!(!sent.opened && !is_late, "{} is opened", sent.number);
        assert_eq!((header, opened.number.0), (sent.header, sent.number));
        assert_eq!(opened.payload, sent.payload);
        sent.opened = true;
        self.highest = self.highest.max(sent.number);
    }

    fn refuse(&mut self, mut datagram: Vec<u8>) {
        if let Ok(header) = self.open.header(&datagram) {
            assert!(self.open.open(&header, &mut datagram).is_err());
        }
    }
}

fuzz_target!(|input: (u64, u8, Vec<Operation>)| {
    let (first, epoch, operations) = input;
    let mut driver = Driver::new(first, epoch);
    for operation in operations {
        driver.apply(operation);
        assert_eq!(driver.open.highest().0, driver.highest);
    }
});
