//! What of an offer is in its place already, left there by a session that was cut: it is read back, signed for and recorded
//! before the rest is taken, so that nothing of it is sent again. What is known to be damaged, and is not that, makes way, unless
//! it is another file that is recorded there: then the session finds the place taken. What is too large to be looked at before
//! the answer is refused, and looked at afterwards. What has the BLAKE3 that was agreed on and another MD5 than its source says is
//! refused, too: it would come as it is, and what lies there may be another file that is right.

use super::arriving::{Judged, Taken};
use super::contents::Contents;
use super::incoming::{not_recorded, receipt};
use super::offer::{Said, Trouble};
use super::record::record;
use crate::receipt::{SignedFileReceipt, WrongContent, forget_beneath, sync_beneath};
use crate::site::{Fault, Site, blocking};
use downpour_catalog::ErrorClass;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are read before an offer is answered. Of more, and of larger files, the session finds what is there.
pub(super) const READ_MAX: u64 = 256 << 20;

/// Answers for the files that are here with a receipt, and takes the others.
pub(super) async fn find(
    site: &Arc<Site>,
    contents: &Arc<Contents>,
    folder: &Path,
    batch: &str,
    judged: &mut Judged,
) -> Result<(), Fault> {
    let (taken, signer, contents) = (judged.taken.clone(), site.clone(), contents.clone());
    let (below, batch) = (folder.to_owned(), batch.to_owned());
    let found = blocking(move || read(&signer, &contents, (&below, &batch), &taken)).await?;
    let in_place = |(index, signed): &(usize, SignedFileReceipt)| {
        judged.taken[*index].in_place(signed.clone())
    };
    let files: Vec<_> = found.here.iter().map(in_place).collect();
    if !files.is_empty() {
        tracing::info!(files = files.len(), "were in their places already");
    }
    let answers = record(site, folder, files).await?;
    let mut others: Vec<Option<Said>> = vec![None; judged.taken.len()];
    for ((index, receipt), answer) in found.here.into_iter().zip(answers) {
        others[index] = Some(match answer {
            Ok(_) => Said::Have { receipt: Box::new(receipt) },
            Err(refused) => Said::Refuse(not_recorded(&refused)),
        });
    }
    for (index, trouble) in found.refused {
        others[index] = Some(Said::Refuse(trouble));
    }
    let takes = judged.said.iter_mut().filter(|said| matches!(said, Said::Take { .. }));
    let taken = std::mem::take(&mut judged.taken);
    for ((said, taken), other) in takes.zip(taken).zip(others) {
        match other {
            Some(other) => *said = other,
            None => judged.taken.push(taken),
        }
    }
    Ok(())
}

/// Of what was taken, by its place in the list.
#[derive(Default)]
struct Found {
    /// It is here as it shall be, on the disk.
    here: Vec<(usize, SignedFileReceipt)>,
    /// What lies in its place has to be looked at first, or has not all its digests.
    refused: Vec<(usize, Trouble)>,
}

