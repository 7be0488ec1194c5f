//! A pod's volumes: made before its containers, kept up to date while it lives, removed after it.

pub(crate) mod atomic;
mod beneath;
mod content;
mod host_path;
pub(crate) mod mounts;
mod ownership;
pub(crate) mod token;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use api::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, Pod, Volume, VolumeMount};

use self::content::Content;
use self::token::Tokens;
use crate::budget::{Budget, Exceeded};
use crate::env::Variables;
use crate::expand::expand;
use crate::fields::{Facts, FieldError};
use crate::sources::{SourceError, Sources};
use crate::spec;

#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error("references non-existent config key: {key} in {name}")]
    Key { key: String, name: String },
    #[error("failed to fetch token: {0}")]
    Token(#[source] Box<kube::Error>),
    #[error(transparent)]
    HostPath(#[from] host_path::HostPathError),
    #[error(transparent)]
    Atomic(#[from] atomic::AtomicError),
    #[error(transparent)]
    Mount(#[from] mounts::MountError),
    #[error("{step} {path}: {source}")]
    Io { step: &'static str, path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    TooLarge(#[from] Exceeded),
    #[error("volume type {0} is not supported by this kubelet")]
    Unsupported(String),
}

/// Why a container's mounts could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContainerMountError {
    #[error("cannot find volume \"{volume}\" to mount into container \"{container}\"")]
    NoVolume { volume: String, container: String },
    #[error("unable to provision SubPath `{0}`: must be a relative path without \"..\"")]
    SubPath(String),
    #[error("failed to prepare subPath for volumeMount \"{volume}\" of container \"{container}\"")]
    Prepare { volume: String, container: String },
    #[error("volume devices are not supported by this kubelet")]
    Device,
    #[error("volume {0:?} requested recursive read-only mode, but it is not read-only")]
    NotReadOnly(String),
    #[error("volume {0:?} requested recursive read-only mode, but it is not compatible with propagation {1:?}")]
    Propagated(String, String),
    #[error("volume {0:?} requested recursive read-only mode, but it is not supported by the runtime")]
    NoRecursiveReadOnly(String),
    #[error("unknown recursive read-only mode {0:?}")]
    RecursiveReadOnly(String),
    #[error(transparent)]
    TooLong(#[from] Exceeded),
}

/// Where one volume is on this machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mounted {
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
    /// An image volume: the runtime mounts it itself.
    pub(crate) image: Option<k8s_openapi::api::core::v1::ImageVolumeSource>,
}

pub(crate) type MountedVolumes = HashMap<String, Mounted>;

/// What making volumes needs from the node.
pub(crate) struct Maker<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) pod_dir: &'a Path,
    pub(crate) sources: &'a Sources,
    pub(crate) facts: &'a Facts,
    pub(crate) client: &'a kube::Client,
    pub(crate) now: Timestamp,
}

impl Maker<'_> {
    /// Makes or refreshes every volume; safe to repeat. On failure says which volume.
    pub(crate) async fn make_all(&self, tokens: &mut Tokens) -> Result<MountedVolumes, (String, VolumeError)> {
        let mut all = MountedVolumes::new();
        let mut budget = Budget::of_files();
        for volume in spec::spec(self.pod).volumes.iter().flatten() {
            let made = self.make(volume, tokens, &mut budget).await.map_err(|error| (volume.name.clone(), error))?;
            all.insert(volume.name.clone(), made);
        }
        Ok(all)
    }

    async fn make(&self, volume: &Volume, tokens: &mut Tokens, budget: &mut Budget) -> Result<Mounted, VolumeError> {
        if let Some(source) = &volume.host_path {
            host_path::check(source)?;
            return Ok(Mounted { path: PathBuf::from(&source.path), read_only: false, image: None });
        }
        if let Some(source) = &volume.image {
            return Ok(Mounted { path: PathBuf::new(), read_only: true, image: Some(source.clone()) });
        }
        if let Some(source) = &volume.empty_dir {
            let path = self.folder("empty-dir", &volume.name);
            self.make_empty_dir(&path, source)?;
            return Ok(Mounted { path, read_only: false, image: None });
        }
        let (plugin, in_memory) = match volume {
            Volume { config_map: Some(_), .. } => ("configmap", false),
            Volume { secret: Some(_), .. } => ("secret", true),
            Volume { downward_api: Some(_), .. } => ("downward-api", true),
            Volume { projected: Some(_), .. } => ("projected", true),
            _ => return Err(VolumeError::Unsupported(kind_of(volume))),
        };
        let content =
            Content { pod: self.pod, sources: self.sources, facts: self.facts, client: self.client, now: self.now };
        let payload = content.of(volume, tokens, budget).await?.unwrap_or_default();
        let path = self.folder(plugin, &volume.name);
        if in_memory {
            mounts::tmpfs(&path, None)?;
        } else {
            self.make_folder(&path, 0o777)?;
        }
        let group = self.fs_group();
        if let Some(group) = group {
            ownership::give_to_group(&path, group, true, false).map_err(|source| VolumeError::Io {
                step: "setting ownership of",
                path: path.clone(),
                source,
            })?;
        }
        atomic::write(&path, &payload, |fresh| match group {
            Some(group) => ownership::give_to_group(fresh, group, true, true),
            None => Ok(()),
        })?;
        Ok(Mounted { path, read_only: true, image: None })
    }

    fn folder(&self, plugin: &str, name: &str) -> PathBuf {
        self.pod_dir.join("volumes").join(format!("kubernetes.io~{plugin}")).join(name)
    }

    fn fs_group(&self) -> Option<u32> {
        let group = spec::spec(self.pod).security_context.as_ref()?.fs_group?;
        u32::try_from(group).ok()
    }

    fn make_folder(&self, path: &Path, mode: u32) -> Result<bool, VolumeError> {
        let io = |step| move |source| VolumeError::Io { step, path: path.to_owned(), source };
        let fresh = !path.exists();
        std::fs::create_dir_all(path).map_err(io("making"))?;
        if fresh {
            beneath::set_mode(path, mode).map_err(io("setting the mode of"))?;
        }
        Ok(fresh)
    }

    fn make_empty_dir(&self, path: &Path, source: &EmptyDirVolumeSource) -> Result<(), VolumeError> {
        let fresh = match source.medium.as_deref().unwrap_or_default() {
            "" => self.make_folder(path, 0o777)?,
            "Memory" => {
                let size = source.size_limit.as_ref().and_then(|size| Quantity::parse(&size.0).ok());
                let fresh = !path.exists();
                mounts::tmpfs(path, size.map(|size| size.value()))?;
                fresh
            }
            other => return Err(VolumeError::Unsupported(format!("emptyDir with medium {other}"))),
        };
        match self.fs_group().filter(|_| fresh) {
            Some(group) => ownership::give_to_group(path, group, false, true).map_err(|source| VolumeError::Io {
                step: "setting ownership of",
                path: path.to_owned(),
                source,
            }),
            None => Ok(()),
        }
    }
}

