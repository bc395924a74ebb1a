//! Files that are there already, at one site or several, are taken into the catalog as they lie. Nothing is moved.
//!
//! A file's digests are computed, or its BLAKE3 is taken on the word of a list that `b3sum` wrote. A list of another kind is compared
//! with what is read. All can be repeated: what is known is known, and a file whose content is another than the catalog's becomes
//! its next version, or is refused.

use super::digests::{Digesting, parse_sum};
use super::root::{NoRoot, Root, join};
use crate::object::printable;
use downpour_catalog::{
    AdoptedFile, Catalog, Change, Digest, DigestKind, OtherContent, Refused, RuleId, SiteId, Time,
};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Files of which the catalog is told together.
const BATCH: usize = 500;
/// Of so many files of a list the smallest one that can be read is read, to see of what kind it is.
const TRIED_MAX: usize = 1000;
/// One of so many bytes is not read for that.
const TRIED_BYTES: u64 = 1 << 26;

/// What is to be adopted.
#[derive(Clone, Debug)]
pub struct Adoption {
    /// The folder on this machine.
    pub folder: PathBuf,
    /// The site that the files come from.
    pub site: SiteId,
    /// The site at which the folder lies.
    pub here: SiteId,
    /// Where else they lie, on the caller's word: site and folder.
    pub also: Vec<(SiteId, String)>,
    /// Put before each name.
    pub prefix: String,
    /// The rule that they are booked under.
    pub rule: RuleId,
    /// Digests to record besides BLAKE3.
    pub kinds: Vec<DigestKind>,
    /// What is done with other content under a known name.
    pub other_content: OtherContent,
    /// A list to believe or to compare with.
    pub sums: Option<SumList>,
}

/// Digests by path below the folder, all of one kind.
#[derive(Clone, Debug)]
pub struct SumList {
    kind: DigestKind,
    sums: BTreeMap<String, Digest>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Files that were new to the catalog.
    pub new: u64,
    /// Files that it knew.
    pub known: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// What was left out, and why.
    pub left_out: Vec<String>,
}

impl Adopted {
    fn leave_out(&mut self, rel: &str, why: &dyn Display) {
        self.left_out.push(format!("{}: {why}", printable(rel.as_bytes())));
    }
}

/// A list of digests, as `b3sum`, `md5sum` or `sha256sum` write it.
pub fn read_list(text: &str, kind: DigestKind) -> Result<SumList, String> {
    let mut sums = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let Some((Some(name), digest)) = parse_sum(line, kind) else {
            return Err(format!("line {number} is not a {kind} and a name"));
        };
        sums.insert(name.strip_prefix("./").unwrap_or(&name).to_owned(), digest);
    }
    Ok(SumList { kind, sums })
}

/// What can be known to be wrong before anything is adopted: the folder, and a list of digests that are as long as those it is said
/// to be of, and others.
pub fn look_first(folder: &Path, sums: Option<&SumList>) -> Result<(), String> {
    let root = open(folder)?;
    let Some(SumList { kind, sums }) = sums else { return Ok(()) };
    let other = match kind {
        DigestKind::Blake3 => DigestKind::Sha256,
        DigestKind::Sha256 => DigestKind::Blake3,
        DigestKind::Md5 | DigestKind::Adler32 => return Ok(()),
    };
    let size = |rel: &String| root.look(rel).ok().flatten().map(|seen| seen.size);
    let visible = |rel: &str| rel.split('/').all(|name| !name.starts_with('.'));
    let tried = sums.iter().filter(|(rel, _)| visible(rel)).take(TRIED_MAX);
    let sized = tried.filter_map(|(rel, said)| Some((size(rel)?, rel, said)));
    let mut small: Vec<_> = sized.filter(|(size, ..)| *size < TRIED_BYTES).collect();
    small.sort_by_key(|(size, ..)| *size);
    let digests = |rel: &str| {
        let file = root.open_file(rel).ok()?;
        Digesting::new(&[DigestKind::Sha256]).read(file, |_| true).ok()
    };
    // What cannot be read is left out when its turn comes.
    let read = small.into_iter().find_map(|(_, rel, said)| Some((rel, said, digests(rel)?.1)));
    let Some((rel, said, digests)) = read else { return Ok(()) };
    match digests.iter().find(|digest| digest.value() == said.value()) {
        Some(digest) if digest.kind() == other => Err(format!(
            "the list is of {other}, as {} shows, and not of {kind}: give --sums-kind {other}",
            printable(rel.as_bytes())
        )),
        _ => Ok(()),
    }
}

