//! `x-kubernetes-validations`: rules in the schemas of custom resources.
//!
//! [`check`] judges the rules when a definition is written: that they compile, and what they can cost. [`Rules`] are
//! compiled once for a version and put to every write of its objects.

mod check;
mod schema;
mod validate;

use std::fmt;
use std::sync::Arc;

use api::{Object, ObjectExt as _};
use cel::schema::{Schema, SchemaTypes};
use cel::{Env, Program, Type};
use serde_json::Value;

pub(crate) use self::check::check;
use self::schema::seen;

/// The rules of one place in a schema and below it; a place without any is not there.
pub(crate) struct Rules {
    here: Vec<Rule>,
    /// How expressions see the place.
    schema: Schema,
    /// The type as messages name it.
    kind: String,
    /// Values of this place belong to those that were here before.
    keys: Vec<String>,
    properties: Vec<(String, Rules)>,
    items: Option<Box<Rules>>,
    additional: Option<Box<Rules>>,
    all_of: Vec<Rules>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rules", self.here.len())
    }
}

struct Rule {
    text: String,
    message: String,
    reason: String,
    /// Where the failure is told, below this place.
    field_path: String,
    optional_old: bool,
    uses_old: bool,
    program: Result<Program, String>,
    message_program: Option<Program>,
}

/// What the type of `self` is called, and those of its fields after it. No expression can name it: where it were `self`, `self.spec.replicas`
/// would be taken for a field of the type `self.spec`.
const SELF_TYPE: &str = "selfType!";
/// Where the variable is; `self` comes before it.
const OLD_SELF: usize = 1;

impl Rules {
    /// Of the whole schema of a version; `None` if it has no rules.
    pub(crate) fn of(schema: &Object) -> Option<Self> {
        Self::of_part(schema, true)
    }

    /// Of a part of one, which may be the whole.
    pub(crate) fn of_part(schema: &Object, is_root: bool) -> Option<Self> {
        Self::at(schema, schema, is_root)
    }

    /// `node` is what the place is, `rules` what is said of it: the same but within `allOf`.
    fn at(rules: &Object, node: &Object, is_root: bool) -> Option<Self> {
        let seen = seen(node, is_root || flag(node, "x-kubernetes-embedded-resource"), SELF_TYPE);
        let here = match seen.cel_type() {
            Some(_) => {
                let said = validations(rules).into_iter().filter(|rule| !rule.text(&["rule"]).trim().is_empty());
                said.map(|rule| Rule::of(rule, &seen)).collect()
            }
            None => Vec::new(),
        };
        let below = |rules: &Object, node: Option<&Object>| node.and_then(|node| Self::at(rules, node, false));
        let object = |schema: &'_ Object, key: &str| schema.get(key).and_then(Value::as_object).cloned();
        let inner = |key: &str| below(&object(rules, key)?, object(node, key).as_ref()).map(Box::new);
        let properties = object(rules, "properties").unwrap_or_default();
        let nodes = object(node, "properties").unwrap_or_default();
        let properties: Vec<(String, Self)> = properties
            .iter()
            .filter_map(|(name, rules)| {
                let found = below(rules.as_object()?, nodes.get(name).and_then(Value::as_object))?;
                Some((name.clone(), found))
            })
            .collect();
        let all = rules.get("allOf").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
        let all_of: Vec<Self> = all.filter_map(|rules| Self::at(rules, node, is_root)).collect();
        let (items, additional) = (inner("items"), inner("additionalProperties"));
        let nothing =
            here.is_empty() && properties.is_empty() && items.is_none() && additional.is_none() && all_of.is_empty();
        let keys = match node.text(&["x-kubernetes-list-type"]) {
            "map" => crate::admission::rules::strings(node.get("x-kubernetes-list-map-keys")),
            _ => Vec::new(),
        };
        let kind = node.text(&["type"]).to_owned();
        (!nothing).then_some(Self { here, schema: seen, kind, keys, properties, items, additional, all_of })
    }
}

impl Rule {
    fn of(rule: &Object, schema: &Schema) -> Self {
        let text = rule.text(&["rule"]);
        let optional_old = flag(rule, "optionalOldSelf");
        let env = env(schema, optional_old);
        let program = env.compile(text).map_err(|error| error.to_string());
        let message = rule.text(&["messageExpression"]);
        Self {
            text: text.to_owned(),
            message: rule.text(&["message"]).trim().to_owned(),
            reason: rule.text(&["reason"]).to_owned(),
            field_path: rule.text(&["fieldPath"]).to_owned(),
            optional_old,
            uses_old: program.as_ref().is_ok_and(|program| program.reads(OLD_SELF)),
            program,
            message_program: (!message.is_empty()).then(|| env.compile(message).ok()).flatten(),
        }
    }

    /// What the rule is called in messages about it.
    fn told(&self) -> &str {
        if self.message.is_empty() { self.text.trim() } else { &self.message }
    }
}

fn env(schema: &Schema, optional_old: bool) -> Env {
    let own = schema.cel_type().unwrap_or(Type::Dyn);
    let old = if optional_old { Type::optional(own.clone()) } else { own.clone() };
    Env::default().types(Arc::new(SchemaTypes::of(schema))).variable("self", own).variable("oldSelf", old)
}

fn flag(schema: &Object, key: &str) -> bool {
    schema.get(key) == Some(&Value::Bool(true))
}

fn validations(schema: &Object) -> Vec<&Object> {
    let list = schema.get("x-kubernetes-validations").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_object).collect()
}
