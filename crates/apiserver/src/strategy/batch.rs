//! Jobs and cron jobs.

use api::field::FieldError;
use api::validation::is_qualified_name;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::apps::{matches_template, template, template_defaults};
use super::check::{At, check};
use super::networking::domain_path;
use super::{Strategy, fixed_at, items_mut, set_default, warnings};

const MOST_INDEXED: i64 = 100_000;
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];

pub(super) struct Jobs;

impl Strategy for Jobs {
    fn orphans_by_default(&self) -> bool {
        true
    }

    fn selectable_fields(&self) -> &'static [&'static str] {
        &["status.successful"]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        template_defaults(object, &["spec"]);
        job_defaults(object.at_mut(&["spec"]));
        // A job that says nothing of itself is called what its pods are called.
        let unlabeled = object.at(&["metadata", "labels"]).and_then(Value::as_object).is_none_or(Object::is_empty);
        if let (true, Some(labels)) = (unlabeled, object.at(&["spec", "template", "metadata", "labels"]).cloned()) {
            object.metadata().insert("labels".into(), labels);
        }
    }

    /// Unless the user manages it, the selector is the job's uid.
    fn prepare_for_create(&self, object: &mut Object) {
        if object.at(&["spec", "manualSelector"]) == Some(&Value::Bool(true)) {
            return;
        }
        let (uid, name) = (object.uid().to_owned(), object.name().to_owned());
        let unlabeled = object.at(&["metadata", "labels"]).and_then(Value::as_object).is_none_or(Object::is_empty);
        let labels = object.at_mut(&["spec", "template", "metadata", "labels"]);
        for (key, value) in [("controller-uid", &uid), ("job-name", &name)] {
            labels.insert(format!("batch.kubernetes.io/{key}"), value.clone().into());
            labels.insert(key.into(), value.clone().into());
        }
        let labels = labels.clone();
        if unlabeled {
            object.metadata().insert("labels".into(), labels.into());
        }
        let selector = object.at_mut(&["spec", "selector", "matchLabels"]);
        selector.insert("batch.kubernetes.io/controller-uid".into(), uid.into());
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            if !spec.field("manualSelector").is_true() && !at.at(&["metadata", "uid"]).is_empty() {
                generated_selector(&at);
            }
            job(&spec);
            let selector = spec.field("selector");
            let typed = serde_json::from_value(selector.value().clone()).ok();
            if let Some(parsed) = typed.and_then(|s| api::selector::Selector::from_label_selector(Some(&s)).ok()) {
                matches_template(&parsed, &spec.field("template"));
            }
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let get = |object: &Object, field: &str| object.at(&["spec", field]).cloned().unwrap_or_default();
        let mut errors = Vec::new();
        // An indexed job may be resized as long as all of it runs at once.
        let elastic = get(new, "completionMode") == "Indexed" && get(new, "completions") == get(new, "parallelism");
        if !elastic || get(old, "completions").is_null() {
            errors.extend(fixed_at(new, old, &["spec", "completions"]));
        }
        errors.extend(fixed_at(new, old, &["spec", "selector"]));
        if get(old, "suspend") != true {
            errors.extend(fixed_at(new, old, &["spec", "template"]));
        }
        for field in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
            errors.extend(fixed_at(new, old, &["spec", field]));
        }
        errors
    }

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        check(new, |at| {
            let status = at.field("status");
            status.none_negative(&["active", "succeeded", "failed", "ready", "terminating"]);
            for (field, name) in [("failed", "failed"), ("succeeded", "succeeded")] {
                let before = old.at(&["status", field]).and_then(Value::as_i64).unwrap_or(0);
                let count = status.field(field);
                if count.number().unwrap_or(0) < before {
                    let detail = format!("cannot decrease the {name} counter");
                    count.complain(FieldError::invalid(count.path(), count.number().unwrap_or(0), detail));
                }
            }
        })
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        warnings::workload(object, &["spec", "template"])
    }
}

