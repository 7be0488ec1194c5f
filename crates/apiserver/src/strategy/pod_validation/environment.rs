//! The rules of a container's variables, and of what they are filled with.

use api::field::FieldError;
use api::validation::{is_config_key, is_label, is_qualified_name, is_subdomain};

use super::super::check::At;
use super::super::volume_sources::no_backsteps;

/// What a variable can be filled with from its pod.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// What else of a pod has a name that can be written, though not everywhere.
const OTHER_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase"];

pub(super) fn variables(at: &At<'_>) {
    for variable in at.each("env") {
        variable.field("name").needed_named(is_variable);
        let from = variable.field("valueFrom");
        if from.exists() {
            value_from(&from, !variable.field("value").is_empty());
        }
    }
    let list = at.field("envFrom");
    let tell = |detail: &str| list.complain(FieldError::invalid(list.path(), "", detail));
    for source in list.items() {
        source.field("prefix").named_if_set(is_variable);
        let given: Vec<At<'_>> =
            ["configMapRef", "secretRef"].map(|field| source.field(field)).into_iter().filter(At::exists).collect();
        for name in given.iter().map(|reference| reference.field("name")).filter(|name| name.needed()) {
            // Upstream judges the name as if more were to come behind it.
            let mut judged = name.text().to_owned();
            if judged.len() > 1 && judged.ends_with('-') {
                judged.truncate(judged.trim_end_matches('-').len());
                judged.push('a');
            }
            for detail in is_subdomain(&judged) {
                name.invalid(detail);
            }
        }
        match given.len() {
            0 => tell("must specify one of: `configMapRef` or `secretRef`"),
            1 => (),
            _ => tell("may not have more than one field specified at a time"),
        }
    }
}

fn is_variable(name: &str) -> Vec<String> {
    const MESSAGE: &str =
        "a valid environment variable name must consist only of printable ASCII characters other than '='";
    if name.contains('=') || !name.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        vec![MESSAGE.into()]
    } else {
        Vec::new()
    }
}

fn value_from(at: &At<'_>, has_value: bool) {
    const ONE_OF: &str =
        "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
    let mut count = 0;
    for name in ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"] {
        let reference = at.field(name);
        if !reference.exists() {
            continue;
        }
        count += 1;
        match name {
            "fieldRef" => field_ref(&reference, &ENV_FIELDS),
            "resourceFieldRef" => resource_ref(&reference, false),
            "fileKeyRef" => {
                reference.field("key").needed_named(is_variable);
                reference.field("volumeName").needed_named(is_label);
                if reference.field("path").needed() {
                    no_backsteps(&reference.field("path"));
                }
            }
            _ => {
                reference.field("name").named(is_subdomain);
                reference.field("key").needed_named(is_config_key);
            }
        }
    }
    let tell = |detail: &str| at.complain(FieldError::invalid(at.path(), "", detail));
    match count {
        0 => tell(ONE_OF),
        _ if has_value => tell("may not be specified when `value` is not empty"),
        1 => (),
        _ => tell("may not have more than one field specified at a time"),
    }
}

/// A container's resource that can be referred to, and the unit it is told in; a volume says which container is meant.
pub(super) fn resource_ref(at: &At<'_>, in_volume: bool) {
    const KNOWN: [&str; 6] = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    const SIZES: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let (resource, divisor) = (at.field("resource"), at.field("divisor"));
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|prefix| resource.text().starts_with(prefix));
    let named = !in_volume || at.field("containerName").needed();
    if named && resource.needed() && !huge {
        resource.one_of(&KNOWN);
    }
    let (units, of): (&[&str], &str) = match resource.text() {
        _ if huge => (&SIZES, "hugepages"),
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "cpu"),
        "limits.memory" | "requests.memory" => (&SIZES, "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => (&SIZES, "local ephemeral storage"),
        _ => return,
    };
    if divisor.quantity().is_some_and(|amount| !amount.is_zero()) && !units.contains(&divisor.text()) {
        let list = if of == "cpu" { "1m and 1".to_owned() } else { SIZES.join(", ") };
        let detail = format!("only divisor's values {list} are supported with the {of} resource");
        at.complain(FieldError::invalid(divisor.path(), resource.text(), detail));
    }
}

/// A field of the pod that can be referred to: one of `known`, or a single label or annotation.
pub(super) fn field_ref(at: &At<'_>, known: &[&str]) {
    let (path, version) = (at.field("fieldPath"), at.field("apiVersion"));
    if !version.needed() || !path.needed() {
        return;
    }
    let text = path.text();
    let refuse = |why: String| path.invalid(format!("error converting fieldPath: {why}"));
    if version.text() != "v1" {
        return refuse(format!("unsupported pod version: {}", version.text()));
    }
    let subscript = text.strip_suffix("']").and_then(|head| head.split_once("['")).filter(|(of, _)| !of.is_empty());
    match subscript {
        Some((of @ ("metadata.labels" | "metadata.annotations"), key)) => {
            let key = if of == "metadata.annotations" { key.to_lowercase() } else { key.to_owned() };
            for detail in is_qualified_name(&key) {
                at.complain(FieldError::invalid(at.path(), key.as_str(), detail));
            }
        }
        Some(_) => refuse(format!("field label does not support subscript: {text}")),
        // As very old clients called it.
        None if text == "spec.host" => supported(&path, "spec.nodeName", known),
        None if ENV_FIELDS.contains(&text) || OTHER_FIELDS.contains(&text) => supported(&path, text, known),
        None => refuse(format!("field label not supported: {text}")),
    }
}

fn supported(path: &At<'_>, field: &str, known: &[&str]) {
    if !known.contains(&field) {
        path.complain(FieldError::not_supported(path.path(), field, known));
    }
}
