//! Fits a JSON value to a schema: refuses wrong types, drops and reports unknown fields, canonicalises.
//!
//! Messages are those of upstream's decoder, which clients and users know.

mod empty;
mod go;

use serde_json::Value;

pub use self::empty::Empties;
use self::empty::Step as Place;
use self::go::{embedded, go_struct, go_type, short_name, time};
use crate::field::Path;
use crate::quantity::Quantity;
use crate::schema::{Field, Shape, Type, Zero};
use crate::structural::{self, Malformed, Structural};

/// Why a value cannot be read as its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("json: cannot unmarshal {found} into Go struct field {place} of type {wanted}")]
    Mismatch { found: String, place: String, wanted: String },
    #[error("{0}")]
    Value(String),
    #[error("json: exceeded max depth")]
    TooDeep,
}

const MAX_DEPTH: usize = 1000;
const NOT_A_QUANTITY: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// What Go calls a JSON value of this kind.
pub fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The object of a type in which nothing is set, with every zero that upstream writes.
pub fn blank(schema: &Type) -> serde_json::Map<String, Value> {
    let written = schema.fields.iter().filter(|field| matches!(field.zero, Zero::Written | Zero::Null));
    let zero = |field: &Field| match &field.shape {
        _ if field.zero == Zero::Null => Value::Null,
        Shape::Object(inner) => Value::Object(blank(inner)),
        Shape::String => "".into(),
        Shape::Bool => false.into(),
        Shape::Int32 | Shape::Int64 | Shape::Double | Shape::IntOrString => 0.into(),
        Shape::Quantity => "0".into(),
        _ => Value::Null,
    };
    written.map(|field| (field.name.to_string(), zero(field))).collect()
}

/// What a struct held by value is where nothing of it is set.
fn zero(schema: &Type) -> serde_json::Map<String, Value> {
    let mut map = serde_json::Map::new();
    settle_zeros(&mut map, schema);
    map
}

/// Leaves out the zeros that upstream leaves out, and writes those it always writes, at the top of an object.
pub fn settle_zeros(map: &mut serde_json::Map<String, Value>, schema: &Type) {
    map.retain(|key, value| !is_zero(value) || schema.field(key).is_none_or(|field| keeps_zero(field, value)));
    for field in schema.fields.iter().filter(|field| field.zero == Zero::Written) {
        let zero = match &field.shape {
            _ if map.contains_key(field.name.as_ref()) => continue,
            Shape::Object(inner) => Value::Object(zero(inner)),
            Shape::Time | Shape::MicroTime => Value::Null,
            Shape::Quantity => "0".into(),
            Shape::IntOrString => 0.into(),
            _ => continue,
        };
        map.insert(field.name.to_string(), zero);
    }
}

/// Writes the scalars that upstream writes even when they are zero, and null for the lists and texts it always writes; takes out lists and maps with
/// nothing in them, and answers where they were. Defaults come before, for which zero is not set.
pub fn complete(map: &mut serde_json::Map<String, Value>, schema: &Type) -> Empties {
    let mut empties = Empties::default();
    let managers = map.get("metadata").and_then(|metadata| metadata.get("managedFields"));
    let forgets = managers.is_some_and(empty::is_empty);
    complete_with(map, schema, false, &mut empties);
    // An empty list of managers asks that all of the object's be forgotten.
    if let (true, Some(Value::Object(metadata))) = (forgets, map.get_mut("metadata")) {
        metadata.insert("managedFields".into(), Value::Array(Vec::new()));
    }
    empties
}

/// The same of what is about to be stored, where an empty list is none even if it is always written. Until then it is one that its manager
/// has written.
pub fn complete_for_storage(map: &mut serde_json::Map<String, Value>, schema: &Type) -> Empties {
    let mut empties = Empties::default();
    complete_with(map, schema, true, &mut empties);
    empties
}

