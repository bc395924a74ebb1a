//! Errors as the operator sees them: what happened, and what to do about it.
//!
//! Only the command line talks to the operator. Everything below has small error types of its own; the
//! step to a [`Fault`] is made where it is known what the user was about to do.

use crate::output::plain;
use downpour_catalog::ErrorClass;
use downpour_transport::identity::IdentityError;
use std::fmt;

/// The exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All receivers have everything.
    Complete = 0,
    /// Some receiver or file failed; the report says which.
    Incomplete = 1,
    /// The command line cannot be meant as it stands.
    Usage = 2,
    /// Nothing was begun.
    CouldNotStart = 3,
}

/// Why a verb ends without a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happened, with the name of the thing it happened to.
    pub what: String,
    /// What to do about it.
    pub todo: String,
    /// The status to end with.
    pub exit: Exit,
    /// For programs, where it is known.
    pub class: Option<ErrorClass>,
}

impl Fault {
    /// The command line cannot be meant as it stands.
    pub fn usage(what: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { what: what.into(), todo: todo.into(), exit: Exit::Usage, class: None }
    }

    /// Nothing was begun.
    pub fn start(what: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { what: what.into(), todo: todo.into(), exit: Exit::CouldNotStart, class: None }
    }

    /// Begun, and ended with less than everything.
    pub fn incomplete(what: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { what: what.into(), todo: todo.into(), exit: Exit::Incomplete, class: None }
    }

    /// The node's key cannot be had.
    pub(crate) fn key(error: &IdentityError) -> Self {
        let todo = match error {
            IdentityError::Io { .. } => "check the folder and your rights there",
            IdentityError::Exposed { .. } => "do so",
            IdentityError::NotAKey { .. } => "restore it, or move it away, and a new one is made",
        };
        let other = "with another $DOWNPOUR_HOME this machine has another key, which nobody knows";
        Self::start(error.to_string(), format!("{todo}; {other}"))
    }

    /// The same, of this class.
    pub fn of(self, class: ErrorClass) -> Self {
        Self { class: Some(class), ..self }
    }
}

/// Between the parts of a list.
const LISTED: &str = "\n  ";

impl fmt::Display for Fault {
    /// Two plain lines, whatever others have put into them; of a list a line each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what: Vec<_> = self.what.split(LISTED).map(plain).collect();
        write!(f, "downpour: {}\n  what to do: {}", what.join(LISTED), plain(&self.todo))
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::{Exit, Fault};
    use downpour_transport::identity::Identity;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_fault_is_two_plain_lines() {
        let fault = Fault::start("port 28800 is in use", "choose other ports with --ports");
        assert_eq!(fault.to_string().lines().count(), 2);
        let odd = "x\u{1b}]52;c;eA==\u{7}\ny";
        let of_others = Fault::incomplete(odd, odd).to_string();
        assert_eq!(of_others.chars().filter(|c| c.is_control()).collect::<String>(), "\n");
        let listed = Fault::start("two cannot be read:\n  a\n  b", "look");
        assert_eq!(listed.to_string().lines().count(), 4);
        assert_eq!(fault.exit as u8, 3);
        assert_eq!(Exit::Usage as u8, 2);
    }

    #[test]
    fn who_has_a_key_is_not_told_to_take_another() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("node.key");
        std::fs::write(&key, "x").unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let fault = Fault::key(&Identity::load_or_create(folder.path()).err().unwrap());
        assert!(fault.todo.starts_with("restore it") && !fault.todo.contains("set $"), "{fault}");
    }
}
