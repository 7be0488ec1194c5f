//! What a job's status may say, and become; most of it is asked only of what changes.

use api::Object;
use api::field::FieldError;

use super::super::check::{At, check};
use super::indexes;
use super::spec::without_value;

/// A status beside the one it replaces.
struct Change<'a> {
    new: At<'a>,
    old: At<'a>,
    /// The job's spec, which a status does not change.
    spec: At<'a>,
}

impl Change<'_> {
    fn differs(&self, field: &str) -> bool {
        self.new.field(field).value() != self.old.field(field).value()
    }

    /// The condition is true in one of them alone.
    fn flips(&self, kind: &str) -> bool {
        is(&self.new, kind, "True") != is(&self.old, kind, "True")
    }

    fn told(&self, detail: &str) {
        without_value(&self.new.field("conditions"), detail);
    }
}

pub(super) fn is(status: &At<'_>, kind: &str, value: &str) -> bool {
    let conditions = status.each("conditions");
    conditions.iter().any(|one| one.field("type").text() == kind && one.field("status").text() == value)
}

fn is_finished(status: &At<'_>) -> bool {
    is(status, "Complete", "True") || is(status, "Failed", "True")
}

pub(super) fn count(status: &At<'_>, field: &str) -> i64 {
    status.field(field).number().unwrap_or(0)
}

pub(super) fn validate(new: &Object, old: &Object) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check(old, |before| {
        errors = check(new, |at| {
            let change = Change { new: at.field("status"), old: before.field("status"), spec: at.field("spec") };
            counts(&change.new);
            conditions(&change);
            finished(&change);
            index_texts(&change);
            pods(&change);
            transitions(&change);
        });
    });
    errors
}

fn counts(status: &At<'_>) {
    status.none_negative(&["active", "succeeded", "failed", "ready", "terminating"]);
    let mut seen = Vec::new();
    let uncounted = status.field("uncountedTerminatedPods");
    for pod in ["succeeded", "failed"].iter().flat_map(|list| uncounted.each(list)) {
        if pod.text().is_empty() {
            pod.complain(FieldError::invalid(pod.path(), "", "must not be empty"));
        } else if seen.contains(&pod.text()) {
            pod.duplicate();
        } else {
            seen.push(pod.text());
        }
    }
}

fn conditions(change: &Change<'_>) {
    let new = &change.new;
    let (complete, failed) = (is(new, "Complete", "True"), is(new, "Failed", "True"));
    let (completion, start) = (new.field("completionTime"), new.field("startTime"));
    let (completes, fails) = (change.flips("Complete"), change.flips("Failed"));
    if (completes || fails) && complete && failed {
        change.told("cannot set Complete=True and Failed=true conditions");
    }
    if (completes || change.flips("FailureTarget")) && complete && is(new, "FailureTarget", "True") {
        change.told("cannot set Complete=True and FailureTarget=true conditions");
    }
    if completes || change.differs("completionTime") {
        if completion.exists() && !complete {
            completion.invalid("cannot set completionTime when there is no Complete=True condition");
        }
        if !completion.exists() && complete {
            completion.required("completionTime is required for Complete jobs");
        }
    }
    if (change.differs("startTime") || change.differs("completionTime"))
        && start.exists()
        && completion.exists()
        && completion.text() < start.text()
    {
        completion.invalid("must be equal to or after `startTime`");
    }
    if (fails || change.differs("failedIndexes")) && failed && !is(new, "FailureTarget", "True") {
        change.told("cannot set Failed=True condition without the FailureTarget=true condition");
    }
    if (completes || change.flips("SuccessCriteriaMet")) && complete && !is(new, "SuccessCriteriaMet", "True") {
        change.told("cannot set Complete=True condition without the SuccessCriteriaMet=true condition");
    }
}

fn finished(change: &Change<'_>) {
    let Change { new, old, spec } = change;
    let finishes = is_finished(new) != is_finished(old);
    if (finishes || count(new, "active") != count(old, "active")) && count(new, "active") > 0 && is_finished(new) {
        new.field("active").invalid("active>0 is invalid for finished job");
    }
    let never_runs = spec.field("suspend").is_true() && spec.field("completions").number() == Some(0);
    let start = new.field("startTime");
    if (finishes || change.differs("startTime")) && !never_runs && !start.exists() && is_finished(new) {
        start.required("startTime is required for finished job");
    }
    let uncounted = new.field("uncountedTerminatedPods");
    let some = !uncounted.field("succeeded").is_empty() || !uncounted.field("failed").is_empty();
    if (finishes || change.differs("uncountedTerminatedPods")) && is_finished(new) && some {
        uncounted.invalid("must be empty for finished job");
    }
}

