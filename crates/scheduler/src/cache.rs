//! The cluster as the scheduler believes it to be: what informers have told, plus pods it has placed that they have not told yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;

use crate::framework::Snapshot;
use crate::node_info::{Labels, NodeInfo, PodInfo};

#[derive(Default)]
pub(crate) struct Cache {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<String, Arc<NodeInfo>>,
    /// Where each pod is, by uid.
    pods: HashMap<String, Placed>,
    /// Pods for which room is being made, by node: others of lower priority must not take it.
    nominated: HashMap<String, (String, Arc<PodInfo>)>,
    namespaces: Arc<BTreeMap<String, Labels>>,
}

struct Placed {
    node: String,
    /// Ours alone so far: nobody else has seen the binding.
    assumed: bool,
}

impl Cache {
    pub(crate) fn set_node(&self, node: &Arc<Node>) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let mut state = self.state.lock();
        let info = state.nodes.entry(name.clone()).or_insert_with(|| Arc::new(NodeInfo::new(&name)));
        Arc::make_mut(info).set_node(node.clone());
    }

    /// Its pods stay known until they are deleted, for the case that the node comes back first.
    pub(crate) fn remove_node(&self, name: &str) {
        let mut state = self.state.lock();
        let Some(info) = state.nodes.get_mut(name) else { return };
        if info.pods.is_empty() {
            state.nodes.remove(name);
        } else {
            Arc::make_mut(info).node = None;
        }
    }

    pub(crate) fn set_namespace(&self, name: &str, labels: Option<Labels>) {
        let mut state = self.state.lock();
        let namespaces = Arc::make_mut(&mut state.namespaces);
        match labels {
            Some(labels) => drop(namespaces.insert(name.to_owned(), labels)),
            None => drop(namespaces.remove(name)),
        }
    }

    /// The pod counts on `node` from now on, although it is not bound yet.
    pub(crate) fn assume(&self, pod: &Arc<PodInfo>, node: &str) {
        self.state.lock().place(pod.clone(), node, true);
    }

    /// The binding failed. A pod that was confirmed meanwhile stays.
    pub(crate) fn forget(&self, uid: &str) {
        let mut state = self.state.lock();
        if state.pods.get(uid).is_some_and(|placed| placed.assumed) {
            state.remove(uid);
        }
    }

    /// A bound pod, as the server knows it; confirms one that was assumed.
    pub(crate) fn set_pod(&self, pod: &Arc<Pod>, node: &str) {
        let info = Arc::new(PodInfo::new(pod.clone()));
        let mut state = self.state.lock();
        state.nominated.remove(info.uid());
        state.place(info, node, false);
    }

    pub(crate) fn remove_pod(&self, uid: &str) {
        let mut state = self.state.lock();
        state.nominated.remove(uid);
        state.remove(uid);
    }

    pub(crate) fn is_assumed(&self, uid: &str) -> bool {
        self.state.lock().pods.get(uid).is_some_and(|placed| placed.assumed)
    }

    pub(crate) fn nominate(&self, pod: &Arc<PodInfo>, node: &str) {
        self.state.lock().nominated.insert(pod.uid().to_owned(), (node.to_owned(), pod.clone()));
    }

    pub(crate) fn clear_nomination(&self, uid: &str) {
        self.state.lock().nominated.remove(uid);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        let nodes = state.nodes.values().filter(|info| info.node.is_some()).cloned().collect();
        Snapshot { nodes, namespaces: state.namespaces.clone() }
    }

    /// Pods of at least `priority` for which room is being made, with their nodes; without the pod itself.
    pub(crate) fn nominated(&self, priority: i32, uid: &str) -> Vec<(String, Arc<PodInfo>)> {
        let state = self.state.lock();
        let others = state.nominated.values().filter(|(_, pod)| pod.priority >= priority && pod.uid() != uid);
        others.cloned().collect()
    }
}

impl State {
    fn place(&mut self, pod: Arc<PodInfo>, node: &str, assumed: bool) {
        let uid = pod.uid().to_owned();
        if self.pods.get(&uid).is_some_and(|placed| placed.node != node) {
            self.remove(&uid);
        }
        let info = self.nodes.entry(node.to_owned()).or_insert_with(|| Arc::new(NodeInfo::new(node)));
        Arc::make_mut(info).add_pod(pod);
        self.pods.insert(uid, Placed { node: node.to_owned(), assumed });
    }

    fn remove(&mut self, uid: &str) {
        let Some(placed) = self.pods.remove(uid) else { return };
        let Some(info) = self.nodes.get_mut(&placed.node) else { return };
        Arc::make_mut(info).remove_pod(uid);
        if info.pods.is_empty() && info.node.is_none() {
            self.nodes.remove(&placed.node);
        }
    }
}
