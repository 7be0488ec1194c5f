//! One step of a living pod: admit, prepare, plan, act, report.

use std::path::Path;

use cri::v1::{RemoveContainerRequest, RunPodSandboxRequest};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use tonic::Status;

use super::backoff::go_duration;
use super::kill::{self, Victim};
use super::observed::{Observed, State, observe, unless_gone};
use super::plan::{Plan, plan};
use super::start::Start;
use super::status::Reason;
use super::worker::{Next, Rejection, Worker};
use super::{admission, labels, sandbox};
use crate::clock::after;
use crate::context::{container_reference, pod_reference};
use crate::images::describe;
use crate::volumes::Maker;
use crate::{app_armor, eviction, log_rotation, resources, runtime_class, spec, sysctls};

/// How soon a start that failed is tried again where nothing else says so.
const RETRY_START: std::time::Duration = std::time::Duration::from_secs(10);

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl Worker {
    pub(super) async fn sync(&mut self) -> Result<Next, Status> {
        let uid = spec::uid(&self.pod).to_owned();
        let observed = observe(self.context.cri.as_ref(), &uid).await?;
        if !self.admit(&observed) {
            return Ok(Next::Again);
        }
        self.probes.follow(&self.pod, &observed, &self.ready_before);
        self.report(&observed, false);
        if spec::is_terminal(&self.status) || self.past_deadline() {
            return Ok(Next::Again);
        }
        let plan = plan(&self.pod, &observed, &self.probes.results);
        if let Some(at) = self.prepare(&observed).await {
            return Ok(Next::Wait(Some(at)));
        }
        let wake = earlier(self.tokens.renew_at(), self.deadline());
        if !self.should_end() && self.has_work(&plan, &observed) {
            let (acted, at) = self.act(&plan, observed).await?;
            return Ok(if acted { Next::Again } else { Next::Wait(earlier(wake, at)) });
        }
        self.failures = 0;
        self.collect(&observed).await?;
        Ok(Next::Wait(wake))
    }

    fn has_work(&self, plan: &Plan, observed: &Observed) -> bool {
        let alive = observed.running().next().is_some() || observed.sandboxes.iter().any(|sandbox| sandbox.ready);
        let starts = [&plan.start, &plan.start_init, &plan.start_ephemeral].iter().any(|list| !list.is_empty());
        (plan.kill_pod && alive) || plan.create_sandbox.is_some() || !plan.kill.is_empty() || starts
    }

    /// Decides once whether the pod may run here; one that already has containers does.
    fn admit(&mut self, observed: &Observed) -> bool {
        let uid = spec::uid(&self.pod).to_owned();
        let mut admitted = self.context.admitted.lock();
        if admitted.contains_key(&uid) {
            return true;
        }
        if observed.containers.is_empty() && observed.sandboxes.is_empty() {
            let others: Vec<_> = admitted.values().cloned().collect();
            let node = self.context.nodes.get(&client::Key::new("", self.context.node_name.clone()));
            let room =
                admission::Room { cpus: self.context.cpus, memory: self.context.memory, pods: self.context.max_pods };
            if let Err(rejection) = self.admit_settings(|pod| admission::admit(pod, node.as_deref(), &others, &room)) {
                drop(admitted);
                self.context.recorder.warning(&pod_reference(&self.pod), &rejection.reason, rejection.message.clone());
                let message = format!("Pod was rejected: {}", rejection.message);
                self.rejected = Some(Rejection { message, ..rejection });
                return false;
            }
        }
        admitted.insert(uid, self.pod.clone());
        true
    }

    /// The admission checks in upstream's order: pressure, sysctls, whether the pod fits, AppArmor.
    fn admit_settings(&self, fits: impl FnOnce(&Pod) -> Result<(), Rejection>) -> Result<(), Rejection> {
        let reject = |reason: &str| {
            let reason = reason.to_owned();
            move |message| Rejection { reason, message, ..Rejection::default() }
        };
        eviction::admit(&self.pod, &self.context.pressures.borrow()).map_err(reject(eviction::EVICTED))?;
        self.context.sysctls.check(&self.pod).map_err(reject(sysctls::FORBIDDEN))?;
        fits(&self.pod)?;
        app_armor::check(&self.pod, self.context.has_app_armor).map_err(reject(app_armor::NOT_ADMITTED))
    }

    fn deadline(&self) -> Option<Timestamp> {
        let seconds = u64::try_from(spec::spec(&self.pod).active_deadline_seconds?).ok()?;
        let start = self.status.start_time.as_ref()?.0;
        Some(after(start, std::time::Duration::from_secs(seconds)))
    }

    fn past_deadline(&mut self) -> bool {
        let past = self.deadline().is_some_and(|deadline| self.context.clock.now() >= deadline);
        if past && self.rejected.is_none() {
            let message = "Pod was active on the node longer than the specified deadline".to_owned();
            self.context.recorder.normal(&pod_reference(&self.pod), "DeadlineExceeded", message.clone());
            self.rejected = Some(Rejection { reason: "DeadlineExceeded".to_owned(), message, ..Rejection::default() });
        }
        past
    }

    fn limits(&self, pod: &Pod) -> resources::PodLimits {
        resources::PodLimits { pids: self.context.pod_max_pids, ..resources::of_pod(pod) }
    }

    /// Folders, cgroup and volumes. On failure says so in an event and returns when to try again.
    async fn prepare(&mut self, observed: &Observed) -> Option<Timestamp> {
        let pod = self.pod.clone();
        let reference = pod_reference(&pod);
        let pod_dir = self.context.pod_dir(spec::uid(&pod));
        if let Err(error) = make_dirs(&pod_dir) {
            let message = format!("error making pod data directories: {error}");
            self.context.recorder.warning(&reference, "Failed", message);
            return Some(self.retry_at());
        }
        if let Err(error) = self.context.cgroups.ensure(&pod, &self.limits(&pod)) {
            let message = format!("unable to ensure pod container exists: {error}");
            self.context.recorder.warning(&reference, "FailedCreatePodContainer", message);
            return Some(self.retry_at());
        }
        let facts = self.context.facts(&pod, observed);
        let context = self.context.clone();
        let maker = Maker {
            pod: &pod,
            pod_dir: &pod_dir,
            sources: &context.sources,
            facts: &facts,
            client: &context.client,
            now: context.clock.now(),
        };
        let ending = self.ending.clone();
        match ending.run_until_cancelled(maker.make_all(&mut self.tokens)).await {
            Some(Ok(volumes)) => {
                self.volumes = volumes;
                None
            }
            Some(Err((volume, error))) => {
                let message = format!("MountVolume.SetUp failed for volume \"{volume}\" : {error}");
                self.context.recorder.warning(&reference, "FailedMount", message);
                Some(self.retry_at())
            }
            None => Some(self.context.clock.now()),
        }
    }

    /// Performs the plan. Returns whether anything happened, and otherwise when to look again.
    async fn act(&mut self, plan: &Plan, observed: Observed) -> Result<(bool, Option<Timestamp>), Status> {
        let mut acted = false;
        if plan.kill_pod {
            if plan.create_sandbox.is_some() && plan.sandbox_id.is_some() {
                let message = "Pod sandbox changed, it will be killed and re-created.".to_owned();
                self.context.recorder.normal(&pod_reference(&self.pod), "SandboxChanged", message);
            }
            let ending = self.ending.clone();
            let (context, pod) = (self.context.clone(), self.pod.clone());
            if ending.run_until_cancelled(kill::pod(&context, &pod, &observed, None)).await.transpose()?.is_none() {
                return Ok((true, None));
            }
            acted = true;
        } else if !plan.kill.is_empty() {
            self.kill(plan, &observed).await?;
            // What was killed is looked at again before it is started: its exit decides the back-off.
            return Ok((true, None));
        }
        let (sandbox_id, observed) = match plan.create_sandbox {
            Some(attempt) => {
                if let Some(at) = self.held("") {
                    return Ok((false, Some(at)));
                }
                match self.create_sandbox(attempt).await? {
                    Some(made) => made,
                    None => {
                        let at = self.retry_at();
                        self.hold.insert(String::new(), at);
                        return Ok((false, Some(at)));
                    }
                }
            }
            None => match plan.sandbox_id.clone().filter(|_| !plan.kill_pod) {
                Some(id) => (id, observed),
                None => return Ok((acted, None)),
            },
        };
        acted |= plan.create_sandbox.is_some();
        let (started, at) = self.start_all(plan, &sandbox_id, &observed).await;
        Ok((acted || started, at))
    }

    async fn kill(&mut self, plan: &Plan, observed: &Observed) -> Result<(), Status> {
        let (context, pod) = (self.context.clone(), self.pod.clone());
        let pod_ip = context.pod_ip(&pod, observed);
        let kills = plan.kill.iter().filter_map(|kill| {
            let container = spec::container(&pod, &kill.name)?;
            let (context, pod, pod_ip) = (&context, &pod, &pod_ip);
            Some(async move {
                let victim = Victim {
                    id: &kill.id,
                    container: &container,
                    message: &kill.message,
                    cause: kill.cause,
                    grace: None,
                };
                kill::container(context, pod, &victim, pod_ip, None).await
            })
        });
        let ending = self.ending.clone();
        for killed in ending.run_until_cancelled(join_all(kills)).await.unwrap_or_default() {
            killed?;
        }
        Ok(())
    }

    /// `None` after a failure that was told in an event.
    async fn create_sandbox(&mut self, attempt: u32) -> Result<Option<(String, Observed)>, Status> {
        let config = sandbox::config(&self.context, &self.pod, attempt);
        let reference = pod_reference(&self.pod);
        let runtime_handler = match runtime_class::handler(&self.pod, &self.context.runtime_classes).await {
            Ok(handler) => handler,
            Err(error) => {
                let message = format!("Failed to create pod sandbox: {error}");
                self.context.recorder.warning(&reference, "FailedCreatePodSandBox", message);
                return Ok(None);
            }
        };
        if let Err(error) = std::fs::create_dir_all(Path::new(&config.log_directory)) {
            let message = format!("Failed to create pod sandbox: log directory: {error}");
            self.context.recorder.warning(&reference, "FailedCreatePodSandBox", message);
            return Ok(None);
        }
        let request = RunPodSandboxRequest { config: Some(config), runtime_handler };
        match self.context.cri.run_pod_sandbox(request).await {
            Ok(made) => {
                let observed = observe(self.context.cri.as_ref(), spec::uid(&self.pod)).await?;
                self.report(&observed, false);
                Ok(Some((made.pod_sandbox_id, observed)))
            }
            Err(status) => {
                if !self.ending.is_cancelled() {
                    let message = format!("Failed to create pod sandbox: {}", describe(&status));
                    self.context.recorder.warning(&reference, "FailedCreatePodSandBox", message);
                }
                Ok(None)
            }
        }
    }

    async fn start_all(&mut self, plan: &Plan, sandbox_id: &str, observed: &Observed) -> (bool, Option<Timestamp>) {
        let (mut started, mut at) = (false, None);
        for name in &plan.start_ephemeral {
            let (ok, again) = self.start(name, sandbox_id, observed).await;
            started |= ok;
            at = earlier(at, again);
        }
        for name in &plan.start_init {
            let (ok, again) = self.start(name, sandbox_id, observed).await;
            started |= ok;
            at = earlier(at, again);
            let sidecar = spec::container(&self.pod, name).is_some_and(|container| spec::is_sidecar(&container));
            if !ok && !sidecar {
                return (started, at);
            }
        }
        for name in &plan.start {
            let (ok, again) = self.start(name, sandbox_id, observed).await;
            started |= ok;
            at = earlier(at, again);
        }
        (started, at)
    }

    /// Starts one container unless it is in back-off. Returns whether it started, and otherwise when to try again.
    async fn start(&mut self, name: &str, sandbox_id: &str, observed: &Observed) -> (bool, Option<Timestamp>) {
        let Some(container) = spec::container(&self.pod, name) else { return (false, None) };
        if self.ending.is_cancelled() {
            return (false, None);
        }
        if let Some(at) = self.back_off(&container, observed) {
            self.report(observed, false);
            return (false, Some(at));
        }
        if let Some(at) = self.held(name) {
            return (false, Some(at));
        }
        let attempt = observed.sandboxes.first().map_or(0, |sandbox| sandbox.attempt);
        let config = sandbox::config(&self.context, &self.pod, attempt);
        let (context, pod) = (self.context.clone(), self.pod.clone());
        let start = Start {
            context: &context,
            pod: &pod,
            observed,
            sandbox_id,
            sandbox: &config,
            volumes: &self.volumes,
            ending: &self.ending,
        };
        match start.run(&container).await {
            Ok(()) => {
                self.reasons.remove(name);
                (true, None)
            }
            Err(error) if error.cancelled => (false, None),
            Err(error) => {
                tracing::debug!(container = name, %error, "container did not start");
                let at = error.retry_at.unwrap_or_else(|| after(self.context.clock.now(), RETRY_START));
                self.hold.insert(name.to_owned(), at);
                self.reasons
                    .insert(name.to_owned(), Reason { reason: error.reason.to_owned(), message: error.message });
                let seen = observe(self.context.cri.as_ref(), spec::uid(&self.pod)).await;
                self.report(&seen.unwrap_or_else(|_| observed.clone()), false);
                (false, Some(at))
            }
        }
    }

    fn held(&self, name: &str) -> Option<Timestamp> {
        self.hold.get(name).copied().filter(|at| self.context.clock.now() < *at)
    }

    /// When a container that keeps ending may start again.
    fn back_off(&mut self, container: &Container, observed: &Observed) -> Option<Timestamp> {
        let name = &container.name;
        let mut runs = observed.containers.iter().filter(|seen| seen.name == *name);
        let ended = runs.find(|seen| seen.state == State::Exited)?.finished_at?;
        let key = format!("{name}_{}", labels::hash(container));
        let now = self.context.clock.now();
        if let Some((end, delay)) = self.backoff.waiting(&key, ended, now) {
            let display = spec::display(&self.pod);
            let message = format!("Back-off restarting failed container {name} in pod {display}");
            self.context.recorder.warning(&container_reference(&self.pod, name), "BackOff", message);
            let message = format!("back-off {} restarting failed container={name} pod={display}", go_duration(delay));
            self.reasons.insert(name.clone(), Reason { reason: "CrashLoopBackOff".to_owned(), message });
            return Some(end);
        }
        self.backoff.next(&key, ended, now);
        None
    }

    /// Keeps one dead container per name (the last state) and the newest sandbox.
    async fn collect(&mut self, observed: &Observed) -> Result<(), Status> {
        for container in spec::all_containers(&self.pod) {
            let runs: Vec<_> = observed.containers.iter().filter(|seen| seen.name == container.name).collect();
            let dead = runs.iter().skip(1).filter(|seen| seen.state != State::Running);
            for seen in dead.skip(1) {
                let request = RemoveContainerRequest { container_id: seen.id.clone() };
                unless_gone(self.context.cri.remove_container(request).await)?;
                if !seen.log_path.is_empty() {
                    log_rotation::remove(Path::new(&seen.log_path));
                }
            }
        }
        for sandbox in observed.sandboxes.iter().skip(1) {
            let used = observed.containers.iter().any(|seen| seen.sandbox_id == sandbox.id);
            if !sandbox.ready && !used {
                let request = cri::v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
                unless_gone(self.context.cri.remove_pod_sandbox(request).await)?;
            }
        }
        Ok(())
    }
}

fn make_dirs(pod_dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o750);
    builder.create(pod_dir.join("volumes"))?;
    builder.create(pod_dir.join("plugins"))
}
