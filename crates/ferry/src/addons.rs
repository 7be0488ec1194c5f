//! What runs in a new cluster as ordinary pods: cluster DNS.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cluster::DOMAIN;

pub(crate) const DNS: &str = "ferry-dns";
const NAMESPACE: &str = "kube-system";

/// Creates the add-ons where they are missing; a user's changes to them are kept, but for the image of our own version.
pub(crate) async fn apply(client: &kube::Client, dns: IpAddr) -> Result<()> {
    let labels = json!({"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"});
    create::<ServiceAccount>(client, json!({"metadata": {"name": DNS, "labels": labels}})).await?;
    create::<Service>(client, dns_service(&labels, dns)).await?;
    create::<Deployment>(client, dns_deployment(&labels)).await
}

async fn create<K>(client: &kube::Client, object: Value) -> Result<()>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Serialize
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    let what = K::kind(&());
    let typed = serde_json::from_value(object.clone()).with_context(|| format!("the add-on's {what}"))?;
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    // What is there is asked for first: a service whose address is taken, by itself, is refused before its name is looked at.
    if api.get_opt(name).await?.is_none() {
        match api.create(&PostParams::default(), &typed).await {
            Ok(_) => return Ok(()),
            // Another server was faster.
            Err(_) if api.get_opt(name).await?.is_some() => (),
            Err(error) => return Err(error).with_context(|| format!("cannot create the add-on's {what}")),
        }
    }
    let Some(template) = object.pointer("/spec/template") else { return Ok(()) };
    // A newer binary brings its own image.
    let image = template.pointer("/spec/containers/0/image").cloned().unwrap_or_default();
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "dns", "image": image}]}}}});
    api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
    Ok(())
}

fn dns_service(labels: &Value, address: IpAddr) -> Value {
    json!({
        "metadata": {"name": "kube-dns", "labels": labels, "annotations": {"prometheus.io/port": "9153", "prometheus.io/scrape": "true"}},
        "spec": {
            "selector": {"k8s-app": "kube-dns"}, "clusterIP": address.to_string(),
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
            ],
        },
    })
}

fn dns_deployment(labels: &Value) -> Value {
    let image = format!("ferry.local/ferry:{}", env!("CARGO_PKG_VERSION"));
    let probe = |path: &str, port: u16| json!({"httpGet": {"path": path, "port": port}, "periodSeconds": 5, "failureThreshold": 5});
    json!({
        "metadata": {"name": DNS, "labels": labels},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"k8s-app": "kube-dns"}},
            "strategy": {"rollingUpdate": {"maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": {"k8s-app": "kube-dns"}},
                "spec": {
                    "serviceAccountName": DNS, "dnsPolicy": "Default", "priorityClassName": "system-cluster-critical",
                    "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}, {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}],
                    "containers": [{
                        "name": "dns", "image": image, "imagePullPolicy": "IfNotPresent",
                        "command": ["/ferry", "dns", "--cluster-domain", DOMAIN],
                        "ports": [
                            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
                            {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
                        ],
                        "resources": {"requests": {"cpu": "100m", "memory": "70Mi"}, "limits": {"memory": "170Mi"}},
                        "livenessProbe": probe("/health", 8080),
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
                        "securityContext": {
                            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                        },
                    }],
                },
            },
        },
    })
}
