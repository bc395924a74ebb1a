//! What of an offer is in its place already, left there by a session that was cut: it is read back, signed for and recorded
//! before the rest is taken, so that nothing of it is sent again. What is known to be damaged, and is not that, makes way.

use super::arriving::{Judged, Taken};
use super::incoming::receipt;
use super::offer::Said;
use super::record::{blocking, record};
use crate::receipt::SignedFileReceipt;
use crate::site::{Fault, Site};
use downpour_catalog::ErrorClass;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are read before an offer is answered. Of more, and of larger files, the session finds what is there.
const READ_MAX: u64 = 256 << 20;

/// Answers for the files that are here with a receipt, and takes the others.
pub(super) async fn find(
    site: &Arc<Site>,
    folder: &Path,
    batch: &str,
    judged: &mut Judged,
) -> Result<(), Fault> {
    let (taken, signer) = (judged.taken.clone(), site.clone());
    let (below, batch) = (folder.to_owned(), batch.to_owned());
    let found = blocking(move || read(&signer, &below, &batch, &taken)).await?;
    if found.is_empty() {
        return Ok(());
    }
    let receipts = found.iter().map(|(_, receipt)| receipt.clone()).collect();
    let answers = record(site, folder, receipts).await?;
    tracing::info!(files = found.len(), "were in their places already");
    let mut receipts: Vec<Option<SignedFileReceipt>> = vec![None; judged.taken.len()];
    for ((index, receipt), answer) in found.into_iter().zip(answers) {
        receipts[index] = answer.is_ok().then_some(receipt);
    }
    let takes = judged.said.iter_mut().filter(|said| matches!(said, Said::Take { .. }));
    let taken = std::mem::take(&mut judged.taken);
    for ((said, taken), receipt) in takes.zip(taken).zip(receipts) {
        match receipt {
            Some(receipt) => *said = Said::Have { receipt: Box::new(receipt) },
            None => judged.taken.push(taken),
        }
    }
    Ok(())
}

/// Which of these are here as they shall be, on the disk.
fn read(
    site: &Site,
    folder: &Path,
    batch: &str,
    taken: &[Taken],
) -> Result<Vec<(usize, SignedFileReceipt)>, Fault> {
    let (mut found, mut left) = (Vec::new(), READ_MAX);
    for (index, taken) in taken.iter().enumerate() {
        let receipt = receipt(site, taken, batch);
        let is_right = taken.is_there(folder)
            && left.checked_sub(taken.item.size).is_some_and(|rest| {
                left = rest;
                receipt.check_content(folder).is_ok()
            });
        match is_right.then(|| receipt.sign(&site.identity)) {
            Some(Ok(signed)) => found.push((index, signed)),
            _ => taken.make_way(folder),
        }
    }
    if !found.is_empty() {
        let synced = std::fs::File::open(folder).and_then(|at| Ok(rustix::fs::syncfs(at)?));
        synced.map_err(|e| Fault::new(ErrorClass::DestinationWriteFailed, e.to_string()))?;
    }
    Ok(found)
}
