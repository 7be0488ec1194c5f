//! The worker of one pod: waits for what concerns it and brings the runtime closer to the spec, one step at a time.
//!
//! A worker wakes for API changes, runtime events, probe reports, changed ConfigMaps and Secrets, and its own timers; never to poll.
//! Invariants: a container is started only after the runtime was asked what it has, so that an adopted one is never started twice;
//! an object is deleted from the API only after its containers, sandboxes, volumes and cgroup are gone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use client::Drain;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::mpsc;
use tracing::instrument;

use super::backoff::Backoff;
use super::observed::Observed;
use super::status::{Inputs, Reason, Verdict, status};
use super::writer::StatusWriter;
use crate::clock::{after, until};
use crate::context::Context;
use crate::probes::{Probes, Report};
use crate::sources::Wake;
use crate::spec;
use crate::volumes::MountedVolumes;
use crate::volumes::token::Tokens;

/// What a worker can be woken by, besides probes and time.
#[derive(Clone, Debug)]
pub(crate) enum Signal {
    Pod(Arc<Pod>),
    /// The object is no longer in the API.
    Gone,
    /// The runtime has news about this pod.
    Runtime,
    /// A ConfigMap or Secret that the pod uses has changed.
    Source,
    /// The node is to end it.
    Evicted(Rejection),
}

/// The dispatcher's end of a worker.
pub(crate) struct Handle {
    signals: mpsc::UnboundedSender<Signal>,
    ending: Drain,
}

impl Handle {
    pub(crate) fn send(&self, signal: Signal) {
        let ends = match &signal {
            Signal::Gone | Signal::Evicted(_) => true,
            Signal::Pod(pod) => spec::is_deleted(pod),
            Signal::Runtime | Signal::Source => false,
        };
        if ends {
            self.ending.cancel();
        }
        // A worker that has ended needs no news.
        let _ = self.signals.send(signal);
    }
}

/// Why a pod was failed by this node rather than by its containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rejection {
    pub(crate) reason: String,
    pub(crate) message: String,
    /// How long its containers get; none is what the pod says.
    pub(crate) grace_seconds: Option<i64>,
    /// The node ends it for its own sake: the pod gets the condition DisruptionTarget.
    pub(crate) is_disruption: bool,
}

pub(crate) struct Worker {
    pub(super) context: Arc<Context>,
    pub(super) pod: Arc<Pod>,
    pub(super) gone: bool,
    signals: mpsc::UnboundedReceiver<Signal>,
    reports: mpsc::UnboundedReceiver<Report>,
    pub(super) wake: Wake,
    pub(super) drain: Drain,
    /// Fires when the pod is to end, so that a pull or a hook is not waited for.
    pub(super) ending: Drain,
    pub(super) probes: Probes,
    pub(super) ready_before: HashSet<String>,
    pub(super) writer: StatusWriter,
    /// What was last reported.
    pub(super) status: PodStatus,
    pub(super) reasons: HashMap<String, Reason>,
    pub(super) rejected: Option<Rejection>,
    pub(super) backoff: Backoff,
    pub(super) volumes: MountedVolumes,
    pub(super) tokens: Tokens,
    pub(super) failures: u32,
    /// What failed (a container, or the sandbox as "") is not tried again before this, whatever wakes the worker.
    pub(super) hold: HashMap<String, Timestamp>,
}

/// What a step asks for.
#[derive(Debug)]
pub(super) enum Next {
    Again,
    Wait(Option<Timestamp>),
    Done,
}

/// The first wait after a failed step, doubled up to two minutes.
const RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(120);

impl Worker {
    pub(crate) fn new(context: Arc<Context>, pod: Arc<Pod>, drain: Drain) -> (Handle, Self) {
        let (signals, received) = mpsc::unbounded_channel();
        let (tell, reports) = mpsc::unbounded_channel();
        let ending = Drain::new();
        let wake: Wake = {
            let signals = signals.clone();
            Arc::new(move || {
                let _ = signals.send(Signal::Source);
            })
        };
        let handle = Handle { signals, ending: ending.clone() };
        let status = spec::status(&pod).clone();
        let ready = |status: &k8s_openapi::api::core::v1::ContainerStatus| {
            let id = status.container_id.as_deref()?.split_once("://")?.1.to_owned();
            status.ready.then_some(id)
        };
        let statuses = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let worker = Self {
            probes: Probes::new(context.clone(), tell),
            writer: StatusWriter::new(context.client.clone(), &pod),
            ready_before: statuses.filter_map(ready).collect(),
            context,
            pod,
            gone: false,
            signals: received,
            reports,
            wake,
            drain,
            ending,
            status,
            reasons: HashMap::new(),
            rejected: None,
            backoff: Backoff::default(),
            volumes: MountedVolumes::new(),
            tokens: Tokens::default(),
            failures: 0,
            hold: HashMap::new(),
        };
        if spec::is_deleted(&worker.pod) {
            worker.ending.cancel();
        }
        (handle, worker)
    }

