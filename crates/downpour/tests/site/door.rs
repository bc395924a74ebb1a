//! Who gets in, and what they may.

use super::harness::Two;
use downpour::site::{NewToken, RemoteError};
use serde_json::{Value, json};

fn token(sites: &Two, name: &str, role: &str, expires_s: Option<u64>) -> String {
    let wish = json!({ "name": name, "role": role, "expires_s": expires_s });
    sites.a.post::<NewToken>("/v1/tokens", &wish).unwrap().token
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
    let sites = Two::start(["", ""]);
    let viewer = token(&sites, "watch", "viewer", None);
    let operator = token(&sites, "shift", "operator", None);
    let over = token(&sites, "gone", "admin", Some(0));
    let get = |token: &str, path: &str| {
        let access = sites.a.access(Some(token));
        code(sites.a.block_on(access.get(path)))
    };
    let stop = |token: &str| {
        let access = sites.a.access(Some(token));
        code(sites.a.block_on(access.post("/v1/services/all/start", &json!({}))))
    };
    assert_eq!(get(&viewer, "/v1/services"), "ok");
    assert_eq!(get("downpour-guess", "/v1/services"), "401 not-known");
    assert_eq!(get(&over, "/v1/services"), "401 not-known");
    assert_eq!(get(&operator, "/v1/tokens"), "403 not-allowed");
    assert_eq!(stop(&viewer), "403 not-allowed");
    assert_eq!(stop(&operator), "ok");
    assert_eq!(get(&viewer, "/v1/nothing"), "404 no-such-path");
    sites.a.done(&["token", "revoke", "watch"]);
    assert_eq!(get(&viewer, "/v1/services"), "401 not-known");
    let list = sites.a.done(&["token", "list"]);
    assert!(
        list.contains("shift") && list.contains("expired") && !list.contains("watch"),
        "{list}"
    );
    let page: Value = sites.a.get("/v1/audit").unwrap();
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
        deed("admin", "DELETE /v1/tokens/watch", "200"),
    ] {
        assert!(deeds.contains(&expected), "{expected:?} not in {deeds:?}");
    }
}
