//! What happened, in words: the events of a site as a page tells them.

use crate::site::SiteEvent;

/// An event in words.
pub(super) fn happened(event: &SiteEvent) -> String {
    let text = |key: &str| event.about.get(key).and_then(|value| value.as_str()).unwrap_or("");
    match event.kind.as_str() {
        SiteEvent::SERVICE => {
            let why = event.about.get("why").filter(|_| text("stage") == "failed");
            let why = why.and_then(|why| Some(format!(": {}", why.get("what")?.as_str()?)));
            format!("{} {}{}", text("name"), text("stage"), why.unwrap_or_default())
        }
        SiteEvent::TROUBLE => format!("{} ({}): {}", text("name"), text("class"), text("what")),
        SiteEvent::BATCH => {
            let way = if event.about["arrives"] == true { "from" } else { "to" };
            let (files, failed) = (&event.about["files"], &event.about["failed"]);
            format!("{way} {}: {files} files, {failed} failed {}", text("site"), text("what"))
        }
        SiteEvent::LINK => match (text("wanted"), event.about["is_broken"] == true) {
            ("open", true) => format!("{} is broken: {}", text("site"), text("what")),
            (wanted, true) => format!("{} is {wanted} (broken: {})", text("site"), text("what")),
            (wanted, false) => format!("{} is {wanted} and not broken", text("site")),
        },
        SiteEvent::QUARANTINE => match event.about["files"].as_u64() {
            Some(files) if files > 1 => {
                format!("{} ({}) and {} more", text("name"), text("class"), files - 1)
            }
            _ => format!("{} ({})", text("name"), text("class")),
        },
        SiteEvent::SPOOL => format!("{}: {}", text("spool"), text("what")),
        SiteEvent::RECONCILE => text("what").to_owned(),
        SiteEvent::MIRROR => format!("{}: {}", text("remote"), text("what")),
        SiteEvent::AUDIT => format!("{}: {} -> {}", text("who"), text("what"), text("result")),
        SiteEvent::MISSED => match event.about.get("events") {
            Some(count) => format!("{count} events"),
            None => text("why").to_owned(),
        },
        _ => event.about.to_string(),
    }
}
