//! What a service must be.

use std::collections::HashSet;

use api::field::FieldError;
use api::validation::{is_label, is_qualified_name, is_subdomain};
use api::{Object, addresses};
use serde_json::Value;

use super::{is_headless, is_reachable, kind, listed, needs_health_check};
use crate::strategy::check::{At, PROTOCOLS, check};

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const FAMILY_POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];
pub(super) const POLICIES: [&str; 2] = ["Cluster", "Local"];
const BALANCED_ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MODE: &str = "service.kubernetes.io/topology-mode";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// All rules, for a new service or beside what it was.
pub(super) fn service(object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    check(object, |at| {
        let (spec, annotations) = (at.field("spec"), at.at(&["metadata", "annotations"]));
        let (hints, mode) = (annotations.field(HINTS), annotations.field(MODE));
        if hints.exists() && mode.exists() && hints.text() != mode.text() {
            let detail = format!("must match annotations[{HINTS}] when both are specified");
            mode.called(annotations.path().key(MODE)).invalid(detail);
        }
        let ports = spec.each("ports");
        if ports.is_empty() && !is_headless(object) && kind(object) != "ExternalName" {
            spec.field("ports").required("");
        }
        by_type(object, &spec);
        let mut names = HashSet::new();
        for port in &ports {
            port_rules(port, ports.len() > 1, &mut names);
        }
        spec.field("selector").labels();
        let affinity = spec.field("sessionAffinity");
        affinity.needed_one_of(&["ClientIP", "None"]);
        affinity_config(&spec, affinity.text());
        spec.extend(cluster_ips(object, old));
        let known = old.map(|old| listed(old, "externalIPs")).unwrap_or_default();
        for address in spec.each("externalIPs") {
            if address.ip_unless(known) {
                address.endpoint_ip();
            }
        }
        spec.field("type").needed_one_of(&TYPES);
        port_numbers(object, &ports);
        source_ranges(object, old, &spec, &annotations);
        let allocate = spec.field("allocateLoadBalancerNodePorts");
        if allocate.exists() && kind(object) != "LoadBalancer" {
            allocate.forbidden(BALANCED_ONLY);
        }
        let class = spec.field("loadBalancerClass");
        match (class.exists(), kind(object)) {
            (true, "LoadBalancer") => class.named(is_qualified_name),
            (true, _) => class.forbidden(BALANCED_ONLY),
            _ => (),
        }
        traffic(object, &spec);
        spec.field("trafficDistribution").one_of_if_set(&["PreferClose", "PreferSameZone", "PreferSameNode"]);
    })
}

fn by_type(object: &Object, spec: &At<'_>) {
    let kind = kind(object);
    if matches!(kind, "LoadBalancer" | "NodePort") && is_headless(object) {
        for first in spec.each("clusterIPs") {
            first.invalid(format!("may not be set to 'None' for {kind} services"));
        }
    }
    if kind != "ExternalName" {
        return;
    }
    for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        let place = spec.field(field);
        if if field == "ipFamilyPolicy" { place.exists() } else { !place.is_empty() } {
            place.forbidden("may not be set for ExternalName services");
        }
    }
    let name = spec.field("externalName");
    // A dot at the end says that nothing follows.
    match name.text().strip_suffix('.').unwrap_or(name.text()) {
        "" => name.required(""),
        bare => {
            for detail in is_subdomain(bare) {
                name.complain(FieldError::invalid(name.path(), bare, detail));
            }
        }
    }
}

fn port_rules<'a>(port: &At<'a>, needs_name: bool, names: &mut HashSet<&'a str>) {
    let name = port.field("name");
    if name.is_empty() && needs_name {
        name.required("");
    } else if !name.is_empty() {
        name.named(is_label);
        if !names.insert(name.text()) {
            name.duplicate();
        }
    }
    port.field("port").port_number();
    port.field("protocol").needed_one_of(&PROTOCOLS);
    port.field("targetPort").port();
    if port.field("appProtocol").exists() {
        port.field("appProtocol").named(is_qualified_name);
    }
}

