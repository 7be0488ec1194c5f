//! The annotations by which ReplicaSets remember their place in a Deployment's history and the size it had.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};

use super::rollout::{fenceposts, wanted};
use crate::meta;

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
/// These belong to the object they are on and are not passed down.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.deployment.rollback.to",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
];
const MAX_HISTORY_CHARS: usize = 2000;

pub(super) fn revision(set: &ReplicaSet) -> i64 {
    meta::annotation(set, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub(super) fn desired_replicas(set: &ReplicaSet) -> Option<i32> {
    meta::annotation(set, DESIRED_REPLICAS)?.parse().ok().filter(|count| *count >= 0)
}

pub(super) fn max_replicas(set: &ReplicaSet) -> Option<i32> {
    meta::annotation(set, MAX_REPLICAS)?.parse().ok().filter(|count| *count >= 0)
}

/// The sizes the set was scaled for: by them a later pass knows a scaling event, and what share of the surge the set has.
pub(super) fn set_replicas(set: &mut ReplicaSet, deployment: &Deployment) {
    let wanted = wanted(deployment);
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(DESIRED_REPLICAS.into(), wanted.to_string());
    annotations.insert(MAX_REPLICAS.into(), (wanted + fenceposts(deployment).0).to_string());
}

/// Makes `set` the newest: revision `newest`, and what it had before goes to its history. Passes the Deployment's annotations down.
pub(super) fn annotate(set: &mut ReplicaSet, deployment: &Deployment, newest: i64) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !NOT_COPIED.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let old = annotations.get(REVISION).cloned();
    let Ok(before) = old.as_deref().unwrap_or("0").parse::<i64>() else { return };
    if before >= newest {
        return; // Older sets were deleted since; a revision never goes back.
    }
    annotations.insert(REVISION.into(), newest.to_string());
    if let Some(old) = old {
        let history = annotations.get(REVISION_HISTORY).cloned().unwrap_or_default();
        annotations.insert(REVISION_HISTORY.into(), append(&history, &old));
    }
}

/// Drops the oldest entries when the text grows too long.
fn append(history: &str, revision: &str) -> String {
    let mut entries: Vec<&str> = history.split(',').filter(|entry| !entry.is_empty()).collect();
    entries.push(revision);
    while entries.len() > 1 && entries.iter().map(|entry| entry.len() + 1).sum::<usize>() > MAX_HISTORY_CHARS + 1 {
        entries.remove(0);
    }
    entries.join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn going_back_to_a_set_makes_it_newest_and_remembers_what_it_was() {
        let deployment: Deployment = serde_json::from_value(json!({ "metadata": { "annotations": {
            "note": "x", REVISION: "3", "kubectl.kubernetes.io/last-applied-configuration": "{}" } } }))
        .unwrap();
        let mut set: ReplicaSet =
            serde_json::from_value(json!({ "metadata": { "annotations": { REVISION: "1" } } })).unwrap();
        annotate(&mut set, &deployment, 4);
        let want = json!({ "note": "x", REVISION: "4", REVISION_HISTORY: "1" });
        assert_eq!(serde_json::to_value(&set.metadata.annotations).unwrap(), want);
        annotate(&mut set, &deployment, 6);
        assert_eq!(meta::annotation(&set, REVISION_HISTORY), Some("1,4"));
        annotate(&mut set, &deployment, 2);
        assert_eq!(revision(&set), 6, "a revision never goes back");
    }

    #[test]
    fn history_is_bounded() {
        let long = vec!["1000"; 500].join(",");
        let appended = append(&long, "2000");
        assert!(appended.len() <= MAX_HISTORY_CHARS && appended.ends_with(",2000"));
    }
}
