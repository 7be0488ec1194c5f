//! Jobs and cron jobs.

mod indexes;
mod spec;
mod status;

use api::field::{FieldError, Path};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::apps::{matches_template, parsed, template_defaults};
use super::check::{At, check};
use super::{Strategy, fixed_as, fixed_at, internal, items, items_mut, set_default, warnings};

const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
/// More than this many at once, of more than that many in all, may be too much to keep track of.
const MANY_COMPLETIONS: i64 = 100_000;
const MANY_AT_ONCE: i64 = 10_000;

pub(super) struct Jobs;

impl Strategy for Jobs {
    fn pod_spec(&self) -> &'static [&'static str] {
        &["spec", "template", "spec"]
    }

    fn orphans_by_default(&self) -> bool {
        true
    }

    fn selectable_fields(&self) -> &'static [&'static str] {
        &["status.successful"]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn shares_labels(&self, object: &Object) -> bool {
        is_unlabeled(object)
    }

    fn default(&self, object: &mut Object) {
        template_defaults(object, &["spec"]);
        job_defaults(object.at_mut(&["spec"]));
        // A job that says nothing of itself is called what its pods are called.
        if let (true, Some(labels)) =
            (is_unlabeled(object), object.at(&["spec", "template", "metadata", "labels"]).cloned())
        {
            object.metadata().insert("labels".into(), labels);
        }
    }

    /// Unless the user manages it, the selector is the job's uid.
    fn prepare_for_create(&self, object: &mut Object) {
        if object.at(&["spec", "manualSelector"]) == Some(&Value::Bool(true)) {
            return;
        }
        let (uid, name) = (object.uid().to_owned(), object.name().to_owned());
        let labels = object.at_mut(&["spec", "template", "metadata", "labels"]);
        for (keys, value) in [(NAME_LABELS, name), (UID_LABELS, uid.clone())] {
            for key in keys {
                // One that the user set is left for validation to refuse.
                labels.entry(key).or_insert_with(|| value.clone().into());
            }
        }
        let selector = object.at_mut(&["spec", "selector", "matchLabels"]);
        selector.entry("batch.kubernetes.io/controller-uid").or_insert_with(|| uid.into());
    }

    fn judge_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        // Labels with a prefix are expected only of jobs that were made since there are such.
        let label =
            |key: &str| old.at(&["spec", "template", "metadata", "labels"]).is_some_and(|l| l.get(key).is_some());
        let prefixed = [UID_LABELS, NAME_LABELS].iter().all(|[_, prefixed]| label(prefixed));
        let mut errors = job(new, prefixed);
        errors.extend(self.validate_update(new, old));
        errors
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        job(object, true)
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        // Upstream looks at the whole spec once more here.
        let mut errors = check(new, |at| {
            let spec = at.field("spec");
            whole_spec(&spec);
            let completions = spec.field("completions");
            let before = old.at(&["spec", "completions"]).unwrap_or(&Value::Null);
            match spec.field("completionMode").text() == "Indexed" {
                false => at.extend(fixed_at(new, old, &["spec", "completions"])),
                true if completions.value() == before || !completions.exists() => (),
                true if completions.value() != spec.field("parallelism").value() => {
                    completions.invalid("can only be modified in tandem with spec.parallelism");
                }
                true => (),
            }
        });
        errors.extend(fixed_as("LabelSelector", new, old, &["spec", "selector"]));
        errors.extend(template_change(new, old));
        for (field, kind) in [
            ("completionMode", "s"),
            ("podFailurePolicy", "PodFailurePolicy"),
            ("backoffLimitPerIndex", "i"),
            ("managedBy", "s"),
            ("successPolicy", "SuccessPolicy"),
        ] {
            errors.extend(fixed_as(kind, new, old, &["spec", field]));
        }
        errors
    }

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        status::validate(new, old)
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let mut told = warnings::name(object, "this is used in Pod names and hostnames");
        told.extend(job_warnings(object, &["spec"]));
        told
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, old: &Object) -> Vec<String> {
        if warnings::has_new_spec(subresource, new, old) { job_warnings(new, &["spec"]) } else { Vec::new() }
    }
}

