//! A session as its sender runs it.
//!
//! 1. Everything is opened (`open`) and the ticket printed; receivers join while the first section is hashed.
//! 2. When the start rule is met the stream starts; `emit` feeds it.
//! 3. It is over when everything was offered and nobody is left to wait for, or the user interrupts.
//! 4. Receivers are told, everything is closed, and the report says how each one ended.

use super::account::{Heading, Ledger, report};
use super::auto::Auto;
use super::endpoint::Shared;
use super::faults;
use super::feeding::Feed;
use super::host::{Host, beside_main};
use super::network::elsewhere;
use super::open::{Giver, Open, open};
use super::roster::{Member, Roster, Stage};
use super::standing::{Heard, Opened};
use crate::cli::{Fault, SendPlan, StartRule};
use crate::object::{EntryId, Skipped, Withdrawn, printable};
use crate::progress::{Phase, Snapshot};
use crate::report::{Named, Report, TransferReport};
use downpour_proto::sender::Delivery;
use downpour_proto::{Rate, ReceiverId};
use downpour_transport::Interface;
use downpour_transport::control::{Event, JoinReply};
use downpour_transport::session::SendSnapshot;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How often the session is looked at when nothing happens; each look wakes three threads.
const TICK: Duration = Duration::from_millis(250);
/// The same of a session of products, whose pulling receivers are told what there is (the driver's snapshot is no newer).
const PRODUCTS_TICK: Duration = Duration::from_millis(100);
/// The same while somebody waits for a probe (`docs/protocol.md#CTL-2`).
const PROBE_TICK: Duration = Duration::from_millis(25);

/// What a receiver that is still being answered gets to finish with, at the end; and the last word on its way, where the machine
/// is busy. When all connections have ended nobody waits for the rest of it.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// What the thread that offers gets to end with, and the driver; what they read may hold them up for ever.
const OFFERING_TIME: Duration = Duration::from_secs(1);
/// How often that is looked at.
const OFFERING_LOOK: Duration = Duration::from_millis(5);

/// What the last look at files without data gets: they may have got some since receivers were given them.
const LAST_LOOK_TIME: Duration = Duration::from_secs(10);

/// Runs a session and reports it.
pub fn send(plan: SendPlan) -> Result<Report, Fault> {
    beside_main(|| async {
        let giver = Giver::at_home()?;
        let mut host = Host::terminal(plan.output.quiet)?;
        run(&plan, &giver, &mut host).await.map(|done| done.report)
    })
}

/// What came of a session.
pub(super) struct Done {
    pub(super) report: Report,
    /// What each item of a list became.
    pub(super) items: Vec<Result<EntryId, Skipped>>,
    pub(super) withdrawn: Vec<Withdrawn>,
    /// Those who joined.
    pub(super) members: Vec<Member>,
}

/// Runs a session to its end.
pub(super) async fn run(plan: &SendPlan, giver: &Giver, host: &mut Host) -> Result<Done, Fault> {
    let opened = open(plan, giver).await?;
    host.heed(); // Before that nobody need be told.
    announce(plan, &opened, host);
    if let Some(owner) = &giver.owner {
        let JoinReply { session, stream, .. } = opened.shared.reply;
        owner.opened(Opened { session, stream });
    }
    let shared = Arc::clone(&opened.shared);
    let now = Instant::now();
    let mut ledger = Ledger {
        opened: now,
        started: None,
        geometry: shared.reply.geometry,
        source: Arc::clone(&shared.source),
        data_len: shared.source.objects().1,
        last: (now, 0),
        rate: Rate::from_bps(0),
    };
    let enter = enter_pressed(plan.start.enter);
    let (mut told, mut auto) = (BTreeSet::new(), Auto::default());
    let ended = loop {
        let snapshot = shared.driver.snapshot();
        let probing = observe(&opened, &mut ledger, &snapshot);
        if let Some(started) = ledger.started {
            auto.look(&shared, started, &snapshot, opened.budget.granted());
        }
        let news = shared.stand().take_news(Instant::now());
        news.iter().for_each(|news| host.say(news));
        let last = shared.stand().unsent.last_news();
        last.iter().for_each(|last| host.warn(last));
        tell_failures(&shared.stand().roster, &mut told, host);
        if ledger.started.is_none() && may_start(&plan.start, &opened, &ledger, &enter) {
            start(&opened, &mut ledger);
        }
        if let Some(ended) = is_over(&opened, &ledger, &plan.start) {
            break ended;
        }
        for item in host.given_up() {
            if let Some(Ok(entry)) = opened.items.get(item) {
                shared.source.give_up(*entry, "it was cancelled");
            }
        }
        host.show(&shown(&shared, &plan.start, &ledger, &snapshot));
        let tick = match () {
            () if probing => PROBE_TICK,
            () if shared.feed.is_some() => PRODUCTS_TICK,
            () => TICK,
        };
        tokio::select! {
            () = host.stopped() => {
                // Before the start there is nobody to whom what is there could still be sent.
                let at_once = shared.feed.is_none() || ledger.started.is_none();
                if at_once || opened.stop.swap(true, Ordering::Relaxed) {
                    break Ended::Interrupted;
                }
                host.heed();
                host.say("no more products are taken; what is there is still sent (again: end the session)");
            }
            () = shared.changed.notified() => {}
            () = tokio::time::sleep(tick) => {}
        }
    };
    host.finish();
    close(plan, opened, ledger, &ended).await
}

