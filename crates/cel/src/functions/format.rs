//! `"%s has %d".format([name, count])`.

use super::convert::show;
use super::unfit;
use crate::error::EvalError;
use crate::library::Args;
use crate::value::{Map, Value};

/// Digits after the point where none are asked for.
const PRECISION: usize = 6;
/// More digits than this are refused: nothing else would bound the text.
const MAX_PRECISION: usize = 100;

/// A piece of a format.
pub(crate) enum Piece<'t> {
    Text(&'t str),
    Percent,
    Clause { verb: char, precision: Option<usize> },
}

/// The pieces of a format; the error is told to who wrote it.
pub(crate) fn pieces(format: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        let (text, tail) = rest.split_at(at);
        if !text.is_empty() {
            found.push(Piece::Text(text));
        }
        let mut tail = tail.get(1..).unwrap_or_default();
        if let Some(after) = tail.strip_prefix('%') {
            found.push(Piece::Percent);
            rest = after;
            continue;
        }
        if tail.is_empty() {
            return Err("unexpected end of string".to_owned());
        }
        let mut precision = None;
        if let Some(after) = tail.strip_prefix('.') {
            let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, after) = after.split_at(digits);
            let refused =
                |why: &str| format!("could not parse formatting clause: error while parsing precision: {why}");
            if after.is_empty() {
                return Err(refused("could not find end of precision specifier"));
            }
            let parsed = number.parse().ok().filter(|number| *number <= MAX_PRECISION);
            precision =
                Some(parsed.ok_or_else(|| refused(&format!("error while converting precision to integer: {number}")))?);
            tail = after;
        }
        let verb = tail.chars().next().unwrap_or_default();
        if !"sdfebxXo".contains(verb) {
            return Err(format!("could not parse formatting clause: unrecognized formatting clause \"{verb}\""));
        }
        found.push(Piece::Clause { verb, precision });
        rest = tail.get(verb.len_utf8()..).unwrap_or_default();
    }
    if !rest.is_empty() {
        found.push(Piece::Text(rest));
    }
    Ok(found)
}

pub(crate) fn format<'a>(args: &Args<'_, 'a>) -> Result<Value<'a>, EvalError> {
    let [Value::String(format), Value::List(values)] = args.values else { return Err(unfit(args)) };
    let mut out = String::new();
    let mut next = 0;
    for piece in pieces(format).map_err(EvalError::new)? {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Percent => out.push('%'),
            Piece::Clause { verb, precision } => {
                let value = values.get(next).ok_or_else(|| EvalError::new(format!("index {next} out of range")))?;
                next += 1;
                let shown = clause(verb, precision, &value);
                out.push_str(&shown.map_err(|why| EvalError::new(format!("error during formatting: {why}")))?);
            }
        }
    }
    Ok(Value::string(out))
}

/// What a clause accepts, in the words it is refused with.
pub(crate) fn expectation(verb: char) -> &'static str {
    match verb {
        's' => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
        }
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'b' => "only integers and bools can be formatted as binary",
        'x' | 'X' => "only integers, byte buffers, and strings can be formatted as hex",
        _ => "octal clause can only be used on integers",
    }
}

fn clause(verb: char, precision: Option<usize>, value: &Value<'_>) -> Result<String, String> {
    let refusal = || format!("{}, was given {}", expectation(verb), value.type_name());
    let double = match value {
        Value::Double(value) => Some(*value),
        Value::String(text) => match &**text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    };
    Ok(match (verb, value) {
        ('s', _) => return string(value).map_err(|_| refusal()),
        ('d' | 'x' | 'X' | 'o' | 'b', Value::Int(number)) => signed(verb, *number),
        ('d' | 'x' | 'X' | 'o' | 'b', Value::Uint(number)) => digits(verb, *number),
        ('b', Value::Bool(value)) => u8::from(*value).to_string(),
        ('x' | 'X', Value::String(text)) => hex(verb, text.as_bytes()),
        ('x' | 'X', Value::Bytes(bytes)) => hex(verb, bytes),
        ('f', _) => match double {
            Some(double) => fixed(double, precision.unwrap_or(PRECISION)),
            None => return Err(refusal()),
        },
        ('e', _) => match double {
            Some(double) => scientific(double),
            None => return Err(refusal()),
        },
        _ => return Err(refusal()),
    })
}

