//! What an expression can cost at least and at most, known from its text and from how large its inputs can be.
//!
//! Which rules a custom resource may have is decided by this: a difference from upstream would accept what it refuses.

mod calls;
mod range;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

pub use self::range::Estimate;
use crate::ast::{Expr, Fold, Id, Kind, Literal};
use crate::checker::Checked;
use crate::cost::{LIST, MAP, SELECT, STRUCT};
use crate::types::Type;

/// Knows how large the values of variables can be.
pub trait Sizes {
    /// The most characters, items or entries at a path: a variable, then names of fields, `@items`, `@keys`, `@values`.
    fn most(&self, path: &[Rc<str>]) -> Option<u64>;
}

/// Nothing is known of any size.
pub struct NoSizes;

impl Sizes for NoSizes {
    fn most(&self, _: &[Rc<str>]) -> Option<u64> {
        None
    }
}

type Path = Vec<Rc<str>>;

pub(crate) fn estimate(expr: &Expr, checked: &Checked, sizes: &dyn Sizes) -> Estimate {
    let mut estimator = Estimator {
        checked,
        known: sizes,
        paths: HashMap::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
        locals: HashMap::new(),
    };
    estimator.cost(expr)
}

/// How large the keys and values of a list or a map can be.
#[derive(Clone, Copy)]
struct Entries {
    is_list: bool,
    key: Estimate,
    value: Estimate,
}

impl Entries {
    fn union(self, other: Self) -> Self {
        Self { is_list: self.is_list, key: self.key.union(other.key), value: self.value.union(other.value) }
    }
}

struct Local {
    path: Path,
    size: Option<Estimate>,
    entries: Option<Entries>,
}

struct Estimator<'c> {
    checked: &'c Checked,
    known: &'c dyn Sizes,
    paths: HashMap<Id, Path>,
    sizes: HashMap<Id, Estimate>,
    entries: HashMap<Id, Entries>,
    locals: HashMap<Arc<str>, Vec<Local>>,
}

/// An argument of a call, with what is known about it.
struct Argument<'e> {
    expr: &'e Expr,
    t: Type,
    path: Path,
    size: Option<Estimate>,
    cost: Estimate,
}

