//! CustomResourceDefinitions: defaults, and the rules for what may be defined.
//!
//! Upstream judges an older form of the definition, in which what all versions share stands above them. So do its
//! messages, and therefore these.

mod defaults;
mod schema;
mod structure;
mod versions;

use api::field::{FieldError, Path};
use api::validation::{is_dns_1035, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::check::{At, check};
use super::{Strategy, admissionregistration, items_mut, set_default};
use crate::custom::{CLEANUP, set_condition};
use crate::outbound;

const APPROVED: &str = "api-approved.kubernetes.io";
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];

pub(super) struct Definitions;

impl Strategy for Definitions {
    fn default(&self, object: &mut Object) {
        let kind = object.text(&["spec", "names", "kind"]).to_owned();
        let spec = object.at_mut(&["spec"]);
        let is_unset = |object: &Object, path: &[&str]| object.text(path).is_empty();
        if is_unset(spec, &["names", "singular"]) {
            spec.at_mut(&["names"]).insert("singular".into(), kind.to_lowercase().into());
        }
        if is_unset(spec, &["names", "listKind"]) && !kind.is_empty() {
            spec.at_mut(&["names"]).insert("listKind".into(), format!("{kind}List").into());
        }
        set_default(spec, &["conversion"], json!({"strategy": "None"}));
        if says_nothing(spec.at(&["conversion", "webhook"]), Value::is_null) {
            spec.remove_at(&["conversion", "webhook"]);
        }
        if spec.at(&["conversion", "webhook", "clientConfig", "service"]).is_some() {
            set_default(spec, &["conversion", "webhook", "clientConfig", "service", "port"], 443);
        }
        for version in items_mut(spec, "versions") {
            for column in items_mut(version, "additionalPrinterColumns") {
                column.retain(|key, value| key != "priority" || *value != json!(0));
            }
        }
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn needs_version(&self) -> bool {
        true
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.at_mut(&["status"]).insert("conditions".into(), Value::Null);
        keep_stored_versions(object);
        drop_empty_webhook(object);
    }

    fn prepare_for_update(&self, new: &mut Object, _: &Object) {
        drop_empty_webhook(new);
        keep_stored_versions(new);
    }

    /// A status that names no version names the one that objects are stored in.
    fn prepare_part(&self, subresource: &str, new: &mut Object, _: &Object) {
        let stored = new.at(&["status", "storedVersions"]).and_then(Value::as_array);
        if subresource == "status" && stored.is_none_or(Vec::is_empty) {
            keep_stored_versions(new);
        }
    }

    fn prepare_for_delete(&self, object: &mut Object) {
        if !object.finalizers().contains(&CLEANUP) {
            let list = object.metadata().entry("finalizers").or_insert_with(|| json!([]));
            if let Some(list) = list.as_array_mut() {
                list.push(CLEANUP.into());
            }
        }
        let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
        set_condition(object, "Terminating", "True", "InstanceDeletionPending", message);
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        let wanted = format!("{}.{}", object.text(&["spec", "names", "plural"]), object.text(&["spec", "group"]));
        let mut errors = Vec::new();
        if object.name() != wanted && !object.name().is_empty() {
            let why = "must be spec.names.plural+\".\"+spec.group";
            errors.push(FieldError::invalid("metadata.name", object.name(), why));
        }
        errors.extend(spec(object, None));
        errors.extend(status(object));
        errors.extend(stored_versions(object));
        errors.extend(approved(object, None));
        errors.extend(preserve_unknown_fields(object, None));
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = spec(new, Some(old));
        let established = crate::custom::is_true(old, "Established");
        let names = [(["spec", "scope"].as_slice(), established), (&["spec", "names", "kind"], established)];
        let always = [(["spec", "group"].as_slice(), true), (&["spec", "names", "plural"], true)];
        for (path, is_fixed) in names.into_iter().chain(always) {
            if is_fixed {
                errors.extend(super::fixed_at(new, old, path));
            }
        }
        errors.extend(status(new));
        errors.extend(stored_versions(new));
        errors.extend(approved(new, Some(old)));
        errors.extend(preserve_unknown_fields(new, Some(old)));
        errors
    }

    fn validate_status(&self, new: &Object, _: &Object) -> Vec<FieldError> {
        status(new)
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let formats = schema::unrecognized_formats(object).into_iter();
        formats.map(|format| format!("unrecognized format {format:?}")).collect()
    }

    /// What was told of before is not told again.
    fn warnings_on_update(&self, subresource: &str, new: &Object, old: &Object) -> Vec<String> {
        if !subresource.is_empty() {
            return Vec::new();
        }
        let known = self.warnings(old);
        self.warnings(new).into_iter().filter(|warning| !known.contains(warning)).collect()
    }
}

/// A webhook that is nowhere and reads no version is none; `is_none` tells of the list of versions.
fn says_nothing(webhook: Option<&Value>, is_none: impl Fn(&Value) -> bool) -> bool {
    let Some(Value::Object(webhook)) = webhook else { return false };
    let is_unset = |key: &str| webhook.get(key).is_none_or(Value::is_null);
    is_unset("clientConfig") && webhook.get("conversionReviewVersions").is_none_or(is_none)
}

fn drop_empty_webhook(object: &mut Object) {
    let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    if says_nothing(object.at(&["spec", "conversion", "webhook"]), is_empty) {
        object.remove_at(&["spec", "conversion", "webhook"]);
    }
}

/// A version that objects are stored in may have left some behind.
fn keep_stored_versions(object: &mut Object) {
    let versions = super::items(object, &["spec", "versions"]);
    let storage = versions.into_iter().find(|version| version.get("storage") == Some(&Value::Bool(true)));
    let Some(name) = storage.map(|storage| storage.text(&["name"]).to_owned()) else { return };
    let list = object.at_mut(&["status"]).entry("storedVersions").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut().filter(|list| !list.iter().any(|known| *known == name)) {
        list.push(name.into());
    }
}

/// The definition as upstream judges it.
fn spec(new: &Object, old: Option<&Object>) -> Vec<FieldError> {
    let lifted = versions::lifted(new);
    check(&lifted, |at| {
        let spec = at.field("spec");
        let group = spec.field("group");
        if group.needed() {
            let wrong = is_subdomain(group.text());
            if !wrong.is_empty() {
                group.invalid(wrong.join(","));
            } else if !group.text().contains('.') {
                group.invalid("should be a domain with at least one dot");
            }
        }
        spec.field("scope").needed_one_of(&["Cluster", "Namespaced"]);
        if spec.field("preserveUnknownFields").is_true() && has_defaults(new) {
            spec.field("preserveUnknownFields").invalid("must be false in order to use defaults in the schema");
        }
        versions::check(&spec);
        if let Some(first) = spec.each("versions").first() {
            // The older form has the first version's name above, too.
            let wrong = is_dns_1035(first.field("name").text());
            if !wrong.is_empty() && !first.field("name").is_empty() {
                let path = spec.path().child("version");
                spec.complain(FieldError::invalid(&path, first.field("name").text(), wrong.join(",")));
            }
        }
        let wanted = spec.field("names");
        for name in ["plural", "singular", "kind", "listKind"] {
            wanted.field(name).needed();
        }
        names(&wanted);
        versions::check_shared(&spec);
        conversion(&spec.field("conversion"), new, old);
    })
}

fn has_defaults(definition: &Object) -> bool {
    super::items(definition, &["spec", "versions"]).into_iter().any(|version| {
        version.at(&["schema", "openAPIV3Schema"]).and_then(Value::as_object).is_some_and(schema::has_defaults)
    })
}

fn names(at: &At<'_>) {
    for (name, is_mixed) in [("plural", false), ("singular", false), ("kind", true), ("listKind", true)] {
        let field = at.field(name);
        let text = if is_mixed { field.text().to_lowercase() } else { field.text().to_owned() };
        let wrong = is_dns_1035(&text);
        if !field.text().is_empty() && !wrong.is_empty() {
            let mixed = if is_mixed { "may have mixed case, but should otherwise match: " } else { "" };
            field.invalid(format!("{mixed}{}", wrong.join(",")));
        }
    }
    let list = |name: &str| {
        for item in at.each(name) {
            let wrong = is_dns_1035(item.text());
            if !wrong.is_empty() {
                item.invalid(wrong.join(","));
            }
        }
    };
    list("shortNames");
    let (kind, list_kind) = (at.field("kind"), at.field("listKind"));
    if !kind.text().is_empty() && kind.text() == list_kind.text() {
        list_kind.invalid("kind and listKind may not be the same");
    }
    list("categories");
}

fn conversion(at: &At<'_>, new: &Object, old: Option<&Object>) {
    if !at.exists() {
        return;
    }
    let strategy = at.field("strategy");
    strategy.needed_one_of(&["None", "Webhook"]);
    let (config, reviews) = (at.at(&["webhook", "clientConfig"]), at.at(&["webhook", "conversionReviewVersions"]));
    let (config, reviews) = (
        config.called(at.path().child("webhookClientConfig")),
        reviews.called(at.path().child("conversionReviewVersions")),
    );
    if strategy.text() != "Webhook" {
        for (unwanted, is_set) in [(&config, config.exists()), (&reviews, !reviews.is_empty())] {
            if is_set {
                unwanted.forbidden("should not be set when strategy is not set to Webhook");
            }
        }
        return;
    }
    if config.exists() {
        match (config.field("url").exists(), config.field("service").exists()) {
            (true, false) => admissionregistration::url(&config.field("url")),
            (false, true) => admissionregistration::service(&config.field("service")),
            _ => config.required("exactly one of url or service is required"),
        }
        // It only needs to be right once it is used.
        let may_be_wrong =
            old.is_none_or(|old| !crate::custom::is_true(old, "Established") || !has_valid_ca_bundle(old));
        if !may_be_wrong && !has_valid_ca_bundle(new) {
            config.field("caBundle").invalid("unable to load root certificates: unable to parse bytes as PEM block");
        }
    } else {
        config.required("required when strategy is set to Webhook");
    }
    if reviews.is_empty() {
        return reviews.required("");
    }
    let mut seen = Vec::new();
    for version in reviews.items() {
        match seen.contains(&version.text()) {
            true => version.invalid("duplicate version"),
            false => is_dns_1035(version.text()).into_iter().for_each(|why| version.invalid(why)),
        }
        seen.push(version.text());
    }
    if !seen.iter().any(|version| REVIEWS.contains(version)) {
        reviews.invalid("must include at least one of v1, v1beta1");
    }
}

fn status(object: &Object) -> Vec<FieldError> {
    check(object, |at| names(&at.at(&["status", "acceptedNames"])))
}

fn stored_versions(object: &Object) -> Vec<FieldError> {
    let path = Path::new("status").child("storedVersions");
    let stored = object.at(&["status", "storedVersions"]).and_then(Value::as_array).cloned().unwrap_or_default();
    if stored.is_empty() {
        return vec![FieldError::invalid(&path, Value::Null, "must have at least one stored version")];
    }
    let mut errors = Vec::new();
    let versions = super::items(object, &["spec", "versions"]);
    let mut left: Vec<(usize, &str)> =
        stored.iter().map(|name| name.as_str().unwrap_or_default()).enumerate().collect();
    for version in &versions {
        let name = version.text(&["name"]);
        let known = left.iter().position(|(_, stored)| *stored == name).map(|at| left.remove(at));
        if version.get("storage") == Some(&Value::Bool(true)) && known.is_none() {
            let why = format!("must have the storage version {name}");
            errors.push(FieldError::invalid(&path, Value::Array(stored.clone()), why));
        }
    }
    for (index, text) in left {
        let why = format!(
            "missing from spec.versions; {text} was previously a storage version, and must remain in spec.versions until a \
             storage migration ensures no data remains persisted in {text} and removes {text} from status.storedVersions"
        );
        errors.push(FieldError::invalid(&path.index(index), text, why));
    }
    errors
}

fn preserve_unknown_fields(new: &Object, old: Option<&Object>) -> Vec<FieldError> {
    let is_set = |object: &Object| object.at(&["spec", "preserveUnknownFields"]) == Some(&Value::Bool(true));
    if !is_set(new) || old.is_some_and(is_set) {
        return Vec::new();
    }
    let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
    vec![FieldError::invalid("spec.preserveUnknownFields", true, why)]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Approval {
    Missing,
    Bypassed,
    Approved,
    Invalid,
}

/// Groups that belong to the community.
pub(crate) fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|name| group == *name || group.ends_with(&format!(".{name}")))
}

