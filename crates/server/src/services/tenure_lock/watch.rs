//! Watching locks: who holds them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tenure_api::tenure::v1::watch_request::Request as Asked;
use tenure_api::tenure::v1::{Header, LockEvent, WatchCancel, WatchCreate, WatchRequest, WatchResponse, lock_event};
use tenure_replica::{Input, LockNotice, LockWatchRequest, WatchId};
use tonic::{Status, Streaming};

use super::{describe, failed, request};
use crate::calls::{OpenSession, SessionMail};
use crate::services::Shared;
use crate::services::errors;
use crate::services::produced::Emitter;
use crate::services::watching::Watched;

const FELL_BEHIND: &str = "the watch fell behind: describe the lock and watch again";
const FORGOTTEN: &str = "what happened then is forgotten: describe the lock and watch on from its revision";

struct Filter {
    prev: bool,
    puts: bool,
    deletes: bool,
    _watched: Option<Watched>,
}

pub async fn serve(
    shared: Arc<Shared>,
    mut requests: Streaming<WatchRequest>,
    address: Option<SocketAddr>,
    mut emitter: Emitter<Result<WatchResponse, Status>>,
) {
    let stream = match shared.member.open_session() {
        Ok(stream) => stream,
        Err(failure) => return emitter.emit(Err(failed(failure))).await,
    };
    let mut watches = Watches { stream, filters: HashMap::new(), address, shared };
    loop {
        let response = tokio::select! {
            biased;
            mail = watches.stream.next() => match mail {
                Some(SessionMail::LockWatch(notice)) => watches.hear(notice),
                Some(_) => None,
                None => return emitter.emit(Err(errors::STOPPED.into())).await,
            },
            asked = requests.message() => match asked {
                Ok(Some(WatchRequest { request: Some(asked) })) => match watches.take(asked) {
                    Ok(response) => response,
                    Err(status) => return emitter.emit(Err(status)).await,
                },
                Ok(Some(_)) => return emitter.emit(Err(Status::invalid_argument("an empty request"))).await,
                Ok(None) | Err(_) => return,
            },
        };
        if let Some(response) = response {
            emitter.emit(Ok(response)).await;
        }
    }
}

struct Watches {
    stream: OpenSession,
    filters: HashMap<WatchId, Filter>,
    /// Where the client is.
    address: Option<SocketAddr>,
    shared: Arc<Shared>,
}

impl Watches {
    fn take(&mut self, asked: Asked) -> Result<Option<WatchResponse>, Status> {
        match asked {
            Asked::Create(WatchCreate { key, prefix, start_revision, watch_id, prev, no_put, no_delete }) => {
                // Only to tell them apart: a negative one is as good as any.
                let watch = watch_id as WatchId;
                // Everything begins with nothing.
                let name = if prefix && key.is_empty() { key.into() } else { request::name(key)? };
                let refused = |reason: &str| WatchResponse {
                    header: self.header(),
                    watch_id,
                    created: true,
                    canceled: true,
                    cancel_reason: reason.to_owned(),
                    ..WatchResponse::default()
                };
                if self.filters.contains_key(&watch) {
                    return Ok(Some(refused("this stream has a watch of that id")));
                }
                if start_revision < 0 {
                    return Ok(Some(refused("a start revision is not negative")));
                }
                let watched = Watched::from(self.address, &self.shared.process_wide);
                let filter = Filter { prev, puts: !no_put, deletes: !no_delete, _watched: watched };
                self.filters.insert(watch, filter);
                self.bring(LockWatchRequest::Create { watch, name, prefix, start: start_revision });
                Ok(None)
            }
            Asked::Cancel(WatchCancel { watch_id }) => {
                if self.filters.remove(&(watch_id as WatchId)).is_none() {
                    return Ok(None);
                }
                self.bring(LockWatchRequest::Cancel { watch: watch_id as WatchId });
                Ok(Some(WatchResponse { header: self.header(), watch_id, canceled: true, ..WatchResponse::default() }))
            }
        }
    }

    fn hear(&mut self, notice: LockNotice) -> Option<WatchResponse> {
        match notice {
            LockNotice::Created { watch, revision, term } => {
                let header = self.header_at(revision, term);
                Some(WatchResponse { header, watch_id: watch as i64, created: true, ..WatchResponse::default() })
            }
            LockNotice::Events { watch, events, revision, term } => {
                self.bring(LockWatchRequest::Drained { events: events.len() });
                let filter = self.filters.get(&watch)?;
                let events: Vec<_> = events.iter().filter_map(|event| told(event, filter)).collect();
                let header = self.header_at(revision, term);
                (!events.is_empty()).then(|| WatchResponse {
                    header,
                    watch_id: watch as i64,
                    events,
                    ..WatchResponse::default()
                })
            }
            LockNotice::Forgotten { watch, oldest, revision, term } => {
                self.filters.remove(&watch)?;
                Some(WatchResponse {
                    header: self.header_at(revision, term),
                    watch_id: watch as i64,
                    created: true,
                    canceled: true,
                    cancel_reason: FORGOTTEN.to_owned(),
                    compact_revision: oldest,
                    ..WatchResponse::default()
                })
            }
            LockNotice::FellBehind { watch, revision, term } => {
                self.filters.remove(&watch)?;
                Some(WatchResponse {
                    header: self.header_at(revision, term),
                    watch_id: watch as i64,
                    canceled: true,
                    cancel_reason: FELL_BEHIND.to_owned(),
                    compact_revision: revision + 1,
                    ..WatchResponse::default()
                })
            }
        }
    }

    fn bring(&mut self, request: LockWatchRequest) {
        let stream = self.stream.stream;
        self.stream.bring(Input::LockWatch { stream, request });
    }

    fn header(&self) -> Option<Header> {
        let status = self.shared.member.status();
        self.header_at(status.revision, status.term)
    }

    fn header_at(&self, revision: i64, raft_term: u64) -> Option<Header> {
        super::header_at(&self.shared, revision, raft_term)
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.bring(LockWatchRequest::Close);
    }
}

fn told(event: &tenure_replica::LockEvent, filter: &Filter) -> Option<LockEvent> {
    let (kind, wanted) = match event.holder {
        Some(_) => (lock_event::Type::Put, filter.puts),
        None => (lock_event::Type::Delete, filter.deletes),
    };
    wanted.then(|| LockEvent {
        r#type: kind.into(),
        name: describe::text(&event.name),
        revision: event.revision,
        holder: event.holder.as_ref().map(|entry| describe::entry(entry)),
        prev: event.ended.as_ref().filter(|_| filter.prev).map(|ended| describe::entry(ended)),
    })
}
