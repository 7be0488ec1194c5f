//! Which requests a flow schema is about.

use api::{Object, ObjectExt as _, UserInfo};
use serde_json::Value;

use crate::request_info::RequestInfo;

#[derive(Debug)]
pub(super) struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

#[derive(Debug)]
enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String },
}

#[derive(Debug)]
struct ResourceRule {
    verbs: Names,
    groups: Names,
    resources: Names,
    namespaces: Names,
    cluster_scope: bool,
}

#[derive(Debug)]
struct PathRule {
    verbs: Names,
    paths: Vec<String>,
}

/// `None` is everything.
#[derive(Debug)]
struct Names(Option<Vec<String>>);

impl Names {
    fn read(of: &Object, field: &str) -> Self {
        let names = texts(of, field);
        Self((names != ["*"]).then_some(names))
    }

    fn contain(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.iter().any(|known| known == name))
    }

    /// `resource` or `resource/subresource`.
    fn contain_parts(&self, resource: &str, subresource: &str) -> bool {
        let is = |known: &String| match known.split_once('/') {
            None => known == resource && subresource.is_empty(),
            Some((of, part)) => of == resource && part == subresource,
        };
        self.0.as_ref().is_none_or(|names| names.iter().any(is))
    }
}

fn texts(of: &Object, field: &str) -> Vec<String> {
    let items = of.get(field).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn objects<'a>(of: &'a Object, field: &str) -> impl Iterator<Item = &'a Object> {
    of.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

impl Rule {
    pub(super) fn read(rule: &Object) -> Self {
        let subject = |subject: &Object| {
            Some(match subject.text(&["kind"]) {
                "User" => Subject::User(subject.text(&["user", "name"]).to_owned()),
                "Group" => Subject::Group(subject.text(&["group", "name"]).to_owned()),
                "ServiceAccount" => Subject::ServiceAccount {
                    namespace: subject.text(&["serviceAccount", "namespace"]).to_owned(),
                    name: subject.text(&["serviceAccount", "name"]).to_owned(),
                },
                _ => return None,
            })
        };
        let resource = |rule: &Object| ResourceRule {
            verbs: Names::read(rule, "verbs"),
            groups: Names::read(rule, "apiGroups"),
            resources: Names::read(rule, "resources"),
            namespaces: Names::read(rule, "namespaces"),
            cluster_scope: rule.get("clusterScope") == Some(&Value::Bool(true)),
        };
        let path =
            |rule: &Object| PathRule { verbs: Names::read(rule, "verbs"), paths: texts(rule, "nonResourceURLs") };
        Self {
            subjects: objects(rule, "subjects").filter_map(subject).collect(),
            resources: objects(rule, "resourceRules").map(resource).collect(),
            paths: objects(rule, "nonResourceRules").map(path).collect(),
        }
    }

    pub(super) fn matches(&self, user: &UserInfo, info: &RequestInfo) -> bool {
        self.subjects.iter().any(|subject| subject.is(user))
            && match info.is_resource {
                true => self.resources.iter().any(|rule| rule.matches(info)),
                false => self.paths.iter().any(|rule| rule.matches(info)),
            }
    }
}

impl Subject {
    fn is(&self, user: &UserInfo) -> bool {
        match self {
            Self::User(name) => name == "*" || *name == user.name,
            Self::Group(name) => name == "*" || user.groups.contains(name),
            Self::ServiceAccount { namespace, name } => {
                let account = user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
                account.is_some_and(|(of, account)| of == namespace && (name == "*" || name == account))
            }
        }
    }
}

impl ResourceRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        self.verbs.contain(info.verb)
            && self.resources.contain_parts(&info.resource, &info.subresource)
            && self.groups.contain(&info.group)
            && if info.namespace.is_empty() { self.cluster_scope } else { self.namespaces.contain(&info.namespace) }
    }
}

impl PathRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        let is = |path: &String| {
            let below = path.trim_end_matches('*').trim_end_matches('/');
            path == "*" || *path == info.path || info.path.strip_prefix(below).is_some_and(|rest| rest.starts_with('/'))
        };
        self.verbs.contain(info.verb) && self.paths.iter().any(is)
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(subject: Value, rules: Value, user: &str, request: &str, want: bool) {
        let mut rule = rules;
        rule["subjects"] = json!([subject]);
        let rule = Rule::read(rule.as_object().unwrap());
        let (verb, path) = request.split_once(' ').unwrap();
        let info = RequestInfo::new(&Method::from_bytes(verb.as_bytes()).unwrap(), path, false, None);
        assert_eq!(rule.matches(&UserInfo::authenticated(user, &["team"]), &info), want, "{user}: {request}");
    }

    #[test]
    fn subjects_are_users_groups_and_service_accounts() {
        let rules = || json!({"nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]});
        let check = |subject: Value, user: &str, want| check(subject, rules(), user, "GET /x", want);
        let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
        let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
        let account =
            |of: &str, name: &str| json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": of, "name": name}});
        check(user("ann"), "ann", true);
        check(user("ann"), "bob", false);
        check(user("*"), "bob", true);
        check(group("team"), "ann", true);
        check(group("other"), "ann", false);
        check(group("*"), "ann", true);
        check(account("a", "*"), "system:serviceaccount:a:x", true);
        check(account("a", "*"), "system:serviceaccount:ab:x", false);
        check(account("a", "x"), "system:serviceaccount:a:x", true);
        check(account("a", "y"), "system:serviceaccount:a:x", false);
    }

    #[test]
    fn rules_are_about_resources_and_paths() {
        let everyone = || json!({"kind": "Group", "group": {"name": "*"}});
        let resources = |verbs: Value, group: &str, resource: &str, namespaces: Value, cluster: bool| json!({"resourceRules": [{"verbs": verbs, "apiGroups": [group], "resources": [resource], "namespaces": namespaces, "clusterScope": cluster}]});
        let pods = "GET /api/v1/namespaces/a/pods";
        let check = |rules: Value, request: &str, want| check(everyone(), rules, "ann", request, want);
        check(resources(json!(["list"]), "", "pods", json!(["*"]), false), pods, true);
        check(resources(json!(["get"]), "", "pods", json!(["*"]), false), pods, false);
        check(resources(json!(["*"]), "apps", "pods", json!(["*"]), false), pods, false);
        check(resources(json!(["*"]), "*", "*", json!(["b"]), false), pods, false);
        check(resources(json!(["*"]), "*", "*", json!(["b", "a"]), false), pods, true);
        check(resources(json!(["*"]), "*", "*", json!(["*"]), false), "GET /api/v1/pods", false);
        check(resources(json!(["*"]), "*", "*", json!([]), true), "GET /api/v1/pods", true);
        check(resources(json!(["*"]), "", "pods", json!(["*"]), true), "PUT /api/v1/namespaces/a/pods/x/status", false);
        check(
            resources(json!(["*"]), "", "pods/status", json!(["*"]), true),
            "PUT /api/v1/namespaces/a/pods/x/status",
            true,
        );
        let paths = |path: &str| json!({"nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": [path]}]});
        check(paths("/healthz"), "GET /healthz", true);
        check(paths("/healthz"), "GET /healthz/ping", true);
        check(paths("/healthz"), "GET /healthzx", false);
        check(paths("/apis/*"), "GET /apis/apps", true);
        check(paths("/healthz"), pods, false);
        check(resources(json!(["*"]), "*", "*", json!(["*"]), true), "GET /healthz", false);
    }
}
