//! Service-account tokens: signed here, bound to their object, believed only while it lives.

use api::{ApiError, Object, ObjectExt as _, UserInfo};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::jwt;
use crate::server::ApiServer;

const MIN_SECONDS: i64 = 600;
const DEFAULT_SECONDS: i64 = 3600;
const MAX_SECONDS: i64 = 1 << 32;
/// What kubelets ask for. Clients that never read their token again keep working with one of these; the token says from
/// when on it should have been read again.
const WARN_ONLY_SECONDS: i64 = 3600 + 7;
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;
/// Of tokens that secrets hold.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// Clocks differ a little between machines.
const LEEWAY_SECONDS: i64 = 60;

/// Why a token of ours is refused, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("invalid signature, no keys found")]
    NoKey,
    #[error("go-jose/go-jose: error in cryptographic primitive")]
    Signature,
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    NotYet,
    #[error("token audiences {0} is invalid for the target audiences {1}")]
    Audience(String, String),
    #[error("serviceaccounts {0:?} not found")]
    NoAccount(String),
    #[error("service account UID ({0}) does not match claim ({1})")]
    OtherAccount(String, String),
    #[error("service account {0} has been deleted")]
    DeletedAccount(String),
    #[error("service account token has been invalidated")]
    Invalidated,
    #[error("{kind} UID ({uid}) does not match service account {kind} ref claim ({claimed})")]
    OtherObject { kind: &'static str, uid: String, claimed: String },
    #[error("sub claim is invalid")]
    Subject,
    #[error("Token has been invalidated")]
    NoSecret,
    #[error("Token does not match server's copy")]
    OtherCopy,
}

type Meant = (UserInfo, Vec<String>);

/// As upstream prints a list.
fn quoted(list: &[String]) -> String {
    let list: Vec<String> = list.iter().map(|text| format!("{text:?}")).collect();
    format!("[{}]", list.join(" "))
}

/// Those of the wanted audiences that a token is meant for; there must be one.
fn meant(own: &[String], wanted: &[String]) -> Result<Vec<String>, TokenError> {
    let meant: Vec<String> = wanted.iter().filter(|name| own.contains(name)).cloned().collect();
    if meant.is_empty() { Err(TokenError::Audience(quoted(own), quoted(wanted))) } else { Ok(meant) }
}

/// The user a token stands for, and those of the wanted audiences that it is meant for; `None` if it is no token of ours.
pub(crate) fn authenticate(server: &ApiServer, token: &str, wanted: &[String]) -> Result<Option<Meant>, TokenError> {
    let Some(parsed) = jwt::parse(token) else { return Ok(None) };
    let issuer = parsed.claims.text(&["iss"]);
    if issuer != LEGACY_ISSUER && issuer != server.config.service_account_issuer {
        return Ok(None);
    }
    let keys = &server.config.service_account_keys;
    if !keys.signed(&parsed) {
        return Err(if keys.knows(&parsed) { TokenError::Signature } else { TokenError::NoKey });
    }
    let claims = &parsed.claims;
    if issuer == LEGACY_ISSUER {
        // Those in secrets are for the API alone.
        let meant = meant(server.config.api_audiences(), wanted)?;
        return legacy(server, token, claims).map(|user| Some((user, meant)));
    }
    let audiences = match claims.get("aud") {
        Some(Value::String(one)) => vec![one.clone()],
        Some(several) => serde_json::from_value(several.clone()).unwrap_or_default(),
        None => server.config.api_audiences().to_vec(),
    };
    let meant = meant(&audiences, wanted)?;
    bound(server, claims).map(|user| Some((user, meant)))
}

/// A token that was asked for: good for a time, and as long as what it is bound to is there.
fn bound(server: &ApiServer, claims: &Object) -> Result<UserInfo, TokenError> {
    let now = jiff::Timestamp::now().as_second();
    let time = |claim: &str| claims.get(claim).and_then(Value::as_i64);
    if time("exp").is_none_or(|at| at + LEEWAY_SECONDS < now) {
        return Err(TokenError::Expired);
    }
    if time("nbf").is_some_and(|at| at - LEEWAY_SECONDS > now) {
        return Err(TokenError::NotYet);
    }
    let claim = |part: &str, key: &str| claims.text(&["kubernetes.io", part, key]).to_owned();
    let namespace = claims.text(&["kubernetes.io", "namespace"]).to_owned();
    let (name, uid) = (claim("serviceaccount", "name"), claim("serviceaccount", "uid"));
    check_account(server, &namespace, &name, &uid, now)?;
    let mut user = UserInfo::authenticated(
        format!("system:serviceaccount:{namespace}:{name}"),
        &["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")],
    );
    user.uid = uid;
    let is_bound = |part: &str| claims.at(&["kubernetes.io", part]).is_some();
    if is_bound("secret") {
        check_alive(server, "secret", &namespace, &claim("secret", "name"), &claim("secret", "uid"), now)?;
    }
    if is_bound("pod") {
        let (pod, uid) = (claim("pod", "name"), claim("pod", "uid"));
        check_alive(server, "pod", &namespace, &pod, &uid, now)?;
        user.extra.insert("authentication.kubernetes.io/pod-name".into(), vec![pod]);
        user.extra.insert("authentication.kubernetes.io/pod-uid".into(), vec![uid]);
    } else if is_bound("node") {
        // A pod's token only tells of the node; one bound to the node ends with it.
        check_alive(server, "node", "", &claim("node", "name"), &claim("node", "uid"), now)?;
    }
    for part in ["name", "uid"] {
        let value = claim("node", part);
        if !value.is_empty() {
            user.extra.insert(format!("authentication.kubernetes.io/node-{part}"), vec![value]);
        }
    }
    if let Some(id) = claims.get("jti").and_then(Value::as_str) {
        user.extra.insert(super::CREDENTIAL_ID.into(), vec![format!("JTI={id}")]);
    }
    Ok(user)
}

