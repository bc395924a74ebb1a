//! What is said by hand of `downpour tune`: the site whose sources are asked, figures of a path, limits of a kernel.

use crate::cli::Fault;
use crate::site::{CONFIG_FILE, Config};
use crate::units::{QuantityError, parse_duration, parse_rate, parse_share};
use clap::Args;
use downpour_proto::Rate;
use downpour_proto::transfer::{Figure, Host, Measured};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Instead of a configuration: no site, also where there is one.
const NO_SITE: &str = "none";

/// Which site on this machine.
#[derive(Debug, Args)]
pub(super) struct SiteArgs {
    /// Configuration of a site on this machine, whose links and sources of figures are looked at; `none`: of no site
    /// [default: site.toml, where there is one]
    #[arg(long, value_name = "FILE", env = "DOWNPOUR_SITE", hide_env_values = true)]
    config: Option<PathBuf>,
}

impl SiteArgs {
    /// Its configuration; `None`: there is no site. A file that was named and is not there is a usage error.
    pub(super) fn file(&self) -> Result<Option<&Path>, Fault> {
        let Some(file) = self.config.as_deref() else {
            return Ok(Some(Path::new(CONFIG_FILE)).filter(|file| file.exists()));
        };
        if file.as_os_str() == NO_SITE {
            return Ok(None);
        }
        let missing = |error| {
            let todo =
                "give --config or DOWNPOUR_SITE the site.toml of a site, or `none` for no site";
            Fault::usage(format!("configuration {}: {error}", file.display()), todo)
        };
        std::fs::metadata(file).map(|_| Some(file)).map_err(missing)
    }

    /// What it says.
    pub(super) fn read(&self) -> Result<Option<Config>, Fault> {
        let config = self.file()?.map(Config::read).transpose();
        config.map_err(|bad| crate::cli::site::config_fault(&bad))
    }
}

/// What is known of a path, said by hand.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Path")]
pub(super) struct FigureArgs {
    /// What it carries, such as 1gbit
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate: Option<Rate>,
    /// Its round trip, such as 12ms
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    rtt: Option<Duration>,
    /// How much of what is sent is lost, such as 0.01%
    #[arg(long, value_name = "SHARE", value_parser = parse_loss)]
    loss: Option<f64>,
}

impl FigureArgs {
    pub(super) fn measured(&self) -> Measured {
        Measured {
            throughput: self.rate.map(|rate| Figure::fresh(rate, "--rate")),
            rtt: self.rtt.map(|rtt| Figure::fresh(rtt, "--rtt")),
            loss: self.loss.map(|loss| Figure::fresh(loss, "--loss")),
        }
    }

    /// What is said by hand, and where nothing is, what was measured.
    pub(super) fn over(&self, measured: Measured) -> Measured {
        let said = self.measured();
        Measured {
            throughput: said.throughput.or(measured.throughput),
            rtt: said.rtt.or(measured.rtt),
            loss: said.loss.or(measured.loss),
        }
    }
}

/// Parses what a path loses: a share that leaves something.
fn parse_loss(text: &str) -> Result<f64, QuantityError> {
    let loss = parse_share(text)?;
    if loss < 1.0 {
        return Ok(loss);
    }
    let what = format!("what loses {text} carries nothing: write less than 100%, such as 0.01%");
    Err(QuantityError::new(what))
}

/// What a kernel allows, as it is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Limits {
    /// What this machine's does.
    Here,
    /// What was said; nothing is known where nothing was.
    Said(Host),
}

impl Limits {
    pub(super) fn of(&self, here: &Host) -> Host {
        match self {
            Self::Here => here.clone(),
            Self::Said(host) => host.clone(),
        }
    }
}

impl FromStr for Limits {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "here" => return Ok(Self::Here),
            "unknown" => return Ok(Self::Said(Host::default())),
            _ => {}
        }
        let advice = "write here, unknown, or words such as rmem_max=212992 wmem_max=212992 \
                      tcp_rmem=4096,131072,6291456 tcp_wmem=4096,16384,4194304 congestion=cubic,bbr \
                      (bytes, without a unit)";
        let host = Host::parse_said(text);
        host.map(Self::Said)
            .map_err(|word| QuantityError::new(format!("`{word}` is no limit: {advice}")))
    }
}

#[cfg(test)]
mod tests {
    use super::{FigureArgs, Limits, SiteArgs};
    use crate::cli::Exit;
    use clap::Parser;
    use downpour_proto::transfer::Host;
    use std::path::Path;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        site: SiteArgs,
        #[command(flatten)]
        figures: FigureArgs,
    }

    #[test]
    fn limits_that_are_mistyped_are_refused_by_name() {
        assert_eq!("here".parse(), Ok(Limits::Here));
        assert_eq!("unknown".parse(), Ok(Limits::Said(Host::default())));
        let said = "wmem_max=4194304 congestion=bbr";
        assert_eq!(said.parse(), Ok(Limits::Said(Host::parse(said))));
        for (text, word) in [("her", "her"), ("rmem_max=1 wmem_max=4MiB", "wmem_max=4MiB")] {
            let told = text.parse::<Limits>().unwrap_err().to_string();
            assert!(told.starts_with(&format!("`{word}` is no limit: ")), "{told}");
            assert!(told.contains("unknown") && told.contains("tcp_rmem="), "{told}");
        }
    }

    #[test]
    fn a_path_that_loses_everything_is_none() {
        for (loss, good) in [("0%", true), ("99.9%", true), ("100%", false), ("101%", false)] {
            assert_eq!(Line::try_parse_from(["tune", "--loss", loss]).is_ok(), good, "{loss}");
        }
    }

    #[test]
    fn a_configuration_that_is_named_must_be_there() {
        let of = |config: Option<&str>| SiteArgs { config: config.map(Into::into) };
        let refused = of(Some("no-such-site.toml")).file().unwrap_err();
        assert_eq!(refused.exit, Exit::Usage);
        assert!(refused.what.contains("no-such-site.toml"), "{refused}");
        assert_eq!(of(Some("no-such-site.toml")).read().unwrap_err(), refused);
        assert_eq!(of(Some("none")).file(), Ok(None));
        assert_eq!(of(Some("Cargo.toml")).file(), Ok(Some(Path::new("Cargo.toml"))));
        assert_eq!(of(None).file(), Ok(None), "there is no site here");
    }
}
