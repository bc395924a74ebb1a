//! What a receiver tells its sender while it takes part: how it gets the data (READY), and what it need not be sent (HAVE).
//!
//! 1. An answer may be long in coming, and the loop of an attempt has a silence, a tick and its user to look at: so all is told by
//!    a task, one request after another.
//! 2. What comes up meanwhile waits, and goes together: of READY the newest counts, of HAVE all.
//! 3. What does not arrive is told again for a while. Whether the sender still lives, its events say.
//! 4. A sender that refuses ends the task, and so does one that cannot be told for long: that comes back into the loop.

use super::attempt::Said;
use downpour_proto::RangeSet;
use downpour_transport::control::{
    BlockRange, ControlClient, HaveRequest, ReadyRequest, RequestError,
};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Before what did not arrive is told again.
const PAUSE: Duration = Duration::from_secs(1);
/// For so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The task. Ends when it is dropped.
pub(super) struct Saying {
    words: UnboundedSender<Word>,
    task: JoinHandle<()>,
}

enum Word {
    Ready(ReadyRequest),
    /// Data blocks, and how many sections have been looked at.
    Have(Vec<Range<u32>>, u32),
}

impl Saying {
    /// What the sender refuses goes to `said`.
    pub(super) fn begin(client: &Arc<ControlClient>, said: UnboundedSender<Said>) -> Self {
        let (words, heard) = mpsc::unbounded_channel();
        let client = Arc::clone(client);
        let task = tokio::spawn(async move {
            if let Err(error) = tell(&client, heard).await {
                // Fails only when the attempt is over.
                let _ = said.send(Said::Refused(error));
            }
        });
        Self { words, task }
    }

    pub(super) fn ready(&self, multicast: bool, candidates: bool) {
        self.say(Word::Ready(ReadyRequest { multicast, candidates }));
    }

    pub(super) fn have(&self, data: Vec<Range<u32>>, examined: u32) {
        self.say(Word::Have(data, examined));
    }

    /// Nothing more is told: the way to the sender is free for another word.
    pub(super) async fn end(&mut self) {
        self.task.abort();
        // Of one that was ended there is nothing to hear.
        let _ = (&mut self.task).await;
    }

    fn say(&self, word: Word) {
        // Fails only when the sender has refused: that is on its way to the loop.
        let _ = self.words.send(word);
    }
}

impl Drop for Saying {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn tell(
    client: &ControlClient,
    mut words: UnboundedReceiver<Word>,
) -> Result<(), RequestError> {
    let (mut untold, mut fails) = (Untold::default(), None);
    while untold.is_some() || untold.wait(&mut words).await {
        while let Ok(word) = words.try_recv() {
            untold.add(word);
        }
        match untold.tell(client).await {
            Err(error) if error.is_passing() => {
                if fails.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
                    return Err(error);
                }
                tokio::time::sleep(PAUSE).await;
            }
            told => {
                fails = None;
                told?;
            }
        }
    }
    Ok(())
}

/// What waits.
#[derive(Default)]
struct Untold {
    ready: Option<ReadyRequest>,
    have: Option<(RangeSet, u32)>,
}

impl Untold {
    const fn is_some(&self) -> bool {
        self.ready.is_some() || self.have.is_some()
    }

    /// For something to tell; false when nothing more will come.
    async fn wait(&mut self, words: &mut UnboundedReceiver<Word>) -> bool {
        let word = words.recv().await;
        let is_some = word.is_some();
        word.into_iter().for_each(|word| self.add(word));
        is_some
    }

    fn add(&mut self, word: Word) {
        match word {
            Word::Ready(mut ready) => {
                ready.candidates |= self.ready.is_some_and(|before| before.candidates);
                self.ready = Some(ready);
            }
            Word::Have(data, examined) => {
                let (held, before) = self.have.get_or_insert_default();
                for range in data {
                    held.insert_range(range);
                }
                *before = examined.max(*before);
            }
        }
    }

    /// READY first: who is not ready is not asked what it has.
    async fn tell(&mut self, client: &ControlClient) -> Result<(), RequestError> {
        if let Some(ready) = self.ready {
            client.ready(ready).await?;
            self.ready = None;
        }
        if let Some((held, examined)) = &self.have {
            let data = held.iter().map(BlockRange::from).collect();
            let manifest = Vec::new();
            client.have(HaveRequest { data, manifest, examined: *examined }).await?;
            self.have = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{ReadyRequest, Untold, Word};

    #[test]
    fn of_what_waits_the_newest_way_counts_and_all_that_is_held() {
        let mut untold = Untold::default();
        assert!(!untold.is_some());
        for (multicast, candidates) in [(true, true), (false, false)] {
            untold.add(Word::Ready(ReadyRequest { multicast, candidates }));
        }
        let ready = ReadyRequest { multicast: false, candidates: true };
        assert_eq!(untold.ready, Some(ready), "its sections still wait for it");
        untold.add(Word::Have(vec![4..6, 8..9], 2));
        untold.add(Word::Have(vec![0..3, 3..5], 1));
        let (held, examined) = untold.have.unwrap();
        assert_eq!((held.iter().collect::<Vec<_>>(), examined), (vec![0..6, 8..9], 2));
    }
}
