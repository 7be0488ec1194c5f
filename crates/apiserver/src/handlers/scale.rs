//! The `scale` subresource: the replica count of any workload, as an autoscaling/v1 Scale.

use std::sync::Arc;

use ::http::{Response, StatusCode, header};
use api::field::FieldError;
use api::schema::Type;
use api::{ApiError, Object, ObjectExt as _};
use serde_json::{Value, json};

use super::apply::Options;
use super::patch::{self, Format, Patch};
use super::{Writer, apply, fit, mean, now, respond_object, update, wrong_kind};
use crate::field_manager::{self, FieldManager, Tracking};
use crate::http::{self, Body};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

const SCALE_VERSION: &str = "autoscaling/v1";

pub(super) async fn answer(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let accept = context.accept()?;
    let info = &context.info;
    let content_type = context.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let is_apply = info.verb == "patch" && content_type.starts_with("application/apply-patch+yaml");
    let dry_run = match info.verb {
        "get" => false,
        "patch" if is_apply => apply::options(context)?.dry_run,
        "patch" => context.dry_run_after("PatchOptions", apply::needless_force(context))?,
        _ => context.dry_run("UpdateOptions")?,
    };
    let manager = field_manager::of_request(context);
    let tracking = Tracking::Scale(&manager);
    let writer = Writer { server, served, context: Some(context), subresource: "", dry_run, tracking };
    let object = if info.verb == "get" {
        writer.current(&info.namespace, &info.name).await?.1
    } else if is_apply {
        let Options { manager, force, .. } = apply::options(context)?;
        let config = parent_config(served, &apply::read_config(context, body).await?)?;
        let writer = Writer { tracking: Tracking::AppliedScale, ..writer };
        let fields = FieldManager { registry: &server.registry, served, subresource: "scale" };
        let change = |live: &Object| fields.apply(Some(live), &config, &manager, force, &now());
        writer.update(&info.namespace, &info.name, change).await?
    } else if info.verb == "patch" {
        let schema = api::schema::of_kind("autoscaling", "v1", "Scale").ok_or_else(ApiError::no_such_resource)?;
        let format = Format::of(content_type).ok_or_else(patch::unsupported)?;
        let patch = Patch::read(format, &http::read(body).await?);
        let change = |current: &Object| {
            let patch = patch.as_ref().map_err(Clone::clone)?;
            let patched = patch.apply(&shown(served, current), schema)?;
            let scale = typed(context, schema, patched.clone(), &[]).map_err(|error| patch.refuse(patched, error))?;
            update::check_place(served, info, &scale)?;
            scaled(served, current, &scale)
        };
        writer.update(&info.namespace, &info.name, change).await?
    } else {
        let schema = api::schema::of_kind("autoscaling", "v1", "Scale").ok_or_else(ApiError::no_such_resource)?;
        let (scale, twice) = http::decode_tracked(&context.headers, &http::read(body).await?, "Scale")?;
        let scale = typed(context, schema, scale, &twice)?;
        update::check_place(served, info, &scale)?;
        writer.update(&info.namespace, &info.name, |current| scaled(served, current, &scale)).await?
    };
    respond_object(served, StatusCode::OK, context, &accept, &of(served, &object)?)
}

/// An object that is a Scale, or says nothing else.
fn typed(context: &Context, schema: &Type, scale: Object, twice: &[String]) -> Result<Object, ApiError> {
    let (kind, version) = (scale.text(&["kind"]), scale.text(&["apiVersion"]));
    if !matches!(kind, "" | "Scale") || !matches!(version, "" | SCALE_VERSION) {
        return Err(wrong_kind("Scale", SCALE_VERSION, kind, version));
    }
    fit(context, ("v1", "Scale"), schema, scale, twice)
}

/// An applied Scale as the part of its workload that it speaks of.
fn parent_config(served: &Served, scale: &Object) -> Result<Object, ApiError> {
    let (kind, version) = (scale.text(&["kind"]), scale.text(&["apiVersion"]));
    if kind != "Scale" || version != SCALE_VERSION {
        return Err(ApiError::bad_request(format!("invalid object type: {}", field_manager::type_text(scale))));
    }
    let mut config = Object::new();
    config.insert("kind".into(), served.info.kind.clone().into());
    config.insert("apiVersion".into(), served.info.api_version().into());
    for field in ["name", "namespace", "resourceVersion", "uid"] {
        if let Some(value) = scale.at(&["metadata", field]) {
            config.metadata().insert(field.into(), value.clone());
        }
    }
    let path = Places::of(served).replicas;
    if let (Some(replicas), Some((last, parents))) = (scale.at(&["spec", "replicas"]), path.split_last()) {
        config.at_mut(parents).insert((*last).to_owned(), replicas.clone());
    }
    Ok(config)
}

