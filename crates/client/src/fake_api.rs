//! A small API server for this crate's tests: one resource type, list, watch, get, create, replace and strategic patch.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{Body, in_process};

type Reply = UnsyncBoxBody<Bytes, tower::BoxError>;

#[derive(Clone, Default)]
pub(crate) struct FakeApi {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    revision: u64,
    objects: BTreeMap<String, Value>,
    watches: Vec<mpsc::UnboundedSender<Bytes>>,
    /// Every request as "METHOD /path?query".
    requests: Vec<String>,
    users: Vec<String>,
    /// The status codes of the next watches, before they are served again.
    refuse_watches: Vec<u16>,
    down: bool,
}

impl FakeApi {
    pub(crate) fn client(&self, name: &str) -> kube::Client {
        let this = self.clone();
        let user = api::UserInfo { name: name.into(), ..Default::default() };
        in_process(move |request| this.clone().serve(request), user)
    }

    pub(crate) fn put(&self, name: &str, data: &str) {
        let mut state = self.state.lock();
        let object =
            json!({ "metadata": { "name": name, "namespace": "default", "uid": name }, "data": { "v": data } });
        state.put(name, object);
    }

    pub(crate) fn delete(&self, name: &str) {
        let mut state = self.state.lock();
        state.revision += 1;
        if let Some(mut object) = state.objects.remove(name) {
            object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
            state.tell("DELETED", &object);
        }
    }

    /// Ends all watches without telling them what happened meanwhile, and answers the next ones with `codes`.
    pub(crate) fn break_watches(&self, codes: &[u16]) {
        let mut state = self.state.lock();
        state.watches.clear();
        state.refuse_watches = codes.to_vec();
    }

    /// Changes what is stored without telling anybody.
    pub(crate) fn silently(&self, change: impl FnOnce(&Self)) {
        let watches = std::mem::take(&mut self.state.lock().watches);
        change(self);
        self.state.lock().watches = watches;
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.state.lock().down = down;
    }

    pub(crate) fn object(&self, name: &str) -> Option<Value> {
        self.state.lock().objects.get(name).cloned()
    }

    pub(crate) fn objects(&self) -> Vec<Value> {
        self.state.lock().objects.values().cloned().collect()
    }

    pub(crate) fn requests(&self, prefix: &str) -> usize {
        self.state.lock().requests.iter().filter(|request| request.starts_with(prefix)).count()
    }

    pub(crate) fn users(&self) -> Vec<String> {
        self.state.lock().users.clone()
    }

    async fn serve(self, request: Request<Body>) -> Response<Reply> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let mut state = self.state.lock();
        state.requests.push(format!("{} {}", parts.method, parts.uri));
        state.users.push(parts.extensions.get::<api::UserInfo>().unwrap().name.clone());
        if state.down {
            return status(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable");
        }
        let last = parts.uri.path().rsplit('/').next().unwrap();
        let is_collection = ["configmaps", "leases", "events"].contains(&last);
        let sent = || serde_json::from_slice::<Value>(&body).unwrap();
        match (parts.method, is_collection) {
            (Method::GET, true) if parts.uri.query().is_some_and(|query| query.contains("watch=true")) => state.watch(),
            (Method::GET, true) => {
                let items: Vec<_> = state.objects.values().collect();
                ok(&json!({ "metadata": { "resourceVersion": state.revision.to_string() }, "items": items }))
            }
            (Method::GET, false) => match state.objects.get(last) {
                Some(object) => ok(object),
                None => status(StatusCode::NOT_FOUND, "NotFound"),
            },
            (Method::POST, true) => {
                let object = sent();
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                ok(&state.put(&name, object))
            }
            (Method::PUT, false) => {
                let object = sent();
                let known = state.objects.get(last).map(|known| &known["metadata"]["resourceVersion"]);
                if known != Some(&object["metadata"]["resourceVersion"]) {
                    return status(StatusCode::CONFLICT, "Conflict");
                }
                ok(&state.put(last, object))
            }
            (Method::PATCH, false) => {
                let Some(mut object) = state.objects.get(last).cloned() else {
                    return status(StatusCode::NOT_FOUND, "NotFound");
                };
                for (field, value) in sent().as_object().unwrap() {
                    object[field] = value.clone();
                }
                ok(&state.put(last, object))
            }
            _ => status(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        }
    }
}

impl State {
    fn put(&mut self, name: &str, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let kind = if self.objects.contains_key(name) { "MODIFIED" } else { "ADDED" };
        self.objects.insert(name.to_owned(), object.clone());
        self.tell(kind, &object);
        object
    }

    fn tell(&mut self, kind: &str, object: &Value) {
        let line = Bytes::from(format!("{}\n", json!({ "type": kind, "object": object })));
        self.watches.retain(|watch| watch.send(line.clone()).is_ok());
    }

    fn watch(&mut self) -> Response<Reply> {
        if let Some(code) = self.refuse_watches.pop() {
            return status(StatusCode::from_u16(code).unwrap(), "Refused");
        }
        let (watch, lines) = mpsc::unbounded_channel();
        self.watches.push(watch);
        let lines =
            futures::stream::unfold(lines, |mut lines| async move { lines.recv().await.map(|line| (line, lines)) });
        Response::new(StreamBody::new(lines.map(|line| Ok(Frame::data(line)))).boxed_unsync())
    }
}

fn ok(value: &Value) -> Response<Reply> {
    Response::new(Full::from(value.to_string()).map_err(|never| match never {}).boxed_unsync())
}

fn status(code: StatusCode, reason: &str) -> Response<Reply> {
    let body = json!({ "status": "Failure", "message": reason, "reason": reason, "code": code.as_u16() });
    let mut response = ok(&body);
    *response.status_mut() = code;
    response
}
