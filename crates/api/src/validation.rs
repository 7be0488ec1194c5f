//! Rules that names, labels and annotations keep everywhere, with upstream's messages.

mod object_meta;

pub use self::object_meta::{Again, annotations, object_meta, object_meta_update};
use crate::addresses;
use serde_json::Value;

use crate::field::{FieldError, Path};

pub const LABEL_MAX: usize = 63;
pub const SUBDOMAIN_MAX: usize = 253;
const ANNOTATIONS_MAX: usize = 256 * 1024;

const LABEL_MESSAGE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const DNS_1035_MESSAGE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED_MESSAGE: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE_MESSAGE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// What a resource's names may look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    Subdomain,
    Label,
    Namespace,
    Dns1035,
    /// Anything that is safe in a path: RBAC names.
    PathSegment,
    IpAddress,
    /// A key of a config map.
    ConfigKey,
}

impl NameRule {
    /// What is wrong with `name`; nothing if the list is empty.
    pub fn check(self, name: &str) -> Vec<String> {
        match self {
            Self::Subdomain => is_subdomain(name),
            Self::Label | Self::Namespace => is_label(name),
            Self::ConfigKey => is_config_key(name),
            Self::Dns1035 => is_dns_1035(name),
            Self::PathSegment => is_path_segment(name),
            Self::IpAddress => addresses::strict_complaint(name).into_iter().collect(),
        }
    }

    /// What is wrong with what a generated name begins with.
    fn check_prefix(self, prefix: &str) -> Vec<String> {
        match self {
            Self::PathSegment if matches!(prefix, "." | "..") => Vec::new(),
            Self::PathSegment | Self::ConfigKey | Self::IpAddress => self.check(prefix),
            // Upstream puts a letter in place of a dash at the end, and of what comes before it.
            _ => match prefix.strip_suffix('-').map(|rest| rest.char_indices().next_back()) {
                Some(Some((last, _))) => self.check(&format!("{}a", prefix.get(..last).unwrap_or_default())),
                _ => self.check(prefix),
            },
        }
    }
}

fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// What upstream says of keys and values of labels, and of all that is named like them.
fn too_long_in_bytes(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

fn lower_label(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

pub fn is_label(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_MAX {
        errors.push(too_long(LABEL_MAX));
    }
    if !lower_label(text) {
        let is_subdomain = text.split('.').all(lower_label);
        errors.push(if is_subdomain { "must not contain dots" } else { LABEL_MESSAGE }.to_owned());
    }
    errors
}

pub fn is_subdomain(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        errors.push(too_long(SUBDOMAIN_MAX));
    }
    if !text.split('.').all(lower_label) {
        errors.push(SUBDOMAIN_MESSAGE.to_owned());
    }
    errors
}

pub fn is_dns_1035(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_MAX {
        errors.push(too_long(LABEL_MAX));
    }
    if !lower_label(text) || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        errors.push(DNS_1035_MESSAGE.to_owned());
    }
    errors
}

pub fn is_path_segment(text: &str) -> Vec<String> {
    match text {
        "." | ".." => vec![format!("may not be '{text}'")],
        _ => ["/", "%"].iter().filter(|c| text.contains(**c)).map(|c| format!("may not contain '{c}'")).collect(),
    }
}

fn name_part(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// A label or annotation key: `[prefix/]name`.
/// A key of a ConfigMap or Secret.
pub fn is_config_key(text: &str) -> Vec<String> {
    const MESSAGE: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
    let mut errors = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        errors.push(too_long(SUBDOMAIN_MAX));
    }
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
        errors.push(MESSAGE.to_owned());
    }
    match text {
        "." | ".." => errors.push(format!("must not be '{text}'")),
        _ if text.starts_with("..") => errors.push("must not start with '..'".to_owned()),
        _ => (),
    }
    errors
}

/// An IANA service name.
pub fn is_port_name(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > 15 {
        errors.push("must be no more than 15 characters".to_owned());
    }
    if !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if name.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if name.starts_with('-') || name.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

pub fn is_qualified_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
                 an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                 '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')"
            )];
        }
        Some(("", name)) => {
            errors.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            let found = is_subdomain(prefix).into_iter().map(|error| match error == too_long(SUBDOMAIN_MAX) {
                true => too_long_in_bytes(SUBDOMAIN_MAX),
                false => error,
            });
            errors.extend(found.map(|error| format!("prefix part {error}")));
            name
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        errors.push(format!("name part {}", too_long_in_bytes(LABEL_MAX)));
    }
    if !name_part(name) {
        errors.push(QUALIFIED_MESSAGE.to_owned());
    }
    errors
}

pub fn is_label_value(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_MAX {
        errors.push(too_long_in_bytes(LABEL_MAX));
    }
    if !text.is_empty() && !name_part(text) {
        errors.push(LABEL_VALUE_MESSAGE.to_owned());
    }
    errors
}

pub fn labels(labels: Option<&Value>, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        errors.extend(is_qualified_name(key).into_iter().map(|e| FieldError::invalid(path, key.as_str(), e)));
        let value = value.as_str().unwrap_or_default();
        errors.extend(is_label_value(value).into_iter().map(|e| FieldError::invalid(path, value, e)));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_by_their_rule() {
        check(NameRule::Subdomain, "a.b-c.d1", true);
        check(NameRule::Subdomain, "A", false);
        check(NameRule::Subdomain, "a..b", false);
        check(NameRule::Label, "a.b", false);
        check(NameRule::Label, "1-a", true);
        check(NameRule::Dns1035, "1-a", false);
        check(NameRule::PathSegment, "system:node", true);
        check(NameRule::PathSegment, "a/b", false);
    }

    #[track_caller]
    fn check(rule: NameRule, name: &str, fine: bool) {
        assert_eq!(rule.check(name).is_empty(), fine, "{name}");
    }

    #[test]
    fn label_keys_and_values() {
        assert!(is_qualified_name("app.kubernetes.io/name").is_empty());
        assert!(!is_qualified_name("/name").is_empty());
        assert!(!is_qualified_name("a b").is_empty());
        assert!(is_label_value("").is_empty());
        assert!(!is_label_value("-a").is_empty());
    }
}
