//! API servers behind this one: when they are available, how requests get to them, and what the two tell together.

#![allow(clippy::indexing_slicing)] // Answers of the API are taken apart as they are.

mod support;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use serde_json::{Value, json};
use support::Api;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const PATCH: [(&str, &str); 1] = [("content-type", "application/merge-patch+json")];
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
const PATH: &str = "/apis/wardle.example.com/v1alpha1";

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed_unsync()
}

/// An API server that lets only this one's front proxy in, and notes what it is asked.
struct Backend {
    port: u16,
    authority: String,
    seen: Arc<Mutex<Vec<(String, http::HeaderMap)>>>,
    /// Connections to it.
    open: tokio::sync::watch::Receiver<usize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The front proxy's certificate, and whom to believe for it.
fn front_proxy() -> Result<(Arc<SingleCertAndKey>, rustls::RootCertStore)> {
    let key = rcgen::generate_simple_self_signed(["front-proxy-client".to_owned()])?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(key.cert.der().clone())?;
    let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).ok().context("a key")?;
    let signer = rustls::crypto::ring::sign::any_supported_type(&private)?;
    let shown = SingleCertAndKey::from(CertifiedKey::new(vec![key.cert.der().clone()], signer));
    Ok((Arc::new(shown), roots))
}

impl Backend {
    async fn start(clients: rustls::RootCertStore) -> Result<Self> {
        let key = rcgen::generate_simple_self_signed(["api.default.svc".to_owned()])?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(clients), provider.clone()).build()?;
        let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).ok().context("a key")?;
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![key.cert.der().clone()], private)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (acceptor, noted) = (tokio_rustls::TlsAcceptor::from(Arc::new(tls)), seen.clone());
        let (count, open) = tokio::sync::watch::channel(0);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, noted, count) = (acceptor.clone(), noted.clone(), count.clone());
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    count.send_modify(|open| *open += 1);
                    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                        noted.lock().push((request.uri().to_string(), request.headers().clone()));
                        async move { Ok::<_, Infallible>(answer(request).await) }
                    });
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
                    count.send_modify(|open| *open -= 1);
                });
            }
        });
        Ok(Self { port, authority: key.cert.pem(), seen, open, task })
    }

    fn bundle(&self) -> String {
        base64::engine::general_purpose::STANDARD.encode(&self.authority)
    }

    /// What was asked last for a path.
    fn asked(&self, path: &str) -> Option<http::HeaderMap> {
        self.seen.lock().iter().rev().find(|(asked, _)| asked == path).map(|(_, headers)| headers.clone())
    }
}

