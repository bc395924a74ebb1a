//! `downpour catalog rebuild`: a lost catalog made again, from receiving folders or from a mirror's copy.

use super::{Exit, Fault};
use crate::rebuild::{RebuildError, Wish, from_receipts};
use crate::receipt::read_log;
use crate::site::{Clock, owner_of};
use clap::Args;
use downpour_catalog::{
    BeforeMigration, Catalog, CatalogUrl, Follower, Reader, Time, backup, files_of,
};
use downpour_transport::identity::PublicKey;
use std::path::{Path, PathBuf};

/// What it writes as, behind the site's name: no daemon has it.
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
        let [_, beside @ ..] = files_of(path);
        if let Some(left) = beside.iter().find(|left| left.exists()) {
            let what = format!("{} is left of the catalog that was there", left.display());
            let all = beside.each_ref().map(|file| file.display().to_string()).join(", ");
            return Err(Fault::start(what, format!("move away what there is of {all}")));
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
        self.check_site(site)?;
        // A daemon sees by the name whose catalog it is.
        let writer = format!("{site}/{WRITER}");
        let opened = Catalog::open(&self.catalog, &writer, now, &BeforeMigration::Refuse);
        let catalog = opened.map_err(|error| {
            let what = format!("the catalog {:?} cannot be opened: {error}", self.catalog);
            Fault::start(what, "give --catalog a place where a new catalog can be made")
        })?;
        super::adopt::tell_of_new_sites(&catalog, [site])
            .map_err(|error| super::catalog::reading(&self.catalog, &error))?;
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

    /// A name that was mistyped would give each file another copy, for good.
    fn check_site(&self, site: &str) -> Result<(), Fault> {
        if let Some(other) = owner_of(&self.catalog, site, "") {
            let what = format!("{:?} is the catalog of site {other}, not of {site}", self.catalog);
            let todo = format!("give --site {other}, or a --catalog of {site}'s own");
            return Err(Fault::usage(what, todo));
        }
        let CatalogUrl::Sqlite(path) = &self.catalog else { return Ok(()) };
        if !path.exists() {
            eprintln!("{}: no catalog is there, a new one is made", path.display());
            return Ok(());
        }
        // What cannot be read is told when it is opened.
        let known = Reader::open(&self.catalog).ok().and_then(|mut reader| reader.sites().ok());
        let known: Vec<String> = known.into_iter().flatten().map(|(_, name)| name).collect();
        if known.is_empty() || known.iter().any(|name| name == site) {
            return Ok(());
        }
        let what = format!("{} does not know a site {site}", path.display());
        let todo = format!("give --site one of those that it knows: {}", known.join(", "));
        Err(Fault::usage(what, todo))
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

/// Removes a catalog's files, as many as there are.
fn remove(file: &Path) -> Result<(), String> {
    for name in files_of(file) {
        let named = |error| format!("{}: {error}", name.display());
        crate::whole::remove(&name).map_err(named)?;
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
    use crate::cli::Exit;
    use crate::receipt::ReceiptLog;
    use downpour_catalog::{BeforeMigration, Catalog, CatalogUrl, Follower, Reader, Time};
    use std::fs;
    use std::path::Path;

    fn of_receipts(folder: &Path, site: &str, path: &Path) -> RebuildArgs {
        RebuildArgs {
            from_mirror: None,
            from_receipts: vec![folder.to_owned()],
            site: Some(site.to_owned()),
            key: Vec::new(),
            verify: false,
            catalog: CatalogUrl::Sqlite(path.to_owned()),
        }
    }

    #[test]
    fn receipts_that_are_not_there_leave_no_catalog_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalog.db");
        assert!(of_receipts(&folder.path().join("nosuch"), "a", &path).run().is_err());
        assert!(!path.exists());
    }

    #[test]
    fn a_catalog_takes_receipts_for_its_own_site_only() {
        let folder = tempfile::tempdir().unwrap();
        let [theirs, made] = ["theirs.db", "made.db"].map(|name| folder.path().join(name));
        drop(ReceiptLog::open(folder.path()).unwrap());
        let url = CatalogUrl::Sqlite(theirs.clone());
        drop(Catalog::open(&url, "a/KEY", Time(1), &BeforeMigration::Refuse).unwrap());
        for path in [&theirs, &made] {
            let rebuild = |site| of_receipts(folder.path(), site, path).run();
            assert!(rebuild("a").unwrap() == Exit::Complete);
            let fault = rebuild("aa").unwrap_err();
            assert!(fault.what.contains("of site a, not") && fault.todo.contains("--site a,"));
            // Neither has it left a trace.
            let mut reader = Reader::open(&CatalogUrl::Sqlite(path.clone())).unwrap();
            assert!(reader.sites().unwrap().iter().all(|(_, name)| name == "a"));
        }
    }

    #[test]
    fn what_is_left_beside_a_catalog_that_was_moved_away_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let [copy, path, wal] =
            ["copy.db", "catalog.db", "catalog.db-wal"].map(|name| folder.path().join(name));
        drop(Follower::open(&copy, Time(1)).unwrap());
        fs::write(&wal, "").unwrap();
        let args = RebuildArgs {
            from_mirror: Some(copy),
            from_receipts: Vec::new(),
            site: None,
            ..of_receipts(folder.path(), "", &path)
        };
        let fault = args.run().unwrap_err();
        assert!(fault.todo.contains("catalog.db-wal") && !path.exists(), "{fault}");
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
