//! Quantities of resources; their comparisons are shared with versions, which have the same names for them.

use std::cmp::Ordering;

use api::quantity::Quantity;

use super::unfit;
use crate::error::EvalError;
use crate::library::Args;
use crate::opaque::Opaque;
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, EvalError>;

fn quantity(value: &Value<'_>) -> Option<Quantity> {
    match value {
        Value::Opaque(opaque) => match &**opaque {
            Opaque::Quantity(quantity) => Some(*quantity),
            _ => None,
        },
        _ => None,
    }
}

pub(crate) fn parse<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::String(text)] = args.values else { return Err(unfit(args)) };
    let parsed = Quantity::parse(text).map_err(|error| EvalError::new(error.to_string()))?;
    Ok(Value::opaque(Opaque::Quantity(parsed)))
}

pub(crate) fn is<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::String(text)] = args.values else { return Err(unfit(args)) };
    Ok(Value::Bool(Quantity::parse(text).is_ok()))
}

pub(crate) fn sign<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let quantity = args.values.first().and_then(quantity).ok_or_else(|| unfit(args))?;
    Ok(Value::Int(i64::from(quantity.is_positive()) - i64::from(quantity.is_negative())))
}

pub(crate) fn order<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::Opaque(a), Value::Opaque(b)] = args.values else { return Err(unfit(args)) };
    let order = match (&**a, &**b) {
        (Opaque::Quantity(a), Opaque::Quantity(b)) => a.cmp(b),
        (Opaque::Semver(a), Opaque::Semver(b)) => a.order(b),
        _ => return Err(unfit(args)),
    };
    Ok(match args.function {
        "isGreaterThan" => Value::Bool(order == Ordering::Greater),
        "isLessThan" => Value::Bool(order == Ordering::Less),
        _ => Value::Int(order as i64),
    })
}

pub(crate) fn number<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let quantity = args.values.first().and_then(quantity).ok_or_else(|| unfit(args))?;
    Ok(match args.function {
        "asApproximateFloat" => Value::Double(quantity.approximate()),
        "asInteger" => Value::Int(quantity.whole().ok_or_else(|| EvalError::new("cannot convert value to integer"))?),
        _ => Value::Bool(quantity.whole().is_some()),
    })
}

/// `add` and `sub`, of a quantity or of a whole number.
pub(crate) fn add<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [first, second] = args.values else { return Err(unfit(args)) };
    let second = match second {
        Value::Int(number) => Some(Quantity::from_whole(*number)),
        other => quantity(other),
    };
    let (Some(a), Some(b)) = (quantity(first), second) else { return Err(unfit(args)) };
    Ok(Value::opaque(Opaque::Quantity(if args.function == "add" { a.plus(b) } else { a.minus(b) })))
}
