//! What the options of a list or watch may say together.

use api::ApiError;
use api::field::FieldError;
use api::status::{Cause, Details};

use crate::http::{Query, parse_int};

const MATCH: &str = "resourceVersionMatch";

/// Refuses what upstream refuses of a list or, if `watch`, of a watch.
pub(super) fn check(query: &Query, watch: bool) -> Result<(), ApiError> {
    for name in ["limit", "timeoutSeconds"] {
        query.first(name).map(parse_int).transpose()?;
    }
    let errors = if watch { of_watch(query) } else { of_list(query) };
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", &errors)) }
}

fn of_list(query: &Query) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let version = query.get("resourceVersion").unwrap_or_default();
    if let Some(found) = query.get(MATCH) {
        if version.is_empty() {
            errors.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if query.get("continue").is_some() {
            errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
        if !matches!(found, "Exact" | "NotOlderThan") {
            errors.push(FieldError::not_supported(MATCH, found, &["Exact", "NotOlderThan", ""]));
        }
        if found == "Exact" && version == "0" {
            errors.push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
        }
    }
    if query.first("sendInitialEvents").is_some() {
        errors.push(FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    errors
}

fn of_watch(query: &Query) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (mut found, mut initial) = (query.get(MATCH).unwrap_or_default(), query.first("sendInitialEvents"));
    // Who does not say from where on gets what there is first, as if it had been asked for.
    if found.is_empty() && initial.is_none() && matches!(query.get("resourceVersion"), None | Some("0")) {
        (found, initial) = ("NotOlderThan", Some("true"));
    }
    if initial.is_some() && found != "NotOlderThan" {
        errors.push(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
    }
    if found.is_empty() {
        return errors;
    }
    if initial.is_none() {
        errors.push(forbidden("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"));
    }
    if found != "NotOlderThan" {
        errors.push(FieldError::not_supported(MATCH, found, &["NotOlderThan"]));
    }
    if query.get("continue").is_some() {
        errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
    }
    errors
}

/// A resource version that is a number; how upstream complains of another depends on who asks.
pub(super) fn revision(text: &str) -> Result<i64, String> {
    text.parse().ok().filter(|revision| *revision >= 0).ok_or_else(|| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let why = if is_number { "value out of range" } else { "invalid syntax" };
        format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: {why}")
    })
}

/// The version is not reached yet; the client may ask again, after some time where any version from there on would do.
pub(super) fn too_large(wanted: i64, current: i64, retry_after_seconds: u32) -> ApiError {
    let cause = Cause {
        reason: "ResourceVersionTooLarge".into(),
        message: "Too large resource version".into(),
        field: String::new(),
    };
    let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
    ApiError::new(504, "Timeout", message).with(Details {
        causes: vec![cause],
        retry_after_seconds,
        ..Details::default()
    })
}

fn forbidden(why: &str) -> FieldError {
    FieldError::forbidden(MATCH, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        check_list("resourceVersion=5&resourceVersionMatch=Exact", "");
        check_list(
            "resourceVersionMatch=Exact",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        );
        check_list(
            "resourceVersion=0&resourceVersionMatch=Exact",
            "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        );
        check_list(
            "resourceVersion=1&resourceVersionMatch=Odd",
            "resourceVersionMatch: Unsupported value: \"Odd\": supported values: \"Exact\", \"NotOlderThan\", \"\"",
        );
        check_list("sendInitialEvents=true", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list");
    }

    #[track_caller]
    fn check_list(query: &str, want: &str) {
        let error = check(&Query::parse(Some(query)), false).err();
        let want = (!want.is_empty()).then(|| format!("ListOptions.meta.k8s.io \"\" is invalid: {want}"));
        assert_eq!(error.map(|error| error.message), want, "{query}");
    }
}
