//! `tenure exec` with real processes: exit codes, signals, what the command sees, and that it is dead
//! before anybody else gets the lock.

mod shell;
mod support;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use shell::{Running, run};
use support::place::Place;
use support::proxy::Proxy;
use support::store::{Store, signing_key};
use support::{Server, is_dead, until};

/// As a command that says whether this process still does anything.
fn report_on(id: &str) -> String {
    format!("if grep -q '^State:.[^ZX]' /proc/{id}/status 2>/dev/null; then echo alive; else echo dead; fi")
}

/// A command that says who it is and does not end by TERM.
const STUBBORN: &str = "trap '' TERM; echo $$; while :; do sleep 1; done";

#[test]
fn the_exit_code_is_the_commands_own() {
    let place = Place::start();
    assert_eq!(place.tenure(&["exec", "a", "--", "true"]).ok(), "");
    for code in [1, 2, 75, 122, 255] {
        let said = place.tenure(&["exec", "a", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((said.code, said.stderr.as_str()), (Some(code), ""));
    }
    assert_eq!(place.tenure(&["exec", "a", "--", "sh", "-c", "kill -9 $$"]).code, Some(128 + 9));
    let said = place.tenure(&["exec", "a", "--", "no-such-command-at-all"]).failed(127);
    assert!(said.contains("cannot run no-such-command-at-all"), "{said}");
    assert!(place.tenure(&["exec", "a", "--", "/dev/null"]).failed(126).contains("/dev/null"));
    let lock = place.json(&["why", "a"]);
    assert_eq!(lock["holders"].as_array().unwrap().len(), 0, "given back each time");
    assert!(lock["recent"].as_array().unwrap().iter().all(|recent| recent["end"] == "released"), "{lock}");
    assert_eq!(place.json(&["sessions"])["sessions"], serde_json::json!([]), "no lease is left behind");
}

#[test]
fn failures_of_its_own_are_told_from_the_commands() {
    let gone = support::own_address();
    let said = shell::tenure(&["--endpoints", &gone, "exec", "a", "--", "true"]).failed(125);
    assert!(said.contains("connection refused") && said.contains("tenure serve"), "{said}");
    for (arguments, reason) in [
        (&["exec", "a"][..], "COMMAND"),
        (&["exec", "--ttl", "100ms", "a", "--", "true"], "500ms"),
        (&["exec", "--ttl", "9s", "--grace", "3100ms", "a", "--", "true"], "a third of the TTL"),
        (&["exec", "--signal", "SIGNAL", "a", "--", "true"], "TERM"),
        (&["exec", "-n", "-w", "1s", "a", "--", "true"], "--wait"),
        (&["exec", "-s", "--slots", "2", "a", "--", "true"], "--slots"),
        (&["--timeout", "1s", "exec", "--slots", "0", "a", "--", "true"], "0"),
    ] {
        let said = shell::tenure(arguments).failed(125);
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
}

#[test]
fn the_command_sees_the_lock_and_the_input_and_no_shell() {
    let place = Place::start();
    let script = "echo $TENURE_LOCK $TENURE_TOKEN $TENURE_LEASE; cat";
    let said = run(place.command(&["exec", "a/b", "--", "sh", "-c", script]), "from outside\n").ok();
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!((words[0], &words[3..]), ("a/b", &["from", "outside"][..]));
    let (token, lease) = (words[1].parse::<i64>().unwrap(), i64::from_str_radix(words[2], 16).unwrap());
    assert!(token > 0 && lease > 0);
    let said = place.tenure(&["exec", "a/b", "--", "printf", "%s|", "$HOME", "a b", "*", "--flag"]).ok();
    assert_eq!(said, "$HOME|a b|*|--flag|");
    let next = place.tenure(&["exec", "a/b", "--", "sh", "-c", "echo $TENURE_TOKEN"]).ok();
    assert!(next.trim().parse::<i64>().unwrap() > token, "tokens grow");
    // A writer whose reader is gone ends as it does at a shell.
    let said = place.tenure(&["exec", "a/b", "--", "sh", "-c", "(yes; echo survived $? >&2) | head -1"]);
    assert_eq!((said.stdout.as_str(), said.stderr.contains("survived 141")), ("y\n", true), "{}", said.stderr);
}

#[test]
fn the_command_sees_its_owner_its_slot_and_the_endpoints() {
    let place = Place::start();
    let script = "echo $TENURE_OWNER; echo $TENURE_SLOT; echo $TENURE_ENDPOINTS";
    let said = place.tenure(&["exec", "--slots", "3", "a", "--owner", "job-7", "--", "sh", "-c", script]).ok();
    assert_eq!(said.lines().collect::<Vec<_>>(), ["job-7", "0", &place.server.address]);
    let said = place.tenure(&["exec", "a", "--", "sh", "-c", script]).ok();
    let lines: Vec<&str> = said.lines().collect();
    assert!(!lines[0].is_empty());
    assert_eq!(lines[1..], ["", &place.server.address], "a lock without slots has none");
}

#[test]
fn a_command_that_asks_for_what_it_runs_under_is_refused_at_once() {
    let place = Place::start();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let nested = format!("{tenure} exec a -- echo never; echo $?");
    let said = place.tenure(&["exec", "a", "--", "sh", "-c", &nested]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "75\n"), "{}", said.stderr);
    assert!(said.stderr.contains("deadlock"), "{}", said.stderr);
    let deeper = format!("{tenure} exec b -- {tenure} exec -E 9 a -- echo never; echo $?");
    let said = place.tenure(&["exec", "a", "--", "sh", "-c", &deeper]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "9\n"), "{}", said.stderr);
    let other = format!("{tenure} exec b -- echo inside");
    assert_eq!(place.tenure(&["exec", "a", "--", "sh", "-c", &other]).ok(), "inside\n");
    // Two at a time are two flows of work: the second waits for the first.
    let script = format!("for n in 1 2; do TENURE_OWNER= {tenure} exec b -- sh -c 'sleep 0.1; echo one' & done; wait");
    assert_eq!(place.tenure(&["exec", "a", "--", "sh", "-c", &script]).ok(), "one\none\n");
}

#[tokio::test]
async fn without_a_leader_a_wait_ends_when_it_was_to_end() {
    let mut cluster = support::cluster::Cluster::start(2);
    let leader = cluster.leader().await;
    cluster.servers[1 - leader].kill();
    let endpoint = cluster.servers[leader].address.clone();
    for verb in [&["exec", "-w", "1s", "a", "--", "echo", "never"][..], &["lock", "-w", "1s", "a"]] {
        let said = shell::tenure(&[&["--endpoints", &endpoint], verb].concat()).failed(75);
        assert!(said.contains("was not granted within 1") || said.contains("was not free within"), "{said}");
    }
}

/// How many calls of this rpc a member has begun, by their codes; those under way are `None`.
fn calls_of(server: &Server, rpc: &str) -> BTreeMap<Option<String>, u64> {
    let text = server.get("/metrics").expect("every member tells its metrics");
    let rpc = format!("rpc=\"tenure.v1.LockService/{rpc}\"");
    let counted = text.lines().filter(|line| line.contains(&rpc)).filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let code = match series.split_once('{')? {
            ("tenure_rpc_requests_total", labels) => {
                Some(labels.split("code=\"").nth(1)?.trim_end_matches("\"}").to_owned())
            }
            ("tenure_rpc_in_flight", _) => None,
            _ => return None,
        };
        Some((code, value.parse().unwrap()))
    });
    counted.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn without_a_leader_nothing_is_asked_once_the_wait_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let peers: Vec<String> = (0..3).map(|_| support::own_address()).collect();
    let cluster = format!("n1={},n2={},n3={}", peers[0], peers[1], peers[2]);
    let flags = ["--name", "n1", "--peer-listen", &peers[0], "--cluster", &cluster];
    let server = Server::spawn(directory.path(), support::own_address(), &flags);
    until("the member listens", || server.get("/metrics").is_some());
    // The last pause before another attempt may end a wait of a second a little early, so its figure is left open.
    for (wait, told) in [("1s", ""), ("500ms", "0.5 s")] {
        for verb in [&["exec", "-w", wait, "a", "--", "echo", "never"][..], &["lock", "-w", wait, "a"]] {
            // The wait bounds the attempt, however long a single call may take.
            let said =
                shell::tenure(&[&["--endpoints", &server.address, "--timeout", "10m"], verb].concat()).failed(75);
            assert!(said.contains(&format!("was not granted within {told}")), "{verb:?}: {said}");
        }
    }
    assert!(!calls_of(&server, "LeaseGrant").is_empty(), "the lease was asked for");
    assert_eq!(calls_of(&server, "Describe"), BTreeMap::new(), "nobody can say who holds it");
}

