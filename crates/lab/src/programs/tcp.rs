//! Plain TCP to each receiver, one after another or all at once: what a unicast copy costs at best.
//!
//! Sender and receiver are `lab tcp …`: a file in, a file out, nothing between but eight bytes that tell where in the file a
//! connection begins.

use super::{Program, text};
use crate::sink;
use crate::stage::{LISTENING, Proof, Stage};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;

const PORT: u16 = 7778;
const BUFFER_BYTES: usize = 1 << 20;

const ABOUT_CUBIC: &str = "one connection to each receiver, CUBIC";

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "tcp-parallel",
        about: ABOUT_CUBIC,
        tools: &["lab"],
        run: |stage| run(stage, "cubic", 1, &[]),
        ..Program::PLAIN
    },
    Program {
        name: "tcp-parallel-discard",
        about: "the same; receivers compare what comes with the payload and keep nothing",
        tools: &["lab"],
        run: |stage| {
            stage.proof = Proof::Vouched;
            run(stage, "cubic", 1, &[])
        },
        ..Program::PLAIN
    },
    Program {
        name: "tcp-sequential",
        about: "one receiver after another, CUBIC",
        tools: &["lab"],
        run: |stage| run(stage, "cubic", 1, &["--sequential"]),
        ..Program::PLAIN
    },
    Program {
        name: "tcp-parallel-bbr",
        about: "one connection to each receiver, BBR",
        tools: &["lab"],
        run: |stage| run(stage, "bbr", 1, &[]),
        ..Program::PLAIN
    },
    Program {
        name: "tcp-parallel-8",
        about: "eight connections to each receiver, CUBIC, each with an eighth of the file",
        tools: &["lab"],
        run: |stage| run(stage, "cubic", 8, &[]),
        ..Program::PLAIN
    },
];

fn run(
    stage: &mut Stage<'_>,
    congestion: &str,
    connections: u32,
    order: &[&str],
) -> io::Result<()> {
    stage.net_admin = true;
    let payload = text(stage.payload.to_owned());
    let connections = connections.to_string();
    for i in 0..stage.cell.receivers {
        let copy = text(stage.copy(i));
        let to: &[&str] = match stage.proof {
            Proof::Compared => &[&copy],
            Proof::Vouched | Proof::Unproved => &["--compare", &payload],
        };
        let fixed = ["tcp", "receive", "--connections", &connections];
        stage.receiver(i, "lab", &[&fixed[..], to].concat())?;
    }
    stage.wait_listening(0..stage.cell.receivers)?;
    let told = ["--congestion", congestion, "--connections", &connections, "--file", &payload];
    let fixed = [&["tcp", "send"][..], &told].concat();
    let hosts = stage.network.receivers.iter().map(|host| host.ipv4.as_str());
    let hosts: Vec<&str> = hosts.collect();
    stage.sender("lab", &[&fixed[..], order, &hosts].concat())?;
    stage.wait_receivers()?;
    stage.wait_senders()
}

/// Sends the file to each host, over so many connections.
pub(crate) fn send(
    file: &Path,
    hosts: &[Ipv4Addr],
    congestion: &str,
    connections: NonZeroU32,
    sequential: bool,
) -> io::Result<()> {
    let hosts: Vec<_> = hosts.iter().map(|host| SocketAddrV4::new(*host, PORT)).collect();
    deliver(file, &hosts, congestion, connections, sequential)
}

