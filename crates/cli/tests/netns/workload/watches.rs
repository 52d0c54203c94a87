//! Watches of everything from the first revision on: with the client library, which finds another member when one is
//! lost, and at each member as the server tells it, where nothing would hide a repetition.

use std::time::Duration;

use tenure_api::etcdserverpb::watch_client::WatchClient;
use tenure_api::etcdserverpb::watch_request::RequestUnion;
use tenure_api::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use tenure_api::mvccpb;
use tenure_api::mvccpb::event::EventType;
use tenure_client::{EventKind, Keys, Watch};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

use super::{Notes, connect};
use crate::history::{Change, Revision, Watched};
use crate::support::PATIENCE;

/// East with the library, west at each member.
pub async fn watch(side: &str, notes: &Notes, addresses: &[String]) {
    if side == "east" {
        let watched = anywhere(notes, &addresses.join(",")).await;
        return notes.note(|history| history.watched.push(watched));
    }
    let (first, second, third) =
        tokio::join!(at(notes, &addresses[0]), at(notes, &addresses[1]), at(notes, &addresses[2]));
    notes.note(|history| history.watched.extend([first, second, third]));
}

async fn anywhere(notes: &Notes, endpoints: &str) -> Watched {
    let client = connect(endpoints).await;
    let mut watched = Watched { by: "with the library".to_owned(), changes: Vec::new() };
    let mut watcher = client.watch(Watch::keys(Keys::all()).start(1)).await.expect("all members are there");
    let mut end = End::default();
    while !notes.is_last(last(&watched)) {
        // An answer that is late is late for the library, too: it must find its way by itself.
        match tokio::time::timeout(Duration::from_millis(200), watcher.next()).await {
            Ok(events) => {
                let events = events.expect("nothing was compacted").events;
                watched.changes.extend(events.into_iter().map(|event| Change {
                    revision: event.pair.mod_revision,
                    key: String::from_utf8_lossy(&event.pair.key).into_owned(),
                    value: (event.kind == EventKind::Put).then(|| event.pair.value.to_vec()),
                }));
            }
            Err(_) => end.look(notes, &watched).await,
        }
    }
    watched
}

async fn at(notes: &Notes, address: &str) -> Watched {
    let mut watched = Watched { by: format!("at {address}"), changes: Vec::new() };
    let mut end = End::default();
    while !notes.is_last(last(&watched)) {
        if let Ok(mut stream) = Stream::open(address, last(&watched) + 1).await {
            while !notes.is_last(last(&watched)) {
                match tokio::time::timeout(Duration::from_millis(200), stream.next()).await {
                    Ok(Ok(changes)) => watched.changes.extend(changes),
                    Ok(Err(_)) => break,
                    Err(_) => end.look(notes, &watched).await,
                }
            }
        }
        end.look(notes, &watched).await;
    }
    watched
}

fn last(watched: &Watched) -> Revision {
    watched.changes.last().map_or(0, |change| change.revision)
}

/// When all is healed and a watch still shows nothing, it has gone silent.
#[derive(Default)]
struct End {
    waited_since: Option<tokio::time::Instant>,
}

impl End {
    async fn look(&mut self, notes: &Notes, watched: &Watched) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if notes.is_last(Revision::MAX) {
            let since = *self.waited_since.get_or_insert_with(tokio::time::Instant::now);
            assert!(since.elapsed() < PATIENCE, "the watch {} has stopped at {}", watched.by, last(watched));
        }
    }
}

/// All changes up to that revision, as one member tells them.
pub async fn everything(address: &str, revision: Revision) -> Vec<Change> {
    let mut stream = Stream::open(address, 1).await.expect("a healed member serves watches");
    let mut changes: Vec<Change> = Vec::new();
    while changes.last().is_none_or(|change| change.revision < revision) {
        changes.extend(stream.next().await.expect("a healed member serves watches"));
    }
    changes
}

/// A watch as the server speaks it.
struct Stream {
    /// Kept so that the server does not see the end of our requests.
    _requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl Stream {
    async fn open(address: &str, start_revision: Revision) -> Result<Stream, Status> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let endpoint = endpoint
            .connect_timeout(Duration::from_secs(1))
            .http2_keep_alive_interval(Duration::from_secs(1))
            .keep_alive_timeout(Duration::from_secs(2))
            .keep_alive_while_idle(true);
        let channel = endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let (key, range_end) = (vec![0].into(), vec![0].into());
        let create = WatchCreateRequest { key, range_end, start_revision, ..WatchCreateRequest::default() };
        let (requests, outgoing) = mpsc::channel(1);
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        requests.try_send(create).expect("a new channel has room for one");
        let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
        let responses = client.watch(ReceiverStream::new(outgoing)).await?.into_inner();
        Ok(Stream { _requests: requests, responses })
    }

    async fn next(&mut self) -> Result<Vec<Change>, Status> {
        let response = self.responses.message().await?.ok_or_else(|| Status::unavailable("it has ended"))?;
        assert!(!response.canceled && response.compact_revision == 0, "nothing was compacted: {response:?}");
        Ok(response.events.into_iter().map(change).collect())
    }
}

fn change(event: mvccpb::Event) -> Change {
    let is_put = event.r#type() == EventType::Put;
    let pair = event.kv.expect("an event has its key");
    Change {
        revision: pair.mod_revision,
        key: String::from_utf8_lossy(&pair.key).into_owned(),
        value: is_put.then(|| pair.value.to_vec()),
    }
}
