//! Liveness, readiness and startup probes: one timer per probe of each running container.

pub(crate) mod action;
pub(crate) mod grpc;
pub(crate) mod http;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod, Probe};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use self::action::{Action, Answer};
use crate::clock::{after, until};
use crate::context::Context;
use crate::pod::observed::{Observed, State};
use crate::spec;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Liveness,
    Readiness,
    Startup,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    fn as_str(self) -> &'static str {
        match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    Failure,
}

/// The settled outcome of each probe, by container.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results(HashMap<(Kind, String), Outcome>);

impl Results {
    pub(crate) fn get(&self, kind: Kind, id: &str) -> Option<Outcome> {
        self.0.get(&(kind, id.to_owned())).copied()
    }

    /// Returns whether that is news.
    pub(crate) fn set(&mut self, kind: Kind, id: &str, outcome: Outcome) -> bool {
        self.0.insert((kind, id.to_owned()), outcome) != Some(outcome)
    }
}

/// Counts answers until a threshold settles them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    last: Option<Outcome>,
    run: i32,
}

impl Tally {
    pub(crate) fn count(&mut self, probe: &Probe, outcome: Outcome) -> Option<Outcome> {
        self.run = if self.last == Some(outcome) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(outcome);
        let threshold = match outcome {
            Outcome::Success => probe.success_threshold.unwrap_or(1),
            Outcome::Failure => probe.failure_threshold.unwrap_or(3),
        };
        (self.run >= threshold).then_some(outcome)
    }
}

/// What a probe tells its pod's worker.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) kind: Kind,
    pub(crate) id: String,
    pub(crate) outcome: Outcome,
}

/// The running probes of one pod.
pub(crate) struct Probes {
    context: Arc<Context>,
    reports: mpsc::UnboundedSender<Report>,
    running: HashMap<(Kind, String), AbortOnDropHandle<()>>,
    pub(crate) results: Results,
}

impl Probes {
    pub(crate) fn new(context: Arc<Context>, reports: mpsc::UnboundedSender<Report>) -> Self {
        Self { context, reports, running: HashMap::new(), results: Results::default() }
    }

    /// Starts probes of containers that run, ends those of containers that do not. `ready_before` are containers that a
    /// kubelet before this one reported ready: they stay so until a probe says otherwise.
    pub(crate) fn follow(&mut self, pod: &Arc<Pod>, observed: &Observed, ready_before: &HashSet<String>) {
        let live: HashSet<&str> = observed.running().map(|seen| seen.id.as_str()).collect();
        self.running.retain(|(_, id), _| live.contains(id.as_str()));
        self.results.0.retain(|(_, id), _| live.contains(id.as_str()));
        let sidecars = spec::init_containers(pod).iter().filter(|container| spec::is_sidecar(container));
        for container in sidecars.chain(spec::containers(pod)) {
            let Some(seen) = observed.latest(&container.name).filter(|seen| seen.state == State::Running) else {
                continue;
            };
            for kind in Kind::ALL {
                let Some(probe) = spec::probe_of(container, kind) else { continue };
                let key = (kind, seen.id.clone());
                if ready_before.contains(&seen.id)
                    && self.results.get(kind, &seen.id).is_none()
                    && kind != Kind::Liveness
                {
                    self.results.set(kind, &seen.id, Outcome::Success);
                }
                let startup = self.results.get(Kind::Startup, &seen.id);
                let started = container.startup_probe.is_none() || startup == Some(Outcome::Success);
                let wanted = if kind == Kind::Startup { startup.is_none() } else { started };
                if !wanted || self.running.contains_key(&key) || self.failed_for_good(&key) {
                    continue;
                }
                let run = Run {
                    context: self.context.clone(),
                    reports: self.reports.clone(),
                    pod: pod.clone(),
                    container: container.clone(),
                    kind,
                    probe: probe.clone(),
                    id: seen.id.clone(),
                    started_at: seen.started_at.unwrap_or_else(|| self.context.clock.now()),
                    pod_ip: self.context.pod_ip(pod, observed),
                };
                self.running.insert(key, AbortOnDropHandle::new(tokio::spawn(run.run())));
            }
        }
    }

    /// A container that failed its liveness or startup probe is about to be killed, and not probed meanwhile.
    fn failed_for_good(&self, key: &(Kind, String)) -> bool {
        key.0 != Kind::Readiness && self.results.0.get(key) == Some(&Outcome::Failure)
    }

