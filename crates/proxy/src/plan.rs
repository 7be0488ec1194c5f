//! What one service needs in the table.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use nft::Ipv4Prefix;

use crate::endpoints::{self, Selected};
use crate::slot::{Scope, ServiceKey, Slot, Value};

/// Services that another proxy takes care of.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
const DEFAULT_AFFINITY_S: u32 = 10_800;

/// The node the proxy runs on.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    /// The node's own pods: their traffic keeps its source address.
    pub pod_cidr: Option<Ipv4Prefix>,
}

/// `slices` are those of this service. Services without an IPv4 cluster address need nothing.
pub fn plan(service: &Service, slices: &[Arc<EndpointSlice>], node: &Node) -> Vec<(Slot, Value)> {
    let mut plan = Vec::new();
    let Some(spec) = &service.spec else { return plan };
    let cluster_ips = cluster_ips(spec);
    let other_proxy = service.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(PROXY_NAME));
    if cluster_ips.is_empty() || other_proxy || spec.type_.as_deref() == Some("ExternalName") {
        return plan;
    }
    plan.extend(cluster_ips.iter().map(|address| (Slot::ClusterIp(*address), Value::Present)));
    for port in spec.ports.iter().flatten() {
        let Some(planner) = Planner::new(service, spec, port, slices, node) else { continue };
        planner.plan(&cluster_ips, &mut plan);
    }
    plan
}

fn cluster_ips(spec: &ServiceSpec) -> Vec<Ipv4Addr> {
    let all = spec.cluster_ips.iter().flatten();
    let addresses: Vec<_> = all.filter_map(|address| address.parse().ok()).collect();
    if !addresses.is_empty() {
        return addresses;
    }
    spec.cluster_ip.iter().filter_map(|address| address.parse().ok()).collect()
}

/// One port of a service.
struct Planner<'a> {
    service: &'a Service,
    spec: &'a ServiceSpec,
    protocol: u8,
    port: u16,
    node_port: Option<u16>,
    endpoints: Selected,
    affinity_s: u32,
}

