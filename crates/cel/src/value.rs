//! Values at run time. An object of the API is looked at where it lies: nothing of it is copied.

use std::cmp::Ordering;
use std::rc::Rc;

use serde_json::Value as Json;

use crate::error::{EvalError, no_such_overload};
use crate::opaque::Opaque;
use crate::plan::{Const, lookup};
use crate::schema::Schema;
use crate::time::Time;

#[derive(Clone)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Str<'a>),
    Bytes(Rc<[u8]>),
    Timestamp(Time),
    /// Nanoseconds.
    Duration(i64),
    List(List<'a>),
    Map(Map<'a>),
    Optional(Option<Rc<Value<'a>>>),
    Type(Str<'a>),
    Opaque(Rc<Opaque<'a>>),
    /// Fields that are found only when asked for.
    Lazy(Rc<dyn Fields<'a> + 'a>),
}

/// An object whose fields are computed when they are read.
pub trait Fields<'a> {
    /// `None` if there is no such field.
    fn get(&self, name: &str) -> Option<Result<Value<'a>, EvalError>>;
    fn type_name(&self) -> &str;
}

#[derive(Clone, Debug)]
pub enum Str<'a> {
    Borrowed(&'a str),
    Owned(Rc<str>),
}

impl std::ops::Deref for Str<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Owned(text) => text,
        }
    }
}

