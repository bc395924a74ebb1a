//! Folders that files are received into, known again: what lies in the place of one whose disk is not mounted is not taken for it.
//!
//! A folder has a mark of its own, `.downpour/id`, and the state folder notes which, in `inboxes.json`. One that is not noted is marked when
//! something is offered for it, or, where it has receipts, when the daemon starts; a mark that it has, of a state folder before this
//! one or of a daemon that shares it, is taken as it is. One that is noted and has not that mark is not received into.
//!
//! Nor is one whose `.downpour` others may write to, or own: they could swap what has been verified for what has not.
//!
//! The watch writes to the disk of one that is marked, too: what is only read may come from memory while the disk hangs.
//!
//! Deliberately absent: a folder that cannot be marked is received into as it is, if it can be; it is tried again with the next offer.

use super::config::Config;
use super::pulse::{PATIENCE, touch};
use crate::object::{STAGING_NAME, rename_new};
use crate::receipt::RECEIPT_LOG;
use crate::whole::{self, put, remove};
use downpour_transport::control::SessionId;
use rustix::fs::{AtFlags, linkat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::task::{JoinHandle, spawn_blocking};

/// Where the mark is, below a receiving folder.
const MARK: &str = ".downpour/id";
/// Which mark each folder has, in the state folder.
const NOTES: &str = "inboxes.json";
/// What to do about a disk.
const SEE_TO_DISK: &str = "see to its disk";

/// A folder is not the one that was received into before, or nobody can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strange {
    /// What is wrong.
    pub(crate) what: String,
    /// What to do.
    pub(crate) todo: String,
}

impl std::fmt::Display for Strange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.what, self.todo)
    }
}

/// What was seen of a site's inboxes.
#[derive(Default)]
pub(crate) struct Inboxes {
    /// Held by who notes a mark; for no disk but that of the state folder.
    notes: Mutex<()>,
    strange: Mutex<BTreeMap<(PathBuf, Of), Strange>>,
    /// The looks of the watch, and when they began.
    looks: Mutex<BTreeMap<PathBuf, (Instant, Look)>>,
}

type Look = JoinHandle<()>;

/// What is wrong with an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    /// It is another folder, or others may write to it.
    Folder,
    /// Its disk does not answer, or takes nothing: only the watch sees that.
    Disk,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Config {
    /// Whether a folder was received into before; an error, if another one is in its place now, or its `.downpour` is not ours alone.
    /// Blocks.
    pub(super) fn knows_inbox(&self, folder: &Path) -> Result<bool, Strange> {
        own_is_ours(folder)?;
        let state = self.state();
        let notes = notes(&state).map_err(|error| Strange {
            what: format!("{}: {error}", state.join(NOTES).display()),
            todo: "restore it; or see that all inboxes are mounted, and remove it".to_owned(),
        })?;
        let Some(noted) = notes.get(folder) else { return Ok(false) };
        let mark = folder.join(MARK);
        let found = mark_of(folder).map_err(|error| Strange {
            what: format!("{} cannot be read: {error}", mark.display()),
            todo: "see to its disk; the daemon's user must be able to read it".to_owned(),
        })?;
        if found.as_ref() == Some(noted) {
            return Ok(true);
        }
        let shown = folder.display();
        let what =
            format!("{shown} is not the folder that was received into before (is it mounted?)");
        let todo = match found {
            None => format!(
                "write {noted} to {} as the daemon's user, in a folder with mode 0700",
                mark.display()
            ),
            Some(_) => format!("take its line out of {}", self.state().join(NOTES).display()),
        };
        let todo = format!("mount it; where it is meant to be another, {todo}");
        Err(Strange { what, todo })
    }
}

impl Inboxes {
    /// Whether a folder is the one that was received into before. One of which nothing is known is marked, if it has receipts or if files
    /// may come into it now. Blocks, as its disk does.
    pub(crate) fn look(&self, config: &Config, folder: &Path, begins: bool) -> Result<(), Strange> {
        let known = config.knows_inbox(folder);
        if known == Ok(false)
            && (begins || folder.join(RECEIPT_LOG).exists())
            && let Err(error) = self.note(&config.state(), folder)
        {
            tracing::warn!(folder = %folder.display(), %error, "an inbox is not marked: where its disk is not mounted that will not be seen");
        }
        self.saw((folder, Of::Folder), known.as_ref().err());
        known.map(drop)
    }

