//! kill −9 under load, again and again: what was acknowledged is there, the revision never falls, and
//! start-up needs no help.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::Server;
use tenure_api::etcdserverpb::kv_client::KvClient;
use tenure_api::etcdserverpb::lease_client::LeaseClient;
use tenure_api::etcdserverpb::{LeaseGrantRequest, PutRequest, RangeRequest};
use tenure_api::v3lockpb::lock_client::LockClient;
use tenure_api::v3lockpb::{LockRequest, UnlockRequest};
use tonic::transport::Channel;

const ROUNDS: usize = 50;
const WRITERS: usize = 8;
const KEYS_PER_WRITER: u64 = 16;

/// What the writers know: of every key the last value acknowledged and the last one tried.
#[derive(Default)]
struct Known {
    acknowledged: BTreeMap<String, u64>,
    tried: BTreeMap<String, u64>,
    /// Entry keys of locks that were granted and whose release was not asked for.
    held: BTreeSet<Vec<u8>>,
    revision: i64,
}

async fn write(channel: Channel, writer: usize, mut counter: u64, known: Arc<Mutex<Known>>) {
    let mut client = KvClient::new(channel);
    loop {
        counter += 1;
        let key = format!("kill/{writer}/{}", counter % KEYS_PER_WRITER);
        known.lock().unwrap().tried.insert(key.clone(), counter);
        let request = PutRequest { key: key.clone().into(), value: counter.to_string().into(), ..Default::default() };
        let Ok(response) = client.put(request).await else { return };
        let mut known = known.lock().unwrap();
        known.acknowledged.insert(key, counter);
        let revision = response.into_inner().header.unwrap().revision;
        known.revision = known.revision.max(revision);
    }
}

async fn lock(channel: Channel, round: usize, known: Arc<Mutex<Known>>) {
    let mut leases = LeaseClient::new(channel.clone());
    let mut locks = LockClient::new(channel);
    for number in 0u64.. {
        let Ok(lease) = leases.lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await else { return };
        let name = format!("lock/{round}/{number}");
        let request = LockRequest { name: name.into(), lease: lease.into_inner().id };
        let Ok(response) = locks.lock(request).await else { return };
        let response = response.into_inner();
        {
            let mut known = known.lock().unwrap();
            known.revision = known.revision.max(response.header.unwrap().revision);
            if number % 2 == 0 {
                known.held.insert(response.key.to_vec());
                continue;
            }
        }
        if locks.unlock(UnlockRequest { key: response.key }).await.is_err() {
            return;
        }
    }
}

async fn check(server: &Server, known: &Known) {
    let mut client = KvClient::new(server.channel().await);
    let mut last = 0;
    for (key, acknowledged) in &known.acknowledged {
        let request = RangeRequest { key: key.clone().into(), ..Default::default() };
        let response = client.range(request).await.expect("a read after a restart").into_inner();
        last = response.header.unwrap().revision;
        let kv = response.kvs.first().unwrap_or_else(|| panic!("{key} was acknowledged and is gone"));
        let value: u64 = std::str::from_utf8(&kv.value).unwrap().parse().unwrap();
        assert!(value >= *acknowledged, "{key}: acknowledged {acknowledged}, found {value}");
        assert!(value <= known.tried[key], "{key}: found {value}, which was never written");
    }
    assert!(last >= known.revision, "the revision fell from {} to {last}", known.revision);
    for key in &known.held {
        let request = RangeRequest { key: key.clone().into(), ..Default::default() };
        let response = client.range(request).await.expect("a read after a restart").into_inner();
        assert_eq!(response.kvs.len(), 1, "the lock {} was granted and is gone", String::from_utf8_lossy(key));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_and_locks_survive_fifty_kills() {
    let directory = tempfile::tempdir().unwrap();
    let known = Arc::new(Mutex::new(Known::default()));
    let mut server = Server::start_in(directory.path());
    for round in 0..ROUNDS {
        let mut tasks = Vec::new();
        for writer in 0..WRITERS {
            let counter = {
                let known = known.lock().unwrap();
                let prefix = format!("kill/{writer}/");
                let tried = known.tried.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
                tried.map(|(_, value)| *value).max().unwrap_or(0)
            };
            tasks.push(tokio::spawn(write(server.channel().await, writer, counter, known.clone())));
        }
        tasks.push(tokio::spawn(lock(server.channel().await, round, known.clone())));
        // Not the same moment every time: the load decides what is under way.
        tokio::time::sleep(Duration::from_millis(30 + (round as u64 * 37) % 120)).await;
        server.kill();
        for task in tasks {
            task.await.unwrap();
        }
        server = Server::start_in(directory.path());
        let known = known.lock().unwrap();
        // The lock is held across the check because nothing writes now.
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(check(&server, &known)));
    }
    let known = known.lock().unwrap();
    assert!(known.acknowledged.len() > WRITERS, "the load did not run");
    assert!(!known.held.is_empty(), "no lock was granted");
}
