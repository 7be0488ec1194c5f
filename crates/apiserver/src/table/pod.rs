//! The cells of a pod: what `kubectl get pods` says about it.

use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::{age, count, list};
use crate::registry::Served;

pub(super) fn ready(pod: &Object) -> Value {
    let (ready, _) = totals(pod);
    let sidecars = list(pod, &["spec", "initContainers"]).into_iter().filter(|c| is_sidecar(c)).count();
    format!("{ready}/{}", list(pod, &["spec", "containers"]).len() + sidecars).into()
}

pub(super) fn restarts(pod: &Object) -> Value {
    let (_, restarts) = totals(pod);
    let last = statuses(pod)
        .into_iter()
        .filter_map(|status| {
            let at = status.text(&["lastState", "terminated", "finishedAt"]);
            at.parse::<jiff::Timestamp>().ok()
        })
        .max();
    match last {
        Some(at) if restarts > 0 => {
            let ago = age::human(jiff::Timestamp::now().duration_since(at).as_secs());
            format!("{restarts} ({ago} ago)").into()
        }
        _ => restarts.to_string().into(),
    }
}

fn is_sidecar(container: &Object) -> bool {
    container.text(&["restartPolicy"]) == "Always"
}

fn statuses(pod: &Object) -> Vec<&Object> {
    let mut all = list(pod, &["status", "initContainerStatuses"]);
    all.extend(list(pod, &["status", "containerStatuses"]));
    all
}

/// Ready containers and restarts, sidecars counted, plain init containers not.
fn totals(pod: &Object) -> (usize, i64) {
    let sidecar = |status: &&Object| {
        list(pod, &["spec", "initContainers"])
            .into_iter()
            .any(|c| is_sidecar(c) && c.text(&["name"]) == status.text(&["name"]))
    };
    let mut counted = list(pod, &["status", "containerStatuses"]);
    counted.extend(list(pod, &["status", "initContainerStatuses"]).into_iter().filter(sidecar));
    let is_ready = |s: &&&Object| s.get("ready") == Some(&Value::Bool(true)) && s.at(&["state", "running"]).is_some();
    (counted.iter().filter(is_ready).count(), counted.iter().map(|s| count(s, &["restartCount"])).sum())
}

/// The one word for where a pod is in its life.
pub(super) fn status(pod: &Object) -> Value {
    let mut reason = match pod.text(&["status", "reason"]) {
        "" => pod.text(&["status", "phase"]).to_owned(),
        reason => reason.to_owned(),
    };
    let gated = list(pod, &["status", "conditions"])
        .into_iter()
        .find(|c| c.text(&["type"]) == "PodScheduled" && c.text(&["reason"]) == "SchedulingGated");
    if gated.is_some() {
        reason = "SchedulingGated".into();
    }
    let init = init_reason(pod);
    if let Some(init) = &init {
        reason.clone_from(init);
    }
    if init.is_none() || initialized(pod) {
        let mut running = false;
        for container in list(pod, &["status", "containerStatuses"]).into_iter().rev() {
            let waiting = container.text(&["state", "waiting", "reason"]);
            let terminated = container.at(&["state", "terminated"]);
            if !waiting.is_empty() {
                reason = waiting.to_owned();
            } else if terminated.is_some() {
                reason = ended(container);
            } else if container.get("ready") == Some(&Value::Bool(true))
                && container.at(&["state", "running"]).is_some()
            {
                running = true;
            }
        }
        if reason == "Completed" && running {
            let ready = list(pod, &["status", "conditions"])
                .into_iter()
                .any(|c| c.text(&["type"]) == "Ready" && c.text(&["status"]) == "True");
            reason = if ready { "Running" } else { "NotReady" }.into();
        }
    }
    if pod.is_terminating() {
        let finished = matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed");
        if pod.text(&["status", "reason"]) == "NodeLost" {
            reason = "Unknown".into();
        } else if !finished {
            reason = "Terminating".into();
        }
    }
    reason.into()
}

fn initialized(pod: &Object) -> bool {
    list(pod, &["status", "conditions"])
        .into_iter()
        .any(|c| c.text(&["type"]) == "Initialized" && c.text(&["status"]) == "True")
}

/// How a terminated container is told: its reason, or its signal or exit code.
fn ended(container: &Object) -> String {
    match container.text(&["state", "terminated", "reason"]) {
        "" => match count(container, &["state", "terminated", "signal"]) {
            0 => format!("ExitCode:{}", count(container, &["state", "terminated", "exitCode"])),
            signal => format!("Signal:{signal}"),
        },
        reason => reason.to_owned(),
    }
}

/// What the init containers are waiting for; `None` once they are through.
fn init_reason(pod: &Object) -> Option<String> {
    let specs = list(pod, &["spec", "initContainers"]);
    for (index, container) in list(pod, &["status", "initContainerStatuses"]).into_iter().enumerate() {
        let spec = specs.iter().find(|spec| spec.text(&["name"]) == container.text(&["name"]));
        let terminated = container.at(&["state", "terminated"]).is_some();
        if terminated && count(container, &["state", "terminated", "exitCode"]) == 0 {
            continue;
        }
        if spec.is_some_and(|spec| is_sidecar(spec)) && container.get("started") == Some(&Value::Bool(true)) {
            continue;
        }
        let waiting = container.text(&["state", "waiting", "reason"]);
        return Some(if terminated {
            format!("Init:{}", ended(container))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{index}/{}", specs.len())
        });
    }
    None
}

/// Finished pods are marked, so that clients can leave them out.
pub(super) fn row_conditions(served: &Served, pod: &Object) -> Option<Value> {
    if served.info.kind != "Pod" {
        return None;
    }
    let (reason, message) = match pod.text(&["status", "phase"]) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}
