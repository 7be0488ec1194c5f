//! Strings by code points, regular expressions, and quoting.

use regex::Regex;

use super::unfit;
use crate::error::EvalError;
use crate::library::Args;
use crate::value::{Str, Value};

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// A pattern that compiles into more than this is refused.
const REGEX_SIZE: usize = 1 << 20;

pub(crate) fn compile(pattern: &str) -> Result<Regex, EvalError> {
    regex::RegexBuilder::new(pattern)
        .size_limit(REGEX_SIZE)
        .build()
        .map_err(|_| EvalError::new(format!("error parsing regexp: `{pattern}`")))
}

fn two<'x>(args: &'x Args<'_, '_>) -> Result<(&'x str, &'x str), EvalError> {
    match args.values {
        [Value::String(a), Value::String(b)] => Ok((a, b)),
        _ => Err(unfit(args)),
    }
}

pub(crate) fn contains<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    two(args).map(|(text, part)| Value::Bool(text.contains(part)))
}

pub(crate) fn starts_with<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    two(args).map(|(text, part)| Value::Bool(text.starts_with(part)))
}

pub(crate) fn ends_with<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    two(args).map(|(text, part)| Value::Bool(text.ends_with(part)))
}

fn with_regex<T>(args: &Args<'_, '_>, pattern: &str, act: impl FnOnce(&Regex) -> T) -> Result<T, EvalError> {
    match args.regex {
        Some(regex) => Ok(act(regex)),
        None => compile(pattern).map(|regex| act(&regex)),
    }
}

pub(crate) fn matches<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let (text, pattern) = two(args)?;
    with_regex(args, pattern, |regex| Value::Bool(regex.is_match(text)))
}

pub(crate) fn find<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let (text, pattern) = two(args)?;
    with_regex(args, pattern, |regex| Value::string(regex.find(text).map_or("", |found| found.as_str())))
}

pub(crate) fn find_all<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let (text, pattern, limit) = match args.values {
        [Value::String(text), Value::String(pattern)] => (text, pattern, -1),
        [Value::String(text), Value::String(pattern), Value::Int(limit)] => (text, pattern, *limit),
        _ => return Err(unfit(args)),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    with_regex(args, pattern, |regex| {
        Value::list(regex.find_iter(text).take(limit).map(|found| Value::string(found.as_str())).collect())
    })
}

fn out_of_range(index: i64) -> EvalError {
    EvalError::new(format!("index out of range: {index}"))
}

/// The place of the nth code point; the end of the text is one as well.
fn byte_at(text: &str, index: i64) -> Option<usize> {
    let index = usize::try_from(index).ok()?;
    text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(index)
}

pub(crate) fn char_at<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::String(text), Value::Int(index)] = args.values else { return Err(unfit(args)) };
    let at = byte_at(text, *index).ok_or_else(|| out_of_range(*index))?;
    let found: String = text.get(at..).unwrap_or_default().chars().take(1).collect();
    Ok(Value::string(found))
}

pub(crate) fn substring<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let (text, start, end) = match args.values {
        [Value::String(text), Value::Int(start)] => (text, *start, None),
        [Value::String(text), Value::Int(start), Value::Int(end)] => (text, *start, Some(*end)),
        _ => return Err(unfit(args)),
    };
    if let Some(end) = end.filter(|end| start > *end) {
        return Err(EvalError::new(format!("invalid substring range. start: {start}, end: {end}")));
    }
    let from = byte_at(text, start).ok_or_else(|| out_of_range(start))?;
    let to = match end {
        Some(end) => byte_at(text, end).ok_or_else(|| out_of_range(end))?,
        None => text.len(),
    };
    Ok(Value::string(text.get(from..to).unwrap_or_default()))
}

