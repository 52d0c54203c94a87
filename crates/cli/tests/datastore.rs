//! `tenure datastore` as a real process: stale writes are refused, and neither a restart nor a kill makes it forget.

mod shell;
mod support;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};
use shell::tenure;
use support::store::{self, Store};
use tenure_fence::{Claim, Key, Keyring, NEVER_MS, SigningKey, Token};

#[test]
fn a_stale_write_is_refused_with_the_highest_token() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::start(&home.path().join("data"), &[]);
    assert_eq!(store.write("deploy", 12, "one"), (200, json!({"success": true})));
    assert_eq!(store.write("deploy", 12, "two"), (200, json!({"success": true})));
    assert_eq!(store.write("deploy", 15, "three").0, 200);
    let (status, body) = store.write("deploy", 12, "stale");
    assert_eq!((status, &body["success"], &body["highest"]), (409, &json!(false), &json!(15)));
    assert!(body["error"].as_str().unwrap().contains("stale"), "{body}");
    assert_eq!(store.data("deploy"), (15, "three".to_owned()));
    assert_eq!(store.write("other", 1, "x").0, 200, "every key has its own bar");
    assert_eq!(store.write("pool%231", 1, "x").0, 200);
    let (status, keys) = store.request("GET", "/keys?limit=2", b"");
    let expected = json!([
        {"key": "deploy", "token": 15, "clientID": "c", "bytes": 5},
        {"key": "other", "token": 1, "clientID": "c", "bytes": 1},
    ]);
    assert_eq!((status, &keys["keys"], &keys["more"]), (200, &expected, &json!(true)));
    assert_eq!(store.request("GET", "/read?key=nobody", b"").0, 404);
}

#[test]
fn what_an_equal_token_gets_is_a_setting() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::start(&home.path().join("identical"), &["--equal", "identical"]);
    assert_eq!(store.write("a", 5, "data").0, 200);
    assert_eq!(store.write("a", 5, "data").0, 200);
    let (status, body) = store.write("a", 5, "other");
    assert_eq!((status, &body["highest"]), (409, &json!(5)));
    let store = Store::start(&home.path().join("refuse"), &["--equal", "refuse"]);
    assert_eq!(store.write("a", 5, "data").0, 200);
    assert_eq!(store.write("a", 5, "data").0, 409);
}

#[test]
fn an_equal_token_of_another_client_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let store = Store::start(&data, &[]);
    let write =
        |store: &Store, client: &str, token: u64| store::write(&store.address, client, "a", token, "x").unwrap();
    assert_eq!(write(&store, "one", 5).0, 200);
    assert_eq!(write(&store, "one", 5).0, 200, "the holder writes again");
    drop(store);
    // Who set the token is as durable as the token.
    let store = Store::start(&data, &[]);
    let (status, body) = write(&store, "two", 5);
    assert_eq!((status, &body["success"], &body["highest"]), (409, &json!(false), &json!(5)));
    assert!(body["error"].as_str().unwrap().contains("another client"), "{body}");
    assert_eq!(write(&store, "one", 5).0, 200);
    assert_eq!(write(&store, "two", 6).0, 200, "the next holder");
    assert_eq!(write(&store, "one", 5).0, 409);
}

#[test]
fn a_restart_keeps_the_bar_and_the_data() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    for (round, signal) in [Signal::TERM, Signal::INT, Signal::KILL].into_iter().enumerate() {
        let store = Store::start(&data, &[]);
        let token = 10 * (round as u64 + 1);
        assert_eq!(store.write("a", token, "kept").0, 200);
        let (code, log) = store.end_by(signal);
        assert_eq!(code, (signal != Signal::KILL).then_some(0), "{log}");
        assert_eq!(log.contains("\"stopped\""), signal != Signal::KILL, "{log}");
        let store = Store::start(&data, &[]);
        assert_eq!(store.data("a"), (token, "kept".to_owned()));
        let (status, body) = store.write("a", token - 1, "stale");
        assert_eq!((status, &body["highest"]), (409, &json!(token)));
    }
}

