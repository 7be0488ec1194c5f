//! What the runtime remembers of sandboxes and containers across its own restarts.
//!
//! `sandboxes/<id>/sandbox.json` and `sandboxes/<id>/containers/<id>/container.json`, each written whole and atomically.
//! CRI messages are kept in their own encoding, so that nothing of them is lost.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cri::v1::{ContainerConfig, PodSandboxConfig};
use prost::Message;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::disk;
use crate::images::Digest;

/// A protobuf message inside a JSON document.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Encoded<M>(pub M);

impl<M: Message> Serialize for Encoded<M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self.0.encode_to_vec()))
    }
}

impl<'de, M: Message + Default> Deserialize<'de> for Encoded<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = STANDARD.decode(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)?;
        M::decode(bytes.as_slice()).map(Encoded).map_err(serde::de::Error::custom)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    pub id: String,
    pub config: Encoded<PodSandboxConfig>,
    pub created_at: i64,
    pub ready: bool,
    pub ips: Vec<IpAddr>,
    pub runtime_handler: String,
    /// The pod's group; containers are below it.
    pub cgroup_parent: String,
    /// Groups that did not exist before this sandbox, deepest first: its removal removes them.
    pub owned_cgroups: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    pub id: String,
    pub sandbox: String,
    pub config: Encoded<ContainerConfig>,
    pub created_at: i64,
    /// What the container was asked to run, by id and by digest.
    pub image_id: String,
    pub image_ref: String,
    pub layers: Vec<Digest>,
    pub cgroup_path: String,
    pub log_path: Option<String>,
    pub stop_signal: i32,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Set when it could not be started: there is no process then, but an outcome.
    pub start_error: Option<String>,
}

pub(crate) fn save<T: Serialize>(directory: &Path, name: &str, record: &T) -> io::Result<()> {
    disk::write_atomically(&directory.join(name), &serde_json::to_vec(record)?)
}
