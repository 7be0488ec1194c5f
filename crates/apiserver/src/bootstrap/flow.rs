//! The flow schemas and priority levels that every cluster has: who shares the server's capacity with whom.

use serde_json::{Value, json};

/// Name, kind of limit, shares, percent that may be lent, and how many queues, how many of them a flow may use.
type Level = (&'static str, &'static str, u32, u32, Option<(u32, u32)>);
const LEVELS: [Level; 8] = [
    ("exempt", "Exempt", 0, 0, None),
    ("catch-all", "Limited", 5, 0, None),
    ("global-default", "Limited", 20, 50, Some((128, 6))),
    ("leader-election", "Limited", 10, 0, Some((16, 4))),
    ("node-high", "Limited", 40, 25, Some((64, 6))),
    ("system", "Limited", 30, 33, Some((64, 6))),
    ("workload-high", "Limited", 40, 50, Some((128, 6))),
    ("workload-low", "Limited", 100, 90, Some((128, 6))),
];
const QUEUE_LENGTH: u32 = 50;

/// Who makes them, and who says that their levels exist, by upstream's names.
pub(super) const MANAGER: &str = "api-priority-and-fairness-config-producer-v1";
pub(super) const STATUS_MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";

pub(crate) fn objects() -> Vec<(&'static str, Value)> {
    let levels = LEVELS.iter().map(|level| ("prioritylevelconfigurations", level_object(level)));
    levels.chain(schemas().into_iter().map(|schema| ("flowschemas", schema))).collect()
}

/// The spec of the few that nobody may change.
pub(crate) fn mandatory(kind: &str, name: &str) -> Option<Value> {
    if !matches!(name, "exempt" | "catch-all") {
        return None;
    }
    let plural = if kind == "FlowSchema" { "flowschemas" } else { "prioritylevelconfigurations" };
    let found = objects()
        .into_iter()
        .find(|(of, object)| *of == plural && object.pointer("/metadata/name").is_some_and(|known| known == name));
    found.and_then(|(_, object)| object.get("spec").cloned())
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}})
}

fn level_object((name, kind, shares, lent, queues): &Level) -> Value {
    let mut limits = json!({"nominalConcurrencyShares": shares, "lendablePercent": lent});
    if let (true, Some(limits)) = (*kind == "Limited", limits.as_object_mut()) {
        let response = match queues {
            Some((count, hand)) => {
                json!({"type": "Queue", "queuing": {"queues": count, "handSize": hand, "queueLengthLimit": QUEUE_LENGTH}})
            }
            None => json!({"type": "Reject"}),
        };
        limits.insert("limitResponse".into(), response);
    }
    json!({"metadata": metadata(name), "spec": {"type": kind, kind.to_ascii_lowercase(): limits}, "status": {}})
}

fn schemas() -> [Value; 11] {
    let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
    let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
    let system_accounts =
        json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "kube-system"}});
    let everyone = [group("system:unauthenticated"), group("system:authenticated")];
    let everything = json!({
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    });
    let health =
        json!({"nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]});
    let leases = |verbs: &[&str]| json!({"verbs": verbs, "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "namespaces": ["*"]});
    let elections = json!({"resourceRules": [leases(&["get", "create", "update"])]});
    let heartbeats = json!({"resourceRules": [
        {"verbs": ["*"], "apiGroups": [""], "resources": ["nodes", "nodes/status"], "clusterScope": true, "namespaces": ["*"]},
        leases(&["*"]),
    ]});
    let (manager, scheduler) = (user("system:kube-controller-manager"), user("system:kube-scheduler"));
    let nodes = [group("system:nodes")];
    [
        schema("exempt", "exempt", 1, "", &[group("system:masters")], &everything),
        schema("probes", "exempt", 2, "", &everyone, &health),
        schema(
            "system-leader-election",
            "leader-election",
            100,
            "ByUser",
            &[manager.clone(), scheduler.clone(), system_accounts.clone()],
            &elections,
        ),
        schema("system-node-high", "node-high", 400, "ByUser", &nodes, &heartbeats),
        schema("system-nodes", "system", 500, "ByUser", &nodes, &everything),
        schema("kube-controller-manager", "workload-high", 800, "ByNamespace", &[manager], &everything),
        schema("kube-scheduler", "workload-high", 800, "ByNamespace", &[scheduler], &everything),
        schema("kube-system-service-accounts", "workload-high", 900, "ByNamespace", &[system_accounts], &everything),
        schema("service-accounts", "workload-low", 9000, "ByUser", &[group("system:serviceaccounts")], &everything),
        schema("global-default", "global-default", 9900, "ByUser", &everyone, &everything),
        schema("catch-all", "catch-all", 10000, "ByUser", &everyone, &everything),
    ]
}

fn schema(name: &str, level: &str, precedence: u32, distinguisher: &str, subjects: &[Value], rules: &Value) -> Value {
    let mut rules = rules.clone();
    if let Some(rules) = rules.as_object_mut() {
        rules.insert("subjects".into(), subjects.into());
    }
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": [rules],
    });
    if let (false, Some(spec)) = (distinguisher.is_empty(), spec.as_object_mut()) {
        spec.insert("distinguisherMethod".into(), json!({"type": distinguisher}));
    }
    let message =
        format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?} and it exists");
    let dangling = json!({
        "type": "Dangling", "status": "False", "reason": "Found", "message": message,
        "lastTransitionTime": crate::handlers::now(),
    });
    json!({"metadata": metadata(name), "spec": spec, "status": {"conditions": [dangling]}})
}