/// What the server gave it, nobody may have changed.
fn generated_selector(at: &At<'_>) {
    const CONTROLLER: &str = "batch.kubernetes.io/controller-uid";
    let (uid, selector) = (at.at(&["metadata", "uid"]), at.at(&["spec", "selector"]));
    let labels = selector.at(&["matchLabels"]);
    let known = [CONTROLLER, "controller-uid"].iter().any(|key| labels.field(key).value() == uid.value());
    if !known || labels.entries().len() != 1 || !selector.field("matchExpressions").is_empty() {
        selector.invalid("`selector` not auto-generated");
    }
}

fn job_defaults(spec: &mut Object) {
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        spec.insert("completions".into(), 1.into());
    }
    let backoff = if spec.contains_key("backoffLimitPerIndex") { i64::from(i32::MAX) } else { 6 };
    let replacement = if spec.contains_key("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    for (field, value) in [
        ("parallelism", json!(1)),
        ("backoffLimit", json!(backoff)),
        ("completionMode", json!("NonIndexed")),
        ("suspend", json!(false)),
        ("podReplacementPolicy", json!(replacement)),
        ("manualSelector", json!(false)),
    ] {
        set_default(spec, &[field], value);
    }
    if let Some(policy) = spec.get_mut("podFailurePolicy").and_then(Value::as_object_mut) {
        for rule in items_mut(policy, "rules") {
            items_mut(rule, "onPodConditions").for_each(|pattern| set_default(pattern, &["status"], "True"));
        }
    }
}

fn job(spec: &At<'_>) {
    spec.none_negative(&[
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ]);
    let per_index = spec.field("backoffLimitPerIndex");
    if spec.field("maxFailedIndexes").exists() && !per_index.exists() {
        per_index.required("when maxFailedIndexes is specified");
    }
    if spec.field("managedBy").exists() {
        domain_path(&spec.field("managedBy"));
    }
    completion(spec);
    let policy = spec.field("podFailurePolicy");
    if policy.exists() {
        policy.each("rules").iter().for_each(|rule| failure_rule(rule, spec));
    }
    let replacement = spec.field("podReplacementPolicy");
    match policy.exists() {
        true => replacement.one_of_if_set(&["Failed"]),
        false => replacement.one_of_if_set(&["Failed", "TerminatingOrFailed"]),
    }
    template(&spec.field("template"));
    let restart = spec.at(&["template", "spec", "restartPolicy"]);
    match restart.text() {
        "OnFailure" if policy.exists() => {
            restart.invalid("only \"Never\" is supported when podFailurePolicy is specified");
        }
        "Always" | "" => restart.required("valid values: \"OnFailure\", \"Never\""),
        _ => restart.one_of(&["OnFailure", "Never"]),
    }
}

fn completion(spec: &At<'_>) {
    let (mode, completions) = (spec.field("completionMode"), spec.field("completions"));
    mode.one_of_if_set(&["NonIndexed", "Indexed"]);
    if mode.text() == "Indexed" {
        if !completions.exists() {
            completions.required("when completion mode is Indexed");
        }
        let parallelism = spec.field("parallelism");
        if parallelism.number().is_some_and(|count| count > MOST_INDEXED) {
            parallelism
                .invalid(format!("must be less than or equal to {MOST_INDEXED} when completion mode is Indexed"));
        }
        let failed = spec.field("maxFailedIndexes");
        if failed.number().zip(completions.number()).is_some_and(|(failed, all)| failed > all) {
            failed.invalid("must be less than or equal to completions");
        }
        return;
    }
    for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
        if spec.field(field).exists() {
            spec.field(field).invalid("requires indexed completion mode");
        }
    }
    if spec.field("successPolicy").exists() {
        spec.field("successPolicy").invalid("requires indexed completion mode");
    }
}

