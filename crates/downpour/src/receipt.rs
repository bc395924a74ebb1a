//! Receipts of single files: a receiving node's signed word that it has a file, complete and verified, on its disk.
//!
//! 1. The receiver makes a [`FileReceipt`] after the file is placed and synced, and signs it with its node key.
//! 2. A copy stays in the receiving folder (`log`), the bytes go into both catalogs.
//! 3. Whoever has the receipt can [verify](SignedFileReceipt::verify) it without asking anybody, and hold a copy of the file
//!    [against it](FileReceipt::check_content).
//!
//! Besides what is proved it carries what a lost catalog needs to be made again: rule, and when the file was taken in at its site
//! of origin. What is signed is one canonical form in bytes, also where the receipt is written as JSON.
//!
//! Not here: whose key it is. That is said by the site's configuration, or `--key`.

mod log;

pub use downpour_catalog::{FileKey, WORD_BYTES_MAX};
pub use log::{Line, LogError, READ_LINE_MAX, RECEIPT_LOG, ReceiptLines, ReceiptLog, read_log};

use crate::dispatch::source_class;
use crate::object::wire::{Reader, WireError, put_bytes, put_varint};
use crate::object::{Digest, printable};
use crate::spool::Digesting;
use downpour_catalog::{
    AdoptedFile, ErrorClass, FileId, NAME_BYTES_MAX, Origin, OtherContent, PATH_BYTES_MAX,
    RECEIPT_BYTES_MAX, Receipt, RuleId, SiteId, Time,
};
use downpour_transport::identity::{BadSignature, Identity, PUBLIC_KEY_LEN, PublicKey, Signature};
use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

/// The purpose that the signature holds for.
const DOMAIN: &str = "file-receipt-1";
const SIGNATURE_LEN: usize = 64;
/// Lengths and numbers at their longest.
const FIXED_BYTES_MAX: usize = 128 + PUBLIC_KEY_LEN + SIGNATURE_LEN;
const _: () = assert!(
    3 * WORD_BYTES_MAX + NAME_BYTES_MAX + PATH_BYTES_MAX + FIXED_BYTES_MAX <= RECEIPT_BYTES_MAX
);

/// What a receiving node says of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileReceipt {
    /// The site that the file comes from.
    pub site: String,
    /// Its name there.
    pub name: String,
    /// Its version there, from 1.
    pub version: i64,
    /// When it was taken in there, microseconds since 1970. The same in all catalogs: by it files are sorted into days.
    #[serde(rename = "taken_in_us", with = "micros")]
    pub taken_in: Time,
    /// The rule that it came under, by the name of the site of origin.
    pub rule: String,
    /// Its length in bytes.
    pub size: u64,
    /// BLAKE3 of its content.
    #[serde(with = "hex_digest")]
    pub blake3: Digest,
    /// Where it lies at the receiver, below the receiving folder.
    pub path: String,
    /// The session that brought it.
    pub session: String,
    /// When it was verified, microseconds since 1970.
    #[serde(rename = "at_us", with = "micros")]
    pub at: Time,
    /// The receiver's node key.
    pub receiver: PublicKey,
}

/// A receipt with the receiver's signature, which may be wrong until [`SignedFileReceipt::verify`] says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedFileReceipt {
    /// What is said.
    pub receipt: FileReceipt,
    /// The signature over its canonical bytes.
    pub signature: Signature,
}

/// A file that is in its place, and signed for: what is recorded of it.
#[derive(Clone, Debug)]
pub struct InPlace {
    /// The receipt.
    pub signed: SignedFileReceipt,
    /// Its digests of other kinds, as its source told them.
    pub others: Vec<downpour_catalog::Digest>,
}

/// Bytes or text are no receipt, or its fields are beyond their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAReceipt(pub String);

impl std::fmt::Display for NotAReceipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "this is no receipt: {}", self.0)
    }
}

impl std::error::Error for NotAReceipt {}

impl From<WireError> for NotAReceipt {
    fn from(error: WireError) -> Self {
        Self(error.text().to_owned())
    }
}

/// Why a file is not what the receipt says.
#[derive(Debug)]
pub enum WrongContent {
    /// It could not be read.
    Unreadable(io::Error),
    /// Its length is another.
    Size {
        /// What it is.
        found: u64,
    },
    /// Its digest is another.
    Digest {
        /// What it is.
        found: Digest,
    },
    /// It has not this digest of another kind, which its source says it has.
    Other(downpour_catalog::Digest),
}

