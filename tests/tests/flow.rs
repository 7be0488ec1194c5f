//! The first thing a user does: a Deployment becomes containers behind a Service, and stays there through every change.

// What is measured is printed, and an object without the wanted field fails the test.
#![allow(clippy::print_stdout, clippy::indexing_slicing)]

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{Cluster, Leaks, Load, dns_a, eventually, ferry_binary, hello_pids, http_get};

const DNS: &str = "10.96.0.10";
const NAME: &str = "hello.default.svc.cluster.local";

const HELLO: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello}
spec:
  replicas: 3
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: hello
        image: ferry.local/hello:latest
        imagePullPolicy: IfNotPresent
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: hello}
spec:
  selector: {app: hello}
  ports: [{port: 80, targetPort: 8080}]
"#;

fn service_address(cluster: &Cluster) -> Result<SocketAddr> {
    let address: IpAddr = cluster.jsonpath("service hello", "{.spec.clusterIP}")?.parse()?;
    Ok(SocketAddr::from((address, 80)))
}

/// Applies the manifest and waits until the Service answers under its DNS name.
fn answer_by_name(cluster: &Cluster) -> Result<()> {
    let applied = cluster.apply(HELLO)?;
    ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    eventually("the service answers by its name", Duration::from_secs(20), || {
        let Some(address) = dns_a(DNS.parse()?, NAME)? else { return Ok(None) };
        Ok(http_get(SocketAddr::from((address, 80))).ok().filter(|text| text.contains("Hello from hello-")))
    })?;
    Ok(())
}

/// One test, because each step starts from what the one before left, as it does for a user.
#[test]
fn a_deployment_lives_through_updates_and_failures() -> Result<()> {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let leaks = Leaks::watch(dir.path());
    let begun = std::time::Instant::now();
    let cluster = Cluster::start(dir.path())?;
    answer_by_name(&cluster)?;
    let first = begun.elapsed();
    println!("empty data directory: up in {:?}, answering by name after {first:?}", cluster.took);
    ensure!(first < Duration::from_secs(3), "the bar is 3 s, it took {first:?}");

    pods_reach_names_and_the_api(&cluster)?;
    rolling_update_fails_no_request(&cluster)?;
    scaling_and_replacing(&cluster)?;
    a_killed_container_is_restarted(&cluster)?;
    cluster.stop()?;

    let begun = std::time::Instant::now();
    let cluster = Cluster::start(dir.path())?;
    eventually("the service answers again", Duration::from_secs(20), || {
        let Some(address) = dns_a(DNS.parse()?, NAME)? else { return Ok(None) };
        Ok(http_get(SocketAddr::from((address, 80))).ok())
    })?;
    let second = begun.elapsed();
    println!("second start: up in {:?}, answering by name after {second:?}", cluster.took);
    ensure!(second < Duration::from_secs(2), "the bar is 2 s, it took {second:?}");
    cluster.kubectl(&["delete", "deployment,service", "hello", "--wait=true"])?;
    cluster.stop()?;
    leaks.none_since()
}

fn pods_reach_names_and_the_api(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["rollout", "status", "deployment/hello", "--timeout=20s"])?;
    let pod = cluster.jsonpath("pods -l app=hello", "{.items[0].metadata.name}")?;
    let other = cluster.jsonpath("pods -l app=hello", "{.items[1].status.podIP}")?;
    for url in ["http://hello/".to_owned(), format!("http://{NAME}/"), format!("http://{other}:8080/")] {
        let text = cluster.kubectl(&["exec", &pod, "--", "/ferry", "tool", "fetch", &url])?;
        ensure!(text.contains("Hello from hello-"), "{url}: {text}");
    }
    let url = "https://kubernetes.default.svc/api/v1/namespaces/default";
    // The default account may not read namespaces: that the API server says so by name proves the token.
    let refused = cluster.kubectl_output(&["exec", &pod, "--", "/ferry", "tool", "fetch", "--service-account", url])?;
    let text = String::from_utf8_lossy(&refused.stdout).into_owned();
    ensure!(text.contains("system:serviceaccount:default:default"), "{text}");
    http_get(service_address(cluster)?).context("host to ClusterIP")?;
    Ok(())
}

