//! Locks over a WebSocket.

use serde_json::{Value, json};
use tenure_api::tenure::v1::recent_holder::End;
use tenure_api::tenure::v1::{ForceReleaseRequest, ListSessionsRequest};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::harness::*;
use crate::tenure_lock::{self, describe, waiting};
use crate::websocket_client::*;

const MINUTE: u64 = 60_000;

#[tokio::test]
async fn a_lock_is_taken_renewed_and_given_back() {
    let server = Server::start().await;
    let mut native = tenure_lock::client(&server);
    let mut ada = Socket::connect(server.address).await;
    ada.ask(ACQUIRE, "jobs", "ada", MINUTE, "r1").await;
    let told = ada.hear().await;
    let token = told["fencingToken"]["value"].as_i64().unwrap();
    let granted = |id: &str| json!({"success": true, "fencingToken": {"key": "jobs", "value": token}, "requestId": id});
    assert_eq!(told, granted("r1"));

    let found = describe(&mut native, "jobs").await;
    let [holder] = &found.holders[..] else { panic!("{found:?}") };
    assert_eq!((holder.holder_id.as_str(), holder.fencing_token), ("ada", token));
    let lease = holder.lease.as_ref().unwrap();
    assert_eq!((lease.client_id.as_str(), lease.granted_ttl_ms), ("ada", MINUTE as i64));
    let listed = native.list_sessions(ListSessionsRequest::default()).await.unwrap().into_inner().sessions;
    assert!(listed.iter().any(|session| session.client_id == "ada" && session.address.starts_with("127.0.0.1:")));

    ada.ask(RENEW, "jobs", "ada", MINUTE, "r2").await;
    assert_eq!(ada.hear().await, granted("r2"));
    ada.ask(ACQUIRE, "jobs", "ada", MINUTE, "r3").await;
    assert_eq!(ada.hear().await, granted("r3"), "acquiring what one holds renews it");
    ada.ask(RELEASE, "jobs", "ada", 0, "r4").await;
    assert_eq!(ada.hear().await, granted("r4"));

    let found = describe(&mut native, "jobs").await;
    assert!(found.holders.is_empty());
    assert_eq!(found.recent[0].end(), End::Released);
    ada.ask(RELEASE, "jobs", "ada", 0, "r5").await;
    let told = ada.hear().await;
    let refused = |error: &str| json!({"success": false, "fencingToken": {"key": "jobs", "value": 0}, "requestId": "r5", "error": error});
    assert_eq!(told, refused("not held"));
    let leases =
        server.lease().lease_leases(tenure_api::etcdserverpb::LeaseLeasesRequest {}).await.unwrap().into_inner().leases;
    assert!(leases.is_empty(), "the lease goes with the lock");
}

#[tokio::test]
async fn grants_and_renewals_are_signed_where_a_key_is_configured() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("signing.key");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef0123456789ab").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let server = Server::start_with(|config| config.signing_key = Some(file.clone())).await;
    let keyring = tenure_fence::read_keyring(&file).unwrap();
    let mut ada = Socket::connect(server.address).await;
    let mut expiries = Vec::new();
    for command in [ACQUIRE, RENEW] {
        ada.ask(command, "jobs", "ada", MINUTE, "r").await;
        let token = ada.hear().await["fencingToken"].clone();
        let claim = keyring.open(token["signature"].as_str().unwrap()).unwrap();
        assert_eq!((claim.key().as_str(), claim.holder()), ("jobs", "ada"));
        assert_eq!(claim.token().get(), token["value"].as_u64().unwrap());
        expiries.push(claim.expires_at_ms());
    }
    // Both are rounded to milliseconds, twice.
    assert!(expiries[1] + 2 >= expiries[0]);
    ada.ask(RELEASE, "jobs", "ada", 0, "r").await;
    assert_eq!(ada.hear().await["fencingToken"]["signature"], Value::Null, "what is given back is not vouched for");
}

#[tokio::test]
async fn the_next_in_line_is_told_when_its_turn_comes() {
    let server = Server::start().await;
    let mut native = tenure_lock::client(&server);
    let mut ada = Socket::connect(server.address).await;
    let mut bob = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    let first = ada.granted("jobs").await;
    bob.say(ACQUIRE, "jobs", "bob", MINUTE).await;
    waiting(&mut native, "jobs", 1).await;
    ada.say(RELEASE, "jobs", "ada", MINUTE).await;
    assert!(bob.granted("jobs").await > first);
}

