//! Files that an operator submits, by their paths at this site.
//!
//! Only what lies below a folder that the configuration opens is taken: `[transfer] folders` and the spools. A file's name in
//! the catalog is its path below that folder. The same submission a second time finds the same files.

use super::offer::{Refusal, Trouble};
use super::route::{PRIORITY, rule_name};
use crate::site::{Config, Fault, Site};
use crate::spool::Template;
use downpour_catalog::{
    Answer, Applied, Catalog, Change, ErrorClass, Move, NewFile, Next, OtherContent, Refused,
    Replica, ReplicaState, State, Time, Transfer, TransferId,
};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use utoipa::ToSchema;

/// Files of one submission at most; more come in several under one transfer's number.
const FILES_MAX: usize = 200_000;
/// Refusals that are told.
const REFUSED_MAX: usize = 100;
/// Files that share a commit.
const FILES_AT_ONCE: usize = 1000;

/// Files to be moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// Files and folders by their paths.
    pub paths: Vec<String>,
    /// The site that shall have them.
    pub to: String,
    /// The site where they lie: this one unless it is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Where they go, a path template below the receiving folder: `{name}` unless it is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub into: Option<String>,
    /// Lower goes first; 100 unless it is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Number of the transfer, to add to one; a new one unless it is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<i64>,
}

/// What became of a submission.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// Its transfer's number.
    pub transfer: i64,
    /// Files that were taken in now.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files that were known already, with the same content.
    pub known: u64,
    /// How many were not taken.
    pub refused_count: u64,
    /// The first of them.
    pub refused: Vec<Refusal>,
}

impl Accepted {
    /// What a further request of the same transfer brought.
    pub(crate) fn add(&mut self, more: Self) {
        self.files += more.files;
        self.bytes += more.bytes;
        self.known += more.known;
        self.refused_count += more.refused_count;
        self.refused.extend(more.refused);
    }

    fn refuse(&mut self, what: impl Into<String>, class: ErrorClass, why: impl Into<String>) {
        self.refused_count += 1;
        if self.refused.len() < REFUSED_MAX {
            let refusal = Refusal { what: what.into(), trouble: Trouble::new(class, why) };
            self.refused.push(refusal);
        }
    }
}

/// A file that was found.
struct Seen {
    path: PathBuf,
    name: String,
    size: u64,
    stamp: i64,
}

/// Takes files in; they are hashed and queued by and by.
pub(super) async fn submit(site: &Arc<Site>, wish: Submission) -> Result<Accepted, Fault> {
    let site = site.clone();
    let done = tokio::task::spawn_blocking(move || take_in(&site, &wish));
    done.await.map_err(|error| Fault::new(ErrorClass::Internal, error.to_string()))?
}

fn take_in(site: &Site, wish: &Submission) -> Result<Accepted, Fault> {
    let (config, now) = (site.config(), site.clock.now());
    let mut accepted = Accepted { transfer: wish.transfer.unwrap_or(now.0), ..Accepted::default() };
    if let Some(Err(error)) = wish.into.as_ref().map(|into| into.parse::<Template>()) {
        accepted.refuse(wish.into.clone().unwrap_or_default(), ErrorClass::NameRefused, error);
        return Ok(accepted);
    }
    let seen = find(&config, &wish.paths, &mut accepted);
    if seen.is_empty() {
        return Ok(accepted);
    }
    let catalog = &*site.catalog;
    let (from, to) = (catalog.site(&site.name)?, catalog.site(&wish.to)?);
    let rule = catalog.rule(&rule_name(&wish.to, wish.into.as_deref()))?;
    let transfer = TransferId(accepted.transfer);
    let record = Change::Transfer(Transfer { id: transfer, from, to, submitted: now });
    catalog.submit(now, vec![record]).wait()?;
    for seen in seen.chunks(FILES_AT_ONCE) {
        let new = |seen: &Seen| {
            Change::TakeIn(NewFile {
                site: from,
                name: seen.name.clone(),
                size: seen.size,
                stamp: seen.stamp,
                rule,
                rank: wish.priority.unwrap_or(PRIORITY),
                transfer: Some(transfer),
                other_content: OtherContent::NewVersion,
            })
        };
        let answers = catalog.submit(now, seen.iter().map(new).collect()).wait()?;
        settle(catalog, now, from, seen.iter().zip(answers), &mut accepted)?;
    }
    Ok(accepted)
}

/// What is new is settled at once: whoever submits a file says that it is complete.
fn settle<'a>(
    catalog: &Catalog,
    now: Time,
    own: downpour_catalog::SiteId,
    answers: impl Iterator<Item = (&'a Seen, Answer)>,
    accepted: &mut Accepted,
) -> Result<(), Fault> {
    let mut changes = Vec::new();
    for (seen, answer) in answers {
        match answer {
            Ok(Applied { file, revision, state: Some(State::Found), .. }) => {
                accepted.files += 1;
                accepted.bytes += seen.size;
                let (path, state) =
                    (seen.path.to_string_lossy().into_owned(), ReplicaState::Present);
                changes.push(Change::Replica(Replica { file, site: own, path, state }));
                let next = Next::Settled { size: seen.size };
                changes.push(Change::Move(Move { file, at: revision, fence: None, next }));
            }
            Ok(_) => accepted.known += 1,
            Err(refused @ Refused::NameTaken { .. }) => {
                let class = ErrorClass::VersionConflict;
                accepted.refuse(&seen.name, class, refused.to_string());
            }
            Err(refused) => {
                accepted.refuse(&seen.name, ErrorClass::NameRefused, refused.to_string());
            }
        }
    }
    catalog.submit(now, changes).wait()?;
    Ok(())
}

