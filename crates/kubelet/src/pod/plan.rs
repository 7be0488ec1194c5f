//! Decides what a pod needs next: which sandbox, which containers to start, which to kill.
//!
//! [`plan`] looks at the spec, at what the runtime has, and at probe results; it has no clock and no I/O. Back-off is applied by
//! whoever starts a container, because a container in back-off is still one that should run.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::labels;
use super::observed::{Observed, Seen, State};
use crate::probes::{Kind, Outcome, Results};
use crate::spec;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Stop everything of this pod first: its sandbox is no good, or nothing is left to run.
    pub(crate) kill_pod: bool,
    /// The attempt number of the sandbox to make.
    pub(crate) create_sandbox: Option<u32>,
    /// The sandbox in use, when none is to be made.
    pub(crate) sandbox_id: Option<String>,
    pub(crate) kill: Vec<Kill>,
    pub(crate) start_ephemeral: Vec<String>,
    pub(crate) start_init: Vec<String>,
    pub(crate) start: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kill {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) message: String,
    pub(crate) cause: Cause,
}

/// Why a container is killed; a failed probe may carry a grace period of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Other,
    Probe(Kind),
}

pub(crate) fn plan(pod: &Pod, observed: &Observed, results: &Results) -> Plan {
    let (changed, attempt, sandbox_id) = observed.sandbox_changed(pod);
    let mut plan = Plan { kill_pod: changed, sandbox_id, ..Default::default() };
    if changed {
        plan_new_sandbox(pod, observed, attempt, &mut plan);
        return plan;
    }
    for container in spec::ephemeral_containers(pod) {
        // They are never started again.
        if observed.latest(&container.name).is_none() {
            plan.start_ephemeral.push(container.name);
        }
    }
    let initialized = plan_init(pod, observed, results, &mut plan);
    if plan.kill_pod || !initialized {
        return plan;
    }
    let mut keep = 0;
    for container in spec::containers(pod) {
        keep += usize::from(plan_container(pod, container, observed, results, &mut plan));
    }
    if keep == 0 && plan.start.is_empty() {
        plan.kill_pod = true;
        // Sidecars must not come back once the regular containers are done.
        plan.start_init.clear();
    }
    plan
}

/// Without a sandbox everything starts from the beginning, unless there is nothing left to run.
fn plan_new_sandbox(pod: &Pod, observed: &Observed, attempt: u32, plan: &mut Plan) {
    if !restarts_on_failure(pod) && attempt != 0 && !observed.containers.is_empty() {
        return;
    }
    let succeeded = |container: &Container| {
        observed.latest(&container.name).is_some_and(|seen| seen.state == State::Exited && seen.exit_code == 0)
    };
    let run_once = |container: &Container| {
        let own = container.restart_policy.as_deref();
        own.or(spec::spec(pod).restart_policy.as_deref()) == Some("OnFailure")
    };
    let start: Vec<_> =
        spec::containers(pod).iter().filter(|c| !(run_once(c) && succeeded(c))).map(|c| c.name.clone()).collect();
    if start.is_empty() && has_created_regular(pod, observed) {
        return;
    }
    plan.create_sandbox = Some(attempt);
    match spec::init_containers(pod).first() {
        Some(first) => plan.start_init.push(first.name.clone()),
        None => plan.start = start,
    }
}

pub(crate) fn has_created_regular(pod: &Pod, observed: &Observed) -> bool {
    let seen = spec::containers(pod).iter().filter_map(|container| observed.latest(&container.name));
    seen.into_iter().any(|seen| seen.state != State::Unknown)
}

fn restarts_on_failure(pod: &Pod) -> bool {
    spec::spec(pod).restart_policy.as_deref() != Some("Never")
}

/// Returns whether the container is kept running.
fn plan_container(pod: &Pod, container: &Container, observed: &Observed, results: &Results, plan: &mut Plan) -> bool {
    let seen = observed.latest(&container.name);
    let Some(running) = seen.filter(|seen| seen.state == State::Running) else {
        if should_run(container, pod, observed) {
            plan.start.push(container.name.clone());
            if let Some(unknown) = seen.filter(|seen| seen.state == State::Unknown) {
                let message = "Container is in \"unknown\" state, try killing it before restart".to_owned();
                plan.kill.push(kill(unknown, message, Cause::Other));
            }
        }
        return false;
    };
    let mut restart =
        container.restart_policy.as_deref().map_or_else(|| restarts_on_failure(pod), |policy| policy != "Never");
    let name = &container.name;
    let failed = |kind| results.get(kind, &running.id) == Some(Outcome::Failure);
    let (message, cause) = if running.hash != labels::hash(container) {
        restart = true;
        (format!("Container {name} definition changed"), Cause::Other)
    } else if failed(Kind::Liveness) {
        (format!("Container {name} failed liveness probe"), Cause::Probe(Kind::Liveness))
    } else if failed(Kind::Startup) {
        (format!("Container {name} failed startup probe"), Cause::Probe(Kind::Startup))
    } else {
        return true;
    };
    let message = if restart { format!("{message}, will be restarted") } else { message };
    plan.kill.push(kill(running, message, cause));
    if restart {
        plan.start.push(name.clone());
    }
    false
}

