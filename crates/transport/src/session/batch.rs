//! What a sender has sealed and the kernel has not taken yet.
//!
//! One call sends datagrams of one length, of which only the last may be shorter. A longer one waits until those before it
//! have left: what tells where datagrams end is never changed over any that are here.

use crate::udp::{SEGMENTS_MAX, SEND_LEN_MAX};
use std::io;

/// Datagrams one after the other, in the order of their numbers.
pub(super) struct Batch {
    /// All but the last are of `segment_len`.
    bytes: Vec<u8>,
    segment_len: usize,
    /// The last, if it is longer than those.
    longer: Vec<u8>,
}

impl Batch {
    /// For datagrams of so many bytes at most.
    pub(super) fn new(datagram_len: usize) -> Self {
        let bytes = Vec::with_capacity(SEND_LEN_MAX + datagram_len);
        Self { bytes, segment_len: 0, longer: Vec::new() }
    }

    /// Nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes that the next [`flush`](Self::flush) sends.
    pub(super) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of each that the next [`flush`](Self::flush) sends, the last perhaps fewer.
    pub(super) const fn segment_len(&self) -> usize {
        self.segment_len
    }

    /// Where the next datagram is put, at the end. [`added`](Self::added) is to be told of it.
    pub(super) fn room(&mut self) -> &mut Vec<u8> {
        debug_assert!(self.longer.is_empty());
        &mut self.bytes
    }

    /// A datagram of so many bytes was put there; true when none may follow before a [`flush`](Self::flush).
    pub(super) fn added(&mut self, len: usize) -> bool {
        let before = self.bytes.len() - len;
        if before == 0 {
            self.segment_len = len;
        }
        if len > self.segment_len {
            self.longer.extend_from_slice(&self.bytes[before..]);
            self.bytes.truncate(before);
            return true;
        }
        len < self.segment_len
            || self.bytes.len() + self.segment_len > SEND_LEN_MAX
            || self.bytes.len() >= SEGMENTS_MAX * self.segment_len
    }

    /// Sends what is here but for a longer one, with which the next batch begins. `send` is given datagrams and the length
    /// of each, and says how many bytes of whole ones were taken. False when not all were; what fails is gone.
    pub(super) fn flush(
        &mut self,
        send: impl FnOnce(&[u8], usize) -> io::Result<usize>,
    ) -> io::Result<bool> {
        let sent = send(&self.bytes, self.segment_len);
        if let Ok(taken) = sent
            && taken < self.bytes.len()
        {
            self.bytes.drain(..taken);
            return Ok(false);
        }
        self.bytes.clear();
        std::mem::swap(&mut self.bytes, &mut self.longer);
        self.segment_len = self.bytes.len();
        sent.map(|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::Batch;
    use std::io;

    fn add(batch: &mut Batch, len: usize) -> bool {
        let room = batch.room();
        room.resize(room.len() + len, len as u8);
        batch.added(len)
    }

    /// Flushes into a kernel that takes so many datagrams; their lengths.
    fn flush(batch: &mut Batch, takes: usize) -> (bool, Vec<usize>) {
        let mut lens = Vec::new();
        let flushed = batch.flush(|bytes, len| {
            for datagram in bytes.chunks(len).take(takes) {
                assert!(datagram.iter().all(|byte| usize::from(*byte) == datagram.len()));
                lens.push(datagram.len());
            }
            Ok(lens.iter().sum())
        });
        (flushed.unwrap(), lens)
    }

    #[test]
    fn datagrams_stay_whole_whatever_the_kernel_takes() {
        let mut batch = Batch::new(100);
        // A poll waits, and a symbol comes.
        assert!(!add(&mut batch, 40) && !add(&mut batch, 40) && add(&mut batch, 90));
        assert_eq!(flush(&mut batch, 1), (false, vec![40]));
        assert_eq!(flush(&mut batch, 0), (false, vec![]));
        assert_eq!(flush(&mut batch, 9), (true, vec![40]));
        assert!(!batch.is_empty() && !add(&mut batch, 90) && add(&mut batch, 40));
        assert_eq!(flush(&mut batch, 2), (false, vec![90, 90]));
        assert_eq!(flush(&mut batch, 9), (true, vec![40]));
        assert!(batch.is_empty());
    }

    #[test]
    fn what_the_kernel_refuses_is_gone_and_no_more() {
        let mut batch = Batch::new(100);
        assert!(!add(&mut batch, 40) && add(&mut batch, 90));
        assert_eq!(batch.len(), 40, "the longer one waits");
        assert!(batch.flush(|_, _| Err(io::ErrorKind::NetworkDown.into())).is_err());
        assert_eq!(flush(&mut batch, 9), (true, vec![90]));
    }

    #[test]
    fn no_batch_is_longer_than_one_call_takes() {
        for len in [1, 200] {
            let mut batch = Batch::new(len);
            let added = (1..).find(|_| add(&mut batch, len)).unwrap();
            assert_eq!(added, 64);
        }
    }
}
