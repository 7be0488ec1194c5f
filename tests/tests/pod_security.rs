//! Whatever Pod Security admits because of a field, the node carries out or refuses.
//!
//! [`RELAXED`] pairs every field that makes a level admit a pod with the proof that the node does not ignore it. A field that
//! admission reads and this table lacks is a hole: a pod could set it, be admitted, and run without it. Needs root.

// An object without the wanted field fails the test.
#![allow(clippy::indexing_slicing)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{Cluster, archive_of, eventually, ferry_binary, run, text};
use serde_json::{Value, json};

const IMAGE: &str = "example.com/report:1";

/// What the node does with a field.
enum Proof {
    /// The pod or its container reports this reason or message, and nothing has run.
    Refused(&'static str),
    /// The container runs, and its own view of itself has these lines.
    Carried(&'static [&'static str]),
}
use Proof::{Carried, Refused};

struct Relaxed {
    level: &'static str,
    /// Without them the level forbids the pod: JSON of the pod's spec, and of its container.
    pod: &'static str,
    container: &'static str,
    proof: Proof,
}

const fn relaxed(level: &'static str, pod: &'static str, container: &'static str, proof: Proof) -> Relaxed {
    Relaxed { level, pod, container, proof }
}

const NO_USER_NAMESPACES: Proof =
    Refused("can't set `spec.hostUsers: false`, runtime does not support user namespaces");
const NO_WINDOWS: Proof = Refused("Failed to admit pod as the OS field doesn't match node OS");

/// A pod that `restricted` admits; each row of the table changes or removes some of it.
fn restricted() -> Value {
    json!({
        "terminationGracePeriodSeconds": 0,
        "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{
            "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "args": ["report"],
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "runAsUser": 1000 },
        }],
    })
}

const RELAXED: &[Relaxed] = &[
    // A user namespace would make root of the container nobody on the node.
    relaxed(
        "baseline",
        r#"{"hostUsers": false}"#,
        r#"{"securityContext": {"procMount": "Unmasked"}}"#,
        NO_USER_NAMESPACES,
    ),
    relaxed(
        "restricted",
        r#"{"hostUsers": false, "securityContext": {"runAsNonRoot": null}}"#,
        r#"{"securityContext": {"runAsUser": null}}"#,
        NO_USER_NAMESPACES,
    ),
    relaxed("restricted", r#"{"hostUsers": false}"#, r#"{"securityContext": {"runAsUser": 0}}"#, NO_USER_NAMESPACES),
    // Windows has none of these.
    relaxed(
        "restricted",
        r#"{"os": {"name": "windows"}, "securityContext": {"seccompProfile": null}}"#,
        r#"{"securityContext": {"allowPrivilegeEscalation": null, "capabilities": null, "runAsUser": null}}"#,
        NO_WINDOWS,
    ),
    // What `restricted` demands is what a process gets.
    relaxed(
        "restricted",
        r#"{"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}}"#,
        r#"{"securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}"#,
        Carried(&["Uid: 1000", "NoNewPrivs: 1", "CapBnd: 0000000000000000", "CapEff: 0000000000000000", "Seccomp: 2"]),
    ),
    relaxed(
        "restricted",
        "{}",
        r#"{"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}}"#,
        Carried(&["CapBnd: 0000000000000400", "NoNewPrivs: 1"]),
    ),
    relaxed(
        "restricted",
        "{}",
        r#"{"securityContext": {"runAsUser": null}}"#,
        Refused("container has runAsNonRoot and image will run as root"),
    ),
    // Profiles of the node that are not there.
    relaxed(
        "restricted",
        r#"{"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "mine.json"}}}"#,
        "{}",
        Refused("mine.json"),
    ),
    relaxed(
        "restricted",
        r#"{"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}"#,
        "{}",
        Refused("Cannot enforce AppArmor"),
    ),
    relaxed(
        "restricted",
        r#"{"securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "mine"}}}"#,
        "{}",
        Refused("Cannot enforce AppArmor"),
    ),
    relaxed(
        "restricted",
        r#"{"securityContext": {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "1"}, {"name": "net.ipv4.tcp_keepalive_time", "value": "77"}]}}"#,
        "{}",
        Carried(&["net.ipv4.ip_unprivileged_port_start: 1", "net.ipv4.tcp_keepalive_time: 77"]),
    ),
    // Without SELinux in the kernel there is no label that a container could lack.
    relaxed(
        "restricted",
        r#"{"securityContext": {"seLinuxOptions": {"type": "container_t"}}}"#,
        "{}",
        Carried(&["Uid: 1000"]),
    ),
    relaxed(
        "restricted",
        r#"{"volumes": [{"name": "v", "emptyDir": {}}]}"#,
        r#"{"volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "Enabled"}]}"#,
        Carried(&["/v: read-only"]),
    ),
    relaxed("restricted", "{}", r#"{"securityContext": {"readOnlyRootFilesystem": true}}"#, Carried(&["/: read-only"])),
    relaxed("baseline", r#"{"runtimeClassName": "sandboxed"}"#, "{}", Refused("sandboxed")),
];

#[test]
fn what_pod_security_relaxes_the_node_does_not_ignore() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let archive = archive_of(dir.path(), IMAGE, Path::new(env!("CARGO_BIN_EXE_hostile-pod")), "hostile", &["report"])?;
    let cluster = Cluster::start(dir.path())?;
    let data = text(&dir.path().join("data"))?;
    run(&text(&ferry_binary())?, &["image", "--data-dir", &data, "import", &archive])?;
    for level in ["baseline", "restricted"] {
        cluster.kubectl(&["create", "namespace", level])?;
        cluster.kubectl(&["label", "namespace", level, &format!("pod-security.kubernetes.io/enforce={level}")])?;
    }
    let class = json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "sandboxed" }, "handler": "no-such-handler" });
    cluster.apply(&class.to_string())?;
    for (number, row) in RELAXED.iter().enumerate() {
        check(&cluster, &format!("pod-{number}"), row).with_context(|| format!("{} {}", row.pod, row.container))?;
    }
    cluster.stop()
}

