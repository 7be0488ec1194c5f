//! Persistent volumes: where data is, and who may have it.

use api::field::{FieldError, Path};
use api::validation::is_subdomain;
use api::{Object, ObjectExt as _};
use serde_json::{Value, json};

use super::super::check::{At, check};
use super::super::{Strategy, internal, node_selector, set_default, volume_sources, warnings};
use super::{VOLUME_MODES, access_modes, not_negative, positive};

/// Where data can be, in the order in which upstream looks, and where its rules and the word that there is one already are
/// told, if not by the field's name.
const SOURCES: [(&str, &str, &str); 22] = [
    ("hostPath", "", ""),
    ("gcePersistentDisk", "persistentDisk", ""),
    ("awsElasticBlockStore", "", ""),
    ("glusterfs", "", ""),
    ("flocker", "", ""),
    ("nfs", "", ""),
    ("rbd", "", ""),
    ("quobyte", "", ""),
    ("cephfs", "", "cephFS"),
    ("iscsi", "", ""),
    ("cinder", "", ""),
    ("fc", "", ""),
    ("flexVolume", "", ""),
    ("azureFile", "", ""),
    ("vsphereVolume", "", ""),
    ("photonPersistentDisk", "", ""),
    ("portworxVolume", "", ""),
    ("azureDisk", "", ""),
    ("scaleIO", "", ""),
    ("local", "", ""),
    ("storageos", "", ""),
    ("csi", "", ""),
];
/// Sources that are mounted with options.
const WITH_OPTIONS: [&str; 13] = [
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "nfs",
    "rbd",
    "quobyte",
    "iscsi",
    "cinder",
    "cephfs",
    "azureFile",
    "vsphereVolume",
    "azureDisk",
    "photonPersistentDisk",
];
const DEFAULTS: [(&str, &str, &str); 9] = [
    ("rbd", "pool", "rbd"),
    ("rbd", "user", "admin"),
    ("rbd", "keyring", "/etc/ceph/keyring"),
    ("iscsi", "iscsiInterface", "default"),
    ("azureDisk", "cachingMode", "ReadWrite"),
    ("azureDisk", "fsType", "ext4"),
    ("azureDisk", "kind", "Shared"),
    ("scaleIO", "storageMode", "ThinProvisioned"),
    ("scaleIO", "fsType", "xfs"),
];
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
const OLD_ANNOTATIONS: [(&str, &str); 2] = [
    ("volume.beta.kubernetes.io/storage-class", "deprecated since v1.8; use \"storageClassName\" attribute instead"),
    (MOUNT_OPTIONS, "deprecated since v1.31; use \"mountOptions\" attribute instead"),
];

pub(in super::super) struct PersistentVolumes;

impl Strategy for PersistentVolumes {
    fn selectable_fields(&self) -> &'static [&'static str] {
        &["name"]
    }

    fn default(&self, object: &mut Object) {
        set_default(object, &["spec", "persistentVolumeReclaimPolicy"], "Retain");
        set_default(object, &["spec", "volumeMode"], "Filesystem");
        source_defaults(object.at_mut(&["spec"]));
    }

    fn prepare_for_create(&self, object: &mut Object) {
        let now = crate::handlers::now();
        object.insert("status".into(), json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
    }

    /// When the phase changed is noted, unless the client knows better.
    fn prepare_part(&self, subresource: &str, new: &mut Object, old: &Object) {
        const TIME: &str = "lastPhaseTransitionTime";
        if subresource != "status" {
            return;
        }
        let status = new.at_mut(&["status"]);
        if status.text(&["phase"]).is_empty() {
            status.insert("phase".into(), "Pending".into());
        }
        let (then, told) = (old.at(&["status", TIME]).cloned(), status.get(TIME).cloned());
        let is_same = status.text(&["phase"]) == old.text(&["status", "phase"]);
        match (is_same, told, then) {
            (true, None, Some(then)) => drop(status.insert(TIME.into(), then)),
            (false, told, then) if told.is_none() || told == then => {
                status.insert(TIME.into(), crate::handlers::now().into());
            }
            _ => (),
        }
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        let mut errors = spec(object, true);
        errors.extend(mount_options(object));
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object) -> Vec<FieldError> {
        let mut had_odd_values = false;
        check(old, |at| {
            had_odd_values = node_selector::has_odd_values(&at.at(&["spec", "nodeAffinity", "required"]));
        });
        let rules = spec(new, !had_odd_values);
        let mut errors = rules.clone();
        errors.extend(mount_options(new));
        // Upstream asks for the same rules twice.
        errors.extend(rules);
        errors.extend(source_change(new, old));
        if new.at(&["spec", "volumeMode"]) != old.at(&["spec", "volumeMode"]) {
            let value = new.at(&["spec", "volumeMode"]).cloned().unwrap_or_default();
            errors.push(FieldError::invalid("volumeMode", value, "field is immutable"));
        }
        errors.extend(affinity_change(new, old));
        let class = |object: &Object| object.at(&["spec", "volumeAttributesClassName"]).is_some();
        if class(old) && !class(new) {
            let detail = "update from non-nil value to nil is forbidden";
            errors.push(FieldError::forbidden("spec.volumeAttributesClassName", detail));
        }
        errors
    }

    fn warnings(&self, object: &Object) -> Vec<String> {
        const GONE: [(&str, &str, &str); 6] = [
            ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
            ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
            ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
            ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
            ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
            ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
        ];
        let mut told = Vec::new();
        check(object, |at| {
            let annotations = at.at(&["metadata", "annotations"]);
            for (key, why) in OLD_ANNOTATIONS {
                if annotations.field(key).exists() {
                    told.push(format!("{}: {why}", annotations.path().key(key)));
                }
            }
            let spec = at.field("spec");
            if spec.field("persistentVolumeReclaimPolicy").text() == "Recycle" {
                let why = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.";
                told.push(format!("spec.persistentVolumeReclaimPolicy: {why}"));
            }
            for term in spec.at(&["nodeAffinity", "required"]).each("nodeSelectorTerms") {
                warnings::node_term(&term, &mut told);
            }
            warnings::volume_sources(&spec, &GONE, &mut told);
        });
        told
    }

    fn warnings_on_update(&self, subresource: &str, new: &Object, _: &Object) -> Vec<String> {
        if subresource.is_empty() { self.warnings(new) } else { Vec::new() }
    }
}