impl<'a> Planner<'a> {
    /// `None` for a protocol or number that cannot be on the wire.
    fn new(
        service: &'a Service,
        spec: &'a ServiceSpec,
        port: &ServicePort,
        slices: &[Arc<EndpointSlice>],
        node: &Node,
    ) -> Option<Self> {
        let name = port.protocol.as_deref().unwrap_or("TCP");
        let protocol = match name {
            "TCP" => 6,
            "UDP" => 17,
            "SCTP" => 132,
            _ => return None,
        };
        let endpoints = endpoints::select(slices, port.name.as_deref().unwrap_or_default(), name, &node.name);
        Some(Self {
            service,
            spec,
            protocol,
            port: u16::try_from(port.port).ok()?,
            node_port: port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0),
            endpoints,
            affinity_s: affinity_s(spec),
        })
    }

    fn plan(&self, cluster_ips: &[Ipv4Addr], plan: &mut Vec<(Slot, Value)>) {
        let Selected { cluster, local } = &self.endpoints;
        let internal_local = self.spec.internal_traffic_policy.as_deref() == Some("Local");
        for address in cluster_ips {
            let key = self.key(*address);
            match internal_local {
                false => self.everywhere(key, cluster, Slot::Reject(key), plan),
                // As upstream: the cluster has an answer, so a refusal would be a lie.
                true if !cluster.is_empty() => self.everywhere(key, local, Slot::Drop(key), plan),
                true => self.everywhere(key, &[], Slot::Reject(key), plan),
            }
        }
        let external_local = self.spec.external_traffic_policy.as_deref() == Some("Local");
        for key in self.external_keys() {
            // Pods and the node itself are inside: they get the cluster's endpoints whatever the policy for outsiders.
            self.everywhere(key, cluster, Slot::Reject(key), plan);
            if external_local && !cluster.is_empty() {
                self.forward(Scope::ExternalLocal, key, local, Slot::DropExternal(key), plan);
            }
        }
        self.firewall(plan);
        plan.extend(cluster.iter().chain(local).map(|to| (Slot::Hairpin(*to.ip()), Value::Present)));
    }

    fn everywhere(&self, key: ServiceKey, to: &[SocketAddrV4], none: Slot, plan: &mut Vec<(Slot, Value)>) {
        self.forward(Scope::Cluster, key, to, none, plan);
    }

    fn forward(&self, scope: Scope, key: ServiceKey, to: &[SocketAddrV4], none: Slot, plan: &mut Vec<(Slot, Value)>) {
        if to.is_empty() {
            plan.push((none, Value::Present));
            return;
        }
        let class = Value::Class { endpoints: to.len() as u32, affinity_s: self.affinity_s };
        plan.push((Slot::Service(scope, key), class));
        plan.extend((0..).zip(to).map(|(index, to)| (Slot::Endpoint(scope, key, index), Value::To(*to))));
        if self.affinity_s != 0 {
            plan.extend(to.iter().map(|to| (Slot::Sticky(scope, key, *to), Value::Present)));
        }
    }

    fn key(&self, address: Ipv4Addr) -> ServiceKey {
        ServiceKey { address, protocol: self.protocol, port: self.port }
    }

    fn external_keys(&self) -> Vec<ServiceKey> {
        let external = self.spec.external_ips.iter().flatten().filter_map(|address| address.parse().ok());
        let mut keys: Vec<_> = external.chain(self.ingress_ips()).map(|address| self.key(address)).collect();
        if let Some(port) = self.node_port {
            keys.push(ServiceKey { address: Ipv4Addr::UNSPECIFIED, protocol: self.protocol, port });
        }
        keys
    }

    /// Addresses of load balancers that hand packets on as they are; the others' packets come to the node ports.
    fn ingress_ips(&self) -> Vec<Ipv4Addr> {
        let status = self.service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let ingress = status.and_then(|status| status.ingress.as_ref()).into_iter().flatten();
        let vips = ingress.filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"));
        vips.filter_map(|ingress| ingress.ip.as_ref()?.parse().ok()).collect()
    }

    fn firewall(&self, plan: &mut Vec<(Slot, Value)>) {
        let ranges = self.spec.load_balancer_source_ranges.iter().flatten();
        let ranges: Vec<Ipv4Prefix> = ranges.filter_map(|range| range.trim().parse().ok()).collect();
        let everyone = ranges.iter().any(|range| range.length() == 0);
        if ranges.is_empty() || everyone {
            return;
        }
        for key in self.ingress_ips().into_iter().map(|address| self.key(address)) {
            plan.push((Slot::Firewalled(key), Value::Present));
            plan.extend(disjoint(&ranges).into_iter().map(|range| (Slot::Allowed(key, range), Value::Present)));
        }
    }
}

fn affinity_s(spec: &ServiceSpec) -> u32 {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return 0;
    }
    let client_ip = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = client_ip.and_then(|client_ip| client_ip.timeout_seconds);
    seconds
        .and_then(|seconds| u32::try_from(seconds).ok())
        .filter(|seconds| (1..=86_400).contains(seconds))
        .unwrap_or(DEFAULT_AFFINITY_S)
}