#[derive(Clone)]
pub enum List<'a> {
    Json(&'a [Json], Option<&'a Schema>),
    Values(Rc<Vec<Value<'a>>>),
    /// A constant of the program.
    Consts(&'a [Const]),
}

#[derive(Clone)]
pub enum Map<'a> {
    Json(&'a serde_json::Map<String, Json>, Option<&'a Schema>),
    /// In the order of their keys.
    Values(Rc<Vec<(Value<'a>, Value<'a>)>>),
    /// A constant of the program.
    Consts(&'a [(Const, Const)]),
    /// An object that was made by the expression, of a type by name; its fields in the order of their names.
    Struct(&'a str, Rc<Vec<(Value<'a>, Value<'a>)>>),
}

impl<'a> Value<'a> {
    pub fn string(text: impl Into<Rc<str>>) -> Self {
        Self::String(Str::Owned(text.into()))
    }

    pub fn list(values: Vec<Self>) -> Self {
        Self::List(List::Values(Rc::new(values)))
    }

    pub fn opaque(value: Opaque<'a>) -> Self {
        Self::Opaque(Rc::new(value))
    }

    pub fn some(value: Self) -> Self {
        Self::Optional(Some(Rc::new(value)))
    }

    /// A JSON value as the language sees it.
    pub fn json(value: &'a Json) -> Self {
        Self::typed(value, None)
    }

    /// A JSON value as its schema says it is to be seen.
    pub fn typed(value: &'a Json, schema: Option<&'a Schema>) -> Self {
        if let Some(special) = schema.and_then(|schema| schema.special(value)) {
            return special;
        }
        match value {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match number.as_i64() {
                Some(whole) => Self::Int(whole),
                None => Self::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::String(Str::Borrowed(text)),
            Json::Array(items) => Self::List(List::Json(items, schema)),
            Json::Object(fields) => Self::Map(Map::Json(fields, schema)),
        }
    }

    pub fn type_name(&self) -> &str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::List(_) => "list",
            Self::Map(Map::Json(_, Some(schema))) => schema.object_name().unwrap_or("map"),
            Self::Map(Map::Struct(name, _)) => name,
            Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Type(_) => "type",
            Self::Opaque(opaque) => opaque.type_name(),
            Self::Lazy(fields) => fields.type_name(),
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self { Some(*value) } else { None }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// What `size()` says; `None` for what has no size.
    pub(crate) fn size(&self) -> Option<usize> {
        Some(match self {
            Self::String(text) => text.chars().count(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(list) => list.len(),
            Self::Map(map) => map.len(),
            _ => return None,
        })
    }

    pub(crate) fn equals(&self, other: &Value<'_>) -> bool {
        match (self, other) {
            (Self::Null, Value::Null) => true,
            (Self::Bool(a), Value::Bool(b)) => a == b,
            (Self::String(a), Value::String(b)) | (Self::Type(a), Value::Type(b)) => **a == **b,
            (Self::Bytes(a), Value::Bytes(b)) => a == b,
            (Self::Timestamp(a), Value::Timestamp(b)) => a == b,
            (Self::Duration(a), Value::Duration(b)) => a == b,
            (Self::List(a), Value::List(b)) => a.equals(b),
            (Self::Map(a), Value::Map(b)) => a.equals(b),
            (Self::Optional(None), Value::Optional(None)) => true,
            (Self::Optional(Some(a)), Value::Optional(Some(b))) => a.equals(b),
            (Self::Opaque(a), Value::Opaque(b)) => a.equals(b),
            _ => numbers(self, other).flatten() == Some(Ordering::Equal),
        }
    }

    pub(crate) fn compare(&self, other: &Value<'_>) -> Result<Ordering, EvalError> {
        Ok(match (self, other) {
            (Self::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Self::String(a), Value::String(b)) => (**a).cmp(&**b),
            (Self::Bytes(a), Value::Bytes(b)) => a.cmp(b),
            (Self::Timestamp(a), Value::Timestamp(b)) => a.cmp(b),
            (Self::Duration(a), Value::Duration(b)) => a.cmp(b),
            _ => match numbers(self, other) {
                Some(Some(order)) => order,
                Some(None) => return Err(EvalError::new("NaN values cannot be ordered")),
                None => return Err(no_such_overload()),
            },
        })
    }

    /// The value as JSON; `Err` names the type that has no form there.
    pub fn to_json(&self) -> Result<Json, String> {
        Ok(match self {
            Self::Null | Self::Optional(None) => Json::Null,
            Self::Bool(value) => (*value).into(),
            Self::Int(value) => (*value).into(),
            Self::Uint(value) => (*value).into(),
            Self::Double(value) => serde_json::Number::from_f64(*value).map_or(Json::Null, Json::Number),
            Self::String(text) => (**text).into(),
            Self::Bytes(bytes) => {
                use base64::Engine as _;
                base64::engine::general_purpose::STANDARD.encode(bytes).into()
            }
            Self::Timestamp(time) => time.to_string().into(),
            Self::Duration(nanos) => crate::time::show_duration(*nanos).into(),
            Self::Optional(Some(value)) => value.to_json()?,
            Self::List(list) => list.iter().map(|item| item.to_json()).collect::<Result<_, _>>()?,
            Self::Map(Map::Json(fields, _)) => Json::Object((*fields).clone()),
            Self::Map(map) => {
                let mut fields = serde_json::Map::new();
                for key in map.keys() {
                    let name = crate::functions::convert::show(&key).and_then(Result::ok);
                    let value = map.find(&key).ok().flatten().unwrap_or(Self::Null);
                    fields.insert(name.ok_or_else(|| key.type_name().to_owned())?, value.to_json()?);
                }
                Json::Object(fields)
            }
            Self::Type(_) | Self::Opaque(_) | Self::Lazy(_) => return Err(self.type_name().to_owned()),
        })
    }

    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Null | Self::Optional(None) => true,
            Self::Bool(value) => !value,
            Self::Int(value) | Self::Duration(value) => *value == 0,
            Self::Uint(value) => *value == 0,
            Self::Double(value) => *value == 0.0,
            Self::Timestamp(time) => time.is_zero(),
            Self::Optional(Some(_)) | Self::Type(_) | Self::Opaque(_) | Self::Lazy(_) => false,
            other => other.size() == Some(0),
        }
    }
}

/// The order of two numbers of any types; `Some(None)` if one is not a number.
fn numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Option<Ordering>> {
    Some(match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Uint(a), Value::Uint(b)) => Some(a.cmp(b)),
        (Value::Int(a), Value::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Uint(a), Value::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Double(a), Value::Int(b)) => with_double(*a, i128::from(*b)),
        (Value::Double(a), Value::Uint(b)) => with_double(*a, i128::from(*b)),
        (Value::Int(a), Value::Double(b)) => with_double(*b, i128::from(*a)).map(Ordering::reverse),
        (Value::Uint(a), Value::Double(b)) => with_double(*b, i128::from(*a)).map(Ordering::reverse),
        _ => return None,
    })
}

