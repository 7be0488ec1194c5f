//! Events, of both groups: one kind, whose fields have two sets of names.

use api::field::FieldError;
use api::validation::{NameRule, is_qualified_name, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::Strategy;
use super::check::{At, check, shown};

/// Of upstream's, in characters.
const LIMITS: [(&str, usize); 3] = [("reportingInstance", 128), ("action", 128), ("reason", 128)];
const NOTE_LIMIT: usize = 1024;
/// What may not change, as it is called and by its name in events.k8s.io/v1, with what stands for none; upstream looks at the reason
/// twice.
const FIXED: [(&str, &str, &str); 14] = [
    ("involvedObject", "regarding", "{}"),
    ("reason", "reason", "\"\""),
    ("message", "note", "\"\""),
    ("source", "deprecatedSource", "{}"),
    ("firstTimestamp", "deprecatedFirstTimestamp", "null"),
    ("lastTimestamp", "deprecatedLastTimestamp", "null"),
    ("count", "deprecatedCount", "0"),
    ("reason", "reason", "\"\""),
    ("type", "type", "\"\""),
    ("eventTime", "eventTime", "null"),
    ("action", "action", "\"\""),
    ("related", "related", "null"),
    ("reportingController", "reportingController", "\"\""),
    ("reportingInstance", "reportingInstance", "\"\""),
];
/// A reference to an object, and who tells, as upstream keeps them.
const REFERENCE: [(&str, &str, &str); 7] = [
    ("Kind", "kind", "\"\""),
    ("Namespace", "namespace", "\"\""),
    ("Name", "name", "\"\""),
    ("UID", "uid", "\"\""),
    ("APIVersion", "apiVersion", "\"\""),
    ("ResourceVersion", "resourceVersion", "\"\""),
    ("FieldPath", "fieldPath", "\"\""),
];
const SOURCE: [(&str, &str, &str); 2] = [("Component", "component", "\"\""), ("Host", "host", "\"\"")];
const DEPRECATED: [(&str, &str); 3] = [
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Those of core/v1 are called as their clients like.
pub(super) static CORE: Events = Events { rule: NameRule::PathSegment };
pub(super) static NEW: Events = Events { rule: NameRule::Subdomain };

pub(super) struct Events {
    rule: NameRule,
}

impl Strategy for Events {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ]
    }

    fn name_rule(&self) -> NameRule {
        self.rule
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| either_group(&at, object))
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        if !is_new(object) {
            return Vec::new();
        }
        check(object, |at| {
            series(&at);
            if !at.field("eventTime").exists() {
                at.field("eventTime").required("");
            }
            let kind = at.field("type");
            if !["Normal", "Warning"].contains(&kind.text()) {
                kind.complain(FieldError::invalid(kind.path(), "", format!("has invalid value: {}", kind.text())));
            }
            for (old, new) in DEPRECATED {
                let value = at.field(new);
                if value.exists() && value.value() != &json!(0) {
                    at.complain(FieldError::invalid(old, "", "needs to be unset"));
                }
            }
            if !at.field("deprecatedSource").is_empty() {
                at.complain(FieldError::invalid("source", "", "needs to be unset"));
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        if !is_new(new) {
            return Vec::new();
        }
        check(new, |at| {
            if new.get("series") != old.get("series") {
                series(&at);
            }
            for (told, name, none) in FIXED {
                let value = |object: &Object| object.get(name).filter(|value| !value.is_null()).cloned();
                let (now, before) = (value(new), value(old));
                let is_set =
                    |value: &Option<Value>| value.as_ref().is_some_and(|value| told == "related" || is_some(value));
                if now != before && (is_set(&now) || is_set(&before)) {
                    let mut error = FieldError::invalid(told, now.clone().unwrap_or_default(), "field is immutable");
                    match (told, &now) {
                        ("related", None) => (),
                        ("involvedObject" | "related", _) => error.value = shown(&now.unwrap_or_default(), &REFERENCE),
                        ("source", _) => error.value = shown(&now.unwrap_or_default(), &SOURCE),
                        (_, None) => error.value = none.to_owned(),
                        _ => (),
                    }
                    at.complain(error);
                }
            }
        })
    }

    fn creates_on_update(&self) -> bool {
        true
    }
}

/// Not what stands for none.
fn is_some(value: &Value) -> bool {
    value != &json!({}) && value != &json!(0) && value != ""
}

fn is_new(object: &Object) -> bool {
    object.text(&["apiVersion"]) != "v1"
}

/// What holds for every event: little for those without a time of their own, which come from old clients.
fn either_group(at: &At<'_>, object: &Object) {
    let (about, note, reporter) = match is_new(object) {
        true => ("regarding", "note", "reportingController"),
        false => ("involvedObject", "message", "reportingComponent"),
    };
    let (own, namespace) = (object.namespace(), at.at(&[about, "namespace"]).text());
    let elsewhere = match (at.field("eventTime").exists(), namespace.is_empty()) {
        (false, false) => own != namespace,
        (false, true) => !matches!(own, "" | "default"),
        (true, true) => !matches!(own, "default" | "kube-system"),
        (true, false) => false,
    };
    if elsewhere {
        at.complain(FieldError::invalid("involvedObject.namespace", namespace, "does not match event.namespace"));
    }
    if at.field("eventTime").exists() {
        let reporter = at.field(reporter);
        if reporter.is_empty() {
            reporter.required("");
        }
        reporter.named(is_qualified_name);
        for (name, most) in LIMITS {
            let text = at.field(name);
            match text.text().len() {
                0 => text.required(""),
                length if length > most => text.complain(too_long(name, most)),
                _ => (),
            }
        }
        if at.field(note).text().len() > NOTE_LIMIT {
            at.complain(too_long("message", NOTE_LIMIT));
        }
    }
    for detail in is_subdomain(own) {
        at.complain(FieldError::invalid("namespace", own, detail));
    }
}

fn too_long(name: &str, most: usize) -> FieldError {
    FieldError::invalid(name, "", format!("can have at most {most} characters"))
}

fn series(at: &At<'_>) {
    let series = at.field("series");
    if series.exists() {
        if series.field("count").number().unwrap_or(0) < 2 {
            at.complain(FieldError::invalid("series.count", "", "should be at least 2"));
        }
        if !series.field("lastObservedTime").exists() {
            series.field("lastObservedTime").required("");
        }
    }
}
