//! The rules of how much a pod and its containers ask for, and of what they are limited to.

use std::collections::BTreeMap;

use api::Object;
use api::field::FieldError;
use api::quantity::Quantity;

use super::super::check::{At, check};
use super::super::quota::{container_resource_name, may_overcommit, quantity_of, resource_name};
use super::claims;

/// What a pod can have as a whole, beside huge pages of any size.
const POD_RESOURCES: [&str; 3] = ["cpu", "hugepages-", "memory"];

type NameRule = fn(&At<'_>, &str);

pub(super) fn of_container(at: &At<'_>, spec: &At<'_>) {
    requirements(at, container_resource_name);
    claims::container(at, spec);
}

pub(super) fn overhead(at: &At<'_>) {
    // Upstream judges it as if it were limits.
    limits(&at.called(at.path().child("limits")), container_resource_name);
    let names: Vec<&str> = at.entries().into_iter().map(|(name, _)| name).collect();
    huge_pages(at, &names);
}

pub(super) fn of_pod(spec: &At<'_>) {
    let at = spec.field("resources");
    if !at.exists() {
        return;
    }
    if spec.at(&["os", "name"]).text() == "windows" {
        return at.forbidden("may not be set for a windows pod");
    }
    if at.field("claims").exists() {
        at.field("claims").forbidden("claims may not be set for Resources at pod-level");
    }
    requirements(&at, pod_resource_name);
    claims::container(&at, spec);
    consistent(spec, &at);
}

fn pod_resource_name(at: &At<'_>, name: &str) {
    let before = at.complaints();
    resource_name(at, name);
    let known = matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
    if at.complaints() == before && !known {
        at.complain(FieldError::not_supported(at.path(), name, &POD_RESOURCES));
    }
}

fn limits(at: &At<'_>, rule: NameRule) {
    for (name, amount) in at.entries() {
        rule(&amount, name);
        quantity_of(&amount, name);
        divisible(&amount, name);
    }
}

fn requirements(at: &At<'_>, rule: NameRule) {
    let most = at.field("limits");
    limits(&most, rule);
    let requests = at.field("requests");
    for (name, amount) in requests.entries() {
        rule(&amount, name);
        quantity_of(&amount, name);
        let (limit, overcommits) = (most.field(name), may_overcommit(name));
        let tell = |detail: String| amount.complain(FieldError::invalid(requests.path(), amount.text(), detail));
        if !limit.exists() {
            if !overcommits {
                most.required("Limit must be set for non overcommitable resources");
            }
        } else if !overcommits && amount.quantity() != limit.quantity() {
            tell(format!("must be equal to {name} limit of {}", limit.text()));
        } else if amount.quantity() > limit.quantity() {
            tell(format!("must be less than or equal to {name} limit of {}", limit.text()));
        }
        divisible(&amount, name);
    }
    let names: Vec<&str> = most.entries().into_iter().chain(requests.entries()).map(|(name, _)| name).collect();
    huge_pages(at, &names);
}

/// Huge pages come whole.
fn divisible(amount: &At<'_>, name: &str) {
    let Some(size) = name.strip_prefix("hugepages-") else { return };
    let page = Quantity::parse(size).ok().filter(|size| size.is_positive() && size.milli_value() % 1000 == 0);
    let whole = page.zip(amount.quantity()).is_some_and(|(page, amount)| amount.value() % page.value() == 0);
    if !whole {
        amount.invalid(format!("{} is not positive integer multiple of {name}", amount.text()));
    }
}

fn huge_pages(at: &At<'_>, names: &[&str]) {
    let huge = names.iter().any(|name| name.starts_with("hugepages-"));
    if huge && !names.iter().any(|name| matches!(*name, "cpu" | "memory")) {
        at.forbidden("HugePages require cpu or memory");
    }
}

/// What the containers have fits into what the pod has.
fn consistent(spec: &At<'_>, at: &At<'_>) {
    for (list, prefix) in [("requests", ""), ("limits", "hugepages-")] {
        let sums = sums(spec, list);
        for (name, own) in at.field(list).entries().into_iter().filter(|(name, _)| name.starts_with(prefix)) {
            if let Some(sum) = sums.get(name).filter(|sum| own.quantity().is_some_and(|own| **sum > own)) {
                own.invalid(format!("must be greater than or equal to aggregate container {list} of {sum}"));
            }
        }
    }
    for (index, container) in spec.each("containers").iter().enumerate() {
        for (name, limit) in container.at(&["resources", "limits"]).entries() {
            let most = at.at(&["limits", name]);
            if most.exists() && limit.quantity() > most.quantity() {
                let place = at.path().child("containers").index(index).key(name).child("limits");
                let detail = format!("must be less than or equal to pod limits of {}", most.text());
                limit.complain(FieldError::invalid(&place, limit.text(), detail));
            }
        }
    }
}

/// What the containers have at their most: all that run, or one that runs before them beside those that go on.
fn sums<'a>(spec: &At<'a>, list: &str) -> BTreeMap<&'a str, Quantity> {
    let amounts = |container: &At<'a>| container.at(&["resources", list]).entries();
    let (mut all, mut lasting, mut first) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    spec.each("containers").iter().for_each(|container| add(&mut all, amounts(container)));
    for container in spec.each("initContainers") {
        let mut beside = lasting.clone();
        add(&mut beside, amounts(&container));
        raise(&mut first, &beside);
        if container.field("restartPolicy").text() == "Always" {
            add(&mut all, amounts(&container));
            lasting = beside;
        }
    }
    raise(&mut all, &first);
    all
}

/// The same, of a spec that is not yet judged, as it is written.
pub(in super::super) fn aggregate(spec: &Object, list: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    check(spec, |at| found.extend(sums(&at, list).iter().map(|(name, sum)| ((*name).to_owned(), sum.to_string()))));
    found
}

fn add<'a>(sums: &mut BTreeMap<&'a str, Quantity>, amounts: Vec<(&'a str, At<'a>)>) {
    for (name, amount) in amounts.into_iter().filter_map(|(name, amount)| Some((name, amount.quantity()?))) {
        sums.entry(name).and_modify(|sum| *sum = sum.plus(amount)).or_insert(amount);
    }
}

fn raise<'a>(sums: &mut BTreeMap<&'a str, Quantity>, least: &BTreeMap<&'a str, Quantity>) {
    for (name, amount) in least {
        sums.entry(name).and_modify(|sum| *sum = (*sum).max(*amount)).or_insert(*amount);
    }
}
