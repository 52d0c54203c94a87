//! Small things that somebody meets in the first hour: help, versions, values that cannot be meant, empty input.

mod shell;
mod support;

use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use shell::{Running, run, tenure, tenure_reading};
use support::cluster::Cluster;
use support::place::Place;
use support::{own_address, until};

#[test]
fn help_and_the_version_are_verbs_too() {
    assert_eq!(tenure(&["help", "exec"]).ok(), tenure(&["exec", "--help"]).ok());
    assert_eq!(tenure(&["help", "member", "add"]).ok(), tenure(&["member", "add", "--help"]).ok());
    assert!(tenure(&["help"]).ok().starts_with("First steps"));
    assert_eq!(tenure(&["version"]).ok(), format!("tenure {}\n", env!("CARGO_PKG_VERSION")));
    let json: Value = serde_json::from_str(&tenure(&["version", "-o", "json"]).ok()).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn values_that_cannot_be_are_called_by_what_is_wrong_with_them() {
    for (arguments, reason, code) in [
        (&["--endpoints", "127.0.0.1:99999", "get", "a"][..], "the port 99999 is not between 1 and 65535", 1),
        (&["serve", "--listen", "127.0.0.1:99999"], "the port 99999 is not between 1 and 65535", 2),
        (&["member", "add", "10.0.0.4:99999"], "the port 99999 is not between 1 and 65535", 2),
        (&["get", "a", "--timeout", "10x"], "invalid duration \"10x\": use a number with ms, s, m or h", 2),
        (&["snapshot", "status", "/etc/passwd"], "/etc/passwd is not a snapshot", 1),
    ] {
        let said = tenure(arguments).failed(code);
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
    let said = tenure(&["--endpoints", &own_address(), "get", "a", "--timeout", "1m30s"]).failed(1);
    assert!(said.contains("connection refused"), "{said}");
}

#[test]
fn an_empty_variable_is_as_good_as_none() {
    let place = Place::start();
    let file = place.path("tenure.toml");
    std::fs::write(&file, format!("[client]\nendpoints = [\"{}\"]\n", place.server.address)).unwrap();
    let mut command = support::tenure();
    command.args(["put", "a", "b", "--config", &file]);
    for variable in ["TENURE_ENDPOINTS", "TENURE_TIMEOUT", "TENURE_OUTPUT"] {
        command.env(variable, "");
    }
    run(command, "").ok();
}

#[test]
fn the_log_level_has_the_name_of_its_flag() {
    for variable in ["TENURE_LOG_LEVEL", "TENURE_LOG"] {
        let mut command = support::tenure();
        command.arg("serve").env(variable, "loud");
        let said = run(command, "").failed(1);
        assert!(said.contains("\"loud\""), "{variable}: {said}");
    }
}

#[test]
fn a_setting_that_cannot_be_is_named_with_its_file_and_key() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tenure.toml");
    for (text, reason) in [
        ("listen = \"nohost\"", "listen = \"nohost\": expected HOST:PORT, for example 127.0.0.1:2379"),
        ("tick = \"10x\"", "tick = \"10x\": invalid duration \"10x\""),
        ("tick = 5", "tick = 5: invalid type"),
        ("log-level = 3", "log-level = 3: expected a text"),
        ("[limits]\npending-resets = \"x\"", "limits.pending-resets = \"x\""),
        ("tock = \"10ms\"", "unknown field `tock`"),
    ] {
        std::fs::write(&file, text).unwrap();
        let said = tenure(&["serve", "--config", file.to_str().unwrap()]).failed(1);
        assert!(said.starts_with(&format!("error: {}: ", file.display())), "{said}");
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn a_value_is_not_empty_by_accident() {
    let place = Place::start();
    let said = place.reading(&["put", "a"], "").failed(1);
    assert!(said.contains("standard input is empty") && said.contains("tenure put a \"\""), "{said}");
    place.tenure(&["put", "a", ""]).ok();
    place.reading(&["put", "a", "-"], "").ok();
    place.reading(&["put", "a"], "from the pipe").ok();
    assert_eq!(place.tenure(&["get", "a", "--value-only"]).ok(), "from the pipe\n");
}

#[test]
fn a_snapshot_can_go_through_a_pipe() {
    let place = Place::start();
    place.tenure(&["put", "a", "b"]).ok();
    let mut command = place.command(&["snapshot", "save", "-"]);
    let saved = command.current_dir(place.directory.path()).stdin(Stdio::null()).output().unwrap();
    assert_eq!(saved.status.code(), Some(0), "{}", String::from_utf8_lossy(&saved.stderr));
    assert!(!std::path::Path::new(&place.path("-")).exists());
    let file = place.path("piped.snapshot");
    std::fs::write(&file, &saved.stdout).unwrap();
    let status = tenure(&["snapshot", "status", &file, "-o", "json"]).ok();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["snapshots"][0]["keys"], 1);
}

#[test]
fn status_tells_the_version_of_tenure() {
    let place = Place::start();
    let status = place.json(&["status"])["endpoints"][0].clone();
    assert_eq!(status["tenure_version"], env!("CARGO_PKG_VERSION"), "{status}");
    let table = place.tenure(&["status", "-o", "wide"]).ok();
    assert!(table.contains("ETCD API") && table.contains(env!("CARGO_PKG_VERSION")), "{table}");
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    let gone = own_address();
    for (arguments, code) in [
        (&["--endpoints", &gone, "get", "a", "-o", "json"][..], 1),
        (&["--endpoints", &gone, "exec", "-o", "jsonl", "a", "--", "true"], 125),
        (&["get", "a", "--no-such-flag", "-o", "json"], 2),
        (&["get", "a", "--no-such-flag", "--output=json"], 2),
    ] {
        let said = tenure(arguments).failed(code);
        let document: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        assert!(document["error"].as_str().is_some_and(|error| !error.is_empty()), "{document}");
    }
    let place = Place::start();
    let mut holding = place.running(&["lock", "a"]);
    holding.line();
    let said = place.tenure(&["lock", "-n", "a", "-o", "json"]).failed(75);
    let document: Value = serde_json::from_str(&said).unwrap();
    assert!(document["error"].as_str().unwrap().starts_with("a is busy"), "{document}");
}

#[tokio::test]
async fn status_does_not_wait_long_for_a_member_that_is_asleep() {
    let cluster = Cluster::start(3);
    // Each member has said where it is found; before that one that sleeps is shown as one that has not started.
    let status = || tenure(&["--endpoints", &cluster.endpoints(), "status", "-o", "json"]);
    until("all members are known", || !status().stdout.contains("has not started"));
    cluster.servers[0].signal(Signal::STOP);
    let said = status();
    cluster.servers[0].signal(Signal::CONT);
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    let document: Value = serde_json::from_str(&said.stdout).unwrap();
    let rows = document["endpoints"].as_array().unwrap();
    let asleep = rows.iter().find(|row| row["role"] == "unreachable").unwrap();
    assert_eq!((rows.len(), asleep["timeout_ms"].as_u64()), (3, Some(1000)), "{document}");
}

#[test]
fn names_of_locks_are_completed() {
    let place = Place::start();
    let mut holding = place.running(&["lock", "deploy/prod"]);
    holding.line();
    assert_eq!(place.tenure(&["complete", "locks", "dep"]).ok(), "deploy/prod\n");
    assert_eq!(place.tenure(&["complete", "locks", "other"]).ok(), "");
    // A shell is not told why there is nothing to offer.
    let said = tenure(&["--endpoints", &own_address(), "complete", "locks", ""]);
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(0), "", ""));
    assert!(!tenure(&["--help"]).ok().contains("complete "), "it is the shell's verb");

    let script = "source <(tenure completion bash); COMP_WORDS=(tenure why dep); COMP_CWORD=2; \
                  COMP_LINE='tenure why dep'; _tenure_names tenure dep why; echo \"${COMPREPLY[@]}\"";
    let binaries = std::path::Path::new(env!("CARGO_BIN_EXE_tenure")).parent().unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-c", script]).env("TENURE_ENDPOINTS", &place.server.address);
    bash.env("PATH", format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap()));
    assert_eq!(run(bash, "").ok(), "deploy/prod\n");
}

