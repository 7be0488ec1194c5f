//! What a runtime finds when it starts: the sandboxes and containers of the one before it, and the shims that still live.
//!
//! A record that is damaged is moved to `damaged/`, and what it was of is ended and removed: the kubelet then sees that it is missing
//! and makes another. Everything else starts.

use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use crate::container::Container;
use crate::record::{self, ContainerRecord, ReadError, SandboxRecord, save};
use crate::sandbox::{RECORD, SHUTDOWN_PATIENCE, Sandbox, now, unmount_below};
use crate::shim::link::Link;
use crate::shim::protocol::{ContainerSetup, ContainerState, Request, container_directory, read_json};
use crate::{OpenError, Runtime, cgroup, disk};

impl Runtime {
    /// Reads what is on disk, and takes up again with every shim that lives.
    pub(crate) async fn recover(&self) -> Result<(), OpenError> {
        let root = self.config.root.join("sandboxes");
        let fail = |source| OpenError::Root { path: root.clone(), source };
        for entry in std::fs::read_dir(&root).map_err(fail)? {
            let directory = entry.map_err(fail)?.path();
            let id = name_of(&directory);
            match record::read::<SandboxRecord>(&directory.join(RECORD)) {
                Ok(record) => {
                    self.recover_sandbox(directory, record).await.map_err(|source| OpenError::State { id, source })?
                }
                Err(ReadError::Damaged(reason)) => {
                    self.end_unreadable_sandbox(&directory, &id).await;
                    self.set_aside(&directory.join(RECORD), &id, &reason);
                    unmount_below(&directory).and_then(|()| disk::remove(&directory)).map_err(fail)?;
                }
                // It died before its first record: there is nothing but the directory.
                Err(error) if error.is_not_found() => {
                    unmount_below(&directory).and_then(|()| disk::remove(&directory)).map_err(fail)?;
                }
                Err(ReadError::Io(source)) => return Err(OpenError::State { id, source }),
            }
        }
        Ok(())
    }

    async fn recover_sandbox(&self, directory: PathBuf, record: SandboxRecord) -> io::Result<()> {
        let id = record.id.clone();
        let was_ready = record.ready;
        let sandbox = Sandbox::new(directory.clone(), record);
        self.pods.write().sandboxes.insert(id.clone(), sandbox.clone());
        let (mut unreadable, mut stateless) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(directory.join("containers")).into_iter().flatten() {
            let at = entry?.path();
            let record = match record::read::<ContainerRecord>(&at.join("container.json")) {
                Ok(record) => record,
                Err(ReadError::Io(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Err(reason) => {
                    unreadable.push((at, reason));
                    continue;
                }
            };
            let state = match record::read::<ContainerState>(&at.join("state.json")) {
                Ok(state) => Some(state),
                Err(error) if error.is_not_found() => Some(ContainerState::default()),
                Err(error) => {
                    self.set_aside(&at.join("state.json"), &record.id, &error.to_string());
                    None
                }
            };
            self.images.lease(&record.layers);
            let is_stateless = state.is_none();
            let container = Container::new(&at, record, state.unwrap_or_default());
            if is_stateless {
                stateless.push(container.clone());
            }
            self.pods.write().containers.insert(container.id.clone(), container);
        }
        if was_ready {
            self.adopt(&sandbox).await?;
        }
        for (at, reason) in unreadable {
            self.end_unreadable_container(&sandbox, &at, &reason).await?;
        }
        // The shim does not know of it, so it does not run any more.
        for container in stateless.into_iter().filter(|container| container.state() == ContainerState::default()) {
            let lost = ContainerState::lost(now());
            save(&container_directory(&sandbox.directory, &container.id), "state.json", &lost)?;
            container.settle(lost);
        }
        Ok(())
    }

    /// Takes up again with the shim of a sandbox, or ends what it left.
    async fn adopt(&self, sandbox: &std::sync::Arc<Sandbox>) -> io::Result<()> {
        let id = sandbox.record().id;
        match self.connect(sandbox) {
            Ok(link) => match link.state().await {
                Ok(states) => {
                    for (container, state) in states {
                        if let Some(container) = self.container(&container) {
                            container.settle(state);
                        }
                    }
                    tracing::info!(sandbox = id, "adopted a running pod");
                }
                Err(_) => self.bury(sandbox).await,
            },
            Err(_) => {
                tracing::warn!(sandbox = id, "the pod's shim is gone: its containers are ended");
                self.bury(sandbox).await;
                sandbox.record.update(|record| record.ready = false).await?;
            }
        }
        Ok(())
    }

    /// Ends and removes a container of which there is no usable record.
    async fn end_unreadable_container(&self, sandbox: &Sandbox, at: &Path, reason: &ReadError) -> io::Result<()> {
        let id = name_of(at);
        let group = format!("{}/{id}", sandbox.record().cgroup_parent);
        self.end_group(&group).await;
        if let Ok(link) = sandbox.link()
            && let Err(error) = link.tell(Request::Delete { container: id.clone() }).await
        {
            tracing::warn!(container = id, %error, "the pod's shim does not drop a container");
        }
        if !reason.is_not_found() {
            self.set_aside(&at.join("container.json"), &id, &reason.to_string());
        }
        disk::remove(at)?;
        disk::remove(&sandbox.directory.join("mnt").join(&id))
    }

    /// Ends the pod of a sandbox of which there is no usable record, as far as its other files say what belongs to it.
    async fn end_unreadable_sandbox(&self, directory: &Path, id: &str) {
        if let Ok(link) = Link::connect(directory, mpsc::unbounded_channel().0) {
            let ended = tokio::time::timeout(SHUTDOWN_PATIENCE, link.tell(Request::Shutdown)).await;
            if !matches!(ended, Ok(Ok(()))) {
                link.kill_shim();
            }
        }
        for container in std::fs::read_dir(directory.join("containers")).into_iter().flatten().flatten() {
            let record = record::read::<ContainerRecord>(&container.path().join("container.json"));
            let group = record.map(|record| record.cgroup_path).or_else(|_| {
                read_json::<ContainerSetup>(&container.path().join("create.json")).map(|setup| setup.cgroup_path)
            });
            if let Ok(group) = group {
                self.end_group(&group).await;
                if let Some(parent) = Path::new(&group).parent().and_then(Path::to_str) {
                    cgroup::remove_if_empty(parent);
                }
            }
        }
        // The group of a pod that was made without one.
        cgroup::remove_if_empty(&format!("/ferry/{id}"));
        if let Err(error) = self.config.network.detach(id, &directory.join("ns/net")).await {
            tracing::warn!(sandbox = id, %error, "a pod with a damaged record is not taken off the network");
        }
    }

    async fn end_group(&self, group: &str) {
        let left = cgroup::kill_async(group).await;
        if left > 0 {
            tracing::error!(cgroup = group, left, "processes of a container with a damaged record cannot be killed");
        }
        cgroup::remove(group);
    }

    fn set_aside(&self, file: &Path, id: &str, reason: &str) {
        let name = format!("{id}-{}", name_of(file));
        match disk::set_aside(file, &self.config.root.join("damaged"), &name) {
            Ok(moved_to) => tracing::warn!(
                file = %file.display(), moved_to = %moved_to.display(), reason, "a record is damaged and was moved aside"
            ),
            Err(error) => {
                tracing::warn!(file = %file.display(), reason, %error, "a record is damaged and cannot be moved aside")
            }
        }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
