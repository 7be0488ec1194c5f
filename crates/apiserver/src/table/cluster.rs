//! The columns of what governs a cluster: scaling, disruption, quota, admission, flow control, devices.

use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::{AGE, Column, NAME, age, condition, count, labels, list, number, or, selector_at, text, wide};

pub(super) static AUTOSCALERS: [Column; 7] = [
    NAME,
    text("Reference", |o| {
        format!("{}/{}", o.text(&["spec", "scaleTargetRef", "kind"]), o.text(&["spec", "scaleTargetRef", "name"]))
            .into()
    }),
    text("Targets", targets),
    text("MinPods", |o| match o.at(&["spec", "minReplicas"]) {
        Some(min) => min.to_string().into(),
        None => "<unset>".into(),
    }),
    text("MaxPods", |o| count(o, &["spec", "maxReplicas"]).into()),
    text("Replicas", |o| count(o, &["status", "currentReplicas"]).into()),
    AGE,
];

pub(super) static DISRUPTION_BUDGETS: [Column; 5] = [
    NAME,
    text("Min Available", |o| int_or_string(o, "minAvailable")),
    text("Max Unavailable", |o| int_or_string(o, "maxUnavailable")),
    number("Allowed Disruptions", |o| count(o, &["status", "disruptionsAllowed"]).into()),
    AGE,
];

pub(super) static SIGNING_REQUESTS: [Column; 6] = [
    NAME,
    AGE,
    text("SignerName", |o| or(o, &["spec", "signerName"], "<none>")),
    text("Requestor", |o| or(o, &["spec", "username"], "")),
    text("RequestedDuration", |o| match o.at(&["spec", "expirationSeconds"]).and_then(Value::as_i64) {
        Some(seconds) => age::human(seconds).into(),
        None => "<none>".into(),
    }),
    text("Condition", request_status),
];

pub(super) static RESOURCE_QUOTAS: [Column; 4] =
    [NAME, text("Request", |o| quota(o, false)), text("Limit", |o| quota(o, true)), AGE];

pub(super) static CONTROLLER_REVISIONS: [Column; 4] =
    [NAME, text("Controller", controller), text("Revision", |o| count(o, &["revision"]).into()), AGE];

pub(super) static POD_TEMPLATES: [Column; 4] = [
    NAME,
    text("Containers", |o| template_containers(o, "name")),
    text("Images", |o| template_containers(o, "image")),
    text("Pod Labels", |o| labels(o.at(&["template", "metadata", "labels"]))),
];

pub(super) static API_SERVICES: [Column; 4] = [
    NAME,
    text("Service", |o| match o.text(&["spec", "service", "name"]) {
        "" => "Local".into(),
        name => format!("{}/{name}", o.text(&["spec", "service", "namespace"])).into(),
    }),
    text("Available", |o| {
        let part = |field| condition(o, &["status", "conditions"], "Available", field);
        match (part("status"), part("reason")) {
            ("True", _) => "True".into(),
            ("", _) => "Unknown".into(),
            (status, reason) => format!("{status} ({reason})").into(),
        }
    }),
    AGE,
];

pub(super) static WEBHOOKS: [Column; 3] = [NAME, number("Webhooks", |o| list(o, &["webhooks"]).len().into()), AGE];

pub(super) static MUTATING_POLICIES: [Column; 4] = [
    NAME,
    number("Mutations", |o| list(o, &["spec", "mutations"]).len().into()),
    text("ParamKind", parameter_kind),
    AGE,
];
pub(super) static VALIDATING_POLICIES: [Column; 4] = [
    NAME,
    number("Validations", |o| list(o, &["spec", "validations"]).len().into()),
    text("ParamKind", parameter_kind),
    AGE,
];
pub(super) static POLICY_BINDINGS: [Column; 4] =
    [NAME, text("PolicyName", |o| or(o, &["spec", "policyName"], "")), text("ParamRef", parameter), AGE];

pub(super) static RUNTIME_CLASSES: [Column; 3] = [NAME, text("Handler", |o| or(o, &["handler"], "")), AGE];

