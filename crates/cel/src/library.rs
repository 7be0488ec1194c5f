//! Every function of the language as Kubernetes v1.36 enables it: its overloads and who performs it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use regex::Regex;

use crate::error::EvalError;
use crate::functions::{
    arithmetic, authz, convert, format, lists, named, net, optional, quantity, semver, strings, time, url,
};
use crate::types::{Param, Type};
use crate::value::Value;

/// What a function is called with. `regex` is the pattern argument, where it was known before.
pub(crate) struct Args<'x, 'a> {
    pub(crate) function: &'static str,
    pub(crate) values: &'x [Value<'a>],
    pub(crate) regex: Option<&'x Regex>,
}

pub(crate) type Perform = for<'x, 'a> fn(&Args<'x, 'a>) -> Result<Value<'a>, EvalError>;

pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) perform: Perform,
    pub(crate) overloads: Vec<Overload>,
}

pub(crate) struct Overload {
    pub(crate) id: &'static str,
    pub(crate) member: bool,
    pub(crate) args: Vec<Type>,
    pub(crate) result: Type,
    /// The letters that stand for types in it.
    pub(crate) params: Vec<char>,
}

/// Name, performer, overloads: `id(arguments)result`, with a dot before the id of one that is called on its first argument.
type Row = (&'static str, Perform, &'static str);

#[rustfmt::skip]
const OPERATORS: &[Row] = &[
    ("_?_:_", arithmetic::special, "conditional(bool,A,A)A"),
    ("_&&_", arithmetic::special, "logical_and(bool,bool)bool"),
    ("_||_", arithmetic::special, "logical_or(bool,bool)bool"),
    ("!_", arithmetic::not, "logical_not(bool)bool"),
    ("@not_strictly_false", arithmetic::special, "not_strictly_false(bool)bool"),
    ("_==_", arithmetic::special, "equals(A,A)bool"),
    ("_!=_", arithmetic::special, "not_equals(A,A)bool"),
    ("_+_", arithmetic::add, "add_bytes(bytes,bytes)bytes add_double(double,double)double \
        add_duration_duration(duration,duration)duration add_duration_timestamp(duration,timestamp)timestamp \
        add_timestamp_duration(timestamp,duration)timestamp add_int64(int,int)int add_list(list(A),list(A))list(A) \
        add_string(string,string)string add_uint64(uint,uint)uint"),
    ("_/_", arithmetic::divide, "divide_double(double,double)double divide_int64(int,int)int divide_uint64(uint,uint)uint"),
    ("_%_", arithmetic::modulo, "modulo_int64(int,int)int modulo_uint64(uint,uint)uint"),
    ("_*_", arithmetic::multiply, "multiply_double(double,double)double multiply_int64(int,int)int multiply_uint64(uint,uint)uint"),
    ("-_", arithmetic::negate, "negate_double(double)double negate_int64(int)int"),
    ("_-_", arithmetic::subtract, "subtract_double(double,double)double subtract_duration_duration(duration,duration)duration \
        subtract_int64(int,int)int subtract_timestamp_duration(timestamp,duration)timestamp \
        subtract_timestamp_timestamp(timestamp,timestamp)duration subtract_uint64(uint,uint)uint"),
    ("_<_", arithmetic::order, "less_bool(bool,bool)bool less_int64(int,int)bool less_int64_double(int,double)bool \
        less_int64_uint64(int,uint)bool less_uint64(uint,uint)bool less_uint64_double(uint,double)bool \
        less_uint64_int64(uint,int)bool less_double(double,double)bool less_double_int64(double,int)bool \
        less_double_uint64(double,uint)bool less_string(string,string)bool less_bytes(bytes,bytes)bool \
        less_timestamp(timestamp,timestamp)bool less_duration(duration,duration)bool"),
    ("_<=_", arithmetic::order, "less_equals_bool(bool,bool)bool less_equals_int64(int,int)bool \
        less_equals_int64_double(int,double)bool less_equals_int64_uint64(int,uint)bool less_equals_uint64(uint,uint)bool \
        less_equals_uint64_double(uint,double)bool less_equals_uint64_int64(uint,int)bool less_equals_double(double,double)bool \
        less_equals_double_int64(double,int)bool less_equals_double_uint64(double,uint)bool less_equals_string(string,string)bool \
        less_equals_bytes(bytes,bytes)bool less_equals_timestamp(timestamp,timestamp)bool less_equals_duration(duration,duration)bool"),
    ("_>_", arithmetic::order, "greater_bool(bool,bool)bool greater_int64(int,int)bool greater_int64_double(int,double)bool \
        greater_int64_uint64(int,uint)bool greater_uint64(uint,uint)bool greater_uint64_double(uint,double)bool \
        greater_uint64_int64(uint,int)bool greater_double(double,double)bool greater_double_int64(double,int)bool \
        greater_double_uint64(double,uint)bool greater_string(string,string)bool greater_bytes(bytes,bytes)bool \
        greater_timestamp(timestamp,timestamp)bool greater_duration(duration,duration)bool"),
    ("_>=_", arithmetic::order, "greater_equals_bool(bool,bool)bool greater_equals_int64(int,int)bool \
        greater_equals_int64_double(int,double)bool greater_equals_int64_uint64(int,uint)bool greater_equals_uint64(uint,uint)bool \
        greater_equals_uint64_double(uint,double)bool greater_equals_uint64_int64(uint,int)bool greater_equals_double(double,double)bool \
        greater_equals_double_int64(double,int)bool greater_equals_double_uint64(double,uint)bool \
        greater_equals_string(string,string)bool greater_equals_bytes(bytes,bytes)bool \
        greater_equals_timestamp(timestamp,timestamp)bool greater_equals_duration(duration,duration)bool"),
    ("_[_]", arithmetic::special, "index_list(list(A),int)A index_map(map(A,B),A)B \
        optional_list_index_int(optional(list(V)),int)optional(V) optional_map_index_value(optional(map(K,V)),K)optional(V)"),
    ("_?._", arithmetic::special, "select_optional_field(dyn,string)optional(V)"),
    ("_[?_]", arithmetic::special, "list_optindex_optional_int(list(V),int)optional(V) \
        optional_list_optindex_optional_int(optional(list(V)),int)optional(V) \
        map_optindex_optional_value(map(K,V),K)optional(V) optional_map_optindex_optional_value(optional(map(K,V)),K)optional(V)"),
    ("@in", lists::contains, "in_list(A,list(A))bool in_map(A,map(A,B))bool"),
    ("size", lists::size, "size_bytes(bytes)int .bytes_size(bytes)int size_list(list(A))int .list_size(list(A))int \
        size_map(map(A,B))int .map_size(map(A,B))int size_string(string)int .string_size(string)int"),
];

