//! A pod's phase, from the states of its containers.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};

use crate::spec;

#[derive(Default)]
struct Count {
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    /// Stopped for good.
    finished: usize,
    succeeded: usize,
    pending_init: usize,
    pending_sidecars: usize,
}

/// `terminal`: nothing of this pod will be started again. `initialized`: a regular container exists in the current sandbox.
pub(crate) fn phase(pod: &Pod, statuses: &[ContainerStatus], terminal: bool, initialized: bool) -> &'static str {
    let find = |container: &Container| statuses.iter().find(|status| status.name == container.name);
    let mut count = Count::default();
    for container in spec::init_containers(pod).iter().filter(|container| !spec::is_sidecar(container)) {
        match find(container).map(ended) {
            Some(Ended::Now(code) | Ended::Before(code)) => {
                if code != 0 && !spec::should_restart(container, pod, code) {
                    return "Failed";
                }
            }
            _ => count.pending_init += 1,
        }
    }
    for container in spec::init_containers(pod).iter().filter(|container| spec::is_sidecar(container)) {
        let Some(status) = find(container) else {
            count.unknown += 1;
            continue;
        };
        match ended(status) {
            Ended::Running => {
                count.running += 1;
                count.pending_sidecars += usize::from(status.started != Some(true));
            }
            Ended::Never => {
                count.pending_sidecars += 1;
                count.waiting += 1;
            }
            Ended::Now(_) | Ended::Before(_) => (),
        }
    }
    for container in spec::containers(pod) {
        let Some(status) = find(container) else {
            count.unknown += 1;
            continue;
        };
        match ended(status) {
            Ended::Running => count.running += 1,
            Ended::Never => count.waiting += 1,
            Ended::Now(code) => {
                count.stopped += 1;
                count.finished += usize::from(!spec::should_restart(container, pod, code));
                count.succeeded += usize::from(code == 0);
            }
            Ended::Before(code) => {
                count.stopped += 1;
                count.finished += usize::from(!spec::should_restart(container, pod, code));
            }
        }
    }
    decide(pod, &count, terminal, initialized)
}

fn decide(pod: &Pod, count: &Count, terminal: bool, initialized: bool) -> &'static str {
    let outcome = || if count.stopped == count.succeeded { "Succeeded" } else { "Failed" };
    if count.pending_init > 0 || (count.pending_sidecars > 0 && !initialized) || count.waiting > 0 {
        "Pending"
    } else if count.running > 0 && count.unknown == 0 {
        "Running"
    } else if count.running == 0 && count.stopped > 0 && count.unknown == 0 {
        if (terminal && !spec::is_static(pod)) || count.stopped == count.finished { outcome() } else { "Running" }
    } else {
        "Pending"
    }
}

enum Ended {
    Running,
    /// Waiting, and never ran.
    Never,
    Now(i32),
    /// Waiting to run again.
    Before(i32),
}

fn ended(status: &ContainerStatus) -> Ended {
    let state = status.state.as_ref();
    if state.is_some_and(|state| state.running.is_some()) {
        return Ended::Running;
    }
    if let Some(terminated) = state.and_then(|state| state.terminated.as_ref()) {
        return Ended::Now(terminated.exit_code);
    }
    match status.last_state.as_ref().and_then(|state| state.terminated.as_ref()) {
        Some(terminated) => Ended::Before(terminated.exit_code),
        None => Ended::Never,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `policy init… | regular…`; a state is `run`, `wait`, `exit=N`, `again=N` (waiting after an exit), a sidecar starts with `@`.
    #[track_caller]
    fn check(case: &str, terminal: bool, want: &str) {
        let (head, regular) = case.split_once('|').expect("a bar");
        let mut words = head.split_whitespace();
        let policy = words.next().expect("a policy");
        let mut statuses = Vec::new();
        let mut parse = |word: &str, index: usize, kind: &str| {
            let (sidecar, word) = word.strip_prefix('@').map_or((false, word), |word| (true, word));
            let name = format!("{kind}{index}");
            let ended = |code: &str| json!({ "terminated": { "exitCode": code.parse::<i32>().expect("a code") } });
            let (state, last) = match word.split_once('=') {
                Some(("exit", code)) => (ended(code), json!({})),
                Some(("again", code)) => (json!({ "waiting": {} }), ended(code)),
                _ if word == "run" => (json!({ "running": {} }), json!({})),
                _ => (json!({ "waiting": {} }), json!({})),
            };
            let started = word == "run";
            statuses.push(json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": state, "lastState": last, "started": started }));
            if sidecar { json!({ "name": name, "restartPolicy": "Always" }) } else { json!({ "name": name }) }
        };
        let init: Vec<_> = words.enumerate().map(|(index, word)| parse(word, index, "i")).collect();
        let regular: Vec<_> = regular.split_whitespace().enumerate().map(|(i, word)| parse(word, i, "c")).collect();
        let initialized =
            regular.iter().len() > 0 && case.split_once('|').is_some_and(|(_, text)| text.contains("run"));
        let pod: Pod = serde_json::from_value(
            json!({ "metadata": {}, "spec": { "restartPolicy": policy, "initContainers": init, "containers": regular } }),
        )
        .expect("a pod");
        let statuses: Vec<ContainerStatus> = serde_json::from_value(json!(statuses)).expect("statuses");
        assert_eq!(phase(&pod, &statuses, terminal, initialized), want, "{case}");
    }

    #[test]
    fn running_pods() {
        check("Always | run", false, "Running");
        check("Always | run run", false, "Running");
        check("Always | run exit=1", false, "Running");
        check("Always | again=1", false, "Running");
        check("Always exit=0 | run", false, "Running");
        check("Always @run | run", false, "Running");
        check("OnFailure | exit=1", false, "Running");
    }

    #[test]
    fn pending_pods() {
        check("Always | wait", false, "Pending");
        check("Always | run wait", false, "Pending");
        check("Always run | wait", false, "Pending");
        check("Always exit=1 | wait", false, "Pending");
        check("Always @wait | wait", false, "Pending");
    }

    #[test]
    fn finished_pods() {
        check("Never | exit=0", false, "Succeeded");
        check("Never | exit=0 exit=1", false, "Failed");
        check("OnFailure | exit=0", false, "Succeeded");
        check("Never exit=1 | wait", false, "Failed");
        check("Always | exit=0", true, "Succeeded");
        check("Always | exit=137", true, "Failed");
        check("Never @run | exit=0", false, "Running");
        check("Never @exit=0 | exit=0", false, "Succeeded");
    }
}
