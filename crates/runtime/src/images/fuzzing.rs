//! See [`crate::fuzzing`].

use std::io::Read;
use std::path::Path;

use super::import::DockerImage;
use super::limits::{ImageLimits, MAX_LAYERS};
use super::manifest::{Document, ImageConfig, MANIFEST_TYPES, Platform};
use super::reference::Reference;
use super::registry::{escape, parameters};
use super::unpack::{UnpackError, unpack_here};

pub(crate) fn unpack_layer(layer: impl Read, target: &Path, limits: ImageLimits) -> Result<u64, UnpackError> {
    let (_, bytes) = unpack_here(layer, &[], target, limits)?;
    assert!(bytes <= limits.layer_max_bytes);
    Ok(bytes)
}

pub(crate) fn read_documents(bytes: &[u8]) {
    match Document::parse(bytes, "") {
        Ok(Document::Manifest(manifest)) => {
            assert!(manifest.layers.len() <= MAX_LAYERS);
            assert!(matches!(Document::parse(bytes, MANIFEST_TYPES[0]), Ok(Document::Manifest(_))));
        }
        Ok(Document::Index(index)) => {
            index.select(&Platform::here());
            assert!(Document::parse(bytes, MANIFEST_TYPES[0]).is_err());
        }
        Err(_) => (),
    }
    if let Ok(config) = serde_json::from_slice::<ImageConfig>(bytes) {
        let written = serde_json::to_vec(&config).unwrap_or_default();
        assert!(serde_json::from_slice::<ImageConfig>(&written).is_ok_and(|again| again.config == config.config));
    }
    let _ = serde_json::from_slice::<Vec<DockerImage>>(bytes);
}

pub(crate) fn read_texts(text: &str) {
    if let Ok(reference) = text.parse::<Reference>() {
        let written = reference.to_string();
        assert_eq!(written.parse().as_ref(), Ok(&reference), "{text:?} is written {written:?}");
    }
    for (_, value) in parameters(text) {
        assert!(escape(&value).is_ascii());
    }
}
