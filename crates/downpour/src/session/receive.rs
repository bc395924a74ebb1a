//! Finds the sender, takes part, and finds it again if it vanishes.
//!
//! A receiver waits for its sender: before the first JOIN and after a loss alike, up to the time given by
//! `--join-timeout`. What has arrived is kept meanwhile (`object::store`), so an attempt after a loss gets
//! only what is missing.

use super::account::ReceiverAccount;
use super::attempt::{Attempt, attempt};
use super::ended::{Ended, Followed, Over};
use super::faults;
use super::host::{Host, beside_main};
use super::keeper::taken;
use super::staying::Stayed;
use crate::cli::{Exit, Fault, ReceivePlan, Target};
use crate::descriptors;
use crate::home::Home;
use crate::object::{Agreed, FolderOptions, PipeOut};
use crate::product::{Clerk, Failure, Ours, ProductLog};
use crate::progress::{Phase, Snapshot};
use crate::report::Report;
use crate::steering::{Book, LinkBook};
use crate::ticket::{Ticket, TicketError};
use crate::units::show_duration;
use downpour_catalog::{ErrorClass, Scope};
use downpour_proto::{Code, Rate};
use downpour_transport::control::{
    ClientLimits, ClientSetup, ControlClient, InstanceId, JoinError, JoinRequest, Joined,
    PROTOCOL_VERSION, SessionId,
};
use downpour_transport::identity::Identity;
use downpour_transport::trace::Trace;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Pause before the sender is tried again, as a part of the time waited so far and within these bounds: what waiting
/// has cost already grows by a thirtieth at most, and a thousand receivers that wait are a trickle.
const PAUSE_PART: u32 = 32;
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// An attempt that is over sooner was none.
const SHORT: Duration = Duration::from_secs(1);

/// Between one session and the next, for a receiver that stays; and, at most, between its attempts at one that goes on, so
/// as not to keep that from its end.
const STAY_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(32));

/// Receives what a ticket's sender sends, and reports it.
pub fn receive(plan: ReceivePlan) -> Result<Report, Fault> {
    beside_main(|| async {
        let home = Home::locate().map_err(|error| faults::home(&error))?;
        let identity = faults::identity(&home)?;
        let clerk = match &plan.target {
            Target::Tree(out) => {
                Some(Arc::new(Clerk::new(out.clone(), Arc::clone(&identity), None)))
            }
            Target::Device(_) | Target::Pipe | Target::Discard => None,
        };
        let links = home.state().ok().map(|state| LinkBook::new(Book::open(state), None));
        let ours = Arc::new(Ours::new(plan.overwrite));
        let taker = Taker { identity, batch: None, clerk, ours, links, may_open: None };
        let mut host = Host::terminal(plan.output.quiet)?;
        if let Target::Tree(out) = &plan.target {
            faults::unwritable(out).iter().for_each(|notice| host.warn(notice));
        }
        run(&plan, &taker, &mut host).await.map(|over| over.report)
    })
}

/// Takes part until it is over.
pub(super) async fn run(plan: &ReceivePlan, taker: &Taker, host: &mut Host) -> Result<Over, Fault> {
    // A store keeps many files open; what is too few for it shows as an error that names the limit.
    descriptors::raise();
    host.heed();
    let ticket = read_ticket(plan, taker)?;
    let setup = ClientSetup {
        addrs: ticket.addrs.clone(),
        server: ticket.key,
        token: ticket.token,
        identity: Arc::clone(&taker.identity),
        limits: ClientLimits::default(),
    };
    let request = JoinRequest {
        protocol: PROTOCOL_VERSION,
        software: format!("downpour {}", env!("CARGO_PKG_VERSION")),
        name: plan.name.clone(),
        instance: instance(&plan.name, &plan.target)?,
        codes: Code::ALL.map(Code::number).to_vec(),
        follows: None,
    };
    // One trace for all attempts, and one log.
    let trace = faults::trace(plan.output.trace.as_deref(), "receiver")?;
    let log = plan.product_log.as_deref().map(faults::product_log).transpose()?;
    let mut before = Before::default();
    let kept = (trace.as_ref(), log.as_ref());
    let ended = attempts((plan, taker, host), (&setup, request), kept, &mut before).await;
    let cut = faults::trace_end(trace);
    let mut over = ended.or_else(|fault| before.end(plan.stay, fault))?;
    host.finish();
    over.report.notices.extend(cut);
    over.report.notices.extend(log.as_deref().and_then(ProductLog::failure));
    Ok(over)
}

