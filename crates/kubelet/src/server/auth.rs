//! Who calls the kubelet, and whether they may: by client certificate or bearer token, and by what the API server decides.
//!
//! As upstream's `pkg/kubelet/server/auth.go`: a token is checked by a TokenReview, and every request by SubjectAccessReviews for
//! `nodes/<subresource>` of this node, one of which must allow it. Answers are remembered for a while, and not without bound.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, Method};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

const TOKEN_TTL: Duration = Duration::from_secs(2 * 60);
const ALLOWED_TTL: Duration = Duration::from_secs(5 * 60);
const DENIED_TTL: Duration = Duration::from_secs(30);
const MAX_REMEMBERED: usize = 1000;
/// The API server limits them too; this keeps a flood of long headers out of its way.
const MAX_TOKEN: usize = 64 << 10;

/// The names in a client certificate; that it is genuine is the TLS configuration's business.
pub(super) fn holder(der: &[u8]) -> Option<UserInfo> {
    let subject = x509::Subject::of_certificate(der).ok().filter(|subject| !subject.common_name.is_empty())?;
    let groups = subject.organizations.into_iter().chain(["system:authenticated".to_owned()]).collect();
    Some(UserInfo { username: Some(subject.common_name), groups: Some(groups), ..Default::default() })
}

/// Why a request is not served: a status code and its text, both upstream's.
#[derive(Debug, PartialEq)]
pub(super) enum Refusal {
    Unauthorized,
    Forbidden(String),
    /// The API server did not answer.
    Unknown(String),
}

/// What a request does to this node, by upstream's rules.
#[derive(Debug, PartialEq)]
struct Attributes {
    verb: &'static str,
    /// Any of them is enough.
    subresources: Vec<&'static str>,
}

impl Attributes {
    fn of(method: &Method, path: &str) -> Self {
        let verb = match *method {
            Method::POST => "create",
            Method::GET => "get",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        };
        let is_below =
            |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let fine = [("/pods", "pods"), ("/healthz", "healthz"), ("/configz", "configz"), ("/runningpods", "pods")];
        let own = [
            ("/stats", "stats"),
            ("/metrics", "metrics"),
            ("/logs", "log"),
            ("/checkpoint", "checkpoint"),
            ("/statusz", "statusz"),
            ("/flagz", "configz"),
        ];
        let find =
            |table: &[(&str, &'static str)]| table.iter().find(|(root, _)| is_below(root)).map(|(_, name)| *name);
        let subresources = find(&fine).into_iter().chain([find(&own).unwrap_or("proxy")]).collect();
        Self { verb, subresources }
    }
}

/// Decides who may use this kubelet.
pub(super) struct Auth {
    client: kube::Client,
    node: String,
    tokens: Mutex<Remembered<[u8; 32], UserInfo>>,
    decisions: Mutex<Remembered<[u8; 32], bool>>,
}

impl Auth {
    pub(super) fn new(client: kube::Client, node: &str) -> Self {
        Self { client, node: node.to_owned(), tokens: Mutex::default(), decisions: Mutex::default() }
    }

    /// Lets the request pass, or says why not. `holder` is whom the connection's certificate names.
    pub(super) async fn check(
        &self,
        holder: Option<&UserInfo>,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let user = match (holder, bearer(headers)) {
            (Some(holder), _) => holder.clone(),
            (None, Some(token)) => self.token_user(token).await.ok_or(Refusal::Unauthorized)?,
            (None, None) => return Err(Refusal::Unauthorized),
        };
        let attributes = Attributes::of(method, path);
        let name = user.username.as_deref().unwrap_or_default();
        for subresource in &attributes.subresources {
            let allowed = self.is_allowed(&user, attributes.verb, subresource).await.map_err(|error| {
                tracing::warn!(user = name, %error, "a request to the kubelet could not be authorized");
                let verb = attributes.verb;
                Refusal::Unknown(format!(
                    "Authorization error (user={name}, verb={verb}, resource=nodes, subresource={subresource})"
                ))
            })?;
            if allowed {
                return Ok(());
            }
        }
        let (verb, subresources) = (attributes.verb, attributes.subresources.join(" "));
        Err(Refusal::Forbidden(format!(
            "Forbidden (user={name}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])\n"
        )))
    }

    async fn token_user(&self, token: &str) -> Option<UserInfo> {
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = self.tokens.lock().get(&key) {
            return Some(known);
        }
        let spec = TokenReviewSpec { token: token.to_owned(), ..Default::default() };
        let review = TokenReview { spec, ..Default::default() };
        let reviewed = Api::all(self.client.clone()).create(&PostParams::default(), &review).await;
        let status = reviewed
            .inspect_err(|error| tracing::warn!(%error, "a token could not be reviewed"))
            .ok()?
            .status
            .unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true))?;
        self.tokens.lock().put(key, user.clone(), TOKEN_TTL);
        Some(user)
    }