impl Estimator<'_> {
    fn cost(&mut self, expr: &Expr) -> Estimate {
        match &expr.kind {
            Kind::Literal(_) => Estimate::exactly(0),
            Kind::Ident(name) => {
                let path = self.local(name).map_or_else(|| vec![Rc::from(&**name)], |local| local.path.clone());
                self.paths.insert(expr.id, path);
                Estimate::exactly(SELECT)
            }
            Kind::Select { operand, field, test } => self.select(expr, operand, field, *test),
            Kind::Call { function, target, args } => self.call(expr, function, target.as_deref(), args),
            Kind::List(_) | Kind::Map(_) => self.aggregate(expr),
            Kind::Struct { fields, .. } => {
                let parts = fields.iter().fold(Estimate::exactly(0), |sum, field| sum.plus(self.cost(&field.value)));
                parts.plus(Estimate::exactly(STRUCT))
            }
            Kind::Fold(fold) if fold.is_bind() => self.bind(expr, fold),
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.get(name).and_then(|stack| stack.last())
    }

    fn select(&mut self, expr: &Expr, operand: &Expr, field: &str, test: bool) -> Estimate {
        if let Some(name) = expr.qualified_name().filter(|_| self.checked.names.contains_key(&expr.id)) {
            // The whole chain is the name of one variable.
            self.paths.insert(expr.id, vec![name.into()]);
            return Estimate::exactly(SELECT);
        }
        let sum = self.cost(operand);
        if test {
            return sum;
        }
        let mut path = self.path(operand);
        path.push(field.into());
        self.paths.insert(expr.id, path);
        match self.checked.type_of(operand) {
            Type::Map(_) | Type::Object(_) | Type::Opaque(_) => sum.plus(Estimate::exactly(SELECT)),
            _ => sum,
        }
    }

    fn aggregate(&mut self, expr: &Expr) -> Estimate {
        let mut sum = Estimate::exactly(0);
        match &expr.kind {
            Kind::List(elements) => {
                let mut value = Estimate::nothing(elements.is_empty());
                for element in elements {
                    sum = sum.plus(self.cost(&element.value));
                    value = value.union(self.size_or_unknown(&element.value));
                }
                self.entries.insert(expr.id, Entries { is_list: true, key: Estimate::exactly(1), value });
                sum.plus(Estimate::exactly(LIST))
            }
            Kind::Map(entries) => {
                let (mut key, mut value) =
                    (Estimate::nothing(entries.is_empty()), Estimate::nothing(entries.is_empty()));
                for entry in entries {
                    sum = sum.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
                    key = key.union(self.size_or_unknown(&entry.key));
                    value = value.union(self.size_or_unknown(&entry.value));
                }
                self.entries.insert(expr.id, Entries { is_list: false, key, value });
                sum.plus(Estimate::exactly(MAP))
            }
            _ => sum,
        }
    }

    fn bind(&mut self, expr: &Expr, fold: &Fold) -> Estimate {
        let sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        self.push(&fold.accu, &fold.init);
        let sum = sum.plus(self.cost(&fold.result));
        self.pop(&fold.accu);
        self.copy_sizes(expr, &fold.result);
        sum
    }

    fn fold(&mut self, expr: &Expr, fold: &Fold) -> Estimate {
        let mut sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        self.push(&fold.accu, &fold.init);
        match &fold.var2 {
            None => self.push_item(&fold.var, &fold.range, None),
            Some(var2) => {
                self.push_item(&fold.var, &fold.range, Some(true));
                self.push_item(var2, &fold.range, Some(false));
            }
        }
        let condition = self.cost(&fold.condition);
        let step = self.cost(&fold.step);
        self.pop(&fold.var);
        if let Some(var2) = &fold.var2 {
            self.pop(var2);
        }
        sum = sum.plus(self.cost(&fold.result));
        self.pop(&fold.accu);
        let rounds = self.size_or_unknown(&fold.range);
        sum = sum.plus(rounds.times(step.plus(condition)));
        match &fold.init.kind {
            Kind::Literal(_) => {
                if let Some(size) = self.size(&fold.init) {
                    self.sizes.insert(expr.id, size);
                }
            }
            Kind::List(_) | Kind::Map(_) => {
                self.sizes.insert(expr.id, rounds);
                if let Some(entries) = self.entries_of(&fold.step) {
                    self.entries.insert(expr.id, entries);
                }
            }
            _ => {}
        }
        sum
    }

    fn push(&mut self, name: &Arc<str>, value: &Expr) {
        let local = Local { path: self.path(value), size: self.size(value), entries: self.entries_of(value) };
        self.locals.entry(name.clone()).or_default().push(local);
    }

    /// A variable of a loop. `key`: the first or the second of two; with one variable it depends on what is walked.
    fn push_item(&mut self, name: &Arc<str>, range: &Expr, key: Option<bool>) {
        let entries = self.entries_of(range);
        let is_list = entries.map_or_else(|| matches!(self.checked.type_of(range), Type::List(_)), |e| e.is_list);
        let is_key = key.unwrap_or(!is_list);
        let step = match (is_key, is_list) {
            (true, false) => "@keys",
            (true, true) => "@indices",
            (false, true) => "@items",
            (false, false) => "@values",
        };
        let size = entries.map(|entries| if is_key { entries.key } else { entries.value });
        let mut path = self.path(range);
        path.push(step.into());
        self.locals.entry(name.clone()).or_default().push(Local { path, size, entries: None });
    }

    fn pop(&mut self, name: &Arc<str>) {
        if let Some(stack) = self.locals.get_mut(name) {
            stack.pop();
        }
    }

    fn path(&self, expr: &Expr) -> Path {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned().unwrap_or_default()
    }

    fn most(&self, path: &[Rc<str>]) -> Option<Estimate> {
        if path.is_empty() { None } else { self.known.most(path).map(|most| Estimate { min: 0, max: most }) }
    }

    fn size(&mut self, expr: &Expr) -> Option<Estimate> {
        if let Some(size) = self.sizes.get(&expr.id) {
            return Some(*size);
        }
        let literal = match &expr.kind {
            Kind::Literal(Literal::String(text)) => Some(text.chars().count()),
            Kind::Literal(Literal::Bytes(bytes)) => Some(bytes.len()),
            Kind::Literal(_) => Some(1),
            Kind::List(elements) => Some(elements.len()),
            Kind::Map(entries) => Some(entries.len()),
            _ => None,
        };
        if let Some(size) = literal {
            return Some(Estimate::exactly(size as u64));
        }
        if let Some(size) = self.most(&self.path(expr)) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if is_scalar(self.checked.type_of(expr)) {
            return Some(Estimate::exactly(1));
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }

    fn size_or_unknown(&mut self, expr: &Expr) -> Estimate {
        self.size(expr).unwrap_or(Estimate::UNKNOWN)
    }

    fn entries_of(&self, expr: &Expr) -> Option<Entries> {
        if let Some(entries) = self.entries.get(&expr.id) {
            return Some(*entries);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.entries),
            _ => None,
        }
    }

    fn copy_sizes(&mut self, to: &Expr, from: &Expr) {
        if let Some(size) = self.size(from) {
            self.sizes.insert(to.id, size);
        }
        if let Some(entries) = self.entries_of(from) {
            self.entries.insert(to.id, entries);
        }
    }
}

fn is_scalar(t: &Type) -> bool {
    match t {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        Type::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}
