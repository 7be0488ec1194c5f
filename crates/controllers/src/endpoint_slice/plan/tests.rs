//! Tables for endpoint conditions, ports and the packing of slices.

use serde_json::json;

use super::*;

fn service(extra: serde_json::Value) -> Service {
    let mut spec = json!({ "selector": { "app": "web" }, "ipFamilies": ["IPv4"],
        "ports": [{ "name": "http", "port": 80, "targetPort": "web" }] });
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let meta = json!({ "name": "web", "namespace": "default", "uid": "s", "labels": { "team": "a" } });
    serde_json::from_value(json!({ "metadata": meta, "spec": spec })).unwrap()
}

fn web_pod(index: usize, ready: bool, terminating: bool, port: i32) -> Arc<Pod> {
    let (name, ip) = (format!("web-{index}"), format!("10.0.{}.{}", index / 200, index % 200 + 1));
    Arc::new(
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "default", "uid": name,
                "deletionTimestamp": terminating.then_some("2026-01-01T00:00:00Z") },
            "spec": { "nodeName": "node", "containers": [{ "name": "c", "ports": [{ "name": "web", "containerPort": port }] }] },
            "status": { "phase": "Running", "podIPs": [{ "ip": ip }],
                "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
        }))
        .unwrap(),
    )
}

fn no_zone(_: &str) -> Option<String> {
    None
}

/// As the server would store it.
fn stored(slices: Vec<EndpointSlice>) -> Vec<Arc<EndpointSlice>> {
    let name = |(index, mut slice): (usize, EndpointSlice)| {
        slice.metadata.name.get_or_insert_with(|| format!("web-{index}"));
        Arc::new(slice)
    };
    slices.into_iter().enumerate().map(name).collect()
}

#[test]
fn readiness_and_termination_become_conditions() {
    let check = |serving, terminating, publish, want| {
        let EndpointConditions { ready, serving: s, terminating: t } = conditions(serving, terminating, publish);
        assert_eq!(
            (ready.unwrap(), s.unwrap(), t.unwrap()),
            (want, serving, terminating),
            "{serving} {terminating} {publish}"
        );
    };
    check(true, false, false, true);
    check(false, false, false, false);
    check(true, true, false, false);
    check(false, false, true, true);
    check(true, true, true, true);
}

#[test]
fn a_slice_names_pod_node_port_and_service() {
    let made = plan(&service(json!({})), &[web_pod(1, true, false, 8080)], &[], no_zone);
    let [slice] = made.create.as_slice() else { panic!("one slice, not {:?}", made.create) };
    let port = &slice.ports.as_ref().unwrap()[0];
    assert_eq!((port.name.as_deref(), port.port, port.protocol.as_deref()), (Some("http"), Some(8080), Some("TCP")));
    let endpoint = &slice.endpoints.as_ref().unwrap()[0];
    assert_eq!(endpoint.addresses, ["10.0.0.2"]);
    assert_eq!(endpoint.node_name.as_deref(), Some("node"));
    assert_eq!(target(endpoint), Some("web-1"));
    let labels = meta::labels(slice);
    assert_eq!(
        (labels[SERVICE_NAME].as_str(), labels[MANAGED_BY].as_str(), labels["team"].as_str()),
        ("web", MANAGER, "a")
    );
    assert_eq!(slice.metadata.generate_name.as_deref(), Some("web-"));
}

#[test]
fn a_named_port_that_differs_between_pods_makes_two_slices() {
    let pods = [web_pod(1, true, false, 8080), web_pod(2, true, false, 9090)];
    assert_eq!(plan(&service(json!({})), &pods, &[], no_zone).create.len(), 2);
}

#[test]
fn a_service_without_pods_has_one_empty_slice_that_is_later_filled() {
    let service = service(json!({}));
    let empty = stored(plan(&service, &[], &[], no_zone).create);
    assert_eq!((empty.len(), empty[0].endpoints.as_deref()), (1, Some(&[][..])));
    assert!(plan(&service, &[], &empty, no_zone).update.is_empty());
    let filled = plan(&service, &[web_pod(1, true, false, 80)], &empty, no_zone);
    assert_eq!((filled.create.len(), filled.update.len(), filled.delete.len()), (0, 1, 0));
}

#[test]
fn slices_hold_a_hundred_and_one_change_rewrites_one() {
    let service = service(json!({}));
    let mut pods: Vec<_> = (0..250).map(|index| web_pod(index, true, false, 80)).collect();
    let slices = stored(plan(&service, &pods, &[], no_zone).create);
    let mut sizes: Vec<_> = slices.iter().map(|slice| slice.endpoints.as_ref().unwrap().len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [50, 100, 100]);
    let settled = plan(&service, &pods, &slices, no_zone);
    assert_eq!((settled.create.len(), settled.update.len(), settled.delete.len()), (0, 0, 0));
    pods[7] = web_pod(7, false, false, 80);
    pods.remove(200);
    let changed = plan(&service, &pods, &slices, no_zone);
    assert_eq!((changed.create.len(), changed.update.len(), changed.delete.len()), (0, 2, 0));
    let gone = plan(&service, &[], &slices, no_zone);
    assert_eq!((gone.create.len(), gone.update.len(), gone.delete.len()), (0, 1, 2));
}

#[test]
fn finished_pods_and_pods_without_address_are_left_out() {
    let mut finished = (*web_pod(1, true, false, 80)).clone();
    finished.status.as_mut().unwrap().phase = Some("Succeeded".into());
    let mut bare = (*web_pod(2, true, false, 80)).clone();
    bare.status.as_mut().unwrap().pod_ips = None;
    let made = plan(&service(json!({})), &[Arc::new(finished), Arc::new(bare)], &[], no_zone);
    assert_eq!(made.create[0].endpoints.as_deref(), Some(&[][..]));
}
