//! What is offered to this site: which of it is here, which is taken, and where to.
//!
//! A file that the catalog has with the same content is answered with its receipt. One that it has with other content, or
//! whose place is taken by something that it does not know, is refused: nothing is ever replaced. Room is reserved for what
//! is taken until its batch has ended.

use super::contents::Contents;
use super::load::Names;
use super::offer::{OFFER_FILES_MAX, Offer, OfferItem, Said, Trouble};
use super::room::{Reserved, Room, Space};
use crate::object::{Digest, Fingerprint, TreeError, check_item_name, part_name, printable};
use crate::receipt::{InPlace, SignedFileReceipt, WORD_BYTES_MAX};
use crate::session::MayOpen;
use crate::site::{Fault, Site, Strange, blocking, make_own};
use crate::spool::Rules;
use downpour_catalog::{
    Answer, Change, Error, ErrorClass, File, NAME_BYTES_MAX, OtherContent, PAGE_MAX, Pending,
    Query, Reader, Replica, ReplicaState, SiteId, Time,
};
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that is taken.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) item: OfferItem,
    pub(super) digest: Digest,
    /// Below the receiving folder.
    pub(super) path: String,
    /// What is there is known to be damaged, unless it came right since: as it is recorded.
    pub(super) damaged: Option<Replica>,
    /// Bytes for which there is to be room: less than all when some of it is here.
    pub(super) needed: u64,
}

impl Taken {
    /// Moves what is known to be damaged out of its place, unless another file has got the place by now, or it is right. It is recorded
    /// as lost: what comes to the place next, under whatever name, is not taken for it. Of what lies there no more than `left` is read.
    /// What is returned is to be waited for.
    pub(super) fn make_way(
        &self,
        site: &Site,
        folder: &Path,
        contents: &Arc<Contents>,
        left: &mut u64,
    ) -> Result<Option<Pending<Vec<Answer>>>, Fault> {
        let Some(damaged) = &self.damaged else { return Ok(None) };
        let place = folder.join(&self.path);
        let looks = Fingerprint::at(&place);
        let found = match looks {
            Some(looks) => contents.of((folder, &self.path), looks, left)?,
            None => None,
        };
        if found == Some(self.digest) {
            return Ok(None);
        }
        let mut reader = site.catalog.reader()?;
        let is_anothers = match found {
            Some(digest) => is_recorded(site, &mut reader, (damaged.site, &place), digest)?,
            None => false,
        };
        // Reading takes its time, and so did what went before: what came or was recorded meanwhile was not judged.
        let is_as_judged =
            reader.replicas(damaged.file)?.contains(damaged) && Fingerprint::at(&place) == looks;
        let has_left = is_as_judged
            && (is_anothers || set_aside(folder, &self.path, &self.item.key().to_string()));
        let lost = Change::Replica(Replica { state: ReplicaState::Lost, ..damaged.clone() });
        Ok(has_left.then(|| site.catalog.submit(site.clock.now(), vec![lost])))
    }

    /// What is recorded of it, once it is signed for.
    pub(super) fn in_place(&self, signed: SignedFileReceipt) -> InPlace {
        InPlace { signed, others: self.item.others() }
    }

    /// Whether a file of its size is in its place: itself, most often, brought by a session that was cut before it was recorded.
    pub(super) fn is_there(&self, folder: &Path) -> bool {
        let there = std::fs::symlink_metadata(folder.join(&self.path));
        there.is_ok_and(|there| there.is_file() && there.len() == self.item.size)
    }

    /// Takes room for what it lacks.
    fn take_room(&mut self, folder: &Path, space: &mut Space<'_>) -> Result<(), Trouble> {
        self.needed = match self.damaged.is_none() && self.is_there(folder) {
            true => 0,
            false => space.take(&self.path, self.item.size)?,
        };
        Ok(())
    }

    /// What its partial file is called.
    pub(super) fn part(&self) -> String {
        part_name(self.path.as_bytes(), self.item.size)
    }
}

