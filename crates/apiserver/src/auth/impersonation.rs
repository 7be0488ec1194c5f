//! Impersonation: acting as someone else, where the real user may.

use ::http::HeaderMap;
use api::validation::{is_label, is_subdomain};
use api::{ApiError, UserInfo};

use super::{Access, check};
use crate::http::percent_decode;
use crate::server::ApiServer;

const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// What the headers ask for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    user: String,
    groups: Vec<String>,
    uid: String,
    extra: Vec<(String, String)>,
}

/// As upstream shows the type that it has for this.
impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let texts = |list: &[&String]| list.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", ");
        let groups = match self.groups.as_slice() {
            [] => "(nil)".to_owned(),
            groups => format!("{{{}}}", texts(&groups.iter().collect::<Vec<_>>())),
        };
        let mut extra: std::collections::BTreeMap<&String, Vec<&String>> = std::collections::BTreeMap::new();
        for (key, value) in &self.extra {
            extra.entry(key).or_default().push(value);
        }
        let extra: Vec<String> =
            extra.iter().map(|(key, values)| format!("{key:?}:[]string{{{}}}", texts(values))).collect();
        let extra = if extra.is_empty() { "(nil)".to_owned() } else { format!("{{{}}}", extra.join(", ")) };
        write!(
            f,
            "&user.DefaultInfo{{Name:{:?}, UID:{:?}, Groups:[]string{groups}, Extra:map[string][]string{extra}}}",
            self.user, self.uid
        )
    }
}

/// The user the request is carried out as.
pub(crate) async fn impersonate(
    server: &ApiServer,
    real: &UserInfo,
    headers: &HeaderMap,
) -> Result<UserInfo, ApiError> {
    let Some(asked) = asked(headers)? else { return Ok(real.clone()) };
    let may = async |access: Access<'_>| check(server, real, &access).await.map(drop);
    let core = |resource, name| Access {
        is_resource: true,
        verb: "impersonate",
        version: "v1",
        resource,
        name,
        ..Access::default()
    };
    let ours = |resource, name| Access { group: "authentication.k8s.io", ..core(resource, name) };
    let account = account(&asked.user);
    match account {
        Some((namespace, name)) => may(Access { namespace, ..core("serviceaccounts", name) }).await?,
        None => may(core("users", &asked.user)).await?,
    }
    for group in &asked.groups {
        may(core("groups", group)).await?;
    }
    for (key, value) in &asked.extra {
        may(Access { subresource: key, ..ours("userextras", value) }).await?;
    }
    if !asked.uid.is_empty() {
        may(ours("uids", &asked.uid)).await?;
    }
    Ok(acting(asked))
}

/// `system:serviceaccount:NAMESPACE:NAME`
fn account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let valid = is_label(namespace).is_empty() && is_subdomain(name).is_empty();
    valid.then_some((namespace, name))
}

fn acting(asked: Asked) -> UserInfo {
    let mut user = UserInfo { name: asked.user, uid: asked.uid, groups: asked.groups, ..UserInfo::default() };
    if let (Some((namespace, _)), true) = (account(&user.name), user.groups.is_empty()) {
        user.groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
    }
    for (key, value) in asked.extra {
        user.extra.entry(key).or_default().push(value);
    }
    let anonymous = user.name == "system:anonymous";
    if !user.in_group(UNAUTHENTICATED) && (anonymous || !user.in_group(AUTHENTICATED)) {
        user.groups.push(if anonymous { UNAUTHENTICATED } else { AUTHENTICATED }.into());
    }
    user
}

fn asked(headers: &HeaderMap) -> Result<Option<Asked>, ApiError> {
    let mut asked = Asked::default();
    let mut any = false;
    for (name, value) in headers.iter().filter(|(name, _)| name.as_str().starts_with("impersonate-")) {
        // A value that cannot be read must not pass for no impersonation at all.
        let value = std::str::from_utf8(value.as_bytes());
        let value = value.map_err(|_| ApiError::bad_request(format!("the header {name} is not UTF-8")))?.to_owned();
        match name.as_str() {
            "impersonate-user" if asked.user.is_empty() => asked.user = value,
            "impersonate-group" => (any, _) = (true, asked.groups.push(value)),
            "impersonate-uid" if asked.uid.is_empty() => (any, asked.uid) = (any || !value.is_empty(), value),
            name => {
                if let Some(key) = name.strip_prefix(EXTRA) {
                    asked.extra.push((percent_decode(&key.replace('+', "%2b")), value));
                    any = true;
                }
            }
        }
    }
    match (asked.user.is_empty(), any) {
        (false, _) => Ok(Some(asked)),
        (true, true) => Err(ApiError::bad_request(format!("requested {asked} without impersonating a user name"))),
        (true, false) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_whom_to_act_as() {
        check("user=bob", Some("bob  system:authenticated"));
        check("user=bob group=a group=b", Some("bob  a,b,system:authenticated"));
        check("user=bob group=system:unauthenticated", Some("bob  system:unauthenticated"));
        check("user=system:anonymous", Some("system:anonymous  system:unauthenticated"));
        check(
            "user=system:serviceaccount:ns:sa",
            Some("system:serviceaccount:ns:sa  system:serviceaccounts,system:serviceaccounts:ns,system:authenticated"),
        );
        check("user=bob uid=7 extra-a%2fb=c extra-a%2fb=d", Some("bob 7 system:authenticated a/b=c a/b=d"));
        check("group=a", None);
        check("uid=7", None);
        check("extra-x=y", None);
    }

    #[track_caller]
    fn check(sent: &str, want: Option<&str>) {
        let mut headers = HeaderMap::new();
        for (name, value) in sent.split(' ').filter_map(|pair| pair.split_once('=')) {
            let name: http::HeaderName = format!("impersonate-{name}").parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        let told = asked(&headers).map(|asked| acting(asked.unwrap())).map(|user| {
            let extra = user.extra.iter().flat_map(|(k, all)| all.iter().map(move |v| format!(" {k}={v}")));
            format!("{} {} {}{}", user.name, user.uid, user.groups.join(","), extra.collect::<String>())
        });
        assert_eq!(told.ok().as_deref(), want, "{sent}");
    }
}
