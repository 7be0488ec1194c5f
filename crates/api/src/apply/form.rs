//! How server-side apply sees a value of a schema: as one leaf, or as fields, keys or elements of their own.

use serde_json::{Map, Value};

use crate::schema::generated::APIMACHINERY_PKG_APIS_META_V1_OBJECTMETA as OBJECT_META;
use crate::schema::{Field, Shape, Topology, Type, Zero};
use crate::structural::{Additional, Kind, ListType, Structural};

/// A place in a schema.
#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    Leaf(&'a Shape),
    Struct(&'a Type),
    Map(&'a Shape),
    /// Elements are known by the values of these keys.
    Keyed(Keys<'a>, Element<'a>),
    /// Elements are known by themselves.
    Set(Element<'a>),
    Custom(Node<'a>),
    /// A scalar, an atomic list or an atomic object.
    CustomLeaf(Node<'a>),
    /// Nothing is said of it: an object is seen key by key, anything else as a whole.
    Deduced,
}

/// A place in a custom resource's schema.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub(super) schema: &'a Structural,
    /// Unknown fields are kept here, or somewhere above.
    preserved: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Keys<'a> {
    Built(&'a [&'static str]),
    Custom(&'a [Box<str>]),
}

impl<'a> Keys<'a> {
    fn iter(self) -> impl Iterator<Item = &'a str> {
        let (built, custom) = match self {
            Self::Built(keys) => (keys, &[][..]),
            Self::Custom(keys) => (&[][..], keys),
        };
        built.iter().copied().chain(custom.iter().map(|key| &**key))
    }
}

/// What the elements of a list are.
#[derive(Clone, Copy)]
pub(super) enum Element<'a> {
    Shape(&'a Shape),
    Custom(Node<'a>),
    Deduced,
}

impl<'a> Element<'a> {
    fn form(self) -> Form<'a> {
        match self {
            Self::Shape(shape) => Form::inner(shape),
            Self::Custom(node) => node.form(),
            Self::Deduced => Form::Deduced,
        }
    }

    /// What a key is where an element does not say.
    fn default(self, key: &str) -> Option<Value> {
        match self {
            Self::Shape(Shape::Object(schema)) => {
                let field = schema.field(key)?;
                match (field.default.as_deref(), field.zero, &field.shape) {
                    (Some(default), ..) => serde_json::from_str(default).ok(),
                    // What is always written is there, be it empty.
                    (None, Zero::Written, Shape::String) => Some("".into()),
                    (None, Zero::Written, Shape::Int32 | Shape::Int64) => Some(0.into()),
                    _ => None,
                }
            }
            Self::Custom(node) => node.schema.property(key)?.default.clone(),
            _ => None,
        }
    }
}

impl<'a> Node<'a> {
    fn new(schema: &'a Structural, preserved: bool) -> Self {
        Self { schema, preserved: preserved || schema.preserve_unknown }
    }

    fn form(self) -> Form<'a> {
        match self.schema.kind {
            Kind::Any if self.schema.properties().next().is_none() => Form::Deduced,
            Kind::Any | Kind::Object if !self.schema.atomic_map => Form::Custom(self),
            Kind::Array => {
                let inner = self.schema.items.as_deref();
                let inner = inner.map_or(Element::Deduced, |inner| Element::Custom(Self::new(inner, self.preserved)));
                match &self.schema.list_type {
                    ListType::Atomic => Form::CustomLeaf(self),
                    ListType::Set => Form::Set(inner),
                    ListType::Map(keys) => Form::Keyed(Keys::Custom(keys), inner),
                }
            }
            _ => Form::CustomLeaf(self),
        }
    }

    pub(super) fn at_key(self, key: &str) -> Option<Form<'a>> {
        match key {
            "metadata" if self.schema.embedded => return Some(Form::Struct(&OBJECT_META)),
            "apiVersion" | "kind" if self.schema.embedded => return Some(Form::Leaf(&Shape::String)),
            _ => (),
        }
        if let Some(inner) = self.schema.property(key) {
            return Some(Self::new(inner, self.preserved).form());
        }
        let is_free = self.preserved || self.schema.properties().next().is_none();
        match &self.schema.additional {
            Additional::Schema(inner) => Some(Self::new(inner, self.preserved).form()),
            Additional::Allowed => Some(Form::Deduced),
            Additional::Unsaid if is_free => Some(Form::Deduced),
            Additional::Unsaid | Additional::Forbidden => None,
        }
    }
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
            (Shape::List(inner), Topology::Map(keys)) => Self::Keyed(Keys::Built(keys), Element::Shape(inner)),
            (Shape::List(inner), Topology::Set) => Self::Set(Element::Shape(inner)),
            _ => Self::Leaf(shape),
        }
    }

    /// The form below a key of an object; `None` where the schema does not declare it.
    pub(super) fn at_key(self, key: &str) -> Option<Self> {
        match self {
            Self::Struct(schema) => match (schema.field(key), &schema.custom) {
                (Some(field), _) => Some(Self::of(field)),
                (None, Some(custom)) => Node::new(custom, false).at_key(key),
                (None, None) => None,
            },
            Self::Map(inner) => Some(Self::inner(inner)),
            Self::Custom(node) => node.at_key(key),
            Self::Deduced => Some(Self::Deduced),
            _ => None,
        }
    }

    /// The schema names this field, rather than allowing any.
    pub(super) fn declares(self, key: &str) -> bool {
        match self {
            Self::Struct(schema) => {
                schema.field(key).is_some() || schema.custom.as_ref().is_some_and(|c| c.property(key).is_some())
            }
            Self::Custom(Node { schema, .. }) => {
                schema.property(key).is_some() || (schema.embedded && matches!(key, "metadata" | "apiVersion" | "kind"))
            }
            _ => false,
        }
    }

    /// The form of a list's elements.
    pub(super) fn element(self) -> Option<Self> {
        match self {
            Self::Keyed(_, inner) | Self::Set(inner) => Some(inner.form()),
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

fn keyed(keys: Keys<'_>, inner: Element<'_>, item: &Value) -> Result<String, String> {
    let object = match item {
        Value::Object(object) => object,
        Value::Null => return Err("associative list with keys may not have a null element".into()),
        _ => return Err("associative list with keys may not have non-map elements".into()),
    };
    let mut found = Map::new();
    for key in keys.iter() {
        if let Some(value) = object.get(key).cloned().or_else(|| inner.default(key)) {
            found.insert(key.to_owned(), value);
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