fn failure_rule(at: &At<'_>, spec: &At<'_>) {
    let action = at.field("action");
    match action.text() {
        "" => action.required("valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]"),
        "FailIndex" if !spec.field("backoffLimitPerIndex").exists() => {
            action.invalid("requires the backoffLimitPerIndex to be set");
        }
        _ => action.one_of(&ACTIONS),
    }
    let (codes, conditions) = (at.field("onExitCodes"), at.field("onPodConditions"));
    if codes.exists() {
        exit_codes(&codes);
    }
    for pattern in conditions.items() {
        pattern.field("type").named(is_qualified_name);
        pattern.field("status").one_of(&["False", "True", "Unknown"]);
    }
    let tell = |detail: &str| {
        let mut error = FieldError::invalid(at.path(), Value::Null, detail);
        error.value.clear();
        at.complain(error);
    };
    match (codes.exists(), conditions.is_empty()) {
        (true, false) => tell("specifying both OnExitCodes and OnPodConditions is not supported"),
        (false, true) => tell("specifying one of OnExitCodes and OnPodConditions is required"),
        _ => (),
    }
}

fn exit_codes(at: &At<'_>) {
    let (operator, values) = (at.field("operator"), at.field("values"));
    operator.one_of(&["In", "NotIn"]);
    if values.is_empty() {
        values.invalid("at least one value is required");
    }
    let numbers: Vec<i64> = values.items().iter().filter_map(At::number).collect();
    let mut seen = Vec::new();
    for value in values.items() {
        if operator.text() == "In" && value.number() == Some(0) {
            value.invalid("must not be 0 for the In operator");
        }
        if seen.contains(&value.number()) {
            value.duplicate();
        }
        seen.push(value.number());
    }
    if !numbers.is_sorted() {
        values.invalid("must be ordered");
    }
}

pub(super) struct CronJobs;

/// Jobs get a suffix that must still fit into a name.
const NAME_MAX: usize = 52;

impl Strategy for CronJobs {
    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        for (field, value) in [
            ("concurrencyPolicy", json!("Allow")),
            ("suspend", json!(false)),
            ("successfulJobsHistoryLimit", json!(3)),
            ("failedJobsHistoryLimit", json!(1)),
        ] {
            set_default(object, &["spec", field], value);
        }
        template_defaults(object, &["spec", "jobTemplate", "spec"]);
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            schedule(&spec);
            spec.field("startingDeadlineSeconds").not_negative();
            time_zone(&spec.field("timeZone"));
            spec.field("concurrencyPolicy").needed_one_of(&["Allow", "Forbid", "Replace"]);
            let inner = spec.at(&["jobTemplate", "spec"]);
            job(&inner);
            if inner.field("manualSelector").is_true() {
                inner.field("manualSelector").one_of_values("true", &["nil", "false"]);
            }
            spec.none_negative(&["successfulJobsHistoryLimit", "failedJobsHistoryLimit"]);
            let name = at.at(&["metadata", "name"]);
            if name.text().len() > NAME_MAX {
                name.invalid(format!("must be no more than {NAME_MAX} characters"));
            }
        })
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        warnings::workload(object, &["spec", "jobTemplate", "spec", "template"])
    }
}

fn schedule(spec: &At<'_>) {
    let schedule = spec.field("schedule");
    if !schedule.needed() {
        return;
    }
    if schedule.text().contains("TZ") {
        schedule.invalid("cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
    } else if let Err(why) = api::cron::Schedule::parse(schedule.text()) {
        schedule.invalid(why.to_string());
    }
}

fn time_zone(at: &At<'_>) {
    if !at.exists() {
        return;
    }
    match at.text() {
        "" => at.invalid("timeZone must be nil or non-empty string"),
        zone if zone.eq_ignore_ascii_case("Local") => {
            at.invalid("timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones");
        }
        zone if jiff::tz::TimeZone::get(zone).is_err() => at.invalid(format!("unknown time zone {zone}")),
        _ => (),
    }
}