#[test]
fn acknowledged_writes_survive_kills_under_load() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let acknowledged: Arc<[AtomicU64; 4]> = Arc::default();
    for round in 1..=10_u64 {
        let store = Arc::new(Store::start(&data, &[]));
        let writers: Vec<_> = (0..4_usize)
            .map(|writer| {
                let (store, acknowledged) = (store.clone(), acknowledged.clone());
                thread::spawn(move || {
                    for token in round * 100_000.. {
                        let text = format!("{token} {}", "x".repeat(token as usize % 3_000));
                        match store::write(&store.address, "c", &writer.to_string(), token, &text) {
                            Some((200, _)) => acknowledged[writer].store(token, Ordering::SeqCst),
                            Some((status, body)) => panic!("{status} {body}"),
                            None => break,
                        }
                    }
                })
            })
            .collect();
        // The kill comes after a number of writes that differs from round to round.
        while acknowledged.iter().any(|token| token.load(Ordering::SeqCst) < round * 100_000 + round * 3) {
            assert!(!writers.iter().any(|writer| writer.is_finished()), "a writer has given up");
            thread::yield_now();
        }
        store.signal(Signal::KILL);
        for writer in writers {
            writer.join().unwrap();
        }
        drop(store);
        let store = Store::start(&data, &[]);
        for (writer, token) in acknowledged.iter().enumerate() {
            let token = token.load(Ordering::SeqCst);
            let (found, text) = store.data(&writer.to_string());
            assert!((token..=token + 1).contains(&found), "{token} was acknowledged, {found} is there");
            assert!(text.starts_with(&format!("{found} ")), "data and token are of one write");
            assert_eq!(store.write(&writer.to_string(), token - 1, "stale").0, 409);
        }
    }
}

#[test]
fn garbage_is_refused_and_raises_nothing() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::start(&home.path().join("data"), &[]);
    let token =
        |key: &str, value: Value| json!({"clientID": "c", "fencingToken": {"key": key, "value": value}, "data": "x"});
    let long = "x".repeat(2 << 20);
    for (body, status, reason) in [
        ("".to_owned(), 400, "EOF"),
        ("not json".to_owned(), 400, "cannot be read"),
        ("[1, 2]".to_owned(), 400, "cannot be read"),
        ("{\"clientID\": \"c\"".to_owned(), 400, "EOF"),
        (json!({"fencingToken": {"key": "a", "value": 9}, "data": "x"}).to_string(), 400, "clientID"),
        (json!({"clientID": "c", "data": "x"}).to_string(), 400, "fencingToken"),
        (json!({"clientID": "c", "fencingToken": {"value": 9}, "data": "x"}).to_string(), 400, "key"),
        (json!({"clientID": "c", "fencingToken": {"key": "a"}, "data": "x"}).to_string(), 400, "value"),
        (json!({"clientID": "c", "fencingToken": {"key": "a", "value": 9}}).to_string(), 400, "data"),
        (json!({"clientID": "", "fencingToken": {"key": "a", "value": 9}, "data": "x"}).to_string(), 400, "clientID"),
        (json!({"clientID": "c", "fencingToken": {"key": "a", "value": 9}, "data": 7}).to_string(), 400, "string"),
        (token("", json!(9)).to_string(), 400, "empty"),
        (token("a\nb", json!(9)).to_string(), 400, "control"),
        (token(&"k".repeat(2_000), json!(9)).to_string(), 400, "1024"),
        (token("a", json!(0)).to_string(), 400, "no fencing token"),
        (token("a", json!(-1)).to_string(), 400, "u64"),
        (token("a", json!(1.5)).to_string(), 400, "u64"),
        (token("a", json!("9")).to_string(), 400, "u64"),
        (token("a", json!(u64::MAX)).to_string(), 400, "no fencing token"),
        (token("a#shared", json!(9)).to_string(), 403, "shared"),
        (json!({"clientID": "c", "fencingToken": {"key": "a", "value": 9}, "data": long}).to_string(), 413, "at most"),
    ] {
        let (found, answer) = store.request("POST", "/write", body.as_bytes());
        let body: String = body.chars().take(100).collect();
        assert_eq!((found, &answer["success"]), (status, &json!(false)), "{body}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(reason), "{body}: {answer}");
    }
    assert_eq!(store.request("POST", "/write", &[0xFF, 0xFE]).0, 400);
    assert_eq!(store.request("GET", "/write", b"").0, 405);
    assert_eq!(store.request("POST", "/nothing", b"").0, 404);
    assert_eq!(store.request("GET", "/read", b"").0, 400);
    assert_eq!(store.request("GET", "/keys", b"").1["keys"], json!([]), "nothing was written");
    assert_eq!(store.write("a", 1, "x").0, 200, "no bar was raised");
}

