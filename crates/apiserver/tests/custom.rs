//! The life of a custom resource: how soon it is served, what becomes of its objects when its definition changes, and how
//! it ends.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use support::Api;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const PATCH: [(&str, &str); 1] = [("content-type", "application/merge-patch+json")];
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn definition(versions: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "versions": versions,
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
        },
    })
}

fn version(name: &str, storage: bool, spec: Value) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}});
    json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema}})
}

/// A watch whose events come one by one.
struct Events(apiserver::Body, Vec<u8>);

impl Events {
    async fn of(api: &Api, path: &str) -> Result<Self> {
        let response = api.send(&format!("GET {path}"), &[], "").await?;
        ensure!(response.status() == 200, "{}", response.status());
        Ok(Self(response.into_body(), Vec::new()))
    }

    /// The next event; `None` where the watch has ended.
    async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.1.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.1.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            let frame = tokio::time::timeout(PATIENCE, self.0.frame()).await.context("nothing comes")?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| anyhow::anyhow!(error))?;
            self.1.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    }

    async fn until(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Result<Value> {
        while let Some(event) = self.next().await? {
            if wanted(&event) {
                return Ok(event);
            }
        }
        anyhow::bail!("the watch ended")
    }
}

/// Creates a definition and waits until it says that it is established.
async fn establish(api: &Api, definition: &Value) -> Result<Duration> {
    let mut events = Events::of(api, &format!("{DEFINITIONS}?watch=true&resourceVersion=0")).await?;
    let begun = Instant::now();
    let (code, created) = api.json(&format!("POST {DEFINITIONS}"), &[], Some(definition)).await?;
    ensure!(code == 201, "{created}");
    events.until(|event| event.to_string().contains("InitialNamesAccepted")).await?;
    Ok(begun.elapsed())
}

async fn create(api: &Api, version: &str, name: &str, spec: Value) -> Result<Value> {
    let widget = json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget", "metadata": {"name": name}, "spec": spec});
    let path = format!("POST /apis/example.com/{version}/namespaces/default/widgets");
    let (code, created) = api.json(&path, &[], Some(&widget)).await?;
    ensure!(code == 201, "{created}");
    Ok(created)
}

#[tokio::test]
async fn what_is_established_is_served_and_told_everywhere() -> Result<()> {
    let api = Api::start().await?;
    let took = establish(
        &api,
        &definition(json!([version("v1", true, json!({"a": {"type": "string", "description": "It is a."}}))])),
    )
    .await?;
    assert!(took < Duration::from_millis(100), "{took:?}");
    create(&api, "v1", "w", json!({"a": "x"})).await?;
    let (_, groups) = api.json("GET /apis", &[], None).await?;
    assert!(groups.to_string().contains("example.com/v1"));
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let (_, groups) = api.json("GET /apis", &[("accept", accept)], None).await?;
    let group =
        groups["items"].as_array().and_then(|all| all.iter().find(|group| group["metadata"]["name"] == "example.com"));
    assert_eq!(group.context("the group")?["versions"][0]["resources"][0]["shortNames"], json!(["wd"]));
    let (_, index) = api.json("GET /openapi/v3", &[], None).await?;
    let url = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().context("a document")?;
    let (_, document) = api.json(&format!("GET {url}"), &[], None).await?;
    let widget = &document["components"]["schemas"]["com.example.v1.Widget"];
    assert_eq!(widget["properties"]["spec"]["properties"]["a"]["description"], "It is a.");
    assert_eq!(widget["x-kubernetes-group-version-kind"][0]["kind"], "Widget");
    let (_, document) = api.json("GET /openapi/v2", &[], None).await?;
    assert_eq!(document["definitions"]["com.example.v1.WidgetList"]["required"], json!(["items"]));
    Ok(())
}

