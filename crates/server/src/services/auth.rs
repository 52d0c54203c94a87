//! The place of users and roles. There are none yet, and this is what etcd answers when there are none.
//!
//! What would make one is not implemented; everything else follows from their absence.

use std::sync::Arc;

use tenure_api::etcdserverpb::auth_server::Auth;
use tenure_api::etcdserverpb::*;
use tonic::{Request, Response, Status};

use super::{Shared, authorize, errors};

/// etcd counts the changes of its users from 1.
const AUTH_REVISION: u64 = 1;

pub struct AuthService(pub Arc<Shared>);

#[tonic::async_trait]
impl Auth for AuthService {
    async fn auth_enable(&self, request: Request<AuthEnableRequest>) -> Result<Response<AuthEnableResponse>, Status> {
        authorize("AuthEnable", request.metadata())?;
        Err(errors::ROOT_USER_NOT_EXIST.into())
    }

    async fn auth_disable(
        &self,
        request: Request<AuthDisableRequest>,
    ) -> Result<Response<AuthDisableResponse>, Status> {
        authorize("AuthDisable", request.metadata())?;
        Ok(Response::new(AuthDisableResponse { header: self.0.header_now() }))
    }

    async fn auth_status(&self, request: Request<AuthStatusRequest>) -> Result<Response<AuthStatusResponse>, Status> {
        authorize("AuthStatus", request.metadata())?;
        Ok(Response::new(AuthStatusResponse {
            header: self.0.header_now(),
            enabled: false,
            auth_revision: AUTH_REVISION,
        }))
    }

    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        authorize("Authenticate", request.metadata())?;
        Err(errors::AUTH_NOT_ENABLED.into())
    }

    async fn user_add(&self, request: Request<AuthUserAddRequest>) -> Result<Response<AuthUserAddResponse>, Status> {
        authorize("UserAdd", request.metadata())?;
        match request.into_inner().name.is_empty() {
            true => Err(errors::USER_EMPTY.into()),
            false => Err(unimplemented()),
        }
    }

    async fn user_get(&self, request: Request<AuthUserGetRequest>) -> Result<Response<AuthUserGetResponse>, Status> {
        authorize("UserGet", request.metadata())?;
        Err(errors::USER_NOT_FOUND.into())
    }

    async fn user_list(&self, request: Request<AuthUserListRequest>) -> Result<Response<AuthUserListResponse>, Status> {
        authorize("UserList", request.metadata())?;
        Ok(Response::new(AuthUserListResponse { header: self.0.header_now(), users: Vec::new() }))
    }

    async fn user_delete(
        &self,
        request: Request<AuthUserDeleteRequest>,
    ) -> Result<Response<AuthUserDeleteResponse>, Status> {
        authorize("UserDelete", request.metadata())?;
        Err(errors::USER_NOT_FOUND.into())
    }

    async fn user_change_password(
        &self,
        request: Request<AuthUserChangePasswordRequest>,
    ) -> Result<Response<AuthUserChangePasswordResponse>, Status> {
        authorize("UserChangePassword", request.metadata())?;
        Err(errors::USER_NOT_FOUND.into())
    }

    async fn user_grant_role(
        &self,
        request: Request<AuthUserGrantRoleRequest>,
    ) -> Result<Response<AuthUserGrantRoleResponse>, Status> {
        authorize("UserGrantRole", request.metadata())?;
        Err(errors::USER_NOT_FOUND.into())
    }

    async fn user_revoke_role(
        &self,
        request: Request<AuthUserRevokeRoleRequest>,
    ) -> Result<Response<AuthUserRevokeRoleResponse>, Status> {
        authorize("UserRevokeRole", request.metadata())?;
        Err(errors::USER_NOT_FOUND.into())
    }

    async fn role_add(&self, request: Request<AuthRoleAddRequest>) -> Result<Response<AuthRoleAddResponse>, Status> {
        authorize("RoleAdd", request.metadata())?;
        match request.into_inner().name.is_empty() {
            true => Err(errors::ROLE_EMPTY.into()),
            false => Err(unimplemented()),
        }
    }

    async fn role_get(&self, request: Request<AuthRoleGetRequest>) -> Result<Response<AuthRoleGetResponse>, Status> {
        authorize("RoleGet", request.metadata())?;
        Err(errors::ROLE_NOT_FOUND.into())
    }

    async fn role_list(&self, request: Request<AuthRoleListRequest>) -> Result<Response<AuthRoleListResponse>, Status> {
        authorize("RoleList", request.metadata())?;
        Ok(Response::new(AuthRoleListResponse { header: self.0.header_now(), roles: Vec::new() }))
    }

    async fn role_delete(
        &self,
        request: Request<AuthRoleDeleteRequest>,
    ) -> Result<Response<AuthRoleDeleteResponse>, Status> {
        authorize("RoleDelete", request.metadata())?;
        Err(errors::ROLE_NOT_FOUND.into())
    }

    async fn role_grant_permission(
        &self,
        request: Request<AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<AuthRoleGrantPermissionResponse>, Status> {
        authorize("RoleGrantPermission", request.metadata())?;
        Err(errors::ROLE_NOT_FOUND.into())
    }

    async fn role_revoke_permission(
        &self,
        request: Request<AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<AuthRoleRevokePermissionResponse>, Status> {
        authorize("RoleRevokePermission", request.metadata())?;
        Err(errors::ROLE_NOT_FOUND.into())
    }
}

fn unimplemented() -> Status {
    Status::unimplemented("tenure: users and roles are not available yet")
}
