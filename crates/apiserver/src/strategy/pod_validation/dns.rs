//! The rules of what a pod is called, and of where it looks names up.

use api::field::FieldError;
use api::validation::is_subdomain;

use super::super::check::At;

pub(super) fn host_name(spec: &At<'_>) {
    const NAME_MAX: usize = 64;
    let name = spec.field("hostnameOverride");
    if !name.exists() {
        return;
    }
    for field in ["setHostnameAsFQDN", "hostNetwork"] {
        if spec.field(field).is_true() {
            name.forbidden(format!("may not be specified when {field} is true"));
        }
    }
    if name.text().len() > NAME_MAX {
        name.complain(FieldError::too_long(name.path(), NAME_MAX));
    }
    name.named(is_subdomain);
}

pub(super) fn config(at: &At<'_>, alone: bool) {
    const SERVERS_MAX: usize = 3;
    const SEARCHES_MAX: usize = 32;
    const SEARCHES_MAX_CHARACTERS: usize = 2048;
    let servers = at.field("nameservers");
    if alone && !at.exists() {
        at.required("must provide `dnsConfig` when `dnsPolicy` is None");
        return;
    }
    if alone && servers.is_empty() {
        servers.required("must provide at least one DNS nameserver when `dnsPolicy` is None");
        return;
    }
    if servers.count() > SERVERS_MAX {
        servers.invalid(format!("must not have more than {SERVERS_MAX} nameservers"));
    }
    for server in servers.items() {
        server.ip();
    }
    let searches = at.field("searches");
    if searches.count() > SEARCHES_MAX {
        searches.invalid(format!("must not have more than {SEARCHES_MAX} search paths"));
    }
    let written = searches.items().iter().map(|search| search.text().len() + 1).sum::<usize>();
    if written > SEARCHES_MAX_CHARACTERS + 1 {
        searches.invalid(format!(
            "must not have more than {SEARCHES_MAX_CHARACTERS} characters (including spaces) in the search list"
        ));
    }
    for search in searches.items() {
        if search.text() != "." {
            let name = search.text().strip_suffix('.').unwrap_or(search.text());
            for detail in is_search(name) {
                search.complain(FieldError::invalid(search.path(), name, detail));
            }
        }
    }
    for option in at.each("options") {
        // Upstream tells of the option here, not of its name.
        if option.field("name").is_empty() {
            option.required("must not be empty");
        }
    }
}

/// A subdomain whose labels may begin with an underscore and have more within.
fn is_search(name: &str) -> Vec<String> {
    const MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";
    let edge = |b: Option<char>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let label = |text: &str| {
        let rest = text.strip_prefix('_').unwrap_or(text);
        let within = |b: char| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, '-' | '_');
        edge(rest.chars().next()) && edge(rest.chars().last()) && rest.chars().all(within)
    };
    let mut found = Vec::new();
    if name.len() > 253 {
        found.push("must be no more than 253 characters".to_owned());
    }
    if !name.split('.').all(label) {
        found.push(MESSAGE.to_owned());
    }
    found
}
