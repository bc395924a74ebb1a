//! What follows from a failure: when the file is tried again, whether it is set apart, whether the endpoint is to blame.
//!
//! One table by error class. Nothing here is a count of tries after which a file is given up: only errors whose scope is
//! the file set it apart, those that another attempt cannot cure at once, the others when they happened often.

use downpour_catalog::{Attempt, ErrorClass, Reason, Scope};
use downpour_proto::transfer::{Backoff, BreakerConfig};
use downpour_proto::{Duration, Rng};

/// Failures of the file's own that can pass, until it is set apart.
pub(super) const FILE_TRIES_MAX: u32 = 5;

/// No file waits for longer than this.
pub(super) const WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(3600);

const fn backoff(first_s: u64, cap_s: u64) -> Backoff {
    let (first, cap) = (Duration::from_secs(first_s), Duration::from_secs(cap_s));
    Backoff { first, factor: 2.0, cap, jitter: 0.5 }
}

/// The breaker of a link: three failures in a row, then a minute at most between probes.
pub(super) const BREAKER: BreakerConfig =
    BreakerConfig { failures: 3, open: backoff(2, 60), probe_time: Duration::from_secs(120) };

/// That of what the other site takes: each refusal counts, and then there is one batch at a time to ask whether it does again.
pub(super) const REFUSALS: BreakerConfig =
    BreakerConfig { failures: 1, open: backoff(2, 300), probe_time: Duration::from_secs(120) };

/// How long to wait, by class.
pub(super) const fn waits(class: ErrorClass) -> Backoff {
    use ErrorClass as E;
    match class {
        // The source's own machine, or a file that is still being written.
        E::FileChanged | E::FileUnreadable | E::CommandFailed => backoff(10, 600),
        E::SourceReadFailed | E::DestinationWriteFailed | E::DestinationReadOnly => {
            backoff(10, 600)
        }
        E::DestinationFull | E::OutOfResources => backoff(15, 300),
        // A person has to do something.
        E::SourceRefused | E::DestinationRefused | E::NotTrusted => backoff(30, 900),
        E::CorruptedInFlight | E::FalseSuccess | E::Interrupted => backoff(1, 60),
        _ => backoff(2, 120),
    }
}

/// How long a file waits that failed in its attempt number `tries`: longer each time, and as long as the other side said.
pub(super) fn pause(
    class: ErrorClass,
    tries: u32,
    after: Option<std::time::Duration>,
    rng: &mut Rng,
) -> std::time::Duration {
    let own = waits(class).wait(tries, rng);
    own.max(after.unwrap_or_default()).min(WAIT_MAX)
}

/// What becomes of a file that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is tried again; the reason that it shows meanwhile.
    Again(Reason),
    /// It is set apart.
    SetApart,
}

/// What becomes of a file that failed with this class, `own` times by a fault of its own.
pub(super) fn judge(class: ErrorClass, own: u32) -> Verdict {
    let too_often = class.scope() == Scope::File && own >= FILE_TRIES_MAX;
    match class {
        _ if !class.is_retried() || too_often => Verdict::SetApart,
        ErrorClass::DestinationFull => Verdict::Again(Reason::NoSpace),
        _ => Verdict::Again(Reason::BackOff),
    }
}

/// How often a file has failed by a fault of its own, with this time, after these attempts.
pub(super) fn own_failures(before: &[Attempt]) -> u32 {
    let errors = before.iter().filter_map(|attempt| attempt.error);
    let own = errors.filter(|error| error.scope() == Scope::File).count() + 1;
    u32::try_from(own).unwrap_or(u32::MAX)
}

/// What an error in reading a file says.
pub(crate) fn source_class(error: &std::io::Error) -> ErrorClass {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NOTDIR) => ErrorClass::FileGone,
        Some(Errno::ACCESS | Errno::PERM | Errno::LOOP) => ErrorClass::FileUnreadable,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => ErrorClass::OutOfResources,
        _ => ErrorClass::SourceReadFailed,
    }
}