fn complete_with(map: &mut serde_json::Map<String, Value>, schema: &Type, is_stored: bool, empties: &mut Empties) {
    // Upstream stores definitions as JSON, in which an empty list is not the same as none.
    let is_json = schema.name.contains("apiextensions");
    for field in schema.fields.iter() {
        let name = field.name.as_ref();
        let is_null = matches!(field.shape, Shape::List(_) | Shape::String) && field.zero == Zero::Null;
        match map.get_mut(name) {
            Some(value) if matches!(field.shape, Shape::List(_) | Shape::Map(_)) && empty::is_empty(value) => {
                if is_null && is_stored && !is_json {
                    empties.push(name, std::mem::take(value), true);
                } else if !matches!(field.zero, Zero::Null | Zero::Kept) {
                    empties.push(name, std::mem::take(value), false);
                    map.remove(name);
                }
            }
            Some(value) => {
                let before = empties.len();
                complete_shape(value, &field.shape, is_stored, empties);
                empties.within(before, || Place::Name(name.to_owned()));
            }
            None if is_null => drop(map.insert(name.to_owned(), Value::Null)),
            None if field.zero == Zero::Written => {
                let zero = match field.shape {
                    Shape::String => Value::from(""),
                    Shape::Bool => false.into(),
                    Shape::Int32 | Shape::Int64 | Shape::Double => 0.into(),
                    _ => continue,
                };
                map.insert(name.to_owned(), zero);
            }
            None => (),
        }
    }
}

fn complete_shape(value: &mut Value, shape: &Shape, is_stored: bool, empties: &mut Empties) {
    match (value, shape) {
        (Value::Object(map), Shape::Object(inner)) => complete_with(map, inner, is_stored, empties),
        (Value::Array(items), Shape::List(inner)) => {
            for (index, item) in items.iter_mut().enumerate() {
                let before = empties.len();
                complete_shape(item, inner, is_stored, empties);
                empties.within(before, || Place::Index(index));
            }
        }
        (Value::Object(map), Shape::Map(inner)) => {
            for (key, item) in map {
                let before = empties.len();
                complete_shape(item, inner, is_stored, empties);
                empties.within(before, || Place::Name(key.clone()));
            }
        }
        _ => (),
    }
}

/// Leaves out the lists and maps of metadata with nothing in them, but for that of its managers.
pub(crate) fn drop_empties(metadata: &mut serde_json::Map<String, Value>) {
    metadata.retain(|key, value| key == "managedFields" || !empty::is_empty(value));
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Null => false,
    }
}

fn keeps_zero(field: &Field, value: &Value) -> bool {
    match field.shape {
        // Lists and maps with nothing in them are judged before they go.
        Shape::List(_) | Shape::Map(_) => true,
        Shape::Object(_) | Shape::Any | Shape::SchemaOr(_) | Shape::IntOrString => true,
        _ => field.required || field.zero != Zero::Omitted || value.is_object(),
    }
}

/// Makes `value` conform to `schema`; answers the paths of the unknown fields it dropped.
pub fn conform(value: &mut Value, schema: &Type) -> Result<Vec<String>, DecodeError> {
    if let Some(custom) = &schema.custom {
        return conform_custom(value, custom, Malformed::Refused);
    }
    let mut walk = Walk { path: Vec::new(), unknown: Vec::new(), depth: 0 };
    walk.object(value, schema, schema)?;
    Ok(walk.unknown)
}

/// The same for a custom resource, with defaults filled in; `malformed` says what becomes of metadata that cannot be read.
pub fn conform_custom(
    value: &mut Value,
    schema: &Structural,
    malformed: Malformed,
) -> Result<Vec<String>, DecodeError> {
    check_depth(value, 0)?;
    let Value::Object(object) = value else {
        return Err(DecodeError::Value("the object is not a JSON object".into()));
    };
    let unknown = structural::metadata(object, malformed)?;
    let mut unknown: Vec<String> = unknown.into_iter().map(|name| format!("metadata.{name}")).collect();
    structural::prune(value, schema, &mut unknown);
    structural::prune_nulls(value, Some(schema));
    structural::coerce(value, schema, true, &Path::default(), malformed, &mut unknown)
        .map_err(|error| DecodeError::Value(error.to_string()))?;
    structural::default(value, schema);
    Ok(unknown)
}

/// Everything below walks values by calling itself.
fn check_depth(value: &Value, depth: usize) -> Result<(), DecodeError> {
    if depth > MAX_DEPTH {
        return Err(DecodeError::TooDeep);
    }
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| check_depth(item, depth + 1)),
        Value::Object(map) => map.values().try_for_each(|item| check_depth(item, depth + 1)),
        _ => Ok(()),
    }
}