impl std::fmt::Display for WrongContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "it cannot be read: {error}"),
            Self::Size { found } => write!(f, "it has {found} bytes"),
            Self::Digest { found } => write!(f, "its BLAKE3 is {found}"),
            Self::Other(said) => {
                write!(f, "its source says {} {}, it has another", said.kind(), said.hex())
            }
        }
    }
}

impl WrongContent {
    /// What it says of a file that was to be there: nothing, where it is this machine that lacks something.
    pub(crate) fn class(&self) -> ErrorClass {
        match self {
            Self::Unreadable(error) if source_class(error) == ErrorClass::OutOfResources => {
                ErrorClass::OutOfResources
            }
            Self::Other(_) => ErrorClass::DigestDiffers,
            _ => ErrorClass::FalseSuccess,
        }
    }
}

impl FileReceipt {
    /// The file's name across sites.
    pub fn key(&self) -> FileKey {
        FileKey::of(&self.site, &self.name, self.version)
    }

    /// The bytes that are signed. Every receipt has one form, and every form is of one receipt.
    pub fn canonical(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        for text in [&self.site, &self.name, &self.rule, &self.path, &self.session] {
            put_bytes(&mut out, text.as_bytes());
        }
        for number in [self.version, self.taken_in.0, self.at.0] {
            put_varint(&mut out, number as u64);
        }
        put_varint(&mut out, self.size);
        out.extend_from_slice(&self.blake3.0);
        out.extend_from_slice(self.receiver.as_bytes());
        out
    }

    /// Signs it; `receiver` becomes the key that does.
    pub fn sign(mut self, identity: &Identity) -> Result<SignedFileReceipt, NotAReceipt> {
        self.receiver = identity.public_key();
        self.check()?;
        let signature = identity.sign(DOMAIN, &self.canonical());
        Ok(SignedFileReceipt { receipt: self, signature })
    }

    /// Whether the file at `path` below `folder` has this length and content. Links are not followed out of the folder.
    pub fn check_content(&self, folder: &Path) -> Result<(), WrongContent> {
        self.check_digests(folder, &[])
    }

    /// The same in one reading, and whether it has these digests of other kinds.
    pub(crate) fn check_digests(
        &self,
        folder: &Path,
        others: &[downpour_catalog::Digest],
    ) -> Result<(), WrongContent> {
        let path = Path::new(&self.path);
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "its path leaves the folder");
            return Err(WrongContent::Unreadable(error));
        }
        let file = open_beneath(folder, path).map_err(WrongContent::Unreadable)?;
        let (found, digest, more) = digests_of(file, others).map_err(WrongContent::Unreadable)?;
        if found != self.size {
            return Err(WrongContent::Size { found });
        }
        if digest != self.blake3 {
            return Err(WrongContent::Digest { found: digest });
        }
        let wrong = others.iter().find(|said| !more.contains(said));
        wrong.map_or(Ok(()), |said| Err(WrongContent::Other(said.clone())))
    }

    /// Every field within its limits.
    fn check(&self) -> Result<(), NotAReceipt> {
        let words = [
            ("site", &self.site, WORD_BYTES_MAX),
            ("rule", &self.rule, WORD_BYTES_MAX),
            ("session", &self.session, WORD_BYTES_MAX),
            ("name", &self.name, NAME_BYTES_MAX),
            ("path", &self.path, PATH_BYTES_MAX),
        ];
        for (what, text, max) in words {
            if text.is_empty() || text.len() > max || text.contains('\0') {
                let why = format!("its {what} is empty, longer than {max} bytes or holds a zero");
                return Err(NotAReceipt(why));
            }
        }
        if self.version < 1 || self.taken_in.0 < 0 || self.at.0 < 0 {
            return Err(NotAReceipt("a number in it is negative, or its version 0".to_owned()));
        }
        Ok(())
    }
}

impl SignedFileReceipt {
    /// Whether the receiver that it names has signed exactly this.
    pub fn verify(&self) -> Result<(), BadSignature> {
        let receipt = &self.receipt;
        receipt.receiver.verify(DOMAIN, &receipt.canonical(), &self.signature)
    }

