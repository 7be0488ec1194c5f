//! Dynamic resources: device classes, claims and their templates, slices. Selectors' expressions are kept unread.

mod taint_rules;

use std::collections::HashSet;

use api::field::FieldError;
use api::validation::{is_label, is_qualified_name, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

pub(super) use self::taint_rules::DeviceTaintRules;
use super::check::{At, check};
use super::{Strategy, fixed, items_mut, set_default};
use crate::convert::resource_in_v1;
use crate::handlers::now;

const LONGEST_DRIVER: usize = 63;
const LONGEST_ID: usize = 32;
const LONGEST_POOL: usize = 253;
const LONGEST_VALUE: usize = 64;
const LONGEST_EXPRESSION: usize = 10 * 1024;
const LONGEST_PARAMETERS: usize = 10 * 1024;
const MOST_REQUESTS: usize = 32;
const MOST_ALTERNATIVES: usize = 8;
const MOST_CONSUMERS: usize = 256;
const MOST_DEVICES: usize = 128;
const MOST_ADVANCED_DEVICES: usize = 64;
const MOST_ATTRIBUTES: usize = 32;
const MOST_TAINTS: usize = 16;
const MOST_COUNTER_SETS: usize = 8;
const UNKNOWN_REQUEST: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

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
        } else if expression.text().len() > LONGEST_EXPRESSION {
            expression.complain(FieldError::too_long(expression.path(), LONGEST_EXPRESSION));
        }
    });
}

fn configuration(at: &At<'_>) {
    let opaque = at.field("opaque");
    if !opaque.exists() {
        return opaque.required("");
    }
    driver(&opaque.field("driver"));
    let parameters = opaque.field("parameters");
    match parameters.value() {
        Value::Null => parameters.required(""),
        Value::Object(map) => {
            let length = serde_json::to_string(map).map_or(0, |text| text.len());
            if length > LONGEST_PARAMETERS {
                parameters.complain(FieldError::too_long(parameters.path(), LONGEST_PARAMETERS));
            }
        }
        _ => parameters.complain(FieldError::invalid(
            parameters.path(),
            "<value omitted>",
            "parameters must be a valid JSON object",
        )),
    }
}

fn driver(at: &At<'_>) {
    if at.needed() {
        if at.text().len() > LONGEST_DRIVER {
            at.complain(FieldError::too_long(at.path(), LONGEST_DRIVER));
        }
        for detail in is_subdomain(&at.text().to_lowercase()) {
            at.complain(FieldError::invalid(at.path(), at.text(), detail));
        }
    }
}

pub(super) struct ResourceClaims;

