//! Holds a value against its schema, with upstream's words for what does not fit.
//!
//! Where the old value is known, complaints about what did not change are dropped: what was let in once does not
//! keep the rest of its object from being changed.

use serde_json::{Map, Value};

use super::number::{go_float, numbers};
use super::{Additional, Kind, ListType, Rules, Structural, formats};
use crate::field::{ErrorKind, FieldError, Path};

/// The value before, where there was one that can be compared.
pub type Old<'a> = Option<&'a Value>;

/// Everything that is wrong with `value`; `path` is where it is in its object.
pub fn validate(value: &Value, old: Old<'_>, schema: &Structural, path: &Path) -> Vec<FieldError> {
    let outcome = ratcheted(value, old, schema, "");
    outcome.errors.into_iter().map(|error| error.at(path)).collect()
}

/// One complaint, before it is known where its root is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Complaint {
    pub(super) kind: ErrorKind,
    /// Complaints about a whole (`oneOf`, …) name their place in the text alone.
    pub(super) place: Option<String>,
    pub(super) value: String,
    pub(super) detail: String,
}

impl Complaint {
    pub(super) fn general(detail: String) -> Self {
        Self { kind: ErrorKind::Invalid, place: None, value: "\"\"".into(), detail }
    }

    pub(super) fn invalid(place: &str, value: String, detail: String) -> Self {
        Self { kind: ErrorKind::Invalid, place: Some(place.to_owned()), value, detail }
    }

    fn wrong_type(place: &str, wanted: &str, found: &str) -> Self {
        let detail = format!("{place} in body must be of type {wanted}: {found:?}");
        let value = Value::from(found).to_string();
        Self { kind: ErrorKind::TypeInvalid, ..Self::invalid(place, value, detail) }
    }

    fn at(self, root: &Path) -> FieldError {
        let place = self.place.unwrap_or_default();
        let field = match place.trim_start_matches('.') {
            "" => root.into(),
            place => root.child(place).to_string(),
        };
        FieldError { kind: self.kind, field, value: self.value, detail: self.detail }
    }
}

/// Complaints, and how many checks were passed: of several schemas none of which fits, the one that fits best is told.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) errors: Vec<Complaint>,
    pub(super) matches: usize,
}

impl Outcome {
    pub(super) fn add(&mut self, error: Complaint) {
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.matches += other.matches;
        other.errors.into_iter().for_each(|error| self.add(error));
    }

    fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }
}

/// As [`check`], without the complaints about what is as it was.
fn ratcheted(value: &Value, old: Old<'_>, schema: &Structural, path: &str) -> Outcome {
    let mut outcome = check(value, old, schema, path);
    if !outcome.is_valid() && old == Some(value) {
        outcome.errors.clear();
    }
    outcome
}

fn check(value: &Value, old: Old<'_>, schema: &Structural, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let rules = schema.rules.as_deref();
    let format = rules.and_then(|rules| rules.format.as_deref()).unwrap_or_default();
    if schema.kind != Kind::Any || !format.is_empty() || value.is_null() {
        match of_type(value, schema, format, path) {
            Some(error) => outcome.add(error),
            None => outcome.matches += 1,
        }
        outcome.matches += 1;
    }
    if value.is_null() {
        if let Some(rules) = rules {
            one_of_values(value, rules, path, &mut outcome);
        }
        return outcome;
    }
    if let Some(rules) = rules {
        outcome.merge(combined(value, old, rules, path));
        outcome.matches += 1;
        match value {
            Value::String(text) => {
                if let Some(error) = of_text(text, rules, path) {
                    outcome.add(error);
                }
                outcome.matches += 1;
                if !format.is_empty() {
                    if !formats::fits(format, text) {
                        outcome.add(Complaint::wrong_type(path, format, text));
                    }
                    outcome.matches += 1;
                }
            }
            Value::Number(number) => {
                numbers(number, schema.kind, format, rules, path, &mut outcome);
                outcome.matches += 2;
            }
            _ => (),
        }
    } else if let Value::Number(number) = value {
        numbers(number, schema.kind, "", &Rules::default(), path, &mut outcome);
    }
    if let Value::Array(items) = value {
        array(items, old, schema, path, &mut outcome);
    }
    if let Some(rules) = rules {
        one_of_values(value, rules, path, &mut outcome);
    }
    if let Value::Object(map) = value {
        object(map, old, schema, path, &mut outcome);
    }
    outcome.matches += 2;
    outcome
}

fn type_of(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::Number(number) if number.is_f64() => ("number", "float64"),
        Value::Number(_) => ("integer", "int64"),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
    }
}

