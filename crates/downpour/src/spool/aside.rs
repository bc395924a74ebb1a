//! Quarantine: the folder `.quarantine` in the spool, where a file lies that fails for its own fault, with the reason beside it.
//!
//! `.quarantine/run/a.root` and `.quarantine/run/a.root.reason.json`; where the name has no room for that, both are called by the file's
//! number. The catalog is told first, then the reason is written, then the file is moved; what lies in
//! the spool though the catalog has set it apart is moved when it is next seen. Release goes the other way round. A reason without a
//! file is left from a move that did not come about, and counts for nothing; a file without a reason is shown, and can be released.

use super::root::{OWN, Root, join};
use super::section::SpoolSection;
use downpour_catalog::ErrorClass;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io::Read as _;
use utoipa::ToSchema;

/// The folder.
const FOLDER: &str = ".quarantine";
/// How the reason's file ends.
const REASON: &str = ".reason.json";
/// How a reason's file ends while it is written.
const REASON_NEW: &str = ".reason.json.new";
/// A name that is longer has no room for `.NUMBER` and the reason's ending in the 255 bytes of a file system.
const NAME_MAX: usize = 255 - REASON_NEW.len() - 3;
/// Class of a file without a reason.
const UNKNOWN: &str = "unknown";
/// Files of the same name in quarantine, at most.
const SAME_NAME_MAX: u32 = 100;
/// A reason that is longer is none of ours.
const REASON_BYTES_MAX: u64 = 64 << 10;

/// Why a file is in quarantine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetApart {
    /// Its path in the spool, where it goes back to.
    pub path: String,
    /// Its number in the catalog; 0 if no reason lies beside it.
    pub file: i64,
    /// Name of the error class, or `cancelled`; `unknown` if no reason lies beside it.
    pub class: String,
    /// What was wrong, for people.
    pub text: String,
    /// Since when: microseconds since 1970, UTC.
    pub since: i64,
}

impl SetApart {
    /// Class and text for people, each said once.
    pub fn words(&self) -> String {
        match self.text == self.class {
            true => self.class.clone(),
            false => format!("{}: {}", self.class, self.text),
        }
    }

    /// Its error class; `None` when it was cancelled, or nobody knows.
    pub fn class(&self) -> Option<ErrorClass> {
        self.class.parse().ok()
    }

    /// Whether somebody means this one, which lies at `place`, by its path in the spool, by where it lies, or by its number.
    pub(super) fn is_meant(&self, place: &str, meant: &str) -> bool {
        self.path == meant || place == meant || self.file.to_string() == meant
    }
}

/// Where a file goes, as one of several that may have the same name there.
fn place_of(path: &str, file: i64, number: u32) -> String {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = if parent.is_empty() { FOLDER.to_owned() } else { join(FOLDER, parent) };
    let place = match name.len() {
        0..=NAME_MAX => join(&folder, name),
        _ => join(&folder, &file.to_string()),
    };
    if number == 1 { place } else { format!("{place}.{number}") }
}

fn reason_of(place: &str) -> String {
    format!("{place}{REASON}")
}

/// Moves a file to quarantine. The reason is there first: without it nobody would know where the file belongs.
pub(super) fn put(root: &Root, reason: &SetApart) -> Result<String, Errno> {
    let (parent, _) = reason.path.rsplit_once('/').unwrap_or(("", &reason.path));
    root.make_folder(&join(FOLDER, parent))?;
    let text = serde_json::to_vec_pretty(reason).map_err(|_| Errno::INVAL)?;
    for number in 1..SAME_NAME_MAX {
        let place = place_of(&reason.path, reason.file, number);
        let beside = reason_of(&place);
        let is_free = |place: &str| root.look(place).map(|seen| seen.is_none());
        // Nor is somebody's file written over that is called as a reason is.
        if !is_free(&place)? || !(is_free(&beside)? || read(root, &beside).is_some()) {
            continue;
        }
        root.write(&beside, &text)?;
        match root.rename(&reason.path, &place) {
            Ok(()) => return Ok(place),
            Err(error) => {
                let _ = root.remove(&beside);
                if error != Errno::EXIST {
                    return Err(error);
                }
            }
        }
    }
    Err(Errno::EXIST)
}

