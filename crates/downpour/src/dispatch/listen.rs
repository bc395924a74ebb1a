//! The service `listen`: takes part in the standing multicast sessions of other sites.
//!
//! 1. For each `[[remote]]` with `multicast` it does what `downpour receive --stay` does: with this site's key and name, into
//!    the folder where that site's files go.
//! 2. With its head each file is judged as one that is offered: here already, refused, or taken with a path and room.
//! 3. What is in its place is signed for and recorded as what a batch brought, before its sender is told.
//! 4. A ticket that is missing, wrong or refused is looked at again after a while. One that was replaced is used at once.
//! 5. When the service drains it takes no new file, and leaves each session when the one under way there is in its place and that is
//!    told, whatever still comes in others: its sender waits for who is there. Of what else comes until then it says nothing, as if
//!    it had left: refused, that would be tried again after a while only. For a sender that is not there nothing waits: what it was
//!    not told is recorded, and said when it sends that again.
//!
//! Deliberately absent: where a session is cut nothing is kept of the file under way; its sender sends that again. What a
//! `[[remote]]` says of rates and batches does not apply: the sender sets the pace for all receivers together.

use super::arrivals::{Arrivals, Arriving};
use super::arriving::{Judge, Look, Taken, may_open, may_receive};
use super::here::READ_MAX;
use super::incoming::{MEMORY, not_recorded};
use super::offer::{OfferItem, Trouble};
use super::record::record_here;
use super::{Dispatch, lock};
use crate::cli::Interface;
use crate::product::{Clerk, Desk, Failure, SiteFile, Verdict};
use crate::progress::{Phase, Snapshot};
use crate::receipt::InPlace;
use crate::session::{TakeProducts, take_products};
use crate::site::section::Complaint;
use crate::site::{Config, Fault, Running, Service, Site, Status, Stop, Wish, blocking};
use crate::ticket::Ticket;
use downpour_catalog::ErrorClass;
use downpour_transport::identity::PublicKey;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How often a session and its ticket are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// When it is tried again after it could not take part.
const AGAIN: Duration = Duration::from_secs(5);
/// How long sessions may take to end.
const END_TIME: Duration = Duration::from_secs(10);

/// The service.
pub(super) struct Listen {
    dispatch: Arc<Dispatch>,
    /// By the other site's name.
    seen: Mutex<BTreeMap<String, Seen>>,
}

/// How it goes with one site.
#[derive(Debug, Default)]
struct Seen {
    how: How,
    received: u64,
    refused: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
enum How {
    #[default]
    Off,
    /// For what.
    Waits(String),
    Present,
    /// Why.
    Cannot(String),
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => f.write_str("takes no part"),
            Self::Waits(what) => write!(f, "waits {what}"),
            Self::Present => f.write_str("takes part"),
            Self::Cannot(why) => write!(f, "cannot take part: {why}"),
        }
    }
}

impl Service for Listen {
    fn name(&self) -> &'static str {
        "listen"
    }

    fn run(self: Arc<Self>, site: Arc<Site>, stop: Stop) -> Running {
        Box::pin(async move {
            let done = self.work(&site, &stop).await;
            lock(&self.seen).values_mut().for_each(|seen| seen.how = How::Off);
            done
        })
    }

    fn status(&self) -> Status {
        let seen = lock(&self.seen);
        let line = |(site, Seen { how, received, refused }): (&String, &Seen)| {
            let refused = if *refused > 0 { format!(", {refused} refused") } else { String::new() };
            format!("{site}: {how}, {received} files received{refused}")
        };
        let line = match seen.is_empty() {
            true => "no [[remote]] has a ticket in `multicast`".to_owned(),
            false => seen.iter().map(line).collect::<Vec<_>>().join("; "),
        };
        let present = seen.values().filter(|seen| seen.how == How::Present).count();
        let sum = |of: fn(&Seen) -> u64| seen.values().map(of).sum::<u64>() as f64;
        Status::line(line)
            .with("sessions_wanted", seen.len() as f64)
            .with("sessions_present", present as f64)
            .with("files_received_total", sum(|seen| seen.received))
            .with("files_refused_total", sum(|seen| seen.refused))
    }
}

/// One site's session, as the configuration has it.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    site: String,
    key: PublicKey,
    ticket: PathBuf,
    folder: PathBuf,
    interface: Option<String>,
}

