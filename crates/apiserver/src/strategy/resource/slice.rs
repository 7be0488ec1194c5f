//! Slices of the devices that drivers offer.

use api::field::FieldError;
use api::validation::{is_label, is_qualified_name, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::{
    LONGEST_ID, LONGEST_VALUE, MOST_ATTRIBUTES, each, name_of, pool, qualified, request_policy, set, taint_rules,
};
use crate::convert::resource_in_v1;
use crate::handlers::now;
use crate::strategy::check::{At, check};
use crate::strategy::node_selector::node_selector;
use crate::strategy::volume_sources::driver_name as driver;
use crate::strategy::{Strategy, count, internal, items_mut, set_default};

const MOST_DEVICES: usize = 128;
const MOST_ADVANCED_DEVICES: usize = 64;
const MOST_TAINTS: usize = 16;
const MOST_COUNTER_SETS: usize = 8;
const MOST_COUNTERS: usize = 32;
const MOST_CONSUMPTIONS: usize = 2;
const MOST_VALUES: usize = 48;
const MOST_CONDITIONS: usize = 4;
/// Attributes of many values are behind a gate that is closed.
const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];

pub(in crate::strategy) struct ResourceSlices;

impl Strategy for ResourceSlices {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["spec.driver", "spec.nodeName"]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        for_devices(object, |device| {
            items_mut(device, "taints").for_each(|taint| set_default(taint, &["timeAdded"], now()));
        });
    }

    fn prepare_for_create(&self, object: &mut Object) {
        for_devices(object, drop_gated);
    }

    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        let uses_gated = super::super::items(old, &["spec", "devices"]).into_iter().any(|device| {
            let attributes = device.get("attributes").and_then(Value::as_object).into_iter().flatten();
            let has = |value: &Value, list: &str| value.get(list)?.as_array().map(|items| !items.is_empty());
            let has_list = |value: &Value| LISTS.iter().any(|list| has(value, list) == Some(true));
            device.contains_key(MAPPINGS) || attributes.into_iter().any(|(_, value)| has_list(value))
        });
        if !uses_gated {
            if new.get("spec") != old.get("spec") {
                count(new, old);
            }
            for_devices(new, drop_gated);
        }
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(&resource_in_v1(object), |at| slice(&at.field("spec"), None))
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        check(&resource_in_v1(new), |at| slice(&at.field("spec"), Some(&resource_in_v1(old))))
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let driver = object.text(&["spec", "driver"]);
        let is_mixed = driver != driver.to_lowercase();
        let told =
            || format!("spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters");
        is_mixed.then(told).into_iter().collect()
    }

    fn warnings_on_update(&self, _: &str, new: &Object, _: &Object) -> Vec<String> {
        self.warnings(new)
    }
}

const MAPPINGS: &str = "nodeAllocatableResourceMappings";

/// The devices of a slice, of which the first version has the parts one deeper.
fn for_devices(object: &mut Object, mut change: impl FnMut(&mut Object)) {
    let is_basic = object.text(&["apiVersion"]) == "resource.k8s.io/v1beta1";
    for device in items_mut(object.at_mut(&["spec"]), "devices") {
        change(if is_basic { device.at_mut(&["basic"]) } else { device });
    }
}

fn drop_gated(device: &mut Object) {
    device.remove(MAPPINGS);
    if let Some(Value::Object(attributes)) = device.get_mut("attributes") {
        for attribute in attributes.values_mut().filter_map(Value::as_object_mut) {
            attribute.retain(|kind, _| !LISTS.contains(&kind.as_str()));
        }
    }
}

