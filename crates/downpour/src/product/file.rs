//! A file of a site that goes as a product (`docs/protocol.md#PROD-12`): which file it is stands in the product's
//! metadata, so that a receiver can place it under its path and sign a receipt for it.

use super::frame::META_LEN_MAX;
use crate::object::{Digest, check_item_name};
use crate::receipt::FileReceipt;
use crate::spool::of_words;
use downpour_catalog::{FileKey, Time};
use downpour_transport::identity::PublicKey;
use serde::{Deserialize, Serialize};

/// How such metadata begin.
const MARK: &str = "downpour-file ";

/// Which file it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteFile {
    /// The site that it comes from.
    pub site: String,
    /// Its name there.
    pub name: String,
    /// Its version there.
    pub version: i64,
    /// When it was taken in there, microseconds since 1970.
    pub taken_in_us: i64,
    /// The rule that it came under.
    pub rule: String,
    /// Its length.
    pub size: u64,
    /// BLAKE3 of its content, in hex.
    pub blake3: String,
    /// Its other digests, as `md5:HEX`: compared when it is read back, and recorded by a site.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<String>,
    /// Where it goes, below the receiver's folder.
    pub path: String,
}

impl SiteFile {
    /// Its name across sites: what the product is called.
    pub fn key(&self) -> FileKey {
        FileKey::of(&self.site, &self.name, self.version)
    }

    /// The product's metadata; `None` when they are too long for it.
    pub fn to_meta(&self) -> Option<String> {
        let json = serde_json::to_string(self).ok()?;
        Some(format!("{MARK}{json}")).filter(|meta| meta.len() <= META_LEN_MAX)
    }

    /// From metadata; `None` for any other product.
    pub fn of_meta(meta: &str) -> Option<Self> {
        serde_json::from_str(meta.strip_prefix(MARK)?).ok()
    }

    /// Its other digests, read.
    pub(super) fn others(&self) -> Vec<downpour_catalog::Digest> {
        of_words(&self.digests)
    }

    /// Its identity, if it is one and the path is one below a folder.
    pub(super) fn digest(&self) -> Option<Digest> {
        let digest: downpour_catalog::Digest = self.blake3.parse().ok()?;
        let value: [u8; 32] = digest.value().try_into().ok()?;
        check_item_name(&self.path).is_ok().then_some(Digest(value))
    }

    /// What its receiver says of it when it is in its place.
    pub(super) fn receipt(
        &self,
        blake3: Digest,
        session: &str,
        receiver: PublicKey,
    ) -> FileReceipt {
        let now = super::unix_ns() / 1000;
        FileReceipt {
            site: self.site.clone(),
            name: self.name.clone(),
            version: self.version,
            taken_in: Time(self.taken_in_us),
            rule: self.rule.clone(),
            size: self.size,
            blake3,
            path: self.path.clone(),
            session: session.to_owned(),
            at: Time(i64::try_from(now).unwrap_or(i64::MAX)),
            receiver,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::SiteFile;

    /// A file of content `abc` that goes there.
    pub(in crate::product) fn file(path: &str) -> SiteFile {
        SiteFile {
            site: "a".to_owned(),
            name: "run/1".to_owned(),
            version: 1,
            taken_in_us: 7,
            rule: "all".to_owned(),
            size: 3,
            blake3: blake3::hash(b"abc").to_hex().to_string(),
            digests: Vec::new(),
            path: path.to_owned(),
        }
    }

    #[test]
    fn metadata_come_back_and_others_are_none() {
        let meta = file("run/1").to_meta().unwrap();
        assert_eq!(SiteFile::of_meta(&meta), Some(file("run/1")));
        for other in ["", "NGRID", "{}", "downpour-file {}"] {
            assert_eq!(SiteFile::of_meta(other), None, "{other}");
        }
        assert_eq!(file(&"x".repeat(4096)).to_meta(), None);
    }

    #[test]
    fn paths_that_leave_the_folder_have_no_digest() {
        assert!(file("run/1").digest().is_some());
        for path in ["../x", "/etc/passwd", "", "a//b", ".downpour/x"] {
            assert!(file(path).digest().is_none(), "{path}");
        }
    }
}
