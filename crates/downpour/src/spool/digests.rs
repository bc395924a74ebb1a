//! All digests of a file in one reading pass, and the producer's own, read from beside it.

use downpour_catalog::{Digest, DigestKind};
use md5::Md5;
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::io::{self, Read};

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;
/// A producer's digest file that is longer is surely another one.
const SUM_BYTES_MAX: u64 = 1 << 16;

/// Digests as they grow: BLAKE3, and what else was asked for.
pub struct Digesting {
    blake3: blake3::Hasher,
    md5: Option<Md5>,
    sha256: Option<Sha256>,
    adler32: Option<Adler32>,
}

impl Digesting {
    /// BLAKE3 and these.
    pub fn new(kinds: &[DigestKind]) -> Self {
        let has = |kind| kinds.contains(&kind);
        Self {
            blake3: blake3::Hasher::new(),
            md5: has(DigestKind::Md5).then(Md5::new),
            sha256: has(DigestKind::Sha256).then(Sha256::new),
            adler32: has(DigestKind::Adler32).then_some(Adler32 { a: 1, b: 0 }),
        }
    }

    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.blake3.update(bytes);
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(bytes);
        }
        if let Some(adler32) = &mut self.adler32 {
            adler32.update(bytes);
        }
    }

    /// The digests of all bytes; BLAKE3 comes first.
    pub fn finish(self) -> Vec<Digest> {
        let of = |kind, value: &[u8]| Digest::new(kind, value).expect("of its kind's length");
        let mut digests = vec![Digest::blake3(*self.blake3.finalize().as_bytes())];
        digests.extend(self.md5.map(|md5| of(DigestKind::Md5, &md5.finalize())));
        digests.extend(self.sha256.map(|sha256| of(DigestKind::Sha256, &sha256.finalize())));
        let adler32 = self.adler32.map(|Adler32 { a, b }| (b << 16 | a).to_be_bytes());
        digests.extend(adler32.map(|value| of(DigestKind::Adler32, &value)));
        digests
    }

    /// Reads to the end; `go_on` is asked between pieces, and ends it with an error of kind `Interrupted`.
    pub fn read(
        mut self,
        mut from: impl Read,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> io::Result<(u64, Vec<Digest>)> {
        let mut piece = vec![0; READ_BYTES];
        let mut len = 0;
        loop {
            let count = match from.read(&mut piece) {
                Ok(0) => return Ok((len, self.finish())),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            self.update(&piece[..count]);
            len += count as u64;
            if !go_on(count) {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
    }
}

/// What digests besides BLAKE3 are called between sites: `md5:HEX`.
pub(crate) fn in_words(digests: &[Digest]) -> Vec<String> {
    let others = digests.iter().filter(|digest| digest.kind() != DigestKind::Blake3);
    others.map(|digest| format!("{}:{}", digest.kind(), digest.hex())).collect()
}

/// The same, read. What this program does not know is passed over: a later one may tell more.
pub(crate) fn of_words(words: &[String]) -> Vec<Digest> {
    let known = words.iter().filter_map(|word| word.parse::<Digest>().ok());
    known.filter(|digest| digest.kind() != DigestKind::Blake3).collect()
}

/// Adler-32 as RFC 1950 has it.
struct Adler32 {
    a: u32,
    b: u32,
}

impl Adler32 {
    const MODULUS: u32 = 65_521;
    /// So many bytes cannot overflow the sums.
    const RUN: usize = 5_552;

    fn update(&mut self, bytes: &[u8]) {
        for run in bytes.chunks(Self::RUN) {
            for byte in run {
                self.a += u32::from(*byte);
                self.b += self.a;
            }
            self.a %= Self::MODULUS;
            self.b %= Self::MODULUS;
        }
    }
}

/// Reads a producer's digest of the file called `name`: bare digits, `DIGITS  NAME` as `md5sum` writes them, or `MD5 (NAME) =
/// DIGITS`, with names escaped as they do it. Of several lines the one with the name counts.
pub fn read_sum(from: impl Read, kind: DigestKind, name: &str) -> Result<Digest, String> {
    let mut text = String::new();
    let read = from.take(SUM_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| format!("the {kind} file cannot be read: {error}"))?;
    if text.len() as u64 > SUM_BYTES_MAX {
        return Err(format!("the {kind} file is longer than {SUM_BYTES_MAX} bytes"));
    }
    let lines: Vec<_> = text.lines().filter_map(|line| parse_sum(line, kind)).collect();
    let named = lines
        .iter()
        .find(|(of, _)| of.as_ref().is_some_and(|of| of.rsplit('/').next() == Some(name)));
    let found = match (named, lines.as_slice()) {
        (Some((_, digest)), _) | (None, [(_, digest)]) => Some(digest.clone()),
        _ => None,
    };
    found.ok_or_else(|| format!("the {kind} file holds no {kind} of `{name}`"))
}

/// One line: the name, if it has one, and the digest.
pub(super) fn parse_sum(line: &str, kind: DigestKind) -> Option<(Option<Cow<'_, str>>, Digest)> {
    let digest = |digits: &str| format!("{kind}:{digits}").parse::<Digest>().ok();
    let line = line.trim_end();
    let (line, is_escaped) = line.strip_prefix('\\').map_or((line, false), |line| (line, true));
    let tagged = || {
        let (head, digits) = line.rsplit_once(" = ")?;
        let (_, name) = head.split_once(" (")?;
        Some((name.strip_suffix(')'), digest(digits.trim())?))
    };
    let plain = || {
        let Some((digits, name)) = line.split_once(char::is_whitespace) else {
            return Some((None, digest(line)?));
        };
        let name = name.trim_start();
        Some((Some(name.strip_prefix('*').unwrap_or(name)), digest(digits)?))
    };
    let (name, digest) = tagged().or_else(plain)?;
    let written = |name| if is_escaped { Cow::from(unescaped(name)) } else { Cow::from(name) };
    Some((name.map(written), digest))
}

/// A name as it was before `md5sum` escaped it.
fn unescaped(name: &str) -> String {
    let mut chars = name.chars();
    let next = || {
        Some(match chars.next()? {
            '\\' => match chars.next()? {
                'n' => '\n',
                'r' => '\r',
                other => other,
            },
            other => other,
        })
    };
    std::iter::from_fn(next).collect()
}

#[cfg(test)]
mod tests {
    use super::{Digesting, in_words, of_words, read_sum};
    use downpour_catalog::DigestKind;

    const MD5_OF_ABC: &str = "900150983cd24fb0d6963f7d28e17f72";

    #[test]
    fn one_pass_gives_the_known_digests() {
        let kinds = [DigestKind::Md5, DigestKind::Sha256, DigestKind::Adler32];
        let (len, digests) = Digesting::new(&kinds).read(&b"abc"[..], |_| true).unwrap();
        let shown: Vec<_> = digests.iter().map(|digest| digest.hex()).collect();
        assert_eq!(len, 3);
        assert_eq!(shown[0], blake3::hash(b"abc").to_hex().as_str());
        assert_eq!(shown[1], MD5_OF_ABC);
        assert!(shown[2].starts_with("ba7816bf8f01cfea"));
        assert_eq!(shown[3], "024d0127");
        assert_eq!(Digesting::new(&[]).finish().len(), 1);
        // To another site all but BLAKE3 are told, which has a field of its own there.
        let mut words = in_words(&digests);
        assert_eq!(words[0], format!("md5:{MD5_OF_ABC}"));
        words.extend(["sha3:00", "md5:zz", &digests[0].hex()].map(str::to_owned));
        assert_eq!(of_words(&words), digests[1..]);
        assert!(Digesting::new(&[]).read(&b"abc"[..], |_| false).is_err());
    }

    #[test]
    fn producers_write_their_digests_in_three_ways() {
        let upper = MD5_OF_ABC.to_uppercase();
        for text in [
            format!("{MD5_OF_ABC}\n"),
            format!("{MD5_OF_ABC}  a.root\n"),
            format!("{upper} *./run/a.root\n"),
            format!("MD5 (a.root) = {MD5_OF_ABC}\n"),
            format!("{}  b\n{MD5_OF_ABC}  a.root\n", MD5_OF_ABC.replace('9', "0")),
        ] {
            let digest = read_sum(text.as_bytes(), DigestKind::Md5, "a.root").unwrap();
            assert_eq!(digest.hex(), MD5_OF_ABC, "{text}");
        }
        for (text, name) in [
            (format!("{MD5_OF_ABC}  b = c\n"), "b = c"),
            (format!("MD5 (b = c) = {MD5_OF_ABC}\n"), "b = c"),
            (format!("\\{MD5_OF_ABC}  run/a\\\\b\\n\n"), "a\\b\n"),
            (format!("\\MD5 (a\\rb) = {MD5_OF_ABC}\n"), "a\rb"),
        ] {
            // Of several lines, so that the name counts.
            let text = format!("{text}{}  c\n", MD5_OF_ABC.replace('9', "0"));
            let digest = read_sum(text.as_bytes(), DigestKind::Md5, name).unwrap();
            assert_eq!(digest.hex(), MD5_OF_ABC, "{text}");
        }
        let two = format!("{MD5_OF_ABC}  b\n{MD5_OF_ABC}  c\n");
        for wrong in ["", "zz", "900150983c", two.as_str()] {
            assert!(read_sum(wrong.as_bytes(), DigestKind::Md5, "a.root").is_err(), "{wrong}");
        }
    }
}
