//! The scheduling framework: the extension points plugins implement, and what a scheduling cycle carries between them.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;

use crate::node_info::{Labels, NodeInfo, PodInfo};
use crate::queue::Event;

pub(crate) const MAX_NODE_SCORE: i64 = 100;

/// What a filter says about a pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fits,
    /// Removing pods from the node could help.
    Unschedulable(Vec<String>),
    /// Removing pods could not help, so preemption must not be tried.
    Unresolvable(Vec<String>),
}

impl Verdict {
    pub(crate) fn unschedulable(reason: impl Into<String>) -> Self {
        Self::Unschedulable(vec![reason.into()])
    }

    pub(crate) fn unresolvable(reason: impl Into<String>) -> Self {
        Self::Unresolvable(vec![reason.into()])
    }

    pub(crate) fn reasons(&self) -> &[String] {
        match self {
            Self::Fits => &[],
            Self::Unschedulable(reasons) | Self::Unresolvable(reasons) => reasons,
        }
    }
}

/// All nodes as one cycle sees them; cheap to copy, and to change one node of.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) nodes: Vec<Arc<NodeInfo>>,
    /// By name, for affinity terms that select namespaces by their labels.
    pub(crate) namespaces: Arc<BTreeMap<String, Labels>>,
}

/// What plugins remember from one extension point to the next, by its type.
#[derive(Default)]
pub(crate) struct Cycle {
    state: HashMap<TypeId, Box<dyn Any + Send + Sync>>,
}

impl Cycle {
    pub(crate) fn set<T: Any + Send + Sync>(&mut self, value: T) {
        self.state.insert(TypeId::of::<T>(), Box::new(value));
    }

    pub(crate) fn get<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.state.get(&TypeId::of::<T>())?.downcast_ref()
    }
}

pub(crate) trait Plugin: Send + Sync + 'static {
    /// Upstream's name.
    fn name(&self) -> &'static str;

    /// Whether `event` can make a pod schedulable that this plugin rejected.
    fn is_helped_by(&self, event: Event) -> bool;
}

/// Which pod is tried first.
pub(crate) trait QueueSort: Plugin {
    fn before(&self, a: &QueueKey, b: &QueueKey) -> std::cmp::Ordering;
}

/// What the queue orders pods by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueKey {
    pub(crate) priority: i32,
    /// When the pod was first added.
    pub(crate) added: tokio::time::Instant,
    /// Breaks ties in the order of arrival.
    pub(crate) sequence: u64,
}

/// Looks at pod and cluster once, before nodes are looked at one by one.
pub(crate) trait PreFilter: Plugin {
    /// An `Err` ends the cycle: no node can be right.
    fn pre_filter(&self, cycle: &mut Cycle, pod: &PodInfo, snapshot: &Snapshot) -> Result<(), Verdict>;
}

pub(crate) trait Filter: Plugin {
    fn filter(&self, cycle: &Cycle, pod: &PodInfo, node: &NodeInfo) -> Verdict;
}

/// Tries to make room when no node fits.
pub(crate) trait PostFilter: Plugin {
    fn post_filter(&self, failure: &PostFilterInput<'_>) -> PostFilterResult;
}

pub(crate) struct PostFilterInput<'a> {
    pub(crate) pod: &'a PodInfo,
    pub(crate) snapshot: &'a Snapshot,
    /// By node, in the snapshot's order.
    pub(crate) verdicts: &'a [Verdict],
    /// Whether the pod would fit on a node of another snapshot.
    pub(crate) fits: &'a (dyn Fn(&Snapshot, &NodeInfo) -> bool + Sync),
}

#[derive(Debug, Default)]
pub(crate) struct PostFilterResult {
    pub(crate) nominated_node: Option<String>,
    pub(crate) victims: Vec<Arc<Pod>>,
    pub(crate) message: String,
}

pub(crate) trait Score: Plugin {
    fn weight(&self) -> i64;

    /// Called once for the nodes that passed the filters.
    fn pre_score(&self, _cycle: &mut Cycle, _pod: &PodInfo, _feasible: &[Arc<NodeInfo>], _snapshot: &Snapshot) {}

    fn score(&self, cycle: &Cycle, pod: &PodInfo, node: &NodeInfo) -> i64;

    /// Brings raw scores into `0..=MAX_NODE_SCORE`; those that already are need no change.
    fn normalize(&self, _cycle: &Cycle, _scores: &mut [i64]) {}
}

/// Sets something aside for a pod that has a node but is not bound yet.
pub(crate) trait Reserve: Plugin {
    fn reserve(&self, pod: &PodInfo, node: &str) -> Result<(), Verdict>;
    /// Must be safe to call for a pod that was never reserved.
    fn unreserve(&self, pod: &PodInfo, node: &str);
}

/// The last word before binding.
#[async_trait]
pub(crate) trait Permit: Plugin {
    async fn permit(&self, pod: &Pod, node: &str) -> Result<(), String>;
}

#[async_trait]
pub(crate) trait Bind: Plugin {
    async fn bind(&self, pod: &Pod, node: &str) -> kube::Result<()>;
}

/// The plugins of one profile, by extension point, in the order they are called.
pub(crate) struct Framework {
    pub(crate) pre_filter: Vec<Box<dyn PreFilter>>,
    pub(crate) filter: Vec<Box<dyn Filter>>,
    pub(crate) post_filter: Vec<Box<dyn PostFilter>>,
    pub(crate) score: Vec<Box<dyn Score>>,
    pub(crate) reserve: Vec<Box<dyn Reserve>>,
    pub(crate) permit: Vec<Box<dyn Permit>>,
    pub(crate) bind: Box<dyn Bind>,
}

/// Scales scores so that the highest becomes [`MAX_NODE_SCORE`]; `reverse` makes the lowest the best.
pub(crate) fn default_normalize(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        if max == 0 {
            *score = if reverse { MAX_NODE_SCORE } else { *score };
            continue;
        }
        *score = *score * MAX_NODE_SCORE / max;
        if reverse {
            *score = MAX_NODE_SCORE - *score;
        }
    }
}