#[tokio::test]
async fn objects_follow_their_definition() -> Result<()> {
    let api = Api::start().await?;
    establish(
        &api,
        &definition(json!([version("v1", true, json!({"a": {"type": "string"}, "b": {"type": "string"}}))])),
    )
    .await?;
    create(&api, "v1", "w", json!({"a": "x", "b": "y"})).await?;
    // Another version is stored now, which has no `b` and defaults `c`; what is at rest is still in the old one.
    let versions = json!([
        version("v2", true, json!({"a": {"type": "string"}, "c": {"type": "integer", "default": 5}})),
        version("v1", false, json!({"a": {"type": "string"}, "b": {"type": "string"}})),
    ]);
    let mut old = Events::of(&api, "/apis/example.com/v1/widgets?watch=true").await?;
    old.until(|event| event["type"] == "ADDED").await?;
    let patch = json!({"spec": {"versions": versions}});
    let (code, patched) = api.json(&format!("PATCH {DEFINITIONS}/widgets.example.com"), &PATCH, Some(&patch)).await?;
    assert_eq!((code, &patched["status"]["storedVersions"]), (200, &json!(["v1", "v2"])), "{patched}");
    assert_eq!(old.next().await?, None, "what it was asked for is served otherwise now");
    let mut new = Events::of(&api, "/apis/example.com/v2/widgets?watch=true").await?;
    let event = new.until(|event| event["type"] == "ADDED").await?;
    assert_eq!(
        (&event["object"]["apiVersion"], &event["object"]["spec"]),
        (&json!("example.com/v2"), &json!({"a": "x"}))
    );
    create(&api, "v1", "n", json!({"a": "z", "b": "gone"})).await?;
    let event = new.until(|event| event["type"] == "ADDED").await?;
    // It was written as the stored version has it, and gets its default when it is read.
    assert_eq!(event["object"]["spec"], json!({"a": "z", "c": 5}));
    let (_, list) = api.json("GET /apis/example.com/v1/widgets", &[], None).await?;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
    assert!(list.to_string().contains(r#""apiVersion":"example.com/v1","#), "{list}");
    Ok(())
}

#[tokio::test]
async fn a_definition_takes_its_objects_with_it_and_ends_their_watches() -> Result<()> {
    let api = Api::start().await?;
    establish(&api, &definition(json!([version("v1", true, json!({}))]))).await?;
    create(&api, "v1", "free", json!({})).await?;
    let mut watch = Events::of(&api, "/apis/example.com/v1/widgets?watch=true").await?;
    watch.until(|event| event["type"] == "ADDED").await?;
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    let path = "/apis/example.com/v1/namespaces/default/widgets";
    create(&api, "v1", "held", json!({})).await?;
    api.json(&format!("PATCH {path}/held"), &PATCH, Some(&held)).await?;
    let (code, going) = api.json(&format!("DELETE {DEFINITIONS}/widgets.example.com"), &[], None).await?;
    assert_eq!(code, 200, "{going}");
    watch.until(|event| event["type"] == "DELETED" && event["object"]["metadata"]["name"] == "free").await?;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "late"}});
    let (code, refused) = api.json(&format!("POST {path}"), &[], Some(&widget)).await?;
    assert_eq!(code, 403, "{refused}");
    let mut definitions = Events::of(&api, &format!("{DEFINITIONS}?watch=true")).await?;
    let free = json!({"metadata": {"finalizers": null}});
    let (code, freed) = api.json(&format!("PATCH {path}/held"), &PATCH, Some(&free)).await?;
    assert_eq!(code, 200, "{freed}");
    definitions.until(|event| event["type"] == "DELETED").await?;
    while watch.next().await?.is_some() {}
    let (code, _, _) = api.call("GET /apis/example.com/v1/widgets", &[], "").await?;
    assert_eq!(code, 404);
    // Nothing of the old is left for the new.
    establish(&api, &definition(json!([version("v1", true, json!({}))]))).await?;
    let (_, list) = api.json("GET /apis/example.com/v1/widgets", &[], None).await?;
    assert_eq!(list["items"], json!([]));
    Ok(())
}

/// Answers conversions over TLS: `host:port` in v1 is `host` and `port` in v2.
async fn webhook() -> Result<(u16, String)> {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let pem = base64::engine::general_purpose::STANDARD.encode(key.cert.pem());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![key.cert.der().clone()],
            key.signing_key.serialize_der().try_into().map_err(anyhow::Error::msg)?,
        )?;
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut seen = Vec::new();
                let mut buffer = vec![0; 1 << 16];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    seen.extend(buffer.iter().take(count));
                    let text = String::from_utf8_lossy(&seen).into_owned();
                    let Some((_, body)) = text.split_once("\r\n\r\n") else { continue };
                    let Ok(review) = serde_json::from_str::<Value>(body) else { continue };
                    seen.clear();
                    let answer = converted(&review).to_string();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                        answer.len()
                    );
                    if stream.write_all(format!("{head}{answer}").as_bytes()).await.is_err()
                        || stream.flush().await.is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    Ok((port, pem))
}

fn converted(review: &Value) -> Value {
    let at = |pointer: &str| review.pointer(pointer).cloned().unwrap_or_default();
    let wanted = at("/request/desiredAPIVersion");
    let convert = |mut object: Value| {
        let text = |key: &str| object.pointer(&format!("/spec/{key}")).and_then(Value::as_str).unwrap_or_default();
        let spec = match (wanted.as_str(), text("where").split_once(':')) {
            (Some("example.com/v2"), Some((host, port))) => json!({"host": host, "port": port}),
            (Some("example.com/v1"), None) => json!({"where": format!("{}:{}", text("host"), text("port"))}),
            _ => Value::Null,
        };
        if let Some(map) = object.as_object_mut() {
            map.insert("spec".into(), spec);
            map.insert("apiVersion".into(), wanted.clone());
        }
        object
    };
    let objects: Vec<Value> = at("/request/objects").as_array().into_iter().flatten().cloned().map(convert).collect();
    json!({
        "kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
        "response": {"uid": at("/request/uid"), "result": {"status": "Success"}, "convertedObjects": objects},
    })
}

