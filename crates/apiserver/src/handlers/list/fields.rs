//! Which fields a selector may name, and what those are called that are stored under another name.

use std::borrow::Cow;

use api::ApiError;

use crate::registry::Served;

/// The field as it is stored, or what upstream says of one that cannot be selected by.
pub(super) fn stored<'a>(served: &Served, field: &'a str) -> Result<Cow<'a, str>, ApiError> {
    let info = &served.info;
    let refused = |why: String| Err(ApiError::bad_request(why));
    let (known, has_any) = match served.custom() {
        Some(custom) => (custom.version().selectable.iter().any(|(name, _)| name == field), true),
        None => {
            let known = served.strategy().selectable_fields();
            (known.contains(&field), !known.is_empty())
        }
    };
    match (info.group.as_str(), info.plural.as_str(), field) {
        ("", "namespaces" | "nodes", "metadata.namespace")
        | ("certificates.k8s.io", "certificatesigningrequests", "metadata.namespace") => {
            refused(format!("field label not supported: {field}"))
        }
        ("resource.k8s.io", "resourceslices", field) if !known && field != "metadata.name" => {
            refused(format!("field label not supported for {}, Kind={}: {field}", info.api_version(), info.kind))
        }
        (_, _, "metadata.name" | "metadata.namespace") => Ok(field.into()),
        ("", "pods", "spec.host") => Ok("spec.nodeName".into()),
        // Upstream allows it, but no pod has it as one text.
        ("", "pods", "status.podIPs") => Ok(field.into()),
        ("events.k8s.io", "events", field) => event(field),
        // These are kept, but no version has them in its selectors.
        ("", "persistentvolumes" | "persistentvolumeclaims", _) | ("apps", "replicasets", _) => refused(unknown(field)),
        ("batch", "jobs", field) if !known => refused(format!("field label {field:?} not supported for {}", info.kind)),
        _ if known => Ok(field.into()),
        _ if has_any => refused(format!("field label not supported: {field}")),
        _ => refused(unknown(field)),
    }
}

fn unknown(field: &str) -> String {
    format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
}

/// Events are stored with the names of core/v1.
fn event(field: &str) -> Result<Cow<'_, str>, ApiError> {
    const PARTS: [&str; 7] = ["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"];
    match (field, field.strip_prefix("regarding.")) {
        ("reason" | "type", _) => Ok(field.into()),
        ("reportingController", _) => Ok("reportingComponent".into()),
        (_, Some(part)) if PARTS.contains(&part) => Ok(format!("involvedObject.{part}").into()),
        _ => Err(ApiError::bad_request(format!("field label not supported: {field}"))),
    }
}
