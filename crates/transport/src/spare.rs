//! Buffers that are used again.
//!
//! New memory costs as much as the bytes that go into it: the kernel clears each page, and its first use is a fault. So
//! who needs many buffers of one kind, one after the other, takes them here and gives them back.

use bytes::Bytes;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Some buffers that nobody uses at the moment. Clones share them.
#[derive(Clone, Debug)]
pub struct Spare {
    buffers: Arc<Mutex<Vec<Vec<u8>>>>,
    most: usize,
}

/// This process, and what it starts, gets its memory in small pages from now on.
///
/// A huge one (2 MiB) is cleared as a whole for its first byte: 0.2 ms on most machines, 6 ms on a virtual one that has to
/// ask its host for it, and so long waits what a thread has at hand (`docs/results/ldm7.md`). Small ones cost the same for
/// each byte that is used, and what is not used is not there (`docs/results/limit.md`).
pub fn take_small_pages() {
    // A kernel without huge pages refuses, and needs not be asked.
    let _ = nix::sys::prctl::set_thp_disable(true);
}

impl Spare {
    /// Keeps at most so many.
    pub fn new(most: usize) -> Self {
        Self { buffers: Arc::default(), most }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        // Whole buffers, whatever panicked.
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `len` bytes; what is in it is undefined.
    pub fn take(&self, len: usize) -> Vec<u8> {
        let spare = self.lock().pop();
        match spare.filter(|buffer| buffer.capacity() >= len) {
            Some(mut buffer) => {
                buffer.resize(len, 0);
                buffer
            }
            None => vec![0; len],
        }
    }

    /// Keeps a buffer for later, if there is room.
    pub fn give(&self, buffer: Vec<u8>) {
        let mut buffers = self.lock();
        if buffers.len() < self.most {
            buffers.push(buffer);
        }
    }

    /// A buffer of `len` bytes that comes back by itself.
    pub fn lend(&self, len: usize) -> Lent {
        Lent { bytes: self.take(len), home: self.clone() }
    }
}

/// A buffer that comes back to its [`Spare`] when it is dropped.
#[derive(Debug)]
pub struct Lent {
    bytes: Vec<u8>,
    home: Spare,
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.give(std::mem::take(&mut self.bytes));
    }
}

impl Lent {
    /// All of it, to be read by several.
    pub fn share(self) -> Part {
        Part(Bytes::from_owner(self))
    }
}

/// A part of a buffer, which comes back when the last of its parts is dropped.
#[derive(Clone, Debug)]
pub struct Part(pub(crate) Bytes);

impl Part {
    /// A part of this one.
    ///
    /// # Panics
    /// When `range` is not within it.
    pub fn part(&self, range: Range<usize>) -> Self {
        Self(self.0.slice(range))
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Spare;

    #[test]
    fn a_buffer_comes_back_with_the_last_of_its_parts() {
        let spare = Spare::new(1);
        let mut lent = spare.lend(100);
        lent[99] = 7;
        let place = lent.as_ptr();
        let whole = lent.share();
        let part = whole.part(90..100);
        drop(whole);
        assert_eq!((part.len(), part[9]), (10, 7));
        let other = spare.take(100);
        assert_ne!(other.as_ptr(), place, "it is still in use");
        drop(part);
        let again = spare.take(50);
        assert_eq!((again.as_ptr(), again.len()), (place, 50));
    }

    #[test]
    fn no_more_are_kept_than_was_said() {
        let spare = Spare::new(2);
        (0..5).for_each(|_| spare.give(vec![0; 10]));
        assert_eq!(spare.lock().len(), 2);
        assert_eq!(spare.take(20).len(), 20, "one that is too short is of no use");
    }
}
