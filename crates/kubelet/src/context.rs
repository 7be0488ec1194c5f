//! What every part of the kubelet shares: the node's settings, the runtime, the API, the clock.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::{Informer, Recorder};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::SysctlAllowlist;

use crate::cgroups::Cgroups;
use crate::clock::Clock;
use crate::eviction::thresholds::Pressure;
use crate::fields::Facts;
use crate::images::Images;
use crate::pod::observed::Observed;
use crate::sources::Sources;
use crate::spec;

pub(crate) struct Context {
    pub(crate) node_name: String,
    pub(crate) node_ip: IpAddr,
    pub(crate) cri: Arc<dyn cri::Cri>,
    /// The runtime's name, the scheme of container ids.
    pub(crate) runtime: String,
    pub(crate) client: kube::Client,
    pub(crate) recorder: Recorder,
    pub(crate) clock: Clock,
    pub(crate) root_dir: PathBuf,
    pub(crate) pod_logs_dir: PathBuf,
    pub(crate) cluster_dns: Vec<IpAddr>,
    pub(crate) cluster_domain: String,
    pub(crate) resolv_conf: PathBuf,
    pub(crate) cgroups: Cgroups,
    pub(crate) cpus: i64,
    pub(crate) memory: i64,
    pub(crate) max_pods: i64,
    pub(crate) sysctls: SysctlAllowlist,
    /// Whether the kernel enforces AppArmor profiles.
    pub(crate) has_app_armor: bool,
    /// The size from which container logs are rotated.
    pub(crate) log_max_bytes: u64,
    pub(crate) pod_max_pids: Option<u64>,
    /// The starved resources of this node.
    pub(crate) pressures: watch::Sender<BTreeSet<Pressure>>,
    /// Counts the pods that hold nothing any more: that left `admitted`.
    pub(crate) released: watch::Sender<u64>,
    pub(crate) services: Informer<Service>,
    pub(crate) runtime_classes: Informer<RuntimeClass>,
    pub(crate) nodes: Informer<Node>,
    pub(crate) sources: Sources,
    pub(crate) images: Images,
    /// The pods that were let in here, by uid, for admission of the next one.
    pub(crate) admitted: Mutex<HashMap<String, Arc<Pod>>>,
}

impl Context {
    /// A pod has no containers, volumes or cgroup here any more.
    pub(crate) fn release(&self, uid: &str) {
        if self.admitted.lock().remove(uid).is_some() {
            self.released.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }

    pub(crate) fn pod_log_dir(&self, pod: &Pod) -> PathBuf {
        log_dir(&self.pod_logs_dir, spec::namespace(pod), spec::name(pod), spec::uid(pod))
    }

    pub(crate) fn pod_ip(&self, pod: &Pod, observed: &Observed) -> String {
        if spec::is_host_network(pod) {
            return self.node_ip.to_string();
        }
        observed.ips().first().cloned().unwrap_or_default()
    }

    pub(crate) fn facts(&self, pod: &Pod, observed: &Observed) -> Facts {
        let host_ip = self.node_ip.to_string();
        let pod_ips = if spec::is_host_network(pod) { vec![host_ip.clone()] } else { observed.ips().to_vec() };
        Facts { pod_ips, host_ip, cpus: self.cpus, memory: self.memory }
    }
}

pub(crate) fn log_dir(root: &Path, namespace: &str, name: &str, uid: &str) -> PathBuf {
    root.join(format!("{namespace}_{name}_{uid}"))
}

pub(crate) fn pod_reference(pod: &Pod) -> ObjectReference {
    client::reference(pod)
}

/// Events about a container name it within its pod.
pub(crate) fn container_reference(pod: &Pod, container: &str) -> ObjectReference {
    let kinds = [
        ("initContainers", spec::init_containers(pod).iter().any(|c| c.name == container)),
        ("containers", spec::containers(pod).iter().any(|c| c.name == container)),
        ("ephemeralContainers", spec::ephemeral_containers(pod).iter().any(|c| c.name == container)),
    ];
    let kind = kinds.iter().find(|(_, is)| *is).map_or("containers", |(kind, _)| kind);
    ObjectReference { field_path: Some(format!("spec.{kind}{{{container}}}")), ..pod_reference(pod) }
}
