//! What is measured, as Prometheus reads it. Parts of the site need nothing of this: the figures in the status of their
//! services are metrics by themselves. A registry of one's own, because two sites may live in one process.

use super::Site;
use super::service::Fault;
use super::supervisor::Stage;
use downpour_catalog::Reader;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type Figure = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabels {
    service: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FigureLabels {
    service: String,
    figure: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FileLabels {
    site: String,
    rule: String,
    state: String,
}

/// The metrics of a site.
pub struct Metrics {
    registry: Registry,
    /// Held while what is shown is filled in: one who asks empties what another has filled.
    shown: Mutex<()>,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Histogram,
    up: Family<ServiceLabels, Gauge>,
    failures: Family<ServiceLabels, Gauge>,
    figures: Family<FigureLabels, Figure>,
    files: Family<FileLabels, Gauge>,
    bytes: Family<FileLabels, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("downpour");
        let request_seconds = Histogram::new(exponential_buckets(0.000_5, 4.0, 9));
        let metrics = Self {
            requests: Family::default(),
            request_seconds: request_seconds.clone(),
            up: Family::default(),
            failures: Family::default(),
            figures: Family::default(),
            files: Family::default(),
            bytes: Family::default(),
            registry: Registry::default(),
            shown: Mutex::default(),
        };
        registry.register("requests", "Requests answered", metrics.requests.clone());
        let help = "Seconds to the head of an answer";
        registry.register("request_seconds", help, request_seconds);
        registry.register("service_up", "1 while a service runs", metrics.up.clone());
        let help = "Failures of a service since the start";
        registry.register("service_failures", help, metrics.failures.clone());
        registry.register("figure", "What services say of themselves", metrics.figures.clone());
        registry.register("files", "Files in the catalog", metrics.files.clone());
        registry.register("file_bytes", "Bytes of files in the catalog", metrics.bytes.clone());
        Self { registry, ..metrics }
    }
}

impl Metrics {
    /// A request was answered. `route` is the pattern, not the path: there are few of them.
    pub(crate) fn on_request(&self, route: &str, status: u16, time: Duration) {
        let labels = RequestLabels { route: route.to_owned(), status };
        self.requests.get_or_create(&labels).inc();
        self.request_seconds.observe(time.as_secs_f64());
    }

    /// All of them as text.
    pub(crate) async fn show(site: &Arc<Site>) -> Result<String, Fault> {
        let counts = site.read(counts).await?;
        Ok(site.metrics.text(site, counts))
    }

    fn text(&self, site: &Site, counts: Counts) -> String {
        let _shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        self.look_at_services(site);
        self.files.clear();
        self.bytes.clear();
        for (labels, files, bytes) in counts {
            self.files.get_or_create(&labels).set(files);
            self.bytes.get_or_create(&labels).set(bytes);
        }
        let mut text = String::new();
        // A string takes everything.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn look_at_services(&self, site: &Site) {
        self.figures.clear();
        for report in site.supervisor().reports() {
            let labels = ServiceLabels { service: report.name.clone() };
            self.up.get_or_create(&labels).set(i64::from(report.stage == Stage::Running));
            let failures = i64::try_from(report.failures).unwrap_or(i64::MAX);
            self.failures.get_or_create(&labels).set(failures);
            for (figure, value) in report.status.figures {
                let labels = FigureLabels { service: report.name.clone(), figure };
                self.figures.get_or_create(&labels).set(value);
            }
        }
    }
}

type Counts = Vec<(FileLabels, i64, i64)>;

fn counts(reader: &mut Reader) -> Result<Counts, downpour_catalog::Error> {
    let sites: BTreeMap<_, _> =
        reader.sites()?.into_iter().map(|(id, name)| (id.0, name)).collect();
    let rules: BTreeMap<_, _> =
        reader.rules()?.into_iter().map(|(id, name)| (id.0, name)).collect();
    let counts = reader.counts()?.into_iter().map(|count| {
        let labels = FileLabels {
            site: sites.get(&count.site.0).map(|site| label(site)).unwrap_or_default(),
            rule: rules.get(&count.rule.0).map(|rule| label(rule)).unwrap_or_default(),
            state: count.state.to_string(),
        };
        (labels, count.files, count.bytes)
    });
    Ok(counts.collect())
}

/// Text of others as the value of a label: the library writes values as they are, and one bad line makes all unreadable.
fn label(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::super::Daemon;
    use super::Metrics;
    use downpour_catalog::{Change, NewFile, OtherContent, Same};
    use std::time::Duration;

    #[tokio::test]
    async fn a_site_and_a_rule_may_have_any_name_and_each_line_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::example(folder.path(), "a", "").await;
        let (catalog, now) = (daemon.site.catalog.clone(), daemon.site.clock.now());
        let take_in = move || {
            let new = NewFile {
                site: catalog.site("q\"\\x\ny").unwrap(),
                name: "x".to_owned(),
                size: 3,
                stamp: 7,
                rule: catalog.rule("to:b/q\"\\x\ny/{name}").unwrap(),
                rank: 100,
                transfer: None,
                other_content: OtherContent::NewVersion,
                same: Same::OfRule,
            };
            catalog.apply(now, &[Change::TakeIn(new)]).unwrap();
        };
        tokio::task::spawn_blocking(take_in).await.unwrap();
        let text = Metrics::show(&daemon.site).await.unwrap();
        let line =
            r#"downpour_files{site="q\"\\x\ny",rule="to:b/q\"\\x\ny/{name}",state="found"} 1"#;
        assert!(text.lines().any(|told| told == line), "{text}");
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn two_who_ask_at_once_both_see_all() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::example(folder.path(), "a", "").await;
        let figures = || {
            let text = daemon.site.metrics.text(&daemon.site, Vec::new());
            text.lines().filter(|line| line.contains("service=\"scrub\",figure=")).count()
        };
        let all = figures();
        let ask = || (0..500).all(|_| figures() == all);
        std::thread::scope(|scope| {
            for asked in [(); 2].map(|()| scope.spawn(ask)) {
                assert!(asked.join().unwrap());
            }
        });
        daemon.end(Duration::ZERO).await;
    }
}
