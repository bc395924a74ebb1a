//! What arrived is written down: by the receiving folder itself, then in the catalog.

use super::hooks::kill_point;
use super::lock;
use crate::receipt::{InPlace, ReceiptLog};
use crate::site::{Fault, Site, blocking};
use downpour_catalog::{AdoptedFile, Answer, Change, ErrorClass, Time};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Keeps receipts of what is in its place and synced, and takes files and receipts into the catalog. The answers are in
/// their order.
pub(super) async fn record(
    site: &Arc<Site>,
    folder: &Path,
    files: Vec<InPlace>,
) -> Result<Vec<Answer>, Fault> {
    let (site, folder) = (site.clone(), folder.to_owned());
    blocking(move || record_here(&site, &folder, &files)).await
}

/// The same, on a thread where that may block.
pub(super) fn record_here(
    site: &Site,
    folder: &Path,
    files: &[InPlace],
) -> Result<Vec<Answer>, Fault> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let now = site.clock.now();
    kill_point("log.before");
    keep(folder, files)?;
    kill_point("adopt.before");
    let answers = adopt(site, folder, files, now)?;
    kill_point("adopt.after");
    Ok(answers)
}

/// The folder keeps its receipts itself, so that a lost catalog can be made again.
fn keep(folder: &Path, files: &[InPlace]) -> Result<(), Fault> {
    let failed = |what| Fault::new(ErrorClass::DestinationWriteFailed, what);
    let turn = turn_of(folder);
    let turn = turn.map_err(|error| failed(format!("{}: {error}", folder.display())))?;
    // Whoever opens the log looks at its end: nobody may be writing there.
    let _turn = lock(&turn);
    let signed = files.iter().map(|file| &file.signed);
    let kept = ReceiptLog::open(folder).and_then(|mut log| log.append(signed));
    kept.map_err(|error| failed(error.to_string()))
}

type Turn = Arc<Mutex<()>>;

/// Held by who writes to the log of a folder, whatever the path to it. A disk that does not answer holds up no other folder.
fn turn_of(folder: &Path) -> io::Result<Turn> {
    static TURNS: Mutex<BTreeMap<(u64, u64), Turn>> = Mutex::new(BTreeMap::new());
    let folder = std::fs::metadata(folder)?;
    Ok(lock(&TURNS).entry((folder.dev(), folder.ino())).or_default().clone())
}

/// Takes files and receipts into the catalog, in one commit.
fn adopt(site: &Site, folder: &Path, files: &[InPlace], now: Time) -> Result<Vec<Answer>, Fault> {
    let catalog = &site.catalog;
    let own = catalog.site(&site.name)?;
    let mut words = HashMap::new();
    let mut changes = Vec::with_capacity(files.len());
    for InPlace { signed, others } in files {
        let said = &signed.receipt;
        let key = (said.site.clone(), said.rule.clone());
        let (site, rule) = match words.get(&key) {
            Some(known) => *known,
            None => {
                let found = (catalog.site(&said.site)?, catalog.rule(&said.rule)?);
                *words.entry(key).or_insert(found)
            }
        };
        let path = folder.join(&said.path).to_string_lossy().into_owned();
        let adopted = signed.adopted((site, rule), (own, path), now);
        changes.push(Change::Adopt(AdoptedFile { others: others.clone(), ..adopted }));
    }
    Ok(catalog.submit(now, changes).wait()?)
}

#[cfg(test)]
mod tests {
    use super::{keep, turn_of};
    use crate::dispatch::lock;
    use std::sync::Arc;

    #[test]
    fn each_folder_has_a_turn_of_its_own_whatever_the_path_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let [hung, well, link] = ["hung", "well", "link"].map(|name| folder.path().join(name));
        std::fs::create_dir(&hung).unwrap();
        std::fs::create_dir(&well).unwrap();
        std::os::unix::fs::symlink(&hung, &link).unwrap();
        let turn = turn_of(&hung).unwrap();
        assert!(Arc::ptr_eq(&turn, &turn_of(&link).unwrap()));
        let _hung = lock(&turn);
        keep(&well, &[]).unwrap();
    }
}
