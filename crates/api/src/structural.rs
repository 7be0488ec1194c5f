//! The schema of a custom resource: what its definition says of a value, in the form every algorithm over it walks.
//!
//! It is built from a definition that was checked to be structural, so that what it cannot hold was refused before.

mod coerce;
mod default;
mod formats;
mod lists;
mod number;
pub mod pattern;
mod prune;
mod validate;

use serde_json::{Map, Value};

pub use self::coerce::{Malformed, coerce, embedded, metadata};
pub use self::default::{default, prune_nulls};
pub use self::formats::is_supported as is_supported_format;
pub use self::lists::lists;
pub use self::pattern::Pattern;
pub use self::prune::prune;
pub use self::validate::{Old, validate};

/// The type a schema demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Any,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    /// `x-kubernetes-int-or-string`
    IntOrString,
}

impl Kind {
    fn parse(text: &str) -> Self {
        match text {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => Self::Any,
        }
    }

    /// As messages name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::IntOrString => "integer,string",
        }
    }
}

/// What an array is to server-side apply, and what must be unique in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Box<[Box<str>]>),
}

/// What an object may hold beside its properties.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Additional {
    /// Nothing is said.
    #[default]
    Unsaid,
    Allowed,
    Forbidden,
    Schema(Box<Structural>),
}

/// One place in a schema.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Structural {
    pub kind: Kind,
    pub nullable: bool,
    /// Fields that are not specified are kept.
    pub preserve_unknown: bool,
    /// The value is an object of some kind, with metadata.
    pub embedded: bool,
    pub list_type: ListType,
    /// Server-side apply owns the whole or nothing of it.
    pub atomic_map: bool,
    /// By name.
    properties: Box<[(Box<str>, Structural)]>,
    pub items: Option<Box<Structural>>,
    pub additional: Additional,
    pub default: Option<Value>,
    pub rules: Option<Box<Rules>>,
}

/// What holds for values of a place, beyond their type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    pub format: Option<Box<str>>,
    pub pattern: Option<Pattern>,
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub multiple_of: Option<f64>,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub unique_items: bool,
    pub required: Box<[Box<str>]>,
    pub one_of_values: Box<[Value]>,
    pub all_of: Box<[Structural]>,
    pub any_of: Box<[Structural]>,
    pub one_of: Box<[Structural]>,
    pub not: Option<Box<Structural>>,
    /// `x-kubernetes-validations`, as they were written.
    pub validations: Box<[Value]>,
}

impl Structural {
    /// Reads a schema as a definition has it.
    pub fn parse(schema: &Map<String, Value>) -> Self {
        let flag = |key: &str| schema.get(key) == Some(&Value::Bool(true));
        let text = |key: &str| schema.get(key).and_then(Value::as_str).unwrap_or_default();
        let kind = if flag("x-kubernetes-int-or-string") { Kind::IntOrString } else { Kind::parse(text("type")) };
        let list_type = match text("x-kubernetes-list-type") {
            "set" => ListType::Set,
            "map" => ListType::Map(texts(schema.get("x-kubernetes-list-map-keys"))),
            _ => ListType::Atomic,
        };
        let additional = match schema.get("additionalProperties") {
            Some(Value::Bool(true)) => Additional::Allowed,
            Some(Value::Bool(false)) => Additional::Forbidden,
            Some(Value::Object(inner)) => Additional::Schema(Box::new(Self::parse(inner))),
            _ => Additional::Unsaid,
        };
        let mut properties: Vec<(Box<str>, Self)> = fields(schema.get("properties"))
            .filter_map(|(name, inner)| Some((name.as_str().into(), Self::parse(inner.as_object()?))))
            .collect();
        properties.sort_by(|a, b| a.0.cmp(&b.0));
        Self {
            kind,
            nullable: flag("nullable"),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            list_type,
            atomic_map: text("x-kubernetes-map-type") == "atomic",
            properties: properties.into(),
            items: boxed(schema.get("items")),
            additional,
            default: schema.get("default").filter(|value| !value.is_null()).cloned(),
            rules: Rules::parse(schema, kind).map(Box::new),
        }
    }

    pub fn property(&self, name: &str) -> Option<&Self> {
        let found = self.properties.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        self.properties.get(found).map(|(_, inner)| inner)
    }

    pub fn properties(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.properties.iter().map(|(name, inner)| (&**name, inner))
    }

    /// What is said of a field, by its name or of all that are not named.
    pub fn below(&self, name: &str) -> Option<&Self> {
        self.property(name).or(match &self.additional {
            Additional::Schema(inner) => Some(inner),
            _ => None,
        })
    }

    /// The schema of a whole object, whose type and metadata every kind has.
    #[must_use]
    pub fn root(mut self) -> Self {
        self.embedded = true;
        self
    }

    /// Defaults hold no fields that are not specified, whatever was written.
    #[must_use]
    pub fn with_pruned_defaults(mut self) -> Self {
        self.prune_defaults();
        self
    }

    fn prune_defaults(&mut self) {
        for (_, inner) in &mut self.properties {
            inner.prune_defaults();
        }
        if let Some(items) = &mut self.items {
            items.prune_defaults();
        }
        if let Additional::Schema(inner) = &mut self.additional {
            inner.prune_defaults();
        }
        if let Some(mut value) = self.default.take() {
            prune(&mut value, self, &mut Vec::new());
            self.default = Some(value);
        }
    }

    /// Some place has rules in the expression language.
    pub fn has_validations(&self) -> bool {
        self.rules.as_ref().is_some_and(|rules| !rules.validations.is_empty())
            || self.properties().any(|(_, inner)| inner.has_validations())
            || self.items.as_ref().is_some_and(|items| items.has_validations())
            || matches!(&self.additional, Additional::Schema(inner) if inner.has_validations())
    }
}

impl Rules {
    fn parse(schema: &Map<String, Value>, kind: Kind) -> Option<Self> {
        let flag = |key: &str| schema.get(key) == Some(&Value::Bool(true));
        let text = |key: &str| schema.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let number = |key: &str| schema.get(key).and_then(Value::as_f64);
        let count = |key: &str| schema.get(key).and_then(Value::as_i64);
        let list = |key: &str| schema.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let nested = |key: &str| -> Box<[Structural]> {
            list(key).iter().filter_map(Value::as_object).map(Structural::parse).collect()
        };
        let rules = Self {
            format: text("format").filter(|format| formats::is_supported(format, kind)).map(Into::into),
            pattern: text("pattern").map(Pattern::new),
            maximum: number("maximum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            minimum: number("minimum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            multiple_of: number("multipleOf"),
            max_length: count("maxLength"),
            min_length: count("minLength"),
            max_items: count("maxItems"),
            min_items: count("minItems"),
            max_properties: count("maxProperties"),
            min_properties: count("minProperties"),
            unique_items: flag("uniqueItems"),
            required: texts(schema.get("required")),
            one_of_values: list("enum").into(),
            all_of: nested("allOf"),
            any_of: nested("anyOf"),
            one_of: nested("oneOf"),
            not: boxed(schema.get("not")),
            validations: list("x-kubernetes-validations").into(),
        };
        (rules != Self::default()).then_some(rules)
    }
}

fn boxed(schema: Option<&Value>) -> Option<Box<Structural>> {
    schema.and_then(Value::as_object).map(|schema| Box::new(Structural::parse(schema)))
}

fn texts(list: Option<&Value>) -> Box<[Box<str>]> {
    let items = list.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(Into::into).collect()
}

fn fields(map: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    map.and_then(Value::as_object).into_iter().flatten()
}

/// The fields of any object, which no schema needs to specify.
fn is_meta(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}
