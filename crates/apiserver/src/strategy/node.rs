//! Nodes and runtime classes.

use std::cmp::Ordering;

use api::field::{FieldError, Path};
use api::validation::{is_config_key, is_label, is_label_value, is_qualified_name, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::check::{At, check};
use super::quota::{resource_name, resource_value};
use super::{Strategy, fixed, internal};

const TAINTS: &str = "scheduler.alpha.kubernetes.io/taints";
const AVOIDED: &str = "scheduler.alpha.kubernetes.io/preferAvoidPods";
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) struct Nodes;

impl Strategy for Nodes {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["spec.unschedulable"]
    }

    fn keeps_status_on_create(&self) -> bool {
        true
    }

    /// What a node has is what it gives, unless it says otherwise; its range is the first of its ranges.
    fn default(&self, object: &mut Object) {
        let is_told =
            object.at(&["status", "allocatable"]).and_then(Value::as_object).is_some_and(|all| !all.is_empty());
        if let (Some(capacity), false) = (object.at(&["status", "capacity"]).cloned(), is_told) {
            object.at_mut(&["status"]).insert("allocatable".into(), capacity);
        }
        let spec = object.at_mut(&["spec"]);
        let one = spec.text(&["podCIDR"]).to_owned();
        let first = spec.get("podCIDRs").and_then(Value::as_array).and_then(|list| list.first()).cloned();
        match (one.is_empty(), first) {
            (false, first) if first.as_ref().is_none_or(|first| *first != one) => {
                spec.insert("podCIDRs".into(), json!([one]));
            }
            (true, Some(range)) => drop(spec.insert("podCIDR".into(), range)),
            _ => (),
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.remove_at(&["spec", "configSource"]);
        object.remove_at(&["status", "config"]);
    }

    /// What configured kubelets once is kept only by who has it.
    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        if old.at(&["spec", "configSource"]).is_none() {
            new.remove_at(&["spec", "configSource"]);
        }
    }

    fn prepare_part(&self, subresource: &str, new: &mut Object, old: &Object) {
        if subresource == "status" && old.at(&["status", "config"]).is_none() {
            new.remove_at(&["status", "config"]);
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            annotations(&at);
            let spec = at.field("spec");
            taints(&spec.field("taints").called(Path::new("metadata").child("taints")));
            resources(&at);
            let swap = at.at(&["status", "nodeInfo", "swap", "capacity"]);
            if swap.number().is_some_and(|bytes| bytes <= 0) {
                swap.called(Path::new("metadata.nodeSwapStatus").child("capacity"))
                    .invalid("must be greater than zero");
            }
            declared_features(&at.at(&["status", "declaredFeatures"]));
            ranges(&spec.field("podCIDRs"));
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        change(new, old)
    }

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        change(new, old)
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let mut told = Vec::new();
        if object.at(&["spec", "configSource"]).is_some() {
            told.push("spec.configSource: the feature is removed".to_owned());
        }
        if !object.text(&["spec", "externalID"]).is_empty() {
            told.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
        }
        told
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, _: &Object) -> Vec<String> {
        if subresource.is_empty() { self.warnings(new) } else { Vec::new() }
    }
}

/// What holds for any change of a node or its status.
fn change(new: &Object, old: &Object) -> Vec<FieldError> {
    check(new, |at| {
        annotations(&at);
        resources(&at);
        declared_features(&at.at(&["status", "declaredFeatures"]));
        let mut addresses = Vec::new();
        for address in at.at(&["status", "addresses"]).items() {
            let pair = (address.field("type").text(), address.field("address").text());
            if addresses.contains(&pair) {
                let shown = json!({"Type": pair.0, "Address": pair.1});
                let mut error = FieldError::duplicate(address.path(), Value::Null);
                error.value = internal::shown("NodeAddress", &shown);
                address.complain(error);
            }
            addresses.push(pair);
        }
        let spec = at.field("spec");
        ranges_change(&spec.field("podCIDRs"), old.at(&["spec", "podCIDRs"]).and_then(Value::as_array));
        let (provider, before) = (spec.field("providerID"), old.text(&["spec", "providerID"]));
        if !before.is_empty() && provider.text() != before {
            provider.forbidden("node updates may not change providerID except from \"\" to valid");
        }
        if spec.field("configSource").exists() {
            config_source(&spec.field("configSource"), false);
        }
        for kind in ["assigned", "active", "lastKnownGood"] {
            let source = at.at(&["status", "config", kind]);
            if source.exists() {
                config_source(&source, true);
            }
        }
        taints(&spec.field("taints").called(Path::new("metadata").child("taints")));
        let id = spec.field("externalID");
        if id.text() != old.text(&["spec", "externalID"]) {
            id.forbidden("may not be updated");
        }
    })
}

