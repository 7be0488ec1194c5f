//! Which families of addresses a service has: those it asks for, of those the cluster has.

use api::addresses::{family, lenient};
use api::field::FieldError;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use crate::service_ranges::ServiceRanges;
use crate::strategy::service::{cluster_ips, is_addressed, kind, listed, selects};

const POLICY: &str = "spec.ipFamilyPolicy";

/// Completes policy and families, or tells why they do not go together.
pub(super) fn settle(
    ranges: &ServiceRanges,
    service: &mut Object,
    old: Option<&Object>,
) -> Result<(), Vec<FieldError>> {
    // A service that prefers two is not given another, nor loses one, because the cluster has changed.
    if !is_addressed(service) || old.is_some_and(|old| still_prefers_two(service, old)) {
        return Ok(());
    }
    let unmanaged = service.text(&["spec", "clusterIP"]) == "None" && !selects(service);
    let usual = match old.and_then(|old| old.at(&["spec", "ipFamilyPolicy"])) {
        Some(kept) => kept.clone(),
        None if unmanaged => "RequireDualStack".into(),
        None => "SingleStack".into(),
    };
    service.at_mut(&["spec"]).entry("ipFamilyPolicy").or_insert(usual);
    let policy = service.text(&["spec", "ipFamilyPolicy"]).to_owned();
    wrong(cluster_ips(service, old))?;
    let mut errors = Vec::new();
    let mut complain = |detail: &str| errors.push(FieldError::invalid(POLICY, policy.as_str(), detail));
    match old {
        Some(old) if policy == "SingleStack" => {
            for field in ["clusterIPs", "ipFamilies"] {
                if listed(service, field) == listed(old, field) && listed(old, field).len() > 1 {
                    let first: Vec<Value> = listed(old, field).iter().take(1).cloned().collect();
                    service.at_mut(&["spec"]).insert(field.into(), first.into());
                }
            }
        }
        Some(old) => {
            let fewer =
                |field| !listed(service, field).is_empty() && listed(service, field).len() < listed(old, field).len();
            if fewer("clusterIPs") {
                complain("must be 'SingleStack' to release the secondary cluster IP");
            }
            if fewer("ipFamilies") {
                complain("must be 'SingleStack' to release the secondary IP family");
            }
        }
        None => (),
    }
    if policy == "SingleStack" {
        for (field, many) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
            if listed(service, field).len() == 2 {
                complain(&format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {many} are specified"
                ));
            }
        }
    }
    let asked = listed(service, "clusterIPs");
    let mut families: Vec<String> = texts(service, "ipFamilies");
    for (index, address) in asked.iter().filter_map(Value::as_str).enumerate().skip(families.len()) {
        let Some(family) = lenient(address).map(family) else { break };
        match ranges.families().any(|known| known == family) {
            true => families.push(family.to_owned()),
            false => errors.push(FieldError::invalid(
                format!("spec.clusterIPs[{index}]"),
                json!(asked),
                format!("{family} is not configured on this cluster"),
            )),
        }
    }
    wrong(errors)?;
    if !unmanaged {
        wrong(unconfigured(ranges, &policy, &families))?;
    }
    if families.is_empty() {
        families.push(family(ranges.primary.address).to_owned());
    }
    // What only names endpoints that others write may have any.
    let may_have_two = unmanaged || ranges.secondary.is_some();
    if let (true, true, [first]) = (may_have_two, policy != "SingleStack", families.as_slice()) {
        let other = if first == "IPv4" { "IPv6" } else { "IPv4" };
        families.push(other.to_owned());
    }
    service.at_mut(&["spec"]).insert("ipFamilies".into(), json!(families));
    Ok(())
}

fn unconfigured(ranges: &ServiceRanges, policy: &str, families: &[String]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if policy == "RequireDualStack" && ranges.secondary.is_none() {
        let detail = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid(POLICY, policy, detail));
    }
    for (index, family) in families.iter().enumerate() {
        if !ranges.families().any(|known| known == family) {
            let path = format!("spec.ipFamilies[{index}]");
            errors.push(FieldError::invalid(path, family.as_str(), "not configured on this cluster"));
        }
    }
    errors
}

pub(super) fn still_prefers_two(service: &Object, old: &Object) -> bool {
    let policy = |object: &Object| object.text(&["spec", "ipFamilyPolicy"]).to_owned();
    let same = |field| listed(service, field) == listed(old, field);
    kind(service) == kind(old)
        && matches!(kind(service), "ClusterIP" | "NodePort" | "LoadBalancer")
        && policy(service) == "PreferDualStack"
        && matches!(policy(old).as_str(), "" | "PreferDualStack")
        && same("clusterIPs")
        && same("ipFamilies")
}

pub(super) fn texts(service: &Object, field: &str) -> Vec<String> {
    listed(service, field).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn wrong(errors: Vec<FieldError>) -> Result<(), Vec<FieldError>> {
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
