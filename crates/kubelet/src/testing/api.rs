//! A small API server: objects by path, list, watch, create, status patch, delete; events are only remembered.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use client::{Body, in_process};
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

type Reply = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Clone, Default)]
pub(crate) struct Api {
    state: Arc<Mutex<State>>,
    changes: Arc<Notify>,
}

#[derive(Default)]
struct State {
    revision: u64,
    /// By `/api/v1/namespaces/NS/RESOURCE/NAME` or `/api/v1/RESOURCE/NAME`.
    objects: BTreeMap<String, Value>,
    /// The resource, and where its changes go.
    watches: Vec<(String, mpsc::UnboundedSender<Bytes>)>,
    events: Vec<String>,
    reviews: Vec<String>,
    tokens: u64,
    next_uid: u64,
    /// Every state of one object, its last one included.
    followed: Option<(String, Followed)>,
}

pub(crate) type Followed = Arc<Mutex<Vec<Value>>>;

fn resource_of(path: &str) -> &str {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match parts.as_slice() {
        [.., "namespaces", _, resource] | [.., "namespaces", _, resource, _] => resource,
        ["api", "v1", resource, ..] | ["apis", _, _, resource, ..] => resource,
        _ => "",
    }
}

impl Api {
    pub(crate) fn client(&self) -> kube::Client {
        let this = self.clone();
        in_process(
            move |request| this.clone().serve(request),
            api::UserInfo { name: format!("system:node:{}", super::NODE), ..Default::default() },
        )
    }

    /// `collection` such as `/api/v1/pods`; with a namespace the object goes below it.
    pub(crate) fn put(&self, collection: &str, namespace: &str, object: Value) {
        let name = object["metadata"]["name"].as_str().expect("a name");
        let resource = resource_of(collection);
        let path = if namespace.is_empty() {
            format!("{collection}/{name}")
        } else {
            format!("/api/v1/namespaces/{namespace}/{resource}/{name}")
        };
        self.state.lock().put(&path, object.clone());
        self.changes.notify_waiters();
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().objects.get(path).cloned()
    }

    pub(crate) fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.state.lock();
        let mut object = state.objects.get(path).cloned().expect("an object");
        change(&mut object);
        state.put(path, object);
        drop(state);
        self.changes.notify_waiters();
    }

    pub(crate) fn remove(&self, path: &str) {
        self.state.lock().remove(path);
        self.changes.notify_waiters();
    }

    pub(crate) fn follow(&self, path: &str) -> Followed {
        let states = Followed::default();
        self.state.lock().followed = Some((path.to_owned(), states.clone()));
        states
    }

    /// `Reason: message` of everything recorded.
    /// What was asked about users so far.
    pub(crate) fn reviews(&self) -> Vec<String> {
        self.state.lock().reviews.clone()
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.state.lock().events.clone()
    }

    /// Resolves at the next change after the call.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + use<> {
        let changes = self.changes.clone();
        async move { changes.notified().await }
    }

    async fn serve(self, request: Request<Body>) -> Response<Reply> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let sent = || serde_json::from_slice::<Value>(&body).expect("JSON");
        let mut state = self.state.lock();
        let reply = match parts.method {
            Method::POST if path.ends_with("/token") => {
                state.tokens += 1;
                let status = json!({ "token": format!("token-{}", state.tokens), "expirationTimestamp": "2026-01-01T01:00:00Z" });
                ok(&json!({ "metadata": {}, "spec": { "audiences": [] }, "status": status }))
            }
            // One token is known, and three users may do something.
            Method::POST if path.ends_with("/tokenreviews") => {
                let mut review = sent();
                if review["spec"]["token"] == "scraper-token" {
                    review["status"] = json!({ "authenticated": true, "user": { "username": "scraper" } });
                }
                state.reviews.push(format!("token {}", review["spec"]["token"].as_str().unwrap_or_default()));
                ok(&review)
            }
            Method::POST if path.ends_with("/subjectaccessreviews") => {
                let mut review = sent();
                let attributes = &review["spec"]["resourceAttributes"];
                let text = |field: &str| attributes[field].as_str().unwrap_or_default().to_owned();
                let asked = format!("{} {} {}/{}", text("verb"), text("resource"), text("name"), text("subresource"));
                let allowed = match review["spec"]["user"].as_str().unwrap_or_default() {
                    "kube-apiserver-kubelet-client" => true,
                    "scraper" => text("subresource") == "stats",
                    "reader" => text("subresource") == "pods",
                    _ => false,
                };
                state.reviews.push(asked);
                review["status"] = json!({ "allowed": allowed });
                ok(&review)
            }
            Method::POST if path.ends_with("/events") => {
                let event = sent();
                let line = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
                state.events.push(format!("{}: {}", line("reason"), line("message")));
                ok(&event)
            }
            Method::POST if path.ends_with("/pods") => {
                let mut pod = sent();
                state.next_uid += 1;
                pod["metadata"]["uid"] = json!(format!("mirror-{}", state.next_uid));
                let at = format!("{path}/{}", pod["metadata"]["name"].as_str().expect("a name"));
                pod["status"] = json!({ "phase": "Pending" });
                ok(&state.put(&at, pod))
            }
            Method::GET if query.contains("watch=true") => state.watch(&path),
            Method::GET if state.objects.contains_key(&path) => ok(&state.objects[&path]),
            Method::GET
                if [3, 5].contains(&path.matches('/').count())
                    || (path.starts_with("/apis/") && path.matches('/').count() == 4) =>
            {
                let name = query.split("metadata.name%3D").nth(1).or_else(|| query.split("metadata.name=").nth(1));
                let name = name.map(|name| name.split('&').next().unwrap_or(name).to_owned());
                let items: Vec<_> = state
                    .objects
                    .iter()
                    .filter(|(at, _)| resource_of(at) == resource_of(&path))
                    .filter(|(at, _)| name.as_deref().is_none_or(|name| at.ends_with(&format!("/{name}"))))
                    .map(|(_, object)| object.clone())
                    .collect();
                ok(&json!({ "metadata": { "resourceVersion": state.revision.to_string() }, "items": items }))
            }
            Method::GET => status(StatusCode::NOT_FOUND),
            Method::PATCH => {
                let at = path.trim_end_matches("/status").to_owned();
                match state.objects.get(&at).cloned() {
                    Some(mut object) => {
                        merge_status(&mut object["status"], &sent()["status"]);
                        ok(&state.put(&at, object))
                    }
                    None => status(StatusCode::NOT_FOUND),
                }
            }
            Method::DELETE => match state.remove(&path) {
                Some(object) => ok(&object),
                None => status(StatusCode::NOT_FOUND),
            },
            _ => status(StatusCode::METHOD_NOT_ALLOWED),
        };
        drop(state);
        self.changes.notify_waiters();
        reply
    }
}

