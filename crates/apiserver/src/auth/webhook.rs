//! Webhooks that say who a token is of, and who may do what; their answers are kept for a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{Object, ObjectExt as _, UserInfo};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::expression::Expression;
use super::{Access, Decision, Verdict};
use crate::outbound::{Outbound, OutboundError};

/// How many answers are kept.
const CACHE_SIZE: usize = 4096;
/// What names a user may choose must not fill memory.
const MAX_CACHED_KEY: usize = 10_000;

/// Answers, each until its time is over.
pub(crate) struct Cache<T> {
    entries: Mutex<HashMap<String, (Instant, T)>>,
}

impl<T: Clone> Cache<T> {
    pub(crate) fn new() -> Self {
        Self { entries: Mutex::default() }
    }

    pub(crate) fn get(&self, key: &str, now: Instant) -> Option<T> {
        let entries = self.entries.lock();
        entries.get(key).filter(|(until, _)| *until > now).map(|(_, value)| value.clone())
    }

    pub(crate) fn put(&self, key: String, value: T, until: Instant, now: Instant) {
        if until <= now || key.len() > MAX_CACHED_KEY {
            return;
        }
        let mut entries = self.entries.lock();
        if entries.len() >= CACHE_SIZE {
            entries.retain(|_, (until, _)| *until > now);
        }
        if entries.len() >= CACHE_SIZE {
            entries.clear();
        }
        entries.insert(key, (until, value));
    }
}

/// `--authentication-token-webhook-*`
pub(crate) struct TokenWebhook {
    pub(super) http: Outbound,
    pub(super) version: String,
    pub(super) time_to_live: Duration,
    cache: Cache<Option<(UserInfo, Vec<String>)>>,
}

impl TokenWebhook {
    pub(super) fn new(http: Outbound, version: String, time_to_live: Duration) -> Self {
        Self { http, version, time_to_live, cache: Cache::new() }
    }

    /// The user, and those of the wanted audiences the token is for; `None` if it is nobody's.
    pub(super) async fn authenticate(
        &self,
        token: &str,
        wanted: &[String],
        api: &[String],
    ) -> Result<Option<(UserInfo, Vec<String>)>, OutboundError> {
        // The token itself is not kept.
        let digest = ring::digest::digest(&ring::digest::SHA256, format!("{token}\0{}", wanted.join("\0")).as_bytes());
        let key: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let now = Instant::now();
        if let Some(known) = self.cache.get(&key, now) {
            return Ok(known);
        }
        let review = json!({
            "apiVersion": format!("authentication.k8s.io/{}", self.version), "kind": "TokenReview",
            "spec": {"token": token, "audiences": wanted},
        });
        let answer = self.http.post(&review).await?;
        let found = answer.get("status").and_then(Value::as_object).and_then(|status| user_of(status, wanted, api));
        self.cache.put(key, found.clone(), now + self.time_to_live, now);
        Ok(found)
    }
}

fn user_of(status: &Object, wanted: &[String], api: &[String]) -> Option<(UserInfo, Vec<String>)> {
    let strings = |value: Option<&Value>| -> Vec<String> {
        value.and_then(|list| serde_json::from_value(list.clone()).ok()).unwrap_or_default()
    };
    if status.get("authenticated") != Some(&Value::Bool(true)) {
        return None;
    }
    // Who does not speak of audiences speaks of the API's own.
    let told = strings(status.get("audiences"));
    let own = if told.is_empty() { api } else { &told };
    let meant: Vec<String> = wanted.iter().filter(|name| own.contains(name)).cloned().collect();
    if meant.is_empty() {
        return None;
    }
    let name = status.text(&["user", "username"]).to_owned();
    let user = UserInfo {
        name,
        uid: status.text(&["user", "uid"]).to_owned(),
        groups: strings(status.at(&["user", "groups"])),
        extra: status
            .at(&["user", "extra"])
            .and_then(|all| serde_json::from_value(all.clone()).ok())
            .unwrap_or_default(),
    };
    Some((user, meant))
}

/// An authorizer elsewhere.
pub(crate) struct AccessWebhook {
    pub(super) http: Arc<Outbound>,
    pub(super) version: String,
    pub(super) authorized_ttl: Duration,
    pub(super) unauthorized_ttl: Duration,
    /// Nobody passes while it does not answer.
    pub(super) denies_on_failure: bool,
    pub(super) timeout: Duration,
    /// All must hold for it to be asked.
    pub(super) conditions: Vec<Expression>,
    cache: Cache<Decision>,
}

impl AccessWebhook {
    pub(super) fn new(
        http: Outbound,
        version: String,
        ttl: (Duration, Duration),
        denies: bool,
        timeout: Duration,
    ) -> Self {
        Self {
            http: Arc::new(http),
            version,
            authorized_ttl: ttl.0,
            unauthorized_ttl: ttl.1,
            denies_on_failure: denies,
            timeout,
            conditions: Vec::new(),
            cache: Cache::new(),
        }
    }

