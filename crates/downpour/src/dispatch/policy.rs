//! What follows from a failure: when the file is tried again, whether it is set apart, whether the endpoint is to blame.
//!
//! One table by error class. Nothing here is a count of tries after which a file is given up: only errors whose scope is
//! the file set it apart, those that another attempt cannot cure at once, the others when they happened often.

use downpour_catalog::{ErrorClass, Reason, Scope};
use downpour_proto::Duration;
use downpour_proto::transfer::{Backoff, BreakerConfig};

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

/// What becomes of a file that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is tried again; the reason that it shows meanwhile.
    Again(Reason),
    /// It is set apart.
    SetApart,
}

/// What becomes of a file that failed with this class, in its attempt number `tries`.
pub(super) fn judge(class: ErrorClass, tries: u32) -> Verdict {
    let too_often = class.scope() == Scope::File && tries >= FILE_TRIES_MAX;
    match class {
        _ if !class.is_retried() || too_often => Verdict::SetApart,
        ErrorClass::DestinationFull => Verdict::Again(Reason::NoSpace),
        _ => Verdict::Again(Reason::BackOff),
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

#[cfg(test)]
mod tests {
    use super::{FILE_TRIES_MAX, Verdict, WAIT_MAX, blames_link, judge, waits};
    use downpour_catalog::{ErrorClass, Scope};

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
    fn a_file_never_blames_the_link() {
        for class in ErrorClass::ALL.iter().filter(|class| blames_link(**class)) {
            assert_ne!(class.scope(), Scope::File, "{class}");
        }
    }
}
