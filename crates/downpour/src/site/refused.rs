//! Who is refused again and again: of one's refusals at one route the first is recorded at once, and the number of the others when its
//! minute is over, or with the daemon's end. Each by itself could fill the disk.

use super::{Deed, Fault, Site};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long others are counted after the first.
const COUNTED_FOR: Duration = Duration::from_secs(60);

/// Who, and at which route.
type Whose = (String, String);

/// Those whose minute is not over: how many were not recorded, and the last of them.
#[derive(Default)]
pub(super) struct Refused(Mutex<HashMap<Whose, (u64, Deed)>>);

impl Refused {
    fn counted(&self) -> MutexGuard<'_, HashMap<Whose, (u64, Deed)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this one is the first.
    fn begin(&self, whose: &Whose, deed: &Deed) -> bool {
        match self.counted().entry(whose.clone()) {
            Entry::Vacant(new) => {
                new.insert((0, deed.clone()));
                true
            }
            Entry::Occupied(mut counted) => {
                let others = counted.get().0 + 1;
                counted.insert((others, deed.clone()));
                false
            }
        }
    }

    /// What is to be recorded at its end.
    fn end(&self, whose: &Whose) -> Option<Deed> {
        let (others, last) = self.counted().remove(whose).filter(|(others, _)| *others > 0)?;
        Some(Deed { detail: format!("the last of {others} more within a minute"), ..last })
    }
}

impl Site {
    /// Records that somebody was refused, or counts it.
    pub(crate) async fn record_refused(
        self: &Arc<Self>,
        deed: Deed,
        route: String,
    ) -> Result<(), Fault> {
        let whose = (deed.who.clone(), route);
        if !self.refused.begin(&whose, &deed) {
            return Ok(());
        }
        let site = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(COUNTED_FOR).await;
            if let Some(site) = site.upgrade() {
                site.end_refused(&whose).await;
            }
        });
        self.record(deed).await
    }

    /// Records what was only counted so far.
    pub(super) async fn end_all_refused(self: &Arc<Self>) {
        let all: Vec<Whose> = self.refused.counted().keys().cloned().collect();
        for whose in all {
            self.end_refused(&whose).await;
        }
    }

    async fn end_refused(self: &Arc<Self>, whose: &Whose) {
        let Some(deed) = self.refused.end(whose) else { return };
        if let Err(error) = self.record(deed).await {
            tracing::error!(%error, "the audit record cannot be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Daemon, Deed, Wanted};
    use super::COUNTED_FOR;
    use std::time::Duration;
    use tokio::time::sleep;

    #[tokio::test]
    async fn who_is_refused_all_the_time_fills_no_disk_and_each_time_counts() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::example(folder.path(), "a", "").await;
        let site = daemon.site.clone();
        let refuse = async |who: &str, route: &str| {
            let [from, what, result, detail] = [const { String::new() }; 4];
            let deed = Deed { who: who.to_owned(), from, what, result, detail };
            site.record_refused(deed, route.to_owned()).await.unwrap();
        };
        let recorded = || {
            let entries = site.audit.list(&Wanted::default(), 100).unwrap().0;
            entries.into_iter().map(|entry| entry.who + &entry.detail).collect::<Vec<_>>()
        };
        for (who, route) in [("eye", "a"), ("eye", "a"), ("ear", "a"), ("eye", "b"), ("eye", "a")] {
            refuse(who, route).await;
        }
        let mut all = vec!["eye".to_owned(), "ear".to_owned(), "eye".to_owned()];
        assert_eq!(recorded(), all);
        daemon.end(Duration::ZERO).await;
        all.push("eyethe last of 2 more within a minute".to_owned());
        assert_eq!(recorded(), all);
        // Those of an ended daemon would hold up a clock that the test turns.
        tokio::time::pause();
        for _ in 0..3 {
            refuse("eye", "a").await;
        }
        all.push("eye".to_owned());
        assert_eq!(recorded(), all);
        sleep(COUNTED_FOR).await;
        all.push("eyethe last of 2 more within a minute".to_owned());
        while recorded().len() < all.len() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(recorded(), all);
    }
}
