//! A newcomer's tour: a member is started, and every verb is tried as the help shows it.

mod shell;
mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use shell::{Said, run, tenure_reading};
use support::Server;

/// A member with its directory, and verbs that go to it.
struct Tour {
    server: Server,
    directory: tempfile::TempDir,
}

impl Tour {
    fn start() -> Tour {
        let directory = tempfile::tempdir().unwrap();
        Tour { server: Server::start_in(&directory.path().join("data")), directory }
    }

    fn tenure(&self, arguments: &[&str]) -> Said {
        self.reading(arguments, "")
    }

    fn reading(&self, arguments: &[&str], input: &str) -> Said {
        tenure_reading(&[&["--endpoints", &self.server.address], arguments].concat(), input)
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }
}

#[test]
fn keys_are_put_got_listed_and_deleted() {
    let tour = Tour::start();
    assert_eq!(tour.tenure(&["put", "greeting", "hello"]).ok(), "OK, revision 2\n");
    assert_eq!(tour.tenure(&["get", "greeting"]).ok(), "KEY       VALUE\ngreeting  hello\n");
    assert_eq!(tour.tenure(&["get", "greeting", "--value-only"]).ok(), "hello\n");
    tour.reading(&["put", "app/config"], "line 1\nline 2\n").ok();
    tour.tenure(&["put", "app/minus", "--", "-1"]).ok();
    assert_eq!(tour.tenure(&["get", "--prefix", "app/", "--keys-only"]).ok(), "app/config\napp/minus\n");
    assert_eq!(tour.tenure(&["get", "--all", "--count-only"]).ok(), "3\n");
    let wide = tour.tenure(&["get", "app/config", "-o", "wide"]).ok();
    assert!(wide.starts_with("KEY         VALUE             CREATED  MODIFIED  VERSION  LEASE\n"), "{wide}");
    assert!(wide.contains("line 1\\nline 2\\n"), "{wide}");
    assert_eq!(tour.tenure(&["get", "greeting", "--revision", "2", "--value-only"]).ok(), "hello\n");
    assert!(tour.tenure(&["get", "nothing"]).failed(1).contains("there is no key nothing"));
    assert_eq!(tour.tenure(&["get", "--prefix", "nothing"]).ok(), "KEY  VALUE\n");
    assert!(tour.tenure(&["get", "greeting", "--revision", "99"]).failed(1).contains("does not exist yet"));
    let deleted = tour.tenure(&["del", "--prefix", "app/", "--previous"]).ok();
    assert!(deleted.contains("app/config") && deleted.ends_with("deleted 2, revision 5\n"), "{deleted}");
    assert_eq!(tour.tenure(&["del", "nothing"]).ok(), "deleted 0, revision 5\n");
}

#[test]
fn json_prints_text_as_text_and_bytes_as_base64() {
    let tour = Tour::start();
    tour.tenure(&["put", "text", "grüße"]).ok();
    let mut command = support::tenure();
    command.args(["txn", "--endpoints", &tour.server.address]);
    run(command, "{\"then\": [{\"put\": {\"key\": {\"base64\": \"/wA=\"}, \"value\": {\"base64\": \"gIE=\"}}}]}").ok();
    let document = tour.tenure(&["get", "--all", "-o", "json"]).ok();
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["revision"], 3);
    assert_eq!(document["pairs"][0]["key"], "text");
    assert_eq!(document["pairs"][0]["value"], "grüße");
    assert_eq!(document["pairs"][0]["lease"], serde_json::Value::Null);
    assert_eq!(document["pairs"][1]["key"]["base64"], "/wA=");
    assert_eq!(document["pairs"][1]["value"]["base64"], "gIE=");
    let lines = tour.tenure(&["get", "--all", "-o", "jsonl"]).ok();
    assert_eq!(lines.lines().count(), 2);
    assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{lines}");
    assert_eq!(tour.tenure(&["get", "--all"]).ok(), "KEY        VALUE\ntext       grüße\n\\xff\\u{0}  \\x80\\x81\n");
}

