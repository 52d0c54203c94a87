//! Keys: Range, Put, DeleteRange, Txn, Compact.

use std::sync::Arc;

use tenure_api::etcdserverpb::kv_server::Kv;
use tenure_api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use tenure_machine::{Command, Reply, Txn};
use tenure_replica::Consistency;
use tonic::{Request, Response, Status};

use super::{Shared, answer, authorize, convert, errors, large, places, read};
use crate::member::{At, RangeAnswer};

pub struct KvService(pub Arc<Shared>);

#[tonic::async_trait]
impl Kv for KvService {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        authorize("Range", request.metadata())?;
        let request = request.into_inner();
        let consistency = match request.serializable {
            true => Consistency::Serializable,
            false => Consistency::Linearizable,
        };
        let query = convert::range(request)?;
        let at = self.0.member.range(query, consistency).await.map_err(errors::failed)?;
        let header = self.0.header(&at);
        match at.value {
            RangeAnswer::Ready(reply) => answer::range(header, reply).await,
            RangeAnswer::Long(view, query) => {
                // The view is let go of there too.
                let evaluate = move || view.range(&query).map_err(errors::refused);
                large::respond(move || Ok(answer::range_layout(header, evaluate()?))).await
            }
        }
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        authorize("Put", request.metadata())?;
        let request = request.into_inner();
        convert::check_size(&request, self.0.config.limits.request_bytes)?;
        let at = self.submit(Command::Put(convert::put(request)?)).await?;
        match &at.value {
            Reply::Put { prev } => Ok(Response::new(answer::put(self.0.header(&at), prev.as_ref()))),
            other => Err(unexpected(other)),
        }
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        authorize("DeleteRange", request.metadata())?;
        let request = request.into_inner();
        convert::check_size(&request, self.0.config.limits.request_bytes)?;
        let delete = convert::delete(request)?;
        if self.0.config.protect_places {
            places::protect(&self.0, [&delete]).await?;
        }
        let at = self.submit(Command::Delete(delete)).await?;
        let header = self.0.header(&at);
        match at.value {
            Reply::Delete { deleted, prev } => answer::delete(header, deleted, prev).await,
            other => Err(unexpected(&other)),
        }
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        authorize("Txn", request.metadata())?;
        let request = request.into_inner();
        let limits = &self.0.config.limits;
        let consistency = read::consistency(&request);
        if consistency.is_none() {
            convert::check_size(&request, limits.request_bytes)?;
        }
        let txn = convert::txn(request, limits.transaction_operations)?;
        if let Some(consistency) = consistency {
            return self.read(txn, consistency).await;
        }
        if self.0.config.protect_places {
            places::protect(&self.0, places::deletes(&txn)).await?;
        }
        let at = self.submit(Command::Txn(txn)).await?;
        let (header, revision) = (self.0.header(&at), at.revision);
        match at.value {
            Reply::Txn(reply) => answer::txn(header, revision, reply).await,
            other => Err(unexpected(&other)),
        }
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        authorize("Compact", request.metadata())?;
        let revision = request.into_inner().revision;
        let at = self.submit(Command::Compact { revision }).await?;
        Ok(Response::new(CompactionResponse { header: self.0.header(&at) }))
    }
}

impl KvService {
    async fn submit(&self, command: Command) -> Result<At<Reply>, Status> {
        self.0.member.submit(command).await.map_err(errors::failed)
    }

    async fn read(&self, txn: Txn, consistency: Consistency) -> Result<Response<TxnResponse>, Status> {
        let at = self.0.member.view(consistency).await.map_err(errors::failed)?;
        let (header, revision, view) = (self.0.header(&at), at.revision, at.value);
        if let Some(reply) = read::evaluate_short(&view, &txn) {
            return answer::txn(header, revision, reply.map_err(errors::refused)?).await;
        }
        large::respond(move || {
            let reply = read::evaluate(&view, &txn).map_err(errors::refused)?;
            Ok(answer::txn_layout(header, revision, reply))
        })
        .await
    }
}

/// The machine answers each command with its own kind of reply.
pub fn unexpected(reply: &Reply) -> Status {
    tracing::error!(?reply, "a command was answered with the reply to another");
    Status::internal("tenure: a command was answered with the reply to another")
}