pub(super) static RESOURCE_CLAIMS: [Column; 3] = [NAME, text("State", claim_state), AGE];

pub(super) static RESOURCE_SLICES: [Column; 5] = [
    NAME,
    text("Node", |o| or(o, &["spec", "nodeName"], "")),
    text("Driver", |o| or(o, &["spec", "driver"], "")),
    text("Pool", |o| or(o, &["spec", "pool", "name"], "")),
    AGE,
];

pub(super) static FLOW_SCHEMAS: [Column; 6] = [
    NAME,
    text("PriorityLevel", |o| or(o, &["spec", "priorityLevelConfiguration", "name"], "")),
    text("MatchingPrecedence", |o| count(o, &["spec", "matchingPrecedence"]).into()),
    text("DistinguisherMethod", |o| or(o, &["spec", "distinguisherMethod", "type"], "<none>")),
    AGE,
    text("MissingPL", |o| match condition(o, &["status", "conditions"], "Dangling", "status") {
        "" => "?".into(),
        status => status.into(),
    }),
];

pub(super) static PRIORITY_LEVELS: [Column; 7] = [
    NAME,
    text("Type", |o| or(o, &["spec", "type"], "")),
    text("NominalConcurrencyShares", |o| value_or_none(o, &["spec", "limited", "nominalConcurrencyShares"])),
    text("Queues", |o| value_or_none(o, &["spec", "limited", "limitResponse", "queuing", "queues"])),
    text("HandSize", |o| value_or_none(o, &["spec", "limited", "limitResponse", "queuing", "handSize"])),
    text("QueueLengthLimit", |o| {
        value_or_none(o, &["spec", "limited", "limitResponse", "queuing", "queueLengthLimit"])
    }),
    AGE,
];

pub(super) static BINDINGS: [Column; 6] = [
    NAME,
    text("Role", |o| format!("{}/{}", o.text(&["roleRef", "kind"]), o.text(&["roleRef", "name"])).into()),
    AGE,
    wide("Users", |o| subjects(o, "User")),
    wide("Groups", |o| subjects(o, "Group")),
    wide("ServiceAccounts", |o| subjects(o, "ServiceAccount")),
];

fn value_or_none(object: &Object, path: &[&str]) -> Value {
    object.at(path).cloned().unwrap_or_else(|| "<none>".into())
}

fn int_or_string(object: &Object, field: &str) -> Value {
    match object.at(&["spec", field]) {
        Some(Value::String(text)) => text.clone().into(),
        Some(number) => number.to_string().into(),
        None => "N/A".into(),
    }
}

fn subjects(object: &Object, kind: &str) -> Value {
    let found = list(object, &["subjects"]).into_iter().filter(|subject| subject.text(&["kind"]) == kind);
    let names = found.map(|subject| match (kind, subject.text(&["namespace"])) {
        ("ServiceAccount", namespace) if !namespace.is_empty() => format!("{namespace}/{}", subject.text(&["name"])),
        _ => subject.text(&["name"]).to_owned(),
    });
    names.collect::<Vec<_>>().join(", ").into()
}

fn request_status(object: &Object) -> Value {
    let has = |kind: &str| list(object, &["status", "conditions"]).iter().any(|c| c.text(&["type"]) == kind);
    let mut status = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    }
    .to_owned();
    if has("Failed") {
        status += ",Failed";
    }
    if !object.text(&["status", "certificate"]).is_empty() {
        status += ",Issued";
    }
    status.into()
}

/// `cpu: 1/2, pods: 3/10`, of limits or of everything else.
fn quota(object: &Object, of_limits: bool) -> Value {
    let hard = object.at(&["status", "hard"]).and_then(Value::as_object);
    let shown = hard.into_iter().flatten().filter(|(name, _)| name.starts_with("limits.") == of_limits);
    let shown = shown.map(|(name, hard)| {
        let used = object.at(&["status", "used", name]).and_then(Value::as_str).unwrap_or("0");
        format!("{name}: {used}/{}", hard.as_str().unwrap_or_default())
    });
    shown.collect::<Vec<_>>().join(", ").into()
}

