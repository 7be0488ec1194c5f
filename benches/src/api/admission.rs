//! What it costs to be asked whether a request may be: five thousand bindings, a policy in CEL, and two webhooks.

use std::{
    convert::Infallible,
    path::Path,
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
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::{
    NAMESPACE,
    apart::Apart,
    client::{Client, Trust},
    servers::Server,
};
use crate::{
    report::{Report, median},
    rounds::{ROUNDS, calm},
};

/// Of each kind in a round. Where processor time is compared they alternate in chunks, so that both feel what else happens.
const REQUESTS: u32 = 200;
const CHUNKS: u32 = 5;
/// Where processor time is compared: a server that always has something to do spends none on falling asleep and waking up.
const CLIENTS: usize = 8;
const BINDINGS: usize = 5000;
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const USER: &str = "somebody";
const DECISION: f64 = 5.0;
const POLICY: f64 = 20.0;
/// Of what two calls of somebody else take that nobody does anything with.
const WEBHOOKS: f64 = 2.0;

/// Microseconds.
struct Costs {
    decision: f64,
    policy: f64,
    webhooks: f64,
    calls: f64,
}

pub(super) async fn run(dir: &Path, report: &mut Report) -> Result<()> {
    Report::title(&format!("{REQUESTS} requests of each kind, the median of {ROUNDS} rounds"));
    // One after the other: a server that only waits takes processors as well.
    let ours = measure(&Server::start(&dir.join("ferry")).await?).await?;
    let peer = measure(&Server::stock(&dir.join("stock")).await?).await?;
    let shown = |cost: f64| format!("{cost:.1} µs");
    let mut line = |what: &str, ours: f64, peer: f64, bar: f64| {
        let told = format!("under {bar} µs");
        report.line(what, &shown(ours), &shown(peer), None, &told, Some(ours < bar));
    };
    let what = format!("processor time of a read that asking {BINDINGS} bindings adds");
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
    let decision = decide(server).await?;
    let policy = evaluate(server).await?;
    let (webhooks, calls) = call(server).await?;
    Ok(Costs { decision, policy, webhooks, calls })
}

/// What authorization costs where somebody is one of many.
async fn decide(server: &Server) -> Result<f64> {
    let mut client = server.client().await?;
    for name in ["asked", "spared"] {
        client.post(&format!("{NAMESPACE}/configmaps"), &map(name, 1000)).await?;
    }
    let others = (0..BINDINGS).map(|index| binding(&format!("other-{index}"), &format!("user-{index}")));
    for binding in others.chain([binding(USER, USER)]) {
        client.post(&format!("{RBAC}/clusterrolebindings"), &binding).await?;
    }
    let clients = async || -> Result<Vec<Client>> {
        Ok(server.clients(CLIENTS).await?.into_iter().map(|client| client.acting_as(USER)).collect())
    };
    let mut bound = clients().await?;
    // Of a master nobody asks what they are bound to.
    let mut masters: Vec<_> = clients().await?.into_iter().map(|client| client.in_group("system:masters")).collect();
    added(server, (&mut bound, read), (&mut masters, read)).await
}

/// What a policy costs.
async fn evaluate(server: &Server) -> Result<f64> {
    let mut clients = server.clients(CLIENTS).await?;
    let client = clients.first_mut().context("no client")?;
    client.post(&format!("{ADMISSION}/validatingadmissionpolicies"), &policy()).await?;
    let bound = json!({"metadata": {"name": "short"}, "spec": {"policyName": "short", "validationActions": ["Deny"]}});
    client.post(&format!("{ADMISSION}/validatingadmissionpolicybindings"), &bound).await?;
    while rehearse(client, "asked", 6000).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut others = server.clients(CLIENTS).await?;
    let asked = async |client: &mut Client| rehearse(client, "asked", 1000).await;
    let spared = async |client: &mut Client| rehearse(client, "spared", 1000).await;
    let policy = added(server, (&mut clients, asked), (&mut others, spared)).await?;
    let mut client = server.client().await?;
    for what in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
        client.send(Method::DELETE, &format!("{ADMISSION}/{what}/short"), Bytes::new()).await?;
    }
    Ok(policy)
}

