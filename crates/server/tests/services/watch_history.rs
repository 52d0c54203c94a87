//! Watches that start in the past, fall behind, or ask for too much at once.

use std::time::Duration;

use tenure_api::etcdserverpb::*;

use crate::harness::*;
use crate::watch::*;

#[tokio::test]
async fn history_is_told_before_news() {
    let server = Server::start().await;
    for value in ["1", "2", "3"] {
        server.put("a", value).await;
        server.put("b", value).await;
    }
    let mut watches = Watches::open(&server).await;
    let created = watches.opened(WatchCreateRequest { start_revision: 3, prev_kv: true, ..watch("a") }).await;
    assert_eq!(created.header.unwrap().revision, 7);
    let response = watches.next().await;
    assert_eq!(told(&response), ["put a 2 @4 was 1", "put a 3 @6 was 2"]);
    assert_eq!(response.header.unwrap().revision, 7, "the store's revision");
    server.put("a", "4").await;
    assert_eq!(told(&watches.next().await), ["put a 4 @8 was 3"]);
}

#[tokio::test]
async fn a_start_before_the_compaction_is_created_and_cancelled() {
    let server = Server::start().await;
    for value in ["1", "2", "3", "4"] {
        server.put("a", value).await;
    }
    server.compact(4).await;
    let mut watches = Watches::open(&server).await;
    watches.opened(WatchCreateRequest { start_revision: 3, watch_id: 9, ..watch("a") }).await;
    let cancelled = watches.next().await;
    assert!(cancelled.canceled && !cancelled.created && cancelled.cancel_reason.is_empty());
    assert_eq!((cancelled.watch_id, cancelled.compact_revision), (9, 4));
    assert_eq!(cancelled.header.unwrap().revision, 0, "etcd names none here");
    watches.opened(WatchCreateRequest { start_revision: 4, watch_id: 9, ..watch("a") }).await;
    assert_eq!(told(&watches.next().await), ["put a 3 @4", "put a 4 @5"]);
}

/// etcd 3.4.23 loses it.
#[tokio::test]
async fn a_delete_at_the_compacted_revision_is_told() {
    let server = Server::start().await;
    server.put("a", "1").await;
    server.delete("a").await;
    server.compact(3).await;
    let mut watches = Watches::open(&server).await;
    watches.opened(WatchCreateRequest { start_revision: 3, ..watch("a") }).await;
    assert_eq!(told(&watches.next().await), ["delete a @3"]);
}

#[tokio::test]
async fn long_histories_come_in_batches_of_whole_revisions() {
    let server = Server::start().await;
    let mut kv = server.kv();
    // 1,600 revisions of two events each for the first watch, one of them for the second.
    for number in 0..1600 {
        let ops = vec![put_op("a", number.to_string()), put_op("b", number.to_string())];
        kv.txn(TxnRequest { success: ops, ..Default::default() }).await.unwrap();
    }
    let mut watches = Watches::open(&server).await;
    watches.create(WatchCreateRequest { start_revision: 1, ..everything() }).await;
    watches.create(WatchCreateRequest { start_revision: 1, ..watch("b") }).await;
    let mut revisions = vec![Vec::new(); 2];
    while revisions[0].len() < 3200 || revisions[1].len() < 1600 {
        let response = watches.next().await;
        assert!(response.events.len() <= 1000);
        if response.created {
            continue;
        }
        let seen = &mut revisions[response.watch_id as usize];
        let before = seen.last().copied();
        seen.extend(response.events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision));
        assert!(before.is_none_or(|before| before < seen[seen.len() - response.events.len()]), "no revision is split");
        assert!(response.header.unwrap().revision >= *seen.last().unwrap());
    }
    assert_eq!(revisions[0], (2..1602).flat_map(|revision| [revision, revision]).collect::<Vec<_>>());
    assert_eq!(revisions[1], (2..1602).collect::<Vec<_>>());
    server.put("b", "new").await;
    for _ in 0..2 {
        assert_eq!(told(&watches.next().await), ["put b new @1602"]);
    }
}

