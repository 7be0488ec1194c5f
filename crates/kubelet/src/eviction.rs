//! Keeps the node alive: evicts pods that exceed their local storage, and pods when a resource of the node is starved.
//!
//! Upstream's `pkg/kubelet/eviction`. One pass looks at the node's resources (a few reads), measures pods that have limits on local
//! storage, and where a threshold is met frees images nobody uses, then evicts one pod and waits until it is gone. Passes are ten seconds
//! apart, as upstream's, and follow one another sooner while a resource falls fast.

pub(crate) mod limits;
pub(crate) mod rank;
pub(crate) mod thresholds;
pub(crate) mod usage;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cri::v1::{ListContainersRequest, ListImagesRequest, RemoveImageRequest};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

use self::rank::{Candidate, is_critical};
use self::thresholds::{Met, Observations, Pressure, Thresholds};
use self::usage::Disks;
use crate::context::{Context, pod_reference};
use crate::pod::worker::Rejection;
use crate::pods::Input;
use crate::{qos, spec};

/// Upstream's monitoring interval.
const PERIOD: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_millis(500);
/// How long an evicted pod is waited for before the next one may go.
const CLEANUP: Duration = Duration::from_secs(30);
/// Pods that are evicted get this long, as upstream's.
const GRACE_SECONDS: i64 = 1;
/// A pod is measured again only after so many times what measuring it took.
const WALK_FACTOR: u32 = 20;

pub(crate) const EVICTED: &str = "Evicted";

pub(crate) struct Eviction {
    context: Arc<Context>,
    thresholds: Thresholds,
    /// Upstream's `eviction-pressure-transition-period`: how long a condition stays after the resource has recovered.
    transition: Duration,
    node: ObjectReference,
    tell: mpsc::UnboundedSender<Input>,
    disks: Option<Disks>,
    /// When each condition was last found to hold.
    held: HashMap<Pressure, Instant>,
    last: Observations,
    /// When pods with limits are to be measured next, by uid.
    due: HashMap<String, Due>,
}

struct Due {
    at: Instant,
    fullness: f64,
    measured: Instant,
}