/// What an offer is judged by.
pub(super) struct Judge<'a> {
    site: &'a Site,
    own: SiteId,
    /// Sites of origin by name; one that is not there has no files here.
    sites: HashMap<String, SiteId>,
    rules: Rules,
    folder: PathBuf,
}

/// The verdict on an offer.
pub(super) struct Judged {
    pub(super) said: Vec<Said>,
    pub(super) taken: Vec<Taken>,
    pub(super) reserved: Reserved,
}

/// A folder for what arrives, unless files could come to lie among what the daemon keeps, or where the folder that was received into
/// before is not mounted. It may not answer.
pub(super) async fn may_receive(site: &Arc<Site>, folder: PathBuf) -> Result<PathBuf, Fault> {
    let may_open = may_open(site, &folder);
    blocking(move || may_open().map_err(|(class, what)| Fault::new(class, what))).await?;
    Ok(folder)
}

/// The same for a session, which asks each time before it opens the folder.
pub(super) fn may_open(site: &Arc<Site>, folder: &Path) -> MayOpen {
    let (site, folder) = (site.clone(), folder.to_owned());
    Arc::new(move || {
        let config = site.config();
        if config.exposes_own(&folder) {
            let what = format!(
                "{} holds the state folder of {}, or is the daemon's own in it: its operator has to name another folder",
                folder.display(),
                site.name
            );
            return Err((ErrorClass::DestinationRefused, what));
        }
        let refused = |strange: Strange| (ErrorClass::DestinationWriteFailed, strange.to_string());
        site.inboxes.look(&config, &folder, true).map_err(refused)
    })
}

/// Whether an offer can be looked at at all.
pub(super) fn check(offer: &Offer) -> Result<(), String> {
    let hex = offer.batch.len() == 32 && offer.batch.bytes().all(|b| b.is_ascii_hexdigit());
    if !hex {
        return Err("a batch is named by 32 hexadecimal digits".to_owned());
    }
    if offer.items.is_empty() || offer.items.len() > OFFER_FILES_MAX {
        return Err(format!("an offer has 1 to {OFFER_FILES_MAX} files"));
    }
    Ok(())
}

/// Judges an offer of files that go to this folder. Its disk may be slow, or not answer: no turn to read is held meanwhile.
pub(super) async fn judge(
    site: &Arc<Site>,
    room: &Arc<Room>,
    folder: &Path,
    offer: Offer,
) -> Result<Judged, Fault> {
    let (of, inbox) = (site.clone(), folder.to_owned());
    let looks = site.read(move |reader| {
        let judge = Judge::new(&of, reader, inbox)?;
        offer.items.iter().map(|item| judge.look(reader, item)).collect::<Result<Vec<_>, _>>()
    });
    let (looks, room, inbox) = (looks.await?, room.clone(), folder.to_owned());
    blocking(move || Ok(take(looks, &inbox, &room))).await
}

/// Takes what is not here and finds room.
fn take(looks: Vec<Result<Look, Trouble>>, folder: &Path, room: &Arc<Room>) -> Judged {
    let part = |look: &Result<Look, Trouble>| match look {
        Ok(Look::Not(taken)) => Some(taken.part()),
        _ => None,
    };
    let parts = looks.iter().filter_map(part).collect();
    let mut space = room.space(folder, &parts);
    let (mut all_said, mut all_taken) = (Vec::new(), Vec::new());
    let mut paths = HashSet::new();
    for look in looks {
        let said = match look {
            Ok(Look::Here(receipt)) => Said::Have { receipt: Box::new(receipt) },
            Ok(Look::Not(taken)) if !paths.insert(taken.path.clone()) => {
                let what = format!("another file of the offer goes to {}", taken.path);
                Said::Refuse(Trouble::new(ErrorClass::VersionConflict, what))
            }
            Ok(Look::Not(mut taken)) => match taken.take_room(folder, &mut space) {
                Ok(()) => {
                    let path = taken.path.clone();
                    all_taken.push(taken);
                    Said::Take { path }
                }
                Err(trouble) => Said::Refuse(trouble),
            },
            Err(trouble) => Said::Refuse(trouble),
        };
        all_said.push(said);
    }
    Judged { said: all_said, taken: all_taken, reserved: space.reserve() }
}