impl Wanted {
    fn all(config: &Config) -> Vec<Self> {
        let of = |remote: &crate::site::RemoteSection| {
            Some(Self {
                site: remote.name.clone(),
                key: remote.key,
                ticket: config.path(remote.multicast.as_ref()?),
                folder: config.inbox_of(remote),
                interface: config.multicast.interface.clone(),
            })
        };
        config.remote.iter().filter_map(of).collect()
    }

    /// Its ticket as it is now; or what is wrong with it.
    fn ticket(&self) -> Result<Ticket, String> {
        let ticket = Ticket::read_file(&self.ticket).map_err(|error| error.to_string())?;
        let at = self.ticket.display();
        if ticket.key != self.key {
            let (key, site) = (ticket.key, &self.site);
            return Err(format!("{at}: it is a ticket of {key}, which is not the key of {site}"));
        }
        ticket.check_time(SystemTime::now()).map_err(|expired| format!("{at}: {expired}"))?;
        Ok(ticket)
    }

    /// The same after a time, read where that may block: it may lie on a disk that does not answer.
    async fn ticket_in(&self, wait: Duration) -> Result<Ticket, String> {
        tokio::time::sleep(wait).await;
        let wanted = self.clone();
        blocking(move || Ok(wanted.ticket())).await.map_err(|fault| fault.what)?
    }

    fn interface(&self) -> Result<Option<Interface>, String> {
        let found = self.interface.as_deref().map(Interface::find).transpose();
        found.map_err(|fault| fault.what)
    }
}

/// What is wrong with the tickets of other sites' sessions. A daemon waits for them.
pub fn check_tickets(config: &Config) -> Vec<Complaint> {
    let index = |site: &str| config.remote.iter().position(|remote| remote.name == site);
    let wrong = |wanted: Wanted| {
        let at = format!("remote.{}.multicast", index(&wanted.site)?);
        let what = wanted.ticket().err()?;
        let todo =
            format!("copy `multicast.ticket` from the state folder of {} to it", wanted.site);
        Some(Complaint::new(at, what, todo))
    };
    Wanted::all(config).into_iter().filter_map(wrong).collect()
}

impl Listen {
    pub(super) fn new(dispatch: &Arc<Dispatch>) -> Self {
        Self { dispatch: dispatch.clone(), seen: Mutex::default() }
    }

    /// Takes part in all sessions that the configuration names, until it is asked to stop.
    async fn work(self: &Arc<Self>, site: &Arc<Site>, stop: &Stop) -> Result<(), Fault> {
        loop {
            let mut changes = site.config_changes();
            let all = Wanted::all(&site.config());
            lock(&self.seen).retain(|site, _| all.iter().any(|wanted| wanted.site == *site));
            let (end, ended) = watch::channel(false);
            let mut sessions = JoinSet::new();
            for wanted in &all {
                self.tell(&wanted.site, How::Off);
                let (this, site) = (self.clone(), site.clone());
                sessions.spawn(this.stay(site, wanted.clone(), (ended.clone(), stop.clone())));
            }
            let others = async {
                while changes.changed().await.is_ok() && Wanted::all(&site.config()) == all {}
            };
            tokio::pin!(others);
            let goes_on = loop {
                tokio::select! {
                    () = stop.now() => break Ok(false),
                    () = stop.asked(), if sessions.is_empty() => break Ok(false),
                    () = &mut others, if stop.wish() == Wish::Run => break Ok(true),
                    Some(done) = sessions.join_next() => match done {
                        Ok(()) if stop.wish() != Wish::Run => {}
                        done => {
                            let why = done.err().map_or_else(String::new, |error| error.to_string());
                            let what = format!("a session broke off: {why}");
                            break Err(Fault::new(ErrorClass::Internal, what));
                        }
                    }
                }
            };
            end.send_replace(true);
            let all_ended = async { while sessions.join_next().await.is_some() {} };
            // What has not ended by then is told to, and not waited for.
            let _ = tokio::time::timeout(END_TIME, all_ended).await;
            if !goes_on? {
                return Ok(());
            }
        }
    }