#[test]
fn a_session_that_ends_in_order_is_counted_as_ok() {
    let place = Place::start();
    place.tenure(&["exec", "a", "--", "true"]).ok();
    place.reading(&["lock", "a"], "").ok();
    until("both sessions have ended", || {
        let calls = calls_of(&place.server, "Session");
        !calls.contains_key(&None) && calls.values().sum::<u64>() == 2
    });
    assert_eq!(calls_of(&place.server, "Session"), BTreeMap::from([(Some("OK".to_owned()), 2)]));
    assert_eq!(place.json(&["sessions"])["sessions"], serde_json::json!([]), "no lease is left behind");
}

#[test]
fn where_grants_are_signed_the_command_can_show_it() {
    let directory = tempfile::tempdir().unwrap();
    let key = signing_key(directory.path());
    let server = Server::start_with(&directory.path().join("data"), &["--signing-key", &key]);
    let place = Place { server, directory };
    let cluster = place.json(&["status"])["endpoints"][0]["cluster"].as_str().unwrap().to_owned();
    let store = Store::start(&place.directory.path().join("store"), &["--signing-key", &key, "--cluster", &cluster]);
    let said =
        place.tenure(&["exec", "--holder", "me", "a", "--", "sh", "-c", "echo $TENURE_TOKEN $TENURE_SIGNATURE"]).ok();
    let (token, signature) = said.trim().split_once(' ').expect("a token and a signature");
    let write = |signature: &str| {
        let token = serde_json::json!({"key": "a", "value": token.parse::<i64>().unwrap(), "signature": signature});
        let body = serde_json::json!({"clientID": "me", "fencingToken": token, "data": "x"});
        store.request("POST", "/write", body.to_string().as_bytes()).0
    };
    assert_eq!((write(signature), write("")), (200, 403));
    // Not one that was inherited from another lock, where there is none.
    let place = Place::start();
    let mut command = place.command(&["exec", "a", "--", "sh", "-c", "echo \"<$TENURE_SIGNATURE>\""]);
    command.env("TENURE_SIGNATURE", signature);
    assert_eq!(run(command, "").ok(), "<>\n");
}

