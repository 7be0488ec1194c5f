//! Ingresses and their classes.

use api::addresses::warning;
use api::field::FieldError;
use api::validation::{is_label, is_path_segment, is_port_name, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::Value;

use crate::strategy::check::{At, check};
use crate::strategy::{Strategy, fixed_at, items, set_default};

const CLASS: &str = "kubernetes.io/ingress.class";

pub(in crate::strategy) struct Ingresses;

impl Strategy for Ingresses {
    fn counts_generation(&self) -> bool {
        true
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            spec(&at.field("spec"), false, false);
            let (class, name) =
                (at.at(&["metadata", "annotations"]).field(CLASS), at.at(&["spec", "ingressClassName"]));
            if class.exists() && name.exists() && class.text() != name.text() {
                let place = api::field::Path::new("annotations").child(CLASS);
                class.called(place).invalid("must match `ingressClassName` when both are specified");
            }
        })
    }

    /// What older servers allowed may stay.
    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let (mut any_secret, mut any_wildcard) = (false, false);
        check(old, |at| {
            let old = at.field("spec");
            any_secret = !old.each("tls").iter().all(|tls| tls.is_fine(secret));
            any_wildcard = old.each("rules").iter().any(|rule| is_wild(rule) && !rule.is_fine(paths));
        });
        check(new, |at| spec(&at.field("spec"), any_secret, any_wildcard))
    }

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let known = items(old, &["status", "loadBalancer", "ingress"]);
        let known: Vec<Value> = known.iter().filter_map(|ingress| ingress.get("ip").cloned()).collect();
        check(new, |at| {
            for ingress in at.at(&["status", "loadBalancer", "ingress"]).items() {
                if !ingress.field("ip").is_empty() {
                    ingress.field("ip").ip_unless(&known);
                }
                let name = ingress.field("hostname");
                if !name.is_empty() {
                    name.named(is_subdomain);
                    name.not_an_address();
                }
            }
        })
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let annotated = object.at(&["metadata", "annotations"]).is_some_and(|all| all.get(CLASS).is_some());
        match annotated && object.at(&["spec", "ingressClassName"]).is_none() {
            true => vec![format!("annotation {CLASS:?} is deprecated, please use 'spec.ingressClassName' instead")],
            false => Vec::new(),
        }
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, _old: &Object) -> Vec<String> {
        if subresource != "status" {
            return Vec::new();
        }
        let balancers = items(new, &["status", "loadBalancer", "ingress"]);
        let odd = |(index, balancer): (usize, &&Object)| {
            warning(&format!("status.loadBalancer.ingress[{index}]"), balancer.text(&["ip"]))
        };
        balancers.iter().enumerate().filter_map(odd).collect()
    }
}

fn spec(spec: &At<'_>, any_secret: bool, any_wildcard: bool) {
    let (backend, rules) = (spec.field("defaultBackend"), spec.field("rules"));
    if rules.is_empty() && !backend.exists() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        spec.complain(FieldError::invalid(spec.path(), rules.value().clone(), detail));
    }
    if backend.exists() {
        self::backend(&backend);
    }
    for rule in rules.items() {
        host(&rule.field("host"));
        if !is_wild(&rule) || !any_wildcard {
            paths(&rule);
        }
    }
    for tls in spec.each("tls") {
        for name in tls.each("hosts") {
            name.named(if name.text().contains('*') { is_wildcard } else { is_subdomain });
        }
        if !any_secret {
            secret(&tls);
        }
    }
    if spec.field("ingressClassName").exists() {
        spec.field("ingressClassName").named(is_subdomain);
    }
}

fn secret(tls: &At<'_>) {
    tls.field("secretName").named_if_set(is_subdomain);
}

fn is_wild(rule: &At<'_>) -> bool {
    rule.field("host").text().contains('*')
}

fn host(at: &At<'_>) {
    if at.is_empty() {
        return;
    }
    at.not_an_address();
    at.named(if at.text().contains('*') { is_wildcard } else { is_subdomain });
}

fn is_wildcard(text: &str) -> Vec<String> {
    const MESSAGE: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    match text.strip_prefix("*.") {
        Some(rest) if is_subdomain(rest).is_empty() => Vec::new(),
        _ => vec![MESSAGE.to_owned()],
    }
}

