//! Files that a command writes beside what it moves (reports, traces, logs, sheets): none of them may be what it reads,
//! or lie in it, and no two may be one file. What is no file (a pipe, a terminal, `/dev/null`) is nobody's to lose.
//!
//! Not looked for: another name of a file further down in a tree that is sent, and what a receiver has placed.

use super::Fault;
use crate::whole::new_at;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Refuses what would destroy something. `outputs` come with their options; a link among what is `sent` is not followed
/// without a slash behind it, one among what is `read` is; `-` is standard input.
pub(super) fn check(
    outputs: &[(&str, Option<&Path>)],
    sent: &[&Path],
    read: &[&Path],
) -> Result<(), Fault> {
    let sent = sent.iter().map(|path| (*path, identity_read(path, false)));
    let read = read.iter().map(|path| (*path, identity_read(path, true)));
    let read: Vec<_> = sent.chain(read).filter_map(|(path, id)| Some((path, id?))).collect();
    let mut places: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path) in outputs {
        let Some(place) = path.and_then(place) else { continue };
        let same = |other: &Path| {
            other == place || identity(other).is_some_and(|id| Some(id) == identity(&place))
        };
        if let Some((other, _)) = places.iter().find(|(_, other)| same(other)) {
            let what = format!("{other} and {option} name one file, {}", place.display());
            return Err(Fault::usage(what, "give each a file of its own"));
        }
        let in_it = |id| place.ancestors().any(|above| identity(above) == Some(id));
        if let Some((from, _)) = read.iter().find(|(_, id)| in_it(*id)) {
            let (to, from) = (place.display(), from.display());
            let what = format!("{option} would write to {to}, and {from} is what is read");
            return Err(Fault::usage(what, format!("give {option} a file elsewhere")));
        }
        places.push((option, place));
    }
    Ok(())
}

/// Where a file lies or would be made.
fn place(path: &Path) -> Option<PathBuf> {
    match fs::metadata(path) {
        Ok(meta) => meta.is_file().then(|| path.canonicalize().ok())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let place = new_at(path);
            let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
            Some(folder.join(place.file_name()?))
        }
        // Who opens it says why it cannot.
        Err(_) => None,
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

fn identity_read(path: &Path, follows: bool) -> Option<(u64, u64)> {
    let follows = match path.as_os_str() == "-" {
        true => Some(Path::new("/dev/stdin")),
        false => follows.then_some(path),
    };
    let Some(path) = follows else { return identity(path) };
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::cli::Exit;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    #[test]
    fn no_output_is_what_is_read_or_another_output() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        fs::create_dir_all(at("tree/sub")).unwrap();
        ["file", "beside"].iter().for_each(|name| fs::write(at(name), "precious").unwrap());
        symlink("file", at("to_file")).unwrap();
        symlink("tree/new", at("to_new")).unwrap();
        symlink("tree", at("to_tree")).unwrap();
        fs::hard_link(at("file"), at("second")).unwrap();
        let refused = |outputs: &[&Path], read: &Path| {
            let named = ["--trace", "--report", "--product-log"];
            let outputs: Vec<_> =
                named.into_iter().zip(outputs.iter().copied().map(Some)).collect();
            let fault = check(&outputs, &[read], &[]).err();
            assert!(fault.as_ref().is_none_or(|fault| fault.exit == Exit::Usage));
            fault.is_some()
        };
        let file = at("file");
        for same in ["file", "to_file", "second", "tree/../file"] {
            assert!(refused(&[&at(same)], &file), "{same}");
            assert!(refused(&[&at(same), &file], &at("tree")), "{same}");
        }
        for below in ["tree/new", "tree/sub/new", "to_new", "to_tree/new"] {
            assert!(refused(&[&at(below)], &at("tree")), "{below}");
            assert!(refused(&[&at(below)], &at("to_tree/")), "{below}");
        }
        assert!(refused(&[&at("new"), &at("tree/../new")], &file), "one that is not there yet");
        assert!(!refused(&[&at("new"), &at("beside"), &at("tree/log")], &file));
        assert!(!refused(&[&at("tree/new")], &at("to_tree")), "a link is sent as a link");
        let output = [("--report", Some(&*file))];
        assert!(check(&output, &[&at("to_file")], &[]).is_ok());
        assert!(check(&output, &[], &[&at("to_file")]).is_err(), "what it leads to is read");
        assert!(!refused(&[Path::new("/dev/null"), Path::new("/dev/null")], &file));
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }
}
