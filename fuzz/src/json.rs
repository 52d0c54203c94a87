//! JSON: the bodies of the gateway, for every path, and the messages of the WebSocket.

use tenure_server::outside;

/// The first byte chooses the path; the highest value is the WebSocket.
pub fn run(bytes: &[u8]) {
    let Some((path, json)) = bytes.split_first() else { return };
    match *path {
        u8::MAX => outside::websocket(json),
        path => outside::gateway(path, json),
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![
        b"\xff{\"commandType\":1,\"key\":\"job\",\"clientId\":\"ci-7\",\"ttl\":10000,\"requestId\":\"a\"}".to_vec(),
        b"\xff{\"commandType\":2,\"key\":\"job\",\"clientId\":\"ci-7\",\"requestId\":7,\"fencingToken\":{\"key\":\"job\",\"value\":4}}".to_vec(),
    ];
    let bodies = [
        &br#"{"key":"Zm9v","value":"YmFy","lease":"7","prev_kv":true}"#[..],
        br#"{"key":"Zm9v","rangeEnd":"Zm9w","limit":3,"sort_order":"DESCEND"}"#,
        br#"{"compare":[{"key":"Zm9v","result":"EQUAL","target":"VERSION","version":"1"}],"success":[{"request_put":{"key":"Zm9v","value":"YmFy"}}]}"#,
        br#"{"create_request":{"key":"Zm9v","start_revision":"3","filters":["NOPUT"]}} {"cancel_request":{"watch_id":1}}"#,
        br#"{"TTL":"30","ID":"7"}"#,
    ];
    for path in 0..outside::GATEWAY_PATHS {
        seeds.push([&[path as u8], bodies[path % bodies.len()]].concat());
    }
    seeds
}
