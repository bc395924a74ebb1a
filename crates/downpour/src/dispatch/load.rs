//! What is looked up in the catalog of files that are to go: where they lie here, what they are called, who has them already; and how
//! many are queued.

use super::book::Held;
use super::route::Route;
use crate::site::{Config, Site, is_own, real};
use downpour_catalog::{
    Claimed, Count, Digest, Error, ErrorClass, FileId, Reader, Receipt, ReplicaState, RuleId,
    SiteId, State,
};
use downpour_transport::identity::PublicKey;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

/// Names of sites and rules.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) sites: HashMap<SiteId, String>,
    pub(super) rules: HashMap<RuleId, String>,
}

impl Names {
    pub(super) fn read(reader: &mut Reader) -> Result<Self, Error> {
        Ok(Self {
            sites: reader.sites()?.into_iter().collect(),
            rules: reader.rules()?.into_iter().collect(),
        })
    }

    pub(super) fn site(&self, name: &str) -> Option<SiteId> {
        self.sites.iter().find(|(_, known)| *known == name).map(|(id, _)| *id)
    }

    pub(super) fn rule(&self, id: RuleId) -> &str {
        self.rules.get(&id).map_or("", String::as_str)
    }
}

/// By what other sites sign, by name.
pub(super) fn keys(site: &Site) -> HashMap<String, PublicKey> {
    site.remotes().iter().map(|remote| (remote.name().to_owned(), remote.key())).collect()
}

/// Files and bytes in the queue, by rule.
pub(super) fn queue_by_rule(counts: &[Count]) -> BTreeMap<RuleId, (i64, i64)> {
    let mut queue: BTreeMap<RuleId, (i64, i64)> = BTreeMap::new();
    for count in counts.iter().filter(|count| count.state == State::Queued) {
        let sum = queue.entry(count.rule).or_default();
        *sum = (sum.0 + count.files, sum.1 + count.bytes);
    }
    queue
}

/// Where a file lies here, if it does.
pub(super) fn place_here(
    reader: &mut Reader,
    file: FileId,
    config: &Config,
) -> Result<Option<PathBuf>, Error> {
    let own = reader.site_called(&config.site.name)?;
    let mut replicas = reader.replicas(file)?.into_iter();
    let here = replicas.find(|r| Some(r.site) == own && r.state == ReplicaState::Present);
    Ok(here.map(|replica| config.path(replica.path.as_ref())))
}

/// What became of claimed files.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// Those that can be sent.
    pub(super) ready: Vec<Held>,
    /// Those that cannot, and why.
    pub(super) failed: Vec<(Held, ErrorClass)>,
    /// Those that this destination has, while others are still to have them.
    pub(super) elsewhere: Vec<Held>,
}

/// Looks claimed files up, for one destination.
pub(super) fn load(
    reader: &mut Reader,
    claimed: &[Claimed],
    names: &Names,
    config: &Config,
    to: (&str, &HashMap<String, PublicKey>),
    route: &mut Route,
) -> Result<Loaded, Error> {
    let mut loaded = Loaded::default();
    let own = names.site(&config.site.name);
    let state = real(&config.state());
    let files: Vec<FileId> = claimed.iter().map(|claimed| claimed.file).collect();
    let mut digests: HashMap<FileId, Vec<Digest>> = HashMap::new();
    for (file, digest) in reader.digests_of(&files)? {
        digests.entry(file).or_default().push(digest);
    }
    if route.to.len() > 1 {
        let mut have = having(reader, &files, (names, to.1))?;
        have.retain(|(_, site)| route.to.contains(site));
        have.iter().for_each(|(file, site)| route.note(*file, site));
    }
    for claimed in claimed {
        let Some(file) = reader.file(claimed.file)? else { continue };
        let mut held = Held::new(file, claimed);
        held.origin = names.sites.get(&held.file.site).cloned().unwrap_or_default();
        held.rule = names.rule(held.file.rule).to_owned();
        held.digests = digests.remove(&held.file.id).unwrap_or_default();
        let replicas = reader.replicas(held.file.id)?;
        let mine = replicas.into_iter().find(|r| Some(r.site) == own);
        // What brought it to other sites was no failure.
        let went = u32::try_from(route.having(held.file.id)).unwrap_or(u32::MAX);
        held.file.tries = held.file.tries.saturating_sub(went);
        let is_elsewhere = !route.wants(held.file.id, to.0) && !route.is_last(held.file.id, to.0);
        if is_elsewhere {
            loaded.elsewhere.push(held);
            continue;
        }
        match mine {
            Some(replica)
                if replica.state == ReplicaState::Present && held.file.digest.is_some() =>
            {
                held.path = config.path(replica.path.as_ref());
                match is_own(&state, &held.path) {
                    true => loaded.failed.push((held, ErrorClass::FileUnreadable)),
                    false => loaded.ready.push(held),
                }
            }
            Some(replica) if replica.state == ReplicaState::Corrupt => {
                loaded.failed.push((held, ErrorClass::SourceReadFailed));
            }
            _ => loaded.failed.push((held, ErrorClass::FileGone)),
        }
    }
    Ok(loaded)
}

/// Which of these sites have which of these files already, as their receipts say.
pub(super) fn having(
    reader: &mut Reader,
    files: &[FileId],
    (names, keys): (&Names, &HashMap<String, PublicKey>),
) -> Result<HashSet<(FileId, String)>, Error> {
    let of =
        |(site, key): (&String, &PublicKey)| Some((names.site(site)?, key.as_bytes().to_vec()));
    let holders = keys.iter().filter_map(of).collect();
    let sites: HashMap<&[u8], &String> =
        keys.iter().map(|(site, key)| (&key.as_bytes()[..], site)).collect();
    let receipts = receipts_that_hold(reader, files, &holders)?;
    let has =
        |receipt: &Receipt| Some((receipt.file, sites.get(&receipt.receiver[..])?.to_string()));
    Ok(receipts.iter().filter_map(has).collect())
}

/// The receipts of those, by site and key, who have a file still. A receipt stays when the copy is lost, and is none for the
/// next one.
pub(super) fn receipts_that_hold(
    reader: &mut Reader,
    files: &[FileId],
    holders: &HashMap<SiteId, Vec<u8>>,
) -> Result<Vec<Receipt>, Error> {
    let replicas = reader.replicas_of(files)?;
    let present = replicas.iter().filter(|replica| replica.state == ReplicaState::Present);
    let have: HashSet<(FileId, &Vec<u8>)> =
        present.filter_map(|r| Some((r.file, holders.get(&r.site)?))).collect();
    let mut receipts = reader.receipts_of(files)?;
    receipts.retain(|receipt| have.contains(&(receipt.file, &receipt.receiver)));
    Ok(receipts)
}
