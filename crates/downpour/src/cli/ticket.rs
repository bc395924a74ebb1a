//! `downpour ticket`: tickets made ahead of time, so that receivers and sender may start in any order.

use super::{Exit, Fault, TicketText};
use crate::home::Home;
use crate::ticket::{Expired, Ticket, TicketError};
use crate::units::{HostPort, parse_duration, show_duration};
use clap::{Args, Subcommand};
use downpour_transport::control::Token;
use downpour_transport::identity::{Identity, PublicKey};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Make a ticket ahead of time, or show what one says
#[derive(Debug, Args)]
pub(super) struct TicketArgs {
    #[command(subcommand)]
    verb: TicketVerb,
}

#[derive(Debug, Subcommand)]
enum TicketVerb {
    New(NewArgs),
    Show(ShowArgs),
    /// Print this machine's node key, by which a site names it as a receiver
    Key,
}

/// Make a ticket for a later `downpour send --ticket FILE` on this machine
#[derive(Debug, Args)]
struct NewArgs {
    /// Where the sender will listen, as receivers reach it; may be given several times
    #[arg(long, value_name = "HOST:PORT", required = true)]
    address: Vec<HostPort>,
    /// Multicast group of the session [default: chosen by `send`]
    #[arg(long, value_name = "ADDR:PORT", value_parser = super::network::parse_group)]
    group: Option<SocketAddr>,
    /// How long the ticket admits
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "24h")]
    expires: Duration,
    /// Node key that is let in, as `downpour ticket key` prints it there; may be given several times
    /// [default: everybody who has the ticket]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    allow: Vec<PublicKey>,
    /// File to write; only its owner can read it. An earlier ticket is replaced, another file is not
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Show what a ticket says, without its secret
#[derive(Debug, Args)]
struct ShowArgs {
    /// The ticket; @FILE reads it from a file, - from standard input
    #[arg(value_name = "TICKET")]
    ticket: String,
}

impl TicketArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        match self.verb {
            TicketVerb::New(args) => args.run(),
            TicketVerb::Show(args) => args.run(),
            TicketVerb::Key => {
                println!("{}", own_identity()?.public_key());
                Ok(Exit::Complete)
            }
        }
    }
}

impl NewArgs {
    fn run(self) -> Result<Exit, Fault> {
        if let Some(port) = self.address.iter().find(|address| address.port == 0) {
            return Err(Fault::usage(
                format!("`{port}` has no port that receivers could connect to"),
                "give the port that the sender will listen on; `downpour ports` lists the usual ones",
            ));
        }
        let is_no_host = |address: &&HostPort| {
            let ip = address.host.parse().map(|ip: IpAddr| ip.to_canonical());
            ip.is_ok_and(|ip| ip.is_unspecified() || ip.is_multicast())
        };
        if let Some(wrong) = self.address.iter().find(is_no_host) {
            return Err(Fault::usage(
                format!("`{wrong}` is no address that receivers could connect to"),
                "give one by which they reach this machine; `downpour send --listen` may be another",
            ));
        }
        if let Some(group) = self.group {
            super::network::check_group(group, true)?;
        }
        if self.expires.is_zero() {
            let todo = "give the time for which it shall admit, such as 24h";
            return Err(Fault::usage("a ticket with --expires 0s admits nobody", todo));
        }
        if self.out.as_os_str() == "-" {
            // What follows tells of a file, and elsewhere `-` is none.
            let todo = "give --out the name of a file, from which sender and receivers can read it";
            return Err(Fault::usage("a ticket is not written to standard output", todo));
        }
        check_place(&self.out)?;
        let identity = own_identity()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ticket = Ticket {
            addrs: self.address.iter().map(ToString::to_string).collect(),
            key: identity.public_key(),
            token: Token::random().ok_or_else(|| {
                Fault::start("the system gives no random numbers", "check /dev/urandom")
            })?,
            expires_unix_s: (now + self.expires).as_secs(),
            group: self.group,
            allow: (!self.allow.is_empty()).then_some(self.allow),
        };
        ticket.check().map_err(|error| {
            let what = match error {
                TicketError::Nonsense(what) => what,
                error => error.to_string(),
            };
            Fault::usage(what, "correct the options")
        })?;
        let replaced = admitting(&self.out);
        ticket.write_file(&self.out).map_err(|e| {
            Fault::start(e.to_string(), "choose a file in a folder that you may write to")
        })?;
        if let Some(left) = replaced {
            let left = show_duration(left);
            eprintln!(
                "notice: it replaces one that admits for {left} more: give receivers this one"
            );
        }
        println!("{}: admits for {}", self.out.display(), show_duration(self.expires));
        println!("sender:    downpour send PATH… --ticket {}", self.out.display());
        println!("receivers: downpour receive @{} --out DIR", self.out.display());
        Ok(Exit::Complete)
    }
}

