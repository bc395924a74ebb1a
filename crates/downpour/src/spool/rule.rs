//! Which rule takes a file: the first whose pattern matches its name. Pure.

use super::section::{After, RuleSection, Versions};
use super::template::Facts;
use downpour_catalog::{OtherContent, Time};

/// The rules of a site, in the order in which they are asked.
#[derive(Clone, Debug)]
pub struct Rules {
    own: String,
    rules: Vec<RuleSection>,
}

impl Rules {
    /// The rules of the site `own`.
    pub fn new(own: &str, rules: &[RuleSection]) -> Self {
        Self { own: own.to_owned(), rules: rules.to_vec() }
    }

    /// The site whose rules they are.
    pub fn own(&self) -> &str {
        &self.own
    }

    /// All of them, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &RuleSection)> {
        self.rules.iter().enumerate()
    }

    /// The rule with this number.
    pub fn at(&self, index: usize) -> &RuleSection {
        &self.rules[index]
    }

    /// The rule of this name.
    pub fn named(&self, name: &str) -> Option<&RuleSection> {
        self.rules.iter().find(|rule| rule.name == name)
    }

    /// The number of the rule for a file of one of this site's spools.
    pub fn for_spool(&self, name: &str) -> Option<usize> {
        self.find(&self.own, name)
    }

    /// The rule for a file that arrived from another site.
    pub fn for_arrival(&self, site: &str, name: &str) -> Option<&RuleSection> {
        self.find(site, name).map(|index| &self.rules[index])
    }

    fn find(&self, site: &str, name: &str) -> Option<usize> {
        self.rules.iter().position(|rule| {
            rule.from.as_deref().unwrap_or(&self.own) == site
                && rule.matching.iter().any(|glob| glob.matches(name))
        })
    }
}

impl RuleSection {
    /// The file's path below the destination's folder; `None`: the rule says nothing of it.
    pub fn path_of(&self, site: &str, name: &str, version: i64, taken_in: Time) -> Option<String> {
        let rule = self.name.as_str();
        let into = self.into.as_ref()?;
        Some(into.path(&Facts { name, version, site, rule, taken_in, path: "" }))
    }

    /// What the catalog does with other content under a known name.
    pub const fn other_content(&self) -> OtherContent {
        match self.versions {
            Versions::New => OtherContent::NewVersion,
            Versions::Refuse => OtherContent::Refuse,
        }
    }

    /// Who is to have a file by this rule and has it not, if it is not enough who has it.
    pub fn lacking(&self, has: impl Fn(&str) -> bool) -> Vec<&str> {
        let all = self.to.iter().chain(&self.receivers).map(String::as_str);
        let lacking: Vec<_> = all.filter(|name| !has(name)).collect();
        let receivers = self.receivers.len();
        let may_lack = receivers.saturating_sub(self.required.of(receivers));
        if lacking.len() > may_lack { lacking } else { Vec::new() }
    }

    /// Whether the file is to stay in the spool after its receipt.
    pub fn keeps(&self) -> bool {
        self.after == After::Keep
    }
}