pub(super) fn source_defaults(spec: &mut Object) {
    if spec.contains_key("hostPath") {
        set_default(spec, &["hostPath", "type"], "");
    }
    if spec.contains_key("azureDisk") {
        set_default(spec, &["azureDisk", "readOnly"], false);
    }
    for (source, field, value) in DEFAULTS {
        if !spec.contains_key(source) {
            continue;
        }
        // Of a disk at Azure, an empty text is somebody's word.
        if source != "azureDisk" && spec.text(&[source, field]).is_empty() {
            spec.at_mut(&[source]).remove(field);
        }
        set_default(spec, &[source, field], value);
    }
}

/// Where data is does not change; only a secret that is needed to let it grow may come later.
fn source_change(new: &Object, old: &Object) -> Option<FieldError> {
    const LATER: &str = "controllerExpandSecretRef";
    let of = |object: &Object| object.get("spec").cloned().unwrap_or_default();
    let (old, mut new) = (of(old), of(new));
    let has_later = old.get("csi").is_none_or(|csi| csi.get(LATER).is_some());
    if let Some(Value::Object(csi)) = new.get_mut("csi").filter(|_| !has_later) {
        csi.remove(LATER);
    }
    if SOURCES.iter().all(|(source, _, _)| new.get(source) == old.get(source)) {
        return None;
    }
    let change = internal::difference("PersistentVolumeSource", &old, &new);
    let detail = format!("spec.persistentvolumesource is immutable after creation\n{change}");
    Some(FieldError::forbidden("spec.persistentvolumesource", detail))
}

/// Where a volume can be used from stays, but labels may be called by their newer names.
fn affinity_change(new: &Object, old: &Object) -> Option<FieldError> {
    const RENAMED: [(&str, &str); 5] = [
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ];
    fn same(new: &Value, old: &Value) -> bool {
        match (new, old) {
            (Value::Object(new), Value::Object(old)) => {
                let keys = new.keys().chain(old.keys());
                let at = |map: &Object, key: &str| map.get(key).cloned().unwrap_or_default();
                keys.into_iter().all(|key| {
                    let (new, old) = (at(new, key), at(old, key));
                    let is_renamed = key == "key" && RENAMED.iter().any(|(from, to)| old == *from && new == *to);
                    is_renamed || same(&new, &old)
                })
            }
            (Value::Array(new), Value::Array(old)) => {
                new.len() == old.len() && new.iter().zip(old).all(|(new, old)| same(new, old))
            }
            (Value::Null, Value::Array(items)) | (Value::Array(items), Value::Null) => items.is_empty(),
            _ => new == old,
        }
    }
    let before = old.at(&["spec", "nodeAffinity"])?;
    let now = new.at(&["spec", "nodeAffinity"]).cloned().unwrap_or_default();
    let detail = "field is immutable, except for updating from beta label to GA";
    let path = Path::new("nodeAffinity");
    (!same(&now, before)).then(|| internal::invalid("*VolumeNodeAffinity", &path, &now, detail))
}

fn mount_options(object: &Object) -> Option<FieldError> {
    let has_options = object.at(&["metadata", "annotations", MOUNT_OPTIONS]).is_some();
    let may = WITH_OPTIONS.iter().any(|source| object.at(&["spec", source]).is_some());
    let path = Path::new("metadata.annotations").child(MOUNT_OPTIONS);
    (has_options && !may).then(|| FieldError::forbidden(&path, "may not specify mount options for this volume type"))
}

fn spec(object: &Object, labels: bool) -> Vec<FieldError> {
    check(object, |at| volume_spec(&at.field("spec"), object.name(), labels))
}

