//! Values that may be absent.

use super::unfit;
use crate::error::EvalError;
use crate::library::Args;
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, EvalError>;

pub(crate) fn of<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [value] = args.values else { return Err(unfit(args)) };
    let absent = args.function == "optional.ofNonZeroValue" && value.is_zero();
    Ok(if absent { Value::Optional(None) } else { Value::some(value.clone()) })
}

pub(crate) fn none<'a>(_: &Args<'_, 'a>) -> Outcome<'a> {
    Ok(Value::Optional(None))
}

pub(crate) fn value<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    match args.values {
        [Value::Optional(Some(value))] => Ok((**value).clone()),
        [Value::Optional(None)] => Err(EvalError::new("optional.none() dereference")),
        _ => Err(unfit(args)),
    }
}

pub(crate) fn has_value<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    match args.values {
        [Value::Optional(value)] => Ok(Value::Bool(value.is_some())),
        _ => Err(unfit(args)),
    }
}

/// `first` and `last`.
pub(crate) fn end<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::List(list)] = args.values else { return Err(unfit(args)) };
    let index = if args.function == "first" { Some(0) } else { list.len().checked_sub(1) };
    Ok(index.and_then(|index| list.get(index)).map_or(Value::Optional(None), Value::some))
}

pub(crate) fn unwrap<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::List(list)] = args.values else { return Err(unfit(args)) };
    let present = list.iter().filter_map(|value| match value {
        Value::Optional(Some(value)) => Some((*value).clone()),
        _ => None,
    });
    Ok(Value::list(present.collect()))
}