#[rustfmt::skip]
const CONVERSIONS: &[Row] = &[
    ("type", convert::to_type, "type(A)type(A)"),
    ("bool", convert::to_bool, "bool_to_bool(bool)bool string_to_bool(string)bool"),
    ("bytes", convert::to_bytes, "bytes_to_bytes(bytes)bytes string_to_bytes(string)bytes"),
    ("double", convert::to_double, "double_to_double(double)double int64_to_double(int)double string_to_double(string)double \
        uint64_to_double(uint)double"),
    ("duration", convert::to_duration, "duration_to_duration(duration)duration int64_to_duration(int)duration \
        string_to_duration(string)duration"),
    ("dyn", convert::to_dyn, "to_dyn(A)dyn"),
    ("int", convert::to_int, "int64_to_int64(int)int double_to_int64(double)int duration_to_int64(duration)int \
        string_to_int64(string)int timestamp_to_int64(timestamp)int uint64_to_int64(uint)int"),
    ("string", convert::to_string, "string_to_string(string)string bool_to_string(bool)string bytes_to_string(bytes)string \
        double_to_string(double)string duration_to_string(duration)string int64_to_string(int)string \
        timestamp_to_string(timestamp)string uint64_to_string(uint)string ip_to_string(net.IP)string cidr_to_string(net.CIDR)string"),
    ("timestamp", convert::to_timestamp, "timestamp_to_timestamp(timestamp)timestamp int64_to_timestamp(int)timestamp \
        string_to_timestamp(string)timestamp"),
    ("uint", convert::to_uint, "uint64_to_uint64(uint)uint double_to_uint64(double)uint int64_to_uint64(int)uint string_to_uint64(string)uint"),
];

