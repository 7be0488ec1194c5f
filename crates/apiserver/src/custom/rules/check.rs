//! Judges the rules of a definition when it is written: they compile, and are not too dear.

use api::field::{ErrorKind, FieldError, Path};
use api::{Object, ObjectExt as _};
use cel::schema::Schema;
use cel::{CompileError, Estimate, Type};
use serde_json::Value;

use super::schema::{REQUEST, seen};
use super::{SELF_TYPE, env, flag, validations};

/// What one rule may cost at most, and all rules of a schema together.
const RULE_LIMIT: u64 = 10_000_000;
const SCHEMA_LIMIT: u64 = 100_000_000;
/// How many of the dearest rules are named.
const NAMED: usize = 4;

/// What is wrong with the rules in a schema, which is structural.
pub(crate) fn check(schema: &Object, path: &Path) -> Vec<FieldError> {
    let mut walk = Walk { errors: Vec::new(), total: 0, dearest: Vec::new() };
    walk.schema(schema, path, Place { is_root: true, most: Some(1), uncorrelated: None });
    let Walk { mut errors, total, mut dearest } = walk;
    if total > SCHEMA_LIMIT {
        dearest.sort_by(|(_, a), (_, b)| b.cmp(a));
        let why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        errors.extend(dearest.iter().take(NAMED).map(|(path, _)| FieldError::forbidden(path, why)));
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(FieldError::forbidden(path, too_dear(what, total, SCHEMA_LIMIT)));
    }
    errors
}

struct Walk {
    errors: Vec<FieldError>,
    total: u64,
    dearest: Vec<(Path, u64)>,
}

#[derive(Clone)]
struct Place {
    is_root: bool,
    /// How often a value of this place can be in an object, where the schema bounds it.
    most: Option<u64>,
    /// The place above which values cannot be told to be the same as before.
    uncorrelated: Option<Path>,
}

impl Walk {
    fn schema(&mut self, schema: &Object, path: &Path, place: Place) {
        let object = |key: &str| schema.get(key).and_then(Value::as_object);
        let count = |key: &str| schema.get(key).and_then(Value::as_i64).map(|count| u64::try_from(count).unwrap_or(0));
        let times = |factor: Option<u64>| Some(place.most?.saturating_mul(factor?));
        let below = |most: Option<u64>, uncorrelated: Option<Path>| Place { is_root: false, most, uncorrelated };
        if let Some(inner) = object("additionalProperties") {
            let place = below(times(count("maxProperties")), place.uncorrelated.clone());
            self.schema(inner, &path.child("additionalProperties"), place);
        }
        let of_fields = if object("additionalProperties").is_some() { count("maxProperties") } else { Some(1) };
        for (name, inner) in object("properties").into_iter().flatten() {
            if let Some(inner) = inner.as_object() {
                let place = below(times(of_fields), place.uncorrelated.clone());
                self.schema(inner, &path.child("properties").key(name), place);
            }
        }
        if let Some(inner) = object("items") {
            let by_key = schema.text(&["x-kubernetes-list-type"]) == "map";
            let uncorrelated = place.uncorrelated.clone().or_else(|| (!by_key).then(|| path.clone()));
            self.schema(inner, &path.child("items"), below(times(count("maxItems")), uncorrelated));
        }
        if !validations(schema).is_empty() {
            self.rules(schema, path, &place);
        }
    }

    fn rules(&mut self, schema: &Object, path: &Path, place: &Place) {
        let is_resource = place.is_root || flag(schema, "x-kubernetes-embedded-resource");
        let seen = seen(schema, is_resource, SELF_TYPE);
        let list = path.child("x-kubernetes-validations");
        if seen.cel_type().is_none() {
            let why = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to \
                       convert structural schema to CEL declarations";
            self.errors.push(FieldError::internal(&list, why));
            return;
        }
        // Where nothing bounds it, as often as its smallest form fits into a request.
        let most = place.most.unwrap_or(REQUEST / (seen.min_size + 1));
        for (index, rule) in validations(schema).into_iter().enumerate() {
            let at = list.index(index);
            // The message of a rule that cannot be read is not read either.
            if let Some(cost) = self.rule(rule, &seen, &at, place) {
                self.charge(&at.child("rule"), "estimated rule cost", cost.saturating_mul(most));
                self.message(rule, &seen, &at);
            }
        }
    }

