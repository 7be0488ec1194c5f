//! Which requests a policy or a webhook is about: rules, selectors, and resources that are the same under another name.

use std::sync::Arc;

use api::selector::{Selector, SelectorError};
use api::{ApiError, GroupResource, Object, ObjectExt as _};
use serde_json::Value;

use super::{Attributes, Operation};
use crate::registry::Served;
use crate::server::ApiServer;
use crate::storage::Stored;

/// `matchConstraints` of a policy, `matchResources` of a binding, or a webhook.
pub(crate) struct Criteria {
    namespaces: Selector,
    objects: Selector,
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    /// The same resource under another group or version counts as well.
    equivalent: bool,
}

struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    /// None: all of them.
    names: Vec<String>,
    scope: String,
}

/// As what a request is to be seen.
pub(crate) enum Matched {
    /// As it was made.
    Itself,
    /// As if it had been made for this.
    As(Arc<Served>),
}

pub(crate) fn strings(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn selector(value: Option<&Value>) -> Result<Selector, SelectorError> {
    match value.and_then(|value| serde_json::from_value(value.clone()).ok()) {
        Some(parsed) => Selector::from_label_selector(Some(&parsed)),
        None => Ok(Selector::everything()),
    }
}

impl Criteria {
    /// `rules` is what the list of rules is called there.
    pub(crate) fn of(value: &Object, rules: &str) -> Result<Self, SelectorError> {
        let list = |name: &str| {
            let items = value.get(name).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_object).map(Rule::of).collect()
        };
        Ok(Self {
            namespaces: selector(value.get("namespaceSelector"))?,
            objects: selector(value.get("objectSelector"))?,
            rules: list(rules),
            excluded: list("excludeResourceRules"),
            equivalent: value.text(&["matchPolicy"]) != "Exact",
        })
    }

    /// Whether the request is one of those; an error only if it would be.
    pub(crate) fn matches(
        &self,
        server: &ApiServer,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<Option<Matched>, ApiError> {
        let namespace = self.in_namespace(server, attributes, object);
        if matches!(namespace, Ok(false)) || !self.selects(attributes, object) {
            return Ok(None);
        }
        if find(&self.excluded, server, attributes, self.equivalent).is_some() {
            return Ok(None);
        }
        let matched = match self.rules.as_slice() {
            [] => Some(Matched::Itself),
            rules => find(rules, server, attributes, self.equivalent),
        };
        match (matched, namespace) {
            (Some(_), Err(error)) => Err(error),
            (matched, _) => Ok(matched),
        }
    }

    fn selects(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> bool {
        // What only says how to connect has no labels, which is not the same as having none.
        let has = |object: &Object| object.contains_key("metadata") && labelled(&self.objects, object);
        self.objects.is_everything() || object.is_some_and(has) || attributes.old.is_some_and(has)
    }

    fn in_namespace(
        &self,
        server: &ApiServer,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<bool, ApiError> {
        let is_namespace = is_namespace(attributes.served);
        if self.namespaces.is_everything() || (attributes.namespace.is_empty() && !is_namespace) {
            return Ok(true);
        }
        let written = object.filter(|_| is_namespace && attributes.subresource.is_empty());
        if let Some(object) = written.filter(|_| attributes.operation != Operation::Delete) {
            return Ok(labelled(&self.namespaces, object));
        }
        let name = if is_namespace { attributes.name } else { attributes.namespace };
        let found = namespace(server, name)
            .ok_or_else(|| ApiError::not_found(GroupResource { group: "", resource: "namespaces" }, name))?;
        Ok(labelled(&self.namespaces, &found.decode()))
    }
}

/// The selector on the labels of an object.
fn labelled(selector: &Selector, object: &Object) -> bool {
    selector.matches_by(|key| object.at(&["metadata", "labels", key]).and_then(Value::as_str))
}

pub(crate) fn namespace(server: &ApiServer, name: &str) -> Option<Arc<Stored>> {
    server.registry.find("", "v1", "namespaces")?.cache.as_ref()?.get(name)
}

pub(crate) fn is_namespace(served: &Served) -> bool {
    served.info.group.is_empty() && served.info.plural == "namespaces"
}

/// What configures admission is never subject to it.
pub(crate) fn is_exempt(attributes: &Attributes<'_>) -> bool {
    attributes.served.info.group == "admissionregistration.k8s.io"
}

fn find(rules: &[Rule], server: &ApiServer, attributes: &Attributes<'_>, equivalent: bool) -> Option<Matched> {
    if rules.iter().any(|rule| rule.matches(attributes, attributes.served)) {
        return Some(Matched::Itself);
    }
    let cache = attributes.served.cache.as_ref().filter(|_| equivalent && !rules.is_empty())?;
    let same = |other: &&Arc<Served>| {
        other.cache.as_ref().is_some_and(|own| Arc::ptr_eq(own, cache))
            && !std::ptr::eq(other.as_ref(), attributes.served)
    };
    let all = if attributes.served.custom().is_some() { server.custom.load() } else { Arc::default() };
    let all = server.registry.all().iter().chain(all.all());
    let others: Vec<Arc<Served>> = all.filter(same).cloned().collect();
    let found = rules.iter().find_map(|rule| others.iter().find(|other| rule.matches(attributes, other)));
    found.cloned().map(Matched::As)
}

impl Rule {
    fn of(rule: &Object) -> Self {
        Self {
            operations: strings(rule.get("operations")),
            groups: strings(rule.get("apiGroups")),
            versions: strings(rule.get("apiVersions")),
            resources: strings(rule.get("resources")),
            names: strings(rule.get("resourceNames")),
            scope: rule.text(&["scope"]).to_owned(),
        }
    }

    /// Whether the request would match, were it made for `served`.
    fn matches(&self, attributes: &Attributes<'_>, served: &Served) -> bool {
        let has = |list: &[String], wanted: &str| list.iter().any(|item| item == "*" || item == wanted);
        let cluster_wide = attributes.namespace.is_empty() || is_namespace(served);
        let in_scope = match self.scope.as_str() {
            "Namespaced" => !cluster_wide,
            "Cluster" => cluster_wide,
            _ => true,
        };
        in_scope
            && has(&self.operations, attributes.operation.as_str())
            && has(&self.groups, &served.info.group)
            && has(&self.versions, &served.info.version)
            && self
                .resources
                .iter()
                .any(|resource| self.is_resource(resource, &served.info.plural, attributes.subresource))
            && (self.names.is_empty() || self.names.iter().any(|name| name == attributes.name))
    }

    fn is_resource(&self, pattern: &str, plural: &str, subresource: &str) -> bool {
        let (resource, sub) = pattern.split_once('/').unwrap_or((pattern, ""));
        (resource == "*" || resource == plural) && (sub == "*" || sub == subresource)
    }
}
