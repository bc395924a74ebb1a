//! `receive --profile bmtp|afdp|fmtp`.

use super::feed::FeedSink;
use super::file::{FileSink, Place};
use super::report::{ReceiverReport, SCHEMA};
use super::{product_log, warn};
use crate::cli::{Exit, Fault, ProfileReceivePlan, ReceiveKind};
use crate::object::SingleTarget;
use downpour_proto::Timestamp;
use downpour_proto::profile::{PRODUCTS_MAX, ReceiverConfig, ReceiverProfile, afdp, bmtp, fmtp};
use downpour_transport::control::SessionId;
use downpour_transport::profile::{
    Hearing, ProductSink, ProfileError, ReceiveEvent, ReceiveOutcome, ReceiveSetup,
};
use downpour_transport::{Group, Interface};
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

/// A sender that has begun and is silent for this long has died.
const SILENCE: Duration = Duration::from_secs(60);
/// A feed may be silent; that its sender has died is told by the connection.
const FEED_SILENCE: Duration = Duration::from_secs(24 * 3600);
/// Between two tries to reach the sender.
const RETRY: Duration = Duration::from_millis(100);
/// What the profiles' headers can say.
const SIZE_MAX: u64 = u32::MAX as u64;

/// Receives one file, or a feed.
pub fn receive(plan: &ProfileReceivePlan) -> Result<Exit, Fault> {
    warn(plan.kind.name());
    let feed = plan.product_log.as_deref();
    let sink: Box<dyn ProductSink> = match feed {
        Some(log) => Box::new(FeedSink::new(product_log(log)?)),
        None => Box::new(file_sink(plan)?),
    };
    let hearing = hearing(plan)?;
    let control = plan.sender.as_ref().map(|_| connect(plan)).transpose()?;
    let seed = SessionId::random().map_or(0, |id| {
        id.as_bytes().iter().fold(0, |seed: u64, b| seed.rotate_left(8) ^ u64::from(*b))
    });
    let setup = ReceiveSetup {
        machine: ReceiverConfig {
            profile: profile(plan.kind),
            size_max: SIZE_MAX,
            products_max: if feed.is_some() { PRODUCTS_MAX } else { 1 },
            seed,
        },
        hearing,
        control,
        sink,
        inject_loss: plan.inject_loss,
        patience: if feed.is_some() { [FEED_SILENCE; 2] } else { [plan.join_timeout, SILENCE] },
        on_event: Box::new(printer(plan)),
    };
    let (outcome, ended) = downpour_transport::profile::receive(setup);
    let reported = finish(plan, &outcome, ended.is_ok());
    ended.map_err(|error| unheard(&error))?;
    reported
}

fn unheard(error: &ProfileError) -> Fault {
    match error {
        ProfileError::Network(error) => Fault::start(
            format!("the network cannot be used: {error}"),
            "name another --interface or --group; `ip address` lists what is there",
        ),
        ProfileError::Data(error) => {
            Fault::incomplete(error.to_string(), start_again(error.kind()))
        }
        error => super::fault(error, &start_again(std::io::ErrorKind::Other)),
    }
}

/// What is wrong in the folder stays so when all starts again.
fn start_again(kind: std::io::ErrorKind) -> String {
    let before = match kind {
        std::io::ErrorKind::AlreadyExists => "give --overwrite, or another name with --as; then ",
        std::io::ErrorKind::StorageFull => "make room, or choose another --out; then ",
        _ => "",
    };
    format!("{before}start the sender again, then this receiver")
}

fn file_sink(plan: &ProfileReceivePlan) -> Result<FileSink, Fault> {
    let place = match &plan.out {
        None => Place::Nothing,
        Some(out) => {
            let target = SingleTarget::open(out, plan.overwrite);
            let todo = "check the path and your rights, or choose another --out";
            Place::Waiting(target.map_err(|error| Fault::start(error.to_string(), todo))?)
        }
    };
    let times = plan.times.as_deref().map(File::create).transpose();
    let times = times.map_err(|error| {
        let what = format!("cannot write the times: {error}");
        Fault::start(what, "give --times a file in a folder that is there")
    })?;
    Ok(FileSink { place, name: plan.name.clone(), times })
}

fn profile(kind: ReceiveKind) -> ReceiverProfile {
    match kind {
        ReceiveKind::Bmtp { rule } => bmtp::receiver(rule),
        ReceiveKind::Afdp => afdp::receiver(),
        ReceiveKind::Fmtp { link } => fmtp::receiver(link),
    }
}

fn hearing(plan: &ProfileReceivePlan) -> Result<Hearing, Fault> {
    let wanted = plan.interface.as_ref().map(ToString::to_string);
    let Some(group) = plan.group else { return Ok(Hearing::Told(wanted)) };
    let todo = "name another --interface or --group; `ip address` lists what is there";
    let interface = Interface::choose(wanted.as_deref(), group.ip());
    let interface = interface.map_err(|error| Fault::start(error.to_string(), todo))?;
    let group = Group::new(group, None).map_err(|error| Fault::usage(error.to_string(), todo))?;
    Hearing::group(&group, &interface).map_err(|error| unheard(&error))
}

