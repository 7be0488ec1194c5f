//! The types of objects as expressions see them: from the tables for what is built in, from the published OpenAPI for the rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::schema::{self, Ref, Shape};
use cel::escaping::escape;
use cel::{Type, Types};
use serde_json::{Map, Value};

use super::GroupVersionKind;

/// Deeper schemas are seen as anything.
const DEEPEST: usize = 64;

#[derive(Clone, Default)]
pub(crate) struct ObjectTypes {
    objects: BTreeMap<String, BTreeMap<String, Type>>,
}

impl Types for ObjectTypes {
    fn has(&self, name: &str) -> bool {
        self.objects.contains_key(name)
    }

    fn field(&self, name: &str, field: &str) -> Option<Type> {
        self.objects.get(name)?.get(field).cloned()
    }
}

impl ObjectTypes {
    pub(super) fn merge(&mut self, other: &Self) {
        self.objects.extend(other.objects.iter().map(|(name, fields)| (name.clone(), fields.clone())));
    }

    /// A built-in type and all it consists of; it may contain itself.
    fn add_built_in(&mut self, t: &schema::Type) -> Type {
        let name = t.name.to_string();
        if !self.objects.contains_key(&name) {
            self.objects.insert(name.clone(), BTreeMap::new());
            let mut fields = BTreeMap::new();
            for field in t.fields.iter() {
                if let Some(escaped) = escape(&field.name) {
                    fields.insert(escaped, self.built_in(&field.shape));
                }
            }
            self.objects.insert(name.clone(), fields);
        }
        Type::object(&name)
    }

    fn built_in(&mut self, shape: &Shape) -> Type {
        match shape {
            Shape::String | Shape::Quantity => Type::String,
            Shape::Bool => Type::Bool,
            Shape::Int32 | Shape::Int64 => Type::Int,
            Shape::Double => Type::Double,
            Shape::Bytes => Type::Bytes,
            Shape::Time | Shape::MicroTime => Type::Timestamp,
            Shape::Object(Ref::Static(t)) => self.add_built_in(t),
            Shape::List(element) => Type::list(self.built_in(element)),
            Shape::Map(value) => Type::map(Type::String, self.built_in(value)),
            _ => Type::Dyn,
        }
    }

    /// What a published schema describes; `None` if expressions cannot see it.
    fn published(&mut self, schema: &Value, all: &Map<String, Value>, path: &str, depth: usize) -> Option<Type> {
        if depth > DEEPEST {
            return Some(Type::Dyn);
        }
        if let Some(name) = reference(schema) {
            if name == "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta" {
                return schema::named(name).map(|t| self.add_built_in(t));
            }
            return self.published(all.get(name)?, all, path, depth + 1);
        }
        let text = |field: &str| schema.get(field).and_then(Value::as_str).unwrap_or_default();
        let is_true = |field: &str| schema.get(field) == Some(&Value::Bool(true));
        if is_true("x-kubernetes-int-or-string") || text("format") == "int-or-string" {
            return Some(Type::Dyn);
        }
        Some(match (text("type"), text("format")) {
            ("string", "byte") => Type::Bytes,
            ("string", "duration") => Type::Duration,
            ("string", "date" | "date-time") => Type::Timestamp,
            ("string", _) => Type::String,
            ("boolean", _) => Type::Bool,
            ("integer", _) => Type::Int,
            ("number", _) => Type::Double,
            ("array", _) => {
                Type::list(self.published(schema.get("items")?, all, &format!("{path}.@items"), depth + 1)?)
            }
            ("object", _) => match schema.get("additionalProperties").filter(|values| values.is_object()) {
                Some(values) => {
                    Type::map(Type::String, self.published(values, all, &format!("{path}.@values"), depth + 1)?)
                }
                None => self.published_object(schema, all, path, depth),
            },
            _ => return None,
        })
    }

    fn published_object(&mut self, schema: &Value, all: &Map<String, Value>, path: &str, depth: usize) -> Type {
        let mut fields = BTreeMap::new();
        let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        for (name, property) in properties {
            let seen = self.published(property, all, &format!("{path}.{name}"), depth + 1);
            if let (Some(escaped), Some(seen)) = (escape(name), seen) {
                fields.insert(escaped, seen);
            }
        }
        self.objects.insert(path.to_owned(), fields);
        Type::object(path)
    }
}

/// What a schema refers to, directly or as all there is to it.
fn reference(schema: &Value) -> Option<&str> {
    let all = schema.get("allOf").and_then(Value::as_array).filter(|all| all.len() == 1);
    let schema = all.and_then(|all| all.first()).unwrap_or(schema);
    schema.get("$ref")?.as_str()?.rsplit('/').next()
}

/// Finds kinds and their schemas, and asks the API server for what is not built in.
pub(crate) struct Schemas {
    client: kube::Client,
    documents: BTreeMap<String, Value>,
}

impl Schemas {
    pub(super) fn new(client: kube::Client) -> Self {
        Self { client, documents: BTreeMap::new() }
    }

