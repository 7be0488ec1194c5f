//! The status the kubelet reports for a pod. Pure: everything it depends on is in [`Inputs`].

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, HostIP, LinuxContainerUser, Pod, PodIP, PodStatus, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::conditions::conditions;
use super::observed::{Observed, Seen, State};
use super::phase::phase;
use super::plan::{has_created_regular, should_run};
use crate::clock::whole_seconds;
use crate::probes::{Kind, Outcome, Results};
use crate::{qos, spec};

/// Why a container that should run does not: the waiting reason and message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reason {
    pub(crate) reason: String,
    pub(crate) message: String,
}

pub(crate) struct Inputs<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) observed: &'a Observed,
    /// What was last reported, by this kubelet or the one before it.
    pub(crate) old: &'a PodStatus,
    pub(crate) results: &'a Results,
    pub(crate) reasons: &'a HashMap<String, Reason>,
    /// Nothing will be started again: the pod is being deleted, was evicted or has finished.
    pub(crate) terminal: bool,
    pub(crate) host_ip: &'a str,
    pub(crate) runtime: &'a str,
    pub(crate) now: Timestamp,
}

/// A phase that was forced, with its reason and message: rejected on this node, deadline exceeded.
pub(crate) struct Verdict<'a> {
    pub(crate) phase: &'a str,
    pub(crate) reason: &'a str,
    pub(crate) message: &'a str,
    /// The pod gets the condition DisruptionTarget.
    pub(crate) is_disruption: bool,
}

pub(crate) fn status(inputs: &Inputs<'_>, forced: Option<&Verdict<'_>>) -> PodStatus {
    let Inputs { pod, observed, old, .. } = *inputs;
    let now = whole_seconds(inputs.now);
    let init = spec::init_containers(pod);
    let mut new = PodStatus {
        container_statuses: list(inputs, spec::containers(pod), &old.container_statuses, Group::Regular),
        init_container_statuses: list(inputs, init, &old.init_container_statuses, Group::Init),
        ephemeral_container_statuses: list(
            inputs,
            &spec::ephemeral_containers(pod),
            &old.ephemeral_container_statuses,
            Group::Ephemeral,
        ),
        qos_class: Some(old.qos_class.clone().unwrap_or_else(|| qos::class(pod).as_str().to_owned())),
        start_time: Some(old.start_time.clone().unwrap_or(Time(now))),
        observed_generation: pod.metadata.generation.max(old.observed_generation),
        nominated_node_name: old.nominated_node_name.clone(),
        resource_claim_statuses: spec::status(pod).resource_claim_statuses.clone(),
        ..Default::default()
    };
    // What a rejected pod never tried to run is not lost.
    let over = inputs.terminal && forced.is_none() && observed.running().next().is_none() && !spec::is_static(pod);
    if over {
        finish(pod, &mut new);
    }
    let all: Vec<_> = new.init_container_statuses.iter().chain(&new.container_statuses).flatten().cloned().collect();
    let mut found = phase(pod, &all, inputs.terminal, observed.has_active_regular(pod)).to_owned();
    if over && found != "Succeeded" {
        found = "Failed".to_owned();
    }
    if let Some(kept) = [old, spec::status(pod)].into_iter().find(|status| spec::is_terminal(status)) {
        found = kept.phase.clone().unwrap_or_default();
    }
    if old.phase.as_deref() == Some(&found) {
        new.reason = old.reason.clone();
        new.message = old.message.clone();
    }
    if let Some(forced) = forced {
        found = forced.phase.to_owned();
        new.reason = Some(forced.reason.to_owned());
        new.message = Some(forced.message.to_owned());
    }
    new.phase = Some(found);
    set_addresses(inputs, &mut new);
    let sandbox = !observed.sandbox_changed(pod).0;
    let disruption = forced.filter(|forced| forced.is_disruption).map(|forced| forced.message);
    new.conditions = Some(conditions(pod, old, &new, sandbox, disruption, now));
    new
}

/// Containers of a pod that is over have ended, even where the runtime cannot say how: those of an initialized pod, and init
/// containers up to the last one that ever ran.
fn finish(pod: &Pod, status: &mut PodStatus) {
    let ended = |status: &ContainerStatus| {
        let last = status.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
        last || status.state.as_ref().is_some_and(|state| state.waiting.is_none())
    };
    let init_statuses = status.init_container_statuses.as_deref_mut().unwrap_or_default();
    let init_done = init_statuses.last().is_none_or(|status| {
        let state = status.state.as_ref().and_then(|state| state.terminated.as_ref());
        state.is_some_and(|state| state.exit_code == 0)
    });
    let regular = status.container_statuses.as_deref_mut().unwrap_or_default();
    let initialized = spec::init_containers(pod).is_empty() || regular.iter().any(ended) || init_done;
    let reached = init_statuses.iter().rposition(ended).map_or(1, |last| last + 1);
    let regular = regular.iter_mut().filter(|_| initialized);
    for status in init_statuses.iter_mut().take(reached).chain(regular) {
        if status.state.as_ref().is_none_or(|state| state.terminated.is_none()) {
            status.state = Some(lost("The container could not be located when the pod was terminated"));
            status.ready = false;
            status.started = Some(false);
        }
    }
}

