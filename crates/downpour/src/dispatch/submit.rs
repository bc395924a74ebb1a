//! Files that an operator submits, by their paths at this site.
//!
//! Only what lies below a folder that the configuration opens is taken: `[transfer] folders` and the spools. A file's name in
//! the catalog is its path below that folder. The same submission a second time finds the same files; to another destination,
//! or after they were given up, it is the next version of each.

use super::Dispatch;
use super::folders::OpenFolders;
use super::offer::Trouble;
use super::policy::source_class;
use super::route::{PRIORITY, check_into, rule_name};
use super::turns::in_turn;
use crate::api::Problem;
use crate::site::{Config, Fault, Site, blocking, is_own, real};
use crate::spool::Template;
use downpour_catalog::{
    Answer, Applied, Catalog, Change, ErrorClass, Move, NewFile, Next, OtherContent, Refused,
    Replica, ReplicaState, Same, State, Time, Transfer, TransferId,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// Files of one request at most, unless it is answered in pages.
const FILES_MAX: usize = 200_000;
/// A page ends after so long: who asks waits for the answer for 30 s.
const PAGE_TIME: Duration = Duration::from_secs(5);
/// Refusals that are told.
const REFUSED_MAX: usize = 100;
/// Files that share a commit.
const FILES_AT_ONCE: usize = 1000;
/// Why what the daemon keeps for itself is not taken.
const OF_STATE: &str = "it is of this site's state folder, which is for nobody";

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
    /// No more files than this in one answer, and no more than some seconds of work. It says where to go on. Without it
    /// all are taken in before the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u64>,
    /// Where to go on: `next` of the answer before, to the same submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// What became of a submission.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// Its transfer's number. Where `files` and `known` are 0 there is no such transfer yet.
    pub transfer: i64,
    /// Files that were taken in now.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files that go there already, or are there, with the same content.
    pub known: u64,
    /// Other transfers, by which such files are still to arrive.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub others: BTreeSet<i64>,
    /// How many were not taken.
    pub refused_count: u64,
    /// The first of them.
    pub refused: Vec<Refusal>,
    /// There is more: where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Something that was asked for and will not come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    /// The file, as it was asked for.
    pub what: String,
    /// Why.
    pub trouble: Trouble,
}

impl Submission {
    /// Whether an answer to it can have said to go on there.
    pub(super) fn goes_on(&self) -> bool {
        self.after.is_none() || self.begins().is_some_and(|path| path < self.paths.len())
    }

    /// In which of its paths it goes on.
    fn begins(&self) -> Option<usize> {
        self.after.as_ref()?.split_once(':')?.0.parse().ok()
    }

    /// Files of one answer.
    fn most(&self) -> usize {
        let most = self.most.and_then(|most| usize::try_from(most).ok());
        most.unwrap_or(FILES_MAX).clamp(1, FILES_MAX)
    }
}

impl Accepted {
    /// What a further request of the same transfer brought.
    pub(crate) fn add(&mut self, more: Self) {
        self.files += more.files;
        self.bytes += more.bytes;
        self.known += more.known;
        self.others.extend(more.others);
        self.refused_count += more.refused_count;
        let room = REFUSED_MAX.saturating_sub(self.refused.len());
        self.refused.extend(more.refused.into_iter().take(room));
        self.next = more.next;
    }

