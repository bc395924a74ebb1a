//! The closed loop of transfers over fluid flows, and beside it what FTS3's tuner does, written from its description.

mod flows;
pub mod fts3;
pub mod matrix;
pub mod movers;
pub mod stories;

pub use flows::{GroupConfig, Path};

use downpour_proto::Duration;
use downpour_proto::transfer::steer::{
    Binding, Decision, Limits, LinkId, Memory, Seen, Setting, Steer, Uplink,
};

/// How often the loop looks.
const LOOK: Duration = Duration::from_millis(500);

/// Groups of a path that one [`Steer`] has.
#[derive(Debug)]
pub struct Steered {
    steer: Steer,
    links: Vec<Link>,
    /// All decisions, with their seconds.
    pub decisions: Vec<(f64, Decision)>,
}

#[derive(Debug)]
struct Link {
    group: usize,
    id: LinkId,
    setting: Setting,
    set: Setting,
    binding: Binding,
    bytes: u64,
    sent: (u64, u64),
    session: Option<u64>,
}

/// A loop over these groups, with nothing remembered.
pub fn steered(path: &mut Path, groups: &[(usize, Limits)]) -> Steered {
    let mut loops = Steered { steer: Steer::default(), links: Vec::new(), decisions: Vec::new() };
    for (group, limits) in groups {
        loops.begin(path, *group, *limits, None);
    }
    loops
}

/// Lets time pass for several receivers; with an uplink it is that of their sender, who tells each of the others.
pub fn run(
    path: &mut Path,
    receivers: &mut [Steered],
    mut uplink: Option<&mut Uplink<usize>>,
    time: Duration,
) {
    for _ in 0..time.as_nanos() / LOOK.as_nanos() {
        path.run(LOOK);
        let all = receivers.iter_mut().enumerate();
        let seen: Vec<_> =
            all.map(|(number, one)| one.see(path, (number, uplink.as_deref_mut()))).collect();
        for (number, (one, seen)) in receivers.iter_mut().zip(seen).enumerate() {
            one.look(path, &seen, (number, uplink.as_deref_mut()));
        }
    }
}

impl Steered {
    /// One more group.
    pub fn begin(
        &mut self,
        path: &mut Path,
        group: usize,
        limits: Limits,
        memory: Option<&Memory>,
    ) {
        let (id, setting) = self.steer.begin(limits, memory).expect("few groups");
        path.set(group, setting);
        self.links.push(Link {
            group,
            id,
            setting,
            set: setting,
            binding: Binding::Opening,
            bytes: 0,
            sent: (0, 0),
            session: None,
        });
    }

    /// Lets time pass.
    pub fn run(&mut self, path: &mut Path, time: Duration) {
        run(path, std::slice::from_mut(self), None, time);
    }

    /// What was seen of each link since the last time; the sender, too, sees how much was taken.
    fn see(
        &mut self,
        path: &mut Path,
        (receiver, mut uplink): (usize, Option<&mut Uplink<usize>>),
    ) -> Vec<Seen> {
        let mut all = Vec::new();
        for link in &mut self.links {
            let seen = path.take_seen(link.group);
            link.bytes += seen.bytes;
            link.sent = (link.sent.0 + seen.sent, link.sent.1 + seen.again);
            if let Some(uplink) = &mut uplink {
                let session = *link.session.get_or_insert_with(|| uplink.begin(Some(receiver)));
                uplink.sent(session, seen.bytes);
            }
            all.push(seen);
        }
        all
    }

    /// Decides, as the receiver of this number.
    fn look(
        &mut self,
        path: &mut Path,
        all: &[Seen],
        (receiver, mut uplink): (usize, Option<&mut Uplink<usize>>),
    ) {
        for (link, seen) in self.links.iter_mut().zip(all) {
            if let Some(uplink) = &mut uplink {
                let wants = self.steer.wants(link.id);
                let beside = uplink.ask(path.now(), link.session, &receiver, wants);
                self.steer.told(link.id, Some(beside));
            }
            if let Some(decision) = self.steer.look(path.now(), link.id, seen) {
                (link.binding, link.setting) = (decision.binding, decision.setting);
                self.decisions.push((path.now().as_nanos() as f64 / 1e9, decision));
            }
            let next = link.set.step(link.setting);
            if next != link.set {
                link.set = next;
                path.set(link.group, next);
            }
        }
    }

    /// What is in force on the link of this number.
    pub fn setting(&self, link: usize) -> Setting {
        self.links[link].setting
    }

    /// What binds it.
    pub fn binding(&self, link: usize) -> Binding {
        self.links[link].binding
    }

    /// What it brought so far.
    pub fn bytes(&self, link: usize) -> u64 {
        self.links[link].bytes
    }

    /// Bytes sent for it, and sent again.
    pub fn sent(&self, link: usize) -> (u64, u64) {
        self.links[link].sent
    }

    /// What is remembered of it.
    pub fn memory(&self, link: usize) -> Option<Memory> {
        self.steer.memory(self.links[link].id)
    }
}
