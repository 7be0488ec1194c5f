//! The rules of a job's spec, in upstream's order; shared by jobs and what cron jobs make them from.

use api::field::FieldError;
use api::validation::is_qualified_name;
use serde_json::Value;

use super::super::apps::template;
use super::super::check::At;
use super::super::networking::domain_path;
use super::indexes;

const MOST_PARALLEL_INDEXED: i64 = 100_000;
const MOST_FAILED_INDEXES: i64 = 100_000;
/// Above this many completions, less may run and fail.
const MANY_COMPLETIONS: i64 = 100_000;
const MOST_OF_MANY: i64 = 10_000;
const LONGEST_MANAGER: usize = 63;
const LONGEST_INDEXES: usize = 64 << 10;
const MOST_RULES: usize = 20;
const MOST_PATTERNS: usize = 20;
const MOST_EXIT_CODES: usize = 255;
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: [&str; 2] = ["In", "NotIn"];
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];

pub(super) fn job(spec: &At<'_>) {
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
    let manager = spec.field("managedBy");
    if manager.exists() {
        domain_path(&manager);
        if manager.text().len() > LONGEST_MANAGER {
            manager.complain(FieldError::too_long(manager.path(), LONGEST_MANAGER));
        }
    }
    completion(spec);
    let (failure, success) = (spec.field("podFailurePolicy"), spec.field("successPolicy"));
    if failure.exists() {
        failure_policy(&failure, spec);
    }
    if success.exists() {
        match spec.field("completionMode").text() {
            "Indexed" => success_policy(&success, spec.field("completions").number()),
            _ => success.invalid_as("SuccessPolicy", "requires indexed completion mode"),
        }
    }
    let replacement = spec.field("podReplacementPolicy");
    match failure.exists() {
        true => replacement.one_of_if_set(&["Failed"]),
        false => replacement.one_of_if_set(&["Failed", "TerminatingOrFailed"]),
    }
    template(&spec.field("template"));
    let restart = spec.at(&["template", "spec", "restartPolicy"]);
    match restart.text() {
        "OnFailure" if failure.exists() => {
            restart.invalid("only \"Never\" is supported when podFailurePolicy is specified");
        }
        "Always" | "" => restart.required("valid values: \"OnFailure\", \"Never\""),
        _ => restart.one_of(&["OnFailure", "Never"]),
    }
}

fn completion(spec: &At<'_>) {
    let (mode, completions) = (spec.field("completionMode"), spec.field("completions"));
    mode.one_of_if_set(&["NonIndexed", "Indexed"]);
    let (per_index, failed) = (spec.field("backoffLimitPerIndex"), spec.field("maxFailedIndexes"));
    match mode.text() {
        "Indexed" => indexed(spec, &completions, &failed),
        "NonIndexed" | "" if mode.text() == "NonIndexed" || !mode.exists() => {
            for field in [per_index, failed] {
                if field.exists() {
                    field.invalid("requires indexed completion mode");
                }
            }
        }
        _ => (),
    }
}

fn indexed(spec: &At<'_>, completions: &At<'_>, failed: &At<'_>) {
    if !completions.exists() {
        completions.required("when completion mode is Indexed");
    }
    let parallelism = spec.field("parallelism");
    let above = |at: &At<'_>, most: i64| at.number().is_some_and(|number| number > most);
    if above(&parallelism, MOST_PARALLEL_INDEXED) {
        parallelism
            .invalid(format!("must be less than or equal to {MOST_PARALLEL_INDEXED} when completion mode is Indexed"));
    }
    if completions.number().is_some_and(|all| above(failed, all)) {
        failed.invalid("must be less than or equal to completions");
    }
    if above(failed, MOST_FAILED_INDEXES) {
        failed.invalid(format!("must be less than or equal to {MOST_FAILED_INDEXES}"));
    }
    if above(completions, MANY_COMPLETIONS) && spec.field("backoffLimitPerIndex").exists() {
        if !failed.exists() {
            failed.required(&format!("must be specified when completions is above {MANY_COMPLETIONS}"));
        }
        for field in [&parallelism, failed] {
            if above(field, MOST_OF_MANY) {
                field.invalid(format!(
                    "must be less than or equal to {MOST_OF_MANY} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
                ));
            }
        }
    }
}

