//! The resources that are served: what a path leads to.

use std::collections::HashMap;
use std::sync::Arc;

use api::GroupResource;
use api::resources::Resource;
use api::schema::{self, Ref, Type};

use crate::storage::{Cache, Feed, PREFIX};
use crate::strategy::{self, Strategy};

/// A resource in one version: everything the generic path needs to know of it.
pub(crate) struct Served {
    pub info: Resource,
    pub schema: Ref<Type>,
    pub strategy: &'static dyn Strategy,
    /// `None` for resources that are computed or only created, such as reviews.
    pub cache: Option<Arc<Cache>>,
    /// The version objects are stored in.
    pub storage_version: String,
}

impl Served {
    pub(crate) fn group_resource(&self) -> GroupResource<'_> {
        GroupResource { group: &self.info.group, resource: &self.info.plural }
    }

    /// The store's key below the resource's prefix.
    pub(crate) fn key(&self, namespace: &str, name: &str) -> String {
        if self.info.namespaced { format!("{namespace}/{name}") } else { name.to_owned() }
    }

    /// Objects of this version are stored as they are.
    pub(crate) fn is_storage_version(&self) -> bool {
        self.storage_version == self.info.api_version()
    }
}

pub(crate) struct Registry {
    served: Vec<Arc<Served>>,
    by_path: HashMap<(String, String, String), Arc<Served>>,
}

impl Registry {
    pub(crate) fn builtin(feed: &Feed) -> Self {
        let mut registry = Self { served: Vec::new(), by_path: HashMap::new() };
        let resources = api::resources::builtin();
        for info in resources {
            let Some(schema) = schema::of_kind(&info.group, &info.version, &info.kind) else { continue };
            let strategy = strategy::of(&info.group, &info.plural);
            let stored = info.verbs.iter().any(|verb| verb == "update");
            let prefix = format!("{PREFIX}{}/", info.storage_prefix());
            let cache = stored.then(|| feed.cache(&prefix, strategy.selectable_fields()));
            // The first version listed for a group is its preferred one, which is also what is stored.
            let storage_version = match (info.group.as_str(), info.plural.as_str()) {
                ("events.k8s.io", "events") => "v1".to_owned(),
                (group, plural) => {
                    let first = resources.iter().find(|r| r.group == group && r.plural == plural);
                    first.map(Resource::api_version).unwrap_or_default()
                }
            };
            registry.add(Served { info: info.clone(), schema: Ref::Static(schema), strategy, cache, storage_version });
        }
        registry
    }

    fn add(&mut self, served: Served) {
        let served = Arc::new(served);
        let path = (served.info.group.clone(), served.info.version.clone(), served.info.plural.clone());
        self.by_path.insert(path, served.clone());
        self.served.push(served);
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Served>> {
        self.by_path.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// Any version of a resource; all share one cache.
    pub(crate) fn stored(&self, group: &str, plural: &str) -> Option<&Arc<Served>> {
        self.served.iter().find(|s| s.info.group == group && s.info.plural == plural)
    }

    pub(crate) fn all(&self) -> &[Arc<Served>] {
        &self.served
    }
}
