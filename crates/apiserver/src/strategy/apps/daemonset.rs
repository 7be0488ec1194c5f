//! DaemonSets.

use api::field::FieldError;
use api::{Object, ObjectExt as _};
use serde_json::json;

use super::super::check::{At, check};
use super::super::{Strategy, fixed_as, set_default, warnings};
use super::{
    SELECTOR, is_empty, lasting_template, not_decremented, percent_or_number, selects, template_defaults, unsupported,
};

pub(in super::super) struct DaemonSets;

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

impl Strategy for DaemonSets {
    fn pod_spec(&self) -> &'static [&'static str] {
        &["spec", "template", "spec"]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        template_defaults(object, &["spec"]);
        set_default(object, &["spec", "updateStrategy", "type"], "RollingUpdate");
        if object.text(&["spec", "updateStrategy", "type"]) == "RollingUpdate" {
            set_default(object, &["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"], 1);
            set_default(object, &["spec", "updateStrategy", "rollingUpdate", "maxSurge"], 0);
        }
        set_default(object, &["spec", "revisionHistoryLimit"], 10);
        // Upstream keeps the count in a field of its own, which whoever writes the set manages, too.
        set_default(object, &["metadata", "annotations", TEMPLATE_GENERATION], "0");
    }

    fn prepare_for_create(&self, object: &mut Object) {
        let zero = json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0});
        object.insert("status".into(), zero);
        object.at_mut(&["metadata", "annotations"]).insert(TEMPLATE_GENERATION.into(), "1".into());
    }

    /// Counts changes of the template, as clients from before generations expect.
    fn prepare_for_update(&self, new: &mut Object, old: &Object) {
        let before: i64 = old.text(&["metadata", "annotations", TEMPLATE_GENERATION]).parse().unwrap_or(0);
        let changed = new.at(&["spec", "template"]) != old.at(&["spec", "template"]);
        let count = if changed { before + 1 } else { before };
        new.at_mut(&["metadata", "annotations"]).insert(TEMPLATE_GENERATION.into(), count.to_string().into());
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        check(object, |at| {
            let spec = at.field("spec");
            let (selector, template) = (spec.field("selector"), spec.field("template"));
            selector.selector();
            // One that cannot be used has been told so.
            let _ = selects(&selector, &template);
            if selector.exists() && is_empty(&selector) {
                selector.invalid_as(SELECTOR, "empty selector is invalid for daemonset");
            }
            lasting_template(&template, "DaemonSet");
            spec.field("minReadySeconds").not_negative();
            daemon_rollout(&spec.field("updateStrategy"));
            spec.field("revisionHistoryLimit").not_negative();
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        fixed_as(SELECTOR, new, old, &["spec", "selector"])
    }

    /// Upstream looks at what may not change first.
    fn judge_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut errors = self.validate_update(new, old);
        errors.extend(self.validate(new));
        errors
    }

    fn validate_status(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        check(new, |at| {
            let status = at.field("status");
            status.none_negative(&[
                "currentNumberScheduled",
                "numberMisscheduled",
                "desiredNumberScheduled",
                "numberReady",
                "observedGeneration",
                "updatedNumberScheduled",
                "numberAvailable",
                "numberUnavailable",
                "collisionCount",
            ]);
            not_decremented(&status, old);
        })
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        warnings::template(object, &["spec", "template"])
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, old: &Object) -> Vec<String> {
        // Only a new template is worth it here.
        match subresource.is_empty() && new.at(&["spec", "template"]) != old.at(&["spec", "template"]) {
            true => warnings::template(new, &["spec", "template"]),
            false => Vec::new(),
        }
    }
}

fn daemon_rollout(at: &At<'_>) {
    let rolling = at.field("rollingUpdate");
    match at.field("type").text() {
        "OnDelete" => (),
        "RollingUpdate" if !rolling.exists() => rolling.required(""),
        "RollingUpdate" => {
            let both = [rolling.field("maxUnavailable"), rolling.field("maxSurge")];
            for amount in &both {
                amount.number_or_percent();
            }
            both.iter().for_each(At::at_most_100_percent);
            let [unavailable, surge] = &both;
            match (percent_or_number(unavailable) != 0, percent_or_number(surge) != 0) {
                (true, true) => surge.invalid("may not be set when maxUnavailable is non-zero"),
                (false, false) => unavailable.required("cannot be 0 when maxSurge is 0"),
                _ => (),
            }
        }
        _ => unsupported(at, "DaemonSetUpdateStrategy", &["RollingUpdate", "OnDelete"]),
    }
}
