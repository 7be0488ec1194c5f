//! What a pod or a volume refers to by name.

use api::{Object, ObjectExt as _};
use serde_json::Value;

/// Volume sources that name a secret in a field of their own.
const SECRET_IN_VOLUME: [(&str, &str); 11] = [
    ("azureFile", "secretName"),
    ("cephfs", "secretRef"),
    ("cinder", "secretRef"),
    ("flexVolume", "secretRef"),
    ("rbd", "secretRef"),
    ("secret", "secretName"),
    ("scaleIO", "secretRef"),
    ("iscsi", "secretRef"),
    ("storageos", "secretRef"),
    ("csi", "nodePublishSecretRef"),
    ("csi", "nodeStageSecretRef"),
];

fn list<'a>(object: &'a Object, path: &[&str]) -> impl Iterator<Item = &'a Object> + use<'a> {
    object.at(path).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

fn containers(pod: &Object) -> impl Iterator<Item = &Object> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|name| list(pod, &["spec", name]))
}

/// The names that `env` and `envFrom` of all containers refer to.
fn in_environment<'a>(pod: &'a Object, key_ref: &'a str, whole_ref: &'a str) -> impl Iterator<Item = &'a str> {
    containers(pod).flat_map(move |container| {
        let whole = list(container, &["envFrom"]).map(move |env| env.text(&[whole_ref, "name"]));
        let keys = list(container, &["env"]).map(move |env| env.text(&["valueFrom", key_ref, "name"]));
        whole.chain(keys)
    })
}

fn projected<'a>(pod: &'a Object, source: &'a str) -> impl Iterator<Item = &'a str> {
    list(pod, &["spec", "volumes"])
        .flat_map(move |volume| list(volume, &["projected", "sources"]).map(move |from| from.text(&[source, "name"])))
}

fn named(names: Vec<&str>) -> Vec<&str> {
    names.into_iter().filter(|name| !name.is_empty()).collect()
}

pub(crate) fn secrets(pod: &Object) -> Vec<&str> {
    let pull = list(pod, &["spec", "imagePullSecrets"]).map(|reference| reference.text(&["name"]));
    let volumes = list(pod, &["spec", "volumes"]).flat_map(|volume| {
        // Upstream shows a node only the secrets it mounts with, and a pod has no stage secret.
        SECRET_IN_VOLUME.iter().filter(|(_, field)| *field != "nodeStageSecretRef").map(
            |(source, field)| match *field {
                "secretName" => volume.text(&[source, field]),
                field => volume.text(&[source, field, "name"]),
            },
        )
    });
    named(
        pull.chain(in_environment(pod, "secretKeyRef", "secretRef"))
            .chain(volumes)
            .chain(projected(pod, "secret"))
            .collect(),
    )
}

pub(crate) fn config_maps(pod: &Object) -> Vec<&str> {
    let volumes = list(pod, &["spec", "volumes"]).map(|volume| volume.text(&["configMap", "name"]));
    named(
        in_environment(pod, "configMapKeyRef", "configMapRef")
            .chain(volumes)
            .chain(projected(pod, "configMap"))
            .collect(),
    )
}

/// The claims for volumes, those made for the pod included.
pub(super) fn volume_claims(pod: &Object) -> Vec<String> {
    let of = |volume: &Object| match volume.text(&["persistentVolumeClaim", "claimName"]) {
        "" => volume.contains_key("ephemeral").then(|| format!("{}-{}", pod.name(), volume.text(&["name"]))),
        name => Some(name.to_owned()),
    };
    list(pod, &["spec", "volumes"]).filter_map(of).collect()
}

/// The claims for devices, by the names they got.
pub(super) fn resource_claims(pod: &Object) -> Vec<&str> {
    let made = |name: &str| {
        let mut statuses = list(pod, &["status", "resourceClaimStatuses"]);
        statuses.find(|status| status.text(&["name"]) == name).map_or("", |status| status.text(&["resourceClaimName"]))
    };
    let own = list(pod, &["spec", "resourceClaims"]).map(|claim| match claim.text(&["resourceClaimName"]) {
        "" => made(claim.text(&["name"])),
        name => name,
    });
    let extended = pod.text(&["status", "extendedResourceClaimStatus", "resourceClaimName"]);
    named(own.chain([extended]).collect())
}

/// The secrets a kubelet needs to mount a volume, as `namespace/name`.
pub(super) fn volume_secrets(volume: &Object) -> Vec<String> {
    let claim = volume.text(&["spec", "claimRef", "namespace"]);
    let in_claim = |namespace: &str| if namespace.is_empty() { claim } else { namespace }.to_owned();
    let mut found = Vec::new();
    let azure = ["spec", "azureFile"];
    if let Some(source) = volume.at(&azure).and_then(Value::as_object) {
        found.push((in_claim(source.text(&["secretNamespace"])), source.text(&["secretName"])));
    }
    for (source, field) in SECRET_IN_VOLUME.iter().chain(&[("csi", "nodeExpandSecretRef")]) {
        if let Some(reference) = volume.at(&["spec", source, field]).and_then(Value::as_object) {
            found.push((in_claim(reference.text(&["namespace"])), reference.text(&["name"])));
        }
    }
    let found = found.into_iter().filter(|(_, name)| !name.is_empty());
    found.map(|(namespace, name)| format!("{namespace}/{name}")).collect()
}
