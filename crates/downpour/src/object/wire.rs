//! Varints and byte strings: how the manifest (`docs/protocol.md#MAN-5`) and the journal are written.
//!
//! A [`Reader`] never panics and accepts exactly one encoding of each value (the shortest varint), so
//! that emitting what was parsed gives the same bytes.

/// Why bytes could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WireError {
    /// The bytes end too early.
    Short,
    /// A varint is longer than it needs to be, or exceeds 64 bits.
    Varint,
    /// A number does not fit where it belongs.
    Range,
}

impl WireError {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Short => "it ends too early",
            Self::Varint => "a number is not in its shortest form",
            Self::Range => "a number is too large",
        }
    }
}

/// Appends `value`, seven bits a byte, lowest first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends `value` so that small numbers of either sign are short.
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends length and bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A checked view of bytes, read from the front.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return Err(WireError::Varint);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                let shortest = byte != 0 || shift == 0;
                return if shortest { Ok(value) } else { Err(WireError::Varint) };
            }
        }
        Err(WireError::Varint)
    }

    pub(crate) fn signed(&mut self) -> Result<i64, WireError> {
        let raw = self.varint()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// A varint that fits the type asked for.
    pub(crate) fn number<T: TryFrom<u64>>(&mut self) -> Result<T, WireError> {
        T::try_from(self.varint()?).map_err(|_| WireError::Range)
    }

    /// Length and bytes; at most `max` of them.
    pub(crate) fn bytes(&mut self, max: usize) -> Result<&'a [u8], WireError> {
        let len: usize = self.number()?;
        if len > max {
            return Err(WireError::Range);
        }
        self.take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::{Reader, WireError, put_signed, put_varint};
    use proptest::prelude::{any, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn numbers_come_back(value in any::<u64>(), signed in any::<i64>(), shift in 0u32..64) {
            let mut out = Vec::new();
            put_varint(&mut out, value >> shift);
            put_signed(&mut out, signed >> shift);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.varint(), Ok(value >> shift));
            prop_assert_eq!(reader.signed(), Ok(signed >> shift));
            prop_assert_eq!(reader.is_empty(), true);
        }

        #[test]
        fn what_is_read_is_written_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut reader = Reader::new(&bytes);
            if let Ok(value) = reader.varint() {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                prop_assert_eq!(&bytes[..out.len()], &out[..]);
            }
        }
    }

    #[test]
    fn long_forms_are_refused() {
        assert_eq!(Reader::new(&[0x80, 0]).varint(), Err(WireError::Varint));
        assert_eq!(Reader::new(&[0xff; 11]).varint(), Err(WireError::Varint));
        assert_eq!(Reader::new(&[0x80]).varint(), Err(WireError::Short));
    }
}
