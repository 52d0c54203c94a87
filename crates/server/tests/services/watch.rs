use std::time::Duration;

use tenure_api::etcdserverpb::watch_create_request::FilterType;
use tenure_api::etcdserverpb::watch_request::RequestUnion;
use tenure_api::etcdserverpb::*;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::harness::*;

/// A client's stream of watches.
pub struct Watches {
    pub requests: Option<mpsc::Sender<WatchRequest>>,
    pub responses: Streaming<WatchResponse>,
}

impl Watches {
    pub async fn open(server: &Server) -> Watches {
        let (requests, receiver) = mpsc::channel(1000);
        let responses = server.watch().watch(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Watches { requests: Some(requests), responses }
    }

    pub async fn send(&self, request: RequestUnion) {
        let request = WatchRequest { request_union: Some(request) };
        self.requests.as_ref().unwrap().send(request).await.unwrap();
    }

    pub async fn create(&self, request: WatchCreateRequest) {
        self.send(RequestUnion::CreateRequest(request)).await;
    }

    pub async fn cancel(&self, watch_id: i64) {
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id })).await;
    }

    pub async fn ask_progress(&self) {
        self.send(RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
    }

    pub async fn next(&mut self) -> WatchResponse {
        let next = timeout(PATIENCE, self.responses.message()).await.expect("a response in time");
        let response = next.unwrap().expect("the stream goes on");
        let header = response.header.expect("every response has a header");
        assert_ne!((header.cluster_id, header.member_id, header.raft_term), (0, 0, 0));
        response
    }

    /// Opens a watch and reads its confirmation.
    pub async fn opened(&mut self, request: WatchCreateRequest) -> WatchResponse {
        self.create(request).await;
        let created = self.next().await;
        assert!(created.created && !created.canceled, "{:?}", told(&created));
        assert!(created.events.is_empty());
        created
    }

    pub async fn is_silent(&mut self) -> bool {
        timeout(Duration::from_millis(100), self.responses.message()).await.is_err()
    }
}

pub fn watch(key: &'static str) -> WatchCreateRequest {
    WatchCreateRequest { key: key.into(), ..Default::default() }
}

pub fn everything() -> WatchCreateRequest {
    WatchCreateRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() }
}

/// `put key value` or `delete key`, with the revision, and what was before.
pub fn told(response: &WatchResponse) -> Vec<String> {
    let describe = |event: &tenure_api::mvccpb::Event| {
        let kv = event.kv.as_ref().unwrap();
        let what = match event.r#type {
            0 => format!("put {} {}", text(&kv.key), text(&kv.value)),
            _ => format!("delete {}", text(&kv.key)),
        };
        let before = event.prev_kv.as_ref().map(|kv| format!(" was {}", text(&kv.value))).unwrap_or_default();
        format!("{what} @{}{before}", kv.mod_revision)
    };
    response.events.iter().map(describe).collect()
}

#[tokio::test]
async fn a_watch_sees_what_happens_to_its_keys() {
    let server = Server::start().await;
    let mut watches = Watches::open(&server).await;
    let created = watches.opened(watch("a")).await;
    assert_eq!((created.watch_id, created.header.unwrap().revision), (0, 1));
    server.put("b", "x").await;
    server.put("a", "1").await;
    let response = watches.next().await;
    assert_eq!(told(&response), ["put a 1 @3"]);
    assert_eq!((response.watch_id, response.header.unwrap().revision, response.fragment), (0, 3, false));
    server.delete("a").await;
    let response = watches.next().await;
    assert_eq!(told(&response), ["delete a @4"]);
    let kv = response.events[0].kv.clone().unwrap();
    let expected = tenure_api::mvccpb::KeyValue { key: "a".into(), mod_revision: 4, ..Default::default() };
    assert_eq!(kv, expected, "of a delete only key and revision");
    assert!(watches.is_silent().await);
}

