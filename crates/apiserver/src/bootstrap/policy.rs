//! Reads the table of bootstrap roles and bindings, and says what an existing one lacks of it.

use api::Object;
use serde_json::{Value, json};

use crate::auth::rule::{Rule, rules_of, uncovered};

static TABLE: &str = include_str!("policy.txt");
const GROUP: &str = "rbac.authorization.k8s.io";
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// A role or a binding that every cluster has.
pub(super) struct Wanted {
    pub(super) plural: &'static str,
    pub(super) namespace: &'static str,
    pub(super) object: Object,
}

pub(super) fn objects() -> Vec<Wanted> {
    let mut found: Vec<Wanted> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (line.starts_with(' '), words.as_slice()) {
            (false, ["role", name, labels @ ..]) => {
                found.push(wanted(name, ["roles", "clusterroles"], labels, &[("rules", json!([]))]));
            }
            (false, ["aggregate", name, label, labels @ ..]) => {
                let (key, value) = label.split_once('=').unwrap_or((label, "true"));
                let rule = json!({"clusterRoleSelectors": [{"matchLabels": {key: value}}]});
                found.push(wanted(name, ["roles", "clusterroles"], labels, &[("aggregationRule", rule)]));
            }
            (false, ["bind", name, role, subject @ ..]) => bind(&mut found, name, role, subject),
            (true, words) => {
                let rules = found.last_mut().and_then(|last| last.object.get_mut("rules")?.as_array_mut());
                if let (Some(rules), Some(rule)) = (rules, rule_of(words)) {
                    rules.push(rule);
                }
            }
            _ => (),
        }
    }
    found
}