/// A token that a secret holds: good as long as the secret holds it.
fn legacy(server: &ApiServer, token: &str, claims: &Object) -> Result<UserInfo, TokenError> {
    let claim = |name: &str| claims.text(&[&format!("kubernetes.io/serviceaccount/{name}")]).to_owned();
    let (namespace, secret) = (claim("namespace"), claim("secret.name"));
    let (name, uid) = (claim("service-account.name"), claim("service-account.uid"));
    let user = format!("system:serviceaccount:{namespace}:{name}");
    if claims.text(&["sub"]) != user || secret.is_empty() {
        return Err(TokenError::Subject);
    }
    let stored = find(server, "secrets", &namespace, &secret).filter(|stored| !stored.is_terminating());
    let stored = stored.ok_or(TokenError::NoSecret)?;
    if STANDARD.decode(stored.text(&["data", "token"])).unwrap_or_default() != token.as_bytes() {
        return Err(TokenError::OtherCopy);
    }
    check_account(server, &namespace, &name, &uid, jiff::Timestamp::now().as_second())?;
    let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")];
    Ok(UserInfo { uid, ..UserInfo::authenticated(user, &groups) })
}

/// What should have gone by now counts as gone, whatever holds it.
fn is_overdue(object: &Object, now: i64) -> bool {
    let due = object.text(&["metadata", "deletionTimestamp"]).parse::<jiff::Timestamp>();
    due.is_ok_and(|due| due.as_second() + LEEWAY_SECONDS < now)
}

fn check_account(server: &ApiServer, namespace: &str, name: &str, uid: &str, now: i64) -> Result<(), TokenError> {
    let account = find(server, "serviceaccounts", namespace, name);
    let account = account.ok_or_else(|| TokenError::NoAccount(name.to_owned()))?;
    if account.uid() != uid {
        return Err(TokenError::OtherAccount(account.uid().to_owned(), uid.to_owned()));
    }
    match is_overdue(&account, now) {
        true => Err(TokenError::DeletedAccount(format!("{namespace}/{name}"))),
        false => Ok(()),
    }
}

fn check_alive(
    server: &ApiServer,
    kind: &'static str,
    namespace: &str,
    name: &str,
    uid: &str,
    now: i64,
) -> Result<(), TokenError> {
    let object = find(server, &format!("{kind}s"), namespace, name).ok_or(TokenError::Invalidated)?;
    if object.uid() != uid {
        return Err(TokenError::OtherObject { kind, uid: object.uid().to_owned(), claimed: uid.to_owned() });
    }
    if is_overdue(&object, now) { Err(TokenError::Invalidated) } else { Ok(()) }
}

