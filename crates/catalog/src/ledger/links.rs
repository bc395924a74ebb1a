//! What was seen and decided on links, in a batch: rows that fade. Of each link a writer keeps its newest ones.

use super::Batch;
use super::records::is_text;
use crate::change::{Answer, Refused, WHY_BYTES_MAX};
use crate::link::{Decision, LinkSeen};
use crate::record::{AHEAD_MAX_S, EventKind, LogId, Time};
use crate::schema;
use crate::sql::{DbError, Row, Sql, Table, Value};

/// Rows that a writer keeps of one link.
const SEEN_MAX: i64 = 256;
const DECISIONS_MAX: i64 = 2_000;
/// Longest word for what binds, in bytes.
const BINDING_BYTES_MAX: usize = 64;

impl Batch<'_> {
    pub(super) fn record_seen(&mut self, now: Time, seen: &LinkSeen) -> Answer {
        let mut row: Row = self.key(seen.at, [seen.from.0, seen.to.0]);
        row.extend([
            seen.took_us.into(),
            number(seen.bytes),
            number(seen.sent),
            number(seen.sent_again),
            seen.rtt_us.into(),
            i64::from(seen.connections).into(),
            i64::from(seen.ip).into(),
        ]);
        self.record_link(now, &schema::LINK_SEEN, row, EventKind::LinkSeen)
    }

    pub(super) fn record_decision(&mut self, now: Time, decision: &Decision) -> Answer {
        let Decision { binding, why, .. } = decision;
        if !is_text(binding, BINDING_BYTES_MAX) || !is_text(why, WHY_BYTES_MAX) {
            return Err(Refused::Malformed("a reason is too long or holds a zero byte"));
        }
        let mut row: Row = self.key(decision.at, [decision.from.0, decision.to.0]);
        row.extend([
            i64::from(decision.connections).into(),
            number(decision.pacing_bps),
            number(decision.rate_bps),
            i64::from(decision.lost_ppb).into(),
            binding.as_str().into(),
            why.as_str().into(),
        ]);
        self.record_link(now, &schema::DECISION, row, EventKind::Decision)
    }

    fn key(&self, at: Time, [from, to]: [i64; 2]) -> Row {
        [self.ledger.log.0, at.0, from, to].map(Value::Int).to_vec()
    }

    fn record_link(
        &mut self,
        now: Time,
        table: &'static Table,
        row: Row,
        kind: EventKind,
    ) -> Answer {
        let [at, from, to] = [1, 2, 3].map(|column: usize| row[column].as_int());
        self.faded.insert((table.name, from, to), now);
        self.record(now, table, row, kind, at)
    }
}

/// Numbers of bytes and rates, as far as the databases count.
fn number(value: u64) -> Value {
    Value::Int(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Removes what a writer wrote of a link when its clock was ahead: it would be the newest for as long.
fn fade_ahead(
    sql: &mut dyn Sql,
    log: LogId,
    (table, from, to): (&str, i64, i64),
    now: Time,
) -> Result<(), DbError> {
    let delete =
        format!("DELETE FROM {table} WHERE origin = ? AND destination = ? AND log = ? AND at > ?");
    let last = now.plus_s(AHEAD_MAX_S);
    sql.run(&delete, &[from, to, log.0, last.0].map(Value::Int))
}

/// Removes what a writer has too many of on a link, and by `now` ahead of its clock.
pub(crate) fn fade(
    sql: &mut dyn Sql,
    log: LogId,
    (table, from, to): (&str, i64, i64),
    now: Time,
) -> Result<(), DbError> {
    fade_ahead(sql, log, (table, from, to), now)?;
    let most = if table == schema::DECISION.name { DECISIONS_MAX } else { SEEN_MAX };
    let of_link = "origin = ? AND destination = ? AND log = ?";
    let select =
        format!("SELECT at FROM {table} WHERE {of_link} ORDER BY at DESC LIMIT 1 OFFSET {most}");
    let link = [from, to, log.0];
    let Some(row) = sql.query(&select, &link.map(Value::Int))?.pop() else { return Ok(()) };
    let delete = format!("DELETE FROM {table} WHERE {of_link} AND at <= ?");
    sql.run(&delete, &[from, to, log.0, row[0].as_int()].map(Value::Int))
}