    /// Ends when the pod is gone, or at the node's drain (its containers live on).
    #[instrument(skip_all, fields(pod = %spec::display(&self.pod)))]
    pub(crate) async fn run(mut self) {
        self.context.sources.register(&self.pod, &self.wake);
        loop {
            let at = match self.step().await {
                Ok(Next::Again) => {
                    self.take_waiting();
                    continue;
                }
                Ok(Next::Done) => break,
                Ok(Next::Wait(at)) => at,
                Err(error) => {
                    tracing::warn!(%error, "pod sync failed");
                    Some(self.retry_at())
                }
            };
            if !self.wait(at).await {
                return;
            }
        }
        self.context.sources.unregister(spec::uid(&self.pod));
        self.context.images.forget_pod(spec::uid(&self.pod));
        self.context.release(spec::uid(&self.pod));
    }

    pub(super) fn retry_at(&mut self) -> Timestamp {
        let wait = (RETRY * 2_u32.saturating_pow(self.failures.min(10))).min(MAX_RETRY);
        self.failures += 1;
        after(self.context.clock.now(), wait)
    }

    async fn step(&mut self) -> Result<Next, tonic::Status> {
        if self.should_end() { self.terminate().await } else { self.sync().await }
    }

    /// Deleted, gone, rejected or finished: nothing is started any more.
    pub(super) fn should_end(&self) -> bool {
        self.gone || spec::is_deleted(&self.pod) || self.rejected.is_some() || spec::is_terminal(&self.status)
    }

    /// False at drain.
    async fn wait(&mut self, at: Option<Timestamp>) -> bool {
        let drain = self.drain.clone();
        let pause = at.map(|at| until(self.context.clock.now(), at));
        let timer = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = drain.cancelled() => return false,
            Some(signal) = self.signals.recv() => self.take(signal),
            Some(report) = self.reports.recv() => self.take_report(&report),
            () = timer => (),
        }
        self.take_waiting();
        true
    }

    /// Takes everything that has arrived, so that one step answers it all.
    pub(super) fn take_waiting(&mut self) {
        while let Ok(signal) = self.signals.try_recv() {
            self.take(signal);
        }
        while let Ok(report) = self.reports.try_recv() {
            self.take_report(&report);
        }
    }

    /// Waits for the next thing that concerns the pod while it is being stopped.
    pub(super) async fn next_signal(&mut self) {
        tokio::select! {
            Some(signal) = self.signals.recv() => self.take(signal),
            Some(report) = self.reports.recv() => self.take_report(&report),
        }
        self.take_waiting();
    }

    fn take(&mut self, signal: Signal) {
        match signal {
            Signal::Pod(pod) => {
                if spec::spec(&pod) != spec::spec(&self.pod) {
                    self.context.sources.register(&pod, &self.wake);
                    self.hold.clear();
                }
                self.pod = pod;
            }
            Signal::Gone => self.gone = true,
            // The first reason stays.
            Signal::Evicted(rejection) => drop(self.rejected.get_or_insert(rejection)),
            Signal::Source => self.hold.clear(),
            Signal::Runtime => (),
        }
    }

    fn take_report(&mut self, report: &Report) {
        if self.probes.results.set(report.kind, &report.id, report.outcome) {
            tracing::debug!(kind = ?report.kind, outcome = ?report.outcome, "probe settled");
        }
    }

    /// Computes the status and hands it to the writer, if it changed.
    pub(super) fn report(&mut self, observed: &Observed, terminal: bool) {
        let inputs = Inputs {
            pod: &self.pod,
            observed,
            old: &self.status,
            results: &self.probes.results,
            reasons: &self.reasons,
            terminal,
            host_ip: &self.context.node_ip.to_string(),
            runtime: &self.context.runtime,
            now: self.context.clock.now(),
        };
        let forced = self.rejected.as_ref().map(|rejection| Verdict {
            phase: "Failed",
            reason: &rejection.reason,
            message: &rejection.message,
            is_disruption: rejection.is_disruption,
        });
        let mut new = status(&inputs, forced.as_ref());
        // A pod that could still have running containers is not reported as finished.
        let ran = spec::is_terminal(&new) && !spec::is_terminal(&self.status) && observed.running().next().is_some();
        if ran {
            new.phase = self.status.phase.clone();
            new.reason = self.status.reason.clone();
            new.message = self.status.message.clone();
        }
        if new != self.status {
            self.status = new.clone();
        }
        self.writer.write(new);
    }
}