/// For how long a ticket still admits.
fn left(ticket: &Ticket) -> Result<Duration, Expired> {
    let now = SystemTime::now();
    ticket.check_time(now)?;
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Ok(Duration::from_secs(ticket.expires_unix_s.saturating_sub(now)))
}

/// For how long the ticket in a file still admits, if one is there that does. A pipe is not read.
fn admitting(file: &Path) -> Option<Duration> {
    let ticket = file.is_file().then(|| Ticket::read_file(file).ok())??;
    left(&ticket).ok()
}

/// Refuses a file that holds something else than a ticket.
fn check_place(file: &Path) -> Result<(), Fault> {
    let holds = std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() > 0);
    // A pipe is not read.
    match holds.then(|| Ticket::read_file(file)) {
        Some(Err(error)) => {
            let todo = "give --out another file: this one is not replaced";
            Err(Fault::usage(format!("it would replace what is no ticket: {error}"), todo))
        }
        _ => Ok(()),
    }
}

/// This user's node key; it is made when there is none.
fn own_identity() -> Result<Identity, Fault> {
    let advice = "set $DOWNPOUR_HOME to a folder of your own";
    let start = |error: &dyn std::error::Error| Fault::start(error.to_string(), advice);
    let home = Home::locate().map_err(|e| start(&e))?;
    let folder = home.config().map_err(|e| start(&e))?;
    Identity::load_or_create(folder).map_err(|e| Fault::key(&e))
}

impl ShowArgs {
    fn run(self) -> Result<Exit, Fault> {
        let text = TicketText::read(&self.ticket)?;
        let ticket: Ticket =
            text.as_str().parse().map_err(|error: crate::ticket::TicketError| {
                Fault::usage(error.to_string(), "copy the whole line that the sender printed")
            })?;
        println!("sender   {}", ticket.addrs.join(", "));
        println!("key      {}", ticket.key);
        if let Some(group) = ticket.group {
            println!("group    {group}");
        }
        match left(&ticket) {
            Ok(left) => println!("admits   for {} more", show_duration(left)),
            Err(expired) => println!("admits   nobody: {expired}"),
        }
        match &ticket.allow {
            None => println!("allowed  everybody who has it"),
            Some(keys) => keys.iter().for_each(|key| println!("allowed  {key}")),
        }
        Ok(Exit::Complete)
    }
}

#[cfg(test)]
mod tests {
    use super::{NewArgs, admitting, check_place};
    use crate::cli::Exit;
    use crate::ticket::Ticket;
    use clap::Parser as _;
    use downpour_transport::control::Token;
    use downpour_transport::identity::PublicKey;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[derive(clap::Parser)]
    struct Making {
        #[command(flatten)]
        new: NewArgs,
    }

    #[test]
    fn an_address_that_is_nobodys_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("ticket");
        for address in
            ["h:0", "0.0.0.0:7", "[::]:7", "239.1.2.3:7", "[ff15::1]:7", "[::ffff:0.0.0.0]:7"]
        {
            let words = ["new", "--address", "192.0.2.7:7", "--address", address, "--out"];
            let words = words.into_iter().chain([out.to_str().unwrap()]);
            let refused = Making::try_parse_from(words).unwrap().new.run().unwrap_err();
            assert_eq!(refused.exit, Exit::Usage, "{address}");
            assert!(refused.what.contains(address), "{refused}");
        }
        let words = ["new", "--address", "h:7", "--expires", "0s", "--out", out.to_str().unwrap()];
        let refused = Making::try_parse_from(words).unwrap().new.run().unwrap_err();
        assert!(refused.exit == Exit::Usage && refused.what.contains("--expires"), "{refused}");
        let words = ["new", "--address", "h:7", "--out", "-"];
        assert_eq!(Making::try_parse_from(words).unwrap().new.run().unwrap_err().exit, Exit::Usage);
        assert!(!out.exists());
    }

    #[test]
    fn a_ticket_that_still_admits_is_known_before_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ticket");
        assert_eq!(admitting(&file), None);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        for (expires_unix_s, admits) in [(now - 1, false), (now + 3600, true)] {
            let ticket = Ticket {
                addrs: vec!["h:7".to_owned()],
                key: PublicKey::from_bytes([7; 32]),
                token: Token::from_bytes([9; 16]),
                expires_unix_s,
                group: None,
                allow: None,
            };
            ticket.write_file(&file).unwrap();
            assert_eq!(admitting(&file).is_some(), admits);
        }
        assert!(check_place(&file).is_ok());
        std::fs::write(&file, "something else").unwrap();
        assert_eq!(admitting(&file), None);
        assert_eq!(check_place(&file).unwrap_err().exit, Exit::Usage);
        std::fs::write(&file, "").unwrap();
        assert!(check_place(&file).is_ok(), "there is nothing to lose, as after mktemp");
    }
}