#[tokio::test]
async fn a_client_waits_as_long_as_it_says() {
    let server = Server::start().await;
    let mut native = tenure_lock::client(&server);
    let mut ada = Socket::connect(server.address).await;
    let mut bob = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    ada.granted("jobs").await;
    let acquire = |timeout: u64| json!({"commandType": ACQUIRE, "key": "jobs", "clientId": "bob", "ttl": MINUTE, "timeout": timeout});
    bob.send(Message::text(acquire(0).to_string())).await;
    assert_eq!(bob.refused().await, "busy: \"ada\" holds it, 0 wait");
    bob.send(Message::text(acquire(50).to_string())).await;
    assert_eq!(bob.refused().await, "not granted within 50 ms");
    waiting(&mut native, "jobs", 0).await;
    let patient = acquire(MINUTE);
    bob.send(Message::text(patient.to_string())).await;
    waiting(&mut native, "jobs", 1).await;
    ada.say(RELEASE, "jobs", "ada", MINUTE).await;
    bob.granted("jobs").await;
}

#[tokio::test]
async fn who_holds_a_lock_is_said_to_those_who_do_not() {
    let server = Server::start().await;
    let mut ada = Socket::connect(server.address).await;
    let mut bob = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    ada.granted("jobs").await;
    for command in [RENEW, RELEASE] {
        bob.ask(command, "jobs", "bob", MINUTE, "r").await;
        assert_eq!(bob.refused().await, "not held by this client: \"ada\" holds it");
    }
    bob.ask(RELEASE, "other", "bob", MINUTE, "r").await;
    assert_eq!(bob.refused().await, "not held");
}

#[tokio::test]
async fn a_client_that_knows_no_path_gets_its_session() {
    let server = Server::start().await;
    for path in ["/", "/ws"] {
        let mut socket = Socket::connect_at(server.address, path).await;
        socket.say(ACQUIRE, path, "ada", MINUTE).await;
        socket.granted(path).await;
    }
    let page = get_http(server.address, "/", "").await;
    assert!(page.starts_with("HTTP/1.1 404 ") && page.contains("This is Tenure"), "{page}");
}

#[tokio::test]
async fn the_ttl_of_a_holder_whose_connection_dies_decides() {
    let server = Server::start().await;
    let mut native = tenure_lock::client(&server);
    let mut ada = Socket::connect(server.address).await;
    let mut bob = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", 1000).await;
    let first = ada.granted("jobs").await;
    drop(ada);
    bob.say(ACQUIRE, "jobs", "bob", MINUTE).await;
    assert!(bob.granted("jobs").await > first);
    assert_eq!(describe(&mut native, "jobs").await.recent[0].end(), End::Expired);
}

#[tokio::test]
async fn an_open_connection_keeps_the_place_of_who_waits() {
    let server = Server::start().await;
    let mut native = tenure_lock::client(&server);
    let mut ada = Socket::connect(server.address).await;
    let mut bob = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    ada.granted("jobs").await;
    bob.say(ACQUIRE, "jobs", "bob", 1000).await;
    waiting(&mut native, "jobs", 1).await;
    // Whatever waits without being kept alive is over when a lease of three times its length is.
    let mut clock = Socket::connect(server.address).await;
    clock.ask(ACQUIRE, "clock", "clock", 3000, "r").await;
    while clock.hear().await["event"] != "lost" {}
    assert_eq!(describe(&mut native, "jobs").await.waiters.len(), 1);
    ada.say(RELEASE, "jobs", "ada", MINUTE).await;
    bob.granted("jobs").await;
}

