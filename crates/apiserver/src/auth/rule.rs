//! Policy rules: what one allows, and whether some rules together allow all that others do.

use serde_json::{Value, json};

use super::Access;

/// A rule of a role, as upstream writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) verbs: Vec<String>,
    pub(crate) api_groups: Vec<String>,
    pub(crate) resources: Vec<String>,
    pub(crate) resource_names: Vec<String>,
    pub(crate) non_resource_urls: Vec<String>,
}

/// The rules in a role's JSON.
pub(crate) fn rules_of(rules: Option<&Value>) -> Vec<Rule> {
    rules.and_then(Value::as_array).into_iter().flatten().map(Rule::read).collect()
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

fn url_covers(owner: &str, path: &str) -> bool {
    owner == path || (owner.ends_with('*') && path.starts_with(owner.trim_end_matches('*')))
}

impl Rule {
    fn read(rule: &Value) -> Self {
        let list = |field: &str| {
            let items = rule.get(field).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(|item| item.as_str().map(ToOwned::to_owned)).collect()
        };
        Self {
            verbs: list("verbs"),
            api_groups: list("apiGroups"),
            resources: list("resources"),
            resource_names: list("resourceNames"),
            non_resource_urls: list("nonResourceURLs"),
        }
    }

    pub(crate) fn allows(&self, access: &Access<'_>) -> bool {
        if !has(&self.verbs, access.verb) {
            return false;
        }
        if !access.is_resource {
            return self.non_resource_urls.iter().any(|url| url_covers(url, access.path));
        }
        let named = self.resource_names.is_empty() || self.resource_names.iter().any(|name| name == access.name);
        has(&self.api_groups, access.group) && named && self.is_about(access.resource, access.subresource)
    }

    fn is_about(&self, resource: &str, subresource: &str) -> bool {
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

    /// One rule per verb and thing: each of these is covered by a single rule or not at all.
    fn broken_down(&self) -> Vec<Self> {
        let one = |text: &String| vec![text.clone()];
        let mut atoms = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let atom =
                        Self { verbs: one(verb), api_groups: one(group), resources: one(resource), ..Self::default() };
                    match self.resource_names.as_slice() {
                        [] => atoms.push(atom),
                        names => atoms.extend(names.iter().map(|n| Self { resource_names: one(n), ..atom.clone() })),
                    }
                }
            }
        }
        for url in &self.non_resource_urls {
            let atom = |verb| Self { verbs: one(verb), non_resource_urls: one(url), ..Self::default() };
            atoms.extend(self.verbs.iter().map(atom));
        }
        atoms
    }

    fn covers(&self, atom: &Self) -> bool {
        let all = |own: &[String], wanted: &[String]| wanted.iter().all(|item| has(own, item));
        let resource = |wanted: &String| {
            let by_subresource = wanted.split_once('/').map(|(_, sub)| format!("*/{sub}"));
            has(&self.resources, wanted) || by_subresource.is_some_and(|any| self.resources.contains(&any))
        };
        let url = |wanted: &String| self.non_resource_urls.iter().any(|own| url_covers(own, wanted));
        let names = match atom.resource_names.as_slice() {
            [] => self.resource_names.is_empty(),
            wanted => self.resource_names.is_empty() || wanted.iter().all(|name| self.resource_names.contains(name)),
        };
        all(&self.verbs, &atom.verbs)
            && all(&self.api_groups, &atom.api_groups)
            && atom.resources.iter().all(resource)
            && atom.non_resource_urls.iter().all(url)
            && names
    }

    /// `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`
    fn told(&self) -> String {
        let lists = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let shown = lists.iter().filter(|(_, list)| !list.is_empty()).map(|(name, list)| {
            let quoted: Vec<String> = list.iter().map(|item| format!("{item:?}")).collect();
            format!("{name}:[{}]", quoted.join(" "))
        });
        format!("{{{}}}", shown.collect::<Vec<_>>().join(", "))
    }

    pub(crate) fn to_json(&self) -> Value {
        let lists = [
            ("verbs", &self.verbs),
            ("apiGroups", &self.api_groups),
            ("resources", &self.resources),
            ("resourceNames", &self.resource_names),
            ("nonResourceURLs", &self.non_resource_urls),
        ];
        let shown = lists.into_iter().filter(|(_, list)| !list.is_empty());
        Value::Object(shown.map(|(name, list)| (name.to_owned(), json!(list))).collect())
    }
}

