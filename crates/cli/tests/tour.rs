//! A newcomer's tour: a member is started, and every verb is tried as the help shows it.

mod shell;
mod support;

use std::time::Duration;

use shell::run;
use support::place::Place;

#[test]
fn keys_are_put_got_listed_and_deleted() {
    let place = Place::start();
    assert_eq!(place.tenure(&["put", "greeting", "hello"]).ok(), "OK, revision 2\n");
    assert_eq!(place.tenure(&["get", "greeting"]).ok(), "KEY       VALUE\ngreeting  hello\n");
    assert_eq!(place.tenure(&["get", "greeting", "--value-only"]).ok(), "hello\n");
    place.reading(&["put", "app/config"], "line 1\nline 2\n").ok();
    place.tenure(&["put", "app/minus", "--", "-1"]).ok();
    assert_eq!(place.tenure(&["get", "--prefix", "app/", "--keys-only"]).ok(), "app/config\napp/minus\n");
    assert_eq!(place.tenure(&["get", "--all", "--count-only"]).ok(), "3\n");
    let wide = place.tenure(&["get", "app/config", "-o", "wide"]).ok();
    assert!(wide.starts_with("KEY         VALUE             CREATED  MODIFIED  VERSION  LEASE\n"), "{wide}");
    assert!(wide.contains("line 1\\nline 2\\n"), "{wide}");
    assert_eq!(place.tenure(&["get", "greeting", "--revision", "2", "--value-only"]).ok(), "hello\n");
    assert!(place.tenure(&["get", "nothing"]).failed(1).contains("there is no key nothing"));
    assert_eq!(place.tenure(&["get", "--prefix", "nothing"]).ok(), "KEY  VALUE\n");
    assert!(place.tenure(&["get", "greeting", "--revision", "99"]).failed(1).contains("does not exist yet"));
    let deleted = place.tenure(&["del", "--prefix", "app/", "--previous"]).ok();
    assert!(deleted.contains("app/config") && deleted.ends_with("deleted 2, revision 5\n"), "{deleted}");
    assert_eq!(place.tenure(&["del", "nothing"]).ok(), "deleted 0, revision 5\n");
}

#[test]
fn json_prints_text_as_text_and_bytes_as_base64() {
    let place = Place::start();
    place.tenure(&["put", "text", "grüße"]).ok();
    let mut command = support::tenure();
    command.args(["txn", "--endpoints", &place.server.address]);
    run(command, "{\"then\": [{\"put\": {\"key\": {\"base64\": \"/wA=\"}, \"value\": {\"base64\": \"gIE=\"}}}]}").ok();
    let document = place.tenure(&["get", "--all", "-o", "json"]).ok();
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["revision"], 3);
    assert_eq!(document["pairs"][0]["key"], "text");
    assert_eq!(document["pairs"][0]["value"], "grüße");
    assert_eq!(document["pairs"][0]["lease"], serde_json::Value::Null);
    assert_eq!(document["pairs"][1]["key"]["base64"], "/wA=");
    assert_eq!(document["pairs"][1]["value"]["base64"], "gIE=");
    let lines = place.tenure(&["get", "--all", "-o", "jsonl"]).ok();
    assert_eq!(lines.lines().count(), 2);
    assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{lines}");
    assert_eq!(place.tenure(&["get", "--all"]).ok(), "KEY        VALUE\ntext       grüße\n\\xff\\u{0}  \\x80\\x81\n");
}

#[test]
fn transactions_decide_between_two_blocks() {
    let place = Place::start();
    let once = ["txn", "--if", "version(lock) = 0", "--then", "put lock 'mine now'", "--else", "get lock"];
    assert_eq!(place.tenure(&once).ok(), "then: the conditions hold, revision 2\nput\n");
    let second = place.tenure(&once).ok();
    assert_eq!(second, "else: the conditions do not hold, revision 2\nKEY   VALUE\nlock  mine now\n");
    let text = "value(lock) = \"mine now\"\nmod(lock) < \"3\"\n\nput lock free\ndel --prefix none\n\n";
    let json = place.reading(&["txn", "-o", "json"], text).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["succeeded"].as_bool(), json["replies"][1]["del"]["deleted"].as_i64()), (Some(true), Some(0)));
}