/// Ports are told apart by number and protocol, on nodes as well.
fn port_numbers(object: &Object, ports: &[At<'_>]) {
    let number = |port: &At<'_>, field: &str| port.field(field).number().unwrap_or(0);
    let numbered = || ports.iter().filter(|port| number(port, "nodePort") != 0);
    if kind(object) == "ClusterIP" {
        for port in numbered() {
            port.field("nodePort").forbidden("may not be used when `type` is 'ClusterIP'");
        }
    }
    let mut seen = HashSet::new();
    for port in numbered() {
        if !seen.insert((port.field("protocol").text(), number(port, "nodePort"))) {
            port.field("nodePort").duplicate();
        }
    }
    seen.clear();
    for port in ports {
        let (protocol, number) = (port.field("protocol").text(), number(port, "port"));
        if !seen.insert((protocol, number)) {
            // Shown as upstream keeps it.
            let mut error = FieldError::duplicate(port.path(), Value::Null);
            error.value = format!(
                "{{\"Name\":\"\",\"Protocol\":{protocol:?},\"AppProtocol\":null,\"Port\":{number},\"TargetPort\":0,\"NodePort\":0}}"
            );
            port.complain(error);
        }
    }
}

fn affinity_config(spec: &At<'_>, affinity: &str) {
    const LONGEST: i64 = 86400;
    let config = spec.field("sessionAffinityConfig");
    let seconds = config.at(&["clientIP", "timeoutSeconds"]);
    match affinity {
        "None" if config.exists() => config.forbidden(format!("must not be set when session affinity is {affinity}")),
        "ClientIP" if !(1..=LONGEST).contains(&seconds.number().unwrap_or(0)) => {
            seconds.invalid(format!("must be greater than 0 and less than {LONGEST}"));
        }
        _ => (),
    }
}

/// Addresses and their families: each well formed, and together of one mind.
pub(crate) fn cluster_ips(object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    if kind(object) == "ExternalName" {
        return Vec::new();
    }
    check(object, |at| {
        let spec = at.field("spec");
        let (all, families) = (spec.field("clusterIPs"), spec.each("ipFamilies"));
        let addresses = all.items();
        match (spec.field("clusterIP").text(), addresses.first()) {
            ("", None) => (),
            ("", Some(_)) => all.invalid("must be empty when `clusterIP` is not specified"),
            (_, None) => all.required(""),
            (one, Some(first)) if first.text() != one => all.invalid("first value must match `clusterIP`"),
            _ => (),
        }
        let mut seen = HashSet::new();
        for family in &families {
            family.one_of(&FAMILIES);
            if !seen.insert(family.text()) {
                family.duplicate();
            }
        }
        spec.field("ipFamilyPolicy").one_of_if_set(&FAMILY_POLICIES);
        let known = old.map(|old| listed(old, "clusterIPs")).unwrap_or_default();
        let mut is_wrong = false;
        for (index, address) in addresses.iter().enumerate() {
            if index == 0 && address.text() == "None" {
                if addresses.len() > 1 {
                    is_wrong = true;
                    all.invalid("'None' must be the first and only value");
                }
                continue;
            }
            is_wrong |= !address.ip_unless(known);
        }
        if addresses.len() > 2 {
            all.invalid("may only hold up to 2 values");
        }
        if is_wrong {
            return;
        }
        if addresses.len() > 1 && !is_dual_stack(&addresses) {
            all.invalid("may specify no more than one IP for each IP family");
        }
        if is_headless(object) {
            return;
        }
        for (index, (address, family)) in addresses.iter().zip(&families).enumerate() {
            let is_v6 = addresses::lenient(address.text()).is_some_and(|address| address.to_canonical().is_ipv6());
            if matches!((family.text(), is_v6), ("IPv4", true) | ("IPv6", false)) {
                let family = family.text();
                address.invalid(format!("expected an {family} value as indicated by `ipFamilies[{index}]`"));
            }
        }
    })
}

/// One address of each family at least.
fn is_dual_stack(addresses: &[At<'_>]) -> bool {
    let is_v6 = |at: &At<'_>| addresses::lenient(at.text()).is_some_and(|address| address.to_canonical().is_ipv6());
    addresses.iter().any(is_v6) && !addresses.iter().all(is_v6)
}

/// From where the balancer may be reached, in the field or in the annotation that came before it.
fn source_ranges(object: &Object, old: Option<&Object>, spec: &At<'_>, annotations: &At<'_>) {
    let (ranges, annotation) = (spec.field("loadBalancerSourceRanges"), annotations.field(SOURCE_RANGES));
    let is_balanced = kind(object) == "LoadBalancer";
    if !ranges.is_empty() {
        // Upstream writes this path with a capital.
        let place = spec.path().child("LoadBalancerSourceRanges");
        if !is_balanced {
            ranges.called(place.clone()).forbidden(BALANCED_ONLY);
        }
        let known = old.map(|old| listed(old, "loadBalancerSourceRanges")).unwrap_or_default();
        let known: Vec<&str> = known.iter().filter_map(Value::as_str).map(str::trim).collect();
        for (index, range) in ranges.items().iter().enumerate() {
            range_rule(range, &place.index(index), &known);
        }
    } else if annotation.exists() {
        let place = annotations.path().key(SOURCE_RANGES);
        if !is_balanced {
            annotation.called(place.clone()).forbidden(BALANCED_ONLY);
        }
        let before = old.and_then(|old| old.get("metadata")?.get("annotations")?.get(SOURCE_RANGES));
        if before != Some(annotation.value()) && !annotation.text().trim().is_empty() {
            for range in annotation.text().split(',') {
                if let Some(detail) = addresses::range_complaint(range.trim()) {
                    annotation.complain(FieldError::invalid(&place, range.trim(), detail));
                }
            }
        }
    }
}

fn range_rule(range: &At<'_>, place: &api::field::Path, known: &[&str]) {
    let text = range.text().trim();
    if let Some(detail) = addresses::range_complaint(text).filter(|_| !known.contains(&text)) {
        range.complain(FieldError::invalid(place, text, detail));
    }
}

fn traffic(object: &Object, spec: &At<'_>) {
    let (outside, health) = (spec.field("externalTrafficPolicy"), spec.field("healthCheckNodePort"));
    match (is_reachable(object), outside.is_empty()) {
        (true, true) => outside.required(""),
        (true, false) => outside.one_of(&POLICIES),
        (false, false) => outside.invalid("may only be set for externally-accessible services"),
        (false, true) => (),
    }
    match (needs_health_check(object), health.number().unwrap_or(0)) {
        (false, 0) => (),
        (false, _) => {
            health.invalid("may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'");
        }
        (true, 0) => health.required(""),
        (true, _) => health.port_number(),
    }
    let inside = spec.field("internalTrafficPolicy");
    match inside.exists() {
        true => inside.one_of(&POLICIES),
        false if matches!(kind(object), "NodePort" | "LoadBalancer" | "ClusterIP") => inside.required(""),
        false => (),
    }
}

/// The addresses a load balancer answers at.
pub(super) fn status(new: &Object, old: &Object) -> Vec<FieldError> {
    let known = super::items(old, &["status", "loadBalancer", "ingress"]);
    let known: Vec<Value> = known.iter().filter_map(|ingress| ingress.get("ip").cloned()).collect();
    check(new, |at| {
        let balancers = at.at(&["status", "loadBalancer", "ingress"]);
        if kind(new) != "LoadBalancer" && !balancers.is_empty() {
            balancers.forbidden("may only be used when `spec.type` is 'LoadBalancer'");
            return;
        }
        for balancer in balancers.items() {
            let (address, mode) = (balancer.field("ip"), balancer.field("ipMode"));
            if !address.is_empty() {
                address.ip_unless(&known);
            }
            match (mode.exists(), address.is_empty()) {
                (false, false) => mode.required("must be specified when `ip` is set"),
                (true, true) => mode.forbidden("may not be specified when `ip` is not set"),
                (true, false) => mode.one_of(&["Proxy", "VIP"]),
                (false, true) => (),
            }
            let name = balancer.field("hostname");
            if !name.is_empty() {
                name.named(is_subdomain);
                name.not_an_address();
            }
        }
    })
}