fn deliver(
    file: &Path,
    hosts: &[SocketAddrV4],
    congestion: &str,
    connections: NonZeroU32,
    sequential: bool,
) -> io::Result<()> {
    let step = File::open(file)?.metadata()?.len().div_ceil(connections.get().into());
    let part = |host: SocketAddrV4, number: u32| -> io::Result<()> {
        let begin = step * u64::from(number);
        let mut file = File::open(file)?;
        file.seek(SeekFrom::Start(begin))?;
        let mut stream = connected(host, congestion)?;
        stream.write_all(&begin.to_be_bytes())?;
        // In the kernel: sendfile.
        io::copy(&mut file.take(step), &mut stream)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        // The receiver closes when it has all.
        stream.read_to_end(&mut Vec::new()).map(drop)
    };
    let to = |hosts: &[SocketAddrV4]| {
        let parts = hosts.iter().flat_map(|host| (0..connections.get()).map(|n| (*host, n)));
        let part = &part;
        at_once(parts.map(|(host, number)| move || part(host, number)))
    };
    if sequential {
        return hosts.chunks(1).try_for_each(to);
    }
    to(hosts)
}

/// Each on a thread of its own.
fn at_once<F: FnOnce() -> io::Result<()> + Send>(all: impl Iterator<Item = F>) -> io::Result<()> {
    thread::scope(|scope| {
        let all: Vec<_> = all.map(|one| scope.spawn(one)).collect();
        all.into_iter().try_for_each(|one| one.join().expect("no thread panics"))
    })
}

/// A connection that never had another congestion control: one that BBR begins, where that is the kernel's default, is
/// paced by a timer for each frame ever after.
fn connected(to: SocketAddrV4, congestion: &str) -> io::Result<TcpStream> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_tcp_congestion(&socket, congestion)?;
    connect(&socket, &to)?;
    Ok(socket.into())
}

/// Takes one file over so many connections, or compares what comes over one with it.
pub(crate) fn receive(file: &Path, connections: NonZeroU32, compare: bool) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT))?;
    println!("{LISTENING}");
    take(&listener, file, connections, compare)
}

fn take(
    listener: &TcpListener,
    file: &Path,
    connections: NonZeroU32,
    compare: bool,
) -> io::Result<()> {
    let accepted = (0..connections.get()).map(|_| -> io::Result<_> {
        let (mut stream, _) = listener.accept()?;
        let mut begin = [0; 8];
        stream.read_exact(&mut begin)?;
        Ok((stream, u64::from_be_bytes(begin)))
    });
    if compare {
        return accepted.into_iter().try_for_each(|came| sink::compare(came?.0, file));
    }
    let file = File::create(file)?;
    let accepted: Vec<_> = accepted.collect::<io::Result<_>>()?;
    let file = &file;
    at_once(accepted.into_iter().map(|(stream, begin)| move || keep(stream, file, begin)))
}

/// Writes what comes into the file, from there on.
fn keep(mut stream: TcpStream, file: &File, mut at: u64) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        file.write_all_at(&buffer[..len], at)?;
        at += len as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::{connected, deliver, take};
    use rustix::net::sockopt::tcp_congestion;
    use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
    use std::num::NonZeroU32;
    use std::{fs, thread};

    #[test]
    fn a_connection_begins_with_the_congestion_control_that_it_is_to_have() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port());
        // Every kernel has this one.
        let stream = connected(to, "reno").unwrap();
        assert_eq!(tcp_congestion(&stream).unwrap(), "reno");
        assert_eq!(stream.local_addr().unwrap(), listener.accept().unwrap().1);
        // It is not connected before it is set.
        assert!(connected(to, "no such thing").is_err());
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err());
    }

    #[test]
    fn a_file_comes_over_any_number_of_connections() {
        for (len, connections) in [(0, 1), (5, 8), (100_003, 1), (3 << 20, 8)] {
            let folder = tempfile::tempdir().unwrap();
            let (from, to) = (folder.path().join("from"), folder.path().join("to"));
            let bytes: Vec<u8> = (0..len).map(|n: u32| (n % 251) as u8).collect();
            fs::write(&from, &bytes).unwrap();
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let (host, port) = (Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port());
            let connections = NonZeroU32::new(connections).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| take(&listener, &to, connections, false).unwrap());
                deliver(&from, &[SocketAddrV4::new(host, port)], "reno", connections, false)
                    .unwrap();
            });
            assert_eq!(fs::read(&to).unwrap(), bytes, "{len} over {connections}");
        }
    }
}
