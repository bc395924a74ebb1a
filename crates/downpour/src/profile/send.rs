//! `send --profile bmtp|afdp|fmtp`.

use super::feed::{Feed, FeedSource, insert};
use super::file::FileSource;
use super::report::{MemberRow, SCHEMA, SenderReport};
use super::{fault, product_log, warn};
use crate::cli::{Exit, Fault, ProfilePayload, ProfileSendPlan, SendKind};
use crate::product::{ProductLog, unix_ns};
use downpour_proto::profile::{
    MemberReport, Mode, Offer, SenderConfig, SenderProfile, afdp, bmtp, fmtp,
};
use downpour_proto::{Rate, Timestamp};
use downpour_transport::control::{SessionId, listener};
use downpour_transport::profile::{
    ProductSource, SendEvent, SendOutcome, SendSetup, StartWhen, prepare,
};
use downpour_transport::{Interface, UnicastSocket};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// Both ways: packets that wait for a narrow link, status packets of many receivers.
const BUFFER_LEN: usize = 4 << 20;

/// So many receivers are told of that lack something; the report has all.
const TOLD_MAX: usize = 20;

/// Sends one file, or a feed.
pub fn send(plan: &ProfileSendPlan) -> Result<Exit, Fault> {
    let (source, feed): (Box<dyn ProductSource>, _) = match &plan.payload {
        ProfilePayload::File { path, .. } => (Box::new(FileSource(open(path)?)), None),
        ProfilePayload::Products { log, .. } => {
            let log = log.as_deref().map(product_log).transpose()?;
            let feed = Arc::new(Feed::new(log));
            (Box::new(FeedSource(Arc::clone(&feed))), Some(feed))
        }
    };
    warn(plan.kind.name());
    if !plan.output.quiet {
        eprintln!("rate: {}", plan.rate_line);
    }
    let machine = SenderConfig { profile: profile(plan), mode: plan.mode, group: plan.group };
    let control = control(plan)?;
    if let (Some(control), false) = (&control, plan.output.is_silent()) {
        let port = control.local_addr().map_or(0, |address| address.port());
        println!("control port: {port}");
    }
    let (start, started) = mpsc::channel();
    let (mut print, held) = (printer(plan), feed.clone());
    let on_event = move |now, event| {
        match (&held, event) {
            (Some(feed), SendEvent::Sent(body)) => feed.sent(&body),
            (Some(feed), SendEvent::Released(product)) => feed.release(product),
            // Nobody waits for it where there is one file.
            (_, SendEvent::Started) => drop(start.send(Instant::now())),
            _ => {}
        }
        print(now, event);
    };
    let setup = SendSetup {
        machine,
        socket: socket(plan, control.as_ref())?,
        control,
        source,
        start: StartWhen { receivers: plan.receivers, after: plan.start_after },
        on_event: Box::new(on_event),
    };
    let unusable = |error: std::io::Error| Fault::start(error.to_string(), "see the message above");
    let (sending, handle) = prepare(setup).map_err(unusable)?;
    let failed = |error| fault(&error, "the receivers keep nothing of it; send it again");
    let (outcome, offered) = match (&plan.payload, &feed) {
        (ProfilePayload::Products { list, .. }, Some(feed)) => {
            let (list, fed) = (list.clone(), Arc::clone(feed));
            let inserting = move || insert(&list, &fed, &handle, &started);
            beside(inserting, || {
                let outcome = sending.run();
                let inserted = feed.end();
                outcome.map(|outcome| (outcome, inserted)).map_err(failed)
            })
        }
        _ => {
            handle.offer(offer_file(plan)?);
            handle.finish();
            sending.run().map(|outcome| (outcome, (1, named(plan).1))).map_err(failed)
        }
    }?;
    let log = feed.as_ref().and_then(|feed| feed.log.as_ref());
    if let Some(failure) = log.and_then(ProductLog::failure) {
        return Err(Fault::incomplete(failure, "look whether the disk is full"));
    }
    finish(plan, &outcome, offered)
}

/// Runs while another thread inserts products. What fails does not wait for that: it may wait for a line, and the process
/// ends without it.
fn beside<T>(
    inserting: impl FnOnce() -> Result<(), Fault> + Send + 'static,
    run: impl FnOnce() -> Result<T, Fault>,
) -> Result<T, Fault> {
    let inserting = std::thread::spawn(inserting);
    let done = run()?;
    inserting.join().expect("it does not panic")?;
    Ok(done)
}

