//! What is served, as `/api`, `/apis` and the aggregated form tell it.

use std::net::SocketAddr;
use std::sync::Arc;

use ::http::{HeaderValue, Method, Response, StatusCode, header};
use api::ApiError;
use base64::Engine as _;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::aggregator::{self, Remote, described};
use crate::bootstrap::local_apis;
use crate::custom::compare_versions;
use crate::http::{Accept, Body, Offer, full, page_not_found, respond, respond_lines};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;
use crate::{health, routes};

const AGGREGATED: &str = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

const PATHS: [&str; 13] = [
    "/.well-known/openid-configuration",
    "/api",
    "/api/v1",
    "/apis",
    "/apis/",
    "/metrics",
    "/metrics/slis",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/",
    "/openid/v1/jwks",
    "/statusz",
    "/version",
];

/// What is served at the moment of the request.
struct All<'a> {
    server: &'a ApiServer,
    served: Vec<Arc<Served>>,
    remotes: Arc<Vec<Arc<Remote>>>,
}

impl All<'_> {
    /// Who else answers for a group and version.
    fn remote(&self, group: &str, version: &str) -> Option<&Arc<Remote>> {
        self.remotes.iter().find(|remote| remote.group == group && remote.version == version)
    }
}

pub(crate) fn answer(server: &Arc<ApiServer>, context: &Context, method: &Method) -> Result<Response<Body>, ApiError> {
    let path = context.info.path.strip_prefix('/').unwrap_or_default();
    let parts: Vec<&str> = path.strip_suffix('/').unwrap_or(path).split('/').collect();
    let ok = |value: &Value| {
        let accept = Accept::of(&context.headers, &context.query, Offer::Plain)?;
        Ok(respond(StatusCode::OK, &accept, value))
    };
    let is_known = |group: &str, version: &str| server.registry.has_version(group, version);
    match parts.as_slice() {
        ["api"] => routes::check_discovery(method, &context.headers)?,
        ["api", version] if is_known("", version) => routes::check_discovery(method, &context.headers)?,
        ["apis", group, version] if is_known(group, version) => routes::check_discovery(method, &context.headers)?,
        _ => (),
    }
    let aggregated_as = || Accept::negotiate(&context.headers, &context.query, Offer::Aggregated);
    let server = &All { server, served: server.all_served(), remotes: server.aggregator.all() };
    let unknown = |name: &str| {
        !server.served.iter().any(|served| served.info.group == name)
            && !server.remotes.iter().any(|remote| remote.group == name)
    };
    match parts.as_slice() {
        ["apis", name, ..] if unknown(name) => Ok(page_not_found()),
        ["" | "index.html"] => Ok(respond_lines(StatusCode::OK, &json!({"paths": paths(server)}))),
        ["api"] if let Some(accept) = aggregated_as() => Ok(aggregated(server, context, &accept, true)),
        ["apis"] if let Some(accept) = aggregated_as() => Ok(aggregated(server, context, &accept, false)),
        ["api"] => {
            let config = &server.server.config;
            let address = SocketAddr::new(config.advertise_address, config.secure_port).to_string();
            ok(&json!({
                "kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
            }))
        }
        ["apis"] => {
            let groups: Vec<Value> = groups(server).iter().map(|(name, versions)| group(name, versions)).collect();
            ok(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", version] => ok(&resource_list(server, "", version)?),
        ["apis", name] => {
            let all = groups(server);
            let (name, versions) =
                all.iter().find(|(known, _)| known == name).ok_or_else(ApiError::no_such_resource)?;
            let mut value = group(name, versions);
            if let Some(map) = value.as_object_mut() {
                map.insert("kind".into(), "APIGroup".into());
                map.insert("apiVersion".into(), "v1".into());
            }
            ok(&value)
        }
        ["apis", name, version] => match resource_list(server, name, version) {
            Err(_) if !server.server.registry.has_group(name) => Ok(page_not_found()),
            list => ok(&list?),
        },
        _ => Err(ApiError::no_such_resource()),
    }
}

fn paths(server: &All<'_>) -> Vec<String> {
    let mut paths: Vec<String> = PATHS.map(String::from).to_vec();
    paths.extend(health::paths(server.server));
    for (name, versions) in groups(server) {
        paths.extend(versions.iter().map(|version| format!("/apis/{name}/{version}")));
        paths.push(format!("/apis/{name}"));
    }
    paths.sort();
    paths
}

/// The named groups with their versions, preferred first.
fn groups(server: &All<'_>) -> Vec<(String, Vec<String>)> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for served in server.served.iter().filter(|served| !served.info.group.is_empty()) {
        let (group, version) = (&served.info.group, &served.info.version);
        match groups.iter_mut().find(|(name, _)| name == group) {
            Some((_, versions)) if versions.contains(version) => (),
            Some((_, versions)) => versions.push(version.clone()),
            None => groups.push((group.clone(), vec![version.clone()])),
        }
    }
    if !server.remotes.is_empty() {
        add_remotes(server, &mut groups);
    }
    groups
}

/// Those of others take their places by their priorities.
fn add_remotes(server: &All<'_>, groups: &mut Vec<(String, Vec<String>)>) {
    for remote in server.remotes.iter().filter(|remote| !remote.group.is_empty()) {
        match groups.iter_mut().find(|(name, _)| *name == remote.group) {
            Some((_, versions)) if versions.contains(&remote.version) => (),
            Some((_, versions)) => versions.push(remote.version.clone()),
            None => groups.push((remote.group.clone(), vec![remote.version.clone()])),
        }
    }
    let custom = server.server.custom.load();
    let priorities = |group: &str, version: &str| match server.remote(group, version) {
        Some(remote) => (remote.group_priority, remote.version_priority),
        // The group in which all others are named is not one of them.
        None if group == "apiregistration.k8s.io" => (i64::MAX, 0),
        None if custom.has_group(group) => aggregator::CUSTOM_PRIORITIES,
        None => {
            let (group, version) = local_apis::priorities(group, version);
            (group.into(), version.into())
        }
    };
    for (group, versions) in groups.iter_mut() {
        let of = |version: &str| priorities(group, version).1;
        versions.sort_by(|a, b| of(b).cmp(&of(a)).then_with(|| compare_versions(b, a)));
    }
    let of = |(group, versions): &(String, Vec<String>)| versions.iter().map(|v| priorities(group, v).0).max();
    groups.sort_by_key(|group| std::cmp::Reverse(of(group)));
}

fn group(name: &str, versions: &[String]) -> Value {
    let entry = |version: &String| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    json!({
        "name": name, "versions": versions.iter().map(entry).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(entry),
    })
}

fn resource_list(server: &All<'_>, group: &str, version: &str) -> Result<Value, ApiError> {
    let served: Vec<&Arc<Served>> =
        server.served.iter().filter(|s| s.info.group == group && s.info.version == version).collect();
    let first = served.first().ok_or_else(ApiError::no_such_resource)?;
    let mut resources: Vec<Value> = served.iter().flat_map(|served| entries(served)).collect();
    if first.custom().is_none() {
        resources.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    }
    let mut list = json!({"kind": "APIResourceList", "groupVersion": first.info.api_version(), "resources": resources});
    // The oldest version is told as it always was, without saying of which version the list itself is.
    if let (false, Some(map)) = (group.is_empty(), list.as_object_mut()) {
        map.insert("apiVersion".into(), "v1".into());
    }
    Ok(list)
}

fn name_of(entry: &Value) -> &str {
    entry.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn entries(served: &Served) -> Vec<Value> {
    let info = &served.info;
    let mut main = json!({
        "name": info.plural, "singularName": info.singular, "namespaced": info.namespaced, "kind": info.kind, "verbs": verbs(served),
    });
    if let Some(map) = main.as_object_mut() {
        optional(map, "shortNames", &info.short_names);
        optional(map, "categories", &info.categories);
        if served.cache.is_some() {
            map.insert("storageVersionHash".into(), storage_version_hash(served).into());
        }
    }
    let subresources = info.subresources.iter().map(|sub| {
        let mut entry = json!({
            "name": format!("{}/{}", info.plural, sub.name), "singularName": "", "namespaced": info.namespaced,
            "kind": sub.kind, "verbs": sub.verbs,
        });
        if let (Some((group, version)), Some(map)) = (&sub.group_version, entry.as_object_mut()) {
            map.insert("group".into(), group.clone().into());
            map.insert("version".into(), version.clone().into());
        }
        entry
    });
    std::iter::once(main).chain(subresources).collect()
}

/// Of what is about to go, what is left can be seen and removed; that it can still be changed is not told.
fn verbs(served: &Served) -> Vec<&str> {
    let is_ending = served.custom().is_some_and(|custom| custom.definition.is_terminating);
    let told = |verb: &&str| !is_ending || !matches!(*verb, "create" | "patch" | "update");
    served.info.verbs.iter().map(String::as_str).filter(told).collect()
}

fn optional(map: &mut Map<String, Value>, key: &str, list: &[String]) {
    if !list.is_empty() {
        map.insert(key.into(), json!(list));
    }
}

/// Clients compare it to learn that the stored version changed.
fn storage_version_hash(served: &Served) -> String {
    let (group, version) = match served.storage_version.split_once('/') {
        // Upstream stores definitions in a version that it serves no more; what they say is the same.
        Some((group @ "apiextensions.k8s.io", _)) => (group, "v1beta1"),
        Some((group, version)) => (group, version),
        None => ("", served.storage_version.as_str()),
    };
    let text = format!("{group}/{version}/{}", served.info.kind);
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(digest.as_ref().get(..8).unwrap_or_default())
}

fn aggregated(server: &All<'_>, context: &Context, accept: &Accept, core: bool) -> Response<Body> {
    let groups = if core { vec![(String::new(), vec!["v1".to_owned()])] } else { groups(server) };
    let items: Vec<Value> = groups
        .iter()
        .map(|(name, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    if let Some(remote) = server.remote(name, version) {
                        return described::version(remote);
                    }
                    let served = server.served.iter();
                    let mut resources: Vec<Value> = served
                        .filter(|s| s.info.group == *name && s.info.version == *version)
                        .map(|served| aggregated_resource(served))
                        .collect();
                    resources.sort_by(|a, b| {
                        a.get("resource").map(Value::to_string).cmp(&b.get("resource").map(Value::to_string))
                    });
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let metadata = if core { json!({}) } else { json!({"name": name}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items});
    let digest = ring::digest::digest(&ring::digest::SHA512, list.to_string().as_bytes());
    let etag = format!("\"{}\"", digest.as_ref().iter().map(|b| format!("{b:02X}")).collect::<String>());
    let known = context.headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let mut response = if known == Some(etag.as_str()) {
        let mut unchanged = Response::new(full(Bytes::new()));
        *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
        unchanged
    } else {
        let mut response = respond(StatusCode::OK, accept, &list);
        let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let told = HeaderValue::from_str(&format!("{}{AGGREGATED}", content_type.unwrap_or_default()));
        if let Ok(told) = told {
            response.headers_mut().insert(header::CONTENT_TYPE, told);
        }
        response
    };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    if let Ok(value) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

fn aggregated_resource(served: &Served) -> Value {
    let info = &served.info;
    // Of what is built in, the group and version above are meant.
    let own = match served.custom() {
        Some(_) => (info.group.clone(), info.version.clone()),
        None => (String::new(), String::new()),
    };
    let mut entry = json!({
        "resource": info.plural, "responseKind": {"group": own.0, "version": own.1, "kind": info.kind},
        "scope": if info.namespaced { "Namespaced" } else { "Cluster" }, "singularResource": info.singular, "verbs": verbs(served),
    });
    let Some(map) = entry.as_object_mut() else { return entry };
    optional(map, "shortNames", &info.short_names);
    optional(map, "categories", &info.categories);
    if !info.subresources.is_empty() {
        let subresources: Vec<Value> = info
            .subresources
            .iter()
            .map(|sub| {
                let (group, version) = sub.group_version.clone().unwrap_or_else(|| own.clone());
                json!({"subresource": sub.name, "responseKind": {"group": group, "version": version, "kind": sub.kind}, "verbs": sub.verbs})
            })
            .collect();
        map.insert("subresources".into(), subresources.into());
    }
    entry
}
