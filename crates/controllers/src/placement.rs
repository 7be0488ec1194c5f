//! Whether a node suits a pod as far as labels and taints go: what controllers that place pods themselves must know.

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration};

use crate::meta;

/// `nodeSelector` and required node affinity.
pub(crate) fn matches_affinity(spec: &PodSpec, node: &Node) -> bool {
    let labels = meta::labels(node);
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let required = spec.affinity.as_ref().and_then(|affinity| {
        affinity.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution.as_ref()
    });
    selected && required.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_matches(term, node)))
}

/// An empty term matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let label = |requirement: &NodeSelectorRequirement| {
        holds(requirement, meta::labels(node).get(&requirement.key).map(String::as_str))
    };
    let field = |requirement: &NodeSelectorRequirement| {
        requirement.key == "metadata.name" && holds(requirement, Some(meta::name(node)))
    };
    let (labels, fields) = (term.match_expressions.iter().flatten(), term.match_fields.iter().flatten());
    let is_empty = labels.clone().next().is_none() && fields.clone().next().is_none();
    !is_empty && labels.into_iter().all(label) && fields.into_iter().all(field)
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = |value: &str| values.iter().any(|wanted| wanted == value);
    let numbers = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match requirement.operator.as_str() {
        "In" => value.is_some_and(among),
        "NotIn" => !value.is_some_and(among),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(own, bound)| own > bound),
        "Lt" => numbers().is_some_and(|(own, bound)| own < bound),
        _ => false,
    }
}

/// Every taint of one of these effects is tolerated.
pub(crate) fn tolerates_all(spec: &PodSpec, node: &Node, effects: &[&str]) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut matter = taints.filter(|taint| effects.contains(&taint.effect.as_str()));
    matter.all(|taint| spec.tolerations.iter().flatten().any(|toleration| tolerates(toleration, taint)))
}

/// An absent key with `Exists` covers every taint, an absent effect every effect.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let (effect, key) =
        (toleration.effect.as_deref().unwrap_or_default(), toleration.key.as_deref().unwrap_or_default());
    let value = toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
    (effect.is_empty() || effect == taint.effect)
        && (key.is_empty() || key == taint.key)
        && match toleration.operator.as_deref().unwrap_or("Equal") {
            "Exists" => true,
            "" | "Equal" => !key.is_empty() && value,
            _ => false,
        }
}
