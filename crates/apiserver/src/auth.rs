//! Who a request is from, and whether they may.

pub(crate) mod discovery;
mod impersonation;
pub(crate) mod rbac;
pub(crate) mod tokens;
pub(crate) mod x509;

use ::http::{Request, header};
use api::{ApiError, GroupResource, UserInfo};

use crate::http::Body;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;

/// The client's certificate, as the TLS layer verified it; put into the extensions by the listener.
#[derive(Clone, Debug)]
pub(crate) struct ClientCertificate(pub(crate) UserInfo);

/// The user a request is carried out as: the one it proves to be, or one that user may act as.
pub(crate) fn authenticate(server: &ApiServer, request: &Request<Body>) -> Result<UserInfo, ApiError> {
    impersonation::apply(server, real_user(server, request)?, request.headers())
}

pub(crate) fn real_user(server: &ApiServer, request: &Request<Body>) -> Result<UserInfo, ApiError> {
    if let Some(user) = request.extensions().get::<UserInfo>() {
        return Ok(user.clone());
    }
    if let Some(ClientCertificate(user)) = request.extensions().get::<ClientCertificate>() {
        return Ok(user.clone());
    }
    let bearer = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if let Some(token) = bearer.and_then(|text| text.strip_prefix("Bearer ")) {
        let audiences = [server.config.service_account_issuer.clone()];
        let (user, _) = tokens::authenticate(server, token.trim(), &audiences).map_err(|error| {
            tracing::debug!(%error, "token refused");
            ApiError::unauthorized()
        })?;
        return Ok(user);
    }
    Ok(UserInfo {
        name: "system:anonymous".into(),
        groups: vec!["system:unauthenticated".into()],
        ..UserInfo::default()
    })
}

/// Says why they may.
pub(crate) fn authorize(server: &ApiServer, user: &UserInfo, info: &RequestInfo) -> Result<String, ApiError> {
    let decision = server.rbac.decide(user, info);
    if decision.allowed {
        return Ok(decision.reason);
    }
    let name = &user.name;
    if !info.is_resource {
        let why = format!("User \"{name}\" cannot {} path \"{}\"", info.verb, info.path);
        return Err(ApiError::forbidden(GroupResource { group: "", resource: "" }, "", why));
    }
    let resource = match info.subresource.as_str() {
        "" => info.resource.clone(),
        sub => format!("{}/{sub}", info.resource),
    };
    let place = if info.namespace.is_empty() {
        " at the cluster scope".to_owned()
    } else {
        format!(" in the namespace \"{}\"", info.namespace)
    };
    let why =
        format!("User \"{name}\" cannot {} resource \"{resource}\" in API group \"{}\"{place}", info.verb, info.group);
    Err(ApiError::forbidden(GroupResource { group: &info.group, resource: &info.resource }, &info.name, why))
}