/// `indexOf` and `lastIndexOf`, in strings and in lists.
pub(crate) fn index_of<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let last = args.function == "lastIndexOf";
    if let [Value::List(list), wanted] = args.values {
        let found = list.iter().enumerate().filter(|(_, value)| value.equals(wanted)).map(|(index, _)| index);
        let found = if last { found.last() } else { found.take(1).last() };
        return Ok(Value::Int(found.and_then(|index| i64::try_from(index).ok()).unwrap_or(-1)));
    }
    let (text, part, offset) = match args.values {
        [Value::String(text), Value::String(part)] => (text, part, None),
        [Value::String(text), Value::String(part), Value::Int(offset)] => (text, part, Some(*offset)),
        _ => return Err(unfit(args)),
    };
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if part.is_empty() {
        return Ok(Value::Int(offset.unwrap_or(if last { length } else { 0 })));
    }
    if let Some(offset) = offset.filter(|offset| *offset < 0) {
        return Err(out_of_range(offset));
    }
    if offset.is_some_and(|offset| offset >= length) {
        return Ok(Value::Int(-1));
    }
    let found = if last {
        // The part may reach beyond the offset: only where it begins counts.
        let end =
            offset.and_then(|offset| byte_at(text, offset)).map_or(text.len(), |at| (at + part.len()).min(text.len()));
        let end = (end..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        text.get(..end).and_then(|head| head.rfind(&**part))
    } else {
        let start = offset.and_then(|offset| byte_at(text, offset)).unwrap_or_default();
        text.get(start..).and_then(|tail| tail.find(&**part)).map(|at| at + start)
    };
    let index = found.and_then(|at| text.get(..at)).map(|head| head.chars().count());
    Ok(Value::Int(index.and_then(|index| i64::try_from(index).ok()).unwrap_or(-1)))
}

pub(crate) fn change<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::String(text)] = args.values else { return Err(unfit(args)) };
    Ok(Value::string(match args.function {
        "lowerAscii" => text.to_ascii_lowercase(),
        "upperAscii" => text.to_ascii_uppercase(),
        _ => text.trim().to_owned(),
    }))
}

pub(crate) fn replace<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let (text, old, new, limit) = match args.values {
        [Value::String(text), Value::String(old), Value::String(new)] => (text, old, new, -1),
        [Value::String(text), Value::String(old), Value::String(new), Value::Int(limit)] => (text, old, new, *limit),
        _ => return Err(unfit(args)),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    Ok(Value::string(text.replacen(&**old, new, limit)))
}

pub(crate) fn split<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let (text, by, limit) = match args.values {
        [Value::String(text), Value::String(by)] => (text, by, -1),
        [Value::String(text), Value::String(by), Value::Int(limit)] => (text, by, *limit),
        _ => return Err(unfit(args)),
    };
    if limit == 0 {
        return Ok(Value::list(Vec::new()));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let parts: Vec<Value<'a>> =
        if by.is_empty() { characters(text, limit) } else { text.splitn(limit, &**by).map(Value::string).collect() };
    Ok(Value::list(parts))
}

/// A split by nothing: characters, the last of them with all that is left.
fn characters<'a>(text: &str, limit: usize) -> Vec<Value<'a>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if parts.len() + 1 == limit {
            parts.push(Value::string(rest));
            break;
        }
        let (head, tail) = rest.split_at(c.len_utf8());
        parts.push(Value::string(head));
        rest = tail;
    }
    parts
}

pub(crate) fn join<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let (list, by) = match args.values {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(by)] => (list, &**by),
        _ => return Err(unfit(args)),
    };
    let mut joined = String::new();
    for (index, value) in list.iter().enumerate() {
        // The first element decides which overload is meant.
        let Value::String(text) = &value else {
            return Err(if index == 0 { unfit(args) } else { EvalError::new("join: invalid input") });
        };
        if index > 0 {
            joined.push_str(by);
        }
        joined.push_str(text);
    }
    Ok(Value::string(joined))
}

pub(crate) fn quote<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::String(text)] = args.values else { return Err(unfit(args)) };
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    Ok(Value::string(quoted))
}

/// A key as a step of a JSON pointer.
pub(crate) fn escape_key<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::String(text)] = args.values else { return Err(unfit(args)) };
    Ok(match text.contains(['~', '/']) {
        true => Value::string(text.replace('~', "~0").replace('/', "~1")),
        false => Value::String(Str::clone(text)),
    })
}
