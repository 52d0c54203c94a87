//! What `tenure` says when there is no server, or when it is asked for nonsense.

mod shell;
mod support;

use std::net::TcpListener;

use shell::{run, tenure, tenure_reading};
use support::own_address;

const VERBS: &[&[&str]] = &[
    &["serve"],
    &["dev"],
    &["exec"],
    &["lock"],
    &["unlock"],
    &["locks"],
    &["why"],
    &["sessions"],
    &["elect"],
    &["get"],
    &["put"],
    &["del"],
    &["txn"],
    &["watch"],
    &["lease"],
    &["lease", "grant"],
    &["lease", "revoke"],
    &["lease", "keep-alive"],
    &["lease", "ttl"],
    &["lease", "list"],
    &["compact"],
    &["status"],
    &["member"],
    &["member", "list"],
    &["member", "add"],
    &["member", "remove"],
    &["member", "update"],
    &["member", "promote"],
    &["member", "leave"],
    &["member", "transfer"],
    &["alarm"],
    &["alarm", "list"],
    &["alarm", "disarm"],
    &["snapshot"],
    &["snapshot", "save"],
    &["snapshot", "status"],
    &["datastore"],
    &["bench"],
    &["completion"],
    &["version"],
];

#[test]
fn help_shows_an_example_first() {
    for verb in VERBS {
        let help = tenure(&[verb, &["--help"][..]].concat()).ok();
        let mut lines = help.lines();
        assert!(lines.next().unwrap().starts_with("Example"), "{verb:?}: {help}");
        assert!(lines.next().unwrap().trim_start().contains("tenure"), "{verb:?}: {help}");
        assert!(help.contains("Usage:"), "{verb:?}: {help}");
    }
    let help = tenure(&["--help"]).ok();
    assert!(help.starts_with("First steps"), "{help}");
    for verb in VERBS {
        assert!(help.contains(verb[0]), "{verb:?}: {help}");
    }
}