#[cfg(test)]
mod tests {
    use super::Rules;
    use crate::site::section::Complaint;
    use crate::spool::section::{
        After, Complete, RuleSection, SpoolSection, Sums, Versions, check,
    };
    use downpour_catalog::{DigestKind, Time};
    use serde::Deserialize;
    use std::path::PathBuf;
    use std::time::Duration;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default)]
        spool: Vec<SpoolSection>,
        #[serde(default)]
        rule: Vec<RuleSection>,
    }

    fn read(text: &str) -> Result<File, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    const WHOLE: &str = r#"
        [[spool]]
        folder = "/spool/a"
        complete = "settle:250ms"
        sums = "required"
        rescan = "30s"
        size_max = "1TB"
        alarm = "70%"

        [[rule]]
        name = "raw"
        match = ["*.root", "raw/*"]
        to = "beta"
        into = "{site}/{date}/{name}"
        digests = ["blake3", "md5"]
        after = "move:/archive"
        versions = "refuse"
        priority = 10

        [[rule]]
        name = "rest"
        match = "*"
        to = ["beta", "gamma"]

        [[rule]]
        name = "in"
        match = "*"
        from = "beta"
        command = ["/usr/bin/ingest", "{path}"]
    "#;

    #[test]
    fn sections_are_read_as_written() {
        let file = read(WHOLE).unwrap();
        let spool = &file.spool[0];
        assert_eq!(spool.complete, Complete::Settle(Duration::from_millis(250)));
        assert_eq!((spool.sums, spool.network), (Sums::Required, false));
        assert_eq!((spool.size_max, spool.alarm), (Some(1_000_000_000_000), 0.7));
        let raw = &file.rule[0];
        assert_eq!(raw.digests, [DigestKind::Md5]);
        assert_eq!(raw.after, After::Move(PathBuf::from("/archive")));
        assert_eq!((raw.versions, raw.priority), (Versions::Refuse, 10));
        assert!(check("alpha", &["beta", "gamma"], &file.spool, &file.rule).is_empty());
    }

    #[test]
    fn the_first_rule_that_matches_takes_a_file() {
        let rules = Rules::new("alpha", &read(WHOLE).unwrap().rule);
        assert_eq!(rules.for_spool("run/1.root"), Some(0));
        assert_eq!(rules.for_spool("run/1.txt"), Some(1));
        assert_eq!(rules.for_arrival("beta", "x").unwrap().name, "in");
        assert!(rules.for_arrival("gamma", "x").is_none());
        let path = rules.at(0).path_of("alpha", "run/1.root", 1, Time(0));
        assert_eq!(path.as_deref(), Some("alpha/1970-01-01/run/1.root"));
        let arrived = rules.for_arrival("beta", "x").unwrap();
        assert_eq!(arrived.path_of("beta", "x", 1, Time(0)), None, "its sender says where");
    }

    #[test]
    fn all_sites_are_to_have_a_file_and_of_receivers_as_many_as_are_required() {
        let text = "[[rule]]\nname = 'a'\nmatch = '*'\n";
        for (to, has, lacking) in [
            ("to = ['x', 'y']", "x", vec!["y"]),
            ("to = ['x', 'y']", "xy", vec![]),
            ("receivers = ['x', 'y', 'z']\nrequired = 2", "xz", vec![]),
            ("receivers = ['x', 'y', 'z']\nrequired = 2", "x", vec!["y", "z"]),
            ("receivers = ['x', 'y', 'z']", "xz", vec!["y"]),
        ] {
            let rule = &read(&format!("{text}{to}")).unwrap().rule[0];
            assert_eq!(rule.lacking(|name| has.contains(name)), lacking, "{to}, {has}");
        }
    }

    #[test]
    fn what_is_wrong_names_its_key_and_the_remedy() {
        for (text, key, remedy) in [
            ("[[spool]]\nfolder = 'spool'", "folder", "from / on"),
            ("[[spool]]\nfolder = '/s'\ncomplete = 'soon'", "complete", "settle:5s"),
            ("[[spool]]\nfolder = '/s'\nsums = 'maybe'", "sums", "required"),
            ("[[spool]]\nfolder = '/s'\nfoldre = 1", "foldre", "folder"),
            ("[[rule]]\nname = 'a'\nmatch = []", "match", "\"*\""),
            ("[[rule]]\nname = 'a'\nmatch = '*'\nafter = 'move:x'", "after", "begins with /"),
            ("[[rule]]\nname = 'a'\nmatch = '*'\ndigests = 'crc'", "digests", "adler32"),
            ("[[rule]]\nname = 'a'\nmatch = '*'\ninto = '{nam}'", "into", "{name}"),
            ("[[rule]]\nname = 'a'\nmatch = '*'\nversions = 'old'", "versions", "refuse"),
        ] {
            let error = read(text).err().unwrap_or_else(|| panic!("{text} is accepted"));
            assert!(error.contains(key) && error.contains(remedy), "{text}: {error}");
        }
    }

    #[test]
    fn sections_that_do_not_fit_together_are_told() {
        let rule = "[[rule]]\nname = 'a'\nmatch = '*'\nto = 'beta'\n";
        let spools = "[[spool]]\nfolder = '/s'\n[[spool]]\nfolder = ";
        let from = "[[rule]]\nname = 'b'\nmatch = '*'\n";
        for (text, key, remedy) in [
            (format!("{rule}{spools}'/s/t'"), "folder", "apart"),
            (format!("{rule}{spools}'/t'"), "prefix", "raw/"),
            // At each start one would take the other's files for gone.
            (format!("{rule}{spools}'/t'\nprefix = 'raw/'"), "spool.1.prefix", "\"raw/\" and"),
            (format!("{rule}{rule}"), "name", "of its own"),
            (rule.replace("'a'", &format!("'{}'", "a".repeat(256))), "rule.0.name", "255 bytes"),
            (rule.replace("'a'", r#""a\u0000""#), "rule.0.name", "none of them zero"),
            (rule.replace("beta", "alpha"), "to", "the other site"),
            (rule.replace("beta", "delta"), "to", "beta, gamma"),
            (rule.replace("to = 'beta'", ""), "to", "receivers"),
            (rule.replace("to = 'beta'", "from = 'alpha'"), "rule.0.from", "this site itself"),
            (rule.replace("'beta'", "['beta', 'gamma', 'beta']"), "rule.0.to", "`beta` is named"),
            (format!("{rule}{spools}'/t'\nprefix = '../p/'"), "spool.1.prefix", "../p/x"),
            (format!("{rule}{spools}'/t'\nprefix = '/x/'"), "spool.1.prefix", "/x/x"),
            (format!("{rule}command = ['/x']"), "command", "`from`"),
            (format!("{from}from = 'beta'\ncommand = ['x']"), "command", "from / on"),
            (format!("{from}from = 'beta'\nto = 'gamma'"), "rule.0.to", "sent on"),
            (format!("{from}from = 'beta'\nreceivers = 'r'"), "rule.0.receivers", "sent on"),
            (format!("{from}from = 'beta'\nafter = 'delete'"), "rule.0.after", "sent on"),
            (format!("{from}from = 'beta'\ndigests = 'md5'"), "rule.0.digests", "sent on"),
            (format!("{from}from = 'beta'\nrelease = '6h'"), "rule.0.release", "sent on"),
            (format!("{from}from = 'beta'\npriority = 1"), "rule.0.priority", "sent on"),
            (format!("{rule}after = 'move:/s/x'\n[[spool]]\nfolder = '/s'"), "after", "outside"),
            ("[[spool]]\nfolder = '/s'".to_owned(), "spool.0", "[[rule]]"),
        ] {
            let file = read(&text).unwrap();
            let wrong = check("alpha", &["beta", "gamma"], &file.spool, &file.rule);
            let line = |c: &Complaint| format!("{}: {}; {}", c.at, c.what, c.todo);
            let said = wrong.iter().map(line).collect::<Vec<_>>();
            let found = said.iter().any(|s| s.contains(key) && s.contains(remedy));
            assert!(found, "{text}: {said:?}");
        }
    }
}
