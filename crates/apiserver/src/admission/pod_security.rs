//! PodSecurity: pods are held to the level of their namespace, workloads are warned, and a namespace that is made stricter
//! is told which of its pods would no longer be let in.

mod checks;
mod policy;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use api::{ApiError, Object, ObjectExt as _};
use async_trait::async_trait;
use serde_json::Value;

use self::checks::{evaluate, told};
use self::policy::{Configuration, Level, LevelVersion, Policy};
use super::{Attributes, Operation, Plugin, namespace};
use crate::pipeline::Context;
use crate::server::ApiServer;

/// A namespace with more pods is checked in part.
const MAX_PODS: usize = 3000;
const AUDIT: &str = "pod-security.kubernetes.io/";
/// Where workloads keep their pods' template.
const WORKLOADS: [(&str, &str, &[&str]); 8] = [
    ("", "replicationcontrollers", &["spec", "template"]),
    ("", "podtemplates", &["template"]),
    ("apps", "deployments", &["spec", "template"]),
    ("apps", "replicasets", &["spec", "template"]),
    ("apps", "daemonsets", &["spec", "template"]),
    ("apps", "statefulsets", &["spec", "template"]),
    ("batch", "jobs", &["spec", "template"]),
    ("batch", "cronjobs", &["spec", "jobTemplate", "spec", "template"]),
];

pub(super) struct PodSecurity {
    configuration: Configuration,
}

impl PodSecurity {
    pub(super) fn plugin(configuration: Option<&Value>) -> Result<Box<dyn Plugin>, String> {
        Ok(Box::new(Self { configuration: Configuration::read(configuration)? }))
    }
}

fn template(attributes: &Attributes<'_>) -> Option<&'static [&'static str]> {
    let found = WORKLOADS.iter().find(|(group, plural, _)| attributes.is(group, plural));
    found.map(|(_, _, path)| *path)
}

#[async_trait]
impl Plugin for PodSecurity {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let pods =
            attributes.is_of("", "pods") && matches!(attributes.subresource, "" | "ephemeralcontainers" | "resize");
        let concerned = pods || attributes.is("", "namespaces") || template(attributes).is_some();
        concerned && attributes.operation != Operation::Delete && attributes.context.is_some()
    }

    async fn validate(
        &self,
        server: &Arc<ApiServer>,
        attributes: &Attributes<'_>,
        object: &Object,
    ) -> Result<(), ApiError> {
        let Some(context) = attributes.context else { return Ok(()) };
        if attributes.is("", "namespaces") {
            return self.namespace(server, attributes, context, object);
        }
        let configuration = &self.configuration;
        let exempt = |list: &[String], name: &str| !name.is_empty() && list.iter().any(|own| own == name);
        if exempt(&configuration.namespaces, attributes.namespace) {
            context.annotate(format!("{AUDIT}exempt"), "namespace");
            return Ok(());
        }
        if exempt(&configuration.usernames, &context.user.name) {
            context.annotate(format!("{AUDIT}exempt"), "user");
            return Ok(());
        }
        let Some(namespace) = namespace::find(server, attributes.namespace).await? else {
            return Err(ApiError::internal(format!("failed to lookup namespace {:?}", attributes.namespace)));
        };
        let (policy, _) = Policy::of_namespace(&namespace, configuration.defaults);
        if policy.is_privileged() {
            return Ok(());
        }
        let path = template(attributes);
        let pod = match path {
            Some(path) => object.at(path).and_then(Value::as_object),
            None => Some(object),
        };
        let Some(pod) = pod else { return Ok(()) };
        if path.is_none() && attributes.old.is_some_and(|old| !is_significant(object, old)) {
            return Ok(());
        }
        if exempt(&configuration.runtime_classes, pod.text(&["spec", "runtimeClassName"])) {
            context.annotate(format!("{AUDIT}exempt"), "runtimeClass");
            return Ok(());
        }
        judge(attributes, context, &policy, pod, path.is_none())
    }
}

fn violations(wanted: LevelVersion, pod: &Object) -> Option<String> {
    let empty = Object::new();
    let part = |name: &str| pod.get(name).and_then(Value::as_object).unwrap_or(&empty);
    let found = evaluate(wanted, part("metadata"), part("spec"));
    (!found.is_empty()).then(|| told(&found))
}

fn judge(
    attributes: &Attributes<'_>,
    context: &Context,
    policy: &Policy,
    pod: &Object,
    enforce: bool,
) -> Result<(), ApiError> {
    let refused = enforce.then(|| violations(policy.enforce, pod)).flatten();
    if enforce {
        context.annotate(format!("{AUDIT}enforce-policy"), policy.enforce.to_string());
    }
    if let Some(told) = violations(policy.audit, pod) {
        let text = format!("would violate PodSecurity \"{}\": {told}", policy.audit);
        context.annotate(format!("{AUDIT}audit-violations"), text);
    }
    if let Some(told) = refused {
        return Err(attributes.forbidden(format!("violates PodSecurity \"{}\": {told}", policy.enforce)));
    }
    if let Some(told) = violations(policy.warn, pod) {
        context.warn(format!("would violate PodSecurity \"{}\": {told}", policy.warn));
    }
    Ok(())
}