fn job(object: &Object, prefixed: bool) -> Vec<FieldError> {
    check(object, |at| {
        let spec = at.field("spec");
        generated_selector(&at, prefixed);
        whole_spec(&spec);
        let last = spec.field("completions").number().unwrap_or(0) - 1;
        if spec.field("completionMode").text() == "Indexed" && last >= 0 {
            let name = at.at(&["metadata", "name"]);
            let hostname = format!("{}-{last}", name.text());
            if !api::validation::is_label(&hostname).is_empty() {
                let detail = format!("will not able to create pod with invalid DNS label: {hostname}");
                name.complain(FieldError::invalid(name.path(), name.text(), detail));
            }
        }
    })
}

fn is_unlabeled(object: &Object) -> bool {
    object.at(&["metadata", "labels"]).and_then(Value::as_object).is_none_or(Object::is_empty)
}

/// The spec with its selector, which must select the pods it makes.
fn whole_spec(spec: &At<'_>) {
    spec::job(spec);
    let selector = spec.field("selector");
    if selector.exists() {
        selector.selector();
        if let Some(parsed) = parsed(&selector) {
            matches_template(&parsed, &spec.field("template"));
        }
    } else {
        selector.required("");
        // Without a selector nothing is selected.
        spec.at(&["template", "metadata", "labels"]).invalid("`selector` does not match template `labels`");
    }
}

/// What the server gave it, nobody may have changed.
fn generated_selector(at: &At<'_>, prefixed: bool) {
    let (spec, uid, name) = (at.field("spec"), at.at(&["metadata", "uid"]), at.at(&["metadata", "name"]));
    let selector = spec.field("selector");
    if spec.field("manualSelector").is_true() || !selector.exists() {
        return;
    }
    let labels = spec.at(&["template", "metadata", "labels"]);
    let [old_uid, new_uid] = UID_LABELS;
    let [old_name, new_name] = NAME_LABELS;
    let expected = [(old_uid, &uid), (old_name, &name), (new_uid, &uid), (new_name, &name)];
    for (key, wanted) in expected.iter().filter(|(key, _)| prefixed || !key.contains('/')) {
        let place = labels.path().key(key);
        let detail = format!("must be '{}'", wanted.text());
        match labels.field(key) {
            label if !label.exists() => label.complain(FieldError::required(&place, detail)),
            label if label.value() != wanted.value() => {
                label.complain(FieldError::invalid(&place, labels.value().clone(), detail));
            }
            _ => (),
        }
    }
    let expected = expected.map(|(key, value)| (key.to_owned(), value.text().to_owned()));
    if parsed(&selector).is_some_and(|parsed| !parsed.matches(&expected.into_iter().collect())) {
        selector.invalid_as("LabelSelector", "`selector` not auto-generated");
    }
}

/// Where pods of a job that rests will run, and how much they get, may still be changed.
fn template_change(new: &Object, old: &Object) -> Vec<FieldError> {
    const TEMPLATE: [&str; 3] = ["spec", "template", "spec"];
    let mut rests = false;
    check(old, |at| {
        let status = at.field("status");
        let begun = status.field("startTime").exists() && !status::is(&status, "Suspended", "True");
        rests = at.at(&["spec", "suspend"]).is_true() && !begun && status::count(&status, "active") == 0;
    });
    if !rests {
        return fixed_as("PodTemplateSpec", new, old, &["spec", "template"]);
    }
    let spec = |object: &Object| object.at(&TEMPLATE).and_then(Value::as_object).cloned().unwrap_or_default();
    let (wanted, mut allowed) = (spec(new), spec(old));
    for field in ["nodeSelector", "tolerations", "schedulingGates"] {
        take(&mut allowed, &wanted, field);
    }
    match (wanted.get("affinity").and_then(Value::as_object), allowed.contains_key("affinity")) {
        (Some(affinity), _) => take(allowed.at_mut(&["affinity"]), affinity, "nodeAffinity"),
        (None, true) => {
            allowed.remove_at(&["affinity", "nodeAffinity"]);
            if allowed.get("affinity").and_then(Value::as_object).is_some_and(Object::is_empty) {
                allowed.remove("affinity");
            }
        }
        (None, false) => (),
    }
    for list in ["containers", "initContainers"] {
        let all = items(&wanted, &[list]);
        if items(&allowed, &[list]).len() != all.len() {
            continue;
        }
        for (container, wanted) in items_mut(&mut allowed, list).zip(all) {
            if container.get("name") == wanted.get("name") {
                take(container, wanted, "resources");
            }
        }
    }
    if wanted == allowed {
        return Vec::new();
    }
    let place = Path::new("spec.template.spec");
    vec![internal::invalid("PodSpec", &place, &Value::Object(wanted), "field is immutable")]
}

