//! The verbs about locks, as somebody at a shell meets them.

mod shell;
mod support;

use std::time::Duration;

use rustix::process::Signal;
use support::place::Place;

#[test]
fn a_lock_is_held_until_the_input_ends() {
    let place = Place::start();
    let mut holding = place.running(&["lock", "deploy/prod", "--holder", "ci-7", "--metadata", "release 5"]);
    let token = holding.line();
    assert!(token.parse::<i64>().unwrap() > 0);
    let said = place.tenure(&["lock", "-n", "deploy/prod"]).failed(75);
    assert!(said.contains("deploy/prod is busy: ci-7 has held it"), "{said}");

    let mut waiting = place.running(&["lock", "deploy/prod", "--holder", "ci-8", "-o", "jsonl"]);
    place.until_waiters("deploy/prod", 1);
    let table = place.tenure(&["locks"]).ok();
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(rows.next().unwrap(), ["NAME", "HOLDER", "TOKEN", "HELD", "LEASE", "WAITERS"]);
    let row = rows.next().unwrap();
    assert_eq!((row[0], row[1], row[2], row[5]), ("deploy/prod", "ci-7", token.as_str(), "1"));
    let wide = place.tenure(&["locks", "deploy/", "-o", "wide"]).ok();
    assert!(wide.contains("exclusive") && wide.contains("release 5"), "{wide}");
    assert_eq!(place.tenure(&["locks", "other/", "-o", "jsonl"]).ok(), "");

    let why = place.json(&["why", "deploy/prod"]);
    let holder = &why["holders"][0];
    assert_eq!(holder["create_revision"].to_string(), token);
    assert_eq!((&holder["mod_revision"], &holder["version"]), (&holder["create_revision"], &1.into()));
    assert!(holder["lease"]["expiry_unix_ms"].as_i64() > holder["granted_unix_ms"].as_i64(), "{why}");
    let why = place.tenure(&["why", "deploy/prod"]).ok();
    assert!(why.starts_with("deploy/prod is held by ci-7 for "), "{why}");
    assert!(why.contains(&format!("token {token}")) && why.contains(": release 5"), "{why}");
    assert!(why.contains("one waits for it:\n  1. ci-8, for "), "{why}");

    assert_eq!(holding.let_go(), Some(0));
    let granted: serde_json::Value = serde_json::from_str(&waiting.line()).unwrap();
    assert!(granted["token"].as_i64().unwrap() > token.parse().unwrap());
    assert_eq!(waiting.let_go(), Some(0));
    let why = place.tenure(&["why", "deploy/prod"]).ok();
    assert!(why.starts_with("deploy/prod is free\nnobody waits for it\nbefore:\n  ci-8, token "), "{why}");
    assert!(why.contains(&format!("ci-7, token {token}, released")), "{why}");
    assert_eq!(place.tenure(&["locks"]).ok(), "NAME  HOLDER  TOKEN  HELD  LEASE  WAITERS\n");
}

#[test]
fn why_tells_what_the_holder_itself_waits_for() {
    let place = Place::start();
    let mut other = place.running(&["lock", "b", "--holder", "bob"]);
    other.line();
    // One lease that holds a and waits for b, as a program with a session would have it.
    let lease = place.tenure(&["lease", "grant", "60s"]).ok().trim().to_owned();
    let place_of = |name: &str| format!("{name}/{lease}");
    for name in ["a", "b"] {
        place.tenure(&["put", "--lease", &lease, &place_of(name), ""]).ok();
    }
    let why = place.json(&["why", "a"]);
    assert_eq!(why["holders_wait_for"][0]["waits_for"], "b", "{why}");
    assert_eq!(why["holders_wait_for"][0]["held_by"][0], "bob", "{why}");
    let text = place.tenure(&["why", "a"]).ok();
    assert!(text.contains("itself waits for b, which bob holds"), "{text}");
}

