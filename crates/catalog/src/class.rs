//! The taxonomy of errors: what went wrong, whose fault it is, whether to try again.
//!
//! Codes and names are stable: they are stored, exported, searched for and alarmed on. The hundreds are the
//! scope. New classes are added, none is given another meaning.
//!
//! Only an error whose scope is the file can put a file into quarantine. Failures of a source, a destination,
//! the network or our own side say nothing about the file, and are tried again without limit.

use crate::code::coded;

/// Where the fault lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// This file alone.
    File,
    /// The endpoint it comes from.
    Source,
    /// The endpoint it goes to.
    Destination,
    /// What is between them.
    Network,
    /// Our own program, its machine or its database.
    Us,
}

coded! {
    /// What went wrong. The hundreds of a code are its scope.
    pub enum ErrorClass: "error class" {
        /// The file is no longer at its source.
        FileGone = 101 "file-gone",
        /// Its content changed while it was read.
        FileChanged = 102 "file-changed",
        /// It may not be read.
        FileUnreadable = 103 "file-unreadable",
        /// The destination cannot have a file of this name.
        NameRefused = 104 "name-refused",
        /// Its producer, or its source, says another digest of it.
        DigestDiffers = 105 "digest-differs",
        /// Another file of this name, with other content, is at the destination.
        VersionConflict = 106 "version-conflict",
        /// A command of its rule failed on it. Kept for its number: no file has it.
        CommandFailed = 107 "command-failed",
        /// The source cannot be reached.
        SourceUnreachable = 201 "source-unreachable",
        /// The source refuses us.
        SourceRefused = 202 "source-refused",
        /// The source's storage fails to read.
        SourceReadFailed = 203 "source-read-failed",
        /// The destination cannot be reached.
        DestinationUnreachable = 301 "destination-unreachable",
        /// The destination refuses us.
        DestinationRefused = 302 "destination-refused",
        /// The destination is full.
        DestinationFull = 303 "destination-full",
        /// The destination's storage is read-only.
        DestinationReadOnly = 304 "destination-read-only",
        /// The destination's storage fails to write.
        DestinationWriteFailed = 305 "destination-write-failed",
        /// Nothing came for too long.
        TimedOut = 401 "timed-out",
        /// A connection broke.
        ConnectionLost = 402 "connection-lost",
        /// Bytes arrived other than they were sent. Kept for its number: no file has it.
        CorruptedInFlight = 403 "corrupted-in-flight",
        /// No trusted connection: certificate expired or not the one pinned.
        NotTrusted = 404 "not-trusted",
        /// The daemon stopped in the middle.
        Interrupted = 501 "interrupted",
        /// The mover said that it was done, and it was not.
        FalseSuccess = 502 "false-success",
        /// The catalog could not be reached.
        CatalogUnreachable = 503 "catalog-unreachable",
        /// This machine lacks memory, descriptors or disk.
        OutOfResources = 504 "out-of-resources",
        /// A fault in our program.
        Internal = 505 "internal",
    }
}

impl ErrorClass {
    /// Where the fault lies.
    pub const fn scope(self) -> Scope {
        match self.code() / 100 {
            1 => Scope::File,
            2 => Scope::Source,
            3 => Scope::Destination,
            4 => Scope::Network,
            _ => Scope::Us,
        }
    }

    /// Whether another attempt can go better with nobody doing anything.
    pub const fn is_retried(self) -> bool {
        !matches!(
            self,
            Self::FileGone | Self::NameRefused | Self::DigestDiffers | Self::VersionConflict
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{ErrorClass, Scope};

    #[test]
    fn codes_and_names_are_unique_and_parse_back() {
        for (index, class) in ErrorClass::ALL.iter().enumerate() {
            assert_eq!(ErrorClass::from_code(class.code().into()), Some(*class));
            assert_eq!(class.name().parse(), Ok(*class));
            let later = &ErrorClass::ALL[index + 1..];
            assert!(later.iter().all(|other| other.name() != class.name()), "{class}");
        }
        let unknown = "disk-full".parse::<ErrorClass>().unwrap_err().to_string();
        assert!(
            unknown.contains("`disk-full` is no error class; known are file-gone,"),
            "{unknown}"
        );
    }

    /// What is stored in catalogs out there. Lines may be added, none changed.
    #[test]
    fn codes_are_those_that_were_given() {
        let given = include_str!("class.txt");
        let now: Vec<_> = ErrorClass::ALL.iter().map(|c| format!("{} {c}", c.code())).collect();
        assert_eq!(given.lines().collect::<Vec<_>>(), now);
    }

    #[test]
    fn what_is_not_retried_is_the_files_own_fault() {
        for class in ErrorClass::ALL.iter().filter(|class| !class.is_retried()) {
            assert_eq!(class.scope(), Scope::File, "{class}");
        }
    }
}
