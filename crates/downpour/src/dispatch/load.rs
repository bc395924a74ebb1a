//! Claimed files, looked up: where they lie here, what they are called, who has them already.

use super::book::Held;
use super::route::Route;
use crate::site::Config;
use downpour_catalog::{
    Claimed, Error, ErrorClass, File, FileId, Reader, Receipt, ReplicaState, RuleId, SiteId, State,
};
use downpour_transport::identity::PublicKey;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

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
    for claimed in claimed {
        let Some(file) = reader.file(claimed.file)? else { continue };
        if route.to.len() > 1 {
            note_receipts(reader, &file, (names, to.1), route)?;
        }
        let mut held = Held::new(file, claimed);
        held.origin = names.sites.get(&held.file.site).cloned().unwrap_or_default();
        held.rule = names.rule(held.file.rule).to_owned();
        let replicas = reader.replicas(held.file.id)?;
        let mine = replicas.into_iter().find(|r| Some(r.site) == own);
        let is_begun = held.state != State::Sending;
        // What brought it to other sites was no failure.
        let went = u32::try_from(route.having(held.file.id)).unwrap_or(u32::MAX);
        held.file.tries = held.file.tries.saturating_sub(went);
        let is_elsewhere = !route.wants(held.file.id, to.0) && !route.is_last(held.file.id, to.0);
        if !is_begun && is_elsewhere {
            loaded.elsewhere.push(held);
            continue;
        }
        match mine {
            Some(replica)
                if replica.state == ReplicaState::Present && held.file.digest.is_some() =>
            {
                held.path = config.path(replica.path.as_ref());
                loaded.ready.push(held);
            }
            Some(replica) if replica.state == ReplicaState::Corrupt => {
                loaded.failed.push((held, ErrorClass::SourceReadFailed));
            }
            _ => loaded.failed.push((held, ErrorClass::FileGone)),
        }
    }
    Ok(loaded)
}

/// Which of the rule's sites have a file already, as their receipts say.
fn note_receipts(
    reader: &mut Reader,
    file: &File,
    (names, keys): (&Names, &HashMap<String, PublicKey>),
    route: &mut Route,
) -> Result<(), Error> {
    let of = |site: &String| Some((names.site(site)?, keys.get(site)?.as_bytes().to_vec()));
    let holders = route.to.iter().filter_map(of).collect();
    let receipts = receipts_that_hold(reader, file.id, &holders)?;
    for site in route.to.clone() {
        let key = keys.get(&site).map(|key| key.as_bytes().to_vec());
        if key.is_some_and(|key| receipts.iter().any(|receipt| receipt.receiver == key)) {
            route.note(file.id, &site);
        }
    }
    Ok(())
}

/// The receipts of those, by site and key, who have a file still. A receipt stays when the copy is lost, and is none for the
/// next one.
pub(super) fn receipts_that_hold(
    reader: &mut Reader,
    file: FileId,
    holders: &HashMap<SiteId, Vec<u8>>,
) -> Result<Vec<Receipt>, Error> {
    let replicas = reader.replicas(file)?;
    let present = replicas.iter().filter(|replica| replica.state == ReplicaState::Present);
    let keys: HashSet<&Vec<u8>> = present.filter_map(|r| holders.get(&r.site)).collect();
    let mut receipts = reader.receipts(file)?;
    receipts.retain(|receipt| keys.contains(&receipt.receiver));
    Ok(receipts)
}

/// Whether a file may be given out: it lies below a folder that the configuration opens, after all links are followed.
pub(super) fn is_open_to_reading(config: &Config, path: &Path) -> bool {
    let Ok(real) = path.canonicalize() else { return false };
    let spools = config.spool.iter().map(|spool| spool.folder.clone());
    let folders = config.transfer.folders.iter().map(|folder| config.path(folder));
    let below =
        |folder: PathBuf| folder.canonicalize().is_ok_and(|folder| real.starts_with(folder));
    spools.chain(folders).any(below)
}
