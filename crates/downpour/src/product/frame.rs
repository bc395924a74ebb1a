//! How products stand in the data space (`docs/protocol.md#PROD-2`, `#PROD-3`): head, body, seal, one after another, through
//! blocks of any length.

use crate::object::wire::{Reader, WireError, put_bytes, put_varint};
use downpour_transport::identity::{BadSignature, Identity, PublicKey, Signature};

/// Bytes before a block's frames: how many they are, and where the first one that begins here does.
pub(super) const BLOCK_HEAD_LEN: usize = 8;

/// No frame begins in the block.
const NONE_BEGINS: u32 = u32::MAX;

/// The first two bytes of a head are the length of its rest.
pub(super) const HEAD_START: usize = 2;

/// Longest metadata of a product.
pub(super) const META_LEN_MAX: usize = 4096;

/// Longest name: what Linux file systems allow.
pub(super) const NAME_LEN_MAX: usize = 255;

/// Largest product.
const SIZE_MAX: u64 = 1 << 50;

/// Longest head, without its first two bytes.
const HEAD_LEN_MAX: usize = 1 + 3 * 10 + 2 * 3 + NAME_LEN_MAX + META_LEN_MAX;

const _: () = assert!(HEAD_LEN_MAX <= u16::MAX as usize);

const KIND_PRODUCT: u8 = 1;
const DOMAIN: &str = "downpour product 1";
const DIGEST_LEN: usize = 32;

/// What follows a body: its digest, and a signature.
pub(super) const SEAL_LEN: usize = DIGEST_LEN + 64;

/// A frame has at most so many bytes besides its product's.
pub(super) const FRAME_REST_MAX: usize = HEAD_START + HEAD_LEN_MAX + SEAL_LEN;

/// What is told of a product before its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// 0, 1, 2, …
    pub(super) number: u64,
    /// Nanoseconds since 1970, by the sender's clock.
    pub(super) inserted_ns: u64,
    pub(super) size: u64,
    pub(super) name: String,
    pub(super) meta: String,
}

/// Why a name cannot be a product's.
pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" | "." | ".." => Err("no name for a file"),
        ".downpour" => Err("our own folder's name"),
        name if name.len() > NAME_LEN_MAX => Err("longer than 255 bytes"),
        name if name.contains(['/', '\0']) => Err("not a plain file name"),
        _ => Ok(()),
    }
}

impl Head {
    /// Its bytes, with the length that they begin with.
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut out = vec![0, 0, KIND_PRODUCT];
        put_varint(&mut out, self.number);
        put_varint(&mut out, self.inserted_ns);
        put_varint(&mut out, self.size);
        put_bytes(&mut out, self.name.as_bytes());
        put_bytes(&mut out, self.meta.as_bytes());
        let len = (out.len() - HEAD_START) as u16;
        out[..HEAD_START].copy_from_slice(&len.to_be_bytes());
        out
    }

    /// Length of the rest, if it is possible.
    pub(super) fn rest_len(start: [u8; HEAD_START]) -> Option<usize> {
        let len = usize::from(u16::from_be_bytes(start));
        (1..=HEAD_LEN_MAX).contains(&len).then_some(len)
    }

    /// From the bytes after the length.
    pub(super) fn parse(rest: &[u8]) -> Result<Self, &'static str> {
        let mut reader = Reader::new(rest);
        let head = Self::read(&mut reader).map_err(WireError::text)?;
        if !reader.is_empty() {
            return Err("it is longer than what it says");
        }
        let (number, inserted_ns, size, name, meta) = head.ok_or("it is of an unknown kind")?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| "it is no text");
        let (name, meta) = (text(name)?, text(meta)?);
        check_name(&name)?;
        if size > SIZE_MAX {
            return Err("its size is impossible");
        }
        Ok(Self { number, inserted_ns, size, name, meta })
    }

    #[expect(clippy::type_complexity, reason = "the five fields, once")]
    fn read<'a>(
        reader: &mut Reader<'a>,
    ) -> Result<Option<(u64, u64, u64, &'a [u8], &'a [u8])>, WireError> {
        if reader.byte()? != KIND_PRODUCT {
            return Ok(None);
        }
        let (number, inserted_ns, size) = (reader.varint()?, reader.varint()?, reader.varint()?);
        let (name, meta) = (reader.bytes(NAME_LEN_MAX)?, reader.bytes(META_LEN_MAX)?);
        Ok(Some((number, inserted_ns, size, name, meta)))
    }
}

/// Digest and signature of a product: what follows its body. `head` is all its bytes.
pub(super) fn seal(
    publisher: &Identity,
    session: &[u8; 16],
    head: &[u8],
    digest: &[u8; DIGEST_LEN],
) -> Vec<u8> {
    let signature = publisher.sign(DOMAIN, &signed(session, head, digest));
    [&digest[..], signature.as_bytes()].concat()
}

