//! Who has a file: by this site's catalog, and by its copies of other sites' catalogs.
//!
//! 1. All are asked for the newest version of which the digest is known, unless one is said.
//! 2. All are asked who has that version. What it is says this site's catalog, else that of the site that it comes from, else
//!    the first that knows; who knows other content by that name is not believed.

use crate::mirror;
use crate::site::{Fault, Site, blocking};
use downpour_catalog::{CatalogUrl, Digest, Error, File, Reader, ReplicaState, Time};
use std::sync::Arc;

/// A file, and the sites that have it.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) origin: String,
    pub(super) name: String,
    pub(super) version: i64,
    pub(super) size: u64,
    pub(super) blake3: String,
    /// All that are recorded.
    pub(super) digests: Vec<Digest>,
    pub(super) rule: String,
    pub(super) taken_in: Time,
    /// Names of other sites, each once.
    pub(super) holders: Vec<String>,
    /// Where it lies here, as this site's catalog says.
    pub(super) here: Option<String>,
}

/// Looks for a version of a file, or the newest of which the digest is known. `None`: nobody knows of it.
pub(super) async fn find(
    site: &Arc<Site>,
    origin: &str,
    name: &str,
    version: Option<i64>,
) -> Result<Option<Found>, Fault> {
    let version = match version {
        Some(version) => Some(version),
        None => all(site, origin, name, None).await?.iter().map(|(_, found)| found.version).max(),
    };
    let mut found: Option<Found> = None;
    for (whose, more) in all(site, origin, name, version).await? {
        match &mut found {
            None => found = Some(more),
            Some(found) if found.blake3 == more.blake3 => found.holders.extend(more.holders),
            Some(_) => {
                tracing::warn!(site = whose, name, "it knows this file with other content");
            }
        }
    }
    Ok(found.map(|mut found| {
        found.holders.sort();
        found.holders.dedup();
        found
    }))
}

/// What each catalog says, in the order in which they are believed, with the site whose it is.
async fn all(
    site: &Arc<Site>,
    origin: &str,
    name: &str,
    version: Option<i64>,
) -> Result<Vec<(String, Found)>, Fault> {
    let (own, wanted) = (site.name.clone(), (origin.to_owned(), name.to_owned()));
    let here = site.read(move |reader| look(reader, &wanted.0, &wanted.1, version, &own)).await?;
    let (site, origin, name) = (site.clone(), origin.to_owned(), name.to_owned());
    blocking(move || {
        let mut all: Vec<_> = here.into_iter().map(|here| (site.name.clone(), here)).collect();
        let mut others: Vec<String> =
            site.remotes().iter().map(|remote| remote.name().to_owned()).collect();
        others.sort_by_key(|other| *other != origin);
        for other in others {
            let copy = mirror::copy_of(&site.config().state(), &other);
            if !copy.exists() {
                continue;
            }
            let reader = Reader::open(&CatalogUrl::Sqlite(copy)).map_err(|e| e.to_string());
            let found = reader.and_then(|mut reader| {
                let found = look(&mut reader, &origin, &name, version, &site.name);
                found.map_err(|e| e.to_string())
            });
            match found {
                // Whether and where it is here, this site's catalog alone knows.
                Ok(found) => {
                    all.extend(found.map(|found| (other, Found { here: None, ..found })));
                }
                Err(error) => {
                    tracing::warn!(site = other, error, "the copy of its catalog cannot be read");
                }
            }
        }
        Ok(all)
    })
    .await
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
    let known = versions.filter(fits).filter_map(|file| Some((file.digest.clone()?, file)));
    let newest = known.max_by_key(|(_, file)| file.version);
    let Some((digest, file)) = newest else { return Ok(None) };
    let rules = reader.rules()?;
    let present = reader.replicas(file.id)?.into_iter();
    let present = present.filter(|replica| replica.state == ReplicaState::Present);
    let of = |replica: downpour_catalog::Replica| {
        let (_, name) = sites.iter().find(|(id, _)| *id == replica.site)?;
        Some((name.clone(), replica.path))
    };
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        present.filter_map(of).partition(|(name, _)| name == own);
    Ok(Some(Found {
        origin: origin.to_owned(),
        name: name.to_owned(),
        version: file.version,
        size: file.size,
        blake3: digest.hex(),
        digests: reader.digests(file.id)?,
        rule: rules
            .into_iter()
            .find(|(id, _)| *id == file.rule)
            .map(|(_, n)| n)
            .unwrap_or_default(),
        taken_in: file.taken_in,
        holders: elsewhere.into_iter().map(|(name, _)| name).collect(),
        here: here.into_iter().next().map(|(_, path)| path),
    }))
}

#[cfg(test)]
mod tests {
    use super::super::FetchReport;
    use super::look;
    use downpour_catalog::{
        AdoptedFile, BeforeMigration, Catalog, CatalogUrl, Change, Digest, NewFile, OtherContent,
        Reader, Same, Time,
    };

    /// Whoever asks for a file that is here is told where.
    #[test]
    fn where_a_file_lies_here_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let url = CatalogUrl::Sqlite(folder.path().join("catalog.db"));
        let catalog = Catalog::open(&url, "test", Time(1), &BeforeMigration::Refuse).unwrap();
        let [east, west] = ["east", "west"].map(|name| catalog.site(name).unwrap());
        let adopted = AdoptedFile {
            site: east,
            name: "run17".to_owned(),
            size: 3,
            rule: catalog.rule("all").unwrap(),
            digest: Digest::blake3([7; 32]),
            others: Vec::new(),
            replicas: vec![(east, "/there".to_owned()), (west, "/inbox/run17".to_owned())],
            other_content: OtherContent::Refuse,
            origin: None,
            receipt: None,
        };
        let answers = catalog.apply(Time(2), &[Change::Adopt(adopted)]).unwrap();
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let mut reader = Reader::open(&url).unwrap();
        let report = |own: &str| {
            let mut reader = Reader::open(&url).unwrap();
            let found = look(&mut reader, "east", "run17", None, own).unwrap().unwrap();
            (FetchReport::of(&found, &[]).path, found.holders)
        };
        let holders = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(report("west"), (Some("/inbox/run17".to_owned()), holders(&["east"])));
        assert_eq!(report("north"), (None, holders(&["east", "west"])));
        // A newer one that nobody has read yet is not to be had.
        let newer = NewFile {
            site: east,
            name: "run17".to_owned(),
            size: 4,
            stamp: 1,
            rule: catalog.rule("all").unwrap(),
            rank: 1,
            transfer: None,
            other_content: OtherContent::NewVersion,
            same: Same::Any,
        };
        let answers = catalog.apply(Time(3), &[Change::TakeIn(newer)]).unwrap();
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(report("north"), (None, holders(&["east", "west"])));
        assert!(look(&mut reader, "east", "run17", Some(2), "north").unwrap().is_none());
    }
}
