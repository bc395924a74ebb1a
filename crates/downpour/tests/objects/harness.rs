//! A sender's content, a receiver's store, and a hand that carries blocks between them.

use downpour::object::{
    ContentSource, Destination, FolderOptions, ManifestId, Scan, ScanOptions, Section, Store,
    StoreConfig, StoreEvent, Summary, Withdrawn,
};
use downpour_proto::{BlockId, Geometry};
use downpour_transport::identity::Identity;
use downpour_transport::{Accepted, BlockSink, BlockSource};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// 16 KiB blocks: groups straddle many of them.
pub(crate) const SMALL: Geometry =
    Geometry { symbol_len: 256, block_symbols: 64, ..Geometry::IPV4 };
/// 360 KB blocks.
pub(crate) const MIDDLE: Geometry =
    Geometry { symbol_len: 1440, block_symbols: 250, ..Geometry::IPV4 };

/// A random sequence that the seed repeats.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(len).collect()
    }
}

pub(crate) struct Sender {
    pub(crate) source: Arc<ContentSource>,
    pub(crate) publisher: Arc<Identity>,
    pub(crate) id: ManifestId,
    pub(crate) sections: Vec<Section>,
    pub(crate) withdrawn: Arc<Mutex<Vec<Withdrawn>>>,
}

impl Sender {
    /// Scans and hashes `paths`.
    pub(crate) fn new(paths: &[PathBuf], geometry: Geometry) -> Self {
        let mut sender = Self::scanned(paths, geometry, &ScanOptions::default());
        sender.hash();
        sender
    }

    pub(crate) fn scanned(paths: &[PathBuf], geometry: Geometry, options: &ScanOptions) -> Self {
        let scan = Scan::new(paths, options).unwrap();
        let withdrawn = Arc::new(Mutex::new(Vec::new()));
        let told = withdrawn.clone();
        let source =
            ContentSource::files(scan, geometry, move |w| told.lock().unwrap().push(w.clone()));
        Self::of(source.unwrap(), withdrawn)
    }

    pub(crate) fn of(source: Arc<ContentSource>, withdrawn: Arc<Mutex<Vec<Withdrawn>>>) -> Self {
        let publisher = Arc::new(Identity::generate());
        Self { source, publisher, id: ManifestId([5; 16]), sections: Vec::new(), withdrawn }
    }

    /// Emits all sections.
    pub(crate) fn hash(&mut self) {
        let ahead = self.source.ahead(self.id, self.publisher.clone(), 2);
        self.sections = ahead.collect::<Result<_, _>>().unwrap();
        assert!(self.sections.last().unwrap().last);
    }

    pub(crate) fn block(&self, id: BlockId) -> Vec<u8> {
        let symbols = self.source.symbols(id).unwrap_or_else(|| panic!("{id} is not offered"));
        let mut buf =
            vec![0; usize::from(symbols) * usize::from(self.source.geometry().symbol_len)];
        self.source.read(id, &mut buf).unwrap();
        buf
    }

    /// Bytes of a section, as its first block tells.
    pub(crate) fn section_len(&self, section: &Section) -> usize {
        let first = self.block(BlockId::manifest(section.manifest.start).unwrap());
        u32::from_be_bytes(*first.first_chunk().unwrap()) as usize
    }

    /// All blocks in the order of sending.
    pub(crate) fn order(&self) -> Vec<BlockId> {
        let mut all = Vec::new();
        for section in &self.sections {
            all.extend(section.manifest.clone().map(|n| BlockId::manifest(n).unwrap()));
            all.extend(section.data.clone().map(|n| BlockId::data(n).unwrap()));
        }
        all
    }

    pub(crate) fn data_blocks(&self) -> u32 {
        self.sections.last().unwrap().data.end
    }

    pub(crate) fn config(&self) -> StoreConfig {
        StoreConfig::new(self.source.geometry(), self.publisher.public_key(), self.id)
    }

    pub(crate) fn receiver(&self, destination: Destination) -> Receiver {
        Receiver::new(self.config(), destination)
    }

    pub(crate) fn to_folder(&self, out: &Path) -> Receiver {
        self.receiver(Destination::Folder(FolderOptions::new(out)))
    }
}

pub(crate) struct Receiver {
    pub(crate) store: Store,
    pub(crate) events: Arc<Mutex<Vec<StoreEvent>>>,
    seen: usize,
    /// Data blocks that were not needed when they might have been sent.
    pub(crate) not_needed: std::collections::HashSet<u32>,
    /// Genuine blocks may be suspected, as somebody sends false ones.
    pub(crate) suspicious: bool,
    /// Bytes of blocks that were handed over.
    pub(crate) carried: u64,
}

