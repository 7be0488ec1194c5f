//! What a change of a service may do, and what it takes back by itself.

use api::field::FieldError;
use api::validation::is_qualified_name;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::{
    has_node_ports, is_addressed, is_headless, is_reachable, items_mut, kind, listed, needs_health_check, node_ports,
};
use crate::strategy::check::check;

/// Fields that a type of service has no use for go with the type that had, where the client left them as they were.
pub(super) fn drop_type_dependent(new: &mut Object, old: &Object) {
    let is_same = |new: &Object, field: &str| new.at(&["spec", field]) == old.at(&["spec", field]);
    let drop = |new: &mut Object, fields: &[&str]| {
        if fields.iter().all(|field| is_same(new, field)) {
            for field in fields {
                new.remove_at(&["spec", field]);
            }
        }
    };
    if is_addressed(old) && !is_addressed(new) {
        drop(new, &["clusterIP", "clusterIPs"]);
        drop(new, &["ipFamilies"]);
        drop(new, &["ipFamilyPolicy"]);
    }
    if has_node_ports(old) && !has_node_ports(new) {
        let known = node_ports(old);
        if node_ports(new).iter().all(|number| known.contains(number)) {
            items_mut(new.at_mut(&["spec"]), "ports").for_each(|port| std::mem::drop(port.remove("nodePort")));
        }
    }
    if needs_health_check(old) && !needs_health_check(new) {
        drop(new, &["healthCheckNodePort"]);
    }
    if kind(old) == "LoadBalancer" && kind(new) != "LoadBalancer" {
        drop(new, &["allocateLoadBalancerNodePorts"]);
        drop(new, &["loadBalancerClass"]);
    }
    if is_reachable(old) && !is_reachable(new) {
        drop(new, &["externalTrafficPolicy"]);
    }
    // The balancer itself goes later, but nobody needs to see that.
    if kind(new) != "LoadBalancer" {
        new.at_mut(&["status"]).insert("loadBalancer".into(), json!({}));
    }
}

/// What may not change.
pub(super) fn rules(new: &Object, old: &Object) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if is_addressed(new) && is_addressed(old) {
        errors.extend(addresses(new, old));
        errors.extend(families(new, old));
    }
    errors.extend(class(new, old));
    let health_check = |object: &Object| object.at(&["spec", "healthCheckNodePort"]).cloned();
    if needs_health_check(old) && needs_health_check(new) && health_check(new) != health_check(old) {
        errors.push(FieldError::forbidden("spec.healthCheckNodePort", "field is immutable"));
    }
    errors
}

const FIXED: &str = "may not change once set";

fn released(new: &Object, what: &str) -> Option<FieldError> {
    let policy = new.at(&["spec", "ipFamilyPolicy"]).cloned().unwrap_or_default();
    let detail = format!("must be set to 'SingleStack' when releasing the secondary {what}");
    (policy != "SingleStack").then(|| FieldError::invalid("spec.ipFamilyPolicy", policy, detail))
}

/// A second address may come and go; the first stays.
fn addresses(new: &Object, old: &Object) -> Vec<FieldError> {
    let (now, before) = (listed(new, "clusterIPs"), listed(old, "clusterIPs"));
    let wrong = |index: usize, detail: &str| {
        let shown = if now.is_empty() { Value::Null } else { json!(now) };
        FieldError::invalid(format!("spec.clusterIPs[{index}]"), shown, detail)
    };
    if is_headless(old) && is_headless(new) {
        return Vec::new();
    }
    if now.len() == before.len() {
        let pairs = now.iter().zip(before).enumerate();
        return pairs.filter(|(_, (now, before))| now != before).map(|(index, _)| wrong(index, FIXED)).collect();
    }
    let mut errors = Vec::new();
    if now.is_empty() {
        errors.push(wrong(0, "primary clusterIP can not be unset"));
    }
    if !now.is_empty() && !before.is_empty() && now.first() != before.first() {
        errors.push(wrong(0, FIXED));
    }
    if before.len() > now.len() && now.len() == 1 {
        errors.extend(released(new, "clusterIP"));
    }
    errors
}

fn families(new: &Object, old: &Object) -> Vec<FieldError> {
    let (now, before) = (listed(new, "ipFamilies"), listed(old, "ipFamilies"));
    let wrong = |shown: &str, detail: &str| {
        let shown = listed(new, shown);
        let shown = if shown.is_empty() { Value::Null } else { json!(shown) };
        FieldError::invalid("spec.ipFamilies[0]", shown, detail)
    };
    if is_headless(old) || is_headless(new) {
        return Vec::new();
    }
    if now.len() == before.len() {
        let pairs = now.iter().zip(before);
        return pairs.filter(|(now, before)| now != before).map(|_| wrong("ipFamilies", FIXED)).collect();
    }
    let mut errors = Vec::new();
    if before.len() > now.len() && listed(new, "clusterIPs").is_empty() {
        errors.push(wrong("ipFamilies", "primary ipFamily can not be unset"));
    }
    if !now.is_empty() && !before.is_empty() && now.first() != before.first() {
        errors.push(wrong("clusterIPs", FIXED));
    }
    if before.len() > now.len() && now.len() == 1 {
        errors.extend(released(new, "ipFamily"));
    }
    errors
}

/// Who provides the balancer; upstream also judges here how the class is called, and so tells it twice.
fn class(new: &Object, old: &Object) -> Vec<FieldError> {
    check(new, |at| {
        let class = at.at(&["spec", "loadBalancerClass"]);
        let is_balanced = kind(new) == "LoadBalancer";
        let before = old.at(&["spec", "loadBalancerClass"]).unwrap_or(&Value::Null);
        if is_balanced && kind(old) == "LoadBalancer" && class.value() != before {
            class.invalid(FIXED);
        }
        match (is_balanced, class.exists()) {
            (true, true) => class.named(is_qualified_name),
            (false, true) => class.forbidden("may only be used when `type` is 'LoadBalancer'"),
            _ => (),
        }
    })
}