/// As a strategic merge does it for a pod's status.
fn merge_status(target: &mut Value, patch: &Value) {
    for (field, value) in patch.as_object().expect("an object") {
        match field.as_str() {
            _ if value.is_null() => {
                target.as_object_mut().expect("an object").remove(field);
            }
            "conditions" => {
                let mut all = target["conditions"].as_array().cloned().unwrap_or_default();
                for new in value.as_array().expect("a list") {
                    all.retain(|old| old["type"] != new["type"]);
                    all.push(new.clone());
                }
                target["conditions"] = Value::Array(all);
            }
            "podIPs" | "hostIPs" => {
                target[field] = value.as_array().expect("a list").iter().skip(1).cloned().collect();
            }
            _ => target[field] = value.clone(),
        }
    }
}

impl State {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let kind = if self.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        self.objects.insert(path.to_owned(), object.clone());
        self.tell(path, kind, &object);
        object
    }

    fn remove(&mut self, path: &str) -> Option<Value> {
        let object = self.objects.remove(path)?;
        if let Some((_, states)) = self.followed.as_ref().filter(|(followed, _)| followed == path) {
            states.lock().push(object.clone());
        }
        self.revision += 1;
        self.tell(path, "DELETED", &object);
        Some(object)
    }

    fn tell(&mut self, path: &str, kind: &str, object: &Value) {
        let line = Bytes::from(format!("{}\n", json!({ "type": kind, "object": object })));
        self.watches.retain(|(resource, to)| resource != resource_of(path) || to.send(line.clone()).is_ok());
    }

    fn watch(&mut self, path: &str) -> Response<Reply> {
        let (to, lines) = mpsc::unbounded_channel();
        self.watches.push((resource_of(path).to_owned(), to));
        let lines =
            futures::stream::unfold(lines, |mut lines| async move { lines.recv().await.map(|line| (line, lines)) });
        Response::new(StreamBody::new(lines.map(|line| Ok(Frame::data(line)))).boxed_unsync())
    }
}

fn ok(value: &Value) -> Response<Reply> {
    Response::new(Full::from(value.to_string()).map_err(|never| match never {}).boxed_unsync())
}

fn status(code: StatusCode) -> Response<Reply> {
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let mut response = ok(&json!({ "status": "Failure", "message": reason, "reason": reason, "code": code.as_u16() }));
    *response.status_mut() = code;
    response
}
