//! A plan as it is printed: for people, for programs, and as the options of other movers.

use crate::output::plain;
use crate::report::PlanLine;
use downpour_proto::Rate;
use downpour_proto::transfer::{Figure, Known, Plan, bdp};
use serde::Serialize;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Bytes a second that `-x` of bbcp takes.
const BBCP_RATES: RangeInclusive<u64> = 1024..=1 << 30;

/// A plan with what it follows from.
#[derive(Clone, Debug, Serialize)]
pub struct Sheet {
    /// Where the bytes come from.
    pub from: String,
    /// Where they go.
    pub to: String,
    /// What is known of the path; a line each.
    pub measured: Vec<PlanLine>,
    /// The plan, each number with its reason.
    pub plan: Vec<PlanLine>,
    /// The numbers alone.
    pub values: Values,
    /// Ceiling of all connections together.
    #[serde(skip)]
    pacing: Option<Rate>,
}

/// The numbers of a plan, in SI units; absent: left to the kernel, or not known.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Values {
    /// `tcp`, `udp` or `auto`.
    pub path: &'static str,
    /// TCP connections.
    pub connections: u16,
    /// Requests in each one's line.
    pub requests_ahead: usize,
    /// Ranges under way.
    pub ranges_at_once: usize,
    /// Congestion control.
    pub congestion: Option<String>,
    /// Bytes of each one's send buffer.
    pub send_buffer_bytes: Option<u64>,
    /// Bytes of each one's receive buffer.
    pub receive_buffer_bytes: Option<u64>,
    /// Ceiling of each one.
    pub pacing_bps: Option<u64>,
    /// What all of it is expected to bring.
    pub expected_bps: Option<u64>,
    /// Bytes that the path holds.
    pub under_way_bytes: Option<u64>,
}

impl Sheet {
    /// Of this plan.
    pub fn new(from: &str, to: &str, known: &Known, plan: &Plan) -> Self {
        let under_way = known.measured.throughput.as_ref().zip(known.measured.rtt.as_ref());
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            measured: figures(known),
            plan: PlanLine::all(plan),
            values: Values {
                path: plan.path.value.name(),
                connections: plan.connections.value,
                requests_ahead: plan.depth.value,
                ranges_at_once: plan.ranges.value,
                congestion: plan.congestion.value.clone(),
                send_buffer_bytes: plan.send_buffer.value,
                receive_buffer_bytes: plan.receive_buffer.value,
                pacing_bps: plan.pacing.value.map(Rate::bps),
                expected_bps: plan.expected.value.map(Rate::bps),
                under_way_bytes: under_way.map(|(rate, rtt)| bdp(rate.value, rtt.value)),
            },
            pacing: plan.pacing.value.and(known.wishes.pacing),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("from {} to {}\n", self.from, self.to);
        table(&mut text, &self.measured);
        text.push('\n');
        table(&mut text, &self.plan);
        text
    }

    /// Options of globus-url-copy.
    pub fn globus_url_copy(&self) -> String {
        let mut options = format!("-p {}", self.values.connections);
        if let Some(len) = self.buffer() {
            let _ = write!(options, " -tcp-bs {len}");
        }
        self.command("globus-url-copy", &options)
    }

    /// Options of bbcp. Its `-x` is a ceiling of all connections together, here in bytes: its `k` is 1024 of them.
    pub fn bbcp(&self) -> String {
        let mut options = format!("-s {}", self.values.connections);
        if let Some(len) = self.buffer() {
            let _ = write!(options, " -w {len}");
        }
        let mut note = String::new();
        if let Some(rate) = self.pacing {
            let (least, most) = (*BBCP_RATES.start(), *BBCP_RATES.end());
            let asked = rate.bps() / 8;
            let given = asked.clamp(least, most);
            let _ = write!(options, " -x {given}");
            if given != asked {
                note = format!("# -x {given}, not {rate}: bbcp takes {least} to {most} bytes/s\n");
            }
        }
        note + &self.command("bbcp", &options)
    }

    /// Both ends' buffer, as these programs have one option for them.
    fn buffer(&self) -> Option<u64> {
        self.values.send_buffer_bytes.into_iter().chain(self.values.receive_buffer_bytes).max()
    }

    fn command(&self, name: &str, options: &str) -> String {
        let mut text = String::new();
        for line in &self.plan {
            if ["connections", "send_buffer", "receive_buffer", "pacing"]
                .contains(&line.name.as_str())
            {
                let _ = writeln!(text, "# {} {}: {}", line.name, line.value, line.why);
            }
        }
        let _ = writeln!(text, "{name} {options} {} {}", self.from, self.to);
        text
    }
}

fn figures(known: &Known) -> Vec<PlanLine> {
    fn line<T>(name: &str, figure: Option<&Figure<T>>, show: impl Fn(&T) -> String) -> PlanLine {
        let (value, why) = match figure {
            Some(figure) => (show(&figure.value), format!("{}{}", figure.origin, age(figure.age))),
            None => ("no data".to_owned(), "nobody measured it".to_owned()),
        };
        PlanLine { name: name.to_owned(), value, why }
    }
    let measured = &known.measured;
    vec![
        line("throughput", measured.throughput.as_ref(), Rate::to_string),
        line("round_trip", measured.rtt.as_ref(), |rtt| {
            format!("{} ms", (rtt.as_secs_f64() * 1e6).round() / 1e3)
        }),
        line("loss", measured.loss.as_ref(), |loss| format!("{} %", (loss * 1e8).round() / 1e6)),
    ]
}

fn age(age: Duration) -> String {
    match age.as_secs() {
        0 => String::new(),
        1..=119 => format!(", {} s old", age.as_secs()),
        120..=7199 => format!(", {} min old", age.as_secs() / 60),
        7200..=172_799 => format!(", {} h old", age.as_secs() / 3600),
        _ => format!(", {} days old", age.as_secs() / 86_400),
    }
}

/// Name, value and reason in columns.
pub(super) fn table(text: &mut String, lines: &[PlanLine]) {
    let wide = |part: fn(&PlanLine) -> &str| {
        lines.iter().map(|line| part(line).chars().count()).max().unwrap_or(0)
    };
    let (names, values) = (wide(|line| &line.name), wide(|line| &line.value));
    for PlanLine { name, value, why } in lines {
        let _ = writeln!(text, "  {name:names$}  {value:values$}  {}", plain(why));
    }
}
