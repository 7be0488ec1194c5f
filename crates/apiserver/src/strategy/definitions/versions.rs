//! The versions of a definition, and what they share.

use api::field::FieldError;
use api::structural::{Kind, Structural};
use api::validation::is_dns_1035;
use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::super::check::At;
use super::super::internal;
use super::schema;

const SHARED: [(&str, &str); 4] = [
    ("schema", "validation"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const MOST_SELECTABLE: usize = 8;

/// The definition with what its versions have in common above them.
pub(super) fn lifted(definition: &Object) -> Object {
    let mut lifted = definition.clone();
    let spec = lifted.at_mut(&["spec"]);
    let Some(Value::Array(mut versions)) = spec.remove("versions") else { return lifted };
    for (own, above) in SHARED {
        let first = versions.first().and_then(|version| version.get(own)).cloned();
        if versions.iter().any(|version| version.get(own) != first.as_ref()) {
            continue;
        }
        versions.iter_mut().filter_map(Value::as_object_mut).for_each(|version| drop(version.remove(own)));
        if let Some(first) = first {
            spec.insert(above.to_owned(), first);
        }
    }
    spec.insert("versions".into(), versions.into());
    lifted
}

fn is_set(at: &At<'_>, name: &str) -> bool {
    at.field(name).is_true()
}

pub(super) fn check(spec: &At<'_>) {
    let versions = spec.field("versions");
    let above = spec.at(&["validation", "openAPIV3Schema"]);
    for version in versions.items() {
        let schema = version.at(&["schema", "openAPIV3Schema"]);
        if !above.exists() && !schema.exists() {
            schema.required("");
        }
    }
    for version in versions.items() {
        let wrong = is_dns_1035(version.field("name").text());
        if !wrong.is_empty() {
            version.field("name").complain(FieldError::invalid(
                version.field("name").path(),
                version.field("name").text(),
                wrong.join(","),
            ));
        }
        deprecation(&version);
        let has_status = |at: &At<'_>| at.at(&["subresources", "status"]).exists();
        schema::check(&version.field("schema"), has_status(&version) || has_status(spec));
        subresources(&version.field("subresources"));
        version.each("additionalPrinterColumns").iter().for_each(column);
        let fields = version.field("selectableFields");
        if !fields.is_empty() {
            let schema = version.at(&["schema", "openAPIV3Schema"]);
            selectable(&fields, if schema.exists() { &schema } else { &above });
        }
    }
    let names: Vec<&str> = versions.items().iter().map(|version| version.field("name").text()).collect();
    if names.iter().enumerate().any(|(index, name)| names.iter().take(index).any(|before| before == name)) {
        refuse(&versions, "must contain unique version names");
    }
    if versions.items().iter().filter(|version| is_set(version, "storage")).count() != 1 {
        refuse(&versions, "must have exactly one version marked as storage version");
    }
}

/// The versions as upstream's type shows them.
fn refuse(versions: &At<'_>, why: &str) {
    let mut shown = versions.value().clone();
    for schema in shown.as_array_mut().into_iter().flatten().filter_map(|version| version.get_mut("schema")) {
        if let Some(schema) = schema.get_mut("openAPIV3Schema") {
            *schema = schema::unfolded(schema);
        }
    }
    versions.complain(internal::invalid("[CustomResourceDefinitionVersion", versions.path(), &shown, why));
}

/// What stands above the versions.
pub(super) fn check_shared(spec: &At<'_>) {
    let has_status = spec.at(&["subresources", "status"]).exists()
        || spec.each("versions").iter().any(|version| version.at(&["subresources", "status"]).exists());
    schema::check(&spec.field("validation"), has_status);
    subresources(&spec.field("subresources"));
    spec.each("additionalPrinterColumns").iter().for_each(column);
    let fields = spec.field("selectableFields");
    if fields.is_empty() {
        return;
    }
    if !spec.field("validation").exists() {
        fields.complain(FieldError::invalid(fields.path(), "", "may only be set when validations.schema is included"));
        return;
    }
    selectable(&fields, &spec.at(&["validation", "openAPIV3Schema"]));
}

fn deprecation(version: &At<'_>) {
    let warning = version.field("deprecationWarning");
    if !warning.exists() {
        return;
    }
    if !is_set(version, "deprecated") {
        return warning.invalid("can only be set for deprecated versions");
    }
    if warning.text().len() > 256 {
        warning.invalid("must be <= 256 characters long");
    }
    if warning.text().is_empty() {
        warning.invalid("must not be an empty string");
    }
    if let Some((index, _)) = warning.text().char_indices().find(|(_, c)| c.is_control()) {
        let why = "must only contain printable UTF-8 characters; non-printable character found at index";
        warning.invalid(format!("{why} {index}"));
    }
}

fn subresources(at: &At<'_>) {
    let scale = at.field("scale");
    if !scale.exists() {
        return;
    }
    let rules: [(&str, &[&str], &str, bool); 3] = [
        ("specReplicasPath", &[".spec."], "should be a json path under .spec", true),
        ("statusReplicasPath", &[".status."], "should be a json path under .status", true),
        ("labelSelectorPath", &[".spec.", ".status."], "should be a json path under either .spec or .status", false),
    ];
    for (name, roots, why, is_required) in rules {
        let path = scale.field(name).called(at.path().child(&format!("scale.{name}")));
        match path.text() {
            "" if is_required => path.required(""),
            "" => (),
            text if !text.starts_with('.') => path.invalid("must be a simple json path starting with ."),
            text if !roots.iter().any(|root| text.starts_with(root)) => path.invalid(why),
            _ => (),
        }
    }
}

fn column(at: &At<'_>) {
    at.field("name").needed();
    let types = || format!("must be one of {}", COLUMN_TYPES.join(","));
    let kind = at.field("type");
    if kind.is_empty() {
        kind.required(&types());
    } else if !COLUMN_TYPES.contains(&kind.text()) {
        kind.invalid(types());
    }
    let format = at.field("format");
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format.text()) {
        format.invalid(format!("must be one of {}", COLUMN_FORMATS.join(",")));
    }
    let path = at.field("jsonPath").called(at.path().child("JSONPath"));
    if path.needed() && !path.text().starts_with('.') {
        path.invalid("must be a simple json path starting with .");
    }
}

fn selectable(fields: &At<'_>, schema: &At<'_>) {
    let Some(schema) = schema.value().as_object().map(Structural::parse) else { return };
    let mut seen: Vec<&str> = Vec::new();
    for field in fields.items() {
        let path = field.field("jsonPath");
        if !path.needed() {
            continue;
        }
        match leads_to(path.text(), &schema) {
            Err(why) => path.invalid(format!("is an invalid path: {why}")),
            Ok(found) => {
                if path.text().starts_with(".metadata") {
                    path.invalid("must not point to fields in metadata");
                }
                if !matches!(found.kind, Kind::String | Kind::Boolean | Kind::Integer) {
                    path.invalid(
                        "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                         formats are allowed.",
                    );
                }
                match seen.contains(&path.text()) {
                    true => path.duplicate(),
                    false => seen.push(path.text()),
                }
            }
        }
    }
    if seen.len() > MOST_SELECTABLE {
        fields.complain(FieldError::too_many(fields.path(), seen.len(), MOST_SELECTABLE));
    }
}

/// The place that a path of fields leads to.
fn leads_to<'a>(path: &str, schema: &'a Structural) -> Result<&'a Structural, String> {
    if path.contains('[') {
        return Err("array notation is not allowed".to_owned());
    }
    let Some(names) = path.strip_prefix('.') else {
        let first = path.split('.').next().unwrap_or_default();
        return Err(format!("expected [ or . but got: {first}"));
    };
    if names.is_empty() || names.ends_with('.') {
        return Err("unexpected end of JSON path".to_owned());
    }
    let step = |schema: &'a Structural, name: &str| schema.below(name);
    let found = names.split('.').try_fold(schema, step);
    found.ok_or_else(|| "does not refer to a valid field".to_owned())
}
