//! Following an election: the current leader, every value that it proclaims, and each leader after it.
//!
//! The observer looks at the state, tells who leads, and then watches the leader's key alone from the
//! very next revision on: candidates that come and go behind it wake nobody. When that key is
//! deleted it looks again. With no leader it watches the whole election until an entry appears.
//! Every watch starts where the last look ended, so nothing is missed in between.
//!
//! etcd's service and Tenure's own observe alike; each tells what it sees in its own [`Words`].

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tenure_api::mvccpb::event::EventType;
use tenure_api::mvccpb::{Event, KeyValue};
use tenure_machine::{Keys, LockEntry, Revision, SharedBytes, View, lock};
use tenure_replica::{Consistency, Failure, Notice};
use tonic::Status;

use super::leader::LeaderLoss;
use super::produced::Emitter;
use super::watch::interest::{Batch, Interest};
use super::{Shared, answer, election, errors};
use crate::member::WatchStream;

pub async fn observe<T>(
    shared: Arc<Shared>,
    name: Bytes,
    words: Words<T>,
    mut leader_loss: LeaderLoss,
    mut emitter: Emitter<Result<T, Status>>,
) {
    let failed = tokio::select! {
        Err(failed) = follow(&shared, &name, &words, &mut emitter) => failed,
        () = leader_loss.happened() => errors::NO_LEADER.into(),
    };
    emitter.emit(Err(failed)).await;
}

/// How a service says things.
pub struct Words<T> {
    pub leading: fn(&Shared, &Leading) -> T,
    pub failed: fn(Failure) -> Status,
}

enum Never {}

/// A leader with the moment of which its header speaks.
pub struct Leading {
    pub kv: KeyValue,
    /// What is recorded of it, and whose lease it has; None if it had left again before it was looked at.
    pub entry: Option<(Arc<LockEntry>, SharedBytes)>,
    pub revision: Revision,
    pub term: u64,
}

/// Returns only when it can go on no longer.
async fn follow<T>(
    shared: &Shared,
    name: &Bytes,
    words: &Words<T>,
    emitter: &mut Emitter<Result<T, Status>>,
) -> Result<Never, Status> {
    loop {
        let Some(mut leading) = find(shared, name, words.failed).await? else { continue };
        let mut changes = Changes::start(shared, Keys::One(leading.kv.key.clone()), leading.revision + 1);
        loop {
            emitter.emit(Ok((words.leading)(shared, &leading))).await;
            match changes.next().await? {
                Change::Put { kv, term } => leading = Leading { revision: kv.mod_revision, kv, term, ..leading },
                // It leads no longer, or what became of it cannot be known this way.
                Change::Delete | Change::Lost => break,
            }
        }
    }
}

/// Who leads, or who is the first to lead from now on. None = look again.
async fn find(shared: &Shared, name: &Bytes, failed: fn(Failure) -> Status) -> Result<Option<Leading>, Status> {
    let at = shared.member.view(Consistency::Linearizable).await.map_err(failed)?;
    let (revision, term) = (at.revision, at.term);
    if let Some((entry, kv)) = election::leader(&at.value, name) {
        let kv = answer::key_value(kv, false);
        return Ok(Some(Leading { kv, entry: Some(with_client(&at.value, entry)), revision, term }));
    }
    // At a barrier: whoever comes or goes may complete its round.
    let all_wait = at.value.lock_counts(name).0 > 0;
    // A view must not be held while waiting: it keeps alive whatever is changed meanwhile.
    drop(at);
    let entries = Bytes::from([name, &b"/"[..]].concat());
    let mut changes = Changes::start(shared, Keys::prefix(entries), revision + 1);
    loop {
        match changes.next().await? {
            _ if all_wait => return Ok(None),
            Change::Put { kv, term } if is_entry(&kv, name) => {
                let now = shared.member.view(Consistency::Serializable).await.map_err(failed)?.value;
                let entry = now.lock_entry(&kv.key).filter(|(_, entry)| entry.token == kv.create_revision);
                // The first to come leads, unless it waits for others at a barrier.
                if entry.is_some_and(|(_, entry)| entry.granted_wall_ms.is_none()) {
                    return Ok(None);
                }
                let entry = entry.map(|(_, entry)| with_client(&now, entry));
                return Ok(Some(Leading { revision: kv.mod_revision, entry, kv, term }));
            }
            Change::Put { .. } | Change::Delete => {}
            Change::Lost => return Ok(None),
        }
    }
}

fn with_client(view: &View, entry: &Arc<LockEntry>) -> (Arc<LockEntry>, SharedBytes) {
    (entry.clone(), view.lease_client(entry.lease).cloned().unwrap_or_default())
}

/// Was this put the making of an entry?
fn is_entry(kv: &KeyValue, name: &[u8]) -> bool {
    kv.create_revision == kv.mod_revision && lock::split_key(&kv.key) == Some((name, kv.lease))
}

/// One watch, change by change.
struct Changes {
    stream: WatchStream,
    interest: Arc<Interest>,
    /// Taken from notices but not yet handed out, in order.
    pending: VecDeque<Change>,
}

enum Change {
    Put {
        kv: KeyValue,
        term: u64,
    },
    Delete,
    /// History is gone where the watch would have to go on.
    Lost,
}

/// There is one watch on the stream.
const WATCH: u64 = 0;

impl Changes {
    fn start(shared: &Shared, keys: Keys, from: Revision) -> Changes {
        let stream = shared.member.watch_stream();
        stream.create(WATCH, keys.clone(), Some(from));
        Changes { stream, interest: Arc::new(Interest::everything(keys)), pending: VecDeque::new() }
    }

    async fn next(&mut self) -> Result<Change, Status> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Ok(change);
            }
            match self.stream.next().await {
                None => return Err(errors::STOPPED.into()),
                Some(Notice::Created { .. } | Notice::Progress { .. }) => {}
                Some(Notice::Compacted { .. }) => return Ok(Change::Lost),
                Some(Notice::Commits { commits, bytes, term, .. }) => {
                    let mut commits = commits.iter().peekable();
                    while let Some(batch) = self.interest.next_batch(&mut commits) {
                        self.take(batch, term);
                    }
                    self.stream.drained(bytes);
                }
                Some(Notice::Behind { from, view, term, .. }) => {
                    let interest = self.interest.clone();
                    let read = tokio::task::spawn_blocking(move || interest.read(&view, from)).await;
                    let Ok(history) = read.map_err(|_| Status::from(errors::STOPPED))? else {
                        return Ok(Change::Lost);
                    };
                    self.stream.resume(WATCH, history.next);
                    history.batch.into_iter().for_each(|batch| self.take(batch, term));
                }
            }
        }
    }

    fn take(&mut self, batch: Batch, term: u64) {
        let change = |event: Event| match (event.r#type(), event.kv) {
            (EventType::Put, Some(kv)) => Change::Put { kv, term },
            _ => Change::Delete,
        };
        self.pending.extend(batch.events.into_iter().map(change));
    }
}
