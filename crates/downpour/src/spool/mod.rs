//! The spool: folders whose files are taken in, sent by rules, and looked after until their receipt.
//!
//! | module | does |
//! | --- | --- |
//! | `section`, `template`, `rule` | what the configuration says; which rule takes a file, and where to |

mod rule;
mod section;
mod template;

pub use rule::Rules;
pub use section::{
    After, Complete, RuleSection, SectionError, SpoolSection, Sums, Versions, check,
};
pub use template::{Facts, Template};
