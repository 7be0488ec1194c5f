//! What a pod spec means where it says nothing; shared by pods and every kind with a pod template.

use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::{items_mut, set_default};

/// Fills a pod spec in place.
pub(super) fn pod_spec(spec: &mut Object) {
    for (key, value) in [
        ("dnsPolicy", json!("ClusterFirst")),
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("securityContext", json!({})),
        ("schedulerName", json!("default-scheduler")),
    ] {
        set_default(spec, &[key], value);
    }
    mirror_service_account(spec);
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in items_mut(spec, list) {
            container_defaults(container, host_network);
        }
    }
    for volume in items_mut(spec, "volumes") {
        volume_defaults(volume);
    }
}

/// The deprecated `serviceAccount` always says the same as `serviceAccountName`.
pub(super) fn mirror_service_account(spec: &mut Object) {
    let name = match spec.text(&["serviceAccountName"]) {
        "" => spec.text(&["serviceAccount"]).to_owned(),
        name => name.to_owned(),
    };
    if !name.is_empty() {
        spec.insert("serviceAccountName".into(), name.clone().into());
        spec.insert("serviceAccount".into(), name.into());
    }
}

fn container_defaults(container: &mut Object, host_network: bool) {
    let policy = if always_pulled(container.text(&["image"])) { "Always" } else { "IfNotPresent" };
    set_default(container, &["imagePullPolicy"], policy);
    set_default(container, &["terminationMessagePath"], "/dev/termination-log");
    set_default(container, &["terminationMessagePolicy"], "File");
    set_default(container, &["resources"], json!({}));
    for port in items_mut(container, "ports") {
        set_default(port, &["protocol"], "TCP");
        if let (true, Some(number)) = (host_network, port.get("containerPort").cloned()) {
            set_default(port, &["hostPort"], number);
        }
    }
    for variable in items_mut(container, "env") {
        if let Some(Value::Object(field)) = variable.get_mut("valueFrom").and_then(|from| from.get_mut("fieldRef")) {
            set_default(field, &["apiVersion"], "v1");
        }
    }
    if let Some(Value::Object(limits)) = container.at(&["resources", "limits"]).cloned() {
        for (name, amount) in limits {
            set_default(container, &["resources", "requests", &name], amount);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(Value::Object(probe)) = container.get_mut(probe) {
            let numbers =
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)];
            for (key, value) in numbers {
                // Zero is Go's word for unset here.
                if probe.get(key).and_then(Value::as_i64).unwrap_or(0) == 0 {
                    probe.insert(key.into(), value.into());
                }
            }
            handler_defaults(probe);
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(Value::Object(handler)) = container.get_mut("lifecycle").and_then(|l| l.get_mut(hook)) {
            handler_defaults(handler);
        }
    }
}

fn handler_defaults(handler: &mut Object) {
    if let Some(Value::Object(get)) = handler.get_mut("httpGet") {
        set_default(get, &["path"], "/");
        set_default(get, &["scheme"], "HTTP");
    }
    if let Some(Value::Object(grpc)) = handler.get_mut("grpc") {
        set_default(grpc, &["service"], "");
    }
}

fn always_pulled(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn volume_defaults(volume: &mut Object) {
    if !volume.keys().any(|key| key != "name") {
        volume.insert("emptyDir".into(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(Value::Object(source)) = volume.get_mut(source) {
            set_default(source, &["defaultMode"], 420);
            projection_defaults(source);
            for projected in items_mut(source, "sources") {
                if let Some(Value::Object(token)) = projected.get_mut("serviceAccountToken") {
                    set_default(token, &["expirationSeconds"], 3600);
                }
                if let Some(Value::Object(downward)) = projected.get_mut("downwardAPI") {
                    projection_defaults(downward);
                }
            }
        }
    }
    if let Some(Value::Object(path)) = volume.get_mut("hostPath") {
        set_default(path, &["type"], "");
    }
    if let Some(Value::Object(ephemeral)) = volume.get_mut("ephemeral") {
        set_default(ephemeral, &["volumeClaimTemplate", "spec", "volumeMode"], "Filesystem");
    }
}

fn projection_defaults(source: &mut Object) {
    for item in items_mut(source, "items") {
        if let Some(Value::Object(field)) = item.get_mut("fieldRef") {
            set_default(field, &["apiVersion"], "v1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pull_policy_follows_the_tag() {
        check("nginx", "Always");
        check("nginx:latest", "Always");
        check("nginx:1.2", "IfNotPresent");
        check("localhost:5000/nginx", "Always");
        check("localhost:5000/nginx:1", "IfNotPresent");
        check("nginx@sha256:aa", "IfNotPresent");
    }

    #[track_caller]
    fn check(image: &str, want: &str) {
        let Value::Object(mut spec) = json!({"containers": [{"name": "a", "image": image}]}) else { unreachable!() };
        pod_spec(&mut spec);
        assert_eq!(spec["containers"][0]["imagePullPolicy"], want, "{image}");
    }
}
