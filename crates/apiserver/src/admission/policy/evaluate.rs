//! Evaluates the expressions of one policy on one request, within its budget.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use api::Object;
use cel::authorizer::Check;
use cel::policy::{Compiled, VARIABLES, place};
use cel::{Asker, EvalError, Fields, Map, Opaque, PER_CALL_LIMIT, Value};
use serde_json::Value as Json;

use super::definition::Expression;
use super::request::Answers;

/// What all expressions of a policy may cost together on one request; its conditions have a budget of their own.
pub(super) const BUDGET: u64 = 10_000_000;
const CONDITIONS_BUDGET: u64 = PER_CALL_LIMIT / 4;
/// How deep variables may refer to others: each is evaluated within the one that asks for it.
const DEEPEST: u32 = 64;

#[derive(Debug, thiserror::Error)]
#[error("validation failed due to running out of cost budget, no further validation rules will be run")]
pub(super) struct OutOfBudget;

/// What the expressions see.
pub(crate) struct Inputs<'a> {
    pub(crate) object: Option<&'a Object>,
    pub(crate) old: Option<&'a Object>,
    pub(crate) namespace: Option<&'a Json>,
    pub(crate) request: &'a Json,
    pub(crate) params: Option<&'a Object>,
    pub(crate) answers: &'a Answers,
    pub(crate) resource: Check,
    pub(crate) variables: &'a [(String, Compiled)],
}

/// Expressions that share variables and a budget.
pub(super) struct Session<'a> {
    values: Vec<Option<Value<'a>>>,
    variables: Rc<Variables<'a>>,
    budget: u64,
}

struct Variables<'a> {
    compiled: &'a [(String, Compiled)],
    inputs: Vec<Option<Value<'a>>>,
    known: RefCell<Vec<Option<Result<Value<'a>, EvalError>>>>,
    /// What evaluating them cost since somebody last looked.
    cost: Cell<u64>,
    depth: Cell<u32>,
    this: Weak<Variables<'a>>,
}

fn object(object: Option<&Object>) -> Value<'_> {
    object.map_or(Value::Null, |object| Value::Map(Map::Json(object, None)))
}

impl<'a> Session<'a> {
    pub(super) fn new(inputs: &Inputs<'a>, budget: u64) -> Self {
        Self::with(inputs, inputs.namespace, budget)
    }

    /// Conditions do not see the namespace.
    fn of_conditions(inputs: &Inputs<'a>) -> Self {
        Self::with(inputs, None, CONDITIONS_BUDGET)
    }

    fn with(inputs: &Inputs<'a>, namespace: Option<&'a Json>, budget: u64) -> Self {
        let asker = || Asker { authorizer: inputs.answers, service_account: None };
        let mut values: Vec<Option<Value<'a>>> = Vec::new();
        values.resize_with(place::COUNT, || None);
        let given = [
            (place::OBJECT, object(inputs.object)),
            (place::OLD_OBJECT, object(inputs.old)),
            (place::NAMESPACE, namespace.map_or(Value::Null, Value::json)),
            (place::REQUEST, Value::json(inputs.request)),
            (place::PARAMS, object(inputs.params)),
            (place::AUTHORIZER, Value::opaque(Opaque::Authorizer(asker()))),
            (place::RESOURCE, Value::opaque(Opaque::ResourceCheck(asker(), inputs.resource.clone()))),
        ];
        for (place, value) in given {
            if let Some(slot) = values.get_mut(place) {
                *slot = Some(value);
            }
        }
        let mut known = Vec::new();
        known.resize_with(inputs.variables.len(), || None);
        let variables = Rc::new_cyclic(|this| Variables {
            compiled: inputs.variables,
            inputs: values.clone(),
            known: RefCell::new(known),
            cost: Cell::new(0),
            depth: Cell::new(0),
            this: this.clone(),
        });
        if let Some(slot) = values.get_mut(place::VARIABLES) {
            *slot = Some(Value::Lazy(variables.clone()));
        }
        Self { values, variables, budget }
    }

    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    /// The value of an expression, or why it has none; an error ends the whole policy.
    pub(super) fn run(&mut self, expression: &'a Expression) -> Result<Result<Value<'a>, String>, OutOfBudget> {
        let program = match &expression.compiled {
            Ok(program) => program,
            Err(failure) => return Ok(Err(format!("compilation error: {failure}"))),
        };
        let evaluated = program.eval(&self.values, PER_CALL_LIMIT);
        let spent = self.variables.cost.take().saturating_add(evaluated.cost);
        self.budget = self.budget.checked_sub(spent).ok_or(OutOfBudget)?;
        let text = &expression.text;
        Ok(evaluated.result.map_err(|error| format!("expression '{text}' resulted in error: {error}")))
    }
}

impl<'a> Fields<'a> for Variables<'a> {
    fn get(&self, name: &str) -> Option<Result<Value<'a>, EvalError>> {
        let index = self.compiled.iter().position(|(known, _)| known == name)?;
        if let Some(Some(known)) = self.known.borrow().get(index) {
            return Some(known.clone());
        }
        let (_, compiled) = self.compiled.get(index)?;
        let value = self.compute(name, compiled);
        if let Some(slot) = self.known.borrow_mut().get_mut(index) {
            *slot = Some(value.clone());
        }
        Some(value)
    }

    fn type_name(&self) -> &str {
        VARIABLES
    }
}

impl<'a> Variables<'a> {
    fn compute(&self, name: &str, compiled: &'a Compiled) -> Result<Value<'a>, EvalError> {
        let program = compiled
            .as_ref()
            .map_err(|failure| EvalError::new(format!("composited variable {name:?} fails to compile: {failure}")))?;
        if self.depth.get() >= DEEPEST {
            return Err(EvalError::new(format!("composited variable {name:?} refers to too many others")));
        }
        let mut inputs = self.inputs.clone();
        if let (Some(slot), Some(this)) = (inputs.get_mut(place::VARIABLES), self.this.upgrade()) {
            *slot = Some(Value::Lazy(this));
        }
        self.depth.set(self.depth.get() + 1);
        let evaluated = program.eval(&inputs, PER_CALL_LIMIT);
        self.depth.set(self.depth.get() - 1);
        self.cost.set(self.cost.get().saturating_add(evaluated.cost));
        evaluated
            .result
            .map_err(|error| EvalError::new(format!("composited variable {name:?} fails to evaluate: {error}")))
    }
}

/// Whether all conditions hold. One that is false decides; otherwise one that fails is an error, or does not hold where
/// failures are ignored.
pub(crate) fn conditions_hold<'a>(
    conditions: &'a [Expression],
    inputs: &Inputs<'a>,
    ignores_failure: bool,
) -> Result<bool, String> {
    if conditions.is_empty() {
        return Ok(true);
    }
    let mut session = Session::of_conditions(inputs);
    let mut failures: Vec<String> = Vec::new();
    let mut holds = true;
    for condition in conditions {
        match session.run(condition) {
            Ok(Ok(value)) => holds &= value.as_bool() != Some(false),
            Ok(Err(failure)) => failures.push(failure),
            Err(error) if ignores_failure => {
                tracing::debug!(%error, "conditions not evaluated");
                return Ok(false);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    failures.dedup();
    match (holds, failures.as_slice()) {
        (false, _) => Ok(false),
        (true, []) => Ok(true),
        (true, _) if ignores_failure => Ok(false),
        (true, [one]) => Err(one.clone()),
        (true, many) => Err(format!("[{}]", many.join(", "))),
    }
}
