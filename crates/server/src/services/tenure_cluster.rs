//! What operators ask of a cluster beyond etcd's API: its feature level, and a new state for a member that differs.

use std::sync::Arc;

use tenure_api::tenure::v1::cluster_service_server::ClusterService;
use tenure_api::tenure::v1::{LevelRequest, LevelResponse, PinLevelRequest, ReseedRequest, ReseedResponse};
use tenure_machine::Command;
use tenure_replica::Failure;
use tonic::{Request, Response, Status};

use super::{Shared, authorize, errors};
use crate::config::TENURE_VERSION;

pub struct TenureClusterService(pub Arc<Shared>);

#[tonic::async_trait]
impl ClusterService for TenureClusterService {
    async fn level(&self, request: Request<LevelRequest>) -> Result<Response<LevelResponse>, Status> {
        authorize("Level", request.metadata())?;
        Ok(Response::new(self.level_now()))
    }

    async fn pin_level(&self, request: Request<PinLevelRequest>) -> Result<Response<LevelResponse>, Status> {
        authorize("PinLevel", request.metadata())?;
        let command = Command::PinLevel { level: request.into_inner().level };
        match self.0.member.submit(command).await {
            Ok(_) => Ok(Response::new(self.level_now())),
            Err(Failure::Refused(refusal)) => Err(Status::failed_precondition(refusal.to_string())),
            Err(failure) => Err(errors::failed(failure)),
        }
    }

    async fn reseed(&self, request: Request<ReseedRequest>) -> Result<Response<ReseedResponse>, Status> {
        authorize("Reseed", request.metadata())?;
        let applied_index = self.0.member.reseed().await.map_err(errors::failed)?;
        Ok(Response::new(ReseedResponse { applied_index }))
    }
}

impl TenureClusterService {
    fn level_now(&self) -> LevelResponse {
        let status = self.0.member.status();
        LevelResponse {
            member_id: status.member,
            release: TENURE_VERSION.to_owned(),
            level: status.level,
            highest_level: status.highest_level,
            pin: status.level_pin,
            is_corrupt: status.is_corrupt,
        }
    }
}
