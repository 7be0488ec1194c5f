//! PodDisruptionBudgets are counted, so that what they allow can be evicted and what they protect cannot. Needs root.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Cluster, eventually};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn budgets_let_pods_go_one_by_one() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let cluster = Cluster::start(dir.path())?;
    evictions_spend_what_is_allowed(&cluster)?;
    what_cannot_be_counted_is_said(&cluster)?;
    a_custom_controller_is_asked_for_its_scale(&cluster)?;
    cluster.stop()
}

fn wait_for(cluster: &Cluster, budget: &str, path: &str, want: &str) -> Result<()> {
    eventually(&format!("{path} of {budget} is {want}"), LIMIT, || {
        let found = cluster.jsonpath(&format!("pdb/{budget}"), path)?;
        Ok((found == want).then_some(()))
    })
}

fn apply(cluster: &Cluster, manifest: &str) -> Result<()> {
    let applied = cluster.apply(manifest)?;
    ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    Ok(())
}

const COUNTS: &str =
    "{.status.currentHealthy}/{.status.desiredHealthy}/{.status.expectedPods} {.status.disruptionsAllowed}";
const CONDITION: &str = "{.status.conditions[0].status} {.status.conditions[0].reason} {.status.conditions[0].message}";

fn evictions_spend_what_is_allowed(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["create", "deployment", "web", "--image=ferry.local/hello", "--replicas=3"])?;
    cluster.kubectl(&["create", "pdb", "web", "--selector=app=web", "--max-unavailable=1"])?;
    wait_for(cluster, "web", COUNTS, "3/2/3 1")?;
    wait_for(cluster, "web", CONDITION, "True SufficientPods ")?;
    // A node that takes no new pods: what is evicted is not replaced.
    let node = cluster.jsonpath("nodes", "{.items[0].metadata.name}")?;
    cluster.kubectl(&["cordon", &node])?;
    let refused = cluster.kubectl_fails(&["drain", &node, "--pod-selector=app=web", "--timeout=8s"])?;
    ensure!(refused.contains("Cannot evict pod as it would violate the pod's disruption budget."), "{refused}");
    wait_for(cluster, "web", COUNTS, "2/2/3 0")?;
    wait_for(cluster, "web", CONDITION, "False InsufficientPods ")?;
    cluster.kubectl(&["uncordon", &node])?;
    wait_for(cluster, "web", COUNTS, "3/2/3 1")?;
    cluster.kubectl(&["patch", "pdb", "web", "--type=merge", "-p", r#"{"spec":{"maxUnavailable":"100%"}}"#])?;
    wait_for(cluster, "web", COUNTS, "3/0/3 3")?;
    cluster.kubectl(&["drain", &node, "--pod-selector=app=web", "--timeout=60s"])?;
    cluster.kubectl(&["uncordon", &node])?;
    cluster.kubectl(&["delete", "deployment/web", "pdb/web"])?;
    Ok(())
}

fn what_cannot_be_counted_is_said(cluster: &Cluster) -> Result<()> {
    let event = |budget: &str, reason: &str| -> Result<String> {
        let of_budget = format!("--field-selector=involvedObject.name={budget},reason={reason}");
        eventually(&format!("{reason} of {budget}"), LIMIT, || {
            let message = cluster.kubectl(&["get", "events", &of_budget, "-o", "jsonpath={.items[0].message}"]);
            Ok(message.ok().filter(|message| !message.is_empty()))
        })
    };
    cluster.kubectl(&["create", "pdb", "nothing", "--selector=app=nothing", "--min-available=1"])?;
    ensure!(event("nothing", "NoPods")? == "No matching pods found");
    wait_for(cluster, "nothing", COUNTS, "0/1/0 0")?;

    cluster.kubectl(&["run", "alone", "--image=ferry.local/hello", "--labels=app=alone"])?;
    cluster.kubectl(&["create", "pdb", "alone", "--selector=app=alone", "--max-unavailable=1"])?;
    let message = event("alone", "UnmanagedPods")?;
    ensure!(message.contains("(selector: &LabelSelector{MatchLabels:map[string]string{app: alone,},"), "{message}");
    wait_for(cluster, "alone", COUNTS, "1/0/0 0")?;

    cluster.kubectl(&["create", "job", "task", "--image=ferry.local/hello"])?;
    cluster.kubectl(&["create", "pdb", "task", "--selector=job-name=task", "--max-unavailable=1"])?;
    let why = "jobs.batch does not implement the scale subresource";
    wait_for(cluster, "task", CONDITION, &format!("False SyncFailed {why}"))?;
    ensure!(
        event("task", "CalculateExpectedPodCountFailed")?
            == format!("Failed to calculate the number of expected pods: {why}")
    );
    cluster.kubectl(&["delete", "job/task", "pod/alone", "pdb/nothing", "pdb/alone", "pdb/task"])?;
    Ok(())
}

fn a_custom_controller_is_asked_for_its_scale(cluster: &Cluster) -> Result<()> {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let version = json!({
        "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
        "subresources": { "scale": { "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas" } },
    });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": "fleets.example.com" },
        "spec": { "group": "example.com", "scope": "Namespaced", "names": { "plural": "fleets", "kind": "Fleet" }, "versions": [version] },
    });
    apply(cluster, &definition.to_string())?;
    cluster.kubectl(&["wait", "--for=condition=Established", "crd/fleets.example.com", "--timeout=30s"])?;
    let fleet = json!({ "apiVersion": "example.com/v1", "kind": "Fleet", "metadata": { "name": "f" }, "spec": { "replicas": 4 } });
    apply(cluster, &fleet.to_string())?;
    let uid = cluster.jsonpath("fleets/f", "{.metadata.uid}")?;
    let owner = json!({ "apiVersion": "example.com/v1", "kind": "Fleet", "name": "f", "uid": uid, "controller": true });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "of-fleet", "labels": { "app": "fleet" }, "ownerReferences": [owner] },
        "spec": { "containers": [{ "name": "c", "image": "ferry.local/hello" }] },
    });
    apply(cluster, &pod.to_string())?;
    cluster.kubectl(&["create", "pdb", "fleet", "--selector=app=fleet", "--min-available=50%"])?;
    wait_for(cluster, "fleet", COUNTS, "1/2/4 0")?;
    cluster.kubectl(&["delete", "fleet/f", "pdb/fleet"])?;
    Ok(())
}