/// What came of the attempts so far.
#[derive(Default)]
struct Before {
    /// Of the last one, if its sender was lost; and of which session it was.
    lost: Option<(SessionId, Over)>,
    /// Of the sessions that are over, of who stays; or of products, without their sender.
    stayed: Stayed,
    /// It has waited for its sender: meanwhile another receiver may have come into its target.
    has_waited: bool,
    /// Which session the attempts since then are at, or were first; and when they began.
    first: Option<(SessionId, Instant)>,
    /// How often their sender was lost.
    losses: u32,
}

impl Before {
    /// It takes part in this one now. One whose sender was lost does not come back if it is another: what people are told
    /// of it.
    fn join(&mut self, session: SessionId) -> Vec<String> {
        if self.first.is_some_and(|(first, _)| first != session) {
            (self.first, self.losses) = (None, 0);
        }
        let Some((lost, over)) = self.lost.take_if(|(lost, _)| *lost != session) else {
            return Vec::new();
        };
        let fault = Fault::start("it did not come back", "ask its sender for what is missing");
        let over = over.without_sender(fault.of(ErrorClass::SourceUnreachable));
        self.stayed.add(lost, &over, "another one has begun")
    }

    /// What comes is another session, or this one without regard to what was.
    fn begin_anew(&mut self) {
        (self.lost, self.first, self.losses) = (None, None, 0);
    }

    /// Of an attempt that begins now.
    fn account(&mut self, joined: &Joined) -> ReceiverAccount {
        let first = self.first.get_or_insert_with(|| (joined.reply.session, Instant::now()));
        ReceiverAccount::new(joined, first.1, losses_notice(self.losses).into_iter().collect())
    }

    /// It has taken part in a session.
    const fn has_been(&self) -> bool {
        self.lost.is_some() || self.stayed.has_any()
    }

    /// Who stays waits for another receiver that has its target, unless it finds it at its start.
    const fn yields(&self) -> bool {
        self.has_waited || self.has_been()
    }

    /// Why an attempt could not begin need not end who stays: its target fails, which could be used before, or another
    /// receiver has it.
    fn is_passing(&self, class: ErrorClass) -> bool {
        match class {
            ErrorClass::OutOfResources => self.yields(),
            class => class.scope() == Scope::Destination && self.has_been(),
        }
    }

    /// The sender is lost. What came until then, if the attempt had begun.
    fn lose(&mut self, session: SessionId, over: Option<Box<Over>>) {
        self.has_waited = true;
        self.losses += 1;
        if let Some(over) = over {
            self.lost = Some((session, *over));
        }
    }

    /// The last one is over: the report is of it, or of one before that failed.
    fn close(mut self, session: SessionId, over: Over) -> Over {
        if !self.stayed.has_any() {
            return over;
        }
        self.stayed.add(session, &over, "the last one");
        self.stayed.end().unwrap_or(over)
    }

    /// Who has taken part has something to report, whatever keeps it from going on; who stays, when its user ends it.
    fn end(mut self, stays: bool, fault: Fault) -> Result<Over, Fault> {
        let by_user = fault.class == Some(ErrorClass::Interrupted);
        if stays && !by_user {
            let exit = if self.has_been() { Exit::Incomplete } else { fault.exit };
            return Err(Fault { exit, ..fault });
        }
        if let Some((session, over)) = self.lost.take() {
            return Ok(self.close(session, over.without_sender(fault)));
        }
        let Some(mut over) = self.stayed.end() else { return Err(fault) };
        if !by_user {
            over.report.notices.extend([fault.what, fault.todo]);
        }
        Ok(over)
    }
}

