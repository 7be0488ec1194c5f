//! Impersonation: acting as someone else, where the real user may.

use ::http::HeaderMap;
use api::{ApiError, UserInfo};

use super::authorize;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;

const EXTRA: &str = "impersonate-extra-";

/// The user the request is carried out as.
pub(super) fn apply(server: &ApiServer, real: UserInfo, headers: &HeaderMap) -> Result<UserInfo, ApiError> {
    let mut sent: Vec<(&str, String)> = Vec::new();
    for (name, value) in headers.iter().filter(|(name, _)| name.as_str().starts_with("impersonate-")) {
        // A value that cannot be read must not pass for no impersonation at all.
        let value = std::str::from_utf8(value.as_bytes());
        let value = value.map_err(|_| ApiError::bad_request(format!("the header {name} is not UTF-8")))?;
        sent.push((name.as_str(), value.to_owned()));
    }
    let text = |wanted: &str| sent.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.clone());
    let groups: Vec<String> =
        sent.iter().filter(|(name, _)| *name == "impersonate-group").map(|(_, value)| value.clone()).collect();
    let extra: Vec<(String, String)> =
        sent.iter().filter_map(|(name, value)| Some((name.strip_prefix(EXTRA)?.to_owned(), value.clone()))).collect();
    let uid = text("impersonate-uid");
    let Some(name) = text("impersonate-user") else {
        if groups.is_empty() && extra.is_empty() && uid.is_none() {
            return Ok(real);
        }
        return Err(ApiError::bad_request("requested impersonation without impersonating a user"));
    };
    let may = |group: &str, resource: &str, namespace: &str, name: &str, subresource: &str| {
        let info = RequestInfo {
            is_resource: true,
            verb: "impersonate",
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
            subresource: subresource.into(),
            ..RequestInfo::default()
        };
        authorize(server, &real, &info).map(drop)
    };
    let mut user = UserInfo { name: name.clone(), uid: uid.clone().unwrap_or_default(), groups, ..UserInfo::default() };
    for group in &user.groups {
        may("", "groups", "", group, "")?;
    }
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    match account {
        Some((namespace, account)) => {
            may("", "serviceaccounts", namespace, account, "")?;
            if user.groups.is_empty() {
                user.groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
            }
        }
        None => may("", "users", "", &name, "")?,
    }
    if let Some(uid) = &uid {
        may("authentication.k8s.io", "uids", "", uid, "")?;
    }
    for (key, value) in extra {
        may("authentication.k8s.io", "userextras", "", &value, &key)?;
        user.extra.entry(key).or_default().push(value);
    }
    let implied = if name == "system:anonymous" { "system:unauthenticated" } else { "system:authenticated" };
    if !user.in_group(implied) {
        user.groups.push(implied.into());
    }
    Ok(user)
}