#[rustfmt::skip]
const STRINGS: &[Row] = &[
    ("contains", strings::contains, ".contains_string(string,string)bool"),
    ("endsWith", strings::ends_with, ".ends_with_string(string,string)bool"),
    ("startsWith", strings::starts_with, ".starts_with_string(string,string)bool"),
    ("matches", strings::matches, "matches(string,string)bool .matches_string(string,string)bool"),
    ("find", strings::find, ".string_find_string(string,string)string"),
    ("findAll", strings::find_all, ".string_find_all_string(string,string)list(string) .string_find_all_string_int(string,string,int)list(string)"),
    ("charAt", strings::char_at, ".string_char_at_int(string,int)string"),
    ("indexOf", strings::index_of, ".string_index_of_string(string,string)int .string_index_of_string_int(string,string,int)int \
        .list_a_index_of_int(list(A),A)int"),
    ("lastIndexOf", strings::index_of, ".string_last_index_of_string(string,string)int \
        .string_last_index_of_string_int(string,string,int)int .list_a_last_index_of_int(list(A),A)int"),
    ("lowerAscii", strings::change, ".string_lower_ascii(string)string"),
    ("upperAscii", strings::change, ".string_upper_ascii(string)string"),
    ("trim", strings::change, ".string_trim(string)string"),
    ("replace", strings::replace, ".string_replace_string_string(string,string,string)string \
        .string_replace_string_string_int(string,string,string,int)string"),
    ("split", strings::split, ".string_split_string(string,string)list(string) .string_split_string_int(string,string,int)list(string)"),
    ("substring", strings::substring, ".string_substring_int(string,int)string .string_substring_int_int(string,int,int)string"),
    ("join", strings::join, ".list_join(list(string))string .list_join_string(list(string),string)string"),
    ("strings.quote", strings::quote, "strings_quote(string)string"),
    ("format", format::format, ".string_format(string,list(dyn))string"),
];

#[rustfmt::skip]
const TIMES: &[Row] = &[
    ("getFullYear", time::part, ".timestamp_to_year(timestamp)int .timestamp_to_year_with_tz(timestamp,string)int"),
    ("getMonth", time::part, ".timestamp_to_month(timestamp)int .timestamp_to_month_with_tz(timestamp,string)int"),
    ("getDayOfYear", time::part, ".timestamp_to_day_of_year(timestamp)int .timestamp_to_day_of_year_with_tz(timestamp,string)int"),
    ("getDayOfMonth", time::part, ".timestamp_to_day_of_month(timestamp)int .timestamp_to_day_of_month_with_tz(timestamp,string)int"),
    ("getDate", time::part, ".timestamp_to_day_of_month_1_based(timestamp)int .timestamp_to_day_of_month_1_based_with_tz(timestamp,string)int"),
    ("getDayOfWeek", time::part, ".timestamp_to_day_of_week(timestamp)int .timestamp_to_day_of_week_with_tz(timestamp,string)int"),
    ("getHours", time::part, ".timestamp_to_hours(timestamp)int .timestamp_to_hours_with_tz(timestamp,string)int .duration_to_hours(duration)int"),
    ("getMinutes", time::part, ".timestamp_to_minutes(timestamp)int .timestamp_to_minutes_with_tz(timestamp,string)int \
        .duration_to_minutes(duration)int"),
    ("getSeconds", time::part, ".timestamp_to_seconds(timestamp)int .timestamp_to_seconds_tz(timestamp,string)int .duration_to_seconds(duration)int"),
    ("getMilliseconds", time::part, ".timestamp_to_milliseconds(timestamp)int .timestamp_to_milliseconds_with_tz(timestamp,string)int \
        .duration_to_milliseconds(duration)int"),
];

