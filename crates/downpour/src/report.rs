//! What a session did, for machines (`--report`, `--json`) and for people (the summary at the end).
//!
//! The JSON has a schema number: fields may be added under the same number, and are only renamed or
//! removed under the next. Units stand at the end of each name. The sender's report tells of all
//! receivers, a receiver's of itself alone.
//!
//! The exit status follows from the report and from nothing else, so the two cannot disagree.

mod transfer;

pub use transfer::{PlanLine, SteeredLine, TransferReport};

use crate::object::printable;
use crate::units::{show_bytes, show_duration};
use downpour_proto::Rate;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::time::Duration;

/// Version of the report's fields.
pub const SCHEMA: u32 = 1;

/// Rows of receivers in the summary for people; the JSON has all of them.
const SUMMARY_ROWS_MAX: usize = 32;
/// Of fewer bytes than this what was sent beside them, such as polls and probes, is no measure: people are not shown it.
const OVERHEAD_OF_MIN: f64 = 1e6;
/// Fewer dropped datagrams than this are not shown to people; the JSON has them.
const REJECTED_SHOWN_MIN: u64 = 100;
/// Who left the stream and pulled a smaller share than this of what it got, got it by the stream.
const PULLED_SHARE_MIN: f64 = 0.1;
/// Names of failed or skipped objects in the summary for people.
const SUMMARY_NAMES_MAX: usize = 10;

/// The whole report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`] of the program that wrote it.
    pub schema: u32,
    /// Version of that program.
    pub downpour: String,
    /// Which side wrote it.
    pub role: Role,
    /// The session as a whole.
    pub session: SessionReport,
    /// How the blocks came, when not by multicast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<TransferReport>,
    /// One entry for each receiver that joined or was expected.
    pub receivers: Vec<ReceiverReport>,
    /// Objects that did not arrive, with the reason.
    pub failed: Vec<Named>,
    /// Objects left out on purpose (fifos, devices), with the reason.
    pub skipped: Vec<Named>,
    /// Whatever else the operator should know: small kernel buffers, no multicast, fallbacks taken.
    pub notices: Vec<String>,
}

/// Which side a report is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Of the whole session.
    Sender,
    /// Of one receiver.
    Receiver,
}

/// A named thing and what is to be said about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Path or name; bytes that are not UTF-8 are shown escaped.
    pub name: String,
    /// Why.
    pub why: String,
}

/// Totals of the session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Random identity of the session, hexadecimal.
    pub id: String,
    /// What was sent, as the sender named it.
    pub name: String,
    /// Group address and port; absent when all receivers were served by unicast.
    pub group: Option<String>,
    /// Interface of the multicast data.
    pub interface: Option<String>,
    /// As many receivers as `--receivers` said; a sender's only, 0 when it was not given.
    #[serde(default)]
    pub receivers_wanted: u32,
    /// Name of the profile.
    pub profile: String,
    /// The erasure code, as `--code` names it; a sender's only.
    #[serde(default)]
    pub code: String,
    /// The ceiling given by `--rate`.
    pub rate_limit_bps: Option<u64>,
    /// Seconds since 1970 at the start of the data.
    pub started_unix_s: f64,
    /// From the start of the data until the last `ended_s`.
    pub duration_s: f64,
    /// Objects: files, folders, links.
    pub objects: u64,
    /// Bytes of file contents, holes left out.
    pub data_bytes: u64,
    /// Bytes sent, by kind.
    pub sent: SentBytes,
    /// Symbols of data and manifest blocks as they are, without coding.
    pub source_symbols: u64,
    /// Repair symbols sent with their block, before any NACK.
    pub proactive_repair_symbols: u64,
    /// Repair symbols sent because of NACKs.
    pub repair_symbols: u64,
    /// Polls sent.
    pub rounds: u64,
    /// Feedback messages received.
    pub feedback_messages: u64,
    /// Their bytes (UDP payload).
    pub feedback_bytes: u64,
    /// Group round trip at the end.
    pub grtt_ms: f64,
    /// The data bytes that had to be brought, once, over `duration_s`: not what receivers had before.
    pub goodput_bps: u64,
    /// All bytes sent (UDP payload of the stream, and pulls) over the data bytes that had to be brought, once,
    /// less one; 0 when there were none.
    pub overhead: f64,
    /// What came in and was dropped, by reason. The sender's report counts feedback and connections, a receiver's the
    /// stream.
    #[serde(default)]
    pub rejected: Rejected,
}

