//! Pages, versions and old paths of lists and watches.

mod support;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use support::Api;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn create(api: &Api, name: &str) -> Result<()> {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": "x"}}});
    let (code, answer) = api.json(&format!("POST {MAPS}"), &[], Some(&map)).await?;
    anyhow::ensure!(code == 201, "{answer}");
    Ok(())
}

fn names(list: &Value) -> String {
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    items.filter_map(|item| item.pointer("/metadata/name")?.as_str()).collect::<Vec<_>>().join(" ")
}

/// Later pages show the list as it was when the first was asked for.
#[tokio::test]
async fn pages_are_of_one_moment() -> Result<()> {
    let api = Api::start().await?;
    for name in ["a", "b", "c", "d", "e"] {
        create(&api, name).await?;
    }
    let (_, first) = api.json(&format!("GET {MAPS}?limit=2"), &[], None).await?;
    assert_eq!((names(&first).as_str(), &first["metadata"]["remainingItemCount"]), ("a b", &json!(3)));
    create(&api, "bb").await?;
    api.json(&format!("DELETE {MAPS}/d"), &[], None).await?;
    let token = first["metadata"]["continue"].as_str().context("a token")?;
    let (_, second) = api.json(&format!("GET {MAPS}?limit=2&continue={token}"), &[], None).await?;
    assert_eq!(names(&second), "c d");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().context("a token")?;
    let (_, last) = api.json(&format!("GET {MAPS}?limit=2&continue={token}"), &[], None).await?;
    assert_eq!((names(&last).as_str(), last["metadata"].get("continue")), ("e", None));
    let (_, selected) = api.json(&format!("GET {MAPS}?limit=1&labelSelector=app=x"), &[], None).await?;
    assert!(selected["metadata"].get("remainingItemCount").is_none() && selected["metadata"]["continue"].is_string());
    Ok(())
}

#[tokio::test]
async fn versions_say_how_old_a_list_may_be() -> Result<()> {
    let api = Api::start().await?;
    create(&api, "a").await?;
    let (_, before) = api.json(&format!("GET {MAPS}"), &[], None).await?;
    let version = before["metadata"]["resourceVersion"].as_str().context("a version")?;
    create(&api, "b").await?;
    let list = async |query: &str| Ok::<_, anyhow::Error>(api.json(&format!("GET {MAPS}?{query}"), &[], None).await?.1);
    assert_eq!(names(&list(&format!("resourceVersion={version}&resourceVersionMatch=Exact")).await?), "a");
    assert_eq!(names(&list(&format!("resourceVersion={version}&resourceVersionMatch=NotOlderThan")).await?), "a b");
    assert_eq!(names(&list("resourceVersion=0&limit=1").await?), "a b");
    let late = list("resourceVersion=99999999").await?;
    assert_eq!(
        (&late["code"], &late["details"]["causes"][0]["reason"]),
        (&json!(504), &json!("ResourceVersionTooLarge"))
    );
    for (query, want) in [
        (
            "resourceVersion=x",
            "invalid resource version: resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax",
        ),
        ("limit=x", "strconv.ParseInt: parsing \"x\": invalid syntax"),
        (
            "fieldSelector=spec.x=1",
            "\"spec.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
    ] {
        assert_eq!(list(query).await?["message"], want);
    }
    Ok(())
}

/// The first events of a watch, one line each.
async fn watch(api: &Api, path: &str, count: usize) -> Result<Vec<String>> {
    let mut watch = Watching::begin(api, path).await?;
    watch.read_to(count).await?;
    Ok(watch.seen)
}

/// A watch that is read when it pleases, and what it has told so far.
struct Watching {
    body: apiserver::Body,
    seen: Vec<String>,
}

impl Watching {
    async fn begin(api: &Api, path: &str) -> Result<Self> {
        Ok(Self { body: api.send(&format!("GET {path}"), &[], "").await?.into_body(), seen: Vec::new() })
    }

    async fn read_to(&mut self, count: usize) -> Result<()> {
        while self.seen.len() < count {
            let frame = self.body.frame().await.context("an event")?.map_err(|error| anyhow::anyhow!(error))?;
            for line in frame.into_data().ok().context("data")?.split_inclusive(|byte| *byte == b'\n') {
                let event: Value = serde_json::from_slice(line)?;
                let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str);
                let end = text("/object/metadata/annotations/k8s.io~1initial-events-end").map(|_| "end");
                let name = end.or_else(|| text("/object/metadata/name")).unwrap_or("-");
                self.seen.push(format!("{} {name}", text("/type").unwrap_or_default()));
            }
        }
        Ok(())
    }
}