struct Walk {
    path: Vec<Step>,
    unknown: Vec<String>,
    depth: usize,
}

enum Step {
    Field(String),
    /// What upstream names in the place of a wrong type, and nowhere else.
    Embedded(&'static str),
    /// What upstream does not name there.
    Key(String),
    Index(usize),
}

impl Walk {
    /// `owner` is the struct that holds the value, which is what upstream names.
    fn object(&mut self, value: &mut Value, schema: &Type, owner: &Type) -> Result<(), DecodeError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(DecodeError::TooDeep);
        }
        let Value::Object(map) = value else {
            return Err(self.mismatch(value, owner, go_struct(schema)));
        };
        // A null is Go's zero value, and zero values are left out.
        map.retain(|_, value| !value.is_null());
        let mut unknown = Vec::new();
        for (key, value) in map.iter_mut() {
            let Some(field) = schema.field(key) else {
                unknown.push(key.clone());
                self.unknown.push(self.render(key));
                continue;
            };
            let within = self.path.len();
            self.path.extend(embedded(schema, key).map(Step::Embedded));
            self.path.push(Step::Field(key.clone()));
            self.shape(value, &field.shape, schema)?;
            self.path.truncate(within);
        }
        unknown.iter().for_each(|key| drop(map.remove(key)));
        settle_zeros(map, schema);
        self.depth -= 1;
        Ok(())
    }

    fn shape(&mut self, value: &mut Value, shape: &Shape, owner: &Type) -> Result<(), DecodeError> {
        let fits = match (shape, &mut *value) {
            (Shape::Any | Shape::SchemaOr(_), _)
            | (Shape::Time | Shape::MicroTime, Value::Null)
            | (Shape::Bool, Value::Bool(_))
            | (Shape::String, Value::String(_)) => true,
            (Shape::Int32, Value::Number(n)) => n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            (Shape::Int64, Value::Number(n)) => n.as_i64().is_some(),
            (Shape::Double, Value::Number(_)) => true,
            (Shape::IntOrString, Value::Number(n)) => n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            (Shape::IntOrString, Value::String(_)) => true,
            (Shape::Bytes, Value::String(text)) => return self.bytes(text),
            (Shape::Time | Shape::MicroTime, Value::String(text)) => return time(text),
            (Shape::Quantity, value @ (Value::String(_) | Value::Number(_))) => return quantity(value),
            (Shape::Quantity, _) => return Err(DecodeError::Value(NOT_A_QUANTITY.into())),
            (Shape::Object(schema), value) => return self.object(value, schema, owner),
            (Shape::List(inner), Value::Array(items)) => return self.list(items, inner, owner),
            (Shape::Map(inner), Value::Object(map)) => {
                for (key, value) in map {
                    self.path.push(Step::Key(key.clone()));
                    unset(value, inner);
                    self.shape(value, inner, owner)?;
                    self.path.pop();
                }
                true
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err(self.mismatch(value, owner, go_type(shape))) }
    }

    fn list(&mut self, items: &mut [Value], inner: &Shape, owner: &Type) -> Result<(), DecodeError> {
        for (index, item) in items.iter_mut().enumerate() {
            self.path.push(Step::Index(index));
            unset(item, inner);
            self.shape(item, inner, owner)?;
            self.path.pop();
        }
        Ok(())
    }

    fn bytes(&self, text: &str) -> Result<(), DecodeError> {
        use base64::Engine as _;
        let text = text.replace(['\r', '\n'], "");
        let offset = match base64::engine::general_purpose::STANDARD.decode(&text) {
            Ok(_) => return Ok(()),
            Err(base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _)) => at,
            // Four characters are read at a time.
            Err(_) => text.len() / 4 * 4,
        };
        Err(DecodeError::Value(format!("illegal base64 data at input byte {offset}")))
    }

    fn mismatch(&self, found: &Value, owner: &Type, wanted: String) -> DecodeError {
        let found = match found {
            Value::Number(n) if wanted.starts_with("int") => format!("number {n}"),
            other => go_kind(other).to_owned(),
        };
        let fields = self.path.iter().filter_map(|step| match step {
            Step::Field(name) => Some(name.as_str()),
            Step::Embedded(name) => Some(*name),
            Step::Key(_) | Step::Index(_) => None,
        });
        let path: Vec<&str> = fields.collect();
        if path.is_empty() {
            return DecodeError::Value(format!("json: cannot unmarshal {found} into Go value of type {wanted}"));
        }
        DecodeError::Mismatch { found, place: format!("{}.{}", short_name(owner), path.join(".")), wanted }
    }

    /// The place of the field `last` of the object that is walked.
    fn render(&self, last: &str) -> String {
        let mut text = String::new();
        for step in &self.path {
            match step {
                Step::Index(index) => text.push_str(&format!("[{index}]")),
                Step::Field(name) | Step::Key(name) if text.is_empty() => text.push_str(name),
                Step::Field(name) | Step::Key(name) => text.push_str(&format!(".{name}")),
                Step::Embedded(_) => (),
            }
        }
        if text.is_empty() { last.to_owned() } else { format!("{text}.{last}") }
    }
}

