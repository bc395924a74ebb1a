//! What arrived is written down: by the receiving folder itself, then in the catalog.

use super::hooks::kill_point;
use crate::receipt::{ReceiptLog, SignedFileReceipt};
use crate::site::{Fault, Site};
use downpour_catalog::{
    AdoptedFile, Answer, Change, ErrorClass, FileId, Origin, OtherContent, Receipt, Time,
};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Keeps receipts of what is in its place and synced, and takes files and receipts into the catalog. The answers are in
/// their order.
pub(super) async fn record(
    site: &Arc<Site>,
    folder: &Path,
    signed: Vec<SignedFileReceipt>,
) -> Result<Vec<Answer>, Fault> {
    let (site, folder) = (site.clone(), folder.to_owned());
    blocking(move || record_here(&site, &folder, &signed)).await
}

/// The same, on a thread where that may block.
pub(super) fn record_here(
    site: &Site,
    folder: &Path,
    signed: &[SignedFileReceipt],
) -> Result<Vec<Answer>, Fault> {
    if signed.is_empty() {
        return Ok(Vec::new());
    }
    let now = site.clock.now();
    kill_point("log.before");
    keep(folder, signed)?;
    kill_point("adopt.before");
    let answers = adopt(site, folder, signed, now)?;
    kill_point("adopt.after");
    Ok(answers)
}

/// The folder keeps its receipts itself, so that a lost catalog can be made again.
fn keep(folder: &Path, signed: &[SignedFileReceipt]) -> Result<(), Fault> {
    // Whoever opens the log looks at its end: nobody may be writing there.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = ReceiptLog::open(folder).and_then(|mut log| log.append(signed));
    kept.map_err(|error| Fault::new(ErrorClass::DestinationWriteFailed, error.to_string()))
}

/// Takes files and receipts into the catalog, in one commit.
fn adopt(
    site: &Site,
    folder: &Path,
    signed: &[SignedFileReceipt],
    now: Time,
) -> Result<Vec<Answer>, Fault> {
    let catalog = &site.catalog;
    let own = catalog.site(&site.name)?;
    let mut words = HashMap::new();
    let mut changes = Vec::with_capacity(signed.len());
    for signed in signed {
        let said = &signed.receipt;
        let key = (said.site.clone(), said.rule.clone());
        let (site, rule) = match words.get(&key) {
            Some(known) => *known,
            None => {
                let found = (catalog.site(&said.site)?, catalog.rule(&said.rule)?);
                *words.entry(key).or_insert(found)
            }
        };
        let replicas = vec![(own, folder.join(&said.path).to_string_lossy().into_owned())];
        let (receiver, signed) = (said.receiver.as_bytes().to_vec(), signed.to_bytes());
        let receipt = Receipt { file: FileId(0), receiver, at: now, signed };
        changes.push(Change::Adopt(AdoptedFile {
            site,
            name: said.name.clone(),
            size: said.size,
            rule,
            digest: downpour_catalog::Digest::blake3(said.blake3.0),
            replicas,
            other_content: OtherContent::Refuse,
            origin: Some(Origin { version: said.version, taken_in: said.taken_in }),
            receipt: Some(receipt),
        }));
    }
    Ok(catalog.submit(now, changes).wait()?)
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let failed =
        |error: tokio::task::JoinError| Fault::new(ErrorClass::Internal, error.to_string());
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}
