//! How many pods the controllers of some pods want: from the caches for the built-in ones, else through the scale subresource.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use client::{Informer, Key, ReconcileError};
use http::Request;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResourceList, OwnerReference};
use parking_lot::Mutex;
use serde_json::Value;

use crate::controller::Context;
use crate::meta;

pub(super) struct Scales {
    client: kube::Client,
    deployments: Informer<Deployment>,
    replica_sets: Informer<ReplicaSet>,
    stateful_sets: Informer<StatefulSet>,
    replication_controllers: Informer<ReplicationController>,
    /// The plural of a kind that has a scale subresource, by API version and kind.
    plurals: Mutex<HashMap<(String, String), String>>,
}

pub(super) struct Sum {
    pub(super) replicas: i32,
    /// Some of the pods have no controller.
    pub(super) has_unmanaged: bool,
}

/// A controller's uid and how many pods it wants.
type Scale = (String, i32);

impl Scales {
    pub(super) fn new(context: &Context) -> Self {
        Self {
            client: context.client.clone(),
            deployments: context.informers.of(),
            replica_sets: context.informers.of(),
            stateful_sets: context.informers.of(),
            replication_controllers: context.informers.of(),
            plurals: Mutex::default(),
        }
    }

    /// The replicas of all controllers of the pods, each counted once.
    pub(super) async fn sum(&self, pods: &[Arc<Pod>]) -> Result<Sum, ReconcileError> {
        let (mut scales, mut owners) = (HashMap::new(), HashSet::new());
        let mut has_unmanaged = false;
        for pod in pods {
            let Some(owner) = meta::controller_of(&pod.metadata) else {
                has_unmanaged = true;
                continue;
            };
            if !owners.insert(&owner.uid) {
                continue;
            }
            let (uid, replicas) = self.of(owner, meta::namespace(&**pod)).await?.ok_or_else(|| {
                ReconcileError::Other(format!("found no controllers for pod {:?}", meta::name(&**pod)))
            })?;
            scales.insert(uid, replicas);
        }
        let replicas = scales.values().fold(0_i32, |sum, replicas| sum.saturating_add(*replicas));
        Ok(Sum { replicas, has_unmanaged })
    }

    async fn of(&self, owner: &OwnerReference, namespace: &str) -> Result<Option<Scale>, ReconcileError> {
        match self.cached(owner, namespace) {
            Some(scale) => Ok(Some(scale)),
            None => self.asked(owner, namespace).await,
        }
    }

    fn cached(&self, owner: &OwnerReference, namespace: &str) -> Option<Scale> {
        let key = |name: &str| Key::new(namespace, name);
        let scale = |uid: &str, replicas: Option<i32>| (uid.to_owned(), replicas.unwrap_or(1));
        match (group(&owner.api_version), &*owner.kind) {
            ("", "ReplicationController") => {
                let found = self.replication_controllers.get(&key(&owner.name))?;
                let replicas = found.spec.as_ref().and_then(|spec| spec.replicas);
                (meta::uid(&*found) == owner.uid).then(|| scale(&owner.uid, replicas))
            }
            ("apps" | "extensions", "ReplicaSet") => {
                let found = self.replica_sets.get(&key(&owner.name)).filter(|set| meta::uid(&**set) == owner.uid)?;
                let replicas = found.spec.as_ref().and_then(|spec| spec.replicas);
                match meta::controller_of(&found.metadata).filter(|parent| parent.kind == "Deployment") {
                    None => Some(scale(&owner.uid, replicas)),
                    Some(parent) => {
                        let found = self.deployments.get(&key(&parent.name))?;
                        let replicas = found.spec.as_ref().and_then(|spec| spec.replicas);
                        let is_it = meta::uid(&*found) == parent.uid
                            && matches!(group(&parent.api_version), "apps" | "extensions");
                        is_it.then(|| scale(&parent.uid, replicas))
                    }
                }
            }
            ("apps", "StatefulSet") => {
                let found = self.stateful_sets.get(&key(&owner.name))?;
                let replicas = found.spec.as_ref().and_then(|spec| spec.replicas);
                (meta::uid(&*found) == owner.uid).then(|| scale(&owner.uid, replicas))
            }
            _ => None,
        }
    }

    /// Through the scale subresource. None if there is no such object.
    async fn asked(&self, owner: &OwnerReference, namespace: &str) -> Result<Option<Scale>, ReconcileError> {
        let known = (owner.api_version.clone(), owner.kind.clone());
        let plural = self.plurals.lock().get(&known).cloned();
        let plural = match plural {
            Some(plural) => plural,
            None => self.plural(owner).await?,
        };
        let base = base(&owner.api_version)?;
        let path = format!("{base}/namespaces/{}/{plural}/{}/scale", segment(namespace)?, segment(&owner.name)?);
        match self.get::<Value>(&path).await {
            Ok(scale) => {
                self.plurals.lock().insert(known, plural);
                let uid = scale.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
                let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or_default();
                let replicas = i32::try_from(replicas).unwrap_or(i32::MAX);
                Ok((uid == owner.uid).then(|| (uid.to_owned(), replicas)))
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.plurals.lock().remove(&known);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The plural name of the owner's kind, which must have a scale subresource.
    async fn plural(&self, owner: &OwnerReference) -> Result<String, ReconcileError> {
        let unknown = || {
            ReconcileError::Other(format!("no matches for kind {:?} in version {:?}", owner.kind, owner.api_version))
        };
        let list: APIResourceList = match self.get(&base(&owner.api_version)?).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Err(unknown()),
            other => other?,
        };
        let of_kind = |name: &str, kind: &str| kind == owner.kind && !name.contains('/');
        let found = list.resources.iter().find(|resource| of_kind(&resource.name, &resource.kind));
        let plural = found.ok_or_else(unknown)?.name.clone();
        let scale = format!("{plural}/scale");
        if !list.resources.iter().any(|resource| resource.name == scale && resource.kind == "Scale") {
            let group = group(&owner.api_version);
            let resource = if group.is_empty() { plural } else { format!("{plural}.{group}") };
            return Err(ReconcileError::Other(format!("{resource} does not implement the scale subresource")));
        }
        Ok(plural)
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> kube::Result<T> {
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }
}

fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn base(api_version: &str) -> Result<String, ReconcileError> {
    match api_version.split_once('/') {
        Some((group, version)) => Ok(format!("/apis/{}/{}", segment(group)?, segment(version)?)),
        None => Ok(format!("/api/{}", segment(api_version)?)),
    }
}

/// Owner references hold whatever a user wrote; what would lead to another path is refused.
fn segment(text: &str) -> Result<&str, ReconcileError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) && text != "." && text != ".." {
        true => Ok(text),
        false => Err(ReconcileError::Other(format!("{text:?} in an owner reference cannot be part of a path"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_references_lead_nowhere_else() {
        assert_eq!(base("apps/v1").unwrap(), "/apis/apps/v1");
        assert_eq!(base("v1").unwrap(), "/api/v1");
        for bad in ["", "..", "a?b", "a%2fb", "apps/v1/x", "../v1", "apps/"] {
            assert!(segment(bad).is_err() && base(bad).is_err(), "{bad}");
        }
        assert_eq!(segment("web-1.a:b_c").unwrap(), "web-1.a:b_c");
    }
}
