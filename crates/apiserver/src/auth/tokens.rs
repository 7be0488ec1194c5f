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
/// Of tokens that secrets hold.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// Clocks differ a little between machines.
const LEEWAY_SECONDS: i64 = 10;

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("the token is malformed")]
    Malformed,
    #[error("the token's signature is not ours")]
    Signature,
    #[error("the token is not from issuer {0}")]
    Issuer(String),
    #[error("the token has expired")]
    Expired,
    #[error("the token is not yet valid")]
    NotYet,
    #[error("the token is meant for other audiences")]
    Audience,
    #[error("the token's {0} no longer exists")]
    Gone(&'static str),
}

/// The user a token stands for, and those of the wanted audiences that it is meant for; there must be one.
pub(crate) fn authenticate(
    server: &ApiServer,
    token: &str,
    wanted: &[String],
) -> Result<(UserInfo, Vec<String>), TokenError> {
    let parsed = jwt::parse(token).ok_or(TokenError::Malformed)?;
    if !server.config.service_account_keys.signed(&parsed) {
        return Err(TokenError::Signature);
    }
    let claims = parsed.claims;
    let issuer = claims.text(&["iss"]);
    if issuer == LEGACY_ISSUER {
        return legacy(server, token, &claims, wanted);
    }
    if issuer != server.config.service_account_issuer {
        return Err(TokenError::Issuer(server.config.service_account_issuer.clone()));
    }
    let now = jiff::Timestamp::now().as_second();
    let time = |claim: &str| claims.get(claim).and_then(Value::as_i64);
    if time("exp").is_none_or(|at| at + LEEWAY_SECONDS < now) {
        return Err(TokenError::Expired);
    }
    if time("nbf").is_some_and(|at| at - LEEWAY_SECONDS > now) {
        return Err(TokenError::NotYet);
    }
    let bound = |part: &str, key: &str| claims.text(&["kubernetes.io", part, key]).to_owned();
    let namespace = claims.text(&["kubernetes.io", "namespace"]).to_owned();
    let (name, uid) = (bound("serviceaccount", "name"), bound("serviceaccount", "uid"));
    check_alive(server, "serviceaccounts", &format!("{namespace}/{name}"), &uid, "service account")?;
    let mut user = UserInfo::authenticated(
        format!("system:serviceaccount:{namespace}:{name}"),
        &["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")],
    );
    user.uid = uid;
    if claims.at(&["kubernetes.io", "pod"]).is_some() {
        let (pod, uid) = (bound("pod", "name"), bound("pod", "uid"));
        check_alive(server, "pods", &format!("{namespace}/{pod}"), &uid, "pod")?;
        user.extra.insert("authentication.kubernetes.io/pod-name".into(), vec![pod]);
        user.extra.insert("authentication.kubernetes.io/pod-uid".into(), vec![uid]);
    } else if claims.at(&["kubernetes.io", "node"]).is_some() {
        // A pod's token only tells of the node; one bound to the node ends with it.
        check_alive(server, "nodes", &bound("node", "name"), &bound("node", "uid"), "node")?;
    }
    for part in ["name", "uid"] {
        let value = bound("node", part);
        if !value.is_empty() {
            user.extra.insert(format!("authentication.kubernetes.io/node-{part}"), vec![value]);
        }
    }
    if claims.at(&["kubernetes.io", "secret"]).is_some() {
        let (secret, uid) = (bound("secret", "name"), bound("secret", "uid"));
        check_alive(server, "secrets", &format!("{namespace}/{secret}"), &uid, "secret")?;
    }
    if let Some(id) = claims.get("jti").and_then(Value::as_str) {
        user.extra.insert("authentication.kubernetes.io/credential-id".into(), vec![format!("JTI={id}")]);
    }
    let audiences = claims.get("aud").and_then(Value::as_array).cloned().unwrap_or_default();
    let meant: Vec<String> = wanted.iter().filter(|name| audiences.iter().any(|own| own == *name)).cloned().collect();
    if meant.is_empty() {
        return Err(TokenError::Audience);
    }
    Ok((user, meant))
}

