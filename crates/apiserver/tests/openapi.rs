//! OpenAPI as clients use it, and its schemas beside those that stock Kubernetes publishes.

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use support::Api;

/// Differences that are known and explained; the list may only become shorter.
const EXPLAINED: &str = include_str!("openapi/differences.txt");

#[tokio::test]
async fn schemas_are_those_of_upstream() -> Result<()> {
    let Some(reference) = std::env::var_os("FERRY_OPENAPI_V3") else {
        eprintln!("FERRY_OPENAPI_V3 does not name a folder of upstream's documents: nothing to compare with");
        return Ok(());
    };
    let api = Api::start_with_all_versions().await?;
    let (_, index) = api.json("GET /openapi/v3", &[], None).await?;
    let mut found = BTreeSet::new();
    for path in index["paths"].as_object().context("paths")?.keys() {
        let (_, ours) = api.json(&format!("GET /openapi/v3/{path}"), &[], None).await?;
        let file = Path::new(&reference).join(format!("{}_openapi.json", path.replace('/', "__")));
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let theirs: Value = serde_json::from_str(&text)?;
        let schemas = |document: &Value| without_words(document["components"]["schemas"].clone());
        compare(&schemas(&ours), &schemas(&theirs), &mut String::new(), &mut found);
    }
    let explained: BTreeSet<String> =
        EXPLAINED.lines().filter(|line| !line.starts_with('#')).map(ToOwned::to_owned).collect();
    let new: Vec<&String> = found.difference(&explained).collect();
    ensure!(
        new.is_empty(),
        "{} new differences:\n{}",
        new.len(),
        new.iter().map(|d| format!("{d}\n")).collect::<String>()
    );
    let gone: Vec<&String> = explained.difference(&found).collect();
    ensure!(gone.is_empty(), "the same as upstream's now, take them off the list: {gone:#?}");
    Ok(())
}

/// Upstream publishes its documents without the words that fields may say, though its servers tell them.
fn without_words(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            if map.get("enum").is_some_and(Value::is_array) {
                map.remove("enum");
            }
            for (key, value) in map {
                let told = value
                    .as_str()
                    .filter(|_| key == "description")
                    .and_then(|text| text.split_once("\n\nPossible enum"));
                *value = match told {
                    Some((before, _)) => before.into(),
                    None => without_words(value.take()),
                };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_words(item.take())),
        _ => (),
    }
    value
}

/// Writes down where two values differ: `name.properties.x.default`, with a word on how.
fn compare(ours: &Value, theirs: &Value, place: &mut String, found: &mut BTreeSet<String>) {
    match (ours, theirs) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let length = place.len();
                if !place.is_empty() {
                    place.push_str(" / ");
                }
                place.push_str(key);
                match (left.get(key), right.get(key)) {
                    (Some(left), Some(right)) => compare(left, right, place, found),
                    (None, _) => drop(found.insert(format!("{place}: missing"))),
                    (_, None) => drop(found.insert(format!("{place}: too much"))),
                }
                place.truncate(length);
            }
        }
        (Value::Array(left), Value::Array(right)) if place.ends_with("required") => {
            let set =
                |list: &[Value]| list.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect::<BTreeSet<_>>();
            if set(left) != set(right) {
                found.insert(format!("{place}: other"));
            }
        }
        (left, right) if left == right => (),
        _ => drop(found.insert(format!("{place}: other"))),
    }
}

#[tokio::test]
async fn documents_are_named_by_their_content() -> Result<()> {
    let api = Api::start().await?;
    let (_, index) = api.json("GET /openapi/v3", &[], None).await?;
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().context("a path")?;
    let (code, head, bytes) = api.call(&format!("GET {url}"), &[], "").await?;
    let etag = head.get("etag").context("an etag")?.to_str()?;
    assert!(code == 200 && url.ends_with(etag.trim_matches('"')), "{url} {etag}");
    assert_eq!(head.get("cache-control").context("caching")?, "public, immutable");
    let (code, head, _) = api.call("GET /openapi/v3/apis/apps/v1?hash=OLD", &[], "").await?;
    assert_eq!((code, head.get("location").context("a place")?.to_str()?), (301, url));
    let (code, _, again) = api.call(&format!("GET {url}"), &[("if-none-match", etag)], "").await?;
    assert_eq!((code, again.len()), (304, 0));
    let (_, head, packed) = api.call(&format!("GET {url}"), &[("accept-encoding", "gzip")], "").await?;
    assert!(
        head.get("content-encoding").is_some() && packed.len() * 2 < bytes.len(),
        "{} {}",
        packed.len(),
        bytes.len()
    );
    let (code, _, nothing) = api.call("GET /openapi/v3/apis/none/v1", &[], "").await?;
    assert_eq!((code, nothing.len()), (404, 0));
    Ok(())
}

#[tokio::test]
async fn version_two_is_one_document_in_two_encodings() -> Result<()> {
    let api = Api::start_with_all_versions().await?;
    let (_, document) = api.json("GET /openapi/v2", &[], None).await?;
    assert_eq!(document["swagger"], "2.0");
    let port = &document["definitions"]["io.k8s.api.core.v1.ContainerPort"];
    assert!(port["properties"]["protocol"].get("default").is_none() && port["required"][0] == "containerPort");
    let options = &document["definitions"]["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"];
    let kinds = options["x-kubernetes-group-version-kind"].as_array().context("kinds")?;
    assert!(kinds.len() > 30, "{}", kinds.len());
    let put = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["put"];
    assert_eq!(put["parameters"][0]["schema"]["$ref"], "#/definitions/io.k8s.api.apps.v1.Deployment");
    let accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let (code, head, bytes) = api.call("GET /openapi/v2", &[("accept", accept)], "").await?;
    assert_eq!((code, head.get("content-type").context("a type")?.to_str()?), (200, accept.replace('@', ".").as_str()));
    assert!(bytes.starts_with(b"\x0a\x032.0\x12") && bytes.len() > 500_000, "{}", bytes.len());
    Ok(())
}
