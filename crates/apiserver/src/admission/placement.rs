//! Where pods may go: PodNodeSelector, PodTolerationRestriction, ExtendedResourceToleration, PodTopologyLabels,
//! LimitPodHardAntiAffinityTopology.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::validation::is_qualified_name;
use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin, namespace, tolerations};
use crate::server::ApiServer;

const NODE_SELECTOR: &str = "scheduler.alpha.kubernetes.io/node-selector";
const DEFAULT_TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const TOLERATIONS_WHITELIST: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";
const TOPOLOGY: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];
const HOSTNAME: &str = "kubernetes.io/hostname";

type Labels = BTreeMap<String, String>;

async fn namespace_of(server: &ApiServer, attributes: &Attributes<'_>) -> Result<Object, ApiError> {
    let resource = api::GroupResource { group: "", resource: "namespaces" };
    let found = namespace::find(server, attributes.namespace).await?;
    found.ok_or_else(|| ApiError::not_found(resource, attributes.namespace))
}

fn list(object: &Object, path: &[&str]) -> Vec<Value> {
    object.at(path).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Gives pods the node selector of their namespace, and holds them to those that are listed for it.
pub(super) struct PodNodeSelector {
    /// By namespace; `clusterDefaultNodeSelector` is for those that say nothing.
    selectors: BTreeMap<String, Labels>,
}

/// `a=b,c=d`
fn labels_of(text: &str) -> Result<Labels, String> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let read = |pair: &str| match pair.split_once('=') {
        Some((key, value)) => Ok((key.trim().to_owned(), value.trim().to_owned())),
        None => Err(format!("invalid selector: {pair}")),
    };
    pairs.map(read).collect()
}

impl PodNodeSelector {
    pub(super) fn plugin(configuration: Option<&Value>) -> Result<Box<dyn Plugin>, String> {
        let own = configuration.and_then(|whole| whole.get("podNodeSelectorPluginConfig")?.as_object());
        let read = |(name, text): (&String, &Value)| Ok((name.clone(), labels_of(text.as_str().unwrap_or_default())?));
        Ok(Box::new(Self { selectors: own.into_iter().flatten().map(read).collect::<Result<_, String>>()? }))
    }

    fn of_namespace(&self, namespace: &Object) -> Result<Labels, String> {
        match namespace.at(&["metadata", "annotations", NODE_SELECTOR]).and_then(Value::as_str) {
            Some(text) => labels_of(text),
            None => Ok(self.selectors.get("clusterDefaultNodeSelector").cloned().unwrap_or_default()),
        }
    }
}

fn selector_of(pod: &Object) -> Labels {
    let own = pod.at(&["spec", "nodeSelector"]).and_then(Value::as_object).into_iter().flatten();
    own.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

fn conflict(a: &Labels, b: &Labels) -> bool {
    a.iter().any(|(key, value)| b.get(key).is_some_and(|other| other != value))
}

#[async_trait]
impl Plugin for PodNodeSelector {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.creates("", "pods")
    }

    async fn admit(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        pod: &mut Object,
    ) -> Result<(), ApiError> {
        let wanted = self.of_namespace(&namespace_of(server, attributes).await?).map_err(ApiError::internal)?;
        let own = selector_of(pod);
        if conflict(&wanted, &own) {
            return Err(
                attributes.forbidden("pod node label selector conflicts with its namespace node label selector")
            );
        }
        if !wanted.is_empty() {
            let merged: Labels = wanted.into_iter().chain(own).collect();
            pod.at_mut(&["spec"]).insert("nodeSelector".into(), json!(merged));
        }
        self.validate(server, attributes, pod).await
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        pod: &Object,
    ) -> Result<(), ApiError> {
        let wanted = self.of_namespace(&namespace_of(server, attributes).await?).map_err(ApiError::internal)?;
        let own = selector_of(pod);
        if conflict(&wanted, &own) {
            return Err(
                attributes.forbidden("pod node label selector conflicts with its namespace node label selector")
            );
        }
        let listed = self.selectors.get(attributes.namespace).filter(|listed| !listed.is_empty());
        if listed.is_some_and(|listed| own.iter().any(|(key, value)| listed.get(key) != Some(value))) {
            return Err(attributes.forbidden("pod node label selector labels conflict with its namespace whitelist"));
        }
        Ok(())
    }
}

/// Gives pods the tolerations of their namespace, and holds them to those that are listed for it.
pub(super) struct PodTolerationRestriction {
    default: Vec<Value>,
    whitelist: Vec<Value>,
}

impl PodTolerationRestriction {
    pub(super) fn plugin(configuration: Option<&Value>) -> Result<Box<dyn Plugin>, String> {
        let part =
            |name: &str| configuration.and_then(|whole| whole.get(name)?.as_array()).cloned().unwrap_or_default();
        Ok(Box::new(Self { default: part("default"), whitelist: part("whitelist") }))
    }
}

/// `None` if the namespace says nothing.
fn annotated(namespace: &Object, key: &str) -> Result<Option<Vec<Value>>, ApiError> {
    match namespace.at(&["metadata", "annotations", key]).and_then(Value::as_str) {
        None => Ok(None),
        Some("") => Ok(Some(Vec::new())),
        Some(text) => serde_json::from_str(text).map(Some).map_err(ApiError::internal),
    }
}