#[tokio::test]
async fn a_webhook_converts_what_is_read_and_written() -> Result<()> {
    let api = Api::start().await?;
    let (port, bundle) = webhook().await?;
    let text = || json!({"type": "string"});
    let mut definition = definition(json!([
        version("v1", true, json!({"where": text()})),
        version("v2", false, json!({"host": text(), "port": text()})),
    ]));
    definition["spec"]["versions"][1]["selectableFields"] = json!([{"jsonPath": ".spec.host"}]);
    definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"],
        "clientConfig": {"url": format!("https://localhost:{port}/convert"), "caBundle": bundle},
    }});
    establish(&api, &definition).await?;
    create(&api, "v1", "a", json!({"where": "x:1"})).await?;
    let made = create(&api, "v2", "b", json!({"host": "y", "port": "2"})).await?;
    assert_eq!(made["spec"], json!({"host": "y", "port": "2"}));
    let (_, stored) = api.json("GET /apis/example.com/v1/namespaces/default/widgets/b", &[], None).await?;
    assert_eq!(stored["spec"], json!({"where": "y:2"}));
    let (_, list) = api.json("GET /apis/example.com/v2/widgets", &[], None).await?;
    let specs: Vec<&Value> = list["items"].as_array().into_iter().flatten().map(|item| &item["spec"]).collect();
    assert_eq!(specs, [&json!({"host": "x", "port": "1"}), &json!({"host": "y", "port": "2"})]);
    let mut watch = Events::of(&api, "/apis/example.com/v2/widgets?watch=true").await?;
    let event = watch.until(|event| event["object"]["metadata"]["name"] == "a").await?;
    assert_eq!(event["object"]["spec"]["host"], "x");
    let patch = json!({"spec": {"port": "9"}});
    let path = "/apis/example.com/v2/namespaces/default/widgets/a";
    let (code, patched) = api.json(&format!("PATCH {path}"), &PATCH, Some(&patch)).await?;
    assert_eq!((code, &patched["spec"]), (200, &json!({"host": "x", "port": "9"})));
    // What only the other version has can be selected by.
    create(&api, "v1", "c", json!({"where": "y:3"})).await?;
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().into_iter().flatten();
        items.filter_map(|item| item["metadata"]["name"].as_str()).map(ToOwned::to_owned).collect()
    };
    const OF_Y: &str = "/apis/example.com/v2/namespaces/default/widgets?fieldSelector=spec.host%3Dy";
    let (_, list) = api.json(&format!("GET {OF_Y}"), &[], None).await?;
    assert_eq!(names(&list), ["b", "c"]);
    let (_, list) = api.json(&format!("GET {OF_Y}&limit=1"), &[], None).await?;
    assert_eq!(names(&list), ["b"]);
    let next = list["metadata"]["continue"].as_str().unwrap_or_default();
    let (_, list) = api.json(&format!("GET {OF_Y}&limit=1&continue={next}"), &[], None).await?;
    assert_eq!((names(&list), &list["metadata"]["continue"]), (vec!["c".to_owned()], &json!("")));
    let mut of_y = Events::of(&api, &format!("{OF_Y}&watch=true")).await?;
    let leaving = json!({"spec": {"host": "z"}});
    api.json(&format!("PATCH {}/c", path.trim_end_matches("/a")), &PATCH, Some(&leaving)).await?;
    let mut told = Vec::new();
    let last = of_y.until(|event| {
        told.push(format!("{} {}", event["type"], event["object"]["metadata"]["name"]));
        event["type"] == "DELETED"
    });
    last.await?;
    assert_eq!(told, ["\"ADDED\" \"b\"", "\"ADDED\" \"c\"", "\"DELETED\" \"c\""]);
    api.json(&format!("DELETE {OF_Y}"), &[], None).await?;
    let (_, list) = api.json("GET /apis/example.com/v1/widgets", &[], None).await?;
    assert_eq!(names(&list), ["a", "c"]);
    // One that is not there fails what needs it, and nothing else.
    let gone = json!({"spec": {"conversion": {"webhook": {"clientConfig": {"url": "https://localhost:1/convert"}}}}});
    let mut ended = Events::of(&api, "/apis/example.com/v1/widgets?watch=true").await?;
    api.json(&format!("PATCH {DEFINITIONS}/widgets.example.com"), &PATCH, Some(&gone)).await?;
    while ended.next().await?.is_some() {}
    let (code, failed) = api.json(&format!("GET {path}"), &[], None).await?;
    assert_eq!(code, 500, "{failed}");
    let message = failed["message"].as_str().context("a message")?;
    let refused = "failed: Post \"https://localhost:1/convert\": dial tcp localhost:1: connect: connection refused";
    assert_eq!(message, format!("conversion webhook for example.com/v1, Kind=Widget {refused}"));
    let (code, _) = api.json("GET /apis/example.com/v1/namespaces/default/widgets/a", &[], None).await?;
    assert_eq!(code, 200);
    Ok(())
}