fn slice(spec: &At<'_>, old: Option<&Object>) {
    const CHOICE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    driver(&spec.field("driver"));
    pool(&spec.at(&["pool", "name"]));
    let (count, generation) = (spec.at(&["pool", "resourceSliceCount"]), spec.at(&["pool", "generation"]));
    if count.number().unwrap_or(0) <= 0 {
        count.invalid_shown(count.number().unwrap_or(0), "must be greater than zero");
    }
    if generation.number().is_some_and(|number| number < 0) {
        generation.invalid("must be greater than or equal to zero");
    }
    for path in [&["pool", "name"][..], &["driver"], &["nodeName"]] {
        let place = spec.at(path);
        let before = old.and_then(|old| old.get("spec"));
        let before = before.map(|spec| path.iter().try_fold(spec, |at, name| at.get(name)));
        if before.is_some_and(|before| before.unwrap_or(&Value::Null) != place.value()) {
            place.invalid("field is immutable");
        }
    }
    let chosen = nodes(spec, "must be either unset or set to a non-empty string", true);
    match chosen.len() {
        0 => spec.required(CHOICE),
        1 => (),
        _ => {
            spec.invalid_shown(format!("{{{}}}", chosen.join(", ")), &format!("{CHOICE}, but multiple fields are set"))
        }
    }
    if spec.field("sharedCounters").exists() && spec.field("devices").exists() {
        spec.invalid_shown("", "only one of `sharedCounters` or `devices` is allowed");
    }
    let has_lists = |device: &At<'_>| {
        let attributes = device.field("attributes").entries();
        attributes.iter().any(|(_, value)| LISTS.iter().any(|list| value.field(list).exists()))
    };
    let advanced = |device: &At<'_>| {
        !device.field("taints").is_empty() || !device.field("consumesCounters").is_empty() || has_lists(device)
    };
    let most = if spec.each("devices").iter().any(advanced) { MOST_ADVANCED_DEVICES } else { MOST_DEVICES };
    let per_device = spec.field("perDeviceNodeSelection").is_true();
    let known = old.map(|old| super::super::items(old, &["spec", "devices"])).unwrap_or_default();
    set(&spec.field("devices"), most, name_of, |at| {
        let before = known.iter().find(|device| device.text(&["name"]) == at.field("name").text());
        device(at, per_device, before.and_then(|device| device.get("taints")));
    });
    set(&spec.field("sharedCounters"), MOST_COUNTER_SETS, name_of, |at| {
        at.field("name").needed_named(is_label);
        counters(at);
    });
}

/// Which of the ways to say where devices are is used; each must say something.
fn nodes(at: &At<'_>, nowhere: &str, is_slice: bool) -> Vec<String> {
    let (name, selector) = (at.field("nodeName"), at.field("nodeSelector"));
    let mut chosen = Vec::new();
    if name.exists() {
        match name.text() {
            "" => name.invalid(nowhere),
            _ => {
                chosen.push("nodeName");
                name.named(is_subdomain);
            }
        }
    }
    if selector.exists() {
        chosen.push("nodeSelector");
        node_selector(&selector, true);
        let terms = selector.field("nodeSelectorTerms");
        if is_slice && terms.count() != 1 {
            let detail = "must have exactly one node selector term";
            terms.complain(internal::invalid("[NodeSelectorTerm", terms.path(), terms.value(), detail));
        }
    }
    let flags: &[&str] = if is_slice { &["allNodes", "perDeviceNodeSelection"] } else { &["allNodes"] };
    for flag in flags.iter().filter(|flag| at.field(flag).exists()) {
        match at.field(flag).is_true() {
            true => chosen.push(flag),
            false => at.field(flag).invalid("must be either unset or set to true"),
        }
    }
    chosen.into_iter().map(|name| format!("`{name}`")).collect()
}

fn counters(at: &At<'_>) {
    let counters = at.field("counters");
    if !counters.needed() {
        return;
    }
    let entries = counters.entries();
    if entries.len() > MOST_COUNTERS {
        return counters.complain(FieldError::too_many(counters.path(), entries.len(), MOST_COUNTERS));
    }
    for (name, _) in entries {
        is_label(name).into_iter().for_each(|detail| counters.invalid_shown(name, &detail));
    }
}

fn device(at: &At<'_>, per_device: bool, old_taints: Option<&Value>) {
    const CHOICE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    const UNCHOSEN: &str = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    at.field("name").named(is_label);
    let (attributes, capacity) = (at.field("attributes"), at.field("capacity"));
    let total = attributes.entries().len() + capacity.entries().len();
    if total > MOST_ATTRIBUTES {
        let detail = format!("the total number of attributes and capacities must not exceed {MOST_ATTRIBUTES}");
        at.invalid_shown(total, &detail);
    }
    let values = |value: &At<'_>| LISTS.iter().map(|list| value.field(list).count()).sum::<usize>().max(1);
    let total = attributes.entries().iter().map(|(_, value)| values(value)).sum::<usize>();
    if total > MOST_VALUES {
        at.invalid_shown(total, &format!("the total number of attribute values must not exceed {MOST_VALUES}"));
    }
    for (name, value) in attributes.entries() {
        qualified(&attributes, name);
        attribute(&shortened(&attributes, name, value));
    }
    for (name, value) in capacity.entries() {
        qualified(&capacity, name);
        let value = shortened(&capacity, name, value);
        let policy = value.field("requestPolicy");
        match at.field("allowMultipleAllocations").is_true() {
            _ if !policy.exists() => (),
            true => request_policy::check(&policy, &value.field("value")),
            false => policy.forbidden("allowMultipleAllocations must be true"),
        }
    }
    if old_taints.is_none_or(|before| before != at.field("taints").value()) {
        each(&at.field("taints"), MOST_TAINTS, taint_rules::taint);
    }
    let by_set = |at: &At<'_>| at.field("counterSet").text().into();
    set(&at.field("consumesCounters"), MOST_CONSUMPTIONS, by_set, |consumption| {
        consumption.field("counterSet").needed_named(is_label);
        counters(consumption);
    });
    if per_device {
        let chosen = nodes(at, "must not be empty", false);
        match chosen.len() {
            0 => at.required(CHOICE),
            1 => (),
            _ => at.invalid_shown(format!("{{{}}}", chosen.join(", ")), CHOICE),
        }
    } else if ["nodeName", "nodeSelector", "allNodes"].iter().any(|name| at.field(name).exists()) {
        at.invalid_shown(Value::Null, UNCHOSEN);
    }
    binding_conditions(at);
}

