//! Pods that want to be near others, or away from them, by zone, host or any label of nodes.

use std::collections::HashMap;
use std::sync::Arc;

use api::selector::Selector;
use k8s_openapi::api::core::v1::{Affinity, PodAffinityTerm, WeightedPodAffinityTerm};

use crate::framework::{Cycle, Filter, MAX_NODE_SCORE, Plugin, PreFilter, Score, Snapshot, Verdict};
use crate::node_info::{NodeInfo, PodInfo};
use crate::queue::Event;

const REASON_EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";
const REASON_AFFINITY: &str = "node(s) didn't match pod affinity rules";
const REASON_ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
/// How much a running pod's required affinity pulls a pod that it would like near.
const HARD_POD_AFFINITY_WEIGHT: i64 = 1;

pub(crate) struct InterPodAffinity;

/// A term, with its owner's namespace and labels worked in.
struct Term {
    key: String,
    selector: Selector,
    namespaces: Vec<String>,
    namespace_selector: Option<Selector>,
    match_labels: Vec<(String, String, bool)>,
}

impl Term {
    fn new(owner: &PodInfo, term: &PodAffinityTerm) -> Self {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(owner.namespace().to_owned());
        }
        let own = |keys: &Option<Vec<String>>, wanted: bool| {
            let known =
                keys.iter().flatten().filter_map(|key| Some((key.clone(), owner.labels().get(key)?.clone(), wanted)));
            known.collect::<Vec<_>>()
        };
        let mut match_labels = own(&term.match_label_keys, true);
        match_labels.extend(own(&term.mismatch_label_keys, false));
        Self {
            key: term.topology_key.clone(),
            selector: Selector::from_label_selector(term.label_selector.as_ref()).unwrap_or_default(),
            namespace_selector: term
                .namespace_selector
                .as_ref()
                .map(|selector| Selector::from_label_selector(Some(selector)).unwrap_or_default()),
            namespaces,
            match_labels,
        }
    }

    fn matches(&self, pod: &PodInfo, snapshot: &Snapshot) -> bool {
        let in_namespace = self.namespaces.iter().any(|name| name == pod.namespace())
            || self.namespace_selector.as_ref().is_some_and(|selector| {
                let labels = snapshot.namespaces.get(pod.namespace()).cloned().unwrap_or_default();
                selector.matches(&labels)
            });
        let by_key = |(key, value, wanted): &(String, String, bool)| (pod.labels().get(key) == Some(value)) == *wanted;
        in_namespace && self.selector.matches(pod.labels()) && self.match_labels.iter().all(by_key)
    }
}

fn affinity(pod: &PodInfo) -> Option<&Affinity> {
    pod.spec()?.affinity.as_ref()
}

fn terms(owner: &PodInfo, list: Option<&Vec<PodAffinityTerm>>) -> Vec<Term> {
    list.into_iter().flatten().map(|term| Term::new(owner, term)).collect()
}

fn required_affinity(pod: &PodInfo) -> Vec<Term> {
    let all = affinity(pod).and_then(|affinity| affinity.pod_affinity.as_ref());
    terms(pod, all.and_then(|all| all.required_during_scheduling_ignored_during_execution.as_ref()))
}

fn required_anti_affinity(pod: &PodInfo) -> Vec<Term> {
    let all = affinity(pod).and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    terms(pod, all.and_then(|all| all.required_during_scheduling_ignored_during_execution.as_ref()))
}

/// Preferred terms with their weights; those of anti-affinity weigh against.
fn preferred(pod: &PodInfo) -> Vec<(Term, i64)> {
    let weighted = |list: Option<&Vec<WeightedPodAffinityTerm>>, sign: i64| {
        let all = list.into_iter().flatten();
        all.map(|term| (Term::new(pod, &term.pod_affinity_term), sign * i64::from(term.weight))).collect::<Vec<_>>()
    };
    let near = affinity(pod).and_then(|affinity| affinity.pod_affinity.as_ref());
    let away = affinity(pod).and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let mut all = weighted(near.and_then(|all| all.preferred_during_scheduling_ignored_during_execution.as_ref()), 1);
    all.extend(weighted(away.and_then(|all| all.preferred_during_scheduling_ignored_during_execution.as_ref()), -1));
    all
}

/// Node label and value, and how many pods (or how much weight) stand behind it.
type Counts = HashMap<(String, String), i64>;

fn add(counts: &mut Counts, node: &NodeInfo, key: &str, amount: i64) {
    if let Some(value) = node.labels().get(key) {
        *counts.entry((key.to_owned(), value.clone())).or_insert(0) += amount;
    }
}

fn of(counts: &Counts, node: &NodeInfo, key: &str) -> Option<i64> {
    let value = node.labels().get(key)?;
    Some(counts.get(&(key.to_owned(), value.clone())).copied().unwrap_or(0))
}

