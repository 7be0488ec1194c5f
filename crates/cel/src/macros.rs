//! Calls that are written like functions and mean a fold over a list or a map.

use std::sync::Arc;

use crate::ast::{Element, Expr, Fold, Kind, Literal};
use crate::parser::{Parser, Stop};

/// No name of the language can be spelled like this.
const ACCU: &str = "@result";
/// The name upstream used before; still not allowed for a variable.
const OLD_ACCU: &str = "__result__";

impl Parser<'_> {
    pub(crate) fn function(&mut self, at: u32, name: &str, args: Vec<Expr>) -> Result<Expr, Stop> {
        if name != "has" || args.len() != 1 {
            return self.call(at, name, args);
        }
        let Some(arg) = args.into_iter().next() else { return Err(Stop) };
        let place = arg.at;
        match arg.kind {
            Kind::Select { operand, field, .. } => self.node(at, Kind::Select { operand, field, test: true }),
            _ => {
                self.issue(place, "invalid argument to has() macro");
                self.node(at, Kind::Literal(Literal::Null))
            }
        }
    }

    pub(crate) fn method(&mut self, at: u32, name: &str, target: Expr, args: Vec<Expr>) -> Result<Expr, Stop> {
        let expansion = Expansion { at, target };
        match (name, args.len()) {
            ("all" | "exists" | "exists_one", 2 | 3) | ("existsOne", 3) => self.quantifier(expansion, name, args),
            ("map", 2 | 3) | ("filter", 2) | ("transformList", 3 | 4) => self.gather(expansion, name, args),
            ("transformMap" | "transformMapEntry", 3 | 4) => self.gather(expansion, name, args),
            ("optMap" | "optFlatMap", 2) => self.optional(expansion, name, args),
            ("sortBy", 2) => self.sort_by(expansion, args),
            ("bind", 3) if self.binds && matches!(&expansion.target.kind, Kind::Ident(name) if &**name == "cel") => {
                self.named(at, args)
            }
            _ => {
                let target = Some(Box::new(expansion.target));
                self.node(at, Kind::Call { function: name.into(), target, args })
            }
        }
    }

    fn quantifier(&mut self, to: Expansion, name: &str, mut args: Vec<Expr>) -> Result<Expr, Stop> {
        let at = to.at;
        let Some(predicate) = args.pop() else { return Err(Stop) };
        let Some((var, var2)) = self.variables(&args, "argument must be a simple name") else {
            return self.node(at, Kind::Literal(Literal::Null));
        };
        let (init, condition, step, result);
        match name {
            "all" => {
                init = self.literal_at(at, Literal::Bool(true))?;
                let accu = self.accu(at)?;
                condition = self.call(at, "@not_strictly_false", vec![accu])?;
                let accu = self.accu(at)?;
                step = self.call(at, "_&&_", vec![accu, predicate])?;
                result = self.accu(at)?;
            }
            "exists" => {
                init = self.literal_at(at, Literal::Bool(false))?;
                let accu = self.accu(at)?;
                let not = self.call(at, "!_", vec![accu])?;
                condition = self.call(at, "@not_strictly_false", vec![not])?;
                let accu = self.accu(at)?;
                step = self.call(at, "_||_", vec![accu, predicate])?;
                result = self.accu(at)?;
            }
            _ => {
                init = self.literal_at(at, Literal::Int(0))?;
                condition = self.literal_at(at, Literal::Bool(true))?;
                let one = self.literal_at(at, Literal::Int(1))?;
                let accu = self.accu(at)?;
                let more = self.call(at, "_+_", vec![accu, one.clone()])?;
                let accu = self.accu(at)?;
                step = self.call(at, "_?_:_", vec![predicate, more, accu])?;
                let accu = self.accu(at)?;
                let one = self.node(at, one.kind)?;
                result = self.call(at, "_==_", vec![accu, one])?;
            }
        }
        self.fold(to, (var, var2), init, condition, step, result)
    }

    /// Every macro that builds a list or a map, element by element.
    fn gather(&mut self, to: Expansion, name: &str, mut args: Vec<Expr>) -> Result<Expr, Stop> {
        let at = to.at;
        let vars = if name.starts_with("transform") { 2 } else { 1 };
        let mut rest = args.split_off(vars);
        let complaint = if vars == 1 { "argument is not an identifier" } else { "argument must be a simple name" };
        let Some((var, var2)) = self.variables(&args, complaint) else {
            return self.node(at, Kind::Literal(Literal::Null));
        };
        let Some(mut transform) = rest.pop() else { return Err(Stop) };
        let mut filter = rest.pop();
        if name == "filter" {
            filter = Some(transform);
            let Some(element) = args.pop() else { return Err(Stop) };
            transform = element;
        }
        let accu = self.accu(at)?;
        let (init, step) = match name {
            "transformMap" => {
                let key = self.node(at, Kind::Ident(var.clone()))?;
                (Kind::Map(Vec::new()), self.call(at, "cel.@mapInsert", vec![accu, key, transform])?)
            }
            "transformMapEntry" => (Kind::Map(Vec::new()), self.call(at, "cel.@mapInsert", vec![accu, transform])?),
            _ => {
                let one = self.node(at, Kind::List(vec![Element { optional: false, value: transform }]))?;
                (Kind::List(Vec::new()), self.call(at, "_+_", vec![accu, one])?)
            }
        };
        let step = match filter {
            Some(filter) => {
                let accu = self.accu(at)?;
                self.call(at, "_?_:_", vec![filter, step, accu])?
            }
            None => step,
        };
        let init = self.node(at, init)?;
        let condition = self.literal_at(at, Literal::Bool(true))?;
        let result = self.accu(at)?;
        self.fold(to, (var, var2), init, condition, step, result)
    }

    /// `target.hasValue() ? optional.of(bind(var, target.value(), body)) : optional.none()`
    fn optional(&mut self, to: Expansion, name: &str, args: Vec<Expr>) -> Result<Expr, Stop> {
        let at = to.at;
        let mut args = args.into_iter();
        let (Some(var), Some(body)) = (args.next(), args.next()) else { return Err(Stop) };
        let Kind::Ident(var) = var.kind else {
            self.issue(var.at, format!("{name}() variable name must be a simple identifier"));
            return self.node(at, Kind::Literal(Literal::Null));
        };
        let again = self.renumbered(&to.target)?;
        let member = |target: Expr, function: &str| Kind::Call {
            function: function.into(),
            target: Some(Box::new(target)),
            args: Vec::new(),
        };
        let has = self.node(at, member(to.target, "hasValue"))?;
        let value = self.node(at, member(again, "value"))?;
        let mut bound = self.bind(at, var, value, body)?;
        if name == "optMap" {
            bound = self.call(at, "optional.of", vec![bound])?;
        }
        let none = self.call(at, "optional.none", Vec::new())?;
        self.call(at, "_?_:_", vec![has, bound, none])
    }

    /// `bind(input, target, input.@sortByAssociatedKeys(input.map(var, key)))`
    fn sort_by(&mut self, to: Expansion, args: Vec<Expr>) -> Result<Expr, Stop> {
        let at = to.at;
        if matches!(to.target.kind, Kind::Literal(_) | Kind::Map(_) | Kind::Struct { .. }) {
            let complaint =
                "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            self.issue(to.target.at, complaint);
            return self.node(at, Kind::Literal(Literal::Null));
        }
        let input: Arc<str> = "@__sortBy_input__".into();
        let range = self.node(at, Kind::Ident(input.clone()))?;
        let keys = self.gather(Expansion { at, target: range }, "map", args)?;
        let list = self.node(at, Kind::Ident(input.clone()))?;
        let function = "@sortByAssociatedKeys".into();
        let sorted = self.node(at, Kind::Call { function, target: Some(Box::new(list)), args: vec![keys] })?;
        self.bind(at, input, to.target, sorted)
    }

    /// `cel.bind(name, value, body)`
    fn named(&mut self, at: u32, args: Vec<Expr>) -> Result<Expr, Stop> {
        let mut args = args.into_iter();
        let (Some(name), Some(value), Some(body)) = (args.next(), args.next(), args.next()) else { return Err(Stop) };
        let Kind::Ident(name) = name.kind else {
            self.issue(name.at, "cel.bind() variable names must be simple identifiers");
            return self.node(at, Kind::Literal(Literal::Null));
        };
        self.bind(at, name, value, body)
    }

    fn bind(&mut self, at: u32, name: Arc<str>, value: Expr, body: Expr) -> Result<Expr, Stop> {
        let range = self.node(at, Kind::List(Vec::new()))?;
        let condition = self.literal_at(at, Literal::Bool(false))?;
        let step = self.node(at, Kind::Ident(name.clone()))?;
        let fold =
            Fold { range, var: "#unused".into(), var2: None, accu: name, init: value, condition, step, result: body };
        self.node(at, Kind::Fold(Box::new(fold)))
    }

    fn fold(
        &mut self,
        to: Expansion,
        (var, var2): (Arc<str>, Option<Arc<str>>),
        init: Expr,
        condition: Expr,
        step: Expr,
        result: Expr,
    ) -> Result<Expr, Stop> {
        let fold = Fold { range: to.target, var, var2, accu: ACCU.into(), init, condition, step, result };
        self.node(to.at, Kind::Fold(Box::new(fold)))
    }

    /// The one or two names before the body; `None` after telling why not.
    fn variables(&mut self, args: &[Expr], complaint: &str) -> Option<(Arc<str>, Option<Arc<str>>)> {
        let mut names = Vec::new();
        for arg in args {
            let Kind::Ident(name) = &arg.kind else {
                self.issue(arg.at, complaint);
                return None;
            };
            if names.contains(name) {
                self.issue(arg.at, format!("duplicate variable name: {name}"));
                return None;
            }
            if &**name == ACCU || &**name == OLD_ACCU {
                self.issue(arg.at, "iteration variable overwrites accumulator variable");
                return None;
            }
            names.push(name.clone());
        }
        let mut names = names.into_iter();
        Some((names.next()?, names.next()))
    }

    fn accu(&mut self, at: u32) -> Result<Expr, Stop> {
        self.node(at, Kind::Ident(ACCU.into()))
    }

    fn literal_at(&mut self, at: u32, literal: Literal) -> Result<Expr, Stop> {
        self.node(at, Kind::Literal(literal))
    }

    /// A copy whose nodes have ids of their own.
    fn renumbered(&mut self, expr: &Expr) -> Result<Expr, Stop> {
        let mut copy = expr.clone();
        self.renumber(&mut copy)?;
        Ok(copy)
    }

    fn renumber(&mut self, expr: &mut Expr) -> Result<(), Stop> {
        expr.id = self.node(expr.at, Kind::Literal(Literal::Null))?.id;
        match &mut expr.kind {
            Kind::Literal(_) | Kind::Ident(_) => Ok(()),
            Kind::Select { operand, .. } => self.renumber(operand),
            Kind::Call { target, args, .. } => {
                target.as_deref_mut().into_iter().chain(args).try_for_each(|part| self.renumber(part))
            }
            Kind::List(elements) => elements.iter_mut().try_for_each(|e| self.renumber(&mut e.value)),
            Kind::Map(entries) => {
                entries.iter_mut().flat_map(|e| [&mut e.key, &mut e.value]).try_for_each(|part| self.renumber(part))
            }
            Kind::Struct { fields, .. } => fields.iter_mut().try_for_each(|f| self.renumber(&mut f.value)),
            Kind::Fold(f) => [&mut f.range, &mut f.init, &mut f.condition, &mut f.step, &mut f.result]
                .into_iter()
                .try_for_each(|part| self.renumber(part)),
        }
    }
}

/// Where a macro stands and what it is called on.
struct Expansion {
    at: u32,
    target: Expr,
}
