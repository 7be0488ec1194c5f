//! What each node's pods refer to: who needs an object is known without looking at a single pod.
//!
//! Invariant: an object's count for a node is the number of references to it in pods bound to that node.

use std::collections::HashMap;

use api::{Object, ObjectExt as _};

use super::references::{config_maps, resource_claims, secrets, volume_claims, volume_secrets};

/// What can be reached through a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Pod,
    Secret,
    ConfigMap,
    VolumeClaim,
    ServiceAccount,
    ResourceClaim,
    // These name their node themselves.
    VolumeAttachment,
    ResourceSlice,
    // This one by the claim it is bound to.
    Volume,
}

#[derive(Default)]
pub(super) struct Graph {
    /// By kind and `namespace/name`: the nodes, each with its count.
    needed: HashMap<(Kind, String), HashMap<String, usize>>,
    /// What an object that is known now refers to, so that it can be taken back.
    sources: HashMap<(Kind, String), Source>,
    /// The volumes that are mounted with a secret.
    mounted_with: HashMap<String, Vec<String>>,
}

enum Source {
    Of { node: String, objects: Vec<(Kind, String)> },
    Volume { claim: String, secrets: Vec<String> },
}

impl Graph {
    /// There is a way from the object to a pod on the node.
    pub(super) fn connects(&self, node: &str, kind: Kind, key: String) -> bool {
        if kind == Kind::Volume {
            return self.is_volume_of(node, key);
        }
        if kind == Kind::Secret {
            let volumes = self.mounted_with.get(&key).into_iter().flatten();
            if volumes.into_iter().any(|volume| self.is_volume_of(node, volume.clone())) {
                return true;
            }
        }
        self.needed.get(&(kind, key)).is_some_and(|nodes| nodes.contains_key(node))
    }

    fn is_volume_of(&self, node: &str, volume: String) -> bool {
        match self.sources.get(&(Kind::Volume, volume)) {
            Some(Source::Volume { claim, .. }) => self.connects(node, Kind::VolumeClaim, claim.clone()),
            _ => false,
        }
    }

    pub(super) fn put(&mut self, kind: Kind, key: &str, object: &Object) {
        self.remove(kind, key);
        let source = match kind {
            Kind::Volume => volume(object),
            Kind::Pod => pod(object, key),
            _ => {
                let node = object.text(&["spec", "nodeName"]).to_owned();
                (!node.is_empty()).then(|| Source::Of { node, objects: vec![(kind, key.to_owned())] })
            }
        };
        let Some(source) = source else { return };
        match &source {
            Source::Of { node, objects } => {
                for object in objects {
                    *self.needed.entry(object.clone()).or_default().entry(node.clone()).or_default() += 1;
                }
            }
            Source::Volume { secrets, .. } => {
                for secret in secrets {
                    self.mounted_with.entry(secret.clone()).or_default().push(key.to_owned());
                }
            }
        }
        self.sources.insert((kind, key.to_owned()), source);
    }

    pub(super) fn remove(&mut self, kind: Kind, key: &str) {
        match self.sources.remove(&(kind, key.to_owned())) {
            Some(Source::Of { node, objects }) => objects.iter().for_each(|object| self.forget(&node, object)),
            Some(Source::Volume { secrets, .. }) => {
                for secret in secrets {
                    if let Some(volumes) = self.mounted_with.get_mut(&secret) {
                        volumes.retain(|volume| volume != key);
                        if volumes.is_empty() {
                            self.mounted_with.remove(&secret);
                        }
                    }
                }
            }
            None => (),
        }
    }

    fn forget(&mut self, node: &str, object: &(Kind, String)) {
        let Some(nodes) = self.needed.get_mut(object) else { return };
        if let Some(count) = nodes.get_mut(node) {
            *count -= 1;
            if *count == 0 {
                nodes.remove(node);
            }
        }
        if nodes.is_empty() {
            self.needed.remove(object);
        }
    }

    pub(super) fn clear(&mut self, kind: Kind) {
        let keys: Vec<String> =
            self.sources.keys().filter(|(own, _)| *own == kind).map(|(_, key)| key.clone()).collect();
        keys.iter().for_each(|key| self.remove(kind, key));
    }
}

fn pod(pod: &Object, key: &str) -> Option<Source> {
    let node = pod.text(&["spec", "nodeName"]).to_owned();
    if node.is_empty() {
        return None;
    }
    let mut objects = vec![(Kind::Pod, key.to_owned())];
    // The image of a static pod needs nothing from the API.
    if pod.at(&["metadata", "annotations", "kubernetes.io/config.mirror"]).is_none() {
        let namespace = pod.namespace();
        let mut add = |kind: Kind, name: &str| objects.push((kind, format!("{namespace}/{name}")));
        let account = pod.text(&["spec", "serviceAccountName"]);
        if !account.is_empty() {
            add(Kind::ServiceAccount, account);
        }
        secrets(pod).into_iter().for_each(|name| add(Kind::Secret, name));
        config_maps(pod).into_iter().for_each(|name| add(Kind::ConfigMap, name));
        volume_claims(pod).iter().for_each(|name| add(Kind::VolumeClaim, name));
        resource_claims(pod).into_iter().for_each(|name| add(Kind::ResourceClaim, name));
    }
    Some(Source::Of { node, objects })
}

