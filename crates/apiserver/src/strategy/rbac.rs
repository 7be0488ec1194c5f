//! Roles and bindings.

use api::field::FieldError;
use api::validation::{NameRule, is_path_segment, is_subdomain};
use api::{Object, ObjectExt as _};
use serde_json::json;

use super::check::{At, check};
use super::{Strategy, items_mut};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) struct Roles;

impl Strategy for Roles {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        let namespaced = !object.namespace().is_empty();
        check(object, |at| {
            at.each("rules").iter().for_each(|item| rule(item, namespaced));
            let aggregation = at.field("aggregationRule");
            let selectors = aggregation.field("clusterRoleSelectors");
            if aggregation.exists() && selectors.is_empty() {
                selectors.required("at least one clusterRoleSelector required if aggregationRule is non-nil");
            }
            for selector in selectors.items() {
                let before = selector.complaints();
                selector.selector();
                if selector.complaints() > before {
                    let why = "invalid label selector.";
                    selector.complain(FieldError::invalid(selector.path(), serde_json::Value::Null, why));
                }
            }
        })
    }
}

fn rule(at: &At<'_>, namespaced: bool) {
    let (urls, groups, resources) = (at.field("nonResourceURLs"), at.field("apiGroups"), at.field("resources"));
    if at.field("verbs").is_empty() {
        at.field("verbs").required("verbs must contain at least one value");
    }
    if !urls.is_empty() {
        if namespaced {
            urls.invalid("namespaced rules cannot apply to non-resource URLs");
        }
        if !groups.is_empty() || !resources.is_empty() || !at.field("resourceNames").is_empty() {
            urls.invalid("rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    if groups.is_empty() {
        groups.required("resource rules must supply at least one api group");
    }
    if resources.is_empty() {
        resources.required("resource rules must supply at least one resource");
    }
}

pub(super) struct Bindings;

impl Strategy for Bindings {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object) {
        // Clients that always write the field leave it empty.
        if object.text(&["roleRef", "apiGroup"]).is_empty() {
            object.at_mut(&["roleRef"]).insert("apiGroup".into(), GROUP.into());
        }
        for subject in items_mut(object, "subjects") {
            if matches!(subject.text(&["kind"]), "User" | "Group") && subject.text(&["apiGroup"]).is_empty() {
                subject.insert("apiGroup".into(), GROUP.into());
            }
        }
    }

    fn validate(&self, object: &Object) -> Vec<FieldError> {
        let namespaced = !object.namespace().is_empty();
        check(object, |at| {
            let role = at.field("roleRef");
            role.field("apiGroup").one_of(&[GROUP]);
            role.field("kind").one_of(if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] });
            role.field("name").needed_named(is_path_segment);
            at.each("subjects").iter().for_each(|item| subject(item, namespaced));
        })
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        if new.get("roleRef") == old.get("roleRef") {
            return Vec::new();
        }
        let part = |name: &str| new.text(&["roleRef", name]).to_owned();
        // Shown as upstream keeps it.
        let shown = json!({"APIGroup": part("apiGroup"), "Kind": part("kind"), "Name": part("name")});
        vec![FieldError::invalid("roleRef", shown, "cannot change roleRef")]
    }
}

fn subject(at: &At<'_>, namespaced: bool) {
    let (kind, name, group) = (at.field("kind"), at.field("name"), at.field("apiGroup"));
    if name.is_empty() {
        name.required("");
    }
    match kind.text() {
        "ServiceAccount" => {
            name.named_if_set(is_subdomain);
            if !group.is_empty() {
                group.one_of(&[""]);
            }
            if !namespaced && at.field("namespace").is_empty() {
                at.field("namespace").required("");
            }
        }
        "User" | "Group" => group.one_of(&[GROUP]),
        _ => kind.one_of(&["ServiceAccount", "User", "Group"]),
    }
}