/// `[namespaced, cluster-wide]` are the two plurals of what is wanted.
fn wanted(name: &'static str, plurals: [&'static str; 2], labels: &[&str], content: &[(&str, Value)]) -> Wanted {
    let [local, cluster_wide] = plurals;
    let (namespace, name, plural) = match name.split_once('/') {
        Some((namespace, name)) => (namespace, name, local),
        None => ("", name, cluster_wide),
    };
    let mut all = Object::from_iter([("kubernetes.io/bootstrapping".to_owned(), "rbac-defaults".into())]);
    all.extend(labels.iter().filter_map(|label| label.split_once('=')).map(|(k, v)| (k.to_owned(), v.into())));
    let metadata = json!({"name": name, "labels": all, "annotations": {AUTOUPDATE: "true"}});
    let mut object = Object::from_iter([("metadata".to_owned(), metadata)]);
    object.extend(content.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    Wanted { plural, namespace, object }
}

/// Several lines may bind the same name: each adds a subject.
fn bind(found: &mut Vec<Wanted>, name: &'static str, role: &str, subject: &[&str]) {
    let kind = if name.contains('/') { "Role" } else { "ClusterRole" };
    let reference = json!({"apiGroup": GROUP, "kind": kind, "name": role});
    let binding = wanted(name, ["rolebindings", "clusterrolebindings"], &[], &[("roleRef", reference)]);
    let same = |known: &Wanted| {
        known.plural == binding.plural
            && known.namespace == binding.namespace
            && known.object.get("metadata") == binding.object.get("metadata")
    };
    let index = match found.iter().position(same) {
        Some(index) => index,
        None => {
            found.push(binding);
            found.len() - 1
        }
    };
    if let (Some(known), [kind, subject]) = (found.get_mut(index), subject) {
        let subjects = known.object.entry("subjects").or_insert_with(|| json!([]));
        subjects.as_array_mut().map(|list| list.push(subject_of(kind, subject))).unwrap_or_default();
    }
}

/// What upstream does to a role that exists: what is missing is added, what somebody added stays, and who turned the
/// annotation off is left alone.
pub(super) fn reconciled(current: &Object, wanted: &Object) -> Object {
    let mut new = current.clone();
    if is_left_alone(current) {
        return new;
    }
    for part in ["labels", "annotations"] {
        let ours = wanted.get("metadata").and_then(|m| m.get(part)?.as_object()).cloned().unwrap_or_default();
        let theirs = api::ObjectExt::at_mut(&mut new, &["metadata", part]);
        for (key, value) in ours {
            theirs.entry(key).or_insert(value);
        }
    }
    let missing = uncovered(&rules_of(current.get("rules")), &rules_of(wanted.get("rules")));
    append(&mut new, "rules", missing.iter().map(Rule::to_json).collect());
    let known = current.get("subjects").and_then(Value::as_array).cloned().unwrap_or_default();
    let subjects = wanted.get("subjects").and_then(Value::as_array).into_iter().flatten();
    append(&mut new, "subjects", subjects.filter(|subject| !known.contains(subject)).cloned().collect());
    if let Some(rule) = wanted.get("aggregationRule") {
        new.insert("aggregationRule".into(), rule.clone());
    }
    new
}

/// Somebody turned the annotation off: what they made of it is theirs.
fn is_left_alone(current: &Object) -> bool {
    api::ObjectExt::text(current, &["metadata", "annotations", AUTOUPDATE]) == "false"
}

/// A binding to another role is not one to change: its role cannot be, and its subjects must not be given that role.
pub(super) fn is_of_another_role(current: &Object, wanted: &Object) -> bool {
    current.get("roleRef") != wanted.get("roleRef") && !is_left_alone(current)
}

fn append(object: &mut Object, field: &str, more: Vec<Value>) {
    if more.is_empty() {
        return;
    }
    match object.get_mut(field).and_then(Value::as_array_mut) {
        Some(list) => list.extend(more),
        None => drop(object.insert(field.to_owned(), more.into())),
    }
}

fn subject_of(kind: &str, name: &str) -> Value {
    match (kind, name.split_once(':')) {
        ("serviceaccount", Some((namespace, name))) => {
            json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
        }
        ("group", _) => json!({"kind": "Group", "apiGroup": GROUP, "name": name}),
        _ => json!({"kind": "User", "apiGroup": GROUP, "name": name}),
    }
}

fn rule_of(words: &[&str]) -> Option<Value> {
    let list = |text: &str| -> Vec<String> { text.split(',').map(ToOwned::to_owned).collect() };
    match words {
        ["url", verbs, paths] => Some(json!({"verbs": verbs_of(verbs), "nonResourceURLs": list(paths)})),
        [verbs, groups, resources, names @ ..] => {
            let groups: Vec<&str> = groups.split(',').map(|group| if group == "core" { "" } else { group }).collect();
            let mut rule = json!({"verbs": verbs_of(verbs), "apiGroups": groups, "resources": list(resources)});
            if let (Some(names), Some(map)) = (names.first(), rule.as_object_mut()) {
                map.insert("resourceNames".into(), json!(list(names)));
            }
            Some(rule)
        }
        _ => None,
    }
}

fn verbs_of(text: &str) -> Vec<&str> {
    text.split(',')
        .flat_map(|verb| match verb {
            "ro" => vec!["get", "list", "watch"],
            verb => vec![verb],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(plural: &str, name: &str) -> Object {
        let found = objects().into_iter().find(|w| w.plural == plural && w.object["metadata"]["name"] == name);
        found.map(|wanted| wanted.object).unwrap()
    }

    #[test]
    fn the_table_becomes_roles_and_bindings() {
        let all = find("clusterroles", "cluster-admin")["rules"][0].clone();
        assert_eq!(all, json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        let edit = find("clusterroles", "edit");
        assert_eq!(edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"], "true");
        assert!(edit.contains_key("aggregationRule") && !edit.contains_key("rules"));
        assert_eq!(find("clusterrolebindings", "system:public-info-viewer")["subjects"].as_array().unwrap().len(), 2);
        assert!(!find("clusterrolebindings", "system:node").contains_key("subjects"));
        let lock = find("rolebindings", "system::leader-locking-kube-scheduler");
        assert_eq!(lock["roleRef"]["kind"], "Role");
    }

    #[test]
    fn what_somebody_added_stays() {
        let wanted = find("clusterroles", "system:basic-user");
        let mut current = wanted.clone();
        let own = json!({"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["things"]});
        current.insert("rules".into(), json!([own]));
        let new = reconciled(&current, &wanted);
        assert_eq!(new["rules"].get(0), Some(&own));
        assert!(uncovered(&rules_of(new.get("rules")), &rules_of(wanted.get("rules"))).is_empty());
        assert_eq!(reconciled(&new, &wanted), new, "what is there is not added again");
        current["metadata"]["annotations"][AUTOUPDATE] = "false".into();
        assert_eq!(reconciled(&current, &wanted), current);
    }
}
