//! Of which files a claim is: all, those of a rule, those that some who are to have them still lack; or those that wait too long.
//!
//! What somebody has is known by a present replica and a receipt together: a receipt stays when the copy is lost. A file that
//! as many have as must is not passed over, so that it comes to its end.

use crate::change::{Holder, Takers};
use crate::record::{ReplicaState, RuleId, Time};
use crate::sql::Value;

#[derive(Debug, Default)]
pub(super) struct Of<'a> {
    rule: Option<RuleId>,
    /// Who is to have them.
    to: Option<&'a Takers>,
    /// Their turn is later than this.
    beyond: Option<Time>,
}

impl<'a> Of<'a> {
    pub(super) const fn rule(rule: RuleId, to: Option<&'a Takers>) -> Self {
        Self { rule: Some(rule), to, beyond: None }
    }

    pub(super) const fn beyond(time: Time) -> Self {
        Self { rule: None, to: None, beyond: Some(time) }
    }

    /// What follows the other conditions of a query of `live`, with its arguments.
    pub(super) fn condition(&self) -> (String, Vec<Value>) {
        let (mut text, mut args) = (String::new(), Vec::new());
        if let Some(rule) = self.rule {
            text.push_str(" AND rule = ?");
            args.push(rule.0.into());
        }
        if let Some(beyond) = self.beyond {
            text.push_str(" AND turn > ?");
            args.push(beyond.0.into());
        }
        if let Some(Takers { asking, others, required }) = self.to {
            let all: Vec<&Holder> = asking.iter().chain(others).collect();
            let mut count = |of: &[&Holder], least: usize| {
                for holder in of {
                    args.extend([Value::Bytes(holder.receiver.clone()), holder.site.0.into()]);
                }
                args.push((least as i64).into());
                having(of.len())
            };
            let some_lack = format!("{} < ?", count(&all[..asking.len()], asking.len()));
            let has_ended = format!("{} >= ?", count(&all, *required));
            text.push_str(&format!(" AND ({some_lack} OR {has_ended})"));
        }
        (text, args)
    }
}

/// How many of so many holders have a file, each looked up by its keys, in words that all databases understand. Its arguments: of
/// each holder its key and its site. Halved, as SQLite takes no more than a thousand terms in a row.
fn having(holders: usize) -> String {
    match holders {
        0 => "0".to_owned(),
        1 => format!(
            "CASE WHEN EXISTS (SELECT 1 FROM receipt h WHERE h.file = live.file AND h.receiver = ?) AND EXISTS \
             (SELECT 1 FROM replica r WHERE r.file = live.file AND r.site = ? AND r.state = {}) THEN 1 ELSE 0 END",
            ReplicaState::Present.code()
        ),
        _ => format!("({} + {})", having(holders / 2), having(holders.div_ceil(2))),
    }
}
