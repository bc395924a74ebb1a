//! What two catalogs ask each other when they are compared, and how one of them answers.
//!
//! Sites, rules and files are named by what they are called everywhere; numbers of one catalog never travel. Sums and hashes travel as
//! packed bytes: 64 bits of each are enough, for both sides have the same bits of the same file. Every request is bounded.

use downpour_catalog::{
    DEPTH_MAX, Error, File, FileId, Reader, Receipt, Replica, ReplicaState, RuleId, SetDay,
    SetDigest, SetNode, SiteId, State,
};
use downpour_transport::control::{decode_base64url, encode_base64url};
use downpour_transport::identity::PublicKey;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Nodes of trees in one request.
pub const NODES_MAX: usize = 1024;
/// Files in one question.
pub const NAMES_MAX: usize = 500;
/// Bytes of their names: in JSON, where each byte may take six, below what one request may have.
const NAMES_BYTES_MAX: usize = 80 << 10;
/// Questions in one request.
pub const QUESTIONS_MAX: usize = 512;
/// Sums of a node's children.
pub(super) const FANOUT: usize = 16;

/// Bytes as base64url.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed(pub Vec<u8>);

impl Serialize for Packed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode_base64url(&self.0))
    }
}

impl<'de> Deserialize<'de> for Packed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = decode_base64url(&text);
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom("not base64url"))
    }
}

impl Packed {
    pub(super) fn of_u16(values: &[u16]) -> Self {
        Self(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    pub(super) fn of_u64(values: impl IntoIterator<Item = u64>) -> Self {
        Self(values.into_iter().flat_map(u64::to_le_bytes).collect())
    }

    pub(super) fn u16s(&self) -> Vec<u16> {
        self.0.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect()
    }

    pub(super) fn u64s(&self) -> Vec<u64> {
        self.0.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
    }
}

/// Whose files at whose site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// Who holds them.
    pub holder: String,
    /// Where they come from.
    pub origin: String,
}

/// One level of one day's tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// Whose files at whose site.
    pub scope: Scope,
    /// Under which rule.
    pub rule: String,
    /// Days since 1970.
    pub day: i64,
    /// The level of the nodes.
    pub depth: u8,
    /// The nodes: two bytes each.
    pub prefixes: Packed,
}

/// What one side asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// The sum of each rule.
    Rules(Scope),
    /// The sum of each day of a rule.
    Days(Scope, String),
    /// The sums of 16 children for each of these nodes.
    Children(Level),
    /// The hashes of the files of each of these nodes of the last level.
    Hashes(Level),
    /// What the files with these hashes are called; eight bytes each, all within the nodes.
    Names(Level, Packed),
    /// How these files stand at a holder: name and version.
    Look(Scope, Vec<(String, i64)>),
    /// The holder's receipts for these files.
    Receipts(Scope, Vec<(String, i64)>),
}

impl Question {
    /// How many nodes it is about.
    pub(super) fn nodes(&self) -> usize {
        match self {
            Self::Children(level) | Self::Hashes(level) | Self::Names(level, _) => {
                level.prefixes.0.len() / 2
            }
            _ => 0,
        }
    }
}

/// A sum as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Files.
    pub files: i64,
    /// The sum's bytes.
    pub sum: Packed,
}

impl From<SetDigest> for Sum {
    fn from(digest: SetDigest) -> Self {
        Self { files: digest.files, sum: Packed(digest.sum.to_vec()) }
    }
}

/// What a file is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Named {
    /// Its name at its site of origin.
    pub name: String,
    /// Its version there.
    pub version: i64,
    /// Its length.
    pub size: u64,
}

/// How a file stands in one catalog.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stand {
    /// Whether the catalog knows the file.
    pub known: bool,
    /// Whether it is on its way: neither at an end nor in quarantine.
    pub moving: bool,
    /// The BLAKE3 of what the holder has, if it has the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<Packed>,
}

/// What a site has of a file when it reads its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stored {
    /// What it recorded.
    AsRecorded,
    /// Something else, or it cannot be read.
    Damaged,
    /// No copy.
    Nothing,
}

