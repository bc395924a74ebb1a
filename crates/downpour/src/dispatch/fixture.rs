//! For tests: files in the catalog of a site, as far as the queue, and what the site tells.

use crate::site::{EventId, Site};
use downpour_catalog::{
    Change, Digest, File, FileId, Move, NewFile, Next, OtherContent, Reader, RuleId, Same, SiteId,
};
use std::sync::Arc;

pub(super) fn new_file(site: SiteId, rule: RuleId, name: &str) -> NewFile {
    NewFile {
        site,
        name: name.to_owned(),
        size: 1,
        stamp: 1,
        rule,
        rank: 1,
        transfer: None,
        other_content: OtherContent::Refuse,
        same: Same::Any,
    }
}

pub(super) async fn apply(site: &Site, change: Change) -> FileId {
    let answers = site.catalog.submit(site.clock.now(), vec![change]).done().await;
    answers.unwrap().remove(0).unwrap().file
}

pub(super) async fn step(site: &Arc<Site>, id: FileId, next: Next) {
    let (file, at) = (id, file(site, id).await.revision);
    apply(site, Change::Move(Move { file, at, fence: None, next })).await;
}

pub(super) async fn file(site: &Arc<Site>, id: FileId) -> File {
    site.read(move |reader| Ok(reader.file(id)?.unwrap())).await.unwrap()
}

/// A file of that rule, in the queue.
pub(super) async fn queued(
    site: &Arc<Site>,
    rule: &'static str,
    name: &str,
) -> (FileId, SiteId, RuleId) {
    let catalog = site.catalog.clone();
    let known = move |_: &mut Reader| Ok((catalog.site("a")?, catalog.rule(rule)?));
    let (own, rule) = site.read(known).await.unwrap();
    let file = apply(site, Change::TakeIn(new_file(own, rule, name))).await;
    let digest = Digest::blake3(*blake3::hash(name.as_bytes()).as_bytes());
    for next in [Next::Settled { size: 1 }, Next::Hashed(vec![digest]), Next::Queued] {
        step(site, file, next).await;
    }
    (file, own, rule)
}

/// What is told first of this kind, since the site began.
pub(super) async fn told(site: &Site, kind: &str) -> serde_json::Value {
    let mut listener = site.events.listen(Some(EventId::FIRST));
    loop {
        let event = listener.next(&site.events).await;
        if event.kind == kind {
            return event.about.clone();
        }
    }
}
