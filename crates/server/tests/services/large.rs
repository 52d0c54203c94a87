//! Answers that are written in chunks, on other threads.

use std::time::{Duration, Instant};

use tenure_api::etcdserverpb::response_op::Response;
use tenure_api::etcdserverpb::*;

use crate::harness::*;

const KEYS: usize = 20_000;

async fn fill(server: &Server, value: &[u8]) {
    let mut kv = server.kv();
    for first in (0..KEYS).step_by(100) {
        let ops = (first..first + 100).map(|number| put_op(format!("key/{number:06}"), value.to_vec())).collect();
        kv.txn(TxnRequest { success: ops, ..Default::default() }).await.unwrap();
    }
}

fn all() -> RangeRequest {
    RangeRequest { key: "key/".into(), range_end: "key0".into(), ..Default::default() }
}

fn check(response: &RangeResponse, value: &[u8]) {
    assert_eq!(response.count, KEYS as i64);
    assert_eq!(response.kvs.len(), KEYS);
    for (number, kv) in response.kvs.iter().enumerate() {
        assert_eq!(text(&kv.key), format!("key/{number:06}"));
        assert_eq!(kv.value, value);
        assert_eq!((kv.version, kv.create_revision), (1, number as i64 / 100 + 2));
    }
}

#[tokio::test]
async fn many_keys_come_whole_by_range_txn_and_delete() {
    let server = Server::start().await;
    let value = [7; 500];
    fill(&server, &value).await;
    let mut kv = server.kv();

    let response = kv.range(all()).await.unwrap().into_inner();
    assert_eq!(response.header.unwrap().revision, KEYS as i64 / 100 + 1);
    check(&response, &value);
    let keys_only = kv.range(RangeRequest { keys_only: true, ..all() }).await.unwrap().into_inner();
    check(&keys_only, b"");

    let read = RequestOp { request: Some(request_op::Request::RequestRange(all())) };
    for extra in [range_op("nothing"), put_op("other", "v")] {
        let request = TxnRequest { success: vec![read.clone(), extra], ..Default::default() };
        let response = kv.txn(request).await.unwrap().into_inner();
        assert!(response.succeeded && response.responses.len() == 2);
        let Some(Response::ResponseRange(range)) = &response.responses[0].response else { panic!("a range") };
        check(range, &value);
    }

    let delete = DeleteRangeRequest { key: "key/".into(), range_end: "key0".into(), prev_kv: true };
    let deleted = kv.delete_range(delete).await.unwrap().into_inner();
    assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (KEYS as i64, KEYS));
    assert_eq!(kv.range(all()).await.unwrap().into_inner().count, 0);
}

#[tokio::test]
async fn few_keys_with_large_values_come_whole() {
    let server = Server::start().await;
    for number in 0..10 {
        server.put(format!("large/{number}"), vec![number; 1_000_000]).await;
    }
    let request = RangeRequest { key: "large/".into(), range_end: "large0".into(), ..Default::default() };
    let response = server.kv().range(request).await.unwrap().into_inner();
    for (number, kv) in response.kvs.iter().enumerate() {
        assert!(kv.value.len() == 1_000_000 && kv.value.iter().all(|byte| *byte == number as u8));
    }
    assert_eq!(response.kvs.len(), 10);
}

/// All on one network thread: a put may wait for a chunk, but never for an answer.
#[tokio::test]
async fn puts_go_on_while_large_answers_are_written() {
    let server = Server::start().await;
    let value = [7; 1000];
    fill(&server, &value).await;
    let address = server.address;
    // Read on a thread of its own, so that what the reader does is not taken for the server's doing.
    let reader = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut kv = connect(address).await;
            let started = Instant::now();
            for _ in 0..5 {
                check(&kv.range(all()).await.unwrap().into_inner(), &[7; 1000]);
            }
            started.elapsed() / 5
        })
    });
    let mut slowest = Duration::ZERO;
    let mut puts = 0;
    while !reader.is_finished() {
        let started = Instant::now();
        server.put("other", "v").await;
        slowest = slowest.max(started.elapsed());
        puts += 1;
    }
    let range = reader.join().unwrap();
    println!("{puts} puts, the slowest took {slowest:?}; a range took {range:?}");
    assert!(puts > 5, "puts do not wait for ranges");
}
