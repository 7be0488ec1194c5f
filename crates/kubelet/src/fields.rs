//! The downward API: fields of the pod and resources of its containers as text.

use std::collections::BTreeMap;

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};

use crate::{resources, spec};

#[derive(Debug, thiserror::Error)]
pub(crate) enum FieldError {
    #[error("unsupported fieldPath: {0}")]
    Unsupported(String),
    #[error("container {0} not found")]
    Container(String),
    #[error("unsupported container resource : {0}")]
    Resource(String),
    #[error("invalid divisor: {0}")]
    Divisor(String),
}

/// What only the node knows about the pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) pod_ips: Vec<String>,
    pub(crate) host_ip: String,
    pub(crate) cpus: i64,
    pub(crate) memory: i64,
}

pub(crate) fn field(pod: &Pod, path: &str, facts: &Facts) -> Result<String, FieldError> {
    let meta = &pod.metadata;
    let value = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default()
    };
    let subscript = path.strip_suffix("']").and_then(|path| path.split_once("['"));
    match subscript {
        Some(("metadata.annotations", key)) => return Ok(value(&meta.annotations, key)),
        Some(("metadata.labels", key)) => return Ok(value(&meta.labels, key)),
        Some(_) => return Err(FieldError::Unsupported(path.to_owned())),
        None => (),
    }
    Ok(match path {
        "metadata.name" => spec::name(pod).to_owned(),
        "metadata.namespace" => spec::namespace(pod).to_owned(),
        "metadata.uid" => spec::uid(pod).to_owned(),
        "metadata.labels" => format_map(&meta.labels),
        "metadata.annotations" => format_map(&meta.annotations),
        "spec.nodeName" => spec::spec(pod).node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => spec::spec(pod).service_account_name.clone().unwrap_or_default(),
        "status.hostIP" | "status.hostIPs" => facts.host_ip.clone(),
        "status.podIP" => facts.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => facts.pod_ips.join(","),
        other => return Err(FieldError::Unsupported(other.to_owned())),
    })
}

/// One `key="value"` per line, in order.
fn format_map(map: &Option<BTreeMap<String, String>>) -> String {
    let lines: Vec<_> = map.iter().flatten().map(|(key, value)| format!("{key}={value:?}")).collect();
    lines.join("\n")
}

/// A limit that is not set is what the node has.
pub(crate) fn resource(
    pod: &Pod,
    own: Option<&Container>,
    selector: &ResourceFieldSelector,
    facts: &Facts,
) -> Result<String, FieldError> {
    let named = selector.container_name.as_deref().filter(|name| !name.is_empty());
    let found = match (named, own) {
        (Some(name), _) => spec::container(pod, name).ok_or_else(|| FieldError::Container(name.to_owned()))?,
        (None, Some(own)) => own.clone(),
        (None, None) => return Err(FieldError::Container(String::new())),
    };
    let divisor = match selector.divisor.as_ref().map(|divisor| divisor.0.as_str()) {
        None | Some("" | "0") => None,
        Some(text) => Some(Quantity::parse(text).map_err(|_| FieldError::Divisor(text.to_owned()))?),
    };
    let unknown = || FieldError::Resource(selector.resource.clone());
    let (list, name) = selector.resource.split_once('.').ok_or_else(unknown)?;
    let whole = match name {
        "cpu" => Quantity::from_milli(facts.cpus * 1000),
        "memory" => Quantity::from_bytes(facts.memory),
        "ephemeral-storage" => Quantity::from_bytes(0),
        name if name.starts_with("hugepages-") => Quantity::from_bytes(0),
        _ => return Err(unknown()),
    };
    let quantity = match list {
        "limits" => resources::limit(&found, name).filter(|limit| !limit.is_zero()).unwrap_or(whole),
        "requests" => resources::request(&found, name).unwrap_or_else(|| Quantity::from_milli(0)),
        _ => return Err(unknown()),
    };
    let milli = |q: &Quantity| q.milli_value();
    Ok(if name == "cpu" {
        let divisor = divisor.map_or(1000, |divisor| milli(&divisor)).max(1);
        ceil_div(milli(&quantity), divisor).to_string()
    } else {
        let divisor = divisor.map_or(1, |divisor| divisor.value()).max(1);
        ceil_div(quantity.value(), divisor).to_string()
    })
}

fn ceil_div(value: i64, by: i64) -> i64 {
    value / by + i64::from(value % by > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "p", "namespace": "n", "uid": "u", "labels": { "a": "1", "b": "two \"x\"" } },
            "spec": { "nodeName": "node", "containers": [{ "name": "c",
                "resources": { "requests": { "cpu": "250m", "memory": "1Mi" }, "limits": { "memory": "3Mi" } } }] },
        }))
        .expect("a pod")
    }

    #[test]
    fn pod_fields() {
        let facts = Facts { pod_ips: vec!["10.0.0.1".into(), "fd00::1".into()], ..Default::default() };
        for (path, want) in [
            ("metadata.name", "p"),
            ("metadata.labels['a']", "1"),
            ("metadata.labels['missing']", ""),
            ("metadata.labels", "a=\"1\"\nb=\"two \\\"x\\\"\""),
            ("spec.nodeName", "node"),
            ("status.podIP", "10.0.0.1"),
            ("status.podIPs", "10.0.0.1,fd00::1"),
        ] {
            assert_eq!(field(&pod(), path, &facts).expect(path), want, "{path}");
        }
        assert!(field(&pod(), "spec.containers", &facts).is_err());
    }

    #[track_caller]
    fn check(name: &str, divisor: &str, want: &str) {
        let selector: ResourceFieldSelector =
            serde_json::from_value(json!({ "containerName": "c", "resource": name, "divisor": divisor }))
                .expect("a ref");
        let facts = Facts { cpus: 4, memory: 8 << 20, ..Default::default() };
        assert_eq!(resource(&pod(), None, &selector, &facts).expect(name), want, "{name} / {divisor}");
    }

    #[test]
    fn container_resources() {
        check("requests.cpu", "0", "1");
        check("requests.cpu", "1m", "250");
        check("limits.cpu", "1", "4");
        check("limits.memory", "1Mi", "3");
        check("requests.memory", "0", "1048576");
        check("limits.ephemeral-storage", "0", "0");
    }
}
