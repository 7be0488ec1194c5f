//! The rules of a pod spec; shared by pods and every kind with a pod template.

use std::collections::HashSet;

use api::field::{FieldError, Path};
use api::quantity::Quantity;
use api::validation::{is_label, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::items;

const RESTART_POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

pub(super) fn pod_spec(spec: &Object, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let volumes = volume_names(spec, path, &mut errors);
    let mut names = HashSet::new();
    let containers = items(spec, &["containers"]);
    if containers.is_empty() {
        errors.push(FieldError::required(&path.child("containers"), ""));
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in items(spec, &[list]).into_iter().enumerate() {
            let at = path.child(list).index(index);
            container_rules(container, &at, &volumes, &mut errors);
            let name = container.text(&["name"]);
            if !name.is_empty() && !names.insert(name.to_owned()) {
                errors.push(FieldError::duplicate(&at.child("name"), name));
            }
        }
    }
    one_of(spec, "restartPolicy", &RESTART_POLICIES, path, &mut errors);
    one_of(spec, "dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"], path, &mut errors);
    if let Some(seconds) = spec.get("activeDeadlineSeconds").and_then(Value::as_i64)
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let detail = "must be between 1 and 2147483647, inclusive";
        errors.push(FieldError::invalid(&path.child("activeDeadlineSeconds"), seconds, detail));
    }
    for (field, rule) in [
        ("hostname", is_label as fn(&str) -> Vec<String>),
        ("subdomain", is_label),
        ("nodeName", is_subdomain),
        ("serviceAccountName", is_subdomain),
        ("priorityClassName", is_subdomain),
    ] {
        let text = spec.text(&[field]);
        if !text.is_empty() {
            errors.extend(rule(text).into_iter().map(|e| FieldError::invalid(&path.child(field), text, e)));
        }
    }
    errors.extend(api::validation::labels(spec.get("nodeSelector"), &path.child("nodeSelector")));
    errors
}

fn one_of(object: &Object, field: &str, allowed: &[&str], path: &Path, errors: &mut Vec<FieldError>) {
    let value = object.text(&[field]);
    if value.is_empty() {
        errors.push(FieldError::required(&path.child(field), ""));
    } else if !allowed.contains(&value) {
        errors.push(FieldError::not_supported(&path.child(field), value, allowed));
    }
}

fn volume_names(spec: &Object, path: &Path, errors: &mut Vec<FieldError>) -> HashSet<String> {
    let mut names = HashSet::new();
    for (index, volume) in items(spec, &["volumes"]).into_iter().enumerate() {
        let at = path.child("volumes").index(index);
        let name = volume.text(&["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        } else {
            errors.extend(is_label(name).into_iter().map(|e| FieldError::invalid(&at.child("name"), name, e)));
            if !names.insert(name.to_owned()) {
                errors.push(FieldError::duplicate(&at.child("name"), name));
            }
        }
        match volume.len() {
            0 | 1 => errors.push(FieldError::required(&at, "must specify a volume type")),
            2 => (),
            _ => {
                let extra = volume.keys().filter(|key| *key != "name").nth(1).map(String::as_str).unwrap_or_default();
                errors.push(FieldError::forbidden(&at.child(extra), "may not specify more than 1 volume type"));
            }
        }
    }
    names
}

fn container_rules(container: &Object, path: &Path, volumes: &HashSet<String>, errors: &mut Vec<FieldError>) {
    match container.text(&["name"]) {
        "" => errors.push(FieldError::required(&path.child("name"), "")),
        name => errors.extend(is_label(name).into_iter().map(|e| FieldError::invalid(&path.child("name"), name, e))),
    }
    let image = container.text(&["image"]);
    if image.is_empty() {
        errors.push(FieldError::required(&path.child("image"), ""));
    } else if image.trim() != image {
        let detail = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(&path.child("image"), image, detail));
    }
    one_of(container, "imagePullPolicy", &PULL_POLICIES, path, errors);
    ports(container, path, errors);
    for (index, variable) in items(container, &["env"]).into_iter().enumerate() {
        let at = path.child("env").index(index);
        let name = variable.text(&["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        } else if name.contains('=') || !name.bytes().all(|b| (0x20..0x7f).contains(&b)) {
            let detail =
                "a valid environment variable name must consist only of printable ASCII characters other than '='";
            errors.push(FieldError::invalid(&at.child("name"), name, detail));
        }
        if variable.contains_key("valueFrom") && !variable.text(&["value"]).is_empty() {
            let detail = "may not be specified when `value` is not empty";
            errors.push(FieldError::invalid(&at.child("valueFrom"), "", detail));
        }
    }
    let mut mounted = HashSet::new();
    for (index, mount) in items(container, &["volumeMounts"]).into_iter().enumerate() {
        let at = path.child("volumeMounts").index(index);
        let (name, place) = (mount.text(&["name"]), mount.text(&["mountPath"]));
        if name.is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        } else if !volumes.contains(name) {
            errors.push(FieldError::not_found(&at.child("name"), name));
        }
        if place.is_empty() {
            errors.push(FieldError::required(&at.child("mountPath"), ""));
        } else if !mounted.insert(place.to_owned()) {
            errors.push(FieldError::invalid(&at.child("mountPath"), place, "must be unique"));
        }
    }
    resources(container, path, errors);
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(Value::Object(object)) = container.get(probe) {
            probe_rules(object, probe, &path.child(probe), errors);
        }
    }
}

