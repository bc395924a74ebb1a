//! Turns for what may hang in a disk, by the configured folder that it lies in: one that does not answer has few threads, however
//! often it is asked, and holds up nothing of another folder.
//!
//! There are turns to read files for others, to look at what is offered and submitted, and to send. None of them waits for those of
//! another kind. A turn ends with the work that was done in it, though whoever asked for that may wait no longer.

use super::folders::OpenFolders;
use super::lock;
use super::offer::Trouble;
use crate::api::Problem;
use crate::session::SendTurns;
use crate::site::{Config, Fault, blocking};
use downpour_catalog::ErrorClass;
use futures_util::future::try_join_all;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

/// Files of a folder that are opened, or read, for others at once, a thread each.
const READS_MAX: usize = 8;
/// Offers to a folder, and submissions from one, that are looked at at once, a thread each at most.
const LOOKS_MAX: usize = 4;
/// Sessions that read in a folder at once, also those that hang there after their batch was given up. Each has threads of its own, and
/// four of tokio's at most.
const SENDS_MAX: usize = 64;
/// How long a batch waits for its turns, and keeps its place from others meanwhile.
const SEND_WAIT: Duration = Duration::from_secs(60);
/// How long who asks waits for his turn, the disk of a folder and the catalog: less than he waits for the answer.
const LOOK_TIME: Duration = Duration::from_secs(25);
/// Folders that have turns of their own; the others share some. With reads and looks these are three quarters of tokio's 512 threads for
/// what may block.
const FOLDERS_MAX: usize = 32;

/// All turns of a site.
#[derive(Debug, Default)]
pub(super) struct Turns {
    reads: ByFolder,
    looks: ByFolder,
    sends: ByFolder,
}

/// Those of one kind.
type ByFolder = Mutex<HashMap<PathBuf, Arc<Semaphore>>>;

impl Turns {
    /// To read what lies in the same configured folder.
    pub(super) fn reads(&self, config: &Config, path: &Path) -> Arc<Semaphore> {
        turns_in(&self.reads, READS_MAX, config, path)
    }

    /// To look at what is offered to a folder, or submitted from it.
    pub(super) fn looks(&self, config: &Config, folder: &Path) -> Arc<Semaphore> {
        turns_in(&self.looks, LOOKS_MAX, config, folder)
    }

    /// To send what lies at these paths, one for each configured folder.
    pub(super) fn sends<'a>(
        &self,
        config: &Config,
        paths: impl Iterator<Item = &'a Path>,
    ) -> Vec<Arc<Semaphore>> {
        let mut all: Vec<Arc<Semaphore>> = Vec::new();
        for turns in paths.map(|path| turns_in(&self.sends, SENDS_MAX, config, path)) {
            if !all.iter().any(|known| Arc::ptr_eq(known, &turns)) {
                all.push(turns);
            }
        }
        all
    }
}

fn turns_in(turns: &ByFolder, most: usize, config: &Config, path: &Path) -> Arc<Semaphore> {
    let mut folder = OpenFolders::with_inboxes(config).named(path);
    let mut turns = lock(turns);
    if turns.len() >= FOLDERS_MAX && !turns.contains_key(&folder) {
        folder = PathBuf::new();
    }
    turns.entry(folder).or_insert_with(|| Arc::new(Semaphore::new(most))).clone()
}

/// Opens or reads a file for others, where that may block, once it is its turn.
pub(super) async fn read_file<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    let turn = turns.clone().acquire_owned().await.expect("it is never closed");
    blocking(move || {
        let _turn = turn;
        Ok(read())
    })
    .await
}

/// Looks at what is below this path, once it is its turn. Where that or the disk takes too long, whoever asks is told so while he still
/// waits.
pub(super) async fn in_turn<T: Send + 'static>(
    turns: Arc<Semaphore>,
    at: &Path,
    look: impl Future<Output = Result<T, Fault>> + Send + 'static,
) -> Result<T, Problem> {
    let (until, waited) = (tokio::time::Instant::now() + LOOK_TIME, LOOK_TIME.as_secs());
    let at = at.display();
    let Ok(turn) = timeout_at(until, turns.acquire_owned()).await else {
        let what = format!("{at} was busy with other requests for {waited} s");
        return Err(Problem::busy(what, "try later; if that lasts, see to its disk"));
    };
    let turn = turn.expect("it is never closed");
    let looked = tokio::spawn(async move {
        let _turn = turn;
        look.await
    });
    let Ok(looked) = timeout_at(until, looked).await else {
        let what = format!("{at} or the catalog has not answered within {waited} s");
        return Err(Problem::busy(what, "see to its disk and to the catalog, and try again"));
    };
    Ok(looked.map_err(Fault::from)??)
}