/// A volume that stands where it is used has no life of its own: nobody claims it, and it comes from a driver.
pub(super) fn inline_spec(spec: &At<'_>) {
    const HERE: &str = "in the context of inline volumes";
    let forbid = |name: &str| {
        if !spec.field(name).is_empty() {
            spec.field(name).forbidden(format!("may not be specified {HERE}"));
        }
    };
    forbid("claimRef");
    forbid("capacity");
    if !spec.field("csi").exists() {
        spec.field("csi").required(&format!("has to be specified {HERE}"));
    }
    spec.field("accessModes").needed();
    access_modes(&spec.field("accessModes"));
    let (policy, mode) = (spec.field("persistentVolumeReclaimPolicy"), spec.field("volumeMode"));
    if !matches!(policy.text(), "" | "Retain") {
        policy.forbidden(format!("may only be Retain {HERE}"));
    }
    if spec.field("nodeAffinity").exists() {
        spec.field("nodeAffinity").forbidden(format!("may not be specified {HERE}"));
    }
    source(spec, "");
    root_is_kept(spec);
    forbid("storageClassName");
    if mode.exists() && mode.text() != "Filesystem" {
        mode.forbidden(format!("may not specify volumeMode other than Filesystem {HERE}"));
    }
}

fn root_is_kept(spec: &At<'_>) {
    let policy = spec.field("persistentVolumeReclaimPolicy");
    if policy.text() == "Recycle" && is_root(spec.at(&["hostPath", "path"]).text()) {
        policy.forbidden("may not be 'recycle' for a hostPath mount of '/'");
    }
}

fn volume_spec(spec: &At<'_>, name: &str, labels: bool) {
    let modes = spec.field("accessModes");
    modes.needed();
    access_modes(&modes);
    let capacity = spec.field("capacity");
    capacity.needed();
    if !capacity.field("storage").exists() || capacity.entries().len() > 1 {
        capacity.complain(FieldError::not_supported(capacity.path(), capacity.value().clone(), &["storage"]));
    }
    for (_, amount) in capacity.entries() {
        not_negative(&amount);
        positive(&amount);
    }
    let policy = spec.field("persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        policy.one_of(&["Delete", "Recycle", "Retain"]);
    }
    let affinity = spec.field("nodeAffinity");
    let wanted = affinity.field("required");
    if wanted.exists() {
        node_selector::node_selector(&wanted, labels);
    } else if affinity.exists() {
        wanted.required("must specify required node constraints");
    }
    source(spec, name);
    root_is_kept(spec);
    spec.field("storageClassName").named_if_set(is_subdomain);
    spec.field("volumeMode").one_of_if_set(&VOLUME_MODES);
    let class = spec.field("volumeAttributesClassName");
    if class.exists() {
        match class.text() {
            "" => class.required("an empty string is disallowed"),
            _ => class.named(is_subdomain),
        }
        if !spec.field("csi").exists() {
            spec.field("csi").required("has to be specified when using volumeAttributesClassName");
        }
    }
}

fn is_root(path: &str) -> bool {
    let mut depth = 0_usize;
    for part in path.split('/') {
        depth = match part {
            "" | "." => depth,
            ".." => depth.saturating_sub(1),
            _ => depth + 1,
        };
    }
    path.starts_with('/') && depth == 0
}

/// Exactly one place where the data is.
fn source(spec: &At<'_>, name: &str) {
    let mut is_found = false;
    for (kind, called, forbidden) in SOURCES {
        let (at, or) = (spec.field(kind), |other: &str| if other.is_empty() { kind } else { other }.to_owned());
        if !at.exists() {
            continue;
        }
        // Upstream never minds that there is one already before a flexible one.
        if is_found && kind != "flexVolume" {
            let place = at.called(spec.path().child(&or(forbidden)));
            place.forbidden("may not specify more than 1 volume type");
            continue;
        }
        is_found = true;
        let at = at.called(spec.path().child(&or(called)));
        if kind == "iscsi" {
            iscsi(&at, name);
        } else {
            volume_sources::source(kind, &at, true);
        }
        if kind == "local" && !spec.field("nodeAffinity").exists() {
            spec.field("nodeAffinity").required("Local volume requires node affinity");
        }
    }
    if !is_found {
        spec.required("must specify a volume type");
    }
}

/// How long the names may be together is told behind where the disk is.
fn iscsi(at: &At<'_>, name: &str) {
    let too_long = volume_sources::is_long_iscsi(at, name);
    let portal = at.field("targetPortal");
    if too_long && !portal.is_empty() {
        at.field("targetPortal").called(at.path().child("targetportal")).invalid(volume_sources::LONG_ISCSI);
    }
    volume_sources::source("iscsi", at, true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_many_names() {
        assert!(["/", "//", "/a/..", "/../.", "/./"].iter().all(|path| is_root(path)));
        assert!(!["", "/a", "a/..", "/a/../b", "."].iter().any(|path| is_root(path)));
    }
}
