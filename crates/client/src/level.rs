//! The cluster's feature level, and a new state for a member whose own differs from the others'.

use tenure_api::tenure::v1 as proto;
use tenure_api::tenure::v1::cluster_service_client::ClusterServiceClient;

use crate::call::Kind;
use crate::{Client, Error};

/// What one member says of the cluster's feature level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureLevel {
    pub member: u64,
    /// The release that the member runs, as in `0.2.0`.
    pub release: String,
    /// The cluster's level, as this member has applied it.
    pub level: u32,
    /// The latest level that this member supports.
    pub highest: u32,
    /// The level is raised no further than this.
    pub pin: Option<u32>,
    /// The member's state differs from that of the others.
    pub is_corrupt: bool,
}

impl Client {
    /// The feature level, as the member at the endpoint knows it.
    pub async fn level(&self) -> Result<FeatureLevel, Error> {
        let call = |channel| async move { ClusterServiceClient::new(channel).level(proto::LevelRequest {}).await };
        self.connections.call(Kind::read("level"), call).await.map(feature_level)
    }

    /// Lets the level rise no further than `level`; `None` releases it.
    pub async fn pin_level(&self, level: Option<u32>) -> Result<FeatureLevel, Error> {
        let request = proto::PinLevelRequest { level };
        let call = |channel| async move { ClusterServiceClient::new(channel).pin_level(request).await };
        self.connections.call(Kind::write("pin level"), call).await.map(feature_level)
    }

    /// Replaces the state of the member at the endpoint with the leader's. Gives the index that it goes up to.
    pub async fn reseed(&self) -> Result<u64, Error> {
        let call = |channel| async move { ClusterServiceClient::new(channel).reseed(proto::ReseedRequest {}).await };
        self.connections.call(Kind::write("reseed"), call).await.map(|response| response.applied_index)
    }
}

fn feature_level(response: proto::LevelResponse) -> FeatureLevel {
    let proto::LevelResponse { member_id, release, level, highest_level, pin, is_corrupt } = response;
    FeatureLevel { member: member_id, release, level, highest: highest_level, pin, is_corrupt }
}
