//! Jobs and cron jobs.

use api::field::{FieldError, Path};
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::apps::template_defaults;
use super::{Strategy, pod_validation, set_default};

pub(super) struct Jobs;

impl Strategy for Jobs {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["status.successful"]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        template_defaults(object, &["spec"]);
        job_defaults(object.at_mut(&["spec"]));
        if let Some(labels) = object.at(&["spec", "template", "metadata", "labels"]).cloned() {
            set_default(object, &["metadata", "labels"], labels);
        }
    }

    /// Unless the user manages it, the selector is the job's uid.
    fn prepare_for_create(&self, object: &mut Object) {
        if object.at(&["spec", "manualSelector"]) == Some(&Value::Bool(true)) {
            return;
        }
        let (uid, name) = (object.uid().to_owned(), object.name().to_owned());
        let labels = object.at_mut(&["spec", "template", "metadata", "labels"]);
        for (key, value) in [("controller-uid", &uid), ("job-name", &name)] {
            labels.insert(format!("batch.kubernetes.io/{key}"), value.clone().into());
            labels.insert(key.into(), value.clone().into());
        }
        let selector = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
        object.at_mut(&["spec"]).insert("selector".into(), selector);
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        template_rules(object, &["spec", "template", "spec"], &Path::new("spec").child("template").child("spec"))
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for field in ["completions", "selector", "completionMode"] {
            let (now, before) = (new.at(&["spec", field]), old.at(&["spec", field]));
            if now != before && field != "completions" {
                errors.push(FieldError::invalid(
                    format!("spec.{field}"),
                    now.cloned().unwrap_or_default(),
                    "field is immutable",
                ));
            }
        }
        let suspended = old.at(&["spec", "suspend"]) == Some(&Value::Bool(true));
        let (now, before) = (new.at(&["spec", "template"]), old.at(&["spec", "template"]));
        if now != before && !suspended {
            errors.push(FieldError::invalid("spec.template", now.cloned().unwrap_or_default(), "field is immutable"));
        }
        errors
    }
}

fn job_defaults(spec: &mut Object) {
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        spec.insert("completions".into(), 1.into());
    }
    for (field, value) in [
        ("parallelism", json!(1)),
        ("backoffLimit", json!(6)),
        ("completionMode", json!("NonIndexed")),
        ("suspend", json!(false)),
        ("podReplacementPolicy", json!("TerminatingOrFailed")),
    ] {
        set_default(spec, &[field], value);
    }
}

fn template_rules(object: &Object, place: &[&str], path: &Path) -> Vec<FieldError> {
    let Some(Value::Object(spec)) = object.at(place) else {
        return vec![FieldError::required(&path.child("containers"), "")];
    };
    let mut errors = pod_validation::pod_spec(spec, path);
    let policy = spec.text(&["restartPolicy"]);
    if policy == "Always" {
        let allowed = ["OnFailure", "Never"];
        errors.push(FieldError::required(
            &path.child("restartPolicy"),
            format!("valid values: {allowed:?}").replace(['[', ']'], ""),
        ));
    }
    errors
}

pub(super) struct CronJobs;

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
        let mut errors = Vec::new();
        if object.text(&["spec", "schedule"]).is_empty() {
            errors.push(FieldError::required("spec.schedule", ""));
        }
        let path = Path::new("spec").child("jobTemplate").child("spec").child("template").child("spec");
        errors.extend(template_rules(object, &["spec", "jobTemplate", "spec", "template", "spec"], &path));
        errors
    }
}