    /// As it is kept in a catalog and sent back: the canonical bytes, then the signature. At most [`RECEIPT_BYTES_MAX`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.receipt.canonical();
        out.extend_from_slice(self.signature.as_bytes());
        out
    }

    /// What a catalog keeps of it, with its file.
    pub(crate) fn kept(&self, file: FileId, at: Time) -> Receipt {
        let receiver = self.receipt.receiver.as_bytes().to_vec();
        Receipt { file, receiver, at, signed: self.to_bytes() }
    }

    /// What a catalog takes in for it: a file of that site and rule, with a copy in this place (of a site, with its path there), and
    /// the receipt.
    pub(crate) fn adopted(
        &self,
        (site, rule): (SiteId, RuleId),
        place: (SiteId, String),
        at: Time,
    ) -> AdoptedFile {
        let said = &self.receipt;
        AdoptedFile {
            site,
            name: said.name.clone(),
            size: said.size,
            rule,
            digest: downpour_catalog::Digest::blake3(said.blake3.0),
            others: Vec::new(),
            replicas: vec![place],
            other_content: OtherContent::Refuse,
            origin: Some(Origin { version: said.version, taken_in: said.taken_in }),
            receipt: Some(self.kept(FileId(0), at)),
        }
    }

    /// From [`SignedFileReceipt::to_bytes`]. Nothing is verified yet.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NotAReceipt> {
        if bytes.len() > RECEIPT_BYTES_MAX {
            return Err(NotAReceipt(format!("it is longer than {RECEIPT_BYTES_MAX} bytes")));
        }
        let mut reader = Reader::new(bytes);
        let mut text = |max: usize| -> Result<String, NotAReceipt> {
            let bytes = reader.bytes(max)?;
            let text = std::str::from_utf8(bytes).map_err(|e| NotAReceipt(e.to_string()))?;
            Ok(text.to_owned())
        };
        let (site, name) = (text(WORD_BYTES_MAX)?, text(NAME_BYTES_MAX)?);
        let (rule, path) = (text(WORD_BYTES_MAX)?, text(PATH_BYTES_MAX)?);
        let session = text(WORD_BYTES_MAX)?;
        let mut number = || reader.number::<i64>();
        let (version, taken_in, at) = (number()?, Time(number()?), Time(number()?));
        let size = reader.varint()?;
        let blake3 = Digest(reader.array()?);
        let receiver = PublicKey::from_bytes(reader.array()?);
        let signature = Signature::from_bytes(reader.array::<SIGNATURE_LEN>()?);
        if !reader.is_empty() {
            return Err(NotAReceipt("something follows it".to_owned()));
        }
        let receipt = FileReceipt {
            site,
            name,
            version,
            taken_in,
            rule,
            size,
            blake3,
            path,
            session,
            at,
            receiver,
        };
        receipt.check()?;
        Ok(Self { receipt, signature })
    }

    /// As text: one line of JSON, keys and signature as base64url.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a receipt has no odd keys")
    }

    /// From JSON. Nothing is verified yet.
    pub fn from_json(text: &str) -> Result<Self, NotAReceipt> {
        let signed: Self = serde_json::from_str(text).map_err(|e| NotAReceipt(e.to_string()))?;
        signed.receipt.check()?;
        Ok(signed)
    }

    /// From either form: what begins with a brace is JSON.
    pub fn parse(bytes: &[u8]) -> Result<Self, NotAReceipt> {
        match std::str::from_utf8(bytes) {
            Ok(text) if text.trim_start().starts_with('{') => Self::from_json(text),
            _ => Self::from_bytes(bytes),
        }
    }
}

/// What it says, for people.
impl std::fmt::Display for FileReceipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |text: &str| printable(text.as_bytes());
        writeln!(f, "file      {} version {}", shown(&self.name), self.version)?;
        writeln!(f, "of site   {}, rule {}", shown(&self.site), shown(&self.rule))?;
        writeln!(f, "file key  {}", self.key())?;
        writeln!(f, "size      {} bytes", self.size)?;
        writeln!(f, "BLAKE3    {}", self.blake3)?;
        writeln!(f, "taken in  {}", crate::units::show_time(self.taken_in.0))?;
        writeln!(f, "lies at   {}", shown(&self.path))?;
        writeln!(f, "session   {}", shown(&self.session))?;
        writeln!(f, "verified  {}", crate::units::show_time(self.at.0))?;
        write!(f, "receiver  {}", self.receiver)
    }
}

