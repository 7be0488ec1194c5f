//! The checked tree made ready for evaluation: names are slots, calls are functions, constants are computed.

use std::sync::Arc;

use regex::Regex;

use crate::Program;
use crate::ast::{Element, Entry, Expr, Field, Fold, Kind, Literal};
use crate::checker::{Checked, Name, Resolved};
use crate::error::EvalError;
use crate::eval;
use crate::functions::strings;
use crate::library::Function;
use crate::time::Time;
use crate::validate::runtime_name;
use crate::value::{List, Map, Value, key_order};

pub(crate) enum Node {
    Const(Const),
    Attribute(Box<Attribute>),
    Call(Box<Call>),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    /// `==`, or `!=` if not `wanted`.
    Equal {
        sides: Box<[Node; 2]>,
        wanted: bool,
    },
    NotStrictlyFalse(Box<Node>),
    /// `or` and `orValue`.
    OptionalOr {
        sides: Box<[Node; 2]>,
        unwrap: bool,
    },
    /// `in` a list of constants.
    InSet(Box<Node>, Arc<[Const]>),
    List(Vec<(bool, Node)>),
    Map(Vec<(bool, Node, Node)>),
    Struct(Arc<str>, Vec<(bool, Const, Node)>),
    Fold(Box<FoldNode>),
    /// `accu + list` and `insert(accu, …)`: the accumulator is changed in place.
    Grow {
        slot: usize,
        insert: bool,
        with: Vec<Node>,
    },
}

/// A variable or a value, and what is selected from it.
pub(crate) struct Attribute {
    pub(crate) root: Root,
    pub(crate) steps: Vec<Step>,
    /// The last step only asks whether it is there.
    pub(crate) test: bool,
}

pub(crate) enum Root {
    Variable(usize),
    Local(usize),
    Value(Node),
    Choice(Box<[Node; 3]>),
}

pub(crate) struct Step {
    pub(crate) optional: bool,
    pub(crate) key: Key,
}

pub(crate) enum Key {
    Const(Const),
    Computed(Node),
}

pub(crate) struct Call {
    pub(crate) function: &'static Function,
    /// Empty if the types alone did not decide.
    pub(crate) overload: &'static str,
    pub(crate) args: Vec<Node>,
    pub(crate) regex: Option<Regex>,
}

pub(crate) struct FoldNode {
    pub(crate) range: Node,
    pub(crate) var: usize,
    pub(crate) var2: Option<usize>,
    pub(crate) accu: usize,
    pub(crate) init: Node,
    pub(crate) condition: Node,
    pub(crate) step: Node,
    pub(crate) result: Node,
    pub(crate) bind: bool,
}

/// A value that can be shared between threads.
#[derive(Clone, Debug)]
pub enum Const {
    Literal(Literal),
    Timestamp(Time),
    Duration(i64),
    Type(Arc<str>),
    List(Arc<[Const]>),
    /// In the order of the keys.
    Map(Arc<[(Const, Const)]>),
}

