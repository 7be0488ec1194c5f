//! The pod conditions the kubelet owns.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::spec;

pub(crate) const OWNED: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// Set on a pod that the node ends for its own sake; otherwise it is another's.
pub(crate) const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// A condition's status, reason and message.
#[derive(Clone, Debug, PartialEq)]
struct Verdict {
    holds: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
    const TRUE: Self = Self { holds: true, reason: None, message: None };

    fn not(reason: &'static str, message: Option<String>) -> Self {
        Self { holds: false, reason: Some(reason), message }
    }
}

/// All conditions of the pod: those of others as they are, then ours. A transition time changes only with the status.
pub(crate) fn conditions(
    pod: &Pod,
    old: &PodStatus,
    new: &PodStatus,
    sandbox: bool,
    disruption: Option<&str>,
    now: Timestamp,
) -> Vec<PodCondition> {
    let foreign = |condition: &&PodCondition| !OWNED.contains(&condition.type_.as_str());
    let mut all: Vec<_> = spec::status(pod).conditions.iter().flatten().filter(foreign).cloned().collect();
    if let Some(message) = disruption {
        let known = old.conditions.iter().flatten().find(|condition| condition.type_ == DISRUPTION_TARGET);
        all.retain(|condition| condition.type_ != DISRUPTION_TARGET);
        all.push(PodCondition {
            type_: DISRUPTION_TARGET.to_owned(),
            status: "True".to_owned(),
            reason: Some("TerminationByKubelet".to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some(known.and_then(|known| known.last_transition_time.clone()).unwrap_or(Time(now))),
            observed_generation: pod.metadata.generation,
            ..Default::default()
        });
    }
    let statuses: Vec<&ContainerStatus> =
        new.init_container_statuses.iter().chain(&new.container_statuses).flatten().collect();
    let phase = new.phase.as_deref().unwrap_or_default();
    let containers_ready = containers_ready(pod, &statuses, phase);
    let ready = if containers_ready.holds { gates(pod, &all) } else { containers_ready.clone() };
    let verdicts = [
        Verdict { holds: sandbox, reason: None, message: None },
        initialized(pod, &statuses, phase),
        ready,
        containers_ready,
        Verdict::TRUE,
    ];
    for (type_, verdict) in OWNED.into_iter().zip(verdicts) {
        let status = if verdict.holds { "True" } else { "False" };
        let known = old.conditions.iter().flatten().find(|condition| condition.type_ == type_);
        let kept = known.filter(|known| known.status == status).and_then(|known| known.last_transition_time.clone());
        all.push(PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: verdict.reason.map(str::to_owned),
            message: verdict.message,
            last_probe_time: None,
            last_transition_time: Some(kept.unwrap_or(Time(now))),
            observed_generation: pod.metadata.generation,
        });
    }
    all
}

fn containers_ready(pod: &Pod, statuses: &[&ContainerStatus], phase: &str) -> Verdict {
    let sidecars = spec::init_containers(pod).iter().filter(|container| spec::is_sidecar(container));
    let mut unknown = Vec::new();
    let mut unready = Vec::new();
    for container in sidecars.chain(spec::containers(pod)) {
        match statuses.iter().find(|status| status.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) if !status.ready => unready.push(container.name.as_str()),
            Some(_) => (),
        }
    }
    if phase == "Succeeded" && unknown.is_empty() {
        return Verdict::not("PodCompleted", None);
    }
    if phase == "Failed" {
        return Verdict::not("PodFailed", None);
    }
    match list(&unknown, "unready", &unready) {
        None => Verdict::TRUE,
        message => Verdict::not("ContainersNotReady", message),
    }
}

fn gates(pod: &Pod, conditions: &[PodCondition]) -> Verdict {
    let mut missing = Vec::new();
    for gate in spec::spec(pod).readiness_gates.iter().flatten() {
        let wanted = &gate.condition_type;
        match conditions.iter().find(|condition| condition.type_ == *wanted) {
            None => missing.push(format!("corresponding condition of pod readiness gate \"{wanted}\" does not exist.")),
            Some(condition) if condition.status != "True" => missing.push(format!(
                "the status of pod readiness gate \"{wanted}\" is not \"True\", but {}",
                condition.status
            )),
            Some(_) => (),
        }
    }
    if missing.is_empty() { Verdict::TRUE } else { Verdict::not("ReadinessGatesNotReady", Some(missing.join(", "))) }
}

fn initialized(pod: &Pod, statuses: &[&ContainerStatus], phase: &str) -> Verdict {
    let mut unknown = Vec::new();
    let mut incomplete = Vec::new();
    for container in spec::init_containers(pod) {
        match statuses.iter().find(|status| status.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) => {
                let done = if spec::is_sidecar(container) { status.started == Some(true) } else { status.ready };
                if !done {
                    incomplete.push(container.name.as_str());
                }
            }
        }
    }
    if phase == "Succeeded" && unknown.is_empty() {
        return Verdict { holds: true, reason: Some("PodCompleted"), message: None };
    }
    let started = |status: &&&ContainerStatus| {
        let state = status.state.as_ref();
        state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
            && spec::containers(pod).iter().any(|container| container.name == status.name)
    };
    if statuses.iter().any(|status| started(&status)) {
        return Verdict::TRUE;
    }
    match list(&unknown, "incomplete", &incomplete) {
        None => Verdict::TRUE,
        message => Verdict::not("ContainersNotInitialized", message),
    }
}

fn list(unknown: &[&str], word: &str, others: &[&str]) -> Option<String> {
    let part = |word: &str, names: &[&str]| {
        (!names.is_empty()).then(|| format!("containers with {word} status: [{}]", names.join(" ")))
    };
    let parts: Vec<_> = [part("unknown", unknown), part(word, others)].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}