    /// A document of the API server; nothing if it has none.
    async fn document(&mut self, path: String) -> &Value {
        if !self.documents.contains_key(&path) {
            let request = http::Request::get(&path).body(Vec::new());
            let answer = match request {
                Ok(request) => self.client.request::<Value>(request).await.unwrap_or_else(|error| {
                    tracing::debug!(%error, path, "schema not found");
                    Value::Null
                }),
                Err(_) => Value::Null,
            };
            self.documents.insert(path.clone(), answer);
        }
        self.documents.get(&path).unwrap_or(&Value::Null)
    }

    pub(super) async fn kind_of(&mut self, group: &str, version: &str, plural: &str) -> Option<String> {
        let is_it =
            |info: &&api::resources::Resource| info.group == group && info.version == version && info.plural == plural;
        if let Some(info) = api::resources::builtin().iter().find(is_it) {
            return Some(info.kind.clone());
        }
        let served = self.document(format!("/apis/{group}/{version}")).await;
        let resources = served.get("resources").and_then(Value::as_array)?;
        let found = resources.iter().find(|resource| resource.get("name").is_some_and(|name| name == plural))?;
        found.get("kind").and_then(Value::as_str).map(str::to_owned)
    }

    /// The type of a kind, with all types it consists of.
    pub(super) async fn of(&mut self, kind: &GroupVersionKind) -> Option<(Type, Arc<ObjectTypes>)> {
        let mut types = ObjectTypes::default();
        let built_in = schema::of_kind(&kind.group, &kind.version, &kind.kind);
        if let Some(t) = built_in {
            let object = types.add_built_in(t);
            return Some((object, Arc::new(types)));
        }
        let document = self.document(format!("/openapi/v3/apis/{}/{}", kind.group, kind.version)).await;
        let all = document.pointer("/components/schemas").and_then(Value::as_object)?;
        let named = |schema: &&Value| {
            let kinds = schema.get("x-kubernetes-group-version-kind").and_then(Value::as_array);
            kinds.into_iter().flatten().any(|own| {
                own.get("kind").is_some_and(|name| *name == *kind.kind)
                    && own.get("group").is_some_and(|group| *group == *kind.group)
                    && own.get("version").is_some_and(|version| *version == *kind.version)
            })
        };
        let schema = all.values().find(named)?;
        let object = types.published(schema, all, &kind.kind, 0)?;
        Some((object, Arc::new(types)))
    }
}

#[cfg(test)]
mod tests {
    use cel::policy::{Compiler, Returns};
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check((object, types): (Type, ObjectTypes), text: &str, want: &str) {
        let compiled = Compiler::typed(object, None, Arc::new(types)).compile(text, Returns::Anything, true);
        let found = compiled.err().map(|failure| failure.detail).unwrap_or_default();
        assert!(found.contains(want) && found.is_empty() == want.is_empty(), "{text}: {found}");
    }

    fn deployment() -> (Type, ObjectTypes) {
        let mut types = ObjectTypes::default();
        (types.add_built_in(schema::of_kind("apps", "v1", "Deployment").unwrap()), types)
    }

    #[test]
    fn built_in_types_are_known() {
        check(deployment(), "object.spec.replicas > 1", "");
        check(deployment(), "object.spec.replicas > '1'", "no matching overload for '_>_' applied to '(int, string)'");
        check(deployment(), "object.spec.replicants > 1", "undefined field 'replicants'");
        check(deployment(), "object.spec.template.spec.containers.all(c, c.image.startsWith('a'))", "");
        check(
            deployment(),
            "object.spec.template.spec.containers.all(c, c.image > 1)",
            "'_>_' applied to '(string, int)'",
        );
        check(deployment(), "object.metadata.labels['a'] == 'b' && has(object.metadata.annotations)", "");
        check(deployment(), "object.spec.strategy.rollingUpdate.maxSurge == 1", "");
        check(deployment(), "object.metadata.creationTimestamp.getFullYear() > 2000", "");
    }

    #[test]
    fn published_types_are_known() {
        let schemas = json!({
            "com.example.Cron": {"type": "object", "properties": {
                "metadata": {"allOf": [{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]},
                "spec": {"type": "object", "properties": {
                    "schedule": {"type": "string"}, "replicas": {"type": "integer"}, "namespace": {"type": "string"},
                    "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "number"}}}},
                    "any": {"x-kubernetes-preserve-unknown-fields": true},
                    "map": {"type": "object", "additionalProperties": {"type": "boolean"}},
                }},
            }},
        });
        let cron = || {
            let mut types = ObjectTypes::default();
            let all = schemas.as_object().unwrap();
            (types.published(&all["com.example.Cron"], all, "Cron", 0).unwrap(), types)
        };
        check(cron(), "object.spec.replicas > 1 && object.metadata.name == 'x' && object.spec.__namespace__ == ''", "");
        check(
            cron(),
            "object.spec.replicas.startsWith('x')",
            "no matching overload for 'startsWith' applied to 'int.(string)'",
        );
        check(cron(), "object.spec.list.all(e, e.n > 1.5) && object.spec.map['a']", "");
        check(cron(), "object.spec.list.all(e, e.m > 1.5)", "undefined field 'm'");
        check(cron(), "object.spec.any == 1", "undefined field 'any'");
    }
}
