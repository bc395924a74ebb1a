//! The folders that the configuration opens: what lies below them may be taken in, and given out.
//!
//! A folder's disk may not answer. Which folder a path names is told by the path alone; where it leads to, when links are followed,
//! is held against the folders that the path names, and against others only if it is in none of these.

use crate::site::Config;
use std::io;
use std::path::{Path, PathBuf};

/// The folders, and what is put before the names of files in them.
pub(super) struct OpenFolders(Vec<(PathBuf, String)>);

impl OpenFolders {
    /// Those of which operators submit files: `[transfer] folders` and the spools.
    pub(super) fn of(config: &Config) -> Self {
        let spools = config.spool.iter().map(|spool| (spool.folder.clone(), spool.prefix.clone()));
        let folders = config.transfer.folders.iter();
        let folders = folders.map(|folder| (config.path(folder), String::new()));
        Self(spools.chain(folders).collect())
    }

    /// Those of which files are given out: also what was received.
    pub(super) fn with_inboxes(config: &Config) -> Self {
        let mut open = Self::of(config);
        open.0.extend(config.inboxes().into_iter().map(|inbox| (inbox, String::new())));
        open
    }

    /// The innermost one that a path names: no disk is asked. Nothing where it names none.
    pub(super) fn named(&self, path: &Path) -> PathBuf {
        let folders = self.0.iter().map(|(folder, _)| folder);
        let holding = folders.filter(|folder| path.starts_with(folder));
        holding.max_by_key(|folder| folder.components().count()).cloned().unwrap_or_default()
    }

    /// The innermost one in which a path lies that leads to `place`, as `real` has it, and what is put before names in it.
    pub(super) fn above(
        &self,
        (path, place): (&Path, &Path),
        real: impl Fn(&Path) -> io::Result<PathBuf>,
    ) -> Option<(PathBuf, String)> {
        let (named, others): (Vec<_>, Vec<_>) =
            self.0.iter().partition(|(folder, _)| path.starts_with(folder));
        [named, others].into_iter().find_map(|folders| {
            let holding = folders.into_iter().filter_map(|(folder, prefix)| {
                let folder = real(folder).ok().filter(|folder| place.starts_with(folder))?;
                Some((folder, prefix.clone()))
            });
            holding.max_by_key(|(folder, _)| folder.as_os_str().len())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::OpenFolders;
    use std::path::{Path, PathBuf};

    #[test]
    fn a_folder_that_has_nothing_to_do_with_a_path_is_not_asked_for_it() {
        let open = |folders: &[&str]| {
            OpenFolders(folders.iter().map(|at| (PathBuf::from(at), String::new())).collect())
        };
        let real = |folder: &Path| {
            assert!(!folder.starts_with("/hung"), "it does not answer");
            Ok(if folder == Path::new("/link") { "/real".into() } else { folder.to_owned() })
        };
        let above = |open: &OpenFolders, path: &str, place: &str| {
            let above = open.above((path.as_ref(), place.as_ref()), real);
            above.map(|(folder, _)| folder.to_str().unwrap().to_owned())
        };
        let all = open(&["/hung", "/link", "/here", "/here/in"]);
        for (path, place, folder) in [
            ("/here/a", "/here/a", "/here"),
            ("/here/in/a", "/here/in/a", "/here/in"),
            ("/link/a", "/real/a", "/real"),
        ] {
            assert_eq!(above(&all, path, place).as_deref(), Some(folder), "{path}");
        }
        let others = open(&["/link", "/here", "/here/in"]);
        for (path, place, folder) in
            [("/by/a", "/here/a", "/here"), ("/real/a", "/real/a", "/real")]
        {
            assert_eq!(above(&others, path, place).as_deref(), Some(folder), "{path}");
        }
        assert_eq!(above(&others, "/here/out/a", "/etc/a"), None);
        assert_eq!(above(&others, "/else/a", "/else/a"), None);
    }
}