#[test]
fn the_version_is_told() {
    assert_eq!(tenure(&["--version"]).ok(), format!("tenure {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_command_lines_end_with_2_and_say_why() {
    for (arguments, reason) in [
        (&["nonsense"][..], "nonsense"),
        (&["get"], "<KEY>"),
        (&["get", "a", "--no-such-flag"], "--no-such-flag"),
        (&["get", "a", "--prefix", "--from"], "--from"),
        (&["get", "a", "--timeout", "5"], "use a number with"),
        (&["get", "a", "-o", "xml"], "table, wide, json, jsonl"),
        (&["lease", "grant", "10"], "use a number with"),
        (&["lease", "revoke", "xyz"], "hexadecimal"),
        (&["compact", "0"], "0"),
        (&["lock", "a", "--ttl", "5"], "use a number with"),
        (&["lock", ""], "a lock has a name"),
        (&["unlock", "a"], "--token"),
        (&["elect", "a"], "<VALUE>"),
        (&["elect", "--observe", "a", "b"], "--observe"),
        (&["serve", "--listen", "localhost"], "expected ADDRESS:PORT, for example 127.0.0.1:2379"),
        (&["serve", "--quota", "8"], "use a number with"),
        (&["bench", "dance"], "put, get, lock"),
        (&["bench", "put", "--seconds", "1", "--requests", "1"], "--requests"),
        (&["bench", "renewals", "--ttl", "30"], "use a number with"),
        (&["bench", "expiry", "--leases", "0"], "--leases"),
    ] {
        let said = tenure(arguments).failed(2);
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
}

#[test]
fn a_refused_connection_is_named_with_what_to_do() {
    let endpoint = own_address();
    for verb in [
        &["get", "a"][..],
        &["put", "a", "b"],
        &["del", "a"],
        &["txn", "--then", "get a"],
        &["watch", "a"],
        &["lease", "list"],
        &["lease", "grant", "10s"],
        &["compact", "1"],
        &["lock", "a"],
        &["unlock", "a", "--token", "1"],
        &["locks"],
        &["why", "a"],
        &["sessions"],
        &["elect", "a", "b"],
        &["elect", "--observe", "a"],
    ] {
        let said = tenure(&[verb, &["--endpoints", &endpoint][..]].concat()).failed(1);
        assert!(said.starts_with(&format!("error: cannot reach {endpoint}: connection refused")), "{verb:?}: {said}");
        assert!(said.contains("tenure serve"), "{verb:?}: {said}");
        assert!(!said.contains("deadline"), "{verb:?}: {said}");
    }
}

#[test]
fn endpoints_stand_before_or_after_the_verb_or_in_the_environment_or_in_a_file() {
    let ports: Vec<String> = (0..4).map(|_| own_address()).collect();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tenure.toml");
    std::fs::write(&file, format!("[client]\nendpoints = [\"{}\"]\n", ports[3])).unwrap();
    let file = file.to_str().unwrap();

    assert!(tenure(&["--endpoints", &ports[0], "get", "a"]).failed(1).contains(&ports[0]));
    assert!(tenure(&["get", "a", "--endpoints", &ports[0]]).failed(1).contains(&ports[0]));
    assert!(tenure(&["get", "a", "--config", file]).failed(1).contains(&ports[3]));
    let mut command = support::tenure();
    command.args(["get", "a", "--config", file]).env("TENURE_ENDPOINTS", &ports[1]);
    assert!(run(command, "").failed(1).contains(&ports[1]), "the environment comes before the file");
    let mut command = support::tenure();
    command.args(["get", "a", "--endpoints", &ports[2]]).env("TENURE_ENDPOINTS", &ports[1]);
    assert!(run(command, "").failed(1).contains(&ports[2]), "the flag comes before the environment");
}

#[test]
fn every_endpoint_that_fails_is_named() {
    let (first, second) = (own_address(), own_address());
    let said = tenure(&["get", "a", "--endpoints", &format!("{first},{second}")]).failed(1);
    assert!(said.contains(&first) && said.contains(&second) && said.contains("any of 2 endpoints"), "{said}");
}

#[test]
fn endpoints_that_cannot_be_meant_are_refused() {
    for (endpoint, reason) in
        [("localhost", "port is missing"), ("https://localhost:1", "TLS"), ("", "no endpoint"), ("ftp://a:1", "ftp")]
    {
        let said = tenure(&["get", "a", "--endpoints", endpoint]).failed(1);
        assert!(said.contains(reason), "{endpoint}: {said}");
    }
}

#[test]
fn a_server_that_never_answers_is_told_from_one_that_is_not_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    let said = tenure(&["put", "a", "b", "--endpoints", &endpoint, "--timeout", "300ms"]).failed(1);
    assert!(said.contains(&format!("cannot reach {endpoint}")), "{said}");
    assert!(said.contains("connected but silent"), "{said}");
    assert!(!said.contains("unknown"), "nothing was sent to who says nothing: {said}");
    assert!(!said.contains("deadline"), "{said}");
}

#[test]
fn a_port_that_speaks_something_else_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n");
        }
    });
    let said = tenure(&["put", "a", "b", "--endpoints", &endpoint]).failed(1);
    assert!(said.contains("no gRPC server") && said.contains("HTTP/1.1 400 Bad Request"), "{said}");
}

#[test]
fn transactions_are_checked_before_anybody_is_asked() {
    let said = tenure_reading(&["txn"], "if\n  version(a) = many\nthen\n  put a b\n").failed(1);
    assert!(said.contains("version(a) = many") && said.contains("number"), "{said}");
    let said = tenure_reading(&["txn"], "{\"then\": [{\"fetch\": {}}]}").failed(1);
    assert!(said.contains("fetch"), "{said}");
}

#[test]
fn completion_scripts_know_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let script = tenure(&["completion", shell]).ok();
        assert!(script.contains("tenure") && script.contains("keep-alive"), "{shell}");
    }
}

#[test]
fn a_configuration_that_cannot_be_read_is_an_error() {
    let said = tenure(&["get", "a", "--config", "no-such-file.toml"]).failed(1);
    assert!(said.contains("cannot read no-such-file.toml"), "{said}");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tenure.toml");
    std::fs::write(&file, "[client]\nendpoint = \"a:1\"\n").unwrap();
    let said = tenure(&["get", "a", "--config", file.to_str().unwrap()]).failed(1);
    assert!(said.contains("endpoint"), "{said}");
}
