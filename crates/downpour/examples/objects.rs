//! How fast the object layer is, without a network: `cargo run --release --example objects [FOLDER]`.
//!
//! Makes a tree of one large and 20,000 small files below FOLDER (default: the temporary folder), then
//! scans, hashes, reads, verifies and places it, and prints a line for each step. Page cache is warm.

use downpour::object::{
    ContentSource, Destination, FolderOptions, ManifestId, Scan, ScanOptions, Store, StoreConfig,
    StoreEvent,
};
use downpour_proto::{BlockId, Geometry};
use downpour_transport::identity::Identity;
use downpour_transport::{Accepted, BlockSink, BlockSource};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const LARGE_LEN: usize = 1 << 30;
const SMALL_FILES: usize = 20_000;
const SMALL_LEN: usize = 10_000;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let root = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(root)?;
    let noise: Vec<u8> =
        (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let large = folder.path().join("large");
    std::fs::create_dir_all(&large)?;
    std::fs::write(large.join("file"), noise.repeat(LARGE_LEN >> 20))?;
    let small = folder.path().join("small");
    for i in 0..SMALL_FILES {
        let dir = small.join(format!("{:03}", i / 100));
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join(format!("file-{i:05}")), &noise[i..i + SMALL_LEN])?;
    }
    measure("one file of 1 GiB", &large, folder.path())?;
    measure("20,000 files of 10 KB", &small, folder.path())
}

fn measure(what: &str, from: &Path, scratch: &Path) -> Result<(), Failure> {
    println!("{what}");
    let start = Instant::now();
    let scan = Scan::new(&[from.to_owned()], &ScanOptions::default())?;
    let len = scan.tree().data_len().unwrap_or(0);
    report("scan", start, 0);

    let publisher = Arc::new(Identity::generate());
    let id = ManifestId([0; 16]);
    let source = ContentSource::files(scan, Geometry::IPV4, |w| println!("{w:?}"))?;
    let start = Instant::now();
    let sections = source.ahead(id, publisher.clone(), 1).collect::<Result<Vec<_>, _>>()?;
    report("hash ahead, 1 thread", start, len);

    let (mut manifest, mut data) = (0..0, 0..0);
    for section in &sections {
        manifest.end = section.manifest.end;
        data.end = section.data.end;
    }
    let ids = manifest.filter_map(BlockId::manifest).chain(data.filter_map(BlockId::data));
    let start = Instant::now();
    let mut blocks = Vec::new();
    for id in ids {
        let symbols = source.symbols(id).unwrap_or(0);
        let mut buf = vec![0; usize::from(symbols) * usize::from(Geometry::IPV4.symbol_len)];
        source.read(id, &mut buf)?;
        blocks.push((id, buf));
    }
    report("read blocks (with their allocation)", start, len);

    let config = StoreConfig::new(Geometry::IPV4, publisher.public_key(), id);
    let folder = || Destination::Folder(FolderOptions::new(scratch.join("out")));
    accept("accept, discard", &config, Destination::Discard, &blocks, len)?;
    for round in ["new page cache", "recycled page cache"] {
        accept(&format!("accept, files, {round}"), &config, folder(), &blocks, len)?;
        if round == "recycled page cache" {
            accept("again: identical files", &config, folder(), &blocks, len)?;
        }
        std::fs::remove_dir_all(scratch.join("out"))?;
    }
    Ok(())
}

fn accept(
    what: &str,
    config: &StoreConfig,
    destination: Destination,
    blocks: &[(BlockId, Vec<u8>)],
    len: u64,
) -> Result<(), Failure> {
    let (done, complete) = std::sync::mpsc::channel();
    let store = Store::open(config.clone(), destination, move |event| {
        if let StoreEvent::Complete(summary) = event {
            // The receiver of the channel outlives the store.
            let _ = done.send(summary);
        }
    })?;
    let start = Instant::now();
    for (id, bytes) in blocks {
        if store.accept(*id, bytes) != Accepted::Kept {
            return Err(format!("{id} was not kept: {:?}", store.failure()).into());
        }
    }
    let summary = complete.try_recv()?;
    report(what, start, len);
    if summary.failed.is_empty() { Ok(()) } else { Err(format!("{:?}", summary.failed).into()) }
}

fn report(what: &str, start: Instant, len: u64) {
    let seconds = start.elapsed().as_secs_f64();
    match len {
        0 => println!("  {what}: {:.1} ms", seconds * 1e3),
        _ => println!("  {what}: {:.1} ms, {:.2} GB/s", seconds * 1e3, len as f64 / seconds / 1e9),
    }
}