/// A workload with the replicas of a Scale.
pub(super) fn scaled(served: &Served, current: &Object, scale: &Object) -> Result<Object, ApiError> {
    let replicas = scale.at(&["spec", "replicas"]).and_then(Value::as_i64).unwrap_or(0);
    // What a custom resource allows, it says itself.
    if served.custom().is_none() && !(0..=i64::from(i32::MAX)).contains(&replicas) {
        let error = FieldError::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        return Err(ApiError::invalid("autoscaling", "Scale", current.name(), &[error]));
    }
    let mut new = current.clone();
    mean(&mut new, scale);
    let path = Places::of(served).replicas;
    if let Some((last, parents)) = path.split_last() {
        new.at_mut(parents).insert((*last).to_owned(), replicas.into());
    }
    Ok(new)
}

/// Where a workload keeps what a Scale shows.
struct Places<'a> {
    replicas: Vec<&'a str>,
    current: Vec<&'a str>,
    /// A custom resource has its selector as text.
    selector: Option<Vec<&'a str>>,
}

impl<'a> Places<'a> {
    fn of(served: &'a Served) -> Self {
        fn texts(path: &[String]) -> Vec<&str> {
            path.iter().map(String::as_str).collect()
        }
        match served.custom().and_then(|custom| custom.version().scale.as_ref()) {
            Some(scale) => Self {
                replicas: texts(&scale.spec_replicas),
                current: texts(&scale.status_replicas),
                selector: Some(texts(&scale.selector)),
            },
            None => Self { replicas: vec!["spec", "replicas"], current: vec!["status", "replicas"], selector: None },
        }
    }
}

/// The Scale of a workload; a custom resource without its field has none.
pub(super) fn of(served: &Served, object: &Object) -> Result<Object, ApiError> {
    let places = Places::of(served);
    if served.custom().is_some() && object.at(&places.replicas).is_none() {
        let path = format!(".{}", places.replicas.join("."));
        return Err(ApiError::internal(format!("the spec replicas field {path:?} does not exist")));
    }
    Ok(shown(served, object))
}

/// The same, of none where there is none: what a change begins with.
fn shown(served: &Served, object: &Object) -> Object {
    let mut metadata = serde_json::Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.at(&["metadata", field]) {
            metadata.insert(field.into(), value.clone());
        }
    }
    let places = Places::of(served);
    let replicas = object.at(&places.replicas).cloned();
    let selector = match (&places.selector, object.at(&["spec", "selector"])) {
        (Some(path), _) => object.text(path).to_owned(),
        (None, Some(selector)) if served.info.kind != "ReplicationController" => {
            serde_json::from_value(selector.clone()).map(|s| selector_text(&s)).unwrap_or_default()
        }
        (None, Some(Value::Object(labels))) => {
            labels.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect::<Vec<_>>().join(",")
        }
        _ => String::new(),
    };
    let mut status = json!({"replicas": object.at(&places.current).cloned().unwrap_or_else(|| json!(0))});
    if let (false, Some(status)) = (selector.is_empty() && served.custom().is_some(), status.as_object_mut()) {
        status.insert("selector".into(), selector.into());
    }
    let fields = [
        ("kind", "Scale".into()),
        ("apiVersion", SCALE_VERSION.into()),
        ("metadata", Value::Object(metadata)),
        ("spec", replicas.filter(|count| *count != 0).map_or_else(|| json!({}), |count| json!({"replicas": count}))),
        ("status", status),
    ];
    fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

fn selector_text(selector: &k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|e| {
        let values = e.values.clone().unwrap_or_default().join(",");
        match e.operator.as_str() {
            "In" => format!("{} in ({values})", e.key),
            "NotIn" => format!("{} notin ({values})", e.key),
            "DoesNotExist" => format!("!{}", e.key),
            _ => e.key.clone(),
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}