/// A change of images or containers; nothing else that may change makes a pod worse.
fn is_significant(new: &Object, old: &Object) -> bool {
    let images = |pod: &Object, list: &str| -> Vec<(String, String)> {
        let containers = pod.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten();
        let containers = containers.filter_map(Value::as_object);
        containers.map(|c| (c.text(&["name"]).to_owned(), c.text(&["image"]).to_owned())).collect()
    };
    let known = images(old, "ephemeralContainers");
    let plain = |pod: &Object, list: &str| images(pod, list).into_iter().map(|(_, image)| image).collect::<Vec<_>>();
    ["containers", "initContainers"].iter().any(|list| plain(new, list) != plain(old, list))
        || images(new, "ephemeralContainers").iter().any(|container| !known.contains(container))
}

impl PodSecurity {
    fn namespace(
        &self,
        server: &ApiServer,
        attributes: &Attributes<'_>,
        context: &Context,
        namespace: &Object,
    ) -> Result<(), ApiError> {
        let defaults = self.configuration.defaults;
        let (policy, errors) = Policy::of_namespace(namespace, defaults);
        let invalid = || Err(ApiError::invalid("", "Namespace", namespace.name(), &errors));
        let exempt = self.configuration.namespaces.iter().any(|name| name == namespace.name());
        let Some(old) = attributes.old else {
            if !errors.is_empty() {
                return invalid();
            }
            if exempt {
                self.configuration
                    .idle_labels(namespace, &policy)
                    .into_iter()
                    .for_each(|warning| context.warn(warning));
            }
            return Ok(());
        };
        let (before, old_errors) = Policy::of_namespace(old, defaults);
        let texts = |errors: &[api::field::FieldError]| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        if !errors.is_empty() && texts(&errors) != texts(&old_errors) {
            return invalid();
        }
        let (new, was) = (policy.enforce, before.enforce);
        let looser = new.level == Level::Privileged || (new.version == was.version && new.level <= was.level);
        if new == was || looser {
            return Ok(());
        }
        if exempt {
            self.configuration.idle_labels(namespace, &policy).into_iter().for_each(|warning| context.warn(warning));
            return Ok(());
        }
        let pods = server.cached_all("", "pods", namespace.name());
        self.offenders(namespace.name(), new, &pods).into_iter().for_each(|warning| context.warn(warning));
        Ok(())
    }

    /// Which pods would not be let in any more; those of one controller are alike, so that the first of each comes first.
    fn offenders(&self, namespace: &str, enforce: LevelVersion, pods: &[Object]) -> Vec<String> {
        let exempt = |pod: &&Object| {
            let class = pod.text(&["spec", "runtimeClassName"]);
            !self.configuration.runtime_classes.iter().any(|own| own == class)
        };
        let mut seen = HashSet::new();
        let (first, rest): (Vec<&Object>, Vec<&Object>) =
            pods.iter().filter(exempt).partition(|pod| controller(pod).is_none_or(|uid| seen.insert(uid.to_owned())));
        let all: Vec<&Object> = first.into_iter().chain(rest).collect();
        let mut found: BTreeMap<String, (String, usize)> = BTreeMap::new();
        for pod in all.iter().take(MAX_PODS) {
            let empty = Object::new();
            let part = |name: &str| pod.get(name).and_then(Value::as_object).unwrap_or(&empty);
            let violations = evaluate(enforce, part("metadata"), part("spec"));
            if violations.is_empty() {
                continue;
            }
            let reasons: Vec<&str> = violations.iter().map(|violation| violation.reason.as_str()).collect();
            let entry = found.entry(reasons.join(", ")).or_insert_with(|| (pod.name().to_owned(), 0));
            entry.0 = entry.0.clone().min(pod.name().to_owned());
            entry.1 += 1;
        }
        let mut warnings = Vec::new();
        if all.len() > MAX_PODS {
            let total = all.len();
            warnings.push(format!(
                "new PodSecurity enforce level only checked against the first {MAX_PODS} of {total} existing pods"
            ));
        }
        if !found.is_empty() {
            warnings.push(format!(
                "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{enforce}\""
            ));
        }
        let mut told: Vec<String> = found
            .into_iter()
            .map(|(why, (name, count))| match count {
                1 => format!("{name}: {why}"),
                2 => format!("{name} (and 1 other pod): {why}"),
                count => format!("{name} (and {} other pods): {why}", count - 1),
            })
            .collect();
        told.sort();
        warnings.extend(told);
        warnings
    }
}

fn controller(pod: &Object) -> Option<&str> {
    let owners = pod.at(&["metadata", "ownerReferences"]).and_then(Value::as_array)?;
    let owner = owners.iter().find(|owner| owner.get("controller") == Some(&Value::Bool(true)))?;
    owner.get("uid")?.as_str()
}
