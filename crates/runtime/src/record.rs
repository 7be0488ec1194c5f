//! What the runtime remembers of sandboxes and containers across its own restarts.
//!
//! `sandboxes/<id>/sandbox.json` and `sandboxes/<id>/containers/<id>/container.json`, each written whole, atomically and durably.
//! CRI messages are kept in their own encoding, so that nothing of them is lost.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cri::v1::{ContainerConfig, PodSandboxConfig};
use parking_lot::Mutex;
use prost::Message;
use serde::de::DeserializeOwned;
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

/// Writes what is of no use after a reboot: whole for every reader, but not durable.
pub(crate) fn save<T: Serialize>(directory: &Path, name: &str, value: &T) -> io::Result<()> {
    disk::write_atomically(&directory.join(name), &serde_json::to_vec(value)?)
}

/// The version of the records that this program writes, and the newest that it can read.
const VERSION: u32 = 1;

/// A record as it is on disk.
pub(crate) fn encode<T: Serialize>(record: &T) -> io::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        version: u32,
        #[serde(flatten)]
        record: &'a T,
    }
    Ok(serde_json::to_vec(&Versioned { version: VERSION, record })?)
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Damaged(String),
}

impl ReadError {
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ReadError> {
    decode(&std::fs::read(path)?)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ReadError> {
    #[derive(Deserialize)]
    struct Version {
        /// The first version did not write it.
        #[serde(default)]
        version: u32,
    }
    let damaged = |error: serde_json::Error| ReadError::Damaged(error.to_string());
    match serde_json::from_slice::<Version>(bytes).map_err(damaged)?.version {
        0..=VERSION => serde_json::from_slice(bytes).map_err(damaged),
        newer => Err(ReadError::Damaged(format!("it has version {newer}, of a newer release"))),
    }
}

/// A record and the file that keeps it.
pub(crate) struct Kept<T> {
    record: Mutex<T>,
    file: PathBuf,
    /// Held while the file is written, also by a caller that no longer waits for it.
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl<T: Clone + Serialize> Kept<T> {
    /// Does not write yet.
    pub(crate) fn new(record: T, file: PathBuf) -> Self {
        Self { record: Mutex::new(record), file, writing: Arc::default() }
    }

    pub(crate) fn get(&self) -> T {
        self.record.lock().clone()
    }

    /// Changes the record, and returns once the change is durable.
    pub(crate) async fn update(&self, change: impl FnOnce(&mut T)) -> io::Result<()> {
        let one_at_a_time = self.writing.clone().lock_owned().await;
        let bytes = {
            let mut record = self.record.lock();
            change(&mut record);
            encode(&*record)?
        };
        let file = self.file.clone();
        let written = tokio::task::spawn_blocking(move || {
            let _one_at_a_time = one_at_a_time;
            disk::write_durably(&file, &bytes)
        });
        written.await.unwrap_or_else(|_| Err(io::Error::other("writing a record panicked")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Example {
        id: String,
        number: i64,
    }

    #[tokio::test]
    async fn a_record_is_kept_until_it_is_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("example.json");
        let kept = Kept::new(Example { id: "a".to_owned(), number: 1 }, file.clone());
        assert!(read::<Example>(&file).is_err_and(|error| error.is_not_found()));
        kept.update(|record| record.number = i64::MIN).await.expect("written");
        assert_eq!(read::<Example>(&file).expect("read"), kept.get());
    }

    #[test]
    fn a_damaged_record_is_not_taken_for_another() {
        let whole = encode(&Example { id: "a".to_owned(), number: 1 }).expect("encoded");
        assert_eq!(decode::<Example>(&whole).expect("decoded").number, 1);
        assert_eq!(decode::<Example>(br#"{"id":"a","number":1}"#).expect("of the first version").number, 1);
        for length in 0..whole.len() {
            assert!(decode::<Example>(&whole[..length]).is_err(), "{length}");
        }
        for bytes in [&b"\0\0\0\0"[..], b"null", b"[]", b"{}", br#"{"version":2,"id":"a","number":1}"#] {
            let refused = decode::<Example>(bytes);
            assert!(matches!(refused, Err(ReadError::Damaged(_))), "{bytes:?}: {refused:?}");
        }
    }
}