#[test]
fn leases_are_granted_renewed_listed_and_revoked() {
    let place = Place::start();
    let lease = place.tenure(&["lease", "grant", "60s"]).ok().trim().to_owned();
    place.tenure(&["put", "--lease", &lease, "session/1", "here"]).ok();
    let ttl = place.tenure(&["lease", "ttl", &lease, "--keys"]).ok();
    assert!(ttl.contains("of 60 s left") && ttl.contains("session/1"), "{ttl}");
    assert_eq!(place.tenure(&["lease", "keep-alive", "--once", &lease]).ok(), format!("renewed {lease} for 60 s\n"));
    let list = place.tenure(&["lease", "list", "-o", "jsonl"]).ok();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list["lease"], &list["keys"][0]), (&lease.as_str().into(), &"session/1".into()));
    place.tenure(&["lease", "revoke", &lease]).ok();
    assert!(place.tenure(&["get", "session/1"]).failed(1).contains("no key"), "the key ends with its lease");
    for verb in [&["lease", "revoke", &lease][..], &["lease", "ttl", &lease], &["lease", "keep-alive", &lease]] {
        assert!(place.tenure(verb).failed(1).contains("no such lease"), "{verb:?}");
    }
    assert_eq!(place.tenure(&["lease", "list"]).ok(), "LEASE  REMAINING  TTL  KEYS\n");
}

#[test]
fn a_watch_tells_every_change_once_even_if_the_server_goes_away() {
    let mut place = Place::start();
    place.tenure(&["put", "w/old", "1"]).ok();
    let mut watch = place.running(&["watch", "--prefix", "w/", "--revision", "2", "--count", "4", "-o", "jsonl"]);
    assert!(watch.line().contains("\"w/old\""));
    place.tenure(&["put", "w/a", "1"]).ok();
    assert!(watch.line().contains("\"revision\":3"));
    place.server.restart();
    place.tenure(&["put", "w/b", "1"]).ok();
    place.tenure(&["del", "w/a"]).ok();
    assert!(watch.line().contains("\"revision\":4"));
    let last = watch.line();
    assert!(last.contains("\"delete\"") && last.contains("\"revision\":5"), "{last}");
    assert_eq!(watch.code(), Some(0));
}

#[test]
fn compacted_history_is_an_error_that_says_so() {
    let place = Place::start();
    for value in ["1", "2", "3"] {
        place.tenure(&["put", "a", value]).ok();
    }
    place.tenure(&["compact", "3"]).ok();
    assert!(place.tenure(&["get", "a", "--revision", "2"]).failed(1).contains("compacted"));
    let watch = place.tenure(&["watch", "a", "--revision", "1"]).failed(1);
    assert!(watch.contains("compacted") && watch.contains('3'), "{watch}");
    assert!(place.tenure(&["compact", "2"]).failed(1).contains("compacted"));
    assert!(place.tenure(&["compact", "99"]).failed(1).contains("does not exist yet"));
}

#[test]
fn status_shows_each_endpoint_and_fails_for_one_that_is_gone() {
    let place = Place::start();
    let status = place.tenure(&["status"]).ok();
    assert!(status.starts_with("NAME") && status.contains("leader"), "{status}");
    let gone = support::own_address();
    let both = format!("{},{gone}", place.server.address);
    let said = shell::tenure(&["status", "-o", "json", "--endpoints", &both]);
    assert_eq!(said.code, Some(1));
    let json: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(json["endpoints"][0]["role"], "leader");
    assert_eq!(json["endpoints"][1]["role"], "unreachable");
    assert!(json["endpoints"][1]["errors"][0].as_str().unwrap().contains("refused"));
}

#[test]
fn following_a_listing_shows_changes_only() {
    let place = Place::start();
    let mut listing = place.running(&["lease", "list", "--watch=50ms", "-o", "json"]);
    let mut document = || {
        let mut text = String::new();
        loop {
            text += &listing.line();
            if let Ok(document) = serde_json::from_str::<serde_json::Value>(&text) {
                return document;
            }
        }
    };
    assert_eq!(document()["leases"], serde_json::json!([]));
    std::thread::sleep(Duration::from_millis(300));
    let lease = place.tenure(&["lease", "grant", "9m"]).ok().trim().to_owned();
    assert_eq!(document()["leases"][0]["lease"], lease.as_str(), "nothing came in between");
}