    /// The same, and whether the disk of one that is known takes what is written.
    fn look_at_disk(&self, config: &Config, folder: &Path) {
        let is_known = self.look(config, folder, false).is_ok() && folder.join(MARK).exists();
        let own = folder.join(OsStr::from_bytes(STAGING_NAME));
        let wrong = is_known.then(|| touch(&own).err()).flatten().map(|error| Strange {
            what: format!("{} cannot be written to: {error}", own.display()),
            todo: SEE_TO_DISK.to_owned(),
        });
        self.saw((folder, Of::Disk), wrong.as_ref());
    }

    /// What is wrong with one, which is told when it begins and when it ends.
    fn saw(&self, (folder, of): (&Path, Of), wrong: Option<&Strange>) {
        let mut strange = lock(&self.strange);
        let what = (folder.to_owned(), of);
        let before = match wrong {
            None => strange.remove(&what),
            Some(why) => strange.insert(what, why.clone()),
        };
        match (wrong, before) {
            (None, Some(_)) => tracing::info!(folder = %folder.display(), "the inbox is back"),
            (Some(why), None) => tracing::error!("nothing is received: {why}"),
            _ => {}
        }
    }

    /// Looks anew at all of a site, beside the runtime, but for those that have not answered yet: each of these has one thread, is told
    /// of, and holds up no other.
    pub(crate) fn watch(self: &Arc<Self>, config: &Arc<Config>, now: Instant) {
        let inboxes = config.inboxes();
        // Those that are named no longer are of no interest.
        lock(&self.strange).retain(|(folder, _), _| inboxes.contains(folder));
        let mut looks = lock(&self.looks);
        looks.retain(|_, (_, look)| !look.is_finished());
        for folder in inboxes {
            if let Some((begun, _)) = looks.get(&folder) {
                let since = now.saturating_duration_since(*begun);
                if since >= PATIENCE {
                    let what =
                        format!("{} has not answered for {} s", folder.display(), since.as_secs());
                    let silent = Strange { what, todo: SEE_TO_DISK.to_owned() };
                    self.saw((&folder, Of::Disk), Some(&silent));
                }
                continue;
            }
            let (own, config, at) = (self.clone(), config.clone(), folder.clone());
            let look = spawn_blocking(move || own.look_at_disk(&config, &at));
            looks.insert(folder, (now, look));
        }
    }

    /// The same of all of a site.
    pub(crate) fn look_at_all(&self, config: &Config) -> Result<(), Strange> {
        config.inboxes().iter().try_for_each(|inbox| self.look(config, inbox, false))
    }

    /// What is wrong with those that were looked at.
    pub(crate) fn strange(&self) -> Vec<Strange> {
        lock(&self.strange).values().cloned().collect()
    }

    fn note(&self, state: &Path, folder: &Path) -> io::Result<()> {
        let mark = match mark_of(folder)? {
            Some(mark) => mark,
            None => make_mark(folder)?,
        };
        let _alone = lock(&self.notes);
        let mut notes = notes(state)?;
        notes.insert(folder.to_owned(), mark);
        put(&state.join(NOTES), &serde_json::to_vec_pretty(&notes)?)
    }
}

fn notes(state: &Path) -> io::Result<BTreeMap<PathBuf, String>> {
    match whole::read(&state.join(NOTES)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeMap::new()),
        read => Ok(serde_json::from_slice(&read?)?),
    }
}

fn mark_of(folder: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(folder.join(MARK)) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        read => Ok(Some(read?.trim().to_owned())),
    }
}

/// Whether nobody else may write to an inbox's `.downpour`, if it is there.
fn own_is_ours(folder: &Path) -> Result<(), Strange> {
    let own = folder.join(OsStr::from_bytes(STAGING_NAME));
    let Ok(meta) = fs::symlink_metadata(&own) else { return Ok(()) };
    let (at, user) = (own.display(), rustix::process::geteuid());
    let (what, todo) = if !meta.is_dir() {
        (format!("{at} is no folder"), format!("move {at} away"))
    } else if meta.uid() != user.as_raw() {
        let what = format!("{at} belongs to another user than the daemon's");
        (what, format!("chown it to the daemon's user, and chmod 700 {at}; check as that user"))
    } else if meta.mode() & 0o022 != 0 {
        let todo = format!(
            "chmod 700 {at}; a file system that gives everybody all rights is to be mounted without (umask=077)"
        );
        (format!("others may write to {at}"), todo)
    } else {
        return Ok(());
    };
    Err(Strange { what, todo })
}

