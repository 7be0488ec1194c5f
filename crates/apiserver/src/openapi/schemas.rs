//! The schemas of a group's types, from the tables and the texts, in OpenAPI v3's words.

use std::collections::BTreeMap;

use api::schema::generated::APIMACHINERY_PKG_APIS_META_V1_OBJECTMETA as OBJECT_META;
use api::schema::{Field, SchemaOr, Shape, Topology, Type, Zero, docs, generated::KINDS, named};
use serde_json::{Map, Value, json};

use super::enums;
use crate::registry::Served;

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

/// Schemas of one document, by name.
pub(super) struct Schemas {
    pub(super) found: BTreeMap<String, Value>,
    group: String,
    version: String,
    /// The type whose fields are being added.
    owner: String,
}

pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

impl Schemas {
    pub(super) fn new(group: &str, version: &str) -> Self {
        Self { found: BTreeMap::new(), group: group.to_owned(), version: version.to_owned(), owner: String::new() }
    }

    /// Adds a resource's kind, its list, and those of its subresources.
    pub(super) fn add_resource(&mut self, served: &Served) {
        if let Some(custom) = served.custom() {
            self.found.extend(super::custom::schemas(served, custom));
            self.add(&OBJECT_META);
            for subresource in &served.info.subresources {
                if let Some(schema) = super::type_of(served, subresource) {
                    self.add(schema);
                }
            }
            return;
        }
        self.add(&served.schema);
        if served.info.verbs.iter().any(|verb| verb == "list") {
            self.add_list(served);
        }
        for subresource in &served.info.subresources {
            if let Some(schema) = super::type_of(served, subresource) {
                self.add(schema);
            }
        }
    }

    /// Adds what every group has beside its own types. The documents of custom resources tell neither of discovery nor of watches.
    pub(super) fn add_meta(&mut self, has_objects: bool, is_custom: bool) {
        let names: &[&str] = match (has_objects, is_custom) {
            (_, true) => &["DeleteOptions", "ListMeta", "Status"],
            (true, false) => &["APIResourceList", "DeleteOptions", "ListMeta", "Status"],
            (false, false) => &["APIResourceList"],
        };
        for name in names {
            if let Some(schema) = named(&format!("{META}.{name}")) {
                self.add(schema);
            }
        }
        if has_objects {
            let patch = "Patch is provided to give a concrete name and type to the Kubernetes PATCH request body.";
            self.found.insert(format!("{META}.Patch"), json!({"description": patch, "type": "object"}));
        }
        if has_objects && !is_custom {
            self.watch_event();
        }
    }

    fn watch_event(&mut self) {
        let object = "Object is:\n * If Type is Added or Modified: the new state of the object.\n \
                      * If Type is Deleted: the state of the object immediately before deletion.\n \
                      * If Type is Error: *Status is recommended; other types may make sense\n   depending on context.";
        let raw = self.value("io.k8s.apimachinery.pkg.runtime.RawExtension", json!({"type": "object"}));
        let schema = json!({
            "description": "Event represents a single event to a watched resource.", "type": "object",
            "required": ["type", "object"],
            "properties": {"object": {"allOf": [raw], "description": object}, "type": {"type": "string", "default": ""}},
            "x-kubernetes-group-version-kind": self.in_every_group("WatchEvent"),
        });
        self.found.insert(format!("{META}.WatchEvent"), schema);
    }

    /// Kinds that each group has under its own name, and core too.
    fn in_every_group(&self, kind: &str) -> Value {
        let mut kinds = vec![json!({"group": "", "kind": kind, "version": "v1"})];
        if !self.group.is_empty() {
            kinds.push(json!({"group": self.group, "kind": kind, "version": self.version}));
        }
        kinds.into()
    }