/// What the other side answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// By rule.
    Rules(BTreeMap<String, Sum>),
    /// By day.
    Days(BTreeMap<i64, Sum>),
    /// 16 sums of eight bytes for each node.
    Children(Packed),
    /// For each node, eight bytes for each file.
    Hashes(Vec<Packed>),
    /// In no order.
    Names(Vec<Named>),
    /// For each file.
    Look(Vec<Stand>),
    /// For each file; empty where there is none.
    Receipts(Vec<Packed>),
    /// The question is beyond its bounds.
    Refused(String),
}

/// How many of the first files with these names one question may be about; one at least.
pub(super) fn fit<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    let mut bytes = 0;
    let fits = names.take(NAMES_MAX).take_while(|name| {
        bytes += name.len();
        bytes <= NAMES_BYTES_MAX
    });
    fits.count().max(1)
}

/// The first 64 bits of a sum or hash.
pub(super) fn short(sum: &[u8]) -> u64 {
    sum.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// One side of a comparison: a catalog, open for reading.
pub struct Side<'a> {
    reader: &'a mut Reader,
    /// The key that its own receipts are signed with, where that is known.
    key: Option<PublicKey>,
    sites: Vec<(SiteId, String)>,
    rules: Vec<(RuleId, String)>,
    /// What was read of a scope, so that questions about each of its rules do not read all of them.
    days: Option<(Scope, Vec<(SetDay, SetDigest)>)>,
}

impl<'a> Side<'a> {
    /// Of this catalog, with the names that it has now.
    pub fn of(reader: &'a mut Reader) -> Result<Self, Error> {
        let (sites, rules) = (reader.sites()?, reader.rules()?);
        Ok(Self { reader, key: None, sites, rules, days: None })
    }

    /// Of a site that signs its receipts with this key.
    pub fn signing(self, key: PublicKey) -> Self {
        Self { key: Some(key), ..self }
    }

    /// Answers questions, each in its place.
    pub fn answer_all(&mut self, questions: &[Question]) -> Result<Vec<Answer>, Error> {
        if questions.len() > QUESTIONS_MAX {
            return Ok(vec![Answer::Refused(format!("more than {QUESTIONS_MAX} questions"))]);
        }
        if questions.iter().map(Question::nodes).sum::<usize>() > NODES_MAX {
            return Ok(vec![Answer::Refused(format!("more than {NODES_MAX} nodes"))]);
        }
        self.days = None;
        questions.iter().map(|question| self.answer(question)).collect()
    }

    fn answer(&mut self, question: &Question) -> Result<Answer, Error> {
        match question {
            Question::Rules(scope) => {
                let mut rules: BTreeMap<RuleId, SetDigest> = BTreeMap::new();
                for (day, digest) in self.days(scope)? {
                    rules.entry(day.rule).or_default().add(digest);
                }
                let rules = rules.into_iter().map(|(id, sum)| (self.rule_name(id), sum.into()));
                Ok(Answer::Rules(rules.collect()))
            }
            Question::Days(scope, rule) => {
                let Some(rule) = self.rule(rule) else { return Ok(Answer::Days(BTreeMap::new())) };
                let days = self.days(scope)?;
                let first = days.partition_point(|(day, _)| day.rule < rule);
                let days = days[first..].iter().take_while(|(day, _)| day.rule == rule);
                Ok(Answer::Days(days.map(|(day, digest)| (day.day, (*digest).into())).collect()))
            }
            Question::Children(level) if level.depth < DEPTH_MAX => self.children(level),
            Question::Hashes(level) if level.depth == DEPTH_MAX => self.hashes(level),
            Question::Names(level, hashes) if level.depth == DEPTH_MAX => {
                self.names(level, &hashes.u64s())
            }
            Question::Look(_, names) | Question::Receipts(_, names) if names.len() > NAMES_MAX => {
                Ok(Answer::Refused(format!("more than {NAMES_MAX} files")))
            }
            Question::Look(scope, names) => self.look(scope, names),
            Question::Receipts(scope, names) => self.receipts(scope, names),
            _ => Ok(Answer::Refused("no such level".to_owned())),
        }
    }

    /// The days of a scope, by rule and day.
    fn days(&mut self, scope: &Scope) -> Result<&[(SetDay, SetDigest)], Error> {
        if self.days.as_ref().is_none_or(|(of, _)| of != scope) {
            let days = match (self.site(&scope.holder), self.site(&scope.origin)) {
                (Some(holder), Some(origin)) => self.reader.set_days(holder, origin)?,
                _ => Vec::new(),
            };
            self.days = Some((scope.clone(), days));
        }
        Ok(self.days.as_ref().map_or(&[], |(_, days)| days))
    }

