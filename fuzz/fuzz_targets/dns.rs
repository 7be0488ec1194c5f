//! A packet from any pod: answered within what fits, by a response to that question, or not at all.
#![no_main]

use std::sync::{Arc, OnceLock};

use client::Key;
use dns::{Records, Zone};
use hickory_proto::op::{Message, MessageType};
use libfuzzer_sys::fuzz_target;
use parking_lot::RwLock;
use serde_json::json;
use tokio::runtime::Runtime;

/// What fits a UDP packet on any network.
const MAX_PAYLOAD: usize = 1232;

fuzz_target!(|packet: &[u8]| {
    static SERVED: OnceLock<(Runtime, Arc<RwLock<Zone>>)> = OnceLock::new();
    let (runtime, zone) = SERVED.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        (runtime, Arc::new(RwLock::new(zone())))
    });
    let Some(answer) = runtime.block_on(dns::respond(zone.clone(), packet)) else { return };
    assert!(answer.len() <= MAX_PAYLOAD, "{} bytes", answer.len());
    assert_eq!(answer.get(..2), packet.get(..2), "the response to another question");
    let response = Message::from_vec(&answer).expect("a response that can be read");
    assert_eq!(response.metadata.message_type, MessageType::Response);
});

/// A service with a cluster IP, one without, and aliases that lead out, to another and to themselves.
fn zone() -> Zone {
    let mut zone = Zone::new("cluster.local", 5);
    zone.set_namespace("default", true);
    let service =
        |name: &str, spec: serde_json::Value| json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
    let port = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
    let address = |number: usize| json!({"addresses": [format!("10.1.0.{number}")], "conditions": {"ready": true}, "hostname": format!("pod-{number}")});
    let endpoints: Vec<_> = (1..200).map(address).collect();
    let slice = json!({"metadata": {"name": "a"}, "addressType": "IPv4", "ports": port, "endpoints": endpoints});
    let services = [
        ("web", json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"], "ports": port}), false),
        ("many", json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": port}), true),
        ("out", json!({"type": "ExternalName", "externalName": "example.com"}), false),
        ("round", json!({"type": "ExternalName", "externalName": "round.default.svc.cluster.local"}), false),
        ("on", json!({"type": "ExternalName", "externalName": "web.default.svc.cluster.local"}), false),
    ];
    for (name, spec, has_endpoints) in services {
        let service = serde_json::from_value(service(name, spec)).expect("a service");
        let slice = Arc::new(serde_json::from_value(slice.clone()).expect("a slice"));
        let slices = if has_endpoints { vec![slice] } else { Vec::new() };
        zone.set_service(&Key::new("default", name), Some(Records::of(&service, &slices)));
    }
    zone
}
