//! The rules of what a pod claims of devices, and which container uses which claim.

use api::field::FieldError;
use api::validation::{is_label, is_subdomain};

use super::super::check::At;

/// The claims of a pod, which nobody makes for one that mirrors a file.
pub(super) fn pod(spec: &At<'_>, pod: Option<&At<'_>>) {
    let mirrors = |pod: &At<'_>| pod.at(&["metadata", "annotations", "kubernetes.io/config.mirror"]).exists();
    let mut seen = Vec::new();
    for claim in spec.each("resourceClaims") {
        if pod.is_some_and(mirrors) {
            claim.complain(FieldError::forbidden("", "static pods do not support resource claims"));
            continue;
        }
        let name = claim.field("name");
        if name.is_empty() {
            name.required("");
        } else if seen.contains(&name.text()) {
            name.duplicate();
        } else {
            name.named(is_label);
            seen.push(name.text());
        }
        let (direct, template) = (claim.field("resourceClaimName"), claim.field("resourceClaimTemplateName"));
        let tell = |detail: &str| claim.invalid_as("PodResourceClaim", detail);
        match (direct.exists(), template.exists()) {
            (true, true) => tell("at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"),
            (false, false) => tell("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
            _ => (),
        }
        for reference in [direct, template] {
            if reference.exists() {
                reference.named(is_subdomain);
            }
        }
    }
}

/// What a container uses of the claims of its pod.
pub(super) fn container(resources: &At<'_>, spec: &At<'_>) {
    let claims = spec.each("resourceClaims");
    let mut known: Vec<&str> = claims.iter().map(|claim| claim.field("name").text()).collect();
    known.retain(|name| !name.is_empty());
    known.sort_unstable();
    known.dedup();
    let mut seen: Vec<String> = Vec::new();
    for claim in resources.each("claims") {
        let (name, request) = (claim.field("name").text(), claim.field("request"));
        if name.is_empty() {
            claim.required("");
            continue;
        }
        let twice = |key: &str| claim.complain(FieldError::duplicate(claim.path(), key));
        if seen.iter().any(|key| key == name) {
            twice(name);
        } else {
            request.named_if_set(is_label);
            let key = if request.is_empty() { name.to_owned() } else { format!("{name}/{}", request.text()) };
            let within = format!("{name}/");
            if seen.contains(&key) {
                twice(&key);
            } else if request.is_empty() {
                seen.iter().filter(|key| key.starts_with(&within)).for_each(|_| twice(name));
            }
            seen.push(key);
        }
        if !known.contains(&name) {
            let mut error = FieldError::not_found(claim.path(), name);
            error.detail = match known.is_empty() {
                true => "must be one of the names in pod.spec.resourceClaims which is empty".to_owned(),
                false => format!("must be one of the names in pod.spec.resourceClaims: {}", known.join(", ")),
            };
            claim.complain(error);
        }
    }
}
