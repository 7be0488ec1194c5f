//! Finds the type of every node and which overloads each call may mean.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Env;
use crate::ast::{Expr, Fold, Id, Kind, Literal};
use crate::library::{self, Function, Overload};
use crate::source::Issue;
use crate::types::{Mapping, Param, Type, most_general};

/// What is known about a checked tree.
pub(crate) struct Checked {
    types: Vec<Type>,
    pub(crate) names: HashMap<Id, Name>,
    pub(crate) calls: HashMap<Id, Resolved>,
}

/// What a name, or a chain of selections that is one, refers to.
pub(crate) enum Name {
    Variable(usize),
    Local(Arc<str>),
    Type(Type),
}

pub(crate) struct Resolved {
    pub(crate) function: &'static Function,
    pub(crate) overloads: Vec<&'static str>,
    /// The target was part of the name: `optional.of`.
    pub(crate) namespaced: bool,
}

impl Checked {
    pub(crate) fn type_of(&self, expr: &Expr) -> &Type {
        self.types.get(expr.id as usize).unwrap_or(&Type::Dyn)
    }
}

pub(crate) fn check(env: &Env, expr: &Expr, ids: Id) -> Result<Checked, Vec<Issue>> {
    let found = Checked { types: vec![Type::Dyn; ids as usize + 1], names: HashMap::new(), calls: HashMap::new() };
    let mut checker = Checker { env, found, mapping: Mapping::default(), locals: Vec::new(), issues: Vec::new() };
    checker.check(expr);
    let Checker { mut found, mapping, issues, .. } = checker;
    for t in &mut found.types {
        *t = mapping.substitute(t, true);
    }
    if issues.is_empty() { Ok(found) } else { Err(issues) }
}

struct Checker<'e> {
    env: &'e Env,
    found: Checked,
    mapping: Mapping,
    locals: Vec<(Arc<str>, Type)>,
    issues: Vec<Issue>,
}