#[test]
fn alarms_are_listed_shown_and_disarmed() {
    let directory = tempfile::tempdir().unwrap();
    let server = support::Server::start_with(&directory.path().join("data"), &["--quota", "64KiB"]);
    let place = Place { server, directory };
    assert_eq!(place.json(&["alarm", "list"])["alarms"], serde_json::json!([]));
    let value = "x".repeat(40_000);
    until("the store is full", || place.tenure(&["put", &format!("k{}", value.len()), &value]).code != Some(0));
    let said = place.tenure(&["put", "more", &value]).failed(1);
    assert!(said.contains("the store is full"), "{said}");
    let alarms = place.json(&["alarm", "list"])["alarms"].clone();
    assert_eq!((alarms.as_array().unwrap().len(), &alarms[0]["alarm"]), (1, &"NOSPACE".into()), "{alarms}");
    let table = place.tenure(&["alarm", "list"]).ok();
    assert!(table.starts_with("ALARM") && table.contains("NOSPACE") && table.contains("default"), "{table}");
    let status = place.tenure(&["status"]);
    assert!(status.code == Some(1) && status.stdout.contains("alarm NOSPACE"), "{}", status.stdout);
    let status: Value = serde_json::from_str(&place.tenure(&["status", "-o", "json"]).stdout).unwrap();
    assert_eq!(status["endpoints"][0]["alarms"][0], "NOSPACE", "{status}");
    place.tenure(&["del", "--prefix", "k"]).ok();
    let revision = place.json(&["get", "--all"])["revision"].to_string();
    place.tenure(&["compact", &revision]).ok();
    let said = place.tenure(&["alarm", "disarm"]).ok();
    assert!(said.contains("NOSPACE") || said.contains("no alarm"), "{said}");
    assert_eq!(place.json(&["alarm", "list"])["alarms"], serde_json::json!([]));
    place.tenure(&["put", "more", "x"]).ok();
}