fn open(path: &Path) -> Result<File, Fault> {
    File::open(path).map_err(|error| {
        let what = format!("cannot read {}: {error}", path.display());
        Fault::start(what, "check the path and your rights")
    })
}

fn offer_file(plan: &ProfileSendPlan) -> Result<Offer, Fault> {
    let random = SessionId::random().ok_or_else(|| {
        Fault::start("the kernel gives no random numbers", "see `man 2 getrandom`")
    })?;
    let session = random.as_bytes().iter().fold(0, |id: u32, b| id.rotate_left(8) ^ u32::from(*b));
    let (name, size) = named(plan);
    Ok(Offer {
        // FMTP counts products; the others' number is the session's.
        product: if matches!(plan.kind, SendKind::Fmtp { .. }) { 0 } else { session },
        size,
        offered_unix_ns: unix_ns(),
        metadata: name.into_bytes(),
    })
}

/// The file's name and size; of a feed nothing is known beforehand.
fn named(plan: &ProfileSendPlan) -> (String, u64) {
    match &plan.payload {
        ProfilePayload::File { name, size, .. } => (name.clone(), *size),
        ProfilePayload::Products { .. } => (String::new(), 0),
    }
}

fn profile(plan: &ProfileSendPlan) -> SenderProfile {
    let packets = |rate: Rate| rate.bps() as f64 / 8.0 / 1428.0;
    match plan.kind {
        SendKind::Bmtp { rate_initial } => {
            bmtp::sender(rate_initial, plan.rate.map_or(f64::INFINITY, packets))
        }
        SendKind::Afdp { limits } => afdp::sender(plan.mode, limits),
        SendKind::Fmtp { rate, keep } => fmtp::sender(rate, keep),
    }
}

fn control(plan: &ProfileSendPlan) -> Result<Option<TcpListener>, Fault> {
    if matches!(plan.kind, SendKind::Bmtp { .. }) {
        return Ok(None);
    }
    let mut last = None;
    for address in &plan.listen {
        match listener(*address) {
            Ok(control) => return Ok(Some(control)),
            Err(error) => last = Some((address, error)),
        }
    }
    let what =
        last.map_or_else(String::new, |(address, e)| format!("cannot listen on {address}: {e}"));
    Err(Fault::start(what, "choose another address with --listen, or other --ports"))
}

/// The socket of the data, on the interface of the group.
fn socket(plan: &ProfileSendPlan, control: Option<&TcpListener>) -> Result<UnicastSocket, Fault> {
    let todo = "name another --interface or --group; `ip address` lists what is there";
    let wanted = plan.interface.as_ref().map(ToString::to_string);
    let failed = |why: String| Fault::start(why, todo);
    let towards = plan.group.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |group| group.ip());
    if let (Mode::Unicast, Some(control)) = (plan.mode, control) {
        // The routes decide for each receiver; its address is of the family by which it has connected.
        let listens = control.local_addr().map_err(|e| failed(e.to_string()))?;
        return UnicastSocket::towards(listens, BUFFER_LEN).map_err(|e| failed(e.to_string()));
    }
    // Broadcast leaves by the interface whose address it comes from.
    let likeness = match plan.mode {
        Mode::Broadcast => IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)),
        _ => towards,
    };
    let interface =
        Interface::choose(wanted.as_deref(), likeness).map_err(|e| failed(e.to_string()))?;
    let address = interface.address_for(likeness);
    let address = address.ok_or_else(|| failed("the interface has no address".to_owned()))?;
    let socket = UnicastSocket::bind(interface.socket_addr(address, 0), BUFFER_LEN)
        .map_err(|e| failed(e.to_string()))?;
    socket.speak_to_groups(&interface, plan.ttl).map_err(|e| failed(e.to_string()))?;
    Ok(socket)
}

/// What the paper's program prints, on standard output.
fn printer(plan: &ProfileSendPlan) -> impl FnMut(Timestamp, SendEvent) + Send + use<> {
    let (quiet, size) = (plan.output.is_silent(), named(plan).1);
    let segment = u64::from(bmtp::SEGMENT_LEN);
    let is_bmtp = matches!(plan.kind, SendKind::Bmtp { .. });
    let mut started = Timestamp::ZERO;
    move |now, event| {
        if let SendEvent::Started = event {
            started = now;
        }
        if quiet {
            return;
        }
        match event {
            SendEvent::Started if is_bmtp => {
                println!("this is n, the total number of bytes in the entire file:{size}");
                println!("this is the number of segments in the packet:{}", size / segment);
                println!("this is the remaining bytes of the segment:{}", size % segment);
            }
            SendEvent::Rate(from, line) => println!(
                "rec_rate: {:.6} by {}, new_send_rate: {:.6} time: {}",
                line.reported,
                from.ip(),
                line.rate,
                now.since(started).as_millis(),
            ),
            SendEvent::Connected(from) => println!("joined: {from}"),
            SendEvent::Complete(from, _) => {
                println!("complete: {from} time: {}", now.since(started).as_millis());
            }
            SendEvent::Gone(from) => {
                println!("left: {from} time: {}", now.since(started).as_millis());
            }
            SendEvent::Started | SendEvent::Released(_) | SendEvent::Sent(_) => {}
        }
    }
}

