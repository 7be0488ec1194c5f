//! Limits and quotas of a namespace.

use std::collections::BTreeSet;

use api::field::FieldError;
use api::quantity::Quantity;
use api::validation::is_qualified_name;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::check::{At, check};
use super::{Strategy, items_mut};

const CONTAINER_RESOURCES: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];
const STANDARD_RESOURCES: [&str; 7] =
    ["cpu", "ephemeral-storage", "memory", "storage", "pods", "services", "replicationcontrollers"];
/// What a quota sums up; what it counts comes beside.
const SUMMED: [&str; 10] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];
const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// A resource's name: standard, or somebody's own.
pub(super) fn resource_name(at: &At<'_>, name: &str) -> bool {
    let wrong = is_qualified_name(name);
    for detail in &wrong {
        at.complain(FieldError::invalid(at.path(), name, detail));
    }
    if !wrong.is_empty() {
        return false;
    }
    let standard = STANDARD_RESOURCES.contains(&name) || is_quota_resource(name);
    if !name.contains('/') && !standard {
        at.complain(FieldError::invalid(at.path(), name, "must be a standard resource type or fully qualified"));
    }
    true
}

/// A resource that a container can ask for.
pub(super) fn container_resource_name(at: &At<'_>, name: &str) {
    resource_name(at, name);
    let standard = CONTAINER_RESOURCES.contains(&name) || name.starts_with("hugepages-");
    let tell = |detail: &str| at.complain(FieldError::invalid(at.path(), name, detail));
    if !name.contains('/') && !standard {
        tell("must be a standard resource for containers");
    } else if !is_native(name) && !is_extended(name) {
        tell("doesn't follow extended resource name standard");
    }
}

/// Not somebody's own.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Somebody's own, of which a quota can name the requests.
fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && is_qualified_name(&format!("requests.{name}")).is_empty()
}

/// There is no half of it.
pub(super) fn is_integer(name: &str) -> bool {
    is_extended(name) || (COUNTED.contains(&name) && name != "resourcequotas")
}

/// As much as there can be of a resource: nothing negative, and no half of what is counted.
pub(super) fn quantity_of(amount: &At<'_>, name: &str) {
    amount.quantity_not_negative();
    if is_integer(name) && amount.quantity().is_some_and(|quantity| quantity.milli_value() % 1000 != 0) {
        amount.invalid("must be an integer");
    }
}

pub(super) struct LimitRanges;

impl Strategy for LimitRanges {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        // One that is called nothing is given a name nobody else has.
        if object.name().is_empty() && object.text(&["metadata", "generateName"]).is_empty() {
            object.metadata().insert("name".into(), uuid::Uuid::new_v4().to_string().into());
        }
        for limit in items_mut(object.at_mut(&["spec"]), "limits") {
            if limit.text(&["type"]) != "Container" {
                continue;
            }
            for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
                let known = limit.get(from).and_then(Value::as_object).cloned().unwrap_or_default();
                for (name, amount) in known {
                    limit.at_mut(&[to]).entry(name).or_insert(amount);
                }
            }
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let mut kinds = BTreeSet::new();
            for limit in at.at(&["spec", "limits"]).items() {
                let kind = limit.field("type");
                let wrong = is_qualified_name(kind.text());
                kind.named(is_qualified_name);
                let standard = ["Pod", "Container", "PersistentVolumeClaim"].contains(&kind.text());
                if wrong.is_empty() && !kind.text().contains('/') && !standard {
                    kind.invalid("must be a standard limit type or fully qualified");
                }
                if !kinds.insert(kind.text()) {
                    kind.complain(FieldError::duplicate(kind.path(), kind.text()));
                }
                limit_range_item(&limit, kind.text());
            }
        })
    }
}