#[rustfmt::skip]
const LISTS: &[Row] = &[
    ("isSorted", lists::is_sorted, ".list_int_is_sorted_bool(list(int))bool .list_uint_is_sorted_bool(list(uint))bool \
        .list_double_is_sorted_bool(list(double))bool .list_bool_is_sorted_bool(list(bool))bool \
        .list_duration_is_sorted_bool(list(duration))bool .list_timestamp_is_sorted_bool(list(timestamp))bool \
        .list_string_is_sorted_bool(list(string))bool .list_bytes_is_sorted_bool(list(bytes))bool"),
    ("sum", lists::sum, ".list_int_sum_int(list(int))int .list_uint_sum_uint(list(uint))uint .list_double_sum_double(list(double))double \
        .list_duration_sum_duration(list(duration))duration"),
    ("max", lists::extreme, ".list_int_max_int(list(int))int .list_uint_max_uint(list(uint))uint .list_double_max_double(list(double))double \
        .list_bool_max_bool(list(bool))bool .list_duration_max_duration(list(duration))duration \
        .list_timestamp_max_timestamp(list(timestamp))timestamp .list_string_max_string(list(string))string \
        .list_bytes_max_bytes(list(bytes))bytes"),
    ("min", lists::extreme, ".list_int_min_int(list(int))int .list_uint_min_uint(list(uint))uint .list_double_min_double(list(double))double \
        .list_bool_min_bool(list(bool))bool .list_duration_min_duration(list(duration))duration \
        .list_timestamp_min_timestamp(list(timestamp))timestamp .list_string_min_string(list(string))string \
        .list_bytes_min_bytes(list(bytes))bytes"),
    ("slice", lists::slice, ".list_slice(list(T),int,int)list(T)"),
    ("flatten", lists::flatten, ".list_flatten(list(list(T)))list(T) .list_flatten_int(list(dyn),int)list(dyn)"),
    ("sort", lists::sort, ".list_int_sort(list(int))list(int) .list_uint_sort(list(uint))list(uint) .list_double_sort(list(double))list(double) \
        .list_bool_sort(list(bool))list(bool) .list_duration_sort(list(duration))list(duration) \
        .list_timestamp_sort(list(timestamp))list(timestamp) .list_string_sort(list(string))list(string) .list_bytes_sort(list(bytes))list(bytes)"),
    ("@sortByAssociatedKeys", lists::sort, ".list_int_sortByAssociatedKeys(list(T),list(int))list(T) \
        .list_uint_sortByAssociatedKeys(list(T),list(uint))list(T) .list_double_sortByAssociatedKeys(list(T),list(double))list(T) \
        .list_bool_sortByAssociatedKeys(list(T),list(bool))list(T) .list_duration_sortByAssociatedKeys(list(T),list(duration))list(T) \
        .list_timestamp_sortByAssociatedKeys(list(T),list(timestamp))list(T) .list_string_sortByAssociatedKeys(list(T),list(string))list(T) \
        .list_bytes_sortByAssociatedKeys(list(T),list(bytes))list(T)"),
    ("lists.range", lists::range, "lists_range(int)list(int)"),
    ("reverse", lists::reverse, ".list_reverse(list(T))list(T)"),
    ("distinct", lists::distinct, ".list_distinct(list(T))list(T)"),
    ("sets.contains", lists::sets, "list_sets_contains_list(list(T),list(T))bool"),
    ("sets.equivalent", lists::sets, "list_sets_equivalent_list(list(T),list(T))bool"),
    ("sets.intersects", lists::sets, "list_sets_intersects_list(list(T),list(T))bool"),
    ("cel.@mapInsert", lists::map_insert, "@mapInsert_map_key_value(map(K,V),K,V)map(K,V) @mapInsert_map_map(map(K,V),map(K,V))map(K,V)"),
];

