//! How many watch what: a write costs more the more are told of it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::request_info::RequestInfo;

/// Numbers of watchers, by the hash of what they watch: a clash makes an estimate a little worse.
#[derive(Default)]
pub(crate) struct Watchers(Arc<Mutex<HashMap<u64, usize>>>);

/// One watcher, until it is dropped.
pub(crate) struct Watching {
    counts: Arc<Mutex<HashMap<u64, usize>>>,
    key: u64,
}

fn key(info: &RequestInfo, namespace: &str, name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&info.group, &info.resource, namespace, name).hash(&mut hasher);
    hasher.finish()
}

impl Watchers {
    pub(super) fn register(&self, info: &RequestInfo) -> Option<Watching> {
        // Of the pods of one node few are told.
        let selected = info.field_selector.as_ref().and_then(|selector| selector.exact("spec.nodeName"));
        if info.verb != "watch" || (info.resource == "pods" && selected.is_some_and(|node| !node.is_empty())) {
            return None;
        }
        let key = key(info, &info.namespace, &info.name);
        *self.0.lock().entry(key).or_default() += 1;
        Some(Watching { counts: self.0.clone(), key })
    }

    /// Who would be told of a change.
    pub(super) fn interested(&self, info: &RequestInfo) -> usize {
        let counts = self.0.lock();
        if counts.is_empty() {
            return 0;
        }
        let count = |namespace: &str, name: &str| counts.get(&key(info, namespace, name)).copied().unwrap_or_default();
        let mut found = count("", "");
        if !info.namespace.is_empty() {
            found += count(&info.namespace, "");
        }
        if !info.name.is_empty() {
            found += count(&info.namespace, &info.name);
        }
        found
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn a_write_is_told_to_who_watches_all_the_namespace_or_the_object() {
        let watchers = Watchers::default();
        let info = |method: Method, path: &str, watch| RequestInfo::new(&method, path, watch, None);
        let watch = |path: &str| watchers.register(&info(Method::GET, path, true));
        let kept = [
            watch("/api/v1/configmaps"),
            watch("/api/v1/namespaces/a/configmaps"),
            watch("/api/v1/watch/namespaces/a/configmaps/x"),
            watch("/api/v1/namespaces/b/configmaps"),
            watch("/api/v1/secrets"),
        ];
        let written = |path: &str| watchers.interested(&info(Method::PUT, path, false));
        assert_eq!(written("/api/v1/namespaces/a/configmaps/x"), 3);
        assert_eq!(written("/api/v1/namespaces/a/configmaps/y"), 2);
        assert_eq!(written("/api/v1/namespaces/c/configmaps/x"), 1);
        assert!(watchers.register(&info(Method::GET, "/api/v1/configmaps", false)).is_none(), "a list");
        drop(kept);
        assert_eq!(written("/api/v1/namespaces/a/configmaps/x"), 0);
    }
}
