//! `downpour ticket`: makes tickets ahead of time, and says what is in one.
//!
//! A ticket made here is for a sender on this machine: it holds this node's public key, so that whoever
//! joins with it talks to this node or to nobody.

use super::fault::{home_fault, identity_fault};
use super::network::check_group;
use super::{Exit, Fault, TicketText};
use crate::home::Home;
use crate::ticket::{ADDRS_MAX, ALLOW_MAX, Ticket};
use crate::units::{HostPort, parse_duration, show_duration};
use clap::{Args, Subcommand};
use downpour_transport::control::Token;
use downpour_transport::identity::{Identity, PublicKey};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Make a ticket ahead of time, or see what is in one
#[derive(Debug, Args)]
pub(super) struct TicketArgs {
    #[command(subcommand)]
    verb: TicketVerb,
}

#[derive(Debug, Subcommand)]
enum TicketVerb {
    New(NewArgs),
    Show(ShowArgs),
}

/// Make a ticket for a sender on this machine, so that receivers and sender may start in any order
#[derive(Debug, Args)]
struct NewArgs {
    /// Where receivers will reach the sender; may be given several times
    #[arg(long, value_name = "HOST:PORT", required = true)]
    address: Vec<HostPort>,
    /// Multicast group and port to use [default: the sender chooses]
    #[arg(long, value_name = "ADDR:PORT")]
    group: Option<SocketAddr>,
    /// How long the ticket lets anyone in, such as 24h or 7d
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "24h")]
    expires: Duration,
    /// Let in only the node with this key, as reports show it; may be given several times
    #[arg(long, value_name = "KEY")]
    allow: Vec<PublicKey>,
    /// File to write, readable by you alone
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Say what is in a ticket, without its secret
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
        }
    }
}

impl NewArgs {
    fn run(self) -> Result<Exit, Fault> {
        let home = Home::locate().map_err(|error| home_fault(&error))?;
        let config = home.config().map_err(|error| home_fault(&error))?;
        let identity = Identity::load_or_create(config).map_err(|error| identity_fault(&error))?;
        let (out, good_for) = (self.out.clone(), self.expires);
        let ticket = self.ticket(identity.public_key())?;
        ticket.write_file(&out).map_err(|error| {
            Fault::start(
                format!("cannot write the ticket to {error}"),
                "give --out a file in a folder that you may write to",
            )
        })?;
        println!("{}: good for {}", out.display(), show_duration(good_for));
        Ok(Exit::Complete)
    }

    fn ticket(self, key: PublicKey) -> Result<Ticket, Fault> {
        if let Some(group) = self.group {
            // Whether it is to be joined by source is the sender's choice later.
            check_group(group, true)?;
        }
        if let Some(address) = self.address.iter().find(|address| address.port == 0) {
            return Err(Fault::usage(
                format!("{address} has no port yet"),
                "give the port that the sender will listen on, such as one of `downpour ports`",
            ));
        }
        if self.address.len() > ADDRS_MAX || self.allow.len() > ALLOW_MAX {
            return Err(Fault::usage(
                format!("a ticket holds {ADDRS_MAX} addresses and {ALLOW_MAX} keys at most"),
                "make several tickets",
            ));
        }
        let token = Token::random().ok_or_else(|| {
            Fault::start("the system gives no random numbers", "check /dev/urandom")
        })?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ticket = Ticket {
            addrs: self.address.iter().map(ToString::to_string).collect(),
            key,
            token,
            expires_unix_s: (now + self.expires).as_secs(),
            group: self.group,
            allow: (!self.allow.is_empty()).then_some(self.allow),
        };
        let advice = "write addresses as host:4000, 192.0.2.7:4000 or [2001:db8::7]:4000";
        ticket.check().map_err(|error| Fault::usage(error.to_string(), advice))?;
        Ok(ticket)
    }
}

impl ShowArgs {
    fn run(self) -> Result<Exit, Fault> {
        let ticket = parse(&TicketText::read(&self.ticket)?)?;
        println!("addresses  {}", ticket.addrs.join(" "));
        println!("sender     {}", ticket.key);
        if let Some(group) = ticket.group {
            println!("group      {group}");
        }
        for key in ticket.allow.iter().flatten() {
            println!("lets in    {key}");
        }
        match ticket.check_time(SystemTime::now()) {
            Ok(()) => println!("good for   {}", show_duration(remaining(&ticket))),
            Err(expired) => println!("expired    {} ago", show_duration(expired.since)),
        }
        Ok(Exit::Complete)
    }
}

/// The ticket that a text is.
pub(super) fn parse(text: &TicketText) -> Result<Ticket, Fault> {
    text.as_str().parse().map_err(|error: crate::ticket::TicketError| {
        Fault::usage(
            error.to_string(),
            "give the line that the sender printed, whole; @FILE reads it from a file",
        )
    })
}

fn remaining(ticket: &Ticket) -> Duration {
    let end = UNIX_EPOCH + Duration::from_secs(ticket.expires_unix_s);
    end.duration_since(SystemTime::now()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::NewArgs;
    use crate::cli::{Exit, Fault};
    use crate::ticket::Ticket;
    use clap::Parser;
    use downpour_transport::identity::Identity;
    use std::time::{Duration, SystemTime};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: NewArgs,
    }

    fn ticket(line: &[&str]) -> Result<Ticket, Fault> {
        let line = Line::try_parse_from([&["new", "--out", "t"], line].concat()).unwrap();
        line.args.ticket(Identity::generate().public_key())
    }

    #[test]
    fn a_new_ticket_is_read_back_and_lasts_as_told() {
        let line = ["--address", "node7:28800", "--address", "[fd77::1]:28800", "--expires", "2h"];
        let ticket = ticket(&[&line[..], &["--group", "239.192.7.1:28819"]].concat()).unwrap();
        assert_eq!(ticket.to_string().parse(), Ok(ticket.clone()));
        assert_eq!(ticket.addrs, ["node7:28800", "[fd77::1]:28800"]);
        let now = SystemTime::now();
        assert!(ticket.check_time(now + Duration::from_secs(7_100)).is_ok());
        assert!(ticket.check_time(now + Duration::from_secs(7_300)).is_err());
    }

    #[test]
    fn tickets_that_could_not_work_are_not_made() {
        for line in [
            &["--address", "node7:0"][..],
            &["--address", "no/de:1"],
            &["--address", "node7:1", "--group", "10.0.0.1:1"],
        ] {
            let parsed = Line::try_parse_from([&["new", "--out", "t"], line].concat());
            let key = Identity::generate().public_key();
            let refused = parsed
                .map_err(|_| Exit::Usage)
                .and_then(|line| line.args.ticket(key).map_err(|fault| fault.exit));
            assert_eq!(refused.unwrap_err(), Exit::Usage, "{line:?}");
        }
    }
}