#[rustfmt::skip]
const OPTIONALS: &[Row] = &[
    ("optional.of", optional::of, "optional_of(V)optional(V)"),
    ("optional.ofNonZeroValue", optional::of, "optional_ofNonZeroValue(V)optional(V)"),
    ("optional.none", optional::none, "optional_none()optional(V)"),
    ("value", optional::value, ".optional_value(optional(V))V"),
    ("hasValue", optional::has_value, ".optional_hasValue(optional(V))bool"),
    ("or", arithmetic::special, ".optional_or_optional(optional(V),optional(V))optional(V)"),
    ("orValue", arithmetic::special, ".optional_orValue_value(optional(V),V)V"),
    ("last", optional::end, ".list_last(list(V))optional(V)"),
    ("first", optional::end, ".list_first(list(V))optional(V)"),
    ("optional.unwrap", optional::unwrap, "optional_unwrap(list(optional(V)))list(V)"),
    ("unwrapOpt", optional::unwrap, ".optional_unwrapOpt(list(optional(V)))list(V)"),
];

#[rustfmt::skip]
const KUBERNETES: &[Row] = &[
    ("quantity", quantity::parse, "string_to_quantity(string)kubernetes.Quantity"),
    ("isQuantity", quantity::is, "is_quantity_string(string)bool"),
    ("sign", quantity::sign, "quantity_sign(kubernetes.Quantity)int"),
    ("isGreaterThan", quantity::order, ".quantity_is_greater_than(kubernetes.Quantity,kubernetes.Quantity)bool \
        .semver_is_greater_than(kubernetes.Semver,kubernetes.Semver)bool"),
    ("isLessThan", quantity::order, ".quantity_is_less_than(kubernetes.Quantity,kubernetes.Quantity)bool \
        .semver_is_less_than(kubernetes.Semver,kubernetes.Semver)bool"),
    ("compareTo", quantity::order, ".quantity_compare_to(kubernetes.Quantity,kubernetes.Quantity)int \
        .semver_compare_to(kubernetes.Semver,kubernetes.Semver)int"),
    ("asApproximateFloat", quantity::number, ".quantity_get_float(kubernetes.Quantity)double"),
    ("asInteger", quantity::number, ".quantity_get_int(kubernetes.Quantity)int"),
    ("isInteger", quantity::number, ".quantity_is_integer(kubernetes.Quantity)bool"),
    ("add", quantity::add, ".quantity_add(kubernetes.Quantity,kubernetes.Quantity)kubernetes.Quantity \
        .quantity_add_int(kubernetes.Quantity,int)kubernetes.Quantity"),
    ("sub", quantity::add, ".quantity_sub(kubernetes.Quantity,kubernetes.Quantity)kubernetes.Quantity \
        .quantity_sub_int(kubernetes.Quantity,int)kubernetes.Quantity"),
    ("semver", semver::parse, "string_to_semver(string)kubernetes.Semver string_bool_to_semver(string,bool)kubernetes.Semver"),
    ("isSemver", semver::is, "is_semver_string(string)bool is_semver_string_bool(string,bool)bool"),
    ("major", semver::part, ".semver_major(kubernetes.Semver)int"),
    ("minor", semver::part, ".semver_minor(kubernetes.Semver)int"),
    ("patch", semver::part, ".semver_patch(kubernetes.Semver)int"),
    ("ip", net::ip, "string_to_ip(string)net.IP .cidr_ip(net.CIDR)net.IP"),
    ("family", net::property, ".ip_family(net.IP)int"),
    ("ip.isCanonical", net::is_canonical, "ip_is_canonical(string)bool"),
    ("isUnspecified", net::property, ".ip_is_unspecified(net.IP)bool"),
    ("isLoopback", net::property, ".ip_is_loopback(net.IP)bool"),
    ("isLinkLocalMulticast", net::property, ".ip_is_link_local_multicast(net.IP)bool"),
    ("isLinkLocalUnicast", net::property, ".ip_is_link_local_unicast(net.IP)bool"),
    ("isGlobalUnicast", net::property, ".ip_is_global_unicast(net.IP)bool"),
    ("isIP", net::is, "is_ip(string)bool"),
    ("cidr", net::cidr, "string_to_cidr(string)net.CIDR"),
    ("containsIP", net::contains, ".cidr_contains_ip_string(net.CIDR,string)bool .cidr_contains_ip_ip(net.CIDR,net.IP)bool"),
    ("containsCIDR", net::contains, ".cidr_contains_cidr_string(net.CIDR,string)bool .cidr_contains_cidr(net.CIDR,net.CIDR)bool"),
    ("prefixLength", net::prefix, ".cidr_prefix_length(net.CIDR)int"),
    ("masked", net::prefix, ".cidr_masked(net.CIDR)net.CIDR"),
    ("isCIDR", net::is, "is_cidr(string)bool"),
    ("url", url::parse, "string_to_url(string)kubernetes.URL"),
    ("isURL", url::is, "is_url_string(string)bool"),
    ("getScheme", url::part, ".url_get_scheme(kubernetes.URL)string"),
    ("getHost", url::part, ".url_get_host(kubernetes.URL)string"),
    ("getHostname", url::part, ".url_get_hostname(kubernetes.URL)string"),
    ("getPort", url::part, ".url_get_port(kubernetes.URL)string"),
    ("getEscapedPath", url::part, ".url_get_escaped_path(kubernetes.URL)string"),
    ("getQuery", url::query, ".url_get_query(kubernetes.URL)map(string,list(string))"),
    ("validate", named::validate, ".format-validate(kubernetes.NamedFormat,string)optional(list(string))"),
    ("format.named", named::named, "format-named(string)optional(kubernetes.NamedFormat)"),
    ("jsonpatch.escapeKey", strings::escape_key, "string_jsonpatch_escapeKey_string(string)string"),
];

