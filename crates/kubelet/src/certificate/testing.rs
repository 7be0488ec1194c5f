//! An authority behind a small API: approves and signs what is asked for, waits for a word first, or refuses all.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::{Body, in_process};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Authorities date back.
const BACKDATE_SECONDS: i64 = 300;

pub(super) struct Authority {
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
    seconds: Option<i64>,
    requests: Mutex<BTreeMap<String, Value>>,
    asked: watch::Sender<usize>,
    approves: watch::Sender<bool>,
}

impl Authority {
    fn new(seconds: Option<i64>, approves: bool) -> Arc<Self> {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
        let (asked, approves) = (watch::Sender::new(0), watch::Sender::new(approves));
        Arc::new(Self { issuer, seconds, requests: Mutex::default(), asked, approves })
    }

    pub(super) fn signing(seconds: i64) -> Arc<Self> {
        Self::new(Some(seconds), true)
    }

    /// Until [`Self::approve`].
    pub(super) fn hesitating(seconds: i64) -> Arc<Self> {
        Self::new(Some(seconds), false)
    }

    pub(super) fn refusing() -> Arc<Self> {
        Self::new(None, false)
    }

    pub(super) fn approve(&self) {
        self.approves.send_replace(true);
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.requests.lock().keys().cloned().collect()
    }

    pub(super) async fn until_asked(&self, times: usize) {
        self.asked.subscribe().wait_for(|asked| *asked >= times).await.unwrap();
    }

    pub(super) fn client(self: &Arc<Self>) -> kube::Client {
        let this = self.clone();
        in_process(move |request| this.clone().serve(request), api::UserInfo::default())
    }

    async fn serve(self: Arc<Self>, request: Request<Body>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
        if parts.method == Method::POST {
            let created = self.create(&serde_json::from_slice(&body).unwrap());
            self.asked.send_modify(|asked| *asked += 1);
            return created;
        }
        if let Some(named) = self.requests.lock().get(path.rsplit('/').next().unwrap()) {
            return reply(StatusCode::OK, named);
        }
        if query.contains("watch=true") {
            self.approves.subscribe().wait_for(|approves| *approves).await.unwrap();
            let told: String =
                self.signed().map(|object| json!({"type": "MODIFIED", "object": object}).to_string()).collect();
            return Response::new(Full::new(told.into()));
        }
        let items: Vec<Value> = match *self.approves.borrow() {
            true => self.signed().filter(|item| query.contains(item["metadata"]["name"].as_str().unwrap())).collect(),
            false => self.requests.lock().values().cloned().collect(),
        };
        reply(StatusCode::OK, &json!({"metadata": {"resourceVersion": "1"}, "items": items}))
    }

    fn create(&self, object: &Value) -> Response<Full<Bytes>> {
        let status = |code: u16, reason: &str| {
            let code_of = StatusCode::from_u16(code).unwrap();
            reply(
                code_of,
                &json!({"kind": "Status", "status": "Failure", "message": reason, "reason": reason, "code": code}),
            )
        };
        if self.seconds.is_none() {
            return status(401, "Unauthorized");
        }
        let mut requests = self.requests.lock();
        let name = object["metadata"]["name"].as_str().map_or_else(|| format!("csr-{}", requests.len()), str::to_owned);
        if requests.contains_key(&name) {
            return status(409, "AlreadyExists");
        }
        let mut object = object.clone();
        object["metadata"] = json!({"name": name, "uid": format!("uid-of-{name}"), "resourceVersion": "1"});
        requests.insert(name, object.clone());
        reply(StatusCode::CREATED, &object)
    }

    /// Every request as it is once it was approved.
    fn signed(&self) -> impl Iterator<Item = Value> {
        let requests: Vec<Value> = self.requests.lock().values().cloned().collect();
        requests.into_iter().map(|mut object| {
            let pem = STANDARD.decode(object["spec"]["request"].as_str().unwrap()).unwrap();
            let pem = String::from_utf8(pem).unwrap();
            let mut asked = rcgen::CertificateSigningRequestParams::from_pem(&pem).unwrap();
            let now = jiff::Timestamp::now().as_second();
            let date = |second| time::OffsetDateTime::from_unix_timestamp(second).unwrap();
            asked.params.not_before = date(now - BACKDATE_SECONDS);
            asked.params.not_after = date(now + self.seconds.unwrap());
            let certificate = asked.signed_by(&self.issuer).unwrap().pem();
            object["status"] =
                json!({"conditions": [{"type": "Approved"}], "certificate": STANDARD.encode(certificate)});
            object
        })
    }
}

fn reply(code: StatusCode, object: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(object.to_string().into()));
    *response.status_mut() = code;
    response
}