#[test]
fn unlocking_needs_the_token_and_the_lease_of_the_holder_or_force() {
    let place = Place::start();
    let mut holding = place.running(&["lock", "a", "-o", "jsonl", "--holder", "ci-7"]);
    let granted: serde_json::Value = serde_json::from_str(&holding.line()).unwrap();
    let (token, lease) = (granted["token"].to_string(), granted["lease"].as_str().unwrap());
    for force in [&[][..], &["--force"]] {
        let said = place.tenure(&[&["unlock", "a", "--token", "1"], force].concat()).failed(1);
        assert!(said.contains("a is not held with token 1") && said.contains("tenure why a"), "{said}");
    }
    for wrong in [&[][..], &["--lease", "1234"]] {
        let said = place.tenure(&[&["unlock", "a", "--token", &token], wrong].concat()).failed(1);
        assert!(said.contains("ci-7 holds a") && said.contains("Use --force to end it anyway."), "{said}");
    }
    assert_eq!(place.json(&["why", "a"])["holders"][0]["holder"], "ci-7", "nothing has changed");
    assert_eq!(place.tenure(&["unlock", "a", "--token", &token, "--lease", lease]).ok(), "released a\n");
    assert!(place.tenure(&["unlock", "a", "--token", &token]).failed(1).contains("a is free already"));
    assert_eq!(holding.let_go(), Some(122), "the holder is told that it had lost the lock");

    let script = format!("{} unlock a --token $TENURE_TOKEN", env!("CARGO_BIN_EXE_tenure"));
    let said = place.tenure(&["exec", "a", "--", "sh", "-c", &format!("{script}; sleep 20")]);
    assert_eq!(said.code, Some(122), "a command that gives its own lock back is stopped: {}", said.stderr);
    assert!(place.tenure(&["unlock", "a", "--token", "1"]).failed(1).contains("a is free already"));

    let mut holding = place.running(&["lock", "a"]);
    let token = holding.line();
    let said = place.tenure(&["unlock", "a", "--token", &token, "--force"]).ok();
    assert!(said.starts_with("took a from "), "{said}");
    assert_eq!(place.json(&["why", "a"])["recent"][0]["end"], "forced");
    assert_eq!(holding.code(), Some(122));

    let mut holding = place.running(&["lock", "a", "--ttl", "3s"]);
    let token = holding.line();
    let why = place.tenure(&["why", "a", "--force-release", &token]).ok();
    assert!(why.contains("a is free") && why.contains("forced"), "{why}");
    assert_eq!(holding.code(), Some(122), "the holder notices without being asked");
}

/// As in a script that puts it into the background.
#[test]
fn without_an_input_a_lock_and_a_leadership_are_held_until_a_signal() {
    let place = Place::start();
    for verb in [&["lock", "a"][..], &["elect", "e", "node-1"]] {
        let mut holding = place.running_without_input(verb);
        holding.line();
        for _ in 0..3 {
            let holders = place.json(&["why", verb[1]])["holders"].clone();
            assert_eq!(holders.as_array().unwrap().len(), 1, "{verb:?}");
        }
        holding.signal(Signal::TERM);
        assert_eq!(holding.code(), Some(0));
        assert_eq!(place.json(&["why", verb[1]])["holders"], serde_json::json!([]));
    }
}

#[test]
fn how_long_an_ended_tenure_lasted_does_not_change_any_more() {
    let place = Place::start();
    let mut holding = place.running(&["lock", "a"]);
    holding.line();
    assert_eq!(holding.let_go(), Some(0));
    let held = || place.json(&["why", "a"])["recent"][0]["held_ms"].as_u64().unwrap();
    let first = held();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(held(), first);
}

#[test]
fn an_ask_for_another_number_of_slots_is_told_that_they_differ() {
    let place = Place::start();
    let mut holding = place.running(&["lock", "--slots", "3", "a"]);
    holding.line();
    let said = place.tenure(&["lock", "-n", "--slots", "5", "a"]).failed(75);
    assert!(said.contains("a has 3 slots for its holders, and 5 were asked for"), "{said}");
    let said = place.tenure(&["exec", "-w", "50ms", "--slots", "5", "a", "--", "true"]).failed(75);
    assert!(said.contains("a has 3 slots for its holders, and 5 were asked for"), "{said}");
    let said = place.tenure(&["lock", "-n", "a"]).failed(75);
    assert!(said.contains("a has 3 slots for its holders, and the whole lock was asked for"), "{said}");
}

#[test]
fn the_holder_is_the_user_at_the_host_unless_it_is_named() {
    let place = Place::start();
    let holder = |command: &mut std::process::Command| {
        let mut holding = shell::Running::start(std::mem::replace(command, support::tenure()));
        holding.line();
        let holder = place.json(&["why", "a"])["holders"][0]["holder"].as_str().unwrap().to_owned();
        assert_eq!(holding.let_go(), Some(0));
        holder
    };
    let named = holder(place.command(&["lock", "a"]).env("USER", "ada"));
    assert!(named.starts_with("ada@") && named.contains(':'), "{named}");
    assert_eq!(holder(place.command(&["lock", "a"]).env("TENURE_HOLDER", "nightly")), "nightly");
    assert_eq!(holder(place.command(&["lock", "a", "--holder", "x"]).env("TENURE_HOLDER", "nightly")), "x");
}

#[test]
fn places_of_locks_are_deleted_only_by_force() {
    let place = Place::start();
    place.tenure(&["put", "deploy/config", "x"]).ok();
    let mut holding = place.running(&["lock", "deploy/prod", "--holder", "ci-7"]);
    holding.line();
    let mut waiting = place.running(&["lock", "deploy/prod", "--holder", "ci-8"]);
    place.until_waiters("deploy/prod", 1);
    for keys in [&["--prefix", "deploy/"][..], &["--all"], &["deploy/", "--to", "deploy0"]] {
        let said = place.tenure(&[&["del"], keys].concat()).failed(1);
        assert!(said.contains("deploy/prod") && said.contains("ci-7 holds it"), "{said}");
        assert!(said.contains("Use --force to delete them anyway."), "{said}");
    }
    assert_eq!(place.tenure(&["get", "deploy/config", "--value-only"]).ok(), "x\n", "nothing was deleted");
    assert_eq!(place.tenure(&["del", "deploy/config"]).ok().split(',').next(), Some("deleted 1"));
    place.tenure(&["del", "--prefix", "deploy/", "--force"]).ok();
    assert_eq!((holding.let_go(), waiting.code()), (Some(122), Some(1)));
    place.tenure(&["del", "--prefix", "deploy/"]).ok();
}

