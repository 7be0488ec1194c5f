//! What a call costs when it is made, in upstream's units.

use crate::functions::named::Format;
use crate::opaque::Opaque;
use crate::value::Value;

pub(crate) const SELECT: u64 = 1;
pub(crate) const LIST: u64 = 10;
pub(crate) const MAP: u64 = 30;
pub(crate) const STRUCT: u64 = 40;
/// One authorization check is as dear as a third of an expression.
const CHECK: u64 = 350_000;

/// A tenth of a unit for each character, rounded up.
fn text(size: u64) -> u64 {
    size.div_ceil(10)
}

/// A pattern over a text: both are walked.
fn pattern(text_size: u64, pattern_size: u64) -> u64 {
    text(text_size + 1).saturating_mul(pattern_size.div_ceil(4))
}

pub(crate) fn size(value: &Value<'_>) -> u64 {
    match value {
        Value::Optional(Some(value)) => size(value),
        Value::Opaque(opaque) => match &**opaque {
            Opaque::Cidr(cidr) => cidr.size() as u64,
            Opaque::Ip(ip) => {
                if ip.is_ipv4() {
                    4
                } else {
                    16
                }
            }
            _ => 1,
        },
        other => other.size().map_or(1, |size| size as u64),
    }
}

/// How much there is to walk through in a value, in units.
fn traversal(value: &Value<'_>) -> u64 {
    match value {
        Value::String(text) => text.len() as u64 / 10,
        Value::Bytes(bytes) => bytes.len() as u64 / 10,
        Value::List(list) => list.iter().map(|item| traversal(&item)).sum(),
        Value::Map(map) => {
            let each = |key: &Value<'_>| {
                let value = map.find(key).ok().flatten();
                traversal(key) + value.map_or(0, |value| traversal(&value))
            };
            map.keys().iter().map(each).sum()
        }
        _ => 1,
    }
}

/// Every element of a list against every other.
fn self_compare(list: &Value<'_>) -> u64 {
    let count = size(list);
    let first = if let Value::List(list) = list { list.get(0) } else { None };
    let tenths = if matches!(first, Some(Value::String(_) | Value::Bytes(_))) { 21 } else { 20 };
    (count.saturating_mul(count)).saturating_mul(tenths) / 10 + 1 + LIST
}

pub(crate) fn equality(a: &Value<'_>, b: &Value<'_>) -> u64 {
    match a {
        Value::Opaque(_) => 1,
        _ => text(size(a).min(size(b))),
    }
}

/// `overload` is empty where the types did not decide; then only the name tells what it costs.
pub(crate) fn call(name: &str, overload: &str, args: &[Value<'_>], result: Option<&Value<'_>>) -> u64 {
    let arg = |index: usize| args.get(index).map_or(1, size);
    let made = || result.map_or(1, size);
    match name {
        "check" => return CHECK,
        "fieldSelector" | "labelSelector" => return LIST + text(arg(1)) + arg(1).div_ceil(2) * (LIST + STRUCT),
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => return args.first().map_or(0, traversal),
        "url"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "jsonpatch.escapeKey"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver" => return text(arg(0)),
        "replace" | "split" | "ip.isCanonical" => return (arg(0) * 2).div_ceil(10),
        "join" => return (made() * 2).div_ceil(10),
        "find" | "findAll" => return pattern(arg(0), arg(1)),
        "ip" => return if overload == "cidr_ip" { 1 } else { text(arg(0)) },
        "containsIP" | "containsCIDR" => return contains(name, overload, arg(0), arg(1)),
        "validate" => {
            if let Some(format) = args.first().and_then(format_of) {
                return pattern(arg(1), format.pattern);
            }
        }
        _ => {}
    }
    match overload {
        "starts_with_string" | "ends_with_string" | "string_to_bytes" | "bytes_to_string" | "strings_quote"
        | "string_format" => text(arg(0)),
        "in_list" => arg(1),
        "less_string"
        | "greater_string"
        | "less_equals_string"
        | "greater_equals_string"
        | "less_bytes"
        | "greater_bytes"
        | "less_equals_bytes"
        | "greater_equals_bytes" => text(arg(0).min(arg(1))),
        "add_string" | "add_bytes" => text(arg(0) + arg(1)),
        "matches_string" => pattern(arg(0), arg(1)),
        "contains_string" => text(arg(0)).saturating_mul(text(arg(1))),
        "list_slice" | "lists_range" | "list_reverse" => made() + 1 + LIST,
        "list_flatten" => arg(0) + 1 + LIST,
        "list_flatten_int" => match args.get(1) {
            Some(Value::Int(depth)) => arg(0).saturating_mul(u64::try_from(*depth).unwrap_or_default()) + 1 + LIST,
            _ => 1,
        },
        "list_distinct" => args.first().map_or(1, self_compare),
        "list_sets_contains_list" | "list_sets_intersects_list" => 1 + arg(0).saturating_mul(arg(1)),
        "list_sets_equivalent_list" => 1 + arg(0).saturating_mul(arg(1)).saturating_mul(2),
        other if other.ends_with("_sort") => args.first().map_or(1, self_compare),
        other if other.ends_with("_sortByAssociatedKeys") => args.get(1).map_or(1, self_compare),
        _ => 1,
    }
}

fn contains(name: &str, overload: &str, network: u64, other: u64) -> u64 {
    let parsed = if overload.ends_with("string") { text(other) } else { 0 };
    let compared = (network * 2).div_ceil(10) + parsed;
    if name == "containsIP" { compared } else { compared + text(network) + 1 }
}

fn format_of<'v>(value: &'v Value<'_>) -> Option<&'v Format> {
    match value {
        Value::Opaque(opaque) => match &**opaque {
            Opaque::Format(format) => Some(format),
            _ => None,
        },
        _ => None,
    }
}