/// A command on a terminal of its own, by script(1) of util-linux. None where that is missing.
fn on_terminal(session: &str) -> Option<Running> {
    if Command::new("script").arg("--version").stdout(Stdio::null()).status().is_err() {
        return None;
    }
    let mut command = Command::new("script");
    command.args(["-qec", session, "/dev/null"]);
    Some(Running::start(command))
}

#[test]
fn on_a_terminal_a_lock_is_told_in_words() {
    let place = Place::start();
    let session = format!("{} --endpoints {} lock a", env!("CARGO_BIN_EXE_tenure"), place.server.address);
    let Some(mut terminal) = on_terminal(&session) else { return };
    let said = terminal.line();
    assert!(said.starts_with("holding a, token "), "{said}");
    terminal.press("\x04");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn q_ends_a_listing_that_is_followed() {
    let place = Place::start();
    let session = format!(
        "{} --endpoints {} locks --watch; echo code $?; stty -a",
        env!("CARGO_BIN_EXE_tenure"),
        place.server.address
    );
    let Some(mut terminal) = on_terminal(&session) else { return };
    while !terminal.line().contains("NAME") {}
    terminal.press("\x1b[Aq");
    let mut said = terminal.line();
    while said.trim() != "code 0" {
        said = terminal.line();
    }
    while !said.contains("icanon") {
        said = terminal.line();
    }
    assert!(!said.contains("-icanon"), "the terminal is as it was: {said}");
}

#[test]
fn transactions_are_unharmed_by_an_empty_input() {
    let said = tenure_reading(&["txn"], "").failed(1);
    assert!(!said.is_empty());
}
