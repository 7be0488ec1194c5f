//! ABAC: a file of policies, a line each.

use std::path::Path;

use api::{Object, ObjectExt as _, UserInfo};
use serde_json::Value;

use super::settings::AuthError;
use super::{Access, Decision};

pub(crate) struct Abac(Vec<Policy>);

#[derive(Debug, Default)]
struct Policy {
    user: String,
    group: String,
    api_group: String,
    resource: String,
    namespace: String,
    path: String,
    readonly: bool,
}

impl Abac {
    pub(super) fn read(path: &Path) -> Result<Self, AuthError> {
        let text = std::fs::read_to_string(path).map_err(|error| AuthError::Read(path.to_owned(), error))?;
        Self::parse(&text).map_err(|why| AuthError::Config(path.display().to_string(), why))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).enumerate();
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let read =
            |(index, line): (usize, &str)| Policy::parse(line).map_err(|why| format!("line {}: {why}", index + 1));
        Ok(Self(lines.map(read).collect::<Result<_, _>>()?))
    }

    pub(super) fn decide(&self, user: &UserInfo, access: &Access<'_>) -> Decision {
        match self.0.iter().any(|policy| policy.allows(user, access)) {
            true => Decision::allow(""),
            false => Decision::no_opinion("No policy matched."),
        }
    }
}

impl Policy {
    fn parse(line: &str) -> Result<Self, String> {
        let whole: Object = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if whole.text(&["apiVersion"]) != "abac.authorization.kubernetes.io/v1beta1"
            || whole.text(&["kind"]) != "Policy"
        {
            return Err("it is no Policy of abac.authorization.kubernetes.io/v1beta1".into());
        }
        let text = |field: &str| whole.text(&["spec", field]).to_owned();
        Ok(Self {
            user: text("user"),
            group: text("group"),
            api_group: text("apiGroup"),
            resource: text("resource"),
            namespace: text("namespace"),
            path: text("nonResourcePath"),
            readonly: whole.at(&["spec", "readonly"]) == Some(&Value::Bool(true)),
        })
    }

    fn allows(&self, user: &UserInfo, access: &Access<'_>) -> bool {
        let reads = matches!(access.verb, "get" | "list" | "watch");
        let is = |own: &str, asked: &str| own == "*" || own == asked;
        let about = if access.is_resource {
            is(&self.namespace, access.namespace)
                && is(&self.resource, access.resource)
                && is(&self.api_group, access.group)
        } else {
            let prefix = self.path.strip_suffix('*').map(|_| self.path.trim_end_matches('*'));
            self.path == access.path || prefix.is_some_and(|prefix| access.path.starts_with(prefix))
        };
        self.is_for(user) && (reads || !self.readonly) && about
    }

    /// Both must fit, where both are said.
    fn is_for(&self, user: &UserInfo) -> bool {
        let named = match self.user.as_str() {
            "" => None,
            name => Some(name == "*" || name == user.name),
        };
        let grouped = match self.group.as_str() {
            "" => None,
            group => Some(group == "*" || user.in_group(group)),
        };
        (named.is_some() || grouped.is_some()) && named.unwrap_or(true) && grouped.unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_allows_what_it_says() {
        let line = |spec: &str| {
            format!(r#"{{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{spec}}}"#)
        };
        let check = |spec: &str, asked: &str, want: bool| {
            let [user, group, verb, resource, namespace, path]: [&str; 6] =
                asked.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let user = UserInfo { name: user.into(), groups: vec![group.into()], ..UserInfo::default() };
            let access = Access { is_resource: path.is_empty(), verb, resource, namespace, path, ..Access::default() };
            let abac = Abac::parse(&format!("# a comment\n\n{}\n", line(spec))).unwrap();
            assert_eq!(abac.decide(&user, &access).is_allowed(), want, "{spec}: {asked}");
        };
        let all = r#"{"user":"bob","namespace":"*","resource":"*","apiGroup":"*"}"#;
        check(all, "bob g create pods x ", true);
        check(all, "eve g create pods x ", false);
        check(all, "bob g get   /healthz", false);
        let reader = r#"{"group":"g","namespace":"x","resource":"pods","apiGroup":"*","readonly":true}"#;
        check(reader, "eve g list pods x ", true);
        check(reader, "eve g create pods x ", false);
        check(reader, "eve g list pods y ", false);
        check(
            r#"{"user":"bob","group":"other","resource":"*","namespace":"*","apiGroup":"*"}"#,
            "bob g get pods x ",
            false,
        );
        check(r#"{"group":"*","nonResourcePath":"/health*"}"#, "eve g get   /healthz", true);
        check(r#"{"nonResourcePath":"*"}"#, "eve g get   /healthz", false);
        assert!(Abac::parse("{}").is_err());
        assert!(Abac::parse("nonsense").is_err());
    }
}