fn controller(object: &Object) -> Value {
    let owners = list(object, &["metadata", "ownerReferences"]);
    let Some(owner) = owners.into_iter().find(|owner| owner.get("controller") == Some(&Value::Bool(true))) else {
        return "<none>".into();
    };
    let kind = owner.text(&["kind"]).to_lowercase();
    match owner.text(&["apiVersion"]).split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", owner.text(&["name"])).into(),
        None => format!("{kind}/{}", owner.text(&["name"])).into(),
    }
}

fn template_containers(object: &Object, field: &str) -> Value {
    let all = list(object, &["template", "spec", "containers"]);
    all.into_iter().map(|container| container.text(&[field])).collect::<Vec<_>>().join(",").into()
}

fn parameter_kind(object: &Object) -> Value {
    match object.at(&["spec", "paramKind"]).and_then(Value::as_object) {
        Some(kind) => format!("{}/{}", kind.text(&["apiVersion"]), kind.text(&["kind"])).into(),
        None => "<unset>".into(),
    }
}

fn parameter(object: &Object) -> Value {
    let part = |key: &str| object.text(&["spec", "paramRef", key]);
    match (part("name"), part("namespace")) {
        ("", _) if object.at(&["spec", "paramRef", "selector"]).is_some() => {
            selector_at(object, &["spec", "paramRef", "selector"])
        }
        ("", _) => "<unset>".into(),
        (name, "") => format!("*/{name}").into(),
        (name, namespace) => format!("{namespace}/{name}").into(),
    }
}

fn claim_state(object: &Object) -> Value {
    let mut states = Vec::new();
    if object.is_terminating() {
        states.push("deleted");
    }
    match object.at(&["status", "allocation"]) {
        Some(_) => {
            states.push("allocated");
            if !list(object, &["status", "reservedFor"]).is_empty() {
                states.push("reserved");
            }
        }
        None if states.is_empty() => states.push("pending"),
        None => (),
    }
    states.join(",").into()
}

/// What each metric is and should be; in the old version only the processor is.
fn targets(object: &Object) -> Value {
    const SHOWN: usize = 2;
    let (specs, statuses) = (list(object, &["spec", "metrics"]), list(object, &["status", "currentMetrics"]));
    if specs.is_empty() {
        return match object.at(&["spec", "targetCPUUtilizationPercentage"]) {
            Some(target) => {
                let now = object.at(&["status", "currentCPUUtilizationPercentage"]);
                format!("cpu: {}/{target}%", now.map_or("<unknown>".to_owned(), |now| format!("{now}%"))).into()
            }
            None => "<none>".into(),
        };
    }
    let all: Vec<String> = specs.iter().enumerate().map(|(i, spec)| metric(spec, statuses.get(i).copied())).collect();
    let shown = all.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > SHOWN { format!("{shown} + {} more...", all.len() - SHOWN).into() } else { shown.into() }
}

fn metric(spec: &Object, status: Option<&Object>) -> String {
    let source = match spec.text(&["type"]) {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let target = |field: &str| spec.at(&[source, "target", field]);
    let current = |field: &str| status.and_then(|status| status.at(&[source, "current", field]));
    let plain = |value: Option<&Value>| match value {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "<unknown>".to_owned(),
    };
    let percent = |value: Option<&Value>, none: &str| value.map_or(none.to_owned(), |value| format!("{value}%"));
    let average = target("averageValue").is_some();
    let name = spec.text(&[source, "name"]);
    match (source, average) {
        ("resource" | "containerResource", true) => {
            format!("{name}: {}/{}", plain(current("averageValue")), plain(target("averageValue")))
        }
        ("resource" | "containerResource", false) => {
            let now = percent(current("averageUtilization"), "<unknown>");
            format!("{name}: {now}/{}", percent(target("averageUtilization"), "<auto>"))
        }
        ("pods", _) => format!("{}/{}", plain(current("averageValue")), plain(target("averageValue"))),
        (_, true) => format!("{}/{} (avg)", plain(current("averageValue")), plain(target("averageValue"))),
        (_, false) => format!("{}/{}", plain(current("value")), plain(target("value"))),
    }
}