fn failure_policy(at: &At<'_>, spec: &At<'_>) {
    let rules = at.field("rules");
    if rules.count() > MOST_RULES {
        rules.complain(FieldError::too_many(rules.path(), rules.count(), MOST_RULES));
    }
    let pod = spec.at(&["template", "spec"]);
    let containers = pod.each("containers").into_iter().chain(pod.each("initContainers"));
    let names: Vec<&str> = containers.map(|container| container.field("name").text()).collect();
    rules.items().iter().for_each(|rule| failure_rule(rule, spec, &names));
}

fn failure_rule(at: &At<'_>, spec: &At<'_>, containers: &[&str]) {
    let action = at.field("action");
    match action.text() {
        "FailIndex" if !spec.field("backoffLimitPerIndex").exists() => {
            action.invalid("requires the backoffLimitPerIndex to be set");
        }
        _ => one_of_listed(&action, &ACTIONS),
    }
    let (codes, conditions) = (at.field("onExitCodes"), at.field("onPodConditions"));
    if codes.exists() {
        exit_codes(&codes, containers);
    }
    if conditions.count() > MOST_PATTERNS {
        conditions.complain(FieldError::too_many(conditions.path(), conditions.count(), MOST_PATTERNS));
    }
    for pattern in conditions.items() {
        pattern.field("type").named(is_qualified_name);
        one_of_listed(&pattern.field("status"), &STATUSES);
    }
    match (codes.exists(), conditions.is_empty()) {
        (true, false) => without_value(at, "specifying both OnExitCodes and OnPodConditions is not supported"),
        (false, true) => without_value(at, "specifying one of OnExitCodes and OnPodConditions is required"),
        _ => (),
    }
}

/// One of `known`, which are told even where nothing is there.
fn one_of_listed(at: &At<'_>, known: &[&str]) {
    match at.text() {
        "" => {
            let known: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
            at.required(&format!("valid values: [{}]", known.join(" ")));
        }
        _ => at.one_of(known),
    }
}

/// A complaint that does not show what is there.
pub(super) fn without_value(at: &At<'_>, detail: &str) {
    let mut error = FieldError::invalid(at.path(), Value::Null, detail);
    error.value.clear();
    at.complain(error);
}

fn exit_codes(at: &At<'_>, containers: &[&str]) {
    let (operator, values, container) = (at.field("operator"), at.field("values"), at.field("containerName"));
    one_of_listed(&operator, &OPERATORS);
    if container.exists() && !containers.contains(&container.text()) {
        container.invalid("must be one of the container or initContainer names in the pod template");
    }
    match values.count() {
        0 => values.invalid("at least one value is required"),
        count if count > MOST_EXIT_CODES => {
            values.complain(FieldError::too_many(values.path(), count, MOST_EXIT_CODES));
        }
        _ => (),
    }
    let numbers: Vec<i64> = values.items().iter().map(|value| value.number().unwrap_or(0)).collect();
    let mut seen = Vec::new();
    for (value, number) in values.items().iter().zip(&numbers) {
        if operator.text() == "In" && *number == 0 {
            value.invalid("must not be 0 for the In operator");
        }
        if seen.contains(number) {
            value.duplicate();
        }
        seen.push(*number);
    }
    if !numbers.is_sorted() {
        values.invalid("must be ordered");
    }
}

fn success_policy(at: &At<'_>, completions: Option<i64>) {
    let rules = at.field("rules");
    if rules.count() == 0 {
        rules.required("at least one rules must be specified when the successPolicy is specified");
    }
    if rules.count() > MOST_RULES {
        rules.complain(FieldError::too_many(rules.path(), rules.count(), MOST_RULES));
    }
    for rule in rules.items() {
        success_rule(&rule, completions.unwrap_or(0));
    }
}

fn success_rule(at: &At<'_>, completions: i64) {
    let (indexes, count) = (at.field("succeededIndexes"), at.field("succeededCount"));
    if !indexes.exists() && !count.exists() {
        at.required("at least one of succeededCount or succeededIndexes must be specified");
    }
    let mut total = 0;
    if indexes.exists() {
        if indexes.text().len() > LONGEST_INDEXES {
            indexes.complain(FieldError::too_long(indexes.path(), LONGEST_INDEXES));
        }
        match indexes::count(indexes.text(), completions) {
            Ok(named) => total = named,
            Err(why) => indexes.invalid(format!("error parsing succeededIndexes: {why}")),
        }
    }
    count.not_negative();
    let above = |most: i64, which: &str| {
        if count.number().is_some_and(|number| number > most) {
            count.invalid(format!("must be less than or equal to {most} (the number of {which})"));
        }
    };
    above(completions, "specified completions");
    if indexes.exists() {
        above(total, "indexes in the specified succeededIndexes field");
    }
}