/// Whether a failure says something about the other site, or the way to it.
pub(super) const fn blames_link(class: ErrorClass) -> bool {
    use ErrorClass as E;
    matches!(
        class,
        E::DestinationUnreachable
            | E::SourceUnreachable
            | E::TimedOut
            | E::ConnectionLost
            | E::NotTrusted
            | E::DestinationRefused
            | E::DestinationReadOnly
    )
}

/// Whether a file is refused for the other site's sake, which would refuse the next one, too; for want of room, one as large.
pub(super) const fn blames_site(class: ErrorClass) -> bool {
    use ErrorClass as E;
    matches!(class, E::DestinationFull | E::OutOfResources | E::CatalogUnreachable)
}

#[cfg(test)]
mod tests {
    use super::{
        FILE_TRIES_MAX, Verdict, WAIT_MAX, blames_link, blames_site, judge, own_failures, pause,
        source_class, waits,
    };
    use downpour_catalog::{Attempt, ErrorClass, FileId, LogId, Outcome, Reason, Scope, Time};
    use downpour_proto::Rng;
    use std::time::Duration;

    #[test]
    fn only_the_files_own_errors_set_it_apart_however_often_others_come() {
        for class in ErrorClass::ALL {
            let (first, last) = (judge(*class, 1), judge(*class, u32::MAX));
            let of_file = class.scope() == Scope::File;
            assert_eq!(last == Verdict::SetApart, of_file, "{class}");
            assert_eq!(first == Verdict::SetApart, !class.is_retried(), "{class}");
            let before = judge(*class, FILE_TRIES_MAX - 1);
            assert_eq!(before == Verdict::SetApart, !class.is_retried(), "{class}");
        }
    }

    #[test]
    fn what_others_did_to_a_file_is_not_counted_against_it() {
        let attempt = |error| Attempt {
            file: FileId(1),
            number: 1,
            transfer: None,
            writer: LogId(1),
            started: Time(1),
            ended: Time(2),
            bytes: 0,
            outcome: Outcome::Failed,
            error: Some(error),
            session: None,
        };
        let mut before = vec![attempt(ErrorClass::DestinationFull); 9];
        let class = ErrorClass::FileUnreadable;
        let again = Verdict::Again(Reason::BackOff);
        for _ in 1..FILE_TRIES_MAX {
            assert_eq!(judge(class, own_failures(&before)), again);
            before.push(attempt(class));
        }
        assert_eq!(judge(class, own_failures(&before)), Verdict::SetApart);
    }

    #[test]
    fn only_what_an_error_says_of_the_file_is_held_against_it() {
        use ErrorClass as E;
        use rustix::io::Errno;
        for (errno, class) in [
            (Errno::NOENT, E::FileGone),
            (Errno::ACCESS, E::FileUnreadable),
            (Errno::MFILE, E::OutOfResources),
            (Errno::IO, E::SourceReadFailed),
            (Errno::STALE, E::SourceReadFailed),
        ] {
            assert_eq!(source_class(&errno.into()), class, "{errno}");
        }
    }

    #[test]
    fn every_class_waits_longer_and_longer_and_never_a_day() {
        for class in ErrorClass::ALL {
            let waits = waits(*class);
            assert!(!waits.first.is_zero() && waits.cap > waits.first, "{class}");
            assert!(
                waits.cap.as_secs() <= 900.min(WAIT_MAX.as_secs()) && waits.jitter > 0.0,
                "{class}"
            );
        }
    }

    #[test]
    fn who_says_when_to_ask_again_is_not_asked_as_often_for_ever() {
        let mut rng = Rng::new(1);
        let said = Some(Duration::from_secs(30));
        let mut pause = |tries, said| pause(ErrorClass::DestinationFull, tries, said, &mut rng);
        assert_eq!(pause(1, said), Duration::from_secs(30));
        assert!(pause(10, said) > Duration::from_secs(100));
        assert!(pause(1, None) < Duration::from_secs(30));
        assert_eq!(pause(1, Some(Duration::MAX)), WAIT_MAX);
    }

    #[test]
    fn a_file_never_blames_the_link_nor_its_site() {
        let blames = |class: &&ErrorClass| blames_link(**class) || blames_site(**class);
        for class in ErrorClass::ALL.iter().filter(blames) {
            assert_ne!(class.scope(), Scope::File, "{class}");
        }
    }
}