fn ports(container: &Object, path: &Path, errors: &mut Vec<FieldError>) {
    const RANGE: &str = "must be between 1 and 65535, inclusive";
    let mut names = HashSet::new();
    for (index, port) in items(container, &["ports"]).into_iter().enumerate() {
        let at = path.child("ports").index(index);
        match port.get("containerPort").and_then(Value::as_i64) {
            None | Some(0) => errors.push(FieldError::required(&at.child("containerPort"), "")),
            Some(number) if !(1..=65535).contains(&number) => {
                errors.push(FieldError::invalid(&at.child("containerPort"), number, RANGE));
            }
            Some(_) => (),
        }
        if let Some(number) = port.get("hostPort").and_then(Value::as_i64).filter(|n| !(0..=65535).contains(n)) {
            errors.push(FieldError::invalid(&at.child("hostPort"), number, RANGE));
        }
        let name = port.text(&["name"]);
        if !name.is_empty() {
            errors.extend(port_name(name).into_iter().map(|e| FieldError::invalid(&at.child("name"), name, e)));
            if !names.insert(name.to_owned()) {
                errors.push(FieldError::duplicate(&at.child("name"), name));
            }
        }
        one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &at, errors);
    }
}

/// An IANA service name.
pub(super) fn port_name(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > 15 {
        errors.push("must be no more than 15 characters".to_owned());
    }
    if !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if name.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if name.starts_with('-') || name.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

fn resources(container: &Object, path: &Path, errors: &mut Vec<FieldError>) {
    let at = path.child("resources");
    let amount = |kind: &str, name: &str| Quantity::parse(container.text(&["resources", kind, name])).ok();
    for kind in ["limits", "requests"] {
        let map = container.at(&["resources", kind]).and_then(Value::as_object);
        for name in map.into_iter().flat_map(Object::keys) {
            if amount(kind, name).is_some_and(|q| q.is_negative()) {
                let shown = container.text(&["resources", kind, name]);
                let place = at.child(kind).key(name);
                errors.push(FieldError::invalid(&place, shown, "must be greater than or equal to 0"));
            }
        }
    }
    let requests = container.at(&["resources", "requests"]).and_then(Value::as_object);
    for name in requests.into_iter().flat_map(Object::keys) {
        if let (Some(request), Some(limit)) = (amount("requests", name), amount("limits", name))
            && request > limit
        {
            let detail = format!("must be less than or equal to {name} limit of {limit}");
            errors.push(FieldError::invalid(&at.child("requests"), request.to_string(), detail));
        }
    }
}

fn probe_rules(probe: &Object, name: &str, path: &Path, errors: &mut Vec<FieldError>) {
    const HANDLERS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "grpc"];
    match HANDLERS.iter().filter(|handler| probe.contains_key(**handler)).count() {
        0 => errors.push(FieldError::required(path, "must specify a handler type")),
        1 => (),
        _ => errors.push(FieldError::forbidden(path, "may not specify more than 1 handler type")),
    }
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        if let Some(value) = probe.get(field).and_then(Value::as_i64).filter(|v| *v < 0) {
            errors.push(FieldError::invalid(&path.child(field), value, "must be greater than or equal to 0"));
        }
    }
    let successes = probe.get("successThreshold").and_then(Value::as_i64).unwrap_or(1);
    if name != "readinessProbe" && successes != 1 {
        errors.push(FieldError::invalid(&path.child("successThreshold"), successes, "must be 1"));
    }
    if let Some(Value::Object(get)) = probe.get("httpGet") {
        port_rule(get.get("port"), &path.child("httpGet").child("port"), errors);
    }
    if let Some(Value::Object(socket)) = probe.get("tcpSocket") {
        port_rule(socket.get("port"), &path.child("tcpSocket").child("port"), errors);
    }
}

fn port_rule(port: Option<&Value>, path: &Path, errors: &mut Vec<FieldError>) {
    match port {
        Some(Value::Number(number)) if !(1..=65535).contains(&number.as_i64().unwrap_or(0)) => {
            errors.push(FieldError::invalid(path, number.clone(), "must be between 1 and 65535, inclusive"));
        }
        Some(Value::String(name)) => {
            errors.extend(port_name(name).into_iter().map(|e| FieldError::invalid(path, name.as_str(), e)));
        }
        Some(_) => (),
        None => errors.push(FieldError::required(path, "")),
    }
}