    fn children(&mut self, level: &Level) -> Result<Answer, Error> {
        let mut sums = Vec::new();
        for node in self.nodes(level) {
            let children = match node {
                Some(node) => self.reader.set_children(&node)?,
                None => Default::default(),
            };
            sums.extend(children.iter().map(|child| short(&child.sum)));
        }
        Ok(Answer::Children(Packed::of_u64(sums)))
    }

    fn hashes(&mut self, level: &Level) -> Result<Answer, Error> {
        let mut hashes = Vec::new();
        for node in self.nodes(level) {
            let entries = node.map(|node| self.reader.set_entries(&node)).transpose()?;
            let of_node = entries.iter().flatten().map(|entry| short(&entry.hash));
            hashes.push(Packed::of_u64(of_node));
        }
        Ok(Answer::Hashes(hashes))
    }

    fn names(&mut self, level: &Level, hashes: &[u64]) -> Result<Answer, Error> {
        let mut named = Vec::new();
        for node in self.nodes(level).into_iter().flatten() {
            for entry in self.reader.set_entries(&node)? {
                if !hashes.contains(&short(&entry.hash)) {
                    continue;
                }
                let Some(file) = self.reader.file(entry.file)? else { continue };
                let File { name, version, size, .. } = file;
                named.push(Named { name, version, size });
            }
        }
        Ok(Answer::Names(named))
    }

    fn look(&mut self, scope: &Scope, names: &[(String, i64)]) -> Result<Answer, Error> {
        let holder = self.site(&scope.holder);
        let files = self.files(scope, names)?;
        let ids: Vec<FileId> = files.iter().flatten().map(|file| file.id).collect();
        let replicas = self.reader.replicas_of(&ids)?;
        let has = |replica: &&Replica, file: &File| {
            replica.file == file.id
                && Some(replica.site) == holder
                && replica.state == ReplicaState::Present
        };
        let stand = |file: Option<File>| {
            let Some(file) = file else { return Stand::default() };
            let held = replicas.iter().any(|replica| has(&replica, &file));
            let digest = file.digest.as_ref().filter(|_| held);
            Stand {
                known: true,
                moving: is_moving(file.state),
                holds: digest.map(|digest| Packed(digest.value().to_vec())),
            }
        };
        Ok(Answer::Look(files.into_iter().map(stand).collect()))
    }

    fn receipts(&mut self, scope: &Scope, names: &[(String, i64)]) -> Result<Answer, Error> {
        let files = self.files(scope, names)?;
        let ids: Vec<FileId> = files.iter().flatten().map(|file| file.id).collect();
        let receipts = self.reader.receipts_of(&ids)?;
        let is_own = |receipt: &Receipt| {
            self.key.as_ref().is_none_or(|key| receipt.receiver == key.as_bytes())
        };
        let of = |file: Option<File>| {
            let is_its = |r: &&Receipt, file: &File| r.file == file.id && is_own(r);
            let receipt = file.and_then(|file| receipts.iter().find(|r| is_its(r, &file)));
            Packed(receipt.map_or(Vec::new(), |receipt| receipt.signed.clone()))
        };
        Ok(Answer::Receipts(files.into_iter().map(of).collect()))
    }

    /// The files of these names in this catalog.
    pub(super) fn files(
        &mut self,
        scope: &Scope,
        names: &[(String, i64)],
    ) -> Result<Vec<Option<File>>, Error> {
        let Some(origin) = self.site(&scope.origin) else { return Ok(vec![None; names.len()]) };
        let called: Vec<_> =
            names.iter().map(|(name, version)| (origin, name.as_str(), *version)).collect();
        self.reader.files_called(&called)
    }

    /// The catalog's nodes of a level; `None` where it has no such rule or site.
    fn nodes(&self, level: &Level) -> Vec<Option<SetNode>> {
        let ids = (self.site(&level.scope.holder), self.site(&level.scope.origin));
        let day = match (ids, self.rule(&level.rule)) {
            ((Some(holder), Some(origin)), Some(rule)) => {
                Some(SetDay { holder, origin, rule, day: level.day })
            }
            _ => None,
        };
        let node = |prefix| day.map(|day| SetNode { day, depth: level.depth, prefix });
        level.prefixes.u16s().into_iter().map(node).collect()
    }

