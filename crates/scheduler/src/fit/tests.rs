//! Filters, scores and preemption through the one entrance, [`select_node`]: which node a pod gets, or what it is told.

use serde_json::{Value, json};

use super::*;
use crate::plugins::default_profile;

/// A node with 4 CPUs and 8 GiB; `extra` is merged over it.
fn node(name: &str, extra: Value) -> Arc<NodeInfo> {
    let mut node = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "spec": {},
        "status": { "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "10" } },
    });
    merge(&mut node, extra);
    let mut info = NodeInfo::new(name);
    info.set_node(Arc::new(serde_json::from_value(node).unwrap()));
    Arc::new(info)
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// A pod that asks for `cpu`; `extra` is merged over it.
fn pod(name: &str, cpu: &str, extra: Value) -> Arc<PodInfo> {
    let mut pod = json!({
        "metadata": { "name": name, "namespace": "default", "uid": name, "labels": { "app": name } },
        "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": cpu } } }] },
    });
    merge(&mut pod, extra);
    Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap())))
}

fn with(node: &Arc<NodeInfo>, pods: &[Arc<PodInfo>]) -> Arc<NodeInfo> {
    let mut node = (**node).clone();
    pods.iter().for_each(|pod| node.add_pod(pod.clone()));
    Arc::new(node)
}

fn select(pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Result<String, FitError> {
    let handler = |_: http::Request<client::Body>| async { http::Response::new(String::new()) };
    let client = client::in_process(handler, api::UserInfo::default());
    let snapshot = Snapshot { nodes: nodes.to_vec(), namespaces: Arc::default() };
    select_node(&default_profile(client), pod, &snapshot, &[], 0)
}

#[track_caller]
fn check(pod: &PodInfo, nodes: &[Arc<NodeInfo>], want: &str) {
    let got = select(pod, nodes).unwrap_or_else(|error| {
        let filter_part = error.message.split(" preemption:").next().unwrap_or_default();
        filter_part.to_owned()
    });
    assert_eq!(got, want);
}

#[tokio::test]
async fn resources_must_be_free() {
    let full = with(&node("a", json!({})), &[pod("big", "3", json!({}))]);
    check(&pod("p", "2", json!({})), std::slice::from_ref(&full), "0/1 nodes are available: 1 Insufficient cpu.");
    check(&pod("p", "1", json!({})), std::slice::from_ref(&full), "a");
    check(&pod("p", "2", json!({})), &[full, node("b", json!({}))], "b");
    let crowded: Vec<_> = (0..10).map(|index| pod(&format!("p{index}"), "1m", json!({}))).collect();
    check(
        &pod("p", "0", json!({})),
        &[with(&node("a", json!({})), &crowded)],
        "0/1 nodes are available: 1 Too many pods.",
    );
    let gpu = json!({ "spec": { "containers": [{ "name": "c", "resources": { "requests": { "x.io/gpu": "1" } } }] } });
    check(&pod("p", "0", gpu), &[node("a", json!({}))], "0/1 nodes are available: 1 Insufficient x.io/gpu.");
}

#[tokio::test]
async fn the_message_counts_reasons_over_all_nodes() {
    let tainted = node("t", json!({ "spec": { "taints": [{ "key": "k", "effect": "NoSchedule" }] } }));
    let cordoned = node("c", json!({ "spec": { "unschedulable": true } }));
    let error = select(&pod("p", "100", json!({})), &[tainted, cordoned, node("a", json!({}))]).unwrap_err();
    assert_eq!(
        error.message,
        "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable. \
         preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    );
    assert_eq!(select(&pod("p", "1", json!({})), &[]).unwrap_err().message, "no nodes available to schedule pods");
}

#[tokio::test]
async fn taints_repel_unless_tolerated() {
    let tainted = node("t", json!({ "spec": { "taints": [{ "key": "k", "value": "v", "effect": "NoSchedule" }] } }));
    let tolerating = |toleration: Value| pod("p", "1", json!({ "spec": { "tolerations": [toleration] } }));
    let refused = "0/1 nodes are available: 1 node(s) had untolerated taint(s).";
    check(&tolerating(json!({ "key": "k", "operator": "Exists" })), std::slice::from_ref(&tainted), "t");
    check(&tolerating(json!({ "operator": "Exists" })), std::slice::from_ref(&tainted), "t");
    check(&tolerating(json!({ "key": "k", "value": "v" })), std::slice::from_ref(&tainted), "t");
    check(&tolerating(json!({ "key": "k", "value": "w" })), std::slice::from_ref(&tainted), refused);
    check(&tolerating(json!({ "key": "k", "operator": "Exists", "effect": "NoExecute" })), &[tainted], refused);
    let soft = node("s", json!({ "spec": { "taints": [{ "key": "k", "effect": "PreferNoSchedule" }] } }));
    check(&pod("p", "1", json!({})), &[soft, node("z", json!({}))], "z");
}

#[tokio::test]
async fn nodes_are_selected_by_label_name_and_port() {
    let ssd = node("ssd", json!({ "metadata": { "labels": { "disk": "ssd", "cores": "8" } } }));
    let all = [node("hdd", json!({})), ssd.clone()];
    check(&pod("p", "1", json!({ "spec": { "nodeSelector": { "disk": "ssd" } } })), &all, "ssd");
    let required = |expression: Value| {
        let terms = json!({ "nodeSelectorTerms": [{ "matchExpressions": [expression] }] });
        pod(
            "p",
            "1",
            json!({ "spec": { "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms } } } }),
        )
    };
    check(&required(json!({ "key": "cores", "operator": "Gt", "values": ["4"] })), &all, "ssd");
    check(&required(json!({ "key": "disk", "operator": "DoesNotExist" })), &all, "hdd");
    let none = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.";
    check(&required(json!({ "key": "disk", "operator": "In", "values": ["nvme"] })), &all, none);
    let port =
        json!({ "spec": { "containers": [{ "name": "c", "ports": [{ "containerPort": 80, "hostPort": 80 }] }] } });
    let busy = with(&ssd, &[pod("other", "1", port.clone())]);
    let taken = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.";
    check(&pod("p", "1", port), &[busy], taken);
}

#[tokio::test]
async fn emptier_and_preferred_nodes_win() {
    let used = with(&node("a", json!({})), &[pod("other", "3", json!({}))]);
    check(&pod("p", "1", json!({})), &[used, node("b", json!({}))], "b");
    let preferred =
        json!([{ "weight": 1, "preference": { "matchExpressions": [{ "key": "disk", "operator": "Exists" }] } }]);
    let wish = json!({ "spec": { "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": preferred } } } });
    let disk = node("b", json!({ "metadata": { "labels": { "disk": "ssd" } } }));
    check(&pod("p", "1", wish), &[node("a", json!({})), disk], "b");
}

#[tokio::test]
async fn pods_keep_near_or_away_by_affinity() {
    let term = |app: &str| json!([{ "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": app } } }]);
    let near = |app: &str| json!({ "spec": { "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": term(app) } } } });
    let away = |app: &str| json!({ "spec": { "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": term(app) } } } });
    let with_db = with(&node("a", json!({})), &[pod("db", "1", json!({}))]);
    let all = [with_db.clone(), node("b", json!({}))];
    check(&pod("web", "1", near("db")), &all, "a");
    check(&pod("web", "1", away("db")), &all, "b");
    check(&pod("web", "1", near("web")), &all[1..], "b");
    check(&pod("web", "1", near("cache")), &all, "0/2 nodes are available: 2 node(s) didn't match pod affinity rules.");
    check(
        &pod("web", "1", away("db")),
        &all[..1],
        "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules.",
    );
    let hermit = with(&node("a", json!({})), &[pod("db", "1", away("web"))]);
    let refused = "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules.";
    check(&pod("web", "1", json!({})), &[hermit], refused);
}

