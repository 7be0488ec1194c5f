//! What a checked expression must still satisfy: literals that can be read, lists of one type, formats that fit.

use crate::ast::{Expr, Kind, Literal};
use crate::checker::Checked;
use crate::functions::format::{Piece, expectation, pieces};
use crate::functions::strings;
use crate::source::Issue;
use crate::time::{Time, parse_duration};
use crate::types::Type;

pub(crate) fn validate(expr: &Expr, checked: &Checked) -> Vec<Issue> {
    let mut issues = Vec::new();
    walk(expr, checked, false, &mut issues);
    issues
}

/// `formatting`: within the arguments of a format, where types may be mixed.
fn walk(expr: &Expr, checked: &Checked, formatting: bool, issues: &mut Vec<Issue>) {
    let mut inside = formatting;
    match &expr.kind {
        Kind::Call { function, target, args } => {
            inside |= &**function == "format";
            literal_argument(function, args, issues);
            if let (Some(target), [list], "format") = (target, args.as_slice(), &**function) {
                format_call(expr, target, list, checked, issues);
            }
        }
        Kind::List(elements) if !formatting => {
            let types = elements.iter().map(|e| (e.value.at, present(checked.type_of(&e.value), e.optional)));
            if let Some(issue) = mismatches(types).next() {
                issues.push(issue);
            }
        }
        Kind::Map(entries) if !formatting => {
            issues.extend(mismatches(entries.iter().map(|e| (e.key.at, checked.type_of(&e.key)))));
            let values = entries.iter().map(|e| (e.value.at, present(checked.type_of(&e.value), e.optional)));
            issues.extend(mismatches(values));
        }
        _ => {}
    }
    for child in expr.children() {
        walk(child, checked, inside, issues);
    }
}

fn present(t: &Type, optional: bool) -> &Type {
    match t {
        Type::Optional(inner) if optional => inner,
        _ => t,
    }
}

fn mismatches<'t>(mut types: impl Iterator<Item = (u32, &'t Type)>) -> impl Iterator<Item = Issue> {
    let first = types.next().map(|(_, t)| t.clone());
    let wrong: Vec<Issue> = types
        .filter_map(|(at, t)| {
            let first = first.as_ref()?;
            let message = format!("expected type '{first}' but found '{t}'");
            (!first.is_equivalent(t)).then_some(Issue { at: Some(at), message })
        })
        .collect();
    wrong.into_iter()
}

fn literal_argument(function: &str, args: &[Expr], issues: &mut Vec<Issue>) {
    let Some(arg) = args.first() else { return };
    let Kind::Literal(literal) = &arg.kind else { return };
    let valid = match (function, literal) {
        ("timestamp", Literal::String(text)) => Time::parse(text).is_some(),
        ("timestamp", Literal::Int(seconds)) => Time::from_seconds(*seconds).is_some(),
        ("duration", Literal::String(text)) => parse_duration(text).is_some(),
        ("duration", _) => false,
        ("matches", Literal::String(text)) => strings::compile(text).is_ok(),
        _ => true,
    };
    if !valid {
        issues.push(Issue { at: Some(arg.at), message: format!("invalid {function} argument") });
    }
}

/// A literal format with a literal list: every clause must get what it can show.
fn format_call(expr: &Expr, target: &Expr, list: &Expr, checked: &Checked, issues: &mut Vec<Issue>) {
    let (Kind::Literal(Literal::String(format)), Kind::List(args)) = (&target.kind, &list.kind) else { return };
    let mut complain = |at: u32, message: String| issues.push(Issue { at: Some(at), message });
    let pieces = match pieces(format) {
        Ok(pieces) => pieces,
        Err(message) => return complain(expr.at, message),
    };
    let verbs = pieces.iter().filter_map(|piece| match piece {
        Piece::Clause { verb, .. } => Some(*verb),
        _ => None,
    });
    let mut wanted = 0;
    for verb in verbs {
        let Some(arg) = args.get(wanted) else {
            return complain(expr.at, format!("index {wanted} out of range"));
        };
        wanted += 1;
        let t = checked.type_of(&arg.value);
        if !accepts(verb, t) {
            let message = format!("error during formatting: {}, was given {}", expectation(verb), runtime_name(t));
            return complain(arg.value.at, message);
        }
    }
    if args.len() > wanted {
        let message = format!("too many arguments supplied to string.format (expected {wanted}, got {})", args.len());
        complain(expr.at, message);
    }
}

fn accepts(verb: char, t: &Type) -> bool {
    if matches!(t, Type::Dyn | Type::Error) {
        return true;
    }
    match verb {
        's' => !matches!(t, Type::Optional(_) | Type::Opaque(_) | Type::Object(_)),
        'd' | 'o' => matches!(t, Type::Int | Type::Uint),
        'f' | 'e' => matches!(t, Type::Double | Type::String),
        'b' => matches!(t, Type::Int | Type::Uint | Type::Bool),
        _ => matches!(t, Type::Int | Type::Uint | Type::String | Type::Bytes),
    }
}

pub(crate) fn runtime_name(t: &Type) -> String {
    match t {
        Type::Null => "null_type".to_owned(),
        Type::Timestamp => "google.protobuf.Timestamp".to_owned(),
        Type::Duration => "google.protobuf.Duration".to_owned(),
        Type::List(_) => "list".to_owned(),
        Type::Map(_) => "map".to_owned(),
        Type::Optional(_) => "optional_type".to_owned(),
        Type::Type(_) => "type".to_owned(),
        other => other.to_string(),
    }
}
