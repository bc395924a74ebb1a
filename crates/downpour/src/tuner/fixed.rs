//! What the configuration says of a path: somebody's word, without an age.

use super::sample::{Host, Key, Metric, Origin, Sample, Spread};
use super::section::TunerSource;
use super::source::{Ask, Asking, Found, Source};

/// One entry of the configuration.
pub(super) struct Fixed {
    pub(super) section: TunerSource,
}

impl Source for Fixed {
    fn name(&self) -> &str {
        &self.section.name
    }

    fn is_word(&self) -> bool {
        true
    }

    fn ask<'a>(&'a self, ask: &'a Ask) -> Asking<'a> {
        Box::pin(async move {
            let mut found = Found::default();
            let said = &self.section;
            let (Some(from), Some(to)) = (&said.from, &said.to) else { return Ok(found) };
            let (source, destination) = (Host::new(from), Host::new(to));
            let tool = "said".to_owned();
            let key = Key { source, destination, direction: None, ip: None, tool };
            let origin = Origin { source: said.name.clone(), place: "site.toml".to_owned() };
            let figures = [
                (Metric::Throughput, said.throughput.map(|rate| rate.bps() as f64)),
                (Metric::Rtt, said.rtt.map(|rtt| rtt.as_secs_f64())),
                (Metric::Loss, said.loss),
            ];
            for (metric, figure) in figures {
                if let Some(figure) = figure {
                    let spread = Spread::of(figure);
                    let unit = metric.unit();
                    found.take(Sample::checked(
                        key.clone(),
                        metric,
                        spread,
                        ask.now,
                        unit,
                        &origin,
                    ));
                }
            }
            Ok(found)
        })
    }
}
