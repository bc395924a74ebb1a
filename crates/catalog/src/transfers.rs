//! Transfers, as people ask for them: which there are, and how their files stand.

use crate::error::Error;
use crate::life::State;
use crate::reader::Reader;
use crate::record::{FileId, SiteId, Time, Transfer, TransferId};
use crate::sql::{Columns, DbError, Row, Value};

impl Reader {
    /// The newest transfers with a file that has not ended, newest first.
    pub fn open_transfers(&mut self, limit: usize) -> Result<Vec<Transfer>, Error> {
        // Of the files one index is read, and nothing of what has ended.
        let text = "SELECT t.id, t.origin, t.destination, t.submitted FROM transfer t JOIN \
                    (SELECT DISTINCT transfer FROM live WHERE transfer > 0 \
                    ORDER BY transfer DESC LIMIT ?) l ON l.transfer = t.id ORDER BY t.id DESC";
        let rows = self.sql.query(text, &[(limit as i64).into()])?;
        Ok(rows.into_iter().map(transfer_of).collect::<Result<_, _>>()?)
    }

    /// One transfer.
    pub fn transfer(&mut self, id: TransferId) -> Result<Option<Transfer>, Error> {
        let text = "SELECT id, origin, destination, submitted FROM transfer WHERE id = ?";
        let rows = self.sql.query(text, &[id.0.into()])?;
        Ok(rows.into_iter().next().map(transfer_of).transpose()?)
    }

    /// How a transfer's files stand: how many, and their bytes. A file that ended without an attempt is not counted.
    pub fn transfer_states(&mut self, id: TransferId) -> Result<Vec<(State, u64, u64)>, Error> {
        let sum = |column| self.sql.dialect().sum(column);
        let (live, ended) = (sum("size"), sum("f.size"));
        // One statement, so that a file that ends meanwhile is counted once.
        let text = format!(
            "SELECT state, COUNT(*), {live} FROM live WHERE transfer = ? GROUP BY state UNION ALL \
             SELECT f.state, COUNT(*), {ended} FROM file f WHERE f.state <> 0 AND f.id IN \
             (SELECT a.file FROM attempt a WHERE a.transfer = ?) GROUP BY f.state"
        );
        let state = |row| -> Result<_, DbError> {
            let mut row = Columns::of(row);
            Ok((row.code(State::from_code)?, row.size()?, row.size()?))
        };
        let rows = self.sql.query(&text, &[id.0.into(), id.0.into()])?;
        Ok(rows.into_iter().map(state).collect::<Result<_, _>>()?)
    }

    /// Files of a transfer after `after` that are in one of these states, none of which is an end.
    pub fn transfer_live(
        &mut self,
        id: TransferId,
        states: &[State],
        after: FileId,
        limit: usize,
    ) -> Result<Vec<FileId>, Error> {
        let among = vec!["?"; states.len()].join(", ");
        let text = format!(
            "SELECT file FROM live WHERE transfer = ? AND file > ? AND state IN ({among}) \
             ORDER BY file LIMIT ?"
        );
        let states = states.iter().map(|state| i64::from(state.code()));
        let args = [id.0, after.0].into_iter().chain(states).chain([limit as i64]);
        let rows = self.sql.query(&text, &args.map(Value::Int).collect::<Vec<_>>())?;
        let file = |row: Row| -> Result<FileId, DbError> { Ok(FileId(Columns::of(row).int()?)) };
        Ok(rows.into_iter().map(file).collect::<Result<_, _>>()?)
    }
}

pub(crate) fn transfer_of(row: Row) -> Result<Transfer, DbError> {
    let mut row = Columns::of(row);
    Ok(Transfer {
        id: TransferId(row.int()?),
        from: SiteId(row.int()?),
        to: SiteId(row.int()?),
        submitted: Time(row.int()?),
    })
}
