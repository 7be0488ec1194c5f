//! Services. Addresses and node ports are handed out by admission, which knows what is taken.

mod changes;
mod on_read;
mod validation;
mod warnings;

use api::field::FieldError;
use api::validation::NameRule;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

pub(crate) use self::on_read::default_on_read;
pub(crate) use self::validation::cluster_ips;
use super::{Strategy, items, items_mut, set_default};

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
        match object.text(&["spec", "sessionAffinity"]) {
            "None" => object.remove_at(&["spec", "sessionAffinityConfig"]),
            "ClientIP" => set_default(object, &["spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"], 10800),
            _ => (),
        }
        for port in items_mut(object.at_mut(&["spec"]), "ports") {
            set_default(port, &["protocol"], "TCP");
            let number = port.get("port").cloned().unwrap_or_default();
            if port.get("targetPort").is_none_or(|v| v == &json!(0) || v == "") {
                port.insert("targetPort".into(), number);
            }
        }
        if is_reachable(object) {
            set_default(object, &["spec", "externalTrafficPolicy"], "Cluster");
        }
        if matches!(kind(object), "ClusterIP" | "NodePort" | "LoadBalancer") {
            set_default(object, &["spec", "internalTrafficPolicy"], "Cluster");
        }
        if kind(object) != "LoadBalancer" {
            return;
        }
        set_default(object, &["spec", "allocateLoadBalancerNodePorts"], true);
        if object.at(&["status", "loadBalancer", "ingress"]).is_some() {
            for ingress in items_mut(object.at_mut(&["status", "loadBalancer"]), "ingress") {
                if !ingress.text(&["ip"]).is_empty() {
                    set_default(ingress, &["ipMode"], "VIP");
                }
            }
        }
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn prepare_for_create(&self, object: &mut Object) {
        object.insert("status".into(), json!({"loadBalancer": {}}));
        drop_unread(object);
    }

    /// What the type has no use for any more is given back, unless the client asks for another just then: that is an error.
    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        changes::drop_type_dependent(new, old);
        drop_unread(new);
    }

    /// New services are judged alone, changed ones beside what they were.
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        validation::service(object, None)
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = changes::rules(new, old);
        errors.extend(validation::service(new, Some(old)));
        errors
    }

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        validation::status(new, old)
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        warnings::of(object)
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, _old: &Object) -> Vec<String> {
        match subresource {
            "" => warnings::of(new),
            "status" => warnings::of_status(new),
            _ => Vec::new(),
        }
    }
}

/// Upstream stores a policy for what only names another host, but nobody ever reads it.
fn drop_unread(service: &mut Object) {
    let policy = service.text(&["spec", "internalTrafficPolicy"]);
    if kind(service) == "ExternalName" && validation::POLICIES.contains(&policy) {
        service.remove_at(&["spec", "internalTrafficPolicy"]);
    }
}

pub(crate) fn kind(service: &Object) -> &str {
    service.text(&["spec", "type"])
}

/// It has an address, or says that it has none: it is more than a name for another host.
pub(crate) fn is_addressed(service: &Object) -> bool {
    kind(service) != "ExternalName"
}

pub(crate) fn has_node_ports(service: &Object) -> bool {
    matches!(kind(service), "NodePort" | "LoadBalancer")
}

/// The list at a field of the spec.
pub(crate) fn listed<'a>(service: &'a Object, field: &str) -> &'a [Value] {
    service.at(&["spec", field]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// It has no address, only endpoints.
fn is_headless(service: &Object) -> bool {
    matches!(listed(service, "clusterIPs"), [only] if only == "None")
}

/// Its endpoints are the pods that it selects; those of others are written by somebody else.
pub(crate) fn selects(service: &Object) -> bool {
    service.at(&["spec", "selector"]).and_then(Value::as_object).is_some_and(|labels| !labels.is_empty())
}

/// From outside of the cluster.
fn is_reachable(service: &Object) -> bool {
    has_node_ports(service) || (kind(service) == "ClusterIP" && !listed(service, "externalIPs").is_empty())
}

/// Load balancers ask each node whether it has endpoints of its own.
pub(crate) fn needs_health_check(service: &Object) -> bool {
    kind(service) == "LoadBalancer" && service.text(&["spec", "externalTrafficPolicy"]) == "Local"
}

/// The numbers of its node ports that are set.
pub(crate) fn node_ports(service: &Object) -> Vec<i64> {
    let ports = items(service, &["spec", "ports"]);
    ports.iter().filter_map(|port| port.get("nodePort")?.as_i64()).filter(|number| *number != 0).collect()
}
