//! Stops containers and sandboxes: the preStop hook, the grace period, sidecars after the regular containers.

use std::collections::HashMap;
use std::time::Duration;

use cri::v1::{StopContainerRequest, StopPodSandboxRequest};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use super::observed::{Observed, unless_gone};
use super::plan::Cause;
use super::{hooks, labels};
use crate::context::{Context, container_reference};
use crate::spec;

/// Every container gets at least this long to go by itself.
const MIN_GRACE: i64 = 2;

pub(crate) struct Victim<'a> {
    pub(crate) id: &'a str,
    pub(crate) container: &'a Container,
    pub(crate) message: &'a str,
    pub(crate) cause: Cause,
    /// Overrides what pod and probe say.
    pub(crate) grace: Option<i64>,
}

/// The grace period of one container.
pub(crate) fn grace(pod: &Pod, container: &Container, cause: Cause) -> i64 {
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        return grace;
    }
    let of_probe = match cause {
        Cause::Probe(kind) => spec::probe_of(container, kind).and_then(|probe| probe.termination_grace_period_seconds),
        Cause::Other => None,
    };
    of_probe.or(spec::spec(pod).termination_grace_period_seconds).unwrap_or(MIN_GRACE)
}

/// Runs the preStop hook and stops the container; returns when it has ended. Safe to repeat and to drop.
pub(crate) async fn container(
    context: &Context,
    pod: &Pod,
    victim: &Victim<'_>,
    pod_ip: &str,
    turn: Option<&Turn>,
) -> Result<(), Status> {
    let name = &victim.container.name;
    let grace = victim.grace.unwrap_or_else(|| grace(pod, victim.container, victim.cause));
    let message =
        if victim.message.is_empty() { format!("Stopping container {name}") } else { victim.message.to_owned() };
    let reference = container_reference(pod, name);
    context.recorder.normal(&reference, "Killing", message.replace(victim.id, name));
    let end = Instant::now() + Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    let pre_stop = victim.container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let Some(hook) = pre_stop.filter(|_| grace > 0) {
        let run = hooks::run(context.cri.as_ref(), pod, victim.container, victim.id, pod_ip, hook);
        if let Ok(Err(error)) = tokio::time::timeout_at(end, run).await {
            // Not in the event: it could carry what the server answered.
            tracing::debug!(container = name, error, "preStop hook failed");
            context.recorder.warning(&reference, "FailedPreStopHook", "PreStopHook failed".to_owned());
        }
    }
    if let Some(turn) = turn {
        let _ = tokio::time::timeout_at(end, turn.wait(name)).await;
    }
    let left =
        i64::try_from(end.saturating_duration_since(Instant::now()).as_secs_f64().ceil() as u64).unwrap_or(grace);
    let request = StopContainerRequest { container_id: victim.id.to_owned(), timeout: left.max(MIN_GRACE) };
    let stopped = unless_gone(context.cri.stop_container(request).await).map(drop);
    if let Some(turn) = turn {
        turn.ended(name);
    }
    stopped
}

/// Stops all running containers at once (sidecars last, in reverse order), then every sandbox.
pub(crate) async fn pod(context: &Context, pod: &Pod, observed: &Observed, grace: Option<i64>) -> Result<(), Status> {
    let specs: Vec<(String, Container)> = observed
        .running()
        .map(|seen| {
            let known = spec::container(pod, &seen.name);
            (seen.id.clone(), known.unwrap_or_else(|| labels::restore(&seen.name, &seen.annotations)))
        })
        .collect();
    let has_sidecar = spec::init_containers(pod).iter().any(spec::is_sidecar);
    let turn = has_sidecar.then(|| Turn::new(pod, specs.iter().map(|(_, container)| container.name.as_str())));
    let pod_ip = context.pod_ip(pod, observed);
    let kills = specs.iter().map(|(id, spec)| {
        let victim = Victim { id, container: spec, message: "", cause: Cause::Other, grace };
        let (turn, pod_ip) = (turn.as_ref(), &pod_ip);
        async move { container(context, pod, &victim, pod_ip, turn).await }
    });
    let mut outcome = Ok(());
    for result in join_all(kills).await {
        outcome = outcome.and(result);
    }
    outcome?;
    for sandbox in &observed.sandboxes {
        let request = StopPodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
        unless_gone(context.cri.stop_pod_sandbox(request).await)?;
    }
    Ok(())
}

/// Who must have ended before a sidecar is stopped: the regular containers, and the sidecar started after it.
pub(crate) struct Turn {
    running: HashMap<String, watch::Sender<bool>>,
    after: HashMap<String, Vec<String>>,
}

impl Turn {
    fn new<'a>(pod: &Pod, running: impl Iterator<Item = &'a str>) -> Self {
        let running = running.map(|name| (name.to_owned(), watch::Sender::new(false))).collect();
        let regular: Vec<_> = spec::containers(pod).iter().map(|container| container.name.clone()).collect();
        let mut after = HashMap::new();
        let mut later: Option<String> = None;
        for sidecar in spec::init_containers(pod).iter().rev().filter(|container| spec::is_sidecar(container)) {
            let waits = regular.iter().cloned().chain(later.take()).collect();
            after.insert(sidecar.name.clone(), waits);
            later = Some(sidecar.name.clone());
        }
        Self { running, after }
    }

    async fn wait(&self, name: &str) {
        for earlier in self.after.get(name).into_iter().flatten() {
            if let Some(ended) = self.running.get(earlier) {
                // The sender lives in `self`, so this cannot fail.
                let _ = ended.subscribe().wait_for(|ended| *ended).await;
            }
        }
    }

    fn ended(&self, name: &str) {
        if let Some(ended) = self.running.get(name) {
            ended.send_replace(true);
        }
    }
}