#[tokio::test]
async fn a_plain_client_reads_nothing_but_grants() {
    let server = Server::start().await;
    let mut native = tenure_lock::client(&server);
    let mut ada = Socket::connect(server.address).await;
    let mut bob = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    ada.granted("jobs").await;
    // No event that it waits, none that it lost what it held, no answer to releases.
    bob.say(ACQUIRE, "jobs", "bob", MINUTE).await;
    bob.say(ACQUIRE, "brief", "bob", 500).await;
    bob.granted("brief").await;
    bob.say(RELEASE, "nothing", "bob", 0).await;
    timeout(PATIENCE, async { while !describe(&mut native, "brief").await.holders.is_empty() {} }).await.unwrap();
    ada.say(RELEASE, "jobs", "ada", MINUTE).await;
    bob.granted("jobs").await;
    ada.say(ACQUIRE, "mail", "ada", MINUTE).await;
    ada.granted("mail").await;
}

#[tokio::test]
async fn who_sends_a_request_id_is_told_that_it_waits_and_what_it_lost() {
    let server = Server::start().await;
    let mut native = tenure_lock::client(&server);
    let mut ada = Socket::connect(server.address).await;
    let mut bob = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    ada.granted("jobs").await;
    bob.ask(ACQUIRE, "jobs", "bob", MINUTE, "b1").await;
    let queued = json!({
        "event": "queued", "ahead": 1, "fencingToken": {"key": "jobs", "value": 0}, "requestId": "b1"
    });
    assert_eq!(bob.hear().await, queued);
    ada.say(RELEASE, "jobs", "ada", MINUTE).await;
    let token = bob.hear().await["fencingToken"]["value"].as_i64().unwrap();
    let force = ForceReleaseRequest { name: "jobs".to_owned(), fencing_token: token };
    native.force_release(force).await.unwrap();
    let lost = json!({
        "event": "lost", "error": "an operator has ended it",
        "fencingToken": {"key": "jobs", "value": token}, "requestId": "b1"
    });
    assert_eq!(bob.hear().await, lost);
    bob.ask(RENEW, "jobs", "bob", MINUTE, "b2").await;
    assert_eq!(bob.refused().await, "not held");
}

#[tokio::test]
async fn a_lease_that_ends_is_announced_and_told() {
    let server = Server::start().await;
    let mut ada = Socket::connect(server.address).await;
    ada.ask(ACQUIRE, "jobs", "ada", 1000, "a1").await;
    let token = ada.hear().await["fencingToken"]["value"].as_i64().unwrap();
    let warning = ada.hear().await;
    assert_eq!((&warning["event"], &warning["requestId"]), (&json!("warning"), &json!("a1")));
    assert!(warning["remainingMs"].is_u64());
    let lost = json!({
        "event": "lost", "error": "its lease has expired",
        "fencingToken": {"key": "jobs", "value": token}, "requestId": "a1"
    });
    assert_eq!(ada.hear().await, lost);
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    assert!(ada.granted("jobs").await > token);
}

#[tokio::test]
async fn who_does_not_answer_a_ping_is_cut_off() {
    let configure = |config: &mut tenure_server::config::Config| {
        config.keepalive_interval = std::time::Duration::from_secs(5);
        config.keepalive_timeout = std::time::Duration::from_secs(1);
    };
    let server = Server::start_with(configure).await;
    let (mut silent, head) = ask_for_session(server.address, "").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut heard = Vec::new();
    timeout(PATIENCE, silent.read_to_end(&mut heard)).await.expect("in time").unwrap();
    assert_eq!(heard, [0x89, 0], "a ping, and the end");
}

#[tokio::test]
async fn a_client_that_comes_back_takes_over_what_it_held() {
    let server = Server::start().await;
    let mut ada = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    let token = ada.granted("jobs").await;
    // Cut off.
    drop(ada);
    let mut ada = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    assert_eq!(ada.granted("jobs").await, token);
    // Closed in good order.
    ada.close().await;
    let mut ada = Socket::connect(server.address).await;
    ada.say(RENEW, "jobs", "ada", MINUTE).await;
    assert_eq!(ada.granted("jobs").await, token);
    ada.close().await;
    let mut ada = Socket::connect(server.address).await;
    ada.ask(RELEASE, "jobs", "ada", 0, "r").await;
    assert_eq!(ada.hear().await["success"], true);
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    assert!(ada.granted("jobs").await > token);
}