fn volume(volume: &Object) -> Option<Source> {
    let (namespace, name) =
        (volume.text(&["spec", "claimRef", "namespace"]), volume.text(&["spec", "claimRef", "name"]));
    let claim = (!name.is_empty()).then(|| format!("{namespace}/{name}"))?;
    Some(Source::Volume { claim, secrets: volume_secrets(volume) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn put(graph: &mut Graph, kind: Kind, key: &str, object: &Value) {
        graph.put(kind, key, object.as_object().unwrap());
    }

    fn pod(node: &str, rest: Value) -> Value {
        let mut spec = rest;
        spec["nodeName"] = node.into();
        json!({"metadata": {"name": "p", "namespace": "a"}, "spec": spec})
    }

    #[track_caller]
    fn check(graph: &Graph, node: &str, kind: Kind, key: &str, want: bool) {
        assert_eq!(graph.connects(node, kind, key.to_owned()), want, "{node} {kind:?} {key}");
    }

    #[test]
    fn a_node_reaches_what_its_pods_name() {
        let mut graph = Graph::default();
        let spec = json!({
            "serviceAccountName": "sa", "imagePullSecrets": [{"name": "pull"}],
            "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "key"}}}], "envFrom": [{"configMapRef": {"name": "env"}}]}],
            "volumes": [
                {"name": "v", "secret": {"secretName": "vol"}}, {"name": "c", "configMap": {"name": "cm"}},
                {"name": "p", "projected": {"sources": [{"secret": {"name": "ps"}}, {"configMap": {"name": "pc"}}]}},
                {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "e", "ephemeral": {}},
            ],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "dev"}],
        });
        put(&mut graph, Kind::Pod, "a/p", &pod("one", spec));
        for name in ["pull", "key", "vol", "ps"] {
            check(&graph, "one", Kind::Secret, &format!("a/{name}"), true);
            check(&graph, "two", Kind::Secret, &format!("a/{name}"), false);
            check(&graph, "one", Kind::Secret, &format!("b/{name}"), false);
        }
        for name in ["env", "cm", "pc"] {
            check(&graph, "one", Kind::ConfigMap, &format!("a/{name}"), true);
        }
        check(&graph, "one", Kind::VolumeClaim, "a/data", true);
        check(&graph, "one", Kind::VolumeClaim, "a/p-e", true);
        check(&graph, "one", Kind::ServiceAccount, "a/sa", true);
        check(&graph, "one", Kind::ResourceClaim, "a/dev", true);
        check(&graph, "one", Kind::Pod, "a/p", true);
        let volume = json!({"spec": {"claimRef": {"namespace": "a", "name": "data"}, "csi": {
            "nodePublishSecretRef": {"namespace": "x", "name": "seen"}, "controllerExpandSecretRef": {"namespace": "x", "name": "unseen"},
        }}});
        put(&mut graph, Kind::Volume, "pv", &volume);
        check(&graph, "one", Kind::Volume, "pv", true);
        check(&graph, "two", Kind::Volume, "pv", false);
        check(&graph, "one", Kind::Secret, "x/seen", true);
        check(&graph, "one", Kind::Secret, "x/unseen", false);
        graph.remove(Kind::Volume, "pv");
        check(&graph, "one", Kind::Secret, "x/seen", false);
    }

    #[test]
    fn what_the_last_pod_named_is_out_of_reach_when_it_goes() {
        let mut graph = Graph::default();
        let spec = || json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]});
        put(&mut graph, Kind::Pod, "a/p", &pod("one", spec()));
        put(&mut graph, Kind::Pod, "a/q", &pod("one", spec()));
        graph.remove(Kind::Pod, "a/p");
        check(&graph, "one", Kind::Secret, "a/s", true);
        put(&mut graph, Kind::Pod, "a/q", &pod("two", spec()));
        check(&graph, "one", Kind::Secret, "a/s", false);
        check(&graph, "two", Kind::Secret, "a/s", true);
        graph.clear(Kind::Pod);
        assert!(graph.needed.is_empty() && graph.sources.is_empty());
        let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {"nodeName": "one", "imagePullSecrets": [{"name": "s"}]}});
        put(&mut graph, Kind::Pod, "/p", &mirror);
        check(&graph, "one", Kind::Secret, "/s", false);
    }
}