#[tokio::test]
async fn ids_are_drawn_from_zero_past_those_that_were_chosen() {
    let server = Server::start().await;
    let mut watches = Watches::open(&server).await;
    let mut ids = Vec::new();
    for watch_id in [0, 1, 0, -3, 0] {
        ids.push(watches.opened(WatchCreateRequest { watch_id, ..watch("a") }).await.watch_id);
    }
    assert_eq!(ids, [0, 1, 2, -3, 3]);
    let mut others = Watches::open(&server).await;
    assert_eq!(others.opened(watch("a")).await.watch_id, 0, "each stream counts for itself");
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused_within_the_stream() {
    let server = Server::start().await;
    let mut watches = Watches::open(&server).await;
    watches.opened(WatchCreateRequest { watch_id: 7, ..watch("a") }).await;
    let empty = "mvcc: watcher range is empty";
    // The last of these is not what 3.4 does, but what its successors do.
    for (request, reason) in [
        (WatchCreateRequest { watch_id: 7, ..watch("a") }, "mvcc: duplicate watch ID provided on the WatchStream"),
        (WatchCreateRequest { range_end: "a".into(), ..watch("b") }, empty),
        (WatchCreateRequest { range_end: "b".into(), ..watch("b") }, empty),
        (
            WatchCreateRequest { start_revision: -1, ..watch("a") },
            "etcdserver: mvcc: required revision has been compacted",
        ),
    ] {
        watches.create(request).await;
        let response = watches.next().await;
        assert!(response.created && response.canceled, "{response:?}");
        assert_eq!((response.watch_id, response.cancel_reason.as_str()), (-1, reason));
        assert_eq!(response.compact_revision, 0);
        assert_eq!(response.header.unwrap().revision, 1);
    }
    server.put("a", "1").await;
    assert_eq!(watches.next().await.watch_id, 7, "the first watch lives on");
}

#[tokio::test]
async fn answers_come_in_the_order_of_the_requests() {
    let server = Server::start().await;
    let mut watches = Watches::open(&server).await;
    for _ in 0..50 {
        watches.create(watch("a")).await;
        watches.create(WatchCreateRequest { range_end: "a".into(), ..watch("b") }).await;
    }
    watches.cancel(0).await;
    watches.cancel(49).await;
    for number in 0..50 {
        let response = watches.next().await;
        assert!(response.created && response.watch_id == number, "{response:?}");
        let refused = watches.next().await;
        assert!(refused.created && refused.canceled && refused.watch_id == -1);
    }
    for id in [0, 49] {
        let response = watches.next().await;
        assert!(response.canceled && !response.created && response.watch_id == id, "{response:?}");
        assert!(response.cancel_reason.is_empty() && response.header.unwrap().revision == 1);
    }
}

#[tokio::test]
async fn a_cancelled_watch_is_silent_and_its_id_free_again() {
    let server = Server::start().await;
    let mut watches = Watches::open(&server).await;
    watches.opened(WatchCreateRequest { watch_id: 5, ..watch("a") }).await;
    watches.cancel(99).await;
    watches.cancel(5).await;
    let response = watches.next().await;
    assert!(response.canceled && response.watch_id == 5, "of an unknown id, not a word");
    server.put("a", "1").await;
    assert!(watches.is_silent().await);
    watches.opened(WatchCreateRequest { watch_id: 5, ..watch("b") }).await;
    server.put("a", "2").await;
    server.put("b", "3").await;
    assert_eq!(told(&watches.next().await), ["put b 3 @4"]);
}

#[tokio::test]
async fn filters_and_previous_versions_are_per_watch() {
    let server = Server::start().await;
    server.put("a", "0").await;
    let mut watches = Watches::open(&server).await;
    let filters = |filters: &[FilterType]| filters.iter().map(|filter| (*filter).into()).collect::<Vec<i32>>();
    for request in [
        WatchCreateRequest { prev_kv: true, ..watch("a") },
        WatchCreateRequest { filters: filters(&[FilterType::Noput]), ..watch("a") },
        WatchCreateRequest { filters: filters(&[FilterType::Nodelete]), ..watch("a") },
        WatchCreateRequest { filters: filters(&[FilterType::Noput, FilterType::Nodelete]), ..watch("a") },
    ] {
        watches.opened(request).await;
    }
    server.put("a", "1").await;
    server.delete("a").await;
    server.put("a", "2").await;
    let mut seen = vec![Vec::new(); 4];
    for _ in 0..6 {
        let response = watches.next().await;
        seen[response.watch_id as usize].extend(told(&response));
    }
    assert_eq!(seen[0], ["put a 1 @3 was 0", "delete a @4 was 1", "put a 2 @5"]);
    assert_eq!(seen[1], ["delete a @4"]);
    assert_eq!(seen[2], ["put a 1 @3", "put a 2 @5"]);
    assert_eq!(seen[3], [""; 0]);
    assert!(watches.is_silent().await);
}

#[tokio::test]
async fn all_of_a_revision_comes_in_one_response() {
    let server = Server::start().await;
    let mut watches = Watches::open(&server).await;
    watches.opened(everything()).await;
    let ops = vec![put_op("b", "2"), put_op("a", "1"), delete_op("none")];
    server.kv().txn(TxnRequest { success: ops, ..Default::default() }).await.unwrap();
    assert_eq!(told(&watches.next().await), ["put b 2 @2", "put a 1 @2"]);
    server
        .kv()
        .delete_range(DeleteRangeRequest { key: "a".into(), range_end: "c".into(), ..Default::default() })
        .await
        .unwrap();
    assert_eq!(told(&watches.next().await), ["delete a @3", "delete b @3"]);
}

#[tokio::test]
async fn an_empty_key_is_the_first_of_all() {
    let server = Server::start().await;
    let mut watches = Watches::open(&server).await;
    watches.opened(WatchCreateRequest { range_end: "\0".into(), ..Default::default() }).await;
    server.put("anything", "v").await;
    assert_eq!(told(&watches.next().await), ["put anything v @2"]);
}

#[tokio::test]
async fn progress_is_told_on_request() {
    let server = Server::start().await;
    let mut watches = Watches::open(&server).await;
    watches.ask_progress().await;
    let response = watches.next().await;
    assert_eq!((response.watch_id, response.header.unwrap().revision), (-1, 1), "with no watch at all");
    watches.opened(watch("a")).await;
    server.put("b", "1").await;
    watches.ask_progress().await;
    let response = watches.next().await;
    assert_eq!((response.watch_id, response.header.unwrap().revision), (-1, 2));
    assert!(!response.created && !response.canceled && response.events.is_empty());
}

#[tokio::test]
async fn an_idle_watch_is_told_the_revision_if_it_asked_for_that() {
    let server = Server::start_with(|config| config.watch_progress_interval = Duration::from_secs(1)).await;
    let mut watches = Watches::open(&server).await;
    watches.opened(watch("other")).await;
    watches.opened(WatchCreateRequest { progress_notify: true, ..watch("a") }).await;
    server.put("b", "1").await;
    for _ in 0..2 {
        let response = watches.next().await;
        assert_eq!((response.watch_id, response.header.unwrap().revision), (1, 2));
        assert!(response.events.is_empty());
    }
}

#[tokio::test]
async fn a_watch_for_the_future_waits_for_it() {
    let server = Server::start().await;
    let mut watches = Watches::open(&server).await;
    let created = watches.opened(WatchCreateRequest { start_revision: 4, ..watch("a") }).await;
    assert_eq!(created.header.unwrap().revision, 1);
    server.put("a", "2").await;
    server.put("a", "3").await;
    assert!(watches.is_silent().await);
    server.put("a", "4").await;
    assert_eq!(told(&watches.next().await), ["put a 4 @4"]);
}

#[tokio::test]
async fn a_client_that_has_asked_for_everything_still_listens() {
    let server = Server::start().await;
    let mut watches = Watches::open(&server).await;
    watches.opened(watch("a")).await;
    watches.requests = None;
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.put("a", "1").await;
    assert_eq!(told(&watches.next().await), ["put a 1 @2"]);
}