#[test]
fn a_member_protects_places_from_every_client() {
    let place = Place::start_with(&["--protect-places"]);
    place.tenure(&["put", "deploy/config", "x"]).ok();
    let mut holding = place.running(&["lock", "deploy/prod"]);
    holding.line();
    let said = place.tenure(&["del", "--prefix", "deploy/", "--force"]).failed(1);
    assert!(said.contains("a place of the lock \"deploy/prod\"") && said.contains("protect-places"), "{said}");
    // Deep within a transaction, in the branch that is not taken.
    let nested = r#"{"else": [{"txn": {"then": [{"del": {"key": "deploy/", "prefix": true}}]}}]}"#;
    let said = place.reading(&["txn"], nested).failed(1);
    assert!(said.contains("a place of the lock \"deploy/prod\""), "{said}");
    assert_eq!(place.tenure(&["get", "deploy/config", "--value-only"]).ok(), "x\n", "nothing was deleted");
    place.tenure(&["del", "deploy/config"]).ok();
    assert_eq!(holding.let_go(), Some(0), "its holder unlocks it as ever");
    place.tenure(&["del", "--prefix", "deploy/"]).ok();
}

#[test]
fn sessions_are_listed_with_what_they_hold() {
    let place = Place::start();
    let mut holding = place.running(&["lock", "a", "--also", "b", "--holder", "ci-7"]);
    holding.line();
    let sessions = place.json(&["sessions"])["sessions"].clone();
    assert_eq!(sessions.as_array().unwrap().len(), 1, "{sessions}");
    assert_eq!((&sessions[0]["client"], &sessions[0]["locks_held"]), (&"ci-7".into(), &2.into()));
    assert_eq!(sessions[0]["state"], "active");
    let table = place.tenure(&["sessions"]).ok();
    assert!(table.starts_with("CLIENT") && table.contains("ci-7"), "{table}");
    assert_eq!(holding.let_go(), Some(0));
}

#[test]
fn an_election_is_won_held_observed_and_handed_over() {
    let place = Place::start();
    let mut first = place.running(&["elect", "scheduler", "node-1"]);
    assert!(first.line().starts_with("elected, token "));
    let mut observer = place.running(&["elect", "--observe", "scheduler"]);
    assert_eq!(observer.line(), "node-1");
    let mut second = place.running(&["elect", "scheduler", "node-2", "-o", "jsonl"]);
    place.until_waiters("scheduler", 1);
    assert_eq!(first.let_go(), Some(0));
    let elected: serde_json::Value = serde_json::from_str(&second.line()).unwrap();
    assert_eq!((&elected["election"], &elected["value"]), (&"scheduler".into(), &"node-2".into()));
    assert_eq!(observer.line(), "node-2");
    let said = place.tenure(&["elect", "-n", "scheduler", "node-3"]).failed(75);
    assert!(said.contains("scheduler is busy"), "{said}");
    place.tenure(&["elect", "-w", "20ms", "scheduler", "node-3"]).failed(75);
    let token = elected["token"].to_string();
    place.tenure(&["unlock", "scheduler", "--token", &token, "--force"]).ok();
    assert_eq!(second.code(), Some(122), "the leader notices without being asked");
    assert!(second.stderr().contains("the leadership of scheduler is lost"));
}

#[tokio::test]
async fn a_barrier_says_who_is_there_and_how_many_are_missing() {
    let place = Place::start();
    let client = tenure_client::Client::connect(&place.server.address).await.unwrap();
    let early = tokio::spawn(client.barrier("gate", 2).holder("one").pass());
    while place.json(&["why", "gate"])["waiters"].as_array().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let why = place.tenure(&["why", "gate"]).ok();
    assert!(why.starts_with("gate is a barrier of 2: 1 more must come\none waits for it:\n  1. one"), "{why}");
    let listed = place.tenure(&["locks", "-o", "wide"]).ok();
    assert!(listed.lines().nth(1).unwrap().contains("barrier of 2"), "{listed}");
    let last = client.barrier("gate", 2).holder("two").pass().await.unwrap();
    let first = early.await.unwrap().unwrap();
    let why = place.tenure(&["why", "gate"]).ok();
    assert!(why.contains("gate is held by one") && why.contains("gate is held by two"), "{why}");
    let holders = place.json(&["why", "gate"])["holders"].clone();
    assert_eq!(
        (&holders[1]["mode"], &holders[1]["parties"], &holders[1]["slot"]),
        (&"barrier".into(), &2.into(), &1.into())
    );
    drop((first, last));
    client.settled().await;
}