fn set_addresses(inputs: &Inputs<'_>, new: &mut PodStatus) {
    let ips = inputs.observed.ips();
    let host_network = spec::is_host_network(inputs.pod);
    let pod_ips: Vec<String> = if host_network { vec![inputs.host_ip.to_owned()] } else { ips.to_vec() };
    // A finished pod keeps the address it had.
    if pod_ips.is_empty() && inputs.terminal {
        new.pod_ip = inputs.old.pod_ip.clone();
        new.pod_ips = inputs.old.pod_ips.clone();
    } else if !pod_ips.is_empty() {
        new.pod_ip = pod_ips.first().cloned();
        new.pod_ips = Some(pod_ips.into_iter().map(|ip| PodIP { ip }).collect());
    }
    new.host_ip = Some(inputs.host_ip.to_owned());
    new.host_ips = Some(vec![HostIP { ip: inputs.host_ip.to_owned() }]);
}

#[derive(Clone, Copy, PartialEq)]
enum Group {
    Init,
    Regular,
    Ephemeral,
}

fn list(
    inputs: &Inputs<'_>,
    containers: &[Container],
    old: &Option<Vec<ContainerStatus>>,
    group: Group,
) -> Option<Vec<ContainerStatus>> {
    let one = |container: &Container| {
        let old = old.iter().flatten().find(|status| status.name == container.name);
        container_status(inputs, container, old, group)
    };
    let mut all: Vec<_> = containers.iter().map(one).collect();
    if group == Group::Regular {
        all.sort_by(|a, b| a.name.cmp(&b.name));
    }
    (!all.is_empty()).then_some(all)
}

fn container_status(
    inputs: &Inputs<'_>,
    container: &Container,
    old: Option<&ContainerStatus>,
    group: Group,
) -> ContainerStatus {
    let mut runs = inputs.observed.containers.iter().filter(|seen| seen.name == container.name);
    let (newest, previous) = (runs.next(), runs.next());
    let mut status = match newest {
        Some(seen) => from_seen(inputs, seen, old),
        None => from_nothing(inputs, container, old),
    };
    if let Some(previous) = previous {
        status.last_state = Some(from_seen(inputs, previous, None).state.unwrap_or_default());
    }
    status.volume_mounts = mounts(container);
    if newest.is_some() && group != Group::Ephemeral {
        status.resources = container.resources.clone().or_else(|| Some(Default::default()));
        status.allocated_resources = container.resources.as_ref().and_then(|resources| resources.requests.clone());
    }
    apply_waiting(inputs, container, newest, group, &mut status);
    if group != Group::Ephemeral {
        apply_probes(inputs, container, group, &mut status);
    }
    status
}

fn mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let all = container.volume_mounts.as_ref()?;
    let one = |mount: &k8s_openapi::api::core::v1::VolumeMount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only.filter(|read_only| *read_only),
        recursive_read_only: (mount.read_only == Some(true)).then(|| "Disabled".to_owned()),
        ..Default::default()
    };
    Some(all.iter().map(one).collect())
}

fn from_seen(inputs: &Inputs<'_>, seen: &Seen, old: Option<&ContainerStatus>) -> ContainerStatus {
    let id = format!("{}://{}", inputs.runtime, seen.id);
    let mut status = ContainerStatus {
        name: seen.name.clone(),
        image: seen.image.clone(),
        image_id: seen.image_ref.clone(),
        container_id: Some(id.clone()),
        restart_count: i32::try_from(seen.restart_count).unwrap_or(i32::MAX),
        last_state: Some(old.and_then(|old| last_of(old, &id)).unwrap_or_default()),
        user: seen.user.as_ref().map(user_of),
        ..Default::default()
    };
    let time = |at: Option<Timestamp>| at.map(|at| Time(whole_seconds(at)));
    let was_running = old.is_some_and(|old| old.state.as_ref().is_some_and(|state| state.running.is_some()));
    status.state = Some(match seen.state {
        State::Running => ContainerState {
            running: Some(ContainerStateRunning { started_at: time(seen.started_at) }),
            ..Default::default()
        },
        State::Exited => ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: seen.exit_code,
                reason: Some(reason_of(seen)),
                message: Some(seen.message.clone()).filter(|message| !message.is_empty()),
                started_at: time(seen.started_at),
                finished_at: time(seen.finished_at),
                container_id: Some(id),
                signal: None,
            }),
            ..Default::default()
        },
        State::Unknown if was_running => {
            status.restart_count = old.map_or(0, |old| old.restart_count) + 1;
            lost("The container could not be located when the pod was terminated")
        }
        State::Created | State::Unknown => waiting(None, None),
    });
    status
}

