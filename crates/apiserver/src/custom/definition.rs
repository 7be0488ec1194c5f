//! A CustomResourceDefinition, as far as serving its resource needs it.

use std::sync::{Arc, OnceLock};

use api::jsonpath::JsonPath;
use api::resources::{Resource, Subresource};
use api::schema::Type;
use api::{Object, ObjectExt as _};
use serde_json::Value;

use super::columns::{PrinterColumn, columns};
use super::rules::Rules;
use crate::outbound::{Outbound, OutboundError};
use crate::storage::{PREFIX, Stored};

/// More than a list of objects that is sent to be converted.
const MAX_CONVERTED: usize = 32 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
}

impl Names {
    pub(crate) fn read(names: Option<&Value>) -> Self {
        let empty = Object::new();
        let names = names.and_then(Value::as_object).unwrap_or(&empty);
        let text = |key: &str| names.text(&[key]).to_owned();
        let list = |key: &str| -> Vec<String> {
            let items = names.get(key).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).map(ToOwned::to_owned).collect()
        };
        Self {
            plural: text("plural"),
            singular: text("singular"),
            kind: text("kind"),
            list_kind: text("listKind"),
            short_names: list("shortNames"),
            categories: list("categories"),
        }
    }
}

/// Where the replicas of a custom resource are, field by field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) spec_replicas: Vec<String>,
    pub(crate) status_replicas: Vec<String>,
    pub(crate) selector: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) served: bool,
    pub(crate) storage: bool,
    /// What users of the version are told.
    pub(crate) warning: Option<String>,
    pub(crate) has_status: bool,
    pub(crate) scale: Option<Scale>,
    pub(crate) columns: Vec<PrinterColumn>,
    /// Names that selectors use, and where their values are.
    pub(crate) selectable: Vec<(String, JsonPath)>,
    /// Made when first needed.
    pub(super) schema: OnceLock<Type>,
    pub(super) rules: OnceLock<Option<Box<Rules>>>,
}

/// Stands for a version that is not there.
pub(super) static NOTHING: Version = Version {
    name: String::new(),
    served: false,
    storage: false,
    warning: None,
    has_status: false,
    scale: None,
    columns: Vec::new(),
    selectable: Vec::new(),
    schema: OnceLock::new(),
    rules: OnceLock::new(),
};

/// How objects get from one version to another.
#[derive(Debug)]
pub(crate) enum Conversion {
    /// Only the version's name changes.
    None,
    /// The webhook, or why it cannot be asked, and the versions of the review that it understands.
    Webhook(Box<Result<Outbound, OutboundError>>, Vec<String>),
}

#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) namespaced: bool,
    /// The names that were accepted.
    pub(crate) names: Names,
    pub(crate) versions: Vec<Version>,
    pub(crate) conversion: Conversion,
    pub(crate) is_established: bool,
    /// Nothing new is created.
    pub(crate) is_terminating: bool,
    pub(super) stored: Arc<Stored>,
    /// Differs where what is served differs.
    pub(crate) stamp: String,
}

impl Definition {
    /// `object` is the definition as it is about to be, `stored` as it is: they differ in status alone.
    pub(crate) fn read(object: &Object, stored: &Arc<Stored>) -> Self {
        let group = object.text(&["spec", "group"]).to_owned();
        let names = Names::read(object.at(&["status", "acceptedNames"]));
        let listed = object.at(&["spec", "versions"]).and_then(Value::as_array);
        let listed: Vec<&Object> = listed.into_iter().flatten().filter_map(Value::as_object).collect();
        let versions = listed.iter().map(|version| read_version(version, &listed, &group, &names.kind)).collect();
        let conversion = match object.text(&["spec", "conversion", "strategy"]) {
            "Webhook" => {
                let at = |path: &[&str]| object.at(&[&["spec", "conversion", "webhook"], path].concat()).cloned();
                let config = at(&["clientConfig"]).and_then(|config| config.as_object().cloned());
                let versions = at(&["conversionReviewVersions"]).unwrap_or_default();
                let versions = versions.as_array().into_iter().flatten().filter_map(Value::as_str);
                let mut webhook = Outbound::from_client_config(&config.unwrap_or_default());
                // A list is converted as a whole.
                webhook.iter_mut().for_each(|webhook| webhook.max_answer = MAX_CONVERTED);
                Conversion::Webhook(Box::new(webhook), versions.map(ToOwned::to_owned).collect())
            }
            _ => Conversion::None,
        };
        Self {
            name: object.name().to_owned(),
            namespaced: object.text(&["spec", "scope"]) == "Namespaced",
            versions,
            conversion,
            is_established: super::conditions::is_true(object, "Established"),
            is_terminating: super::conditions::is_true(object, "Terminating"),
            stored: stored.clone(),
            stamp: stamp(object),
            names,
            group,
        }
    }

