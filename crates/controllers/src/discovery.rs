//! Which resources the API server serves, for controllers that work on all of them.
//!
//! Asked for in the aggregated form: two requests tell everything, also of groups whose own server does not answer, which must not
//! keep the controllers from the others.

use http::{Request, header};
use kube::core::ApiResource;
use kube::discovery::verbs;
use serde_json::Value;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Served {
    pub(crate) resource: ApiResource,
    pub(crate) namespaced: bool,
    verbs: Vec<String>,
}

impl Served {
    pub(crate) fn supports(&self, all: &[&str]) -> bool {
        all.iter().all(|verb| self.verbs.iter().any(|known| known == verb))
    }
}

/// What is served, and the groups and versions of which nobody knows it now.
#[derive(Debug, Default)]
pub(crate) struct Discovered {
    pub(crate) served: Vec<Served>,
    pub(crate) stale: Vec<String>,
}

/// The preferred version of every resource that can be listed and deleted.
pub(crate) async fn deletable(client: &kube::Client) -> kube::Result<Discovered> {
    let mut found = Discovered::default();
    for path in ["/api", "/apis"] {
        let request = Request::get(path).header(header::ACCEPT, AGGREGATED).body(Vec::new());
        let list: Value = client.request(request.map_err(kube::Error::HttpError)?).await?;
        found.read(&list).map_err(|why| kube::Error::Service(why.into()))?;
    }
    found.served.retain(|served| served.supports(&[verbs::LIST, verbs::DELETE]));
    Ok(found)
}

impl Discovered {
    /// Takes in a list of groups; one of another form is refused, lest nothing be taken for all there is.
    fn read(&mut self, list: &Value) -> Result<(), String> {
        if text(list, "kind") != "APIGroupDiscoveryList" {
            return Err(format!("the API server tells {} instead of what it serves", text(list, "kind")));
        }
        for group in items(list, "items") {
            let name = group.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            for version in items(group, "versions") {
                let short = text(version, "version");
                let api_version = if name.is_empty() { short.to_owned() } else { format!("{name}/{short}") };
                if text(version, "freshness") == "Stale" {
                    self.stale.push(api_version);
                    continue;
                }
                for resource in items(version, "resources") {
                    self.add(resource, name, short, &api_version);
                }
            }
        }
        Ok(())
    }

    /// Versions come with the preferred one first.
    fn add(&mut self, resource: &Value, group: &str, version: &str, api_version: &str) {
        let plural = text(resource, "resource");
        if self.served.iter().any(|known| known.resource.group == group && known.resource.plural == plural) {
            return;
        }
        let kind = resource.pointer("/responseKind/kind").and_then(Value::as_str).unwrap_or_default();
        let verbs = items(resource, "verbs").filter_map(Value::as_str).map(ToOwned::to_owned).collect();
        let namespaced = text(resource, "scope") == "Namespaced";
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        self.served.push(Served { resource, namespaced, verbs });
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_preferred_version_counts_and_a_server_that_is_gone_keeps_nobody_from_the_rest() {
        let resource = |plural: &str, scope: &str| json!({"resource": plural, "scope": scope, "responseKind": {"kind": "K"}, "verbs": ["list", "delete"]});
        let list = json!({"kind": "APIGroupDiscoveryList", "items": [
            {"metadata": {"name": "autoscaling"}, "versions": [
                {"version": "v2", "freshness": "Current", "resources": [resource("scalers", "Namespaced")]},
                {"version": "v1", "freshness": "Current", "resources": [resource("scalers", "Namespaced"), resource("old", "Cluster")]},
            ]},
            {"metadata": {"name": "gone.example.com"}, "versions": [
                {"version": "v1", "freshness": "Stale", "resources": [resource("things", "Namespaced")]},
            ]},
        ]});
        let mut found = Discovered::default();
        found.read(&list).unwrap();
        let told: Vec<String> = found
            .served
            .iter()
            .map(|one| format!("{}/{} {}", one.resource.api_version, one.resource.plural, one.namespaced))
            .collect();
        assert_eq!(told, ["autoscaling/v2/scalers true", "autoscaling/v1/old false"]);
        assert_eq!(found.stale, ["gone.example.com/v1"]);
        assert!(found.read(&json!({"kind": "APIGroupList", "groups": []})).is_err());
    }
}