#[test]
fn a_snapshot_is_saved_whole_and_looked_at() {
    let place = Place::start();
    place.tenure(&["put", "stays", "here"]).ok();
    let lease = place.tenure(&["lease", "grant", "60s"]).ok().trim().to_owned();
    place.tenure(&["put", "--lease", &lease, "goes", "away"]).ok();
    let file = place.path("backup.snapshot");
    assert!(place.tenure(&["snapshot", "save", &file]).ok().starts_with("saved "));
    assert!(place.tenure(&["snapshot", "save", &file]).failed(1).contains("exists already"));
    place.tenure(&["snapshot", "save", "--force", &file]).ok();
    let status = place.tenure(&["snapshot", "status", &file, "-o", "json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let snapshot = &status["snapshots"][0];
    assert_eq!((&snapshot["revision"], &snapshot["keys"], &snapshot["leases"]), (&3.into(), &2.into(), &1.into()));

    let mut bytes = std::fs::read(&file).unwrap();
    bytes[100] ^= 1;
    let damaged = place.path("damaged.snapshot");
    std::fs::write(&damaged, bytes).unwrap();
    assert!(place.tenure(&["snapshot", "status", &damaged]).failed(1).contains("checksum"));
    let names = std::fs::read_dir(place.directory.path()).unwrap().count();
    assert_eq!(names, 3, "nothing unfinished is left behind");
}

#[test]
fn bench_holds_many_leases_and_lets_them_expire() {
    let place = Place::start();
    let pid = place.server.id().to_string();
    let bounds = ["--seconds", "0.5", "--clients", "4", "--connections", "2", "--warm-up", "50ms"];
    let rows = |workload: &[&str]| -> Vec<serde_json::Value> {
        let lines = place.tenure(&[&["bench"], workload, &bounds, &["--pid", &pid, "-o", "jsonl"]].concat()).ok();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let held = rows(&["renewals", "--leases", "1000", "--ttl", "60s"]);
    let ended = rows(&["expiry", "--leases", "90", "--leased-keys", "50", "--ttl", "5s", "--rate", "200"]);
    for (row, workload, note) in [
        (&held[0], "renewals", "1000 leases of 60 s: 0 answered late, 0 gone"),
        (&ended[0], "expiry: put before", "a put took"),
        (&ended[1], "expiry: put during", "90 leases with 50 keys fell due within"),
    ] {
        assert_eq!((row["workload"].as_str(), &row["failures"]), (Some(workload), &0.into()), "{row}");
        assert!(row["operations"].as_u64().unwrap() > 0, "{row}");
        assert!(row["note"].as_str().unwrap().starts_with(note), "{row}");
    }
    assert_eq!(place.tenure(&["lease", "list", "-o", "jsonl"]).ok(), "");
    assert_eq!(place.tenure(&["get", "--prefix", "bench/expiry/", "--count-only"]).ok(), "0\n");
}

#[test]
fn bench_measures_and_fails_if_operations_fail() {
    let mut place = Place::start();
    let short = ["--clients", "4", "--connections", "2", "--warm-up", "50ms", "--keys", "100"];
    let pid = place.server.id().to_string();
    let workloads = ["bench", "put", "get", "lock", "contend", "lease", "keepalive", "watch", "range", "fill"];
    let flags = ["--requests", "200", "--pid", &pid, "-o", "jsonl"];
    let lines = place.tenure(&[&workloads[..], &short, &flags].concat()).ok();
    let rows: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 10, "range has two rows: {lines}");
    for row in &rows {
        let expected = if row["workload"] == "fill" { 100 } else { 200 };
        assert_eq!(row["operations"], expected, "{row}");
        assert_eq!(row["failures"], 0, "{row}");
        assert!(row["p50_micros"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["server_resident_bytes"].as_u64().unwrap() > 0, "{row}");
    }
    let compared =
        ["--compare", &format!("a={}", place.server.address), "--compare", &format!("b={}", place.server.address)];
    let table = [&["bench", "put", "--seconds", "0.2"][..], &short, &compared].concat();
    let table = shell::tenure(&table).ok();
    assert!(table.contains("of b") && table.contains("| a ") && table.contains('×'), "{table}");

    let address = place.server.address.clone();
    let bench = std::thread::spawn(move || {
        let flags = ["bench", "put", "--seconds", "3", "--endpoints", &address];
        shell::tenure(&[&flags[..], &["--clients", "4", "--connections", "2", "--warm-up", "50ms"]].concat())
    });
    std::thread::sleep(Duration::from_millis(800));
    place.server.kill();
    let said = bench.join().unwrap();
    assert_eq!(said.code, Some(1), "{}", said.stdout);
    assert!(said.stderr.contains("operations failed"), "{}", said.stderr);
}