/// `offered`: how many products there were, and their bytes.
fn finish(
    plan: &ProfileSendPlan,
    outcome: &SendOutcome,
    offered: (u64, u64),
) -> Result<Exit, Fault> {
    let report = report(plan, outcome, offered);
    let (came, wanted) = (report.receivers.len(), wanted(plan));
    if came < wanted {
        eprintln!("receivers that have connected: {came}, fewer than {wanted}");
    }
    let lacking = outcome
        .members
        .iter()
        .filter_map(|(address, member)| Some((address, lacks(plan, member, report.products)?)));
    for (address, what) in lacking.take(TOLD_MAX) {
        eprintln!("{address} {what}");
    }
    if !plan.output.is_silent() {
        println!(
            "sent {} segments and {} again in {:.3} s",
            report.segments, report.repair_segments, report.duration_s
        );
    }
    let exit = if report.complete == Some(false) { Exit::Incomplete } else { Exit::Complete };
    plan.output.write_json(&report, exit)
}

/// What a receiver does not have, and why, if that is known.
fn lacks(plan: &ProfileSendPlan, member: &MemberReport, products: u64) -> Option<String> {
    let lacking = products.checked_sub(member.products).filter(|lacking| *lacking > 0)?;
    let what = match &plan.payload {
        ProfilePayload::File { name, .. } => name.clone(),
        ProfilePayload::Products { .. } => format!("{lacking} of {products} products"),
    };
    let kept = if matches!(plan.kind, SendKind::Fmtp { .. }) { " after --keep" } else { "" };
    let why = match (member.given_up, member.gone) {
        (0, false) => String::new(),
        (0, true) => ": its connection was closed".to_owned(),
        (some, _) if some < lacking => format!(": {some} given up{kept}"),
        _ => format!(": given up{kept}"),
    };
    Some(format!("lacks {what}{why}"))
}

fn report(
    plan: &ProfileSendPlan,
    outcome: &SendOutcome,
    (products, bytes): (u64, u64),
) -> SenderReport {
    let SendOutcome { stats, members, group_estimate, started, last_sent, rate } = outcome;
    let has_all = |member: &MemberReport| member.products >= products;
    let row = |(address, member): &(SocketAddr, MemberReport)| MemberRow {
        address: address.to_string(),
        complete_s: member
            .completed
            .filter(|_| has_all(member))
            .map(|at| at.since(*started).as_secs_f64()),
        products: member.products,
        given_up: member.given_up,
        segments_asked: member.asked,
    };
    let all = members.iter().all(|(_, member)| has_all(member));
    SenderReport {
        schema: SCHEMA,
        downpour: env!("CARGO_PKG_VERSION"),
        role: "sender",
        profile: plan.kind.name(),
        complete: match plan.kind {
            SendKind::Bmtp { .. } => None,
            _ => Some(all && members.len() >= wanted(plan)),
        },
        name: named(plan).0,
        bytes,
        products,
        duration_s: last_sent.since(*started).as_secs_f64(),
        segments: stats.segments,
        repair_segments: stats.repairs,
        datagram_bytes: stats.datagram_bytes,
        stream_bytes: stats.stream_bytes,
        requests_served: stats.requests,
        requests_idle: stats.requests_idle,
        status_packets: stats.statuses,
        malformed: stats.malformed,
        group_estimate: (stats.statuses > 0).then_some(*group_estimate),
        rate_at_end_bps: rate.bps(),
        receivers: members.iter().map(row).collect(),
    }
}

/// Receivers without which the session is not complete.
fn wanted(plan: &ProfileSendPlan) -> usize {
    match (plan.kind, plan.receivers) {
        // Without connections nobody says whether it has all.
        (SendKind::Bmtp { .. }, _) => 0,
        // With a time alone, whoever is there by then counts.
        (_, usize::MAX) => 1,
        (_, receivers) => receivers,
    }
}

