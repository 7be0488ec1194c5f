//! Static pods: manifests in a folder, run without the API server, shown in the API by mirrors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client::{Change, Informer, Key};
use k8s_openapi::api::core::v1::{Container, Pod, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, mpsc, watch};

use crate::context::Context;
use crate::pods::Input;
use crate::server::FolderWatch;
use crate::spec::{self, CONFIG_HASH, CONFIG_MIRROR, CONFIG_SOURCE};

const RETRY: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum ManifestError {
    #[error("cannot be read: {0}")]
    Read(#[from] std::io::Error),
    #[error("is not a pod: {0}")]
    Parse(String),
    #[error("has no name or no containers")]
    Incomplete,
}

pub(crate) struct Statics {
    context: Arc<Context>,
    folder: PathBuf,
    pods: Informer<Pod>,
    tell: mpsc::UnboundedSender<Input>,
    shown: watch::Sender<Vec<Arc<Pod>>>,
    mirrors_changed: Arc<Notify>,
}

impl Statics {
    pub(crate) fn new(
        context: Arc<Context>,
        folder: PathBuf,
        pods: Informer<Pod>,
        tell: mpsc::UnboundedSender<Input>,
        shown: watch::Sender<Vec<Arc<Pod>>>,
    ) -> Self {
        let statics = Self { context, folder, pods, tell, shown, mirrors_changed: Arc::default() };
        // Told before anybody looks for sandboxes that no known pod owns.
        statics.load();
        statics
    }

    /// Follows the folder and keeps a mirror of every pod; ends only when the folder cannot be watched.
    pub(crate) async fn run(self) {
        let watch = match std::fs::create_dir_all(&self.folder).and_then(|()| FolderWatch::new(&self.folder)) {
            Ok(watch) => watch,
            Err(error) => {
                tracing::error!(folder = %self.folder.display(), %error, "static pods cannot be watched");
                return;
            }
        };
        let changed = self.mirrors_changed.clone();
        self.pods.subscribe(move |change| {
            if let Change::Deleted(pod) | Change::Added(pod) = change
                && spec::is_mirror(pod)
            {
                changed.notify_one();
            }
        });
        self.pods.synced().await;
        loop {
            self.load();
            let complete = self.mirror().await;
            let retry = async {
                if complete {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(RETRY).await;
            };
            tokio::select! {
                read = watch.changed() => if read.is_err() { return },
                () = self.mirrors_changed.notified() => (),
                () = retry => (),
            }
        }
    }

    /// Reads the folder and tells the dispatcher what came and went.
    fn load(&self) {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut found: BTreeMap<String, Arc<Pod>> = BTreeMap::new();
        for path in files.filter(|path| is_manifest(path)) {
            match read(&path, &self.context.node_name) {
                Ok(pod) => {
                    found.insert(spec::uid(&pod).to_owned(), Arc::new(pod));
                }
                Err(error) => tracing::warn!(file = %path.display(), %error, "a manifest was left out"),
            }
        }
        let known = self.shown.borrow().clone();
        for pod in known.iter().filter(|pod| !found.contains_key(spec::uid(pod))) {
            let _ = self.tell.send(Input::Removed(pod.clone()));
        }
        for (uid, pod) in &found {
            if !known.iter().any(|known| spec::uid(known) == uid) {
                let _ = self.tell.send(Input::Changed(pod.clone()));
            }
        }
        self.shown.send_replace(found.into_values().collect());
    }

    /// Brings the mirrors in line; false if something is left to do.
    async fn mirror(&self) -> bool {
        let wanted = self.shown.borrow().clone();
        let mut complete = true;
        for mirror in self.pods.list().into_iter().filter(|pod| spec::is_mirror(pod)) {
            let hash = spec::annotation(&mirror, CONFIG_MIRROR);
            let current = wanted.iter().any(|pod| Key::of(&**pod) == Key::of(&*mirror) && Some(spec::uid(pod)) == hash);
            if !current {
                complete &= self.delete(&mirror).await;
            }
        }
        for pod in &wanted {
            if self.pods.get(&Key::of(&**pod)).is_none() {
                complete &= self.create(pod).await;
            }
        }
        complete
    }

    async fn create(&self, pod: &Pod) -> bool {
        let mut mirror = pod.clone();
        let annotations = mirror.metadata.annotations.get_or_insert_default();
        annotations.insert(CONFIG_MIRROR.to_owned(), spec::uid(pod).to_owned());
        mirror.metadata.uid = None;
        let node = self.context.nodes.get(&Key::new("", self.context.node_name.clone()));
        mirror.metadata.owner_references = node.and_then(|node| {
            let name = self.context.node_name.clone();
            let uid = node.metadata.uid.clone()?;
            let owner = OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name,
                uid,
                controller: Some(true),
                ..Default::default()
            };
            Some(vec![owner])
        });
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), spec::namespace(pod));
        match api.create(&PostParams::default(), &mirror).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(pod = %spec::display(pod), %error, "mirror could not be created");
                false
            }
        }
    }

    async fn delete(&self, mirror: &Pod) -> bool {
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), spec::namespace(mirror));
        let params = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
        match api.delete(spec::name(mirror), &params).await {
            Ok(_) => false,
            Err(kube::Error::Api(status)) if status.is_not_found() => true,
            Err(error) => {
                tracing::debug!(pod = %spec::display(mirror), %error, "mirror could not be deleted");
                false
            }
        }
    }
}