    /// Takes part in the sessions of one site.
    async fn stay(
        self: Arc<Self>,
        site: Arc<Site>,
        wanted: Wanted,
        (ended, stop): (watch::Receiver<bool>, Stop),
    ) {
        let arrivals = Arrivals::new();
        arrivals.follow(&stop);
        let desk = SiteDesk {
            listen: self.clone(),
            arrivals: arrivals.clone(),
            site: site.clone(),
            lane: format!("multicast-{}", wanted.site),
            wanted: wanted.clone(),
        };
        let (folder, identity) = (wanted.folder.clone(), site.identity.clone());
        // The same in all sessions: what it could not tell in one it tells in the next.
        let clerk = Arc::new(Clerk::new(folder, identity, Some(Arc::new(desk))));
        self.take_part(&site, &wanted, (&clerk, &arrivals), (ended, stop)).await;
        // Others may go on for long.
        self.tell(&wanted.site, How::Off);
    }

    /// By one ticket after another, until it is to end.
    async fn take_part(
        &self,
        site: &Arc<Site>,
        wanted: &Wanted,
        (clerk, arrivals): (&Arc<Clerk>, &Arrivals),
        (ended, stop): (watch::Receiver<bool>, Stop),
    ) {
        let over = async || {
            let mut ended = ended.clone();
            tokio::select! {
                // Its sender is in `work`, which waits.
                _ = ended.wait_for(|ended| *ended) => {}
                () = stop.asked() => {}
            }
        };
        while !*ended.borrow() && stop.wish() == Wish::Run {
            let by = (clerk, arrivals);
            let done = self.session(site, wanted, by, (ended.clone(), &stop)).await;
            let Err(why) = done else { continue };
            self.tell(&wanted.site, How::Cannot(why));
            let _ = tokio::time::timeout(AGAIN, over()).await;
        }
        // What is in its place, and was not told of, is signed for and recorded at least.
        let clerk = clerk.clone();
        let _ = tokio::task::spawn_blocking(move || clerk.next_word()).await;
    }

    /// The same by one ticket: until another is there, or why not.
    async fn session(
        &self,
        site: &Arc<Site>,
        wanted: &Wanted,
        (clerk, arrivals): (&Arc<Clerk>, &Arrivals),
        (mut ended, stop): (watch::Receiver<bool>, &Stop),
    ) -> Result<(), String> {
        let banned = || self.dispatch.is_banned(&wanted.site);
        if banned() {
            return Err("an operator banned the link".to_owned());
        }
        let begins = async {
            let ticket = wanted.ticket_in(Duration::ZERO).await?;
            let folder = may_receive(site, wanted.folder.clone()).await;
            Ok::<_, String>((ticket, folder.map_err(|fault| fault.what)?))
        };
        let (ticket, folder) = tokio::select! {
            begins = begins => begins?,
            _ = ended.wait_for(|ended| *ended) => return Ok(()),
            () = stop.asked() => return Ok(()),
        };
        let mut running = take_products(TakeProducts {
            identity: site.identity.clone(),
            ticket: ticket.clone(),
            folder,
            may_open: Some(may_open(site, &wanted.folder)),
            clerk: clerk.clone(),
            name: site.name.clone(),
            interface: wanted.interface()?,
            memory_bytes: MEMORY,
        });
        let mut look = tokio::time::interval(LOOK);
        let mut replaced = pin!(wanted.ticket_in(LOOK));
        let (mut stopping, mut draining) = (false, false);
        loop {
            tokio::select! {
                done = running.done() => return match done {
                    Err(fault) if !stopping => Err(match fault.class {
                        // What is to be done is to be done there.
                        Some(ErrorClass::SourceRefused) => format!("{}: {}", fault.what, fault.todo),
                        _ => fault.what,
                    }),
                    _ => Ok(()),
                },
                _ = ended.wait_for(|ended| *ended), if !stopping => stopping = true,
                () = stop.asked(), if !draining => draining = true,
                _ = look.tick() => {
                    running.progress().into_iter().for_each(|seen| self.tell(&wanted.site, how(seen)));
                    stopping |= banned();
                }
                now = &mut replaced => {
                    stopping |= now.is_ok_and(|now| now != ticket);
                    replaced.set(wanted.ticket_in(LOOK));
                }
            }
            let may_leave = || clerk.has_told_all() || !running.has_begun();
            stopping |= draining && arrivals.is_empty() && may_leave();
            if stopping {
                running.stop();
            }
        }
    }

    fn tell(&self, site: &str, how: How) {
        self.see(site, |seen| {
            if seen.how != how {
                match &how {
                    How::Cannot(why) => {
                        tracing::warn!(site, why, "its session is not taken part in")
                    }
                    how => tracing::info!(site, "multicast: this site {how}"),
                }
                seen.how = how;
            }
        });
    }

