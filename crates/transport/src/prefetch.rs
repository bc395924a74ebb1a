//! Memory that is about to be written, fetched into the cache meanwhile.
//!
//! A block's buffer has long left the cache when the next block is received into it. A copy into it waits for each of
//! its lines, and all that follows waits for the copy. The processor can fetch the lines while a datagram is
//! being opened instead. Not here: memory that is read in order, which the processor fetches ahead by itself.

#![allow(unsafe_code)]

/// Distance of two lines of the cache.
const LINE_LEN: usize = 64;

/// Asks for `bytes` to be brought into this core's cache for writing. Changes nothing else.
pub(crate) fn for_writing(bytes: &[u8]) {
    for line in bytes.chunks(LINE_LEN) {
        fetch(line.as_ptr());
    }
}

/// On others the copy waits as it did.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn fetch(_: *const u8) {}

#[cfg(target_arch = "x86_64")]
fn fetch(line: *const u8) {
    // SAFETY: a hint that touches no memory, faults nowhere, and does nothing on processors that do not know it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(target_arch = "aarch64")]
fn fetch(line: *const u8) {
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(test)]
mod tests {
    use super::for_writing;

    #[test]
    fn what_is_asked_for_stays_as_it_was() {
        let bytes: Vec<u8> = (0..1448).map(|i| (i % 251) as u8).collect();
        for range in [0..0, 3..3, 0..1, 17..1448, 0..1448] {
            for_writing(&bytes[range]);
        }
        assert!(bytes.iter().enumerate().all(|(i, byte)| usize::from(*byte) == i % 251));
    }
}