/// What of `wanted` no rule of `owned` covers.
pub(crate) fn uncovered(owned: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let mut left: Vec<Rule> = Vec::new();
    for atom in wanted.iter().flat_map(Rule::broken_down).filter(|atom| !owned.iter().any(|rule| rule.covers(atom))) {
        // Verbs on the same thing are told together.
        let same = |known: &&mut Rule| {
            atom.non_resource_urls.is_empty()
                && (&known.api_groups, &known.resources, &known.resource_names)
                    == (&atom.api_groups, &atom.resources, &atom.resource_names)
        };
        match left.iter_mut().find(same) {
            Some(known) => known.verbs.extend(atom.verbs),
            None => left.push(atom),
        }
    }
    left
}

/// The same, told one per line as upstream does; `None` if all is covered.
pub(crate) fn missing(owned: &[Rule], wanted: &[Rule]) -> Option<String> {
    let mut told: Vec<String> = uncovered(owned, wanted).iter().map(Rule::told).collect();
    told.sort();
    told.dedup();
    (!told.is_empty()).then(|| told.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `verbs|groups|resources|names|urls`
    fn rule(text: &str) -> Rule {
        let mut lists = text.split('|').map(|part| match part {
            "" => Vec::new(),
            part => part.split(',').map(|item| if item == "core" { String::new() } else { item.to_owned() }).collect(),
        });
        let mut next = || lists.next().unwrap_or_default();
        Rule { verbs: next(), api_groups: next(), resources: next(), resource_names: next(), non_resource_urls: next() }
    }

    #[test]
    fn rules_allow_what_they_name() {
        check("get|apps|deployments", "get apps deployments  web", true);
        check("get|apps|deployments", "get apps deployments status web", false);
        check("get|apps|deployments/status", "get apps deployments status web", true);
        check("*|*|*", "delete  pods  a", true);
        check("get|core|pods|a", "get  pods  a", true);
        check("get|core|pods|a", "get  pods  b", false);
        check("update|core|*/scale", "update  pods scale a", true);
        check("update|core|*/scale", "update  pods  a", false);
        check("list|core|pods", "get  pods  a", false);
        check("odd|core|pods", "odd  pods  a", true);
    }

    #[track_caller]
    fn check(rule_text: &str, request: &str, want: bool) {
        let [verb, group, resource, subresource, name]: [&str; 5] =
            request.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let access = Access { is_resource: true, verb, group, resource, subresource, name, ..Access::default() };
        assert_eq!(rule(rule_text).allows(&access), want, "{rule_text}: {request}");
    }

    #[test]
    fn what_is_not_held_is_told() {
        check_missing(&["get|core|pods"], &["get|core|pods"], None);
        check_missing(&["*|*|*"], &["get,list|core,apps|pods,x/y|a,b"], None);
        check_missing(
            &["get|core|pods|a"],
            &["get|core|pods"],
            Some("{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\"]}"),
        );
        check_missing(&["get|core|*/status"], &["get|core|pods/status"], None);
        check_missing(&["get||||/a*"], &["get||||/api"], None);
        check_missing(
            &["get|core|pods"],
            &["get,list,watch|core|pods,secrets", "get||||/metrics"],
            Some(
                "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"watch\"]}\n\
                 {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\" \"watch\"]}\n\
                 {NonResourceURLs:[\"/metrics\"], Verbs:[\"get\"]}",
            ),
        );
    }

    #[track_caller]
    fn check_missing(owned: &[&str], wanted: &[&str], want: Option<&str>) {
        let rules = |texts: &[&str]| texts.iter().map(|text| rule(text)).collect::<Vec<_>>();
        assert_eq!(missing(&rules(owned), &rules(wanted)).as_deref(), want);
    }
}