    /// A pod that is being deleted is not killed for its health, but goes on telling whether it is ready.
    pub(crate) fn stop_all_but_readiness(&mut self) {
        self.running.retain(|(kind, _), _| *kind == Kind::Readiness);
    }

    pub(crate) fn stop(&mut self) {
        self.running.clear();
    }
}

struct Run {
    context: Arc<Context>,
    reports: mpsc::UnboundedSender<Report>,
    pod: Arc<Pod>,
    container: Container,
    kind: Kind,
    probe: Probe,
    id: String,
    started_at: Timestamp,
    pod_ip: String,
}

/// The first of the quick looks of a readiness probe at a container that has just started.
const QUICK: Duration = Duration::from_millis(25);

impl Run {
    async fn run(self) {
        let period = Duration::from_secs(seconds(self.probe.period_seconds, 10));
        let timeout = Duration::from_secs(seconds(self.probe.timeout_seconds, 1));
        let delay = Duration::from_secs(u64::try_from(self.probe.initial_delay_seconds.unwrap_or(0)).unwrap_or(0));
        let first = after(self.started_at, delay);
        tokio::time::sleep(until(self.context.clock.now(), first)).await;
        if self.kind == Kind::Readiness {
            self.quick(period, timeout).await;
        }
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut tally = Tally::default();
        loop {
            ticks.tick().await;
            let Some(outcome) = self.once(timeout, true).await else { continue };
            let Some(outcome) = tally.count(&self.probe, outcome) else { continue };
            let report = Report { kind: self.kind, id: self.id.clone(), outcome };
            if self.reports.send(report).is_err() {
                return;
            }
            let over = self.kind == Kind::Startup || (self.kind == Kind::Liveness && outcome == Outcome::Failure);
            if over {
                return;
            }
        }
    }

    /// Most containers are ready a few milliseconds after their start, and a whole period is long to wait for that. So
    /// for one period a readiness probe looks again and again, at doubling distances and without a word, until the first success;
    /// the ordinary probes follow. (Upstream gets the same effect by probing at every sync of a pod that is not ready.)
    async fn quick(&self, period: Duration, timeout: Duration) {
        let mut wait = QUICK;
        while wait < period {
            if self.once(timeout, false).await == Some(Outcome::Success) {
                return;
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// `None`: the probe itself could not be made, which says nothing about the container.
    async fn once(&self, timeout: Duration, aloud: bool) -> Option<Outcome> {
        let action = Action {
            cri: self.context.cri.as_ref(),
            container: &self.container,
            id: &self.id,
            pod_ip: &self.pod_ip,
            timeout,
        };
        let kind = self.kind.as_str();
        let warn = |reason: &str, message: String| {
            if aloud {
                self.context.recorder.warning(&self.reference(), reason, message);
            }
        };
        match action.run(&self.probe).await {
            Answer::Success => Some(Outcome::Success),
            Answer::Warning(output) => {
                warn("ProbeWarning", format!("{kind} probe warning: {output}"));
                Some(Outcome::Success)
            }
            Answer::Failure(output) => {
                warn("Unhealthy", format!("{kind} probe failed: {output}"));
                Some(Outcome::Failure)
            }
            Answer::Unknown(error) => {
                warn("Unhealthy", format!("{kind} probe errored and resulted in unknown state: {error}"));
                None
            }
        }
    }

    fn reference(&self) -> ObjectReference {
        crate::context::container_reference(&self.pod, &self.container.name)
    }
}

fn seconds(value: Option<i32>, default: u64) -> u64 {
    value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0).unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers as `+` and `-`; what each settles: `.` nothing.
    #[track_caller]
    fn check(success: i32, failure: i32, answers: &str, want: &str) {
        let probe = Probe { success_threshold: Some(success), failure_threshold: Some(failure), ..Default::default() };
        let mut tally = Tally::default();
        let got: String = answers
            .chars()
            .map(|c| match tally.count(&probe, if c == '+' { Outcome::Success } else { Outcome::Failure }) {
                None => '.',
                Some(Outcome::Success) => '+',
                Some(Outcome::Failure) => '-',
            })
            .collect();
        assert_eq!(got, want, "{answers} with {success}/{failure}");
    }

    #[test]
    fn thresholds_settle_answers() {
        check(1, 3, "+--+---", "+..+..-");
        check(2, 1, "+-++-", ".-.+-");
        check(1, 1, "-+-", "-+-");
        check(1, 3, "-----", "..---");
    }
}
