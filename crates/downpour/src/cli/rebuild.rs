//! `downpour catalog rebuild`: a lost catalog made again, from receiving folders or from a mirror's copy.

use super::{Exit, Fault};
use crate::rebuild::{RebuildError, Wish, from_receipts};
use crate::receipt::read_log;
use crate::site::Clock;
use clap::Args;
use downpour_catalog::{BeforeMigration, Catalog, CatalogUrl, Follower, Time, backup};
use downpour_transport::identity::PublicKey;
use std::path::{Path, PathBuf};

/// The name under which it writes: no daemon has it.
const WRITER: &str = "rebuild";

/// Make a lost catalog again: of a mirror's copy, or from the receipts in receiving folders
#[derive(Debug, Args)]
pub(super) struct RebuildArgs {
    /// Copy of the lost catalog, from the state folder of the site that mirrors it: mirror/NAME.db
    #[arg(long, value_name = "FILE", required_unless_present = "from_receipts")]
    #[arg(conflicts_with_all = ["from_receipts", "site", "key", "verify"])]
    from_mirror: Option<PathBuf>,
    /// Receiving folder with its receipts; may be given several times
    #[arg(long, value_name = "DIR", requires = "site")]
    from_receipts: Vec<PathBuf>,
    /// The site whose catalog it is
    #[arg(long, value_name = "NAME")]
    site: Option<String>,
    /// The site's node key; only its receipts count; may be given several times [default: any]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    key: Vec<PublicKey>,
    /// Read each file and compare it with its receipt
    #[arg(long)]
    verify: bool,
    /// The catalog: sqlite:PATH, postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE; made if there is none
    #[arg(long, value_name = "URL", env = "DOWNPOUR_CATALOG", hide_env_values = true)]
    catalog: CatalogUrl,
}

impl RebuildArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        let now = Clock::system().now();
        match (&self.from_mirror, &self.site) {
            (Some(copy), _) => self.of_copy(copy, now),
            (None, site) => self.of_receipts(site.as_deref().unwrap_or_default(), now),
        }
    }

    fn of_copy(&self, copy: &Path, now: Time) -> Result<Exit, Fault> {
        let failed = |what: String| {
            let todo =
                "give the file of a mirror, and --catalog sqlite: of a file that is not there";
            Fault::start(format!("{}: {what}", copy.display()), todo)
        };
        let CatalogUrl::Sqlite(path) = &self.catalog else {
            return Err(failed("a mirror's copy becomes a catalog on SQLite only".to_owned()));
        };
        if path.symlink_metadata().is_ok() {
            return Err(failed(format!("{} is there already", path.display())));
        }
        made_of(copy, path, now).map_err(failed)?;
        println!("{}: made of {}", path.display(), copy.display());
        Ok(Exit::Complete)
    }

    fn of_receipts(&self, site: &str, now: Time) -> Result<Exit, Fault> {
        // A catalog is made where there is none: not for receipts that are not there.
        for folder in &self.from_receipts {
            read_log(folder).map_err(|error| fault(error.into()))?;
        }
        let opened = Catalog::open(&self.catalog, WRITER, now, &BeforeMigration::Refuse);
        let catalog = opened.map_err(|error| {
            let what = format!("the catalog {:?} cannot be opened: {error}", self.catalog);
            Fault::start(what, "give --catalog a place where a new catalog can be made")
        })?;
        let mut is_whole = true;
        for folder in &self.from_receipts {
            // As the daemon that wrote the receipts knew it.
            let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
            let wish = Wish { site, keys: &self.key, verify: self.verify };
            let done = from_receipts(&catalog, wish, &folder, now).map_err(fault)?;
            println!(
                "{}: {} receipts, {} files new in the catalog, {} not there, {} lines passed over",
                folder.display(),
                done.receipts,
                done.files,
                done.not_there,
                done.passed_over
            );
            for what in &done.told {
                eprintln!("{what}");
            }
            is_whole &= done.not_there == 0 && done.passed_over == 0;
        }
        Ok(if is_whole { Exit::Complete } else { Exit::Incomplete })
    }
}

/// Makes a catalog of a mirror's copy. It gets its name when it is whole: what is cut short leaves no catalog.
fn made_of(copy: &Path, path: &Path, now: Time) -> Result<(), String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}.rebuild", std::process::id()));
    let part = PathBuf::from(part);
    // Left by one of this number that was killed.
    remove(&part)?;
    let whole_copy = |from: &Path, to: &Path| {
        backup(&CatalogUrl::Sqlite(from.to_owned()), to).map_err(|error| text(&error))
    };
    // Also while the mirror writes to it.
    whole_copy(copy, &part)?;
    let made = Follower::open(&part, now).map_err(|error| text(&error));
    let settled = made.and_then(|mut made| made.settle().map_err(|error| text(&error)));
    let done = settled.and_then(|()| whole_copy(&part, path));
    remove(&part)?;
    done
}

/// Removes a file of SQLite and what lies beside it.
fn remove(file: &Path) -> Result<(), String> {
    for end in ["", "-wal", "-shm", "-journal"] {
        let mut name = file.as_os_str().to_owned();
        name.push(end);
        let named = |error| format!("{}: {error}", Path::new(&name).display());
        crate::whole::remove(Path::new(&name)).map_err(named)?;
    }
    Ok(())
}

fn fault(error: RebuildError) -> Fault {
    let what = error.to_string();
    match error {
        RebuildError::Log(_) => Fault::start(what, "give the folder that the files lie in"),
        RebuildError::Catalog(_) => Fault::incomplete(what, "see to the database; then again"),
    }
}

#[cfg(test)]
mod tests {
    use super::{RebuildArgs, made_of};
    use downpour_catalog::{CatalogUrl, Follower, Reader, Time};
    use std::fs;

    #[test]
    fn receipts_that_are_not_there_leave_no_catalog_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalog.db");
        let args = RebuildArgs {
            from_mirror: None,
            from_receipts: vec![folder.path().join("nosuch")],
            site: Some("a".to_owned()),
            key: Vec::new(),
            verify: false,
            catalog: CatalogUrl::Sqlite(path.clone()),
        };
        assert!(args.run().is_err());
        assert!(!path.exists());
    }

    #[test]
    fn a_catalog_is_made_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let part = format!("catalog.db.{}.rebuild", std::process::id());
        let [copy, path, part, wal] = ["copy.db", "catalog.db", &part, &format!("{part}-wal")]
            .map(|name| folder.path().join(name));
        fs::write(&copy, "no catalog").unwrap();
        // One of this number that was killed left this.
        for part in [&part, &wal] {
            fs::write(part, "half").unwrap();
        }
        assert!(made_of(&copy, &path, Time(1)).is_err());
        assert!(!path.exists() && !part.exists());
        fs::remove_file(&copy).unwrap();
        drop(Follower::open(&copy, Time(1)).unwrap());
        fs::write(&part, "half").unwrap();
        made_of(&copy, &path, Time(1)).unwrap();
        Reader::open(&CatalogUrl::Sqlite(path.clone())).unwrap();
        // And nothing is written over it.
        assert!(made_of(&copy, &path, Time(1)).is_err());
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }
}