impl Receiver {
    pub(crate) fn new(config: StoreConfig, destination: Destination) -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = events.clone();
        let store = Store::open(config, destination, move |event| told.lock().unwrap().push(event))
            .unwrap();
        let not_needed = std::collections::HashSet::new();
        Self { store, events, seen: 0, not_needed, suspicious: false, carried: 0 }
    }

    pub(crate) fn events(&self) -> Vec<StoreEvent> {
        self.events.lock().unwrap().clone()
    }

    /// Carries blocks until nothing is left to carry. What is refused or forgotten comes again.
    pub(crate) fn carry(&mut self, sender: &Sender, order: Vec<BlockId>) {
        let mut queue: VecDeque<BlockId> = order.into();
        let mut refusals = 0;
        while let Some(id) = queue.pop_front() {
            if self.is_not_needed(id) {
                continue;
            }
            let block = sender.block(id);
            self.carried += block.len() as u64;
            match self.store.accept(id, &block) {
                Accepted::Kept => refusals = 0,
                Accepted::Refused => {
                    queue.push_back(id);
                    refusals += 1;
                    assert!(refusals <= 2 * queue.len() + 2, "nothing moves any more");
                }
                Accepted::False if self.suspicious => queue.push_back(id),
                Accepted::False => panic!("{id} is genuine"),
                Accepted::Failed => panic!("the store failed: {:?}", self.store.failure()),
            }
            queue.extend(self.forgotten());
        }
    }

    fn is_not_needed(&mut self, id: BlockId) -> bool {
        self.look();
        BlockId::data(id.number()) == Some(id) && self.not_needed.contains(&id.number())
    }

    fn look(&mut self) -> Vec<StoreEvent> {
        let new = self.events.lock().unwrap()[self.seen..].to_vec();
        self.seen += new.len();
        for event in &new {
            match event {
                StoreEvent::Section(section) => {
                    self.not_needed.extend(section.held.iter().cloned().flatten());
                }
                StoreEvent::NotNeeded(ranges) => {
                    self.not_needed.extend(ranges.iter().cloned().flatten());
                }
                _ => {}
            }
        }
        new
    }

    fn forgotten(&mut self) -> Vec<BlockId> {
        let new = self.look();
        new.into_iter()
            .filter_map(|event| match event {
                StoreEvent::Forgotten { block, .. } => Some(block),
                _ => None,
            })
            .collect()
    }

    /// Carries only the manifest, then what the store said that it needs.
    pub(crate) fn carry_needed(&mut self, sender: &Sender) {
        let (manifest, data): (Vec<_>, Vec<_>) =
            sender.order().into_iter().partition(|id| id.raw() >= BlockId::NUMBER_END);
        self.carry(sender, manifest);
        self.carry(sender, data);
    }

    pub(crate) fn summary(&self) -> Summary {
        let mut complete = self.events().into_iter().filter_map(|event| match event {
            StoreEvent::Complete(summary) => Some(summary),
            _ => None,
        });
        let summary =
            complete.next().unwrap_or_else(|| panic!("not complete: {:?}", self.events()));
        assert_eq!(complete.next(), None, "complete is said once");
        summary
    }

    pub(crate) fn failures(&self) -> BTreeMap<String, String> {
        self.summary().failed.into_iter().collect()
    }
}

/// Everything about an entry that must arrive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    kind: char,
    pub(crate) mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    size: u64,
    pub(crate) content: Vec<u8>,
    /// The first path of a file with several names.
    link: Option<PathBuf>,
}

/// Everything below `root`.
pub(crate) fn look_at(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut out = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    visit(root, Path::new(""), &mut out, &mut inodes);
    out
}

fn visit(
    root: &Path,
    at: &Path,
    out: &mut BTreeMap<PathBuf, Seen>,
    inodes: &mut BTreeMap<u64, PathBuf>,
) {
    let mut names: Vec<_> =
        fs::read_dir(root.join(at)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    for name in names {
        let path = at.join(name);
        let full = root.join(&path);
        let meta = fs::symlink_metadata(&full).unwrap();
        let (kind, content) = if meta.is_symlink() {
            let text = fs::read_link(&full).unwrap();
            ('l', text.into_os_string().into_encoded_bytes())
        } else if meta.is_dir() {
            ('d', Vec::new())
        } else {
            ('f', hash(&full, meta.len()))
        };
        let first = inodes.entry(meta.ino()).or_insert_with(|| path.clone()).clone();
        let seen = Seen {
            kind,
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            size: if kind == 'd' { 0 } else { meta.len() },
            content,
            link: (kind == 'f' && meta.nlink() > 1).then_some(first),
        };
        out.insert(path.clone(), seen);
        if kind == 'd' {
            visit(root, &path, out, inodes);
        }
    }
}

fn hash(path: &Path, len: u64) -> Vec<u8> {
    let file = fs::File::open(path).unwrap();
    let mut hasher = blake3::Hasher::new();
    let mut buf = vec![0; 1 << 20];
    // A huge sparse file is told by its ends and its allocated middle.
    let step = if len > 1 << 31 { 97 << 20 } else { 1 << 20 };
    let mut at = 0;
    while at < len {
        let n = file.read_at(&mut buf, at).unwrap();
        hasher.update(&buf[..n]);
        at += step;
    }
    hasher.finalize().as_bytes().to_vec()
}

pub(crate) fn assert_same(sent: &Path, received: &Path) {
    let (a, b) = (look_at(sent), look_at(received));
    for (path, seen) in &a {
        assert_eq!(b.get(path), Some(seen), "{}", path.display());
    }
    let extra: Vec<_> = b.keys().filter(|path| !a.contains_key(*path)).collect();
    assert!(extra.is_empty(), "{extra:?}");
}

pub(crate) fn write(path: impl AsRef<Path>, bytes: &[u8]) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A folder of two: what is sent, and where it arrives.
pub(crate) fn pair() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fs::create_dir(&a).unwrap();
    (dir, a, b)
}

/// The contents of a folder, as a path to send.
pub(crate) fn contents(folder: &Path) -> Vec<PathBuf> {
    vec![folder.join("")]
}
