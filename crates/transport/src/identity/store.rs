//! Where the key is kept: `node.key` (PKCS#8 PEM, mode 0600) in a folder of mode 0700, and beside it
//! `node.crt`, the certificate, so that `curl --cert node.crt --key node.key` works.
//!
//! A new key is written whole under a temporary name and then *linked* to its own: linking fails when the
//! name is taken, so that of two processes that start at once one wins and the other loads the
//! winner's key. A key that others can read is refused rather than used.

use super::key::Identity;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Name of the private key's file in its folder.
pub const KEY_FILE: &str = "node.key";
/// Name of the certificate's file beside it.
pub const CERTIFICATE_FILE: &str = "node.crt";

/// A key file is 120 bytes; what is longer than this is something else.
const KEY_FILE_LEN_MAX: u64 = 16 * 1024;

/// The node's key can neither be loaded nor made.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The operating system refused.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// What was tried: a verb.
        doing: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What it answered.
        source: io::Error,
    },
    /// Others can read the private key.
    #[error("{path} can be read by others (mode {mode:03o}); run: chmod 600 {path}")]
    Exposed {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file holds something else.
    #[error("{path} is not an Ed25519 private key")]
    NotAKey {
        /// The key file.
        path: PathBuf,
    },
}

impl Identity {
    /// The key kept in `dir`, if there is one.
    pub fn load(dir: &Path) -> Result<Option<Self>, IdentityError> {
        load(&dir.join(KEY_FILE))
    }

    /// The key kept in `dir`; made first when there is none.
    pub fn load_or_create(dir: &Path) -> Result<Self, IdentityError> {
        if let Some(identity) = Self::load(dir)? {
            return Ok(identity);
        }
        let path = dir.join(KEY_FILE);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(failed("create folder", dir))?;
        let identity = Self::generate();
        if place(&path, identity.key_pem().as_bytes(), 0o600)? {
            // The certificate follows from the key and is never read by us: no reason to fail.
            let _ =
                place(&dir.join(CERTIFICATE_FILE), identity.certificate_pem().as_bytes(), 0o644);
            return Ok(identity);
        }
        match Self::load(dir)? {
            Some(winner) => Ok(winner),
            None => Err(failed("read", &path)(ErrorKind::NotFound.into())),
        }
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    let path = path.to_owned();
    move |source| IdentityError::Io { doing, path, source }
}

fn load(path: &Path) -> Result<Option<Identity>, IdentityError> {
    // A pipe that somebody put there is not waited for.
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path)(error)),
    };
    let mode = file.metadata().map_err(failed("read", path))?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(IdentityError::Exposed { path: path.to_owned(), mode });
    }
    let mut text = Vec::new();
    file.take(KEY_FILE_LEN_MAX).read_to_end(&mut text).map_err(failed("read", path))?;
    let not_a_key = || IdentityError::NotAKey { path: path.to_owned() };
    let der = PrivatePkcs8KeyDer::from_pem_slice(&text).map_err(|_| not_a_key())?;
    Identity::from_key_der(der.secret_pkcs8_der()).map(Some).ok_or_else(not_a_key)
}

/// Writes a file whole, or finds that there is one: `false`.
fn place(path: &Path, bytes: &[u8], mode: u32) -> Result<bool, IdentityError> {
    let mut random = [0; 8];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| failed("make random bytes for", path)(ErrorKind::Other.into()))?;
    let temporary = path.with_extension(format!("tmp-{:016x}", u64::from_ne_bytes(random)));
    let result = write_new(&temporary, bytes, mode)
        .and_then(|()| match fs::hard_link(&temporary, path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        })
        .map_err(failed("write", path));
    let _ = fs::remove_file(&temporary);
    result
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::{CERTIFICATE_FILE, Identity, IdentityError, KEY_FILE};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn the_key_stays_the_same_and_private() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("a/b");
        let first = Identity::load_or_create(&dir).unwrap();
        let second = Identity::load_or_create(&dir).unwrap();
        assert_eq!(first.public_key(), second.public_key());
        let mode =
            |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir), 0o700);
        assert_eq!(mode(&dir.join(KEY_FILE)), 0o600);
        let mut names: Vec<_> =
            fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [CERTIFICATE_FILE, KEY_FILE]);
    }

    #[test]
    fn those_who_start_at_once_get_the_same_key() {
        const STARTERS: usize = 8;
        for _ in 0..20 {
            let tmp = tempfile::tempdir().unwrap();
            let barrier = Barrier::new(STARTERS);
            let keys: Vec<_> = thread::scope(|scope| {
                let start = || {
                    barrier.wait();
                    Identity::load_or_create(tmp.path()).unwrap().public_key()
                };
                let threads: Vec<_> = (0..STARTERS).map(|_| scope.spawn(start)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        }
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        Identity::load_or_create(tmp.path()).unwrap();
        let path = tmp.path().join(KEY_FILE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Identity::load_or_create(tmp.path()).unwrap_err();
        assert!(matches!(error, IdentityError::Exposed { mode: 0o640, .. }), "{error}");
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }

    #[test]
    fn what_is_not_a_key_is_not_overwritten() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join(KEY_FILE);
        fs::write(&path, "my shopping list").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = Identity::load_or_create(tmp.path()).unwrap_err();
        assert!(matches!(error, IdentityError::NotAKey { .. }), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "my shopping list");
    }
}
