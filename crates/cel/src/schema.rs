//! A structural schema as the language needs it: what is an object, what a map, which strings are times.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::escaping::{escape, is_word, unescape};
use crate::estimate::Sizes;
use crate::time;
use crate::types::{Type, Types};
use crate::value::{List, Str, Value};

/// One node of a schema. It must outlive the values seen through it.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    pub shape: Shape,
    /// How many characters, items or entries there can be; what a cost is estimated with.
    pub max_elements: u64,
    /// The fewest bytes a value takes in JSON.
    pub min_size: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Not described: kept, compared, but not looked into.
    Unknown,
    IntOrString,
    Boolean,
    Integer,
    Number,
    String(Format),
    List {
        items: Box<Schema>,
        kind: ListKind,
    },
    Map(Box<Schema>),
    /// Its name is the path to it from the root of the type; its fields are under their names in JSON.
    Object {
        name: Arc<str>,
        fields: BTreeMap<String, Schema>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Plain,
    Byte,
    Duration,
    Date,
    DateTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListKind {
    Atomic,
    Set,
    Map(Vec<String>),
}

impl Schema {
    pub fn new(shape: Shape) -> Self {
        Self { shape, max_elements: 0, min_size: 0 }
    }

    /// The type an expression sees; `None` if there is nothing to see.
    pub fn cel_type(&self) -> Option<Type> {
        Some(match &self.shape {
            Shape::Unknown => return None,
            Shape::IntOrString => Type::Dyn,
            Shape::Boolean => Type::Bool,
            Shape::Integer => Type::Int,
            Shape::Number => Type::Double,
            Shape::String(Format::Plain) => Type::String,
            Shape::String(Format::Byte) => Type::Bytes,
            Shape::String(Format::Duration) => Type::Duration,
            Shape::String(Format::Date | Format::DateTime) => Type::Timestamp,
            Shape::List { items, .. } => Type::list(items.cel_type()?),
            Shape::Map(values) => Type::map(Type::String, values.cel_type()?),
            Shape::Object { name, .. } => Type::Object(name.clone()),
        })
    }

    pub(crate) fn items(&self) -> Option<&Self> {
        if let Shape::List { items, .. } = &self.shape { Some(items) } else { None }
    }

    pub(crate) fn is_object(&self) -> bool {
        matches!(self.shape, Shape::Object { .. })
    }

    pub(crate) fn object_name(&self) -> Option<&str> {
        if let Shape::Object { name, .. } = &self.shape { Some(name) } else { None }
    }

    pub(crate) fn knows(&self, name: &str) -> bool {
        matches!(&self.shape, Shape::Object { fields, .. } if fields.contains_key(name))
    }

    pub(crate) fn name_of<'a>(&self, name: &'a str) -> Value<'a> {
        match escape(name) {
            Some(escaped) if escaped != name => Value::string(escaped),
            _ => Value::String(Str::Borrowed(name)),
        }
    }

    /// A field by the name an expression spells. A field that is null counts as absent.
    pub(crate) fn field_of<'a>(&'a self, object: &'a serde_json::Map<String, Json>, name: &str) -> Option<Value<'a>> {
        match &self.shape {
            Shape::Object { fields, .. } => {
                let name = unescape(name)?;
                let value = object.get(&name).filter(|value| !value.is_null())?;
                fields.get(&name).map(|schema| Value::typed(value, Some(schema)))
            }
            Shape::Map(values) => object.get(name).map(|value| Value::typed(value, Some(values))),
            _ => object.get(name).map(Value::json),
        }
    }

    /// What is not simply the JSON value: times, bytes, whole numbers of a number field.
    pub(crate) fn special<'a>(&self, value: &'a Json) -> Option<Value<'a>> {
        match (&self.shape, value) {
            (Shape::Number, Json::Number(number)) => number.as_f64().map(Value::Double),
            (Shape::String(format), Json::String(text)) => match format {
                Format::Plain => None,
                Format::Byte => {
                    use base64::Engine as _;
                    base64::engine::general_purpose::STANDARD.decode(text).ok().map(|bytes| Value::Bytes(bytes.into()))
                }
                Format::Duration => time::parse_duration(text).map(Value::Duration),
                Format::Date => time::Time::parse(&format!("{text}T00:00:00Z")).map(Value::Timestamp),
                Format::DateTime => time::Time::parse(text).map(Value::Timestamp),
            },
            (Shape::Unknown, _) => Some(Value::json(value)),
            _ => None,
        }
    }

    /// Sets and maps of a list are equal in any order; `None` for lists that are compared as they are.
    pub(crate) fn lists_equal(&self, a: &List<'_>, b: &List<'_>) -> Option<bool> {
        match &self.shape {
            Shape::List { kind: ListKind::Set, .. } => Some(a.iter().all(|value| b.contains(&value))),
            Shape::List { kind: ListKind::Map(keys), .. } => {
                Some(a.iter().all(|value| b.iter().any(|other| same_key(keys, &value, &other) && value.equals(&other))))
            }
            _ => None,
        }
    }

    /// `x + y` where `x` is a set or a map of a list: `None` for others.
    pub(crate) fn lists_added<'a>(&'a self, a: &List<'a>, b: &List<'a>) -> Option<Vec<Value<'a>>> {
        let mut sum: Vec<Value<'a>> = a.iter().collect();
        match &self.shape {
            Shape::List { kind: ListKind::Set, .. } => {
                for value in b.iter() {
                    if !sum.iter().any(|known| known.equals(&value)) {
                        sum.push(value);
                    }
                }
            }
            Shape::List { kind: ListKind::Map(keys), .. } => {
                for value in b.iter() {
                    match sum.iter_mut().find(|known| same_key(keys, known, &value)) {
                        Some(known) => *known = value,
                        None => sum.push(value),
                    }
                }
            }
            _ => return None,
        }
        Some(sum)
    }
}