async fn answer(mut request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().strip_prefix(PATH).unwrap_or(request.uri().path()).to_owned();
    let mut response = Response::new(full(""));
    let verbs = ["create", "get", "list"];
    match path.as_str() {
        "" => {
            let flunders = json!({"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": verbs, "shortNames": ["fl"]});
            let status = json!({"name": "flunders/status", "namespaced": true, "kind": "Flunder", "verbs": ["get"]});
            let list = json!({"kind": "APIResourceList", "groupVersion": "wardle.example.com/v1alpha1", "resources": [flunders, status]});
            *response.body_mut() = full(list.to_string());
        }
        "/watched" => {
            // One event, and then nothing for as long as somebody listens.
            let first = futures::stream::once(async { Ok(Frame::data(Bytes::from("{\"type\":\"ADDED\"}\n"))) });
            let all = futures::StreamExt::chain(first, futures::stream::pending());
            *response.body_mut() = StreamBody::new(all).boxed_unsync();
        }
        "/echo" => {
            let upgraded = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let Ok(stream) = upgraded.await else { return };
                let (mut from, mut to) = tokio::io::split(TokioIo::new(stream));
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("connection", http::HeaderValue::from_static("Upgrade"));
            response.headers_mut().insert("upgrade", http::HeaderValue::from_static("SPDY/3.1"));
        }
        "/elsewhere" => {
            *response.status_mut() = StatusCode::FOUND;
            response.headers_mut().insert("location", http::HeaderValue::from_static("https://example.com/"));
        }
        "/teapot" => {
            *response.status_mut() = StatusCode::IM_A_TEAPOT;
            response.headers_mut().insert("x-own", http::HeaderValue::from_static("yes"));
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            *response.body_mut() = full(body);
        }
        "/openapi/v3" => {
            let url = "/openapi/v3/apis/wardle.example.com/v1alpha1?hash=ABC";
            let document =
                json!({"paths": {"apis/wardle.example.com/v1alpha1": {"serverRelativeURL": url}, "apis/other/v1": {}}});
            *response.body_mut() = full(document.to_string());
        }
        "/openapi/v3/apis/wardle.example.com/v1alpha1" => *response.body_mut() = full("{\"openapi\":\"3.0.0\"}"),
        "/openapi/v2" => {
            let definitions = json!({"Flunder": {"type": "object"}, "io.k8s.api.core.v1.Pod": {"type": "string"}});
            let own = json!({"get": {"schema": {"$ref": "#/definitions/io.k8s.api.core.v1.Pod"}}});
            let document =
                json!({"paths": {format!("{PATH}/flunders"): own, "/apis/apps/v1/x": {}}, "definitions": definitions});
            *response.body_mut() = full(document.to_string());
        }
        _ => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    response
}

fn api_service(more: Value) -> Value {
    let mut spec = json!({
        "group": "wardle.example.com", "version": "v1alpha1", "groupPriorityMinimum": 2000, "versionPriority": 200,
        "service": {"namespace": "default", "name": "api"},
    });
    if let (Value::Object(spec), Value::Object(more)) = (&mut spec, more) {
        spec.extend(more);
    }
    json!({"metadata": {"name": "v1alpha1.wardle.example.com"}, "spec": spec})
}

async fn created(api: &Api, path: &str, object: &Value) -> Result<Value> {
    let (code, answer) = api.json(&format!("POST {path}"), &[], Some(object)).await?;
    ensure!(code == 201, "{code} {answer}");
    Ok(answer)
}

async fn create_service(api: &Api) -> Result<()> {
    let service = json!({"metadata": {"name": "api"}, "spec": {"ports": [{"port": 443, "name": "https"}]}});
    created(api, "/api/v1/namespaces/default/services", &service).await.map(|_| ())
}

/// An address of this machine itself cannot be written through the API.
async fn put_slice(api: &Api, endpoints: Value, port: u16) -> Result<()> {
    let slice = json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
        "metadata": {"name": "api-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "api"}},
        "endpoints": endpoints, "ports": [{"name": "https", "port": port}],
    });
    let key = "/registry/endpointslices/default/api-1".into();
    let put = store::Op::Put { key, value: slice.to_string().into(), lease: 0 };
    api.store.txn(store::Txn { compares: Vec::new(), success: vec![put], failure: Vec::new() }).await?;
    Ok(())
}

/// Watches the APIServices until one of them says this of itself.
async fn until(api: &Api, name: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let path = format!("GET {SERVICES}?watch=true&fieldSelector=metadata.name%3D{name}");
    let mut body = api.send(&path, &[], "").await?.into_body();
    let mut read = Vec::new();
    let found = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| anyhow::anyhow!(error))?;
            read.extend_from_slice(&frame.into_data().unwrap_or_default());
            while let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = read.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line)?;
                if wanted(&event) {
                    return Ok(event["object"].clone());
                }
            }
        }
        anyhow::bail!("the watch ended")
    };
    tokio::time::timeout(PATIENCE, found).await.context("nothing of the kind happens")?
}

fn condition(event: &Value) -> (&str, &str, &str) {
    let condition = &event["object"]["status"]["conditions"][0];
    let text = |field: &str| condition[field].as_str().unwrap_or_default();
    (text("status"), text("reason"), text("message"))
}

async fn until_reason(api: &Api, reason: &str) -> Result<String> {
    let object = until(api, "v1alpha1.wardle.example.com", |event| condition(event).1 == reason).await?;
    Ok(object["status"]["conditions"][0]["message"].as_str().unwrap_or_default().to_owned())
}

/// An API server with another one behind it that passes all checks. What is asked of it was served before it says so.
async fn joined() -> Result<(Api, Backend)> {
    let (shown, clients) = front_proxy()?;
    let api = Api::start_with(|config| config.proxy_client = Some(shown)).await?;
    let backend = Backend::start(clients).await?;
    create_service(&api).await?;
    put_slice(&api, json!([{"addresses": ["127.0.0.1"]}]), backend.port).await?;
    created(&api, SERVICES, &api_service(json!({"caBundle": backend.bundle()}))).await?;
    until_reason(&api, "Passed").await?;
    served(&api, 200).await?;
    Ok((api, backend))
}