fn index_texts(change: &Change<'_>) {
    let Change { new, spec, .. } = change;
    let (completed, failed) = (new.field("completedIndexes"), new.field("failedIndexes"));
    let (completes, fails) = (change.differs("completedIndexes"), change.differs("failedIndexes"));
    let (completions, per_index) = (spec.field("completions").number(), spec.field("backoffLimitPerIndex").exists());
    let readable = |at: &At<'_>, name: &str| {
        if let Some(Err(why)) = completions.map(|all| indexes::count(at.text(), all)) {
            at.invalid(format!("error parsing {name}: {why}"));
        }
    };
    if completes {
        readable(&completed, "completedIndexes");
    }
    if fails && per_index && failed.exists() {
        readable(&failed, "failedIndexes");
    }
    if completes && !completed.is_empty() && spec.field("completionMode").text() != "Indexed" {
        completed.invalid("cannot set non-empty completedIndexes when non-indexed completion mode");
    }
    if fails && !per_index && failed.exists() {
        failed.invalid("cannot set non-null failedIndexes when backoffLimitPerIndex is null");
    }
    if let (true, Some(completions)) = ((completes || fails) && failed.exists(), completions)
        && let Some(index) = indexes::overlap(completed.text(), failed.text(), completions)
    {
        failed.invalid(format!("failedIndexes and completedIndexes overlap at index: {index}"));
    }
}

fn pods(change: &Change<'_>) {
    let Change { new, old, spec } = change;
    let finishes = is_finished(new) != is_finished(old);
    if (finishes || change.differs("terminating")) && count(new, "terminating") > 0 && is_finished(new) {
        new.field("terminating").invalid("terminating>0 is invalid for finished job");
    }
    let active_changes = count(new, "active") != count(old, "active");
    let ready = new.field("ready");
    if (change.differs("ready") || active_changes) && ready.number().is_some_and(|ready| ready > count(new, "active")) {
        ready.invalid("cannot set more ready pods than active");
    }
    let met = is(new, "SuccessCriteriaMet", "True");
    if met && is(new, "Failed", "True") {
        change.told("cannot set SuccessCriteriaMet=True and Failed=true conditions");
    }
    if met && is(new, "FailureTarget", "True") {
        change.told("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions");
    }
    if spec.field("successPolicy").exists() && !met && is(new, "Complete", "True") {
        change.told("cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True");
    }
}

fn transitions(change: &Change<'_>) {
    let Change { new, old, spec } = change;
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if is(old, kind, "True") && !is(new, kind, "True") {
            change.told(&format!("cannot disable the terminal {kind}=True condition"));
        }
    }
    // An indexed job that runs all at once may be made smaller.
    let shrinks = spec.field("completionMode").text() == "Indexed"
        && spec.field("completions").value() == spec.field("parallelism").value();
    for name in ["failed", "succeeded"].into_iter().filter(|name| !(shrinks && *name == "succeeded")) {
        if count(new, name) < count(old, name) {
            let detail = format!("cannot decrease the {name} counter");
            new.complain(FieldError::invalid(&new.path().child(name), count(new, name), detail));
        }
    }
    let (completion, start) = (new.field("completionTime"), new.field("startTime"));
    if completion.exists() && old.field("completionTime").exists() && change.differs("completionTime") {
        completion.invalid("field is immutable");
    }
    let resumes = is(old, "Suspended", "True") && is(new, "Suspended", "False");
    let suspended = spec.field("suspend").is_true();
    if change.differs("startTime") && !resumes && old.field("startTime").exists() && !suspended {
        start.invalid("field is immutable for unsuspended job once set");
    }
    let (met, was_met) = (is(new, "SuccessCriteriaMet", "True"), is(old, "SuccessCriteriaMet", "True"));
    if was_met && !met {
        change.told("cannot disable the SuccessCriteriaMet=True condition");
    }
    if is(old, "Complete", "True") && !was_met && met {
        change.told("cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions");
    }
}