fn of_type(value: &Value, schema: &Structural, format: &str, path: &str) -> Option<Complaint> {
    let (found, found_format) = type_of(value);
    let wrong = |wanted: &str, found: &str| Some(Complaint::wrong_type(path, wanted, found));
    if value.is_null() {
        let allowed = schema.nullable || schema.kind == Kind::Any;
        return if allowed { None } else { wrong(schema.kind.as_str(), found) };
    }
    let is = |kind: Kind| schema.kind == kind;
    let takes_integers = is(Kind::Integer) || is(Kind::IntOrString);
    let is_whole = value.as_f64().is_some_and(|number| number.fract() == 0.0);
    let fits = match value {
        Value::Number(number) if number.is_f64() => is(Kind::Number) || (takes_integers && is_whole),
        Value::Number(_) => takes_integers || is(Kind::Number),
        Value::String(_) => is(Kind::String) || is(Kind::IntOrString),
        _ => schema.kind.as_str() == found,
    };
    let is_text_or_list = value.is_string() || value.is_array();
    if !is_text_or_list && !format.is_empty() && !fits && found_format != format {
        return wrong(format, found_format);
    }
    if !takes_integers && !is(Kind::Number) && !format.is_empty() && is_text_or_list {
        return None;
    }
    if fits { None } else { wrong(schema.kind.as_str(), found) }
}

fn of_text(text: &str, rules: &Rules, path: &str) -> Option<Complaint> {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(max) = rules.max_length.filter(|max| length > *max) {
        let detail = match max {
            ..0 => "value is too long".to_owned(),
            _ => format!("may not be more than {max} bytes"),
        };
        return Some(Complaint { kind: ErrorKind::TooLong, ..Complaint::invalid(path, String::new(), detail) });
    }
    let invalid = |why: String| Some(Complaint::invalid(path, Value::from(text).to_string(), why));
    if let Some(min) = rules.min_length.filter(|min| length < *min) {
        return invalid(format!("{path} in body should be at least {min} chars long"));
    }
    let pattern = rules.pattern.as_ref().filter(|pattern| !pattern.matches(text))?;
    invalid(format!("{path} in body should match '{}'", pattern.as_str()))
}

fn one_of_values(value: &Value, rules: &Rules, path: &str, outcome: &mut Outcome) {
    let same = |allowed: &Value| match (allowed, value) {
        (Value::Null, _) => false,
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (allowed, value) => allowed == value,
    };
    if rules.one_of_values.is_empty() || rules.one_of_values.iter().any(same) {
        return;
    }
    let shown = rules.one_of_values.iter().map(|allowed| match allowed {
        Value::String(text) => format!("{text:?}"),
        other => format!("{:?}", other.to_string()),
    });
    let detail = format!("supported values: {}", shown.collect::<Vec<_>>().join(", "));
    let shown = show(value);
    outcome.add(Complaint { kind: ErrorKind::NotSupported, ..Complaint::invalid(path, shown, detail) });
}

pub(super) fn show(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => go_float(number.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}

/// Schemas of which one, some, all or none must fit.
fn combined(value: &Value, old: Old<'_>, rules: &Rules, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    if !rules.any_of.is_empty() {
        let mut best: Option<Outcome> = None;
        let mut fitting = None;
        for schema in &rules.any_of {
            let found = check(value, old, schema, path);
            if found.is_valid() {
                fitting = Some(found);
                break;
            }
            if best.as_ref().is_none_or(|best| found.matches > best.matches) {
                best = Some(found);
            }
        }
        if fitting.is_none() {
            outcome.add(Complaint::general(format!("{path:?} must validate at least one schema (anyOf)")));
        }
        if let Some(found) = fitting.or(best) {
            outcome.merge(found);
        }
    }
    if !rules.one_of.is_empty() {
        one_of(value, old, rules, path, &mut outcome);
    }
    let mut fitting = 0;
    for schema in &rules.all_of {
        let found = check(value, old, schema, path);
        fitting += usize::from(found.is_valid());
        outcome.merge(found);
    }
    if fitting != rules.all_of.len() {
        let none = if fitting == 0 { ". None validated" } else { "" };
        outcome.add(Complaint::general(format!("{path:?} must validate all the schemas (allOf){none}")));
    }
    if let Some(schema) = &rules.not
        && check(value, old, schema, path).is_valid()
    {
        outcome.add(Complaint::general(format!("{path:?} must not validate the schema (not)")));
    }
    outcome.matches += 1;
    outcome
}

