//! Bytes that are written one after another, cut into parts, and then read by several and kept for a while.
//!
//! 1. They are written into a room of memory; a part is cut off its front without a copy, and the next one follows it.
//! 2. A room goes when the last of its parts is dropped.
//! 3. A thread has the next room at hand, and has written to all of it: the kernel clears each page when it is first
//!    used, for a part of a millisecond a MB, or, where it asks a host for memory, for several at once. Whoever has bytes
//!    to send at once does not wait for that.
//!
//! Invariant: no part is longer than a room.

use crate::{Part, take_long_turns};
use bytes::BytesMut;
use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// See the top of this file. One thread writes.
#[derive(Debug)]
pub struct Roll {
    room_len: usize,
    /// Written and not cut off yet; its capacity is what is left of the room.
    open: BytesMut,
    ahead: Receiver<BytesMut>,
}

impl Roll {
    /// An empty one, of parts of at most `room_len` bytes.
    pub fn new(room_len: usize) -> io::Result<Self> {
        let (rooms, ahead) = sync_channel(0);
        // Ends when nobody takes rooms any more.
        thread::Builder::new().name("downpour-room".to_owned()).spawn(move || {
            take_long_turns();
            loop {
                let mut room = BytesMut::with_capacity(room_len);
                room.resize(room_len, 0);
                room.clear();
                if rooms.send(room).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { room_len, open: BytesMut::new(), ahead })
    }

    /// What was written and not cut off yet.
    pub fn open(&self) -> &[u8] {
        &self.open
    }

    /// The same, to be corrected.
    pub fn open_mut(&mut self) -> &mut [u8] {
        &mut self.open
    }

    /// Writes.
    ///
    /// # Panics
    /// When the part becomes longer than a room.
    pub fn append(&mut self, bytes: &[u8]) {
        let len = self.open.len() + bytes.len();
        assert!(len <= self.room_len, "a part of {len} bytes is longer than a room");
        if len > self.open.capacity() {
            // One that is not ready yet is made here: nothing may wait for a thread that gives way.
            let new = || BytesMut::with_capacity(self.room_len);
            let mut room = self.ahead.try_recv().unwrap_or_else(|_| new());
            room.extend_from_slice(&self.open);
            self.open = room;
        }
        self.open.extend_from_slice(bytes);
    }

    /// Cuts off what was written.
    pub fn cut(&mut self) -> Part {
        Part(self.open.split().freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::Roll;

    #[test]
    fn parts_follow_one_another_and_stay_whole_beyond_a_room() {
        let mut roll = Roll::new(100).unwrap();
        let mut parts = Vec::new();
        for (number, len) in [30, 60, 20, 100, 0, 1].into_iter().enumerate() {
            for byte in 0..len {
                roll.append(&[(number * 10 + byte) as u8]);
            }
            if let Some(first) = roll.open_mut().first_mut() {
                *first = 7;
            }
            assert_eq!(roll.open().len(), len);
            parts.push((number, roll.cut()));
        }
        assert!(roll.open().is_empty());
        assert_eq!(parts[1].1.as_ptr(), parts[0].1[29..].as_ptr().wrapping_add(1), "one room");
        for (number, part) in parts {
            let right = |(at, byte): (usize, &u8)| {
                *byte == if at == 0 { 7 } else { (number * 10 + at) as u8 }
            };
            assert!(part.iter().enumerate().all(right), "{number}");
        }
    }

    #[test]
    #[should_panic(expected = "longer than a room")]
    fn no_part_is_longer_than_a_room() {
        Roll::new(100).unwrap().append(&[0; 101]);
    }
}