impl Strategy for ResourceClaims {
    fn default(&self, object: &mut Object) {
        claim_defaults(object.at_mut(&["spec"]));
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(&resource_in_v1(object), |at| claim(&at.at(&["spec", "devices"])))
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed(new, old, &["spec"])
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
            for device in status.each("devices") {
                if !allocated.contains(&device_id(&device)) {
                    device.complain(FieldError::invalid(
                        device.path(),
                        device_id(&device),
                        "must be an allocated device in the claim",
                    ));
                }
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
                    allocation.invalid("field is immutable");
                }
                None if allocation.exists() => result(&allocation.field("devices"), &requests),
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

/// What was allocated answers requests of the claim.
fn result(at: &At<'_>, requests: &Requests) {
    each(&at.field("results"), MOST_REQUESTS, |result| {
        requests.check(&result.field("request"));
        driver(&result.field("driver"));
        pool(&result.field("pool"));
        result.field("device").named(is_label);
    });
    each(&at.field("config"), 2 * MOST_REQUESTS, |config| {
        config.field("source").needed_one_of(&["FromClaim", "FromClass"]);
        set(&config.field("requests"), MOST_REQUESTS, |name| name.value().clone(), |name| requests.check(name));
        configuration(config);
    });
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

pub(super) struct ResourceClaimTemplates;

impl Strategy for ResourceClaimTemplates {
    fn default(&self, object: &mut Object) {
        claim_defaults(object.at_mut(&["spec", "spec"]));
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(&resource_in_v1(object), |at| {
            at.at(&["spec", "metadata", "labels"]).labels();
            claim(&at.at(&["spec", "spec", "devices"]));
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed(new, old, &["spec"])
    }
}

fn claim_defaults(spec: &mut Object) {
    fn one(request: &mut Object) {
        let mode = request.entry("allocationMode").or_insert_with(|| "ExactCount".into());
        if mode == "ExactCount" && request.get("count").is_none_or(|count| count == &json!(0)) {
            request.insert("count".into(), 1.into());
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
            for detail in parts.iter().flat_map(|part| is_label(part)) {
                name.complain(FieldError::invalid(name.path(), name.text(), detail));
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
}

fn fully_qualified(at: &At<'_>) {
    qualified(at, at.text());
    if !at.text().contains('/') {
        at.invalid("a fully qualified name must be a domain and a name separated by a slash");
    }
}

/// `name`, or `domain/name`.
fn qualified(at: &At<'_>, name: &str) {
    let Some((domain, id)) = name.split_once('/') else { return identifier(at, name) };
    match domain {
        "" => at.complain(FieldError::invalid(at.path(), "", "the domain must not be empty")),
        _ => {
            for detail in is_subdomain(&domain.to_lowercase()) {
                at.complain(FieldError::invalid(at.path(), domain, detail));
            }
        }
    }
    match id {
        "" => at.complain(FieldError::invalid(at.path(), "", "the name must not be empty")),
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

pub(super) struct ResourceSlices;

impl Strategy for ResourceSlices {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["spec.driver", "spec.nodeName"]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        let is_basic = object.text(&["apiVersion"]) == "resource.k8s.io/v1beta1";
        for device in items_mut(object.at_mut(&["spec"]), "devices") {
            let device = if is_basic { device.at_mut(&["basic"]) } else { device };
            items_mut(device, "taints").for_each(|taint| set_default(taint, &["timeAdded"], now()));
        }
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(&resource_in_v1(object), |at| slice(&at.field("spec"), None))
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        check(&resource_in_v1(new), |at| slice(&at.field("spec"), Some(old)))
    }
}

fn slice(spec: &At<'_>, old: Option<&Object>) {
    const CHOICE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    driver(&spec.field("driver"));
    pool(&spec.at(&["pool", "name"]));
    let (count, generation) = (spec.at(&["pool", "resourceSliceCount"]), spec.at(&["pool", "generation"]));
    if count.number().unwrap_or(0) <= 0 {
        count.complain(FieldError::invalid(count.path(), count.number().unwrap_or(0), "must be greater than zero"));
    }
    if generation.number().is_some_and(|number| number < 0) {
        generation.invalid("must be greater than or equal to zero");
    }
    for path in [&["pool", "name"][..], &["driver"], &["nodeName"]] {
        let place = spec.at(path);
        let before =
            old.and_then(|old| old.at(&["spec"])).map(|spec| path.iter().try_fold(spec, |at, name| at.get(name)));
        if before.is_some_and(|before| before.unwrap_or(&Value::Null) != place.value()) {
            place.invalid("field is immutable");
        }
    }
    if spec.field("nodeName").exists() {
        match spec.field("nodeName").text() {
            "" => spec.field("nodeName").invalid("must be either unset or set to a non-empty string"),
            _ => spec.field("nodeName").named(is_subdomain),
        }
    }
    for flag in ["allNodes", "perDeviceNodeSelection"] {
        if spec.field(flag).exists() && !spec.field(flag).is_true() {
            spec.field(flag).invalid("must be either unset or set to true");
        }
    }
    let chosen = chosen(spec, &["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"]);
    match chosen.len() {
        0 => spec.required(CHOICE),
        1 => (),
        _ => spec.complain(FieldError::invalid(
            spec.path(),
            format!("{{{}}}", chosen.join(", ")),
            format!("{CHOICE}, but multiple fields are set"),
        )),
    }
    if spec.field("sharedCounters").exists() && spec.field("devices").exists() {
        spec.complain(FieldError::invalid(spec.path(), "", "only one of `sharedCounters` or `devices` is allowed"));
    }
    let advanced = |device: &At<'_>| !device.field("taints").is_empty() || !device.field("consumesCounters").is_empty();
    let most = if spec.each("devices").iter().any(advanced) { MOST_ADVANCED_DEVICES } else { MOST_DEVICES };
    let per_device = spec.field("perDeviceNodeSelection").is_true();
    set(&spec.field("devices"), most, name_of, |at| device(at, per_device));
    set(&spec.field("sharedCounters"), MOST_COUNTER_SETS, name_of, |at| {
        at.field("name").needed_named(is_label);
        counters(at);
    });
}

fn chosen(at: &At<'_>, fields: &[&str]) -> Vec<String> {
    let is_set = |field: &&&str| match at.field(field).value() {
        Value::Bool(value) => *value,
        Value::String(text) => !text.is_empty(),
        value => !value.is_null(),
    };
    fields.iter().filter(is_set).map(|field| format!("`{field}`")).collect()
}

fn counters(at: &At<'_>) {
    let counters = at.field("counters");
    if counters.needed() {
        for (name, counter) in counters.entries() {
            for detail in is_label(name) {
                counter.complain(FieldError::invalid(counters.path(), name, detail));
            }
        }
    }
}

fn device(at: &At<'_>, per_device: bool) {
    const CHOICE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    at.field("name").named(is_label);
    let (attributes, capacity) = (at.field("attributes").entries(), at.field("capacity").entries());
    let total = attributes.len() + capacity.len();
    if total > MOST_ATTRIBUTES {
        let detail = format!("the total number of attributes and capacities must not exceed {MOST_ATTRIBUTES}");
        at.complain(FieldError::invalid(at.path(), total, detail));
    }
    for (name, value) in &attributes {
        qualified(value, name);
        attribute(value);
    }
    for (name, value) in &capacity {
        qualified(value, name);
        if value.field("requestPolicy").exists() && !at.field("allowMultipleAllocations").is_true() {
            value.field("requestPolicy").forbidden("allowMultipleAllocations must be true");
        }
    }
    each(&at.field("taints"), MOST_TAINTS, taint_rules::taint);
    for consumption in at.each("consumesCounters") {
        consumption.field("counterSet").needed_named(is_label);
        counters(&consumption);
    }
    let chosen = chosen(at, &["nodeName", "nodeSelector", "allNodes"]);
    match (per_device, chosen.len()) {
        (true, 0) => at.required(CHOICE),
        (true, 1) | (false, 0) => (),
        (true, _) => at.complain(FieldError::invalid(at.path(), format!("{{{}}}", chosen.join(", ")), CHOICE)),
        (false, _) => at.complain(FieldError::invalid(
            at.path(),
            Value::Null,
            "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
        )),
    }
}

fn attribute(at: &At<'_>) {
    const KINDS: [&str; 8] = ["bool", "int", "string", "version", "bools", "ints", "strings", "versions"];
    for field in ["string", "version"] {
        if at.field(field).text().len() > LONGEST_VALUE {
            at.field(field).complain(FieldError::too_long(at.field(field).path(), LONGEST_VALUE));
        }
    }
    match KINDS.iter().filter(|kind| at.field(kind).exists()).count() {
        0 => at.complain(FieldError::invalid(at.path(), "", "exactly one value must be specified")),
        1 => (),
        _ => at.invalid("exactly one value must be specified"),
    }
}
