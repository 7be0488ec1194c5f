//! An APIService for every group and version of custom resources, made and removed with them.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use serde_json::{Value, json};

use super::{GROUP, PLURAL};
use crate::bootstrap::ensure;
use crate::field_manager::Tracking;
use crate::handlers::{DeleteOptions, Writer};
use crate::server::ApiServer;

/// Says that the server itself keeps it as it is.
const LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Custom resources come after what is built in, and are ordered by their versions' names.
pub(crate) const PRIORITIES: (i64, i64) = (1000, 100);

/// The groups and versions there are, by the names of their APIServices.
pub(super) fn wanted(server: &ApiServer) -> BTreeSet<String> {
    let all = server.custom.load();
    all.all().iter().map(|served| format!("{}.{}", served.info.version, served.info.group)).collect()
}

fn spec(name: &str) -> Value {
    let (version, group) = name.split_once('.').unwrap_or((name, ""));
    json!({"group": group, "version": version, "groupPriorityMinimum": PRIORITIES.0, "versionPriority": PRIORITIES.1})
}

/// Brings one APIService to where it should be. One that somebody else made is theirs.
pub(super) async fn settle(server: &Arc<ApiServer>, name: &str, is_wanted: bool) -> Result<(), ApiError> {
    let known = server.cached(GROUP, PLURAL, name);
    let is_ours = |object: &Object| object.at(&["metadata", "labels", LABEL]).is_some_and(|value| value == "true");
    match known {
        None if is_wanted => {
            let object = json!({"metadata": {"name": name, "labels": {LABEL: "true"}}, "spec": spec(name)});
            ensure(server, GROUP, PLURAL, "", object).await
        }
        Some(known) if is_ours(&known) && !is_wanted => {
            let removed = writer(server)?.delete("", name, &DeleteOptions::default()).await;
            removed.map(|_| ()).or_else(|error| if error.code == 404 { Ok(()) } else { Err(error) })
        }
        Some(known) if is_ours(&known) && known.at(&["spec"]) != Some(&spec(name)) => {
            let change = |current: &Object| {
                let mut new = current.clone();
                new.insert("spec".into(), spec(name));
                Ok(new)
            };
            writer(server)?.update("", name, change).await.map(|_| ())
        }
        _ => Ok(()),
    }
}

fn writer(server: &Arc<ApiServer>) -> Result<Writer<'_>, ApiError> {
    let served = server.registry.stored(GROUP, PLURAL).ok_or_else(ApiError::no_such_resource)?;
    let tracking = Tracking::Update("kube-apiserver");
    Ok(Writer { server, served, context: None, subresource: "", dry_run: false, tracking })
}