fn signed(verb: char, number: i64) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", digits(verb, number.unsigned_abs()))
}

fn digits(verb: char, number: u64) -> String {
    match verb {
        'x' => format!("{number:x}"),
        'X' => format!("{number:X}"),
        'o' => format!("{number:o}"),
        'b' => format!("{number:b}"),
        _ => number.to_string(),
    }
}

fn hex(verb: char, bytes: &[u8]) -> String {
    bytes.iter().map(|byte| if verb == 'x' { format!("{byte:02x}") } else { format!("{byte:02X}") }).collect()
}

/// With commas between the thousands, as the locale of the United States has it.
fn fixed(value: f64, precision: usize) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "-∞" }.to_owned();
    }
    let plain = format!("{:.precision$}", value.abs());
    let (whole, fraction) = plain.split_once('.').map_or((plain.as_str(), None), |(w, f)| (w, Some(f)));
    let mut out = String::new();
    if value.is_sign_negative() {
        out.push('-');
    }
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// `1.500000×10⁰⁰`: upstream's locale writes it so, and does not look at the precision.
fn scientific(value: f64) -> String {
    if !value.is_finite() {
        return fixed(value, PRECISION);
    }
    let plain = format!("{value:.PRECISION$e}");
    let (mantissa, exponent) = plain.split_once('e').unwrap_or((&plain, "0"));
    let negative = exponent.starts_with('-');
    let power = format!("{:0>2}", exponent.trim_start_matches('-'));
    let raised: String = power
        .chars()
        .filter_map(|digit| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(usize::try_from(digit.to_digit(10)?).ok()?))
        .collect();
    format!("{mantissa}×10{}{raised}", if negative { "⁻" } else { "" })
}

/// The type that cannot be shown.
fn string(value: &Value<'_>) -> Result<String, String> {
    match value {
        Value::List(list) => {
            let items: Result<Vec<String>, String> = list.iter().map(|item| nested(&item)).collect();
            Ok(format!("[{}]", items?.join(", ")))
        }
        Value::Map(map) => show_map(map),
        Value::Null => Ok("null".to_owned()),
        Value::Opaque(_) | Value::Optional(_) | Value::Lazy(_) => Err(value.type_name().to_owned()),
        other => match show(other) {
            Some(Ok(text)) => Ok(text),
            _ => Err(other.type_name().to_owned()),
        },
    }
}

fn show_map(map: &Map<'_>) -> Result<String, String> {
    let mut entries = Vec::new();
    for key in map.keys() {
        let value = map.find(&key).ok().flatten().ok_or_else(|| key.type_name().to_owned())?;
        entries.push((nested(&key)?, nested(&value)?));
    }
    entries.sort();
    let shown: Vec<String> = entries.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
    Ok(format!("{{{}}}", shown.join(", ")))
}

/// A value within a list or a map is written as its literal.
fn nested(value: &Value<'_>) -> Result<String, String> {
    Ok(match value {
        Value::String(text) => format!("{:?}", &**text),
        Value::Bytes(bytes) => format!("b{:?}", String::from_utf8_lossy(bytes)),
        Value::Double(number) if number.is_finite() => format!("{number:.PRECISION$}"),
        Value::Double(number) => format!("{:?}", super::convert::show_double(*number)),
        Value::Timestamp(time) => format!("timestamp(\"{time}\")"),
        Value::Duration(nanos) => format!("duration(\"{}\")", crate::time::show_duration(*nanos)),
        other => string(other)?,
    })
}
