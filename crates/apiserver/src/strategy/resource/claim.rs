//! Claims to devices, the templates that they are made from, and what they got.

use std::collections::HashSet;

use api::field::{FieldError, Path};
use api::validation::{is_label, is_label_value, is_qualified_name, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::{
    LONGEST_PARAMETERS, MOST_REQUESTS, configuration, driver, each, fully_qualified, json_object, name_of, pool,
    selectors, set, slice, taint_rules,
};
use crate::convert::resource_in_v1;
use crate::strategy::check::{At, check};
use crate::strategy::conditions::conditions;
use crate::strategy::node_selector::node_selector;
use crate::strategy::{Strategy, internal, items_mut};

const MOST_ALTERNATIVES: usize = 8;
const MOST_CONSUMERS: usize = 256;
const MOST_CONDITIONS: usize = 8;
const MOST_IPS: usize = 16;
const LONGEST_INTERFACE: usize = 256;
const LONGEST_HARDWARE: usize = 128;
const UNKNOWN_REQUEST: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

pub(in crate::strategy) struct ResourceClaims;

impl Strategy for ResourceClaims {
    fn default(&self, object: &mut Object) {
        claim_defaults(object.at_mut(&["spec"]));
    }

    /// What was told of a device goes with it.
    fn prepare_part(&self, subresource: &str, new: &mut Object, old: &Object) {
        let id = |one: &Value| {
            let part = |name: &str| one.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            ["driver", "pool", "device", "shareID"].map(part)
        };
        let results = |object: &Object| {
            let list = object.at(&["status", "allocation", "devices", "results"]).and_then(Value::as_array);
            list.map(|list| list.iter().map(id).collect::<Vec<_>>()).unwrap_or_default()
        };
        let (was, is) = (results(old), results(new));
        let Some(Value::Object(status)) = new.get_mut("status").filter(|_| subresource == "status") else { return };
        if let Some(Value::Array(told)) = status.get_mut("devices") {
            told.retain(|device| !was.contains(&id(device)) || is.contains(&id(device)));
            if told.is_empty() {
                status.remove("devices");
            }
        }
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(&resource_in_v1(object), |at| claim(&at.at(&["spec", "devices"])))
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed_spec("ResourceClaimSpec", new, old)
    }

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let terminating = new.is_terminating();
        check(&resource_in_v1(new), |at| {
            let (status, requests) = (at.field("status"), Requests::of(&at.at(&["spec", "devices"])));
            let (consumers, allocation) = (status.field("reservedFor"), status.field("allocation"));
            set(
                &consumers,
                MOST_CONSUMERS,
                |one| one.field("uid").text().into(),
                |one| {
                    for field in ["resource", "name", "uid"] {
                        one.field(field).needed();
                    }
                },
            );
            let allocated: HashSet<String> =
                allocation.at(&["devices", "results"]).items().iter().map(device_id).collect();
            let mut told = HashSet::new();
            status.each("devices").iter().for_each(|device| device_status(device, &allocated));
            for device in status.each("devices").iter().filter(|device| !told.insert(device_id(device))) {
                let mut error = FieldError::duplicate(device.path(), Value::Null);
                error.value = internal::shown("SharedDeviceID", device.value());
                device.complain(error);
            }
            if !consumers.is_empty() && !allocation.exists() {
                consumers.forbidden("may not be specified when `allocated` is not set");
            } else if terminating {
                let before = old.at(&["status", "reservedFor"]).and_then(Value::as_array);
                let known = |one: &At<'_>| before.is_some_and(|before| before.contains(one.value()));
                if !consumers.items().iter().all(known) {
                    consumers.forbidden(
                        "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set",
                    );
                }
            }
            match old.at(&["status", "allocation"]) {
                Some(before) if allocation.exists() && allocation.value() != before => {
                    let shown = internal::invalid(
                        "*AllocationResult",
                        allocation.path(),
                        allocation.value(),
                        "field is immutable",
                    );
                    allocation.complain(shown);
                }
                None if allocation.exists() => {
                    result(&allocation.field("devices"), &requests);
                    if allocation.field("nodeSelector").exists() {
                        node_selector(&allocation.field("nodeSelector"), true);
                    }
                }
                _ => (),
            }
        })
    }
}

fn device_id(at: &At<'_>) -> String {
    let part = |name: &str| at.field(name).text();
    match part("shareID") {
        "" => format!("{}/{}/{}", part("driver"), part("pool"), part("device")),
        share => format!("{}/{}/{}/{share}", part("driver"), part("pool"), part("device")),
    }
}

