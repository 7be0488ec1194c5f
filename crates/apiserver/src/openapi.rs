//! OpenAPI: version 3 as one document per group and version, version 2 as one for all; each is built when first asked for,
//! beside the requests, and never again.

mod custom;
mod enums;
mod gnostic;
mod operations;
mod schemas;
mod ui;
mod v2;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use ::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use api::ApiError;
use api::resources::Subresource;
use api::schema::Type;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use self::schemas::Schemas;
use crate::aggregator::described;
use crate::http::{Body, full, page_not_found, respond_bytes};
use crate::pipeline::Context;
use crate::registry::{Registry, Served};
use crate::server::ApiServer;

/// What is asked for is no media type by the rules, so the answer is named otherwise.
const V2_PROTOBUF_ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const V2_JSON: &str = "application/json";

/// A document and the digest that names its content.
#[derive(Clone)]
struct Built {
    bytes: Bytes,
    digest: Arc<str>,
}

/// By path; the documents of the built-in groups change with the binary alone.
static BUILT: OnceLock<Mutex<HashMap<String, Built>>> = OnceLock::new();

/// `/openapi/v3/apis/apps/v1`
pub(crate) fn is_asked(path: &str) -> bool {
    let below = path.strip_prefix("/openapi/").and_then(|rest| rest.split('/').next());
    below.is_some_and(|version| matches!(version, "v2" | "v3" | "ui"))
}

pub(crate) async fn answer(server: &Arc<ApiServer>, context: &Context) -> Result<Response<Body>, ApiError> {
    match context.info.path.trim_start_matches('/') {
        "openapi/v2/" => Ok(page_not_found()),
        path if path.ends_with('/') && !path.starts_with("openapi/ui/") => Ok(bare(StatusCode::NOT_FOUND)),
        // Upstream does not say that it is JSON, and takes no notice of what is accepted.
        "openapi/v3" => {
            let index = index(server).await?.to_string();
            Ok(respond_bytes(StatusCode::OK, "text/plain; charset=utf-8", index))
        }
        "openapi/v2" => version_two(server, context).await,
        path if path == "openapi/ui" || path.starts_with("openapi/ui/") => {
            ui::answer(context, path.trim_start_matches("openapi/ui"))
        }
        path => {
            let path = path.trim_start_matches("openapi/v3/").to_owned();
            if !takes(&context.headers, &["application/json", "application/*"]) {
                let mut response = bare(StatusCode::NOT_ACCEPTABLE);
                response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
                return Ok(response);
            }
            let is_known = |served: &Arc<Served>| path_of(served) == path;
            let custom = server.custom.load();
            let built = if server.registry.all().iter().any(is_known) {
                document(server, path.clone()).await?
            } else if custom.all().iter().any(is_known) {
                custom_document(custom, path.clone()).await?
            } else {
                return Ok(bare(StatusCode::NOT_FOUND));
            };
            let mut response = match context.query.get("hash") {
                Some(hash) if hash != &*built.digest => moved(&path, &built),
                _ => respond_built(&context.headers, &built, "application/json"),
            };
            if context.query.get("hash") == Some(&*built.digest) {
                let for_ever = HeaderValue::from_static("public, immutable");
                response.headers_mut().insert(header::CACHE_CONTROL, for_ever);
            }
            Ok(response)
        }
    }
}

/// Whether a document is wanted as one of these, whatever else.
fn takes(headers: &HeaderMap, offered: &[&str]) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut wanted = accept.split(',').map(|range| range.split(';').next().unwrap_or_default().trim());
    wanted.any(|range| matches!(range, "" | "*/*") || offered.contains(&range))
}

/// Nothing but a code.
fn bare(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    response
}

fn path_of(served: &Served) -> String {
    match served.info.group.as_str() {
        "" => format!("api/{}", served.info.version),
        group => format!("apis/{group}/{}", served.info.version),
    }
}

/// The type a subresource takes and gives; streams have none.
fn type_of(served: &Served, subresource: &Subresource) -> Option<&'static Type> {
    let own = (served.info.group.clone(), served.info.version.clone());
    let (group, version) = subresource.group_version.as_ref().unwrap_or(&own);
    api::schema::of_kind(group, version, &subresource.kind)
}

/// Where each document is, by a name that changes with its content, so that clients may keep it for ever.
async fn index(server: &Arc<ApiServer>) -> Result<Value, ApiError> {
    let paths: BTreeSet<String> = server.registry.all().iter().map(|served| path_of(served)).collect();
    let mut entries = Map::new();
    for path in paths {
        let built = document(server, path.clone()).await?;
        let url = format!("/openapi/v3/{path}?hash={}", built.digest);
        entries.insert(path, json!({"serverRelativeURL": url}));
    }
    let custom = server.custom.load();
    let paths: BTreeSet<String> = custom.all().iter().map(|served| path_of(served)).collect();
    for path in paths {
        let url = format!("/openapi/v3/{path}?hash={}", stamp(&custom, Some(&path)));
        entries.insert(path, json!({"serverRelativeURL": url}));
    }
    entries.extend(described::documents(server).await);
    Ok(json!({"paths": entries}))
}

async fn document(server: &Arc<ApiServer>, path: String) -> Result<Built, ApiError> {
    let wanted = path.clone();
    let key = format!("{}{path}", server.config.runtime_config.stamp());
    built(server, &key, move |registry| version_three(registry, &wanted).to_string().into_bytes()).await
}

