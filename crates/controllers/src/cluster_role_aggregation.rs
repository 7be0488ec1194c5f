//! Aggregated cluster roles: one that selects others holds the rules of all of them.

use std::sync::Arc;

use api::selector::Selector;
use async_trait::async_trait;
use client::{Informer, Key, Next, ReconcileError, Reconciler, WorkQueue};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{Api, PostParams};

use crate::controller::{Context, Controller};
use crate::meta::labels;

pub(crate) struct ClusterRoleAggregation {
    client: kube::Client,
    roles: Informer<ClusterRole>,
}

impl Controller for ClusterRoleAggregation {
    const ACCOUNT: &'static str = "clusterrole-aggregation-controller";
    const WORKERS: usize = 5;

    fn build(context: &Context, queue: WorkQueue) -> Self {
        let roles = context.informers.of::<ClusterRole>();
        let known = roles.clone();
        // Whichever role changes, those that select may have to.
        roles.subscribe(move |change| {
            let aggregated = known.list().into_iter().filter(|role| role.aggregation_rule.is_some());
            aggregated.for_each(|role| queue.add(Key::of(&*role)));
            if change.object().aggregation_rule.is_some() {
                queue.add(Key::of(&**change.object()));
            }
        });
        Self { client: context.client.clone(), roles }
    }
}

#[async_trait]
impl Reconciler for ClusterRoleAggregation {
    const NAME: &'static str = "clusterrole-aggregation-controller";

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let Some(role) = self.roles.get(key).filter(|role| role.aggregation_rule.is_some()) else {
            return Ok(Next::OnChange);
        };
        let rules = aggregated(&role, self.roles.list());
        if role.rules.clone().unwrap_or_default() != rules {
            let new = ClusterRole { rules: Some(rules), ..(*role).clone() };
            Api::<ClusterRole>::all(self.client.clone()).replace(&key.name, &PostParams::default(), &new).await?;
        }
        Ok(Next::OnChange)
    }
}

/// The rules of every role that `role` selects, in the order of their names, each once.
fn aggregated(role: &ClusterRole, mut all: Vec<Arc<ClusterRole>>) -> Vec<PolicyRule> {
    all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let selectors = role.aggregation_rule.iter().flat_map(|rule| rule.cluster_role_selectors.iter().flatten());
    let mut rules: Vec<PolicyRule> = Vec::new();
    // One that cannot be read selects nothing.
    for selector in selectors.filter_map(|selector| Selector::from_label_selector(Some(selector)).ok()) {
        let chosen = all.iter().filter(|other| other.metadata.name != role.metadata.name);
        for other in chosen.filter(|other| selector.matches(labels(&***other))) {
            for rule in other.rules.iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn role(value: Value) -> Arc<ClusterRole> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn rules_come_from_what_is_selected_in_the_order_of_names_and_once() {
        let rule = |resource: &str| json!({"verbs": ["get"], "apiGroups": [""], "resources": [resource]});
        let part = |name: &str, label: &str, rules: &[&str]| {
            let rules: Vec<Value> = rules.iter().map(|resource| rule(resource)).collect();
            role(json!({"metadata": {"name": name, "labels": {"to": label}}, "rules": rules}))
        };
        let whole = role(json!({
            "metadata": {"name": "whole", "labels": {"to": "whole"}}, "rules": [rule("stale")],
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "whole"}}]},
        }));
        let all = vec![
            part("c", "other", &["nodes"]),
            part("b", "whole", &["pods", "secrets"]),
            part("a", "whole", &["services", "pods"]),
            whole.clone(),
        ];
        let found: Vec<_> = aggregated(&whole, all).into_iter().flat_map(|rule| rule.resources.unwrap()).collect();
        assert_eq!(found, ["services", "pods", "secrets"]);
    }
}
