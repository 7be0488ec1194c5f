//! Pods that the API accepts and this node must not run as they are, or not at all.

use serde_json::{Value, json};

use super::{TestNode, phase};

/// Creates the pod on a fresh node and waits for an event that starts as `event`; no container may have been made.
async fn refused(spec: Value, event: &str) -> Value {
    let mut node = TestNode::new();
    node.start().await;
    node.create("web", spec);
    let pod = node.wait("web", event, |_| node.api.events().iter().any(|seen| seen.starts_with(event))).await;
    assert_eq!(node.runtime.calls(), [""; 0], "nothing runs");
    pod
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_wants_a_user_namespace_never_runs_with_the_nodes_users() {
    let event = "FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    let pod = refused(json!({ "hostUsers": false }), event).await;
    assert_eq!(phase(&pod), "Pending");
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_an_unknown_runtime_class_does_not_run_without_it() {
    let event =
        "FailedCreatePodSandBox: Failed to create pod sandbox: runtimeclass.node.k8s.io \"sandboxed\" not found";
    refused(json!({ "runtimeClassName": "sandboxed" }), event).await;
}

#[tokio::test(start_paused = true)]
async fn the_handler_of_the_runtime_class_gets_to_the_runtime() {
    let mut node = TestNode::new();
    let class = json!({ "metadata": { "name": "sandboxed" }, "handler": "kata" });
    node.api.put("/apis/node.k8s.io/v1/runtimeclasses", "", class);
    node.start().await;
    node.create("web", json!({ "runtimeClassName": "sandboxed" }));
    node.wait("web", "running", |pod| phase(pod) == "Running").await;
    assert_eq!(node.runtime.calls().first().map(String::as_str), Some("sandbox web with kata"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_an_unsafe_sysctl_fails() {
    let sysctls = json!({ "sysctls": [{ "name": "kernel.msgmax", "value": "65536" }] });
    let event = "SysctlForbidden: forbidden sysctl: \"kernel.msgmax\" not allowlisted";
    let pod = refused(json!({ "securityContext": sysctls }), event).await;
    let status = &pod["status"];
    assert_eq!((phase(&pod), &status["reason"]), ("Failed", &json!("SysctlForbidden")));
    assert_eq!(status["message"], "Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted");
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_profile_fails_where_the_kernel_has_no_app_armor() {
    let profile = json!({ "appArmorProfile": { "type": "RuntimeDefault" } });
    let event = "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host";
    let pod = refused(json!({ "securityContext": profile }), event).await;
    assert_eq!((phase(&pod), &pod["status"]["reason"]), ("Failed", &json!("AppArmor")));
}

#[tokio::test(start_paused = true)]
async fn a_recursively_read_only_mount_needs_a_runtime_that_has_it() {
    let mut node = TestNode::new();
    node.start().await;
    let mount = json!({ "name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "Enabled" });
    node.create(
        "web",
        json!({
            "volumes": [{ "name": "v", "emptyDir": {} }],
            "containers": [{ "name": "c", "image": "app:1", "volumeMounts": [mount] }],
        }),
    );
    let pod = node.wait("web", "refused", |pod| super::waiting(pod) == "CreateContainerConfigError").await;
    assert_eq!(
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"],
        "volume \"v\" requested recursive read-only mode, but it is not supported by the runtime"
    );
}

/// A ConfigMap as large as the API allows.
fn large_map() -> Value {
    json!({ "metadata": { "name": "large", "namespace": "default" }, "data": { "key": "x".repeat(1 << 20) } })
}

#[tokio::test(start_paused = true)]
async fn an_environment_that_the_kernel_would_refuse_is_not_built() {
    let mut node = TestNode::new();
    node.start().await;
    node.api.put("/api/v1/configmaps", "default", large_map());
    let from: Vec<Value> =
        (0..1000).map(|n| json!({ "prefix": format!("P{n}"), "configMapRef": { "name": "large" } })).collect();
    node.create("web", json!({ "containers": [{ "name": "c", "image": "app:1", "envFrom": from }] }));
    let pod = node.wait("web", "refused", |pod| super::waiting(pod) == "CreateContainerConfigError").await;
    let message = pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"].to_string();
    assert!(message.contains("argument list too long"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn one_key_in_a_thousand_files_does_not_fill_the_nodes_memory() {
    let event = "FailedMount: MountVolume.SetUp failed for volume \"v\" : the files of the pod's ConfigMap, Secret, downward API and projected \
                 volumes take more than 32 MiB";
    let mut node = TestNode::new();
    node.start().await;
    node.api.put("/api/v1/configmaps", "default", large_map());
    let items: Vec<Value> = (0..1000).map(|n| json!({ "key": "key", "path": format!("f{n}") })).collect();
    node.create(
        "web",
        json!({
            "volumes": [{ "name": "v", "configMap": { "name": "large", "items": items } }],
            "containers": [{ "name": "c", "image": "app:1" }],
        }),
    );
    node.wait("web", event, |_| node.api.events().iter().any(|seen| seen.starts_with(event))).await;
    assert_eq!(node.runtime.calls(), [""; 0], "nothing runs");
}
