//! The small strategies of the core group and its neighbours.

use api::field::{FieldError, Path};
use api::validation::{NameRule, is_config_key, is_dns_1035, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::check::{At, check};
use super::{Strategy, items_mut, key_pair, set_default};
use crate::outbound;

pub(super) struct Namespaces;

impl Strategy for Namespaces {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["status.phase"]
    }

    fn name_rule(&self) -> NameRule {
        NameRule::Namespace
    }

    fn default(&self, object: &mut Object) {
        let name = object.name().to_owned();
        if !name.is_empty() {
            object.at_mut(&["metadata", "labels"]).insert("kubernetes.io/metadata.name".into(), name.into());
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        // The name may have been made only now.
        self.default(object);
        object.insert("status".into(), json!({"phase": "Active"}));
        let has_own = object
            .at(&["spec", "finalizers"])
            .and_then(Value::as_array)
            .is_some_and(|list| list.iter().any(|finalizer| finalizer == "kubernetes"));
        if !has_own {
            let finalizers = object.at_mut(&["spec"]).entry("finalizers").or_insert_with(|| json!([]));
            finalizers.as_array_mut().map(|list| list.push("kubernetes".into())).unwrap_or_default();
        }
    }

    /// Those of the namespace itself are written on a path of their own, where each is told by its place.
    fn validate_part(&self, subresource: &str, new: &Object, _: &Object) -> Vec<FieldError> {
        if subresource != "finalize" {
            return Vec::new();
        }
        check(new, |at| at.at(&["spec", "finalizers"]).items().iter().for_each(own_finalizer))
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let list = at.at(&["spec", "finalizers"]);
            list.items().into_iter().for_each(|finalizer| own_finalizer(&finalizer.called(list.path().clone())));
        })
    }

    fn prepare_part(&self, subresource: &str, new: &mut Object, _: &Object) {
        if subresource == "status" && new.text(&["status", "phase"]).is_empty() {
            new.at_mut(&["status"]).insert("phase".into(), "Active".into());
        }
    }

    /// It is terminating from when it is deleted, and not before.
    fn validate_status(&self, new: &Object, _: &Object) -> Vec<FieldError> {
        let (phase, when) = if new.is_terminating() { ("Terminating", "is not empty") } else { ("Active", "is empty") };
        let told = new.text(&["status", "phase"]);
        let wrong = (told != phase).then(|| {
            FieldError::invalid("status.Phase", told, format!("may only be '{phase}' if `deletionTimestamp` {when}"))
        });
        wrong.into_iter().collect()
    }

    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        if let Some(finalizers) = old.at(&["spec", "finalizers"]) {
            new.at_mut(&["spec"]).insert("finalizers".into(), finalizers.clone());
        }
    }
}

fn own_finalizer(finalizer: &At<'_>) {
    finalizer.named(api::validation::is_qualified_name);
    if !finalizer.text().contains('/') && finalizer.text() != "kubernetes" {
        finalizer.invalid("name is neither a standard finalizer name nor is it fully qualified");
    }
}

pub(super) struct Secrets;

impl Strategy for Secrets {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["type"]
    }

    /// `stringData` is written by clients and never read back: who sends it manages the data that it becomes.
    fn default(&self, object: &mut Object) {
        use base64::Engine as _;
        set_default(object, &["type"], "Opaque");
        if let Some(Value::Object(texts)) = object.remove("stringData") {
            let data = object.at_mut(&["data"]);
            for (key, text) in texts {
                let encoded = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or_default());
                data.insert(key, encoded.into());
            }
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        let mut errors = data_keys(object, &["data"]);
        errors.extend(secret_type(object));
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = immutable_data(new, old);
        if new.get("type") != old.get("type") {
            errors.push(FieldError::invalid(
                "type",
                new.get("type").cloned().unwrap_or_default(),
                "field is immutable",
            ));
        }
        errors
    }

    /// Servers that use the pair would find out late.
    fn warnings(&self, object: &Object) -> Vec<String> {
        if object.text(&["type"]) != "kubernetes.io/tls" {
            return Vec::new();
        }
        let part = |name: &str| object.text(&["data", name]);
        key_pair::complaint(part("tls.crt"), part("tls.key")).into_iter().collect()
    }

    fn warnings_on_update(&self, _: &str, new: &Object, _: &Object) -> Vec<String> {
        self.warnings(new)
    }
}

pub(super) struct ServiceAccounts;

impl Strategy for ServiceAccounts {
    /// Of a secret only the name counts.
    fn prepare_for_create(&self, object: &mut Object) {
        for secret in items_mut(object, "secrets") {
            secret.retain(|field, _| field == "name");
        }
    }

    fn prepare_for_update(&self, new: &mut Object, _old: &Object) {
        self.prepare_for_create(new);
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        const KEY: &str = "kubernetes.io/enforce-mountable-secrets";
        let why = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
        let told = object.at(&["metadata", "annotations", KEY]).map(|_| format!("metadata.annotations[{KEY}]: {why}"));
        told.into_iter().collect()
    }
}

pub(super) struct ConfigMaps;

impl Strategy for ConfigMaps {
    fn validate(&self, object: &Object) -> Vec<FieldError> {
        data_keys(object, &["data", "binaryData"])
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        immutable_data(new, old)
    }
}

const DATA_MAX: usize = 1 << 20;