    /// The most one evaluation of a rule can cost; `None` if it cannot be read.
    fn rule(&mut self, rule: &Object, seen: &Schema, at: &Path, place: &Place) -> Option<u64> {
        let text = rule.text(&["rule"]);
        let env = env(seen, flag(rule, "optionalOldSelf"));
        let program = match env.compile(text) {
            Ok(program) if *program.output() == Type::Bool => program,
            Ok(_) => {
                self.invalid(at.child("rule"), rule, "cel expression must evaluate to a bool".to_owned());
                return None;
            }
            Err(error) => {
                let what =
                    if matches!(error, CompileError::Check(_)) { "compilation" } else { "program instantiation" };
                self.invalid(at.child("rule"), rule, format!("{what} failed: {error}"));
                // What cannot be read is taken to use nothing.
                self.unused_old(rule, at);
                return None;
            }
        };
        if program.reads(super::OLD_SELF) {
            if let Some(above) = &place.uncorrelated {
                let why = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {above}");
                self.errors.push(FieldError::invalid(&at.child("rule"), text, why));
            }
        } else {
            self.unused_old(rule, at);
        }
        Some(env.estimate(text, seen).map_or(0, |Estimate { max, .. }| max))
    }

    fn unused_old(&mut self, rule: &Object, at: &Path) {
        if let Some(set) = rule.get("optionalOldSelf") {
            let why = "may not be set if oldSelf is not used in rule";
            self.errors.push(FieldError::invalid(&at.child("optionalOldSelf"), set.clone(), why));
        }
    }

    fn message(&mut self, rule: &Object, seen: &Schema, at: &Path) {
        let text = rule.text(&["messageExpression"]);
        if text.is_empty() {
            return;
        }
        let at = at.child("messageExpression");
        let env = env(seen, flag(rule, "optionalOldSelf"));
        match env.compile(text) {
            Ok(program) if *program.output() == Type::String => {
                let cost = env.estimate(text, seen).map_or(0, |Estimate { max, .. }| max);
                self.charge(&at, "estimated messageExpression cost", cost);
            }
            Ok(_) => self.invalid(at, rule, "messageExpression must evaluate to a string".to_owned()),
            Err(CompileError::Check(error)) => {
                self.invalid(at, rule, format!("messageExpression compilation failed: {error}"));
            }
            Err(error) => self.invalid(at, rule, format!("messageExpression instantiation failed: {error}")),
        }
    }

    fn charge(&mut self, at: &Path, what: &str, cost: u64) {
        if cost > RULE_LIMIT {
            self.errors.push(FieldError::forbidden(at, too_dear(what, cost, RULE_LIMIT)));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= SCHEMA_LIMIT / 100 {
            self.dearest.push((at.clone(), cost));
        }
    }

    /// The whole rule is shown as what is wrong.
    fn invalid(&mut self, at: Path, rule: &Object, detail: String) {
        let text = |key: &str| api::field::escaped(&Value::from(rule.text(&[key])).to_string());
        let or_null = |key: &str| rule.get(key).cloned().unwrap_or(Value::Null);
        let value = format!(
            "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
            text("rule"),
            text("message"),
            text("messageExpression"),
            or_null("reason"),
            text("fieldPath"),
            or_null("optionalOldSelf"),
        );
        self.errors.push(FieldError { kind: ErrorKind::Invalid, field: at.to_string(), value, detail });
    }
}

#[expect(clippy::cast_precision_loss, reason = "only a rough factor is told")]
fn too_dear(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}
