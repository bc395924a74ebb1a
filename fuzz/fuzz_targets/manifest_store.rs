//! A store that takes what a hostile publisher signs, in any order, among blocks that somebody forged: it
//! does not panic, accepts no data that its digests do not vouch for, and writes nothing outside of its
//! folder.

#![no_main]

use arbitrary::Arbitrary;
use downpour::object::{Destination, FolderOptions, ManifestId, Store, StoreConfig};
use downpour_proto::{BlockId, Geometry};
use downpour_transport::BlockSink;
use downpour_transport::identity::Identity;
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

const GEOMETRY: Geometry = Geometry { symbol_len: 64, block_symbols: 8, ..Geometry::IPV4 };
const ID: [u8; 16] = [5; 16];
const CANARY: &str = "as it was";

#[derive(Arbitrary, Debug)]
struct Input {
    sections: Vec<Body>,
    last: bool,
    /// Blocks that come before their turn.
    early: Vec<u8>,
    forged: Vec<(bool, u8, u8, u8)>,
    data: Vec<(u8, u8, u8)>,
}

#[derive(Arbitrary, Debug)]
enum Body {
    Tree {
        more: bool,
        /// What the target folder becomes: flags, mode, the rest.
        root: Option<(u8, u16, Vec<u8>)>,
        entries: Vec<Entry>,
    },
    Digests {
        first: u8,
        count: u8,
        end: u16,
        rest: Vec<u8>,
    },
    /// One file of this content, and its true digest.
    Whole {
        first: u8,
        content: u8,
        len: u8,
    },
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct Entry {
    flags: u8,
    depth: u8,
    shared: u8,
    name: Name,
    mode: u16,
    rest: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
enum Name {
    Letter(u8),
    Up,
    Outside,
    Absolute,
    Staging,
    Any(Vec<u8>),
}

impl Name {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Letter(letter) => vec![b'a' + letter % 8],
            Self::Up => b"..".to_vec(),
            Self::Outside => b"../canary".to_vec(),
            Self::Absolute => b"/tmp/canary".to_vec(),
            Self::Staging => b".downpour".to_vec(),
            Self::Any(bytes) => bytes.clone(),
        }
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

impl Entry {
    fn bytes(&self) -> Vec<u8> {
        let name = self.name.bytes();
        let mut out = vec![self.flags % 64];
        out.extend(varint(u64::from(self.depth % 4)));
        out.extend(varint(u64::from(self.shared % 4)));
        out.extend(varint(name.len() as u64));
        out.extend(name);
        if self.flags & 8 == 0 && !matches!(self.flags & 7, 3 | 4) {
            out.extend(varint(u64::from(self.mode % 4096)));
        }
        out.extend(&self.rest);
        out
    }
}

impl Body {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Tree { more, root, entries } => {
                let mut out = vec![1, u8::from(*more) | u8::from(root.is_some()) << 1];
                if let Some((flags, mode, rest)) = root {
                    out.push(flags % 64);
                    if flags & 8 == 0 {
                        out.extend(varint(u64::from(mode % 4096)));
                    }
                    out.extend(rest);
                }
                out.extend(varint(entries.len() as u64));
                entries.iter().for_each(|entry| out.extend(entry.bytes()));
                out
            }
            Self::Digests { first, count, end, rest } => {
                let mut out = vec![2];
                for number in [u64::from(*first), u64::from(*count), u64::from(*end)] {
                    out.extend(varint(number));
                }
                out.extend(rest);
                out
            }
            Self::Whole { first, content, len } => {
                let mut out = vec![2];
                for number in [u64::from(*first), 1, u64::from(*len), 0] {
                    out.extend(varint(number));
                }
                out.extend(blake3::hash(&vec![*content; usize::from(*len)]).as_bytes());
                out
            }
            Self::Raw(bytes) => bytes.clone(),
        }
    }
}

fn seal(key: &Identity, index: u32, previous: [u8; 32], last: bool, body: &[u8]) -> Vec<u8> {
    let mut out = ((58 + body.len() + 64) as u32).to_be_bytes().to_vec();
    out.push(1);
    out.extend(ID);
    out.extend(index.to_be_bytes());
    out.extend(previous);
    out.push(u8::from(last));
    out.extend(body);
    let signature = key.sign("downpour manifest section 1", blake3::hash(&out).as_bytes());
    out.extend(signature.as_bytes());
    out
}

/// All sections as manifest blocks.
fn blocks(key: &Identity, input: &Input) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut previous = [0; 32];
    for (index, body) in input.sections.iter().take(6).enumerate() {
        let last = input.last && index + 1 == input.sections.len();
        let mut section = seal(key, index as u32, previous, last, &body.bytes());
        previous = *blake3::hash(&section).as_bytes();
        section.resize(section.len().next_multiple_of(64), 0);
        blocks.extend(section.chunks(GEOMETRY.block_len() as usize).map(<[u8]>::to_vec));
    }
    blocks
}

fn give(store: &Store, manifest: bool, number: u32, bytes: &[u8]) {
    let id = if manifest { BlockId::manifest(number) } else { BlockId::data(number) };
    if let Some(id) = id {
        let mut room = bytes.to_vec();
        store.seed(id, &mut room);
        store.accept(id, bytes);
    }
}

fuzz_target!(|input: Input| {
    static KEY: OnceLock<Identity> = OnceLock::new();
    let key = KEY.get_or_init(Identity::generate);
    let outer = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    fs::write(outer.path().join("canary"), CANARY).expect("there is room");
    let out = outer.path().join("out");
    let config = StoreConfig::new(GEOMETRY, key.public_key(), ManifestId(ID));
    let folder = Destination::Folder(FolderOptions::new(&out));
    let store = Store::open(config, folder, |_| {}).expect("a new folder");
    let blocks = blocks(key, &input);
    for early in &input.early {
        if let Some(block) = blocks.get(usize::from(*early)) {
            give(&store, true, u32::from(*early), block);
        }
    }
    for (manifest, number, symbols, byte) in &input.forged {
        let bytes = vec![*byte; 64 * usize::from(1 + symbols % 8)];
        give(&store, *manifest, u32::from(*number), &bytes);
    }
    for (number, block) in blocks.iter().enumerate() {
        give(&store, true, number as u32, block);
    }
    for (number, symbols, byte) in &input.data {
        let bytes = vec![*byte; 64 * usize::from(1 + symbols % 8)];
        give(&store, false, u32::from(*number % 8), &bytes);
    }
    let _ = store.summary();
    drop(store);
    assert_untouched(outer.path());
});

fn assert_untouched(outer: &Path) {
    let names = fs::read_dir(outer).expect("it is there").count();
    assert_eq!(names, 2, "something new beside the target");
    assert_eq!(fs::read_to_string(outer.join("canary")).expect("it is there"), CANARY);
    assert!(!Path::new("/tmp/canary").exists());
}
