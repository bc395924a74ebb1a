//! Tickets: all that a receiver needs to find its sender and to be let in, as one string
//! (`docs/protocol.md#TICK`).
//!
//! The body is JSON, so that it can be looked at. The digest at the end is there so that a letter lost in a
//! mail is found here and not as a refusal by the sender, and white space is passed over because mail
//! programs break lines.
//!
//! A ticket lets in whoever has it until it expires. It holds no private key.

use crate::units::show_time;
use crate::whole;
use downpour_transport::control::{Token, decode_base64url, encode_base64url};
use downpour_transport::identity::PublicKey;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What every ticket that this version reads begins with.
pub const PREFIX: &str = "downpour1:";
/// Characters of a ticket.
pub const TICKET_LEN_MAX: usize = 64 * 1024;
/// Addresses in a ticket.
pub const ADDRS_MAX: usize = 16;
/// Node keys in a ticket.
pub const ALLOW_MAX: usize = 512;

const PRODUCT: &str = "downpour";
const CHECK_LEN: usize = 4;
const ADDR_LEN_MAX: usize = 262;
const KEY_JSON_LEN: usize = 46;
// The longest ticket fits: base64 makes four characters of three bytes.
const _: () = assert!(
    (ADDRS_MAX * (ADDR_LEN_MAX + 3) + ALLOW_MAX * KEY_JSON_LEN + 500) * 4 / 3 < TICKET_LEN_MAX
);

/// How to reach a sender, and the permission to (`docs/protocol.md#TICK-2`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Where the sender listens: `host:port`, `1.2.3.4:port` or `[::1]:port` each.
    pub addrs: Vec<String>,
    /// The sender's public key: who answers there must be its holder.
    pub key: PublicKey,
    /// What admits.
    pub token: Token,
    /// When it ends, seconds since 1970.
    #[serde(rename = "expires")]
    pub expires_unix_s: u64,
    /// The multicast group, when it was chosen ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<SocketAddr>,
    /// The only nodes that are let in; absent: everybody with the ticket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<PublicKey>>,
}

/// A text is not a ticket, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketError {
    /// It does not begin as tickets do.
    NotATicket,
    /// It begins as tickets of another version do.
    OtherVersion(String),
    /// Longer than any ticket.
    TooLong,
    /// Its end is missing.
    Incomplete,
    /// A character that tickets do not have, and where: counted from 1, without white space.
    BadCharacter(char, usize),
    /// A character is wrong, missing or too many: the digest at the end does not fit.
    Damaged,
    /// The characters are as they were made, but not what they say.
    Nonsense(String),
}

impl fmt::Display for TicketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let again = "copy it again, whole";
        match self {
            Self::NotATicket => write!(f, "this is not a ticket: one begins with `{PREFIX}`"),
            Self::OtherVersion(found) => write!(
                f,
                "this ticket begins with `{found}`, and this downpour reads `{PREFIX}`: install the \
                 version that the sender has"
            ),
            Self::TooLong => {
                write!(f, "this is longer than a ticket ({TICKET_LEN_MAX} characters)")
            }
            Self::Incomplete => write!(f, "the end of the ticket is missing: {again}"),
            Self::BadCharacter(found, at) => {
                write!(f, "character {at} of the ticket is {found:?}, which no ticket has: {again}")
            }
            Self::Damaged => {
                write!(f, "a character of the ticket is wrong, missing or too many: {again}")
            }
            Self::Nonsense(what) => {
                write!(f, "the ticket makes no sense ({what}): ask the sender for a new one")
            }
        }
    }
}

impl std::error::Error for TicketError {}

/// A ticket's time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// When it ended, seconds since 1970.
    pub at_unix_s: u64,
    /// For how long it has been over.
    pub since: Duration,
}

impl fmt::Display for Expired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.since();
        write!(f, "{since}: ask the sender for a new one (or set this machine's clock)")
    }
}

impl Expired {
    /// The same, for whom what is to be done is told otherwise.
    pub fn since(&self) -> String {
        format!("the ticket expired {} ago, on {}", span(self.since), utc(self.at_unix_s))
    }
}

impl std::error::Error for Expired {}

/// A ticket's file cannot be written or read.
#[derive(Debug)]
pub enum TicketFileError {
    /// The operating system refused.
    Io(PathBuf, io::Error),
    /// What is in it is not a ticket.
    Ticket(PathBuf, TicketError),
}