impl SessionReport {
    /// The overhead, for people; `None` of a session that had nothing to bring, or too little for a percentage.
    pub(crate) fn overhead_percent(&self) -> Option<f64> {
        let needed = self.sent.total() as f64 / (1.0 + self.overhead);
        let tells = self.overhead > 0.0 && needed >= OVERHEAD_OF_MIN;
        tells.then_some(self.overhead * 100.0)
    }
}

/// Datagrams (and connections) that were dropped: not those that the network lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// Shorter than a header and a seal.
    pub truncated: u64,
    /// Longer than any of the session.
    pub oversized: u64,
    /// Not understood.
    pub malformed: u64,
    /// Of another session, or of nobody who has joined.
    pub wrong_stream: u64,
    /// Under a version of the key that this side does not have.
    pub wrong_epoch: u64,
    /// Seen before, or too old to tell.
    pub replayed: u64,
    /// Not sealed with the session's key: of another session on the same group (a symbol does not say of which it is), or
    /// forged.
    pub forged: u64,
    /// Connections that ended without having shown the ticket's token.
    pub strangers: u64,
}

impl Rejected {
    /// Datagrams, whatever the reason.
    pub const fn datagrams(&self) -> u64 {
        self.truncated
            + self.oversized
            + self.malformed
            + self.wrong_stream
            + self.wrong_epoch
            + self.replayed
            + self.forged
    }

    /// Each reason that occurred, largest first.
    fn reasons(&self) -> Vec<(&'static str, u64)> {
        let all = [
            ("truncated", self.truncated),
            ("oversized", self.oversized),
            ("malformed", self.malformed),
            ("of another session", self.wrong_stream),
            ("under another key version", self.wrong_epoch),
            ("replayed or late", self.replayed),
            ("not of this session, or forged", self.forged),
        ];
        let mut occurred: Vec<_> = all.into_iter().filter(|(_, count)| *count > 0).collect();
        occurred.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        occurred
    }
}

/// Bytes that the sender sent, by kind. Stream bytes are UDP payloads: header, symbol, tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentBytes {
    /// Source symbols of data blocks.
    pub source_bytes: u64,
    /// Repair symbols sent with their block.
    pub proactive_repair_bytes: u64,
    /// Repair symbols sent because of NACKs.
    pub repair_bytes: u64,
    /// Symbols of manifest blocks.
    pub manifest_bytes: u64,
    /// Polls, advertisements, probes.
    pub control_bytes: u64,
    /// Answers to pulls (HTTPS bodies).
    pub pull_bytes: u64,
    /// What of the stream, which all but the pulls is, the network refused: it never left.
    #[serde(default)]
    pub refused_bytes: u64,
}

impl SentBytes {
    /// Everything that left.
    pub const fn total(&self) -> u64 {
        let stream = self.source_bytes
            + self.proactive_repair_bytes
            + self.repair_bytes
            + self.manifest_bytes
            + self.control_bytes;
        stream.saturating_sub(self.refused_bytes) + self.pull_bytes
    }
}

/// One receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceiverReport {
    /// As it named itself, or as `--expect` named it.
    pub name: String,
    /// Where it connected from; empty when it never did.
    pub address: String,
    /// Its node key, hexadecimal; empty when it never joined.
    pub key: String,
    /// How it ended.
    #[serde(flatten)]
    pub state: ReceiverState,
    /// Whether the join probe reached it by multicast.
    pub multicast: bool,
    /// Seconds after the start of the data at which it joined; 0 when it was there before.
    pub joined_s: f64,
    /// Seconds after the start of the data until its receipt, or until it left or its connection closed: for how long it was waited for
    /// then is in no figure.
    pub ended_s: f64,
    /// Payload bytes that it took from the stream; at a sender that has no receipt of it, as far as its feedback told.
    pub stream_bytes: u64,
    /// Bytes that it pulled by unicast; 0 at a sender that has no receipt of it.
    pub pull_bytes: u64,
    /// Bytes that it had before the session and did not need.
    pub kept_bytes: u64,
    /// Mean rate of its data, by stream and pull.
    pub rate_bps: u64,
    /// Share of the stream's datagrams that did not reach it.
    pub loss: f64,
    /// Repair symbols that it used.
    pub repair_symbols: u64,
    /// NACKs that it sent.
    pub nacks: u64,
}

