//! Services. Addresses and node ports are handed out by admission, which knows what is taken.

use std::collections::HashSet;

use api::field::FieldError;
use api::validation::{NameRule, is_label, is_qualified_name, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::check::{At, PROTOCOLS, check};
use super::networking::load_balancer;
use super::{Strategy, items, items_mut, set_default};

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

pub(super) struct Services;

impl Strategy for Services {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["spec.clusterIP", "spec.type"]
    }

    fn name_rule(&self) -> NameRule {
        NameRule::Label
    }

    fn default(&self, object: &mut Object) {
        set_default(object, &["spec", "sessionAffinity"], "None");
        set_default(object, &["spec", "type"], "ClusterIP");
        if object.text(&["spec", "sessionAffinity"]) == "None" {
            object.remove_at(&["spec", "sessionAffinityConfig"]);
        }
        if object.text(&["spec", "sessionAffinity"]) == "ClientIP" {
            set_default(object, &["spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"], 10800);
        }
        let kind = object.text(&["spec", "type"]).to_owned();
        if kind != "ExternalName" {
            set_default(object, &["spec", "internalTrafficPolicy"], "Cluster");
        }
        if is_reachable(object) {
            set_default(object, &["spec", "externalTrafficPolicy"], "Cluster");
        }
        if kind == "LoadBalancer" {
            set_default(object, &["spec", "allocateLoadBalancerNodePorts"], true);
        }
        for port in items_mut(object.at_mut(&["spec"]), "ports") {
            set_default(port, &["protocol"], "TCP");
            let number = port.get("port").cloned().unwrap_or_default();
            if port.get("targetPort").is_none_or(|v| v == &json!(0) || v == "") {
                port.insert("targetPort".into(), number);
            }
        }
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.insert("status".into(), json!({"loadBalancer": {}}));
    }

    /// What was handed out earlier is kept where the client leaves it out, and given back where the type has no use for it,
    /// unless the client asks for another just then: that is an error.
    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        let needed = |object: &Object, field: &str| match field {
            "clusterIP" | "clusterIPs" | "ipFamilies" | "ipFamilyPolicy" | "internalTrafficPolicy" => {
                is_addressed(object)
            }
            "healthCheckNodePort" => needs_health_check(object),
            "externalTrafficPolicy" => is_reachable(object),
            _ => object.text(&["spec", "type"]) == "LoadBalancer",
        };
        for field in TYPED {
            let place = ["spec", field];
            match (needed(old, field), needed(new, field)) {
                (true, true)
                    if new.at(&place).is_none() && !field.starts_with("load") && !field.starts_with("alloc") =>
                {
                    if let Some(value) = old.at(&place) {
                        new.at_mut(&["spec"]).insert(field.into(), value.clone());
                    }
                }
                (true, false) if new.at(&place) == old.at(&place) => {
                    new.remove_at(&place);
                }
                _ => (),
            }
        }
        if new.text(&["spec", "type"]) != "LoadBalancer" {
            new.insert("status".into(), json!({"loadBalancer": {}}));
        }
        keep_node_ports(new, old);
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| rules(&at.field("spec")))
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let before = old.text(&["spec", "clusterIP"]);
        let now = new.text(&["spec", "clusterIP"]);
        let typed = |o: &Object| o.text(&["spec", "type"]) != "ExternalName";
        if typed(new) && typed(old) && !before.is_empty() && now != before {
            let detail = "may not change once set";
            return vec![FieldError::invalid("spec.clusterIPs[0]", json!([now]), detail)];
        }
        let health_check = |object: &Object| object.at(&["spec", "healthCheckNodePort"]).cloned();
        if needs_health_check(old) && needs_health_check(new) && health_check(new) != health_check(old) {
            return vec![FieldError::forbidden("spec.healthCheckNodePort", "field is immutable")];
        }
        Vec::new()
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| load_balancer(&at.at(&["status", "loadBalancer"])))
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        told(object)
    }
}

