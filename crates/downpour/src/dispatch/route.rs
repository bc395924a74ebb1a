//! Where the files of a rule go.
//!
//! A rule of the configuration names its sites and its path template. What an operator submits comes under a rule that is
//! not configured and says all in its name: `to:SITE`, or `to:SITE/TEMPLATE`.

use super::book::Held;
use crate::receipt::WORD_BYTES_MAX;
use crate::site::{Config, is_name};
use crate::spool::{Facts, RuleSection, Rules, Template};
use downpour_catalog::FileId;
use std::collections::{HashMap, HashSet};

/// How the name of a rule that is not configured begins.
const SUBMITTED: &str = "to:";
/// Priority of what is submitted without one.
pub(super) const PRIORITY: i64 = 100;

/// Where the files of one rule go.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// The rule's name.
    pub(super) rule: String,
    /// The sites that are to have the files.
    pub(super) to: Vec<String>,
    /// Named receivers that are to have them, instead of sites; and how many of them must.
    pub(super) receivers: Vec<String>,
    pub(super) required: usize,
    /// Lower goes first.
    pub(super) priority: i64,
    into: Template,
    /// Sites that have each file already, as far as more than one is to have it.
    have: HashMap<FileId, HashSet<String>>,
}

impl Route {
    /// That of the rule called `name`; `None` when it sends nothing.
    pub(super) fn of(config: &Config, rules: &Rules, name: &str) -> Option<Self> {
        if let Some(rule) = rules.named(name) {
            let goes = |route: &Self| !route.to.is_empty() || !route.receivers.is_empty();
            return Some(Self::of_rule(rule)).filter(goes);
        }
        let (site, into) = parse(name)?;
        config.remote.iter().any(|remote| remote.name == site).then(|| Self {
            rule: name.to_owned(),
            to: vec![site.to_owned()],
            receivers: Vec::new(),
            required: 0,
            priority: PRIORITY,
            into: into.parse().unwrap_or_default(),
            have: HashMap::new(),
        })
    }

    fn of_rule(rule: &RuleSection) -> Self {
        Self {
            rule: rule.name.clone(),
            to: rule.to.clone(),
            receivers: rule.receivers.clone(),
            required: rule.required.of(rule.receivers.len()),
            priority: rule.priority,
            into: rule.into.clone().unwrap_or_default(),
            have: HashMap::new(),
        }
    }

    /// The path of a file below the destination's folder.
    pub(super) fn path_of(&self, held: &Held) -> String {
        let file = &held.file;
        self.into.path(&Facts {
            name: &file.name,
            version: file.version,
            site: &held.origin,
            rule: &held.rule,
            taken_in: file.taken_in,
            path: "",
        })
    }

    /// Notes that a site has a file already.
    pub(super) fn note(&mut self, file: FileId, site: &str) {
        if self.to.len() > 1 {
            self.have.entry(file).or_default().insert(site.to_owned());
        }
    }

    /// Whether a site is still to have a file.
    pub(super) fn wants(&self, file: FileId, site: &str) -> bool {
        !self.have.get(&file).is_some_and(|have| have.contains(site))
    }

    /// How many sites have a file already.
    pub(super) fn having(&self, file: FileId) -> usize {
        self.have.get(&file).map_or(0, HashSet::len)
    }

    /// Whether `site` is the last one that is to have a file.
    pub(super) fn is_last(&self, file: FileId, site: &str) -> bool {
        self.to.iter().all(|to| to == site || !self.wants(file, to))
    }
}

/// Whether files of the rule called `name` are sent to `site`.
pub(crate) fn is_sent_to(config: &Config, rules: &Rules, name: &str, site: &str) -> bool {
    let goes = |route: Route| route.to.iter().chain(&route.receivers).any(|to| to == site);
    Route::of(config, rules, name).is_some_and(goes)
}

/// The name of the rule for what is submitted to a site.
pub(super) fn rule_name(site: &str, into: Option<&str>) -> String {
    match into {
        Some(into) => format!("{SUBMITTED}{site}/{into}"),
        None => format!("{SUBMITTED}{site}"),
    }
}

/// Whether the name of that rule is short enough for catalogs and receipts.
pub(super) fn check_into(site: &str, into: Option<&str>) -> Result<(), String> {
    let (len, over) = (into.map_or(0, str::len), rule_name(site, into).len());
    let most = (WORD_BYTES_MAX + len).saturating_sub(over);
    match over <= WORD_BYTES_MAX {
        true => Ok(()),
        false => Err(format!("`into` may be {most} bytes long with `to` {site}, and is {len}")),
    }
}

/// Whether a rule is one of those.
pub(crate) fn is_submitted(name: &str) -> bool {
    parse(name).is_some()
}

/// Site and template of such a name.
fn parse(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_prefix(SUBMITTED)?;
    let (site, into) = rest.split_once('/').unwrap_or((rest, "{name}"));
    is_name(site).then_some((site, into))
}

#[cfg(test)]
mod tests {
    use super::{check_into, parse, rule_name};

    #[test]
    fn the_rule_of_what_is_submitted_says_where_it_goes() {
        for (site, into, is) in
            [("b", None, ("b", "{name}")), ("b", Some("run/{file}"), ("b", "run/{file}"))]
        {
            assert_eq!(parse(&rule_name(site, into)), Some(is));
        }
        let said = check_into("b", Some(&"x".repeat(251))).unwrap_err();
        assert!(said.contains("250 bytes long") && said.contains("is 251"), "{said}");
        assert_eq!(check_into("b", Some(&"x".repeat(250))), Ok(()));
        for other in ["raw", "to:", "to:/x", "to:../x"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