fn check(cluster: &Cluster, name: &str, row: &Relaxed) -> Result<()> {
    let mut spec = restricted();
    merge(&mut spec, &serde_json::from_str(row.pod)?);
    merge(&mut spec["containers"][0], &serde_json::from_str(row.container)?);
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": row.level }, "spec": spec });
    let applied = cluster.apply(&pod.to_string())?;
    ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let get = |what: &[&str]| cluster.kubectl(&[&["--namespace", row.level], what].concat());
    let limit = Duration::from_secs(30);
    match row.proof {
        Refused(why) => {
            eventually("the node refuses the pod", limit, || {
                let events =
                    get(&["get", "events", "-o", "json", &format!("--field-selector=involvedObject.name={name}")])?;
                let status = get(&["get", "pod", name, "-o", "json"])?;
                Ok((events + &status).contains(why).then_some(()))
            })?;
            let pod: Value = serde_json::from_str(&get(&["get", "pod", name, "-o", "json"])?)?;
            let status = &pod["status"]["containerStatuses"][0];
            ensure!(status["containerID"].as_str().unwrap_or_default().is_empty(), "a container was made: {status}");
        }
        Carried(lines) => {
            let log = eventually("the container reports", limit, || {
                let log = get(&["logs", name]).unwrap_or_default();
                Ok(log.contains("end of report").then_some(log))
            })?;
            for line in lines {
                ensure!(log.lines().any(|found| found == *line), "no line {line:?} in:\n{log}");
            }
        }
    }
    get(&["delete", "pod", name, "--timeout=30s"])?;
    Ok(())
}

/// A merge patch: null removes.
fn merge(target: &mut Value, patch: &Value) {
    let (Some(target), Some(patch)) = (target.as_object_mut(), patch.as_object()) else {
        *target = patch.clone();
        return;
    };
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.remove(key)),
            value => merge(target.entry(key).or_insert(Value::Null), value),
        }
    }
}
