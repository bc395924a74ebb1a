//! Quarantine: the folder `.quarantine` in the spool, where a file lies that fails for its own fault, with the reason beside it.
//!
//! `.quarantine/run/a.root` and `.quarantine/run/a.root.reason.json`. The catalog is told first, then the file is moved; what lies in
//! the spool though the catalog has set it apart is moved when it is next seen. Release goes the other way round.

use super::root::{OWN, Root, join};
use downpour_catalog::ErrorClass;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io::Read as _;
use utoipa::ToSchema;

/// The folder.
const FOLDER: &str = ".quarantine";
/// How the reason's file ends.
const REASON: &str = ".reason.json";
/// Files of the same name in quarantine, at most.
const SAME_NAME_MAX: u32 = 100;
/// A reason that is longer is none of ours.
const REASON_BYTES_MAX: u64 = 64 << 10;

/// Why a file is in quarantine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetApart {
    /// Its path in the spool, where it goes back to.
    pub path: String,
    /// Its number in the catalog.
    pub file: i64,
    /// Name of the error class, or `cancelled`.
    pub class: String,
    /// What was wrong, for people.
    pub text: String,
    /// Since when: microseconds since 1970, UTC.
    pub since: i64,
}

impl SetApart {
    /// Its error class; `None` when it was cancelled.
    pub fn class(&self) -> Option<ErrorClass> {
        self.class.parse().ok()
    }
}

/// Moves a file to quarantine.
pub(super) fn put(root: &Root, reason: &SetApart) -> Result<String, Errno> {
    let (parent, _) = reason.path.rsplit_once('/').unwrap_or(("", &reason.path));
    root.make_folder(&join(FOLDER, parent))?;
    let text = serde_json::to_vec_pretty(reason).map_err(|_| Errno::INVAL)?;
    for number in 1..SAME_NAME_MAX {
        let place = match number {
            1 => join(FOLDER, &reason.path),
            _ => format!("{}.{number}", join(FOLDER, &reason.path)),
        };
        match root.rename(&reason.path, &place) {
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
            Ok(()) => {
                root.write(&format!("{place}{REASON}"), &text)?;
                return Ok(place);
            }
        }
    }
    Err(Errno::EXIST)
}

/// What is in quarantine: where each file lies, and why.
pub(super) fn list(root: &Root) -> Vec<(String, SetApart)> {
    let mut found = Vec::new();
    let mut folders = vec![FOLDER.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(listing) = root.list(&folder) else { continue };
        folders.extend(listing.folders.iter().map(|name| join(&folder, name)));
        for (name, _) in listing.files {
            let place = join(&folder, &name);
            if let (Some(file), Some(reason)) = (place.strip_suffix(REASON), read(root, &place)) {
                found.push((file.to_owned(), reason));
            }
        }
    }
    found.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    found
}

fn read(root: &Root, place: &str) -> Option<SetApart> {
    let mut bytes = Vec::new();
    let file = root.open_file(place).ok()?;
    file.take(REASON_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Moves a file back to where it came from.
pub(super) fn put_back(root: &Root, place: &str, reason: &SetApart) -> Result<(), Errno> {
    if let Some((parent, _)) = reason.path.rsplit_once('/') {
        root.make_folder(parent)?;
    }
    root.rename(place, &reason.path)?;
    root.remove(&format!("{place}{REASON}"))
}

/// How many files lie in quarantine, and their bytes.
pub(super) fn count(root: &Root) -> (usize, u64) {
    let listed = list(root);
    let size = |(place, _): &(String, _)| root.look(place).ok().flatten().map(|seen| seen.size);
    (listed.len(), listed.iter().filter_map(size).sum())
}

/// Where a file waits while it leaves the spool.
pub(super) fn leaving(file: i64) -> String {
    format!("{OWN}/leaving.{file}")
}
