//! A container's environment: its own variables, those from ConfigMaps and Secrets, and those of services.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret, Service};

use crate::budget::{Budget, Exceeded};
use crate::expand::expand;
use crate::fields::{self, Facts, FieldError};
use crate::sources::{SourceError, Sources};
use crate::spec;

#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvError {
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    Key { key: String, kind: &'static str, namespace: String, name: String },
    #[error("environment variable {0}: fileKeyRef is not supported")]
    FileKey(String),
    #[error(transparent)]
    TooLarge(#[from] Exceeded),
}

pub(crate) type Variables = BTreeMap<String, String>;

/// The environment, in order of names. What it takes is taken from `budget`.
pub(crate) async fn variables(
    pod: &Pod,
    container: &Container,
    services: &[Arc<Service>],
    sources: &Sources,
    facts: &Facts,
    budget: &mut Budget,
) -> Result<Variables, EnvError> {
    let links = spec::spec(pod).enable_service_links.unwrap_or(true);
    let service_env = of_services(services, spec::namespace(pod), links);
    let mut own = Variables::new();
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &from.config_map_ref {
            let optional = reference.optional == Some(true);
            let found = sources.config_map(spec::namespace(pod), &reference.name, optional).await?;
            for (key, value) in found.iter().flat_map(|map| map.data.iter().flatten()) {
                budget.take(prefix.len() + key.len() + value.len())?;
                own.insert(format!("{prefix}{key}"), value.clone());
            }
        } else if let Some(reference) = &from.secret_ref {
            let optional = reference.optional == Some(true);
            let found = sources.secret(spec::namespace(pod), &reference.name, optional).await?;
            for (key, value) in found.iter().flat_map(|secret| secret.data.iter().flatten()) {
                budget.take(prefix.len() + key.len() + value.0.len())?;
                own.insert(format!("{prefix}{key}"), String::from_utf8_lossy(&value.0).into_owned());
            }
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (variable.value.as_deref().filter(|value| !value.is_empty()), &variable.value_from) {
            (Some(value), _) => {
                Some(expand(value, budget, |name| own.get(name).or_else(|| service_env.get(name)).cloned())?)
            }
            (None, Some(source)) => {
                let value = resolve(pod, container, &variable.name, source, sources, facts).await?;
                budget.take(value.as_ref().map_or(0, String::len))?;
                value
            }
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            budget.take(variable.name.len())?;
            own.insert(variable.name.clone(), value);
        }
    }
    for (name, value) in service_env {
        budget.take(name.len() + value.len())?;
        own.entry(name).or_insert(value);
    }
    Ok(own)
}

/// `None` when an optional source is missing.
async fn resolve(
    pod: &Pod,
    container: &Container,
    variable: &str,
    source: &EnvVarSource,
    sources: &Sources,
    facts: &Facts,
) -> Result<Option<String>, EnvError> {
    let namespace = spec::namespace(pod);
    let missing = |kind, name: &str, key: &str| EnvError::Key {
        key: key.to_owned(),
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    if let Some(field) = &source.field_ref {
        return Ok(Some(fields::field(pod, &field.field_path, facts)?));
    }
    if let Some(selector) = &source.resource_field_ref {
        return Ok(Some(fields::resource(pod, Some(container), selector, facts)?));
    }
    if let Some(reference) = &source.config_map_key_ref {
        let optional = reference.optional == Some(true);
        let found: Option<Arc<ConfigMap>> = sources.config_map(namespace, &reference.name, optional).await?;
        let value = found.as_ref().and_then(|map| map.data.as_ref()?.get(&reference.key).cloned());
        return match value {
            None if !optional => Err(missing("ConfigMap", &reference.name, &reference.key)),
            value => Ok(value),
        };
    }
    if let Some(reference) = &source.secret_key_ref {
        let optional = reference.optional == Some(true);
        let found: Option<Arc<Secret>> = sources.secret(namespace, &reference.name, optional).await?;
        let value = found.as_ref().and_then(|secret| secret.data.as_ref()?.get(&reference.key).cloned());
        return match value {
            None if !optional => Err(missing("Secret", &reference.name, &reference.key)),
            value => Ok(value.map(|value| String::from_utf8_lossy(&value.0).into_owned())),
        };
    }
    if source.file_key_ref.is_some() {
        return Err(EnvError::FileKey(variable.to_owned()));
    }
    Ok(Some(String::new()))
}

/// Docker-style variables of the services a pod sees: always `default/kubernetes`, with `links` also those of its namespace.
pub(crate) fn of_services(services: &[Arc<Service>], namespace: &str, links: bool) -> Variables {
    let mut seen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let from = service.metadata.namespace.as_deref().unwrap_or_default();
        let ip = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()).unwrap_or_default();
        if matches!(ip, "" | "None") {
            continue;
        }
        if from == "default" && name == "kubernetes" {
            seen.entry(name).or_insert(service);
        } else if from == namespace && links {
            seen.insert(name, service);
        }
    }
    let mut all = Variables::new();
    for (name, service) in seen {
        add_service(&mut all, name, service);
    }
    all
}

fn add_service(all: &mut Variables, name: &str, service: &Service) {
    let upper = |text: &str| text.replace('-', "_").to_uppercase();
    let prefix = upper(name);
    let Some(spec) = &service.spec else { return };
    let ip = spec.cluster_ip.clone().unwrap_or_default();
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.clone() };
    all.insert(format!("{prefix}_SERVICE_HOST"), ip.clone());
    for (index, port) in spec.ports.iter().flatten().enumerate() {
        let number = port.port;
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let url = format!("{}://{host}:{number}", protocol.to_lowercase());
        if index == 0 {
            all.insert(format!("{prefix}_SERVICE_PORT"), number.to_string());
            all.insert(format!("{prefix}_PORT"), url.clone());
        }
        if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            all.insert(format!("{prefix}_SERVICE_PORT_{}", upper(port_name)), number.to_string());
        }
        let base = format!("{prefix}_PORT_{number}_{}", protocol.to_uppercase());
        all.insert(base.clone(), url);
        all.insert(format!("{base}_PROTO"), protocol.to_lowercase());
        all.insert(format!("{base}_PORT"), number.to_string());
        all.insert(format!("{base}_ADDR"), ip.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(namespace: &str, name: &str, ip: &str) -> Arc<Service> {
        let port = json!({ "name": "https", "port": 443, "protocol": "TCP" });
        let service = json!({ "metadata": { "namespace": namespace, "name": name }, "spec": { "clusterIP": ip, "ports": [port] } });
        Arc::new(serde_json::from_value(service).expect("a service"))
    }

    #[test]
    fn services_become_variables() {
        let services = [
            service("default", "kubernetes", "10.96.0.1"),
            service("n", "my-web", "10.96.0.9"),
            service("n", "headless", "None"),
            service("other", "x", "10.96.0.8"),
        ];
        let all = of_services(&services, "n", true);
        for (name, want) in [
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("KUBERNETES_SERVICE_PORT", "443"),
            ("KUBERNETES_SERVICE_PORT_HTTPS", "443"),
            ("KUBERNETES_PORT", "tcp://10.96.0.1:443"),
            ("KUBERNETES_PORT_443_TCP_ADDR", "10.96.0.1"),
            ("MY_WEB_PORT_443_TCP_PROTO", "tcp"),
        ] {
            assert_eq!(all.get(name).map(String::as_str), Some(want), "{name}");
        }
        assert!(!all.keys().any(|name| name.starts_with("HEADLESS") || name.starts_with("X_")));
        assert!(of_services(&services, "n", false).keys().all(|name| name.starts_with("KUBERNETES_")));
    }
}