/// A token that a secret holds: good as long as the secret holds it, and for the API alone.
fn legacy(
    server: &ApiServer,
    token: &str,
    claims: &Object,
    wanted: &[String],
) -> Result<(UserInfo, Vec<String>), TokenError> {
    let claim = |name: &str| claims.text(&[&format!("kubernetes.io/serviceaccount/{name}")]).to_owned();
    let (namespace, secret) = (claim("namespace"), claim("secret.name"));
    let (name, uid) = (claim("service-account.name"), claim("service-account.uid"));
    let user = format!("system:serviceaccount:{namespace}:{name}");
    if claims.text(&["sub"]) != user || secret.is_empty() {
        return Err(TokenError::Malformed);
    }
    let stored = find(server, "secrets", &namespace, &secret).filter(|stored| !stored.is_terminating());
    let held = stored.map(|stored| STANDARD.decode(stored.text(&["data", "token"])).unwrap_or_default());
    if held.as_deref() != Some(token.as_bytes()) {
        return Err(TokenError::Gone("secret"));
    }
    check_alive(server, "serviceaccounts", &format!("{namespace}/{name}"), &uid, "service account")?;
    let meant: Vec<String> =
        wanted.iter().filter(|name| **name == server.config.service_account_issuer).cloned().collect();
    if meant.is_empty() {
        return Err(TokenError::Audience);
    }
    let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")];
    Ok((UserInfo { uid, ..UserInfo::authenticated(user, &groups) }, meant))
}

fn check_alive(server: &ApiServer, plural: &str, key: &str, uid: &str, what: &'static str) -> Result<(), TokenError> {
    let cache = server.registry.find("", "v1", plural).and_then(|served| served.cache.as_ref());
    let found = cache.and_then(|cache| cache.get(key)).map(|stored| stored.decode());
    if found.is_some_and(|object| object.uid() == uid) { Ok(()) } else { Err(TokenError::Gone(what)) }
}

/// `serviceaccounts/token`: a fresh token for the account, bound to a pod or secret if asked.
pub(crate) fn request(server: &ApiServer, namespace: &str, name: &str, mut request: Object) -> Result<Value, ApiError> {
    let accounts = api::GroupResource { group: "", resource: "serviceaccounts" };
    let account =
        find(server, "serviceaccounts", namespace, name).ok_or_else(|| ApiError::not_found(accounts, name))?;
    let seconds = request.at(&["spec", "expirationSeconds"]).and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
    if !(MIN_SECONDS..=MAX_SECONDS).contains(&seconds) {
        let detail = "may not specify a duration less than 10 minutes";
        let error = api::field::FieldError::invalid("spec.expirationSeconds", seconds, detail);
        return Err(ApiError::invalid("authentication.k8s.io", "TokenRequest", name, &[error]));
    }
    let mut own = json!({"namespace": namespace, "serviceaccount": {"name": name, "uid": account.uid()}});
    if let Some(reference) = request.at(&["spec", "boundObjectRef"]).and_then(Value::as_object) {
        let (kind, bound_name) = (reference.text(&["kind"]), reference.text(&["name"]));
        let (plural, claim) = match kind {
            "Pod" => ("pods", "pod"),
            "Secret" => ("secrets", "secret"),
            "Node" => ("nodes", "node"),
            other => {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token for serviceaccount {name:?} to object of kind {other:?}"
                )));
            }
        };
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
            return Err(ApiError::conflict(resource, bound_name, why));
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
        _ => json!([issuer]),
    };
    let now = jiff::Timestamp::now();
    let expires = now + jiff::SignedDuration::from_secs(seconds);
    let claims = json!({
        "iss": issuer, "sub": format!("system:serviceaccount:{namespace}:{name}"), "aud": audiences,
        "iat": now.as_second(), "nbf": now.as_second(), "exp": expires.as_second(),
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
    Ok(Value::Object(request))
}

fn find(server: &ApiServer, plural: &str, namespace: &str, name: &str) -> Option<Object> {
    let cache = server.registry.find("", "v1", plural)?.cache.as_ref()?;
    let key = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
    Some(cache.get(&key)?.decode())
}