/// Those who ask the same share what is written for them, however far behind one another they are, and those who ask otherwise do not.
#[tokio::test]
async fn watches_are_read_at_their_own_pace() -> Result<()> {
    let api = Api::start().await?;
    let (all, some) = (format!("{MAPS}?watch=1"), format!("{MAPS}?watch=1&labelSelector=is%3Deven"));
    let mut prompt = Watching::begin(&api, &all).await?;
    let mut late = Watching::begin(&api, &all).await?;
    let mut choosy = Watching::begin(&api, &some).await?;
    let mut lazy = Watching::begin(&api, &some).await?;
    let name = |index: usize| format!("ADDED m{index}");
    for index in 0..60 {
        let is = if index % 2 == 0 { "even" } else { "odd" };
        let map = json!({"metadata": {"name": format!("m{index}"), "labels": {"is": is}}});
        assert_eq!(api.json(&format!("POST {MAPS}"), &[], Some(&map)).await?.0, 201);
        prompt.read_to(index + 1).await?;
        if index % 7 == 0 {
            late.read_to(index / 2 + 1).await?;
        }
        if index % 20 == 0 {
            choosy.read_to(index / 2 + 1).await?;
        }
    }
    for (watch, step) in [(&mut prompt, 1), (&mut late, 1), (&mut choosy, 2), (&mut lazy, 2)] {
        let want: Vec<_> = (0..60).step_by(step).map(name).collect();
        watch.read_to(want.len()).await?;
        assert_eq!(watch.seen, want);
    }
    Ok(())
}

#[tokio::test]
async fn watches_begin_where_they_are_asked_to() -> Result<()> {
    let api = Api::start().await?;
    create(&api, "a").await?;
    create(&api, "b").await?;
    let all = ["ADDED a", "ADDED b"];
    assert_eq!(watch(&api, &format!("{MAPS}?watch=1"), 2).await?, all);
    assert_eq!(watch(&api, &format!("{MAPS}?watch=1&resourceVersion=0"), 2).await?, all);
    assert_eq!(watch(&api, "/api/v1/watch/namespaces/default/configmaps", 2).await?, all);
    assert_eq!(watch(&api, "/api/v1/watch/namespaces/default/configmaps/b", 1).await?, ["ADDED b"]);
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    assert_eq!(watch(&api, &format!("{MAPS}?{query}"), 3).await?, ["ADDED a", "ADDED b", "BOOKMARK end"]);
    let (code, error) = api.json(&format!("GET {MAPS}?watch=1&sendInitialEvents=true"), &[], None).await?;
    assert_eq!((code, &error["reason"]), (422, &json!("Invalid")));
    Ok(())
}

#[tokio::test]
async fn watches_go_over_web_sockets() -> Result<()> {
    let api = Api::start().await?;
    create(&api, "a").await?;
    let url = format!("ws://server{MAPS}?watch=1&timeoutSeconds=5");
    let (mut socket, response) = tokio_tungstenite::client_async(url, api.connect()).await?;
    assert_eq!(response.status(), 101);
    let mut next = async || -> Result<Value> {
        let message = socket.next().await.context("a message")??;
        Ok(serde_json::from_str(message.to_text()?)?)
    };
    assert_eq!(next().await?["object"]["metadata"]["name"], "a");
    create(&api, "b").await?;
    let event = next().await?;
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("b")));
    let refused = tokio_tungstenite::client_async(format!("ws://server{MAPS}?watch=1&limit=x"), api.connect()).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("400")));
    Ok(())
}

/// Once the moment of the first page is forgotten, a client may go on with what there is now.
#[tokio::test]
async fn a_forgotten_list_can_be_resumed() -> Result<()> {
    let api = Api::start().await?;
    for name in ["a", "b", "c"] {
        create(&api, name).await?;
    }
    let (_, first) = api.json(&format!("GET {MAPS}?limit=1"), &[], None).await?;
    let token = first["metadata"]["continue"].as_str().context("a token")?;
    create(&api, "bb").await?;
    create(&api, "d").await?;
    api.store.compact(api.store.revision().await?).await?;
    let (code, gone) = api.json(&format!("GET {MAPS}?limit=2&continue={token}"), &[], None).await?;
    assert_eq!((code, &gone["reason"]), (410, &json!("Expired")));
    let resume = gone["metadata"]["continue"].as_str().context("another token")?;
    let (_, rest) = api.json(&format!("GET {MAPS}?continue={resume}"), &[], None).await?;
    assert_eq!(names(&rest), "b bb c d");
    let old = first["metadata"]["resourceVersion"].as_str().context("a version")?;
    let exact = format!("GET {MAPS}?resourceVersion={old}&resourceVersionMatch=Exact");
    let (code, gone) = api.json(&exact, &[], None).await?;
    assert_eq!((code, &gone["message"]), (410, &json!("The resourceVersion for the provided list is too old.")));
    Ok(())
}
