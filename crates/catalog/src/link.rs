//! Links from one site to another: what the kernel told of their connections, and what was decided on them.

use crate::error::Error;
use crate::reader::Reader;
use crate::record::{SiteId, Time};
use crate::schema;
use crate::sql::{Columns, DbError, Row, Table, Value};

/// What the kernel told of the connections from one site to another, over a while.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkSeen {
    /// The site that sent.
    pub from: SiteId,
    /// The site that received.
    pub to: SiteId,
    /// When that while ended.
    pub at: Time,
    /// How long it was.
    pub took_us: i64,
    /// Bytes that came.
    pub bytes: u64,
    /// Bytes that the sender's kernel sent; 0: nobody told.
    pub sent: u64,
    /// Of these, what it sent again.
    pub sent_again: u64,
    /// The shortest round trip of any connection; 0: not known.
    pub rtt_us: i64,
    /// How many connections at most.
    pub connections: u32,
    /// 4 or 6; 0: not known.
    pub ip: u8,
}

/// What was decided on a link while something came by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The site that sends.
    pub from: SiteId,
    /// The site that receives, and decides.
    pub to: SiteId,
    /// When.
    pub at: Time,
    /// Connections from then on.
    pub connections: u32,
    /// Most of all of them together; 0: none was set.
    pub pacing_bps: u64,
    /// What they had brought until then.
    pub rate_bps: u64,
    /// The share of it that was sent again, of 1,000,000,000.
    pub lost_ppb: u32,
    /// What held them back, in one word.
    pub binding: String,
    /// Why, in one sentence.
    pub why: String,
}

impl Reader {
    /// What was seen on a link, the newest first.
    pub fn link_seen(
        &mut self,
        from: SiteId,
        to: SiteId,
        limit: usize,
    ) -> Result<Vec<LinkSeen>, Error> {
        self.newest(&schema::LINK_SEEN, Some((from, to)), limit, seen_of)
    }

    /// What was decided on a link, or on all, the newest first.
    pub fn decisions(
        &mut self,
        link: Option<(SiteId, SiteId)>,
        limit: usize,
    ) -> Result<Vec<Decision>, Error> {
        self.newest(&schema::DECISION, link, limit, decision_of)
    }

    fn newest<T>(
        &mut self,
        table: &Table,
        link: Option<(SiteId, SiteId)>,
        limit: usize,
        parse: fn(Row) -> Result<T, DbError>,
    ) -> Result<Vec<T>, Error> {
        let of_link = if link.is_some() { "WHERE origin = ? AND destination = ?" } else { "" };
        let (list, name) = (table.list(), table.name);
        let text = format!("SELECT {list} FROM {name} {of_link} ORDER BY at DESC LIMIT ?");
        let link = link.map(|(from, to)| [from.0, to.0]);
        let mut args: Vec<Value> = link.into_iter().flatten().map(Value::Int).collect();
        args.push(Value::Int(limit as i64));
        let rows = self.sql.query(&text, &args)?;
        Ok(rows.into_iter().map(parse).collect::<Result<_, _>>()?)
    }
}

/// Time and ends of a row, after its log.
fn key(row: &mut Columns) -> Result<(Time, SiteId, SiteId), DbError> {
    let _log = row.int()?;
    Ok((Time(row.int()?), SiteId(row.int()?), SiteId(row.int()?)))
}

fn small<T: TryFrom<i64>>(row: &mut Columns) -> Result<T, DbError> {
    let value = row.int()?;
    T::try_from(value).map_err(|_| DbError::damaged(format!("{value} is no such number")))
}

pub(crate) fn seen_of(row: Row) -> Result<LinkSeen, DbError> {
    let mut row = Columns::of(row);
    let (at, from, to) = key(&mut row)?;
    Ok(LinkSeen {
        from,
        to,
        at,
        took_us: row.int()?,
        bytes: row.size()?,
        sent: row.size()?,
        sent_again: row.size()?,
        rtt_us: row.int()?,
        connections: small(&mut row)?,
        ip: small(&mut row)?,
    })
}

pub(crate) fn decision_of(row: Row) -> Result<Decision, DbError> {
    let mut row = Columns::of(row);
    let (at, from, to) = key(&mut row)?;
    Ok(Decision {
        from,
        to,
        at,
        connections: small(&mut row)?,
        pacing_bps: row.size()?,
        rate_bps: row.size()?,
        lost_ppb: small(&mut row)?,
        binding: row.text()?,
        why: row.text()?,
    })
}
