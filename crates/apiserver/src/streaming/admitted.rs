//! Admission of connections: what is asked of a pod, service or node is an object like any other, its options.

use std::sync::Arc;

use api::{ApiError, Object};
use serde_json::Value;

use super::proxy;
use super::target::escape;
use crate::admission::{self, Attributes, Operation};
use crate::http::Query;
use crate::pipeline::Context;
use crate::registry::Served;
use crate::server::ApiServer;

const FLAGS: [&str; 4] = ["stdin", "stdout", "stderr", "tty"];

/// What is to be asked instead, if somebody changed it.
pub(super) async fn query(
    server: &Arc<ApiServer>,
    served: &Served,
    context: &Context,
) -> Result<Option<Query>, ApiError> {
    if context.query.get("dryRun").is_some() {
        return Err(ApiError::bad_request("dryRun is not supported"));
    }
    let info = &context.info;
    let attributes = Attributes {
        operation: Operation::Connect,
        served,
        namespace: &info.namespace,
        name: &info.name,
        generate_name: "",
        subresource: &info.subresource,
        context: Some(context),
        dry_run: false,
        old: None,
        delete_options: None,
    };
    let (_, version, kind) = attributes.kind(served);
    let asked = options(context, version, kind);
    let mut object = asked.clone();
    admission::mutate(server, &attributes, &mut object).await?;
    admission::judge(server, &attributes, &object).await?;
    Ok((object != asked).then(|| changed(&object)))
}

/// `PodExecOptions` and the like, from the query; of a proxy, the path behind it.
fn options(context: &Context, version: &str, kind: &str) -> Object {
    let query = &context.query;
    let mut object = Object::from_iter([("kind".to_owned(), kind.into()), ("apiVersion".to_owned(), version.into())]);
    let mut set = |name: &str, value: Value| drop(object.insert(name.to_owned(), value));
    match context.info.subresource.as_str() {
        "proxy" => {
            let path = proxy::path(context);
            if !path.is_empty() {
                set("path", path.into());
            }
        }
        "portforward" => {
            let ports: Vec<i32> = query.all("ports").flat_map(|text| text.split(',')).flat_map(str::parse).collect();
            if !ports.is_empty() {
                set("ports", ports.into());
            }
        }
        action => {
            FLAGS.iter().filter(|flag| query.flag(flag)).for_each(|flag| set(flag, true.into()));
            if let Some(container) = query.get("container").filter(|name| !name.is_empty()) {
                set("container", container.into());
            }
            if action == "exec" {
                set("command", query.all("command").map(Value::from).collect());
            }
        }
    }
    object
}

/// The options as a query again.
fn changed(options: &Object) -> Query {
    let mut pairs = Vec::new();
    for (name, value) in options.iter().filter(|(name, _)| !matches!(name.as_str(), "kind" | "apiVersion")) {
        let one = |value: &Value| match value {
            Value::String(text) => escape(text),
            other => escape(&other.to_string()),
        };
        match value {
            Value::Array(items) => pairs.extend(items.iter().map(|item| format!("{name}={}", one(item)))),
            value => pairs.push(format!("{name}={}", one(value))),
        }
    }
    Query::parse(Some(&pairs.join("&")))
}
