//! Evaluates a program, counting what it costs.
//!
//! Invariants: errors are values that `&&`, `||` and the quantifiers may absorb, but running out of budget is not; nothing
//! is evaluated after the budget is gone.

use crate::cost;
use crate::error::{EvalError, no_such_overload};
use crate::functions::{arithmetic, convert, lists};
use crate::library::Args;
use crate::plan::{Attribute, Call, Const, FoldNode, Key, Node, Root, Step};
use crate::value::{List, Map, Value};

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// What came out, and what it cost.
pub struct Evaluated<'a> {
    pub result: Result<Value<'a>, EvalError>,
    pub cost: u64,
}

pub(crate) fn eval<'a>(node: &'a Node, slots: usize, variables: &[Option<Value<'a>>], limit: u64) -> Evaluated<'a> {
    let mut locals = Vec::new();
    locals.resize_with(slots, || Local::Unset);
    let mut evaluation = Evaluation { variables, locals, cost: 0, limit };
    let result = evaluation.node(node);
    Evaluated { result, cost: evaluation.cost }
}

enum Local<'a> {
    Unset,
    /// Bound to an expression nobody has asked for yet.
    Later(&'a Node),
    Now(Outcome<'a>),
}

struct Evaluation<'a, 'v> {
    variables: &'v [Option<Value<'a>>],
    locals: Vec<Local<'a>>,
    cost: u64,
    limit: u64,
}

impl<'a> Evaluation<'a, '_> {
    fn charge(&mut self, units: u64) -> Result<(), EvalError> {
        self.cost = self.cost.saturating_add(units);
        if self.cost > self.limit { Err(EvalError::CostLimit) } else { Ok(()) }
    }

    fn node(&mut self, node: &'a Node) -> Outcome<'a> {
        match node {
            Node::Const(constant) => Ok(Value::from(constant)),
            Node::Attribute(attribute) => self.attribute(attribute),
            Node::Call(call) => self.call(call),
            Node::And(sides) => self.logical(sides, false),
            Node::Or(sides) => self.logical(sides, true),
            Node::Equal { sides, wanted } => self.equal(sides, *wanted),
            Node::NotStrictlyFalse(inner) => self.not_strictly_false(inner),
            Node::OptionalOr { sides, unwrap } => self.optional_or(sides, *unwrap),
            Node::InSet(wanted, set) => self.in_set(wanted, set),
            Node::List(elements) => self.list(elements),
            Node::Map(entries) => self.map(entries),
            Node::Struct(name, fields) => self.message(name, fields),
            Node::Fold(fold) => self.fold(fold),
            Node::Grow { slot, insert, with } => self.grow(*slot, *insert, with),
        }
    }

    /// `&&` ends at `false`, `||` at `true`; an error counts only if the other side does not decide.
    #[inline(never)]
    fn logical(&mut self, sides: &'a [Node; 2], end: bool) -> Outcome<'a> {
        let mut failure = None;
        for side in sides {
            match self.node(side) {
                Ok(Value::Bool(value)) if value == end => return Ok(Value::Bool(end)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failure = failure.or(Some(no_such_overload())),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(Value::Bool(!end)), Err)
    }

    #[inline(never)]
    fn equal(&mut self, sides: &'a [Node; 2], wanted: bool) -> Outcome<'a> {
        let [a, b] = sides;
        let (a, b) = (self.node(a), self.node(b));
        let units = match (&a, &b) {
            (Ok(a), Ok(b)) => cost::equality(a, b),
            (Err(error), _) | (_, Err(error)) if error.is_final() => return Err(error.clone()),
            _ => 1,
        };
        self.charge(units)?;
        Ok(Value::Bool(a?.equals(&b?) == wanted))
    }

    fn not_strictly_false(&mut self, inner: &'a Node) -> Outcome<'a> {
        let value = self.node(inner);
        self.charge(cost::SELECT)?;
        match value {
            Err(error) if error.is_final() => Err(error),
            Ok(Value::Bool(false)) => Ok(Value::Bool(false)),
            _ => Ok(Value::Bool(true)),
        }
    }

    #[inline(never)]
    fn optional_or(&mut self, sides: &'a [Node; 2], unwrap: bool) -> Outcome<'a> {
        let [first, second] = sides;
        match self.node(first)? {
            Value::Optional(None) => self.node(second),
            Value::Optional(Some(value)) if unwrap => Ok((*value).clone()),
            other => Ok(other),
        }
    }

    #[inline(never)]
    fn in_set(&mut self, wanted: &'a Node, set: &'a [Const]) -> Outcome<'a> {
        let wanted = self.node(wanted)?;
        Ok(Value::Bool(set.iter().any(|known| Value::from(known).equals(&wanted))))
    }

    #[inline(never)]
    fn call(&mut self, call: &'a Call) -> Outcome<'a> {
        match call.args.as_slice() {
            [] => self.perform(call, &[], None),
            [a] => {
                let (a, failure) = self.argument(a)?;
                self.perform(call, &[a], failure)
            }
            [a, b] => {
                let (a, first) = self.argument(a)?;
                let (b, second) = self.argument(b)?;
                self.perform(call, &[a, b], first.or(second))
            }
            many => {
                let values = many.iter().map(|arg| self.node(arg)).collect::<Result<Vec<_>, _>>()?;
                self.perform(call, &values, None)
            }
        }
    }

    /// An argument that fails does not keep the other from being evaluated, and costs like any.
    fn argument(&mut self, node: &'a Node) -> Result<(Value<'a>, Option<EvalError>), EvalError> {
        match self.node(node) {
            Ok(value) => Ok((value, None)),
            Err(error) if error.is_final() => Err(error),
            Err(error) => Ok((Value::Null, Some(error))),
        }
    }

    #[inline(never)]
    fn perform(&mut self, call: &'a Call, values: &[Value<'a>], failure: Option<EvalError>) -> Outcome<'a> {
        let function = call.function;
        if let Some(failure) = failure {
            self.charge(cost::call(function.name, call.overload, values, None))?;
            return Err(failure);
        }
        let result = (function.perform)(&Args { function: function.name, values, regex: call.regex.as_ref() });
        self.charge(cost::call(function.name, call.overload, values, result.as_ref().ok()))?;
        result
    }

    #[inline(never)]
    fn list(&mut self, elements: &'a [(bool, Node)]) -> Outcome<'a> {
        let values = self.elements(elements);
        if !matches!(&values, Err(error) if error.is_final()) {
            self.charge(cost::LIST)?;
        }
        values.map(Value::list)
    }

    fn elements(&mut self, elements: &'a [(bool, Node)]) -> Result<Vec<Value<'a>>, EvalError> {
        let mut values = Vec::with_capacity(elements.len());
        for (optional, node) in elements {
            let value = self.node(node)?;
            match value {
                Value::Optional(None) if *optional => {}
                Value::Optional(Some(value)) if *optional => values.push((*value).clone()),
                other if *optional => {
                    let given = other.type_name();
                    return Err(EvalError::new(format!(
                        "cannot initialize optional list element from non-optional value {given}"
                    )));
                }
                value => values.push(value),
            }
        }
        Ok(values)
    }

    #[inline(never)]
    fn map(&mut self, entries: &'a [(bool, Node, Node)]) -> Outcome<'a> {
        let mut values = Vec::with_capacity(entries.len());
        for (optional, key, value) in entries {
            let key = self.node(key)?;
            let value = self.node(value)?;
            match present(*optional, value)? {
                Some(value) => values.push((key, value)),
                None => values.retain(|(known, _): &(Value<'_>, _)| !known.equals(&key)),
            }
        }
        self.charge(cost::MAP)?;
        lists::map_of(values)
    }

    #[inline(never)]
    fn message(&mut self, name: &'a str, fields: &'a [(bool, Const, Node)]) -> Outcome<'a> {
        let mut values = Vec::with_capacity(fields.len());
        for (optional, name, value) in fields {
            let value = self.node(value)?;
            if let Some(value) = present(*optional, value)? {
                values.push((Value::from(name), value));
            }
        }
        self.charge(cost::STRUCT)?;
        match lists::map_of(values)? {
            Value::Map(Map::Values(fields)) => Ok(Value::Map(Map::Struct(name, fields))),
            other => Ok(other),
        }
    }

    #[inline(never)]
    fn fold(&mut self, fold: &'a FoldNode) -> Outcome<'a> {
        if fold.bind {
            self.set(fold.accu, Local::Later(&fold.init));
            return self.node(&fold.result);
        }
        let range = self.node(&fold.range)?;
        let init = self.node(&fold.init);
        self.set(fold.accu, Local::Now(init));
        match &range {
            Value::List(list) => {
                for index in 0..list.len() {
                    let Some(value) = list.get(index) else { break };
                    let first = match fold.var2 {
                        None => value,
                        Some(second) => {
                            self.set(second, Local::Now(Ok(value)));
                            Value::Int(i64::try_from(index).unwrap_or(i64::MAX))
                        }
                    };
                    if !self.iterate(fold, first)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for key in map.keys() {
                    if let Some(second) = fold.var2 {
                        let value = map.find(&key)?.ok_or_else(no_such_overload)?;
                        self.set(second, Local::Now(Ok(value)));
                    }
                    if !self.iterate(fold, key)? {
                        break;
                    }
                }
            }
            other => {
                let given = go_type(other);
                return Err(EvalError::new(format!("got '{given}', expected iterable type")));
            }
        }
        self.node(&fold.result)
    }

    /// One round; whether there may be another.
    fn iterate(&mut self, fold: &'a FoldNode, value: Value<'a>) -> Result<bool, EvalError> {
        self.set(fold.var, Local::Now(Ok(value)));
        match self.node(&fold.condition) {
            Ok(Value::Bool(false)) => return Ok(false),
            Err(error) if error.is_final() => return Err(error),
            _ => {}
        }
        let next = self.node(&fold.step);
        if let Err(error) = &next
            && error.is_final()
        {
            return Err(error.clone());
        }
        self.set(fold.accu, Local::Now(next));
        Ok(true)
    }

    fn set(&mut self, slot: usize, local: Local<'a>) {
        if let Some(place) = self.locals.get_mut(slot) {
            *place = local;
        }
    }

    #[inline(never)]
    fn local(&mut self, slot: usize) -> Outcome<'a> {
        match self.locals.get(slot) {
            Some(Local::Now(value)) => value.clone(),
            Some(Local::Later(node)) => {
                let node = *node;
                let value = self.node(node);
                self.set(slot, Local::Now(value.clone()));
                value
            }
            _ => Err(EvalError::new("no such attribute(s): @local")),
        }
    }

    /// The accumulator is taken out of its slot, so that nobody else holds it while it grows.
    #[inline(never)]
    fn grow(&mut self, slot: usize, insert: bool, with: &'a [Node]) -> Outcome<'a> {
        self.charge(cost::SELECT)?;
        let taken = self.locals.get_mut(slot).map(|local| std::mem::replace(local, Local::Unset));
        let mut values = Vec::with_capacity(with.len());
        let mut failure = None;
        for node in with {
            match self.argument(node)? {
                (_, Some(error)) => failure = failure.or(Some(error)),
                (value, None) => values.push(value),
            }
        }
        self.charge(1)?;
        let accu = match taken {
            Some(Local::Now(accu)) => accu?,
            _ => return Err(no_such_overload()),
        };
        if let Some(failure) = failure {
            return Err(failure);
        }
        if insert {
            return lists::insert_into(accu, &values);
        }
        let more = values.pop().ok_or_else(no_such_overload)?;
        arithmetic::append(accu, more)
            .or_else(|(accu, more)| arithmetic::add(&Args { function: "_+_", values: &[accu, more], regex: None }))
    }

    #[inline(never)]
    fn attribute(&mut self, attribute: &'a Attribute) -> Outcome<'a> {
        let value = self.resolve(attribute);
        if matches!(&value, Err(error) if error.is_final()) {
            return value;
        }
        // A choice costs nothing itself, nor does asking whether a field is there.
        match (matches!(attribute.root, Root::Choice(_)), attribute.test) {
            (false, false) => self.charge(cost::SELECT)?,
            (true, true) => self.cost = self.cost.saturating_sub(cost::SELECT),
            _ => {}
        }
        value
    }

    /// The value of an attribute without the cost of being one.
    fn resolve(&mut self, attribute: &'a Attribute) -> Outcome<'a> {
        let root = match &attribute.root {
            Root::Variable(index) => {
                let value = self.variables.get(*index).and_then(Clone::clone);
                value.ok_or_else(|| EvalError::new("no such attribute(s)"))?
            }
            Root::Local(slot) => self.local(*slot)?,
            Root::Value(node) => self.node(node)?,
            Root::Choice(choice) => self.choose(choice)?,
        };
        self.walk(root, attribute)
    }

    fn choose(&mut self, choice: &'a [Node; 3]) -> Outcome<'a> {
        let [condition, yes, no] = choice;
        let branch = match self.node(condition)? {
            Value::Bool(true) => yes,
            Value::Bool(false) => no,
            _ => return Err(no_such_overload()),
        };
        match branch {
            Node::Attribute(attribute) if !attribute.test => self.resolve(attribute),
            other => self.node(other),
        }
    }

    fn walk(&mut self, root: Value<'a>, attribute: &'a Attribute) -> Outcome<'a> {
        if attribute.steps.is_empty() {
            return Ok(root);
        }
        let (mut value, mut optional) = match root {
            Value::Optional(None) if attribute.test => return Ok(Value::Bool(false)),
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(value)) => ((*value).clone(), true),
            value => (value, false),
        };
        let last = attribute.steps.len() - 1;
        for (index, step) in attribute.steps.iter().enumerate() {
            let test = attribute.test && index == last;
            optional |= step.optional;
            let key = self.key(step)?;
            let found = select(&value, &key, optional || test);
            if test || !optional || !matches!(found, Ok(None)) {
                self.charge(cost::SELECT)?;
            }
            let found = found?;
            if test {
                return Ok(Value::Bool(found.is_some()));
            }
            match found {
                Some(found) => value = found,
                None => return Ok(Value::Optional(None)),
            }
        }
        Ok(if optional { Value::some(value) } else { value })
    }

    fn key(&mut self, step: &'a Step) -> Outcome<'a> {
        match &step.key {
            Key::Const(constant) => Ok(Value::from(constant)),
            Key::Computed(Node::Attribute(attribute)) => self.resolve(attribute),
            Key::Computed(node) => self.node(node),
        }
    }
}

fn present<'a>(optional: bool, value: Value<'a>) -> Result<Option<Value<'a>>, EvalError> {
    match value {
        Value::Optional(value) if optional => Ok(value.map(|value| (*value).clone())),
        other if optional => {
            let given = other.type_name();
            Err(EvalError::new(format!("cannot initialize optional entry from non-optional value {given}")))
        }
        value => Ok(Some(value)),
    }
}

/// What is under a key of a value. `None` only if that may be; otherwise an error says what is missing.
fn select<'a>(value: &Value<'a>, key: &Value<'a>, may_miss: bool) -> Result<Option<Value<'a>>, EvalError> {
    let found = match value {
        Value::Map(map) => map.find(key)?,
        Value::List(list) => return index(list, key, may_miss),
        Value::Lazy(fields) => match key {
            Value::String(name) => fields.get(name).transpose()?,
            _ => None,
        },
        _ => None,
    };
    match found {
        None if !may_miss => Err(EvalError::new(format!("no such key: {}", show(key)))),
        found => Ok(found),
    }
}

fn index<'a>(list: &List<'a>, key: &Value<'a>, may_miss: bool) -> Result<Option<Value<'a>>, EvalError> {
    #[expect(clippy::cast_possible_truncation, reason = "only whole numbers that are small enough get here")]
    let place = match key {
        Value::Int(index) => Some(*index),
        Value::Uint(index) => i64::try_from(*index).ok(),
        Value::Double(index) if index.fract() == 0.0 && index.abs() < 9e15 => Some(*index as i64),
        Value::Double(_) => {
            return Err(EvalError::new(format!("unsupported index value {} in list", show(key))));
        }
        other => {
            return Err(EvalError::new(format!("unsupported index type '{}' in list", other.type_name())));
        }
    };
    let found = place.and_then(|place| usize::try_from(place).ok()).and_then(|place| list.get(place));
    match found {
        None if !may_miss => Err(EvalError::new(format!("index out of bounds: {}", show(key)))),
        found => Ok(found),
    }
}

fn show(value: &Value<'_>) -> String {
    convert::show(value).and_then(Result::ok).unwrap_or_else(|| value.type_name().to_owned())
}

/// The name of a value's type in messages that upstream's users know.
fn go_type(value: &Value<'_>) -> &'static str {
    match value {
        Value::Null => "types.Null",
        Value::Bool(_) => "types.Bool",
        Value::Int(_) => "types.Int",
        Value::Uint(_) => "types.Uint",
        Value::Double(_) => "types.Double",
        Value::String(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Timestamp(_) => "types.Timestamp",
        Value::Duration(_) => "types.Duration",
        Value::Optional(_) => "*types.Optional",
        _ => "ref.Val",
    }
}
