//! What a file is called across sites: [`FileKey`].
//!
//! A [`FileId`](crate::FileId) is private to one catalog. Two catalogs that speak of the same file mean the same site of origin,
//! name and version; the key is a digest of these three, short, of one length, and spread evenly.

use crate::record::{hex, unhex};
use std::fmt;
use std::str::FromStr;

/// Bytes of a key.
pub(crate) const FILE_KEY_BYTES: usize = 16;

const CONTEXT: &str = "downpour file key v1";

/// A file's name across sites: the first 16 bytes of BLAKE3 in key derivation mode, context `downpour file key v1`, over the
/// site's length (4 bytes, little-endian) and name, the file's length and name, and its version (8 bytes, little-endian).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey(pub [u8; FILE_KEY_BYTES]);

impl FileKey {
    /// Of the file that `site` calls `name` in this version.
    pub fn of(site: &str, name: &str, version: i64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        for text in [site, name] {
            hasher.update(&(text.len() as u32).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(&version.to_le_bytes());
        let mut key = [0; FILE_KEY_BYTES];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..FILE_KEY_BYTES]);
        Self(key)
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileKey({self})")
    }
}

/// The text is no file key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a file key is {} hexadecimal digits", 2 * FILE_KEY_BYTES)]
pub struct NoFileKey;

impl FromStr for FileKey {
    type Err = NoFileKey;

    fn from_str(text: &str) -> Result<Self, NoFileKey> {
        unhex(text).and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or(NoFileKey)
    }
}

#[cfg(test)]
mod tests {
    use super::FileKey;

    #[test]
    fn each_part_makes_another_key() {
        let key = FileKey::of("berlin", "run/1", 1);
        assert_eq!(key, FileKey::of("berlin", "run/1", 1));
        let others =
            [("berli", "nrun/1", 1), ("berlin", "run/", 1), ("berlin", "run/1", 2), ("", "", 0)];
        for (site, name, version) in others {
            assert_ne!(FileKey::of(site, name, version), key, "{site} {name} {version}");
        }
        assert_eq!(key.to_string().parse(), Ok(key));
        assert!("12".parse::<FileKey>().is_err());
        // Written down elsewhere: never changed.
        assert_eq!(key.to_string(), "214286bc031a96bcebd92dd343571df2");
    }
}
