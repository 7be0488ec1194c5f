//! Role-based access control, decided on an index by subject and namespace that follows the roles and bindings.
//!
//! A decision looks only at what the asking user and its groups hold, here or everywhere: its cost does not grow with the
//! number of bindings others have.

use std::collections::HashMap;
use std::sync::Arc;

use api::{Object, ObjectExt as _, UserInfo};
use parking_lot::RwLock;

use super::rule::{Rule, rules_of};
use super::{Access, Decision};
use crate::registry::Registry;
use crate::storage::{Follower, Step, Stored};

pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

pub(crate) struct Rbac {
    state: RwLock<State>,
}

struct State {
    followers: Vec<(Source, Follower)>,
    index: Index,
}

/// One of the four resources.
#[derive(Clone, Copy)]
struct Source {
    is_role: bool,
    namespaced: bool,
}

/// Names of cluster-wide objects have no slash, those of namespaced ones always have one: the keys never meet.
#[derive(Default)]
struct Index {
    roles: HashMap<String, Arc<Vec<Rule>>>,
    bindings: HashMap<String, Arc<Binding>>,
    users: HashMap<String, Held>,
    groups: HashMap<String, Held>,
}

#[derive(Default)]
struct Held {
    everywhere: Vec<Grant>,
    by_namespace: HashMap<String, Vec<Grant>>,
}

#[derive(Clone)]
struct Grant {
    binding: Arc<Binding>,
    /// `Group "dev"`
    subject: Arc<str>,
}

struct Binding {
    namespace: String,
    name: String,
    role_kind: String,
    role_name: String,
    /// The role's key.
    role: String,
    subjects: Vec<Subject>,
}

struct Subject {
    is_group: bool,
    name: String,
    told: Arc<str>,
}

impl Rbac {
    pub(crate) fn new(registry: &Registry) -> Self {
        let follower = |(plural, is_role, namespaced): (&str, bool, bool)| {
            let cache = registry.find(GROUP, "v1", plural)?.cache.clone()?;
            Some((Source { is_role, namespaced }, Follower::new(cache)))
        };
        let sources = [
            ("clusterroles", true, false),
            ("roles", true, true),
            ("clusterrolebindings", false, false),
            ("rolebindings", false, true),
        ];
        let followers = sources.into_iter().filter_map(follower).collect();
        Self { state: RwLock::new(State { followers, index: Index::default() }) }
    }

    pub(crate) fn decide(&self, user: &UserInfo, access: &Access<'_>) -> Decision {
        self.with(|index| {
            let mut missing = Vec::new();
            for grant in index.grants(user, access.namespace) {
                match index.roles.get(&grant.binding.role) {
                    Some(rules) if rules.iter().any(|rule| rule.allows(access)) => {
                        return Decision::allow(format!("RBAC: allowed by {grant}"));
                    }
                    Some(_) => (),
                    None => missing.push(grant.binding.missing_role()),
                }
            }
            missing.dedup();
            match missing.as_slice() {
                [] => Decision::no_opinion(""),
                [one] => Decision::no_opinion(format!("RBAC: {one}")),
                more => Decision::no_opinion(format!("RBAC: [{}]", more.join(", "))),
            }
        })
    }

    /// All rules a user has in a namespace; an empty one asks for what holds everywhere.
    pub(crate) fn rules_for(&self, user: &UserInfo, namespace: &str) -> Vec<Rule> {
        self.with(|index| {
            let rules = index.grants(user, namespace).filter_map(|grant| index.roles.get(&grant.binding.role));
            rules.flat_map(|rules| rules.iter().cloned()).collect()
        })
    }

    /// What the role of this key allows; `None` if there is none.
    pub(crate) fn role(&self, key: &str) -> Option<Arc<Vec<Rule>>> {
        self.with(|index| index.roles.get(key).cloned())
    }

