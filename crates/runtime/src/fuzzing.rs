//! Entrances for fuzzing: what reads bytes of registries, archives and containers, and does not leave the crate otherwise.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::images::fuzzing as images;
use crate::images::{ImageLimits, ProcessConfig, UnpackError};
use crate::shim::protocol::{self, Call, FromShim};
use crate::spec;

/// Unpacks a layer into `target/fs`, and returns the bytes of its files. The layer's digest is not checked.
///
/// # Errors
/// The archive cannot be read, or exceeds the limits.
pub fn unpack_layer(layer: impl Read, target: &Path, limits: ImageLimits) -> Result<u64, UnpackError> {
    images::unpack_layer(layer, target, limits)
}

/// Reads `bytes` as every kind of document that describes an image, and checks what must hold of each.
pub fn read_documents(bytes: &[u8]) {
    images::read_documents(bytes);
}

/// Reads `text` as the name of an image and as a registry's challenge, and checks what must hold of each.
pub fn read_texts(text: &str) {
    images::read_texts(text);
}

/// The OCI specification of a container of an image without files, whose sandbox has its files in `sandbox`; missing sources of
/// mounts are made, nothing is started.
///
/// # Errors
/// Why there can be no such container.
pub fn specification(
    sandbox: &Path,
    pod: &cri::v1::PodSandboxConfig,
    container: &cri::v1::ContainerConfig,
    image: &ProcessConfig,
) -> Result<serde_json::Value, String> {
    let input = spec::Input {
        config: container,
        sandbox: pod,
        image,
        layers: &[],
        sandbox_directory: sandbox,
        rootfs: &sandbox.join("mnt/root"),
        cgroup_path: "/specification",
        target_pid: None,
    };
    spec::build(&input).map(|output| output.spec).map_err(|error| error.to_string())
}

/// Receives a message as the shim does, and as the runtime does.
pub fn receive(shims: &OwnedFd, runtimes: &OwnedFd) {
    if let Ok(Some((call, _))) = protocol::receive::<Call>(shims) {
        same_again(&call);
    }
    if let Ok(Some((message, _))) = protocol::receive::<FromShim>(runtimes) {
        same_again(&message);
    }
}

/// Checks that a decoded message survives encoding and decoding unchanged.
fn same_again<T: serde::Serialize + serde::de::DeserializeOwned>(message: &T) {
    let written = serde_json::to_vec(message).unwrap_or_default();
    let again = serde_json::from_slice::<T>(&written).ok().and_then(|again| serde_json::to_vec(&again).ok());
    assert_eq!(again.as_ref(), Some(&written));
}
