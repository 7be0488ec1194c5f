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
        if object.text(&["spec", "sessionAffinity"]) == "ClientIP" {
            set_default(object, &["spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"], 10800);
        }
        let kind = object.text(&["spec", "type"]).to_owned();
        if kind != "ExternalName" {
            set_default(object, &["spec", "internalTrafficPolicy"], "Cluster");
        }
        if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
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

    /// Addresses and ports given earlier are kept where the client leaves them out.
    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        if new.text(&["spec", "type"]) == "ExternalName" {
            return;
        }
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if let (None, Some(value)) = (new.at(&["spec", field]), old.at(&["spec", field])) {
                new.at_mut(&["spec"]).insert(field.into(), value.clone());
            }
        }
        if !matches!(new.text(&["spec", "type"]), "NodePort" | "LoadBalancer") {
            for port in items_mut(new.at_mut(&["spec"]), "ports") {
                port.remove("nodePort");
            }
            new.remove_at(&["spec", "externalTrafficPolicy"]);
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
        Vec::new()
    }

    fn validate_status(&self, new: &Object, _old: &Object) -> Vec<FieldError> {
        check(new, |at| load_balancer(&at.at(&["status", "loadBalancer"])))
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
    if health.number().unwrap_or(0) != 0 && !(kind == "LoadBalancer" && outside.text() == "Local") {
        health.invalid("may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'");
    }
    if kind != "ExternalName" {
        let inside = spec.field("internalTrafficPolicy");
        if inside.is_empty() { inside.required("") } else { inside.one_of(&POLICIES) }
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
            let shown = json!({
                "Name": "", "Protocol": protocol, "AppProtocol": null, "Port": number, "TargetPort": 0, "NodePort": 0,
            });
            port.complain(FieldError::duplicate(port.path(), shown));
        }
    }
}
