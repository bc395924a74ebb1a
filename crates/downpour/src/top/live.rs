//! A daemon, a terminal, and the state between them.
//!
//! Four at work, each of which sends [`News`] to the one that draws: a look at the daemon every second, and at once when something
//! happened; its events, which go on where they were when the connection comes back; the keys; and commands. A daemon
//! that does not answer is asked on and on.

use super::keys::Command;
use super::page::draw;
use super::state::{Look, Said, State};
use crate::api::Services;
use crate::dispatch::{Done, Links, Transfers, WhyList};
use crate::site::{Access, EventId, RemoteError, SiteEvent};
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use serde::Deserialize;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Between two looks when nothing happens, and at least.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// Before events are asked for again.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);
/// How long the thread that reads keys goes on when nobody wants them any more.
const KEYS_EVERY: Duration = Duration::from_millis(250);

/// What the one that draws is told.
enum News {
    Seen(Box<Look>),
    Lost(String),
    Heard(Box<SiteEvent>),
    Pressed(KeyEvent),
    Resized,
    Said(Said),
    /// The terminal is gone, or somebody wants us to end.
    Over(io::Result<()>),
}

/// Asks a daemon for all that a page shows, events aside.
pub async fn look(site: &Access) -> Result<Look, RemoteError> {
    let services: Services = site.get("/v1/services").await?;
    let links: Links = site.get("/v1/links").await?;
    let transfers: Transfers = site.get("/v1/transfers?most=0").await?;
    let why: WhyList = site.get("/v1/why").await?;
    Ok(Look {
        site: services.site,
        now_us: services.now_us,
        services: services.services,
        links: links.links,
        batches: transfers.batches,
        waiting: why.files,
        more_wait: why.next.is_some(),
    })
}

/// Shows the page until its user leaves.
pub async fn run(site: Access) -> io::Result<()> {
    let mut state = State::new(site.address.clone());
    let (site, wake) = (Arc::new(site), Arc::new(Notify::new()));
    // Keys, looks and events come slower than they are taken: all that are there, each time.
    let (tell, mut news) = unbounded_channel();
    let mut tasks = JoinSet::new();
    let mut ended = signal(SignalKind::terminate())?;
    let over = tell.clone();
    tasks.spawn(async move {
        ended.recv().await;
        let _ = over.send(News::Over(Ok(())));
    });
    tasks.spawn(watch(site.clone(), tell.clone(), wake.clone()));
    tasks.spawn(hear(site.clone(), tell.clone(), wake.clone()));
    let mut terminal = ratatui::try_init()?;
    let keys = tell.clone();
    let keys = std::thread::spawn(move || read_keys(&keys));
    let done = loop {
        let drawn = terminal.draw(|frame| draw(&state, frame.area(), frame.buffer_mut()));
        if let Err(error) = drawn {
            break Err(error);
        }
        match take(&mut state, &mut news).await {
            Taken::Nothing => {}
            Taken::Command(command) => {
                tasks.spawn(act(site.clone(), command, tell.clone(), wake.clone()));
            }
            Taken::Over(done) => break done,
        }
    };
    ratatui::restore();
    drop((news, tell));
    tasks.shutdown().await;
    // It ends when it finds that nobody wants keys.
    let _ = keys.join();
    done
}

enum Taken {
    Nothing,
    Command(Command),
    Over(io::Result<()>),
}

/// Waits for news, and takes all that there are into the state; ends early at a command.
async fn take(state: &mut State, news: &mut UnboundedReceiver<News>) -> Taken {
    let mut next = news.recv().await;
    while let Some(one) = next {
        match one {
            News::Seen(look) => state.seen(*look),
            News::Lost(why) => state.lost(why),
            News::Heard(event) => state.heard(*event),
            News::Said(said) => state.said = Some(said),
            News::Resized => {}
            News::Over(done) => return Taken::Over(done),
            News::Pressed(key) => match state.press(key) {
                Some(Command::Quit) => return Taken::Over(Ok(())),
                Some(command) => return Taken::Command(command),
                None => {}
            },
        }
        next = news.try_recv().ok();
    }
    Taken::Nothing
}

async fn watch(site: Arc<Access>, tell: UnboundedSender<News>, wake: Arc<Notify>) {
    loop {
        let seen = match look(&site).await {
            Ok(look) => News::Seen(Box::new(look)),
            Err(error) => News::Lost(error.to_string()),
        };
        if tell.send(seen).is_err() {
            return;
        }
        sleep(LOOK_PAUSE).await;
        let _ = timeout(LOOK_EVERY - LOOK_PAUSE, wake.notified()).await;
    }
}

async fn hear(site: Arc<Access>, tell: UnboundedSender<News>, wake: Arc<Notify>) {
    let mut place = Some(EventId::FIRST);
    loop {
        let heard = |text: &str| {
            if let Ok(event) = serde_json::from_str(text) {
                let _ = tell.send(News::Heard(Box::new(event)));
                wake.notify_one();
            }
        };
        // Whatever ends it, the looks tell whether the daemon is there.
        let _ = site.listen(&mut place, true, heard).await;
        sleep(LISTEN_PAUSE).await;
    }
}

fn read_keys(tell: &UnboundedSender<News>) {
    while !tell.is_closed() {
        let told = match event::poll(KEYS_EVERY).and_then(|any| any.then(event::read).transpose()) {
            Ok(Some(Event::Key(key))) if key.kind == KeyEventKind::Press => News::Pressed(key),
            Ok(Some(Event::Resize(..))) => News::Resized,
            Ok(_) => continue,
            Err(error) => {
                let _ = tell.send(News::Over(Err(error)));
                return;
            }
        };
        let _ = tell.send(told);
    }
}

async fn act(site: Arc<Access>, command: Command, tell: UnboundedSender<News>, wake: Arc<Notify>) {
    let mut answers = Vec::new();
    for (words, path, body) in command.requests() {
        let answer = site.post::<serde_json::Value>(&path, &body).await;
        answers.push((words, answer.map_err(|error| error.to_string())));
    }
    let _ = tell.send(News::Said(said(answers)));
    wake.notify_one();
}

/// What became of each request of a command.
fn said(answers: Vec<(String, Result<serde_json::Value, String>)>) -> Said {
    let good = answers.iter().all(|(_, answer)| answer.is_ok());
    let told = answers.into_iter().map(|(words, answer)| match answer.map(Done::deserialize) {
        Ok(Ok(Done { done, passed, unknown, .. })) => {
            format!("done: {words}; {done} done, {} not", passed + unknown.len() as u64)
        }
        Ok(Err(_)) => format!("done: {words}"),
        Err(error) => format!("not done: {words}: {error}"),
    });
    Said { good, text: told.collect::<Vec<_>>().join("; ") }
}

#[cfg(test)]
mod tests {
    use super::said;
    use serde_json::json;

    #[test]
    fn each_request_of_a_command_is_told_by_itself() {
        let done = json!({ "done": 3, "passed": 1 });
        let both = vec![
            ("retry 4 files".to_owned(), Ok(done)),
            ("release 2 files".to_owned(), Err("403: not allowed".to_owned())),
        ];
        let said = said(both);
        let told =
            "done: retry 4 files; 3 done, 1 not; not done: release 2 files: 403: not allowed";
        assert_eq!((said.good, said.text.as_str()), (false, told));
    }
}