/// A null among others is Go's zero value, and keeps its place.
fn unset(value: &mut Value, shape: &Shape) {
    if value.is_null() {
        *value = match shape {
            Shape::Object(_) => Value::Object(serde_json::Map::new()),
            Shape::String | Shape::Bytes => "".into(),
            Shape::Bool => false.into(),
            Shape::Int32 | Shape::Int64 | Shape::Double | Shape::IntOrString => 0.into(),
            Shape::Quantity => "0".into(),
            Shape::List(_) => Value::Array(Vec::new()),
            _ => return,
        };
    }
}

fn quantity(value: &mut Value) -> Result<(), DecodeError> {
    let text = match &*value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let parsed = Quantity::parse(&text).map_err(|error| DecodeError::Value(error.to_string()))?;
    *value = Value::String(parsed.to_string());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment() -> &'static Type {
        crate::schema::of_kind("apps", "v1", "Deployment").unwrap()
    }

    #[test]
    fn unknown_fields_are_dropped_and_named() {
        let mut value = json!({"spec": {"replicas": 2, "oops": 1, "template": {"spec": {"containers": [{"name": "a", "imagee": "b"}]}}}});
        let unknown = conform(&mut value, deployment()).unwrap();
        assert_eq!(unknown, ["spec.oops", "spec.template.spec.containers[0].imagee"]);
        assert_eq!(value["spec"]["template"]["spec"]["containers"][0], json!({"name": "a", "resources": {}}));
    }

    #[test]
    fn wrong_types_are_refused_with_their_place() {
        check(
            json!({"spec": {"replicas": "three"}}),
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        );
        check(
            json!({"spec": {"template": {"spec": {"containers": {}}}}}),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container",
        );
    }

    #[track_caller]
    fn check(mut value: Value, want: &str) {
        assert_eq!(conform(&mut value, deployment()).unwrap_err().to_string(), want);
    }

    #[test]
    fn a_wrong_type_is_told_of_the_struct_that_holds_it() {
        check(
            json!({"spec": {"template": {"spec": {"volumes": ["x"]}}}}),
            "json: cannot unmarshal string into Go struct field PodSpec.spec.template.spec.volumes of type v1.Volume",
        );
        check(
            json!({"spec": {"template": {"spec": {"volumes": [{"emptyDir": 5}]}}}}),
            "json: cannot unmarshal number into Go struct field Volume.spec.template.spec.volumes.VolumeSource.emptyDir of type v1.EmptyDirVolumeSource",
        );
        check(
            json!({"metadata": {"labels": {"a": 5}}}),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        );
        check(
            json!({"metadata": {"creationTimestamp": "2020-x"}}),
            "parsing time \"2020-x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"01\"",
        );
    }

    #[test]
    fn a_null_among_others_is_a_zero() {
        let mut value = json!({"metadata": {"labels": {"a": null}, "finalizers": [null]}, "spec": null});
        conform(&mut value, deployment()).unwrap();
        assert_eq!(value["metadata"]["labels"], json!({"a": ""}));
        assert_eq!(value["metadata"]["finalizers"], json!([""]));
    }

    #[test]
    fn quantities_are_made_canonical() {
        let mut value =
            json!({"spec": {"template": {"spec": {"containers": [{"resources": {"limits": {"cpu": 0.5}}}]}}}});
        conform(&mut value, deployment()).unwrap();
        assert_eq!(value["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"], "500m");
    }
}
