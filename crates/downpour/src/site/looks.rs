//! What a configuration names on this machine and a daemon would wait for: whether it is there and can be used.
//!
//! A disk that does not answer is told of, and not waited for.

use super::config::Config;
use super::own::{self, INBOX};
use super::section::Complaint;
use crate::spool::RuleSection;
use crate::{dispatch, whole};
use downpour_catalog::CatalogUrl;
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// How long a check waits for a disk.
const PATIENCE: Duration = Duration::from_secs(5);
/// What to do where it does not answer.
const SEE_TO_DISK: &str =
    "see to its disk; this command ends with that, where nothing else ends it";
/// How a file of SQLite begins.
const SQLITE_HEAD: &[u8] = b"SQLite format 3\0";

impl Config {
    /// What is amiss.
    pub(super) fn amiss_here(&self) -> Vec<Complaint> {
        let mut wrong = self.unusable_folders();
        wrong.extend(self.unusable_state());
        wrong.extend(self.unusable_catalog());
        wrong.extend(self.unreadable_files());
        // What follows would wait for that disk.
        if !wrong.iter().any(|complaint| complaint.todo == SEE_TO_DISK) {
            wrong.extend(dispatch::check_tickets(self));
            wrong.extend(dispatch::check_interface(self));
            wrong.extend(self.folders_over_own(own::real));
            wrong.extend(self.unusable_commands());
        }
        wrong
    }

    /// The inboxes that cannot take what is to come into them, or are not those that were received into before, the folders of `after` that
    /// cannot, and the spools and open folders that cannot be read. A spool may be on a file system that is for reading only.
    fn unusable_folders(&self) -> Vec<Complaint> {
        let is_received_into = self.remote.iter().any(|remote| remote.folder.is_none());
        let all = self.named_folders().filter(|(at, ..)| at != INBOX || is_received_into);
        let wrong = |(at, folder, is_inbox): (String, PathBuf, bool)| {
            let config = self.clone();
            in_time(at, &folder, move |folder| config.unusable_folder(folder, is_inbox))
        };
        all.filter_map(wrong).collect()
    }

    /// What is wrong with one, and what to do.
    fn unusable_folder(&self, folder: &Path, is_inbox: bool) -> Option<(String, String)> {
        if is_inbox && let Err(strange) = self.knows_inbox(folder) {
            return Some((strange.what, strange.todo));
        }
        let (looked, what, todo) = match is_inbox {
            true => (try_folder(folder), "written to", "in which the daemon's user may write"),
            false => (fs::read_dir(folder).map(drop), "read", "that the daemon's user may read"),
        };
        let what = format!("{} cannot be {what}: {}", folder.display(), looked.err()?);
        Some((what, format!("name a folder {todo}, or make it one; check as that user")))
    }

    /// The state folder, if nothing can be made in it.
    fn unusable_state(&self) -> Option<Complaint> {
        in_time("site.state", &self.state(), |state| {
            let error = try_folder(state).err()?;
            let what = format!("{} cannot be written to: {error}", state.display());
            let todo = "name a folder in which the daemon's user may write, or make it one; check as that user";
            Some((what, todo.to_owned()))
        })
    }

    /// A file of SQLite that is none, or that cannot be written to, or the folder that no catalog can be made in: it is not made, as
    /// the state folder is.
    fn unusable_catalog(&self) -> Option<Complaint> {
        let CatalogUrl::Sqlite(path) = self.catalog() else { return None };
        let state = self.state();
        in_time("site.catalog", &path, move |path| {
            let shown = path.display();
            let (what, todo) = match head(path) {
                Ok(head) if !head.is_empty() && head != SQLITE_HEAD => {
                    let todo = "restore it, docs/catalog.md; or name another file";
                    (format!("{shown} is no catalog, or is damaged"), todo)
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let todo =
                        "make it the daemon's user's, or name another file; check as that user";
                    (format!("{shown} cannot be opened: {error}"), todo)
                }
                _ => {
                    let folder = path.parent().filter(|folder| *folder != state)?;
                    let error = fs::metadata(folder).and_then(|_| try_folder(folder)).err()?;
                    let todo = "name a file in a folder that is there and in which the daemon's user may write; check as that user";
                    (format!("{} cannot be written to: {error}", folder.display()), todo)
                }
            };
            Some((what, todo.to_owned()))
        })
    }

