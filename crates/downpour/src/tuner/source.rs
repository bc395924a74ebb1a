//! What a source is: something that can be asked for samples of a pair.

use super::sample::{Host, IpVersion, Refused, Sample, same_host};
use downpour_catalog::Time;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// One end of the path that is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Its name, as the user has it: a site or a host.
    pub name: String,
    /// Names and addresses under which measurements may know it, its own name among them.
    pub hosts: Vec<String>,
}

impl End {
    /// Known by its name alone.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { hosts: vec![name.clone()], name }
    }

    /// Whether a source means it.
    pub fn is(&self, host: &Host) -> bool {
        self.is_named(&host.name) || host.addr.is_some_and(|addr| self.is_named(&addr.to_string()))
    }

    /// The same, of a name or an address.
    pub fn is_named(&self, name: &str) -> bool {
        self.hosts.iter().any(|known| same_host(known, name))
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Where the data would come from.
    pub source: End,
    /// Where it would go.
    pub destination: End,
    /// Only over this IP.
    pub ip: Option<IpVersion>,
    /// What time it is.
    pub now: Time,
    /// What is older is not wanted.
    pub age_max: Duration,
}

impl Ask {
    /// The time before which nothing is wanted.
    pub fn since(&self) -> Time {
        let age = i64::try_from(self.age_max.as_micros()).unwrap_or(i64::MAX);
        Time(self.now.0.saturating_sub(age))
    }
}

/// What a source knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Figures.
    pub samples: Vec<Sample>,
    /// What it has besides that is not taken, and why.
    pub refused: Vec<String>,
}

impl Found {
    /// Takes one more, or notes why not.
    pub fn take(&mut self, sample: Result<Sample, Refused>) {
        match sample {
            Ok(sample) => self.samples.push(sample),
            Err(Refused(why)) => self.refused.push(why),
        }
    }

    /// All of another.
    pub fn extend(&mut self, other: Self) {
        self.samples.extend(other.samples);
        self.refused.extend(other.refused);
    }
}

/// A source says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// It cannot be set up as it is configured.
    Unusable(String),
    /// No answer was had from it.
    Silent(String),
    /// It answered with this HTTP status.
    Refuses(u16),
    /// Its answer is not what it should be.
    Nonsense(String),
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(what) | Self::Silent(what) => f.write_str(what),
            Self::Refuses(status) => write!(f, "it answers with HTTP status {status}"),
            Self::Nonsense(what) => write!(f, "its answer is {what}"),
        }
    }
}

impl std::error::Error for SourceError {}

/// What the pages of a source say together: what was found stays known when one of them fails.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pub(super) found: Found,
    failed: Vec<SourceError>,
}

impl Pages {
    /// A page; none if it is refused or makes no sense, which says nothing of the others. Who gives no answer is asked no further.
    pub(super) fn keep<T>(
        &mut self,
        page: Result<T, SourceError>,
    ) -> Result<Option<T>, SourceError> {
        match page {
            Ok(page) => Ok(Some(page)),
            Err(error @ SourceError::Silent(_)) => Err(error),
            Err(error) => {
                self.failed.push(error);
                Ok(None)
            }
        }
    }

    /// What was found, with what failed; the first error when no page said anything.
    pub(super) fn end(mut self, asked: Result<(), SourceError>) -> Result<Found, SourceError> {
        self.failed.extend(asked.err());
        if self.found == Found::default() && !self.failed.is_empty() {
            return Err(self.failed.swap_remove(0));
        }
        self.found.refused.extend(self.failed.iter().map(SourceError::to_string));
        Ok(self.found)
    }
}

/// What a source is doing while it looks.
pub type Asking<'a> = Pin<Box<dyn Future<Output = Result<Found, SourceError>> + Send + 'a>>;

/// Something that knows paths. Asking it never takes longer than it was configured to.
pub trait Source: Send + Sync {
    /// Its name, as the configuration has it.
    fn name(&self) -> &str;

    /// Whether asking loads the path: it is then asked only when nothing recent is known.
    fn is_active(&self) -> bool {
        false
    }

    /// Whether its figures are somebody's word: they count only where nothing was measured by a source before it.
    fn is_word(&self) -> bool {
        false
    }

    /// What it knows of a pair, and of the way back.
    fn ask<'a>(&'a self, ask: &'a Ask) -> Asking<'a>;
}
