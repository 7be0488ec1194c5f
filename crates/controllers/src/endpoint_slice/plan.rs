//! Decides which slices to create, change and delete.
//!
//! Pods that resolve the Service's ports to the same numbers share slices of at most [`MAX_ENDPOINTS`]. An endpoint stays in the slice
//! it is in, so that one pod's change rewrites one slice.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::api::ObjectMeta;

use super::{MANAGED_BY, MANAGER, SERVICE_NAME};
use crate::service::{self, HEADLESS_LABEL};
use crate::{meta, pod};

const MAX_ENDPOINTS: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) create: Vec<EndpointSlice>,
    pub(super) update: Vec<EndpointSlice>,
    pub(super) delete: Vec<Arc<EndpointSlice>>,
}

/// `zone` answers the zone of a node.
pub(super) fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    existing: &[Arc<EndpointSlice>],
    zone: impl Fn(&str) -> Option<String>,
) -> Plan {
    let mut plan = Plan::default();
    let families = families(service, pods);
    plan.delete.extend(existing.iter().filter(|slice| !families.contains(&slice.address_type.as_str())).cloned());
    for family in families {
        let existing = existing.iter().filter(|slice| slice.address_type == family).cloned().collect();
        let groups = groups(service, pods, family, &zone);
        plan_family(&mut plan, service, family, groups, existing);
    }
    plan
}

/// Upstream's order: what the Service asks for; without it (headless, older objects) what the pods have, at least IPv4.
fn families(service: &Service, pods: &[Arc<Pod>]) -> Vec<&'static str> {
    let asked = service.spec.as_ref().and_then(|spec| spec.ip_families.as_ref()).filter(|all| !all.is_empty());
    if let Some(asked) = asked {
        return asked.iter().map(|family| if family == "IPv6" { "IPv6" } else { "IPv4" }).collect();
    }
    let has_v6 = pods.iter().any(|pod| service::addresses(pod).any(|address| service::is_of(address, "IPv6")));
    let has_v4 = pods.iter().any(|pod| service::addresses(pod).any(|address| service::is_of(address, "IPv4")));
    match (has_v4, has_v6) {
        (false, true) => vec!["IPv6"],
        (true, true) => vec!["IPv4", "IPv6"],
        _ => vec!["IPv4"],
    }
}

/// A set of ports in comparable form, with the endpoints that have it.
type Groups = BTreeMap<String, (Vec<EndpointPort>, Vec<Endpoint>)>;

fn groups(service: &Service, pods: &[Arc<Pod>], family: &str, zone: &impl Fn(&str) -> Option<String>) -> Groups {
    let mut groups = Groups::new();
    for pod in pods.iter().filter(|pod| service::can_be_endpoint(pod)) {
        let addresses: Vec<String> =
            service::addresses(pod).filter(|address| service::is_of(address, family)).map(str::to_owned).collect();
        let ports = endpoint_ports(service, pod);
        // Without a port that resolves, a pod serves nothing, unless the Service is about names only.
        let unreachable = ports.is_empty() && service::ports(service).next().is_some();
        if addresses.is_empty() || unreachable {
            continue;
        }
        let (_, endpoints) = groups.entry(ports_key(&ports)).or_insert_with(|| (ports, Vec::new()));
        endpoints.push(endpoint(service, pod, addresses, zone));
    }
    groups
}

fn ports_key(ports: &[EndpointPort]) -> String {
    let mut keys: Vec<_> = ports
        .iter()
        .map(|port| format!("{:?}/{:?}/{:?}/{:?}", port.name, port.port, port.protocol, port.app_protocol))
        .collect();
    keys.sort_unstable();
    keys.join(" ")
}

fn endpoint_ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service::ports(service).filter_map(|port| {
        Some(EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(service::find_port(pod, port)?),
            protocol: Some(service::protocol(port).to_owned()),
            app_protocol: port.app_protocol.clone(),
        })
    });
    ports.collect()
}

fn endpoint(service: &Service, pod: &Pod, addresses: Vec<String>, zone: impl Fn(&str) -> Option<String>) -> Endpoint {
    let node = Some(pod::node_name(pod)).filter(|node| !node.is_empty());
    Endpoint {
        addresses,
        conditions: Some(conditions(pod::is_ready(pod), meta::is_deleting(pod), service::publishes_not_ready(service))),
        hostname: service::hostname(pod, service).map(str::to_owned),
        node_name: node.map(str::to_owned),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..Default::default()
        }),
        zone: node.and_then(zone),
        ..Default::default()
    }
}

/// A terminating pod may still serve: proxies use it when nothing else is left.
fn conditions(serving: bool, terminating: bool, publish_not_ready: bool) -> EndpointConditions {
    EndpointConditions {
        ready: Some(publish_not_ready || (serving && !terminating)),
        serving: Some(serving),
        terminating: Some(terminating),
    }
}

