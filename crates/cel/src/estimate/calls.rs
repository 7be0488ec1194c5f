//! What calls can cost, and how large what they return can be.

use super::{Argument, Entries, Estimate, Estimator};
use crate::ast::{Expr, Kind, Literal};
use crate::cost::{LIST, STRUCT};
use crate::types::Type;

const TEXT: f64 = 0.1;
const PATTERN: f64 = 0.25;
const ONE: Estimate = Estimate::exactly(1);
/// The longest pattern a named format stands for, and the longest name of one.
const FORMAT_PATTERN: f64 = 128.0;
const FORMAT_NAME: u64 = 64;

/// The cost of a call without its arguments, and the size of its result where it is known.
type Call = (Estimate, Option<Estimate>);

impl Estimator<'_> {
    pub(super) fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) -> Estimate {
        if let ("dyn", [arg]) = (function, args) {
            let cost = self.cost(arg);
            self.copy_sizes(expr, arg);
            return cost.plus(ONE);
        }
        let args: Vec<Argument<'_>> = args.iter().map(|arg| self.argument(arg)).collect();
        let checked = self.checked;
        let Some(resolved) = checked.calls.get(&expr.id) else { return Estimate::exactly(0) };
        let target = target.filter(|_| !resolved.namespaced).map(|target| self.argument(target));
        let mut cost = Estimate::nothing(false);
        let mut size: Option<Estimate> = None;
        for overload in &resolved.overloads {
            let (own, made) = self.overload(expr, resolved.function.name, overload, target.as_ref(), &args);
            cost = cost.union(own);
            size = match (size, made) {
                (Some(before), Some(made)) => Some(before.union(made)),
                (before, made) => before.or(made),
            };
            if let (Some(operand), "index_list" | "index_map") = (args.first(), *overload) {
                size = self.entries_of(operand.expr).map(|entries| entries.value);
                let mut path = self.path(operand.expr);
                path.push(if *overload == "index_list" { "@items" } else { "@values" }.into());
                self.paths.insert(expr.id, path);
            }
            size = size.or_else(|| self.size(expr));
        }
        if let Some(size) = size {
            self.sizes.insert(expr.id, size);
        }
        target.map_or(cost, |target| target.cost.plus(cost))
    }

    fn argument<'e>(&mut self, expr: &'e Expr) -> Argument<'e> {
        let cost = self.cost(expr);
        let mut path = self.path(expr);
        if path.first().is_some_and(|first| &**first == "@result") {
            path.clear();
        }
        Argument { expr, t: self.checked.type_of(expr).clone(), path, size: self.size(expr), cost }
    }

    fn overload(
        &mut self,
        expr: &Expr,
        function: &str,
        overload: &str,
        target: Option<&Argument<'_>>,
        args: &[Argument<'_>],
    ) -> Call {
        let sum = args.iter().fold(Estimate::exactly(0), |sum, arg| sum.plus(arg.cost));
        let with_args = |(cost, size): Call| (cost.plus(sum), size);
        if let Some(call) = self.list_function(overload, target, args) {
            return with_args(call);
        }
        if let Some(call) = self.library(function, overload, target, args) {
            return with_args(call);
        }
        match (overload, target, args) {
            ("logical_or" | "logical_and", _, [a, b]) => {
                (Estimate { min: a.cost.min, max: a.cost.plus(b.cost).max }, None)
            }
            ("conditional", _, [condition, yes, no]) => {
                let size = known(yes).union(known(no));
                if let (Some(yes), Some(no)) = (self.entries_of(yes.expr), self.entries_of(no.expr)) {
                    self.entries.insert(expr.id, yes.union(no));
                }
                (condition.cost.plus(yes.cost.union(no.cost)), Some(size))
            }
            ("add_string" | "add_bytes" | "add_list", _, [a, b]) => {
                let size = known(a).plus(known(b));
                if let (Some(a), Some(b)) = (self.entries_of(a.expr), self.entries_of(b.expr)) {
                    self.entries.insert(expr.id, Entries::union(a, b));
                }
                let cost = if overload == "add_list" { ONE } else { size.scaled(TEXT) };
                with_args((cost, Some(size)))
            }
            _ => with_args(plain(overload, target, args)),
        }
    }

    /// The size of an argument, or the most that is known of its path.
    fn sized(&self, arg: &Argument<'_>) -> Estimate {
        arg.size.or_else(|| self.most(&arg.path)).unwrap_or(Estimate::UNKNOWN)
    }

    /// The size of the elements of a list, and whether they are strings; `None` for what has no elements.
    fn elements(&self, list: &Argument<'_>) -> Option<(Estimate, bool)> {
        let element = match &list.t {
            Type::List(element) | Type::Optional(element) => (**element).clone(),
            Type::Map(kv) => kv.0.clone(),
            _ => return None,
        };
        let mut path = list.path.clone();
        if !path.is_empty() {
            path.push("@items".into());
        }
        let size = self.most(&path).unwrap_or(Estimate::UNKNOWN);
        Some((size, matches!(element, Type::String | Type::Bytes)))
    }

    fn library(
        &self,
        function: &str,
        overload: &str,
        target: Option<&Argument<'_>>,
        args: &[Argument<'_>],
    ) -> Option<Call> {
        let free = |cost: Estimate| Some((cost, None));
        match (function, target, args) {
            ("check", ..) => free(Estimate::exactly(350_000)),
            (
                "serviceAccount"
                | "path"
                | "group"
                | "resource"
                | "subresource"
                | "namespace"
                | "name"
                | "allowed"
                | "reason"
                | "error"
                | "errored"
                | "masked"
                | "prefixLength"
                | "family"
                | "isUnspecified"
                | "isLoopback"
                | "isLinkLocalMulticast"
                | "isLinkLocalUnicast"
                | "isGlobalUnicast"
                | "format.named"
                | "sign"
                | "asInteger"
                | "isInteger"
                | "asApproximateFloat"
                | "isGreaterThan"
                | "isLessThan"
                | "compareTo"
                | "add"
                | "sub"
                | "major"
                | "minor"
                | "patch"
                | "getScheme"
                | "getHostname"
                | "getHost"
                | "getPort"
                | "getEscapedPath"
                | "getQuery",
                ..,
            ) => free(ONE),
            ("fieldSelector" | "labelSelector", _, [arg]) => {
                let size = self.sized(arg);
                #[expect(clippy::cast_precision_loss, reason = "small")]
                let requirements = size.scaled(0.5).scaled((LIST + STRUCT) as f64);
                free(Estimate::exactly(LIST).plus(size.scaled(TEXT)).plus(requirements))
            }
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(target), _) => {
                let size = self.sized(target);
                free(match self.elements(target) {
                    Some((element, true)) => size.times(ONE.plus(element.scaled(TEXT))),
                    Some((_, false)) => size.times(ONE),
                    None => size.scaled(TEXT),
                })
            }
            ("url" | "jsonpatch.escapeKey", _, [arg]) => {
                let size = self.sized(arg);
                Some((size.scaled(TEXT), Some(size)))
            }
            ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(target), _) => {
                let size = self.sized(target);
                Some((size.scaled(TEXT), Some(size)))
            }
            ("replace", Some(target), [old, new, ..]) => {
                let (size, old, new) = (self.sized(target), self.sized(old), self.sized(new));
                Some((size.scaled(2.0 * TEXT), Some(replaced(size, old, new))))
            }
            ("split", Some(target), _) => {
                let size = self.sized(target);
                let most = match args.get(1).map(|arg| &arg.expr.kind) {
                    Some(Kind::Literal(Literal::Int(most))) => *most as u64,
                    _ => size.max,
                };
                Some((size.scaled(2.0 * TEXT), Some(Estimate { min: 0, max: most })))
            }
            ("join", Some(target), _) => {
                let list = self.sized(target);
                let mut size = self.elements(target).map_or(Estimate::exactly(0), |(element, _)| list.times(element));
                if let Some(separator) = args.first() {
                    let between = Estimate { min: list.min.saturating_sub(1), max: list.max.saturating_sub(1) };
                    size = size.plus(self.sized(separator).times(between));
                }
                Some((size.scaled(TEXT), Some(size)))
            }
            ("find" | "findAll", Some(target), [pattern, ..]) => {
                let size = self.sized(target);
                let cost = size.plus(ONE).scaled(TEXT).times(self.sized(pattern).scaled(PATTERN));
                Some((cost, Some(Estimate { min: 0, max: size.max })))
            }
            ("ip", ..) if overload == "cidr_ip" => free(ONE),
            ("cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver", _, [arg, ..]) => {
                free(self.sized(arg).scaled(TEXT))
            }
            ("ip.isCanonical", _, [arg]) => free(self.sized(arg).scaled(2.0 * TEXT)),
            ("containsIP" | "containsCIDR", _, [arg]) => {
                let address = Estimate { min: 4, max: 16 };
                let mut cost = address.plus(address).scaled(TEXT);
                if function == "containsCIDR" {
                    cost = cost.plus(address.scaled(TEXT)).plus(ONE);
                }
                if overload.ends_with("string") {
                    cost = cost.plus(self.sized(arg).scaled(TEXT));
                }
                free(cost)
            }
            ("validate", _, [arg, ..]) => free(self.sized(arg).scaled(TEXT).scaled(FORMAT_PATTERN * PATTERN)),
            ("_==_", None, [a, b]) if a.t == b.t => equality(a, b).map(|cost| (cost, None)),
            _ => None,
        }
    }

    fn list_function(&self, overload: &str, target: Option<&Argument<'_>>, args: &[Argument<'_>]) -> Option<Call> {
        let made = |factor: f64, size: Estimate| {
            Some((size.scaled(factor).plus(ONE).plus(Estimate::exactly(LIST)), Some(size)))
        };
        match (overload, target, args) {
            ("list_slice", Some(target), [start, end]) => {
                let (start, end) = (number(start, 0), number(end, self.sized(target).max));
                made(1.0, Estimate::exactly(end.wrapping_sub(start)))
            }
            ("lists_range", None, [end]) => made(1.0, Estimate::exactly(number(end, u64::MAX))),
            ("list_reverse", Some(target), []) => made(1.0, self.sized(target)),
            #[expect(clippy::cast_precision_loss, reason = "as upstream")]
            ("list_flatten" | "list_flatten_int", Some(target), args) => {
                let depth = args.first().map_or(1, |depth| number(depth, u64::MAX));
                made(depth as f64, self.sized(target))
            }
            ("list_distinct", Some(target), []) => {
                let size = self.sized(target);
                made(2.0, size.times(size))
            }
            ("list_sets_contains_list" | "list_sets_intersects_list" | "list_sets_equivalent_list", _, [a, b]) => {
                let factor = if overload == "list_sets_equivalent_list" { 2.0 } else { 1.0 };
                Some((self.sized(a).times(self.sized(b)).scaled(factor).plus(ONE), None))
            }
            (_, Some(target), args) if overload.ends_with("_sort") || overload.ends_with("_sortByAssociatedKeys") => {
                let keys = args.first().unwrap_or(target);
                let texts = overload.starts_with("list_string") || overload.starts_with("list_bytes");
                let size = self.sized(keys);
                made(if texts { 2.0 + TEXT } else { 2.0 }, size.times(size))
            }
            _ => None,
        }
    }
}

