//! Cluster addresses and node ports of services: chooses ones that look free. That each is given to one service only is
//! ensured by the write itself, which claims them in the store; one that comes too late chooses again.
//!
//! Upstream allocates before it validates, so what is said here is said first.

mod addresses;
mod families;
mod ports;

use std::ops::RangeInclusive;
use std::sync::Arc;

use api::field::FieldError;
use api::{ApiError, Object, ObjectExt as _};
use serde_json::{Value, json};

use self::addresses::Addresses;
use self::ports::Ports;
use super::Attributes;
use crate::server::ApiServer;
use crate::service_ranges::ServiceRanges;
use crate::strategy::service::{has_node_ports, is_addressed, kind, listed, needs_health_check, node_ports};

/// What the server is configured to hand out.
pub(crate) struct Allocator {
    ranges: ServiceRanges,
    ports: RangeInclusive<u16>,
}

impl Allocator {
    pub(crate) fn new(ranges: ServiceRanges, ports: RangeInclusive<u16>) -> Self {
        Self { ranges, ports }
    }
}

/// Gives a service the addresses and ports it needs, for a write that is only tried as well. The caches must be current.
pub(super) fn service(
    server: &Arc<ApiServer>,
    attributes: &Attributes<'_>,
    service: &mut Object,
) -> Result<(), ApiError> {
    let old = attributes.old;
    if let Some(old) = old {
        keep_allocated(service, old);
    }
    pair_cluster_ips(service, old);
    let refused = |service: &Object, errors: &[FieldError]| ApiError::invalid("", "Service", service.name(), errors);
    families::settle(&server.allocator.ranges, service, old).map_err(|errors| refused(service, &errors))?;
    Addresses::new(server, attributes.dry_run).give(service, old)?;
    Ports::new(server, attributes, service).give(service, old)
}

/// What was handed out earlier is kept where the client leaves it out.
fn keep_allocated(new: &mut Object, old: &Object) {
    if is_addressed(old) && is_addressed(new) {
        for field in ["clusterIP", "clusterIPs"] {
            let is_missing = match field {
                "clusterIP" => new.text(&["spec", field]).is_empty(),
                _ => listed(new, field).is_empty(),
            };
            if let (true, Some(value)) = (is_missing, old.at(&["spec", field])) {
                new.at_mut(&["spec"]).insert(field.into(), value.clone());
            }
        }
    }
    if wants_node_ports(old) && wants_node_ports(new) {
        let (before, now) = (node_ports(old), node_ports(new));
        // Ports are known by their names: nothing else of them need be as it was.
        let known: Vec<(String, i64)> =
            ports_of(old).map(|port| (port.text(&["name"]).to_owned(), number(port))).collect();
        for port in new.at_mut(&["spec"]).get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(port) = port.as_object_mut().filter(|port| number(port) == 0) else { continue };
            let kept =
                known.iter().rev().find(|(name, _)| name == port.text(&["name"])).map_or(0, |(_, number)| *number);
            if kept != 0 && !(before.contains(&kept) && now.contains(&kept)) {
                port.insert("nodePort".into(), kept.into());
            }
        }
    }
    let health_check = ["spec", "healthCheckNodePort"];
    if needs_health_check(old)
        && needs_health_check(new)
        && new.at(&health_check).is_none_or(|port| port == &json!(0))
        && let Some(port) = old.at(&health_check)
    {
        new.at_mut(&["spec"]).insert("healthCheckNodePort".into(), port.clone());
    }
}

/// Clients that know of one address only are understood: the list follows it.
fn pair_cluster_ips(new: &mut Object, old: Option<&Object>) {
    let one = new.text(&["spec", "clusterIP"]).to_owned();
    let follow = |new: &mut Object, list: Value| drop(new.at_mut(&["spec"]).insert("clusterIPs".into(), list));
    let Some(old) = old else {
        if !one.is_empty() && listed(new, "clusterIPs").is_empty() {
            follow(new, json!([one]));
        }
        return;
    };
    let before = old.text(&["spec", "clusterIP"]);
    if listed(new, "clusterIPs").is_empty() && !listed(old, "clusterIPs").is_empty() && before == one {
        follow(new, json!(listed(old, "clusterIPs")));
    }
    if before == one || listed(new, "clusterIPs") != listed(old, "clusterIPs") {
        return;
    }
    match !before.is_empty() && one.is_empty() {
        true => new.remove_at(&["spec", "clusterIPs"]),
        false => follow(new, json!([one])),
    }
}

/// It gets node ports where it names none.
fn wants_node_ports(service: &Object) -> bool {
    kind(service) == "NodePort"
        || (has_node_ports(service)
            && service.at(&["spec", "allocateLoadBalancerNodePorts"]) != Some(&Value::Bool(false)))
}

fn ports_of(service: &Object) -> impl Iterator<Item = &Object> {
    listed(service, "ports").iter().filter_map(Value::as_object)
}

/// The node port of a port; 0 for none.
fn number(port: &Object) -> i64 {
    port.get("nodePort").and_then(Value::as_i64).unwrap_or(0)
}