    fn add_list(&mut self, served: &Served) {
        let (name, kind) = (format!("{}List", served.schema.name), format!("{}List", served.info.kind));
        let texts = docs::of(&name).unwrap_or_default();
        let text = |index: usize| texts.get(index).copied().unwrap_or_default();
        let type_texts = docs::of(&served.schema.name).unwrap_or_default();
        let inherited = |field: &str| {
            let index = served.schema.fields.iter().position(|f| f.name == field);
            index.and_then(|index| type_texts.get(index + 1)).copied().unwrap_or_default()
        };
        let items = json!({"allOf": [reference(&served.schema.name)], "default": {}});
        let metadata = json!({"allOf": [reference(&format!("{META}.ListMeta"))], "default": {}});
        let properties = json!({
            "apiVersion": described(json!({"type": "string"}), inherited("apiVersion")),
            "items": described(json!({"type": "array", "items": items}), text(1)),
            "kind": described(json!({"type": "string"}), inherited("kind")),
            "metadata": described(metadata, text(2)),
        });
        let schema = json!({
            "type": "object", "required": ["items"], "properties": properties,
            "x-kubernetes-group-version-kind": [{"group": served.info.group, "version": served.info.version, "kind": kind}],
        });
        self.found.insert(name, described(schema, text(0)));
    }

    /// Adds a type and everything it refers to.
    pub(super) fn add(&mut self, schema: &Type) {
        if self.found.contains_key(schema.name.as_ref()) {
            return;
        }
        self.found.insert(schema.name.to_string(), Value::Null);
        let texts = docs::of(&schema.name).unwrap_or_default();
        let outer = std::mem::replace(&mut self.owner, schema.name.to_string());
        let mut properties = Map::new();
        for (index, field) in schema.fields.iter().enumerate() {
            let text = texts.get(index + 1).copied().unwrap_or_default();
            properties.insert(field.name.to_string(), self.property(field, text));
        }
        self.owner = outer;
        let mut map = Map::from_iter([("type".to_owned(), json!("object"))]);
        if let Some(text) = texts.first().filter(|text| !text.is_empty()) {
            map.insert("description".into(), (*text).into());
        }
        if !properties.is_empty() {
            map.insert("properties".into(), Value::Object(properties));
        }
        let required: Vec<&str> = schema.fields.iter().filter(|f| f.required).map(|f| f.name.as_ref()).collect();
        if !required.is_empty() {
            map.insert("required".into(), json!(required));
        }
        if schema.atomic {
            map.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        let kinds = KINDS.iter().filter(|(_, _, _, known)| known.name == schema.name);
        let kinds: Vec<Value> = kinds.map(|(g, v, k, _)| json!({"group": g, "version": v, "kind": k})).collect();
        if schema.name.ends_with(".DeleteOptions") {
            map.insert("x-kubernetes-group-version-kind".into(), self.in_every_group("DeleteOptions"));
        } else if !kinds.is_empty() {
            map.insert("x-kubernetes-group-version-kind".into(), kinds.into());
        }
        self.found.insert(schema.name.to_string(), Value::Object(map));
    }

    fn property(&mut self, field: &Field, text: &str) -> Value {
        let mut value = self.shape(&field.shape);
        let default = field.default.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let default = default.or_else(|| (field.zero == Zero::Written).then(|| zero(&field.shape)).flatten());
        let Some(map) = value.as_object_mut() else { return value };
        if (default.is_some() || !text.is_empty())
            && let Some(target) = map.remove("$ref")
        {
            map.insert("allOf".into(), json!([{"$ref": target}]));
        }
        if let Some(default) = default {
            map.insert("default".into(), default);
        }
        extensions(field, map);
        let mut value = described(value, text);
        if let Some(map) = value.as_object_mut() {
            enums::add(&self.owner, &field.name, map);
        }
        value
    }

    /// A value without fields of its own, which has a schema of its own all the same.
    fn value(&mut self, name: &str, schema: Value) -> Value {
        if !self.found.contains_key(name) {
            let text = docs::of(name).and_then(|texts| texts.first()).copied().unwrap_or_default();
            self.found.insert(name.to_owned(), described(schema, text));
        }
        reference(name)
    }

    fn shape(&mut self, shape: &Shape) -> Value {
        let string = |format: &str| json!({"type": "string", "format": format});
        match shape {
            Shape::String => json!({"type": "string"}),
            Shape::Bool => json!({"type": "boolean"}),
            Shape::Int32 => json!({"type": "integer", "format": "int32"}),
            Shape::Int64 => json!({"type": "integer", "format": "int64"}),
            Shape::Double => json!({"type": "number", "format": "double"}),
            Shape::Bytes => string("byte"),
            Shape::Time => self.value(&format!("{META}.Time"), string("date-time")),
            Shape::MicroTime => self.value(&format!("{META}.MicroTime"), string("date-time")),
            Shape::Quantity => {
                let either = json!({"oneOf": [{"type": "string"}, {"type": "number"}]});
                self.value("io.k8s.apimachinery.pkg.api.resource.Quantity", either)
            }
            Shape::IntOrString => {
                let either = json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]});
                self.value("io.k8s.apimachinery.pkg.util.intstr.IntOrString", either)
            }
            // Three types hold any JSON; which one is known by who holds it.
            Shape::Any if self.owner.starts_with(EXTENSIONS) => self.value(&format!("{EXTENSIONS}.JSON"), json!({})),
            Shape::Any if self.owner.ends_with(".ManagedFieldsEntry") => {
                self.value(&format!("{META}.FieldsV1"), json!({"type": "object"}))
            }
            Shape::Any => self.value("io.k8s.apimachinery.pkg.runtime.RawExtension", json!({"type": "object"})),
            Shape::SchemaOr(other) => {
                let other = match other {
                    SchemaOr::Bool => "Bool",
                    SchemaOr::Array => "Array",
                    SchemaOr::Strings => "StringArray",
                };
                self.value(&format!("{EXTENSIONS}.JSONSchemaPropsOr{other}"), json!({}))
            }
            Shape::Object(schema) => {
                self.add(schema);
                reference(&schema.name)
            }
            Shape::List(inner) => json!({"type": "array", "items": self.element(inner)}),
            Shape::Map(inner) => json!({"type": "object", "additionalProperties": self.element(inner)}),
        }
    }

    /// An element of a list or map: its zero is its default.
    fn element(&mut self, inner: &Shape) -> Value {
        let mut value = self.shape(inner);
        if let (Some(zero), Some(map)) = (zero(inner), value.as_object_mut()) {
            if let Some(target) = map.remove("$ref") {
                map.insert("allOf".into(), json!([{"$ref": target}]));
            }
            map.insert("default".into(), zero);
        }
        value
    }
}

