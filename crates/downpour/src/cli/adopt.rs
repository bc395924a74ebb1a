//! `downpour catalog adopt`: files that are there already are taken into the catalog as they lie.

use super::{Exit, Fault};
use crate::site::Clock;
use crate::spool::{Adopted, Adoption, SumList, adopt, look_first, read_list};
use crate::units::show_bytes;
use clap::{Args, ValueEnum};
use downpour_catalog::{BeforeMigration, Catalog, CatalogUrl, DigestKind, Error, OtherContent};
use serde_json::json;
use std::path::PathBuf;

/// Name under which the catalog is written to.
const WRITER: &str = "adopt";
/// Left-out files that are shown.
const SHOWN_MAX: usize = 20;

/// Take in files that lie here already, without moving them
#[derive(Debug, Args)]
pub(super) struct AdoptArgs {
    /// Folder with the files
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The catalog: sqlite:PATH, postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE
    #[arg(long, value_name = "URL", env = "DOWNPOUR_CATALOG", hide_env_values = true)]
    catalog: CatalogUrl,
    /// Site that the files come from
    #[arg(long, value_name = "SITE")]
    site: String,
    /// Site at which the folder lies [default: the one that they come from]
    #[arg(long, value_name = "SITE")]
    here: Option<String>,
    /// Another place where all of them lie, on your word; reconciliation will look
    #[arg(long, value_name = "SITE=FOLDER", value_parser = parse_place)]
    also: Vec<(String, String)>,
    /// Put before each name, as the spool does
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// Rule that they are booked under
    #[arg(long, value_name = "NAME", default_value = "adopted")]
    rule: String,
    /// Also record this digest; may be repeated
    #[arg(long = "digest", value_name = "KIND")]
    digests: Vec<KindArg>,
    /// List of digests, as b3sum, sha256sum or md5sum write it; with BLAKE3 the files are not read
    #[arg(long, value_name = "FILE")]
    sums: Option<PathBuf>,
    /// Kind of the digests in the list
    #[arg(long, value_name = "KIND", default_value = "blake3", requires = "sums")]
    sums_kind: KindArg,
    /// A name that is known with other content becomes its next version instead of being left out
    #[arg(long)]
    new_versions: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindArg {
    Blake3,
    Md5,
    Sha256,
    Adler32,
}

impl From<KindArg> for DigestKind {
    fn from(kind: KindArg) -> Self {
        match kind {
            KindArg::Blake3 => Self::Blake3,
            KindArg::Md5 => Self::Md5,
            KindArg::Sha256 => Self::Sha256,
            KindArg::Adler32 => Self::Adler32,
        }
    }
}

fn parse_place(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((site, folder)) if !site.is_empty() && folder.starts_with('/') => {
            Ok((site.to_owned(), folder.to_owned()))
        }
        _ => Err(format!("`{text}`: write SITE=/FOLDER")),
    }
}

impl AdoptArgs {
    pub(super) fn run(self) -> Result<Exit, Fault> {
        let sums = self.read_sums()?;
        // A catalog is made where there is none: not for what cannot be.
        look_first(&self.folder, sums.as_ref()).map_err(|text| {
            let todo = "give the folder with the files, and a list of it with its --sums-kind";
            Fault::usage(text, todo)
        })?;
        let now = Clock::system().now();
        let at = &self.catalog;
        if let CatalogUrl::Sqlite(path) = at
            && !path.exists()
        {
            eprintln!("{}: no catalog is there, a new one is made", path.display());
        }
        let catalog = Catalog::open(at, WRITER, now, &BeforeMigration::Refuse);
        let catalog = catalog.map_err(|error| super::catalog::opening(at, &error))?;
        let reading = |error| super::catalog::reading(at, &error);
        let named = [Some(&self.site), self.here.as_ref()].into_iter().flatten();
        let named = named.chain(self.also.iter().map(|(site, _)| site)).map(String::as_str);
        tell_of_new_sites(&catalog, named).map_err(reading)?;
        let site = catalog.site(&self.site).map_err(reading)?;
        let here = self.here.as_ref().map_or(Ok(site), |here| catalog.site(here));
        let also = self.also.iter().map(|(site, folder)| Ok((catalog.site(site)?, folder.clone())));
        let kinds = self.digests.iter().map(|kind| DigestKind::from(*kind));
        let folder = std::path::absolute(&self.folder).unwrap_or_else(|_| self.folder.clone());
        let what = Adoption {
            folder,
            site,
            here: here.map_err(reading)?,
            also: also.collect::<Result<_, _>>().map_err(reading)?,
            prefix: self.prefix.clone(),
            rule: catalog.rule(&self.rule).map_err(reading)?,
            kinds: kinds.filter(|kind| *kind != DigestKind::Blake3).collect(),
            other_content: match self.new_versions {
                true => OtherContent::NewVersion,
                false => OtherContent::Refuse,
            },
            sums,
        };
        let done = adopt(&catalog, now, &what).map_err(|text| {
            Fault::incomplete(
                text,
                "what was adopted stays so; mend it and run the same command again",
            )
        })?;
        self.show(&done);
        Ok(if done.left_out.is_empty() { Exit::Complete } else { Exit::Incomplete })
    }

    fn read_sums(&self) -> Result<Option<SumList>, Fault> {
        let Some(path) = &self.sums else { return Ok(None) };
        let kind = DigestKind::from(self.sums_kind);
        let wrong = |text: String| {
            let todo = "give a list as b3sum, sha256sum or md5sum write it, and its --sums-kind";
            Fault::usage(format!("{}: {text}", path.display()), todo)
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        read_list(&text, kind).map(Some).map_err(wrong)
    }

    fn show(&self, done: &Adopted) {
        let Adopted { new, known, bytes, left_out } = done;
        if self.json {
            let result =
                json!({ "new": new, "known": known, "bytes": bytes, "left_out": left_out });
            println!("{result:#}");
            return;
        }
        for text in left_out.iter().take(SHOWN_MAX) {
            eprintln!("left out: {text}");
        }
        if left_out.len() > SHOWN_MAX {
            eprintln!("left out: {} more (--json shows all)", left_out.len() - SHOWN_MAX);
        }
        let bytes = show_bytes(*bytes);
        println!("{new} files taken in, {known} were known ({bytes}); {} left out", left_out.len());
    }
}

/// A name that was mistyped makes a site, of which nothing ever comes.
pub(super) fn tell_of_new_sites<'n>(
    catalog: &Catalog,
    named: impl IntoIterator<Item = &'n str>,
) -> Result<(), Error> {
    let known = match catalog.reader() {
        Ok(mut reader) => reader.sites()?,
        // What cannot be read is told by what comes next.
        Err(_) => return Ok(()),
    };
    for name in named {
        if !known.iter().any(|(_, site)| site == name) {
            eprintln!("`{name}` is a site that this catalog did not know");
        }
    }
    Ok(())
}
