//! Devices with an administrator's access to them are claimed only in namespaces that are marked for it.

use api::field::{FieldError, Path};
use api::{ApiError, Object, ObjectExt as _};
use serde_json::Value;

use super::{Attributes, Operation, namespace};
use crate::convert::resource_in_v1;
use crate::server::ApiServer;

const MARK: &str = "resource.kubernetes.io/admin-access";

/// Why a claim, its template, or what was allocated for it, may not be.
pub(crate) async fn admin_access(
    server: &ApiServer,
    attributes: &Attributes<'_>,
    object: &Object,
) -> Result<Option<FieldError>, ApiError> {
    let Some(path) = asked_at(attributes, object) else { return Ok(None) };
    let found = namespace::find(server, attributes.namespace).await?;
    let is_marked = found.is_some_and(|namespace| namespace.text(&["metadata", "labels", MARK]) == "true");
    let detail = format!("admin access to devices requires the `{MARK}: true` label on the containing namespace");
    Ok((!is_marked).then(|| FieldError::forbidden(&path.child("adminAccess"), detail)))
}

/// The first that asks, by the name that upstream has for its place.
fn asked_at(attributes: &Attributes<'_>, object: &Object) -> Option<Path> {
    const RESULTS: [&str; 4] = ["status", "allocation", "devices", "results"];
    let is_status = attributes.subresource == "status";
    let (list, shown): (&[&str], &str) = match attributes.served.info.plural.as_str() {
        _ if attributes.served.info.group != "resource.k8s.io" => return None,
        "resourceclaims" if is_status => (&RESULTS, "status.allocation.devices.results"),
        "resourceclaims" => (&["spec", "devices", "requests"], "spec.devices.requests"),
        "resourceclaimtemplates" => (&["spec", "spec", "devices", "requests"], "spec.devices.requests"),
        _ => return None,
    };
    // A spec does not change, and what was granted stays.
    if !is_status && attributes.operation != Operation::Create {
        return None;
    }
    let first = |object: &Object| -> Option<usize> {
        let object = resource_in_v1(object);
        let items = object.at(list).and_then(Value::as_array)?;
        items.iter().position(|item| {
            let item = if is_status { Some(item) } else { item.get("exactly") };
            item.and_then(|item| item.get("adminAccess")) == Some(&Value::Bool(true))
        })
    };
    if is_status && attributes.old.is_some_and(|old| first(old).is_some()) {
        return None;
    }
    first(object).map(|index| Path::new(shown).index(index))
}