impl<'a> Judge<'a> {
    /// Of what goes to this folder.
    pub(super) fn new(site: &'a Site, reader: &mut Reader, folder: PathBuf) -> Result<Self, Error> {
        let names = Names::read(reader)?;
        let own = names.site(&site.name).unwrap_or_default();
        let sites = names.sites.into_iter().map(|(id, name)| (name, id)).collect();
        let rules = Rules::new(&site.name, &site.config().rule);
        Ok(Self { site, own, sites, rules, folder })
    }

    /// Looks at one file.
    pub(super) fn look(
        &self,
        reader: &mut Reader,
        item: &OfferItem,
    ) -> Result<Result<Look, Trouble>, Error> {
        let refuse = |class, what: String| Ok(Err(Trouble::new(class, what)));
        let Some(digest) = item.digest() else {
            return refuse(ErrorClass::SourceRefused, "its BLAKE3 is none".to_owned());
        };
        if item.name.is_empty() || item.name.len() > NAME_BYTES_MAX || item.version < 1 {
            return refuse(ErrorClass::NameRefused, "no name that a catalog holds".to_owned());
        }
        if item.site.len().max(item.rule.len()) > WORD_BYTES_MAX {
            let what = format!("a site or rule of more than {WORD_BYTES_MAX} bytes");
            return refuse(ErrorClass::NameRefused, what);
        }
        if item.site == self.site.name {
            let what =
                "it comes from this very site, which takes it from no other: to have it back, \
                        copy it to its place here, and scrub"
                    .to_owned();
            return refuse(ErrorClass::NameRefused, what);
        }
        let known = match self.sites.get(&item.site) {
            Some(site) => reader.file_called((*site, &item.name, item.version))?,
            None => None,
        };
        let rule = self.rules.for_arrival(&item.site, &item.name);
        let refuses = rule.is_some_and(|rule| rule.other_content() == OtherContent::Refuse);
        if known.is_none() && refuses && item.version > 1 {
            let what = "this site's rule refuses other content under a known name".to_owned();
            return refuse(ErrorClass::VersionConflict, what);
        }
        let taken_in = Time(item.taken_in_us);
        let said =
            rule.and_then(|rule| rule.path_of(&item.site, &item.name, item.version, taken_in));
        let path = said.unwrap_or_else(|| item.into.clone());
        if let Err(problem) = check_item_name(&path) {
            let what = TreeError { path: printable(path.as_bytes()), problem }.to_string();
            let more = match item.version {
                ..=1 => "",
                _ => " (with {version} in the path's template no .v2 is added)",
            };
            return refuse(ErrorClass::NameRefused, what + more);
        }
        match known {
            Some(file) => self.known(reader, &file, item, digest, path),
            None => {
                let needed = item.size;
                Ok(Ok(Look::Not(Taken { item: item.clone(), digest, path, damaged: None, needed })))
            }
        }
    }