/// What a driver tells of a device that it prepared.
fn device_status(at: &At<'_>, allocated: &HashSet<String>) {
    driver(&at.field("driver"));
    pool(&at.field("pool"));
    at.field("device").named(is_label);
    share_id(&at.field("shareID"));
    if !allocated.contains(&device_id(at)) {
        let detail = "must be an allocated device in the claim";
        at.complain(internal::invalid("SharedDeviceID", at.path(), at.value(), detail));
    }
    let told = at.field("conditions");
    if told.count() > MOST_CONDITIONS {
        told.complain(FieldError::too_many(told.path(), told.count(), MOST_CONDITIONS));
    }
    conditions(&told);
    if at.field("data").exists() {
        json_object(&at.field("data"), LONGEST_PARAMETERS);
    }
    let network = at.field("networkData");
    for (name, most) in [("interfaceName", LONGEST_INTERFACE), ("hardwareAddress", LONGEST_HARDWARE)] {
        let text = network.field(name);
        if text.text().len() > most {
            text.complain(FieldError::too_long(text.path(), most));
        }
    }
    set(&network.field("ips"), MOST_IPS, |address| address.value().clone(), interface_address);
}

/// An address and the network around it, in the one form that there is for both.
fn interface_address(at: &At<'_>) {
    const FORM: &str = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
    let text = at.text();
    // Zeros before a number are read, but not written.
    let Some(found) = api::addresses::Range::lenient(text) else { return at.invalid(FORM) };
    let canonical = found.to_string();
    if canonical != text {
        at.invalid(format!("must be in canonical form ({canonical:?})"));
    }
}

fn share_id(at: &At<'_>) {
    const FORM: &str = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters";
    let text = at.text();
    if !at.exists() {
        return;
    }
    if !matches!(text.len(), 32 | 36 | 38 | 45) {
        at.invalid(format!("error validating uid: invalid UUID length: {}", text.len()));
    } else if text.len() == 36 {
        let is_dash = |place: usize| matches!(place, 8 | 13 | 18 | 23);
        let fits = |(place, byte): (usize, u8)| if is_dash(place) { byte == b'-' } else { byte.is_ascii_hexdigit() };
        if !text.bytes().enumerate().all(fits) {
            at.invalid("error validating uid: invalid UUID format");
        } else if text != text.to_lowercase() {
            at.invalid(FORM);
        }
    } else {
        at.invalid(FORM);
    }
}

/// What was allocated answers requests of the claim.
fn result(at: &At<'_>, requests: &Requests) {
    each(&at.field("results"), MOST_REQUESTS, |result| {
        requests.check(&result.field("request"));
        driver(&result.field("driver"));
        pool(&result.field("pool"));
        result.field("device").named(is_label);
        slice::binding_conditions(result);
        share_id(&result.field("shareID"));
    });
    each(&at.field("config"), 2 * MOST_REQUESTS, |config| {
        config.field("source").needed_one_of(&["FromClaim", "FromClass"]);
        set(&config.field("requests"), MOST_REQUESTS, |name| name.value().clone(), |name| requests.check(name));
        configuration(config);
    });
}

pub(in crate::strategy) struct ResourceClaimTemplates;

impl Strategy for ResourceClaimTemplates {
    fn default(&self, object: &mut Object) {
        claim_defaults(object.at_mut(&["spec", "spec"]));
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(&resource_in_v1(object), |at| {
            template_metadata(&at.at(&["spec", "metadata"]));
            claim(&at.at(&["spec", "spec", "devices"]));
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = self.validate_create(new);
        errors.extend(fixed_spec("ResourceClaimTemplateSpec", new, old));
        errors
    }
}

/// A spec does not change, and is shown as the type `kind` shows it.
fn fixed_spec(kind: &str, new: &Object, old: &Object) -> Vec<FieldError> {
    if new.get("spec") == old.get("spec") {
        return Vec::new();
    }
    let spec = resource_in_v1(new).get("spec").cloned().unwrap_or_default();
    vec![internal::invalid(kind, &Path::new("spec"), &spec, "field is immutable")]
}

/// What is made from a template has the labels and annotations of it, and else its own.
fn template_metadata(at: &At<'_>) {
    const OWN: [&str; 13] = [
        "name",
        "generateName",
        "namespace",
        "selfLink",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "ownerReferences",
        "finalizers",
        "managedFields",
    ];
    let annotations = at.field("annotations");
    at.extend(api::validation::annotations(Some(annotations.value()), annotations.path()));
    at.field("labels").labels();
    // A pointer to nothing much is still something, and so is a list of nothing.
    let is_set = |field: &At<'_>| match field.value() {
        Value::Array(_) => true,
        Value::Number(number) => number.as_i64() != Some(0) || field.path().to_string().ends_with("Seconds"),
        _ => !field.is_empty(),
    };
    for field in OWN.iter().map(|name| at.field(name)).filter(is_set) {
        // Upstream makes this name from its own.
        let is_id = field.path().to_string().ends_with(".uid");
        let field = if is_id { field.called(at.path().child("uID")) } else { field };
        field.forbidden("cannot be set");
    }
}

fn claim_defaults(spec: &mut Object) {
    fn one(request: &mut Object) {
        let mode = request.entry("allocationMode").or_insert_with(|| "ExactCount".into());
        if mode == "ExactCount" && request.get("count").is_none_or(|count| count == &json!(0)) {
            request.insert("count".into(), 1.into());
        }
        for toleration in items_mut(request, "tolerations") {
            if toleration.text(&["operator"]).is_empty() {
                toleration.insert("operator".into(), "Equal".into());
            }
        }
    }
    for request in items_mut(spec.at_mut(&["devices"]), "requests") {
        items_mut(request, "firstAvailable").for_each(one);
        request.get_mut("exactly").and_then(Value::as_object_mut).into_iter().for_each(one);
        // The first version has the fields of its one alternative here.
        if !request.text(&["deviceClassName"]).is_empty() {
            one(request);
        }
    }
}

/// The names of a claim's requests, and of their alternatives as `request/alternative`.
struct Requests(HashSet<String>);

impl Requests {
    fn of(devices: &At<'_>) -> Self {
        let names = devices.each("requests").into_iter().flat_map(|request| {
            let name = request.field("name").text();
            let others = request.each("firstAvailable");
            let others = others.into_iter().map(move |other| format!("{name}/{}", other.field("name").text()));
            std::iter::once(name.to_owned()).chain(others)
        });
        Self(names.collect())
    }