/// The name of the volume's source field, for the message.
fn kind_of(volume: &Volume) -> String {
    let fields = serde_json::to_value(volume).ok();
    let fields = fields.as_ref().and_then(|value| value.as_object());
    let kind = fields.and_then(|fields| fields.keys().find(|key| *key != "name"));
    kind.cloned().unwrap_or_else(|| "(none)".to_owned())
}

/// Whether any mount of the container asks to be read-only with everything mounted below it.
pub(crate) fn asks_recursive_read_only(container: &Container) -> bool {
    container.volume_mounts.iter().flatten().any(|mount| mount.recursive_read_only.is_some())
}

/// Whether the mount is to be read-only with everything mounted below it, where the runtime `can` do that.
fn is_recursively_read_only(mount: &VolumeMount, can: bool) -> Result<bool, ContainerMountError> {
    let mode = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
    if mode == "Disabled" {
        return Ok(false);
    }
    if mount.read_only != Some(true) {
        return Err(ContainerMountError::NotReadOnly(mount.name.clone()));
    }
    if let Some(propagation) = mount.mount_propagation.as_ref().filter(|propagation| *propagation != "None") {
        return Err(ContainerMountError::Propagated(mount.name.clone(), propagation.clone()));
    }
    match mode {
        "IfPossible" => Ok(can),
        "Enabled" if can => Ok(true),
        "Enabled" => Err(ContainerMountError::NoRecursiveReadOnly(mount.name.clone())),
        other => Err(ContainerMountError::RecursiveReadOnly(other.to_owned())),
    }
}

/// The mounts of one container, sub-paths bound; `recursive_read_only` says whether the runtime has such mounts.
pub(crate) fn container_mounts(
    pod_dir: &Path,
    container: &Container,
    volumes: &MountedVolumes,
    env: &Variables,
    recursive_read_only: bool,
) -> Result<Vec<cri::v1::Mount>, ContainerMountError> {
    if container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()) {
        return Err(ContainerMountError::Device);
    }
    let mut all = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let volume = volumes.get(&mount.name).ok_or_else(|| ContainerMountError::NoVolume {
            volume: mount.name.clone(),
            container: container.name.clone(),
        })?;
        let sub_path = sub_path_of(mount, env)?;
        let read_only = mount.read_only == Some(true) || volume.read_only;
        let container_path =
            if mount.mount_path.starts_with('/') { mount.mount_path.clone() } else { format!("/{}", mount.mount_path) };
        let mut made = cri::v1::Mount {
            container_path,
            readonly: read_only,
            recursive_read_only: is_recursively_read_only(mount, recursive_read_only)?,
            propagation: match mount.mount_propagation.as_deref() {
                Some("Bidirectional") => cri::v1::MountPropagation::PropagationBidirectional as i32,
                Some("HostToContainer") => cri::v1::MountPropagation::PropagationHostToContainer as i32,
                _ => cri::v1::MountPropagation::PropagationPrivate as i32,
            },
            ..Default::default()
        };
        if let Some(image) = &volume.image {
            let reference = image.reference.clone().unwrap_or_default();
            made.image = Some(cri::v1::ImageSpec { image: reference, ..Default::default() });
            made.image_sub_path = sub_path;
        } else if sub_path.is_empty() {
            made.host_path = volume.path.display().to_string();
        } else {
            let target =
                pod_dir.join("volume-subpaths").join(&mount.name).join(&container.name).join(index.to_string());
            mounts::bind_sub_path(&volume.path, &sub_path, &target).map_err(|error| {
                // What exactly failed could tell about the host's files, so it goes to our log only.
                tracing::warn!(container = container.name, volume = mount.name, %error, "sub-path could not be bound");
                ContainerMountError::Prepare { volume: mount.name.clone(), container: container.name.clone() }
            })?;
            made.host_path = target.display().to_string();
        }
        all.push(made);
    }
    Ok(all)
}

fn sub_path_of(mount: &VolumeMount, env: &Variables) -> Result<String, ContainerMountError> {
    let path = match mount.sub_path_expr.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => expand(text, &mut Budget::of_process(), |name| env.get(name).cloned())?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    if path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Err(ContainerMountError::SubPath(path));
    }
    Ok(path)
}
