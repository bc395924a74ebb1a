//! What a receiver tells of files of a site that come as products: the clerk's words, one after another, for as long as an
//! attempt lasts.

use super::receive::Taker;
use crate::product::{Clerk, Word};
use downpour_transport::control::{ControlClient, Joined};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Before a word that was not heard is said again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the last words may take.
const LAST_TIME: Duration = Duration::from_secs(20);

/// The clerk at work. Ends when it is dropped.
pub(super) struct Telling(Option<(Arc<Clerk>, Arc<ControlClient>, JoinHandle<()>)>);

impl Telling {
    /// In a session of products.
    pub(super) fn begin(joined: &Joined, client: &Arc<ControlClient>, taker: &Taker) -> Self {
        let products = joined.reply.products_from.is_some();
        let Some(clerk) = taker.clerk.as_ref().filter(|_| products) else { return Self(None) };
        let (telling, to) = (Arc::clone(clerk), Arc::clone(client));
        let task = tokio::spawn(async move {
            while tell(&telling, &to).await {
                telling.changed().await;
            }
        });
        Self(Some((Arc::clone(clerk), Arc::clone(client), task)))
    }

    /// Nothing more comes. What is left is told if the sender still listens.
    pub(super) async fn end(mut self, listens: bool) {
        let Some((clerk, client, task)) = self.0.take() else { return };
        task.abort();
        let _ = task.await;
        if listens {
            let _ = tokio::time::timeout(LAST_TIME, tell(&clerk, &client)).await;
        }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        if let Some((_, _, task)) = &self.0 {
            task.abort();
        }
    }
}

/// Tells all that there is; false when nobody will hear any more of it in this session.
async fn tell(clerk: &Arc<Clerk>, client: &ControlClient) -> bool {
    loop {
        let made = {
            let clerk = Arc::clone(clerk);
            tokio::task::spawn_blocking(move || clerk.next_word()).await
        };
        let Ok(made) = made else { return false };
        let Some(word) = made else { return true };
        if !say(client, &word).await {
            return false;
        }
        clerk.told(&word);
    }
}

async fn say(client: &ControlClient, word: &Word) -> bool {
    let text = serde_json::to_string(word).unwrap_or_default();
    loop {
        match client.word(text.clone()).await {
            Ok(()) => return true,
            Err(error) if error.is_passing() => tokio::time::sleep(PAUSE).await,
            Err(_) => return false,
        }
    }
}