/// Keys that are good names, each in one place, and not too much data in all.
fn data_keys(object: &Object, fields: &[&str]) -> Vec<FieldError> {
    check(object, |at| {
        let mut total = 0;
        for (index, field) in fields.iter().enumerate() {
            for (key, value) in at.field(field).entries() {
                for detail in is_config_key(key) {
                    value.complain(FieldError::invalid(value.path(), key, detail));
                }
                for other in fields.iter().skip(index + 1).filter(|other| at.field(other).field(key).exists()) {
                    let detail = format!("duplicate of key present in {other}");
                    value.complain(FieldError::invalid(value.path(), key, detail));
                }
                total += value.text().len();
            }
        }
        if total > DATA_MAX + DATA_MAX / 3 {
            at.complain(FieldError::too_long("", DATA_MAX));
        }
    })
}

/// What a secret of each type must have.
fn secret_type(object: &Object) -> Vec<FieldError> {
    check(object, |at| {
        let data = at.field("data");
        let needed = |key: &str| {
            let place = data.path().key(key);
            if !data.field(key).exists() {
                data.complain(FieldError::required(&place, ""));
            }
            data.field(key).exists()
        };
        match at.field("type").text() {
            "kubernetes.io/service-account-token" => {
                let name = at.at(&["metadata", "annotations"]).field("kubernetes.io/service-account.name");
                if name.is_empty() {
                    let place = Path::new("metadata").child("annotations").key("kubernetes.io/service-account.name");
                    at.complain(FieldError::required(&place, ""));
                }
            }
            "kubernetes.io/dockercfg" => json_secret(&data, ".dockercfg", needed(".dockercfg")),
            "kubernetes.io/dockerconfigjson" => {
                json_secret(&data, ".dockerconfigjson", needed(".dockerconfigjson"));
            }
            "kubernetes.io/basic-auth" if !data.field("username").exists() && !data.field("password").exists() => {
                needed("username");
                needed("password");
            }
            "kubernetes.io/ssh-auth" => drop(needed("ssh-privatekey")),
            "kubernetes.io/tls" => {
                needed("tls.crt");
                needed("tls.key");
            }
            _ => (),
        }
    })
}

/// Credentials that must be JSON; what is wrong is told without telling them.
fn json_secret(data: &At<'_>, key: &str, present: bool) {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(data.field(key).text()).unwrap_or_default();
    if present && serde_json::from_slice::<Object>(&bytes).is_err() {
        let first = String::from_utf8_lossy(&bytes).chars().next();
        let detail = match first {
            None => "unexpected end of JSON input".to_owned(),
            Some(letter) => format!("invalid character '{letter}' looking for beginning of value"),
        };
        data.complain(FieldError::invalid(&data.path().key(key), "<secret contents redacted>", detail));
    }
}

fn immutable_data(new: &Object, old: &Object) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.get("immutable") == Some(&Value::Bool(true)) {
        const MESSAGE: &str = "field is immutable when `immutable` is set";
        for field in ["immutable", "data", "binaryData"] {
            if new.get(field) != old.get(field) {
                errors.push(FieldError::forbidden(field, MESSAGE));
            }
        }
    }
    errors
}

/// An API service is called after what it serves.
pub(super) struct ApiServices;

impl Strategy for ApiServices {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn default(&self, object: &mut Object) {
        if object.at(&["spec", "service"]).is_some_and(Value::is_object) {
            set_default(object, &["spec", "service", "port"], 443);
        }
    }

    /// What is served here is there at once.
    fn prepare_for_create(&self, object: &mut Object) {
        let condition = json!({
            "type": "Available",
            "status": "True",
            "lastTransitionTime": crate::handlers::now(),
            "reason": "Local",
            "message": "Local APIServices are always available",
        });
        if object.at(&["spec", "service"]).is_none() {
            object.insert("status".into(), json!({"conditions": [condition]}));
        }
    }

    fn validate_status(&self, new: &Object, _: &Object) -> Vec<FieldError> {
        check(new, |at| {
            for condition in at.at(&["status", "conditions"]).items() {
                condition.field("status").one_of(&["True", "False", "Unknown"]);
            }
        })
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        let wanted = format!("{}.{}", object.text(&["spec", "version"]), object.text(&["spec", "group"]));
        check(object, |at| {
            let name = at.at(&["metadata", "name"]);
            if name.text() != wanted {
                let detail = format!("must be `spec.version+\".\"+spec.group`: {wanted:?}");
                name.invalid(detail);
            }
            let spec = at.field("spec");
            let group = spec.field("group");
            if group.text().is_empty() && spec.field("version").text() != "v1" {
                group.required("only v1 may have an empty group and it better be legacy kube");
            }
            group.named_if_set(is_subdomain);
            spec.field("version").named(is_dns_1035);
            for (field, most) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
                let priority = spec.field(field);
                if !(1..=most).contains(&priority.number().unwrap_or(0)) {
                    let detail = format!("must be positive and less than {most}");
                    priority.complain(FieldError::invalid(priority.path(), priority.number().unwrap_or(0), detail));
                }
            }
            let (service, bundle, insecure) =
                (spec.field("service"), spec.field("caBundle"), spec.field("insecureSkipTLSVerify"));
            if !service.exists() {
                if !bundle.text().is_empty() {
                    let size = outbound::bundle_of(bundle.text()).map_or(0, |pem| pem.len());
                    let why = "local APIServices may not have a caBundle";
                    bundle.complain(FieldError::invalid(bundle.path(), format!("{size} bytes"), why));
                }
                if insecure.is_true() {
                    insecure.invalid("local APIServices may not have insecureSkipTLSVerify");
                }
                return;
            }
            service.field("namespace").needed();
            service.field("name").needed();
            let port = service.field("port");
            if !(1..=65535).contains(&port.number().unwrap_or(0)) {
                port.invalid_shown(
                    port.number().unwrap_or(0),
                    "port is not valid: must be between 1 and 65535, inclusive",
                );
            }
            if insecure.is_true() && !bundle.text().is_empty() {
                insecure.invalid("may not be true if caBundle is present");
            }
        })
    }
}
