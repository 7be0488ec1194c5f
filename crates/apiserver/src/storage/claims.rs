//! What a service holds that no other may: cluster addresses and node ports, each a key of its own in the store.
//!
//! The keys are put and deleted in the transaction that writes the service, on condition that they are free. So two
//! API servers can never give the same address away, and nothing is left behind by one that dies. An address is an
//! IPAddress object, as upstream has it.

use std::collections::BTreeMap;

use api::{Object, ObjectExt as _};
use bytes::Bytes;
use serde_json::{Value, json};

/// The only resource whose objects claim anything.
pub(crate) const SERVICES: &str = "/registry/services/specs/";
pub(crate) const ADDRESSES: &str = "/registry/ipaddresses/";
pub(crate) const NODE_PORTS: &str = "/registry/ranges/servicenodeports/";
/// Marks the addresses that come and go with their service.
const MANAGED_BY: (&str, &str) = ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");

/// The keys a service holds, with what is stored under them. The values differ each time: they tell when they were made.
pub(crate) fn of(service: &Object) -> BTreeMap<String, Bytes> {
    let (namespace, name) = (service.namespace(), service.name());
    let mut claims = BTreeMap::new();
    for address in service.at(&["spec", "clusterIPs"]).and_then(Value::as_array).into_iter().flatten() {
        // `None` is a headless service's.
        let Some(address) = address.as_str().and_then(api::addresses::lenient) else { continue };
        claims.insert(format!("{ADDRESSES}{address}"), ip_address(&address, namespace, name));
    }
    for number in node_ports(service) {
        claims.insert(format!("{NODE_PORTS}{number}"), format!("{namespace}/{name}").into());
    }
    claims
}

/// The numbers a service holds on every node: no other has one of them, for whatever protocol.
pub(crate) fn node_ports(service: &Object) -> Vec<i64> {
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array).into_iter().flatten();
    let ports = ports.filter_map(|port| port.get("nodePort"));
    let all = ports.chain(service.at(&["spec", "healthCheckNodePort"]));
    all.filter_map(Value::as_i64).filter(|number| *number > 0).collect()
}

fn ip_address(address: &std::net::IpAddr, namespace: &str, name: &str) -> Bytes {
    let family = api::addresses::family(*address);
    let (managed_by, allocator) = MANAGED_BY;
    let now = crate::handlers::now();
    let object = json!({
        "kind": "IPAddress", "apiVersion": "networking.k8s.io/v1",
        "metadata": {
            "name": address.to_string(), "uid": uuid::Uuid::new_v4().to_string(), "creationTimestamp": now,
            "labels": {"ipaddress.kubernetes.io/ip-family": family, managed_by: allocator},
            "managedFields": [{
                "manager": "kube-apiserver", "operation": "Update", "apiVersion": "networking.k8s.io/v1", "time": now,
                "fieldsType": "FieldsV1", "fieldsV1": {
                    "f:metadata": {"f:labels": {
                        ".": {}, "f:ipaddress.kubernetes.io/ip-family": {}, "f:ipaddress.kubernetes.io/managed-by": {},
                    }},
                    "f:spec": {"f:parentRef": {".": {}, "f:name": {}, "f:namespace": {}, "f:resource": {}}},
                },
            }],
        },
        "spec": {"parentRef": {"resource": "services", "namespace": namespace, "name": name}},
    });
    object.as_object().map(api::object::canonical).unwrap_or_default().into()
}

/// The service (`namespace/name`) that an address is held for; `None` for one that a user made for something else.
pub(crate) fn holder(ip_address: &Object) -> Option<String> {
    let (managed_by, allocator) = MANAGED_BY;
    if ip_address.at(&["metadata", "labels"])?.get(managed_by)? != allocator {
        return None;
    }
    let parent = |field| ip_address.at(&["spec", "parentRef", field]).and_then(Value::as_str);
    Some(format!("{}/{}", parent("namespace")?, parent("name")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_claims_its_addresses_and_node_ports() {
        check(json!({"clusterIPs": ["10.96.0.7"]}), "/registry/ipaddresses/10.96.0.7");
        check(json!({"clusterIPs": ["None"]}), "");
        check(json!({"healthCheckNodePort": 30009}), "/registry/ranges/servicenodeports/30009");
        check(json!({"type": "ExternalName"}), "");
        check(
            json!({"clusterIPs": ["10.96.0.7"], "ports": [{"nodePort": 30001}, {"protocol": "UDP", "nodePort": 30001}, {"port": 1}]}),
            "/registry/ipaddresses/10.96.0.7 /registry/ranges/servicenodeports/30001",
        );
    }

    #[track_caller]
    fn check(spec: Value, want: &str) {
        let service = json!({"metadata": {"namespace": "a", "name": "b"}, "spec": spec});
        let claims = of(service.as_object().unwrap());
        assert_eq!(claims.keys().map(String::as_str).collect::<Vec<_>>().join(" "), want);
        for (_, value) in claims.iter().filter(|(key, _)| key.starts_with(ADDRESSES)) {
            let address: Object = serde_json::from_slice(value).unwrap();
            assert_eq!(holder(&address).as_deref(), Some("a/b"));
        }
    }
}