pub(crate) fn approval(annotation: &str) -> Approval {
    let is_url = annotation.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && !rest.starts_with('/') && !rest.is_empty() && !rest.contains(' ')
    });
    match annotation {
        "" => Approval::Missing,
        text if text.starts_with("unapproved") => Approval::Bypassed,
        _ if is_url => Approval::Approved,
        _ => Approval::Invalid,
    }
}

fn approved(new: &Object, old: Option<&Object>) -> Vec<FieldError> {
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    if !is_protected(new.text(&["spec", "group"])) {
        return Vec::new();
    }
    let annotation = |object: &Object| object.text(&["metadata", "annotations", APPROVED]).to_owned();
    let (text, state) = (annotation(new), approval(&annotation(new)));
    if old.is_some_and(|old| approval(&annotation(old)) == state) {
        return Vec::new();
    }
    let path = Path::new("metadata.annotations").key(APPROVED);
    match state {
        Approval::Approved | Approval::Bypassed => Vec::new(),
        Approval::Missing => {
            let why = format!("protected groups must have approval annotation {APPROVED:?}, {SEE}");
            vec![FieldError::required(&path, why)]
        }
        Approval::Invalid => {
            let why = format!(
                "protected groups must have approval annotation {APPROVED:?} with either a URL or a reason starting with \
                 \"unapproved\", {SEE}"
            );
            vec![FieldError::invalid(&path, text, why)]
        }
    }
}

/// The authorities that a conversion webhook's certificate is checked against can be read.
pub(crate) fn has_valid_ca_bundle(definition: &Object) -> bool {
    match definition.text(&["spec", "conversion", "webhook", "clientConfig", "caBundle"]) {
        "" => true,
        bundle => outbound::bundle_of(bundle).is_ok_and(|pem| outbound::connect::authorities(&pem).is_ok()),
    }
}

/// What keeps the schemas of a definition from being structural.
pub(crate) fn structural_violations(definition: &Object) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if definition.at(&["spec", "preserveUnknownFields"]) == Some(&Value::Bool(true)) {
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, "must be false"));
    }
    for (index, version) in super::items(definition, &["spec", "versions"]).into_iter().enumerate() {
        if let Some(schema) = version.at(&["schema", "openAPIV3Schema"]).and_then(Value::as_object) {
            let path = Path::new("spec.versions").index(index).child("schema").child("openAPIV3Schema");
            errors.extend(structure::check(schema, &path));
        }
    }
    errors
}