/// Names the content of a custom document, or of all, without making it.
fn stamp(custom: &Registry, path: Option<&str>) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for served in custom.all().iter().filter(|served| path.is_none_or(|path| path_of(served) == path)) {
        if let Some(custom) = served.custom() {
            context.update(custom.definition.stamp.as_bytes());
        }
    }
    context.finish().as_ref().iter().map(|b| format!("{b:02X}")).collect()
}

/// The document of custom resources. Clients keep it, so the server does not.
async fn custom_document(custom: Arc<Registry>, path: String) -> Result<Built, ApiError> {
    let digest = stamp(&custom, Some(&path)).into();
    let work = tokio::task::spawn_blocking(move || version_three(&custom, &path).to_string());
    Ok(Built { bytes: work.await.map_err(ApiError::internal)?.into(), digest })
}

/// The document of a key, built on a thread of its own the first time.
async fn built(
    server: &Arc<ApiServer>,
    key: &str,
    build: impl FnOnce(&Registry) -> Vec<u8> + Send + 'static,
) -> Result<Built, ApiError> {
    let cache = BUILT.get_or_init(Mutex::default);
    if let Some(known) = cache.lock().get(key) {
        return Ok(known.clone());
    }
    let server = server.clone();
    let work = tokio::task::spawn_blocking(move || {
        let bytes = Bytes::from(build(&server.registry));
        let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
        let digest: String = digest.as_ref().iter().map(|b| format!("{b:02X}")).collect();
        Built { bytes, digest: digest.into() }
    });
    let built = work.await.map_err(ApiError::internal)?;
    Ok(cache.lock().entry(key.to_owned()).or_insert(built).clone())
}

fn respond_built(headers: &HeaderMap, built: &Built, content_type: &'static str) -> Response<Body> {
    let etag = format!("\"{}\"", built.digest);
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut known = known.split(',').map(|known| known.trim().trim_start_matches("W/"));
    let mut response = if known.any(|known| known == "*" || known == etag) {
        respond_bytes(StatusCode::NOT_MODIFIED, content_type, "")
    } else {
        respond_bytes(StatusCode::OK, content_type, built.bytes.clone())
    };
    if let Ok(value) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// Asked for by the name of another content.
fn moved(path: &str, built: &Built) -> Response<Body> {
    let mut response = respond_bytes(StatusCode::MOVED_PERMANENTLY, "application/json", "");
    if let Ok(value) = HeaderValue::from_str(&format!("/openapi/v3/{path}?hash={}", built.digest)) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}

fn version_three(registry: &Registry, path: &str) -> Value {
    let served: Vec<&Arc<Served>> = registry.all().iter().filter(|served| path_of(served) == path).collect();
    let (group, version) = served.first().map_or(("", ""), |s| (s.info.group.as_str(), s.info.version.as_str()));
    let mut schemas = Schemas::new(group, version);
    let mut paths = Map::new();
    for served in &served {
        schemas.add_resource(served);
        operations::add(served, &mut paths);
    }
    let is_custom = served.iter().any(|served| served.custom().is_some());
    schemas.add_meta(served.iter().any(|served| served.cache.is_some()), is_custom);
    let mut components = json!({"schemas": schemas.found});
    if let (false, Some(components)) = (is_custom, components.as_object_mut()) {
        let token = json!({"type": "apiKey", "in": "header", "name": "authorization", "description": "Bearer Token authentication"});
        components.insert("securitySchemes".into(), json!({"BearerToken": token}));
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "1.36"}, "paths": paths, "components": components,
    })
}

/// `/openapi/v2` in JSON, or in the protobuf form that kubectl asks for.
async fn version_two(server: &Arc<ApiServer>, context: &Context) -> Result<Response<Body>, ApiError> {
    let accept = context.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let wanted = accept.split(',').map(|range| range.split(';').next().unwrap_or_default().trim());
    let wanted = wanted.into_iter().find_map(|range| match range {
        V2_PROTOBUF_ASKED | V2_PROTOBUF => Some(V2_PROTOBUF),
        "" | "*/*" | "application/*" | V2_JSON => Some(V2_JSON),
        _ => None,
    });
    let Some(content_type) = wanted else {
        let mut response = bare(StatusCode::NOT_ACCEPTABLE);
        for name in ["Accept", "Accept-Encoding"] {
            response.headers_mut().append(header::VARY, HeaderValue::from_static(name));
        }
        return Ok(response);
    };
    let custom = server.custom.load();
    let others = described::older(server).await;
    // What was made for other definitions is of no use any more.
    let prefix = format!("{}{content_type} ", server.config.runtime_config.stamp());
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    others.iter().for_each(|document| digest.update(document.to_string().as_bytes()));
    let key = format!("{prefix}{} {:?}", stamp(&custom, None), digest.finish());
    BUILT.get_or_init(Mutex::default).lock().retain(|known, _| !known.starts_with(&prefix) || *known == key);
    let built = built(server, &key, move |registry| {
        let mut document = v2::document([registry, &custom]);
        others.into_iter().for_each(|other| described::merge(&mut document, other));
        if content_type == V2_JSON { document.to_string().into_bytes() } else { gnostic::encode(&document) }
    });
    Ok(respond_built(&context.headers, &built.await?, content_type))
}
