//! Tables for where daemon pods run and how they are rolled.

use serde_json::json;

use super::*;

fn set(strategy: serde_json::Value) -> DaemonSet {
    let template = json!({ "metadata": { "labels": { "app": "d" } },
        "spec": { "containers": [{ "name": "c", "image": "i" }], "nodeSelector": { "disk": "ssd" } } });
    serde_json::from_value(json!({ "metadata": { "name": "d", "namespace": "default", "uid": "d" },
        "spec": { "selector": { "matchLabels": { "app": "d" } }, "template": template, "updateStrategy": strategy } }))
    .unwrap()
}

/// "name", "name:taint:effect", "-name" for one whose labels do not match.
fn node(text: &str) -> Arc<Node> {
    let mut parts = text.split(':');
    let name = parts.next().unwrap();
    let taints: Vec<_> =
        parts.next().map(|key| json!({ "key": key, "effect": parts.next().unwrap() })).into_iter().collect();
    let disk = if name.starts_with('-') { "hdd" } else { "ssd" };
    Arc::new(
        serde_json::from_value(
            json!({ "metadata": { "name": name.trim_start_matches('-'), "labels": { "disk": disk } },
            "spec": { "taints": taints } }),
        )
        .unwrap(),
    )
}

/// "node=hash", then `+` ready, `x` failed, `d` terminating.
fn daemon(text: &str) -> Arc<Pod> {
    let (node, rest) = text.split_once('=').unwrap();
    let hash = rest.trim_end_matches(['+', 'x', 'd']);
    let ready = if rest.contains('+') { "True" } else { "False" };
    let phase = if rest.contains('x') { "Failed" } else { "Running" };
    let mut pod = pod_for(&set(json!({})), node, hash);
    pod.metadata.uid = Some(text.into());
    pod.metadata.name = Some(text.into());
    pod.metadata.deletion_timestamp =
        rest.contains('d').then(|| serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    let since = "2026-01-01T00:00:00Z";
    pod.status = serde_json::from_value(json!({ "phase": phase,
        "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": since }] }))
    .unwrap();
    Arc::new(pod)
}

#[track_caller]
fn check(strategy: serde_json::Value, nodes: &str, pods: &str, want: &str) {
    let nodes: Vec<_> = nodes.split_whitespace().map(node).collect();
    let pods: Vec<_> = pods.split_whitespace().map(daemon).collect();
    let now = "2026-01-02T00:00:00Z".parse().unwrap();
    let plan = plan(&set(strategy), &nodes, &by_node(&pods), "new", now);
    let names = |pods: &[Arc<Pod>]| pods.iter().map(|pod| meta::name(&**pod).to_owned()).collect::<Vec<_>>().join(",");
    let failed: Vec<_> = plan.failed.into_iter().map(|(_, pod)| pod).collect();
    let text = format!("+{} -{} !{}", plan.create.join(","), names(&plan.delete), names(&failed));
    assert_eq!(text, want, "{pods:?}", pods = pods.len());
}

#[test]
fn every_suitable_node_has_one_pod() {
    check(json!({}), "a b -c", "a=new+", "+b - !");
    check(json!({}), "a:mine:NoSchedule b", "", "+b - !");
    check(json!({}), "a:node.kubernetes.io/unschedulable:NoSchedule", "", "+a - !");
    check(json!({}), "a:mine:NoSchedule", "a=new+", "+ - !");
    check(json!({}), "a:mine:NoExecute", "a=new+", "+ -a=new+ !");
    check(json!({}), "-a", "a=new+", "+ -a=new+ !");
    check(json!({}), "a", "a=newx", "+ - !a=newx");
    check(json!({}), "a", "a=newd", "+ - !");
}

#[test]
fn rolling_keeps_within_max_unavailable() {
    let one = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1 } });
    check(one.clone(), "a b c", "a=was+ b=was+ c=was+", "+ -a=was+ !");
    check(one.clone(), "a b c", "a=new b=was+ c=was+", "+ - !");
    check(one.clone(), "a b c", "a=new+ b=was+ c=was+", "+ -b=was+ !");
    check(one, "a b c", "a=new+ b=was c=was+", "+ -b=was !");
    check(json!({ "type": "OnDelete" }), "a", "a=was+", "+ - !");
}

#[test]
fn surging_brings_the_new_pod_first() {
    let surge = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } });
    check(surge.clone(), "a b", "a=was+ b=was+", "+a - !");
    check(surge.clone(), "a b", "a=was+ a=new b=was+", "+ - !");
    check(surge, "a b", "a=was+ a=new+ b=was+", "+b -a=was+ !");
}