/// A turn of each of these to send, to be kept until nothing is read any more. Where they do not come in time others have the place.
pub(super) async fn had(turns: Vec<Arc<Semaphore>>) -> Result<SendTurns, Trouble> {
    let all = try_join_all(turns.into_iter().map(Semaphore::acquire_owned));
    let Ok(all) = tokio::time::timeout(SEND_WAIT, all).await else {
        let what = format!(
            "{SENDS_MAX} sessions read below its folder: see to the disk there if it hangs, or lower `active` of [transfer]"
        );
        return Err(Trouble::new(ErrorClass::OutOfResources, what));
    };
    Ok(Arc::new(all.expect("none is ever closed")))
}

#[cfg(test)]
mod tests {
    use super::{FOLDERS_MAX, READS_MAX, SEND_WAIT, SENDS_MAX, Turns, had, read_file};
    use crate::dispatch::{lock, now};
    use crate::site::Config;
    use downpour_catalog::ErrorClass;
    use std::path::Path;
    use std::sync::{Arc, Barrier};
    use tokio::task::JoinSet;

    /// The turns of a site with these folders, and its configuration.
    fn with_folders(folders: &str) -> (Turns, Config) {
        let text = format!("[site]\nname = 'a'\n[transfer]\nfolders = [{folders}]");
        (Turns::default(), toml::from_str(&text).unwrap())
    }

    #[tokio::test]
    async fn a_disk_that_does_not_answer_has_few_threads_and_holds_up_no_other_folder() {
        let (turns, config) = with_folders("'/hung', '/well'");
        let [hung, well] = ["/hung/a", "/well/a"].map(|a| turns.reads(&config, a.as_ref()));
        assert!(!Arc::ptr_eq(&hung, &well), "or it would be waited for without end");
        let disk = Arc::new(Barrier::new(READS_MAX + 1));
        let mut reads = JoinSet::new();
        for _ in 0..2 * READS_MAX {
            let (hung, disk) = (hung.clone(), disk.clone());
            reads.spawn(async move { read_file(&hung, move || disk.wait()).await });
        }
        while hung.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        reads.shutdown().await;
        assert_eq!(hung.available_permits(), 0, "each is at the disk still");
        read_file(&well, || ()).await.unwrap();
        tokio::task::spawn_blocking(move || disk.wait()).await.unwrap();
        read_file(&hung, || ()).await.unwrap();
    }

    #[test]
    fn each_configured_folder_has_turns_of_its_own_and_what_lies_elsewhere_shares_some() {
        let named: Vec<String> = (0..FOLDERS_MAX).map(|n| format!("'/data/{n}'")).collect();
        let (turns, config) = with_folders(&format!("'/data', {}", named.join(", ")));
        let reads = |path: &str| turns.reads(&config, path.as_ref());
        let is_one = |a: &str, b: &str| Arc::ptr_eq(&reads(a), &reads(b));
        assert!(is_one("/data/0/a", "/data/0/b/c") && is_one("/x", "/y"));
        assert!(!is_one("/data/0/a", "/data/1/a") && !is_one("/data/0/a", "/data/a"));
        assert!(!is_one("/data/1/a", "/data/12/a") && !is_one("/data/a", "/x"));
        for n in 0..FOLDERS_MAX {
            reads(&format!("/data/{n}/a"));
        }
        assert_eq!(lock(&turns.reads).len(), FOLDERS_MAX);
        assert!(is_one(&format!("/data/{}/a", FOLDERS_MAX - 1), "/x"), "there is room for no more");
    }

    #[tokio::test]
    async fn a_batch_has_a_turn_in_each_folder_that_its_files_lie_in() {
        let (turns, config) = with_folders("'/hung', '/well'");
        let sends = |paths: &[&str]| turns.sends(&config, paths.iter().map(Path::new));
        let both = sends(&["/hung/a", "/hung/b", "/well/a"]);
        let hung = sends(&["/hung/c"]);
        assert!(both.len() == 2 && Arc::ptr_eq(&both[0], &hung[0]) && hung.len() == 1);
        assert_eq!(hung[0].available_permits(), SENDS_MAX);
        assert!(!Arc::ptr_eq(&hung[0], &turns.reads(&config, "/hung/c".as_ref())));
        let all = hung[0].clone().acquire_many_owned(SENDS_MAX as u32).await.unwrap();
        tokio::time::pause();
        let begun = now();
        let trouble = had(both.clone()).await.unwrap_err();
        assert_eq!(trouble.class(), ErrorClass::OutOfResources);
        assert_eq!((now() - begun).as_secs(), SEND_WAIT.as_secs());
        assert_eq!(both[1].available_permits(), SENDS_MAX, "it keeps none from others");
        drop(all);
        assert_eq!(had(both).await.unwrap().len(), 2);
    }
}
