//! Whether a file is complete: a pure machine, asked with what each look told.
//!
//! `settle:5s`: it looked the same for five seconds, by a clock that never steps. `done`: its companion is there. `rename`: it has
//! a name that is no temporary one. With `sums = "required"` it needs the producer's digest beside it in any case.
//! A digest file that is there is to settle, too, and is awaited while it is empty. What has been awaited for long is told.
//!
//! Whether a file was complete is seen again while it is read: what changes under the reader begins here anew.

use super::root::Seen;
use super::section::{Complete, Sums};
use downpour_catalog::DigestKind;
use std::time::Duration;

/// Endings of names that producers give to files that they still write.
const TEMPORARY: [&str; 4] = [".tmp", ".part", ".partial", "~"];

/// What a name says before anybody looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role<'n> {
    /// A file to be taken in.
    File,
    /// It says something of the file with this name.
    Companion(&'n str),
    /// Hidden, temporary, or our own.
    Passed,
}

/// The spool's policy, as far as completeness goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) complete: Complete,
    pub(super) sums: Sums,
}

impl Policy {
    /// What a name says. It may be a path: its last part counts.
    pub(super) fn role<'n>(&self, rel: &'n str) -> Role<'n> {
        let name = rel.rsplit('/').next().unwrap_or(rel);
        if name.starts_with('.') {
            return Role::Passed;
        }
        let of = |ending: &str| rel.strip_suffix(ending).filter(|_| name.len() > ending.len());
        let done = (self.complete == Complete::Done).then(|| of(".done")).flatten();
        let sum = || SUMS.iter().find_map(|(_, ending)| of(ending));
        let sum = (self.sums != Sums::Off).then(sum).flatten();
        if let Some(file) = done.or(sum) {
            return Role::Companion(file);
        }
        let is_temporary = self.complete == Complete::Rename
            && TEMPORARY.iter().any(|ending| name.ends_with(ending));
        if is_temporary { Role::Passed } else { Role::File }
    }

    /// Names of the companions that a file may have.
    pub(super) fn companions(&self, rel: &str) -> Vec<String> {
        let done = (self.complete == Complete::Done).then(|| format!("{rel}.done"));
        let sums = SUMS.iter().filter(|_| self.sums != Sums::Off);
        done.into_iter().chain(sums.map(|(_, ending)| format!("{rel}{ending}"))).collect()
    }

    /// A look at a file and, by their endings, at those of its companions that count.
    pub(super) fn look(&self, seen: Seen, beside: impl Fn(&str) -> Option<Seen>) -> Look {
        let has_done = self.complete == Complete::Done && beside(".done").is_some();
        let sum = |(_, ending)| (self.sums != Sums::Off).then(|| beside(ending)).flatten();
        Look { seen, has_done, sums: SUMS.map(sum) }
    }

    fn lack(&self, look: &Look) -> Option<Lack> {
        if self.sums == Sums::Required && look.sums.iter().all(Option::is_none) {
            return Some(Lack::Sum);
        }
        // An empty one is made before its file is read for it.
        let is_empty = |sum: &Option<Seen>| sum.is_some_and(|sum| sum.size == 0);
        if let Some(index) = look.sums.iter().position(is_empty) {
            return Some(Lack::Content(SUMS[index].1));
        }
        (self.complete == Complete::Done && !look.has_done).then_some(Lack::Done)
    }
}

/// What of a file's companions is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// Its `.done`.
    Done,
    /// A digest file.
    Sum,
    /// What is to stand in the digest file with this ending.
    Content(&'static str),
}

impl Lack {
    /// What the file with this name waits for.
    pub(super) fn words(self, rel: &str) -> String {
        match self {
            Self::Done => format!("{rel}: waits for {rel}.done"),
            Self::Sum => {
                let names = SUMS.map(|(_, ending)| format!("{rel}{ending}"));
                format!("{rel}: waits for {}", names.join(" or "))
            }
            Self::Content(ending) => format!("{rel}: waits for {rel}{ending}, which is empty"),
        }
    }
}

/// The producer's digests: their kind and how their files end.
pub(super) const SUMS: [(DigestKind, &str); 2] =
    [(DigestKind::Md5, ".md5"), (DigestKind::Sha256, ".sha256")];

/// One look at a file and its companions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) seen: Seen,
    pub(super) has_done: bool,
    /// The producer's digest files.
    pub(super) sums: [Option<Seen>; SUMS.len()],
}

/// What a look leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is complete.
    Complete,
    /// To be looked at again at this time.
    LookAt(Duration),
    /// Its companion is awaited.
    Companion,
}

/// A file that may still be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settling {
    seen: Seen,
    sums: [Option<Seen>; SUMS.len()],
    quiet_since: Duration,
    /// What is awaited, and since when something was.
    lack: Option<(Duration, Lack)>,
}

impl Settling {
    /// First seen at `now`.
    pub(super) const fn new(now: Duration, seen: Seen) -> Self {
        Self { seen, sums: [None; SUMS.len()], quiet_since: now, lack: None }
    }

    /// Another look.
    pub(super) fn look(&mut self, policy: Policy, now: Duration, look: Look) -> Verdict {
        if (look.seen, look.sums) != (self.seen, self.sums) {
            (self.seen, self.sums, self.quiet_since) = (look.seen, look.sums, now);
        }
        let lack = policy.lack(&look);
        let since = self.lack.map_or(now, |(since, _)| since);
        self.lack = lack.map(|lack| (since, lack));
        match policy.complete {
            _ if lack.is_some() => Verdict::Companion,
            Complete::Done | Complete::Rename => Verdict::Complete,
            Complete::Settle(time) if now >= self.quiet_since + time => Verdict::Complete,
            Complete::Settle(time) => Verdict::LookAt(self.quiet_since + time),
        }
    }

