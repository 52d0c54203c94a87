use tenure_api::etcdserverpb::*;
use tonic::Code::{FailedPrecondition, InvalidArgument, Unimplemented};

use crate::harness::*;

#[tokio::test]
async fn without_users_everything_follows_from_their_absence() {
    let server = Server::start().await;
    let mut auth = server.auth();
    let login = AuthenticateRequest { name: "a".into(), password: "b".into() };
    assert_refused(auth.authenticate(login).await, FailedPrecondition, "etcdserver: authentication is not enabled");
    let no_root = "etcdserver: root user does not exist";
    assert_refused(auth.auth_enable(AuthEnableRequest {}).await, FailedPrecondition, no_root);
    assert_eq!(auth.auth_disable(AuthDisableRequest {}).await.unwrap().into_inner().header.unwrap().revision, 1);
    let status = auth.auth_status(AuthStatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.enabled, status.auth_revision), (false, 1));
    assert!(auth.user_list(AuthUserListRequest {}).await.unwrap().into_inner().users.is_empty());
    assert!(auth.role_list(AuthRoleListRequest {}).await.unwrap().into_inner().roles.is_empty());

    let no_user = "etcdserver: user name not found";
    assert_refused(auth.user_get(AuthUserGetRequest::default()).await, FailedPrecondition, no_user);
    assert_refused(auth.user_delete(AuthUserDeleteRequest::default()).await, FailedPrecondition, no_user);
    let no_role = "etcdserver: role name not found";
    assert_refused(auth.role_get(AuthRoleGetRequest::default()).await, FailedPrecondition, no_role);
    assert_refused(auth.role_delete(AuthRoleDeleteRequest::default()).await, FailedPrecondition, no_role);

    assert_refused(
        auth.user_add(AuthUserAddRequest::default()).await,
        InvalidArgument,
        "etcdserver: user name is empty",
    );
    let user = AuthUserAddRequest { name: "root".into(), ..Default::default() };
    assert_refused(auth.user_add(user).await, Unimplemented, "tenure: users and roles are not available yet");
    let role = AuthRoleAddRequest { name: "root".into() };
    assert_refused(auth.role_add(role).await, Unimplemented, "tenure: users and roles are not available yet");
}
