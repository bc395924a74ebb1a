//! Of which files a claim is: all, those of a rule, those that one of its sites still lacks; or those that wait too long.
//!
//! What a site has is known by a present replica and a receipt together: a receipt stays when the copy is lost. A file that
//! all have is passed over for none of them, so that it comes to its end.

use crate::change::Holder;
use crate::record::{ReplicaState, RuleId, Time};
use crate::sql::Value;

/// A receipt and a replica, in words that all databases understand.
const HAS: &str = "(EXISTS (SELECT 1 FROM receipt h WHERE h.file = live.file AND h.receiver = ?) \
    AND EXISTS (SELECT 1 FROM replica r WHERE r.file = live.file AND r.site = ? AND r.state = ?))";

#[derive(Debug, Default)]
pub(super) struct Of<'a> {
    rule: Option<RuleId>,
    /// Who is to have them, the one who asks first.
    to: &'a [Holder],
    /// Their turn is later than this.
    beyond: Option<Time>,
}

impl<'a> Of<'a> {
    pub(super) const fn rule(rule: RuleId, to: &'a [Holder]) -> Self {
        Self { rule: Some(rule), to, beyond: None }
    }

    pub(super) const fn beyond(time: Time) -> Self {
        Self { rule: None, to: &[], beyond: Some(time) }
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
        if let [_, others @ ..] = self.to
            && !others.is_empty()
        {
            let all = vec![HAS; others.len()].join(" AND ");
            text.push_str(&format!(" AND NOT ({HAS} AND NOT ({all}))"));
            let present = i64::from(ReplicaState::Present.code());
            for holder in self.to {
                args.push(Value::Bytes(holder.receiver.clone()));
                args.extend([holder.site.0, present].map(Value::Int));
            }
        }
        (text, args)
    }
}
