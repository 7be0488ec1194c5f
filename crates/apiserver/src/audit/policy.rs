//! Which requests are logged, and how much of them: the first rule that fits decides.

use api::{Object, ObjectExt as _, UserInfo};
use serde_json::Value;

use super::AuditError;
use crate::request_info::RequestInfo;

const STAGES: [&str; 4] = ["RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Level {
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::None, Self::Metadata, Self::Request, Self::RequestResponse]
            .into_iter()
            .find(|level| level.name() == text)
    }
}

/// What a rule says of the requests that fit it.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) level: Level,
    pub(super) omit_stages: Vec<&'static str>,
    pub(super) omit_managed_fields: bool,
}

#[derive(Debug)]
pub(super) struct Policy {
    rules: Vec<(Object, Verdict)>,
}

impl Policy {
    pub(super) fn parse(text: &str) -> Result<Self, AuditError> {
        let refuse = |why: String| AuditError::Policy(why);
        let policy: Object = serde_saphyr::from_str(text).map_err(|error| refuse(error.to_string()))?;
        let (version, kind) = (policy.text(&["apiVersion"]), policy.text(&["kind"]));
        if (version, kind) != ("audit.k8s.io/v1", "Policy") {
            return Err(refuse(format!("it is a {kind:?} of {version:?}, not a Policy of audit.k8s.io/v1")));
        }
        let rules = policy.get("rules").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if rules.is_empty() {
            return Err(refuse("it has no rules".to_owned()));
        }
        let everywhere = stages(&policy)?;
        let managed = policy.get("omitManagedFields") == Some(&Value::Bool(true));
        let mut parsed = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let rule = rule.as_object().ok_or_else(|| refuse(format!("rules[{index}] is not an object")))?;
            let level = Level::parse(rule.text(&["level"]));
            let level = level.ok_or_else(|| refuse(format!("rules[{index}].level: {:?}", rule.text(&["level"]))))?;
            let on_resources = has(rule, "resources") || has(rule, "namespaces");
            if on_resources && has(rule, "nonResourceURLs") {
                return Err(refuse(format!("rules[{index}] is both of resources and of other paths")));
            }
            let mut omit_stages = stages(rule)?;
            omit_stages.extend(&everywhere);
            let omit_managed_fields = rule.get("omitManagedFields").and_then(Value::as_bool).unwrap_or(managed);
            parsed.push((rule.clone(), Verdict { level, omit_stages, omit_managed_fields }));
        }
        Ok(Self { rules: parsed })
    }

    pub(super) fn rule(&self, user: &UserInfo, info: &RequestInfo) -> Verdict {
        let found = self.rules.iter().find(|(rule, _)| fits(rule, user, info));
        let nothing = || Verdict { level: Level::None, omit_stages: Vec::new(), omit_managed_fields: false };
        found.map_or_else(nothing, |(_, verdict)| verdict.clone())
    }
}

fn stages(object: &Object) -> Result<Vec<&'static str>, AuditError> {
    let listed = object.get("omitStages").and_then(Value::as_array).into_iter().flatten();
    listed
        .map(|stage| {
            let known = STAGES.into_iter().find(|known| stage == known);
            known.ok_or_else(|| AuditError::Policy(format!("omitStages: {stage}")))
        })
        .collect()
}

fn list<'a>(object: &'a Object, field: &str) -> impl Iterator<Item = &'a str> {
    object.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn has(object: &Object, field: &str) -> bool {
    object.get(field).and_then(Value::as_array).is_some_and(|list| !list.is_empty())
}

fn fits(rule: &Object, user: &UserInfo, info: &RequestInfo) -> bool {
    let allows = |field: &str, wanted: &str| !has(rule, field) || list(rule, field).any(|one| one == wanted);
    if !allows("users", &user.name) || !allows("verbs", info.verb) {
        return false;
    }
    if has(rule, "userGroups") && !list(rule, "userGroups").any(|group| user.in_group(group)) {
        return false;
    }
    if has(rule, "namespaces") || has(rule, "resources") {
        return info.is_resource && allows("namespaces", &info.namespace) && on_resource(rule, info);
    }
    if has(rule, "nonResourceURLs") {
        return !info.is_resource && list(rule, "nonResourceURLs").any(|spec| on_path(spec, &info.path));
    }
    true
}

