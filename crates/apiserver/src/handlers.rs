//! The verbs, for any resource.

mod apply;
mod create;
mod delete;
mod encode;
mod eviction;
mod list;
mod options;
mod patch;
mod review;
mod scale;
mod signing;
mod special;
mod splice;
mod update;
mod watch;
pub(crate) mod websocket;
mod write;

use std::sync::Arc;

use ::http::{Response, StatusCode};
use api::field::FieldError;
use api::{ApiError, Object, ObjectExt as _};
use serde_json::Value;

pub(crate) use self::delete::DeleteOptions;
pub(crate) use self::watch::Views;
pub(crate) use self::write::{Writer, now};
use crate::convert;
use crate::http::{self, Body, respond};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::request_info::RequestInfo;
use crate::server::ApiServer;

pub(crate) async fn answer(
    server: &Arc<ApiServer>,
    served: &Arc<Served>,
    context: &Context,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    match special::answer(server, served, context, body).await? {
        special::Outcome::Done(response) => Ok(response),
        special::Outcome::Generic(body) => generic(server, served, context, body).await,
    }
}

async fn generic(
    server: &Arc<ApiServer>,
    served: &Arc<Served>,
    context: &Context,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let info = &context.info;
    let verbs = match info.subresource.as_str() {
        "" => &served.info.verbs,
        name => {
            let found = served.info.subresources.iter().find(|sub| sub.name == name);
            let missing = || match served.custom() {
                Some(_) => ApiError::not_found(served.group_resource(), &info.name),
                None => ApiError::no_such_resource(),
            };
            &found.ok_or_else(missing)?.verbs
        }
    };
    if !verbs.iter().any(|verb| verb == info.verb) {
        return Err(ApiError::method_not_allowed(served.group_resource(), info.verb));
    }
    if info.subresource == "scale" {
        return scale::answer(server, served, context, body).await;
    }
    match info.verb {
        "get" => get(server, served, context).await,
        "list" => list::answer(server, served, context).await,
        "watch" => watch::answer(server, served, context).await,
        "create" => create::answer(server, served, context, body).await,
        "update" => update::answer(server, served, context, body).await,
        "patch" => patch::answer(server, served, context, body).await,
        "delete" => delete::answer(server, served, context, body).await,
        "deletecollection" => delete::collection(server, served, context, body).await,
        verb => Err(ApiError::method_not_allowed(served.group_resource(), verb)),
    }
}

/// A namespaced resource is written in a namespace, a cluster-scoped one is never in one: authorization was decided on
/// the namespace in the path.
pub(crate) fn check_scope(served: &Served, info: &RequestInfo) -> Result<(), ApiError> {
    // A namespace's own path names it twice over.
    let own_path = info.resource == "namespaces" && info.namespace == info.name;
    let in_namespace = !info.namespace.is_empty() && !own_path;
    let needs_one = served.info.namespaced && !(info.is_of_many && matches!(info.verb, "list" | "watch"));
    match (served.info.namespaced, in_namespace) {
        (false, true) => Err(ApiError::no_such_resource()),
        (true, false) if needs_one => Err(ApiError::no_such_resource()),
        _ => Ok(()),
    }
}

async fn get(server: &Arc<ApiServer>, served: &Served, context: &Context) -> Result<Response<Body>, ApiError> {
    let accept = context.accept()?;
    let info = &context.info;
    if context.query.flag("export") {
        let why = "the export parameter, deprecated since v1.14, is no longer supported";
        return Err(ApiError::bad_request(why));
    }
    let cache = served.cache.as_ref().ok_or_else(ApiError::no_such_resource)?;
    match context.query.get("resourceVersion") {
        Some("0") => (),
        asked => {
            let wanted = asked.map_or(Ok(0), options::revision).map_err(|why| ApiError::new(500, "", why))?;
            let current = server.feed.current().await.map_err(crate::server::store_error)?;
            if wanted > current {
                return Err(options::too_large(wanted, current, 1));
            }
        }
    }
    let stored = cache.read(&served.key(&info.namespace, &info.name))?;
    let stored = stored.ok_or_else(|| ApiError::not_found(served.group_resource(), &info.name))?;
    if accept.form == http::Form::Whole && served.is_storage_version() && stored.is_plain {
        let bytes = match accept.encoding {
            http::Encoding::Json => {
                let mut bytes = Vec::with_capacity(stored.size() + 1);
                stored.write(&mut bytes, true);
                bytes.push(b'\n');
                Some(bytes)
            }
            http::Encoding::Protobuf => {
                let message = stored.message(&served.schema).map_err(ApiError::internal)?;
                Some(api::protobuf::seal(&served.info.api_version(), &served.info.kind, &message))
            }
            _ => None,
        };
        if let Some(bytes) = bytes {
            return Ok(http::respond_bytes(StatusCode::OK, accept.content_type(), bytes));
        }
    }
    let object = convert::from_storage(server, served, &stored).await?;
    respond_object(served, StatusCode::OK, context, &accept, &object)
}

/// One object in whatever form the client asked for.
fn respond_object(
    served: &Served,
    status: StatusCode,
    context: &Context,
    accept: &http::Accept,
    object: &Object,
) -> Result<Response<Body>, ApiError> {
    let value = encode::object(served, context, accept, object)?;
    Ok(respond(status, accept, &value))
}