/// What two webhooks cost, and what it costs to call them.
async fn call(server: &Server) -> Result<(f64, f64)> {
    let mut client = server.client().await?;
    let webhook = Webhook::start().await?;
    for (path, kind) in [("mutatingwebhookconfigurations", "mutate"), ("validatingwebhookconfigurations", "validate")] {
        client.post(&format!("{ADMISSION}/{path}"), &webhook.configuration(kind)).await?;
    }
    // Until it is heard of.
    while !client.get_json(&format!("{NAMESPACE}/configmaps/asked")).await?.to_string().contains("mutated") {
        let body = map("asked", 1000).to_string();
        client.send(Method::PUT, &format!("{NAMESPACE}/configmaps/asked"), body.into()).await?;
    }
    let rounds = calm(async || {
        let asked = wait(async || rehearse(&mut client, "asked", 1000).await).await?;
        let spared = wait(async || rehearse(&mut client, "spared", 1000).await).await?;
        Ok((asked - spared, 2.0 * webhook.call().await?))
    });
    let (webhooks, calls): (Vec<_>, Vec<_>) = rounds.await?.into_iter().unzip();
    Ok((median(webhooks)?, median(calls)?))
}

fn map(name: &str, size: usize) -> Value {
    json!({"metadata": {"name": name, "labels": {"name": name}}, "data": {"text": "v".repeat(size)}})
}

fn binding(name: &str, user: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    })
}

fn policy() -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["configmaps"], "resourceNames": ["asked"]});
    json!({"metadata": {"name": "short"}, "spec": {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "object.data.text.size() < 5000 && object.metadata.name != 'x'"}],
    }})
}

async fn read(client: &mut Client) -> Result<()> {
    client.get(&format!("{NAMESPACE}/configmaps/asked"), "application/json").await.map(drop)
}

/// A write that is asked about, but not stored: what that costs would cover the rest.
async fn rehearse(client: &mut Client, name: &str, size: usize) -> Result<()> {
    let path = format!("{NAMESPACE}/configmaps/{name}?dryRun=All");
    client.send(Method::PUT, &path, map(name, size).to_string().into()).await
}

/// What those with it cost the server in processor time more than those without, in microseconds.
async fn added<'a>(
    server: &Server,
    (with, ask_with): (&'a mut [Client], impl AsyncFn(&mut Client) -> Result<()>),
    (without, ask_without): (&'a mut [Client], impl AsyncFn(&mut Client) -> Result<()>),
) -> Result<f64> {
    let round = async || {
        let mut added = 0.0;
        for _ in 0..CHUNKS {
            added += cost(server, with, &ask_with).await? - cost(server, without, &ask_without).await?;
        }
        Ok(added / f64::from(CHUNKS))
    };
    median(calm(round).await?)
}

async fn cost(server: &Server, clients: &mut [Client], ask: &impl AsyncFn(&mut Client) -> Result<()>) -> Result<f64> {
    let before = server.process.cpu_time()?;
    let each = REQUESTS / CHUNKS / CLIENTS as u32;
    let all = clients.iter_mut().map(async |client| {
        for _ in 0..each {
            ask(client).await?;
        }
        anyhow::Ok(())
    });
    futures::future::try_join_all(all).await?;
    Ok(microseconds(server.process.cpu_time()? - before) / f64::from(REQUESTS / CHUNKS))
}

/// How long whoever asks waits for the answer, in microseconds.
async fn wait(mut ask: impl AsyncFnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        let begun = Instant::now();
        ask().await?;
        times.push(begun.elapsed());
    }
    median(times).map(microseconds)
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A webhook that agrees with everything, and adds an annotation where it may. It has a thread of its own, which whoever asks it wakes up,
/// as that of any other server.
struct Webhook {
    url: String,
    authority: String,
    _thread: Apart,
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
        let thread = Apart::new(|| ())?;
        let listener = thread.runtime()?.spawn(TcpListener::bind("127.0.0.1:0")).await??;
        let url = format!("https://localhost:{}", listener.local_addr()?.port());
        thread.runtime()?.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await;
                });
            }
        });
        Ok(Self { url, authority: own.cert.pem(), _thread: thread })
    }

    fn configuration(&self, kind: &str) -> Value {
        let rule =
            json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["configmaps"]});
        json!({"metadata": {"name": kind}, "webhooks": [{
            "name": format!("{kind}.example.com"),
            "rules": [rule],
            "objectSelector": {"matchLabels": {"name": "asked"}},
            "clientConfig": {"url": format!("{}/{kind}", self.url), "caBundle": STANDARD.encode(&self.authority)},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        }]})
    }

    /// How long a call takes that asks for as much, in microseconds.
    async fn call(&self) -> Result<f64> {
        let mut client = Client::connect(&self.url, &Trust::anybody(&self.authority)?).await?;
        let object = map("asked", 1200);
        let review = json!({"request": {"uid": "u", "object": object, "oldObject": object}}).to_string();
        wait(async || client.send(Method::POST, "/mutate", review.clone().into()).await).await
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
