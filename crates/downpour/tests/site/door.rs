//! Who gets in, and what they may.

use super::harness::{One, SiteProcess, Two, until};
use downpour::api::{RemoteReport, Remotes};
use downpour::site::{NewToken, RemoteError, Why};
use serde_json::{Value, json};

fn token(site: &SiteProcess, name: &str, role: &str, expires_s: Option<u64>) -> String {
    let wish = json!({ "name": name, "role": role, "expires_s": expires_s });
    site.post::<NewToken>("/v1/tokens", &wish).unwrap().token
}

fn code(result: Result<Value, RemoteError>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(RemoteError::Refused(problem)) => format!("{} {}", problem.status, problem.code),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn each_role_may_what_it_may() {
    let one = One::start("");
    let site = &one.site;
    let viewer = token(site, "watch", "viewer", None);
    let operator = token(site, "shift", "operator", None);
    let over = token(site, "gone", "admin", Some(1));
    let get = |token: &str, path: &str| {
        let access = site.access(Some(token));
        code(site.block_on(access.get(path)))
    };
    let stop = |token: &str| {
        let access = site.access(Some(token));
        code(site.block_on(access.post("/v1/services/all/start", &json!({}))))
    };
    assert_eq!(get(&viewer, "/v1/services"), "ok");
    assert_eq!(get("downpour-guess", "/v1/services"), "401 not-known");
    until("its second is over", || (get(&over, "/v1/services") == "401 not-known").then_some(()));
    assert_eq!(get(&operator, "/v1/tokens"), "403 not-allowed");
    assert_eq!(stop(&viewer), "403 not-allowed");
    assert_eq!(stop(&operator), "ok");
    assert_eq!(get(&viewer, "/v1/nothing"), "404 no-such-path");
    let odd = "files/abc/content transfers/abc why/abc fetches/abc files?colour=red why?colour=red \
               transfers?colour=red transfers/1?colour=red links/history?colour=red";
    for path in odd.split(' ') {
        assert_eq!(get(&viewer, &format!("/v1/{path}")), "400 bad-request", "{path}");
    }
    let said = |arguments: &[&str]| {
        let ended = site.run(arguments);
        assert!(!ended.status.success(), "{arguments:?}");
        String::from_utf8(ended.stderr).unwrap()
    };
    // The way in for an admin is not shut, and one that was lost is found again.
    let last = said(&["token", "revoke", "admin"]);
    assert!(last.contains("last admin") && last.contains("token new"), "{last}");
    token(site, "second", "admin", None);
    site.done(&["token", "revoke", "admin"]);
    let stale = said(&["token", "list"]);
    assert!(stale.contains("admin.token") && stale.contains("--offline"), "{stale}");
    site.done(&["token", "new", "third", "--role", "admin", "--offline"]);
    let taken = said(&["token", "new", "third", "--role", "admin", "--offline"]);
    assert!(taken.contains("`third` already") && taken.contains("another name"), "{taken}");
    site.done(&["token", "revoke", "watch"]);
    assert_eq!(get(&viewer, "/v1/services"), "401 not-known");
    let list = site.done(&["token", "list"]);
    assert!(
        list.contains("shift") && list.contains("expired") && !list.contains("watch"),
        "{list}"
    );
    let page: Value = site.get("/v1/audit").unwrap();
    let deeds: Vec<_> = page["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap().to_owned();
            (text("who"), text("what"), text("result"))
        })
        .collect();
    let deed =
        |who: &str, what: &str, result: &str| (who.to_owned(), what.to_owned(), result.to_owned());
    for expected in [
        deed("admin", "POST /v1/tokens", "200"),
        deed("shift", "GET /v1/tokens", "403"),
        deed("watch", "POST /v1/services/all/start", "403"),
        deed("shift", "POST /v1/services/all/start", "200"),
        deed("third", "DELETE /v1/tokens/watch", "200"),
    ] {
        assert!(deeds.contains(&expected), "{expected:?} not in {deeds:?}");
    }
}

#[test]
fn a_name_on_the_command_line_is_taken_as_it_is_whatever_it_would_mean_in_a_url() {
    let one = One::start("");
    let viewer = token(&one.site, "watch", "viewer", None);
    let said = |arguments: &[&str]| {
        let ended = one.site.run(arguments);
        assert!(!ended.status.success(), "{arguments:?}");
        String::from_utf8(ended.stderr).unwrap()
    };
    for none in ["watch#2", "watch?", "watch/../watch"] {
        let unknown = said(&["token", "revoke", none]);
        assert!(unknown.contains(&format!("`{none}`")), "{unknown}");
    }
    let unknown = said(&["service", "stop", "scrub/stop?"]);
    assert!(unknown.contains("no service of this name"), "{unknown}");
    let access = one.site.access(Some(&viewer));
    assert_eq!(code(one.site.block_on(access.get("/v1/services"))), "ok");
}

#[test]
fn a_token_that_is_refused_is_recorded_with_its_name() {
    let one = One::start("");
    token(&one.site, "shift", "operator", None);
    let again = one.site.run(&["token", "new", "shift", "--role", "viewer"]);
    assert!(!again.status.success(), "{again:?}");
    let page: Value = one.site.get("/v1/audit").unwrap();
    let last = page["entries"].as_array().unwrap().last().unwrap();
    assert!(last["result"] == "409" && last["detail"] == "shift as viewer", "{page}");
}

/// Waits until this is so of the other site: to a busy machine it may answer too late.
fn other_is(site: &SiteProcess, what: &str, is: impl Fn(&RemoteReport) -> bool) {
    until(&format!("the other one is {what}\n{}", site.log()), || {
        site.get::<Remotes>("/v1/remotes").ok().filter(|all| is(&all.remotes[0]))
    });
}

/// The same: it cannot be reached, for a reason of this class.
fn other_fails(site: &SiteProcess, class: &str) {
    other_is(site, class, |other| other.why.as_ref().is_some_and(|why| why.class == class));
}

#[test]
fn sites_know_each_other_by_their_keys_alone() {
    let mut sites = Two::start(["", ""]);
    other_is(&sites.a, "b, and reached", |b| {
        b.reached && b.hello.as_ref().is_some_and(|hello| hello.site == "b")
    });
    // An admin's token opens nothing that is between sites.
    let between = code(sites.b.get("/v1/site/hello"));
    assert_eq!(between, "401 not-known");
    // It has the key that is trusted, and not the name by which files would be known.
    let config = sites.a.path("site.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("name = \"b\"", "name = \"bb\"")).unwrap();
    sites.a.kill();
    sites.a.start();
    other_is(&sites.a, "itself b", |bb| {
        let is_it = |why: &Why| why.class == "not-trusted" && why.what.contains("itself b");
        !bb.reached && bb.why.as_ref().is_some_and(is_it)
    });
    std::fs::write(&config, text).unwrap();
    // Another key than the one that b trusts: whoever has it is a stranger there.
    sites.a.kill();
    for file in ["node.key", "node.crt"] {
        std::fs::remove_file(sites.a.path("state").join(file)).unwrap();
    }
    sites.a.start_as_another();
    other_fails(&sites.a, "destination-refused");
    // And the other way: b finds another key there than the one it pinned.
    other_fails(&sites.b, "not-trusted");
    sites.b.kill();
    other_fails(&sites.a, "destination-unreachable");
}