fn limit_range_item(at: &At<'_>, kind: &str) {
    let names = |list: &str| {
        for (name, place) in at.field(list).entries() {
            match kind {
                "Pod" | "Container" => container_resource_name(&place, name),
                _ => drop(resource_name(&place, name)),
            }
        }
    };
    names("max");
    names("min");
    for list in ["default", "defaultRequest"] {
        match kind {
            "Pod" if !at.field(list).is_empty() => {
                at.field(list).forbidden("may not be specified when `type` is 'Pod'")
            }
            "Pod" => (),
            _ => names(list),
        }
    }
    let storage = |list: &str| at.at(&[list, "storage"]).exists();
    if kind == "PersistentVolumeClaim" && !storage("min") && !storage("max") {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        at.field("limits").required(detail);
    }
    names("maxLimitRequestRatio");
    let lists = ["min", "max", "default", "defaultRequest", "maxLimitRequestRatio"];
    let all: BTreeSet<&str> = lists.iter().flat_map(|list| at.field(list).entries()).map(|(name, _)| name).collect();
    all.into_iter().for_each(|name| amounts(at, kind, name));
}

/// Which of two amounts that are the wrong way round upstream shows.
enum Shown {
    Low,
    High,
}

/// Least, default request, default limit and most come in this order.
fn amounts(at: &At<'_>, kind: &str, name: &str) {
    let get =
        |list: &str| if kind == "Pod" && list.starts_with("default") { None } else { at.at(&[list, name]).quantity() };
    let (least, most) = (get("min"), get("max"));
    let (limit, request, ratio) = (get("default"), get("defaultRequest"), get("maxLimitRequestRatio"));
    let ordered = [
        ("min", least, "min", most, "max", Shown::Low),
        ("defaultRequest", least, "min", request, "default request", Shown::High),
        ("defaultRequest", request, "default request", most, "max", Shown::Low),
        ("defaultRequest", request, "default request", limit, "default limit", Shown::Low),
        ("default", least, "min", limit, "default", Shown::Low),
        ("default", limit, "default", most, "max", Shown::High),
    ];
    for (list, low, low_name, high, high_name, shown) in ordered {
        let (Some(low), Some(high)) = (low, high) else { continue };
        if low > high {
            let shown = if matches!(shown, Shown::Low) { low } else { high };
            let detail = format!("{low_name} value {low} is greater than {high_name} value {high}");
            at.complain(FieldError::invalid(&at.path().child(list).key(name), shown.to_string(), detail));
        }
    }
    if let Some(ratio) = ratio.filter(|ratio| ratio.milli_value() < 1000) {
        let place = at.path().child("maxLimitRequestRatio").key(name);
        at.complain(FieldError::invalid(&place, ratio.to_string(), format!("ratio {ratio} is less than 1")));
    }
    if let (Some(ratio), Some(least), Some(most)) = (ratio, least, most) {
        let highest = most.milli_value() as f64 / least.milli_value() as f64;
        if ratio.milli_value() as f64 / 1000.0 > highest {
            let place = at.path().child("maxLimitRequestRatio").key(name);
            let detail = format!("ratio {ratio} is greater than max/min = {highest:.6}");
            at.complain(FieldError::invalid(&place, ratio.to_string(), detail));
        }
    }
    if let (false, Some(limit), Some(request)) = (may_overcommit(name), limit, request)
        && limit != request
    {
        let place = at.path().child("defaultRequest").key(name);
        let detail = format!("default value {limit} must equal to defaultRequest value {request} in {name}");
        at.complain(FieldError::invalid(&place, request.to_string(), detail));
    }
}

/// More of it may be promised than there is.
pub(super) fn may_overcommit(name: &str) -> bool {
    is_native(name) && !name.starts_with("hugepages-")
}

pub(super) struct ResourceQuotas;

impl Strategy for ResourceQuotas {
    fn warnings(&self, object: &Object) -> Vec<String> {
        let hard = |name: &str| object.at(&["spec", "hard"]).and_then(|hard| hard.get(name)).and_then(Value::as_str);
        let mut told = Vec::new();
        for name in ["cpu", "memory", "storage", "ephemeral-storage"] {
            let bare = Some(name.to_owned()).filter(|name| ["cpu", "memory"].contains(&name.as_str()));
            let request = [Some(format!("requests.{name}")), bare].into_iter().flatten();
            let request = request.filter_map(|name| Some((hard(&name)?, name))).next();
            let limit = format!("limits.{name}");
            if let (Some((asked, request)), Some(most)) = (request, hard(&limit))
                && Quantity::parse(asked).ok() > Quantity::parse(most).ok()
            {
                told.push(format!("ResourceQuota {request} ({asked}) should be less than {limit} ({most})"));
            }
        }
        told
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            amounts_by_name(&spec.field("hard"));
            let hard: Vec<&str> = spec.field("hard").entries().into_iter().map(|(name, _)| name).collect();
            scopes(&spec.field("scopes"), &hard);
            scope_selector(&spec.field("scopeSelector"), &hard);
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let scopes = |object: &Object| -> BTreeSet<String> {
            let list = object.at(&["spec", "scopes"]).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(|scope| scope.as_str().map(str::to_owned)).collect()
        };
        if scopes(new) == scopes(old) {
            return Vec::new();
        }
        let value = new.at(&["spec", "scopes"]).cloned().unwrap_or(json!(null));
        vec![FieldError::invalid("spec.scopes", value, "field is immutable")]
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| {
            for list in ["hard", "used"] {
                amounts_by_name(&at.at(&["status", list]));
            }
        })
    }
}