fn open(folder: &Path) -> Result<Root, String> {
    Root::borrow(folder).map_err(|error| match error {
        NoRoot::Unreadable(error) => format!("{}: {error}", folder.display()),
        NoRoot::Another | NoRoot::OfState => unreachable!("said of watched folders only"),
    })
}

/// Adopts a folder.
pub fn adopt(catalog: &Catalog, now: Time, what: &Adoption) -> Result<Adopted, String> {
    let root = open(&what.folder)?;
    let mut done = Adopted::default();
    let (mut folders, mut batch) = (vec![String::new()], Vec::new());
    while let Some(folder) = folders.pop() {
        let listing = match root.list(&folder) {
            Ok(listing) => listing,
            Err(error) => {
                done.leave_out(&folder, &error);
                continue;
            }
        };
        listing.odd.iter().for_each(|odd| done.leave_out(&odd.path, &odd.why));
        let visible = |name: &&String| !name.starts_with('.');
        folders.extend(listing.folders.iter().filter(visible).map(|name| join(&folder, name)));
        for (name, _) in listing.files.iter().filter(|(name, _)| !name.starts_with('.')) {
            let rel = join(&folder, name);
            match digests_of(&root, what, &rel) {
                Ok((size, digests)) => batch.push((rel, size, digests)),
                Err(text) => done.leave_out(&rel, &text),
            }
            if batch.len() == BATCH {
                book(catalog, now, what, std::mem::take(&mut batch), &mut done)?;
            }
        }
    }
    book(catalog, now, what, batch, &mut done)?;
    Ok(done)
}

fn digests_of(root: &Root, what: &Adoption, rel: &str) -> Result<(u64, Vec<Digest>), String> {
    let said = what.sums.as_ref().map(|list| (list.kind, list.sums.get(rel)));
    if let Some((DigestKind::Blake3, Some(digest))) = said
        && what.kinds.is_empty()
    {
        let seen = root.look(rel).map_err(|error| error.to_string())?;
        let seen = seen.ok_or_else(|| "it is gone".to_owned())?;
        return Ok((seen.size, vec![digest.clone()]));
    }
    let mut kinds = what.kinds.clone();
    kinds.extend(said.map(|(kind, _)| kind).filter(|kind| !what.kinds.contains(kind)));
    let file = root.open_file(rel).map_err(|error| error.to_string())?;
    let read = Digesting::new(&kinds).read(file, |_| true).map_err(|error| error.to_string())?;
    match said {
        Some((kind, None)) => Err(format!("the list has no {kind} of it")),
        Some((kind, Some(digest))) if !read.1.contains(digest) => {
            Err(format!("it has another {kind} than the list says"))
        }
        _ => Ok(read),
    }
}

type Read = (String, u64, Vec<Digest>);

fn book(
    catalog: &Catalog,
    now: Time,
    what: &Adoption,
    batch: Vec<Read>,
    done: &mut Adopted,
) -> Result<(), String> {
    let adopted = |(rel, size, digests): &Read| {
        let here = (what.here, what.folder.join(rel).display().to_string());
        let path = |folder: &str| Path::new(folder).join(rel).display().to_string();
        let also = what.also.iter().map(|(site, folder)| (*site, path(folder)));
        Change::Adopt(AdoptedFile {
            site: what.site,
            name: format!("{}{rel}", what.prefix),
            size: *size,
            rule: what.rule,
            digest: digests[0].clone(),
            others: digests[1..].to_vec(),
            replicas: std::iter::once(here).chain(also).collect(),
            other_content: what.other_content,
            origin: None,
            receipt: None,
        })
    };
    let changes: Vec<_> = batch.iter().map(adopted).collect();
    let answers = catalog.apply(now, &changes).map_err(|error| error.to_string())?;
    for ((rel, size, _), answer) in batch.into_iter().zip(answers) {
        match answer {
            Ok(applied) => {
                let count = if applied.repeated { &mut done.known } else { &mut done.new };
                *count += 1;
                done.bytes += size;
            }
            Err(Refused::NameTaken { version }) => {
                let text = format!("version {version} of this name has other content");
                done.leave_out(&rel, &text);
            }
            Err(refused) => done.leave_out(&rel, &refused),
        }
    }
    Ok(())
}