#[tokio::test]
async fn peers_are_spread_over_domains() {
    let spread = |when: &str| {
        let constraint = json!([{ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when,
            "labelSelector": { "matchLabels": { "app": "web" } } }]);
        json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "topologySpreadConstraints": constraint } })
    };
    let zone = |name: &str, zone: &str| node(name, json!({ "metadata": { "labels": { "zone": zone } } }));
    let peer = |name: &str| pod(name, "1m", json!({ "metadata": { "labels": { "app": "web" } } }));
    let crowded = with(&zone("a", "1"), &[peer("w1"), peer("w2")]);
    let all = [crowded.clone(), zone("b", "2")];
    check(&pod("p", "1m", spread("DoNotSchedule")), &all, "b");
    check(&pod("p", "1m", spread("ScheduleAnyway")), &all, "b");
    let full = with(&node("b", json!({ "metadata": { "labels": { "zone": "2" } } })), &[pod("big", "4", json!({}))]);
    let refused =
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod topology spread constraints.";
    check(&pod("p", "1m", spread("DoNotSchedule")), &[crowded, full], refused);
    let unlabelled =
        "0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label).";
    check(&pod("p", "1m", spread("DoNotSchedule")), &[node("c", json!({}))], unlabelled);
}

#[tokio::test]
async fn preemption_takes_the_least_important_and_as_few_as_needed() {
    let important = |name: &str, cpu: &str, priority: i32| pod(name, cpu, json!({ "spec": { "priority": priority } }));
    let a = with(&node("a", json!({})), &[important("a1", "2", 5), important("a2", "2", 1)]);
    let b = with(&node("b", json!({})), &[important("b1", "4", 5)]);
    let error = select(&important("p", "2", 10), &[a.clone(), b.clone()]).unwrap_err();
    let victims: Vec<_> = error.preemption.victims.iter().map(|pod| pod.metadata.name.as_deref().unwrap()).collect();
    assert_eq!((error.preemption.nominated_node.as_deref(), victims), (Some("a"), vec!["a2"]));
    let error = select(&important("p", "2", 1), &[a.clone(), b]).unwrap_err();
    assert!(error.preemption.victims.is_empty());
    assert!(
        error.message.ends_with("preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."),
        "{}",
        error.message
    );
    let never = pod("p", "2", json!({ "spec": { "priority": 10, "preemptionPolicy": "Never" } }));
    let error = select(&never, &[a]).unwrap_err();
    assert!(error.message.ends_with("preemption: not eligible due to preemptionPolicy=Never."), "{}", error.message);
}

#[tokio::test]
async fn room_made_for_one_pod_is_not_taken_by_a_lesser_one() {
    let handler = |_: http::Request<client::Body>| async { http::Response::new(String::new()) };
    let framework = default_profile(client::in_process(handler, api::UserInfo::default()));
    let snapshot = Snapshot { nodes: vec![node("a", json!({}))], namespaces: Arc::default() };
    let nominated = [("a".to_owned(), pod("important", "4", json!({ "spec": { "priority": 10 } })))];
    assert!(select_node(&framework, &pod("p", "1", json!({})), &snapshot, &nominated, 0).is_err());
    assert!(select_node(&framework, &pod("p", "1", json!({})), &snapshot, &[], 0).is_ok());
}
