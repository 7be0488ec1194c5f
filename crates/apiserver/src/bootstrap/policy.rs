//! Reads the table of bootstrap roles and bindings.

use std::collections::HashMap;

use serde_json::{Value, json};

static TABLE: &str = include_str!("policy.txt");

/// Cluster roles and cluster role bindings, as (plural, object).
pub(super) fn objects() -> Vec<(&'static str, Value)> {
    let mut rules: Vec<(&str, Vec<Value>)> = Vec::new();
    let mut bindings: Vec<(&str, &str, Vec<Value>)> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (line.starts_with(' '), words.as_slice()) {
            (false, ["role", name]) => {
                known.insert(name, rules.len());
                rules.push((name, Vec::new()));
            }
            (false, ["bind", name, role, kind, subject]) => {
                let subject = subject_of(kind, subject);
                match bindings.iter_mut().find(|(known, _, _)| known == name) {
                    Some((_, _, subjects)) => subjects.push(subject),
                    None => bindings.push((name, role, vec![subject])),
                }
            }
            (true, ["use", other]) => {
                let included = known.get(other).and_then(|i| rules.get(*i)).map(|(_, r)| r.clone()).unwrap_or_default();
                if let Some((_, current)) = rules.last_mut() {
                    current.extend(included);
                }
            }
            (true, words) => {
                if let Some((_, current)) = rules.last_mut() {
                    current.extend(rule_of(words));
                }
            }
            _ => (),
        }
    }
    let metadata = |name: &str| {
        json!({
            "name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        })
    };
    let roles =
        rules.into_iter().map(|(name, rules)| ("clusterroles", json!({"metadata": metadata(name), "rules": rules})));
    let bindings = bindings.into_iter().map(|(name, role, subjects)| {
        let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
        ("clusterrolebindings", json!({"metadata": metadata(name), "roleRef": reference, "subjects": subjects}))
    });
    roles.chain(bindings).collect()
}

fn subject_of(kind: &str, name: &str) -> Value {
    const GROUP: &str = "rbac.authorization.k8s.io";
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
            "rw" => vec!["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            verb => vec![verb],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_becomes_roles_and_bindings() {
        let objects = objects();
        let find = |plural: &str, name: &str| {
            let found = objects.iter().find(|(p, o)| *p == plural && o["metadata"]["name"] == name);
            found.map(|(_, object)| object.clone()).unwrap()
        };
        assert_eq!(
            find("clusterroles", "cluster-admin")["rules"][0],
            json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})
        );
        let admin = find("clusterroles", "admin");
        assert!(
            admin["rules"].as_array().unwrap().len() > find("clusterroles", "view")["rules"].as_array().unwrap().len()
        );
        assert_eq!(find("clusterrolebindings", "system:public-info-viewer")["subjects"].as_array().unwrap().len(), 2);
    }
}