    fn check(&self, name: &At<'_>) {
        let parts: Vec<&str> = name.text().split('/').collect();
        if parts.len() <= 2 {
            for part in parts {
                is_label(part).into_iter().for_each(|detail| name.invalid_shown(part, &detail));
            }
        }
        if !self.0.contains(name.text()) {
            name.complain(FieldError::invalid(name.path(), name.text(), UNKNOWN_REQUEST));
        }
    }
}

fn claim(devices: &At<'_>) {
    let requests = Requests::of(devices);
    set(&devices.field("requests"), MOST_REQUESTS, name_of, |at| {
        at.field("name").named(is_label);
        let (exactly, alternatives) = (at.field("exactly"), at.field("firstAvailable"));
        match (exactly.exists(), !alternatives.is_empty()) {
            (false, false) => at.required("exactly one of `exactly` or `firstAvailable` is required"),
            (true, true) => at.complain(FieldError::invalid(
                at.path(),
                Value::Null,
                "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
            )),
            (true, false) => request(&exactly),
            (false, true) => set(&alternatives, MOST_ALTERNATIVES, name_of, |other| {
                other.field("name").named(is_label);
                request(other);
            }),
        }
    });
    each(&devices.field("constraints"), MOST_REQUESTS, |at| {
        set(&at.field("requests"), MOST_REQUESTS, |name| name.value().clone(), |name| requests.check(name));
        let attribute = if at.field("matchAttribute").exists() { "matchAttribute" } else { "distinctAttribute" };
        match at.field(attribute).exists() {
            true => fully_qualified(&at.field(attribute)),
            false => at.required(
                "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set",
            ),
        }
    });
    each(&devices.field("config"), MOST_REQUESTS, |at| {
        set(&at.field("requests"), MOST_REQUESTS, |name| name.value().clone(), |name| requests.check(name));
        configuration(at);
    });
}

fn request(at: &At<'_>) {
    at.field("deviceClassName").needed_named(is_subdomain);
    selectors(at);
    let count = at.field("count");
    match at.field("allocationMode").text() {
        "All" if count.number().unwrap_or(0) != 0 => {
            count.invalid("must not be specified when allocationMode is 'All'");
        }
        "ExactCount" if count.number().unwrap_or(0) <= 0 => count.invalid("must be greater than zero"),
        "All" | "ExactCount" => (),
        _ => at.field("allocationMode").one_of(&["All", "ExactCount"]),
    }
    at.each("tolerations").iter().for_each(toleration);
}

fn toleration(at: &At<'_>) {
    let (operator, value) = (at.field("operator"), at.field("value"));
    at.field("key").named_if_set(is_qualified_name);
    match operator.text() {
        "Exists" if !value.is_empty() => value.invalid("must be empty for operator `Exists`"),
        "Exists" => (),
        "Equal" => value.named(is_label_value),
        _ => operator.needed_one_of(&["Equal", "Exists"]),
    }
    if !at.field("effect").is_empty() {
        at.field("effect").one_of(&taint_rules::EFFECTS);
    }
}
