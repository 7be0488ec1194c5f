//! The parts of image manifests, indexes and configurations that a runtime needs, in OCI's and Docker's spelling alike.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::digest::Digest;

/// Everything a registry may answer for a manifest request.
pub(crate) const ACCEPTED: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Platform {
    pub architecture: String,
    pub os: String,
}

impl Platform {
    /// This machine, in the words of the image specification.
    pub(crate) fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { architecture: architecture.to_owned(), os: "linux".to_owned() }
    }

    fn fits(&self, wanted: &Self) -> bool {
        self.architecture == wanted.architecture && self.os == wanted.os
    }
}

/// A manifest or an index, told apart by their fields: media types are often missing in archives.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Document {
    Manifest(Manifest),
    Index(Index),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Index {
    pub manifests: Vec<Descriptor>,
}

impl Index {
    /// The entry for a platform. An index of one entry without platform (an archive) is that entry.
    pub(crate) fn select(&self, wanted: &Platform) -> Option<&Descriptor> {
        let fitting = self.manifests.iter().find(|m| m.platform.as_ref().is_some_and(|p| p.fits(wanted)));
        fitting.or_else(|| match self.manifests.as_slice() {
            [only] if only.platform.is_none() => Some(only),
            _ => None,
        })
    }
}

/// An image's configuration blob. Its digest is the image's id.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ImageConfig {
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
    #[serde(default)]
    pub config: ProcessConfig,
    #[serde(default)]
    pub rootfs: RootFs,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RootFs {
    #[serde(default, rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub diff_ids: Vec<Digest>,
}

/// How to run the image. Docker writes `null` where OCI leaves a field out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ProcessConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cmd: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumes: Option<BTreeMap<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}
