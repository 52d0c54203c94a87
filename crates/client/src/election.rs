//! Elections over etcd's election service: the bare calls.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_api::v3electionpb as proto;
use tenure_api::v3electionpb::election_client::ElectionClient;
use tokio::time::Instant;
use tonic::Streaming;

use crate::call::Kind;
use crate::connection::Connection;
use crate::{Client, Error, KeyValue, LeaseId};

/// Proof of having been elected, for [`Client::proclaim`] and [`Client::resign`].
#[derive(Debug, Clone, PartialEq)]
pub struct Candidacy(proto::LeaderKey);

impl Candidacy {
    pub fn key(&self) -> &Bytes {
        &self.0.key
    }

    /// Strictly greater than that of any earlier leader.
    pub fn token(&self) -> i64 {
        self.0.rev
    }
}

impl Client {
    /// Waits until this lease's candidate is elected. Dropping the future withdraws it.
    pub async fn campaign(
        &self,
        name: impl Into<Bytes>,
        lease: LeaseId,
        value: impl Into<Bytes>,
    ) -> Result<Candidacy, Error> {
        let request = proto::CampaignRequest { name: name.into(), lease, value: value.into() };
        let call = |channel| {
            let request = request.clone();
            async move { ElectionClient::new(channel).campaign(request).await }
        };
        let elected = self.connections.call(Kind::waiting("campaign"), call).await?;
        let missing = || Error::Protocol {
            endpoint: self.connections.current_address(),
            call: "campaign",
            reason: "the leader's key is missing".to_owned(),
        };
        elected.leader.map(Candidacy).ok_or_else(missing)
    }

    /// Changes the leader's value without a new election.
    pub async fn proclaim(&self, candidacy: &Candidacy, value: impl Into<Bytes>) -> Result<(), Error> {
        let request = proto::ProclaimRequest { leader: Some(candidacy.0.clone()), value: value.into() };
        let call = |channel| {
            let request = request.clone();
            async move { ElectionClient::new(channel).proclaim(request).await }
        };
        self.connections.call(Kind::write("proclaim"), call).await.map(drop)
    }

    pub async fn resign(&self, candidacy: &Candidacy) -> Result<(), Error> {
        let request = proto::ResignRequest { leader: Some(candidacy.0.clone()) };
        let call = |channel| {
            let request = request.clone();
            async move { ElectionClient::new(channel).resign(request).await }
        };
        self.connections.call(Kind::write("resign"), call).await.map(drop)
    }

    /// Who is elected now; [`Error::NobodyElected`] if nobody is.
    pub async fn leader(&self, name: impl Into<Bytes>) -> Result<KeyValue, Error> {
        let request = proto::LeaderRequest { name: name.into() };
        let call = |channel| {
            let request = request.clone();
            async move { ElectionClient::new(channel).leader(request).await }
        };
        self.connections.call(Kind::read("leader"), call).await?.kv.ok_or(Error::NobodyElected)
    }

    /// Every leader from now on, and every value it proclaims.
    ///
    /// There is nothing to wait for here: servers say their first word when somebody is elected.
    pub fn observe(&self, name: impl Into<Bytes>) -> Observer {
        Observer { client: self.clone(), name: name.into(), stream: None, last: None }
    }
}

/// Follows an election, over lost connections too: values in between may then be missed, the
/// present one never.
pub struct Observer {
    client: Client,
    name: Bytes,
    stream: Option<(Arc<Connection>, Streaming<proto::LeaderResponse>)>,
    /// Revision of what was told last, so that a new stream does not tell it again.
    last: Option<i64>,
}

const KIND: Kind = Kind { name: "observe", idempotent: true, unlimited: true };
const PAUSE: Duration = Duration::from_millis(100);

impl Observer {
    pub async fn next(&mut self) -> Result<KeyValue, Error> {
        loop {
            match self.step().await {
                Ok(Some(pair)) if self.last != Some(pair.mod_revision) => {
                    self.last = Some(pair.mod_revision);
                    return Ok(pair);
                }
                Ok(Some(_)) => {}
                Err(error) if !error.is_passing() || self.last.is_none() => return Err(error),
                Ok(None) | Err(_) => {
                    self.stream = None;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Option<KeyValue>, Error> {
        if self.stream.is_none() {
            let request = proto::LeaderRequest { name: self.name.clone() };
            let call = |channel| {
                let request = request.clone();
                async move { ElectionClient::new(channel).observe(request).await }
            };
            self.stream = Some(self.client.connections.call_somewhere(KIND, call).await?);
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
            Ok(reply) => Ok(reply.and_then(|reply| reply.kv)),
            Err(status) => Err(self.client.connections.judge_stream(connection, KIND, &status)?),
        }
    }
}
