//! Which endpoints of a service get traffic on this node.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::slot::MAX_ENDPOINTS;

#[derive(Clone, Copy, Default)]
struct State {
    ready: bool,
    serving: bool,
    terminating: bool,
    local: bool,
}

/// Endpoints of one port, in a stable order.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Selected {
    pub(crate) cluster: Vec<SocketAddrV4>,
    /// Those on this node.
    pub(crate) local: Vec<SocketAddrV4>,
}

/// Ready endpoints; if there is none, those that terminate but still serve, so that a rolling update or a drained node loses nothing.
/// The rule holds for the cluster and for this node separately.
pub(crate) fn select(slices: &[Arc<EndpointSlice>], port_name: &str, protocol: &str, node: &str) -> Selected {
    let mut known: BTreeMap<SocketAddrV4, State> = BTreeMap::new();
    for slice in slices.iter().filter(|slice| slice.address_type == "IPv4") {
        for port in slice.ports.iter().flatten() {
            let named = port.name.as_deref().unwrap_or_default() == port_name;
            let same_protocol = port.protocol.as_deref().unwrap_or("TCP") == protocol;
            let number = port.port.and_then(|number| u16::try_from(number).ok());
            let Some(number) = number.filter(|_| named && same_protocol) else { continue };
            for endpoint in slice.endpoints.iter().flatten() {
                let conditions = endpoint.conditions.clone().unwrap_or_default();
                let ready = conditions.ready.unwrap_or(true);
                let state = State {
                    ready,
                    serving: conditions.serving.unwrap_or(ready),
                    terminating: conditions.terminating.unwrap_or(false),
                    local: endpoint.node_name.as_deref() == Some(node),
                };
                let address = endpoint.addresses.first().and_then(|address| address.parse::<Ipv4Addr>().ok());
                if let Some(address) = address {
                    // While a pod moves between slices it is in two; the better word counts.
                    let entry = known.entry(SocketAddrV4::new(address, number)).or_default();
                    if !entry.ready {
                        *entry = state;
                    }
                }
            }
        }
    }
    Selected { cluster: pick(&known, |_| true), local: pick(&known, |state| state.local) }
}

fn pick(known: &BTreeMap<SocketAddrV4, State>, wanted: impl Fn(&State) -> bool) -> Vec<SocketAddrV4> {
    let those = |condition: fn(&State) -> bool| -> Vec<SocketAddrV4> {
        let matching = known.iter().filter(|(_, state)| wanted(state) && condition(state));
        matching.map(|(address, _)| *address).take(MAX_ENDPOINTS).collect()
    };
    let ready = those(|state| state.ready);
    if ready.is_empty() { those(|state| state.serving && state.terminating) } else { ready }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort};

    use super::*;

    /// "a" is ready, "a!" not ready, "a~" terminating but serving, "a-" terminating; "a*" is on this node.
    fn endpoint(text: &str) -> Endpoint {
        let last = text.chars().next().unwrap() as u8 - b'a' + 1;
        let (terminating, ready) = (text.contains(['~', '-']), !text.contains(['!', '~', '-']));
        let serving = ready || text.contains('~');
        let conditions =
            EndpointConditions { ready: Some(ready), serving: Some(serving), terminating: Some(terminating) };
        Endpoint {
            addresses: vec![format!("10.0.0.{last}")],
            conditions: Some(conditions),
            node_name: Some(if text.contains('*') { "here" } else { "there" }.into()),
            ..Default::default()
        }
    }

    fn slice(endpoints: &str, port_name: &str) -> Arc<EndpointSlice> {
        let port = EndpointPort { name: Some(port_name.into()), port: Some(80), ..Default::default() };
        Arc::new(EndpointSlice {
            address_type: "IPv4".into(),
            endpoints: Some(endpoints.split_whitespace().map(endpoint).collect()),
            ports: Some(vec![port]),
            ..Default::default()
        })
    }

    #[track_caller]
    fn check(endpoints: &str, want_cluster: &str, want_local: &str) {
        let name = |address: &SocketAddrV4| char::from(b'a' + address.ip().octets()[3] - 1).to_string();
        let names = |addresses: &[SocketAddrV4]| addresses.iter().map(name).collect::<Vec<_>>().join(" ");
        let selected = select(&[slice(endpoints, "http"), slice("z*", "other")], "http", "TCP", "here");
        assert_eq!(
            (names(&selected.cluster).as_str(), names(&selected.local).as_str()),
            (want_cluster, want_local),
            "{endpoints}"
        );
    }

    #[test]
    fn ready_endpoints_first_then_those_that_terminate_but_serve() {
        check("b a*", "a b", "a");
        check("a! b", "b", "");
        check("a~ b-", "a", "");
        check("a b~*", "a", "b");
        check("a!* b-*", "", "");
        check("", "", "");
        check("a! a", "a", "");
    }

    #[test]
    fn other_ports_protocols_and_families_are_not_ours() {
        assert_eq!(select(&[slice("a", "http")], "https", "TCP", "here"), Selected::default());
        assert_eq!(select(&[slice("a", "http")], "http", "UDP", "here"), Selected::default());
        let mut six = EndpointSlice::clone(&slice("a", "http"));
        six.address_type = "IPv6".into();
        assert_eq!(select(&[Arc::new(six)], "http", "TCP", "here"), Selected::default());
    }
}