/// The ranges of a node are given once.
fn ranges_change(at: &At<'_>, old: Option<&Vec<Value>>) {
    const FIXED: &str = "node updates may not change podCIDR except from \"\" to valid";
    let Some(old) = old.filter(|old| !old.is_empty()) else { return };
    let new = at.items();
    if new.len() != old.len() {
        at.forbidden(FIXED);
    } else {
        new.iter().zip(old).filter(|(now, before)| now.value() != *before).for_each(|_| at.forbidden(FIXED));
    }
}

/// One range of each family.
fn ranges(at: &At<'_>) {
    let ranges = at.items();
    let bad = ranges.iter().enumerate().filter(|(_, range)| !range.cidr()).map(|(index, range)| (index, range.text()));
    let bad: Vec<(usize, &str)> = bad.collect();
    if ranges.len() < 2 {
        return;
    }
    if let Some((index, text)) = bad.first() {
        let why = format!("invalid CIDR[{index}]: <nil> (invalid CIDR address: {text})");
        let detail = format!("invalid PodCIDRs. failed to check with dual stack with error:{why}");
        at.complain(FieldError::internal(at.path(), detail));
    }
    let sixes = ranges.iter().filter(|range| range.text().contains(':')).count();
    if !bad.is_empty() || ranges.len() > 2 || sixes != 1 {
        at.invalid("may specify no more than one CIDR for each IP family");
    }
}

/// Amounts are not negative, and of what is counted in wholes, whole.
fn resources(at: &At<'_>) {
    for list in ["capacity", "allocatable"] {
        let amounts = at.at(&["status", list]);
        for (name, amount) in amounts.entries() {
            resource_value(name, &amount.called(amounts.path().child(name)));
        }
    }
}

fn declared_features(at: &At<'_>) {
    const LONGEST: usize = 253;
    let features = at.items();
    for (index, feature) in features.iter().enumerate() {
        let name = feature.text();
        if name.len() > LONGEST {
            feature.invalid(format!("invalid feature name {name:?}: must be no more than {LONGEST} characters"));
        } else if !is_feature(name) {
            feature.invalid(format!(
                "invalid feature name {name:?}: must start with an UpperCamelCase segment, with subsequent segments separated \
                 by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
            ));
        }
        if let Some(next) = features.get(index + 1) {
            match name.cmp(next.text()) {
                Ordering::Equal => next.duplicate(),
                Ordering::Greater => next.invalid("list must be sorted alphabetically"),
                Ordering::Less => (),
            }
        }
    }
}

