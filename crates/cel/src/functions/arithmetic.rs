//! Operators on numbers, times, strings and lists. Nothing wraps around.

use std::cmp::Ordering;
use std::rc::Rc;

use super::unfit;
use crate::error::EvalError;
use crate::library::Args;
use crate::value::{List, Value};

type Outcome<'a> = Result<Value<'a>, EvalError>;

fn overflow() -> EvalError {
    EvalError::new("integer overflow")
}

fn unsigned_overflow() -> EvalError {
    EvalError::new("unsigned integer overflow")
}

/// Operators the evaluator performs itself, because they do not always look at all their arguments.
pub(crate) fn special<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    Err(unfit(args))
}

/// Whether the first argument knows the operator at all, whatever the second is.
pub(crate) fn has_operator(args: &Args<'_, '_>) -> bool {
    let Some(first) = args.values.first() else { return false };
    let number = matches!(first, Value::Int(_) | Value::Uint(_) | Value::Double(_));
    let time = matches!(first, Value::Timestamp(_) | Value::Duration(_));
    let text = matches!(first, Value::String(_) | Value::Bytes(_));
    match args.function {
        "_+_" => number || time || text || matches!(first, Value::List(_)),
        "_-_" => number || time,
        "_*_" | "_/_" => number,
        "_%_" => matches!(first, Value::Int(_) | Value::Uint(_)),
        "_<_" | "_<=_" | "_>_" | "_>=_" => number || time || text || matches!(first, Value::Bool(_)),
        "-_" => {
            matches!(first, Value::Int(_) | Value::Double(_) | Value::Duration(_) | Value::Bool(_) | Value::String(_))
        }
        _ => false,
    }
}

pub(crate) fn not<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    match args.values {
        [Value::Bool(value)] => Ok(Value::Bool(!value)),
        _ => Err(unfit(args)),
    }
}

pub(crate) fn add<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    Ok(match args.values {
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_add(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a.checked_add(*b).ok_or_else(unsigned_overflow)?),
        [Value::Double(a), Value::Double(b)] => Value::Double(a + b),
        [Value::String(a), Value::String(b)] => Value::string(format!("{}{}", &**a, &**b)),
        [Value::Bytes(a), Value::Bytes(b)] => Value::Bytes([&**a, &**b].concat().into()),
        [Value::Duration(a), Value::Duration(b)] => Value::Duration(a.checked_add(*b).ok_or_else(overflow)?),
        [Value::Timestamp(time), Value::Duration(d)] | [Value::Duration(d), Value::Timestamp(time)] => {
            Value::Timestamp(time.plus(i128::from(*d))?)
        }
        [Value::List(a), Value::List(b)] => add_lists(a, b),
        _ => return Err(unfit(args)),
    })
}

fn add_lists<'a>(a: &List<'a>, b: &List<'a>) -> Value<'a> {
    if let List::Json(_, Some(schema)) = a
        && let Some(sum) = schema.lists_added(a, b)
    {
        return Value::list(sum);
    }
    Value::list(a.iter().chain(b.iter()).collect())
}

/// Appends to a list nobody else holds without copying it: what a fold does over and over.
pub(crate) fn append<'a>(list: Value<'a>, more: Value<'a>) -> Result<Value<'a>, (Value<'a>, Value<'a>)> {
    match (list, more) {
        (Value::List(List::Values(mut values)), Value::List(more)) => match Rc::get_mut(&mut values) {
            Some(own) => {
                own.extend(more.iter());
                Ok(Value::List(List::Values(values)))
            }
            None => Err((Value::List(List::Values(values)), Value::List(more))),
        },
        other => Err(other),
    }
}

pub(crate) fn subtract<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    Ok(match args.values {
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_sub(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a.checked_sub(*b).ok_or_else(unsigned_overflow)?),
        [Value::Double(a), Value::Double(b)] => Value::Double(a - b),
        [Value::Duration(a), Value::Duration(b)] => Value::Duration(a.checked_sub(*b).ok_or_else(overflow)?),
        [Value::Timestamp(a), Value::Timestamp(b)] => Value::Duration(a.minus(*b).map_err(|_| overflow())?),
        [Value::Timestamp(time), Value::Duration(d)] => Value::Timestamp(time.plus(-i128::from(*d))?),
        _ => return Err(unfit(args)),
    })
}

pub(crate) fn multiply<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    Ok(match args.values {
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_mul(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a.checked_mul(*b).ok_or_else(unsigned_overflow)?),
        [Value::Double(a), Value::Double(b)] => Value::Double(a * b),
        _ => return Err(unfit(args)),
    })
}

pub(crate) fn divide<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    Ok(match args.values {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            return Err(EvalError::new("division by zero"));
        }
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_div(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a / b),
        [Value::Double(a), Value::Double(b)] => Value::Double(a / b),
        _ => return Err(unfit(args)),
    })
}

pub(crate) fn modulo<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    Ok(match args.values {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            return Err(EvalError::new("modulus by zero"));
        }
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_rem(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => Value::Uint(a % b),
        _ => return Err(unfit(args)),
    })
}

pub(crate) fn negate<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    Ok(match args.values {
        [Value::Int(a)] => Value::Int(a.checked_neg().ok_or_else(overflow)?),
        [Value::Double(a)] => Value::Double(-a),
        [Value::Duration(a)] => Value::Duration(a.checked_neg().ok_or_else(overflow)?),
        _ => return Err(unfit(args)),
    })
}

pub(crate) fn order<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [a, b] = args.values else { return Err(unfit(args)) };
    if !has_operator(args) {
        return Err(unfit(args));
    }
    let order = a.compare(b)?;
    Ok(Value::Bool(match args.function {
        "_<_" => order == Ordering::Less,
        "_<=_" => order != Ordering::Greater,
        "_>_" => order == Ordering::Greater,
        _ => order != Ordering::Less,
    }))
}
