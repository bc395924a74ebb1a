//! A TAP device: a network interface whose frames a program reads and writes.
//!
//! It takes no offloads, so the kernel cuts and completes every packet before it hands it out: what the
//! emulator sees is what a wire would.

use rustix::fs::{Mode, OFlags};
use rustix::ioctl;
use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

const IFF_TAP: u16 = 0x0002;
/// Frames without a header of the driver's own.
const IFF_NO_PI: u16 = 0x1000;
/// Longest name of an interface, with its closing zero.
const NAME_BYTES: usize = 16;

/// The kernel's `struct ifreq`, as far as TUNSETIFF reads it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    rest: [u8; 22],
}

/// The device. It goes when this is closed.
#[derive(Debug)]
pub(crate) struct Tap {
    file: File,
}

impl Tap {
    /// Makes it, in this process's network namespace. It may then be moved to another.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
        let mut bytes = [0; NAME_BYTES];
        if name.len() >= NAME_BYTES {
            return Err(io::Error::other("the name is too long for an interface"));
        }
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        let mut request =
            InterfaceRequest { name: bytes, flags: IFF_TAP | IFF_NO_PI, rest: [0; 22] };
        const TUNSETIFF: ioctl::Opcode = ioctl::opcode::write::<c_int>(b'T', 202);
        // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which is 40 bytes and laid out as above.
        unsafe {
            let call = ioctl::Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request);
            ioctl::ioctl(&file, call)?;
        }
        Ok(Self { file: File::from(file) })
    }

    /// The next frame that the kernel sent out here; `None` when there is none.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.file).read(buffer) {
            Ok(len) => Ok(Some(len)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Gives the kernel a frame that came in here.
    pub(crate) fn write(&self, frame: &[u8]) -> io::Result<()> {
        (&self.file).write(frame).map(drop)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);
