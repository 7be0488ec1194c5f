//! Dynamic resources: device classes, claims and their templates, slices.

mod claim;
mod request_policy;
mod selector;
mod slice;
mod taint_rules;

use std::collections::HashSet;

use api::Object;
use api::field::FieldError;
use api::validation::{is_qualified_name, is_subdomain};
use serde_json::Value;

pub(super) use self::claim::{ResourceClaimTemplates, ResourceClaims};
pub(super) use self::slice::ResourceSlices;
pub(super) use self::taint_rules::DeviceTaintRules;
use super::Strategy;
use super::check::{At, check};
use super::volume_sources::driver_name as driver;

const LONGEST_DRIVER: usize = 63;
const LONGEST_ID: usize = 32;
const LONGEST_POOL: usize = 253;
const LONGEST_VALUE: usize = 64;
const LONGEST_PARAMETERS: usize = 10 * 1024;
const MOST_REQUESTS: usize = 32;
const MOST_ATTRIBUTES: usize = 32;

pub(super) struct DeviceClasses;

impl Strategy for DeviceClasses {
    fn counts_generation(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            selectors(&spec);
            each(&spec.field("config"), MOST_REQUESTS, configuration);
            let name = spec.field("extendedResourceName");
            if name.exists() && !is_extended(name.text()) {
                name.invalid("must be a valid extended resource name");
            }
        })
    }
}

/// A resource of nodes that is not Kubernetes' own.
fn is_extended(name: &str) -> bool {
    let own = name.contains("kubernetes.io/") || name.starts_with("requests.");
    name.contains('/') && !own && is_qualified_name(&format!("requests.{name}")).is_empty()
}

/// Each item of a list that is not too long.
fn each(list: &At<'_>, most: usize, rule: impl Fn(&At<'_>)) {
    if list.count() > most {
        return list.complain(FieldError::too_many(list.path(), list.count(), most));
    }
    list.items().iter().for_each(rule);
}

/// The same, of items that differ in `key`.
fn set(list: &At<'_>, most: usize, key: impl Fn(&At<'_>) -> Value, rule: impl Fn(&At<'_>)) {
    each(list, most, rule);
    let mut seen = HashSet::new();
    for item in list.items().iter().filter(|_| list.count() <= most) {
        let key = key(item);
        if !seen.insert(key.to_string()) {
            item.complain(FieldError::duplicate(item.path(), key));
        }
    }
}

fn name_of(at: &At<'_>) -> Value {
    at.field("name").text().into()
}

fn selectors(at: &At<'_>) {
    each(&at.field("selectors"), MOST_REQUESTS, |selector| {
        let expression = selector.at(&["cel", "expression"]);
        if !selector.field("cel").exists() {
            selector.field("cel").required("");
        } else {
            selector::expression(&expression);
        }
    });
}

fn configuration(at: &At<'_>) {
    let opaque = at.field("opaque");
    if !opaque.exists() {
        return opaque.required("");
    }
    driver(&opaque.field("driver"));
    json_object(&opaque.field("parameters"), LONGEST_PARAMETERS);
}

/// An object that only its reader knows.
fn json_object(at: &At<'_>, longest: usize) {
    let value = at.value();
    if value.is_null() {
        at.required("");
    } else if serde_json::to_string(value).map_or(0, |text| text.len()) > longest {
        at.complain(FieldError::too_long(at.path(), longest));
    } else if !value.is_object() {
        at.invalid_shown("<value omitted>", "must be a valid JSON object");
    }
}

fn pool(at: &At<'_>) {
    if at.needed() {
        if at.text().len() > LONGEST_POOL {
            at.complain(FieldError::too_long(at.path(), LONGEST_POOL));
        }
        for part in at.text().split('/') {
            for detail in is_subdomain(part) {
                at.complain(FieldError::invalid(at.path(), part, detail));
            }
        }
    }
}

fn fully_qualified(at: &At<'_>) {
    qualified(at, at.text());
    if !at.text().contains('/') {
        at.invalid("a fully qualified name must be a domain and a name separated by a slash");
    }
}

/// `name`, or `domain/name`; what has more parts is nobody's concern.
fn qualified(at: &At<'_>, name: &str) {
    let (domain, id) = match name.split('/').collect::<Vec<&str>>().as_slice() {
        [id] => return identifier(at, id),
        [domain, id] => (*domain, *id),
        _ => return,
    };
    if domain.is_empty() {
        at.invalid_shown("", "the domain must not be empty");
    } else {
        if domain.len() > LONGEST_DRIVER {
            at.complain(FieldError::too_long(at.path(), LONGEST_DRIVER));
        }
        is_subdomain(&domain.to_lowercase()).into_iter().for_each(|detail| at.invalid_shown(domain, &detail));
    }
    match id {
        "" => at.invalid_shown("", "the name must not be empty"),
        _ => identifier(at, id),
    }
}

fn identifier(at: &At<'_>, id: &str) {
    const DETAIL: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')";
    if id.len() > LONGEST_ID {
        at.complain(FieldError::too_long(at.path(), LONGEST_ID));
    }
    let valid =
        !id.starts_with(|c: char| c.is_ascii_digit()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if id.is_empty() || !valid {
        at.complain(FieldError::invalid(at.path(), id, DETAIL));
    }
}