#[tokio::test]
async fn a_client_that_comes_back_has_kept_its_place_in_the_queue() {
    let server = Server::start().await;
    let mut native = tenure_lock::client(&server);
    let mut sockets = Vec::new();
    for (index, client) in ["ada", "bob", "cleo"].into_iter().enumerate() {
        let mut socket = Socket::connect(server.address).await;
        socket.say(ACQUIRE, "jobs", client, MINUTE).await;
        waiting(&mut native, "jobs", index).await;
        sockets.push(socket);
    }
    let bob = sockets.remove(1);
    bob.close().await;
    let mut bob = Socket::connect(server.address).await;
    bob.ask(ACQUIRE, "jobs", "bob", MINUTE, "r").await;
    assert_eq!(bob.hear().await["ahead"], 1, "before cleo, as ever");
    assert_eq!(describe(&mut native, "jobs").await.waiters.len(), 2);
    sockets[0].granted("jobs").await;
    sockets[0].say(RELEASE, "jobs", "ada", MINUTE).await;
    assert_eq!(bob.hear().await["success"], true);
    assert_eq!(describe(&mut native, "jobs").await.waiters.len(), 1);
}

#[tokio::test]
async fn a_client_is_refused_while_its_other_connection_lives() {
    let server = Server::start().await;
    let mut native = tenure_lock::client(&server);
    let mut ada = Socket::connect(server.address).await;
    let mut other = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    let token = ada.granted("jobs").await;
    for command in [ACQUIRE, RENEW, RELEASE] {
        other.ask(command, "jobs", "ada", MINUTE, "r").await;
        assert!(other.refused().await.contains("another connection of this client"));
    }
    assert_eq!(describe(&mut native, "jobs").await.holders[0].fencing_token, token);
    other.say(ACQUIRE, "mail", "ada", MINUTE).await;
    other.granted("mail").await;
    ada.say(RENEW, "jobs", "ada", MINUTE).await;
    assert_eq!(ada.granted("jobs").await, token);
}

