//! The rules of where a container has its volumes.

use api::field::FieldError;

use super::super::check::At;
use super::super::volume_sources::descending;

pub(super) fn mounts(container: &At<'_>, volumes: &[String]) {
    let mounts = container.field("volumeMounts");
    let devices = container.each("volumeDevices");
    let is_device = |field: &str, text: &str| devices.iter().any(|device| device.field(field).text() == text);
    let mut places = Vec::new();
    for mount in mounts.items() {
        let (name, place) = (mount.field("name"), mount.field("mountPath"));
        let tell = |at: &At<'_>, detail: &str| at.complain(FieldError::invalid(at.path(), at.text(), detail));
        name.needed();
        if !volumes.iter().any(|known| known == name.text()) {
            name.complain(FieldError::not_found(name.path(), name.text()));
        }
        place.needed();
        if places.contains(&place.text()) {
            tell(&place, "must be unique");
        }
        places.push(place.text());
        if is_device("name", name.text()) {
            tell(&name, "must not already exist in volumeDevices");
        }
        if is_device("devicePath", place.text()) {
            tell(&place, "must not already exist as a path in volumeDevices");
        }
        // Upstream tells of the list here, not of the place in it.
        let of_list = |field: &str| mount.field(field).called(mounts.path().child(field));
        descending(&of_list("subPath"));
        let expression = mount.field("subPathExpr");
        if !expression.is_empty() && !mount.field("subPath").is_empty() {
            expression.invalid("subPathExpr and subPath are mutually exclusive");
        }
        descending(&of_list("subPathExpr"));
        let propagation = of_list("mountPropagation");
        propagation.one_of_if_set(&["Bidirectional", "HostToContainer", "None"]);
        if propagation.text() == "Bidirectional" && !container.at(&["securityContext", "privileged"]).is_true() {
            propagation.forbidden("Bidirectional mount propagation is available only to privileged containers");
        }
        recursive_read_only(&mount, &of_list("recursiveReadOnly"));
    }
}

fn recursive_read_only(mount: &At<'_>, at: &At<'_>) {
    match at.text() {
        "Disabled" => (),
        "Enabled" | "IfPossible" => {
            if !mount.field("readOnly").is_true() {
                at.forbidden("may only be specified when readOnly is true");
            }
            let propagation = mount.field("mountPropagation");
            if propagation.exists() && propagation.text() != "None" {
                at.forbidden("may only be specified when mountPropagation is None or not specified");
            }
        }
        _ => at.one_of_if_set(&["Disabled", "Enabled", "IfPossible"]),
    }
}

/// Volumes that a container has as devices, which only claims can be.
pub(super) fn devices(container: &At<'_>, volumes: &[String], spec: &At<'_>) {
    let claimed = |name: &str| {
        let named = spec.each("volumes").into_iter().filter(|volume| volume.field("name").text() == name);
        named.into_iter().any(|volume| ["persistentVolumeClaim", "ephemeral"].iter().any(|f| volume.field(f).exists()))
    };
    let mounts = container.each("volumeMounts");
    let (mut names, mut places) = (Vec::new(), Vec::new());
    for device in container.each("volumeDevices") {
        let (name, place) = (device.field("name"), device.field("devicePath"));
        let tell = |at: &At<'_>, detail: &str| at.complain(FieldError::invalid(at.path(), at.text(), detail));
        name.needed();
        if names.contains(&name.text()) {
            tell(&name, "must be unique");
        }
        match volumes.iter().any(|known| known == name.text()) {
            true if !claimed(name.text()) => {
                tell(&name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode");
            }
            true => (),
            false => name.complain(FieldError::not_found(name.path(), name.text())),
        }
        place.needed();
        if places.contains(&place.text()) {
            tell(&place, "must be unique");
        }
        if place.text().split('/').any(|part| part == "..") {
            tell(&place, "can not contain backsteps ('..')");
        } else {
            places.push(place.text());
        }
        if mounts.iter().any(|mount| mount.field("name").text() == name.text()) {
            tell(&name, "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|mount| mount.field("mountPath").text() == place.text()) {
            tell(&place, "must not already exist as a path in volumeMounts");
        }
        if !name.is_empty() {
            names.push(name.text());
        }
    }
}
