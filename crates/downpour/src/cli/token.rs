//! `downpour token`: who may do what at a site.

use super::site::{AccessArgs, with_daemon};
use super::{Exit, Fault};
use crate::api::{TokenList, TokenWish};
use crate::site::{Clock, Config, NewToken, Role, TokenError, Tokens, hand_over};
use crate::units::{escape, parse_duration, show_duration};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Make, list and revoke the tokens of a running site
#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    #[command(subcommand)]
    verb: TokenVerb,
}

#[derive(Debug, Subcommand)]
enum TokenVerb {
    New(NewArgs),
    List(ListArgs),
    Revoke(RevokeArgs),
}

/// Make a token; it is shown once
#[derive(Debug, Args)]
struct NewArgs {
    /// Whose it is
    #[arg(value_name = "NAME")]
    name: String,
    /// What it allows
    #[arg(long, value_name = "ROLE", default_value = "viewer")]
    role: RoleArg,
    /// When it ends [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, allow_hyphen_values = true)]
    expires: Option<Duration>,
    /// Write it into the state folder, without asking the daemon: when the last admin's token is lost
    #[arg(long, conflicts_with = "at")]
    offline: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// List the tokens, without their secrets
#[derive(Debug, Args)]
struct ListArgs {
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// End a token for good
#[derive(Debug, Args)]
struct RevokeArgs {
    /// Whose it is
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleArg {
    /// See everything
    Viewer,
    /// Also start, stop, retry, submit
    Operator,
    /// Also give tokens and read the audit record
    Admin,
}

impl TokenArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        match self.verb {
            TokenVerb::New(args) => args.run(),
            TokenVerb::List(args) => args.run(),
            TokenVerb::Revoke(args) => args.run(),
        }
    }
}

impl NewArgs {
    fn run(self) -> Result<Exit, Fault> {
        let role = match self.role {
            RoleArg::Viewer => Role::Viewer,
            RoleArg::Operator => Role::Operator,
            RoleArg::Admin => Role::Admin,
        };
        // Whole seconds count.
        if self.expires.is_some_and(|time| time.as_secs() == 0) {
            let todo = "give the time for which it shall admit, such as 30d";
            return Err(Fault::usage("a token that --expires at once admits nobody", todo));
        }
        if self.offline {
            return self.run_offline(role);
        }
        let expires_s = self.expires.map(|time| time.as_secs());
        let wish = TokenWish { name: self.name, role, expires_s };
        let new: NewToken =
            with_daemon(self.access, async |site| site.post("/v1/tokens", &wish).await)?;
        println!("{}", new.token);
        Ok(Exit::Complete)
    }

    fn run_offline(self, role: Role) -> Result<Exit, Fault> {
        const AS_DAEMON: &str = "run it as the daemon's user, with its --config";
        let cannot = |error: &dyn std::error::Error| Fault::usage(error.to_string(), AS_DAEMON);
        let config = Config::read(&self.access.config()).map_err(|error| cannot(&error))?;
        let state = config.state();
        let tokens = Tokens::open(&state).map_err(|error| cannot(&error))?;
        let new = tokens.add(&self.name, role, self.expires, Clock::system().now());
        let new = new.map_err(|error| {
            let todo = match error {
                // Who comes here has no token with which that one could be revoked first.
                TokenError::Taken(_) => {
                    "choose another name; with that token the old one can be revoked"
                }
                TokenError::BadName(_) => "choose another name",
                TokenError::TooMany => "take one out of tokens.json in the state folder",
                _ => AS_DAEMON,
            };
            Fault::usage(error.to_string(), todo)
        })?;
        println!("{}", new.token);
        if let Some(file) = hand_over(&state, &new).map_err(|error| cannot(&error))? {
            eprintln!("{}: commands on this machine show it from now on", file.display());
        }
        Ok(Exit::Complete)
    }
}

impl ListArgs {
    fn run(self) -> Result<Exit, Fault> {
        let list: TokenList = with_daemon(self.access, async |site| site.get("/v1/tokens").await)?;
        if self.json {
            println!("{:#}", json!(list));
            return Ok(Exit::Complete);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for token in list.tokens {
            let end = match token.expires_unix_s {
                _ if token.expired => "expired".to_owned(),
                None => "does not expire".to_owned(),
                Some(end) => {
                    let left = u64::try_from(end).unwrap_or(0).saturating_sub(now);
                    format!("expires in {}", show_duration(Duration::from_secs(left)))
                }
            };
            let role = format!("{:?}", token.role).to_lowercase();
            println!("{:<20} {role:<9} {end}", token.name);
        }
        Ok(Exit::Complete)
    }
}

impl RevokeArgs {
    fn run(self) -> Result<Exit, Fault> {
        let path = format!("/v1/tokens/{}", escape(&self.name));
        let _left: TokenList = with_daemon(self.access, async |site| site.delete(&path).await)?;
        println!("{} is revoked", self.name);
        Ok(Exit::Complete)
    }
}

#[cfg(test)]
mod tests {
    use super::{Exit, NewArgs};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: NewArgs,
    }

    #[test]
    fn a_token_that_would_admit_nobody_is_not_made() {
        for time in ["0s", "500ms"] {
            let line = Line::try_parse_from(["new", "shift", "--expires", time]).unwrap();
            let refused = line.args.run().unwrap_err();
            assert!(refused.exit == Exit::Usage && refused.what.contains("--expires"), "{refused}");
        }
        let past =
            Line::try_parse_from(["new", "shift", "--expires", "-1d"]).map(|_| ()).unwrap_err();
        assert!(past.to_string().contains("30s, 5min"), "{past}");
    }
}