fn open_beneath(folder: &Path, path: &Path) -> io::Result<File> {
    let mut at = OwnedFd::from(File::open(folder)?);
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        let kind = if parts.peek().is_some() { OFlags::DIRECTORY } else { OFlags::NONBLOCK };
        let name = part.as_os_str().as_encoded_bytes();
        at = crate::object::open_in(&at, name, OFlags::RDONLY | kind, Mode::empty())?;
    }
    let file = File::from(at);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    Ok(file)
}

/// Brings files below a folder, at these paths, onto the disk for good, with their names and the folders on the way: other
/// file systems may be mounted there. Gives how many were synced. No link is followed. `before` was opened in the folder
/// before anything was written, as it tells only of errors since then.
///
/// `unsynced` is told when a sync fails: what is read of these files now need not be on the disk, and another sync need not
/// fail. Who has brought one moves it aside; of any other the kernel's [memory is dropped](forget_beneath).
pub(crate) fn sync_beneath<'a>(
    folder: &Path,
    before: Option<&OwnedFd>,
    paths: impl Iterator<Item = &'a str>,
    unsynced: impl Fn(Errno),
) -> io::Result<usize> {
    let mut synced = BTreeSet::new();
    let mut sync = |at: &OwnedFd| -> io::Result<()> {
        if synced.insert(rustix::fs::fstat(at)?.st_dev) {
            rustix::fs::syncfs(at).inspect_err(|error| unsynced(*error))?;
        }
        Ok(())
    };
    before.map_or(Ok(()), &mut sync)?;
    // Its own first.
    for path in std::iter::once("").chain(paths) {
        sync(&deepest_above(folder, Path::new(path))?)?;
    }
    Ok(synced.len())
}

