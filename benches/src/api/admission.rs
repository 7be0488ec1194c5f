//! What it costs to be asked whether a request may be: five thousand bindings, a policy in CEL, and two webhooks.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use super::{
    NAMESPACE,
    client::{Client, Trust},
    servers::{Server, Servers},
};
use crate::report::{Report, median};

const REQUESTS: usize = 3000;
const ROUNDS: usize = 3;
const BINDINGS: usize = 5000;
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const USER: &str = "somebody";
const DECISION: f64 = 5.0;
const POLICY: f64 = 20.0;
/// Of what two calls take that nobody does anything with.
const WEBHOOKS: f64 = 2.0;

/// Microseconds.
struct Costs {
    decision: f64,
    policy: f64,
    webhooks: f64,
    calls: f64,
}

pub(super) async fn run(servers: &Servers, report: &mut Report) -> Result<()> {
    Report::title(&format!("one client, {REQUESTS} requests of each kind, the best of {ROUNDS} rounds"));
    let (ours, peer) = (measure(&servers.ours).await?, measure(&servers.peer).await?);
    let shown = |cost: f64| format!("{cost:.1} µs");
    let mut line = |what: &str, ours: f64, peer: f64, bar: f64| {
        let told = format!("under {bar} µs");
        report.line(what, &shown(ours), &shown(peer), None, &told, Some(ours < bar));
    };
    let what = format!("processor time of a read that {BINDINGS} bindings add");
    line(&what, ours.decision, peer.decision, DECISION);
    line("processor time of a write that a policy in CEL adds", ours.policy, peer.policy, POLICY);
    let ratio = ours.webhooks / ours.calls;
    let (added, theirs) = (shown(ours.webhooks), shown(peer.webhooks));
    let bar = format!("within {WEBHOOKS}× of two calls: {}", shown(ours.calls));
    let what = "time of a write that a mutating and a validating webhook add";
    report.line(what, &added, &theirs, Some(ratio), &bar, Some(ratio <= WEBHOOKS));
    Ok(())
}

async fn measure(server: &Server) -> Result<Costs> {
    let mut client = server.client().await?;
    client.post(&format!("{NAMESPACE}/configmaps"), &map("v".repeat(1000))).await?;
    let reader = binding(USER, USER);
    client.post(&format!("{RBAC}/clusterrolebindings"), &reader).await?;
    let decision = {
        let mut somebody = server.client().await?.acting_as(USER);
        let few = reads(server, &mut somebody).await?;
        for index in 0..BINDINGS {
            let other = binding(&format!("other-{index}"), &format!("user-{index}"));
            client.post(&format!("{RBAC}/clusterrolebindings"), &other).await?;
        }
        reads(server, &mut somebody).await? - few
    };
    let (plain, plain_time) = writes(server, &mut client).await?;
    client.post(&format!("{ADMISSION}/validatingadmissionpolicies"), &policy()).await?;
    let bound = json!({"metadata": {"name": "short"}, "spec": {"policyName": "short", "validationActions": ["Deny"]}});
    client.post(&format!("{ADMISSION}/validatingadmissionpolicybindings"), &bound).await?;
    while client.post(&format!("{NAMESPACE}/configmaps?dryRun=All"), &map("v".repeat(6000))).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let policy = writes(server, &mut client).await?.0 - plain;
    for what in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
        client.send(Method::DELETE, &format!("{ADMISSION}/{what}/short"), Bytes::new()).await?;
    }
    let webhook = Webhook::start().await?;
    for (path, kind) in [("mutatingwebhookconfigurations", "mutate"), ("validatingwebhookconfigurations", "validate")] {
        client.post(&format!("{ADMISSION}/{path}"), &webhook.configuration(kind)).await?;
    }
    // Until it is heard of.
    while !client.get_json(&format!("{NAMESPACE}/configmaps/asked")).await?.to_string().contains("mutated") {
        client.send(Method::PUT, &format!("{NAMESPACE}/configmaps/asked"), map("v".into()).to_string().into()).await?;
    }
    let webhooks = writes(server, &mut client).await?.1 - plain_time;
    Ok(Costs { decision, policy, webhooks, calls: 2.0 * webhook.call().await? })
}