/// The state before this one, as it was reported when the container it belongs to has been removed since.
fn last_of(old: &ContainerStatus, id: &str) -> Option<ContainerState> {
    let ended = old.state.as_ref().filter(|state| state.terminated.is_some());
    match ended {
        Some(ended) if old.container_id.as_deref() != Some(id) => Some(ended.clone()),
        _ => old.last_state.clone(),
    }
}

fn reason_of(seen: &Seen) -> String {
    match (seen.reason.as_str(), seen.exit_code) {
        ("", 0) => "Completed".to_owned(),
        ("", _) => "Error".to_owned(),
        (reason, _) => reason.to_owned(),
    }
}

fn user_of(user: &cri::v1::LinuxContainerUser) -> ContainerUser {
    let linux = LinuxContainerUser {
        uid: user.uid,
        gid: user.gid,
        supplemental_groups: Some(user.supplemental_groups.clone()).filter(|groups| !groups.is_empty()),
    };
    ContainerUser { linux: Some(linux) }
}

fn lost(message: &str) -> ContainerState {
    let terminated = ContainerStateTerminated {
        exit_code: 137,
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some(message.to_owned()),
        ..Default::default()
    };
    ContainerState { terminated: Some(terminated), ..Default::default() }
}

fn waiting(reason: Option<&str>, message: Option<&str>) -> ContainerState {
    let waiting = ContainerStateWaiting {
        reason: reason.map(str::to_owned),
        message: message.filter(|message| !message.is_empty()).map(str::to_owned),
    };
    ContainerState { waiting: Some(waiting), ..Default::default() }
}

/// The runtime has no container of that name: it was never made, or it is gone.
fn from_nothing(inputs: &Inputs<'_>, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
    let reason = if spec::init_containers(inputs.pod).is_empty() { "ContainerCreating" } else { "PodInitializing" };
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting(Some(reason), None)),
        last_state: Some(ContainerState::default()),
        ..Default::default()
    };
    let Some(old) = old else { return status };
    let state = old.state.clone().unwrap_or_default();
    if state.terminated.is_some() {
        return old.clone();
    }
    status.restart_count = old.restart_count;
    status.last_state = Some(old.last_state.clone().unwrap_or_default());
    let ran_before = old.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
    if state.running.is_some() && !ran_before {
        let message = "The container could not be located when the pod was deleted.  The container used to be Running";
        status.last_state = Some(lost(message));
        status.restart_count += i32::from(!spec::is_deleted(inputs.pod));
    }
    status
}

/// A container that should run but does not is waiting, if it is known why.
fn apply_waiting(
    inputs: &Inputs<'_>,
    container: &Container,
    newest: Option<&Seen>,
    group: Group,
    status: &mut ContainerStatus,
) {
    if group == Group::Init {
        if newest.is_some_and(|seen| seen.state == State::Exited && seen.exit_code == 0) {
            return;
        }
        let is_waiting = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
        let gone = newest.is_none() && is_waiting && !spec::is_sidecar(container);
        if gone && has_created_regular(inputs.pod, inputs.observed) {
            let message = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally";
            let terminated = ContainerStateTerminated {
                reason: Some("Completed".to_owned()),
                message: Some(message.to_owned()),
                ..Default::default()
            };
            status.state = Some(ContainerState { terminated: Some(terminated), ..Default::default() });
            return;
        }
    }
    if inputs.terminal || !should_run(container, inputs.pod, inputs.observed) {
        return;
    }
    let Some(reason) = inputs.reasons.get(&container.name) else { return };
    if let Some(ended) = status.state.take().filter(|state| state.terminated.is_some()) {
        status.last_state = Some(ended);
    }
    status.state = Some(waiting(Some(&reason.reason), Some(&reason.message)));
}

fn apply_probes(inputs: &Inputs<'_>, container: &Container, group: Group, status: &mut ContainerStatus) {
    let id = status.container_id.as_deref().and_then(|id| id.split_once("://")).map_or("", |(_, id)| id).to_owned();
    let state = status.state.clone().unwrap_or_default();
    let running = state.running.is_some();
    let started = running
        && (container.startup_probe.is_none() || inputs.results.get(Kind::Startup, &id) == Some(Outcome::Success));
    status.started = Some(started);
    if group == Group::Init && !spec::is_sidecar(container) {
        status.ready = state.terminated.is_some_and(|terminated| terminated.exit_code == 0);
        return;
    }
    let probed = inputs.results.get(Kind::Readiness, &id) == Some(Outcome::Success);
    status.ready = started && (container.readiness_probe.is_none() || probed);
}
