//! Elections: a lock whose holder leads, and is known by a value.
//!
//! A candidacy is a place in the queue of the election's name, asked for on the session's stream like any lock, so it
//! outlives lost connections; and whoever leads has the guard's promise: its work is cancelled before somebody else can
//! be elected. etcd's candidates stand in the same elections.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tenure_api::tenure::v1 as proto;
use tenure_api::tenure::v1::lock_service_client::LockServiceClient;
use tokio::time::Instant;
use tonic::metadata::MetadataValue;
use tonic::{Request, Streaming};

use crate::call::Kind;
use crate::connection::Connection;
use crate::describe::time;
use crate::lifecycle::CancelAt;
use crate::lock::LockRequest;
use crate::{Client, Error, Held, LeaseId, LockError, LockGuard, Lost, Revision, Session};

/// What is asked for; see [`Client::campaign`].
#[must_use = "nothing happens before it is to lead"]
pub struct CampaignRequest(LockRequest);

impl Client {
    /// Stands in an election, with a lease of its own. Waits to be elected, as long as it takes, unless told otherwise.
    /// `value` is what the leader is known by.
    pub fn campaign(&self, name: impl Into<String>, value: impl Into<Bytes>) -> CampaignRequest {
        CampaignRequest(LockRequest::new(self.clone(), None, name.into()).value(value.into()))
    }

    /// Who leads now; [`Error::NobodyElected`] if nobody does.
    pub async fn leader(&self, name: impl Into<String>) -> Result<Leader, Error> {
        let request = proto::LeaderRequest { name: name.into() };
        let call = |channel| {
            let request = request.clone();
            async move { LockServiceClient::new(channel).leader(request).await }
        };
        let found = self.connections.call(Kind::read("leader"), call).await?;
        Leader::read(found).ok_or(Error::NobodyElected)
    }

    /// Every leader from now on, and every value it proclaims.
    ///
    /// There is nothing to wait for here: servers say their first word when somebody is elected.
    pub fn observe(&self, name: impl Into<String>) -> Observer {
        Observer { client: self.clone(), name: name.into(), stream: None, was_open: false, last: None }
    }
}

impl Session {
    /// Stands in an election under this session's lease.
    pub fn campaign(&self, name: impl Into<String>, value: impl Into<Bytes>) -> CampaignRequest {
        CampaignRequest(self.lock(name).value(value.into()))
    }
}

impl CampaignRequest {
    /// How long the server keeps the leadership without a renewal; 30 s unless told, 500 ms at least. Under a session
    /// it is the session's that counts.
    pub fn ttl(self, ttl: Duration) -> CampaignRequest {
        CampaignRequest(self.0.ttl(ttl))
    }

    /// Wait for so long at most.
    pub fn wait(self, time: Duration) -> CampaignRequest {
        CampaignRequest(self.0.wait(time))
    }

    /// Do not wait at all: lead only if nobody does.
    pub fn try_once(self) -> CampaignRequest {
        CampaignRequest(self.0.try_once())
    }

    /// Who stands there, for people to read; host and process unless told.
    pub fn holder(self, holder: impl Into<String>) -> CampaignRequest {
        CampaignRequest(self.0.holder(holder))
    }

    /// As of a lock: only those who name one are protected from deadlocks.
    pub fn owner(self, owner: impl Into<String>) -> CampaignRequest {
        CampaignRequest(self.0.owner(owner))
    }

    /// When work is cancelled that the server does not confirm any more.
    pub fn cancel_at(self, cancel_at: CancelAt) -> CampaignRequest {
        CampaignRequest(self.0.cancel_at(cancel_at))
    }

    /// Waits until it leads. Dropping the future withdraws the candidate.
    pub async fn lead(self) -> Result<Leadership, LockError> {
        self.0.acquire().await.map(|guard| Leadership { guard })
    }
}

/// Leads until it resigns or is dropped. What it can be asked is what a lock's holder can be: [`Held`].
#[must_use = "who drops it resigns"]
#[derive(Debug)]
pub struct Leadership {
    guard: LockGuard,
}

impl Leadership {
    /// A handle to ask with, for work that is done elsewhere.
    pub fn held(&self) -> &Held {
        self.guard.held()
    }

    /// Whether the lease outlives the election of a new leader of the cluster without a renewal.
    pub fn is_failover_safe(&self) -> bool {
        self.guard.is_failover_safe()
    }