fn is_manifest(path: &Path) -> bool {
    let hidden = path.file_name().and_then(|name| name.to_str()).is_none_or(|name| name.starts_with('.'));
    let kind = path.extension().and_then(|extension| extension.to_str());
    !hidden && matches!(kind, Some("yaml" | "yml" | "json")) && path.is_file()
}

fn read(path: &Path, node: &str) -> Result<Pod, ManifestError> {
    parse(&std::fs::read_to_string(path)?, node)
}

/// The pod of a manifest, with the defaults an API server would give it. Its uid is its content's.
fn parse(text: &str, node: &str) -> Result<Pod, ManifestError> {
    // Through JSON, which pods are read from everywhere: a second way to read them would be 3 MB of code.
    let document: Value = serde_saphyr::from_str(text).map_err(|error| ManifestError::Parse(error.to_string()))?;
    let pod = serde_json::from_str(&document.to_string());
    let mut pod: Pod = pod.map_err(|error| ManifestError::Parse(error.to_string()))?;
    let name = pod.metadata.name.take().filter(|name| !name.is_empty()).ok_or(ManifestError::Incomplete)?;
    let digest = Sha256::digest(format!("{node}\n{text}"));
    let uid: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    pod.metadata.name = Some(format!("{name}-{node}"));
    pod.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    pod.metadata.uid = Some(uid.clone());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(CONFIG_SOURCE.to_owned(), "file".to_owned());
    annotations.insert(CONFIG_HASH.to_owned(), uid);
    let pod_spec = pod.spec.as_mut().filter(|spec| !spec.containers.is_empty()).ok_or(ManifestError::Incomplete)?;
    pod_spec.node_name = Some(node.to_owned());
    pod_spec.restart_policy.get_or_insert_with(|| "Always".to_owned());
    pod_spec.dns_policy.get_or_insert_with(|| "ClusterFirst".to_owned());
    pod_spec.termination_grace_period_seconds.get_or_insert(30);
    // A static pod stays whatever happens to its node.
    let everything =
        Toleration { operator: Some("Exists".to_owned()), effect: Some("NoExecute".to_owned()), ..Default::default() };
    pod_spec.tolerations.get_or_insert_default().push(everything);
    pod_spec.containers.iter_mut().chain(pod_spec.init_containers.iter_mut().flatten()).for_each(default_container);
    Ok(pod)
}

fn default_container(container: &mut Container) {
    container.termination_message_path.get_or_insert_with(|| "/dev/termination-log".to_owned());
    container.termination_message_policy.get_or_insert_with(|| "File".to_owned());
    let image = container.image.as_deref().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or(image);
    let latest = last.ends_with(":latest") || !(last.contains(':') || image.contains('@'));
    container.image_pull_policy.get_or_insert_with(|| if latest { "Always" } else { "IfNotPresent" }.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: etcd}\nspec: {containers: [{name: c, image: \"etcd:3\"}]}\n";

    #[test]
    fn a_manifest_becomes_a_pod_of_this_node() {
        let pod = parse(MANIFEST, "n1").expect("a pod");
        assert_eq!((spec::namespace(&pod), spec::name(&pod)), ("default", "etcd-n1"));
        assert!(spec::is_static(&pod) && !spec::is_mirror(&pod));
        assert_eq!(spec::uid(&pod), spec::uid(&parse(MANIFEST, "n1").expect("again")));
        assert_ne!(spec::uid(&pod), spec::uid(&parse(&MANIFEST.replace("3", "4"), "n1").expect("another")));
        assert_eq!(spec::containers(&pod)[0].image_pull_policy.as_deref(), Some("IfNotPresent"));
    }

    #[test]
    fn what_is_no_pod_is_left_out() {
        for text in ["", "kind: Pod\nmetadata: {name: x}\n", "metadata: {}\nspec: {containers: [{name: c}]}\n", "]["] {
            assert!(parse(text, "n").is_err(), "{text:?}");
        }
    }
}