/// How a receiver ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum ReceiverState {
    /// Everything is there, verified, and its receipt is back.
    Complete,
    /// The same, but it left the stream, and a tenth or more of what it got came by unicast; or all of it did.
    Pulled {
        /// Why it left the stream, or that this brought nothing.
        why: String,
    },
    /// It told us that it cannot complete; or it joined a session of products late, and lacks those before.
    Failed {
        /// In its own words: disk full, target not writable, file changed while being sent; or since when it has products.
        why: String,
    },
    /// It vanished, and did not come back in time.
    Gone {
        /// What was last heard.
        why: String,
    },
    /// `--expect` names it, and it never joined.
    Absent,
}

impl ReceiverState {
    /// Of a receiver that has everything: `left` is why it left the stream, if ever it did, `reached` whether the
    /// stream ever reached it. One that left and came back, or had nearly all when it left, did not pull it.
    pub(crate) fn arrived(
        left: Option<String>,
        reached: bool,
        stream_bytes: u64,
        pull_bytes: u64,
    ) -> Self {
        let share = pull_bytes as f64 / (stream_bytes + pull_bytes).max(1) as f64;
        match left {
            Some(why) if !reached || share >= PULLED_SHARE_MIN => Self::Pulled { why },
            Some(_) | None => Self::Complete,
        }
    }

    /// Whether everything arrived.
    pub const fn is_complete(&self) -> bool {
        matches!(self, Self::Complete | Self::Pulled { .. })
    }

    const fn word(&self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Pulled { .. } => "pulled",
            Self::Failed { .. } => "failed",
            Self::Gone { .. } => "gone",
            Self::Absent => "absent",
        }
    }

    fn why(&self) -> &str {
        match self {
            Self::Complete | Self::Absent => "",
            Self::Pulled { why } | Self::Failed { why } | Self::Gone { why } => why,
        }
    }
}

impl Report {
    /// Whether every receiver has everything. False when there was none at all, or fewer than wanted.
    pub fn is_complete(&self) -> bool {
        self.receivers.len() >= self.session.receivers_wanted.max(1) as usize
            && self.failed.is_empty()
            && self.receivers.iter().all(|receiver| receiver.state.is_complete())
    }

