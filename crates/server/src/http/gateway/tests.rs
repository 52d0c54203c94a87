//! The gateway against a tiny service: what goes in as JSON comes out as etcd's gateway would say it.

use super::*;
use std::time::Duration;
use tenure_api::etcdserverpb::kv_server::{Kv, KvServer};
use tenure_api::etcdserverpb::lease_server::{Lease, LeaseServer};
use tenure_api::etcdserverpb::*;
use tenure_api::mvccpb::KeyValue;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request as Call, Response as Answer, Streaming};

use crate::metrics::Metrics;

/// Answers a range with the key it asks for, under the caller's token.
#[derive(Clone)]
struct Echo;

#[tonic::async_trait]
impl Kv for Echo {
    async fn range(&self, call: Call<RangeRequest>) -> Result<Answer<RangeResponse>, Status> {
        let token = call.metadata().get("authorization").map(|token| token.as_bytes().to_vec()).unwrap_or_default();
        let request = call.into_inner();
        if request.key.is_empty() {
            return Err(Status::invalid_argument("etcdserver: key is not provided"));
        }
        if request.key == "many" {
            let kv = |number: i64| KeyValue { key: vec![7; 100].into(), mod_revision: number, ..Default::default() };
            return Ok(Answer::new(RangeResponse { kvs: (0..request.limit).map(kv).collect(), ..Default::default() }));
        }
        if request.key == "slow" {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        let kv = KeyValue { key: request.key, value: token.into(), version: request.limit, ..Default::default() };
        let mut answer = Answer::new(RangeResponse { kvs: vec![kv], count: 1, ..Default::default() });
        answer.metadata_mut().insert("served-by", "echo".parse().unwrap());
        Ok(answer)
    }
    async fn put(&self, _: Call<PutRequest>) -> Result<Answer<PutResponse>, Status> {
        Ok(Answer::new(PutResponse::default()))
    }
    async fn delete_range(&self, _: Call<DeleteRangeRequest>) -> Result<Answer<DeleteRangeResponse>, Status> {
        Err(Status::failed_precondition("not now"))
    }
    async fn txn(&self, _: Call<TxnRequest>) -> Result<Answer<TxnResponse>, Status> {
        Err(Status::unimplemented(""))
    }
    async fn compact(&self, _: Call<CompactionRequest>) -> Result<Answer<CompactionResponse>, Status> {
        Err(Status::out_of_range("etcdserver: mvcc: required revision is a future revision"))
    }
}

#[tonic::async_trait]
impl Lease for Echo {
    async fn lease_grant(&self, _: Call<LeaseGrantRequest>) -> Result<Answer<LeaseGrantResponse>, Status> {
        Err(Status::unimplemented(""))
    }
    async fn lease_revoke(&self, call: Call<LeaseRevokeRequest>) -> Result<Answer<LeaseRevokeResponse>, Status> {
        Err(Status::not_found(format!("lease {}", call.into_inner().id)))
    }
    type LeaseKeepAliveStream = ReceiverStream<Result<LeaseKeepAliveResponse, Status>>;
    /// Lease 99 breaks the stream off.
    async fn lease_keep_alive(
        &self,
        call: Call<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Answer<Self::LeaseKeepAliveStream>, Status> {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let mut requests = call.into_inner();
        tokio::spawn(async move {
            loop {
                let answer = match requests.message().await {
                    Ok(Some(request)) if request.id == 99 => Err(Status::unavailable("etcdserver: no leader")),
                    Ok(Some(request)) => Ok(LeaseKeepAliveResponse { id: request.id, ttl: 5, ..Default::default() }),
                    Ok(None) => return,
                    Err(status) => Err(status),
                };
                let failed = answer.is_err();
                if sender.send(answer).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Answer::new(ReceiverStream::new(receiver)))
    }
    async fn lease_time_to_live(
        &self,
        _: Call<LeaseTimeToLiveRequest>,
    ) -> Result<Answer<LeaseTimeToLiveResponse>, Status> {
        Err(Status::unimplemented(""))
    }
    async fn lease_leases(&self, _: Call<LeaseLeasesRequest>) -> Result<Answer<LeaseLeasesResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

fn gateway() -> (Gateway, Metrics) {
    let pool = DescriptorPool::decode(tenure_api::FILE_DESCRIPTOR_SET).unwrap();
    let metrics = Metrics::new(&pool, 1);
    let services = Services::builder().add_service(KvServer::new(Echo)).add_service(LeaseServer::new(Echo));
    let services = services.build(metrics.runtime(0).clone(), metrics.rpcs().clone());
    (Gateway::new(&pool, services, &Limits::default()), metrics)
}

async fn call(request: Request<HttpBody>) -> (u16, HeaderMap, String) {
    let (parts, body) = gateway().0.call(request).await.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), parts.headers, String::from_utf8(body.to_vec()).unwrap())
}

async fn post(path: &str, json: impl Into<HttpBody>) -> (u16, String) {
    let (status, headers, body) = call(Request::post(path).body(json.into()).unwrap()).await;
    let json = body.is_empty() || headers[CONTENT_TYPE] == "application/json";
    assert!(json || status == 404, "{headers:?}");
    (status, body)
}

#[tokio::test]
async fn a_long_answer_comes_in_pieces() {
    let request = Request::post("/v3/kv/range").body(r#"{"key":"bWFueQ==","limit":20000}"#.into()).unwrap();
    let mut body = gateway().0.call(request).await.into_body();
    let (mut json, mut longest) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let piece = frame.unwrap().into_data().unwrap();
        longest = longest.max(piece.len());
        json.extend_from_slice(&piece);
    }
    let answer: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(answer["kvs"].as_array().unwrap().len(), 20_000);
    assert_eq!(answer["kvs"][19_999]["mod_revision"], "19999");
    assert!(longest < json.len() / 4, "a piece of {longest} bytes of {}", json.len());
}

#[tokio::test]
async fn a_call_and_its_answer() {
    let request = Request::post("/v3/kv/range").header("authorization", "secret");
    let (status, headers, body) = call(request.body(r#"{"key":"Zm9v","limit":3}"#.into()).unwrap()).await;
    assert_eq!(body, r#"{"kvs":[{"key":"Zm9v","version":"3","value":"c2VjcmV0"}],"count":"1"}"#);
    assert_eq!(status, 200);
    assert_eq!(headers[CONTENT_TYPE], "application/json");
    assert_eq!(headers["grpc-metadata-content-type"], "application/grpc");
    assert_eq!(headers["grpc-metadata-served-by"], "echo");
    assert_eq!(post("/v3/kv/put", "{}").await, (200, "{}".to_owned()));
}

#[tokio::test]
async fn metadata_is_passed_on_but_not_what_belongs_to_the_transport() {
    let request = Request::post("/v3/kv/range")
        .header("grpc-metadata-authorization", "by metadata")
        .header("grpc-metadata-content-type", "text/plain")
        .header("grpc-metadata-grpc-encoding", "gzip");
    let (status, _, body) = call(request.body(r#"{"key":"Zm9v"}"#.into()).unwrap()).await;
    assert_eq!((status, body.contains("YnkgbWV0YWRhdGE=")), (200, true), "{body}");
}

#[tokio::test]
async fn failures_have_a_status_and_a_message() {
    for (path, json, status, body) in [
        (
            "/v3/kv/range",
            "",
            400,
            r#"{"error":"etcdserver: key is not provided","message":"etcdserver: key is not provided","code":3}"#,
        ),
        ("/v3/lease/revoke", r#"{"ID":"7"}"#, 404, r#"{"error":"lease 7","message":"lease 7","code":5}"#),
        ("/v3/kv/lease/revoke", r#"{"ID":7}"#, 404, r#"{"error":"lease 7","message":"lease 7","code":5}"#),
        ("/v3/kv/deleterange", "{}", 400, r#"{"error":"not now","message":"not now","code":9}"#),
        (
            "/v3/auth/enable",
            "{}",
            501,
            r#"{"error":"unknown service etcdserverpb.Auth","message":"unknown service etcdserverpb.Auth","code":12}"#,
        ),
    ] {
        assert_eq!(post(path, json).await, (status, body.to_owned()), "{path}");
    }
    let (status, body) = post("/v3/kv/range", r#"{"key":"!"}"#).await;
    assert!(status == 400 && body.ends_with(r#""code":3}"#), "{body}");
}

#[tokio::test]
async fn paths_and_methods_are_matched_exactly() {
    for path in ["/v3/kv/range/", "/v3/kv/nope", "/v3/", "/v3/kv/Range"] {
        assert_eq!(post(path, "{}").await, (404, "Not Found\n".to_owned()), "{path}");
    }
    for method in ["GET", "PUT", "DELETE"] {
        let request = Request::builder().method(method).uri("/v3/kv/range").body(HttpBody::empty()).unwrap();
        let (status, _, body) = call(request).await;
        assert_eq!((status, body.as_str()), (405, "Method Not Allowed\n"));
    }
}

#[tokio::test]
async fn a_stream_answers_object_by_object() {
    assert_eq!(
        post("/v3/lease/keepalive", r#"{"ID":"7"}{"ID":8}"#).await,
        (200, "{\"result\":{\"ID\":\"7\",\"TTL\":\"5\"}}\n{\"result\":{\"ID\":\"8\",\"TTL\":\"5\"}}\n".to_owned())
    );
    assert_eq!(post("/v3/lease/keepalive", "").await, (200, String::new()));
}

#[tokio::test]
async fn a_stream_answers_before_its_request_has_ended() {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, Infallible>>(1);
    let body = HttpBody::from_stream(ReceiverStream::new(receiver));
    sender.send(Ok(Bytes::from_static(br#"{"ID":"1"#))).await.unwrap();
    let (gateway, _) = gateway();
    let rest = async {
        sender.send(Ok(Bytes::from_static(br#"1"}"#))).await.unwrap();
    };
    let request = Request::post("/v3/lease/keepalive").body(body).unwrap();
    let (response, ()) = tokio::join!(gateway.call(request), rest);
    let mut body = response.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, "{\"result\":{\"ID\":\"11\",\"TTL\":\"5\"}}\n");
    sender.send(Ok(Bytes::from_static(br#"{"ID":"99"}"#))).await.unwrap();
    let last = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(
        last,
        "{\"error\":{\"grpc_code\":14,\"http_code\":503,\"message\":\"etcdserver: no leader\",\"http_status\":\"Service Unavailable\"}}\n"
    );
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn a_stream_that_fails_at_once_has_a_status_that_says_so() {
    let (status, body) = post("/v3/lease/keepalive", r#"{"ID":"99"}"#).await;
    assert_eq!(status, 503);
    assert!(body.starts_with(r#"{"error":{"grpc_code":14,"#), "{body}");
    for json in ["bad", r#"{"ID":"x"}"#, r#"{"ID":"#] {
        let (status, body) = post("/v3/lease/keepalive", json).await;
        assert!(status == 400 && body.ends_with(r#""code":3}"#), "{json}: {status} {body}");
    }
}

#[tokio::test]
async fn a_stream_that_turns_to_nonsense_breaks_off_with_a_reason() {
    let (status, body) = post("/v3/lease/keepalive", r#"{"ID":"7"} {bad}"#).await;
    let lines: Vec<_> = body.lines().collect();
    assert_eq!((status, lines.len()), (200, 2), "{body}");
    assert!(lines[0].starts_with(r#"{"result":"#));
    assert!(lines[1].starts_with(r#"{"error":{"grpc_code":3,"#), "{body}");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_a_call() {
    let request = |timeout: &str| {
        let request = Request::post("/v3/kv/range").header("grpc-timeout", timeout);
        call(request.body(r#"{"key":"c2xvdw=="}"#.into()).unwrap())
    };
    let (status, _, body) = request("20m").await;
    assert_eq!(status, 504);
    assert_eq!(body, r#"{"error":"context deadline exceeded","message":"context deadline exceeded","code":4}"#);
    for bad in ["bogus", "5", "S", "-1S", "123456789S"] {
        let (status, _, body) = request(bad).await;
        assert_eq!(status, 400, "{bad}");
        assert!(body.contains(&format!("invalid grpc-timeout: {bad}")), "{body}");
    }
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_as_etcd_would() {
    let long = "A".repeat(Limits::default().json_bytes());
    let refusal =
        r#"{"error":"etcdserver: request is too large","message":"etcdserver: request is too large","code":3}"#;
    assert_eq!(post("/v3/kv/put", format!(r#"{{"key":"{long}"}}"#)).await, (400, refusal.to_owned()));
    assert_eq!(post("/v3/lease/keepalive", format!(r#"{{"ID":"{long}"}}"#)).await, (400, refusal.to_owned()));
}

#[tokio::test]
async fn what_comes_through_the_gateway_is_counted_like_anything_else() {
    let (gateway, metrics) = gateway();
    let request = Request::post("/v3/kv/range").body(HttpBody::from(r#"{"key":"Zm9v"}"#)).unwrap();
    gateway.call(request).await.into_body().collect().await.unwrap();
    let text = metrics.render();
    assert!(text.contains(r#"tenure_rpc_requests_total{rpc="etcdserverpb.KV/Range",code="OK"} 1"#), "{text}");
    assert!(text.contains(r#"tenure_rpc_received_bytes_total{rpc="etcdserverpb.KV/Range"} 10"#), "{text}");
}