#[tokio::test]
async fn all_kinds_of_clients_stand_in_one_queue() {
    let server = Server::start().await;
    let mut native = tenure_lock::client(&server);
    let mut etcd = server.lock();
    let etcd_lease = server.grant(60).await;
    let request = tenure_api::v3lockpb::LockRequest { name: "jobs".into(), lease: etcd_lease };
    let first = etcd.lock(request).await.unwrap().into_inner();
    let mut ada = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    waiting(&mut native, "jobs", 1).await;
    let lease = tenure_lock::lease(&mut native, "native").await;
    let third = tenure_lock::waits(&native, tenure_lock::ask("jobs", lease));
    waiting(&mut native, "jobs", 2).await;
    etcd.unlock(tenure_api::v3lockpb::UnlockRequest { key: first.key }).await.unwrap();
    let second = ada.granted("jobs").await;
    ada.say(RELEASE, "jobs", "ada", MINUTE).await;
    let third = timeout(PATIENCE, third).await.unwrap().unwrap().unwrap();
    assert!(third.fencing_token > second);
    // And a WebSocket behind a native client.
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    waiting(&mut native, "jobs", 1).await;
    tenure_lock::unlock(&mut native, "jobs", third.fencing_token).await.unwrap();
    assert!(ada.granted("jobs").await > third.fencing_token);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_the_connection_goes_on() {
    let server = Server::start().await;
    let mut ada = Socket::connect(server.address).await;
    let long = "x".repeat(1025);
    let long = format!(r#"{{"commandType":1,"key":"{long}","clientId":"ada","ttl":1000}}"#);
    for (text, named) in [
        ("hello", "not JSON"),
        ("7", "JSON object"),
        (r#"{"commandType":4,"key":"k","clientId":"ada","ttl":1000}"#, "commandType"),
        (r#"{"commandType":1,"clientId":"ada","ttl":1000}"#, "key is missing"),
        (r#"{"commandType":1,"key":"k","clientId":["ada"],"ttl":1000}"#, "clientId must be a string"),
        (r#"{"commandType":1,"key":"k","clientId":"ada","ttl":499}"#, "at least 500 ms"),
        (r#"{"commandType":1,"key":"k","clientId":"ada","ttl":9000000000001}"#, "at most 9000000000000 ms"),
        (&long, "longer than 1024 bytes"),
    ] {
        ada.send(Message::text(text)).await;
        let error = ada.refused().await;
        assert!(error.contains(named), "{text}: {error}");
    }
    ada.send(Message::Binary(Bytes::from_static(b"{}"))).await;
    assert!(ada.refused().await.contains("text frames"));

    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    let token = ada.granted("jobs").await;
    let release = |token: i64| {
        let token = json!({"key": "jobs", "value": token});
        json!({"commandType": 2, "key": "jobs", "clientId": "ada", "fencingToken": token, "requestId": 1}).to_string()
    };
    ada.send(Message::text(release(token + 1))).await;
    assert!(ada.refused().await.contains("another token"));
    ada.ask(RENEW, "jobs", "ada", 2 * MINUTE, "r").await;
    assert!(ada.refused().await.contains("longer than the 60000 ms"));
    ada.send(Message::text(release(token))).await;
    assert_eq!(ada.hear().await["success"], true);
    ada.send(Message::Ping(Bytes::from_static(b"there?"))).await;
    assert_eq!(ada.next().await, Message::Pong(Bytes::from_static(b"there?")));
}

#[tokio::test]
async fn what_breaks_the_protocol_ends_the_connection_with_its_code() {
    let server = Server::start().await;
    let mut large = Socket::connect(server.address).await;
    large.send(Message::text("x".repeat(1 << 20))).await;
    assert_eq!(large.closed().await, (1009, "the message is too long".to_owned()));
    let mut pieces = Socket::connect(server.address).await;
    // A message of many pieces, of which none is too long by itself.
    let piece = [&[0x01, 0xfe, 0x20, 0x00, 0, 0, 0, 0][..], &[b'x'; 0x2000]].concat();
    let next = [&[0x00, 0xfe, 0x20, 0x01, 0, 0, 0, 0][..], &[b'x'; 0x2001]].concat();
    pieces.write_raw(&[piece, next].concat()).await;
    assert_eq!(pieces.closed().await.0, 1009);
    for (bytes, code) in [
        // Not masked; an unknown opcode; a text that is not UTF-8.
        (&[0x81, 0x01, b'x'][..], 1002),
        (&[0x83, 0x80, 0, 0, 0, 0], 1002),
        (&[0x81, 0x82, 0, 0, 0, 0, 0xc3, 0x28], 1007),
    ] {
        let mut socket = Socket::connect(server.address).await;
        socket.write_raw(bytes).await;
        assert_eq!(socket.closed().await.0, code, "{bytes:x?}");
    }
}

#[tokio::test]
async fn requests_for_one_lock_are_taken_in_the_order_they_come() {
    let server = Server::start().await;
    let mut ada = Socket::connect(server.address).await;
    ada.ask(ACQUIRE, "jobs", "ada", MINUTE, "r1").await;
    ada.ask(RENEW, "jobs", "ada", MINUTE, "r2").await;
    ada.ask(RELEASE, "jobs", "ada", MINUTE, "r3").await;
    ada.ask(ACQUIRE, "jobs", "ada", 2 * MINUTE, "r4").await;
    let mut tokens = Vec::new();
    for id in ["r1", "r2", "r3", "r4"] {
        let told = ada.hear().await;
        assert_eq!((&told["success"], &told["requestId"]), (&json!(true), &json!(id)));
        tokens.push(told["fencingToken"]["value"].as_i64().unwrap());
    }
    assert!(tokens[0] == tokens[1] && tokens[0] == tokens[2], "{tokens:?}");
    assert!(tokens[3] > tokens[0], "released and acquired anew: {tokens:?}");
}

#[tokio::test]
async fn who_waits_may_give_up() {
    let server = Server::start().await;
    let mut native = tenure_lock::client(&server);
    let mut ada = Socket::connect(server.address).await;
    let mut bob = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    ada.granted("jobs").await;
    bob.ask(ACQUIRE, "jobs", "bob", MINUTE, "r1").await;
    assert_eq!(bob.hear().await["event"], "queued");
    bob.ask(ACQUIRE, "jobs", "bob", MINUTE, "r2").await;
    assert!(bob.refused().await.contains("waits for it already"));
    bob.ask(RELEASE, "jobs", "bob", 0, "r3").await;
    let given_up = bob.hear().await;
    assert_eq!((&given_up["requestId"], &given_up["success"]), (&json!("r1"), &json!(false)));
    let released = bob.hear().await;
    assert_eq!((&released["requestId"], &released["success"]), (&json!("r3"), &json!(true)));
    waiting(&mut native, "jobs", 0).await;
}

#[tokio::test]
async fn many_locks_on_one_connection() {
    let server = Server::start().await;
    let mut ada = Socket::connect(server.address).await;
    for index in 0..200 {
        ada.say(ACQUIRE, &format!("job-{index}"), "ada", MINUTE).await;
    }
    let mut keys = std::collections::BTreeSet::new();
    let mut tokens = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let told = ada.hear().await;
        keys.insert(told["fencingToken"]["key"].as_str().unwrap().to_owned());
        tokens.insert(told["fencingToken"]["value"].as_i64().unwrap());
    }
    assert_eq!((keys.len(), tokens.len()), (200, 200));
}

#[tokio::test]
async fn a_connection_has_so_many_locks() {
    let server = Server::start_with(|config| config.limits.leases_per_client = 2).await;
    let mut ada = Socket::connect(server.address).await;
    for key in ["a", "b"] {
        ada.say(ACQUIRE, key, "ada", MINUTE).await;
        ada.granted(key).await;
    }
    ada.say(ACQUIRE, "c", "ada", MINUTE).await;
    assert_eq!(ada.refused().await, "this connection has 2 locks already");
    ada.ask(RELEASE, "a", "ada", 0, "r").await;
    ada.hear().await;
    ada.say(ACQUIRE, "c", "ada", MINUTE).await;
    ada.granted("c").await;
}

#[tokio::test]
async fn a_strange_page_opens_no_session() {
    let server = Server::start().await;
    for origin in ["https://evil.example", "null"] {
        let (_, head) = ask_for_session(server.address, &format!("Origin: {origin}\r\n")).await;
        assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    }
    let (_, head) = ask_for_session(server.address, "Origin: http://localhost:3000\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let plain = format!("GET /v1/session HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    let (_, head) = ask_http(server.address, &plain).await;
    assert!(head.starts_with("HTTP/1.1 426 "), "{head}");
}

#[tokio::test]
async fn a_websocket_counts_as_a_connection_of_its_address() {
    // One is the harness' own.
    let server = Server::start_with(|config| config.limits.connections_per_address = 2).await;
    let mut ada = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    ada.granted("jobs").await;
    let (_, head) = ask_for_session(server.address, "").await;
    assert!(head.is_empty(), "{head}");
    ada.close().await;
    let readmitted = async { while ask_for_session(server.address, "").await.1.is_empty() {} };
    timeout(PATIENCE, readmitted).await.expect("its place is free again");
}

#[tokio::test]
async fn a_member_that_stops_says_so() {
    let server = Server::start().await;
    let mut ada = Socket::connect(server.address).await;
    ada.say(ACQUIRE, "jobs", "ada", MINUTE).await;
    ada.granted("jobs").await;
    let stopped = tokio::task::spawn_blocking(move || drop(server));
    assert_eq!(ada.closed().await, (1001, "the member stops".to_owned()));
    drop(ada);
    timeout(PATIENCE, stopped).await.expect("in time").unwrap();
}

#[tokio::test]
async fn anybody_may_ask_who_leads() {
    let server = Server::start().await;
    let request = format!("GET /v1/leader HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address);
    let (mut stream, head) = ask_http(server.address, &request).await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("application/json"), "{head}");
    let mut body = String::new();
    stream.read_to_string(&mut body).await.unwrap();
    let told: Value = serde_json::from_str(&body).unwrap();
    let status = server.status().await;
    let (id, address) = (format!("{:x}", status.leader), server.address.to_string());
    assert_eq!(told["leader"], json!({"id": id, "name": "default", "clientAddresses": [address]}));
    assert_eq!(told["term"], status.raft_term);
    let [member] = &told["members"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!((&member["id"], &member["name"]), (&json!(id), &json!("default")));
    assert_eq!(member["clientAddresses"], json!([address]));
    assert_eq!(member["peerAddresses"].as_array().unwrap().len(), 1);
}
