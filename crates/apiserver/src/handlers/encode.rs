//! Objects and lists in the form a client asked for: whole, as table rows, or metadata alone.

use api::Object;
use serde_json::{Value, json};

use crate::http::{Accept, Form};
use crate::pipeline::Context;
use crate::registry::Served;
use crate::table;

pub(super) fn object(served: &Served, context: &Context, accept: &Accept, object: &Object) -> Value {
    shaped(served, accept, context.query.get("includeObject"), object)
}

/// One object; a table of one row where tables are asked for.
pub(super) fn shaped(served: &Served, accept: &Accept, include: Option<&str>, object: &Object) -> Value {
    match accept.form {
        Form::Whole => Value::Object(object.clone()),
        Form::PartialObjectMetadata => partial(accept, object),
        Form::Table => {
            let version = object.get("metadata").and_then(|m| m.get("resourceVersion")).cloned().unwrap_or_default();
            table::render(
                served,
                &accept.meta_version,
                std::slice::from_ref(object),
                json!({"resourceVersion": version}),
                include,
            )
        }
    }
}

pub(super) fn list(served: &Served, context: &Context, accept: &Accept, objects: &[Object], meta: Value) -> Value {
    match accept.form {
        Form::Table => table::render(served, &accept.meta_version, objects, meta, context.query.get("includeObject")),
        Form::PartialObjectMetadata => {
            let items: Vec<Value> = objects.iter().map(|object| partial(accept, object)).collect();
            json!({
                "kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{}", accept.meta_version),
                "metadata": meta, "items": if items.is_empty() { Value::Null } else { items.into() },
            })
        }
        Form::Whole => {
            let items: Vec<Value> = objects.iter().map(|object| item(served, object)).collect();
            json!({
                "kind": served.list_kind, "apiVersion": served.info.api_version(),
                "metadata": meta, "items": items,
            })
        }
    }
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
