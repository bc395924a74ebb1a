//! What fails during a campaign: daemons, databases, the network between them, each killed and restored again and again at
//! random moments, independently of the others. A daemon that ends by itself is started again as systemd would.
//!
//! The network is cut only where the test has its own.

use super::alone::{Network, Sent};
use super::database::Database;
use super::harness::{SiteProcess, Two};
use downpour_proto::Rng;
use std::time::{Duration, Instant};

/// How long what was killed is away, at most.
const AWAY_MAX_MS: u64 = 2500;
/// When a daemon is started again that ended by itself.
const STARTED_AGAIN: Duration = Duration::from_secs(1);

/// What happens and when, all from one seed.
pub(crate) struct Chance(pub(crate) Rng);

impl Chance {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }
}

/// Who fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Source,
    Destination,
    SourcesDatabase,
    DestinationsDatabase,
    Network,
}

const VICTIMS: [Victim; 5] = [
    Victim::Source,
    Victim::Destination,
    Victim::SourcesDatabase,
    Victim::DestinationsDatabase,
    Victim::Network,
];

/// Everything that can fail, and when it does.
pub(crate) struct Faults {
    chance: Chance,
    network: Option<Network>,
    /// When each changes next, and whether it is away.
    next: [(Instant, bool); 5],
    every: Duration,
    /// Which of them are there.
    able: [bool; 5],
    /// How often each failed.
    failed: [u32; 5],
    /// How often a daemon ended by itself.
    ended: u32,
}

impl Faults {
    /// Each victim fails about every `every`.
    pub(crate) fn new(seed: u64, every: Duration, databases: &mut [Database; 2]) -> Self {
        let (network, [at_source, at_destination]) = (Network::own(), databases);
        let (here, there) = (at_source.server().is_some(), at_destination.server().is_some());
        let able = [true, true, here, there, network.is_some()];
        let (next, failed) = ([(Instant::now(), false); 5], [0; 5]);
        let mut faults =
            Self { chance: Chance(Rng::new(seed)), network, next, every, able, failed, ended: 0 };
        for victim in 0..VICTIMS.len() {
            let pause = faults.pause();
            faults.next[victim].0 += pause;
        }
        faults
    }

    fn pause(&mut self) -> Duration {
        self.every.mul_f64(0.2 + self.chance.below(1600) as f64 / 1000.0)
    }

    /// What was sent, if it can be counted.
    pub(crate) fn sent(&self) -> Option<Sent> {
        self.network.as_ref().map(Network::sent)
    }

    /// How often each failed.
    pub(crate) fn summary(&self) -> String {
        let failed: Vec<_> = VICTIMS.iter().zip(self.failed).collect();
        format!("failed: {failed:?}; daemons that ended by themselves: {}", self.ended)
    }

    /// Whether all failed twice.
    pub(crate) fn all_failed(&self) -> bool {
        self.failed.iter().zip(self.able).all(|(failed, able)| *failed > 1 || !able)
    }

    /// Lets fail and restores what is due. Called by one thread, which lives as long as the servers.
    pub(crate) fn tick(&mut self, sites: &mut Two, databases: &mut [Database; 2]) {
        for index in (0..VICTIMS.len()).filter(|index| self.able[*index]).collect::<Vec<_>>() {
            let (at, away) = self.next[index];
            if Instant::now() < at {
                if !away && has_ended(VICTIMS[index], sites) {
                    self.ended += 1;
                    self.next[index] = (Instant::now() + STARTED_AGAIN, true);
                }
                continue;
            }
            let away = !away;
            self.change(VICTIMS[index], away, sites, databases);
            self.failed[index] += u32::from(away);
            let pause = match away {
                true => Duration::from_millis(100 + self.chance.below(AWAY_MAX_MS)),
                false => self.pause(),
            };
            self.next[index] = (Instant::now() + pause, away);
        }
    }

    /// Everything works again, and stays so.
    pub(crate) fn end(&mut self, sites: &mut Two, databases: &mut [Database; 2]) {
        // Databases before daemons.
        for index in (0..VICTIMS.len()).rev() {
            if self.next[index].1 {
                self.change(VICTIMS[index], false, sites, databases);
                self.next[index].1 = false;
            }
        }
    }

    /// A daemon that ended by itself is started again.
    pub(crate) fn look_after(&mut self, sites: &mut Two) {
        for site in [&mut sites.a, &mut sites.b] {
            if !site.runs() {
                self.ended += 1;
                start(site);
            }
        }
    }

    fn change(
        &self,
        victim: Victim,
        away: bool,
        sites: &mut Two,
        [at_source, at_destination]: &mut [Database; 2],
    ) {
        match victim {
            Victim::Source | Victim::Destination => {
                let site = if victim == Victim::Source { &mut sites.a } else { &mut sites.b };
                if away { site.kill() } else { start(site) }
            }
            Victim::SourcesDatabase | Victim::DestinationsDatabase => {
                let is_source = victim == Victim::SourcesDatabase;
                let database = if is_source { at_source } else { at_destination };
                if let Some(server) = database.server() {
                    if away { server.kill() } else { server.start() }
                }
            }
            Victim::Network => match (&self.network, away) {
                (Some(network), true) => network.cut(&[]),
                (Some(network), false) => network.heal(),
                (None, _) => {}
            },
        }
    }
}

/// A daemon whose database is away when it starts ends by itself.
fn has_ended(victim: Victim, sites: &mut Two) -> bool {
    match victim {
        Victim::Source => !sites.a.runs(),
        Victim::Destination => !sites.b.runs(),
        _ => false,
    }
}

/// Starts a site whose mover lies now and then, and waits for nothing.
fn start(site: &mut SiteProcess) {
    let mut command = site.command(&["serve"]);
    command.env("DOWNPOUR_LIE", "0.0003");
    site.spawn(command);
}
