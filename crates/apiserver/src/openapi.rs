//! OpenAPI v3, one document per group and version, built when first asked for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use ::http::{HeaderValue, Response, StatusCode, header};
use api::ApiError;
use api::schema::{Field, Shape, Topology, Type, docs, generated::KINDS};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::http::{Body, respond, respond_bytes};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

/// Built documents by their path below `/openapi/v3/`; the built-in ones never change.
static BUILT: OnceLock<Mutex<HashMap<String, (Bytes, String)>>> = OnceLock::new();

pub(crate) fn answer(server: &Arc<ApiServer>, context: &Context) -> Result<Response<Body>, ApiError> {
    let path = context.info.path.trim_matches('/');
    match path.strip_prefix("openapi/v3") {
        Some("") => Ok(respond(StatusCode::OK, &context.accept()?, &index(server))),
        Some(rest) => document(server, context, rest.trim_start_matches('/')),
        None => Err(ApiError::not_acceptable("OpenAPI is served in version 3: use /openapi/v3")),
    }
}

fn path_of(served: &Served) -> String {
    match served.info.group.as_str() {
        "" => format!("api/{}", served.info.version),
        group => format!("apis/{group}/{}", served.info.version),
    }
}

fn index(server: &ApiServer) -> Value {
    let paths: BTreeSet<String> = server.registry.all().iter().map(|served| path_of(served)).collect();
    let entries: Map<String, Value> = paths
        .into_iter()
        .map(|path| {
            // The documents of built-in groups change with the binary alone.
            let hash =
                ring::digest::digest(&ring::digest::SHA256, format!("{path}{}", env!("CARGO_PKG_VERSION")).as_bytes());
            let hash: String = hash.as_ref().iter().map(|b| format!("{b:02X}")).collect();
            let url = format!("/openapi/v3/{path}?hash={hash}");
            (path, json!({"serverRelativeURL": url}))
        })
        .collect();
    json!({"paths": entries})
}

fn document(server: &ApiServer, context: &Context, path: &str) -> Result<Response<Body>, ApiError> {
    let cache = BUILT.get_or_init(Mutex::default);
    let known = cache.lock().get(path).cloned();
    let (bytes, etag) = match known {
        Some(known) => known,
        None => {
            let served: Vec<&Arc<Served>> = server.registry.all().iter().filter(|s| path_of(s) == path).collect();
            if served.is_empty() {
                return Err(ApiError::no_such_resource());
            }
            let bytes = Bytes::from(build(&served).to_string());
            let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
            let etag = format!("\"{}\"", digest.as_ref().iter().map(|b| format!("{b:02X}")).collect::<String>());
            cache.lock().insert(path.to_owned(), (bytes.clone(), etag.clone()));
            (bytes, etag)
        }
    };
    let known = context.headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let mut response = if known == Some(etag.as_str()) {
        respond_bytes(StatusCode::NOT_MODIFIED, "application/json", "")
    } else {
        respond_bytes(StatusCode::OK, "application/json", bytes)
    };
    if let Ok(value) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(header::ETAG, value);
    }
    Ok(response)
}

fn build(served: &[&Arc<Served>]) -> Value {
    let mut schemas = BTreeMap::new();
    let mut paths = Map::new();
    for served in served {
        collect(&served.schema, &mut schemas);
        list_schema(served, &mut schemas);
        operations(served, &mut paths);
    }
    for name in ["DeleteOptions", "Status", "ListMeta", "WatchEvent", "Patch"] {
        if let Some(schema) = api::schema::named(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}")) {
            collect(schema, &mut schemas);
        }
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": crate::health::VERSION},
        "paths": paths, "components": {"schemas": schemas},
    })
}

fn list_schema(served: &Served, schemas: &mut BTreeMap<String, Value>) {
    if !served.info.verbs.iter().any(|verb| verb == "list") {
        return;
    }
    let (name, kind) = (&served.schema.name, &served.info.kind);
    let schema = json!({
        "description": format!("{kind}List is a list of {kind} objects."), "type": "object", "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"},
            "items": {"type": "array", "items": {"allOf": [{"$ref": reference(name)}], "default": {}}},
            "metadata": {"allOf": [{"$ref": reference("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta")}], "default": {}},
        },
        "x-kubernetes-group-version-kind": [{"group": served.info.group, "version": served.info.version, "kind": format!("{kind}List")}],
    });
    schemas.insert(format!("{name}List"), schema);
}

fn reference(name: &str) -> String {
    format!("#/components/schemas/{name}")
}

/// Adds a type and everything it refers to.
fn collect(schema: &Type, schemas: &mut BTreeMap<String, Value>) {
    if schemas.contains_key(schema.name.as_ref()) {
        return;
    }
    schemas.insert(schema.name.to_string(), Value::Null);
    let texts = docs::of(&schema.name).unwrap_or_default();
    let mut properties = Map::new();
    for (index, field) in schema.fields.iter().enumerate() {
        let text = texts.get(index + 1).copied().unwrap_or_default();
        properties.insert(field.name.to_string(), property(field, text, schemas));
    }
    let mut value = json!({"type": "object"});
    if let Some(map) = value.as_object_mut() {
        if let Some(text) = texts.first().filter(|text| !text.is_empty()) {
            map.insert("description".into(), (*text).into());
        }
        if !properties.is_empty() {
            map.insert("properties".into(), Value::Object(properties));
        }
        let required: Vec<&str> =
            schema.fields.iter().filter(|f| f.required && f.name != "metadata").map(|f| f.name.as_ref()).collect();
        if !required.is_empty() {
            map.insert("required".into(), json!(required));
        }
        let kinds: Vec<Value> = KINDS
            .iter()
            .filter(|(_, _, _, known)| known.name == schema.name)
            .map(|(group, version, kind, _)| json!({"group": group, "version": version, "kind": kind}))
            .collect();
        if !kinds.is_empty() {
            map.insert("x-kubernetes-group-version-kind".into(), kinds.into());
        }
    }
    schemas.insert(schema.name.to_string(), value);
}