fn paths(rule: &At<'_>) {
    let http = rule.field("http");
    if http.exists() && http.field("paths").is_empty() {
        http.field("paths").required("");
    }
    http.each("paths").iter().for_each(ingress_path);
}

fn ingress_path(at: &At<'_>) {
    let (path, kind) = (at.field("path"), at.field("pathType"));
    let absolute = || {
        if !path.text().starts_with('/') {
            path.complain(FieldError::invalid(path.path(), path.text(), "must be an absolute path"));
        }
    };
    match kind.text() {
        _ if !kind.exists() => {
            kind.required("pathType must be specified");
            return;
        }
        "Exact" | "Prefix" => {
            absolute();
            for sequence in ["//", "/./", "/../", "%2f", "%2F"] {
                if path.text().contains(sequence) {
                    path.invalid(format!("must not contain '{sequence}'"));
                }
            }
            for end in ["/..", "/."] {
                if path.text().ends_with(end) {
                    path.invalid(format!("cannot end with '{end}'"));
                }
            }
        }
        "ImplementationSpecific" => {
            if !path.text().is_empty() {
                absolute();
            }
        }
        _ => kind.one_of(&["Exact", "ImplementationSpecific", "Prefix"]),
    }
    backend(&at.field("backend"));
}

fn backend(at: &At<'_>) {
    let (service, resource) = (at.field("service"), at.field("resource"));
    let wrong = |detail: &str| at.complain(FieldError::invalid(at.path(), "", detail));
    match (service.exists(), resource.exists()) {
        (true, true) => wrong("cannot set both resource and service backends"),
        (false, true) => reference(&resource),
        (false, false) => wrong("resource or service backend is required"),
        (true, false) => {
            service.field("name").needed_named(is_label);
            let (number, called) = (service.at(&["port", "number"]), service.at(&["port", "name"]));
            match (called.is_empty(), number.number().unwrap_or(0)) {
                (true, 0) => at.required("port name or number is required"),
                (false, 0) => called.named(is_port_name),
                (false, _) => wrong("cannot set both port name & port number"),
                (true, _) => number.port_number(),
            }
        }
    }
}

/// Another object, by group, kind and name.
fn reference(at: &At<'_>) {
    if at.field("apiGroup").exists() {
        at.field("apiGroup").named(is_subdomain);
    }
    at.field("kind").needed_named(is_path_segment);
    at.field("name").needed_named(is_path_segment);
}

pub(in crate::strategy) struct IngressClasses;

impl Strategy for IngressClasses {
    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        if object.at(&["spec", "parameters"]).is_some() {
            set_default(object, &["spec", "parameters", "scope"], "Cluster");
        }
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let controller = at.at(&["spec", "controller"]);
            if controller.text().len() > 250 {
                controller.complain(FieldError::too_long(controller.path(), 250));
            }
            domain_path(&controller);
            let parameters = at.at(&["spec", "parameters"]);
            if !parameters.exists() {
                return;
            }
            reference(&parameters);
            let (scope, namespace) = (parameters.field("scope"), parameters.field("namespace"));
            match scope.text() {
                "Namespace" if namespace.exists() => namespace.named(is_label),
                "Namespace" => namespace.required("`parameters.scope` is set to 'Namespace'"),
                "Cluster" if namespace.exists() => namespace.forbidden("`parameters.scope` is set to 'Cluster'"),
                _ => scope.one_of(&["Cluster", "Namespace"]),
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = fixed_at(new, old, &["spec", "controller"]);
        if let Some(error) = errors.first_mut() {
            error.value = format!("{:?}", new.text(&["spec", "controller"]));
        }
        errors.extend(self.validate_create(new));
        errors
    }
}

/// `acme.io/foo`
pub(in crate::strategy) fn domain_path(at: &At<'_>) {
    const PATH: &str = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
    match at.text().split_once('/') {
        _ if at.is_empty() => at.required(""),
        Some((domain, path)) if !path.is_empty() && !domain.is_empty() => {
            for detail in is_subdomain(domain) {
                at.complain(FieldError::invalid(at.path(), domain, detail));
            }
            if !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte)) {
                at.complain(FieldError::invalid(at.path(), path, PATH));
            }
        }
        _ => at.invalid("must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
}
