//! Objects and lists in the form a client asked for: whole, as table rows, or metadata alone.

use api::{ApiError, Object};
use serde_json::{Value, json};

use crate::http::{Accept, Form};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::table;

pub(super) fn object(served: &Served, context: &Context, accept: &Accept, object: &Object) -> Result<Value, ApiError> {
    if accept.form == Form::PartialObjectMetadataList {
        return Err(match served.custom() {
            Some(_) => ApiError::new(500, "", "content is not a list"),
            None => ApiError::not_acceptable(format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list (*{}.{})",
                package(served),
                served.info.kind
            )),
        });
    }
    let include = include_object(context, accept)?;
    Ok(shaped(served, accept, include, object))
}

/// How much of each object a row of a table carries.
pub(super) fn include_object<'a>(context: &'a Context, accept: &Accept) -> Result<Option<&'a str>, ApiError> {
    match context.query.get("includeObject").filter(|_| accept.form == Form::Table) {
        Some(other) if !matches!(other, "None" | "Metadata" | "Object") => Err(ApiError::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', \
             'None', or empty"
        ))),
        known => Ok(known),
    }
}

/// The package of upstream's own type, which some messages name.
fn package(served: &Served) -> &str {
    match served.info.group.as_str() {
        "" | "events.k8s.io" => "core",
        "internal.apiserver.k8s.io" => "apiserverinternal",
        group => group.split('.').next().unwrap_or_default(),
    }
}

/// One object; a table of one row where tables are asked for.
pub(super) fn shaped(served: &Served, accept: &Accept, include: Option<&str>, object: &Object) -> Value {
    match accept.form {
        Form::Whole | Form::Aggregated => Value::Object(object.clone()),
        Form::PartialObjectMetadata | Form::PartialObjectMetadataList => partial(accept, object),
        Form::Table => {
            let version = object.get("metadata").and_then(|m| m.get("resourceVersion"));
            let meta = version.map_or_else(|| json!({}), |version| json!({"resourceVersion": version}));
            let is_scale = object.get("kind").is_some_and(|kind| kind == "Scale") && served.info.kind != "Scale";
            match is_scale {
                true => table::render_scale(accept.meta_version, object, meta, include),
                false => table::render(served, accept.meta_version, std::slice::from_ref(object), meta, include),
            }
        }
    }
}

pub(super) fn list(
    served: &Served,
    context: &Context,
    accept: &Accept,
    objects: &[Object],
    meta: Value,
) -> Result<Value, ApiError> {
    Ok(match accept.form {
        Form::Table => table::render(served, accept.meta_version, objects, meta, include_object(context, accept)?),
        Form::PartialObjectMetadata => {
            let kind = match served.custom() {
                Some(_) => "unstructured.UnstructuredList".to_owned(),
                None => format!("{}.{}", package(served), served.list_kind),
            };
            return Err(ApiError::not_acceptable(format!(
                "you requested PartialObjectMetadata, but the requested object is a list (*{kind})"
            )));
        }
        Form::PartialObjectMetadataList => {
            let items: Vec<Value> = objects.iter().map(|object| partial(accept, object)).collect();
            json!({
                "kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{}", accept.meta_version),
                "metadata": meta, "items": if items.is_empty() { Value::Null } else { items.into() },
            })
        }
        Form::Whole | Form::Aggregated => {
            let items: Vec<Value> = objects.iter().map(|object| item(served, object)).collect();
            json!({
                "kind": served.list_kind, "apiVersion": served.info.api_version(),
                "metadata": meta, "items": items,
            })
        }
    })
}

/// Items of a built-in kind leave their type out, as upstream's do.
fn item(served: &Served, object: &Object) -> Value {
    let mut object = object.clone();
    if served.custom().is_none() {
        object.remove("kind");
        object.remove("apiVersion");
    }
    Value::Object(object)
}

fn partial(accept: &Accept, object: &Object) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{}", accept.meta_version),
        "metadata": object.get("metadata").cloned().unwrap_or_default(),
    })
}
