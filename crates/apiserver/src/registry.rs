//! The resources that are served: what a path leads to.
//!
//! The built-in ones never change. The custom ones are a table of their own, replaced as a whole whenever a definition
//! changes: a request keeps the entry it began with.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use api::GroupResource;
use api::resources::Resource;
use api::schema::{self, Type};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::custom::Custom;
use crate::deprecation;
use crate::handlers::Views;
use crate::server::Config;
use crate::storage::{Cache, Feed, PREFIX, Reading};
use crate::strategy::{self, Strategy};

/// A resource in one version: everything the generic path needs to know of it.
pub(crate) struct Served {
    pub info: Resource,
    /// What its lists are called.
    pub list_kind: String,
    pub schema: Schema,
    /// `None` for resources that are computed or only created, such as reviews.
    pub cache: Option<Arc<Cache>>,
    /// The version objects are stored in.
    pub storage_version: String,
    /// On by default or by `--runtime-config`; otherwise no path leads there.
    pub is_enabled: bool,
    /// What whoever asks for it is warned of.
    pub warning: Option<String>,
    /// Something else is served in its place from now on, or nothing: watches end.
    pub retired: CancellationToken,
    /// What of it is watched.
    pub views: Views,
    /// How its columns are described, once somebody asked for a table.
    pub columns: OnceLock<Value>,
}

/// Where the rules of a resource come from.
#[derive(Clone)]
pub(crate) enum Schema {
    Builtin(&'static Type, &'static dyn Strategy),
    Custom(Arc<Custom>),
}

impl Deref for Schema {
    type Target = Type;

    fn deref(&self) -> &Type {
        match self {
            Self::Builtin(schema, _) => schema,
            Self::Custom(custom) => custom.schema(),
        }
    }
}

impl Served {
    pub(crate) fn strategy(&self) -> &dyn Strategy {
        match &self.schema {
            Schema::Builtin(_, strategy) => *strategy,
            Schema::Custom(custom) => &**custom,
        }
    }

    pub(crate) fn custom(&self) -> Option<&Arc<Custom>> {
        match &self.schema {
            Schema::Builtin(..) => None,
            Schema::Custom(custom) => Some(custom),
        }
    }

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

#[derive(Default)]
pub(crate) struct Registry {
    /// What paths lead to.
    served: Vec<Arc<Served>>,
    /// All by plural name, so that finding one takes no new text.
    by_plural: HashMap<String, Vec<Arc<Served>>>,
}

impl Registry {
    pub(crate) fn builtin(feed: &Feed, config: &Config) -> Self {
        let mut registry = Self::default();
        let resources = api::resources::builtin();
        for info in resources {
            let Some(schema) = schema::of_kind(&info.group, &info.version, &info.kind) else { continue };
            let strategy = strategy::of(&info.group, &info.plural);
            let stored = info.verbs.iter().any(|verb| verb == "update");
            let prefix = format!("{PREFIX}{}/", info.storage_prefix());
            let reading = match (info.group.as_str(), info.plural.as_str()) {
                ("", "services") => {
                    let usual = api::addresses::family(config.service_cluster_ip_range.primary.address);
                    Reading::Services(strategy.selectable_fields(), usual)
                }
                _ => Reading::Paths(strategy.selectable_fields()),
            };
            let cache = stored.then(|| feed.cache(&prefix, reading));
            // The first version listed for a group is its preferred one, which is also what is stored, even where it is turned off. What is
            // new in a release is stored so that the one before can read it, as upstream does.
            let storage_version = match (info.group.as_str(), info.plural.as_str()) {
                ("events.k8s.io", "events") => "v1".to_owned(),
                (
                    group @ "admissionregistration.k8s.io",
                    "mutatingadmissionpolicies" | "mutatingadmissionpolicybindings",
                ) => {
                    format!("{group}/v1beta1")
                }
                (group @ "resource.k8s.io", "devicetaintrules") => format!("{group}/v1alpha3"),
                (group, plural) => {
                    let first = resources.iter().find(|r| r.group == group && r.plural == plural);
                    first.map(Resource::api_version).unwrap_or_default()
                }
            };
            registry.add(Arc::new(Served {
                info: info.clone(),
                list_kind: format!("{}List", info.kind),
                schema: Schema::Builtin(schema, strategy),
                cache,
                storage_version,
                is_enabled: config.runtime_config.serves(info),
                warning: deprecation::warning(&info.api_version(), &info.kind),
                retired: CancellationToken::new(),
                views: Views::default(),
                columns: OnceLock::new(),
            }));
        }
        registry
    }

    /// A table of custom resources, in discovery's order.
    pub(crate) fn of(served: impl IntoIterator<Item = Arc<Served>>) -> Self {
        let mut registry = Self::default();
        served.into_iter().for_each(|served| registry.add(served));
        registry
    }

    fn add(&mut self, served: Arc<Served>) {
        self.by_plural.entry(served.info.plural.clone()).or_default().push(served.clone());
        if served.is_enabled {
            self.served.push(served);
        }
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Served>> {
        let same_name = self.by_plural.get(plural)?;
        same_name.iter().find(|served| served.info.group == group && served.info.version == version)
    }

    /// Any version of a resource; all share one cache.
    pub(crate) fn stored(&self, group: &str, plural: &str) -> Option<&Arc<Served>> {
        self.by_plural.get(plural)?.iter().find(|served| served.info.group == group)
    }

    pub(crate) fn has_group(&self, group: &str) -> bool {
        self.served.iter().any(|served| served.info.group == group)
    }

    pub(crate) fn has_version(&self, group: &str, version: &str) -> bool {
        self.served.iter().any(|served| served.info.group == group && served.info.version == version)
    }

    pub(crate) fn all(&self) -> &[Arc<Served>] {
        &self.served
    }
}
