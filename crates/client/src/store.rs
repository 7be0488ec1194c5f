//! The decoded objects of one informer, with their indexes; pure, so that every change it reports can be tested.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::Key;

/// What happened to an object, seen from the cache. Never reports a change that left the resource version as it was.
#[derive(Debug)]
pub enum Change<K> {
    Added(Arc<K>),
    Updated { old: Arc<K>, new: Arc<K> },
    Deleted(Arc<K>),
}

impl<K> Change<K> {
    /// The object as last known: the new one of an update, the last seen one of a deletion.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(object) | Self::Updated { new: object, .. } | Self::Deleted(object) => object,
        }
    }
}

pub(crate) type IndexFn<K> = fn(&K) -> Vec<String>;

struct Index<K> {
    of: IndexFn<K>,
    keys: HashMap<String, BTreeSet<Key>>,
}

/// Objects by key; ordered, so that a namespace is a range and lists are stable.
pub(crate) struct Store<K> {
    objects: BTreeMap<Key, Arc<K>>,
    indexes: HashMap<&'static str, Index<K>>,
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), indexes: HashMap::new() }
    }
}

impl<K: kube::Resource> Store<K> {
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.objects.get(key).cloned()
    }

    pub(crate) fn list(&self) -> Vec<Arc<K>> {
        self.objects.values().cloned().collect()
    }

    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let range = self.objects.range(Key::new(namespace, "")..);
        range.take_while(|(key, _)| key.namespace == namespace).map(|(_, object)| object.clone()).collect()
    }

    pub(crate) fn add_index(&mut self, name: &'static str, of: IndexFn<K>) {
        if self.indexes.contains_key(name) {
            return;
        }
        let mut index = Index { of, keys: HashMap::new() };
        for (key, object) in &self.objects {
            index.insert(key, object);
        }
        self.indexes.insert(name, index);
    }

    pub(crate) fn by_index(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        let keys = self.indexes.get(name).and_then(|index| index.keys.get(value));
        keys.into_iter().flatten().filter_map(|key| self.get(key)).collect()
    }

    pub(crate) fn apply(&mut self, object: K) -> Vec<Change<K>> {
        let (key, new) = (Key::of(&object), Arc::new(object));
        let Some(old) = self.objects.get(&key).cloned() else {
            self.put(key, &new);
            return vec![Change::Added(new)];
        };
        if old.meta().uid != new.meta().uid {
            // Deleted and created again while nobody looked: two objects, so two changes.
            self.put(key, &new);
            return vec![Change::Deleted(old), Change::Added(new)];
        }
        if old.meta().resource_version == new.meta().resource_version {
            return Vec::new();
        }
        self.put(key, &new);
        vec![Change::Updated { old, new }]
    }

    /// The final state of a deleted object comes with the event, so subscribers see that rather than the cached one.
    pub(crate) fn delete(&mut self, object: K) -> Vec<Change<K>> {
        match self.remove(&Key::of(&object)) {
            Some(_) => vec![Change::Deleted(Arc::new(object))],
            None => Vec::new(),
        }
    }

    /// Becomes exactly `objects`, reported as the difference to what was known.
    pub(crate) fn replace(&mut self, objects: Vec<K>) -> Vec<Change<K>> {
        let listed: BTreeSet<Key> = objects.iter().map(Key::of).collect();
        let gone: Vec<Key> = self.objects.keys().filter(|key| !listed.contains(key)).cloned().collect();
        let mut changes: Vec<_> = gone.iter().filter_map(|key| self.remove(key)).map(Change::Deleted).collect();
        for object in objects {
            changes.extend(self.apply(object));
        }
        changes
    }

    fn put(&mut self, key: Key, object: &Arc<K>) {
        let old = self.objects.insert(key.clone(), object.clone());
        for index in self.indexes.values_mut() {
            if let Some(old) = &old {
                index.remove(&key, old);
            }
            index.insert(&key, object);
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let old = self.objects.remove(key)?;
        for index in self.indexes.values_mut() {
            index.remove(key, &old);
        }
        Some(old)
    }
}

impl<K> Index<K> {
    fn insert(&mut self, key: &Key, object: &K) {
        for value in (self.of)(object) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &Key, object: &K) {
        for value in (self.of)(object) {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    /// "ns/name uid@version", the smallest object a store can tell apart.
    fn object(text: &str) -> ConfigMap {
        let (key, revision) = text.split_once(' ').unwrap();
        let (namespace, name) = key.split_once('/').unwrap();
        let (uid, version) = revision.split_once('@').unwrap();
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.into());
        object.metadata.name = Some(name.into());
        object.metadata.uid = Some(uid.into());
        object.metadata.resource_version = Some(version.into());
        object
    }

    fn text(changes: &[Change<ConfigMap>]) -> String {
        let one = |object: &ConfigMap| {
            let meta = &object.metadata;
            let (uid, version) = (meta.uid.as_deref().unwrap(), meta.resource_version.as_deref().unwrap());
            format!("{} {uid}@{version}", Key::of(object))
        };
        let words = changes.iter().map(|change| match change {
            Change::Added(new) => format!("+{}", one(new)),
            Change::Updated { old, new } => {
                format!("~{}->{}", one(old), new.metadata.resource_version.as_deref().unwrap())
            }
            Change::Deleted(old) => format!("-{}", one(old)),
        });
        words.collect::<Vec<_>>().join(", ")
    }

    #[track_caller]
    fn check_relist(before: &[&str], after: &[&str], want: &str) {
        let mut store = Store::default();
        store.replace(before.iter().map(|text| object(text)).collect());
        let changes = store.replace(after.iter().map(|text| object(text)).collect());
        assert_eq!(text(&changes), want);
        assert_eq!(store.list().len(), after.len());
    }

    #[test]
    fn a_relist_is_reported_as_a_difference() {
        check_relist(&[], &["d/a 1@1"], "+d/a 1@1");
        check_relist(&["d/a 1@1"], &["d/a 1@1"], "");
        check_relist(&["d/a 1@1"], &["d/a 1@7"], "~d/a 1@1->7");
        check_relist(&["d/a 1@1", "d/b 2@2"], &["d/b 2@2"], "-d/a 1@1");
        check_relist(&["d/a 1@1"], &["d/a 9@8"], "-d/a 1@1, +d/a 9@8");
    }

    #[test]
    fn a_deletion_carries_the_final_state_once() {
        let mut store = Store::default();
        store.apply(object("d/a 1@1"));
        assert_eq!(text(&store.delete(object("d/a 1@5"))), "-d/a 1@5");
        assert_eq!(text(&store.delete(object("d/a 1@5"))), "");
    }

    #[test]
    fn namespaces_are_ranges() {
        let mut store = Store::default();
        store.replace(["a/x 1@1", "b/x 2@1", "b/y 3@1", "c/x 4@1"].map(object).into());
        assert_eq!(store.in_namespace("b").len(), 2);
        assert_eq!(store.in_namespace("").len(), 0);
    }

    #[test]
    fn indexes_follow_changes_and_cover_what_was_known_before() {
        let mut store = Store::default();
        store.apply(object("d/a 1@1"));
        store.add_index("uid", |object| object.metadata.uid.clone().into_iter().collect());
        assert_eq!(store.by_index("uid", "1").len(), 1);
        store.apply(object("d/a 2@3"));
        assert_eq!(store.by_index("uid", "1").len(), 0);
        assert_eq!(store.by_index("uid", "2").len(), 1);
        store.replace(Vec::new());
        assert_eq!(store.by_index("uid", "2").len(), 0);
    }
}