    /// Files that are read when they are needed, and folders that are scrubbed, if they cannot be. An inbox may be made by and by.
    fn unreadable_files(&self) -> Vec<Complaint> {
        let password = self.notify.smtp_password_file.iter();
        let password = password.map(|file| ("notify.smtp_password_file".to_owned(), file, false));
        let sources = self.tuner_source.iter().enumerate().flat_map(|(index, source)| {
            let files = [("file", &source.file), ("ca", &source.ca)].into_iter();
            files.filter_map(move |(key, file)| {
                Some((format!("tuner_source.{index}.{key}"), file.as_ref()?, false))
            })
        });
        let scrubbed = self.reconcile.scrub_folders.iter().flatten();
        let scrubbed = scrubbed.map(|folder| ("reconcile.scrub_folders".to_owned(), folder, true));
        let inboxes = self.inboxes();
        let wrong = |(at, named, is_folder): (String, &PathBuf, bool)| {
            let path = self.path(named);
            if inboxes.iter().any(|inbox| path.starts_with(inbox)) {
                return None;
            }
            in_time(at, &path, move |path| {
                let error = try_open(path, is_folder).err()?;
                let what = format!("{} cannot be read: {error}", path.display());
                let todo = "name what is there and the daemon's user may read; check as that user";
                Some((what, todo.to_owned()))
            })
        };
        password.chain(sources).chain(scrubbed).filter_map(wrong).collect()
    }

    /// The commands that cannot be run.
    fn unusable_commands(&self) -> Vec<Complaint> {
        let wrong = |(index, rule): (usize, &RuleSection)| {
            let program = rule.command.first().filter(|program| !program.contains('{'))?;
            let error = rustix::fs::access(program, rustix::fs::Access::EXEC_OK).err()?;
            let what = format!("{program} cannot be run: {error}");
            let todo = "name a program that the daemon's user may run; check as that user";
            Some(Complaint::new(format!("rule.{index}.command"), what, todo))
        };
        self.rule.iter().enumerate().filter_map(wrong).collect()
    }
}

/// Whether something can be made in a folder, or in the one that is there above it. It is gone again.
fn try_folder(folder: &Path) -> io::Result<()> {
    let is_away = |above: &Path| match above.symlink_metadata() {
        Err(error) => error.kind() == io::ErrorKind::NotFound,
        Ok(_) => false,
    };
    let there = folder.ancestors().find(|above| !is_away(above));
    let made = there.unwrap_or(folder).join(format!(".downpour-check-{}", std::process::id()));
    fs::create_dir(&made)?;
    fs::remove_dir(&made)
}

/// What is wrong with a folder or a file, or that its disk does not answer, which nobody waits for.
fn in_time(
    at: impl Into<String>,
    path: &Path,
    look: impl FnOnce(&Path) -> Option<(String, String)> + Send + 'static,
) -> Option<Complaint> {
    let own = path.to_owned();
    let wrong = within(PATIENCE, move || look(&own)).unwrap_or_else(|| {
        let what = format!("{} has not answered for {} s", path.display(), PATIENCE.as_secs());
        Some((what, SEE_TO_DISK.to_owned()))
    });
    wrong.map(|(what, todo)| Complaint::new(at, what, todo))
}

/// What a look at a disk shows, if it answers in time. If not, a thread stays with it, and the kernel may keep the process for that
/// when it has ended.
fn within<T: Send + 'static>(
    time: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = channel();
    thread::spawn(move || tell.send(look()));
    told.recv_timeout(time).ok()
}

/// Opens a file or a folder for reading.
fn try_open(path: &Path, is_folder: bool) -> io::Result<()> {
    if !is_folder {
        return whole::open(path).map(drop);
    }
    let flags = OFlags::DIRECTORY.bits() as i32;
    File::options().read(true).custom_flags(flags).open(path).map(drop)
}

/// How a file begins that can be written to.
fn head(file: &Path) -> io::Result<Vec<u8>> {
    whole::open(file)?;
    let file = File::options().read(true).write(true).open(file)?;
    let mut head = Vec::new();
    file.take(SQLITE_HEAD.len() as u64).read_to_end(&mut head)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::within;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_disk_that_does_not_answer_is_not_waited_for() {
        let (answer, answered) = channel::<()>();
        let look = move || answered.recv().is_ok();
        assert_eq!(within(Duration::from_millis(10), look), None);
        drop(answer);
        assert_eq!(within(Duration::from_secs(60), || 1), Some(1));
    }
}
