//! Puts an object to the rules of its schema.

use api::field::{FieldError, Path};
use cel::{EvalError, PER_CALL_LIMIT, Value as Seen};
use serde_json::Value;

use super::{Rule, Rules};

/// What all rules may cost together on one object.
const BUDGET: u64 = 10_000_000;
const LONGEST_MESSAGE: usize = 5 * 1024;
const SPENT: &str = "validation failed due to running out of cost budget, no further validation rules will be run";

impl Rules {
    /// What the object fails, and what it failed already as it was: that is only worth a warning.
    pub(crate) fn validate(&self, new: &Value, old: Option<&Value>) -> (Vec<FieldError>, Vec<FieldError>) {
        self.validate_at(&Path::default(), new, old)
    }

    /// The same of a part that is told of as `path`.
    pub(crate) fn validate_at(
        &self,
        path: &Path,
        new: &Value,
        old: Option<&Value>,
    ) -> (Vec<FieldError>, Vec<FieldError>) {
        let mut pass = Pass { errors: Vec::new(), warnings: Vec::new(), budget: BUDGET };
        // Running out of budget is among the errors.
        let _ = pass.place(self, path, new, old, Before { new, old });
        (pass.errors, pass.warnings)
    }
}

/// The nearest value that can be told to be the same as one before.
#[derive(Clone, Copy)]
struct Before<'v> {
    new: &'v Value,
    old: Option<&'v Value>,
}

/// The budget is gone.
struct Spent;

struct Pass {
    errors: Vec<FieldError>,
    warnings: Vec<FieldError>,
    budget: u64,
}

impl Pass {
    fn place<'v>(
        &mut self,
        rules: &Rules,
        path: &Path,
        new: &'v Value,
        old: Option<&'v Value>,
        before: Before<'v>,
    ) -> Result<(), Spent> {
        if new.is_null() {
            return Ok(());
        }
        let old = old.filter(|old| !old.is_null());
        for rule in &rules.here {
            self.rule(rules, rule, path, new, old, before)?;
        }
        for all in &rules.all_of {
            self.place(all, path, new, old, before)?;
        }
        match new {
            Value::Object(fields) => {
                let old = old.and_then(Value::as_object);
                for (name, value) in fields {
                    let was = old.and_then(|old| old.get(name));
                    let before = Before { new: value, old: was };
                    if let Some((_, inner)) = rules.properties.iter().find(|(known, _)| known == name) {
                        self.place(inner, &path.child(name), value, was, before)?;
                    } else if let Some(inner) = &rules.additional {
                        self.place(inner, &path.key(name), value, was, before)?;
                    }
                }
            }
            Value::Array(items) => {
                let Some(inner) = &rules.items else { return Ok(()) };
                let old = old.and_then(Value::as_array).filter(|_| !rules.keys.is_empty());
                for (index, value) in items.iter().enumerate() {
                    let same = |other: &&Value| rules.keys.iter().all(|key| other.get(key) == value.get(key));
                    let was = old.and_then(|old| old.iter().find(same));
                    let before = if rules.keys.is_empty() { before } else { Before { new: value, old: was } };
                    self.place(inner, &path.index(index), value, was, before)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn rule<'v>(
        &mut self,
        rules: &Rules,
        rule: &Rule,
        path: &Path,
        new: &'v Value,
        old: Option<&'v Value>,
        before: Before<'v>,
    ) -> Result<(), Spent> {
        let kind = rules.kind.as_str();
        let program = match &rule.program {
            Ok(program) => program,
            Err(error) => {
                let why = format!("rule compile error: compilation failed: {error}");
                self.errors.push(FieldError::invalid(path, kind, why));
                return Ok(());
            }
        };
        if rule.uses_old && old.is_none() && !rule.optional_old {
            return Ok(()); // It is about a change, and there was nothing before.
        }
        let seen = |value: &'v Value| Seen::typed(value, Some(&rules.schema));
        let was = match (rule.optional_old, old) {
            (true, None) => Some(Seen::Optional(None)),
            (true, Some(old)) => Some(Seen::some(seen(old))),
            (false, old) => old.map(seen),
        };
        let variables = [Some(seen(new)), was];
        let evaluated = program.eval(&variables, PER_CALL_LIMIT);
        self.budget = match self.budget.checked_sub(evaluated.cost) {
            Some(left) => left,
            None => {
                self.errors.push(FieldError::invalid(path, kind, SPENT));
                return Err(Spent);
            }
        };
        let told = rule.told();
        match evaluated.result {
            Ok(value) if value.as_bool() == Some(true) => return Ok(()),
            Ok(_) => {}
            Err(error @ EvalError::CostLimit) => {
                let why = format!(
                    "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {told}"
                );
                self.errors.push(FieldError::invalid(path, kind, why));
                return Err(Spent);
            }
            Err(error) if error.to_string().starts_with("no such overload") => {
                let why = format!(
                    "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {told}"
                );
                self.errors.push(FieldError::invalid(path, kind, why));
                return Ok(());
            }
            Err(error) => {
                self.errors.push(FieldError::invalid(path, kind, format!("{error} evaluating rule: {told}")));
                return Ok(());
            }
        }
        let detail = match self.message(rule, path, kind, &variables)? {
            Some(message) => message,
            None if rule.message.is_empty() => format!("failed rule: {told}"),
            None => rule.message.clone(),
        };
        let error = failure(rule, path, new, kind, detail);
        // What was wrong before and is as it was may stay.
        let ratcheted = !rule.uses_old && before.old == Some(before.new);
        if ratcheted {
            self.warnings.push(error)
        } else {
            self.errors.push(error)
        }
        Ok(())
    }

    /// What the message expression says, if it is fit to be told.
    fn message<'v>(
        &mut self,
        rule: &'v Rule,
        path: &Path,
        kind: &str,
        variables: &[Option<Seen<'v>>],
    ) -> Result<Option<String>, Spent> {
        let Some(program) = &rule.message_program else { return Ok(None) };
        let evaluated = program.eval(variables, PER_CALL_LIMIT);
        let Some(left) = self.budget.checked_sub(evaluated.cost) else {
            let why = "messageExpression evaluation failed due to running out of cost budget, no further validation rules \
                       will be run";
            self.errors.push(FieldError::invalid(path, kind, why));
            return Err(Spent);
        };
        self.budget = left;
        let value = match evaluated.result {
            Ok(value) => value,
            Err(error) => {
                tracing::debug!(%error, "message expression failed");
                return Ok(None);
            }
        };
        let text = value.as_str().unwrap_or_default().trim();
        let fit = !text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n');
        Ok(fit.then(|| text.to_owned()))
    }
}

fn failure(rule: &Rule, path: &Path, value: &Value, kind: &str, detail: String) -> FieldError {
    let path = match rule.field_path.as_str() {
        "" => path.into(),
        below => format!("{path}{below}").trim_start_matches('.').to_owned(),
    };
    match rule.reason.as_str() {
        "FieldValueForbidden" => FieldError::forbidden(path, detail),
        "FieldValueRequired" => FieldError::required(path, detail),
        reason => {
            let mut error = match reason {
                "FieldValueDuplicate" => FieldError::duplicate(path, value.clone()),
                _ => FieldError::invalid(path, value.clone(), detail),
            };
            if matches!(kind, "object" | "array") {
                error.value.clear(); // Too large to be told.
            }
            error
        }
    }
}