#[rustfmt::skip]
const AUTHORIZER: &[Row] = &[
    ("path", authz::narrow, ".authorizer_path(kubernetes.authorization.Authorizer,string)kubernetes.authorization.PathCheck"),
    ("group", authz::narrow, ".authorizer_group(kubernetes.authorization.Authorizer,string)kubernetes.authorization.GroupCheck"),
    ("serviceAccount", authz::service_account, ".authorizer_serviceaccount(kubernetes.authorization.Authorizer,string,string)kubernetes.authorization.Authorizer"),
    ("resource", authz::narrow, ".groupcheck_resource(kubernetes.authorization.GroupCheck,string)kubernetes.authorization.ResourceCheck"),
    ("subresource", authz::narrow, ".resourcecheck_subresource(kubernetes.authorization.ResourceCheck,string)kubernetes.authorization.ResourceCheck"),
    ("namespace", authz::narrow, ".resourcecheck_namespace(kubernetes.authorization.ResourceCheck,string)kubernetes.authorization.ResourceCheck"),
    ("name", authz::narrow, ".resourcecheck_name(kubernetes.authorization.ResourceCheck,string)kubernetes.authorization.ResourceCheck"),
    ("fieldSelector", authz::narrow, ".authorizer_fieldselector(kubernetes.authorization.ResourceCheck,string)kubernetes.authorization.ResourceCheck"),
    ("labelSelector", authz::narrow, ".authorizer_labelselector(kubernetes.authorization.ResourceCheck,string)kubernetes.authorization.ResourceCheck"),
    ("check", authz::check, ".pathcheck_check(kubernetes.authorization.PathCheck,string)kubernetes.authorization.Decision \
        .resourcecheck_check(kubernetes.authorization.ResourceCheck,string)kubernetes.authorization.Decision"),
    ("errored", authz::decision, ".decision_errored(kubernetes.authorization.Decision)bool"),
    ("error", authz::decision, ".decision_error(kubernetes.authorization.Decision)string"),
    ("allowed", authz::decision, ".decision_allowed(kubernetes.authorization.Decision)bool"),
    ("reason", authz::decision, ".decision_reason(kubernetes.authorization.Decision)string"),
];

/// The opaque types; the names of some can be written in an expression.
const OPAQUE: [&str; 11] = [
    "net.IP",
    "net.CIDR",
    "kubernetes.Quantity",
    "kubernetes.Semver",
    "kubernetes.URL",
    "kubernetes.NamedFormat",
    "kubernetes.authorization.Authorizer",
    "kubernetes.authorization.PathCheck",
    "kubernetes.authorization.GroupCheck",
    "kubernetes.authorization.ResourceCheck",
    "kubernetes.authorization.Decision",
];

