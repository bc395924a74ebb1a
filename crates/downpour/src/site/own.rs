//! What is for no other site: the state folder, with the node's key and the tokens.
//!
//! Nothing is sent from there, and nothing that arrives, or leaves a spool, is put there. A folder of the configuration may lie in
//! the state folder, as the inbox of `init --state` does, where it is none that the daemon keeps for itself.
//!
//! Folders are looked at twice. At the start as they are written, for one may be on a file system that does not answer, which a
//! daemon does not wait for; links are followed where a file is opened or placed, which waits for that file system anyway.

use super::config::Config;
use super::section::Complaint;
use crate::dispatch::FETCHES;
use crate::mirror;
use crate::object::DigestBook;
use crate::reconcile::report;
use crate::spool::After;
use crate::steering;
use std::path::{Component, Path, PathBuf};

/// Folders in the state folder that the daemon keeps for itself.
const FOLDERS: [&str; 5] =
    [DigestBook::FOLDER, mirror::FOLDER, report::FOLDER, FETCHES, steering::FOLDER];

/// Where the inbox is named that is for all.
pub(super) const INBOX: &str = "transfer.inbox";

/// Whether a path is the state folder, or leads into what the daemon keeps there: files, and folders of its own.
pub(crate) fn is_own(state: &Path, path: &Path) -> bool {
    let Ok(within) = path.strip_prefix(state) else { return false };
    let Some(first) = within.components().next() else { return true };
    FOLDERS.iter().any(|own| first.as_os_str() == *own) || state.join(first).is_file()
}

/// Whether what the daemon keeps can be reached by paths below a folder.
pub(crate) fn exposes(state: &Path, folder: &Path) -> bool {
    state.starts_with(folder) || is_own(state, folder)
}

/// A path with all links followed, as far as it is there. Blocks.
pub(crate) fn real(path: &Path) -> PathBuf {
    for there in path.ancestors() {
        let Ok(mut real) = there.canonicalize() else { continue };
        for part in path.strip_prefix(there).into_iter().flat_map(Path::components) {
            match part {
                Component::ParentDir => drop(real.pop()),
                part => real.push(part),
            }
        }
        return real;
    }
    path.to_owned()
}

impl Config {
    /// Whether a path leads to what the daemon keeps. Blocks.
    pub(crate) fn is_own(&self, path: &Path) -> bool {
        is_own(&real(&self.state()), &real(path))
    }

    /// Whether files that are put into a folder could come to lie among what the daemon keeps. Blocks.
    pub(crate) fn exposes_own(&self, folder: &Path) -> bool {
        exposes(&real(&self.state()), &real(folder))
    }

    /// The folders by which others would have what is this site's own: its state, and in a spool also what it receives. They are
    /// taken as `look` has them.
    pub(super) fn folders_over_own(&self, look: impl Fn(&Path) -> PathBuf) -> Vec<Complaint> {
        let states = [real(&self.state()), self.state()];
        let over_state = |(at, folder, _): (String, PathBuf, bool)| {
            let folder = look(&folder);
            let state = states.iter().find(|state| exposes(state, &folder))?;
            let what = match state.starts_with(&folder) {
                true => format!(
                    "the state folder {} lies in it, and the node's key is for nobody",
                    state.display()
                ),
                false => format!(
                    "the daemon keeps it for itself, in its state folder {}",
                    state.display()
                ),
            };
            let todo = "name a folder that neither holds the state folder nor is one of the daemon's in it";
            Some(Complaint::new(at, what, todo))
        };
        let mut wrong: Vec<_> = self.named_folders().filter_map(over_state).collect();
        wrong.extend(self.spools_over_inboxes(look));
        wrong
    }

    /// Folders that files are taken from or go to: where they are named, and whether files go there.
    pub(super) fn named_folders(&self) -> impl Iterator<Item = (String, PathBuf, bool)> {
        let inbox = (INBOX.to_owned(), self.path(&self.transfer.inbox), true);
        let inboxes = self.remote.iter().enumerate().filter_map(|(index, remote)| {
            let folder = remote.folder.as_ref()?;
            Some((format!("remote.{index}.folder"), self.path(folder), true))
        });
        let spools =
            self.spool.iter().enumerate().map(|(index, spool)| {
                (format!("spool.{index}.folder"), spool.folder.clone(), false)
            });
        let open =
            self.transfer.folders.iter().enumerate().map(|(index, folder)| {
                (format!("transfer.folders.{index}"), self.path(folder), false)
            });
        let after = self.rule.iter().enumerate().filter_map(|(index, rule)| match &rule.after {
            After::Move(folder) => Some((format!("rule.{index}.after"), folder.clone(), true)),
            After::Keep | After::Delete => None,
        });
        [inbox].into_iter().chain(inboxes).chain(spools).chain(open).chain(after)
    }