    fn see(&self, site: &str, change: impl FnOnce(&mut Seen)) {
        change(lock(&self.seen).entry(site.to_owned()).or_default());
    }
}

fn how(seen: Snapshot) -> How {
    match seen.phase {
        Phase::Waiting { what } => How::Waits(what),
        Phase::Streaming | Phase::Finishing => How::Present,
    }
}

/// What this site does about files of one session.
struct SiteDesk {
    listen: Arc<Listen>,
    /// Its files.
    arrivals: Arc<Arrivals>,
    site: Arc<Site>,
    wanted: Wanted,
    lane: String,
}

impl SiteDesk {
    fn judge(&self, file: &SiteFile) -> Result<Result<Look, Trouble>, Fault> {
        let item = OfferItem {
            site: file.site.clone(),
            name: file.name.clone(),
            version: file.version,
            taken_in_us: file.taken_in_us,
            rule: file.rule.clone(),
            size: file.size,
            blake3: file.blake3.clone(),
            into: file.path.clone(),
            digests: file.digests.clone(),
        };
        let (site, folder) = (&self.site, self.wanted.folder.clone());
        site.read_blocking(|reader| Judge::new(site, reader, folder)?.look(reader, &item))
    }

    /// A file that is taken, if there is room.
    fn take(&self, taken: Taken, arriving: Arriving) -> Result<Verdict, Trouble> {
        let (dispatch, folder) = (&self.listen.dispatch, &self.wanted.folder);
        let promise = dispatch.room.take(folder, taken.item.size)?;
        let failed = |fault: Fault| Trouble::new(fault.class, fault.what);
        // The session's other products wait meanwhile.
        let mut left = READ_MAX;
        let made_way = taken.make_way(&self.site, folder, &dispatch.contents, &mut left);
        if let Some(recorded) = made_way.map_err(failed)? {
            recorded.wait().map_err(|error| failed(error.into()))?;
        }
        Ok(Verdict::Take(taken.path, Box::new((promise, arriving))))
    }

    fn refuse(&self, why: Failure) -> Verdict {
        self.listen.see(&self.wanted.site, |seen| seen.refused += 1);
        Verdict::Refuse(why)
    }
}

impl Desk for SiteDesk {
    fn lane(&self) -> &str {
        &self.lane
    }

    fn look(&self, file: &SiteFile) -> Verdict {
        let Some(arriving) = self.arrivals.begin() else { return Verdict::Leave };
        let taken = match self.judge(file) {
            Ok(Ok(Look::Here(receipt))) => return Verdict::Have(Box::new(receipt)),
            Ok(Ok(Look::Not(taken))) => self.take(taken, arriving),
            Ok(Err(trouble)) => Err(trouble),
            Err(fault) => return self.refuse((fault.class, fault.what)),
        };
        taken.unwrap_or_else(|trouble| self.refuse((trouble.class(), trouble.what)))
    }