#[test]
fn transactions_decide_between_two_blocks() {
    let tour = Tour::start();
    let once = ["txn", "--if", "version(lock) = 0", "--then", "put lock 'mine now'", "--else", "get lock"];
    assert_eq!(tour.tenure(&once).ok(), "then: the conditions hold, revision 2\nput\n");
    let second = tour.tenure(&once).ok();
    assert_eq!(second, "else: the conditions do not hold, revision 2\nKEY   VALUE\nlock  mine now\n");
    let text = "value(lock) = \"mine now\"\nmod(lock) < \"3\"\n\nput lock free\ndel --prefix none\n\n";
    let json = tour.reading(&["txn", "-o", "json"], text).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["succeeded"].as_bool(), json["replies"][1]["del"]["deleted"].as_i64()), (Some(true), Some(0)));
}

#[test]
fn leases_are_granted_renewed_listed_and_revoked() {
    let tour = Tour::start();
    let lease = tour.tenure(&["lease", "grant", "60s"]).ok().trim().to_owned();
    tour.tenure(&["put", "--lease", &lease, "session/1", "here"]).ok();
    let ttl = tour.tenure(&["lease", "ttl", &lease, "--keys"]).ok();
    assert!(ttl.contains("of 60 s left") && ttl.contains("session/1"), "{ttl}");
    assert_eq!(tour.tenure(&["lease", "keep-alive", "--once", &lease]).ok(), format!("renewed {lease} for 60 s\n"));
    let list = tour.tenure(&["lease", "list", "-o", "jsonl"]).ok();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list["lease"], &list["keys"][0]), (&lease.as_str().into(), &"session/1".into()));
    tour.tenure(&["lease", "revoke", &lease]).ok();
    assert!(tour.tenure(&["get", "session/1"]).failed(1).contains("no key"), "the key ends with its lease");
    for verb in [&["lease", "revoke", &lease][..], &["lease", "ttl", &lease], &["lease", "keep-alive", &lease]] {
        assert!(tour.tenure(verb).failed(1).contains("no such lease"), "{verb:?}");
    }
    assert_eq!(tour.tenure(&["lease", "list"]).ok(), "LEASE  REMAINING  TTL  KEYS\n");
}