impl Const {
    /// `None` if the value is of a kind that is not kept as a constant.
    fn of(value: &Value<'_>) -> Option<Self> {
        Some(match value {
            Value::Null => Self::Literal(Literal::Null),
            Value::Bool(value) => Self::Literal(Literal::Bool(*value)),
            Value::Int(value) => Self::Literal(Literal::Int(*value)),
            Value::Uint(value) => Self::Literal(Literal::Uint(*value)),
            Value::Double(value) => Self::Literal(Literal::Double(*value)),
            Value::String(text) => Self::Literal(Literal::String((**text).into())),
            Value::Bytes(bytes) => Self::Literal(Literal::Bytes((**bytes).into())),
            Value::Timestamp(time) => Self::Timestamp(*time),
            Value::Duration(nanos) => Self::Duration(*nanos),
            Value::Type(name) => Self::Type((**name).into()),
            Value::List(list) => Self::List(list.iter().map(|item| Self::of(&item)).collect::<Option<_>>()?),
            Value::Map(map) => {
                let keys = map.keys();
                let entries = keys.iter().map(|key| Some((Self::of(key)?, Self::of(&map.find(key).ok()??)?)));
                Self::Map(entries.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }

    fn is_primitive(&self) -> bool {
        matches!(self, Self::Literal(literal) if !matches!(literal, Literal::Bytes(_) | Literal::Null))
    }
}

pub(crate) fn plan(expr: &Expr, checked: &Checked) -> Result<Program, EvalError> {
    let mut planner = Planner { checked, locals: Vec::new(), slots: 0, reads: Vec::new() };
    let root = planner.node(expr)?;
    let output = checked.type_of(expr).clone();
    Ok(Program { root, slots: planner.slots, reads: planner.reads, output })
}

struct Planner<'c> {
    checked: &'c Checked,
    locals: Vec<(Arc<str>, usize)>,
    slots: usize,
    reads: Vec<usize>,
}

impl Planner<'_> {
    fn node(&mut self, expr: &Expr) -> Result<Node, EvalError> {
        if let Some(name) = self.checked.names.get(&expr.id).filter(|_| !matches!(expr.kind, Kind::Struct { .. })) {
            return Ok(self.name(name));
        }
        match &expr.kind {
            Kind::Literal(literal) => Ok(Node::Const(Const::Literal(literal.clone()))),
            Kind::Select { operand, field, test } => {
                let key = Key::Const(Const::Literal(Literal::String(field.clone())));
                self.step(operand, Step { optional: false, key }, *test)
            }
            Kind::Call { target, args, .. } => self.call(expr, target.as_deref(), args),
            Kind::List(elements) => self.list(elements),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { fields, .. } => self.message(expr, fields),
            Kind::Fold(fold) => self.fold(fold),
            Kind::Ident(name) => Err(EvalError::new(format!("no such attribute(s): {name}"))),
        }
    }

    fn list(&mut self, elements: &[Element]) -> Result<Node, EvalError> {
        let mut nodes = Vec::with_capacity(elements.len());
        for element in elements {
            nodes.push((element.optional, self.node(&element.value)?));
        }
        let constant = nodes.iter().all(|(optional, node)| !optional && matches!(node, Node::Const(_)));
        folded(Node::List(nodes), constant)
    }

    fn map(&mut self, entries: &[Entry]) -> Result<Node, EvalError> {
        let mut nodes = Vec::with_capacity(entries.len());
        for entry in entries {
            let key = self.node(&entry.key)?;
            nodes.push((entry.optional, key, self.node(&entry.value)?));
        }
        let constant = nodes
            .iter()
            .all(|(optional, key, value)| !optional && matches!((key, value), (Node::Const(_), Node::Const(_))));
        folded(Node::Map(nodes), constant)
    }

    fn message(&mut self, expr: &Expr, fields: &[Field]) -> Result<Node, EvalError> {
        let mut nodes = Vec::with_capacity(fields.len());
        for field in fields {
            let name = Const::Literal(Literal::String(field.name.clone()));
            nodes.push((field.optional, name, self.node(&field.value)?));
        }
        Ok(Node::Struct(self.checked.type_of(expr).to_string().into(), nodes))
    }

    fn name(&mut self, name: &Name) -> Node {
        let root = match name {
            Name::Type(t) => return Node::Const(Const::Type(runtime_name(t).into())),
            Name::Variable(index) => {
                if !self.reads.contains(index) {
                    self.reads.push(*index);
                }
                Root::Variable(*index)
            }
            Name::Local(name) => Root::Local(self.slot(name)),
        };
        Node::Attribute(Box::new(Attribute { root, steps: Vec::new(), test: false }))
    }

    fn slot(&self, name: &str) -> usize {
        self.locals.iter().rev().find(|(known, _)| &**known == name).map_or(usize::MAX, |(_, slot)| *slot)
    }

    /// A selection continues the attribute it is made on.
    fn step(&mut self, operand: &Expr, step: Step, test: bool) -> Result<Node, EvalError> {
        let mut attribute = match self.node(operand)? {
            Node::Attribute(attribute) if !attribute.test => attribute,
            other => Box::new(Attribute { root: Root::Value(other), steps: Vec::new(), test: false }),
        };
        attribute.steps.push(step);
        attribute.test = test;
        Ok(Node::Attribute(attribute))
    }

    fn pair(&mut self, a: &Expr, b: &Expr) -> Result<Box<[Node; 2]>, EvalError> {
        Ok(Box::new([self.node(a)?, self.node(b)?]))
    }

    fn call(&mut self, expr: &Expr, target: Option<&Expr>, args: &[Expr]) -> Result<Node, EvalError> {
        let Some(resolved) = self.checked.calls.get(&expr.id) else {
            return Err(EvalError::new("no such overload"));
        };
        let target = target.filter(|_| !resolved.namespaced);
        let all: Vec<&Expr> = target.into_iter().chain(args).collect();
        match (resolved.function.name, all.as_slice()) {
            ("_&&_", [a, b]) => Ok(Node::And(self.pair(a, b)?)),
            ("_||_", [a, b]) => Ok(Node::Or(self.pair(a, b)?)),
            ("_==_", [a, b]) => Ok(Node::Equal { sides: self.pair(a, b)?, wanted: true }),
            ("_!=_", [a, b]) => Ok(Node::Equal { sides: self.pair(a, b)?, wanted: false }),
            ("or", [a, b]) => Ok(Node::OptionalOr { sides: self.pair(a, b)?, unwrap: false }),
            ("orValue", [a, b]) => Ok(Node::OptionalOr { sides: self.pair(a, b)?, unwrap: true }),
            ("@not_strictly_false", [a]) => Ok(Node::NotStrictlyFalse(Box::new(self.node(a)?))),
            ("_?_:_", [condition, yes, no]) => {
                let choice = Box::new([self.node(condition)?, self.node(yes)?, self.node(no)?]);
                let root = Root::Choice(choice);
                Ok(Node::Attribute(Box::new(Attribute { root, steps: Vec::new(), test: false })))
            }
            (name @ ("_[_]" | "_[?_]" | "_?._"), [operand, index]) => {
                let key = match self.node(index)? {
                    Node::Const(constant) => Key::Const(constant),
                    computed => Key::Computed(computed),
                };
                self.step(operand, Step { optional: name != "_[_]", key }, false)
            }
            (name @ ("_+_" | "cel.@mapInsert"), [first, rest @ ..]) if self.is_accumulator(first) => {
                let with = rest.iter().map(|arg| self.node(arg)).collect::<Result<Vec<_>, _>>()?;
                match (&first.kind, resolved.overloads.as_slice()) {
                    (Kind::Ident(accu), ["add_list"]) => Ok(Node::Grow { slot: self.slot(accu), insert: false, with }),
                    (Kind::Ident(accu), _) if name != "_+_" => {
                        Ok(Node::Grow { slot: self.slot(accu), insert: true, with })
                    }
                    _ => self.plain(resolved, &all),
                }
            }
            _ => self.plain(resolved, &all),
        }
    }

    fn is_accumulator(&self, expr: &Expr) -> bool {
        matches!(&expr.kind, Kind::Ident(name) if &**name == "@result")
    }

    fn plain(&mut self, resolved: &Resolved, args: &[&Expr]) -> Result<Node, EvalError> {
        const CONVERSIONS: [&str; 10] =
            ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];
        let function = resolved.function;
        let args = args.iter().map(|arg| self.node(arg)).collect::<Result<Vec<_>, _>>()?;
        let overload = match resolved.overloads.as_slice() {
            [one] => one,
            _ => "",
        };
        if let ("in_list", [_, Node::Const(Const::List(list))]) = (overload, args.as_slice()) {
            if list.is_empty() {
                return Ok(Node::Const(Const::Literal(Literal::Bool(false))));
            }
            if list.iter().all(Const::is_primitive) {
                let list = list.clone();
                if let Some(wanted) = args.into_iter().next() {
                    return Ok(Node::InSet(Box::new(wanted), list));
                }
                return Err(EvalError::new("no such overload"));
            }
        }
        let regex = match (function.name, args.get(1)) {
            ("matches" | "find" | "findAll", Some(Node::Const(Const::Literal(Literal::String(pattern))))) => {
                Some(strings::compile(pattern)?)
            }
            _ => None,
        };
        let constant = CONVERSIONS.contains(&function.name) && matches!(args.as_slice(), [Node::Const(_)]);
        folded(Node::Call(Box::new(Call { function, overload, args, regex })), constant)
    }

    fn fold(&mut self, fold: &Fold) -> Result<Node, EvalError> {
        let bind = fold.is_bind();
        let range = self.node(&fold.range)?;
        let init = self.node(&fold.init)?;
        let outside = self.locals.len();
        let accu = self.local(&fold.accu);
        let var = self.local(&fold.var);
        let var2 = fold.var2.as_ref().map(|var2| self.local(var2));
        let condition = self.node(&fold.condition)?;
        let step = self.node(&fold.step)?;
        self.locals.truncate(outside + 1);
        let result = self.node(&fold.result)?;
        self.locals.truncate(outside);
        Ok(Node::Fold(Box::new(FoldNode { range, var, var2, accu, init, condition, step, result, bind })))
    }

    /// Every local of the program has a slot of its own, so that a value bound late can be computed at any time.
    fn local(&mut self, name: &Arc<str>) -> usize {
        self.slots += 1;
        self.locals.push((name.clone(), self.slots - 1));
        self.slots - 1
    }
}

/// Computes what is constant now. It costs nothing later, and what fails, fails now.
fn folded(node: Node, constant: bool) -> Result<Node, EvalError> {
    if !constant {
        return Ok(node);
    }
    let value = eval::eval(&node, 0, &[], u64::MAX).result?;
    let folded = Const::of(&value);
    drop(value);
    Ok(folded.map_or(node, Node::Const))
}

impl<'a> From<&'a Const> for Value<'a> {
    fn from(constant: &'a Const) -> Self {
        use crate::value::Str;
        match constant {
            Const::Literal(Literal::Null) => Self::Null,
            Const::Literal(Literal::Bool(value)) => Self::Bool(*value),
            Const::Literal(Literal::Int(value)) => Self::Int(*value),
            Const::Literal(Literal::Uint(value)) => Self::Uint(*value),
            Const::Literal(Literal::Double(value)) => Self::Double(*value),
            Const::Literal(Literal::String(text)) => Self::String(Str::Borrowed(text)),
            Const::Literal(Literal::Bytes(bytes)) => Self::Bytes((&**bytes).into()),
            Const::Timestamp(time) => Self::Timestamp(*time),
            Const::Duration(nanos) => Self::Duration(*nanos),
            Const::Type(name) => Self::Type(Str::Borrowed(name)),
            Const::List(items) => Self::List(List::Consts(items)),
            Const::Map(entries) => Self::Map(Map::Consts(entries)),
        }
    }
}

/// The value under a key of a constant map.
pub(crate) fn lookup<'a>(entries: &'a [(Const, Const)], key: &Value<'_>) -> Option<Value<'a>> {
    let found = entries.binary_search_by(|(known, _)| key_order(&Value::from(known), key)).ok()?;
    entries.get(found).map(|(_, value)| Value::from(value))
}