/// Why a session ends.
enum Ended {
    /// Nobody is left to wait for.
    Over,
    /// By the user.
    Interrupted,
    /// It cannot go on: the data cannot be read, or one of our threads has failed.
    Failed(String),
}

/// The ticket goes to the program that waits for it, or to standard output, by itself, so that it can be piped; with `--json`
/// that is for the report alone.
fn announce(plan: &SendPlan, opened: &Open, host: &mut Host) {
    if let Host::Program { ticket, .. } = host {
        // Who does not wait for it does not get it.
        if let Some(waiting) = ticket.take() {
            let _ = waiting.send(opened.ticket.clone());
        }
        return;
    }
    if plan.output.json {
        eprintln!("{}", opened.ticket);
    } else {
        let mut out = std::io::stdout();
        // A closed standard output must not end a transfer: the ticket may be in a file.
        let _ = writeln!(out, "{}", opened.ticket).and_then(|()| out.flush());
    }
    if plan.output.quiet {
        return;
    }
    let (objects, bytes) = opened.shared.source.objects();
    let what = match (&opened.shared.feed, bytes) {
        (Some(_), _) => "products as they come".to_owned(),
        (None, None) => format!("{objects} objects"),
        (None, Some(len)) => format!("{objects} objects, {}", crate::units::show_bytes(len)),
    };
    let place = match &opened.stream {
        Some((group, interface)) => format!("to {group} on {interface}"),
        None => match plan.path.name() {
            Some(path) if plan.path.is_unicast() => {
                format!("by {path}, the stream to one receiver")
            }
            Some(path) => format!("by {path} to each receiver"),
            None => "by unicast only".to_owned(),
        },
    };
    let name = &opened.shared.reply.name;
    eprintln!("sending {name}: {what}, {place}");
    eprintln!("rate: {}", plan.rate_line);
    eprintln!("receivers: downpour receive TICKET --out DIR   (the ticket is the line above)");
    // What may be the reason why it does not get on.
    opened.shared.stand().notices.iter().for_each(|notice| eprintln!("notice: {notice}"));
}

/// Says at once, and once, which receiver has failed: one that could not begin is waited for otherwise.
fn tell_failures(roster: &Roster, told: &mut BTreeSet<ReceiverId>, host: &Host) {
    for (id, member) in roster.iter() {
        if let Stage::Failed(why) = &member.stage
            && told.insert(id)
        {
            let shown = |text: &str| printable(text.as_bytes());
            host.say(&format!("{} failed: {}", shown(&member.name), shown(why)));
        }
    }
}

/// Takes stock and passes on; whether somebody waits for a probe.
fn observe(opened: &Open, ledger: &mut Ledger, snapshot: &SendSnapshot) -> bool {
    let shared = &opened.shared;
    ledger.data_len = shared.source.objects().1;
    ledger.observe(Instant::now(), snapshot.left_bytes() + opened.budget.granted());
    if let Some(shares) = snapshot.shares {
        opened.budget.set_rate(shares.pulls);
    }
    match &shared.feed {
        Some(feed) => {
            if feed.queue.opened(snapshot.ends.0) {
                shared.tell_owner(Heard::Opened { end: snapshot.ends.0 });
            }
            shared.tell_products(feed, snapshot.ends, Instant::now());
        }
        None => shared.tell_opened(snapshot.ends),
    }
    let mut stand = shared.stand();
    stand.tell_withdrawn();
    stand.tell_narrow(Instant::now(), snapshot);
    for gone in stand.expire(Instant::now()) {
        shared.driver.set_delivery(gone, Delivery::Ended);
        shared.tell_owner(Heard::Away { receiver: gone });
    }
    // Probes go out for as long as somebody listens for them; he gives up by himself.
    let probing = stand.roster.iter().any(|(_, member)| member.stage == Stage::Joined);
    if probing {
        shared.driver.probe();
    }
    probing
}