/// One attempt after another.
async fn attempts(
    (plan, taker, host): (&ReceivePlan, &Taker, &mut Host),
    (setup, mut request): (&ClientSetup, JoinRequest),
    (trace, log): (Option<&Trace>, Option<&Arc<ProductLog>>),
    before: &mut Before,
) -> Result<Over, Fault> {
    let pipe = PipeOut::stdout();
    // A site shows what is wrong, and begins anew.
    let comes_back = plan.stay && taker.clerk.as_deref().and_then(Clerk::desk).is_none();
    let (mut followed, mut haste, mut returns) = (None, Haste::default(), Returns::default());
    loop {
        request.follows = followed.as_ref().map(Followed::told);
        let target = (plan, taker, comes_back);
        let (client, joined) = join(setup, &request, target, before, host).await?;
        let session = joined.reply.session;
        // A tree comes again as a whole, products do not.
        if plan.stay || followed.as_ref().is_some_and(|followed| followed.started) {
            before.join(session).iter().for_each(|line| host.say(line));
        }
        let (begun, account) = (Instant::now(), before.account(&joined));
        let run = Attempt {
            plan,
            taker,
            client: Arc::new(client),
            joined,
            account: account.clone(),
            host,
            trace: trace.cloned(),
            log: log.cloned(),
            pipe: &pipe,
            has_been: before.has_been(),
            followed: &mut followed,
        };
        let ended = match attempt(run).await {
            Err(Fault { class: Some(class), what, .. })
                if comes_back && before.is_passing(class) =>
            {
                let followed = followed.as_ref().filter(|followed| followed.session == session);
                let over = Over::unopened((plan, account), followed, (class, what));
                Ended::Over(Box::new(over))
            }
            ended => ended?,
        };
        match ended {
            Ended::Over(over) if plan.stay => {
                // A file that has failed may be written in part.
                if over.report.is_complete() {
                    pipe.end();
                }
                before.begin_anew();
                let next = if over.goes_on { "joining again" } else { "waiting for the next one" };
                let told = before.stayed.add(session, &over, next);
                if over.interrupted {
                    return Err(interrupted());
                }
                if pipe.is_spent() {
                    return Ok(*over);
                }
                told.iter().for_each(|line| host.say(line));
                rest(host, returns.pause(over.goes_on, begun.elapsed())).await?;
            }
            Ended::Over(over) => return Ok(std::mem::take(before).close(session, *over)),
            Ended::SenderLost(why, over) => {
                before.lose(session, over);
                host.say(&format!("the sender is lost ({why}); waiting for it to come back"));
                rest(host, haste.pause(begun, Instant::now())).await?;
            }
        }
    }
}

async fn rest(host: &mut Host, pause: Duration) -> Result<(), Fault> {
    unless_stopped(host, tokio::time::sleep(pause)).await
}

/// Waits for what may be long in coming, and for whoever ends this.
pub(super) async fn unless_stopped<T>(
    host: &mut Host,
    awaited: impl Future<Output = T>,
) -> Result<T, Fault> {
    tokio::select! {
        done = awaited => Ok(done),
        () = host.stopped() => Err(interrupted()),
    }
}

fn interrupted() -> Fault {
    let what = "interrupted while waiting for the sender";
    Fault::start(what, "run it again: what has arrived is kept").of(ErrorClass::Interrupted)
}

/// Why a receiver took longer than what it got.
fn losses_notice(times: u32) -> Option<String> {
    match times {
        0 => None,
        1 => Some("the sender was lost once, and found again".to_owned()),
        times => Some(format!("the sender was lost {times} times, and found again each time")),
    }
}

/// Before the next try of who has waited so long already.
fn pause(waited: Duration) -> Duration {
    (waited / PAUSE_PART).clamp(PAUSE.0, PAUSE.1)
}

/// Attempts that were over as soon as they had begun: a sender that takes a receiver in and loses it each time is not to
/// be asked without a pause.
#[derive(Default)]
struct Haste {
    /// When the first of them began.
    since: Option<Instant>,
}

impl Haste {
    /// How long to wait after an attempt that began and ended then.
    fn pause(&mut self, begun: Instant, ended: Instant) -> Duration {
        if ended.duration_since(begun) >= SHORT {
            self.since = None;
            return Duration::ZERO;
        }
        pause(ended.duration_since(*self.since.get_or_insert(begun)))
    }
}

/// Attempts in a row that failed in a session that goes on, each after less than the longest pause.
#[derive(Default)]
struct Returns(u32);

impl Returns {
    /// How long to wait after an attempt that lasted so long.
    fn pause(&mut self, goes_on: bool, lasted: Duration) -> Duration {
        let again = goes_on && lasted < STAY_PAUSE.1;
        self.0 = if again { self.0.saturating_add(1) } else { 0 };
        STAY_PAUSE.0.saturating_mul(1_u32.checked_shl(self.0).unwrap_or(u32::MAX)).min(STAY_PAUSE.1)
    }
}

