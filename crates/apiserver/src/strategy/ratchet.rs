//! What older servers allowed may stay: an object that broke one of these rules before its change is not held to it.
//!
//! Nothing is looked at unless a change is about to be refused for one of them.

use api::field::FieldError;

/// A rule that came after objects which break it: a complaint whose place has these parts, in this order, and whose detail has one of
/// these.
struct Late {
    place: &'static [&'static str],
    details: &'static [&'static str],
    /// Only what is complained of in the same words as before may stay.
    unchanged: bool,
}

const LABEL_VALUE: [&str; 2] = ["a valid label must be an empty string or", "must be no more than 63"];

/// The narrower come first.
const LATE: [Late; 15] = [
    late(&["topologySpreadConstraints[", "].labelSelector"], &[""]),
    late(&["requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[", "].values["], &LABEL_VALUE),
    late(&["matchExpressions[", "].values["], &LABEL_VALUE),
    late(&["resources."], &["is not positive integer multiple of"]),
    late(&["projected.path"], &["must be a relative path", "must not contain '..'", "must not start with '..'"]),
    late(&["sysctls[", "].name"], &["may not be specified when 'host"]),
    late(&["volumeDevices"], &["when `hostUsers` is false"]),
    late(&["resizePolicy[", "].restartPolicy"], &["for non-sidecar initContainers"]),
    late(&["annotations[controller.kubernetes.io/pod-deletion-cost]"], &["must be a 32bit integer"]),
    late(&["schedule"], &["cannot use TZ or CRON_TZ in schedule, use timeZone field instead"]),
    late(&["webhooks[", "].admissionReviewVersions"], &["must include at least one of"]),
    late(&["scaleTargetRef.apiVersion"], &[""]),
    Late { unchanged: true, ..late(&["webhooks[", "].name"], &[""]) },
    Late { unchanged: true, ..late(&["timeZone"], &[""]) },
    Late { unchanged: true, ..late(&[".matchConditions["], &[""]) },
];

const fn late(place: &'static [&'static str], details: &'static [&'static str]) -> Late {
    Late { place, details, unchanged: false }
}

impl Late {
    fn is_of(&self, error: &FieldError) -> bool {
        let mut rest = Some(error.field.as_str());
        for part in self.place {
            rest = rest.and_then(|rest| rest.split_once(part)).map(|(_, rest)| rest);
        }
        rest.is_some() && self.details.iter().any(|detail| error.detail.contains(detail))
    }
}

/// The complaints that are left of those about a change where `before` are the complaints about what it changes.
pub(crate) fn left(mut errors: Vec<FieldError>, before: impl FnOnce() -> Vec<FieldError>) -> Vec<FieldError> {
    let of = |error: &FieldError| LATE.iter().position(|late| late.is_of(error));
    if !errors.iter().any(|error| of(error).is_some()) {
        return errors;
    }
    let before: Vec<(usize, FieldError)> =
        before().into_iter().filter_map(|error| Some((of(&error)?, error))).collect();
    errors.retain(|error| {
        let Some(own) = of(error) else { return true };
        let is_strict = LATE.get(own).is_some_and(|late| late.unchanged);
        !before.iter().any(|(late, known)| *late == own && (!is_strict || known == error))
    });
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy;
    use serde_json::{Value, json};

    #[test]
    fn what_was_wrong_may_stay_and_nothing_else() {
        let budget = |value: &str, amount: &str| {
            json!({"metadata": {"name": "a"}, "spec": {"minAvailable": amount, "selector": {"matchExpressions": [
                {"key": "a", "operator": "In", "values": [value]},
            ]}}})
        };
        check("policy", "poddisruptionbudgets", &budget("!", "1%"), &budget("!", "2%"), "");
        check("policy", "poddisruptionbudgets", &budget("?", "1%"), &budget("!", "1%"), "");
        check(
            "policy",
            "poddisruptionbudgets",
            &budget("a", "1%"),
            &budget("!", "1%"),
            "spec.selector.matchExpressions[0].values[0]",
        );
        check("policy", "poddisruptionbudgets", &budget("!", "1%"), &budget("!", "101%"), "spec.minAvailable");
    }

    #[test]
    fn schedules_may_keep_their_zones() {
        let job = |schedule: &str, zone: Value| {
            let pods = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]}});
            json!({"metadata": {"name": "a"}, "spec": {"schedule": schedule, "timeZone": zone,
                "jobTemplate": {"spec": {"template": pods}}}})
        };
        let zoned = "CRON_TZ=UTC 0 0 * * *";
        check("batch", "cronjobs", &job(zoned, Value::Null), &job(zoned, Value::Null), "");
        check("batch", "cronjobs", &job("0 0 * * *", Value::Null), &job(zoned, Value::Null), "spec.schedule");
        check("batch", "cronjobs", &job("0 0 * * *", json!("x/!")), &job("1 0 * * *", json!("x/!")), "");
        check("batch", "cronjobs", &job("0 0 * * *", json!("x/!")), &job("0 0 * * *", json!("x/?")), "spec.timeZone");
    }

    #[test]
    fn templates_and_webhooks_may_keep_what_they_have() {
        let deployment = |amount: &str, path: &str| {
            let terms = json!([{"matchExpressions": [{"key": "a", "operator": "In", "values": ["!"]}]}]);
            json!({"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {
                    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": {"a": "!"}}}],
                    "affinity": {"nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
                    "volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": path}}]}}],
                    "containers": [{"name": "a", "image": "a", "resources": {"limits": {
                        "hugepages-2Mi": amount, "cpu": "1"}}}],
                },
            }}})
        };
        let old = deployment("1Mi", "../x");
        check("apps", "deployments", &old, &deployment("3Ki", "../y"), "");
        let place = "spec.template.spec.volumes[0].projected.path";
        check("apps", "deployments", &deployment("1Mi", "x"), &old, place);
        let hooks = |names: [&str; 2], versions: &str| {
            let hook = |name: &str| {
                json!({"name": name, "sideEffects": "None", "admissionReviewVersions": [versions],
                "clientConfig": {"url": "https://x.y"}})
            };
            json!({"kind": "ValidatingWebhookConfiguration", "metadata": {"name": "a"}, "webhooks": names.map(hook)})
        };
        let (group, plural) = ("admissionregistration.k8s.io", "validatingwebhookconfigurations");
        let old = hooks(["a.b.c", "a.b.c"], "v9");
        check(group, plural, &old, &hooks(["a.b.c", "a.b.c"], "v8"), "");
        check(group, plural, &hooks(["a.b.c", "d.b.c"], "v1"), &hooks(["a.b.c", "a.b.c"], "v1"), "webhooks[1].name");
    }

    /// The places that are complained of when `old` becomes `new`.
    #[track_caller]
    fn check(group: &str, plural: &str, old: &Value, new: &Value, want: &str) {
        let strategy = strategy::of(group, plural);
        let [old, new] = [old, new].map(|sent| {
            let mut object = sent.as_object().cloned().unwrap();
            strategy.default(&mut object);
            object
        });
        let errors = left(strategy.judge_update(&new, &old), || strategy.judge_create(&old));
        let places: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(places.join(" "), want, "{errors:?}");
    }
}