impl Eviction {
    pub(crate) fn new(
        context: Arc<Context>,
        thresholds: Thresholds,
        transition: Duration,
        node: ObjectReference,
        tell: mpsc::UnboundedSender<Input>,
    ) -> Self {
        Self {
            context,
            thresholds,
            transition,
            node,
            tell,
            disks: None,
            held: HashMap::new(),
            last: Observations::new(),
            due: HashMap::new(),
        }
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let next = match self.pass().await {
                Ok(next) => next,
                Err(status) => {
                    tracing::warn!(error = %status, "the node's resources could not be watched");
                    PERIOD
                }
            };
            tokio::time::sleep(next).await;
        }
    }

    async fn pass(&mut self) -> Result<Duration, Status> {
        let disks = match &self.disks {
            Some(disks) => disks.clone(),
            None => self.disks.insert(Disks::find(&self.context).await?).clone(),
        };
        let observations = usage::observe(&self.context, &disks);
        let met = self.thresholds.met(&observations);
        self.publish(&met);
        let falls = self.thresholds.is_soon_met(&self.last, &observations);
        self.last = observations;
        let over = self.over_limit(&disks).await?;
        if !over.is_empty() {
            self.evict(over, false).await;
            return Ok(SOON);
        }
        if let Some(first) = met.first() {
            let message = format!("Attempting to reclaim {}", first.signal.resource());
            self.context.recorder.warning(&self.node, "EvictionThresholdMet", message);
            if first.signal.pressure() == Pressure::Disk {
                self.remove_unused_images().await?;
                if self.thresholds.met(&usage::observe(&self.context, &disks)).is_empty() {
                    return Ok(SOON);
                }
            }
            if let Some(chosen) = self.choose(first, &disks).await? {
                self.evict(vec![chosen], true).await;
                return Ok(SOON);
            }
        }
        let first = self.due.values().map(|due| due.at.saturating_duration_since(Instant::now())).min();
        Ok(first.unwrap_or(PERIOD).min(if falls { SOON } else { PERIOD }).max(SOON))
    }

    /// Tells the node's status and the admission of pods which resources are starved, or were until just now.
    fn publish(&mut self, met: &[Met]) {
        let now = Instant::now();
        self.held.extend(met.iter().map(|met| (met.signal.pressure(), now)));
        self.held.retain(|_, last| now.duration_since(*last) < self.transition);
        let pressures: BTreeSet<Pressure> = self.held.keys().copied().collect();
        self.context.pressures.send_if_modified(|known| {
            let changed = *known != pressures;
            *known = pressures;
            changed
        });
    }

    /// The pods that have containers here, or may have.
    fn active(&self) -> Vec<Arc<Pod>> {
        self.context.admitted.lock().values().cloned().collect()
    }

    /// The pods that exceed a limit on their local storage, with the message for each.
    async fn over_limit(&mut self, disks: &Disks) -> Result<Vec<(Arc<Pod>, String)>, Status> {
        let limited: Vec<Arc<Pod>> = self.active().into_iter().filter(|pod| limits::has_any(pod)).collect();
        self.due.retain(|uid, _| limited.iter().any(|pod| spec::uid(pod) == uid));
        let mut over = Vec::new();
        for pod in limited {
            let now = Instant::now();
            let before = self.due.get(spec::uid(&pod));
            if before.is_some_and(|due| now < due.at) {
                continue;
            }
            let mut usages = usage::of_pods(&self.context, std::iter::once(&*pod)).await?;
            let used = usages.remove(spec::uid(&pod)).unwrap_or_default();
            let fullness = limits::fullness(&pod, &used);
            let grown = before.map_or(0.0, |before| {
                (fullness - before.fullness) / now.duration_since(before.measured).as_secs_f64().max(0.1)
            });
            let full_in = if grown > 0.0 { ((1.0 - fullness) / grown).max(0.0) } else { f64::INFINITY };
            let wait = Duration::try_from_secs_f64(full_in).unwrap_or(PERIOD).clamp(SOON, PERIOD);
            let at = Instant::now() + wait.max(now.elapsed() * WALK_FACTOR);
            self.due.insert(spec::uid(&pod).to_owned(), Due { at, fullness, measured: now });
            if let Some(message) = limits::exceeded(&pod, &used, disks.has_image_fs()) {
                over.push((pod, message));
            }
        }
        Ok(over)
    }

    /// The pod that goes because of a starved resource. None if all are critical.
    async fn choose(&self, met: &Met, disks: &Disks) -> Result<Option<(Arc<Pod>, String)>, Status> {
        let active = self.active();
        let mut usages = usage::of_pods(&self.context, active.iter().map(|pod| &**pod)).await?;
        let usage = |pod: &Arc<Pod>| usages.remove(spec::uid(pod)).unwrap_or_default();
        let mut usage = usage;
        let mut candidates: Vec<Candidate<Arc<Pod>>> =
            active.into_iter().map(|pod| Candidate { usage: usage(&pod), pod }).collect();
        rank::rank(&mut candidates, met.signal, disks.has_image_fs());
        let first = candidates.into_iter().find(|candidate| !is_critical(&candidate.pod));
        Ok(first.map(|chosen| {
            let message = rank::message(met, &chosen.pod, &chosen.usage);
            (chosen.pod, message)
        }))
    }

    /// Evicts pods and waits until they hold nothing any more.
    async fn evict(&self, pods: Vec<(Arc<Pod>, String)>, for_node: bool) {
        let mut evicted = Vec::new();
        for (pod, message) in pods {
            if is_critical(&pod) {
                tracing::error!(pod = %spec::display(&pod), "a critical pod is not evicted: {message}");
                continue;
            }
            self.context.recorder.warning(&pod_reference(&pod), EVICTED, message.clone());
            let rejection = Rejection {
                reason: EVICTED.to_owned(),
                message,
                grace_seconds: Some(GRACE_SECONDS),
                is_disruption: for_node,
            };
            evicted.push(spec::uid(&pod).to_owned());
            // The dispatcher lives as long as this.
            let _ = self.tell.send(Input::Evicted(spec::uid(&pod).to_owned(), rejection));
        }
        let gone = async {
            for uid in evicted {
                let mut released = self.context.released.subscribe();
                while self.context.admitted.lock().contains_key(&uid) {
                    // The sender lives in the context.
                    let _ = released.changed().await;
                }
            }
        };
        if tokio::time::timeout(CLEANUP, gone).await.is_err() {
            tracing::warn!("evicted pods are still being ended");
        }
    }

    /// Images that no container uses, and that are not pinned.
    async fn remove_unused_images(&self) -> Result<(), Status> {
        let images = self.context.cri.list_images(ListImagesRequest::default()).await?.images;
        let containers = self.context.cri.list_containers(ListContainersRequest::default()).await?.containers;
        let is_used = |image: &cri::v1::Image| {
            containers.iter().any(|container| {
                let named = container.image.as_ref().map(|image| image.image.as_str()).unwrap_or_default();
                [container.image_id.as_str(), container.image_ref.as_str(), named].into_iter().any(|reference| {
                    reference == image.id
                        || image.repo_digests.iter().chain(&image.repo_tags).any(|name| name == reference)
                })
            })
        };
        for image in images.into_iter().filter(|image| !image.pinned && !is_used(image)) {
            let spec = cri::v1::ImageSpec { image: image.id.clone(), ..Default::default() };
            tracing::info!(image = image.id, bytes = image.size, "an unused image is removed, as disk space is short");
            if let Err(status) = self.context.cri.remove_image(RemoveImageRequest { image: Some(spec) }).await {
                tracing::warn!(image = image.id, error = %status, "an unused image could not be removed");
            }
        }
        Ok(())
    }
}