/// The kernel takes no ranges that overlap; of two that do, the wider holds the other.
fn disjoint(ranges: &[Ipv4Prefix]) -> Vec<Ipv4Prefix> {
    let wider = |range: &Ipv4Prefix| {
        let holds = |other: &&Ipv4Prefix| other.length() < range.length() && other.contains(range.address());
        ranges.iter().any(|other| holds(&other))
    };
    let mut disjoint: Vec<_> = ranges.iter().filter(|range| !wider(range)).copied().collect();
    disjoint.sort_unstable();
    disjoint.dedup();
    disjoint
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(spec: &str) -> Service {
        serde_json::from_str(spec).unwrap()
    }

    /// One slice of port 8080 named "http", endpoints on "here" and "there" by address.
    fn slice(here: &[&str], there: &[&str]) -> Arc<EndpointSlice> {
        let on =
            |node: &'static str| move |address: &&str| serde_json::json!({ "addresses": [address], "nodeName": node });
        let endpoints: Vec<_> = here.iter().map(on("here")).chain(there.iter().map(on("there"))).collect();
        let slice = serde_json::json!({
            "addressType": "IPv4", "endpoints": endpoints, "ports": [{ "name": "http", "port": 8080 }], "metadata": {}
        });
        Arc::new(serde_json::from_value(slice).unwrap())
    }

    fn text((slot, value): &(Slot, Value)) -> String {
        let key = |key: &ServiceKey| format!("{}:{}", key.address, key.port);
        let scope = |scope: &Scope| if *scope == Scope::Cluster { "" } else { "local " };
        let place = match slot {
            Slot::Service(s, k) => format!("{}service {}", scope(s), key(k)),
            Slot::Endpoint(s, k, n) => format!("{}endpoint {}#{n}", scope(s), key(k)),
            Slot::Sticky(s, k, to) => format!("{}sticky {} {to}", scope(s), key(k)),
            Slot::Reject(k) => format!("reject {}", key(k)),
            Slot::Drop(k) => format!("drop {}", key(k)),
            Slot::DropExternal(k) => format!("drop-external {}", key(k)),
            Slot::ClusterIp(address) => format!("cluster-ip {address}"),
            Slot::Hairpin(address) => format!("hairpin {address}"),
            Slot::Firewalled(k) => format!("firewalled {}", key(k)),
            Slot::Allowed(k, prefix) => format!("allowed {} {prefix}", key(k)),
        };
        match value {
            Value::Present => place,
            Value::Class { endpoints, affinity_s: 0 } => format!("{place} = {endpoints}"),
            Value::Class { endpoints, affinity_s } => format!("{place} = {endpoints} for {affinity_s}s"),
            Value::To(to) => format!("{place} = {to}"),
        }
    }

    /// `more` is spliced into the spec of a service with port 80.
    #[track_caller]
    fn check(more: &str, slice: Arc<EndpointSlice>, want: &[&str]) {
        let spec = format!(
            r#"{{ "metadata": {{}}, "spec": {{ "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"],
               "ports": [{{ "name": "http", "port": 80, "nodePort": 0 }}] {more} }} }}"#
        );
        check_service(&service(&spec), slice, want);
    }

    #[track_caller]
    fn check_service(service: &Service, slice: Arc<EndpointSlice>, want: &[&str]) {
        let node = Node { name: "here".into(), pod_cidr: None };
        let mut got: Vec<_> = plan(service, &[slice], &node).iter().map(text).collect();
        got.sort_unstable();
        got.dedup();
        let mut want = want.to_vec();
        want.sort_unstable();
        assert_eq!(got, want);
    }

    #[test]
    fn a_cluster_ip_leads_to_every_endpoint() {
        check(
            "",
            slice(&["10.1.0.1"], &["10.1.1.1"]),
            &[
                "cluster-ip 10.96.0.5",
                "service 10.96.0.5:80 = 2",
                "endpoint 10.96.0.5:80#0 = 10.1.0.1:8080",
                "endpoint 10.96.0.5:80#1 = 10.1.1.1:8080",
                "hairpin 10.1.0.1",
                "hairpin 10.1.1.1",
            ],
        );
    }

    #[test]
    fn nobody_to_answer_is_a_refusal() {
        check("", slice(&[], &[]), &["cluster-ip 10.96.0.5", "reject 10.96.0.5:80"]);
    }

    #[test]
    fn services_without_an_address_need_nothing() {
        let headless =
            r#"{ "metadata": {}, "spec": { "clusterIP": "None", "clusterIPs": ["None"], "ports": [{ "port": 80 }] } }"#;
        check_service(&service(headless), slice(&[], &[]), &[]);
        let external = r#"{ "metadata": {}, "spec": { "type": "ExternalName", "externalName": "a.b", "ports": [{ "port": 80 }] } }"#;
        check_service(&service(external), slice(&[], &[]), &[]);
        let other = r#"{ "metadata": { "labels": { "service.kubernetes.io/service-proxy-name": "x" } },
            "spec": { "clusterIP": "10.96.0.5", "ports": [{ "port": 80 }] } }"#;
        check_service(&service(other), slice(&[], &[]), &[]);
    }

    #[test]
    fn internal_traffic_policy_local_keeps_to_this_node() {
        let local = r#", "internalTrafficPolicy": "Local""#;
        check(
            local,
            slice(&["10.1.0.1"], &["10.1.1.1"]),
            &[
                "cluster-ip 10.96.0.5",
                "service 10.96.0.5:80 = 1",
                "endpoint 10.96.0.5:80#0 = 10.1.0.1:8080",
                "hairpin 10.1.0.1",
                "hairpin 10.1.1.1",
            ],
        );
        let elsewhere = ["cluster-ip 10.96.0.5", "drop 10.96.0.5:80", "hairpin 10.1.1.1"];
        check(local, slice(&[], &["10.1.1.1"]), &elsewhere);
    }

    #[test]
    fn external_addresses_follow_the_external_policy_only_for_outsiders() {
        let local = r#", "externalTrafficPolicy": "Local", "externalIPs": ["192.0.2.7"]"#;
        check(
            local,
            slice(&["10.1.0.1"], &["10.1.1.1"]),
            &[
                "cluster-ip 10.96.0.5",
                "service 10.96.0.5:80 = 2",
                "endpoint 10.96.0.5:80#0 = 10.1.0.1:8080",
                "endpoint 10.96.0.5:80#1 = 10.1.1.1:8080",
                "service 192.0.2.7:80 = 2",
                "endpoint 192.0.2.7:80#0 = 10.1.0.1:8080",
                "endpoint 192.0.2.7:80#1 = 10.1.1.1:8080",
                "local service 192.0.2.7:80 = 1",
                "local endpoint 192.0.2.7:80#0 = 10.1.0.1:8080",
                "hairpin 10.1.0.1",
                "hairpin 10.1.1.1",
            ],
        );
        check(
            local,
            slice(&[], &["10.1.1.1"]),
            &[
                "cluster-ip 10.96.0.5",
                "service 10.96.0.5:80 = 1",
                "endpoint 10.96.0.5:80#0 = 10.1.1.1:8080",
                "service 192.0.2.7:80 = 1",
                "endpoint 192.0.2.7:80#0 = 10.1.1.1:8080",
                "drop-external 192.0.2.7:80",
                "hairpin 10.1.1.1",
            ],
        );
    }

    #[test]
    fn node_ports_load_balancers_affinity_and_source_ranges() {
        let spec = r#"{ "metadata": {}, "spec": { "type": "LoadBalancer", "clusterIP": "10.96.0.5",
            "ports": [{ "name": "http", "port": 80, "nodePort": 30080 }], "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 60 } },
            "loadBalancerSourceRanges": ["10.0.0.0/8", "10.1.0.0/16", "192.0.2.0/24"] },
            "status": { "loadBalancer": { "ingress": [{ "ip": "203.0.113.9" }, { "ip": "203.0.113.10", "ipMode": "Proxy" }] } } }"#;
        let one = |address: &str| {
            [
                format!("service {address} = 1 for 60s"),
                format!("endpoint {address}#0 = 10.1.0.1:8080"),
                format!("sticky {address} 10.1.0.1:8080"),
            ]
        };
        let mut want = [one("10.96.0.5:80"), one("203.0.113.9:80"), one("0.0.0.0:30080")].concat();
        want.extend(
            [
                "cluster-ip 10.96.0.5",
                "hairpin 10.1.0.1",
                "firewalled 203.0.113.9:80",
                "allowed 203.0.113.9:80 10.0.0.0/8",
                "allowed 203.0.113.9:80 192.0.2.0/24",
            ]
            .map(str::to_owned),
        );
        let want: Vec<_> = want.iter().map(String::as_str).collect();
        check_service(&service(spec), slice(&["10.1.0.1"], &[]), &want);
    }
}