fn known(arg: &Argument<'_>) -> Estimate {
    arg.size.unwrap_or(Estimate::UNKNOWN)
}

/// A literal whole number, not below zero; else what it is taken for.
fn number(arg: &Argument<'_>, otherwise: u64) -> u64 {
    match &arg.expr.kind {
        Kind::Literal(Literal::Int(value)) => u64::try_from(*value).unwrap_or_default(),
        _ => otherwise,
    }
}

/// Equality that does not depend on how large the values are.
fn equality(a: &Argument<'_>, b: &Argument<'_>) -> Option<Estimate> {
    let Type::Opaque(name) = &a.t else { return None };
    Some(match *name {
        "kubernetes.NamedFormat" => Estimate { min: 1, max: FORMAT_NAME }.scaled(TEXT),
        "kubernetes.URL" => {
            let most = match (a.size, b.size) {
                (Some(_), Some(size)) => size.max,
                _ => 1,
            };
            Estimate { min: 1, max: most }.scaled(TEXT)
        }
        _ => ONE,
    })
}

fn plain(overload: &str, target: Option<&Argument<'_>>, args: &[Argument<'_>]) -> Call {
    match (overload, target, args) {
        ("string_format", Some(target), _) => (known(target).scaled(TEXT), None),
        ("string_to_bytes", _, [arg]) => {
            let size = known(arg);
            (size.scaled(TEXT), Some(Estimate { min: size.min, max: size.max.wrapping_mul(4) }))
        }
        ("bytes_to_string", _, [arg]) => {
            let size = known(arg);
            (size.scaled(TEXT), Some(Estimate { min: size.min / 4, max: size.max }))
        }
        ("strings_quote", _, [arg]) => {
            let size = known(arg);
            let max = size.max.wrapping_mul(2).wrapping_add(2);
            (size.scaled(TEXT), Some(Estimate { min: size.min.wrapping_add(2), max }))
        }
        ("starts_with_string" | "ends_with_string", _, [arg]) => (known(arg).scaled(TEXT), None),
        ("in_list", _, [_, list]) => (known(list).scaled(1.0), None),
        ("matches_string", Some(target), [pattern]) => {
            (known(target).plus(ONE).scaled(TEXT).times(known(pattern).scaled(PATTERN)), None)
        }
        ("contains_string", Some(target), [part]) => (known(target).scaled(TEXT).times(known(part).scaled(TEXT)), None),
        (
            "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes"
            | "equals"
            | "not_equals",
            _,
            [a, b],
        ) => {
            let max = known(a).max.min(known(b).max);
            (Estimate { min: u64::from(max > 0), max }.scaled(TEXT), None)
        }
        _ => (ONE, None),
    }
}

/// How large a text can be once parts of it were replaced.
fn replaced(size: Estimate, old: Estimate, new: Estimate) -> Estimate {
    let (most, kept_most) = if old.min == 0 {
        (size.max.saturating_add(1), size.max)
    } else if new.max <= old.min {
        (0, size.max)
    } else {
        (size.max.div_ceil(old.min), 0)
    };
    let (least, kept_least) = if old.max == 0 {
        (size.min.saturating_add(1), size.min)
    } else if old.max <= new.min {
        (0, size.min)
    } else {
        (size.min.div_ceil(old.max), 0)
    };
    Estimate { min: least, max: most }.times(new).plus(Estimate { min: kept_least, max: kept_most })
}
