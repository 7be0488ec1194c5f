//! One request as the audit log tells it.

use std::collections::BTreeMap;

use ::http::{Request, header};
use api::{Object, ObjectExt as _, UserInfo};
use serde_json::{Value, json};

use super::ClientAddress;
use super::policy::{Level, Verdict};
use crate::http::Body;
use crate::pipeline::Context;

const LONGEST_ID: usize = 64;

pub(super) struct Event {
    verdict: Verdict,
    /// What does not change from stage to stage.
    fields: Object,
}

impl Event {
    /// `real` is who sent it, where that is known; the context has whom they act as.
    pub(super) fn new(verdict: Verdict, context: &Context, request: &Request<Body>, real: Option<&UserInfo>) -> Self {
        let info = &context.info;
        let text = |name: header::HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
        let asked =
            text(header::HeaderName::from_static("audit-id")).filter(|id| !id.is_empty() && id.len() <= LONGEST_ID);
        let id = asked.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
        let uri = request.uri().path_and_query().map_or("", |uri| uri.as_str());
        let mut fields = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": verdict.level.name(), "auditID": id,
            "requestURI": uri, "verb": info.verb, "user": real.map_or_else(|| json!({}), user_of),
            "requestReceivedTimestamp": now(),
        })
        .as_object()
        .cloned()
        .unwrap_or_default();
        if real.is_some_and(|real| real.name != context.user.name) {
            fields.insert("impersonatedUser".into(), user_of(&context.user));
        }
        let mut addresses: Vec<String> = Vec::new();
        let forwarded = text(header::HeaderName::from_static("x-forwarded-for")).unwrap_or_default().split(',');
        let near = text(header::HeaderName::from_static("x-real-ip")).unwrap_or_default();
        let peer = request.extensions().get::<ClientAddress>().map(|ClientAddress(address)| address.to_string());
        for address in forwarded.map(str::trim).chain([near]).chain(peer.as_deref()) {
            if address.parse::<std::net::IpAddr>().is_ok() && !addresses.iter().any(|known| known == address) {
                addresses.push(address.to_owned());
            }
        }
        if !addresses.is_empty() {
            fields.insert("sourceIPs".into(), json!(addresses));
        }
        if let Some(agent) = text(header::USER_AGENT) {
            fields.insert("userAgent".into(), agent.into());
        }
        if info.is_resource {
            let parts = [
                ("resource", &info.resource),
                ("namespace", &info.namespace),
                ("name", &info.name),
                ("apiGroup", &info.group),
                ("apiVersion", &info.version),
                ("subresource", &info.subresource),
            ];
            let parts = parts.into_iter().filter(|(_, value)| !value.is_empty());
            let reference: Object = parts.map(|(name, value)| (name.to_owned(), value.as_str().into())).collect();
            fields.insert("objectRef".into(), reference.into());
        }
        Self { verdict, fields }
    }

    pub(super) fn level(&self) -> Level {
        self.verdict.level
    }

    pub(super) fn id(&self) -> &str {
        self.fields.text(&["auditID"])
    }

    pub(super) fn omits(&self, stage: &str) -> bool {
        self.verdict.omit_stages.contains(&stage)
    }

    /// What was sent; a new object tells its own name.
    pub(super) fn set_request(&mut self, object: Option<Value>) {
        let Some(mut object) = object else { return };
        for field in ["name", "namespace", "uid", "resourceVersion"] {
            let value = object
                .pointer(&format!("/metadata/{field}"))
                .filter(|value| value.as_str().is_some_and(|v| !v.is_empty()));
            if let (Some(value), true) = (value, self.fields.contains_key("objectRef")) {
                self.fields.at_mut(&["objectRef"]).entry(field).or_insert_with(|| value.clone());
            }
        }
        if self.level() >= Level::Request {
            self.forget_managers(&mut object);
            self.fields.insert("requestObject".into(), object);
        }
    }

    /// `reason` is why it was allowed, and nothing if it was not.
    pub(super) fn set_decision(&mut self, reason: Option<&str>, mut annotations: BTreeMap<String, String>) {
        let (decision, reason) = reason.map_or(("forbid", ""), |reason| ("allow", reason));
        annotations.insert("authorization.k8s.io/decision".into(), decision.into());
        annotations.insert("authorization.k8s.io/reason".into(), reason.into());
        self.fields.insert("annotations".into(), json!(annotations));
    }

    pub(super) fn line(&self, stage: &str, status: Option<Value>, object: Option<Value>) -> String {
        let mut fields = self.fields.clone();
        fields.insert("stage".into(), stage.into());
        fields.insert("stageTimestamp".into(), now().into());
        if let Some(status) = status {
            fields.insert("responseStatus".into(), status);
        }
        if let (Some(mut object), Level::RequestResponse) = (object, self.level()) {
            self.forget_managers(&mut object);
            fields.insert("responseObject".into(), object);
        }
        let mut line = Value::Object(fields).to_string();
        line.push('\n');
        line
    }

    fn forget_managers(&self, object: &mut Value) {
        if !self.verdict.omit_managed_fields {
            return;
        }
        let forget = |one: &mut Value| {
            one.get_mut("metadata").and_then(Value::as_object_mut).map(|metadata| metadata.remove("managedFields"));
        };
        forget(object);
        object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(forget);
    }
}

/// A status as part of an event, which says itself what it is.
pub(super) fn bare_status(mut status: Value) -> Value {
    if let Some(map) = status.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    status
}

fn user_of(user: &UserInfo) -> Value {
    let mut value = Object::from_iter([("username".to_owned(), user.name.as_str().into())]);
    if !user.uid.is_empty() {
        value.insert("uid".into(), user.uid.as_str().into());
    }
    if !user.groups.is_empty() {
        value.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        value.insert("extra".into(), json!(user.extra));
    }
    value.into()
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