#[test]
fn a_busy_lock_ends_with_75_and_names_the_holder() {
    let place = Place::start();
    let mut holder = place.running(&["exec", "--holder", "ci-7", "a", "--", "sh", "-c", "echo here; read line"]);
    holder.line();
    let said = place.tenure(&["exec", "-n", "a", "--", "echo", "never"]).failed(75);
    assert!(said.contains("a is busy") && said.contains("ci-7"), "{said}");
    let said = place.tenure(&["exec", "-w", "50ms", "-E", "9", "a", "--", "echo", "never"]).failed(9);
    assert!(said.contains("ci-7"), "{said}");
    place.until_waiters("a", 0);
    let mut next = place.running(&["exec", "-w", "1m", "a", "--", "echo", "my turn"]);
    place.until_waiters("a", 1);
    holder.tell("go");
    assert_eq!(next.line(), "my turn");
    assert_eq!((holder.code(), next.code()), (Some(0), Some(0)));
}

#[test]
fn shared_holders_and_slots_run_together() {
    let place = Place::start();
    let hold = ["--", "sh", "-c", "echo here; read line"];
    let mut readers: Vec<Running> =
        (0..2).map(|_| place.running(&[&["exec", "-s", "r"], &hold[..]].concat())).collect();
    readers.iter_mut().for_each(|reader| assert_eq!(reader.line(), "here"));
    assert_eq!(place.tenure(&["exec", "-n", "r", "--", "true"]).code, Some(75), "a writer waits for readers");
    let slot = [&["exec", "--slots", "2", "s"], &hold[..]].concat();
    let mut slots: Vec<Running> = (0..2).map(|_| place.running(&slot)).collect();
    slots.iter_mut().for_each(|slot| assert_eq!(slot.line(), "here"));
    assert_eq!(place.tenure(&["exec", "-n", "--slots", "2", "s", "--", "true"]).code, Some(75));
    assert_eq!(slots[0].let_go(), Some(1), "its read has ended");
    place.tenure(&["exec", "--slots", "2", "s", "--", "true"]).ok();
}

