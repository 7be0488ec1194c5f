//! From one type to another, where nothing is lost.

use super::unfit;
use crate::error::EvalError;
use crate::library::Args;
use crate::opaque::Opaque;
use crate::time::{Time, parse_duration, show_duration};
use crate::value::{Str, Value};

type Outcome<'a> = Result<Value<'a>, EvalError>;

fn overflow() -> EvalError {
    EvalError::new("integer overflow")
}

fn unsigned_overflow() -> EvalError {
    EvalError::new("unsigned integer overflow")
}

fn unreadable(to: &str) -> EvalError {
    EvalError::new(format!("type conversion error from 'string' to '{to}'"))
}

pub(crate) fn to_dyn<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    args.values.first().cloned().ok_or_else(|| unfit(args))
}

pub(crate) fn to_type<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let value = args.values.first().ok_or_else(|| unfit(args))?;
    Ok(Value::Type(Str::Owned(value.type_name().into())))
}

pub(crate) fn to_bool<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    match args.values {
        [value @ Value::Bool(_)] => Ok(value.clone()),
        [Value::String(text)] => match &**text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Value::Bool(false)),
            _ => Err(unreadable("bool")),
        },
        _ => Err(unfit(args)),
    }
}

pub(crate) fn to_bytes<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    match args.values {
        [value @ Value::Bytes(_)] => Ok(value.clone()),
        [Value::String(text)] => Ok(Value::Bytes(text.as_bytes().into())),
        _ => Err(unfit(args)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "the nearest double is what is asked for")]
pub(crate) fn to_double<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    Ok(Value::Double(match args.values {
        [Value::Double(value)] => *value,
        [Value::Int(value)] => *value as f64,
        [Value::Uint(value)] => *value as f64,
        [Value::String(text)] => parse_double(text).ok_or_else(|| unreadable("double"))?,
        _ => return Err(unfit(args)),
    }))
}

fn parse_double(text: &str) -> Option<f64> {
    let value: f64 = text.parse().ok()?;
    // Beyond what a double holds: refused, unless infinity was meant.
    let meant = text.trim_start_matches(['+', '-']).starts_with(['i', 'I']);
    (value.is_finite() || value.is_nan() || meant).then_some(value)
}

pub(crate) fn to_duration<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    match args.values {
        [value @ Value::Duration(_)] => Ok(value.clone()),
        [Value::Int(nanos)] => Ok(Value::Duration(*nanos)),
        [Value::String(text)] => {
            parse_duration(text).map(Value::Duration).ok_or_else(|| unreadable("google.protobuf.Duration"))
        }
        _ => Err(unfit(args)),
    }
}

pub(crate) fn to_timestamp<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    match args.values {
        [value @ Value::Timestamp(_)] => Ok(value.clone()),
        [Value::Int(seconds)] => {
            Time::from_seconds(*seconds).map(Value::Timestamp).ok_or_else(|| EvalError::new("timestamp overflow"))
        }
        [Value::String(text)] => {
            Time::parse(text).map(Value::Timestamp).ok_or_else(|| unreadable("google.protobuf.Timestamp"))
        }
        _ => Err(unfit(args)),
    }
}

pub(crate) fn to_int<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    Ok(Value::Int(match args.values {
        [Value::Int(value)] | [Value::Duration(value)] => *value,
        [Value::Uint(value)] => i64::try_from(*value).map_err(|_| overflow())?,
        [Value::Double(value)] => double_to_int(*value).ok_or_else(overflow)?,
        [Value::Timestamp(time)] => time.seconds(),
        [Value::String(text)] => text.parse().map_err(|_| unreadable("int"))?,
        _ => return Err(unfit(args)),
    }))
}

#[expect(clippy::cast_possible_truncation, reason = "the range was checked")]
fn double_to_int(value: f64) -> Option<i64> {
    (value > -9_223_372_036_854_775_808.0 && value < 9_223_372_036_854_775_808.0).then_some(value as i64)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
fn double_to_uint(value: f64) -> Option<u64> {
    (0.0..18_446_744_073_709_551_616.0).contains(&value).then_some(value as u64)
}

pub(crate) fn to_uint<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    Ok(Value::Uint(match args.values {
        [Value::Uint(value)] => *value,
        [Value::Int(value)] => u64::try_from(*value).map_err(|_| unsigned_overflow())?,
        [Value::Double(value)] => double_to_uint(*value).ok_or_else(unsigned_overflow)?,
        [Value::String(text)] => text.parse().map_err(|_| unreadable("uint"))?,
        _ => return Err(unfit(args)),
    }))
}

pub(crate) fn to_string<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    match args.values {
        [value @ Value::String(_)] => Ok(value.clone()),
        [value] => match show(value) {
            Some(text) => text.map(Value::string),
            None => Err(unfit(args)),
        },
        _ => Err(unfit(args)),
    }
}

/// A value as text; `None` for what has no text.
pub(crate) fn show(value: &Value<'_>) -> Option<Result<String, EvalError>> {
    Some(Ok(match value {
        Value::String(text) | Value::Type(text) => text.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => show_double(*value),
        Value::Timestamp(time) => time.to_string(),
        Value::Duration(nanos) => show_duration(*nanos),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => return Some(Err(EvalError::new("invalid UTF-8 in bytes, cannot convert to string"))),
        },
        Value::Opaque(opaque) => match &**opaque {
            Opaque::Ip(ip) => ip.to_string(),
            Opaque::Cidr(cidr) => cidr.to_string(),
            _ => return None,
        },
        _ => return None,
    }))
}

/// The shortest digits that mean this double; with an exponent below a ten thousandth and from a million.
pub(crate) fn show_double(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
