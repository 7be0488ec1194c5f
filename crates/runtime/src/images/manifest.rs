//! The parts of image manifests, indexes and configurations that a runtime needs, in OCI's and Docker's spelling alike.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::limits::MAX_LAYERS;

const INDEX_TYPES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
pub(crate) const MANIFEST_TYPES: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
/// Everything a registry may answer for a manifest request.
pub(crate) const ACCEPTED: [&str; 4] = [INDEX_TYPES[0], INDEX_TYPES[1], MANIFEST_TYPES[0], MANIFEST_TYPES[1]];

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

/// Why a document is not a manifest, index or configuration that an image can be made of.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("it is a manifest of schema 1, which is no longer supported: push the image again with a current tool")]
    Schema1,
    #[error("it has the fields of a manifest and of an index, so its meaning is ambiguous")]
    Ambiguous,
    #[error("it has neither the fields of a manifest (config, layers) nor of an index (manifests)")]
    Neither,
    #[error("its media type is {media_type}, but its fields are those of {fields}")]
    MediaType { media_type: String, fields: &'static str },
    #[error("it has {0} layers, more than the {MAX_LAYERS} that can be mounted")]
    Layers(usize),
}

/// A manifest or an index.
#[derive(Clone, Debug)]
pub(crate) enum Document {
    Manifest(Manifest),
    Index(Index),
}

impl Document {
    /// Parses what was served or stored as `media_type`. The fields decide what it is, as media types are often missing; but one
    /// that says otherwise, or fields of both kinds, are refused: two readers could take such a document for different images
    /// (CVE-2021-41190).
    pub(crate) fn parse(bytes: &[u8], media_type: &str) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Fields {
            media_type: Option<String>,
            config: Option<Descriptor>,
            layers: Option<Vec<Descriptor>>,
            manifests: Option<Vec<Descriptor>>,
            fs_layers: Option<Vec<serde::de::IgnoredAny>>,
        }
        let fields: Fields = serde_json::from_slice(bytes)?;
        let is_empty = |list: &Option<Vec<Descriptor>>| list.as_ref().is_none_or(Vec::is_empty);
        if fields.fs_layers.is_some_and(|layers| !layers.is_empty()) {
            return Err(ManifestError::Schema1);
        }
        if !is_empty(&fields.manifests) && (fields.config.is_some() || !is_empty(&fields.layers)) {
            return Err(ManifestError::Ambiguous);
        }
        let own_type = fields.media_type.unwrap_or_default();
        let document = match (fields.config, fields.layers, fields.manifests) {
            (Some(config), Some(layers), _) => {
                if layers.len() > MAX_LAYERS {
                    return Err(ManifestError::Layers(layers.len()));
                }
                Self::Manifest(Manifest { schema_version: 2, media_type: own_type.clone(), config, layers })
            }
            (None, _, Some(manifests)) => Self::Index(Index { manifests }),
            _ => return Err(ManifestError::Neither),
        };
        let (fields, others) = match document {
            Self::Manifest(_) => ("a manifest", &INDEX_TYPES),
            Self::Index(_) => ("an index", &MANIFEST_TYPES),
        };
        // A Content-Type may carry parameters.
        let served_type = media_type.split(';').next().unwrap_or_default().trim();
        for media_type in [served_type, &own_type] {
            if others.contains(&media_type) {
                return Err(ManifestError::MediaType { media_type: media_type.to_owned(), fields });
            }
        }
        Ok(document)
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

#[derive(Clone, Debug)]
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const OCI_MANIFEST: &str = MANIFEST_TYPES[0];
    const DOCKER_LIST: &str = INDEX_TYPES[1];

    #[test]
    fn documents_are_what_their_fields_and_media_types_agree_on() {
        let blob = json!({ "digest": Digest::of(b"x").to_string(), "size": 1 });
        let manifest = json!({ "schemaVersion": 2, "config": blob, "layers": [blob] });
        let index = json!({ "schemaVersion": 2, "manifests": [blob] });
        check(&manifest, "", "manifest");
        check(&manifest, "text/plain; charset=utf-8", "manifest");
        check(&manifest, OCI_MANIFEST, "manifest");
        check(&with(&manifest, "manifests", json!([])), "", "manifest");
        check(&manifest, DOCKER_LIST, "fields are those of a manifest");
        check(&manifest, &format!("{DOCKER_LIST}; charset=utf-8"), "fields are those of a manifest");
        check(&with(&manifest, "mediaType", json!(DOCKER_LIST)), "", "fields are those of a manifest");
        check(&with(&manifest, "manifests", json!([blob])), "", "ambiguous");
        check(&index, "", "index");
        check(&with(&index, "layers", json!([])), DOCKER_LIST, "index");
        check(&with(&index, "layers", json!([blob])), "", "ambiguous");
        check(&with(&index, "config", blob.clone()), "", "ambiguous");
        check(&index, OCI_MANIFEST, "fields are those of an index");
        check(&with(&index, "mediaType", json!(OCI_MANIFEST)), "", "fields are those of an index");
        check(&json!({ "schemaVersion": 1, "fsLayers": [{ "blobSum": "x" }] }), "", "schema 1");
        check(&json!({ "config": blob }), "", "neither");
        check(&with(&manifest, "layers", json!(vec![&blob; MAX_LAYERS])), "", "manifest");
        check(&with(&manifest, "layers", json!(vec![&blob; MAX_LAYERS + 1])), "", "more than the 200");
    }

    fn with(document: &serde_json::Value, field: &str, value: serde_json::Value) -> serde_json::Value {
        let mut document = document.clone();
        document.as_object_mut().expect("an object").insert(field.to_owned(), value);
        document
    }

    #[track_caller]
    fn check(document: &serde_json::Value, media_type: &str, want: &str) {
        let got = match Document::parse(document.to_string().as_bytes(), media_type) {
            Ok(Document::Manifest(_)) => "manifest".to_owned(),
            Ok(Document::Index(_)) => "index".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(got.contains(want), "{got:?} for {want:?}");
    }
}