#[test]
fn signals_work_while_queued() {
    let place = Place::start();
    let mut holder = place.running(&["exec", "a", "--", "sh", "-c", "echo here; read line"]);
    holder.line();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut queued = place.running(&["exec", "a", "--", "echo", "never"]);
        place.until_waiters("a", 1);
        queued.signal(signal);
        assert_eq!(queued.code(), Some(code));
        place.until_waiters("a", 0);
    }
    assert_eq!(place.json(&["sessions"])["sessions"].as_array().unwrap().len(), 1, "their leases are given back");
}

#[test]
fn signals_reach_the_whole_group_of_the_command() {
    let place = Place::start();
    let script = "trap 'echo told; exit 3' USR1; echo ready; while :; do sleep 0.05; done";
    let mut running = place.running(&["exec", "a", "--", "sh", "-c", script]);
    assert_eq!(running.line(), "ready");
    running.signal(Signal::USR1);
    assert_eq!((running.line().as_str(), running.code()), ("told", Some(3)));

    let mut running = place.running(&["exec", "a", "--", "sh", "-c", "sleep 1000 & echo $!; wait"]);
    let grandchild = running.line();
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(143), "the command ended by what it was sent");
    until("the grandchild is dead", || is_dead(&grandchild));
    assert_eq!(place.json(&["locks"])["locks"], serde_json::json!([]));
}

#[test]
fn the_whole_group_dies_with_a_guard_that_is_killed() {
    let place = Place::start();
    let script = "trap '' TERM HUP; sleep 1000 & echo $$; echo $!; wait";
    let mut running = place.running(&["exec", "a", "--", "sh", "-c", script]);
    let (child, grandchild) = (running.line(), running.line());
    running.signal(Signal::KILL);
    running.code();
    until("both are dead", || is_dead(&child) && is_dead(&grandchild));
}

#[test]
fn a_guard_that_is_stopped_cannot_keep_its_command_alive() {
    let place = Place::start();
    let mut first = place.running(&["exec", "--ttl", "1s", "a", "--", "sh", "-c", STUBBORN]);
    let child = first.line();
    let mut second = place.running(&["exec", "a", "--", "sh", "-c", &report_on(&child)]);
    place.until_waiters("a", 1);
    first.signal(Signal::STOP);
    assert_eq!(second.line(), "dead", "when the next command starts, the first one is dead");
    first.signal(Signal::CONT);
    assert_eq!(first.code(), Some(122));
    let said = first.stderr();
    assert!(said.contains("not held any more"), "{said}");
}

#[test]
fn a_command_that_is_cut_off_is_dead_before_the_next_one_starts() {
    let place = Place::start();
    let proxy = Proxy::start(&place.server.address);
    let mut command = support::tenure();
    let exec = ["exec", "--ttl", "1500ms", "--grace", "200ms", "a", "--", "sh", "-c", STUBBORN];
    command.args(["--endpoints", &proxy.address]).args(exec);
    let mut first = Running::start(command);
    let child = first.line();
    let mut second = place.running(&["exec", "a", "--", "sh", "-c", &report_on(&child)]);
    place.until_waiters("a", 1);
    proxy.cut();
    assert_eq!(second.line(), "dead");
    assert_eq!(first.code(), Some(122));
    assert!(first.stderr().contains("no renewal of its lease was confirmed"));
    let ended = &place.json(&["why", "a"])["recent"];
    assert!(ended.as_array().unwrap().iter().any(|recent| recent["end"] == "expired"), "{ended}");
}