#[test]
fn with_a_signing_key_only_the_cluster_s_own_tokens_pass() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("signing.key");
    // 32 times 7, and 32 times 8, in base64.
    let (seven, eight) =
        ("BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=", "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg=");
    std::fs::write(&path, format!("{seven}\n{eight}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let flags = ["--signing-key", path.to_str().unwrap(), "--cluster", "c1"];
    let store = Store::start(&home.path().join("data"), &flags);
    let signed = |secret: u8, cluster: &str, key: &str, token: u64, holder: &str, expires_at_ms: u64| {
        let keyring = Keyring::new(vec![SigningKey::new(&[secret; 32]).unwrap()]).unwrap();
        let (key, token) = (Key::parse(key).unwrap(), Token::new(token).unwrap());
        json!(keyring.sign(&Claim::new(cluster, key, token, holder, expires_at_ms).unwrap()))
    };
    let good = signed(7, "c1", "a", 5, "me", NEVER_MS);
    let mut altered = good.as_str().unwrap().to_owned().into_bytes();
    altered[20] ^= 1;
    let altered = json!(String::from_utf8(altered).unwrap());
    let write = |client: &str, key: &str, token: u64, signature: &Value| {
        let token = json!({"key": key, "value": token, "signature": signature});
        let body = json!({"clientID": client, "fencingToken": token, "data": "x"});
        store.request("POST", "/write", body.to_string().as_bytes())
    };
    for (client, key, token, signature, status, reason) in [
        ("me", "a", 1_000_000, &Value::Null, 401, "signed"),
        ("me", "a", 1_000_000, &json!("made up"), 403, "cannot be read"),
        ("me", "a", 1_000_000, &good, 403, "token 5"),
        ("me", "b", 5, &good, 403, "key"),
        ("you", "a", 5, &good, 403, "holder"),
        ("me", "a", 5, &altered, 403, ""),
        ("me", "a", 1_000_000, &signed(9, "c1", "a", 1_000_000, "me", NEVER_MS), 403, "signature"),
        ("me", "a", 1_000_000, &signed(7, "c2", "a", 1_000_000, "me", NEVER_MS), 403, "cluster"),
        ("me", "a", 1_000_000, &signed(7, "c1", "a", 1_000_000, "me", 1), 403, "expired"),
    ] {
        let (found, answer) = write(client, key, token, signature);
        assert_eq!((found, &answer["success"]), (status, &json!(false)), "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(reason), "{answer}");
    }
    assert_eq!(write("me", "a", 5, &good).0, 200, "none of them raised the bar");
    assert_eq!(write("me", "a", 6, &signed(8, "c1", "a", 6, "me", NEVER_MS)).0, 200, "a second key is valid too");
    assert_eq!(write("me", "a", 5, &good).0, 409, "signed, and stale all the same");
}

#[test]
fn mistakes_at_start_are_one_sentence_with_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let store = Store::start(&data, &[]);
    let foreign = home.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.txt"), "mine").unwrap();
    let exposed = home.path().join("exposed.key");
    std::fs::write(&exposed, "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=").unwrap();
    std::fs::set_permissions(&exposed, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (data, foreign, exposed) = (data.to_str().unwrap(), foreign.to_str().unwrap(), exposed.to_str().unwrap());
    let free = ["--listen", "127.0.0.1:0"];
    for (flags, reasons) in [
        (&["--listen", &store.address, "--data-dir", foreign][..], &["in use", "--listen"][..]),
        (&[free[0], free[1], "--data-dir", data], &["in use by another process", "--data-dir"]),
        (&[free[0], free[1], "--data-dir", foreign], &["thesis.txt", "choose another"]),
        (&[free[0], free[1], "--data-dir", exposed], &["--data-dir"]),
        (&["--listen", "0.0.0.0:0", "--data-dir", data], &["--insecure"]),
        (&["--signing-key", exposed, "--data-dir", data], &["--cluster"]),
        (&["--signing-key", exposed, "--cluster", "c", "--data-dir", data], &["0644", "chmod 600"]),
        (&["--endpoints", "a:1", "--data-dir", data], &["--endpoints", "--listen"]),
        (&["--timeout", "1s", "--data-dir", data], &["--timeout", "--listen"]),
        (&["-o", "json", "--data-dir", data], &["--output", "--listen"]),
    ] {
        tenure(&[&["datastore"][..], flags].concat()).failed_for(1, reasons);
    }
    assert!(tenure(&["datastore", "--equal", "sometimes"]).failed(2).contains("identical"));
}

#[test]
fn a_damaged_journal_stops_it_with_file_and_offset() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let store = Store::start(&data, &[]);
    for token in 1..=5 {
        assert_eq!(store.write("a", token, "data").0, 200);
    }
    store.end_by(Signal::KILL);
    let journal = data.join("journal-0000000000000001");
    let mut bytes = std::fs::read(&journal).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&journal, bytes).unwrap();
    let said = tenure(&["datastore", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()]).failed(1);
    assert!(said.contains("journal-0000000000000001 is corrupt at byte"), "{said}");
}
