//! The rules of volumes and where they are mounted.

use api::field::FieldError;
use api::validation::is_subdomain;

use super::super::check::At;
use super::container::{field_ref, resource_ref};

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
const POD_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// The names of the volumes that can be mounted.
pub(super) fn volumes(at: &At<'_>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for volume in at.items() {
        let name = volume.field("name");
        let before = at.complaints();
        source(&volume);
        name.needed_named(api::validation::is_label);
        if names.iter().any(|known| known == name.text()) {
            name.duplicate();
        }
        // One that is wrong cannot be mounted.
        if at.complaints() == before {
            names.push(name.text().to_owned());
        }
    }
    names
}

fn source(volume: &At<'_>) {
    let mut sources = volume.entries().into_iter().filter(|(key, _)| *key != "name").map(|(key, _)| key);
    let Some(first) = sources.next() else {
        volume.required("must specify a volume type");
        return;
    };
    for extra in sources {
        volume.field(extra).forbidden("may not specify more than 1 volume type");
    }
    let at = volume.field(first);
    match first {
        "hostPath" => host_path(&at),
        "secret" => {
            at.field("secretName").needed();
            keys(&at);
        }
        "configMap" => {
            at.field("name").needed();
            keys(&at);
        }
        "nfs" => {
            at.field("server").needed();
            at.field("path").needed();
            if !at.field("path").text().starts_with('/') {
                let path = at.field("path");
                path.complain(FieldError::invalid(path.path(), path.text(), "must be an absolute path"));
            }
        }
        "persistentVolumeClaim" => drop(at.field("claimName").needed()),
        "downwardAPI" => {
            mode(&at.field("defaultMode"));
            // Upstream tells of the volume here, not of the file in it.
            at.each("items").iter().for_each(|file| downward_file(&file.called(at.path().clone())));
        }
        "projected" => {
            mode(&at.field("defaultMode"));
            projected(&at.field("sources"));
        }
        "emptyDir" if at.field("sizeLimit").quantity().is_some_and(|size| size.is_negative()) => {
            at.field("sizeLimit").forbidden("SizeLimit field must be a valid resource quantity");
        }
        "csi" => csi(&at),
        "image" => {
            at.field("reference").needed();
            at.field("pullPolicy").one_of_if_set(&["Always", "IfNotPresent", "Never"]);
        }
        "ephemeral" => match at.field("volumeClaimTemplate").exists() {
            true => super::super::storage::claim_spec(&at.at(&["volumeClaimTemplate", "spec"])),
            false => at.field("volumeClaimTemplate").required(""),
        },
        _ => (),
    }
}

fn host_path(at: &At<'_>) {
    if at.field("path").needed() {
        no_backsteps(&at.field("path"));
        at.field("type").one_of_if_set(&HOST_PATH_TYPES);
    }
}

fn projected(sources: &At<'_>) {
    for source in sources.items() {
        let (token, downward) = (source.field("serviceAccountToken"), source.field("downwardAPI"));
        for name in ["configMap", "secret"] {
            let part = source.field(name);
            if part.exists() {
                part.field("name").needed();
                part.each("items").iter().for_each(key_to_path);
            }
        }
        downward.each("items").iter().for_each(downward_file);
        if token.exists() {
            let seconds = token.field("expirationSeconds");
            if seconds.number().is_some_and(|seconds| seconds < 600) {
                seconds.invalid("may not specify a duration less than 10 minutes");
            }
            if seconds.number().is_some_and(|seconds| seconds > 1 << 32) {
                seconds.invalid("may not specify a duration larger than 2^32 seconds");
            }
            token.field("path").needed();
        }
        match source.entries().len() {
            0 | 1 => (),
            _ => source.forbidden("may not specify more than 1 volume type"),
        }
    }
}

fn mode(at: &At<'_>) {
    if at.number().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        at.invalid(MODE);
    }
}

fn keys(at: &At<'_>) {
    mode(&at.field("defaultMode"));
    at.each("items").iter().for_each(key_to_path);
}

fn key_to_path(at: &At<'_>) {
    at.field("key").needed();
    at.field("path").needed();
    non_reserved(&at.field("path"));
    mode(&at.field("mode"));
}

fn downward_file(at: &At<'_>) {
    let path = at.field("path");
    if path.needed() {
        non_reserved(&path);
    }
    let (field, resource) = (at.field("fieldRef"), at.field("resourceFieldRef"));
    match (field.exists(), resource.exists()) {
        (true, true) => at.invalid("fieldRef and resourceFieldRef can not be specified simultaneously"),
        (true, false) => field_ref(&field, &POD_FIELDS, ""),
        (false, true) => {
            if resource.field("containerName").needed() {
                resource_ref(&resource);
            }
        }
        (false, false) => at.required("one of fieldRef and resourceFieldRef is required"),
    }
    mode(&at.field("mode"));
}