fn rolling_update_fails_no_request(cluster: &Cluster) -> Result<()> {
    let load = Load::start(service_address(cluster)?);
    cluster.kubectl(&["set", "image", "deployment/hello", "hello=ferry.local/hello:0.1.0"])?;
    cluster.kubectl(&["rollout", "status", "deployment/hello", "--timeout=60s"])?;
    cluster.kubectl(&["rollout", "undo", "deployment/hello"])?;
    cluster.kubectl(&["rollout", "status", "deployment/hello", "--timeout=60s"])?;
    let (answered, failures) = load.stop();
    println!("rolling update and rollback under load: {answered} answered, {} failed", failures.len());
    ensure!(failures.is_empty(), "{answered} answered, but: {failures:#?}");
    let image = cluster.jsonpath("deployment hello", "{.spec.template.spec.containers[0].image}")?;
    ensure!(image == "ferry.local/hello:latest", "{image}");
    Ok(())
}

fn scaling_and_replacing(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["scale", "deployment/hello", "--replicas=10"])?;
    cluster.kubectl(&["rollout", "status", "deployment/hello", "--timeout=60s"])?;
    let victim = cluster.jsonpath("pods -l app=hello", "{.items[0].metadata.name}")?;
    cluster.kubectl(&["delete", "pod", &victim, "--wait=true"])?;
    cluster.kubectl(&["rollout", "status", "deployment/hello", "--timeout=60s"])?;
    let pods = cluster.json(&["get", "pods", "-l", "app=hello"])?;
    let pods = pods["items"].as_array().context("items")?;
    let staying = pods.iter().filter(|pod| pod["metadata"].get("deletionTimestamp").is_none());
    let names: Vec<&str> = staying.filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    ensure!(names.len() == 10 && !names.contains(&victim.as_str()), "{names:?}");
    cluster.kubectl(&["scale", "deployment/hello", "--replicas=0"])?;
    cluster.kubectl(&["wait", "--for=delete", "pod", "-l", "app=hello", "--timeout=60s"])?;
    ensure!(http_get(service_address(cluster)?).is_err(), "a service without pods must refuse");
    cluster.kubectl(&["scale", "deployment/hello", "--replicas=3"])?;
    cluster.kubectl(&["rollout", "status", "deployment/hello", "--timeout=60s"])?;
    Ok(())
}

/// A container's process is killed from outside, twice: restarted at once the first time, after a back-off the second.
fn a_killed_container_is_restarted(cluster: &Cluster) -> Result<()> {
    let before = hello_pids();
    let restarts = || -> Result<u32> {
        let counts = cluster.jsonpath("pods -l app=hello", "{.items[*].status.containerStatuses[0].restartCount}")?;
        Ok(counts.split(' ').filter_map(|count| count.parse::<u32>().ok()).sum())
    };
    kill(*before.first().context("a container")?)?;
    eventually("the container restarts", Duration::from_secs(10), || Ok((restarts()? == 1).then_some(())))?;
    let fresh = hello_pids().difference(&before).next().copied();
    kill(fresh.context("the restarted container")?)?;
    eventually("the second restart waits", Duration::from_secs(10), || {
        let path = "{.items[*].status.containerStatuses[0].state.waiting.reason}";
        Ok((cluster.jsonpath("pods -l app=hello", path)? == "CrashLoopBackOff").then_some(()))
    })?;
    eventually("the container restarts after its back-off", Duration::from_secs(30), || {
        Ok((restarts()? == 2).then_some(()))
    })?;
    cluster.kubectl(&["rollout", "status", "deployment/hello", "--timeout=30s"])?;
    Ok(())
}

fn kill(pid: u32) -> Result<()> {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid)?);
    Ok(nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)?)
}

#[test]
fn the_binary_is_static_and_small() -> Result<()> {
    let binary = ferry_binary();
    let size = std::fs::metadata(&binary).with_context(|| binary.display().to_string())?.len();
    let told = Command::new("file").arg(&binary).output()?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    println!("{size} bytes; {told}");
    ensure!(size <= 40_000_000, "the bar is 40 MB, it has {size} bytes");
    ensure!(told.contains("static"), "{told}");
    Ok(())
}