    /// As JSON, for `--json` and `--report`.
    pub fn to_json(&self) -> String {
        // Cannot fail: every field is a number, text or list of such, and no map has odd keys.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The summary for people, several lines.
    pub fn summary(&self) -> String {
        let mut out = String::new();
        self.summarise(&mut out).expect("writing to a String cannot fail");
        out
    }

    fn summarise(&self, out: &mut String) -> std::fmt::Result {
        let session = &self.session;
        writeln!(
            out,
            "{}: {} in {} objects, {}{}",
            if self.is_complete() { "complete" } else { "NOT complete" },
            show_bytes(session.data_bytes),
            session.objects,
            show_duration(Duration::from_secs_f64(session.duration_s.max(0.0))),
            // Of all that there was to send: it says nothing of a part. Who had all before has no rate.
            match self.is_complete() && session.goodput_bps > 0 {
                true => format!(", {}", Rate::from_bps(session.goodput_bps)),
                false => String::new(),
            },
        )?;
        if self.role == Role::Sender {
            let sent = &session.sent;
            let repair = sent.proactive_repair_bytes + sent.repair_bytes;
            let refused = match sent.refused_bytes {
                0 => String::new(),
                refused => format!(" - {} that the network refused", show_bytes(refused)),
            };
            write!(
                out,
                "sent: {} = {} source + {} repair + {} manifest + {} control (polls, probes) + {} by \
                 pull{refused}; ",
                show_bytes(sent.total()),
                show_bytes(sent.source_bytes),
                show_bytes(repair),
                show_bytes(sent.manifest_bytes),
                show_bytes(sent.control_bytes),
                show_bytes(sent.pull_bytes),
            )?;
            if let Some(percent) = session.overhead_percent() {
                write!(out, "overhead {percent:.1} %; ")?;
            }
            writeln!(
                out,
                "{} rounds, {} feedback messages",
                session.rounds, session.feedback_messages
            )?;
        }
        if let Some(transfer) = &self.transfer {
            writeln!(out, "{}", transfer.line())?;
        }
        self.summarise_rejected(out)?;
        self.summarise_receivers(out)?;
        summarise_names(out, "failed", &self.failed)?;
        summarise_names(out, "skipped", &self.skipped)?;
        for notice in &self.notices {
            writeln!(out, "notice: {notice}")?;
        }
        Ok(())
    }

    fn summarise_rejected(&self, out: &mut String) -> std::fmt::Result {
        let rejected = &self.session.rejected;
        // Duplicates and stray datagrams of other sessions are everyday: only what tells something is shown.
        if rejected.datagrams() >= REJECTED_SHOWN_MIN {
            let reasons = rejected.reasons();
            let reasons = reasons.iter().map(|(reason, count)| format!("{count} {reason}"));
            let reasons: Vec<_> = reasons.collect();
            writeln!(out, "dropped: {} datagrams: {}", rejected.datagrams(), reasons.join(", "))?;
        }
        Ok(())
    }

    fn summarise_receivers(&self, out: &mut String) -> std::fmt::Result {
        let mut rows: Vec<_> = self.receivers.iter().collect();
        // What went wrong comes first, so that a cut list never hides it.
        rows.sort_by_key(|receiver| receiver.state.is_complete());
        let width = rows.iter().map(|r| r.name.chars().count()).max().unwrap_or(0).min(32);
        let some_kept = rows.iter().any(|receiver| receiver.kept_bytes > 0);
        for receiver in rows.iter().take(SUMMARY_ROWS_MAX) {
            let state = receiver.state.word();
            write!(out, "  {:<width$}  {state:<8}", shown(&receiver.name))?;
            if receiver.state != ReceiverState::Absent {
                let kept = format!("  {:>10} kept", show_bytes(receiver.kept_bytes));
                write!(
                    out,
                    "  {:>10}  {:>10} by stream  {:>10} by pull{}  loss {:>5.2} %  {}",
                    show_duration(Duration::from_secs_f64(receiver.ended_s.max(0.0))),
                    show_bytes(receiver.stream_bytes),
                    show_bytes(receiver.pull_bytes),
                    if some_kept { kept.as_str() } else { "" },
                    receiver.loss * 100.0,
                    Rate::from_bps(receiver.rate_bps),
                )?;
            }
            let why = shown(receiver.state.why());
            writeln!(out, "{}{why}", if why.is_empty() { "" } else { "  " })?;
        }
        let more = rows.len().saturating_sub(SUMMARY_ROWS_MAX);
        if more > 0 {
            writeln!(out, "  and {more} more (--report has all of them)")?;
        }
        Ok(())
    }
}

/// What others wrote, for a terminal.
fn shown(text: &str) -> String {
    printable(text.as_bytes())
}

fn summarise_names(out: &mut String, word: &str, names: &[Named]) -> std::fmt::Result {
    for Named { name, why } in names.iter().take(SUMMARY_NAMES_MAX) {
        writeln!(out, "{word}: {}: {}", shown(name), shown(why))?;
    }
    let more = names.len().saturating_sub(SUMMARY_NAMES_MAX);
    if more > 0 {
        writeln!(out, "{word}: and {more} more (--report has all of them)")?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{
        Named, ReceiverReport, ReceiverState, Rejected, Report, Role, SCHEMA, SessionReport,
    };

    pub(crate) fn receiver(name: &str, state: ReceiverState) -> ReceiverReport {
        ReceiverReport {
            name: name.to_owned(),
            address: "192.0.2.7:4000".to_owned(),
            key: String::new(),
            state,
            multicast: true,
            joined_s: 0.0,
            ended_s: 2.5,
            stream_bytes: 1_000_000,
            pull_bytes: 0,
            kept_bytes: 0,
            rate_bps: 3_200_000,
            loss: 0.021,
            repair_symbols: 9,
            nacks: 1,
        }
    }

    pub(crate) fn report(receivers: Vec<ReceiverReport>) -> Report {
        Report {
            schema: SCHEMA,
            downpour: "0.1.0".to_owned(),
            role: Role::Sender,
            session: SessionReport { data_bytes: 1_000_000, objects: 3, ..Default::default() },
            transfer: None,
            receivers,
            failed: vec![],
            skipped: vec![Named { name: "a/pipe".to_owned(), why: "a fifo".to_owned() }],
            notices: vec![],
        }
    }

    #[test]
    fn json_is_read_back_and_has_flat_states() {
        let full = "disk full".to_owned();
        let before = report(vec![
            receiver("a", ReceiverState::Complete),
            receiver("b", ReceiverState::Failed { why: full }),
        ]);
        let json = before.to_json();
        assert!(json.contains("\"state\": \"failed\"") && json.contains("\"why\": \"disk full\""));
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), before);
    }

    #[test]
    fn who_left_the_stream_has_pulled_only_what_came_by_pull() {
        let state = |reached, stream, pull| {
            ReceiverState::arrived(Some("too slow".to_owned()), reached, stream, pull)
        };
        let pulled = ReceiverState::Pulled { why: "too slow".to_owned() };
        assert_eq!(state(true, 82_000_000, 800_000), ReceiverState::Complete, "it came back");
        assert_eq!(state(true, 60_000_000, 22_000_000), pulled);
        assert_eq!(state(true, 0, 0), ReceiverState::Complete, "it had everything before");
        assert_eq!(state(false, 0, 0), pulled, "it never had the stream");
        assert_eq!(ReceiverState::arrived(None, true, 9, 1), ReceiverState::Complete, "never left");
    }