impl Checker<'_> {
    fn issue(&mut self, at: u32, message: String) {
        self.issues.push(Issue { at: Some(at), message });
    }

    fn set(&mut self, expr: &Expr, t: Type) {
        if let Some(place) = self.found.types.get_mut(expr.id as usize) {
            *place = t;
        }
    }

    fn get(&self, expr: &Expr) -> Type {
        self.found.type_of(expr).clone()
    }

    fn check(&mut self, expr: &Expr) {
        match &expr.kind {
            Kind::Literal(literal) => self.set(
                expr,
                match literal {
                    Literal::Null => Type::Null,
                    Literal::Bool(_) => Type::Bool,
                    Literal::Int(_) => Type::Int,
                    Literal::Uint(_) => Type::Uint,
                    Literal::Double(_) => Type::Double,
                    Literal::String(_) => Type::String,
                    Literal::Bytes(_) => Type::Bytes,
                },
            ),
            Kind::Ident(name) => {
                if !self.resolve(expr, name) {
                    self.undeclared(expr, name);
                }
            }
            Kind::Select { operand, field, test } => self.select(expr, operand, field, *test),
            Kind::Call { function, target, args } => self.call(expr, function, target.as_deref(), args),
            Kind::List(_) | Kind::Map(_) => self.aggregate(expr),
            Kind::Struct { .. } => self.message(expr),
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn undeclared(&mut self, expr: &Expr, name: &str) {
        self.set(expr, Type::Error);
        self.issue(expr.at, format!("undeclared reference to '{name}' (in container '')"));
    }

    /// Whether the name is known; then the node is what it names.
    fn resolve(&mut self, expr: &Expr, name: &str) -> bool {
        let name = name.strip_prefix('.').unwrap_or(name);
        let (t, what) = if let Some((name, t)) = self.locals.iter().rev().find(|(known, _)| &**known == name) {
            (t.clone(), Name::Local(name.clone()))
        } else if let Some(index) = self.env.variables.iter().position(|(known, _)| &**known == name) {
            let t = self.env.variables.get(index).map_or(Type::Dyn, |(_, t)| t.clone());
            (t, Name::Variable(index))
        } else if self.env.types.has(name) {
            (Type::Type(Some(Arc::new(Type::object(name)))), Name::Type(Type::object(name)))
        } else if let Some(t) = library::named_type(name) {
            (Type::Type(Some(Arc::new(t.clone()))), Name::Type(t))
        } else {
            return false;
        };
        self.set(expr, t);
        self.found.names.insert(expr.id, what);
        true
    }

    fn select(&mut self, expr: &Expr, operand: &Expr, field: &str, test: bool) {
        if let Some(name) = expr.qualified_name()
            && self.resolve(expr, &name)
        {
            return;
        }
        let t = self.field(expr, operand, field, false);
        let t = if test { Type::Bool } else { self.mapping.substitute(&t, false) };
        self.set(expr, t);
    }

    /// The type of a field of the operand.
    fn field(&mut self, expr: &Expr, operand: &Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let operand = self.mapping.substitute(&self.get(operand), false);
        let (target, was_optional) = match &operand {
            Type::Optional(inner) => ((**inner).clone(), true),
            other => (other.clone(), false),
        };
        let found = match &target {
            Type::Map(kv) => kv.1.clone(),
            Type::Object(name) => self.object_field(expr, name, field),
            Type::Opaque(name) if name.starts_with("kubernetes.") => {
                self.issue(expr.at, format!("unexpected failed resolution of '{name}'"));
                Type::Error
            }
            Type::Param(_) => {
                self.mapping.assign(&Type::Dyn, &target);
                Type::Dyn
            }
            Type::Dyn | Type::Error => Type::Dyn,
            other => {
                self.issue(expr.at, format!("type '{other}' does not support field selection"));
                Type::Dyn
            }
        };
        if was_optional || optional { Type::optional(found) } else { found }
    }

    fn object_field(&mut self, expr: &Expr, object: &str, field: &str) -> Type {
        if let Some(t) = self.env.types.field(object, field) {
            return t;
        }
        let message = match self.env.types.has(object) {
            true => format!("undefined field '{field}'"),
            false => format!("unexpected failed resolution of '{object}'"),
        };
        self.issue(expr.at, message);
        Type::Error
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) {
        if let ("_?._", [operand, field]) = (function, args) {
            let Kind::Literal(Literal::String(name)) = &field.kind else { return };
            let t = self.field(expr, operand, name, true);
            let t = self.mapping.substitute(&t, false);
            self.set(expr, t);
            if let Some(function) = library::function("_?._") {
                let resolved = Resolved { function, overloads: vec!["select_optional_field"], namespaced: false };
                self.found.calls.insert(expr.id, resolved);
            }
            return;
        }
        args.iter().for_each(|arg| self.check(arg));
        let Some(target) = target else {
            match self.env.function(function.strip_prefix('.').unwrap_or(function)) {
                Some(known) => self.overload(expr, known, None, args, false),
                None => self.undeclared(expr, function),
            }
            return;
        };
        let qualified = target.qualified_name().and_then(|prefix| self.env.function(&format!("{prefix}.{function}")));
        if let Some(known) = qualified {
            return self.overload(expr, known, None, args, true);
        }
        self.check(target);
        match self.env.function(function) {
            Some(known) => self.overload(expr, known, Some(target), args, false),
            None => self.undeclared(expr, function),
        }
    }

    fn overload(
        &mut self,
        expr: &Expr,
        function: &'static Function,
        target: Option<&Expr>,
        args: &[Expr],
        namespaced: bool,
    ) {
        let given: Vec<Type> = target.into_iter().chain(args).map(|arg| self.get(arg)).collect();
        if matches!(function.name, "_&&_" | "_||_") {
            return self.logical(expr, function, args, &given);
        }
        let mut result: Option<Type> = None;
        let mut overloads = Vec::new();
        for overload in function.overloads.iter().filter(|overload| overload.member == target.is_some()) {
            let (wanted, made) = self.instance(overload);
            if !self.mapping.assign_all(&given, &wanted) {
                continue;
            }
            overloads.push(overload.id);
            let made = self.mapping.substitute(&made, false);
            result = Some(match result {
                None => made,
                Some(before) if before == Type::Dyn || before == made => before,
                Some(_) => Type::Dyn,
            });
        }
        let Some(result) = result else {
            let given: Vec<String> = given.iter().map(|t| self.mapping.substitute(t, true).to_string()).collect();
            let signature = match (target, given.split_first()) {
                (Some(_), Some((target, rest))) => format!("{target}.({})", rest.join(", ")),
                _ => format!("({})", given.join(", ")),
            };
            let name = function.name;
            self.issue(expr.at, format!("found no matching overload for '{name}' applied to '{signature}'"));
            return self.set(expr, Type::Error);
        };
        self.set(expr, result);
        self.found.calls.insert(expr.id, Resolved { function, overloads, namespaced });
    }

    fn logical(&mut self, expr: &Expr, function: &'static Function, args: &[Expr], given: &[Type]) {
        let mut t = Type::Bool;
        for (arg, given) in args.iter().zip(given) {
            if !self.mapping.assign(given, &Type::Bool) {
                let given = self.mapping.substitute(given, false);
                self.issue(arg.at, format!("expected type 'bool' but found '{given}'"));
                t = Type::Error;
            }
        }
        self.set(expr, t);
        let overloads = function.overloads.iter().map(|overload| overload.id).collect();
        self.found.calls.insert(expr.id, Resolved { function, overloads, namespaced: false });
    }

    /// The overload with types of its own for its letters.
    fn instance(&mut self, overload: &Overload) -> (Vec<Type>, Type) {
        if overload.params.is_empty() {
            return (overload.args.clone(), overload.result.clone());
        }
        let fresh: HashMap<char, Type> = overload.params.iter().map(|letter| (*letter, self.mapping.fresh())).collect();
        let args = overload.args.iter().map(|arg| instantiate(arg, &fresh)).collect();
        (args, instantiate(&overload.result, &fresh))
    }

    fn aggregate(&mut self, expr: &Expr) {
        match &expr.kind {
            Kind::List(elements) => {
                let mut element = None;
                for part in elements {
                    self.check(&part.value);
                    let t = self.present(&part.value, part.optional);
                    element = Some(self.join(element, t));
                }
                let element = element.unwrap_or_else(|| self.mapping.fresh());
                self.set(expr, Type::list(element));
            }
            Kind::Map(entries) => {
                let (mut key, mut value) = (None, None);
                for entry in entries {
                    self.check(&entry.key);
                    let t = self.get(&entry.key);
                    key = Some(self.join(key, t));
                    self.check(&entry.value);
                    let t = self.present(&entry.value, entry.optional);
                    value = Some(self.join(value, t));
                }
                let key = key.unwrap_or_else(|| self.mapping.fresh());
                let value = value.unwrap_or_else(|| self.mapping.fresh());
                self.set(expr, Type::map(key, value));
            }
            _ => {}
        }
    }

    /// The type of a value that may be marked as one to leave out if absent.
    fn present(&mut self, value: &Expr, optional: bool) -> Type {
        let t = self.get(value);
        if !optional {
            return t;
        }
        match t {
            Type::Optional(inner) => (*inner).clone(),
            Type::Dyn => Type::Dyn,
            other => {
                self.issue(value.at, format!("expected type 'optional_type({other})' but found '{other}'"));
                other
            }
        }
    }

    fn join(&mut self, before: Option<Type>, next: Type) -> Type {
        match before {
            None => next,
            Some(before) if self.mapping.assign(&before, &next) => most_general(&before, &next),
            Some(_) => Type::Dyn,
        }
    }

    fn message(&mut self, expr: &Expr) {
        let Kind::Struct { name, fields } = &expr.kind else { return };
        if !self.resolve(expr, name) {
            return self.undeclared(expr, name);
        }
        let object = match self.get(expr) {
            Type::Type(Some(t)) => (*t).clone(),
            other => {
                self.issue(expr.at, format!("'{other}' is not a type"));
                return self.set(expr, Type::Error);
            }
        };
        let Type::Object(object) = object else {
            self.issue(expr.at, format!("'{object}' is not a message type"));
            return self.set(expr, Type::Error);
        };
        for field in fields {
            self.check(&field.value);
            let wanted = match self.env.types.field(&object, &field.name) {
                Some(t) => t,
                None => {
                    self.issue(field.at, format!("undefined field '{}'", field.name));
                    Type::Error
                }
            };
            let given = self.present(&field.value, field.optional);
            if !self.mapping.assign(&wanted, &given) {
                let given = self.mapping.substitute(&given, false);
                let name = &field.name;
                self.issue(
                    field.at,
                    format!("expected type of field '{name}' is '{wanted}' but provided type is '{given}'"),
                );
            }
        }
        self.set(expr, Type::Object(object));
    }

    fn fold(&mut self, expr: &Expr, fold: &Fold) {
        self.check(&fold.range);
        self.check(&fold.init);
        let range = self.mapping.substitute(&self.get(&fold.range), false);
        let accu = self.get(&fold.init);
        let two = fold.var2.is_some();
        let (first, second) = match &range {
            Type::List(element) if two => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Dyn),
            Type::Map(kv) => (kv.0.clone(), kv.1.clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.mapping.assign(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.issue(fold.range.at, message);
                (Type::Error, Type::Error)
            }
        };
        let outside = self.locals.len();
        self.locals.push((fold.accu.clone(), accu.clone()));
        self.locals.push((fold.var.clone(), first));
        if let Some(var2) = &fold.var2 {
            self.locals.push((var2.clone(), second));
        }
        self.check(&fold.condition);
        self.expect(&fold.condition, &Type::Bool);
        self.check(&fold.step);
        self.expect(&fold.step, &accu);
        self.locals.truncate(outside + 1);
        self.check(&fold.result);
        self.locals.truncate(outside);
        let t = self.mapping.substitute(&self.get(&fold.result), false);
        self.set(expr, t);
    }

    fn expect(&mut self, expr: &Expr, wanted: &Type) {
        let given = self.get(expr);
        if !self.mapping.assign(wanted, &given) {
            let wanted = self.mapping.substitute(wanted, false);
            let given = self.mapping.substitute(&given, false);
            self.issue(expr.at, format!("expected type '{wanted}' but found '{given}'"));
        }
    }
}

fn instantiate(t: &Type, fresh: &HashMap<char, Type>) -> Type {
    match t {
        Type::Param(Param::Declared(letter)) => fresh.get(letter).cloned().unwrap_or(Type::Dyn),
        Type::List(e) => Type::list(instantiate(e, fresh)),
        Type::Optional(e) => Type::optional(instantiate(e, fresh)),
        Type::Map(kv) => Type::map(instantiate(&kv.0, fresh), instantiate(&kv.1, fresh)),
        Type::Type(Some(e)) => Type::Type(Some(Arc::new(instantiate(e, fresh)))),
        _ => t.clone(),
    }
}