#[test]
fn a_watch_tells_every_change_once_even_if_the_server_goes_away() {
    let mut tour = Tour::start();
    tour.tenure(&["put", "w/old", "1"]).ok();
    let mut child = support::tenure()
        .args(["watch", "--prefix", "w/", "--revision", "2", "--count", "4", "-o", "jsonl"])
        .args(["--endpoints", &tour.server.address])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert!(next().contains("\"w/old\""));
    tour.tenure(&["put", "w/a", "1"]).ok();
    assert!(next().contains("\"revision\":3"));
    tour.server.restart();
    tour.tenure(&["put", "w/b", "1"]).ok();
    tour.tenure(&["del", "w/a"]).ok();
    assert!(next().contains("\"revision\":4"));
    let last = next();
    assert!(last.contains("\"delete\"") && last.contains("\"revision\":5"), "{last}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn compacted_history_is_an_error_that_says_so() {
    let tour = Tour::start();
    for value in ["1", "2", "3"] {
        tour.tenure(&["put", "a", value]).ok();
    }
    tour.tenure(&["compact", "3"]).ok();
    assert!(tour.tenure(&["get", "a", "--revision", "2"]).failed(1).contains("compacted"));
    let watch = tour.tenure(&["watch", "a", "--revision", "1"]).failed(1);
    assert!(watch.contains("compacted") && watch.contains('3'), "{watch}");
    assert!(tour.tenure(&["compact", "2"]).failed(1).contains("compacted"));
    assert!(tour.tenure(&["compact", "99"]).failed(1).contains("does not exist yet"));
}

#[test]
fn status_shows_each_endpoint_and_fails_for_one_that_is_gone() {
    let tour = Tour::start();
    let status = tour.tenure(&["status"]).ok();
    assert!(status.starts_with("ENDPOINT") && status.contains("leader"), "{status}");
    let gone = support::own_address();
    let both = format!("{},{gone}", tour.server.address);
    let said = shell::tenure(&["status", "-o", "json", "--endpoints", &both]);
    assert_eq!(said.code, Some(1));
    let json: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(json["endpoints"][0]["role"], "leader");
    assert_eq!(json["endpoints"][1]["role"], "unreachable");
    assert!(json["endpoints"][1]["errors"][0].as_str().unwrap().contains("refused"));
}

#[test]
fn following_a_listing_shows_changes_only() {
    let tour = Tour::start();
    let mut child = support::tenure()
        .args(["lease", "list", "--watch=50ms", "-o", "json", "--endpoints", &tour.server.address])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut document = || {
        let mut text = String::new();
        loop {
            text += &lines.next().unwrap().unwrap();
            if let Ok(document) = serde_json::from_str::<serde_json::Value>(&text) {
                return document;
            }
        }
    };
    assert_eq!(document()["leases"], serde_json::json!([]));
    std::thread::sleep(Duration::from_millis(300));
    let lease = tour.tenure(&["lease", "grant", "9m"]).ok().trim().to_owned();
    assert_eq!(document()["leases"][0]["lease"], lease.as_str(), "nothing came in between");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_snapshot_is_saved_whole_and_looked_at() {
    let tour = Tour::start();
    tour.tenure(&["put", "stays", "here"]).ok();
    let lease = tour.tenure(&["lease", "grant", "60s"]).ok().trim().to_owned();
    tour.tenure(&["put", "--lease", &lease, "goes", "away"]).ok();
    let file = tour.path("backup.snapshot");
    assert!(tour.tenure(&["snapshot", "save", &file]).ok().starts_with("saved "));
    assert!(tour.tenure(&["snapshot", "save", &file]).failed(1).contains("exists already"));
    tour.tenure(&["snapshot", "save", "--force", &file]).ok();
    let status = tour.tenure(&["snapshot", "status", &file, "-o", "json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let snapshot = &status["snapshots"][0];
    assert_eq!((&snapshot["revision"], &snapshot["keys"], &snapshot["leases"]), (&3.into(), &2.into(), &1.into()));

    let mut bytes = std::fs::read(&file).unwrap();
    bytes[100] ^= 1;
    let damaged = tour.path("damaged.snapshot");
    std::fs::write(&damaged, bytes).unwrap();
    assert!(tour.tenure(&["snapshot", "status", &damaged]).failed(1).contains("checksum"));
    let names = std::fs::read_dir(tour.directory.path()).unwrap().count();
    assert_eq!(names, 3, "nothing unfinished is left behind");
}

#[test]
fn bench_holds_many_leases_and_lets_them_expire() {
    let tour = Tour::start();
    let pid = tour.server.id().to_string();
    let bounds = ["--seconds", "0.5", "--clients", "4", "--connections", "2", "--warm-up", "50ms"];
    let rows = |workload: &[&str]| -> Vec<serde_json::Value> {
        let lines = tour.tenure(&[&["bench"], workload, &bounds, &["--pid", &pid, "-o", "jsonl"]].concat()).ok();
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
    assert_eq!(tour.tenure(&["lease", "list", "-o", "jsonl"]).ok(), "");
    assert_eq!(tour.tenure(&["get", "--prefix", "bench/expiry/", "--count-only"]).ok(), "0\n");
}

#[test]
fn bench_measures_and_fails_if_operations_fail() {
    let mut tour = Tour::start();
    let short = ["--clients", "4", "--connections", "2", "--warm-up", "50ms", "--keys", "100"];
    let pid = tour.server.id().to_string();
    let workloads = ["bench", "put", "get", "lock", "contend", "lease", "keepalive", "watch", "range", "fill"];
    let flags = ["--requests", "200", "--pid", &pid, "-o", "jsonl"];
    let lines = tour.tenure(&[&workloads[..], &short, &flags].concat()).ok();
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
        ["--compare", &format!("a={}", tour.server.address), "--compare", &format!("b={}", tour.server.address)];
    let table = [&["bench", "put", "--seconds", "0.2"][..], &short, &compared].concat();
    let table = shell::tenure(&table).ok();
    assert!(table.contains("of b") && table.contains("| a ") && table.contains('×'), "{table}");

    let address = tour.server.address.clone();
    let bench = std::thread::spawn(move || {
        let flags = ["bench", "put", "--seconds", "3", "--endpoints", &address];
        shell::tenure(&[&flags[..], &["--clients", "4", "--connections", "2", "--warm-up", "50ms"]].concat())
    });
    std::thread::sleep(Duration::from_millis(800));
    tour.server.kill();
    let said = bench.join().unwrap();
    assert_eq!(said.code, Some(1), "{}", said.stdout);
    assert!(said.stderr.contains("operations failed"), "{}", said.stderr);
}