/// Makes a folder in an inbox's `.downpour`, which nobody else may use.
pub(crate) fn make_own(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Marks a folder, and makes it if need be. It is on the disk, whole, when this returns; one that another daemon made first stays.
fn make_mark(folder: &Path) -> io::Result<String> {
    let mark = folder.join(MARK);
    let own = mark.parent().unwrap_or(folder);
    fs::create_dir_all(folder)?;
    make_own(own)?;
    let id = SessionId::random().ok_or_else(|| io::Error::other("no random numbers"))?;
    let id = downpour_catalog::hex(id.as_bytes());
    let part = format!("id.{id}");
    let mut file = File::create(own.join(&part))?;
    let at = OwnedFd::from(File::open(own)?);
    let written = file.write_all(id.as_bytes()).and_then(|()| file.sync_all());
    // Of several daemons one is first, on NFS too.
    let linked = || linkat(&at, &*part, &at, "id", AtFlags::empty());
    let named = written.and_then(|()| Ok(or_rename(linked(), (&at, &part))?));
    remove(&own.join(&part))?;
    named.or_else(|error| match error.kind() {
        ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    })?;
    for changed in [Some(own), Some(folder), folder.parent()].into_iter().flatten() {
        File::open(changed)?.sync_all()?;
    }
    mark_of(folder)?.ok_or_else(|| ErrorKind::NotFound.into())
}

/// Where there are no hard links a mark is renamed to its place, which replaces none either.
fn or_rename(linked: Result<(), Errno>, (at, part): (&OwnedFd, &str)) -> Result<(), Errno> {
    match linked {
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => rename_new((at, part), (at, "id")),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, Inboxes, MARK, NOTES, lock, make_mark, or_rename};
    use crate::receipt::RECEIPT_LOG;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use rustix::io::Errno;
    use std::fs::{self, File, Permissions};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    fn site(at: &Path) -> (Config, PathBuf) {
        let mut config = Config::parse("[site]\nname = 'a'\n").unwrap();
        config.folder = at.to_owned();
        fs::create_dir_all(config.state()).unwrap();
        let inbox = at.join("data/inbox");
        (config, inbox)
    }

    #[test]
    fn an_inbox_whose_disk_is_not_mounted_is_not_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (config, inbox) = site(folder.path());
        let inboxes = Inboxes::default();
        let look = || inboxes.look(&config, &inbox, true);
        assert_eq!((look(), look()), (Ok(()), Ok(())));
        let away = folder.path().join("away");
        fs::rename(&inbox, &away).unwrap();
        let is_there = || inbox.join(".downpour").exists();
        // Not there at all, empty, and one that another daemon received into.
        assert!(look().unwrap_err().what.contains("is it mounted?"));
        assert!(!inbox.exists(), "it is not made");
        fs::create_dir(&inbox).unwrap();
        assert!(look().is_err() && !is_there());
        make_mark(&inbox).unwrap();
        assert!(look().is_err());
        assert_eq!(inboxes.strange().len(), 1);
        fs::remove_dir_all(&inbox).unwrap();
        fs::rename(&away, &inbox).unwrap();
        assert_eq!((look(), inboxes.strange()), (Ok(()), Vec::new()));
        // One that is meant to be empty gets the mark by hand, as the message says.
        let id = fs::read_to_string(inbox.join(MARK)).unwrap();
        fs::remove_dir_all(&inbox).unwrap();
        assert!(look().unwrap_err().todo.contains(&id));
        fs::create_dir_all(inbox.join(".downpour")).unwrap();
        fs::write(inbox.join(MARK), id + "\n").unwrap();
        assert_eq!(look(), Ok(()));
        fs::write(config.state().join(NOTES), "no JSON").unwrap();
        assert!(look().unwrap_err().what.contains(NOTES));
    }

    #[test]
    fn an_inbox_whose_own_folder_others_may_write_to_is_not_received_into() {
        let folder = tempfile::tempdir().unwrap();
        let (config, inbox) = site(folder.path());
        let inboxes = Inboxes::default();
        let look = || inboxes.look(&config, &inbox, true).map_err(|strange| strange.to_string());
        assert_eq!(look(), Ok(()));
        let own = inbox.join(".downpour");
        let set = |mode| fs::set_permissions(&own, Permissions::from_mode(mode)).unwrap();
        for mode in [0o775, 0o777] {
            set(mode);
            let todo = format!("others may write to {0}; chmod 700 {0};", own.display());
            assert!(look().unwrap_err().starts_with(&todo));
            assert_eq!(inboxes.strange().len(), 1);
        }
        set(0o700);
        assert_eq!((look(), inboxes.strange()), (Ok(()), Vec::new()));
        // One that leads to the mark is no folder of ours either.
        fs::rename(&own, inbox.join("x")).unwrap();
        symlink("x", &own).unwrap();
        assert!(look().unwrap_err().contains("is no folder"));
        if rustix::process::geteuid().is_root() {
            fs::remove_file(&own).unwrap();
            fs::rename(inbox.join("x"), &own).unwrap();
            chown(&own, Some(65_534), None).unwrap();
            assert!(look().unwrap_err().contains("belongs to another user"));
        }
    }

    #[tokio::test]
    async fn an_inbox_that_does_not_answer_is_told_of_and_holds_up_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let (mut config, _) = site(folder.path());
        let hung = config.path(&config.transfer.inbox);
        let remote = format!("name = 'b'\nkey = '{}'\nfolder = 'other'", "A".repeat(43));
        config.remote.push(toml::from_str(&remote).unwrap());
        let [other, away] = ["other", "away"].map(|name| folder.path().join(name));
        let (config, inboxes) = (Arc::new(config), Arc::new(Inboxes::default()));
        for inbox in [&hung, &other] {
            inboxes.look(&config, inbox, true).unwrap();
        }
        let (mark, begun) = (hung.join(MARK), Instant::now());
        let id = fs::read_to_string(&mark).unwrap();
        fs::remove_file(&mark).unwrap();
        // Who reads it waits until somebody writes.
        mknodat(CWD, &mark, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let at_work =
            || lock(&inboxes.looks).values().filter(|(_, look)| !look.is_finished()).count();
        let watched = async |second| {
            inboxes.watch(&config, begun + Duration::from_secs(second));
            while at_work() > 1 {
                tokio::task::yield_now().await;
            }
            inboxes.strange().into_iter().map(|strange| strange.what).collect::<Vec<_>>()
        };
        fs::rename(&other, &away).unwrap();
        let gone = watched(0).await;
        fs::rename(&away, &other).unwrap();
        let (back, told) = (watched(10).await, watched(60).await);
        fs::write(&mark, id).unwrap();
        while at_work() > 0 {
            tokio::task::yield_now().await;
        }
        let answers = inboxes.strange();
        assert!(matches!(&gone[..], [of] if of.contains("is it mounted?")), "{gone:?}");
        assert!(matches!(&told[..], [of] if of.ends_with("not answered for 60 s")), "{told:?}");
        assert!(back.is_empty() && answers.is_empty(), "{back:?} {answers:?}");
    }

    #[test]
    fn an_inbox_whose_disk_takes_nothing_is_told_of_also_when_it_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let (config, inbox) = site(folder.path());
        let inboxes = Inboxes::default();
        inboxes.look(&config, &inbox, true).unwrap();
        let alive = inbox.join(".downpour/alive");
        fs::create_dir(&alive).unwrap();
        inboxes.look_at_disk(&config, &inbox);
        // What is offered for it may look, too.
        assert_eq!(inboxes.look(&config, &inbox, true), Ok(()));
        let told = inboxes.strange();
        assert!(matches!(&told[..], [of] if of.what.contains("cannot be written to")), "{told:?}");
        fs::remove_dir(&alive).unwrap();
        inboxes.look_at_disk(&config, &inbox);
        assert!(inboxes.strange().is_empty() && alive.is_file());
    }

    #[test]
    fn what_was_received_into_before_there_were_marks_is_known_from_the_start_on() {
        let folder = tempfile::tempdir().unwrap();
        let (config, inbox) = site(folder.path());
        let look = |begins| Inboxes::default().look(&config, &inbox, begins);
        // Nothing has come there: the start makes nothing.
        assert_eq!(look(false), Ok(()));
        assert!(!inbox.exists());
        fs::create_dir_all(inbox.join(".downpour")).unwrap();
        fs::write(inbox.join(RECEIPT_LOG), "").unwrap();
        assert_eq!((look(false), config.knows_inbox(&inbox)), (Ok(()), Ok(true)));
        // With another state folder its mark is taken as it is: another daemon may know it.
        let mark = fs::read_to_string(inbox.join(MARK)).unwrap();
        fs::remove_file(config.state().join(NOTES)).unwrap();
        assert_eq!((look(true), config.knows_inbox(&inbox)), (Ok(()), Ok(true)));
        assert_eq!(fs::read_to_string(inbox.join(MARK)).unwrap(), mark);
        assert_eq!(fs::read_dir(inbox.join(".downpour")).unwrap().count(), 2, "nothing else");
    }

    #[test]
    fn the_first_of_two_marks_stays_also_where_there_are_no_hard_links() {
        let folder = tempfile::tempdir().unwrap();
        let at = OwnedFd::from(File::open(folder.path()).unwrap());
        for part in ["first", "second"] {
            fs::write(folder.path().join(part), part).unwrap();
        }
        let name = |part| or_rename(Err(Errno::PERM), (&at, part));
        assert_eq!((name("first"), name("second")), (Ok(()), Err(Errno::EXIST)));
        assert_eq!(fs::read(folder.path().join("id")).unwrap(), b"first");
    }
}