    /// Asks the index, once it has seen all that the caches have.
    fn with<T>(&self, ask: impl FnOnce(&Index) -> T) -> T {
        {
            let state = self.state.read();
            if state.followers.iter().all(|(_, follower)| follower.is_current()) {
                return ask(&state.index);
            }
        }
        let mut state = self.state.write();
        let State { followers, index } = &mut *state;
        for (source, follower) in followers {
            follower.catch_up(|step| match step {
                Step::Reset(snapshot) => {
                    index.forget(*source);
                    snapshot.objects.values().for_each(|stored| index.put(*source, stored));
                }
                Step::Changed(change) if change.deleted => index.remove(*source, &change.object.key),
                Step::Changed(change) => index.put(*source, &change.object),
            });
        }
        ask(index)
    }
}

impl Index {
    /// What a user holds everywhere, then what it holds in the namespace.
    fn grants<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> impl Iterator<Item = &'a Grant> {
        let held = move || {
            let groups = user.groups.iter().filter_map(|group| self.groups.get(group));
            self.users.get(&user.name).into_iter().chain(groups)
        };
        let local = held().filter_map(move |held| held.by_namespace.get(namespace)).flatten();
        held().flat_map(|held| &held.everywhere).chain(local)
    }

    fn put(&mut self, source: Source, stored: &Stored) {
        let object = stored.decode();
        if source.is_role {
            self.roles.insert(stored.key.to_string(), Arc::new(rules_of(object.get("rules"))));
            return;
        }
        self.remove(source, &stored.key);
        let binding = Arc::new(Binding::new(&object));
        for subject in &binding.subjects {
            let grant = Grant { binding: binding.clone(), subject: subject.told.clone() };
            let known = if subject.is_group { &mut self.groups } else { &mut self.users };
            known.entry(subject.name.clone()).or_default().of(&binding.namespace).push(grant);
        }
        self.bindings.insert(stored.key.to_string(), binding);
    }

    fn remove(&mut self, source: Source, key: &str) {
        if source.is_role {
            self.roles.remove(key);
            return;
        }
        let Some(binding) = self.bindings.remove(key) else { return };
        for subject in &binding.subjects {
            let known = if subject.is_group { &mut self.groups } else { &mut self.users };
            if let Some(held) = known.get_mut(&subject.name) {
                held.of(&binding.namespace).retain(|grant| !Arc::ptr_eq(&grant.binding, &binding));
                held.by_namespace.retain(|_, grants| !grants.is_empty());
                if held.everywhere.is_empty() && held.by_namespace.is_empty() {
                    known.remove(&subject.name);
                }
            }
        }
    }

    fn forget(&mut self, source: Source) {
        let keys = if source.is_role {
            self.roles.keys().cloned().collect::<Vec<_>>()
        } else {
            self.bindings.keys().cloned().collect()
        };
        keys.iter().filter(|key| key.contains('/') == source.namespaced).for_each(|key| self.remove(source, key));
    }
}

impl Held {
    /// Held in a namespace, or everywhere if it is empty.
    fn of(&mut self, namespace: &str) -> &mut Vec<Grant> {
        if namespace.is_empty() {
            &mut self.everywhere
        } else {
            self.by_namespace.entry(namespace.to_owned()).or_default()
        }
    }
}

impl Binding {
    fn new(object: &Object) -> Self {
        let (namespace, name) = (object.namespace(), object.name());
        let (kind, role) = (object.text(&["roleRef", "kind"]), object.text(&["roleRef", "name"]));
        let subjects = object.get("subjects").and_then(|list| list.as_array()).into_iter().flatten();
        let subjects = subjects.filter_map(|subject| Subject::new(subject.as_object()?, namespace));
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            role_kind: kind.to_owned(),
            role_name: role.to_owned(),
            role: if kind == "Role" { format!("{namespace}/{role}") } else { role.to_owned() },
            subjects: subjects.collect(),
        }
    }

    fn missing_role(&self) -> String {
        format!("{}.{GROUP} {:?} not found", self.role_kind.to_lowercase(), self.role_name)
    }
}