    /// What follows for a file of which the catalog knows.
    fn known(
        &self,
        reader: &mut Reader,
        file: &File,
        item: &OfferItem,
        digest: Digest,
        path: String,
    ) -> Result<Result<Look, Trouble>, Error> {
        let same = file.digest.as_ref().is_some_and(|known| known.value() == digest.0);
        let replicas = reader.replicas(file.id)?;
        let is_present = |r: &Replica| r.state == ReplicaState::Present;
        // What nobody has any more, as far as is known here, gives way to what its site says now.
        let is_gone = !replicas.is_empty() && !replicas.iter().any(is_present);
        if (!same || file.size != item.size) && !is_gone {
            let what = format!("version {} of it is here with other content", item.version);
            return Ok(Err(Trouble::new(ErrorClass::VersionConflict, what)));
        }
        let replica = replicas.into_iter().find(|r| r.site == self.own);
        if replica.as_ref().is_some_and(is_present) {
            let own = self.site.identity.public_key();
            let receipts = reader.receipts(file.id)?;
            let ours = receipts.iter().find(|receipt| receipt.receiver == own.as_bytes());
            if let Some(Ok(receipt)) = ours.map(|r| SignedFileReceipt::from_bytes(&r.signed)) {
                return Ok(Ok(Look::Here(receipt)));
            }
        }
        // It was here: it comes back to its place. One that lies in another folder says nothing of what is in this one.
        let back = replica.and_then(|replica| Some((self.below(&replica.path)?, replica)));
        let (path, back) = back.map_or((path, None), |(below, replica)| (below, Some(replica)));
        let damaged = match back.filter(|replica| replica.state == ReplicaState::Corrupt) {
            Some(replica) if !self.is_anothers(reader, file, &path)? => Some(replica),
            _ => None,
        };
        let needed = item.size;
        Ok(Ok(Look::Not(Taken { item: item.clone(), digest, path, damaged, needed })))
    }

    /// Whether other content by the same name is known to have got a file's place, after the file left it.
    fn is_anothers(&self, reader: &mut Reader, file: &File, path: &str) -> Result<bool, Error> {
        let mut others = Vec::new();
        for site in self.sites.values() {
            let versions = reader.versions(*site, &file.name)?.into_iter();
            others.extend(versions.filter(|other| other.digest != file.digest).map(|o| o.id));
        }
        let is_there = |r: &Replica| {
            r.site == self.own
                && r.state == ReplicaState::Present
                && self.below(&r.path).as_deref() == Some(path)
        };
        Ok(reader.replicas_of(&others)?.iter().any(is_there))
    }

    /// A replica's path, below the receiving folder.
    fn below(&self, path: &str) -> Option<String> {
        let path = self.site.config().path(Path::new(path));
        let below = path.strip_prefix(&self.folder).ok()?.to_str()?;
        check_item_name(below).ok().map(|()| below.to_owned())
    }
}

/// A file as this site sees it.
pub(super) enum Look {
    Here(SignedFileReceipt),
    Not(Taken),
}

/// Whether a file with this content is recorded as present in a place of a site, whatever its name.
fn is_recorded(
    site: &Site,
    reader: &mut Reader,
    (holder, place): (SiteId, &Path),
    digest: Digest,
) -> Result<bool, Error> {
    let config = site.config();
    let is_there = |r: &Replica| {
        r.site == holder
            && r.state == ReplicaState::Present
            && config.path(Path::new(&r.path)) == place
    };
    let digest = Some(downpour_catalog::Digest::blake3(digest.0));
    let query = Query { digest, ..Query::default() };
    let mut is_found = false;
    reader.search_all(&query, PAGE_MAX, |reader, files| {
        let files: Vec<_> = files.iter().map(|file| file.id).collect();
        is_found = reader.replicas_of(&files)?.iter().any(is_there);
        Ok(!is_found)
    })?;
    Ok(is_found)
}

/// Moves what is known to be damaged, or may be, out of the way of what replaces it. Returns whether its place is free; if it is
/// not, the session says so.
pub(crate) fn set_aside(folder: &Path, path: &str, key: &str) -> bool {
    let place = folder.join(path);
    let move_into = |folder: &Path| {
        let aside = folder.join(".downpour/corrupt");
        make_own(&aside)?;
        std::fs::rename(&place, aside.join(key))
    };
    let moved = match (move_into(folder), place.parent()) {
        // It may not be readable: on another file system it stays, beside its place.
        (Err(error), Some(parent)) if error.kind() == ErrorKind::CrossesDevices => {
            move_into(parent)
        }
        (moved, _) => moved,
    };
    match moved {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(path, %error, "a file that is damaged, or may be, stays where it is");
            false
        }
        _ => true,
    }
}