/// What `from` has in this field.
fn take(object: &mut Object, from: &Object, field: &str) {
    match from.get(field) {
        Some(value) => object.insert(field.to_owned(), value.clone()),
        None => object.remove(field),
    };
}

fn job_warnings(object: &Object, path: &[&str]) -> Vec<String> {
    let mut told = Vec::new();
    check(object, |at| {
        let spec = at.at(path);
        let above = |field: &str, most: i64| spec.field(field).number().is_some_and(|number| number > most);
        if spec.field("completionMode").text() == "Indexed"
            && above("completions", MANY_COMPLETIONS)
            && above("parallelism", MANY_AT_ONCE)
        {
            told.push(format!("{}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail", spec.path()));
        }
    });
    let template: Vec<&str> = path.iter().copied().chain(["template"]).collect();
    told.extend(warnings::template(object, &template));
    told
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
    failure_defaults(spec);
}

fn failure_defaults(spec: &mut Object) {
    if let Some(policy) = spec.get_mut("podFailurePolicy").and_then(Value::as_object_mut) {
        for rule in items_mut(policy, "rules") {
            let unset = items_mut(rule, "onPodConditions").filter(|pattern| pattern.text(&["status"]).is_empty());
            unset.for_each(|pattern| drop(pattern.insert("status".into(), "True".into())));
        }
    }
}

pub(super) struct CronJobs;

/// Jobs get a suffix that must still fit into a name.
const NAME_MAX: usize = 52;

impl Strategy for CronJobs {
    fn pod_spec(&self) -> &'static [&'static str] {
        &["spec", "jobTemplate", "spec", "template", "spec"]
    }

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
        failure_defaults(object.at_mut(&["spec", "jobTemplate", "spec"]));
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            schedule(&spec);
            spec.field("startingDeadlineSeconds").not_negative();
            time_zone(&spec.field("timeZone"));
            spec.field("concurrencyPolicy").needed_one_of(&["Allow", "Forbid", "Replace"]);
            let inner = spec.at(&["jobTemplate", "spec"]);
            spec::job(&inner);
            if inner.field("selector").exists() {
                inner.field("selector").invalid_as("LabelSelector", "`selector` will be auto-generated");
            }
            if inner.field("manualSelector").is_true() {
                inner.field("manualSelector").one_of_values("true", &["nil", "false"]);
            }
            spec.none_negative(&["successfulJobsHistoryLimit", "failedJobsHistoryLimit"]);
        })
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let name = at.at(&["metadata", "name"]);
            if name.text().len() > NAME_MAX {
                name.invalid(format!("must be no more than {NAME_MAX} characters"));
            }
        })
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        let mut told = warnings::name(object, "this is used in Pod names and hostnames");
        told.extend(job_warnings(object, &["spec", "jobTemplate", "spec"]));
        told
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, old: &Object) -> Vec<String> {
        match warnings::has_new_spec(subresource, new, old) {
            true => job_warnings(new, &["spec", "jobTemplate", "spec"]),
            false => Vec::new(),
        }
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
        zone if zone.split('/').any(|part| !is_zone_part(part)) => at.invalid(format!("unknown time zone {zone}")),
        zone if zone.eq_ignore_ascii_case("Local") => {
            at.invalid("timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones");
        }
        zone if jiff::tz::TimeZone::get(zone).is_err() => at.invalid(format!("unknown time zone {zone}")),
        _ => (),
    }
}

fn is_zone_part(part: &str) -> bool {
    const LONGEST: usize = 14;
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+');
    (1..=LONGEST).contains(&part.len())
        && !matches!(part, "." | "..")
        && !part.starts_with('-')
        && part.bytes().all(known)
}