/// What is worth telling of a service that is valid.
fn told(service: &Object) -> Vec<String> {
    let text = |field: &str| service.text(&["spec", field]);
    let outside = !items_of(service, "externalIPs").is_empty();
    let (headless, elsewhere) = (text("clusterIP") == "None", text("type") == "ExternalName");
    let hints = service.at(&["metadata", "annotations", "service.kubernetes.io/topology-aware-hints"]).is_some();
    let rules = [
        (
            hints,
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
        ),
        (headless && !text("loadBalancerIP").is_empty(), "spec.loadBalancerIP is ignored for headless services"),
        (headless && outside, "spec.externalIPs is ignored for headless services"),
        (headless && text("sessionAffinity") != "None", "spec.SessionAffinity is ignored for headless services"),
        (
            outside && !headless && !elsewhere,
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
        ),
        (outside && elsewhere, "spec.externalIPs is ignored when spec.type is \"ExternalName\""),
        (
            !elsewhere && !text("externalName").is_empty(),
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        ),
        (
            text("trafficDistribution") == "PreferClose",
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
        ),
    ];
    rules.into_iter().filter(|(holds, _)| *holds).map(|(_, why)| why.to_owned()).collect()
}

fn items_of<'a>(service: &'a Object, field: &str) -> &'a [Value] {
    service.at(&["spec", field]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Fields that only some types of service have.
const TYPED: [&str; 9] = [
    "clusterIP",
    "clusterIPs",
    "ipFamilies",
    "ipFamilyPolicy",
    "internalTrafficPolicy",
    "healthCheckNodePort",
    "externalTrafficPolicy",
    "allocateLoadBalancerNodePorts",
    "loadBalancerClass",
];

fn is_addressed(service: &Object) -> bool {
    service.text(&["spec", "type"]) != "ExternalName"
}

fn has_node_ports(service: &Object) -> bool {
    matches!(service.text(&["spec", "type"]), "NodePort" | "LoadBalancer")
}

/// From outside of the cluster.
fn is_reachable(service: &Object) -> bool {
    let by_address = || !service.at(&["spec", "externalIPs"]).and_then(Value::as_array).is_none_or(Vec::is_empty);
    has_node_ports(service) || (service.text(&["spec", "type"]) == "ClusterIP" && by_address())
}

/// Load balancers ask each node whether it has endpoints of its own.
pub(crate) fn needs_health_check(service: &Object) -> bool {
    service.text(&["spec", "type"]) == "LoadBalancer" && service.text(&["spec", "externalTrafficPolicy"]) == "Local"
}

fn keep_node_ports(new: &mut Object, old: &Object) {
    let node_ports = |service: &Object| -> Vec<Option<Value>> {
        items(service, &["spec", "ports"]).iter().map(|port| port.get("nodePort").cloned()).collect()
    };
    if !has_node_ports(new) {
        if has_node_ports(old) && node_ports(new) == node_ports(old) {
            items_mut(new.at_mut(&["spec"]), "ports").for_each(|port| drop(port.remove("nodePort")));
        }
        return;
    }
    let known: Vec<(Value, Value)> = items(old, &["spec", "ports"])
        .into_iter()
        .filter_map(|port| Some((json!([port.get("port"), port.get("protocol")]), port.get("nodePort")?.clone())))
        .collect();
    for port in items_mut(new.at_mut(&["spec"]), "ports") {
        let id = json!([port.get("port"), port.get("protocol")]);
        if let (None, Some((_, number))) = (port.get("nodePort"), known.iter().find(|(known, _)| *known == id)) {
            port.insert("nodePort".into(), number.clone());
        }
    }
}

fn rules(spec: &At<'_>) {
    let kind = spec.field("type").text();
    let headless = spec.field("clusterIP").text() == "None";
    let ports = spec.each("ports");
    if ports.is_empty() && !headless && kind != "ExternalName" {
        spec.field("ports").required("");
    }
    if kind == "ExternalName" {
        for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if !spec.field(field).is_empty() || (field == "clusterIPs" && !spec.field("clusterIP").is_empty()) {
                spec.field(field).forbidden("may not be set for ExternalName services");
            }
        }
        let name = spec.field("externalName");
        match name.text() {
            "" => name.required(""),
            text => {
                let bare = text.strip_suffix('.').unwrap_or(text);
                for detail in is_subdomain(bare) {
                    name.complain(FieldError::invalid(name.path(), text, detail));
                }
            }
        }
    }
    port_rules(&ports, headless);
    spec.field("selector").labels();
    let affinity = spec.field("sessionAffinity");
    affinity.needed_one_of(&["ClientIP", "None"]);
    affinity_config(spec, affinity.text());
    for address in spec.each("externalIPs") {
        address.reachable_ip();
    }
    spec.field("type").needed_one_of(&TYPES);
    let numbered = matches!(kind, "NodePort" | "LoadBalancer");
    for port in ports.iter().filter(|_| !numbered) {
        if port.field("nodePort").number().unwrap_or(0) != 0 {
            port.field("nodePort").forbidden(format!("may not be used when `type` is '{kind}'"));
        }
    }
    load_balancer_fields(spec, kind);
    traffic(spec, kind, numbered);
    spec.field("trafficDistribution").one_of_if_set(&["PreferClose", "PreferSameZone", "PreferSameNode"]);
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

fn load_balancer_fields(spec: &At<'_>, kind: &str) {
    let ranges = spec.field("loadBalancerSourceRanges");
    if !ranges.is_empty() {
        let place = spec.path().child("LoadBalancerSourceRanges");
        if kind != "LoadBalancer" {
            ranges.called(place.clone()).forbidden("may only be used when `type` is 'LoadBalancer'");
        }
        for (index, range) in ranges.items().iter().enumerate() {
            range.called(place.index(index)).cidr();
        }
    }
    let class = spec.field("loadBalancerClass");
    if class.exists() {
        match kind {
            "LoadBalancer" => class.named(is_qualified_name),
            _ => class.forbidden("may only be used when `type` is 'LoadBalancer'"),
        }
    }
    let allocate = spec.field("allocateLoadBalancerNodePorts");
    if allocate.exists() && kind != "LoadBalancer" {
        allocate.forbidden("may only be used when `type` is 'LoadBalancer'");
    }
}

fn traffic(spec: &At<'_>, kind: &str, numbered: bool) {
    const POLICIES: [&str; 2] = ["Cluster", "Local"];
    let outside = spec.field("externalTrafficPolicy");
    let reachable = numbered || (kind == "ClusterIP" && !spec.field("externalIPs").is_empty());
    match (reachable, outside.is_empty()) {
        (true, true) => outside.required(""),
        (true, false) => outside.one_of(&POLICIES),
        (false, false) => outside.invalid("may only be set for externally-accessible services"),
        (false, true) => (),
    }
    let health = spec.field("healthCheckNodePort");
    if !(0..=65535).contains(&health.number().unwrap_or(0)) {
        health.port_number();
    } else if health.number().unwrap_or(0) != 0 && !(kind == "LoadBalancer" && outside.text() == "Local") {
        health.invalid("may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'");
    }
    if kind != "ExternalName" {
        let inside = spec.field("internalTrafficPolicy");
        if inside.exists() { inside.one_of(&POLICIES) } else { inside.required("") }
    }
}

fn port_rules(ports: &[At<'_>], headless: bool) {
    let mut names = HashSet::new();
    for port in ports {
        let name = port.field("name");
        if name.is_empty() && ports.len() > 1 {
            name.required("");
        } else if !name.is_empty() {
            name.named(is_label);
            if !names.insert(name.text()) {
                name.duplicate();
            }
        }
        port.field("port").port_number();
        port.field("protocol").needed_one_of(&PROTOCOLS);
        let target = port.field("targetPort");
        if !headless || target.exists() {
            target.port();
        }
        if port.field("appProtocol").exists() {
            port.field("appProtocol").named(is_qualified_name);
        }
    }
    let mut numbers = HashSet::new();
    for port in ports {
        let (number, protocol) = (port.field("port").number().unwrap_or(0), port.field("protocol").text());
        if !numbers.insert((protocol, number)) {
            // Shown as upstream keeps it.
            let mut error = FieldError::duplicate(port.path(), Value::Null);
            error.value = format!(
                "{{\"Name\":\"\",\"Protocol\":{protocol:?},\"AppProtocol\":null,\"Port\":{number},\"TargetPort\":0,\"NodePort\":0}}"
            );
            port.complain(error);
        }
    }
}
