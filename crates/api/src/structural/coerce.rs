//! Metadata inside objects: fitted to what all metadata has, and checked like that of any object.

use serde_json::{Map, Value};

use super::{Structural, is_meta};
use crate::decode::{self, DecodeError};
use crate::field::{FieldError, Path};
use crate::schema::generated::APIMACHINERY_PKG_APIS_META_V1_OBJECTMETA as OBJECT_META;
use crate::validation;

/// What to do with metadata that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    Refused,
    /// An object that was written before anything was checked.
    Dropped,
}

/// Fits the metadata of one object; answers the names of unknown fields.
pub fn metadata(object: &mut Map<String, Value>, malformed: Malformed) -> Result<Vec<String>, DecodeError> {
    let Some(value) = object.get_mut("metadata") else { return Ok(Vec::new()) };
    if malformed == Malformed::Dropped
        && let Value::Object(map) = value
    {
        map.retain(|key, field| {
            let mut one = Value::Object(Map::from_iter([(key.clone(), field.clone())]));
            decode::conform(&mut one, &OBJECT_META).is_ok()
        });
    }
    let unknown = decode::conform(value, &OBJECT_META)?;
    if let Value::Object(map) = value {
        decode::drop_empties(map);
    }
    Ok(unknown)
}

/// Fits the metadata of embedded objects; `unknown` gets the paths of what was dropped.
pub fn coerce(
    value: &mut Value,
    schema: &Structural,
    is_root: bool,
    path: &Path,
    malformed: Malformed,
    unknown: &mut Vec<String>,
) -> Result<(), FieldError> {
    match value {
        Value::Object(map) => {
            if schema.embedded && !is_root {
                types(map, path, malformed)?;
                let whole = map.get("metadata").cloned().unwrap_or_default();
                match metadata(map, malformed) {
                    Ok(dropped) => {
                        let at = path.child("metadata");
                        unknown.extend(dropped.iter().map(|name| format!("{at}.{name}")));
                    }
                    Err(error) => return Err(FieldError::invalid(&path.child("metadata"), whole, error.to_string())),
                }
            }
            for (name, inner) in map.iter_mut() {
                let at = match schema.property(name) {
                    Some(_) if is_root && is_meta(name) => continue,
                    Some(_) => path.child(name),
                    None => path.key(name),
                };
                if let Some(below) = schema.below(name) {
                    coerce(inner, below, false, &at, malformed, unknown)?;
                }
            }
        }
        Value::Array(items) => {
            let Some(below) = schema.items.as_deref() else { return Ok(()) };
            for (index, item) in items.iter_mut().enumerate() {
                coerce(item, below, false, &path.index(index), malformed, unknown)?;
            }
        }
        _ => (),
    }
    Ok(())
}

fn types(map: &mut Map<String, Value>, path: &Path, malformed: Malformed) -> Result<(), FieldError> {
    for name in ["apiVersion", "kind"] {
        match map.get(name) {
            None | Some(Value::String(_)) => (),
            Some(_) if malformed == Malformed::Dropped => drop(map.remove(name)),
            Some(other) => return Err(FieldError::invalid(&path.child(name), other.clone(), "must be a string")),
        }
    }
    Ok(())
}

/// What is wrong with the types and metadata of embedded objects.
pub fn embedded(value: &Value, schema: &Structural, is_root: bool, path: &Path, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            if schema.embedded && !is_root {
                resource(map, path, errors);
            }
            for (name, inner) in map {
                let at = if schema.property(name).is_some() { path.child(name) } else { path.key(name) };
                if let Some(below) = schema.below(name) {
                    embedded(inner, below, false, &at, errors);
                }
            }
        }
        Value::Array(items) => {
            let Some(below) = schema.items.as_deref() else { return };
            for (index, item) in items.iter().enumerate() {
                embedded(item, below, false, &path.index(index), errors);
            }
        }
        _ => (),
    }
}

fn resource(map: &Map<String, Value>, path: &Path, errors: &mut Vec<FieldError>) {
    for name in ["apiVersion", "kind"] {
        let at = path.child(name);
        match map.get(name) {
            None => errors.push(FieldError::required(&at, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(&at, "", "must not be empty"));
            }
            Some(Value::String(text)) if name == "apiVersion" => {
                if text.matches('/').count() > 1 {
                    let why = format!("unexpected GroupVersion string: {text}");
                    errors.push(FieldError::invalid(&at, text.as_str(), why));
                }
            }
            Some(Value::String(text)) => {
                let wrong = validation::is_dns_1035(&text.to_lowercase());
                if !wrong.is_empty() {
                    let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
                    errors.push(FieldError::invalid(&at, text.as_str(), why));
                }
            }
            Some(other) => errors.push(FieldError::invalid(&at, other.clone(), "must be a string")),
        }
    }
    let Some(metadata) = map.get("metadata") else { return };
    let mut fitted = metadata.clone();
    if let Err(error) = decode::conform(&mut fitted, &OBJECT_META) {
        errors.push(FieldError::invalid(&path.child("metadata"), metadata.clone(), error.to_string()));
        return;
    }
    let Value::Object(mut fitted) = fitted else { return };
    let unnamed = fitted.get("name").is_none_or(|name| name == "");
    if unnamed {
        // A template need not have a name.
        fitted.insert("name".into(), "fakename".into());
    }
    let namespaced = fitted.get("namespace").is_some_and(|namespace| namespace != "");
    let object = Map::from_iter([("metadata".to_owned(), Value::Object(fitted))]);
    let found = validation::object_meta(&object, namespaced, validation::NameRule::PathSegment, false);
    errors.extend(found.into_iter().map(|mut error| {
        error.field = path.child(&error.field).to_string();
        error
    }));
}