    #[test]
    fn complete_means_every_receiver_and_at_least_one() {
        let slow = ReceiverState::Pulled { why: "too slow".to_owned() };
        assert!(report(vec![receiver("a", slow)]).is_complete());
        assert!(!report(vec![]).is_complete());
        let absent = receiver("b", ReceiverState::Absent);
        assert!(!report(vec![receiver("a", ReceiverState::Complete), absent]).is_complete());
        let mut changed = report(vec![receiver("a", ReceiverState::Complete)]);
        changed.failed.push(Named { name: "f".to_owned(), why: "changed".to_owned() });
        assert!(!changed.is_complete());
        let mut few = report(vec![receiver("a", ReceiverState::Complete)]);
        few.session.receivers_wanted = 2;
        assert!(!few.is_complete(), "the other never came");
    }

    #[test]
    fn the_summary_names_trouble_first_and_never_cuts_it() {
        let mut receivers: Vec<_> =
            (0..100).map(|i| receiver(&format!("n{i}"), ReceiverState::Complete)).collect();
        receivers.push(receiver("lost", ReceiverState::Gone { why: "silent".to_owned() }));
        let text = report(receivers).summary();
        let first = text.lines().find(|line| line.starts_with("  ")).unwrap();
        assert!(first.contains("lost") && first.contains("silent"), "{text}");
        assert!(text.contains("and 69 more"), "{text}");
        assert!(text.starts_with("NOT complete") && text.contains("skipped: a/pipe"), "{text}");
    }

    #[test]
    fn an_overhead_is_told_of_what_is_enough_for_one() {
        let told = |data: u64, sent: u64| {
            let mut report = report(vec![receiver("a", ReceiverState::Complete)]);
            report.session.sent.pull_bytes = sent;
            report.session.overhead = sent as f64 / data as f64 - 1.0;
            report.summary()
        };
        assert!(told(45_000_000, 90_000_000).contains("overhead 100.0 %"));
        assert!(!told(5, 12_000).contains("overhead"));
        let nothing = report(vec![receiver("a", ReceiverState::Complete)]);
        assert!(!nothing.summary().contains("overhead"), "nothing had to be brought");
    }

    #[test]
    fn what_the_network_refused_is_taken_off_what_was_sent() {
        let mut report = report(vec![receiver("a", ReceiverState::Complete)]);
        report.session.sent.source_bytes = 5_000_000;
        assert!(!report.summary().contains("refused"));
        report.session.sent.refused_bytes = 3_000_000;
        let text = report.summary();
        assert!(text.contains("sent: 2.0 MB = 5.0 MB source"), "{text}");
        assert!(text.contains("by pull - 3.0 MB that the network refused; "), "{text}");
    }

    #[test]
    fn what_was_kept_is_told_where_some_was() {
        let mut report = report(vec![receiver("a", ReceiverState::Complete)]);
        report.session.goodput_bps = 3_200_000;
        let text = report.summary();
        assert!(!text.contains("kept") && text.contains("3 objects, 0.00 s, 3.2 Mbit/s"), "{text}");
        report.receivers[0].kept_bytes = 19_900_000;
        assert!(
            report.summary().contains(" by pull     19.9 MB kept  loss"),
            "{}",
            report.summary()
        );
        report.session.goodput_bps = 0;
        assert!(report.summary().contains("3 objects, 0.00 s\n"), "it had all before");
    }

    #[test]
    fn what_others_wrote_moves_no_cursor() {
        let mut report =
            report(vec![receiver("\u{1b}[2J", ReceiverState::Gone { why: "\u{7}".into() })]);
        report.skipped[0].name = "a\u{9b}".to_owned();
        let text = report.summary();
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(text.contains("x1b[2J"), "{text}");
    }

    #[test]
    fn what_was_dropped_is_shown_with_its_reasons() {
        let mut report = report(vec![receiver("a", ReceiverState::Complete)]);
        report.session.rejected = Rejected { forged: 700, replayed: 9, ..Rejected::default() };
        let text = report.summary();
        assert!(text.contains("dropped: 709 datagrams: 700 not of this session"), "{text}");
        report.session.rejected.forged = 0;
        assert!(!report.summary().contains("dropped"), "a few are everyday");
    }
}
