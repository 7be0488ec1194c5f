//! What a pod spec means where it says nothing; shared by pods and every kind with a pod template.

use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::pod_validation::aggregate;
use super::{image_name, items_mut, set_default};

/// What the fields of a volume's source mean where they say nothing.
const SOURCES: [(&str, &str, &str); 11] = [
    ("hostPath", "type", ""),
    ("iscsi", "iscsiInterface", "default"),
    ("rbd", "pool", "rbd"),
    ("rbd", "user", "admin"),
    ("rbd", "keyring", "/etc/ceph/keyring"),
    ("azureDisk", "cachingMode", "ReadWrite"),
    ("azureDisk", "fsType", "ext4"),
    ("azureDisk", "readOnly", "false"),
    ("azureDisk", "kind", "Shared"),
    ("scaleIO", "storageMode", "ThinProvisioned"),
    ("scaleIO", "fsType", "xfs"),
];

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
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        items_mut(spec, list).for_each(container_defaults);
    }
    for volume in items_mut(spec, "volumes") {
        volume_defaults(volume);
    }
}

/// What only a pod means, and no template of one.
pub(super) fn pod(spec: &mut Object) {
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for list in ["containers", "initContainers"] {
        for container in items_mut(spec, list) {
            if let Some(Value::Object(limits)) = container.at(&["resources", "limits"]).cloned() {
                for (name, amount) in limits {
                    set_default(container, &["resources", "requests", &name], amount);
                }
            }
            for port in items_mut(container, "ports").filter(|_| host_network) {
                if let Some(number) = port.get("containerPort").cloned() {
                    set_default(port, &["hostPort"], number);
                }
            }
        }
    }
    whole_resources(spec);
    set_default(spec, &["enableServiceLinks"], true);
    // Less than nothing is as little as can be.
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 0) {
        spec.insert("terminationGracePeriodSeconds".into(), 1.into());
    }
}

/// What a pod has as a whole, where it says a part of it.
fn whole_resources(spec: &mut Object) {
    let has = |spec: &Object, list: &str| {
        spec.at(&["resources", list]).and_then(Value::as_object).is_some_and(|amounts| !amounts.is_empty())
    };
    if !has(spec, "limits") && !has(spec, "requests") {
        return;
    }
    for (name, sum) in aggregate(spec, "limits").into_iter().filter(|(name, _)| name.starts_with("hugepages-")) {
        if spec.at(&["resources", "requests", &name]).is_none() {
            set_default(spec, &["resources", "limits", &name], sum);
        }
    }
    if !has(spec, "limits") {
        return;
    }
    for (name, sum) in aggregate(spec, "requests").into_iter().filter(|(name, _)| matches!(&**name, "cpu" | "memory")) {
        set_default(spec, &["resources", "requests", &name], sum);
    }
    let limits = spec.at(&["resources", "limits"]).and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, amount) in limits {
        if matches!(&*name, "cpu" | "memory") || name.starts_with("hugepages-") {
            set_default(spec, &["resources", "requests", &name], amount);
        }
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

fn container_defaults(container: &mut Object) {
    let policy = pull_policy(container.text(&["image"]));
    set_default(container, &["imagePullPolicy"], policy);
    set_default(container, &["terminationMessagePath"], "/dev/termination-log");
    set_default(container, &["terminationMessagePolicy"], "File");
    set_default(container, &["resources"], json!({}));
    for port in items_mut(container, "ports") {
        set_default(port, &["protocol"], "TCP");
    }
    for variable in items_mut(container, "env") {
        let Some(Value::Object(from)) = variable.get_mut("valueFrom") else { continue };
        for (reference, field, value) in
            [("fieldRef", "apiVersion", json!("v1")), ("fileKeyRef", "optional", json!(false))]
        {
            if let Some(Value::Object(reference)) = from.get_mut(reference) {
                set_default(reference, &[field], value);
            }
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

/// An image that may be another one tomorrow is looked for each time.
fn pull_policy(image: &str) -> &'static str {
    if image_name::tag(image) == Some("latest") { "Always" } else { "IfNotPresent" }
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
    for (source, field, value) in SOURCES {
        if let Some(Value::Object(source)) = volume.get_mut(source) {
            let value = if value == "false" { json!(false) } else { json!(value) };
            set_default(source, &[field], value);
        }
    }
    if let Some(Value::Object(image)) = volume.get_mut("image") {
        let policy = pull_policy(image.text(&["reference"]));
        set_default(image, &["pullPolicy"], policy);
    }
    let claim = volume.get_mut("ephemeral").and_then(|ephemeral| ephemeral.get_mut("volumeClaimTemplate"));
    if let Some(Value::Object(claim)) = claim {
        set_default(claim, &["spec", "volumeMode"], "Filesystem");
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
