//! A site's life: set-up, start, services, reload, end.

use super::harness::{HANG, One, SiteProcess, until};
use downpour::api::Services;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

#[test]
fn two_commands_set_up_each_of_two_sites() {
    let folder = tempfile::tempdir().unwrap();
    let downpour = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_downpour"));
        command.args(arguments).current_dir(folder.path()).env_remove("DOWNPOUR_SITE");
        let output = command.output().expect("the program runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    downpour(&["init", "east", "--folder", "east", "--address", "east.example.org:28790"]);
    let west = downpour(&["init", "west", "--folder", "west", "--with", "east"]);
    assert!(west.contains("trusts    east at east.example.org:28790"), "{west}");
    // West has moved; what stands in a file is changed by hand.
    let card = west.lines().find_map(|line| line.strip_prefix("card      ")).unwrap();
    let moved = card.replace("west@", "west@new.");
    let known = downpour(&["init", "--folder", "east", "--with", &moved]);
    assert!(known.contains("which stays") && !known.contains("trusts"), "{known}");
    let home = folder.path().join("home");
    fs::create_dir_all(home.join("config")).unwrap();
    fs::write(home.join("config/defaults.toml"), "ceiling = 1\n").unwrap();
    for (site, other) in [("east", "west"), ("west", "east")] {
        let config = format!("{site}/site.toml");
        assert!(downpour(&["check", &config]).contains("good; 1 other site is trusted"), "{site}");
        // Its own folder, which is not named at all.
        let mut inside = Command::new(env!("CARGO_BIN_EXE_downpour"));
        inside.arg("check").current_dir(folder.path().join(site)).env_remove("DOWNPOUR_SITE");
        assert!(inside.status().expect("the program runs").success(), "{site}");
        inside.env("DOWNPOUR_HOME", &home);
        assert_eq!(inside.status().expect("the program runs").code(), Some(1), "wrong defaults");
        let text = fs::read_to_string(folder.path().join(&config)).unwrap();
        assert!(text.contains(&format!("name = \"{other}\"")), "{text}");
    }
}

#[test]
fn a_site_serves_until_it_is_told_to_end_and_serves_again_after_a_crash() {
    let mut one = One::start("");
    let status = one.site.done(&["service", "status"]);
    assert!(status.contains("endpoint") && status.contains("running"), "{status}");
    one.site.kill();
    one.site.start();
    assert_eq!(one.site.text("/healthz").unwrap(), (200, "alive\n".to_owned()));
    one.site.signal("TERM");
    assert_eq!(one.site.ended(), Some(0), "{}", one.site.log());
    let after = one.site.run(&["service", "status"]);
    assert_eq!(after.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&after.stderr).contains("no daemon answers"));
}

#[test]
fn the_door_is_opened_anew_and_not_shut() {
    let one = One::start("");
    let refused = one.site.run(&["service", "stop", "endpoint"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && text.contains("door"), "{text}");
    one.site.done(&["service", "stop", "all"]);
    let restarted: Services = one.site.post("/v1/services/endpoint/restart", &json!({})).unwrap();
    assert_eq!(restarted.services.len(), 1);
    // Who asks before, or while its port is let go, asks again.
    until("the door is open again", || {
        let unknown = one.site.post::<Value>("/v1/services/nothing/stop", &json!({})).unwrap_err();
        unknown.to_string().contains("no service").then_some(())
    });
}

#[test]
fn a_reload_takes_what_is_right_and_refuses_what_is_not() {
    let one = One::start("");
    let site = &one.site;
    let right = fs::read_to_string(site.config()).unwrap();
    for (number, text, result) in [
        (1, right.replace("name = \"a\"", "name = \"z\""), "refused"),
        (2, right.replace("[api]", "[apo]"), "refused"),
        (3, right.replace("# body = \"1MiB\"", "body = \"1KiB\""), "done"),
    ] {
        fs::write(site.config(), &text).unwrap();
        site.signal("HUP");
        let entry = until("the reload is recorded", || {
            let page: Value = site.get(&format!("/v1/audit?after={}", number - 1)).ok()?;
            page["entries"].as_array()?.first().cloned()
        });
        assert_eq!(entry["result"], result, "{entry}");
    }
    let log = site.log();
    assert!(log.contains("site.name has changed") && log.contains("no section [apo]"), "{log}");
    // The new limit holds, once the door has been opened anew.
    let long = json!({ "name": "x".repeat(2000), "role": "viewer" });
    until("the new limit holds", || {
        let refused = site.post::<Value>("/v1/tokens", &long).unwrap_err();
        refused.to_string().contains("1024 are allowed").then_some(())
    });
}

#[test]
fn systemd_is_told_and_logs_are_read_by_machines() {
    let folder = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    let mut site = SiteProcess::new(folder.path(), "a");
    site.configure("[site]\nlog_form = \"json\"\n");
    let mut command = site.command(&["serve"]);
    command.env("NOTIFY_SOCKET", folder.path().join("notify")).env("WATCHDOG_USEC", "100000");
    site.start_command(command);
    let hear = |what: &str| {
        let mut text = [0; 100];
        while socket.recv(&mut text).map(|len| text[..len] != *what.as_bytes()).expect(what) {}
    };
    hear("READY=1");
    hear("WATCHDOG=1");
    site.signal("HUP");
    hear("RELOADING=1");
    hear("READY=1");
    site.signal("TERM");
    hear("STOPPING=1");
    assert_eq!(site.ended(), Some(0));
    for line in site.log().lines() {
        let entry: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(entry["level"].is_string() && entry["fields"]["message"].is_string(), "{line}");
    }
}

#[test]
fn a_wrong_configuration_is_told_by_check_and_ends_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let site = SiteProcess::new(folder.path(), "a");
    site.configure("[limits]\nconections = 5\n");
    let config = site.config();
    let checked = site.run(&["check", config.to_str().unwrap()]);
    let told = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(checked.status.code(), Some(1));
    assert!(told.contains(" line ") && told.contains("write `connections`"), "{told}");
    let served = site.run(&["serve"]);
    let told = String::from_utf8(served.stderr).unwrap();
    assert!(served.status.code() == Some(2) && told.contains("no key `conections`"), "{told}");
}

/// The commonest wish of those who watch: is it there, does it work, how many files.
#[test]
fn metrics_tell_of_requests_and_services() {
    let one = One::start("");
    one.site.done(&["service", "status"]);
    let (status, text) = one.site.text("/metrics").unwrap();
    assert_eq!(status, 200);
    for line in [
        "downpour_service_up{service=\"endpoint\"} 1",
        "downpour_requests_total{route=\"/v1/services\",status=\"200\"} 1",
        "downpour_figure{service=\"endpoint\",figure=\"connections\"}",
    ] {
        assert!(text.contains(line), "{line} not in\n{text}");
    }
}
