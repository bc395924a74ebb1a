//! Reads big-endian fields off the front of a slice; never past its end.

use super::ParseError;
use alloc::vec::Vec;

/// Appends what [`Reader::varint`] reads.
pub(crate) fn put_varint(mut value: u32, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// What is left to parse.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(ParseError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, ParseError> {
        Ok(u8::from_be_bytes(self.take()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, ParseError> {
        Ok(u16::from_be_bytes(self.take()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ParseError> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ParseError> {
        Ok(u64::from_be_bytes(self.take()?))
    }

    /// Seven bits a byte, lowest first, the high bit set on all bytes but the last; in its shortest form only.
    pub(crate) fn varint(&mut self) -> Result<u32, ParseError> {
        let mut value = 0;
        for shift in (0..32).step_by(7) {
            let byte = self.u8()?;
            let bits = u32::from(byte & 0x7f);
            let (is_last, is_padded) = (byte & 0x80 == 0, byte == 0 && shift > 0);
            if is_padded || bits.leading_zeros() < shift {
                break;
            }
            value |= bits << shift;
            if is_last {
                return Ok(value);
            }
        }
        Err(ParseError::BadField)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], ParseError> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(ParseError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    /// All that is left.
    pub(crate) const fn rest(self) -> &'a [u8] {
        self.0
    }

    /// All bytes must have been used.
    pub(crate) const fn end(self) -> Result<(), ParseError> {
        if self.0.is_empty() { Ok(()) } else { Err(ParseError::Trailing) }
    }
}
