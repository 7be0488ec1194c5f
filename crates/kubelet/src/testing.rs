//! A node in memory: a scripted runtime and a small API server around real workers, on a paused clock.

mod api;
mod refusals;
mod runtime;
mod scenarios;
mod serving;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::{Drain, Informers, Recorder};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use self::api::Api;
use self::runtime::Runtime;
use crate::cgroups::Cgroups;
use crate::clock::Clock;
use crate::context::Context;
use crate::images::Images;
use crate::pods::Pods;
use crate::sources::Sources;
use crate::statics::Statics;

pub(crate) const NODE: &str = "node-1";

/// Everything of one test; dropping it drains the kubelet.
pub(crate) struct TestNode {
    pub(crate) api: Api,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) folder: Arc<tempfile::TempDir>,
    clock: Clock,
    drain: Drain,
    running: Option<tokio::task::JoinHandle<()>>,
    server: Option<Parts>,
}

/// What a serving port shares with the running kubelet.
pub(crate) struct Parts {
    pub(crate) context: Arc<Context>,
    pub(crate) pods: client::Informer<Pod>,
    pub(crate) news: watch::Receiver<u64>,
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.drain.cancel();
    }
}

impl TestNode {
    pub(crate) fn new() -> Self {
        let clock = Clock::virtual_from("2026-01-01T00:00:00Z".parse().expect("a time"));
        let api = Api::default();
        api.put(
            "/api/v1/nodes",
            "",
            json!({ "metadata": { "name": NODE, "uid": "node-uid" }, "spec": {},
            "status": { "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "110" } } }),
        );
        let runtime = Runtime::new(clock.clone());
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        Self { api, runtime, folder, clock, drain: Drain::new(), running: None, server: None }
    }

    /// A kubelet on this node; a second call is a restart of it.
    pub(crate) async fn start(&mut self) {
        self.drain.cancel();
        if let Some(running) = self.running.take() {
            running.await.expect("the kubelet ended");
        }
        self.drain = Drain::new();
        let drain = self.drain.clone();
        let client = self.api.client();
        let informers = Informers::new(client.clone(), drain.clone());
        let recorder = Recorder::new(client.clone(), "kubelet", NODE, drain.clone());
        let root: &Path = self.folder.path();
        let cri: Arc<dyn cri::Cri> = self.runtime.clone();
        let pods = informers.selected::<Pod>("", &format!("spec.nodeName={NODE}"));
        let context = Arc::new(Context {
            node_name: NODE.to_owned(),
            node_ip: "192.168.0.1".parse().expect("an address"),
            images: Images::new(cri.clone(), recorder.clone(), self.clock.clone(), &root.join("kubelet")),
            cri,
            runtime: "fake".to_owned(),
            sources: Sources::new(client.clone()),
            client,
            recorder,
            clock: self.clock.clone(),
            root_dir: root.join("kubelet"),
            pod_logs_dir: root.join("logs"),
            cluster_dns: vec!["10.96.0.10".parse().expect("an address")],
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: root.join("resolv.conf"),
            cgroups: Cgroups::at(&root.join("cgroup"), "/test"),
            cpus: 4,
            memory: 8 << 30,
            max_pods: 110,
            sysctls: crate::SysctlAllowlist::default(),
            has_app_armor: false,
            log_max_bytes: 10 << 20,
            pod_max_pids: Some(100),
            pressures: watch::Sender::default(),
            released: watch::Sender::default(),
            services: informers.of::<Service>(),
            runtime_classes: informers.of::<RuntimeClass>(),
            nodes: informers.selected::<Node>("", &format!("metadata.name={NODE}")),
            admitted: Mutex::default(),
        });
        informers.synced().await;
        let (tell, inputs) = mpsc::unbounded_channel();
        let (news, heard) = watch::channel(0);
        self.server = Some(Parts { context: context.clone(), pods: pods.clone(), news: heard });
        let (shown, _) = watch::channel(Vec::new());
        let statics = Statics::new(context.clone(), root.join("manifests"), pods.clone(), tell.clone(), shown);
        tokio::spawn(drain.clone().run_until_cancelled_owned(statics.run()));
        self.running = Some(tokio::spawn(Pods::new(context, news, drain).run(pods, tell, inputs)));
    }

    /// Creates a pod bound to this node, its containers from `spec`.
    pub(crate) fn create(&self, name: &str, spec: Value) {
        let mut spec = spec;
        spec["nodeName"] = json!(NODE);
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{ "name": "c", "image": "app:1" }]);
        }
        for (field, value) in [("restartPolicy", json!("Always")), ("terminationGracePeriodSeconds", json!(30))] {
            if spec.get(field).is_none() {
                spec[field] = value;
            }
        }
        let metadata = json!({ "name": name, "namespace": "default", "uid": format!("uid-{name}"), "generation": 1 });
        let pod =
            json!({ "metadata": metadata, "spec": spec, "status": { "phase": "Pending", "qosClass": "BestEffort" } });
        self.api.put("/api/v1/pods", "default", pod);
    }

    /// What `kubectl delete` does to a pod on a node.
    pub(crate) fn delete(&self, name: &str, grace: i64) {
        self.api.change(&format!("/api/v1/namespaces/default/pods/{name}"), |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:10Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        });
    }

    pub(crate) fn pod(&self, name: &str) -> Option<Value> {
        self.api.get(&format!("/api/v1/namespaces/default/pods/{name}"))
    }

    /// Waits (in virtual time) until the pod's status is as told.
    pub(crate) async fn wait(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let wait = async {
            loop {
                let changed = self.api.changed();
                if let Some(pod) = self.pod(name).filter(&is) {
                    return pod;
                }
                changed.await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(3600), wait).await {
            Ok(pod) => pod,
            Err(_) => panic!(
                "{name} never: {what}; it is {:#}\ncalls {:#?}",
                self.pod(name).unwrap_or_default(),
                self.runtime.calls()
            ),
        }
    }

    pub(crate) async fn wait_gone(&self, name: &str) {
        let wait = async {
            loop {
                let changed = self.api.changed();
                if self.pod(name).is_none() {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(3600), wait).await.expect("the pod is gone");
    }
}

pub(crate) fn phase(pod: &Value) -> &str {
    pod["status"]["phase"].as_str().unwrap_or_default()
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// The first container's waiting reason.
pub(crate) fn waiting(pod: &Value) -> &str {
    pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].as_str().unwrap_or_default()
}