impl Subject {
    fn new(subject: &Object, namespace: &str) -> Option<Self> {
        let (kind, name) = (subject.text(&["kind"]), subject.text(&["name"]));
        let plain = |is_group| Self { is_group, name: name.to_owned(), told: format!("{kind} {name:?}").into() };
        match kind {
            "User" => Some(plain(false)),
            "Group" => Some(plain(true)),
            "ServiceAccount" => {
                let own = subject.text(&["namespace"]);
                let own = if own.is_empty() { namespace } else { own };
                let told = format!("{kind} {:?}", format!("{name}/{own}")).into();
                let name = format!("system:serviceaccount:{own}:{name}");
                (!own.is_empty()).then_some(Self { is_group: false, name, told })
            }
            _ => None,
        }
    }
}

/// `RoleBinding "name/namespace" of Role "r" to User "u"`
impl std::fmt::Display for Grant {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Binding { namespace, name, role_kind, role_name, .. } = &*self.binding;
        match namespace.as_str() {
            "" => write!(out, "ClusterRoleBinding {name:?}")?,
            namespace => write!(out, "RoleBinding {:?}", format!("{name}/{namespace}"))?,
        }
        write!(out, " of {role_kind} {role_name:?} to {}", self.subject)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ROLES: [Source; 2] =
        [Source { is_role: true, namespaced: false }, Source { is_role: true, namespaced: true }];
    const BINDINGS: [Source; 2] =
        [Source { is_role: false, namespaced: false }, Source { is_role: false, namespaced: true }];

    fn stored(key: &str, object: &Value) -> Stored {
        Stored::read(key, 1, object.to_string().into(), &crate::storage::Reading::Paths(&[])).unwrap()
    }

    fn binding(name: &str, namespace: &str, role: (&str, &str), user: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": namespace}, "roleRef": {"kind": role.0, "name": role.1},
            "subjects": [{"kind": "User", "name": user}],
        })
    }

    fn index() -> Index {
        let mut index = Index::default();
        let rules = json!({"metadata": {}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
        index.put(ROLES[0], &stored("reader", &rules));
        index.put(ROLES[1], &stored("a/local", &rules));
        index
    }

    fn user(name: &str) -> UserInfo {
        UserInfo { name: name.into(), ..UserInfo::default() }
    }

    /// Five thousand bindings of others are not even looked at, and those of the same user elsewhere neither.
    #[test]
    fn a_decision_visits_only_what_the_user_holds_there() {
        let mut index = index();
        for i in 0..5000 {
            let key = format!("n{i}/b");
            index.put(BINDINGS[1], &stored(&key, &binding("b", &format!("n{i}"), ("ClusterRole", "reader"), "eve")));
        }
        index.put(BINDINGS[0], &stored("all", &binding("all", "", ("ClusterRole", "reader"), "bob")));
        assert_eq!(index.grants(&user("bob"), "n7").count(), 1);
        assert_eq!(index.grants(&user("eve"), "n7").count(), 1);
        assert_eq!(index.grants(&user("eve"), "").count(), 0);
        assert_eq!(index.grants(&user("mallory"), "n7").count(), 0);
    }

    #[test]
    fn what_is_removed_or_rebound_is_no_longer_held() {
        let mut index = index();
        index.put(BINDINGS[1], &stored("a/b", &binding("b", "a", ("Role", "local"), "bob")));
        let told: Vec<String> = index.grants(&user("bob"), "a").map(ToString::to_string).collect();
        assert_eq!(told, ["RoleBinding \"b/a\" of Role \"local\" to User \"bob\""]);
        index.put(BINDINGS[1], &stored("a/b", &binding("b", "a", ("Role", "local"), "eve")));
        assert_eq!(index.grants(&user("bob"), "a").count(), 0);
        assert!(!index.users.contains_key("bob"), "nothing is kept of who holds nothing");
        index.forget(BINDINGS[0]);
        assert_eq!(index.grants(&user("eve"), "a").count(), 1, "a reset of the others is not its business");
        index.remove(BINDINGS[1], "a/b");
        assert_eq!(index.grants(&user("eve"), "a").count(), 0);
    }
}