fn plan_family(plan: &mut Plan, service: &Service, family: &str, groups: Groups, existing: Vec<Arc<EndpointSlice>>) {
    let mut slices: Vec<Draft> = existing.into_iter().map(Draft::from).collect();
    for (key, (ports, endpoints)) in groups {
        place(&mut slices, &key, &ports, endpoints);
    }
    // A Service without endpoints keeps one empty slice, so that consumers know it was looked at.
    if slices.iter().all(|draft| draft.endpoints.is_empty()) {
        match slices.first_mut() {
            Some(first) => first.keep = true,
            None => slices.push(Draft { keep: true, ..Draft::default() }),
        }
    }
    for draft in slices {
        let keep = draft.keep || !draft.endpoints.is_empty();
        match (draft.old, keep) {
            (None, true) => plan.create.push(slice(service, family, None, draft.ports, draft.endpoints)),
            (None, false) => (),
            (Some(old), false) => plan.delete.push(old),
            (Some(old), true) => {
                let wanted = slice(service, family, Some(&old), draft.ports, draft.endpoints);
                if wanted != *old {
                    plan.update.push(wanted);
                }
            }
        }
    }
}

/// A slice in the making.
#[derive(Default)]
struct Draft {
    old: Option<Arc<EndpointSlice>>,
    /// Whose endpoints it held.
    held: HashSet<String>,
    key: Option<String>,
    ports: Vec<EndpointPort>,
    endpoints: Vec<Endpoint>,
    keep: bool,
}

impl From<Arc<EndpointSlice>> for Draft {
    fn from(old: Arc<EndpointSlice>) -> Self {
        let ports = old.ports.clone().unwrap_or_default();
        let held = old.endpoints.iter().flatten().filter_map(target).map(str::to_owned).collect();
        Self { held, key: Some(ports_key(&ports)), ports, endpoints: Vec::new(), keep: false, old: Some(old) }
    }
}

fn target(endpoint: &Endpoint) -> Option<&str> {
    endpoint.target_ref.as_ref()?.uid.as_deref()
}

fn place(slices: &mut Vec<Draft>, key: &str, ports: &[EndpointPort], endpoints: Vec<Endpoint>) {
    let mut homeless = Vec::new();
    for endpoint in endpoints {
        let held = |draft: &&mut Draft| {
            draft.key.as_deref() == Some(key) && target(&endpoint).is_some_and(|uid| draft.held.contains(uid))
        };
        match slices.iter_mut().find(held) {
            Some(home) => home.endpoints.push(endpoint),
            None => homeless.push(endpoint),
        }
    }
    for endpoint in homeless {
        let room = |draft: &&mut Draft| draft.key.as_deref() == Some(key) && draft.endpoints.len() < MAX_ENDPOINTS;
        let fullest = slices.iter_mut().filter(room).max_by_key(|draft| draft.endpoints.len());
        if let Some(home) = fullest {
            home.endpoints.push(endpoint);
            continue;
        }
        // An empty slice of other ports (the placeholder) is taken over rather than replaced.
        let reusable = |draft: &&mut Draft| draft.held.is_empty() && draft.endpoints.is_empty();
        if let Some(home) = slices.iter_mut().find(reusable) {
            home.key = Some(key.to_owned());
            home.ports = ports.to_vec();
            home.endpoints.push(endpoint);
            continue;
        }
        slices.push(Draft {
            key: Some(key.to_owned()),
            ports: ports.to_vec(),
            endpoints: vec![endpoint],
            ..Draft::default()
        });
    }
}

/// A slice as it should be, on top of what the old one has (its name, version and foreign annotations).
fn slice(
    service: &Service,
    family: &str,
    old: Option<&EndpointSlice>,
    ports: Vec<EndpointPort>,
    mut endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    endpoints.sort_by(|a, b| a.addresses.cmp(&b.addresses));
    let mut labels = meta::labels(service).clone();
    labels.remove(HEADLESS_LABEL);
    labels.insert(SERVICE_NAME.into(), meta::name(service).to_owned());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    if service::is_headless(service) {
        labels.insert(HEADLESS_LABEL.into(), String::new());
    }
    let base = match old {
        Some(old) => old.metadata.clone(),
        None => ObjectMeta {
            generate_name: Some(format!("{}-", meta::name(service))),
            namespace: service.metadata.namespace.clone(),
            ..Default::default()
        },
    };
    let owners = Some(vec![meta::controller_reference(service)]);
    let unsorted = old.is_some_and(|old| {
        let mut known = old.endpoints.clone().unwrap_or_default();
        known.sort_by(|a, b| a.addresses.cmp(&b.addresses));
        known == endpoints
    });
    EndpointSlice {
        metadata: ObjectMeta { labels: Some(labels), owner_references: owners, ..base },
        address_type: family.to_owned(),
        // Absent and empty lists mean the same; keeping the old form avoids a write that changes nothing.
        endpoints: match old {
            Some(old) if unsorted => old.endpoints.clone(),
            _ => Some(endpoints),
        },
        ports: match old {
            Some(old) if ports_key(old.ports.as_deref().unwrap_or_default()) == ports_key(&ports) => old.ports.clone(),
            _ => Some(ports),
        },
    }
}

#[cfg(test)]
mod tests;
