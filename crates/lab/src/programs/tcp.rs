//! Plain TCP to each receiver, one after another or all at once: what a unicast copy costs at best.
//!
//! Sender and receiver are `lab tcp …`: a file in, a file out, nothing between.

use super::{Program, text};
use crate::sink;
use crate::stage::{Proof, Stage};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
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
        package: None,
        shares_uplinks: false,
        run: |stage| run(stage, "cubic", &[]),
    },
    Program {
        name: "tcp-parallel-discard",
        about: "the same; receivers compare what comes with the payload and keep nothing",
        tools: &["lab"],
        package: None,
        shares_uplinks: false,
        run: |stage| {
            stage.proof = Proof::Vouched;
            run(stage, "cubic", &[])
        },
    },
    Program {
        name: "tcp-sequential",
        about: "one receiver after another, CUBIC",
        tools: &["lab"],
        package: None,
        shares_uplinks: false,
        run: |stage| run(stage, "cubic", &["--sequential"]),
    },
    Program {
        name: "tcp-parallel-bbr",
        about: "one connection to each receiver, BBR",
        tools: &["lab"],
        package: None,
        shares_uplinks: false,
        run: |stage| run(stage, "bbr", &[]),
    },
];

fn run(stage: &mut Stage<'_>, congestion: &str, order: &[&str]) -> io::Result<()> {
    let payload = text(stage.payload.to_owned());
    for i in 0..stage.cell.receivers {
        let copy = text(stage.copy(i));
        let to: &[&str] = match stage.proof {
            Proof::Compared => &[&copy],
            Proof::Vouched | Proof::Unproved => &["--compare", &payload],
        };
        stage.receiver(i, "lab", &[&["tcp", "receive"][..], to].concat())?;
    }
    stage.settle();
    let fixed = ["tcp", "send", "--congestion", congestion, "--file", &payload];
    let hosts = stage.network.receivers.iter().map(|host| host.ipv4.as_str());
    let hosts: Vec<&str> = hosts.collect();
    stage.sender("lab", &[&fixed[..], order, &hosts].concat())?;
    stage.wait_receivers()?;
    stage.wait_senders()
}

/// Sends the file to each host.
pub(crate) fn send(
    file: &Path,
    hosts: &[Ipv4Addr],
    congestion: &str,
    sequential: bool,
) -> io::Result<()> {
    let to = |host: &Ipv4Addr| -> io::Result<()> {
        let mut file = File::open(file)?;
        let mut stream = connected(SocketAddrV4::new(*host, PORT), congestion)?;
        // In the kernel: sendfile.
        io::copy(&mut file, &mut stream)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        // The receiver closes when it has all.
        stream.read_to_end(&mut Vec::new()).map(drop)
    };
    if sequential {
        return hosts.iter().try_for_each(to);
    }
    thread::scope(|scope| {
        let all: Vec<_> = hosts.iter().map(|host| scope.spawn(move || to(host))).collect();
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

/// Takes one file, or compares what comes with it.
pub(crate) fn receive(file: &Path, compare: bool) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT))?;
    let (mut stream, _) = listener.accept()?;
    if compare {
        return sink::compare(stream, file);
    }
    let mut file = File::create(file)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        file.write_all(&buffer[..len])?;
    }
}

#[cfg(test)]
mod tests {
    use super::connected;
    use rustix::net::sockopt::tcp_congestion;
    use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};

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
}