fn kill(seen: &Seen, message: String, cause: Cause) -> Kill {
    Kill { id: seen.id.clone(), name: seen.name.clone(), message, cause }
}

/// Whether the container should be running although it is not.
pub(crate) fn should_run(container: &Container, pod: &Pod, observed: &Observed) -> bool {
    if spec::is_deleted(pod) {
        return false;
    }
    match observed.latest(&container.name) {
        None => true,
        Some(seen) => match seen.state {
            State::Running => false,
            State::Unknown | State::Created => true,
            State::Exited => spec::should_restart(container, pod, seen.exit_code),
        },
    }
}

/// Walks init containers from the last, because finished ones may already have been removed. Returns whether all are done.
fn plan_init(pod: &Pod, observed: &Observed, results: &Results, plan: &mut Plan) -> bool {
    let init = spec::init_containers(pod);
    if init.is_empty() {
        return true;
    }
    let live = |seen: &Seen| matches!(seen.state, State::Created | State::Running);
    let mut initialized = spec::containers(pod).iter().filter_map(|c| observed.latest(&c.name)).any(live);
    let mut passed = initialized;
    let mut start = Vec::new();
    for (index, container) in init.iter().enumerate().rev() {
        let sidecar = spec::is_sidecar(container);
        let Some(seen) = observed.latest(&container.name) else {
            if passed && sidecar {
                start.push(index);
            }
            continue;
        };
        if passed && !sidecar {
            continue;
        }
        let last = index + 1 == init.len();
        match seen.state {
            State::Created => start.push(index),
            State::Running if !sidecar => (),
            State::Running => {
                let done = plan_sidecar(container, seen, results, plan, &mut start, index);
                if done && last {
                    initialized = true;
                } else if done && !passed {
                    start.push(index + 1);
                }
            }
            State::Exited if sidecar => start.push(index),
            State::Exited if seen.exit_code == 0 => {
                if last {
                    initialized = true;
                } else {
                    start.push(index + 1);
                }
            }
            State::Exited | State::Unknown => {
                if !sidecar
                    && !spec::should_restart(container, pod, if seen.exit_code == 0 { 1 } else { seen.exit_code })
                {
                    plan.kill_pod = true;
                    return false;
                }
                if seen.state == State::Unknown {
                    let message = "Init container is in \"unknown\" state, try killing it before restart".to_owned();
                    plan.kill.push(kill(seen, message, Cause::Other));
                }
                start.push(index);
            }
        }
        passed = true;
    }
    if !passed {
        start.push(0);
    }
    start.sort_unstable();
    start.dedup();
    plan.start_init = start.into_iter().filter_map(|index| init.get(index)).map(|c| c.name.clone()).collect();
    initialized
}

/// A running sidecar: whether it has started, so that the next init container may, and whether it must be replaced.
fn plan_sidecar(
    container: &Container,
    seen: &Seen,
    results: &Results,
    plan: &mut Plan,
    start: &mut Vec<usize>,
    index: usize,
) -> bool {
    let name = &container.name;
    let mut replace = |message: String, cause: Cause| {
        plan.kill.push(kill(seen, message, cause));
        start.push(index);
    };
    if container.startup_probe.is_some() {
        match results.get(Kind::Startup, &seen.id) {
            Some(Outcome::Success) => (),
            Some(Outcome::Failure) => {
                replace(format!("Init container {name} failed startup probe"), Cause::Probe(Kind::Startup));
                return false;
            }
            None => return false,
        }
    }
    if seen.hash != labels::hash(container) {
        replace(format!("Init container {name} definition changed"), Cause::Other);
    } else if results.get(Kind::Liveness, &seen.id) == Some(Outcome::Failure) {
        replace(format!("Init container {name} failed liveness probe"), Cause::Probe(Kind::Liveness));
    }
    true
}
