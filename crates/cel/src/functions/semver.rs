//! Semantic versions.

use std::cmp::Ordering;
use std::fmt;

use super::unfit;
use crate::error::EvalError;
use crate::library::Args;
use crate::opaque::Opaque;
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, EvalError>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semver {
    numbers: [u64; 3],
    pre: Vec<String>,
    build: Vec<String>,
}

impl Semver {
    /// The error says what is wrong in the words of upstream's parser.
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(patch)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let (patch, build) = match patch.split_once('+') {
            Some((patch, build)) => (patch, Some(build)),
            None => (patch, None),
        };
        let (patch, pre) = match patch.split_once('-') {
            Some((patch, pre)) => (patch, Some(pre)),
            None => (patch, None),
        };
        let numbers = [number("Major", major)?, number("Minor", minor)?, number("Patch", patch)?];
        let pre: Vec<String> = pre.into_iter().flat_map(|pre| pre.split('.')).map(str::to_owned).collect();
        for part in &pre {
            if part.is_empty() {
                return Err("Prerelease is empty".to_owned());
            }
            if numeric(part) && part.len() > 1 && part.starts_with('0') {
                return Err(format!("Numeric PreRelease version must not contain leading zeroes {part:?}"));
            }
            if !plain(part) {
                return Err(format!("Invalid character(s) found in prerelease {part:?}"));
            }
        }
        let build: Vec<String> = build.into_iter().flat_map(|build| build.split('.')).map(str::to_owned).collect();
        for part in &build {
            if part.is_empty() {
                return Err("Build meta data is empty".to_owned());
            }
            if !plain(part) {
                return Err(format!("Invalid character(s) found in build meta data {part:?}"));
            }
        }
        Ok(Self { numbers, pre, build })
    }

    /// `v1.2` and `01.2.3` are understood as well.
    fn parse_leniently(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(without_zeros).collect();
        if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
            return Err("short version cannot contain PreRelease/Build meta data".to_owned());
        }
        parts.resize(3, "0".to_owned());
        Self::parse(&parts.join("."))
    }

    /// Build metadata does not count.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        let by_number = self.numbers.cmp(&other.numbers);
        if by_number != Ordering::Equal {
            return by_number;
        }
        match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let differing = self.pre.iter().zip(&other.pre).map(|(a, b)| order_pre(a, b)).find(|o| o.is_ne());
                differing.unwrap_or_else(|| self.pre.len().cmp(&other.pre.len()))
            }
        }
    }
}

impl fmt::Display for Semver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")?;
        for (sign, parts) in [('-', &self.pre), ('+', &self.build)] {
            if !parts.is_empty() {
                write!(f, "{sign}{}", parts.join("."))?;
            }
        }
        Ok(())
    }
}

fn without_zeros(part: &str) -> String {
    if part.len() <= 1 {
        return part.to_owned();
    }
    let rest = part.trim_start_matches('0');
    if rest.starts_with(|c: char| c.is_ascii_digit()) { rest.to_owned() } else { format!("0{rest}") }
}

fn numeric(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())
}

fn plain(part: &str) -> bool {
    part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn number(what: &str, text: &str) -> Result<u64, String> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {} number {text:?}", what.to_lowercase()));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{what} number must not contain leading zeroes {text:?}"));
    }
    text.parse().map_err(|_| format!("strconv.ParseUint: parsing {text:?}: invalid syntax"))
}

fn order_pre(a: &str, b: &str) -> Ordering {
    match (numeric(a), numeric(b)) {
        (true, true) => a.len().cmp(&b.len()).then_with(|| a.cmp(b)),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => a.cmp(b),
    }
}

fn read(args: &Args<'_, '_>) -> Result<Result<Semver, String>, EvalError> {
    match args.values {
        [Value::String(text)] | [Value::String(text), Value::Bool(false)] => Ok(Semver::parse(text)),
        [Value::String(text), Value::Bool(true)] => Ok(Semver::parse_leniently(text)),
        _ => Err(unfit(args)),
    }
}

pub(crate) fn parse<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    Ok(Value::opaque(Opaque::Semver(read(args)?.map_err(EvalError::new)?)))
}

pub(crate) fn is<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    Ok(Value::Bool(read(args)?.is_ok()))
}

pub(crate) fn part<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::Opaque(opaque)] = args.values else { return Err(unfit(args)) };
    let Opaque::Semver(Semver { numbers: [major, minor, patch], .. }) = &**opaque else { return Err(unfit(args)) };
    let number = match args.function {
        "major" => major,
        "minor" => minor,
        _ => patch,
    };
    Ok(Value::Int(i64::try_from(*number).unwrap_or(i64::MAX)))
}
