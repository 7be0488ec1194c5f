//! Custom resources: what a CustomResourceDefinition says, and the resource it makes of it.
//!
//! A custom resource is served by the same path as any other. What it adds is here: its schema, which is read from the
//! definition when the first object asks for it, and the rules that follow from it.

mod columns;
mod conditions;
mod controller;
mod definition;
mod finalizer;
mod resources;
pub(crate) mod rules;
mod strategy;

use std::borrow::Cow;
use std::sync::Arc;

use api::schema::{Field, Patch, Ref, Shape, Topology, Type, Zero};
use api::structural::{Malformed, Structural};
use api::{Object, ObjectExt as _};
use serde_json::Value;

pub(crate) use self::columns::PrinterColumn;
pub(crate) use self::conditions::{CLEANUP, is_true, set_condition};
pub(crate) use self::controller::start;
pub(crate) use self::definition::{Conversion, Definition, Scale, Version};
pub(crate) use self::resources::{Resources, compare_versions};
pub(crate) use self::rules::check as check_rules;
use crate::storage::{Examine, Texts};

/// One version of a definition.
pub(crate) struct Custom {
    pub(crate) definition: Arc<Definition>,
    index: usize,
}

impl Custom {
    pub(crate) fn new(definition: Arc<Definition>, index: usize) -> Self {
        Self { definition, index }
    }

    pub(crate) fn version(&self) -> &Version {
        // A view is only made of a version that is there.
        self.definition.versions.get(self.index).unwrap_or(&definition::NOTHING)
    }

    pub(crate) fn schema(&self) -> &Type {
        self.definition.schema(self.version())
    }

    pub(crate) fn structural(&self) -> &Structural {
        static ANYTHING: std::sync::LazyLock<Structural> = std::sync::LazyLock::new(Structural::default);
        self.schema().custom.as_deref().unwrap_or(&ANYTHING)
    }
}

impl Definition {
    /// The type of a version: what all objects have, and what the definition adds.
    pub(crate) fn schema<'a>(&self, version: &'a Version) -> &'a Type {
        version.schema.get_or_init(|| {
            let structural = Structural::parse(&self.open_api(&version.name)).root().with_pruned_defaults();
            let field = |name: &'static str, shape: Shape| Field {
                name: Cow::Borrowed(name),
                tag: 0,
                outer: 0,
                required: false,
                zero: Zero::Kept,
                shape,
                topology: Topology::Default,
                patch: Patch::NONE,
                default: None,
            };
            let metadata = &api::schema::generated::APIMACHINERY_PKG_APIS_META_V1_OBJECTMETA;
            Type {
                name: self.type_name(&version.name, &self.names.kind).into(),
                atomic: false,
                custom: Some(Ref::Shared(Arc::new(structural))),
                fields: Cow::Owned(vec![
                    field("apiVersion", Shape::String),
                    field("kind", Shape::String),
                    field("metadata", Shape::Object(Ref::Static(metadata))),
                ]),
            }
        })
    }

    /// `com.example.stable.v1.CronTab` for the group `stable.example.com`.
    pub(crate) fn type_name(&self, version: &str, kind: &str) -> String {
        let group: Vec<&str> = self.group.split('.').rev().collect();
        format!("{}.{version}.{kind}", group.join("."))
    }

    /// The rules of a version in the expression language, if it has any.
    pub(crate) fn rules<'a>(&self, version: &'a Version) -> Option<&'a rules::Rules> {
        version.rules.get_or_init(|| rules::Rules::of(&self.open_api(&version.name)).map(Box::new)).as_deref()
    }

    /// The schema of a version as it was written.
    pub(crate) fn open_api(&self, version: &str) -> Object {
        let definition = self.stored.decode();
        let versions = definition.at(&["spec", "versions"]).and_then(Value::as_array).into_iter().flatten();
        let found = versions.filter_map(Value::as_object).find(|known| known.text(&["name"]) == version);
        let schema = found.and_then(|version| version.at(&["schema", "openAPIV3Schema"])).and_then(Value::as_object);
        schema.cloned().unwrap_or_default()
    }

    /// Brings an object as it is at rest into what its own version says now.
    pub(crate) fn fit(&self, object: Object) -> Object {
        let version = self.version_of(&object);
        let Some(version) = version.or_else(|| self.storage()) else { return object };
        let mut value = Value::Object(object);
        if let Some(structural) = &self.schema(version).custom {
            // What cannot be read was written by another hand, and is dropped.
            let _ = api::decode::conform_custom(&mut value, structural, Malformed::Dropped);
        }
        let Value::Object(mut object) = value else { return Object::new() };
        let unset = object.at(&["metadata", "generation"]).and_then(Value::as_i64).unwrap_or(0) == 0;
        if unset {
            object.metadata().insert("generation".into(), 1.into());
        }
        object
    }

    /// The version an object says it is in.
    pub(crate) fn version_of(&self, object: &Object) -> Option<&Version> {
        let (_, name) = object.text(&["apiVersion"]).split_once('/')?;
        self.versions.iter().find(|version| version.name == name)
    }

    /// Drops what a version does not have, of an object that has just been converted to it.
    pub(crate) fn prune(&self, object: Object, version: &Version) -> Object {
        let mut value = Value::Object(object);
        if let Some(structural) = &self.schema(version).custom {
            api::structural::prune(&mut value, structural, &mut Vec::new());
            api::structural::prune_nulls(&mut value, Some(structural));
        }
        match value {
            Value::Object(object) => object,
            _ => Object::new(),
        }
    }
}

impl Examine for Definition {
    fn examine(&self, object: Object) -> (Texts, bool) {
        let is_stored_version = self.version_of(&object).is_some_and(|version| version.storage);
        let fitted = self.fit(object.clone());
        let is_plain = is_stored_version && fitted == object;
        let value = Value::Object(fitted);
        let fields = self.versions.iter().flat_map(|version| version.selectable_texts(&value));
        (Texts::new(fields.flat_map(|(name, text)| [name.to_owned(), text])), is_plain)
    }
}

impl Version {
    /// The selectable fields of an object of this version, each with what it holds.
    pub(crate) fn selectable_texts<'a>(&'a self, object: &'a Value) -> impl Iterator<Item = (&'a str, String)> {
        self.selectable.iter().map(|(name, path)| {
            let text = match path.find(object).first() {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            (name.as_str(), text)
        })
    }
}