impl fmt::Display for TicketFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Ticket(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for TicketFileError {}

impl Ticket {
    /// `Err` when its time is over at `now`, by the clock of who asks (`docs/protocol.md#TICK-3`).
    pub fn check_time(&self, now: SystemTime) -> Result<(), Expired> {
        // A clock before 1970 is wrong; the sender's clock decides then.
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        match now.checked_sub(self.expires_unix_s) {
            None => Ok(()),
            Some(since) => {
                let since = Duration::from_secs(since);
                Err(Expired { at_unix_s: self.expires_unix_s, since })
            }
        }
    }

    /// Whether what it says can be meant. [`FromStr`] has asked already.
    pub fn check(&self) -> Result<(), TicketError> {
        let nonsense = |what: String| Err(TicketError::Nonsense(what));
        if self.addrs.is_empty() || self.addrs.len() > ADDRS_MAX {
            return nonsense(format!("{} addresses, not 1 to {ADDRS_MAX}", self.addrs.len()));
        }
        if let Some(addr) = self.addrs.iter().find(|addr| !is_addr(addr)) {
            return nonsense(format!("`{addr}` is not HOST:PORT"));
        }
        if self.allow.as_ref().is_some_and(|keys| keys.len() > ALLOW_MAX) {
            return nonsense(format!("more than {ALLOW_MAX} node keys"));
        }
        if let Some(group) = self.group
            && !group.ip().is_multicast()
        {
            return nonsense(format!("{group} is not a multicast group"));
        }
        Ok(())
    }

    /// Writes it to a file that only its owner can read (`docs/protocol.md#TICK-4`), in one step: a reader sees the old file
    /// or the new one, whole. A pipe or a device is written to.
    pub fn write_file(&self, path: &Path) -> Result<(), TicketFileError> {
        whole::write(path, 0o600, format!("{self}\n").as_bytes())
            .map_err(|error| TicketFileError::Io(path.to_owned(), error))
    }

    /// Reads the file that [`Self::write_file`] wrote.
    pub fn read_file(path: &Path) -> Result<Self, TicketFileError> {
        let failed = |error| TicketFileError::Io(path.to_owned(), error);
        let len = fs::metadata(path).map_err(failed)?.len();
        if len > 2 * TICKET_LEN_MAX as u64 {
            return Err(TicketFileError::Ticket(path.to_owned(), TicketError::TooLong));
        }
        let text = fs::read(path).map_err(failed)?;
        let text = String::from_utf8_lossy(&text);
        text.parse().map_err(|error| TicketFileError::Ticket(path.to_owned(), error))
    }
}

/// Whether it is one that a ticket may name: `HOST:PORT`.
pub(crate) fn is_addr(addr: &str) -> bool {
    if addr.len() > ADDR_LEN_MAX {
        return false;
    }
    let Some((host, port)) = addr.rsplit_once(':') else { return false };
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let has_port = digits && port.parse::<u16>().is_ok_and(|port| port != 0);
    let is_name = |host: &str| {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !host.is_empty() && host.bytes().all(letter)
    };
    // A colon in the host is that of an IPv6 address, which stands in brackets.
    has_port && (is_name(host) || addr.parse::<SocketAddr>().is_ok())
}

impl fmt::Display for Ticket {
    /// The ticket itself: a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_vec(self).map_err(|_| fmt::Error)?;
        let text = format!("{PREFIX}{}", encode_base64url(&json));
        write!(f, "{text}.{}", check_of(&text))
    }
}

fn check_of(text: &str) -> String {
    encode_base64url(&blake3::hash(text.as_bytes()).as_bytes()[..CHECK_LEN])
}

/// The text of a ticket is read as `docs/protocol.md#TICK-1` says.
impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let text: String =
            text.chars().filter(|c| !c.is_whitespace()).take(TICKET_LEN_MAX + 1).collect();
        if text.len() > TICKET_LEN_MAX {
            return Err(TicketError::TooLong);
        }
        let Some(rest) = text.strip_prefix(PREFIX) else { return Err(other_prefix(&text)) };
        let strange = |c: &char| !(c.is_ascii_alphanumeric() || "-_.".contains(*c));
        if let Some((at, found)) = rest.chars().enumerate().find(|(_, c)| strange(c)) {
            return Err(TicketError::BadCharacter(found, PREFIX.len() + at + 1));
        }
        let (body, check) = rest.split_once('.').ok_or(TicketError::Incomplete)?;
        let signed = &text[..PREFIX.len() + body.len()];
        let expected = check_of(signed);
        if check.len() < expected.len() && expected.starts_with(check) {
            return Err(TicketError::Incomplete);
        }
        if check != expected {
            return Err(TicketError::Damaged);
        }
        let nonsense = |error: &dyn fmt::Display| TicketError::Nonsense(error.to_string());
        let json = decode_base64url(body).ok_or_else(|| nonsense(&"not base64url"))?;
        let ticket: Self = serde_json::from_slice(&json).map_err(|error| nonsense(&error))?;
        ticket.check()?;
        Ok(ticket)
    }
}