    fn keep(&self, files: &[InPlace]) -> Result<Vec<Option<Failure>>, Failure> {
        let recorded = record_here(&self.site, &self.wanted.folder, files);
        let answers = recorded.map_err(|fault| (fault.class, fault.what))?;
        let totals = &self.listen.dispatch.totals;
        let mut refused = Vec::with_capacity(answers.len());
        for (answer, InPlace { signed, .. }) in answers.iter().zip(files) {
            refused.push(answer.as_ref().err().map(|refused| {
                let trouble = not_recorded(refused);
                (trouble.class(), trouble.what)
            }));
            if answer.is_ok() {
                self.listen.see(&self.wanted.site, |seen| seen.received += 1);
                totals.received_files.fetch_add(1, Ordering::Relaxed);
                totals.received_bytes.fetch_add(signed.receipt.size, Ordering::Relaxed);
            } else {
                self.listen.see(&self.wanted.site, |seen| seen.refused += 1);
            }
        }
        Ok(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrivals, Clerk, Dispatch, How, Listen, SiteFile, Ticket, Wanted, Wish, lock};
    use crate::object::Digest;
    use crate::receipt::{Line, read_log};
    use crate::site::{Daemon, Site, Stop};
    use downpour_transport::control::Token;
    use downpour_transport::identity::{Identity, PublicKey};
    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::watch;

    /// In its place, and not told of yet.
    fn placed(clerk: &Clerk, content: &[u8]) {
        let digest = Digest::of(content);
        let file = SiteFile {
            site: "a".to_owned(),
            name: "x".to_owned(),
            version: 1,
            taken_in_us: 1,
            rule: "all".to_owned(),
            size: content.len() as u64,
            blake3: digest.to_string(),
            digests: Vec::new(),
            path: "x".to_owned(),
        };
        clerk.begin("session".to_owned());
        clerk.placed(file, (digest, true)).unwrap();
    }

    /// A site that is to take part in the session of one with this key.
    async fn begun(at: &Path, key: PublicKey) -> Arc<Site> {
        let remote = format!("[[remote]]\nname = 'a'\nkey = '{key}'\n");
        Daemon::ended(at, "b", &format!("{remote}folder = 'in'\nmulticast = 'ticket'\n")).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn as_it_drains_it_waits_for_no_disk_that_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let (at, key) = (folder.path(), Identity::generate().public_key());
        let site = begun(at, key).await;
        let ticket = at.join("ticket");
        mknodat(CWD, &ticket, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let wanted = Wanted::all(&site.config()).remove(0);
        let (wish, stop) = Stop::new();
        let arrivals = Arrivals::new();
        arrivals.follow(&stop);
        let clerk = Arc::new(Clerk::new(at.join("in"), site.identity.clone(), None));
        let listen = Listen::new(&Arc::new(Dispatch::new(&site, &Arc::default())));
        let (_end, ended) = watch::channel(false);
        let takes_part = tokio::spawn(async move {
            listen.take_part(&site, &wanted, (&clerk, &arrivals), (ended, stop)).await;
        });
        // What waits for a disk on a thread of the runtime may be what drives its timers: this thread is none of these.
        let soon = |what: &str, is_so: &mut dyn FnMut() -> bool| {
            let begun = std::time::Instant::now();
            while !is_so() && begun.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(5));
            }
            is_so().then_some(()).ok_or_else(|| format!("not within a minute: {what}"))
        };
        let (mut end, mut options) = (None, std::fs::File::options());
        options.write(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        // There is one when somebody reads, who gets no answer until it is closed.
        let reads = soon("it reads its ticket", &mut || {
            end = end.take().or_else(|| options.open(&ticket).ok());
            end.is_some()
        });
        wish.send_replace(Wish::Drain);
        let left = reads.and_then(|()| soon("it has left", &mut || takes_part.is_finished()));
        drop(end);
        left.unwrap();
    }

    #[tokio::test]
    async fn as_it_drains_it_waits_for_no_sender_that_is_away_and_signs_for_what_that_sent() {
        let folder = tempfile::tempdir().unwrap();
        let (at, key) = (folder.path(), Identity::generate().public_key());
        let site = begun(at, key).await;
        let ticket = Ticket {
            addrs: vec!["127.0.0.1:9".to_owned()],
            key,
            token: Token::random().unwrap(),
            expires_unix_s: u64::MAX,
            group: None,
            allow: None,
        };
        ticket.write_file(&at.join("ticket")).unwrap();
        let inbox = at.join("in");
        std::fs::create_dir(&inbox).unwrap();
        let wanted = Wanted::all(&site.config()).remove(0);
        let (wish, stop) = Stop::new();
        let (clerk, arrivals) =
            (Clerk::new(inbox.clone(), site.identity.clone(), None), Arrivals::new());
        arrivals.follow(&stop);
        std::fs::write(inbox.join("x"), "content").unwrap();
        placed(&clerk, b"content");
        let listen = Listen::new(&Arc::new(Dispatch::new(&site, &Arc::default())));
        let (_end, ended) = watch::channel(false);
        let clerk = Arc::new(clerk);
        let drains = async {
            let waits = || lock(&listen.seen).values().any(|s| matches!(s.how, How::Waits(_)));
            while !waits() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            wish.send_replace(Wish::Drain);
        };
        let takes_part = listen.take_part(&site, &wanted, (&clerk, &arrivals), (ended, stop));
        let both = async { tokio::join!(takes_part, drains) };
        tokio::time::timeout(Duration::from_secs(60), both).await.expect("it has left");
        let signed: Vec<_> = read_log(&inbox).unwrap().collect();
        assert!(matches!(&signed[..], [Ok(Line::Receipt(_))]), "{signed:?}");
    }
}
