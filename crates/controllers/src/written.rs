//! Reading one's own writes: a pass that acts on counts it wrote itself must not see the object from before the write.

use std::collections::HashMap;

use client::Key;
use kube::Resource;
use parking_lot::Mutex;

/// The resource version of the last write of each object.
#[derive(Default)]
pub(crate) struct Written {
    versions: Mutex<HashMap<Key, u64>>,
}

/// Versions of one resource are ordered numbers.
fn version<K: Resource>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_ref()?.parse().ok()
}

impl Written {
    pub(crate) fn note<K: Resource>(&self, written: &K) {
        if let Some(version) = version(written) {
            self.versions.lock().insert(Key::of(written), version);
        }
    }

    /// The watch has brought our last write; if not, it will, and with it the next pass.
    pub(crate) fn is_seen<K: Resource>(&self, cached: &K) -> bool {
        let written = self.versions.lock().get(&Key::of(cached)).copied();
        written.zip(version(cached)).is_none_or(|(written, cached)| cached >= written)
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.versions.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cache_from_before_the_write_is_not_acted_on() {
        let at = |version: &str| -> ConfigMap {
            serde_json::from_value(json!({ "metadata": { "name": "a", "resourceVersion": version } })).unwrap()
        };
        let written = Written::default();
        assert!(written.is_seen(&at("9")));
        written.note(&at("10"));
        assert!(!written.is_seen(&at("9")));
        assert!(written.is_seen(&at("10")) && written.is_seen(&at("11")));
        written.forget(&Key::new("", "a"));
        assert!(written.is_seen(&at("9")));
    }
}
