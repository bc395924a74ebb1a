//! Files in the standing multicast session: who is to have each, who has it, and what follows. No catalog, no clock.

use super::book::Held;
use super::outgoing::{Unread, why_unread};
use super::policy::{WAIT_MAX, pause};
use crate::product::{Content, Listed, SiteFile};
use crate::receipt::SignedFileReceipt;
use downpour_catalog::{ErrorClass, Fence, FileKey};
use downpour_proto::{ReceiverId, Rng};
use downpour_transport::identity::PublicKey;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// A receiver that takes part and says nothing of a file for so long after it went out has missed it.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// A receiver that takes part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present {
    pub(super) receiver: ReceiverId,
    /// The first block that it gets.
    pub(super) from: u32,
    /// The last product that it is done with.
    pub(super) through: Option<u64>,
}

/// Who takes part, by node key.
pub(super) type Presence = HashMap<PublicKey, Present>;

/// Files that the session was given and has not told of yet. One whose attempt ends meanwhile stays in its queue all the same,
/// and serves the next attempt.
#[derive(Default)]
pub(super) struct Given(HashSet<FileKey>);

impl Given {
    /// Gives a file to the session, unless it has it still.
    pub(super) fn give(&mut self, under: &Under, meta: String, into: &Sender<Listed>) {
        if self.0.insert(under.key()) {
            let name = under.key().to_string();
            let content = Content::Exactly(under.held.path.clone(), under.file.size);
            // Its end is told by the session's.
            let _ = into.send(Listed { at_s: None, name, meta, content });
        }
    }

    /// The session has told of this one. Which file it is.
    pub(super) fn told(&mut self, name: &str) -> Option<FileKey> {
        let key = name.parse().ok()?;
        self.0.take(&key)
    }
}

/// Of a file that was claimed so: why it could not be read.
pub(super) type Known = (FileKey, Fence, (ErrorClass, String));

/// Files that the session could not read, while their disks, which may not answer, are asked why.
#[derive(Default)]
pub(super) struct Unreadable {
    /// To be asked of together; and what the session says.
    failed: Vec<(Unread, (FileKey, Fence, String))>,
    asked: JoinSet<Vec<Known>>,
}

impl Unreadable {
    pub(super) fn add(&mut self, under: &Under, why: String) {
        let (path, size) = (under.held.path.clone(), under.held.file.size);
        let file = Unread { path, size, is_changed: false };
        self.failed.push((file, (under.key(), under.held.fence, why)));
    }

    /// Why some of them could not be read. Waits while there are none; may be dropped and asked again.
    pub(super) async fn known(&mut self) -> Vec<Known> {
        if self.asked.is_empty() && !self.failed.is_empty() {
            let (files, of): (Vec<_>, Vec<_>) = self.failed.drain(..).unzip();
            self.asked.spawn(async move {
                let classes = why_unread(files).await;
                let known = of.into_iter().zip(classes);
                known.map(|((key, fence, why), class)| (key, fence, (class, why))).collect()
            });
        }
        match self.asked.join_next().await {
            Some(known) => known.expect("it does not panic"),
            None => std::future::pending().await,
        }
    }
}

/// A file under way.
pub(super) struct Under {
    pub(super) held: Held,
    pub(super) file: SiteFile,
    /// How many receipts make it verified.
    pub(super) required: usize,
    /// Receivers without a receipt.
    pub(super) lacking: BTreeSet<PublicKey>,
    /// Receipts that are in the catalog.
    pub(super) have: BTreeMap<PublicKey, SignedFileReceipt>,
    /// Its number among the products and its blocks, once it stands in them.
    pub(super) placed: Option<(u64, Range<u32>)>,
    /// When it was seen that its last block has gone out; the queue before it may be long.
    sent: Option<Instant>,
    /// What receivers said against it.
    pub(super) failed: BTreeMap<PublicKey, (ErrorClass, String)>,
    /// It could not be read here.
    pub(super) unread: Option<(ErrorClass, String)>,
}

/// How a file stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// Somebody is still to say something.
    Waits,
    /// As many as must have it have it.
    Enough,
    /// This attempt brings no more receipts.
    Over(ErrorClass, String),
}

impl Under {
    pub(super) fn new(
        (held, file): (Held, SiteFile),
        required: usize,
        lacking: BTreeSet<PublicKey>,
    ) -> Self {
        Self {
            held,
            file,
            required,
            lacking,
            have: BTreeMap::new(),
            placed: None,
            sent: None,
            failed: BTreeMap::new(),
            unread: None,
        }
    }

    pub(super) fn key(&self) -> FileKey {
        self.file.key()
    }

    /// Whether it is of use to send it now.
    pub(super) fn is_wanted(&self, present: &Presence) -> bool {
        self.have.len() < self.required
            && self.lacking.iter().any(|node| present.contains_key(node))
    }

    /// A receipt was recorded. That of a node which need not have the file, because other rules name it, counts for nothing here.
    pub(super) fn receipted(&mut self, node: PublicKey, receipt: SignedFileReceipt) {
        if self.lacking.remove(&node) {
            self.failed.remove(&node);
            self.have.insert(node, receipt);
        }
    }

