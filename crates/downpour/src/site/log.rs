//! Logs of the daemon, to standard error: text for people, or an object of JSON a line. The level follows the
//! configuration; the form is that of the start.

use super::config::{LogForm, LogLevel};
use std::io;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{Handle, Layer};
use tracing_subscriber::{Registry, fmt};

/// Changes the level later.
pub(super) struct LogHandle(Handle<LevelFilter, Registry>);

/// Begins to log for the whole process; `None` when something does already, as in tests.
pub(super) fn begin(level: LogLevel, form: LogForm) -> Option<LogHandle> {
    let (filter, handle) = Layer::new(filter_of(level));
    // A line that cannot be written is dropped. It would be told on standard error, and without one that panics.
    let lines = fmt::layer().with_writer(io::stderr).with_target(true).log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter);
    let begun = match form {
        LogForm::Text => {
            let lines = lines.with_ansi(false);
            tracing::subscriber::set_global_default(registry.with(lines))
        }
        LogForm::Json => tracing::subscriber::set_global_default(registry.with(lines.json())),
    };
    begun.ok().map(|()| LogHandle(handle))
}

impl LogHandle {
    pub(super) fn change(&self, level: LogLevel) {
        // Fails when nothing logs any more.
        let _ = self.0.modify(|filter| *filter = filter_of(level));
    }
}

fn filter_of(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