/// A key that is far too long is told by its ends.
fn shortened<'a>(map: &At<'a>, key: &str, value: At<'a>) -> At<'a> {
    const LONGEST: usize = super::LONGEST_DRIVER + 1 + LONGEST_ID;
    if key.len() <= LONGEST {
        return value;
    }
    let rest = LONGEST - 3;
    let (head, tail) = (key.get(..rest.div_ceil(2)), key.get(key.len() - rest / 2..));
    value.called(map.path().key(&format!("{}...{}", head.unwrap_or_default(), tail.unwrap_or_default())))
}

/// What must come true before a device is used, or tells that it will not.
pub(super) fn binding_conditions(at: &At<'_>) {
    let (good, bad) = (at.field("bindingConditions"), at.field("bindingFailureConditions"));
    for list in [&good, &bad] {
        each(list, MOST_CONDITIONS, |name| name.named(is_qualified_name));
    }
    crate::strategy::check::unique(good.items());
    let wanted: Vec<&str> = good.items().iter().map(At::text).collect();
    let mut seen: Vec<&str> = Vec::new();
    for name in bad.items() {
        if seen.contains(&name.text()) {
            name.duplicate();
        }
        seen.push(name.text());
        if wanted.contains(&name.text()) {
            name.invalid("bindingFailureConditions must not overlap with bindingConditions");
        }
    }
    match (good.is_empty(), bad.is_empty()) {
        (true, false) => good.invalid("bindingConditions are required to use bindingFailureConditions"),
        (false, true) => bad.invalid("bindingFailureConditions are required to use bindingConditions"),
        _ => (),
    }
}

fn attribute(at: &At<'_>) {
    const ONE: &str = "exactly one value must be specified";
    const KINDS: [&str; 8] = ["bool", "int", "string", "version", "bools", "ints", "strings", "versions"];
    let text = |at: &At<'_>| {
        if at.text().len() > LONGEST_VALUE {
            at.complain(FieldError::too_long(at.path(), LONGEST_VALUE));
        }
    };
    let version = |at: &At<'_>| {
        if !is_semver(at.text()) {
            at.invalid("must be a string compatible with semver.org spec 2.0.0");
        }
        text(at);
    };
    let (one, number) = (at.field("string"), at.field("version"));
    if one.exists() {
        text(&one);
    }
    if number.exists() {
        version(&number);
    }
    for list in LISTS.iter().map(|list| at.field(list)).filter(At::exists) {
        if list.is_empty() {
            list.invalid("must not be empty if specified");
        }
    }
    at.each("strings").iter().for_each(text);
    at.each("versions").iter().for_each(version);
    match KINDS.iter().filter(|kind| at.field(kind).exists()).count() {
        0 => at.invalid_shown("", ONE),
        1 => (),
        _ => at.complain(internal::invalid("DeviceAttribute", at.path(), at.value(), ONE)),
    }
}

/// `1.2.3-rc.1+build`.
fn is_semver(text: &str) -> bool {
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, early) = text.split_once('-').map_or((text, None), |(core, early)| (core, Some(early)));
    let is_number = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        digits && (part == "0" || !part.starts_with('0'))
    };
    let is_word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let is_early = |part: &str| is_word(part) && (is_number(part) || !part.bytes().all(|b| b.is_ascii_digit()));
    core.split('.').count() == 3
        && core.split('.').all(is_number)
        && early.is_none_or(|early| early.split('.').all(is_early))
        && build.is_none_or(|build| build.split('.').all(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_semver() {
        for good in ["0.0.0", "1.2.3", "1.0.0-rc.1", "1.0.0-alpha+001", "1.0.0-x-y.7.z", "10.20.30+b.5"] {
            assert!(is_semver(good), "{good}");
        }
        for bad in ["", "1", "1.2", "01.2.3", "1.2.3.4", "1.2.3-", "1.2.3-01", "v1.2.3", "1.2.3+", "a/b"] {
            assert!(!is_semver(bad), "{bad}");
        }
    }
}