#[async_trait]
impl Plugin for PodTolerationRestriction {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Delete && attributes.is("", "pods")
    }

    async fn admit(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        pod: &mut Object,
    ) -> Result<(), ApiError> {
        let mut more = Vec::new();
        if attributes.operation == Operation::Create {
            let namespace = namespace_of(server, attributes).await?;
            more = annotated(&namespace, DEFAULT_TOLERATIONS)?.unwrap_or_else(|| self.default.clone());
        }
        if crate::strategy::qos_class(pod) != "BestEffort" {
            more.push(
                json!({"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}),
            );
        }
        if !more.is_empty() {
            let merged = tolerations::merge(&list(pod, &["spec", "tolerations"]), &more);
            pod.at_mut(&["spec"]).insert("tolerations".into(), merged.into());
        }
        self.validate(server, attributes, pod).await
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        pod: &Object,
    ) -> Result<(), ApiError> {
        let asked = list(pod, &["spec", "tolerations"]);
        let own = annotated(&namespace_of(server, attributes).await?, TOLERATIONS_WHITELIST)?;
        let (scope, listed) = match &own {
            Some(own) => ("namespace", own),
            None => ("cluster", &self.whitelist),
        };
        match tolerations::is_within(&asked, listed) {
            true => Ok(()),
            // Upstream tells it as its own mistake.
            false => Err(ApiError::internal(format!(
                "pod tolerations (possibly merged with namespace default tolerations) conflict with its {scope} whitelist"
            ))),
        }
    }
}

/// A node with special devices is tainted by their name; who asks for one tolerates that.
pub(super) struct ExtendedResourceToleration;

fn is_extended(resource: &str) -> bool {
    let native = !resource.contains('/') || resource.contains("kubernetes.io/");
    !native && !resource.starts_with("requests.") && is_qualified_name(&format!("requests.{resource}")).is_empty()
}

#[async_trait]
impl Plugin for ExtendedResourceToleration {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Delete && attributes.is("", "pods")
    }

    async fn admit(&self, _: &Arc<ApiServer>, _: &Attributes<'_>, pod: &mut Object) -> Result<(), ApiError> {
        let containers = ["containers", "initContainers"].into_iter().flat_map(|field| list(pod, &["spec", field]));
        let requests =
            containers.filter_map(|container| container.pointer("/resources/requests")?.as_object().cloned());
        let wanted: std::collections::BTreeSet<String> = requests
            .flat_map(|requests| requests.into_iter().map(|(name, _)| name))
            .filter(|n| is_extended(n))
            .collect();
        for resource in wanted {
            let toleration = json!({"key": resource, "operator": "Exists", "effect": "NoSchedule"});
            let same = |known: &Value| {
                let empty = |field: &str| known.get(field).is_none_or(|value| value == "");
                ["key", "operator", "effect"].iter().all(|field| known.get(field) == toleration.get(field))
                    && empty("value")
            };
            let mut all = list(pod, &["spec", "tolerations"]);
            match all.iter_mut().find(|known| same(known)) {
                Some(known) => *known = toleration,
                None => all.push(toleration),
            }
            pod.at_mut(&["spec"]).insert("tolerations".into(), all.into());
        }
        Ok(())
    }
}

/// A pod carries the zone and region of the node it is bound to.
pub(super) struct PodTopologyLabels;

#[async_trait]
impl Plugin for PodTopologyLabels {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let create = attributes.operation == Operation::Create && attributes.is_of("", "pods");
        create && matches!(attributes.subresource, "" | "binding")
    }

    async fn admit(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        object: &mut Object,
    ) -> Result<(), ApiError> {
        let node = match attributes.subresource {
            "" => object.text(&["spec", "nodeName"]),
            _ if object.text(&["target", "kind"]) == "Node" => object.text(&["target", "name"]),
            _ => "",
        };
        let Some(node) = server.cached("", "nodes", node) else { return Ok(()) };
        for label in TOPOLOGY {
            if let Some(value) = node.at(&["metadata", "labels", label]) {
                object.at_mut(&["metadata", "labels"]).insert(label.to_owned(), value.clone());
            }
        }
        Ok(())
    }
}

/// Nobody keeps others' pods away from more than a node.
pub(super) struct LimitPodHardAntiAffinityTopology;

#[async_trait]
impl Plugin for LimitPodHardAntiAffinityTopology {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Delete && attributes.is("", "pods")
    }

    async fn validate(&self, _: &Arc<ApiServer>, attributes: &Attributes<'_>, pod: &Object) -> Result<(), ApiError> {
        let path = ["spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
        let terms = list(pod, &path);
        let mut keys = terms.iter().filter_map(|term| term.get("topologyKey")?.as_str());
        match keys.find(|key| *key != HOSTNAME) {
            Some(key) => Err(attributes.forbidden(format!(
                "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {HOSTNAME} is allowed"
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_of_others_are_extended_resources() {
        for (name, want) in [("cpu", false), ("example.com/gpu", true), ("kubernetes.io/x", false), ("a b/c", false)] {
            assert_eq!(is_extended(name), want, "{name}");
        }
    }

    #[test]
    fn selectors_conflict_only_where_they_differ() {
        let check = |a: &str, b: &str, want: bool| {
            assert_eq!(conflict(&labels_of(a).unwrap(), &labels_of(b).unwrap()), want, "{a} {b}");
        };
        check("a=b", "a=b,c=d", false);
        check("a=b", "a=c", true);
        check("", "a=c", false);
        assert!(labels_of("a").is_err());
    }
}
