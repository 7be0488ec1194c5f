//! The resources Kubernetes serves: names, scope, verbs and subresources, read from one table.

use std::sync::OnceLock;

static TABLE: &str = include_str!("resources.txt");

const ALL_VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const SUBRESOURCE_VERBS: [&str; 3] = ["get", "patch", "update"];

/// A resource in one version.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub namespaced: bool,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub verbs: Vec<String>,
    pub subresources: Vec<Subresource>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Subresource {
    pub name: String,
    pub kind: String,
    /// Only where the kind is of another group or version than the parent.
    pub group_version: Option<(String, String)>,
    pub verbs: Vec<String>,
}

impl Resource {
    /// `v1`, `apps/v1`
    pub fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|s| s.name == name)
    }

    /// Where objects of this resource are stored, below the store's prefix.
    pub fn storage_prefix(&self) -> String {
        match (self.group.as_str(), self.plural.as_str()) {
            ("", "replicationcontrollers") => "controllers".into(),
            ("", "endpoints") => "services/endpoints".into(),
            ("", "nodes") => "minions".into(),
            ("", "services") => "services/specs".into(),
            ("networking.k8s.io", "ingresses") => "ingress".into(),
            ("apiextensions.k8s.io" | "apiregistration.k8s.io", plural) => format!("{}/{plural}", self.group),
            (_, plural) => plural.into(),
        }
    }
}

/// All built-in resources, in discovery's order.
pub fn builtin() -> &'static [Resource] {
    static RESOURCES: OnceLock<Vec<Resource>> = OnceLock::new();
    RESOURCES.get_or_init(|| parse(TABLE))
}

fn parse(table: &str) -> Vec<Resource> {
    let mut resources = Vec::new();
    let (mut group, mut version) = ("", "");
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            [name, v] => (group, version) = (if *name == "core" { "" } else { name }, v),
            [plural, kind, scope, short, categories, rest @ ..] => {
                let (verbs, rest) = match rest {
                    [first, rest @ ..] if first.starts_with('[') => (list(first.trim_matches(['[', ']'])), rest),
                    _ => (ALL_VERBS.map(String::from).to_vec(), rest),
                };
                resources.push(Resource {
                    group: group.into(),
                    version: version.into(),
                    plural: (*plural).into(),
                    singular: kind.to_lowercase(),
                    kind: (*kind).into(),
                    namespaced: *scope == "ns",
                    short_names: list(short),
                    categories: list(categories),
                    verbs,
                    subresources: rest.iter().map(|text| subresource(text, kind)).collect(),
                });
            }
            _ => (),
        }
    }
    resources
}

fn subresource(text: &str, parent: &str) -> Subresource {
    let (name, verbs) = match text.split_once('[') {
        Some((name, verbs)) => (name, list(verbs.trim_end_matches(']'))),
        None => (text, SUBRESOURCE_VERBS.map(String::from).to_vec()),
    };
    let (name, kind) = name.split_once(':').unwrap_or((name, parent));
    let (kind, group_version) = match kind.split_once('@') {
        Some((kind, gv)) => (kind, gv.split_once('/').map(|(g, v)| (g.to_owned(), v.to_owned()))),
        None => (kind, None),
    };
    Subresource { name: name.into(), kind: kind.into(), group_version, verbs }
}

fn list(text: &str) -> Vec<String> {
    if text == "-" { Vec::new() } else { text.split(',').map(String::from).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read() {
        let lines = TABLE.lines().filter(|l| !l.is_empty() && !l.starts_with('#') && l.split(' ').count() > 2);
        assert_eq!(lines.count(), builtin().len());
        let pods = builtin().iter().find(|r| r.plural == "pods").unwrap();
        assert_eq!((pods.verbs.len(), pods.subresources.len(), pods.namespaced), (8, 10, true));
        let eviction = pods.subresources.iter().find(|s| s.name == "eviction").unwrap();
        assert_eq!(eviction.group_version, Some(("policy".into(), "v1".into())));
    }

    #[test]
    fn every_stored_kind_has_a_schema() {
        for r in builtin() {
            assert!(crate::schema::of_kind(&r.group, &r.version, &r.kind).is_some(), "{} {}", r.api_version(), r.kind);
        }
    }
}