/// The table follows the status within moments.
async fn served(api: &Api, code: u16) -> Result<()> {
    let reached = async {
        while api.call(&format!("GET {PATH}"), &[], "").await?.0 != code {
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, reached).await.with_context(|| format!("it never answers {code}"))?
}

#[tokio::test]
async fn an_api_service_says_what_it_lacks() -> Result<()> {
    let (shown, clients) = front_proxy()?;
    let api = Api::start_with(|config| config.proxy_client = Some(shown)).await?;
    let made = created(&api, SERVICES, &api_service(json!({}))).await?;
    assert_eq!(made["spec"]["service"]["port"], 443);
    assert_eq!(until_reason(&api, "ServiceNotFound").await?, "service/api in \"default\" is not present");
    served(&api, 503).await?;
    let (_, headers, body) = api.call(&format!("GET {PATH}/flunders"), &[], "").await?;
    assert_eq!(
        (body, &headers["content-type"]),
        ("service unavailable\n".into(), &"text/plain; charset=utf-8".parse()?)
    );
    create_service(&api).await?;
    let message = until_reason(&api, "EndpointsNotFound").await?;
    assert_eq!(message, "cannot find endpointslices for service/api in \"default\"");
    let backend = Backend::start(clients).await?;
    put_slice(&api, json!([{"addresses": ["127.0.0.1"], "conditions": {"ready": false}}]), backend.port).await?;
    let message = until_reason(&api, "MissingEndpoints").await?;
    assert_eq!(message, "endpointslices for service/api in \"default\" have no addresses with port name \"https\"");
    put_slice(&api, json!([{"addresses": ["127.0.0.1"]}]), backend.port).await?;
    // Nobody vouches for its certificate.
    let message = until_reason(&api, "FailedDiscoveryCheck").await?;
    let url = format!("https://127.0.0.1:{}{PATH}", backend.port);
    ensure!(message.starts_with(&format!("failing or missing response from {url}: ")), "{message}");
    ensure!(message.contains("certificate signed by unknown authority"), "{message}");
    let port = json!({"spec": {"service": {"port": 444}, "insecureSkipTLSVerify": true}});
    api.json(&format!("PATCH {SERVICES}/v1alpha1.wardle.example.com"), &PATCH, Some(&port)).await?;
    assert_eq!(
        until_reason(&api, "ServicePortError").await?,
        "service/api in \"default\" is not listening on port 444"
    );
    let port = json!({"spec": {"service": {"port": 443}}});
    api.json(&format!("PATCH {SERVICES}/v1alpha1.wardle.example.com"), &PATCH, Some(&port)).await?;
    assert_eq!(until_reason(&api, "Passed").await?, "all checks passed");
    served(&api, 200).await?;
    let asked = backend.asked(PATH).context("the check")?;
    ensure!(backend.seen.lock().iter().any(|(_, headers)| headers["x-remote-user"] == "system:kube-aggregator"));
    assert_eq!(asked["x-remote-group"], "system:masters");
    // The one behind goes; whoever looks finds out, and clients are told at once.
    drop(backend);
    let label = json!({"metadata": {"labels": {"look": "again"}}});
    api.json("PATCH /api/v1/namespaces/default/services/api", &PATCH, Some(&label)).await?;
    let message = until_reason(&api, "FailedDiscoveryCheck").await?;
    ensure!(message.contains("connect: connection refused"), "{message}");
    served(&api, 503).await?;
    let (code, wrong) = api
        .json(
            &format!("POST {SERVICES}"),
            &[],
            Some(&json!({
                "metadata": {"name": "v1.x.example.com"}, "spec": {"group": "x.example.com", "version": "v1",
                "groupPriorityMinimum": 1, "versionPriority": 1, "insecureSkipTLSVerify": true},
            })),
        )
        .await?;
    assert_eq!(code, 422, "{wrong}");
    Ok(())
}

#[tokio::test]
async fn requests_are_passed_on_in_the_name_of_who_asks() -> Result<()> {
    let (api, backend) = joined().await?;
    let headers =
        [("x-remote-user", "root"), ("authorization", "Bearer x"), ("x-custom", "kept"), ("impersonate-uid", "u")];
    let impersonating = [("impersonate-user", "jane"), ("impersonate-group", "system:masters")];
    let headers: Vec<(&str, &str)> = headers.into_iter().chain(impersonating).collect();
    let (code, answered, body) = api.call(&format!("POST {PATH}/teapot?a=b%20c"), &headers, "hello").await?;
    assert_eq!((code, &body[..], &answered["x-own"]), (418, &b"hello"[..], &"yes".parse::<http::HeaderValue>()?));
    let asked = backend.asked(&format!("{PATH}/teapot?a=b%20c")).context("it was asked")?;
    let all = |name: &str| -> Vec<String> {
        asked.get_all(name).iter().map(|value| value.to_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!((all("x-remote-user"), all("x-remote-uid")), (vec!["jane".to_owned()], vec!["u".to_owned()]));
    assert_eq!(all("x-remote-group"), ["system:masters", "system:authenticated"]);
    assert_eq!(
        (all("authorization"), all("impersonate-user"), all("x-custom")),
        (vec![], vec![], vec!["kept".to_owned()])
    );
    // What may not be asked here is not asked there.
    let (code, _, _) = api.stranger(&format!("GET {PATH}/teapot"), &[], "").await?;
    assert_eq!(code, 403);
    let (code, _, body) = api.call(&format!("GET {PATH}/elsewhere"), &[], "").await?;
    let refused = "the backend attempted to redirect this request, which is not permitted";
    assert_eq!((code, body), (502, refused.into()));
    assert_eq!(api.call(&format!("GET {PATH}/nothing"), &[], "").await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn watches_and_upgraded_connections_stream() -> Result<()> {
    let (api, mut backend) = joined().await?;
    let mut watch = api.send(&format!("GET {PATH}/watched?watch=true"), &[], "").await?.into_body();
    let frame = tokio::time::timeout(PATIENCE, watch.frame()).await?.context("an event")?;
    let frame = frame.map_err(|error| anyhow::anyhow!(error))?.into_data().unwrap_or_default();
    assert_eq!(frame, "{\"type\":\"ADDED\"}\n");
    let open = *backend.open.borrow();
    drop(watch);
    // Whoever is behind need not go on for nobody.
    tokio::time::timeout(PATIENCE, backend.open.wait_for(|now| *now < open)).await??;
    let mut stream = api.connect();
    let head = format!("POST {PATH}/echo HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(tokio::time::timeout(PATIENCE, stream.read_u8()).await??);
    }
    ensure!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
    stream.write_all(b"there and back").await?;
    let mut back = [0; 14];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut back)).await??;
    assert_eq!(&back, b"there and back");
    Ok(())
}

#[tokio::test]
async fn both_are_told_of_together() -> Result<()> {
    let (api, backend) = joined().await?;
    let names = |list: &Value| -> Vec<String> {
        let groups = list["groups"].as_array().into_iter().flatten();
        groups.map(|group| group["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let (_, list) = api.json("GET /apis", &[], None).await?;
    assert_eq!(names(&list).last().map(String::as_str), Some("wardle.example.com"), "what is built in comes first");
    assert_eq!(names(&list).first().map(String::as_str), Some("apiregistration.k8s.io"));
    let first = json!({"spec": {"groupPriorityMinimum": 17700}});
    api.json(&format!("PATCH {SERVICES}/v1alpha1.wardle.example.com"), &PATCH, Some(&first)).await?;
    let moved = async {
        loop {
            let (_, list) = api.json("GET /apis", &[], None).await?;
            let names = names(&list);
            let place = |wanted: &str| names.iter().position(|name| name == wanted);
            if place("authentication.k8s.io") < place("wardle.example.com")
                && place("wardle.example.com") < place("authorization.k8s.io")
            {
                return anyhow::Ok(());
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, moved).await.context("it does not move up")??;
    let (code, group) = api.json("GET /apis/wardle.example.com", &[], None).await?;
    assert_eq!((code, &group["preferredVersion"]["version"]), (200, &json!("v1alpha1")));
    let (_, resources) = api.json(&format!("GET {PATH}"), &[], None).await?;
    assert_eq!(resources["resources"][0]["name"], "flunders");

    let accept = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
    let told = async || -> Result<Value> {
        let (_, list) = api.json("GET /apis", &accept, None).await?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let own = items.into_iter().find(|item| item["metadata"]["name"] == "wardle.example.com");
        Ok(own.context("the group")?["versions"][0].clone())
    };
    until_reason(&api, "Passed").await?;
    served(&api, 200).await?;
    let kind = json!({"group": "wardle.example.com", "version": "v1alpha1", "kind": "Flunder"});
    let mut want = json!({"version": "v1alpha1", "freshness": "Current", "resources": [{
        "resource": "flunders", "responseKind": kind, "scope": "Namespaced", "singularResource": "flunder",
        "verbs": ["create", "get", "list"], "shortNames": ["fl"],
        "subresources": [{"subresource": "status", "responseKind": kind, "verbs": ["get"]}],
    }]});
    assert_eq!(told().await?, want);

    let (_, index) = api.json("GET /openapi/v3", &[], None).await?;
    let url = &index["paths"]["apis/wardle.example.com/v1alpha1"]["serverRelativeURL"];
    let url = url.as_str().context("a document")?;
    assert_eq!(
        (url, index["paths"].get("apis/other/v1")),
        ("/openapi/v3/apis/wardle.example.com/v1alpha1?hash=ABC", None)
    );
    ensure!(index["paths"].get("apis/apps/v1").is_some());
    assert_eq!(api.json(&format!("GET {url}"), &[], None).await?, (200, json!({"openapi": "3.0.0"})));
    assert_eq!(backend.asked(url).context("it was asked")?["x-remote-user"], "system:aggregator");
    let (_, older) = api.json("GET /openapi/v2", &[], None).await?;
    let own = &older["paths"][format!("{PATH}/flunders")]["get"]["schema"]["$ref"];
    assert_eq!((own, older["paths"].get("/apis/apps/v1/x")), (&json!("#/definitions/io.k8s.api.core.v1.Pod_v2"), None));
    assert_eq!(older["definitions"]["io.k8s.api.core.v1.Pod_v2"], json!({"type": "string"}));
    assert_eq!(older["definitions"]["io.k8s.api.core.v1.Pod"]["type"], "object");

    // Once it is gone, what it served is told as it was, and nobody waits for it.
    drop(backend);
    let label = json!({"metadata": {"labels": {"look": "again"}}});
    api.json("PATCH /api/v1/namespaces/default/services/api", &PATCH, Some(&label)).await?;
    until_reason(&api, "FailedDiscoveryCheck").await?;
    served(&api, 503).await?;
    want["freshness"] = json!("Stale");
    assert_eq!(told().await?, want);
    let (_, index) = api.json("GET /openapi/v3", &[], None).await?;
    assert_eq!(index["paths"].get("apis/wardle.example.com/v1alpha1"), None);
    Ok(())
}

/// Every group and version of custom resources has an APIService, which the server keeps as it is.
#[tokio::test]
async fn custom_resources_are_registered() -> Result<()> {
    let api = Api::start().await?;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let names = json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"});
    let definition = json!({"metadata": {"name": "things.example.com"}, "spec": {
        "group": "example.com", "scope": "Cluster", "names": names, "versions": [version("v1", true), version("v2", false)],
    }});
    created(&api, definitions, &definition).await?;
    let made = until(&api, "v2.example.com", |event| condition(event).1 == "Local").await?;
    assert_eq!(made["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "true");
    let spec = json!({"group": "example.com", "version": "v2", "groupPriorityMinimum": 1000, "versionPriority": 100});
    assert_eq!(made["spec"], spec);
    let changed = json!({"spec": {"versionPriority": 7}});
    api.json(&format!("PATCH {SERVICES}/v2.example.com"), &PATCH, Some(&changed)).await?;
    until(&api, "v2.example.com", |event| event["object"]["spec"]["versionPriority"] == 100).await?;
    api.json(&format!("DELETE {SERVICES}/v1.example.com"), &[], None).await?;
    until(&api, "v1.example.com", |event| event["type"] == "ADDED").await?;
    let fewer = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]);
    let patch = [("content-type", "application/json-patch+json")];
    let gone = until(&api, "v2.example.com", |event| event["type"] == "DELETED");
    let what = format!("PATCH {definitions}/things.example.com");
    let change = api.json(&what, &patch, Some(&fewer));
    let (gone, changed) = tokio::join!(gone, change);
    assert_eq!(changed?.0, 200);
    gone?;
    let (code, _) = api.json(&format!("GET {SERVICES}/v1.example.com"), &[], None).await?;
    assert_eq!(code, 200);
    Ok(())
}
