//! `downpour tune doctor`: what this machine's settings are worth on its links, each asked about both ways.

use super::said::{FigureArgs, SiteArgs};
use super::{ask, json, without};
use crate::cli::{Exit, Fault};
use crate::tuner::Combined;
use crate::tuner::plan::{Link, settings, sysctl, text};
use clap::{Args, ValueEnum};
use downpour_proto::transfer::Measured;

/// What this machine's settings are and should be for its links, and why; changes nothing
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    site: SiteArgs,
    /// How to print it; sysctl: lines for a file in /etc/sysctl.d
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = DoctorFormat::Text)]
    format: DoctorFormat,
    #[command(flatten)]
    figures: FigureArgs,
}

/// How settings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DoctorFormat {
    Text,
    Json,
    Sysctl,
}

impl DoctorArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        let (links, left_out) = self.links()?;
        eprint!("{left_out}");
        let found = settings(&links);
        print!(
            "{}",
            match self.format {
                DoctorFormat::Text => text(&found),
                DoctorFormat::Json => json(&found),
                DoctorFormat::Sysctl => sysctl(&found),
            }
        );
        Ok(Exit::Complete)
    }

    /// The links of this machine, or the one that was said; and what was left out of what sources know of them.
    fn links(&self) -> Result<(Vec<Link>, String), Fault> {
        let (mut links, mut left_out) = (Vec::new(), String::new());
        let said = self.figures.measured();
        if said != Measured::default() {
            // A site that was named must be there also where it is not asked.
            self.site.file()?;
            links.push(Link::alike("the other end", &said));
            return Ok((links, left_out));
        }
        let Some(config) = self.site.read()? else { return Ok((links, left_out)) };
        let mut known = |from: &str, to: &str| -> Result<Measured, Fault> {
            let Combined { measured, left_out: more, .. } = ask(&config, from, to)?;
            left_out.push_str(&without(from, to, &more));
            Ok(measured)
        };
        let here = &config.site.name;
        for remote in &config.remote {
            let name = remote.name.clone();
            let (outgoing, incoming) = (known(here, &name)?, known(&name, here)?);
            links.push(Link { name, outgoing, incoming });
        }
        Ok((links, left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::DoctorArgs;
    use crate::tuner::plan::{limits, sysctl};
    use clap::Parser;
    use downpour_proto::transfer::Host;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: DoctorArgs,
    }

    /// Of the way back alone something is known.
    #[test]
    fn links_are_asked_about_both_ways_and_what_is_left_out_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("site.toml");
        let text = "[site]\nname = 'east'\n\
                    [[remote]]\nname = 'west'\nkey = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'\n\
                    [[tuner_source]]\nname = 'word'\nkind = 'static'\nfrom = 'west'\nto = 'east'\n\
                    throughput = '1gbit'\nrtt = '100ms'\n";
        std::fs::write(&file, text).unwrap();
        let words = ["doctor", "--config", file.to_str().unwrap()];
        let (links, left_out) = Line::try_parse_from(words).unwrap().args.links().unwrap();
        assert_eq!(left_out, "left out  word: a throughput of the way back (east to west)\n");
        assert!(!folder.path().join("state").exists(), "nothing is made");
        let host = Host::parse("rmem_max=212992 tcp_rmem=4096,131072,6291456 congestion=cubic");
        let lines = sysctl(&limits(&host, &links));
        assert!(lines.contains("\nnet.ipv4.tcp_rmem = 4096 131072 25000000\n"), "{lines}");
        assert!(lines.contains("12.5 MB from west: 1.00 Gbit/s × 100.0 ms"), "{lines}");
        assert!(lines.contains("# not known: net.ipv4.tcp_wmem: "), "{lines}");
    }
}