    fn spools_over_inboxes(&self, look: impl Fn(&Path) -> PathBuf) -> Vec<Complaint> {
        let base = real(&self.folder);
        let mut inboxes = self.inboxes();
        inboxes.extend(
            self.inboxes()
                .iter()
                .filter_map(|inbox| Some(base.join(inbox.strip_prefix(&self.folder).ok()?))),
        );
        let wrong = |(index, spool): (usize, &crate::spool::SpoolSection)| {
            let folder = look(&spool.folder);
            let inbox = inboxes
                .iter()
                .find(|own| own.starts_with(&folder) || look(own).starts_with(&folder))?;
            let what =
                format!("{} lies in it, and what arrives there would be sent on", inbox.display());
            let todo = "keep spools apart from the `inbox` of [transfer] and each `folder` of a [[remote]]";
            Some(Complaint::new(format!("spool.{index}.folder"), what, todo))
        };
        self.spool.iter().enumerate().filter_map(wrong).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, exposes, is_own, real};
    use std::fs;
    use std::path::{Path, PathBuf};

    const REMOTE: &str =
        "[[remote]]\nname = 'b'\nkey = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n";

    #[test]
    fn of_the_state_folder_files_and_the_daemons_folders_are_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        for made in ["inbox", "digests"] {
            fs::create_dir_all(state.join(made)).unwrap();
        }
        fs::write(state.join("node.key"), "").unwrap();
        for (path, [own, exposed]) in [
            ("", [false, true]),
            ("state", [true, true]),
            ("state/node.key", [true, true]),
            ("state/digests/a", [true, true]),
            ("state/mirror", [true, true]),
            ("state/inbox", [false, false]),
            ("state/inbox/digests/a", [false, false]),
            ("state-of-things", [false, false]),
        ] {
            let path = folder.path().join(path);
            assert_eq!([is_own(&state, &path), exposes(&state, &path)], [own, exposed], "{path:?}");
        }
    }

    #[test]
    fn links_are_followed_as_far_as_there_is_something() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir(root.join("state")).unwrap();
        std::os::unix::fs::symlink(root.join("state"), root.join("link")).unwrap();
        for (path, leads_to) in [
            ("link", "state"),
            ("link/none/at", "state/none/at"),
            ("none/../link", "link"),
            ("link/none/../at", "state/at"),
        ] {
            assert_eq!(real(&root.join(path)), root.join(leads_to), "{path}");
        }
    }

    #[test]
    fn a_spool_that_would_send_what_is_the_sites_own_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("real");
        fs::create_dir_all(root.join("state")).unwrap();
        std::os::unix::fs::symlink(&root, folder.path().join("link")).unwrap();
        let look = |spool: &str, through: &str| {
            let text = format!(
                "[site]\nname = 'a'\n[transfer]\ninbox = 'in'\n{REMOTE}folder = '{root}/b/of'\n\
                 [[spool]]\nfolder = '{root}/{spool}'\n\
                 [[rule]]\nname = 'r'\nmatch = '*'\nto = 'b'\n",
                root = root.display()
            );
            fs::write(root.join("site.toml"), text).unwrap();
            let file = folder.path().join(through).join("site.toml");
            let found = Config::read(&file).unwrap().folders_over_own(Path::to_owned);
            assert!(found.iter().all(|one| one.at == "spool.0.folder"), "{found:?}");
            found.first().map(|one| one.what.contains("state folder"))
        };
        for through in ["real", "link", "link/../real"] {
            for (spool, is_of_state) in [
                ("spool", None),
                ("in/deep", None),
                ("state-of-things", None),
                ("state", Some(true)),
                ("state/spool", None),
                ("state/links", Some(true)),
                ("", Some(true)),
                ("in", Some(false)),
                ("b", Some(false)),
            ] {
                assert_eq!(look(spool, through), is_of_state, "{spool} {through}");
            }
        }
    }

    #[test]
    fn every_folder_by_which_the_state_could_be_read_or_written_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for made in ["state", "elsewhere"] {
            fs::create_dir(root.join(made)).unwrap();
        }
        std::os::unix::fs::symlink("state", root.join("link")).unwrap();
        let file = root.join("site.toml");
        let look = |of: &str| {
            let of = root.join(of);
            let of = of.display();
            let text = format!(
                "[site]\nname = 'a'\n[transfer]\nfolders = ['elsewhere', '{of}']\ninbox = '{of}'\n\
                 {REMOTE}folder = '{of}'\n\
                 [[rule]]\nname = 'r'\nmatch = '*'\nto = 'b'\nafter = 'move:{of}'\n"
            );
            fs::write(&file, text).unwrap();
            let config = Config::read(&file).unwrap();
            let seen: [fn(&Path) -> PathBuf; 2] = [Path::to_owned, real];
            seen.map(|seen| {
                let found = config.folders_over_own(seen).into_iter().map(|one| one.at);
                found.collect::<Vec<_>>().join(" ")
            })
        };
        let all = "transfer.inbox remote.0.folder transfer.folders.1 rule.0.after";
        for over in ["state", "", "state/fetches"] {
            assert_eq!(look(over), [all, all], "{over}");
        }
        assert_eq!(look("link"), ["", all], "links are followed where there is time");
        for apart in ["state/inbox", "elsewhere", "none"] {
            assert_eq!(look(apart), ["", ""], "{apart}");
        }
    }
}
