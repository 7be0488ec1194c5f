//! ConfigMaps and Secrets that pods of this node use: one watch per object, kept while a pod refers to it.
//!
//! Only objects that are referred to are watched, by name, which is all a node is allowed to see. Every change wakes the pods that
//! refer to the object, so volumes follow it and a pod that waited for it starts at once.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use client::{Event, Key, Target};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::spec;

/// How long a pod waits for the first answer about an object.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("{kind} \"{name}\" not found")]
    NotFound { kind: &'static str, name: String },
    #[error("failed to sync {kind} cache: timed out waiting for the condition")]
    Timeout { kind: &'static str },
}

/// Called when an object that a pod refers to has changed.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

pub(crate) struct Sources {
    config_maps: Cache<ConfigMap>,
    secrets: Cache<Secret>,
}

impl Sources {
    pub(crate) fn new(client: kube::Client) -> Self {
        Self { config_maps: Cache::new(client.clone(), "configmap"), secrets: Cache::new(client, "secret") }
    }

    /// Watches what the pod refers to; safe to repeat with a changed pod.
    pub(crate) fn register(&self, pod: &Pod, wake: &Wake) {
        let (config_maps, secrets) = references(pod);
        self.config_maps.register(pod, &config_maps, wake);
        self.secrets.register(pod, &secrets, wake);
    }

    pub(crate) fn unregister(&self, uid: &str) {
        self.config_maps.unregister(uid);
        self.secrets.unregister(uid);
    }

    pub(crate) async fn config_map(
        &self,
        namespace: &str,
        name: &str,
        optional: bool,
    ) -> Result<Option<Arc<ConfigMap>>, SourceError> {
        self.config_maps.get(&Key::new(namespace, name), optional).await
    }

    pub(crate) async fn secret(
        &self,
        namespace: &str,
        name: &str,
        optional: bool,
    ) -> Result<Option<Arc<Secret>>, SourceError> {
        self.secrets.get(&Key::new(namespace, name), optional).await
    }
}

/// The names of all ConfigMaps and Secrets in a pod's spec.
fn references(pod: &Pod) -> (Vec<String>, Vec<String>) {
    let (mut config_maps, mut secrets) = (Vec::new(), Vec::new());
    for container in spec::all_containers(pod) {
        for from in container.env_from.iter().flatten() {
            config_maps.extend(from.config_map_ref.iter().map(|reference| reference.name.clone()));
            secrets.extend(from.secret_ref.iter().map(|reference| reference.name.clone()));
        }
        for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            config_maps.extend(source.config_map_key_ref.iter().map(|reference| reference.name.clone()));
            secrets.extend(source.secret_key_ref.iter().map(|reference| reference.name.clone()));
        }
    }
    for volume in spec::spec(pod).volumes.iter().flatten() {
        config_maps.extend(volume.config_map.iter().map(|source| source.name.clone()));
        secrets.extend(volume.secret.iter().filter_map(|source| source.secret_name.clone()));
        for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
            config_maps.extend(source.config_map.iter().map(|source| source.name.clone()));
            secrets.extend(source.secret.iter().map(|source| source.name.clone()));
        }
    }
    secrets.extend(spec::spec(pod).image_pull_secrets.iter().flatten().map(|reference| reference.name.clone()));
    for list in [&mut config_maps, &mut secrets] {
        list.retain(|name| !name.is_empty());
        list.sort();
        list.dedup();
    }
    (config_maps, secrets)
}

fn read<K: client::Object>(object: &str) -> Option<Arc<K>> {
    let read = serde_json::from_str(object).map(Arc::new);
    read.inspect_err(|error| tracing::error!(kind = %K::kind(&()), %error, "an object that cannot be read")).ok()
}

/// `None` until the first answer; then the object, or that there is none.
type State<K> = Option<Option<Arc<K>>>;

struct Cache<K> {
    client: kube::Client,
    kind: &'static str,
    entries: Arc<Mutex<HashMap<Key, Entry<K>>>>,
}

struct Entry<K> {
    state: watch::Receiver<State<K>>,
    users: HashMap<String, Wake>,
    _watch: AbortOnDropHandle<()>,
}

impl<K> Cache<K>
where
    K: client::Object + kube::Resource<Scope = NamespaceResourceScope>,
{
    fn new(client: kube::Client, kind: &'static str) -> Self {
        Self { client, kind, entries: Arc::default() }
    }

    fn register(&self, pod: &Pod, names: &[String], wake: &Wake) {
        let uid = spec::uid(pod);
        let mut entries = self.entries.lock();
        for (key, entry) in entries.iter_mut() {
            if !names.contains(&key.name) {
                entry.users.remove(uid);
            }
        }
        for name in names {
            let key = Key::new(spec::namespace(pod), name.clone());
            let entry = entries.entry(key.clone()).or_insert_with(|| self.watch(key));
            entry.users.insert(uid.to_owned(), wake.clone());
        }
        entries.retain(|_, entry| !entry.users.is_empty());
    }

    fn unregister(&self, uid: &str) {
        self.entries.lock().retain(|_, entry| {
            entry.users.remove(uid);
            !entry.users.is_empty()
        });
    }

    fn watch(&self, key: Key) -> Entry<K> {
        let (tell, state) = watch::channel(None);
        let path = K::url_path(&(), Some(&key.namespace));
        let target = Target { path, fields: format!("metadata.name={}", key.name), ..Target::default() };
        let (client, entries) = (self.client.clone(), self.entries.clone());
        let follow = async move {
            let mut listed = None;
            let on = &mut |event: Event<&str>| {
                let now = match event {
                    Event::Begin => {
                        listed = None;
                        return ControlFlow::Continue(());
                    }
                    Event::Listed(object) => {
                        listed = read(object);
                        return ControlFlow::Continue(());
                    }
                    Event::End => listed.take(),
                    Event::Applied(object) => read(object),
                    Event::Deleted(_) => None,
                };
                tell.send_replace(Some(now));
                let users: Vec<Wake> =
                    entries.lock().get(&key).map(|entry| entry.users.values().cloned().collect()).unwrap_or_default();
                users.iter().for_each(|wake| wake());
                ControlFlow::Continue(())
            };
            client::follow(&client, &target, on).await;
        };
        Entry { state, users: HashMap::new(), _watch: AbortOnDropHandle::new(tokio::spawn(follow)) }
    }

    async fn get(&self, key: &Key, optional: bool) -> Result<Option<Arc<K>>, SourceError> {
        let state = self.entries.lock().get(key).map(|entry| entry.state.clone());
        let not_found = || SourceError::NotFound { kind: self.kind, name: key.name.clone() };
        let mut state = state.ok_or_else(not_found)?;
        let known = tokio::time::timeout(FIRST_ANSWER, state.wait_for(Option::is_some)).await;
        let found = match known {
            Ok(Ok(state)) => state.clone().flatten(),
            _ => return Err(SourceError::Timeout { kind: self.kind }),
        };
        if found.is_none() && !optional { Err(not_found()) } else { Ok(found) }
    }
}