fn read_ticket(plan: &ReceivePlan, taker: &Taker) -> Result<Ticket, Fault> {
    let advice = "ask the sender for a ticket; `downpour send` prints one";
    let ticket: Ticket =
        plan.ticket.as_str().parse().map_err(|error: TicketError| match error {
            TicketError::OtherVersion(_) => {
                Fault::start(error.to_string(), "`downpour --version` there says which it is")
            }
            _ => Fault::start(error.to_string(), advice),
        })?;
    // That of a batch was made a moment ago, by the clock of a site that we trust.
    if taker.batch.is_none() {
        let in_time = ticket.check_time(SystemTime::now());
        let again = "ask the sender for a new one, or set this machine's clock";
        in_time.map_err(|expired| Fault::start(expired.since(), again))?;
    }
    Ok(ticket)
}

/// The same for each run of this name into the same place, so that the sender knows us again. Machines that share their
/// home, and with it the node's key, differ in their names.
fn instance(name: &str, target: &Target) -> Result<InstanceId, Fault> {
    let path = match target {
        Target::Tree(path) | Target::Device(path) => path,
        Target::Pipe | Target::Discard => {
            return InstanceId::random().ok_or_else(faults::randomness);
        }
    };
    let place = place(path);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(name.len() as u64).to_be_bytes()).update(name.as_bytes());
    let hash = hasher.update(place.as_os_str().as_bytes()).finalize();
    let (head, _) = hash.as_bytes().split_first_chunk().unwrap_or((&[0; 16], &[]));
    Ok(InstanceId::from_bytes(*head))
}

/// One name for a folder, before it is made and after: that of the nearest one that is there, and the rest.
fn place(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = absolute.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, mut place)) = there else { return absolute };
    for part in absolute.strip_prefix(above).iter().flat_map(|rest| rest.components()) {
        match part {
            Component::ParentDir => drop(place.pop()),
            part => place.push(part),
        }
    }
    place
}

/// Until no other receiver runs into the target; who does not wait for that ends.
async fn until_free(
    (plan, taker, waits): (&ReceivePlan, &Taker, bool),
    host: &mut Host,
) -> Result<(), Fault> {
    let mut is_told = false;
    while let Some(fault) = taken(plan, taker) {
        if !waits {
            return Err(fault);
        }
        if !std::mem::replace(&mut is_told, true) {
            host.say(&format!("{}; joining when it has left", fault.what));
        }
        rest(host, STAY_PAUSE.0).await?;
    }
    Ok(())
}

/// Tries until the sender takes us in, the time is over, or trying is of no use.
async fn join(
    setup: &ClientSetup,
    request: &JoinRequest,
    (plan, taker, comes_back): (&ReceivePlan, &Taker, bool),
    before: &mut Before,
    host: &mut Host,
) -> Result<(ControlClient, Joined), Fault> {
    let limit = if plan.stay { Duration::MAX } else { plan.join_timeout };
    let begun = Instant::now();
    loop {
        let connected = unless_stopped(host, ControlClient::connect(setup.clone())).await?;
        let tried = match connected {
            Ok(client) => {
                // Not before the sender answers: who waits for it leaves the target to others.
                until_free((plan, taker, comes_back && before.yields()), host).await?;
                let joined = unless_stopped(host, client.join(request)).await?;
                joined.map(|joined| (client, joined))
            }
            Err(error) if error.wrong_key().is_some() => {
                let todo = "the ticket is for another sender, or somebody is in between: ask for a \
                            new ticket";
                let fault = Fault::start(error.to_string(), todo);
                return Err(fault.of(ErrorClass::NotTrusted));
            }
            Err(error) => Err(error.into()),
        };
        let error = match tried {
            Ok(done) => return Ok(done),
            Err(error) if !error.is_passing() => {
                let fault = Fault::start(error.to_string(), advice(&error));
                return Err(fault.of(ErrorClass::SourceRefused));
            }
            Err(error) => error,
        };
        before.has_waited = true;
        let pause = pause(begun.elapsed());
        if begun.elapsed() + pause > limit {
            let what =
                format!("the sender did not answer within {}: {error}", show_duration(limit));
            let todo = "start the sender, check the ticket's address and the firewall (TCP and UDP; \
                        `downpour ports`), or give a longer --join-timeout";
            return Err(Fault::start(what, todo).of(ErrorClass::SourceUnreachable));
        }
        host.show(&Snapshot {
            elapsed: begun.elapsed(),
            phase: Phase::Waiting {
                what: format!("for the sender at {}", setup.addrs.join(" or ")),
            },
            data_bytes: None,
            rate: Rate::from_bps(0),
            repair: 0.0,
            receivers: Vec::new(),
        });
        rest(host, pause).await?;
    }
}

