//! The custom resources that are served now.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use store::StoreError;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Custom, Definition, Version};
use crate::handlers::Views;
use crate::registry::{Registry, Schema, Served};
use crate::storage::{Cache, Feed, Reading};

/// By the name of the definition, and as a table that requests look into.
#[derive(Default)]
pub(crate) struct Resources {
    registry: ArcSwap<Registry>,
    entries: Mutex<BTreeMap<String, Arc<Entry>>>,
    /// The table is another one now.
    changed: Notify,
}

pub(crate) struct Entry {
    pub(crate) definition: Arc<Definition>,
    pub(crate) cache: Arc<Cache>,
    /// In the stored version, whether or not clients can use it.
    pub(crate) stored: Arc<Served>,
    served: Vec<Arc<Served>>,
    pub(super) retired: CancellationToken,
}

impl Resources {
    pub(crate) fn load(&self) -> Arc<Registry> {
        self.registry.load_full()
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Served>> {
        self.registry.load().find(group, version, plural).cloned()
    }

    pub(crate) fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        self.entries.lock().get(name).cloned()
    }

    /// Waits until what is served is not what it was; for one who follows.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The definitions that are served.
    pub(crate) fn names(&self) -> Vec<String> {
        self.entries.lock().keys().cloned().collect()
    }

    /// Serves a definition from now on as it is now. Only one caller does this, the one that follows definitions.
    pub(crate) async fn put(&self, feed: &Feed, definition: Definition) -> Result<(), StoreError> {
        let known = self.entry(&definition.name);
        if known.as_ref().is_some_and(|known| known.definition.is_same(&definition)) {
            return Ok(());
        }
        let definition = Arc::new(definition);
        // Objects are read by what the definition says, so a change of it reads them again; its end is no such change.
        let kept = known.filter(|known| known.definition.serves_same(&definition));
        let (cache, retired) = match &kept {
            Some(known) => (known.cache.clone(), known.retired.clone()),
            None => {
                let reading = Reading::Custom(definition.clone());
                (feed.add(&definition.prefix(), reading).await?, CancellationToken::new())
            }
        };
        let served = |(index, version): (usize, &Version)| {
            let storage = definition.storage().map(|storage| storage.name.as_str()).unwrap_or_default();
            Arc::new(Served {
                info: definition.resource(version),
                list_kind: definition.names.list_kind.clone(),
                schema: Schema::Custom(Arc::new(Custom::new(definition.clone(), index))),
                cache: Some(cache.clone()),
                storage_version: format!("{}/{storage}", definition.group),
                is_enabled: true,
                warning: None,
                retired: retired.clone(),
                views: Views::default(),
                columns: std::sync::OnceLock::new(),
            })
        };
        let versions = definition.versions.iter().enumerate();
        let Some(stored) = versions.clone().find(|(_, version)| version.storage).map(served) else { return Ok(()) };
        let served = versions.filter(|(_, version)| version.served).map(served).collect();
        let name = definition.name.clone();
        let entry = Arc::new(Entry { definition, cache, stored, served, retired });
        let before = self.entries.lock().insert(name, entry.clone());
        self.publish();
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(&before.cache, &entry.cache)) {
            before.retired.cancel();
            if before.cache.prefix != entry.cache.prefix {
                feed.remove(&before.cache);
            }
        }
        Ok(())
    }

    pub(crate) fn remove(&self, feed: &Feed, name: &str) {
        let Some(entry) = self.entries.lock().remove(name) else { return };
        self.publish();
        feed.remove(&entry.cache);
        entry.retired.cancel();
    }

    fn publish(&self) {
        let entries = self.entries.lock();
        let mut all: Vec<Arc<Served>> = entries.values().flat_map(|entry| entry.served.iter().cloned()).collect();
        all.sort_by(|a, b| {
            let by_version = || compare_versions(&b.info.version, &a.info.version);
            a.info.group.cmp(&b.info.group).then_with(by_version).then_with(|| a.info.plural.cmp(&b.info.plural))
        });
        self.registry.store(Arc::new(Registry::of(all)));
        self.changed.notify_one();
    }
}

/// `v2` is more than `v1`, which is more than `v2beta1`, which is more than `v3alpha1`; other names come last, by
/// their letters.
pub(crate) fn compare_versions(left: &str, right: &str) -> Ordering {
    match (rank(left), rank(right)) {
        (Some(left), Some(right)) => left.cmp(&right),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => right.cmp(left),
    }
}

fn rank(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    for (name, rank) in [("alpha", 0), ("beta", 1)] {
        if let Some((major, minor)) = rest.split_once(name) {
            return Some((rank, major.parse().ok()?, minor.parse().ok()?));
        }
    }
    Some((2, rest.parse().ok()?, 0))
}

#[cfg(test)]
mod tests {
    use super::compare_versions;

    #[test]
    fn stable_versions_come_before_others_and_new_ones_before_old_ones() {
        let mut versions = ["foo10", "v1", "v3beta1", "v10", "v12alpha1", "foo1", "v11alpha2", "v2", "v10beta3"];
        versions.sort_by(|a, b| compare_versions(b, a));
        assert_eq!(versions.join(" "), "v10 v2 v1 v10beta3 v3beta1 v12alpha1 v11alpha2 foo1 foo10");
    }
}