#[cfg(test)]
mod tests {
    use super::{beside, finish, lacks, report, socket};
    use crate::cli::{Exit, Fault, ProfileSendPlan, SendArgs};
    use clap::Parser;
    use downpour_proto::profile::{MemberReport, SenderStats};
    use downpour_proto::{Rate, Timestamp};
    use downpour_transport::profile::SendOutcome;
    use std::net::{SocketAddr, TcpListener};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SendArgs,
    }

    #[test]
    fn a_failed_session_does_not_wait_for_standard_input() {
        let waits_for_ever = || loop {
            std::thread::park();
        };
        let failed = beside(waits_for_ever, || Err::<(), _>(Fault::incomplete("it fails", "")));
        assert_eq!(failed.unwrap_err().what, "it fails");
        let inserted = beside(|| Err(Fault::incomplete("no product", "")), || Ok(()));
        assert_eq!(inserted.unwrap_err().what, "no product");
    }

    fn resolved(line: &str) -> ProfileSendPlan {
        let line = format!("send -q --profile {line}");
        Line::try_parse_from(line.split(' ')).unwrap().args.resolve_paper().unwrap()
    }

    #[test]
    fn who_connects_by_ipv4_to_a_port_of_both_families_is_sent_to() {
        let Ok(control) = TcpListener::bind("[::]:0") else {
            let name = "who_connects_by_ipv4_to_a_port_of_both_families_is_sent_to";
            return crate::skipped::not_here(name, "no IPv6 here");
        };
        let plan = resolved("afdp --mode unicast --receivers 1 /etc/hosts");
        let socket = socket(&plan, Some(&control)).unwrap();
        let receiver: SocketAddr = "[::ffff:127.0.0.1]:9".parse().unwrap();
        assert!(socket.send(b"packet", receiver).unwrap());
    }

    fn outcome(members: &[MemberReport]) -> SendOutcome {
        let address = "127.0.0.1:1".parse().unwrap();
        SendOutcome {
            stats: SenderStats::default(),
            members: members.iter().map(|member| (address, *member)).collect(),
            group_estimate: 0.0,
            started: Timestamp::ZERO,
            last_sent: Timestamp::ZERO,
            rate: Rate::from_mbps(1),
        }
    }

    #[test]
    fn a_session_that_too_few_have_joined_is_not_complete() {
        let exit = |line: &str, products: &[u64]| {
            let plan = resolved(&format!("{line} /etc/hosts"));
            let member =
                |products: &u64| MemberReport { products: *products, ..Default::default() };
            let members: Vec<_> = products.iter().map(member).collect();
            finish(&plan, &outcome(&members), (1, 9)).unwrap()
        };
        let two = "afdp --mode unicast --receivers 2 --start-after 1s";
        assert_eq!(exit(two, &[1, 1]), Exit::Complete);
        assert_eq!(exit(two, &[1]), Exit::Incomplete);
        assert_eq!(exit(two, &[1, 0]), Exit::Incomplete);
        let some = "afdp --mode unicast --start-after 1s";
        assert_eq!((exit(some, &[1]), exit(some, &[])), (Exit::Complete, Exit::Incomplete));
        assert_eq!(exit("bmtp --group 239.1.2.3:7000", &[]), Exit::Complete);
    }

    #[test]
    fn who_lacks_products_of_a_feed_is_told_and_not_reported_as_complete() {
        let feed = "fmtp --group 239.1.2.3:7000 --rate 1mbit --receivers 1 --products -";
        let plan = resolved(feed);
        let completed = Some(Timestamp::ZERO);
        let all = MemberReport { products: 60, completed, ..Default::default() };
        let some = MemberReport { products: 31, given_up: 29, ..all };
        let told = report(&plan, &outcome(&[all, some]), (60, 600));
        assert_eq!((told.complete, told.products, told.bytes), (Some(false), 60, 600));
        assert_eq!(told.receivers[0].complete_s, Some(0.0));
        assert_eq!((told.receivers[1].complete_s, told.receivers[1].given_up), (None, 29));
        assert_eq!(report(&plan, &outcome(&[all]), (60, 600)).complete, Some(true));
        let why = |member: &MemberReport| lacks(&plan, member, 60);
        assert_eq!(why(&all), None);
        assert_eq!(why(&some).unwrap(), "lacks 29 of 60 products: given up after --keep");
        let gone = MemberReport { products: 31, gone: true, ..all };
        assert_eq!(why(&gone).unwrap(), "lacks 29 of 60 products: its connection was closed");
    }
}