fn described(mut value: Value, text: &str) -> Value {
    if let (false, Some(map)) = (text.is_empty(), value.as_object_mut()) {
        map.insert("description".into(), text.into());
    }
    value
}

fn zero(shape: &Shape) -> Option<Value> {
    match shape {
        Shape::String => Some(json!("")),
        Shape::Bool => Some(json!(false)),
        Shape::Int32 | Shape::Int64 | Shape::Double => Some(json!(0)),
        Shape::Object(_) => Some(json!({})),
        _ => None,
    }
}

fn extensions(field: &Field, map: &mut Map<String, Value>) {
    let mut set = |key: &str, value: Value| map.insert(format!("x-kubernetes-{key}"), value);
    match (&field.topology, &field.shape) {
        (Topology::Default, _) => None,
        (Topology::Atomic, Shape::List(_) | Shape::Bytes) => set("list-type", "atomic".into()),
        (Topology::Atomic, _) => set("map-type", "atomic".into()),
        (Topology::Granular, _) => set("map-type", "granular".into()),
        (Topology::Set, _) => set("list-type", "set".into()),
        (Topology::Map(keys), _) => {
            set("list-map-keys", json!(keys));
            set("list-type", "map".into())
        }
    };
    let strategy = match (field.patch.merge, field.patch.retain_keys) {
        (true, true) => "merge,retainKeys",
        (true, false) => "merge",
        (false, true) => "retainKeys",
        (false, false) => return,
    };
    set("patch-strategy", strategy.into());
    if !field.patch.merge_key.is_empty() {
        set("patch-merge-key", field.patch.merge_key.as_ref().into());
    }
}