fn same_key(keys: &[String], a: &Value<'_>, b: &Value<'_>) -> bool {
    let (Value::Map(a), Value::Map(b)) = (a, b) else { return false };
    keys.iter().all(|key| {
        let key = Value::string(escape(key).unwrap_or_else(|| key.clone()));
        match (a.find(&key), b.find(&key)) {
            (Ok(Some(a)), Ok(Some(b))) => a.equals(&b),
            (Ok(None), Ok(None)) => true,
            _ => false,
        }
    })
}

/// The object types of one schema, by the names their paths give them.
pub struct SchemaTypes {
    objects: BTreeMap<Arc<str>, BTreeMap<String, Type>>,
}

impl SchemaTypes {
    pub fn of(schema: &Schema) -> Self {
        let mut types = Self { objects: BTreeMap::new() };
        types.add(schema);
        types
    }

    fn add(&mut self, schema: &Schema) {
        match &schema.shape {
            Shape::List { items, .. } => self.add(items),
            Shape::Map(values) => self.add(values),
            Shape::Object { name, fields } => {
                let seen = fields.iter().filter_map(|(name, field)| Some((escape(name)?, field.cel_type()?)));
                self.objects.insert(name.clone(), seen.collect());
                fields.values().for_each(|field| self.add(field));
            }
            _ => {}
        }
    }
}

impl Types for SchemaTypes {
    fn has(&self, name: &str) -> bool {
        self.objects.contains_key(name)
    }

    fn field(&self, name: &str, field: &str) -> Option<Type> {
        let fields = self.objects.get(name)?;
        // Behind a dot a word that is kept free is a name like any other, and may be spelled as one.
        let spelled = || fields.get(&escape(field).filter(|_| is_word(field))?);
        fields.get(field).or_else(spelled).cloned()
    }
}

/// How large the parts of a value can be that a schema describes, whatever the variable is called.
impl Sizes for Schema {
    fn most(&self, path: &[Rc<str>]) -> Option<u64> {
        let mut node = self;
        for step in path.iter().skip(1) {
            node = match (&node.shape, &**step) {
                (Shape::List { items, .. }, "@items" | "@values") => items,
                (Shape::Map(values), "@items" | "@values") => values,
                // The names of entries are strings without a bound of their own.
                (Shape::Map(_), "@keys") => return Some(0),
                (Shape::Object { fields, .. }, name) => {
                    fields.get(&unescape(name)?).filter(|field| field.cel_type().is_some())?
                }
                _ => return None,
            };
        }
        Some(node.max_elements)
    }
}
