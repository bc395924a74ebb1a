//! How a section is framed, chained and signed (`docs/protocol.md#MAN-1`, `#MAN-6`).

use super::ManifestError;
use crate::object::digest::Digest;
use crate::object::limits::{SECTION_LEN_MAX, SECTIONS_MAX};
use crate::object::wire::Reader;
use downpour_transport::identity::{Identity, PublicKey, Signature};

const SIGNATURE_LEN: usize = 64;
const DOMAIN: &str = "downpour manifest section 1";
const FORMAT: u8 = 1;
const FLAG_LAST: u8 = 1;
const HEADER_LEN: usize = 4 + 1 + 16 + 4 + 32 + 1;

/// The shortest section: an empty body.
pub(crate) const SECTION_LEN_MIN: usize = HEADER_LEN + SIGNATURE_LEN;

/// Names one manifest. The sender chooses it at random and tells it at JOIN, so that a member of the
/// group cannot pass off an older manifest of the same publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ManifestId(pub [u8; 16]);

/// Length that a section's first bytes declare, if it is possible.
pub(crate) fn declared_len(start: &[u8]) -> Result<usize, ManifestError> {
    let Some(len) = start.first_chunk::<4>().map(|len| u32::from_be_bytes(*len) as usize) else {
        return Err(ManifestError::Forged("it has no length"));
    };
    if (SECTION_LEN_MIN..=SECTION_LEN_MAX).contains(&len) {
        Ok(len)
    } else {
        Err(ManifestError::Forged("its length is impossible"))
    }
}

/// Where the chain of sections stands: what the next one must carry.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    id: ManifestId,
    index: u32,
    previous: Digest,
    ended: bool,
}

/// A section whose place, hash and signature are right.
#[derive(Debug)]
pub(crate) struct Opened<'a> {
    pub(crate) index: u32,
    pub(crate) last: bool,
    pub(crate) body: &'a [u8],
}

impl Chain {
    pub(crate) fn new(id: ManifestId) -> Self {
        Self { id, index: 0, previous: Digest([0; 32]), ended: false }
    }

    /// Hash of the newest section: stands for the whole manifest once the last one is in.
    pub(crate) fn digest(&self) -> Digest {
        self.previous
    }

    /// Frames and signs the next section.
    pub(crate) fn seal(&mut self, body: &[u8], last: bool, publisher: &Identity) -> Vec<u8> {
        debug_assert!(!self.ended);
        let len = SECTION_LEN_MIN + body.len();
        assert!(len <= SECTION_LEN_MAX, "bodies are cut well below the limit (limits.rs)");
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&(len as u32).to_be_bytes());
        out.push(FORMAT);
        out.extend_from_slice(&self.id.0);
        out.extend_from_slice(&self.index.to_be_bytes());
        out.extend_from_slice(&self.previous.0);
        out.push(if last { FLAG_LAST } else { 0 });
        out.extend_from_slice(body);
        let signature = publisher.sign(DOMAIN, &Digest::of(&out).0);
        out.extend_from_slice(signature.as_bytes());
        self.advance(&out, last);
        out
    }

    /// Checks the next section, all of it in `bytes`.
    pub(crate) fn open<'a>(
        &mut self,
        bytes: &'a [u8],
        publisher: &PublicKey,
    ) -> Result<Opened<'a>, ManifestError> {
        use ManifestError::Forged;
        if declared_len(bytes)? != bytes.len() {
            return Err(Forged("its length is wrong"));
        }
        let (signed, signature) =
            bytes.split_last_chunk::<SIGNATURE_LEN>().ok_or(Forged("it is too short"))?;
        publisher
            .verify(DOMAIN, &Digest::of(signed).0, &Signature::from_bytes(*signature))
            .map_err(|_| Forged("it is not signed by the publisher"))?;
        let mut reader = Reader::new(&signed[4..HEADER_LEN]);
        let short = |_| Forged("it is too short");
        if reader.byte().map_err(short)? != FORMAT {
            return Err(ManifestError::Malformed { section: self.index, what: "unknown format" });
        }
        if reader.array().map_err(short)? != self.id.0 {
            return Err(Forged("it belongs to another manifest"));
        }
        let index = u32::from_be_bytes(reader.array().map_err(short)?);
        let previous = Digest(reader.array().map_err(short)?);
        if index != self.index || previous != self.previous || self.ended {
            return Err(Forged("it is not the next of its chain"));
        }
        let flags = reader.byte().map_err(short)?;
        if flags > FLAG_LAST || index >= SECTIONS_MAX {
            return Err(ManifestError::Malformed { section: index, what: "flags or number" });
        }
        self.advance(bytes, flags == FLAG_LAST);
        Ok(Opened { index, last: flags == FLAG_LAST, body: &signed[HEADER_LEN..] })
    }

    fn advance(&mut self, section: &[u8], last: bool) {
        self.index += 1;
        self.previous = Digest::of(section);
        self.ended = last;
    }
}

#[cfg(test)]
mod tests {
    use super::{Chain, ManifestError, ManifestId};
    use downpour_transport::identity::Identity;

    // docs/protocol.md#MAN-1
    #[test]
    fn a_chain_opens_in_order_and_only_so() {
        let key = Identity::generate();
        let public = key.public_key();
        let mut out = Chain::new(ManifestId([7; 16]));
        let sections: Vec<_> = (0..3u8).map(|i| out.seal(&[i; 5], i == 2, &key)).collect();
        let mut chain = Chain::new(ManifestId([7; 16]));
        assert!(matches!(chain.open(&sections[1], &public), Err(ManifestError::Forged(_))));
        for (i, section) in sections.iter().enumerate() {
            let opened = chain.open(section, &public).unwrap();
            assert_eq!((opened.index, opened.last), (i as u32, i == 2));
            assert_eq!(opened.body, &[i as u8; 5]);
        }
        assert_eq!(chain.digest(), out.digest());
        assert!(chain.open(&sections[2], &public).is_err(), "nothing follows the last");
    }

    // docs/protocol.md#MAN-1
    #[test]
    fn any_changed_byte_another_key_or_another_id_is_refused() {
        let (key1, key2) = (Identity::generate(), Identity::generate());
        let public = key1.public_key();
        let good = Chain::new(ManifestId([7; 16])).seal(b"body", true, &key1);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(Chain::new(ManifestId([7; 16])).open(&bad, &public).is_err(), "{at}");
        }
        assert!(Chain::new(ManifestId([8; 16])).open(&good, &public).is_err());
        let other = Chain::new(ManifestId([7; 16])).seal(b"body", true, &key2);
        assert!(Chain::new(ManifestId([7; 16])).open(&other, &public).is_err());
        assert!(Chain::new(ManifestId([7; 16])).open(&good, &public).is_ok());
    }
}