    /// A site's number in this catalog.
    pub(super) fn site(&self, name: &str) -> Option<SiteId> {
        self.sites.iter().find(|(_, site)| site == name).map(|(id, _)| *id)
    }

    fn rule(&self, name: &str) -> Option<RuleId> {
        self.rules.iter().find(|(_, rule)| rule == name).map(|(id, _)| *id)
    }

    fn rule_name(&self, id: RuleId) -> String {
        let found = self.rules.iter().find(|(rule, _)| *rule == id);
        found.map_or_else(|| id.to_string(), |(_, name)| name.clone())
    }
}

/// Whether a file goes on by itself. In quarantine it does not: that may be for ever.
fn is_moving(state: State) -> bool {
    !state.is_end() && state != State::Quarantined
}

#[cfg(test)]
mod tests {
    use super::{Answer, Level, NODES_MAX, Packed, Question, Scope, Side};
    use downpour_catalog::{
        AdoptedFile, BeforeMigration, Catalog, CatalogUrl, Change, Digest, OtherContent, Time,
    };

    const NOW: Time = Time(1_790_000_000_000_000);

    fn catalog(folder: &std::path::Path) -> Catalog {
        let url = CatalogUrl::Sqlite(folder.join("c.db"));
        Catalog::open(&url, "daemon", NOW, &BeforeMigration::Refuse).unwrap()
    }

    #[test]
    fn what_one_request_reads_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut reader = catalog(folder.path()).reader().unwrap();
        let mut side = Side::of(&mut reader).unwrap();
        let level = |depth, nodes| Level {
            scope: Scope { holder: "a".into(), origin: "a".into() },
            rule: "r".into(),
            day: 0,
            depth,
            prefixes: Packed::of_u16(&vec![0; nodes]),
        };
        let mut are_answered = |nodes| {
            let names = Question::Names(level(4, nodes), Packed::default());
            let asked =
                [Question::Children(level(0, 1)), Question::Hashes(level(4, NODES_MAX - 2)), names];
            let answers = side.answer_all(&asked).unwrap();
            answers.len() == 3 && !answers.iter().any(|a| matches!(a, Answer::Refused(_)))
        };
        assert_eq!([1, 2].map(&mut are_answered), [true, false]);
    }

    #[test]
    fn each_rule_has_its_own_days_and_each_request_reads_them_anew() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = catalog(folder.path());
        let site = catalog.site("a").unwrap();
        // Of the n-th rule n files on each of n days; days are taken in one after the other.
        let rules = ["z", "x", "y"].map(|name| (name, catalog.rule(name).unwrap()));
        let adopt = |rule: usize, day: usize, n: usize| {
            let adopted = Change::Adopt(AdoptedFile {
                site,
                name: format!("{rule}/{day}/{n}"),
                size: 1,
                rule: rules[rule].1,
                digest: Digest::blake3([7; 32]),
                others: Vec::new(),
                replicas: vec![(site, "/x".to_owned())],
                other_content: OtherContent::Refuse,
                origin: None,
                receipt: None,
            });
            catalog.apply(NOW.plus_s(86_400 * day as i64), &[adopted]).unwrap()[0].clone().unwrap();
        };
        for (day, rule, n) in (0..27).map(|at| (at / 9, at / 3 % 3, at % 3)) {
            if day <= rule && n <= rule {
                adopt(rule, day, n);
            }
        }
        let scope = Scope { holder: "a".into(), origin: "a".into() };
        let mut reader = catalog.reader().unwrap();
        let mut side = Side::of(&mut reader).unwrap();
        let mut days = |names: &[&str]| {
            let days = |name: &&str| Question::Days(scope.clone(), (*name).to_owned());
            let asked: Vec<Question> = names.iter().map(days).collect();
            let files = |answer| match answer {
                Answer::Days(days) => days.values().map(|sum| sum.files).collect::<Vec<_>>(),
                other => unreachable!("{other:?}"),
            };
            side.answer_all(&asked).unwrap().into_iter().map(files).collect::<Vec<_>>()
        };
        assert_eq!(days(&["y", "none", "z", "x"]), [vec![3; 3], vec![], vec![1], vec![2; 2]]);
        adopt(0, 3, 0);
        assert_eq!(days(&["z"]), [[1, 1]]);
    }
}
