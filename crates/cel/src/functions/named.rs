//! Formats by name: `format.dns1123Label().validate(name)`.

use api::validation;

use super::unfit;
use super::url::Url;
use crate::error::EvalError;
use crate::library::Args;
use crate::opaque::Opaque;
use crate::time::Time;
use crate::value::Value;

type Outcome<'a> = Result<Value<'a>, EvalError>;

pub struct Format {
    pub(crate) function: &'static str,
    pub(crate) overload: &'static str,
    /// How long the pattern is that it stands for: what it costs.
    pub(crate) pattern: u64,
    check: fn(&str) -> Vec<String>,
}

macro_rules! formats {
    ($($name:literal $pattern:literal $check:expr;)*) => {
        pub(crate) static FORMATS: &[Format] = &[$(Format {
            function: concat!("format.", $name),
            overload: concat!("format.", $name, "()kubernetes.NamedFormat"),
            pattern: $pattern,
            check: $check,
        }),*];
    };
}

formats! {
    "dns1123Label" 30 validation::is_label;
    "dns1123Subdomain" 60 validation::is_subdomain;
    "dns1035Label" 30 validation::is_dns_1035;
    "qualifiedName" 60 validation::is_qualified_name;
    "dns1123LabelPrefix" 30 |text| validation::is_label(&as_prefix(text));
    "dns1123SubdomainPrefix" 60 |text| validation::is_subdomain(&as_prefix(text));
    "dns1035LabelPrefix" 30 |text| validation::is_dns_1035(&as_prefix(text));
    "labelValue" 40 validation::is_label_value;
    "uri" 1104 |text| Url::parse(text).err().into_iter().collect();
    "uuid" 72 |text| unless(is_uuid(text), "does not match the UUID format");
    "byte" 84 |text| unless(is_base64(text), "invalid base64");
    "date" 72 |text| unless(is_date(text), "invalid date");
    "datetime" 72 |text| unless(is_datetime(text), "invalid datetime");
}

fn unless(valid: bool, complaint: &str) -> Vec<String> {
    if valid { Vec::new() } else { vec![complaint.to_owned()] }
}

/// A dash at the end will be followed by something: it is checked as if it were.
fn as_prefix(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(stem) if !stem.is_empty() => format!("{stem}a"),
        _ => text.to_owned(),
    }
}

fn is_uuid(text: &str) -> bool {
    let hex: Vec<bool> = text.chars().filter(|c| *c != '-').map(|c| c.is_ascii_hexdigit()).collect();
    let dashes: Vec<usize> = text.char_indices().filter(|(_, c)| *c == '-').map(|(at, _)| at).collect();
    hex.len() == 32
        && hex.iter().all(|hex| *hex)
        && dashes.iter().all(|at| [8, 13, 18, 23].contains(at) || dashes.len() < 4)
}

fn is_base64(text: &str) -> bool {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).is_ok()
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && Time::parse(&format!("{text}T00:00:00Z")).is_some()
}

fn is_datetime(text: &str) -> bool {
    Time::parse(text).is_some()
}

pub(crate) fn constant<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let found = FORMATS.iter().find(|format| format.function == args.function);
    found.map(|format| Value::opaque(Opaque::Format(format))).ok_or_else(|| unfit(args))
}

pub(crate) fn named<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::String(name)] = args.values else { return Err(unfit(args)) };
    let found = FORMATS.iter().find(|format| format.function.strip_prefix("format.") == Some(name));
    Ok(found.map_or(Value::Optional(None), |format| Value::some(Value::opaque(Opaque::Format(format)))))
}

pub(crate) fn validate<'a>(args: &Args<'_, 'a>) -> Outcome<'a> {
    let [Value::Opaque(opaque), Value::String(text)] = args.values else { return Err(unfit(args)) };
    let Opaque::Format(format) = &**opaque else { return Err(unfit(args)) };
    let complaints = (format.check)(text);
    if complaints.is_empty() {
        return Ok(Value::Optional(None));
    }
    Ok(Value::some(Value::list(complaints.into_iter().map(Value::string).collect())))
}