fn one_of(value: &Value, old: Old<'_>, rules: &Rules, path: &str, outcome: &mut Outcome) {
    let (mut best, mut first): (Option<Outcome>, Option<Outcome>) = (None, None);
    let mut fitting = 0;
    for schema in &rules.one_of {
        let found = check(value, old, schema, path);
        if found.is_valid() {
            fitting += 1;
            best = None;
            first.get_or_insert(found);
        } else if fitting == 0 && best.as_ref().is_none_or(|best| found.matches > best.matches) {
            best = Some(found);
        }
    }
    let why = match fitting {
        1 => {
            outcome.merge(first.unwrap_or_default());
            return;
        }
        0 => "Found none valid".to_owned(),
        several => format!("Found {several} valid alternatives"),
    };
    outcome.add(Complaint::general(format!("{path:?} must validate one and only one schema (oneOf). {why}")));
    outcome.merge(best.unwrap_or_default());
}

fn array(items: &[Value], old: Old<'_>, schema: &Structural, path: &str, outcome: &mut Outcome) {
    if let Some(inner) = schema.items.as_deref() {
        for (index, item) in items.iter().enumerate() {
            outcome.merge(ratcheted(item, before(item, old, schema), inner, &format!("{path}[{index}]")));
        }
    }
    let Some(rules) = schema.rules.as_deref() else { return };
    let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
    if let Some(min) = rules.min_items.filter(|min| size < *min) {
        let why = format!("{path} in body should have at least {min} items");
        outcome.add(Complaint::invalid(path, size.to_string(), why));
    }
    if let Some(max) = rules.max_items.filter(|max| size > *max) {
        outcome.add(too_many(path, size, max));
    }
    let twice = |(index, item): (usize, &Value)| items.iter().take(index).any(|before| before == item);
    if rules.unique_items && items.iter().enumerate().any(twice) {
        let why = format!("{path} in body shouldn't contain duplicates");
        outcome.add(Complaint::invalid(path, "\"\"".into(), why));
    }
}

/// The element of the old list that has the same keys; other lists are one value.
fn before<'a>(item: &Value, old: Old<'a>, schema: &Structural) -> Old<'a> {
    let ListType::Map(keys) = &schema.list_type else { return None };
    let same = |other: &&Value| {
        let key = |value: &Value, name: &str| {
            let own = value.get(name).cloned();
            let inner = schema.items.as_ref().and_then(|items| items.property(name));
            own.or_else(|| inner.and_then(|inner| inner.default.clone()))
        };
        keys.iter().all(|name| key(other, name) == key(item, name))
    };
    old?.as_array()?.iter().find(same)
}

fn too_many(path: &str, actual: i64, max: i64) -> Complaint {
    let detail = format!("must have at most {max} {}", if max == 1 { "item" } else { "items" });
    Complaint { kind: ErrorKind::TooMany, ..Complaint::invalid(path, actual.to_string(), detail) }
}

fn object(map: &Map<String, Value>, old: Old<'_>, schema: &Structural, path: &str, outcome: &mut Outcome) {
    let default = Rules::default();
    let rules = schema.rules.as_deref().unwrap_or(&default);
    let size = i64::try_from(map.len()).unwrap_or(i64::MAX);
    if let Some(min) = rules.min_properties.filter(|min| size < *min) {
        let why = format!("{path} in body should have at least {min} properties");
        outcome.add(Complaint::invalid(path, size.to_string(), why));
    }
    if let Some(max) = rules.max_properties.filter(|max| size > *max) {
        outcome.add(too_many(path, size, max));
    }
    let others = || map.iter().filter(|(name, _)| schema.property(name).is_none());
    let old_of = |name: &str| old.and_then(|old| old.get(name));
    match &schema.additional {
        Additional::Forbidden => {
            for (name, _) in others() {
                let why = format!("{path}.{name} in body is a forbidden property");
                outcome.add(Complaint::invalid(path, Value::from(name.as_str()).to_string(), why));
            }
        }
        Additional::Schema(inner) => {
            for (name, value) in others() {
                outcome.merge(ratcheted(value, old_of(name), inner, &format!("{path}.{name}")));
            }
        }
        Additional::Unsaid | Additional::Allowed => (),
    }
    for (name, inner) in schema.properties() {
        let Some(value) = map.get(name) else { continue };
        let at = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let is_type = path.is_empty() && matches!(name, "kind" | "apiVersion");
        outcome.merge(ratcheted(value, old_of(name).filter(|_| !is_type), inner, &at));
    }
    for name in rules.required.iter().filter(|name| !map.contains_key(&***name)) {
        let place = format!("{path}.{name}");
        outcome
            .add(Complaint { kind: ErrorKind::Required, ..Complaint::invalid(&place, String::new(), String::new()) });
    }
}

#[cfg(test)]
mod tests;
