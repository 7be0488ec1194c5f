//! Role-based access control, decided on an index that is rebuilt when a role or binding changes.

use std::collections::HashMap;
use std::sync::Arc;

use api::UserInfo;
use arc_swap::ArcSwap;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::registry::Registry;
use crate::request_info::RequestInfo;
use crate::storage::Cache;

const GROUP: &str = "rbac.authorization.k8s.io";

pub(crate) struct Decision {
    pub(crate) allowed: bool,
    pub(crate) reason: String,
}

/// A policy rule as upstream writes it.
#[derive(Debug, Default)]
pub(crate) struct Rule {
    pub(crate) verbs: Vec<String>,
    pub(crate) api_groups: Vec<String>,
    pub(crate) resources: Vec<String>,
    pub(crate) resource_names: Vec<String>,
    pub(crate) non_resource_urls: Vec<String>,
}

/// Which rules each subject has: in one namespace, or everywhere (namespace empty).
#[derive(Default)]
struct Index {
    revisions: [i64; 4],
    by_subject: HashMap<String, Vec<Grant>>,
}

#[derive(Clone)]
struct Grant {
    namespace: String,
    binding: Arc<str>,
    rules: Arc<Vec<Rule>>,
}

pub(crate) struct Rbac {
    /// Cluster roles, cluster role bindings, roles, role bindings.
    caches: [Option<Arc<Cache>>; 4],
    index: ArcSwap<Index>,
}

impl Rbac {
    pub(crate) fn new(registry: &Registry) -> Self {
        let cache = |plural: &str| registry.find(GROUP, "v1", plural).and_then(|served| served.cache.clone());
        let caches = [cache("clusterroles"), cache("clusterrolebindings"), cache("roles"), cache("rolebindings")];
        Self { caches, index: ArcSwap::default() }
    }

    pub(crate) fn decide(&self, user: &UserInfo, info: &RequestInfo) -> Decision {
        if user.in_group("system:masters") {
            return Decision { allowed: true, reason: String::new() };
        }
        let index = self.current();
        for subject in subjects_of(user) {
            for grant in index.by_subject.get(&subject).into_iter().flatten() {
                let in_place = grant.namespace.is_empty() || (info.is_resource && grant.namespace == info.namespace);
                if in_place && grant.rules.iter().any(|rule| rule.allows(info)) {
                    let reason = format!("RBAC: allowed by {}", grant.binding);
                    return Decision { allowed: true, reason };
                }
            }
        }
        Decision { allowed: false, reason: String::new() }
    }

    pub(crate) fn rules_for(&self, user: &UserInfo, namespace: &str) -> Vec<Rule> {
        let index = self.current();
        let mut rules = Vec::new();
        if user.in_group("system:masters") {
            let all = || vec!["*".to_owned()];
            rules.push(Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() });
            rules.push(Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() });
        }
        for grant in subjects_of(user).iter().filter_map(|subject| index.by_subject.get(subject)).flatten() {
            if grant.namespace.is_empty() || grant.namespace == namespace {
                rules.extend(grant.rules.iter().map(Rule::duplicate));
            }
        }
        rules
    }

    /// The index for the objects as they are; four revisions say whether it is still current.
    fn current(&self) -> Arc<Index> {
        let revisions = self.caches.each_ref().map(|c| c.as_ref().map_or(0, |c| c.snapshot().revision));
        let index = self.index.load_full();
        if index.revisions == revisions {
            return index;
        }
        let index = Arc::new(self.build(revisions));
        self.index.store(index.clone());
        index
    }

    fn build(&self, revisions: [i64; 4]) -> Index {
        let [cluster_roles, cluster_bindings, roles, bindings] = &self.caches;
        let mut known: HashMap<(String, String), Arc<Vec<Rule>>> = HashMap::new();
        for role in read::<ClusterRole>(cluster_roles) {
            let name = role.metadata.name.unwrap_or_default();
            known.insert((String::new(), name), Arc::new(convert(role.rules)));
        }
        for role in read::<Role>(roles) {
            let key = (role.metadata.namespace.unwrap_or_default(), role.metadata.name.unwrap_or_default());
            known.insert(key, Arc::new(convert(role.rules)));
        }
        let mut index = Index { revisions, by_subject: HashMap::new() };
        for binding in read::<ClusterRoleBinding>(cluster_bindings) {
            let label = format!("ClusterRoleBinding {:?}", binding.metadata.name.unwrap_or_default());
            index.add("", &label, &binding.role_ref, binding.subjects.unwrap_or_default(), &known);
        }
        for binding in read::<RoleBinding>(bindings) {
            let namespace = binding.metadata.namespace.unwrap_or_default();
            let label = format!("RoleBinding \"{}/{namespace}\"", binding.metadata.name.unwrap_or_default());
            index.add(&namespace, &label, &binding.role_ref, binding.subjects.unwrap_or_default(), &known);
        }
        index
    }
}