/// To who is not let in.
fn advice(error: &JoinError) -> &'static str {
    match error {
        JoinError::NotAllowed(_) => {
            "have this machine's key (`downpour ticket key`) added there (at a site: in a [[receiver]] \
             that a rule names), or ask for a ticket without a list"
        }
        JoinError::WrongVersion(_) => "do so at one of the two ends, and try again",
        _ => "ask the sender for a ticket that is valid now",
    }
}

/// Who receives.
pub(super) struct Taker {
    /// Signs in this node's name.
    pub(super) identity: Arc<Identity>,
    /// In a batch of files that was agreed on.
    pub(super) batch: Option<BatchTarget>,
    /// Signs for the files of a site that come as products.
    pub(super) clerk: Option<Arc<Clerk>>,
    /// What it has placed of other products.
    pub(super) ours: Arc<Ours>,
    /// What is remembered of links.
    pub(super) links: Option<LinkBook>,
    /// What is asked before each attempt opens its target.
    pub(super) may_open: Option<MayOpen>,
}

/// Whether a folder may be opened, and made where it is missing; else why not. Its disk may have gone since the attempt before.
pub type MayOpen = Arc<dyn Fn() -> Result<(), Failure> + Send + Sync>;

/// Where a batch goes.
pub(super) struct BatchTarget {
    pub(super) folder: FolderOptions,
    pub(super) agreed: Arc<Agreed>,
}

#[cfg(test)]
mod tests {
    use super::{
        Before, Haste, PAUSE, Returns, SHORT, STAY_PAUSE, advice, instance, losses_notice,
    };
    use crate::cli::{Exit, Fault, Target};
    use crate::report::ReceiverState;
    use crate::session::staying::tests::over;
    use downpour_catalog::ErrorClass;
    use downpour_transport::control::{JoinError, SessionId};
    use std::time::{Duration, Instant};

    #[test]
    fn attempts_that_end_at_once_are_made_less_and_less_often() {
        let (mut haste, start) = (Haste::default(), Instant::now());
        let (mut now, mut tries) = (start, 0);
        while now < start + Duration::from_secs(60) {
            let pause = haste.pause(now, now);
            assert!((PAUSE.0..=PAUSE.1).contains(&pause));
            (now, tries) = (now + pause, tries + 1);
        }
        assert!(tries < 300, "{tries} in a minute");
        assert_eq!(haste.pause(now, now + SHORT), Duration::ZERO, "it has lasted");
        assert_eq!(haste.pause(now, now), PAUSE.0, "and the next one begins anew");
    }

    #[test]
    fn who_fails_again_and_again_in_one_session_is_away_for_most_of_the_time() {
        let (mut returns, short) = (Returns::default(), SHORT + SHORT / 2);
        let pauses: Vec<_> = (0..40).map(|_| returns.pause(true, short)).collect();
        assert!(pauses[0] > STAY_PAUSE.0 && pauses.is_sorted() && pauses[39] == STAY_PAUSE.1);
        assert_eq!(returns.pause(true, STAY_PAUSE.1), STAY_PAUSE.0, "it has lasted");
        returns.pause(true, short);
        assert_eq!(returns.pause(false, short), STAY_PAUSE.0, "the next session is joined at once");
    }

    #[test]
    fn who_has_taken_part_and_is_not_let_in_again_could_start() {
        let fault = || Fault::start("no", "ask").of(ErrorClass::SourceRefused);
        let Err(first) = Before::default().end(true, fault()) else { panic!("it has been there") };
        let mut before = Before::default();
        before.stayed.add(SessionId::from_bytes([1; 16]), &over(None, false), "waiting");
        let Err(later) = before.end(true, fault()) else { panic!("its user has not ended it") };
        assert_eq!((first.exit, later.exit), (Exit::CouldNotStart, Exit::Incomplete));
    }