/// Tries until the sender is there.
fn connect(plan: &ProfileReceivePlan) -> Result<TcpStream, Fault> {
    let sender = plan.sender.as_ref().map(ToString::to_string).unwrap_or_default();
    let until = Instant::now() + plan.join_timeout;
    loop {
        let addresses = sender.to_socket_addrs().map(Iterator::collect::<Vec<SocketAddr>>);
        let tried = addresses.and_then(|addresses| reach(&addresses, until));
        match tried {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() >= until => {
                let what = format!("cannot reach {sender}: {error}");
                return Err(Fault::start(what, "start the sender, or check --sender"));
            }
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// Tries one address after the other. Where packets to one vanish the kernel would try for two minutes: each has its share of the time.
fn reach(addresses: &[SocketAddr], until: Instant) -> io::Result<TcpStream> {
    let mut why = io::Error::other("it has no address");
    for (address, others) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let left = until.saturating_duration_since(Instant::now()) / others;
        match TcpStream::connect_timeout(address, left.max(RETRY)) {
            Ok(stream) => return Ok(stream),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// What the paper's program prints, on standard output.
fn printer(plan: &ProfileReceivePlan) -> impl FnMut(Timestamp, ReceiveEvent<'_>) + Send + use<> {
    let quiet = plan.output.is_silent();
    move |now, event| {
        if quiet {
            return;
        }
        match event {
            ReceiveEvent::Interval(interval) => println!(
                "clients: {}, rate: {:.6}, missing: {}, ratio: {:.6}, naks: {}",
                interval.clients, interval.rate, interval.missing, interval.ratio, interval.naks
            ),
            ReceiveEvent::Opened(_, size, name) => {
                println!("expecting {size} bytes: {}", name.escape_ascii());
            }
            ReceiveEvent::Complete(..) => {
                println!("complete time: {}", now.since(Timestamp::ZERO).as_millis());
            }
        }
    }
}

/// `to_the_end`: nothing kept it from going on.
fn finish(
    plan: &ProfileReceivePlan,
    outcome: &ReceiveOutcome,
    to_the_end: bool,
) -> Result<Exit, Fault> {
    let ReceiveOutcome { stats, dropped, foreign, first, last } = *outcome;
    let is_complete = to_the_end && stats.rejected == 0;
    let exit = if is_complete { Exit::Complete } else { Exit::Incomplete };
    let report = ReceiverReport {
        schema: SCHEMA,
        downpour: env!("CARGO_PKG_VERSION"),
        role: "receiver",
        profile: plan.kind.name(),
        complete: is_complete,
        duration_s: last.since(first).as_secs_f64(),
        packets: stats.packets,
        repairs: stats.repairs,
        duplicates: stats.duplicates,
        segments_asked: stats.asked,
        messages: stats.messages,
        message_bytes: stats.message_bytes,
        socket_drops: dropped,
        malformed: stats.malformed,
        foreign,
        refused: stats.refused,
        rejected: stats.rejected,
    };
    plan.output.write_json(&report, exit)
}

#[cfg(test)]
mod tests {
    use super::{FileSink, Place, reach, unheard};
    use crate::object::SingleTarget;
    use downpour_transport::profile::{ProductSink as _, ProfileError};
    use std::io::ErrorKind;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    #[test]
    fn a_sender_that_does_not_answer_is_tried_only_while_there_is_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        // Nobody listens there.
        let none = "127.0.0.1:1".parse().unwrap();
        let until = Instant::now() + Duration::from_secs(600);
        let first = reach(&[none, here], until).unwrap();
        assert_eq!(first.peer_addr().unwrap(), here);
        assert_eq!(reach(&[none], until).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        // The first connection waits to be accepted: another one has no answer.
        rustix::net::listen(&listener, 0).unwrap();
        let late = reach(&[here], Instant::now()).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        assert_eq!(late.raw_os_error(), None, "by our limit, not by the kernel's");
    }

    #[test]
    fn a_name_that_is_taken_is_told_in_words_with_what_helps() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f3"), "old").unwrap();
        let fault = |name: &[u8], size| {
            let target = SingleTarget::open(dir.path(), false).unwrap();
            let mut sink = FileSink { place: Place::Waiting(target), name: None, times: None };
            unheard(&ProfileError::Data(sink.open(0, size, name, 0).unwrap_err()))
        };
        let taken = fault(b"f3", 3);
        assert_eq!(taken.what, "f3: there is one of that name");
        assert!(taken.todo.contains("--overwrite") && taken.todo.contains("--as"));
        assert!(fault(b"f4", u64::MAX).todo.contains("make room"));
        let no_name = fault(b"../f3", 3);
        assert!(no_name.what.contains("--as") && !no_name.todo.contains("--overwrite"));
    }
}