#[cfg(test)]
impl Taken {
    /// For tests.
    pub(super) fn example(path: &str, size: u64) -> Self {
        let item = OfferItem {
            site: "a".to_owned(),
            name: path.to_owned(),
            version: 1,
            taken_in_us: 1,
            rule: "all".to_owned(),
            size,
            blake3: String::new(),
            into: path.to_owned(),
            digests: Vec::new(),
        };
        let (path, needed) = (path.to_owned(), size);
        Self { item, digest: Digest([0; 32]), path, damaged: None, needed }
    }
}

#[cfg(test)]
mod tests {
    use super::{Taken, judge, set_aside};
    use crate::dispatch::offer::Offer;
    use crate::dispatch::room::Room;
    use crate::site::{Daemon, READERS_MAX};
    use downpour_catalog::{FileId, Replica, ReplicaState, SiteId};
    use std::collections::HashSet;
    use std::os::unix::fs::MetadataExt as _;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn offers_that_wait_for_a_disk_leave_the_catalog_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let inbox = folder.path().join("inbox");
        let daemon = Daemon::example(folder.path(), "b", "").await;
        let (room, none) = (Arc::new(Room::default()), HashSet::new());
        // The disk does not answer the first one.
        let space = room.space(&inbox, &none);
        let mut offers = JoinSet::new();
        for _ in 0..2 * READERS_MAX {
            let (site, room, inbox) = (daemon.site.clone(), room.clone(), inbox.clone());
            let items = vec![Taken::example("x", 1).item];
            let offer = Offer { batch: "0".repeat(32), items };
            offers.spawn(async move { judge(&site, &room, &inbox, offer).await.map(|_| ()) });
        }
        // Each is waiting for its turn, or has it.
        tokio::task::yield_now().await;
        let read = daemon.site.read(|reader| reader.sites());
        let is_read = tokio::time::timeout(Duration::from_secs(60), read).await;
        drop(space);
        for judged in offers.join_all().await {
            judged.unwrap();
        }
        daemon.end(Duration::ZERO).await;
        is_read.expect("the catalog is read").unwrap();
    }

    #[test]
    fn what_is_in_its_place_needs_no_room_unless_it_is_known_to_be_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        std::fs::write(at.join("here"), [1; 3]).unwrap();
        let (room, parts) = (Arc::new(Room::default()), HashSet::new());
        let _full = room.promise(at, u64::MAX / 2);
        let mut space = room.space(at, &parts);
        let mut needed = |path: &str, size, is_damaged: bool| {
            let (file, site, path_here) = (FileId(1), SiteId(1), path.to_owned());
            let state = ReplicaState::Corrupt;
            let damaged = is_damaged.then_some(Replica { file, site, path: path_here, state });
            let mut taken = Taken { damaged, ..Taken::example(path, size) };
            taken.take_room(at, &mut space).map(|()| taken.needed).ok()
        };
        assert_eq!(needed("here", 3, false), Some(0));
        assert_eq!(needed("here", 4, false), None, "it is something else");
        assert_eq!((needed("here", 3, true), needed("away", 3, false)), (None, None));
    }

    #[test]
    fn what_is_damaged_goes_aside_also_where_another_file_system_begins() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm"));
        let name = "what_is_damaged_goes_aside_also_where_another_file_system_begins";
        let device = |path: &std::path::Path| std::fs::metadata(path).unwrap().dev();
        let Some(other) = other.ok().filter(|at| device(at.path()) != device(folder.path())) else {
            return crate::skipped::not_here(name, "/dev/shm is no other file system");
        };
        let at = folder.path();
        std::os::unix::fs::symlink(other.path(), at.join("data")).unwrap();
        for (path, aside) in
            [("x", ".downpour/corrupt/key"), ("data/y", "data/.downpour/corrupt/key")]
        {
            std::fs::write(at.join(path), path).unwrap();
            assert!(set_aside(at, path, "key"));
            assert_eq!(std::fs::read_to_string(at.join(aside)).unwrap(), path);
            assert!(!at.join(path).exists());
            assert!(set_aside(at, path, "key"), "its place is free");
        }
    }
}