/// `serviceaccounts/token`: a fresh token for the account, bound to a pod or secret if asked.
pub(crate) fn request(server: &ApiServer, namespace: &str, name: &str, mut request: Object) -> Result<Value, ApiError> {
    let accounts = api::GroupResource { group: "", resource: "serviceaccounts" };
    let invalid = |of: &str, field: &str, value: Value, why: &str| {
        let error = api::field::FieldError::invalid(field, value, why);
        ApiError::invalid("authentication.k8s.io", "TokenRequest", of, &[error])
    };
    if !request.namespace().is_empty() && request.namespace() != namespace {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(ApiError::bad_request(why));
    }
    if !request.name().is_empty() && request.name() != name {
        let why = "must match the service account name if specified";
        return Err(invalid(name, "metadata.name", request.name().into(), why));
    }
    let account =
        find(server, "serviceaccounts", namespace, name).ok_or_else(|| ApiError::not_found(accounts, name))?;
    let seconds = request.at(&["spec", "expirationSeconds"]).and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
    let wrong = match seconds {
        ..MIN_SECONDS => Some("may not specify a duration less than 10 minutes"),
        seconds if seconds > MAX_SECONDS => Some("may not specify a duration larger than 2^32 seconds"),
        _ => None,
    };
    if let Some(why) = wrong {
        return Err(invalid("", "spec.expirationSeconds", seconds.into(), why));
    }
    let mut own = json!({"namespace": namespace, "serviceaccount": {"name": name, "uid": account.uid()}});
    if let Some(reference) = request.at(&["spec", "boundObjectRef"]).and_then(Value::as_object) {
        let (kind, bound_name) = (reference.text(&["kind"]), reference.text(&["name"]));
        let (plural, claim) = match kind {
            "Pod" => ("pods", "pod"),
            "Secret" => ("secrets", "secret"),
            "Node" => ("nodes", "node"),
            other => {
                let (group, version) = match reference.text(&["apiVersion"]) {
                    "" => ("", ""),
                    text => text.split_once('/').unwrap_or(("", text)),
                };
                let why = format!("cannot bind token to object of type {group}/{version}, Kind={other}");
                return Err(ApiError::bad_request(why));
            }
        };
        if bound_name.is_empty() {
            return Err(ApiError::bad_request("Name parameter required."));
        }
        let resource = api::GroupResource { group: "", resource: plural };
        let object = find(server, plural, if kind == "Node" { "" } else { namespace }, bound_name)
            .ok_or_else(|| ApiError::not_found(resource, bound_name))?;
        if kind == "Pod" && object.text(&["spec", "serviceAccountName"]) != name {
            return Err(ApiError::bad_request(format!(
                "cannot bind token for serviceaccount {name:?} to pod running with different serviceaccount name."
            )));
        }
        let uid = reference.text(&["uid"]);
        if !uid.is_empty() && uid != object.uid() {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            );
            // Upstream names the kind here.
            return Err(ApiError::conflict(api::GroupResource { group: "", resource: kind }, bound_name, why));
        }
        if let Some(map) = own.as_object_mut() {
            map.insert(claim.into(), json!({"name": bound_name, "uid": object.uid()}));
            let node = object.text(&["spec", "nodeName"]);
            if kind == "Pod" && !node.is_empty() {
                let known = find(server, "nodes", "", node);
                let uid = known.map(|known| json!({"name": node, "uid": known.uid()}));
                map.insert("node".into(), uid.unwrap_or_else(|| json!({"name": node})));
            }
        }
    }
    let issuer = &server.config.service_account_issuer;
    let audiences = match request.at(&["spec", "audiences"]).and_then(Value::as_array) {
        Some(list) if !list.is_empty() => Value::Array(list.clone()),
        _ => json!(server.config.api_audiences()),
    };
    let now = jiff::Timestamp::now();
    let limits = &server.config.auth.tokens;
    let most = limits.max_expiration.and_then(|most| i64::try_from(most.as_secs()).ok());
    let seconds = most.map_or(seconds, |most| seconds.min(most));
    let expires = now + jiff::SignedDuration::from_secs(seconds);
    let of_the_api = audiences
        .as_array()
        .into_iter()
        .flatten()
        .all(|audience| server.config.api_audiences().iter().any(|own| audience == own.as_str()));
    let is_extended =
        limits.extend_expiration && own.get("pod").is_some() && seconds == WARN_ONLY_SECONDS && of_the_api;
    if let (true, Some(own)) = (is_extended, own.as_object_mut()) {
        own.insert("warnafter".into(), expires.as_second().into());
    }
    let lasts = if is_extended { most.map_or(EXTENDED_SECONDS, |most| most.min(EXTENDED_SECONDS)) } else { seconds };
    let claims = json!({
        "iss": issuer, "sub": format!("system:serviceaccount:{namespace}:{name}"), "aud": audiences,
        "iat": now.as_second(), "nbf": now.as_second(), "exp": now.as_second() + lasts,
        "jti": uuid::Uuid::new_v4().to_string(), "kubernetes.io": own,
    });
    let token = server.config.service_account_keys.sign(&claims).map_err(ApiError::internal)?;
    request.insert("kind".into(), "TokenRequest".into());
    request.insert("apiVersion".into(), "authentication.k8s.io/v1".into());
    request.at_mut(&["spec"]).insert("audiences".into(), audiences);
    request.at_mut(&["spec"]).insert("expirationSeconds".into(), seconds.into());
    let stamp = expires.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    request.insert("status".into(), json!({"token": token, "expirationTimestamp": stamp}));
    request.metadata().insert("name".into(), name.into());
    request.metadata().insert("namespace".into(), namespace.into());
    request.metadata().insert("uid".into(), account.uid().into());
    request.metadata().insert("creationTimestamp".into(), now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into());
    request.at_mut(&["spec"]).entry("boundObjectRef").or_insert(Value::Null);
    Ok(Value::Object(request))
}

fn find(server: &ApiServer, plural: &str, namespace: &str, name: &str) -> Option<Object> {
    let cache = server.registry.find("", "v1", plural)?.cache.as_ref()?;
    let key = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
    Some(cache.get(&key)?.decode())
}
