//! What those behind this server serve: for discovery as they last said it, for OpenAPI as they say it when asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderMap, HeaderValue, header};
use api::{ObjectExt as _, UserInfo};
use serde_json::{Map, Value, json};

use super::{Remote, proxy};
use crate::server::ApiServer;

const TIMEOUT: Duration = Duration::from_secs(5);
const DEFINITIONS: &str = "#/definitions/";

/// As whom their OpenAPI is asked for.
pub(crate) fn reader() -> UserInfo {
    UserInfo { name: "system:aggregator".into(), ..UserInfo::default() }
}

/// A version as the aggregated form of discovery has it.
pub(crate) fn version(remote: &Remote) -> Value {
    let known = remote.resources.load_full();
    let is_current = remote.is_available && known.is_some();
    let listed = known.as_ref().and_then(|known| known.get("resources")?.as_array());
    json!({
        "version": remote.version, "resources": resources(remote, listed.into_iter().flatten()),
        "freshness": if is_current { "Current" } else { "Stale" },
    })
}

/// The older form has subresources beside their resources; the newer one has them inside.
fn resources<'a>(remote: &Remote, listed: impl Iterator<Item = &'a Value> + Clone) -> Vec<Value> {
    let mut found: BTreeMap<&str, Value> = BTreeMap::new();
    let scope = |entry: &Value| match entry.get("namespaced") == Some(&Value::Bool(true)) {
        true => "Namespaced",
        false => "Cluster",
    };
    let kind = |entry: &Value| {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        let group = text("group").unwrap_or(&remote.group);
        json!({"group": group, "version": text("version").unwrap_or(&remote.version), "kind": text("kind").unwrap_or_default()})
    };
    let named = listed.filter_map(|entry| Some((entry.get("name")?.as_str()?, entry)));
    for (name, entry) in named.clone().filter(|(name, _)| !name.contains('/')) {
        let mut told = json!({
            "resource": name, "responseKind": kind(entry), "scope": scope(entry), "verbs": entry.get("verbs"),
            "singularResource": entry.get("singularName"),
        });
        for field in ["shortNames", "categories"] {
            if let (Some(value), Some(told)) = (entry.get(field), told.as_object_mut()) {
                told.insert(field.to_owned(), value.clone());
            }
        }
        found.insert(name, told);
    }
    for (name, entry) in named {
        let Some((parent, part)) = name.split_once('/') else { continue };
        let parent = found
            .entry(parent)
            .or_insert_with(|| json!({"resource": parent, "responseKind": {}, "scope": scope(entry), "verbs": []}));
        let told = json!({"subresource": part, "responseKind": kind(entry), "verbs": entry.get("verbs")});
        if let Some(parts) =
            parent.as_object_mut().map(|parent| parent.entry("subresources").or_insert_with(|| json!([])))
            && let Some(parts) = parts.as_array_mut()
        {
            parts.push(told);
        }
    }
    found.into_values().collect()
}

async fn fetched(server: &ApiServer, remote: &Remote, path: &str) -> Option<Value> {
    let client = remote.client.as_ref().ok().filter(|_| remote.is_available)?;
    let mut headers = HeaderMap::new();
    proxy::identify(&mut headers, &reader());
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    let answer = client.fetch(server, path, headers, TIMEOUT).await;
    let answer =
        answer.inspect_err(|error| tracing::debug!(apiservice = %remote.name, %error, "OpenAPI is not told")).ok()?;
    serde_json::from_slice(&answer.2).ok().filter(|_| answer.0.is_success())
}

/// Where the documents of version 3 of all of them are, by what they are about.
pub(crate) async fn documents(server: &Arc<ApiServer>) -> Vec<(String, Value)> {
    let all = server.aggregator.all();
    let asked = all.iter().map(|remote| async move {
        let path = remote.discovery_path().trim_start_matches('/').to_owned();
        let entry = fetched(server, remote, "/openapi/v3").await?.get_mut("paths")?.get_mut(&path)?.take();
        Some((path, entry))
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

/// The documents of version 2 of all of them, each with only what is its own.
pub(crate) async fn older(server: &Arc<ApiServer>) -> Vec<Value> {
    let all = server.aggregator.all();
    let asked = all.iter().map(|remote| async move {
        let mut document = fetched(server, remote, "/openapi/v2").await?;
        let own = remote.discovery_path();
        let is_own = |path: &str| path.strip_prefix(&own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        document.get_mut("paths")?.as_object_mut()?.retain(|path, _| is_own(path));
        Some(document)
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

/// Adds the paths and definitions of `more` that are not there yet. A definition of the same name that says something else
/// gets another name.
pub(crate) fn merge(into: &mut Value, mut more: Value) {
    let mut take = |field: &str| match more.get_mut(field).map(Value::take) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let (paths, definitions) = (take("paths"), take("definitions"));
    let Some(into) = into.as_object_mut() else { return };
    let known = into.at_mut(&["definitions"]);
    let mut renamed: BTreeMap<String, String> = BTreeMap::new();
    for (name, definition) in &definitions {
        if known.get(name).is_some_and(|known| known != definition) {
            let free = (2..).map(|number| format!("{name}_v{number}"));
            let free = free.into_iter().find(|free| !known.contains_key(free) && !definitions.contains_key(free));
            renamed.insert(name.clone(), free.unwrap_or_default());
        }
    }
    for (name, mut definition) in definitions {
        refer(&mut definition, &renamed);
        known.entry(renamed.get(&name).cloned().unwrap_or(name)).or_insert(definition);
    }
    let known = into.at_mut(&["paths"]);
    for (path, mut item) in paths {
        refer(&mut item, &renamed);
        known.entry(path).or_insert(item);
    }
}

/// References follow what they refer to.
fn refer(value: &mut Value, renamed: &BTreeMap<String, String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                match inner {
                    Value::String(target) if key == "$ref" => {
                        let name = target.strip_prefix(DEFINITIONS).and_then(|name| renamed.get(name));
                        if let Some(name) = name {
                            *target = format!("{DEFINITIONS}{name}");
                        }
                    }
                    inner => refer(inner, renamed),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| refer(item, renamed)),
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_the_same_name_and_another_meaning_is_renamed() {
        let reference = |name: &str| json!({"$ref": format!("{DEFINITIONS}{name}")});
        let mut into = json!({"paths": {"/a": 1}, "definitions": {"A": {"type": "x"}, "B": {"type": "y"}}});
        let more = json!({
            "paths": {"/a": 2, "/b": [reference("A"), reference("B")]},
            "definitions": {"A": {"type": "z"}, "B": {"type": "y"}, "C": reference("A")},
        });
        merge(&mut into, more);
        let want = json!({
            "paths": {"/a": 1, "/b": [reference("A_v2"), reference("B")]},
            "definitions": {"A": {"type": "x"}, "A_v2": {"type": "z"}, "B": {"type": "y"}, "C": reference("A_v2")},
        });
        assert_eq!(into, want);
    }
}