fn map(text: String) -> Value {
    json!({"metadata": {"name": "asked"}, "data": {"text": text}})
}

fn binding(name: &str, user: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    })
}

fn policy() -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]});
    json!({"metadata": {"name": "short"}, "spec": {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "object.data.text.size() < 5000 && object.metadata.name != 'x'"}],
    }})
}

/// Processor time of each, in microseconds.
async fn reads(server: &Server, client: &mut Client) -> Result<f64> {
    let path = format!("{NAMESPACE}/configmaps/asked");
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let before = server.process.cpu_time()?;
        for _ in 0..REQUESTS {
            client.get(&path, "application/json").await?;
        }
        best = best.min((server.process.cpu_time()? - before).as_secs_f64() * 1e6 / REQUESTS as f64);
    }
    Ok(best)
}

/// Processor time of each, and the median of how long they take, in microseconds.
async fn writes(server: &Server, client: &mut Client) -> Result<(f64, f64)> {
    let path = format!("{NAMESPACE}/configmaps/asked");
    let (mut best, mut times) = (f64::MAX, Vec::with_capacity(ROUNDS * REQUESTS));
    for round in 0..ROUNDS {
        let before = server.process.cpu_time()?;
        for index in 0..REQUESTS {
            let body = map(format!("{:01000}", round * REQUESTS + index)).to_string();
            let begun = Instant::now();
            client.send(Method::PUT, &path, body.into()).await?;
            times.push(begun.elapsed());
        }
        best = best.min((server.process.cpu_time()? - before).as_secs_f64() * 1e6 / REQUESTS as f64);
    }
    Ok((best, median(times)?.as_secs_f64() * 1e6))
}

/// A webhook that agrees with everything, and adds an annotation where it may.
struct Webhook {
    url: String,
    authority: String,
    task: JoinHandle<()>,
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Webhook {
    async fn start() -> Result<Self> {
        let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
        let key = PrivateKeyDer::from_pem_slice(own.signing_key.serialize_pem().as_bytes())?;
        let tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://localhost:{}", listener.local_addr()?.port());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await;
                });
            }
        });
        Ok(Self { url, authority: own.cert.pem(), task })
    }

    fn configuration(&self, kind: &str) -> Value {
        let rule =
            json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["configmaps"]});
        json!({"metadata": {"name": kind}, "webhooks": [{
            "name": format!("{kind}.example.com"),
            "rules": [rule],
            "clientConfig": {"url": format!("{}/{kind}", self.url), "caBundle": STANDARD.encode(&self.authority)},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        }]})
    }

    /// How long a call takes that asks for as much, in microseconds.
    async fn call(&self) -> Result<f64> {
        let mut client = Client::connect(&self.url, &Trust::anybody(&self.authority)?).await?;
        let object = map("v".repeat(1200));
        let review = json!({"request": {"uid": "u", "object": object, "oldObject": object}}).to_string();
        let mut times = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            let begun = Instant::now();
            client.send(Method::POST, "/mutate", review.clone().into()).await?;
            times.push(begun.elapsed());
        }
        Ok(median(times)?.as_secs_f64() * 1e6)
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_mutating = request.uri().path() == "/mutate";
    let reviewed = review(request, is_mutating).await;
    let mut response = Response::new(Full::new(Bytes::from(reviewed.unwrap_or_default().to_string())));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    Ok(response)
}

async fn review(request: Request<Incoming>, is_mutating: bool) -> Result<Value> {
    let body = request.into_body().collect().await?.to_bytes();
    let asked: Value = serde_json::from_slice(&body)?;
    let uid = asked.pointer("/request/uid").context("a review without a uid")?;
    ensure!(uid.is_string(), "a uid is a text");
    let mut response = json!({"uid": uid, "allowed": true});
    if let (true, Some(response)) = (is_mutating, response.as_object_mut()) {
        let patch = json!([{"op": "add", "path": "/metadata/annotations", "value": {"mutated": "yes"}}]);
        response.insert("patchType".into(), "JSONPatch".into());
        response.insert("patch".into(), STANDARD.encode(patch.to_string()).into());
    }
    Ok(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}
