//! Who has a file: by this site's catalog, and by its copies of other sites' catalogs.

use crate::mirror;
use crate::site::{Fault, Site};
use downpour_catalog::{CatalogUrl, Error, ErrorClass, File, Reader, ReplicaState, Time};
use std::path::Path;
use std::sync::Arc;

/// A file, and the sites that have it.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) origin: String,
    pub(super) name: String,
    pub(super) version: i64,
    pub(super) size: u64,
    pub(super) blake3: String,
    pub(super) rule: String,
    pub(super) taken_in: Time,
    /// Names of other sites, each once.
    pub(super) holders: Vec<String>,
    /// It is here.
    pub(super) is_here: bool,
}

/// Looks for a version of a file, or its newest one. `None`: nobody knows of it, or not of its digest.
pub(super) async fn find(
    site: &Arc<Site>,
    origin: &str,
    name: &str,
    version: Option<i64>,
) -> Result<Option<Found>, Fault> {
    let (own, wanted) = (site.name.clone(), (origin.to_owned(), name.to_owned()));
    let here = site.read(move |reader| look(reader, &wanted.0, &wanted.1, version, &own)).await?;
    let (site, origin, name) = (site.clone(), origin.to_owned(), name.to_owned());
    let all = tokio::task::spawn_blocking(move || {
        let mut found = here;
        for remote in site.remotes() {
            let copy = mirror::copy_of(&site.config().state(), remote.name());
            let version = found.as_ref().map(|found| found.version).or(version);
            let Some(more) = in_copy(&copy, &origin, &name, version, &site.name) else { continue };
            match &mut found {
                None => found = Some(more),
                Some(found) if found.blake3 == more.blake3 => {
                    found.holders.extend(more.holders);
                }
                Some(_) => {
                    tracing::warn!(
                        site = remote.name(),
                        %name,
                        "it knows this file with other content"
                    );
                }
            }
        }
        found
    });
    let all = all.await.map_err(|error| Fault::new(ErrorClass::Internal, error.to_string()))?;
    Ok(all.map(|mut found| {
        found.holders.sort();
        found.holders.dedup();
        found
    }))
}

/// A copy that cannot be read knows nothing.
fn in_copy(
    copy: &Path,
    origin: &str,
    name: &str,
    version: Option<i64>,
    own: &str,
) -> Option<Found> {
    copy.exists().then_some(())?;
    let mut reader = Reader::open(&CatalogUrl::Sqlite(copy.to_owned())).ok()?;
    look(&mut reader, origin, name, version, own).ok()?
}

fn look(
    reader: &mut Reader,
    origin: &str,
    name: &str,
    version: Option<i64>,
    own: &str,
) -> Result<Option<Found>, Error> {
    let sites = reader.sites()?;
    let Some((id, _)) = sites.iter().find(|(_, known)| known == origin) else { return Ok(None) };
    let versions = reader.versions(*id, name)?.into_iter();
    let fits = |file: &File| version.is_none_or(|version| file.version == version);
    let file = versions.filter(|file| fits(file)).max_by_key(|file| file.version);
    let known = file.and_then(|file| file.digest.clone().map(|digest| (file, digest)));
    let Some((file, digest)) = known else { return Ok(None) };
    let rules = reader.rules()?;
    let present = reader.replicas(file.id)?.into_iter();
    let present = present.filter(|replica| replica.state == ReplicaState::Present);
    let of = |replica: downpour_catalog::Replica| {
        sites.iter().find(|(id, _)| *id == replica.site).map(|(_, name)| name.clone())
    };
    let (here, holders): (Vec<String>, Vec<String>) =
        present.filter_map(of).partition(|name| name == own);
    Ok(Some(Found {
        origin: origin.to_owned(),
        name: name.to_owned(),
        version: file.version,
        size: file.size,
        blake3: digest.hex(),
        rule: rules
            .into_iter()
            .find(|(id, _)| *id == file.rule)
            .map(|(_, n)| n)
            .unwrap_or_default(),
        taken_in: file.taken_in,
        holders,
        is_here: !here.is_empty(),
    }))
}