    /// What has been awaited since this time, or longer.
    pub(super) fn lacks_since(&self, time: Duration) -> Option<Lack> {
        self.lack.filter(|(since, _)| *since <= time).map(|(_, lack)| lack)
    }
}

#[cfg(test)]
mod tests {
    use super::{Look, Policy, Role, Settling, Verdict};
    use crate::spool::root::Seen;
    use crate::spool::section::{Complete, Sums};
    use std::time::Duration;

    const SETTLE: Policy =
        Policy { complete: Complete::Settle(Duration::from_secs(5)), sums: Sums::IfThere };
    const DONE: Policy = Policy { complete: Complete::Done, sums: Sums::Off };
    const RENAME: Policy = Policy { complete: Complete::Rename, sums: Sums::Off };

    fn look(size: u64) -> Look {
        Look { seen: Seen::made_up(1, size, 0), has_done: false, sums: [None; 2] }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_change_begins_the_settle_time_anew() {
        let mut file = Settling::new(at(100), look(1).seen);
        assert_eq!(file.look(SETTLE, at(104), look(1)), Verdict::LookAt(at(105)));
        assert_eq!(file.look(SETTLE, at(104), look(2)), Verdict::LookAt(at(109)));
        // Shorter again, or another file under the name: a change as any other.
        assert_eq!(file.look(SETTLE, at(109), look(1)), Verdict::LookAt(at(114)));
        let other = Look { seen: Seen::made_up(2, 1, 0), ..look(1) };
        assert_eq!(file.look(SETTLE, at(114), other), Verdict::LookAt(at(119)));
        assert_eq!(file.look(SETTLE, at(119), other), Verdict::Complete);
    }

    #[test]
    fn companions_and_names_decide_at_once() {
        let mut file = Settling::new(at(0), look(1).seen);
        assert_eq!(file.look(DONE, at(1000), look(1)), Verdict::Companion);
        let done = Look { has_done: true, ..look(2) };
        assert_eq!(file.look(DONE, at(1000), done), Verdict::Complete);
        assert_eq!(
            Settling::new(at(0), look(1).seen).look(RENAME, at(0), look(1)),
            Verdict::Complete
        );
        let needs = Policy { sums: Sums::Required, ..RENAME };
        assert_eq!(file.look(needs, at(1000), look(2)), Verdict::Companion);
        let sum = |size| Look { sums: [None, Some(Seen::made_up(9, size, 0))], ..look(2) };
        assert_eq!(file.look(needs, at(1000), sum(0)), Verdict::Companion);
        assert_eq!(file.look(needs, at(1000), sum(65)), Verdict::Complete);
    }

    #[test]
    fn a_digest_file_is_to_settle_as_its_file() {
        let sum = |size| Look { sums: [Some(Seen::made_up(9, size, 0)), None], ..look(1) };
        let mut file = Settling::new(at(0), look(1).seen);
        assert_eq!(file.look(SETTLE, at(3), sum(0)), Verdict::Companion);
        assert_eq!(file.look(SETTLE, at(100), sum(0)), Verdict::Companion);
        assert_eq!(file.look(SETTLE, at(101), sum(33)), Verdict::LookAt(at(106)));
        assert_eq!(file.look(SETTLE, at(106), sum(33)), Verdict::Complete);
        // Without one, the file alone counts.
        assert_eq!(file.look(SETTLE, at(107), look(1)), Verdict::LookAt(at(112)));
    }

    #[test]
    fn what_is_awaited_is_known_with_since_when() {
        let needs = Policy { sums: Sums::Required, ..DONE };
        let sum = |size| Look { sums: [Some(Seen::made_up(9, size, 0)), None], ..look(1) };
        let mut file = Settling::new(at(0), look(1).seen);
        assert_eq!(file.lacks_since(at(100)), None);
        for (now, look, words) in [
            (10, look(1), "a: waits for a.md5 or a.sha256"),
            (20, sum(0), "a: waits for a.md5, which is empty"),
            (30, sum(33), "a: waits for a.done"),
        ] {
            assert_eq!(file.look(needs, at(now), look), Verdict::Companion);
            assert_eq!(file.lacks_since(at(9)), None);
            assert_eq!(file.lacks_since(at(10)).map(|lack| lack.words("a")).unwrap(), words);
        }
        file.look(needs, at(40), Look { has_done: true, ..sum(33) });
        assert_eq!(file.lacks_since(at(100)), None);
    }

    #[test]
    fn names_tell_files_from_what_is_beside_them() {
        for (policy, name, role) in [
            (SETTLE, "run/a.root", Role::File),
            (SETTLE, "run/a.root.md5", Role::Companion("run/a.root")),
            (SETTLE, "run/.md5", Role::Passed),
            (SETTLE, ".a.Xy12", Role::Passed),
            (SETTLE, "a.done", Role::File),
            (SETTLE, "a.tmp", Role::File),
            (DONE, "a.done", Role::Companion("a")),
            (DONE, "a.md5", Role::File),
            (RENAME, "a.part", Role::Passed),
            (RENAME, "part", Role::File),
        ] {
            assert_eq!(policy.role(name), role, "{name}");
        }
    }
}
