//! What users get wrong: each is told what is wrong, in upstream's words, and nothing hangs.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Cluster, eventually, ferry_binary};

#[test]
fn mistakes_are_told() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let cluster = Cluster::start(dir.path())?;
    pods_that_cannot_run(&cluster)?;
    malformed_manifests(&cluster)?;
    a_second_ferry_is_refused(&cluster)?;
    cluster.stop()
}

fn pods_that_cannot_run(cluster: &Cluster) -> Result<()> {
    let manifest = r#"
apiVersion: v1
kind: Pod
metadata: {name: no-image}
spec: {containers: [{name: a, image: "ferry.local/does-not-exist:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: fails}
spec: {containers: [{name: a, image: "ferry.local/ferry:0.1.0", command: [/ferry, no-such-command]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: no-program}
spec: {restartPolicy: Never, containers: [{name: a, image: "ferry.local/ferry:0.1.0", command: [/no/such/program]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: too-big}
spec: {containers: [{name: a, image: "ferry.local/hello:0.1.0", resources: {requests: {cpu: "1000"}}}]}
"#;
    let applied = cluster.apply(manifest)?;
    ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let waiting = |pod: &str, wanted: &str| {
        eventually(&format!("{pod} is {wanted}"), Duration::from_secs(30), || {
            let reason =
                cluster.jsonpath(&format!("pod {pod}"), "{.status.containerStatuses[0].state.waiting.reason}")?;
            Ok((reason == wanted).then_some(()))
        })
    };
    waiting("no-image", "ImagePullBackOff")?;
    let events = cluster.kubectl(&["describe", "pod", "no-image"])?;
    ensure!(events.contains("ErrImagePull") && events.contains("not found"), "{events}");
    waiting("fails", "CrashLoopBackOff")?;
    eventually("no-program fails", Duration::from_secs(20), || {
        Ok((cluster.jsonpath("pod no-program", "{.status.phase}")? == "Failed").then_some(()))
    })?;
    let why = cluster.kubectl(&["describe", "pod", "too-big"])?;
    ensure!(why.contains("FailedScheduling") && why.contains("0/1 nodes are available: 1 Insufficient cpu."), "{why}");
    ensure!(cluster.jsonpath("pod too-big", "{.status.phase}")? == "Pending");
    cluster.kubectl(&["delete", "pod", "--all", "--wait=true", "--timeout=60s"])?;
    Ok(())
}

fn malformed_manifests(cluster: &Cluster) -> Result<()> {
    let check = |manifest: &str, wanted: &str| -> Result<()> {
        let output = cluster.apply(manifest)?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && told.contains(wanted), "wanted {wanted:?}, got {told}");
        Ok(())
    };
    check(
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {replicas: three}}",
        "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
    )?;
    check(
        "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, imagee: b}]}}",
        "strict decoding error: unknown field \"spec.containers[0].imagee\"",
    )?;
    check(
        "{apiVersion: v1, kind: Pod, metadata: {name: A_b}, spec: {containers: [{name: a}]}}",
        "spec.containers[0].image: Required value",
    )?;
    check(
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: c}}, spec: {containers: [{name: a, image: b}]}}}}",
        "spec.template.metadata.labels: Invalid value: {\"a\":\"c\"}: `selector` does not match template `labels`",
    )?;
    check(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: nowhere}}",
        "namespaces \"nowhere\" not found",
    )
}

/// A busy data directory or port: a message that says what to do, and nothing half-started.
fn a_second_ferry_is_refused(cluster: &Cluster) -> Result<()> {
    let run = |arguments: &[&str]| Command::new(ferry_binary()).args(arguments).output();
    let data = cluster.dir.join("data").display().to_string();
    let kubeconfig = cluster.dir.join("other-kubeconfig").display().to_string();
    let other = cluster.dir.join("other-data").display().to_string();
    let busy_port = run(&["up", "--data-dir", &other, "--kubeconfig", &kubeconfig])?;
    let told = String::from_utf8_lossy(&busy_port.stderr).into_owned();
    ensure!(!busy_port.status.success() && told.contains("--secure-port"), "{told}");
    let busy_kubelet = run(&["up", "--data-dir", &other, "--kubeconfig", &kubeconfig, "--secure-port", "16443"])?;
    let told = String::from_utf8_lossy(&busy_kubelet.stderr).into_owned();
    ensure!(!busy_kubelet.status.success() && told.contains("--kubelet-port"), "{told}");
    let ports = ["--secure-port", "16443", "--kubelet-port", "16250"];
    let busy_data = run(&[&["up", "--data-dir", &data, "--kubeconfig", &kubeconfig], ports.as_slice()].concat())?;
    let told = String::from_utf8_lossy(&busy_data.stderr).into_owned();
    ensure!(!busy_data.status.success() && told.contains("is in use by process"), "{told}");
    let busy_machine = run(&[&["up", "--data-dir", &other, "--kubeconfig", &kubeconfig], ports.as_slice()].concat())?;
    let told = String::from_utf8_lossy(&busy_machine.stderr).into_owned();
    ensure!(!busy_machine.status.success() && told.contains("another ferry runs pods on this machine"), "{told}");
    ensure!(!std::path::Path::new(&kubeconfig).exists(), "nothing may be half-started");
    let read_only = run(&["up", "--data-dir", "/proc/ferry", "--kubeconfig", &kubeconfig])?;
    let told = String::from_utf8_lossy(&read_only.stderr).into_owned();
    ensure!(!read_only.status.success() && told.contains("--data-dir"), "{told}");
    Ok(())
}
