//! What the lower layers' errors mean to the operator of a session: the step from each to a [`Fault`].

use crate::cli::{Fault, Target};
use crate::home::{Home, HomeError};
use crate::object::{ScanError, StoreFailure, explain};
use crate::product::{List, ProductLog};
use downpour_catalog::ErrorClass;
use downpour_transport::identity::Identity;
use downpour_transport::trace::Trace;
use rustix::fs::Access;
use rustix::io::Errno;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

pub(super) fn home(error: &HomeError) -> Fault {
    let todo = "set $DOWNPOUR_HOME to a folder of your own that only you can write to";
    Fault::start(error.to_string(), todo)
}

/// A target that cannot be written now. Whoever waits for the sender wants to hear of it before; until then it may change.
pub(super) fn unwritable(out: &Path) -> Option<String> {
    let out = std::path::absolute(out).ok()?;
    let there = out.ancestors().find(|path| path.exists())?;
    let error = rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK).err()?;
    let user = rustix::process::geteuid().as_raw();
    let is_ours = || there.metadata().is_ok_and(|meta| meta.uid() == user);
    // One of ours is made writable for as long as it takes.
    if error == Errno::ACCESS && there == out && is_ours() {
        return None;
    }
    let (path, error) = (there.display(), explain(error));
    let then = "as long as that is so, receiving fails when the sender is there";
    Some(format!("notice: cannot write to {path}: {error}; {then}"))
}

pub(super) fn scan(error: &ScanError) -> Fault {
    let todo = match error {
        ScanError::Duplicate { .. } => {
            return Fault::usage(error.to_string(), "send them one after the other, or rename one");
        }
        ScanError::Unreadable { .. } => {
            "correct the paths or their permissions, run as a user who may read them, or leave them out with \
             --skip-unreadable"
        }
        ScanError::Tree(_) => "send it in parts, or leave out what it names",
    };
    Fault::start(error.to_string(), todo)
}

pub(super) fn source(error: impl Display) -> Fault {
    Fault::start(error.to_string(), "check that the data can be read, and that its disk has room")
}

pub(super) fn randomness() -> Fault {
    Fault::start("the system gives no random numbers", "check that /dev/urandom is there")
}

pub(super) fn threads(error: impl Display) -> Fault {
    let what = format!("cannot start threads: {error}");
    Fault::start(what, "raise the limit on processes (ulimit -u)")
}

pub(super) fn session(error: impl Display) -> Fault {
    let todo = "try another --interface, --group or --ports; `downpour ports` lists what is used";
    Fault::start(error.to_string(), todo)
}

/// Whose a store's failure is.
pub(super) fn class_of_store(failure: &StoreFailure, target: &Target) -> ErrorClass {
    match (failure, target) {
        (StoreFailure::DiskFull { .. } | StoreFailure::TooSmall { .. }, _) => {
            ErrorClass::DestinationFull
        }
        (StoreFailure::Manifest(_) | StoreFailure::NotAgreed(_), _) => ErrorClass::Internal,
        (StoreFailure::Target(_), Target::Tree(out)) => class_of_target(out),
        (StoreFailure::Target(_), _) => ErrorClass::DestinationWriteFailed,
    }
}

/// Why a folder cannot be written, when its own error does not tell.
pub(super) fn class_of_target(out: &Path) -> ErrorClass {
    let flags = rustix::fs::statvfs(out).map(|fs| fs.f_flag);
    match flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::RDONLY)) {
        true => ErrorClass::DestinationReadOnly,
        false => ErrorClass::DestinationWriteFailed,
    }
}

/// This node's key.
pub(super) fn identity(home: &Home) -> Result<Arc<Identity>, Fault> {
    let folder = home.config().map_err(|error| self::home(&error))?;
    Identity::load_or_create(folder).map(Arc::new).map_err(|error| Fault::key(&error))
}

/// The trace's file, made when one is wanted.
pub(super) fn trace(path: Option<&Path>, role: &str) -> Result<Option<Trace>, Fault> {
    path.map(|path| Trace::create(path, role).map_err(|error| (path, error))).transpose().map_err(
        |(path, error)| {
            let what = format!("cannot write the trace {}: {error}", path.display());
            Fault::start(what, "give --trace a file in a folder that you may write to")
        },
    )
}

/// Closes the trace; what it lacks, as a notice.
pub(super) fn trace_end(trace: Option<Trace>) -> Option<String> {
    match trace?.finish() {
        Ok(end) if end.lost == 0 => None,
        Ok(end) => {
            let all = end.records + end.lost;
            Some(format!(
                "the trace lacks {} of {all} records: this machine was too busy",
                end.lost
            ))
        }
        Err(error) => Some(format!("the trace is cut off: {error}")),
    }
}

/// The file that products are logged in.
pub(super) fn product_log(path: &Path) -> Result<Arc<ProductLog>, Fault> {
    ProductLog::create(path).map(Arc::new).map_err(|error| {
        let what = format!("cannot write the log of products {}: {error}", path.display());
        Fault::start(what, "give --product-log a file in a folder that you may write to")
    })
}

/// The list of products, from a file or from standard input (`-`).
pub(super) fn list(path: &Path) -> Result<List<Box<dyn BufRead + Send>>, Fault> {
    if path.as_os_str() == "-" {
        return Ok(List::new(Box::new(BufReader::new(io::stdin()))));
    }
    List::open(path).map_err(|error| {
        let what = format!("cannot read the list of products {}: {error}", path.display());
        Fault::start(what, "give --products a file with a line for each product, or -")
    })
}

#[cfg(test)]
mod tests {
    use super::unwritable;
    use rustix::fs::Uid;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::thread;

    #[test]
    fn a_target_that_cannot_be_written_is_told_before_there_is_a_sender() {
        let (root, user) = (rustix::process::geteuid().is_root(), 65_534);
        let dir = tempfile::tempdir().unwrap();
        let (out, folder) = (dir.path().join("out"), dir.path().join("folder"));
        for own in [&out, &folder] {
            fs::create_dir(own).unwrap();
            if root {
                chown(own, Some(user), None).unwrap();
            }
            fs::set_permissions(own, Permissions::from_mode(0o555)).unwrap();
        }
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let of_user = || {
            // Another user for this thread alone.
            if root {
                rustix::thread::set_thread_uid(Uid::from_raw(user)).unwrap();
            }
            assert_eq!(unwritable(&out), None, "ours is made writable");
            let text = unwritable(&folder.join("a/b")).unwrap();
            let begin = format!("notice: cannot write to {}: permission denied", folder.display());
            assert!(text.starts_with(&begin), "{text}");
            fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
            assert_eq!(unwritable(&folder.join("a/b")), None);
        };
        thread::scope(|scope| scope.spawn(of_user).join().unwrap());
    }
}
