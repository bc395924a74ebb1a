//! What another site asks for: files of ours, or files of a third site that we shall fetch.

use super::offer::{Refusal, Trouble, Wanted, Wants, WantsAnswer};
use super::submit::{Accepted, Submission, submit};
use super::{Dispatch, load::Names, route::Route};
use crate::api::Problem;
use crate::site::{Fault, Remote, Site};
use crate::spool::Rules;
use axum::http::StatusCode;
use downpour_catalog::{Change, ErrorClass, File, Move, Next, State};
use std::sync::Arc;

/// Files that may be asked for at once.
pub(super) const WANTED_MAX: usize = 10_000;

/// Sends what `asker` wants, or fetches it.
pub(super) async fn want(
    dispatch: &Dispatch,
    site: &Arc<Site>,
    asker: &Remote,
    wants: Wants,
) -> Result<WantsAnswer, Problem> {
    if let Some(from) = wants.from.clone() {
        if !asker.section.orders {
            let what = format!("{} may not tell this site what to fetch", asker.name());
            return Err(not_let(
                what,
                format!("set `orders = true` in [[remote]] {}", asker.name()),
            ));
        }
        return fetch(site, &from, Wants { from: None, ..wants }).await;
    }
    let mut answer = WantsAnswer::default();
    if !wants.paths.is_empty() {
        if !asker.section.pull {
            let what = format!("{} may not ask this site for paths", asker.name());
            return Err(not_let(what, format!("set `pull = true` in [[remote]] {}", asker.name())));
        }
        let submission = Submission {
            paths: wants.paths,
            to: asker.name().to_owned(),
            from: None,
            into: wants.into,
            priority: wants.priority,
            transfer: wants.transfer,
            most: wants.most,
            after: wants.after,
        };
        let Accepted { transfer, files, bytes, known, others, refused_count, refused, next } =
            submit(dispatch, site, submission).await?;
        (answer.queued, answer.bytes, answer.known) = (files, bytes, known);
        (answer.others, answer.next) = (others, next);
        (answer.refused_count, answer.refused) = (refused_count, refused);
        answer.transfer = Some(transfer);
    }
    queue_again(site, asker.name(), wants.files, &mut answer).await?;
    dispatch.wake.notify_one();
    Ok(answer)
}

/// What this site's configuration does not let another one do.
fn not_let(what: String, todo: String) -> Problem {
    let class = ErrorClass::SourceRefused;
    Problem::new(StatusCode::FORBIDDEN, class.name(), what, todo).of_class(class)
}

/// Asks `from` for files, for this site.
pub(super) async fn fetch(
    site: &Arc<Site>,
    from: &str,
    wants: Wants,
) -> Result<WantsAnswer, Problem> {
    let Some(remote) = site.remote(from) else {
        let what = format!("`{from}` is no [[remote]] of {}", site.name);
        return Err(not_let(what, format!("add a [[remote]] {from} to its configuration")));
    };
    let asked = remote.post("/v1/site/wants", &wants).await;
    asked.map_err(|error| Problem::of_source(from, error))
}

/// Files that are in the catalog go back into the queue, if their rule sends them to the asker.
async fn queue_again(
    site: &Arc<Site>,
    asker: &str,
    wanted: Vec<Wanted>,
    answer: &mut WantsAnswer,
) -> Result<(), Fault> {
    if wanted.is_empty() {
        return Ok(());
    }
    let (config, own, asker) = (site.config(), site.name.clone(), asker.to_owned());
    let found = site
        .read(move |reader| {
            let (names, rules) = (Names::read(reader)?, Rules::new(&own, &config.rule));
            let mut found = Vec::with_capacity(wanted.len());
            for wanted in wanted {
                let versions = match names.site(&wanted.site) {
                    Some(site) => reader.versions(site, &wanted.name)?,
                    None => Vec::new(),
                };
                let file = versions.into_iter().find(|file| file.version == wanted.version);
                let goes = file.as_ref().is_some_and(|file| {
                    let route = Route::of(&config, &rules, names.rule(file.rule));
                    route.is_some_and(|route| route.to.contains(&asker))
                });
                found.push((wanted, file, goes));
            }
            Ok(found)
        })
        .await?;
    let (mut changes, mut changing) = (Vec::new(), Vec::new());
    for (wanted, file, goes) in found {
        match file {
            Some(file) if goes => match again(&file) {
                Ok(Some(change)) => {
                    changes.push(change);
                    changing.push(wanted);
                }
                Ok(None) => answer.queued += 1,
                Err(why) => refuse(answer, &wanted, ErrorClass::SourceRefused, why),
            },
            Some(_) => refuse(answer, &wanted, ErrorClass::SourceRefused, "no rule sends it there"),
            None => refuse(answer, &wanted, ErrorClass::FileGone, "it is not in this catalog"),
        }
    }
    let answers = site.catalog.submit(site.clock.now(), changes).done().await?;
    for (wanted, end) in changing.iter().zip(answers) {
        match end {
            Ok(_) => answer.queued += 1,
            Err(why) => {
                let why = format!("it changed just now: {why}");
                refuse(answer, wanted, ErrorClass::SourceRefused, &why);
            }
        }
    }
    Ok(())
}

/// What makes a file go again; nothing where it is under way. `Err`: why it does not go.
fn again(file: &File) -> Result<Option<Change>, &'static str> {
    let next = match file.state {
        State::Receipted | State::Adopted => Next::Queued,
        State::Waiting => Next::Resumed,
        State::Cancelled => return Err("an operator cancelled it there"),
        State::Quarantined => {
            return Err("it is in quarantine there until an operator releases it");
        }
        _ => return Ok(None),
    };
    Ok(Some(Change::Move(Move { file: file.id, at: file.revision, fence: None, next })))
}

fn refuse(answer: &mut WantsAnswer, wanted: &Wanted, class: ErrorClass, why: &str) {
    let what = format!("{} version {} of {}", wanted.name, wanted.version, wanted.site);
    answer.refused_count += 1;
    answer.refused.push(Refusal { what, trouble: Trouble::new(class, why) });
}