#[test]
fn a_server_that_hangs_costs_the_command_its_life_and_the_lock_goes_on() {
    let place = Place::start();
    let script = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let mut first = place.running(&["exec", "--ttl", "3s", "--grace", "1s", "a", "--", "sh", "-c", script]);
    assert_eq!(first.line(), "ready");
    place.server.signal(Signal::STOP);
    assert_eq!(first.line(), "asked", "TERM comes first, and there is time to answer it");
    let code = first.code();
    place.server.signal(Signal::CONT);
    assert_eq!(code, Some(122), "whatever the command's own code is");
    assert_eq!(place.tenure(&["exec", "-w", "30s", "a", "--", "echo", "on"]).ok(), "on\n");
}

#[test]
fn an_operator_who_takes_the_lock_ends_the_command() {
    let place = Place::start();
    let mut running =
        place.running(&["exec", "--ttl", "3s", "a", "--", "sh", "-c", "echo $TENURE_TOKEN; exec sleep 1000"]);
    let token = running.line();
    assert!(place.tenure(&["unlock", "a", "--token", "1"]).failed(1).contains("a is not held with token 1"));
    let said = place.tenure(&["unlock", "a", "--token", &token, "--force"]).ok();
    assert!(said.starts_with("took a from "), "{said}");
    assert_eq!(running.code(), Some(122));
    assert!(running.stderr().contains("an operator released it"));
    assert_eq!(place.json(&["why", "a"])["recent"][0]["end"], "forced");
}

#[test]
fn the_command_may_read_the_terminal_and_gives_it_back() {
    let place = Place::start();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let session = format!(
        "{tenure} --endpoints {} exec a -- sh -c 'echo first; read a; echo one $a'; echo second; read b; echo two $b",
        place.server.address
    );
    // From util-linux: runs it on a terminal of its own.
    let mut command = Command::new("script");
    command.args(["-qec", &session, "/dev/null"]);
    if Command::new("script").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("not tested: there is no script(1) here");
        return;
    }
    let mut terminal = Running::start(command);
    for (cue, word, answer) in [("first", "x", "one x"), ("second", "y", "two y")] {
        while terminal.line().trim() != cue {}
        terminal.tell(word);
        while terminal.line().trim() != answer {}
    }
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn ctrl_z_stops_the_command_and_its_guard_together() {
    let has = |program: &str| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has("script") || !has("bash") {
        eprintln!("not tested: script(1) or bash is missing here");
        return;
    }
    let place = Place::start();
    let mut command = Command::new("script");
    command.args(["-qec", "bash --norc --noprofile -i", "/dev/null"]).env("PS1", "").env("TERM", "dumb");
    let mut terminal = Running::start(command);
    let exec =
        format!("{} --endpoints {} exec --ttl 60s a -- sh -c", env!("CARGO_BIN_EXE_tenure"), place.server.address);
    // It starts no process meanwhile: a shell that waits in vfork for a child that was stopped is not stopped itself.
    terminal.tell(&format!("{exec} 'echo pid $$ $PPID; exec sleep 1000'"));
    let mut line = terminal.line();
    // The command itself is echoed before.
    while !line.contains("pid ") || line.contains('$') {
        line = terminal.line();
    }
    let ids: Vec<String> = line.split("pid ").last().unwrap().split_whitespace().map(str::to_owned).collect();
    let state = |id: &String| std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    terminal.press("\x1a");
    until("both are stopped", || ids.iter().all(|id| state(id).contains("T (stopped)")));
    terminal.tell("echo the shell is back; fg");
    until("both go on", || ids.iter().all(|id| !state(id).contains("T (stopped)")));
    terminal.press("\x03");
    until("both are gone", || ids.iter().all(|id| is_dead(id)));
    until("the lock is free", || place.json(&["why", "a"])["holders"].as_array().unwrap().is_empty());
    terminal.tell("echo code $?; exit");
    while terminal.line().trim() != "code 130" {}
    terminal.code();
}