/// The folders that may be read, with what is put before the names of files in them.
fn open_folders(config: &Config) -> Vec<(PathBuf, String)> {
    let spools = config.spool.iter().map(|spool| (spool.folder.clone(), spool.prefix.clone()));
    let folders = config.transfer.folders.iter();
    let folders = folders.map(|folder| (config.path(folder), String::new()));
    let real = |(folder, prefix): (PathBuf, String)| Some((folder.canonicalize().ok()?, prefix));
    spools.chain(folders).filter_map(real).collect()
}

fn find(config: &Config, paths: &[String], accepted: &mut Accepted) -> Vec<Seen> {
    let open = open_folders(config);
    let mut seen = Vec::new();
    for path in paths {
        // Links are followed here, once: what counts is where the file lies. Of one that is not there its folder counts, so that
        // nobody learns what there is elsewhere.
        let real = Path::new(path).canonicalize();
        let nearest = || Path::new(path).ancestors().find_map(|above| above.canonicalize().ok());
        let place = real.as_ref().ok().cloned().or_else(nearest).unwrap_or_default();
        let above = open.iter().filter(|(folder, _)| place.starts_with(folder));
        let Some((folder, prefix)) = above.max_by_key(|(folder, _)| folder.as_os_str().len())
        else {
            let why = "it is not below a spool or one of [transfer] folders";
            accepted.refuse(path, ErrorClass::SourceRefused, why);
            continue;
        };
        match real {
            Ok(real) => walk(&real, &(folder.clone(), prefix.clone()), &mut seen, accepted),
            Err(error) => accepted.refuse(path, class_of(&error), error.to_string()),
        }
    }
    seen
}

/// A file, or all files below a folder. Links are not followed.
fn walk(path: &Path, open: &(PathBuf, String), seen: &mut Vec<Seen>, accepted: &mut Accepted) {
    let text = path.to_string_lossy().into_owned();
    if seen.len() >= FILES_MAX {
        let why = format!("more than {FILES_MAX} files at once; submit them in parts");
        return accepted.refuse(text, ErrorClass::OutOfResources, why);
    }
    let meta = match path.symlink_metadata() {
        Ok(meta) => meta,
        Err(error) => return accepted.refuse(text, class_of(&error), error.to_string()),
    };
    if meta.is_dir() {
        if path.file_name().is_some_and(|name| name == ".downpour") {
            return;
        }
        let names = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        return match names {
            Ok(mut names) => {
                names.sort_by_key(std::fs::DirEntry::file_name);
                names.iter().for_each(|entry| walk(&entry.path(), open, seen, accepted));
            }
            Err(error) => accepted.refuse(text, class_of(&error), error.to_string()),
        };
    }
    let name = path.strip_prefix(&open.0).ok().and_then(Path::to_str);
    match name {
        _ if !meta.is_file() => {
            accepted.refuse(text, ErrorClass::FileUnreadable, "it is no regular file");
        }
        Some(name) => seen.push(Seen {
            path: path.to_owned(),
            name: format!("{}{name}", open.1),
            size: meta.len(),
            stamp: stamp(&meta),
        }),
        None => accepted.refuse(text, ErrorClass::NameRefused, "its name is not UTF-8"),
    }
}

/// Tells one content of a name from another, as far as that can be told without reading it.
fn stamp(meta: &std::fs::Metadata) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for number in [meta.mtime(), meta.mtime_nsec(), meta.ino() as i64, meta.size() as i64] {
        hasher.update(&number.to_le_bytes());
    }
    let hash = hasher.finalize();
    let head = hash.as_bytes().first_chunk().copied().unwrap_or([1; 8]);
    // 0 would be like no other.
    i64::from_le_bytes(head) | 1
}

fn class_of(error: &std::io::Error) -> ErrorClass {
    match error.kind() {
        std::io::ErrorKind::NotFound => ErrorClass::FileGone,
        std::io::ErrorKind::PermissionDenied => ErrorClass::FileUnreadable,
        _ => ErrorClass::SourceReadFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::{Accepted, find};
    use std::fs;

    #[test]
    fn what_is_open_is_found_and_nothing_is_told_of_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        fs::create_dir_all(path("data/run")).unwrap();
        for file in ["data/run/a", "secret"] {
            fs::write(path(file), "content").unwrap();
        }
        std::os::unix::fs::symlink(folder.path(), path("data/out")).unwrap();
        let text = format!("[site]\nname = 'a'\n[transfer]\nfolders = ['{}']", path("data"));
        let config = toml::from_str(&text).unwrap();
        let class = |name: &str| {
            let mut accepted = Accepted::default();
            let seen = find(&config, &[path(name)], &mut accepted);
            match (seen.len(), accepted.refused.first()) {
                (0, Some(refusal)) => refusal.trouble.class.clone(),
                (found, _) => format!("{found} found"),
            }
        };
        for (name, expected) in [
            ("data/run/a", "1 found"),
            ("data", "1 found"),
            ("data/run/none", "file-gone"),
            ("data/none/none", "file-gone"),
            ("secret", "source-refused"),
            ("none", "source-refused"),
            ("data/../secret", "source-refused"),
            ("data/../none", "source-refused"),
            ("data/out/secret", "source-refused"),
            ("data/out/none", "source-refused"),
        ] {
            assert_eq!(class(name), expected, "{name}");
        }
    }
}