pub(super) fn no_backsteps(at: &At<'_>) {
    if at.text().split('/').any(|part| part == "..") {
        at.invalid("must not contain '..'");
    }
}

/// A path below a directory.
pub(super) fn descending(at: &At<'_>) {
    if at.text().starts_with('/') {
        at.invalid("must be a relative path");
    }
    no_backsteps(at);
}

/// A path below a volume, where names that begin with two dots are its own.
fn non_reserved(at: &At<'_>) {
    descending(at);
    if at.text().starts_with("..") && !at.text().starts_with("../") {
        at.invalid("must not start with '..'");
    }
}

pub(super) fn mounts(container: &At<'_>, volumes: &[String]) {
    let mounts = container.field("volumeMounts");
    let mut places = Vec::new();
    for mount in mounts.items() {
        let (name, place) = (mount.field("name"), mount.field("mountPath"));
        name.needed();
        if !volumes.iter().any(|known| known == name.text()) {
            name.complain(FieldError::not_found(name.path(), name.text()));
        }
        place.needed();
        if places.contains(&place.text()) {
            place.invalid("must be unique");
        }
        places.push(place.text());
        // Upstream tells of the list here, not of the place in it.
        for field in ["subPath", "subPathExpr"] {
            if !mount.field(field).is_empty() {
                descending(&mount.field(field).called(mounts.path().child(field)));
            }
        }
        let propagation = mount.field("mountPropagation").called(mounts.path().child("mountPropagation"));
        propagation.one_of_if_set(&["Bidirectional", "HostToContainer", "None"]);
        let recursive = mount.field("recursiveReadOnly").called(mounts.path().child("recursiveReadOnly"));
        recursive_read_only(&mount, &recursive);
        if propagation.text() == "Bidirectional" && !container.at(&["securityContext", "privileged"]).is_true() {
            propagation.forbidden("Bidirectional mount propagation is available only to privileged containers");
        }
    }
}

fn recursive_read_only(mount: &At<'_>, at: &At<'_>) {
    match at.text() {
        "Disabled" => (),
        "Enabled" | "IfPossible" => {
            if !mount.field("readOnly").is_true() {
                at.forbidden("may only be specified when readOnly is true");
            }
            if !matches!(mount.field("mountPropagation").text(), "" | "None") {
                at.forbidden("may only be specified when mountPropagation is None or not specified");
            }
        }
        _ => at.one_of_if_set(&["Disabled", "Enabled", "IfPossible"]),
    }
}

fn csi(at: &At<'_>) {
    const DRIVER_MAX: usize = 63;
    let driver = at.field("driver");
    if driver.needed() {
        if driver.text().len() > DRIVER_MAX {
            driver.complain(FieldError::too_long(driver.path(), DRIVER_MAX));
        }
        for detail in is_subdomain(&driver.text().to_lowercase()) {
            driver.complain(FieldError::invalid(driver.path(), driver.text(), detail));
        }
    }
    let secret = at.field("nodePublishSecretRef");
    if secret.exists() {
        secret.field("name").needed();
    }
}

/// Volumes that a container has as devices, which only claims can be.
pub(super) fn devices(container: &At<'_>, volumes: &[String], spec: &At<'_>) {
    let claimed = |name: &str| {
        let sources = spec.each("volumes").into_iter().filter(|volume| volume.field("name").text() == name);
        sources
            .into_iter()
            .any(|volume| ["persistentVolumeClaim", "ephemeral"].iter().any(|f| volume.field(f).exists()))
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

/// Variables are read from files of volumes that are written at run time.
pub(super) fn file_keys(spec: &At<'_>) {
    let volumes = spec.each("volumes");
    for container in ["initContainers", "containers", "ephemeralContainers"].iter().flat_map(|list| spec.each(list)) {
        for variable in container.each("env") {
            let reference = variable.at(&["valueFrom", "fileKeyRef"]);
            let name = reference.field("volumeName");
            if !reference.exists() {
                continue;
            }
            match volumes.iter().find(|volume| volume.field("name").text() == name.text()) {
                None => name.complain(FieldError::not_found(name.path(), name.text())),
                Some(volume) if !volume.field("emptyDir").exists() => {
                    name.invalid("referenced volume must be of type emptyDir");
                }
                Some(_) => (),
            }
        }
    }
}