fn amounts_by_name(at: &At<'_>) {
    for (name, amount) in at.entries() {
        resource_name(&amount, name);
        if !name.contains('/') && !is_quota_resource(name) {
            amount.complain(FieldError::invalid(amount.path(), name, "must be a standard resource for quota"));
        }
        resource_value(name, &amount);
    }
}

/// An amount is not negative, and of what is counted, whole.
pub(super) fn resource_value(name: &str, amount: &At<'_>) {
    amount.quantity_not_negative();
    let extended = name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.");
    let whole = COUNTED.contains(&name) || extended;
    if whole && amount.quantity().is_some_and(|quantity| quantity.milli_value() % 1000 != 0) {
        amount.invalid("must be an integer");
    }
}

fn is_quota_resource(name: &str) -> bool {
    SUMMED.contains(&name)
        || COUNTED.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

/// What each scope can be said of.
fn applies(scope: &str, resource: &str) -> bool {
    match scope {
        "BestEffort" => resource == "pods",
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            resource == "pods"
                || ["cpu", "memory", "ephemeral-storage"].contains(&resource)
                || (resource.starts_with("requests.") && resource != "requests.storage")
                || resource.starts_with("limits.")
        }
        "VolumeAttributesClass" => ["persistentvolumeclaims", "requests.storage"].contains(&resource),
        _ => true,
    }
}

fn conflicting(scopes: &[&str]) -> bool {
    let both = |a: &str, b: &str| scopes.contains(&a) && scopes.contains(&b);
    both("BestEffort", "NotBestEffort") || both("Terminating", "NotTerminating")
}

fn scopes(at: &At<'_>, hard: &[&str]) {
    let all: Vec<&str> = at.items().iter().map(At::text).collect();
    for scope in &all {
        if !SCOPES.contains(scope) {
            at.invalid("unsupported scope");
        }
        for _ in hard.iter().filter(|name| is_quota_resource(name) && !applies(scope, name)) {
            at.invalid("unsupported scope applied to resource");
        }
    }
    if conflicting(&all) {
        at.invalid("conflicting scopes");
    }
}

fn scope_selector(at: &At<'_>, hard: &[&str]) {
    const EXISTS: &str = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
    let expressions = at.field("matchExpressions");
    let mut all = Vec::new();
    for requirement in expressions.items() {
        // Upstream tells of the list here, not of the place in it.
        let requirement = requirement.called(expressions.path().clone());
        let (scope, operator) = (requirement.field("scopeName"), requirement.field("operator"));
        if !SCOPES.contains(&scope.text()) {
            scope.invalid("unsupported scope");
        }
        for _ in hard.iter().filter(|name| is_quota_resource(name) && !applies(scope.text(), name)) {
            at.called(expressions.path().clone()).invalid("unsupported scope applied to resource");
        }
        if !["PriorityClass", "VolumeAttributesClass"].contains(&scope.text())
            && SCOPES.contains(&scope.text())
            && operator.text() != "Exists"
        {
            operator.invalid(EXISTS);
        }
        let values = requirement.field("values");
        match operator.text() {
            "In" | "NotIn" if values.is_empty() => {
                values.required("must be at least one value when `operator` is 'In' or 'NotIn' for scope selector");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                values.invalid("must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => (),
            _ => operator.invalid("not a valid selector operator"),
        }
        all.push(scope.text());
    }
    if conflicting(&all) {
        expressions.invalid("conflicting scopes");
    }
}
