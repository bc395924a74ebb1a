//! One TCP connection of a profile: whole messages in, bytes out, nothing blocks.

use downpour_proto::profile::{STREAM_MESSAGE_MAX, Wire};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

/// A connection with more than this to send takes no more.
const OUTBOX_FULL: usize = 128 << 10;
/// Bytes read at once.
const READ_LEN: usize = 64 << 10;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: TcpStream,
    peer: SocketAddr,
    inbox: Vec<u8>,
    /// Where the next message in `inbox` starts.
    taken: usize,
    /// What the kernel has not taken.
    outbox: Vec<u8>,
    closed: bool,
}

impl Connection {
    pub(super) fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let peer = socket.peer_addr()?;
        let (inbox, outbox, taken) = (Vec::new(), Vec::new(), 0);
        Ok(Self { socket, peer, inbox, taken, outbox, closed: false })
    }

    pub(super) const fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether bytes wait that the kernel has not taken.
    pub(super) fn is_waiting(&self) -> bool {
        !self.outbox.is_empty() && !self.closed
    }

    /// Whether more may be put in.
    pub(super) fn is_ready(&self) -> bool {
        self.outbox.len() < OUTBOX_FULL
    }

    /// Reads what is there; an ended connection is closed.
    pub(super) fn read(&mut self) {
        let mut buffer = [0; READ_LEN];
        // More than a message is not needed to go on.
        while !self.closed && self.inbox.len() - self.taken < 4 * STREAM_MESSAGE_MAX {
            match self.socket.read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(len) => self.inbox.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.closed = true,
            }
        }
    }

    /// The next whole message. A connection that sends something else is closed.
    pub(super) fn next(&mut self, wire: &dyn Wire) -> Option<&[u8]> {
        let rest = &self.inbox[self.taken..];
        match wire.stream_len(rest) {
            Ok(Some(len)) if len <= rest.len() => {
                let start = self.taken;
                self.taken += len;
                Some(&self.inbox[start..start + len])
            }
            Ok(_) => {
                self.inbox.drain(..self.taken);
                self.taken = 0;
                None
            }
            Err(_) => {
                self.closed = true;
                None
            }
        }
    }

    /// Room for bytes to be sent.
    pub(super) const fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.outbox
    }

    /// Sends what the kernel takes.
    pub(super) fn write(&mut self) {
        while self.is_waiting() {
            match self.socket.write(&self.outbox) {
                Ok(len) => drop(self.outbox.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.closed = true,
            }
        }
    }

    /// Says that nothing more comes.
    pub(super) fn finish(&self) {
        // Fails only when the connection is gone.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::{Connection, OUTBOX_FULL};
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_the_kernel_took_is_not_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut connection = Connection::new(listener.accept().unwrap().0).unwrap();
        let (mut put, mut taken, mut part) = (0, 0, [7; 4096]);
        while taken < 16 << 20 {
            while connection.is_ready() {
                connection.outbox().extend_from_slice(&part);
                put += part.len();
                connection.write();
            }
            assert!(connection.outbox().len() < OUTBOX_FULL + part.len());
            peer.read_exact(&mut part).unwrap();
            taken += part.len();
            connection.write();
        }
        assert!(taken < put);
    }
}
