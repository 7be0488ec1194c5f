//! The selectors of a question about access: what a list is narrowed to.

use api::field::{FieldError, Path};
use api::selector::{FieldRequirement, FieldSelector, Selector};
use api::validation::is_qualified_name;
use api::{Object, ObjectExt as _};
use serde_json::Value;

/// What is wrong with them. Operators of later versions are let through: they restrict nothing.
pub(super) fn check(about: &Object, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for kind in ["fieldSelector", "labelSelector"] {
        let Some(selector) = about.get(kind).and_then(Value::as_object) else { continue };
        let path = path.child(kind);
        let (raw, all) = (selector.text(&["rawSelector"]), requirements(selector));
        match (raw.is_empty(), all.is_empty()) {
            (false, false) => {
                let why = "may not specified at the same time as requirements";
                errors.push(FieldError::invalid(&path.child("rawSelector"), raw, why));
            }
            (true, true) => {
                let why = format!("when {path} is specified, requirements or rawSelector is required");
                errors.push(FieldError::required(&path.child("requirements"), why));
            }
            _ => (),
        }
        for (index, requirement) in all.into_iter().enumerate() {
            check_one(requirement, kind == "labelSelector", &path.child("requirements").index(index), &mut errors);
        }
    }
    errors
}

fn check_one(requirement: &Object, is_label: bool, path: &Path, errors: &mut Vec<FieldError>) {
    let (key, values) = (requirement.text(&["key"]), values(requirement));
    if !is_label && key.is_empty() {
        errors.push(FieldError::required(&path.child("key"), "must be specified"));
    }
    match (requirement.text(&["operator"]), values.is_empty()) {
        ("In" | "NotIn", true) => {
            let why = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(FieldError::required(&path.child("values"), why));
        }
        ("Exists" | "DoesNotExist", false) => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(&path.child("values"), why));
        }
        _ => (),
    }
    if is_label {
        let wrong = |why| FieldError::invalid(&path.child("key"), key, why);
        errors.extend(is_qualified_name(key).into_iter().map(wrong));
        for (index, value) in values.into_iter().enumerate() {
            let at = path.child("values").index(index);
            let wrong = |why| FieldError::invalid(&at, value, why);
            errors.extend(api::validation::is_label_value(value).into_iter().map(wrong));
        }
    }
}

/// The fields asked for, and what of the selectors was ignored: what cannot be understood restricts nothing, and so gains
/// nobody anything.
pub(super) fn read(about: &Object) -> (Option<FieldSelector>, Vec<String>) {
    let mut ignored = Vec::new();
    let mut tell = |kind: &str, understood: usize, all: usize| {
        let how = if understood == 0 { "ignored" } else { "partially ignored" };
        if understood < all {
            ignored.push(format!("spec.resourceAttributes.{kind} {how} due to parse error"));
        }
    };
    let selector = |kind: &str| about.get(kind).and_then(Value::as_object);
    let fields = selector("fieldSelector").map(|selector| match selector.text(&["rawSelector"]) {
        "" => {
            let all = requirements(selector);
            let read: Vec<FieldRequirement> = all.iter().filter_map(|requirement| field(requirement)).collect();
            tell("fieldSelector", read.len(), all.len());
            FieldSelector(read)
        }
        raw => FieldSelector::parse(raw).unwrap_or_else(|_| {
            tell("fieldSelector", 0, 1);
            FieldSelector::default()
        }),
    });
    if let Some(selector) = selector("labelSelector") {
        match selector.text(&["rawSelector"]) {
            "" => {
                let known = |r: &&Object| matches!(r.text(&["operator"]), "In" | "NotIn" | "Exists" | "DoesNotExist");
                let all = requirements(selector);
                tell("labelSelector", all.iter().copied().filter(known).count(), all.len());
            }
            raw if Selector::parse(raw).is_err() => tell("labelSelector", 0, 1),
            _ => (),
        }
    }
    (fields, ignored)
}

/// A field has one value: none can be one of several.
fn field(requirement: &Object) -> Option<FieldRequirement> {
    let equals = match requirement.text(&["operator"]) {
        "In" => true,
        "NotIn" => false,
        _ => return None,
    };
    let [value] = values(requirement)[..] else { return None };
    Some(FieldRequirement { field: requirement.text(&["key"]).to_owned(), equals, value: value.to_owned() })
}

fn requirements(selector: &Object) -> Vec<&Object> {
    selector.get("requirements").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object).collect()
}

fn values(requirement: &Object) -> Vec<&str> {
    requirement.get("values").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}
