//! What a manager is called: the client's word, or the program in its user agent.

use ::http::header;
use api::field::FieldError;

use crate::pipeline::Context;

const MAX_LENGTH: usize = 128;

/// The manager of a write.
pub(crate) fn of_request(context: &Context) -> String {
    match context.query.get("fieldManager") {
        Some(name) => name.to_owned(),
        None => {
            let agent = context.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
            agent.map_or_else(|| component(&context.user.name).to_owned(), program)
        }
    }
}

/// What is wrong with the `fieldManager` parameter.
pub(crate) fn problems(context: &Context) -> Vec<FieldError> {
    let Some(name) = context.query.get("fieldManager") else { return Vec::new() };
    let mut errors = Vec::new();
    if name.len() > MAX_LENGTH {
        errors.push(FieldError::too_long("fieldManager", MAX_LENGTH));
    }
    if let Some((at, c)) = name.char_indices().find(|(_, c)| !is_printable(*c)) {
        let why = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
        errors.push(FieldError::invalid("fieldManager", name, why));
    }
    errors
}

/// What comes before the first slash of a user agent.
fn program(agent: &str) -> String {
    let name: String = agent.split('/').next().unwrap_or_default().chars().filter(|c| is_printable(*c)).collect();
    let end = (0..=MAX_LENGTH.min(name.len())).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name.get(..end).unwrap_or_default().to_owned()
}

/// Components in this process send no user agent; their identity tells which they are.
fn component(user: &str) -> &str {
    match user.strip_prefix("system:").unwrap_or_default() {
        "apiserver" => "kube-apiserver",
        name if name.starts_with("node:") => "kubelet",
        name if name.starts_with("serviceaccount:kube-system:") && name.ends_with("-controller") => {
            "kube-controller-manager"
        }
        name if name.starts_with("kube-") => name,
        _ => "unknown",
    }
}

/// Go's idea of it: letters, marks, numbers, punctuation, symbols, and the ASCII space.
fn is_printable(c: char) -> bool {
    c == ' ' || !(c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_named_by_its_user_agent() {
        assert_eq!(program("kubectl/v1.36.0 (linux/amd64) kubernetes/abc"), "kubectl");
        assert_eq!(program("curl\u{7}"), "curl");
        assert_eq!(program(&"x".repeat(200)).len(), 128);
        assert_eq!(component("system:node:worker-1"), "kubelet");
        assert_eq!(component("system:kube-scheduler"), "kube-scheduler");
        assert_eq!(component("system:serviceaccount:kube-system:job-controller"), "kube-controller-manager");
        assert_eq!(component("jane"), "unknown");
    }
}
