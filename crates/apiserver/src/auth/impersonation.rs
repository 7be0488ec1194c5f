//! Impersonation: acting as someone else, where the real user may.

use ::http::HeaderMap;
use api::{ApiError, UserInfo};

use super::authorize;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;

const EXTRA: &str = "impersonate-extra-";

/// The user the request is carried out as.
pub(super) fn apply(server: &ApiServer, real: UserInfo, headers: &HeaderMap) -> Result<UserInfo, ApiError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
    let groups: Vec<String> =
        headers.get_all("impersonate-group").iter().filter_map(|v| v.to_str().ok()).map(ToOwned::to_owned).collect();
    let extra: Vec<(String, String)> = headers
        .iter()
        .filter_map(|(name, value)| {
            Some((name.as_str().strip_prefix(EXTRA)?.to_owned(), value.to_str().ok()?.to_owned()))
        })
        .collect();
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
        authorize(server, &real, &info)
    };
    let mut user = UserInfo { name: name.clone(), uid: uid.clone().unwrap_or_default(), groups, ..UserInfo::default() };
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
    for group in &user.groups {
        if account.is_none() || !group.starts_with("system:serviceaccounts") {
            may("", "groups", "", group, "")?;
        }
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
