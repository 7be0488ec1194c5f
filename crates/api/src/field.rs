//! Validation errors with field paths, worded as upstream words them.

use std::fmt;

use serde_json::Value;

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub kind: ErrorKind,
    pub field: String,
    /// The offending value as upstream prints it; empty where it prints none.
    pub value: String,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    Required,
    Invalid,
    Duplicate,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    NotFound,
    TypeInvalid,
    Internal,
}

impl ErrorKind {
    /// The machine-readable reason of a cause.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::NotFound => "FieldValueNotFound",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Internal => "InternalError",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid => "Invalid value",
            Self::Duplicate => "Duplicate value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
            Self::TypeInvalid => "Invalid value",
            Self::Internal => "Internal error",
        }
    }
}

/// How upstream prints a value in a message: strings quoted, objects as JSON, absent as `null`.
pub fn show(value: &Value) -> String {
    match value {
        Value::Object(_) | Value::Array(_) => escaped(&value.to_string()),
        plain => plain.to_string(),
    }
}

/// JSON as upstream writes it: safe inside a page.
pub fn escaped(json: &str) -> String {
    json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

impl FieldError {
    fn new(kind: ErrorKind, field: impl Into<String>, value: String, detail: impl Into<String>) -> Self {
        Self { kind, field: field.into(), value, detail: detail.into() }
    }

    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Required, field, String::new(), detail)
    }

    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, field, show(&value.into()), detail)
    }

    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(ErrorKind::Duplicate, field, show(&value.into()), "")
    }

    pub fn not_supported(field: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> Self {
        let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        Self::new(ErrorKind::NotSupported, field, show(&value.into()), format!("supported values: {}", list.join(", ")))
    }

    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, field, String::new(), detail)
    }

    pub fn internal(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, field, String::new(), detail)
    }

    pub fn too_long(field: impl Into<String>, max: usize) -> Self {
        Self::new(ErrorKind::TooLong, field, String::new(), format!("may not be more than {max} bytes"))
    }

    pub fn too_many(field: impl Into<String>, actual: usize, max: usize) -> Self {
        let detail = format!("must have at most {max} {}", if max == 1 { "item" } else { "items" });
        Self::new(ErrorKind::TooMany, field, actual.to_string(), detail)
    }

    pub fn not_found(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(ErrorKind::NotFound, field, show(&value.into()), "")
    }

    /// The message without the field path, as a cause carries it.
    pub fn body(&self) -> String {
        let mut text = self.kind.words().to_owned();
        if !self.value.is_empty() {
            text.push_str(": ");
            text.push_str(&self.value);
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// A path under construction: `spec.containers[0].name`.
#[derive(Clone, Debug, Default)]
pub struct Path(String);

impl Path {
    pub fn new(root: &str) -> Self {
        Self(root.to_owned())
    }

    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}.{name}", self.0)) }
    }

    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

/// As an error tells it: the object itself is upstream's path that is none.
impl From<&Path> for String {
    fn from(path: &Path) -> Self {
        if path.0.is_empty() { "<nil>".to_owned() } else { path.0.clone() }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