/// Refuses a pod that would make things worse on a node whose resources are starved.
pub(crate) fn admit(pod: &Pod, pressures: &BTreeSet<Pressure>) -> Result<(), String> {
    if pressures.is_empty() || is_critical(pod) {
        return Ok(());
    }
    if pressures.iter().all(|pressure| *pressure == Pressure::Memory) {
        let tolerates = |toleration: &k8s_openapi::api::core::v1::Toleration| {
            let key = toleration.key.as_deref().unwrap_or_default();
            let fits = key == "node.kubernetes.io/memory-pressure"
                || (key.is_empty() && toleration.operator.as_deref() == Some("Exists"));
            fits && toleration.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == "NoSchedule")
        };
        let tolerated = spec::spec(pod).tolerations.iter().flatten().any(tolerates);
        if qos::class(pod) != qos::Class::BestEffort || tolerated {
            return Ok(());
        }
    }
    let names: Vec<&str> = pressures.iter().map(|pressure| pressure.as_str()).collect();
    Err(format!("The node had condition: [{}]. ", names.join(" ")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(spec: Value, pressures: &[Pressure], want: Option<&str>) {
        let pod: Pod = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).expect("a pod");
        assert_eq!(admit(&pod, &pressures.iter().copied().collect()).err().as_deref(), want);
    }

    #[test]
    fn a_starved_node_takes_no_pod_that_makes_it_worse() {
        let plain = || json!({ "containers": [{ "name": "c" }] });
        let burstable = json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] });
        let tolerating = json!({ "containers": [{ "name": "c" }], "tolerations": [{ "key": "node.kubernetes.io/memory-pressure", "operator": "Exists" }] });
        let critical = json!({ "containers": [{ "name": "c" }], "priority": 2_000_000_000 });
        let disk = Some("The node had condition: [DiskPressure]. ");
        check(plain(), &[], None);
        check(plain(), &[Pressure::Memory], Some("The node had condition: [MemoryPressure]. "));
        check(burstable.clone(), &[Pressure::Memory], None);
        check(tolerating.clone(), &[Pressure::Memory], None);
        check(burstable, &[Pressure::Disk], disk);
        check(tolerating, &[Pressure::Disk], disk);
        check(critical, &[Pressure::Disk, Pressure::Pid], None);
        check(
            plain(),
            &[Pressure::Disk, Pressure::Memory],
            Some("The node had condition: [MemoryPressure DiskPressure]. "),
        );
    }
}