fn may_start(rule: &StartRule, opened: &Open, ledger: &Ledger, enter: &AtomicBool) -> bool {
    let stand = opened.shared.stand();
    let ready = stand.roster.ready_count();
    let expected_are_here =
        !rule.expect.is_empty() && stand.roster.missing(&rule.expect).is_empty();
    let enough = rule.receivers.is_some_and(|n| ready >= n as usize);
    let late = rule.after.is_some_and(|after| ledger.opened.elapsed() >= after);
    let named =
        (enough || rule.receivers.is_none()) && (expected_are_here || rule.expect.is_empty());
    let by_rule = named && (rule.receivers.is_some() || !rule.expect.is_empty());
    by_rule || late || (ready > 0 && enter.load(Ordering::Relaxed))
}

fn start(opened: &Open, ledger: &mut Ledger) {
    let now = Instant::now();
    ledger.started = Some(now);
    ledger.last = (now, 0);
    opened.shared.driver.start();
    let mut stand = opened.shared.stand();
    stand.started = true;
    stand.roster.tell_all(&Event::Start);
    if let Some(why) = nobody_hears(opened, &stand.roster) {
        stand.notice(why);
    }
    opened.emitting.thread().unpark();
}

/// While it can be helped: the stream leaves by an interface behind which there is no receiver.
fn nobody_hears(opened: &Open, roster: &Roster) -> Option<String> {
    let (_, interface) = opened.stream.as_ref()?;
    let (_, first) = roster.iter().next()?;
    let deaf = roster.iter().all(|(_, member)| !member.multicast);
    let by = Interface::towards(first.addr.ip()).ok().filter(|_| deaf)?;
    elsewhere(interface, &by)
}

fn is_over(opened: &Open, ledger: &Ledger, rule: &StartRule) -> Option<Ended> {
    let stand = opened.shared.stand();
    if let Some(reason) = stand.ended.clone().or_else(|| opened.shared.source.lost()) {
        return Some(Ended::Failed(reason));
    }
    if ledger.started.is_none() {
        // Who could not begin may be started again; nobody does that with the receiver of a batch.
        let in_vain = stand.is_batch && stand.roster.has_failed(Instant::now());
        return in_vain.then_some(Ended::Over);
    }
    if opened.shared.feed.is_some() && !stand.offered_all {
        return None; // More may come, and who listens to it as well.
    }
    let nobody = stand.roster.iter().next().is_none();
    // Nobody came by the time that was set: there is nothing to wait for.
    let over = if nobody {
        rule.after.is_some() || opened.shared.feed.is_some()
    } else {
        stand.roster.is_over(Instant::now())
    };
    over.then_some(Ended::Over)
}

fn shown(shared: &Shared, rule: &StartRule, ledger: &Ledger, snapshot: &SendSnapshot) -> Snapshot {
    let stand = shared.stand();
    let phase = phase(&stand.roster, rule, ledger, snapshot);
    ledger.snapshot(phase, snapshot, stand.roster.iter())
}

fn phase(roster: &Roster, rule: &StartRule, ledger: &Ledger, snapshot: &SendSnapshot) -> Phase {
    if ledger.started.is_some() {
        let (_, _, finished) = snapshot.ends;
        return if finished { Phase::Finishing } else { Phase::Streaming };
    }
    let ready = roster.ready_count();
    let mut what = match rule.receivers {
        Some(n) => format!("{ready} of {n} receivers are ready"),
        None => format!("{ready} receivers are ready"),
    };
    let missing = roster.missing(&rule.expect);
    if !missing.is_empty() {
        let named: Vec<&str> = missing.iter().copied().take(5).collect();
        let more = if missing.len() > named.len() { ", …" } else { "" };
        what.push_str(&format!("; missing: {}{more}", named.join(", ")));
    }
    if rule.enter {
        what.push_str("; press Enter to start");
    }
    Phase::Waiting { what }
}

/// A flag that a thread sets when a line comes from the terminal.
fn enter_pressed(wanted: bool) -> Arc<AtomicBool> {
    let pressed = Arc::new(AtomicBool::new(false));
    if wanted {
        let flag = Arc::clone(&pressed);
        // Ends with the process: a read from a terminal cannot be called off.
        thread::spawn(move || {
            let mut line = String::new();
            if std::io::stdin().read_line(&mut line).is_ok_and(|n| n > 0) {
                flag.store(true, Ordering::Relaxed);
            }
        });
    }
    pressed
}