/// A file in quarantine: where it lies, its bytes, and whether something that is called as its reason lies beside it.
struct Lying {
    place: String,
    size: u64,
    has_reason: bool,
}

fn look(root: &Root) -> Vec<Lying> {
    let mut found = Vec::new();
    let mut folders = vec![FOLDER.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(listing) = root.list(&folder) else { continue };
        folders.extend(listing.folders.iter().map(|name| join(&folder, name)));
        let names: HashSet<&str> = listing.files.iter().map(|(name, _)| name.as_str()).collect();
        for (name, seen) in &listing.files {
            let place = join(&folder, name);
            // A reason is beside its file, or is left from before that was moved.
            let is_reason = name
                .strip_suffix(REASON)
                .is_some_and(|of| names.contains(of) || read(root, &place).is_some());
            if !is_reason && !name.ends_with(REASON_NEW) {
                let has_reason = names.contains(reason_of(name).as_str());
                found.push(Lying { place, size: seen.size, has_reason });
            }
        }
    }
    found
}

/// What is in quarantine: where each file lies, and why.
pub(super) fn list(root: &Root) -> Vec<(String, SetApart)> {
    let why = |lying: Lying| {
        let reason = lying.has_reason.then(|| read(root, &reason_of(&lying.place))).flatten();
        let reason = reason.unwrap_or_else(|| unknown(&lying.place));
        (lying.place, reason)
    };
    let mut found: Vec<_> = look(root).into_iter().map(why).collect();
    found.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    found
}

fn unknown(place: &str) -> SetApart {
    let path = place.strip_prefix(FOLDER).and_then(|path| path.strip_prefix('/'));
    SetApart {
        path: path.unwrap_or(place).to_owned(),
        file: 0,
        class: UNKNOWN.to_owned(),
        text: "no reason lies beside it".to_owned(),
        since: 0,
    }
}

/// The file in quarantine that somebody means by its path in the spool, by where it lies, or by its number.
pub(super) fn find(root: &Root, meant: &str) -> Option<(String, SetApart)> {
    let place = join(FOLDER, meant);
    let reason = read(root, &reason_of(&place)).filter(|reason| reason.path == meant);
    if let (Some(reason), Ok(Some(_))) = (reason, root.look(&place)) {
        return Some((place, reason));
    }
    list(root).into_iter().find(|(place, reason)| reason.is_meant(place, meant))
}

/// Whether a file of the catalog lies in the quarantine of one of these spools.
pub fn lies_aside(spools: &[SpoolSection], name: &str, file: i64) -> bool {
    spools.iter().any(|spool| {
        let Some(path) = name.strip_prefix(&spool.prefix) else { return false };
        let Ok(root) = Root::borrow(&spool.folder) else { return false };
        let (parent, _) = path.rsplit_once('/').unwrap_or(("", path));
        let is_it = |place: String| {
            read(&root, &reason_of(&place)).is_some_and(|reason| reason.file == file)
                && matches!(root.look(&place), Ok(Some(_)))
        };
        root.is_folder(&join(FOLDER, parent))
            && (1..SAME_NAME_MAX).any(|number| is_it(place_of(path, file, number)))
    })
}

fn read(root: &Root, place: &str) -> Option<SetApart> {
    let mut bytes = Vec::new();
    let file = root.open_file(place).ok()?;
    file.take(REASON_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Moves a file back to where it came from.
pub(super) fn put_back(root: &Root, place: &str, reason: &SetApart) -> Result<(), Errno> {
    root.rename_back(place, &reason.path)?;
    // One that stays, or was never there, counts for nothing.
    let _ = root.remove(&reason_of(place));
    Ok(())
}

/// How many files lie in quarantine, and their bytes.
pub(super) fn count(root: &Root) -> (usize, u64) {
    let lying = look(root);
    (lying.len(), lying.iter().map(|file| file.size).sum())
}

/// Where a file waits while it leaves the spool.
pub(super) fn leaving(file: i64) -> String {
    format!("{OWN}/leaving.{file}")
}
