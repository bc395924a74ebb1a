//! The yardstick: the same files to one machine after the other, each over a plain TCP connection.
//!
//! As little as it can be, so that nobody can say it was made slow: one connection, no encryption, no
//! digests, files one after another, held to a rate by the sender's clock. The receiving end places the
//! files and answers with one byte when the last is written.
//!
//! ```text
//! entry: kind u8 (1 folder, 2 file, 3 link, 0 end)  name length u32  name  length u64  contents
//! ```

use super::tree;
use downpour_proto::Rate;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const PIECE_BYTES: usize = 64 * 1024;
const END: u8 = 0;
const FOLDER: u8 = 1;
const FILE: u8 = 2;
const LINK: u8 = 3;

/// Sends `paths` to one machine, which places them below `target`. Returns the bytes sent; an error when
/// `go_on` says no, which is asked often and told the bytes so far.
pub fn send_once(
    paths: &[PathBuf],
    target: &Path,
    rate: Rate,
    mut go_on: impl FnMut(u64) -> bool,
) -> io::Result<u64> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let (stream, accepted) = connect(&listener)?;
    let target = target.to_owned();
    let receiver = thread::spawn(move || receive(&accepted, &target));
    let mut paced = Paced { stream, rate, start: Instant::now(), sent: 0, go_on: &mut go_on };
    let sent = send(paths, &mut paced);
    let total = paced.sent;
    drop(paced);
    let received = receiver.join().map_err(|_| io::Error::other("the receiving end panicked"))?;
    sent.and(received).map(|()| total)
}

/// Both ends of one connection. Anybody on this machine may connect to the listener: whose it is not is dropped.
fn connect(listener: &TcpListener) -> io::Result<(TcpStream, TcpStream)> {
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let own = stream.local_addr()?;
    loop {
        let (accepted, peer) = listener.accept()?;
        if peer == own {
            return Ok((stream, accepted));
        }
    }
}

fn send(paths: &[PathBuf], stream: &mut Paced<'_>) -> io::Result<()> {
    for path in paths {
        let above = path.parent().unwrap_or(path);
        tree::walk(path, &mut |path, meta| {
            let name = path.strip_prefix(above).unwrap_or(path).as_os_str().as_bytes();
            if meta.is_dir() {
                entry(stream, FOLDER, name, 0)
            } else if meta.is_symlink() {
                let leads = fs::read_link(path)?;
                entry(stream, LINK, name, leads.as_os_str().len() as u64)?;
                stream.write_all(leads.as_os_str().as_bytes())
            } else if meta.is_file() {
                entry(stream, FILE, name, meta.len())?;
                let copied = io::copy(&mut File::open(path)?.take(meta.len()), stream)?;
                let whole = copied == meta.len();
                whole.then_some(()).ok_or_else(|| io::Error::other("a file became shorter"))
            } else {
                Ok(())
            }
        })?;
    }
    entry(stream, END, b"", 0)?;
    stream.stream.shutdown(std::net::Shutdown::Write)?;
    // One byte: all is placed.
    stream.stream.read_exact(&mut [0])
}

fn entry(stream: &mut impl Write, kind: u8, name: &[u8], len: u64) -> io::Result<()> {
    let name_len = u32::try_from(name.len()).map_err(io::Error::other)?;
    let mut head = Vec::with_capacity(13 + name.len());
    head.push(kind);
    head.extend_from_slice(&name_len.to_be_bytes());
    head.extend_from_slice(name);
    head.extend_from_slice(&len.to_be_bytes());
    stream.write_all(&head)
}

fn receive(stream: &TcpStream, target: &Path) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(PIECE_BYTES, stream);
    loop {
        let kind = read_array::<1>(&mut reader)?[0];
        let mut name = vec![0; u32::from_be_bytes(read_array(&mut reader)?) as usize];
        reader.read_exact(&mut name)?;
        let len = u64::from_be_bytes(read_array(&mut reader)?);
        let path = target.join(std::ffi::OsString::from_vec(name));
        match kind {
            END => break,
            FOLDER => fs::create_dir_all(&path)?,
            FILE => {
                let mut file = BufWriter::with_capacity(PIECE_BYTES, File::create(&path)?);
                io::copy(&mut (&mut reader).take(len), &mut file)?;
                file.flush()?;
            }
            _ => {
                let mut leads = vec![0; len as usize];
                reader.read_exact(&mut leads)?;
                std::os::unix::fs::symlink(std::ffi::OsString::from_vec(leads), &path)?;
            }
        }
    }
    (&*stream).write_all(&[1])
}

fn read_array<const N: usize>(reader: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A stream that is never ahead of its rate.
struct Paced<'a> {
    stream: TcpStream,
    rate: Rate,
    start: Instant,
    sent: u64,
    go_on: &'a mut dyn FnMut(u64) -> bool,
}

impl Write for Paced<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !(self.go_on)(self.sent) {
            return Err(io::Error::other("stopped"));
        }
        let early = early(self.rate, self.sent, self.start.elapsed());
        // Shorter sleeps cost more than they are worth; the sum is what counts.
        if early > Duration::from_millis(1) {
            thread::sleep(early);
        }
        let written = self.stream.write(&bytes[..bytes.len().min(PIECE_BYTES)])?;
        self.sent += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// How much too soon it would be to go on, `elapsed` after the start.
fn early(rate: Rate, sent: u64, elapsed: Duration) -> Duration {
    rate.time_for(sent).saturating_sub(elapsed)
}

#[cfg(test)]
mod tests {
    use super::{connect, early, send_once};
    use downpour_proto::Rate;
    use std::fs;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    #[test]
    fn what_is_sent_is_never_ahead_of_its_rate() {
        let (rate, ms) = (Rate::from_mbps(16), Duration::from_millis);
        assert_eq!(early(rate, 600_000, ms(100)), ms(200));
        assert_eq!(early(rate, 600_000, ms(400)), ms(0));
    }

    #[test]
    fn who_connects_first_is_not_taken_for_the_sender() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, accepted) = connect(&listener).unwrap();
        assert_eq!(accepted.peer_addr().unwrap(), stream.local_addr().unwrap());
    }

    #[test]
    fn what_is_sent_arrives() {
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("tree"), folder.path().join("out"));
        fs::create_dir_all(source.join("sub")).unwrap();
        fs::create_dir(&target).unwrap();
        let big: Vec<u8> = (0..600_000u32).map(|i| i as u8).collect();
        fs::write(source.join("sub/big"), &big).unwrap();
        fs::write(source.join("empty"), b"").unwrap();
        symlink("sub/big", source.join("link")).unwrap();
        let sent = send_once(std::slice::from_ref(&source), &target, Rate::MAX, |_| true).unwrap();
        assert!(sent > 600_000);
        assert_eq!(fs::read(target.join("tree/sub/big")).unwrap(), big);
        assert_eq!(fs::read(target.join("tree/empty")).unwrap(), b"");
        assert!(target.join("tree/link").is_symlink());
        assert!(send_once(&[source], &target, Rate::MAX, |_| false).is_err(), "can be stopped");
    }
}
