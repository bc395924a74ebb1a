//! What PostgreSQL and MySQL have in common as servers: a small runtime for each connection, time limits, kinds of error.

use crate::sql::DbError;
use sqlx::error::ErrorKind;
use std::cell::OnceCell;
use std::future::Future;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long a server may take to let us in.
const CONNECT_TIME: Duration = Duration::from_secs(15);
/// How long it may take for one statement; then it is taken for gone.
const ANSWER_TIME: Duration = Duration::from_secs(120);
/// And for one of a migration, which may go over all rows.
const MIGRATION_TIME: Duration = Duration::from_secs(86_400);

/// Runs the driver's futures on the calling thread, for one connection: once that is lost nothing more is asked of it. What is still owed
/// would be waited for first; and a transaction that it may have left open must not be gone on with.
pub(crate) struct Waiter {
    runtime: Runtime,
    answer_time: Duration,
    /// Why it is lost.
    lost: OnceCell<String>,
}

impl Waiter {
    pub(crate) fn new() -> Result<Self, DbError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| DbError::Other(error.to_string()))?;
        Ok(Self { runtime, answer_time: ANSWER_TIME, lost: OnceCell::new() })
    }

    /// How long statements may take from now on.
    pub(crate) const fn migrates(&mut self, migrates: bool) {
        self.answer_time = if migrates { MIGRATION_TIME } else { ANSWER_TIME };
    }

    pub(crate) fn connect<T>(
        &self,
        future: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, DbError> {
        // Whatever hinders it, it is not reached.
        self.within(CONNECT_TIME, future).map_err(|error| DbError::Lost(error.to_string()))
    }

    pub(crate) fn answer<T>(
        &self,
        future: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, DbError> {
        if let Some(why) = self.lost.get() {
            return Err(DbError::Lost(why.clone()));
        }
        self.within(self.answer_time, future).inspect_err(|error| {
            if let DbError::Lost(why) = error {
                self.lost.get_or_init(|| why.clone());
            }
        })
    }

    fn within<T>(
        &self,
        time: Duration,
        future: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, DbError> {
        let timed = async { tokio::time::timeout(time, future).await };
        match self.runtime.block_on(timed) {
            Ok(done) => done.map_err(DbError::from),
            Err(_) => Err(DbError::Lost(format!("no answer within {} s", time.as_secs()))),
        }
    }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        let text = error.to_string();
        let sqlx::Error::Database(database) = error else {
            return match error {
                sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_) => {
                    Self::Lost(text)
                }
                sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => Self::Damaged(text),
                _ => Self::Other(text),
            };
        };
        let code = database.code().unwrap_or_default();
        match &*code {
            // Serialization failure and deadlock of PostgreSQL; of MySQL deadlock has the first, too.
            "40001" | "40P01" => Self::Conflict(text),
            // A server that shuts down, was killed, or starts; one that ended a transaction in which nothing was said for too long.
            "57P01" | "57P02" | "57P03" | "25P03" => Self::Lost(text),
            // Disk full, of PostgreSQL.
            "53100" => Self::Full(text),
            _ if database.kind() == ErrorKind::UniqueViolation => Self::Conflict(text),
            // Lock wait timeout of MySQL has a general state.
            _ if text.contains("Lock wait timeout") => Self::Conflict(text),
            _ => Self::Other(text),
        }
    }
}

/// A server does not write files where we are.
pub(crate) fn no_copy(tool: &str) -> DbError {
    DbError::Other(format!("this server is copied with its own tools: {tool}"))
}

#[cfg(test)]
mod tests {
    use super::{MIGRATION_TIME, Waiter};
    use crate::sql::DbError;
    use std::future::{pending, ready};
    use std::time::Duration;

    #[test]
    fn a_migration_may_take_longer() {
        let mut waiter = Waiter::new().unwrap();
        let usual = waiter.answer_time;
        waiter.migrates(true);
        assert_eq!(waiter.answer_time, MIGRATION_TIME);
        waiter.migrates(false);
        assert_eq!(waiter.answer_time, usual);
    }

    #[test]
    fn of_a_connection_that_is_lost_nothing_more_is_asked() {
        let mut waiter = Waiter::new().unwrap();
        waiter.answer_time = Duration::ZERO;
        // What one statement does not do is no reason.
        let refused = waiter.answer(ready(Err::<(), _>(sqlx::Error::RowNotFound)));
        assert!(matches!(refused, Err(DbError::Other(_))), "{refused:?}");
        assert_eq!(waiter.answer(ready(Ok(7))), Ok(7));
        let lost = waiter.answer(pending::<Result<(), _>>());
        assert_eq!(lost, Err(DbError::Lost("no answer within 0 s".to_owned())));
        assert_eq!(waiter.answer(async { panic!("it is asked") }), lost);
    }
}
