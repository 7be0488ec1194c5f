//! A CRI v1 container runtime: images, sandboxes and containers on one machine, without a daemon of its own.
//!
//! [`Runtime`] implements [`cri::Cri`]; the kubelet calls it directly, `crictl` over a socket. Everything it knows is on disk below
//! [`Config::root`], and each pod has a shim process ([`shim_main`]) that outlives the runtime: [`Runtime::open`] finds the shims that
//! still live and adopts their containers, with exits that happened meanwhile.

// Forks, signals by descriptor and system call filters have no safe form; each block says why it is sound.
#![allow(unsafe_code)]

mod cgroup;
mod container;
mod disk;
mod events;
#[doc(hidden)]
pub mod fuzzing;
mod images;
mod memory;
mod network;
mod overlay;
mod record;
mod recovery;
mod sandbox;
mod service;
mod shim;
mod spec;
mod stats;
mod streaming;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

pub use images::{
    Credentials, Digest, ImageError, ImageLimits, Images, ImportError, LimitError, ManifestError, ProcessConfig,
    PullError, Reference, ReferenceError, StoreError, StoredImage, UnpackError,
};
pub use memory::forget_start;
pub use network::{NetworkError, NoNetwork, PodAttachment, PodNetwork};
pub use shim::shim_main;

use container::Container;
use events::Events;
use sandbox::Sandbox;
use shim::program::Program;
use streaming::Streaming;

/// What a runtime needs to know.
pub struct Config {
    /// Where images, sandboxes and their state live.
    pub root: PathBuf,
    /// The program that calls [`shim_main`], and its arguments before the sandbox directory.
    pub shim: (PathBuf, Vec<OsString>),
    pub network: Arc<dyn PodNetwork>,
    /// A directory of PEM files with certificate authorities to trust beside the system's.
    pub registry_ca: Option<PathBuf>,
    pub image_limits: ImageLimits,
}

/// Why a runtime cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot use {path}: {source}")]
    Root { path: PathBuf, source: io::Error },
    #[error(
        "overlayfs does not work on {path}: {source}. Use a data directory on ext4, xfs or btrfs, and a kernel with overlayfs"
    )]
    Overlay { path: PathBuf, source: io::Error },
    #[error(
        "cannot make a read-only mount of the shim's program {path}: {source}. It needs CAP_SYS_ADMIN and Linux 5.12"
    )]
    Shim { path: PathBuf, source: io::Error },
    #[error("no cgroup hierarchy with a memory controller is mounted at /sys/fs/cgroup")]
    Cgroup,
    #[error(transparent)]
    Images(#[from] StoreError),
    #[error("cannot listen on loopback for exec, attach and port-forward: {0}")]
    Streaming(#[source] io::Error),
    #[error("cannot read the state of sandbox {id}: {source}")]
    State { id: String, source: io::Error },
}

/// The runtime. Cheap to share; drop it and every pod goes on.
pub struct Runtime {
    config: Config,
    /// What [`Config::shim`] names, as it is executed.
    shim: Program,
    images: Images,
    events: Events,
    streaming: Streaming,
    pods: RwLock<Pods>,
    me: std::sync::Weak<Runtime>,
}

#[derive(Default)]
pub(crate) struct Pods {
    pub sandboxes: HashMap<String, Arc<Sandbox>>,
    pub containers: HashMap<String, Arc<Container>>,
}

impl Runtime {
    /// Opens the state below `config.root` and adopts what still runs. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The directory cannot be used, or the kernel lacks what containers need; the message says what to do.
    pub async fn open(config: Config) -> Result<Arc<Self>, OpenError> {
        let fail = |source| OpenError::Root { path: config.root.clone(), source };
        for name in ["images", "sandboxes"] {
            close_to_others(&config.root.join(name)).map_err(fail)?;
        }
        let shim =
            Program::open(&config.shim.0).map_err(|source| OpenError::Shim { path: config.shim.0.clone(), source })?;
        overlay::probe(&config.root.join("probe"))
            .map_err(|source| OpenError::Overlay { path: config.root.clone(), source })?;
        if !cgroup::is_v2() && !std::path::Path::new("/sys/fs/cgroup/memory").is_dir() {
            return Err(OpenError::Cgroup);
        }
        let images = Images::open(&config.root.join("images"), config.registry_ca.as_deref(), config.image_limits)?;
        let streaming = Streaming::bind().await.map_err(OpenError::Streaming)?;
        let runtime = Arc::new_cyclic(|me| Self {
            config,
            shim,
            images,
            events: Events::new(),
            streaming,
            pods: RwLock::default(),
            me: me.clone(),
        });
        runtime.recover().await?;
        runtime.streaming.serve(Arc::downgrade(&runtime));
        Ok(runtime)
    }

    pub fn images(&self) -> &Images {
        &self.images
    }
}

/// Makes a directory that only its owner may enter, and closes one that others could enter. What is below it has the modes that
/// images gave it, setuid programs among them.
fn close_to_others(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}