struct State {
    affinity: Vec<Term>,
    anti_affinity: Vec<Term>,
    /// Pods that match all of the pod's affinity terms.
    near: Counts,
    /// Pods that one of the pod's anti-affinity terms matches.
    away: Counts,
    /// Pods whose own anti-affinity matches the pod.
    repelling: Counts,
    matches_itself: bool,
}

struct Scores(Counts);

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }

    fn is_helped_by(&self, event: Event) -> bool {
        matches!(event, Event::NodeAdded | Event::NodeLabels | Event::AssignedPodAdded | Event::AssignedPodDeleted)
    }
}

impl PreFilter for InterPodAffinity {
    fn pre_filter(&self, cycle: &mut Cycle, pod: &PodInfo, snapshot: &Snapshot) -> Result<(), Verdict> {
        let (near_terms, away_terms) = (required_affinity(pod), required_anti_affinity(pod));
        let (mut near, mut away, mut repelling) = (Counts::new(), Counts::new(), Counts::new());
        for node in &snapshot.nodes {
            for other in node.pods.values() {
                if !near_terms.is_empty() && near_terms.iter().all(|term| term.matches(other, snapshot)) {
                    near_terms.iter().for_each(|term| add(&mut near, node, &term.key, 1));
                }
                for term in away_terms.iter().filter(|term| term.matches(other, snapshot)) {
                    add(&mut away, node, &term.key, 1);
                }
                if affinity(other).is_some() {
                    let terms = required_anti_affinity(other);
                    let repel = terms.iter().filter(|term| term.matches(pod, snapshot));
                    repel.for_each(|term| add(&mut repelling, node, &term.key, 1));
                }
            }
        }
        let matches_itself = near_terms.iter().all(|term| term.matches(pod, snapshot));
        cycle.set(State { affinity: near_terms, anti_affinity: away_terms, near, away, repelling, matches_itself });
        Ok(())
    }
}

impl Filter for InterPodAffinity {
    fn filter(&self, cycle: &Cycle, _: &PodInfo, node: &NodeInfo) -> Verdict {
        let Some(state) = cycle.get::<State>() else { return Verdict::Fits };
        if !is_near(state, node) {
            return Verdict::unresolvable(REASON_AFFINITY);
        }
        if state.anti_affinity.iter().any(|term| of(&state.away, node, &term.key).is_some_and(|count| count > 0)) {
            return Verdict::unschedulable(REASON_ANTI_AFFINITY);
        }
        let repelled =
            state.repelling.iter().any(|((key, value), count)| *count > 0 && node.labels().get(key) == Some(value));
        if repelled { Verdict::unschedulable(REASON_EXISTING) } else { Verdict::Fits }
    }
}

fn is_near(state: &State, node: &NodeInfo) -> bool {
    let has_keys = state.affinity.iter().all(|term| node.labels().contains_key(&term.key));
    let has_peers = state.affinity.iter().all(|term| of(&state.near, node, &term.key).is_some_and(|count| count > 0));
    // The first of a group that wants to be together may start anywhere.
    has_keys && (has_peers || (state.near.is_empty() && state.matches_itself))
}

impl Score for InterPodAffinity {
    fn weight(&self) -> i64 {
        2
    }

    fn pre_score(&self, cycle: &mut Cycle, pod: &PodInfo, _: &[Arc<NodeInfo>], snapshot: &Snapshot) {
        let wishes = preferred(pod);
        let mut scores = Counts::new();
        for node in &snapshot.nodes {
            for other in node.pods.values() {
                for (term, weight) in wishes.iter().filter(|(term, _)| term.matches(other, snapshot)) {
                    add(&mut scores, node, &term.key, *weight);
                }
                if affinity(other).is_none() {
                    continue;
                }
                for (term, weight) in preferred(other).iter().filter(|(term, _)| term.matches(pod, snapshot)) {
                    add(&mut scores, node, &term.key, *weight);
                }
                for term in required_affinity(other).iter().filter(|term| term.matches(pod, snapshot)) {
                    add(&mut scores, node, &term.key, HARD_POD_AFFINITY_WEIGHT);
                }
            }
        }
        cycle.set(Scores(scores));
    }

    fn score(&self, cycle: &Cycle, _: &PodInfo, node: &NodeInfo) -> i64 {
        let Some(Scores(scores)) = cycle.get::<Scores>() else { return 0 };
        scores.iter().filter(|((key, value), _)| node.labels().get(key) == Some(value)).map(|(_, weight)| weight).sum()
    }

    fn normalize(&self, _: &Cycle, scores: &mut [i64]) {
        let (min, max) = (scores.iter().copied().min().unwrap_or(0), scores.iter().copied().max().unwrap_or(0));
        for score in scores {
            *score = if max == min { 0 } else { MAX_NODE_SCORE * (*score - min) / (max - min) };
        }
    }
}
