//! The field GF(2^8): its tables, and products of whole symbols without any machine's help.
//!
//! Modulus x⁸ + x⁴ + x³ + x + 1, that of AES, because x86's GFNI multiplies in it; 3 generates all but zero.
//! Addition is exclusive or.

/// `EXP[i]` is 3ⁱ. Twice its period, so that a sum of two logarithms needs no reduction.
pub(super) const EXP: [u8; 510] = exponentials();

/// `LOG[3ⁱ]` is i, below 255; zero has none.
pub(super) const LOG: [u8; 256] = logarithms();

/// `NIBBLES[c]`: c times each of 0, 1, … 15, then c times each of 0, 16, … 240. So the product of c with any byte
/// is the sum of two entries.
pub(super) static NIBBLES: [[u8; 32]; 256] = nibbles();

const fn exponentials() -> [u8; 510] {
    let mut table = [0; 510];
    let (mut i, mut value) = (0, 1u8);
    while i < 510 {
        table[i] = value;
        let doubled = value << 1 ^ if value & 0x80 == 0 { 0 } else { 0x1b };
        value ^= doubled;
        i += 1;
    }
    table
}

const fn logarithms() -> [u8; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 255 {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
}

const fn nibbles() -> [[u8; 32]; 256] {
    let mut table = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut n = 0;
        while n < 16 {
            table[c][n] = multiply(c as u8, n as u8);
            table[c][16 + n] = multiply(c as u8, (n << 4) as u8);
            n += 1;
        }
        c += 1;
    }
    table
}

pub(super) const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + LOG[b as usize] as usize]
}

/// One over `a`, which is not zero.
pub(super) const fn invert(a: u8) -> u8 {
    EXP[255 - LOG[a as usize] as usize]
}

/// What [`super::kernel::combine`] does, byte by byte.
pub(super) fn combine(outs: &mut [&mut [u8]], ins: &[&[u8]], factors: &[u8]) {
    for (out, factors) in outs.iter_mut().zip(factors.chunks_exact(ins.len())) {
        out.fill(0);
        for (symbol, factor) in ins.iter().zip(factors) {
            let table = &NIBBLES[usize::from(*factor)];
            for (sum, byte) in out.iter_mut().zip(*symbol) {
                *sum ^= table[usize::from(byte & 15)] ^ table[16 + usize::from(byte >> 4)];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{NIBBLES, invert, multiply};

    /// By the definition: a polynomial product, reduced.
    fn product(a: u8, b: u8) -> u8 {
        let mut wide =
            (0..8).fold(0u16, |sum, i| sum ^ if b >> i & 1 == 1 { u16::from(a) << i } else { 0 });
        for i in (8..15).rev() {
            if wide >> i & 1 == 1 {
                wide ^= 0x11b << (i - 8);
            }
        }
        wide as u8
    }

    #[test]
    fn the_tables_are_the_field() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                assert_eq!(multiply(a, b), product(a, b));
                let table = &NIBBLES[usize::from(a)];
                let sum = table[usize::from(b & 15)] ^ table[16 + usize::from(b >> 4)];
                assert_eq!(sum, product(a, b));
            }
            assert!(a == 0 || multiply(a, invert(a)) == 1);
        }
    }
}
