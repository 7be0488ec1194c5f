//! Services. Addresses and node ports are handed out by admission, which knows what is taken.

use std::collections::HashSet;

use api::field::{FieldError, Path};
use api::validation::NameRule;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::{Strategy, items, items_mut, set_default};

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

pub(super) struct Services;

impl Strategy for Services {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["spec.clusterIP", "spec.type"]
    }

    fn name_rule(&self) -> NameRule {
        NameRule::Dns1035
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
        let path = Path::new("spec");
        let mut errors = Vec::new();
        let kind = object.text(&["spec", "type"]);
        if !TYPES.contains(&kind) {
            errors.push(FieldError::not_supported(&path.child("type"), kind, &TYPES));
        }
        let ports = items(object, &["spec", "ports"]);
        let headless = object.text(&["spec", "clusterIP"]) == "None";
        if ports.is_empty() && !headless && kind != "ExternalName" {
            errors.push(FieldError::required(&path.child("ports"), ""));
        }
        if kind == "ExternalName" && object.text(&["spec", "externalName"]).is_empty() {
            errors.push(FieldError::required(&path.child("externalName"), ""));
        }
        if !matches!(object.text(&["spec", "sessionAffinity"]), "ClientIP" | "None") {
            let value = object.text(&["spec", "sessionAffinity"]);
            errors.push(FieldError::not_supported(&path.child("sessionAffinity"), value, &["ClientIP", "None"]));
        }
        errors.extend(api::validation::labels(object.at(&["spec", "selector"]), &path.child("selector")));
        port_rules(&ports, &path.child("ports"), &mut errors);
        errors
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
}

fn port_rules(ports: &[&Object], path: &Path, errors: &mut Vec<FieldError>) {
    const RANGE: &str = "must be between 1 and 65535, inclusive";
    let (mut names, mut numbers) = (HashSet::new(), HashSet::new());
    for (index, port) in ports.iter().enumerate() {
        let at = path.index(index);
        let name = port.text(&["name"]);
        if name.is_empty() && ports.len() > 1 {
            errors.push(FieldError::required(&at.child("name"), ""));
        } else if !name.is_empty() {
            let found = api::validation::is_label(name).into_iter();
            errors.extend(found.map(|e| FieldError::invalid(&at.child("name"), name, e)));
            if !names.insert(name.to_owned()) {
                errors.push(FieldError::duplicate(&at.child("name"), name));
            }
        }
        let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
        if !(1..=65535).contains(&number) {
            errors.push(FieldError::invalid(&at.child("port"), number, RANGE));
        }
        match port.get("targetPort") {
            Some(Value::Number(target)) if !(1..=65535).contains(&target.as_i64().unwrap_or(0)) => {
                errors.push(FieldError::invalid(&at.child("targetPort"), target.clone(), RANGE));
            }
            Some(Value::String(target)) => {
                let found = api::validation::is_port_name(target).into_iter();
                errors.extend(found.map(|e| FieldError::invalid(&at.child("targetPort"), target.as_str(), e)));
            }
            _ => (),
        }
        let protocol = port.text(&["protocol"]);
        if !matches!(protocol, "TCP" | "UDP" | "SCTP") {
            errors.push(FieldError::not_supported(&at.child("protocol"), protocol, &["SCTP", "TCP", "UDP"]));
        }
        if !numbers.insert((protocol.to_owned(), number)) {
            errors.push(FieldError::duplicate(&at, Value::Object((*port).clone())));
        }
    }
}