/// The folder that the file at this path is in, or how much of the way to it is left: what was moved away needs no sync.
fn deepest_above(folder: &Path, path: &Path) -> io::Result<OwnedFd> {
    let mut at = OwnedFd::from(File::open(folder)?);
    for part in path.parent().into_iter().flat_map(Path::components) {
        let name = part.as_os_str().as_encoded_bytes();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        at = match crate::object::open_in(&at, name, flags, Mode::empty()) {
            Ok(next) => next,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => break,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(at)
}

/// Has the kernel forget what a file below a folder holds: who reads it next reads the disk.
pub(crate) fn forget_beneath(folder: &Path, path: &str) {
    if let Ok(there) = open_beneath(folder, Path::new(path)) {
        let _ = rustix::fs::fadvise(there, 0, None, Advice::DontNeed);
    }
}

/// The digest of a file below a folder. No link is followed.
pub(crate) fn content_beneath(folder: &Path, path: &Path) -> io::Result<Digest> {
    digest_of(open_beneath(folder, path)?).map(|(_, digest)| digest)
}

/// Whether there is a file below a folder of this length and digest. One of another length is not read. No link is followed.
pub(crate) fn is_beneath(folder: &Path, path: &Path, (size, digest): (u64, Digest)) -> bool {
    let Ok(file) = open_beneath(folder, path) else { return false };
    let fits = file.metadata().is_ok_and(|there| there.len() == size);
    fits && digest_of(file).is_ok_and(|(_, found)| found == digest)
}

/// Length and digest of what a file holds.
pub(crate) fn digest_of(file: impl Read) -> io::Result<(u64, Digest)> {
    digests_of(file, &[]).map(|(size, digest, _)| (size, digest))
}

/// The same, and its digests of the kinds of these, in one reading.
pub(crate) fn digests_of(
    file: impl Read,
    others: &[downpour_catalog::Digest],
) -> io::Result<(u64, Digest, Vec<downpour_catalog::Digest>)> {
    let kinds: Vec<_> = others.iter().map(downpour_catalog::Digest::kind).collect();
    let (size, mut digests) = Digesting::new(&kinds).read(file, |_| true)?;
    let blake3 = digests.remove(0).value().try_into().expect("BLAKE3 comes first");
    Ok((size, Digest(blake3), digests))
}

mod micros {
    use downpour_catalog::Time;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Time, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(time.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        i64::deserialize(from).map(Time)
    }
}

mod hex_digest {
    use crate::object::Digest;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Digest, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(from)?;
        let parsed: Result<downpour_catalog::Digest, _> = text.parse();
        let value = parsed.ok().and_then(|digest| digest.value().try_into().ok());
        // One form only: the digits alone, in lower case.
        let value = value.map(Digest).filter(|digest| digest.to_string() == text);
        value.ok_or_else(|| serde::de::Error::custom("a BLAKE3 is 64 hexadecimal digits"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{FileReceipt, SignedFileReceipt, WrongContent, forget_beneath, sync_beneath};
    use crate::object::Digest;
    use downpour_catalog::{ErrorClass, RECEIPT_BYTES_MAX, Time};
    use downpour_transport::identity::Identity;
    use proptest::prelude::{any, prop_assert, proptest};
    use rustix::fs::{Mode, OFlags};
    use std::cell::Cell;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// A file system of its own, unmounted with the test.
    pub(crate) struct Mounted(PathBuf);

    impl Mounted {
        /// `None` where none may be mounted.
        pub(crate) fn tmpfs(at: &Path) -> Option<Self> {
            let what = ["-t", "tmpfs", "-o", "size=1m", "downpour-test"];
            Self::mount(Command::new("mount").args(what), at)
        }

        /// A second name for a folder.
        pub(crate) fn bind(folder: &Path, at: &Path) -> Option<Self> {
            Self::mount(Command::new("mount").arg("--bind").arg(folder), at)
        }

        fn mount(mount: &mut Command, at: &Path) -> Option<Self> {
            let mounted = mount.arg(at).status();
            mounted.is_ok_and(|status| status.success()).then(|| Self(at.to_owned()))
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(&self.0).status();
        }
    }

    pub(crate) fn receipt(name: &str, content: &[u8]) -> FileReceipt {
        FileReceipt {
            site: "berlin".into(),
            name: name.into(),
            version: 1,
            taken_in: Time(1_795_305_600_000_000),
            rule: "raw".into(),
            size: content.len() as u64,
            blake3: Digest::of(content),
            path: name.into(),
            session: "b-17".into(),
            at: Time(1_795_305_661_000_000),
            receiver: Identity::generate().public_key(),
        }
    }

    #[test]
    fn both_forms_come_back_and_hold() {
        let identity = Identity::generate();
        let signed = receipt("run/1.root", b"content").sign(&identity).unwrap();
        assert_eq!(signed.receipt.receiver, identity.public_key());
        for form in [signed.to_bytes(), signed.to_json().into_bytes()] {
            let back = SignedFileReceipt::parse(&form).unwrap();
            assert_eq!(back, signed);
            assert_eq!(back.verify(), Ok(()));
        }
    }

    #[test]
    fn the_longest_fits_its_limit_and_a_longer_one_is_refused() {
        let identity = Identity::generate();
        let mut long = receipt(&"n".repeat(1024), b"");
        long.path = "p".repeat(4096);
        (long.site, long.rule, long.session) = ("s".repeat(255), "r".repeat(255), "i".repeat(255));
        (long.version, long.taken_in, long.at) = (i64::MAX, Time(i64::MAX), Time(i64::MAX));
        long.size = u64::MAX;
        let signed = long.clone().sign(&identity).unwrap();
        assert!(signed.to_bytes().len() <= RECEIPT_BYTES_MAX);
        assert_eq!(SignedFileReceipt::from_bytes(&signed.to_bytes()), Ok(signed));
        long.site.push('s');
        assert!(long.sign(&identity).is_err());
    }

    #[test]
    fn another_word_in_the_json_breaks_the_signature() {
        let signed = receipt("run/1.root", b"content").sign(&Identity::generate()).unwrap();
        let json = signed.to_json();
        let changes = [
            ("run/1.root", "run/2.root"),
            ("\"version\":1", "\"version\":2"),
            ("\"size\":7", "\"size\":8"),
            ("berlin", "bergen"),
            ("b-17", "b-18"),
            ("661000000", "661000001"),
        ];
        for (from, to) in changes {
            let tampered = json.replace(from, to);
            assert_ne!(tampered, json, "{from}");
            assert!(SignedFileReceipt::from_json(&tampered).unwrap().verify().is_err(), "{from}");
        }
        assert!(SignedFileReceipt::from_json(&json.replace("rule", "role")).is_err());
    }

    #[test]
    fn content_is_held_against_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("run")).unwrap();
        let at = folder.path().join("run/1");
        let said = receipt("run/1", b"content");
        let check = |said: &FileReceipt| said.check_content(folder.path());
        assert!(matches!(check(&said), Err(WrongContent::Unreadable(_))));
        std::fs::write(&at, b"content").unwrap();
        assert!(check(&said).is_ok());
        let md5 = |hex: &str| -> Vec<downpour_catalog::Digest> {
            vec![format!("md5:{hex}").parse().unwrap()]
        };
        let all = |others: &[_]| said.check_digests(folder.path(), others);
        assert!(all(&md5("9a0364b9e99bb480dd25e1f0284c8555")).is_ok());
        let wrong = all(&md5("900150983cd24fb0d6963f7d28e17f72")).unwrap_err();
        assert_eq!(wrong.class(), ErrorClass::DigestDiffers, "{wrong}");
        std::fs::write(&at, b"contend").unwrap();
        assert!(matches!(check(&said), Err(WrongContent::Digest { .. })));
        std::fs::write(&at, b"contents").unwrap();
        assert!(matches!(check(&said), Err(WrongContent::Size { found: 8 })));
        for path in ["../run/1", "/etc/hostname", "run", "run/../run/1"] {
            let elsewhere = FileReceipt { path: path.into(), ..said.clone() };
            assert!(matches!(check(&elsewhere), Err(WrongContent::Unreadable(_))), "{path}");
        }
        std::os::unix::fs::symlink("1", folder.path().join("run/link")).unwrap();
        let link = FileReceipt { path: "run/link".into(), ..said };
        assert!(matches!(check(&link), Err(WrongContent::Unreadable(_))));
    }

    #[test]
    fn what_is_mounted_below_a_folder_is_synced_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("in/other");
        std::fs::create_dir_all(&place).unwrap();
        let synced =
            |path| sync_beneath(folder.path(), None, [path; 2].into_iter(), |_| {}).unwrap();
        assert_eq!(synced("in/other/x"), 1);
        let Some(_mounted) = Mounted::tmpfs(&place) else {
            let name = "what_is_mounted_below_a_folder_is_synced_with_it";
            return crate::skipped::skipped(name, "needs root to mount a tmpfs");
        };
        std::fs::create_dir(place.join("deep")).unwrap();
        std::os::unix::fs::symlink("other", folder.path().join("in/link")).unwrap();
        // No link is followed; what is gone by now is no error.
        let paths = ["x", "in/x", "in/link/x", "in/other/x", "in/other/deep/x", "in/other/gone/x"];
        assert_eq!(paths.map(synced), [1, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn that_a_sync_has_failed_is_told_and_nothing_is_moved() {
        let folder = tempfile::tempdir().unwrap();
        let (place, told) = (folder.path().join("x"), Cell::new(0));
        std::fs::write(&place, "x").unwrap();
        let unsynced = |_| {
            forget_beneath(folder.path(), "x");
            told.set(told.get() + 1);
        };
        let sync = |flags| {
            let before = rustix::fs::open(folder.path(), flags, Mode::empty()).unwrap();
            sync_beneath(folder.path(), Some(&before), ["x", "y"].into_iter(), unsynced)
        };
        assert_eq!((sync(OFlags::RDONLY).unwrap(), told.get()), (1, 0));
        // The system syncs nothing by such a one.
        sync(OFlags::PATH).unwrap_err();
        assert_eq!((std::fs::read(&place).unwrap(), told.get()), (b"x".to_vec(), 1));
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_found(at in any::<proptest::sample::Index>(), bit in 0u8..8) {
            let signed = receipt("run/1.root", b"content").sign(&Identity::generate()).unwrap();
            let mut bytes = signed.to_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let good = SignedFileReceipt::from_bytes(&bytes).is_ok_and(|r| r.verify().is_ok());
            prop_assert!(!good);
        }

        #[test]
        fn what_is_read_is_written_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(signed) = SignedFileReceipt::from_bytes(&bytes) {
                prop_assert!(signed.to_bytes() == bytes);
            }
        }
    }
}