    /// Works as the leader. The work is dropped where it waits as soon as somebody else might be elected; Ok means that
    /// this one led from the beginning of the work to its end.
    pub async fn run<Output>(&self, work: impl AsyncFnOnce(&Held) -> Output) -> Result<Output, Lost> {
        self.guard.run(work).await
    }

    /// Changes the value that the leader is known by, without a new election. Refused as [`LockError::Lost`] if another
    /// one leads by now.
    pub async fn proclaim(&self, value: impl Into<Bytes>) -> Result<(), LockError> {
        self.check()?;
        let request =
            proto::ProclaimRequest { name: self.name().to_owned(), fencing_token: self.token(), value: value.into() };
        let call = |channel| {
            let request = request.clone();
            async move { LockServiceClient::new(channel).proclaim(request).await }
        };
        let proclaimed = self.held().client().connections.call(Kind::write("proclaim"), call).await;
        proclaimed.map(drop).map_err(|error| self.held().judge_refusal(error))
    }

    /// Leads no longer. An error tells that the leadership had been lost before, or that the server cannot be told now:
    /// then it is told in the background, and the lease ends in any case.
    pub async fn resign(self) -> Result<(), LockError> {
        self.guard.release().await
    }
}

impl Deref for Leadership {
    type Target = Held;

    fn deref(&self) -> &Held {
        self.held()
    }
}

/// Who leads an election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// What it is known by.
    pub value: Bytes,
    /// Strictly greater than that of any earlier leader.
    pub token: i64,
    /// Who it is, for people to read; may be empty.
    pub holder: String,
    /// The key that exists for as long as it leads.
    pub key: String,
    pub lease: LeaseId,
    /// At which this value was proclaimed.
    pub revision: Revision,
    /// Since when it leads, as far as that is known.
    pub elected: Option<SystemTime>,
}

impl Leader {
    fn read(response: proto::LeaderResponse) -> Option<Leader> {
        let proto::LeaderResponse { leader, value, .. } = response;
        let leader = leader?;
        Some(Leader {
            value,
            token: leader.fencing_token,
            elected: time(leader.granted_unix_ms),
            holder: leader.holder_id,
            key: leader.key,
            lease: leader.lease.map_or(0, |lease| lease.id),
            revision: leader.mod_revision,
        })
    }
}

/// Follows an election, over lost connections too: values in between may then be missed, the present one never.
pub struct Observer {
    client: Client,
    name: String,
    stream: Option<(Arc<Connection>, Streaming<proto::LeaderResponse>)>,
    /// Somebody has listened to us once: what goes wrong from then on passes.
    was_open: bool,
    /// Token and revision of what was told last, so that a new stream does not tell it again. The next leader's value
    /// may be older than the last one's: it was named when that one became a candidate.
    last: Option<(i64, Revision)>,
}

const KIND: Kind = Kind { name: "observe", idempotent: true, unlimited: true };
const PAUSE: Duration = Duration::from_millis(100);

impl Observer {
    /// The next leader, or the next value of the present one. May be dropped while it waits: nothing is lost.
    pub async fn next(&mut self) -> Result<Leader, Error> {
        loop {
            match self.step().await {
                Ok(Some(leader)) if self.last != Some((leader.token, leader.revision)) => {
                    self.last = Some((leader.token, leader.revision));
                    return Ok(leader);
                }
                Ok(Some(_)) => {}
                Err(error) if !error.is_passing() || !self.was_open => return Err(error),
                Ok(None) | Err(_) => {
                    self.stream = None;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// None: the stream has ended.
    async fn step(&mut self) -> Result<Option<Leader>, Error> {
        if self.stream.is_none() {
            let name = self.name.clone();
            let call = |channel| {
                let mut request = Request::new(proto::ObserveRequest { name: name.clone() });
                // A member that is cut off from the others ends the stream instead of keeping it silent.
                request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
                async move { LockServiceClient::new(channel).observe(request).await }
            };
            self.stream = Some(self.client.connections.call_somewhere(KIND, call).await?);
            self.was_open = true;
        }
        let (connection, replies) = self.stream.as_mut().expect("it was opened above");
        let waiting = Instant::now();
        let reply = tokio::select! {
            reply = replies.message() => reply,
            () = connection.fallen_silent() => {
                return Err(self.client.connections.judge_silence(connection, KIND, waiting.elapsed()));
            }
        };
        match reply {
            Ok(reply) => Ok(reply.and_then(Leader::read)),
            Err(status) => Err(self.client.connections.judge_stream(connection, KIND, &status)?),
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Observer").field("name", &self.name).finish_non_exhaustive()
    }
}