    /// Nothing was taken in: there is no such transfer.
    pub(crate) fn is_nothing(&self) -> bool {
        self.files + self.known == 0
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

/// Takes files in; they are hashed and queued by and by. Until the first are found, before anything is recorded, a disk that does not
/// answer is not waited for.
pub(super) async fn submit(
    dispatch: &Dispatch,
    site: &Arc<Site>,
    wish: Submission,
) -> Result<Accepted, Problem> {
    let before = match wish.transfer {
        Some(id) => site.read(move |reader| reader.transfer(TransferId(id))).await?,
        None => None,
    };
    let (wish, config) = (Arc::new(wish), site.config());
    let at = wish.paths.get(wish.begins().unwrap_or(0)).map_or(Path::new(""), Path::new);
    let turns = dispatch.turns.looks(&config, at);
    let (of, wished) = (site.clone(), wish.clone());
    let found = in_turn(turns, at, blocking(move || Ok(find(&of, &wished)))).await?;
    let site = site.clone();
    Ok(blocking(move || take_in(&site, &wish, before, found)).await?)
}

/// What is found first, and the walk to the rest.
fn find(site: &Site, wish: &Submission) -> (Accepted, Walk, Vec<Seen>) {
    let transfer = wish.transfer.unwrap_or(site.clock.now().0);
    let mut accepted = Accepted { transfer, ..Accepted::default() };
    let mut walk = Walk::new(&site.config(), &wish.paths, wish.after.as_deref());
    let into = wish.into.as_deref();
    let template = into.map_or(Ok(()), |into| into.parse::<Template>().map(drop));
    let seen = match template.and_then(|()| check_into(&wish.to, into)) {
        Ok(()) => walk.some(FILES_AT_ONCE.min(wish.most()), &mut accepted),
        Err(error) => {
            accepted.refuse(into.unwrap_or_default(), ErrorClass::NameRefused, error);
            Vec::new()
        }
    };
    (accepted, walk, seen)
}

/// `before`: the transfer that has the number already.
fn take_in(
    site: &Site,
    wish: &Submission,
    before: Option<Transfer>,
    (mut accepted, mut walk, mut seen): (Accepted, Walk, Vec<Seen>),
) -> Result<Accepted, Fault> {
    if seen.is_empty() {
        return Ok(accepted);
    }
    let (now, most, into) = (site.clock.now(), wish.most(), wish.into.as_deref());
    let catalog = &*site.catalog;
    let (from, to) = (catalog.site(&site.name)?, catalog.site(&wish.to)?);
    let rule = catalog.rule(&rule_name(&wish.to, into))?;
    let transfer = TransferId(accepted.transfer);
    match before {
        None => {
            let record = Change::Transfer(Transfer { id: transfer, from, to, submitted: now });
            catalog.submit(now, vec![record]).wait()?;
        }
        Some(before) if (before.from, before.to) == (from, to) => {}
        Some(_) => {
            let why = format!("it is not one to {}: choose another number, or none", wish.to);
            accepted.refuse(format!("transfer {}", transfer.0), ErrorClass::SourceRefused, why);
            return Ok(accepted);
        }
    }
    let (begun, mut done) = (Instant::now(), 0);
    while let Some(last) = seen.last() {
        let place = walk.place(last);
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
                same: Same::OfRule,
            })
        };
        let answers = catalog.submit(now, seen.iter().map(new).collect()).wait()?;
        settle(catalog, now, from, seen.iter().zip(answers), &mut accepted)?;
        let whole = seen.len() == FILES_AT_ONCE.min(most - done);
        done += seen.len();
        if whole && wish.most.is_some() && (done == most || begun.elapsed() > PAGE_TIME) {
            accepted.next = Some(place);
            break;
        }
        seen = walk.some(FILES_AT_ONCE.min(most - done), &mut accepted);
    }
    if wish.most.is_none() && walk.some(1, &mut accepted).pop().is_some() {
        let why = format!("more than {FILES_MAX} files at once; submit them in pages");
        accepted.refuse(wish.paths.join(", "), ErrorClass::OutOfResources, why);
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
    let (mut changes, mut settled) = (Vec::new(), HashSet::new());
    for (seen, answer) in answers {
        match answer {
            Ok(Applied { file, state: Some(State::Quarantined), .. }) => {
                let todo = format!("downpour transfer release {file}");
                let why = format!("submitted before, and in quarantine: `{todo}` lets it out");
                accepted.refuse(&seen.name, ErrorClass::SourceRefused, why);
            }
            Ok(Applied { file, revision, state, transfer, .. }) => {
                // Also one whose first submission was cut short; once, by however many of the paths it was found.
                let is_found = state == Some(State::Found) && settled.insert(file);
                match transfer.filter(|by| by.0 != accepted.transfer) {
                    None if is_found => {
                        accepted.files += 1;
                        accepted.bytes += seen.size;
                    }
                    other => {
                        accepted.known += 1;
                        accepted.others.extend(other.map(|by| by.0));
                    }
                }
                if is_found {
                    let (path, state) =
                        (seen.path.to_string_lossy().into_owned(), ReplicaState::Present);
                    changes.push(Change::Replica(Replica { file, site: own, path, state }));
                    let next = Next::Settled { size: seen.size };
                    changes.push(Change::Move(Move { file, at: revision, fence: None, next }));
                }
            }
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

/// The files below some paths, in the order of their names, so that it can go on where it ended. Links in a path are
/// followed, once: what counts is where it lies; those below it are not.
struct Walk {
    open: OpenFolders,
    paths: Vec<String>,
    /// Which path comes next.
    next: usize,
    /// In that path, all up to the file of this name was seen already.
    resume: Option<String>,
    /// In the path that is walked, all up to this file was seen already.
    after: Option<PathBuf>,
    /// The state folder, of which nothing is taken.
    state: PathBuf,
    /// The folder that is open and that path lies in, and what is put before names in it.
    above: (PathBuf, String),
    /// What is still to be looked at, folder in folder.
    folders: Vec<std::vec::IntoIter<PathBuf>>,
}

impl Walk {
    fn new(config: &Config, paths: &[String], after: Option<&str>) -> Self {
        let place = after.and_then(|place| place.split_once(':'));
        let (next, resume) =
            place.map_or((0, None), |(number, name)| (number.parse().unwrap_or(0), Some(name)));
        let (open, above, folders) = (OpenFolders::of(config), Default::default(), Vec::new());
        let (paths, resume) = (paths.to_vec(), resume.map(str::to_owned));
        let state = real(&config.state());
        Self { open, paths, next, resume, after: None, state, above, folders }
    }

    /// Where to go on after this file, which is the last that was found.
    fn place(&self, file: &Seen) -> String {
        let name = file.name.strip_prefix(&self.above.1).unwrap_or(&file.name);
        format!("{}:{name}", self.next.saturating_sub(1))
    }

    /// So many of the next files; fewer at the end only.
    fn some(&mut self, most: usize, accepted: &mut Accepted) -> Vec<Seen> {
        let mut seen = Vec::new();
        while seen.len() < most {
            let Some(folder) = self.folders.last_mut() else {
                match self.paths.get(self.next).cloned() {
                    Some(path) => self.enter(&path, accepted),
                    None => break,
                }
                continue;
            };
            match folder.next() {
                Some(path) => seen.extend(self.look(path, accepted)),
                None => drop(self.folders.pop()),
            }
        }
        seen
    }

    /// Turns to the next path.
    fn enter(&mut self, path: &str, accepted: &mut Accepted) {
        self.next += 1;
        let resume = self.resume.take();
        // Of one that is not there its folder counts, so that nobody learns what there is elsewhere.
        let real = Path::new(path).canonicalize();
        let nearest = || Path::new(path).ancestors().find_map(|above| above.canonicalize().ok());
        let place = real.as_ref().ok().cloned().or_else(nearest).unwrap_or_default();
        if is_own(&self.state, &place) {
            return accepted.refuse(path, ErrorClass::SourceRefused, OF_STATE);
        }
        let ends = (Path::new(path), place.as_path());
        let Some(above) = self.open.above(ends, Path::canonicalize) else {
            let why = "it is not below a spool or one of [transfer] folders";
            return accepted.refuse(path, ErrorClass::SourceRefused, why);
        };
        self.above = above;
        self.after = resume.map(|name| self.above.0.join(name));
        match real {
            Ok(real) => self.push(vec![real]),
            Err(error) => accepted.refuse(path, source_class(&error), error.to_string()),
        }
    }

    /// These are looked at next, but for what was seen already.
    fn push(&mut self, mut paths: Vec<PathBuf>) {
        paths.sort_unstable();
        if let Some(after) = &self.after {
            paths.retain(|path| path > after || (path != after && after.starts_with(path)));
        }
        self.folders.push(paths.into_iter());
    }

    /// A file is given, a folder entered.
    fn look(&mut self, path: PathBuf, accepted: &mut Accepted) -> Option<Seen> {
        let mut refuse = |class, why: String| {
            accepted.refuse(path.to_string_lossy(), class, why);
            None
        };
        if is_own(&self.state, &path) {
            return refuse(ErrorClass::SourceRefused, OF_STATE.to_owned());
        }
        let meta = match path.symlink_metadata() {
            Ok(meta) => meta,
            Err(error) => return refuse(source_class(&error), error.to_string()),
        };
        if meta.is_dir() {
            if path.file_name().is_some_and(|name| name == ".downpour") {
                return None;
            }
            let entries = std::fs::read_dir(&path);
            match entries.and_then(|all| all.map(|entry| Ok(entry?.path())).collect()) {
                Ok(paths) => self.push(paths),
                Err(error) => return refuse(source_class(&error), error.to_string()),
            }
            return None;
        }
        if !meta.is_file() {
            return refuse(ErrorClass::FileUnreadable, "it is no regular file".to_owned());
        }
        let (folder, prefix) = &self.above;
        let Some(name) = path.strip_prefix(folder).ok().and_then(Path::to_str) else {
            return refuse(ErrorClass::NameRefused, "its name is not UTF-8".to_owned());
        };
        let (name, size, stamp) = (format!("{prefix}{name}"), meta.len(), stamp(&meta));
        Some(Seen { path, name, size, stamp })
    }
}

/// Tells one content of a name from another, as far as that can be told without reading it.
pub(super) fn stamp(meta: &std::fs::Metadata) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for number in [meta.mtime(), meta.mtime_nsec(), meta.ino() as i64, meta.size() as i64] {
        hasher.update(&number.to_le_bytes());
    }
    let hash = hasher.finalize();
    let head = hash.as_bytes().first_chunk().copied().unwrap_or([1; 8]);
    // 0 would be like no other.
    i64::from_le_bytes(head) | 1
}

#[cfg(test)]
mod tests {
    use super::{Accepted, Seen, Submission, Walk, settle};
    use crate::dispatch::Dispatch;
    use crate::site::Daemon;
    use downpour_catalog::{
        BeforeMigration, Catalog, CatalogUrl, Change, ErrorClass, NewFile, OtherContent, Same,
        Time, TransferId,
    };
    use std::fs;
    use std::sync::Arc;

    #[test]
    fn a_file_that_is_found_by_two_paths_is_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let (url, now) = (CatalogUrl::Sqlite(folder.path().join("catalog.db")), Time(1));
        let catalog = Catalog::open(&url, "test", now, &BeforeMigration::Refuse).unwrap();
        let own = catalog.site("a").unwrap();
        let seen = || Seen { path: "/data/x".into(), name: "x".to_owned(), size: 3, stamp: 7 };
        let new = Change::TakeIn(NewFile {
            site: own,
            name: "x".to_owned(),
            size: 3,
            stamp: 7,
            rule: catalog.rule("to:b").unwrap(),
            rank: 100,
            transfer: Some(TransferId(5)),
            other_content: OtherContent::NewVersion,
            same: Same::OfRule,
        });
        let answers = catalog.apply(now, &[new.clone(), new]).unwrap();
        let seen = [seen(), seen()];
        let mut accepted = Accepted { transfer: 5, ..Accepted::default() };
        settle(&catalog, now, own, seen.iter().zip(answers), &mut accepted).unwrap();
        assert_eq!((accepted.files, accepted.bytes, accepted.known), (1, 3, 1));
    }

    #[tokio::test]
    async fn a_transfer_stays_from_where_and_to_where_it_goes() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::write(data.join("x"), "x").unwrap();
        let more = format!("[transfer]\nfolders = [{data:?}]");
        let site = &Daemon::ended(folder.path(), "a", &more).await;
        let dispatch = Dispatch::new(site, &Arc::default());
        let submitted = async |to: &str, transfer| {
            let paths = vec![data.to_str().unwrap().to_owned()];
            let wish = Submission { paths, to: to.to_owned(), transfer, ..Submission::default() };
            super::submit(&dispatch, site, wish).await.unwrap()
        };
        let known =
            async |id| site.read(move |reader| reader.transfer(TransferId(id))).await.unwrap();
        let first = submitted("b", None).await;
        assert_eq!((first.files, first.refused_count), (1, 0));
        let before = known(first.transfer).await;
        assert_eq!(submitted("b", Some(first.transfer)).await.known, 1, "to add to it");
        let other = submitted("c", Some(first.transfer)).await;
        assert!(other.is_nothing() && other.refused_count == 1, "{other:?}");
        assert!(before.is_some() && known(first.transfer).await == before);
    }

    #[tokio::test]
    async fn a_disk_that_does_not_answer_is_not_waited_for_and_holds_up_no_other_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        for name in ["hung", "well"] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name) + "/" + name, "content").unwrap();
        }
        let more = format!("[transfer]\nfolders = ['{}', '{}']", path("hung"), path("well"));
        let site = Daemon::ended(folder.path(), "a", &more).await;
        let dispatch = Dispatch::new(&site, &Arc::default());
        let turns = dispatch.turns.looks(&site.config(), path("hung").as_ref());
        let all = u32::try_from(turns.available_permits()).unwrap();
        let held = turns.acquire_many_owned(all).await.unwrap();
        let submitted = async |name| {
            let paths = vec![path(name)];
            let wish = Submission { paths, to: "b".to_owned(), ..Submission::default() };
            let accepted = super::submit(&dispatch, &site, wish).await;
            accepted.map(|accepted| accepted.files).map_err(|problem| problem.class())
        };
        assert_eq!(submitted("well").await, Ok(1));
        tokio::time::pause();
        assert_eq!(submitted("hung").await, Err(Some(ErrorClass::OutOfResources)));
        tokio::time::resume();
        drop(held);
        assert_eq!(submitted("hung").await, Ok(1));
    }

    #[test]
    fn it_goes_on_in_one_of_its_paths_only() {
        let paths = vec!["/data/a".to_owned(), "/data/b".to_owned()];
        let goes_on = |after: &str| {
            let (paths, after) = (paths.clone(), Some(after.to_owned()));
            Submission { paths, after, ..Submission::default() }.goes_on()
        };
        assert!(Submission::default().goes_on() && goes_on("0:") && goes_on("1:b/x:y"));
        for bad in ["zzz", "", ":x", "1", "2:b", "-1:b"] {
            assert!(!goes_on(bad), "{bad}");
        }
    }

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
            let paths = [path(name)];
            let seen = Walk::new(&config, &paths, None).some(9, &mut accepted);
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

    #[test]
    fn nothing_is_taken_of_the_state_folder_but_what_arrives_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        for made in ["state/inbox", "state/mirror"] {
            fs::create_dir_all(path(made)).unwrap();
        }
        for file in ["a", "state/node.key", "state/mirror/b.db", "state/inbox/b"] {
            fs::write(path(file), "content").unwrap();
        }
        std::os::unix::fs::symlink("state", path("link")).unwrap();
        let text = format!(
            "[site]\nname = 'a'\nstate = '{0}/state'\n[transfer]\nfolders = ['{0}']",
            folder.path().display()
        );
        let config = toml::from_str(&text).unwrap();
        for (name, found, refused) in [
            ("", 1, 2),
            ("state", 0, 1),
            ("state/node.key", 0, 1),
            ("state/none", 0, 1),
            ("state/mirror/b.db", 0, 1),
            ("link/node.key", 0, 1),
            ("state/inbox", 1, 0),
        ] {
            let (mut accepted, paths) = (Accepted::default(), [path(name)]);
            let seen = Walk::new(&config, &paths, None).some(9, &mut accepted).len();
            let classes = accepted.refused.iter().all(|of| of.trouble.class == "source-refused");
            assert_eq!((seen, accepted.refused_count), (found, refused), "{name}");
            assert!(name.is_empty() || classes, "{name}: {:?}", accepted.refused);
        }
    }

    #[test]
    fn a_walk_goes_on_where_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        // Byte for byte, d-1 and d.txt come before d/x.
        let names = ["a", "d/x", "d/y/z", "d-1/q", "d-1/r", "d.txt", "e", "b/1", "b/2", "c"];
        for name in names {
            fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
            fs::write(path(name), name).unwrap();
        }
        std::os::unix::fs::symlink("a", path("d/link")).unwrap();
        let text = format!("[site]\nname = 'a'\n[transfer]\nfolders = ['{}']", path(""));
        let config = toml::from_str(&text).unwrap();
        let paths = ["e", "d", "d-1", "none", "d.txt", "a", "b", "c"].map(path);
        let order = ["e", "d/x", "d/y/z", "d-1/q", "d-1/r", "d.txt", "a", "b/1", "b/2", "c"];
        for most in 1..=names.len() + 1 {
            let (mut accepted, mut after, mut found) = (Accepted::default(), None, Vec::new());
            loop {
                let mut walk = Walk::new(&config, &paths, after.as_deref());
                let seen = walk.some(most, &mut accepted);
                after = seen.last().map(|last| walk.place(last));
                let more = seen.len() == most;
                found.extend(seen.into_iter().map(|seen| seen.name));
                if !more {
                    break;
                }
            }
            assert_eq!(found, order, "{most} at a time");
            assert_eq!(accepted.refused_count, 2, "{most} at a time");
        }
    }
}