fn property(field: &Field, text: &str, schemas: &mut BTreeMap<String, Value>) -> Value {
    let mut value = shape(&field.shape, schemas);
    let Some(map) = value.as_object_mut() else { return value };
    if let Some(reference) = map.remove("$ref") {
        map.insert("allOf".into(), json!([{"$ref": reference}]));
        if matches!(field.shape, Shape::Object(_)) && field.required {
            map.insert("default".into(), json!({}));
        }
    }
    if !text.is_empty() {
        map.insert("description".into(), text.into());
    }
    if let Some(default) = field.default.as_deref().and_then(|text| serde_json::from_str(text).ok()) {
        map.insert("default".into(), default);
    }
    match (&field.topology, &field.shape) {
        (Topology::Default, _) => (),
        (Topology::Atomic, Shape::List(_)) => drop(map.insert("x-kubernetes-list-type".into(), "atomic".into())),
        (Topology::Atomic, _) => drop(map.insert("x-kubernetes-map-type".into(), "atomic".into())),
        (Topology::Granular, _) => drop(map.insert("x-kubernetes-map-type".into(), "granular".into())),
        (Topology::Set, _) => drop(map.insert("x-kubernetes-list-type".into(), "set".into())),
        (Topology::Map(keys), _) => {
            map.insert("x-kubernetes-list-type".into(), "map".into());
            map.insert("x-kubernetes-list-map-keys".into(), json!(keys));
        }
    }
    if field.patch.merge || field.patch.retain_keys {
        let strategy = match (field.patch.merge, field.patch.retain_keys) {
            (true, true) => "merge,retainKeys",
            (true, false) => "merge",
            _ => "retainKeys",
        };
        map.insert("x-kubernetes-patch-strategy".into(), strategy.into());
        if !field.patch.merge_key.is_empty() {
            map.insert("x-kubernetes-patch-merge-key".into(), field.patch.merge_key.as_ref().into());
        }
    }
    value
}

fn shape(shape_: &Shape, schemas: &mut BTreeMap<String, Value>) -> Value {
    match shape_ {
        Shape::String => json!({"type": "string"}),
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Int32 => json!({"type": "integer", "format": "int32"}),
        Shape::Int64 => json!({"type": "integer", "format": "int64"}),
        Shape::Double => json!({"type": "number", "format": "double"}),
        Shape::Bytes => json!({"type": "string", "format": "byte"}),
        Shape::Time | Shape::MicroTime => json!({"type": "string", "format": "date-time"}),
        Shape::Quantity => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        Shape::IntOrString => json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
        Shape::Any | Shape::SchemaOr(_) => json!({"type": "object"}),
        Shape::Object(schema) => {
            collect(schema, schemas);
            json!({"$ref": reference(&schema.name)})
        }
        Shape::List(inner) => json!({"type": "array", "items": shape(inner, schemas)}),
        Shape::Map(inner) => json!({"type": "object", "additionalProperties": shape(inner, schemas)}),
    }
}

/// The paths of a resource with the parameters clients look for before they use them.
fn operations(served: &Served, paths: &mut Map<String, Value>) {
    let root = format!("/{}", path_of(served));
    let scope = if served.info.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{root}{scope}/{}", served.info.plural);
    let has = |verb: &str| served.info.verbs.iter().any(|known| known == verb);
    let mut many = Map::new();
    let mut one = Map::new();
    for (verb, method, action, on_one) in [
        ("list", "get", "list", false),
        ("create", "post", "post", false),
        ("deletecollection", "delete", "deletecollection", false),
        ("get", "get", "get", true),
        ("update", "put", "put", true),
        ("patch", "patch", "patch", true),
        ("delete", "delete", "delete", true),
    ] {
        if has(verb) {
            let target = if on_one { &mut one } else { &mut many };
            target.insert(method.into(), operation(served, verb, action));
        }
    }
    if !many.is_empty() {
        paths.insert(collection.clone(), Value::Object(many));
    }
    if !one.is_empty() {
        paths.insert(format!("{collection}/{{name}}"), Value::Object(one));
    }
}

fn operation(served: &Served, verb: &str, action: &str) -> Value {
    let query =
        |name: &str, kind: &str| json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}});
    let mut parameters = vec![query("pretty", "string")];
    if matches!(verb, "create" | "update" | "patch") {
        parameters.extend(["dryRun", "fieldManager", "fieldValidation"].map(|name| query(name, "string")));
    }
    if verb == "patch" {
        parameters.push(query("force", "boolean"));
    }
    let content = json!({"application/json": {"schema": {"$ref": reference(&served.schema.name)}}});
    let mut value = json!({
        "tags": [path_of(served).replace(['/', '.'], "_")], "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": served.info.group, "version": served.info.version, "kind": served.info.kind},
    });
    if let (true, Some(map)) = (matches!(verb, "create" | "update"), value.as_object_mut()) {
        map.insert(
            "requestBody".into(),
            json!({"content": {"*/*": {"schema": {"$ref": reference(&served.schema.name)}}}, "required": true}),
        );
    }
    value
}
