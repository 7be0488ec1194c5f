//! The commands a user of Kubernetes has in their fingers, with the real kubectl.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{Cluster, eventually, read_some};

#[test]
fn kubectl_cannot_tell_the_difference() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let cluster = Cluster::start(dir.path())?;
    let check = |command: &str, wanted: &[&str]| -> Result<String> {
        let text = cluster.kubectl(&command.split(' ').collect::<Vec<_>>())?;
        for wanted in wanted {
            ensure!(text.contains(wanted), "kubectl {command}: no {wanted:?} in\n{text}");
        }
        Ok(text)
    };
    check("get nodes -o wide", &["Ready", "INTERNAL-IP", "CONTAINER-RUNTIME", "ferry://"])?;
    check("get all -A", &["deployment.apps/ferry-dns", "service/kubernetes", "pod/ferry-dns-"])?;
    check(
        "create deployment web --image=ferry.local/hello --replicas=2 --port=8080",
        &["deployment.apps/web created"],
    )?;
    check("rollout status deployment/web --timeout=30s", &["successfully rolled out"])?;
    check("expose deployment web --port=80 --target-port=8080", &["service/web exposed"])?;
    // Through the API server: by the service's port, and by the first port of a pod.
    check("get --raw /api/v1/namespaces/default/services/web:80/proxy/", &["web-"])?;
    let pod = check("get pods -l app=web -o jsonpath={.items[0].metadata.name}", &["web-"])?;
    check(&format!("get --raw /api/v1/namespaces/default/pods/{pod}/proxy/"), &[&pod])?;
    check("get pods -o wide", &["1/1", "Running", "10.244."])?;
    check("get pods -l app=web -o yaml", &["kind: Pod", "phase: Running"])?;
    check("get deployment web -o jsonpath={.status.readyReplicas}", &["2"])?;
    check(
        "get pods -l app=web -o custom-columns=NAME:.metadata.name,NODE:.spec.nodeName --sort-by=.metadata.name",
        &["NAME", "NODE", "web-"],
    )?;
    check(
        "describe deployment web",
        &["ScalingReplicaSet", "NewReplicaSet:", "2 desired | 2 updated | 2 total | 2 available"],
    )?;
    let pod = check("get pods -l app=web -o jsonpath={.items[0].metadata.name}", &["web-"])?;
    check(&format!("describe pod {pod}"), &["Successfully assigned default/", "Started"])?;
    check("describe node", &["Conditions:", "Allocatable:", "Non-terminated Pods:"])?;
    check("describe service web", &["Endpoints:", "10.244."])?;
    check("patch deployment web -p {\"spec\":{\"replicas\":1}}", &["deployment.apps/web patched"])?;
    check("scale deployment web --replicas=2", &["deployment.apps/web scaled"])?;
    check("rollout restart deployment/web", &["restarted"])?;
    check("rollout status deployment/web --timeout=60s", &["successfully rolled out"])?;
    check("rollout history deployment/web", &["REVISION", "2"])?;
    check("rollout undo deployment/web", &["rolled back"])?;
    check("rollout status deployment/web --timeout=60s", &["successfully rolled out"])?;
    check("wait --for=condition=Available deployment/web --timeout=30s", &["condition met"])?;
    check("api-resources", &["deployments", "endpointslices", "poddisruptionbudgets"])?;
    check("explain deployment.spec.strategy", &["rollingUpdate", "DESCRIPTION"])?;
    check("cluster-info", &["Kubernetes control plane", "is running at"])?;
    check("get componentstatuses", &["scheduler", "controller-manager", "Healthy"])?;
    check("get events", &["Scheduled", "Pulled", "Started"])?;
    edit(&cluster)?;
    apply_and_watch(&cluster)?;
    logs_and_exec(&cluster)?;
    check("delete deployment,service web", &["deployment.apps \"web\" deleted"])?;
    check("wait --for=delete pod -l app=web --timeout=60s", &[])?;
    check("create namespace gone", &["created"])?;
    check("-n gone create configmap x", &["created"])?;
    check("delete namespace gone --timeout=30s", &["deleted"])?;
    cluster.stop()
}

fn edit(cluster: &Cluster) -> Result<()> {
    // An editor that changes one label.
    let mut kubectl = cluster.kubectl_command();
    let editor = "sed -i 's/app: web$/app: web-edited/'";
    let output = kubectl.args(["edit", "service", "web"]).env("KUBE_EDITOR", editor).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let selector = cluster.jsonpath("service web", "{.spec.selector.app}")?;
    ensure!(selector == "web-edited", "{selector}");
    Ok(())
}

fn apply_and_watch(cluster: &Cluster) -> Result<()> {
    let mut watch = cluster.kubectl_spawn(&["get", "configmaps", "--watch"])?;
    let manifest =
        |value: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: watched}}, data: {{k: {value}}}}}");
    for (value, wanted) in [("a", "created"), ("a", "unchanged"), ("b", "configured")] {
        let output = cluster.apply(&manifest(value))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(text.contains(wanted), "{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    let seen = read_some(&mut watch, |text| text.matches("watched").count() >= 2)?;
    watch.kill()?;
    watch.wait()?;
    ensure!(seen.matches("watched").count() >= 2, "{seen}");
    Ok(())
}

fn logs_and_exec(cluster: &Cluster) -> Result<()> {
    let manifest = r#"
apiVersion: v1
kind: Pod
metadata: {name: talker}
spec:
  containers:
  - {name: a, image: "ferry.local/ferry:0.1.0", command: [/ferry, hello]}
"#;
    ensure!(cluster.apply(manifest)?.status.success());
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/talker", "--timeout=20s"])?;
    eventually("logs", Duration::from_secs(5), || {
        Ok(cluster.kubectl(&["logs", "talker"])?.contains("listening on").then_some(()))
    })?;
    let mut follow = cluster.kubectl_spawn(&["logs", "-f", "talker"])?;
    let first = read_some(&mut follow, |text| text.contains("listening on"))?;
    ensure!(first.contains("listening on"), "{first}");
    let version = cluster.kubectl(&["exec", "talker", "--", "/ferry", "--version"])?;
    ensure!(version.starts_with("ferry "), "{version}");
    // With a terminal and input, as `exec -it` asks for; the input's end reaches the program.
    let mut shell = cluster.kubectl_spawn(&["exec", "-i", "talker", "--", "/ferry", "tool", "echo"])?;
    shell.stdin.take().context("stdin")?.write_all(b"through and back\n")?;
    let output = shell.wait_with_output()?;
    ensure!(String::from_utf8_lossy(&output.stdout) == "through and back\n", "{output:?}");
    let failed = cluster.kubectl_output(&["exec", "talker", "--", "/ferry", "no-such-command"])?;
    ensure!(failed.status.code() == Some(2), "the exit code comes through: {failed:?}");
    cluster.kubectl(&["delete", "pod", "talker", "--timeout=60s"])?;
    let ended = follow.wait()?;
    ensure!(ended.success(), "a followed log ends with its container: {ended}");
    Ok(())
}
