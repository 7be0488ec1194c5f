//! How server-side apply sees a value of a schema: as one leaf, or as fields, keys or elements of their own.

use serde_json::{Map, Value};

use crate::schema::{Field, Shape, Topology, Type};

/// A place in a schema.
#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    Leaf(&'a Shape),
    Struct(&'a Type),
    Map(&'a Shape),
    /// Elements are known by the values of these keys.
    Keyed(&'a [&'static str], &'a Shape),
    /// Elements are known by themselves.
    Set(&'a Shape),
}

impl<'a> Form<'a> {
    pub(super) fn of(field: &'a Field) -> Self {
        Self::new(&field.shape, &field.topology)
    }

    /// An element of a list or map, which no field describes.
    pub(super) fn inner(shape: &'a Shape) -> Self {
        Self::new(shape, &Topology::Default)
    }

    fn new(shape: &'a Shape, topology: &'a Topology) -> Self {
        match (shape, topology) {
            (Shape::Object(_) | Shape::Map(_) | Shape::List(_), Topology::Atomic) => Self::Leaf(shape),
            (Shape::Object(schema), topology) if schema.atomic && *topology != Topology::Granular => Self::Leaf(shape),
            (Shape::Object(schema), _) => Self::Struct(schema),
            (Shape::Map(inner), _) => Self::Map(inner),
            (Shape::List(inner), Topology::Map(keys)) => Self::Keyed(keys, inner),
            (Shape::List(inner), Topology::Set) => Self::Set(inner),
            _ => Self::Leaf(shape),
        }
    }

    /// The form below a key of an object; `None` where the schema does not declare it.
    pub(super) fn at_key(self, key: &str) -> Option<Self> {
        match self {
            Self::Struct(schema) => schema.field(key).map(Self::of),
            Self::Map(inner) => Some(Self::inner(inner)),
            _ => None,
        }
    }

    /// The form of a list's elements.
    pub(super) fn element(self) -> Option<Self> {
        match self {
            Self::Keyed(_, inner) | Self::Set(inner) => Some(Self::inner(inner)),
            _ => None,
        }
    }

    /// The key that names an element of a list in a path.
    pub(super) fn element_key(self, item: &Value) -> Result<String, String> {
        match self {
            Self::Keyed(keys, inner) => keyed(keys, inner, item),
            _ => match item {
                Value::Object(_) => Err("associative list without keys has an element that's a map type".into()),
                Value::Array(_) => Err("not supported: associative list with lists as elements".into()),
                Value::Null => Err("associative list without keys has an element that's an explicit null".into()),
                scalar => Ok(format!("v:{}", escaped(scalar))),
            },
        }
    }
}

fn keyed(keys: &[&'static str], inner: &Shape, item: &Value) -> Result<String, String> {
    let object = match item {
        Value::Object(object) => object,
        Value::Null => return Err("associative list with keys may not have a null element".into()),
        _ => return Err("associative list with keys may not have non-map elements".into()),
    };
    let mut found = Map::new();
    for key in keys {
        let default = || {
            let Shape::Object(schema) = inner else { return None };
            serde_json::from_str(schema.field(key)?.default.as_deref()?).ok()
        };
        if let Some(value) = object.get(*key).cloned().or_else(default) {
            found.insert((*key).to_owned(), value);
        }
    }
    if found.is_empty() {
        let names: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
            names.join(" ")
        ));
    }
    Ok(format!("k:{}", escaped(&Value::Object(found))))
}

/// JSON as Go writes it: safe inside HTML.
fn escaped(value: &Value) -> String {
    let text = value.to_string();
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text;
    }
    text.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// A path as messages show it: `.spec.containers[name="a"].image`.
pub(super) fn display(path: &[&str]) -> String {
    let mut out = String::new();
    for element in path {
        match element.split_once(':') {
            Some(("f", name)) => {
                out.push('.');
                out.push_str(name);
            }
            Some(("v", value)) => out.push_str(&format!("[={value}]")),
            Some(("k", text)) => {
                let keys: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
                let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                out.push_str(&format!("[{}]", keys.join(",")));
            }
            _ => out.push_str(&format!("[{element}]")),
        }
    }
    out
}

/// Absent, null and empty containers are all the same to a merge.
pub(super) fn is_vacant(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}