    /// The session has sent all blocks before `end`.
    pub(super) fn note_sent(&mut self, end: u32, now: Instant) {
        if self.placed.as_ref().is_some_and(|(_, blocks)| blocks.end <= end) {
            self.sent.get_or_insert(now);
        }
    }

    /// How long those who refused it are left alone while others are away, who wake it when they join.
    pub(super) fn pause(&self, rng: &mut Rng) -> Option<Duration> {
        let pause = |(class, _): &(ErrorClass, String)| match class.is_retried() {
            true => pause(*class, self.held.file.tries, None, rng),
            false => WAIT_MAX,
        };
        self.failed.values().map(pause).min()
    }

    pub(super) fn stand(&self, present: &Presence, now: Instant) -> Stand {
        if self.have.len() >= self.required {
            return Stand::Enough;
        }
        if let Some((class, what)) = &self.unread {
            return Stand::Over(*class, what.clone());
        }
        let (mut missed, mut away) = (0, 0);
        for node in self.lacking.iter().filter(|node| !self.failed.contains_key(*node)) {
            match (present.get(node), &self.placed) {
                (None, _) => away += 1,
                (Some(_), None) => return Stand::Waits,
                (Some(there), Some((number, blocks))) => {
                    let passed = there.through.is_some_and(|through| through >= *number);
                    let since = |sent| now.saturating_duration_since(sent);
                    let late = self.sent.is_some_and(|sent| since(sent) >= PATIENCE);
                    if there.from <= blocks.start && !passed && !late {
                        return Stand::Waits;
                    }
                    missed += 1;
                }
            }
        }
        // What one of them refuses for good is no reason to give up what enough others can have.
        let mut refused = self.failed.values().filter(|(class, _)| !class.is_retried());
        let can_have = self.have.len() + self.lacking.len() - refused.clone().count();
        if can_have < self.required
            && let Some((class, what)) = refused.next()
        {
            return Stand::Over(*class, what.clone());
        }
        let mut retried = self.failed.values().filter(|(class, _)| class.is_retried());
        match (missed, away, retried.next()) {
            (0, 0, Some((class, what))) => Stand::Over(*class, what.clone()),
            // By this class it is found when one of them joins.
            (0, away, _) => Stand::Over(
                ErrorClass::DestinationUnreachable,
                format!("{away} receivers are away"),
            ),
            (missed, ..) => {
                Stand::Over(ErrorClass::ConnectionLost, format!("{missed} receivers missed it"))
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Given, Presence, Present, Stand, Under, Unreadable};
    use crate::dispatch::book::Held;
    use crate::dispatch::policy::WAIT_MAX;
    use crate::product::SiteFile;
    use crate::receipt::FileReceipt;
    use crate::receipt::tests::receipt;
    use downpour_catalog::ErrorClass;
    use downpour_proto::{ReceiverId, Rng};
    use downpour_transport::identity::{Identity, PublicKey};
    use futures_util::FutureExt as _;
    use std::time::{Duration, Instant};

    /// A file for these.
    pub(in crate::dispatch) fn under(nodes: &[PublicKey], required: usize) -> Under {
        let file = SiteFile {
            site: "a".to_owned(),
            name: "f".to_owned(),
            version: 1,
            taken_in_us: 0,
            rule: "all".to_owned(),
            size: 3,
            blake3: blake3::hash(b"abc").to_hex().to_string(),
            digests: Vec::new(),
            path: "f".to_owned(),
        };
        Under::new((Held::example("f"), file), required, nodes.iter().copied().collect())
    }

    fn nodes() -> [PublicKey; 3] {
        [(); 3].map(|()| Identity::generate().public_key())
    }

    fn there(nodes: &[PublicKey], from: u32) -> Presence {
        let present = Present { receiver: ReceiverId(1), from, through: None };
        nodes.iter().map(|node| (*node, present)).collect()
    }

    fn over(stand: Stand) -> ErrorClass {
        match stand {
            Stand::Over(class, _) => class,
            other => panic!("{other:?}"),
        }
    }

    fn full() -> (ErrorClass, String) {
        (ErrorClass::DestinationFull, "full".to_owned())
    }

    fn taken() -> (ErrorClass, String) {
        (ErrorClass::VersionConflict, "taken".to_owned())
    }

    #[test]
    fn an_attempt_lasts_until_everybody_who_is_there_has_answered() {
        let (nodes, now) = (nodes(), Instant::now());
        let mut under = under(&nodes, 3);
        let mut present = there(&nodes[..2], 0);
        assert!(under.is_wanted(&present) && !under.is_wanted(&Presence::new()));
        assert_eq!(under.stand(&present, now), Stand::Waits, "it is not inserted yet");
        under.placed = Some((7, 4..9));
        assert_eq!(under.stand(&present, now), Stand::Waits);
        present.remove(&nodes[1]);
        under.failed.insert(nodes[0], full());
        assert_eq!(over(under.stand(&present, now)), ErrorClass::DestinationUnreachable);
        under.failed.clear();
        assert_eq!(under.stand(&present, now), Stand::Waits);
        present.get_mut(&nodes[0]).unwrap().through = Some(7);
        assert_eq!(over(under.stand(&present, now)), ErrorClass::ConnectionLost);
        assert_eq!(over(under.stand(&Presence::new(), now)), ErrorClass::DestinationUnreachable);
    }

    #[test]
    fn who_need_not_have_a_file_has_no_part_in_whether_enough_have_it() {
        let (now, identities) = (Instant::now(), [(); 3].map(|()| Identity::generate()));
        let [first, second, other] = identities.each_ref().map(Identity::public_key);
        let mut under = under(&[first, second], 2);
        let present = there(&[first, second, other], 0);
        under.placed = Some((7, 4..9));
        let receipts = identities.each_ref().map(|identity| {
            let receipt = FileReceipt { receiver: identity.public_key(), ..receipt("f", b"abc") };
            (identity.public_key(), receipt.sign(identity).unwrap())
        });
        let [of_first, of_second, of_other] = receipts;
        under.receipted(of_first.0, of_first.1.clone());
        under.receipted(of_other.0, of_other.1);
        under.receipted(of_first.0, of_first.1);
        assert_eq!(under.stand(&present, now), Stand::Waits);
        under.receipted(of_second.0, of_second.1);
        assert_eq!(under.stand(&present, now), Stand::Enough);
    }

    #[test]
    fn who_refuses_a_file_for_good_sets_it_apart_only_if_the_others_are_too_few() {
        let (nodes, now, mut rng) = (nodes(), Instant::now(), Rng::new(1));
        let one_refuses = |required, present: &Presence| {
            let mut under = under(&nodes, required);
            under.failed.insert(nodes[0], taken());
            (over(under.stand(present, now)), under)
        };
        let (class, mut under) = one_refuses(2, &there(&nodes[..1], 0));
        assert_eq!(class, ErrorClass::DestinationUnreachable);
        assert_eq!(under.pause(&mut rng), Some(WAIT_MAX), "nothing new until somebody joins");
        under.failed.insert(nodes[1], full());
        assert!(under.pause(&mut rng).unwrap() < WAIT_MAX, "it may have room soon");
        assert_eq!(one_refuses(3, &there(&nodes[..1], 0)).0, ErrorClass::VersionConflict);
    }

    #[test]
    fn what_passes_by_itself_counts_whatever_the_keys_while_it_can_be_enough() {
        let (nodes, now) = (nodes(), Instant::now());
        for required in [1, 2] {
            for both in [[full(), taken()], [taken(), full()]] {
                let mut under = under(&nodes[..2], required);
                under.failed.extend(nodes.into_iter().zip(both));
                let class = over(under.stand(&there(&nodes[..2], 0), now));
                let passes = class == ErrorClass::DestinationFull;
                assert_eq!(passes, required == 1, "{class}");
            }
        }
    }

    #[test]
    fn what_the_session_has_still_is_not_given_again() {
        let under = under(&nodes(), 3);
        let (into, queue) = std::sync::mpsc::channel();
        let mut given = Given::default();
        let name = under.key().to_string();
        let give = |given: &mut Given| {
            given.give(&under, String::new(), &into);
            queue.try_iter().map(|listed| listed.name).collect::<Vec<_>>()
        };
        assert_eq!((give(&mut given), give(&mut given)), (vec![name.clone()], vec![]));
        assert_eq!((given.told(&name), given.told(&name)), (Some(under.key()), None));
        assert_eq!(give(&mut given), [name]);
    }

    #[tokio::test]
    async fn what_could_not_be_read_is_asked_about_together_while_all_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let (there, gone) = (folder.path().join("there"), folder.path().join("gone"));
        std::fs::write(&there, [0; 3]).unwrap();
        let mut unreadable = Unreadable::default();
        for path in [there, gone] {
            let mut under = under(&nodes(), 3);
            (under.held.path, under.held.file.size) = (path, 3);
            unreadable.add(&under, "no".to_owned());
        }
        // Dropped before there is an answer.
        assert!(unreadable.known().now_or_never().is_none());
        let known = unreadable.known().await;
        let classes: Vec<_> = known.into_iter().map(|(.., (class, _))| class).collect();
        assert_eq!(classes, [ErrorClass::SourceReadFailed, ErrorClass::FileGone]);
        assert!(unreadable.known().now_or_never().is_none());
    }

    #[test]
    fn who_came_after_a_file_went_out_has_missed_it_and_so_has_who_says_nothing() {
        let (nodes, now) = (nodes(), Instant::now());
        let mut under = under(&nodes[..1], 1);
        under.placed = Some((7, 4..9));
        assert_eq!(under.stand(&there(&nodes, 4), now), Stand::Waits);
        assert_eq!(over(under.stand(&there(&nodes, 5), now)), ErrorClass::ConnectionLost);
        let late = now + Duration::from_secs(3600);
        under.note_sent(8, now);
        assert_eq!(under.stand(&there(&nodes, 4), late), Stand::Waits, "it has not gone out");
        under.note_sent(9, now);
        under.note_sent(10, late);
        assert_eq!(over(under.stand(&there(&nodes, 4), late)), ErrorClass::ConnectionLost);
    }
}