    pub(crate) fn storage(&self) -> Option<&Version> {
        self.versions.iter().find(|version| version.storage)
    }

    /// Objects look the same by it.
    pub(crate) fn serves_same(&self, other: &Self) -> bool {
        self.stamp == other.stamp
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.serves_same(other) && self.is_terminating == other.is_terminating
    }

    /// What its objects are stored under.
    pub(crate) fn prefix(&self) -> String {
        format!("{PREFIX}{}/{}/", self.group, self.names.plural)
    }

    /// A version as discovery and routing see it.
    pub(crate) fn resource(&self, version: &Version) -> Resource {
        let verbs = |list: &[&str]| list.iter().map(|verb| (*verb).to_owned()).collect::<Vec<_>>();
        let mut subresources = Vec::new();
        if version.has_status {
            let kind = self.names.kind.clone();
            let verbs = verbs(&["get", "patch", "update"]);
            subresources.push(Subresource { name: "status".into(), kind, group_version: None, verbs });
        }
        if version.scale.is_some() {
            let group_version = Some(("autoscaling".to_owned(), "v1".to_owned()));
            let verbs = verbs(&["get", "patch", "update"]);
            subresources.push(Subresource { name: "scale".into(), kind: "Scale".into(), group_version, verbs });
        }
        let all = verbs(&["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]);
        Resource {
            group: self.group.clone(),
            version: version.name.clone(),
            plural: self.names.plural.clone(),
            singular: self.names.singular.clone(),
            kind: self.names.kind.clone(),
            namespaced: self.namespaced,
            short_names: self.names.short_names.clone(),
            categories: self.names.categories.clone(),
            verbs: all,
            subresources,
        }
    }
}

/// Differs where what is served differs.
fn stamp(object: &Object) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in [object.get("spec"), object.at(&["status", "acceptedNames"])] {
        context.update(&serde_json::to_vec(&part).unwrap_or_default());
    }
    context.finish().as_ref().iter().map(|byte| format!("{byte:02X}")).collect()
}

fn read_version(version: &Object, all: &[&Object], group: &str, kind: &str) -> Version {
    let flag = |object: &Object, key: &str| object.get(key) == Some(&Value::Bool(true));
    let path = |text: &str| JsonPath::parse(text).ok();
    let fields = |text: &str| path(text).and_then(|path| path.fields()).unwrap_or_default();
    let scale = version.at(&["subresources", "scale"]).and_then(Value::as_object);
    let listed = version.get("selectableFields").and_then(Value::as_array).into_iter().flatten();
    let selectable = listed.filter_map(|field| {
        let text = field.get("jsonPath")?.as_str()?;
        Some((text.trim_start_matches('.').to_owned(), path(text)?))
    });
    let name = version.text(&["name"]);
    let warning =
        flag(version, "deprecated").then(|| match version.get("deprecationWarning").and_then(Value::as_str) {
            Some(text) => text.to_owned(),
            None => {
                let newer = all.iter().filter(|other| flag(other, "served") && !flag(other, "deprecated"));
                let newer = newer.map(|other| other.text(&["name"]));
                let newer = newer.filter(|other| super::compare_versions(name, other).is_lt());
                let best = newer.max_by(|a, b| super::compare_versions(a, b));
                let instead = best.map(|best| format!("; use {group}/{best} {kind}")).unwrap_or_default();
                format!("{group}/{name} {kind} is deprecated{instead}")
            }
        });
    Version {
        name: name.to_owned(),
        served: flag(version, "served"),
        storage: flag(version, "storage"),
        warning,
        has_status: version.at(&["subresources", "status"]).is_some(),
        scale: scale.map(|scale| Scale {
            spec_replicas: fields(scale.text(&["specReplicasPath"])),
            status_replicas: fields(scale.text(&["statusReplicasPath"])),
            selector: fields(scale.text(&["labelSelectorPath"])),
        }),
        columns: columns(version),
        selectable: selectable.collect(),
        schema: OnceLock::new(),
        rules: OnceLock::new(),
    }
}