fn other_prefix(text: &str) -> TicketError {
    let version = text.strip_prefix(PRODUCT).and_then(|rest| rest.split_once(':'));
    match version {
        Some((digits, _)) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            TicketError::OtherVersion(format!("{PRODUCT}{digits}:"))
        }
        _ => TicketError::NotATicket,
    }
}

/// A length of time in its two largest units.
fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest} s"),
        (0, 0, _) => format!("{minutes} min {rest} s"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// `2026-11-20 10:15:00 UTC`.
fn utc(unix_s: u64) -> String {
    let micros = i64::try_from(unix_s).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    show_time(micros).replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::{ALLOW_MAX, PREFIX, TICKET_LEN_MAX, Ticket, TicketError, check_of, span, utc};
    use downpour_transport::control::{Token, encode_base64url};
    use downpour_transport::identity::{Identity, PublicKey};
    use proptest::prelude::{any, proptest};
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, UNIX_EPOCH};

    fn ticket() -> Ticket {
        Ticket {
            addrs: vec!["sender.example:4711".into(), "[fe80::1]:4711".into()],
            key: PublicKey::from_bytes([7; 32]),
            token: Token::from_bytes([9; 16]),
            expires_unix_s: 1_800_000_000,
            group: Some("239.1.2.3:4000".parse().unwrap()),
            allow: None,
        }
    }

    /// A ticket of any JSON, with a digest that fits.
    fn around(json: &str) -> String {
        let text = format!("{PREFIX}{}", encode_base64url(json.as_bytes()));
        format!("{text}.{}", check_of(&text))
    }

    // docs/protocol.md#TICK-1: white space.
    #[test]
    fn a_ticket_survives_its_text_and_broken_lines() {
        let text = ticket().to_string();
        assert_eq!(text.parse(), Ok(ticket()));
        let (one, two) = text.split_at(70);
        assert_eq!(format!("  {one}\r\n\t{two}\n").parse(), Ok(ticket()));
        let bare = Ticket { group: None, ..ticket() };
        assert_eq!(bare.to_string().parse(), Ok(bare));
    }

    /// Old receivers must read tickets of new senders as long as the prefix stays (`docs/protocol.md#TICK-1`).
    #[test]
    fn the_text_stays_the_same_from_version_to_version() {
        let text = "downpour1:eyJhZGRycyI6WyJzZW5kZXIuZXhhbXBsZTo0NzExIiwiW2ZlODA6OjFdOjQ3MTEiXSwia2V5IjoiQndj\
                    SEJ3Y0hCd2NIQndjSEJ3Y0hCd2NIQndjSEJ3Y0hCd2NIQndjSEJ3YyIsInRva2VuIjoiQ1FrSkNRa0pDUWtKQ1FrSkNR\
                    a0pDUSIsImV4cGlyZXMiOjE4MDAwMDAwMDAsImdyb3VwIjoiMjM5LjEuMi4zOjQwMDAifQ.";
        assert!(ticket().to_string().starts_with(text), "{}", ticket());
        let newer = r#"{"addrs":["a:1"],"key":"KEY","token":"TOKEN","expires":5,"colour":"blue"}"#
            .replace("KEY", &ticket().key.to_string())
            .replace("TOKEN", &ticket().token.to_text());
        assert_eq!(around(&newer).parse::<Ticket>().unwrap().addrs, ["a:1"]);
    }

    // docs/protocol.md#TICK-1: the digest.
    #[test]
    fn every_wrong_character_is_found() {
        let text = ticket().to_string();
        for at in PREFIX.len()..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(changed.parse::<Ticket>().is_err(), "{at}");
            let missing = format!("{}{}", &text[..at], &text[at + 1..]);
            assert!(missing.parse::<Ticket>().is_err(), "{at}");
            let error = text[..at].parse::<Ticket>().unwrap_err();
            assert_eq!(error, TicketError::Incomplete, "{at}");
        }
        let error = text.replace('e', "*").parse::<Ticket>();
        assert_eq!(error, Err(TicketError::BadCharacter('*', 11)));
    }

    #[test]
    fn what_is_no_ticket_is_told_so() {
        let error = |text: &str| text.parse::<Ticket>().unwrap_err();
        for text in ["", "hello", "downpour", "downpour:abc", "downpourx:abc", "/tmp/ticket"] {
            assert_eq!(error(text), TicketError::NotATicket, "{text}");
        }
        assert_eq!(error("downpour12:abc"), TicketError::OtherVersion("downpour12:".into()));
        assert_eq!(error(&"x".repeat(TICKET_LEN_MAX + 1)), TicketError::TooLong);
        assert!(matches!(error(&around("{}")), TicketError::Nonsense(_)));
        for (from, to) in [
            ("sender.example:4711", "sender.example"),
            ("sender.example:4711", "sender.example:0"),
            ("sender.example:4711", "sender.example:70000"),
            ("sender.example:4711", "a b:1"),
            ("[fe80::1]:4711", "fe80::1:4711"),
            ("239.1.2.3:4000", "10.1.2.3:4000"),
        ] {
            let json = serde_json::to_string(&ticket()).unwrap().replace(from, to);
            assert!(matches!(error(&around(&json)), TicketError::Nonsense(_)), "{to}");
        }
    }

    #[test]
    fn the_largest_ticket_fits() {
        let keys = (0..ALLOW_MAX).map(|_| Identity::generate().public_key()).collect();
        let host = format!("{}:65535", "h".repeat(253));
        let large = Ticket { addrs: vec![host; 16], allow: Some(keys), ..ticket() };
        assert_eq!(large.to_string().parse(), Ok(large));
    }

    // docs/protocol.md#TICK-3
    #[test]
    fn an_expired_ticket_says_since_when() {
        let at = |unix_s| UNIX_EPOCH + Duration::from_secs(unix_s);
        assert_eq!(ticket().check_time(at(1_799_999_999)), Ok(()));
        let expired = ticket().check_time(at(1_800_000_000 + 3 * 3600 + 5 * 60)).unwrap_err();
        let text = expired.to_string();
        assert!(
            text.starts_with("the ticket expired 3 h 5 min ago, on 2027-01-15 08:00:00 UTC"),
            "{text}"
        );
        assert!(text.contains("ask the sender for a new one"), "{text}");
    }

    #[test]
    fn dates_and_spans_are_right() {
        for (unix_s, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(unix_s), text);
        }
        assert_eq!(span(Duration::from_secs(7)), "7 s");
        assert_eq!(span(Duration::from_secs(67)), "1 min 7 s");
        assert_eq!(span(Duration::from_secs(90_000)), "1 d 1 h");
        let _ = utc(u64::MAX);
    }

    // docs/protocol.md#TICK-4
    #[test]
    fn a_ticket_file_is_for_its_owner_only() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("ticket");
        std::fs::write(&path, "an old one").unwrap();
        ticket().write_file(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Ticket::read_file(&path).unwrap(), ticket());
        assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 1);

        std::fs::write(&path, [0xff; 9]).unwrap();
        let error = Ticket::read_file(&path).unwrap_err().to_string();
        assert!(error.contains("not a ticket") && error.contains("/ticket"), "{error}");
        let error = ticket().write_file(&tmp.path().join("no/such")).unwrap_err().to_string();
        assert!(error.contains("no/such"), "{error}");
    }

    // docs/protocol.md#TICK-4
    #[test]
    fn the_token_is_not_shown_by_debug() {
        let text = format!("{:?}", ticket());
        assert!(!text.contains(&ticket().token.to_text()) && !text.contains("[9,"), "{text}");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in any::<String>()) {
            let _ = text.parse::<Ticket>();
            let _ = format!("{PREFIX}{text}").parse::<Ticket>();
            let _ = around(&text).parse::<Ticket>();
        }

        #[test]
        fn no_json_makes_it_panic(addr in any::<String>(), expires in any::<u64>(), at in any::<u64>()) {
            let made = Ticket { addrs: vec![addr], expires_unix_s: expires, ..ticket() };
            if let Ok(read) = made.to_string().parse::<Ticket>() {
                let _ = read.check_time(UNIX_EPOCH + Duration::from_secs(at >> 2)).map_err(|e| e.to_string());
                assert_eq!(read, made);
            }
        }
    }
}