/// Exact where the double is within the whole numbers of 64 bits; beyond, the double is the greater or the lesser.
fn with_double(a: f64, b: i128) -> Option<Ordering> {
    if a.is_nan() {
        return None;
    }
    if !(-9.3e18..=1.9e19).contains(&a) {
        return Some(if a < 0.0 { Ordering::Less } else { Ordering::Greater });
    }
    #[expect(clippy::cast_possible_truncation, reason = "the range was checked")]
    let whole = a.trunc() as i128;
    Some(whole.cmp(&b).then(a.fract().partial_cmp(&0.0)?))
}

impl<'a> List<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Json(items, _) => items.len(),
            Self::Values(values) => values.len(),
            Self::Consts(items) => items.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        match self {
            Self::Json(items, schema) => {
                items.get(index).map(|item| Value::typed(item, schema.and_then(Schema::items)))
            }
            Self::Values(values) => values.get(index).cloned(),
            Self::Consts(items) => items.get(index).map(Value::from),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    pub(crate) fn contains(&self, wanted: &Value<'_>) -> bool {
        self.iter().any(|value| value.equals(wanted))
    }

    fn equals(&self, other: &List<'_>) -> bool {
        if self.len() != other.len() {
            return false;
        }
        let schema = match (self, other) {
            (Self::Json(_, Some(schema)), _) => Some(*schema),
            (_, List::Json(_, Some(schema))) => Some(*schema),
            _ => None,
        };
        if let Some(equal) = schema.and_then(|schema| schema.lists_equal(self, other)) {
            return equal;
        }
        self.iter().zip(other.iter()).all(|(a, b)| a.equals(&b))
    }
}

impl<'a> Map<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Json(fields, schema) => match schema.filter(|schema| schema.is_object()) {
                Some(schema) => fields.keys().filter(|name| schema.knows(name)).count(),
                None => fields.len(),
            },
            Self::Values(entries) | Self::Struct(_, entries) => entries.len(),
            Self::Consts(entries) => entries.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value under a key; an error if no map can have such a key.
    pub fn find(&self, key: &Value<'_>) -> Result<Option<Value<'a>>, EvalError> {
        match self {
            Self::Json(fields, schema) => Ok(match key {
                Value::String(name) => field(fields, *schema, name),
                _ => None,
            }),
            Self::Values(entries) | Self::Struct(_, entries) => match key {
                Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::String(_) | Value::Double(_) => {
                    let found = entries.binary_search_by(|(known, _)| key_order(known, key));
                    Ok(found.ok().and_then(|index| entries.get(index)).map(|(_, value)| value.clone()))
                }
                _ => Ok(None),
            },
            Self::Consts(entries) => Ok(lookup(entries, key)),
        }
    }

    pub fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Self::Json(fields, schema) => match schema.filter(|schema| schema.is_object()) {
                Some(schema) => {
                    fields.keys().filter(|name| schema.knows(name)).map(|name| schema.name_of(name)).collect()
                }
                None => fields.keys().map(|name| Value::String(Str::Borrowed(name))).collect(),
            },
            Self::Values(entries) | Self::Struct(_, entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
            Self::Consts(entries) => entries.iter().map(|(key, _)| Value::from(key)).collect(),
        }
    }

    fn equals(&self, other: &Map<'_>) -> bool {
        self.len() == other.len()
            && self.keys().iter().all(|key| match (self.find(key), other.find(key)) {
                (Ok(Some(a)), Ok(Some(b))) => a.equals(&b),
                _ => false,
            })
    }
}

fn field<'a>(fields: &'a serde_json::Map<String, Json>, schema: Option<&'a Schema>, name: &str) -> Option<Value<'a>> {
    match schema {
        None => fields.get(name).map(Value::json),
        Some(schema) => schema.field_of(fields, name),
    }
}

/// A total order of keys in which numbers that are equal are the same key, whatever their type.
pub(crate) fn key_order(a: &Value<'_>, b: &Value<'_>) -> Ordering {
    fn rank(value: &Value<'_>) -> u8 {
        match value {
            Value::Bool(_) => 0,
            Value::Int(_) | Value::Uint(_) | Value::Double(_) => 1,
            _ => 2,
        }
    }
    rank(a).cmp(&rank(b)).then_with(|| a.compare(b).unwrap_or(Ordering::Less))
}