    /// Whether to ask; one that is false settles it, whatever becomes of the others.
    fn is_asked(&self, spec: &Value) -> Result<bool, String> {
        let found: Vec<Result<bool, String>> = self.conditions.iter().map(|condition| condition.holds(spec)).collect();
        if found.contains(&Ok(false)) {
            return Ok(false);
        }
        found.into_iter().collect::<Result<Vec<bool>, String>>().map(|_| true)
    }

    fn failed(&self, error: &str) -> Decision {
        tracing::error!(%error, "the authorization webhook failed");
        let verdict = if self.denies_on_failure { Verdict::Deny } else { Verdict::NoOpinion };
        Decision { verdict, reason: String::new() }
    }

    pub(super) async fn decide(&self, user: &UserInfo, access: &Access<'_>) -> Decision {
        let spec = spec_of(user, access);
        match self.is_asked(&spec) {
            Ok(true) => (),
            Ok(false) => return Decision::no_opinion(""),
            Err(error) => return self.failed(&error),
        }
        let (key, now) = (spec.to_string(), Instant::now());
        if let Some(known) = self.cache.get(&key, now) {
            return known;
        }
        let review = json!({
            "apiVersion": format!("authorization.k8s.io/{}", self.version), "kind": "SubjectAccessReview", "spec": spec,
        });
        let answer = match tokio::time::timeout(self.timeout, self.http.post(&review)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return self.failed(&error.to_string()),
            Err(_) => return self.failed("no answer in time"),
        };
        let decision = decision_of(answer.get("status").and_then(Value::as_object));
        let ttl = if decision.is_allowed() { self.authorized_ttl } else { self.unauthorized_ttl };
        self.cache.put(key, decision.clone(), now + ttl, now);
        decision
    }
}

fn decision_of(status: Option<&Object>) -> Decision {
    let is = |field: &str| status.is_some_and(|status| status.get(field) == Some(&Value::Bool(true)));
    let verdict = match (is("denied"), is("allowed")) {
        (true, _) => Verdict::Deny,
        (false, true) => Verdict::Allow,
        (false, false) => Verdict::NoOpinion,
    };
    Decision { verdict, reason: status.map(|status| status.text(&["reason"]).to_owned()).unwrap_or_default() }
}

fn spec_of(user: &UserInfo, access: &Access<'_>) -> Value {
    let mut spec = json!({"user": user.name});
    let Some(map) = spec.as_object_mut() else { return spec };
    if !user.uid.is_empty() {
        map.insert("uid".into(), user.uid.clone().into());
    }
    if !user.groups.is_empty() {
        map.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        map.insert("extra".into(), json!(user.extra));
    }
    if !access.is_resource {
        map.insert("nonResourceAttributes".into(), json!({"path": access.path, "verb": access.verb}));
        return spec;
    }
    let parts = [
        ("namespace", access.namespace),
        ("verb", access.verb),
        ("group", access.group),
        ("version", access.version),
        ("resource", access.resource),
        ("subresource", access.subresource),
        ("name", access.name),
    ];
    let named = parts.into_iter().filter(|(_, text)| !text.is_empty());
    let mut attributes: Object = named.map(|(name, text)| (name.to_owned(), text.into())).collect();
    let requirements: Vec<Value> = access
        .field_selector
        .iter()
        .flat_map(|selector| &selector.0)
        .map(|requirement| {
            let operator = if requirement.equals { "In" } else { "NotIn" };
            json!({"key": requirement.field, "operator": operator, "values": [requirement.value]})
        })
        .collect();
    if !requirements.is_empty() {
        attributes.insert("fieldSelector".into(), json!({"requirements": requirements}));
    }
    map.insert("resourceAttributes".into(), attributes.into());
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_strictly() {
        let check = |status: Value, want: Verdict| {
            assert_eq!(decision_of(status.as_object()).verdict, want, "{status}");
        };
        check(json!({"allowed": true}), Verdict::Allow);
        check(json!({"allowed": true, "denied": true}), Verdict::Deny);
        check(json!({"allowed": "true"}), Verdict::NoOpinion);
        check(json!(null), Verdict::NoOpinion);
        let user = |status: Value| {
            user_of(status.as_object().unwrap(), &["api".into()], &["api".into()]).map(|(user, _)| user.name)
        };
        assert_eq!(user(json!({"authenticated": true, "user": {"username": "bob"}})), Some("bob".into()));
        assert_eq!(user(json!({"authenticated": true, "audiences": ["x"], "user": {"username": "bob"}})), None);
        assert_eq!(user(json!({"authenticated": false, "user": {"username": "bob"}})), None);
        assert_eq!(user(json!({"authenticated": "yes", "user": {"username": "bob"}})), None);
    }

    #[test]
    fn what_is_kept_expires() {
        let cache = Cache::new();
        let now = Instant::now();
        cache.put("a".into(), 1, now + Duration::from_secs(1), now);
        assert_eq!((cache.get("a", now), cache.get("a", now + Duration::from_secs(2))), (Some(1), None));
        cache.put("b".repeat(MAX_CACHED_KEY + 1), 1, now + Duration::from_secs(1), now);
        assert_eq!(cache.entries.lock().len(), 1);
    }
}