fn read(
    site: &Site,
    contents: &Arc<Contents>,
    (folder, batch): (&Path, &str),
    taken: &[Taken],
) -> Result<Found, Fault> {
    let (mut found, mut left) = (Found::default(), READ_MAX);
    let mut made_way = Vec::new();
    for (index, taken) in taken.iter().enumerate() {
        let receipt = receipt(site, taken, batch);
        let rest = left.checked_sub(taken.item.size).filter(|_| taken.is_there(folder));
        let seen = rest.map(|rest| {
            left = rest;
            receipt.check_digests(folder, &taken.item.others())
        });
        if let Some(Err(wrong @ WrongContent::Other(_))) = seen {
            let what = format!("{}: {wrong}", taken.path);
            found.refused.push((index, Trouble::new(wrong.class(), what)));
            continue;
        }
        let is_right = matches!(seen, Some(Ok(())));
        if let Some(Ok(signed)) = is_right.then(|| receipt.sign(&site.identity)) {
            found.here.push((index, signed));
            continue;
        }
        match taken.make_way(site, folder, contents, &mut left) {
            Ok(recorded) => made_way.extend(recorded),
            Err(fault) => found.refused.push((index, Trouble::new(fault.class, fault.what))),
        }
    }
    for recorded in made_way {
        recorded.wait()?;
    }
    if !found.here.is_empty() {
        let paths = || found.here.iter().map(|(_, signed)| &*signed.receipt.path);
        // Whose they are is not known: what is read of them next is what the disk has.
        let unsynced = |_| paths().for_each(|path| forget_beneath(folder, path));
        sync_beneath(folder, None, paths(), unsynced)
            .map_err(|e| Fault::new(ErrorClass::DestinationWriteFailed, e.to_string()))?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::arriving::{self, Judged};
    use super::super::contents::Contents;
    use super::super::offer::{Offer, OfferItem, Said};
    use super::super::room::Room;
    use crate::object::Digest as Blake3;
    use crate::site::{Daemon, Site};
    use downpour_catalog::{
        AdoptedFile, Change, Digest, DigestKind, ErrorClass, FileId, OtherContent, Replica,
        ReplicaState,
    };
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::time::Duration;

    /// `name` of site `a` is known in the one place to which all go.
    async fn known(site: &Arc<Site>, name: &str, content: &str, place: &Path) -> FileId {
        let (of, name) = (site.clone(), name.to_owned());
        let (content, path) = (content.to_owned(), place.to_str().unwrap().to_owned());
        let adopted = move || {
            let catalog = &of.catalog;
            AdoptedFile {
                site: catalog.site("a").unwrap(),
                name,
                size: content.len() as u64,
                rule: catalog.rule("all").unwrap(),
                digest: Digest::blake3(Blake3::of(content.as_bytes()).0),
                others: Vec::new(),
                replicas: vec![(catalog.site("b").unwrap(), path)],
                other_content: OtherContent::Refuse,
                origin: None,
                receipt: None,
            }
        };
        let adopted = tokio::task::spawn_blocking(adopted).await.unwrap();
        let changes = vec![Change::Adopt(adopted)];
        let answers = site.catalog.submit(site.clock.now(), changes).done().await.unwrap();
        answers[0].clone().unwrap().file
    }

    async fn judge(site: &Arc<Site>, inbox: &Path, name: &str, content: &str) -> Judged {
        judge_with(site, inbox, (name, content), Vec::new()).await
    }

    async fn judge_with(
        site: &Arc<Site>,
        inbox: &Path,
        (name, content): (&str, &str),
        digests: Vec<String>,
    ) -> Judged {
        let item = OfferItem {
            site: "a".to_owned(),
            name: name.to_owned(),
            version: 1,
            taken_in_us: 1,
            rule: "all".to_owned(),
            size: content.len() as u64,
            blake3: Blake3::of(content.as_bytes()).to_string(),
            into: "z".to_owned(),
            digests,
        };
        let offer = Offer { batch: "0".repeat(32), items: vec![item] };
        arriving::judge(site, &Arc::new(Room::default()), inbox, offer).await.unwrap()
    }

    async fn find(site: &Arc<Site>, inbox: &Path, judged: &mut Judged) {
        super::find(site, &Arc::default(), inbox, "batch", judged).await.unwrap();
    }

    async fn replica(site: &Arc<Site>, id: FileId) -> Replica {
        site.read(move |reader| reader.replicas(id)).await.unwrap().remove(0)
    }

    async fn state(site: &Arc<Site>, id: FileId) -> ReplicaState {
        replica(site, id).await.state
    }

    /// A site `b` whose copy of `x/z` is damaged, and recorded as that: its inbox, and the file.
    async fn damaged(folder: &Path) -> (Daemon, PathBuf, FileId) {
        let daemon = Daemon::example(folder, "b", "").await;
        let (site, inbox) = (&daemon.site, folder.join("inbox"));
        std::fs::create_dir_all(&inbox).unwrap();
        std::fs::write(inbox.join("z"), "damaged").unwrap();
        let id = known(site, "x/z", "first", &inbox.join("z")).await;
        let corrupt = Replica { state: ReplicaState::Corrupt, ..replica(site, id).await };
        let changes = vec![Change::Replica(corrupt)];
        site.catalog.submit(site.clock.now(), changes).done().await.unwrap();
        (daemon, inbox, id)
    }

    #[tokio::test]
    async fn what_comes_where_a_damaged_file_was_is_not_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, inbox, id) = damaged(folder.path()).await;
        let (site, place) = (&daemon.site, inbox.join("z"));
        // It makes way, and what was to come in its place does not come.
        let mut judged = judge(site, &inbox, "x/z", "first").await;
        find(site, &inbox, &mut judged).await;
        assert!(judged.taken.len() == 1 && !place.exists());
        assert_eq!(state(site, id).await, ReplicaState::Lost);
        // Another one does, and stays.
        std::fs::write(&place, "second").unwrap();
        known(site, "y/z", "second", &place).await;
        let mut judged = judge(site, &inbox, "x/z", "first").await;
        find(site, &inbox, &mut judged).await;
        assert_eq!((judged.taken.len(), &*std::fs::read(&place).unwrap()), (1, &b"second"[..]));
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn what_is_recorded_where_a_damaged_file_was_stays_under_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, inbox, id) = damaged(folder.path()).await;
        let (site, place) = (&daemon.site, inbox.join("z"));
        // An operator removes the damaged one, and another takes the place.
        std::fs::write(&place, "second").unwrap();
        known(site, "y/z", "second", &place).await;
        for _ in 0..2 {
            let mut judged = judge(site, &inbox, "x/z", "first").await;
            find(site, &inbox, &mut judged).await;
            assert_eq!((judged.taken.len(), &*std::fs::read(&place).unwrap()), (1, &b"second"[..]));
            assert_eq!(state(site, id).await, ReplicaState::Lost);
        }
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn what_is_here_has_all_the_digests_that_its_source_told() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, inbox, _) = damaged(folder.path()).await;
        let site = &daemon.site;
        std::fs::write(inbox.join("z"), "content").unwrap();
        let told = |md5: &str| vec![format!("md5:{md5}"), "of-a-later-kind:00".to_owned()];
        let wrong = told("900150983cd24fb0d6963f7d28e17f72");
        let mut judged = judge_with(site, &inbox, ("y", "content"), wrong.clone()).await;
        find(site, &inbox, &mut judged).await;
        let [Said::Refuse(trouble)] = &judged.said[..] else { panic!("{:?}", judged.said) };
        assert_eq!(trouble.class(), ErrorClass::DigestDiffers, "{trouble}");
        assert!(judged.taken.is_empty() && inbox.join("z").exists());
        let right = "9a0364b9e99bb480dd25e1f0284c8555";
        let mut judged = judge_with(site, &inbox, ("y", "content"), told(right)).await;
        find(site, &inbox, &mut judged).await;
        assert!(matches!(judged.said[..], [Said::Have { .. }]), "{:?}", judged.said);
        let a = site.catalog.clone();
        let digests = site.read(move |reader| {
            let file = reader.versions(a.site("a")?, "y")?.remove(0);
            reader.digests(file.id)
        });
        let digests: Vec<_> = digests.await.unwrap().iter().map(Digest::hex).collect();
        assert_eq!(digests, [Blake3::of(b"content").to_string(), right.to_owned()]);
        // Whoever says that what is recorded there has another digest.
        let mut judged = judge_with(site, &inbox, ("w", "content"), wrong).await;
        find(site, &inbox, &mut judged).await;
        assert!(matches!(judged.said[..], [Said::Refuse(_)]) && inbox.join("z").exists());
        // What is recorded of the same file has another one.
        let id = known(site, "v", "content", &inbox.join("z")).await;
        let other = Digest::new(DigestKind::Md5, &[7; 16]).unwrap();
        let changes = vec![Change::Digest(id, other)];
        site.catalog.submit(site.clock.now(), changes).done().await.unwrap();
        let mut judged = judge_with(site, &inbox, ("v", "content"), told(right)).await;
        find(site, &inbox, &mut judged).await;
        let [Said::Refuse(trouble)] = &judged.said[..] else { panic!("{:?}", judged.said) };
        assert_eq!(trouble.class(), ErrorClass::DigestDiffers, "{trouble}");
        assert!(judged.taken.is_empty() && inbox.join("z").exists());
        daemon.end(Duration::ZERO).await;
    }

    /// Whether a file makes way by what was known of it.
    async fn makes_way(site: &Arc<Site>, inbox: &Path, judged: &Judged) -> bool {
        let (site, inbox) = (site.clone(), inbox.to_owned());
        let taken = judged.taken[0].clone();
        let contents = Arc::<Contents>::default();
        let made_way = move || match taken.make_way(&site, &inbox, &contents, &mut 100).unwrap() {
            Some(recorded) => recorded.wait().map(|_| true).unwrap(),
            None => false,
        };
        tokio::task::spawn_blocking(made_way).await.unwrap()
    }

    #[tokio::test]
    async fn what_came_right_since_it_was_judged_stays_and_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, inbox, id) = damaged(folder.path()).await;
        let (site, place) = (&daemon.site, inbox.join("z"));
        let judged = judge(site, &inbox, "x/z", "first").await;
        // It is in its place, and not recorded yet.
        std::fs::write(&place, "first").unwrap();
        assert!(!makes_way(site, &inbox, &judged).await);
        assert_eq!(&*std::fs::read(&place).unwrap(), b"first");
        assert_eq!(state(site, id).await, ReplicaState::Corrupt);
        // By now it is; whatever is there is not what was judged.
        let present = Replica { state: ReplicaState::Present, ..replica(site, id).await };
        let changes = vec![Change::Replica(present)];
        site.catalog.submit(site.clock.now(), changes).done().await.unwrap();
        for content in ["first", "written by somebody"] {
            std::fs::write(&place, content).unwrap();
            assert!(!makes_way(site, &inbox, &judged).await && place.exists(), "{content}");
            assert_eq!(state(site, id).await, ReplicaState::Present);
        }
        daemon.end(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn an_offer_is_answered_before_a_large_damaged_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, inbox, id) = damaged(folder.path()).await;
        let (site, place, contents) = (&daemon.site, inbox.join("z"), Arc::<Contents>::default());
        std::fs::File::create(&place).unwrap().set_len(super::READ_MAX + 1).unwrap();
        let mut refused = 0;
        loop {
            let mut judged = judge(site, &inbox, "x/z", "first").await;
            super::find(site, &contents, &inbox, "batch", &mut judged).await.unwrap();
            let Said::Refuse(trouble) = &judged.said[0] else { break };
            assert!(judged.taken.is_empty() && trouble.what.starts_with("z: "), "{trouble}");
            refused += 1;
        }
        assert!(refused > 0 && !place.exists());
        assert_eq!(state(site, id).await, ReplicaState::Lost);
        daemon.end(Duration::ZERO).await;
    }
}
