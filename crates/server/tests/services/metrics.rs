//! What a member tells of itself at `/metrics` and `/readyz`.

use std::time::Duration;

use tenure_api::etcdserverpb::*;
use tenure_api::tenure::v1::session_request::Request as Asked;
use tenure_api::tenure::v1::session_response::Response as Told;
use tenure_api::tenure::v1::{SessionClose, SessionLock, SessionOpen, SessionRenew, SessionRequest, SessionUnlock};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::harness::*;
use crate::tenure_lock::client;
use crate::websocket_client::*;

async fn metrics(server: &Server) -> String {
    get_http(server.address, "/metrics", "").await
}

/// Waits until the metrics hold this line.
async fn until(server: &Server, line: &str) {
    let holds = async {
        while !metrics(server).await.lines().any(|found| found == line) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if timeout(PATIENCE / 4, holds).await.is_err() {
        panic!("{line} does not come to be in {}", metrics(server).await);
    }
}

#[tokio::test]
async fn a_session_that_is_closed_is_no_cancelled_call_and_its_locks_are_counted() {
    let server = Server::start().await;
    let (requests, receiver) = mpsc::channel(10);
    let open = Asked::Open(SessionOpen { session_id: 0, ttl_ms: 60_000, client_id: "ada".to_owned() });
    requests.send(SessionRequest { number: 1, request: Some(open) }).await.unwrap();
    let mut responses = client(&server).session(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let lock = Asked::Lock(SessionLock { name: "jobs".to_owned(), ..SessionLock::default() });
    let foreign = Asked::Unlock(SessionUnlock { name: "jobs".to_owned(), more_names: Vec::new(), fencing_token: 1 });
    let asked = [lock, foreign, Asked::Renew(SessionRenew {}), Asked::Close(SessionClose {})];
    let mut told = timeout(PATIENCE, responses.message()).await.unwrap().unwrap();
    for (number, request) in (2..).zip(asked) {
        requests.send(SessionRequest { number, request: Some(request) }).await.unwrap();
        told = timeout(PATIENCE, responses.message()).await.unwrap().unwrap();
    }
    assert!(matches!(told.unwrap().response, Some(Told::Closed(_))));
    drop((requests, responses));
    until(&server, r#"tenure_rpc_in_flight{rpc="tenure.v1.LockService/Session"} 0"#).await;
    let text = metrics(&server).await;
    for line in [
        r#"tenure_rpc_requests_total{rpc="tenure.v1.LockService/Session",code="OK"} 1"#,
        r#"tenure_session_requests_total{carrier="grpc",request="lock",outcome="granted"} 1"#,
        r#"tenure_session_requests_total{carrier="grpc",request="unlock",outcome="refused"} 1"#,
        r#"tenure_session_requests_total{carrier="grpc",request="renew",outcome="done"} 1"#,
        r#"tenure_session_requests_total{carrier="websocket",request="lock",outcome="granted"} 0"#,
        "tenure_replica_compacted_revision 0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let mut socket = Socket::connect(server.address).await;
    socket.say(ACQUIRE, "web", "bob", 60_000).await;
    socket.granted("web").await;
    until(&server, r#"tenure_session_requests_total{carrier="websocket",request="lock",outcome="granted"} 1"#).await;
}

#[tokio::test]
async fn metrics_come_in_the_form_that_is_asked_for() {
    let server = Server::start().await;
    server.put("a", "1").await;
    let plain = metrics(&server).await.to_ascii_lowercase();
    assert!(plain.contains("content-type: text/plain; version=0.0.4"), "{plain}");
    assert!(plain.contains("# type tenure_rpc_requests_total counter") && !plain.contains("# eof"), "{plain}");
    assert!(
        plain.contains("tenure_replica_step_seconds_count ") && plain.contains("tenure_replica_step_max_seconds 0.")
    );
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let open = get_http(server.address, "/metrics", accept).await.to_ascii_lowercase();
    assert!(open.contains("content-type: application/openmetrics-text") && open.contains("# eof"), "{open}");
}

#[tokio::test]
async fn a_full_store_says_so_and_its_alarm_ends_with_its_cause() {
    let server = Server::start_with(|config| config.quota = 256 << 10).await;
    let put = |number: usize| PutRequest {
        key: format!("key/{number}").into(),
        value: vec![7; 16 << 10].into(),
        ..Default::default()
    };
    let mut refused = None;
    for number in 0..100 {
        if let Err(status) = server.kv().put(put(number)).await {
            refused = Some(status);
            break;
        }
    }
    assert_eq!(refused.expect("the quota is reached").code(), Code::ResourceExhausted);
    until(&server, r#"tenure_alarms{kind="NOSPACE"} 1"#).await;
    let readiness = get_http(server.address, "/readyz?verbose", "").await;
    assert!(readiness.starts_with("HTTP/1.1 200 "), "{readiness}");
    assert!(readiness.contains("[!]space degraded: alarm NOSPACE"), "{readiness}");
    let all = DeleteRangeRequest { key: "key/".into(), range_end: "key0".into(), prev_kv: false };
    let revision = server.kv().delete_range(all).await.unwrap().into_inner().header.unwrap().revision;
    server.compact(revision).await;
    until(&server, r#"tenure_alarms{kind="NOSPACE"} 0"#).await;
    server.kv().put(put(1)).await.unwrap();
}