    async fn is_allowed(&self, user: &UserInfo, verb: &str, subresource: &str) -> Result<bool, kube::Error> {
        let key = decision_key(user, verb, subresource);
        if let Some(known) = self.decisions.lock().get(&key) {
            return Ok(known);
        }
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            version: Some("v1".to_owned()),
            resource: Some("nodes".to_owned()),
            subresource: Some(subresource.to_owned()),
            name: Some(self.node.clone()),
            ..Default::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: user.username.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
            resource_attributes: Some(attributes),
            ..Default::default()
        };
        let review = SubjectAccessReview { spec, ..Default::default() };
        let reviewed = Api::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let allowed = reviewed.status.is_some_and(|status| status.allowed);
        self.decisions.lock().put(key, allowed, if allowed { ALLOWED_TTL } else { DENIED_TTL });
        Ok(allowed)
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= MAX_TOKEN).then_some(token)
}

fn decision_key(user: &UserInfo, verb: &str, subresource: &str) -> [u8; 32] {
    let extra: BTreeMap<_, _> = user.extra.iter().flatten().collect();
    let all = serde_json::json!([user.username, user.uid, user.groups, extra, verb, subresource]);
    Sha256::digest(all.to_string()).into()
}

/// Answers with the time until which they hold.
struct Remembered<K, V>(HashMap<K, (V, Instant)>);

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: std::hash::Hash + Eq, V: Clone> Remembered<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        self.0.get(key).filter(|(_, until)| *until > Instant::now()).map(|(value, _)| value.clone())
    }

    fn put(&mut self, key: K, value: V, ttl: Duration) {
        let now = Instant::now();
        if self.0.len() >= MAX_REMEMBERED {
            self.0.retain(|_, (_, until)| *until > now);
        }
        if self.0.len() >= MAX_REMEMBERED {
            self.0.clear();
        }
        self.0.insert(key, (value, now + ttl));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_names_its_holder_by_the_last_common_name() {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "admin");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let user = holder(certificate.der()).expect("names");
        assert_eq!(user.username.as_deref(), Some("admin"));
        assert_eq!(user.groups, Some(vec!["system:masters".to_owned(), "system:authenticated".to_owned()]));
        assert_eq!(holder(b"nonsense"), None);
    }

    #[track_caller]
    fn check(method: Method, path: &str, verb: &str, subresources: &[&str]) {
        let got = Attributes::of(&method, path);
        assert_eq!((got.verb, got.subresources.as_slice()), (verb, subresources), "{method} {path}");
    }

    #[test]
    fn paths_are_authorized_as_upstream_authorizes_them() {
        check(Method::GET, "/stats/summary", "get", &["stats"]);
        check(Method::GET, "/metrics", "get", &["metrics"]);
        check(Method::GET, "/metrics/resource", "get", &["metrics"]);
        check(Method::GET, "/metricsfoo", "get", &["proxy"]);
        check(Method::GET, "/logs/syslog", "get", &["log"]);
        check(Method::GET, "/containerLogs/ns/pod/c", "get", &["proxy"]);
        check(Method::POST, "/exec/ns/pod/c", "create", &["proxy"]);
        check(Method::GET, "/pods", "get", &["pods", "proxy"]);
        check(Method::GET, "/runningpods/", "get", &["pods", "proxy"]);
        check(Method::GET, "/healthz/ping", "get", &["healthz", "proxy"]);
        check(Method::GET, "/configz", "get", &["configz", "proxy"]);
        check(Method::DELETE, "/", "delete", &["proxy"]);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_forgotten_in_time_and_never_pile_up() {
        let mut remembered = Remembered::default();
        remembered.put(0, true, DENIED_TTL);
        assert_eq!(remembered.get(&0), Some(true));
        tokio::time::advance(DENIED_TTL).await;
        assert_eq!(remembered.get(&0), None);
        for key in 0..3 * MAX_REMEMBERED {
            remembered.put(key, true, ALLOWED_TTL);
            assert!(remembered.0.len() <= MAX_REMEMBERED);
        }
    }
}