    #[test]
    fn what_another_session_lacks_is_told_at_the_end_of_the_one_that_was_joined_after_it() {
        let [first, second] = [1, 2].map(|id| SessionId::from_bytes([id; 16]));
        let told_at_end = |fault: Option<Fault>| {
            let mut before = Before::default();
            before.lose(first, Some(Box::new(over(Some("the sender is lost"), false))));
            assert!(before.join(first).is_empty(), "it has come back");
            let told = before.join(second);
            let why = "the sender is lost; it did not come back";
            assert_eq!(told, [format!("the session is over ({why}); another one has begun")]);
            let ended = match fault {
                Some(fault) => before.end(false, fault).ok().unwrap(),
                None => before.close(second, over(None, false)),
            };
            let state = ReceiverState::Failed { why: why.to_owned() };
            assert_eq!(ended.report.receivers[0].state, state);
            ended.report.notices
        };
        let advice = "ask its sender for what is missing";
        let which = "2 sessions, of which 1 failed: this is the last one that failed";
        assert_eq!(told_at_end(None), [advice, which]);
        let fault = Fault::start("nobody answered", "start the sender");
        assert_eq!(told_at_end(Some(fault)), [advice, "nobody answered", "start the sender"]);
    }

    #[test]
    fn how_often_the_sender_was_lost_is_told_of_each_session_by_itself() {
        let [first, second] = [1, 2].map(|id| SessionId::from_bytes([id; 16]));
        let mut before = Before { first: Some((first, Instant::now())), ..Before::default() };
        assert_eq!(losses_notice(before.losses), None);
        before.lose(first, None);
        before.join(first);
        assert!(losses_notice(before.losses).is_some_and(|told| told.contains("lost once")));
        before.lose(first, None);
        assert!(losses_notice(before.losses).is_some_and(|told| told.contains("lost 2 times")));
        before.join(second);
        assert!(before.first.is_none() && losses_notice(before.losses).is_none());
    }

    #[test]
    fn who_has_waited_waits_for_another_receiver_and_who_has_taken_part_for_its_target_too() {
        let targets = [ErrorClass::OutOfResources, ErrorClass::DestinationWriteFailed];
        let passing = |before: &Before| targets.map(|class| before.is_passing(class));
        let mut before = Before::default();
        assert_eq!(passing(&before), [false, false], "found at its start");
        before.lose(SessionId::from_bytes([1; 16]), None);
        assert_eq!(passing(&before), [true, false]);
        before.stayed.add(SessionId::from_bytes([1; 16]), &over(None, false), "waiting");
        assert_eq!(passing(&before), [true, true]);
    }

    #[test]
    fn who_is_not_on_the_list_needs_no_newer_ticket() {
        let refused = JoinError::NotAllowed("key k is not on the list".to_owned());
        assert!(advice(&refused).contains("added"));
        assert_eq!(refused.to_string(), "key k is not on the list", "the advice is ours");
        assert!(advice(&JoinError::WrongToken).contains("valid now"));
    }

    #[test]
    fn machines_that_share_a_key_and_a_path_are_two() {
        let of = |name: &str, path: &str| instance(name, &Target::Tree(path.into())).unwrap();
        assert_eq!(of("n1", "/data"), of("n1", "/data"));
        assert_ne!(of("n1", "/data"), of("n2", "/data"));
        assert_ne!(of("n1", "/data"), of("n1", "/data2"));
    }

    #[test]
    fn a_folder_is_the_same_place_before_it_is_made_and_after() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        std::fs::create_dir(at("real")).unwrap();
        std::os::unix::fs::symlink("real", at("link")).unwrap();
        let ways = ["real/new/out", "link/new/out", "link/new/out/", "real/./no/../new/out"];
        let all = || ways.map(|way| instance("n1", &Target::Tree(at(way))).unwrap());
        let before = all();
        std::fs::create_dir_all(at("real/no")).unwrap();
        std::fs::create_dir_all(at("real/new/out")).unwrap();
        assert_eq!(before, all());
        assert!(before.iter().all(|instance| *instance == before[0]), "{before:?}");
    }
}
