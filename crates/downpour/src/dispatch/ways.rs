//! What is expected of the way from one site to another: the plan by what is known of the path, and when a file is there.

use super::Dispatch;
use super::fetch::WRITE_LEN;
use crate::report::PlanLine;
use crate::session::{carrier, range_len};
use crate::site::Site;
use crate::tuner::plan::{Sheet, host};
use downpour_catalog::Time;
use downpour_proto::transfer::{Figure, Known, Plan, Source, Wishes, rank};
use downpour_transport::control::DataPath;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// What is expected of a way, for one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Way {
    /// Where the file comes from.
    pub from: String,
    /// Where it goes.
    pub to: String,
    /// What is known of the path; a line each.
    pub measured: Vec<PlanLine>,
    /// The plan of a transfer on it, each number with its reason.
    pub plan: Vec<PlanLine>,
    /// When the file is expected to be there, microseconds since 1970; absent: nobody can say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_us: Option<i64>,
    /// What that follows from.
    pub why: String,
}

impl Dispatch {
    /// The plan of a transfer between this site and another, beside so many others: of a session of so many bytes, or
    /// (`None`) of a fetch.
    pub(super) fn planned(
        &self,
        site: &Site,
        [from, to]: [&str; 2],
        (beside, session): (u16, Option<u64>),
    ) -> (Known, Plan) {
        let limits = |name: &str| if name == site.name { host() } else { self.limits_of(name) };
        let remote = site.remote(if from == site.name { to } else { from });
        let mut measured = self.book.paths.measured(from, to);
        if let Some((_, rtt)) =
            remote.as_ref().filter(|_| session.is_none()).and_then(|r| r.known())
        {
            measured.rtt.get_or_insert_with(|| Figure::fresh(rtt, "TCP handshake"));
        }
        let section = remote.as_ref().map(|remote| &remote.section);
        // How many connections is said where the files arrive, how fast where they come from.
        let connections = section.filter(|_| to == site.name).and_then(|s| s.connections);
        let sends = section.filter(|_| from == site.name);
        let pacing = sends.and_then(|s| s.rate).map(|rate| *rate);
        let path = sends.map(|s| s.path.path());
        let range = |bytes| range_len(path.unwrap_or(DataPath::Tcp), bytes);
        let known = Known {
            measured,
            sender: limits(from),
            receiver: limits(to),
            beside,
            range_len: session.map_or(WRITE_LEN, range),
            memory: super::incoming::MEMORY,
            wishes: Wishes {
                path: path.and_then(carrier),
                connections,
                pacing,
                ..Wishes::default()
            },
        };
        let mut plan = Plan::new(&known);
        if known.wishes.path.is_some() {
            plan.path.why = format!("`path` of [[remote]] {to}");
        }
        (known, plan)
    }

    /// A way for a file of `len` bytes, which begins after `since` and after bytes that wait before it.
    pub(super) fn way(
        &self,
        site: &Site,
        ends: [&str; 2],
        (beside, lately): (u16, Option<downpour_proto::Rate>),
        (since, len, queued): (Option<Time>, u64, u64),
    ) -> Way {
        // What waits before it, and is of its rule, goes with it as far as a batch has room.
        let batch = site.config().transfer.batch_bytes.0.max(len);
        let session = len.saturating_add(queued).min(batch);
        let (known, plan) = self.planned(site, ends, (beside, Some(session)));
        let source = match (plan.expected.value, lately) {
            (Some(rate), _) => (Some(rate), plan.expected.why.clone()),
            (None, rate) => (rate, "as the link did lately".to_owned()),
        };
        let source = Source {
            name: ends[0].to_owned(),
            expected: source.0,
            by: source.1,
            rtt: known.measured.rtt.as_ref().map(|rtt| rtt.value),
            queued,
            barred: None,
        };
        let takes = source.takes(len).filter(|_| since.is_some());
        let micros = |takes: Duration| i64::try_from(takes.as_micros()).unwrap_or(i64::MAX);
        let done = since.zip(takes).map(|(since, takes)| since.0.saturating_add(micros(takes)));
        let why = rank(len, std::slice::from_ref(&source)).remove(0).why;
        let Sheet { from, to, measured, plan, .. } = Sheet::new(ends[0], ends[1], &known, &plan);
        Way { from, to, measured, plan, done_us: done, why }
    }
}
