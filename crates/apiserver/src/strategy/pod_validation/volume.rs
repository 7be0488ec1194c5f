//! The rules of a pod's volumes.

use api::field::FieldError;
use api::validation::{is_label, is_subdomain};

use super::super::check::At;
use super::super::storage::claim_spec;
use super::super::volume_sources::{LONG_ISCSI, is_long_iscsi, mode, non_reserved, source};
use super::all_containers;
use super::environment::{field_ref, resource_ref};

/// What volumes are made of, in upstream's order, and what a second one is called.
const SOURCES: [(&str, &str); 30] = [
    ("emptyDir", "emptyDir"),
    ("hostPath", "hostPath"),
    ("gitRepo", "gitRepo"),
    ("gcePersistentDisk", "gcePersistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore"),
    ("secret", "secret"),
    ("nfs", "nfs"),
    ("iscsi", "iscsi"),
    ("glusterfs", "glusterfs"),
    ("flocker", "flocker"),
    ("persistentVolumeClaim", "persistentVolumeClaim"),
    ("rbd", "rbd"),
    ("cinder", "cinder"),
    ("cephfs", "cephFS"),
    ("quobyte", "quobyte"),
    ("downwardAPI", "downwarAPI"),
    ("fc", "fc"),
    ("flexVolume", "flexVolume"),
    ("configMap", "configMap"),
    ("azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk"),
    ("storageos", "storageos"),
    ("projected", "projected"),
    ("scaleIO", "scaleIO"),
    ("csi", "csi"),
    ("ephemeral", "ephemeral"),
    ("image", "image"),
];
const POD_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// The names of the volumes that can be mounted, of `pod` or of a template.
pub(super) fn volumes(at: &At<'_>, pod: Option<&At<'_>>) -> Vec<String> {
    let pod_name = pod.map(|pod| pod.at(&["metadata", "name"]).text()).filter(|name| !name.is_empty());
    let claim_of = |volume: &At<'_>| pod_name.map(|pod| format!("{pod}-{}", volume.field("name").text()));
    let created: Vec<String> =
        at.items().iter().filter(|v| v.field("ephemeral").exists()).filter_map(claim_of).collect();
    let mut names: Vec<String> = Vec::new();
    for volume in at.items() {
        let name = volume.field("name");
        let before = at.complaints();
        sources(&volume, pod.is_some());
        if volume.field("ephemeral").exists() && !name.is_empty() && sole(&volume) == Some("ephemeral") {
            for (claim, detail) in
                claim_of(&volume).iter().flat_map(|claim| is_subdomain(claim).into_iter().map(move |d| (claim, d)))
            {
                name.invalid(format!("PVC name {claim:?}: {detail}"));
            }
        }
        name.needed_named(is_label);
        if names.iter().any(|known| known == name.text()) {
            name.duplicate();
        }
        // One that is wrong cannot be mounted.
        if at.complaints() == before {
            names.push(name.text().to_owned());
        }
        let claim = volume.at(&["persistentVolumeClaim", "claimName"]);
        if created.iter().any(|created| created == claim.text()) {
            claim.invalid("must not reference a PVC that gets created for an ephemeral volume");
        }
    }
    names
}

/// The source that counts: the first.
fn sole<'a>(volume: &At<'a>) -> Option<&'static str> {
    SOURCES.iter().map(|(kind, _)| *kind).find(|kind| volume.field(kind).exists())
}

fn sources(volume: &At<'_>, is_pod: bool) {
    let first = sole(volume);
    for (kind, called) in SOURCES {
        let at = volume.field(kind);
        if !at.exists() {
            continue;
        }
        if first == Some(kind) {
            one(kind, &at, is_pod);
        } else {
            at.called(volume.path().child(called)).forbidden("may not specify more than 1 volume type");
        }
        if kind == "iscsi" && is_long_iscsi(&at, volume.field("name").text()) {
            volume.field("name").invalid(LONG_ISCSI);
        }
    }
    if first.is_none() {
        volume.required("must specify a volume type");
    }
}

fn one(kind: &str, at: &At<'_>, is_pod: bool) {
    match kind {
        "emptyDir" if at.field("sizeLimit").quantity().is_some_and(|size| size.is_negative()) => {
            at.field("sizeLimit").forbidden("SizeLimit field must be a valid resource quantity");
        }
        "secret" | "configMap" => {
            at.field(if kind == "secret" { "secretName" } else { "name" }).needed();
            mode(&at.field("defaultMode"));
            at.each("items").iter().for_each(key_to_path);
        }
        "downwardAPI" => {
            mode(&at.field("defaultMode"));
            // Upstream tells of the volume here, not of the file in it.
            at.each("items").iter().for_each(|file| downward_file(&file.called(at.path().clone())));
        }
        "projected" => {
            mode(&at.field("defaultMode"));
            projected(at);
        }
        "image" => {
            if is_pod {
                at.field("reference").needed();
            }
            at.field("pullPolicy").needed_one_of(&["Always", "IfNotPresent", "Never"]);
        }
        "ephemeral" => match at.field("volumeClaimTemplate").exists() {
            true => {
                claim_metadata(&at.at(&["volumeClaimTemplate", "metadata"]));
                claim_spec(&at.at(&["volumeClaimTemplate", "spec"]));
            }
            false => at.field("volumeClaimTemplate").required(""),
        },
        // Upstream calls it by another name, except where it is one too many.
        "gcePersistentDisk" => {
            let place = at.path().to_string().replace("gcePersistentDisk", "persistentDisk");
            source(kind, &at.called(api::field::Path::new(&place)), false);
        }
        _ => source(kind, at, false),
    }
}