async fn close(
    plan: &SendPlan,
    opened: Open,
    mut ledger: Ledger,
    ended: &Ended,
) -> Result<Done, Fault> {
    let Open { shared, server, budget, stream, skipped, items, trace, stop, emitting, .. } = opened;
    stop.store(true, Ordering::Relaxed);
    if let Some(feed) = &shared.feed {
        feed.queue.stop();
    }
    let reason = match ended {
        Ended::Over => "the session is over".to_owned(),
        Ended::Interrupted => "the sender was interrupted".to_owned(),
        Ended::Failed(why) => format!("the sender cannot go on: {why}"),
    };
    tell_the_end(&mut shared.stand().roster, ended, reason);
    let strangers = server.strangers();
    let bulk = server.stop(CLOSING_TIME).await;
    offering_ends(&emitting).await;
    if matches!(ended, Ended::Over) && shared.source.has_empty() {
        let source = Arc::clone(&shared.source);
        within(LAST_LOOK_TIME, move || source.look_at_empty(true)).await;
    }
    ledger.data_len = shared.source.objects().1;
    let snapshot = driver_ends(&shared).await;
    let mut stand = shared.stand();
    let mut notices = stand.notices.clone();
    notices.extend(stand.unread_notice().into_iter().chain(faults::trace_end(trace)));
    notices.extend(shared.feed.iter().flat_map(Feed::log_lacks));
    let wanted = plan.start.receivers.unwrap_or(0);
    notices.extend(too_few(stand.roster.iter().count(), wanted));
    match ended {
        Ended::Over => {}
        Ended::Interrupted => notices.push("interrupted before everybody was complete".to_owned()),
        Ended::Failed(why) => notices.push(why.clone()),
    }
    let withdrawn = shared.source.withdrawn();
    let failed = withdrawn.iter().map(named).chain(stand.unsent.take()).collect();
    let members: BTreeMap<ReceiverId, &Member> = stand.roster.iter().collect();
    let joined: BTreeSet<&str> = members.values().map(|member| member.name.as_str()).collect();
    let absent = plan.start.expect.iter().filter(|name| !joined.contains(name.as_str()));
    let heading = Heading {
        id: shared.reply.session.to_text(),
        name: shared.reply.name.clone(),
        group: stream.as_ref().map(|(group, _)| group.clone()),
        interface: stream.map(|(_, interface)| interface),
        wanted,
        profile: plan.controller.name(),
        rate_limit: plan.rate,
        objects: shared.source.objects().0,
        pull_bytes: budget.granted(),
        transfer: plan.path.name().map(|path| TransferReport {
            path: path.to_owned(),
            connections: bulk.connections,
            sent_for_s: bulk.time.as_secs_f64(),
            at_once: bulk.at_once,
            ..TransferReport::default()
        }),
        strangers,
        skipped,
        failed,
        notices,
        absent: absent.cloned().collect(),
    };
    let report = report(heading, &ledger, &snapshot, &members);
    shared.feed.iter().for_each(|feed| feed.queue.clear());
    drop(members);
    Ok(Done { report, items, withdrawn, members: stand.roster.take() })
}

/// It looks at `stop` every few milliseconds, unless a read holds it; nothing that it has is needed then.
async fn offering_ends(emitting: &JoinHandle<()>) {
    let late = Instant::now() + OFFERING_TIME;
    while !emitting.is_finished() && Instant::now() < late {
        tokio::time::sleep(OFFERING_LOOK).await;
    }
}

/// The driver's last snapshot; its newest, where a read holds it up.
async fn driver_ends(shared: &Arc<Shared>) -> SendSnapshot {
    let driving = Arc::clone(shared);
    within(OFFERING_TIME, move || drop(driving.driver.stop())).await;
    shared.driver.snapshot()
}

/// Does something for which a disk may be needed. Nobody waits longer for one that does not answer.
async fn within(time: Duration, work: impl FnOnce() + Send + 'static) {
    let (done, ended) = oneshot::channel::<()>();
    let work = move || {
        work();
        drop(done);
    };
    let _ = thread::Builder::new().name("downpour-end".to_owned()).spawn(work);
    let _ = tokio::time::timeout(time, ended).await;
}

fn tell_the_end(roster: &mut Roster, ended: &Ended, reason: String) {
    // Those who go when they are told have not left of themselves.
    if !matches!(ended, Ended::Over) {
        roster.cut(&reason);
    }
    roster.tell_all(&Event::Shutdown { reason });
}

/// Fewer have joined than `--receivers` said, or nobody at all.
fn too_few(joined: usize, wanted: u32) -> Option<String> {
    match joined {
        0 => Some("nobody joined".to_owned()),
        few if few < wanted as usize => {
            Some(format!("receivers that joined: {few}, fewer than the {wanted} of --receivers"))
        }
        _ => None,
    }
}

fn named(withdrawn: &Withdrawn) -> Named {
    Named { name: withdrawn.path.clone(), why: withdrawn.reason.clone() }
}