fn on_path(spec: &str, path: &str) -> bool {
    spec == path || spec.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix.trim_end_matches('*')))
}

fn on_resource(rule: &Object, info: &RequestInfo) -> bool {
    if !has(rule, "resources") {
        return true;
    }
    let whole = match info.subresource.as_str() {
        "" => info.resource.clone(),
        sub => format!("{}/{sub}", info.resource),
    };
    let groups = rule.get("resources").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
    groups.into_iter().filter(|of| matches!(of.text(&["group"]), group if group == info.group || group == "*")).any(
        |of| {
            let named = !has(of, "resourceNames") || list(of, "resourceNames").any(|name| name == info.name);
            let matches = |one: &str| {
                one == "*"
                    || one == whole
                    || (!info.subresource.is_empty() && one.strip_prefix("*/") == Some(&info.subresource))
                    || one.strip_suffix("/*") == Some(&info.resource)
            };
            !has(of, "resources") || (named && list(of, "resources").any(matches))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, users: [quiet]}
- {level: None, nonResourceURLs: ['/healthz*', /version]}
- {level: Metadata, resources: [{group: '', resources: [secrets]}], omitStages: [Panic]}
- {level: Request, resources: [{group: '', resources: ['pods/*'], resourceNames: [a]}]}
- {level: RequestResponse, namespaces: [prod], verbs: [create], omitManagedFields: true}
- {level: Metadata, userGroups: [watched]}
";

    #[test]
    fn the_first_rule_that_fits_decides() {
        check("GET", "/api/v1/namespaces/prod/secrets", "quiet", "None");
        check("GET", "/healthz/etcd", "bob", "None");
        check("GET", "/version", "bob", "None");
        check("GET", "/api/v1/namespaces/prod/secrets", "bob", "Metadata");
        check("GET", "/api/v1/namespaces/prod/secrets/a/status", "bob", "None");
        check("GET", "/api/v1/namespaces/x/pods/a/log", "bob", "Request");
        check("GET", "/api/v1/namespaces/x/pods/b/log", "bob", "None");
        check("POST", "/api/v1/namespaces/prod/pods", "bob", "RequestResponse");
        check("POST", "/api/v1/namespaces/dev/pods", "bob", "None");
        check("POST", "/api/v1/namespaces/dev/pods", "eve", "Metadata");
        check("GET", "/metrics", "eve", "Metadata");
    }

    #[test]
    fn what_is_left_out_adds_up() {
        let policy = Policy::parse(POLICY).unwrap();
        let info = RequestInfo::new(&http::Method::GET, "/api/v1/namespaces/prod/secrets", false, None);
        let verdict = policy.rule(&UserInfo::authenticated("bob", &[]), &info);
        assert_eq!((verdict.omit_stages, verdict.omit_managed_fields), (vec!["Panic", "RequestReceived"], false));
    }

    #[test]
    fn a_policy_that_cannot_be_meant_is_refused() {
        let head = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: ";
        for rest in [
            "[]}",
            "[{level: Odd}]}",
            "[{level: None, omitStages: [Odd]}]}",
            "[{level: None, namespaces: [a], nonResourceURLs: [/a]}]}",
        ] {
            assert!(Policy::parse(&format!("{head}{rest}")).is_err(), "{rest}");
        }
        assert!(Policy::parse("{apiVersion: v1, kind: Pod}").is_err());
        assert!(Policy::parse(&format!("{head}[{{level: None}}]}}")).is_ok());
    }

    #[track_caller]
    fn check(method: &str, path: &str, user: &str, want: &str) {
        let policy = Policy::parse(POLICY).unwrap();
        let groups: &[&str] = if user == "eve" { &["watched"] } else { &[] };
        let info = RequestInfo::new(&method.parse().unwrap(), path, false, None);
        assert_eq!(
            policy.rule(&UserInfo::authenticated(user, groups), &info).level.name(),
            want,
            "{method} {path} {user}"
        );
    }
}