/// A name that can be part of no path is nothing's.
pub(crate) fn check_name(info: &RequestInfo) -> Result<(), ApiError> {
    let name = info.name.as_str();
    let why = match name {
        "." => "may not be '.'",
        ".." => "may not be '..'",
        _ if info.is_of_many || !name.contains('%') => return Ok(()),
        // What would be two names stayed as it was sent.
        _ if name.contains("%2f") || name.contains("%2F") => return Err(ApiError::no_such_resource()),
        _ => "may not contain '%'",
    };
    Err(ApiError::bad_request(format!("Name parameter invalid: {name:?}: {why}")))
}

/// Reads the body of a write as an object of the served kind: typed, pruned, and with its type filled in.
async fn read_object(served: &Served, context: &Context, body: Body) -> Result<Object, ApiError> {
    let bytes = http::read(body).await?;
    let (object, duplicates) = http::decode_tracked(&context.headers, &bytes, &served.info.kind)?;
    conform(served, context, object, &duplicates)
}

/// Makes `new` the very object and version that `wanted`, which tells only a part of it, speaks of: a write looks at both.
fn mean(new: &mut Object, wanted: &Object) {
    new.metadata().insert("resourceVersion".into(), wanted.resource_version().into());
    if !wanted.uid().is_empty() {
        new.metadata().insert("uid".into(), wanted.uid().into());
    }
}

/// An object of another kind, or of this one in a version that is not the path's.
fn wrong_kind(wanted: &str, expected: &str, kind: &str, version: &str) -> ApiError {
    let split = |api_version: &str| match api_version.split_once('/') {
        Some((group, version)) => (group.to_owned(), version.to_owned()),
        None => (String::new(), api_version.to_owned()),
    };
    let (group, short) = split(version);
    let own = split(expected).0;
    let is_kind = |kind: &str| api::schema::of_kind(&group, &short, kind).is_some();
    let is_list = kind.strip_suffix("List").is_some_and(|item| is_kind(item) || (item.is_empty() && version == "v1"));
    let known = is_kind(kind) || is_list;
    ApiError::bad_request(match known {
        true if kind == wanted => {
            format!("the API version in the data ({version}) does not match the expected API version ({expected})")
        }
        true => format!(
            "{kind} in version {short:?} cannot be handled as a {wanted}: converting ({short}.{kind}) to ({}.{wanted}): \
             unknown conversion",
            if own.is_empty() { "core" } else { own.split('.').next().unwrap_or_default() }
        ),
        false => format!(
            "{kind} in version {short:?} cannot be handled as a {wanted}: no kind {kind:?} is registered for version \
             {version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
        ),
    })
}

/// A custom resource must say what it is; that it is of the right kind is seen with the rest of its fields.
fn check_custom_type(served: &Served, object: &Object) -> Result<(), ApiError> {
    let (kind, version, expected) = (object.text(&["kind"]), object.text(&["apiVersion"]), served.info.api_version());
    if kind.is_empty() {
        let shown = Value::Object(object.clone()).to_string();
        let head = shown.get(..30).map_or(shown.clone(), |head| format!("{head} ..."));
        let wanted = &served.info.kind;
        return Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {wanted}): Object 'Kind' is missing in '{shown}' ({head})"
        )));
    }
    if version != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({expected})"
        )));
    }
    if kind != served.info.kind {
        let error = FieldError::invalid("kind", kind, format!("must be {}", served.info.kind));
        return Err(ApiError::invalid(&served.info.group, kind, object.name(), &[error]));
    }
    Ok(())
}

/// Fits an object to its kind; tells of fields the kind does not have and of those that came twice.
fn conform(served: &Served, context: &Context, mut object: Object, duplicates: &[String]) -> Result<Object, ApiError> {
    let (kind, version) = (object.text(&["kind"]).to_owned(), object.text(&["apiVersion"]).to_owned());
    if let Err(why) = http::check_type(&object) {
        let (own, wanted) = (&served.info.version, &served.info.kind);
        let why = format!("{wanted} in version {own:?} cannot be handled as a {wanted}: {why}");
        return Err(ApiError::bad_request(why));
    }
    if served.custom().is_some() {
        check_custom_type(served, &object)?;
    } else if (!kind.is_empty() && kind != served.info.kind)
        || (!version.is_empty() && version != served.info.api_version())
    {
        return Err(wrong_kind(&served.info.kind, &served.info.api_version(), &kind, &version));
    }
    object.insert("kind".into(), served.info.kind.clone().into());
    object.insert("apiVersion".into(), served.info.api_version().into());
    fit(context, (&served.info.version, &served.info.kind), &served.schema, object, duplicates)
}

/// The same for a kind that need not be served itself.
fn fit(
    context: &Context,
    (version, kind): (&str, &str),
    schema: &api::schema::Type,
    object: Object,
    duplicates: &[String],
) -> Result<Object, ApiError> {
    let mut value = Value::Object(object);
    let refuse = |why: String| {
        ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    };
    let unknown = api::decode::conform(&mut value, schema).map_err(|error| refuse(error.to_string()))?;
    let unknown = unknown.iter().map(|path| format!("unknown field {path:?}"));
    let told: Vec<String> = unknown.chain(duplicates.iter().cloned()).collect();
    let strictness = context.query.get("fieldValidation").unwrap_or("Warn");
    match (strictness, told.is_empty()) {
        ("Ignore" | "Warn" | "Strict", true) | ("Ignore", _) => (),
        ("Warn", false) => told.into_iter().for_each(|warning| context.warn(warning)),
        ("Strict", false) => return Err(refuse(format!("strict decoding error: {}", told.join(", ")))),
        // Checked with the other options.
        _ => (),
    }
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(refuse("not an object".into())),
    }
}