fn is_feature(name: &str) -> bool {
    let is_segment = |segment: &str| {
        segment.starts_with(|c: char| c.is_ascii_alphabetic()) && segment.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.split('/').all(is_segment)
}

/// Where a kubelet once had its configuration from; who reports it says which version that was.
fn config_source(at: &At<'_>, is_status: bool) {
    let map = at.field("configMap");
    if !map.exists() {
        let shown = internal::shown("NodeConfigSource", at.value());
        let mut error = FieldError::invalid(at.path(), Value::Null, "exactly one reference subfield must be non-nil");
        error.value = shown;
        return at.complain(error);
    }
    for name in ["uid", "resourceVersion"] {
        let field = map.field(name);
        match is_status {
            true => drop(field.needed()),
            false if !field.is_empty() => field.forbidden(format!("{name} must not be set in spec")),
            false => (),
        }
    }
    map.field("namespace").needed_named(is_label);
    map.field("name").needed_named(is_subdomain);
    map.field("kubeletConfigKey").needed_named(is_config_key);
}

/// What was told in annotations before there were fields for it.
fn annotations(at: &At<'_>) {
    let all = at.at(&["metadata", "annotations"]);
    let read = |key: &str, wanted: &str, is_list: bool| -> Result<Option<Value>, String> {
        let text = all.field(key).text();
        if text.is_empty() {
            return Ok(None);
        }
        let read = serde_json::from_str::<Value>(text);
        let value = read.map_err(|error| api::json::complaint(text.as_bytes()).unwrap_or_else(|| error.to_string()))?;
        let found = api::decode::go_kind(&value);
        match value.is_null() || if is_list { value.is_array() } else { value.is_object() } {
            true => Ok(Some(value)),
            false => Err(format!("json: cannot unmarshal {found} into Go value of type {wanted}")),
        }
    };
    let within = |value: Value| Object::from_iter([("told".to_owned(), value)]);
    match read(TAINTS, "[]core.Taint", true) {
        Err(why) => all.invalid_shown(TAINTS, &why),
        Ok(told) => {
            let told = within(told.unwrap_or_default());
            at.extend(check(&told, |at| taints(&at.field("told").called(all.path().child(TAINTS)))));
        }
    }
    match read(AVOIDED, "v1.AvoidPods", false) {
        Err(why) => all.called(all.path().child("AvoidPods")).invalid_shown(AVOIDED, &why),
        Ok(told) => {
            let told = within(told.unwrap_or_default());
            at.extend(check(&told, |at| {
                for entry in at.at(&["told", "preferAvoidPods"]).called(all.path().child(AVOIDED)).items() {
                    let signature = entry.field("podSignature").called(entry.path().child("PodSignature"));
                    let owner = signature.field("podController").called(signature.path().child("PodController"));
                    if !owner.exists() {
                        signature.required("");
                    } else if !owner.field("controller").is_true() {
                        owner.field("Controller").invalid_shown(false, "must point to a controller");
                    }
                }
            }));
        }
    }
}

fn taints(at: &At<'_>) {
    let mut seen = Vec::new();
    for taint in at.items() {
        taint.field("key").named(is_qualified_name);
        let (value, wrong) = (taint.field("value"), is_label_value(taint.field("value").text()));
        if !wrong.is_empty() {
            value.invalid(wrong.join(";"));
        }
        let effect = taint.field("effect");
        if effect.text().is_empty() {
            effect.required("")
        } else {
            effect.one_of(&EFFECTS)
        }
        let pair = (taint.field("key").text(), effect.text());
        if seen.contains(&pair) {
            let mut error = FieldError::duplicate(taint.path(), Value::Null);
            error.value = internal::shown("Taint", taint.value());
            error.detail = "taints must be unique by key and effect pair".into();
            taint.complain(error);
        }
        seen.push(pair);
    }
}

pub(super) struct RuntimeClasses;

impl Strategy for RuntimeClasses {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            at.field("handler").needed_named(is_label);
            let overhead = at.at(&["overhead", "podFixed"]).called(Path::new("overhead").child("limits"));
            for (name, amount) in overhead.entries() {
                container_resource(&amount, name);
                resource_value(name, &amount);
            }
            let scheduling = at.field("scheduling");
            scheduling.field("nodeSelector").labels();
            let list = scheduling.field("tolerations");
            tolerations(&list);
            let mut before: Vec<&Value> = Vec::new();
            for toleration in list.items() {
                if before.contains(&toleration.value()) {
                    let mut error = FieldError::duplicate(toleration.path(), Value::Null);
                    error.value = internal::shown("Toleration", toleration.value());
                    toleration.complain(error);
                }
                before.push(toleration.value());
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed(new, old, &["handler"])
    }
}

/// What a container can ask for.
fn container_resource(at: &At<'_>, name: &str) {
    resource_name(at, name);
    let is_standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    if !name.contains('/') {
        if !is_standard {
            at.invalid_shown(name, "must be a standard resource for containers");
        }
    } else if !name.contains("kubernetes.io/") {
        let is_extended = !name.starts_with("requests.") && is_qualified_name(&format!("requests.{name}")).is_empty();
        if !is_extended {
            at.invalid_shown(name, "doesn't follow extended resource name standard");
        }
    }
}

pub(super) fn tolerations(at: &At<'_>) {
    for toleration in at.items() {
        let (key, operator) = (toleration.field("key"), toleration.field("operator"));
        let (value, effect) = (toleration.field("value"), toleration.field("effect"));
        key.named_if_set(is_qualified_name);
        if key.is_empty() && operator.text() != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            operator.complain(FieldError::invalid(operator.path(), operator.text(), detail));
        }
        if toleration.field("tolerationSeconds").exists() && effect.text() != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            effect.complain(FieldError::invalid(effect.path(), effect.text(), detail));
        }
        match operator.text() {
            "Equal" | "" => {
                let wrong = is_label_value(value.text());
                if !wrong.is_empty() {
                    operator.complain(FieldError::invalid(operator.path(), value.text(), wrong.join(";")));
                }
            }
            "Exists" if !value.is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                operator.complain(FieldError::invalid(operator.path(), value.text(), detail));
            }
            "Exists" => (),
            _ => operator.one_of(&["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            effect.one_of(&EFFECTS);
        }
    }
}