impl Index {
    fn add(
        &mut self,
        namespace: &str,
        label: &str,
        role: &RoleRef,
        subjects: Vec<Subject>,
        known: &HashMap<(String, String), Arc<Vec<Rule>>>,
    ) {
        let place = if role.kind == "Role" { namespace.to_owned() } else { String::new() };
        let Some(rules) = known.get(&(place, role.name.clone())) else { return };
        let binding: Arc<str> = format!("{label} of {} {:?}", role.kind, role.name).into();
        for subject in subjects {
            let key = match subject.kind.as_str() {
                "User" => format!("u:{}", subject.name),
                "Group" => format!("g:{}", subject.name),
                _ => {
                    let own = subject.namespace.as_deref().unwrap_or(namespace);
                    format!("u:system:serviceaccount:{own}:{}", subject.name)
                }
            };
            let grant = Grant { namespace: namespace.to_owned(), binding: binding.clone(), rules: rules.clone() };
            self.by_subject.entry(key).or_default().push(grant);
        }
    }
}

fn subjects_of(user: &UserInfo) -> Vec<String> {
    let groups = user.groups.iter().map(|group| format!("g:{group}"));
    std::iter::once(format!("u:{}", user.name)).chain(groups).collect()
}

fn read<T: DeserializeOwned>(cache: &Option<Arc<Cache>>) -> Vec<T> {
    let snapshot = cache.as_ref().map(|cache| cache.snapshot());
    let objects = snapshot.iter().flat_map(|snapshot| snapshot.objects.values());
    objects.filter_map(|stored| serde_json::from_value(Value::Object(stored.decode())).ok()).collect()
}

fn convert(rules: Option<Vec<PolicyRule>>) -> Vec<Rule> {
    let rule = |rule: PolicyRule| Rule {
        verbs: rule.verbs,
        api_groups: rule.api_groups.unwrap_or_default(),
        resources: rule.resources.unwrap_or_default(),
        resource_names: rule.resource_names.unwrap_or_default(),
        non_resource_urls: rule.non_resource_urls.unwrap_or_default(),
    };
    rules.unwrap_or_default().into_iter().map(rule).collect()
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

impl Rule {
    fn allows(&self, info: &RequestInfo) -> bool {
        if !has(&self.verbs, info.verb) {
            return false;
        }
        if !info.is_resource {
            return self.non_resource_urls.iter().any(|url| match url.strip_suffix('*') {
                Some(prefix) => info.path.starts_with(prefix),
                None => *url == info.path,
            });
        }
        let named = self.resource_names.is_empty() || self.resource_names.contains(&info.name);
        has(&self.api_groups, &info.group) && named && self.covers(&info.resource, &info.subresource)
    }

    fn covers(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|item| match (item.as_str(), subresource) {
            ("*", _) => true,
            (item, "") => item == resource,
            (item, sub) => match item.split_once('/') {
                Some(("*", own)) => own == sub,
                Some((parent, own)) => parent == resource && own == sub,
                None => false,
            },
        })
    }

    fn duplicate(&self) -> Self {
        Self {
            verbs: self.verbs.clone(),
            api_groups: self.api_groups.clone(),
            resources: self.resources.clone(),
            resource_names: self.resource_names.clone(),
            non_resource_urls: self.non_resource_urls.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_allow_what_they_name() {
        check("get|apps|deployments|", "get apps deployments  web", true);
        check("get|apps|deployments|", "get apps deployments status web", false);
        check("get|apps|deployments/status|", "get apps deployments status web", true);
        check("*|*|*|", "delete  pods  a", true);
        check("get||pods|a", "get  pods  a", true);
        check("get||pods|a", "get  pods  b", false);
        check("update||*/scale|", "update  pods scale a", true);
        check("list||pods|", "get  pods  a", false);
    }

    #[track_caller]
    fn check(rule: &str, request: &str, want: bool) {
        let parts: Vec<Vec<String>> =
            rule.split('|').map(|p| p.split(',').filter(|s| !s.is_empty()).map(String::from).collect()).collect();
        let groups = if parts[1].is_empty() { vec![String::new()] } else { parts[1].clone() };
        let rule = Rule {
            verbs: parts[0].clone(),
            api_groups: groups,
            resources: parts[2].clone(),
            resource_names: parts[3].clone(),
            ..Rule::default()
        };
        let words: Vec<&str> = request.split(' ').collect();
        let verbs = ["get", "delete", "update", "list"];
        let info = RequestInfo {
            is_resource: true,
            verb: verbs.into_iter().find(|v| *v == words[0]).unwrap(),
            group: words[1].into(),
            resource: words[2].into(),
            subresource: words[3].into(),
            name: words[4].into(),
            ..RequestInfo::default()
        };
        assert_eq!(rule.allows(&info), want, "{request}");
    }
}
