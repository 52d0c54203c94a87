//! The session's stream of the fake: one task for each lock that waits.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_api::tenure::v1::session_request::Request as Ask;
use tenure_api::tenure::v1::session_response::Response as Told;
use tenure_api::tenure::v1::*;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tonic::{Code, Status, Streaming};

use super::Fake;

type Replies = UnboundedSender<Result<SessionResponse, Status>>;

struct Waiting {
    name: String,
    task: AbortHandle,
}

pub async fn serve(fake: Fake, mut requests: Streaming<SessionRequest>, replies: Replies) {
    let mut lease = 0;
    let mut waiting: BTreeMap<u64, Waiting> = BTreeMap::new();
    while let Ok(Some(SessionRequest { number, request: Some(ask) })) = requests.message().await {
        let tell = |told| drop(replies.send(Ok(SessionResponse { number, response: Some(told) })));
        match ask {
            Ask::Open(open) => {
                lease = open.session_id;
                fake.change(|state| state.opened += 1);
                match renew(&fake, lease) {
                    Some(Ok(ttl_ms)) => tell(Told::Opened(Box::new(SessionOpened {
                        held: held(&fake, lease),
                        ..opened(lease, ttl_ms)
                    }))),
                    Some(Err(status)) => drop(replies.send(Err(status))),
                    None => {}
                }
            }
            Ask::Renew(_) => match renew(&fake, lease) {
                Some(Ok(ttl_ms)) => tell(Told::Renewed(SessionRenewed { ttl_ms })),
                Some(Err(status)) => drop(replies.send(Err(status))),
                None => {}
            },
            Ask::Lock(lock) => {
                let name = lock.name.clone();
                let task = tokio::spawn(wait(fake.clone(), lease, number, lock, replies.clone())).abort_handle();
                waiting.insert(number, Waiting { name, task });
            }
            Ask::Cancel(cancel) => {
                if let Some(Waiting { name, task }) = waiting.remove(&cancel.number)
                    && !task.is_finished()
                {
                    task.abort();
                    fake.change(|state| state.leave(&name, lease));
                    let refused = refused(Code::Cancelled, "cancelled");
                    let told = SessionResponse { number: cancel.number, response: Some(refused) };
                    let _ = replies.send(Ok(told));
                }
            }
            Ask::Unlock(_) if fake.read(|state| state.refused_unlock.is_some()) => {
                let (code, message) = fake.change(|state| state.refused_unlock.take()).unwrap();
                tell(refused(code, message));
            }
            Ask::Unlock(unlock) if fake.read(|state| state.lost_unlock_answers > 0) => {
                fake.change(|state| {
                    state.lost_unlock_answers -= 1;
                    state.unlock(&unlock.name, unlock.fencing_token)
                })
                .unwrap();
                drop(replies.send(Err(Status::unavailable("the answer is lost"))));
            }
            Ask::Unlock(unlock) => match fake.change(|state| state.unlock(&unlock.name, unlock.fencing_token)) {
                Ok(released) => tell(Told::Unlocked(SessionUnlocked { released })),
                Err(status) => tell(refused(status.code(), status.message())),
            },
            Ask::Close(_) => {
                fake.end_lease(lease);
                tell(Told::Closed(SessionClosed {}));
                break;
            }
        }
    }
    // A stream that breaks gives no place up.
    waiting.into_values().for_each(|waiting| waiting.task.abort());
}

/// None: not a word.
fn renew(fake: &Fake, lease: i64) -> Option<Result<i64, Status>> {
    fake.change(|state| {
        state.renewals += 1;
        let not_found = || Status::not_found("etcdserver: requested lease not found");
        (!state.silent).then(|| state.leases.get(&lease).copied().ok_or_else(not_found))
    })
}

fn opened(session_id: i64, ttl_ms: i64) -> SessionOpened {
    SessionOpened { session_id, ttl_ms, ..SessionOpened::default() }
}

fn held(fake: &Fake, lease: i64) -> Vec<SessionHeld> {
    fake.read(|state| {
        let names = state.queues.keys().filter_map(|name| Some((name, state.granted(name, lease)?)));
        names.map(|(name, token)| SessionHeld { name: name.clone(), fencing_token: token }).collect()
    })
}

fn refused(code: Code, message: &str) -> Told {
    Told::Refused(Box::new(SessionRefused {
        code: code.into(),
        message: message.to_owned(),
        ..SessionRefused::default()
    }))
}

async fn wait(fake: Fake, lease: i64, number: u64, lock: SessionLock, replies: Replies) {
    let tell = |response| drop(replies.send(Ok(SessionResponse { number, response: Some(response) })));
    if fake.read(|state| state.deadlock) {
        return tell(refused(Code::FailedPrecondition, "deadlock: a waits for b, b waits for a"));
    }
    if fake.read(|state| !state.leases.contains_key(&lease)) {
        return tell(refused(Code::NotFound, "etcdserver: requested lease not found"));
    }
    let is_lost = fake.change(|state| {
        state.join(&lock.name, lease, &lock.holder_id);
        let is_lost = state.lost_lock_answers > 0;
        state.lost_lock_answers -= u32::from(is_lost);
        is_lost
    });
    if is_lost {
        return drop(replies.send(Err(Status::unavailable("the answer is lost"))));
    }
    let mut changed = fake.changed.subscribe();
    let granted = async {
        loop {
            if let Some(token) = fake.read(|state| state.granted(&lock.name, lease)) {
                return token;
            }
            changed.changed().await.unwrap();
        }
    };
    let granted = match lock.timeout_ms {
        None => Some(granted.await),
        Some(ms) => tokio::time::timeout(Duration::from_millis(ms.max(0) as u64), granted).await.ok(),
    };
    match granted {
        Some(fencing_token) => tell(Told::Granted(SessionGranted { fencing_token, ..SessionGranted::default() })),
        None => {
            let first = fake.change(|state| {
                if !state.leaves_late {
                    state.leave(&lock.name, lease);
                }
                state.queues[&lock.name].front().cloned()
            });
            let holder = first.filter(|_| lock.timeout_ms == Some(0)).map(|first| Holder {
                holder_id: first.holder,
                granted_unix_ms: 1_000,
                ..Holder::default()
            });
            let (code, message) = match holder {
                Some(_) => (Code::Aborted, "busy"),
                None => (Code::DeadlineExceeded, "not granted in time"),
            };
            let refused = SessionRefused { code: code.into(), message: message.to_owned(), holder, waiting: 0 };
            tell(Told::Refused(Box::new(refused)));
        }
    }
}