/// Only expressions that make JSON patches know it.
pub(crate) const JSON_PATCH_ONLY: &str = "jsonpatch.escapeKey";

static FUNCTIONS: LazyLock<HashMap<&'static str, Function>> = LazyLock::new(|| {
    let tables = [OPERATORS, CONVERSIONS, STRINGS, TIMES, LISTS, OPTIONALS, KUBERNETES, AUTHORIZER];
    let formats = named::FORMATS.iter().map(|format| (format.function, named::constant as Perform, format.overload));
    let rows = tables.into_iter().flatten().copied().chain(formats);
    rows.map(|(name, perform, overloads)| {
        let overloads = overloads.split_whitespace().filter_map(overload).collect();
        (name, Function { name, perform, overloads })
    })
    .collect()
});

pub(crate) fn function(name: &str) -> Option<&'static Function> {
    FUNCTIONS.get(name)
}

/// The type a name of a type stands for.
pub(crate) fn named_type(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "google.protobuf.Duration" => Type::Duration,
        "google.protobuf.Timestamp" => Type::Timestamp,
        "int" => Type::Int,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "null_type" => Type::Null,
        "optional_type" => Type::optional(Type::Dyn),
        "string" => Type::String,
        "type" => Type::Type(None),
        "uint" => Type::Uint,
        "net.IP" => Type::Opaque("net.IP"),
        "net.CIDR" => Type::Opaque("net.CIDR"),
        _ => return None,
    })
}

/// A type of a library by its name.
pub fn opaque_type(name: &str) -> Option<Type> {
    OPAQUE.iter().find(|known| **known == name).map(|known| Type::Opaque(known))
}

fn overload(text: &'static str) -> Option<Overload> {
    let (member, text) = text.strip_prefix('.').map_or((false, text), |rest| (true, rest));
    let (id, rest) = text.split_once('(')?;
    let mut params = Vec::new();
    let mut args = Vec::new();
    let mut rest = rest;
    while !rest.starts_with(')') {
        rest = rest.trim_start_matches(',');
        let (arg, tail) = read(rest, &mut params)?;
        args.push(arg);
        rest = tail;
    }
    let (result, _) = read(rest.get(1..)?, &mut params)?;
    Some(Overload { id, member, args, result, params })
}

fn read<'t>(text: &'t str, params: &mut Vec<char>) -> Option<(Type, &'t str)> {
    let end = text.find(['(', ')', ',']).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.len() == 1 {
        let letter = name.chars().next()?;
        if !params.contains(&letter) {
            params.push(letter);
        }
        return Some((Type::Param(Param::Declared(letter)), rest));
    }
    let Some(inside) = rest.strip_prefix('(').filter(|_| matches!(name, "list" | "map" | "optional" | "type")) else {
        let plain = match name {
            "dyn" => Type::Dyn,
            "duration" => Type::Duration,
            "timestamp" => Type::Timestamp,
            _ => opaque_type(name).or_else(|| named_type(name))?,
        };
        return Some((plain, rest));
    };
    let (first, rest) = read(inside, params)?;
    let (built, rest) = match name {
        "list" => (Type::list(first), rest),
        "optional" => (Type::optional(first), rest),
        "type" => (Type::Type(Some(Arc::new(first))), rest),
        _ => {
            let (value, rest) = read(rest.strip_prefix(',')?, params)?;
            (Type::map(first, value), rest)
        }
    };
    Some((built, rest.strip_prefix(')')?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misspelled signature would silently be no overload at all.
    #[test]
    fn every_signature_is_read() {
        let tables = [OPERATORS, CONVERSIONS, STRINGS, TIMES, LISTS, OPTIONALS, KUBERNETES, AUTHORIZER];
        for (name, _, overloads) in tables.into_iter().flatten() {
            for text in overloads.split_whitespace() {
                assert!(overload(text).is_some(), "{name}: {text}");
            }
            assert!(!function(name).unwrap().overloads.is_empty(), "{name}");
        }
    }
}