/// The digest in a seal, and whether it was the publisher who signed it for this head.
pub(super) fn open_seal(
    publisher: &PublicKey,
    session: &[u8; 16],
    head: &[u8],
    seal: &[u8; SEAL_LEN],
) -> ([u8; DIGEST_LEN], Result<(), BadSignature>) {
    let (mut digest, mut signature) = ([0; DIGEST_LEN], [0; SEAL_LEN - DIGEST_LEN]);
    digest.copy_from_slice(&seal[..DIGEST_LEN]);
    signature.copy_from_slice(&seal[DIGEST_LEN..]);
    let signature = Signature::from_bytes(signature);
    (digest, publisher.verify(DOMAIN, &signed(session, head, &digest), &signature))
}

fn signed(session: &[u8; 16], head: &[u8], digest: &[u8; DIGEST_LEN]) -> Vec<u8> {
    let head = blake3::hash(head);
    [&session[..], head.as_bytes(), digest].concat()
}

/// Fills in the head of a block whose frames stand after it.
pub(super) fn close_block(block: &mut [u8], first: Option<usize>) {
    let used = (block.len() - BLOCK_HEAD_LEN) as u32;
    let first = first.map_or(NONE_BEGINS, |at| at as u32);
    block[..4].copy_from_slice(&used.to_be_bytes());
    block[4..BLOCK_HEAD_LEN].copy_from_slice(&first.to_be_bytes());
}

/// A block's frames, and where the first one that begins in them does.
pub(super) fn open_block(block: &[u8]) -> Option<(&[u8], Option<usize>)> {
    let (used, rest) = block.split_first_chunk::<4>()?;
    let (first, frames) = rest.split_first_chunk::<4>()?;
    let frames = frames.get(..u32::from_be_bytes(*used) as usize)?;
    match u32::from_be_bytes(*first) {
        NONE_BEGINS => Some((frames, None)),
        first if (first as usize) < frames.len() => Some((frames, Some(first as usize))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_HEAD_LEN, HEAD_START, Head, SEAL_LEN, close_block, open_block, open_seal};
    use downpour_transport::identity::Identity;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    fn head() -> Head {
        Head {
            number: 7,
            inserted_ns: 1_434_326_400_009_000_000,
            size: 90_654,
            name: "grid.bin".to_owned(),
            meta: "NGRID".to_owned(),
        }
    }

    proptest! {
        #[test]
        fn what_is_parsed_is_emitted_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let bytes = [&[1][..], &bytes].concat();
            if let Ok(head) = Head::parse(&bytes) {
                prop_assert_eq!(&head.emit()[HEAD_START..], &bytes[..]);
            }
        }

        #[test]
        fn heads_come_back(number in any::<u64>(), inserted_ns in any::<u64>(), size in 0..super::SIZE_MAX) {
            let head = Head { number, inserted_ns, size, ..head() };
            let bytes = head.emit();
            prop_assert_eq!(Head::rest_len([bytes[0], bytes[1]]), Some(bytes.len() - HEAD_START));
            prop_assert_eq!(Head::parse(&bytes[HEAD_START..]), Ok(head));
        }
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        for name in ["", ".", "..", "a/b", "/etc", ".downpour", "a\0"] {
            let bytes = Head { name: name.to_owned(), ..head() }.emit();
            assert!(Head::parse(&bytes[HEAD_START..]).is_err(), "{name}");
        }
    }

    #[test]
    fn a_seal_is_for_one_head_of_one_session() {
        let publisher = Identity::generate();
        let (bytes, digest) = (head().emit(), [3; 32]);
        let seal: [u8; SEAL_LEN] =
            super::seal(&publisher, &[1; 16], &bytes, &digest).try_into().unwrap();
        let opened = |session, head: &[u8]| {
            let (found, signed) = open_seal(&publisher.public_key(), session, head, &seal);
            assert_eq!(found, digest);
            signed.is_ok()
        };
        assert!(opened(&[1; 16], &bytes));
        assert!(!opened(&[2; 16], &bytes), "another session");
        let other = Head { number: 8, ..head() }.emit();
        assert!(!opened(&[1; 16], &other), "another product");
    }

    #[test]
    fn a_block_tells_what_of_it_counts() {
        let mut block = vec![0; BLOCK_HEAD_LEN + 5];
        close_block(&mut block, Some(2));
        block.resize(100, 0);
        assert_eq!(open_block(&block), Some((&[0; 5][..], Some(2))));
        close_block(&mut block, None);
        assert_eq!(
            open_block(&block).map(|(frames, first)| (frames.len(), first)),
            Some((92, None))
        );
        assert_eq!(open_block(&block[..50]), None, "it claims more than there is");
        assert_eq!(open_block(&[0; 3]), None);
    }
}