#[tokio::test]
async fn progress_waits_for_watches_that_are_behind() {
    let server = Server::start().await;
    for number in 0..3000 {
        server.put("a", number.to_string()).await;
    }
    let mut watches = Watches::open(&server).await;
    watches.create(WatchCreateRequest { start_revision: 1, ..watch("a") }).await;
    watches.ask_progress().await;
    assert!(watches.next().await.created);
    let mut last = 0;
    loop {
        let response = watches.next().await;
        if response.watch_id == -1 {
            assert_eq!((last, response.header.unwrap().revision), (3001, 3001), "after all that came before it");
            return;
        }
        last = response.events.last().unwrap().kv.as_ref().unwrap().mod_revision;
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_misses_nothing_when_it_does() {
    let server = Server::start_with(|config| config.limits.watch_buffer_bytes = 64 * 1024).await;
    let mut watches = Watches::open(&server).await;
    for _ in 0..3 {
        watches.opened(everything()).await;
    }
    // Far more than the buffers of hub, stream and connection hold together.
    let value = vec![b'x'; 100_000];
    for number in 0..200 {
        server.put(format!("key{number}"), value.clone()).await;
    }
    let mut seen = [1; 3];
    while seen != [201; 3] {
        let response = watches.next().await;
        for event in &response.events {
            let revision = event.kv.as_ref().unwrap().mod_revision;
            let last = &mut seen[response.watch_id as usize];
            assert_eq!(revision, *last + 1, "in order, each once");
            *last = revision;
        }
    }
    server.put("a", "1").await;
    for _ in 0..3 {
        assert_eq!(told(&watches.next().await), ["put a 1 @202"]);
    }
}

#[tokio::test]
async fn a_watch_that_falls_behind_a_compaction_is_told() {
    let server = Server::start_with(|config| config.limits.watch_buffer_bytes = 64 * 1024).await;
    let mut watches = Watches::open(&server).await;
    watches.opened(everything()).await;
    let value = vec![b'x'; 100_000];
    for number in 0..200 {
        server.put(format!("key{number}"), value.clone()).await;
    }
    server.compact(201).await;
    let mut last = 1;
    loop {
        let response = watches.next().await;
        if response.canceled {
            assert_eq!(response.compact_revision, 201);
            assert!(last < 200, "it did fall behind");
            break;
        }
        for event in &response.events {
            assert_eq!(event.kv.as_ref().unwrap().mod_revision, last + 1);
            last += 1;
        }
    }
    server.put("a", "1").await;
    assert!(watches.is_silent().await);
}

#[tokio::test]
async fn a_large_revision_is_split_if_asked() {
    let server = Server::start().await;
    let put_all = || async {
        let ops = (0..14).map(|number| put_op(format!("key{number:02}"), vec![b'x'; 100_000])).collect();
        server.kv().txn(TxnRequest { success: ops, ..Default::default() }).await.unwrap();
    };
    put_all().await;
    let mut whole = Watches::open(&server).await;
    whole.opened(WatchCreateRequest { prev_kv: true, ..everything() }).await;
    let mut split = Watches::open(&server).await;
    split.opened(WatchCreateRequest { prev_kv: true, fragment: true, ..everything() }).await;
    put_all().await;

    let response = whole.next().await;
    assert_eq!((response.events.len(), response.fragment), (14, false));
    let first = split.next().await;
    assert_eq!((first.events.len(), first.fragment), (10, true), "below 2 MiB");
    let second = split.next().await;
    assert_eq!((second.events.len(), second.fragment), (4, false));
    assert_eq!(first.header, second.header);
    assert_eq!([first.events, second.events].concat(), response.events);
}

/// More than a network thread would want to convert by itself.
#[tokio::test]
async fn thousands_of_events_at_one_revision_come_in_one_response() {
    let server = Server::start().await;
    for first in (0..5000).step_by(100) {
        let ops = (first..first + 100).map(|number| put_op(format!("key{number:04}"), "")).collect();
        server.kv().txn(TxnRequest { success: ops, ..Default::default() }).await.unwrap();
    }
    let mut watches = Watches::open(&server).await;
    watches.opened(everything()).await;
    let delete = DeleteRangeRequest { key: "key".into(), range_end: "kez".into(), prev_kv: false };
    server.kv().delete_range(delete).await.unwrap();
    let response = watches.next().await;
    assert_eq!(response.events.len(), 5000);
    assert!(response.events.iter().all(|event| event.kv.as_ref().unwrap().mod_revision == 52));
    tokio::time::sleep(Duration::from_millis(10)).await;
    server.put("a", "1").await;
    assert_eq!(told(&watches.next().await), ["put a 1 @53"]);
}