/// What is made from a template is named by whoever makes it.
fn claim_metadata(at: &At<'_>) {
    at.extend(api::validation::annotations(Some(at.field("annotations").value()), &at.path().child("annotations")));
    at.field("labels").labels();
    for name in at.entries().iter().map(|(name, _)| *name).filter(|name| !matches!(*name, "annotations" | "labels")) {
        if !at.field(name).is_empty() {
            at.field(name).forbidden("cannot be set");
        }
    }
}

/// A token is of somebody.
pub(super) fn tokens_of_nobody(spec: &At<'_>) {
    if !spec.field("serviceAccountName").is_empty() {
        return;
    }
    for source in spec.each("volumes").iter().flat_map(|volume| volume.field("projected").each("sources")) {
        let token = source.field("serviceAccountToken");
        if token.exists() {
            token.forbidden("must not be specified when serviceAccountName is not set");
        }
    }
}

fn projected<'a>(volume: &At<'a>) {
    let mut paths: Vec<&str> = Vec::new();
    for source in volume.each("sources") {
        let mut take = |path: At<'a>, shown: &str| {
            if paths.contains(&path.text()) {
                volume.complain(FieldError::invalid(volume.path(), shown, "conflicting duplicate paths"));
            } else if !path.is_empty() {
                paths.push(path.text());
            }
        };
        for name in ["secret", "configMap"] {
            let part = source.field(name);
            if part.exists() {
                part.field("name").needed();
                for item in part.each("items") {
                    key_to_path(&item);
                    take(item.field("path"), part.field("name").text());
                }
            }
        }
        let downward = source.field("downwardAPI");
        for file in downward.each("items") {
            let path = file.field("path");
            // Upstream tells of the source here, not of the file in it.
            downward_file(&file.called(downward.path().clone()));
            take(path.clone(), path.text());
        }
        token(volume, &source.field("serviceAccountToken"));
        if source.entries().iter().filter(|(_, part)| part.exists()).count() > 1 {
            source.forbidden("may not specify more than 1 volume type per source");
        }
    }
}

fn token(volume: &At<'_>, token: &At<'_>) {
    if !token.exists() {
        return;
    }
    let seconds = token.field("expirationSeconds");
    let number = seconds.number().unwrap_or(0);
    let tell = |detail: &str| seconds.complain(FieldError::invalid(seconds.path(), number, detail));
    if number < 600 {
        tell("may not specify a duration less than 10 minutes");
    }
    if number > 1 << 32 {
        tell("may not specify a duration larger than 2^32 seconds");
    }
    // Upstream tells of the volume here.
    let path = token.field("path").called(volume.path().child("path"));
    if path.needed() {
        non_reserved(&path);
    }
}

fn key_to_path(at: &At<'_>) {
    at.field("key").needed();
    at.field("path").needed();
    non_reserved(&at.field("path"));
    mode(&at.field("mode"));
}

fn downward_file(at: &At<'_>) {
    let path = at.field("path");
    path.needed();
    non_reserved(&path);
    let (field, resource) = (at.field("fieldRef"), at.field("resourceFieldRef"));
    if field.exists() {
        field_ref(&field, &POD_FIELDS);
        if resource.exists() {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            at.complain(FieldError::invalid(at.path(), "resource", detail));
        }
    } else if resource.exists() {
        resource_ref(&resource, true);
    } else {
        at.required("one of fieldRef and resourceFieldRef is required");
    }
    mode(&at.field("mode"));
}

/// Variables are read from files of volumes that are written at run time.
pub(super) fn file_keys(spec: &At<'_>) {
    let volumes = spec.each("volumes");
    for variable in all_containers(spec).iter().flat_map(|container| container.each("env")) {
        let reference = variable.at(&["valueFrom", "fileKeyRef"]);
        let name = reference.field("volumeName");
        if !reference.exists() {
            continue;
        }
        match volumes.iter().rev().find(|volume| volume.field("name").text() == name.text()) {
            None => name.complain(FieldError::not_found(name.path(), name.text())),
            Some(volume) if !volume.field("emptyDir").exists() => {
                name.invalid("referenced volume must be of type emptyDir");
            }
            Some(_) => (),
        }
    }
}
